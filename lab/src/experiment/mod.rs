//! The experiments, one file each. Each is a command with its options. It writes raw results to the file named by
//! `--json` while it runs, and prints tables for people to standard output, as Markdown.

pub(crate) mod apps;
pub mod bench;
mod capacity;
mod compare;
mod cores;
mod firewall;
mod flow_changes;
mod flows;
mod idle;
pub(crate) mod isolation;
mod latency;
mod load;
mod on_testbed;
mod overload;
mod program;
mod replay;
mod rfc2544;
mod route_latency;
mod scale;
mod tables;
mod traffic;
mod watched;

use std::{collections::HashSet, path::PathBuf};

use anyhow::{Result, bail, ensure};
use clap::{Args, Subcommand, builder::PossibleValuesParser, value_parser};
use serde_json::Value;

use crate::{
    compare::{Results, figures, ns, pps},
    measure::{Spread, Window, ratios, spread},
    packet::{ETHERNET_BYTES, STANDARD_MTU},
    prefixes::{self, Prefixes},
    record::Output,
    subject,
    sys::Interrupted,
    testbed::Testbed,
    topology::Topology,
    workload::Family,
};

/// An experiment with its options, as on the command line.
#[derive(Clone, Debug, Subcommand)]
pub enum Experiment {
    /// Subjects on the same packets, alternately, with the router's core saturated; ratios pair by pair
    Compare(compare::CompareOptions),
    /// RFC 2544 and its successors, by frame size: throughput, latency, frame loss, back-to-back frames, recovery, reset
    Rfc2544(rfc2544::Rfc2544Options),
    /// Capacity of one core with the full table
    Capacity(capacity::CapacityOptions),
    /// Cost of the XDP program alone, without devices
    Program(program::ProgramOptions),
    /// Cost of a packet against the size of the table
    Tables(tables::TablesOptions),
    /// Cost of a packet by flow rules: against their number, the flows and the masks; a scan; beside Open vSwitch
    Flows(flows::FlowsOptions),
    /// Cost of a packet behind a stateful firewall with NAT, by connections; how soon connections are fast, and again after
    /// a rule has changed
    Firewall(firewall::FirewallOptions),
    /// Rule changes while forwarding: how many a second, at what cost, and how long a barrier takes
    FlowChanges(flow_changes::FlowChangesOptions),
    /// Cost of a packet against the number of routers, or of interfaces of virtual routers
    Scale(scale::ScaleOptions),
    /// Packets that come out when more and more come in
    Overload(overload::OverloadOptions),
    /// Loss of a virtual router while its neighbour is sent more and more
    Isolation(isolation::IsolationOptions),
    /// One-way latency by load, subjects alternately
    Latency(latency::LatencyOptions),
    /// Time from a route change to the first packet on the new way
    RouteLatency(route_latency::RouteLatencyOptions),
    /// Replay a capture of your own: output of each subject, compared byte by byte, and its latency
    Replay(replay::ReplayOptions),
    /// Scores of applications on the router's core while it forwards
    Apps(apps::AppsOptions),
    /// Time and memory that the full table takes
    Load(load::LoadOptions),
    /// CPU time, wake-ups and memory of a daemon that has nothing to do
    Idle(idle::IdleOptions),
    /// Packet loss with and without scrapers, status readers, captures and route changes
    Watched(watched::WatchedOptions),
    /// Queues on cores: how soon a second core helps, what is lost or reordered meanwhile, and the cost of a packet by
    /// load
    Cores(cores::CoresOptions),
}

impl Experiment {
    /// Runs it. `command` is the command line, for the record.
    pub fn run(self, command: Vec<String>) -> Result<()> {
        let output = Output { path: self.json().cloned(), command };
        output.check(&self.inputs())?;
        different(self.subjects())?;
        let before = output.modified();
        let ran = match self {
            Self::Compare(options) => compare::run(&options, &output),
            Self::Rfc2544(options) => rfc2544::run(&options, &output),
            Self::Capacity(options) => capacity::run(&options, &output),
            Self::Program(options) => program::run(&options, &output),
            Self::Tables(options) => tables::run(&options, &output),
            Self::Flows(options) => flows::run(&options, &output),
            Self::Firewall(options) => firewall::run(&options, &output),
            Self::FlowChanges(options) => flow_changes::run(&options, &output),
            Self::Scale(options) => scale::run(&options, &output),
            Self::Overload(options) => overload::run(&options, &output),
            Self::Isolation(options) => isolation::run(&options, &output),
            Self::Latency(options) => latency::run(&options, &output),
            Self::RouteLatency(options) => route_latency::run(&options, &output),
            Self::Replay(options) => replay::run(&options, &output),
            Self::Apps(options) => apps::run(&options, &output),
            Self::Load(options) => load::run(&options, &output),
            Self::Idle(options) => idle::run(&options, &output),
            Self::Watched(options) => watched::run(&options, &output),
            Self::Cores(options) => cores::run(&options, &output),
        };
        if let (Err(_), Some(path)) = (&ran, &output.path)
            && output.modified() != before
        {
            eprintln!("the measurements made so far are in {}", path.display());
        }
        ran
    }

