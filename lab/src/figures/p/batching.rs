//! Figures 15 and 17: what longer runs save, and what several rings for one path cost or save.

use std::time::Duration;

use anyhow::Result;
use logic::{
    elements::{MOST_PACKETS, Verdict},
    paths::PathId,
    worker::Exchange,
};
use router::user_plane::{calibrate, workers::Clock};
use serde_json::json;

use super::{
    bed::{self, Packet, Rate, Sent, Source, on_core, rate, settings, worker},
    cores, sample,
};
use crate::{
    figure::{Axis, Figure, Reference},
    figures::{FiguresOptions, picture, published::PaperFigure},
    paths::forwarding::forward,
    record::Recorder,
};

/// Rounds of the regression in a second.
const ROUNDS_PER_SECOND: f64 = 600.0;
const PORTS: u8 = 4;
const BATCHES: [usize; 6] = [1, 2, 4, 8, 16, 32];

/// P15.
pub(in super::super) fn batches(
    figure: &PaperFigure,
    options: &FiguresOptions,
    recorder: &mut Recorder,
) -> Result<()> {
    let ours = "the measurement of millrace calibrate: four paths in turn on one core, forward only, packets in memory that nobody copies; the line through \
                runs of 1 to 64 packets gives the cost of a switch and of a packet";
    let x = Axis::new("/parameters/batch", "packets of a run", "").log();
    let switch = Axis::new("/sample/switch_cycles", "a switch takes", "cycles");
    let bar = picture(figure, x, switch, ours);
    recorder.figure(&Figure { x: None, ..bar.clone() })?;
    for (name, y, what) in [
        ("P15 rate", Axis::new("/sample/pps", "throughput", "Mpps").times(1e-6), "throughput by batch"),
        ("P15 run", Axis::new("/sample/cycles_of_run", "a run takes", "cycles"), "what a run takes"),
    ] {
        recorder.figure(&Figure {
            name: name.into(),
            title: format!("{}: {what}", figure.paper),
            y,
            ..bar.clone()
        })?;
    }
    let core = cores::all()?.first().map_or(0, |core| core.number);
    let rounds = (options.seconds * ROUNDS_PER_SECOND).ceil() as u32;
    for repeat in 0..options.repeat.into() {
        let clock = Clock::of_process();
        let measured = on_core(core, || calibrate::measure(clock, rounds))?;
        for point in &measured.points {
            let batch = f64::from(point.batch);
            let pps = clock.hz() as f64 * batch / point.cycles;
            let values =
                json!({"pps": pps, "cycles_of_run": point.cycles, "cycles_per_packet": point.cycles / batch});
            sample(figure, "millrace", json!({"batch": point.batch}), repeat, values, recorder)?;
        }
        let values = match measured.fit {
            Ok(fit) => json!({"switch_cycles": fit.switch_cycles, "switch_error_cycles": fit.switch_error,
                "packet_cycles": fit.packet_cycles, "residual": fit.residual, "hz": clock.hz()}),
            Err(error) => json!({"error": error.to_string()}),
        };
        sample(figure, "millrace", json!({"regression": "all batches"}), repeat, values, recorder)?;
    }
    Ok(())
}

/// Rings of four ports. Each has a batch whenever it is polled. With one path for all, the path takes from one after
/// another.
struct Ports {
    ports: Vec<Source>,
    batch: usize,
    is_unified: bool,
    /// The next of them to poll.
    next: usize,
    sent: Sent,
}

impl Exchange for Ports {
    type Frame = Packet;

    fn ports(&self) -> u64 {
        u64::MAX
    }

    fn receive(&mut self, path: PathId, most: usize, to: &mut Vec<Packet>) {
        if !self.is_unified {
            if let Some(port) = self.ports.get_mut(usize::from(path)) {
                port.receive(self.batch.min(most), to);
            }
            return;
        }
        let ports = self.ports.len();
        for _ in 0..ports {
            let room = most.saturating_sub(to.len());
            if room == 0 {
                return;
            }
            if let Some(port) = self.ports.get_mut(self.next) {
                port.receive(self.batch.min(room), to);
            }
            self.next = (self.next + 1) % ports;
        }
    }

    fn settle(&mut self, _: PathId, frame: Packet, verdict: Verdict) {
        self.sent.count(0, &frame, verdict);
        if let Some(port) = self.ports.get_mut(usize::from(frame.ingress.port)) {
            port.give_back(frame);
        }
    }
}

/// Runs of at most `most` packets.
fn polled(is_unified: bool, batch: usize, most: u32, time: Duration) -> Result<Rate> {
    let (clock, trace) = (Clock::of_process(), bed::plain()?);
    let ports = (0..PORTS).map(|port| Source::new(&trace, Some(port))).collect();
    let mut ports = Ports { ports, batch, is_unified, next: 0, sent: Sent::default() };
    let paths = if is_unified { 1 } else { PORTS };
    let mut worker = worker(settings(clock, most), (0..paths).map(|_| (1, vec![forward()])))?;
    let turn = || worker.turn(&mut ports, || clock.cycles()).map_or(0, |turn| turn.packets as u64);
    let rate = rate(time, turn);
    anyhow::ensure!(ports.sent.lost == 0, "packets were lost: {:?}", ports.sent);
    Ok(rate)
}

/// P17.
pub(in super::super) fn unified_input(
    figure: &PaperFigure,
    options: &FiguresOptions,
    recorder: &mut Recorder,
) -> Result<()> {
    const EACH: &str = "a path for each port";
    let ours = "memory to memory, forward only: rings of four ports, each of which has a batch whenever it is polled. One path takes from all in a run, as \
                its worker does with AF_XDP rings; with \"runs as short\" it stops after a batch, so that only the polled rings differ";
    let x = Axis::new("/parameters/batch", "packets of a batch", "").log();
    let rate = picture(figure, x, Axis::new("/sample/pps", "throughput", "Mpps").times(1e-6), ours);
    recorder.figure(&rate.clone().relative_to(Reference::Series(EACH.into())))?;
    recorder.figure(&Figure {
        name: "P17 in Mpps".into(),
        title: format!("{}, in Mpps", rate.title),
        ..rate
    })?;
    let core = cores::all()?.first().map_or(0, |core| core.number);
    let time = Duration::from_secs_f64(options.seconds / 3.0);
    for repeat in 0..options.repeat.into() {
        for batch in BATCHES {
            let ways = [
                (EACH, false, batch as u32),
                ("one path for all", true, MOST_PACKETS as u32),
                ("one path for all, runs as short", true, batch as u32),
            ];
            for (subject, is_unified, most) in ways {
                let Rate { pps, cpu } = on_core(core, || polled(is_unified, batch, most, time))?;
                let values = json!({"pps": pps, "cpu": [cpu]});
                sample(figure, subject, json!({"batch": batch}), repeat, values, recorder)?;
            }
        }
    }
    Ok(())
}
