//! Results of `rfc2544`, as a document and as tables. Lines of the document have the form of other commands: a sample
//! for each repeat of a test, pictures of them, and every trial that they were computed from.

use serde::Serialize;
use serde_json::{Value, json};

use super::{RESOLUTION, Rfc2544Options};
use crate::{
    experiment::{head, row, show, with_end},
    figure::{Axis, Figure},
    measure::{Spread, median},
    method::{
        Outcome,
        back_to_back::BackToBack,
        frame_loss::Point,
        latency::AtRate,
        recovery::{Changed, Recovery},
        reset::{Event, Outage, ResetTime},
        throughput::{Repeated, Throughput},
    },
};

/// Results of one frame length. Tests that were not run are missing.
#[derive(Debug, Default, Serialize)]
pub(super) struct OfFrame {
    /// Bytes, FCS included.
    pub(super) frame: u16,
    /// The rate that other tests refer to: without loss, or with 0.1 % if there is none without.
    pub(super) throughput_pps: u64,
    pub(super) throughput: Vec<Repeated>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) latency: Option<Vec<AtRate>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) frame_loss: Option<Vec<Point>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) back_to_back: Option<BackToBack>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) recovery: Option<Recovery>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) reset: Vec<ResetTime>,
}

pub(super) fn document(
    options: &Rfc2544Options,
    results: &[OfFrame],
    trials: &[Value],
    measured: &anyhow::Result<()>,
) -> Value {
    let figures = figures().into_iter().map(|figure| json!(figure));
    let samples = results.iter().flat_map(|result| Samples { options, result }.all());
    let lines: Vec<Value> = figures.chain(samples).chain(trials.iter().cloned()).collect();
    let document = json!({"subject": options.subject, "flows": options.flows,
        "trial_seconds": options.seconds, "repeat": options.repeat, "resolution": RESOLUTION,
        "results": results, "lines": lines});
    with_end(document, measured)
}

fn figures() -> Vec<Figure> {
    let by_frame = |case: &str, title: &str, y: Axis| {
        let frame = Axis::new("/parameters/frame", "frame length with FCS", "bytes");
        Figure::new(case, title, Some(frame), y).only("/case", case).series("/subject")
    };
    let named = |figure: Figure, name: &str| Figure { name: name.into(), ..figure };
    let mpps = Axis::new("/sample/throughput_pps", "throughput", "Mpps").times(1e-6);
    let gbps = Axis::new("/sample/throughput_gbps", "throughput", "Gbit/s");
    let latency = Axis::new("/sample/latency/p99_ns", "latency, p99", "µs").times(1e-3);
    let burst = Axis::new("/sample/burst_frames", "longest burst", "frames");
    let offered = Axis::new("/parameters/pps", "offered", "Mpps").times(1e-6);
    let lost = Axis::new("/sample/loss", "lost", "%").times(100.0);
    let loss = Figure::new("frame-loss", "Frame loss rate (RFC 2544 26.3)", Some(offered), lost);
    let throughput = |title, y| by_frame("throughput", title, y).series("/parameters/loss");
    let reset = |case, y| {
        let title = "Reset: stopped and started, or killed, under load (RFC 2544 26.6, RFC 6201)";
        by_frame(case, title, y).series("/parameters/event")
    };
    vec![
        throughput("Throughput (RFC 2544 26.1)", mpps),
        named(throughput("Throughput in bits", gbps), "throughput-gbps"),
        by_frame("latency", "Latency (RFC 2544 26.2)", latency).series("/parameters/at"),
        loss.only("/case", "frame-loss")
            .series("/subject")
            .series("/parameters/frame")
            .note("By frame length in bytes."),
        by_frame("back-to-back", "Longest burst without loss (RFC 2544 26.4, RFC 9004)", burst),
        by_frame(
            "recovery",
            "System recovery after an overload (RFC 2544 26.5)",
            Axis::new("/sample/recovery_ms", "until the last loss", "ms"),
        ),
        reset("reset", Axis::new("/sample/reset_ms", "lost packets over the rate", "ms")),
        named(reset("reset", Axis::new("/sample/gap_ms", "longest interruption", "ms")), "reset-gap"),
    ]
}

