//! The exact text that people see.

mod tables;

use super::{super::Explained, *};
use crate::{
    api::{
        capture::CaptureReport,
        export::ExportReport,
        flows::{BucketTaken, ControllerLost, FlowsStatus, OutputReport, RulePassed, RulesReport},
        status::{
            ConditionReport, Difference, ExplainReport, Families, Heartbeat, Packets, PathReport, PortReport,
            ReasonCount, RouterReport, Status, StepReport, TableUse, VerifyResult, Why,
        },
        summary::Summary,
        workers::{Capacity, OutputStand, PathStand, QueueStand, ResourceStand, WorkerStand, WorkersReport},
    },
    base::packet::Headers,
};

fn reason(reason: &str, class: &str, text: &str, packets: u64) -> ReasonCount {
    ReasonCount { reason: reason.into(), class: class.into(), text: text.into(), packets }
}

fn why(text: &str) -> Why {
    Why { code: "any".into(), text: text.into() }
}

fn sample() -> Status {
    let red = RouterReport {
        router: "red".into(),
        id: Some(1),
        why_not: Families {
            ipv4: vec![why("a rule; remove it with: x")],
            ipv6: vec![why("forwarding is off")],
        },
        interfaces: 1,
        weight: 1,
        ..RouterReport::default()
    };
    let host = RouterReport {
        router: "host".into(),
        id: Some(0),
        accelerated: Families { ipv4: true, ipv6: true },
        interfaces: 2,
        routes: Families { ipv4: 901_899, ipv6: 3 },
        packets: Packets { forwarded: 123_456, forwarded_bytes: 7_901_184, passed: 12, dropped: 3, taken: 0 },
        ns_per_packet: Some(211.6),
        weight: 20,
        share: Some(0.613),
        cut: 2,
        ..RouterReport::default()
    };
    Status {
        version: "0.1.0".into(),
        pid: 42,
        instance: None,
        ready: true,
        problem: None,
        summary: Summary::default(),
        conditions: vec![
            condition("core", "queue 1 of eth2 is not moved to core 3: refused"),
            ConditionReport {
                subject: "port eth2".into(),
                ..condition("port", "port eth2 is not trusted: LRO is on")
            },
            ConditionReport {
                is_note: true,
                ..condition("policy", "policy changes are seen late: legacy iptables: no control groups")
            },
        ],
        uptime_s: 3725,
        at_s: 1.0,
        heartbeat: Heartbeat { timeout_s: 30.0, age_s: Some(0.42) },
        generation: 2,
        packets: Packets { forwarded: 123_456, forwarded_bytes: 7_901_184, passed: 12, dropped: 3, taken: 0 },
        lost: 9,
        ns_per_packet: Some(211.6),
        ports: vec![
            PortReport {
                port: "eth1".into(),
                number: 1,
                ifindex: 2,
                mode: "native".into(),
                ..PortReport::default()
            },
            PortReport {
                port: "eth2".into(),
                number: 2,
                ifindex: 13,
                mode: "generic".into(),
                problems: vec![why("LRO is on")],
                lost: vec![
                    reason("tx_ring_full", "lost", "the ring was full", 8),
                    reason("port_down", "lost", "the port was down", 1),
                ],
                note: Some(why("generic mode")),
                classifier: Some("none".into()),
                ..PortReport::default()
            },
        ],
        routers: vec![host, red],
        reasons: vec![
            reason("ttl_exceeded", "exception", "TTL or hop limit is 1 or less", 12),
            reason("tx_ring_full", "lost", "the ring was full", 8),
            reason("policed", "drop", "over the limit", 3),
        ],
        workers: WorkersReport::default(),
        capture: CaptureReport { running: true, packets: 1234, over_rate: 2, no_room: 3 },
        export: Some(ExportReport { every: 1000, samples: 120, lost: 1, ..ExportReport::default() }),
        tables: vec![TableUse { table: "fib".into(), used: 4096, capacity: 16384 }],
        routes: Families { ipv4: 901_899, ipv6: 3 },
        neighbours: 5,
        flows: FlowsStatus {
            core_rules: 0,
            names: Default::default(),
            rules: 3,
            file: None,
            in_charge: true,
            why_not: None,
            cache_hits: 90,
            cache_misses: 10,
            slow_done: 7,
            slow_lost: 1,
            controller_lost: ControllerLost::default(),
        },
        paths: Vec::new(),
    }
}

