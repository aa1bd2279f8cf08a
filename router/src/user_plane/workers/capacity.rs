//! What there is of I/O on this machine: bytes of packets that workers may take in and send in a second (P7).
//!
//! What bounds them on today's machines, each in both directions at a time:
//!
//! * **Links.** A port carries what its link does, which sysfs tells (`speed`) and which changes with what is at its other end: so it is read
//!   while workers run.
//! * **Slots.** A NIC moves no more than its PCI Express link: two ports of 100 Gbit/s in 16 lanes of generation 3 have 126 Gbit/s together. sysfs tells
//!   that too (`current_link_speed`, `current_link_width`); functions of one device share it.
//!
//! There is the sum over devices of the lesser of the two. What goes over links and slots beside packets (gaps and checksums of frames, headers of PCI
//! Express, descriptors) is not counted as theirs, so short packets saturate a machine below that sum, and one full link of many is not seen in it. Who
//! knows better says so: `[experimental] io_mbps`, which benchmarks find (P, footnote 7). `millrace calibrate` does not, as it would need who sends and
//! receives at the speed of all ports.
//!
//! What the kernel plane forwards by the same ports is not seen beside what workers do: a link that both fill is found scarce too late, and cycles are shared
//! meanwhile.
//!
//! Where a port is a virtual function, whose link others share, is no hardware (veth claims 10 Gbit/s and means nothing by it), its driver does not tell, or its link is down, the sum is not known: I/O is never found
//! scarce then, and that is told.

use crate::{api::workers::Capacity, cores::Roots};
use std::{collections::BTreeMap, fs, path::Path};

impl Capacity {
    /// As the configuration says.
    pub fn of_io_stated(mbps: u32) -> Capacity {
        let per_second = Some(u64::from(mbps) * BYTES_OF_MBIT);
        Capacity { per_second, basis: "as [experimental] io_mbps says".into() }
    }

    /// Of these ports, together.
    pub fn of_io<'a>(roots: &Roots, ports: impl IntoIterator<Item = &'a str>) -> Capacity {
        let mut devices = BTreeMap::<String, Device>::new();
        for port in ports {
            let link = match Link::of(&roots.device(port)) {
                Ok(link) => link,
                Err(why) => return Capacity::unknown(&format!("port {port} {why}")),
            };
            let device = devices.entry(link.device).or_default();
            device.links += link.mbps;
            device.slot = link.slot_mbps;
        }
        if devices.is_empty() {
            return Capacity::unknown("workers have no ports");
        }
        let both_ways = devices.values().map(|device| 2 * device.mbps()).sum::<u64>();
        let narrow = devices.values().filter(|device| device.mbps() < device.links).count();
        let slots = if narrow > 0 { format!(", {narrow} of them bound by the slot") } else { String::new() };
        let basis = format!("links of {} devices, both directions{slots}", devices.len());
        Capacity { per_second: Some(both_ways * BYTES_OF_MBIT), basis }
    }

    fn unknown(why: &str) -> Capacity {
        Capacity { per_second: None, basis: format!("{why} (`[experimental] io_mbps` may say it)") }
    }
}

const BYTES_OF_MBIT: u64 = 1_000_000 / 8;

/// Its ports' links, and its slot's, Mbit/s in each direction.
#[derive(Default)]
struct Device {
    links: u64,
    slot: Option<u64>,
}

impl Device {
    fn mbps(&self) -> u64 {
        self.slot.map_or(self.links, |slot| self.links.min(slot))
    }
}

struct Link {
    /// What has it; functions of one device of PCI are one.
    device: String,
    mbps: u64,
    slot_mbps: Option<u64>,
}

impl Link {
    /// Of a directory of sysfs; why its speed is not known.
    fn of(directory: &Path) -> Result<Link, &'static str> {
        let device = fs::canonicalize(directory.join("device")).map_err(|_| "is no hardware")?;
        if device.join("physfn").exists() {
            return Err("is a virtual function, whose link others share");
        }
        let speed = text(&directory.join("speed")).and_then(|speed| speed.parse::<i64>().ok());
        // -1: unknown; and nothing can be read while the link is down.
        let mbps = speed.and_then(|mbps| u64::try_from(mbps).ok()).filter(|mbps| *mbps > 0);
        let mbps = mbps.ok_or("has no link, or its driver does not tell how fast that is")?;
        let address = device.to_string_lossy();
        let slot_mbps = slot_mbps(&device);
        let whole = address.rsplit_once('.').filter(|_| slot_mbps.is_some());
        Ok(Link { device: whole.map_or(&*address, |(device, _)| device).to_owned(), mbps, slot_mbps })
    }
}

