//! Which links are interfaces, and what keeps the fast path from them.
//!
//! An interface is the port itself, a VLAN child of it (up to two tags), or a macvlan or macvtap child of either, in
//! any namespace. A link that could be an interface but is not safe is also one, with acceleration off. The tables then
//! know its MAC address as one of this box, and no packet for it is put on the wire.

use super::space::Spaces;
use crate::{
    cause::{Cause, Code},
    net::{Mac, Tag, Vlan},
    observe::{AttachedPort, Link, LinkKind, MacvlanMode, NamespaceId, Takes},
    plan::{PortId, ReversePath},
};
use std::collections::{BTreeMap, BTreeSet};

/// A link by namespace and index.
pub(super) type LinkKey = (NamespaceId, u32);

/// The key by which a packet is classified.
pub(super) type Address = (PortId, Vlan, Mac);

/// A link as the interface it can be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub link: LinkKey,
    pub name: String,
    pub address: Address,
    /// The longest packet of IPv4 and of IPv6 that can be sent here, in bytes.
    pub mtu: [u32; 2],
    /// All devices have a carrier and run.
    pub carrier: bool,
    /// Why packets neither arrive nor leave here on the fast path, as sentences.
    pub common: Vec<Cause>,
    /// Why it does not take IPv4, in addition to `common`.
    pub ipv4: Vec<Cause>,
    /// Why it does not take IPv6, in addition to `common`.
    pub ipv6: Vec<Cause>,
    pub reverse_path: ReversePath,
    pub redirects: bool,
    pub accept_local: bool,
    pub priority_tags: bool,
}

/// All links that could be interfaces.
pub(super) fn shapes(spaces: &Spaces, ports: &BTreeMap<PortId, AttachedPort>) -> Vec<Shape> {
    let at: BTreeMap<LinkKey, PortId> = ports.iter().map(|(id, p)| ((p.namespace, p.ifindex), *id)).collect();
    let takers = Takers::of(spaces);
    let links = spaces.iter().flat_map(|(ns, space)| space.links.values().map(|link| (*ns, link)));
    links
        .filter_map(|(namespace, link)| {
            let chain = chain(spaces, &at, (namespace, link.ifindex))?;
            Some(shape(spaces, namespace, &chain, &takers))
        })
        .collect()
}

/// The devices between a link and its port.
struct Chain<'a> {
    /// The link is first, the port last.
    devices: Vec<(LinkKey, &'a Link)>,
    port: PortId,
    vlan: Vlan,
    /// The number of tags.
    tags: usize,
    /// The device whose rx_handler sees the packet: the link itself, or the device below its macvlan.
    receives: LinkKey,
    mode: Option<MacvlanMode>,
}

impl Chain<'_> {
    /// A sentence if a device below belongs to a third namespace. A change of that namespace's policy for packets of
    /// this device would mark only that namespace's own router.
    fn foreign(&self, spaces: &Spaces) -> Option<Cause> {
        let [own, port] = [self.devices.first()?.0.0, self.devices.last()?.0.0];
        let ((namespace, _), device) = self.devices.iter().find(|((ns, _), _)| ![own, port].contains(ns))?;
        let name = &spaces.get(namespace)?.about.name;
        Some(Code::NamespaceBetween.cause(format!(
            "it sits on {} in the namespace {name}; put it on a device of its own namespace or of the host's",
            device.name
        )))
    }
}

fn chain<'a>(spaces: &'a Spaces, ports: &BTreeMap<LinkKey, PortId>, start: LinkKey) -> Option<Chain<'a>> {
    let (mut devices, mut tags, mut mode) = (Vec::new(), Vec::<Tag>::new(), None);
    let (mut key, mut receives) = (start, start);
    loop {
        let link = spaces.get(&key.0)?.links.get(&key.1)?;
        devices.push((key, link));
        if let Some(port) = ports.get(&key) {
            let vlan = tags.iter().rev().try_fold(Vlan::NONE, |vlan, tag| vlan.push(*tag))?;
            return Some(Chain { devices, port: *port, vlan, tags: tags.len(), receives, mode });
        }
        let below = link.below?;
        match link.kind {
            LinkKind::Vlan(tag) if tags.len() < 2 => tags.push(tag),
            LinkKind::Macvlan(m) | LinkKind::Macvtap(m) if devices.len() == 1 => {
                mode = Some(m);
                receives = below;
            }
            _ => return None,
        }
        key = below;
    }
}

