//! Random rules in the language of nft, for a router with the devices `lan`, `wan` and `dmz`, and for the networks
//! 10.1.0.0/24 of `lan`, 10.2.0.0/24 of `wan` and 192.0.2.0/24 behind `wan`.

use fastrand::Rng;
use std::fmt::Write as _;

/// Matches that every family of the tables below takes.
const MATCHES: [&str; 58] = [
    "ct state established,related",
    "ct state established",
    "ct state invalid",
    "ct state new",
    "ct state != established",
    "ct state { established, untracked }",
    "ct direction original",
    "ct direction reply",
    "ct status assured",
    "ct status snat",
    "ct status dnat",
    "ct status != 0",
    "ct mark 0",
    "ct mark 7",
    "ct original ip saddr 10.1.0.2",
    "meta l4proto tcp ct original proto-dst 443",
    "ct reply ip daddr 10.2.0.1",
    "ct original ip daddr 192.0.2.0/24",
    "iifname lan",
    "iifname \"w*\"",
    "iifname != lan",
    "oifname wan",
    "oifname { lan, dmz }",
    "oif lan",
    "iif != wan",
    "meta l4proto tcp",
    "meta l4proto { udp, icmp }",
    "meta l4proto != udp",
    "meta protocol ip",
    "meta protocol ip6",
    "meta mark 0",
    "meta mark 5",
    "meta mark & 0x6 == 4",
    "meta pkttype host",
    "meta pkttype { broadcast, multicast }",
    "meta length > 60",
    "ip saddr 10.1.0.0/24",
    "ip saddr 10.1.0.2",
    "ip saddr != 10.1.0.0/28",
    "ip daddr 192.0.2.0-192.0.2.99",
    "ip daddr { 10.2.0.2, 10.1.0.0/25 }",
    "ip daddr 10.2.0.1",
    "ip saddr @hosts",
    "ip saddr != @hosts",
    "ip daddr @networks",
    "ip daddr . th dport @services",
    "ip ttl > 1",
    "ip protocol tcp",
    "ip frag-off & 0x1fff != 0",
    "ip dscp ef",
    "tcp flags syn / fin,syn,rst,ack",
    "tcp flags & (fin|rst) != 0",
    "tcp flags psh",
    "tcp dport { 80, 443, 8000-9000 }",
    "udp sport 1000-2000",
    "th dport != 443",
    "fib daddr type local",
    "fib daddr type unicast",
];

const VERDICTS: [&str; 13] = [
    "accept",
    "accept",
    "accept",
    "counter accept",
    "drop",
    "counter drop",
    "return",
    "counter",
    "continue",
    "meta mark set 5",
    "meta mark set meta mark | 4",
    "log",
    "limit rate 5/second accept",
];

const SETS: &str = "
    set hosts { type ipv4_addr; elements = { 10.1.0.3, 10.1.0.21, 192.0.2.7 }; }
    set networks { type ipv4_addr; flags interval; elements = { 10.1.0.0/28, 192.0.2.0/29, 192.0.2.9-192.0.2.30 }; }
    set services {
        type ipv4_addr . inet_service; flags interval;
        elements = { 192.0.2.0/24 . 1-80, 10.1.0.2 . 80, 10.2.0.1-10.2.0.2 . 443 };
    }
    map ports { type inet_service : verdict; elements = { 80 : accept, 53 : drop, 443 : return }; }
";

const PLACES: [(&str, i32); 9] = [
    ("prerouting", -300),
    ("prerouting", -150),
    ("prerouting", -90),
    ("forward", -150),
    ("forward", 0),
    ("forward", 10),
    ("postrouting", 0),
    ("postrouting", 150),
    ("forward", -225),
];

/// A match that every table takes, also one of IPv6 after [`of_ipv6`].
pub fn matched(rng: &mut Rng) -> &'static str {
    rng.choice(MATCHES).unwrap()
}

