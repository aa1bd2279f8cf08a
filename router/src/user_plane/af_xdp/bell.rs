//! Wakes a sleeping worker, as packets do (eventfd(2)).

use rustix::event::{EventfdFlags, eventfd};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// Anything may ring it, any number of times; it is heard once.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    /// A bell that does not ring.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Bell> {
        Ok(Bell(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?))
    }

    pub fn ring(&self) {
        // This fails only if it was rung 2^64 - 2 times and not heard, so it already rings.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Silences the bell until it is rung again. Returns whether it rang.
    pub fn hear(&self) -> bool {
        rustix::io::read(&self.0, &mut [0; 8]).is_ok()
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_often_it_is_rung_it_is_heard_once() {
        let bell = Bell::new().unwrap();
        assert!(!bell.hear());
        (0..3).for_each(|_| bell.ring());
        assert!(bell.hear() && !bell.hear());
    }
}
