//! Devices and settings as they are reported: composed from all that is known, and emitted if they changed.

use super::{super::settings, Space};
use crate::{
    base::foreign::{Quoted, Shown},
    linux::{hazards::command, netlink::link::RawLink},
};
use logic::{
    cause::{Cause, Code},
    observe::{Event, Link, LinkKind, NamespaceId, Settings},
};
use std::{mem, time::Instant};

impl Space {
    /// A message reported the device: emit it if it differs from the last event.
    pub(super) fn refresh(&mut self, ifindex: u32) {
        if let Some(visit) = &mut self.visit {
            visit.touched.insert(ifindex);
        }
        self.stale.insert(ifindex);
    }

    fn emit(&mut self, ifindex: u32, out: &mut Vec<Event>) {
        if let Some(link) = self.compose(ifindex)
            && self.announced
            && self.emitted.get(&ifindex) != Some(&link)
        {
            let marks = |l: &Link| {
                (l.ipv4.ignore_routes_with_linkdown, l.ipv6.ignore_routes_with_linkdown, l.ipv6.disabled)
            };
            if self.emitted.get(&ifindex).is_some_and(|old| marks(old) != marks(&link)) {
                // The kernel also marks a next hop as dead if it is linkdown and ignored, or if IPv6 is off on its
                // device.
                self.due.routes_soon(Instant::now());
            }
            self.emitted.insert(ifindex, link.clone());
            out.push(Event::Link(self.id, link));
        }
    }

    /// Emits every device that differs from its last event.
    pub fn refresh_all(&mut self, out: &mut Vec<Event>) {
        self.stale.extend(self.links.keys());
        self.refresh_stale(out);
    }

    /// Emits stale devices, then the settings, if they differ from their last event.
    pub(super) fn refresh_stale(&mut self, out: &mut Vec<Event>) {
        for ifindex in mem::take(&mut self.stale) {
            self.emit(ifindex, out);
        }
        self.refresh_settings(out);
    }

    pub(super) fn compose(&mut self, ifindex: u32) -> Option<Link> {
        let raw = self.links.get(&ifindex)?.clone();
        self.note_redirects(&raw);
        let has_address = self.addresses.get(&ifindex).is_some_and(|a| !a.is_empty());
        let below = self.below(&raw);
        let mut hazards = self.hazards.of_link(ifindex, &raw.name, &self.namespace.name);
        if raw.egress_priority_map {
            hazards.push(Code::PriorityMap.cause(format!(
                "{} maps priorities to VLAN priority bits; recreate it without egress-qos-map",
                Shown(&raw.name)
            )));
        }
        if self.addresses.get(&ifindex).is_some_and(|a| a.values().any(|understood| !understood)) {
            let text = format!("{} has an IPv4 address with unknown attributes", Shown(&raw.name));
            hazards.push(Code::UnknownAddress.cause(text));
        }
        let odd = |what| Code::DeviceKind.cause(format!("{} {what}", Shown(&raw.name)));
        hazards.extend(raw.oddities.iter().map(odd));
        let xdp = raw.xdp.then(|| {
            let off = format!("ip link set dev {} xdp off", Quoted(&raw.name));
            let off = command(&self.namespace.name, &off);
            Code::Xdp.cause(format!("{} runs an XDP program; detach it with: {off}", Shown(&raw.name)))
        });
        Some(Link {
            ifindex,
            xdp,
            mac: raw.mac,
            mtu: raw.mtu,
            up: raw.up,
            carrier: raw.carrier,
            running: raw.running,
            below,
            master: raw.master,
            ipv4: settings::fold4(raw.conf4.as_deref(), &self.values, has_address),
            ipv6: settings::fold6(raw.conf6.as_deref(), &self.values, raw.mtu),
            hazards,
            kind: raw.kind,
            name: raw.name,
        })
    }

    fn note_redirects(&mut self, raw: &RawLink) {
        let takes = settings::take_redirects(raw.conf4.as_deref(), raw.conf6.as_deref(), &self.values);
        for (takes, devices) in takes.into_iter().zip(&mut self.redirected) {
            if takes && raw.kind != LinkKind::Loopback {
                devices.insert(raw.ifindex);
            } else {
                devices.remove(&raw.ifindex);
            }
        }
    }

    /// The place of the lower device, resolved only for devices that can carry a router's interface.
    pub fn below(&mut self, raw: &RawLink) -> Option<(NamespaceId, u32)> {
        let below = raw.below?;
        let Some(number) = raw.below_nsid else { return Some((self.id, below)) };
        raw.kind.sits_on_another().then_some(())?;
        Some((self.resolve(number)?, below))
    }

    /// The namespace that this one knows by `number`.
    fn resolve(&mut self, number: i32) -> Option<NamespaceId> {
        let known = self.nsids.iter().find(|(_, known)| **known == Some(number)).map(|(id, _)| *id);
        self.unresolved |= known.is_none();
        known
    }

    pub(super) fn settings(&self) -> Settings {
        let mut settings = self.hazards.of_namespace(&self.namespace.name);
        settings.multipath_policy =
            [self.values.multipath4, self.values.multipath6].map(|p| p.min(255) as u8);
        settings.multipath_key = self.multipath_keys.of(self.values.multipath_seed);
        if self.values.forward_use_pmtu != 0 {
            settings.hazards4.push(Code::LearnedMtu.cause(
                "net.ipv4.ip_forward_use_pmtu is on, so learned path MTUs apply to forwarded packets; set it to 0",
            ));
        }
        let [redirects4, redirects6] = [4, 6].map(|version| self.redirects(version));
        settings.hazards4.extend(redirects4);
        settings.hazards6.extend(redirects6);
        self.unread.add_to(&mut settings);
        settings
    }

    /// Reports that devices accept redirects, if packets of the IP version are forwarded.
    fn redirects(&self, version: u8) -> Option<Cause> {
        let redirected = &self.redirected[usize::from(version == 6)];
        let name = &self.links.get(redirected.first()?)?.name;
        let forwards = |link: &Link| if version == 4 { link.ipv4.forwarding } else { link.ipv6.forwarding };
        if !self.emitted.values().any(forwards) {
            return None;
        }
        let more = redirected.len() - 1;
        let off = format!("net/ipv{version}/conf/{name}/accept_redirects=0");
        let off = command(&self.namespace.name, &format!("sysctl -w {}", Quoted(&off)));
        let flush = command(&self.namespace.name, "ip route flush cache");
        let others = if more > 0 { format!(" (and {more} more)") } else { String::new() };
        Some(Code::Redirects.cause(format!(
            "{}{others} accepts ICMP redirects, which change the gateways of forwarded packets; turn this off with: \
             {off}; then remove learned gateways with: {flush}",
            Shown(name)
        )))
    }
}
