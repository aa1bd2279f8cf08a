//! Computes what queues want from the measurements of one control period.

use super::{CoreId, Queue, QueueId, View};
use std::collections::BTreeMap;

/// A queue that ran or could have run for this fraction of a period never slept, so it lacked time. A queue that slept
/// had all that it wanted, however long it waited for its turn before: behind other queues, or on a core that
/// applications keep busy.
const ALWAYS: f64 = 0.95;
/// A queue that lacked time is assumed to want at most this much more than it got, as a fraction of that. The length of
/// its wait does not show it: eight queues on a full core wait seven eighths of the time each, however little is
/// missing. With a quarter, a full core becomes two, not four. If that is not enough, the next decision sees it two
/// periods later.
const LACKS: f64 = 0.25;
/// The work of a home for each packet that it hands on (polling, deciding, the other core's ring), as a fraction of all
/// work for the packet. This is the assumption as long as a queue was not split.
const HANDING: f64 = 0.3;

/// What a queue wants, in cores.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Want {
    /// The work of the core or cores that process its packets.
    pub work: f64,
    /// The same on a core that others keep busy. It is less if waking up takes much and the cost is known.
    pub beside_others: f64,
    /// The additional work of its home while it is split.
    pub handing: f64,
}

impl Want {
    pub fn mean(a: Want, b: Want) -> Want {
        let mean = |of: fn(Want) -> f64| (of(a) + of(b)) / 2.0;
        Want {
            work: mean(|want| want.work),
            beside_others: mean(|want| want.beside_others),
            handing: mean(|want| want.handing),
        }
    }

    /// The want that it would have beside others.
    pub fn not_alone(self) -> Want {
        Want { work: self.beside_others, ..self }
    }
}

/// A fraction from any measurement.
pub(super) fn fraction(value: f64) -> f64 {
    if value.is_nan() { 0.0 } else { value.clamp(0.0, 1.0) }
}

/// Whether a queue that ran and waited for these fractions of a period lacked time.
pub(super) fn lacks_time(ran: f64, waited: f64) -> bool {
    fraction(ran) + fraction(waited) >= ALWAYS && fraction(waited) > 0.0
}

/// The time of a core.
#[derive(Default)]
struct Time {
    other: f64,
    waited: f64,
}

impl Time {
    /// What a queue wants that ran and waited here.
    fn want(&self, ran: f64, waited: f64) -> f64 {
        if !lacks_time(ran, waited) {
            return ran;
        }
        // Without other work it would have had that time, too.
        ran + waited.min(ran * LACKS + self.other * waited / self.waited)
    }
}

/// What each queue wants. `shares`: whether the home of a split queue does a share of its packets.
pub(super) fn wants(view: &View, shares: impl Fn(QueueId) -> bool) -> BTreeMap<QueueId, Want> {
    let mut times: BTreeMap<CoreId, Time> = BTreeMap::new();
    for core in &view.cores {
        times.entry(core.id).or_default().other = fraction(core.other);
    }
    for (core, ran, waited) in view.queues.iter().flat_map(ran_and_waited) {
        let time = times.entry(core).or_default();
        time.waited += if ran + waited < ALWAYS { 0.0 } else { waited };
    }
    let want = |queue: &Queue| {
        let wants = ran_and_waited(queue).map(|(core, ran, waited)| times[&core].want(ran, waited));
        let wants = wants.collect::<Vec<_>>();
        if queue.spilled.is_empty() { divide(&wants, shares(queue.id)) } else { together(&wants) }
    };
    view.queues.iter().map(|queue| (queue.id, want(queue))).collect()
}

/// Its home first, then its parts.
fn ran_and_waited(queue: &Queue) -> impl Iterator<Item = (CoreId, f64, f64)> + '_ {
    let home = (queue.core, fraction(queue.ran), fraction(queue.waited));
    let parts = queue.parts.iter().map(|part| (part.core, fraction(part.ran), fraction(part.waited)));
    std::iter::once(home).chain(parts)
}

/// In the period in which others began to help, the home's share is not known. So its work for handing packets on is
/// assumed.
fn together(wants: &[f64]) -> Want {
    let (home, parts) = (wants[0], wants[1..].iter().sum::<f64>());
    let work = parts + (home - HANDING * parts).max(0.0);
    Want { work, beside_others: work, handing: work * HANDING }
}

/// Separates a home's share of the work from the work of handing packets on. Shares are even.
fn divide(wants: &[f64], home_shares: bool) -> Want {
    let (home, parts) = (wants[0], &wants[1..]);
    if parts.is_empty() {
        return Want { work: home, beside_others: home, handing: home * HANDING };
    }
    let work: f64 = parts.iter().sum();
    let share = if home_shares { home.min(work / parts.len() as f64) } else { 0.0 };
    Want { work: work + share, beside_others: work + share, handing: home - share }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cores::{
        Part,
        tests::{core, queue},
    };

    /// Queues of one core that ran and waited this long beside other work, and what they want.
    #[test]
    fn waiting_counts_for_queues_that_never_slept() {
        type Case = (f64, &'static [(f64, f64)], &'static [f64]);
        let table: [Case; 8] = [
            (0.0, &[(0.4, 0.3), (0.4, 0.3)], &[0.4, 0.4]),
            (0.0, &[(0.5, 0.5), (0.5, 0.5)], &[0.625, 0.625]),
            (0.0, &[(0.5, 0.1), (0.5, 0.0)], &[0.5, 0.5]),
            // Applications take all time that queues leave, and give way to them.
            (0.8, &[(0.1, 0.3), (0.1, 0.3)], &[0.1, 0.1]),
            (0.5, &[(0.5, 0.5)], &[1.0]),
            (0.5, &[(0.25, 0.75), (0.25, 0.25)], &[0.25 + 0.0625 + 0.5, 0.25]),
            (1.0, &[(0.0, 1.0)], &[1.0]),
            (f64::NAN, &[(f64::NAN, 7.0), (f64::INFINITY, -1.0)], &[0.0, 1.0]),
        ];
        for (other, times, expected) in table {
            let queues = (0..).zip(times);
            let queues =
                queues.map(|(index, &(ran, waited))| Queue { ran, waited, ..queue(index, 0) }).collect();
            let view = View { cores: vec![crate::cores::Core { other, ..core(0) }], queues };
            let wants: Vec<f64> = wants(&view, |_| false).into_values().map(|want| want.work).collect();
            assert_eq!(wants, expected, "{other} {times:?}");
        }
    }

    #[test]
    fn a_home_does_its_share_and_hands_the_rest_on() {
        let parts = [1, 2].map(|core| Part { core, ran: 0.5, waited: 0.0 });
        let view =
            View { cores: vec![], queues: vec![Queue { ran: 0.75, parts: parts.into(), ..queue(0, 0) }] };
        let id = view.queues[0].id;
        assert_eq!(wants(&view, |_| true)[&id], Want { work: 1.5, beside_others: 1.5, handing: 0.25 });
        assert_eq!(wants(&view, |_| false)[&id], Want { work: 1.0, beside_others: 1.0, handing: 0.75 });
    }
}
