//! Rows of rules by id, and instructions shared by rules that do the same.

use super::RULES;
use crate::flow::{FlowFlags, Instructions, Removed};
use std::{
    collections::HashSet,
    ops::{Index, IndexMut},
    sync::Arc,
};

/// A rule's number, for rows that are kept by it: below [`RuleId::LIMIT`], and as low as can be. It is not given out again
/// before [`Tables::release`](super::Tables::release): who reads the tables while they change may see the rule a little longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId(pub u32);

impl RuleId {
    /// As many rules as there may be, and 65,536 that are gone but not released.
    pub const LIMIT: u32 = RULES as u32 + (1 << 16);
}

/// Packets and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub packets: u64,
    pub bytes: u64,
}

impl Count {
    /// One more packet.
    pub fn add(&mut self, bytes: usize) {
        self.packets = self.packets.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes as u64);
    }

    /// Both together.
    pub fn plus(self, other: Count) -> Count {
        Count {
            packets: self.packets.saturating_add(other.packets),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    /// What was counted since `base`.
    pub fn since(self, base: Count) -> Count {
        Count {
            packets: self.packets.saturating_sub(base.packets),
            bytes: self.bytes.saturating_sub(base.bytes),
        }
    }
}

/// One rule. Its table and match are those of its tuple and the slot there.
pub(super) struct Row {
    pub instructions: Arc<Instructions>,
    pub cookie: u64,
    pub created_ms: u64,
    /// When the last packet was seen; at first `created_ms`.
    pub used_ms: u64,
    /// When it is looked at for its timeouts.
    pub due_ms: Option<u64>,
    /// Counted since the id was given out.
    pub total: Count,
    /// Of these, what was counted before the counters were reset.
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

    /// When it ends if no packet comes, and why. Of two timeouts that end together the hard one is told.
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
    /// The rule is gone, the id not yet released.
    Held,
    Live(Row),
}

#[derive(Default)]
pub(super) struct Rows {
    places: Vec<RuleSlot>,
    free: Vec<RuleId>,
    live: usize,
    /// Hashed with a key of the process: a controller chooses what is in it.
    shared: HashSet<Arc<Instructions>>,
}

impl Rows {
    /// Is there room for one more?
    pub fn len(&self) -> usize {
        self.live
    }

    pub fn has_room(&self) -> bool {
        self.live < RULES && (!self.free.is_empty() || self.places.len() < RuleId::LIMIT as usize)
    }

    /// A new row; room is the caller's to check.
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

    /// Takes a row out; its id is held until [`release`](Rows::release).
    pub fn take(&mut self, id: RuleId) -> Row {
        match std::mem::replace(&mut self.places[id.0 as usize], RuleSlot::Held) {
            RuleSlot::Live(row) => {
                self.live -= 1;
                row
            }
            RuleSlot::Free | RuleSlot::Held => panic!("{id:?} is no rule"),
        }
    }

    /// The id may be given out again. Does nothing unless it is held.
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

    /// This rule and those after it with the same match.
    pub fn chain(&self, head: RuleId) -> impl Iterator<Item = RuleId> + '_ {
        std::iter::successors(Some(head), |&id| self[id].next)
    }

    /// One copy for all rules that do the same.
    pub fn share(&mut self, instructions: &Instructions) -> Arc<Instructions> {
        if let Some(known) = self.shared.get(instructions) {
            return known.clone();
        }
        let new = Arc::new(instructions.clone());
        self.shared.insert(new.clone());
        new
    }

    /// The opposite of [`share`](Rows::share). None but rows and the set itself hold copies.
    pub fn unshare(&mut self, instructions: Arc<Instructions>) {
        if Arc::strong_count(&instructions) == 2 {
            self.shared.remove(&instructions);
        }
    }
}

/// Ids that the tables hold themselves are those of rules.
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
