//! Rules that add established connections to a flow table of Linux, which then forwards them past all rules.
//!
//! Linux adds a connection when the first packet of an established connection meets such a rule. So a TCP connection
//! that becomes fast because of the rule is in the flow table already.

use super::{
    ASSURED_AFTER, FEW, MANY, Story, common,
    connection::{self, Connection, Spec, TCP, UDP},
    router::{self, Placement, Rules},
    worlds::{FastKey, Worlds},
};
use fastrand::Rng;
use std::{
    thread,
    time::{Duration, Instant},
};

/// Rules without a flow table.
const PLAIN: &str = "
    flush chain inet filter forward
    delete flowtable inet filter ft
    add rule inet filter forward ct state established,related accept
    add rule inet filter forward ct status dnat accept
    add rule inet filter forward iifname lan accept";
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs `tell` with all connections and a count. Connections of protocol `first` come first, and the count is theirs.
fn story(first: u8, tell: impl FnOnce(&mut Story, usize) + Send + 'static) {
    common::in_new_namespace(move || {
        if !router::has_flow_tables() {
            eprintln!("left out, as this kernel has no flow tables");
            return;
        }
        let mut connections = connection::all(Rules::FlowTable);
        connections.sort_by_key(|c| c.protocol != first);
        connections.iter_mut().enumerate().for_each(|(at, c)| c.number = at);
        let count = connections.iter().filter(|c| c.protocol == first).count();
        let worlds = Worlds::new(Placement::Host, Rules::FlowTable);
        let mut story = Story { worlds, rng: Rng::with_seed(20_261_128), connections };
        tell(&mut story, count);
        story.worlds.stop();
    });
}

#[test]
#[ignore = "needs root"]
fn a_rule_with_flow_add_makes_tcp_fast() {
    story(TCP, |story, tcp| {
        story.begin(|_| true);
        assert_eq!(story.worlds.linux.in_flow_table(), story.connections.len());
        story.worlds.until_fast(&mut story.connections[..tcp]);
        story.until_refused(tcp, "a flow table of Linux forwards it");
        story.random_packets("fast connections, and those of a flow table", MANY);
        story.worlds.compare_tracked("connections of a flow table");
        story.tcp_ends("FIN", false, |_| true);
        story.worlds.compare_tracked("FIN");
        story.begin_again(tcp);
        story.tcp_ends("RST", true, |_| true);
        story.begin_again(tcp);
    });
}

/// Linux removes a connection without packets from its flow table. The router without Millrace sees packets, so it keeps the
/// connection there.
#[test]
#[ignore = "needs root"]
fn fast_connections_leave_the_flow_table() {
    story(TCP, |story, tcp| {
        story.connections.truncate(tcp);
        // The other router has the default, 30 s.
        story.worlds.millrace.run("sysctl -qw net.netfilter.nf_flowtable_tcp_timeout=1");
        story.begin(|_| true);
        story.leave_the_flow_table();
        story.a_rule_drops_all();
        story.leave_the_flow_table();
        story.random_packets("fast connections that have left the flow table", MANY);
        story.leave_the_flow_table();
        story.tcp_ends("FIN", false, |_| true);
        story.worlds.compare_tracked("FIN");
    });
}

#[test]
#[ignore = "needs root"]
fn without_the_rule_tcp_needs_consent() {
    story(UDP, |story, udp| {
        story.worlds.nft(PLAIN);
        story.begin(|c| c.protocol == UDP);
        thread::sleep(ASSURED_AFTER);
        story.begin(|c| c.protocol == TCP);
        story.worlds.until_fast(&mut story.connections[..udp]);
        story.until_refused(udp, "TCP needs consent");
        story.random_packets("connections of TCP without consent", MANY);
    });
}

impl Story {
    /// Sends packets until all connections from the `first` on stay with Linux for this reason.
    fn until_refused(&mut self, first: usize, why: &str) {
        let end = Instant::now() + PATIENCE;
        loop {
            self.there_and_back("refused connections", |_| true, &[0, 0, 0, 1, 1, 1]);
            let refused = self.worlds.refused();
            let is_refused = |c: &Connection| {
                c.ways.iter().any(|way| {
                    let key = FastKey::new(c.protocol_name(), way.arrives);
                    refused.get(&key).is_some_and(|reason| reason.contains(why))
                })
            };
            let others: Vec<_> = self.connections[first..].iter().filter(|c| !is_refused(c)).collect();
            if others.is_empty() {
                return;
            }
            assert!(Instant::now() < end, "{others:#?}\n{refused:#?}");
        }
    }

    /// Begins TCP connections with the ports of old ones, and waits until they are fast.
    fn begin_again(&mut self, tcp: usize) {
        self.worlds.until_not_fast(&self.connections);
        self.begin(|c| c.protocol == TCP);
        self.worlds.until_fast(&mut self.connections[..tcp]);
        self.random_packets("fast after a new begin", FEW);
    }

    fn leave_the_flow_table(&mut self) {
        self.until_fast();
        let end = Instant::now() + PATIENCE;
        while self.worlds.millrace.in_flow_table() > 0 {
            self.there_and_back("while Linux removes connections", |_| true, &[0, 1]);
            assert!(Instant::now() < end, "{:#?}", self.worlds.millrace.tracked());
        }
        assert_eq!(self.worlds.linux.in_flow_table(), self.connections.len());
    }

    /// Linux does not apply new rules to connections in its flow table. With Millrace, the connections have left the table, so
    /// the new rules apply.
    fn a_rule_drops_all(&mut self) {
        self.worlds.nft("insert rule inet filter forward meta l4proto tcp drop");
        let spec = Spec::small(&mut self.rng);
        for connection in &mut self.connections {
            let frame = connection.data(0, &spec);
            self.worlds.send(&frame);
        }
        let [linux, millrace] = self.worlds.take_out();
        assert_eq!((linux.len(), millrace.len()), (self.connections.len(), 0));
        self.worlds.set_rules();
    }
}
