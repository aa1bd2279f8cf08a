//! Measurements that belong together. Given values (words, whole numbers) distinguish lines. Measured values are those
//! below `sample`, and fractions elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::read::Run;

/// Lines with the same record and case.
#[derive(Debug)]
pub(super) struct Experiment<'a> {
    pub name: String,
    /// Given values that are the same in all lines.
    pub constant: Vec<(String, String)>,
    /// Names of given values that differ, except the subject.
    pub varied: Vec<String>,
    pub groups: Vec<Group<'a>>,
}

/// Repeats of one measurement.
#[derive(Debug)]
pub(super) struct Group<'a> {
    /// Values of [`Experiment::varied`]; empty where a line has none.
    pub given: Vec<String>,
    /// Empty for lines without a subject.
    pub subject: String,
    /// Lines by repeat. Lines of one group with the same repeat, or with none, are numbered in their order.
    pub lines: BTreeMap<(u64, usize), &'a Value>,
}

/// Fields of lines that are neither given nor measured.
const NEITHER: [&str; 5] = ["record", "case", "subject", "repeat", "noisy"];
/// Longer lists are raw data.
const LONGEST_LIST: usize = 16;

/// Experiments in the order of their first lines.
pub(super) fn experiments(run: &Run) -> Vec<Experiment<'_>> {
    let mut order: Vec<String> = Vec::new();
    let mut lines: BTreeMap<String, Vec<&Value>> = BTreeMap::new();
    for line in run.lines.iter().filter(|line| text(line, "record") != "skipped") {
        let name = name(line);
        if !lines.contains_key(&name) {
            order.push(name.clone());
        }
        lines.entry(name).or_default().push(line);
    }
    order.into_iter().map(|name| experiment(&name, &lines[&name])).collect()
}

/// The case of a line, or else its record.
pub(super) fn name(line: &Value) -> String {
    let case = text(line, "case");
    if case.is_empty() { text(line, "record") } else { case }
}

/// Text of a field of a line; empty if it has none.
pub(super) fn text(line: &Value, at: &str) -> String {
    line.get(at).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn experiment<'a>(name: &str, lines: &[&'a Value]) -> Experiment<'a> {
    let given: Vec<Vec<(String, String)>> = lines.iter().map(|line| given(line)).collect();
    let mut names: Vec<&String> = Vec::new();
    for (name, _) in given.iter().flatten() {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let value = |of: &[(String, String)], name: &String| {
        of.iter().find(|(other, _)| other == name).map(|(_, value)| value.clone()).unwrap_or_default()
    };
    let (constant, varied): (Vec<&String>, Vec<&String>) = names
        .into_iter()
        .partition(|name| given.iter().map(|of| value(of, name)).collect::<BTreeSet<_>>().len() == 1);
    let mut groups: Vec<Group<'a>> = Vec::new();
    for (line, of) in lines.iter().zip(&given) {
        let given: Vec<String> = varied.iter().map(|name| value(of, name)).collect();
        let subject = text(line, "subject");
        let found = groups.iter().position(|group| group.given == given && group.subject == subject);
        let at = found.unwrap_or_else(|| {
            groups.push(Group { given, subject, lines: BTreeMap::new() });
            groups.len() - 1
        });
        let lines = &mut groups[at].lines;
        let repeat = line.get("repeat").and_then(Value::as_u64).unwrap_or_default();
        let nth = lines.range((repeat, 0)..=(repeat, usize::MAX)).count();
        lines.insert((repeat, nth), line);
    }
    // Subjects of the same work stand together, in the order of the work's first line.
    let work: Vec<Vec<String>> = groups.iter().map(|group| group.given.clone()).collect();
    groups.sort_by_key(|group| work.iter().position(|given| *given == group.given));
    Experiment {
        name: name.into(),
        constant: constant.into_iter().map(|name| (name.clone(), value(&given[0], name))).collect(),
        varied: varied.into_iter().cloned().collect(),
        groups,
    }
}

/// Given values of a line, with their names.
fn given(line: &Value) -> Vec<(String, String)> {
    let mut leaves = Vec::new();
    collect("", line, &mut leaves);
    let is_given = |at: &str, value: &Value| {
        let top = at.split('/').nth(1).unwrap_or_default();
        let stated = top == "parameters" || top == "pace" || !value.is_f64();
        top != "sample" && !NEITHER.contains(&top) && stated
    };
    let leaves = leaves.into_iter().filter(|(at, value)| is_given(at, value));
    leaves.map(|(at, value)| (given_name(&at), words(value))).collect()
}

fn given_name(at: &str) -> String {
    match at {
        "/pace/rate" => "pace".into(),
        at => at.trim_start_matches("/parameters").trim_start_matches('/').to_owned(),
    }
}

/// A value as text for people.
pub(super) fn words(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_u64() => thousands(&number.to_string()),
        // A pace.
        Value::Object(fields) if fields.len() == 1 && fields.contains_key("rate") => {
            format!("{} pps", words(&fields["rate"]))
        }
        value => value.to_string(),
    }
}