/// What a lane carries: half a byte more in each 2 up to generation 2 (8b/10b), and 2 bits in 130 after it.
fn slot_mbps(device: &Path) -> Option<u64> {
    let speed = text(&device.join("current_link_speed"))?;
    let gigatransfers = speed.split(' ').next()?.parse::<f64>().ok()?;
    let lanes = text(&device.join("current_link_width"))?.parse::<u64>().ok().filter(|lanes| *lanes > 0)?;
    let coding = if gigatransfers < 8.0 { 0.8 } else { 128.0 / 130.0 };
    Some((gigatransfers * 1000.0 * coding) as u64 * lanes).filter(|mbps| *mbps > 0)
}

fn text(file: &Path) -> Option<String> {
    fs::read_to_string(file).ok().map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cores::tree::Tree;
    use std::os::unix::fs::symlink;

    /// A port of a function in a slot of so many lanes.
    fn port(tree: &Tree, name: &str, function: &str, speed: &str, slot: Option<(&str, &str)>) {
        let device = format!("sys/devices/pci0000:3a/{function}");
        tree.write(&format!("{device}/vendor"), "0x15b3\n");
        if let Some((speed, lanes)) = slot {
            tree.write(&format!("{device}/current_link_speed"), &format!("{speed}\n"));
            tree.write(&format!("{device}/current_link_width"), &format!("{lanes}\n"));
        }
        tree.write(&format!("sys/class/net/{name}/speed"), &format!("{speed}\n"));
        symlink(tree.path(&device), tree.path(&format!("sys/class/net/{name}/device"))).unwrap();
    }

    #[test]
    fn links_bound_and_slots_do_and_what_is_no_hardware_is_not_known() {
        let tree = Tree::new();
        let third = Some(("8.0 GT/s PCIe", "16"));
        port(&tree, "a0", "0000:3b:00.0", "100000", third);
        port(&tree, "a1", "0000:3b:00.1", "100000", third);
        port(&tree, "b0", "0000:5e:00.0", "10000", Some(("5.0 GT/s PCIe", "8")));
        port(&tree, "soc", "platform-eth", "1000", None);
        port(&tree, "down", "0000:5f:00.0", "-1", third);
        port(&tree, "guest", "0000:3b:02.1", "25000", Some(("Unknown", "0")));
        port(&tree, "vf", "0000:3b:02.2", "25000", None);
        tree.write("sys/devices/pci0000:3a/0000:3b:02.2/physfn/vendor", "0x15b3\n");
        tree.write("sys/class/net/veth/speed", "10000\n");
        let io = |ports: &[&str]| Capacity::of_io(&tree.roots(), ports.iter().copied());
        let mbytes = |ports: &[&str]| io(ports).per_second.map(|bytes| bytes / 1_000_000);
        assert_eq!(mbytes(&["a0"]), Some(2 * 100_000 / 8));
        // 16 lanes of 7,876 Mbit/s, for both.
        assert_eq!(mbytes(&["a0", "a1"]), Some(2 * 126_016 / 8));
        assert_eq!(mbytes(&["a0", "a1", "b0", "soc"]), Some(2 * (126_016 + 10_000 + 1_000) / 8));
        assert_eq!(mbytes(&["guest", "soc"]), Some(2 * 26_000 / 8));
        assert_eq!(
            io(&["a1", "a0", "soc"]).basis,
            "links of 2 devices, both directions, 1 of them bound by the slot"
        );
        for (ports, why) in [
            (&["a0", "veth"][..], "port veth is no hardware"),
            (&["down"], "port down has no link"),
            (&["a0", "vf"], "port vf is a virtual function"),
            (&["gone"], "port gone is no hardware"),
            (&[], "workers have no ports"),
        ] {
            let unknown = io(ports);
            assert!(unknown.per_second.is_none() && unknown.basis.starts_with(why), "{unknown:?}");
            assert!(unknown.basis.contains("io_mbps"));
        }
        assert_eq!(Capacity::of_io_stated(80).per_second, Some(10_000_000));
    }
}
