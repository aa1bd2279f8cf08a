//! Random filters and NAT, for the devices and networks of `router.rs`.
//!
//! NAT keeps the ports of connections, or gives one of them a port that no other has. So Linux never has to choose a
//! port at random.

use super::{
    common::ruleset::{matched, of_ipv6, rules},
    connection::Way,
};
use fastrand::Rng;

/// The tables of [`filter`], for IPv4 and IPv6.
pub const FILTERS: [&str; 2] = ["ip f4", "ip6 f6"];
/// Ports that NAT translates, and others.
pub const PORTS: [u16; 14] = [53, 80, 443, 8000, 8080, 8080, 8081, 8082, 8083, 8084, 8085, 8086, 8086, 9000];

#[derive(Clone, Debug)]
pub struct Ruleset {
    pub text: String,
    /// Millrace must let conntrack see all connections, so both routers track the same.
    pub tracks_all: bool,
}

impl Ruleset {
    /// `port`: of the one connection whose port changes.
    pub fn random(rng: &mut Rng, port: u16, tracks_all: bool) -> Ruleset {
        let mut text = String::from("flush ruleset\n");
        for is_ipv6 in [false, true] {
            let mut tables = filter(rng);
            if rng.u8(0..4) == 0 {
                tables += &rules(rng);
            }
            if rng.u8(0..4) > 0 {
                tables += &nat(rng, port);
            }
            text += &translated(&tables, is_ipv6);
        }
        if tracks_all {
            let rule = rng.choice(["ct state invalid drop", "ct state invalid log"]).unwrap();
            let priority = rng.choice([-20, 5, 20]).unwrap();
            text += &format!(
                "table inet tracks {{ chain c {{ type filter hook forward priority {priority}; {rule}; }}; }}\n"
            );
        }
        // A limit follows the clock.
        Ruleset { text: text.replace("limit rate 5/second ", ""), tracks_all }
    }
}

/// Rules of IPv4 with `[` and `]` around addresses in front of ports, as rules of one version.
fn translated(rules: &str, is_ipv6: bool) -> String {
    if is_ipv6 {
        of_ipv6(rules).replace("ip f4", "ip6 f6").replace("ip nat4", "ip6 nat6")
    } else {
        rules.replace(['[', ']'], "")
    }
}

/// A rule that can be inserted into a chain of [`FILTERS`].
pub fn rule(rng: &mut Rng, is_ipv6: bool) -> String {
    let first = if rng.bool() { "" } else { matched(rng) };
    let verdict = rng.choice(["drop", "drop", "accept", "counter", "meta mark set 5", "jump more"]).unwrap();
    translated(&format!("{first} {} {verdict}", matched(rng)), is_ipv6)
}

/// A rule about packets of one direction of a connection.
pub fn rule_about(rng: &mut Rng, way: &Way) -> String {
    let family = if way.arrives[0].is_ipv4() { "ip" } else { "ip6" };
    let [source, destination] = [way.arrives[0], way.leaves[1]];
    let matches = [
        format!("{family} saddr {}", source.ip()),
        format!("{family} daddr {}", destination.ip()),
        format!("th sport {}", source.port()),
        format!("{family} daddr . th dport {{ {} . {} }}", destination.ip(), destination.port()),
        format!("iifname {} {family} saddr {}", way.ingress.name(), source.ip()),
        format!("iifname != {} {family} saddr {}", way.ingress.name(), source.ip()),
        format!("oifname {} th dport {}", way.egress.name(), destination.port()),
        format!("oifname != {} {family} daddr {}", way.egress.name(), destination.ip()),
        format!("ct original {family} saddr {}", source.ip()),
    ];
    let verdict = rng.choice(["drop", "drop", "drop", "counter accept", "jump more"]).unwrap();
    format!("meta l4proto {{ tcp, udp }} {} {verdict}", rng.choice(matches).unwrap())
}

/// A change of a set or a map of [`FILTERS`]. It may fail.
pub fn element(rng: &mut Rng, is_ipv6: bool) -> String {
    let verb = rng.choice(["add", "add", "delete"]).unwrap();
    let (host, port) = (rng.choice([2, 4, 5, 6]).unwrap(), rng.choice(PORTS).unwrap());
    let element = match rng.u8(0..4) {
        0 => format!("blocked {{ 10.1.0.{host} }}"),
        1 => format!("blocked {{ 192.0.2.{} }}", rng.choice([1, 7]).unwrap()),
        2 => format!("ends {{ 192.0.2.0/28 . {port} }}"),
        _ if verb == "add" => {
            format!("fates {{ {port} : {} }}", rng.choice(["drop", "accept", "goto more"]).unwrap())
        }
        _ => format!("fates {{ {port} }}"),
    };
    translated(&format!("{verb} element ip f4 {element}"), is_ipv6)
}

/// Some of these, in random order.
fn some(rng: &mut Rng, all: &[String], out_of_ten: u8) -> Vec<String> {
    let mut some: Vec<String> = all.iter().filter(|_| rng.u8(0..10) < out_of_ten).cloned().collect();
    rng.shuffle(&mut some);
    some
}

