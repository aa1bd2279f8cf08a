//! `millrace status`: first what is not fast, then numbers and tables, then each problem and note once.

use super::{
    super::table::{Table, count, percent},
    findings, size,
    tables::{ports_table, routers_table},
};
use crate::{
    api::{
        status::{PathReport, ReasonCount, Status},
        summary::{Summary, SummaryState},
        workers::{PathStand, WorkersReport},
    },
    base::words::span,
};

/// The most reasons that `status` shows.
const TOP_REASONS: usize = 8;
/// The longest first line.
const WIDTH: usize = 100;

/// `millrace status`.
pub fn status(s: &Status) -> String {
    let instance = s.instance.as_ref().map_or(String::new(), |i| format!(", instance {i}"));
    let summary = Summary::of(s);
    let mut text = head(&summary) + "\n";
    text += &format!(
        "daemon      millrace {}{instance}, process {}, up {}\n",
        s.version,
        s.pid,
        span(s.uptime_s)
    );
    let age = s.heartbeat.age_s.map_or("never".into(), |age| format!("{age:.1} s ago"));
    text += &format!(
        "heartbeat   tables confirmed {age}; without a daemon forwarding goes on for {} s\n",
        s.heartbeat.timeout_s
    );
    text += &packets(s);
    text += &format!(
        "tables      {} IPv4 and {} IPv6 routes, {} neighbours; generation {}\n",
        s.routes.ipv4, s.routes.ipv6, s.neighbours, s.generation
    );
    text += &flow_rules(s);
    text += &resources(&s.workers);
    text += &copies(s);
    let shown = &s.reasons[..s.reasons.len().min(TOP_REASONS)];
    let tables = [
        ports_table(&s.ports, false).text(),
        routers_table(&s.routers).text(),
        paths(&s.paths),
        reasons(shown),
        table_use(s),
        findings::lines(&summary.problems, &summary.notes),
    ];
    for part in tables.iter().filter(|part| !part.is_empty()) {
        text += &format!("\n{part}");
    }
    text
}

/// A line for the running capture, and one for exports.
fn copies(s: &Status) -> String {
    let mut text = String::new();
    let capture = &s.capture;
    if capture.running {
        let missing = match capture.over_rate + capture.no_room {
            0 => String::new(),
            missing => format!(", {} missing", count(missing)),
        };
        text += &format!("capture     {} packets{missing}\n", count(capture.packets));
    }
    if let Some(export) = &s.export {
        let lost = if export.lost == 0 { String::new() } else { format!(", {} lost", count(export.lost)) };
        text += &format!(
            "export      {} samples{lost}; 1 in {} packets; collectors: {}\n",
            count(export.samples),
            export.every,
            export.collectors.len()
        );
    }
    text
}

/// One line: whether packets are forwarded, and which of them are not on the fast path. If all are, the first problem.
fn head(summary: &Summary) -> String {
    let more = match summary.state {
        // Why it is not ready stands nowhere else, so it is not cut.
        SummaryState::NotReady => return format!("NOT READY: {}", summary.text),
        SummaryState::Idle | SummaryState::Fast => return format!("forwarding; {}", summary.text),
        SummaryState::Slow => summary.not_fast.len(),
        SummaryState::Problem => summary.problems.len(),
    };
    let is = if summary.state == SummaryState::Problem { "problem: " } else { "" };
    let more = if more > 1 { format!("; {} more below", more - 1) } else { String::new() };
    cut(&format!("forwarding; {is}{}", summary.text), WIDTH - more.len()) + &more
}

fn cut(line: &str, width: usize) -> String {
    if line.chars().count() <= width {
        return line.into();
    }
    line.chars().take(width.saturating_sub(3)).chain("...".chars()).collect()
}

fn packets(s: &Status) -> String {
    let taken = match s.packets.taken {
        0 => String::new(),
        n => format!(", {n} taken by user space"),
    };
    let (bytes, lost) = (size(s.packets.forwarded_bytes), s.lost);
    let mut text = format!(
        "packets     {} forwarded ({bytes}), {} to the kernel{taken}, {} dropped\n",
        s.packets.forwarded, s.packets.passed, s.packets.dropped
    );
    if lost > 0 {
        text += &format!("            {lost} of those forwarded were lost at egress ports\n");
    }
    if let Some(ns) = s.ns_per_packet.filter(|ns| ns.is_finite()) {
        text +=
            &format!("cost        {ns:.0} ns for each forwarded packet, without transmission (sampled)\n");
    }
    text
}

