//! From what a rule says to what the kernel plane does: [`compile`].
//!
//! The program sends a packet once, in the end, to one port or to one set of ports. What needs more (copies that differ, a
//! copy that goes on to another table, a field that it cannot write) is [`Verdict::Slow`]: user space does it, the same to
//! the last byte ([`execute`](super::execute)), and it is counted. Groups and meters are steps that name a row; which rows
//! they have is for who writes the tables to say.

use super::{
    action::{Action, CoreChoice, FcfPlace, Instructions, RulePort, Vxlan},
    execute::action_set,
    field::{Field, VLAN_PRESENT, ip_proto},
    key::Key,
    rule::TableId,
};

/// What becomes of a packet: `enum flow_verdict` of `bpf/flow_abi.h`, with its argument.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Verdict {
    #[default]
    Drop,
    /// To this port; nothing if that is where it came from.
    Output(RulePort),
    /// Back to where it came from.
    InPort,
    Normal,
    Local,
    /// To these ports, without the one it came from.
    Broadcast(Ports),
    /// User space does what the rules say; before anything was rewritten.
    Slow,
    /// In the core table: this core goes on with the packet.
    Core(CoreChoice),
    /// To the worker of this path of the user plane.
    Path(u16),
}

/// A set of ports that one broadcast reaches.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ports {
    All,
    Flood,
    /// Ascending, none twice.
    These(Box<[RulePort]>),
}

/// One thing done to a packet: `enum flow_op` of `bpf/flow_abi.h`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    Verdict(Verdict),
    /// A copy as it is now.
    Controller,
    EthDst([u8; 6]),
    EthSrc([u8; 6]),
    PushVlan(u16),
    PopVlan,
    /// Bits of the tag; `push`: of a new one where there is none.
    Vlan {
        tci: u16,
        mask: u16,
        push: bool,
    },
    Ipv4Src(u32),
    Ipv4Dst(u32),
    /// `half` 0..=1 of the source, 2..=3 of the destination.
    Ipv6 {
        half: u8,
        bytes: [u8; 8],
    },
    Tos {
        value: u8,
        mask: u8,
    },
    /// `protocol` `None`: of TCP or UDP.
    TpSrc {
        port: u16,
        protocol: Option<u8>,
    },
    TpDst {
        port: u16,
        protocol: Option<u8>,
    },
    Ttl(u8),
    DecTtl,
    Meter(u32),
    Group(u32),
    /// Around the frame, from here; the outer MAC addresses are 0 until they are set.
    EncapVxlan {
        source: u32,
        destination: u32,
        vni: u32,
        udp_port: u16,
    },
    DecapVxlan,
    /// Beside the packet, for what goes to the controllers; later tables know it by the rule's [`Patch`].
    TunnelId(u64),
}

/// A rule for the kernel plane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// Done in this table, in order. Only a verdict: the fast form.
    pub steps: Vec<Step>,
    /// One of `steps` decides where the packet goes.
    pub sends: bool,
    pub next_table: Option<TableId>,
    /// Empties what earlier rules put into the action set.
    pub clear: bool,
    /// The rule's part of the action set (OpenFlow 1.3.5 section 5.10), done when the pipeline ends,
    pub set: Vec<Step>,
    /// and which ranks of it: bit 0 is done first.
    pub set_ranks: u16,
    /// How later tables see the packet.
    pub patch: Option<Patch>,
    /// The core that goes on with the packet: named in the rule's part of the action set, which is done last, or before the last
    /// output of its list. A packet is handed over once, before anything is done to it.
    pub core: Option<CoreChoice>,
    /// It is named in the rule's part of the action set.
    pub core_of_set: bool,
}

/// Fields that a rule changes for later tables, and what a packet must have for that to be so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Patch {
    pub value: Key,
    pub mask: Key,
    /// [`needs`]. Of a packet that lacks one, user space decides.
    pub needs: u64,
}

/// `enum flow_needs` of `bpf/flow_abi.h`.
pub mod needs {
    pub const TAG: u64 = 1;
    pub const IPV4: u64 = 2;
    pub const IPV6: u64 = 4;
    pub const ARP: u64 = 8;
    /// With ports that rules see.
    pub const TCP: u64 = 16;
    pub const UDP: u64 = 32;
    /// For one more tag that is looked behind.
    pub const ROOM: u64 = 64;
}

