//! Reports as text for people.

mod explain;

pub use explain::explanations;

use super::table::Table;
use crate::{
    api::{
        flows::ControllerLost,
        status::{
            ConditionReport, ConnectionReport, ConnectionState, Families, FirewallReport, HopReport,
            InterfaceReport, LeftInterface, PathReport, PortReport, ReasonCount, ReloadReport, RouteReport,
            RouterReport, RuledPairs, Status, StopReport, VerifyReport, VerifyResult, VerifyRouter,
        },
        workers::{PathStand, WorkersReport},
    },
    switch::controllers::{Connection, ControllerReport, ControllersReport},
};
use std::collections::BTreeMap;

/// The most reasons that `status` shows.
const TOP_REASONS: usize = 8;
/// The most interfaces of a router that are listed with their reasons; `millrace interfaces` has all.
const LEFT_SHOWN: usize = 8;

/// Conditions, a line for each.
pub fn conditions(all: &[ConditionReport]) -> String {
    let line = |condition: &ConditionReport| {
        let word = if condition.is_note { "note" } else { "problem" };
        format!("{word:12}{} (for {})\n", condition.sentence, span(condition.age_s as u64))
    };
    all.iter().filter(|condition| condition.kind != "router").map(line).collect()
}

/// `millrace status`.
pub fn status(s: &Status) -> String {
    let instance = s.instance.as_ref().map_or(String::new(), |i| format!(" instance {i},"));
    let state = if s.ready { "forwarding" } else { "NOT READY" };
    let mut text =
        format!("millrace {},{instance} process {}, up {}: {state}\n", s.version, s.pid, span(s.uptime_s));
    if let Some(problem) = &s.problem {
        text += &format!("problem     {problem}\n");
    }
    text += &conditions(&s.conditions);
    for path in &s.paths {
        if let Some(why) = &path.why_not {
            text += &format!("note        path {} has no packets: {why}\n", path.path);
        }
        if let Some(why) = path.run.as_ref().and_then(|run| run.stopped.as_ref()) {
            text += &format!("problem     path {} is stopped: {why}\n", path.path);
        }
    }
    text += &workers(&s.workers);
    for port in &s.ports {
        if let Some(note) = &port.note {
            text += &format!("note        port {}: {note}\n", port.port);
        }
    }
    let age = s.heartbeat.age_s.map_or("never".into(), |age| format!("{age:.1} s ago"));
    text += &format!(
        "heartbeat   tables confirmed {age}; without a daemon forwarding goes on for {} s\n",
        s.heartbeat.timeout_s
    );
    let cost =
        s.ns_per_packet.map_or(String::new(), |ns| format!(", {ns:.0} ns each without transmit (sampled)"));
    let lost = match s.lost {
        0 => String::new(),
        n => format!("; egress ports lost {n} of those forwarded"),
    };
    let taken = match s.packets.taken {
        0 => String::new(),
        n => format!(", {n} taken by user space"),
    };
    text += &format!(
        "packets     {} forwarded ({}){cost}, {} to the kernel{taken}, {} dropped{lost}\n",
        s.packets.forwarded,
        size(s.packets.forwarded_bytes),
        s.packets.passed,
        s.packets.dropped
    );
    text += &format!(
        "tables      {} IPv4 and {} IPv6 routes, {} neighbours; generation {}\n",
        s.routes.ipv4, s.routes.ipv6, s.neighbours, s.generation
    );
    if s.flows.rules > 0 || s.flows.in_charge {
        let charge = standing("before routing", s.flows.in_charge, s.flows.why_not.as_deref());
        let looked_up = s.flows.cache_hits + s.flows.cache_misses;
        let cached = match (s.flows.cache_hits.saturating_mul(100)).checked_div(looked_up) {
            None => String::new(),
            Some(percent) => format!("; {percent}% of packets decided from the cache"),
        };
        let slow = match (s.flows.slow_done, s.flows.slow_lost) {
            (0, 0) => String::new(),
            (done, lost) => format!("; user space did {done} packets and lost {lost}"),
        };
        let lost = controller_lost(&s.flows.controller_lost);
        text += &format!("flow rules  {}, {charge}{cached}{slow}{lost}\n", s.flows.rules);
    }
    let shown = &s.reasons[..s.reasons.len().min(TOP_REASONS)];
    for part in [ports(&s.ports), routers(&s.routers), paths(&s.paths), reasons(shown), tables(s)] {
        if !part.is_empty() {
            text += &format!("\n{part}");
        }
    }
    text
}

