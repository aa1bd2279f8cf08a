//! The packets that arrive at the queues, slice by slice.

use super::{
    NS_PER_SECOND, SLICE_NS,
    random::{Poisson, pareto, stream, unit},
    scenario::{Arrivals, Point, Rate, Source},
};
use crate::fib::synthetic::Random;
use std::{cmp::Reverse, collections::BinaryHeap, ops::Range, time::Duration};

/// All sources. Two runs of a scenario see the same rates, whatever the number of queues. Only the queue of each flow
/// differs.
pub(super) struct Traffic {
    sources: Vec<FlowState>,
    queues: Vec<Arriving>,
    times: Vec<u64>,
}

/// The packets that arrive at a queue.
struct Arriving {
    streams: Vec<Stream>,
    random: Random,
}

/// The packets of a queue with one kind of arrivals.
struct Stream {
    arrivals: Arrivals,
    pps: u64,
    /// For `Poisson` and `Bursts`: the rate in the last slice, and the distribution that follows from it.
    poisson: (u64, Poisson),
    /// For `Even`: the fraction of a packet that is left over, in parts of NS_PER_SECOND.
    fraction: u64,
}

impl Arriving {
    fn pps(&mut self, arrivals: Arrivals) -> &mut u64 {
        let known = self.streams.iter().position(|stream| stream.arrivals == arrivals);
        let at = known.unwrap_or_else(|| {
            self.streams.push(Stream { arrivals, pps: 0, poisson: (0, Poisson::None), fraction: 0 });
            self.streams.len() - 1
        });
        &mut self.streams[at].pps
    }

    /// Adds the times of packets that arrive in the slice that begins at `start_ns`, in order.
    fn slice(&mut self, start_ns: u64, times: &mut Vec<u64>) {
        for stream in &mut self.streams {
            stream.slice(start_ns, &mut self.random, times);
        }
        times.sort_unstable();
    }
}

impl Stream {
    fn slice(&mut self, start_ns: u64, random: &mut Random, times: &mut Vec<u64>) {
        let packets = match self.arrivals {
            Arrivals::Even => return self.even(start_ns, times),
            Arrivals::Poisson => 1,
            Arrivals::Bursts(packets) => packets,
        };
        if self.poisson.0 != self.pps {
            self.poisson = (self.pps, Poisson::new(per_slice(self.pps) / f64::from(packets)));
        }
        // For a given number of independent events, their times are independent and uniform.
        for _ in 0..self.poisson.1.draw(random) {
            let at = start_ns + ((u128::from(random.next_u64()) * u128::from(SLICE_NS)) >> 64) as u64;
            times.extend(std::iter::repeat_n(at, packets as usize));
        }
    }

    fn even(&mut self, start_ns: u64, times: &mut Vec<u64>) {
        let parts = self.fraction + self.pps * SLICE_NS;
        for packet in 1..=parts / NS_PER_SECOND {
            let before = packet * NS_PER_SECOND - self.fraction;
            times.push(start_ns + (before - 1) / self.pps);
        }
        self.fraction = parts % NS_PER_SECOND;
    }
}

/// The number per slice for a number per second.
fn per_slice(per_second: u64) -> f64 {
    (per_second * SLICE_NS) as f64 / NS_PER_SECOND as f64
}

struct FlowState {
    source: Source,
    /// The queues of its port.
    queues: Range<usize>,
    random: Random,
    kind: Kind,
}

enum Kind {
    /// A rate that is divided among the queues by fixed shares.
    Shared {
        /// The number of flows of all queues before each, and of all queues.
        flows: Vec<u64>,
        pps: u64,
        on_off: OnOff,
    },
    /// Flows that come and go.
    Flows(BinaryHeap<Reverse<Flow>>),
}

