//! A thread that moves others to a core while the thread that places queues occupies that core.
//!
//! To move a running thread, the caller sleeps until that thread has stopped. If the placing thread slept on the target
//! core, the moved thread would run there in the meantime. So another thread makes the call.

use super::super::{
    CoreId,
    affinity::{Affinity, Kernel},
};
use crate::base::{clock::monotonic, priority::Urgency};
use std::{
    collections::BTreeSet,
    hint::spin_loop,
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

/// The longest wait for the other thread. Usually it is woken and done within some ten microseconds.
const MOST: Duration = Duration::from_millis(1);

/// The thread; it ends when this is dropped.
#[derive(Debug)]
pub struct Elsewhere {
    slot: Arc<Slot>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Slot {
    /// Threads to move, and their new core.
    job: Mutex<Option<(Vec<u32>, CoreId)>>,
    is_done: AtomicBool,
    is_over: AtomicBool,
}

impl Elsewhere {
    /// Starts the thread, with the scheduling of the calling thread.
    pub fn begin() -> io::Result<Elsewhere> {
        let slot = Arc::new(Slot::default());
        let (own, urgency) = (slot.clone(), Urgency::of(0)?);
        let thread = thread::Builder::new().name("moving".into()).spawn(move || {
            // If the kernel refuses this, moves may take longer. The caller waits for a bounded time only.
            let _ = urgency.set(0);
            while !own.is_over.load(SeqCst) {
                own.work();
                thread::park();
            }
        })?;
        Ok(Elsewhere { slot, thread: Some(thread) })
    }

    /// Moves threads to a core, and returns when they are there, or after [`MOST`]. Never sleeps, and ignores failures.
    pub fn put(&self, threads: &[u32], to: CoreId) {
        let Some(thread) = &self.thread else { return };
        self.slot.is_done.store(false, SeqCst);
        *self.slot.job.lock().unwrap_or_else(PoisonError::into_inner) = Some((threads.to_vec(), to));
        thread.thread().unpark();
        let until = monotonic() + MOST;
        while !self.slot.is_done.load(SeqCst) && monotonic() < until {
            spin_loop();
        }
        // A job that has not begun must not run later, when the threads belong somewhere else.
        self.slot.take();
    }
}

impl Slot {
    fn take(&self) -> Option<(Vec<u32>, CoreId)> {
        self.job.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn work(&self) {
        let Some((threads, to)) = self.take() else { return };
        for thread in threads {
            // The caller repeats the move, and gets the error then.
            let _ = Kernel.allow(thread, &BTreeSet::from([to]));
        }
        self.is_done.store(true, SeqCst);
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        self.slot.is_over.store(true, SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_moved_to_a_core_by_another_thread() {
        let elsewhere = Elsewhere::begin().unwrap();
        thread::spawn(move || {
            let me = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
            let last = Kernel.allowed(me).unwrap().cores().last().unwrap();
            let on = || Vec::from_iter(Kernel.allowed(me).unwrap().cores());
            // On a busy machine a move may not be done in time, and is left undone.
            let mut tries = (0..1000).map(|_| elsewhere.put(&[me, u32::MAX], last));
            assert!(tries.any(|()| on() == [last]), "{:?}", on());
        })
        .join()
        .unwrap();
    }
}
