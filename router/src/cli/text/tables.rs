//! Ports, routers and interfaces as tables, with long texts below them.

use super::{
    super::table::{Table, count, number, percent},
    findings::findings,
};
use crate::api::{
    status::{InterfaceReport, PortReport, ReasonCount, RouterReport},
    summary::{how_much, router_findings},
};
use serde::Serialize;

/// `millrace ports`.
pub fn ports(ports: &[PortReport]) -> String {
    let classifiers = ports.iter().filter_map(|p| Some((&p.port, p.classifier.as_ref()?)));
    let lines = classifiers.map(|(port, does)| format!("classifier of {port}: {does}\n"));
    ports_table(ports, true).text() + &lines.collect::<String>()
}

/// A row for each port; with `why`, notes say why one is not trusted or slow, and why packets were lost.
pub fn ports_table(ports: &[PortReport], why: bool) -> Table {
    let mut table =
        Table::new(&["PORT", "NUMBER", "IFINDEX", "MODE", "STATE", "RX PACKETS", "TX PACKETS", "LOST"]);
    for p in ports {
        let state = if p.problems.is_empty() { "trusted" } else { "not trusted" };
        let signs = match why {
            true => table.notes(p.problems.iter().chain(&p.note).map(|why| &why.text)),
            false => String::new(),
        };
        let lost = p.lost.iter().fold(0_u64, |sum, r| sum.saturating_add(r.packets));
        let reasons = if why && lost > 0 { table.note(&counted(&p.lost)) } else { String::new() };
        table.row([
            p.port.clone(),
            p.number.to_string(),
            p.ifindex.to_string(),
            p.mode.clone(),
            format!("{state} {signs}").trim_end().into(),
            p.rx_packets.to_string(),
            p.tx_packets.to_string(),
            format!("{} {reasons}", count(lost)).trim().into(),
        ]);
    }
    table
}

/// `8 tx_ring_full, 1 port_down`
fn counted(reasons: &[ReasonCount]) -> String {
    reasons.iter().map(|r| format!("{} {}", r.packets, r.reason)).collect::<Vec<_>>().join(", ")
}

/// `millrace routers`: a row for each, their shares of full cores, then why some are not accelerated.
pub fn routers(routers: &[RouterReport]) -> String {
    let mut text = routers_table(routers).text();
    if routers.iter().any(|r| r.weight > 1 || r.share.is_some() || r.cut > 0) {
        let mut table = Table::new(&["ROUTER", "WEIGHT", "SHARE OF FULL CORES", "CUT PACKETS"]);
        for r in routers {
            let share = r.share.map_or(String::new(), percent);
            table.row([r.router.clone(), r.weight.to_string(), share, r.cut.to_string()]);
        }
        text += &format!("\n{}", table.text());
    }
    let why: Vec<_> = routers.iter().flat_map(|router| router_findings(router, |_| true)).collect();
    match findings(&why) {
        lines if lines.is_empty() => text,
        lines => text + "\n" + &lines,
    }
}

/// A row for each router.
pub fn routers_table(routers: &[RouterReport]) -> Table {
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
            r.ns_per_packet.filter(|ns| ns.is_finite()).map_or(String::new(), |ns| format!("{ns:.0}")),
        ]);
    }
    table
}

/// An interface, as `millrace interfaces` shows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct InterfaceShown {
    #[serde(flatten)]
    pub report: InterfaceReport,
    /// Its addresses with prefix lengths; `None`: Linux could not be asked.
    pub addresses: Option<Vec<String>>,
    #[serde(flatten)]
    pub rates: Option<InterfaceRates>,
}

/// What an interface counted between two readings; `None`: it did not exist before, or its counters began again.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct InterfaceRates {
    rx_packets_per_s: Option<f64>,
    rx_bits_per_s: Option<f64>,
    not_forwarded_packets_per_s: Option<f64>,
    tx_packets_per_s: Option<f64>,
    tx_bits_per_s: Option<f64>,
}

impl InterfaceRates {
    /// The rates, from two readings with this time between them.
    pub fn between(before: Option<&InterfaceReport>, now: &InterfaceReport, seconds: f64) -> InterfaceRates {
        let rate = |field: fn(&InterfaceReport) -> u64| {
            let counted = field(now).checked_sub(field(before?))?;
            (seconds > 0.0).then(|| counted as f64 / seconds)
        };
        InterfaceRates {
            rx_packets_per_s: rate(|i| i.rx_packets),
            rx_bits_per_s: rate(|i| i.rx_bytes).map(|bytes| 8.0 * bytes),
            not_forwarded_packets_per_s: rate(|i| i.not_forwarded_packets),
            tx_packets_per_s: rate(|i| i.tx_packets),
            tx_bits_per_s: rate(|i| i.tx_bytes).map(|bytes| 8.0 * bytes),
        }
    }
}

/// `millrace interfaces`: where each is, its addresses, and the reasons against it; then its packets or rates.
pub fn interfaces(interfaces: &[InterfaceShown]) -> String {
    if interfaces.is_empty() {
        return "no matching interfaces\n".into();
    }
    let mut table =
        Table::new(&["ROUTER", "INTERFACE", "PORT", "VLAN", "MAC", "IPV4", "IPV6", "WHY", "ADDRESSES"]);
    let heads = match interfaces.iter().any(|i| i.rates.is_some()) {
        true => ["RX PACKETS/S", "NOT FORWARDED/S", "RX BIT/S", "TX PACKETS/S", "TX BIT/S"],
        false => ["RX PACKETS", "NOT FORWARDED", "RX BYTES", "TX PACKETS", "TX BYTES"],
    };
    let mut counts = Table::new(&[&["ROUTER", "INTERFACE"][..], &heads].concat());
    let how = |accelerated| if accelerated { "fast" } else { "kernel" };
    for InterfaceShown { report: i, addresses, rates } in interfaces {
        let why = table.notes(i.why_not.sentences());
        let addresses = match addresses.as_deref() {
            None | Some([]) => String::new(),
            Some([one]) => one.clone(),
            Some([first, more @ ..]) => {
                format!("{first} +{} {}", more.len(), table.note(&format!("{first}, {}", more.join(", "))))
            }
        };
        table.row([
            i.router.clone(),
            i.interface.clone(),
            i.port.clone().unwrap_or_default(),
            i.vlan.clone().unwrap_or_default(),
            i.mac.clone(),
            how(i.accelerated.ipv4).into(),
            how(i.accelerated.ipv6).into(),
            why,
            addresses,
        ]);
        let counted = [i.rx_packets, i.not_forwarded_packets, i.rx_bytes, i.tx_packets, i.tx_bytes];
        let numbers = match rates {
            None => counted.map(|count| count.to_string()),
            Some(r) => [
                r.rx_packets_per_s,
                r.not_forwarded_packets_per_s,
                r.rx_bits_per_s,
                r.tx_packets_per_s,
                r.tx_bits_per_s,
            ]
            .map(|rate| rate.map_or(String::new(), |rate| number(rate, 0))),
        };
        counts.row([i.router.clone(), i.interface.clone()].into_iter().chain(numbers));
    }
    format!("{}\n{}", table.text(), counts.text())
}
