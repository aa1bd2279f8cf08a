//! Compiles a rule's instructions into steps of the kernel plane: [`compile`].
//!
//! The program sends a packet once, at the end, to one port or to one set of ports. Rules that need more are
//! [`Verdict::Slow`], for example if copies differ, if a copy goes on to another table, or if the kernel plane cannot write
//! a field. User space does these, with the same bytes as a result ([`execute`](super::execute)), and they are counted.
//! Groups and meters are steps with an id. The code that writes the tables replaces it by a row.

use super::{
    action::{Action, CoreChoice, FcfPlace, Instructions, RulePort, Vxlan},
    execute::action_set,
    field::{Field, VLAN_PRESENT, ip_proto},
    key::Key,
    rule::TableId,
};

/// The fate of a packet: `enum flow_verdict` of `bpf/flow_abi.h`, with its argument.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Verdict {
    #[default]
    Drop,
    /// To this port. The packet is not sent if it came in by this port.
    Output(RulePort),
    /// Back through the port it came in by.
    InPort,
    Normal,
    Local,
    /// To these ports, except the one it came in by.
    Broadcast(Ports),
    /// User space does the work, on the packet as it was before any change.
    Slow,
    /// In the core table: this core continues with the packet.
    Core(CoreChoice),
    /// To the worker of this path of the user plane.
    Path(u16),
}

/// A set of ports that one broadcast reaches.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ports {
    All,
    Flood,
    /// Ascending, without duplicates.
    These(Box<[RulePort]>),
}

/// One thing done to a packet: `enum flow_op` of `bpf/flow_abi.h`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    Verdict(Verdict),
    /// Sends a copy of the packet as it is now.
    Controller,
    EthDst([u8; 6]),
    EthSrc([u8; 6]),
    PushVlan(u16),
    PopVlan,
    /// Writes bits of the tag. `push`: if there is none, pushes one first.
    Vlan {
        tci: u16,
        mask: u16,
        push: bool,
    },
    Ipv4Src(u32),
    Ipv4Dst(u32),
    /// `half` 0..=1 is in the source, 2..=3 in the destination.
    Ipv6 {
        half: u8,
        bytes: [u8; 8],
    },
    Tos {
        value: u8,
        mask: u8,
    },
    /// `protocol` `None`: either TCP or UDP.
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
    /// Puts headers around the frame. The outer MAC addresses are 0 until they are set.
    EncapVxlan {
        source: u32,
        destination: u32,
        vni: u32,
        udp_port: u16,
    },
    DecapVxlan,
    /// Data beside the packet, for copies to the controllers. Later tables see it through the rule's [`Patch`].
    TunnelId(u64),
}

/// A rule for the kernel plane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// Done in this table, in order. A rule with only a verdict is the fast form.
    pub steps: Vec<Step>,
    /// One of `steps` decides where the packet goes. The action set does not count.
    pub sends: bool,
    pub next_table: Option<TableId>,
    /// Empties the action set that earlier rules wrote.
    pub clear: bool,
    /// The rule's part of the action set (OpenFlow 1.3.5 section 5.10). It is done when the pipeline ends.
    pub set: Vec<Step>,
    /// The ranks of the actions in `set`. Bit 0 is done first.
    pub set_ranks: u16,
    /// How later tables see the packet.
    pub patch: Option<Patch>,
    /// The core that continues with the packet. The rule names it in its part of the action set, which is done last, or
    /// before the last output of its list. A packet is handed over once, before anything is done to it.
    pub core: Option<CoreChoice>,
    /// `core` is named in the rule's part of the action set.
    pub core_of_set: bool,
}

/// Fields that a rule changes for later tables, and what a packet must have for these changes to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Patch {
    pub value: Key,
    pub mask: Key,
    /// [`needs`]. User space decides about packets that lack one of them.
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
    /// The parser can skip one more tag.
    pub const ROOM: u64 = 64;
}

