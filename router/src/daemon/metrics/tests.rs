use super::{
    families::{Family, Metric},
    page::Steady,
    *,
};
use crate::{
    api::{
        capture::CaptureReport,
        cores::{CoreReport, DrainsReport, QueueReport},
        export::{CollectorReport, ExportReport, Protocol},
        flows::{ControllerLost, FlowsStatus},
        sas::SaReport,
        status::{
            ConditionReport, Families, Heartbeat, Packets, PathReport, PortReport, ReasonCount, RouterReport,
            TableUse,
        },
        workers::{
            ElementReport, OutputStand, PathStand, QueueStand, UpCounts, UpReport, WorkerStand, WorkersReport,
        },
    },
    switch::controllers::{Connection, ControllerReport},
};
use parser::{Sample, parse};
use std::collections::{BTreeMap, BTreeSet};

mod documents;
mod parser;

fn count(reason: &str, packets: u64) -> ReasonCount {
    ReasonCount { reason: reason.into(), packets, ..ReasonCount::default() }
}

fn counts(name: &str, packets: u64) -> BTreeMap<String, u64> {
    BTreeMap::from([(name.into(), packets)])
}

/// Each metric has a series here.
fn rich() -> (Observed, Beside) {
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
    let late = PathReport { path: "late".into(), why_not: Some("its port".into()), ..PathReport::default() };
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
    let silent = WorkerStand {
        core: 4,
        silent: Some("worker".into()),
        other: Some(0.75),
        outputs,
        ..WorkerStand::default()
    };
    let queue = QueueStand { name: "eth1".into(), queue: 2, fill_empty: 9, ..QueueStand::default() };
    let workers = WorkersReport {
        workers: vec![worker, silent],
        frames: 100,
        free_frames: 60,
        retired_frames: 3,
        closed_outputs: vec![OutputStand { dropped_closed: 1, ..output(2) }],
        queues: vec![queue],
        up: UpReport {
            all: UpCounts { packets: 4, policed: 1, ..UpCounts::default() },
            ..UpReport::default()
        },
        ..WorkersReport::default()
    };
    let condition = |kind: &str| {
        let (kind, is_note) = (kind.into(), kind == "port");
        ConditionReport { kind, is_note, ..ConditionReport::default() }
    };
    let ports = vec![PortReport {
        port: "eth1".into(),
        mode: "native".into(),
        problems: vec!["the port is down".into()],
        rx_packets: 31,
        tx_packets: 32,
        unclassified: vec![count("unknown_mac", 33)],
        lost: vec![count("tx_ring_full", 34)],
        ..PortReport::default()
    }];
    let status = Status {
        version: "1.2.3".into(),
        instance: Some("a".into()),
        ready: true,
        conditions: ["path", "port", "path"].map(condition).to_vec(),
        uptime_s: 60,
        heartbeat: Heartbeat { timeout_s: 3.0, age_s: Some(0.5) },
        generation: 2,
        packets: packets(11),
        lost: 16,
        ns_per_packet: Some(250.0),
        ports,
        routers: vec![router("red", true), router("plain", false)],
        reasons: vec![count("ttl_exceeded", 17)],
        tables: vec![TableUse { table: "routes".into(), used: 18, capacity: 19 }],
        routes: Families { ipv4: 20, ipv6: 21 },
        neighbours: 22,
        flows: flows(),
        paths: vec![vpn, late],
        workers,
        capture: CaptureReport { running: true, ..CaptureReport::default() },
        export: Some(export()),
        ..Status::default()
    };
    let interface = InterfaceReport {
        router: "red".into(),
        interface: "in".into(),
        port: Some("eth1".into()),
        accelerated: Families { ipv4: true, ipv6: false },
        rx_packets: 41,
        rx_bytes: 42,
        tx_packets: 43,
        tx_bytes: 44,
        ..InterfaceReport::default()
    };
    (Observed { status, interfaces: vec![interface], interfaces_left_out: 5 }, beside())
}

