//! Tables and notices of one experiment.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{
    experiment::{Experiment, Group, ratios, thousands},
    metric::{Metric, number, range},
    page::Table,
};
use crate::measure::spread;

/// Longer tables are folded.
const LONG: usize = 24;

/// Median and range of all measured values.
pub(super) fn values(experiment: &Experiment<'_>) -> Table {
    let metrics = metrics(experiment);
    let mut head = labels(experiment);
    let words = head.len();
    head.extend(metrics.iter().map(Metric::caption));
    head.push("n".into());
    let doubts = |group: &Group<'_>| Doubts::of(group.lines.values().copied()).short();
    let doubtful = experiment.groups.iter().any(|group| !doubts(group).is_empty());
    head.extend(doubtful.then(|| "doubts".to_string()));
    let row = |group: &Group<'_>| {
        let mut cells = given(experiment, group);
        for metric in &metrics {
            let values: Vec<f64> = group.values(&metric.at).into_values().collect();
            cells.push(range(metric.spread(&values)));
        }
        cells.push(group.lines.len().to_string());
        cells.extend(doubtful.then(|| doubts(group)));
        cells
    };
    let rows: Vec<_> = experiment.groups.iter().map(row).collect();
    let folded = rows.len() > LONG;
    Table { title: "Measured: median (range) of n repeats".into(), head, rows, words, folded }
}

/// For each metric that subjects can be compared by: ratios of all subjects on the same work, pair by pair.
pub(super) fn comparisons(experiment: &Experiment<'_>) -> Vec<Table> {
    let metrics = metrics(experiment).into_iter().filter(Metric::is_compared);
    metrics.map(|metric| comparison(experiment, &metric)).filter(|table| !table.rows.is_empty()).collect()
}

fn comparison(experiment: &Experiment<'_>, metric: &Metric) -> Table {
    let subjects = subjects(experiment);
    let mut head = labels(experiment);
    let words = head.len();
    head.extend(subjects.iter().map(|subject| format!("÷ {subject}")));
    let mut rows = Vec::new();
    for group in experiment.groups.iter().filter(|group| !says_nothing(group, metric)) {
        let of = group.values(&metric.at);
        let ratio = |to: &str| {
            let same = |other: &&Group<'_>| other.given == group.given && other.subject == to;
            let other = experiment.groups.iter().find(same).filter(|_| to != group.subject);
            other.map(|other| ratios(&of, &other.values(&metric.at))).filter(|ratios| !ratios.is_empty())
        };
        let cells: Vec<Option<Vec<f64>>> = subjects.iter().map(|to| ratio(to)).collect();
        if cells.iter().any(Option::is_some) {
            let mut row = given(experiment, group);
            row.extend(
                cells.into_iter().map(|cell| cell.map_or("-".into(), |ratios| range(spread(&ratios)))),
            );
            rows.push(row);
        }
    }
    let title = format!("Ratios of {}, repeat by repeat: median (range)", metric.label);
    let folded = rows.len() > LONG;
    Table { title, head, rows, words, folded }
}

/// Does the metric only repeat the requested rate?
fn says_nothing(group: &Group<'_>, metric: &Metric) -> bool {
    let paced = group.lines.values().any(|line| line.pointer("/pace/rate").is_some());
    paced && metric.label == "throughput"
}

/// Table of where packets were lost; without rows if none were.
pub(super) fn losses(experiment: &Experiment<'_>) -> Table {
    let lost = |group: &Group<'_>| {
        let mut sums: BTreeMap<String, u64> = BTreeMap::new();
        for (place, packets) in
            group.lines.values().filter_map(|line| line.pointer("/sample/lost")?.as_object()).flatten()
        {
            *sums.entry(place.clone()).or_default() += packets.as_u64().unwrap_or_default();
        }
        sums.retain(|_, packets| *packets > 0);
        sums
    };
    let groups: Vec<_> = experiment.groups.iter().map(|group| (group, lost(group))).collect();
    let places: BTreeSet<&String> = groups.iter().flat_map(|(_, lost)| lost.keys()).collect();
    let mut head = labels(experiment);
    let words = head.len();
    head.push("sent".into());
    head.extend(places.iter().map(|place| place.to_string()));
    let row = |(group, lost): &(&Group<'_>, BTreeMap<String, u64>)| {
        let sent = sum(group, "/sample/sent");
        let mut cells = given(experiment, group);
        cells.push(thousands(&sent.to_string()));
        cells.extend(places.iter().map(|place| match lost.get(*place) {
            Some(packets) => share(*packets, sent),
            None => "-".into(),
        }));
        cells
    };
    let rows: Vec<_> = groups.iter().filter(|(_, lost)| !lost.is_empty()).map(row).collect();
    Table { title: "Packets lost, by place, all repeats together".into(), head, rows, words, folded: true }
}

