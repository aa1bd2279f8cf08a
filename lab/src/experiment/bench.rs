//! `millrace-lab bench`: the experiments whose figures SPEC.md quotes, each as the command line that anybody can repeat.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, Parser, builder::PossibleValuesParser};

use super::Experiment;

/// In the order they run.
const COMMANDS: [&str; 8] = [
    "capacity",
    "program --repeat 3",
    "tables --repeat 3",
    "scale --repeat 3",
    "overload --repeat 3 --steps 2",
    "route-latency",
    "load",
    "rfc2544 --frames 64,1518 --seconds 1",
];

/// What to run.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Only this one
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(COMMANDS.map(name)))]
    only: Option<String>,
    /// Where raw results go, a file for each
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// More options for each of them, in place of their own: `-- --repeat 1`. All must know them
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

/// Runs them. What was measured before an interruption is kept.
pub fn bench(options: &Options) -> Result<()> {
    std::fs::create_dir_all(&options.out).with_context(|| options.out.display().to_string())?;
    let mut lines = Vec::new();
    // All are understood before the first one runs.
    for command in COMMANDS {
        if options.only.as_deref().is_none_or(|only| only == name(command)) {
            let words = words(command, &options.out, &options.more);
            let line = Line::try_parse_from(&words).with_context(|| words.join(" "))?;
            lines.push((line, words));
        }
    }
    let count = lines.len();
    for (at, (line, words)) in lines.into_iter().enumerate() {
        let shown = words.join(" ");
        eprintln!("[{} of {count}] {shown} ...", at + 1);
        line.experiment.run(words).context(shown)?;
    }
    eprintln!("raw results: {0}; `millrace-lab report {0}` draws them", options.out.display());
    Ok(())
}

/// The command line; `more` replaces options of the command, each of which has one value.
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
    fn every_line_is_a_command() {
        for command in COMMANDS {
            let words = words(command, Path::new("out"), &[]);
            Line::try_parse_from(&words).map(drop).unwrap_or_else(|error| panic!("{command}: {error}"));
        }
    }

    #[test]
    fn more_options_replace_those_of_a_line() {
        let more = ["--frames", "128", "--seconds", "0.5"].map(String::from);
        let line = Line::try_parse_from(words("rfc2544 --frames 64,512", Path::new("out"), &more)).unwrap();
        let seen = format!("{:?}", line.experiment);
        assert!(seen.contains("frames: [128]") && seen.contains("seconds: 0.5"), "{seen}");
    }
}
