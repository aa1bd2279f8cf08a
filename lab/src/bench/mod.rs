//! `millrace-lab bench`: the measurements that SPEC.md makes promises about. Each file is one of them; raw results go
//! to `DIR/NAME.jsonl`, what people want to read to standard output as Markdown.

mod capacity;
mod load;
mod overload;
mod program;
mod route_latency;
mod routers;
mod tables;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::{
    measure::{Spread, Window},
    prefixes::{self, Prefixes},
    record::Recorder,
    testbed::{Spec, Testbed},
};

/// The benches, in the order they run.
pub const NAMES: [&str; 7] =
    ["capacity", "program", "tables", "routers", "overload", "route-latency", "load"];

/// What all benches share.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where raw results go.
    pub out: PathBuf,
    /// Subjects to measure; a bench leaves out those that cannot do its work.
    pub subjects: Vec<String>,
    /// Length of each measurement, seconds.
    pub seconds: f64,
    /// How often each is repeated.
    pub repeats: usize,
    /// Prefix list; without one, prefixes are made up.
    pub prefixes: Option<PathBuf>,
    /// Routes of the full tables, IPv4 and IPv6.
    pub full_table: (usize, usize),
}

/// Runs the bench called `only`, or all. What was measured before an interruption is kept.
pub fn bench(options: &Options, only: Option<&str>) -> Result<()> {
    for name in NAMES.iter().filter(|name| only.is_none_or(|only| only == **name)) {
        eprintln!("{name} ...");
        let mut recorder = Recorder::create(&options.out, name)?;
        let run = match *name {
            "capacity" => capacity::run,
            "program" => program::run,
            "tables" => tables::run,
            "routers" => routers::run,
            "overload" => overload::run,
            "route-latency" => route_latency::run,
            "load" => load::run,
            _ => bail!("{name} is not implemented"),
        };
        run(options, &mut recorder).with_context(|| format!("bench {name}"))?;
    }
    eprintln!("raw results: {}", options.out.display());
    Ok(())
}

impl Options {
    fn window(&self) -> Window {
        Window::seconds(self.seconds)
    }

    /// Those of the wanted subjects that `able` names, or all.
    fn subjects(&self, able: Option<&[&str]>) -> Vec<&str> {
        let able = |name: &&str| able.is_none_or(|able| able.contains(name));
        self.subjects.iter().map(String::as_str).filter(able).collect()
    }

    fn full_table(&self) -> Result<Prefixes> {
        prefixes::prefixes(self.prefixes.as_deref(), self.full_table.0, self.full_table.1)
    }
}

fn testbed(routers: u16) -> Result<Testbed> {
    Testbed::for_rates(Spec { routers, ..Spec::default() })
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
