//! Routing sessions through a port while flow rules change: FRR on the box, and FRR on the server beside it.
//!
//! ```text
//!  client ── p1 :box: p2, 10.8.2.1 ── 10.8.2.2, eth0 :server:  10.77.0.0/24 by OSPF, 10.78.0.0/24 by BGP
//! ```

use serde_json::Value;

use crate::{
    bed::{Bed, ping},
    daemon::{Daemon, eventually},
    frr::{Frr, interface, ospf},
};

/// Batches of one round: from no rules to the first one (another program takes the ports), and back to none.
const ROUND: [&[&str]; 13] = [
    &["add", "priority=1,in_port=p2,actions=normal"],
    &["add", "priority=50,ip,nw_proto=89,actions=local"],
    &["add", "priority=50,tcp,tp_dst=179,actions=normal", "priority=50,tcp,tp_src=179,actions=local"],
    &["add", "priority=60,udp,tp_dst=53,actions=drop", "priority=61,icmp,nw_dst=10.8.2.9,actions=output:p1"],
    &["mod", "ip,nw_proto=89,actions=normal"],
    &["mod", "tcp,actions=local"],
    // User space does these: they copy packets, one of them to the client.
    &["mod", "ip,nw_proto=89,actions=output:p1,normal"],
    &["mod", "udp,actions=output:p1"],
    &["add", "priority=70,ip,actions=goto_table:3", "table=3,priority=9,ip,actions=normal"],
    &["del", "udp"],
    &["del", "table=0,ip"],
    &["add", "priority=50,ip,nw_proto=89,actions=normal"],
    &["del"],
];
const ROUNDS: usize = 30;

/// Counters that change if a session ends, even if it is soon there again.
#[derive(Debug, PartialEq)]
struct Sessions {
    /// Changes of state of the OSPF neighbour, as each side counts them.
    ospf_changes: [u64; 2],
    bgp_dropped: u64,
    bgp_established: u64,
}

/// `None` unless both sessions are up and both routes are there.
fn sessions(bed: &Bed, the_box: &Frr, server: &Frr) -> Option<Sessions> {
    let ask = |frr: &Frr, namespace, daemon, command: &str| -> Option<Value> {
        serde_json::from_str(&frr.vtysh(namespace, daemon, &[command])).ok()
    };
    let changes = |frr, namespace, peer: &str| {
        let all = ask(frr, namespace, "ospfd", "show ip ospf neighbor detail json")?;
        let neighbour = &all["neighbors"][peer][0];
        let full = neighbour["nbrState"].as_str()?.starts_with("Full");
        full.then(|| neighbour["stateChangeCounter"].as_u64())?
    };
    let bgp = ask(the_box, &bed.the_box, "bgpd", "show bgp neighbors 10.8.2.2 json")?["10.8.2.2"].take();
    let routes = crate::bed::output(&bed.the_box, "ip route");
    let up = bgp["bgpState"] == "Established"
        && ["10.77.0.0/24", "10.78.0.0/24"].iter().all(|r| routes.contains(r));
    up.then_some(Sessions {
        ospf_changes: [changes(the_box, &bed.the_box, "2.2.2.2")?, changes(server, &bed.server, "1.1.1.1")?],
        bgp_dropped: bgp["connectionsDropped"].as_u64()?,
        bgp_established: bgp["connectionsEstablished"].as_u64()?,
    })
}

fn bgp(number: u32, id: &str, peer: &str, peer_number: u32, networks: &str) -> String {
    format!(
        "router bgp {number}\n bgp router-id {id}\n no bgp ebgp-requires-policy\n \
         neighbor {peer} remote-as {peer_number}\n neighbor {peer} timers 1 3\n neighbor {peer} timers connect 1\n{networks}"
    )
}

fn change(daemon: &Daemon, words: &[&str]) {
    let output = daemon.millrace(&[&["flows"], words].concat());
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
#[ignore = "needs root"]
fn sessions_stay_up_while_rules_change() {
    let bed = Bed::new();
    bed.server
        .ip_batch(
            "link add behind-ospf type veth peer name behind-bgp\n\
             addr add 10.77.0.1/24 dev behind-ospf\naddr add 10.78.0.1/24 dev behind-bgp\n\
             link set behind-ospf up\nlink set behind-bgp up\n",
        )
        .unwrap();
    bed.client.ip_batch("route add 10.76.0.0/14 via 10.8.1.1\n").unwrap();
    let daemon = bed.start(2, &[]);
    let behind = interface("eth0", 10) + "interface behind-ospf\n ip ospf passive\n";
    let the_box = Frr::start(
        &bed.the_box,
        &[
            ("ospfd", &ospf("1.1.1.1", &["10.8.2.0/24"], &interface("p2", 10))),
            ("bgpd", &bgp(65001, "1.1.1.1", "10.8.2.2", 65002, "")),
        ],
    );
    let server = Frr::start(
        &bed.server,
        &[
            ("ospfd", &ospf("2.2.2.2", &["10.8.2.0/24", "10.77.0.0/24"], &behind)),
            ("bgpd", &bgp(65002, "2.2.2.2", "10.8.2.1", 65001, " network 10.78.0.0/24\n")),
        ],
    );
    let before =
        eventually("both sessions", || sessions(&bed, &the_box, &server).ok_or_else(|| "not up".into()));
    for round in 0..ROUNDS {
        ROUND.iter().for_each(|batch| change(&daemon, batch));
        let now = sessions(&bed, &the_box, &server);
        assert_eq!(now.as_ref(), Some(&before), "round {round}");
    }
    // Wait for late messages of a session that ended in the last round.
    std::thread::sleep(std::time::Duration::from_secs(4));
    assert_eq!(sessions(&bed, &the_box, &server), Some(before));

    change(&daemon, &["add", "priority=1,in_port=p1,actions=normal"]);
    let forwarded = daemon.forwarded();
    for behind in ["10.77.0.1", "10.78.0.1"] {
        ping(&bed.client, behind, 20);
    }
    assert!(daemon.forwarded() >= forwarded + 40, "routes learnt are not those of the fast path");
    daemon.assert_verified();
}
