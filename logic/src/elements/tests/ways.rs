//! Finds the way of packets from the plan alone. It searches all routes, and takes next hops from the operations,
//! without the tables' memory.

use super::*;

/// A next hop, or why there is none.
#[derive(Clone, Debug)]
pub struct Way {
    /// `None`: packets can be sent to it.
    pub reason: Option<Reason>,
    /// It is an address of the router itself, or a broadcast address.
    pub local: bool,
    /// A source behind this route counts as reachable.
    pub unicast: bool,
    pub egress: Option<Egress>,
}

#[derive(Clone, Debug)]
pub struct Egress {
    pub id: InterfaceId,
    pub interface: Interface,
    /// The longest IP packet in bytes.
    pub mtu: u32,
    /// The destination itself is the neighbour.
    pub connected: bool,
    pub mac: Option<Mac>,
}

/// One way, or one for each member of a group.
pub fn to(plan: &[Op], address: IpAddr) -> Vec<Way> {
    if let Some(reason) = never_forwarded(address) {
        return vec![Way::pass(reason, false)];
    }
    // If two have the same prefix, the later one holds.
    let longest = plan.iter().filter_map(|op| matching(op, address)).max_by_key(|(length, _)| *length);
    match longest {
        None => vec![Way::pass(Reason::NoRoute, false)],
        Some((_, Target::Multi(members))) => {
            members.iter().map(|(member, _)| Way::of(plan, member, address)).collect()
        }
        Some((_, target)) => vec![Way::of(plan, target, address)],
    }
}

/// `ip_route_input_slow`, `ip6_input`.
fn never_forwarded(address: IpAddr) -> Option<Reason> {
    match address {
        IpAddr::V4(a) => {
            let never = a.octets()[0] == 0 || a.is_loopback() || a.is_multicast() || a.is_broadcast();
            never.then_some(Reason::Broadcast)
        }
        IpAddr::V6(a) if a.is_multicast() => Some(Reason::Broadcast),
        IpAddr::V6(a) => {
            (a.is_unspecified() || a.is_loopback() || a.is_unicast_link_local()).then_some(Reason::Local)
        }
    }
}

/// The length of the route's prefix, if it holds the address.
fn matching(op: &Op, address: IpAddr) -> Option<(u8, &Target)> {
    match (op, address) {
        (Op::Route4(_, prefix, Some(target)), IpAddr::V4(a)) => {
            prefix.contains(a.to_bits()).then_some((prefix.length(), target))
        }
        (Op::Route6(_, prefix, Some(target)), IpAddr::V6(a)) => {
            prefix.contains(a.to_bits()).then_some((prefix.length(), target))
        }
        _ => None,
    }
}

impl Way {
    fn pass(reason: Reason, unicast: bool) -> Way {
        let local = matches!(reason, Reason::Local | Reason::LocalPrefix | Reason::Broadcast);
        Way { reason: Some(reason), local, unicast, egress: None }
    }

    fn of(plan: &[Op], target: &Target, destination: IpAddr) -> Way {
        let hop = match target {
            Target::Pass { reason, unicast } => return Way::pass(*reason, *unicast),
            Target::Hop(hop) => hop,
            Target::Multi(_) => panic!("a group within a group"),
        };
        let neighbour = hop.gateway.unwrap_or(destination);
        let interface = plan.iter().rev().find_map(|op| match op {
            Op::Interface(id, interface) if *id == hop.interface => Some(interface.clone()),
            _ => None,
        });
        let mac = plan.iter().rev().find_map(|op| match op {
            Op::Neighbour(id, address, mac) if (*id, *address) == (hop.interface, neighbour) => *mac,
            _ => None,
        });
        let egress = Egress {
            id: hop.interface,
            interface: interface.expect("routes use existing interfaces"),
            mtu: hop.mtu,
            connected: hop.gateway.is_none(),
            mac,
        };
        let reason = mac.is_none().then_some(Reason::Unresolved);
        Way { reason, local: false, unicast: true, egress: Some(egress) }
    }
}
