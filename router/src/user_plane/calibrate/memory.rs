//! A worker in memory whose paths always have packets.

use crate::user_plane::workers::Clock;
use anyhow::Result;
use logic::{
    elements::{Chain, Forward, Verdict},
    paths::{Bursts, Counters, PathId, Settings},
    tables::Ingress,
    worker::{Exchange, Frame, Worker},
};
use std::{collections::VecDeque, ops::Range, time::Duration};

const PATHS: usize = 4;
/// Frames of a path, enough for a whole run. More would not fit the first-level cache, and runs of few packets would not show it.
const FRAMES: usize = 64;
/// As in AF_XDP.
const HEAD_ROOM: usize = 256;
const FRAME: usize = 2048;
const PACKET: usize = 60;

/// A packet in memory of its own.
pub struct Buffer {
    memory: Box<[u8]>,
    data: Range<usize>,
    /// The port, router and interface by which it came.
    pub ingress: Ingress,
}

impl Buffer {
    /// Memory of this many bytes, without a packet.
    pub fn new(bytes: usize) -> Buffer {
        Buffer { memory: vec![1; bytes].into(), data: 0..0, ingress: Ingress::default() }
    }
}

impl Frame for Buffer {
    #[inline]
    fn data(&self) -> &[u8] {
        self.memory.get(self.data.clone()).unwrap_or_default()
    }
    #[inline]
    fn parts_mut(&mut self) -> (&mut [u8], Range<usize>) {
        (&mut self.memory, self.data.clone())
    }
    #[inline]
    fn set_range(&mut self, data: Range<usize>) {
        self.data = data;
    }
    #[inline]
    fn ingress(&self) -> Ingress {
        self.ingress
    }
    #[inline]
    fn came_ns(&self) -> u64 {
        0
    }
}

/// The packets of each path, the oldest first. Packets that leave come back at once.
struct Endless {
    free: [VecDeque<Buffer>; PATHS],
    clock: Clock,
    more: u64,
}

impl Exchange for Endless {
    type Frame = Buffer;

    fn ports(&self) -> u64 {
        u64::MAX
    }

    fn receive(&mut self, path: PathId, most: usize, to: &mut Vec<Buffer>) {
        if let Some(free) = self.free.get_mut(usize::from(path)) {
            to.extend(free.drain(..most.min(free.len())));
        }
    }

    fn settle(&mut self, path: PathId, buffer: Buffer, _: Verdict) {
        if let Some(free) = self.free.get_mut(usize::from(path)) {
            free.push_back(buffer);
        }
    }

    fn leave(&mut self) {
        if self.more > 0 {
            let begun = self.clock.cycles();
            while self.clock.cycles().saturating_sub(begun) < self.more {}
        }
    }
}

/// A worker with runs of one size.
pub(super) struct Bench {
    worker: Worker<Buffer>,
    endless: Endless,
}

impl Bench {
    /// Runs of `size` packets, of which `counted` is counted. Each run takes `more` additional cycles.
    pub fn new(size: u32, clock: Clock, counted: Counters, more: u64) -> Result<Bench> {
        let bursts = Bursts { longest_cycles: u32::MAX, switch_cycles: 0, most: size };
        let mut worker = Worker::new(Settings { bursts, sample_every: 20, counted })?;
        for _ in 0..PATHS {
            worker.add(0, 1, Chain::new(vec![Box::new(Forward::new(1))])?)?;
        }
        let buffer = || Buffer { data: HEAD_ROOM..HEAD_ROOM + PACKET, ..Buffer::new(FRAME) };
        let free = std::array::from_fn(|_| (0..FRAMES).map(|_| buffer()).collect());
        Ok(Bench { worker, endless: Endless { free, clock, more } })
    }

    /// Runs for this time, or a little longer; returns the cycles of a run.
    pub fn run(&mut self, time: Duration) -> f64 {
        let Bench { worker, endless } = self;
        let clock = endless.clock;
        let begun = clock.cycles();
        let (ends, mut now, mut runs) = (begun + clock.cycles_of(time), begun, 0.0);
        worker.pause();
        while now < ends {
            // Reading the clock for each turn would add a tenth to the result.
            for _ in 0..16 {
                worker.turn(endless, || clock.cycles());
            }
            runs += 16.0;
            now = clock.cycles();
        }
        (now - begun) as f64 / runs
    }
}
