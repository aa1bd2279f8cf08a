//! The sender: sends streams whose frames are too long for the program in the kernel, through packet sockets, from the
//! same thread. It builds every frame again and the kernel copies it, so it is much slower than that program.
//!
//! A packet is stamped when it is built, and leaves with its batch, some microseconds later.

use std::{
    hint,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context, Result};

use super::{
    BACKLOG, Sent,
    socket::PacketSocket,
    stream::{Pace, Stream},
};
use crate::{
    packet::{self, Stamp},
    sys,
};

/// Most frames handed over at once.
pub(super) const BATCH: usize = 16;
/// A wait shorter than this keeps the core. In a longer wait the thread sleeps.
const BUSY_WAIT_NS: u64 = 50_000;
/// Longest time until the sender notices that it must stop, or send at another rate.
const LONGEST_SLEEP_NS: u64 = 1_000_000;

/// What to send, and counts of what was sent. The owner of the generator reads this while its thread writes.
pub(super) struct Run {
    streams: Vec<Stream>,
    schedules: Vec<Vec<u32>>,
    /// Stop after this many packets.
    limit: Option<u64>,
    /// Packets per second of streams that are paced.
    rates: Vec<AtomicU64>,
    packets: Vec<AtomicU64>,
    skipped: Vec<AtomicU64>,
    by_flow: Vec<Vec<AtomicU32>>,
}

impl Run {
    pub(super) fn new(streams: &[Stream], schedules: &[Vec<u32>], limit: Option<u32>) -> Self {
        let rate = |stream: &Stream| if let Pace::Rate(pps) = stream.pace { pps } else { 0 };
        let zeros = || streams.iter().map(|_| AtomicU64::new(0)).collect();
        let flows = |stream: &Stream| stream.targets.iter().map(|_| AtomicU32::new(0)).collect();
        Self {
            streams: streams.to_vec(),
            schedules: schedules.to_vec(),
            limit: limit.map(u64::from),
            rates: streams.iter().map(|stream| AtomicU64::new(rate(stream))).collect(),
            packets: zeros(),
            skipped: zeros(),
            by_flow: streams.iter().map(flows).collect(),
        }
    }

    pub(super) fn set_rate(&self, stream: usize, pps: u64) {
        self.rates[stream].store(pps, Ordering::Relaxed);
    }

    pub(super) fn sent(&self) -> Vec<Sent> {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let both = self.packets.iter().zip(&self.skipped);
        both.map(|(packets, skipped)| Sent { packets: value(packets), skipped: value(skipped) }).collect()
    }

    pub(super) fn sent_by_flow(&self) -> Vec<u32> {
        self.by_flow.iter().flatten().map(|packets| packets.load(Ordering::Relaxed)).collect()
    }
}

/// Sends until it must stop, or up to the run's limit. `refused` counts packets that a port had no room for.
pub(super) fn send(
    run: &Run,
    sockets: &[PacketSocket],
    stop: &AtomicBool,
    refused: &AtomicU64,
) -> Result<()> {
    let mut places = vec![StreamPosition::default(); run.streams.len()];
    let mut left = run.limit.unwrap_or(u64::MAX);
    let mut batch = Batch { sockets, refused, port: 0, frames: Vec::with_capacity(BATCH) };
    while left > 0 && !stop.load(Ordering::Relaxed) {
        sys::check_interrupted()?;
        let (now_ns, mut next_ns) = (sys::monotonic_ns(), u64::MAX);
        for (index, place) in places.iter_mut().enumerate() {
            let pps = run.rates[index].load(Ordering::Relaxed);
            let due = if pps == 0 { BATCH as u64 } else { place.due(run, index, now_ns, pps) };
            for _ in 0..due.min(left) {
                let (port, frame) = place.frame(run, index);
                batch.add(port, frame, &run.packets[index])?;
            }
            batch.send(&run.packets[index])?;
            left = left.saturating_sub(due);
            next_ns = next_ns.min(if pps == 0 { 0 } else { place.pacer.next_ns() });
        }
        wait_until(next_ns);
    }
    Ok(())
}

pub(super) fn wait_until(ns: u64) {
    let left_ns = ns.saturating_sub(sys::monotonic_ns());
    if left_ns > BUSY_WAIT_NS {
        thread::sleep(Duration::from_nanos((left_ns - BUSY_WAIT_NS).min(LONGEST_SLEEP_NS)));
    } else if left_ns > 0 {
        hint::spin_loop();
    }
}

/// Position in a stream.
#[derive(Clone, Default)]
struct StreamPosition {
    next: usize,
    next_size: usize,
    pacer: Pacer,
}

