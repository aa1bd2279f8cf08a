//! The flow tables and what packets see of them, kept together: [`Flows`].
//!
//! Requests are answered at once: they are refused, or published. A barrier is answered when the batch that they are in is
//! over: `seal`, a grace period, [`Flows::void`], another one, [`Flows::finish`]. One batch at a time.
//!
//! | file | holds |
//! |---|---|
//! | `mod` | [`Flows`]: ports, changes of rules, groups and meters, batches |
//! | `counts` | what all of them have counted |
//! | `packets` | packets that user space does |

mod counts;
mod packets;

pub use counts::TableCount;

use super::{
    Action, CoreChoice, FlowCommand, FlowMod, FlowRemoved, GroupMod, Instructions, MeterMod, Refused,
    RulePort,
    kernel::{self, Batch, FlowMemory, Seed, TABLE_ROWS, Writer, answer::Reader},
    rule::TableId,
    table::{Change, Count, Dialect, PathPort, RuleId, Tables},
};
use std::collections::BTreeSet;

/// Flow tables over the memory that the kernel plane reads.
pub struct Flows<M> {
    tables: Tables,
    writer: Writer<M>,
    /// What is waited for.
    batch: Option<Batch>,
    /// Rules that are gone and asked to be told of: row, what it had counted then, the notice.
    ended: Vec<Ended>,
    ending: Vec<Ended>,
    /// What table 0 does with what no rule of it matches.
    miss: Instructions,
    /// Real ports, and whether FLOOD reaches them.
    ports: Vec<(RulePort, bool)>,
    /// The table of each row that has a rule.
    table_of: Vec<TableId>,
    /// Rows of rules that are gone and may still count.
    leaving: BTreeSet<u32>,
    /// Packets that rules have counted that are gone, by table.
    gone: [u64; TABLE_ROWS],
}

type Ended = (u32, Count, FlowRemoved);

impl<M: FlowMemory> Flows<M> {
    /// No rules: table 0 does this with every packet, other tables drop what they do not match (OpenFlow 1.3 section 5.4).
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

    /// What table 0 does with a packet that no rule of it matches, from the end of this batch on.
    pub fn set_miss(&mut self, miss: &Instructions) {
        self.writer.set_miss(0, miss);
        self.miss = miss.clone();
    }

    #[cfg(test)]
    pub(super) fn writer(&self) -> &Writer<M> {
        &self.writer
    }

