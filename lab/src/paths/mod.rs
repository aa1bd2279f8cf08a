//! `millrace-lab paths`: the user plane, memory to memory, on one core: chains, ESP beside the library alone, and
//! whether shares hold. It needs no root and no other machine.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use router::user_plane::workers::Clock;
use serde_json::{Value, json};

use crate::{prefixes, record::Output};

mod bare;
pub(crate) mod esp;
pub(crate) mod forwarding;
mod share;

/// Number of IPv4 routes in today's real tables. As many are generated where no list is given.
const FULL_TABLE: usize = 900_000;
/// Lengths of IMIX, 7 to 4 to 1, in this order. Users of this list define which headers the length includes.
const IMIX: [usize; 12] = [64, 64, 576, 64, 576, 64, 1400, 64, 576, 64, 576, 64];
/// Part of names.
const OF_IMIX: &str = ", IMIX";

/// Name of the loop by hand that runs in turn with the measurement of this name.
fn beside(name: &str) -> String {
    format!("bare {name}")
}

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct PathsOptions {
    /// What to measure [default: all]
    #[arg(value_parser = ["fwd", "rtr", "crc", "esp", "share"])]
    only: Vec<String>,
    /// File with one prefix per line, may be gzipped [default: the developers' list if present, else generated
    /// prefixes]
    #[arg(long, value_name = "FILE")]
    prefixes: Option<PathBuf>,
    /// Rounds of each measurement
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// File for the results and every round
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// One measurement.
struct Case {
    name: String,
    /// Mean length of a packet.
    bytes: f64,
    frames: usize,
    batch: usize,
    /// Nanoseconds a packet, for each round.
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

    /// Cycles a packet, of the clock that workers use. The core's own clock may be faster or slower.
    fn cycles(&self) -> f64 {
        self.median() * Clock::of_process().hz() as f64 / 1e9
    }
}

fn median(all: &[f64]) -> f64 {
    let mut sorted = all.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// How to measure, and the results.
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
            "| {} | {:.0} | {} | {} | {:.2} ({best:.2} to {worst:.2}) | {:.0} | {:.1} | {:.1} | {} |",
            case.name,
            case.bytes,
            case.frames,
            case.batch,
            case.median(),
            case.cycles(),
            case.mpps(),
            case.gbps(),
            self.of_bare(&case).map_or(String::new(), |ratio| format!("{ratio:.2}"))
        );
        self.cases.push(case);
        Ok(())
    }

    /// Reports and notes that something is missing here.
    fn without(&mut self, why: &str) {
        eprintln!("{why}");
        self.without.push(why.into());
    }

    /// The best median of the measurements with this name and length.
    fn best(&self, name: &str, bytes: f64, figure: impl Fn(&Case) -> f64) -> Option<f64> {
        let named = self.cases.iter().filter(|case| case.name == name && case.bytes == bytes);
        named.map(figure).max_by(f64::total_cmp)
    }

    /// The fastest measurement with this name, and with this length if one is given.
    fn fastest(&self, name: &str, bytes: Option<f64>) -> Option<&Case> {
        let named = |case: &&Case| case.name == name && bytes.is_none_or(|bytes| case.bytes == bytes);
        self.cases.iter().filter(named).min_by(|a, b| a.median().total_cmp(&b.median()))
    }

    /// Its rate as a part of that of the loop by hand: the median over rounds, each compared with the one next to it.
    fn of_bare(&self, case: &Case) -> Option<f64> {
        let bare = self.cases.iter().find(|bare| {
            bare.name == beside(&case.name) && (bare.frames, bare.batch) == (case.frames, case.batch)
        })?;
        Some(median(&bare.ns.iter().zip(&case.ns).map(|(bare, ns)| bare / ns).collect::<Vec<_>>()))
    }

    /// Measurements with the library that is best alone: with ESP around it, and alone.
    fn esp(&self, size: &str) -> Option<(&Case, &Case)> {
        let begins = format!("library of esp_encrypt, AES-128, {size}");
        let alone = self.cases.iter().filter(|case| case.name.starts_with(&begins));
        let best = alone.max_by(|a, b| a.gbps().total_cmp(&b.gbps()))?;
        let name = best.name.strip_prefix("library of ")?;
        Some((self.fastest(name, Some(best.bytes))?, best))
    }
}

/// Prints a table, and writes the document.
pub fn run(options: &PathsOptions, command: Vec<String>) -> Result<()> {
    let output = Output { path: options.json.clone(), command };
    let file = options.prefixes.clone().or_else(prefixes::default_file);
    output.check(&file.iter().cloned().collect::<Vec<_>>())?;
    let mut ways =
        Ways { only: &options.only, rounds: options.rounds, cases: Vec::new(), without: Vec::new() };
    let clock = Clock::of_process();
    println!(
        "cycles are those of the {}, {:.0} MHz\n\n| what | bytes | frames | batch | ns a packet, median (least to most) | cycles | Mpps | Gbit/s | of the bare loop |\n|---|---|---|---|---|---|---|---|---|",
        clock.name(),
        clock.hz() as f64 / 1e6
    );
    let mut source = Value::Null;
    if ["fwd", "rtr", "crc"].iter().any(|family| ways.wants(family)) {
        let full = prefixes::prefixes(file.as_deref(), FULL_TABLE, 0)?;
        source = json!({"from": full.source, "routes": full.v4.len()});
        forwarding::run(&full.v4, &mut ways)?;
    }
    esp::run(&mut ways)?;
    let shares = if ways.wants("share") { share::run()? } else { Vec::new() };
    share::print(&shares);
    let lines: Vec<Value> =
        ways.cases.iter().map(line).chain(shares.iter().map(share::Share::line)).collect();
    let run =
        json!({"prefixes": source, "without": ways.without, "clock": clock.name(), "clock_hz": clock.hz()});
    let all = [run, of_routing(&ways), of_the_rest(&ways), share::figures(&shares)];
    let fields = all.into_iter().filter_map(|some| some.as_object().cloned()).flatten();
    output.document_of_lines(Value::Object(fields.collect()), &lines)
}