/// Gbit/s of a rate, with the frame check sequence and without preamble and gap.
fn gbps(frame: u16, pps: f64) -> f64 {
    pps * f64::from(frame) * 8.0 / 1e9
}

fn loss_allowed(share: f64) -> String {
    if share == 0.0 { "no loss".into() } else { format!("{} % lost", share * 100.0) }
}

fn is_noisy(trial: &Outcome, pps: u64) -> bool {
    !(trial.is_valid() && trial.is_offered(pps))
}

/// Lines of one frame length.
struct Samples<'a> {
    options: &'a Rfc2544Options,
    result: &'a OfFrame,
}

impl Samples<'_> {
    fn all(&self) -> Vec<Value> {
        let tests = [
            self.throughput(),
            self.latency(),
            self.frame_loss(),
            self.back_to_back(),
            self.recovery(),
            self.reset(),
        ];
        tests.concat()
    }

    fn line(&self, case: &str, repeat: usize, noisy: bool, mut parameters: Value, sample: Value) -> Value {
        parameters["frame"] = self.result.frame.into();
        json!({"record": "sample", "case": case, "subject": self.options.subject, "repeat": repeat,
            "noisy": noisy, "parameters": parameters, "sample": sample})
    }

    fn throughput(&self) -> Vec<Value> {
        let of_loss = |found: &Repeated| {
            let loss = loss_allowed(found.loss);
            let line = |(repeat, search): (usize, &Throughput)| {
                let pps = search.pps.unwrap_or(0);
                let sample =
                    json!({"throughput_pps": pps, "throughput_gbps": gbps(self.result.frame, pps as f64)});
                self.line("throughput", repeat, search.noisy, json!({"loss": loss}), sample)
            };
            found.searches.iter().enumerate().map(line).collect::<Vec<_>>()
        };
        self.result.throughput.iter().flat_map(of_loss).collect()
    }

    fn latency(&self) -> Vec<Value> {
        let of_rate = |(at, found): (&str, &AtRate)| {
            let line = |(repeat, trial): (usize, &Outcome)| {
                let sample = json!({"latency": trial.latency, "loss": trial.loss()});
                let parameters = json!({"at": at, "pps": found.pps});
                self.line("latency", repeat, is_noisy(trial, found.pps), parameters, sample)
            };
            found.trials.iter().enumerate().map(line).collect::<Vec<_>>()
        };
        AT.into_iter().zip(self.result.latency.iter().flatten()).flat_map(of_rate).collect()
    }

    fn frame_loss(&self) -> Vec<Value> {
        let of_rate = |point: &Point| {
            let line = |(repeat, trial): (usize, &Outcome)| {
                let sample = json!({"loss": trial.loss()});
                self.line("frame-loss", repeat, is_noisy(trial, point.pps), json!({"pps": point.pps}), sample)
            };
            point.trials.iter().enumerate().map(line).collect::<Vec<_>>()
        };
        self.result.frame_loss.iter().flatten().flat_map(of_rate).collect()
    }

    fn back_to_back(&self) -> Vec<Value> {
        let of_test = |found: &BackToBack| {
            let line = |(repeat, trials): (usize, &Vec<Outcome>)| {
                let whole = trials.iter().filter(|trial| trial.received == trial.sent);
                let frames = whole.map(|trial| trial.sent).max().unwrap_or(0);
                self.line("back-to-back", repeat, found.noisy, json!({}), json!({"burst_frames": frames}))
            };
            found.trials.iter().enumerate().map(line).collect::<Vec<_>>()
        };
        self.result.back_to_back.iter().flat_map(of_test).collect()
    }

    fn recovery(&self) -> Vec<Value> {
        let of_test = |found: &Recovery| {
            let line = |(repeat, trial): (usize, &Changed)| {
                let noisy = !(trial.before.is_valid() && trial.after.is_valid());
                let lost = |of: &Outcome| of.sent.saturating_sub(of.received);
                let sample = json!({"recovery_ms": trial.last_loss_ns.unwrap_or(0) as f64 / 1e6,
                    "lost_in_overload": lost(&trial.before), "lost_after": lost(&trial.after)});
                let parameters = json!({"overload_pps": found.overload_pps, "relief_pps": found.relief_pps});
                self.line("recovery", repeat, noisy, parameters, sample)
            };
            found.trials.iter().enumerate().map(line).collect::<Vec<_>>()
        };
        self.result.recovery.iter().flat_map(of_test).collect()
    }

    fn reset(&self) -> Vec<Value> {
        let of_test = |found: &ResetTime| {
            let line = |(repeat, trial): (usize, &Outage)| {
                let sample = json!({"reset_ms": trial.lost() as f64 / found.pps as f64 * 1e3,
                    "gap_ms": trial.gap_ns as f64 / 1e6, "lost_packets": trial.lost()});
                let parameters = json!({"event": found.event.name(), "pps": found.pps});
                self.line("reset", repeat, !trial.outcome.is_valid(), parameters, sample)
            };
            found.trials.iter().enumerate().map(line).collect::<Vec<_>>()
        };
        self.result.reset.iter().flat_map(of_test).collect()
    }
}