/// `yes` if packets go by rules; otherwise that they do not, and why.
fn standing(yes: &str, in_charge: bool, why_not: Option<&str>) -> String {
    let why = why_not.map_or(String::new(), |why| format!(": {why}"));
    if in_charge { yes.into() } else { format!("NOT IN CHARGE, packets are routed{why}") }
}

/// The packets that were lost on the way to controllers; empty if there are none.
fn controller_lost(lost: &ControllerLost) -> String {
    let parts = [
        (lost.no_controller, "because none was connected"),
        (lost.over_rate, "over packet_in_pps"),
        (lost.not_read, "because none read fast enough"),
    ];
    let said: Vec<_> = parts.iter().filter(|(n, _)| *n > 0).map(|(n, why)| format!("{n} {why}")).collect();
    if said.is_empty() {
        String::new()
    } else {
        format!("; packets lost to controllers: {}", said.join(", "))
    }
}

fn tables(s: &Status) -> String {
    let mut table = Table::new(&["TABLE", "USED", "CAPACITY", "FULL"]);
    for t in &s.tables {
        let percent = t.used.saturating_mul(100).checked_div(t.capacity).unwrap_or(0);
        table.row([t.table.clone(), t.used.to_string(), t.capacity.to_string(), format!("{percent}%")]);
    }
    table.text()
}