    fn json(&self) -> Option<&PathBuf> {
        let json = match self {
            Self::Compare(options) => &options.sampling.json,
            Self::Rfc2544(options) => &options.json,
            Self::Capacity(options) => &options.sampling.json,
            Self::Program(options) => &options.json,
            Self::Tables(options) => &options.sampling.json,
            Self::Flows(options) => &options.sampling.json,
            Self::Firewall(options) => &options.sampling.json,
            Self::FlowChanges(options) => &options.sampling.json,
            Self::Scale(options) => &options.sampling.json,
            Self::Overload(options) => &options.sampling.json,
            Self::Isolation(options) => &options.sampling.json,
            Self::Latency(options) => &options.sampling.json,
            Self::RouteLatency(options) => &options.json,
            Self::Replay(options) => &options.json,
            Self::Apps(options) => &options.json,
            Self::Load(options) => &options.json,
            Self::Idle(options) => &options.json,
            Self::Watched(options) => &options.json,
            Self::Cores(options) => &options.json,
        };
        json.as_ref()
    }

    /// Files that the experiment reads.
    fn inputs(&self) -> Vec<PathBuf> {
        let file = match self {
            Self::Replay(options) => Some(options.file.clone()),
            Self::Apps(options) => Some(options.topology.clone().into()),
            Self::Capacity(options) => options.table.file(),
            Self::Program(options) => options.table.file(),
            Self::Load(options) => options.table.file(),
            Self::Idle(options) => options.table.file(),
            Self::Tables(options) => options.file(),
            _ => None,
        };
        file.into_iter().collect()
    }

    /// Names of the subjects, as given.
    fn subjects(&self) -> &[String] {
        match self {
            Self::Compare(options) => &options.subjects.named,
            Self::Capacity(options) => &options.subjects.named,
            Self::Program(options) => &options.subjects,
            Self::Tables(options) => &options.subjects,
            Self::Flows(options) => &options.subjects,
            Self::Scale(options) => &options.subjects,
            Self::Overload(options) => &options.subjects.named,
            Self::Isolation(options) => &options.subjects,
            Self::Latency(options) => &options.subjects.named,
            Self::RouteLatency(options) => &options.subjects,
            Self::Replay(options) => &options.subjects,
            Self::Apps(options) => &options.subjects,
            Self::Rfc2544(_)
            | Self::Load(_)
            | Self::Idle(_)
            | Self::Firewall(_)
            | Self::FlowChanges(_)
            | Self::Watched(_)
            | Self::Cores(_) => &[],
        }
    }
}

fn different(subjects: &[String]) -> Result<()> {
    let mut seen = HashSet::new();
    let twice = subjects.iter().find(|name| !seen.insert(*name));
    twice.map_or(Ok(()), |name| bail!("--subjects has {name} twice: name each once"))
}

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct Subjects {
    /// Subjects, alternately; `all` means every one (lab/README.md describes them)
    #[arg(long = "subjects", value_name = "LIST", value_delimiter = ',',
        value_parser = PossibleValuesParser::new(subject::choices()), default_values = subject::DEFAULT)]
    named: Vec<String>,
}

impl Subjects {
    fn names(&self) -> Vec<&str> {
        subject::named(&self.named)
    }
}

/// How often, how long, and where to.
#[derive(Args, Clone, Debug)]
pub struct Sampling {
    /// Length of each measurement, 0.1 to 600 seconds; half a second of warm-up comes before it
    #[arg(long, default_value_t = 1.5, value_parser = seconds)]
    seconds: f64,
    /// How often each measurement is made, 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = value_parser!(u16).range(1..=1000))]
    repeat: u16,
    /// Where raw results go; `millrace-lab report` reads them
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
    /// File with one prefix per line, may be gzipped [default: the developers' list if present, else generated
    /// prefixes]
    #[arg(long, value_name = "FILE")]
    prefixes: Option<PathBuf>,
    /// IPv4 routes
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    routes4: usize,
    /// IPv6 routes
    #[arg(long, value_name = "N", default_value_t = 160_000)]
    routes6: usize,
}

impl FullTable {
    fn file(&self) -> Option<PathBuf> {
        self.prefixes.clone().or_else(prefixes::default_file)
    }

    fn read(&self) -> Result<Prefixes> {
        prefixes::prefixes(self.file().as_deref(), self.routes4, self.routes6)
    }

    /// Families that the table has routes of.
    fn families(&self) -> Result<Vec<Family>> {
        let wanted = [(Family::V4, self.routes4), (Family::V6, self.routes6)];
        let families: Vec<_> = wanted.iter().filter(|(_, routes)| *routes > 0).map(|(f, _)| *f).collect();
        ensure!(!families.is_empty(), "a table without routes: --routes4 or --routes6 above 0");
        Ok(families)
    }
}

pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number")?;
    if (0.1..=600.0).contains(&seconds) { Ok(seconds) } else { Err("0.1 to 600".into()) }
}

