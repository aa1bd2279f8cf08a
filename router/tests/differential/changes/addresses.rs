//! Addresses and local prefixes.

use super::Change;
use crate::draft::Draft;

/// Anycast prefixes, around the random routes and within them.
pub fn local_prefix(draft: &mut Draft<'_>) -> Change {
    let tenant = draft.one_in(4);
    let pairs = [
        ("ip addr add 172.16.1.0/24 dev lo", "ip addr del 172.16.1.0/24 dev lo"),
        ("ip addr add 10.0.1.128/26 dev lo", "ip addr del 10.0.1.128/26 dev lo"),
        ("ip route add local 172.17.0.0/22 dev lo", "ip route del local 172.17.0.0/22 dev lo"),
        ("ip -6 route add local 2400::/20 dev lo", "ip -6 route del local 2400::/20 dev lo"),
        ("ip -6 route add local 2400:1:1000::/36 dev lo", "ip -6 route del local 2400:1:1000::/36 dev lo"),
        (
            "ip -6 route add local 2001:db8:0:1::80/121 dev lo",
            "ip -6 route del local 2001:db8:0:1::80/121 dev lo",
        ),
        ("ip route add 172.16.0.0/14 dev p0 table local", "ip route del 172.16.0.0/14 dev p0 table local"),
        ("ip route add broadcast 172.16.1.255 dev lo", "ip route del broadcast 172.16.1.255 dev lo"),
        ("ip -6 route add anycast 2400::7 dev lo", "ip -6 route del anycast 2400::7 dev lo"),
    ];
    let (make, undo) = pairs[draft.rng.usize(..pairs.len())];
    Change::new("local", vec![make.into()], vec![undo.into()]).of(tenant && !make.contains("p0"))
}

/// Addresses of devices come and go.
pub fn address(draft: &mut Draft<'_>) -> Change {
    let tenant = draft.one_in(4);
    let side = draft.side(tenant);
    let (device, own4, own6) = (side.device(), side.host4(1), side.host6(1));
    let (second4, second6, host4) = (side.host4(5), side.host6(5), side.host4(17));
    draft
        .targets4
        .extend(["10.9.1.1", "10.9.1.17", "10.9.1.255"].map(|a| a.parse::<std::net::Ipv4Addr>().unwrap()));
    draft.targets4.push(second4);
    draft.targets6.push(second6);
    let lines = |make: String, undo: String| (vec![make], vec![undo]);
    let (make, undo) = match draft.rng.u8(0..9) {
        0 => lines(
            format!("ip addr add {second4}/24 dev {device}"),
            format!("ip addr del {second4}/24 dev {device}"),
        ),
        1 => lines(
            format!("ip addr add {second6}/64 dev {device} nodad"),
            format!("ip addr del {second6}/64 dev {device}"),
        ),
        2 => lines(
            format!("ip addr add 10.9.1.1/24 dev {device}"),
            format!("ip addr del 10.9.1.1/24 dev {device}"),
        ),
        3 => lines(
            format!("ip addr add {second4} peer 10.9.1.17 dev {device}"),
            format!("ip addr del {second4} peer 10.9.1.17 dev {device}"),
        ),
        4 => lines(
            format!("ip addr add 10.9.1.1/24 broadcast 10.9.1.7 dev {device} noprefixroute"),
            format!("ip addr del 10.9.1.1/24 dev {device}"),
        ),
        // A host's own address becomes the box's.
        5 => lines(format!("ip addr add {host4}/32 dev lo"), format!("ip addr del {host4}/32 dev lo")),
        6 => (
            vec![format!("ip addr del {own4}/24 dev {device}")],
            vec![format!("ip addr add {own4}/24 dev {device}"), format!("neighbours {device}")],
        ),
        7 => (
            vec![format!("ip addr del {own6}/64 dev {device}")],
            vec![format!("ip addr add {own6}/64 dev {device} nodad"), format!("neighbours {device}")],
        ),
        _ => lines(
            format!("ip addr change {own6}/64 dev {device} metric 2000"),
            format!("ip addr change {own6}/64 dev {device} metric 256"),
        ),
    };
    Change::new("addresses", make, undo).of(tenant)
}
