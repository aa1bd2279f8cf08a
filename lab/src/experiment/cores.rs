//! `millrace-lab cores`: does forwarding take a second core when it must, and only then, and lose nothing on the way? A
//! running daemon with `policy = "pack"` on a testbed with three ports in and one out. Also the cost of a packet by
//! load, beside Linux.
//!
//! | file | holds |
//! |---|---|
//! | [`bed`] | the daemon, the generator that leaves it a core, the rate that a core carries |
//! | [`watch`] | traffic whose rate changes, and what is seen over time |
//! | [`parts`] | steps, ramps, wobbles, a flash crowd |
//! | [`spill`] | sudden steps, and how soon another core carries a part |
//! | [`drain`] | a queue that is moved to and fro, with a slow receiver behind two transmit queues |
//! | [`cost`] | CPU time of a packet by load |
//! | [`keys`] | the keys at the top of the document |

mod bed;
mod cost;
mod drain;
mod keys;
mod parts;
mod spill;
mod watch;

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum, value_parser};
use serde_json::{Value, json};

use self::{bed::Bed, cost::Cost, parts::Parts};
use super::{idle, with_end};
use crate::{progress::Progress, record::Output, sys, topology::Topology};

/// What to measure.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = keys::HELP)]
pub struct CoresOptions {
    /// Only these parts; the keys of other parts are null
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum, default_values_t = Part::usual())]
    only: Vec<Part>,
    /// How often each part is repeated, 1 to 100; wobble and crowd are not repeated
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = value_parser!(u16).range(1..=100))]
    repeat: u16,
    /// Length of each measurement of idle time and of the cost of a packet, 0.1 to 600 seconds
    #[arg(long, default_value_t = 1.0, value_parser = super::seconds)]
    seconds: f64,
    /// File for the results, as one document; `millrace-lab report` draws it
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

/// A part of the experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// CPU of the daemon when nothing comes
    Idle,
    /// CPU time of a packet at 2 to 80 % of what one core of Millrace carries, and saturated, beside Linux
    Cost,
    /// From 30 % of the high mark to 120 %, at once
    Step,
    /// From 60 % of the high mark to 120 %, in four seconds
    Ramp,
    /// Around the high mark, for five hold times
    Wobble,
    /// From 5 % of the high mark to 120 %, and back after two seconds
    Crowd,
    /// Steps, where packets leave by two transmit queues
    Order,
    /// A queue that alone is too much for a core: whole, and shared by flow (`[experimental] split`). Only on request: with
    /// two cores the generator lacks time for it, so trials are repeated
    Split,
    /// A hundred sudden steps of 20 ms to more than a core carries, with and without sharing: how soon another core shares
    /// the queue, and how many packets are lost. Only on request, like `split`
    Spill,
    /// A queue moved to and fro a hundred times, while packets leave by two slow transmit queues: with moves that wait
    /// until earlier packets have left, and with moves that do not
    Drain,
}

impl Part {
    /// The default parts.
    fn usual() -> Vec<Part> {
        Part::value_variants()
            .iter()
            .copied()
            .filter(|part| ![Part::Split, Part::Spill].contains(part))
            .collect()
    }
}

pub(super) fn run(options: &CoresOptions, output: &Output) -> Result<()> {
    let mut found = CoresResults::default();
    let mut progress = Progress::new(0);
    let ran = measure(options, &mut found, &mut progress);
    drop(progress);
    output.document_of_lines(with_end(keys::document(&found), &ran), &found.lines)?;
    keys::print(&found);
    ran
}

/// Measurements so far.
#[derive(Default)]
struct CoresResults {
    lines: Vec<Value>,
    idle_cpu: Vec<f64>,
    cost: Option<Cost>,
    /// Packets a second that take the high mark of a core.
    mark_pps: Option<f64>,
}