fn condition(kind: &str, sentence: &str) -> ConditionReport {
    ConditionReport {
        kind: kind.into(),
        sentence: sentence.into(),
        age_s: 90.0,
        ..ConditionReport::default()
    }
}

#[test]
fn status_of_a_running_daemon() {
    let expected = "\
forwarding; router red: IPv4 and IPv6 on the kernel path: a rule
daemon      millrace 0.1.0, process 42, up 1 h 2 min
heartbeat   tables confirmed 0.4 s ago; without a daemon forwarding goes on for 30 s
packets     123456 forwarded (7.5 MiB), 12 to the kernel, 3 dropped
            9 of those forwarded were lost at egress ports
cost        212 ns for each forwarded packet, without transmission (sampled)
tables      901899 IPv4 and 3 IPv6 routes, 5 neighbours; generation 2
flow rules  3, before routing; 90 % of packets decided from the cache
            user space did 7 packets and lost 1
capture     1234 packets, 5 missing
export      120 samples, 1 lost; 1 in 1000 packets; collectors: 0

PORT  NUMBER  IFINDEX  MODE     STATE        RX PACKETS  TX PACKETS  LOST
eth1       1        2  native   trusted               0           0     -
eth2       2       13  generic  not trusted           0           0     9

ROUTER  IPV4    IPV6    INTERFACES  ROUTES4  ROUTES6  FORWARDED  TO KERNEL  DROPPED  NS/PACKET
host    fast    fast             2   901899        3     123456         12        3        212
red     kernel  kernel           1        0        0          0          0        0          -

REASON        PACKETS  WENT           MEANING
ttl_exceeded       12  to the kernel  TTL or hop limit is 1 or less
tx_ring_full        8  lost           the ring was full
policed             3  dropped        over the limit

TABLE  USED  CAPACITY  FULL
fib    4096     16384  25 %

problems:
  queue 1 of eth2 is not moved to core 3: refused (for 1 min 30 s)
  port eth2: LRO is on (for 1 min 30 s)
notes:
  policy changes are seen late: legacy iptables: no control groups (for 1 min 30 s)
  port eth2: generic mode
  router host: 2 of its dropped packets were over its share of a full core
  router red: IPv4: a rule; remove it with: x
  router red: IPv6: forwarding is off
";
    assert_eq!(status(&sample()), expected);
}

#[test]
fn status_with_a_problem_says_it_first() {
    let mut s = sample();
    (s.ready, s.problem, s.instance) = (false, Some(why("cannot read the kernel's state")), Some("x".into()));
    // A consequence of a problem of a port is not listed again.
    let untrusted = Why { code: "port_not_trusted".into(), text: "port eth2 is not trusted".into() };
    s.routers[1].why_not.ipv4.push(untrusted.clone());
    assert!(
        !status(&s).contains("port eth2 is not trusted") && routers(&s.routers).contains(&untrusted.text)
    );
    let text = status(&s);
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("NOT READY: cannot read the kernel's state"));
    assert_eq!(lines.next(), Some("daemon      millrace 0.1.0, instance x, process 42, up 1 h 2 min"));
}

/// A router with three interfaces, of which these are left to the kernel.
fn partly(left: &[(&str, Families<Vec<Why>>)]) -> RouterReport {
    let one = |(name, why_not): &(&str, Families<Vec<Why>>)| LeftInterface {
        interface: name.to_string(),
        why_not: why_not.clone(),
    };
    RouterReport {
        router: "host".into(),
        interfaces: 3,
        accelerated: Families {
            ipv4: left.iter().all(|(_, why)| why.ipv4.is_empty()),
            ipv6: left.iter().all(|(_, why)| why.ipv6.is_empty()),
        },
        left_to_kernel: left.iter().map(one).collect(),
        ..RouterReport::default()
    }
}

