//! Checks the instructions of rules, and the actions of buckets.

use super::Tables;
use crate::flow::{
    Action, CoreChoice, FcfPlace, Field, Instructions, Match, Refused, RulePort,
    field::{VLAN_PRESENT, ether_type, ip_proto},
    rule::{TABLES, TableId},
};

/// The protocol version whose rules a change follows, where versions differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// A modify that selects no rule adds one, and a modified rule gets the cookie. Adding a rule again resets its counters
    /// (section 4.6). Actions apply only to packets that have the field.
    OpenFlow10,
    /// A modify that selects no rule does nothing, cookies stay, and RESET_COUNTS resets counters (1.3.5 section 6.4).
    /// Actions must fit the match of the rule (1.3.5 section A.3.4.1, OFPBAC_MATCH_INCONSISTENT).
    OpenFlow13,
    /// As 1.3, for rules that were in force before. They may name ports, paths and cores that are missing now, and actions need
    /// not fit the match: a controller may have added the rule with 1.0.
    Kept,
}

/// The most actions of a rule (apply and write together) or of a bucket.
pub const ACTIONS: usize = 64;

/// The only queue of a port: Millrace has no queueing.
const QUEUE: u32 = 0;

/// May [`Action::SetField`] write the field? It may not write fields outside the packet (1.3.5 section A.2.5), fields that
/// decide which other fields the packet has, or fields inside a tunnel.
pub fn settable(field: Field) -> bool {
    !matches!(field, Field::InPort | Field::Metadata | Field::EthType | Field::IpProto)
        && (field < Field::InnerEthDst || field == Field::VxlanVni)
}

impl Tables {
    /// Checks the instructions of a rule with this table and match.
    pub(super) fn check(
        &self,
        table: TableId,
        matching: &Match,
        instructions: &Instructions,
        dialect: Dialect,
    ) -> Result<(), Refused> {
        let i = instructions;
        if i.goto_table.is_some_and(|next| next <= table || next >= TABLES) {
            return Err(Refused::BadGoto);
        }
        if i.meter.is_some_and(|id| !self.meters.contains(id)) {
            return Err(Refused::UnknownMeter);
        }
        if i.apply.len() + i.write.len() > ACTIONS {
            return Err(Refused::TooManyActions);
        }
        if let Some(path) = gives_to(i) {
            return demand(self.paths.contains_key(&path) || dialect == Dialect::Kept, Refused::BadPort);
        }
        if dialect == Dialect::Kept {
            return i.apply.iter().chain(&i.write).try_for_each(|action| self.check_kept(action));
        }
        // If the match is not considered, nothing is known of the packet.
        let mut packet = (dialect == Dialect::OpenFlow13).then_some(*matching);
        i.apply.iter().try_for_each(|action| self.check_action(action, &mut packet))?;
        self.check_action_set(&i.write, &mut packet)
    }

    /// Checks the actions for a packet from the controller. Only such a packet may go to [`RulePort::TABLE`]. The content of
    /// the packet is not considered.
    ///
    /// # Errors
    /// The same as for a rule with these actions.
    pub fn check_actions(&self, actions: &[Action]) -> Result<(), Refused> {
        demand(actions.len() <= ACTIONS, Refused::TooManyActions)?;
        let to_table =
            |action: &Action| matches!(*action, Action::Output { port, .. } if port == RulePort::TABLE);
        let mut others = actions.iter().filter(|action| !to_table(action));
        others.try_for_each(|action| self.check_action(action, &mut None))
    }

    /// Checks the actions of an action set, either of a bucket or written by a rule. They are done in the order of the set
    /// (1.3.5 section 5.10).
    pub(super) fn check_action_set(
        &self,
        actions: &[Action],
        packet: &mut Option<Match>,
    ) -> Result<(), Refused> {
        if actions.len() > ACTIONS {
            return Err(Refused::TooManyActions);
        }
        // Tunnels have no place in that order.
        if actions.iter().any(|a| matches!(a, Action::EncapVxlan(_) | Action::DecapVxlan)) {
            return Err(Refused::UnsupportedOrder);
        }
        let rank = |action: &Action| match action {
            Action::PopVlan => 0,
            Action::PushVlan(_) => 1,
            _ => 2,
        };
        (0..=2)
            .flat_map(|turn| actions.iter().filter(move |action| rank(action) == turn))
            .try_for_each(|action| self.check_action(action, packet))
    }

