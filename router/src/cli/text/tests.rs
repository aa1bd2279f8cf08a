//! What people see, letter by letter.

use super::*;
use crate::daemon::report::{Difference, Heartbeat, Packets, TableUse, VerifyRouter};

fn reason(reason: &str, class: &str, text: &str, packets: u64) -> ReasonCount {
    ReasonCount { reason: reason.into(), class: class.into(), text: text.into(), packets }
}

fn sample() -> Status {
    let red = RouterReport {
        name: "red".into(),
        router: Some(1),
        why_not: Families { ipv4: vec!["a rule".into()], ipv6: vec!["forwarding is off".into()] },
        interfaces: 1,
        ..RouterReport::default()
    };
    let host = RouterReport {
        name: "host".into(),
        router: Some(0),
        accelerated: Families { ipv4: true, ipv6: true },
        interfaces: 2,
        routes: Families { ipv4: 901_899, ipv6: 3 },
        packets: Packets { forwarded: 123_456, forwarded_bytes: 7_901_184, passed: 12, dropped: 3 },
        ns_per_packet: Some(211.6),
        ..RouterReport::default()
    };
    Status {
        version: "0.1.0".into(),
        pid: 42,
        instance: None,
        ready: true,
        problem: None,
        troubles: Vec::new(),
        uptime_s: 3725,
        heartbeat: Heartbeat { timeout_s: 30.0, age_s: Some(0.42) },
        generation: 2,
        packets: Packets { forwarded: 123_456, forwarded_bytes: 7_901_184, passed: 12, dropped: 3 },
        lost: 9,
        ns_per_packet: Some(211.6),
        ports: vec![
            PortReport { name: "eth1".into(), ifindex: 2, mode: "native".into(), ..PortReport::default() },
            PortReport {
                name: "eth2".into(),
                ifindex: 13,
                mode: "generic".into(),
                problems: vec!["LRO is on".into()],
                lost: vec![
                    reason("tx_ring_full", "lost", "the ring was full", 8),
                    reason("port_down", "lost", "the port was down", 1),
                ],
                note: Some("generic mode".into()),
                ..PortReport::default()
            },
        ],
        routers: vec![host, red],
        reasons: vec![
            reason("ttl_exceeded", "exception", "TTL or hop limit is 1 or less", 12),
            reason("tx_ring_full", "lost", "the ring was full", 8),
            reason("policed", "drop", "over the limit", 3),
        ],
        tables: vec![TableUse { table: "fib".into(), used: 4096, capacity: 16384 }],
        routes: Families { ipv4: 901_899, ipv6: 3 },
        neighbours: 5,
    }
}

#[test]
fn status_of_a_running_daemon() {
    let expected = "\
millrace 0.1.0, process 42, up 1 h 2 min: forwarding
problem     port eth2 is not trusted: LRO is on
note        port eth2: generic mode
heartbeat   tables confirmed 0.4 s ago; without a daemon forwarding goes on for 30 s
packets     123456 forwarded (7.5 MiB), 212 ns each without transmit (sampled), 12 to the kernel, 3 dropped; 9 of those forwarded were lost at the egress port
tables      901899 IPv4 and 3 IPv6 routes, 5 neighbours; generation 2

PORT  DEVICE  MODE                            LOST  PROBLEMS
eth1       2  native                             -  -
eth2      13  generic  8 tx_ring_full, 1 port_down  LRO is on

ROUTER  IPV4    IPV6    INTERFACES  ROUTES4  ROUTES6  FORWARDED  TO KERNEL  DROPPED  NS/PACKET
host    fast    fast             2   901899        3     123456         12        3        212
red     kernel  kernel           1        0        0          0          0        0          -
  red: IPv4: a rule
  red: IPv6: forwarding is off

REASON        PACKETS  WENT           WHY
ttl_exceeded       12  to the kernel  TTL or hop limit is 1 or less
tx_ring_full        8  lost           the ring was full
policed             3  dropped        over the limit

TABLE  USED  CAPACITY  FULL
fib    4096     16384   25%
";
    assert_eq!(status(&sample()), expected);
}

#[test]
fn status_with_a_problem_says_it_first() {
    let mut s = sample();
    (s.ready, s.problem, s.instance) =
        (false, Some("cannot read the kernel's state".into()), Some("x".into()));
    let text = status(&s);
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("millrace 0.1.0, instance x, process 42, up 1 h 2 min: NOT READY"));
    assert_eq!(lines.next(), Some("problem     cannot read the kernel's state"));
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
    let pass = HopReport { reason: Some("no route".into()), share: Some(64), ..hop("pass") };
    let report = |hops| RouteReport {
        router: "host".into(),
        address: "10.9.0.1".into(),
        prefix: Some("10.9.0.0/16".into()),
        hops,
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
    let mut router = VerifyRouter { router: "host".into(), compared, differences: Vec::new() };
    assert_eq!(
        verify(&VerifyReport { routers: vec![router.clone()], differences: 0 }),
        "ROUTER  IPV4  IPV6  DIFFERENCES\nhost      10     2            0\nthe fast tables agree with the kernel's\n"
    );
    router.differences =
        vec![Difference { prefix: "10.7.0.0/16".into(), kernel: "a".into(), fast: "no_route".into() }];
    let text = verify(&VerifyReport { routers: vec![router], differences: 1 });
    assert!(
        text.ends_with("  host: 10.7.0.0/16: the kernel says a, the fast table no_route\n1 differences\n"),
        "{text}"
    );
}

#[test]
fn explanation_shows_steps_verdict_and_what_was_rewritten() {
    let before = Headers {
        destination_mac: "02:00:00:00:00:01".into(),
        source_mac: "02:00:00:00:00:fe".into(),
        vlan: "-".into(),
        ether_type: 0x0800,
        source: None,
        destination: None,
        ttl: Some(64),
        checksum: Some(0x1234),
        length: 60,
    };
    let after = Headers {
        destination_mac: "02:00:00:00:00:09".into(),
        vlan: "10".into(),
        ttl: Some(63),
        checksum: Some(0x1334),
        length: 46,
        ..before.clone()
    };
    let report = ExplainReport {
        port: "eth1".into(),
        steps: vec!["arrived on port eth1: trusted".into(), "forwarded".into()],
        verdict: "forward".into(),
        reason: None,
        egress: Some("eth2".into()),
        before: Some(before),
        after: Some(after),
    };
    let expected = "  1. arrived on port eth1: trusted
  2. forwarded
verdict: forwarded by port eth2
  destination MAC: 02:00:00:00:00:01 -> 02:00:00:00:00:09
  VLAN: - -> 10
  TTL: 64 -> 63
  header checksum: 0x1234 -> 0x1334
  frame bytes: 60 -> 46
";
    let report = Explained::Report(Box::new(report));
    assert_eq!(explanations(std::slice::from_ref(&report)), expected);
    let not = Explained::Not { error: "captured without its end".into() };
    let both = explanations(&[report, not]);
    assert!(both.starts_with("packet 1\n  1. arrived"), "{both}");
    assert!(both.ends_with("\npacket 2\nnot explained: captured without its end\n"), "{both}");
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
