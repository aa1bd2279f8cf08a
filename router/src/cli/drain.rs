//! `millrace drain`: leads the traffic around this box before maintenance.

use super::{Output, complain, get, show};
use crate::{
    api::status::{ReasonCount, RouterReport, Status},
    base::{BadValue, clock::monotonic, instance::Instance},
    config::parse_ms,
};
use anyhow::{Context, Result, bail};
use clap::Args;
use logic::reason::Reason;
use serde::Serialize;
use std::{
    collections::BTreeMap,
    process::{Command, ExitCode, Stdio},
    str::FromStr,
    thread,
    time::Duration,
};

pub(super) const HELP: &str = "\
`millrace drain` makes other routers send their packets elsewhere. Then it waits until hardly any packet passes this
box. The daemon forwards meanwhile, so no packet is lost. By default, FRR announces it to its BGP neighbours (RFC 8326):
  vtysh -c 'configure terminal' -c 'bgp graceful-shutdown'
For another protocol, give the command, for instance with OSPF:
  millrace drain --command \"vtysh -c 'configure terminal' -c 'router ospf' -c 'max-metric router-lsa administrative'\"
After the maintenance, `millrace drain --undo` lets the packets come back. It does not wait. It needs --command if the
drain had one. Routes stay withdrawn after --timeout and after Ctrl-C.
Packets for the box itself do not count, except those of routers that Linux serves or that meet flow rules: there,
Millrace cannot tell them apart. The exit status is 1 if packets still pass after --timeout.";

/// How often the packets are counted.
const LOOKS: Duration = Duration::from_secs(1);
/// How often progress is shown.
const SHOWS: Duration = Duration::from_secs(5);
/// Packets that are for the box itself, or that no router forwards.
const OWN: [Reason; 8] = [
    Reason::Local,
    Reason::LocalPrefix,
    Reason::Broadcast,
    Reason::Malformed,
    Reason::NotAPort,
    Reason::Arp,
    Reason::NeighbourDiscovery,
    Reason::ControlPoliced,
];

#[derive(Debug, Args)]
pub(super) struct Drain {
    /// The command that withdraws the routes, or with --undo announces them again. A shell runs it [default: FRR's graceful
    /// shutdown of BGP].
    #[arg(long, value_name = "COMMAND")]
    command: Option<String>,
    /// Let the packets come back.
    #[arg(long)]
    undo: bool,
    /// The box is drained when fewer packets a second pass.
    #[arg(long, value_name = "NUMBER", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    below: u32,
    /// How long so few packets must pass.
    #[arg(long, value_name = "TIME", default_value = "5s")]
    calm: Time,
    /// How long to wait at most.
    #[arg(long, value_name = "TIME", default_value = "5m")]
    timeout: Time,
    #[command(flatten)]
    output: Output,
}

/// A time with a unit.
#[derive(Clone, Copy, Debug)]
struct Time(Duration);

impl FromStr for Time {
    type Err = BadValue;
    fn from_str(s: &str) -> Result<Self, BadValue> {
        let ms =
            parse_ms(s).ok_or_else(|| BadValue(format!("{s:?} is not a time such as \"5s\" or \"2m\"")))?;
        Ok(Self(Duration::from_millis(ms)))
    }
}

/// What `millrace drain` found.
#[derive(Debug, Default, Serialize)]
struct DrainReport {
    drained: bool,
    /// Packets that pass each second.
    packets_per_s: f64,
    /// How long the command waited.
    waited_s: f64,
    /// Packets that the fast path forwards each second, by router; without those that forward none.
    routers: BTreeMap<String, f64>,
}

impl Drain {
    pub(super) fn is_json(&self) -> bool {
        self.output.json
    }