/// Devices that may take packets before the known interfaces, with a sentence for each.
#[derive(Default)]
struct Takers {
    /// By the device whose `rx_handler` gives them packets.
    untagged: BTreeMap<LinkKey, Cause>,
    all: BTreeMap<LinkKey, Cause>,
    namespaces: BTreeMap<NamespaceId, Cause>,
    /// A device of VLAN 0 takes frames that only carry a priority.
    zero_tagged: BTreeSet<LinkKey>,
}

impl Takers {
    fn of(spaces: &Spaces) -> Takers {
        let mut takers = Takers::default();
        let links =
            spaces.iter().flat_map(|(namespace, space)| space.links.values().map(|l| (*namespace, l)));
        for (namespace, link) in links {
            let takes = || {
                Code::Taken.cause(format!("{} ({}) takes packets of its device", what(&link.kind), link.name))
            };
            match (link.kind.takes(link.below.is_some()), link.below) {
                (Takes::Nothing, _) => {}
                (Takes::Own, below) => {
                    let zero = matches!(link.kind, LinkKind::Vlan(Tag { vid: 0, .. }));
                    takers.zero_tagged.extend(below.filter(|_| zero));
                }
                (Takes::Untagged, Some(below)) => drop(takers.untagged.insert(below, takes())),
                (Takes::Below, Some(below)) => drop(takers.all.insert(below, takes())),
                // The kind names no device below, or one in an unknown namespace.
                (Takes::Any, _) => {
                    let why = Code::Taken.cause(format!(
                        "{} ({}) may take packets of any device here: its kind is not known",
                        what(&link.kind),
                        link.name
                    ));
                    takers.namespaces.insert(namespace, why);
                }
                (Takes::Untagged | Takes::Below, None) => {}
            }
        }
        takers
    }

    fn reasons(&self, chain: &Chain<'_>) -> Vec<Cause> {
        let receives = [chain.devices[0].0, chain.receives];
        let untagged = self.untagged.iter().filter(|(key, _)| receives.contains(key)).map(|(_, why)| why);
        let all = chain.devices.iter().filter_map(|(key, _)| self.all.get(key));
        let namespaces: BTreeSet<NamespaceId> = chain.devices.iter().map(|(key, _)| key.0).collect();
        let any = namespaces.iter().filter_map(|namespace| self.namespaces.get(namespace));
        untagged.chain(all).chain(any).cloned().collect()
    }

    /// Whether frames with the tag of VLAN 0 arrive as untagged ones.
    fn leave_priority_tags(&self, chain: &Chain<'_>) -> bool {
        chain.tags == 0 && chain.devices.iter().all(|(key, _)| !self.zero_tagged.contains(key))
    }
}

/// A kind with its article.
fn what(kind: &LinkKind) -> String {
    match kind {
        LinkKind::Macvlan(mode) => format!("a macvlan of mode {mode:?}").to_lowercase(),
        LinkKind::Macvtap(mode) => format!("a macvtap of mode {mode:?}").to_lowercase(),
        LinkKind::Other(kind) if kind == "macsec" => "MACsec".into(),
        LinkKind::Other(kind) if kind.starts_with(['a', 'e', 'i', 'o', 'u']) => format!("an {kind}"),
        LinkKind::Other(kind) => format!("a {kind}"),
        LinkKind::Physical | LinkKind::Loopback | LinkKind::Vlan(_) => "a device".into(),
    }
}

fn shape(spaces: &Spaces, namespace: NamespaceId, chain: &Chain<'_>, takers: &Takers) -> Shape {
    let (link_key, link) = chain.devices[0];
    let mut common: Vec<Cause> = chain
        .devices
        .iter()
        .flat_map(|(key, device)| device_reasons(spaces, *key, device, *key != link_key))
        .collect();
    // The last device is the port. The program there is Millrace's own.
    common.extend(chain.devices.iter().rev().skip(1).filter_map(|(_, device)| device.xdp.clone()));
    common.extend(chain.foreign(spaces));
    if let LinkKind::Macvtap(_) = link.kind {
        let text = format!("{} is a macvtap: its packets go to the program that has it open", link.name);
        common.push(Code::MacvlanMode.cause(text));
    } else if let Some(mode @ (MacvlanMode::Passthru | MacvlanMode::Source)) = chain.mode {
        let text = format!("{} is a macvlan of mode {mode:?}", link.name).to_lowercase();
        common.push(Code::MacvlanMode.cause(text));
    } else {
        common.extend(takers.reasons(chain));
    }
    if let Some((_, port)) = chain.devices.last().filter(|(_, port)| !port.kind.can_be_a_port()) {
        let text = format!("{} is {}, which cannot be a port", port.name, what(&port.kind));
        common.push(Code::DeviceKind.cause(text));
    }
    if link.mac.is_zero() || link.mac.is_group() {
        common.push(Code::NoMac.cause(format!("{} has no MAC address of its own", link.name)));
    }
    Shape {
        link: (namespace, link.ifindex),
        name: link.name.clone(),
        address: (chain.port, chain.vlan, link.mac),
        mtu: mtus(link, chain),
        carrier: chain.devices.iter().all(|(_, device)| device.carrier && device.running),
        common,
        ipv4: reasons4(link),
        ipv6: reasons6(link),
        reverse_path: reverse_path(link),
        redirects: link.ipv4.send_redirects,
        accept_local: link.ipv4.accept_local,
        priority_tags: takers.leave_priority_tags(chain),
    }
}

