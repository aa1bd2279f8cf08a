//! Cost of a packet behind a masquerade and a stateful firewall, by the number of UDP connections: through Linux alone,
//! through Millrace, and through Millrace without rules. The last one shows the price of finding connections.
//!
//! The experiment also measures how long Millrace takes until connections are fast, and until they are fast again after
//! a rule has changed. Last, it measures new connections per second. They stay with Linux: each has only one packet.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Args, value_parser};
use serde_json::{Map, Value, json};

use super::{Sampling, head, row, show, testbed};
use crate::{
    check::check_forwarding,
    compare::{Results, SETTLE, figures, ns, pps},
    figure::{Axis, Figure},
    generator::{Load, Pace},
    masquerade::{
        LOW_PPS, Masquerade, NEARLY_ALL, NO_ANSWERS, Room, begin, counts, fast_share, forget, nft, rules,
        send_to_all, until_fast, until_held,
    },
    measure::{Sample, Window, measure, median, ratios, spread},
    progress::Progress,
    record::{Output, Recorder},
    subject::{Linux, Millrace, Pass, Subject},
    sys,
    testbed::{Priority, Testbed},
    workload::{Family, Workload},
};

/// Millrace's default, and the most connections that are made at a time.
const DEFAULT_CONNECTIONS: u32 = 65_536;
/// The timeout of connections with packets in both directions: longer than it takes to make a million of them.
const LASTS: (&str, &str) = ("net/netfilter/nf_conntrack_udp_timeout_stream", "900");
/// A rule that no packet of the workload meets.
const ANOTHER_RULE: &str = "add rule inet firewall forward udp dport 7 accept";
/// The same at saturation. The daemon then gets little time, and makes hardly any of the remaining connections fast.
const AT_SATURATION: f64 = 0.97;
/// The share of packets that may be lost at saturation, on a noisy machine.
const MOST_LOST: f64 = 0.01;
/// Subjects, and whether there are rules.
const CASES: [(&str, bool); 3] = [("linux", true), ("millrace", true), ("millrace", false)];

/// Subjects for new connections. `pass` is Linux behind an XDP program that does nothing.
const NEW_CASES: [&str; 3] = ["linux", "pass", "millrace"];
/// The new connections, each of one packet. Conntrack holds more by default. They must last for all of [`NEW_FOR`].
const NEW: u32 = 250_000;
const NEW_FOR: Window = Window::new(Duration::from_millis(200), Duration::from_millis(700));

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct FirewallOptions {
    /// Numbers of UDP connections, one after another, 1 to 1048576
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [1, 4096, 60_000],
        value_parser = value_parser!(u32).range(1..=1_048_576))]
    connections: Vec<u32>,
    #[command(flatten)]
    pub(super) sampling: Sampling,
}

/// How long connections take to become fast, in seconds.
struct Delays {
    at_first: f64,
    /// How many connections are fast before the rule changes.
    held: u64,
    /// After a rule has changed.
    again: f64,
}

/// What was measured of a subject.
struct Found {
    sample: Sample,
    /// The share of packets that did not go to Linux; `None`: the subject is Linux.
    fast: Option<f64>,
    delays: Option<Delays>,
}

pub(super) fn run(options: &FirewallOptions, output: &Output) -> Result<()> {
    let mut recorder = output.recorder()?;
    pictures().iter().try_for_each(|figure| recorder.figure(figure))?;
    let mut testbed = testbed(0)?;
    let (sender, _) = testbed.host_ends()[0];
    nft(sender, NO_ANSWERS)?;
    let repeats = options.sampling.repeat;
    let mut summary = Map::new();
    let mut progress = Progress::new((options.connections.len() * CASES.len() * usize::from(repeats)) as u64);
    for &connections in &options.connections {
        let workload = Workload::benchmark(Family::V4, connections, 0..=0);
        let (mut results, mut delays) = (Results::new(), Vec::new());
        for repeat in 0..repeats {
            for (name, ruled) in CASES {
                sys::check_interrupted()?;
                let Found { sample, fast, delays: found } =
                    one(&mut testbed, &workload, options, name, ruled)
                        .with_context(|| format!("{connections} connections, {name}"))?;
                let rules = if ruled { "masquerade" } else { "none" };
                progress.step(&format!(
                    "{connections} connections, {name}, rules: {rules}: {:.3} Mpps, {:.0} ns/packet",
                    sample.received_pps / 1e6,
                    sample.ns_per_packet.unwrap_or(f64::NAN)
                ));
                let parameters = json!({"connections": connections, "rules": rules});
                recorder.line(&json!({"record": "sample", "case": "firewall", "parameters": parameters,
                    "subject": name, "repeat": repeat, "frame_bytes": workload.frame_bytes,
                    "pace": Pace::Saturate, "sample": sample, "fast_share": fast}))?;
                if let Some(found) = &found {
                    record(&mut recorder, connections, repeat, found)?;
                }
                let title = if ruled { name.to_owned() } else { format!("{name}, no rules") };
                results.entry(title).or_insert_with(|| vec![Vec::new()])[0].push(sample);
                delays.extend(found);
            }
        }
        print(&progress, connections, &results, &delays);
        summary.extend(summary_of(connections, &results, &delays));
    }
    let results = new_connections(&mut testbed, repeats, &mut recorder, &progress)?;
    for name in results.keys() {
        let rate = median(&figures(&results, name, 0, pps));
        summary.insert(format!("connections_per_second_{name}"), json!(rate));
    }
    recorder.line(&json!({"record": "summary", "case": "firewall", "medians": summary}))
}

