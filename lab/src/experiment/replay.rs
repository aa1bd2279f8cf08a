//! A capture sent through subjects ([`crate::replay`]): is what comes out the same, byte by byte, and what becomes of it at
//! its recorded pace or at a rate?

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, value_parser};
use serde_json::{Value, json};

use super::{print_head, row, some_packets_per_second};
use crate::{
    progress::Progress,
    record::{Output, Recorder},
    replay::{
        MACS, Output as CameOut, Pace, Replay, Seen,
        capture::{self, Capture},
        difference::{Comparison, compare},
    },
    subject, sys,
};

/// Those that route whatever comes by the routes of the box, and those that forward whatever comes.
const SUBJECTS: [&str; 5] = ["linux", "millrace", "xdp-forward", "touch", "redirect"];
/// Differences in the record of a subject.
const RECORDED: usize = 100;
/// A run that takes longer is told of in parts.
const LONG_SECONDS: f64 = 20.0;
const PARTS: u64 = 10;
/// A run at the recorded times may take so long.
const LONGEST_SECONDS: f64 = 86_400.0;

/// What to replay.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// A capture, pcap or pcapng, of Ethernet or bare IP. MAC addresses become the testbed's, VLAN tags are taken away
    file: PathBuf,
    /// What to send it through; what comes out of the others is compared with what comes out of the first
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = SUBJECTS,
        default_values = ["linux", "millrace"])]
    subjects: Vec<String>,
    /// `recorded`, or packets per second: 750, 100k, 1.5M
    #[arg(long, value_parser = pace, default_value = "recorded")]
    pace: Paced,
    /// So many times as fast as recorded, 0.001 to 1000
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = factor)]
    speed: f64,
    /// All packets so many times in a run, 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u32).range(1..=1000))]
    loops: u32,
    /// Runs of each subject, alternately, 0 to 1000; 0: what comes out is compared, and nothing else
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u16).range(0..=1000))]
    repeat: u16,
    /// Only the first N packets of the file
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    packets: Option<u32>,
    /// Marks no packet in runs: nothing but MAC addresses and tags is changed, but order, duplicates and latency are not seen
    #[arg(long)]
    untouched: bool,
    /// Differences that are shown of each subject
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

pub(super) fn run(options: &Options, output: &Output) -> Result<()> {
    let capture = capture::read(&options.file, MACS, options.packets.map(|packets| packets as usize))?;
    let seconds = run_seconds(options, &capture)?;
    let mut recorder = output.recorder()?;
    let (left_out, untagged) = (capture.left_out.clone(), capture.untagged);
    let parts = if seconds > LONG_SECONDS { PARTS } else { 1 };
    let mut experiment = Experiment { replay: Replay::new(capture)?, options, parts, skipped: Vec::new() };
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
        println!("  {untagged} whose VLAN tags were taken away");
    }
    left_out.iter().for_each(|(why, packets)| println!("  {packets} left out: {why}"));
    let subjects = options.subjects.len() as u64;
    let mut progress = Progress::new(subjects * (1 + u64::from(options.repeat) * parts));
    let differing = experiment.compare(&mut recorder, &mut progress)?;
    experiment.runs(&mut recorder, &mut progress)?;
    drop(progress);
    if !differing.is_empty() {
        bail!("not the same packets come out: {}", differing.join("; "));
    }
    Ok(())
}