#[test]
fn a_router_with_an_interface_on_the_kernel_path_is_not_called_fast() {
    let ipv4 = || Families { ipv4: vec![why("a tbf qdisc")], ipv6: Vec::new() };
    let told = |r: RouterReport| {
        let text = super::routers(&[r]);
        let row = text.lines().nth(1).unwrap().split_whitespace().map(String::from).collect::<Vec<_>>();
        (row[1].clone(), row[2].clone(), text)
    };
    let (v4, v6, text) = told(partly(&[("eth2", ipv4())]));
    assert_eq!((v4.as_str(), v6.as_str()), ("partly", "fast"));
    assert!(text.ends_with("\nnotes:\n  interface eth2: IPv4: a tbf qdisc\n"), "{text}");
    let all = told(partly(&[("eth1", ipv4()), ("eth2", ipv4()), ("eth3", ipv4())]));
    assert_eq!(all.0, "kernel");
    let many: Vec<_> = (0..1000).map(|i| format!("m{i}")).collect();
    let many: Vec<_> = many.iter().map(|name| (name.as_str(), ipv4())).collect();
    let text = told(RouterReport { interfaces: 1001, ..partly(&many) }).2;
    let all = "notes:\n  interfaces m0, m1, m2 and 997 more: IPv4: a tbf qdisc\n";
    assert!(text.ends_with(all), "{text}");
}

#[test]
fn a_route_of_a_router_that_is_not_accelerated_is_not_called_forwarded() {
    let hop = HopReport {
        action: "forward".into(),
        interface: Some("eth2".into()),
        next_hop: Some("10.0.2.9".into()),
        mac: Some("02:00:00:00:00:09".into()),
        ..HopReport::default()
    };
    let mut report = RouteReport {
        router: "host".into(),
        address: "10.9.0.1".into(),
        why_not: vec![why("a rule")],
        hops: vec![hop],
        ..RouteReport::default()
    };
    let expected = "\
10.9.0.1 in router host:
  to the kernel: IPv4 of router host is not accelerated: a rule
  not used, but in the table: forwarded via 10.0.2.9 on eth2, MAC 02:00:00:00:00:09
";
    assert_eq!(route(&report), expected);
    let why_not = Families { ipv4: vec![why("a tbf qdisc")], ipv6: Vec::new() };
    report.left_to_kernel = vec![LeftInterface { interface: "eth1".into(), why_not }];
    report.why_not.clear();
    let expected = "\
10.9.0.1 in router host:
  forwarded via 10.0.2.9 on eth2, MAC 02:00:00:00:00:09
  to the kernel if it arrives on interface eth1: a tbf qdisc
";
    assert_eq!(route(&report), expected);
}

#[test]
fn routes() {
    let hop = |action: &str| HopReport { action: action.into(), ..HopReport::default() };
    let forward = HopReport {
        interface: Some("eth2".into()),
        next_hop: Some("10.0.2.9".into()),
        mac: Some("02:00:00:00:00:09".into()),
        mtu: Some(1500),
        share: Some(192),
        ..hop("forward")
    };
    let pass = HopReport { reason: Some(why("no route")), share: Some(64), ..hop("pass") };
    let report = |hops| RouteReport {
        router: "host".into(),
        address: "10.9.0.1".into(),
        prefix: Some("10.9.0.0/16".into()),
        hops,
        ..RouteReport::default()
    };
    assert_eq!(
        route(&report(vec![forward.clone()])),
        "10.9.0.1 in router host (by 10.9.0.0/16):\n  \
         forwarded via 10.0.2.9 on eth2, MAC 02:00:00:00:00:09, MTU 1500\n"
    );
    assert_eq!(
        route(&report(vec![forward, pass])),
        "10.9.0.1 in router host (by 10.9.0.0/16):\n  \
         75% of flows: forwarded via 10.0.2.9 on eth2, MAC 02:00:00:00:00:09, MTU 1500\n  \
         25% of flows: to the kernel: no route\n"
    );
}

