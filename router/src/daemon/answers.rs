//! Queries answered from the loop's state.

use super::{
    Control, PortState,
    api::{Answer, ApiError, Query, RouteQuery},
    pending::InterfaceView,
    report::{
        Difference, Families, Heartbeat, HopReport, InterfaceReport, Packets, PortReport, ReasonCount,
        RouteReport, RouterReport, Status, StopReport, TableUse, VerifyReport, VerifyRouter,
    },
    seam::{FastPath, Kernel, Observe},
};
use crate::plane::{Charge, Counters, InterfaceCount};
use logic::{
    plan::{InterfaceId, PortId, RouterId, Target},
    reason::{Class, Reason},
};
use serde::Serialize;
use std::{collections::BTreeMap, net::IpAddr};

impl<K: Kernel, O: Observe> Control<K, O> {
    /// Answers one query.
    pub(super) fn answer(&mut self, query: &Query) -> Answer {
        match query {
            Query::Status => json(&self.status()?),
            Query::Ports => json(&self.port_reports(&self.totals()?)),
            Query::Routers => json(&self.router_reports(&self.totals()?)),
            Query::Interfaces => json(&self.interface_reports(&self.totals()?)),
            Query::Route(query) => json(&self.route(query)?),
            Query::Verify => json(&self.verify()?),
            Query::Explain(request) => json(&self.explain(request)?),
            Query::Stop => {
                let done =
                    self.kernel.remove().map_err(|e| ApiError::failed(format!("cannot stop: {e:#}")))?;
                json(&StopReport { done })
            }
            Query::Leave => json(&()),
        }
    }

    fn totals(&self) -> Result<Counters, ApiError> {
        let current = self.generation.counters().map_err(|e| ApiError::failed(format!("{e:#}")))?;
        Ok(self.totals.of(&current))
    }

    fn status(&self) -> Result<Status, ApiError> {
        let (totals, now) = (self.totals()?, self.kernel.now());
        let routers = self.router_reports(&totals);
        let sum = |field: fn(&RouterReport) -> u64| routers.iter().map(field).sum();
        let all = all_interfaces(&totals);
        let age = self.times.confirmed.map(|at| now.saturating_sub(at));
        let problem = self.trouble.clone().or_else(|| {
            let late = age.is_none_or(|age| age >= self.config.heartbeat.0);
            late.then(|| "the mirror was not confirmed in time; the kernel forwards".into())
        });
        Ok(Status {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            instance: self.instance.name.as_ref().map(|n| n.as_str().into()),
            ready: problem.is_none(),
            problem,
            uptime_s: now.saturating_sub(self.times.started).as_secs(),
            heartbeat: Heartbeat {
                timeout_s: self.config.heartbeat.0.as_secs_f64(),
                age_s: age.map(|a| a.as_secs_f64()),
            },
            generation: self.generation.number,
            packets: packets(&all, &totals, |_| true),
            ns_per_packet: ns_per_packet(&all),
            reasons: reasons(&totals, |_| true),
            tables: self.table_use(),
            routes: Families { ipv4: sum(|r| r.routes.ipv4), ipv6: sum(|r| r.routes.ipv6) },
            neighbours: sum(|r| r.neighbours),
            ports: self.port_reports(&totals),
            routers,
        })
    }

    fn table_use(&self) -> Vec<TableUse> {
        let row = |(table, used, capacity): (&str, usize, usize)| TableUse {
            table: table.into(),
            used: used as u64,
            capacity: capacity as u64,
        };
        self.generation.tables.occupancy().into_iter().map(row).collect()
    }

    fn port_reports(&self, totals: &Counters) -> Vec<PortReport> {
        self.ports.iter().map(|(id, port)| port_report(*id, port, totals)).collect()
    }

    pub(super) fn port_name(&self, id: PortId) -> String {
        self.ports.get(&id).map_or_else(|| format!("port {id}"), |p| p.name.clone())
    }

    fn router_reports(&self, totals: &Counters) -> Vec<RouterReport> {
        let mut counts: BTreeMap<String, (u64, InterfaceCount)> = BTreeMap::new();
        for interface in self.mirror.interfaces() {
            let (number, count) = counts.entry(interface.router).or_default();
            *number += 1;
            count.add(interface.id.and_then(|id| totals.interfaces.get(&id)).copied().unwrap_or_default());
        }
        let report = |router: super::pending::RouterView| {
            let (interfaces, count) = counts.remove(&router.name).unwrap_or_default();
            let is_ours = |payer: Charge| router.id.is_some_and(|id| payer == Charge::Router(id));
            let [why_not4, why_not6] = router.why_not;
            RouterReport {
                router: router.id,
                accelerated: Families { ipv4: router.accelerated[0], ipv6: router.accelerated[1] },
                why_not: Families { ipv4: why_not4, ipv6: why_not6 },
                interfaces,
                routes: Families {
                    ipv4: router.id.map_or(0, |id| self.mirror.routes4(id).len() as u64),
                    ipv6: router.id.map_or(0, |id| self.mirror.routes6(id).len() as u64),
                },
                neighbours: router.id.map_or(0, |id| self.mirror.neighbours(id) as u64),
                packets: packets(&count, totals, is_ours),
                ns_per_packet: ns_per_packet(&count),
                reasons: reasons(totals, is_ours),
                name: router.name,
            }
        };
        self.mirror.routers().into_iter().map(report).collect()
    }

