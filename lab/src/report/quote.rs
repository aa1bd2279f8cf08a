//! Quotes of raw results: a text in braces names numbers of a raw file, and how to show them.
//!
//! A quote is a file's name, filters and a place, and after `|` the steps that show the values:
//!
//! | part | meaning |
//! |---|---|
//! | `word`, `"two words"` | only lines with a value that equals this text |
//! | `key=value` | only lines with this value at a place that ends with `key` |
//! | `key=null` | only lines without a place that ends with `key` |
//! | `.key` | the place of the values; each member of a list is a value |
//! | `"text # text"` | the number at `#` in a text file; a space matches white space, `?` a character, `*` anything within a line |
//! | `*` | all values; without it, two values for a repeat, or two matches in a text file, are an error |
//! | `last` | the last value for each repeat; not for text files |
//! | `a / b`, `a - b` | repeat by repeat; `b` inherits the file, filters and place that it does not state |
//! | `max`, `sum`, `mean`, `count` | reduces all values to one |
//! | `x2`, `/2`, `%`, `inv` | multiplies by 2, divides by 2, multiplies by 100, divides 1 by the value |
//! | `2` | the number of decimals |
//! | `full`, `to` | shows the median with the range, or only the range; without them, the median |

use std::{collections::BTreeMap, iter, path::PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;

use super::{experiment, metric::number, read};
use crate::measure::{Spread, spread};

/// A raw file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawFile {
    /// Below the directory of results.
    pub path: String,
    /// The letter of its machine, if one is known.
    #[serde(default)]
    pub machine: String,
    /// Stands behind the file's name.
    #[serde(default)]
    pub note: String,
}

/// What quotes may name.
#[derive(Debug)]
pub(super) struct Sources<'a> {
    pub directory: PathBuf,
    pub files: &'a BTreeMap<String, RawFile>,
    /// Beginnings of quotes.
    pub short: &'a BTreeMap<String, String>,
    /// Letters of machines, with a part of the CPU's name.
    pub machines: &'a BTreeMap<String, String>,
    /// Files that were read.
    pub read: BTreeMap<String, Raw>,
}

#[derive(Debug)]
pub(super) enum Raw {
    Text(String),
    Lines(Vec<Line>),
}

/// A line of a raw file.
#[derive(Debug)]
pub(super) struct Line {
    repeat: u64,
    /// Places of values without parts, their text, and their number.
    leaves: Vec<(String, String, Option<f64>)>,
}

/// What a quote stands for: text, the value in it, and the names of files.
#[derive(Debug, PartialEq)]
pub(super) struct Quoted {
    pub text: String,
    pub value: f64,
    pub files: Vec<String>,
}

/// Values by repeat, and by their place among those of the repeat.
type Series = BTreeMap<(u64, usize), f64>;

#[derive(Clone, Debug, Default)]
struct Query {
    file: String,
    /// Key and value; the key is empty for a text anywhere.
    filters: Vec<(String, String)>,
    /// Place, or pattern.
    at: String,
    all: bool,
    last: bool,
}

impl<'a> Sources<'a> {
    /// Reads what a quote names.
    pub fn quote(&mut self, quote: &str) -> Result<Quoted> {
        let words = words(quote);
        let mut sides = words.splitn(2, |word| word == "|");
        let (terms, steps) = (sides.next().unwrap_or_default(), sides.next().unwrap_or_default());
        let is_operator = |word: &String| word == "/" || word == "-";
        let operators = terms.iter().filter(|word| is_operator(word)).map(String::as_str);
        let (mut query, mut series, mut files) = (Query::default(), Series::new(), Vec::new());
        for (term, operator) in terms.split(is_operator).zip(iter::once("").chain(operators)) {
            query = self.query(term, query)?;
            let values = self.values(&query);
            let values =
                values.with_context(|| format!("{}: `{}`", self.files[&query.file].path, term.join(" ")))?;
            series = match operator {
                "" => values,
                "/" => pairs(&series, &values, |a, b| a / b),
                _ => pairs(&series, &values, |a, b| a - b),
            };
            files.push(query.file.clone());
        }
        let (text, value) = show(series.into_values().collect(), steps)?;
        Ok(Quoted { text, value, files })
    }