/// Reads a rate as people write it: 750, 100k, 1.5M.
fn packets_per_second(text: &str) -> Result<u64, String> {
    const MOST: f64 = 20e6;
    let (digits, factor) = match text.strip_suffix(['k', 'M']) {
        Some(digits) => (digits, if text.ends_with('k') { 1e3 } else { 1e6 }),
        None => (text, 1.0),
    };
    let pps = digits.parse::<f64>().map_err(|_| "not a number, which may end in k or M")? * factor;
    if pps == 0.0 || (1.0..=MOST).contains(&pps) { Ok(pps as u64) } else { Err("0, or 1 to 20M".into()) }
}

fn some_packets_per_second(text: &str) -> Result<u64, String> {
    match packets_per_second(text) {
        Ok(0) => Err("1 to 20M".into()),
        Err(why) => Err(why.replace("0, or ", "")),
        some => some,
    }
}

fn testbed(routers: u16) -> Result<Testbed> {
    Testbed::for_rates(&Topology::rfc2544().with_routers(routers))
}

/// Lets frames of this length pass. Call it before a subject is started.
fn fit_mtu(testbed: &Testbed, frame_bytes: u16) -> Result<()> {
    let mtu = frame_bytes.saturating_sub(ETHERNET_BYTES);
    if mtu > STANDARD_MTU { testbed.set_mtu(mtu) } else { Ok(()) }
}

/// A document that records how its run ended, if it ended early.
fn with_end(mut document: Value, ran: &Result<()>) -> Value {
    match ran {
        Ok(()) => {}
        Err(error) if error.is::<Interrupted>() => document["interrupted"] = true.into(),
        Err(error) => document["error"] = format!("{error:#}").into(),
    }
    document
}

/// A row of a table, in Markdown.
fn row(cells: &[String]) -> String {
    format!("| {} |", cells.join(" | "))
}

/// Title and heading of a table.
fn head(title: &str, cells: &[&str]) -> String {
    format!("\n## {title}\n\n| {} |\n|{}", cells.join(" | "), "---|".repeat(cells.len()))
}

fn print_row(cells: &[String]) {
    println!("{}", row(cells));
}

fn print_head(title: &str, cells: &[&str]) {
    println!("{}", head(title, cells));
}

/// A row for each subject: `cells`, its name, packets per second, CPU per packet, and that in ratio to the `first` results.
fn cost_rows(cells: &[String], results: &Results, first: &Results) -> Vec<String> {
    let of_subject = |name: &String| {
        let cost = figures(results, name, 0, ns);
        let own = [
            name.clone(),
            show(spread(&figures(results, name, 0, pps)), 1e-6, 3),
            show(spread(&cost), 1.0, 0),
            show(ratios(&cost, &figures(first, name, 0, ns)), 1.0, 2),
        ];
        row(&[cells, &own].concat())
    };
    results.keys().map(of_subject).collect()
}

fn show(spread: Spread, scale: f64, digits: usize) -> String {
    let Spread { median, min, max } = spread;
    if median.is_nan() {
        return "-".into();
    }
    format!("{:.digits$} ({:.digits$}..{:.digits$})", median * scale, min * scale, max * scale)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn rates_are_read_as_people_write_them() {
        let read = |text| packets_per_second(text).ok();
        assert_eq!(
            ["0", "750", "100k", "1.5M", "20M"].map(read),
            [0, 750, 100_000, 1_500_000, 20_000_000].map(Some)
        );
        assert_eq!(["", "k", "-1", "0.5", "21M", "1G", "nan"].map(read), [None; 7]);
        assert_eq!(some_packets_per_second("0"), Err("1 to 20M".into()));
        assert_eq!(some_packets_per_second("0.5"), Err("1 to 20M".into()));
        assert_eq!(some_packets_per_second("0.001k"), Ok(1));
    }

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        experiment: Experiment,
    }

    fn experiment(line: &str) -> Experiment {
        let words = ["millrace-lab"].into_iter().chain(line.split(' '));
        Line::try_parse_from(words).map_err(|error| error.to_string()).unwrap().experiment
    }

    #[test]
    fn a_subject_that_is_named_twice_is_refused() {
        for command in [
            "compare",
            "capacity",
            "tables",
            "scale",
            "overload",
            "isolation",
            "latency",
            "route-latency",
            "replay a.pcap",
            "apps",
            "program",
        ] {
            let of = |subjects| {
                let experiment = experiment(&format!("{command} --subjects {subjects}"));
                different(experiment.subjects()).map_err(|error| error.to_string())
            };
            let why = "--subjects has millrace twice: name each once";
            assert_eq!(of("millrace,millrace"), Err(why.into()), "{command}");
            assert_eq!(of("millrace"), Ok(()), "{command}");
        }
    }

    #[test]
    fn files_that_are_read_are_known() {
        for line in [
            "replay it",
            "apps --topology it",
            "capacity --prefixes it",
            "program --prefixes it",
            "load --prefixes it",
            "idle --prefixes it",
            "tables --prefixes it",
        ] {
            assert_eq!(experiment(line).inputs(), [PathBuf::from("it")], "{line}");
        }
    }
}
