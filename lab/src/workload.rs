//! What a measurement sends, and where it must come out.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use anyhow::{Context, Result, bail};
use logic::net::{Address, Prefix, Prefix4, Prefix6};

use crate::{
    addresses::{Mac, ingress_mac, nexthop_mac, nexthop_mac_of, router_mac},
    generator::{Order, Pace, Sizes, Stream},
    packet::{Protocol, Target},
    prefixes::{Prefixes, destinations},
    topology::{Network, Topology},
};

/// IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// 60-byte frames.
    V4,
    /// 62-byte frames.
    V6,
}

impl Family {
    /// Name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }
}

/// Targets, and the next hop of each.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Where to send.
    pub targets: Vec<Target>,
    /// Shortest frames that fit, without FCS.
    pub frame_bytes: u16,
    /// Order of the targets in each stream.
    pub order: Order,
    /// Lengths of frames, used in turn, instead of `frame_bytes`.
    pub sizes: Option<Sizes>,
    /// Weight of each stream; target n belongs to stream n modulo their number.
    weights: Vec<u64>,
    table: Table,
}

/// A way through a router, in by one port and out by another (numbers in the topology).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// Number of the router; 0: the host.
    pub router: u16,
    /// Where packets come in.
    pub from: u8,
    /// Where they leave. There must be networks behind this port.
    pub to: u8,
    /// The way's share of all packets, as a part of the sum of all weights.
    pub weight: u64,
}

/// The testbed's table as a map from prefix to next hop. It decides what is right.
#[derive(Clone, Debug, Default)]
struct Table {
    v4: HashMap<Prefix4, Mac>,
    v6: HashMap<Prefix6, Mac>,
}

impl Workload {
    /// `count` flows to addresses of the benchmarking prefixes, which every router sends to next hop 1. After 131,072
    /// addresses the flows use the same ones again, from other source ports. The packets go through `routers` in turn.
    pub fn benchmark(family: Family, count: u32, routers: impl Iterator<Item = u16> + Clone) -> Self {
        let address = |i: u32| match family {
            Family::V4 => IpAddr::V4(Ipv4Addr::from_bits(0xc612_0000 + (i & 0x1_ffff))),
            Family::V6 => IpAddr::V6(Ipv6Addr::from_bits((0x2001_0002 << 96) + u128::from(i))),
        };
        Self::new((0..count).map(address), routers, Table::default())
    }

    /// `count` addresses inside prefixes that [`crate::testbed::Testbed::load_routes`] has loaded, through the host.
    pub fn inside(prefixes: &Prefixes, family: Family, count: usize, nexthops: u8) -> Self {
        let nexthop = |i: usize| nexthop_mac(1 + (i % usize::from(nexthops)) as u8);
        let mut table = Table::default();
        let addresses: Vec<IpAddr> = match family {
            Family::V4 => {
                table.v4 = prefixes.v4.iter().enumerate().map(|(i, prefix)| (*prefix, nexthop(i))).collect();
                let list = destinations(&prefixes.v4, count, 4, |bits| bits as u32);
                list.into_iter().map(Address::ip).collect()
            }
            Family::V6 => {
                table.v6 = prefixes.v6.iter().enumerate().map(|(i, prefix)| (*prefix, nexthop(i))).collect();
                let list = destinations(&prefixes.v6, count, 6, |bits| bits);
                list.into_iter().map(Address::ip).collect()
            }
        };
        Self::new(addresses.into_iter(), std::iter::once(0), table)
    }

