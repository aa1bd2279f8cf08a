//! The testbed's addressing plan. Router 0 is the host (the box namespace itself); virtual routers are numbered from 1.
//! Ports are numbered from 0, and so are a virtual router's interfaces on each port. Addresses hold the port's number
//! plus 1.
//!
//! | where | IPv4 | IPv6 | MAC |
//! |---|---|---|---|
//! | router r on port p | 10.(1+p).0.1 + r, /16 | fd00:(1+p)::1:r, /64 | 02:6d:(1+p):00:(r as two bytes) |
//! | next hop n behind port p | 10.(1+p).255.n | fd00:(1+p)::ff:n | 02:6e:(1+p):00:00:n |
//! | router r, interface i > 0 on port p | 10.(101+p).i.254, /24 | fd00:(1+p):0:i::1:r, /64 | 02:6d:(1+p):i:(r as two bytes) |
//! | next hop n behind it | 10.(101+p).i.n | fd00:(1+p):0:i::ff:n | 02:6e:(1+p):00:00:n |
//!
//! Next hop 1 is the other end of the port's cable itself; its device takes the frames for all others.

use std::net::{Ipv4Addr, Ipv6Addr};

/// A MAC address in wire order.
pub type Mac = [u8; 6];

/// Source MAC of test packets: next hop 1 behind port 0. Its IP addresses are [`GENERATOR4`] and [`GENERATOR6`].
pub const GENERATOR_MAC: Mac = nexthop_mac_of(0, 1);
/// The generator's IPv4 address.
pub const GENERATOR4: Ipv4Addr = nexthop4_of(0, 0, 1);
/// The generator's IPv6 address.
pub const GENERATOR6: Ipv6Addr = nexthop6_of(0, 0, 1);

/// Next hops behind a port are numbered 1..=this.
pub const MAX_NEXTHOP: u8 = 250;

/// MAC of interface `i` of router `r` on port `p`.
pub const fn router_mac(p: u8, i: u8, r: u16) -> Mac {
    let [a, b] = r.to_be_bytes();
    [2, 0x6d, 1 + p, i, a, b]
}

/// IPv4 address of interface `i` of router `r` on port `p`. Beyond the first interface all routers have the same
/// networks, because no router sees another's.
pub const fn router4(p: u8, i: u8, r: u16) -> Ipv4Addr {
    match i {
        0 => Ipv4Addr::from_bits(0x0a00_0001 + ((1 + p as u32) << 16) + r as u32),
        _ => Ipv4Addr::new(10, 101 + p, i, 254),
    }
}

/// IPv6 address of interface `i` of router `r` on port `p`.
pub const fn router6(p: u8, i: u8, r: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 1 + p as u16, 0, i as u16, 0, 0, 1, r)
}

/// Length of the IPv4 networks of interfaces with this number. IPv6 networks always have length 64.
pub const fn length4(i: u8) -> u8 {
    if i == 0 { 16 } else { 24 }
}

/// MAC of next hop `n` behind port `p`.
pub const fn nexthop_mac_of(p: u8, n: u8) -> Mac {
    [2, 0x6e, 1 + p, 0, 0, n]
}

/// IPv4 address of next hop `n` behind port `p`, in the network of interface `i`.
pub const fn nexthop4_of(p: u8, i: u8, n: u8) -> Ipv4Addr {
    match i {
        0 => Ipv4Addr::new(10, 1 + p, 255, n),
        _ => Ipv4Addr::new(10, 101 + p, i, n),
    }
}

/// IPv6 address of next hop `n` behind port `p`, in the network of interface `i`.
pub const fn nexthop6_of(p: u8, i: u8, n: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 1 + p as u16, 0, i as u16, 0, 0, 0xff, n as u16)
}

/// MAC of router `r` on the generator's side of a testbed with two ports.
pub fn ingress_mac(r: u16) -> Mac {
    router_mac(0, 0, r)
}

/// MAC of router `r` on the sink's side.
pub fn egress_mac(r: u16) -> Mac {
    router_mac(1, 0, r)
}

/// MAC of next hop `n` on the sink's side.
pub fn nexthop_mac(n: u8) -> Mac {
    nexthop_mac_of(1, n)
}

/// IPv4 address of router `r` on the generator's side.
pub fn ingress4(r: u16) -> Ipv4Addr {
    router4(0, 0, r)
}

/// IPv4 address of router `r` on the sink's side.
pub fn egress4(r: u16) -> Ipv4Addr {
    router4(1, 0, r)
}

/// IPv4 address of next hop `n` on the sink's side.
pub fn nexthop4(n: u8) -> Ipv4Addr {
    nexthop4_of(1, 0, n)
}

/// IPv6 address of next hop `n` on the sink's side.
pub fn nexthop6(n: u8) -> Ipv6Addr {
    nexthop6_of(1, 0, n)
}

/// In the notation of `ip link`.
pub fn mac_text(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}
