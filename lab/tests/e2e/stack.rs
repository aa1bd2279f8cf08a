//! Hosts with real stacks through a virtual router: TCP, ICMP errors, traceroute, path MTU discovery.

use serde_json::Value;

use crate::{
    bed::{Background, Bed, output, ping, run},
    daemon::{Daemon, eventually},
};

/// Ways through `red` and through the host router: (name in `status`, network).
const WAYS: [&str; 2] = ["red", "host"];

fn network(way: &str) -> u8 {
    if way == "red" { 7 } else { 8 }
}

fn router_name(bed: &Bed, way: &str) -> String {
    if way == "red" { bed.red_name().into() } else { way.into() }
}

/// Packets that a router forwarded by the fast path, and packets passed to the kernel.
fn packets(daemon: &Daemon, name: &str) -> (u64, u64) {
    let packets = &daemon.router(name)["packets"];
    (packets["forwarded"].as_u64().unwrap(), packets["passed"].as_u64().unwrap())
}

/// Runs the client's iperf3 for a second, and returns its report.
fn iperf(bed: &Bed, to: &str, more: &str) -> Value {
    eventually("iperf3", || {
        let text = output(&bed.client, &format!("iperf3 -c {to} -t 1 --connect-timeout 3000 -J{more}"));
        let report: Value = serde_json::from_str(&text).map_err(|e| format!("{e}: {text}"))?;
        if report["error"].is_null() { Ok(report) } else { Err(report["error"].to_string()) }
    })
}

#[test]
#[ignore = "needs root"]
fn tcp_by_iperf3_in_both_directions() {
    let bed = Bed::new();
    let daemon = bed.start(2, &[]);
    let _server = Background::start(&bed.server, "iperf3 -s");
    for way in WAYS {
        let (net, name) = (network(way), router_name(&bed, way));
        for to in [format!("10.{net}.2.2"), format!("fd0{net}:2::2")] {
            ping(&bed.client, &to, 3);
            for direction in ["", " -R"] {
                let before = packets(&daemon, &name);
                let report = iperf(&bed, &to, direction);
                let after = packets(&daemon, &name);
                let sum = |which: &str, what: &str| report["end"][which][what].as_u64().unwrap_or(0);
                let bytes = sum("sum_received", "bytes");
                assert!(bytes > 1 << 20, "{way} {to}{direction}: {bytes} bytes: {report:#}");
                let (fast, slow) = (after.0 - before.0, after.1 - before.1);
                assert!(fast > bytes / 1500, "{way} {to}{direction}: {fast} packets for {bytes} bytes");
                assert!(
                    slow * 20 < fast,
                    "{way} {to}{direction}: {slow} by the kernel, {fast} by the fast path"
                );
                // Full rings on a busy machine cause some.
                let again = sum("sum_sent", "retransmits");
                assert!(again < fast / 20, "{way} {to}{direction}: {again} retransmits, {fast} packets");
            }
        }
    }
    daemon.assert_verified();
}

#[test]
#[ignore = "needs root"]
fn icmp_errors_and_traceroute_show_the_router() {
    let bed = Bed::new();
    let daemon = bed.start(2, &[]);
    for net in WAYS.map(network) {
        let ways = [
            (format!("10.{net}.2.2"), format!("10.{net}.1.1")),
            (format!("fd0{net}:2::2"), format!("fd0{net}:1::1")),
        ];
        for (to, router) in ways {
            ping(&bed.client, &to, 5);
            let text = output(&bed.client, &format!("ping -n -t 1 -c 1 -W 10 {to}"));
            let expired = text.contains("Time to live exceeded") || text.contains("Time exceeded");
            assert!(expired && text.contains(&format!("From {router}")), "{text}");
            // UDP to a closed port: the last hop answers "port unreachable".
            let text = output(&bed.client, &format!("traceroute -n -q 1 -w 5 -N 1 {to}"));
            let hops: Vec<&str> =
                text.lines().skip(1).filter_map(|line| line.split_whitespace().nth(1)).collect();
            assert_eq!(hops, [&router, &to], "{text}");
        }
        // Without a route the router sends an error, within the kernel's own limit of about one a second
        // (`error_cost`).
        run(&bed.client, &format!("ip route replace 203.0.113.0/24 via 10.{net}.1.1"));
        let text = output(&bed.client, "ping -n -c 3 -W 10 203.0.113.1");
        assert!(
            text.contains("Net Unreachable") && text.contains(&format!("From 10.{net}.1.1")),
            "{net}: {text}{}",
            output(if net == 7 { &bed.red } else { &bed.the_box }, "nstat -a")
        );
    }
    let status = daemon.ask(&["status"]);
    let reasons: Vec<&str> =
        status["reasons"].as_array().unwrap().iter().filter_map(|r| r["reason"].as_str()).collect();
    assert!(reasons.contains(&"ttl_exceeded") && reasons.contains(&"no_route"), "{reasons:?}");
}

#[test]
#[ignore = "needs root"]
fn path_mtu_discovery_and_tcp_over_the_smaller_mtu() {
    const MTU: u32 = 1400;
    let bed = Bed::new();
    let daemon = bed.start(2, &[]);
    run(&bed.red, &format!("ip link set out mtu {MTU}"));
    let _server = Background::start(&bed.server, "iperf3 -s");
    for (to, router, ip_and_icmp) in [("10.7.2.2", "10.7.1.1", 28), ("fd07:2::2", "fd07:1::1", 48)] {
        ping(&bed.client, to, 3);
        let fits = MTU - ip_and_icmp;
        let sized = |bytes: u32| output(&bed.client, &format!("ping -n -M do -c 1 -W 10 -s {bytes} {to}"));
        assert!(sized(fits).contains("1 received"), "{}", sized(fits));
        let text = sized(fits + 1);
        let too_big = text.contains("Frag needed and DF set") || text.contains("Packet too big");
        assert!(
            too_big && text.contains(router) && text.contains(&format!("mtu = {MTU}"))
                || text.contains(&format!("mtu={MTU}")),
            "{text}"
        );
        // Forget what was learnt, so that TCP discovers the MTU.
        run(&bed.client, "ip route flush cache");
        run(&bed.client, "ip -6 route flush cache");
        let before = packets(&daemon, bed.red_name());
        let report = iperf(&bed, to, "");
        let bytes = report["end"]["sum_received"]["bytes"].as_u64().unwrap();
        let fast = packets(&daemon, bed.red_name()).0 - before.0;
        assert!(bytes > 1 << 20 && fast > bytes / 1500, "{bytes} bytes, {fast} packets by the fast path");
    }
    daemon.assert_verified();
}
