//! Rows of rules by id. Rules with the same instructions share them.

use super::RULES;
use crate::flow::{FlowFlags, Instructions, Removed};
use std::{
    collections::HashSet,
    ops::{Index, IndexMut},
    sync::Arc,
};

/// The number of a rule, for rows that are indexed by it. It is below [`RuleId::LIMIT`] and as low as possible. It is not
/// used again before [`Tables::release`](super::Tables::release), because programs that read the tables during a change may
/// see the rule a little longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId(pub u32);

impl RuleId {
    /// Room for all rules, and for 65,536 that have ended but are not released.
    pub const LIMIT: u32 = RULES as u32 + (1 << 16);
}

/// Packets and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub packets: u64,
    pub bytes: u64,
}

impl Count {
    /// Counts one more packet.
    pub fn add(&mut self, bytes: usize) {
        self.packets = self.packets.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes as u64);
    }

    /// The sum of both.
    pub fn plus(self, other: Count) -> Count {
        Count {
            packets: self.packets.saturating_add(other.packets),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    /// The difference since `base`.
    pub fn since(self, base: Count) -> Count {
        Count {
            packets: self.packets.saturating_sub(base.packets),
            bytes: self.bytes.saturating_sub(base.bytes),
        }
    }
}

/// One rule. Its tuple has the table and the match, and the slot has the key.
pub(super) struct Row {
    pub instructions: Arc<Instructions>,
    pub cookie: u64,
    pub created_ms: u64,
    /// When the last packet was seen. At first it is `created_ms`.
    pub used_ms: u64,
    /// When its timeouts are checked next.
    pub due_ms: Option<u64>,
    /// Packets counted since the id was given to the rule.
    pub total: Count,
    /// The part of `total` from before the counters were reset.
    pub base: Count,
    /// The rule of the next lower priority with the same match.
    pub next: Option<RuleId>,
    pub slot: u32,
    pub tuple: u16,
    pub priority: u16,
    pub idle_timeout: u16,
    pub hard_timeout: u16,
    pub flags: FlowFlags,
}

impl Row {
    pub fn count(&self) -> Count {
        self.total.since(self.base)
    }

    /// When the rule ends if no packet comes, and why. If both timeouts end at the same time, the reason is the hard one.
    pub fn end(&self) -> Option<(u64, Removed)> {
        let after =
            |from: u64, seconds: u16| (seconds > 0).then(|| from.saturating_add(1000 * u64::from(seconds)));
        let idle = after(self.used_ms, self.idle_timeout).map(|at| (at, Removed::IdleTimeout));
        let hard = after(self.created_ms, self.hard_timeout).map(|at| (at, Removed::HardTimeout));
        hard.into_iter().chain(idle).min_by_key(|end| end.0)
    }
}

enum RuleSlot {
    Free,
    /// The rule has ended, but its id is not released yet.
    Held,
    Live(Row),
}

#[derive(Default)]
pub(super) struct Rows {
    places: Vec<RuleSlot>,
    free: Vec<RuleId>,
    live: usize,
    /// Hashed with a key of this process, because controllers choose the content.
    shared: HashSet<Arc<Instructions>>,
}

impl Rows {
    /// How many rules there are.
    pub fn len(&self) -> usize {
        self.live
    }

    pub fn has_room(&self) -> bool {
        self.live < RULES && (!self.free.is_empty() || self.places.len() < RuleId::LIMIT as usize)
    }

    /// Adds a row. The caller checks that there is room.
    pub fn insert(&mut self, row: Row) -> RuleId {
        self.live += 1;
        match self.free.pop() {
            Some(id) => {
                self.places[id.0 as usize] = RuleSlot::Live(row);
                id
            }
            None => {
                self.places.push(RuleSlot::Live(row));
                RuleId(self.places.len() as u32 - 1)
            }
        }
    }

    /// Removes a row. Its id is held until [`release`](Rows::release).
    pub fn take(&mut self, id: RuleId) -> Row {
        match std::mem::replace(&mut self.places[id.0 as usize], RuleSlot::Held) {
            RuleSlot::Live(row) => {
                self.live -= 1;
                row
            }
            RuleSlot::Free | RuleSlot::Held => panic!("{id:?} is no rule"),
        }
    }

    /// Allows an id to be used again. Does nothing unless the id is held.
    pub fn release(&mut self, id: RuleId) {
        if let Some(place @ RuleSlot::Held) = self.places.get_mut(id.0 as usize) {
            *place = RuleSlot::Free;
            self.free.push(id);
        }
    }

    /// All rules.
    pub fn ids(&self) -> impl Iterator<Item = RuleId> + '_ {
        (0..self.places.len() as u32).map(RuleId).filter(|&id| self.get(id).is_some())
    }

    pub fn get(&self, id: RuleId) -> Option<&Row> {
        match self.places.get(id.0 as usize) {
            Some(RuleSlot::Live(row)) => Some(row),
            _ => None,
        }
    }

    pub fn get_mut(&mut self, id: RuleId) -> Option<&mut Row> {
        match self.places.get_mut(id.0 as usize) {
            Some(RuleSlot::Live(row)) => Some(row),
            _ => None,
        }
    }

    /// This rule and those with the same match and lower priority.
    pub fn chain(&self, head: RuleId) -> impl Iterator<Item = RuleId> + '_ {
        std::iter::successors(Some(head), |&id| self[id].next)
    }

    /// Shares one copy among all rules with these instructions.
    pub fn share(&mut self, instructions: &Instructions) -> Arc<Instructions> {
        if let Some(known) = self.shared.get(instructions) {
            return known.clone();
        }
        let new = Arc::new(instructions.clone());
        self.shared.insert(new.clone());
        new
    }

    /// The opposite of [`share`](Rows::share). Only rows and the set itself hold copies.
    pub fn unshare(&mut self, instructions: Arc<Instructions>) {
        if Arc::strong_count(&instructions) == 2 {
            self.shared.remove(&instructions);
        }
    }
}

/// The ids that the tables hold always have a row.
impl Index<RuleId> for Rows {
    type Output = Row;
    fn index(&self, id: RuleId) -> &Row {
        self.get(id).expect("a rule that is linked is there")
    }
}

impl IndexMut<RuleId> for Rows {
    fn index_mut(&mut self, id: RuleId) -> &mut Row {
        self.get_mut(id).expect("a rule that is linked is there")
    }
}
