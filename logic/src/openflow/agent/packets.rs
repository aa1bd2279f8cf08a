//! Packet-in and packet-out, and the packets that the kernel plane leaves to user space.

use super::{Agent, Connection, ConnectionId, Effect, session::Version};
use crate::{
    flow::{
        Field, Match, RulePort, TableId,
        execute::Packet,
        kernel::{self, FlowMemory, Notice, NoticeReason},
        pipeline::{NO_COOKIE, Output},
        rule::TABLES,
    },
    openflow::{
        BadMessage, Message,
        message::{PacketIn, PacketInReason, PacketOut},
        wire::LONGEST,
    },
};

/// The most bytes in a packet-in beside the packet. The room for the packet is smaller by this.
const AROUND: usize = 72;
/// The length of an Ethernet header. A shorter frame is invalid.
const SHORTEST: usize = 14;

const NS_PER_S: u64 = 1_000_000_000;
const NS_PER_MS: u64 = 1_000_000;

/// Lets a rate of events pass, with bursts of up to a quarter second's worth.
pub(super) struct TokenBucket {
    per_s: u64,
    /// In billionths of an event.
    tokens: u64,
    at_ns: u64,
}

impl TokenBucket {
    pub fn new(per_s: u32) -> Self {
        let mut bucket = Self { per_s: per_s.into(), tokens: 0, at_ns: 0 };
        bucket.tokens = bucket.full();
        bucket
    }

    fn full(&self) -> u64 {
        self.per_s.div_ceil(4) * NS_PER_S
    }

    /// May an event pass now?
    pub fn take(&mut self, now_ns: u64) -> bool {
        let new = now_ns.saturating_sub(self.at_ns).saturating_mul(self.per_s);
        self.at_ns = self.at_ns.max(now_ns);
        self.tokens = self.tokens.saturating_add(new).min(self.full());
        let passes = self.tokens >= NS_PER_S;
        if passes {
            self.tokens -= NS_PER_S;
        }
        passes
    }
}

/// Packets for controllers that no controller got. Packets of a port with NO_PACKET_IN are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketInsLost {
    /// No connected controller wanted them.
    pub no_controller: u64,
    /// There were more than [`Settings::packet_in_pps`](super::Settings::packet_in_pps) allows.
    pub over_rate: u64,
    /// The connected controllers did not read fast enough.
    pub not_read: u64,
}

/// A packet for controllers.
struct ForControllers<'a> {
    /// The first bytes of the packet, as many as are sent.
    frame: &'a [u8],
    /// Length of the whole packet.
    bytes: usize,
    reason: PacketInReason,
    of_rule: bool,
    table: TableId,
    cookie: u64,
    in_port: RulePort,
    metadata: u64,
    tunnel_id: u64,
}

impl ForControllers<'_> {
    /// The reason in terms of a version. For 1.0, a table-miss rule is an ordinary rule.
    fn reason(&self, version: Option<Version>) -> PacketInReason {
        match self.reason {
            PacketInReason::NoMatch if self.of_rule && version == Some(Version::OpenFlow10) => {
                PacketInReason::Action
            }
            reason => reason,
        }
    }

    /// The packet is never kept to be sent later: there are no buffers.
    fn message(&self, version: Option<Version>) -> Message {
        let mut matching = Match::ANY.with(Field::InPort, self.in_port.0);
        if self.metadata != 0 {
            matching = matching.with(Field::Metadata, self.metadata);
        }
        if self.tunnel_id != 0 {
            matching = matching.with(Field::TunnelId, self.tunnel_id);
        }
        let shown = self.frame.len().min(LONGEST - AROUND);
        Message::PacketIn(PacketIn {
            buffer: None,
            total_len: u16::try_from(self.bytes).unwrap_or(u16::MAX),
            reason: self.reason(version),
            table: self.table,
            cookie: self.cookie,
            matching,
            data: self.frame[..shown].to_vec(),
        })
    }
}

impl<M: FlowMemory> Agent<M> {
    /// Handles a packet from the kernel plane. `frame` has its first bytes, or all of them if user space has to continue
    /// with it.
    pub fn notice(&mut self, notice: Notice, frame: &[u8], now_ns: u64) {
        let flags = self.ports.flags(notice.port);
        if flags.no_recv {
            return;
        }
        let bytes = notice.frame_bytes as usize;
        if notice.reason == NoticeReason::Slow {
            if frame.len() < bytes {
                self.packets_cut += 1;
                return;
            }
            let done = self.flows.run(Packet::new(frame, notice.port), now_ns);
            return self.send_out(done.outputs, now_ns);
        }
        let (table, cookie, is_miss, of_rule) = self.whose(notice.rule);
        let reason = match notice.reason {
            NoticeReason::Ttl => PacketInReason::InvalidTtl,
            _ if is_miss => PacketInReason::NoMatch,
            _ => PacketInReason::Action,
        };
        let Notice { port: in_port, metadata, tunnel_id, .. } = notice;
        let packet =
            ForControllers { frame, bytes, reason, of_rule, table, cookie, in_port, metadata, tunnel_id };
        self.packet_in(&packet, now_ns);
    }

