//! Encodes steps as `struct flow_step` of `bpf/flow_abi.h`.

use super::{core_word, memory::words};
use crate::flow::{
    action::RulePort,
    program::{Ports, Step, Verdict},
};
use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicU64, Ordering::Acquire},
};

/// `enum flow_verdict` of `bpf/flow_abi.h`; `router::abi` compares the two.
pub mod verdict {
    pub const DROP: u8 = 0;
    pub const OUTPUT: u8 = 1;
    pub const NORMAL: u8 = 2;
    pub const LOCAL: u8 = 3;
    pub const BROADCAST: u8 = 4;
    pub const IN_PORT: u8 = 5;
    pub const SLOW: u8 = 6;
    pub const STEPS: u8 = 7;
    /// In the core table only.
    pub const CORE: u8 = 9;
    /// A packet's verdict; it is in no rule.
    pub const CONTROLLER: u8 = 10;
    pub const CONTROLLER_LOST: u8 = 11;
    pub const PATH: u8 = 12;
}

/// `enum flow_op`, in its order.
#[derive(Clone, Copy)]
#[repr(u8)]
enum Op {
    End,
    Verdict,
    Controller,
    EthDst,
    EthSrc,
    PushVlan,
    PopVlan,
    Vlan,
    Ipv4Src,
    Ipv4Dst,
    Ipv6,
    Tos,
    TpSrc,
    TpDst,
    Ttl,
    DecTtl,
    Meter,
    Group,
    EncapVxlan,
    DecapVxlan,
    TunnelId,
}

/// The numbers of `enum flow_op`, for `router::abi` to compare.
pub const OPS: [(&str, u8); 21] = [
    ("STEP_END", Op::End as u8),
    ("STEP_VERDICT", Op::Verdict as u8),
    ("STEP_CONTROLLER", Op::Controller as u8),
    ("STEP_SET_ETH_DST", Op::EthDst as u8),
    ("STEP_SET_ETH_SRC", Op::EthSrc as u8),
    ("STEP_PUSH_VLAN", Op::PushVlan as u8),
    ("STEP_POP_VLAN", Op::PopVlan as u8),
    ("STEP_SET_VLAN", Op::Vlan as u8),
    ("STEP_SET_IPV4_SRC", Op::Ipv4Src as u8),
    ("STEP_SET_IPV4_DST", Op::Ipv4Dst as u8),
    ("STEP_SET_IPV6", Op::Ipv6 as u8),
    ("STEP_SET_TOS", Op::Tos as u8),
    ("STEP_SET_TP_SRC", Op::TpSrc as u8),
    ("STEP_SET_TP_DST", Op::TpDst as u8),
    ("STEP_SET_TTL", Op::Ttl as u8),
    ("STEP_DEC_TTL", Op::DecTtl as u8),
    ("STEP_METER", Op::Meter as u8),
    ("STEP_GROUP", Op::Group as u8),
    ("STEP_ENCAP_VXLAN", Op::EncapVxlan as u8),
    ("STEP_DECAP_VXLAN", Op::DecapVxlan as u8),
    ("STEP_SET_TUNNEL_ID", Op::TunnelId as u8),
];

/// Finds the rows that steps name.
pub(super) trait Rows {
    /// A row of `flow_sets`. `None` if there is no room.
    fn set(&mut self, ports: &Ports) -> Option<u16>;
    /// A row of `flow_meters`. `None` if there is no such meter.
    fn meter(&mut self, id: u32) -> Option<u32>;
    /// A row of `flow_groups`. `None` if there is no such group, or the kernel plane cannot do it.
    fn group(&mut self, id: u32) -> Option<u32>;
    /// The ports to which nothing can be redirected.
    fn deaf(&self) -> &BTreeSet<RulePort>;
}

/// A port's id: its slot in the transmit map.
fn port_id(port: RulePort) -> u16 {
    port.0 - 1
}

/// Encodes a verdict as kind and argument. `None` if user space has to do it.
pub(super) fn encode_verdict(v: &Verdict, rows: &mut impl Rows) -> Option<(u8, u16)> {
    let deaf = rows.deaf();
    let heard = match v {
        Verdict::Output(port) => !deaf.contains(port),
        Verdict::Broadcast(Ports::These(ports)) => !ports.iter().any(|port| deaf.contains(port)),
        // The packet may go to any port.
        Verdict::Broadcast(Ports::All | Ports::Flood) | Verdict::InPort => deaf.is_empty(),
        Verdict::Drop
        | Verdict::Normal
        | Verdict::Local
        | Verdict::Slow
        | Verdict::Core(_)
        | Verdict::Path(_) => true,
    };
    if !heard {
        return None;
    }
    Some(match v {
        Verdict::Drop => (verdict::DROP, 0),
        Verdict::Output(port) => (verdict::OUTPUT, port_id(*port)),
        Verdict::InPort => (verdict::IN_PORT, 0),
        Verdict::Normal => (verdict::NORMAL, 0),
        Verdict::Local => (verdict::LOCAL, 0),
        Verdict::Broadcast(ports) => (verdict::BROADCAST, rows.set(ports)?),
        Verdict::Slow => (verdict::SLOW, 0),
        Verdict::Core(core) => (verdict::CORE, core_word(*core)?),
        Verdict::Path(path) => (verdict::PATH, *path),
    })
}