#[test]
fn verification() {
    let compared = Families { ipv4: 10, ipv6: 2 };
    let left = [("complex_route".to_string(), 3)].into();
    let blank = || VerifyRouter { result: VerifyResult::Verified, ..VerifyRouter::default() };
    let mut router = VerifyRouter { router: "host".into(), compared, asked: 50, left, ..blank() };
    let why_not = Families { ipv4: vec![why("a rule")], ipv6: Vec::new() };
    let red = VerifyRouter { router: "red".into(), why_not, ..blank() };
    let expected = "\
ROUTER  PREFIXES4  PREFIXES6  ASKED  DIFFERENCES  RESULT
host           10          2     50            0  verified
red             0          0      0            0  verified
  host: left to the kernel (complex_route): 3 addresses
  red: IPv4 is not accelerated, so the table is not used: IPv4: a rule
the fast tables agree with the kernel's
PREFIXES are those of the kernel's routes and its own addresses; ROUTES of `millrace routers` are those in \
                    the fast table; ASKED are the addresses that the kernel was asked about
";
    let report = VerifyReport { routers: vec![router.clone(), red], ..VerifyReport::default() };
    assert_eq!(verify(&report), expected);
    router.differences =
        vec![Difference { prefix: "10.7.0.0/16".into(), kernel: "a".into(), fast: "no_route".into() }];
    let text = verify(&VerifyReport { routers: vec![router], differences: 1, unverified: 0 });
    assert!(
        text.contains("  host: 10.7.0.0/16: the kernel has a, the fast table no_route\n1 differences\n"),
        "{text}"
    );
}

#[test]
fn nothing_compared_is_not_agreement() {
    let unused = VerifyRouter { result: VerifyResult::NotUsed, ..VerifyRouter::default() };
    let text = verify(&VerifyReport { routers: vec![unused], ..VerifyReport::default() });
    assert!(text.contains("\nnothing was compared\n") && !text.contains("agree"), "{text}");
}

#[test]
fn verification_names_routers_that_could_not_be_verified() {
    let router = |name: &str, result, why: &str, changing| VerifyRouter {
        router: name.into(),
        result,
        why: Some(why.into()).filter(|why: &String| !why.is_empty()),
        changing,
        ..VerifyRouter::default()
    };
    let routers = vec![
        router("host", VerifyResult::Verified, "", 0),
        router("red", VerifyResult::Changing, "it changed all the time", 5),
        router("blue", VerifyResult::OverLimits, "it has more than 9 routes", 0),
    ];
    let text = verify(&VerifyReport { routers: routers.clone(), differences: 0, unverified: 2 });
    let expected = "\
ROUTER  PREFIXES4  PREFIXES6  ASKED  DIFFERENCES  RESULT
host            0          0      0            0  verified
red             0          0      0            0  changing
blue            0          0      0            0  over limits
  red: could not be verified: it changed all the time (5 addresses)
  blue: could not be verified: it has more than 9 routes
the other fast tables agree with the kernel's
could not be verified: red, blue
PREFIXES";
    assert!(text.starts_with(expected), "{text}");
    let text = verify(&VerifyReport { routers, differences: 2, unverified: 2 });
    assert!(text.contains("\n2 differences\ncould not be verified: red, blue\n"), "{text}");
}

