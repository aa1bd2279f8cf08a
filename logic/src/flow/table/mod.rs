//! The flow tables: what a controller's changes do, which rule a packet gets, and which rules end.
//!
//! Requests come in, and [`Change`]s go out in the order in which they are to be applied. A refused request changes nothing.
//! Time is an argument. This module knows no wire format and no kernel.
//!
//! | file | holds |
//! |---|---|
//! | `rules` | rows of rules by id |
//! | `lookup` | the search: tuple space, overlaps |
//! | `check` | which instructions a rule may have |
//! | `timeouts` | counters, idle and hard timeouts |
//! | `groups`, `meters` | groups and meters |
//! | `query` | statistics |
//!
//! # Cost
//!
//! [`Tables::overlapped_by`] costs one lookup for each mask whose bits all belong to the rule's own mask. It costs nothing
//! for masks whose rules all differ from the rule in some bit (IPv6 from IPv4), or all have a higher priority. It compares
//! the rules of the remaining masks one by one: these masks test bits that the rule does not test. So a rule with all its
//! fields costs as many lookups as there are masks. A wildcard with at least the priority of a million exact rules is
//! compared with all of them ([`Tables::overlap_effort`] tells this in advance). The same holds for CHECK_OVERLAP, and for
//! the matches of modify, delete and statistics requests. Rules with one match and different priorities are a list, searched
//! from the highest priority.
//!
//! `cargo bench -p millrace-logic --bench flow -- table`, one core, nanoseconds of CPU time. There are 1,000,000 rules with
//! all twelve fields of OpenFlow 1.0, and 9,990 wildcard rules with 60 masks. Memory is 165 bytes per rule (195 with
//! timeouts, 400 if each rule has two actions of its own).
//!
//! | | ns |
//! |---|---|
//! | add an exact rule (the same with timeouts, with actions of its own) | 600 (700, 2,000) |
//! | modify, add again, delete one rule | 770, 530, 770 |
//! | `lookup`: an exact rule of the highest priority; through all masks | 200; 790 |
//! | `overlapped_by`: an exact rule | 2,300 |
//! | a 5-tuple below the exact rules, if a third of the wildcards test one more field | 9,600 |
//! | a 5-tuple beside the exact rules; a wildcard above them | 6,400,000; 10,000,000 |
//! | aggregate; all statistics in order | 40,000,000; 1,760,000,000 |

mod check;
mod groups;
mod lookup;
mod meters;
#[cfg(test)]
mod oracle;
mod query;
mod rules;
#[cfg(test)]
mod tests;
mod timeouts;

pub use check::{ACTIONS, Dialect, settable};
pub use groups::{BUCKETS, GROUP_CHAIN, GROUPS};
pub use lookup::MASKS;
pub use meters::{BANDS, METERS};
pub use query::Aggregate;
pub use rules::{Count, RuleId};

use super::{
    FlowCommand, FlowFilter, FlowMod, FlowRemoved, Instructions, Key, Match, Refused, Removed, RulePort,
    rule::{CORE_TABLE, TABLES, TableId},
};
use groups::Groups;
use lookup::Tuples;
use meters::Meters;
use rules::{Row, Rows};
use std::collections::{BTreeMap, BTreeSet};

/// The most rules in all tables: 1,000,000 exact ones and 10,000 others. The limit does not distinguish them.
pub const RULES: usize = 1_010_000;
/// The most rules in the core table.
pub const CORE_RULES: usize = 65_536;

/// A change to be made where packets are forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A new rule.
    Added(RuleId),
    /// The rule has other instructions.
    Instructions(RuleId),
    /// The rule has ended. Its id is held until [`Tables::release`].
    Removed {
        id: RuleId,
        /// The rule of the next lower priority with the same match. It takes the place of the removed one where only the
        /// highest of them is found by its match.
        next: Option<RuleId>,
        /// The notice for controllers, if the rule asked for one.
        notice: Option<Box<FlowRemoved>>,
    },
    /// The group is new or has other buckets, or its packets take other buckets because ports went up or down.
    Group(u32),
    GroupRemoved(u32),
    /// The meter is new or was changed.
    Meter(u32),
    MeterRemoved(u32),
}

/// A rule, as it is in the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule<'a> {
    pub table: TableId,
    pub matching: Match,
    pub priority: u16,
    pub cookie: u64,
    pub instructions: &'a Instructions,
}

/// Flow tables, groups and meters.
#[derive(Default)]
pub struct Tables {
    rows: Rows,
    tuples: Tuples,
    /// Rules with timeouts, by the time of their next check.
    due: BTreeSet<(u64, RuleId)>,
    groups: Groups,
    meters: Meters,
    /// Real ports, and whether they are up.
    ports: BTreeMap<RulePort, bool>,
    /// Cores that packets can be handed to. `None`: packets cannot be handed over.
    cores: Option<BTreeSet<u16>>,
    paths: PathPorts,
}