/// The same rules about IPv6: fd00:1::/64 for 10.1.0.0/24, and so on. The last number of an address stays.
pub fn of_ipv6(rules: &str) -> String {
    const WORDS: [(&str, &str); 20] = [
        ("ip t4", "ip6 t6"),
        ("inet t ", "inet t46 "),
        ("ip saddr", "ip6 saddr"),
        ("ip daddr", "ip6 daddr"),
        ("ip ttl", "ip6 hoplimit"),
        ("ip protocol tcp", "ip6 nexthdr tcp"),
        ("ip frag-off & 0x1fff != 0", "exthdr frag exists"),
        ("ip dscp", "ip6 dscp"),
        ("ipv4_addr", "ipv6_addr"),
        ("10.1.0.", "fd00:1::"),
        ("10.2.0.", "fd00:2::"),
        ("10.3.0.", "fd00:3::"),
        ("192.0.2.", "fd00:9::"),
        ("/24", "/120"),
        ("/25", "/121"),
        ("/26", "/122"),
        ("/28", "/124"),
        ("/29", "/125"),
        ("/30", "/126"),
        ("icmp", "icmpv6"),
    ];
    WORDS.iter().fold(rules.to_owned(), |text, (old, new)| text.replace(old, new))
}

/// A table of one family with base chains and chains that they call.
pub fn rules(rng: &mut Rng) -> String {
    let mut text = String::new();
    let table = if rng.bool() { "inet t" } else { "ip t4" };
    writeln!(text, "table {table} {{{SETS}").unwrap();
    let called = rng.usize(0..4);
    for n in (0..called).rev() {
        writeln!(text, "    chain c{n} {{").unwrap();
        list(&mut text, rng, n + 1..called);
        writeln!(text, "    }}").unwrap();
    }
    for n in 0..rng.usize(1..4) {
        let (hook, priority) = *rng.choice(PLACES.iter()).unwrap();
        let policy = if rng.u8(0..4) == 0 { "drop" } else { "accept" };
        writeln!(
            text,
            "    chain b{n} {{\n        type filter hook {hook} priority {priority}; policy {policy};"
        )
        .unwrap();
        // Most real chains begin with this.
        if rng.bool() {
            writeln!(text, "        ct state established,related accept").unwrap();
        }
        list(&mut text, rng, 0..called);
        writeln!(text, "    }}").unwrap();
    }
    writeln!(text, "}}").unwrap();
    text
}

fn list(text: &mut String, rng: &mut Rng, callable: std::ops::Range<usize>) {
    for _ in 0..rng.usize(0..5) {
        let matches: Vec<_> = (0..rng.usize(0..3)).map(|_| *rng.choice(MATCHES.iter()).unwrap()).collect();
        let verdict = match rng.u8(0..10) {
            0..3 if !callable.is_empty() => {
                let word = if rng.u8(0..4) == 0 { "goto" } else { "jump" };
                format!("{word} c{}", rng.usize(callable.clone()))
            }
            3 => map(rng, &callable),
            _ => (*rng.choice(VERDICTS.iter()).unwrap()).to_owned(),
        };
        writeln!(text, "        {} {verdict}", matches.join(" ")).unwrap();
        // A mark that is set matters only if a rule asks for it.
        if verdict.contains("mark set") && rng.bool() {
            let mark = *rng.choice(["meta mark 5", "meta mark != 0", "meta mark & 4 == 4"].iter()).unwrap();
            writeln!(text, "        {mark} drop").unwrap();
        }
    }
}

/// A map of verdicts.
fn map(rng: &mut Rng, callable: &std::ops::Range<usize>) -> String {
    let jump =
        if callable.is_empty() { "accept".into() } else { format!("jump c{}", rng.usize(callable.clone())) };
    match rng.u8(0..5) {
        0 => format!("meta l4proto vmap {{ tcp : {jump}, udp : accept }}"),
        1 => format!("ct state vmap {{ established : {jump}, related : accept, invalid : drop }}"),
        2 => format!("iifname . oifname vmap {{ lan . wan : {jump}, wan . lan : return }}"),
        3 => "th dport vmap @ports".into(),
        _ => format!("ip saddr vmap {{ 10.1.0.0/28 : {jump}, 192.0.2.0/24 : accept }}"),
    }
}
