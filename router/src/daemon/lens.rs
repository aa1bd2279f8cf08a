//! Tables over memory that others write: to look up in, as the program does, and for nothing else.
//!
//! Tables take their memory over by clearing it, so these are made over an empty one, and see the other from then on.
//! What is changed while it is read gives one wrong answer at most: every word is atomic, and a lookup follows any
//! contents.

use logic::{
    memory::{Capacity, HeapMemory, Memory},
    tables::Tables,
};
use std::{
    cell::OnceCell,
    sync::atomic::{AtomicU32, AtomicU64},
};

const LEAST: Capacity = Capacity {
    fib_blocks: 16,
    fib_tails: 16,
    nexthops: 128,
    neighbour_buckets: 2,
    interface_buckets: 2,
    routers: 1,
};

/// First nothing, then the memory of someone else.
pub struct Lens<M> {
    nothing: HeapMemory,
    other: OnceCell<M>,
}

/// Tables that read `memory`. Only their lookups mean anything.
pub fn over<M: Memory>(memory: M) -> Tables<Lens<M>> {
    let tables = Tables::new(Lens { nothing: HeapMemory::new(LEAST), other: OnceCell::new() });
    let _ = tables.memory().other.set(memory);
    tables
}

impl<M: Memory> Lens<M> {
    fn now(&self) -> &dyn Memory {
        self.other.get().map_or(&self.nothing, |other| other)
    }
}

impl<M: Memory> Memory for Lens<M> {
    fn fib(&self) -> &[AtomicU32] {
        self.now().fib()
    }
    fn fib_tails(&self) -> &[AtomicU64] {
        self.now().fib_tails()
    }
    fn nexthops(&self) -> &[AtomicU64] {
        self.now().nexthops()
    }
    fn neighbour_index(&self) -> &[AtomicU64] {
        self.now().neighbour_index()
    }
    fn interface_index(&self) -> &[AtomicU64] {
        self.now().interface_index()
    }
    fn routers(&self) -> &[AtomicU64] {
        self.now().routers()
    }
}
