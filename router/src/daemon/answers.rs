//! Answers queries from the state of the loop.

use super::{
    Control,
    api::{Answer, Query},
    metrics::{MOST_INTERFACES, Observed},
    seam::{FastPath, Kernel, Observe},
    steering::Steerer,
    world::PortState,
};
use crate::{
    api::{
        ApiError, RouteQuery,
        flows::FlowsStatus,
        status::{
            Families, FirewallReport, Heartbeat, HopReport, InterfaceReport, LeftInterface, Packets,
            PortReport, ReasonCount, RouteReport, RouterReport, RuledPair, RuledPairs, Status, StopReport,
            TableUse, Why, whys,
        },
        summary::Summary,
    },
    plane::{Charge, Counters, InterfaceCount, Mode},
    switch::seam::rule_port,
};
use logic::{
    cause::{Cause, Code, joined},
    flow::RulePort,
    mirror::{Established, InterfaceView, PairView, RouterView, RulesView},
    net::Vlan,
    observe::NamespaceId,
    plan::{InterfaceId, PortId, RouterId, Target},
    reason::{Class, Reason},
    tables::{self, Occupancy, Region},
};
use serde::Serialize;
use std::{collections::BTreeMap, net::IpAddr, sync::atomic::Ordering::Relaxed};

/// What [`Control::dry_reports`] knows: ports, routers and firewalls.
pub(super) type DryReports = (Vec<PortReport>, Vec<RouterReport>, Vec<FirewallReport>);

impl<K: Kernel, O: Observe> Control<K, O> {
    /// Answers one query.
    pub(super) fn answer(&mut self, query: &Query) -> Answer {
        match query {
            Query::Status => {
                let status = self.status(&self.totals()?);
                json(&Status { summary: Summary::of(&status), ..status })
            }
            Query::Metrics => json(&self.observed()?),
            Query::Ports => json(&self.port_reports(&self.totals()?)),
            Query::Routers => json(&self.router_reports(&self.totals()?)),
            Query::Connections(query) => json(&self.connection_reports(query)?),
            Query::Firewall => json(&self.firewall_reports()),
            Query::Interfaces => json(&self.interface_reports(&self.totals()?).collect::<Vec<_>>()),
            Query::Route(query) => json(&self.route(query)?),
            Query::Routes(query) => json(&self.route_list(query)?),
            Query::Neighbours(query) => json(&self.neighbour_reports(query)),
            Query::Verify | Query::Reload(_) => Err(ApiError::failed("this is not answered here")),
            Query::Capture(request) => json(&self.begin_capture(request)?),
            Query::Explain(request) => json(&self.explain(request)?),
            Query::Stop => {
                let mut done =
                    self.kernel.remove().map_err(|e| ApiError::failed(format!("cannot stop: {e:#}")))?;
                done.extend(self.steerer.as_mut().map(Steerer::end).unwrap_or_default());
                json(&StopReport { done })
            }
            // Forwarding needs no classifier.
            Query::Leave => json(&self.steerer.as_mut().map(Steerer::end)),
        }
    }

    /// Ports, routers and firewall, without what only a running daemon has.
    pub(super) fn dry_reports(&self) -> Result<DryReports, ApiError> {
        let totals = self.totals()?;
        Ok((self.port_reports(&totals), self.router_reports(&totals), self.firewall_reports()))
    }

    fn totals(&self) -> Result<Counters, ApiError> {
        let current = self.generation.plane.counters().map_err(|e| ApiError::failed(format!("{e:#}")))?;
        Ok(self.totals.of(&current))
    }

    /// Names of ports and paths, by their numbers in flow rules.
    fn names_of_rules(&self) -> BTreeMap<u16, String> {
        let ports = self.world.used_numbers().map(|(id, name)| (rule_port(id).0, name.to_string()));
        let path = |(id, name)| Some((RulePort::of_path(id)?.0, format!("path:{name}")));
        ports.chain(self.path_numbers.iter().filter_map(path)).collect()
    }

    /// What a page of metrics needs.
    fn observed(&self) -> Result<Observed, ApiError> {
        let totals = self.totals()?;
        let interfaces: Vec<_> = self.interface_reports(&totals).take(MOST_INTERFACES).collect();
        let interfaces_left_out = (self.world.interfaces().count() - interfaces.len()) as u64;
        Ok(Observed { status: self.status(&totals), interfaces, interfaces_left_out })
    }