fn reasons(reasons: &[ReasonCount]) -> String {
    let mut table = Table::new(&["REASON", "PACKETS", "WENT", "WHY"]);
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

/// Problems of workers, what they share, and packets that they lost.
fn workers(workers: &WorkersReport) -> String {
    let mut text = String::new();
    for silent in workers.workers.iter().filter_map(|worker| worker.silent.as_ref()) {
        text += &format!("problem     {silent}\n");
    }
    for queue in &workers.queues {
        if let Some(fault) = &queue.fault {
            text += &format!("problem     workers, queue {} of port {}: {fault}\n", queue.queue, queue.name);
        }
    }
    for resource in workers.resources.iter().filter(|resource| !resource.counted) {
        text += &format!("note        {} of paths: {}\n", resource.resource, resource.basis);
    }
    for resource in &workers.resources {
        // A resource without a known capacity has no line.
        if let (Some(used), Some(there_is)) = (resource.used, resource.capacity.per_second) {
            let (name, gbytes) = (&resource.resource, there_is as f64 / 1e9);
            let (used, basis) = (used * 100.0, &resource.capacity.basis);
            text += &format!("resource    {name}: {used:.0}% used of {gbytes:.3} GB/s ({basis})\n");
        }
    }
    for worker in workers.workers.iter().filter(|worker| worker.silent.is_none() && !worker.share.is_empty())
    {
        let of = |(resource, used): (&String, &f64)| format!("{:.0}% of {resource}", used * 100.0);
        let used: Vec<_> = worker.used.iter().map(of).collect();
        text += &format!("worker      core {}: paths share {}", worker.core, worker.share);
        text +=
            &if used.is_empty() { "\n".into() } else { format!("; recently used: {}\n", used.join(", ")) };
    }
    if let Some(why) = &workers.switch.not_calibrated {
        text += &format!(
            "note        the cost of packets includes switches between paths: {why} (`millrace calibrate` measures them)\n"
        );
    }
    let first = workers.queues.iter().filter(|queue| queue.queue == 0);
    for (queue, why) in first.filter_map(|queue| Some((queue, queue.copies_because.as_ref()?))) {
        text += &format!("note        port {}: packets are copied for workers: {why}\n", queue.name);
    }
    let first = workers.queues.iter().filter(|queue| queue.queue == 0);
    for (queue, why) in first.filter_map(|queue| Some((queue, queue.not_polled_because.as_ref()?))) {
        text += &format!("note        port {}: workers do not poll it: {why}\n", queue.name);
    }
    let outputs = workers.workers.iter().flat_map(|worker| &worker.outputs).chain(&workers.closed_outputs);
    let mut lost = BTreeMap::<&str, u64>::new();
    outputs.for_each(|output| *lost.entry(&output.name).or_default() += output.dropped());
    for (port, lost) in lost.into_iter().filter(|(_, lost)| *lost > 0) {
        text += &format!(
            "note        port {port}: {lost} packets that workers sent were lost on their way out\n"
        );
    }
    let up = &workers.up.all;
    if up.queue_full + up.failed > 0 {
        text += &format!(
            "note        {} packets that paths passed up did not reach the kernel: too many waited for {}, and it refused {}\n",
            up.queue_full + up.failed,
            up.queue_full,
            up.failed
        );
    }
    text
}

/// The packets of paths: those that workers had, and those that no worker could have.
fn paths(paths: &[PathReport]) -> String {
    let mut table = Table::new(&[
        "PATH",
        "ROUTER",
        "PORT",
        "CORE",
        "SHARE",
        "PACKETS",
        "OUT",
        "TO KERNEL",
        "DROPPED",
        "LOST",
        "OTHERWISE",
        "WHY",
    ]);
    let sum = |counts: &[ReasonCount]| counts.iter().map(|r| r.packets).sum::<u64>();
    let all = || "all".to_owned();
    for p in paths {
        let not_given = p.up.iter().chain(&p.dropped);
        let why: Vec<_> = not_given.map(|r| format!("{} {}", r.packets, r.reason)).collect();
        let run = p.run.as_ref();
        let of_run = |part: fn(&PathStand) -> u64| run.map_or(String::new(), |run| part(run).to_string());
        table.row([
            p.path.clone(),
            p.router.clone().unwrap_or_else(all),
            p.port.clone().unwrap_or_else(all),
            run.map_or("-".into(), |run| run.worker.to_string()),
            run.map_or(String::new(), |run| format!("{:.0}%", run.share * 100.0)),
            if p.why_not.is_none() { p.packets.to_string() } else { "inactive".into() },
            of_run(|run| run.out.values().sum()),
            of_run(|run| run.up.values().sum()),
            of_run(|run| run.dropped.values().sum::<u64>() + run.worker_panicked + run.stopped_packets),
            sum(&p.lost).to_string(),
            format!("{} {}", sum(&p.up) + sum(&p.dropped), p.otherwise),
            why.join(", "),
        ]);
    }
    if paths.is_empty() { String::new() } else { table.text() }
}

/// `millrace ports`.
pub fn ports(ports: &[PortReport]) -> String {
    let mut table = Table::new(&["PORT", "NUMBER", "DEVICE", "MODE", "LOST", "PROBLEMS"]);
    for p in ports {
        let lost: Vec<_> = p.lost.iter().map(|r| format!("{} {}", r.packets, r.reason)).collect();
        table.row([
            p.port.clone(),
            p.number.to_string(),
            p.ifindex.to_string(),
            p.mode.clone(),
            lost.join(", "),
            p.problems.join("; "),
        ]);
    }
    let classifiers = ports.iter().filter_map(|p| Some((&p.port, p.classifier.as_ref()?)));
    let lines = classifiers.map(|(port, does)| format!("classifier of {port}: {does}\n"));
    table.text() + &lines.collect::<String>()
}

/// `millrace controllers`: a row for each connection, then how earlier ones ended, and whether rules apply.
pub fn controllers(r: &ControllersReport) -> String {
    let mut text = match r.controllers.is_empty() {
        true => "no controllers; set them with --controller, or with `controllers` of [openflow] in the configuration\n".into(),
        false => controller_connections(&r.controllers),
    };
    for c in &r.controllers {
        if let (Some(end), Some(age_s)) = (&c.last_end, c.last_end_age_s) {
            let before = if c.connections.is_empty() { "" } else { "an earlier connection, " };
            text += &format!("  {}: {before}{} ago: {end}\n", c.target, span(age_s as u64));
        }
    }
    let charge = match r.rules == 0 && !r.in_charge {
        true => "none".into(),
        false => format!("{}, {}", r.rules, standing("in charge", r.in_charge, r.why_not.as_deref())),
    };
    let fail = match &r.fail {
        Some(mode) => format!("fail mode {mode}"),
        None => "no fail mode, because no controller is dialled: rules always apply".into(),
    };
    text + &format!("flow rules  {charge}; {fail}{}\n", controller_lost(&r.lost))
}

fn controller_connections(controllers: &[ControllerReport]) -> String {
    let heads = ["TARGET", "PEER", "VERSION", "ROLE", "FOR", "MESSAGES", "PACKET-INS", "DROPPED"];
    let mut table = Table::new(&heads);
    for c in controllers {
        if c.connections.is_empty() {
            let state = if c.listening.is_some() { "nobody" } else { "not connected" };
            let nothing = (2..heads.len()).map(|_| String::new());
            table.row([c.target.clone(), state.into()].into_iter().chain(nothing));
        }
        let row = |peer: &Connection| {
            [
                c.target.clone(),
                peer.peer.clone(),
                peer.version.clone().unwrap_or_else(|| "no hello yet".into()),
                peer.role.clone(),
                span(peer.age_s as u64),
                peer.messages.to_string(),
                peer.packet_ins.to_string(),
                peer.packet_ins_dropped.to_string(),
            ]
        };
        c.connections.iter().for_each(|peer| table.row(row(peer)));
    }
    table.text()
}

/// `millrace routers`: a row for each, then why some are not accelerated.
pub fn routers(routers: &[RouterReport]) -> String {
    let mut table = Table::new(&[
        "ROUTER",
        "IPV4",
        "IPV6",
        "INTERFACES",
        "ROUTES4",
        "ROUTES6",
        "FORWARDED",
        "TO KERNEL",
        "DROPPED",
        "NS/PACKET",
        "WEIGHT",
        "SHARE",
    ]);
    for r in routers {
        let how = how_much(r);
        table.row([
            r.router.clone(),
            how.ipv4.into(),
            how.ipv6.into(),
            r.interfaces.to_string(),
            r.routes.ipv4.to_string(),
            r.routes.ipv6.to_string(),
            r.packets.forwarded.to_string(),
            r.packets.passed.to_string(),
            r.packets.dropped.to_string(),
            r.ns_per_packet.map_or(String::new(), |ns| format!("{ns:.0}")),
            r.weight.to_string(),
            r.share.map_or(String::new(), |share| format!("{:.0}%", share * 100.0)),
        ]);
    }
    let mut text = table.text();
    for r in routers {
        if r.cut > 0 {
            text +=
                &format!("  {}: {} of those dropped were over its share of a full core\n", r.router, r.cut);
        }
        for version in [(r.ruled.ipv4, "IPv4"), (r.ruled.ipv6, "IPv6")].iter().filter(|v| v.0).map(|v| v.1) {
            let some = "firewall rules may affect some packets; millrace firewall lists them";
            text += &format!("  {}: {version}: {some}\n", r.router);
        }
        for line in r.why_not.sentences().into_iter().chain(left(&r.left_to_kernel, Families::sentences)) {
            text += &format!("  {}: {line}\n", r.router);
        }
    }
    text
}

/// `millrace firewall`: the pairs of devices of each router and IP version, then the rules that keep them with
/// Linux.
pub fn firewall(routers: &[FirewallReport]) -> String {
    let mut text = String::new();
    for router in routers {
        for (version, rules) in [("IPv4", &router.rules.ipv4), ("IPv6", &router.rules.ipv6)] {
            if !text.is_empty() {
                text.push('\n');
            }
            match rules {
                Some(rules) => text += &ruled_pairs(&router.router, version, rules),
                None => text += &format!("{}, {version}: no chains in the forwarding path\n", router.router),
            }
        }
    }
    text
}

fn ruled_pairs(router: &str, version: &str, rules: &RuledPairs) -> String {
    let mut table = Table::new(&["FROM", "TO", "NEW", "ESTABLISHED"]);
    let mut notes: Vec<&str> = Vec::new();
    for pair in &rules.pairs {
        let mut noted = |word: &str, why| {
            let known = notes.iter().position(|note| *note == why);
            let number = known.unwrap_or_else(|| {
                notes.push(why);
                notes.len() - 1
            });
            format!("{word} [{}]", number + 1)
        };
        let new = pair.why_not.as_ref().map_or("fast".into(), |why| noted("kernel", why));
        let established = match (&pair.why_not, &pair.checked) {
            (None, _) => "fast".into(),
            (Some(_), None) if pair.established => "fast".into(),
            (Some(_), Some(why)) if pair.established => noted("some fast", why),
            _ => "kernel".to_owned(),
        };
        table.row([some_names(&pair.from), some_names(&pair.to), new, established]);
    }
    let mut text = format!("{router}, {version}:\n{}", table.text());
    for (i, note) in notes.iter().enumerate() {
        text += &format!("  [{}] {note}\n", i + 1);
    }
    if !rules.exceptions.is_empty() {
        text += &format!("  always to the kernel: {}\n", rules.exceptions.join(", "));
    }
    text
}

/// `millrace connections`: those that are fast, then the others, each with the reason.
pub fn connections(all: &[ConnectionReport]) -> String {
    if all.is_empty() {
        return "no matching connections: none is fast, and none was refused recently\n".into();
    }
    let (fast, linux): (Vec<_>, Vec<_>) = all.iter().partition(|c| c.state == ConnectionState::Fast);
    let mut text = String::new();
    if !fast.is_empty() {
        let mut table = Table::new(&[
            "ROUTER",
            "PROTO",
            "SOURCE",
            "DESTINATION",
            "AFTER NAT",
            "PACKETS",
            "REPLIES",
            "BYTES",
            "EXPIRES",
        ]);
        for c in fast {
            let nat = c
                .translated
                .as_ref()
                .map_or("-".into(), |[source, destination]| format!("{source} > {destination}"));
            table.row([
                c.router.clone(),
                c.protocol.clone(),
                c.source.clone(),
                c.destination.clone(),
                nat,
                c.packets.to_string(),
                c.reply_packets.to_string(),
                (c.bytes + c.reply_bytes).to_string(),
                c.expires_s.map_or("-".into(), |s| format!("{s:.0} s")),
            ]);
        }
        text += &table.text();
    }
    if !linux.is_empty() {
        if !text.is_empty() {
            text.push('\n');
        }
        let mut table = Table::new(&["ROUTER", "PROTO", "SOURCE", "DESTINATION", "WHY IT STAYS WITH LINUX"]);
        for c in linux {
            let why = c.why_not.clone().unwrap_or_default();
            table.row([c.router.clone(), c.protocol.clone(), c.source.clone(), c.destination.clone(), why]);
        }
        text += &table.text();
    }
    text
}

/// At most three names.
fn some_names(names: &[String]) -> String {
    const MOST: usize = 3;
    let more = names.len().saturating_sub(MOST);
    let shown = names[..names.len().min(MOST)].join(", ");
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}

/// Whether all, some or none of a router's interfaces are accelerated, by IP version.
pub fn how_much(r: &RouterReport) -> Families<&'static str> {
    let word = |accelerated: bool, why_not: &[String], own: fn(&LeftInterface) -> bool| {
        let left = r.left_to_kernel.iter().filter(|i| own(i)).count() as u64;
        match accelerated {
            true => "fast",
            false if why_not.is_empty() && left < r.interfaces => "partly",
            false => "kernel",
        }
    };
    Families {
        ipv4: word(r.accelerated.ipv4, &r.why_not.ipv4, |i| !i.why_not.ipv4.is_empty()),
        ipv6: word(r.accelerated.ipv6, &r.why_not.ipv6, |i| !i.why_not.ipv6.is_empty()),
    }
}