impl Program {
    /// Does it send to a set of ports?
    pub fn broadcasts(&self) -> bool {
        self.steps.iter().chain(&self.set).any(|step| matches!(step, Step::Verdict(Verdict::Broadcast(_))))
    }
    /// Of a rule of the core table.
    pub fn core(instructions: &Instructions) -> Program {
        let steps = core(&instructions.apply, true).map(|core| Step::Verdict(Verdict::Core(core)));
        Program { steps: steps.into_iter().collect(), ..Program::default() }
    }
    /// User space does it all.
    pub fn slow() -> Program {
        Program { steps: vec![Step::Verdict(Verdict::Slow)], sends: true, ..Program::default() }
    }
    /// Does user space do it?
    pub fn is_slow(&self) -> bool {
        self.steps.contains(&Step::Verdict(Verdict::Slow))
    }
}

/// Steps that one packet may take under one rule, and then in a group's bucket: together fewer than `FLOW_MAX_STEPS`.
const MAX_STEPS: usize = 18;
const MAX_BUCKET_STEPS: usize = 12;
/// Tunnels around one another: of 256 bytes that XDP keeps in front of a frame, 40 are the kernel's, and each takes 50.
pub(super) const MAX_TUNNELS: usize = 4;

/// What the kernel plane does for these instructions. `fast_group`: does this group send each packet to one bucket, which
/// the kernel plane can do itself?
pub fn compile(instructions: &Instructions, fast_group: &dyn Fn(u32) -> bool) -> Program {
    try_compile(instructions, fast_group).unwrap_or_else(Program::slow)
}

/// One bucket of a group, as steps; `None`: only user space can do it. A rule says whether it broadcasts, which frames of
/// several buffers do not survive, and knows nothing of its group's buckets: those must not.
pub fn compile_bucket(actions: &[Action]) -> Option<Vec<Step>> {
    if core(actions, true).is_some() {
        // A packet has been handed over by the time it comes here.
        return None;
    }
    let (steps, _) = steps(&action_set(actions), &|_| false)?;
    let broadcasts = steps.iter().any(|step| matches!(step, Step::Verdict(Verdict::Broadcast(_))));
    (!broadcasts && steps.len() <= MAX_BUCKET_STEPS).then_some(steps)
}

fn try_compile(instructions: &Instructions, fast_group: &dyn Fn(u32) -> bool) -> Option<Program> {
    let written = action_set(&instructions.write);
    let (mut apply, sends) = steps(&instructions.apply, fast_group)?;
    let (set, _) = steps(&written, fast_group)?;
    if let Some(meter) = instructions.meter {
        apply.insert(0, Step::Meter(meter));
    }
    let (goes_on, set_core) = (instructions.goto_table.is_some(), core(&written, true));
    let program = Program {
        sends,
        next_table: instructions.goto_table,
        clear: instructions.clear,
        set_ranks: written.iter().fold(0, |ranks, action| ranks | rank(action)),
        patch: if goes_on { patch(instructions)? } else { None },
        core: set_core.or_else(|| core(&instructions.apply, goes_on || !sends)),
        core_of_set: set_core.is_some(),
        steps: apply,
        set,
    };
    // A copy that leaves while the packet goes on would be a second one.
    let copies = sends && goes_on;
    (!copies && program.steps.len() + program.set.len() <= MAX_STEPS).then_some(program)
}

/// The place of an action in the action set; group and output share one, since a group takes the output's place.
fn rank(action: &Action) -> u16 {
    1 << match action {
        // Not the packet's: the rule names it.
        Action::SetCore(_) => return 0,
        Action::DecapVxlan => 0,
        Action::PopVlan => 1,
        Action::PushVlan(_) => 2,
        Action::DecTtl => 3,
        Action::EncapVxlan(_) => 5,
        Action::SetQueue(_) => 7,
        Action::Group(_) | Action::Output { .. } | Action::Enqueue { .. } => 8,
        _ => 4,
    }
}

/// The steps of a list, and whether they send the packet.
fn steps(actions: &[Action], fast_group: &dyn Fn(u32) -> bool) -> Option<(Vec<Step>, bool)> {
    let mut steps = Vec::new();
    let mut sent: Option<Verdict> = None;
    let mut rewritten_since = false;
    if tunnels(actions) > MAX_TUNNELS {
        return None;
    }
    for action in actions {
        match action {
            // Nothing is buffered, so all of it is told, whatever was asked for (OpenFlow 1.3.5 section 6.1.2).
            Action::Output { port: RulePort::CONTROLLER, .. } => {
                steps.push(Step::Controller);
            }
            Action::Output { port, .. } => {
                let verdict = verdict(*port)?;
                sent = Some(match sent {
                    None => verdict,
                    Some(first) if !rewritten_since => both(first, verdict)?,
                    Some(_) => return None,
                });
                rewritten_since = false;
            }
            Action::Group(id) => {
                if sent.is_some() || !fast_group(*id) {
                    return None;
                }
                // The group's steps end the list: what follows must not send (as a TTL that is used up is sent), and what
                // else it does nobody sees.
                let rest_sends = |a: &Action| {
                    matches!(
                        a,
                        Action::Output { .. } | Action::Enqueue { .. } | Action::Group(_) | Action::DecTtl
                    )
                };
                let at = actions.iter().position(|a| a == action)?;
                if actions[at + 1..].iter().any(rest_sends) {
                    return None;
                }
                steps.push(Step::Group(*id));
                return Some((steps, true));
            }
            // Not the packet's: the rule names it.
            Action::SetCore(_) => {}
            // In no byte of what is sent.
            Action::SetField { field: Field::TunnelId, .. } => rewrite(action, &mut steps)?,
            other => {
                rewrite(other, &mut steps)?;
                rewritten_since = true;
            }
        }
    }
    let sends = sent.is_some();
    steps.extend(sent.map(Step::Verdict));
    // The verdict is carried out after the last step: what was rewritten after the packet left would leave with it.
    (!sends || !rewritten_since).then_some((steps, sends))
}