fn measure(options: &CoresOptions, found: &mut CoresResults, progress: &mut Progress) -> Result<()> {
    found.lines.extend(keys::figures());
    let wants = |part: Part| options.only.contains(&part);
    let repeats = usize::from(options.repeat);
    let of_bed = [
        Part::Idle,
        Part::Step,
        Part::Ramp,
        Part::Wobble,
        Part::Crowd,
        Part::Order,
        Part::Split,
        Part::Spill,
    ];
    let later = of_bed.into_iter().chain([Part::Drain]).filter(|part| wants(*part));
    let later: usize = later.map(|part| steps(part, repeats)).sum();
    if wants(Part::Cost) {
        let (lines, later) = (&mut found.lines, later as u64);
        found.cost = Some(cost::curve(options.seconds, repeats, lines, progress, later)?);
        progress.then(0);
    }
    progress.expect(later as u64);
    if of_bed.into_iter().any(|part| wants(part) && part != Part::Idle) {
        calibrate(found)?;
    }
    if of_bed.into_iter().any(|part| wants(part) && ![Part::Order, Part::Split, Part::Spill].contains(&part))
    {
        placed(options, found, progress)?;
    }
    if wants(Part::Order) {
        let mut bed = Bed::start(2, "")?;
        parts(&mut bed, found, progress)?.steps(keys::TO_TWO, repeats)?;
    }
    if wants(Part::Split) {
        for repeat in 0..repeats {
            for (part, split) in [(keys::WHOLE, false), (keys::SPLIT, true)] {
                let mut bed = Bed::start(1, &format!("[experimental]\nsplit = {split}"))?;
                bed.be_hot()?;
                parts(&mut bed, found, progress)?.hot(part, repeat)?;
            }
        }
    }
    if wants(Part::Spill) {
        for repeat in 0..repeats {
            for (part, split) in [(keys::NOT_SPILLED, false), (keys::SPILLED, true)] {
                let mut bed = Bed::with_free_generator(&format!("[experimental]\nsplit = {split}"))?;
                bed.be_hot()?;
                parts(&mut bed, found, progress)?.spills(part, repeat)?;
            }
        }
    }
    if wants(Part::Drain) {
        drain::trials(repeats, &mut found.lines, progress)?;
    }
    Ok(())
}

/// Measures the parts with a daemon that has default settings.
fn placed(options: &CoresOptions, found: &mut CoresResults, progress: &mut Progress) -> Result<()> {
    let wants = |part: Part| options.only.contains(&part);
    let repeats = usize::from(options.repeat);
    let mut bed = Bed::start(1, "")?;
    if wants(Part::Idle) {
        idles(&bed, options, found, progress)?;
    }
    const OTHER: [Part; 6] = [Part::Idle, Part::Cost, Part::Order, Part::Split, Part::Spill, Part::Drain];
    if !options.only.iter().any(|part| !OTHER.contains(part)) {
        return Ok(());
    }
    let mut parts = parts(&mut bed, found, progress)?;
    for part in &options.only {
        match part {
            Part::Step => parts.steps("step", repeats)?,
            Part::Ramp => parts.ramps(repeats)?,
            Part::Wobble => parts.wobbles(1)?,
            Part::Crowd => parts.crowds(1)?,
            Part::Idle | Part::Cost | Part::Order | Part::Split | Part::Spill | Part::Drain => {}
        }
    }
    Ok(())
}

/// Number of trials of a part.
fn steps(part: Part, repeats: usize) -> usize {
    match part {
        Part::Crowd | Part::Wobble => 1,
        Part::Split | Part::Spill => 2 * repeats,
        Part::Step | Part::Idle | Part::Ramp | Part::Order | Part::Cost => repeats,
        Part::Drain => drain::WAYS.len() * drain::PLACES.len() * repeats,
    }
}

fn parts<'a>(bed: &'a mut Bed, found: &'a mut CoresResults, progress: &'a mut Progress) -> Result<Parts<'a>> {
    let mark_pps = found.mark_pps.context("the mark is not known")?;
    Ok(Parts { bed, mark_pps, lines: &mut found.lines, progress })
}

/// Finds the rate that takes the high mark of the router's core, with a daemon that may use no other core.
fn calibrate(found: &mut CoresResults) -> Result<()> {
    let core = Topology::named(bed::TOPOLOGY)?.cores.router[0];
    let loads = Bed::start(1, &format!("allowed = \"{core}\""))?.loads()?;
    let high = loads.last().map_or(f64::NAN, |(_, load)| *load);
    found.lines.extend(
        loads.iter().map(|(pps, load)| json!({"record": "calibration", "received_pps": pps, "load": load})),
    );
    let [.., (pps_a, load_a), (pps_b, load_b)] = loads[..] else {
        bail!("the lowest rate takes {high} of a core");
    };
    found.mark_pps = Some(pps_a + (pps_b - pps_a) * (bed::HIGH - load_a) / (load_b - load_a));
    Ok(())
}

fn idles(bed: &Bed, options: &CoresOptions, found: &mut CoresResults, progress: &mut Progress) -> Result<()> {
    bed.packed()?;
    sys::sleep(idle::SETTLE)?;
    for repeat in 0..options.repeat {
        let idle = idle::measure(bed.daemon.pid(), Duration::from_secs_f64(3.0 * options.seconds))?;
        bed.check()?;
        progress.step(&format!("idle #{}: {:.2} % of a core", repeat + 1, idle.cpu * 100.0));
        found.lines.push(json!({"record": "sample", "case": "idle", "subject": "millrace", "repeat": repeat,
            "sample": {"cpu": idle.cpu, "wakeups_per_s": idle.wakeups_per_s}}));
        found.idle_cpu.push(idle.cpu);
    }
    Ok(())
}