    pub fn file(&self, name: &str) -> Result<&'a RawFile> {
        self.files.get(name).with_context(|| format!("no file is called {name:?}"))
    }

    fn query(&self, words: &[String], before: Query) -> Result<Query> {
        let mut words = words.to_vec();
        while let Some(beginning) = words.first().and_then(|first| self.short.get(first)) {
            words.splice(0..1, self::words(beginning));
        }
        let is_new = words.first().is_some_and(|first| self.files.contains_key(first));
        let mut query = if is_new { Query { file: words.remove(0), ..Query::default() } } else { before };
        let is_text = is_text(&self.file(&query.file)?.path);
        let mut texts = 0;
        for word in words {
            match word.split_once('=') {
                _ if word == "*" => query.all = true,
                _ if is_text => query.at = word,
                _ if word == "last" => query.last = true,
                _ if word.starts_with('.') => query.at = word[1..].into(),
                Some((key, value)) => {
                    query.filters.retain(|(other, _)| is_new || other != key);
                    query.filters.push((key.into(), value.into()));
                }
                None => {
                    // The first text takes the place of the first one before, and so on.
                    let old = query.filters.iter_mut().filter(|(key, _)| key.is_empty()).nth(texts);
                    match old.filter(|_| !is_new) {
                        Some((_, old)) => *old = word,
                        None => query.filters.push((String::new(), word)),
                    }
                    texts += 1;
                }
            }
        }
        Ok(query)
    }

    fn values(&mut self, query: &Query) -> Result<Series> {
        match self.raw(&query.file)? {
            Raw::Text(text) => {
                let found = find(text, &query.at)?;
                ensure!(query.all || found.len() == 1, "the file holds it {} times", found.len());
                let value = |(nth, text): (usize, &&str)| Ok(((0, nth), text.replace(',', "").parse()?));
                found.iter().enumerate().map(value).collect()
            }
            Raw::Lines(lines) => query.values(lines),
        }
    }

    fn raw(&mut self, name: &str) -> Result<&Raw> {
        if !self.read.contains_key(name) {
            let file = self.file(name)?;
            let bytes = read::bytes(&self.directory.join(&file.path)).context("it cannot be read")?;
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let raw = if is_text(&file.path) { Raw::Text(text) } else { self.lines(file, &text)? };
            self.read.insert(name.into(), raw);
        }
        Ok(&self.read[name])
    }

    /// The lines of a file, if it was measured on its machine.
    fn lines(&self, file: &RawFile, text: &str) -> Result<Raw> {
        let (mut lines, mut cpu) = (Vec::new(), String::new());
        match serde_json::from_str(text) {
            Ok(Value::Object(mut document)) if document.get("lines").is_some_and(Value::is_array) => {
                lines.extend(document["lines"].as_array().into_iter().flatten().cloned());
                cpu = experiment::text(&document["run"], "cpu");
                // The document's own values, such as summaries, are one more line.
                document.retain(|_, value| !value.is_array() && !value.is_object());
                document.insert("record".into(), "document".into());
                lines.push(document.into());
            }
            _ => {
                for run in read::runs(&file.path, text).map_err(anyhow::Error::msg)? {
                    ensure!(run.notices.is_empty(), "{}", run.notices.join("; "));
                    cpu = experiment::text(&run.about.unwrap_or_default(), "cpu");
                    lines.extend(run.lines);
                }
            }
        }
        let expected = self.machines.get(&file.machine).map_or("", String::as_str);
        ensure!(cpu.contains(expected), "measured on {cpu:?}, which is not machine {}", file.machine);
        Ok(Raw::Lines(lines.iter().map(Line::new).collect()))
    }
}

impl Line {
    fn new(line: &Value) -> Self {
        let mut leaves = Vec::new();
        experiment::collect("", line, &mut leaves);
        let leaves = leaves.into_iter().map(|(at, value)| {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            (at, text, value.as_f64())
        });
        let leaves = leaves.collect();
        Self { repeat: line.get("repeat").and_then(Value::as_u64).unwrap_or_default(), leaves }
    }
}

impl Query {
    fn values(&self, lines: &[Line]) -> Result<Series> {
        let mut series = Series::new();
        for &Line { repeat, ref leaves } in lines {
            let ends = |at: &str, key: &str| at.strip_suffix(key).is_some_and(|rest| rest.ends_with('/'));
            let has = |(key, value): &(String, String)| {
                let mut there = leaves.iter().filter(|(at, ..)| key.is_empty() || ends(at, key));
                if value == "null" { there.next().is_none() } else { there.any(|(_, text, _)| text == value) }
            };
            if !self.filters.iter().all(has) {
                continue;
            }
            for (at, _, number) in leaves {
                let (list, index) = at.rsplit_once('/').unwrap_or_default();
                let index = index.parse().ok().filter(|_| ends(list, &self.at));
                let number = number.filter(|_| index.is_some() || ends(at, &self.at));
                let Some(value) = number else { continue };
                let before = series.range((repeat, 0)..=(repeat, usize::MAX)).count();
                let nth = if self.all { before } else { index.unwrap_or_default() };
                let again = series.insert((repeat, nth), value).is_some();
                ensure!(self.last || !again, "the file holds several values of repeat {repeat}");
            }
        }
        ensure!(!series.is_empty(), "the file holds no such value");
        Ok(series)
    }
}

