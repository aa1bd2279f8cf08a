//! `millrace-lab report`: makes one self-contained HTML file, and a Markdown summary, from raw results.
//!
//! | file | holds |
//! |---|---|
//! | [`read`], [`document`] | reading result files as lines, and their faults |
//! | [`experiment`] | lines that belong together; given and measured values |
//! | [`metric`], [`tables`] | numbers for people: medians, ranges, ratios, losses, doubts |
//! | [`draw`], [`chart`] | figures of lines, published values beside them, as SVG |
//! | [`page`] | the pieces of a report as HTML and as Markdown |
//! | [`measures`], [`quote`] | docs/measured.md from lab/results.toml: text that quotes raw results |

mod chart;
mod document;
mod draw;
mod experiment;
mod measures;
mod metric;
mod page;
mod quote;
mod read;
mod tables;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use serde_json::Value;

use draw::{Colors, Drawn};
use page::{Block, Table};
use read::{Results, Run};

/// What to report on.
#[derive(Args, Clone, Debug)]
pub struct ReportOptions {
    /// Directory of results
    dir: PathBuf,
    /// The HTML file; the Markdown summary is beside it [default: DIR/report.html]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write instead the page of this table of measures to --out, as Markdown
    #[arg(long, value_name = "TOML", requires = "out")]
    page: Option<PathBuf>,
}

/// Writes the report, and prints where it is.
pub fn run(options: &ReportOptions) -> Result<()> {
    let (Some(table), Some(out)) = (&options.page, &options.out) else {
        return write(&options.dir, options.out.as_deref());
    };
    let page = measures::page(table, &options.dir)?;
    std::fs::write(out, page).with_context(|| format!("the page cannot be written to {}", out.display()))?;
    println!("{}", out.display());
    Ok(())
}

/// Writes the report of all results in `directory`.
pub fn write(directory: &Path, out: Option<&Path>) -> Result<()> {
    let results = read::directory(directory)?;
    for (file, why) in &results.unread {
        eprintln!("{file}: {why}");
    }
    let blocks = blocks(&results);
    let html = out.map_or_else(|| directory.join("report.html"), |out| out.with_extension("html"));
    let markdown = html.with_extension("md");
    for (path, text) in [(&html, page::html(TITLE, &blocks)), (&markdown, page::markdown(&blocks))] {
        std::fs::write(path, text).with_context(|| {
            format!("the report cannot be written to {}; its directory must be there", path.display())
        })?;
    }
    println!("{}\n{}", html.display(), markdown.display());
    Ok(())
}

/// Records with too many lines to read: the trials of searches, and observations over time.
const MANY: [&str; 5] = ["trial", "moment", "core", "move", "calibration"];

const TITLE: &str = "Millrace: measured";

fn blocks(results: &Results) -> Vec<Block> {
    let mut blocks = vec![Block::Heading(1, TITLE.into())];
    blocks.push(Block::Text(
        "Everything here is computed from the raw results named below. Absolute numbers are those of one machine; what \
         counts is the ratio of subjects measured alternately in one run."
            .into(),
    ));
    blocks.extend(what_ran(results));
    let mut colors = Colors::default();
    for run in &results.runs {
        blocks.push(Block::Heading(2, run.file.clone()));
        if let Some(command) = run.about.as_ref().map(|about| words(about, "command")) {
            blocks.push(Block::Text(command));
        }
        blocks.extend(notices(run.notices.iter().cloned().chain(skipped(run)).collect()));
        for figure in &run.figures {
            match draw::draw(figure, run) {
                Some(drawn) => blocks.extend(picture(&drawn, &mut colors)),
                None => {
                    blocks.extend(notices(vec![format!("{}: nothing was measured for it", figure.title)]))
                }
            }
        }
        for experiment in experiment::experiments(run) {
            blocks.push(Block::Heading(3, experiment.name.clone()));
            if MANY.contains(&experiment.name.as_str()) {
                blocks.push(Block::Text(
                    "What the above was computed from is in the file, line by line.".into(),
                ));
                blocks.extend(notices(tables::doubts(&experiment)));
                continue;
            }
            blocks.extend(tables::constant(&experiment).map(Block::Text));
            blocks.extend(notices(tables::doubts(&experiment)));
            for figure in draw::usual(&experiment, run) {
                let drawn = draw::draw(&figure, run);
                blocks.extend(
                    drawn.and_then(|drawn| chart::svg(&drawn.chart(&mut colors))).map(Block::Picture),
                );
            }
            blocks.push(Block::Table(tables::values(&experiment)));
            blocks.extend(tables::comparisons(&experiment).into_iter().map(Block::Table));
            blocks.extend(
                Some(tables::losses(&experiment)).filter(|table| !table.rows.is_empty()).map(Block::Table),
            );
        }
    }
    blocks
}

