//! Measurements: `cargo test --release --test netlink -- --ignored --nocapture measure`.

use crate::bed::*;
use logic::observe::Event;
use std::time::{Duration, Instant};

/// This is slow without optimisation: run it by `cargo test --release -- --ignored`.
#[test]
#[ignore = "a measurement"]
fn a_million_routes_are_dumped_in_two_seconds() {
    with_bed(|_| {
        sh("ip addr add 192.0.2.1/24 dev port0");
        batch((0..1_000_000).map(|i| {
            format!("route add {}.{}.{}.0/26 via 192.0.2.2", 11 + (i >> 16), i >> 8 & 255, i & 255)
        }));
        let started = Instant::now();
        let mut observer = observer();
        let dump = host_dump(&mut observer);
        let took = started.elapsed();
        println!("{} routes dumped and parsed in {took:?}", dump.routes4.len());
        assert!(
            dump.routes4.len() >= 1_000_000 && took < Duration::from_secs(2),
            "{} routes took {took:?}",
            dump.routes4.len()
        );
        settle(&mut observer);
        let started = Instant::now();
        let count = 100_000;
        batch(
            (0..count)
                .map(|i| format!("route add 9.{}.{}.{}/32 via 192.0.2.2", i >> 16, i >> 8 & 255, i & 255)),
        );
        let made = started.elapsed();
        let read = Instant::now();
        let mut seen = 0;
        until(&mut observer, "all changes", |e| {
            seen += u32::from(matches!(e, Event::Route4(..)));
            (seen == count).then_some(())
        });
        println!("{count} route events made in {made:?}, absorbed in {:?}", read.elapsed());
    });
}

/// The kernel is asked about each of their next hops.
#[test]
#[ignore = "a measurement"]
fn ten_thousand_ipv6_routes_with_two_next_hops() {
    with_bed(|bed| {
        let peer = bed.name("peer");
        sh(&format!(
            "ip link add port1 type veth peer name far1 netns {peer}; ip -n {peer} link set far1 up"
        ));
        sh("ip link set port1 up; sysctl -qw net.ipv6.conf.all.forwarding=1");
        sh("ip addr add 2001:db8:1::1/64 dev port0 nodad; ip addr add 2001:db8:2::1/64 dev port1 nodad");
        let hops = "nexthop via 2001:db8:1::2 dev port0 nexthop via 2001:db8:2::2 dev port1";
        batch((0..10_000).map(|i| format!("route add 2001:db9:{i:x}::/48 {hops}")));
        let started = Instant::now();
        let dump = host_dump(&mut observer());
        println!("{} IPv6 routes read in {:?}", dump.routes6.len(), started.elapsed());
        let groups = || dump.routes6.iter().filter(|route| route.next.hops().len() == 2);
        assert_eq!(groups().count(), 10_000);
        assert_eq!(groups().find(|route| route.complex.is_some()), None);
    });
}

/// The cost of 256 routers while nothing happens.
#[test]
#[ignore = "a measurement"]
fn many_routers_idle_cheaply() {
    with_bed(|bed| {
        for i in 0..256 {
            let name = bed.namespace(&format!("r{i}"));
            sh(&format!("ip link add link port0 name m0 netns {name} type macvlan mode bridge"));
        }
        let started = Instant::now();
        let mut observer = observer();
        let events = observer.poll(Duration::ZERO).unwrap();
        let dumps = events.iter().filter(|e| matches!(e, Event::Dump(..))).count();
        println!("{dumps} namespaces read in {:?}", started.elapsed());
        assert_eq!(dumps, 257);
        settle(&mut observer);
        let (before, started) = (cpu_time(), Instant::now());
        while started.elapsed() < Duration::from_secs(10) {
            observer.poll(Duration::from_secs(1)).unwrap();
        }
        let share = (cpu_time() - before).as_secs_f64() / started.elapsed().as_secs_f64();
        println!("idle: {:.2} % of a core, {} KiB resident", share * 100.0, resident_kib());
        assert!(share < 0.05, "idle routers take {share} of a core");
    });
}

/// CPU time of all threads of this process, user and system.
fn cpu_time() -> Duration {
    // SAFETY: all zeros is a value of this plain C struct, which lives across the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let time = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    time(usage.ru_utime) + time(usage.ru_stime)
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
