//! Linux is the judge of fast connections: the same frames go through two NAT routers, one of plain Linux and one with
//! Millrace. The same frames must leave by every port, in the same order for each direction of a connection.
//!
//! | file | holds |
//! |---|---|
//! | `main.rs` | the tests: what happens to the router, and when |
//! | `connection.rs` | the connections, and packets of them |
//! | `expiring.rs` | rules whose sets have elements that expire |
//! | `flow_table.rs` | rules that add connections to a flow table of Linux |
//! | `kinds.rs` | the kinds of packets that a test chooses from at random |
//! | `random.rs` | random connections under random rules, and random changes |
//! | `router.rs` | one router, and the daemon |
//! | `ruleset.rs` | random filters and NAT |
//! | `worlds.rs` | both routers, and the comparison |
//!
//! NAT keeps the ports of masqueraded connections, because no two of them clash. So both routers choose the same. The packets
//! follow from a seed, which is printed; `MILLRACE_SEED=n` sets it.
//!
//! Some frames are not compared: ARP, neighbour discovery and multicast listeners, which follow the clock. Identifiers that
//! Linux chooses at random are not compared, either: of ICMP errors of the router, and of the fragments that it makes of IPv6
//! packets.

#[path = "../common/mod.rs"]
mod common;
mod connection;
mod expiring;
mod flow_table;
mod kinds;
mod random;
mod router;
mod ruleset;
mod worlds;

use connection::{Connection, Spec};
use fastrand::Rng;
use router::{Device, Placement, Rules};
use std::{env, thread, time::Duration};
use worlds::Worlds;

/// Conntrack calls a UDP connection ASSURED if it has packets of both directions after this time.
const ASSURED_AFTER: Duration = Duration::from_millis(2100);
/// Linux deletes connections of a removed address later, in a workqueue.
const DELETED_LATER: Duration = Duration::from_millis(300);
/// Random packets of each connection.
const MANY: usize = 28;
const FEW: usize = 8;

#[test]
#[ignore = "needs root"]
fn nat_of_the_host() {
    story(Placement::Host, Rules::Nat);
}

#[test]
#[ignore = "needs root"]
fn nat_of_a_tenant() {
    story(Placement::Tenant, Rules::Nat);
}

#[test]
#[ignore = "needs root"]
fn nat_of_devices_with_a_vlan() {
    story(Placement::Vlan, Rules::Nat);
}

#[test]
#[ignore = "needs root"]
fn a_stateful_filter_without_nat() {
    story(Placement::Host, Rules::Filter);
}

/// Millrace distinguishes at most 15 groups of devices. Established connections are fast even if rules distinguish more.
#[test]
#[ignore = "needs root"]
fn connections_are_fast_however_many_devices_rules_name() {
    common::in_new_namespace(|| {
        let connections = connection::all(Rules::Nat);
        let worlds = Worlds::new(Placement::Host, Rules::Nat);
        let mut story = Story { worlds, rng: Rng::with_seed(20_261_128), connections };
        for n in 0..20 {
            story.worlds.run(&format!("ip link add many{n} type veth peer name other{n}"));
            story.worlds.nft(&format!("insert rule inet filter forward iifname many{n} drop"));
        }
        story.begin_all();
        story.until_fast();
        story.random_packets("rules that name many devices", FEW);
        story.worlds.stop();
    });
}

fn story(placement: Placement, rules: Rules) {
    common::in_new_namespace(move || {
        if placement == Placement::Vlan && !router::has_vlans() {
            eprintln!("left out, as this kernel has no VLAN devices");
            return;
        }
        let seed = env::var("MILLRACE_SEED").map_or(20_261_128, |text| text.parse().unwrap());
        eprintln!("{placement:?}, {rules:?}: MILLRACE_SEED={seed}");
        let mut story = Story {
            worlds: Worlds::new(placement, rules),
            rng: Rng::with_seed(seed),
            connections: connection::all(rules),
        };
        story.tell();
    });
}

