//! What a worker has lies here while elements run, which may not end. Who takes it out first has it: its thread, when they are through, or another that
//! goes on in its place. So a thread that was given up finds nothing, at whichever moment it goes on, and nobody waits for anybody.
//!
//! To put it in is a store of a pointer, to take it out an exchange: 9 ns together, where a lock that is given up and taken again takes 17
//! (`lab/runs/2026-11-25-locker.txt`). (`unsafe` lives here: a [`Box`] that is a pointer in between.)

use std::{
    ptr,
    sync::atomic::{
        AtomicPtr,
        Ordering::{AcqRel, Acquire, Release},
    },
};

/// Of one thing.
pub(super) struct Locker<T: Send>(AtomicPtr<T>);

impl<T: Send> Default for Locker<T> {
    fn default() -> Self {
        Locker(AtomicPtr::new(ptr::null_mut()))
    }
}

impl<T: Send> Locker<T> {
    /// It is empty, as whoever puts something in has taken it out; what it had would never be freed.
    #[inline]
    pub fn put(&self, thing: Box<T>) {
        debug_assert!(!self.is_full());
        self.0.store(Box::into_raw(thing), Release);
    }

    /// It is the caller's now, as the last who put it in left it.
    #[inline]
    pub fn take(&self) -> Option<Box<T>> {
        Self::boxed(self.0.swap(ptr::null_mut(), AcqRel))
    }

    /// There was something in it a moment ago.
    pub fn is_full(&self) -> bool {
        !self.0.load(Acquire).is_null()
    }

    /// Of a pointer that was swapped out.
    #[inline]
    fn boxed(thing: *mut T) -> Option<Box<T>> {
        // SAFETY: a pointer in the locker is from `Box::into_raw`, put there once; an exchange hands it out and leaves none, so one caller has it. That one sees what was
        // done before (it acquires what was released when it was put in). `T` may go from thread to thread.
        (!thing.is_null()).then(|| unsafe { Box::from_raw(thing) })
    }
}

impl<T: Send> Drop for Locker<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        sync::{Arc, Barrier},
        thread,
    };

    #[test]
    fn what_is_in_it_is_taken_once_and_dropped_with_it() {
        let locker = Locker::default();
        let thing = Arc::new(());
        assert!(locker.take().is_none() && !locker.is_full());
        locker.put(Box::new(thing.clone()));
        assert!(locker.is_full());
        assert!(locker.take().is_some() && locker.take().is_none());
        assert_eq!(Arc::strong_count(&thing), 1);
        locker.put(Box::new(thing.clone()));
        drop(locker);
        assert_eq!(Arc::strong_count(&thing), 1);
    }

    /// Two that want it at any moment: each time one of them has it, and sees all that was done before.
    #[test]
    fn one_of_two_has_it() {
        const ROUNDS: u64 = 5_000_000;
        let locker = Locker::default();
        locker.put(Box::new(0_u64));
        // Without it one would be through before the other is there.
        let both = Barrier::new(2);
        let counts = || {
            both.wait();
            (0..ROUNDS).map(|_| {
                let Some(mut count) = locker.take() else { return 0 };
                *count += 1;
                locker.put(count);
                1
            })
        };
        let had = thread::scope(|scope| {
            let other = scope.spawn(|| counts().sum::<u64>());
            counts().sum::<u64>() + other.join().unwrap()
        });
        assert_eq!(locker.take().as_deref(), Some(&had));
        assert!(had > 0);
    }
}