/// A line for each interface that is left to the kernel, up to [`LEFT_SHOWN`].
fn left(interfaces: &[LeftInterface], reasons: fn(&Families<Vec<String>>) -> Vec<String>) -> Vec<String> {
    let line = |i: &LeftInterface| format!("interface {}: {}", i.interface, reasons(&i.why_not).join("; "));
    let more = interfaces.len().saturating_sub(LEFT_SHOWN);
    let rest = (more > 0).then(|| format!("{more} more interfaces, see `millrace interfaces`"));
    interfaces.iter().take(LEFT_SHOWN).map(line).chain(rest).collect()
}

/// `millrace interfaces`.
pub fn interfaces(interfaces: &[InterfaceReport]) -> String {
    let mut table = Table::new(&[
        "ROUTER",
        "INTERFACE",
        "PORT",
        "VLAN",
        "MAC",
        "IPV4",
        "IPV6",
        "RX PACKETS",
        "RX BYTES",
        "TX PACKETS",
        "TX BYTES",
        "WHY NOT",
    ]);
    let yes = |accelerated| if accelerated { "fast" } else { "kernel" };
    for i in interfaces {
        table.row([
            i.router.clone(),
            i.interface.clone(),
            i.port.clone().unwrap_or_default(),
            i.vlan.clone().unwrap_or_default(),
            i.mac.clone(),
            yes(i.accelerated.ipv4).into(),
            yes(i.accelerated.ipv6).into(),
            i.rx_packets.to_string(),
            i.rx_bytes.to_string(),
            i.tx_packets.to_string(),
            i.tx_bytes.to_string(),
            i.why_not.sentences().join("; "),
        ]);
    }
    table.text()
}