/// The figures that are compared with goals: medians, and the longest delay after a rule change.
fn summary_of(connections: u32, results: &Results, delays: &[Delays]) -> Map<String, Value> {
    let cost = |name| figures(results, name, 0, ns);
    let [linux, millrace, plain] = ["linux", "millrace", "millrace, no rules"].map(cost);
    let at_first: Vec<f64> = delays.iter().map(|delays| delays.at_first).collect();
    let again = delays.iter().map(|delays| delays.again).fold(0.0, f64::max);
    let values = [
        ("linux_ns", median(&linux)),
        ("millrace_ns", median(&millrace)),
        ("plain_ns", median(&plain)),
        ("ratio", ratios(&linux, &millrace).median),
        ("promotion_us_p50", median(&at_first) * 1e6),
        ("rule_change_ms_max", again * 1e3),
    ];
    values.into_iter().map(|(name, value)| (format!("{name}_{connections}"), json!(value))).collect()
}

/// Measures new connections per second, with all rules.
fn new_connections(
    testbed: &mut Testbed,
    repeats: u16,
    recorder: &mut Recorder,
    progress: &Progress,
) -> Result<Results> {
    let workload = Workload::benchmark(Family::V4, NEW, 0..=0);
    let mut results = Results::new();
    for repeat in 0..repeats {
        for name in NEW_CASES {
            sys::check_interrupted()?;
            let _millrace = start(testbed, name, true)?;
            let _pass = (name == "pass").then(|| Pass::start(testbed)).transpose()?;
            testbed.set_priority(Priority::Rates)?;
            testbed.generator.set_targets(workload.targets.clone(), workload.frame_bytes)?;
            let load = Load { frame_bytes: workload.frame_bytes, pace: Pace::Saturate };
            let sample = measure(testbed, load, NEW_FOR)?;
            ensure!(sample.sent < u64::from(NEW), "{} packets used up {NEW} connections", sample.sent);
            recorder.line(&json!({"record": "sample", "case": "firewall-new", "subject": name, "repeat": repeat,
                "parameters": {}, "frame_bytes": workload.frame_bytes, "pace": Pace::Saturate, "sample": sample}))?;
            results.entry(name.to_owned()).or_insert_with(|| vec![Vec::new()])[0].push(sample);
        }
    }
    progress.print(&head("New connections", &["subject", "1000 / s", "ns each", "ns / linux"]));
    for name in results.keys() {
        let (cost, of_linux) = (figures(&results, name, 0, ns), figures(&results, "linux", 0, ns));
        let rate = show(spread(&figures(&results, name, 0, pps)), 1e-3, 1);
        let ratio = show(ratios(&cost, &of_linux), 1.0, 2);
        progress.print(&row(&[name.clone(), rate, show(spread(&cost), 1.0, 0), ratio]));
    }
    forget(testbed)?;
    Ok(results)
}

/// Removes all rules and connections, loads the rules if `ruled`, and starts the daemon if `name` is `millrace`.
fn start(testbed: &mut Testbed, name: &str, ruled: bool) -> Result<Option<Millrace>> {
    // Millrace leaves connections that are older than itself to Linux.
    forget(testbed)?;
    if ruled {
        nft(&testbed.box_namespace, &rules())?;
    }
    // The daemon must not wait behind the generator while it starts.
    testbed.set_priority(Priority::Reaction)?;
    testbed.forwarded_by(Vec::new(), Vec::new());
    let millrace = (name == "millrace").then(|| Millrace::start(testbed)).transpose()?;
    testbed.forwarded_by(Vec::new(), millrace.iter().flat_map(Subject::programs).collect());
    sys::sleep(SETTLE)?;
    Ok(millrace)
}

