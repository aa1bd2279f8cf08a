//! `millrace-lab rfc2544`: the tests of RFC 2544 and its successors by frame size (9.1), for one subject.

mod results;

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum, value_parser};
use serde::Serialize;
use serde_json::{Value, json};

use self::results::{OfFrame, document, print};
use super::{
    fit_mtu,
    on_testbed::{HIGHEST_PPS, OnTestbed, Restart, TrialEvent},
    testbed,
};
use crate::{
    check::check_forwarding,
    measure::Window,
    method::{
        back_to_back, frame_loss, latency, recovery,
        reset::{self, Event},
        throughput::{self, Search},
    },
    packet::FCS_BYTES,
    progress::Progress,
    record::Output,
    sink::Watch,
    subject::{self, Subject},
    testbed::Testbed,
    workload::{Family, Workload},
};

const LOWEST_PPS: u64 = 10_000;
/// Shares of packets that may be lost: none, and one in a thousand.
const LOSSES: [f64; 2] = [0.0, 0.001];
const RESOLUTION: f64 = 0.01;
/// Time before packets per second are counted. Until then the generator only sets up.
const WARM_UP: Duration = Duration::from_millis(100);
/// Points of the frame loss curve.
const STEPS: u64 = 10;
/// Frames: the shortest burst, and the step size of its search.
const BURST_STEP: u64 = 16;
const LONGEST_BURST_SECONDS: f64 = 1.0;

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct Rfc2544Options {
    /// The subject (lab/README.md describes them all)
    #[arg(long, value_name = "NAME", value_parser = subject::NAMES, default_value = "millrace")]
    subject: String,
    /// Frame lengths in bytes, FCS included, each 64 to 3404: longer ones cannot be sent fast enough to find a throughput
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = value_parser!(u16).range(64..=3404),
        default_values_t = [64, 128, 256, 512, 1024, 1280, 1518])]
    frames: Vec<u16>,
    /// Destinations, one flow each: 1 to 131072
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = value_parser!(u32).range(1..=131_072))]
    flows: u32,
    /// Length of each trial, 0.1 to 600 seconds (the RFC: 60)
    #[arg(long, default_value_t = 2.0, value_parser = super::seconds)]
    seconds: f64,
    /// How often each test is made, 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = value_parser!(u16).range(1..=1000))]
    repeat: u16,
    /// Rate of the stream during a reset, in packets a second (750, 100k, 1.5M): one that the subject carries. Half of
    /// its throughput is used instead where that is measured and less. From 100k on, stalls of the machine of 2 ms
    /// overflow a ring
    #[arg(long, value_name = "PPS", default_value = "50k", value_parser = super::some_packets_per_second)]
    reset_pps: u64,
    /// Only these tests; throughput is always measured along with tests other than reset, because they refer to it
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum, default_values_t = Test::value_variants().to_vec())]
    only: Vec<Test>,
    /// Where the results go, as one document; `millrace-lab report` reads it
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
    /// Time until losses end after an overload (26.5)
    Recovery,
    /// Time without forwarding after a stop and start, and after a kill (26.6, RFC 6201)
    Reset,
}

/// A subject under test.
struct Bench<'a> {
    options: &'a Rfc2544Options,
    testbed: Testbed,
    /// `None` while it is being restarted.
    subject: Option<Box<dyn Subject>>,
    progress: Progress,
    /// Every trial, in the form of JSON lines.
    trials: Vec<Value>,
}

pub(super) fn run(options: &Rfc2544Options, output: &Output) -> Result<()> {
    let testbed = testbed(0)?;
    fit_mtu(&testbed, options.frames.iter().max().map_or(0, |frame| frame - FCS_BYTES))?;
    let subject = Some(subject::start(&options.subject, &testbed)?);
    let mut bench = Bench { options, testbed, subject, progress: Progress::new(0), trials: Vec::new() };
    let mut results = Vec::new();
    let mut measured = Ok(());
    for (at, &frame) in options.frames.iter().enumerate() {
        let mut result = OfFrame { frame, ..OfFrame::default() };
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

impl Rfc2544Options {
    /// The tests, in the order they run.
    fn tests(&self) -> Vec<Test> {
        let only_reset = self.only.iter().all(|test| *test == Test::Reset);
        let wanted = |test: &&Test| self.only.contains(test) || (**test == Test::Throughput && !only_reset);
        Test::value_variants().iter().filter(wanted).copied().collect()
    }

    /// Maximum number of trials of a test.
    fn trials(&self, test: Test) -> u64 {
        u64::from(self.repeat)
            * match test {
                Test::Throughput => LOSSES.iter().map(|&loss| search(loss).most_trials()).sum(),
                Test::Latency => 2,
                Test::FrameLoss => STEPS,
                Test::BackToBack => u64::from((HIGHEST_PPS / BURST_STEP).ilog2()) + 2,
                Test::Recovery => 1,
                Test::Reset => 3,
            }
    }
}

fn search(loss: f64) -> Search {
    Search { between: (LOWEST_PPS, HIGHEST_PPS), loss, resolution: RESOLUTION }
}

impl Bench<'_> {
    /// Runs all tests with one frame length. Measurements made before an error stay in `result`.
    fn frame(&mut self, result: &mut OfFrame, frames_left: usize) -> Result<()> {
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

    fn test(&mut self, test: Test, result: &mut OfFrame) -> Result<()> {
        let Self { options, testbed, subject, progress, trials } = self;
        let repeat = options.repeat.into();
        let frame = result.frame;
        let mut seen = |told: TrialEvent<'_>| {
            let TrialEvent::Found(found, sample) = told else {
                progress.again();
                return Ok(());
            };
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
        let window = Window::new(WARM_UP, length).watching(watch);
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
                // Start at one and a half times the highest rate with next to no loss.
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
                // RFC 6201 3 asks for the throughput. At half of it, the router's core has time for a daemon that
                // starts.
                let pps = match result.throughput_pps / 2 {
                    _ if result.throughput.is_empty() => options.reset_pps,
                    half => half.max(LOWEST_PPS).min(options.reset_pps),
                };
                let programs = subject.as_ref().map(|subject| subject.programs()).unwrap_or_default();
                let mut events = vec![Event::Orderly, Event::Killed, Event::Nothing];
                if programs.is_empty() {
                    events.retain(|event| *event != Event::Killed);
                    eprintln!("{}: no process to kill", options.subject);
                }
                let mut restart = Restart { trial, subject, name: &options.subject, took: Duration::ZERO };
                result.reset = reset::reset(&mut restart, pps, &events, repeat)?;
            }
        }
        Ok(())
    }
}
