//! The experiments: one file each, which is a command with its options. Raw results go to the file named by `--json` while
//! it runs; what people want to read goes to standard output as Markdown.

mod apps;
pub mod bench;
mod capacity;
mod compare;
mod latency;
mod load;
mod on_testbed;
mod overload;
mod program;
mod rfc2544;
mod route_latency;
mod scale;
mod tables;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand, value_parser};

use crate::{
    measure::{Spread, Window},
    prefixes::{self, Prefixes},
    record::Output,
    subject,
    testbed::Testbed,
    topology::Topology,
};

/// An experiment with its options, as on the command line.
#[derive(Clone, Debug, Subcommand)]
pub enum Experiment {
    /// Subjects on the same packets, alternately, the router's core saturated; ratios pair by pair
    Compare(compare::Options),
    /// RFC 2544 and its successors, by frame size: throughput, latency, frame loss, back-to-back frames, recovery, reset
    Rfc2544(rfc2544::Options),
    /// Capacity of one core with the full table
    Capacity(capacity::Options),
    /// What the XDP program alone costs, without devices
    Program(program::Options),
    /// Cost of a packet against the size of the table
    Tables(tables::Options),
    /// Cost of a packet against the number of virtual routers
    Scale(scale::Options),
    /// What comes out when more and more comes in
    Overload(overload::Options),
    /// One-way latency by load, subjects alternately
    Latency(latency::Options),
    /// Time from a route change to packets leaving by it
    RouteLatency(route_latency::Options),
    /// What applications on the router's core achieve while it forwards
    Apps(apps::Options),
    /// Time and memory that the full table takes
    Load(load::Options),
}

impl Experiment {
    /// Runs it. `command`: the command line that it came from, for the record.
    pub fn run(self, command: Vec<String>) -> Result<()> {
        let to = |path: &Option<PathBuf>| Output { path: path.clone(), command };
        match self {
            Self::Compare(options) => compare::run(&options, &to(&options.sampling.json)),
            Self::Rfc2544(options) => rfc2544::run(&options, &to(&options.json)),
            Self::Capacity(options) => capacity::run(&options, &to(&options.sampling.json)),
            Self::Program(options) => program::run(&options, &to(&options.sampling.json)),
            Self::Tables(options) => tables::run(&options, &to(&options.sampling.json)),
            Self::Scale(options) => scale::run(&options, &to(&options.sampling.json)),
            Self::Overload(options) => overload::run(&options, &to(&options.sampling.json)),
            Self::Latency(options) => latency::run(&options, &to(&options.sampling.json)),
            Self::RouteLatency(options) => route_latency::run(&options, &to(&options.json)),
            Self::Apps(options) => apps::run(&options, &to(&options.json)),
            Self::Load(options) => load::run(&options, &to(&options.json)),
        }
    }
}

/// How often, how long, and where to.
#[derive(Args, Clone, Debug)]
pub struct Sampling {
    /// Length of each measurement, seconds
    #[arg(long, default_value_t = 1.5, value_parser = seconds)]
    seconds: f64,
    /// How often each is repeated
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u16).range(1..=1000))]
    repeat: u16,
    /// Where raw results go
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Sampling {
    fn window(&self) -> Window {
        Window::seconds(self.seconds)
    }
}

/// The full table.
#[derive(Args, Clone, Debug)]
pub struct FullTable {
    /// A list of prefixes, one a line, may be gzipped [default: the shared list if present, else made up]
    #[arg(long, value_name = "FILE")]
    prefixes: Option<PathBuf>,
    /// IPv4 routes
    #[arg(long, default_value_t = 1_000_000)]
    routes4: usize,
    /// IPv6 routes
    #[arg(long, default_value_t = 160_000)]
    routes6: usize,
}

impl FullTable {
    fn read(&self) -> Result<Prefixes> {
        let file = self.prefixes.clone().or_else(prefixes::default_file);
        prefixes::prefixes(file.as_deref(), self.routes4, self.routes6)
    }
}

pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number")?;
    if (0.1..=600.0).contains(&seconds) { Ok(seconds) } else { Err("0.1 to 600".into()) }
}

fn names(subjects: &[String]) -> Vec<&str> {
    subject::named(subjects)
}

fn testbed(routers: u16) -> Result<Testbed> {
    Testbed::for_rates(&Topology::rfc2544().with_routers(routers))
}

fn print_row(cells: &[String]) {
    println!("| {} |", cells.join(" | "));
}

/// Heading of a table, in Markdown.
fn print_head(title: &str, cells: &[&str]) {
    println!("\n## {title}\n");
    println!("| {} |\n|{}", cells.join(" | "), "---|".repeat(cells.len()));
}

fn show(spread: Spread, scale: f64, digits: usize) -> String {
    let Spread { median, min, max } = spread;
    if median.is_nan() {
        return "-".into();
    }
    format!("{:.digits$} ({:.digits$}..{:.digits$})", median * scale, min * scale, max * scale)
}
