//! SVG pictures of curves and bars. Colours are classes of `chart.css`, so that a page can be light or dark.

use std::fmt::Write;

use super::{metric::number, page::escape};

/// A picture to draw.
#[derive(Clone, Debug, Default)]
pub(super) struct Chart {
    pub title: String,
    /// Names of the axes, with units.
    pub x: String,
    pub y: String,
    pub x_log: bool,
    pub y_log: bool,
    pub lines: Vec<Line>,
    /// Does the picture name its lines?
    pub legend: bool,
    /// Draws bars instead of curves. `Mark::x` is then an index into these.
    pub categories: Option<Vec<String>>,
}

/// One curve, or the bars of one kind.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub name: String,
    pub color: usize,
    /// From a paper: dashed and hollow.
    pub published: bool,
    pub marks: Vec<Mark>,
}

/// One value, and its range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Mark {
    /// `None`: the value holds at every x.
    pub x: Option<f64>,
    pub y: f64,
    pub low: f64,
    pub high: f64,
}

const WIDTH: f64 = 680.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 22.0;
const PLOT_HEIGHT: f64 = 300.0;
const LEGEND_ROW: f64 = 22.0;
const BAR: f64 = 20.0;
/// Mean width of a letter of the font in chart.css, rounded up a little.
const LETTER: f64 = 7.1;
/// A curve with more values is drawn without marks.
pub(super) const MOST_MARKS: usize = 60;
/// Colours in chart.css. Further lines use them again.
pub(super) const COLORS: usize = 8;

/// Maps values to places in the picture.
struct Axis {
    log: bool,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    /// An axis that holds all values, drawn between two places; `None` if there are none.
    fn new(values: impl Iterator<Item = f64>, log: bool, (from, to): (f64, f64)) -> Option<Self> {
        let values: Vec<f64> = values.filter(|value| value.is_finite() && value.abs() < 1e100).collect();
        let low = values.iter().copied().reduce(f64::min)?;
        let high = values.iter().copied().reduce(f64::max)?;
        // Zero has no logarithm, so an axis with 0 is linear.
        if log && low > 1e-100 {
            let (low, high) = if low == high { (low / 2.0, high * 2.0) } else { (low, high) };
            return Some(Self { log: true, low: low.log10(), high: high.log10(), from, to });
        }
        let (low, high) = (low.min(0.0), if high > 0.0 { high } else { 1.0 });
        Some(Self { log: false, low, high: high + (high - low) * 0.04, from, to })
    }

    fn place(&self, value: f64) -> f64 {
        let value = if self.log { value.max(1e-100).log10() } else { value };
        let share = ((value - self.low) / (self.high - self.low)).clamp(-0.05, 1.05);
        self.from + share * (self.to - self.from)
    }

    /// Four to eight round values.
    fn ticks(&self) -> Vec<f64> {
        if self.log {
            let decades = self.high - self.low;
            let factors: &[f64] = if decades > 2.2 { &[1.0] } else { &[1.0, 2.0, 5.0] };
            let every = (decades / 7.0).ceil().max(1.0) as i32;
            let powers =
                (self.low.floor() as i32..=self.high.ceil() as i32).filter(|power| power % every == 0);
            let ticks = powers.flat_map(|power| factors.iter().map(move |factor| factor * 10f64.powi(power)));
            let inside = |tick: &f64| (self.low - 1e-9..=self.high + 1e-9).contains(&tick.log10());
            return ticks.filter(inside).collect();
        }
        let rough = (self.high - self.low) / 7.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .map(|factor| factor * power)
            .into_iter()
            .find(|step| *step >= rough * 0.999);
        let step = step.unwrap_or(power);
        let (first, last) = ((self.low / step).ceil() as i64, (self.high / step).floor() as i64);
        (first..=last).map(|at| at as f64 * step).collect()
    }
}

/// The picture. `None` if there is nothing to draw.
pub(super) fn svg(chart: &Chart) -> Option<String> {
    let (legend, top) = if chart.legend { legend(&chart.lines) } else { (String::new(), 20.0) };
    let (body, height) = match &chart.categories {
        Some(categories) => bars(chart, categories, top)?,
        None => curves(chart, top)?,
    };
    Some(format!(
        "<svg class=\"chart\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" \
         aria-label=\"{}\">\n{legend}{body}</svg>",
        escape(&chart.title)
    ))
}