    fn status(&self, totals: &Counters) -> Status {
        let now = self.kernel.now();
        let (routers, ports) = (self.router_reports(totals), self.port_reports(totals));
        let sum = |field: fn(&RouterReport) -> u64| routers.iter().map(field).sum();
        let all = all_interfaces(totals);
        let problem = self.confirming.why_not(now).or_else(|| {
            let idle = self.world.ports.values().all(|p| !p.obstacles().is_empty());
            idle.then(|| Code::NoTrustedPort.cause("no port is trusted; the kernel forwards everything"))
        });
        let gauge = &self.flows.end.gauge;
        let (cache_hits, cache_misses) = self.flows.rules.as_ref().map_or((0, 0), K::Plane::decided);
        Status {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            instance: self.instance.name.as_ref().map(|n| n.as_str().into()),
            ready: problem.is_none(),
            problem: problem.map(Why::from),
            conditions: self.condition_reports(),
            uptime_s: now.saturating_sub(self.started).as_secs(),
            at_s: now.as_secs_f64(),
            heartbeat: Heartbeat {
                timeout_s: self.config.heartbeat.0.as_secs_f64(),
                age_s: self.confirming.age(now).map(|age| age.as_secs_f64()),
            },
            generation: self.generation.number,
            packets: packets(&all, totals, |_| true),
            lost: ports.iter().flat_map(|port| &port.lost).map(|reason| reason.packets).sum(),
            ns_per_packet: ns_per_packet(&all),
            reasons: reasons(totals, |_| true),
            tables: self.table_use(),
            routes: Families { ipv4: sum(|r| r.routes.ipv4), ipv6: sum(|r| r.routes.ipv6) },
            neighbours: sum(|r| r.neighbours),
            flows: FlowsStatus {
                rules: gauge.rules.load(Relaxed),
                core_rules: gauge.core_rules.load(Relaxed),
                names: self.names_of_rules(),
                file: self.config.flows.file.as_ref().map(|file| file.display().to_string()),
                in_charge: self.flows.rules.is_some(),
                why_not: gauge.why_not().as_ref().map(Why::from),
                cache_hits,
                cache_misses,
                slow_done: gauge.slow_done.load(Relaxed),
                slow_lost: gauge.slow_lost.load(Relaxed),
                controller_lost: gauge.controller_lost(),
            },
            ports,
            routers,
            paths: self.path_reports(),
            workers: self.workers_report(),
            capture: self.captures.report(),
            export: self.exports.report(),
            summary: Summary::default(),
        }
    }

    fn table_use(&self) -> Vec<TableUse> {
        let row = |(region, rows): (Region, Occupancy)| TableUse {
            table: region.to_string(),
            used: rows.used as u64,
            capacity: rows.capacity as u64,
        };
        self.generation.tables.occupancy().into_iter().map(row).collect()
    }

    fn port_reports(&self, totals: &Counters) -> Vec<PortReport> {
        let classifier = |id| {
            let found = self.steerer.as_ref().map_or("none".into(), |steerer| steerer.describe(id));
            self.config.experimental.steering.then_some(found)
        };
        let mut counts: BTreeMap<PortId, InterfaceCount> = BTreeMap::new();
        for interface in self.world.mirror.interfaces() {
            let count = interface.interface.and_then(|id| totals.interfaces.get(&id));
            counts.entry(interface.port).or_default().add(count.copied().unwrap_or_default());
        }
        let report = |(id, port): (&PortId, &PortState)| {
            let count = counts.get(id).copied().unwrap_or_default();
            PortReport { classifier: classifier(*id), ..port_report(*id, port, count, totals) }
        };
        self.world.ports.iter().map(report).collect()
    }

    pub(super) fn port_name(&self, id: PortId) -> String {
        self.world.ports.get(&id).map_or_else(|| format!("port {id}"), |p| p.name.clone())
    }

    fn router_reports(&self, totals: &Counters) -> Vec<RouterReport> {
        let mut sums: BTreeMap<NamespaceId, InterfaceSum> = BTreeMap::new();
        for mut interface in self.world.interfaces() {
            let sum = sums.entry(interface.namespace).or_default();
            sum.interfaces += 1;
            sum.left.extend(left(&mut interface));
            let Some(id) = interface.interface else { continue };
            sum.count.add(totals.interfaces.get(&id).copied().unwrap_or_default());
            sum.neighbours += self.world.ledger.neighbours_on(id) as u64;
        }
        self.routers_and_obstacles()
            .map(|r| self.router_report(sums.remove(&r.namespace).unwrap_or_default(), r, totals))
            .collect()
    }

