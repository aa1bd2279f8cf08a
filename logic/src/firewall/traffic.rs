//! What is known of the packets that a proof is about, at each place where rules look at them.
//!
//! A proof covers only packets that the kernel plane would forward. Linux gets all others: fragments, packets with IP
//! options or TTL 1, and packets to the router itself. Proofs about connections do not cover TCP packets with SYN, FIN or
//! RST.

use super::{
    bits::{Answer, Bits, Mark},
    ruleset::{Header, Hook},
};
use std::net::IpAddr;

pub const TCP: u8 = 6;
pub const UDP: u8 = 17;

/// `IPS_*` (`nf_conntrack_common.h`).
pub const SEEN_REPLY: u32 = 1 << 1;
pub const ASSURED: u32 = 1 << 2;
pub const CONFIRMED: u32 = 1 << 3;
pub const SRC_NAT: u32 = 1 << 4;
pub const DST_NAT: u32 = 1 << 5;
/// It is in a flow table.
pub const OFFLOAD: u32 = 1 << 14;
/// Hardware forwards it.
pub const HW_OFFLOAD: u32 = 1 << 15;
/// The others may change during the connection.
const KNOWN_STATUS: u32 = SEEN_REPLY | ASSURED | CONFIRMED | SRC_NAT | DST_NAT;

/// Bits of `ct state`: `NF_CT_STATE_BIT(ctinfo)`, `NF_CT_STATE_INVALID_BIT`.
const STATE_INVALID: u32 = 1;
pub const STATE_ESTABLISHED: u32 = 1 << 1;

/// `ARPHRD_ETHER`
const ETHERNET: u16 = 1;
/// `PACKET_HOST`
const TO_THIS_HOST: u8 = 0;
/// In TCP's flags: FIN, SYN, RST are known to be 0, and ACK to be 1.
const TCP_FLAGS: [u8; 2] = [0x10, 0x17];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    V4,
    V6,
}

impl Version {
    /// The length of an address.
    pub fn address_bytes(self) -> usize {
        match self {
            Version::V4 => 4,
            Version::V6 => 16,
        }
    }
}

/// Packets that Linux forwards from one device to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traffic {
    pub version: Version,
    pub input: Device,
    pub output: Device,
    pub scope: Scope,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Device {
    pub ifindex: u32,
    pub name: String,
    /// The devices below it, which its packets pass, too.
    pub below: Vec<String>,
}

/// Which of the packets between the two devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All of them.
    All,
    /// Those of established connections of this protocol, in both directions.
    Established { protocol: u8 },
    /// Those of one direction of one connection.
    Connection(Box<Direction>),
}

/// One direction of a connection as conntrack has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Direction {
    pub protocol: u8,
    /// `IP_CT_DIR_REPLY` in place of `IP_CT_DIR_ORIGINAL`.
    pub reply: bool,
    /// The tuples of both directions: the original's, then the reply's.
    pub tuples: [Tuple; 2],
    /// `IPS_*`
    pub status: u32,
}

/// Addresses and ports of the packets of one direction, as they arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tuple {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub source_port: u16,
    pub destination_port: u16,
}

/// A place where rules look at packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub hook: Hook,
    pub priority: i32,
}

/// The priorities at which conntrack finds the connection, and at which NAT translates destinations and sources.
const CONNTRACK: i32 = -200;
pub(super) const NAT_DESTINATION: i32 = -100;
pub(super) const NAT_SOURCE: i32 = 100;

impl Place {
    /// Has the packet passed what is hooked here with this priority? Equal priorities run in an order that is not
    /// known.
    fn is_past(self, hook: Hook, priority: i32) -> Answer {
        match (self.hook.cmp(&hook), self.priority.cmp(&priority)) {
            (std::cmp::Ordering::Equal, std::cmp::Ordering::Equal) => Answer::Maybe,
            (std::cmp::Ordering::Equal, by_priority) => Answer::of(by_priority.is_gt()),
            (by_hook, _) => Answer::of(by_hook.is_gt()),
        }
    }

    /// Is the packet's connection known here?
    pub fn has_connection(self) -> Answer {
        self.is_past(Hook::Prerouting, CONNTRACK)
    }
}

/// The result of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loaded {
    Value(Bits),
    /// The rule may end here without a match.
    Unsure(Bits),
    /// The rule does not match.
    Nothing,
}

fn unsure(bytes: usize) -> Loaded {
    Loaded::Unsure(Bits::unknown(bytes))
}

/// The mark of packets as they arrive: devices set none, unless a program of tc does, and then no router is fast.
pub const UNMARKED: u32 = 0;

impl Traffic {
    pub fn protocol(&self) -> Option<u8> {
        match &self.scope {
            Scope::All => None,
            Scope::Established { protocol } => Some(*protocol),
            Scope::Connection(direction) => Some(direction.protocol),
        }
    }

