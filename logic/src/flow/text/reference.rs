//! Checks that `docs/reference/flow-syntax.md` describes everything that is read.

use super::{
    FLOW_WORDS,
    actions::ACTIONS,
    matching::{NAMES, SHORTHANDS, needs},
    value,
};
use crate::flow::field::FIELDS;

const DOCS: &str = include_str!("../../../../docs/reference/flow-syntax.md");

/// The rows of a table under a heading.
fn rows(heading: &str) -> Vec<&'static str> {
    let part = DOCS.split("\n## ").find(|part| part.starts_with(heading)).unwrap_or_default();
    part.lines().filter(|line| line.starts_with("| `")).collect()
}

#[test]
fn every_field_has_its_line() {
    let row = |spec: &crate::flow::field::Spec| {
        let of_field = NAMES.iter().filter(|(_, fields)| fields.contains(&spec.field)).map(|(name, _)| *name);
        let mut names: Vec<_> = of_field.collect();
        if !names.contains(&spec.name) {
            names.push(spec.name);
        }
        let mask = if spec.maskable { "yes" } else { "no" };
        format!(
            "| `{}` | {} | {mask} | {} |",
            names.join("`, `"),
            value::example(spec.field),
            needs(spec.field)
        )
    };
    let expected: Vec<_> = FIELDS.iter().map(row).collect();
    assert_eq!(rows("Fields"), expected, "\n{}", expected.join("\n"));
    for (name, ..) in SHORTHANDS {
        assert!(DOCS.contains(&format!("`{name}`")), "{name}");
    }
}

#[test]
fn every_action_and_every_word_of_a_flow_has_its_line() {
    for (heading, all) in [("Actions", ACTIONS), ("Words", FLOW_WORDS)] {
        let written = |line: &&str| line.split('`').nth(1).unwrap().replace("\\|", "|");
        let written: Vec<_> = rows(heading).iter().map(written).collect();
        let expected: Vec<_> = all.iter().map(|(_, syntax)| *syntax).collect();
        assert_eq!(written, expected);
    }
}