    /// Checks an action of a rule that was in force before.
    fn check_kept(&self, action: &Action) -> Result<(), Refused> {
        match *action {
            Action::Output { port, .. } if port.is_real() => Ok(()),
            Action::Enqueue { port, queue } if port.is_real() => demand(queue == QUEUE, Refused::BadQueue),
            Action::SetCore(_) => Ok(()),
            _ => self.check_action(action, &mut None),
        }
    }

    /// `packet`: the known fields of packets at this point, which the action may change. `None`: nothing is known, and the
    /// action need not fit.
    fn check_action(&self, action: &Action, packet: &mut Option<Match>) -> Result<(), Refused> {
        match *action {
            Action::Output { port, .. } => self.check_port(port),
            Action::Enqueue { port, queue } => {
                demand(port.is_real() || port == RulePort::IN_PORT, Refused::BadPort)?;
                self.check_port(port)?;
                demand(queue == QUEUE, Refused::BadQueue)
            }
            Action::SetQueue(queue) => demand(queue == QUEUE, Refused::BadQueue),
            Action::SetField { field, value, mask } => check_set_field(field, value, mask, packet),
            Action::SetVlanVid(vid) => {
                set_tagged(packet, true);
                demand(vid < VLAN_PRESENT, Refused::BadArgument)
            }
            Action::SetVlanPcp(pcp) => {
                set_tagged(packet, true);
                demand(pcp < 8, Refused::BadArgument)
            }
            Action::SetTpSrc(_) | Action::SetTpDst(_) => Ok(()),
            Action::SetCore(choice) => self.check_core(choice),
            Action::PushVlan(kind) => {
                set_tagged(packet, true);
                demand(matches!(kind, ether_type::VLAN | ether_type::SERVICE_VLAN), Refused::BadArgument)
            }
            Action::PopVlan => {
                let untagged = packet.as_ref().is_some_and(is_untagged);
                set_tagged(packet, false);
                demand(!untagged, Refused::InconsistentAction)
            }
            Action::DecTtl | Action::SetTtl(_) => {
                let kind = packet.and_then(|p| p.exact(Field::EthType));
                let ip = [ether_type::IPV4.into(), ether_type::IPV6.into()];
                demand(kind.is_none_or(|kind| ip.contains(&kind)), Refused::InconsistentAction)
            }
            Action::Group(id) => demand(self.groups.contains(id), Refused::BadGroup),
            Action::EncapVxlan(outer) => {
                *packet = packet.map(|_| {
                    let outer = Match::ANY.with(Field::EthType, ether_type::IPV4);
                    outer.with(Field::IpProto, ip_proto::UDP)
                });
                demand(outer.vni < 1 << 24, Refused::BadArgument)
            }
            Action::DecapVxlan => {
                *packet = packet.map(|p| inside(&p));
                Ok(())
            }
            Action::SetFcf { place, workload, .. } => {
                let bits = match place {
                    FcfPlace::Tos => 5,
                    FcfPlace::Vlan => 12,
                };
                demand(workload < 1 << bits, Refused::BadArgument)
            }
        }
    }

    fn check_port(&self, port: RulePort) -> Result<(), Refused> {
        let known = match port {
            RulePort::IN_PORT
            | RulePort::NORMAL
            | RulePort::FLOOD
            | RulePort::ALL
            | RulePort::CONTROLLER
            | RulePort::LOCAL => true,
            // Only packets from the controller may go to TABLE. A rule that sends to a path contains nothing else.
            _ => port.is_real() && self.ports.contains_key(&port),
        };
        demand(known, Refused::BadPort)
    }