fn export() -> ExportReport {
    let to = CollectorReport {
        protocol: Protocol::Sflow,
        address: "192.0.2.7:6343".into(),
        datagrams: 25,
        failed: 26,
        error: None,
    };
    ExportReport { every: 1000, samples: 23, lost: 24, not_ip: 0, collectors: vec![to] }
}

/// Numbers from this one on.
fn packets(from: u64) -> Packets {
    Packets {
        forwarded: from,
        forwarded_bytes: from + 1,
        passed: from + 2,
        dropped: from + 3,
        taken: from + 4,
    }
}

fn router(name: &str, is_ruled: bool) -> RouterReport {
    RouterReport {
        router: name.into(),
        accelerated: Families { ipv4: !is_ruled, ipv6: true },
        ruled: Families { ipv4: false, ipv6: is_ruled },
        connections: 7,
        interfaces: 2,
        routes: Families { ipv4: 23, ipv6: 24 },
        neighbours: 25,
        packets: packets(51),
        ns_per_packet: Some(125.0),
        weight: 2,
        share: Some(0.5),
        cut: 56,
        reasons: vec![count("over_share", 56)],
        ..RouterReport::default()
    }
}

fn flows() -> FlowsStatus {
    let controller_lost = ControllerLost { no_controller: 67, over_rate: 68, not_read: 69 };
    FlowsStatus {
        rules: 61,
        core_rules: 62,
        in_charge: true,
        cache_hits: 63,
        cache_misses: 64,
        slow_done: 65,
        slow_lost: 66,
        controller_lost,
        ..FlowsStatus::default()
    }
}

/// Cores, controllers and SAs.
fn beside() -> Beside {
    let core = CoreReport {
        core: 1,
        role: "forward".into(),
        forwarding: 0.5,
        forwarding_ns: 1_500_000_000,
        other: Some(0.25),
        handed_packets: 71,
        handed_dropped: 72,
        flows: 73,
        ..CoreReport::default()
    };
    let queue = QueueReport {
        port: "eth1".into(),
        queue: 0,
        core: Some(1),
        ran: 0.5,
        waited: 0.25,
        ran_ns: 2_000_000_000,
        wakeups: 74,
        packets: 75,
        polls: 76,
        shared: vec![0, 1],
        ..QueueReport::default()
    };
    let drains = Some(DrainsReport { left: 77, remained: 78, ..DrainsReport::default() });
    let connection = |messages| Connection {
        peer: "192.0.2.1:6653".into(),
        age_s: 1.0,
        version: None,
        role: "equal".into(),
        messages,
        packet_ins: 82,
        packet_ins_dropped: 83,
        unsaid: 0,
        unsent_bytes: 0,
    };
    let controller = ControllerReport {
        target: "tcp:192.0.2.1:6653".into(),
        listening: None,
        connections: vec![connection(80), connection(1)],
        attempts: 84,
        refused: 85,
        last_end: None,
        last_end_age_s: None,
    };
    Beside {
        cores: CoresReport { cores: vec![core], queues: vec![queue], drains, ..CoresReport::default() },
        controllers: ControllersReport { controllers: vec![controller], ..ControllersReport::default() },
        sas: SasReport { crypto: None, sas: vec![sa("b", None), sa("a", Some(91))] },
    }
}

fn sa(name: &str, left: Option<u64>) -> SaReport {
    SaReport {
        sa: name.into(),
        spi: 256,
        direction: if left.is_some() { "outbound" } else { "inbound" }.into(),
        mode: "tunnel".into(),
        local: [192, 0, 2, 1].into(),
        remote: [192, 0, 2, 2].into(),
        sequence: 92,
        left,
    }
}

fn text_of((observed, beside): &(Observed, Beside)) -> String {
    page(observed, beside).text().unwrap()
}

