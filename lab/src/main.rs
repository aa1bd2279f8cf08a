//! `millrace-lab`: the testbed, the demo and the benches.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Result, ensure};
use clap::{Parser, Subcommand};
use lab::{bench, demo, namespace, prefixes, shell, subject, sys};

/// Measures Millrace and what it is compared with, in throwaway network namespaces. Needs root.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The same packets through Linux and through Millrace, side by side; under a minute
    Demo,
    /// A shell on a testbed's router box
    Shell {
        /// Virtual routers, 0 to 256
        #[arg(long, default_value_t = 2)]
        routers: u16,
    },
    /// The measurements of SPEC.md; raw results as JSON lines
    Bench {
        /// Only this one
        #[arg(long, value_parser = bench::NAMES)]
        only: Option<String>,
        /// Where raw results go
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
        /// What to measure
        #[arg(long, value_delimiter = ',', value_parser = subject::NAMES, default_values = subject::NAMES)]
        subjects: Vec<String>,
        /// Length of each measurement
        #[arg(long, default_value_t = 1.5)]
        seconds: f64,
        /// How often each is repeated
        #[arg(long, default_value_t = 5)]
        repeats: usize,
        /// A list of prefixes, one a line, may be gzipped [default: the shared list if present, else made up]
        #[arg(long, value_name = "FILE")]
        prefixes: Option<PathBuf>,
        /// IPv4 routes of the full table
        #[arg(long, default_value_t = 1_000_000)]
        routes4: usize,
        /// IPv6 routes of the full table
        #[arg(long, default_value_t = 160_000)]
        routes6: usize,
    },
}

fn run(arguments: Arguments) -> Result<()> {
    ensure!(sys::is_root(), "millrace-lab builds network namespaces and loads BPF programs: run it as root");
    sys::handle_signals();
    namespace::clean_stale();
    match arguments.command {
        Command::Demo => demo::demo(),
        Command::Shell { routers } => shell::shell(routers),
        Command::Bench { only, out, subjects, seconds, repeats, prefixes, routes4, routes6 } => {
            ensure!((0.1..=600.0).contains(&seconds), "--seconds {seconds}: 0.1 to 600");
            ensure!((1..=1000).contains(&repeats), "--repeats {repeats}: 1 to 1000");
            let prefixes = prefixes.or_else(prefixes::default_file);
            let full_table = (routes4, routes6);
            let options = bench::Options { out, subjects, seconds, repeats, prefixes, full_table };
            bench::bench(&options, only.as_deref())
        }
    }
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<sys::Interrupted>() => {
            eprintln!("stopped; everything is cleaned up");
            ExitCode::from(130)
        }
        Err(error) => {
            eprintln!("millrace-lab: {error:#}");
            ExitCode::FAILURE
        }
    }
}
