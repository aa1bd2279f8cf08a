//! When what was sent before a move has left, and how long a move may wait for that (see `router::cores::drain`).

use super::{CoreId, QueueId, View};
use std::{collections::BTreeMap, time::Duration};

/// Entries of a queue whose number is not known: as many as the least devices have.
const LEAST_ENTRIES: u32 = 256;
/// A queue that is held up may fill this part of its entries.
const PART: f64 = 0.25;
/// Packets that whoever takes from a ring takes before it sends any on (`NAPI_POLL_WEIGHT`, include/linux/netdevice.h).
const POLL: u32 = 64;

/// A ring that packets leave by, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ring {
    /// Entries.
    pub size: u32,
    /// The entry that is taken next, and the one that is put next.
    pub head: u32,
    pub tail: u32,
    /// If these are alike: nothing waits, and not as much as there are entries.
    pub is_empty: bool,
    /// Whoever takes may still have in hand what was taken.
    pub is_taking: bool,
}

/// Waits for what was in a ring at one moment. Others may put more behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backlog {
    left: u32,
    head: u32,
    /// Taken after it.
    beyond: u32,
}

impl Backlog {
    /// Of what is there now; looked at often enough that a ring is not gone through meanwhile.
    pub fn of(ring: Ring) -> Backlog {
        Backlog { left: waiting(ring), head: ring.head, beyond: 0 }
    }

    /// Has it left, and gone on?
    pub fn has_left(&mut self, now: Ring) -> bool {
        let taken = distance(self.head, now.head, now.size);
        let of_it = taken.min(self.left);
        (self.left, self.beyond, self.head) = (self.left - of_it, self.beyond + taken - of_it, now.head);
        if waiting(now) == 0 {
            self.left = 0;
        }
        self.left == 0 && (!now.is_taking || self.beyond >= POLL)
    }
}

/// Where the two entries are alike, and it is not known to be empty, all may.
fn waiting(ring: Ring) -> u32 {
    match distance(ring.head, ring.tail, ring.size) {
        0 if !ring.is_empty => ring.size,
        waiting => waiting,
    }
}

/// From one entry on to another, around the end.
fn distance(from: u32, to: u32, size: u32) -> u32 {
    if to >= from { to - from } else { (to + size).saturating_sub(from) }
}

/// For how long nothing may be polled on this core, and of these queues, so that none of them loses packets: a part of what their
/// entries hold, by the packets that came in the last period, and `most` at most. Of a queue of which is not counted what comes it
/// counts as if it filled its core with packets of a microsecond.
pub fn patience(
    view: &View,
    core: CoreId,
    others: &[QueueId],
    entries: &BTreeMap<QueueId, u32>,
    most: Duration,
) -> Duration {
    const UNCOUNTED_PPS: f64 = 1e6;
    let waits = view.queues.iter().filter(|queue| queue.core == core || others.contains(&queue.id));
    let patience = waits.map(|queue| {
        let pps = queue.counted.map_or(UNCOUNTED_PPS, |counted| counted.packets_per_s).max(1.0);
        let entries = entries.get(&queue.id).copied().filter(|entries| *entries > 0).unwrap_or(LEAST_ENTRIES);
        Duration::from_secs_f64(f64::from(entries) * PART / pps)
    });
    patience.min().map_or(most, |least| least.min(most))
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Counted, Queue, tests::queue},
        *,
    };

    fn ring(head: u32, tail: u32) -> Ring {
        Ring { size: 256, head, tail, is_empty: head == tail, is_taking: true }
    }

    #[test]
    fn what_was_there_has_left_when_the_poll_that_took_it_is_over() {
        let mut backlog = Backlog::of(ring(250, 4));
        assert!(!backlog.has_left(ring(255, 9)));
        // Around the end, with five more behind it; taken, and in hand.
        assert!(!backlog.has_left(ring(3, 9)));
        assert!(!backlog.has_left(ring(4, 9)));
        assert!(backlog.has_left(Ring { is_taking: false, ..ring(4, 9) }));
    }

    #[test]
    fn others_that_put_more_behind_it_keep_nobody_waiting() {
        let mut backlog = Backlog::of(ring(0, 10));
        assert!(!backlog.has_left(ring(10, 200)));
        assert!(!backlog.has_left(ring(73, 250)));
        assert!(backlog.has_left(ring(74, 250)), "a whole poll more was taken");
    }

    #[test]
    fn an_empty_ring_and_a_full_one() {
        let mut empty = Backlog::of(ring(7, 7));
        assert!(!empty.has_left(ring(7, 7)), "in hand");
        assert!(empty.has_left(Ring { is_taking: false, ..ring(7, 7) }));
        // Read while entries were taken.
        let mut torn = Backlog::of(Ring { is_empty: true, ..ring(7, 200) });
        assert!(!torn.has_left(Ring { is_empty: true, ..ring(90, 200) }), "193 were there");
        let full = Ring { is_empty: false, ..ring(7, 7) };
        let mut backlog = Backlog::of(full);
        assert!(!backlog.has_left(Ring { is_taking: false, ..ring(6, 7) }), "255 of 256");
        assert!(backlog.has_left(Ring { is_taking: false, ..ring(7, 8) }));
    }

    #[test]
    fn a_move_waits_for_a_part_of_what_the_fullest_queue_holds() {
        let with = |index: u16, core, packets_per_s| Queue {
            counted: Some(Counted { packets_per_s, wakeups_per_s: 0.0 }),
            ..queue(index, core)
        };
        let queues = vec![with(0, 0, 100_000.0), with(1, 1, 1000.0), with(2, 2, 5e6), queue(3, 3)];
        let view = View { cores: Vec::new(), queues };
        let id = |at: usize| view.queues[at].id;
        let most = Duration::from_millis(1);
        let entries = [(id(0), 1024), (id(2), 0)].into();
        let patience = |core, others: &[QueueId]| patience(&view, core, others, &entries, most);
        assert_eq!(patience(1, &[]), most, "64 ms");
        assert_eq!(patience(9, &[]), most, "nobody waits");
        assert_eq!(patience(1, &[id(0)]), most, "2.56 ms");
        assert_eq!(patience(1, &[id(2)]), Duration::from_nanos(12_800), "64 of 256 at 5 Mpps");
        assert_eq!(patience(3, &[id(1)]), Duration::from_micros(64), "it is not known what comes");
    }
}
