//! Reports as text for people.

use super::{Explained, table::Table};
use crate::daemon::{
    packet::Headers,
    report::{
        ExplainReport, Families, HopReport, InterfaceReport, PortReport, ReasonCount, RouteReport,
        RouterReport, Status, StopReport, VerifyReport,
    },
};

/// Reasons that `status` shows.
const TOP_REASONS: usize = 8;

/// `millrace status`.
pub fn status(s: &Status) -> String {
    let instance = s.instance.as_ref().map_or(String::new(), |i| format!(" instance {i},"));
    let state = if s.ready { "forwarding" } else { "NOT READY" };
    let mut text =
        format!("millrace {},{instance} process {}, up {}: {state}\n", s.version, s.pid, span(s.uptime_s));
    if let Some(problem) = &s.problem {
        text += &format!("problem     {problem}\n");
    }
    for trouble in &s.troubles {
        text += &format!("problem     cannot be read: {trouble}\n");
    }
    for port in &s.ports {
        for problem in &port.problems {
            text += &format!("problem     port {} is not trusted: {problem}\n", port.name);
        }
        if let Some(note) = &port.note {
            text += &format!("note        port {}: {note}\n", port.name);
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
        n => format!("; {n} of those forwarded were lost at the egress port"),
    };
    text += &format!(
        "packets     {} forwarded ({}){cost}, {} to the kernel, {} dropped{lost}\n",
        s.packets.forwarded,
        size(s.packets.forwarded_bytes),
        s.packets.passed,
        s.packets.dropped
    );
    text += &format!(
        "tables      {} IPv4 and {} IPv6 routes, {} neighbours; generation {}\n",
        s.routes.ipv4, s.routes.ipv6, s.neighbours, s.generation
    );
    let shown = &s.reasons[..s.reasons.len().min(TOP_REASONS)];
    for part in [ports(&s.ports), routers(&s.routers), reasons(shown), tables(s)] {
        if !part.is_empty() {
            text += &format!("\n{part}");
        }
    }
    text
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
            _ => "to the kernel",
        };
        table.row([r.reason.clone(), r.packets.to_string(), went.into(), r.text.clone()]);
    }
    table.text()
}

/// `millrace ports`.
pub fn ports(ports: &[PortReport]) -> String {
    let mut table = Table::new(&["PORT", "DEVICE", "MODE", "LOST", "PROBLEMS"]);
    for p in ports {
        let lost: Vec<_> = p.lost.iter().map(|r| format!("{} {}", r.packets, r.reason)).collect();
        table.row([
            p.name.clone(),
            p.ifindex.to_string(),
            p.mode.clone(),
            lost.join(", "),
            p.problems.join("; "),
        ]);
    }
    table.text()
}

/// `millrace routers`: a row each, then why something is not accelerated.
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
    ]);
    let yes = |accelerated| if accelerated { "fast" } else { "kernel" };
    for r in routers {
        table.row([
            r.name.clone(),
            yes(r.accelerated.ipv4).into(),
            yes(r.accelerated.ipv6).into(),
            r.interfaces.to_string(),
            r.routes.ipv4.to_string(),
            r.routes.ipv6.to_string(),
            r.packets.forwarded.to_string(),
            r.packets.passed.to_string(),
            r.packets.dropped.to_string(),
            r.ns_per_packet.map_or(String::new(), |ns| format!("{ns:.0}")),
        ]);
    }
    let mut text = table.text();
    for r in routers {
        for line in why_not(&r.why_not) {
            text += &format!("  {}: {line}\n", r.name);
        }
    }
    text
}

fn why_not(why: &Families<Vec<String>>) -> Vec<String> {
    if why.ipv4 == why.ipv6 {
        return why.ipv4.clone();
    }
    let named = |family, list: &[String]| list.iter().map(|w| format!("{family}: {w}")).collect::<Vec<_>>();
    [named("IPv4", &why.ipv4), named("IPv6", &why.ipv6)].concat()
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
            i.name.clone(),
            i.port.clone().unwrap_or_default(),
            i.vlan.clone(),
            i.mac.clone(),
            yes(i.accelerated.ipv4).into(),
            yes(i.accelerated.ipv6).into(),
            i.rx_packets.to_string(),
            i.rx_bytes.to_string(),
            i.tx_packets.to_string(),
            i.tx_bytes.to_string(),
            why_not(&i.why_not).join("; "),
        ]);
    }
    table.text()
}

