//! For tests: readers in threads, and a grace period that waits for them.

use std::sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};

/// One counter per reader, odd while it is reading.
#[derive(Default)]
pub(crate) struct Readers {
    sections: [AtomicUsize; 2],
    stop: AtomicBool,
}

/// Ends the section also if an assertion fails, so nobody waits for a thread that is gone.
struct Section<'a>(&'a AtomicUsize);

impl<'a> Section<'a> {
    fn enter(counter: &'a AtomicUsize) -> Self {
        counter.fetch_add(1, SeqCst);
        Section(counter)
    }
}

impl Drop for Section<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

impl Readers {
    /// Runs `write` while two threads call `read` repeatedly, each with its own state.
    pub(crate) fn race<S>(
        &self,
        state: impl Fn(usize) -> S + Sync,
        read: impl Fn(&mut S) + Sync,
        write: impl FnOnce(),
    ) {
        std::thread::scope(|scope| {
            for (n, counter) in self.sections.iter().enumerate() {
                let (state, read) = (&state, &read);
                scope.spawn(move || {
                    let mut state = state(n);
                    while !self.stop.load(Relaxed) {
                        let _section = Section::enter(counter);
                        (0..16).for_each(|_| read(&mut state));
                    }
                });
            }
            let _stop = Stop(&self.stop);
            write();
        });
    }

    /// Returns after every section that was open has ended.
    pub(crate) fn grace_period(&self) {
        for counter in &self.sections {
            let seen = counter.load(SeqCst);
            while seen % 2 == 1 && counter.load(SeqCst) == seen {
                std::thread::yield_now();
            }
        }
    }
}
