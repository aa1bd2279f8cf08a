//! Offloads of devices (`SIOCETHTOOL`), their XDP features, and the problems that these cause for a port.
//!
//! Kernel source: `include/uapi/linux/ethtool.h`; `net/ethtool/common.c` for the names of features, which `ethtool -k`
//! and `/sys/class/net` also use; `Documentation/netlink/specs/netdev.yaml`.

use crate::{
    base::foreign::{Quoted, Shown},
    linux::{
        hazards::command,
        netlink::{
            link::{self, LinkMessage, RawLink},
            netdev::Netdev,
            rtm,
            socket::Socket,
            wire::{self, Request},
        },
    },
};
use logic::cause::{Cause, Code};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    fmt, fs, io,
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
};

const SIOCETHTOOL: u64 = 0x8946;
const ETHTOOL_GSET: u32 = 0x01;
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GCOALESCE: u32 = 0x0e;
const ETHTOOL_SCOALESCE: u32 = 0x0f;
const ETHTOOL_GRINGPARAM: u32 = 0x10;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETH_SS_FEATURES: u32 = 4;
const NAME_BYTES: usize = 32;
/// The kernel has about 60 features. A larger count than this is cut.
const MOST_FEATURES: u32 = 1024;

const NETDEV_XDP_ACT_BASIC: u64 = 1;
const NETDEV_XDP_ACT_NDO_XMIT: u64 = 4;
const NETDEV_XDP_ACT_NDO_XMIT_SG: u64 = 64;

/// A problem of a port that would cause lost or broken packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub kind: ProblemKind,
    /// Names the problem and the command that helps.
    pub text: String,
}

/// Kinds of [`Problem`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProblemKind {
    /// Tagged frames arrive without their tag, and would be taken for untagged ones.
    VlanTagsHidden,
    /// Received packets are merged into larger ones.
    LargeReceive,
    /// Packets arrive with an incomplete checksum.
    PartialChecksums,
    /// Packets redirected into the port would vanish.
    CannotTransmit,
    /// The port could not be checked.
    Unknown,
}

impl Problem {
    /// The problem as a cause.
    pub fn cause(self) -> Cause {
        let code = match self.kind {
            ProblemKind::VlanTagsHidden => Code::VlanTagsHidden,
            ProblemKind::LargeReceive => Code::LargeReceive,
            ProblemKind::PartialChecksums => Code::PartialChecksums,
            ProblemKind::CannotTransmit => Code::CannotTransmit,
            ProblemKind::Unknown => Code::PortUnchecked,
        };
        code.cause(self.text)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// How long a device delays interrupts after a packet was received (`ethtool -c`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coalescing {
    /// Microseconds. If the delay is adaptive: its value now, if the driver reports it.
    pub us: u32,
    /// The driver adapts the delay to the traffic.
    pub adaptive: bool,
}

/// The number of words in `struct ethtool_coalesce`. The indices below are the words that Millrace uses.
const COALESCE_WORDS: usize = 23;
const RX_USECS: usize = 1;
const USE_ADAPTIVE_RX: usize = 10;

/// Queries devices of the namespace in which it was opened.
#[derive(Debug)]
pub struct Ethtool(OwnedFd);

impl Ethtool {
    /// Opens a socket in the calling thread's namespace.
    pub fn open() -> io::Result<Ethtool> {
        Ok(Ethtool(socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?))
    }

