//! The flow tables, and the memory that the kernel plane reads, kept together: [`Flows`].
//!
//! Requests are answered at once: they are either refused or published. A barrier is answered when the batch that contains
//! them is over: `seal`, a grace period, [`Flows::void`], another grace period, [`Flows::finish`]. There is one batch at a
//! time.
//!
//! | file | holds |
//! |---|---|
//! | `mod` | [`Flows`]: ports, changes of rules, groups and meters, batches |
//! | `counts` | counters of rules, tables, groups and meters |
//! | `packets` | packets that user space handles |

mod counts;
mod packets;

pub use counts::TableCount;

use super::{
    Action, CoreChoice, FlowCommand, FlowMod, FlowRemoved, GroupMod, Instructions, MeterMod, Refused,
    RulePort,
    kernel::{self, Batch, FlowMemory, Seed, TABLE_ROWS, Writer, answer::Reader},
    rule::TableId,
    table::{Change, Count, Dialect, PathPorts, RuleId, Tables},
};
use std::collections::BTreeSet;

/// Flow tables over the memory that the kernel plane reads.
pub struct Flows<M> {
    tables: Tables,
    writer: Writer<M>,
    /// The batch that waits for grace periods.
    batch: Option<Batch>,
    /// Rules that have ended and asked for a notice: row, its counters at that time, the notice.
    ended: Vec<Ended>,
    ending: Vec<Ended>,
    /// What table 0 does with packets that none of its rules matches.
    miss: Instructions,
    /// Real ports, and whether FLOOD reaches them.
    ports: Vec<(RulePort, bool)>,
    /// The table of each row that has a rule.
    table_of: Vec<TableId>,
    /// Rows of rules that have ended but may still count.
    leaving: BTreeSet<u32>,
    /// Packets counted by rules that no longer exist, by table.
    gone: [u64; TABLE_ROWS],
}

type Ended = (u32, Count, FlowRemoved);

impl<M: FlowMemory> Flows<M> {
    /// Starts without rules. Table 0 does `miss` with every packet; other tables drop packets that no rule matches (OpenFlow
    /// 1.3 section 5.4).
    pub fn new(memory: M, seed: Seed, miss: &Instructions) -> Self {
        let mut flows = Self {
            tables: Tables::new(),
            writer: Writer::new(memory, seed),
            batch: None,
            ended: Vec::new(),
            ending: Vec::new(),
            miss: Instructions::default(),
            ports: Vec::new(),
            table_of: Vec::new(),
            leaving: BTreeSet::new(),
            gone: [0; TABLE_ROWS],
        };
        flows.set_miss(miss);
        flows
    }

    /// Sets what table 0 does with a packet that none of its rules matches. It holds when this batch is over.
    pub fn set_miss(&mut self, miss: &Instructions) {
        self.writer.set_miss(0, miss);
        self.miss = miss.clone();
    }

    #[cfg(test)]
    pub(super) fn writer(&self) -> &Writer<M> {
        &self.writer
    }