#[test]
fn explanation_shows_steps_verdict_and_what_was_rewritten() {
    let before = Headers {
        destination_mac: "02:00:00:00:00:01".into(),
        source_mac: "02:00:00:00:00:fe".into(),
        vlan: None,
        ether_type: 0x0800,
        source: None,
        destination: None,
        ttl: Some(64),
        checksum: Some(0x1234),
        length: 60,
    };
    let after = Headers {
        destination_mac: "02:00:00:00:00:09".into(),
        vlan: Some("10".into()),
        ttl: Some(63),
        checksum: Some(0x1334),
        length: 46,
        ..before.clone()
    };
    let step = |text: &str, detail| StepReport { text: text.into(), detail };
    let report = ExplainReport {
        port: "eth1".into(),
        notes: vec!["this box sent it".into()],
        steps: vec![
            step("arrived on port eth1: trusted", false),
            step("route 10.0.2.0/24 via 10.0.2.2 on eth2", false),
            step("table block 3 says: next hop 5", true),
            step("forwarded", false),
        ],
        verdict: "forward".into(),
        reason: None,
        egress: Some("eth2".into()),
        before: Some(before.clone()),
        after: Some(after.clone()),
        ..ExplainReport::default()
    };
    let expected = "note: this box sent it
  1. arrived on port eth1: trusted
  2. route 10.0.2.0/24 via 10.0.2.2 on eth2
  3. forwarded
verdict: forwarded by port eth2
  destination MAC: 02:00:00:00:00:01 -> 02:00:00:00:00:09
  VLAN: - -> 10
  TTL: 64 -> 63
  header checksum: 0x1234 -> 0x1334
  frame bytes: 60 -> 46
";
    let report = Explained::Report(Box::new(report));
    assert_eq!(explanations(std::slice::from_ref(&report), false), expected);
    assert!(
        explanations(std::slice::from_ref(&report), true).contains("  3. table block 3 says: next hop 5\n")
    );
    let not = || Explained::Not { error: "the capture lacks its end".into() };
    let both = explanations(&[not(), report, not()], false);
    let sums = "PACKETS  VERDICT\n      2  not explained\n      1  forwarded by port eth2\n\npacket 1\n";
    assert!(both.starts_with(sums), "{both}");
    assert!(both.ends_with("\npacket 3\nnot explained: the capture lacks its end\n"), "{both}");
}

#[test]
fn explanation_shows_the_rules_first() {
    let before = Headers {
        destination_mac: "02:00:00:00:00:01".into(),
        source_mac: "02:00:00:00:00:fe".into(),
        vlan: None,
        ether_type: 0x0800,
        source: Some([10, 0, 0, 1].into()),
        destination: Some([10, 0, 0, 2].into()),
        ttl: Some(64),
        checksum: Some(0x1234),
        length: 60,
    };
    let after = Headers { destination: Some([10, 0, 9, 9].into()), ..before.clone() };
    let output = |to: &str, lost: Option<&str>, headers: &Headers| OutputReport {
        to: to.into(),
        lost: lost.map(String::from),
        headers: Some(headers.clone()),
        frame: String::new(),
    };
    let rules = RulesReport {
        notes: vec!["this assumes that meter 6 lets it pass".into()],
        rules: vec![
            RulePassed { table: 16, flow: Some("udp actions=set_core:1".into()), ..RulePassed::default() },
            RulePassed {
                table: 0,
                flow: Some("priority=9,ip actions=goto_table:2".into()),
                ..RulePassed::default()
            },
            RulePassed { table: 2, ..RulePassed::default() },
        ],
        buckets: vec![BucketTaken { group: 5, bucket: 1 }],
        slow: true,
        why: Some("its copies differ".into()),
        core: None,
        outputs: vec![
            output("NORMAL", None, &after),
            output("eth3", Some("a controller has set NO_FWD"), &before),
        ],
    };
    let report = ExplainReport {
        notes: vec!["guessed".into()],
        rules: Some(rules),
        steps: vec![StepReport { text: "forwarded".into(), detail: false }],
        verdict: "forward".into(),
        egress: Some("eth2".into()),
        before: Some(before.clone()),
        after: Some(Headers { ttl: Some(63), ..after }),
        ..ExplainReport::default()
    };
    let expected = "note: guessed
note: this assumes that meter 6 lets it pass
core table: udp actions=set_core:1
table 0: priority=9,ip actions=goto_table:2
table 2: no rule matches
group 5: bucket 1
by user space: its copies differ
sent to NORMAL
  destination: 10.0.0.2 -> 10.0.9.9
sent to eth3, where it is lost: a controller has set NO_FWD
  1. forwarded
verdict: forwarded by port eth2
  destination: 10.0.0.2 -> 10.0.9.9
  TTL: 64 -> 63
";
    assert_eq!(explanations(&[Explained::Report(Box::new(report))], false), expected);
    let fast = RulesReport { core: Some(1), ..RulesReport::default() };
    let dropped = ExplainReport { rules: Some(fast), verdict: "drop".into(), ..ExplainReport::default() };
    let text = explanations(&[Explained::Report(Box::new(dropped))], false);
    assert!(text.starts_with("by the kernel plane, on core 1\nverdict: "), "{text}");
    let only = ExplainReport { verdict: "controller".into(), ..ExplainReport::default() };
    assert_eq!(
        explanations(&[Explained::Report(Box::new(only))], false),
        "verdict: goes to the controllers\n"
    );
}