/// Rates of the latency test, in this order.
const AT: [&str; 2] = ["throughput", "half the throughput"];

/// Prints the tables of all results, in Markdown.
pub(super) fn print(options: &Rfc2544Options, results: &[OfFrame]) {
    println!(
        "\n{}, {} flows, trials of {} s, {} of each: median (range)",
        options.subject, options.flows, options.seconds, options.repeat
    );
    for table in [throughput(results), latency(results), loss(results), edges(results), reset(results)] {
        print!("{table}");
    }
}

/// A table with a title; nothing if there are no rows.
fn table(title: &str, cells: &[&str], rows: Vec<Vec<String>>) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let rows: String = rows.iter().map(|cells| row(cells) + "\n").collect();
    format!("{}\n{rows}", head(title, cells))
}

fn marked(text: String, noisy: bool) -> String {
    if noisy { text + " (noisy)" } else { text }
}

fn throughput(results: &[OfFrame]) -> String {
    let of_frame = |result: &OfFrame| {
        let mut cells = vec![result.frame.to_string()];
        for found in &result.throughput {
            let noisy = found.searches.iter().any(|search| search.noisy);
            let Spread { median, min, max } = found.pps;
            let [median, min, max] = [median, min, max].map(|pps| gbps(result.frame, pps));
            cells.push(marked(show(found.pps, 1e-6, 3), noisy));
            cells.push(show(Spread { median, min, max }, 1.0, 2));
        }
        cells
    };
    let rows = results.iter().filter(|result| !result.throughput.is_empty()).map(of_frame).collect();
    let cells = ["frame, bytes", "Mpps, no loss", "Gbit/s", "Mpps, 0.1 % lost", "Gbit/s"];
    table("Throughput (RFC 2544 26.1)", &cells, rows)
}

fn latency(results: &[OfFrame]) -> String {
    let of_frame = |result: &OfFrame| {
        let frame = result.frame;
        let of_rate = move |(at, found): (&str, &AtRate)| {
            let us = |ns: Spread| show(ns, 1e-3, 1);
            let rate = marked(format!("{:.3} ({at})", found.pps as f64 / 1e6), found.noisy);
            vec![
                frame.to_string(),
                rate,
                us(found.p50_ns),
                us(found.p99_ns),
                us(found.p999_ns),
                us(found.max_ns),
            ]
        };
        AT.into_iter().zip(result.latency.iter().flatten()).map(of_rate).collect::<Vec<_>>()
    };
    let cells = ["frame, bytes", "Mpps", "p50, us", "p99, us", "p99.9, us", "longest, us"];
    table("Latency (26.2)", &cells, results.iter().flat_map(of_frame).collect())
}

