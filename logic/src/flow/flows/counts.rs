//! Counters of rules, tables, groups and meters: the kernel plane and user space together.

use super::Flows;
use crate::flow::{
    FlowFilter, FlowStats, Group, GroupStats, Meter, MeterStats,
    kernel::{self, FlowMemory},
    rule::{TABLES, TableId},
    table::{Aggregate, Count, RuleId},
};

/// Lookups of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableCount {
    /// Packets that came to the table.
    pub lookups: u64,
    /// Packets that matched a rule.
    pub matched: u64,
}

impl<M: FlowMemory> Flows<M> {
    /// Packets and bytes of a row, of all CPUs and user space together. Rows below [`kernel::FIRST_ROW`] are the tables'
    /// misses.
    pub fn counted(&self, row: u32) -> Count {
        self.writer.counted(row)
    }

    /// The rules that a filter selects, with their current counters.
    pub fn stats(&mut self, filter: &FlowFilter, now_ms: u64) -> Vec<FlowStats> {
        self.count_meant(filter, now_ms);
        self.tables.flows(filter, now_ms).collect()
    }

    /// The sums of the same rules.
    pub fn aggregate(&mut self, filter: &FlowFilter, now_ms: u64) -> Aggregate {
        self.count_meant(filter, now_ms);
        self.tables.aggregate(filter)
    }

    /// The ids of the rules that a filter selects, in no particular order. Read them one by one with
    /// [`flow_if_meant`](Flows::flow_if_meant).
    pub fn meant(&self, filter: &FlowFilter) -> Vec<RuleId> {
        self.tables.meant(filter).collect()
    }

    /// One of these rules with its current counters, if it still exists and the filter still selects it.
    pub fn flow_if_meant(&mut self, id: RuleId, filter: &FlowFilter, now_ms: u64) -> Option<FlowStats> {
        self.count(id, now_ms);
        self.tables.flow_if_meant(id, filter, now_ms)
    }

    /// The lookups of each table since the start. Reads the counters of all rules.
    pub fn table_counts(&self) -> [TableCount; TABLES as usize] {
        let mut matched = self.gone;
        let rows = self.tables.ids().map(kernel::row).chain(self.leaving.iter().copied());
        rows.for_each(|row| matched[usize::from(self.table(row))] += self.counted(row).packets);
        std::array::from_fn(|table| {
            let missed = self.counted(kernel::miss(table as TableId)).packets;
            TableCount { lookups: matched[table] + missed, matched: matched[table] }
        })
    }

    /// One meter or all meters, with their current counters.
    pub fn meter_stats(&mut self, id: Option<u32>, now_ms: u64) -> Vec<MeterStats> {
        let counts = |meter: &Meter| Some((meter.id, self.writer.metered(meter)?));
        let counts: Vec<_> = match id {
            Some(id) => self.tables.meter(id).into_iter().filter_map(counts).collect(),
            None => self.tables.meters().filter_map(counts).collect(),
        };
        counts.into_iter().for_each(|(id, (count, bands))| self.tables.count_meter(id, count, &bands));
        self.tables.meter_stats(id, now_ms).collect()
    }

    /// One group or all groups, with their current counters. If the kernel plane does a group, the group's packets are those
    /// of its rules, and its buckets are not counted. Their counters are then u64::MAX, as OpenFlow defines for unknown
    /// values.
    pub fn group_stats(&mut self, id: Option<u32>, now_ms: u64) -> Vec<GroupStats> {
        let counts =
            |group: &Group| Some((group.id, self.writer.group_count(group.id)?, group.buckets.len()));
        let counts: Vec<_> = match id {
            Some(id) => self.tables.group(id).into_iter().filter_map(counts).collect(),
            None => self.tables.groups().filter_map(counts).collect(),
        };
        let unknown = Count { packets: u64::MAX, bytes: u64::MAX };
        for (id, count, buckets) in counts {
            self.tables.count_group(id, count, &vec![unknown; buckets]);
        }
        self.tables.group_stats(id, now_ms).collect()
    }

    fn count_meant(&mut self, filter: &FlowFilter, now_ms: u64) {
        self.meant(filter).into_iter().for_each(|id| self.count(id, now_ms));
    }

    /// Gives the tables the current counters of a rule. The time of its last packet is known only to the interval since the
    /// last call.
    pub(super) fn count(&mut self, id: RuleId, now_ms: u64) {
        let count = self.counted(kernel::row(id));
        let used_ms = if self.tables.counted(id) == Some(count) { 0 } else { now_ms };
        self.tables.count(id, count, used_ms);
    }

    pub(super) fn note_table(&mut self, id: RuleId) {
        let (row, table) = (kernel::row(id) as usize, self.tables.rule(id).map_or(0, |rule| rule.table));
        if self.table_of.len() <= row {
            self.table_of.resize(row + 1, 0);
        }
        self.table_of[row] = table;
    }

    pub(super) fn table(&self, row: u32) -> TableId {
        self.table_of.get(row as usize).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{change, flows, packets, settle},
        *,
    };
    use crate::flow::{
        Field, FlowCommand, GroupKind, GroupMod, Match, MeterMod,
        kernel::{HeapFlows, row},
        rule::{Bucket, MeterUnit},
    };

    /// Only the counters of selected rules are read, because there may be a million others.
    #[test]
    fn counters_of_rules_that_are_not_selected_are_not_read() {
        let mut f = flows();
        let group = Group { id: 5, kind: GroupKind::Indirect, buckets: vec![Bucket::default()] };
        f.apply_group(&GroupMod::Add(group), 0).unwrap();
        let meter = Meter { id: 6, unit: MeterUnit::Pps, burst: false, stats: true, bands: vec![] };
        f.apply_meter(&MeterMod::Add(meter), 0).unwrap();
        for (port, actions) in [(1, "output:4"), (2, "group:5"), (3, "meter:6,output:4"), (4, "output:1")] {
            let text = format!("in_port={port},send_flow_rem,actions={actions}");
            change(&mut f, FlowCommand::Add, &text, 0).unwrap();
        }
        let ids: Vec<RuleId> = f.tables().ids().collect();
        ids.iter().for_each(|&id| packets(&f, row(id), 3));
        let first = FlowFilter { matching: Match::ANY.with(Field::InPort, 1_u32), ..FlowFilter::EVERYTHING };
        let seen = |f: &Flows<HeapFlows>| {
            ids.iter().map(|&id| f.tables().counted(id).map(|count| count.packets)).collect::<Vec<_>>()
        };
        assert_eq!(f.aggregate(&first, 1).packets, 3);
        assert_eq!(seen(&f), [Some(3), Some(0), Some(0), Some(0)]);
        packets(&f, row(ids[0]), 1);
        assert_eq!(f.stats(&first, 2)[0].packets, 4);
        f.apply_group(&GroupMod::Delete(Some(5)), 2).unwrap();
        f.apply_meter(&MeterMod::Delete(Some(6)), 2).unwrap();
        assert_eq!(seen(&f), [Some(4), None, None, Some(0)]);
        assert_eq!(settle(&mut f).iter().map(|n| n.packets).collect::<Vec<_>>(), [3, 3]);
        assert_eq!(f.aggregate(&FlowFilter::EVERYTHING, 3).packets, 7);
    }
}