impl Program {
    /// Does it send to a set of ports?
    pub fn broadcasts(&self) -> bool {
        self.steps.iter().chain(&self.set).any(|step| matches!(step, Step::Verdict(Verdict::Broadcast(_))))
    }
    /// The program of a rule of the core table.
    pub fn core(instructions: &Instructions) -> Program {
        let steps = core(&instructions.apply, true).map(|core| Step::Verdict(Verdict::Core(core)));
        Program { steps: steps.into_iter().collect(), ..Program::default() }
    }
    /// A program that leaves all work to user space.
    pub fn slow() -> Program {
        Program { steps: vec![Step::Verdict(Verdict::Slow)], sends: true, ..Program::default() }
    }
    /// Does user space do the work?
    pub fn is_slow(&self) -> bool {
        self.steps.contains(&Step::Verdict(Verdict::Slow))
    }
}

/// Steps that one packet may take under one rule, and then in a group's bucket. Together they are fewer than
/// `FLOW_MAX_STEPS`.
const MAX_STEPS: usize = 18;
const MAX_BUCKET_STEPS: usize = 12;
/// Nested tunnels: XDP keeps 256 bytes in front of a frame. The kernel uses 40 of them, and each tunnel takes 50.
pub(super) const MAX_TUNNELS: usize = 4;

/// Compiles instructions for the kernel plane. `fast_group`: does this group send each packet to one bucket, and can the
/// kernel plane do it?
pub fn compile(instructions: &Instructions, fast_group: &dyn Fn(u32) -> bool) -> Program {
    try_compile(instructions, fast_group).unwrap_or_else(Program::slow)
}

/// The steps of a group's bucket; `None` if only user space can do it. A bucket must not broadcast: frames in several
/// buffers cannot be broadcast, and a rule's flags say whether the rule broadcasts, but not whether a bucket of its group
/// does.
pub fn compile_bucket(actions: &[Action]) -> Option<Vec<Step>> {
    if core(actions, true).is_some() {
        // A packet is handed over before it reaches the bucket.
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
    // The copy that leaves while the packet goes on would be a second packet.
    let copies = sends && goes_on;
    (!copies && program.steps.len() + program.set.len() <= MAX_STEPS).then_some(program)
}

/// The place of an action in the action set. Group and output share one, because a group replaces the output.
fn rank(action: &Action) -> u16 {
    1 << match action {
        // Changes no packet: the core is a property of the rule.
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
            // No packet is buffered, so the copy is always the whole packet, whatever `max_len` says (OpenFlow 1.3.5 section
            // 6.1.2).
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
                // The group's steps end the list. Later actions must therefore not send; decrementing the TTL may send, if
                // the TTL is used up. Other later actions have no visible effect.
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
            // Changes no packet: the core is a property of the rule.
            Action::SetCore(_) => {}
            // The tunnel id is not in the frame, so copies stay equal.
            Action::SetField { field: Field::TunnelId, .. } => rewrite(action, &mut steps)?,
            other => {
                rewrite(other, &mut steps)?;
                rewritten_since = true;
            }
        }
    }
    let sends = sent.is_some();
    steps.extend(sent.map(Step::Verdict));
    // The verdict is carried out after the last step, so a rewrite after the output would change the packet that was sent.
    (!sends || !rewritten_since).then_some((steps, sends))
}

/// The core that a list names for its last output. `after`: the core for the work after the list, because the list sends
/// nothing or the packet goes on.
fn core(actions: &[Action], after: bool) -> Option<CoreChoice> {
    let sends = |a: &Action| matches!(a, Action::Output { .. } | Action::Group(_));
    let last = if after { Some(actions.len()) } else { actions.iter().rposition(sends) };
    actions[..last?].iter().rev().find_map(|action| match action {
        Action::SetCore(core) => Some(*core),
        _ => None,
    })
}

/// How many tunnels a list puts the frame into.
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

/// Joins two outputs of the same bytes into one broadcast. It leaves out the port that the packet came in by, as an output
/// does.
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

/// The steps of an action that changes the packet; `None` if only user space can do it.
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
        // Changes no packet, only the patch for later tables.
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

/// The changes that later tables see, if there are any. The outer `None`: they depend on the packet in a way that a patch
/// cannot express.
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
        // The tag that is written is the one that was pushed.
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

/// What a packet must have in order to contain this field; `None` if a patch cannot express it.
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
