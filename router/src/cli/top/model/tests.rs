use super::*;
use crate::api::{
    cores::CoresReport,
    status::Packets,
    workers::{PathStand, WorkerStand, WorkersReport},
};
use proptest::{collection::vec, prelude::*};
use std::time::Duration;

pub fn ticks(core: CoreId, parts: [u64; 4]) -> Ticks {
    let [applications, kernel, idle, stolen] = parts;
    Ticks { core, applications, kernel, idle, stolen }
}

fn reading(at_s: u64, daemon: Daemon, ticks: Vec<Ticks>) -> Reading {
    let at = Duration::from_secs(at_s);
    Reading { daemon: Ok(Daemon { at, listed_at: at, ..daemon }), ticks }
}

fn reason(reason: &str, packets: u64) -> ReasonCount {
    ReasonCount { reason: reason.into(), packets, ..ReasonCount::default() }
}

#[test]
fn a_cores_time_is_shared() {
    let shares =
        |forwarding, kernel, applications, stolen| Some(Shares { forwarding, kernel, applications, stolen });
    // Ticks of applications, kernel, idle and stolen since before; forwarding as the daemon knows it.
    let table = [
        ([25, 50, 25, 0], 0.25, shares(0.25, 0.25, 0.25, 0.0)),
        ([0, 0, 100, 0], 0.0, shares(0.0, 0.0, 0.0, 0.0)),
        ([50, 0, 25, 25], 0.0, shares(0.0, 0.0, 0.5, 0.25)),
        // The daemon's time counts even if ticks found none.
        ([0, 0, 100, 0], 0.5, shares(0.5, 0.0, 0.0, 0.0)),
        ([100, 0, 0, 0], 0.75, shares(0.75, 0.0, 0.25, 0.0)),
        ([50, 0, 0, 50], 1.0, shares(1.0, 0.0, 0.0, 0.0)),
        ([50, 0, 0, 50], 7.0, shares(1.0, 0.0, 0.0, 0.0)),
        ([0, 0, 0, 0], 0.5, None),
    ];
    for (parts, forwarding, expected) in table {
        let before = ticks(0, [1000, 2000, 3000, 4000]);
        let now = ticks(0, [1000 + parts[0], 2000 + parts[1], 3000 + parts[2], 4000 + parts[3]]);
        assert_eq!(super::shares(&before, &now, forwarding), expected, "{parts:?} {forwarding}");
    }
    assert_eq!(super::shares(&ticks(0, [9, 9, 9, 9]), &ticks(0, [1, 1, 1, 1]), 0.5), None, "it was offline");
}

#[test]
fn rates_are_of_what_was_there_before() {
    let table = [
        (2.0, Some(10), 30, Some(10.0)),
        (0.5, Some(10), 10, Some(0.0)),
        (1.0, None, 10, None),
        (1.0, Some(11), 10, None),
        (0.0, Some(0), 10, None),
    ];
    for (seconds, before, now, expected) in table {
        assert_eq!(Seconds(seconds).rate(before, now), expected, "{seconds} {before:?} {now}");
    }
    assert_eq!(Seconds(2.0).fraction(Some(0), 1_000_000_000), Some(0.5));
    assert_eq!(Seconds(1.0).fraction(Some(0), 1_100_000_000), Some(1.0), "counted late");
}

