//! A capture sent through subjects ([`crate::replay`]): is their output the same, byte by byte, and how does it fare at
//! the recorded pace or at a rate?

mod shown;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, value_parser};
use serde_json::{Value, json};

use self::shown::{COMPARED, RAN, Shown, comparison_row, details_of, in_bytes, run_row};
use super::some_packets_per_second;
use crate::{
    progress::{Progress, in_words},
    record::{Output, Recorder},
    replay::{
        COMPARISON_PPS, MACS, Output as CameOut, Pace, Replay, ReplayOutcome,
        capture::{self, Capture},
        difference::{Comparison, compare},
    },
    subject, sys,
};

/// Subjects that route everything by the routes of the box, and those that forward everything.
const SUBJECTS: [&str; 5] = ["linux", "millrace", "xdp-forward", "touch", "redirect"];
/// Maximum number of differences in the record of a subject.
const RECORDED: usize = 100;
/// A longer run is reported in parts.
const LONG_SECONDS: f64 = 20.0;
const PARTS: u32 = 10;
/// Time to start a subject, and to wait for late packets.
const AROUND: Duration = Duration::from_secs(1);
/// If all runs together take longer, a warning comes before the first.
const TOLD_SECONDS: f64 = 600.0;
/// Longest run at the recorded times.
const LONGEST_SECONDS: f64 = 86_400.0;

/// What to replay.
#[derive(Args, Clone, Debug)]
pub struct ReplayOptions {
    /// A capture, pcap or pcapng, of Ethernet or bare IP. The testbed's MAC addresses replace its own, and VLAN tags
    /// are removed
    pub(super) file: PathBuf,
    /// Subjects to send it through; the output of the others is compared with that of the first
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = SUBJECTS,
        default_values = ["linux", "millrace"])]
    pub(super) subjects: Vec<String>,
    /// `recorded`, or packets per second: 750, 100k, 1.5M [default: recorded]
    #[arg(long, value_parser = pace)]
    pace: Option<Paced>,
    /// Speed, as a multiple of the recorded one, 0.001 to 1000 [default: 1]
    #[arg(long, value_name = "FACTOR", value_parser = factor)]
    speed: Option<f64>,
    /// How often all packets are sent in a run, 1 to 1000 [default: 1]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=1000))]
    loops: Option<u32>,
    /// Runs of each subject, alternately, 0 to 1000; with 0, outputs are only compared
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u16).range(0..=1000))]
    repeat: u16,
    /// Only the first N packets of the file
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    packets: Option<u32>,
    /// Mark no packets in runs: only MAC addresses and tags change, but order, duplicates and latency are not visible
    #[arg(long)]
    untouched: bool,
    /// Differences to show for each subject
    #[arg(long, value_name = "N", default_value_t = 5)]
    differences: usize,
    /// Where raw results go; `millrace-lab report` reads them
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Paced {
    Recorded,
    Rate(u64),
}

fn pace(text: &str) -> Result<Paced, String> {
    if text == "recorded" {
        return Ok(Paced::Recorded);
    }
    some_packets_per_second(text)
        .map(Paced::Rate)
        .map_err(|why| format!("neither `recorded` nor a rate: {why}"))
}

fn factor(text: &str) -> Result<f64, String> {
    let factor: f64 = text.parse().map_err(|_| "not a number")?;
    if (0.001..=1000.0).contains(&factor) { Ok(factor) } else { Err("0.001 to 1000".into()) }
}

impl ReplayOptions {
    /// Fails if an option has no effect.
    fn check(&self) -> Result<()> {
        let given = [
            ("--pace", self.pace.is_some()),
            ("--speed", self.speed.is_some()),
            ("--loops", self.loops.is_some()),
            ("--untouched", self.untouched),
        ];
        let idle = given.iter().find(|(_, is_given)| *is_given && self.repeat == 0);
        if let Some((name, _)) = idle {
            bail!("{name} is for runs, and with --repeat 0 there are none: leave one of them out");
        }
        ensure!(
            self.speed.is_none() || self.pace() == Paced::Recorded,
            "--speed is for the recorded times, --pace sends at a rate: leave one of them out"
        );
        Ok(())
    }

    fn pace(&self) -> Paced {
        self.pace.unwrap_or(Paced::Recorded)
    }

