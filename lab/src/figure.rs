//! The pictures of a result file: which of its lines make a figure, and what a paper published about it. Both are lines
//! of the file (`Recorder::figure`, `Recorder::published`), so that [`crate::report`] needs nothing else to draw it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A picture of lines of the same file. Places in lines are JSON pointers. Numbers on the x axis make curves; words, or
/// no x axis, make bars.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename = "figure")]
pub struct Figure {
    /// Name that published values refer to.
    pub name: String,
    /// Title for people.
    pub title: String,
    /// Draws only lines with these values at these places.
    #[serde(rename = "where", default)]
    pub only: BTreeMap<String, Value>,
    /// Lines with the same values at these places make one curve.
    #[serde(default)]
    pub series: Vec<String>,
    /// Without an x axis, each series is one bar. Series that differ only at the first place stand together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub x: Option<Axis>,
    /// The value that is drawn: median and range of repeats.
    pub y: Axis,
    /// Draw ratios of y instead, repeat by repeat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relative_to: Option<Reference>,
    /// What was measured, and how this differs from what was published.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// What ratios refer to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reference {
    /// To this series, at the same x.
    Series(String),
    /// Each series to its own first x.
    First,
}

/// One axis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Axis {
    /// Where the value is.
    pub at: String,
    /// A place whose value the repeats of a measurement share [default: the value itself]. The median of a measured x
    /// needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// What the axis shows.
    pub label: String,
    /// Unit, after the factor; empty if there is none.
    #[serde(default)]
    pub unit: String,
    /// Values are multiplied by this.
    #[serde(default = "one")]
    pub factor: f64,
    /// How it is drawn.
    #[serde(default)]
    pub scale: Scale,
}

/// Scale of an axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// From 0.
    #[default]
    Linear,
    /// Powers of ten.
    Log,
}

/// What a paper says about one of its curves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename = "published")]
pub struct Published {
    /// Name of the [`Figure`] it belongs to.
    #[serde(default)]
    pub figure: String,
    /// Name in the paper.
    pub series: String,
    /// Which paper and figure.
    #[serde(default)]
    pub paper: String,
    /// Our subjects that do the same; a `*` at the end stands for anything.
    #[serde(default)]
    pub beside: Vec<String>,
    /// Unit of y. The curve is drawn only if the figure has the same unit. x is always in the figure's unit.
    #[serde(default)]
    pub unit: String,
    /// Empty if the text gives no number.
    #[serde(default)]
    pub points: Vec<Point>,
    /// What else the text says, and where.
    #[serde(default)]
    pub note: String,
}

/// One published value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "AnyPoint")]
pub struct Point {
    /// A number or a word. `None` if the text gives no x, or if the value holds for every x.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub x: Option<Value>,
    /// The value.
    pub y: f64,
    /// How exact the text is.
    #[serde(skip_serializing_if = "Bound::is_exact")]
    pub bound: Bound,
    /// What the text says about this point.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// How a text states a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Exactly this value.
    #[default]
    Exact,
    /// "Around", "almost", "roughly".
    About,
    /// "More than", "above".
    AtLeast,
    /// "Less than", "up to" where it is a limit.
    AtMost,
}

/// `[x, y]`, or an object with named fields.
#[derive(Deserialize)]
#[serde(untagged)]
enum AnyPoint {
    Pair(Value, f64),
    Named {
        #[serde(default)]
        x: Option<Value>,
        y: f64,
        #[serde(default)]
        bound: Bound,
        #[serde(default)]
        note: String,
    },
}

impl From<AnyPoint> for Point {
    fn from(point: AnyPoint) -> Self {
        match point {
            AnyPoint::Pair(x, y) => Self { x: Some(x), y, bound: Bound::Exact, note: String::new() },
            AnyPoint::Named { x, y, bound, note } => Self { x, y, bound, note },
        }
    }
}

impl Figure {
    /// A figure of all lines that have both values, all in one series.
    pub fn new(name: &str, title: &str, x: Option<Axis>, y: Axis) -> Self {
        let (name, title) = (name.into(), title.into());
        Self {
            name,
            title,
            only: BTreeMap::new(),
            series: Vec::new(),
            x,
            y,
            relative_to: None,
            note: String::new(),
        }
    }

