//! Runs the real program on one packet, and reports each step. The switch thread ([`crate::switch`]) reports what
//! flow rules do; the program then routes the packets that they send to NORMAL.

use super::{
    Control,
    answers::reason_count,
    seam::{Kernel, Observe},
};
use crate::{
    api::{
        ApiError,
        flows::{OutputReport, RulesReport},
        status::{ExplainReport, ExplainRequest, StepReport},
    },
    base::{
        hex,
        packet::{DISCARD, Headers, PacketText, Protocol},
    },
    plane::Step,
};
use logic::{
    firewall::pairs::{FREE, FREE_EXCEPT},
    mirror::InterfaceView,
    net::{Mac, Vlan},
    plan::{PortId, Target},
    reason::Reason,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The source MAC address of packets for which none is given.
const SENDER: Mac = Mac([0x02, 0, 0, 0, 0, 0xfe]);
/// The longest frame, bytes.
const MAX_FRAME: usize = 9100;
/// The shortest frame, bytes: an Ethernet header.
const MIN_FRAME: usize = 14;

const XDP_REDIRECT: u32 = 4;
const XDP_PASS: u32 = 2;

/// A packet to run the program on.
struct Arrival {
    port: PortId,
    frame: Vec<u8>,
    /// Assumptions about it and remarks, as sentences.
    notes: Vec<String>,
}

impl<K: Kernel, O: Observe> Control<K, O> {
    /// Builds the frame if none is given, runs the program on it, and describes the steps.
    pub(super) fn explain(&self, request: &ExplainRequest) -> Result<ExplainReport, ApiError> {
        let Arrival { port, frame, notes } = match (&request.packet, &request.frame) {
            (Some(text), None) => self.described(text, request)?,
            (None, Some(digits)) => {
                let name = request.port.as_deref();
                let name = name.ok_or_else(|| ApiError::bad("a frame needs the port it arrives on"))?;
                let frame =
                    hex::decode(digits).ok_or_else(|| ApiError::bad("the frame is not hexadecimal"))?;
                Arrival {
                    port: self.port_named(name)?,
                    notes: self.sender(&frame).into_iter().collect(),
                    frame,
                }
            }
            _ => return Err(ApiError::bad("give either a packet or a frame")),
        };
        if !(MIN_FRAME..=MAX_FRAME).contains(&frame.len()) {
            return Err(ApiError::bad(format!(
                "a frame has {MIN_FRAME} to {MAX_FRAME} bytes, not {}",
                frame.len()
            )));
        }
        let ifindex = self.world.ports.get(&port).and_then(|p| Some(p.device.as_ref()?.ifindex));
        let ifindex = ifindex.ok_or_else(|| ApiError::unknown("the port's device is not there"))?;
        let (run, steps) = self.run_on(ifindex, &frame)?;
        let reason =
            steps.iter().find_map(|s| if let Step::Verdict { reason, .. } = s { *reason } else { None });
        let egress = steps.iter().find_map(|s| match s {
            Step::Transmit { port, .. } => Some(self.port_name(*port as PortId)),
            _ => None,
        });
        let verdict = match run.action {
            _ if reason == Some(Reason::PathGiven) => "path",
            XDP_REDIRECT => "forward",
            XDP_PASS => "pass",
            _ => "drop",
        };
        Ok(ExplainReport {
            port: self.port_name(port),
            notes,
            rules: None,
            path: self.path_of(&steps, reason),
            steps: self.told(&steps),
            verdict: verdict.into(),
            reason: reason.map(|r| reason_count(r, 1)),
            egress: egress.filter(|_| run.action == XDP_REDIRECT),
            before: Headers::read(&frame),
            after: Headers::read(&run.frame),
            frame: hex::encode(&frame),
        })
    }

    fn port_named(&self, name: &str) -> Result<PortId, ApiError> {
        let found = self.world.ports.iter().find(|(_, p)| p.name == name).map(|(id, _)| *id);
        found.ok_or_else(|| {
            let names: Vec<_> = self.world.ports.values().map(|p| p.name.as_str()).collect();
            ApiError::unknown(format!("no port {name:?}; there are: {}", names.join(", ")))
        })
    }

    /// A note if this box itself has sent the frame.
    fn sender(&self, frame: &[u8]) -> Option<String> {
        let mac = Mac::from_slice(frame.get(6..12)?)?;
        let ours = self.world.mirror.interfaces().find(|interface| interface.mac == mac)?;
        Some(format!(
            "the source MAC {mac} is that of interface {}: this box sent the frame, but the program sees only frames that arrive",
            ours.name
        ))
    }

    /// The frame of a described packet, and the port it arrives on.
    fn described(&self, text: &str, request: &ExplainRequest) -> Result<Arrival, ApiError> {
        let packet: PacketText = text.parse().map_err(|e| ApiError::bad(format!("{e}")))?;
        let port = request.port.as_deref().map(|name| self.port_named(name)).transpose()?;
        let source = packet.source_mac.unwrap_or(SENDER);
        let open = packet.protocol != Protocol::Icmp && packet.ports.contains(&None);
        let ports = open.then(|| format!("source or destination port not given: assumed to be {DISCARD}"));
        if let (Some(port), Some(mac)) = (port, packet.destination_mac) {
            let frame = packet.frame(mac, source, packet.vlan.unwrap_or_default());
            return Ok(Arrival { port, frame, notes: ports.into_iter().collect() });
        }
        let (interface, note) = self.ingress(&packet, port, request.router.as_deref())?;
        let mac = packet.destination_mac.unwrap_or(interface.mac);
        let frame = packet.frame(mac, source, packet.vlan.unwrap_or(interface.vlan));
        Ok(Arrival { port: interface.port, frame, notes: note.into_iter().chain(ports).collect() })
    }

    /// The interface by which the packet would arrive, and a note about what was assumed. Of the interfaces that fit,
    /// this is the one to which the router's route back to the source leads, or else the first. The given VLAN and
    /// MAC need not fit any interface, as users may ask what happens to such packets.
    fn ingress(
        &self,
        packet: &PacketText,
        port: Option<PortId>,
        router: Option<&str>,
    ) -> Result<(InterfaceView, Option<String>), ApiError> {
        let namespace = match (router, port) {
            (None, Some(_)) => None,
            _ => Some(self.router(router)?.1.namespace),
        };
        let there = |i: &InterfaceView| {
            port.is_none_or(|p| i.port == p) && namespace.is_none_or(|n| i.namespace == n)
        };
        let fits = |i: &InterfaceView| {
            packet.vlan.is_none_or(|v| i.vlan == v) && packet.destination_mac.is_none_or(|m| i.mac == m)
        };
        let (mut fitting, others): (Vec<_>, Vec<_>) =
            self.world.mirror.interfaces().filter(there).partition(fits);
        let strange = fitting.is_empty();
        if strange {
            fitting = others;
        }
        let routers: Vec<_> = self.world.mirror.routers().collect();
        let back = fitting.iter().position(|interface| {
            let router = routers.iter().find(|r| r.namespace == interface.namespace).and_then(|r| r.router);
            let ways = router.map(|id| self.lookup(id, packet.source)).unwrap_or_default();
            interface.interface.is_some() && ways.iter().any(|way| way.interface == interface.interface)
        });
        if fitting.is_empty() {
            return Err(ApiError::unknown(format!(
                "no interface has this port and router; see `{}`",
                self.instance.command("interfaces")
            )));
        }
        let guessed = back.is_none() && fitting.len() > 1;
        let interface = fitting.swap_remove(back.unwrap_or(0));
        let taken = format!("assumed to arrive on port {}", self.port_name(interface.port));
        let note = match (strange, packet.destination_mac) {
            (true, Some(_)) => Some(format!("no interface has this VLAN and MAC: {taken}")),
            (true, None) => Some(format!(
                "no interface has VLAN {}: {taken}, for the MAC of {}",
                packet.vlan.unwrap_or_default(),
                interface.name
            )),
            (false, _) if guessed => Some(format!(
                "no route leads back to {}: {taken}, for interface {}; --port, vlan= or dmac= change this",
                packet.source, interface.name
            )),
            (false, _) if port.is_none() => Some(format!(
                "{taken}, for interface {}, {}; --port changes this",
                interface.name,
                if back.is_some() {
                    format!("where the route back to {} leads", packet.source)
                } else {
                    "the only one".into()
                },
            )),
            (false, _) => None,
        };
        Ok((interface, note))
    }

    /// The steps as sentences. The route that the packet takes stands before the steps through the tables.
    fn told(&self, steps: &[Step]) -> Vec<StepReport> {
        let mut told = Vec::new();
        let mut route = self.route_taken(steps);
        for step in steps {
            if let Step::SourceCheck { slot, .. } = *step {
                told.push(StepReport {
                    text: format!("source looked up: {}", slot_words(slot)),
                    detail: true,
                });
            }
            let detail = match step {
                Step::FibBlock { .. } | Step::FibTail { .. } | Step::Group { .. } | Step::Nexthop { .. } => {
                    true
                }
                Step::Neighbour { id, .. } => *id != 0,
                _ => false,
            };
            told.push(StepReport { text: self.words(step, steps), detail });
            if matches!(step, Step::Ipv4 { .. } | Step::Ipv6Destination(_)) {
                told.extend(route.take().map(|text| StepReport { text, detail: false }));
            }
        }
        told
    }

    /// The route that the packet takes, as the kernel writes it; `None`: no route was looked up.
    fn route_taken(&self, steps: &[Step]) -> Option<String> {
        let looked_up =
            |s: &Step| matches!(s, Step::FibBlock { .. } | Step::FibTail { .. } | Step::Nexthop { .. });
        steps.iter().find(|step| looked_up(step))?;
        let id = steps.iter().find_map(|s| match s {
            Step::Interface { router, .. } => Some(*router),
            _ => None,
        })?;
        let destination: IpAddr = steps.iter().find_map(|s| match s {
            Step::Ipv4 { destination, .. } => Some(Ipv4Addr::from(*destination).into()),
            Step::Ipv6Destination(destination) => Some(Ipv6Addr::from(*destination).into()),
            _ => None,
        })?;
        let namespace = self.world.mirror.routers().find(|r| r.router == Some(id))?.namespace;
        Some(match self.route_to(namespace, destination) {
            Some((prefix, target)) => format!("route {prefix} {}", self.way(target)),
            None => format!("no route to {destination}"),
        })
    }

    fn way(&self, target: &Target) -> String {
        match target {
            Target::Pass { reason, .. } => format!("to the kernel: {}", reason.text()),
            Target::Hop(hop) => {
                let on = self.interface_name(hop.interface);
                hop.gateway.map_or_else(|| format!("connected on {on}"), |via| format!("via {via} on {on}"))
            }
            Target::Multi(members) => {
                let ways: Vec<_> = members.iter().map(|(member, _)| self.way(member)).collect();
                ways.join(" or ")
            }
        }
    }

    /// The path that gets the packet, or that drops it because no worker can take it.
    fn path_of(&self, steps: &[Step], reason: Option<Reason>) -> Option<String> {
        steps.iter().find_map(|step| match step {
            Step::Path { path, why } if why.is_none() || *why == reason => Some(self.path_name(*path)),
            _ => None,
        })
    }

    /// Why rules may affect packets from one group of interfaces to another, as a sentence.
    fn ruled(&self, steps: &[Step], from: u8, to: u8) -> Option<String> {
        let router = steps.iter().find_map(|step| match step {
            Step::Interface { router, .. } => Some(*router),
            _ => None,
        })?;
        let namespace = self.world.mirror.routers().find(|r| r.router == Some(router))?.namespace;
        let [v4, v6] = self.world.mirror.rules(namespace);
        let is_v4 = steps.iter().any(|step| matches!(step, Step::Ipv4 { .. }));
        let rules = if is_v4 { v4 } else { v6 }?;
        rules.pairs.into_iter().find(|pair| (pair.from, pair.to) == (from, to))?.why_not.map(|why| why.text)
    }

    /// A step of the program as a sentence.
    fn words(&self, step: &Step, steps: &[Step]) -> String {
        match *step {
            Step::Port { id, ready } => {
                let port = self.port_name(id as PortId);
                match ready {
                    true => format!("arrived on port {port}: trusted"),
                    false => {
                        let ports = self.instance.command("ports");
                        format!("arrived on port {port}: not trusted, see `{ports}`")
                    }
                }
            }
            Step::Parsed { vlan, ether_type } => {
                format!("{}, {}", tags(Vlan::from_key(vlan)), ether_type_name(ether_type))
            }
            Step::Interface { interface: 0, .. } => "no interface has this port, VLAN and MAC".into(),
            Step::Interface { interface, router } => {
                let found = self.world.mirror.routers().find(|r| r.router == Some(router));
                let router = found.map_or_else(|| format!("number {router}"), |r| r.name);
                format!("for interface {} of router {router}", self.interface_name(interface))
            }
            Step::Ipv4 { source, destination } => {
                format!("IPv4 from {} to {}", Ipv4Addr::from(source), Ipv4Addr::from(destination))
            }
            Step::Ipv6Source(source) => format!("IPv6 from {}", Ipv6Addr::from(source)),
            Step::Ipv6Destination(destination) => format!("IPv6 to {}", Ipv6Addr::from(destination)),
            Step::SourceCheck { accepted, .. } => {
                format!("source {}", if accepted { "accepted" } else { "refused" })
            }
            Step::FibBlock { block, slot } => format!("table block {block}: {}", slot_words(slot)),
            Step::FibTail { length, slot } => {
                format!("compared with the one longer prefix, /{length}: {}", slot_words(slot))
            }
            Step::Group { hash, slot } => {
                format!("multipath, flow hash {hash:#010x} chooses {}", slot_words(slot))
            }
            Step::Nexthop { id, kind } => {
                let kind = match kind {
                    0 => "packets go to the kernel",
                    1 => "the destination is a neighbour",
                    2 => "sent via a neighbour",
                    _ => "of a kind this version does not know",
                };
                format!("next hop {id}: {kind}")
            }
            Step::Neighbour { id: 0, interface } => {
                format!("no such neighbour is known on {}", self.interface_name(interface))
            }
            Step::Neighbour { id, interface } => {
                format!("neighbour on {}: next hop {id}", self.interface_name(interface))
            }
            Step::Transmit { port, vlan } => {
                format!("leaves by port {}, {}", self.port_name(port as PortId), tags(Vlan::from_key(vlan)))
            }
            Step::Rules { from, to, pair } => match pair {
                FREE => "no firewall rule can affect packets between these interfaces".into(),
                FREE_EXCEPT => {
                    "firewall rules can affect packets between these interfaces only for some addresses"
                        .into()
                }
                _ => {
                    let why = self.ruled(steps, from, to);
                    let why = why.map(|why| format!(": {why}")).unwrap_or_default();
                    format!("firewall rules may affect packets between these interfaces{why}")
                }
            },
            Step::Connection { row: None } => {
                "belongs to no connection that bypasses the firewall rules".into()
            }
            Step::Connection { row: Some(_) } => {
                "belongs to a connection that bypasses the firewall rules".into()
            }
            Step::Path { path, why: None } => format!("given to the worker of path {}", self.path_name(path)),
            Step::Path { path, why: Some(why) } => {
                format!("of path {}, but no worker can take it ({})", self.path_name(path), why.name())
            }
            Step::Verdict { reason: None, .. } => "forwarded".into(),
            Step::Verdict { reason: Some(Reason::PathGiven), .. } => Reason::PathGiven.text().into(),
            Step::Verdict { reason: Some(reason), action } => {
                let what = if action == XDP_PASS { "to the kernel" } else { "dropped" };
                format!("{what}: {} ({})", reason.text(), reason.name())
            }
            Step::Unknown(number) => format!("step {number}, which this version does not know"),
        }
    }
}

/// A table slot (`enum fib_kind` of bpf/abi.h).
fn slot_words(slot: u32) -> String {
    let index = slot & ((1 << 30) - 1);
    match slot >> 30 {
        _ if slot == 0 => "no route".into(),
        0 => format!("next hop {index}"),
        1 => format!("multipath group {index}"),
        2 => format!("look in block {index}"),
        _ => format!("compare with longer prefix {index}"),
    }
}

fn tags(vlan: Vlan) -> String {
    if vlan == Vlan::NONE { "untagged".into() } else { format!("VLAN {vlan}") }
}

fn ether_type_name(ether_type: u16) -> String {
    match ether_type {
        0x0800 => "IPv4".into(),
        0x86dd => "IPv6".into(),
        0x0806 => "ARP".into(),
        other => format!("EtherType {other:#06x}"),
    }
}

impl ExplainReport {
    /// Does the program leave the packet to the kernel, or give it to a path, before it looks up rules?
    pub fn is_before_rules(&self) -> bool {
        if self.path.is_some() {
            return true;
        }
        let reasons = [Reason::PortNotReady, Reason::Fallback].map(Reason::name);
        self.reason.as_ref().is_some_and(|reason| reasons.contains(&reason.reason.as_str()))
    }

    /// The report of a packet that rules decide about. `routed` is the report of the first packet that they send to
    /// NORMAL, if there is one.
    pub fn by_rules(self, rules: RulesReport, routed: Option<ExplainReport>) -> ExplainReport {
        let ExplainReport { port, notes, before, frame, .. } = self;
        let leaves =
            |to: &&OutputReport| to.lost.is_none() && !["LOCAL", "CONTROLLER"].contains(&to.to.as_str());
        let to = |name: &str| rules.outputs.iter().find(|output| output.to == name && output.lost.is_none());
        let port_out = rules.outputs.iter().find(leaves);
        let reason = |reason| Some(reason_count(reason, 1));
        let (verdict, reason, output) = match (port_out, to("LOCAL"), to("CONTROLLER")) {
            (Some(output), ..) => ("forward", None, Some(output)),
            (_, Some(output), _) => ("pass", reason(Reason::RuleLocal), Some(output)),
            (.., Some(output)) => ("controller", None, Some(output)),
            _ if rules.outputs.iter().any(|output| output.to != "CONTROLLER") => {
                ("drop", reason(Reason::RuleNoPort), None)
            }
            _ => ("drop", reason(Reason::RuleDrop), None),
        };
        let by_rules = ExplainReport {
            steps: Vec::new(),
            verdict: verdict.into(),
            reason,
            egress: port_out.map(|output| output.to.clone()),
            after: output.and_then(|output| output.headers.clone()),
            ..ExplainReport::default()
        };
        let told = routed.unwrap_or(by_rules);
        ExplainReport { port, notes, rules: Some(rules), before, frame, ..told }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots() {
        assert_eq!(slot_words(0), "no route");
        assert_eq!(slot_words(5), "next hop 5");
        assert_eq!(slot_words(1 << 30 | 6), "multipath group 6");
        assert_eq!(slot_words(2 << 30 | 7), "look in block 7");
        assert_eq!(slot_words(3 << 30 | 8), "compare with longer prefix 8");
    }
}
