//! A worker that hangs: another thread takes over what it had.
//!
//! ```text
//!  thread that hangs          locker               control                    new thread of the same core
//!  Goods ──────────────────►  Goods
//!  elements run ...              │   is still (`watch.rs`): starts it ───────►  on whichever core of workers
//!                                └──────────► takes them ── gives them ───────► goes on: rings, other paths and their chains as they were;
//!  ... end: nothing here                                                        the path that hung has a new chain
//!  packets and pool go back to the depot; the thread ends
//! ```
//!
//! The first to take the goods out of the locker has them, so the thread may continue at any moment. It finds all of its
//! goods, or none and then ends. It keeps its packets, its chain, and what it reads of the tables, which is not used again
//! before it has ended ([`super::Epochs`]). Workers are known by the number of their core, so nothing of the plan changes.
//! The next plan holds for the new thread as for any worker.
//!
//! A thread that hangs anywhere else than in elements holds its goods itself. It keeps them until it continues, and is
//! reported as silent.

use super::{
    control::Control,
    inner::Goods,
    rounds::MOST_FAULTS,
    thread::{NotTaken, Thread},
};
use crate::user_plane::af_xdp::POOL_FRAMES;
use anyhow::Context;
use logic::cores::CoreId;

/// A thread that was taken over, until it ends.
pub(super) struct Left {
    core: CoreId,
    /// The path whose run it is in, and the number of packets of that run.
    path: String,
    packets: u64,
    thread: Thread,
}

/// Goods that were taken from a thread and not given to another yet.
pub(super) struct Orphan {
    goods: Box<Goods>,
    is_too_much: bool,
}

impl Control {
    /// Takes over from all workers that make no progress; returns whether there was one.
    pub fn take_over_silent(&mut self) -> bool {
        self.left.retain(|left| !left.thread.has_ended());
        for (core, orphan) in std::mem::take(&mut self.orphans) {
            self.hand_over(core, orphan);
        }
        let still = |(core, thread): (&CoreId, &Thread)| thread.standing().is_still().then_some(*core);
        let still: Vec<CoreId> = self.threads.iter().filter_map(still).collect();
        still.into_iter().filter(|core| self.take_over(*core)).count() > 0
    }

    /// False: there is nothing to take, or no thread to take it.
    fn take_over(&mut self, core: CoreId) -> bool {
        let is_full = self.threads.get(&core).is_some_and(|old| old.locker().is_full());
        // The new thread is there before anything is taken.
        let new = is_full.then(|| {
            self.start(core, true)
                .with_context(|| format!("replacing the thread of the worker on core {core}"))
        });
        let Some(Some(new)) = new.map(|new| self.note(new)) else { return false };
        let Some(old) = self.threads.get(&core) else { return false };
        let goods = old.standing().is_still().then(|| old.locker().take()).flatten();
        let Some(goods) = goods else { return false };
        old.is_left();
        let (path, packets) =
            goods.in_run().map_or_else(Default::default, |(path, packets)| (goods.name(path), packets));
        // The hung thread will not hold more frames than these.
        goods.pool.shrink(u32::try_from(packets).unwrap_or(u32::MAX).saturating_add(POOL_FRAMES as u32));
        let Some(thread) = self.threads.insert(core, new) else { return false };
        self.left.push(Left { core, path, packets, thread });
        let (left, before) = (self.left.last(), self.left.iter().rev().skip(1));
        let is_same = |other: &&Left| left.is_some_and(|left| left.path == other.path);
        let is_too_much = before.filter(is_same).count() + 1 >= MOST_FAULTS;
        *self.taken_over.entry(core).or_default() += 1;
        self.problems().iter().for_each(|problem| tracing::warn!("{problem}"));
        self.hand_over(core, Orphan { goods, is_too_much });
        true
    }

    fn hand_over(&mut self, core: CoreId, orphan: Orphan) {
        let Some(thread) = self.threads.get(&core) else { return };
        let bell = thread.bell();
        let given = thread.give(orphan, move |inner, Orphan { goods, is_too_much }| {
            inner.take_over(goods, bell, is_too_much)
        });
        if let Err(NotTaken { error, thing }) = given {
            self.orphans.extend(thing.map(|orphan| (core, orphan)));
            self.note::<()>(Err(error));
        }
    }

    /// What is wrong with workers, for people, as long as it lasts.
    pub fn problems(&self) -> Vec<String> {
        let left = self.left.iter().filter(|left| !left.thread.has_ended()).map(|Left { core, path, packets, .. }| {
            format!(
                "a thread of the worker on core {core} hangs in path {path}; another thread has taken over, and {packets} packets \
                 are lost"
            )
        });
        let away =
            self.threads.iter().filter(|(_, thread)| thread.standing().has_no_core()).map(|(core, _)| {
                format!("core {core} has no time for its worker, which runs on other cores until it has")
            });
        left.chain(away).collect()
    }

    /// How often the worker of this core was taken over.
    pub fn taken_over(&self, core: CoreId) -> u64 {
        self.taken_over.get(&core).copied().unwrap_or_default()
    }
}
