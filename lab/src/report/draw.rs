//! Makes figures from lines: which lines belong to a figure, their repeats joined, published values beside them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{
    chart::{Chart, Line, MOST_MARKS, Mark},
    experiment::{self, Experiment, Group, words},
    metric::{Metric, number, range},
    page::Table,
    read::Run,
};
use crate::{
    figure::{Axis, Figure, Point, Published, Reference, Scale},
    measure::{Spread, spread},
};

/// Colours of series. A series has the same colour in all pictures of a report.
#[derive(Default)]
pub(super) struct Colors(Vec<String>);

impl Colors {
    fn of(&mut self, name: &str) -> usize {
        let at = self.0.iter().position(|other| other == name);
        at.unwrap_or_else(|| {
            self.0.push(name.into());
            self.0.len() - 1
        })
    }
}

/// A figure with its values.
#[derive(Debug)]
pub(super) struct Drawn<'a> {
    figure: &'a Figure,
    /// Series in the order of their first lines.
    series: Vec<(String, Vec<Joined>)>,
    published: Vec<&'a Published>,
    /// If any x is not a number: the words, in order.
    categories: Option<Vec<String>>,
}

/// Repeats of one point, joined.
#[derive(Clone, Debug, PartialEq)]
struct Joined {
    x: Value,
    y: Spread,
    repeats: usize,
}

/// Values of one point before they are joined: values of x, and values of y by repeat.
#[derive(Clone, Default)]
struct Values {
    xs: Vec<Value>,
    ys: BTreeMap<(u64, usize), f64>,
}

/// Points by the series' name, then by the value that repeats share.
type Series = Vec<(String, Vec<(Value, Values)>)>;

/// Makes the figure from these lines. `None` if no line has its values.
pub(super) fn draw<'a>(figure: &'a Figure, run: &'a Run) -> Option<Drawn<'a>> {
    let mut series: Series = Vec::new();
    for line in run.lines.iter().filter(|line| belongs(figure, line)) {
        let Some((x, by, y)) = values(figure, line) else { continue };
        let mut names = figure.series.iter().filter_map(|at| line.pointer(at)).map(words);
        // Bars of the same work stand together, one for each value at the first place.
        let (name, x, by) = match &figure.x {
            None if figure.series.len() > 1 => {
                let name = names.next().unwrap_or_default();
                let rest = json!(names.collect::<Vec<_>>().join(", "));
                (name, rest.clone(), rest)
            }
            _ => (names.collect::<Vec<_>>().join(", "), x, by),
        };
        let points = find(&mut series, name);
        let point = find(points, by);
        let repeat = line.get("repeat").and_then(Value::as_u64).unwrap_or_default();
        let nth = point.ys.range((repeat, 0)..=(repeat, usize::MAX)).count();
        point.ys.insert((repeat, nth), y);
        point.xs.push(x);
    }
    let series = match &figure.relative_to {
        Some(to) => relative(series, to),
        None => series,
    };
    let mut series: Vec<(String, Vec<Joined>)> = series
        .into_iter()
        .map(|(name, points)| (name, points.into_iter().filter_map(join).collect()))
        .collect();
    series.retain(|(_, points)| !points.is_empty());
    let published: Vec<&Published> =
        run.published.iter().filter(|published| published.figure == figure.name).collect();
    let categories = categories(figure, &series, &published);
    (!series.is_empty()).then_some(Drawn { figure, series, published, categories })
}

fn belongs(figure: &Figure, line: &Value) -> bool {
    figure.only.iter().all(|(at, value)| line.pointer(at) == Some(value))
}

/// x, the value that repeats share, and y.
fn values(figure: &Figure, line: &Value) -> Option<(Value, Value, f64)> {
    let y = line.pointer(&figure.y.at)?.as_f64()? * figure.y.factor;
    let Some(axis) = &figure.x else { return Some((Value::Null, Value::Null, y)) };
    let x = line.pointer(&axis.at)?;
    let scaled = x.as_f64().map_or_else(|| json!(words(x)), |x| json!(x * axis.factor));
    let by = axis.by.as_ref().map_or(Some(x), |at| line.pointer(at))?.clone();
    Some((scaled, by, y))
}