/// The existing paths, by number.
pub type PathPorts = BTreeMap<u16, PathPort>;

/// A path of the user plane, to which rules send packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPort {
    pub name: String,
    /// Packets that no worker can take are dropped. Otherwise they are treated as by [`RulePort::NORMAL`].
    pub drops: bool,
}

impl Tables {
    /// Tables without rules, groups, meters and ports.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the existing real ports, and whether they are up. Rules that name a missing port stay.
    pub fn set_ports(&mut self, ports: impl IntoIterator<Item = (RulePort, bool)>) -> Vec<Change> {
        let before = self.usable_buckets();
        self.ports = ports.into_iter().collect();
        let after = self.usable_buckets();
        after.into_iter().filter(|(id, live)| before[id] != *live).map(|(id, _)| Change::Group(id)).collect()
    }

    /// Sets the cores that [`Action::SetCore`](super::Action::SetCore) may name. With `None`, the default, packets cannot be
    /// handed to another core, and the action is refused. Rules that name a missing core stay.
    pub fn set_cores(&mut self, cores: Option<BTreeSet<u16>>) {
        self.cores = cores;
    }

    /// Sets the paths that rules may name by [`RulePort::of_path`]. There are none by default. Rules that name a missing path
    /// stay.
    pub fn set_paths(&mut self, paths: PathPorts) {
        self.paths = paths;
    }

    /// The paths that were set.
    pub fn paths(&self) -> &PathPorts {
        &self.paths
    }

    /// Adds, modifies or deletes rules (OpenFlow 1.0 section 4.6, 1.3 section 6.4).
    pub fn apply(
        &mut self,
        request: &FlowMod,
        dialect: Dialect,
        now_ms: u64,
    ) -> Result<Vec<Change>, Refused> {
        if request.table.is_some_and(|table| table >= TABLES) {
            return Err(Refused::BadTable);
        }
        self.change(request, dialect, now_ms)
    }

    /// Changes rules of the core table, whatever table the request names. The caller checks that each rule applies one
    /// [`Action::SetCore`] and nothing else.
    ///
    /// [`Action::SetCore`]: super::Action::SetCore
    pub fn apply_core(
        &mut self,
        request: &FlowMod,
        dialect: Dialect,
        now_ms: u64,
    ) -> Result<Vec<Change>, Refused> {
        self.change(&FlowMod { table: Some(CORE_TABLE), ..request.clone() }, dialect, now_ms)
    }

    fn change(&mut self, request: &FlowMod, dialect: Dialect, now_ms: u64) -> Result<Vec<Change>, Refused> {
        if request.flags.emergency {
            let timeouts = request.idle_timeout != 0 || request.hard_timeout != 0;
            return Err(if timeouts { Refused::Emergency } else { Refused::TableFull });
        }
        match request.command {
            FlowCommand::Add => self.add(request, dialect, now_ms),
            FlowCommand::Modify { strict } => self.modify(request, strict, dialect, now_ms),
            FlowCommand::Delete { strict } => Ok(self.delete(request, strict, now_ms)),
        }
    }

    /// Takes back an added rule for which the memory of the kernel plane has no room. No notice is made.
    pub fn withdraw(&mut self, id: RuleId) {
        if self.rows.get(id).is_some() {
            self.remove(id, Removed::Delete, 0);
            self.rows.release(id);
        }
    }

    /// Allows the id of a removed rule to be used again. Call it when no reader uses the id any more.
    pub fn release(&mut self, id: RuleId) {
        self.rows.release(id);
    }

    /// The rule that a packet gets in a table.
    pub fn lookup(&self, table: TableId, key: &Key) -> Option<RuleId> {
        (table <= CORE_TABLE).then(|| self.tuples.lookup(&self.rows, table, &key.words())).flatten()
    }

