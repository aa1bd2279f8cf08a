//! A NIC's receive classifier (ntuple rules), by `SIOCETHTOOL`: it sends certain flows to certain RX queues. The NIC
//! spreads all other packets over queues by its indirection table, which is also here.
//!
//! Layouts are those of `include/uapi/linux/ethtool.h`, written byte by byte. `net/ethtool/ioctl.c` is the kernel's
//! side.

use crate::{base::hex, linux::ethtool::Ethtool};
use logic::steer::{Flow, Rule};
use std::{collections::BTreeSet, io, net::IpAddr};

const ETHTOOL_GRXRINGS: u32 = 0x2d;
const ETHTOOL_GRXCLSRLCNT: u32 = 0x2e;
const ETHTOOL_GRXCLSRULE: u32 = 0x2f;
const ETHTOOL_GRXCLSRLALL: u32 = 0x30;
const ETHTOOL_SRXCLSRLDEL: u32 = 0x31;
const ETHTOOL_SRXCLSRLINS: u32 = 0x32;
const ETHTOOL_GRXFHINDIR: u32 = 0x38;
const ETHTOOL_SRXFHINDIR: u32 = 0x39;
const TCP_V4_FLOW: u32 = 1;
const UDP_V4_FLOW: u32 = 2;
const TCP_V6_FLOW: u32 = 5;
const UDP_V6_FLOW: u32 = 6;
const TCP: u8 = 6;
/// In `data` of `ETHTOOL_GRXCLSRLCNT`: the driver chooses a location if a request has [`RX_CLS_LOC_ANY`].
const RX_CLS_LOC_SPECIAL: u32 = 0x8000_0000;
const RX_CLS_LOC_ANY: u32 = 0xffff_ffff;

/// The size of `struct ethtool_rx_flow_spec`, and the offsets of its parts.
const SPEC_BYTES: usize = 168;
const VALUES_AT: usize = 4;
const MASKS_AT: usize = 76;
const RING_AT: usize = 152;
const LOCATION_AT: usize = 160;
/// The size of `struct ethtool_rxnfc`, and the offsets of its parts.
const RXNFC_BYTES: usize = 192;
const DATA_AT: usize = 8;
const SPEC_AT: usize = 16;
const COUNT_AT: usize = 184;
const LOCATIONS_AT: usize = 188;
/// `struct ethtool_rxfh_indir`: command, size, then the queue of each entry.
const RINGS_AT: usize = 8;
/// More rules, or entries of an indirection table, than any NIC has. A larger count is cut to this.
const MOST: u32 = 1 << 16;

/// `SIOCETHTOOL`. Tests use a fake NIC instead.
pub trait Ioctl {
    /// `request` must be a whole structure, long enough for everything that the kernel writes for its command.
    fn ethtool(&self, device: &str, request: &mut [u8]) -> io::Result<()>;
    /// The current name of a device of this namespace; `None`: there is no such device.
    fn name(&self, ifindex: u32) -> io::Result<Option<String>>;
}

impl Ioctl for Ethtool {
    fn ethtool(&self, device: &str, request: &mut [u8]) -> io::Result<()> {
        let word =
            |bytes: &[u8]| u32::from_ne_bytes(std::array::from_fn(|i| bytes.get(i).copied().unwrap_or(0)));
        let mut words: Vec<u32> = request.chunks(4).map(word).collect();
        self.call(device, &mut words)?;
        let bytes = words.iter().flat_map(|w| w.to_ne_bytes());
        request.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        Ok(())
    }

    fn name(&self, ifindex: u32) -> io::Result<Option<String>> {
        Ethtool::name(self, ifindex)
    }
}

/// The capabilities of a classifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The number of RX queues.
    pub queues: u32,
    /// The number of locations for rules; 0: the driver does not report it.
    pub locations: u32,
    /// The driver can choose a location itself.
    pub chooses: bool,
}

/// A rule on the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    pub location: u32,
    pub spec: Spec,
}

/// `struct ethtool_rx_flow_spec` up to `location`. Equal values are the same rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Spec([u8; LOCATION_AT]);