    fn interface_reports(&self, totals: &Counters) -> Vec<InterfaceReport> {
        let report = |interface: InterfaceView| {
            let count = interface.id.and_then(|id| totals.interfaces.get(&id)).copied().unwrap_or_default();
            InterfaceReport {
                interface: interface.id,
                port: interface.port.map(|p| self.port_name(p)),
                vlan: interface.vlan.to_string(),
                mac: interface.mac.to_string(),
                mtu: interface.mtu,
                accelerated: Families { ipv4: interface.accelerated[0], ipv6: interface.accelerated[1] },
                why_not: interface.why_not,
                rx_packets: count.rx_packets,
                rx_bytes: count.rx_bytes,
                tx_packets: count.tx_packets,
                tx_bytes: count.tx_bytes,
                router: interface.router,
                name: interface.name,
            }
        };
        self.mirror.interfaces().into_iter().map(report).collect()
    }

    /// Number and name of a router; the host's by default.
    pub(super) fn router(&self, name: Option<&str>) -> Result<(RouterId, String), ApiError> {
        let wanted = name.unwrap_or("host");
        let routers = self.mirror.routers();
        match routers.iter().find(|r| r.name == wanted) {
            Some(router) => router.id.map(|id| (id, router.name.clone())).ok_or_else(|| {
                ApiError::unknown(format!(
                    "router {wanted:?} has no table: {}",
                    router.why_not.concat().join("; ")
                ))
            }),
            None => {
                let names: Vec<_> = routers.iter().map(|r| r.name.as_str()).collect();
                Err(ApiError::unknown(format!("no router {wanted:?}; there are: {}", names.join(", "))))
            }
        }
    }

    pub(super) fn interface_name(&self, id: InterfaceId) -> String {
        let named = self.mirror.interfaces().into_iter().find(|i| i.id == Some(id));
        named.map_or_else(|| format!("interface {id}"), |i| i.name)
    }

    fn route(&self, query: &RouteQuery) -> Result<RouteReport, ApiError> {
        let (router, name) = self.router(query.router.as_deref())?;
        let hops = self.generation.tables.lookup(router, query.address);
        let hops = hops.iter().map(|(target, mac, share)| HopReport {
            mac: mac.map(|m| m.to_string()),
            share: Some(*share),
            ..self.hop(target, query.address)
        });
        Ok(RouteReport {
            router: name,
            address: query.address.to_string(),
            prefix: None,
            hops: hops.collect(),
        })
    }

    fn hop(&self, target: &Target, address: IpAddr) -> HopReport {
        match target {
            Target::Hop(hop) => HopReport {
                action: "forward".into(),
                interface: Some(self.interface_name(hop.interface)),
                next_hop: Some(hop.gateway.unwrap_or(address).to_string()),
                mtu: Some(hop.mtu),
                ..HopReport::default()
            },
            Target::Pass { reason, .. } => HopReport {
                action: "pass".into(),
                reason: Some(reason.text().into()),
                ..HopReport::default()
            },
            Target::Multi(_) => HopReport { action: "multipath".into(), ..HopReport::default() },
        }
    }

    fn verify(&mut self) -> Result<VerifyReport, ApiError> {
        let _ = (Difference::default(), VerifyRouter::default());
        Err(ApiError::failed("not implemented"))
    }

    pub(super) fn run_on(
        &self,
        ifindex: u32,
        frame: &[u8],
    ) -> Result<(crate::plane::TestRun, Vec<crate::plane::Step>), ApiError> {
        self.generation.plane.explain(ifindex, frame).map_err(|e| ApiError::failed(format!("{e:#}")))
    }
}

fn json(value: &impl Serialize) -> Answer {
    serde_json::to_value(value).map_err(|e| ApiError::failed(e.to_string()))
}

fn port_report(id: PortId, port: &PortState, totals: &Counters) -> PortReport {
    let absent = (port.ifindex.is_none()).then(|| "the device is not there".to_string());
    PortReport {
        name: port.name.clone(),
        port: id,
        ifindex: port.ifindex.unwrap_or(0),
        mode: port.mode.map_or("detached".into(), |m| m.to_string()),
        problems: absent
            .into_iter()
            .chain(port.refused.clone())
            .chain(port.problems.iter().cloned())
            .collect(),
        unclassified: reasons(totals, |payer| payer == Charge::Port(id)),
    }
}

fn all_interfaces(totals: &Counters) -> InterfaceCount {
    let mut all = InterfaceCount::default();
    totals.interfaces.values().for_each(|count| all.add(*count));
    all
}

fn packets(count: &InterfaceCount, totals: &Counters, is_payer: impl Fn(Charge) -> bool) -> Packets {
    let mut packets = Packets {
        forwarded: count.forwarded_packets,
        forwarded_bytes: count.forwarded_bytes,
        ..Packets::default()
    };
    for ((payer, reason), n) in &totals.charges {
        if is_payer(*payer) {
            let field =
                if reason.class() == Class::Drop { &mut packets.dropped } else { &mut packets.passed };
            *field += n;
        }
    }
    packets
}

fn ns_per_packet(count: &InterfaceCount) -> Option<f64> {
    (count.samples > 0).then(|| count.sample_ns as f64 / count.samples as f64)
}

/// Most frequent first.
fn reasons(totals: &Counters, is_payer: impl Fn(Charge) -> bool) -> Vec<ReasonCount> {
    let mut sum: BTreeMap<Reason, u64> = BTreeMap::new();
    for ((payer, reason), n) in &totals.charges {
        if is_payer(*payer) {
            *sum.entry(*reason).or_default() += n;
        }
    }
    let mut rows: Vec<_> = sum.into_iter().map(|(reason, n)| reason_count(reason, n)).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.packets));
    rows
}

/// A reason as it is told.
pub(super) fn reason_count(reason: Reason, packets: u64) -> ReasonCount {
    let class = match reason.class() {
        Class::Pass => "pass",
        Class::Exception => "exception",
        Class::Control => "control",
        Class::Drop => "drop",
    };
    ReasonCount { reason: reason.name().into(), class: class.into(), text: reason.text().into(), packets }
}
