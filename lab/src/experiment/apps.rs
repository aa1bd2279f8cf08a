//! Scores of applications on the router's core while it forwards (O fig. 2, Q fig. 7): the index of Q9 against the
//! offered load.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Args, builder::PossibleValuesParser, value_parser};
use serde_json::json;

use super::{packets_per_second, print_head, print_row, show};
use crate::{
    application::{self, Benchmark, Deployment, Score, index},
    check::check_forwarding,
    compare::SETTLE,
    cpu::Spinners,
    figure::{self, Axis, Bound, Figure, Published},
    generator::{Load, Pace},
    measure::{Window, measure_during, median, spread},
    progress::Progress,
    record::{Output, Recorder},
    subject::{self, Subject},
    sys::{self, Interrupted},
    testbed::{Priority, Testbed},
    topology::Topology,
    workload::{Family, Workload},
};

const DESTINATIONS: u32 = 4096;

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct AppsOptions {
    /// Subjects that forward, alternately; `all` means every one (lab/README.md describes them)
    #[arg(long, value_name = "LIST", value_delimiter = ',',
        value_parser = PossibleValuesParser::new(subject::choices()), default_values = ["linux", "millrace"])]
    pub(crate) subjects: Vec<String>,
    /// Benchmarks and servers; one whose program is not installed is left out
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = application::NAMES,
        default_values = application::NAMES)]
    pub(crate) workloads: Vec<String>,
    /// Packets per second offered, one load after another, 0 to 20M; k and M are thousands and millions
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = packets_per_second,
        default_values = ["0", "100k", "250k", "500k", "750k", "1M", "1.5M", "2M", "3M"])]
    pub(crate) rates: Vec<u64>,
    /// Name of a topology, or a file that describes one; it needs two ports
    #[arg(long, default_value = "rfc2544")]
    pub(crate) topology: String,
    /// Cores that forward [default: those of the topology]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) router_cores: Vec<usize>,
    /// Cores of the applications [default: those of the topology]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) cores: Vec<usize>,
    /// Part of the router's core that Millrace leaves to applications, 5 to 95 percent. Threads that forward are then
    /// normal threads, for all subjects [default: they go before applications, as softirqs do]
    #[arg(long, value_name = "PERCENT", value_parser = value_parser!(u8).range(5..=95))]
    pub(crate) floor: Option<u8>,
    /// Length of each measurement, 1 to 600 whole seconds
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u16).range(1..=600))]
    pub(crate) seconds: u16,
    /// How often each measurement is made, 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = value_parser!(u16).range(1..=1000))]
    pub(crate) repeat: u16,
    /// Where raw results go; `millrace-lab report` reads them
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

pub(super) fn run(options: &AppsOptions, output: &Output) -> Result<()> {
    let mut recorder = output.recorder()?;
    let benchmarks = benchmarks(options);
    for benchmark in &benchmarks {
        figures(benchmark).iter().try_for_each(|figure| recorder.figure(figure))?;
    }
    if benchmarks.iter().any(|benchmark| benchmark.name == "integer") {
        published().iter().try_for_each(|published| recorder.published(published))?;
    }
    measure(options, "apps", &mut recorder)
}

/// Makes all measurements, records them as this case, and prints a table of each benchmark.
pub(crate) fn measure(options: &AppsOptions, case: &str, recorder: &mut Recorder) -> Result<()> {
    let workload = Workload::benchmark(Family::V4, DESTINATIONS, 0..=0);
    measure_beside(options, &topology(options)?, &[Traffic { name: None, workload }], case, recorder)
}

/// The same in this topology, with each kind of traffic at each load.
pub(crate) fn measure_beside(
    options: &AppsOptions,
    topology: &Topology,
    traffic: &[Traffic],
    case: &str,
    recorder: &mut Recorder,
) -> Result<()> {
    let mut testbed = Testbed::for_rates(topology)?;
    if let Some(floor) = options.floor {
        testbed.set_priority(Priority::Reaction)?;
        testbed.placing = format!("policy = \"fixed\"\nfloor = {floor}");
    }
    let steps = subject::named(&options.subjects).len()
        * options.workloads.len()
        * options.rates.len()
        * traffic.len()
        * usize::from(options.repeat);
    let mut experiment = Experiment {
        options,
        name: case,
        traffic,
        recorder,
        progress: Progress::new(steps as u64),
        unable: Vec::new(),
        points: Vec::new(),
    };
    let benchmarks = benchmarks(options);
    let measured = experiment.all(&mut testbed, &benchmarks);
    // Also show what was measured before an error or Ctrl-C.
    benchmarks.iter().for_each(|benchmark| experiment.print(benchmark));
    measured?;
    ensure!(!experiment.points.is_empty(), "nothing could run");
    Ok(())
}

/// Keeps the clients' core awake without traffic; otherwise clients would be slower then. With traffic the generator
/// keeps it awake. This does not run beside the generator: the kernel would reserve it 50 ms of each second, and stop
/// generator and clients meanwhile.
fn keep_awake(testbed: &Testbed) -> Result<Spinners> {
    Spinners::start(&[testbed.topology.cores.generator])
}