fn loss(results: &[OfFrame]) -> String {
    let of_frame = |result: &OfFrame| {
        let frame = result.frame;
        let of_rate = move |point: &Point| {
            let rate = marked(format!("{:.3}", point.pps as f64 / 1e6), point.noisy);
            vec![frame.to_string(), rate, show(point.loss, 100.0, 3)]
        };
        result.frame_loss.iter().flatten().map(of_rate).collect::<Vec<_>>()
    };
    let rows = results.iter().flat_map(of_frame).collect();
    table("Frame loss rate (26.3)", &["frame, bytes", "offered, Mpps", "lost, %"], rows)
}

/// Results beyond the throughput.
fn edges(results: &[OfFrame]) -> String {
    let burst = |found: &BackToBack| {
        let more = if found.at_limit { " or more" } else { "" };
        marked(show(found.frames, 1.0, 0) + more, found.noisy)
    };
    let buffer = |found: &BackToBack| format!("{:.1}", found.corrected_buffer_seconds * 1e6);
    let recovery = |found: &Recovery| {
        let none = if found.overloaded { "" } else { " (nothing was lost before)" };
        let endless = if found.recovered { "" } else { " or more" };
        marked(format!("{}{endless}{none}", show(found.recovery_ns, 1e-6, 1)), found.noisy)
    };
    let of_frame = |result: &OfFrame| {
        let cells = [
            result.back_to_back.as_ref().map(burst),
            result.back_to_back.as_ref().map(buffer),
            result.recovery.as_ref().map(recovery),
        ];
        let found = cells.iter().any(Option::is_some);
        let cells = cells.into_iter().map(|cell| cell.unwrap_or("-".into()));
        found.then(|| [result.frame.to_string()].into_iter().chain(cells).collect())
    };
    let cells = ["frame, bytes", "burst without loss, frames", "buffer, us", "recovery, ms"];
    let title = "Back-to-back frames (26.4, RFC 9004) and recovery (26.5)";
    table(title, &cells, results.iter().filter_map(of_frame).collect())
}

fn reset(results: &[OfFrame]) -> String {
    let of_event = |frame: u16, found: &ResetTime| {
        let event = match found.event {
            Event::Nothing => "nothing, for comparison",
            event => event.name(),
        };
        vec![
            frame.to_string(),
            event.into(),
            marked(format!("{:.3}", found.pps as f64 / 1e6), found.noisy),
            show(found.lost, 1.0, 0),
            show(found.reset_ns, 1e-6, 2),
            show(found.gap_ns, 1e-6, 2),
        ]
    };
    let of_frame =
        |result: &OfFrame| result.reset.iter().map(|found| of_event(result.frame, found)).collect::<Vec<_>>();
    let cells = [
        "frame, bytes",
        "reset",
        "offered, Mpps",
        "lost, packets",
        "lost over rate, ms",
        "longest interruption, ms",
    ];
    let overloaded = results.iter().flat_map(|result| &result.reset).filter_map(too_much).collect::<String>();
    table("Reset (26.6, RFC 6201)", &cells, results.iter().flat_map(of_frame).collect()) + &overloaded
}

/// A note, if so much is lost without a reset that losses say nothing about resets.
fn too_much(found: &ResetTime) -> Option<String> {
    const MUCH: f64 = 0.01;
    let losses: Vec<f64> = found.trials.iter().map(|trial| trial.outcome.loss()).collect();
    let loss = median(&losses);
    (found.event == Event::Nothing && loss > MUCH).then(|| {
        format!(
            "\n{:.3} Mpps is more than the router carries: {:.1} % were lost although nothing was reset; try a lower --reset-pps\n",
            found.pps as f64 / 1e6,
            loss * 100.0
        )
    })
}

#[cfg(test)]
mod tests;