/// 1234567 as 1,234,567.
pub(super) fn thousands(digits: &str) -> String {
    let start = digits.len() % 3;
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && at % 3 == start {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Measured numbers of a line, with their places.
pub(super) fn measured(line: &Value) -> Vec<(String, f64)> {
    let mut leaves = Vec::new();
    collect("", line, &mut leaves);
    let is_measured = |at: &str, value: &Value| {
        let top = at.split('/').nth(1).unwrap_or_default();
        top == "sample" || (value.is_f64() && !matches!(top, "parameters" | "pace"))
    };
    let leaves = leaves.into_iter().filter(|(at, value)| is_measured(at, value));
    leaves.filter_map(|(at, value)| Some((at, value.as_f64()?))).collect()
}

/// Values without parts, with their places as JSON pointers.
pub(super) fn collect<'a>(at: &str, value: &'a Value, leaves: &mut Vec<(String, &'a Value)>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                collect(&format!("{at}/{}", name.replace('~', "~0").replace('/', "~1")), value, leaves);
            }
        }
        Value::Array(list) if list.len() <= LONGEST_LIST => {
            for (index, value) in list.iter().enumerate() {
                collect(&format!("{at}/{index}"), value, leaves);
            }
        }
        Value::Array(_) | Value::Null => {}
        _ => leaves.push((at.into(), value)),
    }
}

impl Group<'_> {
    /// Values at this place, by repeat.
    pub fn values(&self, at: &str) -> BTreeMap<(u64, usize), f64> {
        let value = |line: &Value| line.pointer(at).and_then(Value::as_f64);
        self.lines.iter().filter_map(|(repeat, line)| Some((*repeat, value(line)?))).collect()
    }

    /// Places of all measured values, in the order of the first line that has them.
    pub fn places(&self) -> Vec<String> {
        let mut places = Vec::new();
        for (at, _) in self.lines.values().flat_map(|line| measured(line)) {
            if !places.contains(&at) {
                places.push(at);
            }
        }
        places
    }
}

/// Ratios of values with the same repeat.
pub(super) fn ratios(of: &BTreeMap<(u64, usize), f64>, to: &BTreeMap<(u64, usize), f64>) -> Vec<f64> {
    of.iter()
        .filter_map(|(repeat, a)| to.get(repeat).map(|b| a / b))
        .filter(|ratio| ratio.is_finite())
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run(lines: Vec<Value>) -> Run {
        Run { lines, ..Run::default() }
    }

    fn sample(subject: &str, routes: u64, repeat: u64, ns: f64) -> Value {
        json!({"record": "sample", "case": "tables", "parameters": {"routes": routes}, "subject": subject,
            "repeat": repeat, "pace": "saturate", "frame_bytes": 60, "sample": {"ns_per_packet": ns, "sent": 5}})
    }

    #[test]
    fn lines_of_the_same_work_are_repeats_and_subjects_stand_together() {
        let lines = vec![
            sample("linux", 1, 0, 2.0),
            sample("millrace", 1, 0, 1.0),
            sample("linux", 1000, 0, 4.0),
            sample("linux", 1, 1, 3.0),
            sample("millrace", 1, 1, 1.5),
        ];
        let run = run(lines);
        let experiments = experiments(&run);
        let [experiment] = &experiments[..] else { panic!("{experiments:?}") };
        assert_eq!(experiment.varied, ["routes"]);
        let constant = [("frame_bytes", "60"), ("pace", "saturate")];
        assert_eq!(experiment.constant, constant.map(|(name, value)| (name.into(), value.into())));
        let groups: Vec<_> =
            experiment.groups.iter().map(|group| (group.given[0].as_str(), group.subject.as_str())).collect();
        assert_eq!(groups, [("1", "linux"), ("1", "millrace"), ("1,000", "linux")]);
        assert_eq!(experiment.groups[0].places(), ["/sample/ns_per_packet", "/sample/sent"]);
        let values = |at: usize| experiment.groups[at].values("/sample/ns_per_packet");
        assert_eq!(values(0), [((0, 0), 2.0), ((1, 0), 3.0)].into());
        assert_eq!(ratios(&values(0), &values(1)), [2.0, 2.0]);
        assert_eq!(ratios(&values(2), &values(1)), [4.0]);
    }

    #[test]
    fn ratios_pair_the_same_repeat_even_where_one_is_missing() {
        let of = [((0, 0), 10.0), ((2, 0), 30.0), ((3, 0), 1.0)].into();
        let to = [((1, 0), 7.0), ((2, 0), 10.0), ((3, 0), 0.0)].into();
        assert_eq!(ratios(&of, &to), [3.0]);
    }

    #[test]
    fn whole_numbers_are_given_and_fractions_measured_where_there_is_no_sample() {
        let change =
            |ms: f64| json!({"record": "change", "rate_pps": 200000, "subject": "linux", "add_ms": ms});
        let run = run(vec![change(0.25), change(0.5)]);
        let experiments = experiments(&run);
        assert_eq!(experiments[0].name, "change");
        assert_eq!(experiments[0].constant, [("rate_pps".into(), "200,000".into())]);
        assert_eq!(experiments[0].groups[0].values("/add_ms").into_values().collect::<Vec<_>>(), [0.25, 0.5]);
    }

    #[test]
    fn digits_are_grouped() {
        let seen = ["1", "12", "123", "1234", "123456", "1234567"].map(thousands);
        assert_eq!(seen, ["1", "12", "123", "1,234", "123,456", "1,234,567"]);
    }
}
