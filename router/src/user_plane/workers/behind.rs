//! Packets that wait behind earlier ones to the same destination, which the kernel must get first.
//!
//! A worker that cannot forward a packet leaves it to the thread that gives packets to the kernel (`up.rs`), and that thread
//! may have to wait for a core. Meanwhile the worker may learn how to forward that flow itself: the next hop's MAC address
//! becomes known, for example. Its later packets would then overtake the earlier ones. So they wait until the thread has
//! given the earlier ones to the kernel.
//!
//! At most [`MOST`] packets wait, and none longer than [`LONGEST_NS`]. If that is not enough, the flow is reordered once.

use std::{
    collections::VecDeque,
    hash::{DefaultHasher, Hash, Hasher},
};

/// The most packets of a worker that wait. They are packets in hand, of which a worker may have more than ten times as many.
const MOST: usize = 64;
/// The longest time that a packet waits.
const LONGEST_NS: u64 = 10_000_000;
/// Destinations with the same hash wait for each other.
const KEYS: usize = 256;

/// A hash of a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key(u8);

impl Key {
    /// The destination of a frame; all frames without an IP address of their own have the same.
    pub fn of_frame(frame: &[u8]) -> Key {
        let ether_type = |at: usize| Some((frame.get(at)?, frame.get(at + 1)?));
        let mut at = 12;
        while matches!(ether_type(at), Some((0x81, 0x00) | (0x88, 0xa8))) {
            at += 4;
        }
        match ether_type(at) {
            Some((0x08, 0x00) | (0x86, 0xdd)) => Key::of_packet(&frame[at + 2..]),
            _ => Key(0),
        }
    }

    /// The destination of an IP packet.
    pub fn of_packet(packet: &[u8]) -> Key {
        let destination = match packet.first().map(|first| first >> 4) {
            Some(4) => packet.get(16..20),
            Some(6) => packet.get(24..40),
            _ => None,
        };
        let Some(destination) = destination else { return Key(0) };
        let mut hash = DefaultHasher::new();
        destination.hash(&mut hash);
        Key((hash.finish() % KEYS as u64) as u8)
    }
}

struct Waiting<P> {
    key: Key,
    /// The kernel must have got this many packets of the worker.
    needs: u64,
    since_ns: u64,
    packet: P,
}

/// The packets of a worker that wait.
pub(super) struct Behind<P> {
    /// By key: the number of the last packet that was left to the thread, counted from 1.
    last: Box<[u64; KEYS]>,
    waiting: VecDeque<Waiting<P>>,
}

impl<P> Default for Behind<P> {
    fn default() -> Behind<P> {
        Behind { last: Box::new([0; KEYS]), waiting: VecDeque::with_capacity(MOST) }
    }
}

impl<P> Behind<P> {
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Notes that the worker's packet of this number was left to the thread.
    pub fn note(&mut self, key: Key, number: u64) {
        self.last[usize::from(key.0)] = number;
    }

    /// Lets a packet wait if it would overtake an earlier one. Otherwise, or if there is no room, returns it. `done`: how many
    /// packets the thread has given. Packets that may leave must have been taken before.
    pub fn hold(&mut self, key: Key, done: u64, now_ns: u64, packet: P) -> Option<P> {
        let last = &mut self.last[usize::from(key.0)];
        let is_behind = self.waiting.iter().any(|earlier| earlier.key == key);
        if *last <= done && !is_behind || self.waiting.len() >= MOST {
            return Some(packet);
        }
        self.waiting.push_back(Waiting { key, needs: *last, since_ns: now_ns, packet });
        None
    }

    /// Whether a packet more would find no room.
    pub fn is_full(&self) -> bool {
        self.waiting.len() >= MOST
    }

    /// Takes the next packet that may leave now: the earlier ones have been given, or it has waited too long.
    pub fn take(&mut self, done: u64, now_ns: u64) -> Option<P> {
        let first = self.waiting.front()?;
        let is_late = now_ns.saturating_sub(first.since_ns) > LONGEST_NS;
        if first.needs > done && !is_late {
            return None;
        }
        self.take_any()
    }