/// Reasons to doubt the numbers of some lines: losses that no counter explains, trials that the machine disturbed.
#[derive(Debug, Default, PartialEq)]
struct Doubts {
    lines: usize,
    /// Lines with unexplained packets, these packets, and all packets of all lines.
    unexplained: usize,
    hidden: u64,
    sent: u64,
    /// Lines in which too few of the packets due were sent, and the largest share not sent.
    noisy: usize,
    unsent: f64,
}

impl Doubts {
    fn of<'a>(lines: impl Iterator<Item = &'a Value>) -> Self {
        let mut doubts = Self::default();
        for line in lines {
            let count = |at: &str| line.pointer(at).and_then(Value::as_u64).unwrap_or_default();
            let (sent, skipped) = (count("/sample/sent"), count("/sample/skipped"));
            doubts.lines += 1;
            doubts.sent = doubts.sent.saturating_add(sent);
            let hidden = line.pointer("/sample/unexplained").and_then(Value::as_i64).unwrap_or_default();
            doubts.unexplained += usize::from(hidden != 0);
            doubts.hidden = doubts.hidden.saturating_add(hidden.unsigned_abs());
            // As in `Outcome::is_valid`: all due packets were sent, except one in a thousand.
            let disturbed = skipped > sent / 1000;
            doubts.noisy += usize::from(disturbed || line.get("noisy") == Some(&Value::Bool(true)));
            if disturbed {
                doubts.unsent = doubts.unsent.max(skipped as f64 / (sent as f64 + skipped as f64));
            }
        }
        doubts
    }

    fn hidden(&self) -> String {
        share(self.hidden, self.sent)
    }

    /// Text for a cell; empty without doubts.
    fn short(&self) -> String {
        let hidden = (self.unexplained > 0).then(|| format!("{} unexplained", self.hidden()));
        let noisy = (self.noisy > 0).then(|| format!("{} noisy", self.noisy));
        hidden.into_iter().chain(noisy).collect::<Vec<_>>().join(", ")
    }
}

/// Doubts by subject, over all its measurements.
pub(super) fn doubts(experiment: &Experiment<'_>) -> Vec<String> {
    let mut list = Vec::new();
    for subject in subjects(experiment) {
        let groups = experiment.groups.iter().filter(|group| group.subject == subject);
        let doubts = Doubts::of(groups.flat_map(|group| group.lines.values().copied()));
        let all = doubts.lines;
        if doubts.unexplained > 0 {
            let (hidden, lines) = (doubts.hidden(), doubts.unexplained);
            list.push(format!("{subject}: in {lines} of {all} measurements packets were lost or doubled that no counter explains: {hidden}"));
        }
        if doubts.noisy > 0 {
            let unsent = match doubts.unsent {
                0.0 => String::new(),
                share => format!("; up to {} % of the packets due were not sent", number(share * 100.0)),
            };
            list.push(format!(
                "{subject}: the machine disturbed {} of {all} measurements (noisy){unsent}",
                doubts.noisy
            ));
        }
    }
    list
}

/// Subjects in the order of reports.
fn subjects<'a>(experiment: &'a Experiment<'_>) -> Vec<&'a str> {
    let mut subjects: Vec<&str> = Vec::new();
    for group in &experiment.groups {
        if !subjects.contains(&group.subject.as_str()) {
            subjects.push(&group.subject);
        }
    }
    subjects
}

/// Given values that are the same everywhere, in one sentence.
pub(super) fn constant(experiment: &Experiment<'_>) -> Option<String> {
    let all: Vec<String> =
        experiment.constant.iter().map(|(name, value)| format!("{}: {value}", spoken(name))).collect();
    (!all.is_empty()).then(|| format!("Everywhere: {}.", all.join("; ")))
}

fn labels(experiment: &Experiment<'_>) -> Vec<String> {
    let subject = has_subjects(experiment).then(|| "subject".to_string());
    experiment.varied.iter().map(|name| spoken(name)).chain(subject).collect()
}

fn spoken(name: &str) -> String {
    name.replace(['_', '/'], " ")
}