    /// The routers, as the mirror sees them. The obstacles of their ports are added to the reasons.
    pub(super) fn routers_and_obstacles(&self) -> impl Iterator<Item = RouterView> {
        let used = self.world.ports_of_routers();
        self.world.mirror.routers().map(move |mut router| {
            let obstacles = self.world.port_obstacles(used.get(&router.namespace));
            router.ipv4.extend(obstacles.iter().cloned());
            router.ipv6.extend(obstacles);
            router
        })
    }

    fn router_report(&self, sum: InterfaceSum, router: RouterView, totals: &Counters) -> RouterReport {
        let is_ours = |payer: Charge| router.router.is_some_and(|id| payer == Charge::Router(id));
        let (routes4, routes6, _) =
            router.router.map_or((0, 0, false), |id| self.generation.tables.route_counts(id));
        let is_left = |family: fn(&Families<Vec<Why>>) -> &Vec<Why>| {
            sum.left.iter().any(|interface| !family(&interface.why_not).is_empty())
        };
        let weight = self.config.shares.weight(&router.name);
        RouterReport {
            router: router.name,
            id: router.router,
            accelerated: Families {
                ipv4: router.ipv4.is_empty() && !router.ruled[0] && !is_left(|why| &why.ipv4),
                ipv6: router.ipv6.is_empty() && !router.ruled[1] && !is_left(|why| &why.ipv6),
            },
            ruled: Families { ipv4: router.ruled[0], ipv6: router.ruled[1] },
            connections: router.router.map_or(0, |id| self.fast_connections(id)),
            left_to_kernel: sum.left,
            interfaces: sum.interfaces,
            routes: Families { ipv4: routes4 as u64, ipv6: routes6 as u64 },
            neighbours: sum.neighbours,
            packets: packets(&sum.count, totals, is_ours),
            ns_per_packet: ns_per_packet(&sum.count),
            weight,
            share: router.router.and_then(|id| self.generation.plane.taken_of_cores(id)),
            cut: cut_packets(totals, is_ours),
            reasons: reasons(totals, is_ours),
            why_not: Families { ipv4: whys(&router.ipv4), ipv6: whys(&router.ipv6) },
        }
    }

    fn firewall_reports(&self) -> Vec<FirewallReport> {
        let mirror = &self.world.mirror;
        let report = |router: RouterView| {
            let [ipv4, ipv6] = mirror.rules(router.namespace).map(|rules| rules.map(ruled_pairs));
            FirewallReport { router: router.name, rules: Families { ipv4, ipv6 } }
        };
        mirror.routers().filter(|router| router.router.is_some()).map(report).collect()
    }

    fn interface_reports(&self, totals: &Counters) -> impl Iterator<Item = InterfaceReport> {
        let routers: BTreeMap<_, _> = self.world.mirror.routers().map(|r| (r.namespace, r)).collect();
        let report = move |mut interface: InterfaceView| {
            let count =
                interface.interface.and_then(|id| totals.interfaces.get(&id)).copied().unwrap_or_default();
            let router = routers.get(&interface.namespace);
            if let Some(router) = router {
                let theirs = |why: &Cause| why.map(|text| format!("router {}: {text}", router.name));
                interface.reasons4.extend(router.ipv4.iter().map(theirs));
                interface.reasons6.extend(router.ipv6.iter().map(theirs));
            }
            InterfaceReport {
                router: router.map(|r| r.name.clone()).unwrap_or_default(),
                interface: interface.name,
                id: interface.interface,
                port: Some(self.port_name(interface.port)),
                vlan: (interface.vlan != Vlan::NONE).then(|| interface.vlan.to_string()),
                mac: interface.mac.to_string(),
                accelerated: Families { ipv4: interface.ipv4, ipv6: interface.ipv6 },
                transmit: interface.transmit,
                not_forwarded_packets: count.other_packets,
                why_not: Families { ipv4: whys(&interface.reasons4), ipv6: whys(&interface.reasons6) },
                rx_packets: count.rx_packets(),
                rx_bytes: count.rx_bytes(),
                tx_packets: count.tx_packets,
                tx_bytes: count.tx_bytes,
            }
        };
        self.world.interfaces().map(report)
    }