    /// IPv4 packets along several ways at once, with a stream for each way. Its packets go to `destinations` addresses
    /// in the first IPv4 network behind its outgoing port, and use the router's interfaces on both ports in turn.
    ///
    /// # Errors
    /// The topology does not have one of the ways.
    pub fn across(topology: &Topology, ways: &[Way], destinations: u32) -> Result<Self> {
        let routers = topology.all_routers()?;
        let (mut targets, mut table) = (Vec::new(), Table::default());
        for i in 0..destinations {
            for way in ways {
                let router = routers.get(usize::from(way.router)).context("a way's router does not exist")?;
                let behind = topology.ports.get(usize::from(way.to)).map_or(&[][..], |port| &port.behind);
                let network = behind.iter().find(|network| matches!(network, Network::V4(_)));
                let interfaces = u32::from(router.interfaces_on_port);
                let number = (i % interfaces) as u8;
                let part = network.and_then(|network| network.part(number.into(), interfaces as u16));
                let Some(Network::V4(prefix)) = part else { bail!("no IPv4 network behind port {}", way.to) };
                let destination = Ipv4Addr::from_bits(prefix.address() + i / interfaces).into();
                let mac = router_mac(way.from, number, way.router);
                let port = 1024 + (i & 0x7fff) as u16;
                targets.push(Target { port: way.from, ..Target::udp(destination, mac, port) });
                table.v4.insert(prefix, nexthop_mac_of(way.to, 1));
            }
        }
        let frame_bytes = targets.iter().map(Target::min_frame).max().unwrap_or_default();
        let weights = ways.iter().map(|way| way.weight).collect();
        Ok(Self { targets, frame_bytes, order: Order::InTurn, sizes: None, weights, table })
    }

    fn new(
        addresses: impl Iterator<Item = IpAddr>,
        routers: impl Iterator<Item = u16> + Clone,
        table: Table,
    ) -> Self {
        let targets: Vec<Target> = addresses
            .zip(routers.cycle())
            .enumerate()
            .map(|(i, (destination, router))| {
                Target::udp(destination, ingress_mac(router), 1024 + ((i + (i >> 17)) & 0x7fff) as u16)
            })
            .collect();
        let frame_bytes = targets.iter().map(Target::min_frame).max().unwrap_or_default();
        Self { targets, frame_bytes, order: Order::InTurn, sizes: None, weights: vec![1], table }
    }

    /// The same in parts of at most so many targets.
    pub fn parts(&self, most: usize) -> impl Iterator<Item = Workload> {
        self.targets.chunks(most).map(|targets| Workload { targets: targets.to_vec(), ..self.clone() })
    }

    /// The same with another protocol over IP, in the shortest frames that fit.
    pub fn over(mut self, protocol: Protocol) -> Self {
        self.targets.iter_mut().for_each(|target| target.protocol = protocol);
        self.frame_bytes = self.targets.iter().map(Target::min_frame).max().unwrap_or_default();
        self
    }

    /// Streams to send. `targets` are the targets of this workload, addressed as a subject wants them. A rate is the
    /// sum of all streams. Any other pace needs a single stream, with all targets in turn.
    pub fn streams(&self, targets: &[Target], pace: Pace) -> Vec<Stream> {
        let sizes = || self.sizes.clone().unwrap_or_else(|| Sizes::fixed(self.frame_bytes));
        let Pace::Rate(pps) = pace else {
            return vec![Stream { targets: targets.to_vec(), order: self.order, sizes: sizes(), pace }];
        };
        let (count, sum) = (self.weights.len(), self.weights.iter().sum::<u64>());
        let stream = |(n, weight): (usize, &u64)| {
            let own = targets.iter().copied().skip(n).step_by(count).collect();
            Stream { targets: own, order: self.order, sizes: sizes(), pace: Pace::Rate(pps * weight / sum) }
        };
        self.weights.iter().enumerate().map(stream).collect()
    }

    /// Is the table so large that a daemon has much to free after reading it?
    pub(crate) fn has_large_table(&self) -> bool {
        self.table.v4.len() + self.table.v6.len() > 10_000
    }

    /// MACs that a packet to this address may leave with: those of its next hop.
    pub fn next_hop(&self, destination: IpAddr) -> Vec<Mac> {
        let next_hop = match destination {
            IpAddr::V4(address) => longest(&self.table.v4, address.to_bits()),
            IpAddr::V6(address) => longest(&self.table.v6, address.to_bits()),
        };
        vec![next_hop.unwrap_or(nexthop_mac(1))]
    }
}

