//! What applications on the router's core achieve while it forwards (O fig. 2, Q fig. 7): the index of Q9 against the
//! offered load.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Args, value_parser};
use serde_json::{Value, json};

use super::{names, print_head, print_row, show};
use crate::{
    application::{self, Benchmark, Deployment, Score, index},
    check::check_forwarding,
    compare::SETTLE,
    cpu::Spinners,
    generator::{Load, Pace},
    measure::{Window, measure_during, median, spread},
    progress::Progress,
    record::{Output, Recorder},
    subject::{self, Subject},
    sys::{self, Interrupted},
    testbed::Testbed,
    topology::Topology,
    workload::{Family, Workload},
};

const DESTINATIONS: u32 = 4096;

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// What forwards
    #[arg(long, value_delimiter = ',', value_parser = subject::NAMES, default_values = ["linux", "millrace"])]
    subjects: Vec<String>,
    /// Benchmarks and servers; one whose program is not installed is left out
    #[arg(long, value_delimiter = ',', value_parser = application::NAMES, default_values = application::NAMES)]
    workloads: Vec<String>,
    /// Packets per second offered, 0 to 20M; k and M are thousands and millions
    #[arg(long, value_delimiter = ',', value_parser = packets_per_second,
        default_values = ["0", "100k", "250k", "500k", "750k", "1M", "1.5M", "2M", "3M"])]
    loads: Vec<u64>,
    /// Name of a topology or a file that describes one; two ports
    #[arg(long, default_value = "rfc2544")]
    topology: String,
    /// Cores that forward [default: those of the topology]
    #[arg(long, value_delimiter = ',')]
    router_cores: Vec<usize>,
    /// Cores of the applications [default: those of the topology]
    #[arg(long, value_delimiter = ',')]
    cores: Vec<usize>,
    /// Length of each measurement, whole seconds
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u16).range(1..=600))]
    seconds: u16,
    /// How often each is repeated
    #[arg(long, default_value_t = 3, value_parser = value_parser!(u16).range(1..=1000))]
    repeat: u16,
    /// Where raw results go
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

pub(super) fn run(options: &Options, output: &Output) -> Result<()> {
    let mut testbed = Testbed::for_rates(&topology(options)?)?;
    // The generator keeps the clients' core awake; without traffic this does, or clients would be slower then.
    testbed.spinners = Spinners::start(&[testbed.topology.cores.generator])?;
    let steps =
        options.subjects.len() * options.workloads.len() * options.loads.len() * usize::from(options.repeat);
    let mut experiment = Experiment {
        options,
        traffic: Workload::benchmark(Family::V4, DESTINATIONS, 0..=0),
        recorder: output.recorder()?,
        progress: Progress::new(steps as u64),
        unable: Vec::new(),
        points: Vec::new(),
    };
    let benchmarks: Vec<&Benchmark> =
        options.workloads.iter().filter_map(|name| application::by_name(name)).collect();
    for benchmark in &benchmarks {
        figures(benchmark).iter().try_for_each(|line| experiment.recorder.line(line))?;
    }
    let measured = experiment.all(&mut testbed, &benchmarks);
    // What was measured before an error or Ctrl-C is shown too.
    benchmarks.iter().for_each(|benchmark| experiment.print(benchmark));
    measured?;
    ensure!(!experiment.points.is_empty(), "nothing could run");
    Ok(())
}

/// As asked for: case 1 and case 2 of Q fig. 7 differ in who forwards, on the same cores for applications.
fn topology(options: &Options) -> Result<Topology> {
    let topology = Topology::named(&options.topology)?;
    let mut cores = topology.cores.clone();
    if !options.router_cores.is_empty() {
        cores.router.clone_from(&options.router_cores);
    }
    if !options.cores.is_empty() {
        cores.applications.clone_from(&options.cores);
    }
    ensure!(
        !cores.applications.is_empty(),
        "topology {} has no cores for applications: name them with --cores",
        topology.name
    );
    Ok(topology.with_cores(cores))
}

struct Experiment<'a> {
    options: &'a Options,
    traffic: Workload,
    recorder: Recorder,
    progress: Progress,
    /// Subjects and benchmarks that cannot run here.
    unable: Vec<String>,
    points: Vec<Point>,
}

/// What goes into a row of the table.
struct Point {
    subject: String,
    benchmark: &'static str,
    load_pps: u64,
    received_pps: f64,
    index: f64,
    p99_us: Option<f64>,
}

