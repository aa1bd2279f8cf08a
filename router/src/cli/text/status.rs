//! `millrace status`: first what is not fast, then numbers and tables, then each problem and note once.

use super::{
    super::table::{Table, count, percent},
    controller_lost,
    findings::{self, Finding},
    size, span,
    tables::{how_much, ports_table, routers_table},
};
use crate::api::{
    status::{ConditionReport, Families, PathReport, ReasonCount, RouterReport, Status, Why},
    workers::{PathStand, WorkersReport},
};
use logic::cause::Code;
use std::collections::BTreeMap;

/// The most reasons that `status` shows.
const TOP_REASONS: usize = 8;
/// The longest first line.
const WIDTH: usize = 100;

/// `millrace status`.
pub fn status(s: &Status) -> String {
    let instance = s.instance.as_ref().map_or(String::new(), |i| format!(", instance {i}"));
    let findings = all_findings(s);
    let mut text = head(s, &findings) + "\n";
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
        findings::lines(&findings),
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
fn head(s: &Status, findings: &[Finding]) -> String {
    if !s.ready {
        // Why it is not ready stands nowhere else, so it is not cut.
        let why = s.problem.as_ref().map_or("the reason is not known", |why| &why.text);
        return format!("NOT READY: {why}");
    }
    let problems: Vec<_> = findings.iter().filter(|finding| !finding.is_note).cloned().collect();
    let mut slow: Vec<_> = findings::grouped(&not_fast(s)).collect();
    if slow.is_empty() {
        slow = findings::grouped(&problems).map(|problem| format!("problem: {problem}")).collect();
    }
    match &slow[..] {
        [] => format!("forwarding; {}", all_fast(&s.routers)),
        [first] => cut(&format!("forwarding; {first}"), WIDTH),
        [first, more @ ..] => {
            let more = format!("; {} more below", more.len());
            cut(&format!("forwarding; {first}"), WIDTH - more.len()) + &more
        }
    }
}

/// What is on the fast path, if nothing that Linux forwards is left to the kernel.
fn all_fast(routers: &[RouterReport]) -> String {
    // A namespace without an interface on a port is no router.
    let routers: Vec<_> = routers.iter().filter(|router| router.interfaces > 0).collect();
    let is_fast = |of: fn(Families<&'static str>) -> &'static str| {
        routers.iter().any(|router| of(how_much(router)) != "kernel")
    };
    let (ipv4, ipv6) = (is_fast(|how| how.ipv4), is_fast(|how| how.ipv6));
    let be = if ipv4 && ipv6 { "are" } else { "is" };
    match (versions(ipv4, ipv6), routers.len()) {
        (_, 0) => "no router has an interface on a port".into(),
        (None, _) => "Linux forwards nothing between the ports (net.ipv4.ip_forward)".into(),
        (Some(which), 1) => format!("{which} of the router {be} on the fast path"),
        (Some(which), n) => format!("{which} of all {n} routers {be} on the fast path"),
    }
}

/// What keeps packets of routers from the fast path, with the widest effect first.
fn not_fast(s: &Status) -> Vec<Finding> {
    let routers = || s.routers.iter().filter(|router| router.interfaces > 0);
    let whole = routers().filter_map(|router| {
        let (which, why) = version(&router.why_not)?;
        Some(Finding::note(
            "router",
            &router.router,
            format!("{which} on the kernel path: {}", brief(&why.text)),
        ))
    });
    let rules = (s.flows.rules > 0 && !s.flows.in_charge)
        .then(|| Finding::note("", "", "flow rules are not in charge, so packets are routed"));
    let interfaces = routers().flat_map(|router| {
        router.left_to_kernel.iter().filter_map(|interface| {
            let (which, why) = version(&interface.why_not)?;
            let name = interface_name(&router.router, &interface.interface);
            Some(Finding::note(
                "interface",
                &name,
                format!("{which} on the kernel path: {}", brief(&why.text)),
            ))
        })
    });
    let ruled = routers().filter_map(|router| {
        let which = versions(router.ruled.ipv4, router.ruled.ipv6)?;
        let text = format!("some {which} packets on the kernel path: firewall rules may affect them");
        Some(Finding::note("router", &router.router, text))
    });
    let generic = s
        .ports
        .iter()
        .filter(|port| port.note.as_ref().is_some_and(|why| why.code == Code::GenericMode.name()));
    let generic = generic.map(|port| Finding::note("port", &port.port, "generic mode, which is slow"));
    rules.into_iter().chain(whole).chain(ruled).chain(interfaces).chain(generic).collect()
}

/// The IP versions that have reasons, and the first reason. A version that Linux does not forward either is not slow.
fn version(why: &Families<Vec<Why>>) -> Option<(&'static str, &Why)> {
    fn first(all: &[Why]) -> Option<&Why> {
        all.first().filter(|_| !all.iter().any(Why::is_idle))
    }
    let (ipv4, ipv6) = (first(&why.ipv4), first(&why.ipv6));
    Some((versions(ipv4.is_some(), ipv6.is_some())?, ipv4.or(ipv6)?))
}

fn versions(ipv4: bool, ipv6: bool) -> Option<&'static str> {
    match (ipv4, ipv6) {
        (true, true) => Some("IPv4 and IPv6"),
        (true, false) => Some("IPv4"),
        (false, true) => Some("IPv6"),
        (false, false) => None,
    }
}

/// What a sentence says, without the command that helps.
fn brief(text: &str) -> &str {
    text.split("; ").next().unwrap_or(text)
}

fn cut(line: &str, width: usize) -> String {
    if line.chars().count() <= width {
        return line.into();
    }
    line.chars().take(width.saturating_sub(3)).chain("...".chars()).collect()
}

fn interface_name(router: &str, interface: &str) -> String {
    if router == "host" { interface.into() } else { format!("{router}/{interface}") }
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

/// Everything that is wrong, limited or unknown.
fn all_findings(s: &Status) -> Vec<Finding> {
    // Ports and routers have their own reasons; their conditions say since when.
    let ages: BTreeMap<&str, f64> =
        s.conditions.iter().filter(|c| is_of_thing(c)).map(|c| (c.subject.as_str(), c.age_s)).collect();
    let aged = |finding: Finding| {
        let age_s = ages.get(format!("{} {}", finding.kind, finding.name).as_str()).copied();
        Finding { age_s, ..finding }
    };
    let conditions = s.conditions.iter().filter(|c| !is_of_thing(c)).map(Finding::condition);
    let mut all: Vec<Finding> = conditions.collect();
    for port in &s.ports {
        let problem = |why: &Why| aged(Finding::problem("port", &port.port, &why.text));
        all.extend(port.problems.iter().map(problem));
        all.extend(port.note.iter().map(|why| Finding::note("port", &port.port, &why.text)));
    }
    // Problems of ports are listed already.
    let other = |why: &Why| why.code != Code::PortNotTrusted.name();
    all.extend(s.routers.iter().flat_map(|router| router_findings(router, other)).map(aged));
    if let Some(why) = s.flows.why_not.as_ref().filter(|_| s.flows.rules > 0 && !s.flows.in_charge) {
        all.push(Finding::problem("", "", format!("flow rules are not in charge: {}", why.text)));
    }
    let lost = controller_lost(&s.flows.controller_lost);
    all.extend(lost.map(|lost| Finding::note("", "", lost)));
    for path in &s.paths {
        let why = path.why_not.iter().map(|why| format!("it has no packets: {}", why.text));
        all.extend(why.map(|why| Finding::note("path", &path.path, why)));
        let stopped = path.run.as_ref().and_then(|run| run.stopped.as_ref());
        all.extend(stopped.map(|why| Finding::problem("path", &path.path, format!("it is stopped: {why}"))));
    }
    all.extend(worker_findings(&s.workers));
    all
}

/// Does its port or router list the reasons of this condition?
fn is_of_thing(condition: &ConditionReport) -> bool {
    ["port", "router"].contains(&condition.kind.as_str())
}

/// Why a router and its interfaces are not on the fast path, as far as these causes are wanted.
pub fn router_findings(r: &RouterReport, is_wanted: impl Fn(&Why) -> bool) -> Vec<Finding> {
    let sentences = |why: &Families<Vec<Why>>| {
        let wanted = |all: &[Why]| all.iter().filter(|why| is_wanted(why)).cloned().collect::<Vec<_>>();
        Families { ipv4: wanted(&why.ipv4), ipv6: wanted(&why.ipv6) }.sentences()
    };
    let router = |text: String| Finding::note("router", &r.router, text);
    let mut all: Vec<Finding> = sentences(&r.why_not).into_iter().map(router).collect();
    if let Some(which) = versions(r.ruled.ipv4, r.ruled.ipv6) {
        let some = "firewall rules may affect some packets; `millrace firewall` lists them";
        all.push(router(format!("{which}: {some}")));
    }
    if r.cut > 0 {
        all.push(router(format!("{} of its dropped packets were over its share of a full core", r.cut)));
    }
    for left in &r.left_to_kernel {
        let name = interface_name(&r.router, &left.interface);
        all.extend(sentences(&left.why_not).into_iter().map(|text| Finding::note("interface", &name, text)));
    }
    all
}

/// Problems of workers, and packets that they lost.
fn worker_findings(workers: &WorkersReport) -> Vec<Finding> {
    let mut all = Vec::new();
    let silent = workers.workers.iter().filter_map(|worker| worker.silent.as_ref());
    all.extend(silent.map(|why| Finding::problem("", "", why)));
    for queue in &workers.queues {
        let fault = queue.fault.iter().map(|fault| format!("workers, queue {}: {fault}", queue.queue));
        all.extend(fault.map(|text| Finding::problem("port", &queue.name, text)));
    }
    for resource in workers.resources.iter().filter(|resource| !resource.counted) {
        all.push(Finding::note("", "", format!("{} of paths: {}", resource.resource, resource.basis)));
    }
    if let Some(why) = &workers.switch.not_calibrated {
        let text = "the cost of packets includes switches between paths";
        all.push(Finding::note("", "", format!("{text}: {why} (`millrace calibrate` measures them)")));
    }
    for queue in workers.queues.iter().filter(|queue| queue.queue == 0) {
        let copied = queue.copies_because.iter().map(|why| format!("packets are copied for workers: {why}"));
        let unpolled = queue.not_polled_because.iter().map(|why| format!("workers do not poll it: {why}"));
        all.extend(copied.chain(unpolled).map(|text| Finding::note("port", &queue.name, text)));
    }
    let outputs = workers.workers.iter().flat_map(|worker| &worker.outputs).chain(&workers.closed_outputs);
    let mut lost = BTreeMap::<&str, u64>::new();
    for output in outputs {
        let lost = lost.entry(&output.name).or_default();
        *lost = lost.saturating_add(output.dropped());
    }
    for (port, lost) in lost.into_iter().filter(|(_, lost)| *lost > 0) {
        let text = format!("{lost} packets that workers sent were lost on their way out");
        all.push(Finding::note("port", port, text));
    }
    let up = &workers.up.all;
    if up.queue_full > 0 || up.failed > 0 {
        let text = format!(
            "{} packets that paths passed up did not reach the kernel: too many waited for {}, and it refused {}",
            up.queue_full.saturating_add(up.failed),
            up.queue_full,
            up.failed
        );
        all.push(Finding::note("", "", text));
    }
    all
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