#[test]
fn every_number_of_the_reports_is_a_sample() {
    let text = text_of(&rich());
    let is_of_another =
        |line: &str| line.starts_with("millrace_router_") && line.contains("router=\"plain\"");
    let samples = text.lines().filter(|line| !line.starts_with('#') && !is_of_another(line));
    let samples: BTreeSet<_> = samples.collect();
    let expected = BTreeSet::from([
        "millrace_build_info{version=\"1.2.3\",daemon=\"a\"} 1.0",
        "millrace_ready{} 1.0",
        "millrace_uptime_seconds{} 60.0",
        "millrace_heartbeat_age_seconds{} 0.5",
        "millrace_heartbeat_timeout_seconds{} 3.0",
        "millrace_generation{} 2.0",
        "millrace_problems{} 2.0",
        "millrace_series_left_out{metric=\"millrace_interface_accelerated\"} 10.0",
        "millrace_series_left_out{metric=\"millrace_interface_rx_packets\"} 5.0",
        "millrace_series_left_out{metric=\"millrace_interface_rx_bytes\"} 5.0",
        "millrace_series_left_out{metric=\"millrace_interface_tx_packets\"} 5.0",
        "millrace_series_left_out{metric=\"millrace_interface_tx_bytes\"} 5.0",
        "millrace_forwarded_packets_total{} 11",
        "millrace_forwarded_bytes_total{} 12",
        "millrace_passed_packets_total{} 13",
        "millrace_dropped_packets_total{} 14",
        "millrace_taken_packets_total{} 15",
        "millrace_lost_packets_total{} 16",
        "millrace_reason_packets_total{reason=\"ttl_exceeded\",class=\"\"} 17",
        "millrace_packet_cost_seconds{} 2.5e-7",
        "millrace_table_used_rows{table=\"routes\"} 18.0",
        "millrace_table_capacity_rows{table=\"routes\"} 19.0",
        "millrace_routes{ip_version=\"4\"} 20.0",
        "millrace_routes{ip_version=\"6\"} 21.0",
        "millrace_neighbours{} 22.0",
        "millrace_port_mode{port=\"eth1\",mode=\"native\"} 1.0",
        "millrace_port_trusted{port=\"eth1\"} 0.0",
        "millrace_port_rx_packets_total{port=\"eth1\"} 31",
        "millrace_port_tx_packets_total{port=\"eth1\"} 32",
        "millrace_port_unclassified_packets_total{port=\"eth1\",reason=\"unknown_mac\"} 33",
        "millrace_port_lost_packets_total{port=\"eth1\",reason=\"tx_ring_full\"} 34",
        "millrace_router_accelerated{router=\"red\",ip_version=\"4\"} 0.0",
        "millrace_router_accelerated{router=\"red\",ip_version=\"6\"} 1.0",
        "millrace_router_forwarded_packets_total{router=\"red\"} 51",
        "millrace_router_forwarded_bytes_total{router=\"red\"} 52",
        "millrace_router_passed_packets_total{router=\"red\"} 53",
        "millrace_router_dropped_packets_total{router=\"red\"} 54",
        "millrace_router_taken_packets_total{router=\"red\"} 55",
        "millrace_router_cut_packets_total{router=\"red\"} 56",
        "millrace_router_reason_packets_total{router=\"red\",reason=\"over_share\",class=\"\"} 56",
        "millrace_router_interfaces{router=\"red\"} 2.0",
        "millrace_router_routes{router=\"red\",ip_version=\"4\"} 23.0",
        "millrace_router_routes{router=\"red\",ip_version=\"6\"} 24.0",
        "millrace_router_neighbours{router=\"red\"} 25.0",
        "millrace_router_weight{router=\"red\"} 2.0",
        "millrace_router_share_ratio{router=\"red\"} 0.5",
        "millrace_router_packet_cost_seconds{router=\"red\"} 1.25e-7",
        "millrace_interface_accelerated{router=\"red\",interface=\"in\",port=\"eth1\",ip_version=\"4\"} 1.0",
        "millrace_interface_accelerated{router=\"red\",interface=\"in\",port=\"eth1\",ip_version=\"6\"} 0.0",
        "millrace_interface_rx_packets_total{router=\"red\",interface=\"in\",port=\"eth1\"} 41",
        "millrace_interface_rx_bytes_total{router=\"red\",interface=\"in\",port=\"eth1\"} 42",
        "millrace_interface_tx_packets_total{router=\"red\",interface=\"in\",port=\"eth1\"} 43",
        "millrace_interface_tx_bytes_total{router=\"red\",interface=\"in\",port=\"eth1\"} 44",
        "millrace_core_role{core=\"1\",role=\"forward\"} 1.0",
        "millrace_core_forwarding_ratio{core=\"1\"} 0.5",
        "millrace_core_forwarding_seconds_total{core=\"1\"} 1.5",
        "millrace_core_other_ratio{core=\"1\"} 0.25",
        "millrace_core_flows{core=\"1\"} 73.0",
        "millrace_core_handed_packets_total{core=\"1\"} 71",
        "millrace_core_handed_dropped_packets_total{core=\"1\"} 72",
        "millrace_queue_core{port=\"eth1\",queue=\"0\"} 1.0",
        "millrace_queue_ran_ratio{port=\"eth1\",queue=\"0\"} 0.5",
        "millrace_queue_ran_seconds_total{port=\"eth1\",queue=\"0\"} 2.0",
        "millrace_queue_waited_ratio{port=\"eth1\",queue=\"0\"} 0.25",
        "millrace_queue_wakeups_total{port=\"eth1\",queue=\"0\"} 74",
        "millrace_queue_received_packets_total{port=\"eth1\",queue=\"0\"} 75",
        "millrace_queue_polls_total{port=\"eth1\",queue=\"0\"} 76",
        "millrace_queue_split_cores{port=\"eth1\",queue=\"0\"} 2.0",
        "millrace_queue_moves_total{drained=\"no\"} 78",
        "millrace_queue_moves_total{drained=\"yes\"} 77",
        "millrace_flow_rules{} 61.0",
        "millrace_flow_core_rules{} 62.0",
        "millrace_flow_rules_in_charge{} 1.0",
        "millrace_flow_cache_hits_packets_total{} 63",
        "millrace_flow_cache_misses_packets_total{} 64",
        "millrace_flow_slow_packets_total{} 65",
        "millrace_flow_slow_lost_packets_total{} 66",
        "millrace_controllers_lost_packets_total{reason=\"no_controller\"} 67",
        "millrace_controllers_lost_packets_total{reason=\"not_read\"} 69",
        "millrace_controllers_lost_packets_total{reason=\"over_rate\"} 68",
        "millrace_controller_connections{target=\"tcp:192.0.2.1:6653\"} 2.0",
        "millrace_controller_attempts_total{target=\"tcp:192.0.2.1:6653\"} 84",
        "millrace_controller_refused_total{target=\"tcp:192.0.2.1:6653\"} 85",
        "millrace_controller_messages_total{target=\"tcp:192.0.2.1:6653\"} 81",
        "millrace_controller_packet_ins_total{target=\"tcp:192.0.2.1:6653\"} 164",
        "millrace_controller_packet_ins_dropped_total{target=\"tcp:192.0.2.1:6653\"} 166",
        "millrace_sa_sequence{sa=\"a\",spi=\"256\",direction=\"outbound\"} 92.0",
        "millrace_sa_sequence{sa=\"b\",spi=\"256\",direction=\"inbound\"} 92.0",
        "millrace_sa_left_packets{sa=\"a\",spi=\"256\"} 91.0",
        "millrace_worker_other_ratio{core=\"4\"} 0.75",
        "millrace_workers_frames{state=\"all\"} 100.0",
        "millrace_workers_frames{state=\"free\"} 60.0",
        "millrace_workers_frames{state=\"retired\"} 3.0",
        "millrace_conditions{kind=\"path\"} 2.0",
        "millrace_conditions{kind=\"port\"} 1.0",
        "millrace_connections{router=\"red\"} 7.0",
        "millrace_path_active{path=\"vpn\"} 1.0",
        "millrace_path_active{path=\"late\"} 0.0",
        "millrace_path_given_packets_total{path=\"vpn\"} 120",
        "millrace_path_given_packets_total{path=\"late\"} 0",
        "millrace_path_given_bytes_total{path=\"vpn\"} 12000",
        "millrace_path_given_bytes_total{path=\"late\"} 0",
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
        "millrace_capture_running{} 1.0",
        "millrace_export_samples_total{} 23",
        "millrace_export_samples_lost_total{} 24",
        "millrace_export_sample_every_packets{} 1000.0",
        "millrace_export_datagrams_total{protocol=\"sFlow\",collector=\"192.0.2.7:6343\"} 25",
        "millrace_export_datagrams_failed_total{protocol=\"sFlow\",collector=\"192.0.2.7:6343\"} 26",
        "millrace_workers_fill_empty_total{port=\"eth1\",queue=\"2\"} 9",
    ]);
    let missing: Vec<_> = expected.difference(&samples).collect();
    let others: Vec<_> = samples.difference(&expected).collect();
    assert!(missing.is_empty() && others.is_empty(), "missing: {missing:#?}, others: {others:#?}");
}

