//! Do paths get their shares of a core (P6, P7)? Two paths on one worker always have packets, for a second. In the
//! middle of it, packets of the second path become longer, and so ten times as dear. Measurements before the trial find
//! the length for that. The factor in the trial itself is reported; where it was not ten, the result is not called so.
//! This file counts what each path got, not the scheduler.
//!
//! Time is the machine's time. If something else takes the core away, the path that runs then is charged, and the
//! longest turn shows it. The other path's turns make up for it, unless the second ends first. A turn lasts from the
//! end of the turn before it to its own end, as the scheduler's meter reads it. With two separate readings of a clock,
//! a core taken away between them would count for one path here and for the other there; on a busy machine this made up
//! to 4 % of difference. The time of a packet is a median over turns, so that it does not include what the machine
//! takes.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use logic::{
    elements::{Chain, CrcAppend, CrcCheck, Element, Forward, MOST_PACKETS, Verdict},
    paths::{Bursts, Counters, PathId, Settings},
    worker::{Exchange, Frame, Worker},
};
use router::user_plane::calibrate::Buffer;
use serde_json::{Value, json};

use super::median;

const SECOND: Duration = Duration::from_secs(1);
/// Weights of the two paths.
const WEIGHTS: [[u16; 2]; 3] = [[1, 1], [1, 2], [4, 1]];
/// Most packets of a run.
const BURSTS: [u32; 2] = [1, 64];
const HEAD: usize = 256;
const FRAME: usize = 32 << 10;
/// Bytes of a packet that costs little, and the most that one has.
const CHEAP: usize = 64;
const LONGEST: usize = FRAME - 2 * HEAD;
/// A CRC is appended and checked this many times, so that the cost depends on the bytes. Otherwise the fixed cost of a
/// run of one packet would be more than a tenth of the cost of any packet.
const CRCS: usize = 16;
/// How many times as dear packets shall become, and the range that is good enough.
const DEARER: f64 = 10.0;
const AS_GOOD: std::ops::RangeInclusive<f64> = 9.0..=11.0;
/// Tries before the factor is reported as it is: a machine that is busy with something else can cause any factor.
const TRIES: usize = 3;
/// To find the length: the number of steps, and how often each length is compared with the short one.
const STEPS: usize = 4;
const COMPARED: usize = 5;
const WINDOW: Duration = Duration::from_millis(10);
/// The time of a packet is kept from one turn in this many, starting with the first.
const KEPT: u64 = 4;

/// Results of two paths.
pub(super) struct Share {
    weights: [u16; 2],
    burst: u32,
    /// Length of a packet of the second path, in each half.
    bytes: [usize; 2],
    time: [Duration; 2],
    packets: [u64; 2],
    /// Time of a packet of the second path, in each half.
    ns: [f64; 2],
    longest_turn: Duration,
}

impl Share {
    /// How far the first path's part of the time is from its share by weight, in percent of the smaller share.
    pub(super) fn error_percent(&self) -> f64 {
        let part = |one: f64, other: f64| one / (one + other);
        let got = part(self.time[0].as_secs_f64(), self.time[1].as_secs_f64());
        let due = part(self.weights[0].into(), self.weights[1].into());
        let worse = due.min(1.0 - due);
        (got - due).abs() / worse * 100.0
    }

    /// How many times as dear packets of the second path became.
    fn cost_factor(&self) -> f64 {
        self.ns[1] / self.ns[0]
    }

    fn is_ten_times(&self) -> bool {
        AS_GOOD.contains(&self.cost_factor())
    }

    pub(super) fn line(&self) -> Value {
        json!({"case": "share", "weights": self.weights, "burst": self.burst, "bytes_of_the_second": self.bytes,
               "seconds": self.time.map(|time| time.as_secs_f64()), "packets": self.packets,
               "ns_per_packet_of_the_second": self.ns, "cost_factor": self.cost_factor(), "is_ten_times": self.is_ten_times(),
               "longest_turn_ms": self.longest_turn.as_secs_f64() * 1e3, "error_percent": self.error_percent()})
    }
}

