//! The first line of `status`, and tables: what fits, and what is said once.

use super::*;
use crate::api::status::InterfaceReport;

#[test]
fn the_first_line_names_what_is_not_fast_and_fits() {
    let of = |change: fn(&mut Status)| {
        let mut s = Status { ready: true, routers: vec![sample().routers.remove(0)], ..Status::default() };
        change(&mut s);
        status(&s).lines().next().unwrap().to_owned()
    };
    assert_eq!(of(|_| ()), "forwarding; IPv4 and IPv6 of the router are on the fast path");
    assert_eq!(of(|s| s.routers.clear()), "forwarding; no router has an interface on a port");
    let three = of(|s| s.routers = vec![s.routers[0].clone(), s.routers[0].clone(), s.routers[0].clone()]);
    assert_eq!(three, "forwarding; IPv4 and IPv6 of all 3 routers are on the fast path");
    let one = of(|s| s.routers[0].why_not.ipv4 = vec!["rule 7 may drop; see it with: nft list".into()]);
    assert_eq!(one, "forwarding; router host: IPv4 on the kernel path: rule 7 may drop");
    let ruled = of(|s| s.routers[0].ruled.ipv6 = true);
    assert_eq!(
        ruled,
        "forwarding; router host: some IPv6 packets on the kernel path: firewall rules may affect them"
    );
    let long = of(|s| {
        s.routers[0].why_not.ipv4 = vec!["x".repeat(500).into()];
        s.routers[0].ruled.ipv6 = true;
    });
    assert_eq!(long.len(), 100);
    assert!(long.ends_with("...; 1 more below"), "{long}");
    // What is against policy comes before what is slow.
    let rules = of(|s| {
        s.routers[0].ruled.ipv6 = true;
        s.flows.rules = 1;
    });
    assert_eq!(rules, "forwarding; flow rules are not in charge, so packets are routed; 1 more below");
    // Linux forwards no such packets either.
    let off = of(|s| {
        let why_not = Families {
            ipv4: Vec::new(),
            ipv6: vec![Why { code: "forwarding_off".into(), text: "IPv6 forwarding is off".into() }],
        };
        s.routers[0].left_to_kernel = vec![LeftInterface { interface: "eth1".into(), why_not }];
    });
    assert_eq!(off, "forwarding; IPv4 and IPv6 of the router are on the fast path");
    // Nor if the packets have another reason, too.
    let off = of(|s| {
        let router = &mut s.routers[0];
        router.accelerated.ipv6 = false;
        router.why_not.ipv6 =
            vec!["a rule".into(), Why { code: "forwarding_off".into(), text: "off".into() }];
    });
    assert_eq!(off, "forwarding; IPv4 of the router is on the fast path");
    let off = of(|s| {
        let why = vec![Why { code: "forwarding_off".into(), text: "off".into() }];
        s.routers[0].why_not = Families { ipv4: why.clone(), ipv6: why };
        s.routers[0].accelerated = Families::default();
    });
    assert_eq!(off, "forwarding; Linux forwards nothing between the ports (net.ipv4.ip_forward)");
    let full = of(|s| {
        let text = "table routes: full".to_owned();
        let full =
            ConditionReport { kind: "tables".into(), sentence: text.clone(), text, ..Default::default() };
        s.conditions = vec![full.clone(), ConditionReport { sentence: "another".into(), ..full }];
    });
    assert_eq!(full, "forwarding; problem: table routes: full; 1 more below");
    let generic = of(|s| {
        let note = Some(Why { code: "generic_mode".into(), text: "generic".into() });
        s.ports = vec![PortReport { port: "eth1".into(), note, ..Default::default() }];
    });
    assert_eq!(generic, "forwarding; port eth1: generic mode, which is slow");
    let broken = of(|s| {
        s.ready = false;
        s.problem = Some("x".repeat(300).into());
    });
    assert_eq!(broken.len(), 300 + "NOT READY: ".len());
    let many = of(|s| {
        let router = |i| RouterReport {
            router: format!("r{i}"),
            interfaces: 1,
            why_not: Families { ipv4: vec!["a rule".into()], ipv6: Vec::new() },
            ..RouterReport::default()
        };
        s.routers = (0..300).map(router).collect();
    });
    assert_eq!(many, "forwarding; routers r0, r1, r2 and 297 more: IPv4 on the kernel path: a rule");
}