#[test]
fn every_metric_is_on_a_rich_page_which_a_strict_parser_takes() {
    let (families, samples) = parse(&text_of(&rich()));
    let known: BTreeSet<_> = Metric::ALL.iter().map(|metric| metric.family().sample()).collect();
    assert_eq!(known.len(), Metric::ALL.len(), "two metrics have one name");
    assert_eq!(samples.iter().map(|sample| sample.name.clone()).collect::<BTreeSet<_>>(), known);
    assert_eq!(families.len(), known.len());
    for metric in Metric::ALL {
        let Family { labels, unit, help, name, .. } = metric.family();
        let sample = samples.iter().find(|sample| sample.name == metric.family().sample()).unwrap();
        assert!(sample.labels.iter().map(|(label, _)| label.as_str()).eq(labels.iter().copied()), "{name}");
        assert!(!help.ends_with('.') && help.len() < 120 && !name.ends_with(&format!("_{unit}")), "{name}");
    }
    // Nothing is left out of a page without anything.
    let (_, samples) = parse(&text_of(&Default::default()));
    assert!(samples.iter().any(|sample| sample.name == "millrace_ready" && sample.value == "0.0"));
}

fn of<'a>(samples: &'a [Sample], name: &str) -> Vec<&'a Sample> {
    samples.iter().filter(|sample| sample.name == name).collect()
}