struct Story {
    worlds: Worlds,
    rng: Rng,
    connections: Vec<Connection>,
}

impl Story {
    fn tell(&mut self) {
        self.begin_all();
        self.until_fast();
        self.random_packets("fast connections", MANY);
        self.checksums_that_linux_refuses();
        self.sequence_numbers_that_linux_refuses();
        self.a_rule_drops_some();
        self.some_end();
        self.some_are_forgotten();
        self.routes_move();
        self.an_address_goes();
        self.worlds.stop();
    }

    /// Begins all connections. Those of UDP are about to be assured then.
    fn begin_all(&mut self) {
        self.begin(|c| c.protocol == connection::UDP);
        thread::sleep(ASSURED_AFTER);
        self.begin(|c| c.protocol == connection::TCP);
    }

    /// Begins connections. Those of TCP may be fast at once, and others after a while.
    fn begin(&mut self, chosen: impl Fn(&Connection) -> bool) {
        for at in 0..self.connections.len() {
            let connection = &mut self.connections[at];
            if !chosen(connection) {
                continue;
            }
            connection.is_fast = false;
            for frame in connection.handshake(&mut self.rng) {
                self.worlds.send(&frame);
            }
        }
        self.worlds.compare("connections begin");
    }

    /// Sends the same small packets until all connections are fast.
    fn until_fast(&mut self) {
        self.worlds.until_fast(&mut self.connections);
    }

    /// Packets of all kinds, in random order. All that may be fast must be.
    fn random_packets(&mut self, what: &str, of_each: usize) {
        let count = self.connections.len();
        let mut order: Vec<usize> = (0..count * of_each).map(|n| n % count).collect();
        self.rng.shuffle(&mut order);
        self.worlds.begin_counting(&self.connections);
        for at in order {
            let way = self.rng.usize(0..2);
            for frame in kinds::random(&mut self.connections[at], way, &mut self.rng) {
                self.worlds.send(&frame);
            }
        }
        self.worlds.compare(what);
        self.worlds.assert_counted(what, &self.connections);
    }

    /// A packet of each chosen connection, in the direction in which it began, then one back.
    fn there_and_back(&mut self, what: &str, chosen: impl Fn(&Connection) -> bool, ways: &[usize]) {
        self.send_small(chosen, ways);
        self.worlds.compare(what);
    }

    fn send_small(&mut self, chosen: impl Fn(&Connection) -> bool, ways: &[usize]) {
        for way in ways {
            for connection in self.connections.iter_mut().filter(|c| chosen(c)) {
                let frame = connection.data(*way, &Spec::small(&mut self.rng));
                self.worlds.send(&frame);
            }
        }
    }

    /// The one difference of UDP, and one of TCP: Linux verifies checksums (`nf_conntrack_checksum`), and does not track a
    /// packet with a wrong one, so it is not translated, and rules may drop it. Millrace forwards it like others, and it
    /// stays wrong.
    fn checksums_that_linux_refuses(&mut self) {
        let mut frames = Vec::new();
        for connection in self.connections.iter_mut().filter(|c| c.is_fast) {
            for way in [0, 1] {
                let wrong = Spec { wrong: self.rng.u16(1..0xffff), ..Spec::small(&mut self.rng) };
                frames.push(connection.data(way, &wrong));
            }
        }
        self.worlds.linux.run("sysctl -qw net.netfilter.nf_conntrack_checksum=0");
        self.worlds.begin_counting(&self.connections);
        frames.iter().for_each(|frame| self.worlds.send(frame));
        self.worlds.compare("wrong checksums that Linux does not verify");
        self.worlds.assert_counted("wrong checksums", &self.connections);
        self.worlds.linux.run("sysctl -qw net.netfilter.nf_conntrack_checksum=1");

        frames.iter().for_each(|frame| self.worlds.send(frame));
        let [linux, millrace] = self.worlds.take_out();
        assert_eq!(millrace.len(), frames.len(), "wrong checksums with Millrace");
        // Rules let new connections of `lan` through, and so packets that conntrack does not know. Without a translation, those
        // to the router's own address are for the router.
        let fast = self.connections.iter().filter(|c| c.is_fast && c.name != "own addresses");
        let expected = fast.flat_map(|c| c.ways.iter()).filter(|way| way.ingress == Device::Lan);
        assert_eq!(linux.len(), expected.count(), "wrong checksums with Linux alone");
        assert_ne!(linux, millrace);
    }

