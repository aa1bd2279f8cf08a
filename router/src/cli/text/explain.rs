//! `millrace explain`.

use super::{super::Explained, Table};
use crate::{
    api::{
        flows::{OutputReport, RulePassed, RulesReport},
        status::ExplainReport,
    },
    base::packet::Headers,
};
use logic::flow::rule::CORE_TABLE;
use std::{collections::BTreeMap, net::IpAddr};

/// `millrace explain`.
pub fn explanations(explained: &[Explained], verbose: bool) -> String {
    let text = |(i, e): (usize, &Explained)| {
        let head = if explained.len() > 1 { format!("packet {}\n", i + 1) } else { String::new() };
        head + &match e {
            Explained::Report(report) => explanation(report, verbose),
            Explained::Not { error } => format!("not explained: {error}\n"),
        }
    };
    let each = explained.iter().enumerate().map(text).collect::<Vec<_>>().join("\n");
    if explained.len() > 1 { format!("{}\n{each}", sums(explained)) } else { each }
}

/// How many packets had each verdict, the most frequent first.
fn sums(explained: &[Explained]) -> String {
    let mut sums: BTreeMap<String, usize> = BTreeMap::new();
    for e in explained {
        let end = match e {
            Explained::Report(report) => verdict(report),
            Explained::Not { .. } => "not explained".into(),
        };
        *sums.entry(end).or_default() += 1;
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    let mut table = Table::new(&["PACKETS", "VERDICT"]);
    sums.into_iter().for_each(|(end, n)| table.row([n.to_string(), end]));
    table.text()
}

fn explanation(r: &ExplainReport, verbose: bool) -> String {
    let notes = r.notes.iter().chain(r.rules.iter().flat_map(|rules| &rules.notes));
    let mut text: String = notes.map(|note| format!("note: {note}\n")).collect();
    text.extend(r.rules.iter().map(|rules| by_rules(rules, r.before.as_ref())));
    for (i, step) in r.steps.iter().filter(|step| verbose || !step.detail).enumerate() {
        text += &format!("{:>3}. {}\n", i + 1, step.text);
    }
    text += &format!("verdict: {}\n", verdict(r));
    if let (Some(before), Some(after)) = (&r.before, &r.after) {
        changes(before, after).iter().for_each(|line| text += &format!("  {line}\n"));
    }
    text
}

/// The rules that decide, who executes them, and the packets that they send, before routing.
fn by_rules(r: &RulesReport, before: Option<&Headers>) -> String {
    let mut text = String::new();
    for RulePassed { table, flow, .. } in &r.rules {
        let flow = flow.as_deref().unwrap_or("no rule matches");
        match *table {
            CORE_TABLE => text += &format!("core table: {flow}\n"),
            table => text += &format!("table {table}: {flow}\n"),
        }
    }
    r.buckets.iter().for_each(|b| text += &format!("group {}: bucket {}\n", b.group, b.bucket));
    match &r.why {
        Some(why) => text += &format!("by user space: {why}\n"),
        None if r.slow => text += "by user space\n",
        None => {
            let core = r.core.map_or(String::new(), |core| format!(", on core {core}"));
            text += &format!("by the kernel plane{core}\n");
        }
    }
    for OutputReport { to, lost, headers, .. } in &r.outputs {
        let lost = lost.as_ref().map_or(String::new(), |why| format!(", where it is lost: {why}"));
        text += &format!("sent to {to}{lost}\n");
        let rewritten = before.zip(headers.as_ref()).map(|(before, after)| changes(before, after));
        rewritten.into_iter().flatten().for_each(|line| text += &format!("  {line}\n"));
    }
    text
}

fn verdict(r: &ExplainReport) -> String {
    match (r.verdict.as_str(), &r.reason, &r.egress) {
        ("controller", ..) => "goes to the controllers".into(),
        ("path", ..) => format!("given to the worker of path {}", r.path.as_deref().unwrap_or("?")),
        ("forward", _, Some(port)) => format!("forwarded by port {port}"),
        ("forward", ..) => "forwarded".into(),
        ("pass", Some(reason), _) => format!("goes to the kernel: {}", reason.text),
        ("pass", ..) => "goes to the kernel".into(),
        (_, Some(reason), _) => format!("dropped: {}", reason.text),
        _ => "dropped".into(),
    }
}

/// A line for each field that was rewritten.
fn changes(before: &Headers, after: &Headers) -> Vec<String> {
    let tag = |h: &Headers| h.vlan.clone().unwrap_or("-".into());
    let number = |n: Option<u8>| n.map_or("-".into(), |n| n.to_string());
    let address = |a: Option<IpAddr>| a.map_or("-".into(), |a| a.to_string());
    let sum = |n: Option<u16>| n.map_or("-".into(), |n| format!("{n:#06x}"));
    let rows = [
        ("destination MAC", before.destination_mac.clone(), after.destination_mac.clone()),
        ("source MAC", before.source_mac.clone(), after.source_mac.clone()),
        ("VLAN", tag(before), tag(after)),
        ("source", address(before.source), address(after.source)),
        ("destination", address(before.destination), address(after.destination)),
        ("TTL", number(before.ttl), number(after.ttl)),
        ("header checksum", sum(before.checksum), sum(after.checksum)),
        ("frame bytes", before.length.to_string(), after.length.to_string()),
    ];
    let changed = rows.into_iter().filter(|(_, b, a)| b != a);
    changed.map(|(what, b, a)| format!("{what}: {b} -> {a}")).collect()
}
