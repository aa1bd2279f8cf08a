//! Selects cores that should not enter a deep sleep, so that the next packet need not wait for them to wake up.

use super::{CoreId, View};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// A core that forwards for this fraction of its time should wake up quickly. This ends when it forwards for less than
/// the second fraction, because packets then cost less.
const BEGINS: f64 = 0.10;
const ENDS: f64 = 0.03;
/// Loads are smoothed over about this time. So neither an occasional burst counts for much, nor one tick of a coarse
/// clock.
const SMOOTHED: Duration = Duration::from_secs(1);

/// The cores that forward, and until when each that did counts as one of them.
#[derive(Debug, Default)]
pub struct Awake {
    last: Duration,
    /// The smoothed loads.
    loads: BTreeMap<CoreId, f64>,
    until: BTreeMap<CoreId, Duration>,
}

impl Awake {
    /// The online cores that forward much (queues or shares of them), or did so within `hold`.
    pub fn decide(&mut self, now: Duration, view: &View, hold: Duration) -> BTreeSet<CoreId> {
        let mut loads: BTreeMap<CoreId, f64> = view.cores.iter().map(|core| (core.id, 0.0)).collect();
        for queue in &view.queues {
            let parts = queue.parts.iter().map(|part| (part.core, part.ran));
            for (core, ran) in parts.chain([(queue.core, queue.ran)]) {
                loads.entry(core).and_modify(|load| *load += ran);
            }
        }
        let passed = now.saturating_sub(std::mem::replace(&mut self.last, now));
        let kept = (-passed.as_secs_f64() / SMOOTHED.as_secs_f64()).exp();
        for (core, load) in &mut loads {
            *load += (self.loads.get(core).unwrap_or(&0.0) - *load) * kept;
        }
        self.until.retain(|core, until| now < *until && loads.contains_key(core));
        for (core, load) in &loads {
            if *load >= if self.until.contains_key(core) { ENDS } else { BEGINS } {
                self.until.insert(*core, now + hold);
            }
        }
        self.loads = loads;
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
        assert_eq!(after(1000, 4, &[on(0, 0.0), on(1, 0.09)]), []);
        // A little for each queue, but both on one core.
        assert_eq!(after(200, 4, &[on(1, 0.06), Queue { core: 1, ..on(2, 0.06) }]), [1]);
        assert_eq!(after(1000, 4, &[on(0, 0.04), on(1, 0.04)]), [1], "packets cost less now");
        let part = Part { core: 3, ran: 0.5, waited: 0.0 };
        assert_eq!(after(30, 4, &[Queue { parts: vec![part], ..on(0, 0.9) }]), [0, 1, 3], "soon");
        assert_eq!(after(1, 3, &[]), [0, 1], "3 has gone offline");
        assert_eq!(after(100, 4, &[on(0, 0.1)]), [0, 1], "and counts as a new core when it comes back");
        assert_eq!(after(200, 4, &[on(0, 0.1)]), [0], "more than a hold time after the last packets of 1");
    }

    #[test]
    fn occasional_bursts_keep_no_core_awake() {
        let (mut awake, mut last) = (Awake::default(), Duration::ZERO);
        let mut is_awake = |period: u32, ran| {
            let view = View { cores: vec![core(0)], queues: vec![Queue { ran, ..queue(0, 0) }] };
            let found = !awake.decide(period * PERIOD, &view, HOLD).is_empty();
            last = if found { period * PERIOD } else { last };
            last
        };
        // Half a second of load. Then one tick of 10 ms in 200 every two seconds, as softirqs are counted, and a whole
        // period every second.
        (0..50).for_each(|period| _ = is_awake(period, 0.5));
        for period in 50..2000 {
            let burst = if period % 100 == 50 { 1.0 } else { 0.0 };
            is_awake(period, if period % 200 < 20 { 0.05 } else { burst });
        }
        assert!((Duration::from_secs(2)..Duration::from_secs(5)).contains(&last), "{last:?}");
    }
}