/// The core that a list names for what it sends, or, if it sends nothing or the packet goes on, for what is done after it
/// (`after`).
fn core(actions: &[Action], after: bool) -> Option<CoreChoice> {
    let sends = |a: &Action| matches!(a, Action::Output { .. } | Action::Group(_));
    let last = if after { Some(actions.len()) } else { actions.iter().rposition(sends) };
    actions[..last?].iter().rev().find_map(|action| match action {
        Action::SetCore(core) => Some(*core),
        _ => None,
    })
}

/// How often a list puts a frame into a tunnel.
pub(super) fn tunnels(actions: &[Action]) -> usize {
    actions.iter().filter(|action| matches!(action, Action::EncapVxlan(_))).count()
}

fn verdict(port: RulePort) -> Option<Verdict> {
    Some(match port {
        RulePort::IN_PORT => Verdict::InPort,
        RulePort::NORMAL => Verdict::Normal,
        RulePort::LOCAL => Verdict::Local,
        RulePort::FLOOD => Verdict::Broadcast(Ports::Flood),
        RulePort::ALL => Verdict::Broadcast(Ports::All),
        port if port.is_real() => Verdict::Output(port),
        port => Verdict::Path(port.path()?),
    })
}

/// Two outputs of the same bytes as one broadcast, which leaves out the port the packet came in by, as an output does.
fn both(first: Verdict, second: Verdict) -> Option<Verdict> {
    let ports = |verdict| match verdict {
        Verdict::Output(port) => Some(vec![port]),
        Verdict::Broadcast(Ports::These(ports)) => Some(ports.into_vec()),
        _ => None,
    };
    let (mut all, more) = (ports(first)?, ports(second)?);
    if more.iter().any(|port| all.contains(port)) {
        return None;
    }
    all.extend(more);
    all.sort_unstable();
    Some(Verdict::Broadcast(Ports::These(all.into())))
}

/// The steps of an action that changes the packet; `None`: only user space can.
fn rewrite(action: &Action, steps: &mut Vec<Step>) -> Option<()> {
    let step = match *action {
        Action::SetField { field, value, mask } => return set_field(field, value, mask, steps),
        Action::SetVlanVid(vid) => Step::Vlan { tci: vid & 0xfff, mask: 0x0fff, push: true },
        Action::SetVlanPcp(pcp) => Step::Vlan { tci: u16::from(pcp) << 13, mask: 0xe000, push: true },
        Action::SetTpSrc(port) => Step::TpSrc { port, protocol: None },
        Action::SetTpDst(port) => Step::TpDst { port, protocol: None },
        Action::PushVlan(kind) => Step::PushVlan(kind),
        Action::PopVlan => Step::PopVlan,
        Action::DecTtl => Step::DecTtl,
        Action::SetTtl(ttl) => Step::Ttl(ttl),
        Action::EncapVxlan(Vxlan { source, destination, vni, udp_port, eth_destination, eth_source }) => {
            let (source, destination) = (source.into(), destination.into());
            steps.push(Step::EncapVxlan { source, destination, vni, udp_port });
            steps.push(Step::EthDst(eth_destination));
            Step::EthSrc(eth_source)
        }
        Action::DecapVxlan => Step::DecapVxlan,
        Action::SetFcf { place: FcfPlace::Tos, workload, priority } => {
            Step::Tos { value: (workload as u8 & 0x1f) << 3 | u8::from(priority) << 2, mask: 0xfc }
        }
        Action::SetFcf { place: FcfPlace::Vlan, workload, priority } => {
            Step::Vlan { tci: workload & 0xfff | u16::from(priority) << 15, mask: 0x8fff, push: true }
        }
        Action::SetCore(_)
        | Action::SetQueue(_)
        | Action::Enqueue { .. }
        | Action::Output { .. }
        | Action::Group(_) => return None,
    };
    steps.push(step);
    Some(())
}

