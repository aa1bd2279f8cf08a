//! `class = { ... }` of a path: which packets it takes. [`logic::paths::class`] says what each key means.

use crate::base::{BadValue, PortName, packet};
use logic::{
    net::{Addresses, Mac},
    paths::class::{Class, TwoBytes},
    plan::{PortId, RouterId},
};
use serde::{Deserialize, Deserializer, de::Error as _};
use std::str::FromStr;

/// The class as it is written. Without any key it has all packets.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClassSettings {
    /// The port by which they arrive.
    pub port: Option<PortName>,
    destination_mac: Option<MacText>,
    ether_type: Option<EtherType>,
    source: Option<AddressesText>,
    destination: Option<AddressesText>,
    protocol: Option<Protocol>,
    source_port: Option<TransportPort>,
    destination_port: Option<TransportPort>,
    tcp_syn: Option<Yes>,
    bytes: Option<BytesSettings>,
    /// Only packets that flow rules send to the path.
    flow_rules: Option<Yes>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct BytesSettings {
    offset: Offset,
    #[serde(default = "all_bits")]
    mask: Word,
    value: Word,
}

fn all_bits() -> Word {
    Word(0xffff)
}

bounded!(
    /// A port of TCP, UDP or SCTP.
    TransportPort, |v| v <= 0xffff, "a port, 0 to 65535"
);
bounded!(
    /// The offset of two bytes within the first 64.
    Offset, |v| v <= 62, "0 to 62, as the two bytes are among the first 64"
);
bounded!(
    /// Two bytes.
    Word, |v| v <= 0xffff, "0 to 0xffff, two bytes"
);

impl ClassSettings {
    /// The class with the number of its port, and of the router whose packets it has.
    pub fn class(&self, port: Option<PortId>, router: Option<RouterId>) -> Class {
        let ClassSettings { destination_mac, source, destination, bytes, .. } = self;
        Class {
            port,
            router,
            destination_mac: destination_mac.map(|mac| mac.0),
            ether_type: self.ether_type.map(|kind| kind.0),
            source: source.map(|source| source.0),
            destination: destination.map(|destination| destination.0),
            protocol: self.protocol.map(|protocol| protocol.0),
            source_port: self.source_port.map(|port| port.0 as u16),
            destination_port: self.destination_port.map(|port| port.0 as u16),
            tcp_syn: self.tcp_syn.is_some(),
            bytes: bytes.as_ref().map(|bytes| TwoBytes {
                offset: bytes.offset.0 as u8,
                mask: bytes.mask.0 as u16,
                value: bytes.value.0 as u16,
            }),
            flow_rules: self.flow_rules.is_some(),
        }
    }
}

/// `02:00:00:00:00:01`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MacText(pub Mac);

impl FromStr for MacText {
    type Err = BadValue;
    fn from_str(s: &str) -> Result<Self, BadValue> {
        packet::mac(s)
            .map(Self)
            .ok_or_else(|| BadValue(format!("{s:?} is not a MAC address such as \"02:00:00:00:00:01\"")))
    }
}

/// `192.0.2.0/24` or `2001:db8::/32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressesText(pub Addresses);

impl FromStr for AddressesText {
    type Err = BadValue;
    fn from_str(s: &str) -> Result<Self, BadValue> {
        s.parse().map(Self).map_err(|e: logic::net::BadPrefix| BadValue(e.to_string()))
    }
}

/// A name or a number.
#[derive(Deserialize)]
#[serde(untagged)]
enum Word16 {
    Name(String),
    Number(i64),
}

/// Parses one of these names to its number, or a number of this range.
fn named<'de, D: Deserializer<'de>>(
    d: D,
    names: &[(&str, u16)],
    range: std::ops::RangeInclusive<i64>,
    allowed: &str,
) -> Result<u16, D::Error> {
    let found =
        match Word16::deserialize(d).map_err(|_| D::Error::custom(format!("not allowed: {allowed}")))? {
            Word16::Name(name) => {
                names.iter().find(|(known, _)| *known == name).map(|(_, number)| *number).ok_or(name)
            }
            Word16::Number(number) if range.contains(&number) => Ok(number as u16),
            Word16::Number(number) => Err(number.to_string()),
        };
    found.map_err(|wrong| D::Error::custom(format!("{wrong:?} is not allowed: {allowed}")))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EtherType(u16);

impl<'de> Deserialize<'de> for EtherType {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        const NAMES: [(&str, u16); 3] = [("ipv4", 0x0800), ("ipv6", 0x86dd), ("arp", 0x0806)];
        let allowed = "\"ipv4\", \"ipv6\", \"arp\" or a number from 0x0600 to 0xffff";
        named(d, &NAMES, 0x0600..=0xffff, allowed).map(Self)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Protocol(u8);

impl<'de> Deserialize<'de> for Protocol {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        const NAMES: [(&str, u16); 6] =
            [("icmp", 1), ("tcp", 6), ("udp", 17), ("esp", 50), ("icmpv6", 58), ("sctp", 132)];
        let allowed = "\"icmp\", \"tcp\", \"udp\", \"esp\", \"icmpv6\", \"sctp\" or a number from 0 to 255";
        named(d, &NAMES, 0..=255, allowed).map(|number| Self(number as u8))
    }
}

/// `true`. `false` is refused, because a class cannot select all other packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Yes;

impl<'de> Deserialize<'de> for Yes {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        match bool::deserialize(d)? {
            true => Ok(Yes),
            false => Err(D::Error::custom("false is not allowed: true, or leave it out")),
        }
    }
}
