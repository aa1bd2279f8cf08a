//! Changes in the middle of traffic: policy that packets meet in Linux, and states of devices and tables.
//!
//! Each is undone again, by commands of its own. Kinds are those that the development kernel has.

use fastrand::Rng;

/// A change, where it is made, and how it shows.
#[derive(Clone, Debug)]
pub struct Change {
    pub tenant: bool,
    pub make: Vec<String>,
    pub undo: Vec<String>,
    /// What `millrace routers` or `millrace interfaces` says while it holds; `None`: nothing, the tables show it.
    pub said: Option<&'static str>,
}

fn change(make: &[String], undo: &[String], said: Option<&'static str>) -> Change {
    Change { tenant: false, make: make.to_vec(), undo: undo.to_vec(), said }
}

/// Some destinations of the sides, and of the random routes.
fn destination(rng: &mut Rng) -> [&'static str; 2] {
    *rng.choice(&[
        ["ip", "10.0.1.0/25"],
        ["ip", "10.0.2.128/25"],
        ["ip", "172.16.0.0/13"],
        ["ipv6", "2001:db8:0:1::/64"],
    ])
    .unwrap()
}

/// One at random.
pub fn random(rng: &mut Rng) -> Change {
    match rng.u8(0..6) {
        0 => qdisc(rng),
        1 => filter(rng),
        2 => chain(rng),
        3 => rule(rng),
        4 => device(rng),
        _ => local_prefix(rng),
    }
}

/// That hold nothing back by their options, or everything.
fn qdisc(rng: &mut Rng) -> Change {
    let port = rng.u8(0..3);
    let (kind, said) = *rng
        .choice(&[
            ("pfifo limit 0", "qdisc pfifo,"),
            ("pfifo limit 1000", "qdisc pfifo,"),
            ("htb", "qdisc htb,"),
            ("tbf rate 1gbit burst 1mb latency 50ms", "qdisc tbf,"),
        ])
        .unwrap();
    let on = format!("dev p{port} root");
    change(&[format!("tc qdisc add {on} {kind}")], &[format!("tc qdisc del {on}")], Some(said))
}

/// What a filter matches leaves by the wire of another port.
fn filter(rng: &mut Rng) -> Change {
    let port = rng.u8(0..3);
    let [protocol, destination] = destination(rng);
    let field = if protocol == "ip" { "ip" } else { "ip6" };
    let what = format!(
        "protocol {protocol} u32 match {field} dst {destination} action mirred egress redirect dev p{}",
        (port + 1) % 3
    );
    let dev = format!("dev p{port}");
    let (add, place, del, said) = match rng.u8(0..5) {
        0 => ("clsact", format!("{dev} egress"), "clsact", "its qdisc clsact"),
        1 => ("clsact", format!("{dev} ingress"), "clsact", "its qdisc clsact"),
        2 => ("ingress_block 7 ingress", "block 7".into(), "ingress", "its qdisc ingress"),
        3 => ("egress_block 8 clsact", "block 8".into(), "clsact", "its qdisc clsact"),
        _ => ("root handle 1: htb", format!("{dev} parent 1:"), "root", "qdisc htb,"),
    };
    change(
        &[format!("tc qdisc add {dev} {add}"), format!("tc filter add {place} {what}")],
        &[format!("tc qdisc del {dev} {del}")],
        Some(said),
    )
}

/// nftables base chains, with a rule or a policy that drops, or with neither.
fn chain(rng: &mut Rng) -> Change {
    let tenant = rng.u8(0..4) == 0;
    let device = if tenant { "m0" } else { *rng.choice(&["p0", "p1", "p2"]).unwrap() };
    let family = *rng.choice(&["ip", "ip6", "inet", "netdev"]).unwrap();
    let (hook, said) = match family {
        "netdev" => *rng.choice(&[("ingress", "hooks ingress of"), ("egress", "hooks egress of")]).unwrap(),
        _ => *rng
            .choice(&[
                ("forward", "hooks forward"),
                ("prerouting", "hooks prerouting"),
                ("postrouting", "hooks postrouting"),
            ])
            .unwrap(),
    };
    let bound = if family == "netdev" { format!("device {device} ") } else { String::new() };
    let policy = if rng.bool() { "policy drop ;" } else { "" };
    let verdict = *rng.choice(&["drop", "accept"]).unwrap();
    let matching = match family {
        "ip6" => "ip6 daddr 2001:db8:0:1::/64",
        "ip" => "ip daddr 10.0.1.0/25",
        _ => *rng.choice(&["ip ttl 64", "ip6 hoplimit 64"]).unwrap(),
    };
    let make = [
        format!("nft add table {family} f"),
        format!("nft add chain {family} f c {{ type filter hook {hook} {bound}priority 0 ; {policy} }}"),
        format!("nft add rule {family} f c {matching} {verdict}"),
    ];
    Change { tenant, ..change(&make, &[format!("nft delete table {family} f")], Some(said)) }
}

