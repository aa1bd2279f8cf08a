//! A packet's way through tables and groups, as OpenFlow 1.3.5 sections 5.1 to 5.12 define it: correct, but slow.
//!
//! This is the reference for the kernel plane, and user space runs it for the packets that the kernel plane hands over.
//! OpenFlow 1.0 is the same with rules that only apply actions. All work is bounded: tables lead only to later tables,
//! groups run a limited number of buckets, and a packet becomes at most [`MOST_OUTPUTS`] others.

use super::{
    Action, CoreChoice, Field, Instructions, Key, Match, RulePort, TableId, Tables,
    execute::{Context, Ended, MOST_SENT, Packet, Sent, action_set, execute},
    kernel,
    rule::{CORE_TABLE, TABLES},
};
use std::cell::RefCell;

/// The most outputs of one packet. Further ones are not sent.
pub const MOST_OUTPUTS: usize = MOST_SENT;
/// The cookie of outputs that no rule made (1.3.5 section A.4.1).
pub const NO_COOKIE: u64 = u64::MAX;

/// Why a packet goes to the controllers (OFPR).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketInReason {
    NoMatch,
    Action,
    InvalidTtl,
}

/// A packet that leaves, as it was at that moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// An existing real port, the port of a path, or [`RulePort::CONTROLLER`], [`RulePort::NORMAL`], [`RulePort::LOCAL`].
    pub port: RulePort,
    pub frame: Vec<u8>,
    pub queue: Option<u32>,
    pub core: Option<CoreChoice>,
    pub reason: PacketInReason,
    /// A rule sent it. This includes table-miss rules, which OpenFlow 1.0 does not know.
    pub of_rule: bool,
    /// Table and cookie of the rule that contains the action, also if it was done with the action set. [`NO_COOKIE`]: no
    /// rule.
    pub table: TableId,
    pub cookie: u64,
    /// The port that the packet came in by.
    pub in_port: RulePort,
    pub metadata: u64,
    pub tunnel_id: u64,
}

/// What became of a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// In the order in which they leave.
    pub outputs: Vec<Output>,
    /// Rows ([`kernel::row`], [`kernel::miss`]) of the rules that the packet matched, in order. The caller counts them.
    pub rows: Vec<u32>,
    /// Each group, with the index of the bucket that the packet took there.
    pub buckets: Vec<(u32, usize)>,
}

/// The tables and ports that packets go through.
pub struct Pipeline<'a> {
    pub tables: &'a Tables,
    /// What table 0 does with a packet that none of its rules matches. Other tables drop it (1.3.5 section 5.4).
    pub miss: &'a Instructions,
    /// The real ports, and whether FLOOD reaches them (not OFPPC_NO_FLOOD).
    pub ports: &'a [(RulePort, bool)],
    pub vxlan_port: u16,
    /// Does a packet of so many bytes pass this meter?
    pub meter: &'a mut dyn FnMut(u32, usize) -> bool,
}

/// The rule that an output comes from.
#[derive(Clone, Copy)]
struct Origin {
    table: TableId,
    cookie: u64,
    is_miss: bool,
    of_rule: bool,
}

impl Origin {
    /// The controller itself.
    const PACKET_OUT: Origin = Origin { table: 0, cookie: NO_COOKIE, is_miss: false, of_rule: false };
}

