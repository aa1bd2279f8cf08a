//! Locks, and files that are one user's.

use rustix::{fs::FlockOperation, io::Errno};
use std::{
    fs::{File, Metadata},
    io,
    os::unix::fs::MetadataExt,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// What group and others may not do.
const OTHERS_WRITE: u32 = 0o022;

/// Also after a thread that had it panicked: what it guards is whole at every moment.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks it, as long as it is open here or where it was handed to; false: somebody else has. Advisory: flock(2).
///
/// # Errors
/// Its file system has no locks, or fails.
pub fn lock_file(file: &File) -> io::Result<bool> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
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
