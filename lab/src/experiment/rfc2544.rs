//! `millrace-lab rfc2544`: what RFC 2544 and its successors ask of a router, by frame size (9.1), one subject on its own.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum, value_parser};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    on_testbed::{HIGHEST_PPS, OnTestbed, Restart},
    print_head, print_row, show, testbed,
};
use crate::{
    check::check_forwarding,
    generator::Pace,
    measure::{Sample, Window},
    method::{
        back_to_back::{self, BackToBack},
        frame_loss::{self, Point},
        latency::{self, AtRate},
        recovery::{self, Recovery},
        reset::{self, ResetTime},
        throughput::{self, Repeated, Search},
    },
    packet::FCS_BYTES,
    progress::Progress,
    record::Output,
    sink::Watch,
    subject::{self, Subject},
    sys::Interrupted,
    testbed::Testbed,
    workload::{Family, Workload},
};

const LOWEST_PPS: u64 = 10_000;
/// Share that may be lost: none, and one in a thousand.
const LOSSES: [f64; 2] = [0.0, 0.001];
const RESOLUTION: f64 = 0.01;
/// Of the frame loss curve.
const STEPS: u64 = 10;
/// Frames: the shortest burst, and the step size of its search.
const BURST_STEP: u64 = 16;
const LONGEST_BURST_SECONDS: f64 = 1.0;

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// What to measure
    #[arg(long, value_parser = subject::NAMES, default_value = "millrace")]
    subject: String,
    /// Frame lengths in bytes, FCS included, each 64 to 3404
    #[arg(long, value_delimiter = ',', value_parser = value_parser!(u16).range(64..=3404),
        default_values_t = [64, 128, 256, 512, 1024, 1280, 1518])]
    frames: Vec<u16>,
    /// Destinations, one flow each: 1 to 131072
    #[arg(long, default_value_t = 4096, value_parser = value_parser!(u32).range(1..=131_072))]
    flows: u32,
    /// Length of each trial (the RFC: 60)
    #[arg(long, default_value_t = 2.0, value_parser = super::seconds)]
    seconds: f64,
    /// How often each test is repeated
    #[arg(long, default_value_t = 3, value_parser = value_parser!(u16).range(1..=1000))]
    repeat: u16,
    /// Only these tests; throughput is always measured, since the others are told in it
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = Test::value_variants().to_vec())]
    only: Vec<Test>,
    /// Where the results go, as one document
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

/// One of the tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum Test {
    /// The fastest rate without loss, and with 0.1 % (RFC 2544 26.1)
    Throughput,
    /// Latency at the throughput and at half of it (26.2)
    Latency,
    /// Share lost by rate (26.3)
    FrameLoss,
    /// Longest burst without loss (26.4, RFC 9004)
    BackToBack,
    /// How long losses go on after an overload (26.5)
    Recovery,
    /// Time without forwarding when restarted (26.6, RFC 6201)
    Reset,
}

/// Of one frame length; tests that were not run are not there.
#[derive(Debug, Default, Serialize)]
struct Result2544 {
    frame: u16,
    /// In which the other tests are told: without loss; if there is none, with 0.1 %.
    throughput_pps: u64,
    throughput: Vec<Repeated>,
    #[serde(skip_serializing_if = "Option::is_none")]
    latency: Option<Vec<AtRate>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    frame_loss: Option<Vec<Point>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    back_to_back: Option<BackToBack>,
    #[serde(skip_serializing_if = "Option::is_none")]
    recovery: Option<Recovery>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reset: Option<ResetTime>,
}

/// A subject under test.
struct Bench<'a> {
    options: &'a Options,
    testbed: Testbed,
    /// `None` while it is being restarted.
    subject: Option<Box<dyn Subject>>,
    progress: Progress,
    /// Every trial, as JSON lines would have it.
    trials: Vec<Value>,
}

pub(super) fn run(options: &Options, output: &Output) -> Result<()> {
    let testbed = testbed(0)?;
    let subject = Some(subject::start(&options.subject, &testbed)?);
    let mut bench = Bench { options, testbed, subject, progress: Progress::new(0), trials: Vec::new() };
    let mut results = Vec::new();
    let mut measured = Ok(());
    for (at, &frame) in options.frames.iter().enumerate() {
        let mut result = Result2544 { frame, ..Result2544::default() };
        measured = bench.frame(&mut result, options.frames.len() - at - 1);
        results.push(result);
        output.document(document(options, &results, &bench.trials, &measured))?;
        if measured.is_err() {
            break;
        }
    }
    drop(bench);
    print(options, &results);
    measured
}

impl Options {
    /// In this order.
    fn tests(&self) -> Vec<Test> {
        let wanted = |test: &&Test| **test == Test::Throughput || self.only.contains(test);
        Test::value_variants().iter().filter(wanted).copied().collect()
    }

    /// Most trials of a test.
    fn trials(&self, test: Test) -> u64 {
        u64::from(self.repeat)
            * match test {
                Test::Throughput => LOSSES.iter().map(|&loss| search(loss).most_trials()).sum(),
                Test::Latency => 2,
                Test::FrameLoss => STEPS,
                Test::BackToBack => u64::from((HIGHEST_PPS / BURST_STEP).ilog2()) + 2,
                Test::Recovery | Test::Reset => 1,
            }
    }
}