fn picture(drawn: &Drawn<'_>, colors: &mut Colors) -> Vec<Block> {
    let chart = drawn.chart(colors);
    let mut blocks = vec![Block::Heading(3, chart.title.clone())];
    blocks.extend(drawn.note().map(Block::Text));
    blocks.extend(chart::svg(&chart).map(Block::Picture));
    blocks.extend(drawn.table().map(Block::Table));
    blocks.extend(drawn.values().map(Block::Table));
    blocks
}

fn notices(list: Vec<String>) -> Option<Block> {
    (!list.is_empty()).then_some(Block::Notices(list))
}

fn skipped(run: &Run) -> Vec<String> {
    let skipped = run.lines.iter().filter(|line| experiment::text(line, "record") == "skipped");
    let say = |line: &Value| {
        let of = |at| experiment::text(line, at);
        let case = of("case");
        let of_case = if case.is_empty() { String::new() } else { format!(" ({case})") };
        format!("{}{of_case} was skipped: {}", of("subject"), of("why"))
    };
    let mut list: Vec<String> = skipped.map(say).collect();
    list.dedup();
    list
}

/// Table of machines, kernels, revisions and commands, and notices where they differ.
fn what_ran(results: &Results) -> Vec<Block> {
    const COLUMNS: [&str; 6] = ["revision", "build", "cpu", "cores", "kernel", "unix_seconds"];
    let nothing = Value::Null;
    let about = |run: &Run, name: &str| words(run.about.as_ref().unwrap_or(&nothing), name);
    let mut differ = Vec::new();
    for name in &COLUMNS[..5] {
        let mut seen: Vec<String> = results.runs.iter().map(|run| about(run, name)).collect();
        seen.sort();
        seen.dedup();
        if seen.len() > 1 {
            differ.push(format!("Not all results have the same {name}: {}", seen.join(", ")));
        }
        if *name == "build" && seen.iter().any(|build| build == "debug") {
            differ.push("Measured with a debug build: only good for trying the lab out".into());
        }
    }
    differ.extend(results.unread.iter().map(|(file, why)| format!("{file} was not read: {why}")));
    let rows = results.runs.iter().map(|run| {
        let cells = COLUMNS.iter().map(|name| about(run, name));
        [run.file.clone()].into_iter().chain(cells).collect()
    });
    let head =
        ["file", "revision", "build", "CPU", "cores", "kernel", "when (UTC)"].map(str::to_owned).to_vec();
    let table = Table { title: "What ran".into(), head, rows: rows.collect(), words: 7, folded: false };
    [Some(Block::Table(table)), notices(differ)].into_iter().flatten().collect()
}

/// A value of a `run` record; `-` if unknown.
fn words(about: &Value, name: &str) -> String {
    match about.get(name) {
        None | Some(Value::Null) => "-".into(),
        Some(Value::Array(list)) => list.iter().map(experiment::words).collect::<Vec<_>>().join(" "),
        Some(value) if name == "unix_seconds" => value.as_u64().map_or("-".into(), date),
        Some(value) => experiment::words(value),
    }
}

/// Date of a time in seconds since 1970 (days to dates: Hinnant, "chrono-compatible low-level date algorithms").
fn date(unix_seconds: u64) -> String {
    let (days, seconds) = (unix_seconds / 86_400, unix_seconds % 86_400);
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02}", seconds / 3600, seconds / 60 % 60)
}

#[cfg(test)]
mod tests;
