//! Do paths get their shares of a core (P6, P7)? Two paths on one worker whose packets never end, for a second; in the middle of it
//! packets of the second become longer, and so dearer: how much is measured. What each got is counted by this file, not by the scheduler.

use std::time::{Duration, Instant};

use anyhow::Result;
use logic::{
    elements::{Chain, CrcAppend, CrcCheck, Element, Forward, MOST_PACKETS, Verdict},
    paths::{Bursts, Counters, PathId, Settings},
    worker::{Exchange, Frame, Worker},
};
use router::calibrate::Buffer;
use serde_json::{Value, json};

const SECOND: Duration = Duration::from_secs(1);
/// Of the two paths.
const WEIGHTS: [[u16; 2]; 3] = [[1, 1], [1, 2], [4, 1]];
/// The most packets of a run.
const BURSTS: [u32; 2] = [1, 64];
const HEAD: usize = 256;
const FRAME: usize = 2048;
/// Bytes of a packet that costs little and of one that costs more, of a CRC appended and checked again.
const CHEAP: usize = 64;
const DEAR: usize = 1500;

/// What two paths got.
pub(super) struct Share {
    weights: [u16; 2],
    burst: u32,
    time: [Duration; 2],
    packets: [u64; 2],
    /// Of a packet of the second, in each half.
    ns: [f64; 2],
}

impl Share {
    /// How far the first one's part of the time is from what its weight says, of that.
    pub(super) fn error_percent(&self) -> f64 {
        let part = |one: f64, other: f64| one / (one + other);
        let got = part(self.time[0].as_secs_f64(), self.time[1].as_secs_f64());
        let due = part(self.weights[0].into(), self.weights[1].into());
        let worse = due.min(1.0 - due);
        (got - due).abs() / worse * 100.0
    }

    pub(super) fn line(&self) -> Value {
        json!({"case": "share", "weights": self.weights, "burst": self.burst,
               "seconds": self.time.map(|time| time.as_secs_f64()), "packets": self.packets,
               "ns_per_packet_of_the_second": self.ns, "error_percent": self.error_percent()})
    }
}

/// Packets without end.
struct Endless {
    free: Vec<Buffer>,
    bytes: [usize; 2],
}

impl Exchange for Endless {
    type Frame = Buffer;

    fn ports(&self) -> u64 {
        u64::MAX
    }

    fn receive(&mut self, path: PathId, most: usize, to: &mut Vec<Buffer>) {
        let bytes = self.bytes[usize::from(path) % 2];
        let from = self.free.len().saturating_sub(most);
        to.extend(self.free.drain(from..).map(|mut buffer| {
            buffer.set_range(HEAD..HEAD + bytes);
            buffer
        }));
    }

    fn settle(&mut self, _: PathId, buffer: Buffer, _: Verdict) {
        self.free.push(buffer);
    }
}

/// Each pair of weights, with each burst.
pub(super) fn run() -> Result<Vec<Share>> {
    let each = WEIGHTS.into_iter().flat_map(|weights| BURSTS.map(|burst| (weights, burst)));
    each.map(|(weights, burst)| share(weights, burst)).collect()
}

fn share(weights: [u16; 2], burst: u32) -> Result<Share> {
    let start = Instant::now();
    let meter = || start.elapsed().as_nanos() as u64;
    let mut worker = Worker::new(Settings {
        bursts: Bursts { longest_cycles: 100_000, switch_cycles: 0, most: burst },
        sample_every: 20,
        counted: Counters::CYCLES,
    })?;
    for weight in weights {
        let chain: Vec<Box<dyn Element>> =
            vec![Box::new(CrcAppend), Box::new(CrcCheck), Box::new(Forward::new(1))];
        worker.add(0, weight, Chain::new(chain)?)?;
    }
    let mut endless =
        Endless { free: (0..MOST_PACKETS).map(|_| Buffer::new(FRAME)).collect(), bytes: [CHEAP; 2] };
    // Once, so that costs are known.
    for _ in 0..1000 {
        worker.turn(&mut endless, meter);
    }
    let mut got = Share { weights, burst, time: [Duration::ZERO; 2], packets: [0; 2], ns: [0.0; 2] };
    let begun = Instant::now();
    let mut before = begun;
    for half in 0..2 {
        endless.bytes[1] = [CHEAP, DEAR][half];
        let (time, packets) = (got.time[1], got.packets[1]);
        while before - begun < SECOND / 2 * (half as u32 + 1) {
            let turn = worker.turn(&mut endless, meter);
            let now = Instant::now();
            if let Some(turn) = turn {
                got.time[usize::from(turn.path) % 2] += now - before;
                got.packets[usize::from(turn.path) % 2] += turn.packets as u64;
            }
            before = now;
        }
        got.ns[half] = (got.time[1] - time).as_nanos() as f64 / (got.packets[1] - packets) as f64;
    }
    Ok(got)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_of_the_smaller_part() {
        let share = |weights, ms: [u64; 2]| Share {
            weights,
            burst: 1,
            time: ms.map(Duration::from_millis),
            packets: [1; 2],
            ns: [1.0; 2],
        };
        let is = |share: Share, percent: f64| (share.error_percent() - percent).abs() < 1e-6;
        assert!(is(share([1, 1], [500, 500]), 0.0));
        assert!(is(share([1, 1], [510, 490]), 2.0));
        assert!(is(share([4, 1], [790, 210]), 5.0));
    }
}
