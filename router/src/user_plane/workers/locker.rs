//! Holds what a worker has while elements run, which may never end. The first to take it out has it: the worker's thread
//! after the run, or another thread that continues in its place. So a thread that was given up finds nothing, whenever it
//! continues, and no thread waits for another.
//!
//! Putting is a store of a pointer, and taking an exchange: 9 ns together. A lock that is released and taken again costs 17
//! ns (`lab/runs/2026-11-25-locker.txt`). (`unsafe` lives here, because the [`Box`] is a raw pointer in between.)

use std::{
    ptr,
    sync::atomic::{
        AtomicPtr,
        Ordering::{AcqRel, Acquire, Release},
    },
};

/// A locker for one thing.
pub(super) struct Locker<T: Send>(AtomicPtr<T>);

impl<T: Send> Default for Locker<T> {
    fn default() -> Self {
        Locker(AtomicPtr::new(ptr::null_mut()))
    }
}

impl<T: Send> Locker<T> {
    /// Puts a thing in. The locker is empty, because only the thread that took the thing out puts one in. A thing that was
    /// still in it would never be freed.
    #[inline]
    pub fn put(&self, thing: Box<T>) {
        debug_assert!(!self.is_full());
        self.0.store(Box::into_raw(thing), Release);
    }

    /// Takes the thing out, as it was when it was put in. It belongs to the caller now.
    #[inline]
    pub fn take(&self) -> Option<Box<T>> {
        Self::boxed(self.0.swap(ptr::null_mut(), AcqRel))
    }

    /// Whether something was in it a moment ago.
    pub fn is_full(&self) -> bool {
        !self.0.load(Acquire).is_null()
    }

    /// Makes a box of a pointer that was swapped out.
    #[inline]
    fn boxed(thing: *mut T) -> Option<Box<T>> {
        // SAFETY: a pointer in the locker comes from `Box::into_raw` and was put there once. An exchange hands it out and
        // leaves none, so only one caller has it. That caller sees what was done before, because the exchange acquires what
        // the store released. `T` is `Send`.
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
    fn a_thing_is_taken_once_and_dropped_with_its_locker() {
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

    /// Two threads try to take the thing at any moment. Each time one of them gets it, and sees everything that was done
    /// before.
    #[test]
    fn one_of_two_threads_gets_it() {
        const ROUNDS: u64 = 5_000_000;
        let locker = Locker::default();
        locker.put(Box::new(0_u64));
        // Otherwise, one thread would finish before the other begins.
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