    fn check_core(&self, choice: CoreChoice) -> Result<(), Refused> {
        let cores = self.cores.as_ref().ok_or(Refused::BadAction)?;
        match choice {
            CoreChoice::This(core) => demand(cores.contains(&core), Refused::BadArgument),
            CoreChoice::Choose | CoreChoice::ChooseFirst => Ok(()),
        }
    }
}

/// The path to which a rule sends its packets. Such a rule contains nothing else: the path does all further work on the
/// packets, and nothing could make a copy for it.
fn gives_to(instructions: &Instructions) -> Option<u16> {
    let Instructions { meter: None, write, goto_table: None, .. } = instructions else { return None };
    match instructions.apply[..] {
        [Action::Output { port, .. }] if write.is_empty() => port.path(),
        _ => None,
    }
}

/// Returns an error if the condition is false.
pub(super) fn demand(holds: bool, refused: Refused) -> Result<(), Refused> {
    if holds { Ok(()) } else { Err(refused) }
}

fn check_set_field(field: Field, value: u128, mask: u128, packet: &mut Option<Match>) -> Result<(), Refused> {
    demand(settable(field), Refused::BadSetField)?;
    demand(mask != 0 && mask & !field.all_bits() == 0 && value & !mask == 0, Refused::BadArgument)?;
    // Only PopVlan removes a tag.
    let present = u128::from(VLAN_PRESENT);
    demand(field != Field::VlanVid || value & present == mask & present, Refused::BadArgument)?;
    let Some(packet) = packet else { return Ok(()) };
    let has = packet.permits(field) && !(field == Field::VlanVid && is_untagged(packet));
    demand(has, Refused::InconsistentAction)?;
    if mask == field.all_bits() {
        packet.set(field, value, mask);
    }
    Ok(())
}

/// Is it known that the packet has no tag?
fn is_untagged(packet: &Match) -> bool {
    let present = u128::from(VLAN_PRESENT);
    packet.get(Field::VlanVid).is_some_and(|(value, mask)| mask & present != 0 && value & present == 0)
}

/// Updates the known fields after a tag was pushed (true) or popped (false: there may be another tag).
fn set_tagged(packet: &mut Option<Match>, tagged: bool) {
    if let Some(packet) = packet {
        let present = if tagged { VLAN_PRESENT.into() } else { 0 };
        packet.set(Field::VlanPcp, 0, 0);
        packet.set(Field::VlanVid, present, present);
    }
}

