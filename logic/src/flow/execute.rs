//! Actions on the bytes of a packet.
//!
//! This is the reference for the kernel plane, and user space runs it for the work that the kernel plane cannot do. It is
//! written to be obvious, not fast. The headers are found again before each action, so an action sees the result of the
//! actions before it. Checksums are updated (RFC 1624) and never computed from scratch, so a packet with a wrong checksum
//! leaves with a wrong one.

use super::{
    action::{Action, CoreChoice, FcfPlace, RulePort, Vxlan},
    checksum::{crc32c, follow, sum},
    field::{Field, ether_type, ip_proto},
    key::Key,
    packet::{Fragment, Headers, Network, VXLAN_PORT},
};
use crate::hash;
use std::{iter, mem::discriminant};

/// How deep groups may lead to other groups. The table refuses loops.
const DEEPEST_GROUP: u32 = 8;
/// How many buckets of groups one list of actions may run.
const MOST_BUCKETS: u32 = 1024;
/// How many packets one list of actions may send.
pub const MOST_SENT: usize = 1024;
/// UDP source ports of VXLAN: the dynamic range (RFC 7348 section 5).
const VXLAN_SOURCE_PORTS: std::ops::RangeInclusive<u16> = 49152..=65535;
/// Bytes that [`Action::EncapVxlan`] adds: Ethernet, IPv4, UDP and VXLAN.
pub const VXLAN_BYTES: usize = 14 + 20 + 8 + 8;

/// A packet on its way, with the state that later outputs use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    pub frame: Vec<u8>,
    pub in_port: RulePort,
    /// [`Field::TunnelId`].
    pub tunnel_id: u64,
    /// [`Action::SetQueue`].
    pub queue: Option<u32>,
    /// [`Action::SetCore`].
    pub core: Option<CoreChoice>,
}

impl Packet {
    pub fn new(frame: impl Into<Vec<u8>>, in_port: RulePort) -> Packet {
        Packet { frame: frame.into(), in_port, tunnel_id: 0, queue: None, core: None }
    }
}

/// An output: the packet as it was at that moment. The caller handles reserved ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    pub port: RulePort,
    /// The packet goes to the controller because its TTL is used up (OFPR_INVALID_TTL).
    pub invalid_ttl: bool,
    pub packet: Packet,
}

/// Why the remaining actions, and the rest of the pipeline, are not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ended {
    #[error("the TTL is used up")]
    InvalidTtl,
    #[error("not a VXLAN packet")]
    NotVxlan,
    #[error("too long for an outer header")]
    TooLong,
    #[error("groups lead too deep or to too many buckets")]
    TooManyGroups,
    #[error("too many outputs")]
    TooManyOutputs,
}

/// What the actions need from the switch.
pub struct Context<'a> {
    /// The UDP port that identifies VXLAN.
    pub vxlan_port: u16,
    /// The buckets of a group that this packet takes. If there are none, the group drops it.
    pub buckets: &'a dyn Fn(u32, &Packet) -> Vec<Vec<Action>>,
}

impl Context<'_> {
    /// The usual VXLAN port, and no groups.
    pub const PLAIN: Context<'static> = Context { vxlan_port: VXLAN_PORT, buckets: &|_, _| Vec::new() };
}

/// Does the actions in order and appends the packets that they send to `sent`. `packet` is left as the last action made it.
pub fn execute(
    packet: &mut Packet,
    actions: &[Action],
    context: &Context<'_>,
    sent: &mut Vec<Sent>,
) -> Result<(), Ended> {
    Run { context, sent, buckets: MOST_BUCKETS, depth: 0 }.list(packet, actions)
}

struct Run<'a, 'b> {
    context: &'a Context<'b>,
    sent: &'a mut Vec<Sent>,
    /// How many more buckets may run.
    buckets: u32,
    depth: u32,
}

impl Run<'_, '_> {
    fn list(&mut self, packet: &mut Packet, actions: &[Action]) -> Result<(), Ended> {
        actions.iter().try_for_each(|action| self.one(packet, action))
    }

