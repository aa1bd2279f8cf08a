//! What is wrong, limited or unknown. Equal sentences about several things are one remark.

use super::status::ConditionReport;
use crate::base::words::some_names;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Stands for the name of the thing in a sentence, when sentences about several things are compared.
const NAME: &str = "\u{0}";

/// One sentence about one thing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Finding {
    /// Nothing is wrong: something is slower or later than it could be.
    pub is_note: bool,
    /// `port`, `router`, `interface` or `path`; empty: the sentence names what it is about.
    pub kind: String,
    /// `eth1`; for an interface of a namespace `red/eth1`.
    pub name: String,
    pub text: String,
    /// How long it has held, in seconds, if that is known.
    pub age_s: Option<f64>,
}

impl Finding {
    pub fn problem(kind: &str, name: &str, text: impl Into<String>) -> Finding {
        Finding { kind: kind.into(), name: name.into(), text: text.into(), ..Finding::default() }
    }

    pub fn note(kind: &str, name: &str, text: impl Into<String>) -> Finding {
        Finding { is_note: true, ..Finding::problem(kind, name, text) }
    }

    pub fn condition(condition: &ConditionReport) -> Finding {
        let (kind, name) = condition.subject.split_once(' ').unwrap_or_default();
        let text = if kind.is_empty() { &condition.sentence } else { &condition.text };
        let age_s = Some(condition.age_s);
        Finding {
            is_note: condition.is_note,
            kind: kind.into(),
            name: name.into(),
            text: text.clone(),
            age_s,
        }
    }
}

/// Findings that say the same about several things.
struct Group<'a> {
    first: &'a Finding,
    /// In the order of the findings, each once.
    names: Vec<&'a str>,
    known: BTreeSet<&'a str>,
    age_s: Option<f64>,
}

/// A sentence about one or more things.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Remark {
    /// The sentence, with at most three names.
    pub text: String,
    /// How long it has held, in seconds; of several things, the longest. null: not known.
    pub age_s: Option<f64>,
}

/// One remark for each group of findings that say the same, in the order of the first ones.
pub fn remarks(findings: &[Finding]) -> Vec<Remark> {
    groups(findings).iter().map(|group| Remark { text: group.sentence(), age_s: group.age_s }).collect()
}

fn groups(findings: &[Finding]) -> Vec<Group<'_>> {
    let mut places: BTreeMap<(&str, String), usize> = BTreeMap::new();
    let mut groups: Vec<Group> = Vec::new();
    for finding in findings {
        let place = *places.entry((&finding.kind, nameless(finding))).or_insert(groups.len());
        match groups.get_mut(place) {
            Some(group) => {
                if group.known.insert(&finding.name) {
                    group.names.push(&finding.name);
                }
                group.age_s = group.age_s.into_iter().chain(finding.age_s).reduce(f64::max);
            }
            None => groups.push(Group {
                first: finding,
                names: vec![&finding.name],
                known: BTreeSet::from([&*finding.name]),
                age_s: finding.age_s,
            }),
        }
    }
    groups
}

/// The sentence with [`NAME`] for the name of its thing. Findings with equal results are one group.
fn nameless(finding: &Finding) -> String {
    let Finding { name, text, .. } = finding;
    // Sentences about `red/eth1` name eth1.
    let name = name.rsplit('/').next().unwrap_or_default();
    if name.is_empty() {
        return text.clone();
    }
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || "-_.".contains(c));
    let mut to = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(at) = rest.find(name) {
        let (before, after) = (&rest[..at], &rest[at + name.len()..]);
        let begins = !is_part(before.chars().next_back().or_else(|| to.chars().next_back()));
        let is_name = begins && !is_part(after.chars().next());
        to = to + before + if is_name { NAME } else { name };
        rest = after;
    }
    to + rest
}

impl Group<'_> {
    /// `ports eth1, eth2 and 14 more: SENTENCE`
    fn sentence(&self) -> String {
        let Finding { kind, text, .. } = self.first;
        match (kind.is_empty(), self.names.len()) {
            (true, _) => text.clone(),
            (false, 1) => format!("{kind} {}: {text}", self.names[0]),
            (false, _) => {
                let such_as = if nameless(self.first) == *text { "" } else { "for example: " };
                format!("{kind}s {}: {such_as}{text}", some_names(self.names.iter().copied()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_sentences_about_many_things_are_one_remark() {
        let down = |n: usize| Finding {
            age_s: Some(n as f64),
            ..Finding::problem(
                "port",
                &format!("eth{n}"),
                format!("the port is down (ip link set dev eth{n} up)"),
            )
        };
        let mut all: Vec<_> = (1..=16).map(down).collect();
        all.push(Finding::note("router", "red", "IPv6 forwarding is off"));
        all.push(Finding::note("router", "blue", "IPv6 forwarding is off"));
        all.push(Finding::problem("", "", "netlink failed"));
        all.push(Finding::problem("port", "wan", "the device is not there"));
        let remarks = remarks(&all);
        let texts: Vec<_> = remarks.iter().map(|remark| (remark.text.as_str(), remark.age_s)).collect();
        let ports =
            "ports eth1, eth2, eth3 and 13 more: for example: the port is down (ip link set dev eth1 up)";
        assert_eq!(
            texts,
            [
                (ports, Some(16.0)),
                ("routers red, blue: IPv6 forwarding is off", None),
                ("netlink failed", None),
                ("port wan: the device is not there", None),
            ]
        );
    }

    #[test]
    fn a_name_within_another_word_is_no_name() {
        let of = |name: &str, text: &str| nameless(&Finding::note("port", name, text));
        assert_eq!(of("eth1", "eth1 and eth10, dev eth1"), "\0 and eth10, dev \0");
        assert_eq!(of("a", "a a.b ba a"), "\0 a.b ba \0");
        assert_eq!(of("", "x"), "x");
        assert_eq!(of("aa", "aaaa aa"), "aaaa \0");
    }
}