fn longest<A: Address>(table: &HashMap<Prefix<A>, Mac>, address: A) -> Option<Mac> {
    (0..=A::BITS).rev().find_map(|length| table.get(&Prefix::new(address, length)?).copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_hop_is_that_of_the_longest_prefix() {
        let prefix = |address, length| Prefix4::new(address, length).unwrap();
        let prefixes =
            Prefixes { v4: vec![prefix(0x0b00_0000, 8), prefix(0x0b01_0000, 16)], ..Default::default() };
        let workload = Workload::inside(&prefixes, Family::V4, 10, 8);
        assert_eq!(workload.next_hop("11.2.0.1".parse().unwrap()), [nexthop_mac(1)]);
        assert_eq!(workload.next_hop("11.1.0.1".parse().unwrap()), [nexthop_mac(2)]);
        assert_eq!(workload.frame_bytes, 60);
    }

    #[test]
    fn ways_are_streams_of_their_own_that_share_a_rate() {
        let topology = Topology::named("pairs").unwrap();
        let ways =
            [Way { router: 1, from: 0, to: 1, weight: 3 }, Way { router: 2, from: 2, to: 3, weight: 1 }];
        let workload = Workload::across(&topology, &ways, 2).unwrap();
        let streams = workload.streams(&workload.targets, Pace::Rate(1000));
        assert_eq!([streams[0].pace, streams[1].pace], [Pace::Rate(750), Pace::Rate(250)]);
        let of = |n: usize| -> Vec<_> {
            streams[n].targets.iter().map(|t| (t.port, t.router_mac, t.destination.to_string())).collect()
        };
        let to = |port, router, addresses: [&str; 2]| {
            addresses.map(|address| (port, router_mac(port, 0, router), address.to_owned()))
        };
        assert_eq!(of(0), to(0, 1, ["198.18.0.0", "198.18.0.1"]));
        assert_eq!(of(1), to(2, 2, ["198.19.0.0", "198.19.0.1"]));
        assert_eq!(workload.next_hop("198.19.0.1".parse().unwrap()), [nexthop_mac_of(3, 1)]);
        let all = workload.streams(&workload.targets, Pace::Saturate);
        assert_eq!((all.len(), all[0].targets.len()), (1, 4));
        let nowhere = Way { router: 1, from: 1, to: 0, weight: 1 };
        let error = Workload::across(&topology, &[nowhere], 1).unwrap_err().to_string();
        assert_eq!(error, "no IPv4 network behind port 0");
    }

    #[test]
    fn both_ways_use_every_interface() {
        let topology = Topology::named("interfaces").unwrap().with_interfaces(4);
        let ways =
            [Way { router: 1, from: 0, to: 1, weight: 1 }, Way { router: 1, from: 1, to: 0, weight: 1 }];
        let workload = Workload::across(&topology, &ways, 5).unwrap();
        let seen: Vec<_> =
            workload.targets.iter().map(|t| (t.router_mac, t.destination.to_string())).collect();
        assert_eq!(seen[0], (router_mac(0, 0, 1), "198.19.0.0".into()));
        assert_eq!(seen[7], (router_mac(1, 3, 1), "198.18.192.0".into()));
        assert_eq!(seen[8], (router_mac(0, 0, 1), "198.19.0.1".into()));
    }

    #[test]
    fn packets_go_through_the_routers_in_turn() {
        let workload = Workload::benchmark(Family::V6, 4, 1..=2);
        let macs: Vec<Mac> = workload.targets.iter().map(|target| target.router_mac).collect();
        assert_eq!(macs, [ingress_mac(1), ingress_mac(2), ingress_mac(1), ingress_mac(2)]);
        assert_eq!(workload.targets[3].destination.to_string(), "2001:2::3");
    }
}
