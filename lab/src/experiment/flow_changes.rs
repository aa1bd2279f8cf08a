//! Rule changes while packets are forwarded by rules: how many a second, their cost for packets, and how long a barrier
//! takes. A controller over TCP adds exact rules that no packet matches, and deletes them again. The packets' own rules
//! stay.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use clap::Args;
use logic::flow::{FlowCommand, FlowMod, text::parse_flow};
use serde_json::json;

use super::{Sampling, head, row, show, testbed};
use crate::{
    figure::{Axis, Figure},
    generator::{Load, Pace},
    measure::{Sample, measure_during, spread},
    openflow::Controller,
    progress::Progress,
    record::{Output, Recorder},
    rules::Rules,
    subject::{Millrace, Subject},
    sys,
    testbed::Priority,
    workload::{Family, Workload},
};

const FLOWS: u32 = 4096;
/// Packets a second, which the router's core carries beside other work.
const OFFERED_PPS: u64 = 1_000_000;
/// The cache knows all flows after so long, or packets keep missing it.
const KNOWN_WITHIN: Duration = Duration::from_secs(10);
/// Changes between two barriers.
const BATCH: u32 = 1000;

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct FlowChangesOptions {
    /// Changes a second, one rate after another; 0 means none
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [0, 1000, 10_000, 50_000, 1_000_000])]
    rates: Vec<u32>,
    #[command(flatten)]
    pub(super) sampling: Sampling,
}

/// Results of a controller.
#[derive(Debug, Default)]
struct Changed {
    changes: u64,
    seconds: f64,
    /// Time of each barrier.
    barriers_ms: Vec<f64>,
}

pub(super) fn run(options: &FlowChangesOptions, output: &Output) -> Result<()> {
    let mut recorder = output.recorder()?;
    recorder.figure(&figure())?;
    let mut testbed = testbed(0)?;
    testbed.set_priority(Priority::Reaction)?;
    let workload = Workload::benchmark(Family::V4, FLOWS, 0..=0);
    let mut rules = Rules::exact(&workload.targets);
    rules.count += 100_000;
    testbed.rules = Some(Arc::new(rules));
    let subject = Millrace::start(&testbed)?;
    testbed.forwarded_by(subject.threads(), subject.programs());
    testbed.generator.set_targets(workload.targets.clone(), workload.frame_bytes)?;
    let mut controller = Controller::connect(&testbed)?;
    let mut progress = Progress::new((options.rates.len() * usize::from(options.sampling.repeat)) as u64);
    progress.print(&head(
        "Rule changes beside 1 Mpps through 4,096 rules",
        &["asked for", "changes/s", "barrier ms", "ns/packet", "loss %", "cache hits %"],
    ));
    for &rate in &options.rates {
        let (mut samples, mut changed) = (Vec::new(), Vec::new());
        for repeat in 0..options.sampling.repeat {
            let load = Load { frame_bytes: workload.frame_bytes, pace: Pace::Rate(OFFERED_PPS) };
            let seconds = Duration::from_secs_f64(options.sampling.seconds);
            let (sample, (work, hit_rate)) =
                measure_during(&mut testbed, load, Duration::from_millis(500), || {
                    let before = hits_of_known_flows(&subject)?;
                    let work = drive(&mut controller, rate, seconds)?;
                    Ok((work, hit_rate(before, hits(&subject)?)))
                })?;
            progress.step(&format!("{rate} changes/s asked for: {:.0}", work.changes as f64 / work.seconds));
            record(&mut recorder, rate, repeat, &sample, &work, hit_rate)?;
            samples.push((sample, hit_rate));
            changed.push(work);
        }
        let of =
            |figure: &dyn Fn(&(Sample, f64)) -> f64| spread(&samples.iter().map(figure).collect::<Vec<_>>());
        let rates: Vec<f64> = changed.iter().map(|c| c.changes as f64 / c.seconds).collect();
        let barriers: Vec<f64> = changed.iter().flat_map(|c| c.barriers_ms.iter().copied()).collect();
        progress.print(&row(&[
            rate.to_string(),
            show(spread(&rates), 1.0, 0),
            show(spread(&barriers), 1.0, 1),
            show(of(&|(s, _)| s.ns_per_packet.unwrap_or(f64::NAN)), 1.0, 0),
            show(of(&|(s, _)| s.loss), 100.0, 3),
            show(of(&|(_, hits)| *hits), 100.0, 2),
        ]));
    }
    Ok(())
}