impl Spec {
    /// A rule that matches all five fields of a flow exactly, with its queue.
    pub fn of(rule: &Rule) -> Spec {
        let Rule { flow: Flow { source, destination, protocol, ports, .. }, queue } = rule;
        let mut values = Vec::with_capacity(36);
        let mut append = |address: &IpAddr| match address {
            IpAddr::V4(a) => values.extend(a.octets()),
            IpAddr::V6(a) => values.extend(a.octets()),
        };
        append(source);
        append(destination);
        values.extend(ports.iter().flat_map(|port| port.to_be_bytes()));
        let kind = match (source.is_ipv4(), *protocol == TCP) {
            (true, true) => TCP_V4_FLOW,
            (true, false) => UDP_V4_FLOW,
            (false, true) => TCP_V6_FLOW,
            (false, false) => UDP_V6_FLOW,
        };
        let mut spec = [0; LOCATION_AT];
        spec[..4].copy_from_slice(&kind.to_ne_bytes());
        spec[VALUES_AT..][..values.len()].copy_from_slice(&values);
        spec[MASKS_AT..][..values.len()].fill(0xff);
        spec[RING_AT..].copy_from_slice(&u64::from(*queue).to_ne_bytes());
        Spec(spec)
    }

    /// The rule as hexadecimal digits, for a file.
    pub fn to_text(self) -> String {
        hex::encode(&self.0)
    }

    /// Reads the output of [`Spec::to_text`]. `None`: the text is not valid.
    pub fn from_text(text: &str) -> Option<Spec> {
        Some(Spec(hex::decode(text)?.try_into().ok()?))
    }
}

/// A device's classifier and its indirection table.
pub trait Classifier: Send {
    /// The current name of a device of this namespace; `None`: there is no such device.
    fn name(&self, ifindex: u32) -> io::Result<Option<String>>;
    /// `None`: the device has no classifier.
    fn capabilities(&self, device: &str) -> io::Result<Option<Capabilities>>;
    /// All rules, regardless of who created them.
    fn rules(&self, device: &str) -> io::Result<Vec<Installed>>;
    /// Inserts a rule and returns its location: one that the driver chose, or a free one.
    fn insert(&self, device: &str, spec: &Spec) -> io::Result<u32>;
    fn delete(&self, device: &str, location: u32) -> io::Result<()>;
    /// The number of RX queues of a device that has an indirection table.
    fn queues(&self, device: &str) -> io::Result<u32>;
    /// The indirection table: the queues over which packets without a rule are spread, by their hash (RSS). Empty: the
    /// device has no such table.
    fn indirection(&self, device: &str) -> io::Result<Vec<u32>>;
    /// Sets the indirection table. An empty one makes the driver use its default.
    fn set_indirection(&self, device: &str, rings: &[u32]) -> io::Result<()>;
}

/// The classifier of a real device.
pub struct Ntuple<I>(pub I);

fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    crate::linux::netlink::wire::u32_at(bytes, at).unwrap_or(0)
}

impl<I: Ioctl> Ntuple<I> {
    fn rxnfc(&self, device: &str, command: u32, change: impl FnOnce(&mut [u8])) -> io::Result<Vec<u8>> {
        let mut request = vec![0; RXNFC_BYTES];
        request[..4].copy_from_slice(&command.to_ne_bytes());
        change(&mut request);
        self.0.ethtool(device, &mut request)?;
        Ok(request)
    }

    /// Returns the number of rules, the number of locations, and whether the driver can choose a location.
    fn count(&self, device: &str) -> io::Result<(u32, u32, bool)> {
        let answer = self.rxnfc(device, ETHTOOL_GRXCLSRLCNT, |_| {})?;
        let data = u32_at(&answer, DATA_AT);
        Ok((u32_at(&answer, COUNT_AT), data & !RX_CLS_LOC_SPECIAL, data & RX_CLS_LOC_SPECIAL != 0))
    }