#[test]
fn rules_that_are_not_in_charge_say_why() {
    let flows = FlowsStatus {
        rules: 1,
        why_not: Some(why("nobody is connected")),
        controller_lost: ControllerLost { no_controller: 4, over_rate: 0, not_read: 2 },
        ..FlowsStatus::default()
    };
    let packets = Packets { taken: 5, ..Packets::default() };
    let reasons = vec![reason("rule_controller", "taken", "to the controllers", 5)];
    let text = status(&Status { flows, packets, reasons, ..Status::default() });
    for line in [
        "packets     0 forwarded (0 B), 0 to the kernel, 5 taken by user space, 0 dropped\n",
        "flow rules  1, NOT IN CHARGE, packets are routed\n",
        "problems:\n  flow rules are not in charge: nobody is connected\n",
        "  packets lost to controllers: 4 because none was connected, 2 because none read fast enough\n",
        "rule_controller        5  to user space  to the controllers\n",
    ] {
        assert!(text.contains(line), "{text:?} lacks {line:?}");
    }
}

#[test]
fn controllers_shows_connections_and_how_earlier_ones_ended() {
    let mut report = ControllersReport::default();
    assert_eq!(
        controllers(&report),
        "no controllers; set them with --controller, or with `controllers` of [openflow] in the configuration\n\
         flow rules  none\n\
         failing     no fail mode, because no controller is dialled: rules always apply\n"
    );
    let connection = Connection {
        peer: "tcp:127.0.0.1:5".into(),
        age_s: 61.0,
        version: Some("1.3".into()),
        role: "equal".into(),
        messages: 3,
        packet_ins: 2,
        packet_ins_dropped: 1,
        unsaid: 0,
        unsent_bytes: 0,
    };
    let target = |target: &str, connections, end: &str, age_s| ControllerReport {
        target: target.into(),
        listening: target.starts_with('p').then(|| "127.0.0.1:6653".parse().unwrap()),
        connections,
        attempts: 0,
        refused: 0,
        last_end: Some(end.into()),
        last_end_age_s: Some(age_s),
    };
    report.controllers = vec![
        target("tcp:a:6653", vec![], "connecting: Connection refused", 3.0),
        target("ptcp:6653:127.0.0.1", vec![connection], "closed by the peer", 125.0),
    ];
    report.fail = Some("standalone".into());
    (report.rules, report.why_not) = (2, Some(why("nobody is connected")));
    assert_eq!(
        controllers(&report),
        "\
TARGET               PEER             VERSION  ROLE   FOR        MESSAGES  PACKET-INS  DROPPED
tcp:a:6653           not connected          -  -      -                 -           -        -
ptcp:6653:127.0.0.1  tcp:127.0.0.1:5      1.3  equal  1 min 1 s         3           2        1
  tcp:a:6653: 3 s ago: connecting: Connection refused
  ptcp:6653:127.0.0.1: an earlier connection, 2 min 5 s ago: closed by the peer
flow rules  2, NOT IN CHARGE, packets are routed: nobody is connected
failing     fail mode standalone
"
    );
}

#[test]
fn spans_and_sizes() {
    assert_eq!([span(59), span(61), span(3600), span(90_000)], ["59 s", "1 min 1 s", "1 h 0 min", "1 d 1 h"]);
    assert_eq!([size(1023), size(1024), size(u64::MAX)], ["1023 B", "1.0 KiB", "16.0 EiB"]);
    assert_eq!(
        stop(&StopReport::default()),
        "nothing to do: no program or pin of this instance is in the kernel\n"
    );
}