fn is_text(path: &str) -> bool {
    path.ends_with(".txt")
}

/// Words, of which those in quotation marks may hold spaces.
fn words(text: &str) -> Vec<String> {
    let mut quoted = false;
    let split = text.split(|next: char| {
        quoted ^= next == '"';
        !quoted && next.is_whitespace()
    });
    split.map(|word| word.replace('"', "")).filter(|word| !word.is_empty()).collect()
}

/// The numbers at `#` of all places of `text` that look like `pattern`.
fn find<'a>(text: &'a str, pattern: &str) -> Result<Vec<&'a str>> {
    ensure!(pattern.contains('#'), "a pattern has a # for the number");
    let mut found: Vec<&str> = Vec::new();
    let mut before = ' ';
    for (at, next) in text.char_indices() {
        let is_inside = before.is_ascii_digit() && next.is_ascii_digit();
        let number = if is_inside { None } else { matches(pattern, &text[at..], "") };
        found.extend(number.filter(|number| found.iter().all(|other| other.as_ptr() != number.as_ptr())));
        before = next;
    }
    ensure!(!found.is_empty(), "the file holds no such text");
    Ok(found)
}

/// The number, if `text` begins as the pattern says.
fn matches<'a>(pattern: &str, text: &'a str, number: &'a str) -> Option<&'a str> {
    let mut rest = pattern.chars();
    match rest.next() {
        None => Some(number),
        Some('#') => {
            let is_part = |c: char| c.is_ascii_digit() || c == '.' || c == ',';
            let after = text.trim_start_matches(is_part);
            let number = text[..text.len() - after.len()].trim_end_matches(['.', ',']);
            if number.is_empty() { None } else { matches(rest.as_str(), &text[number.len()..], number) }
        }
        Some('*') => {
            let line = text.lines().next()?;
            line.char_indices().find_map(|(at, _)| matches(rest.as_str(), &text[at..], number))
        }
        Some('?') => matches(rest.as_str(), &text[text.chars().next()?.len_utf8()..], number),
        Some(' ') => {
            let trimmed = text.trim_start();
            if trimmed.len() == text.len() { None } else { matches(rest.as_str(), trimmed, number) }
        }
        Some(first) => matches(rest.as_str(), text.strip_prefix(first)?, number),
    }
}

fn pairs(of: &Series, to: &Series, combine: impl Fn(f64, f64) -> f64) -> Series {
    of.iter().filter_map(|(key, a)| Some((*key, combine(*a, *to.get(key)?)))).collect()
}

/// Text for values, after the steps of a quote, and the value that it shows first.
fn show(mut values: Vec<f64>, steps: &[String]) -> Result<(String, f64)> {
    let (mut style, mut decimals) = ("", None);
    for step in steps {
        let one = |value| vec![value];
        let sum: f64 = values.iter().sum();
        let count = values.len() as f64;
        values = match step.as_str() {
            "full" | "to" => {
                style = step;
                values
            }
            "max" => one(spread(&values).max),
            "sum" => one(sum),
            "mean" => one(sum / count),
            "count" => one(count),
            "inv" => values.iter().map(|value| 1.0 / value).collect(),
            "%" => values.iter().map(|value| value * 100.0).collect(),
            step => {
                let unknown = || format!("{step} is no step of a quote");
                if let Some(factor) = step.strip_prefix('x') {
                    let factor: f64 = factor.parse().with_context(unknown)?;
                    values.iter().map(|value| value * factor).collect()
                } else if let Some(divisor) = step.strip_prefix('/') {
                    let divisor: f64 = divisor.parse().with_context(unknown)?;
                    values.iter().map(|value| value / divisor).collect()
                } else {
                    decimals = Some(step.parse().with_context(unknown)?);
                    values
                }
            }
        };
    }
    let Spread { median, min, max } = spread(&values);
    ensure!(median.is_finite(), "no repeat has all of the values");
    let text = |value| decimals.map_or_else(|| number(value), |decimals| fixed(value, decimals));
    let (middle, least, most) = (text(median), text(min), text(max));
    let shown = match style {
        "full" if least != most => format!("{middle} ({least}..{most})"),
        "to" if least != most => format!("{least} to {most}"),
        _ => middle.clone(),
    };
    Ok((shown, middle.replace(',', "").parse()?))
}

