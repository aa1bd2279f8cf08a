//! Output of `replay` for people: tables, and the lines below them.

use crate::{
    experiment::{print_head, row},
    replay::{
        MarkedSeen, Output, ReplayOutcome,
        difference::{Comparison, Difference, Kind, marks},
    },
};

/// Columns of the table of comparisons.
pub(super) const COMPARED: [&str; 8] =
    ["subject", "sent", "came out", "missing", "extra", "changed", "reordered flows", "the router's own"];

/// Columns of the table of runs.
pub(super) const RAN: [&str; 12] = [
    "subject",
    "sent",
    "came out, its own too",
    "pps",
    "held up, ms",
    "marked",
    "of them lost or kept",
    "reordered",
    "duplicates",
    "p50, us",
    "p99, us",
    "longest, us",
];

/// A table that grows, and the lines below it.
#[derive(Default)]
pub(super) struct Shown {
    pub(super) rows: Vec<String>,
    pub(super) details: Vec<String>,
}

impl Shown {
    pub(super) fn print(&self, title: &str, cells: &[&str]) {
        if self.rows.is_empty() {
            return;
        }
        print_head(title, cells);
        self.rows.iter().for_each(|row| println!("{row}"));
        if !self.details.is_empty() {
            println!();
        }
        self.details.iter().for_each(|line| println!("* {line}"));
    }
}

/// The output of both subjects, one above the other.
pub(super) fn in_bytes(difference: &Difference, with: &str, name: &str) -> String {
    let hex = |bytes: &Option<String>| bytes.clone().unwrap_or("-".into());
    let (a, b) = (hex(&difference.reference), hex(&difference.seen));
    let width = 4 + with.len().max(name.len());
    let marks = match difference.kind {
        Kind::Changed => format!("\n{:width$}  {}", "", marks(&a, &b)),
        _ => String::new(),
    };
    format!(
        "{name}: {:?}: {}\n{with:>width$}: {a}\n{name:>width$}: {b}{marks}",
        difference.kind, difference.packet
    )
}

/// Packets that did not come out, and the counters that show them.
pub(super) fn details_of(name: &str, came: &Output) -> Vec<String> {
    let list = |counts: Vec<String>| counts.join(", ");
    let example = |why: &str| came.examples.get(why).map_or(String::new(), |packet| format!(" ({packet})"));
    let kept = came.kept.iter().map(|(why, packets)| format!("{packets} {why}{}", example(why)));
    let kept = kept.collect::<Vec<_>>();
    let lost = came.lost.iter().map(|(what, packets)| format!("{what} {packets}")).collect::<Vec<_>>();
    let mut lines = Vec::new();
    if !kept.is_empty() {
        lines.push(format!("{name} did not forward: {}", list(kept)));
    }
    if !lost.is_empty() {
        lines.push(format!("{name}, by its counters: {}", list(lost)));
    }
    lines
}

pub(super) fn comparison_row(name: &str, sent: u64, came: &Output, found: Option<&Comparison>) -> String {
    let count = |of: fn(&Comparison) -> usize| found.map_or("-".into(), |found| of(found).to_string());
    row(&[
        name.into(),
        sent.to_string(),
        came.frames.len().to_string(),
        count(|found| found.missing),
        count(|found| found.extra),
        count(|found| found.changed),
        count(|found| found.reordered_flows),
        came.own.len().to_string(),
    ])
}

pub(super) fn run_row(name: &str, seen: &ReplayOutcome) -> String {
    let us = |ns: Option<u64>| ns.map_or("-".into(), |ns| format!("{:.1}", ns as f64 / 1e3));
    let (latency, marked) = (seen.latency, seen.marked);
    let count = |of: fn(MarkedSeen) -> u64| marked.map_or("-".into(), |marked| of(marked).to_string());
    row(&[
        name.into(),
        seen.sent.to_string(),
        seen.received.to_string(),
        seen.offered_pps.map_or("-".into(), |pps| format!("{pps:.*}", if pps < 10.0 { 1 } else { 0 })),
        format!("{:.1}", seen.held_up_ms),
        marked.map_or(0, |marked| marked.sent).to_string(),
        count(|marked| marked.sent - marked.received),
        count(|marked| marked.reordered),
        count(|marked| marked.duplicates),
        us(latency.map(|latency| latency.p50_ns)),
        us(latency.map(|latency| latency.p99_ns)),
        us(latency.map(|latency| latency.max_ns)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_about_marks_are_empty_if_nothing_was_marked() {
        let none = ReplayOutcome { sent: 9, received: 8, ..ReplayOutcome::default() };
        assert_eq!(run_row("linux", &none), "| linux | 9 | 8 | - | 0.0 | 0 | - | - | - | - | - | - |");
        let marked = MarkedSeen { sent: 7, received: 5, reordered: 1, duplicates: 0 };
        let some = ReplayOutcome { marked: Some(marked), ..none };
        assert_eq!(run_row("linux", &some), "| linux | 9 | 8 | - | 0.0 | 7 | 2 | 1 | 0 | - | - | - |");
    }

    #[test]
    fn bytes_that_differ_are_marked() {
        let difference = Difference {
            kind: Kind::Changed,
            packet: "a packet".into(),
            reference: Some("00112233".into()),
            seen: Some("0012223344".into()),
        };
        let expected =
            "touch: Changed: a packet\n    linux: 00112233\n    touch: 0012223344\n             ^^    ^^";
        assert_eq!(in_bytes(&difference, "linux", "touch"), expected);
    }
}