    fn speed(&self) -> f64 {
        self.speed.unwrap_or(1.0)
    }

    fn loops(&self) -> u32 {
        self.loops.unwrap_or(1)
    }

    /// A warning before runs that each take this long.
    fn warning(&self, seconds: f64) -> Option<String> {
        let runs = self.subjects.len() as f64 * f64::from(self.repeat);
        (runs * seconds > TOLD_SECONDS).then(|| {
            format!(
                "the runs take about {} ({runs} of {}): --pace N sends N packets per second, --speed N N times as fast, \
                 --repeat 0 only compares",
                in_words(Duration::from_secs_f64(runs * seconds)),
                in_words(Duration::from_secs_f64(seconds))
            )
        })
    }
}

pub(super) fn run(options: &ReplayOptions, output: &Output) -> Result<()> {
    options.check()?;
    let capture = capture::read(&options.file, MACS, options.packets.map(|packets| packets as usize))?;
    let seconds = run_seconds(options, &capture)?;
    let mut recorder = output.recorder()?;
    let (left_out, untagged) = (capture.left_out.clone(), capture.untagged);
    if let Some(warning) = options.warning(seconds) {
        eprintln!("{warning}");
    }
    let run_time = Duration::from_secs_f64(seconds);
    let mut experiment = Experiment { replay: Replay::new(capture)?, options, run_time, skipped: Vec::new() };
    let contents = experiment.replay.contents();
    recorder
        .line(&json!({"record": "capture", "case": "capture", "file": options.file, "contents": contents,
        "untagged": untagged, "left_out": left_out}))?;
    println!(
        "{}: {} packets of {} flows in {:.3} s; {} have room for a mark",
        options.file.display(),
        contents.packets,
        contents.flows,
        contents.recorded_seconds,
        contents.marked
    );
    if untagged > 0 {
        println!("  {untagged} whose VLAN tags were removed");
    }
    left_out.iter().for_each(|(why, packets)| println!("  {packets} left out: {why}"));
    let mut progress = Progress::new(0);
    progress.expect_lengths(experiment.steps(true));
    let differing = experiment.compare(&mut recorder, &mut progress)?;
    experiment.runs(&mut recorder, &mut progress)?;
    drop(progress);
    if !differing.is_empty() {
        bail!("the subjects did not forward the same packets: {}", differing.join("; "));
    }
    Ok(())
}

/// Expected duration of a run.
fn run_seconds(options: &ReplayOptions, capture: &Capture) -> Result<f64> {
    let loops = f64::from(options.loops());
    match options.pace() {
        Paced::Recorded => {
            let seconds = capture.recorded_seconds() / options.speed() * loops;
            ensure!(
                seconds <= LONGEST_SECONDS || options.repeat == 0,
                "a run at the recorded times of {} would take {:.1} days: --pace N sends N packets per second, --speed N N times as fast",
                options.file.display(),
                seconds / LONGEST_SECONDS
            );
            Ok(seconds)
        }
        Paced::Rate(pps) => Ok(capture.packets.len() as f64 / pps as f64 * loops),
    }
}

struct Experiment<'a> {
    replay: Replay,
    options: &'a ReplayOptions,
    /// Duration of each run.
    run_time: Duration,
    /// Subjects that were not compared.
    skipped: Vec<String>,
}

