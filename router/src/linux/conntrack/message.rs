//! Parsers of conntrack messages, for TCP and UDP.
//!
//! [`parse`] is strict: a connection that it returns is fully understood. [`ended`] is not: an end that is not
//! understood must not be missed.

use super::{
    DELETE, DESTINATION_4, DESTINATION_6, DESTINATION_PORT, HELP, INFO_TCP, NEW, PROTOCOL_INFO,
    PROTOCOL_NUMBER, SEQUENCE_SHIFT_ORIGINAL, SEQUENCE_SHIFT_REPLY, SOURCE_4, SOURCE_6, SOURCE_PORT, STATUS,
    SYN_PROXY, TCP_STATE, TIMEOUT, TUPLE_IP, TUPLE_ORIGINAL, TUPLE_PROTOCOL, TUPLE_REPLY, TUPLE_ZONE, ZONE,
};
use crate::linux::netlink::{
    INET, INET6,
    wire::{self, Message, Request},
};
use logic::{
    connections::tracked::{Special, Tracked, is_supported},
    firewall::traffic::{TCP, Tuple},
};
use std::net::IpAddr;

/// `struct nfgenmsg`
pub(super) const HEADER_BYTES: usize = 4;
/// `IPS_SEQ_ADJUST`
const SEQ_ADJUST: u32 = 1 << 6;
/// `IPS_HELPER`
const HAS_HELPER: u32 = 1 << 13;
/// The last state of a connection of TCP: `TCP_CONNTRACK_MAX` - 1.
const LAST_TCP_STATE: u8 = 9;

/// Attributes that do not matter for forwarding: mark, counters, use, id, master, security mark and context, time
/// stamps, labels, padding.
const IRRELEVANT: [u16; 11] = [8, 9, 10, 11, 12, 14, 17, 19, 20, 22, 27];

/// A connection that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destroyed {
    /// IP protocol: TCP or UDP.
    pub protocol: u8,
    /// The packets as they arrived: those of the original direction, then the replies.
    pub tuples: [Tuple; 2],
}

/// A message from the group of ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Connection(Destroyed),
    /// The message is not about the end of a connection of TCP or UDP.
    Irrelevant,
    /// A connection has ended, but the message does not have the expected form.
    Unreadable,
}

/// A connection of TCP or UDP. `None`: the message is about something else, or has a part that is malformed or
/// unknown.
pub fn parse(message: Message<'_>) -> Option<Tracked> {
    if message.kind != NEW {
        return None;
    }
    let (mut original, mut reply) = (None, None);
    let (mut status, mut expires_s, mut tcp_state) = (None, None, None);
    let (mut helper, mut shift, mut proxy, mut zone) = (false, false, false, false);
    each(attributes(message)?, |kind, value| {
        match kind {
            TUPLE_ORIGINAL => set(&mut original, One::parse(value)?)?,
            TUPLE_REPLY => set(&mut reply, One::parse(value)?)?,
            STATUS => set(&mut status, be32(value)?)?,
            TIMEOUT => set(&mut expires_s, be32(value)?)?,
            PROTOCOL_INFO => set(&mut tcp_state, tcp_state_of(value)?)?,
            HELP => helper = true,
            SEQUENCE_SHIFT_ORIGINAL | SEQUENCE_SHIFT_REPLY => shift = true,
            SYN_PROXY => proxy = true,
            ZONE => zone |= be16(value)? != 0,
            _ if IRRELEVANT.contains(&kind) => (),
            _ => return None,
        }
        Some(())
    })?;
    let (original, reply, status) = (original?, reply?, status?);
    let is_tcp = original.protocol == TCP;
    let agree = original.protocol == reply.protocol
        && is_supported(original.protocol)
        && original.family == reply.family
        && message.payload.first() == Some(&original.family)
        && is_tcp == tcp_state.is_some();
    let special = [
        (helper || status & HAS_HELPER != 0, Special::Helper),
        (shift || status & SEQ_ADJUST != 0, Special::SequenceShift),
        (proxy, Special::SynProxy),
        (zone || original.zone != 0 || reply.zone != 0, Special::Zone),
    ];
    let tracked = Tracked {
        tuples: [original.tuple?, reply.tuple?],
        protocol: original.protocol,
        status,
        tcp_state,
        expires_s: expires_s?,
        special: special.into_iter().find(|(applies, _)| *applies).map(|(_, special)| special),
    };
    agree.then_some(tracked)
}