    pub fn rule(&self, id: RuleId) -> Option<Rule<'_>> {
        let row = self.rows.get(id)?;
        let tuple = self.tuples.get(row.tuple);
        Some(Rule {
            table: tuple.table,
            matching: tuple.matching(row.slot),
            priority: row.priority,
            cookie: row.cookie,
            instructions: &row.instructions,
        })
    }

    /// How many rules the core table has.
    pub fn core_rules(&self) -> usize {
        self.tuples.of(CORE_TABLE).map(|tuple| tuple.rules() as usize).sum()
    }

    /// Can a rule name this core?
    pub fn has_core(&self, core: u16) -> bool {
        self.cores.as_ref().is_some_and(|cores| cores.contains(&core))
    }

    /// Are all tables empty?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many rules all tables have, including the core table.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// All rules.
    pub fn ids(&self) -> impl Iterator<Item = RuleId> + '_ {
        self.rows.ids()
    }

    /// The rules that a delete or modify selects, or the rule that an add replaces.
    pub fn meant_by(&self, request: &FlowMod) -> Vec<RuleId> {
        let all = filter(request);
        let (filter, strict) = match request.command {
            FlowCommand::Add => (FlowFilter { out_port: None, out_group: None, cookie_mask: 0, ..all }, true),
            FlowCommand::Modify { strict } => (FlowFilter { out_port: None, out_group: None, ..all }, strict),
            FlowCommand::Delete { strict } => (all, strict),
        };
        self.hits(&filter, strict.then_some(request.priority)).collect()
    }

    /// The rule of the highest priority with the same table and match. It is this rule itself, unless another one hides it.
    pub fn first_of_match(&self, id: RuleId) -> Option<RuleId> {
        let row = self.rows.get(id)?;
        self.tuples.get(row.tuple).head(row.slot)
    }

    /// The rule of the next lower priority with the same table and match.
    pub fn next_of_match(&self, id: RuleId) -> Option<RuleId> {
        self.rows.get(id)?.next
    }

    /// The other rules in its table that overlap this rule and have no higher priority. Packets that they decided may now
    /// belong to this rule.
    pub fn overlapped_by(&self, id: RuleId) -> impl Iterator<Item = RuleId> + '_ {
        self.rule(id)
            .map(|rule| self.tuples.overlapping(&self.rows, rule.table, &rule.matching, 0..=rule.priority))
            .into_iter()
            .flatten()
            .filter(move |&other| other != id)
    }

    /// About how many rules [`overlapped_by`](Tables::overlapped_by) has to compare. It is cheap to compute, for callers
    /// that would rather void all decisions of the table.
    pub fn overlap_effort(&self, id: RuleId) -> usize {
        let effort = |rule: Rule| self.tuples.effort(rule.table, &rule.matching, 0..=rule.priority);
        self.rule(id).map_or(0, effort)
    }

    /// The masks of a table in the order of the search, each with the highest priority of its rules.
    pub fn masks(&self, table: TableId) -> impl Iterator<Item = (&Key, u16)> {
        let tables = if table <= CORE_TABLE { table..table + 1 } else { 0..0 };
        tables.flat_map(|table| self.tuples.of(table)).map(|tuple| (&tuple.mask, tuple.highest()))
    }

    fn add(&mut self, request: &FlowMod, dialect: Dialect, now_ms: u64) -> Result<Vec<Change>, Refused> {
        let table = request.table.ok_or(Refused::BadTable)?;
        self.check(table, &request.matching, &request.instructions, dialect)?;
        let (matching, priority) = (&request.matching, request.priority);
        if request.flags.check_overlap
            && self.tuples.overlapping(&self.rows, table, matching, priority..=priority).next().is_some()
        {
            return Err(Refused::Overlap);
        }
        match self.tuples.same(&self.rows, table, matching, priority) {
            Some(id) => Ok(self.replace(id, request, dialect, now_ms)),
            None => Ok(vec![Change::Added(self.insert(table, request, now_ms)?)]),
        }
    }

    fn insert(&mut self, table: TableId, request: &FlowMod, now_ms: u64) -> Result<RuleId, Refused> {
        if !self.rows.has_room() || table == CORE_TABLE && self.core_rules() >= CORE_RULES {
            return Err(Refused::TableFull);
        }
        let tuple = self.tuples.tuple(table, request.matching.mask())?;
        let instructions = self.rows.share(&request.instructions);
        self.refer(&instructions);
        let id = self.rows.insert(Row {
            instructions,
            cookie: request.cookie,
            created_ms: now_ms,
            used_ms: now_ms,
            due_ms: None,
            total: Count::default(),
            base: Count::default(),
            next: None,
            slot: 0,
            tuple,
            priority: request.priority,
            idle_timeout: request.idle_timeout,
            hard_timeout: request.hard_timeout,
            flags: request.flags,
        });
        self.tuples.link(&mut self.rows, id, &request.matching);
        self.schedule(id);
        Ok(id)
    }

    /// Replaces a rule by an added one with the same match and priority. The new rule takes over the id and, in OpenFlow
    /// 1.3, the counters, unless RESET_COUNTS is set. Controllers get no notice of the old one (1.3.5 section 6.4).
    fn replace(&mut self, id: RuleId, request: &FlowMod, dialect: Dialect, now_ms: u64) -> Vec<Change> {
        let row = &mut self.rows[id];
        row.cookie = request.cookie;
        row.flags = request.flags;
        (row.created_ms, row.used_ms) = (now_ms, now_ms);
        (row.idle_timeout, row.hard_timeout) = (request.idle_timeout, request.hard_timeout);
        if dialect == Dialect::OpenFlow10 || request.flags.reset_counts {
            row.base = row.total;
        }
        self.schedule(id);
        self.instruct(id, &request.instructions).into_iter().collect()
    }

    /// Changes instructions. Counters and timeouts stay as they are.
    fn modify(
        &mut self,
        request: &FlowMod,
        strict: bool,
        dialect: Dialect,
        now_ms: u64,
    ) -> Result<Vec<Change>, Refused> {
        let table = request.table.ok_or(Refused::BadTable)?;
        self.check(table, &request.matching, &request.instructions, dialect)?;
        let filter = FlowFilter { out_port: None, out_group: None, ..filter(request) };
        let ids: Vec<RuleId> = self.hits(&filter, strict.then_some(request.priority)).collect();
        if ids.is_empty() && dialect == Dialect::OpenFlow10 {
            return self.add(request, dialect, now_ms);
        }
        let mut changes = Vec::new();
        for id in ids {
            let row = &mut self.rows[id];
            if dialect == Dialect::OpenFlow10 {
                row.cookie = request.cookie;
            } else if request.flags.reset_counts {
                row.base = row.total;
            }
            changes.extend(self.instruct(id, &request.instructions));
        }
        Ok(changes)
    }

    fn delete(&mut self, request: &FlowMod, strict: bool, now_ms: u64) -> Vec<Change> {
        let ids: Vec<RuleId> = self.hits(&filter(request), strict.then_some(request.priority)).collect();
        ids.into_iter().map(|id| self.remove(id, Removed::Delete, now_ms)).collect()
    }

    /// Gives a rule other instructions.
    fn instruct(&mut self, id: RuleId, instructions: &Instructions) -> Option<Change> {
        if *self.rows[id].instructions == *instructions {
            return None;
        }
        let new = self.rows.share(instructions);
        self.refer(&new);
        let old = std::mem::replace(&mut self.rows[id].instructions, new);
        self.unrefer(&old);
        self.rows.unshare(old);
        Some(Change::Instructions(id))
    }

    /// Removes a rule.
    fn remove(&mut self, id: RuleId, reason: Removed, now_ms: u64) -> Change {
        let notice = self.rows[id].flags.send_removed.then(|| Box::new(self.notice(id, reason, now_ms)));
        self.tuples.unlink(&mut self.rows, id);
        let row = self.rows.take(id);
        if let Some(due_ms) = row.due_ms {
            self.due.remove(&(due_ms, id));
        }
        self.unrefer(&row.instructions);
        self.rows.unshare(row.instructions);
        Change::Removed { id, next: row.next, notice }
    }

    /// Removes all rules for which `gone` is true.
    fn remove_where(&mut self, gone: impl Fn(&Row) -> bool, reason: Removed, now_ms: u64) -> Vec<Change> {
        let ids: Vec<RuleId> = self.rows.ids().filter(|&id| gone(&self.rows[id])).collect();
        ids.into_iter().map(|id| self.remove(id, reason, now_ms)).collect()
    }

    fn notice(&self, id: RuleId, reason: Removed, now_ms: u64) -> FlowRemoved {
        let row = &self.rows[id];
        let tuple = self.tuples.get(row.tuple);
        let (duration_sec, duration_nsec) = duration(row.created_ms, now_ms);
        let Count { packets, bytes } = row.count();
        FlowRemoved {
            matching: tuple.matching(row.slot),
            cookie: row.cookie,
            priority: row.priority,
            reason,
            table: tuple.table,
            duration_sec,
            duration_nsec,
            idle_timeout: row.idle_timeout,
            hard_timeout: row.hard_timeout,
            packets,
            bytes,
        }
    }

    /// Adds a rule with these instructions to the users of its groups and meter.
    fn refer(&mut self, instructions: &Instructions) {
        groups::used(instructions.actions()).into_iter().for_each(|id| self.groups.refer(id));
        instructions.meter.into_iter().for_each(|id| self.meters.refer(id));
    }

    fn unrefer(&mut self, instructions: &Instructions) {
        groups::used(instructions.actions()).into_iter().for_each(|id| self.groups.unrefer(id));
        instructions.meter.into_iter().for_each(|id| self.meters.unrefer(id));
    }
}

/// The filter for the rules that a modify or delete selects.
fn filter(request: &FlowMod) -> FlowFilter {
    FlowFilter {
        table: request.table,
        matching: request.matching,
        out_port: request.out_port,
        out_group: request.out_group,
        cookie: request.cookie,
        cookie_mask: request.cookie_mask,
    }
}

/// Seconds, and the nanoseconds beyond them.
fn duration(from_ms: u64, now_ms: u64) -> (u32, u32) {
    let ms = now_ms.saturating_sub(from_ms);
    (u32::try_from(ms / 1000).unwrap_or(u32::MAX), (ms % 1000) as u32 * 1_000_000)
}
