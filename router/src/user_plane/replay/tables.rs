//! The forwarding tables of a path file. Its ports and routes stand in for Linux.

use crate::config::PathsConfig;
use logic::{
    memory::{Capacity, HeapMemory},
    net::{Addresses, Mac, Vlan},
    plan::{Hop, Interface, InterfaceId, MultipathHash, Op, PortId, ReversePath, Target},
    tables::{
        Full, Ingress, Region, Tables,
        encoding::{IF_IPV4, IF_IPV6},
    },
};
use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};

/// A capacity for a few routes.
const FIRST: Capacity = Capacity {
    fib_blocks: 1 << 10,
    fib_tails: 1 << 10,
    nexthops: 1 << 10,
    neighbour_buckets: 1 << 8,
    interface_buckets: 1 << 6,
    routers: 256,
};

/// Builds the tables, in larger and larger memory until everything fits. [`PathsConfig`] bounds the size.
pub fn build(config: &PathsConfig) -> Arc<HeapMemory> {
    let changes = changes(config);
    let mut capacity = FIRST;
    loop {
        let mut tables = Tables::new(Arc::new(HeapMemory::new(capacity)));
        match changes.iter().try_for_each(|change| tables.apply(change)) {
            Ok(()) => return tables.memory().clone(),
            Err(Full { region, .. }) => *rows(&mut capacity, region) *= 2,
        }
    }
}

fn rows(capacity: &mut Capacity, region: Region) -> &mut usize {
    match region {
        Region::FibBlocks => &mut capacity.fib_blocks,
        Region::FibTails => &mut capacity.fib_tails,
        Region::Nexthops => &mut capacity.nexthops,
        Region::NeighbourIndex => &mut capacity.neighbour_buckets,
        Region::InterfaceIndex => &mut capacity.interface_buckets,
        Region::Routers => &mut capacity.routers,
    }
}

/// The interface of a port: the only one, without VLAN tags.
fn interface_of(port: PortId) -> InterfaceId {
    InterfaceId::from(port) + 1
}

/// The port, router and interface of a frame. It is for the port's interface if it has its address.
pub fn ingress(config: &PathsConfig, port: PortId, frame: &[u8]) -> Ingress {
    let Some(known) = config.ports.get(usize::from(port)) else { return Ingress::default() };
    let router = known.router;
    let is_tagged = |kind: &[u8]| matches!(kind, [0x81, 0] | [0x88, 0xa8]);
    let ours = known.mac.is_some_and(|mac| frame.starts_with(&mac.0));
    match frame.get(12..14) {
        Some(kind) if ours && !is_tagged(kind) => {
            Ingress { port, router, interface: interface_of(port), flags: IF_IPV4 | IF_IPV6 }
        }
        _ => Ingress { port, router, ..Ingress::default() },
    }
}