fn machine(at_s: f64, ns: u64, packets: u64) -> Daemon {
    let core = |core, forwarding_ns| CoreReport {
        core,
        role: "forward".into(),
        may_forward: core == 0,
        forwarding_ns,
        workloads: vec!["db".into()],
        ..CoreReport::default()
    };
    let queue = |port: &str, queue, core, moved_by: Option<&str>| QueueReport {
        port: port.into(),
        queue,
        core,
        moved_by: moved_by.map(String::from),
        why_not: Some("it has no interrupt".into()),
        ran_ns: ns,
        wakeups: packets / 4,
        ..QueueReport::default()
    };
    let port = |name: &str| PortReport {
        port: name.into(),
        rx_packets: 2 * packets,
        tx_packets: packets,
        lost: vec![reason("ring_full", packets / 10), reason("too_long", packets / 10)],
        ..PortReport::default()
    };
    let router = |name: &str, accelerated| RouterReport {
        router: name.into(),
        accelerated: crate::api::status::Families { ipv4: accelerated, ipv6: true },
        interfaces: 1,
        packets: Packets { forwarded: packets, passed: packets / 2, dropped: 7, ..Packets::default() },
        reasons: vec![
            reason("local", 7),
            reason("arp", packets / 5),
            reason("ttl_exceeded", packets),
            reason("no_route", packets / 2),
            reason("policed", packets / 4),
        ],
        ..RouterReport::default()
    };
    let path = |name: &str, runs| PathReport {
        path: name.into(),
        packets: if runs { packets } else { 0 },
        lost: vec![reason("path_ring_full", packets / 4)],
        dropped: vec![reason("path_unsure", 3)],
        why_not: (!runs).then(|| "its port".into()),
        run: runs.then(|| PathStand {
            worker: 2,
            share: 0.5,
            dropped: [("over_rate".into(), packets / 2), ("no_sa".into(), 9)].into(),
            worker_panicked: packets / 100,
            ..PathStand::default()
        }),
        ..PathReport::default()
    };
    Daemon {
        status: Status {
            version: "9".into(),
            packets: Packets {
                forwarded: packets,
                forwarded_bytes: 100 * packets,
                passed: 5,
                ..Packets::default()
            },
            lost: packets / 10,
            ports: vec![port("eth1"), port("eth2")],
            routers: vec![router("host", true), router("red", false)],
            paths: vec![path("vpn", true), path("late", false)],
            workers: WorkersReport {
                workers: vec![WorkerStand {
                    core: 2,
                    share: "I/O bandwidth".into(),
                    ..WorkerStand::default()
                }],
                ..WorkersReport::default()
            },
            flows: FlowsStatus {
                cache_hits: 3 * packets,
                cache_misses: packets,
                in_charge: true,
                ..FlowsStatus::default()
            },
            ..Status::default()
        },
        cores: CoresReport {
            at_s,
            cores: vec![core(0, ns), core(2, 0)],
            queues: vec![
                queue("eth1", 0, Some(0), Some("thread 7")),
                queue("eth2", 0, Some(0), Some("interrupt 8")),
                queue("eth2", 1, None, None),
                QueueReport {
                    moved_with: Some("eth1/0".into()),
                    ..queue("eth3", 0, Some(1), Some("thread 7"))
                },
            ],
            ..CoresReport::default()
        },
        ..Daemon::default()
    }
}

#[test]
fn two_readings_make_rates() {
    let before =
        reading(10, machine(9.5, 1_000_000_000, 100), vec![ticks(0, [0, 0, 0, 0]), ticks(1, [0; 4])]);
    let now = reading(
        12,
        machine(11.5, 2_000_000_000, 300),
        vec![ticks(0, [50, 150, 0, 0]), ticks(1, [0, 0, 200, 0])],
    );
    let model = Model::new(Some(&before), &now);
    let told = model.daemon.unwrap();

    let shares = |row: &CoreRow| row.shares;
    let half = Shares { forwarding: 0.5, kernel: 0.25, applications: 0.25, stolen: 0.0 };
    let cores: Vec<_> = model.cores.iter().map(|row| (row.core, shares(row), row.role.as_str())).collect();
    let idle = Some(Shares::default());
    assert_eq!(
        cores,
        [(0, Some(half), "forward"), (1, idle, ""), (2, None, "forward, may not forward")],
        "the kernel reports core 1, the daemon core 2"
    );
    assert_eq!(model.cores[0].queues, ["eth1/0", "eth2/0"]);
    assert_eq!(model.cores[0].workloads, ["db"]);

    assert_eq!((told.head.forwarded_pps, told.head.forwarded_bps), (Some(100.0), Some(80_000.0)));
    assert_eq!((told.head.passed_pps, told.head.lost_pps), (Some(0.0), Some(10.0)));
    let queues: Vec<_> =
        told.queues.iter().map(|row| (row.load, row.pps, row.wakeups_per_s, row.moved_by.clone())).collect();
    assert_eq!(
        queues,
        [
            (Some(0.5), Some(200.0), Some(25.0), Ok("thread 7".into())),
            (Some(0.5), None, Some(25.0), Ok("interrupt 8".into())),
            (None, None, None, Err("it has no interrupt".into())),
            (None, None, None, Ok("with eth1/0".into())),
        ],
        "packets of two queues are known only together"
    );
    let port = &told.ports[1];
    assert_eq!((port.rx_pps, port.tx_pps, port.lost_pps), (Some(200.0), Some(100.0), Some(20.0)));
    let router = &told.routers[1];
    assert_eq!((router.ipv4, router.ipv6), ("partly", "fast"));
    assert_eq!(
        (router.forwarded_pps, router.passed_pps, router.dropped_pps),
        (Some(100.0), Some(50.0), Some(0.0))
    );
    let named = |reason: &str, pps| (reason.to_owned(), pps);
    assert_eq!(
        router.reasons,
        [named("ttl_exceeded", 100.0), named("no_route", 50.0), named("policed", 25.0)]
    );
    assert_eq!((told.rules.hit_rate, told.rules.misses_pps), (Some(0.75), Some(100.0)));

    let vpn = PathRow {
        path: "vpn".into(),
        core: Some(2),
        share: Some(0.5),
        shares: Some("I/O bandwidth".into()),
        pps: Some(100.0),
        bps: Some(0.0),
        lost_pps: Some(25.0 + 50.0 + 1.0),
        lost: vec![named("over_rate", 50.0), named("path_ring_full", 25.0), named("worker_panicked", 1.0)],
        why_not: None,
    };
    let late = PathRow {
        path: "late".into(),
        pps: Some(0.0),
        bps: Some(0.0),
        lost_pps: Some(25.0),
        lost: vec![named("path_ring_full", 25.0)],
        why_not: Some("its port".into()),
        ..PathRow::default()
    };
    assert_eq!(told.paths, [vpn, late]);
}