/// IPv4: the smallest MTU of this device and all below. IPv6: no more than the device's own `net.ipv6.conf.DEV.mtu`
/// (ip6_dst_mtu_maybe_forward()).
///
/// The port accepts frames with its MTU, an Ethernet header and one tag. A longer frame that is redirected to it
/// disappears silently (__xdp_enqueue() by xdp_ok_fwd_dev(), net/core/dev.h). So a second tag must be subtracted from
/// the MTU.
fn mtus(link: &Link, chain: &Chain<'_>) -> [u32; 2] {
    const TAG_BYTES: u32 = 4;
    let least = chain.devices.iter().map(|(_, device)| device.mtu).min().unwrap_or(link.mtu);
    let port = chain.devices.last().map_or(link.mtu, |(_, port)| port.mtu);
    let second_tag = if chain.tags > 1 { TAG_BYTES } else { 0 };
    let ipv4 = least.min(port.saturating_sub(second_tag));
    let ipv6 = if link.ipv6.mtu == 0 { ipv4 } else { ipv4.min(link.ipv6.mtu) };
    [ipv4, ipv6]
}

fn device_reasons(spaces: &Spaces, key: LinkKey, device: &Link, below: bool) -> Vec<Cause> {
    let mut reasons = Vec::new();
    if !device.up {
        reasons.push(Code::DeviceDown.cause(format!("{} is down", device.name)));
    }
    if let Some(master) = device.master {
        let master = spaces.get(&key.0).and_then(|space| space.links.get(&master));
        reasons.push(Code::Enslaved.cause(match master {
            Some(Link { name, kind: LinkKind::Other(kind), .. }) => {
                format!("{} is enslaved to the {kind} {name}", device.name)
            }
            Some(master) => format!("{} is enslaved to {}", device.name, master.name),
            None => format!("{} is enslaved to another device", device.name),
        }));
    }
    let on = if below { format!("below, on {}: ", device.name) } else { String::new() };
    reasons.extend(device.hazards.iter().map(|hazard| hazard.map(|text| format!("{on}{text}"))));
    reasons
}

fn reasons4(link: &Link) -> Vec<Cause> {
    let mut reasons = Vec::new();
    if !link.ipv4.forwarding {
        reasons.push(Code::ForwardingOff.cause(format!("IPv4 forwarding is off on {}", link.name)));
    }
    let on = |name| Code::Setting.cause(format!("IPv4 setting {name} is on for {}", link.name));
    reasons.extend(link.ipv4.unusual.iter().map(on));
    reasons
}

fn reasons6(link: &Link) -> Vec<Cause> {
    let mut reasons = Vec::new();
    if link.ipv6.disabled {
        reasons.push(Code::Ipv6Disabled.cause(format!("IPv6 is disabled on {}", link.name)));
    } else if !link.ipv6.forwarding {
        reasons.push(Code::ForwardingOff.cause(format!("IPv6 forwarding is off on {}", link.name)));
    }
    let on = |name| Code::Setting.cause(format!("IPv6 setting {name} is on for {}", link.name));
    reasons.extend(link.ipv6.unusual.iter().map(on));
    reasons
}

/// __fib_validate_source() (net/ipv4/fib_frontend.c): a source that is not behind this very device goes to
/// `last_resort` if the device has no address (`no_addr`). There any rp_filter refuses it.
fn reverse_path(link: &Link) -> ReversePath {
    match link.ipv4.rp_filter {
        ReversePath::Loose if !link.ipv4.has_address => ReversePath::Strict,
        other => other,
    }
}