fn benchmarks(options: &AppsOptions) -> Vec<&'static Benchmark> {
    options.workloads.iter().filter_map(|name| application::by_name(name)).collect()
}

/// The topology that was asked for.
fn topology(options: &AppsOptions) -> Result<Topology> {
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

/// Traffic that passes.
pub(crate) struct Traffic {
    /// For the record (`forwarding`), where there are several.
    pub(crate) name: Option<&'static str>,
    pub(crate) workload: Workload,
}

struct Experiment<'a> {
    options: &'a AppsOptions,
    /// Name in the record.
    name: &'a str,
    traffic: &'a [Traffic],
    recorder: &'a mut Recorder,
    progress: Progress,
    /// Subjects and benchmarks that cannot run here.
    unable: Vec<String>,
    points: Vec<Point>,
}

/// A row of the table.
struct Point {
    series: String,
    benchmark: &'static str,
    load_pps: u64,
    received_pps: f64,
    index: f64,
    errors: u64,
    p99_us: Option<f64>,
}

/// A benchmark, and its scores alone.
type Alone = (&'static Benchmark, Vec<Score>);

/// A benchmark beside a subject.
struct Case<'a> {
    subject: &'a dyn Subject,
    repeat: u16,
    benchmark: &'static Benchmark,
    deployment: &'a Deployment,
    without_traffic: &'a [Score],
}

impl Experiment<'_> {
    /// Measures alternately, so that other work of the machine affects all subjects.
    fn all(&mut self, testbed: &mut Testbed, benchmarks: &[&'static Benchmark]) -> Result<()> {
        for repeat in 0..self.options.repeat {
            let alone = self.alone(testbed, benchmarks)?;
            for name in subject::named(&self.options.subjects) {
                self.subject(testbed, name, &alone, repeat)?;
            }
        }
        Ok(())
    }

    /// Measures each benchmark with nothing else on its core, and without a subject: a subject that polls takes its
    /// share even without traffic.
    fn alone(&mut self, testbed: &Testbed, benchmarks: &[&'static Benchmark]) -> Result<Vec<Alone>> {
        let mut alone = Vec::new();
        for &benchmark in benchmarks {
            let start = || Deployment::start(benchmark, testbed);
            if let Some(deployment) = self.if_able(benchmark.name, start)? {
                let _awake = keep_awake(testbed)?;
                alone.push((benchmark, deployment.run(self.options.seconds)?));
            }
        }
        Ok(alone)
    }

    /// Measures one subject with all benchmarks and all loads.
    fn subject(
        &mut self,
        testbed: &mut Testbed,
        name: &str,
        benchmarks: &[Alone],
        repeat: u16,
    ) -> Result<()> {
        let Some(subject) = self.if_able(name, || subject::start(name, testbed))? else { return Ok(()) };
        sys::sleep(SETTLE)?;
        for traffic in self.traffic {
            let Workload { targets, frame_bytes, .. } = &traffic.workload;
            let next_hop = |address| traffic.workload.next_hop(address);
            check_forwarding(testbed, &*subject, &subject.addressed(targets), *frame_bytes, next_hop)?;
        }
        // A subject's own threads are pinned, and go before applications, from the first benchmark on.
        testbed.router_threads()?;
        for (benchmark, without_traffic) in benchmarks {
            let deployment = Deployment::start(benchmark, testbed)?;
            let subject = &*subject;
            let case = Case { subject, repeat, benchmark, deployment: &deployment, without_traffic };
            for &load_pps in &self.options.rates {
                self.traffic
                    .iter()
                    .try_for_each(|traffic| self.measure(testbed, &case, traffic, load_pps))?;
            }
        }
        Ok(())
    }

    /// Returns what `start` starts. If it cannot run, reports this once and returns `None`.
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
                let line = json!({"record": "skipped", "case": self.name, "subject": name, "why": format!("{error:#}")});
                self.recorder.line(&line).map(|()| None)
            }
        }
    }

    fn measure(
        &mut self,
        testbed: &mut Testbed,
        case: &Case<'_>,
        traffic: &Traffic,
        load_pps: u64,
    ) -> Result<()> {
        let Case { subject, repeat, benchmark, without_traffic, .. } = case;
        let Workload { targets, frame_bytes, .. } = &traffic.workload;
        let run = || case.deployment.run(self.options.seconds);
        let (mut sample, received_pps, scores) = if load_pps == 0 {
            let _awake = keep_awake(testbed)?;
            (json!({"offered_pps": 0.0, "received_pps": 0.0}), 0.0, run()?)
        } else {
            let load = Load { frame_bytes: *frame_bytes, pace: Pace::Rate(load_pps) };
            testbed.generator.set_targets(subject.addressed(targets), *frame_bytes)?;
            let (sample, scores) = measure_during(testbed, load, Window::seconds(1.0).warm_up, run)?;
            (serde_json::to_value(&sample)?, sample.received_pps, scores)
        };
        let cores = &testbed.topology.cores;
        let index = index(&scores, without_traffic);
        let p99_us = scores.iter().filter_map(|score| score.p99_us).reduce(f64::max);
        let errors: u64 = scores.iter().map(|score| score.errors).sum();
        sample["application"] = json!({"index": index, "errors": errors, "p99_us": p99_us, "unit": benchmark.unit,
            "scores": scores, "without_traffic": without_traffic});
        let mut parameters = json!({"workload": benchmark.name, "load_pps": load_pps,
            "floor_percent": self.options.floor, "topology": testbed.topology.name, "router_cores": cores.router, "cores": cores.applications});
        if let Some(name) = traffic.name {
            parameters["forwarding"] = name.into();
        }
        self.recorder.line(&json!({"record": "sample", "case": self.name, "parameters": parameters,
            "subject": subject.name(), "repeat": repeat, "frame_bytes": frame_bytes,
            "targets": targets.len(), "pace": Pace::Rate(load_pps), "sample": sample}))?;
        let index = index.unwrap_or(f64::NAN);
        let series = traffic.series(subject.name());
        self.progress.step(&format!(
            "{} beside {series} #{} at {:.3} Mpps: index {index:.3}{}",
            benchmark.name,
            repeat + 1,
            load_pps as f64 / 1e6,
            told(errors)
        ));
        let benchmark = benchmark.name;
        self.points.push(Point { series, benchmark, load_pps, received_pps, index, errors, p99_us });
        Ok(())
    }

    fn print(&self, benchmark: &Benchmark) {
        let points: Vec<&Point> =
            self.points.iter().filter(|point| point.benchmark == benchmark.name).collect();
        if points.is_empty() {
            return;
        }
        let title = format!("{}: index (forwarded Mpps; 99 % of answers within)", benchmark.name);
        let subjects = subject::named(&self.options.subjects);
        let of_all = |name| self.traffic.iter().map(move |traffic| traffic.series(name));
        let series: Vec<String> = subjects.into_iter().flat_map(of_all).collect();
        let head = ["Mpps offered"].into_iter().chain(series.iter().map(String::as_str));
        print_head(&title, &head.collect::<Vec<_>>());
        for load_pps in &self.options.rates {
            let cell = |name: &String| {
                let of: Vec<&&Point> = points
                    .iter()
                    .filter(|point| point.series == *name && point.load_pps == *load_pps)
                    .collect();
                cell(&of)
            };
            let head = format!("{:.2}", *load_pps as f64 / 1e6);
            print_row(&[vec![head], series.iter().map(cell).collect()].concat());
        }
    }
}