fn rule(rng: &mut Rng) -> Change {
    let action = *rng.choice(&["prohibit", "blackhole", "unreachable", "table 50"]).unwrap();
    let [family, selector] = *rng
        .choice(&[
            ["-4", "to 10.0.1.0/25"],
            ["-4", "from 10.0.0.0/24"],
            ["-4", "iif p0"],
            ["-6", "to 2001:db8:0:1::/64"],
            ["-6", "from 2001:db8::/64"],
        ])
        .unwrap();
    let selector = format!("ip {family} rule add priority 100 {selector} {action}");
    let mut make = vec![selector];
    let mut undo = vec![format!("ip {family} rule del priority 100")];
    if action == "table 50" {
        make.push(format!("ip {family} route add blackhole default table 50"));
        undo.push(format!("ip {family} route flush table 50"));
    }
    Change {
        tenant: rng.u8(0..4) == 0 && !make[0].contains("iif"),
        ..change(&make, &undo, Some("rule with priority 100"))
    }
}

/// Masters and takers of packets, and flags that change nothing.
fn device(rng: &mut Rng) -> Change {
    let port = rng.u8(0..3);
    match rng.u8(0..4) {
        0 => change(
            &[
                "ip link add br0 type bridge forward_delay 0 mcast_snooping 0".into(),
                "sysctl -qw net.ipv6.conf.br0.disable_ipv6=1".into(),
                "ip link set br0 up".into(),
                "ip link set p2 master br0".into(),
            ],
            &["ip link del br0".into()],
            Some("is enslaved to the bridge br0"),
        ),
        1 => change(
            &[
                "ip link add ms0 link p2 type macvlan mode source".into(),
                "sysctl -qw net.ipv6.conf.ms0.disable_ipv6=1".into(),
                "ip link set ms0 up".into(),
            ],
            &["ip link del ms0".into()],
            Some("a macvlan of mode source"),
        ),
        2 => change(
            &[format!("ip link set p{port} promisc on allmulticast on")],
            &[format!("ip link set p{port} promisc off allmulticast off")],
            None,
        ),
        _ => change(
            &[format!("ip link set p{port} mtu 1380")],
            &[format!("ip link set p{port} mtu 1400")],
            None,
        ),
    }
}

/// Anycast prefixes, around the random routes and within them.
fn local_prefix(rng: &mut Rng) -> Change {
    let tenant = rng.u8(0..4) == 0;
    let (make, undo) = *rng
        .choice(&[
            ("ip addr add 172.16.1.0/24 dev lo", "ip addr del 172.16.1.0/24 dev lo"),
            ("ip addr add 10.0.1.128/26 dev lo", "ip addr del 10.0.1.128/26 dev lo"),
            ("ip route add local 172.17.0.0/22 dev lo", "ip route del local 172.17.0.0/22 dev lo"),
            ("ip -6 route add local 2400::/20 dev lo", "ip -6 route del local 2400::/20 dev lo"),
            (
                "ip -6 route add local 2400:1:1000::/36 dev lo",
                "ip -6 route del local 2400:1:1000::/36 dev lo",
            ),
            (
                "ip -6 route add local 2001:db8:0:1::80/121 dev lo",
                "ip -6 route del local 2001:db8:0:1::80/121 dev lo",
            ),
            (
                "ip route add 172.16.0.0/14 dev p0 table local",
                "ip route del 172.16.0.0/14 dev p0 table local",
            ),
        ])
        .unwrap();
    let tenant = tenant && !make.contains("p0");
    Change { tenant, ..change(&[make.into()], &[undo.into()], None) }
}
