//! One packet through the real program, told step by step.

use super::{
    Control,
    answers::reason_count,
    api::ApiError,
    packet::{Headers, PacketText},
    report::{ExplainReport, ExplainRequest, ReasonCount},
    seam::{Kernel, Observe},
};
use crate::plane::Step;
use logic::{
    mirror::InterfaceView,
    net::{Mac, Vlan},
    plan::PortId,
};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Sender of packets whose source MAC is not given.
const SENDER: Mac = Mac([0x02, 0, 0, 0, 0, 0xfe]);
/// Longest frame, bytes.
const MAX_FRAME: usize = 9100;
/// An Ethernet header: the program is not run on less.
const MIN_FRAME: usize = 14;

const XDP_REDIRECT: u32 = 4;
const XDP_PASS: u32 = 2;

impl<K: Kernel, O: Observe> Control<K, O> {
    /// Builds or takes the frame, runs it, puts the trace in words.
    pub(super) fn explain(&self, request: &ExplainRequest) -> Result<ExplainReport, ApiError> {
        let (port, frame) = match (&request.packet, &request.frame) {
            (Some(text), None) => self.described(text, request)?,
            (None, Some(hex)) => {
                let name = request.port.as_deref();
                let name = name.ok_or_else(|| ApiError::bad("a frame needs the port it arrives on"))?;
                (
                    self.port_named(name)?,
                    from_hex(hex).ok_or_else(|| ApiError::bad("the frame is not hexadecimal"))?,
                )
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
            XDP_REDIRECT => "forward",
            XDP_PASS => "pass",
            _ => "drop",
        };
        Ok(ExplainReport {
            port: self.port_name(port),
            steps: steps.iter().map(|step| self.words(step)).collect(),
            verdict: verdict.into(),
            reason: reason.map(|r| ReasonCount { packets: 1, ..reason_count(r, 1) }),
            egress: egress.filter(|_| run.action == XDP_REDIRECT),
            before: Headers::read(&frame),
            after: Headers::read(&run.frame),
        })
    }

    fn port_named(&self, name: &str) -> Result<PortId, ApiError> {
        let found = self.world.ports.iter().find(|(_, p)| p.name == name).map(|(id, _)| *id);
        found.ok_or_else(|| {
            let names: Vec<_> = self.world.ports.values().map(|p| p.name.as_str()).collect();
            ApiError::unknown(format!("no port {name:?}; there are: {}", names.join(", ")))
        })
    }

    /// The frame of a described packet, and the port it arrives on.
    fn described(&self, text: &str, request: &ExplainRequest) -> Result<(PortId, Vec<u8>), ApiError> {
        let packet: PacketText = text.parse().map_err(|e| ApiError::bad(format!("{e}")))?;
        let port = request.port.as_deref().map(|name| self.port_named(name)).transpose()?;
        let source = packet.source_mac.unwrap_or(SENDER);
        if let (Some(port), Some(mac)) = (port, packet.destination_mac) {
            return Ok((port, packet.frame(mac, source, packet.vlan.unwrap_or_default())));
        }
        let interface = self.ingress(&packet, port, request.router.as_deref())?;
        let mac = packet.destination_mac.unwrap_or(interface.mac);
        Ok((interface.port, packet.frame(mac, source, packet.vlan.unwrap_or(interface.vlan))))
    }

    /// The interface the packet would come in by: of those that fit what is given, the one the router has its route back
    /// to the source on, else the first.
    fn ingress(
        &self,
        packet: &PacketText,
        port: Option<PortId>,
        router: Option<&str>,
    ) -> Result<InterfaceView, ApiError> {
        let namespace = match (router, port) {
            (None, Some(_)) => None,
            _ => Some(self.router(router)?.1.namespace),
        };
        let fits = |i: &InterfaceView| {
            port.is_none_or(|p| i.port == p)
                && namespace.is_none_or(|n| i.namespace == n)
                && packet.vlan.is_none_or(|v| i.vlan == v)
                && packet.destination_mac.is_none_or(|m| i.mac == m)
        };
        let mut fitting: Vec<_> = self.world.mirror.interfaces().filter(fits).collect();
        let routers: Vec<_> = self.world.mirror.routers().collect();
        let back = fitting.iter().position(|interface| {
            let router = routers.iter().find(|r| r.namespace == interface.namespace).and_then(|r| r.router);
            let ways = router.map(|id| self.lookup(id, packet.source)).unwrap_or_default();
            interface.interface.is_some() && ways.iter().any(|way| way.interface == interface.interface)
        });
        if fitting.is_empty() {
            return Err(ApiError::unknown(format!(
                "no interface has this port, router, VLAN and MAC; see `{}`",
                self.instance.command("interfaces")
            )));
        }
        Ok(fitting.swap_remove(back.unwrap_or(0)))
    }

    /// A step of the program in plain words.
    fn words(&self, step: &Step) -> String {
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
            Step::SourceCheck { slot, accepted } => {
                let result = if accepted { "accepted" } else { "refused" };
                format!("source looked up ({}): {result}", slot_words(slot))
            }
            Step::FibBlock { block, slot } => format!("table block {block} says: {}", slot_words(slot)),
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
            Step::Verdict { reason: None, .. } => "forwarded".into(),
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

/// Bytes of a hexadecimal text.
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect();
    let digits = digits.filter(|d| d.len() % 2 == 0)?;
    Some(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal() {
        assert_eq!(from_hex("00ff7A"), Some(vec![0, 255, 0x7a]));
        assert_eq!(from_hex(""), Some(vec![]));
        for wrong in ["0", "0g", "ää"] {
            assert_eq!(from_hex(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn slots() {
        assert_eq!(slot_words(0), "no route");
        assert_eq!(slot_words(5), "next hop 5");
        assert_eq!(slot_words(1 << 30 | 6), "multipath group 6");
        assert_eq!(slot_words(2 << 30 | 7), "look in block 7");
        assert_eq!(slot_words(3 << 30 | 8), "compare with longer prefix 8");
    }
}
