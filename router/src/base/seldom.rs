//! Limits the log lines that outsiders can cause. Each source logs a line of one kind seldom, and all sources together
//! not much more often. Suppressed lines are counted, and the next line reports the count.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// The time after a line of a source during which its lines are suppressed.
const PERIOD: Duration = Duration::from_secs(60);
/// Sources that may log in that time.
const SOURCES: usize = 8;

/// The recent lines, by kind.
#[derive(Debug, Default)]
pub struct Seldom(HashMap<&'static str, Kind>);

#[derive(Debug, Default)]
struct Kind {
    /// The sources of recent lines, and their times.
    heard: Vec<(String, Instant)>,
    left_out: u64,
}

impl Seldom {
    /// May a line be written? If so, returns the text to append: nothing, or the number of suppressed lines.
    pub fn may(&mut self, kind: &'static str, source: &str, now: Instant) -> Option<String> {
        let kind = self.0.entry(kind).or_default();
        kind.heard.retain(|(_, at)| now.saturating_duration_since(*at) < PERIOD);
        if kind.heard.len() >= SOURCES || kind.heard.iter().any(|(heard, _)| heard == source) {
            kind.left_out += 1;
            return None;
        }
        kind.heard.push((source.to_owned(), now));
        Some(match std::mem::take(&mut kind.left_out) {
            0 => String::new(),
            n => format!(" ({n} more like it were not logged)"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_a_few_lines_and_a_count() {
        let (mut seldom, start) = (Seldom::default(), Instant::now());
        let mut may = |kind, source: u32, second: u64| {
            seldom.may(kind, &source.to_string(), start + Duration::from_secs(second))
        };
        let said = (0..100_000).filter(|i| may("garbage", i % 3, u64::from(i / 2000)).is_some()).count();
        assert_eq!(said, 3);
        assert_eq!(may("other", 1, 50).as_deref(), Some(""), "another kind");
        assert_eq!(may("garbage", 1, 61).as_deref(), Some(" (99997 more like it were not logged)"));
        assert_eq!(may("garbage", 2, 61).as_deref(), Some(""));
        let said = (10..100_000).filter(|source| may("garbage", *source, 62).is_some()).count();
        assert_eq!(said, SOURCES - 2, "many sources are no way around it");
    }
}