/// The entry of this key, which is added if there is none. So the order is that of the lines.
fn find<K: PartialEq, V: Default>(list: &mut Vec<(K, V)>, key: K) -> &mut V {
    let at = list.iter().position(|(other, _)| *other == key).unwrap_or_else(|| {
        list.push((key, V::default()));
        list.len() - 1
    });
    &mut list[at].1
}

/// Ratios of points with the same repeat.
fn relative(mut series: Series, to: &Reference) -> Series {
    let all = series.clone();
    for (name, points) in &mut series {
        let reference = |by: &Value| match to {
            Reference::Series(to) => find_in(&all, to).and_then(|points| find_in(points, by)),
            Reference::First => find_in(&all, name).and_then(|points| points.first().map(|(_, first)| first)),
        };
        for (by, point) in points {
            let reference = reference(by);
            let ratio = |(at, y): (_, f64)| Some((at, y / reference?.ys.get(&at)?));
            let ratios = std::mem::take(&mut point.ys).into_iter().filter_map(ratio);
            point.ys = ratios.filter(|(_, ratio)| ratio.is_finite()).collect();
        }
    }
    series
}

fn find_in<'a, K: PartialEq, V>(list: &'a [(K, V)], key: &K) -> Option<&'a V> {
    list.iter().find(|(other, _)| other == key).map(|(_, value)| value)
}

fn join((_, point): (Value, Values)) -> Option<Joined> {
    let numbers: Vec<f64> = point.xs.iter().filter_map(Value::as_f64).collect();
    let x = if numbers.len() == point.xs.len() {
        json!(spread(&numbers).median)
    } else {
        point.xs.first()?.clone()
    };
    let ys: Vec<f64> = point.ys.into_values().collect();
    (!ys.is_empty()).then(|| Joined { x, y: spread(&ys), repeats: ys.len() })
}

fn categories(
    figure: &Figure,
    series: &[(String, Vec<Joined>)],
    published: &[&Published],
) -> Option<Vec<String>> {
    if figure.is_plain() {
        return Some(series.iter().map(|(name, _)| name.clone()).collect());
    }
    let ours = series.iter().flat_map(|(_, points)| points).map(|point| &point.x);
    let theirs =
        published.iter().flat_map(|published| &published.points).filter_map(|point| point.x.as_ref());
    let all: Vec<&Value> = ours.chain(theirs).collect();
    if all.iter().all(|x| x.is_number()) {
        return None;
    }
    let mut names = Vec::new();
    for name in all.into_iter().map(words) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Some(names)
}