    fn direction(&self) -> Option<&Direction> {
        match &self.scope {
            Scope::Connection(direction) => Some(direction),
            _ => None,
        }
    }

    /// The addresses and ports that packets have at a place.
    pub fn tuple(&self, at: Place) -> Parts {
        let Some(direction) = self.direction() else { return Parts::default() };
        let [arrives, back] = match direction.reply {
            false => direction.tuples,
            true => [direction.tuples[1], direction.tuples[0]],
        };
        let destination = [(arrives.destination, arrives.destination_port), (back.source, back.source_port)];
        let source = [(arrives.source, arrives.source_port), (back.destination, back.destination_port)];
        let pick = |[before, after]: [(IpAddr, u16); 2], passed| match passed {
            _ if before == after => Some(before),
            Answer::Yes => Some(after),
            Answer::No => Some(before),
            Answer::Maybe => None,
        };
        Parts {
            source: pick(source, at.is_past(Hook::Postrouting, NAT_SOURCE)),
            destination: pick(destination, at.is_past(Hook::Prerouting, NAT_DESTINATION)),
        }
    }

    /// `RTN_*` of the packet's destination; `None`: not known. The kernel plane forwards only to unicast addresses; a
    /// destination that NAT translates later can be the router's own.
    pub fn destination_type(&self, at: Place) -> Option<u8> {
        const UNICAST: u8 = 1;
        let translated = match self.direction() {
            Some(direction) => direction.status & DST_NAT != 0 || direction.status & SRC_NAT != 0,
            None => self.scope != Scope::All,
        };
        let is_past = at.is_past(Hook::Prerouting, NAT_DESTINATION) == Answer::Yes;
        (!translated || is_past).then_some(UNICAST)
    }

    /// `nft_meta_get_eval`. `mark`: what is known of the packet's mark here.
    pub fn meta(&self, key: u32, at: Place, mark: Mark) -> Loaded {
        let ether_type: u16 = if self.version == Version::V4 { 0x0800 } else { 0x86dd };
        let nfproto: u8 = if self.version == Version::V4 { 2 } else { 10 };
        let routed = at.hook >= Hook::Forward;
        // On its way out, a packet has no input device any more; tables of devices have a family of their own.
        let at_device = matches!(at.hook, Hook::Ingress | Hook::Egress);
        let leaves = at.hook == Hook::Egress;
        let value = match key {
            4 | 6 | 8 if leaves => return unsure(16),
            15 if at_device => return unsure(1),
            // Extension headers may be broken.
            16 if self.version == Version::V6 && self.scope == Scope::All => return unsure(1),
            // PROTOCOL
            1 => Bits::known(&ether_type.to_be_bytes()),
            // MARK
            3 => mark.bits(),
            // IIF, OIF, IIFNAME, OIFNAME
            4 => Bits::known(&self.input.ifindex.to_ne_bytes()),
            5 if routed => Bits::known(&self.output.ifindex.to_ne_bytes()),
            6 => device_name(&self.input.name),
            7 if routed => device_name(&self.output.name),
            // IIFTYPE, OIFTYPE
            8 => Bits::known(&ETHERNET.to_ne_bytes()),
            9 if routed => Bits::known(&ETHERNET.to_ne_bytes()),
            // NFPROTO, L4PROTO
            15 => Bits::known(&[nfproto]),
            16 => self.protocol().map_or(Bits::unknown(1), |protocol| Bits::known(&[protocol])),
            // PKTTYPE, SECPATH: the kernel plane takes no other packets.
            19 => Bits::known(&[TO_THIS_HOST]),
            25 => Bits::known(&[0]),
            // OIF and OIFNAME before routing; names of bridges; kinds of devices. None is longer than 16 bytes.
            5 | 7 | 17 | 18 | 26 | 27 | 34 => return unsure(16),
            9 | 28 | 29 => return unsure(2),
            32 | 30 => return unsure(8),
            31 => return unsure(1),
            _ => return unsure(4),
        };
        Loaded::Value(value)
    }