    /// A difference of TCP: Linux does not look at sequence numbers of fast connections any more. Their packets come
    /// out as with `nf_conntrack_tcp_be_liberal`, and a RST ends the connection even if its number is not the expected one.
    fn sequence_numbers_that_linux_refuses(&mut self) {
        self.worlds.linux.run("sysctl -qw net.netfilter.nf_conntrack_tcp_be_liberal=1");
        self.worlds.begin_counting(&self.connections);
        for connection in self.connections.iter_mut().filter(|c| c.protocol == connection::TCP && c.is_fast) {
            for way in [0, 1, 0] {
                let spec = Spec { sequence_shift: 1 << self.rng.u32(20..31), ..Spec::small(&mut self.rng) };
                let frame = connection.data(way, &spec);
                self.worlds.send(&frame);
            }
        }
        self.worlds.compare("sequence numbers out of the window");
        self.worlds.assert_counted("sequence numbers out of the window", &self.connections);
        self.worlds.linux.run("sysctl -qw net.netfilter.nf_conntrack_tcp_be_liberal=0");
        self.there_and_back("sequence numbers in the window again", |_| true, &[0, 1]);
    }

    /// The first packet after `nft` has returned obeys, even if the daemon does nothing.
    fn a_rule_drops_some(&mut self) {
        let sources = ["10.1.0.2", "10.1.0.5", "10.9.0.2", "10.1.0.6"].join(", ");
        let sources6 = ["fd00:1::2", "fd00:1::5", "fd00:9::2", "fd00:1::6"].join(", ");
        self.worlds.pause_daemon(true);
        self.worlds.nft(&format!(
            "insert rule inet filter forward ip saddr {{ {sources} }} drop
             insert rule inet filter forward ip6 saddr {{ {sources6} }} drop"
        ));
        self.there_and_back("a rule drops some", |_| true, &[0, 1, 0]);
        self.worlds.pause_daemon(false);
        // The daemon reads the new rules meanwhile.
        thread::sleep(Duration::from_millis(200));
        self.there_and_back("a rule still drops some", |_| true, &[0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
        self.worlds.set_rules();
        self.there_and_back("the rule is gone", |_| true, &[0, 1]);
        self.until_fast();
        self.random_packets("fast after a rule", FEW);
    }

    /// `conntrack -D`. The next packet begins a connection, in the middle of it.
    fn some_are_forgotten(&mut self) {
        let forgotten = |c: &Connection| ["fixed", "plain"].contains(&c.name);
        for connection in self.connections.iter_mut().filter(|c| forgotten(c)) {
            let (source, protocol) = (connection.ways[0].arrives[0].ip(), connection.protocol_name());
            let family = if source.is_ipv4() { "ipv4" } else { "ipv6" };
            self.worlds.run(&format!("conntrack -D -f {family} -p {protocol} --orig-src {source}"));
            connection.is_fast = false;
        }
        self.worlds.until_not_fast(&self.connections);
        self.there_and_back("forgotten", |_| true, &[0, 1, 0, 1]);
        self.worlds.compare_tracked("forgotten");
    }

    /// FIN and RST of TCP. Then new connections have the same ports.
    fn some_end(&mut self) {
        for (what, is_rst) in [("FIN", false), ("RST", true)] {
            self.tcp_ends(what, is_rst, |at| is_rst == (at % 3 == 0));
            // Each acknowledgement of a FIN changes a state, too.
            self.worlds.compare_tracked(what);
        }
        self.worlds.until_not_fast(&self.connections);
        self.begin(|c| c.protocol == connection::TCP);
        self.until_fast();
        self.random_packets("fast after a new begin", FEW);
    }

    fn tcp_ends(&mut self, what: &str, is_rst: bool, chosen: impl Fn(usize) -> bool) {
        for at in (0..self.connections.len()).filter(|at| chosen(*at)) {
            let connection = &mut self.connections[at];
            if connection.protocol != connection::TCP {
                continue;
            }
            let way = connection.number / 2 % 2;
            connection.is_fast = false;
            let frames = if is_rst {
                connection.reset(way, &mut self.rng)
            } else {
                connection.fins(way, &mut self.rng)
            };
            frames.iter().for_each(|frame| self.worlds.send(frame));
            // Late packets.
            for way in [way, 1 - way] {
                let frame = connection.late(way, &mut self.rng);
                self.worlds.send(&frame);
            }
        }
        self.worlds.compare(what);
    }

    /// The remote hosts move to another port. Linux kills masqueraded connections then, and only those.
    fn routes_move(&mut self) {
        for [gateway, to] in [["10.3.0.9", "10.9.0.0/16"], ["fd00:3::9", "fd00:9::/64"]] {
            self.worlds.run(&format!("ip route replace {to} via {gateway} dev dmz"));
        }
        self.worlds.until_verified();
        let way_out = |c: &Connection| if c.ways[0].ingress == Device::Wan { 1 } else { 0 };
        for _ in 0..3 {
            for connection in &mut self.connections {
                let frame = connection.data(way_out(connection), &Spec::small(&mut self.rng));
                self.worlds.send(&frame);
            }
            self.worlds.compare("routes have moved");
        }
        // Those that are not masqueraded become fast on the new way.
        for _ in 0..12 {
            for connection in self.connections.iter_mut().filter(|c| c.name != "masquerade") {
                let frame = connection.data(way_out(connection), &Spec::small(&mut self.rng));
                self.worlds.send(&frame);
            }
        }
        self.worlds.compare("routes have moved for a while");
        for [gateway, to] in [["10.2.0.9", "10.9.0.0/16"], ["fd00:2::9", "fd00:9::/64"]] {
            self.worlds.run(&format!("ip route replace {to} via {gateway} dev wan"));
        }
        self.worlds.until_verified();
        self.there_and_back("routes are back", |_| true, &[0, 0, 1]);
        self.worlds.compare_tracked("routes are back");
    }

    /// Linux deletes the connections that it has masqueraded with an address, when this goes.
    fn an_address_goes(&mut self) {
        thread::sleep(ASSURED_AFTER);
        self.until_fast();
        self.random_packets("fast after routes are back", FEW);
        self.worlds.run("ip -6 route del fd00:9::/64");
        self.worlds.run("ip addr del 10.2.0.1/24 dev wan");
        self.worlds.run("ip addr del fd00:2::1/64 dev wan");
        thread::sleep(DELETED_LATER);
        self.worlds.until_verified();
        self.there_and_back("the address is gone", |c| c.name != "dnat", &[0, 0, 0]);
        self.worlds.run("ip addr add 10.2.0.1/24 dev wan");
        self.worlds.run("ip addr add fd00:2::1/64 dev wan nodad");
        self.worlds.run("ip route replace 10.9.0.0/16 via 10.2.0.9 dev wan");
        self.worlds.run("ip route replace fd00:9::/64 via fd00:2::9 dev wan");
        self.worlds.set_neighbours();
        thread::sleep(DELETED_LATER);
        self.worlds.until_verified();
        self.there_and_back("the address is back", |_| true, &[0, 1, 0, 1]);
        thread::sleep(ASSURED_AFTER);
        self.until_fast();
        self.random_packets("fast after the address is back", FEW);
        self.worlds.compare_tracked("the end");
    }
}
