//! Locks, and files that are one user's.

use std::{
    fs::Metadata,
    os::unix::fs::MetadataExt,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// What group and others may not do.
const OTHERS_WRITE: u32 = 0o022;

/// Also after a thread that had it panicked: what it guards is whole at every moment.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does a file belong to who runs Millrace, and may nobody else write it?
pub fn is_ours_alone(file: &Metadata) -> bool {
    is_owned(file, &[rustix::process::geteuid().as_raw()])
}

/// As [`is_ours_alone`], or does it belong to root?
pub fn is_ours_or_roots_alone(file: &Metadata) -> bool {
    is_owned(file, &[0, rustix::process::geteuid().as_raw()])
}

fn is_owned(file: &Metadata, by: &[u32]) -> bool {
    by.contains(&file.uid()) && file.mode() & OTHERS_WRITE == 0
}
