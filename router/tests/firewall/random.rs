//! Random rules in the language of iptables-restore. Those of nft are in `common/ruleset.rs`.

use fastrand::Rng;
use std::fmt::Write as _;

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
