//! Cost of a packet behind a masquerade and a stateful firewall, by the number of UDP connections, through Linux alone and
//! through Millrace; and through Millrace without rules, which shows the price of finding connections. Besides: how long
//! Millrace takes until connections are fast, and until they are fast again after a rule has changed.
//!
//! ```text
//!  waves       a packet of each connection, and an answer to it from the sink's side, until all are assured: Linux calls
//!              a UDP connection so if it has packets of both directions, also 2 s after the first one
//!  low rate    until connections are fast; a rule changes; until they are fast again
//!  saturation  the measurement
//! ```

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, value_parser};
use serde_json::{Value, json};

use super::{Sampling, head, row, show, testbed};
use crate::{
    addresses::{egress_mac, egress4, nexthop_mac},
    check::check_forwarding,
    command,
    compare::{Results, SETTLE, figures, ns, pps},
    figure::{Axis, Figure},
    generator::{Load, Pace, PacketSocket},
    measure::{Sample, measure, ratios, spread},
    packet::{self, Stamp},
    progress::Progress,
    record::{Output, Recorder},
    subject::{Linux, Millrace, Rewrite, Subject},
    sys,
    testbed::{Priority, Testbed},
    workload::{Family, Workload},
};

const RULES: &str = "
    table inet firewall {
        chain forward {
            type filter hook forward priority 0; policy drop;
            ct state established,related accept
            ct state invalid drop
            iifname eth1 accept
        }
    }
    table ip nat {
        chain postrouting { type nat hook postrouting priority 100; oifname eth2 masquerade; }
    }";
/// A rule that no packet of the workload meets.
const ANOTHER_RULE: &str = "add rule inet firewall forward udp dport 7 accept";
/// The sender's own stack would answer each answer with an ICMP error.
const NO_ANSWERS: &str = "
    table ip answers {
        chain input { type filter hook input priority 0; policy drop; }
    }";

/// Packets a second, which Linux carries without loss.
const LOW_PPS: u64 = 200_000;
const ASSURED_AFTER: Duration = Duration::from_millis(2200);
/// Two are needed. A busy machine loses packets.
const MOST_WAVES: u32 = 10;
/// How often Millrace is asked how many packets were fast since the last time, unless connections take longer to send one
/// packet each.
const LOOK: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(90);
/// The share of packets from which on connections count as fast.
const NEARLY_ALL: f64 = 0.99;
/// The same at saturation. The daemon then gets little time, and makes hardly any of the remaining connections fast.
const AT_SATURATION: f64 = 0.97;
/// The share of packets that may be lost at saturation, on a noisy machine.
const MOST_LOST: f64 = 0.01;
/// Subjects, and whether there are rules.
const CASES: [(&str, bool); 3] = [("linux", true), ("millrace", true), ("millrace", false)];

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct FirewallOptions {
    /// Numbers of UDP connections, one after another, 1 to 65536
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [1, 4096, 60_000],
        value_parser = value_parser!(u32).range(1..=65_536))]
    connections: Vec<u32>,
    #[command(flatten)]
    pub(super) sampling: Sampling,
}