    /// What the program finds.
    pub fn reader(&self) -> Reader<'_, M> {
        self.writer.reader()
    }

    /// The tables, to be asked.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// The ports there are, and whether they are up.
    pub fn set_ports(&mut self, ports: impl IntoIterator<Item = (RulePort, bool)>) {
        let ports: Vec<(RulePort, bool)> = ports.into_iter().collect();
        let floods = |port| self.ports.iter().all(|&(other, floods)| other != port || floods);
        self.ports = ports.iter().map(|&(port, _)| (port, floods(port))).collect();
        let changes = self.tables.set_ports(ports);
        self.publish_all(changes);
    }

    /// The ports that FLOOD leaves out (OFPPC_NO_FLOOD), for packets that user space handles.
    pub fn set_no_flood(&mut self, ports: &BTreeSet<RulePort>) {
        self.ports.iter_mut().for_each(|(port, floods)| *floods = !ports.contains(port));
    }

    /// The ports that nothing can be redirected to: user space does what sends there.
    pub fn set_deaf(&mut self, ports: BTreeSet<RulePort>) {
        self.writer.set_deaf(&self.tables, ports);
    }

    /// Are IP fragments dropped (OFPC_FRAG_DROP), or do they come to the tables, where rules see no ports of them?
    pub fn set_drop_fragments(&mut self, drop: bool) {
        if drop != self.writer.drops_fragments() {
            self.writer.set_drop_fragments(drop);
        }
    }

    /// See [`set_deaf`](Flows::set_deaf).
    pub fn deaf(&self) -> &BTreeSet<RulePort> {
        self.writer.deaf()
    }

    /// The cores that rules and packets from the controller may name: see [`Tables::set_cores`].
    pub fn set_cores(&mut self, cores: Option<BTreeSet<u16>>) {
        self.tables.set_cores(cores);
    }

    /// The paths that rules may give packets to: see [`Tables::set_paths`].
    pub fn set_paths(&mut self, paths: Vec<PathPort>) {
        self.tables.set_paths(paths);
    }

    /// Changes rules.
    ///
    /// # Errors
    /// Refused: nothing has changed.
    pub fn apply(&mut self, request: &FlowMod, dialect: Dialect, now_ms: u64) -> Result<(), Refused> {
        // Counters that end or begin anew do so with what they are now.
        if !matches!(request.command, FlowCommand::Modify { .. }) || request.flags.reset_counts {
            self.tables.meant_by(request).into_iter().for_each(|id| self.count(id, now_ms));
        }
        self.make_cores_ready(request)?;
        let changes = self.tables.apply(request, dialect, now_ms)?;
        self.publish(changes)
    }

    /// Changes rules of the core table, each of which applies one [`Action::SetCore`] and nothing else: the caller has seen to
    /// that. The table that the request names does not matter.
    ///
    /// # Errors
    /// Refused: nothing has changed.
    pub fn apply_core(&mut self, request: &FlowMod, dialect: Dialect, now_ms: u64) -> Result<(), Refused> {
        self.make_cores_ready(request)?;
        let changes = self.tables.apply_core(request, dialect, now_ms)?;
        self.publish(changes)
    }

    /// Cores that rules may name take packets from before the first rule names them.
    fn make_cores_ready(&self, request: &FlowMod) -> Result<(), Refused> {
        if matches!(request.command, FlowCommand::Delete { .. }) {
            return Ok(());
        }
        let memory = self.writer.memory();
        let ready = |action: &Action| match action {
            // It is refused later.
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

    /// Changes groups, and ends the rules that use what is deleted.
    ///
    /// # Errors
    /// Refused: nothing has changed.
    pub fn apply_group(&mut self, request: &GroupMod, now_ms: u64) -> Result<(), Refused> {
        if let GroupMod::Delete(id) = request {
            let users = self.writer.users_of_group(*id);
            users.into_iter().for_each(|rule| self.count(rule, now_ms));
        }
        let changes = self.tables.apply_group(request, now_ms)?;
        self.publish_all(changes);
        Ok(())
    }

    /// Changes meters, and ends the rules that use what is deleted.
    ///
    /// # Errors
    /// Refused: nothing has changed.
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

    /// Looks which rules with an idle timeout have had packets since the last look, and ends the rules whose time is up. To
    /// be called once a second: that is how exactly idle times are known.
    pub fn expire(&mut self, now_ms: u64) {
        let idle: Vec<RuleId> = self.tables.with_idle_timeout().collect();
        idle.into_iter().for_each(|id| self.count(id, now_ms));
        let due: Vec<RuleId> = self.tables.due(now_ms).collect();
        due.into_iter().for_each(|id| self.count(id, now_ms));
        let changes = self.tables.expire(now_ms);
        self.publish_all(changes);
    }

    /// Does user space do what this rule says?
    pub fn is_slow(&self, id: RuleId) -> bool {
        self.writer.is_slow(id)
    }

    /// Is there something that [`seal`](Flows::seal) would wait for?
    pub fn has_changes(&self) -> bool {
        self.writer.has_changes()
    }

    /// Ends the batch of what was changed so far; false: there is nothing to wait for. A grace period, then
    /// [`void`](Flows::void); another, then [`finish`](Flows::finish). What is changed meanwhile is in the next batch, which
    /// must not be sealed before this one is finished.
    pub fn seal(&mut self) -> bool {
        debug_assert!(self.batch.is_none(), "one batch at a time");
        let batch = self.writer.seal();
        self.ending.append(&mut self.ended);
        let waits = !batch.is_empty();
        self.batch = waits.then_some(batch);
        waits
    }

    /// After the first grace period.
    pub fn void(&mut self) {
        if let Some(batch) = &mut self.batch {
            self.writer.void(batch);
        }
    }

    /// After the second: packets obey. The rules that ended in this batch and asked to be told of, with all that they counted.
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

    /// What the rule of a row says, or what its table does with what it does not match. `None`: it drops it.
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

    /// As the program counts, on the second CPU.
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
    fn a_rule_that_ends_tells_all_that_it_counted() {
        let mut f = flows();
        change(&mut f, FlowCommand::Add, "in_port=1,send_flow_rem,actions=output:2", 0).unwrap();
        assert_eq!(settle(&mut f), []);
        let rule = row(f.tables().ids().next().unwrap());
        packets(&f, rule, 3);
        change(&mut f, DELETE, "in_port=1", 1000).unwrap();
        f.seal();
        f.void();
        // A program that looked before the rule went.
        packets(&f, rule, 1);
        let told: Vec<_> = f.finish().iter().map(|n| (n.packets, n.bytes, n.duration_sec)).collect();
        assert_eq!(told, [(4, 240, 1)]);
        // The next owner of the row begins at 0.
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
    fn what_finds_no_place_is_refused_and_leaves_nothing() {
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