/// The least and the most over all.
fn range(shares: &[Share], of: impl Fn(&Share) -> f64) -> Option<[f64; 2]> {
    let all = || shares.iter().map(&of);
    Some([all().min_by(f64::total_cmp)?, all().max_by(f64::total_cmp)?])
}

/// Fields of the document.
pub(super) fn figures(shares: &[Share]) -> Value {
    let ten_times = (!shares.is_empty()).then(|| shares.iter().all(Share::is_ten_times));
    json!({
        "share_error_percent": range(shares, Share::error_percent).map(|[_, most]| most),
        "share_cost_factor": range(shares, Share::cost_factor),
        "share_is_ten_times": ten_times,
    })
}

/// Prints the results in words.
pub(super) fn print(shares: &[Share]) {
    let Some(([_, error], [least, most])) =
        range(shares, Share::error_percent).zip(range(shares, Share::cost_factor))
    else {
        return;
    };
    println!(
        "\nshares of two paths, packets of the second of which become {least:.1} to {most:.1} times as dear in the middle: at most {error:.2} % off"
    );
    for share in shares.iter().filter(|share| !share.is_ten_times()) {
        println!(
            "weights {:?}, bursts of {}: packets became {:.1} times as dear instead of ten times, so this shows nothing about ten times",
            share.weights,
            share.burst,
            share.cost_factor()
        );
    }
}

/// An exchange that always has packets.
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

/// Two paths on a worker, and their results.
struct Bench {
    worker: Worker<Buffer>,
    endless: Endless,
    begun: Instant,
    /// End of the last turn, by the meter.
    ended: Cell<Instant>,
    time: [Duration; 2],
    packets: [u64; 2],
    longest_turn: Duration,
}

impl Bench {
    fn new(weights: [u16; 2], burst: u32) -> Result<Self> {
        let mut worker = Worker::new(Settings {
            bursts: Bursts { longest_cycles: 100_000, switch_cycles: 0, most: burst },
            sample_every: 20,
            counted: Counters::CYCLES,
        })?;
        for weight in weights {
            let crcs = (0..CRCS).flat_map(|_| [Box::new(CrcAppend) as Box<dyn Element>, Box::new(CrcCheck)]);
            worker.add(0, weight, Chain::new(crcs.chain([Box::new(Forward::new(1)) as _]).collect())?)?;
        }
        let free = (0..MOST_PACKETS).map(|_| Buffer::new(FRAME)).collect();
        let begun = Instant::now();
        Ok(Bench {
            worker,
            endless: Endless { free, bytes: [CHEAP; 2] },
            begun,
            ended: Cell::new(begun),
            time: [Duration::ZERO; 2],
            packets: [0; 2],
            longest_turn: Duration::ZERO,
        })
    }

    /// Takes turns for this long, from the end of the last one. Returns nanoseconds a packet of the second path.
    fn run(&mut self, time: Duration) -> Result<f64> {
        let (begun, ended) = (self.begun, &self.ended);
        let ends = ended.get() + time;
        let meter = || {
            ended.set(Instant::now());
            (ended.get() - begun).as_nanos() as u64
        };
        let (mut each, mut turns) = (Vec::new(), 0_u64);
        while ended.get() < ends {
            let before = ended.get();
            let turn = self.worker.turn(&mut self.endless, meter).context("both paths sleep")?;
            let took = ended.get() - before;
            let path = usize::from(turn.path) % 2;
            self.time[path] += took;
            self.packets[path] += turn.packets as u64;
            self.longest_turn = self.longest_turn.max(took);
            if path == 1 {
                if turns % KEPT == 0 {
                    each.push(took.as_nanos() as f64 / turn.packets as f64);
                }
                turns += 1;
            }
        }
        Ok(median(&each))
    }

