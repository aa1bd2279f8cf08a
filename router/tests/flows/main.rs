//! `millrace flows` and a running daemon: rules beside routing, when packets obey a change, and how rules
//! end.

mod bed;
mod choosing;
#[path = "../common/mod.rs"]
mod common;
mod cores;
mod standing;

use bed::{Bed, host_mac, port_mac, routable};
use common::{
    frame::{Frame, fix_checksum},
    in_new_namespace, run,
};
use std::{
    thread,
    time::{Duration, Instant},
};

#[test]
#[ignore = "needs root"]
fn rules_beside_routing() {
    in_new_namespace(|| {
        let bed = Bed::new("a", "");
        let frame = routable(0, 1);
        let routed = frame.routed(host_mac(1), port_mac(1), &[]);
        let bytes = frame.bytes();
        bed.wires[0].send(&bytes);
        bed.comes_out(&[1], &routed);
        assert_eq!((bed.program(0), bed.flows(&["list"])), ("millrace".into(), "no rules\n".into()));

        // The rule sends the packet unchanged to another port than Linux would. Packets that match no rule
        // are routed as before.
        let says = bed.flows(&["add", "in_port=p0,ip,nw_dst=10.0.1.9,actions=output:3"]);
        assert_eq!(says, "1 added\n");
        assert_eq!(bed.program(0), "millrace_flow");
        bed.wires[0].send(&bytes);
        bed.comes_out(&[2], &bytes);
        let other = routable(2, 1);
        bed.wires[2].send(&other.bytes());
        bed.comes_out(&[1], &other.routed(host_mac(1), port_mac(1), &[]));

        // The same rule with other actions: routes, rewrites, floods, drops.
        let again = |actions: &str| {
            bed.flows(&["mod", "--strict", &format!("in_port=1,ip,nw_dst=10.0.1.9,actions={actions}")]);
            bed.wires[0].send(&bytes);
        };
        again("NORMAL");
        bed.comes_out(&[1], &routed);
        again("mod_nw_dst:10.0.2.9,NORMAL");
        bed.comes_out(&[2], &redirected(&frame).routed(host_mac(2), port_mac(2), &[]));
        again("flood");
        bed.comes_out(&[1, 2], &bytes);
        again("in_port");
        bed.comes_out(&[0], &bytes);
        again("drop");
        bed.nothing_more();
        assert_eq!(bed.reason("rule_drop"), 1);

        let rules = bed.list("");
        assert_eq!(rules.len(), 1);
        assert_eq!(
            (&rules[0]["match"], &rules[0]["actions"]),
            (&"ip,in_port=1,nw_dst=10.0.1.9".into(), &"drop".into())
        );
        assert_eq!((&rules[0]["packets"], &rules[0]["bytes"]), (&6.into(), &360.into()));
        assert_eq!(rules[0]["slow"], false);
        let status = bed.status().unwrap();
        assert_eq!((&status["flows"]["rules"], &status["flows"]["in_charge"]), (&1.into(), &true.into()));

        assert_eq!(bed.flows(&["del"]), "1 deleted\n");
        assert_eq!(bed.program(0), "millrace");
        bed.wires[0].send(&bytes);
        bed.comes_out(&[1], &routed);
    });
}

