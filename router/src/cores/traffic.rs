//! Rates of a queue's packets and polls, from counts that only grow.

use crate::plane::Polled;
use std::time::Duration;

/// The rates of a queue in one control period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    pub packets_per_s: f64,
    pub polls_per_s: f64,
}

/// Computes [`Traffic`] from the counts of one queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct TrafficMeter {
    last: Option<(Duration, Polled)>,
    /// `None`: the queue is not counted, or there is no second count yet.
    pub traffic: Option<Traffic>,
    /// Since counting began.
    pub total: Polled,
}

impl TrafficMeter {
    /// Takes the counts at `now`; `None`: the queue is not counted.
    pub fn read(&mut self, now: Duration, polled: Option<Polled>) {
        let before = std::mem::replace(&mut self.last, polled.map(|polled| (now, polled)));
        let (Some(total), Some((since, last))) = (polled, before) else {
            (self.traffic, self.total) = (None, polled.unwrap_or_default());
            return;
        };
        let seconds = now.saturating_sub(since).as_secs_f64();
        let rate = |now: u64, last: u64| now.saturating_sub(last) as f64 / seconds;
        self.total = total;
        self.traffic = (seconds > 0.0).then(|| Traffic {
            packets_per_s: rate(total.packets, last.packets),
            polls_per_s: rate(total.polls, last.polls),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_since_the_last_reading() {
        let mut meter = TrafficMeter::default();
        let mut read = |ms, polled: Option<(u64, u64)>| {
            let polled = polled.map(|(polls, packets)| Polled { polls, packets });
            meter.read(Duration::from_millis(ms), polled);
            meter.traffic.map(|traffic| (traffic.polls_per_s, traffic.packets_per_s))
        };
        assert_eq!(read(1000, Some((10, 500))), None);
        assert_eq!(read(1010, Some((12, 600))), Some((200.0, 10_000.0)));
        assert_eq!(read(1010, Some((12, 600))), None, "no time has passed");
        assert_eq!(read(1030, Some((12, 600))), Some((0.0, 0.0)));
        // Another NAPI instance polls the queue now, and its counts begin at zero.
        assert_eq!(read(1040, Some((1, 1))), Some((0.0, 0.0)));
        assert_eq!(read(1050, None), None);
        assert_eq!(meter.total, Polled::default());
    }
}