fn search(loss: f64) -> Search {
    Search { between: (LOWEST_PPS, HIGHEST_PPS), loss, resolution: RESOLUTION }
}

impl Bench<'_> {
    /// All tests with one frame length; what was measured before an error stays in `result`.
    fn frame(&mut self, result: &mut Result2544, frames_left: usize) -> Result<()> {
        let workload = Workload::benchmark(Family::V4, self.options.flows, 0..=0);
        let frame_bytes = result.frame - FCS_BYTES;
        let subject = self.subject.as_deref().context("the subject does not run")?;
        let next_hop = |address| workload.next_hop(address);
        let targets = subject.addressed(&workload.targets);
        check_forwarding(&mut self.testbed, subject, &targets, frame_bytes, next_hop)?;
        self.testbed.generator.set_targets(targets, frame_bytes)?;
        let tests = self.options.tests();
        let trials = |tests: &[Test]| tests.iter().map(|&test| self.options.trials(test)).sum::<u64>();
        let of_later_frames = frames_left as u64 * trials(&tests);
        for (at, &test) in tests.iter().enumerate() {
            self.progress.expect(of_later_frames + trials(&tests[at..]));
            self.test(test, result).with_context(|| format!("{test:?} with {}-byte frames", result.frame))?;
        }
        self.progress.expect(of_later_frames);
        Ok(())
    }

    fn test(&mut self, test: Test, result: &mut Result2544) -> Result<()> {
        let Self { options, testbed, subject, progress, trials } = self;
        let repeat = options.repeat.into();
        let frame = result.frame;
        let mut seen = |found: &str, sample: Option<(Pace, &Sample)>| {
            progress.step(&format!("{frame} bytes, {found}"));
            if let Some((pace, sample)) = sample {
                let parameters = json!({"test": test, "frame": frame});
                trials.push(json!({"record": "sample", "case": "trial", "subject": options.subject,
                    "parameters": parameters, "pace": pace, "sample": sample}));
            }
            Ok(())
        };
        let watch = Watch { latency: test == Test::Latency, ..Watch::NOTHING };
        let length = Duration::from_secs_f64(options.seconds);
        let window = Window::new(Duration::ZERO, length).watching(watch);
        let mut trial = OnTestbed { testbed, seen: &mut seen, frame_bytes: frame - FCS_BYTES, window };
        match test {
            Test::Throughput => {
                result.throughput = throughput::repeated(&mut trial, &LOSSES.map(search), repeat)?;
                let found = result.throughput.iter().map(|found| found.pps.median);
                result.throughput_pps = found.into_iter().find(|&pps| pps > 0.0).unwrap_or(0.0) as u64;
            }
            Test::Latency => {
                let throughput_pps = result.throughput_pps.max(LOWEST_PPS);
                let rates_pps = [throughput_pps, throughput_pps / 2];
                result.latency = Some(latency::at_rates(&mut trial, &rates_pps, repeat)?);
            }
            Test::FrameLoss => {
                // From half more than what comes through with next to no loss.
                let most = result.throughput.iter().map(|found| found.pps.median).fold(0.0, f64::max);
                let highest_pps = ((most * 1.5) as u64).clamp(LOWEST_PPS, HIGHEST_PPS);
                result.frame_loss = Some(frame_loss::curve(&mut trial, highest_pps, STEPS, repeat)?);
            }
            Test::BackToBack => {
                let back_to_back_pps = trial.flat_out()?.offered_pps;
                let longest = (back_to_back_pps * LONGEST_BURST_SECONDS) as u64;
                let search = back_to_back::Search {
                    between: (BURST_STEP, longest.max(2 * BURST_STEP)),
                    step: BURST_STEP,
                    losses_to_believe: 2,
                    repeats: repeat,
                    back_to_back_pps,
                    throughput_pps: result.throughput_pps as f64,
                };
                result.back_to_back = Some(back_to_back::search(&mut trial, &search)?);
            }
            Test::Recovery => {
                let throughput_pps = result.throughput_pps.max(LOWEST_PPS);
                result.recovery = Some(recovery::recovery(&mut trial, throughput_pps, HIGHEST_PPS, repeat)?);
            }
            Test::Reset => {
                // RFC 6201 3 asks for the throughput; at half of it the router's core has time for a daemon that starts.
                let pps = (result.throughput_pps / 2).max(LOWEST_PPS);
                let mut restart = Restart { trial, subject, name: &options.subject };
                result.reset = Some(reset::reset(&mut restart, pps, repeat)?);
            }
        }
        Ok(())
    }
}

fn document(options: &Options, results: &[Result2544], trials: &[Value], measured: &Result<()>) -> Value {
    let lines = [lines(options, results), trials.to_vec()].concat();
    let mut document = json!({"subject": options.subject, "flows": options.flows,
        "trial_seconds": options.seconds, "repeat": options.repeat, "resolution": RESOLUTION,
        "results": results, "lines": lines});
    match measured {
        Ok(()) => {}
        Err(error) if error.is::<Interrupted>() => document["interrupted"] = true.into(),
        Err(error) => document["error"] = format!("{error:#}").into(),
    }
    document
}

