//! `millrace-lab bench`: the experiments whose figures docs/measured.md quotes. Each is a command line that anybody can
//! repeat.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, builder::PossibleValuesParser};

use super::Experiment;
use crate::{progress, sys::Interrupted};

/// Commands in the order they run, and how many seconds each takes on a quiet machine. The number of steps is repeats x
/// subjects x cases. A step takes `--seconds`, half a second of warm-up, and the start of a subject (about 1 s; with a
/// full table 6 s).
const COMMANDS: [(&str, u64); 13] = [
    // 30 starts with a full table, two paces.
    ("capacity --subjects linux,redirect,touch,xdp-forward,millrace --repeat 3", 300),
    // 36 measurements of 1 to 4 s.
    ("program --repeat 3", 120),
    // 72 steps, a third of them with large tables.
    ("tables --repeat 3", 300),
    // 42 steps; 4,096 interfaces to build and to mirror.
    ("scale --routers 1,8,32,256 --interfaces 2,512,4096 --repeat 3", 300),
    // 12 curves of 12 points.
    ("overload --repeat 3 --steps 2", 400),
    // 66 steps.
    ("isolation --repeat 3", 480),
    // 96 steps.
    ("latency --repeat 3", 240),
    ("route-latency", 20),
    ("load", 60),
    // 2 x 3 measurements of 10 s.
    ("idle", 90),
    // 42 measurements of 1 s, 15 trials of up to 20 s.
    ("cores", 180),
    // 36 steps; some subjects take 5 s to start.
    ("compare --subjects all --repeat 3", 180),
    // About 130 trials of 1 s with each of 2 lengths, and 6 resets.
    ("rfc2544 --frames 64,1518 --seconds 1 --repeat 2", 400),
];

/// Which experiments to run, and where to.
#[derive(Args, Clone, Debug)]
pub struct BenchOptions {
    /// Run only this experiment
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(COMMANDS.map(|(command, _)| name(command))))]
    only: Option<String>,
    /// Directory for raw results, one file for each experiment
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// More options for each experiment, which replace its own: `-- --repeat 1`. Every experiment must know them
    #[arg(last = true, value_name = "OPTIONS")]
    more: Vec<String>,
}

#[derive(Parser)]
struct Line {
    #[command(subcommand)]
    experiment: Experiment,
}

fn name(command: &str) -> &str {
    command.split(' ').next().unwrap_or(command)
}

/// Runs the experiments. If one fails, the others still run. Measurements made before an interruption are kept.
///
/// # Errors
/// An option that an experiment does not know, before any runs. Failed experiments, after all have run.
pub fn bench(options: &BenchOptions) -> Result<()> {
    std::fs::create_dir_all(&options.out).with_context(|| options.out.display().to_string())?;
    let mut runs = Vec::new();
    // Parse all command lines before the first one runs.
    for (command, seconds) in COMMANDS {
        if options.only.as_deref().is_none_or(|only| only == name(command)) {
            let words = words(command, &options.out, &options.more);
            let line = Line::try_parse_from(&words).with_context(|| words.join(" "))?;
            runs.push(Run {
                shown: words.join(" "),
                seconds,
                experiment: Box::new(|| line.experiment.run(words)),
            });
        }
    }
    let ran = run_all(runs);
    eprintln!("raw results: {0}; `millrace-lab report {0}` draws them", options.out.display());
    ran
}

struct Run<'a> {
    shown: String,
    /// Seconds on a quiet machine.
    seconds: u64,
    experiment: Box<dyn FnOnce() -> Result<()> + 'a>,
}

fn run_all(runs: Vec<Run<'_>>) -> Result<()> {
    let (count, mut done, mut took) = (runs.len(), 0, Duration::ZERO);
    let mut left: u64 = runs.iter().map(|run| run.seconds).sum();
    let mut failed = Vec::new();
    for (at, run) in runs.into_iter().enumerate() {
        let caption = progress::caption(Some(time_left(took, done, left)));
        eprintln!("[{} of {count}{caption} in all] {} ...", at + 1, run.shown);
        let started = Instant::now();
        match (run.experiment)() {
            Ok(()) => (done, took) = (done + run.seconds, took + started.elapsed()),
            Err(error) if error.is::<Interrupted>() => return Err(error),
            Err(error) => {
                eprintln!("{} failed, the others go on: {error:#}", run.shown);
                failed.push(format!("{}: {error:#}", run.shown));
            }
        }
        left -= run.seconds;
    }
    if !failed.is_empty() {
        bail!("{} of {count} failed:\n{}", failed.len(), failed.join("\n"));
    }
    Ok(())
}

/// Time left, if the rest is slower than on a quiet machine by the same factor as what was done and has not failed.
fn time_left(took: Duration, done: u64, left: u64) -> Duration {
    let slower = if done == 0 { 1.0 } else { took.as_secs_f64() / done as f64 };
    Duration::from_secs_f64(left as f64 * slower)
}

/// The command line. `more` replaces options of the command, each of which has one value.
fn words(command: &str, directory: &Path, more: &[String]) -> Vec<String> {
    let file = directory.join(format!("{}.jsonl", name(command)));
    let own: Vec<&str> = command.split(' ').collect();
    let replaced = |option: &str| more.iter().any(|word| word.split('=').next() == Some(option));
    let kept = own[1..].chunks(2).filter(|option| !replaced(option[0])).flatten();
    let words = ["millrace-lab", own[0]].into_iter().chain(kept.copied()).map(str::to_owned);
    words.chain(["--json".into(), file.display().to_string()]).chain(more.iter().cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_a_command_and_all_take_52_minutes_at_most() {
        for (command, _) in COMMANDS {
            let words = words(command, Path::new("out"), &[]);
            Line::try_parse_from(&words).map(drop).unwrap_or_else(|error| panic!("{command}: {error}"));
        }
        assert!(COMMANDS.iter().map(|(_, seconds)| seconds).sum::<u64>() <= 52 * 60);
    }

    #[test]
    fn a_failed_experiment_is_reported_at_the_end_and_ctrl_c_ends_all() {
        let seen = std::cell::RefCell::new(Vec::new());
        let run = |name: &'static str, result: fn() -> Result<()>| {
            let seen = &seen;
            let experiment = move || {
                seen.borrow_mut().push(name);
                result()
            };
            Run { shown: name.into(), seconds: 1, experiment: Box::new(experiment) }
        };
        let fails = || bail!("no such luck");
        let error = run_all(vec![run("a", fails), run("b", || Ok(())), run("c", fails)]).unwrap_err();
        assert_eq!(error.to_string(), "2 of 3 failed:\na: no such luck\nc: no such luck");
        let stopped = run_all(vec![run("d", || Err(Interrupted.into())), run("e", || Ok(()))]).unwrap_err();
        assert!(stopped.is::<Interrupted>());
        assert_eq!(*seen.borrow(), ["a", "b", "c", "d"]);
    }

    #[test]
    fn time_left_follows_what_was_done() {
        assert_eq!(time_left(Duration::from_secs(3), 0, 100), Duration::from_secs(100));
        assert_eq!(time_left(Duration::from_secs(90), 60, 100), Duration::from_secs(150));
    }

    #[test]
    fn more_options_replace_those_of_a_line() {
        let more = ["--frames", "128", "--seconds", "0.5"].map(String::from);
        let line = Line::try_parse_from(words("rfc2544 --frames 64,512", Path::new("out"), &more)).unwrap();
        let seen = format!("{:?}", line.experiment);
        assert!(seen.contains("frames: [128]") && seen.contains("seconds: 0.5"), "{seen}");
    }
}