/// The end of a connection. Unknown attributes are ignored.
pub fn ended(message: Message<'_>) -> Ended {
    if message.kind != DELETE {
        return Ended::Irrelevant;
    }
    let read = || {
        let attributes = attributes(message)?;
        let side = |kind| One::parse(wire::attribute(attributes, kind)?);
        Some((side(TUPLE_ORIGINAL)?, side(TUPLE_REPLY)?))
    };
    let Some((original, reply)) = read() else { return Ended::Unreadable };
    match (original.tuple, reply.tuple) {
        _ if original.protocol != reply.protocol => Ended::Unreadable,
        _ if !is_supported(original.protocol) => Ended::Irrelevant,
        (Some(first), Some(second)) => {
            Ended::Connection(Destroyed { protocol: original.protocol, tuples: [first, second] })
        }
        _ => Ended::Unreadable,
    }
}

/// Adds a tuple to a request, as `CTA_TUPLE_ORIG`. Linux finds the connection by either direction's tuple.
pub(super) fn with_tuple(request: Request, protocol: u8, tuple: &Tuple) -> Request {
    let ip = match (tuple.source, tuple.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            nested(&[(SOURCE_4, &source.octets()), (DESTINATION_4, &destination.octets())])
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            nested(&[(SOURCE_6, &source.octets()), (DESTINATION_6, &destination.octets())])
        }
        // Linux refuses a tuple without addresses.
        _ => Vec::new(),
    };
    let ports = nested(&[
        (PROTOCOL_NUMBER, &[protocol]),
        (SOURCE_PORT, &tuple.source_port.to_be_bytes()),
        (DESTINATION_PORT, &tuple.destination_port.to_be_bytes()),
    ]);
    let parts = nested(&[(NESTED | TUPLE_IP, &ip), (NESTED | TUPLE_PROTOCOL, &ports)]);
    request.with(NESTED | TUPLE_ORIGINAL, &parts)
}

/// `NLA_F_NESTED`
pub(super) const NESTED: u16 = 0x8000;

