//! `millrace-lab paths`: the user plane memory to memory, on one core: chains, ESP beside the library alone, and whether shares hold. Needs
//! no root, and nothing but this machine.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use crate::{prefixes, record::Output};

pub(crate) mod esp;
pub(crate) mod forwarding;
mod share;

/// Real tables have so many routes of IPv4 today; as many are made up where no list is given.
const FULL_TABLE: usize = 900_000;

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// What to measure [default: all]
    #[arg(value_parser = ["fwd", "rtr", "crc", "esp", "share"])]
    only: Vec<String>,
    /// A list of prefixes, one a line, may be gzipped [default: the shared list if present, else made up]
    #[arg(long, value_name = "FILE")]
    prefixes: Option<PathBuf>,
    /// Rounds of each
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Where figures and every round go
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// One thing that was measured.
struct Case {
    name: String,
    /// Of a packet, on average.
    bytes: f64,
    frames: usize,
    batch: usize,
    /// Nanoseconds a packet, of each round.
    ns: Vec<f64>,
}

impl Case {
    fn median(&self) -> f64 {
        median(&self.ns)
    }

    fn mpps(&self) -> f64 {
        1e3 / self.median()
    }

    fn gbps(&self) -> f64 {
        self.bytes * 8.0 / self.median()
    }
}

fn median(all: &[f64]) -> f64 {
    let mut sorted = all.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// How to measure, and what was found.
struct Ways<'a> {
    only: &'a [String],
    rounds: u32,
    cases: Vec<Case>,
    without: Vec<String>,
}

impl Ways<'_> {
    fn wants(&self, family: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == family)
    }

    fn add(&mut self, case: Case) -> Result<()> {
        let (best, worst) =
            case.ns.iter().fold((f64::MAX, 0f64), |(low, high), ns| (low.min(*ns), high.max(*ns)));
        println!(
            "| {} | {:.0} | {} | {} | {:.2} ({best:.2} to {worst:.2}) | {:.1} | {:.1} |",
            case.name,
            case.bytes,
            case.frames,
            case.batch,
            case.median(),
            case.mpps(),
            case.gbps()
        );
        self.cases.push(case);
        Ok(())
    }

    /// Something is not here.
    fn without(&mut self, why: &str) {
        eprintln!("{why}");
        self.without.push(why.into());
    }

    /// The best median of those with that name and so many bytes.
    fn best(&self, name: &str, bytes: f64, figure: impl Fn(&Case) -> f64) -> Option<f64> {
        let named = self.cases.iter().filter(|case| case.name == name && case.bytes == bytes);
        named.map(figure).max_by(f64::total_cmp)
    }

    /// Of the library that is best alone: with ESP around it, and alone.
    fn esp(&self, bytes: f64) -> Option<(f64, f64)> {
        let alone =
            |case: &&Case| case.name.starts_with("library of esp_encrypt, AES-128") && case.bytes == bytes;
        let best = self.cases.iter().filter(alone).max_by(|a, b| a.gbps().total_cmp(&b.gbps()))?;
        let name = best.name.strip_prefix("library of ")?;
        Some((self.best(name, bytes, Case::gbps)?, best.gbps()))
    }
}

/// Prints a table, and writes the document.
pub fn run(options: &Options, command: Vec<String>) -> Result<()> {
    let output = Output { path: options.json.clone(), command };
    let file = options.prefixes.clone().or_else(prefixes::default_file);
    output.check(&file.iter().cloned().collect::<Vec<_>>())?;
    let mut ways =
        Ways { only: &options.only, rounds: options.rounds, cases: Vec::new(), without: Vec::new() };
    println!(
        "| what | bytes | frames | batch | ns a packet, median (least to most) | Mpps | Gbit/s |\n|---|---|---|---|---|---|---|"
    );
    let mut source = Value::Null;
    if ["fwd", "rtr", "crc"].iter().any(|family| ways.wants(family)) {
        let full = prefixes::prefixes(file.as_deref(), FULL_TABLE, 0)?;
        source = json!({"from": full.source, "routes": full.v4.len()});
        forwarding::run(&full.v4, &mut ways)?;
    }
    esp::run(&mut ways)?;
    let shares = if ways.wants("share") { share::run()? } else { Vec::new() };
    let share_error = shares.iter().map(share::Share::error_percent).max_by(f64::total_cmp);
    if let Some(error) = share_error {
        println!(
            "\nshares of two paths, packets of the second of which become dearer in the middle (`ns_per_packet_of_the_second`): at most {error:.2} % off"
        );
    }
    let lines: Vec<Value> =
        ways.cases.iter().map(line).chain(shares.iter().map(share::Share::line)).collect();
    let document = json!({
        "fwd_mpps": ways.best("fwd", 60.0, Case::mpps),
        "rtr_mpps": ways.best("rtr", 60.0, Case::mpps),
        "rtr_full_table_mpps": ways.best("rtr of 1,000,000", 60.0, Case::mpps),
        "esp_gbps": ways.esp(1400.0).map(|(esp, _)| esp),
        "library_gbps": ways.esp(1400.0).map(|(_, library)| library),
        "esp_64_bytes_gbps": ways.esp(64.0).map(|(esp, _)| esp),
        "library_64_bytes_gbps": ways.esp(64.0).map(|(_, library)| library),
        "crc_gbps": ways.best("crc_append", 1400.0, Case::gbps),
        "copy_gbps": ways.best("fwd", 1400.0, Case::gbps),
        "crc_from_memory_gbps": ways.best(forwarding::CRC_FROM_MEMORY, forwarding::IN_MEMORY as f64, Case::gbps),
        "read_from_memory_gbps": ways.best(forwarding::READ_FROM_MEMORY, forwarding::IN_MEMORY as f64, Case::gbps),
        "share_error_percent": share_error,
        "prefixes": source,
        "without": ways.without,
    });
    output.document_of_lines(document, &lines)
}

fn line(case: &Case) -> Value {
    json!({"case": case.name, "bytes": case.bytes, "frames": case.frames, "batch": case.batch, "ns_per_packet": case.ns})
}
