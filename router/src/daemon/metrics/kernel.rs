//! Metrics of the daemon and of the kernel plane: packets, tables, ports, routers, interfaces, captures and exports.

use super::{
    families::Metric::{self, *},
    page::Page,
};
use crate::api::status::{
    ConditionReport, Families, InterfaceReport, PortReport, ReasonCount, RouterReport, Status,
};
use std::{collections::BTreeMap, fmt::Display};

pub fn add_daemon(page: &mut Page, status: &Status) {
    let name = status.instance.as_deref().unwrap_or_default();
    page.flag(BuildInfo, &[&status.version, &name], true);
    page.flag(Ready, &[], status.ready);
    page.gauge(Uptime, &[], status.uptime_s as f64);
    if let Some(age) = status.heartbeat.age_s {
        page.gauge(HeartbeatAge, &[], age);
    }
    page.gauge(HeartbeatTimeout, &[], status.heartbeat.timeout_s);
    page.gauge(Generation, &[], status.generation as f64);
    add_conditions(page, &status.conditions);
    page.count(Forwarded, &[], status.packets.forwarded);
    page.count(ForwardedBytes, &[], status.packets.forwarded_bytes);
    page.count(Passed, &[], status.packets.passed);
    page.count(Dropped, &[], status.packets.dropped);
    page.count(Taken, &[], status.packets.taken);
    page.count(Lost, &[], status.lost);
    for ReasonCount { reason, class, packets, .. } in &status.reasons {
        page.count(ReasonPackets, &[reason, class], *packets);
    }
    if let Some(ns) = status.ns_per_packet {
        page.gauge(PacketCost, &[], ns / 1e9);
    }
    for table in &status.tables {
        page.gauge(TableUsed, &[&table.table], table.used as f64);
        page.gauge(TableCapacity, &[&table.table], table.capacity as f64);
    }
    by_version(page, Routes, &[], status.routes, |n| n as f64);
    page.gauge(Neighbours, &[], status.neighbours as f64);
}

fn add_conditions(page: &mut Page, conditions: &[ConditionReport]) {
    page.gauge(Problems, &[], conditions.iter().filter(|condition| !condition.is_note).count() as f64);
    let mut count = BTreeMap::<&str, f64>::new();
    conditions.iter().for_each(|condition| *count.entry(&condition.kind).or_default() += 1.0);
    count.into_iter().for_each(|(kind, n)| page.gauge(Conditions, &[&kind], n));
}

/// A gauge whose last label is the IP version.
fn by_version<T>(
    page: &mut Page,
    metric: Metric,
    labels: &[&dyn Display],
    values: Families<T>,
    value: impl Fn(T) -> f64,
) {
    for (version, of) in [("4", values.ipv4), ("6", values.ipv6)] {
        page.gauge(metric, &[labels, &[&version]].concat(), value(of));
    }
}

pub fn add_ports(page: &mut Page, ports: &[PortReport]) {
    for port in ports {
        let name = &port.port;
        page.flag(PortMode, &[name, &port.mode], true);
        page.flag(PortTrusted, &[name], port.problems.is_empty());
        page.count(PortRx, &[name], port.rx_packets);
        page.count(PortTx, &[name], port.tx_packets);
        for ReasonCount { reason, packets, .. } in &port.unclassified {
            page.count(PortUnclassified, &[name, reason], *packets);
        }
        for ReasonCount { reason, packets, .. } in &port.lost {
            page.count(PortLost, &[name, reason], *packets);
        }
    }
}

pub fn add_routers(page: &mut Page, routers: &[RouterReport]) {
    for router in routers {
        let name = &router.router;
        let is = |is: bool| f64::from(u8::from(is));
        by_version(page, RouterAccelerated, &[name], router.accelerated, is);
        page.count(RouterForwarded, &[name], router.packets.forwarded);
        page.count(RouterForwardedBytes, &[name], router.packets.forwarded_bytes);
        page.count(RouterPassed, &[name], router.packets.passed);
        page.count(RouterDropped, &[name], router.packets.dropped);
        page.count(RouterTaken, &[name], router.packets.taken);
        page.count(RouterCut, &[name], router.cut);
        for ReasonCount { reason, class, packets, .. } in &router.reasons {
            page.count(RouterReason, &[name, reason, class], *packets);
        }
        page.gauge(RouterInterfaces, &[name], router.interfaces as f64);
        by_version(page, RouterRoutes, &[name], router.routes, |n| n as f64);
        page.gauge(RouterNeighbours, &[name], router.neighbours as f64);
        page.gauge(RouterWeight, &[name], f64::from(router.weight));
        if let Some(share) = router.share {
            page.gauge(RouterShare, &[name], share);
        }
        if let Some(ns) = router.ns_per_packet {
            page.gauge(RouterPacketCost, &[name], ns / 1e9);
        }
        // A router whose rules affect no packets has no connections to count.
        if router.ruled.ipv4 || router.ruled.ipv6 {
            page.gauge(Connections, &[name], router.connections as f64);
        }
    }
}

/// The capture, and exports.
pub fn add_copies(page: &mut Page, status: &Status) {
    page.flag(CaptureRunning, &[], status.capture.running);
    let Some(export) = &status.export else { return };
    page.count(ExportSamples, &[], export.samples);
    page.count(ExportLost, &[], export.lost);
    page.gauge(ExportEvery, &[], f64::from(export.every));
    for to in &export.collectors {
        page.count(ExportDatagrams, &[&to.protocol.name(), &to.address], to.datagrams);
        page.count(ExportFailed, &[&to.protocol.name(), &to.address], to.failed);
    }
}

/// The first interfaces; `left_out` more are not here.
pub fn add_interfaces(page: &mut Page, interfaces: &[InterfaceReport], left_out: u64) {
    for interface in interfaces {
        let InterfaceReport { router, interface: name, .. } = interface;
        let port = interface.port.as_deref().unwrap_or_default();
        let is = |is: bool| f64::from(u8::from(is));
        by_version(page, InterfaceAccelerated, &[router, name, &port], interface.accelerated, is);
        page.count(InterfaceRx, &[router, name, &port], interface.rx_packets);
        page.count(InterfaceRxBytes, &[router, name, &port], interface.rx_bytes);
        page.count(InterfaceTx, &[router, name, &port], interface.tx_packets);
        page.count(InterfaceTxBytes, &[router, name, &port], interface.tx_bytes);
    }
    for metric in [InterfaceRx, InterfaceRxBytes, InterfaceTx, InterfaceTxBytes] {
        page.leave_out(metric, left_out);
    }
    page.leave_out(InterfaceAccelerated, 2 * left_out);
}
