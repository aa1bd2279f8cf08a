//! Through which next hops a router may send: for a multipath route which member it is is free, that it is one is not.

use crate::topology::Side;
use logic::net::{Address, Mac, Prefix, Prefix4, Prefix6};
use std::{cmp::Reverse, collections::BTreeSet, net::IpAddr};

/// A way out: the port, and the MAC addresses of the frame, destination and source.
pub type Member = (usize, Mac, Mac);

/// What of a route matters for the way out.
#[derive(Clone, Debug, Default)]
pub struct Route {
    /// IPv4 only; 0: whatever the packet says.
    pub tos: u8,
    pub metric: u32,
    /// None: blackhole and the like, or a connected network.
    pub members: BTreeSet<Member>,
}

/// The routes Linux took into one router's table, in the order they were added.
#[derive(Default)]
pub struct Table {
    v4: Vec<(Prefix4, Route)>,
    v6: Vec<(Prefix6, Route)>,
}

impl Table {
    pub fn add4(&mut self, prefix: Prefix4, route: Route) {
        self.v4.push((prefix, route));
    }

    /// IPv6 makes one multipath route of those that are equal but for their gateways.
    pub fn add6(&mut self, prefix: Prefix6, route: Route) {
        let equal = |(p, r): &&mut (Prefix6, Route)| *p == prefix && r.metric == route.metric;
        match self.v6.iter_mut().find(equal) {
            Some((_, known)) => known.members.extend(route.members),
            None => self.v6.push((prefix, route)),
        }
    }

    /// The multipath route that packets to this address take, if it is one they take: its prefix and members.
    pub fn multipath(&self, destination: IpAddr, tos: u8) -> Option<(String, &BTreeSet<Member>)> {
        match destination {
            IpAddr::V4(address) => multipath(&self.v4, address.to_bits(), tos),
            IpAddr::V6(address) => multipath(&self.v6, address.to_bits(), 0),
        }
    }
}

/// The longest prefix; of equal ones that with the packet's TOS, then the lowest metric, then the first
/// (`fib_table_lookup` of the kernel).
fn multipath<A: Address>(
    routes: &[(Prefix<A>, Route)],
    address: A,
    tos: u8,
) -> Option<(String, &BTreeSet<Member>)>
where
    Prefix<A>: ToString,
{
    let matching =
        routes.iter().filter(|(p, r)| p.contains(address) && (r.tos == 0 || r.tos == tos & TOS_MASK));
    let (prefix, route) = matching.min_by_key(|(p, r)| (Reverse(p.length()), r.tos == 0, r.metric))?;
    (route.members.len() > 1).then(|| (prefix.to_string(), &route.members))
}

/// The bits of the TOS field that routes are chosen by (`IPTOS_RT_MASK`).
const TOS_MASK: u8 = 0x1c;

/// The way out by a neighbour on this side.
pub fn member(side: &Side, neighbour: Mac) -> Member {
    (side.port, neighbour, side.router_mac)
}

#[test]
fn the_route_taken_is_that_of_linux() {
    let hop = |n| (0, Mac([2, 0, 0, 0, 0, n]), Mac([2; 6]));
    let route =
        |tos, metric, hops: &[u8]| Route { tos, metric, members: hops.iter().map(|n| hop(*n)).collect() };
    let mut table = Table::default();
    table.add4("172.0.0.0/8".parse().unwrap(), route(0, 0, &[1, 2]));
    table.add4("172.16.0.0/16".parse().unwrap(), route(0, 0, &[3]));
    table.add4("172.16.0.0/16".parse().unwrap(), route(0, 0, &[4, 5]));
    table.add4("172.17.0.0/16".parse().unwrap(), route(0x10, 0, &[6]));
    let ways = |table: &Table, address: &str, tos| {
        table.multipath(address.parse().unwrap(), tos).map(|(prefix, members)| (prefix, members.len()))
    };
    let eight = Some(("172.0.0.0/8".to_string(), 2));
    assert_eq!(ways(&table, "172.18.0.1", 0), eight);
    assert_eq!(ways(&table, "172.16.0.1", 0), None, "the first of equal ones is not multipath");
    assert_eq!(ways(&table, "172.17.0.1", 0x10), None);
    assert_eq!(ways(&table, "172.17.0.1", 0), eight, "one for another TOS is not taken");
    table.add6("2400::/16".parse().unwrap(), route(0, 1024, &[1]));
    assert_eq!(ways(&table, "2400::1", 0), None);
    table.add6("2400::/16".parse().unwrap(), route(0, 1024, &[2]));
    assert_eq!(ways(&table, "2400::1", 0), Some(("2400::/16".to_string(), 2)));
}