fn given(experiment: &Experiment<'_>, group: &Group<'_>) -> Vec<String> {
    let paced = |name: &String, value: &String| {
        if name == "pace" && value.starts_with(|first: char| first.is_ascii_digit()) {
            format!("{value}\u{a0}pps")
        } else {
            value.replace('_', " ")
        }
    };
    let given = experiment.varied.iter().zip(&group.given).map(|(name, value)| paced(name, value));
    given.chain(has_subjects(experiment).then(|| group.subject.clone())).collect()
}

fn has_subjects(experiment: &Experiment<'_>) -> bool {
    experiment.groups.iter().any(|group| !group.subject.is_empty())
}

fn metrics(experiment: &Experiment<'_>) -> Vec<Metric> {
    let mut metrics: Vec<Metric> = Vec::new();
    for at in experiment.groups.iter().flat_map(Group::places) {
        let known = metrics.iter().any(|metric| metric.at == at);
        metrics.extend(Metric::at(&at).filter(|_| !known));
    }
    metrics.sort_by_key(Metric::rank);
    metrics
}

fn sum(group: &Group<'_>, at: &str) -> u64 {
    let counts = group.lines.values().filter_map(|line| line.pointer(at)?.as_u64());
    counts.fold(0, u64::saturating_add)
}

fn share(packets: u64, sent: u64) -> String {
    let percent = number(packets as f64 * 100.0 / sent as f64);
    let packets = thousands(&packets.to_string());
    if sent == 0 { packets } else { format!("{packets} ({percent} %)") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::report::{experiment::experiments, read::Run};

    fn sample(subject: &str, repeat: u64, mpps: f64, sent: u64, skipped: u64, unexplained: i64) -> Value {
        json!({"record": "sample", "case": "capacity", "subject": subject, "repeat": repeat, "pace": "saturate",
            "sample": {"received_pps": mpps * 1e6, "ns_per_packet": 500.0, "loss": 0.01, "sent": sent,
                "skipped": skipped, "unexplained": unexplained, "lost": {"eth1.tx_full": 10, "gen.ring_full": 0}}})
    }

    fn run() -> Run {
        let lines = vec![
            sample("linux", 0, 1.0, 1000, 0, 0),
            sample("millrace", 0, 3.0, 1000, 0, 7),
            sample("linux", 1, 2.0, 1000, 1000, 0),
            sample("millrace", 1, 5.0, 1000, 1, 0),
        ];
        Run { lines, ..Run::default() }
    }

    #[test]
    fn tables_have_medians_ranges_and_ratios_of_the_same_repeat() {
        let run = run();
        let experiments = experiments(&run);
        let table = values(&experiments[0]);
        assert_eq!(
            table.head,
            ["subject", "throughput, Mpps", "CPU per packet, ns", "loss, %", "n", "doubts"]
        );
        assert_eq!(table.rows[0], ["linux", "1.5 (1..2)", "500", "1", "2", "1 noisy"]);
        assert_eq!(table.rows[1], ["millrace", "4 (3..5)", "500", "1", "2", "7 (0.35 %) unexplained"]);
        let ratios = comparisons(&experiments[0]);
        assert_eq!(ratios.len(), 2);
        assert_eq!(ratios[0].head, ["subject", "÷ linux", "÷ millrace"]);
        assert_eq!(ratios[0].rows[1], ["millrace", "2.75 (2.5..3)", "-"]);
        assert_eq!(ratios[0].rows[0][2], "0.367 (0.333..0.4)");
    }

    #[test]
    fn losses_are_named_by_place_and_doubts_are_reported() {
        let run = run();
        let experiments = experiments(&run);
        let table = losses(&experiments[0]);
        assert_eq!(table.head, ["subject", "sent", "eth1.tx_full"]);
        assert_eq!(table.rows[0], ["linux", "2,000", "20 (1 %)"]);
        let doubts = doubts(&experiments[0]);
        let expected = [
            "linux: the machine disturbed 1 of 2 measurements (noisy); up to 50 % of the packets due were not sent",
            "millrace: in 1 of 2 measurements packets were lost or doubled that no counter explains: 7 (0.35 %)",
        ];
        assert_eq!(doubts, expected);
    }

    #[test]
    fn throughput_is_not_compared_where_it_was_asked_for() {
        let mut run = run();
        for line in &mut run.lines {
            line["pace"] = json!({"rate": 400_000});
        }
        let experiments = experiments(&run);
        assert_eq!(experiments[0].constant, [("pace".into(), "400,000".into())]);
        let titles: Vec<_> = comparisons(&experiments[0]).into_iter().map(|table| table.title).collect();
        assert_eq!(titles, ["Ratios of CPU per packet, repeat by repeat: median (range)"]);
    }
}