/// The known fields of the frame inside a VXLAN packet.
fn inside(outer: &Match) -> Match {
    let places = [
        (Field::InnerEthType, Field::EthType),
        (Field::InnerVlanVid, Field::VlanVid),
        (Field::InnerIpProto, Field::IpProto),
    ];
    let mut inner = Match::ANY;
    for (from, to) in places {
        if let Some((value, mask)) = outer.get(from) {
            inner.set(to, value, mask);
        }
    }
    inner
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            FlowMod,
            tests::{add, out, tables},
        },
        Dialect::*,
        *,
    };
    use crate::flow::{
        Meter, MeterMod, Vxlan,
        action::WHOLE_PACKET,
        rule::{Band, BandKind, MeterUnit},
        table::PathPort,
    };
    use std::net::Ipv4Addr;

    #[test]
    fn instructions_are_checked_against_what_the_rule_matches() {
        use Refused::*;
        let tcp = Match::ANY.with(Field::EthType, ether_type::IPV4).with(Field::IpProto, ip_proto::TCP);
        let arp = Match::ANY.with(Field::EthType, ether_type::ARP);
        let untagged = Match::ANY.with(Field::VlanVid, 0_u16);
        let tagged = Match::ANY.with(Field::VlanVid, VLAN_PRESENT | 7);
        let vxlan = tcp.with(Field::InnerEthType, ether_type::IPV6);
        let tp = Action::set(Field::TcpDst, 80_u16);
        let v4 = Action::set(Field::Ipv4Dst, 1_u32);
        let v6 = Action::set(Field::Ipv6Dst, 1_u32);
        let vid = Action::set(Field::VlanVid, VLAN_PRESENT | 9);
        let pcp = Action::set(Field::VlanPcp, 3_u8);
        let push = Action::PushVlan(ether_type::VLAN);
        let partly = |value, mask| Action::SetField { field: Field::Ipv4Dst, value, mask };
        let encap = |vni| {
            let [source, destination] = [Ipv4Addr::LOCALHOST; 2];
            let (eth_source, eth_destination) = ([0; 6], [0; 6]);
            Action::EncapVxlan(Vxlan {
                vni,
                source,
                destination,
                eth_source,
                eth_destination,
                udp_port: 4789,
            })
        };
        let fcf = |place, workload| Action::SetFcf { place, workload, priority: true };
        let to_port = |port| Action::Output { port, max_len: WHOLE_PACKET };
        let queue = |port, queue| Action::Enqueue { port: RulePort(port), queue };
        let (good, odd) = (Ok(()), Err(InconsistentAction));
        // The match, the actions to apply, the result in OpenFlow 1.3, the result in 1.0.
        for (matching, actions, v13, v10) in [
            (tcp, vec![tp.clone(), v4.clone(), out(3)], good, good),
            (Match::ANY, vec![v4.clone()], odd, good),
            (arp, vec![v4.clone()], odd, good),
            (tcp, vec![v6.clone()], odd, good),
            (Match::ANY, vec![vid.clone()], good, good),
            (untagged, vec![vid.clone()], odd, good),
            (untagged, vec![push.clone(), vid.clone(), pcp.clone()], good, good),
            (Match::ANY, vec![pcp.clone()], odd, good),
            (tagged, vec![pcp.clone()], good, good),
            (tagged, vec![Action::PopVlan, pcp.clone()], odd, good),
            (untagged, vec![Action::PopVlan], odd, good),
            (untagged, vec![push.clone(), Action::PopVlan, Action::PopVlan], good, good),
            (Match::ANY, vec![Action::PopVlan, Action::DecTtl], good, good),
            (arp, vec![Action::DecTtl], odd, good),
            (arp, vec![Action::SetTtl(9)], odd, good),
            (tcp, vec![encap(5), tp.clone()], odd, good),
            (tcp, vec![encap(5), Action::set(Field::UdpDst, 1_u16)], good, good),
            (vxlan, vec![Action::DecapVxlan, v6.clone()], good, good),
            (vxlan, vec![Action::DecapVxlan, v4.clone()], odd, good),
            (tcp, vec![partly(0x0a, 0xff)], good, good),
            (tcp, vec![partly(0x10a, 0xff)], Err(BadArgument), Err(BadArgument)),
            (tcp, vec![partly(0, 0)], Err(BadArgument), Err(BadArgument)),
            (tcp, vec![partly(0, 1 << 32)], Err(BadArgument), Err(BadArgument)),
            (tagged, vec![Action::set(Field::VlanVid, 9_u16)], Err(BadArgument), Err(BadArgument)),
            (tcp, vec![Action::set(Field::InPort, 1_u16)], Err(BadSetField), Err(BadSetField)),
            (tcp, vec![Action::set(Field::Metadata, 1_u16)], Err(BadSetField), Err(BadSetField)),
            (tcp, vec![Action::set(Field::InnerEthDst, 1_u16)], Err(BadSetField), Err(BadSetField)),
            (tcp, vec![Action::PushVlan(0x0800)], Err(BadArgument), Err(BadArgument)),
            (tcp, vec![Action::SetVlanVid(4095), Action::SetVlanPcp(7)], good, good),
            (tcp, vec![Action::SetVlanVid(4096)], Err(BadArgument), Err(BadArgument)),
            (tcp, vec![Action::SetVlanPcp(8)], Err(BadArgument), Err(BadArgument)),
            (tcp, vec![encap(1 << 24)], Err(BadArgument), Err(BadArgument)),
            (tcp, vec![fcf(FcfPlace::Tos, 31), fcf(FcfPlace::Vlan, 4095)], good, good),
            (tcp, vec![fcf(FcfPlace::Tos, 32)], Err(BadArgument), Err(BadArgument)),
            (tcp, vec![fcf(FcfPlace::Vlan, 4096)], Err(BadArgument), Err(BadArgument)),
            (tcp, vec![out(4)], Err(BadPort), Err(BadPort)),
            (tcp, vec![out(0)], Err(BadPort), Err(BadPort)),
            (tcp, vec![to_port(RulePort::TABLE)], Err(BadPort), Err(BadPort)),
            (tcp, vec![to_port(RulePort::NONE)], Err(BadPort), Err(BadPort)),
            (
                tcp,
                vec![to_port(RulePort::IN_PORT), to_port(RulePort::NORMAL), to_port(RulePort::FLOOD)],
                good,
                good,
            ),
            (
                tcp,
                vec![to_port(RulePort::ALL), to_port(RulePort::CONTROLLER), to_port(RulePort::LOCAL)],
                good,
                good,
            ),
            (tcp, vec![queue(1, 0), queue(0xfff8, 0), Action::SetQueue(0)], good, good),
            (tcp, vec![queue(4, 0)], Err(BadPort), Err(BadPort)),
            (tcp, vec![queue(0xfffd, 0)], Err(BadPort), Err(BadPort)),
            (tcp, vec![queue(1, 1)], Err(BadQueue), Err(BadQueue)),
            (tcp, vec![Action::SetQueue(1)], Err(BadQueue), Err(BadQueue)),
            (tcp, vec![Action::Group(1)], Err(BadGroup), Err(BadGroup)),
            (tcp, vec![out(1); ACTIONS], good, good),
            (tcp, vec![out(1); ACTIONS + 1], Err(TooManyActions), Err(TooManyActions)),
        ] {
            for (dialect, expected) in [(OpenFlow13, v13), (OpenFlow10, v10)] {
                let found = tables().apply(&add(1, matching, actions.clone()), dialect, 0).map(|_| ());
                assert_eq!(found, expected, "{dialect:?} {matching:?} {actions:?}");
            }
        }
        for (actions, expected) in [
            (vec![to_port(RulePort::TABLE), tp.clone(), v6.clone(), out(3)], good),
            (vec![to_port(RulePort::TABLE), out(4)], Err(BadPort)),
            (vec![queue(RulePort::TABLE.0, 0)], Err(BadPort)),
            (vec![to_port(RulePort::NONE)], Err(BadPort)),
            (vec![Action::Group(1)], Err(BadGroup)),
            (vec![Action::set(Field::Metadata, 1_u16)], Err(BadSetField)),
            (vec![Action::SetVlanPcp(8)], Err(BadArgument)),
            (vec![out(1); ACTIONS], good),
            (vec![out(1); ACTIONS + 1], Err(TooManyActions)),
        ] {
            assert_eq!(tables().check_actions(&actions), expected, "{actions:?}");
        }
        let all = Instructions { goto_table: Some(3), ..Instructions::default() };
        for (table, instructions, expected) in [
            (2, all.clone(), good),
            (3, all.clone(), Err(BadGoto)),
            (4, all.clone(), Err(BadGoto)),
            (0, Instructions { goto_table: Some(TABLES), ..all.clone() }, Err(BadGoto)),
            (0, Instructions { meter: Some(1), ..all.clone() }, Err(UnknownMeter)),
            (0, Instructions { write: vec![pcp.clone(), push.clone()], ..all.clone() }, good),
            (0, Instructions { write: vec![pcp.clone()], ..all.clone() }, odd),
            (0, Instructions { write: vec![pcp.clone()], apply: vec![push], ..all.clone() }, good),
            (0, Instructions { write: vec![encap(1)], ..all.clone() }, Err(UnsupportedOrder)),
            (0, Instructions { write: vec![Action::DecapVxlan], ..all.clone() }, Err(UnsupportedOrder)),
            (
                0,
                Instructions { write: vec![out(1); ACTIONS], apply: vec![out(1)], ..all },
                Err(TooManyActions),
            ),
        ] {
            let request = FlowMod { table: Some(table), instructions, ..add(1, Match::ANY, []) };
            assert_eq!(tables().apply(&request, OpenFlow13, 0).map(|_| ()), expected, "{request:?}");
        }
    }

    /// This holds in both versions. The path must be the last thing that the rules do.
    #[test]
    fn a_rule_that_sends_to_a_path_does_nothing_else() {
        let path = |n| Action::output(RulePort::of_path(n).unwrap());
        let alone = Instructions::apply([path(1)]);
        let clear = Instructions { clear: true, ..alone.clone() };
        let later = Instructions { goto_table: Some(1), ..alone.clone() };
        let metered = Instructions { meter: Some(1), ..alone.clone() };
        let written = Instructions { write: vec![path(1)], ..Instructions::default() };
        let both = Instructions { write: vec![out(1)], ..alone.clone() };
        let (good, bad) = (Ok(()), Err(Refused::BadPort));
        for (instructions, expected) in [
            (alone, good),
            (clear, good),
            (Instructions::apply([path(0)]), good),
            (Instructions::apply([path(2)]), bad),
            (Instructions::apply([path(1), out(1)]), bad),
            (Instructions::apply([Action::DecTtl, path(1)]), bad),
            (later, bad),
            (metered, bad),
            (written, bad),
            (both, bad),
        ] {
            for dialect in [OpenFlow10, OpenFlow13] {
                let mut tables = tables();
                let meter = Meter {
                    id: 1,
                    unit: MeterUnit::Pps,
                    burst: false,
                    stats: false,
                    bands: vec![Band { rate: 1, burst: 1, kind: BandKind::Drop }],
                };
                tables.apply_meter(&MeterMod::Add(meter), 0).unwrap();
                let request = FlowMod { instructions: instructions.clone(), ..add(1, Match::ANY, []) };
                assert_eq!(tables.apply(&request, dialect, 0).map(|_| ()), bad, "no paths yet");
                let paths = ["a", "b"].map(|name| PathPort { name: name.into(), drops: false });
                tables.set_paths((0..).zip(paths).collect());
                assert_eq!(
                    tables.apply(&request, dialect, 0).map(|_| ()),
                    expected,
                    "{dialect:?} {request:?}"
                );
            }
        }
        let mut tables = tables();
        tables.set_paths([(0, PathPort { name: "a".into(), drops: true })].into());
        assert_eq!(tables.check_actions(&[path(0)]), bad, "only the kernel plane can send to a worker");
        assert_eq!((RulePort::of_path(63), RulePort::of_path(64)), (Some(RulePort(0xfe3f)), None));
        assert_eq!(
            [0xfdff, 0xfe00, 0xfe3f, 0xfe40].map(|n| RulePort(n).path()),
            [None, Some(0), Some(63), None]
        );
    }

    #[test]
    fn a_core_is_named_only_where_packets_can_be_handed_to_it() {
        use Refused::*;
        let [this, other] = [3, 4].map(|core| Action::SetCore(CoreChoice::This(core)));
        let choose = Action::SetCore(CoreChoice::Choose);
        let some: &[u16] = &[0, 3];
        // The cores that exist; the result for one of them, for another one, and for "choose".
        for (cores, expected) in [
            (None, [Err(BadAction); 3]),
            (Some(&[][..]), [Err(BadArgument), Err(BadArgument), Ok(())]),
            (Some(some), [Ok(()), Err(BadArgument), Ok(())]),
        ] {
            let mut t = tables();
            t.set_cores(cores.map(|cores| cores.iter().copied().collect()));
            for (action, expected) in [&this, &other, &choose].into_iter().zip(expected) {
                let actions = [action.clone()];
                assert_eq!(t.check_actions(&actions), expected, "{cores:?} {action:?}");
                assert_eq!(t.check_action_set(&actions, &mut None), expected);
                for dialect in [OpenFlow10, OpenFlow13] {
                    let found = t.apply(&add(1, Match::ANY, actions.clone()), dialect, 0);
                    assert_eq!(found.map(|_| ()), expected, "{cores:?} {action:?}");
                }
            }
        }
    }
}