/// How long a run is to take.
fn run_seconds(options: &Options, capture: &Capture) -> Result<f64> {
    let loops = f64::from(options.loops);
    match options.pace {
        Paced::Recorded => {
            let seconds = capture.recorded_seconds() / options.speed * loops;
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
    options: &'a Options,
    /// Steps of a run.
    parts: u64,
    /// Subjects that were not compared.
    skipped: Vec<String>,
}

impl Experiment<'_> {
    /// What comes out of the others and not of the first, in words.
    fn compare(&mut self, recorder: &mut Recorder, progress: &mut Progress) -> Result<Vec<String>> {
        let mut reference: Option<(String, CameOut)> = None;
        let (mut rows, mut details, mut differing) = (Vec::new(), Vec::new(), Vec::new());
        for name in &self.options.subjects {
            let came = match self.came_out(name) {
                Ok(came) => came,
                Err(error) if error.is::<sys::Interrupted>() => return Err(error),
                Err(error) if reference.is_none() => {
                    return Err(error.context(format!("{name}, with which the others are compared")));
                }
                // Not compared is not the same.
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
            rows.push(self.comparison_row(name, &came, found.as_ref()));
            details.extend(details_of(name, &came));
            if let (Some(found), Some(with)) = (&found, with) {
                let shown = found.differences.iter().take(self.options.differences);
                for difference in shown {
                    let hex = |bytes: &Option<String>| bytes.clone().unwrap_or("-".into());
                    details.push(format!(
                        "{name}: {:?}: {}\n    {with}: {}\n    {name}: {}",
                        difference.kind,
                        difference.packet,
                        hex(&difference.reference),
                        hex(&difference.seen)
                    ));
                }
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
        print_head(
            &format!("What comes out, byte by byte, against {}", self.options.subjects[0]),
            &[
                "subject",
                "sent",
                "came out",
                "missing",
                "extra",
                "changed",
                "reordered flows",
                "the router's own",
            ],
        );
        rows.iter().for_each(|row| println!("{row}"));
        println!();
        details.iter().for_each(|line| println!("* {line}"));
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

    fn comparison_row(&self, name: &str, came: &CameOut, found: Option<&Comparison>) -> String {
        let count = |of: fn(&Comparison) -> usize| found.map_or("-".into(), |found| of(found).to_string());
        row(&[
            name.into(),
            self.replay.contents().packets.to_string(),
            came.frames.len().to_string(),
            count(|found| found.missing),
            count(|found| found.extra),
            count(|found| found.changed),
            count(|found| found.reordered_flows),
            came.own.len().to_string(),
        ])
    }

    /// Runs of all subjects that were compared, alternately.
    fn runs(&mut self, recorder: &mut Recorder, progress: &mut Progress) -> Result<()> {
        let (mut rows, mut details) = (Vec::new(), Vec::new());
        for repeat in 0..self.options.repeat {
            for name in &self.options.subjects {
                if self.skipped.contains(name) {
                    continue;
                }
                let seen = self.measured(name, progress).with_context(|| format!("a run of {name}"))?;
                recorder.line(&self.run_line(name, repeat, &seen))?;
                rows.push(run_row(name, &seen));
                if seen.missed > 0 {
                    details.push(format!(
                        "{name}: the sink had no room for {} marks; those count as lost",
                        seen.missed
                    ));
                }
            }
        }
        if !rows.is_empty() {
            let pace = match self.options.pace {
                Paced::Recorded => format!("as recorded, {} times as fast", self.options.speed),
                Paced::Rate(pps) => format!("at {pps} packets per second"),
            };
            print_head(
                &format!("Replayed {pace}, {} loops", self.options.loops),
                &[
                    "subject",
                    "sent",
                    "came out, its own too",
                    "pps",
                    "held up, ms",
                    "marked",
                    "of them lost or kept",
                    "reordered",
                    "duplicates",
                    "p50, us",
                    "p99, us",
                    "longest, us",
                ],
            );
            rows.iter().for_each(|row| println!("{row}"));
        }
        details.iter().for_each(|line| println!("* {line}"));
        Ok(())
    }

    fn measured(&mut self, name: &str, progress: &mut Progress) -> Result<Seen> {
        let _subject = subject::start(name, &self.replay.testbed)?;
        let pace = match self.options.pace {
            Paced::Recorded => Pace::Recorded(self.options.speed),
            Paced::Rate(pps) => Pace::Rate(pps),
        };
        let all = self.replay.contents().packets * u64::from(self.options.loops);
        let (parts, mut told) = (self.parts, 0);
        let mut sent = |sent: u64| {
            while told + 1 < parts && sent * parts >= all * (told + 1) {
                told += 1;
                progress.step(&format!("{name}: {sent} of {all} sent"));
            }
        };
        let seen = self.replay.run(pace, self.options.loops, self.options.untouched, &mut sent)?;
        progress.step(&format!("{name}: {} sent, {} came out", seen.sent, seen.received));
        Ok(seen)
    }

    fn run_line(&self, name: &str, repeat: u16, seen: &Seen) -> Value {
        let options = self.options;
        let pace = match options.pace {
            Paced::Recorded => json!("recorded"),
            Paced::Rate(pps) => json!({"rate": pps}),
        };
        json!({"record": "sample", "case": "replay", "subject": name, "repeat": repeat, "pace": pace, "sample": seen,
            "parameters": {"file": options.file, "loops": options.loops, "speed": options.speed,
                "packets": options.packets, "untouched": options.untouched}})
    }
}

/// What did not come out, and what counted it.
fn details_of(name: &str, came: &CameOut) -> Vec<String> {
    let list = |counts: Vec<String>| counts.join(", ");
    let kept = came.kept.iter().map(|(why, packets)| format!("{packets} {why}")).collect::<Vec<_>>();
    let lost = came.lost.iter().map(|(what, packets)| format!("{what} {packets}")).collect::<Vec<_>>();
    let mut lines = Vec::new();
    if !kept.is_empty() {
        lines.push(format!("{name} did not forward: {}", list(kept)));
    }
    if !lost.is_empty() {
        lines.push(format!("{name}, by its counters: {}", list(lost)));
    }
    lines
}

fn run_row(name: &str, seen: &Seen) -> String {
    let us = |ns: Option<u64>| ns.map_or("-".into(), |ns| format!("{:.1}", ns as f64 / 1e3));
    let latency = seen.latency;
    row(&[
        name.into(),
        seen.sent.to_string(),
        seen.received.to_string(),
        seen.offered_pps.map_or("-".into(), |pps| format!("{pps:.0}")),
        format!("{:.1}", seen.held_up_ms),
        seen.marked.sent.to_string(),
        (seen.marked.sent - seen.marked.received).to_string(),
        seen.marked.reordered.to_string(),
        seen.marked.duplicates.to_string(),
        us(latency.map(|latency| latency.p50_ns)),
        us(latency.map(|latency| latency.p99_ns)),
        us(latency.map(|latency| latency.max_ns)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paces_are_read() {
        assert_eq!(pace("recorded"), Ok(Paced::Recorded));
        assert_eq!(pace("1.5k"), Ok(Paced::Rate(1500)));
        assert!(pace("0").unwrap_err().contains("neither `recorded` nor a rate"));
        assert!(pace("fast").is_err() && factor("0").is_err() && factor("nan").is_err());
        assert_eq!(factor("2.5"), Ok(2.5));
    }
}
