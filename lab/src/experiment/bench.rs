//! `millrace-lab bench`: the experiments whose figures SPEC.md quotes, each as the command line that anybody can repeat.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, Parser, builder::PossibleValuesParser};

use super::Experiment;

/// In the order they run.
const COMMANDS: [&str; 8] =
    ["capacity", "program", "tables", "scale", "overload", "route-latency", "load", "rfc2544"];

/// What to run.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Only this one
    #[arg(long, value_parser = PossibleValuesParser::new(COMMANDS.map(name)))]
    only: Option<String>,
    /// Where raw results go, a file for each
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// More options for each of them
    #[arg(last = true)]
    more: Vec<String>,
}

#[derive(Parser)]
struct Line {
    #[command(subcommand)]
    experiment: Experiment,
}

fn name(command: &'static str) -> &'static str {
    command.split(' ').next().unwrap_or(command)
}

/// Runs them. What was measured before an interruption is kept.
pub fn bench(options: &Options) -> Result<()> {
    std::fs::create_dir_all(&options.out).with_context(|| options.out.display().to_string())?;
    for command in COMMANDS {
        if options.only.as_deref().is_none_or(|only| only == name(command)) {
            let words = words(command, &options.out, &options.more);
            eprintln!("{} ...", words.join(" "));
            let line = Line::try_parse_from(&words)?;
            line.experiment.run(words).with_context(|| command.to_owned())?;
        }
    }
    eprintln!("raw results: {}", options.out.display());
    Ok(())
}

fn words(command: &str, directory: &Path, more: &[String]) -> Vec<String> {
    let file = directory.join(format!("{}.jsonl", command.split(' ').next().unwrap_or(command)));
    let words = ["millrace-lab"].into_iter().chain(command.split(' ')).map(str::to_owned);
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
}