/// Explains a packet before one has gone that way: its rules, where they are executed, and what leaves. A
/// packet for NORMAL is routed.
#[test]
#[ignore = "needs root"]
fn explain_shows_what_rules_do() {
    in_new_namespace(|| {
        let bed = Bed::new("x", "");
        let explain = |port: &str| -> serde_json::Value {
            let packet = "udp 10.0.0.9:1000 -> 10.0.1.9:53";
            let output = bed.millrace(&["explain", packet, "--port", port, "--json"]);
            let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            told[0].clone()
        };
        let to = |told: &serde_json::Value| -> Vec<String> {
            let outputs = told["rules"]["outputs"].as_array().unwrap();
            outputs.iter().map(|output| output["to"].as_str().unwrap().into()).collect()
        };
        let routed = explain("p0");
        assert_eq!((&routed["rules"], &routed["egress"]), (&serde_json::Value::Null, &"p1".into()));

        bed.flows(&["add", "priority=9,cookie=5,in_port=p0,udp,actions=goto_table:3"]);
        bed.flows(&["add", "table=3,priority=7,udp,tp_dst=53,actions=mod_nw_dst:10.0.2.9,normal"]);
        let told = explain("p0");
        let rules = &told["rules"];
        assert_eq!(
            rules["rules"],
            serde_json::json!([
                {"table": 0, "priority": 9, "cookie": 5, "flow": "cookie=0x5, priority=9,udp,in_port=1 actions=goto_table:3"},
                {"table": 3, "priority": 7, "cookie": 0,
                 "flow": "table=3, priority=7,udp,tp_dst=53 actions=mod_nw_dst:10.0.2.9,NORMAL"},
            ])
        );
        assert_eq!((&rules["slow"], to(&told)), (&false.into(), vec!["NORMAL".into()]));
        assert_eq!((&told["verdict"], &told["egress"]), (&"forward".into(), &"p2".into()));
        assert_eq!(
            (&told["before"]["destination"], &told["after"]["destination"]),
            (&"10.0.1.9".into(), &"10.0.2.9".into())
        );
        assert_eq!((&told["before"]["ttl"], &told["after"]["ttl"]), (&64.into(), &63.into()));
        // A packet that matches no rule.
        let other = explain("p1");
        assert_eq!(other["rules"]["rules"][0]["flow"], serde_json::Value::Null);
        assert_eq!(to(&other), ["NORMAL"]);

        // Rules that user space executes, with the reason; a rule with one port, and with none.
        bed.flows(&["add", "priority=10,in_port=p0,udp,actions=output:p1,mod_nw_dst:10.0.2.9,output:p2"]);
        let told = explain("p0");
        assert_eq!((&told["rules"]["slow"], to(&told)), (&true.into(), vec!["p1".into(), "p2".into()]));
        assert_eq!(told["rules"]["why"], bed.list("in_port=p0,udp")[0]["why"]);
        assert_eq!((&told["verdict"], &told["egress"]), (&"forward".into(), &"p1".into()));
        bed.flows(&["add", "priority=10,in_port=p0,udp,actions=drop"]);
        let told = explain("p0");
        assert_eq!((&told["verdict"], &told["reason"]["reason"]), (&"drop".into(), &"rule_drop".into()));
        bed.flows(&["add", "priority=10,in_port=p0,udp,actions=set_core:0,output:p2"]);
        assert_eq!(explain("p0")["rules"]["core"], 0);
        bed.flows(&["add", "priority=10,in_port=p0,udp,actions=controller"]);
        let told = explain("p0");
        assert_eq!(
            (&told["verdict"], &told["rules"]["core"]),
            (&"controller".into(), &serde_json::Value::Null)
        );
        // None of these packets was counted.
        assert!(bed.list("").iter().all(|rule| rule["packets"] == 0));
        let text = bed.millrace(&["explain", "udp 10.0.0.9:1 -> 10.0.1.9:2", "--port", "p0"]).stdout;
        let text = String::from_utf8(text).unwrap();
        assert!(
            text.contains("by the kernel plane\nsent to CONTROLLER\nverdict: goes to the controllers\n"),
            "{text}"
        );
    });
}

/// The packet with destination 10.0.2.9 instead of 10.0.1.9.
fn redirected(frame: &Frame) -> Frame {
    let mut frame = frame.clone();
    frame.payload[16..20].copy_from_slice(&[10, 0, 2, 9]);
    frame.payload[26..28].fill(0);
    let checksum = udp_checksum(&frame.payload);
    frame.payload[26..28].copy_from_slice(&checksum.to_be_bytes());
    fix_checksum(&mut frame.payload);
    frame
}