/// Rows of line samples and names above the plot. Returns where they end.
fn legend(lines: &[Line]) -> (String, f64) {
    let (mut out, mut x, mut y) = (String::new(), 10.0, 16.0);
    for line in lines {
        let width = 44.0 + LETTER * line.name.chars().count() as f64;
        if x > 10.0 && x + width > WIDTH {
            (x, y) = (10.0, y + LEGEND_ROW);
        }
        let _ = write!(out, "<g class=\"{}\">", class(line));
        let _ = write!(
            out,
            "<path class=\"line\" d=\"M{x:.1} {y:.1}h24\"/>{}",
            if level(line) { String::new() } else { marker(line, x + 12.0, y) }
        );
        let _ = writeln!(
            out,
            "</g><text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            x + 30.0,
            y + 4.5,
            escape(&line.name)
        );
        x += width + 14.0;
    }
    (out, y + LEGEND_ROW + 22.0)
}

fn curves(chart: &Chart, top: f64) -> Option<(String, f64)> {
    let marks = || chart.lines.iter().flat_map(|line| &line.marks);
    let bottom = top + PLOT_HEIGHT;
    // A level needs no x. Levels alone have an axis without numbers.
    let xs = || marks().filter_map(|mark| mark.x);
    let x = Axis::new(xs(), chart.x_log, (LEFT + 10.0, WIDTH - RIGHT - 10.0));
    let ys = marks().flat_map(|mark| [mark.low, mark.y, mark.high]);
    let y = Axis::new(ys, chart.y_log, (bottom, top))?;
    let mut out =
        format!("<text x=\"10\" y=\"{:.1}\" class=\"name\">{}</text>\n", top - 10.0, escape(&chart.y));
    for tick in y.ticks() {
        let at = y.place(tick);
        let _ = writeln!(out, "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{}\"/>", WIDTH - RIGHT);
        let (left, at) = (LEFT - 7.0, at + 4.5);
        let _ =
            writeln!(out, "<text x=\"{left}\" y=\"{at:.1}\" class=\"end\">{}</text>", escape(&number(tick)));
    }
    for tick in x.iter().flat_map(Axis::ticks) {
        let at = x.as_ref()?.place(tick);
        let _ = writeln!(out, "<path class=\"axis\" d=\"M{at:.1} {bottom}v5\"/>");
        let text = escape(&number(tick));
        let _ =
            writeln!(out, "<text x=\"{at:.1}\" y=\"{:.1}\" class=\"middle\">{text}</text>", bottom + 20.0);
    }
    let _ = writeln!(out, "<path class=\"axis\" d=\"M{LEFT} {bottom}H{}\"/>", WIDTH - RIGHT);
    let middle = (LEFT + WIDTH - RIGHT) / 2.0;
    let name = escape(&chart.x);
    let _ =
        writeln!(out, "<text x=\"{middle}\" y=\"{:.1}\" class=\"middle name\">{name}</text>", bottom + 42.0);
    for line in &chart.lines {
        let _ = writeln!(out, "<g class=\"{}\">{}</g>", class(line), curve(chart, line, x.as_ref(), &y));
    }
    Some((out, bottom + 52.0))
}

/// The band of the ranges, the line through the medians, and a mark with its numbers for each.
fn curve(chart: &Chart, line: &Line, x: Option<&Axis>, y: &Axis) -> String {
    let mut marks: Vec<(f64, Mark)> = Vec::new();
    let mut out = String::new();
    for mark in &line.marks {
        match (mark.x, x) {
            (Some(at), Some(x)) => marks.push((x.place(at), *mark)),
            _ => {
                let (at, tip) = (y.place(mark.y), tip(chart, line, mark));
                let _ =
                    write!(out, "<path class=\"line\" d=\"M{LEFT} {at:.1}H{}\">{tip}</path>", WIDTH - RIGHT);
            }
        }
    }
    marks.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let points = |of: &dyn Fn(&Mark) -> f64, marks: &mut dyn Iterator<Item = &(f64, Mark)>| -> String {
        marks.map(|(x, mark)| format!("{x:.1} {:.1} ", y.place(of(mark)))).collect()
    };
    if marks.iter().any(|(_, mark)| mark.low < mark.high) && marks.len() > 1 {
        let upper = points(&|mark| mark.high, &mut marks.iter());
        let lower = points(&|mark| mark.low, &mut marks.iter().rev());
        let _ = write!(out, "<polygon class=\"band\" points=\"{upper}{lower}\"/>");
    }
    if marks.len() > 1 {
        let _ = write!(out, "<path class=\"line\" d=\"M{}\"/>", points(&|mark| mark.y, &mut marks.iter()));
    }
    let dense = marks.len() > MOST_MARKS;
    for (x, mark) in marks.iter().filter(|_| !dense) {
        if let [_] = marks[..] {
            let (low, high) = (y.place(mark.low), y.place(mark.high));
            let _ = write!(out, "<path class=\"whisker\" d=\"M{x:.1} {low:.1}V{high:.1}\"/>");
        }
        let (shape, tip) = (marker(line, *x, y.place(mark.y)), tip(chart, line, mark));
        let _ = write!(out, "<g>{tip}{shape}</g>");
    }
    out
}

