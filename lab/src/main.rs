//! `millrace-lab`: the testbed, the demo and the benches.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Result, ensure};
use clap::{Parser, Subcommand};
use lab::{bench, cpu, demo, namespace, prefixes, rfc2544, shell, side_by_side, subject, sys};

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
    /// Subjects on the same packets, alternately, the router's core saturated; ratios pair by pair
    Compare {
        /// What to measure
        #[arg(long, value_delimiter = ',', value_parser = subject::NAMES, default_values = subject::NAMES)]
        subjects: Vec<String>,
        /// Frame length in bytes, FCS included: 64 to 3404
        #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(64..=3404))]
        frame: u16,
        /// Destinations, one flow each: 1 to 131072
        #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=131_072))]
        flows: u32,
        /// Length of each measurement
        #[arg(long, default_value_t = 5.0)]
        seconds: f64,
        /// How often each is repeated
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
        repeat: u16,
        /// Where the results go
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// RFC 2544: throughput without loss and with 0.1 %, and the frame loss curve, by frame size
    Rfc2544 {
        /// What to measure
        #[arg(long, value_parser = subject::NAMES, default_value = "millrace")]
        subject: String,
        /// Frame lengths in bytes, FCS included, each 64 to 3404
        #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u16).range(64..=3404),
            default_values_t = [64, 128, 256, 512, 1024, 1280, 1518])]
        frames: Vec<u16>,
        /// Destinations, one flow each: 1 to 131072
        #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=131_072))]
        flows: u32,
        /// Length of each trial (the RFC: 60)
        #[arg(long, default_value_t = 2.0)]
        seconds: f64,
        /// Where the results go
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    #[command(name = cpu::Spinner::COMMAND, hide = true)]
    Spin { core: usize },
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
    if let Command::Spin { core } = arguments.command {
        return cpu::spin(core);
    }
    ensure!(sys::is_root(), "millrace-lab builds network namespaces and loads BPF programs: run it as root");
    sys::handle_signals();
    namespace::clean_stale();
    match arguments.command {
        Command::Demo => demo::demo(),
        Command::Shell { routers } => shell::shell(routers),
        Command::Spin { .. } => Ok(()),
        Command::Compare { subjects, frame, flows, seconds, repeat, json } => {
            ensure!((0.1..=600.0).contains(&seconds), "--seconds {seconds}: 0.1 to 600");
            let options = side_by_side::Options { subjects, frame, flows, seconds, repeat: repeat.into() };
            side_by_side::run(&options, json.as_deref())
        }
        Command::Rfc2544 { subject, frames, flows, seconds, json } => {
            ensure!((0.1..=600.0).contains(&seconds), "--seconds {seconds}: 0.1 to 600");
            rfc2544::run(&rfc2544::Options { subject, frames, flows, seconds }, json.as_deref())
        }
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
