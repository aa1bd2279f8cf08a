//! Rows of shared memory: which are free, and which may still be read by a packet on its way.

use super::Slot;
use crate::memory::{Memory, words};
use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::atomic::Ordering::{Relaxed, Release},
};

/// A region of [`Memory`], with the name for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Region {
    FibBlocks,
    FibTails,
    Nexthops,
    NeighbourIndex,
    InterfaceIndex,
    Routers,
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Region::FibBlocks => "fib",
            Region::FibTails => "fib_tails",
            Region::Nexthops => "nexthops",
            Region::NeighbourIndex => "neighbour_index",
            Region::InterfaceIndex => "interface_index",
            Region::Routers => "routers",
        })
    }
}

/// A map has no room. The entry that should have been stored leads to the kernel instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// Which map.
    pub region: Region,
    /// The number of adjacent rows that were needed.
    pub rows: usize,
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the map {} is full: {} more needed", self.region, self.rows)
    }
}

impl std::error::Error for Full {}

/// A point in time, for the owner of a grace period. Rows that were unpublished before it was [sealed](Pool::seal) may
/// be reused when no reader is left that started before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epoch(u64);

/// Things that are unpublished but that a reader may still use.
#[derive(Debug)]
pub(crate) struct Limbo<T> {
    now: u64,
    queue: VecDeque<(u64, T)>,
}

impl<T> Default for Limbo<T> {
    fn default() -> Self {
        Self { now: 0, queue: VecDeque::new() }
    }
}

impl<T> Limbo<T> {
    pub(crate) fn retire(&mut self, item: T) {
        self.queue.push_back((self.now, item));
    }

    pub(crate) fn seal(&mut self) -> Epoch {
        self.now += 1;
        Epoch(self.now)
    }

    /// Removes and returns the next thing that was retired before `epoch`.
    pub(crate) fn next(&mut self, epoch: Epoch) -> Option<T> {
        self.queue.front().filter(|(at, _)| *at < epoch.0)?;
        self.queue.pop_front().map(|(_, item)| item)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.queue.iter().map(|(_, item)| item)
    }
}

/// Free rows as extents. Single rows come from the low end and runs from the high end, so singles do not break up the
/// room for runs.
#[derive(Debug)]
pub(crate) struct Extents {
    /// The length of each extent, by its start. Extents are never adjacent.
    free: BTreeMap<u32, u32>,
    count: usize,
    capacity: usize,
}

impl Extents {
    /// Rows `reserved..capacity`.
    pub(crate) fn new(capacity: usize, reserved: u32) -> Self {
        let capacity = capacity.min(super::MAX_INDEX as usize + 1);
        let length = (capacity as u32).saturating_sub(reserved);
        let free = (length > 0).then_some((reserved, length)).into_iter().collect();
        Self { free, count: length as usize, capacity }
    }

    pub(crate) fn take(&mut self, rows: u32) -> Option<u32> {
        let (start, length) = if rows == 1 {
            self.free.first_key_value().map(|(s, l)| (*s, *l))?
        } else {
            self.free.iter().rev().find(|(_, length)| **length >= rows).map(|(s, l)| (*s, *l))?
        };
        self.count -= rows as usize;
        self.free.remove(&start);
        if rows == 1 {
            if length > 1 {
                self.free.insert(start + 1, length - 1);
            }
            return Some(start);
        }
        if length > rows {
            self.free.insert(start, length - rows);
        }
        Some(start + length - rows)
    }

    pub(crate) fn give(&mut self, mut start: u32, rows: u32) {
        self.count += rows as usize;
        let mut length = rows;
        if let Some((&s, &l)) = self.free.range(..start).next_back()
            && s + l == start
        {
            self.free.remove(&s);
            (start, length) = (s, l + length);
        }
        if let Some(l) = self.free.remove(&(start + length)) {
            length += l;
        }
        self.free.insert(start, length);
    }

    /// Rows in use (or reserved, or in limbo) and rows in all.
    pub(crate) fn occupancy(&self) -> Occupancy {
        Occupancy { used: self.capacity - self.count, capacity: self.capacity }
    }
}

/// How full a region is, in rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupancy {
    /// Rows in use, or waiting for a grace period.
    pub used: usize,
    /// Rows in all.
    pub capacity: usize,
}

#[derive(Debug)]
enum Retired {
    Blocks(u32, u32),
    Tail(u32),
}

/// The blocks and tails of [`Memory`], shared by all tables.
///
/// Block 0 stays empty: it is the root of a router without routes.
#[derive(Debug)]
pub struct Pool {
    blocks: Extents,
    tails: Extents,
    /// The length of the prefix that each slot's leaf (or a tail's miss) comes from, or [`POISONED`] if the slot stands
    /// for a part that found no room. Only user space needs it, so it is not in the shared memory.
    depths: Vec<u8>,
    limbo: Limbo<Retired>,
}

/// Depth of a slot that leads to the kernel because something below it found no room.
pub(crate) const POISONED: u8 = u8::MAX;