fn record(
    recorder: &mut Recorder,
    rate: u32,
    repeat: u16,
    sample: &Sample,
    work: &Changed,
    hit_rate: f64,
) -> Result<()> {
    let mut barriers = work.barriers_ms.clone();
    barriers.sort_by(f64::total_cmp);
    let at = |share: f64| barriers.get((barriers.len() as f64 * share) as usize).copied();
    recorder.line(&json!({"record": "sample", "case": "flow-changes", "subject": "millrace", "repeat": repeat,
        "parameters": {"asked_per_s": rate}, "sample": sample, "changes_per_s": work.changes as f64 / work.seconds,
        "barriers": barriers.len(), "barrier_p50_ms": at(0.5), "barrier_p99_ms": at(0.99), "cache_hit_rate": hit_rate}))
}

/// Adds and deletes rules of other flows for this long, with a barrier after each batch.
fn drive(controller: &mut Controller, rate: u32, length: Duration) -> Result<Changed> {
    let mut changed = Changed::default();
    let started = Instant::now();
    if rate == 0 {
        sys::sleep(length)?;
    }
    let batch = BATCH.min(rate / 20).max(1);
    let mut next = 0;
    while rate > 0 && started.elapsed() < length {
        sys::check_interrupted()?;
        let due = Duration::from_secs_f64(changed.changes as f64 / f64::from(rate));
        if let Some(early) = due.checked_sub(started.elapsed()) {
            sys::sleep(early)?;
        }
        let sent = Instant::now();
        controller.change((0..batch).map(|i| change(next + i)).collect::<Result<Vec<_>>>()?)?;
        controller.barrier()?;
        changed.barriers_ms.push(sent.elapsed().as_secs_f64() * 1e3);
        next += batch;
        changed.changes += u64::from(batch);
    }
    changed.seconds = started.elapsed().as_secs_f64();
    // Delete the rest of the rules.
    controller.change([delete_all()?])?;
    controller.barrier()?;
    Ok(changed)
}

/// Change number n of an endless series: half of the changes add a rule, the others delete one that was added.
fn change(n: u32) -> Result<FlowMod> {
    let (command, rule) = match n % 2 {
        0 => (FlowCommand::Add, n / 2),
        _ => (FlowCommand::Delete { strict: true }, n / 2),
    };
    let rule = rule % 50_000;
    let matching =
        format!("priority=100,in_port=1,udp,nw_dst=10.{}.{}.1,tp_src=9,tp_dst=9", rule >> 8, rule & 255);
    let text = match command {
        FlowCommand::Add => format!("{matching},actions=output:2"),
        _ => matching,
    };
    parse_flow(&text, command).context("a rule of our own")
}

/// Deletes the rules of [`change`].
fn delete_all() -> Result<FlowMod> {
    parse_flow("in_port=1,udp,nw_dst=10.0.0.0/8", FlowCommand::Delete { strict: false })
        .context("a match of our own")
}

/// Packets that the cache has answered so far, and packets that it has not.
fn hits(millrace: &Millrace) -> Result<(u64, u64)> {
    let status = millrace.ask(&["status"])?;
    let cache = |what: &str| {
        status["flows"][format!("cache_{what}")]
            .as_u64()
            .with_context(|| format!("millrace status has no flows.cache_{what}"))
    };
    Ok((cache("hits")?, cache("misses")?))
}

/// The same, once the cache knows all flows: no packet missed it for a tenth of a second. A slow machine sends few packets,
/// and the first packet of each flow is a miss.
fn hits_of_known_flows(millrace: &Millrace) -> Result<(u64, u64)> {
    let (begun, mut before) = (Instant::now(), hits(millrace)?);
    loop {
        sys::sleep(Duration::from_millis(100))?;
        let now = hits(millrace)?;
        if now.0 > before.0 && now.1 == before.1 || begun.elapsed() > KNOWN_WITHIN {
            return Ok(now);
        }
        before = now;
    }
}

fn hit_rate(before: (u64, u64), after: (u64, u64)) -> f64 {
    let (hits, misses) = (after.0 - before.0, after.1 - before.1);
    hits as f64 / (hits + misses).max(1) as f64
}

fn figure() -> Figure {
    let x = Axis::new("/changes_per_s", "rule changes per second", "1/s");
    let y = Axis::new("/sample/ns_per_packet", "CPU per packet", "ns");
    Figure::new("flow-changes", "Rule changes while forwarding", Some(x), y).only("/case", "flow-changes")
}
