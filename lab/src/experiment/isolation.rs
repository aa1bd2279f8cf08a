//! `millrace-lab isolation`: the loss of one virtual router (router 2, the victim) while another (router 1, its
//! neighbour) is sent more and more. Both are on the same core. They share ports and queues, or each has ports of its
//! own. Losses are those of the window, after the overload has lasted for the warm-up. Losses at its beginning are
//! reported separately (`at the step`).

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};
use clap::Args;
use serde_json::{Value, json};

use super::{Sampling, packets_per_second, print_head, print_row, show, some_packets_per_second};
use crate::{
    compare::prepare,
    figure::{Axis, Figure},
    generator::{Pace, Stream},
    measure::{Sample, StreamSample, Window, measure_streams, spread},
    method::{
        Outcome,
        isolation::{Isolation, Step, Streams, Sweep, TwoStreams, join, sweep},
    },
    packet::Target,
    progress::Progress,
    record::{Output, Recorder},
    sink::Watch,
    testbed::{Priority, Testbed},
    topology::Topology,
    workload::{Way, Workload},
};

const CASE: &str = "isolation";
const MILLRACE: &str = "millrace";
/// Millrace without shares.
pub(crate) const UNSHARED: &str = "millrace-unshared";
const DESTINATIONS_EACH: u32 = 256;
const VICTIM: u16 = 2;
const NEIGHBOUR: u16 = 1;
/// Share of its packets that a victim may lose before isolation counts as broken.
const LOSS: f64 = 0.001;

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct IsolationOptions {
    /// shared: both routers on the same ports and queues; pairs: each on two ports of its own
    #[arg(long, value_parser = ["shared", "pairs"], default_value = "shared")]
    topology: String,
    /// Subjects, alternately; millrace-unshared is Millrace without shares
    #[arg(long, value_delimiter = ',', value_parser = ["linux", MILLRACE, UNSHARED],
        default_values = ["linux", UNSHARED, MILLRACE])]
    pub(super) subjects: Vec<String>,
    /// Packets per second for the victim, up to 20M; k and M are thousands and millions
    #[arg(long, value_name = "PPS", value_parser = some_packets_per_second, default_value = "200k")]
    victim: u64,
    /// Packets per second for the neighbour, rising; 0 means none
    #[arg(long, value_delimiter = ',', value_parser = packets_per_second,
        default_values = ["0", "500k", "1M", "1.5M", "2M", "3M", "4M", "5M", "6M", "7M", "7.8M"])]
    rates: Vec<u64>,
    #[command(flatten)]
    pub(super) sampling: Sampling,
}

/// Results of a subject.
#[derive(Default)]
struct IsolationResults {
    /// One for each repeat.
    sweeps: Vec<Isolation>,
    /// All repeats together, by the neighbour's rate: packets sent, and packets lost, by place.
    sent: BTreeMap<u64, u64>,
    lost: BTreeMap<u64, BTreeMap<String, u64>>,
    /// Packets that no counter explains.
    hidden: u64,
}

pub(super) fn run(options: &IsolationOptions, output: &Output) -> Result<()> {
    let topology = Topology::named(&options.topology)?;
    let workload = Workload::across(&topology, &ways(&topology)?, DESTINATIONS_EACH)?;
    let mut testbed = Testbed::for_rates(&topology)?;
    // A daemon enforces shares. It must not wait for the cores that are sent too much.
    testbed.set_priority(Priority::Reaction)?;
    let mut recorder = output.recorder()?;
    figures(options).iter().try_for_each(|figure| recorder.figure(figure))?;
    let mut subjects: Vec<&str> = options.subjects.iter().map(String::as_str).collect();
    let repeats = options.sampling.repeat;
    let mut progress = Progress::new((options.rates.len() * subjects.len() * usize::from(repeats)) as u64);
    let mut found: BTreeMap<String, IsolationResults> = BTreeMap::new();
    for repeat in 0..repeats {
        for name in subjects.clone() {
            testbed.shares = name != UNSHARED;
            let subject = if name == UNSHARED { MILLRACE } else { name };
            let Some(subject) = prepare(&mut testbed, &workload, CASE, subject, &mut recorder)? else {
                subjects.retain(|subject| *subject != name);
                continue;
            };
            let mut trial = Trial {
                streams: workload.streams(&subject.addressed(&workload.targets), Pace::Rate(2)),
                testbed: &mut testbed,
                window: options.sampling.window().watching(Watch { streams: true, ..Watch::NOTHING }),
                name,
                repeat,
                recorder: &mut recorder,
                progress: &mut progress,
                found: found.entry(name.to_owned()).or_default(),
            };
            let plan = Sweep {
                victim_pps: options.victim,
                neighbour_pps: options.rates.clone(),
                loss: LOSS,
                repeats: 1,
            };
            let swept = sweep(&mut trial, &plan)?;
            trial.found.sweeps.push(swept);
        }
    }
    drop(progress);
    if found.is_empty() {
        bail!("no subject could run");
    }
    found.iter().for_each(|(name, found)| print(name, found));
    Ok(())
}