    /// Takes the next packet in any case. Later ones wait no longer for what it waited for.
    pub fn take_any(&mut self) -> Option<P> {
        let Waiting { key, packet, needs, .. } = self.waiting.pop_front()?;
        let last = &mut self.last[usize::from(key.0)];
        if *last == needs {
            *last = 0;
        }
        Some(packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn taken(behind: &mut Behind<u32>, done: u64, now_ns: u64) -> Vec<u32> {
        std::iter::from_fn(|| behind.take(done, now_ns)).collect()
    }

    #[test]
    fn the_destination_is_that_of_the_innermost_tag_and_of_the_packet() {
        let mut packet = vec![0x45; 20];
        packet[16..].copy_from_slice(&[10, 1, 2, 3]);
        let framed = |tags: &[u8], packet: &[u8]| [&[0; 12], tags, packet].concat();
        let key = Key::of_packet(&packet);
        for tags in [&[8, 0][..], &[0x81, 0, 0, 7, 8, 0], &[0x88, 0xa8, 0, 1, 0x81, 0, 0, 2, 8, 0]] {
            assert_eq!(Key::of_frame(&framed(tags, &packet)), key);
        }
        packet[19] = 4;
        assert_ne!(Key::of_packet(&packet), key);
        let mut packet = vec![0x60; 40];
        let before = Key::of_packet(&packet);
        packet[39] = 1;
        assert_ne!(Key::of_frame(&framed(&[0x86, 0xdd], &packet)), before);
        let nowhere =
            [&[][..], &[0x45], &[0x81, 0, 0, 7, 8], &framed(&[8, 6], &[0; 28]), &framed(&[8, 0], &[])];
        nowhere.into_iter().for_each(|bytes| assert_eq!(Key::of_frame(bytes), Key(0)));
    }

    #[test]
    fn a_packet_waits_for_earlier_ones_to_its_destination_only() {
        let mut behind = Behind::default();
        assert_eq!(behind.hold(Key(1), 0, 0, 1), Some(1), "nothing went to the kernel");
        behind.note(Key(1), 5);
        assert_eq!(behind.hold(Key(2), 4, 0, 2), Some(2));
        assert_eq!(behind.hold(Key(1), 5, 0, 3), Some(3), "the kernel has got it");
        assert_eq!(behind.hold(Key(1), 4, 0, 4), None);
        assert_eq!(taken(&mut behind, 4, 10_000_000), [0; 0]);
        // It still waits, so a later one does not overtake it.
        assert_eq!(behind.hold(Key(1), 5, 0, 5), None);
        assert_eq!(taken(&mut behind, 5, 0), [4, 5]);
        assert!(behind.is_empty());
    }

    #[test]
    fn what_has_waited_too_long_leaves_and_lets_later_ones_pass() {
        let mut behind = Behind::default();
        behind.note(Key(1), 1);
        assert_eq!(behind.hold(Key(1), 0, 5, 1), None);
        assert_eq!(taken(&mut behind, 0, 5 + LONGEST_NS), [0; 0]);
        assert_eq!(taken(&mut behind, 0, 6 + LONGEST_NS), [1]);
        assert_eq!(behind.hold(Key(1), 0, 7 + LONGEST_NS, 2), Some(2));
        // Another packet for the kernel is waited for again.
        behind.note(Key(1), 2);
        assert_eq!(behind.hold(Key(1), 0, 0, 3), None);
    }

    #[derive(Clone, Copy)]
    struct Sent {
        key: u8,
        number: u32,
        /// What the kernel had to get before it, and when it came.
        needs: u64,
        since: u64,
    }

    proptest! {
        /// Packets of a destination leave in order. None overtakes one of the kernel's, unless there is no room or no time.
        #[test]
        fn packets_of_a_destination_are_in_order(steps in prop::collection::vec((0..6_u8, 0..3_u8), 1..400)) {
            let (mut behind, mut done, mut now) = (Behind::<Sent>::default(), 0, 0);
            // `excused`: packets of the kernel up to this number may have been overtaken.
            let (mut all, mut given, mut excused) = (0, [0; 3], [0; 3]);
            let (mut left, mut number) = (Vec::<Sent>::new(), 0);
            for (step, key) in steps {
                let at = usize::from(key);
                match step {
                    0 => {
                        all += 1;
                        given[at] = all;
                        behind.note(Key(key), all);
                    }
                    1 => done = (done + 1).min(all),
                    2 => now += LONGEST_NS / 4,
                    _ => {
                        number += 1;
                        while let Some(sent) = if behind.is_full() { behind.take_any() } else { None } {
                            excused[usize::from(sent.key)] = sent.needs;
                            left.push(sent);
                        }
                        let sent = Sent { key, number, needs: given[at], since: now };
                        if let Some(sent) = behind.hold(Key(key), done, now, sent) {
                            prop_assert!(sent.needs <= done.max(excused[at]));
                            left.push(sent);
                        }
                    }
                }
                while let Some(sent) = behind.take(done, now) {
                    let excused = &mut excused[usize::from(sent.key)];
                    if now - sent.since > LONGEST_NS {
                        *excused = sent.needs;
                    }
                    prop_assert!(sent.needs <= done.max(*excused));
                    left.push(sent);
                }
                prop_assert!(behind.waiting.len() <= MOST);
            }
            left.extend(std::iter::from_fn(|| behind.take_any()));
            prop_assert_eq!(left.len(), number as usize);
            for key in 0..3 {
                prop_assert!(left.iter().filter(|sent| sent.key == key).map(|sent| sent.number).is_sorted());
            }
        }
    }
}