impl Traffic {
    /// Name of a subject with this traffic in the report.
    fn series(&self, subject: &str) -> String {
        self.name.map_or(subject.to_owned(), |name| format!("{subject}, {name}"))
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
    let errors = told(points.iter().map(|point| point.errors).sum());
    format!("{} ({mpps:.3}{answers}{errors})", show(spread(&all(|point| point.index)), 1.0, 3))
}

/// Errors, if there are any.
fn told(errors: u64) -> String {
    if errors == 0 { String::new() } else { format!("; {errors} errors") }
}

/// Figures to draw.
fn figures(benchmark: &Benchmark) -> Vec<Figure> {
    let figure = |kind: &str, y: Axis| {
        let name = format!("apps-{}-{kind}", benchmark.name);
        let title = format!("{}, {kind} against offered load", benchmark.name);
        let offered = Axis::new("/sample/offered_pps", "offered", "Mpps").times(1e-6).by("/pace");
        Figure::new(&name, &title, Some(offered), y)
            .only("/case", "apps")
            .only("/parameters/workload", benchmark.name)
            .series("/subject")
    };
    let index = figure("index", Axis::new("/sample/application/index", "application index", ""));
    let answers = Axis::new("/sample/application/p99_us", "99 % of answers within", "ms").times(1e-3).log();
    let p99 = benchmark.answers().then(|| figure("p99", answers));
    [index].into_iter().chain(p99).collect()
}

/// O fig. 2, beside the integer index.
fn published() -> [Published; 2] {
    [("standard", 0.01, "linux"), ("offloaded", 0.14, "millrace")].map(|(series, index, ours)| Published {
        figure: "apps-integer-index".into(),
        series: series.into(),
        paper: "O, fig. 2".into(),
        beside: vec![ours.into()],
        unit: String::new(),
        points: vec![figure::Point {
            x: Some(json!(0.55)),
            y: index,
            bound: Bound::Exact,
            note: String::new(),
        }],
        note: "nbench's integer index, at the saturation of the standard router; hardware of 2011".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_finds_its_samples() {
        for benchmark in &application::BENCHMARKS {
            let figures = figures(benchmark);
            assert_eq!(figures[0].only["/parameters/workload"], benchmark.name);
            assert_eq!(figures.iter().any(|figure| figure.y.unit == "ms"), benchmark.name == "nginx");
        }
        let integer = application::by_name("integer").unwrap();
        let names: Vec<String> = figures(integer).into_iter().map(|figure| figure.name).collect();
        assert!(published().iter().all(|published| names.contains(&published.figure)));
    }
}