    /// The current name of a device; `None`: there is no such device.
    pub fn name(&self, ifindex: u32) -> io::Result<Option<String>> {
        match rustix::net::netdevice::index_to_name(&self.0, ifindex) {
            Ok(name) => Ok(Some(name)),
            Err(rustix::io::Errno::NODEV) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The driver's name: `veth`, `virtio_net`, `mlx5_core`.
    pub fn driver(&self, device: &str) -> io::Result<String> {
        // struct ethtool_drvinfo has 196 bytes, and the name comes first.
        let mut words = vec![0; 49];
        words[0] = ETHTOOL_GDRVINFO;
        self.call(device, &mut words)?;
        Ok(wire::text(&bytes(&words[1..1 + NAME_BYTES / 4])))
    }

    /// The number of entries of each RX queue. `Ok(None)`: the driver does not report it.
    pub fn rx_entries(&self, device: &str) -> io::Result<Option<u32>> {
        // struct ethtool_ringparam: four limits, then the four current values; the first one is for usual packets.
        let mut words = [ETHTOOL_GRINGPARAM, 0, 0, 0, 0, 0, 0, 0, 0];
        match self.call(device, &mut words) {
            Ok(()) => Ok(Some(words[5])),
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The number of TX queues in use. `Ok(None)`: the driver does not report it.
    pub fn tx_queues(&self, device: &str) -> io::Result<Option<u32>> {
        // struct ethtool_channels: four limits, then the numbers of queues: receive, transmit, other, combined.
        let mut words = [ETHTOOL_GCHANNELS, 0, 0, 0, 0, 0, 0, 0, 0];
        match self.call(device, &mut words) {
            Ok(()) => Ok(Some(words[6].saturating_add(words[8]))),
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Is the device up, with a carrier (IFF_RUNNING; otherwise `ip link` prints NO-CARRIER)? The kernel reports a
    /// change a moment late.
    pub fn is_running(&self, device: &str) -> io::Result<bool> {
        Ok(self.flags(device)? & libc::IFF_RUNNING != 0)
    }

    /// The flags of a device (IFF_UP and others; netdevice(7)).
    pub fn flags(&self, device: &str) -> io::Result<i32> {
        let mut request = request(device)?;
        // SAFETY: the request lives across the call.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SIOCGIFFLAGS as _, &raw mut request) } {
            // SAFETY: the call has filled this member, and every bit pattern of it is a number.
            0 => Ok(unsafe { request.ifr_ifru.ifru_flags }.into()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The speed in bits per second, and whether both directions have it at once. `None`: not known, as without a carrier.
    pub fn speed(&self, device: &str) -> io::Result<Option<(u64, bool)>> {
        // struct ethtool_cmd: the speed in Mbit/s has a low half behind three words, and a high half behind seven.
        let mut words = [ETHTOOL_GSET, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        self.call(device, &mut words)?;
        let [low, high] = [words[3], words[7]].map(u32::to_ne_bytes);
        let half = |bytes: [u8; 4]| u32::from(u16::from_ne_bytes([bytes[0], bytes[1]]));
        let mbps = half(high) << 16 | half(low);
        let is_known = mbps != u32::MAX && mbps != u32::from(u16::MAX);
        Ok(is_known.then(|| (u64::from(mbps) * 1_000_000, low[2] == 1)))
    }

    /// The delay of interrupts. `Ok(None)`: the driver does not report it.
    pub fn coalescing(&self, device: &str) -> io::Result<Option<Coalescing>> {
        let mut words = [0; COALESCE_WORDS];
        words[0] = ETHTOOL_GCOALESCE;
        match self.call(device, &mut words) {
            Ok(()) => Ok(Some(Coalescing { us: words[RX_USECS], adaptive: words[USE_ADAPTIVE_RX] != 0 })),
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sets the delay of interrupts, and leaves all other coalescing settings unchanged.
    pub fn coalesce(&self, device: &str, Coalescing { us, adaptive }: Coalescing) -> io::Result<()> {
        let mut words = [0; COALESCE_WORDS];
        words[0] = ETHTOOL_GCOALESCE;
        self.call(device, &mut words)?;
        words[0] = ETHTOOL_SCOALESCE;
        (words[RX_USECS], words[USE_ADAPTIVE_RX]) = (us, adaptive.into());
        self.call(device, &mut words)
    }

    /// The names of the features that are on, such as `rx-gro` and `tx-checksum-ip-generic`.
    pub fn features(&self, device: &str) -> io::Result<BTreeSet<String>> {
        let mut info = [ETHTOOL_GSSET_INFO, 0, 0, 0, 0];
        // The mask of sets is one u64 in two words.
        let mask = (1u64 << ETH_SS_FEATURES).to_ne_bytes();
        info[2] = wire::u32_at(&mask, 0).unwrap_or(0);
        info[3] = wire::u32_at(&mask, 4).unwrap_or(0);
        self.call(device, &mut info)?;
        let count = info[4].min(MOST_FEATURES);
        let mut names = vec![0; 3 + count as usize * NAME_BYTES / 4];
        names[..3].copy_from_slice(&[ETHTOOL_GSTRINGS, ETH_SS_FEATURES, count]);
        self.call(device, &mut names)?;
        let blocks = count.div_ceil(32);
        let mut states = vec![0; 2 + blocks as usize * 4];
        states[..2].copy_from_slice(&[ETHTOOL_GFEATURES, blocks]);
        self.call(device, &mut states)?;
        Ok(active(&bytes(&names[3..]), &states[2..]))
    }

    /// Makes a `SIOCETHTOOL` call. `words` must be a whole structure of the ethtool interface, long enough for
    /// everything that the kernel writes for its command.
    pub(crate) fn call(&self, device: &str, words: &mut [u32]) -> io::Result<()> {
        let mut request = request(device)?;
        request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
        // SAFETY: the request and the words that it points to live across the call. Callers give enough words for the
        // data of the kernel, which the counts in them limit.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// A request for this device, otherwise empty.
fn request(device: &str) -> io::Result<libc::ifreq> {
    // SAFETY: all zeros is a value of this plain C struct.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if device.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_ne_bytes()).collect()
}

/// Returns the names of active features. Each `struct ethtool_get_features_block` has four words: available, requested,
/// active, never changed.
fn active(names: &[u8], blocks: &[u32]) -> BTreeSet<String> {
    let is_on = |i: usize| blocks.get(i / 32 * 4 + 2).is_some_and(|active| active >> (i % 32) & 1 != 0);
    names
        .chunks_exact(NAME_BYTES)
        .enumerate()
        .filter(|(i, _)| is_on(*i))
        .map(|(_, name)| wire::text(name))
        .collect()
}

/// Does the device transmit multi-buffer frames that are redirected to it (`NETDEV_XDP_ACT_NDO_XMIT_SG`, Linux 6.3)?
/// The device is in the calling thread's namespace. Unknown counts as no.
pub fn transmits_fragments(ifindex: u32) -> bool {
    xdp_features(ifindex).is_ok_and(|features| features.unwrap_or(0) & NETDEV_XDP_ACT_NDO_XMIT_SG != 0)
}

/// Does the kernel refuse to redirect to this device (`NETDEV_XDP_ACT_NDO_XMIT`)? The device is in the calling thread's
/// namespace. Unknown counts as no.
pub fn refuses_redirects(ifindex: u32) -> bool {
    xdp_features(ifindex)
        .is_ok_and(|features| features.is_some_and(|features| features & NETDEV_XDP_ACT_NDO_XMIT == 0))
}

/// Has the device's driver native XDP (`NETDEV_XDP_ACT_BASIC`)? The device is in the calling thread's namespace. `None`: the
/// kernel cannot say.
pub fn has_native_xdp(ifindex: u32) -> Option<bool> {
    xdp_features(ifindex).ok().flatten().map(|features| features & NETDEV_XDP_ACT_BASIC != 0)
}

/// `enum netdev_xdp_act` of a device.
fn xdp_features(ifindex: u32) -> io::Result<Option<u64>> {
    Netdev::open()?.map_or(Ok(None), |mut netdev| netdev.xdp_features(ifindex))
}

/// Does Linux have a hash of the device's packets before it routes them? The hash can come from the NIC or from receive
/// packet steering.
pub fn hashes_packets(device: &str, features: &BTreeSet<String>) -> bool {
    features.contains("rx-hashing") || has_rps(Path::new("/sys/class/net"), device)
}

fn has_rps(devices: &Path, device: &str) -> bool {
    let queues = fs::read_dir(devices.join(device).join("queues")).into_iter().flatten().flatten();
    let cores = queues.filter_map(|queue| fs::read_to_string(queue.path().join("rps_cpus")).ok());
    cores.into_iter().any(|cores| cores.contains(|c: char| c.is_ascii_hexdigit() && c != '0'))
}

/// Problems that the port's own features cause. Tags of packets on a veth port depend only on the other end.
pub fn own_problems(device: &str, features: &BTreeSet<String>, veth: bool) -> Vec<Problem> {
    let (shown, device) = (Shown(device), Quoted(device));
    let mut problems = Vec::new();
    if !veth && features.contains("rx-vlan-hw-parse") {
        problems.push(Problem {
            kind: ProblemKind::VlanTagsHidden,
            text: format!("{shown} removes VLAN tags in hardware; run: ethtool -K {device} rxvlan off"),
        });
    }
    if features.contains("rx-lro") {
        problems.push(Problem {
            kind: ProblemKind::LargeReceive,
            text: format!("{shown} merges received packets (LRO); run: ethtool -K {device} lro off"),
        });
    }
    problems
}

/// The problem of a port in native mode to which the kernel does not redirect: see [`refuses_redirects`].
pub fn no_redirects(device: &str) -> Problem {
    let (shown, device) = (Shown(device), Quoted(device));
    Problem {
        kind: ProblemKind::CannotTransmit,
        text: format!(
            "the kernel redirects no packets to {shown}: its driver does not transmit for XDP (its xdp-features lack \
             ndo-xmit), often because it has fewer queues than there are CPUs; see: ethtool -l {device}"
        ),
    }
}

/// Problems that the other end of a veth port causes. `refuses`: the result of [`refuses_redirects`] for the port.
pub fn peer_problems(peer: &Peer, namespace: &str, refuses: bool) -> Vec<Problem> {
    let (shown, name) = (Shown(&peer.link.name), Quoted(&peer.link.name));
    let has = |feature: &str| peer.features.contains(feature);
    let place =
        if namespace == "host" { String::new() } else { format!(" in namespace {}", Shown(namespace)) };
    let run = |text: String| command(namespace, &text);
    let mut problems = Vec::new();
    if ["tx-checksum-ip-generic", "tx-checksum-ipv4", "tx-checksum-ipv6"].into_iter().any(has) {
        problems.push(Problem {
            kind: ProblemKind::PartialChecksums,
            text: format!(
                "veth peer {shown}{place} sends partial checksums; run: {}",
                run(format!("ethtool -K {name} tx off"))
            ),
        });
    }
    if has("tx-vlan-hw-insert") || has("tx-vlan-stag-hw-insert") {
        problems.push(Problem {
            kind: ProblemKind::VlanTagsHidden,
            text: format!(
                "veth peer {shown}{place} sends VLAN tags outside the packet; run: {}",
                run(format!("ethtool -K {name} txvlan off tx-vlan-stag-hw-insert off"))
            ),
        });
    }
    // veth_xdp_xmit drops if the receiving side has no NAPI instance. XDP or GRO creates one.
    if !peer.link.xdp && !has("rx-gro") {
        problems.push(Problem {
            kind: ProblemKind::CannotTransmit,
            text: format!(
                "veth peer {shown}{place} would drop packets that are redirected to it; run: {}",
                run(format!("ethtool -K {name} gro on"))
            ),
        });
    } else if refuses && peer.link.up {
        // veth_set_features updates the port after a change of GRO only while the peer is up.
        let [off, on] = ["off", "on"].map(|how| run(format!("ethtool -K {name} gro {how}")));
        problems.push(Problem {
            kind: ProblemKind::CannotTransmit,
            text: format!(
                "the kernel redirects no packets to the port, because GRO of its veth peer {shown}{place} was turned on \
                 while the peer was down; run: {off} && {on}"
            ),
        });
    }
    problems
}

/// The other end of a veth.
#[derive(Clone, Debug)]
pub struct Peer {
    pub link: RawLink,
    /// Features that are on.
    pub features: BTreeSet<String>,
}

impl Peer {
    /// Reads the device with this index in the calling thread's namespace.
    pub fn look(ifindex: u32) -> io::Result<Peer> {
        let mut header = [0; 16];
        header[4..8].copy_from_slice(&ifindex.to_ne_bytes());
        let answer = Socket::requests(libc::NETLINK_ROUTE)?.ask(
            Request::new(rtm::GETLINK, wire::ACK, &header),
            |m| match link::parse(m)? {
                LinkMessage::New(link) => Some(*link),
                _ => None,
            },
        )?;
        let link = answer.ok_or(io::ErrorKind::NotFound)?;
        let features = Ethtool::open()?.features(&link.name)?;
        Ok(Peer { link, features })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_is_one_word_of_each_command() {
        use crate::base::foreign::{HOSTILE, Pasted, assert_fit};
        let mut pasted = Pasted::default();
        let mut message = Request::new(rtm::NEWLINK, 0, &[0; 16])
            .with(3, b"x\0")
            .with(1, &[2, 0, 0, 0, 0, 1])
            .with(4, &1500_u32.to_ne_bytes());
        let parsed = wire::messages(message.bytes(1)).next().and_then(link::parse);
        let Some(LinkMessage::New(plain)) = parsed else { panic!("{parsed:?}") };
        for name in HOSTILE {
            let features = ["tx-checksum-ip-generic", "tx-vlan-hw-insert", "rx-vlan-hw-parse", "rx-lro"];
            let features: BTreeSet<_> = features.map(String::from).into();
            let link = RawLink { name: name.into(), ..(*plain).clone() };
            let peer = Peer { link, features: features.clone() };
            let mut problems = own_problems(name, &features, false);
            problems.extend(peer_problems(&peer, "host", false));
            let options = [
                vec!["rxvlan", "off"],
                vec!["lro", "off"],
                vec!["tx", "off"],
                vec!["txvlan", "off", "tx-vlan-stag-hw-insert", "off"],
                vec!["gro", "on"],
            ];
            assert_eq!(problems.len(), options.len());
            for (Problem { text, .. }, options) in problems.iter().zip(options) {
                let (_, line) = text.rsplit_once("run: ").unwrap();
                pasted.add(text, line, "ethtool", &[&["-K", name][..], &options].concat());
            }
            let text = no_redirects(name).text;
            let (_, line) = text.rsplit_once("see: ").unwrap();
            pasted.add(&text, line, "ethtool", &["-l", name]);
            peer_problems(&peer, name, false).iter().for_each(|problem| assert_fit(&problem.text));
        }
        pasted.run();
    }

    #[test]
    fn features_are_bits_with_names() {
        let mut names = vec![0; 34 * NAME_BYTES];
        for (i, name) in [(0, "rx-gro"), (1, "rx-lro"), (33, "tx-checksum-ipv6")] {
            names[i * NAME_BYTES..][..name.len()].copy_from_slice(name.as_bytes());
        }
        let on = active(&names, &[!0, !0, 1, 0, !0, !0, 2, 0]);
        assert_eq!(on.into_iter().collect::<Vec<_>>(), ["rx-gro", "tx-checksum-ipv6"]);
        assert!(active(&names, &[]).is_empty());
    }

    #[test]
    fn packets_are_hashed_by_the_nic_or_by_receive_packet_steering() {
        let none = BTreeSet::new();
        assert!(hashes_packets("eth0", &["rx-hashing".to_owned()].into()));
        assert!(!hashes_packets("no such device", &none));
        let devices = tempfile::tempdir().unwrap();
        let queues = devices.path().join("eth0/queues");
        for (queue, cores) in
            [("rx-0", "00000000,00000000\n"), ("rx-1", "00000000,00000000\n"), ("tx-0", "ff\n")]
        {
            fs::create_dir_all(queues.join(queue)).unwrap();
            let file = if queue == "tx-0" { "xps_cpus" } else { "rps_cpus" };
            fs::write(queues.join(queue).join(file), cores).unwrap();
        }
        assert!(!has_rps(devices.path(), "eth0"));
        fs::write(queues.join("rx-1/rps_cpus"), "00000000,0000000c\n").unwrap();
        assert!(has_rps(devices.path(), "eth0"));
    }

    #[test]
    fn hidden_tags_and_merged_packets_are_problems() {
        let features = ["rx-vlan-hw-parse".to_owned(), "rx-lro".to_owned()].into();
        let kinds = |veth| own_problems("eth0", &features, veth).iter().map(|p| p.kind).collect::<Vec<_>>();
        assert_eq!(kinds(false), [ProblemKind::VlanTagsHidden, ProblemKind::LargeReceive]);
        assert_eq!(kinds(true), [ProblemKind::LargeReceive]);
    }
}
