//! A strict parser of OpenMetrics text 1.0, as far as the page uses it: it panics at the first line that a scraper might refuse.

use std::collections::{BTreeMap, BTreeSet};

/// A sample: its name, its labels and its value as text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sample {
    pub name: String,
    pub labels: Vec<(String, String)>,
    pub value: String,
}

impl Sample {
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(label, _)| label == name).map(|(_, value)| value.as_str())
    }
}

#[derive(Default)]
struct Described {
    name: String,
    is_counter: bool,
    unit: Option<String>,
    help: Option<String>,
}

/// Names of families and their samples.
pub fn parse(text: &str) -> (BTreeSet<String>, Vec<Sample>) {
    let lines = text.strip_suffix("# EOF\n").expect("the page ends with # EOF");
    assert!(lines.is_empty() || lines.ends_with('\n'));
    let (mut families, mut samples, mut seen) = (BTreeSet::new(), Vec::new(), BTreeSet::new());
    let mut now = Described::default();
    for line in lines.lines() {
        let Some(comment) = line.strip_prefix("# ") else {
            let sample = sample(line);
            let suffix = if now.is_counter { "_total" } else { "" };
            assert_eq!(sample.name, format!("{}{suffix}", now.name), "{line}");
            let value: f64 = sample.value.parse().unwrap_or_else(|_| panic!("no number: {line}"));
            assert!(!now.is_counter || value >= 0.0 && value.is_finite(), "{line}");
            let mut labels = sample.labels.clone();
            labels.sort();
            assert!(labels.windows(2).all(|pair| pair[0].0 != pair[1].0), "a label twice: {line}");
            assert!(seen.insert((sample.name.clone(), labels)), "a series twice: {line}");
            samples.push(sample);
            continue;
        };
        let mut words = comment.splitn(3, ' ');
        let (word, name, rest) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
        assert!(is_name(name), "{line}");
        if now.name != name {
            assert!(families.insert(name.to_owned()), "a family in two places: {line}");
            now = Described { name: name.into(), ..Described::default() };
        }
        match word {
            "TYPE" => now.is_counter = BTreeMap::from([("counter", true), ("gauge", false)])[rest],
            "HELP" => {
                assert!(now.help.replace(rest.into()).is_none(), "{line}");
                assert!(
                    !rest.replace("\\\\", "").replace("\\n", "").replace("\\\"", "").contains('\\'),
                    "{line}"
                );
            }
            "UNIT" => {
                assert!(
                    now.unit.replace(rest.into()).is_none() && name.ends_with(&format!("_{rest}")),
                    "{line}"
                );
            }
            _ => panic!("{line}"),
        }
    }
    (families, samples)
}

fn is_name(name: &str) -> bool {
    let is = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    name.bytes().all(is) && name.starts_with(|c: char| c.is_ascii_lowercase())
}

/// `name{label="value",...} number`.
fn sample(line: &str) -> Sample {
    let at = line.find(['{', ' ']).unwrap_or_else(|| panic!("{line}"));
    let (name, mut rest) = line.split_at(at);
    assert!(is_name(name), "{line}");
    let mut labels = Vec::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        while !rest.starts_with('}') {
            let (label, value) = rest.split_once("=\"").unwrap_or_else(|| panic!("{line}"));
            assert!(is_name(label), "{line}");
            let (value, after) = quoted(value).unwrap_or_else(|| panic!("{line}"));
            labels.push((label.to_owned(), value));
            rest = after.strip_prefix(',').unwrap_or(after);
            assert!(rest.len() < after.len() || rest.starts_with('}'), "{line}");
        }
        rest = &rest[1..];
    }
    let value = rest.strip_prefix(' ').unwrap_or_else(|| panic!("{line}"));
    Sample { name: name.into(), labels, value: value.into() }
}

/// A label's value and the text behind its quote.
fn quoted(text: &str) -> Option<(String, &str)> {
    let (mut value, mut chars) = (String::new(), text.char_indices());
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match chars.next()?.1 {
                'n' => '\n',
                c @ ('"' | '\\') => c,
                _ => return None,
            }),
            c => value.push(c),
        }
    }
    None
}

#[test]
fn the_parser_refuses_what_a_scraper_might_refuse() {
    let head = "# HELP a_x X\n# TYPE a_x counter\n# UNIT a_x x\n";
    let sample = "a_x_total{b=\"c\\\"\\\\\\n}\"} 1\n";
    let (families, samples) = parse(&format!("{head}{sample}# EOF\n"));
    assert_eq!((families.len(), samples.len()), (1, 1));
    assert_eq!(samples[0].label("b"), Some("c\"\\\n}"));
    for wrong in [
        "".to_owned(),
        format!("{head}{sample}"),
        format!("{head}{sample}# EOF"),
        format!("{head}{sample}\n# EOF\n"),
        format!("{head}{sample}{sample}# EOF\n"),
        format!("{head}a_x 1\n# EOF\n"),
        format!("{head}a_x_total -1\n# EOF\n"),
        format!("{head}a_x_total x\n# EOF\n"),
        format!("{head}a_x_total{{b=\"c}} 1\n# EOF\n"),
        format!("{head}a_x_total{{b=\"\\x\"}} 1\n# EOF\n"),
        format!("{head}a_x_total{{b=\"c\"d=\"e\"}} 1\n# EOF\n"),
        format!("{head}a_x_total{{b=\"c\",b=\"d\"}} 1\n# EOF\n"),
        format!("{head}# TYPE b gauge\nb 1\n{head}{sample}# EOF\n"),
        "# TYPE a gauge\n# UNIT a x\na 1\n# EOF\n".into(),
        "# TYPE a info\na 1\n# EOF\n".into(),
        "a 1\n# EOF\n".into(),
    ] {
        assert!(std::panic::catch_unwind(|| parse(&wrong)).is_err(), "{wrong}");
    }
}
