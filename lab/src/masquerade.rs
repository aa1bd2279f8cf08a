//! Connections behind a masquerade and a stateful firewall: the rules of the box, UDP connections that Linux calls assured,
//! and how long Millrace takes until they are fast.
//!
//! ```text
//!  waves       a packet of each connection, and an answer to it from the sink's side, until all are assured: Linux calls
//!              a UDP connection so if it has packets of both directions, also 2 s after the first one
//!  low rate    until connections are fast
//! ```

use std::{
    collections::BTreeMap,
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::{
    addresses::{egress_mac, egress4, nexthop_mac},
    command,
    generator::{Load, Pace, PacketSocket},
    namespace::Namespace,
    packet::{self, Stamp},
    subject::{Millrace, Rewrite, Subject},
    sys,
    testbed::{Priority, Testbed},
    workload::Workload,
};

/// With these, the filter has 100 rules, like that of a small company. Packets of established connections match its
/// first rule, and those of new ones match the last.
const SERVICES: u16 = 97;

/// The rules: clients behind `eth1` may begin connections, and are masqueraded.
pub fn rules() -> String {
    let services: String = (0..SERVICES).map(|n| format!("udp dport {} accept\n", 20_000 + n)).collect();
    format!(
        "table inet firewall {{
            chain forward {{
                type filter hook forward priority 0; policy drop;
                ct state established,related accept
                ct state invalid drop
                {services}
                iifname eth1 accept
            }}
        }}
        table ip nat {{
            chain postrouting {{ type nat hook postrouting priority 100; oifname eth2 masquerade; }}
        }}"
    )
}

/// The sender's own stack would answer each answer with an ICMP error.
pub const NO_ANSWERS: &str = "
    table ip answers {
        chain input { type filter hook input priority 0; policy drop; }
    }";

/// Packets a second, which a router with fast connections carries without loss.
pub const LOW_PPS: u64 = 200_000;
/// The same while connections begin. Linux takes up to 12 us for a new one, on a slow machine.
const BEGIN_PPS: u64 = 50_000;
const ASSURED_AFTER: Duration = Duration::from_millis(2200);
/// Two are needed. A busy machine loses packets.
const MOST_WAVES: u32 = 10;
/// How often Millrace is asked how many packets were fast since the last time, unless connections take longer to send one
/// packet each.
const LOOK: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(90);
/// The patience is at least one second for this many connections.
const LEAST_PER_S: u32 = 4000;
/// How old the daemon's report of fast connections can be.
const REPORTED: Duration = Duration::from_secs(10);
/// The share of packets from which on connections count as fast.
pub const NEARLY_ALL: f64 = 0.99;

/// Removes all rules and connections of the box.
///
/// # Errors
/// `nft` or `conntrack` fails.
pub fn forget(testbed: &Testbed) -> Result<()> {
    nft(&testbed.box_namespace, "flush ruleset")?;
    command::run(testbed.box_namespace.command("conntrack").arg("-F")).map(drop)
}

