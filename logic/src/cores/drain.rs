//! Finds when packets that were sent before a move have left, and how long a move may wait for that (see
//! `router::cores::drain`).

use super::{CoreId, QueueId, View};
use std::{collections::BTreeMap, time::Duration};

/// The assumed entries of a queue if their number is unknown: as many as the smallest devices have.
const LEAST_ENTRIES: u32 = 256;
/// A queue that is held up may fill this part of its entries.
const PART: f64 = 0.25;
/// The number of packets that the consumer of a ring takes before it sends any on (`NAPI_POLL_WEIGHT`,
/// include/linux/netdevice.h).
const POLL: u32 = 64;

/// A ring by which packets leave, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ring {
    /// Entries.
    pub size: u32,
    /// The next entry to take, and the next entry to put.
    pub head: u32,
    pub tail: u32,
    /// Decides the case in which these are equal: the ring is empty, not full.
    pub is_empty: bool,
    /// The consumer may still have packets in hand that it has taken.
    pub is_taking: bool,
}

/// Waits for the packets that were in a ring at one moment. Others may put more after them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backlog {
    left: u32,
    head: u32,
    /// Packets taken after them.
    beyond: u32,
}

impl Backlog {
    /// Waits for the packets that are there now. It must be asked so often that the consumer does not go around the
    /// ring in between.
    pub fn of(ring: Ring) -> Backlog {
        Backlog { left: waiting(ring), head: ring.head, beyond: 0 }
    }

    /// Whether these packets have left the ring and gone on.
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

/// The number of packets that may wait. If the two entries are equal, and the ring is not known to be empty, it may be
/// full.
fn waiting(ring: Ring) -> u32 {
    match distance(ring.head, ring.tail, ring.size) {
        0 if !ring.is_empty => ring.size,
        waiting => waiting,
    }
}

/// The distance from one entry to another, around the end.
fn distance(from: u32, to: u32, size: u32) -> u32 {
    if to >= from { to - from } else { (to + size).saturating_sub(from) }
}

/// How long polling may stop on this core, and for these queues, so that no queue loses packets. It is the time to fill
/// a part of their entries with the packets that arrived in the last period, and `most` at most. A queue whose packets
/// are not counted is assumed to fill its core with packets of a microsecond.
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
    fn packets_have_left_after_the_poll_that_took_them() {
        let mut backlog = Backlog::of(ring(250, 4));
        assert!(!backlog.has_left(ring(255, 9)));
        // Around the end, with five more after it. They are taken, and in hand.
        assert!(!backlog.has_left(ring(3, 9)));
        assert!(!backlog.has_left(ring(4, 9)));
        assert!(backlog.has_left(Ring { is_taking: false, ..ring(4, 9) }));
    }

    #[test]
    fn packets_that_others_put_later_are_not_waited_for() {
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
        assert_eq!(patience(3, &[id(1)]), Duration::from_micros(64), "the number of packets is unknown");
    }
}
