//! The values that the papers publish, from `published.toml`.

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::figure::Published;

const TEXT: &str = include_str!("published.toml");

/// A figure or table of a paper.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperFigure {
    /// The paper's letter and the figure's number; tables have a T between them.
    pub id: String,
    /// Paper and figure, for people.
    pub paper: String,
    /// What it shows.
    pub title: String,
    /// The setup of the experiment, and the section that describes it.
    pub setup: String,
    /// Its curves.
    pub published: Vec<Published>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    figure: Vec<PaperFigure>,
}

/// All figures, in the order of papers.
pub fn all() -> Result<Vec<PaperFigure>> {
    let File { mut figure } = toml::from_str(TEXT).context("published.toml")?;
    for figure in &mut figure {
        for published in &mut figure.published {
            published.figure.clone_from(&figure.id);
            published.paper.clone_from(&figure.paper);
        }
    }
    Ok(figure)
}

/// The figure with this id.
pub fn figure(id: &str) -> Result<PaperFigure> {
    let found = all()?.into_iter().find(|figure| figure.id == id);
    found.with_context(|| format!("published.toml has no figure {id}"))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn every_curve_names_its_section_and_has_numbers_or_says_that_there_are_none() {
        let all = all().unwrap();
        let ids: Vec<&str> = all.iter().map(|figure| figure.id.as_str()).collect();
        assert_eq!(
            ids,
            [
                "M4", "M5", "M6", "M7", "M8", "M9", "MT1", "Q2", "Q3", "Q4", "Q5", "Q7", "Q8", "O2", "P6",
                "P7", "P8", "P9", "P11", "P12", "P13", "P14", "P15", "P17", "P19", "P20", "VT4", "VT5",
                "VT6", "VT7"
            ]
        );
        assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len());
        for figure in all {
            assert!(figure.setup.contains('('), "{}: no section", figure.id);
            for published in &figure.published {
                let Published { series, points, note, unit, beside, .. } = published;
                assert!(note.ends_with(')'), "{} {series}: {note}: no section", figure.id);
                assert_eq!(points.is_empty(), unit.is_empty(), "{} {series}", figure.id);
                assert!(
                    !beside.is_empty() && !points.is_empty()
                        || note.contains("no number")
                        || note.contains("as with")
                );
            }
        }
    }

    #[test]
    fn values_are_those_of_the_texts() {
        let points = |id: &str, curve: usize| -> Vec<(Value, f64)> {
            let published = &figure(id).unwrap().published[curve];
            published.points.iter().map(|point| (point.x.clone().unwrap_or_default(), point.y)).collect()
        };
        assert_eq!(points("M5", 1), [(json!(600), 600.0), (json!(1000), 480.0)]);
        assert_eq!(points("MT1", 0), [(json!("VR1"), 480.0), (json!("VR2"), 55.0), (json!("total"), 535.0)]);
        assert_eq!(points("MT1", 1), [(json!("VR1"), 350.0), (json!("VR2"), 300.0), (json!("total"), 650.0)]);
        assert_eq!(points("Q7", 0), [(Value::Null, 0.5)]);
        assert_eq!(points("Q7", 1), [(Value::Null, 1100.0)]);
        assert_eq!(points("O2", 1), [(json!(550), 0.14)]);
        assert_eq!(points("P15", 0), [(Value::Null, 6100.0)]);
        assert_eq!(points("P17", 0), [(json!(32), 1.2), (Value::Null, 1.3)]);
        assert_eq!(points("VT4", 1)[0], (json!("flows collision"), 954.9));
        assert_eq!(points("VT7", 1)[3], (json!("VM1, 1400 bytes"), 745.3));
        assert_eq!(figure("X1").unwrap_err().to_string(), "published.toml has no figure X1");
    }
}