/// A number with so many decimals, and its thousands apart.
fn fixed(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    let (sign, text) = text.strip_prefix('-').map_or(("", text.as_str()), |text| ("-", text));
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    format!("{sign}{}{rest}", experiment::thousands(whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = r#"{"record":"run","cpu":"A CPU"}
{"record":"sample","subject":"linux","repeat":0,"parameters":{"routes":1},"sample":{"ns":1000.0}}
{"record":"sample","subject":"linux","repeat":1,"parameters":{"routes":1},"sample":{"ns":3000.0}}
{"record":"sample","subject":"ours","repeat":0,"parameters":{"routes":1},"sample":{"ns":500.0}}
{"record":"sample","subject":"ours","repeat":1,"parameters":{"routes":1},"sample":{"ns":1000.0}}
{"record":"sample","subject":"ours","repeat":1,"parameters":{"routes":9},"sample":{"ns":800.0}}
"#;
    const DOCUMENT: &str =
        r#"{"run":{"cpu":"A CPU"},"mpps":2.5,"lines":[{"case":"full table","ns":[4.0,6.0,5.0]}]}"#;
    const TEXT: &str = "# by hand\nround 1   12.5   1,200 ns\nround 2   13.0   1,300 ns\n";

    fn quote(quote: &str) -> Result<(String, Vec<String>), String> {
        let directory = tempfile::tempdir().unwrap();
        let mut files = BTreeMap::new();
        for (name, path, machine, text) in [
            ("lines", "a.jsonl", "A", LINES),
            ("document", "b.json", "A", DOCUMENT),
            ("text", "c.txt", "", TEXT),
            ("other", "d.jsonl", "B", LINES),
        ] {
            std::fs::write(directory.path().join(path), text).unwrap();
            let (path, machine, note) = (path.into(), machine.into(), String::new());
            files.insert(name.to_owned(), RawFile { path, machine, note });
        }
        let short = [("one".to_owned(), "lines routes=1".to_owned())].into();
        let machines =
            [("A", "A CPU"), ("B", "B CPU")].map(|(letter, cpu)| (letter.into(), cpu.into())).into();
        let directory = directory.path().to_owned();
        let read = BTreeMap::new();
        let mut sources = Sources { directory, files: &files, short: &short, machines: &machines, read };
        let quoted = sources.quote(quote).map_err(|error| format!("{error:#}"))?;
        Ok((quoted.text, quoted.files))
    }

    #[test]
    fn values_are_found_paired_and_shown() {
        for (text, shown) in [
            ("one linux .ns", "2,000"),
            ("one linux .ns | full 0", "2,000 (1,000..3,000)"),
            ("one linux .ns / ours | 2 full", "2.50 (2.00..3.00)"),
            ("one ours .ns - routes=9", "200"),
            ("lines ours * .ns | count", "3"),
            ("lines ours last .ns | /1000 1 to", "0.5 to 0.8"),
            ("document record=document .mpps", "2.5"),
            (r#"document "full table" .ns | inv x1000 0"#, "200"),
            (r#"document case="full table" .ns | max"#, "6"),
            (r#"text "round 2*# ns""#, "1,300"),
            (r#"text * "round ? # " | mean 2"#, "12.75"),
        ] {
            assert_eq!(quote(text).map(|(shown, _)| shown), Ok(shown.into()), "{text}");
        }
        assert_eq!(quote("one linux .ns / one ours .ns").unwrap().1, ["lines", "lines"]);
    }

    #[test]
    fn a_value_that_the_file_does_not_hold_is_an_error_that_names_both() {
        for (text, error) in [
            ("one bsd .ns", "a.jsonl: `one bsd .ns`: the file holds no such value"),
            ("lines ours .ns", "a.jsonl: `lines ours .ns`: the file holds several values of repeat 1"),
            (r#"text "round 3 #""#, "c.txt: `text round 3 #`: the file holds no such text"),
            (r#"text "round ? #""#, "c.txt: `text round ? #`: the file holds it 2 times"),
            ("other linux .ns", "d.jsonl: `other linux .ns`: measured on \"A CPU\", which is not machine B"),
            ("none .ns", "no file is called \"\""),
            ("one linux .ns | half", "half is no step of a quote: invalid digit found in string"),
        ] {
            assert_eq!(quote(text).map(|(shown, _)| shown), Err(error.into()), "{text}");
        }
    }
}
