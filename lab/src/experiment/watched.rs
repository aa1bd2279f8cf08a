//! The cost of observation: the same load with and without observers. Scrapers, status readers, captures and route changes
//! run at the same time. They must not cause any additional loss.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, TcpStream},
    os::unix::net::UnixStream,
    path::PathBuf,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};
use clap::{Args, value_parser};
use serde::Serialize;
use serde_json::json;

use super::{print_head, print_row, testbed};
use crate::{
    addresses::nexthop4,
    generator::{Load, Pace},
    measure::{Sample, Window, measure},
    netlink::{Change, Netlink, Route},
    record::Output,
    subject::{Launch, Millrace, Subject},
    testbed::{PORT_OUT, Priority, Testbed},
    workload::{Family, Workload},
};

const METRICS: &str = "127.0.0.1:9111";
/// Pauses between two requests or changes.
const SCRAPE_EVERY: Duration = Duration::from_millis(10);
const STATUS_EVERY: Duration = Duration::from_millis(10);
const CHANGE_EVERY: Duration = Duration::from_millis(10);
/// Routes that are changed each time: added, or deleted.
const CHANGES: u32 = 100;
/// How long a capture runs, and then none.
const CAPTURE: Duration = Duration::from_millis(1000);

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct WatchedOptions {
    /// Seconds with observers, and as many without
    #[arg(long, value_name = "N", default_value_t = 600, value_parser = value_parser!(u32).range(10..=86_400))]
    seconds: u32,
    /// Seconds of each part; parts with and without alternate
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = value_parser!(u32).range(5..=3600))]
    part: u32,
    /// The load, percent of what the router's core can carry
    #[arg(long, value_name = "PERCENT", default_value_t = 80, value_parser = value_parser!(u8).range(1..=100))]
    load: u8,
    /// Where raw results go; `millrace-lab report` reads them
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

pub(super) fn run(options: &WatchedOptions, output: &Output) -> Result<()> {
    let mut recorder = output.recorder()?;
    let mut testbed = testbed(0)?;
    testbed.set_priority(Priority::Forwarding)?;
    testbed.box_namespace.ip_batch("link set lo up\n")?;
    let workload = Workload::benchmark(Family::V4, 500, 0..=0);
    let mut launch = Launch::of(&testbed);
    launch.configuration += &format!("[metrics]\nlisten = \"{METRICS}\"\n");
    let daemon = Millrace::launch(&launch, 1)?;
    testbed.forwarded_by(Vec::new(), daemon.programs());
    testbed.generator.set_targets(workload.targets.clone(), workload.frame_bytes)?;
    let load = |pace| Load { frame_bytes: workload.frame_bytes, pace };
    let capacity = measure(&mut testbed, load(Pace::Saturate), Window::seconds(5.0))?.received_pps;
    let rate = (capacity * f64::from(options.load) / 100.0) as u64;
    recorder
        .line(&json!({"record": "load", "case": "watched", "capacity_pps": capacity, "rate_pps": rate}))?;
    let title = format!("{rate} packets a second, {} % of {capacity:.0}", options.load);
    let names = [
        "",
        "s",
        "packets a second",
        "sent",
        "lost",
        "worst part",
        "scrapes",
        "statuses",
        "route changes",
        "captures",
    ];
    print_head(&title, &names);
    let mut totals = [Total::default(), Total::default()];
    for number in 0..options.seconds.div_ceil(options.part) * 2 {
        let is_watched = number % 2 == 1;
        let looks = is_watched.then(|| Looks::start(&testbed, &daemon)).transpose()?;
        let window = Window::seconds(f64::from(options.part));
        let sample = measure(&mut testbed, load(Pace::Rate(rate)), window)?;
        let seen = looks.map(Looks::end).transpose()?.unwrap_or_default();
        recorder
            .line(&json!({"record": "part", "case": "watched", "watched": is_watched, "number": number,
            "rate_pps": rate, "looks": seen, "sample": sample}))?;
        totals[usize::from(is_watched)].add(&sample, &seen);
    }
    for (name, total) in ["without", "watched"].into_iter().zip(&totals) {
        print_row(&total.row(name));
    }
    Ok(())
}

/// How often each was answered or done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Seen {
    scrapes: u64,
    statuses: u64,
    route_changes: u64,
    captures: u64,
}

#[derive(Debug, Default)]
struct Total {
    seconds: f64,
    sent: u64,
    lost: u64,
    worst: f64,
    seen: Seen,
}

impl Total {
    fn add(&mut self, sample: &Sample, seen: &Seen) {
        self.seconds += sample.seconds;
        self.sent += sample.sent;
        self.lost += sample.sent - sample.received.min(sample.sent);
        self.worst = self.worst.max(sample.loss);
        self.seen.scrapes += seen.scrapes;
        self.seen.statuses += seen.statuses;
        self.seen.route_changes += seen.route_changes;
        self.seen.captures += seen.captures;
    }

