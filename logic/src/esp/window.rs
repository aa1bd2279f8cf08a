//! The sequence numbers that have arrived: the anti-replay window of RFC 4303 section 3.4.3 as a ring of words (RFC
//! 6479). Also the high half of 64-bit sequence numbers (RFC 4303 appendix A2).
//!
//! ```text
//!             top - size + 1          top
//! too old     |  arrived or not       |      new: the window moves on, words that it enters are cleared
//! ```
//! The ring has at least one word more than the window, so clearing never forgets numbers within the window.
//! [`Window::check`] may run on several cores at once. It is a first check before a packet is decrypted.
//! [`Window::accept`] is exact; one thread at a time may call it, and only for packets whose tag was right.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// The allowed sizes.
const LEAST: u32 = 64;
const MOST: u32 = 1 << 16;
const WORD: u64 = 64;

/// A size that is not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a window of {0} packets is not possible: it must be a power of two from 64 to 65536")]
pub struct BadWindow(pub u32);

/// Why a packet is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stale {
    /// It arrived before.
    Replayed,
    /// Its number is before the window.
    TooOld,
}

/// See the head of this file.
#[derive(Debug)]
pub struct Window {
    /// A power of two.
    size: u64,
    is_extended: bool,
    /// Written by the holder of the lock.
    top: AtomicU64,
    ring: Box<[AtomicU64]>,
    lock: Mutex<()>,
}

/// The holder may accept numbers.
pub struct Accepting<'a> {
    window: &'a Window,
    _guard: MutexGuard<'a, ()>,
}

impl Window {
    /// A window for this many packets. No number has arrived.
    pub fn new(size: u32, is_extended: bool) -> Result<Self, BadWindow> {
        if !size.is_power_of_two() || !(LEAST..=MOST).contains(&size) {
            return Err(BadWindow(size));
        }
        let words = 2 * u64::from(size) / WORD;
        let ring: Box<[AtomicU64]> = (0..words).map(|_| AtomicU64::new(0)).collect();
        // Number 0 is never sent (RFC 4303 section 3.3.3), so it counts as arrived.
        if let Some(first) = ring.first() {
            first.store(1, Relaxed);
        }
        Ok(Window { size: size.into(), is_extended, top: AtomicU64::new(0), ring, lock: Mutex::default() })
    }

    /// The highest number that has arrived.
    pub fn top(&self) -> u64 {
        self.top.load(Relaxed)
    }

    /// The whole number of a packet with these low 32 bits. `None`: there is none, or it is before the first.
    #[inline]
    pub fn infer(&self, low: u32) -> Option<u64> {
        if !self.is_extended {
            return Some(low.into());
        }
        // RFC 4303 appendix A2.2: Tl and Th are the halves of the top, W the size.
        let (top, size) = (self.top(), self.size as u32);
        let (tl, th) = (top as u32, top >> 32);
        let bottom = tl.wrapping_sub(size - 1);
        let high = match (tl >= size - 1, low >= bottom) {
            // Case A: the window is within one half.
            (true, true) => th,
            (true, false) => th + 1,
            // Case B: it spans two.
            (false, true) => th.checked_sub(1)?,
            (false, false) => th,
        };
        (high <= u32::MAX.into()).then_some(high << 32 | u64::from(low))
    }

    /// Whether it may be accepted, as far as is known without waiting.
    #[inline]
    pub fn check(&self, number: u64) -> Result<(), Stale> {
        let top = self.top();
        if number > top {
            return Ok(());
        }
        if top - number >= self.size {
            return Err(Stale::TooOld);
        }
        if self.word(number).load(Relaxed) & bit(number) != 0 { Err(Stale::Replayed) } else { Ok(()) }
    }

    /// Waits for the lock, to accept numbers.
    pub fn lock(&self) -> Accepting<'_> {
        Accepting { window: self, _guard: self.lock.lock().unwrap_or_else(PoisonError::into_inner) }
    }

    #[inline]
    fn word(&self, number: u64) -> &AtomicU64 {
        // The number of words is a power of two.
        &self.ring[(number / WORD) as usize & (self.ring.len() - 1)]
    }
}

impl Accepting<'_> {
    /// Accepts a number. It succeeds only once.
    #[inline]
    pub fn accept(&self, number: u64) -> Result<(), Stale> {
        let window = self.window;
        window.check(number)?;
        let top = window.top();
        if number > top {
            let new = (number / WORD - top / WORD).min(window.ring.len() as u64);
            (1..=new)
                .for_each(|n| window.word((top / WORD).wrapping_add(n).wrapping_mul(WORD)).store(0, Relaxed));
            window.top.store(number, Relaxed);
        }
        let word = window.word(number);
        word.store(word.load(Relaxed) | bit(number), Relaxed);
        Ok(())
    }
}

fn bit(number: u64) -> u64 {
    1 << (number % WORD)
}
