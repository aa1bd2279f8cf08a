//! How measured numbers are shown.

use crate::measure::{Spread, spread};

/// Name, unit and digits of a measured value.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Metric {
    /// Its place in a line.
    pub at: String,
    pub label: String,
    pub unit: String,
    pub factor: f64,
}

/// Last part of the place, and its name, unit and factor.
const KNOWN: [(&str, &str, &str, f64); 15] = [
    ("received_pps", "throughput", "Mpps", 1e-6),
    ("throughput_pps", "throughput", "Mpps", 1e-6),
    ("mpps", "throughput", "Mpps", 1.0),
    ("ns_per_packet", "CPU per packet", "ns", 1.0),
    ("loss", "loss", "%", 100.0),
    ("offered_pps", "offered", "Mpps", 1e-6),
    ("busy", "router busy", "%", 100.0),
    ("cpu_left", "CPU left", "%", 100.0),
    ("stolen", "core taken by others", "%", 100.0),
    ("interrupts_per_s", "interrupts", "1/s", 1.0),
    ("p50_ns", "p50", "µs", 1e-3),
    ("p99_ns", "p99", "µs", 1e-3),
    ("p999_ns", "p99.9", "µs", 1e-3),
    ("max_ns", "longest", "µs", 1e-3),
    ("mean_ns", "mean", "µs", 1e-3),
];
/// End of the last part, and its unit and factor.
const SUFFIXES: [(&str, &str, f64); 10] = [
    ("_ns", "ns", 1.0),
    ("_us", "µs", 1.0),
    ("_ms", "ms", 1.0),
    ("_seconds", "s", 1.0),
    ("_pps", "Mpps", 1e-6),
    ("_bytes", "bytes", 1.0),
    ("_mb", "MB", 1.0),
    ("_gbps", "Gbit/s", 1.0),
    ("_per_second", "1/s", 1.0),
    ("_per_s", "1/s", 1.0),
];
/// Values without a column: other values are computed from them, or the report shows them where they matter.
const HIDDEN: [&str; 6] = [
    "/sample/seconds",
    "/sample/sent",
    "/sample/skipped",
    "/sample/received",
    "/sample/unexplained",
    "/sample/latency/packets",
];

impl Metric {
    /// How to show the value at this place. `None` if it is not shown, or elsewhere.
    pub fn at(at: &str) -> Option<Self> {
        if HIDDEN.contains(&at) || at.starts_with("/sample/lost/") {
            return None;
        }
        let path = at.trim_start_matches("/sample").trim_start_matches('/');
        let (before, last) = path.rsplit_once('/').map_or(("", path), |(before, last)| (before, last));
        let known = KNOWN.iter().find(|(name, ..)| *name == last);
        let suffix = SUFFIXES.iter().find(|(suffix, ..)| last.len() > suffix.len() && last.ends_with(suffix));
        let (label, unit, factor) = match (known, suffix) {
            (Some((_, label, unit, factor)), _) => (label.to_string(), *unit, *factor),
            (None, Some((suffix, unit, factor))) => {
                (spoken(&last[..last.len() - suffix.len()]), *unit, *factor)
            }
            (None, None) => (spoken(last), "", 1.0),
        };
        let label = if before.is_empty() { label } else { format!("{} {label}", spoken(before)) };
        Some(Self { at: at.into(), label, unit: unit.into(), factor })
    }

    /// Does a larger value mean better or worse? Only then are ratios worth a table.
    pub fn is_compared(&self) -> bool {
        !matches!(self.label.as_str(), "loss" | "offered" | "router busy" | "core taken by others")
            && self.unit != "1/s"
    }

    /// Order of columns; the most important come first.
    pub fn rank(&self) -> usize {
        let last = self.at.rsplit('/').next().unwrap_or_default();
        KNOWN.iter().position(|(name, ..)| *name == last).unwrap_or(KNOWN.len())
    }

    /// Spread of the values in the unit that is shown.
    pub fn spread(&self, values: &[f64]) -> Spread {
        spread(&values.iter().map(|value| value * self.factor).collect::<Vec<_>>())
    }

    pub fn caption(&self) -> String {
        if self.unit.is_empty() { self.label.clone() } else { format!("{}, {}", self.label, self.unit) }
    }
}

fn spoken(path: &str) -> String {
    path.replace(['_', '/'], " ")
}

/// A number with three to four significant digits.
pub(super) fn number(value: f64) -> String {
    let digits = match value.abs() {
        size if size == 0.0 || size >= 1000.0 => 0,
        size if size >= 100.0 => 1,
        size if size >= 10.0 => 2,
        size if size >= 0.1 => 3,
        size if size >= 1e-9 => (2.0 - size.log10().floor()) as usize,
        size if size.is_nan() => return "-".into(),
        _ => return format!("{value:e}"),
    };
    let text = format!("{value:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    let (sign, whole) = text.strip_prefix('-').map_or(("", text), |whole| ("-", whole));
    if digits == 0 && whole.chars().all(|digit| digit.is_ascii_digit()) {
        return format!("{sign}{}", super::experiment::thousands(whole));
    }
    text.to_owned()
}

/// Median and range.
pub(super) fn range(spread: Spread) -> String {
    let Spread { median, min, max } = spread;
    if median.is_nan() {
        return "-".into();
    }
    if min == max { number(median) } else { format!("{} ({}..{})", number(median), number(min), number(max)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_have_names_and_units() {
        let seen = |at: &str| Metric::at(at).map(|metric| (metric.caption(), metric.factor));
        assert_eq!(seen("/sample/received_pps"), Some(("throughput, Mpps".into(), 1e-6)));
        assert_eq!(seen("/sample/latency/p999_ns"), Some(("latency p99.9, µs".into(), 1e-3)));
        assert_eq!(seen("/sample/throughput_gbps"), Some(("throughput, Gbit/s".into(), 1.0)));
        assert_eq!(seen("/sample/wakeups_per_s"), Some(("wakeups, 1/s".into(), 1.0)));
        assert_eq!(seen("/sample/latency/packets"), None);
        let compared = |at: &str| Metric::at(at).unwrap().is_compared();
        assert_eq!(
            ["/sample/received_pps", "/sample/loss", "/sample/wakeups_per_s"].map(compared),
            [true, false, false]
        );
        assert_eq!(seen("/add_ms"), Some(("add, ms".into(), 1.0)));
        assert_eq!(seen("/sample/duplicates"), Some(("duplicates".into(), 1.0)));
        assert_eq!(seen("/sample/lost/gen.eth0.ring_full"), None);
        assert_eq!(seen("/sample/unexplained"), None);
    }

    #[test]
    fn numbers_have_significant_digits() {
        let numbers =
            [0.0, 1.0, 1.20986, 12.3456, 123.456, 1234567.8, -1234.0, 0.25, 0.0712345, 0.07, 1e-12, f64::NAN];
        let seen = numbers.map(number);
        let expected = [
            "0",
            "1",
            "1.21",
            "12.35",
            "123.5",
            "1,234,568",
            "-1,234",
            "0.25",
            "0.0712",
            "0.07",
            "1e-12",
            "-",
        ];
        assert_eq!(seen, expected);
        assert_eq!(number(f64::INFINITY), "inf");
        assert_eq!(range(Spread { median: 2.0, min: 1.0, max: 3.0 }), "2 (1..3)");
        assert_eq!(range(Spread { median: 2.0, min: 2.0, max: 2.0 }), "2");
    }
}