/// The bytes of these attributes.
pub(super) fn nested(parts: &[(u16, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(64);
    for (kind, value) in parts {
        wire::push(&mut bytes, *kind, value);
    }
    bytes
}

/// The tuple of one direction.
struct One {
    /// `AF_*`
    family: u8,
    protocol: u8,
    zone: u16,
    /// `None`: the protocol is not supported.
    tuple: Option<Tuple>,
}

impl One {
    fn parse(bytes: &[u8]) -> Option<One> {
        let (mut ip, mut ports, mut zone) = (None, None, 0);
        each(bytes, |kind, value| match kind {
            TUPLE_IP => set(&mut ip, addresses(value)?),
            TUPLE_PROTOCOL => set(&mut ports, protocol_and_ports(value)?),
            TUPLE_ZONE => be16(value).map(|number| zone = number),
            _ => None,
        })?;
        let (source, destination) = ip?;
        let (protocol, ports) = ports?;
        let family = if source.is_ipv4() { INET } else { INET6 };
        let tuple = ports.map(|(source_port, destination_port)| Tuple {
            source,
            destination,
            source_port,
            destination_port,
        });
        Some(One { family, protocol, zone, tuple })
    }
}

fn addresses(bytes: &[u8]) -> Option<(IpAddr, IpAddr)> {
    let (mut source, mut destination) = (None, None);
    each(bytes, |kind, value| {
        let address = wire::address(value)?;
        match (kind, address.is_ipv4()) {
            (SOURCE_4, true) | (SOURCE_6, false) => set(&mut source, address),
            (DESTINATION_4, true) | (DESTINATION_6, false) => set(&mut destination, address),
            _ => None,
        }
    })?;
    let (source, destination) = (source?, destination?);
    (source.is_ipv4() == destination.is_ipv4()).then_some((source, destination))
}

/// The protocol, and the ports if the protocol is supported.
fn protocol_and_ports(bytes: &[u8]) -> Option<(u8, Option<(u16, u16)>)> {
    let (mut number, mut source, mut destination, mut other) = (None, None, None, false);
    each(bytes, |kind, value| match kind {
        PROTOCOL_NUMBER => set(&mut number, be8(value)?),
        SOURCE_PORT => set(&mut source, be16(value)?),
        DESTINATION_PORT => set(&mut destination, be16(value)?),
        _ => {
            other = true;
            Some(())
        }
    })?;
    match number? {
        number if !is_supported(number) => Some((number, None)),
        _ if other => None,
        number => Some((number, Some((source?, destination?)))),
    }
}

fn tcp_state_of(bytes: &[u8]) -> Option<u8> {
    let (mut info, mut state) = (None, None);
    each(bytes, |kind, value| if kind == INFO_TCP { set(&mut info, value) } else { None })?;
    // The rest is window scales and flags.
    each(info?, |kind, value| match kind {
        TCP_STATE => set(&mut state, be8(value)?),
        2..=5 => Some(()),
        _ => None,
    })?;
    state.filter(|state| *state <= LAST_TCP_STATE)
}

/// The attributes of a message with a header of version 0.
fn attributes(message: Message<'_>) -> Option<&[u8]> {
    let (header, attributes) = message.payload.split_at_checked(HEADER_BYTES)?;
    (header.get(1) == Some(&0)).then_some(attributes)
}

/// Passes every attribute to `read`. `None`: `read` refused one, or the lengths do not fit.
fn each<'a>(bytes: &'a [u8], mut read: impl FnMut(u16, &'a [u8]) -> Option<()>) -> Option<()> {
    let mut used = 0;
    for (kind, value) in wire::attributes(bytes) {
        used += wire::align(4 + value.len());
        read(kind, value)?;
    }
    (used == wire::align(bytes.len())).then_some(())
}

/// Sets a value that may come only once.
fn set<T>(place: &mut Option<T>, value: T) -> Option<()> {
    place.replace(value).is_none().then_some(())
}

fn be8(value: &[u8]) -> Option<u8> {
    <[u8; 1]>::try_from(value).ok().map(|[byte]| byte)
}

fn be16(value: &[u8]) -> Option<u16> {
    value.try_into().ok().map(u16::from_be_bytes)
}

fn be32(value: &[u8]) -> Option<u32> {
    value.try_into().ok().map(u32::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::conntrack::{INFO_TCP, STATUS_MASK};
    use logic::firewall::traffic::UDP;
    use proptest::prelude::*;

    fn tuple(source: &str, destination: &str) -> Tuple {
        let end = |text: &str| text.parse::<std::net::SocketAddr>().unwrap();
        let (source, destination) = (end(source), end(destination));
        Tuple {
            source: source.ip(),
            destination: destination.ip(),
            source_port: source.port(),
            destination_port: destination.port(),
        }
    }

    fn tuples4() -> [Tuple; 2] {
        [tuple("10.1.0.2:1000", "10.2.0.2:80"), tuple("10.2.0.2:80", "10.2.0.1:1001")]
    }

    fn tuples6() -> [Tuple; 2] {
        [tuple("[fd01::2]:1000", "[fd02::2]:53"), tuple("[fd02::2]:53", "[fd01::2]:1000")]
    }

    /// The attributes in one tuple.
    fn side(protocol: u8, tuple: &Tuple) -> Vec<u8> {
        let mut request = with_tuple(Request::new(0, 0, &[]), protocol, tuple);
        request.bytes(1)[20..].to_vec()
    }

    type Parts = Vec<(u16, Vec<u8>)>;

    fn parts(protocol: u8, tuples: [Tuple; 2]) -> Parts {
        let mut parts = vec![
            (TUPLE_ORIGINAL, side(protocol, &tuples[0])),
            (TUPLE_REPLY, side(protocol, &tuples[1])),
            (STATUS, 0x19e_u32.to_be_bytes().into()),
            (TIMEOUT, 300_u32.to_be_bytes().into()),
            (8, vec![0; 4]),
            (12, vec![7; 4]),
        ];
        if protocol == TCP {
            let info = nested(&[(1, &[3]), (2, &[10]), (3, &[10]), (4, &[0x23, 0]), (5, &[0x23, 0])]);
            parts.push((PROTOCOL_INFO, nested(&[(INFO_TCP, &info)])));
        }
        parts
    }

    fn bytes(kind: u16, family: u8, parts: &Parts) -> Vec<u8> {
        let add = |all: Request, (kind, value): &(u16, Vec<u8>)| all.with(*kind, value);
        parts.iter().fold(Request::new(kind, 0, &[family, 0, 0, 0]), add).bytes(1).to_vec()
    }

    fn message(bytes: &[u8]) -> Message<'_> {
        wire::messages(bytes).next().unwrap()
    }

    fn parsed(family: u8, parts: &Parts) -> Option<Tracked> {
        parse(message(&bytes(NEW, family, parts)))
    }

    #[test]
    fn connections_are_read() {
        let table = [
            (TCP, INET, tuples4(), Some(3)),
            (UDP, INET, tuples4(), None),
            (TCP, INET6, tuples6(), Some(3)),
            (UDP, INET6, tuples6(), None),
        ];
        for (protocol, family, tuples, tcp_state) in table {
            let expected =
                Tracked { tuples, protocol, status: 0x19e, tcp_state, expires_s: 300, special: None };
            assert_eq!(parsed(family, &parts(protocol, tuples)), Some(expected));
            let end = bytes(DELETE, family, &parts(protocol, tuples)[..2].to_vec());
            assert_eq!(ended(message(&end)), Ended::Connection(Destroyed { protocol, tuples }));
            assert_eq!(parse(message(&end)), None);
        }
    }

    /// As Linux 6.18 sent it: the echo of an update of a masqueraded connection of UDP.
    #[test]
    fn an_echo_of_linux_is_read() {
        #[rustfmt::skip]
        let payload = [
            2, 0, 0, 0,
            52, 0, 1, 128, 20, 0, 1, 128, 8, 0, 1, 0, 10, 1, 0, 2, 8, 0, 2, 0, 10, 2, 0, 2,
            28, 0, 2, 128, 5, 0, 1, 0, 17, 0, 0, 0, 6, 0, 2, 0, 0xda, 0x6f, 0, 0, 6, 0, 3, 0, 0, 53, 0, 0,
            52, 0, 2, 128, 20, 0, 1, 128, 8, 0, 1, 0, 10, 2, 0, 2, 8, 0, 2, 0, 10, 2, 0, 1,
            28, 0, 2, 128, 5, 0, 1, 0, 17, 0, 0, 0, 6, 0, 2, 0, 0, 53, 0, 0, 6, 0, 3, 0, 0xda, 0x6f, 0, 0,
            8, 0, 12, 0, 0xae, 0xb1, 0xcf, 0xdc, 8, 0, 3, 0, 0, 0, 1, 0x9a,
            8, 0, 7, 0, 0, 0, 0, 0x1d, 8, 0, 8, 0, 0, 0, 0, 0,
        ];
        let echo = Message { kind: NEW, flags: 0, sequence: 0, payload: &payload };
        let tuples = [tuple("10.1.0.2:55919", "10.2.0.2:53"), tuple("10.2.0.2:53", "10.2.0.1:55919")];
        let expected =
            Tracked { tuples, protocol: UDP, status: 0x19a, tcp_state: None, expires_s: 29, special: None };
        assert_eq!(parse(echo), Some(expected));
    }

    #[test]
    fn what_linux_does_to_a_connection_makes_it_special() {
        let special = |kind, value: &[u8]| {
            let mut parts = parts(TCP, tuples4());
            parts.push((kind, value.to_vec()));
            parsed(INET, &parts).map(|tracked| tracked.special)
        };
        let with_status = |status: u32| {
            let mut parts = parts(TCP, tuples4());
            parts[2].1 = status.to_be_bytes().into();
            parsed(INET, &parts).and_then(|tracked| tracked.special)
        };
        let in_tuple = |at: usize, zone: u8| {
            let mut parts = parts(TCP, tuples4());
            wire::push(&mut parts[at].1, TUPLE_ZONE, &[0, zone]);
            parsed(INET, &parts).map(|tracked| tracked.special)
        };
        assert_eq!(special(HELP, &nested(&[(1, b"ftp\0")])), Some(Some(Special::Helper)));
        assert_eq!(with_status(0x19e | HAS_HELPER), Some(Special::Helper));
        for kind in [SEQUENCE_SHIFT_ORIGINAL, SEQUENCE_SHIFT_REPLY] {
            assert_eq!(special(kind, &[]), Some(Some(Special::SequenceShift)));
        }
        assert_eq!(with_status(0x19e | SEQ_ADJUST), Some(Special::SequenceShift));
        assert_eq!(special(SYN_PROXY, &[]), Some(Some(Special::SynProxy)));
        assert_eq!((special(ZONE, &[0, 5]), special(ZONE, &[0, 0])), (Some(Some(Special::Zone)), Some(None)));
        for at in [0, 1] {
            assert_eq!((in_tuple(at, 5), in_tuple(at, 0)), (Some(Some(Special::Zone)), Some(None)));
        }
    }

    #[test]
    fn a_connection_that_is_not_understood_is_none() {
        let refused = |what: &str, family: u8, change: &dyn Fn(&mut Parts)| {
            let mut parts = parts(TCP, tuples4());
            change(&mut parts);
            assert_eq!(parsed(family, &parts), None, "{what}");
        };
        for missing in [0, 1, 2, 3, 6] {
            refused("an attribute is missing", INET, &|parts| drop(parts.remove(missing)));
        }
        for twice in [0, 1, 2, 3, 6] {
            refused("an attribute comes twice", INET, &|parts| parts.push(parts[twice].clone()));
        }
        for unknown in [0, 13, 25, STATUS_MASK, 28, 63] {
            refused("an attribute is unknown", INET, &|parts| parts.push((unknown, vec![0; 4])));
        }
        refused("the family is another", INET6, &|_| ());
        refused("the versions differ", INET, &|parts| parts[1].1 = side(TCP, &tuples6()[1]));
        refused("the protocols differ", INET, &|parts| parts[1].1 = side(UDP, &tuples4()[1]));
        refused("UDP has no state", INET, &|parts| {
            parts[0].1 = side(UDP, &tuples4()[0]);
            parts[1].1 = side(UDP, &tuples4()[1]);
        });
        refused("a state is unknown", INET, &|parts| {
            parts[6].1 = nested(&[(INFO_TCP, &nested(&[(TCP_STATE, &[10])]))]);
        });
        refused("information is about another protocol", INET, &|parts| parts[6].1[2] = 2);
        refused("a number is too long", INET, &|parts| parts[3].1.push(0));
        refused("a tuple has unknown parts", INET, &|parts| wire::push(&mut parts[0].1, 4, &[]));
        refused("a tuple ends early", INET, &|parts| {
            parts[0].1.pop();
        });
        let icmp = nested(&[(PROTOCOL_NUMBER, &[1]), (4, &[0, 1]), (5, &[8]), (6, &[0])]);
        let ip = nested(&[(SOURCE_4, &[10, 0, 0, 1]), (DESTINATION_4, &[10, 0, 0, 2])]);
        let icmp = nested(&[(TUPLE_IP, &ip), (TUPLE_PROTOCOL, &icmp)]);
        let both = vec![(TUPLE_ORIGINAL, icmp.clone()), (TUPLE_REPLY, icmp)];
        assert_eq!(parsed(INET, &both), None);
        assert_eq!(ended(message(&bytes(DELETE, INET, &both))), Ended::Irrelevant);
    }

    #[test]
    fn an_end_is_never_missed() {
        let mut newer = parts(TCP, tuples4());
        newer.push((63, vec![1]));
        let destroyed = Ended::Connection(Destroyed { protocol: TCP, tuples: tuples4() });
        assert_eq!(ended(message(&bytes(DELETE, INET, &newer))), destroyed);
        assert_eq!(ended(message(&bytes(NEW, INET, &newer))), Ended::Irrelevant);
        newer.remove(1);
        assert_eq!(ended(message(&bytes(DELETE, INET, &newer))), Ended::Unreadable);
        newer[0].1.pop();
        assert_eq!(ended(message(&bytes(DELETE, INET, &newer))), Ended::Unreadable);
    }

    proptest! {
        #[test]
        fn any_bytes_end_without_a_panic(payload in prop::collection::vec(any::<u8>(), 0..200), kind in 0x100..0x103_u16) {
            let message = Message { kind, flags: 0, sequence: 0, payload: &payload };
            prop_assert!(parse(message).is_none());
            let _ = ended(message);
        }

        #[test]
        fn a_message_cut_short_is_none(cut in 1..200_usize, tcp: bool) {
            let bytes = bytes(NEW, INET, &parts(if tcp { TCP } else { UDP }, tuples4()));
            let whole = message(&bytes);
            let payload = &whole.payload[..whole.payload.len().saturating_sub(cut)];
            // The last attribute of UDP does not matter.
            if tcp || cut > 16 {
                prop_assert_eq!(parse(Message { payload, ..whole }), None);
            }
            let _ = ended(Message { kind: DELETE, payload, ..whole });
        }

        #[test]
        fn a_changed_byte_does_not_panic(at in 0..250_usize, to: u8) {
            let mut bytes = bytes(NEW, INET6, &parts(TCP, tuples6()));
            let at = 16 + at % (bytes.len() - 16);
            bytes[at] = to;
            let whole = message(&bytes);
            if let Some(tracked) = parse(whole) {
                prop_assert!(tracked.protocol == TCP && tracked.tcp_state.is_some());
            }
            let _ = ended(Message { kind: DELETE, ..whole });
        }
    }
}
