//! The I/O capacity of this machine: bytes of packets that workers can receive and send in a second (P7).
//!
//! Two things bound it, each in both directions at a time:
//!
//! * **Links.** A port carries what its link does. sysfs has its speed (`speed`). It may change with the other end of the
//!   link, so it is read while workers run.
//! * **Slots.** A NIC moves no more than its PCI Express link does: two ports of 100 Gbit/s in 16 lanes of generation 3 have
//!   126 Gbit/s together. sysfs has that too (`current_link_speed`, `current_link_width`). Functions of one device share it.
//!
//! The capacity is the sum, over all devices, of the lesser of the two. Links and slots also carry gaps and checksums of
//! frames, headers of PCI Express, and descriptors. These are not counted, so short packets saturate a machine below that
//! sum. If one link of many is full, the sum does not show it. `[experimental] io_mbps` sets the capacity if it is known
//! better, from benchmarks (P, footnote 7). `millrace calibrate` does not measure it, because that needs something that
//! sends and receives at the speed of all ports.
//!
//! What the kernel plane forwards by the same ports is not included. A link that both planes fill is found scarce too late,
//! and cycles are shared meanwhile.
//!
//! The sum is not known in these cases: a port is a virtual function, whose link others share; a port is not a hardware
//! device (veth reports 10 Gbit/s, which means nothing); its driver does not report the speed; its link is down. I/O is then
//! never found scarce, and reports say why.

use crate::{api::workers::Capacity, cores::Roots};
use std::{collections::BTreeMap, fs, path::Path};

impl Capacity {
    /// The capacity that the configuration states.
    pub fn of_io_stated(mbps: u32) -> Capacity {
        let per_second = Some(u64::from(mbps) * BYTES_OF_MBIT);
        Capacity { per_second, basis: "as [experimental] io_mbps says".into() }
    }

    /// The capacity of these ports together.
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
        Capacity { per_second: None, basis: format!("{why} (`[experimental] io_mbps` can set it)") }
    }
}

const BYTES_OF_MBIT: u64 = 1_000_000 / 8;

/// The links of a device's ports together, and the link of its slot, in Mbit/s in each direction.
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
    /// The device of the link; functions of one PCI device count as one.
    device: String,
    mbps: u64,
    slot_mbps: Option<u64>,
}

impl Link {
    /// Reads a port's directory in sysfs; `Err`: why the speed is not known.
    fn of(directory: &Path) -> Result<Link, &'static str> {
        let device = fs::canonicalize(directory.join("device")).map_err(|_| "is not a hardware device")?;
        if device.join("physfn").exists() {
            return Err("is a virtual function, whose link others share");
        }
        let speed = text(&directory.join("speed")).and_then(|speed| speed.parse::<i64>().ok());
        // -1 means unknown, and nothing can be read while the link is down.
        let mbps = speed.and_then(|mbps| u64::try_from(mbps).ok()).filter(|mbps| *mbps > 0);
        let mbps = mbps.ok_or("has no link, or its driver does not report the speed")?;
        let address = device.to_string_lossy();
        let slot_mbps = slot_mbps(&device);
        let whole = address.rsplit_once('.').filter(|_| slot_mbps.is_some());
        Ok(Link { device: whole.map_or(&*address, |(device, _)| device).to_owned(), mbps, slot_mbps })
    }
}

/// What the lanes of a slot carry without their coding: 8 bits in 10 up to generation 2 (8b/10b), 128 bits in 130 after it.
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

    /// Makes a port of this PCI function, in a slot with this speed and these lanes.
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
    fn links_and_slots_bound_the_capacity_and_other_devices_make_it_unknown() {
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
        // 16 lanes of 7,876 Mbit/s, which both share.
        assert_eq!(mbytes(&["a0", "a1"]), Some(2 * 126_016 / 8));
        assert_eq!(mbytes(&["a0", "a1", "b0", "soc"]), Some(2 * (126_016 + 10_000 + 1_000) / 8));
        assert_eq!(mbytes(&["guest", "soc"]), Some(2 * 26_000 / 8));
        assert_eq!(
            io(&["a1", "a0", "soc"]).basis,
            "links of 2 devices, both directions, 1 of them bound by the slot"
        );
        for (ports, why) in [
            (&["a0", "veth"][..], "port veth is not a hardware device"),
            (&["down"], "port down has no link"),
            (&["a0", "vf"], "port vf is a virtual function"),
            (&["gone"], "port gone is not a hardware device"),
            (&[], "workers have no ports"),
        ] {
            let unknown = io(ports);
            assert!(unknown.per_second.is_none() && unknown.basis.starts_with(why), "{unknown:?}");
            assert!(unknown.basis.contains("io_mbps"));
        }
        assert_eq!(Capacity::of_io_stated(80).per_second, Some(10_000_000));
    }
}