/// The best of all pools and batches, for 64 bytes on the wire and for IMIX, beside the loop by hand in the same
/// rounds.
fn of_routing(ways: &Ways<'_>) -> Value {
    use forwarding::{OF_MANY, OVER_FEWER};
    let short = |names: &[&str]| ways.fastest(&names.concat(), Some(60.0));
    let mixed = |name: &str| ways.fastest(&[name, OF_IMIX].concat(), None);
    let (fwd, rtr, full) = (short(&["fwd"]), short(&["rtr"]), short(&["rtr", OF_MANY]));
    let (fewer, many_over_fewer) = (short(&["rtr", OVER_FEWER]), short(&["rtr", OF_MANY, OVER_FEWER]));
    let bare = |name: &str| short(&[&beside(name)]).map(Case::mpps);
    let of_bare = |case: Option<&Case>| case.and_then(|case| ways.of_bare(case));
    json!({
        "fwd_mpps": fwd.map(Case::mpps),
        "fwd_cycles_per_packet": fwd.map(Case::cycles),
        "fwd_imix_mpps": mixed("fwd").map(Case::mpps),
        "fwd_imix_cycles_per_packet": mixed("fwd").map(Case::cycles),
        "rtr_mpps": rtr.map(Case::mpps),
        "rtr_cycles_per_packet": rtr.map(Case::cycles),
        "bare_rtr_mpps": bare("rtr"),
        "rtr_of_bare": of_bare(rtr),
        "rtr_full_table_mpps": full.map(Case::mpps),
        "rtr_full_table_cycles_per_packet": full.map(Case::cycles),
        "bare_rtr_full_table_mpps": bare(&["rtr", OF_MANY].concat()),
        "rtr_full_table_of_bare": of_bare(full),
        "rtr_256k_routes_mpps": fewer.map(Case::mpps),
        "rtr_256k_routes_cycles_per_packet": fewer.map(Case::cycles),
        "rtr_256k_routes_random_mpps": many_over_fewer.map(Case::mpps),
        "rtr_256k_routes_random_cycles_per_packet": many_over_fewer.map(Case::cycles),
        "rtr_imix_mpps": mixed("rtr").map(Case::mpps),
        "rtr_imix_cycles_per_packet": mixed("rtr").map(Case::cycles),
    })
}

/// Results of ESP and CRC.
fn of_the_rest(ways: &Ways<'_>) -> Value {
    use forwarding::{CRC_FROM_MEMORY, IN_MEMORY, READ_FROM_MEMORY};
    let [large, small, mixed] = ["1400 B", "64 B", "IMIX"].map(|size| ways.esp(size));
    let gbps = |name, bytes| ways.best(name, bytes, Case::gbps);
    let imix = ways.fastest(&["crc_append", OF_IMIX].concat(), None);
    json!({
        "esp_gbps": large.map(|(esp, _)| esp.gbps()),
        "esp_cycles_per_packet": large.map(|(esp, _)| esp.cycles()),
        "library_gbps": large.map(|(_, library)| library.gbps()),
        "esp_64_bytes_gbps": small.map(|(esp, _)| esp.gbps()),
        "esp_64_bytes_cycles_per_packet": small.map(|(esp, _)| esp.cycles()),
        "library_64_bytes_gbps": small.map(|(_, library)| library.gbps()),
        "esp_imix_gbps": mixed.map(|(esp, _)| esp.gbps()),
        "esp_imix_cycles_per_packet": mixed.map(|(esp, _)| esp.cycles()),
        "library_imix_gbps": mixed.map(|(_, library)| library.gbps()),
        "crc_gbps": gbps("crc_append", 1400.0),
        "crc_cycles_per_packet": ways.fastest("crc_append", Some(1400.0)).map(Case::cycles),
        "crc_64_bytes_mpps": ways.fastest("crc_append", Some(60.0)).map(Case::mpps),
        "crc_64_bytes_cycles_per_packet": ways.fastest("crc_append", Some(60.0)).map(Case::cycles),
        "crc_imix_mpps": imix.map(Case::mpps),
        "crc_imix_cycles_per_packet": imix.map(Case::cycles),
        "copy_gbps": gbps("fwd", 1400.0),
        "crc_from_memory_gbps": gbps(CRC_FROM_MEMORY, IN_MEMORY as f64),
        "read_from_memory_gbps": gbps(READ_FROM_MEMORY, IN_MEMORY as f64),
    })
}

fn line(case: &Case) -> Value {
    json!({"case": case.name, "bytes": case.bytes, "frames": case.frames, "batch": case.batch, "ns_per_packet": case.ns,
           "cycles_per_packet": case.cycles()})
}