/// The words of the steps, with the end. `None` if a row is missing; user space then has to do the work.
pub(super) fn encode(steps: &[Step], rows: &mut impl Rows) -> Option<Vec<u64>> {
    let mut out = Vec::with_capacity((steps.len() + 1) * words::STEP);
    for step in steps {
        out.extend(encode_one(step, rows)?);
    }
    out.extend(pack(Op::End, 0, 0, 0, 0));
    Some(out)
}

/// The rows of `flow_sets` that a list of steps names, once for each time. The list is at the beginning of these
/// words.
pub(super) fn sets(steps: &[AtomicU64]) -> impl Iterator<Item = u16> + '_ {
    let first = |step: &[AtomicU64]| step[0].load(Acquire);
    let list = steps.chunks_exact(words::STEP).map(first).take_while(|step| *step as u8 != Op::End as u8);
    list.filter(|step| *step as u16 == u16::from_le_bytes([Op::Verdict as u8, verdict::BROADCAST]))
        .map(|step| (step >> 16) as u16)
}

fn pack(op: Op, a: u8, b: u16, c: u32, d: u64) -> [u64; words::STEP] {
    [u64::from(op as u8) | u64::from(a) << 8 | u64::from(b) << 16 | u64::from(c) << 32, d]
}

/// A number in network order as a word in memory order.
fn be16(value: u16) -> u16 {
    u16::from_ne_bytes(value.to_be_bytes())
}

fn be32(value: u32) -> u32 {
    u32::from_ne_bytes(value.to_be_bytes())
}

fn mac(bytes: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = bytes;
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
}

fn encode_one(step: &Step, rows: &mut impl Rows) -> Option<[u64; words::STEP]> {
    Some(match *step {
        Step::Verdict(ref v) => {
            let (kind, argument) = encode_verdict(v, rows)?;
            pack(Op::Verdict, kind, argument, 0, 0)
        }
        Step::Controller => pack(Op::Controller, 0, 0, 0, 0),
        Step::EthDst(bytes) => pack(Op::EthDst, 0, 0, 0, mac(bytes)),
        Step::EthSrc(bytes) => pack(Op::EthSrc, 0, 0, 0, mac(bytes)),
        Step::PushVlan(kind) => pack(Op::PushVlan, 0, kind, 0, 0),
        Step::PopVlan => pack(Op::PopVlan, 0, 0, 0, 0),
        Step::Vlan { tci, mask, push } => pack(Op::Vlan, push.into(), be16(tci), be16(mask).into(), 0),
        Step::Ipv4Src(address) => pack(Op::Ipv4Src, 0, 0, be32(address), 0),
        Step::Ipv4Dst(address) => pack(Op::Ipv4Dst, 0, 0, be32(address), 0),
        Step::Ipv6 { half, bytes } => pack(Op::Ipv6, half, 0, 0, u64::from_ne_bytes(bytes)),
        Step::Tos { value, mask } => pack(Op::Tos, 0, value.into(), mask.into(), 0),
        Step::TpSrc { port, protocol } => pack(Op::TpSrc, protocol.unwrap_or(0), be16(port), 0, 0),
        Step::TpDst { port, protocol } => pack(Op::TpDst, protocol.unwrap_or(0), be16(port), 0, 0),
        Step::Ttl(ttl) => pack(Op::Ttl, 0, ttl.into(), 0, 0),
        Step::DecTtl => pack(Op::DecTtl, 0, 0, 0, 0),
        Step::Meter(id) => pack(Op::Meter, 0, 0, rows.meter(id)?, 0),
        Step::Group(id) => pack(Op::Group, 0, 0, rows.group(id)?, 0),
        Step::EncapVxlan { source, destination, vni, udp_port } => {
            let addresses = u64::from(be32(source)) | u64::from(be32(destination)) << 32;
            pack(Op::EncapVxlan, 0, be16(udp_port), be32(vni << 8), addresses)
        }
        Step::DecapVxlan => pack(Op::DecapVxlan, 0, 0, 0, 0),
        Step::TunnelId(id) => pack(Op::TunnelId, 0, 0, 0, u64::from_ne_bytes(id.to_be_bytes())),
    })
}