/// Horizontal bars, grouped by category, one below the other.
fn bars(chart: &Chart, categories: &[String], top: f64) -> Option<(String, f64)> {
    let longest = categories.iter().map(|name| name.chars().count()).max()?;
    let left = (LETTER * longest as f64 + 24.0).min(WIDTH / 2.5);
    let values = chart.lines.iter().flat_map(|line| &line.marks).flat_map(|mark| [0.0, mark.y, mark.high]);
    let right = WIDTH - RIGHT - 64.0;
    let x = Axis::new(values, false, (left, right))?;
    let (mut out, mut y) = (String::new(), top);
    for (at, category) in categories.iter().enumerate() {
        let start = y;
        for line in &chart.lines {
            for mark in line.marks.iter().filter(|mark| mark.x == Some(at as f64)) {
                let _ = writeln!(out, "<g class=\"{}\">{}</g>", class(line), bar(chart, line, mark, &x, y));
                y += BAR;
            }
        }
        y = y.max(start + BAR);
        let room = ((left - 20.0) / LETTER) as usize;
        let text = if category.chars().count() <= room {
            category.clone()
        } else {
            category.chars().take(room.saturating_sub(1)).chain(['…']).collect()
        };
        let (at, middle) = (left - 8.0, f64::midpoint(start, y) + 2.5);
        let full = escape(category);
        let _ = writeln!(
            out,
            "<text x=\"{at:.1}\" y=\"{middle:.1}\" class=\"end\">{}<title>{full}</title></text>",
            escape(&text)
        );
        y += 10.0;
    }
    let mut grid = String::new();
    for tick in x.ticks() {
        let at = x.place(tick);
        let _ = writeln!(grid, "<path class=\"grid\" d=\"M{at:.1} {:.1}V{y:.1}\"/>", top - 6.0);
        let text = escape(&number(tick));
        let _ = writeln!(grid, "<text x=\"{at:.1}\" y=\"{:.1}\" class=\"middle\">{text}</text>", y + 15.0);
    }
    let (middle, name) = (f64::midpoint(left, right), escape(&chart.y));
    let _ =
        writeln!(grid, "<text x=\"{middle:.1}\" y=\"{:.1}\" class=\"middle name\">{name}</text>", y + 37.0);
    Some((grid + &out, y + 47.0))
}

fn bar(chart: &Chart, line: &Line, mark: &Mark, x: &Axis, y: f64) -> String {
    let (zero, end, middle) = (x.place(0.0), x.place(mark.y), y + (BAR - 3.0) / 2.0);
    let (from, width) = (zero.min(end), (end - zero).abs());
    let mut out = format!(
        "<rect class=\"bar\" x=\"{from:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{:.1}\" rx=\"2\">{}</rect>",
        BAR - 3.0,
        tip(chart, line, mark)
    );
    let (low, high) = (x.place(mark.low), x.place(mark.high));
    if low < high {
        let _ = write!(out, "<path class=\"whisker range\" d=\"M{low:.1} {middle:.1}H{high:.1}\"/>");
    }
    let text = escape(&number(mark.y));
    let _ = write!(out, "<text x=\"{:.1}\" y=\"{:.1}\">{text}</text>", end.max(high) + 6.0, middle + 4.5);
    out
}

fn class(line: &Line) -> String {
    format!("s{}{}", line.color % COLORS, if line.published { " published" } else { "" })
}

/// Does it have only lines across the picture, and no marks?
fn level(line: &Line) -> bool {
    line.marks.iter().all(|mark| mark.x.is_none())
}