/// The victim's way, then the neighbour's: each router from its first port to its last.
fn ways(topology: &Topology) -> Result<[Way; 2]> {
    let routers = topology.all_routers()?;
    ensure!(routers.len() > 2, "topology {} has no two virtual routers", topology.name);
    let way = |number: u16| {
        let interfaces = &routers[usize::from(number)].interfaces;
        let (first, last) = (&interfaces[0], &interfaces[interfaces.len() - 1]);
        Way { router: number, from: first.port, to: last.port, weight: 1 }
    };
    Ok([way(VICTIM), way(NEIGHBOUR)])
}

fn figures(options: &IsolationOptions) -> [Figure; 2] {
    let figure = |name: &str, title: &str, y: Axis| {
        let offered = Axis::new("/sample/offered_pps", "offered to both routers", "Mpps");
        let offered = offered.times(1e-6).by("/parameters/neighbour_pps");
        let sharing = if options.topology == "shared" { "the same ports" } else { "ports of their own" };
        let note = format!("Two virtual routers on {sharing}; the victim is sent {} pps.", options.victim);
        Figure::new(name, title, Some(offered), y).only("/case", CASE).series("/subject").note(&note)
    };
    let loss = Axis::new("/sample/victim/loss", "lost of the victim's packets", "%").times(100.0);
    let forwarded = Axis::new("/sample/neighbour/received_pps", "forwarded for the neighbour", "Mpps");
    [
        figure("isolation", "What the victim loses while its neighbour grows", loss),
        figure("isolation-neighbour", "What the neighbour gets", forwarded.times(1e-6)),
    ]
}

/// One run of a subject.
struct Trial<'a> {
    /// The victim's stream, then the neighbour's. Each step sets their rates.
    streams: Vec<Stream>,
    testbed: &'a mut Testbed,
    window: Window,
    name: &'a str,
    repeat: u16,
    recorder: &'a mut Recorder,
    progress: &'a mut Progress,
    found: &'a mut IsolationResults,
}

impl TwoStreams for Trial<'_> {
    fn run(&mut self, victim_pps: u64, neighbour_pps: u64) -> Result<Streams> {
        let paced = self.streams.iter().zip([victim_pps, neighbour_pps]).filter(|(_, pps)| *pps > 0);
        let streams = paced.map(|(stream, pps)| Stream { pace: Pace::Rate(pps), ..stream.clone() });
        self.testbed.generator.set_streams(streams.collect())?;
        let sample = measure_streams(self.testbed, self.window)?;
        let of = |at: usize| sample.streams.get(at).copied().unwrap_or_default();
        let streams = Streams { victim: outcome(of(0), &sample), neighbour: outcome(of(1), &sample) };
        self.record((victim_pps, neighbour_pps), &sample, &streams)?;
        *self.found.sent.entry(neighbour_pps).or_default() += sample.sent;
        let lost = self.found.lost.entry(neighbour_pps).or_default();
        for (place, packets) in &sample.lost {
            *lost.entry(place.clone()).or_default() += packets;
        }
        self.found.hidden += u64::try_from(sample.unexplained).unwrap_or(0);
        self.progress.step(&format!(
            "{} #{} at {:.3} Mpps: the victim loses {:.3} %",
            self.name,
            self.repeat + 1,
            sample.offered_pps / 1e6,
            streams.victim.loss() * 100.0
        ));
        Ok(streams)
    }
}

impl Trial<'_> {
    fn record(&mut self, (victim, neighbour): (u64, u64), sample: &Sample, streams: &Streams) -> Result<()> {
        let targets: Vec<&Target> = self.streams.iter().flat_map(|stream| &stream.targets).collect();
        let mut measured = serde_json::to_value(sample)?;
        let each = [("victim", &streams.victim), ("neighbour", &streams.neighbour)];
        for (at, (who, outcome)) in each.into_iter().enumerate() {
            let whole = sample.streams.get(at).copied().unwrap_or_default();
            measured[who] = of_stream(outcome, whole);
        }
        self.recorder.line(&json!({"record": "sample", "case": CASE,
            "parameters": {"topology": self.testbed.topology.name, "victim_pps": victim,
                "neighbour_pps": neighbour},
            "subject": self.name, "repeat": self.repeat, "frame_bytes": self.streams[0].sizes.min(),
            "targets": targets.len(), "sample": measured}))
    }
}