    /// Returns the locations of all rules, and the number of locations.
    fn locations(&self, device: &str) -> io::Result<(BTreeSet<u32>, u32)> {
        let count = self.count(device)?.0.min(MOST);
        let bytes = (LOCATIONS_AT + 4 * count as usize).max(RXNFC_BYTES);
        let mut answer = vec![0; bytes];
        answer[..4].copy_from_slice(&ETHTOOL_GRXCLSRLALL.to_ne_bytes());
        answer[COUNT_AT..][..4].copy_from_slice(&count.to_ne_bytes());
        self.0.ethtool(device, &mut answer)?;
        let there = u32_at(&answer, COUNT_AT).min(count) as usize;
        let all = (0..there).map(|i| u32_at(&answer, LOCATIONS_AT + 4 * i)).collect();
        Ok((all, u32_at(&answer, DATA_AT) & !RX_CLS_LOC_SPECIAL))
    }
}

impl<I: Ioctl + Send> Classifier for Ntuple<I> {
    fn name(&self, ifindex: u32) -> io::Result<Option<String>> {
        self.0.name(ifindex)
    }

    fn capabilities(&self, device: &str) -> io::Result<Option<Capabilities>> {
        let asked = self.rxnfc(device, ETHTOOL_GRXRINGS, |_| {}).and_then(|r| Ok((r, self.count(device)?)));
        match asked {
            Ok((rings, (_, locations, chooses))) => {
                Ok(Some(Capabilities { queues: u32_at(&rings, DATA_AT), locations, chooses }))
            }
            Err(error) if is_unsupported(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn rules(&self, device: &str) -> io::Result<Vec<Installed>> {
        let (locations, _) = self.locations(device)?;
        let mut rules = Vec::with_capacity(locations.len());
        for location in locations {
            let answer = self.rxnfc(device, ETHTOOL_GRXCLSRULE, |request| {
                request[SPEC_AT + LOCATION_AT..][..4].copy_from_slice(&location.to_ne_bytes());
            })?;
            let mut spec = [0; LOCATION_AT];
            spec.copy_from_slice(&answer[SPEC_AT..SPEC_AT + LOCATION_AT]);
            rules.push(Installed { location, spec: Spec(spec) });
        }
        Ok(rules)
    }

    fn insert(&self, device: &str, spec: &Spec) -> io::Result<u32> {
        let (_, places, chooses) = self.count(device)?;
        let location = if chooses {
            RX_CLS_LOC_ANY
        } else {
            // From the end: people begin at 0, and on most NICs the first location wins if several rules match.
            let (taken, _) = self.locations(device)?;
            let free = (0..places.min(MOST)).rev().find(|at| !taken.contains(at));
            free.ok_or(io::ErrorKind::StorageFull)?
        };
        let answer = self.rxnfc(device, ETHTOOL_SRXCLSRLINS, |request| {
            request[SPEC_AT..][..LOCATION_AT].copy_from_slice(&spec.0);
            request[SPEC_AT + LOCATION_AT..][..4].copy_from_slice(&location.to_ne_bytes());
        })?;
        Ok(u32_at(&answer, SPEC_AT + LOCATION_AT))
    }

    fn delete(&self, device: &str, location: u32) -> io::Result<()> {
        let place = |request: &mut [u8]| {
            request[SPEC_AT + LOCATION_AT..][..4].copy_from_slice(&location.to_ne_bytes());
        };
        self.rxnfc(device, ETHTOOL_SRXCLSRLDEL, place).map(drop)
    }

    fn queues(&self, device: &str) -> io::Result<u32> {
        Ok(u32_at(&self.rxnfc(device, ETHTOOL_GRXRINGS, |_| {})?, DATA_AT))
    }

    fn indirection(&self, device: &str) -> io::Result<Vec<u32>> {
        let mut request = vec![0; RINGS_AT];
        request[..4].copy_from_slice(&ETHTOOL_GRXFHINDIR.to_ne_bytes());
        match self.0.ethtool(device, &mut request) {
            Err(error) if is_unsupported(&error) => return Ok(Vec::new()),
            asked => asked?,
        }
        let size = u32_at(&request, 4).min(MOST);
        request.resize(RINGS_AT + 4 * size as usize, 0);
        request[4..8].copy_from_slice(&size.to_ne_bytes());
        self.0.ethtool(device, &mut request)?;
        Ok((0..size as usize).map(|i| u32_at(&request, RINGS_AT + 4 * i)).collect())
    }

    fn set_indirection(&self, device: &str, rings: &[u32]) -> io::Result<()> {
        let mut request = [ETHTOOL_SRXFHINDIR, rings.len() as u32].map(u32::to_ne_bytes).concat();
        request.extend(rings.iter().flat_map(|ring| ring.to_ne_bytes()));
        self.0.ethtool(device, &mut request)
    }
}

const _: () = {
    assert!(SPEC_AT + SPEC_BYTES == COUNT_AT);
    assert!(LOCATION_AT + 8 == SPEC_BYTES);
};

#[cfg(test)]
pub(crate) mod fake;

#[cfg(test)]
mod tests {
    use super::{fake::Nic, *};

    fn rule(source: &str, destination: &str, protocol: u8, queue: u8) -> Rule {
        let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
        Rule {
            flow: Flow { port: 0, interface: 1, source, destination, protocol, ports: [1000, 443] },
            queue,
        }
    }

    /// `ethtool -N DEV flow-type tcp4 src-ip 10.0.0.1 dst-ip 10.1.2.3 src-port 1000 dst-port 443 action 5`.
    #[test]
    fn a_rule_is_written_as_the_kernel_reads_it() {
        let nic = Nic::new(8, 1024, false);
        let spec = Spec::of(&rule("10.0.0.1", "10.1.2.3", 6, 5));
        assert_eq!(Ntuple(&nic).insert("eth0", &spec).unwrap(), 1023);
        let zeros = |n: usize| "00".repeat(n);
        let expected = [
            "32000000".into(),                 // cmd: ETHTOOL_SRXCLSRLINS
            zeros(12),                         // flow_type, data
            "01000000".into(),                 // fs.flow_type: TCP_V4_FLOW
            "0a0000010a01020303e801bb".into(), // fs.h_u.tcp_ip4_spec: ip4src, ip4dst, psrc, pdst
            zeros(40 + 20),                    // the rest of h_u, h_ext
            "ff".repeat(12),                   // m_u
            zeros(40 + 20),
            zeros(4),                  // padding
            "0500000000000000".into(), // ring_cookie
            "ff030000".into(),         // location
            zeros(4),
            zeros(8), // rule_cnt, and padding
        ];
        assert_eq!(hex::encode(&nic.last()), expected.concat());
    }

    #[test]
    fn ipv6_and_udp_have_their_own_kinds_and_lengths() {
        for (protocol, kind) in [(6, "05"), (17, "06")] {
            let Spec(bytes) = Spec::of(&rule("2001:db8::1", "2001:db8::2", protocol, 63));
            let address = |last: &str| format!("20010db8{}{last}", "00".repeat(11));
            let values = format!("{}{}03e801bb", address("01"), address("02"));
            let text = hex::encode(&bytes);
            assert_eq!(text[..8], format!("{kind}000000"));
            assert_eq!(text[8..80], values);
            assert_eq!(text[2 * MASKS_AT..][..72], "ff".repeat(36));
            assert_eq!(text[2 * (MASKS_AT + 36)..][..2 * 40], "00".repeat(40));
            assert_eq!(bytes[RING_AT], 63);
        }
        assert_eq!(Spec::of(&rule("10.0.0.1", "10.0.0.2", 17, 0)).0[0], 2);
    }

    #[test]
    fn rules_are_read_and_deleted_by_location() {
        let nic = Nic::new(8, 4, false);
        let ntuple = Ntuple(&nic);
        let specs: Vec<Spec> =
            (0..4).map(|queue| Spec::of(&rule("10.0.0.1", "10.1.2.3", 17, queue))).collect();
        let places: Vec<u32> = specs.iter().map(|spec| ntuple.insert("eth0", spec).unwrap()).collect();
        assert_eq!(places, [3, 2, 1, 0]);
        assert_eq!(ntuple.insert("eth0", &specs[0]).unwrap_err().kind(), io::ErrorKind::StorageFull);
        ntuple.delete("eth0", 2).unwrap();
        let left: Vec<_> = ntuple.rules("eth0").unwrap().into_iter().map(|r| (r.location, r.spec)).collect();
        assert_eq!(left, [(0, specs[3]), (1, specs[2]), (3, specs[0])]);
        assert_eq!(ntuple.insert("eth0", &specs[1]).unwrap(), 2, "the free location");
        assert!(ntuple.delete("eth0", 7).is_err());
    }

    #[test]
    fn a_driver_that_can_choose_locations_chooses_them() {
        let nic = Nic::new(8, 100, true);
        let ntuple = Ntuple(&nic);
        let capabilities = Capabilities { queues: 8, locations: 100, chooses: true };
        assert_eq!(ntuple.capabilities("eth0").unwrap(), Some(capabilities));
        let at = ntuple.insert("eth0", &Spec::of(&rule("10.0.0.1", "10.1.2.3", 6, 5))).unwrap();
        assert_eq!(nic.last()[SPEC_AT + LOCATION_AT..][..4], at.to_ne_bytes());
        assert_eq!(nic.asked(ETHTOOL_SRXCLSRLINS)[0][SPEC_AT + LOCATION_AT..][..4], [0xff; 4]);
    }

    #[test]
    fn a_missing_classifier_is_no_error_but_a_missing_device_is() {
        let nic = Nic::new(8, 0, false);
        for errno in [libc::EOPNOTSUPP, libc::EINVAL] {
            nic.fail(Some(errno));
            assert_eq!(Ntuple(&nic).capabilities("veth0").unwrap(), None);
            assert!(Ntuple(&nic).indirection("veth0").unwrap().is_empty());
        }
        nic.fail(Some(libc::ENODEV));
        assert!(Ntuple(&nic).capabilities("gone").is_err());
    }

    #[test]
    fn queues_are_removed_from_the_indirection_table_and_added_again() {
        let nic = Nic::new(4, 16, false);
        let ntuple = Ntuple(&nic);
        let before = ntuple.indirection("eth0").unwrap();
        assert_eq!(before, [0, 1, 2, 3, 0, 1, 2, 3]);
        ntuple.set_indirection("eth0", &[0, 1, 0, 1, 0, 1, 0, 1]).unwrap();
        assert_eq!(hex::encode(&nic.last()[..16]), "39000000080000000000000001000000");
        assert_eq!(ntuple.indirection("eth0").unwrap(), [0, 1, 0, 1, 0, 1, 0, 1]);
        ntuple.set_indirection("eth0", &[]).unwrap();
        assert_eq!(ntuple.indirection("eth0").unwrap(), before);
    }

    #[test]
    fn specs_are_read_as_they_were_written() {
        let spec = Spec::of(&rule("10.0.0.1", "10.1.2.3", 6, 5));
        assert_eq!(Spec::from_text(&spec.to_text()), Some(spec));
        for broken in ["", "00", &spec.to_text()[2..], &spec.to_text().replace('f', "x"), &"é".repeat(160)] {
            assert_eq!(Spec::from_text(broken), None);
        }
    }

    /// A veth has no classifier; this asks the kernel.
    #[test]
    #[ignore = "needs root"]
    fn a_veth_has_no_classifier() {
        std::thread::spawn(|| {
            // SAFETY: moves only this thread, which ends here.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
            let made = std::process::Command::new("ip").args(["link", "add", "v0", "type", "veth"]).status();
            assert!(made.unwrap().success());
            let ntuple = Ntuple(Ethtool::open().unwrap());
            assert_eq!(ntuple.capabilities("v0").unwrap(), None);
            assert!(ntuple.indirection("v0").unwrap().is_empty());
            assert!(ntuple.insert("v0", &Spec::of(&rule("10.0.0.1", "10.1.2.3", 6, 0))).is_err());
            assert!(ntuple.capabilities("none").is_err());
        })
        .join()
        .unwrap();
    }
}