/// Seconds until connections are fast.
struct Delays {
    at_first: f64,
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
    nft(sender.command("nft"), NO_ANSWERS)?;
    let repeats = options.sampling.repeat;
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
    }
    Ok(())
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
            "seconds": seconds, "connections_per_s": f64::from(connections) * NEARLY_ALL / seconds}))?;
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
    nft(testbed.box_namespace.command("nft"), "flush ruleset")?;
    // Millrace leaves connections that are older than itself to Linux.
    command::run(testbed.box_namespace.command("conntrack").arg("-F"))?;
    if ruled {
        nft(testbed.box_namespace.command("nft"), RULES)?;
    }
    // These must not wait behind the generator while they get ready.
    testbed.set_priority(Priority::Reaction)?;
    testbed.forwarded_by(Vec::new(), Vec::new());
    let millrace = (name == "millrace").then(|| Millrace::start(testbed)).transpose()?;
    testbed.forwarded_by(Vec::new(), millrace.iter().flat_map(Subject::programs).collect());
    sys::sleep(SETTLE)?;
    let mut delays = None;
    if ruled {
        begin(testbed, workload)?;
        if let Some(millrace) = &millrace {
            let at_first = until_fast(testbed, millrace, |_| Ok(()))?;
            let change = |testbed: &Testbed| nft(testbed.box_namespace.command("nft"), ANOTHER_RULE);
            delays = Some(Delays { at_first, again: until_fast(testbed, millrace, change)? });
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

/// Makes connections that Linux calls assured.
fn begin(testbed: &mut Testbed, workload: &Workload) -> Result<()> {
    testbed.set_priority(Priority::Rates)?;
    testbed.generator.set_targets(workload.targets.clone(), workload.frame_bytes)?;
    let answers = workload.targets.iter().map(|target| {
        let frame = target.forwarded(nexthop_mac(1), egress_mac(0), workload.frame_bytes, Stamp::default());
        packet::answer(packet::with_source(frame, egress4(0)))
    });
    let answers: Vec<_> = answers.collect();
    let (wanted, mut assured) = (workload.targets.len(), 0);
    for _ in 0..MOST_WAVES {
        send_to_all(testbed, workload)?;
        // An answer to a connection that Linux does not know would take its port.
        if tracked(testbed)?.lines().count() < wanted {
            continue;
        }
        send_answers(testbed, &answers)?;
        assured = tracked(testbed)?.matches("[ASSURED]").count();
        if assured == wanted {
            return testbed.set_priority(Priority::Reaction);
        }
        sys::sleep(ASSURED_AFTER)?;
    }
    bail!("conntrack calls {assured} connections assured, and not {wanted}");
}

/// The connections that Linux tracks, one per line.
fn tracked(testbed: &Testbed) -> Result<String> {
    command::run(testbed.box_namespace.command("conntrack").args(["-L", "-p", "udp"]))
}

fn send_answers(testbed: &Testbed, answers: &[Vec<u8>]) -> Result<()> {
    let ends = testbed.host_ends();
    let (sink, device) = ends.last().context("a testbed without hosts")?;
    let socket = sink.enter(|| Ok(PacketSocket::open(device)?))?;
    // A ring holds 256.
    for part in answers.chunks(32) {
        socket.send(part)?;
        sys::sleep(Duration::from_millis(1))?;
    }
    Ok(())
}

/// Sends at least a packet of each connection.
fn send_to_all(testbed: &mut Testbed, workload: &Workload) -> Result<()> {
    testbed.generator.start(low(workload.frame_bytes))?;
    let sent = (|| {
        while testbed.generator.packets()? < workload.targets.len() as u64 {
            sys::sleep(Duration::from_millis(5))?;
        }
        // The last ones may wait in a ring.
        Ok(())
    })();
    testbed.generator.stop()?;
    sys::sleep(Duration::from_millis(50))?;
    sent
}

fn low(frame_bytes: u16) -> Load {
    Load { frame_bytes, pace: Pace::Rate(LOW_PPS) }
}

/// Seconds from the end of `change` until nearly all packets are fast.
fn until_fast(
    testbed: &mut Testbed,
    millrace: &Millrace,
    change: impl FnOnce(&Testbed) -> Result<()>,
) -> Result<f64> {
    let stream = &testbed.generator.streams()[0];
    let look = LOOK.max(Duration::from_secs(1) * stream.targets.len() as u32 / LOW_PPS as u32);
    let load = low(stream.sizes.min());
    testbed.generator.start(load)?;
    let waited = (|| {
        change(testbed)?;
        let (started, mut before) = (Instant::now(), counts(millrace)?);
        loop {
            sys::sleep(look)?;
            let after = counts(millrace)?;
            let (share, seconds) = (fast_share(before, after), started.elapsed().as_secs_f64());
            if share >= NEARLY_ALL {
                return Ok(seconds);
            }
            if started.elapsed() > PATIENCE {
                let all = millrace.ask(&["connections", "--state", "linux"])?;
                let why = reasons(&all);
                bail!("only {:.1} % of the packets are fast after {seconds:.0} s; {why:?}", share * 100.0);
            }
            before = after;
        }
    })();
    testbed.generator.stop()?;
    waited
}

/// The number of connections that stay with Linux, by reason.
fn reasons(connections: &Value) -> BTreeMap<&str, usize> {
    let mut reasons = BTreeMap::new();
    for connection in connections.as_array().into_iter().flatten() {
        *reasons.entry(connection["why_not"].as_str().unwrap_or_default()).or_default() += 1;
    }
    reasons
}

/// Packets that were forwarded, and packets that went to Linux.
fn counts(millrace: &Millrace) -> Result<[u64; 2]> {
    let status = millrace.ask(&["status"])?;
    let count = |what: &str| {
        status["packets"][what].as_u64().with_context(|| format!("millrace status has no packets.{what}"))
    };
    Ok([count("forwarded")?, count("passed")?])
}

/// The share of packets between two counts that did not go to Linux; 0 if there were none.
fn fast_share(before: [u64; 2], after: [u64; 2]) -> f64 {
    let [fast, slow] = [0, 1].map(|i| after[i].saturating_sub(before[i]) as f64);
    if fast + slow > 0.0 { fast / (fast + slow) } else { 0.0 }
}

fn nft(mut command: std::process::Command, rules: &str) -> Result<()> {
    command::run_with_input(command.args(["-f", "-"]), rules).map(drop)
}

/// A subject that masquerades, if there are rules. Nearly all of its packets must be fast, not all.
struct Masquerade<'a> {
    inner: &'a dyn Subject,
    ruled: bool,
}

impl Subject for Masquerade<'_> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn rewrites(&self) -> Rewrite {
        if self.ruled { Rewrite::Masquerade(egress4(0)) } else { Rewrite::Full }
    }
}

fn pictures() -> [Figure; 2] {
    let connections = || Axis::new("/parameters/connections", "UDP connections", "").log();
    let cost = Axis::new("/sample/ns_per_packet", "CPU per packet", "ns");
    let delay = Axis::new("/seconds", "until nearly all packets are fast", "s");
    [
        Figure::new("firewall", "Cost behind a firewall with NAT", Some(connections()), cost)
            .only("/case", "firewall")
            .series("/subject")
            .series("/parameters/rules"),
        Figure::new("firewall-delay", "Until connections are fast", Some(connections()), delay)
            .only("/case", "firewall-delay")
            .series("/parameters/after"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_of_the_packets_between_two_counts() {
        assert_eq!(fast_share([100, 50], [400, 150]), 0.75);
        assert_eq!(fast_share([100, 50], [100, 50]), 0.0);
        // A daemon that was started again counts from 0.
        assert_eq!(fast_share([100, 50], [0, 60]), 0.0);
    }

    #[test]
    fn reasons_are_counted() {
        let why = |why| json!({"state": "linux", "why_not": why});
        let all = json!([why("full"), why("new"), why("full")]);
        assert_eq!(reasons(&all), BTreeMap::from([("full", 2), ("new", 1)]));
    }

    #[test]
    fn a_masquerade_is_expected_only_with_rules() {
        let of = |ruled| Masquerade { inner: &Linux, ruled }.rewrites();
        assert_eq!(of(true), Rewrite::Masquerade("10.2.0.1".parse().unwrap()));
        assert_eq!(of(false), Rewrite::Full);
    }
}
