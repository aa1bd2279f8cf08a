//! Runs captures through paths.

use super::{
    input::{self, Input, Record},
    order::Order,
    output::Outputs,
    packet::{MOST_DATA, Packet},
    report::PathsReport,
    tables,
};
use crate::{
    config::{Captures, PathsConfig, RunsSettings},
    user_plane::{captures::CaptureWriters, sas::Sas, workers},
};
use anyhow::{Context, Result, bail};
use logic::{
    elements::{MOST_PACKETS, Verdict},
    paths::{Bursts, Counters, PathId, Settings},
    plan::PortId,
    worker::{Exchange, Frame, NotTaken, Rings, Worker},
};
use std::{
    io::{Read, Write},
    time::{Duration, Instant},
};

/// The most memory of packets that wait for their turn or for older packets, not counting the last packet.
const MOST_BYTES: usize = 64 << 20;
/// The most packets from the oldest one that waits on, including those that are gone, because their order is remembered.
const MOST_ORDERED: usize = 1 << 18;
/// Packets whose memory is kept for others.
const SPARE: usize = 1024;

/// The settings of the worker. A nanosecond counts as a cycle. The switch between paths was not measured here
/// (`logic::paths::calibrate`), so it is part of the cost of packets.
fn settings(runs: RunsSettings) -> Settings {
    Settings {
        bursts: Bursts {
            longest_cycles: runs.longest_run.0 * 1000,
            switch_cycles: 0,
            most: MOST_PACKETS as u32,
        },
        sample_every: runs.sample_every.packets(),
        counted: Counters::CYCLES,
    }
}

/// Packets between files and the worker.
struct Replay<'a> {
    config: &'a PathsConfig,
    rings: Rings<Packet>,
    order: Order,
    report: PathsReport,
    /// Memory of packets that wait for their turn, or to be written.
    bytes: usize,
    spare: Vec<Vec<u8>>,
    /// The clock of the paths: the latest time stamp.
    clock: Duration,
    /// A packet whose ring is full.
    held: Option<Packet>,
}

/// Runs all packets of the inputs, with these SAs, which nothing else uses.
///
/// The report names broken inputs, which end at the fault. It also names an output that cannot be written; then no more packets are
/// taken in, and those that have come are run. A capture that cannot be written does not end the run.
///
/// # Errors
/// The configuration cannot be run.
pub fn run<R: Read, W: Write>(
    config: &PathsConfig,
    mut sas: Sas,
    mut captures: CaptureWriters<'_>,
    inputs: &mut [Input<R>],
    mut outputs: Outputs<W>,
) -> Result<PathsReport> {
    let mut worker = worker(config, &sas, &captures.captures())?;
    if let Err(why) = sas.reserve() {
        drop(worker);
        // Numbers that were reserved of other SAs are given back.
        let more = sas.finish().err().map(|more| format!("; {more}")).unwrap_or_default();
        bail!("{why}{more}");
    }
    let mut unreserved = None;
    let mut replay = Replay::new(config);
    let start = Instant::now();
    let meter = || start.elapsed().as_nanos() as u64;
    loop {
        let inputs: &mut [_] = if outputs.has_failed() { &mut [] } else { &mut *inputs };
        let more = replay.take_in(inputs, &mut worker);
        // The time for files is not charged to a path.
        worker.pause();
        match worker.turn(&mut replay, meter) {
            Some(turn) if replay.rings.waiting(turn.path) == 0 => worker.sleep(turn.path),
            Some(_) => {}
            None if more => {}
            None => break,
        }
        captures.drain();
        replay.write(&mut outputs);
        if unreserved.is_none() {
            unreserved = sas.reserve().err();
        }
    }
    replay.write(&mut outputs);
    let mut report = replay.report;
    report.errors = inputs.iter().filter_map(Input::error).map(Into::into).collect();
    report.errors.extend(outputs.finish());
    report.errors.extend(captures.finish());
    report.finish(&worker);
    report.resources = workers::resources();
    report.crypto = sas.crypto();
    report.sas = sas.report();
    drop(worker);
    report.errors.extend([unreserved, sas.finish().err()].into_iter().flatten());
    Ok(report)
}

/// Makes a worker with the paths of the configuration.
pub(crate) fn worker<F: Frame>(config: &PathsConfig, sas: &Sas, captures: &Captures) -> Result<Worker<F>> {
    let mut worker = Worker::new(settings(config.runs))?;
    for (router, (_, weight)) in (0..).zip(&config.routers) {
        worker.weigh(router, *weight);
    }
    let chains = config.chains(&tables::build(config), &sas.table, captures)?;
    for (path, chain) in config.paths.iter().zip(chains) {
        worker.add(path.router, path.weight, chain).with_context(|| format!("path {}", path.name))?;
    }
    Ok(worker)
}

impl<'a> Replay<'a> {
    fn new(config: &'a PathsConfig) -> Self {
        let rings = Rings::new(config.paths.iter().map(|path| (path.class.clone(), path.ring)));
        let report = PathsReport::new(config);
        Replay {
            config,
            rings,
            order: Order::default(),
            report,
            bytes: 0,
            spare: Vec::new(),
            clock: Duration::ZERO,
            held: None,
        }
    }

