//! No neighbours are prepared. ARP and neighbour discovery find them, the fast path takes over, and no neighbour goes
//! stale.

use std::{thread, time::Duration};

use lab::namespace::Namespace;

use crate::{
    bed::{Bed, output, ping, run},
    daemon::eventually_true,
};

fn entries(namespace: &Namespace, address: &str) -> String {
    output(namespace, &format!("ip neigh show to {address}"))
}

#[test]
#[ignore = "needs root"]
fn first_packets_resolve_and_the_fast_path_takes_over() {
    let bed = Bed::new();
    let daemon = bed.start(2, &[]);
    for (net, name) in [(7, bed.red_name()), (8, "host")] {
        let router = if net == 7 { &bed.red } else { &bed.the_box };
        for to in [format!("10.{net}.2.2"), format!("fd0{net}:2::2")] {
            run(router, "ip neigh flush all");
            run(router, "ip -6 neigh flush all");
            // Even the first packet is not lost: the kernel queues packets while it resolves.
            ping(&bed.client, &to, 1);
            eventually_true("the fast path takes over", || {
                let before = daemon.router(name)["packets"]["forwarded"].as_u64().unwrap();
                ping(&bed.client, &to, 20);
                // There and back.
                daemon.router(name)["packets"]["forwarded"].as_u64().unwrap() - before == 40
            });
        }
    }
    daemon.assert_verified();
}

#[test]
#[ignore = "needs root"]
fn a_neighbour_in_use_is_kept_beyond_the_kernels_stale_time() {
    let bed = Bed::new();
    for family in ["ipv4", "ipv6"] {
        for device in ["in", "out"] {
            let path = |name: &str| format!("net/{family}/neigh/{device}/{name}");
            // The kernel draws the reachable time from half the base to one and a half of it.
            let settings = [
                (&*path("base_reachable_time_ms"), "1000"),
                (&*path("gc_stale_time"), "2"),
                (&*path("delay_first_probe_time"), "1"),
            ];
            bed.red.sysctl(&settings).unwrap();
        }
    }
    let daemon = bed.start(2, &[]);
    for to in ["10.7.2.2", "fd07:2::2"] {
        ping(&bed.client, to, 5);
        // Only the fast path uses it from here on.
        eventually_true("the fast path takes over", || {
            let before = daemon.router(bed.red_name())["packets"]["forwarded"].as_u64().unwrap();
            ping(&bed.client, to, 20);
            daemon.router(bed.red_name())["packets"]["forwarded"].as_u64().unwrap() - before == 40
        });
        let (unresolved, end) = (reason(&daemon, &bed, "unresolved"), 8);
        for _ in 0..end {
            let text = output(&bed.client, &format!("ping -n -i 0.05 -W 10 -c 20 {to}"));
            assert!(text.contains("20 received"), "{text}");
            thread::sleep(Duration::from_millis(20));
        }
        let entry = entries(&bed.red, to);
        assert!(entry.contains("lladdr") && !entry.contains("FAILED"), "{entry}");
        assert_eq!(reason(&daemon, &bed, "unresolved"), unresolved, "it was lost in between");
        // It is confirmed repeatedly, and not merely still there.
        eventually_true("the neighbour to be confirmed", || entries(&bed.red, to).contains("REACHABLE"));
    }
}

fn reason(daemon: &crate::daemon::Daemon, bed: &Bed, name: &str) -> u64 {
    let router = daemon.router(bed.red_name());
    let mut reasons = router["reasons"].as_array().into_iter().flatten();
    reasons.find(|r| r["reason"] == name).map_or(0, |r| r["packets"].as_u64().unwrap())
}