impl StreamPosition {
    /// How many packets of the stream to send now. Counts those that are too late.
    fn due(&mut self, run: &Run, stream: usize, now_ns: u64, pps: u64) -> u64 {
        let (due, skipped) = self.pacer.due(now_ns, pps, u64::from(BACKLOG) / run.streams.len() as u64);
        run.skipped[stream].fetch_add(skipped, Ordering::Relaxed);
        due
    }

    /// The packet of the stream's next flow, in its next size, and its port.
    fn frame(&mut self, run: &Run, index: usize) -> (u8, Vec<u8>) {
        let (stream, schedule) = (&run.streams[index], &run.schedules[index]);
        let places = if schedule.is_empty() { stream.targets.len() } else { schedule.len() };
        let flow = schedule.get(self.next).map_or(self.next, |&flow| flow as usize);
        let frame_bytes = stream.sizes.0[self.next_size];
        self.next = (self.next + 1) % places;
        self.next_size = (self.next_size + 1) % stream.sizes.0.len();
        let target = &stream.targets[flow];
        let stamp = Stamp {
            flow: packet::flow(index, flow),
            sequence: run.by_flow[index][flow].fetch_add(1, Ordering::Relaxed),
            time_ns: sys::monotonic_ns() as u32,
        };
        (target.port, target.frame(frame_bytes, stamp))
    }
}

/// Frames of one stream that leave by one port.
struct Batch<'a> {
    sockets: &'a [PacketSocket],
    refused: &'a AtomicU64,
    port: u8,
    frames: Vec<Vec<u8>>,
}

impl Batch<'_> {
    fn add(&mut self, port: u8, frame: Vec<u8>, packets: &AtomicU64) -> Result<()> {
        if port != self.port || self.frames.len() == BATCH {
            self.send(packets)?;
        }
        self.port = port;
        self.frames.push(frame);
        Ok(())
    }

    fn send(&mut self, packets: &AtomicU64) -> Result<()> {
        if self.frames.is_empty() {
            return Ok(());
        }
        let socket =
            self.sockets.get(usize::from(self.port)).with_context(|| format!("no port {}", self.port))?;
        let refused = socket.send(&self.frames).with_context(|| {
            let longest = self.frames.iter().map(Vec::len).max().unwrap_or_default();
            format!(
                "sending frames of up to {longest} bytes to port {} (Testbed::set_mtu raises MTUs)",
                self.port
            )
        })?;
        self.refused.fetch_add(refused, Ordering::Relaxed);
        packets.fetch_add(self.frames.len() as u64, Ordering::Relaxed);
        self.frames.clear();
        Ok(())
    }
}

/// When a stream's packets are due.
#[derive(Clone, Default)]
struct Pacer {
    pps: u64,
    start_ns: u64,
    /// Packets since then, skipped ones included.
    paced: u64,
}

impl Pacer {
    /// How many packets to send now, and how many to skip. Of the late packets, only the last `backlog` are sent.
    fn due(&mut self, now_ns: u64, pps: u64, backlog: u64) -> (u64, u64) {
        if pps != self.pps {
            *self = Self { pps, start_ns: now_ns, paced: 0 };
        }
        let target = u128::from(now_ns - self.start_ns) * u128::from(pps) / 1_000_000_000;
        let due = target as u64 - self.paced;
        self.paced += due;
        let skipped = due.saturating_sub(backlog);
        (due - skipped, skipped)
    }

    fn next_ns(&self) -> u64 {
        let after_start = (u128::from(self.paced) + 1) * 1_000_000_000;
        self.start_ns + after_start.div_ceil(u128::from(self.pps)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_due_at_their_times_and_skipped_when_too_late() {
        let mut pacer = Pacer::default();
        assert_eq!(pacer.due(1000, 3_000_000, 4), (0, 0));
        let mut sent_at = Vec::new();
        for now_ns in 1000..3000 {
            let is_time = pacer.next_ns() <= now_ns;
            assert_eq!(pacer.due(now_ns, 3_000_000, 4), (u64::from(is_time), 0), "{now_ns}");
            sent_at.extend(is_time.then_some(now_ns));
        }
        assert_eq!(sent_at, [1334, 1667, 2000, 2334, 2667]);
        // Number 6 is due at 3000, number 12 at 5000.
        assert_eq!(pacer.due(5000, 3_000_000, 4), (4, 3));
        assert_eq!(pacer.due(5001, 3_000_000, 4), (0, 0));
        // Another rate starts pacing again.
        assert_eq!(pacer.due(9000, 1_000_000, 4), (0, 0));
        assert_eq!((pacer.next_ns(), pacer.due(10_000, 1_000_000, 4)), (10_000, (1, 0)));
    }
}
