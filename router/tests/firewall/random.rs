//! Random rules, in the languages of nft and of iptables-restore.

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

const IPTABLES_MATCHES: [&str; 36] = [
    "-m conntrack --ctstate ESTABLISHED,RELATED",
    "-m conntrack --ctstate INVALID",
    "-m conntrack --ctstate NEW",
    "-m conntrack --ctstate SNAT",
    "-m conntrack ! --ctstate DNAT",
    "-m conntrack ! --ctstate ESTABLISHED",
    "-m conntrack --ctstatus ASSURED",
    "-m conntrack ! --ctstatus EXPECTED",
    "-m conntrack --ctdir REPLY",
    "-m conntrack --ctdir ORIGINAL",
    "-m conntrack --ctorigsrc 10.1.0.2",
    "-m conntrack --ctproto 17",
    "-m state --state ESTABLISHED",
    "-i lan",
    "-i w+",
    "! -i lan",
    "-s 10.1.0.0/24",
    "! -s 10.1.0.0/28",
    "-d 192.0.2.0/29",
    "-d 10.1.0.2",
    "-p tcp -m tcp --dport 80",
    "-p tcp -m tcp ! --dport 443",
    "-p tcp -m multiport --dports 80,443,8000:9000",
    "-p udp -m multiport ! --ports 53,3000:3010",
    "-p udp -m udp --sport 1000:2000",
    "-p tcp -m tcp --tcp-flags SYN,RST,ACK SYN",
    "-p tcp -m tcp ! --tcp-flags FIN,RST NONE",
    "-p tcp -m tcp --tcp-option 2",
    "-p icmp",
    "-f",
    "-m mark --mark 0x5",
    "-m mark ! --mark 0x0/0x4",
    "-m connmark --mark 0x0",
    "-m addrtype --dst-type LOCAL",
    "-m addrtype ! --dst-type LOCAL",
    "-m comment --comment x",
];

const IPTABLES_TARGETS: [&str; 11] = [
    "ACCEPT",
    "ACCEPT",
    "ACCEPT",
    "DROP",
    "RETURN",
    "REJECT",
    "LOG",
    "MARK --set-mark 5",
    "MARK --set-xmark 0x4/0x6",
    "MARK --set-xmark 0x0/0x5",
    "TCPMSS --set-mss 1000",
];

/// Tables of iptables, with the chains of each that forwarded packets pass.
pub const IPTABLES: [(&str, &[&str]); 3] = [
    ("filter", &["FORWARD"]),
    ("mangle", &["PREROUTING", "FORWARD", "POSTROUTING"]),
    ("raw", &["PREROUTING"]),
];

/// Rules for `iptables-restore`.
pub fn iptables(rng: &mut Rng) -> String {
    let mut text = String::new();
    for (table, chains) in IPTABLES {
        if rng.bool() && table != "filter" {
            continue;
        }
        writeln!(text, "*{table}").unwrap();
        let called = rng.usize(0..3);
        (0..called).for_each(|n| writeln!(text, ":c{n} - [0:0]").unwrap());
        for chain in chains {
            let policy = if rng.u8(0..4) == 0 { "DROP" } else { "ACCEPT" };
            writeln!(text, ":{chain} {policy} [0:0]").unwrap();
        }
        for n in 0..called {
            iptables_list(&mut text, rng, &format!("c{n}"), n + 1..called, table);
        }
        for chain in chains {
            if rng.bool() {
                writeln!(text, "-A {chain} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT").unwrap();
            }
            iptables_list(&mut text, rng, chain, 0..called, table);
        }
        writeln!(text, "COMMIT").unwrap();
    }
    text
}

fn iptables_list(
    text: &mut String,
    rng: &mut Rng,
    chain: &str,
    callable: std::ops::Range<usize>,
    table: &str,
) {
    for _ in 0..rng.usize(0..5) {
        let matched = *rng.choice(IPTABLES_MATCHES.iter()).unwrap();
        let target = match rng.u8(0..4) {
            0 if !callable.is_empty() => format!("c{}", rng.usize(callable.clone())),
            _ => (*rng.choice(IPTABLES_TARGETS.iter()).unwrap()).to_owned(),
        };
        // These belong to one table, or to one kind of packets.
        let fits = match target.split(' ').next().unwrap() {
            "REJECT" => table == "filter",
            "MARK" => table == "mangle",
            "TCPMSS" => table == "mangle" && matched.contains("SYN,RST,ACK SYN"),
            _ => true,
        };
        let has_device = match chain {
            "PREROUTING" => !matched.contains("-o "),
            "POSTROUTING" => !matched.contains("-i "),
            _ => true,
        };
        if fits && has_device {
            writeln!(text, "-A {chain} {matched} -j {target}").unwrap();
        }
    }
}