/// As when its router was gone, or its worker did not answer the daemon before.
#[test]
fn a_path_that_is_run_again_has_no_jump() {
    let with = |at_s: u64, runs: bool| {
        let mut daemon = machine(at_s as f64, 1_000_000_000, 100 * at_s);
        let path = &mut daemon.status.paths[0];
        path.run = path.run.take().filter(|_| runs);
        reading(at_s, daemon, Vec::new())
    };
    for (before, now) in [(true, false), (false, true), (false, false)] {
        let told = Model::new(Some(&with(10, before)), &with(11, now)).daemon.unwrap();
        let path_ring_full = [("path_ring_full".to_owned(), 25.0)];
        assert_eq!((told.paths[0].lost_pps, &*told.paths[0].lost), (Some(25.0), &path_ring_full[..]));
    }
}

#[test]
fn without_a_reading_before_there_are_no_rates() {
    let now = reading(12, machine(11.5, 2_000_000_000, 300), vec![ticks(0, [50, 150, 0, 0])]);
    let gone =
        Reading { daemon: Err("gone".into()), ..reading(11, Daemon::default(), vec![ticks(0, [0; 4])]) };
    for before in [None, Some(&gone)] {
        let told = Model::new(before, &now).daemon.unwrap();
        assert_eq!((told.head.forwarded_pps, told.routers[0].forwarded_pps), (None, None));
        assert_eq!((told.queues[0].load, told.queues[0].wakeups_per_s), (None, None));
        assert_eq!((told.rules.hit_rate, told.ports[0].rx_pps), (None, None));
    }
    let paths = Model::new(None, &now).daemon.unwrap().paths;
    assert_eq!(
        (paths[0].core, paths[0].pps, paths[0].lost_pps, paths[0].lost.len()),
        (Some(2), None, None, 0)
    );
    assert_eq!(Model::new(None, &now).cores[0].shares, None);
    // Another daemon starts its counters again, and may already have counted more.
    let mut another = reading(13, machine(12.5, 9_000_000_000, 900), Vec::new());
    if let Ok(daemon) = &mut another.daemon {
        daemon.status.pid += 1;
    }
    let told = Model::new(Some(&now), &another).daemon.unwrap();
    assert_eq!((told.head.forwarded_pps, told.queues[0].load), (None, None));
    let gone_later = Reading { ticks: vec![ticks(0, [100, 200, 0, 0])], ..gone };
    let model = Model::new(Some(&now), &gone_later);
    assert_eq!(model.daemon, Err("gone".into()));
    let shares = Shares { kernel: 0.5, applications: 0.5, ..Shares::default() };
    assert_eq!(model.cores[0].shares, Some(shares), "the kernel still reports cores");
}

