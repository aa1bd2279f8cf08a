//! Reports as text for people.
//!
//! | file | holds |
//! |---|---|
//! | `status.rs` | `millrace status`: what is not fast, numbers, tables |
//! | `findings.rs` | problems and notes as lines below tables, each once |
//! | `tables.rs` | ports, routers and interfaces |
//! | `explain.rs` | `millrace explain` |

mod explain;
mod findings;
mod status;
mod tables;

pub use explain::explanations;
pub use findings::findings;
pub use status::status;
pub use tables::{InterfaceRates, InterfaceShown, interfaces, ports, routers};

use super::table::Table;
use crate::{
    api::{
        status::{
            ConnectionReport, ConnectionState, FirewallReport, HopReport, LeftInterface, ReloadReport,
            RouteReport, RuledPairs, StopReport, VerifyReport, VerifyResult, VerifyRouter,
        },
        summary::controller_lost,
    },
    base::words::{some_names, span},
    switch::controllers::{Connection, ControllerReport, ControllersReport},
};
use std::collections::BTreeMap;

/// The most interfaces that a route's answer lists with their reasons; `millrace interfaces` has all.
const LEFT_SHOWN: usize = 8;

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
    let charge = match (r.rules, r.in_charge) {
        (0, false) => "none".into(),
        (rules, true) => format!("{rules}, in charge"),
        (rules, false) => {
            let why = r.why_not.as_ref().map_or(String::new(), |why| format!(": {why}"));
            format!("{rules}, NOT IN CHARGE, packets are routed{why}")
        }
    };
    let fail = match &r.fail {
        Some(mode) => format!("fail mode {mode}"),
        None => "no fail mode, because no controller is dialled: rules always apply".into(),
    };
    text += &format!("flow rules  {charge}\nfailing     {fail}\n");
    text + &controller_lost(&r.lost).map_or(String::new(), |lost| lost + "\n")
}

fn controller_connections(controllers: &[ControllerReport]) -> String {
    let heads = ["TARGET", "PEER", "VERSION", "ROLE", "FOR", "MESSAGES", "PACKET-INS", "DROPPED"];
    let mut table = Table::new(&heads);
    for c in controllers {
        if c.connections.is_empty() {
            let listens = c.target.starts_with("ptcp:") || c.target.starts_with("pssl:");
            let state = match (listens, c.listening) {
                (_, Some(_)) => "nobody",
                (true, None) => "not listening",
                (false, None) => "not connected",
            };
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
    for pair in &rules.pairs {
        let mut noted = |word: &str, why| format!("{word} {}", table.note(why));
        let new = pair.why_not.as_ref().map_or("fast".into(), |why| noted("kernel", &why.text));
        let established = match (&pair.why_not, &pair.checked) {
            (None, _) => "fast".into(),
            (Some(_), None) if pair.established => "fast".into(),
            (Some(_), Some(why)) if pair.established => noted("some fast", why),
            _ => "kernel".to_owned(),
        };
        let names = |names: &[String]| some_names(names.iter().map(String::as_str));
        table.row([names(&pair.from), names(&pair.to), new, established]);
    }
    let mut text = format!("{router}, {version}:\n{}", table.text());
    if !rules.exceptions.is_empty() {
        text += &format!("  always to the kernel: {}\n", rules.exceptions.join(", "));
    }
    text
}

/// `millrace connections`: for each router those that are fast, then the others, each with the reason.
pub fn connections(all: &[ConnectionReport]) -> String {
    if all.is_empty() {
        return "no matching connections: none is fast, and none was refused recently\n".into();
    }
    let mut routers: BTreeMap<&str, [Vec<&ConnectionReport>; 2]> = BTreeMap::new();
    for c in all {
        routers.entry(&c.router).or_default()[usize::from(c.state != ConnectionState::Fast)].push(c);
    }
    let part = |(router, [fast, linux]): (&&str, &[Vec<&ConnectionReport>; 2])| {
        let tables = [("fast", fast_connections(fast)), ("with Linux", kept_connections(linux))];
        let shown = tables.into_iter().filter(|(_, table)| !table.is_empty());
        shown.map(|(how, table)| format!("{router}, {how}:\n{table}")).collect::<Vec<_>>()
    };
    routers.iter().flat_map(part).collect::<Vec<_>>().join("\n")
}

fn fast_connections(all: &[&ConnectionReport]) -> String {
    let mut table = Table::new(&["PROTO", "SOURCE", "DESTINATION", "NAT", "PACKETS", "BYTES", "EXPIRES"]);
    for c in all {
        // Only what NAT changes is worth room.
        let nat = c.translated.as_ref().map_or(String::new(), |[source, destination]| {
            let source = (*source != c.source).then(|| format!("from {source}"));
            let destination = (*destination != c.destination).then(|| format!("to {destination}"));
            source.into_iter().chain(destination).collect::<Vec<_>>().join(" ")
        });
        table.row([
            c.protocol.clone(),
            c.source.clone(),
            c.destination.clone(),
            nat,
            // Both directions together.
            c.packets.saturating_add(c.reply_packets).to_string(),
            size(c.bytes.saturating_add(c.reply_bytes)),
            c.expires_s.filter(|s| s.is_finite()).map_or(String::new(), |s| span(s as u64)),
        ]);
    }
    table.text()
}

fn kept_connections(all: &[&ConnectionReport]) -> String {
    let mut table = Table::new(&["PROTO", "SOURCE", "DESTINATION", "WHY"]);
    for c in all {
        let why = table.notes(c.why_not.iter().map(|why| &why.text));
        table.row([c.protocol.clone(), c.source.clone(), c.destination.clone(), why]);
    }
    table.text()
}

/// A line for each interface that is left to the kernel, up to [`LEFT_SHOWN`].
fn left(interfaces: &[LeftInterface]) -> Vec<String> {
    // Only the IP version of the route has reasons.
    let line = |i: &LeftInterface| {
        let reasons: Vec<_> = i.why_not.ipv4.iter().chain(&i.why_not.ipv6).map(|why| &*why.text).collect();
        format!("interface {}: {}", i.interface, reasons.join("; "))
    };
    let more = interfaces.len().saturating_sub(LEFT_SHOWN);
    let rest = (more > 0).then(|| format!("{more} more interfaces, see `millrace interfaces`"));
    interfaces.iter().take(LEFT_SHOWN).map(line).chain(rest).collect()
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
    for line in left(&r.left_to_kernel) {
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
        return format!(
            "{share}to the kernel: {}",
            hop.reason.as_ref().map_or("the reason is not known", |why| &why.text)
        );
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