/// Thousands of routers, interfaces, SAs and reasons.
#[test]
fn a_page_has_a_bound() {
    let (mut observed, mut beside) = rich();
    let numbers = || 0..3000_u64;
    let reasons: Vec<_> = (0..200).map(|n| count(&format!("reason_{n}"), n)).collect();
    observed.status.routers = numbers()
        .map(|n| RouterReport { reasons: reasons.clone(), ..router(&format!("r{n}"), true) })
        .collect();
    observed.interfaces = numbers()
        .map(|n| InterfaceReport { interface: format!("i{n}"), rx_packets: n, ..InterfaceReport::default() })
        .collect();
    beside.sas.sas = numbers().rev().map(|n| sa(&format!("s{n}"), Some(n))).collect();
    let text = text_of(&(observed, beside));
    let (_, samples) = parse(&text);
    for metric in Metric::ALL {
        let Family { most, name, .. } = metric.family();
        assert!(of(&samples, &metric.family().sample()).len() <= *most, "{name}");
    }
    assert!(text.len() < 3 << 20, "{} bytes", text.len());
    let left_out = |metric: &str| -> f64 {
        let mut rows = of(&samples, "millrace_series_left_out").into_iter();
        rows.find(|row| row.label("metric") == Some(metric)).unwrap().value.parse().unwrap()
    };
    assert_eq!(left_out("millrace_router_forwarded_packets"), 3000.0 - 256.0);
    assert_eq!(left_out("millrace_router_accelerated"), 6000.0 - 512.0);
    assert_eq!(left_out("millrace_interface_rx_packets"), 3000.0 - 1024.0 + 5.0);
    assert_eq!(left_out("millrace_sa_left_packets"), 3000.0 - 256.0);
    assert_eq!(left_out("millrace_router_reason_packets"), 600_000.0 - 1024.0);
    // The first interfaces stay, and the SAs that end first.
    let kept = of(&samples, "millrace_interface_rx_packets_total");
    assert!(kept.iter().all(|row| row.value.parse::<u64>().unwrap() < 1024));
    let kept = of(&samples, "millrace_sa_left_packets");
    assert!(kept.iter().all(|row| row.value.parse::<f64>().unwrap() < 256.0));
}