    pub(super) fn run(self, instance: &Instance) -> Result<ExitCode> {
        if self.undo {
            // Also without a daemon: plain Linux may take the packets back.
            self.tell_neighbours()?;
            show(self.output, &DrainReport::default(), |_| "routes are announced again\n".into())?;
            return Ok(ExitCode::SUCCESS);
        }
        // Nothing is withdrawn if nobody can say when the packets are gone.
        let first: Status = get(instance, "/status")?;
        if let Some(port) = first.ports.iter().find(|port| port.mode == "detached" && port.ifindex != 0) {
            bail!(
                "nothing was withdrawn: port {} runs no program, so its packets cannot be counted; see `millrace ports`",
                port.port
            );
        }
        self.tell_neighbours()?;
        let report = self.wait(instance, first)?;
        show(self.output, &report, said)?;
        Ok(if report.drained { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn tell_neighbours(&self) -> Result<()> {
        let mut command = match &self.command {
            Some(line) => {
                let mut shell = Command::new("sh");
                shell.args(["-c", line]);
                shell
            }
            None => frr(self.undo),
        };
        let name = self.command.as_deref().unwrap_or("vtysh");
        let does = if self.undo { "announce" } else { "withdraw" };
        let output = command.stdin(Stdio::null()).output().with_context(|| match &self.command {
            Some(_) => format!("cannot run {name:?}"),
            None => "cannot run \"vtysh\" of FRR; install FRR, or give another command with --command".into(),
        })?;
        if !output.status.success() {
            let text = [output.stdout, output.stderr].concat();
            let text = String::from_utf8_lossy(&text).trim().replace('\n', "; ");
            bail!("cannot {does} routes: {name:?} failed ({}): {text}", output.status);
        }
        Ok(())
    }

    fn wait(&self, instance: &Instance, first: Status) -> Result<DrainReport> {
        let start = monotonic();
        let (mut last, mut at, mut shown) = (first, start, start);
        let mut calm = Calm { below: self.below.into(), lasts: self.calm.0, since: None };
        loop {
            thread::sleep(LOOKS);
            let (now, status) = (monotonic(), get::<Status>(instance, "/status")?);
            let rates = Rates::between(&last, &status, (now - at).as_secs_f64());
            let drained = calm.is_over(now, rates.all);
            (last, at) = (status, now);
            if drained || now - start >= self.timeout.0 {
                let (packets_per_s, routers) = (rates.all, rates.routers);
                return Ok(DrainReport {
                    drained,
                    packets_per_s,
                    waited_s: (now - start).as_secs_f64(),
                    routers,
                });
            }
            if now - shown >= SHOWS {
                shown = now;
                complain(&format!("{:.0} packets/s still pass", rates.all));
            }
        }
    }
}

/// FRR's own means: neighbours that know RFC 8326, as FRR's do, use other ways if there are some.
fn frr(undo: bool) -> Command {
    let mut vtysh = Command::new("vtysh");
    let shutdown = if undo { "no bgp graceful-shutdown" } else { "bgp graceful-shutdown" };
    vtysh.args(["-c", "configure terminal", "-c", shutdown]);
    vtysh
}

fn said(report: &DrainReport) -> String {
    let rate = report.packets_per_s;
    if report.drained {
        return format!("drained after {:.0} s: {rate:.0} packets/s pass\n", report.waited_s);
    }
    let by: Vec<_> =
        report.routers.iter().map(|(name, rate)| format!("{name} {rate:.0} packets/s")).collect();
    let by = if by.is_empty() { String::new() } else { format!("; by router: {}", by.join(", ")) };
    format!("not drained: {rate:.0} packets/s still pass after {:.0} s{by}\n", report.waited_s)
}

/// Packets each second.
#[derive(Debug, PartialEq)]
struct Rates {
    all: f64,
    routers: BTreeMap<String, f64>,
}

impl Rates {
    /// Between two statuses that are so many seconds apart.
    fn between(before: &Status, after: &Status, seconds: f64) -> Rates {
        // Counters of a daemon that begins at zero are smaller.
        let rate = |before: u64, after: u64| after.saturating_sub(before) as f64 / seconds.max(0.001);
        let forwarded = |router: &RouterReport| router.packets.forwarded;
        let of = |router: &RouterReport| {
            let old = before.routers.iter().find(|old| old.router == router.router).map_or(0, forwarded);
            (router.router.clone(), rate(old, forwarded(router)))
        };
        let routers = after.routers.iter().map(of).filter(|(_, rate)| *rate > 0.0).collect();
        Rates { all: rate(passing(before), passing(after)), routers }
    }
}

/// Packets that went through the box, or were to go.
fn passing(status: &Status) -> u64 {
    let others = |reason: &&ReasonCount| {
        // Lost packets were counted when they were forwarded.
        reason.class != "lost" && !OWN.iter().any(|own| own.name() == reason.reason)
    };
    let reasons: u64 = status.reasons.iter().filter(others).map(|reason| reason.packets).sum();
    // Packets of flow rules may be in no other count. Those that rules leave to routing count twice, which only prolongs the wait.
    let by_rules = status.flows.cache_hits + status.flows.cache_misses;
    status.packets.forwarded + reasons + by_rules
}

/// Decides when the packets are gone.
struct Calm {
    below: f64,
    lasts: Duration,
    since: Option<Duration>,
}

impl Calm {
    fn is_over(&mut self, now: Duration, rate: f64) -> bool {
        if rate >= self.below {
            self.since = None;
            return false;
        }
        now - *self.since.get_or_insert(now) >= self.lasts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{flows::FlowsStatus, status::Packets};

    #[test]
    fn only_a_calm_that_lasts_is_the_end() {
        let mut calm = Calm { below: 10.0, lasts: Duration::from_secs(3), since: None };
        let rates = [500.0, 9.0, 9.0, 10.0, 0.0, 5.0, 9.0, 0.0, 0.0];
        let over = (0..).zip(rates).map(|(s, rate)| calm.is_over(Duration::from_secs(s), rate));
        assert_eq!(over.collect::<Vec<_>>(), [false, false, false, false, false, false, false, true, true]);
    }

    #[test]
    fn packets_for_the_box_and_lost_ones_do_not_count() {
        let reason = |reason: &str, class: &str, packets| ReasonCount {
            reason: reason.into(),
            class: class.into(),
            text: String::new(),
            packets,
        };
        let status = |forwarded, reasons: Vec<ReasonCount>| Status {
            packets: Packets { forwarded, ..Packets::default() },
            routers: vec![RouterReport {
                router: "red".into(),
                packets: Packets { forwarded, ..Packets::default() },
                ..RouterReport::default()
            }],
            reasons,
            ..Status::default()
        };
        let before = status(1000, vec![]);
        let after = status(
            1100,
            vec![
                reason("local", "pass", 1 << 20),
                reason("arp", "control", 1 << 20),
                reason("tx_ring_full", "lost", 50),
                reason("rules", "pass", 40),
                reason("unresolved", "exception", 20),
            ],
        );
        let rules = FlowsStatus { cache_hits: 30, cache_misses: 10, ..FlowsStatus::default() };
        let with_rules = Rates::between(&before, &Status { flows: rules, ..after.clone() }, 2.0);
        assert_eq!(with_rules.all, 100.0, "packets that rules send are in no other count");
        let rates = Rates::between(&before, &after, 2.0);
        assert_eq!(rates, Rates { all: 80.0, routers: [("red".into(), 50.0)].into() });
        assert_eq!(Rates::between(&after, &before, 1.0).all, 0.0, "counters that began at zero");
        let report = DrainReport { packets_per_s: 80.0, routers: rates.routers, ..DrainReport::default() };
        assert_eq!(
            said(&report),
            "not drained: 80 packets/s still pass after 0 s; by router: red 50 packets/s\n"
        );
    }

    #[test]
    fn frr_is_told_in_one_command() {
        for (undo, last) in [(false, "bgp graceful-shutdown"), (true, "no bgp graceful-shutdown")] {
            let vtysh = frr(undo);
            assert_eq!(vtysh.get_args().collect::<Vec<_>>(), ["-c", "configure terminal", "-c", last]);
        }
    }
}