/// Copies that differ, for ports, NORMAL and LOCAL.
#[test]
#[ignore = "needs root"]
fn user_space_does_to_the_last_byte_what_the_kernel_plane_cannot() {
    in_new_namespace(|| {
        let bed = Bed::new("s", "");
        let frame = routable(0, 1);
        let (bytes, routed) = (frame.bytes(), frame.routed(host_mac(1), port_mac(1), &[]));
        let rewritten = redirected(&frame);
        let does = |actions: &str, out: [Option<&[u8]>; 3]| {
            bed.flows(&["add", &format!("in_port=1,ip,actions={actions}")]);
            let rule = &bed.list("")[0];
            assert_eq!((&rule["slow"], rule["why"].is_string()), (&true.into(), true), "{actions}: {rule}");
            for turn in 0..100 {
                bed.wires[0].send(&bytes);
                for (n, frame) in out.iter().enumerate().filter_map(|(n, frame)| Some((n, (*frame)?))) {
                    let got = bed.next(n, Duration::from_secs(5));
                    assert_eq!(got.as_deref(), Some(frame), "{actions}, turn {turn}, at q{n}");
                }
            }
            bed.nothing_more();
        };
        does("output:2,mod_nw_dst:10.0.2.9,output:3", [None, Some(&bytes), Some(&rewritten.bytes())]);
        does("output:3,NORMAL", [None, Some(&routed), Some(&bytes)]);
        does(
            "mod_nw_dst:10.0.2.9,NORMAL,in_port",
            [Some(&rewritten.bytes()), None, Some(&rewritten.routed(host_mac(2), port_mac(2), &[]))],
        );
        does("output:3,LOCAL", [None, Some(&routed), Some(&bytes)]);
        let status = bed.status().unwrap();
        assert_eq!((&status["flows"]["slow_done"], &status["flows"]["slow_lost"]), (&400.into(), &0.into()));
        assert_eq!(bed.reason("rule_slow"), 400);
        assert_eq!(bed.list("")[0]["packets"], 400);

        // A packet that is too long to be handed to a program is lost and counted. Its copies for ports are
        // sent.
        for device in ["p0", "p1", "p2", "q0", "q1", "q2"] {
            run(&format!("ip link set {device} mtu 3498"));
        }
        let long = frame.clone().ip4(|ip| {
            ip.resize(3498, 0);
            ip[2..4].copy_from_slice(&3498_u16.to_be_bytes());
        });
        bed.wires[0].send(&long.bytes());
        assert_eq!(bed.next(2, Duration::from_secs(5)), Some(long.bytes()));
        bed.nothing_more();
        bed.wait_for("the loss", |s| s["flows"]["slow_lost"] == 1);
    });
}