    fn row(&self, name: &str) -> [String; 10] {
        let Seen { scrapes, statuses, route_changes, captures } = self.seen;
        [
            name.into(),
            format!("{:.0}", self.seconds),
            // Observers take time from the generator, which then sends less.
            format!("{:.0}", self.sent as f64 / self.seconds),
            self.sent.to_string(),
            format!("{} ({:.4} %)", self.lost, 100.0 * self.lost as f64 / self.sent.max(1) as f64),
            format!("{:.4} %", 100.0 * self.worst),
            scrapes.to_string(),
            statuses.to_string(),
            route_changes.to_string(),
            captures.to_string(),
        ]
    }
}

/// Observers, in threads of their own.
struct Looks {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Result<()>>>,
}

#[derive(Default)]
struct Shared {
    ends: AtomicBool,
    scrapes: AtomicU64,
    statuses: AtomicU64,
    route_changes: AtomicU64,
    captures: AtomicU64,
}

impl Shared {
    /// Does something again and again, each `pause` after the last beginning, until the end. Counts how often.
    fn repeat(
        &self,
        count: &AtomicU64,
        pause: Duration,
        mut once: impl FnMut(u64) -> Result<u64>,
    ) -> Result<()> {
        let mut next = Instant::now();
        for number in 0.. {
            if self.ends.load(Relaxed) {
                break;
            }
            count.fetch_add(once(number)?, Relaxed);
            next = (next + pause).max(Instant::now());
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        Ok(())
    }
}

impl Looks {
    fn start(testbed: &Testbed, daemon: &Millrace) -> Result<Looks> {
        let interface = testbed.box_namespace.interface_index(PORT_OUT)?;
        let socket = format!("/run/millrace-{}.sock", testbed.name);
        let capture = daemon.control(&["capture", "-w", "-"]);
        // A thread begins in the namespace of the thread that starts it.
        testbed.box_namespace.enter(|| {
            let shared = Arc::<Shared>::default();
            let threads = vec![
                spawn(&shared, |shared| {
                    shared.repeat(&shared.scrapes, SCRAPE_EVERY, |_| {
                        answer(&mut TcpStream::connect(METRICS)?, "/metrics")?;
                        Ok(1)
                    })
                }),
                spawn(&shared, move |shared| {
                    shared.repeat(&shared.statuses, STATUS_EVERY, |_| {
                        answer(&mut UnixStream::connect(&socket)?, "/v1/status")?;
                        Ok(1)
                    })
                }),
                spawn(&shared, move |shared| {
                    let mut netlink = Netlink::route()?;
                    shared.repeat(&shared.route_changes, CHANGE_EVERY, |number| {
                        let change = if number % 2 == 0 { Change::Set } else { Change::Delete };
                        netlink.change_routes(change, (0..CHANGES).map(|route| changed(route, interface)))?;
                        Ok(CHANGES.into())
                    })
                }),
                spawn(&shared, move |shared| captures(&shared, capture)),
            ];
            Ok(Looks { shared, threads })
        })
    }

    fn end(self) -> Result<Seen> {
        let Looks { shared, threads } = self;
        shared.ends.store(true, Relaxed);
        for thread in threads {
            thread.join().map_err(|_| anyhow!("a thread that looks has panicked"))??;
        }
        Ok(Seen {
            scrapes: shared.scrapes.load(Relaxed),
            statuses: shared.statuses.load(Relaxed),
            route_changes: shared.route_changes.load(Relaxed),
            captures: shared.captures.load(Relaxed),
        })
    }
}

fn spawn(
    shared: &Arc<Shared>,
    work: impl FnOnce(Arc<Shared>) -> Result<()> + Send + 'static,
) -> JoinHandle<Result<()>> {
    let shared = shared.clone();
    thread::spawn(move || work(shared))
}

/// A route that no packet of the load uses.
fn changed(number: u32, interface: u32) -> Route {
    let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(203, 0, 112, 0)) + number);
    Route { address: address.into(), length: 32, gateway: nexthop4(1).into(), interface }
}

/// Asks for a page, and reads it to its end.
fn answer(stream: &mut (impl Read + Write), path: &str) -> Result<()> {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).with_context(|| format!("reading {path}"))?;
    ensure!(answer.starts_with("HTTP/1.1 200 "), "{path}: {}", answer.lines().next().unwrap_or_default());
    Ok(())
}

/// Captures all packets, and then none, for a time each.
fn captures(shared: &Shared, mut command: Command) -> Result<()> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    shared.repeat(&shared.captures, 2 * CAPTURE, |_| {
        let mut capture = command.spawn().context("starting a capture")?;
        thread::sleep(CAPTURE);
        let ended = capture.try_wait()?;
        capture.kill()?;
        capture.wait()?;
        ensure!(ended.is_none(), "a capture has ended: {ended:?}");
        Ok(1)
    })
}
