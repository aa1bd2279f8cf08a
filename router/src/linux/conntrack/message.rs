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
const HEADER_BYTES: usize = 4;
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
/// unknown. A connection in a flow table of Linux has no timeout, so it is `None`, too.
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