    fn one(&mut self, packet: &mut Packet, action: &Action) -> Result<(), Ended> {
        let frame = &mut packet.frame;
        let headers = Headers::of(frame, 0, Some(self.context.vxlan_port));
        match (action, headers) {
            (&Action::Output { port, .. }, _) => return self.send(packet, port),
            (&Action::Enqueue { port, queue }, _) => {
                return self.send(&Packet { queue: Some(queue), ..packet.clone() }, port);
            }
            (&Action::SetQueue(queue), _) => packet.queue = Some(queue),
            (&Action::SetCore(core), _) => packet.core = Some(core),
            (&Action::SetField { field: Field::TunnelId, value, mask }, _) => {
                packet.tunnel_id = packet.tunnel_id & !(mask as u64) | (value & mask) as u64;
            }
            (&Action::Group(id), _) => return self.group(packet, id),
            (Action::EncapVxlan(outer), _) => return encapsulate(frame, outer),
            (Action::DecapVxlan, h) => return decapsulate(frame, h),
            // There is not even an Ethernet header to write to.
            (_, None) => {}
            (&Action::SetField { field, value, mask }, Some(h)) => set(frame, &h, field, value, mask),
            (&Action::SetVlanVid(vid), Some(_)) => set_tag(frame, Field::VlanVid, vid.into(), 0xfff),
            (&Action::SetVlanPcp(pcp), Some(_)) => set_tag(frame, Field::VlanPcp, pcp.into(), 7),
            (&Action::SetTpSrc(port), Some(h)) => {
                [Field::TcpSrc, Field::UdpSrc]
                    .into_iter()
                    .for_each(|field| set(frame, &h, field, port.into(), 0xffff));
            }
            (&Action::SetTpDst(port), Some(h)) => {
                [Field::TcpDst, Field::UdpDst]
                    .into_iter()
                    .for_each(|field| set(frame, &h, field, port.into(), 0xffff));
            }
            (&Action::PushVlan(kind), Some(_)) => push_tag(frame, kind),
            (Action::PopVlan, Some(h)) => {
                if h.tags > 0 {
                    frame.drain(12..16);
                }
            }
            (Action::DecTtl, Some(h)) => match ttl(frame, &h) {
                Some((_, 0 | 1)) => {
                    let packet = packet.clone();
                    let port = RulePort::CONTROLLER;
                    self.sent.push(Sent { port, invalid_ttl: true, packet });
                    return Err(Ended::InvalidTtl);
                }
                Some((at, ttl)) => write(frame, &h, at, &[ttl - 1]),
                None => {}
            },
            (&Action::SetTtl(value), Some(h)) => {
                if let Some((at, _)) = ttl(frame, &h) {
                    write(frame, &h, at, &[value]);
                }
            }
            (&Action::SetFcf { place: FcfPlace::Tos, workload, priority }, Some(h)) => {
                let dscp = u128::from(workload & 0x1f) << 1 | u128::from(priority);
                set(frame, &h, Field::IpDscp, dscp, 0x3f);
            }
            (&Action::SetFcf { place: FcfPlace::Vlan, workload, priority }, Some(_)) => {
                set_tag(frame, Field::VlanVid, workload.into(), 0xfff);
                set_tag(frame, Field::VlanPcp, u128::from(priority) << 2, 4);
            }
        }
        Ok(())
    }

    /// A packet goes back to its port only through [`RulePort::IN_PORT`] (OpenFlow 1.0 section 3.3, 1.3 section 5.12).
    fn send(&mut self, packet: &Packet, port: RulePort) -> Result<(), Ended> {
        let back = port == packet.in_port && (port.is_real() || port == RulePort::LOCAL);
        if self.sent.len() >= MOST_SENT {
            return Err(Ended::TooManyOutputs);
        }
        if !back {
            self.sent.push(Sent { port, invalid_ttl: false, packet: packet.clone() });
        }
        Ok(())
    }

    /// Each bucket gets a copy of the packet (OpenFlow 1.3 section 5.6.1). Its changes are not visible after the group.
    fn group(&mut self, packet: &Packet, id: u32) -> Result<(), Ended> {
        if self.depth == DEEPEST_GROUP {
            return Err(Ended::TooManyGroups);
        }
        for bucket in (self.context.buckets)(id, packet) {
            self.buckets = self.buckets.checked_sub(1).ok_or(Ended::TooManyGroups)?;
            self.depth += 1;
            let ended = self.list(&mut packet.clone(), &action_set(&bucket));
            self.depth -= 1;
            if matches!(ended, Err(Ended::TooManyGroups | Ended::TooManyOutputs)) {
                return ended;
            }
        }
        Ok(())
    }
}

