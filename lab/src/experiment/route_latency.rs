//! Time from a route change to packets leaving by it. A stream of packets to one address leaves through next hop 1. A
//! host route through next hop 2 is added, and later deleted. The sink notes when the first packet for the other next
//! hop comes. The clock starts just before the request is handed to the kernel.

use std::{net::Ipv4Addr, path::PathBuf, time::Duration};

use anyhow::{Result, ensure};
use clap::{Args, value_parser};
use serde_json::json;

use super::{print_head, print_row, show, testbed};
use crate::{
    addresses::nexthop4,
    figure::{Axis, Figure},
    generator::{Load, Pace},
    measure::spread,
    netlink::{Change, Netlink, Route},
    record::{Output, Recorder},
    sink::Watch,
    subject, sys,
    testbed::{PORT_OUT, Priority, Testbed},
    workload::{Family, Workload},
};

/// Packets come every 5 us, which is the resolution.
const RATE_PPS: u64 = 200_000;
const LIMIT: Duration = Duration::from_secs(5);

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct RouteLatencyOptions {
    /// Subjects, one after another
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = ["linux", "millrace"], default_values = ["linux", "millrace"])]
    pub(super) subjects: Vec<String>,
    /// Routes added and deleted, one after another, 1 to 10000
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = value_parser!(u16).range(1..=10_000))]
    changes: u16,
    /// Where raw results go; `millrace-lab report` reads them
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

pub(super) fn run(options: &RouteLatencyOptions, output: &Output) -> Result<()> {
    let mut recorder = output.recorder()?;
    for (name, what) in [("add", "added"), ("delete", "deleted")] {
        let ms = Axis::new(&format!("/{name}_ms"), "until the first packet on the new way", "ms");
        let title = format!("From a route {what} to its use");
        let figure = Figure::new(&format!("route-{name}"), &title, None, ms);
        recorder.figure(&figure.only("/case", "route-latency").series("/subject"))?;
    }
    let mut testbed = testbed(0)?;
    testbed.set_priority(Priority::Reaction)?;
    let workload = Workload::benchmark(Family::V4, 1, 0..=0);
    let title = format!(
        "From a route change to the first packet on the new way, ms, {} changes each",
        options.changes
    );
    print_head(&title, &["subject", "change", "median (range)"]);
    for name in &options.subjects {
        let subject = match subject::start(name, &testbed) {
            Ok(subject) => subject,
            Err(error) if error.is::<sys::Interrupted>() => return Err(error),
            Err(error) => {
                eprintln!("{name} cannot run here: {error:#}");
                continue;
            }
        };
        testbed.generator.set_targets(workload.targets.clone(), workload.frame_bytes)?;
        testbed.generator.start(Load { frame_bytes: workload.frame_bytes, pace: Pace::Rate(RATE_PPS) })?;
        let times = changes(&testbed, name, options.changes, &mut recorder);
        testbed.generator.stop()?;
        drop(subject);
        let (added, deleted): (Vec<f64>, Vec<f64>) = times?.into_iter().unzip();
        print_row(&[name.clone(), "add".into(), show(spread(&added), 1.0, 3)]);
        print_row(&[name.clone(), "delete".into(), show(spread(&deleted), 1.0, 3)]);
    }
    Ok(())
}

/// Milliseconds that each addition and deletion took.
fn changes(testbed: &Testbed, name: &str, count: u16, recorder: &mut Recorder) -> Result<Vec<(f64, f64)>> {
    let interface = testbed.box_namespace.interface_index(PORT_OUT)?;
    let mut netlink = testbed.box_namespace.enter(Netlink::route)?;
    let route = Route {
        address: Ipv4Addr::new(198, 18, 0, 0).into(),
        length: 32,
        gateway: nexthop4(2).into(),
        interface,
    };
    let mut times = Vec::new();
    for repeat in 0..count {
        let added = time(testbed, 2, || netlink.change_routes(Change::Set, [route]))?;
        let deleted = time(testbed, 1, || netlink.change_routes(Change::Delete, [route]))?;
        recorder
            .line(&json!({"record": "change", "case": "route-latency", "subject": name, "repeat": repeat,
            "add_ms": added, "delete_ms": deleted, "rate_pps": RATE_PPS}))?;
        times.push((added, deleted));
    }
    Ok(times)
}

/// Milliseconds from the beginning of `change` to the first packet through next hop `n`, which was not in use.
fn time(testbed: &Testbed, n: u8, change: impl FnOnce() -> Result<()>) -> Result<f64> {
    sys::sleep(Duration::from_millis(20))?;
    testbed.sink.watch(Watch { next_hops: true, ..Watch::NOTHING })?;
    let start_ns = sys::monotonic_ns();
    change()?;
    while testbed.sink.watched(n)?.packets == 0 {
        let waited = Duration::from_nanos(sys::monotonic_ns() - start_ns);
        ensure!(waited < LIMIT, "no packet through next hop {n} {} s after the change", LIMIT.as_secs());
        sys::sleep(Duration::from_micros(200))?;
    }
    let first_ns = testbed.sink.watched(n)?.first_ns;
    testbed.sink.watch(Watch::NOTHING)?;
    ensure!(first_ns >= start_ns, "next hop {n} was in use before the change");
    Ok((first_ns - start_ns) as f64 / 1e6)
}