impl Pipeline<'_> {
    /// Runs a packet that came in by a port.
    pub fn run(&mut self, mut packet: Packet) -> Done {
        let mut done = Done::default();
        self.through_core_table(&mut packet, &mut done);
        self.through_tables(packet, &mut done);
        done
    }

    /// Runs a packet that the controller sends (1.3.5 section A.3.7). [`RulePort::TABLE`] sends it through the tables, whose
    /// rules cannot do so again. The caller has checked the actions ([`Tables::check_actions`]).
    pub fn packet_out(&mut self, mut packet: Packet, actions: &[Action]) -> Done {
        let mut done = Done::default();
        let (sent, _) = self.act(&mut packet, actions, &mut done);
        for sent in sent {
            if sent.port == RulePort::TABLE {
                let Packet { frame, in_port, tunnel_id, .. } = sent.packet;
                self.through_tables(Packet { tunnel_id, ..Packet::new(frame, in_port) }, &mut done);
            } else {
                self.send(&sent, Origin::PACKET_OUT, 0, &mut done);
            }
        }
        done
    }

    /// Finds the core that continues with the packet, by the fields that it came with.
    fn through_core_table(&self, packet: &mut Packet, done: &mut Done) {
        if self.tables.core_rules() == 0 {
            return;
        }
        let key = Key::of(&packet.frame, packet.in_port, self.vxlan_port);
        let found = self.tables.lookup(CORE_TABLE, &key).and_then(|id| Some((id, self.tables.rule(id)?)));
        if let Some((_, rule)) = &found {
            let named = rule.instructions.apply.iter().find_map(|action| match action {
                Action::SetCore(core) => Some(*core),
                _ => None,
            });
            packet.core = named;
        }
        done.rows.push(found.map_or(kernel::miss(CORE_TABLE), |(id, _)| kernel::row(id)));
    }

    fn through_tables(&mut self, mut packet: Packet, done: &mut Done) {
        let (drop, bytes) = (Instructions::default(), packet.frame.len());
        let (mut table, mut metadata) = (0, 0_u64);
        let mut set: Vec<(Action, Origin)> = Vec::new();
        loop {
            let mut key = Key::of(&packet.frame, packet.in_port, self.vxlan_port);
            key.set(Field::Metadata, metadata.into());
            key.set(Field::TunnelId, packet.tunnel_id.into());
            let found = self.tables.lookup(table, &key).and_then(|id| Some((id, self.tables.rule(id)?)));
            let (row, does, origin) = match found {
                Some((id, rule)) => {
                    let is_miss = rule.priority == 0 && rule.matching == Match::ANY;
                    (
                        kernel::row(id),
                        rule.instructions,
                        Origin { table, cookie: rule.cookie, is_miss, of_rule: true },
                    )
                }
                None => {
                    let does = if table == 0 { self.miss } else { &drop };
                    let origin = Origin { table, cookie: NO_COOKIE, is_miss: true, of_rule: false };
                    (kernel::miss(table), does, origin)
                }
            };
            done.rows.push(row);
            // Instructions in the order of 1.3.5 section 5.9.
            if does.meter.is_some_and(|id| !(self.meter)(id, bytes)) {
                return;
            }
            let (sent, ended) = self.act(&mut packet, &does.apply, done);
            sent.iter().for_each(|sent| self.send(sent, origin, metadata, done));
            if ended.is_err() {
                return;
            }
            if does.clear {
                set.clear();
            }
            set.extend(does.write.iter().map(|action| (action.clone(), origin)));
            if let Some((value, mask)) = does.metadata {
                metadata = metadata & !mask | value & mask;
            }
            match does.goto_table.filter(|&next| next > table && next < TABLES) {
                Some(next) => table = next,
                None => return self.do_set(packet, &set, metadata, done),
            }
        }
    }

    /// Does the action set when the tables are finished with the packet (1.3.5 section 5.10).
    fn do_set(&mut self, mut packet: Packet, written: &[(Action, Origin)], metadata: u64, done: &mut Done) {
        let actions: Vec<Action> = written.iter().map(|(action, _)| action.clone()).collect();
        let set = action_set(&actions);
        let (sent, ended) = self.act(&mut packet, &set, done);
        // The action that sends the packet: the TTL action, if it ended the set, otherwise the last one, a group or an
        // output.
        let sends = if ended == Err(Ended::InvalidTtl) { Some(&Action::DecTtl) } else { set.last() };
        let of = |sends| written.iter().rev().find(|(action, _)| Some(action) == sends);
        if let Some(&(_, origin)) = of(sends) {
            sent.iter().for_each(|sent| self.send(sent, origin, metadata, done));
        }
    }

    /// Does actions. The caller sends the packets that these output.
    fn act(
        &self,
        packet: &mut Packet,
        actions: &[Action],
        done: &mut Done,
    ) -> (Vec<Sent>, Result<(), Ended>) {
        let taken = RefCell::new(Vec::new());
        let buckets = |id: u32, packet: &Packet| -> Vec<Vec<Action>> {
            let Some(group) = self.tables.group(id) else { return Vec::new() };
            let indices = self.tables.buckets_taken(id, &packet.frame);
            taken.borrow_mut().extend(indices.iter().map(|&i| (id, i)));
            indices.iter().filter_map(|&i| Some(group.buckets.get(i)?.actions.clone())).collect()
        };
        let context = Context { vxlan_port: self.vxlan_port, buckets: &buckets };
        let mut sent = Vec::new();
        let ended = execute(packet, actions, &context, &mut sent);
        done.buckets.append(&mut taken.into_inner());
        (sent, ended)
    }

    /// Sends to each port that is meant (1.3.5 section 4.5). Only IN_PORT sends back to the port that the packet came from.
    fn send(&self, sent: &Sent, origin: Origin, metadata: u64, done: &mut Done) {
        let Packet { ref frame, in_port, tunnel_id, queue, core } = sent.packet;
        let is_there =
            |port: RulePort| port == RulePort::LOCAL || self.ports.iter().any(|&(other, _)| other == port);
        let others = |floods: bool| {
            let meant = self.ports.iter().filter(|&&(port, does)| port != in_port && (does || !floods));
            meant.map(|&(port, _)| port).collect()
        };
        let ports: Vec<RulePort> = match sent.port {
            RulePort::ALL => others(false),
            RulePort::FLOOD => others(true),
            RulePort::IN_PORT => [in_port].into_iter().filter(|&port| is_there(port)).collect(),
            RulePort::CONTROLLER | RulePort::NORMAL => vec![sent.port],
            port if port.path().is_some() => vec![port],
            port => [port].into_iter().filter(|&port| is_there(port)).collect(),
        };
        let reason = match (sent.invalid_ttl, origin.is_miss) {
            (true, _) => PacketInReason::InvalidTtl,
            (false, true) => PacketInReason::NoMatch,
            (false, false) => PacketInReason::Action,
        };
        let room = MOST_OUTPUTS - done.outputs.len().min(MOST_OUTPUTS);
        done.outputs.extend(ports.into_iter().take(room).map(|port| Output {
            port,
            frame: frame.clone(),
            queue,
            core,
            reason,
            of_rule: origin.of_rule,
            table: origin.table,
            cookie: origin.cookie,
            in_port,
            metadata,
            tunnel_id,
        }));
    }
}

#[cfg(test)]
mod tests;