    /// Only lines with this value at this place.
    pub fn only(mut self, at: &str, value: impl Into<Value>) -> Self {
        self.only.insert(at.into(), value.into());
        self
    }

    /// One curve for each value at this place.
    pub fn series(mut self, at: &str) -> Self {
        self.series.push(at.into());
        self
    }

    /// Draws ratios.
    pub fn relative_to(mut self, reference: Reference) -> Self {
        self.relative_to = Some(reference);
        self
    }

    /// Describes what was measured.
    pub fn note(mut self, note: &str) -> Self {
        self.note = note.into();
        self
    }

    /// Is there just one bar for each series?
    pub fn is_plain(&self) -> bool {
        self.x.is_none() && self.series.len() < 2
    }

    /// Unit of y as it is drawn.
    pub fn unit(&self) -> String {
        match &self.relative_to {
            None => self.y.unit.clone(),
            Some(Reference::Series(to)) => format!("× {to}"),
            Some(Reference::First) => "× the first".into(),
        }
    }
}

impl Axis {
    /// A linear axis of the value at this place, unchanged.
    pub fn new(at: &str, label: &str, unit: &str) -> Self {
        let (at, label, unit) = (at.into(), label.into(), unit.into());
        Self { at, by: None, label, unit, factor: 1.0, scale: Scale::Linear }
    }

    /// Multiplies the value by this.
    pub fn times(self, factor: f64) -> Self {
        Self { factor, ..self }
    }

    /// Draws the axis in powers of ten.
    pub fn log(self) -> Self {
        Self { scale: Scale::Log, ..self }
    }

    /// Measurements with the same value at this place are repeats of one point.
    pub fn by(self, at: &str) -> Self {
        Self { by: Some(at.into()), ..self }
    }

    /// The label with its unit.
    pub fn caption(&self, unit: &str) -> String {
        if unit.is_empty() { self.label.clone() } else { format!("{} ({unit})", self.label) }
    }
}

impl Bound {
    fn is_exact(&self) -> bool {
        *self == Self::Exact
    }

    /// Sign before the value.
    pub fn sign(self) -> &'static str {
        match self {
            Self::Exact => "",
            Self::About => "≈ ",
            Self::AtLeast => "> ",
            Self::AtMost => "< ",
        }
    }
}

fn one() -> f64 {
    1.0
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_figure_is_one_line() {
        let x = Axis::new("/parameters/routes", "routes", "").log();
        let y = Axis::new("/sample/received_pps", "throughput", "Mpps").times(1e-6);
        let figure = Figure::new("tables", "Tables", Some(x), y).only("/case", "tables").series("/subject");
        let line = serde_json::to_value(&figure).unwrap();
        assert_eq!(
            line,
            json!({"record": "figure", "name": "tables", "title": "Tables", "where": {"/case": "tables"},
                "series": ["/subject"],
                "x": {"at": "/parameters/routes", "label": "routes", "unit": "", "factor": 1.0, "scale": "log"},
                "y": {"at": "/sample/received_pps", "label": "throughput", "unit": "Mpps", "factor": 1e-6,
                    "scale": "linear"}})
        );
        assert_eq!(serde_json::from_value::<Figure>(line).unwrap(), figure);
        assert_eq!(figure.relative_to(Reference::Series("linux".into())).unit(), "× linux");
    }

    #[test]
    fn published_points_are_pairs_or_say_how_sure_they_are() {
        let line = json!({"record": "published", "figure": "M5", "series": "macvlan", "paper": "M, fig. 5",
            "points": [[600, 600], {"y": 700, "bound": "about"}, {"x": "VR2", "y": 55, "note": "table 1"}]});
        let published: Published = serde_json::from_value(line).unwrap();
        let point = |x, y, bound, note: &str| Point { x, y, bound, note: note.into() };
        let expected = [
            point(Some(json!(600)), 600.0, Bound::Exact, ""),
            point(None, 700.0, Bound::About, ""),
            point(Some(json!("VR2")), 55.0, Bound::Exact, "table 1"),
        ];
        assert_eq!(published.points, expected);
        let back = serde_json::to_value(&published).unwrap();
        assert_eq!(
            (&back["record"], &back["points"][1]),
            (&json!("published"), &json!({"y": 700.0, "bound": "about"}))
        );
        assert_eq!(serde_json::from_value::<Published>(back).unwrap(), published);
    }
}