#[test]
fn the_busiest_rules_come_first() {
    let rule =
        |priority, packets| FlowReport { priority, packets, bytes: 10 * packets, ..FlowReport::default() };
    let before = [rule(1, 0), rule(2, 0), rule(3, 900)];
    let now = [rule(1, 5), rule(2, 50), rule(3, 900), rule(4, 70)];
    let rows = busiest(Some(&before), &now, Seconds(1.0));
    let rows: Vec<_> = rows.iter().map(|row| (row.packets, row.pps, row.bps)).collect();
    assert_eq!(
        rows,
        [
            (50, Some(50.0), Some(4000.0)),
            (5, Some(5.0), Some(400.0)),
            (900, Some(0.0), Some(0.0)),
            (70, None, None),
        ]
    );
    let many: Vec<_> = (0..100).map(|priority| rule(priority, 1)).collect();
    assert_eq!(busiest(None, &many, Seconds(1.0)).len(), TOP_RULES);
}

/// A daemon with this many things of each kind, which all have this name, number and fraction.
pub fn odd_reading(many: usize, name: &str, number: u64, fraction: f64, at: u64) -> Reading {
    let name = || name.to_owned();
    let reasons = || vec![reason(&name(), number)];
    let queue = QueueReport {
        port: name(),
        core: Some(0),
        moved_by: Some(name()),
        ran: fraction,
        ran_ns: number,
        wakeups: number,
        packets_per_s: Some(fraction),
        ..QueueReport::default()
    };
    let port = PortReport {
        port: name(),
        mode: name(),
        rx_packets: number,
        rx_bytes: number,
        tx_packets: number,
        tx_bytes: number,
        lost: reasons(),
        problems: vec![name().into()],
        ..PortReport::default()
    };
    let packets = Packets {
        forwarded: number,
        forwarded_bytes: number,
        passed: number,
        dropped: number,
        taken: number,
    };
    let router = RouterReport {
        router: name(),
        packets,
        ns_per_packet: Some(fraction),
        share: Some(fraction),
        reasons: reasons(),
        ..RouterReport::default()
    };
    let interface = InterfaceReport {
        router: name(),
        interface: name(),
        rx_packets: number,
        rx_bytes: number,
        not_forwarded_packets: number,
        tx_packets: number,
        tx_bytes: number,
        ..InterfaceReport::default()
    };
    let connection = ConnectionReport {
        router: name(),
        protocol: name(),
        source: name(),
        destination: name(),
        packets: number,
        bytes: number,
        reply_packets: number,
        reply_bytes: number,
        expires_s: Some(fraction),
        ..ConnectionReport::default()
    };
    let run = PathStand { share: fraction, worker_panicked: number, ..PathStand::default() };
    let path = PathReport {
        path: name(),
        packets: number,
        bytes: number,
        lost: reasons(),
        run: Some(run),
        ..PathReport::default()
    };
    let rule = FlowReport {
        matching: name(),
        actions: name(),
        packets: number,
        bytes: number,
        ..FlowReport::default()
    };
    let event = EventReport { unix_s: fraction, port: name(), why: name(), ..EventReport::default() };
    let core = |core: usize| CoreReport {
        core: core as CoreId,
        role: name(),
        forwarding: fraction,
        forwarding_ns: number,
        workloads: vec![name()],
        ..CoreReport::default()
    };
    let mut status = Status { version: name(), ready: true, packets, lost: number, ..Status::default() };
    (status.ports, status.routers, status.paths) = (vec![port; many], vec![router; many], vec![path; many]);
    status.flows = FlowsStatus {
        rules: many as u64,
        in_charge: many > 0,
        cache_hits: number,
        cache_misses: number,
        slow_done: number,
        slow_lost: number,
        ..FlowsStatus::default()
    };
    let cores = CoresReport {
        at_s: at as f64,
        cores: (0..many).map(core).collect(),
        queues: vec![queue; many],
        ..CoresReport::default()
    };
    let daemon = Daemon {
        status,
        cores,
        events: vec![event; many],
        rules: Some(vec![rule; many]),
        interfaces: Some(vec![interface; many]),
        connections: Some(vec![connection; many]),
        ..Daemon::default()
    };
    reading(at, daemon, (0..many).map(|core| ticks(core as CoreId, [number; 4])).collect())
}

