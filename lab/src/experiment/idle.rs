//! Cost of a daemon that has nothing to do: CPU time, wake-ups and memory while no packet comes and no route changes,
//! with few routes and with the full table.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use clap::{Args, value_parser};
use serde_json::json;

use super::{FullTable, load::Memory, print_head, print_row, show, testbed};
use crate::{
    command::Running,
    cpu::{Activity, Threads},
    figure::{Axis, Figure},
    measure::spread,
    prefixes::Prefixes,
    progress::Progress,
    record::{Output, Recorder},
    subject::{Millrace, Subject},
    sys,
    testbed::Priority,
};

/// Time from ready to idle. Until then the daemon frees what loading took, and old tables after their grace period.
pub(super) const SETTLE: Duration = Duration::from_secs(5);

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct IdleOptions {
    /// Length of each measurement, 0.1 to 600 seconds; periodic work has periods of up to 5 seconds
    #[arg(long, default_value_t = 10.0, value_parser = super::seconds)]
    seconds: f64,
    /// How often each measurement is made, one after another, 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = value_parser!(u16).range(1..=1000))]
    repeat: u16,
    /// Where raw results go; `millrace-lab report` reads them
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    #[command(flatten)]
    pub(super) table: FullTable,
}

pub(super) fn run(options: &IdleOptions, output: &Output) -> Result<()> {
    let mut recorder = output.recorder()?;
    figure_records().iter().try_for_each(|figure| recorder.figure(figure))?;
    let full = options.table.read()?;
    let mut progress = Progress::new(2 * u64::from(options.repeat));
    print_head(
        "The idle daemon",
        &["routes loaded", "CPU, % of a core", "wake-ups a second", "own memory, MB", "BPF maps, MB"],
    );
    for table in [&Prefixes::default(), &full] {
        let found = with_table(options, table, &mut recorder, &mut progress)?;
        let shown = |of: fn(&Idle) -> f64, digits| {
            show(spread(&found.iter().map(of).collect::<Vec<_>>()), 1.0, digits)
        };
        print_row(&[
            (table.v4.len() + table.v6.len()).to_string(),
            shown(|idle| idle.cpu * 100.0, 3),
            shown(|idle| idle.wakeups_per_s, 1),
            shown(|idle| idle.anonymous_mb, 1),
            shown(|idle| idle.map_mb, 1),
        ]);
    }
    Ok(())
}

pub(super) struct Idle {
    /// Share of a core.
    pub cpu: f64,
    /// Wake-ups of all its threads.
    pub wakeups_per_s: f64,
    anonymous_mb: f64,
    map_mb: f64,
}

/// Measures a daemon started on a box that has these routes besides the testbed's own.
fn with_table(
    options: &IdleOptions,
    table: &Prefixes,
    recorder: &mut Recorder,
    progress: &mut Progress,
) -> Result<Vec<Idle>> {
    let mut testbed = testbed(0)?;
    testbed.placing = "policy = \"pack\"".into();
    testbed.set_priority(Priority::Reaction)?;
    testbed.load_routes(table)?;
    let daemon = Millrace::start(&testbed)?;
    sys::sleep(SETTLE)?;
    let routes = table.v4.len() + table.v6.len();
    let mut found = Vec::new();
    for repeat in 0..options.repeat {
        let idle = measure(daemon.pid(), Duration::from_secs_f64(options.seconds))?;
        daemon.programs().iter().try_for_each(Running::check)?;
        recorder.line(&json!({"record": "sample", "case": "idle", "subject": "millrace", "repeat": repeat,
            "parameters": {"routes": routes, "prefixes": table.source}, "seconds": options.seconds,
            "sample": {"cpu": idle.cpu, "wakeups_per_s": idle.wakeups_per_s, "anonymous_mb": idle.anonymous_mb,
                "map_mb": idle.map_mb}}))?;
        let cpu = idle.cpu * 100.0;
        progress.step(&format!(
            "{routes} routes: {cpu:.3} % of a core, {:.1} wake-ups a second",
            idle.wakeups_per_s
        ));
        found.push(idle);
    }
    Ok(found)
}

pub(super) fn measure(pid: u32, length: Duration) -> Result<Idle> {
    let cpu = || sys::process_cpu(pid as i32).context("CPU time of the daemon");
    let (started, cpu_before, threads) = (Instant::now(), cpu()?, threads(pid)?);
    let before = Activity::now(&threads, &[])?;
    sys::sleep(length)?;
    let after = Activity::now(&threads, &[])?;
    let used = cpu()?.saturating_sub(cpu_before);
    let seconds = started.elapsed().as_secs_f64();
    let memory = Memory::of(pid)?;
    Ok(Idle {
        cpu: used.as_secs_f64() / seconds,
        wakeups_per_s: after.rates(before, seconds).wakeups_per_s,
        anonymous_mb: memory.anonymous_bytes / 1e6,
        map_mb: memory.map_bytes / 1e6,
    })
}

fn threads(pid: u32) -> Result<Threads> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task")).context("threads of the daemon")?.flatten();
    Ok(Threads(entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()))
}

fn figure_records() -> [Figure; 3] {
    let of = |name: &str, title: &str, y: Axis| {
        let routes = Axis::new("/parameters/routes", "routes", "");
        Figure::new(name, title, Some(routes), y).only("/case", "idle").series("/subject")
    };
    [
        of("idle-cpu", "CPU of the idle daemon", Axis::new("/sample/cpu", "CPU", "% of a core").times(100.0)),
        of(
            "idle-wakeups",
            "Wake-ups of the idle daemon",
            Axis::new("/sample/wakeups_per_s", "wake-ups", "1/s"),
        ),
        of("idle-memory", "Memory of the idle daemon", Axis::new("/sample/anonymous_mb", "own memory", "MB")),
    ]
}