    /// Length at which packets of the second path cost ten times as much as short ones. A part of the cost depends on
    /// the length, and a part is the same for all.
    fn dear_bytes(&mut self) -> Result<usize> {
        let mut bytes = LONGEST / 4;
        for _ in 0..STEPS {
            let mut factors = Vec::new();
            for _ in 0..COMPARED {
                self.endless.bytes[1] = CHEAP;
                let cheap = self.run(WINDOW)?;
                self.endless.bytes[1] = bytes;
                factors.push(self.run(WINDOW)? / cheap);
            }
            // A window in which something else had the core has no meaning.
            factors.retain(|factor: &f64| factor.is_finite());
            if factors.is_empty() {
                continue;
            }
            let longer = (DEARER - 1.0) / (median(&factors) - 1.0).max(0.1);
            bytes = (CHEAP + ((bytes - CHEAP) as f64 * longer) as usize).clamp(CHEAP + 1, LONGEST);
        }
        Ok(bytes)
    }
}

/// Measures each pair of weights with each burst.
pub(super) fn run() -> Result<Vec<Share>> {
    let each = WEIGHTS.into_iter().flat_map(|weights| BURSTS.map(|burst| (weights, burst)));
    each.map(|(weights, burst)| share(weights, burst)).collect()
}

/// Returns the first of a few tries in which packets became ten times as dear, or the last one.
fn share(weights: [u16; 2], burst: u32) -> Result<Share> {
    let mut share = one_second(weights, burst)?;
    for _ in 1..TRIES {
        if share.is_ten_times() {
            break;
        }
        share = one_second(weights, burst)?;
    }
    Ok(share)
}

fn one_second(weights: [u16; 2], burst: u32) -> Result<Share> {
    let bytes = [CHEAP, Bench::new(weights, burst)?.dear_bytes()?];
    let mut bench = Bench::new(weights, burst)?;
    // Run until costs are known.
    bench.run(WINDOW)?;
    (bench.time, bench.packets, bench.longest_turn) = ([Duration::ZERO; 2], [0; 2], Duration::ZERO);
    let begun = bench.ended.get();
    let mut ns = [0.0; 2];
    for half in 0..2 {
        bench.endless.bytes[1] = bytes[half];
        let ends = begun + SECOND / 2 * (half as u32 + 1);
        ns[half] = bench.run(ends.saturating_duration_since(bench.ended.get()))?;
    }
    let Bench { time, packets, longest_turn, .. } = bench;
    Ok(Share { weights, burst, bytes, time, packets, ns, longest_turn })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_of_the_smaller_part() {
        let share = |weights, ms: [u64; 2]| Share {
            weights,
            burst: 1,
            bytes: [CHEAP; 2],
            time: ms.map(Duration::from_millis),
            packets: [1; 2],
            ns: [1.0, 10.5],
            longest_turn: Duration::ZERO,
        };
        let is = |share: Share, percent: f64| (share.error_percent() - percent).abs() < 1e-6;
        assert!(is(share([1, 1], [500, 500]), 0.0));
        assert!(is(share([1, 1], [510, 490]), 2.0));
        assert!(is(share([4, 1], [790, 210]), 5.0));
    }
    #[test]
    fn a_factor_other_than_ten_is_not_called_ten() {
        let dearer = |ns| Share {
            weights: [1, 1],
            burst: 1,
            bytes: [CHEAP, LONGEST],
            time: [SECOND / 2; 2],
            packets: [1; 2],
            ns: [1.0, ns],
            longest_turn: Duration::ZERO,
        };
        let of = |factors: &[f64]| figures(&factors.iter().copied().map(dearer).collect::<Vec<_>>());
        assert_eq!(of(&[9.1, 10.9])["share_is_ten_times"], true);
        for factors in [[8.9, 10.0], [10.0, 11.1], [10.0, f64::NAN]] {
            assert_eq!(of(&factors)["share_is_ten_times"], false, "{factors:?}");
        }
        assert_eq!(of(&[1.5, 10.0])["share_cost_factor"], json!([1.5, 10.0]));
        assert_eq!(of(&[])["share_is_ten_times"], Value::Null);
    }
}