/// Names, addresses and counts of an ordinary box after a month.
#[test]
fn tables_fit_100_columns_and_have_no_sentence() {
    let sentence =
        "rule with handle 3 of nftables chain inet filter forward may drop packets; see it with: nft list";
    let whys = || Families { ipv4: vec![Why::from(sentence)], ipv6: vec![Why::from(sentence)] };
    let big = 123_456_789_012;
    let counts =
        Packets { forwarded: big, forwarded_bytes: big, passed: 1_234_567, dropped: 98_765, taken: 0 };
    let router = RouterReport {
        router: "tenant7".into(),
        interfaces: 12,
        routes: Families { ipv4: 901_899, ipv6: 201_000 },
        packets: counts,
        ns_per_packet: Some(141.0),
        weight: 20,
        share: Some(0.5),
        cut: 3,
        why_not: whys(),
        ..RouterReport::default()
    };
    let port = PortReport {
        port: "enp65s0f1np1".into(),
        number: 2,
        ifindex: 13,
        mode: "native".into(),
        problems: vec![sentence.into()],
        rx_packets: big,
        tx_packets: big,
        lost: vec![reason("tx_ring_full", "lost", "full", 1_234_567)],
        ..PortReport::default()
    };
    let interface = InterfaceReport {
        router: "tenant7".into(),
        interface: "eth1.100".into(),
        port: Some("eth1".into()),
        vlan: Some("100".into()),
        mac: "02:00:00:00:00:01".into(),
        why_not: whys(),
        rx_packets: big,
        rx_bytes: 500 * big,
        not_forwarded_packets: 1_234_567,
        tx_packets: big,
        tx_bytes: 500 * big,
        ..InterfaceReport::default()
    };
    let connection = |state, why_not| ConnectionReport {
        router: "tenant7".into(),
        protocol: "tcp".into(),
        source: "192.168.100.101:40001".into(),
        destination: "198.51.100.17:443".into(),
        state,
        why_not,
        translated: Some(["203.0.113.1:40001".into(), "198.51.100.17:443".into()]),
        packets: 123_456,
        bytes: 123_456_789,
        reply_packets: 123_456,
        expires_s: Some(432_000.0),
        ..ConnectionReport::default()
    };
    let path = PathReport {
        path: "vpn".into(),
        router: Some("tenant7".into()),
        port: Some("eth1".into()),
        otherwise: "drop".into(),
        packets: 1_234_567,
        dropped: vec![reason("path_no_worker", "drop", "none", 4)],
        run: Some(PathStand::default()),
        ..PathReport::default()
    };
    let s = Status {
        ready: true,
        ports: vec![PortReport { problems: Vec::new(), ..port.clone() }],
        routers: vec![router.clone()],
        paths: vec![path],
        reasons: vec![reason("ttl_exceeded", "exception", "TTL or hop limit is 1 or less", big)],
        ..Status::default()
    };
    for (command, text) in [
        ("status", status(&s)),
        ("ports", ports(&[port])),
        ("routers", routers(&[router])),
        (
            "interfaces",
            interfaces(&[InterfaceShown {
                report: interface,
                addresses: Some(vec!["192.168.100.101/24".into(), "2001:db8:1:2::101/64".into()]),
                rates: None,
            }]),
        ),
        (
            "connections",
            connections(&[
                connection(ConnectionState::Fast, None),
                connection(ConnectionState::Linux, Some(sentence.into())),
            ]),
        ),
    ] {
        assert!(text.contains(sentence), "{command}: {text}");
        // Sentences stand in lines of their own, which begin with blanks.
        for line in text.lines().skip(1).filter(|line| !line.starts_with("  ")) {
            assert!(line.chars().count() <= 100 && !line.contains("may drop"), "{command}: {line}");
        }
        assert_eq!(text.matches(sentence).count(), 1, "{command} says it twice: {text}");
    }
}

#[test]
fn rates_of_interfaces_are_known_if_they_counted_on() {
    let interface = |name: &str, packets, bytes| InterfaceReport {
        router: "host".into(),
        interface: name.into(),
        mac: "02:00:00:00:00:01".into(),
        rx_packets: packets,
        rx_bytes: bytes,
        ..InterfaceReport::default()
    };
    let before = [interface("eth1", 100, 1000), interface("eth2", 100, 1000)];
    let now = [interface("eth1", 300, 3000), interface("eth2", 5, 50), interface("eth3", 7, 70)];
    let shown = |seconds| -> Vec<InterfaceShown> {
        let one = |report: &InterfaceReport| {
            let was = before.iter().find(|was| was.interface == report.interface);
            let rates = Some(InterfaceRates::between(was, report, seconds));
            InterfaceShown { report: report.clone(), addresses: None, rates }
        };
        now.iter().map(one).collect()
    };
    let text = interfaces(&shown(2.0));
    let rows = "\
ROUTER  INTERFACE  RX PACKETS/S  NOT FORWARDED/S  RX BIT/S  TX PACKETS/S  TX BIT/S
host    eth1                100                0      8000             0         0
host    eth2                  -                0         -             0         0
host    eth3                  -                -         -             -         -
";
    assert!(text.ends_with(rows), "{text}");
    let json = serde_json::to_value(&shown(2.0)[0]).unwrap();
    assert_eq!((&json["interface"], &json["rx_bits_per_s"]), (&"eth1".into(), &8000.0.into()));
    assert!(!interfaces(&shown(0.0)).contains("NaN"));
}