    /// The router of this name, which must have a table; by default the host.
    pub(super) fn router(&self, name: Option<&str>) -> Result<(RouterId, RouterView), ApiError> {
        let mut routers = self.world.mirror.routers();
        let found = routers.find(|r| name.map_or(r.host, |name| r.name == name));
        match found {
            Some(router) => match router.router {
                Some(id) => Ok((id, router)),
                None => Err(ApiError::unknown(format!(
                    "router {} has no table: {}",
                    router.name,
                    joined(&router.ipv4)
                ))),
            },
            None => {
                let names: Vec<_> = self.world.mirror.routers().map(|r| r.name).collect();
                let wanted = name.unwrap_or("host");
                Err(ApiError::unknown(format!("no router {wanted:?}; there are: {}", names.join(", "))))
            }
        }
    }

    pub(super) fn interface_name(&self, id: InterfaceId) -> String {
        let named = self.world.mirror.interfaces().find(|i| i.interface == Some(id));
        named.map_or_else(|| format!("interface {id}"), |i| i.name)
    }

    /// Looks an address up in the tables of a router.
    pub(super) fn lookup(&self, router: RouterId, address: IpAddr) -> Vec<tables::Answer> {
        self.generation.tables.lookup(router, address)
    }

    fn route(&self, query: &RouteQuery) -> Result<RouteReport, ApiError> {
        let (id, router) = self.router(query.router.as_deref())?;
        let hops = self.lookup(id, query.address).iter().map(|a| self.hop(a)).collect();
        let prefix = self.route_to(router.namespace, query.address).map(|(prefix, _)| prefix);
        let v4 = query.address.is_ipv4();
        let obstacles = self.routers_and_obstacles().find(|r| r.namespace == router.namespace);
        let why_not = obstacles.map(|r| if v4 { r.ipv4 } else { r.ipv6 }).unwrap_or_default();
        let mut why_not = whys(&why_not);
        let of_router: Vec<_> = self.world.interfaces().filter(|i| i.namespace == router.namespace).collect();
        let interfaces = of_router.len();
        let of_family = |mut interface: InterfaceView| {
            let other = if v4 { &mut interface.reasons6 } else { &mut interface.reasons4 };
            other.clear();
            left(&mut interface)
        };
        let left_to_kernel: Vec<_> = of_router.into_iter().filter_map(of_family).collect();
        if why_not.is_empty() && left_to_kernel.len() == interfaces {
            let text = "none of its interfaces is accelerated, see `millrace interfaces`";
            why_not.push(Code::NoFastInterface.cause(text).into());
        }
        let left_to_kernel = if why_not.is_empty() { left_to_kernel } else { Vec::new() };
        Ok(RouteReport {
            router: router.name,
            address: query.address.to_string(),
            why_not,
            left_to_kernel,
            prefix,
            hops,
        })
    }

    /// The kernel's route for an address, and where it leads.
    pub(super) fn route_to(&self, namespace: NamespaceId, address: IpAddr) -> Option<(String, &Target)> {
        let mirror = &self.world.mirror;
        match address {
            IpAddr::V4(a) => mirror.route4_to(namespace, a.to_bits()).map(|(p, t)| (p.to_string(), t)),
            IpAddr::V6(a) => mirror.route6_to(namespace, a.to_bits()).map(|(p, t)| (p.to_string(), t)),
        }
    }

    fn hop(&self, answer: &tables::Answer) -> HopReport {
        let transmits = |port| self.world.ports.get(&port).is_some_and(|p| p.transmits);
        let reason = answer.reason.or_else(|| (!transmits(answer.port)).then_some(Reason::TxNotReady));
        HopReport {
            action: if reason.is_none() { "forward" } else { "pass" }.into(),
            reason: reason.map(|r| Why { code: r.name().into(), text: r.text().into() }),
            interface: answer.interface.map(|id| self.interface_name(id)),
            next_hop: answer.neighbour.map(|n| n.to_string()),
            mac: answer.mac.map(|m| m.to_string()),
            mtu: Some(answer.mtu).filter(|m| *m != 0),
            share: Some(answer.share),
        }
    }

    pub(super) fn run_on(
        &self,
        ifindex: u32,
        frame: &[u8],
    ) -> Result<(crate::plane::TestRun, Vec<crate::plane::Step>), ApiError> {
        self.generation.plane.explain(ifindex, frame).map_err(|e| ApiError::failed(format!("{e:#}")))
    }
}

/// The sums over a router's interfaces.
#[derive(Default)]
struct InterfaceSum {
    interfaces: u64,
    neighbours: u64,
    count: InterfaceCount,
    left: Vec<LeftInterface>,
}