fn print(progress: &Progress, connections: u32, results: &Results, delays: &[Delays]) {
    let title = format!("{connections} UDP connections behind a masquerade");
    progress.print(&head(&title, &["subject", "Mpps", "ns/packet", "ns / linux"]));
    for name in results.keys() {
        let (cost, of_linux) = (figures(results, name, 0, ns), figures(results, "linux", 0, ns));
        let mpps = show(spread(&figures(results, name, 0, pps)), 1e-6, 3);
        let ratio = show(ratios(&cost, &of_linux), 1.0, 2);
        progress.print(&row(&[name.clone(), mpps, show(spread(&cost), 1.0, 0), ratio]));
    }
    progress.print(&head("Until they are fast, s", &["at first", "after a rule change"]));
    let of = |delay: fn(&Delays) -> f64| show(spread(&delays.iter().map(delay).collect::<Vec<_>>()), 1.0, 2);
    progress.print(&row(&[of(|delays| delays.at_first), of(|delays| delays.again)]));
}

fn record(recorder: &mut Recorder, connections: u32, repeat: u16, delays: &Delays) -> Result<()> {
    for (after, seconds) in [("assured", delays.at_first), ("rule", delays.again)] {
        recorder.line(&json!({"record": "sample", "case": "firewall-delay", "subject": "millrace",
            "repeat": repeat, "parameters": {"connections": connections, "after": after, "offered_pps": LOW_PPS},
            "seconds": seconds, "fast_connections": delays.held, "connections_per_s": f64::from(connections) * NEARLY_ALL / seconds}))?;
    }
    Ok(())
}

/// Starts a subject, makes the connections, checks what arrives, and measures.
fn one(
    testbed: &mut Testbed,
    workload: &Workload,
    options: &FirewallOptions,
    name: &str,
    ruled: bool,
) -> Result<Found> {
    let connections = workload.targets.len() as u32;
    // A router leaves some room for others.
    testbed.connections = (connections + connections / 8).next_power_of_two().max(DEFAULT_CONNECTIONS);
    let millrace = start(testbed, name, ruled)?;
    let _room = Room::make(connections * 2)?;
    testbed.box_namespace.sysctl(&[LASTS])?;
    let mut delays = None;
    if ruled {
        let (mut begun, mut at_first) = (0, 0.0);
        // More would take so long that the first ones time out.
        for part in workload.parts(DEFAULT_CONNECTIONS as usize) {
            begin(testbed, &part, begun)?;
            begun += part.targets.len();
            if let Some(millrace) = &millrace {
                at_first += until_fast(testbed, millrace, |_| Ok(()))?;
            }
            // Connections without packets do not stay fast.
            testbed.generator.set_targets(workload.targets[..begun].to_vec(), workload.frame_bytes)?;
            send_to_all(testbed, begun, workload.frame_bytes, LOW_PPS)?;
        }
        if let Some(millrace) = &millrace {
            let change = |testbed: &Testbed| nft(&testbed.box_namespace, ANOTHER_RULE);
            let held = until_held(millrace, connections)?;
            delays = Some(Delays { at_first, held, again: until_fast(testbed, millrace, change)? });
        }
    }
    testbed.set_priority(Priority::Rates)?;
    let subject = Masquerade { inner: millrace.as_ref().map_or(&Linux, |millrace| millrace), ruled };
    check_forwarding(testbed, &subject, &workload.targets, workload.frame_bytes, |to| workload.next_hop(to))?;
    testbed.generator.set_targets(workload.targets.clone(), workload.frame_bytes)?;
    let before = millrace.as_ref().map(counts).transpose()?;
    let load = Load { frame_bytes: workload.frame_bytes, pace: Pace::Saturate };
    let sample = measure(testbed, load, options.sampling.window())?;
    ensure!(sample.loss <= MOST_LOST, "{:.2} % of the packets were lost", sample.loss * 100.0);
    let fast = match (before, millrace.as_ref()) {
        (Some(before), Some(millrace)) => Some(fast_share(before, counts(millrace)?)),
        _ => None,
    };
    if let Some(share) = fast {
        ensure!(share >= AT_SATURATION, "only {:.2} % of the packets were fast", share * 100.0);
    }
    Ok(Found { sample, fast, delays })
}

fn pictures() -> [Figure; 3] {
    let connections = || Axis::new("/parameters/connections", "UDP connections", "").log();
    let cost = Axis::new("/sample/ns_per_packet", "CPU per packet", "ns");
    let delay = Axis::new("/seconds", "until nearly all packets are fast", "s");
    let rate = Axis::new("/sample/received_pps", "new connections", "1/s");
    [
        Figure::new("firewall-new", "New connections behind a firewall with NAT", None, rate)
            .only("/case", "firewall-new")
            .series("/subject"),
        Figure::new("firewall", "Cost behind a firewall with NAT", Some(connections()), cost)
            .only("/case", "firewall")
            .series("/subject")
            .series("/parameters/rules"),
        Figure::new("firewall-delay", "Until connections are fast", Some(connections()), delay)
            .only("/case", "firewall-delay")
            .series("/parameters/after"),
    ]
}