/// The actions that an action set does, in order (OpenFlow 1.3 section 5.10). Of each kind (and field), the set keeps the
/// action written last. The order is: remove tags, push tags, TTL, set, queue, and then a group, or an output if there is no
/// group. Our extension: VXLAN headers are removed first, and added after all fields are set.
pub fn action_set(written: &[Action]) -> Vec<Action> {
    let replaces = |later: &Action, action: &Action| match (later, action) {
        (Action::SetField { field: a, mask: x, .. }, Action::SetField { field: b, mask: y, .. }) => {
            (a, x) == (b, y)
        }
        (Action::SetFcf { place: a, .. }, Action::SetFcf { place: b, .. }) => a == b,
        _ => {
            order(later) == order(action)
                && (order(later) == OUTPUT || discriminant(later) == discriminant(action))
        }
    };
    let grouped = written.iter().any(|action| matches!(action, Action::Group(_)));
    let mut set: Vec<Action> = Vec::new();
    for action in written.iter().rev() {
        let instead = grouped && order(action) == OUTPUT || set.iter().any(|later| replaces(later, action));
        if !instead {
            set.push(action.clone());
        }
    }
    set.reverse();
    set.sort_by_key(order);
    set
}

const OUTPUT: u8 = 9;

fn order(action: &Action) -> u8 {
    match action {
        Action::DecapVxlan => 0,
        Action::PopVlan => 1,
        Action::PushVlan(_) => 2,
        Action::DecTtl => 3,
        Action::SetField { .. }
        | Action::SetVlanVid(_)
        | Action::SetVlanPcp(_)
        | Action::SetTpSrc(_)
        | Action::SetTpDst(_)
        | Action::SetTtl(_)
        | Action::SetFcf { .. } => 4,
        Action::EncapVxlan(_) => 5,
        Action::SetCore(_) => 6,
        Action::SetQueue(_) => 7,
        Action::Group(_) => 8,
        Action::Output { .. } | Action::Enqueue { .. } => OUTPUT,
    }
}

/// Writes the bits of `field` where `mask` is 1, if the packet has it.
fn set(frame: &mut [u8], headers: &Headers, field: Field, value: u128, mask: u128) {
    let Some(place) = headers.place(frame, field) else { return };
    let mask = mask & u128::MAX >> (128 - place.bits);
    let raw = frame[place.at..place.at + place.bytes].iter().fold(0, |raw, &b| raw << 8 | u128::from(b));
    let raw = raw & !(mask << place.shift) | (value & mask) << place.shift;
    write(frame, headers, place.at, &raw.to_be_bytes()[16 - place.bytes..]);
}

/// Writes `new` at `at` and updates the checksums that cover it.
fn write(frame: &mut [u8], headers: &Headers, at: usize, new: &[u8]) {
    let sctp = headers.transport.filter(|&t| headers.proto == ip_proto::SCTP && at >= t);
    // The CRC covers the whole packet, so the frame must hold all of it.
    if sctp.is_some() && !(headers.complete && headers.fragment == Fragment::Whole) {
        return;
    }
    let crc_before = sctp.map(|t| sctp_crc(frame, t..headers.end));
    // Headers begin at even offsets, so these are whole words of the checksums.
    let words = at & !1..frame.len().min((at + new.len()).next_multiple_of(2));
    let old = frame[words.clone()].to_vec();
    frame[at..at + new.len()].copy_from_slice(new);
    let new = frame[words].to_vec();
    if let (Some(t), Some(before)) = (sctp, crc_before) {
        // The CRC is linear: flip the bits that differ. A wrong CRC stays wrong by the same bits.
        let change = (before ^ sctp_crc(frame, t..headers.end)).to_le_bytes();
        frame[t + 8..t + 12].iter_mut().zip(change).for_each(|(byte, change)| *byte ^= change);
        return;
    }
    if let Network::Ipv4(ip) = headers.network
        && (ip..ip + 20).contains(&at)
    {
        adjust(frame, ip + 10, &old, &new);
    }
    if let Some(t) = headers.transport
        && (at >= t || in_pseudo_header(headers, at))
    {
        match headers.proto {
            ip_proto::TCP => adjust(frame, t + 16, &old, &new),
            ip_proto::UDP if frame[t + 6..t + 8] != [0, 0] => {
                adjust(frame, t + 6, &old, &new);
                // 0 would mean that there is no checksum (RFC 768).
                if frame[t + 6..t + 8] == [0, 0] {
                    frame[t + 6..t + 8].copy_from_slice(&[0xff, 0xff]);
                }
            }
            ip_proto::ICMP if at >= t => adjust(frame, t + 2, &old, &new),
            ip_proto::ICMPV6 => adjust(frame, t + 2, &old, &new),
            _ => {}
        }
    }
}