/// `millrace routes ADDR`.
pub fn route(r: &RouteReport) -> String {
    let prefix = r.prefix.as_ref().map_or(String::new(), |p| format!(" (by {p})"));
    let mut text = format!("{} in router {}{prefix}:\n", r.address, r.router);
    let family = if r.address.contains(':') { "IPv6" } else { "IPv4" };
    for why in &r.why_not {
        text += &format!("  to the kernel: {family} of router {} is not accelerated: {why}\n", r.router);
    }
    let unused = if r.why_not.is_empty() { "" } else { "not used, but in the table: " };
    for hop in &r.hops {
        text += &format!("  {unused}{}\n", hop_words(hop, r.hops.len() > 1));
    }
    let reasons = |why: &Families<Vec<String>>| [&why.ipv4[..], &why.ipv6[..]].concat();
    for line in left(&r.left_to_kernel, reasons) {
        text += &format!("  to the kernel if it arrives on {line}\n");
    }
    text
}

fn hop_words(hop: &HopReport, several: bool) -> String {
    let share = match hop.share {
        Some(share) if several => format!("{:.0}% of flows: ", f64::from(share) * 100.0 / 256.0),
        _ => String::new(),
    };
    let Some(interface) = hop.interface.as_ref().filter(|_| hop.action == "forward") else {
        return format!("{share}to the kernel: {}", hop.reason.as_deref().unwrap_or("?"));
    };
    let mac = match (&hop.mac, &hop.reason) {
        (Some(mac), _) => format!("MAC {mac}"),
        (None, Some(reason)) => format!("to the kernel for now: {reason}"),
        (None, None) => "to the kernel for now: MAC address not resolved".into(),
    };
    let mtu = hop.mtu.map_or(String::new(), |m| format!(", MTU {m}"));
    format!("{share}forwarded via {} on {interface}, {mac}{mtu}", hop.next_hop.as_deref().unwrap_or("?"))
}