fn set_field(field: Field, value: u128, mask: u128, steps: &mut Vec<Step>) -> Option<()> {
    let whole = mask == field.all_bits();
    let mac = |value: u128| std::array::from_fn(|i| value.to_be_bytes()[10 + i]);
    let (tos, port) = (|shift: u32| ((value << shift) as u8, (mask << shift) as u8), value as u16);
    let ipv6 = |first: u8| {
        let half = |i: u8| std::array::from_fn(|j| value.to_be_bytes()[usize::from(i) * 8 + j]);
        [0, 1].map(|i| Step::Ipv6 { half: first + i, bytes: half(i) })
    };
    let step = match field {
        Field::VlanVid => Step::Vlan { tci: value as u16 & 0xfff, mask: mask as u16 & 0xfff, push: false },
        Field::VlanPcp => Step::Vlan { tci: (value as u16) << 13, mask: (mask as u16) << 13, push: false },
        Field::IpDscp => Step::Tos { value: tos(2).0, mask: tos(2).1 },
        Field::IpEcn => Step::Tos { value: tos(0).0, mask: tos(0).1 },
        // Nothing of the packet: a patch for later tables.
        Field::Metadata => return Some(()),
        _ if !whole => return None,
        Field::TunnelId => Step::TunnelId(value as u64),
        Field::EthDst => Step::EthDst(mac(value)),
        Field::EthSrc => Step::EthSrc(mac(value)),
        Field::Ipv4Src => Step::Ipv4Src(value as u32),
        Field::Ipv4Dst => Step::Ipv4Dst(value as u32),
        Field::Ipv6Src | Field::Ipv6Dst => {
            steps.extend(ipv6(if field == Field::Ipv6Src { 0 } else { 2 }));
            return Some(());
        }
        Field::TcpSrc => Step::TpSrc { port, protocol: Some(ip_proto::TCP) },
        Field::TcpDst => Step::TpDst { port, protocol: Some(ip_proto::TCP) },
        Field::UdpSrc => Step::TpSrc { port, protocol: Some(ip_proto::UDP) },
        Field::UdpDst => Step::TpDst { port, protocol: Some(ip_proto::UDP) },
        _ => return None,
    };
    steps.push(step);
    Some(())
}

/// What later tables see changed, if anything. The outer `None`: that depends on more of the packet than can be said.
fn patch(instructions: &Instructions) -> Option<Option<Patch>> {
    let mut patch = Patch { value: Key::ZERO, mask: Key::ZERO, needs: 0 };
    for action in &instructions.apply {
        match *action {
            Action::SetField { field, value, mask } => {
                patch.change(field, value, mask);
                patch.needs |= needs_of(field)?;
            }
            Action::PushVlan(_) if patch.mask.get(Field::VlanVid) == 0 => {
                patch.change(Field::VlanVid, VLAN_PRESENT.into(), VLAN_PRESENT.into());
                patch.needs |= needs::ROOM;
            }
            Action::Output { .. }
            | Action::Group(_)
            | Action::DecTtl
            | Action::SetTtl(_)
            | Action::SetQueue(_)
            | Action::SetCore(_) => {}
            _ => return None,
        }
    }
    if patch.mask.get(Field::VlanVid) & u128::from(VLAN_PRESENT) != 0 && patch.needs & needs::ROOM != 0 {
        // The tag that is set is the one that was pushed.
        patch.needs &= !needs::TAG;
    }
    if let Some((new, bits)) = instructions.metadata {
        patch.change(Field::Metadata, new.into(), bits.into());
    }
    Some((patch.mask != Key::ZERO).then_some(patch))
}

impl Patch {
    fn change(&mut self, field: Field, new: u128, bits: u128) {
        self.value.set(field, self.value.get(field) & !bits | new & bits);
        self.mask.set(field, self.mask.get(field) | bits);
    }
}

/// What a packet must have for this field to be its own; `None`: a patch cannot say.
fn needs_of(field: Field) -> Option<u64> {
    Some(match field {
        Field::EthDst | Field::EthSrc | Field::TunnelId => 0,
        Field::VlanVid | Field::VlanPcp => needs::TAG,
        Field::Ipv4Src | Field::Ipv4Dst => needs::IPV4,
        Field::Ipv6Src | Field::Ipv6Dst => needs::IPV6,
        Field::TcpSrc | Field::TcpDst => needs::TCP,
        Field::UdpSrc | Field::UdpDst => needs::UDP,
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