impl Experiment<'_> {
    /// Number of parts in which a run is reported.
    fn parts(&self) -> u32 {
        if self.run_time.as_secs_f64() > LONG_SECONDS { PARTS } else { 1 }
    }

    /// Durations of the remaining steps: of comparisons, if it `compares`, and of runs.
    fn steps(&self, compares: bool) -> Vec<Duration> {
        let packets = self.replay.contents().packets;
        let comparison = AROUND + Duration::from_secs_f64(packets as f64 / COMPARISON_PPS as f64);
        let subjects = self.options.subjects.len();
        let runs = (subjects - self.skipped.len()) * usize::from(self.options.repeat);
        let mut steps = vec![comparison; if compares { subjects } else { 0 }];
        for _ in 0..runs {
            steps.extend(vec![self.run_time / self.parts(); self.parts() as usize]);
            steps.last_mut().into_iter().for_each(|last| *last += AROUND);
        }
        steps
    }

    /// Compares the output of the others with that of the first. Returns the differences in words.
    fn compare(&mut self, recorder: &mut Recorder, progress: &mut Progress) -> Result<Vec<String>> {
        let mut shown = Shown::default();
        let compared = self.compare_all(recorder, progress, &mut shown);
        // Also show what was compared before an error or Ctrl-C.
        shown
            .print(&format!("What comes out, byte by byte, against {}", self.options.subjects[0]), &COMPARED);
        compared
    }

    fn compare_all(
        &mut self,
        recorder: &mut Recorder,
        progress: &mut Progress,
        table: &mut Shown,
    ) -> Result<Vec<String>> {
        let mut reference: Option<(String, CameOut)> = None;
        let (packets, mut differing) = (self.replay.contents().packets, Vec::new());
        for name in &self.options.subjects {
            let came = match self.came_out(name) {
                Ok(came) => came,
                Err(error) if error.is::<sys::Interrupted>() => return Err(error),
                Err(error) if reference.is_none() => {
                    return Err(error.context(format!("{name}, with which the others are compared")));
                }
                // A subject that was not compared does not count as the same.
                Err(error) => {
                    recorder
                        .line(&json!({"record": "skipped", "subject": name, "why": format!("{error:#}")}))?;
                    differing.push(format!("{name} was not compared: {error:#}"));
                    progress.step(&format!("{name}: {error:#}"));
                    self.skipped.push(name.clone());
                    continue;
                }
            };
            let found = reference.as_ref().map(|(_, with)| compare(&with.frames, &came.frames, RECORDED));
            let found = found.transpose()?;
            let with = reference.as_ref().map(|(name, _)| name.as_str());
            recorder.line(&self.comparison_line(name, with, &came, found.as_ref()))?;
            progress.step(&format!("{name}: {} came out", came.frames.len()));
            table.rows.push(comparison_row(name, packets, &came, found.as_ref()));
            table.details.extend(details_of(name, &came));
            if let (Some(found), Some(with)) = (&found, with) {
                let shown = found.differences.iter().take(self.options.differences);
                table.details.extend(shown.map(|difference| in_bytes(difference, with, name)));
                if !found.is_same() {
                    differing.push(format!(
                        "{name}: {} missing, {} extra, {} changed, of {} out of {with}",
                        found.missing,
                        found.extra,
                        found.changed,
                        reference.as_ref().map_or(0, |r| r.1.frames.len())
                    ));
                }
            }
            reference.get_or_insert((name.clone(), came));
        }
        Ok(differing)
    }

    fn came_out(&mut self, name: &str) -> Result<CameOut> {
        let _subject = subject::start(name, &self.replay.testbed)?;
        self.replay.comparable(|why| eprintln!("  {name}: {why}"))
    }

    fn comparison_line(
        &self,
        name: &str,
        reference: Option<&str>,
        came: &CameOut,
        found: Option<&Comparison>,
    ) -> Value {
        let mut sample = json!({"sent": self.replay.contents().packets, "came_out": came.frames.len(),
            "own": came.own.len(), "pps": came.pps, "lost": came.lost, "kept": came.kept});
        if let Some(found) = found {
            sample["missing"] = found.missing.into();
            sample["extra"] = found.extra.into();
            sample["changed"] = found.changed.into();
            sample["reordered_flows"] = found.reordered_flows.into();
        }
        json!({"record": "comparison", "case": "comparison", "subject": name, "reference": reference,
            "file": self.options.file, "sample": sample,
            "differences": found.map_or(&[][..], |found| &found.differences)})
    }

    /// Runs of all subjects that were compared, alternately.
    fn runs(&mut self, recorder: &mut Recorder, progress: &mut Progress) -> Result<()> {
        let mut shown = Shown::default();
        progress.expect_lengths(self.steps(false));
        let ran = self.run_all(recorder, progress, &mut shown);
        let pace = match self.options.pace() {
            Paced::Recorded => format!("as recorded, {} times as fast", self.options.speed()),
            Paced::Rate(pps) => format!("at {pps} packets per second"),
        };
        shown.print(&format!("Replayed {pace}, {} loops", self.options.loops()), &RAN);
        ran
    }

    fn run_all(&mut self, recorder: &mut Recorder, progress: &mut Progress, table: &mut Shown) -> Result<()> {
        for repeat in 0..self.options.repeat {
            for name in &self.options.subjects {
                if self.skipped.contains(name) {
                    continue;
                }
                let seen = self.measured(name, progress).with_context(|| format!("a run of {name}"))?;
                recorder.line(&self.run_line(name, repeat, &seen))?;
                table.rows.push(run_row(name, &seen));
                if seen.missed > 0 {
                    table.details.push(format!(
                        "{name}: the sink had no room for {} marks; those count as lost",
                        seen.missed
                    ));
                }
            }
        }
        Ok(())
    }

    fn measured(&mut self, name: &str, progress: &mut Progress) -> Result<ReplayOutcome> {
        let _subject = subject::start(name, &self.replay.testbed)?;
        let loops = self.options.loops();
        let pace = match self.options.pace() {
            Paced::Recorded => Pace::Recorded(self.options.speed()),
            Paced::Rate(pps) => Pace::Rate(pps),
        };
        let all = self.replay.contents().packets * u64::from(loops);
        let (parts, part, started) = (self.parts(), self.run_time / self.parts(), Instant::now());
        let mut told = 0;
        let mut sent = |sent: u64| {
            if told + 1 < parts && started.elapsed() >= part * (told + 1) {
                told += 1;
                progress.step(&format!("{name}: {sent} of {all} sent"));
            }
        };
        let seen = self.replay.run(pace, loops, self.options.untouched, &mut sent)?;
        progress.step(&format!("{name}: {} sent, {} came out", seen.sent, seen.received));
        Ok(seen)
    }

    fn run_line(&self, name: &str, repeat: u16, seen: &ReplayOutcome) -> Value {
        let options = self.options;
        let pace = match options.pace() {
            Paced::Recorded => json!("recorded"),
            Paced::Rate(pps) => json!({"rate": pps}),
        };
        json!({"record": "sample", "case": "replay", "subject": name, "repeat": repeat, "pace": pace, "sample": seen,
            "parameters": {"file": options.file, "loops": options.loops(), "speed": options.speed(),
                "packets": options.packets, "untouched": options.untouched}})
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: ReplayOptions,
    }

    fn options(line: &str) -> ReplayOptions {
        Line::try_parse_from(line.split(' ')).map_err(|error| error.to_string()).unwrap().options
    }

    #[test]
    fn an_option_without_effect_is_refused() {
        for (line, why) in [
            ("--pace 1k --speed 2", "--speed is for the recorded times"),
            ("--repeat 0 --loops 3", "--loops is for runs"),
            ("--repeat 0 --pace recorded", "--pace is for runs"),
            ("--repeat 0 --speed 2", "--speed is for runs"),
            ("--repeat 0 --untouched", "--untouched is for runs"),
        ] {
            let error = options(&format!("replay a.pcap {line}")).check().unwrap_err().to_string();
            assert!(error.starts_with(why) && error.ends_with("leave one of them out"), "{line}: {error}");
        }
        for line in ["--pace recorded --speed 2 --loops 3", "--pace 1k --loops 2", "--repeat 0"] {
            options(&format!("replay a.pcap {line}")).check().unwrap();
        }
    }

    #[test]
    fn runs_of_more_than_ten_minutes_are_announced() {
        let of = |line: &str, seconds| options(line).warning(seconds);
        assert_eq!(of("replay a.pcap", 300.0), None);
        let warning = of("replay a.pcap --repeat 3", 1200.0).unwrap();
        assert!(
            warning.starts_with("the runs take about 2 h 0 min (6 of 20 min 0 s): --pace N"),
            "{warning}"
        );
        assert_eq!(of("replay a.pcap --repeat 0", 1200.0), None);
    }

    #[test]
    fn paces_are_read() {
        assert_eq!(pace("recorded"), Ok(Paced::Recorded));
        assert_eq!(pace("1.5k"), Ok(Paced::Rate(1500)));
        assert!(pace("0").unwrap_err().contains("neither `recorded` nor a rate"));
        assert!(pace("fast").is_err() && factor("0").is_err() && factor("nan").is_err());
        assert_eq!(factor("2.5"), Ok(2.5));
    }
}