impl Drawn<'_> {
    /// Description of the measurement.
    pub fn note(&self) -> Option<String> {
        Some(self.figure.note.clone()).filter(|note| !note.is_empty())
    }

    /// The figure as a picture.
    pub fn chart(&self, colors: &mut Colors) -> Chart {
        let place = |x: &Value| match &self.categories {
            Some(names) => names.iter().position(|name| *name == words(x)).map(|at| at as f64),
            None => x.as_f64(),
        };
        let mark = |x, y: Spread| Mark { x, y: y.median, low: y.min, high: y.max };
        let mut lines: Vec<Line> = Vec::new();
        for (at, (name, points)) in self.series.iter().enumerate() {
            let color = colors.of(name);
            let alone = self.figure.is_plain().then_some(at as f64);
            let marks = points.iter().map(|point| mark(alone.or_else(|| place(&point.x)), point.y)).collect();
            lines.push(Line { name: name.clone(), color, published: false, marks });
        }
        for published in self.published.iter().filter(|published| self.is_drawn(published)) {
            let like = self.series.iter().map(|(name, _)| name).find(|name| is_beside(published, name));
            let color = colors.of(like.map_or(published.series.as_str(), |name| name.as_str()));
            let marks = published.points.iter().map(|point| {
                let y = Spread { median: point.y, min: point.y, max: point.y };
                mark(point.x.as_ref().and_then(place), y)
            });
            let name = self.published_name(published);
            lines.push(Line { name, color, published: true, marks: marks.collect() });
        }
        let scale = |axis: &Axis| axis.scale == Scale::Log;
        Chart {
            title: self.figure.title.clone(),
            x: self.figure.x.as_ref().map(|x| x.caption(&x.unit)).unwrap_or_default(),
            y: self.figure.y.caption(&self.figure.unit()),
            x_log: self.figure.x.as_ref().is_some_and(scale),
            y_log: scale(&self.figure.y),
            lines,
            categories: self.categories.clone(),
            legend: !self.figure.is_plain(),
        }
    }

    /// Is this published curve drawn? Without values, or in another unit, it is only in the table.
    fn is_drawn(&self, published: &Published) -> bool {
        let placed = |point: &Point| point.x.is_some() || self.categories.is_none();
        published.unit == self.figure.unit()
            && !published.points.is_empty()
            && published.points.iter().all(placed)
    }

    /// Name of a published curve, with its value where the picture has no mark that shows it.
    fn published_name(&self, published: &Published) -> String {
        let level = match &published.points[..] {
            [Point { x: None, y, bound, .. }] => format!(" {}{}", bound.sign(), number(*y)),
            _ => String::new(),
        };
        format!("{}{level} ({})", published.series, published.paper)
    }

    /// Table of the published values, with our values at the same x beside them.
    pub fn table(&self) -> Option<Table> {
        let x = self.figure.x.as_ref().map_or(String::new(), |x| x.caption(&x.unit));
        let mut rows = Vec::new();
        for published in &self.published {
            let named = format!("{} ({})", published.series, published.paper);
            for point in &published.points {
                let at = point.x.as_ref().map(show).unwrap_or_default();
                let value = format!("{}{} {}", point.bound.sign(), number(point.y), published.unit);
                let note =
                    [&published.note, &point.note].into_iter().filter(|note| !note.is_empty()).cloned();
                let ours = self.beside(published, point).join("; ");
                rows.push(vec![named.clone(), note.collect::<Vec<_>>().join("; "), at, value, ours]);
            }
            if published.points.is_empty() {
                rows.push(vec![named, published.note.clone(), String::new(), "-".into(), String::new()]);
            }
        }
        let ours = format!("ours, {}", self.figure.unit());
        let head =
            ["published", "what the text says", &x, "published value", &ours].map(str::to_owned).to_vec();
        let title = format!("{}: published values", self.figure.title);
        (!rows.is_empty()).then_some(Table { title, head, rows, words: 2, folded: false })
    }

    /// Our values at the same x. For a level, our highest values.
    fn beside(&self, published: &Published, point: &Point) -> Vec<String> {
        let mut found = Vec::new();
        for (name, points) in self.series.iter().filter(|(name, _)| is_beside(published, name)) {
            let ours = match &point.x {
                Some(x) => points.iter().find(|point| {
                    words(&point.x) == words(x) || point.x.as_f64() == x.as_f64() && x.is_number()
                }),
                None => points.iter().max_by(|a, b| a.y.median.total_cmp(&b.y.median)),
            };
            found.extend(ours.map(|ours| format!("{name} {}", range(ours.y))));
        }
        found
    }

    /// Table of every value drawn, for readers without pictures. `None` if there are too many to read.
    pub fn values(&self) -> Option<Table> {
        if self.series.iter().any(|(_, points)| points.len() > MOST_MARKS) {
            return None;
        }
        let row = |name: &str, point: &Joined| {
            vec![name.to_owned(), show(&point.x), range(point.y), point.repeats.to_string()]
        };
        let rows = self
            .series
            .iter()
            .flat_map(|(name, points)| points.iter().map(move |point| row(name, point)))
            .collect();
        let x = self.figure.x.as_ref().map_or(String::new(), |x| x.caption(&x.unit));
        let head = vec![String::new(), x, self.figure.y.caption(&self.figure.unit()), "n".into()];
        Some(Table { title: format!("{}: values", self.figure.title), head, rows, words: 1, folded: true })
    }
}

/// By convention the first part of a series' name is the subject.
fn subject(name: &str) -> &str {
    name.split(", ").next().unwrap_or_default()
}

/// Does the series of this name (subject first) do the same as the published one?
fn is_beside(published: &Published, name: &str) -> bool {
    let subject = subject(name);
    published.beside.iter().any(|pattern| match pattern.strip_suffix('*') {
        Some(start) => subject.starts_with(start),
        None => subject == pattern,
    })
}

fn show(x: &Value) -> String {
    x.as_f64().map_or_else(|| if x.is_null() { String::new() } else { words(x) }, number)
}

