//! Queries of controllers about rules.

use super::{Count, Row, RuleId, Tables, duration};
use crate::flow::{
    FlowFilter, FlowStats,
    rule::{CORE_TABLE, TABLES, TableId},
};
use std::cmp::{Ordering, Reverse};

/// The sums over all rules that a filter selects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Aggregate {
    pub packets: u64,
    pub bytes: u64,
    pub rules: u32,
}

impl Tables {
    /// The rules that a filter selects, by table, priority (the highest first), mask and values.
    pub fn flows(&self, filter: &FlowFilter, now_ms: u64) -> impl Iterator<Item = FlowStats> + '_ {
        self.sorted(filter).into_iter().map(move |id| self.stats(id, now_ms))
    }

    /// The ids of the same rules, in the same order.
    pub fn sorted(&self, filter: &FlowFilter) -> Vec<RuleId> {
        let mut ids: Vec<RuleId> = self.hits(filter, None).collect();
        ids.sort_unstable_by(|&a, &b| self.order(a, b));
        ids
    }

    /// One rule; `None` if it has ended.
    pub fn flow(&self, id: RuleId, now_ms: u64) -> Option<FlowStats> {
        self.rows.get(id).is_some().then(|| self.stats(id, now_ms))
    }

    /// When the rule's last packet was seen, or the rule was created, in milliseconds. `None` if it has ended.
    pub fn used_ms(&self, id: RuleId) -> Option<u64> {
        self.rows.get(id).map(|row| row.used_ms)
    }

    /// The rules that a filter selects, in no particular order.
    pub fn meant(&self, filter: &FlowFilter) -> impl Iterator<Item = RuleId> + '_ {
        self.hits(filter, None)
    }

    /// One rule, if it exists and the filter selects it.
    pub fn flow_if_meant(&self, id: RuleId, filter: &FlowFilter, now_ms: u64) -> Option<FlowStats> {
        let row = self.rows.get(id)?;
        let tuple = self.tuples.get(row.tuple);
        let meant = filter.table.is_none_or(|table| table == tuple.table)
            && filter.matching.covers(&tuple.matching(row.slot))
            && is_asked_for(row, filter);
        meant.then(|| self.stats(id, now_ms))
    }

    pub fn aggregate(&self, filter: &FlowFilter) -> Aggregate {
        self.hits(filter, None).fold(Aggregate::default(), |sum, id| {
            let Count { packets, bytes } = self.rows[id].count();
            Aggregate {
                packets: sum.packets.saturating_add(packets),
                bytes: sum.bytes.saturating_add(bytes),
                rules: sum.rules + 1,
            }
        })
    }

    /// How many rules each table has.
    pub fn tables(&self) -> impl Iterator<Item = (TableId, u32)> + '_ {
        (0..TABLES).map(|table| (table, self.tuples.of(table).map(|tuple| tuple.rules()).sum()))
    }

    /// The rules that a filter selects, in an order that is arbitrary but always the same. `strict`: only the rule with the
    /// same match and this priority.
    pub(super) fn hits(&self, filter: &FlowFilter, strict: Option<u16>) -> impl Iterator<Item = RuleId> + '_ {
        let tables = match filter.table {
            None => 0..TABLES,
            Some(table) if table <= CORE_TABLE => table..table + 1,
            Some(_) => 0..0,
        };
        let filter = filter.clone();
        let matching = filter.matching;
        tables
            .flat_map(move |table| {
                let one =
                    strict.and_then(|priority| self.tuples.same(&self.rows, table, &matching, priority));
                let all = strict.is_none().then(|| self.tuples.covered(&self.rows, table, &matching));
                one.into_iter().chain(all.into_iter().flatten())
            })
            .filter(move |&id| is_asked_for(&self.rows[id], &filter))
    }

    fn order(&self, a: RuleId, b: RuleId) -> Ordering {
        let (a, b) = (&self.rows[a], &self.rows[b]);
        let (s, t) = (self.tuples.get(a.tuple), self.tuples.get(b.tuple));
        let by_mask = || s.mask.cmp(&t.mask);
        let bytes = |word: &u64| u64::from_be(*word);
        let by_key = || s.key(a.slot).iter().map(bytes).cmp(t.key(b.slot).iter().map(bytes));
        (s.table, Reverse(a.priority))
            .cmp(&(t.table, Reverse(b.priority)))
            .then_with(by_mask)
            .then_with(by_key)
    }

    fn stats(&self, id: RuleId, now_ms: u64) -> FlowStats {
        let row = &self.rows[id];
        let tuple = self.tuples.get(row.tuple);
        let (duration_sec, duration_nsec) = duration(row.created_ms, now_ms);
        let Count { packets, bytes } = row.count();
        FlowStats {
            table: tuple.table,
            matching: tuple.matching(row.slot),
            duration_sec,
            duration_nsec,
            priority: row.priority,
            idle_timeout: row.idle_timeout,
            hard_timeout: row.hard_timeout,
            flags: row.flags,
            cookie: row.cookie,
            packets,
            bytes,
            instructions: (*row.instructions).clone(),
        }
    }
}

/// Do the rule's cookie, ports and groups fit the filter?
fn is_asked_for(row: &Row, filter: &FlowFilter) -> bool {
    (row.cookie ^ filter.cookie) & filter.cookie_mask == 0
        && filter.out_port.is_none_or(|port| row.instructions.outputs_to(port))
        && filter.out_group.is_none_or(|group| row.instructions.uses_group(group))
}