/// Values of one stream. `whole` covers the whole run, including its beginning.
fn of_stream(outcome: &Outcome, whole: StreamSample) -> Value {
    json!({"offered_pps": outcome.offered_pps, "received_pps": outcome.received_pps, "loss": outcome.loss(),
        "lost_at_step": at_step(outcome, whole)})
}

/// Packets that were lost before the window.
fn at_step(outcome: &Outcome, whole: StreamSample) -> u64 {
    let lost = |sent: u64, received: u64| sent.saturating_sub(received);
    lost(whole.sent, whole.received).saturating_sub(lost(outcome.sent, outcome.received))
}

/// The outcome of the window.
fn outcome(seen: StreamSample, sample: &Sample) -> Outcome {
    let StreamSample { offered_pps, received_pps, skipped, .. } = seen;
    let packets = |pps: f64| (pps * sample.seconds).round() as u64;
    let sent = packets(offered_pps);
    // Packets that were on their way when the window began may have arrived in it.
    let received = packets(received_pps).min(sent);
    Outcome { sent, skipped, received, stolen: sample.stolen, offered_pps, received_pps, latency: None }
}

fn print(name: &str, found: &IsolationResults) {
    let Some(isolation) = join(&found.sweeps, LOSS) else { return };
    let title = format!("{name}: the victim is sent {:.3} Mpps", isolation.victim_pps as f64 / 1e6);
    let head = [
        "offered to both, Mpps",
        "the victim loses, %",
        "neighbour forwarded, Mpps",
        "lost in all, by place",
    ];
    print_head(&title, &head);
    for step in &isolation.steps {
        let forwarded: Vec<f64> = step.trials.iter().map(|trial| trial.neighbour.received_pps).collect();
        let noisy = if step.noisy { " (noisy)" } else { "" };
        print_row(&[
            show(step.total_pps, 1e-6, 3),
            show(step.victim_loss, 100.0, 3) + noisy,
            show(spread(&forwarded), 1e-6, 3),
            places(found, step),
        ]);
    }
    match isolation.breaks_at_pps {
        Some(pps) => println!("\n{name}: isolation breaks at {:.3} Mpps offered to both.", pps / 1e6),
        None => println!("\n{name}: isolation holds at every rate."),
    }
    if found.hidden > 0 {
        println!("{name} hides losses: {} packets are neither forwarded nor counted as lost.", found.hidden);
    }
}

/// Shares of the packets sent, the largest first.
fn places(found: &IsolationResults, step: &Step) -> String {
    let sent = found.sent.get(&step.neighbour_pps).copied().unwrap_or(0).max(1);
    let mut lost: Vec<(&String, &u64)> =
        found.lost.get(&step.neighbour_pps).into_iter().flatten().filter(|(_, lost)| **lost > 0).collect();
    lost.sort_by_key(|(_, packets)| std::cmp::Reverse(**packets));
    let share =
        |(place, packets): (&String, &u64)| format!("{place} {:.2} %", *packets as f64 / sent as f64 * 100.0);
    if lost.is_empty() { "-".into() } else { lost.into_iter().map(share).collect::<Vec<_>>().join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_router_has_a_way_of_its_own() {
        let ways = |name: &str| {
            ways(&Topology::named(name).unwrap()).map(|ways| ways.map(|w| (w.router, w.from, w.to)))
        };
        assert_eq!(ways("shared").unwrap(), [(2, 0, 1), (1, 0, 1)]);
        assert_eq!(ways("pairs").unwrap(), [(2, 2, 3), (1, 0, 1)]);
        assert!(ways("rfc2544").is_err());
    }

    #[test]
    fn losses_are_listed_by_place_the_largest_first() {
        let lost = [("a".to_string(), 5), ("b".to_string(), 20), ("c".to_string(), 0)].into();
        let found = IsolationResults {
            sent: [(7, 1000)].into(),
            lost: [(7, lost)].into(),
            ..IsolationResults::default()
        };
        let none = spread(&[]);
        let step =
            Step { neighbour_pps: 7, total_pps: none, victim_loss: none, trials: vec![], noisy: false };
        assert_eq!(places(&found, &step), "b 2.00 %, a 0.50 %");
        assert_eq!(places(&IsolationResults::default(), &step), "-");
    }
}