/// Makes connections that Linux calls assured. `earlier`: how many the box has already.
///
/// # Errors
/// Linux does not track them all, or calls some not assured.
pub fn begin(testbed: &mut Testbed, workload: &Workload, earlier: usize) -> Result<()> {
    testbed.set_priority(Priority::Rates)?;
    testbed.generator.set_targets(workload.targets.clone(), workload.frame_bytes)?;
    let answers = workload.targets.iter().map(|target| {
        let frame = target.forwarded(nexthop_mac(1), egress_mac(0), workload.frame_bytes, Stamp::default());
        packet::answer(packet::with_source(frame, egress4(0)))
    });
    let answers: Vec<_> = answers.collect();
    let (wanted, mut assured) = (earlier + workload.targets.len(), 0);
    for _ in 0..MOST_WAVES {
        send_to_all(testbed, workload.targets.len(), workload.frame_bytes, BEGIN_PPS)?;
        // An answer to a connection that Linux does not know would take its port.
        if count(testbed)? < wanted {
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

/// The number of connections that Linux tracks.
fn count(testbed: &Testbed) -> Result<usize> {
    let path = "/proc/sys/net/netfilter/nf_conntrack_count";
    testbed.box_namespace.read(path)?.trim().parse().context(path)
}

/// The connections that Linux tracks, one per line.
fn tracked(testbed: &Testbed) -> Result<String> {
    command::run(testbed.box_namespace.command("conntrack").args(["-L", "-p", "udp"]))
}

/// Room for connections: conntrack's limit, which belongs to the whole machine. Dropping it restores the old limit.
pub struct Room(Option<String>);

const LIMIT: &str = "/proc/sys/net/netfilter/nf_conntrack_max";

impl Room {
    /// Makes room for so many connections, if there is less.
    ///
    /// # Errors
    /// The limit cannot be read or written.
    pub fn make(connections: u32) -> Result<Room> {
        let before = fs::read_to_string(LIMIT).context(LIMIT)?;
        if before.trim().parse::<u32>().context(LIMIT)? >= connections {
            return Ok(Room(None));
        }
        fs::write(LIMIT, connections.to_string()).context(LIMIT)?;
        Ok(Room(Some(before)))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(before) = &self.0
            && let Err(error) = fs::write(LIMIT, before)
        {
            eprintln!("cannot set {LIMIT} back to {}: {error}", before.trim());
        }
    }
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

/// Sends at least one packet of each connection. The connections are the generator's targets.
///
/// # Errors
/// The generator fails.
pub fn send_to_all(testbed: &mut Testbed, connections: usize, frame_bytes: u16, pps: u64) -> Result<()> {
    testbed.generator.start(Load { frame_bytes, pace: Pace::Rate(pps) })?;
    let sent = (|| {
        while testbed.generator.packets()? < connections as u64 {
            sys::sleep(Duration::from_millis(5))?;
        }
        // The last ones may wait in a ring.
        Ok(())
    })();
    testbed.generator.stop()?;
    sys::sleep(Duration::from_millis(50))?;
    sent
}

/// Seconds from the end of `change` until nearly all packets are fast.
///
/// # Errors
/// It takes too long, or the daemon does not answer.
pub fn until_fast(
    testbed: &mut Testbed,
    millrace: &Millrace,
    change: impl FnOnce(&Testbed) -> Result<()>,
) -> Result<f64> {
    let stream = &testbed.generator.streams()[0];
    let look = LOOK.max(Duration::from_secs(1) * stream.targets.len() as u32 / LOW_PPS as u32);
    let patience = PATIENCE.max(Duration::from_secs(1) * stream.targets.len() as u32 / LEAST_PER_S);
    let load = Load { frame_bytes: stream.sizes.min(), pace: Pace::Rate(LOW_PPS) };
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
            if started.elapsed() > patience {
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
        *reasons.entry(connection["why_not"]["text"].as_str().unwrap_or_default()).or_default() += 1;
    }
    reasons
}

/// Waits until nearly all of these connections are fast, and returns how many are. The daemon's report may be seconds old.
///
/// # Errors
/// Fewer are fast after [`REPORTED`], or the daemon does not answer.
pub fn until_held(millrace: &Millrace, connections: u32) -> Result<u64> {
    let begun = Instant::now();
    loop {
        let held = fast(millrace)?;
        if held as f64 >= NEARLY_ALL * f64::from(connections) {
            return Ok(held);
        }
        ensure!(
            begun.elapsed() < REPORTED,
            "only {held} of {connections} connections are fast at the same time"
        );
        sys::sleep(LOOK)?;
    }
}

/// The number of fast connections.
fn fast(millrace: &Millrace) -> Result<u64> {
    let routers = millrace.ask(&["routers"])?;
    let counts = routers.as_array().into_iter().flatten().map(|router| router["connections"].as_u64());
    counts.sum::<Option<u64>>().context("millrace routers has no connections")
}

/// Packets that were forwarded, and packets that went to Linux.
///
/// # Errors
/// The daemon does not answer.
pub fn counts(millrace: &Millrace) -> Result<[u64; 2]> {
    let status = millrace.ask(&["status"])?;
    let count = |what: &str| {
        status["packets"][what].as_u64().with_context(|| format!("millrace status has no packets.{what}"))
    };
    Ok([count("forwarded")?, count("passed")?])
}

/// The share of packets between two counts that did not go to Linux; 0 if there were none.
pub fn fast_share(before: [u64; 2], after: [u64; 2]) -> f64 {
    let [fast, slow] = [0, 1].map(|i| after[i].saturating_sub(before[i]) as f64);
    if fast + slow > 0.0 { fast / (fast + slow) } else { 0.0 }
}

/// Changes the rules of a namespace.
///
/// # Errors
/// `nft` refuses.
pub fn nft(namespace: &Namespace, rules: &str) -> Result<()> {
    command::run_with_input(namespace.command("nft").args(["-f", "-"]), rules).map(drop)
}

/// A subject that masquerades, if there are rules. Nearly all of its packets must be fast, not all.
pub struct Masquerade<'a> {
    pub inner: &'a dyn Subject,
    pub ruled: bool,
}

impl Subject for Masquerade<'_> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn rewrites(&self) -> Rewrite {
        if self.ruled { Rewrite::Masquerade(egress4(0)) } else { Rewrite::Full }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::Linux;
    use serde_json::json;

    #[test]
    fn a_share_is_of_the_packets_between_two_counts() {
        assert_eq!(fast_share([100, 50], [400, 150]), 0.75);
        assert_eq!(fast_share([100, 50], [100, 50]), 0.0);
        // A daemon that was started again counts from 0.
        assert_eq!(fast_share([100, 50], [0, 60]), 0.0);
    }

    #[test]
    fn reasons_are_counted() {
        let why = |why| json!({"state": "linux", "why_not": {"text": why}});
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