fn adjust(frame: &mut [u8], at: usize, old: &[u8], new: &[u8]) {
    let checksum = follow(u16::from_be_bytes([frame[at], frame[at + 1]]), old, new);
    frame[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
}

/// Is it part of an address that the checksums of TCP, UDP and ICMPv6 cover (RFC 9293 section 3.1, RFC 8200 section 8.1)?
fn in_pseudo_header(headers: &Headers, at: usize) -> bool {
    match headers.network {
        Network::Ipv4(ip) => (ip + 12..ip + 20).contains(&at),
        Network::Ipv6(ip) => (ip + 8..ip + if headers.routed { 24 } else { 40 }).contains(&at),
        _ => false,
    }
}

/// The CRC of an SCTP packet, computed as if its checksum field were zero.
fn sctp_crc(frame: &[u8], packet: std::ops::Range<usize>) -> u32 {
    let mut bytes = frame[packet].to_vec();
    bytes[8..12].fill(0);
    crc32c(&bytes)
}

/// The offset and the value of the TTL or hop limit.
fn ttl(frame: &[u8], headers: &Headers) -> Option<(usize, u8)> {
    let at = match headers.network {
        Network::Ipv4(ip) => ip + 8,
        Network::Ipv6(ip) => ip + 7,
        _ => return None,
    };
    Some((at, frame[at]))
}

/// Pushes a tag in front of the outermost one, with its id and priority (OpenFlow 1.3 section 5.12, table 6).
fn push_tag(frame: &mut Vec<u8>, kind: u16) {
    let below =
        Headers::of(frame, 0, None).filter(|h| h.tags > 0).map_or([0, 0], |_| [frame[14] & 0xef, frame[15]]);
    let [high, low] = kind.to_be_bytes();
    frame.splice(12..12, [high, low, below[0], below[1]]);
}

/// Writes to the outermost tag, and pushes one first if there is none.
fn set_tag(frame: &mut Vec<u8>, field: Field, value: u128, mask: u128) {
    if Headers::of(frame, 0, None).is_some_and(|h| h.tags == 0) {
        push_tag(frame, ether_type::VLAN);
    }
    if let Some(headers) = Headers::of(frame, 0, None) {
        set(frame, &headers, field, value, mask);
    }
}

/// The UDP source port of VXLAN around a frame. It comes from the frame's addresses and ports, so that a flow keeps to one
/// path (RFC 7348 section 5).
pub fn vxlan_source_port(inner: &[u8]) -> u16 {
    let words = Key::of(inner, RulePort(0), VXLAN_PORT).words();
    let choice = hash::flow([1, 2, 3, 6, 7, 8, 9].map(|i| words[i]));
    *VXLAN_SOURCE_PORTS.start() | choice as u16 & (VXLAN_SOURCE_PORTS.end() - VXLAN_SOURCE_PORTS.start())
}

/// Adds the outer headers (RFC 7348 section 5). The outer packet must not be fragmented (section 4.3); its UDP checksum is
/// 0.
fn encapsulate(frame: &mut Vec<u8>, outer: &Vxlan) -> Result<(), Ended> {
    let ip_length = u16::try_from(frame.len() + VXLAN_BYTES - 14).map_err(|_| Ended::TooLong)?;
    let mut ip = [0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, ip_proto::UDP, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    ip[2..4].copy_from_slice(&ip_length.to_be_bytes());
    ip[12..16].copy_from_slice(&outer.source.octets());
    ip[16..20].copy_from_slice(&outer.destination.octets());
    let checksum = !sum(&ip);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    let udp = [vxlan_source_port(frame), outer.udp_port, ip_length - 20, 0].map(u16::to_be_bytes);
    let vxlan = [8 << 24, outer.vni << 8].map(u32::to_be_bytes);
    let header: Vec<u8> = iter::empty()
        .chain(outer.eth_destination)
        .chain(outer.eth_source)
        .chain(ether_type::IPV4.to_be_bytes())
        .chain(ip)
        .chain(udp.into_iter().flatten())
        .chain(vxlan.into_iter().flatten())
        .collect();
    frame.splice(0..0, header);
    Ok(())
}

/// Keeps only the inner frame, which must have at least an Ethernet header.
fn decapsulate(frame: &mut Vec<u8>, headers: Option<Headers>) -> Result<(), Ended> {
    let headers = headers.ok_or(Ended::NotVxlan)?;
    let inner = headers.vxlan.ok_or(Ended::NotVxlan)? + 8;
    if inner + 14 > headers.end {
        return Err(Ended::NotVxlan);
    }
    frame.truncate(headers.end);
    frame.drain(..inner);
    Ok(())
}

#[cfg(test)]
mod tests;