    /// The table and cookie of a row; whether it handles packets without a match (a table's miss or a table-miss rule, 1.3.5
    /// section 5.4); and whether it is a rule.
    fn whose(&self, row: u32) -> (TableId, u64, bool, bool) {
        match kernel::rule_of(row).and_then(|id| self.flows.tables().rule(id)) {
            Some(rule) => {
                let is_miss = rule.priority == 0 && rule.matching == Match::ANY;
                (rule.table, rule.cookie, is_miss, true)
            }
            None => {
                let misses = 1..=u32::from(TABLES);
                let table = if misses.contains(&row) { (row - 1) as TableId } else { 0 };
                (table, NO_COOKIE, misses.contains(&row), false)
            }
        }
    }

    /// Handles a packet that a controller sends.
    pub(super) fn packet_out(&mut self, packet: PacketOut, now_ms: u64) -> Result<(), BadMessage> {
        let PacketOut { buffer, in_port, actions, data } = packet;
        if buffer.is_some() {
            return Err(BadMessage::BufferUnknown);
        }
        let of_nowhere = [RulePort::CONTROLLER, RulePort::LOCAL, RulePort::NONE];
        if !of_nowhere.contains(&in_port) && !self.ports.has(in_port) {
            return Err(BadMessage::Port);
        }
        self.flows.tables().check_actions(&actions)?;
        if data.len() < SHORTEST {
            return Err(BadMessage::Length);
        }
        let now_ns = now_ms.saturating_mul(NS_PER_MS);
        let done = self.flows.packet_out(Packet::new(data, in_port), &actions, now_ns);
        self.send_out(done.outputs, now_ns);
        Ok(())
    }

    fn send_out(&mut self, outputs: Vec<Output>, now_ns: u64) {
        for output in outputs {
            let Output { port, queue, frame, in_port, .. } = output;
            match port {
                RulePort::CONTROLLER => {
                    let packet = ForControllers {
                        frame: &frame,
                        bytes: frame.len(),
                        reason: output.reason,
                        of_rule: output.of_rule,
                        table: output.table,
                        cookie: output.cookie,
                        in_port,
                        metadata: output.metadata,
                        tunnel_id: output.tunnel_id,
                    };
                    self.packet_in(&packet, now_ns);
                }
                RulePort::NORMAL => self.effects.push(Effect::Normal { in_port, frame }),
                RulePort::LOCAL => self.effects.push(Effect::Local { in_port, frame }),
                // No worker can take packets of user space, and they cannot go back to the kernel plane.
                port if port.path().is_some() => {
                    let path = port.path().and_then(|path| self.flows.tables().paths().get(&path));
                    if path.is_some_and(|path| !path.drops) {
                        self.effects.push(Effect::Normal { in_port, frame });
                    }
                }
                port if self.ports.flags(port).no_fwd => {}
                port => self.effects.push(Effect::Transmit { port, queue, frame }),
            }
        }
    }

    /// Sends a packet-in to every connection that wants it and has room.
    fn packet_in(&mut self, packet: &ForControllers<'_>, now_ns: u64) {
        if self.ports.flags(packet.in_port).no_packet_in {
            return;
        }
        let wanted = |c: &Connection| c.wants(c.wants.packet_in, packet.reason(c.version) as u32);
        let wants = self.connections.iter().filter(|(_, c)| wanted(c));
        let ids: Vec<ConnectionId> = wants.map(|(&id, _)| id).collect();
        if ids.is_empty() {
            self.packet_ins_lost.no_controller += 1;
            return;
        }
        if !self.packet_ins.take(now_ns) {
            self.packet_ins_lost.over_rate += 1;
            return;
        }
        let mut taken = false;
        for id in ids {
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            if connection.has_room() {
                taken = true;
                connection.packet_ins += 1;
                let message = packet.message(connection.version);
                self.tell(id, 0, &message);
            } else {
                connection.packet_ins_dropped += 1;
            }
        }
        self.packet_ins_lost.not_read += u64::from(!taken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_passes_with_short_bursts() {
        let mut bucket = TokenBucket::new(100);
        let mut passed =
            |at_ms: u64, offered| (0..offered).filter(|_| bucket.take(at_ms * NS_PER_MS)).count();
        assert_eq!(passed(5_000, 100), 25);
        assert_eq!(passed(5_009, 100), 0);
        assert_eq!(passed(5_010, 100), 1);
        assert_eq!(passed(5_100, 100), 9);
        assert_eq!(passed(5_000, 100), 0, "time does not run backwards");
        assert_eq!(passed(u64::MAX / NS_PER_MS, 100), 25);
        let mut none = TokenBucket::new(0);
        assert!(!none.take(u64::MAX));
    }
}