/// Takes the reasons why an interface is left to the kernel, if there are any.
fn left(interface: &mut InterfaceView) -> Option<LeftInterface> {
    let take = |causes: &mut Vec<Cause>| whys(&std::mem::take(causes));
    let why_not = Families { ipv4: take(&mut interface.reasons4), ipv6: take(&mut interface.reasons6) };
    (!why_not.is_empty()).then(|| LeftInterface { interface: interface.name.clone(), why_not })
}

pub(super) fn json(value: &impl Serialize) -> Answer {
    serde_json::to_value(value).map_err(|e| ApiError::failed(e.to_string()))
}

fn port_report(id: PortId, port: &PortState, count: InterfaceCount, totals: &Counters) -> PortReport {
    let charged = reasons(totals, |payer| payer == Charge::Port(id)).into_iter();
    let (lost, unclassified): (_, Vec<_>) = charged.partition(|reason| reason.class == "lost");
    let nobodys = unclassified.iter().fold(0, |sum, reason| reason.packets.wrapping_add(sum));
    PortReport {
        port: port.name.clone(),
        id,
        number: rule_port(id).0,
        ifindex: port.device.as_ref().map_or(0, |d| d.ifindex),
        mode: port.mode.filter(|_| port.up.is_some()).map_or("detached".into(), |m| m.to_string()),
        problems: whys(&port.obstacles()),
        note: port.note.as_ref().map(|note| {
            let is_generic = port.mode == Some(Mode::Generic);
            let code = if is_generic { Code::GenericMode } else { Code::MayRefuse };
            code.cause(note).into()
        }),
        classifier: None,
        rx_packets: count.rx_packets().wrapping_add(nobodys),
        tx_packets: count.tx_packets,
        rx_bytes: count.rx_bytes(),
        tx_bytes: count.tx_bytes,
        unclassified,
        lost,
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
            let field = match reason.class() {
                Class::Lost => continue,
                Class::Drop => &mut packets.dropped,
                Class::Taken => &mut packets.taken,
                Class::Pass | Class::Slow | Class::Exception | Class::Control => &mut packets.passed,
            };
            *field = field.wrapping_add(*n);
        }
    }
    packets
}

fn ns_per_packet(count: &InterfaceCount) -> Option<f64> {
    (count.samples > 0).then(|| count.sample_ns as f64 / count.samples as f64)
}

/// Reasons with their counts, the most frequent first.
fn reasons(totals: &Counters, is_payer: impl Fn(Charge) -> bool) -> Vec<ReasonCount> {
    let mut sum: BTreeMap<Reason, u64> = BTreeMap::new();
    for ((payer, reason), n) in &totals.charges {
        if is_payer(*payer) {
            let total = sum.entry(*reason).or_default();
            *total = total.wrapping_add(*n);
        }
    }
    let mut rows: Vec<_> = sum.into_iter().map(|(reason, n)| reason_count(reason, n)).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.packets));
    rows
}

/// Packets over their router's share of a full core.
fn cut_packets(totals: &Counters, is_payer: impl Fn(Charge) -> bool) -> u64 {
    let cut =
        totals.charges.iter().filter(|((payer, reason), _)| *reason == Reason::OverShare && is_payer(*payer));
    cut.map(|(_, packets)| packets).sum()
}

/// A reason, as reports show it.
pub(super) fn reason_count(reason: Reason, packets: u64) -> ReasonCount {
    let class = match reason.class() {
        Class::Pass => "pass",
        Class::Slow => "slow",
        Class::Exception => "exception",
        Class::Control => "control",
        Class::Drop => "drop",
        Class::Taken => "taken",
        Class::Lost => "lost",
    };
    ReasonCount { reason: reason.name().into(), class: class.into(), text: reason.text().into(), packets }
}

fn ruled_pairs(rules: RulesView) -> RuledPairs {
    let names = |group: u8| rules.groups.get(&group).cloned().unwrap_or_default();
    let pair = |pair: PairView| RuledPair {
        from: names(pair.from),
        to: names(pair.to),
        why_not: pair.why_not.map(Why::from),
        established: pair.established.is_some(),
        checked: match pair.established {
            Some(Established::Checked(why)) => Some(why),
            Some(Established::Accepted) | None => None,
        },
    };
    RuledPairs { pairs: rules.pairs.into_iter().map(pair).collect(), exceptions: rules.exceptions }
}