#[derive(Default)]
struct OnOff {
    is_on: bool,
    until_ns: u64,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Flow {
    end_ns: u64,
    queue: usize,
    pps: u64,
}

impl Traffic {
    /// `ports`: the numbers of each port's queues.
    pub fn new(sources: &[Source], ports: &[Range<usize>], seed: u64) -> Self {
        let queues = ports.iter().map(|port| port.end).max().unwrap_or(0);
        let arriving =
            |queue: usize| Arriving { streams: Vec::new(), random: stream(seed, 1 << 32 | queue as u64) };
        let state = |(number, source): (usize, &Source)| {
            let mut random = stream(seed, number as u64);
            let queues = ports[usize::from(source.port)].clone();
            let kind = match source.rate {
                Rate::Elephants { .. } => Kind::Flows(BinaryHeap::new()),
                _ => Kind::Shared {
                    flows: hashed(source.flows, queues.len(), stream(seed, 2 << 32 | number as u64)),
                    pps: 0,
                    // At time 0 it becomes the other one.
                    on_off: OnOff { is_on: random.next_u64() & 1 == 0, until_ns: 0 },
                },
            };
            FlowState { source: source.clone(), queues, random, kind }
        };
        let sources = sources.iter().enumerate().map(state).collect();
        Self { sources, queues: (0..queues).map(arriving).collect(), times: Vec::new() }
    }