fn flow_rules(s: &Status) -> String {
    if s.flows.rules == 0 && !s.flows.in_charge {
        return String::new();
    }
    let charge = if s.flows.in_charge { "before routing" } else { "NOT IN CHARGE, packets are routed" };
    let looked_up = s.flows.cache_hits.saturating_add(s.flows.cache_misses);
    let cached = match (s.flows.cache_hits.saturating_mul(100)).checked_div(looked_up) {
        None => String::new(),
        Some(percent) => format!("; {percent} % of packets decided from the cache"),
    };
    let slow = match (s.flows.slow_done, s.flows.slow_lost) {
        (0, 0) => String::new(),
        (done, lost) => format!("            user space did {done} packets and lost {lost}\n"),
    };
    format!("flow rules  {}, {charge}{cached}\n{slow}", s.flows.rules)
}

/// What workers share, and how much of it is used.
fn resources(workers: &WorkersReport) -> String {
    let mut text = String::new();
    for resource in &workers.resources {
        // A resource without a known capacity has no line.
        if let (Some(used), Some(there_is)) = (resource.used, resource.capacity.per_second) {
            let (name, gbytes) = (&resource.resource, there_is as f64 / 1e9);
            let (used, basis) = (percent(used), &resource.capacity.basis);
            text += &format!("resource    {name}: {used} used of {gbytes:.3} GB/s ({basis})\n");
        }
    }
    for worker in workers.workers.iter().filter(|worker| worker.silent.is_none() && !worker.share.is_empty())
    {
        let of = |(resource, used): (&String, &f64)| format!("{} of {resource}", percent(*used));
        let used: Vec<_> = worker.used.iter().map(of).collect();
        text += &format!("worker      core {}: paths share {}", worker.core, worker.share);
        text +=
            &if used.is_empty() { "\n".into() } else { format!("; recently used: {}\n", used.join(", ")) };
    }
    text
}

fn table_use(s: &Status) -> String {
    let mut table = Table::new(&["TABLE", "USED", "CAPACITY", "FULL"]);
    for t in &s.tables {
        let full = t.used.saturating_mul(100).checked_div(t.capacity).unwrap_or(0);
        table.row([t.table.clone(), t.used.to_string(), t.capacity.to_string(), format!("{full} %")]);
    }
    table.text()
}

fn reasons(reasons: &[ReasonCount]) -> String {
    let mut table = Table::new(&["REASON", "PACKETS", "WENT", "MEANING"]);
    for r in reasons {
        let went = match r.class.as_str() {
            "drop" => "dropped",
            "lost" => "lost",
            "taken" => "to user space",
            _ => "to the kernel",
        };
        table.row([r.reason.clone(), r.packets.to_string(), went.into(), r.text.clone()]);
    }
    table.text()
}

/// The packets of paths: those given to workers, and those that no worker could take.
fn paths(paths: &[PathReport]) -> String {
    let mut table = Table::new(&[
        "PATH",
        "ROUTER",
        "PORT",
        "CORE",
        "SHARE",
        "PACKETS",
        "OUT",
        "UP",
        "DROPPED",
        "LOST",
        "OTHERWISE",
    ]);
    let all = || "all".to_owned();
    for p in paths {
        let not_given = p.up.iter().chain(&p.dropped);
        let why: Vec<_> = not_given.map(|r| format!("{} {}", r.packets, r.reason)).collect();
        let otherwise = match sum(&p.up).saturating_add(sum(&p.dropped)) {
            0 => String::new(),
            n => format!("{n} {} {}", p.otherwise, table.note(&why.join(", "))),
        };
        let run = p.run.as_ref();
        let of_run = |part: fn(&PathStand) -> u64| run.map_or(String::new(), |run| part(run).to_string());
        let dropped = |run: &PathStand| {
            let by_chain = run.dropped.values().fold(0_u64, |sum, n| sum.saturating_add(*n));
            by_chain.saturating_add(run.worker_panicked).saturating_add(run.stopped_packets)
        };
        table.row([
            p.path.clone(),
            p.router.clone().unwrap_or_else(all),
            p.port.clone().unwrap_or_else(all),
            run.map_or(String::new(), |run| run.worker.to_string()),
            run.map_or(String::new(), |run| percent(run.share)),
            if p.why_not.is_none() { p.packets.to_string() } else { "inactive".into() },
            of_run(|run| run.out.values().fold(0, |sum, n| sum.saturating_add(*n))),
            of_run(|run| run.up.values().fold(0, |sum, n| sum.saturating_add(*n))),
            of_run(dropped),
            count(sum(&p.lost)),
            otherwise,
        ]);
    }
    table.text()
}

fn sum(counts: &[ReasonCount]) -> u64 {
    counts.iter().fold(0, |sum, r| sum.saturating_add(r.packets))
}
