//! A thread that puts others on a core while the thread that places queues has that core.
//!
//! Moving a thread that runs means sleeping until it was stopped. Whoever slept on the core that it goes to would find it running there.

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

/// It is woken and done in some ten microseconds.
const MOST: Duration = Duration::from_millis(1);

/// Ends when dropped.
#[derive(Debug)]
pub struct Elsewhere {
    slot: Arc<Slot>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Slot {
    /// Threads, and where they go.
    job: Mutex<Option<(Vec<u32>, CoreId)>>,
    is_done: AtomicBool,
    is_over: AtomicBool,
}

impl Elsewhere {
    /// Begins, as urgent as the calling thread is.
    pub fn begin() -> io::Result<Elsewhere> {
        let slot = Arc::new(Slot::default());
        let (own, urgency) = (slot.clone(), Urgency::of(0)?);
        let thread = thread::Builder::new().name("moving".into()).spawn(move || {
            // Refused: it is later, which whoever waits for it bears.
            let _ = urgency.set(0);
            while !own.is_over.load(SeqCst) {
                own.work();
                thread::park();
            }
        })?;
        Ok(Elsewhere { slot, thread: Some(thread) })
    }

    /// Puts threads on a core, and returns when they are there, without sleeping. What cannot be done is left undone.
    pub fn put(&self, threads: &[u32], to: CoreId) {
        let Some(thread) = &self.thread else { return };
        self.slot.is_done.store(false, SeqCst);
        *self.slot.job.lock().unwrap_or_else(PoisonError::into_inner) = Some((threads.to_vec(), to));
        thread.thread().unpark();
        let until = monotonic() + MOST;
        while !self.slot.is_done.load(SeqCst) && monotonic() < until {
            spin_loop();
        }
        // What has not begun must not be done later, when they are to be somewhere else.
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
            // Whoever waits asks for it again, and sees why it is refused.
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
    fn a_thread_is_put_on_a_core_by_another() {
        let elsewhere = Elsewhere::begin().unwrap();
        thread::spawn(move || {
            let me = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
            let last = Kernel.allowed(me).unwrap().cores().last().unwrap();
            let on = || Vec::from_iter(Kernel.allowed(me).unwrap().cores());
            // Where others are busy it may not be done in time, and is left undone.
            let mut tries = (0..1000).map(|_| elsewhere.put(&[me, u32::MAX], last));
            assert!(tries.any(|()| on() == [last]), "{:?}", on());
        })
        .join()
        .unwrap();
    }
}
