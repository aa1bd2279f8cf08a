use super::*;
use crate::api::{
    status::Families,
    workers::{
        ElementReport, OutputStand, PathStand, QueueStand, UpCounts, UpReport, WorkerStand, WorkersReport,
    },
};

fn count(reason: &str, packets: u64) -> ReasonCount {
    ReasonCount { reason: reason.into(), packets, ..ReasonCount::default() }
}

fn counts(name: &str, packets: u64) -> BTreeMap<String, u64> {
    BTreeMap::from([(name.into(), packets)])
}

fn status() -> Status {
    let mirror = ElementReport {
        element: "mirror".into(),
        counted: BTreeMap::from([("mirror_disk".into(), 7), ("written".into(), 93)]),
        ..ElementReport::default()
    };
    let run = PathStand {
        worker: 3,
        stopped: Some("it panicked".into()),
        panics: 8,
        hangs: 2,
        share: 0.25,
        packets: 100,
        out: counts("eth2", 80),
        up: counts("ttl_exceeded", 5),
        dropped: counts("over_rate", 10),
        worker_panicked: 4,
        stopped_packets: 1,
        ring_closed: 6,
        cycles: 51_000,
        cycles_per_packet: Some(510),
        elements: vec![ElementReport { element: "check".into(), ..ElementReport::default() }, mirror],
        ..PathStand::default()
    };
    let vpn = PathReport {
        path: "vpn".into(),
        packets: 120,
        bytes: 12_000,
        lost: vec![count("path_ring_full", 20)],
        up: vec![count("path_no_worker", 3)],
        dropped: vec![count("path_unsure", 2)],
        run: Some(run),
        ..PathReport::default()
    };
    // The metrics must be right even with characters that a name of a path cannot have.
    let late =
        PathReport { path: "a\"b\\".into(), why_not: Some("its port".into()), ..PathReport::default() };
    let output = |dropped_full| OutputStand {
        name: "eth2".into(),
        sent_packets: 75,
        dropped_full,
        ..OutputStand::default()
    };
    let worker = WorkerStand {
        core: 3,
        share: "I/O bandwidth".into(),
        used: BTreeMap::from([("CPU cycles".into(), 0.5), ("I/O bandwidth".into(), 0.75)]),
        busy: 0.5,
        slept: 0.25,
        outputs: vec![output(5)],
        ..WorkerStand::default()
    };
    // The counters that it reported last.
    let outputs = vec![output(4)];
    let silent = WorkerStand { core: 4, silent: Some("worker".into()), outputs, ..WorkerStand::default() };
    let queue = QueueStand { name: "eth1".into(), queue: 2, fill_empty: 9, ..QueueStand::default() };
    let workers = WorkersReport {
        workers: vec![worker, silent],
        closed_outputs: vec![OutputStand { dropped_closed: 1, ..output(2) }],
        queues: vec![queue],
        up: UpReport {
            all: UpCounts { packets: 4, policed: 1, ..UpCounts::default() },
            ..UpReport::default()
        },
        ..WorkersReport::default()
    };
    let condition = |kind: &str| ConditionReport { kind: kind.into(), ..ConditionReport::default() };
    let conditions = ["path", "port", "path"].map(condition).to_vec();
    let router = |name: &str, is_ruled| RouterReport {
        router: name.into(),
        ruled: Families { ipv4: false, ipv6: is_ruled },
        connections: 7,
        ..RouterReport::default()
    };
    let routers = vec![router("red", true), router("plain", false)];
    Status { conditions, routers, paths: vec![vpn, late], workers, ..Status::default() }
}