/// Shapes distinguish lines where colours do not.
fn marker(line: &Line, x: f64, y: f64) -> String {
    match line.color % 4 {
        0 => format!("<circle class=\"mark\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.8\"/>"),
        1 => format!("<path class=\"mark\" d=\"M{:.1} {:.1}h7v7h-7z\"/>", x - 3.5, y - 3.5),
        2 => format!("<path class=\"mark\" d=\"M{x:.1} {:.1}l4.5 8h-9z\"/>", y - 5.0),
        _ => format!("<path class=\"mark\" d=\"M{x:.1} {:.1}l5 5l-5 5l-5 -5z\"/>", y - 5.0),
    }
}

fn tip(chart: &Chart, line: &Line, mark: &Mark) -> String {
    let range = if mark.low < mark.high {
        format!(" ({}..{})", number(mark.low), number(mark.high))
    } else {
        String::new()
    };
    let at = match (&chart.categories, mark.x) {
        (Some(categories), Some(x)) => categories.get(x as usize).cloned().unwrap_or_default(),
        (None, Some(x)) => format!("{}: {}", chart.x, number(x)),
        (_, None) => "at every load".into(),
    };
    let text = format!("{}\n{at}\n{}: {}{range}", line.name, chart.y, number(mark.y));
    format!("<title>{}</title>", text.lines().map(escape).collect::<Vec<_>>().join("&#10;"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(x: Option<f64>, y: f64) -> Mark {
        Mark { x, y, low: y * 0.9, high: y * 1.1 }
    }

    fn line(name: &str, color: usize, marks: Vec<Mark>) -> Line {
        Line { name: name.into(), color, published: false, marks }
    }

    #[test]
    fn values_are_placed_by_their_axis() {
        let linear = Axis::new([10.0, 100.0].into_iter(), false, (300.0, 0.0)).unwrap();
        assert_eq!(linear.place(0.0), 300.0);
        assert!((linear.place(104.0)).abs() < 1e-9);
        assert_eq!(linear.ticks(), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        let log = Axis::new([1.0, 1e6].into_iter(), true, (0.0, 600.0)).unwrap();
        assert_eq!([1.0, 1e3, 1e6].map(|value| log.place(value).round()), [0.0, 300.0, 600.0]);
        assert_eq!(log.ticks(), [1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6]);
        assert!(!Axis::new([0.0, 1.0].into_iter(), true, (0.0, 1.0)).unwrap().log);
        assert!(Axis::new([f64::NAN].into_iter(), false, (0.0, 1.0)).is_none());
    }

    #[test]
    fn curves_have_a_band_a_line_and_a_mark_for_each_value() {
        let marks = vec![mark(Some(1.0), 5.0), mark(Some(10.0), 6.0)];
        let published = Line { published: true, ..line("macvlan <x>", 1, vec![mark(None, 4.0)]) };
        let chart =
            Chart { lines: vec![line("linux", 0, marks), published], legend: true, ..Chart::default() };
        let svg = svg(&chart).unwrap();
        assert_eq!(svg.matches("<polygon class=\"band\"").count(), 1);
        // Two values and the legend.
        assert_eq!(svg.matches("<circle class=\"mark\"").count(), 3);
        assert!(svg.contains("class=\"s1 published\"") && svg.contains("macvlan &lt;x&gt;"));
        assert!(svg.contains("linux&#10;: 10&#10;: 6 (5.4..6.6)"), "{svg}");
    }

    #[test]
    fn long_legends_take_more_rows() {
        let lines: Vec<Line> = (0..6).map(|at| line(&"n".repeat(30), at, Vec::new())).collect();
        let (text, end) = legend(&lines);
        assert_eq!((text.matches("<text").count(), end), (6, 16.0 + 3.0 * LEGEND_ROW + 22.0));
        assert!(svg(&Chart { lines, ..Chart::default() }).is_none());
    }

    #[test]
    fn bars_are_as_long_as_their_values() {
        let lines = vec![line("a", 0, vec![mark(Some(0.0), 1.0), mark(Some(1.0), 2.0)])];
        let categories = Some(vec!["one".into(), "two".into()]);
        let svg = svg(&Chart { lines, categories, ..Chart::default() }).unwrap();
        let widths: Vec<f64> = svg
            .split("<rect")
            .skip(1)
            .filter_map(|rect| rect.split("width=\"").nth(1)?.split('"').next()?.parse().ok())
            .collect();
        assert_eq!(widths.len(), 2);
        assert!((widths[1] / widths[0] - 2.0).abs() < 0.01, "{widths:?}");
    }
}