/// `millrace routes --verify`.
pub fn verify(v: &VerifyReport) -> String {
    let mut table = Table::new(&["ROUTER", "PREFIXES4", "PREFIXES6", "ASKED", "DIFFERENCES", "RESULT"]);
    for r in &v.routers {
        let numbers = [r.compared.ipv4, r.compared.ipv6, r.asked, r.found].map(|n| n.to_string());
        let [ipv4, ipv6, asked, found] = numbers;
        table.row([r.router.clone(), ipv4, ipv6, asked, found, r.result.text().into()]);
    }
    let mut text = table.text();
    for r in &v.routers {
        if let Some(line) = unused(r) {
            text += &format!("  {}: {line}\n", r.router);
        }
        for (reason, addresses) in &r.left {
            text += &format!("  {}: left to the kernel ({reason}): {addresses} addresses\n", r.router);
        }
        if let Some(why) = &r.why {
            let addresses = match r.changing {
                0 => String::new(),
                n => format!(" ({n} addresses)"),
            };
            let not =
                if r.result.is_unverified() { "could not be verified" } else { "compared only in part" };
            text += &format!("  {}: {not}: {why}{addresses}\n", r.router);
        }
        for d in &r.differences {
            text += &format!(
                "  {}: {}: the kernel has {}, the fast table {}\n",
                r.router, d.prefix, d.kernel, d.fast
            );
        }
    }
    let unverified = v.routers.iter().filter(|r| r.result.is_unverified()).map(|r| r.router.as_str());
    let unverified = unverified.collect::<Vec<_>>().join(", ");
    let (others, not) = match unverified.as_str() {
        "" => ("", String::new()),
        names => (" other", format!("could not be verified: {names}\n")),
    };
    let any = v.routers.iter().any(|r| r.result == VerifyResult::Verified);
    text += &match v.differences {
        0 if !any => format!("nothing was compared\n{not}"),
        0 => format!("the{others} fast tables agree with the kernel's\n{not}"),
        n => format!("{n} differences\n{not}"),
    };
    text + "PREFIXES are those of the kernel's routes and its own addresses; ROUTES of `millrace routers` are those in \
            the fast table; ASKED are the addresses that the kernel was asked about\n"
}

/// A line that the tables of a router are not used, and why.
fn unused(r: &VerifyRouter) -> Option<String> {
    let family = match (r.why_not.ipv4.is_empty(), r.why_not.ipv6.is_empty()) {
        (true, true) => return None,
        (false, true) => "IPv4 is",
        (true, false) => "IPv6 is",
        (false, false) => "IPv4 and IPv6 are",
    };
    Some(format!("{family} not accelerated, so the table is not used: {}", r.why_not.sentences().join("; ")))
}

/// `millrace reload`.
pub fn reload(r: &ReloadReport) -> String {
    match &r.changed[..] {
        [] => "no key has changed\n".into(),
        changed => format!("changed: {}\n", changed.join(", ")),
    }
}

/// `millrace stop`.
pub fn stop(s: &StopReport) -> String {
    if s.done.is_empty() {
        return "nothing to do: no program or pin of this instance is in the kernel\n".into();
    }
    s.done.iter().map(|line| format!("{line}\n")).collect()
}

pub fn span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < units.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", units[unit]) }
}

#[cfg(test)]
mod tests;