#[test]
fn all_counters_of_paths_and_workers_are_metrics() {
    let text = text(status()).unwrap();
    let samples: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let expected = [
        "millrace_conditions{kind=\"path\"} 2.0",
        "millrace_conditions{kind=\"port\"} 1.0",
        "millrace_connections{router=\"red\"} 7.0",
        "millrace_path_active{path=\"vpn\"} 1.0",
        "millrace_path_active{path=\"a\\\"b\\\\\"} 0.0",
        "millrace_path_given_packets_total{path=\"vpn\"} 120",
        "millrace_path_given_packets_total{path=\"a\\\"b\\\\\"} 0",
        "millrace_path_given_bytes_total{path=\"vpn\"} 12000",
        "millrace_path_given_bytes_total{path=\"a\\\"b\\\\\"} 0",
        "millrace_path_lost_packets_total{path=\"vpn\",reason=\"path_ring_full\"} 20",
        "millrace_path_past_packets_total{path=\"vpn\",reason=\"path_no_worker\"} 3",
        "millrace_path_refused_packets_total{path=\"vpn\",reason=\"path_unsure\"} 2",
        "millrace_path_stopped{path=\"vpn\"} 1.0",
        "millrace_path_panics_total{path=\"vpn\"} 8",
        "millrace_path_hangs_total{path=\"vpn\"} 2",
        "millrace_path_core{path=\"vpn\"} 3.0",
        "millrace_path_share_ratio{path=\"vpn\"} 0.25",
        "millrace_path_packet_cycles{path=\"vpn\"} 510.0",
        "millrace_path_run_packets_total{path=\"vpn\"} 100",
        "millrace_path_run_cycles_total{path=\"vpn\"} 51000",
        "millrace_path_out_packets_total{path=\"vpn\",port=\"eth2\"} 80",
        "millrace_path_up_packets_total{path=\"vpn\",reason=\"ttl_exceeded\"} 5",
        "millrace_path_dropped_packets_total{path=\"vpn\",reason=\"over_rate\"} 10",
        "millrace_path_dropped_packets_total{path=\"vpn\",reason=\"worker_panicked\"} 4",
        "millrace_path_dropped_packets_total{path=\"vpn\",reason=\"path_stopped\"} 1",
        "millrace_path_dropped_packets_total{path=\"vpn\",reason=\"ring_closed\"} 6",
        "millrace_path_counted_total{path=\"vpn\",at=\"2\",element=\"mirror\",what=\"mirror_disk\"} 7",
        "millrace_path_counted_total{path=\"vpn\",at=\"2\",element=\"mirror\",what=\"written\"} 93",
        "millrace_worker_silent{core=\"3\"} 0.0",
        "millrace_worker_silent{core=\"4\"} 1.0",
        "millrace_worker_busy_ratio{core=\"3\"} 0.5",
        "millrace_worker_shares{core=\"3\",resource=\"I/O bandwidth\"} 1.0",
        "millrace_worker_used_ratio{core=\"3\",resource=\"CPU cycles\"} 0.5",
        "millrace_worker_used_ratio{core=\"3\",resource=\"I/O bandwidth\"} 0.75",
        "millrace_worker_slept_ratio{core=\"3\"} 0.25",
        "millrace_workers_sent_packets_total{port=\"eth2\"} 225",
        "millrace_workers_lost_packets_total{port=\"eth2\",reason=\"full\"} 11",
        "millrace_workers_lost_packets_total{port=\"eth2\",reason=\"closed\"} 1",
        "millrace_workers_up_packets_total{} 4",
        "millrace_workers_up_lost_packets_total{reason=\"policed\"} 1",
        "millrace_workers_up_lost_packets_total{reason=\"control_policed\"} 0",
        "millrace_workers_up_lost_packets_total{reason=\"queue_full\"} 0",
        "millrace_workers_up_lost_packets_total{reason=\"failed\"} 0",
        "millrace_workers_fill_empty_total{port=\"eth1\",queue=\"2\"} 9",
    ];
    assert_eq!(samples, expected);
    assert!(text.ends_with("# EOF\n"));
}

/// Each name is described once, and documented.
#[test]
fn every_name_is_documented() {
    let text = text(status()).unwrap();
    let documentation = include_str!("../../../../docs/reference/metrics.md");
    let mut names: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    assert_eq!(names.len(), 30);
    for line in &names {
        let (name, kind) = line.split_once(' ').unwrap();
        let name = if kind == "counter" { format!("{name}_total") } else { name.into() };
        assert!(documentation.contains(&format!("| `{name}` |")), "{name}");
    }
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 30);
    // There are no values without conditions and paths.
    assert_eq!(super::text(Status::default()).unwrap(), "# EOF\n");
}