#[test]
fn status_shows_paths_and_workers() {
    let path = |name: &str, why_not: Option<&str>| PathReport {
        path: name.into(),
        router: Some("red".into()),
        why_not: why_not.map(why),
        otherwise: "drop".into(),
        packets: 12,
        lost: vec![reason("path_ring_full", "drop", "full", 3)],
        dropped: vec![reason("path_no_worker", "drop", "none", 4), reason("path_unsure", "drop", "late", 1)],
        ..PathReport::default()
    };
    let mut run = PathStand::default();
    (run.worker, run.share, run.stopped) = (3, 0.256, Some("its chain panicked".into()));
    run.out = [("eth1".into(), 4), ("eth2".into(), 2)].into();
    run.up = [("ttl_exceeded".into(), 2)].into();
    run.dropped = [("policed".into(), 1)].into();
    (run.worker_panicked, run.stopped_packets) = (20, 300);
    let paths = vec![
        PathReport { run: Some(run), ..path("vpn", None) },
        path("late", Some("its port eth9 is not there")),
    ];
    let mut workers = WorkersReport::default();
    let silent = Some("the worker on core 2 does not answer".into());
    let output = |dropped_full, dropped_closed| OutputStand {
        name: "eth2".into(),
        sent_packets: 90,
        dropped_full,
        dropped_closed,
        ..OutputStand::default()
    };
    workers.workers = vec![WorkerStand { silent, outputs: vec![output(3, 0)], ..WorkerStand::default() }];
    workers.closed_outputs = vec![output(0, 4)];
    let queue = |queue, fault: Option<&str>| QueueStand {
        name: "eth1".into(),
        queue,
        copies_because: Some("no driver support".into()),
        not_polled_because: Some("why not".into()),
        fault: fault.map(Into::into),
        ..QueueStand::default()
    };
    workers.queues = vec![queue(0, None), queue(1, Some("the port is down"))];
    let resource = |resource: &str, counted, basis: &str| ResourceStand {
        resource: resource.into(),
        counted,
        basis: basis.into(),
        ..ResourceStand::default()
    };
    let io = Capacity { per_second: Some(1_250_000_000), basis: "as [experimental] io_mbps says".into() };
    workers.resources = vec![
        resource("CPU cycles", true, "the clock"),
        ResourceStand { capacity: io, used: Some(0.93), ..resource("I/O bandwidth", true, "bytes") },
        resource("cache misses", false, "not known: why"),
    ];
    let worker = |core, share: &str| WorkerStand { core, share: share.into(), ..WorkerStand::default() };
    let used = [("CPU cycles".into(), 0.5), ("I/O bandwidth".into(), 0.93)].into();
    workers.workers.push(WorkerStand { used, ..worker(3, "I/O bandwidth") });
    workers.workers.push(worker(4, "CPU cycles"));
    workers.switch.not_calibrated = Some("FILE is not there".into());
    (workers.up.all.queue_full, workers.up.all.failed) = (5, 6);
    let text = status(&Status { paths, workers, ..Status::default() });
    let told = "\
problems:
  path vpn: it is stopped: its chain panicked
  the worker on core 2 does not answer
  port eth1: workers, queue 1: the port is down
notes:
  path late: it has no packets: its port eth9 is not there
  cache misses of paths: not known: why
  the cost of packets includes switches between paths: FILE is not there (`millrace calibrate` measures them)
  port eth1: packets are copied for workers: no driver support
  port eth1: workers do not poll it: why not
  port eth2: 7 packets that workers sent were lost on their way out
  11 packets that paths passed up did not reach the kernel: too many waited for 5, and it refused 6
";
    assert!(text.ends_with(told), "{text}");
    let lines = "\
resource    I/O bandwidth: 93 % used of 1.250 GB/s (as [experimental] io_mbps says)
worker      core 3: paths share I/O bandwidth; recently used: 50 % of CPU cycles, 93 % of I/O bandwidth
worker      core 4: paths share CPU cycles
";
    assert!(text.contains(lines), "{text}");
    let table = "\
PATH  ROUTER  PORT  CORE  SHARE  PACKETS   OUT  UP  DROPPED  LOST  OTHERWISE
vpn   red     all      3   26 %  12          6   2      321     3  5 drop [1]
late  red     all      -      -  inactive    -   -        -     3  5 drop [1]
  [1] 4 path_no_worker, 1 path_unsure
";
    assert!(text.contains(table), "{text}");
}
