//! The testbed's addressing plan. Router 0 is the host (the box namespace itself), 1.. are virtual routers.
//!
//! | where | IPv4 | IPv6 | MAC |
//! |---|---|---|---|
//! | generator | 10.1.255.2/16 | fd00:1::ff:2/64 | 02:6d:00:00:00:00 |
//! | router r, generator side | 10.1.0.1 + r | fd00:1::1:r | 02:6d:01:00:(r as two bytes) |
//! | router r, sink side | 10.2.0.1 + r | fd00:2::1:r | 02:6d:02:00:(r as two bytes) |
//! | next hop n on the sink side | 10.2.255.n | fd00:2::ff:n | 02:6d:03:00:00:n |

use std::net::{Ipv4Addr, Ipv6Addr};

/// A MAC address in wire order.
pub type Mac = [u8; 6];

/// Test packets come from here (as Ethernet says it; as IP: [`GENERATOR4`], [`GENERATOR6`]).
pub const GENERATOR_MAC: Mac = [2, 0x6d, 0, 0, 0, 0];
/// The generator's IPv4 address.
pub const GENERATOR4: Ipv4Addr = Ipv4Addr::new(10, 1, 255, 2);
/// The generator's IPv6 address.
pub const GENERATOR6: Ipv6Addr = Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0xff, 2);

/// Next hops on the sink side are numbered 1..=this.
pub const MAX_NEXTHOP: u8 = 250;

/// MAC of router `r` on the generator's side.
pub fn ingress_mac(r: u16) -> Mac {
    let [a, b] = r.to_be_bytes();
    [2, 0x6d, 1, 0, a, b]
}

/// MAC of router `r` on the sink's side.
pub fn egress_mac(r: u16) -> Mac {
    let [a, b] = r.to_be_bytes();
    [2, 0x6d, 2, 0, a, b]
}

/// MAC of next hop `n` on the sink's side; the sink's port takes all of them.
pub fn nexthop_mac(n: u8) -> Mac {
    [2, 0x6d, 3, 0, 0, n]
}

/// 10.1.0.0/16: router `r` has 10.1.0.1 + r.
pub fn ingress4(r: u16) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a01_0001 + u32::from(r))
}

/// 10.2.0.0/16: router `r` has 10.2.0.1 + r.
pub fn egress4(r: u16) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a02_0001 + u32::from(r))
}

/// IPv6 address of router `r` on the generator's side, in fd00:1::/64.
pub fn ingress6(r: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 1, r)
}

/// IPv6 address of router `r` on the sink's side, in fd00:2::/64.
pub fn egress6(r: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 2, 0, 0, 0, 0, 1, r)
}

/// IPv4 address of next hop `n` on the sink's side.
pub fn nexthop4(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 2, 255, n)
}

/// IPv6 address of next hop `n` on the sink's side.
pub fn nexthop6(n: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 2, 0, 0, 0, 0, 0xff, n.into())
}

/// As `ip link` and people write it.
pub fn mac_text(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}
