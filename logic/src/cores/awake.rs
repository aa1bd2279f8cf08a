//! Cores whose next packet shall not wait until they have come out of a deep sleep.

use super::{CoreId, View};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// A core that forwards for this fraction of its time shall wake up quickly, and shall until it forwards for less than the second one:
/// once it does, packets cost it less.
const BEGINS: f64 = 0.10;
const ENDS: f64 = 0.03;

/// Which cores forward, and until when each that did counts as one of them.
#[derive(Debug, Default)]
pub struct Awake {
    until: BTreeMap<CoreId, Duration>,
}

impl Awake {
    /// The cores online that forward much, queues or shares of them, or did so within `hold`.
    pub fn decide(&mut self, now: Duration, view: &View, hold: Duration) -> BTreeSet<CoreId> {
        let mut loads: BTreeMap<CoreId, f64> = BTreeMap::new();
        for queue in &view.queues {
            let parts = queue.parts.iter().map(|part| (part.core, part.ran));
            for (core, ran) in parts.chain([(queue.core, queue.ran)]) {
                *loads.entry(core).or_default() += ran;
            }
        }
        let is_awake = |core| self.until.contains_key(core);
        let forwarding =
            loads.iter().filter(|(core, load)| **load >= if is_awake(core) { ENDS } else { BEGINS });
        let until: Vec<_> = forwarding.map(|(core, _)| (*core, now + hold)).collect();
        self.until.extend(until);
        self.until.retain(|id, until| now < *until && view.cores.iter().any(|core| core.id == *id));
        self.until.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            Part, Queue,
            tests::{PERIOD, core, queue},
        },
        *,
    };

    const HOLD: Duration = Duration::from_secs(2);

    #[test]
    fn cores_that_forward_wake_quickly_and_for_a_while_after() {
        let (mut awake, mut now) = (Awake::default(), Duration::ZERO);
        let mut after = |periods: u32, cores: u16, queues: &[Queue]| {
            let view = View { cores: (0..cores).map(core).collect(), queues: queues.to_vec() };
            let mut found = BTreeSet::new();
            for _ in 0..periods {
                now += PERIOD;
                found = awake.decide(now, &view, HOLD);
            }
            Vec::from_iter(found)
        };
        let on = |core, ran| Queue { ran, ..queue(core, core) };
        assert_eq!(after(10, 4, &[on(0, 0.0), on(1, 0.09)]), []);
        // Little of each, but of one core.
        assert_eq!(after(1, 4, &[on(1, 0.06), Queue { core: 1, ..on(2, 0.06) }]), [1]);
        assert_eq!(after(1000, 4, &[on(0, 0.04), on(1, 0.04)]), [1], "what packets cost less now");
        let part = Part { core: 3, ran: 0.5, waited: 0.0 };
        assert_eq!(after(1, 4, &[Queue { parts: vec![part], ..on(0, 0.9) }]), [0, 1, 3]);
        assert_eq!(after(1, 3, &[]), [0, 1], "3 has gone offline");
        assert_eq!(after(197, 3, &[]), [0, 1]);
        assert_eq!(after(1, 3, &[]), [0], "a hold time after the last packet of 1");
        assert_eq!(after(1, 3, &[]), []);
    }
}