/// A benchmark beside a subject.
struct Case<'a> {
    subject: &'a str,
    repeat: u16,
    benchmark: &'static Benchmark,
    deployment: &'a Deployment,
    without_traffic: Vec<Score>,
}

impl Experiment<'_> {
    /// Alternately, so that what the machine does beside it meets all subjects.
    fn all(&mut self, testbed: &mut Testbed, benchmarks: &[&'static Benchmark]) -> Result<()> {
        for repeat in 0..self.options.repeat {
            for name in names(&self.options.subjects) {
                self.subject(testbed, name, benchmarks, repeat)?;
            }
        }
        Ok(())
    }

    /// One subject, all benchmarks, all loads.
    fn subject(
        &mut self,
        testbed: &mut Testbed,
        name: &str,
        benchmarks: &[&'static Benchmark],
        repeat: u16,
    ) -> Result<()> {
        let Some(subject) = self.if_able(name, || subject::start(name, testbed))? else { return Ok(()) };
        sys::sleep(SETTLE)?;
        self.prepare(testbed, &*subject)?;
        for &benchmark in benchmarks {
            let start = || Deployment::start(benchmark, testbed);
            let Some(deployment) = self.if_able(benchmark.name, start)? else { continue };
            let without_traffic = deployment.run(self.options.seconds)?;
            let case = Case { subject: name, repeat, benchmark, deployment: &deployment, without_traffic };
            for &load_pps in &self.options.loads {
                self.measure(testbed, &case, load_pps)?;
            }
        }
        Ok(())
    }

    /// What `start` starts; nothing, said once, if it cannot.
    fn if_able<T>(&mut self, name: &str, start: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
        if self.unable.iter().any(|unable| unable == name) {
            return Ok(None);
        }
        match start() {
            Ok(started) => Ok(Some(started)),
            Err(error) if error.is::<Interrupted>() => Err(error),
            Err(error) => {
                eprintln!("{name} cannot run here: {error:#}");
                self.unable.push(name.to_owned());
                let line =
                    json!({"record": "skipped", "case": "apps", "what": name, "why": format!("{error:#}")});
                self.recorder.line(&line).map(|()| None)
            }
        }
    }

    fn prepare(&self, testbed: &mut Testbed, subject: &dyn Subject) -> Result<()> {
        let Workload { targets, frame_bytes, .. } = &self.traffic;
        check_forwarding(testbed, subject, targets, *frame_bytes, |address| self.traffic.next_hop(address))?;
        testbed.generator.set_targets(targets.clone(), *frame_bytes)
    }

    fn measure(&mut self, testbed: &mut Testbed, case: &Case<'_>, load_pps: u64) -> Result<()> {
        let run = || case.deployment.run(self.options.seconds);
        let (mut sample, received_pps, scores) = if load_pps == 0 {
            (json!({"offered_pps": 0.0, "received_pps": 0.0}), 0.0, run()?)
        } else {
            let load = Load { frame_bytes: self.traffic.frame_bytes, pace: Pace::Rate(load_pps) };
            let (sample, scores) = measure_during(testbed, load, Window::seconds(1.0).warm_up, run)?;
            (serde_json::to_value(&sample)?, sample.received_pps, scores)
        };
        let Case { subject, repeat, benchmark, without_traffic, .. } = case;
        let cores = &testbed.topology.cores;
        let index = index(&scores, without_traffic);
        let p99_us = scores.iter().filter_map(|score| score.p99_us).reduce(f64::max);
        sample["application"] = json!({"index": index, "p99_us": p99_us, "unit": benchmark.unit,
            "scores": scores, "without_traffic": without_traffic});
        self.recorder.line(&json!({"record": "sample", "case": "apps",
            "parameters": {"workload": benchmark.name, "load_pps": load_pps,
                "topology": testbed.topology.name, "router_cores": cores.router,
                "cores": cores.applications},
            "subject": subject, "repeat": repeat, "frame_bytes": self.traffic.frame_bytes,
            "targets": self.traffic.targets.len(), "pace": Pace::Rate(load_pps), "sample": sample}))?;
        let index = index.unwrap_or(f64::NAN);
        self.progress.step(&format!(
            "{} beside {subject} #{} at {:.3} Mpps: index {index:.3}",
            benchmark.name,
            repeat + 1,
            load_pps as f64 / 1e6
        ));
        let (subject, benchmark) = (subject.to_string(), benchmark.name);
        self.points.push(Point { subject, benchmark, load_pps, received_pps, index, p99_us });
        Ok(())
    }

    fn print(&self, benchmark: &Benchmark) {
        let points: Vec<&Point> =
            self.points.iter().filter(|point| point.benchmark == benchmark.name).collect();
        if points.is_empty() {
            return;
        }
        let title = format!("{}: index (forwarded Mpps; 99 % of answers within)", benchmark.name);
        print_head(&title, &[&["kpps offered"][..], &names(&self.options.subjects)].concat());
        for load_pps in &self.options.loads {
            let cell = |name: &String| {
                let of: Vec<&&Point> = points
                    .iter()
                    .filter(|point| point.subject == *name && point.load_pps == *load_pps)
                    .collect();
                cell(&of)
            };
            let head = format!("{:.0}", *load_pps as f64 / 1e3);
            print_row(&[vec![head], self.options.subjects.iter().map(cell).collect()].concat());
        }
    }
}

fn cell(points: &[&&Point]) -> String {
    let all = |figure: fn(&Point) -> f64| -> Vec<f64> { points.iter().map(|point| figure(point)).collect() };
    if points.is_empty() {
        return "-".into();
    }
    let answers = median(&all(|point| point.p99_us.unwrap_or(f64::NAN)));
    let answers = if answers.is_nan() { String::new() } else { format!("; {:.2} ms", answers / 1e3) };
    let mpps = median(&all(|point| point.received_pps)) / 1e6;
    format!("{} ({mpps:.3}{answers})", show(spread(&all(|point| point.index)), 1.0, 3))
}

/// What is to be drawn, with what was published.
fn figures(benchmark: &Benchmark) -> Vec<Value> {
    let figure = |kind: &str, y: Value| {
        json!({"record": "figure", "name": format!("apps-{}-{kind}", benchmark.name),
            "title": format!("{}, {kind} against offered load", benchmark.name),
            "where": {"/case": "apps", "/parameters/workload": benchmark.name}, "series": ["/subject"],
            "x": {"at": "/sample/offered_pps", "label": "offered", "unit": "packets/s", "factor": 1,
                "scale": "linear"}, "y": y})
    };
    let mut lines = vec![figure(
        "index",
        json!({"at": "/sample/application/index", "label": "application index", "unit": "", "factor": 1,
            "scale": "linear"}),
    )];
    if benchmark.answers() {
        let y = json!({"at": "/sample/application/p99_us", "label": "99 % of answers within", "unit": "us",
            "factor": 1, "scale": "log"});
        lines.push(figure("p99", y));
    }
    if benchmark.name == "integer" {
        let published = |series, index| {
            json!({"record": "published", "figure": "apps-integer-index", "series": series,
                "paper": "O, fig. 2", "points": [[550_000, index]],
                "note": "nbench's integer index, at the saturation of the standard router; hardware of 2011"})
        };
        lines.extend([published("standard", 0.01), published("offloaded", 0.14)]);
    }
    lines
}

fn packets_per_second(text: &str) -> Result<u64, String> {
    const MOST: f64 = 20e6;
    let (digits, factor) = match text.strip_suffix(['k', 'M']) {
        Some(digits) => (digits, if text.ends_with('k') { 1e3 } else { 1e6 }),
        None => (text, 1.0),
    };
    let pps = digits.parse::<f64>().map_err(|_| "not a number, which may end in k or M")? * factor;
    if (0.0..=MOST).contains(&pps) { Ok(pps as u64) } else { Err("0 to 20M".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_read_as_people_write_them() {
        let read = |text| packets_per_second(text).ok();
        assert_eq!(
            ["0", "750", "100k", "1.5M", "20M"].map(read),
            [0, 750, 100_000, 1_500_000, 20_000_000].map(Some)
        );
        assert_eq!(["", "k", "-1", "21M", "1G", "nan"].map(read), [None; 6]);
    }

    #[test]
    fn a_figure_finds_its_samples() {
        for benchmark in &application::BENCHMARKS {
            let lines = figures(benchmark);
            assert_eq!(lines[0]["where"]["/parameters/workload"], benchmark.name);
            assert_eq!(lines.iter().any(|line| line["y"]["unit"] == "us"), benchmark.name == "nginx");
        }
    }
}
