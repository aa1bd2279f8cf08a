//! The full table: the time until Linux has it, until a daemon started on it is ready, and until a running daemon has
//! followed. Also the memory that it takes.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::json;

use super::{FullTable, print_head, print_row, testbed};
use crate::{
    addresses::nexthop_mac,
    figure::{Axis, Figure},
    prefixes::Prefixes,
    record::Output,
    subject::Millrace,
    sys,
    testbed::{PORT_OUT, Priority, Testbed},
    workload::{Family, Workload},
};

const LIMIT: Duration = Duration::from_secs(60);

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct LoadOptions {
    /// Where raw results go; `millrace-lab report` reads them
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    #[command(flatten)]
    pub(super) table: FullTable,
}

pub(super) fn run(options: &LoadOptions, output: &Output) -> Result<()> {
    let mut recorder = output.recorder()?;
    let full = options.table.read()?;
    let routes = full.v4.len() + full.v6.len();
    let title = format!("Loading {} IPv4 and {} IPv6 routes", full.v4.len(), full.v6.len());
    print_head(&title, &["what", "value"]);
    for (name, title, label, unit) in [
        ("load-time", "Loading the full table", "time", "s"),
        ("load-memory", "Memory", "memory", "MB"),
        ("load-route", "Memory of a route", "memory", "bytes"),
    ] {
        let figure = Figure::new(name, title, None, Axis::new("/value", label, unit));
        recorder.figure(&figure.only("/record", "load").only("/unit", unit).series("/what"))?;
    }
    let mut note = |what: &str, value: f64, unit: &str| {
        print_row(&[what.into(), format!("{value:.2} {unit}")]);
        recorder.line(&json!({"record": "load", "what": what, "value": value, "unit": unit, "routes": routes,
            "prefixes": full.source}))
    };

    let mut testbed = testbed(0)?;
    testbed.set_priority(Priority::Reaction)?;
    let started = Instant::now();
    testbed.load_routes(&full)?;
    note("kernel alone, by netlink", started.elapsed().as_secs_f64(), "s")?;
    let daemon = Millrace::start(&testbed)?;
    note("millrace started on the full table, until ready", daemon.ready_after.as_secs_f64(), "s")?;
    let loaded = Memory::of(daemon.pid())?;
    drop(daemon);
    drop(testbed);

    let mut testbed = super::testbed(0)?;
    testbed.set_priority(Priority::Reaction)?;
    let daemon = Millrace::start(&testbed)?;
    let empty = Memory::of(daemon.pid())?;
    let (kernel_s, all_s) = load_while_running(&mut testbed, &full)?;
    note("millrace running: kernel has the routes", kernel_s, "s")?;
    note("millrace running: the fast path forwards by the last route", all_s, "s")?;
    for (what, memory) in [("with few routes", &empty), ("with the full table", &loaded)] {
        note(&format!("daemon's own memory {what}"), memory.anonymous_bytes / 1e6, "MB")?;
        note(&format!("BPF maps {what}"), memory.map_bytes / 1e6, "MB")?;
    }
    let grown = loaded.anonymous_bytes - empty.anonymous_bytes;
    note("daemon's own memory per route", grown / routes as f64, "bytes")?;
    note("BPF maps per route of the full table", loaded.map_bytes / routes as f64, "bytes")
}

/// Seconds until the kernel has all routes, and until a packet by the very last route leaves correctly. A fallback
/// cannot fake this: without its own route the packet would leave by a default route through another next hop.
fn load_while_running(testbed: &mut Testbed, full: &Prefixes) -> Result<(f64, f64)> {
    let nexthops = testbed.next_hops()?;
    let last = full.v4.len().checked_sub(1).context("the full table has no IPv4 routes")?;
    let probe = Prefixes { v4: vec![full.v4[last]], ..Prefixes::default() };
    let mut workload = Workload::inside(&probe, Family::V4, 1, nexthops);
    let IpAddr::V4(address) = workload.targets[0].destination else { unreachable!("IPv4 was asked for") };
    let covering = full.v4.iter().enumerate().filter(|(_, prefix)| prefix.contains(address.to_bits()));
    let (index, _) =
        covering.max_by_key(|(_, prefix)| prefix.length()).context("no route covers the probe")?;
    let right = 1 + (index % usize::from(nexthops)) as u8;
    let wrong = 1 + right % nexthops;
    ensure!(right != wrong, "this needs two next hops");
    let gateway = crate::addresses::nexthop4(wrong);
    testbed.box_namespace.ip_batch(&format!("route add default via {gateway} dev {PORT_OUT}\n"))?;

    testbed.generator.set_targets(std::mem::take(&mut workload.targets), workload.frame_bytes)?;
    let started = Instant::now();
    testbed.load_routes(full)?;
    let kernel_s = started.elapsed().as_secs_f64();
    loop {
        let (generator, frame_bytes) = (&mut testbed.generator, workload.frame_bytes);
        let frames = testbed.sink.capture(1, || generator.send(frame_bytes, 1))?;
        if frames.first().is_some_and(|frame| frame.starts_with(&nexthop_mac(right))) {
            return Ok((kernel_s, started.elapsed().as_secs_f64()));
        }
        ensure!(
            started.elapsed() < LIMIT,
            "the last route is not used {} s after the first",
            LIMIT.as_secs()
        );
        sys::sleep(Duration::from_millis(2))?;
    }
}

/// Memory of a daemon.
pub(super) struct Memory {
    /// Anonymous resident memory of the process.
    pub(super) anonymous_bytes: f64,
    /// Memory that the kernel charges for the maps that it holds open.
    pub(super) map_bytes: f64,
}

impl Memory {
    pub(super) fn of(pid: u32) -> Result<Self> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).context("the daemon's memory")?;
        let anonymous_kb = field(&status, "RssAnon:").context("no RssAnon in /proc/PID/status")?;
        // Several descriptors may be of one map.
        let mut maps = BTreeMap::new();
        for entry in std::fs::read_dir(format!("/proc/{pid}/fdinfo"))?.flatten() {
            let info = std::fs::read_to_string(entry.path()).unwrap_or_default();
            if let (Some(id), Some(bytes)) = (field(&info, "map_id:"), field(&info, "memlock:")) {
                maps.insert(id as u64, bytes);
            }
        }
        Ok(Self { anonymous_bytes: anonymous_kb * 1024.0, map_bytes: maps.values().sum() })
    }
}

fn field(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
}
