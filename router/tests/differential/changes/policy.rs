//! Policy that packets meet in Linux.

use super::Change;
use crate::draft::Draft;

/// Some destinations of the sides, and of the random routes.
fn destination(draft: &mut Draft<'_>) -> [&'static str; 2] {
    let all = [
        ["ip", "10.0.1.0/25"],
        ["ip", "10.0.2.128/25"],
        ["ip", "172.16.0.0/13"],
        ["ipv6", "2001:db8:0:1::/64"],
    ];
    all[draft.rng.usize(..all.len())]
}

/// Qdiscs whose options hold nothing back, or everything. A qdisc that needs a probe is probed under its
/// first word.
pub fn qdisc(draft: &mut Draft<'_>) -> Change {
    let kinds = [
        ("pfifo limit 0", "qdisc pfifo,"),
        ("pfifo limit 1000", "qdisc pfifo,"),
        ("bfifo limit 100000", "qdisc bfifo,"),
        ("pfifo_head_drop limit 1000", "qdisc pfifo_head_drop,"),
        ("htb", "qdisc htb,"),
        ("tbf rate 1gbit burst 1mb latency 50ms", "qdisc tbf,"),
        ("prio", "qdisc prio,"),
        ("netem loss 100%", "qdisc netem,"),
    ];
    let known = ["pfifo", "bfifo", "pfifo_head_drop"];
    let first = |text: &'static str| text.split(' ').next().unwrap();
    let there = |kind: &&(&'static str, _)| known.contains(&first(kind.0)) || draft.kernel.has(first(kind.0));
    let kinds: Vec<_> = kinds.iter().filter(there).collect();
    let (kind, shows) = *kinds[draft.rng.usize(..kinds.len())];
    let on = format!("dev p{} root", draft.rng.u8(0..3));
    Change::new("qdisc", vec![format!("tc qdisc add {on} {kind}")], vec![format!("tc qdisc del {on}")])
        .shows(shows)
}

/// Packets that a filter matches leave by the wire of another port.
pub fn filter(draft: &mut Draft<'_>) -> Change {
    let port = draft.rng.u8(0..3);
    let [protocol, destination] = destination(draft);
    let field = if protocol == "ip" { "ip" } else { "ip6" };
    let what = format!(
        "protocol {protocol} u32 match {field} dst {destination} action mirred egress redirect dev p{}",
        (port + 1) % 3
    );
    let dev = format!("dev p{port}");
    let (add, place, del, shows) = match draft.rng.u8(0..5) {
        0 => ("clsact", format!("{dev} egress"), "clsact", "its qdisc clsact"),
        1 => ("clsact", format!("{dev} ingress"), "clsact", "its qdisc clsact"),
        2 => ("ingress_block 7 ingress", "block 7".into(), "ingress", "its qdisc ingress"),
        3 => ("egress_block 8 clsact", "block 8".into(), "clsact", "its qdisc clsact"),
        _ => ("root handle 1: htb", format!("{dev} parent 1:"), "root", "qdisc htb,"),
    };
    let make = vec![format!("tc qdisc add {dev} {add}"), format!("tc filter add {place} {what}")];
    Change::new("qdisc", make, vec![format!("tc qdisc del {dev} {del}")]).shows(shows)
}

/// nftables base chains with some rules, or none. Rules may matter to all packets, to some, or to none. They do not ask
/// for states of connections: Linux alone would have tracked packets before the rule came, and Millrace not all of them.
pub fn chain(draft: &mut Draft<'_>) -> Change {
    let tenant = draft.one_in(4);
    let device = if tenant { "m0" } else { draft.pick(&["p0", "p1", "p2"]) };
    let family = draft.pick(&["ip", "ip6", "inet", "netdev"]);
    let (hook, shows) = match (family, draft.rng.u8(0..3)) {
        ("netdev", 0) => ("ingress", "at ingress of"),
        ("netdev", _) => ("egress", "at egress of"),
        (_, 0) => ("forward", ""),
        (_, 1) => ("prerouting", ""),
        _ => ("postrouting", ""),
    };
    let bound = if family == "netdev" { format!("device {device} ") } else { String::new() };
    let policy = if draft.one_in(3) { "policy drop ;" } else { "" };
    let mut make = vec![
        format!("nft add table {family} f"),
        format!("nft add chain {family} f c {{ type filter hook {hook} {bound}priority 0 ; {policy} }}"),
    ];
    let rules = draft.rng.u8(0..4);
    for _ in 0..rules {
        let verdict = draft.pick(&["drop", "accept", "counter", "return", "ip ttl set 7"]);
        // Changing a header field needs the packet's own family.
        let verdict = if family == "ip" || !verdict.contains("set") { verdict } else { "drop" };
        let device = if tenant { "m" } else { "p" };
        let matching = match (family, draft.rng.u8(0..4)) {
            ("netdev", _) => draft.pick(&["ip ttl 64", "ip6 hoplimit 64", "udp sport 0-32767"]).to_owned(),
            (_, 0) => format!("iifname {device}{}", draft.rng.u8(0..3)),
            (_, 1) if hook != "prerouting" => format!("oifname {device}{}", draft.rng.u8(0..3)),
            (_, 1) => format!("iifname != {{ {device}0, {device}1 }}"),
            ("ip6", _) => draft.pick(&["ip6 daddr 2001:db8:0:1::/64", "ip6 saddr 2001:db8::/64"]).to_owned(),
            ("ip", _) => {
                draft.pick(&["ip daddr 10.0.1.0/25", "ip saddr 10.0.0.0/24", "fib daddr type local"]).into()
            }
            _ => {
                draft.pick(&["ip ttl 64", "ip6 hoplimit 64", "udp sport 0-32767", "meta l4proto icmp"]).into()
            }
        };
        make.push(format!("nft add rule {family} f c {matching} {verdict}"));
    }
    let change = Change::new("chain", make, vec![format!("nft delete table {family} f")]).of(tenant);
    // Another change may have removed m0. The chain then waits for it and shows nothing.
    let is_shown = family == "netdev" && !tenant && (rules > 0 || !policy.is_empty());
    if is_shown { change.shows(shows) } else { change }
}

/// A stateful filter of UDP. What it does to a packet must not depend on the past: Millrace forwards packets that no rule can
/// affect, and Linux has not tracked those when a rule comes. So new and established connections are alike for it, it asks
/// nothing of TCP, and there is no NAT, which applies to new connections only (the suite `nat` tests these).
pub fn stateful_filter(draft: &mut Draft<'_>) -> Change {
    if !draft.kernel.has("nft") {
        return rule(draft);
    }
    let tenant = draft.one_in(4);
    let device = draft.pick(if tenant { &["m0", "m1"] } else { &["p0", "p1", "p2"] });
    let (policy, rules) = match draft.rng.u8(0..3) {
        0 => ("accept", vec!["meta l4proto udp ct state invalid drop".to_owned()]),
        1 => ("drop", vec!["meta l4proto != udp accept".into(), "ct state new,established accept".into()]),
        _ => (
            "accept",
            vec![
                "meta l4proto udp ct state established,new accept".into(),
                format!("meta l4proto udp iifname {device} drop"),
            ],
        ),
    };
    let chain = format!("{{ type filter hook forward priority 5 ; policy {policy} ; }}");
    let mut make = vec!["nft add table inet s".into(), format!("nft add chain inet s c {chain}")];
    make.extend(rules.iter().map(|rule| format!("nft add rule inet s c {rule}")));
    Change::new("stateful", make, vec!["nft delete table inet s".into()]).of(tenant)
}

pub fn rule(draft: &mut Draft<'_>) -> Change {
    let action = draft.pick(&["prohibit", "blackhole", "unreachable", "table 50", "goto 32767"]);
    let v6 = draft.one_in(3);
    let selector = if v6 {
        draft.pick(&[
            "to 2001:db8:0:1::/64",
            "from 2001:db8::/64",
            "ipproto udp",
            "not from 2001:db8::/64",
            "tos 0x10",
        ])
    } else {
        draft.pick(&[
            "to 10.0.1.0/25",
            "from 10.0.0.0/24",
            "iif p0",
            "tos 0x10",
            "ipproto udp dport 0-32767",
            "ipproto tcp",
            "not to 10.0.1.0/25",
            "fwmark 1",
            "oif p1",
        ])
    };
    let family = if v6 { "-6" } else { "-4" };
    let rule = format!("ip {family} rule add priority 100 {selector} {action}");
    let mut make = vec![rule];
    let mut undo = vec![format!("ip {family} rule del priority 100")];
    if action == "table 50" {
        make.push(format!("ip {family} route append blackhole default table 50"));
        undo.push(format!("ip {family} route flush table 50"));
    }
    let tenant = draft.one_in(4) && !selector.contains("if ");
    Change::new("rule", make, undo).shows("rule with priority 100").of(tenant)
}

/// An IPsec policy that blocks.
pub fn ipsec(draft: &mut Draft<'_>) -> Change {
    if !draft.kernel.has("xfrm") {
        return rule(draft);
    }
    let direction = draft.pick(&["fwd", "out", "in"]);
    let pair = draft.pick(&["src 10.0.0.0/16 dst 10.0.1.0/24", "src ::/0 dst 2001:db8:0:1::/64"]);
    let policy = format!("{pair} dir {direction}");
    Change::new(
        "ipsec",
        vec![format!("ip xfrm policy add {policy} action block")],
        vec![format!("ip xfrm policy del {policy}")],
    )
    .of(draft.one_in(4))
}