    /// `nft_ct_get_eval`
    pub fn ct(&self, key: u32, direction: Option<u8>, at: Place) -> Loaded {
        match (&self.scope, at.has_connection()) {
            (Scope::All, _) | (_, Answer::Maybe) => return unsure(16),
            (_, Answer::No) if key == 0 => return Loaded::Value(Bits::known(&STATE_INVALID.to_ne_bytes())),
            (_, Answer::No) => return Loaded::Nothing,
            (_, Answer::Yes) => (),
        }
        let one = self.direction();
        let value = match key {
            // STATE
            0 => Bits::known(&STATE_ESTABLISHED.to_ne_bytes()),
            // DIRECTION
            1 => one.map_or(Bits::unknown(1), |one| Bits::known(&[u8::from(one.reply)])),
            // STATUS
            2 => {
                let (known, value) = match one {
                    Some(one) => (KNOWN_STATUS, one.status),
                    None => (SEEN_REPLY | CONFIRMED, u32::MAX),
                };
                let mut status = Bits::unknown(4);
                let bytes = value.to_ne_bytes().into_iter().zip(known.to_ne_bytes());
                bytes.enumerate().for_each(|(i, (byte, known))| status.put_masked(i, byte, known));
                status
            }
            // MARK: others may change it at any time, and Linux does not report this.
            3 => Bits::unknown(4),
            // L3PROTOCOL, PROTOCOL
            7 => Bits::known(&[if self.version == Version::V4 { 2 } else { 10 }]),
            10 => self.protocol().map_or(Bits::unknown(1), |protocol| Bits::known(&[protocol])),
            // SRC_IP, DST_IP, SRC_IP6, DST_IP6: of the other version
            19 | 20 if self.version == Version::V6 => return Loaded::Nothing,
            21 | 22 if self.version == Version::V4 => return Loaded::Nothing,
            // SRC, DST, SRC_IP, DST_IP, SRC_IP6, DST_IP6
            8 | 19 | 21 => return self.ct_part(direction, |tuple| address(tuple.source)),
            9 | 20 | 22 => return self.ct_part(direction, |tuple| address(tuple.destination)),
            // PROTO_SRC, PROTO_DST
            11 => return self.ct_part(direction, |tuple| Bits::known(&tuple.source_port.to_be_bytes())),
            12 => return self.ct_part(direction, |tuple| Bits::known(&tuple.destination_port.to_be_bytes())),
            // HELPER, LABELS: the connection may have neither, and then the rule does not match.
            6 | 13 => return unsure(16),
            _ => return unsure(8),
        };
        Loaded::Value(value)
    }

    fn ct_part(&self, direction: Option<u8>, part: impl FnOnce(&Tuple) -> Bits) -> Loaded {
        match (self.direction(), direction) {
            (Some(one), Some(direction)) => Loaded::Value(part(&one.tuples[usize::from(direction != 0)])),
            _ => unsure(16),
        }
    }

    /// `nft_payload_eval`
    pub fn payload(&self, header: Header, offset: u32, bytes: u32, at: Place) -> Loaded {
        let known = match header {
            Header::Network => self.network_header(at),
            Header::Transport => self.transport_header(at),
            Header::Other => Bits::unknown(0),
        };
        let (offset, bytes) = (offset as usize, bytes as usize);
        let part = known.part(offset, bytes);
        match offset.checked_add(bytes).is_some_and(|end| end <= known.bytes()) {
            true => Loaded::Value(part),
            // The packet may be too short.
            false => Loaded::Unsure(part),
        }
    }

    fn network_header(&self, at: Place) -> Bits {
        let Parts { source, destination } = self.tuple(at);
        let (mut bits, addresses) = match self.version {
            Version::V4 => {
                let mut bits = Bits::unknown(20);
                bits.put(0, &[0x45]);
                // No fragment: all of the word but "don't fragment".
                bits.put(7, &[0]);
                bits.put_masked(6, 0, 0x3f);
                (bits, [12, 16])
            }
            Version::V6 => {
                let mut bits = Bits::unknown(40);
                bits.put_masked(0, 0x60, 0xf0);
                (bits, [8, 24])
            }
        };
        if let Some(protocol) = self.protocol() {
            bits.put(if self.version == Version::V4 { 9 } else { 6 }, &[protocol]);
        }
        for (at, part) in addresses.into_iter().zip([source, destination]) {
            match part {
                Some((IpAddr::V4(address), _)) => bits.put(at, &address.octets()),
                Some((IpAddr::V6(address), _)) => bits.put(at, &address.octets()),
                None => (),
            }
        }
        bits
    }

    fn transport_header(&self, at: Place) -> Bits {
        let mut bits = match self.protocol() {
            Some(TCP) => Bits::unknown(20),
            Some(UDP) => Bits::unknown(8),
            _ => return Bits::unknown(0),
        };
        let Parts { source, destination } = self.tuple(at);
        for (at, part) in [0, 2].into_iter().zip([source, destination]) {
            if let Some((_, port)) = part {
                bits.put(at, &port.to_be_bytes());
            }
        }
        if self.protocol() == Some(TCP) {
            bits.put_masked(13, TCP_FLAGS[0], TCP_FLAGS[1]);
        }
        bits
    }
}

/// Address and port of both ends; `None`: not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    pub source: Option<(IpAddr, u16)>,
    pub destination: Option<(IpAddr, u16)>,
}

/// A device name, padded with zeros to 16 bytes.
pub(super) fn device_name(name: &str) -> Bits {
    let mut bytes = [0; 16];
    let length = name.len().min(15);
    bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
    Bits::known(&bytes)
}

fn address(address: IpAddr) -> Bits {
    match address {
        IpAddr::V4(address) => Bits::known(&address.octets()),
        IpAddr::V6(address) => Bits::known(&address.octets()),
    }
}