fn changes(config: &PathsConfig) -> Vec<Op> {
    let routers = (0..config.routers.len())
        .map(|router| Op::Router { router: router as u8, multipath: MultipathHash::default() });
    let ports = (0..).zip(&config.ports).flat_map(|(port, known)| {
        let interface = |mac| Interface {
            router: known.router,
            port,
            vlan: Vlan::NONE,
            mac,
            ipv4: true,
            ipv6: true,
            transmit: true,
            reverse_path: ReversePath::Off,
            redirects: false,
            accept_local: false,
            priority_tags: false,
            look_at_sources: false,
            group: 0,
        };
        let interface = known.mac.map(|mac| Op::Interface(interface_of(port), interface(mac)));
        [Some(Op::Port { port, frags: false }), interface].into_iter().flatten()
    });
    let mut changes: Vec<_> = routers.chain(ports).collect();
    // The tables know next hops by IP address. Those of the file have none, so they get numbers.
    let mut gateways = BTreeMap::<(PortId, Mac), IpAddr>::new();
    for route in &config.routes {
        let Some(port) = config.ports.get(usize::from(route.port)) else { continue };
        let next = Ipv4Addr::from_bits(gateways.len() as u32 + 1).into();
        let interface = interface_of(route.port);
        let gateway = *gateways.entry((route.port, route.via)).or_insert_with(|| {
            changes.push(Op::Neighbour(interface, next, Some(route.via)));
            next
        });
        let target = Some(Target::Hop(Hop { interface, gateway: Some(gateway), mtu: port.mtu }));
        changes.push(match route.prefix {
            Addresses::V4(prefix) => Op::Route4(port.router, prefix, target),
            Addresses::V6(prefix) => Op::Route6(port.router, prefix, target),
        });
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use logic::tables::lookup;
    use std::path::Path;

    #[test]
    fn routes_lead_where_the_file_says_however_many() {
        let port = |name: &str, last: u8, router: &str| {
            format!(
                "[[port]]\nname = \"{name}\"\nmac = \"02:00:00:00:00:{last:02x}\"\nrouter = \"{router}\"\nmtu = 1400\n"
            )
        };
        let mut text = [port("a", 1, "red"), port("b", 2, "red"), port("c", 3, "blue")].concat();
        let mut route = |prefix: String, via: u8, port: &str| {
            text += &format!(
                "[[route]]\nprefix = \"{prefix}\"\nvia = \"02:09:00:00:00:{via:02x}\"\nport = \"{port}\"\n"
            );
        };
        // More blocks, tails, next hops and neighbours than fit at first.
        (0..3000).for_each(|n| route(format!("10.{}.{}.128/25", n / 250, n % 250), n as u8, "b"));
        (0..1500).for_each(|n| route(format!("2001:db8:{n:x}::/56"), (n % 200) as u8, "a"));
        route("10.0.0.0/8".into(), 255, "c");
        text += "[[path]]\nname = \"x\"\nchain = [\"discard\"]";
        let config = PathsConfig::parse(Path::new("p.toml"), &text).unwrap();
        let memory = build(&config);
        let found = |router: u8, address: &str| {
            let answer = lookup(&memory, router, address.parse().unwrap()).remove(0);
            (answer.reason, answer.mac, answer.port, answer.mtu)
        };
        let via = |last| Some(Mac([2, 9, 0, 0, 0, last]));
        for n in (0..3000).step_by(77) {
            let address = format!("10.{}.{}.200", n / 250, n % 250);
            assert_eq!(found(1, &address), (None, via(n as u8), 1, 1400), "{address}");
            assert_eq!(found(2, &address), (None, via(255), 2, 1400), "{address}");
        }
        assert_eq!(found(1, "2001:db8:5db::1"), (None, via((1499 % 200) as u8), 0, 1400));
        assert_eq!(found(1, "10.0.0.1").0, Some(logic::reason::Reason::NoRoute));
        assert_eq!(found(0, "10.0.0.200").0, Some(logic::reason::Reason::NoRoute));
    }

    #[test]
    fn frames_are_for_the_interface_whose_address_they_have() {
        let text = "[[port]]\nname = \"a\"\nmac = \"02:00:00:00:00:01\"\n[[port]]\nname = \"b\"\nrouter = \"red\"\n[[path]]\nname = \"x\"\nchain = [\"discard\"]";
        let config = PathsConfig::parse(Path::new("p.toml"), text).unwrap();
        let mut frame = [2, 0, 0, 0, 0, 1, 9, 9, 9, 9, 9, 9, 8, 0, 0x45];
        let flags = IF_IPV4 | IF_IPV6;
        assert_eq!(ingress(&config, 0, &frame), Ingress { port: 0, router: 0, interface: 1, flags });
        assert_eq!(ingress(&config, 1, &frame), Ingress { port: 1, router: 1, interface: 0, flags: 0 });
        assert_eq!(ingress(&config, 0, &frame[..12]).interface, 0);
        frame[12..14].copy_from_slice(&[0x81, 0]);
        assert_eq!(ingress(&config, 0, &frame).interface, 0);
        frame[12..14].copy_from_slice(&[8, 0]);
        frame[5] = 2;
        assert_eq!(ingress(&config, 0, &frame).interface, 0);
    }
}