/// The checksum of RFC 768, over a packet whose checksum field is 0.
fn udp_checksum(ip: &[u8]) -> u16 {
    let udp = &ip[20..];
    let mut bytes = ip[12..20].to_vec();
    bytes.extend([0, 17]);
    bytes.extend((udp.len() as u16).to_be_bytes());
    bytes.extend(udp);
    let words = bytes.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Decisions change in turn, with packets before and after each change. Once a change has returned, packets
/// obey it, also from the cache.
#[test]
#[ignore = "needs root"]
fn after_a_change_returns_no_packet_follows_the_old_decision() {
    in_new_namespace(|| {
        let bed = Bed::new("b", "");
        let bytes = routable(0, 1).bytes();
        bed.flows(&["add", "priority=1,in_port=1,actions=output:2"]);
        let above = "priority=9,in_port=1,ip,nw_dst=10.0.1.9";
        let replaced = format!("{above},actions=in_port");
        let above_to_3 = format!("{above},actions=output:3");
        for turn in 0..67 {
            let changes: [(&[&str], usize); 3] = [
                (&["add", &above_to_3], 2),
                (&["mod", "--strict", &replaced], 0),
                (&["del", "--strict", above], 1),
            ];
            for (change, out) in changes {
                bed.flows(change);
                // The flow is cached by the second packet, so that the next change finds it there.
                for packet in 0..5 {
                    bed.wires[0].send(&bytes);
                    let got = bed.next(out, Duration::from_secs(5));
                    assert_eq!(got.as_deref(), Some(&bytes[..]), "turn {turn}, {change:?}, packet {packet}");
                }
                bed.nothing_more();
            }
        }
        let of = |s: &serde_json::Value, what: &str| s["flows"][what].as_u64().unwrap();
        let status = bed.wait_for("all counts", |s| of(s, "cache_hits") + of(s, "cache_misses") == 1005);
        assert!(
            (67 * 9..1005).contains(&of(&status, "cache_hits")),
            "too few or too many cache hits: {}",
            status["flows"]
        );
    });
}

/// Other rules come and go; no packet of a flow is lost or goes elsewhere.
#[test]
#[ignore = "needs root"]
fn rules_come_and_go_while_traffic_flows() {
    in_new_namespace(|| {
        let bed = Bed::new("c", "");
        bed.flows(&["add", "priority=1,in_port=1,actions=output:2"]);
        let file = format!("/tmp/mrfl-{}.flows", std::process::id());
        let lines: String = (0..20_000)
            .map(|i| {
                format!(
                    "in_port=3,udp,nw_src=10.{}.{}.{},tp_dst=53,actions=output:2\n",
                    i >> 16,
                    i >> 8 & 255,
                    i & 255
                )
            })
            .collect();
        std::fs::write(&file, format!("# many\n\n{lines}")).unwrap();
        let bytes = routable(0, 1).bytes();
        let sent = thread::scope(|scope| {
            let changes = scope.spawn(|| {
                assert_eq!(bed.flows(&["add", "--file", &file]), "20000 added\n");
                assert_eq!(bed.list("in_port=3").len(), 20_000);
                assert_eq!(bed.flows(&["del", "in_port=3"]), "20000 deleted\n");
            });
            let mut sent = 0;
            while !changes.is_finished() {
                bed.wires[0].send(&bytes);
                sent += 1;
                assert_eq!(bed.next(1, Duration::from_secs(5)).as_deref(), Some(&bytes[..]), "packet {sent}");
            }
            changes.join().unwrap();
            sent
        });
        std::fs::remove_file(file).unwrap();
        bed.nothing_more();
        let rules = bed.list("");
        assert_eq!((rules.len(), &rules[0]["packets"]), (1, &sent.into()));
        assert!(sent > 100, "only {sent} packets during the changes");
    });
}

#[test]
#[ignore = "needs root"]
fn errors_name_the_thing_and_the_way_out() {
    in_new_namespace(|| {
        let bed = Bed::new("e", "[flows]\nrules = 100\n");
        let says = |words: &[&str], parts: &[&str]| {
            let error = bed.refused(words);
            parts.iter().for_each(|part| {
                assert!(error.contains(part), "{words:?}: the error lacks {part:?}: {error}")
            });
        };
        says(&["add", "in_port=1"], &["line 1", "needs actions", "nothing was changed"]);
        says(
            &["add", "actions=drop", "actions=output:eth7"],
            &["line 2", "eth7", "name of a port: p0, p1, p2", "before it: 1 added"],
        );
        assert_eq!(bed.list("").len(), 1, "the line before the wrong one is applied");
        says(&["del", "priority=90"], &["--strict", "nothing was changed"]);
        says(&["list", "priority=90"], &["rules cannot be listed by it"]);
        assert_eq!(bed.flows(&["del"]), "1 deleted\n");
        in_pieces(&bed);
        says(
            &["add", "in_port=2,actions=drop", "actions=output:9"],
            &["line 2", "no such port", "1 (p0), 2 (p1)", "before it: 1 added"],
        );
        says(&["add", "actions=mod_nw_dst:1.2.3.4"], &["cannot apply", "match what it changes"]);
        says(&["list", "colour=red"], &["colour", "not a field"]);
        says(&["add", "--file", "/nonexistent"], &["/nonexistent"]);
        assert_eq!(bed.flows(&["mod", "in_port=3,actions=drop"]), "no rule was changed\n");
        let many: Vec<_> =
            (0..3000).map(|i| format!("ip,nw_dst=10.9.{}.{},actions=drop", i >> 8, i & 255)).collect();
        let many: Vec<_> = ["add"].into_iter().chain(many.iter().map(String::as_str)).collect();
        says(&many, &["the table is full", "`rules` of [flows]", "room for 100"]);
        says(&["add", "in_port=eth9,actions=drop"], &["in_port=eth9", "name of a port: p0, p1, p2"]);
        says(&["add", "actions=set_core:4999,output:p1"], &["there is no core 4999; there are: 0"]);
    });
}

/// A line after the first piece of a file that cannot be parsed, or not be applied. The lines before it are
/// applied.
fn in_pieces(bed: &Bed) {
    let file = format!("/tmp/mrfl-{}.pieces", std::process::id());
    let comment = format!("#{}\n", "x".repeat(50_000));
    for (last, why) in [("udp,tp_dst=x,actions=drop", "needs a number"), ("actions=output:9", "no such port")]
    {
        let lines =
            format!("in_port=1,actions=drop\n{}in_port=2,actions=drop\n{last}\n", comment.repeat(100));
        std::fs::write(&file, lines).unwrap();
        let error = bed.refused(&["add", "--file", &file]);
        for part in ["line 103 of", last, why, "before it: 2 added"] {
            assert!(error.contains(part), "the error lacks {part:?}: {error}");
        }
        assert_eq!(bed.flows(&["del"]), "2 deleted\n");
    }
    std::fs::remove_file(file).unwrap();
}

#[test]
#[ignore = "needs root"]
fn ports_go_and_come_back_under_rules() {
    in_new_namespace(|| {
        let mut bed = Bed::new("p", "");
        let bytes = routable(0, 1).bytes();
        bed.flows(&["add", "in_port=1,actions=output:2", "in_port=2,actions=flood"]);
        bed.wires[0].send(&bytes);
        bed.comes_out(&[1], &bytes);

        run("ip link del p1");
        bed.wait_for("the port to vanish", |s| s["ports"][1]["problems"].to_string().contains("not there"));
        bed.wires[0].send(&bytes);
        bed.nothing_more_of(&[0, 2]);
        assert_eq!(bed.reason("rule_no_port"), 1);
        assert!(bed.refused(&["add", "in_port=3,actions=output:2"]).contains("no such port"));

        bed.plug(1);
        bed.wires[1] = common::wire::Wire::open("q1");
        bed.wait_for("the port's return", |s| {
            s["ready"] == true && s["ports"][1]["problems"] == serde_json::json!([])
        });
        assert_eq!(bed.program(1), "millrace_flow");
        bed.wires[0].send(&bytes);
        bed.comes_out(&[1], &bytes);
        bed.wires[1].send(&bytes);
        bed.comes_out(&[0, 2], &bytes);

        run("ip link set p1 down");
        bed.wait_for("the port to be down", |s| s["ports"][1]["problems"].to_string().contains("down"));
        bed.wires[0].send(&bytes);
        bed.nothing_more_of(&[0, 2]);
        run("ip link set p1 up");
        bed.wait_for("the port to be up", |s| s["ports"][1]["problems"] == serde_json::json!([]));
        run("ip neigh replace 10.0.1.9 lladdr 02:00:00:00:02:01 dev p1 nud permanent");
        bed.wires[0].send(&bytes);
        bed.comes_out(&[1], &bytes);
    });
}

/// A veth takes no redirected packets while its peer has no NAPI. User space sends there instead.
#[test]
#[ignore = "needs root"]
fn user_space_sends_to_a_port_that_takes_no_redirected_packets() {
    in_new_namespace(|| {
        let bed = Bed::new("d", "");
        let frame = routable(0, 1);
        let (bytes, rewritten) = (frame.bytes(), redirected(&frame).bytes());
        bed.flows(&[
            "add",
            "in_port=1,actions=output:2",
            "in_port=3,ip,actions=mod_nw_dst:10.0.2.9,output:2",
        ]);
        bed.flows(&["add", "priority=60000,in_port=1,tcp,actions=flood"]);
        let tcp = frame.clone().ip4(|ip| ip[9] = 6).bytes();
        let whys =
            || bed.list("").iter().map(|rule| rule["why"].as_str().map(String::from)).collect::<Vec<_>>();
        assert_eq!(whys(), [None, None, None]);
        for (gro, slow) in [("off", true), ("on", false), ("off", true)] {
            let done = bed.reason("rule_slow");
            run(&format!("ethtool -K q1 gro {gro}"));
            let start = Instant::now();
            // While a rule is being changed, it is slow for that reason.
            let is = |why: &Option<String>| match why {
                Some(why) => slow && why.contains("nothing can be redirected"),
                None => !slow,
            };
            while !whys().iter().all(is) {
                assert!(
                    start.elapsed() < Duration::from_secs(10),
                    "GRO {gro}: reasons for slow rules: {:?}",
                    whys()
                );
            }
            bed.wires[0].send(&bytes);
            bed.comes_out(&[1], &bytes);
            bed.wires[2].send(&bytes);
            bed.comes_out(&[1], &rewritten);
            bed.wires[0].send(&tcp);
            bed.comes_out(&[1, 2], &tcp);
            assert_eq!(bed.reason("rule_slow") - done, if slow { 3 } else { 0 });
        }
        assert_eq!(bed.reason("rule_no_port"), 0);
    });
}

#[test]
#[ignore = "needs root"]
fn rules_outlive_larger_tables() {
    in_new_namespace(|| {
        let bed = Bed::new("g", "");
        let bytes = routable(0, 1).bytes();
        bed.flows(&["add", "in_port=1,actions=output:3"]);
        let generation = bed.status().unwrap()["generation"].as_u64().unwrap();
        let batch = format!("/tmp/mrfl-{}.batch", std::process::id());
        let lines: String = (1..20_000_u32)
            .map(|i| {
                format!(
                    "neigh add 172.16.{}.{} lladdr {} dev p1 nud permanent\n",
                    i >> 8,
                    i & 255,
                    host_mac(1)
                )
            })
            .collect();
        std::fs::write(&batch, lines).unwrap();
        run("ip addr add 172.16.255.254/16 dev p1");
        thread::scope(|scope| {
            let neighbours = scope.spawn(|| drop(run(&format!("ip -batch {batch}"))));
            let grown = || bed.status().is_some_and(|s| s["generation"].as_u64() > Some(generation));
            let (mut sent, mut after) = (0, 0);
            while after < 200 && sent < 100_000 {
                bed.wires[0].send(&bytes);
                sent += 1;
                assert_eq!(bed.next(2, Duration::from_secs(5)).as_deref(), Some(&bytes[..]), "packet {sent}");
                if sent % 100 == 0 && after == 0 {
                    after = u32::from(grown());
                } else if after > 0 {
                    after += 1;
                }
            }
            assert!(after >= 200, "the tables did not grow: {}", bed.log());
            neighbours.join().unwrap();
        });
        std::fs::remove_file(batch).unwrap();
        bed.nothing_more();
        assert_eq!(bed.program(0), "millrace_flow");
        // Until then Linux forwards what user space sends to NORMAL.
        bed.wait_for("all neighbours", |status| {
            let routers = status["routers"].as_array();
            routers.is_some_and(|all| all.iter().any(|router| router["neighbours"].as_u64() >= Some(19_999)))
        });
        // Packets that user space sends to NORMAL also use the larger tables.
        let frame = routable(0, 1);
        bed.flows(&["add", "in_port=1,actions=output:3,NORMAL"]);
        bed.wires[0].send(&frame.bytes());
        assert_eq!(bed.next(2, Duration::from_secs(5)), Some(frame.bytes()));
        bed.comes_out(&[1], &frame.routed(host_mac(1), port_mac(1), &[]));
        assert!(bed.status().unwrap()["packets"]["forwarded"].as_u64() > Some(0));
    });
}

#[test]
#[ignore = "needs root"]
fn a_daemon_that_is_killed_leaves_no_rules_to_the_next_and_stop_leaves_nothing() {
    in_new_namespace(|| {
        let mut bed = Bed::new("k", "heartbeat = \"2s\"\n");
        let frame = routable(0, 1);
        let (bytes, routed) = (frame.bytes(), frame.routed(host_mac(1), port_mac(1), &[]));
        let rule = "in_port=1,actions=output:3";
        bed.flows(&["add", rule]);
        bed.kill();
        bed.wires[0].send(&bytes);
        bed.comes_out(&[2], &bytes);
        // After the heartbeat, packets go to the kernel, which routes them.
        thread::sleep(Duration::from_millis(2500));
        bed.wires[0].send(&bytes);
        bed.comes_out(&[1], &routed);

        bed.start();
        assert_eq!((bed.program(0), bed.list("").len()), ("millrace".into(), 0));
        bed.flows(&["add", rule]);
        bed.wires[0].send(&bytes);
        bed.comes_out(&[2], &bytes);
        assert!(bed.millrace(&["stop"]).status.success());
        assert_eq!(bed.program(0), "none");
        bed.wires[0].send(&bytes);
        bed.comes_out(&[1], &routed);
    });
}

#[test]
#[ignore = "needs root"]
fn a_miss_can_drop_packets_without_rules_and_rules_end_by_timeout() {
    in_new_namespace(|| {
        let bed = Bed::new("m", "[flows]\nmiss = \"drop\"\n");
        let bytes = routable(0, 1).bytes();
        bed.wait_for("rules to be in charge", |s| s["flows"]["in_charge"] == true);
        bed.wires[0].send(&bytes);
        bed.nothing_more();
        bed.flows(&["add", "hard_timeout=1,in_port=1,actions=output:3"]);
        bed.wires[0].send(&bytes);
        bed.comes_out(&[2], &bytes);
        bed.wait_for("the rule to end", |s| s["flows"]["rules"] == 0);
        thread::sleep(Duration::from_millis(300));
        bed.wires[0].send(&bytes);
        bed.nothing_more();
    });
}