/// Figures for a case of a file that describes none: measured values against the parameter that was varied most.
pub(super) fn usual(experiment: &Experiment<'_>, run: &Run) -> Vec<Figure> {
    let lines: Vec<&Value> =
        run.lines.iter().filter(|line| experiment::name(line) == experiment.name).collect();
    let described = run.figures.iter().any(|figure| lines.iter().any(|line| belongs(figure, line)));
    // Without subjects, lines may be about different things.
    if described || experiment.groups.iter().any(|group| group.subject.is_empty()) {
        return Vec::new();
    }
    let key = if lines.iter().any(|line| line.get("case").is_some()) { "/case" } else { "/record" };
    let (x, series) = varied(experiment, &lines);
    let places = experiment.groups.iter().flat_map(Group::places);
    let mut metrics: Vec<Metric> = Vec::new();
    for metric in places.filter_map(|at| Metric::at(&at)).filter(Metric::is_compared) {
        if !metrics.contains(&metric) {
            metrics.push(metric);
        }
    }
    metrics.sort_by_key(Metric::rank);
    let figure = |metric: &Metric| {
        let y = Axis::new(&metric.at, &metric.label, &metric.unit).times(metric.factor);
        let title = format!("{}: {}", experiment.name, metric.label);
        let figure = Figure::new(&title, &title, x.clone(), y).only(key, experiment.name.clone());
        series.iter().fold(figure, |figure, at| figure.series(at))
    };
    metrics.iter().take(MOST_FIGURES).map(figure).collect()
}

/// Maximum number of such figures. A file with many measured values should describe its figures.
const MOST_FIGURES: usize = 3;
/// Fewer values make no curve.
const FEWEST_VALUES: usize = 3;

/// The x axis, if a parameter was varied in numbers, and the places that distinguish series.
fn varied(experiment: &Experiment<'_>, lines: &[&Value]) -> (Option<Axis>, Vec<String>) {
    let mut series = vec!["/subject".to_string()];
    let mut x: Option<(usize, Axis)> = None;
    let has = |at: &str| lines.iter().any(|line| line.pointer(at).is_some());
    for name in telling(experiment) {
        let places = [format!("/parameters/{name}"), format!("/{name}")];
        let Some(at) = places.into_iter().find(|at| has(at)) else { continue };
        let rates =
            lines.iter().filter(|line| name == "pace" && line.pointer("/pace/rate").is_some()).count();
        let mut values: Vec<f64> = lines.iter().filter_map(|line| line.pointer(&at)?.as_f64()).collect();
        let numbers = values.len() == lines.len();
        values.sort_by(f64::total_cmp);
        values.dedup();
        let axis = if rates * 2 > lines.len()
            && lines.iter().all(|line| line.pointer("/sample/offered_pps").is_some())
        {
            Some((usize::MAX, Axis::new("/sample/offered_pps", "offered", "Mpps").times(1e-6).by("/pace")))
        } else if numbers && values.len() >= FEWEST_VALUES {
            let axis = Axis::new(&at, &name.replace(['_', '/'], " "), "");
            let wide = values[0] > 0.0 && values[values.len() - 1] / values[0] >= 30.0;
            Some((values.len(), if wide { axis.log() } else { axis }))
        } else {
            None
        };
        match axis {
            Some(axis) if x.as_ref().is_none_or(|(values, _)| axis.0 > *values) => {
                series.extend(x.replace(axis).map(|(_, axis)| axis.at));
            }
            _ => series.push(at),
        }
    }
    (x.map(|(_, axis)| axis), series)
}

/// Names of varied parameters, without those that follow from the others.
fn telling<'a>(experiment: &'a Experiment<'_>) -> Vec<&'a String> {
    let distinct = |columns: &[usize]| {
        let rows = experiment
            .groups
            .iter()
            .map(|group| columns.iter().map(|at| &group.given[*at]).collect::<Vec<_>>());
        rows.collect::<BTreeSet<_>>().len()
    };
    let mut columns: Vec<usize> = (0..experiment.varied.len()).collect();
    for at in 0..experiment.varied.len() {
        let without: Vec<usize> = columns.iter().copied().filter(|column| *column != at).collect();
        if FOLLOWING.contains(&experiment.varied[at].as_str()) && distinct(&without) == distinct(&columns) {
            columns = without;
        }
    }
    columns.into_iter().map(|at| &experiment.varied[at]).collect()
}

/// Parameters that usually follow from others.
const FOLLOWING: [&str; 2] = ["frame_bytes", "targets"];
