//! Compares windows and numbers with simple models. Has an AEAD for tests of elements.

use super::*;
use aes_gcm::{Aes128Gcm, Aes256Gcm, KeyInit, aead::AeadInPlace};
use proptest::prelude::*;
use std::collections::BTreeSet;

/// RustCrypto's AES-GCM.
pub(crate) struct Oracle(Key);

impl Oracle {
    pub(crate) fn new(key: &Key) -> Self {
        Oracle(key.clone())
    }
}

impl Aead for Oracle {
    fn seal(&self, jobs: &mut [Job<'_>]) -> bool {
        for job in jobs {
            let (text, tag) = job.text.split_last_chunk_mut::<TAG>().unwrap();
            let (nonce, aad) = (job.nonce.into(), &job.aad[..job.aad_bytes.into()]);
            *tag = match self.0.aes().len() {
                16 => Aes128Gcm::new(self.0.aes().into()).encrypt_in_place_detached(&nonce, aad, text),
                _ => Aes256Gcm::new(self.0.aes().into()).encrypt_in_place_detached(&nonce, aad, text),
            }
            .unwrap()
            .into();
            job.is_right = true;
        }
        true
    }

    fn open(&self, jobs: &mut [Job<'_>]) {
        for job in jobs {
            let (text, tag) = job.text.split_last_chunk_mut::<TAG>().unwrap();
            let (nonce, aad) = (job.nonce.into(), &job.aad[..job.aad_bytes.into()]);
            let tag = (*tag).into();
            job.is_right = match self.0.aes().len() {
                16 => Aes128Gcm::new(self.0.aes().into()).decrypt_in_place_detached(&nonce, aad, text, &tag),
                _ => Aes256Gcm::new(self.0.aes().into()).decrypt_in_place_detached(&nonce, aad, text, &tag),
            }
            .is_ok();
        }
    }
}

#[test]
fn keys_are_of_two_lengths_and_show_nothing() {
    let key = Key::new(&[0xab; 20]).unwrap();
    assert_eq!((key.aes(), key.salt()), (&[0xab; 16][..], [0xab; 4]));
    assert_eq!(Key::new(&[1; 36]).unwrap().aes().len(), 32);
    for length in (0..80).filter(|length| ![20, 36].contains(length)) {
        assert!(Key::new(&vec![1; length]).is_none(), "{length}");
    }
    assert_eq!(format!("{key:?}"), "Key");
    assert!(key == key.clone() && key != Key::new(&[[0xab; 19].as_slice(), &[0xac]].concat()).unwrap());
    assert!(key != Key::new(&[0xab; 36]).unwrap());
}

#[test]
fn a_number_is_taken_once_and_none_beyond_what_is_reserved() {
    let sequence = Sequence::new(false, 10);
    assert!(sequence.take(5).is_empty());
    assert_eq!(sequence.why(), NoNumber::Unreserved);
    sequence.reserve(13);
    sequence.reserve(12);
    assert_eq!(sequence.take(2), 11..13);
    assert_eq!(sequence.take(5), 13..14);
    assert_eq!((sequence.take(5).is_empty(), sequence.taken()), (true, 13));
    sequence.reserve(30);
    let taken = sequence.take(5);
    sequence.give_back(taken.start + 1..taken.end);
    assert_eq!((taken, sequence.take(1)), (14..19, 15..16));
    // Others took numbers in between, so they are not used again.
    let taken = sequence.take(5);
    assert_eq!(sequence.take(1), 21..22);
    sequence.give_back(taken);
    assert_eq!(sequence.take(1), 22..23);
}

#[test]
fn numbers_never_wrap() {
    for (is_extended, last) in [(false, u64::from(u32::MAX)), (true, u64::MAX)] {
        let end = Sequence::new(is_extended, last - u64::from(is_extended));
        assert_eq!(end.why(), NoNumber::Exhausted);
        let sequence = Sequence::new(is_extended, last - 3);
        sequence.reserve(u64::MAX);
        let taken = sequence.take(100);
        // The last 64-bit number is left out.
        let end = if is_extended { u64::MAX } else { last + 1 };
        assert_eq!(taken, last - 2..end);
        for _ in 0..3 {
            assert!(sequence.take(100).is_empty());
            assert_eq!(sequence.why(), NoNumber::Exhausted);
        }
    }
}

/// Remembers every number that arrived.
struct Naive {
    size: u64,
    came: BTreeSet<u64>,
}

impl Naive {
    fn accept(&mut self, number: u64) -> Result<(), Stale> {
        let top = self.came.last().copied().unwrap_or(0);
        if top >= self.size && number <= top - self.size {
            return Err(Stale::TooOld);
        }
        if number == 0 || !self.came.insert(number) { Err(Stale::Replayed) } else { Ok(()) }
    }
}

/// Steps forward and back, of all sizes.
fn steps() -> impl Strategy<Value = Vec<i64>> {
    let step = prop_oneof![8 => -3..6i64, 3 => -200..200i64, 2 => -5000..5000i64, 1 => -200_000..200_000i64];
    prop::collection::vec(step, 1..400)
}

proptest! {
    #[test]
    fn a_window_behaves_as_if_all_numbers_were_remembered(size in 6..13u32, start in 0..3u64, steps in steps()) {
        let window = Window::new(1 << size, true).unwrap();
        let mut naive = Naive { size: 1 << size, came: BTreeSet::new() };
        let mut at = start * 0x7fff_ff00;
        for step in steps {
            at = at.saturating_add_signed(step);
            let before = window.check(at);
            prop_assert_eq!(window.lock().accept(at), before, "{}", at);
            prop_assert_eq!(before, naive.accept(at), "{}", at);
            prop_assert_eq!(window.top(), naive.came.last().copied().unwrap_or(0));
        }
    }

    /// Within the window, and up to 2^32 less the window ahead of it.
    #[test]
    fn the_high_half_is_found(size in 6..17u32, top in prop_oneof![0..0x3_0000_0000u64, (1..4u64, 0..0x1000u64).prop_map(|(high, low)| high << 32 | low), any::<u64>()], back in 0..0x1_0000u64, ahead in 1..0xffff_0000u64) {
        let size = 1u32 << size;
        let window = Window::new(size, true).unwrap();
        if top > 0 {
            window.lock().accept(top).unwrap();
        }
        let older = top.checked_sub(back % u64::from(size));
        for number in older.into_iter().chain(top.checked_add(ahead.min(u64::from(u32::MAX - size)))) {
            prop_assert_eq!(window.infer(number as u32), Some(number), "top {:#x}", top);
        }
        prop_assert_eq!(Window::new(size, false).unwrap().infer(ahead as u32), Some(u64::from(ahead as u32)));
    }
}

/// The window begins at a number whose low half is 0, or one before.
#[test]
fn the_high_half_is_found_at_its_edges() {
    let window = Window::new(64, true).unwrap();
    window.lock().accept(1 << 32 | 62).unwrap();
    assert_eq!((window.infer(0), window.infer(u32::MAX)), (Some(1 << 32), Some(u32::MAX.into())));
    window.lock().accept(1 << 32 | 63).unwrap();
    assert_eq!((window.infer(0), window.infer(63)), (Some(1 << 32), Some(1 << 32 | 63)));
    assert_eq!(window.infer(u32::MAX), Some(1 << 32 | u64::from(u32::MAX)));
}

#[test]
fn there_is_no_number_before_the_first_or_after_the_last() {
    let window = Window::new(64, true).unwrap();
    // As if it were 2^32 before.
    assert_eq!(window.infer(u32::MAX), None);
    window.lock().accept(u64::MAX - 10).unwrap();
    assert_eq!(window.infer(5), None);
    for size in [0, 1, 32, 65, 96, 1 << 17] {
        assert_eq!(Window::new(size, true).unwrap_err(), BadWindow(size));
    }
}