impl Pool {
    /// All rows of `memory` are free, except block 0.
    pub fn new(memory: &(impl Memory + ?Sized)) -> Self {
        Self {
            blocks: Extents::new(memory.fib().len() / words::FIB_BLOCK, 1),
            tails: Extents::new(memory.fib_tails().len() / words::FIB_TAIL, 0),
            depths: Vec::new(),
            limbo: Limbo::default(),
        }
    }

    /// Takes `rows` adjacent blocks. Every slot leads to `leaf`, whose prefix has `depth` bits.
    pub(crate) fn blocks(
        &mut self,
        memory: &(impl Memory + ?Sized),
        rows: u32,
        leaf: Slot,
        depth: u8,
    ) -> Result<u32, Full> {
        let full = Full { region: Region::FibBlocks, rows: rows as usize };
        let first = self.blocks.take(rows).ok_or(full)?;
        let slots = first as usize * words::FIB_BLOCK..(first + rows) as usize * words::FIB_BLOCK;
        if self.depths.len() < slots.end {
            self.depths.resize(slots.end, 0);
        }
        self.depths[slots.clone()].fill(depth);
        for slot in &memory.fib()[slots] {
            slot.store(leaf.0, Relaxed);
        }
        Ok(first)
    }

    pub(crate) fn tail(&mut self) -> Result<u32, Full> {
        self.tails.take(1).ok_or(Full { region: Region::FibTails, rows: 1 })
    }

    /// A block of 256 next hops chosen by flow hash: `FIB_GROUP`.
    pub fn group(&mut self, memory: &(impl Memory + ?Sized), members: &[Slot; 256]) -> Result<u32, Full> {
        let block = self.blocks(memory, 1, Slot::NO_ROUTE, 0)?;
        let base = block as usize * words::FIB_BLOCK;
        for (i, member) in members.iter().enumerate() {
            memory.fib()[base + i].store(member.0, Release);
        }
        Ok(block)
    }

    /// Nothing leads to these blocks any more.
    pub(crate) fn retire_blocks(&mut self, first: u32, rows: u32) {
        self.limbo.retire(Retired::Blocks(first, rows));
    }

    /// Nothing leads to this group any more.
    pub fn retire_group(&mut self, block: u32) {
        self.retire_blocks(block, 1);
    }

    pub(crate) fn retire_tail(&mut self, tail: u32) {
        self.limbo.retire(Retired::Tail(tail));
    }

    pub(crate) fn depth(&self, at: usize) -> u8 {
        self.depths.get(at).copied().unwrap_or(0)
    }

    pub(crate) fn set_depth(&mut self, at: usize, depth: u8) {
        if let Some(d) = self.depths.get_mut(at) {
            *d = depth;
        }
    }

    /// Ends the current epoch. Call [`Pool::reclaim`] with it after a grace period from now.
    pub fn seal(&mut self) -> Epoch {
        self.limbo.seal()
    }

    /// No reader is left from before `epoch` was sealed, so the rows retired until then are free again.
    pub fn reclaim(&mut self, epoch: Epoch) {
        while let Some(retired) = self.limbo.next(epoch) {
            match retired {
                Retired::Blocks(first, rows) => self.blocks.give(first, rows),
                Retired::Tail(tail) => self.tails.give(tail, 1),
            }
        }
    }

    /// Blocks in use, of 1,024 bytes each (block 0 and those in limbo included).
    pub fn blocks_used(&self) -> Occupancy {
        self.blocks.occupancy()
    }

    /// Tails in use, of 32 bytes each (those in limbo included).
    pub fn tails_used(&self) -> Occupancy {
        self.tails.occupancy()
    }

    /// Blocks and tails that wait for a grace period.
    pub fn retired(&self) -> (usize, usize) {
        self.limbo.iter().fold((0, 0), |(blocks, tails), r| match r {
            Retired::Blocks(_, rows) => (blocks + *rows as usize, tails),
            Retired::Tail(_) => (blocks, tails + 1),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_coalesce_and_keep_runs_apart() {
        let mut e = Extents::new(1024, 1);
        let singles: Vec<u32> = (0..10).map(|_| e.take(1).unwrap()).collect();
        assert_eq!(singles, (1..11).collect::<Vec<u32>>());
        let run = e.take(512).unwrap();
        assert_eq!(run, 512);
        assert_eq!(e.take(512), None);
        e.give(run, 512);
        for s in singles.into_iter().rev().step_by(2) {
            e.give(s, 1);
        }
        for s in [9, 1, 5, 3, 7] {
            e.give(s, 1);
        }
        assert_eq!(e.free.iter().collect::<Vec<_>>(), [(&1, &1023)]);
        assert_eq!(e.occupancy().used, 1);
    }

    #[test]
    fn nothing_is_reused_before_its_epoch() {
        let mut limbo = Limbo::default();
        limbo.retire('a');
        let first = limbo.seal();
        limbo.retire('b');
        let second = limbo.seal();
        assert_eq!((limbo.next(first), limbo.next(first)), (Some('a'), None));
        assert_eq!((limbo.next(second), limbo.next(second)), (Some('b'), None));
    }
}