    /// Takes in some packets, until there is no room. False: there are no more.
    fn take_in<R: Read>(&mut self, inputs: &mut [Input<R>], worker: &mut Worker<Packet>) -> bool {
        for _ in 0..MOST_PACKETS {
            if self.bytes >= MOST_BYTES || self.order.length() >= MOST_ORDERED {
                return true;
            }
            if let Some(packet) = self.held.take() {
                self.offer(packet, worker);
            } else {
                match input::next(inputs) {
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

    fn come(&mut self, port: PortId, record: Record, worker: &mut Worker<Packet>) {
        self.report.packets += 1;
        self.report.out_of_order += u64::from(record.at < self.clock);
        self.clock = self.clock.max(record.at);
        if record.truncated {
            self.report.truncated += 1;
        } else if record.data.len() > MOST_DATA {
            self.report.too_long += 1;
        } else {
            let ingress = tables::ingress(self.config, port, &record.data);
            let memory = self.spare.pop().unwrap_or_default();
            let mut packet = Packet::new(memory, &record.data, ingress, record.at);
            packet.came = self.clock;
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
            self.spare.extend(packet.into_memory());
        }
    }

    /// Writes the packets that leave and do not wait for older ones.
    fn write<W: Write>(&mut self, outputs: &mut Outputs<W>) {
        while let Some((port, packet)) = self.order.next() {
            outputs.write(port, &packet);
            self.free(packet);
        }
    }
}

impl Exchange for Replay<'_> {
    type Frame = Packet;

    /// A file accepts packets of all ports.
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
            Verdict::Up(_) | Verdict::Own(_) | Verdict::Drop(_) => {
                self.order.gone(packet.number);
                self.free(packet);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcap_file::pcap::{PcapPacket, PcapWriter};
    use std::path::Path;

    const PATHS: &str = "[[port]]\nname = \"lan\"\n[[path]]\nname = \"a\"\nclass = { ether_type = 0x9000 }\nchain = [\"discard\"]";

    /// Frames of 14 bytes, captured at these milliseconds. The first belongs to the path's class; with `all`, the others too.
    fn capture(times: impl Iterator<Item = u64>, all: bool) -> Vec<u8> {
        let mut writer = PcapWriter::new(Vec::new()).unwrap();
        for (number, ms) in times.enumerate() {
            let mut frame = [0; 14];
            frame[12] = if all || number == 0 { 0x90 } else { 0x91 };
            writer.write_packet(&PcapPacket::new(Duration::from_millis(ms), 14, &frame)).unwrap();
        }
        writer.into_writer()
    }

    /// One packet waits for a path that does not run. Hundreds of thousands of packets after it are gone at once.
    #[test]
    fn packets_that_wait_for_an_older_one_are_bounded() {
        let config = PathsConfig::parse(Path::new("p.toml"), PATHS).unwrap();
        let count = MOST_ORDERED as u64 + 5000;
        let bytes = capture(0..count, false);
        let mut inputs = [Input::new("in.pcap", 0, &bytes[..]).unwrap()];
        let mut worker = worker(&config, &Sas::default(), &Captures::default()).unwrap();
        let mut replay = Replay::new(&config);
        let mut outputs = Outputs::<Vec<u8>>::new([], false).unwrap();
        for _ in 0..2 * MOST_ORDERED / MOST_PACKETS {
            assert!(replay.take_in(&mut inputs, &mut worker), "there are others");
            replay.write(&mut outputs);
        }
        assert_eq!((replay.order.length(), replay.report.packets), (MOST_ORDERED, MOST_ORDERED as u64));
        // The path runs, and everything goes on.
        assert_eq!(worker.turn(&mut replay, || 0).map(|turn| turn.packets), Some(1));
        replay.write(&mut outputs);
        assert_eq!((replay.order.length(), replay.bytes), (0, 0));
        while replay.take_in(&mut inputs, &mut worker) {}
        assert_eq!(replay.report.packets, count);
    }

    #[test]
    fn the_clock_of_the_paths_never_goes_back() {
        let config = PathsConfig::parse(Path::new("p.toml"), PATHS).unwrap();
        let bytes = capture([5, 7, 6, 1, 7, 8].into_iter(), true);
        let mut inputs = [Input::new("in.pcap", 0, &bytes[..]).unwrap()];
        let mut replay = Replay::new(&config);
        assert!(
            !replay
                .take_in(&mut inputs, &mut worker(&config, &Sas::default(), &Captures::default()).unwrap()),
            "there are no more"
        );
        let mut packets = Vec::new();
        replay.rings.receive(0, 10, &mut packets);
        let came: Vec<_> = packets.iter().map(|packet| packet.came_ns() / 1_000_000).collect();
        assert_eq!((came, replay.report.out_of_order), (vec![5, 7, 7, 7, 7, 8], 2));
        // Written packets have their own times.
        assert!(packets.iter().map(|packet| packet.at.as_millis()).eq([5, 7, 6, 1, 7, 8]));
    }
}
