//! A capture through its paths.

use super::{
    input::{self, Input, Record},
    order::Order,
    output::Outputs,
    packet::{MOST_DATA, Packet},
    report::PathsReport,
    tables,
};
use crate::config::PathsConfig;
use anyhow::{Context, Result};
use logic::{
    elements::{MOST_PACKETS, Verdict},
    paths::{Bursts, Counters, PathId, Settings},
    plan::PortId,
    worker::{Exchange, NotTaken, Rings, Worker},
};
use std::{
    io::{Read, Write},
    time::Instant,
};

/// Packets that wait for their turn or for older ones take so much memory at most, and one packet more.
const MOST_BYTES: usize = 64 << 20;
/// Memory of packets that is kept for others.
const SPARE: usize = 1024;

/// What a worker is told. A nanosecond counts as a cycle; what a switch takes is part of what packets cost, as nobody measured it here
/// (`logic::paths::calibrate`).
const SETTINGS: Settings = Settings {
    bursts: Bursts { longest_cycles: 100_000, switch_cycles: 0, most: MOST_PACKETS as u32 },
    sample_every: 20,
    counted: Counters::CYCLES,
};

/// Packets between files and the worker.
struct Replay<'a> {
    config: &'a PathsConfig,
    rings: Rings<Packet>,
    order: Order,
    report: PathsReport,
    /// Of packets that wait for their turn, or to be written.
    bytes: usize,
    spare: Vec<Vec<u8>>,
    /// Its ring is full.
    held: Option<Packet>,
}

/// Runs all packets of the inputs. The report says if one of them was broken; what came before that is in it.
///
/// # Errors
/// The configuration cannot be run, or an output cannot be written.
pub fn run<R: Read, W: Write>(
    config: &PathsConfig,
    inputs: &mut [Input<R>],
    mut outputs: Outputs<W>,
) -> Result<PathsReport> {
    let mut worker = worker(config)?;
    let mut replay = Replay::new(config);
    let start = Instant::now();
    let meter = || start.elapsed().as_nanos() as u64;
    loop {
        let more = replay.take_in(inputs, &mut worker);
        match worker.turn(&mut replay, meter) {
            Some(turn) if replay.rings.waiting(turn.path) == 0 => worker.sleep(turn.path),
            Some(_) => {}
            None if more => {}
            None => break,
        }
        replay.write(&mut outputs)?;
    }
    replay.write(&mut outputs)?;
    outputs.finish()?;
    replay.report.finish(&worker);
    Ok(replay.report)
}

fn worker(config: &PathsConfig) -> Result<Worker<Packet>> {
    let mut worker = Worker::new(SETTINGS)?;
    for (router, (_, weight)) in (0..).zip(&config.routers) {
        worker.weigh(router, *weight);
    }
    let chains = config.chains(&tables::build(config))?;
    for (path, chain) in config.paths.iter().zip(chains) {
        worker.add(path.router, path.weight, chain).with_context(|| format!("path {}", path.name))?;
    }
    Ok(worker)
}

impl<'a> Replay<'a> {
    fn new(config: &'a PathsConfig) -> Self {
        let rings = Rings::new(config.paths.iter().map(|path| (path.class.clone(), path.ring)));
        let report = PathsReport::new(config);
        Replay { config, rings, order: Order::default(), report, bytes: 0, spare: Vec::new(), held: None }
    }

    /// Takes in some packets, until there is no room. False: there are no others.
    fn take_in<R: Read>(&mut self, inputs: &mut [Input<R>], worker: &mut Worker<Packet>) -> bool {
        for _ in 0..MOST_PACKETS {
            if self.bytes >= MOST_BYTES {
                return true;
            }
            if let Some(packet) = self.held.take() {
                self.offer(packet, worker);
            } else {
                match self.next(inputs) {
                    Some((port, record)) => self.come(port, record, worker),
                    None => return false,
                }
            }
            if self.held.is_some() {
                return true;
            }
        }
        true
    }

    /// A file that is broken ends here, and the others with it.
    fn next<R: Read>(&mut self, inputs: &mut [Input<R>]) -> Option<(PortId, Record)> {
        if self.report.error.is_some() {
            return None;
        }
        input::next(inputs).unwrap_or_else(|error| {
            self.report.error = Some(format!("{error:#}"));
            None
        })
    }

    fn come(&mut self, port: PortId, record: Record, worker: &mut Worker<Packet>) {
        self.report.packets += 1;
        if record.truncated {
            self.report.truncated += 1;
        } else if record.data.len() > MOST_DATA {
            self.report.too_long += 1;
        } else {
            let ingress = tables::ingress(self.config, port, &record.data);
            let memory = self.spare.pop().unwrap_or_default();
            let mut packet = Packet::new(memory, &record.data, ingress, record.at);
            packet.number = self.order.expect();
            self.bytes += packet.bytes();
            self.offer(packet, worker);
        }
    }

    fn offer(&mut self, packet: Packet, worker: &mut Worker<Packet>) {
        match self.rings.offer(packet) {
            Ok(path) => worker.wake(path),
            Err(NotTaken::Full(_, packet)) => self.held = Some(packet),
            Err(NotTaken::NoPath(packet)) => {
                self.report.no_path += 1;
                self.order.gone(packet.number);
                self.free(packet);
            }
        }
    }

    fn free(&mut self, packet: Packet) {
        self.bytes -= packet.bytes();
        if self.spare.len() < SPARE {
            self.spare.push(packet.into_memory());
        }
    }

    /// Writes what leaves and waits for nothing older.
    fn write<W: Write>(&mut self, outputs: &mut Outputs<W>) -> Result<()> {
        while let Some((port, packet)) = self.order.next() {
            outputs.write(port, &packet)?;
            self.free(packet);
        }
        Ok(())
    }
}

impl Exchange for Replay<'_> {
    type Frame = Packet;

    /// A file takes everything.
    fn ports(&self) -> u64 {
        u64::MAX
    }

    fn receive(&mut self, path: PathId, most: usize, to: &mut Vec<Packet>) {
        self.rings.receive(path, most, to);
    }

    fn settle(&mut self, path: PathId, packet: Packet, verdict: Verdict) {
        if let Some(report) = self.report.paths.get_mut(usize::from(path)) {
            report.count(self.config, verdict);
        }
        match verdict {
            Verdict::To(port) => self.order.leaves(port, packet),
            Verdict::Up(_) | Verdict::Drop(_) => {
                self.order.gone(packet.number);
                self.free(packet);
            }
        }
    }
}