    /// Calls `each` with each queue and the times of the packets that arrive there in this slice. Slices come in order.
    pub fn slice(&mut self, slice: u64, mut each: impl FnMut(usize, &[u64])) {
        for source in &mut self.sources {
            source.advance(slice * SLICE_NS, &mut self.queues);
        }
        for (number, queue) in self.queues.iter_mut().enumerate() {
            self.times.clear();
            queue.slice(slice * SLICE_NS, &mut self.times);
            each(number, &self.times);
        }
    }
}

/// The number of flows of all queues before each of `queues` queues, and of all.
fn hashed(flows: Option<u32>, queues: usize, mut random: Random) -> Vec<u64> {
    let mut counts = vec![0; queues];
    match flows {
        None => counts.fill(1),
        Some(flows) => (0..flows).for_each(|_| counts[random.below(queues as u32) as usize] += 1),
    }
    let mut sum = 0;
    let before = counts.into_iter().map(|count| {
        sum += count;
        sum
    });
    std::iter::once(0).chain(before).collect()
}

impl FlowState {
    fn advance(&mut self, now_ns: u64, queues: &mut [Arriving]) {
        let queues = &mut queues[self.queues.clone()];
        let arrivals = self.source.arrivals;
        match &mut self.kind {
            Kind::Shared { flows, pps, on_off } => {
                let next = rate(&self.source.rate, now_ns, on_off, &mut self.random);
                if next == *pps {
                    return;
                }
                let all = flows[queues.len()];
                let share = |pps: u64, q: usize| pps * flows[q + 1] / all - pps * flows[q] / all;
                for (q, queue) in queues.iter_mut().enumerate() {
                    *queue.pps(arrivals) = *queue.pps(arrivals) + share(next, q) - share(*pps, q);
                }
                *pps = next;
            }
            Kind::Flows(flows) => {
                let Rate::Elephants { flows_per_second, lasting, least_pps, most_pps } = self.source.rate
                else {
                    return;
                };
                while let Some(Reverse(flow)) = flows.peek()
                    && flow.end_ns <= now_ns
                {
                    *queues[flow.queue].pps(arrivals) -= flow.pps;
                    flows.pop();
                }
                let new = Poisson::new(per_slice(flows_per_second.into()));
                for _ in 0..new.draw(&mut self.random) {
                    let pps = (f64::from(least_pps) * pareto(&mut self.random)).min(most_pps.into()) as u64;
                    let queue = self.random.below(queues.len() as u32) as usize;
                    *queues[queue].pps(arrivals) += pps;
                    flows.push(Reverse(Flow { end_ns: now_ns + ns(lasting), queue, pps }));
                }
            }
        }
    }
}

fn rate(rate: &Rate, now_ns: u64, on_off: &mut OnOff, random: &mut Random) -> u64 {
    match rate {
        Rate::Line(points) => line(points, now_ns),
        Rate::Wave { low_pps, high_pps, period } => {
            let period_ns = ns(*period);
            let x = (now_ns % period_ns) as f64 / period_ns as f64;
            // Up and down again by 3 x^2 - 2 x^3, which is nearly a sine.
            let x = 2.0 * x.min(1.0 - x);
            low_pps + ((high_pps - low_pps) as f64 * x * x * (3.0 - 2.0 * x)) as u64
        }
        Rate::OnOff { pps, on, off } => {
            while on_off.until_ns <= now_ns {
                on_off.is_on = !on_off.is_on;
                let mean = ns(if on_off.is_on { *on } else { *off });
                on_off.until_ns += mean / 2 + (mean as f64 * unit(random)) as u64;
            }
            if on_off.is_on { *pps } else { 0 }
        }
        Rate::Elephants { .. } => 0,
    }
}

fn line(points: &[Point], now_ns: u64) -> u64 {
    let after = points.partition_point(|point| ns(point.at) <= now_ns);
    match (after.checked_sub(1).and_then(|i| points.get(i)), points.get(after)) {
        (Some(a), Some(b)) => {
            let (a_ns, b_ns) = (ns(a.at), ns(b.at));
            let parts = i128::from(now_ns - a_ns) * (i128::from(b.pps) - i128::from(a.pps));
            (i128::from(a.pps) + parts / i128::from(b_ns - a_ns)) as u64
        }
        (a, b) => a.or(b).map_or(0, |point| point.pps),
    }
}

/// Scenarios last at most an hour.
fn ns(time: Duration) -> u64 {
    time.as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(flows: Option<u32>, rate: Rate, arrivals: Arrivals) -> Source {
        Source { port: 0, flows, rate, arrivals }
    }

    /// The packets that arrive at each of some queues in each slice.
    fn slices(sources: &[Source], queues: usize, count: u64) -> Vec<Vec<u64>> {
        let mut traffic = Traffic::new(sources, std::slice::from_ref(&(0..queues)), 7);
        let each = |slice| {
            let mut came = vec![0; queues];
            traffic.slice(slice, |queue, times| {
                let range = slice * SLICE_NS..(slice + 1) * SLICE_NS;
                assert!(times.is_sorted() && times.iter().all(|at| range.contains(at)), "{slice}: {times:?}");
                came[queue] = times.len() as u64;
            });
            came
        };
        (0..count).map(each).collect()
    }

    fn total(slices: &[Vec<u64>]) -> u64 {
        slices.iter().flatten().sum()
    }

    fn at(ms: u64, pps: u64) -> Point {
        Point { at: Duration::from_millis(ms), pps }
    }

    #[test]
    fn even_arrivals_are_exact() {
        // 25,000 packets a second: 2.5 in a slice, and the first queue has 12,500.
        let rate = Rate::Line(vec![at(0, 25_000)]);
        let came = slices(&[source(None, rate, Arrivals::Even)], 2, 8);
        let queue = |q: usize| came.iter().map(|slice| slice[q]).collect::<Vec<_>>();
        assert_eq!(queue(0), [1, 1, 1, 2, 1, 1, 1, 2]);
        assert_eq!(queue(1), queue(0));
    }

    #[test]
    fn packets_of_a_slice_have_their_times() {
        let times = |arrivals, pps| {
            let mut traffic = Traffic::new(
                &[source(None, Rate::Line(vec![at(0, pps)]), arrivals)],
                std::slice::from_ref(&(0..1)),
                7,
            );
            let mut all = Vec::new();
            (0..1000).for_each(|slice| traffic.slice(slice, |_, times| all.extend_from_slice(times)));
            all
        };
        let distances =
            |times: &[u64]| -> Vec<u64> { times.windows(2).map(|pair| pair[1] - pair[0]).collect() };
        let even = times(Arrivals::Even, 70_000);
        assert!(distances(&even).iter().all(|ns| (14_285..=14_286).contains(ns)), "{even:?}");
        // The deviation of independent distances is as large as their mean.
        let independent = distances(&times(Arrivals::Poisson, 1_000_000));
        let mean = independent.iter().sum::<u64>() as f64 / independent.len() as f64;
        let square = independent.iter().map(|ns| (*ns as f64 - mean).powi(2)).sum::<f64>();
        let deviation = (square / independent.len() as f64).sqrt();
        assert!(
            (950.0..1050.0).contains(&mean) && (950.0..1050.0).contains(&deviation),
            "{mean} {deviation}"
        );
        let bursts = times(Arrivals::Bursts(32), 1_000_000);
        assert!(bursts.len().abs_diff(100_000) < 10_000, "{}", bursts.len());
        assert!(bursts.chunk_by(|a, b| a == b).all(|burst| burst.len() % 32 == 0));
    }

    #[test]
    fn lines_are_level_outside_and_straight_between_their_points() {
        let points = [at(10, 1000), at(20, 2000), at(20, 500), at(40, 0)];
        let rates = [0, 10, 15, 19, 20, 30, 40, 99].map(|ms| line(&points, ms * 1_000_000));
        assert_eq!(rates, [1000, 1000, 1500, 1900, 500, 250, 0, 0]);
    }

    #[test]
    fn shares_of_queues_add_up_while_rates_change() {
        let ramp = Rate::Line(vec![at(0, 0), at(1000, 2_000_000)]);
        let hashed = source(Some(10), ramp.clone(), Arrivals::Even);
        let came = slices(&[hashed, source(None, ramp, Arrivals::Even)], 3, 10_000);
        // Two triangles of a million, less fractions of packets and the packets of the last slice.
        assert!((1_999_700..=2_000_000).contains(&total(&came)), "{}", total(&came));
    }

    #[test]
    fn a_wave_is_low_high_and_low_again() {
        let wave = Rate::Wave { low_pps: 100, high_pps: 300, period: Duration::from_secs(4) };
        let mut random = stream(0, 0);
        let mut rate = |ms: u64| rate(&wave, ms * 1_000_000, &mut OnOff::default(), &mut random);
        assert_eq!([0, 1000, 2000, 3000, 4000].map(&mut rate), [100, 200, 300, 200, 100]);
    }

    #[test]
    fn bursts_take_their_share_of_the_time() {
        let (on, off) = (Duration::from_millis(10), Duration::from_millis(30));
        let bursts = Rate::OnOff { pps: 1_000_000, on, off };
        let came = slices(&[source(Some(5), bursts, Arrivals::Even)], 1, 100_000);
        assert!(came.iter().all(|slice| slice[0] == 0 || slice[0] == 100));
        assert!((2_400_000..2_600_000).contains(&total(&came)), "{}", total(&came));
        let lengths: Vec<usize> = came.chunk_by(|a, b| a == b).map(|same| same.len()).collect();
        let bursts = || lengths[1..].iter().copied().filter(|&slices| slices < 150);
        // 5 to 15 ms of packets, 15 to 45 of silence.
        assert!(lengths.iter().all(|&slices| (50..=451).contains(&slices)), "{lengths:?}");
        assert!(bursts().min() < Some(55) && bursts().max() > Some(145), "{lengths:?}");
    }

    #[test]
    fn elephants_come_and_go_and_are_the_same_for_any_number_of_queues() {
        let lasting = Duration::from_millis(100);
        let rate = Rate::Elephants { flows_per_second: 2000, lasting, least_pps: 1000, most_pps: 100_000 };
        let source = source(None, rate, Arrivals::Even);
        let [one, many] = [1, 8].map(|queues| slices(std::slice::from_ref(&source), queues, 50_000));
        // Equal except for fractions of packets in 8 queues.
        assert!(total(&one).abs_diff(total(&many)) <= 8);
        // The mean rate of a flow is 1000 * (4 - 3 * 100^(-1/3)) = 3354. 200 at once have 671,000 a second.
        assert!((3_200_000..3_500_000).contains(&total(&one)), "{}", total(&one));
        let of_queue = |q: usize| many.iter().map(|slice| slice[q]).sum::<u64>();
        assert!((0..8).all(|q| (350_000..500_000).contains(&of_queue(q))));
    }

    #[test]
    fn flows_are_hashed() {
        let flows = hashed(Some(1000), 4, stream(1, 1));
        assert_eq!(flows[4], 1000);
        assert!(flows.windows(2).all(|pair| (200..300).contains(&(pair[1] - pair[0]))), "{flows:?}");
        assert_eq!(hashed(None, 3, stream(1, 1)), [0, 1, 2, 3]);
    }
}
