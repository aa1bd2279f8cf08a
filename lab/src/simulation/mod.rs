//! `millrace-lab sim` and `plan`: the allocator on simulated machines, in virtual time ([`logic::sim`]). Needs no root.

use std::{path::PathBuf, time::Duration};

use anyhow::Result;
use clap::Args;
use logic::{
    cores::{Policy, Settings},
    sim::{Placement, Results, Scenario},
};
use serde_json::{Value, json};

use crate::record::Output;

mod file;
pub mod plan;

pub use file::Named;

/// What to simulate.
#[derive(Args, Clone, Debug)]
pub struct SimulationOptions {
    /// Names of built-in scenarios, or files that describe some [default: all built-in ones]
    scenarios: Vec<String>,
    /// Where raw results go; `millrace-lab report` reads them
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A way to place queues, to be compared with others.
struct Compared {
    name: &'static str,
    placement: Placement,
    /// May cores share a queue?
    splits: bool,
}

/// What is compared, in this order.
const COMPARED: [Compared; 5] = [
    Compared { name: "pack", placement: Placement::Allocator(Policy::Pack), splits: false },
    Compared { name: "pack, shared", placement: Placement::Allocator(Policy::Pack), splits: true },
    Compared { name: "spread", placement: Placement::Allocator(Policy::Spread), splits: false },
    Compared { name: "rss-hash", placement: Placement::RssHash, splits: false },
    Compared { name: "oracle", placement: Placement::Oracle, splits: false },
];

/// Prints a table for each scenario.
pub fn run(options: &SimulationOptions, command: Vec<String>) -> Result<()> {
    let output = Output { path: options.json.clone(), command };
    output.check(&options.scenarios.iter().map(PathBuf::from).collect::<Vec<_>>())?;
    let scenarios: Vec<Named> = match options.scenarios.is_empty() {
        true => Named::built_in().collect::<Result<_>>()?,
        false => options.scenarios.iter().map(|name| Named::find(name)).collect::<Result<_>>()?,
    };
    let mut recorder = output.recorder()?;
    for (number, named) in scenarios.iter().enumerate() {
        let simulated = simulate(named)?;
        for (placement, results) in &simulated {
            recorder.line(&line(named, placement, results))?;
        }
        println!("{}{}", if number > 0 { "\n" } else { "" }, table(named, &simulated).trim_end());
    }
    Ok(())
}

type Simulated = Vec<(&'static str, Results)>;

/// Simulates a scenario with each placement.
pub fn simulate(named: &Named) -> Result<Simulated> {
    let each = |Compared { name, placement, splits }| {
        let settings = Settings { splits, ..named.scenario.settings.clone() };
        Ok((name, Scenario { settings, ..named.scenario.clone() }.run(&placement)?))
    };
    COMPARED.into_iter().map(each).collect()
}

/// Table in Markdown.
pub fn table(named: &Named, simulated: &[(&str, Results)]) -> String {
    let head = [
        "",
        "cores, mean (most)",
        "lost",
        "latency p50, p99, most (us)",
        "application share",
        "ns per packet",
        "moves, splits",
        "second core after (ms)",
        "help: count, longest delay (us)",
    ];
    let rows: String = simulated
        .iter()
        .map(|(placement, results)| format!("| {placement} | {} |\n", row(results).join(" | ")))
        .collect();
    format!(
        "## {}\n\n{}\n\n| {} |\n|{}\n{rows}",
        named.name,
        named.description,
        head.join(" | "),
        "---|".repeat(head.len())
    )
}

fn row(results: &Results) -> [String; 8] {
    let or_none = |text: Option<String>| text.unwrap_or("-".into());
    let latency = &results.latency;
    let quantile = |share: f64| latency.quantile_ns(share).unwrap_or(0);
    let us = |ns: u64| format!("{:.1}", ns as f64 / 1e3);
    [
        format!("{:.2} ({})", results.cores.mean(), results.cores.most()),
        lost(results),
        format!("{}, {}, {}", us(quantile(0.5)), us(quantile(0.99)), us(latency.max_ns)),
        or_none(results.application_share().map(|share| format!("{share:.3}"))),
        or_none(results.ns_per_packet().map(|ns| format!("{ns:.0}"))),
        format!("{}, {}", results.moves.len(), results.splits),
        or_none(results.reaction.map(|time| milliseconds(time).to_string())),
        or_none(results.helped.iter().max().map(|time| format!("{}, {}", results.spills, time.as_micros()))),
    ]
}

fn lost(results: &Results) -> String {
    match results.dropped {
        0 => "0".into(),
        dropped => format!("{dropped} ({:.3} %)", results.loss() * 100.0),
    }
}

fn milliseconds(time: Duration) -> u64 {
    time.as_millis() as u64
}

fn line(named: &Named, placement: &str, results: &Results) -> Value {
    let latency = &results.latency;
    json!({"record": "sample", "case": "sim", "subject": placement, "parameters": {"scenario": named.name},
    "sample": {
        "sent": results.sent, "forwarded": results.forwarded, "dropped": results.dropped,
        "cores_mean": results.cores.mean(), "cores_most": results.cores.most(),
        "p50_ns": latency.quantile_ns(0.5), "p99_ns": latency.quantile_ns(0.99), "max_ns": latency.max_ns,
        "application_share": results.application_share(), "ns_per_packet": results.ns_per_packet(),
        "moves": results.moves.len(), "splits": results.splits,
        "most_moves_of_a_queue_per_hold": results.most_moves_within(named.scenario.settings.hold),
        "second_core_ms": results.reaction.map(milliseconds), "spills": results.spills,
        "helped_us": results.helped.iter().map(|time| time.as_micros() as u64).collect::<Vec<_>>(),
    }})
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::LazyLock;

    const COMMITTED: &str = include_str!("../../scenarios/results.md");

    /// Scenarios with few packets. [`measure_all_results`] runs all scenarios.
    const SMALL: [&str; 5] = ["quarters", "hot-step", "step-queues", "surge", "bursts"];

    /// Both tests below look at these results.
    static SIMULATED: LazyLock<Vec<(Named, Simulated)>> = LazyLock::new(|| {
        let of = |name| {
            let named = Named::find(name).unwrap();
            let simulated = simulate(&named).unwrap();
            (named, simulated)
        };
        SMALL.into_iter().map(of).collect()
    });

    /// If results may change, run: `cargo run --release -p millrace-lab -- sim > lab/scenarios/results.md`.
    #[test]
    fn results_are_those_that_are_committed() {
        for (named, simulated) in SIMULATED.iter() {
            let table = table(named, simulated);
            assert!(COMMITTED.contains(&table), "{table}");
        }
    }

    #[test]
    fn packing_with_shared_queues_loses_no_more_than_spreading() {
        for (named, simulated) in SIMULATED.iter() {
            let dropped = |name: &str| simulated.iter().find(|(one, _)| *one == name).unwrap().1.dropped;
            assert!(dropped("pack, shared") <= dropped("spread"), "{}", named.name);
        }
    }

    /// `make bench-goals`.
    #[test]
    #[ignore = "takes a minute without optimisation"]
    fn measure_all_results() {
        let table = |named: &Named| table(named, &simulate(named).unwrap());
        let tables: Vec<String> = Named::built_in().map(|named| table(&named.unwrap())).collect();
        assert!(tables.join("\n") == COMMITTED, "{}", tables.join("\n"));
    }
}