/// The figures, and what they are drawn from, as the other commands write it.
fn lines(options: &Options, results: &[Result2544]) -> Vec<Value> {
    let axis = |at: &str, label: &str, unit: &str, factor: f64| json!({"at": at, "label": label, "unit": unit, "factor": factor, "scale": "linear"});
    let mut lines = vec![
        json!({"record": "figure", "name": "throughput", "title": "Throughput by frame length (RFC 2544 26.1)",
            "where": {"/case": "throughput"}, "series": ["/subject", "/parameters/loss"],
            "x": axis("/parameters/frame", "frame length with FCS", "bytes", 1.0),
            "y": axis("/sample/throughput_pps", "throughput", "Mpps", 1e-6)}),
        json!({"record": "figure", "name": "latency", "title": "Latency at the throughput, p99 (RFC 2544 26.2)",
            "where": {"/case": "latency", "/parameters/at_throughput": true}, "series": ["/subject"],
            "x": axis("/parameters/frame", "frame length with FCS", "bytes", 1.0),
            "y": axis("/sample/latency/p99_ns", "latency, p99", "us", 1e-3)}),
        json!({"record": "figure", "name": "frame-loss", "title": "Frame loss rate (RFC 2544 26.3)",
            "where": {"/case": "frame-loss"}, "series": ["/subject", "/parameters/frame"],
            "x": axis("/parameters/pps", "offered", "Mpps", 1e-6),
            "y": axis("/sample/loss", "lost", "%", 100.0)}),
    ];
    let mut sample = |case: &str, parameters: Value, repeat: usize, sample: Value| {
        lines.push(json!({"record": "sample", "case": case, "subject": options.subject, "repeat": repeat,
            "parameters": parameters, "sample": sample}));
    };
    for result in results {
        for found in &result.throughput {
            for (repeat, search) in found.searches.iter().enumerate() {
                let parameters = json!({"frame": result.frame, "loss": found.loss});
                sample("throughput", parameters, repeat, json!({"throughput_pps": search.pps}));
            }
        }
        for at_rate in result.latency.iter().flatten() {
            for (repeat, trial) in at_rate.trials.iter().enumerate() {
                let parameters = json!({"frame": result.frame, "pps": at_rate.pps,
                    "at_throughput": at_rate.pps == result.throughput_pps});
                sample("latency", parameters, repeat, json!({"latency": trial.latency}));
            }
        }
        for point in result.frame_loss.iter().flatten() {
            for (repeat, trial) in point.trials.iter().enumerate() {
                let parameters = json!({"frame": result.frame, "pps": point.pps});
                sample("frame-loss", parameters, repeat, json!({"loss": trial.loss()}));
            }
        }
    }
    lines
}

fn print(options: &Options, results: &[Result2544]) {
    let title = format!(
        "{}, {} flows, trials of {} s, {} of each: median (range)",
        options.subject, options.flows, options.seconds, options.repeat
    );
    print_head(
        &title,
        &[
            "frame",
            "Mpps, no loss",
            "Mpps, 0.1 % lost",
            "p99 latency there, us",
            "p99 at half of it, us",
            "burst without loss, frames",
            "buffer, us",
            "recovery, ms",
            "reset, ms",
        ],
    );
    for result in results {
        let noisy = |noisy: bool| if noisy { " (noisy)" } else { "" };
        let mpps = |at: usize| {
            let found = result.throughput.get(at)?;
            let disturbed = found.searches.iter().any(|search| search.noisy);
            Some(show(found.pps, 1e-6, 3) + noisy(disturbed))
        };
        let burst = result.back_to_back.as_ref();
        let frames = |found: &BackToBack| {
            let more = if found.at_limit { ", or more" } else { "" };
            format!("{}{more}{}", show(found.frames, 1.0, 0), noisy(found.noisy))
        };
        let p99 = |at: usize| {
            let found = result.latency.as_ref()?.get(at)?;
            Some(show(found.p99_ns, 1e-3, 1) + noisy(found.noisy))
        };
        let recovery = |found: &Recovery| {
            let none = if found.overloaded { "" } else { " (nothing was lost before)" };
            let endless = if found.recovered { "" } else { ", or more" };
            format!("{}{endless}{none}{}", show(found.recovery_ns, 1e-6, 1), noisy(found.noisy))
        };
        let reset = |found: &ResetTime| show(found.reset_ns, 1e-6, 2) + noisy(found.noisy);
        print_row(
            &[
                Some(result.frame.to_string()),
                mpps(0),
                mpps(1),
                p99(0),
                p99(1),
                burst.map(frames),
                burst.map(|found| format!("{:.1}", found.corrected_buffer_seconds * 1e6)),
                result.recovery.as_ref().map(recovery),
                result.reset.as_ref().map(reset),
            ]
            .map(|cell| cell.unwrap_or("-".into())),
        );
    }
}