/// Any answers: counters that go back, numbers that are not finite, names with any characters.
pub fn any_reading() -> impl Strategy<Value = Reading> {
    let number = prop_oneof![Just(0), Just(u64::MAX), any::<u64>(), 0_u64..1000];
    let numbers = vec(number, 40);
    let fraction = prop_oneof![Just(f64::NAN), Just(f64::INFINITY), Just(-1.0), 0.0..1.0];
    let names = vec(prop_oneof!["\\PC{0,40}", ".{0,8}", "[a-z]{1,6}"], 12);
    (numbers, fraction, names, 0_usize..6, any::<bool>(), 0_u64..100).prop_map(
        |(numbers, fraction, names, many, is_there, at)| {
            let mut numbers = numbers.into_iter().cycle();
            let mut number = || numbers.next().unwrap_or(0);
            let mut names = names.into_iter().cycle();
            let mut name = || names.next().unwrap_or_default();
            let mut daemon = machine(fraction, number(), number() >> 16);
            let many = many as u16;
            let core = |core| CoreReport { core, role: "both".into(), ..CoreReport::default() };
            daemon.cores.cores.extend((0..many).map(core));
            for queue in 0..many {
                daemon.cores.queues.push(QueueReport {
                    port: name(),
                    queue,
                    core: Some((number() % 4) as u16),
                    moved_by: Some(name()),
                    ran_ns: number(),
                    wakeups: number(),
                    ..QueueReport::default()
                });
                daemon.status.ports.push(PortReport {
                    port: name(),
                    rx_packets: number(),
                    ..PortReport::default()
                });
                daemon.status.routers.push(RouterReport {
                    router: name(),
                    ns_per_packet: Some(fraction),
                    reasons: vec![reason(&name(), number()), reason(&name(), number())],
                    ..RouterReport::default()
                });
                daemon.status.paths.push(PathReport {
                    path: name(),
                    packets: number(),
                    lost: vec![reason(&name(), number())],
                    why_not: Some(name().into()),
                    run: Some(PathStand {
                        share: fraction,
                        worker_panicked: number(),
                        ..PathStand::default()
                    }),
                    ..PathReport::default()
                });
                daemon.events.push(EventReport {
                    unix_s: fraction * number() as f64,
                    port: name(),
                    why: name(),
                    ..EventReport::default()
                });
            }
            let packets = &mut daemon.status.packets;
            (packets.forwarded, packets.forwarded_bytes, packets.passed) = (number(), number(), number());
            (daemon.status.flows.cache_hits, daemon.status.flows.cache_misses) = (number(), number());
            daemon.status.problem = Some(name().into());
            let rule = |_| FlowReport { packets: number(), matching: name(), ..FlowReport::default() };
            daemon.rules = Some((0..many).map(rule).collect());
            let interface = |_| InterfaceReport {
                interface: name(),
                rx_packets: number(),
                tx_bytes: number(),
                ..InterfaceReport::default()
            };
            daemon.interfaces = Some((0..many).map(interface).collect());
            let connection = |_| ConnectionReport {
                source: name(),
                packets: number(),
                reply_packets: number(),
                bytes: number(),
                reply_bytes: number(),
                expires_s: Some(fraction),
                ..ConnectionReport::default()
            };
            daemon.connections = Some((0..many).map(connection).collect());
            let parts = [number(), number(), number(), number()];
            let ticks = (0..many).map(|core| ticks(core, parts)).collect();
            (daemon.at, daemon.listed_at) = (Duration::from_secs(at), Duration::from_secs(at));
            let daemon = if is_there { Ok(daemon) } else { Err(name()) };
            Reading { daemon, ticks }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Shares are fractions whose sum is at most a core.
    #[test]
    fn shares_never_exceed_a_core(before in any_reading(), now in any_reading()) {
        for row in Model::new(Some(&before), &now).cores {
            if let Some(Shares { forwarding, kernel, applications, stolen }) = row.shares {
                let parts = [forwarding, kernel, applications, stolen];
                prop_assert!(parts.iter().all(|part| (0.0..=1.0).contains(part)), "{parts:?}");
                prop_assert!(parts.iter().sum::<f64>() <= 1.0 + 1e-9, "{parts:?}");
            }
        }
    }
}
