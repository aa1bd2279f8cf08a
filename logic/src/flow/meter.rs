//! Meters in user space (OpenFlow 1.3.5 section 5.7), for the packets that it handles: `within_meter` of `bpf/flow.h`.

use super::{
    Meter,
    rule::{Band, MeterUnit},
};
use std::collections::HashMap;

const PS_PER_S: u128 = 1_000_000_000_000;
/// Where a band says no burst: so long at its rate.
const BURST_PS: u128 = PS_PER_S / 10;

/// Each band as a virtual queue: when it will be empty, in picoseconds. A packet that finds it too long is over the rate.
#[derive(Debug, Default)]
pub struct Queues(HashMap<u32, Vec<u128>>);

impl Queues {
    /// A packet meets a meter at `now_ns`: the band that drops it.
    pub fn offer(&mut self, meter: &Meter, bytes: usize, now_ns: u64) -> Option<usize> {
        let now_ps = u128::from(now_ns) * 1000;
        let ends = self.0.entry(meter.id).or_default();
        ends.resize(meter.bands.len(), 0);
        ends.iter_mut().zip(&meter.bands).position(|(end, band)| {
            let (cost_ps, burst_ps) = costs(meter, band, bytes);
            let from = now_ps.max(*end);
            let over = from + cost_ps > now_ps + burst_ps;
            if !over {
                *end = from + cost_ps;
            }
            over
        })
    }

    /// Forgets the meters that are gone.
    pub fn retain(&mut self, is_there: impl Fn(u32) -> bool) {
        self.0.retain(|&id, _| is_there(id));
    }
}

/// How long a packet takes at the band's rate, and how long its burst does.
fn costs(meter: &Meter, band: &Band, bytes: usize) -> (u128, u128) {
    // kbit/s, or packets/s; a burst in kbit, or packets.
    let (units, per_second, burst_units) = match meter.unit {
        MeterUnit::Kbps => (8 * bytes as u128, 1000, 1000),
        MeterUnit::Pps => (1, 1, 1),
    };
    let ps = |units: u128| units * PS_PER_S / (u128::from(band.rate.max(1)) * per_second);
    (ps(units), if meter.burst { ps(u128::from(band.burst) * burst_units) } else { BURST_PS })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::rule::BandKind;

    /// How many of the packets that come each `every_us` pass in ten seconds.
    fn passing(meter: &Meter, bytes: usize, every_us: u64) -> usize {
        let mut queues = Queues::default();
        let times = (0..10_000_000).step_by(every_us as usize);
        times.filter(|us| queues.offer(meter, bytes, 5_000_000_000 + us * 1000).is_none()).count()
    }

    #[test]
    fn what_is_over_the_rate_and_its_burst_is_dropped() {
        let band = |rate, burst| Band { rate, burst, kind: BandKind::Drop };
        let meter = |unit, burst, bands| Meter { id: 1, unit, burst, stats: true, bands };
        // 10 s at 100 packets/s, and the burst of 100 ms or as given.
        assert_eq!(passing(&meter(MeterUnit::Pps, false, vec![band(100, 0)]), 60, 1000), 1000 + 9);
        assert_eq!(passing(&meter(MeterUnit::Pps, true, vec![band(100, 500)]), 60, 1000), 1000 + 499);
        assert_eq!(passing(&meter(MeterUnit::Pps, false, vec![band(100, 0)]), 60, 20_000), 500);
        // 800 kbit/s are 1000 packets of 100 bytes in a second.
        assert_eq!(passing(&meter(MeterUnit::Kbps, false, vec![band(800, 0)]), 100, 500), 10_000 + 99);
        let two = meter(MeterUnit::Pps, false, vec![band(1000, 0), band(100, 0)]);
        assert_eq!(passing(&two, 60, 1000), 1000 + 9, "the band that is exceeded");
    }
}