#[test]
fn names_forge_no_lines_and_series_of_one_name_add_up() {
    let names = [
        "a\"} 7\nmillrace_ready 1 #",
        "b\\",
        "\u{1b}[2J",
        "\u{202e}c\r\n# EOF\n",
        "\u{feff}d{}",
        "",
        "\u{0}",
        "e\",x=\"y",
        &"f".repeat(70_000),
    ];
    let (mut observed, beside) = rich();
    let router = |name: &&str| RouterReport { packets: packets(1), ..router(name, false) };
    observed.status.routers = names.iter().chain(&["twin", "twin"]).map(router).collect();
    let text = text_of(&(observed, beside));
    assert!(text.bytes().all(|byte| byte == b'\n' || (b' '..=b'~').contains(&byte)), "unprintable");
    assert!(text.lines().all(|line| line.len() < 1000));
    let (_, samples) = parse(&text);
    let rows = of(&samples, "millrace_router_forwarded_packets_total");
    assert_eq!(rows.len(), names.len() + 1);
    assert_eq!(of(&samples, "millrace_ready").len(), 1);
    let twin = rows.iter().find(|row| row.label("router") == Some("twin")).unwrap();
    assert_eq!(twin.value, "2");
    assert!(rows.iter().any(|row| row.label("router") == Some("e\",x=\"y")));
}

/// A port's packets are those of its interfaces, which come and go.
#[test]
fn no_counter_goes_down_when_an_interface_goes() {
    let (mut observed, mut beside) = rich();
    let mut steady = Steady::default();
    let mut read = |rx: u64, ran_ns: u64, steady: &mut Steady| {
        observed.status.ports[0].rx_packets = rx;
        beside.cores.queues[0].ran_ns = ran_ns;
        let mut page = page(&observed, &beside);
        steady.follow(&mut page);
        let (_, samples) = parse(&page.text().unwrap());
        let value = |name: &str| of(&samples, name)[0].value.clone();
        (value("millrace_port_rx_packets_total"), value("millrace_queue_ran_seconds_total"))
    };
    let pair = |rx: &str, ran: &str| (rx.to_owned(), ran.to_owned());
    assert_eq!(read(100, 4_000_000_000, &mut steady), pair("100", "4.0"));
    assert_eq!(read(130, 5_000_000_000, &mut steady), pair("130", "5.0"));
    assert_eq!(read(30, 500_000_000, &mut steady), pair("130", "5.0"));
    assert_eq!(read(50, 1_500_000_000, &mut steady), pair("150", "6.0"));
    assert_eq!(read(0, 0, &mut steady), pair("150", "6.0"));
    assert_eq!(read(7, 0, &mut steady), pair("157", "6.0"));
    // A port that was gone begins again.
    let mut gone = Page::default();
    steady.follow(&mut gone);
    assert_eq!(read(9, 0, &mut steady), pair("9", "0.0"));
}