    /// Reads the memory as the program does.
    pub fn reader(&self) -> Reader<'_, M> {
        self.writer.reader()
    }

    /// The tables, for queries.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// Sets the existing ports, and whether they are up.
    pub fn set_ports(&mut self, ports: impl IntoIterator<Item = (RulePort, bool)>) {
        let ports: Vec<(RulePort, bool)> = ports.into_iter().collect();
        let floods = |port| self.ports.iter().all(|&(other, floods)| other != port || floods);
        self.ports = ports.iter().map(|&(port, _)| (port, floods(port))).collect();
        let changes = self.tables.set_ports(ports);
        self.publish_all(changes);
    }

    /// Sets the ports that FLOOD leaves out (OFPPC_NO_FLOOD), for packets that user space handles.
    pub fn set_no_flood(&mut self, ports: &BTreeSet<RulePort>) {
        self.ports.iter_mut().for_each(|(port, floods)| *floods = !ports.contains(port));
    }

    /// Sets the ports to which nothing can be redirected. User space does the rules that send there.
    pub fn set_deaf(&mut self, ports: BTreeSet<RulePort>) {
        self.writer.set_deaf(&self.tables, ports);
    }

    /// Sets whether IP fragments are dropped (OFPC_FRAG_DROP). Otherwise they come to the tables, where rules see no ports
    /// of them.
    pub fn set_drop_fragments(&mut self, drop: bool) {
        if drop != self.writer.drops_fragments() {
            self.writer.set_drop_fragments(drop);
        }
    }

    /// See [`set_deaf`](Flows::set_deaf).
    pub fn deaf(&self) -> &BTreeSet<RulePort> {
        self.writer.deaf()
    }

    /// Sets the cores that rules and packets from the controller may name: see [`Tables::set_cores`].
    pub fn set_cores(&mut self, cores: Option<BTreeSet<u16>>) {
        self.tables.set_cores(cores);
    }

    /// Sets the paths that rules may send packets to: see [`Tables::set_paths`].
    pub fn set_paths(&mut self, paths: PathPorts) {
        self.tables.set_paths(paths);
    }

    /// Changes rules.
    ///
    /// # Errors
    /// If the request is refused, nothing has changed.
    pub fn apply(&mut self, request: &FlowMod, dialect: Dialect, now_ms: u64) -> Result<(), Refused> {
        // Take the counters as they are now before they end or are reset.
        if !matches!(request.command, FlowCommand::Modify { .. }) || request.flags.reset_counts {
            self.tables.meant_by(request).into_iter().for_each(|id| self.count(id, now_ms));
        }
        self.make_cores_ready(request)?;
        let changes = self.tables.apply(request, dialect, now_ms)?;
        self.publish(changes)
    }

    /// Changes rules of the core table. The table that the request names does not matter. The caller makes sure that each
    /// rule applies one [`Action::SetCore`] and nothing else.
    ///
    /// # Errors
    /// If the request is refused, nothing has changed.
    pub fn apply_core(&mut self, request: &FlowMod, dialect: Dialect, now_ms: u64) -> Result<(), Refused> {
        self.make_cores_ready(request)?;
        let changes = self.tables.apply_core(request, dialect, now_ms)?;
        self.publish(changes)
    }

    /// Makes cores ready to take packets before the first rule names them.
    fn make_cores_ready(&self, request: &FlowMod) -> Result<(), Refused> {
        if request.command.deletes() {
            return Ok(());
        }
        let memory = self.writer.memory();
        let ready = |action: &Action| match action {
            // The rule is refused later.
            Action::SetCore(CoreChoice::This(core)) if !self.tables.has_core(*core) => true,
            Action::SetCore(choice) => memory.write_core(*choice),
            _ => true,
        };
        if request.instructions.actions().all(ready) { Ok(()) } else { Err(Refused::BadArgument) }
    }

    fn publish(&mut self, changes: Vec<Change>) -> Result<(), Refused> {
        if let [Change::Added(id)] = changes[..] {
            self.writer.apply(&self.tables, &Change::Added(id)).inspect_err(|_| self.tables.withdraw(id))?;
            self.note_table(id);
            return Ok(());
        }
        self.publish_all(changes);
        Ok(())
    }

    /// Changes groups. If groups are deleted, the rules that use them end.
    ///
    /// # Errors
    /// If the request is refused, nothing has changed.
    pub fn apply_group(&mut self, request: &GroupMod, now_ms: u64) -> Result<(), Refused> {
        if let GroupMod::Delete(id) = request {
            let users = self.writer.users_of_group(*id);
            users.into_iter().for_each(|rule| self.count(rule, now_ms));
        }
        let changes = self.tables.apply_group(request, now_ms)?;
        self.publish_all(changes);
        Ok(())
    }

    /// Changes meters. If meters are deleted, the rules that use them end.
    ///
    /// # Errors
    /// If the request is refused, nothing has changed.
    pub fn apply_meter(&mut self, request: &MeterMod, now_ms: u64) -> Result<(), Refused> {
        if let MeterMod::Delete(id) = request {
            let users = self.tables.users_of_meter(*id);
            users.into_iter().for_each(|rule| self.count(rule, now_ms));
        }
        if let MeterMod::Add(meter) = request
            && self.tables.meter(meter.id).is_none()
            && !self.writer.has_room_for_meter()
        {
            return Err(Refused::TooManyMeters);
        }
        let changes = self.tables.apply_meter(request, now_ms)?;
        self.publish_all(changes);
        Ok(())
    }

    /// Checks which rules with an idle timeout had packets since the last call, and ends the rules whose time is up. Call it
    /// once a second: idle times are known with that precision.
    pub fn expire(&mut self, now_ms: u64) {
        let idle: Vec<RuleId> = self.tables.with_idle_timeout().collect();
        idle.into_iter().for_each(|id| self.count(id, now_ms));
        let due: Vec<RuleId> = self.tables.due(now_ms).collect();
        due.into_iter().for_each(|id| self.count(id, now_ms));
        let changes = self.tables.expire(now_ms);
        self.publish_all(changes);
    }

    /// Does user space do the work of this rule?
    pub fn is_slow(&self, id: RuleId) -> bool {
        self.writer.is_slow(id)
    }

    /// Are there changes that [`seal`](Flows::seal) would wait for?
    pub fn has_changes(&self) -> bool {
        self.writer.has_changes()
    }

    /// Ends the batch with all changes so far. Returns false if there is nothing to wait for. Then come a grace period,
    /// [`void`](Flows::void), another grace period, and [`finish`](Flows::finish). Changes made meanwhile belong to the next
    /// batch, which must not be sealed before this one is finished.
    pub fn seal(&mut self) -> bool {
        debug_assert!(self.batch.is_none(), "one batch at a time");
        let batch = self.writer.seal();
        self.ending.append(&mut self.ended);
        let waits = !batch.is_empty();
        self.batch = waits.then_some(batch);
        waits
    }

    /// Call this after the first grace period.
    pub fn void(&mut self) {
        if let Some(batch) = &mut self.batch {
            self.writer.void(batch);
        }
    }

    /// Call this after the second grace period: from now on packets follow the changes. Returns a notice for each rule that
    /// ended in this batch and asked for one, with its final counters.
    pub fn finish(&mut self) -> Vec<FlowRemoved> {
        let ended = std::mem::take(&mut self.ending);
        let late = |(row, before, mut notice): Ended| {
            let since = self.counted(row).since(before);
            notice.packets = notice.packets.saturating_add(since.packets);
            notice.bytes = notice.bytes.saturating_add(since.bytes);
            notice
        };
        let notices = ended.into_iter().map(late).collect();
        if let Some(batch) = self.batch.take() {
            for id in self.writer.reclaim(batch) {
                let row = kernel::row(id);
                self.leaving.remove(&row);
                self.gone[usize::from(self.table(row))] += self.counted(row).packets;
                self.tables.release(id);
            }
        }
        notices
    }

    /// The instructions of the rule in a row, or of the table's miss. `None`: packets are dropped.
    pub fn instructions(&self, row: u32) -> Option<&Instructions> {
        self.writer.said(&self.tables, row)
    }

    fn publish_all(&mut self, changes: Vec<Change>) {
        for change in changes {
            // Only a new rule can be refused.
            let _ = self.writer.apply(&self.tables, &change);
            if let Change::Removed { id, notice, .. } = change {
                let row = kernel::row(id);
                self.leaving.insert(row);
                let counted = self.counted(row);
                self.ended.extend(notice.map(|notice| (row, counted, *notice)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::{
        FlowFilter,
        kernel::{HeapFlows, row, tests::SMALL},
        text::parse_flow,
    };

    pub(super) fn flows() -> Flows<HeapFlows> {
        let mut flows = Flows::new(HeapFlows::new(SMALL, 2), Seed::default(), &Instructions::default());
        flows.set_ports((1..=4).map(|port| (RulePort(port), true)));
        flows
    }

    pub(super) fn change(
        flows: &mut Flows<HeapFlows>,
        command: FlowCommand,
        text: &str,
        now_ms: u64,
    ) -> Result<(), Refused> {
        flows.apply(&parse_flow(text, command).unwrap(), Dialect::OpenFlow10, now_ms)
    }

    /// Counts as the program does, on the second CPU.
    pub(super) fn packets(flows: &Flows<HeapFlows>, row: u32, packets: u64) {
        let counters = flows.writer.memory().counters();
        let at = flows.writer.memory().counters_of(row).nth(1).unwrap();
        counters[at].fetch_add(packets, std::sync::atomic::Ordering::AcqRel);
        counters[at + 1].fetch_add(60 * packets, std::sync::atomic::Ordering::AcqRel);
    }

    pub(super) fn settle(flows: &mut Flows<HeapFlows>) -> Vec<FlowRemoved> {
        flows.seal();
        flows.void();
        flows.finish()
    }

    const DELETE: FlowCommand = FlowCommand::Delete { strict: false };

    #[test]
    fn the_notice_of_a_rule_that_ended_has_all_that_it_counted() {
        let mut f = flows();
        change(&mut f, FlowCommand::Add, "in_port=1,send_flow_rem,actions=output:2", 0).unwrap();
        assert_eq!(settle(&mut f), []);
        let rule = row(f.tables().ids().next().unwrap());
        packets(&f, rule, 3);
        change(&mut f, DELETE, "in_port=1", 1000).unwrap();
        f.seal();
        f.void();
        // Counted by a program that looked the rule up before it was removed.
        packets(&f, rule, 1);
        let told: Vec<_> = f.finish().iter().map(|n| (n.packets, n.bytes, n.duration_sec)).collect();
        assert_eq!(told, [(4, 240, 1)]);
        // The next rule in this row begins at 0.
        change(&mut f, FlowCommand::Add, "in_port=2,actions=output:1", 2000).unwrap();
        assert_eq!(f.stats(&FlowFilter::EVERYTHING, 2000).iter().map(|s| s.packets).collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn an_idle_rule_ends_and_a_used_one_stays() {
        let mut f = flows();
        for port in [1, 2] {
            let text = format!("in_port={port},idle_timeout=3,send_flow_rem,actions=output:4");
            change(&mut f, FlowCommand::Add, &text, 0).unwrap();
        }
        settle(&mut f);
        let ids: Vec<RuleId> = f.tables().ids().collect();
        for second in 1..=6 {
            packets(&f, row(ids[1]), u64::from(second <= 4));
            f.expire(1000 * second);
            let ended: Vec<_> = settle(&mut f).iter().map(|n| n.packets).collect();
            assert_eq!(ended, if second == 3 { vec![0] } else { vec![] }, "second {second}");
        }
        f.expire(7000);
        assert_eq!(settle(&mut f).iter().map(|n| n.packets).collect::<Vec<_>>(), [4]);
    }

    #[test]
    fn a_rule_without_room_is_refused_and_leaves_nothing() {
        let mut f = flows();
        let add = |f: &mut Flows<HeapFlows>, i: u32| {
            change(f, FlowCommand::Add, &format!("ip,nw_dst=10.0.{}.{},actions=output:2", i >> 8, i & 255), 0)
        };
        let taken = (0..1000).find(|&i| add(&mut f, i).is_err()).unwrap();
        assert_eq!(add(&mut f, taken), Err(Refused::TableFull));
        assert_eq!(f.tables().ids().count(), taken as usize);
        assert!(taken > 150, "{taken} of 200 rows");
        settle(&mut f);
        change(&mut f, DELETE, "ip,nw_dst=10.0.0.1", 0).unwrap();
        settle(&mut f);
        assert_eq!(add(&mut f, taken), Ok(()));
    }
}
