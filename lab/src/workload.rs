//! What is sent in a measurement, and where it must come out.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use logic::net::{Address, Prefix, Prefix4, Prefix6};

use crate::{
    addresses::{Mac, ingress_mac, nexthop_mac},
    packet::Target,
    prefixes::{Prefixes, destinations},
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
    /// As people write it.
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
    table: Table,
}

/// The testbed's table as a map, to say what is right: (prefix) -> number of the next hop.
#[derive(Clone, Debug, Default)]
struct Table {
    v4: HashMap<Prefix4, u8>,
    v6: HashMap<Prefix6, u8>,
}

impl Workload {
    /// `count` addresses of the benchmarking prefixes (at most 131,072), which every router sends to next hop 1; the
    /// packets go through `routers` in turn.
    pub fn benchmark(family: Family, count: u32, routers: impl Iterator<Item = u16> + Clone) -> Self {
        let address = |i: u32| match family {
            Family::V4 => IpAddr::V4(Ipv4Addr::from_bits(0xc612_0000 + (i & 0x1_ffff))),
            Family::V6 => IpAddr::V6(Ipv6Addr::from_bits((0x2001_0002 << 96) + u128::from(i))),
        };
        Self::new((0..count).map(address), routers, Table::default())
    }

    /// `count` addresses inside prefixes that [`crate::testbed::Testbed::load_routes`] has loaded, through the host.
    pub fn inside(prefixes: &Prefixes, family: Family, count: usize, nexthops: u8) -> Self {
        let nexthop = |i: usize| 1 + (i % usize::from(nexthops)) as u8;
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

    fn new(
        addresses: impl Iterator<Item = IpAddr>,
        routers: impl Iterator<Item = u16> + Clone,
        table: Table,
    ) -> Self {
        let targets: Vec<Target> = addresses
            .zip(routers.cycle())
            .enumerate()
            .map(|(i, (destination, router))| {
                Target::udp(destination, ingress_mac(router), 1024 + (i & 0x7fff) as u16)
            })
            .collect();
        let frame_bytes = targets.iter().map(Target::min_frame).max().unwrap_or_default();
        Self { targets, frame_bytes, table }
    }

    /// The MACs a packet to this address may leave with: those of its next hop.
    pub fn next_hop(&self, destination: IpAddr) -> Vec<Mac> {
        let number = match destination {
            IpAddr::V4(address) => longest(&self.table.v4, address.to_bits()),
            IpAddr::V6(address) => longest(&self.table.v6, address.to_bits()),
        };
        vec![nexthop_mac(number.unwrap_or(1))]
    }
}

fn longest<A: Address>(table: &HashMap<Prefix<A>, u8>, address: A) -> Option<u8> {
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
    fn packets_go_through_the_routers_in_turn() {
        let workload = Workload::benchmark(Family::V6, 4, 1..=2);
        let macs: Vec<Mac> = workload.targets.iter().map(|target| target.router_mac).collect();
        assert_eq!(macs, [ingress_mac(1), ingress_mac(2), ingress_mac(1), ingress_mac(2)]);
        assert_eq!(workload.targets[3].destination.to_string(), "2001:2::3");
    }
}
