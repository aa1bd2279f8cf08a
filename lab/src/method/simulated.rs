//! A forwarder that consists of arithmetic, to test the procedures with.

use std::collections::VecDeque;

use anyhow::Result;

use super::{
    Latency, Outcome, Trial,
    back_to_back::Burst,
    isolation::{Streams, TwoStreams},
    recovery::{Change, Changed},
    reset::{Event, Outage, Reset},
};

const SECOND_NS: u64 = 1_000_000_000;

/// Forwards what it can and drops the rest. Time counts in trials of one second.
#[derive(Default)]
pub struct Forwarder {
    pub capacity_pps: u64,
    /// Frames that can wait when they come faster than they can be forwarded.
    pub buffer: u64,
    /// Rate of back-to-back frames.
    pub line_pps: u64,
    /// The generator's limit.
    pub generator_pps: Option<u64>,
    /// Share lost at any rate, in parts per million.
    pub loss_ppm: u64,
    /// The cost of shedding: the part of the capacity that every packet over it takes away, in parts per million.
    pub shed_ppm: u64,
    /// Latency when idle. It grows with load. `None`: trials do not measure it.
    pub idle_ns: Option<u64>,
    /// Added to the latencies of trials, one value for each.
    pub jitter_ns: VecDeque<u64>,
    /// Packets lost for other reasons, one value for each trial.
    pub noise: VecDeque<u64>,
    /// How long losses continue after an overload.
    pub recovery_ns: Option<u64>,
    /// How long nothing is forwarded after a reset.
    pub outage_ns: u64,
    /// The victim has its share of the capacity for itself until this many packets come in all.
    pub isolates_until_pps: u64,
    /// Trials, from the first one, in which the generator is delayed.
    pub disturbed: usize,
    /// Trials, after those, in which it is delayed until the end, and the few packets that were sent arrive.
    pub starved: usize,
    /// Trials, after those, in which something else has the router's core, and most is lost.
    pub stolen: usize,
    /// Rates (or burst lengths) that were asked for; with two streams, first the victim's.
    pub asked: Vec<u64>,
    /// How many of them were announced as repeats.
    pub repeated: usize,
    /// Events so far.
    pub events: Vec<Event>,
}

impl Forwarder {
    pub fn new(capacity_pps: u64) -> Self {
        Self { capacity_pps, ..Self::default() }
    }

    fn send(&mut self, pps: u64) -> Outcome {
        let sent = self.generator_pps.map_or(pps, |most| most.min(pps));
        let over = sent.saturating_sub(self.capacity_pps);
        let through = sent.min(self.capacity_pps) - over * self.shed_ppm / 1_000_000;
        let received = through - through * self.loss_ppm / 1_000_000;
        self.outcome(sent, received)
    }

    fn outcome(&mut self, sent: u64, received: u64) -> Outcome {
        if self.disturbed > 0 {
            self.disturbed -= 1;
            let half = sent / 2;
            return Outcome { sent: half, skipped: half, offered_pps: half as f64, ..Outcome::default() };
        }
        if self.starved > 0 {
            self.starved -= 1;
            return Outcome {
                sent: 15,
                received: 15,
                offered_pps: 15.0,
                received_pps: 15.0,
                ..Outcome::default()
            };
        }
        if self.stolen > 0 {
            self.stolen -= 1;
            let (offered_pps, received_pps) = (sent as f64, received as f64 / 10.0);
            return Outcome {
                sent,
                received: received / 10,
                offered_pps,
                received_pps,
                stolen: 0.5,
                ..Outcome::default()
            };
        }
        let received = received.saturating_sub(self.noise.pop_front().unwrap_or(0));
        Outcome {
            sent,
            received,
            offered_pps: sent as f64,
            received_pps: received as f64,
            latency: self.latency(sent, received),
            ..Outcome::default()
        }
    }

    /// Idle latency divided by the free share of the capacity; a full buffer's latency if nothing is free.
    fn latency(&mut self, pps: u64, packets: u64) -> Option<Latency> {
        let jitter_ns = self.jitter_ns.pop_front().unwrap_or(0);
        let free = self.capacity_pps.saturating_sub(pps);
        let median_ns = match self.idle_ns? * self.capacity_pps {
            idle if free > 0 => idle / free,
            _ => self.buffer * SECOND_NS / self.capacity_pps,
        } + jitter_ns;
        Some(Latency {
            min_ns: median_ns,
            p50_ns: median_ns,
            p99_ns: 2 * median_ns,
            p999_ns: 3 * median_ns,
            max_ns: 4 * median_ns,
            mean_ns: median_ns as f64,
            packets,
        })
    }
}

impl Trial for Forwarder {
    fn run(&mut self, pps: u64) -> Result<Outcome> {
        self.asked.push(pps);
        Ok(self.send(pps))
    }

    fn again(&mut self) -> Result<()> {
        self.repeated += 1;
        Ok(())
    }
}

impl Burst for Forwarder {
    fn burst(&mut self, frames: u64) -> Result<Outcome> {
        self.asked.push(frames);
        let forwarded_meanwhile = frames * self.capacity_pps / self.line_pps;
        let received = frames.min(self.buffer + forwarded_meanwhile);
        Ok(self.outcome(frames, received))
    }
}

impl Change for Forwarder {
    fn change(&mut self, from_pps: u64, to_pps: u64) -> Result<Changed> {
        self.asked.extend([from_pps, to_pps]);
        let (before, after) = (self.send(from_pps), self.send(to_pps));
        Ok(Changed { before, after, watched_ns: SECOND_NS, last_loss_ns: self.recovery_ns })
    }
}

impl Reset for Forwarder {
    fn reset(&mut self, pps: u64, event: Event) -> Result<Outage> {
        self.asked.push(pps);
        self.events.push(event);
        let outage_ns = if event == Event::Nothing { 0 } else { self.outage_ns };
        let lost = pps * outage_ns / SECOND_NS;
        Ok(Outage { outcome: self.outcome(pps, pps - lost), gap_ns: outage_ns + SECOND_NS / pps })
    }

    fn again(&mut self) -> Result<()> {
        self.repeated += 1;
        Ok(())
    }
}

impl TwoStreams for Forwarder {
    fn run(&mut self, victim_pps: u64, neighbour_pps: u64) -> Result<Streams> {
        self.asked.extend([victim_pps, neighbour_pps]);
        let total = victim_pps + neighbour_pps;
        let through = if total <= self.isolates_until_pps {
            victim_pps
        } else {
            victim_pps * self.capacity_pps.min(total) / total
        };
        let victim = self.outcome(victim_pps, through);
        let left = self.capacity_pps.saturating_sub(through).min(neighbour_pps);
        Ok(Streams { victim, neighbour: self.outcome(neighbour_pps, left) })
    }
}
