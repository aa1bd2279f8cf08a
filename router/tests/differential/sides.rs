//! The parts of every bed: three ports, a side on each for the host, and two macvlans for the tenant.

use logic::net::Mac;
use std::net::{Ipv4Addr, Ipv6Addr};

pub const PORTS: usize = 3;

pub fn port_mtu(port: usize) -> u16 {
    if port == 2 { 1400 } else { 1500 }
}

/// A frame, and the port it is sent into.
pub type Sent = (usize, Vec<u8>);

/// Neighbours on every side that have an address and a MAC. There are many, because the kernel limits some
/// ICMP errors for each destination.
pub const HOSTS: std::ops::Range<u8> = 10..234;
/// Those of them that routes lead to. They are few, so that changes of neighbours affect routes.
pub const GATEWAYS: std::ops::Range<u8> = 10..24;

/// A network with hosts: the port that it is reached by, and the MAC by which they know the router.
#[derive(Clone, Debug)]
pub struct Side {
    pub port: usize,
    pub tenant: bool,
    /// The MAC when the bed is new. A change may give the device another one.
    pub router_mac: Mac,
}

/// The host's three sides, then the tenant's two.
pub fn sides() -> Vec<Side> {
    let side = |port: usize, tenant: bool| Side { port, tenant, router_mac: router_mac(port, tenant) };
    let host = (0..PORTS).map(|port| side(port, false));
    host.chain((0..2).map(|port| side(port, true))).collect()
}

fn router_mac(port: usize, tenant: bool) -> Mac {
    Mac([2, 0x20, tenant.into(), port as u8, port as u8, 1])
}

/// A MAC that a change may give the port.
pub fn other_mac(port: usize) -> Mac {
    Mac([2, 0x21, 0, port as u8, 0, 1])
}

impl Side {
    pub fn device(&self) -> String {
        format!("{}{}", if self.tenant { 'm' } else { 'p' }, self.port)
    }

    pub fn host4(&self, n: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, self.tenant.into(), self.port as u8, n)
    }

    pub fn host6(&self, n: u8) -> Ipv6Addr {
        Ipv6Addr::new(0x2001, 0xdb8, self.tenant.into(), self.port as u16, 0, 0, 0, n.into())
    }

    pub fn host_mac(&self, n: u8) -> Mac {
        Mac([2, 0x10, self.tenant.into(), self.port as u8, self.port as u8, n])
    }

    /// Commands that give the device its addresses.
    pub fn addresses(&self) -> Vec<String> {
        let (device, v4, v6) = (self.device(), self.host4(1), self.host6(1));
        vec![format!("ip addr add {v4}/24 dev {device}"), format!("ip addr add {v6}/64 dev {device} nodad")]
    }

    /// Commands for `ip -batch` that make its neighbours. Linux forgets them when the device goes down.
    pub fn neighbours(&self) -> String {
        let line = |n: u8, address: &str| {
            let (mac, device) = (self.host_mac(n), self.device());
            format!("neigh replace {address} lladdr {mac} dev {device} nud permanent\n")
        };
        let both = |n| line(n, &self.host4(n).to_string()) + &line(n, &self.host6(n).to_string());
        HOSTS.map(both).collect()
    }
}