/// A filter that lets many connections pass.
fn filter(rng: &mut Rng) -> String {
    let policy = rng.choice(["drop", "drop", "accept"]).unwrap();
    let established = rng
        .choice([
            "ct state established,related accept",
            "ct state established,related accept",
            "ct state vmap { established : accept, related : accept, invalid : drop }",
            "ct state vmap { established : goto more, related : accept }",
            "ct state established accept",
            "meta l4proto { tcp, udp } ct state established counter accept",
            "ct state invalid drop",
        ])
        .unwrap();
    let early = [
        "ip saddr @blocked drop".to_owned(),
        "ip daddr . th dport @ends drop".into(),
        format!("{} drop", matched(rng)),
        format!("{} jump more", matched(rng)),
    ];
    let late = [
        "ct status dnat accept".to_owned(),
        "iifname lan accept".into(),
        "iifname lan oifname wan accept".into(),
        "iifname . oifname vmap { lan . dmz : accept, dmz . lan : accept, wan . dmz : jump more }".into(),
        "ip daddr . th dport @ends accept".into(),
        "th dport vmap @fates".into(),
        "meta l4proto { tcp, udp } th dport { 80, 8000-9000 } accept".into(),
        format!("{} accept", matched(rng)),
    ];
    let rules = [some(rng, &early, 2), vec![established.into()], some(rng, &late, 6)].concat();
    let more = [
        format!("{} accept", matched(rng)),
        format!("{} drop", matched(rng)),
        format!("{} meta mark set 5", matched(rng)),
        "ip saddr @blocked drop".into(),
        "accept".into(),
    ];
    let priority = rng.choice([0, 0, -150, 10]).unwrap();
    format!(
        "table ip f4 {{
             set blocked {{ type ipv4_addr; elements = {{ 10.1.0.{}, 192.0.2.9 }}; }}
             set ends {{
                 type ipv4_addr . inet_service; flags interval;
                 elements = {{ 192.0.2.0/29 . 1-80, 10.1.0.2 . 80, 10.3.0.2-10.3.0.4 . 443 }};
             }}
             map fates {{ type inet_service : verdict; elements = {{ 80 : accept, 53 : jump more }}; }}
             chain more {{
                 {}
             }}
             chain forward {{
                 type filter hook forward priority {priority}; policy {policy};
                 {}
             }}
         }}\n",
        rng.choice([3, 5, 6]).unwrap(),
        some(rng, &more, 5).join("\n"),
        rules.join("\n"),
    )
}

fn nat(rng: &mut Rng, port: u16) -> String {
    let both = "meta l4proto { tcp, udp }";
    let before = [
        format!("iifname wan {both} th dport 8080 dnat to [10.1.0.2]:80"),
        format!("iifname lan {both} th dport 8080 dnat to [10.3.0.2]:80"),
        format!("ip daddr 10.2.0.1 {both} dnat to th dport map @hosts"),
        format!("{both} dnat to th dport map @ends"),
        "ip daddr 10.2.0.77 dnat to 10.1.0.4".into(),
        format!("iifname lan {both} th dport 8085 dnat to 10.3.0.5"),
        format!("iifname lan ip daddr 10.2.0.1 {both} th dport 9000 dnat to [10.1.0.6]:90"),
        format!("iifname dmz {both} th dport 8086 redirect to :9"),
        format!("iifname lan ip daddr 192.0.2.7 {both} dnat to 10.3.0.4"),
    ];
    let after = [
        format!("{both} th sport {port} snat to [10.2.0.77]:5555"),
        "ip saddr 10.1.0.4 oifname wan snat to 10.2.0.77".into(),
        "oifname wan snat to ip saddr map @sources".into(),
        "oifname lan ct status dnat masquerade".into(),
    ];
    let mut rules = some(rng, &["ip saddr 10.1.0.6 accept".into()], 5);
    rules.extend(some(rng, &after, 6));
    let rest = ["oifname { wan, dmz } masquerade", "oifname wan masquerade", "oifname != lan masquerade", ""];
    rules.push(rng.choice(rest).unwrap().into());
    format!(
        "table ip nat4 {{
             map hosts {{ type inet_service : ipv4_addr; elements = {{ 8081 : 10.1.0.4, 8082 : 10.3.0.2 }}; }}
             map ends {{
                 type inet_service : ipv4_addr . inet_service;
                 elements = {{ 8083 : 10.1.0.2 . 80, 8084 : 10.3.0.4 . 443 }};
             }}
             map sources {{ type ipv4_addr : ipv4_addr; elements = {{ 10.1.0.5 : 10.2.0.80, 10.1.0.2 : 10.2.0.81 }}; }}
             chain pre {{
                 type nat hook prerouting priority -100;
                 {}
             }}
             chain post {{
                 type nat hook postrouting priority 100;
                 {}
             }}
         }}\n",
        some(rng, &before, 7).join("\n"),
        rules.join("\n"),
    )
}