/// `millrace routes ADDR`.
pub fn route(r: &RouteReport) -> String {
    let prefix = r.prefix.as_ref().map_or(String::new(), |p| format!(" (by {p})"));
    let mut text = format!("{} in router {}{prefix}:\n", r.address, r.router);
    for hop in &r.hops {
        text += &format!("  {}\n", hop_words(hop, r.hops.len() > 1));
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
        (None, None) => "not resolved: to the kernel for now".into(),
    };
    let mtu = hop.mtu.map_or(String::new(), |m| format!(", MTU {m}"));
    format!("{share}forwarded via {} on {interface}, {mac}{mtu}", hop.next_hop.as_deref().unwrap_or("?"))
}

/// `millrace routes --verify`.
pub fn verify(v: &VerifyReport) -> String {
    let mut table = Table::new(&["ROUTER", "IPV4", "IPV6", "DIFFERENCES"]);
    for r in &v.routers {
        let differences = r.differences.len().to_string();
        table.row([r.router.clone(), r.compared.ipv4.to_string(), r.compared.ipv6.to_string(), differences]);
    }
    let mut text = table.text();
    for r in &v.routers {
        for d in &r.differences {
            text += &format!(
                "  {}: {}: the kernel says {}, the fast table {}\n",
                r.router, d.prefix, d.kernel, d.fast
            );
        }
    }
    text += &match v.differences {
        0 => "the fast tables agree with the kernel's\n".into(),
        n => format!("{n} differences\n"),
    };
    text
}

/// `millrace explain`.
pub fn explanations(explained: &[Explained]) -> String {
    let text = |(i, e): (usize, &Explained)| {
        let head = if explained.len() > 1 { format!("packet {}\n", i + 1) } else { String::new() };
        head + &match e {
            Explained::Report(report) => explanation(report),
            Explained::Not { error } => format!("not explained: {error}\n"),
        }
    };
    explained.iter().enumerate().map(text).collect::<Vec<_>>().join("\n")
}

fn explanation(r: &ExplainReport) -> String {
    let mut text = String::new();
    for (i, step) in r.steps.iter().enumerate() {
        text += &format!("{:>3}. {step}\n", i + 1);
    }
    let verdict = match (r.verdict.as_str(), &r.reason, &r.egress) {
        ("forward", _, Some(port)) => format!("forwarded by port {port}"),
        ("forward", ..) => "forwarded".into(),
        ("pass", Some(reason), _) => format!("goes to the kernel: {}", reason.text),
        ("pass", ..) => "goes to the kernel".into(),
        (_, Some(reason), _) => format!("dropped: {}", reason.text),
        _ => "dropped".into(),
    };
    text += &format!("verdict: {verdict}\n");
    if let (Some(before), Some(after)) = (&r.before, &r.after) {
        changes(before, after).iter().for_each(|line| text += &format!("  {line}\n"));
    }
    text
}

/// What the program rewrote.
fn changes(before: &Headers, after: &Headers) -> Vec<String> {
    let number = |n: Option<u8>| n.map_or("-".into(), |n| n.to_string());
    let sum = |n: Option<u16>| n.map_or("-".into(), |n| format!("{n:#06x}"));
    let rows = [
        ("destination MAC", before.destination_mac.clone(), after.destination_mac.clone()),
        ("source MAC", before.source_mac.clone(), after.source_mac.clone()),
        ("VLAN", before.vlan.clone(), after.vlan.clone()),
        ("TTL", number(before.ttl), number(after.ttl)),
        ("header checksum", sum(before.checksum), sum(after.checksum)),
        ("frame bytes", before.length.to_string(), after.length.to_string()),
    ];
    let changed = rows.into_iter().filter(|(_, b, a)| b != a);
    changed.map(|(what, b, a)| format!("{what}: {b} -> {a}")).collect()
}

/// `millrace stop`.
pub fn stop(s: &StopReport) -> String {
    if s.done.is_empty() {
        return "nothing to do: no program or pin of this instance is in the kernel\n".into();
    }
    s.done.iter().map(|line| format!("{line}\n")).collect()
}

fn span(seconds: u64) -> String {
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
