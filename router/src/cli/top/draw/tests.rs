use super::*;
use crate::{
    api::{cores::EventReport, flows::FlowsStatus},
    cli::top::{model::tests::any_reading, state::Period},
};
use proptest::prelude::*;
use ratatui::{Terminal, backend::TestBackend};
use std::time::Duration;

fn core(core: u16, role: &str, parts: [f64; 4], queues: &[&str]) -> CoreRow {
    let [forwarding, kernel, applications, stolen] = parts;
    let shares = Some(Shares { forwarding, kernel, applications, stolen });
    let queues = queues.iter().map(|queue| queue.to_string()).collect();
    CoreRow { core, role: role.into(), shares, queues, workloads: Vec::new() }
}

fn model() -> Model {
    let queue = QueueRow {
        port: "eth1".into(),
        queue: 0,
        core: Some(0),
        load: Some(0.62),
        is_estimate: false,
        pps: Some(1_230_000.0),
        wakeups_per_s: Some(9876.0),
        moved_by: Ok("thread 42".into()),
    };
    let fixed = QueueRow {
        port: "tap0".into(),
        core: None,
        load: None,
        pps: None,
        wakeups_per_s: None,
        moved_by: Err("it has no interrupt".into()),
        ..queue.clone()
    };
    let port = PortRow {
        port: "eth1".into(),
        mode: "native".into(),
        rx_pps: Some(1_230_000.0),
        tx_pps: Some(0.0),
        lost_pps: Some(0.0),
        problems: Vec::new(),
    };
    let router = |router: &str, ipv6, reasons| RouterRow {
        router: router.into(),
        ipv4: "fast",
        ipv6,
        forwarded_pps: Some(1_230_000.0),
        passed_pps: Some(12.0),
        dropped_pps: Some(0.0),
        ns_per_packet: Some(141.4),
        reasons,
    };
    let reasons = vec![("local".into(), 11.0), ("ttl_exceeded".into(), 0.5)];
    let rule = RuleRow {
        pps: Some(1000.0),
        bps: Some(480_000.0),
        packets: 5_000_000,
        by: "kernel",
        rule: "in_port=1 actions=output:2".into(),
    };
    let vpn = PathRow {
        path: "vpn".into(),
        core: Some(3),
        share: Some(0.25),
        shares: None,
        pps: Some(120_000.0),
        lost_pps: Some(1010.0),
        lost: vec![("path_ring_full".into(), 1000.0), ("over_rate".into(), 10.0)],
        why_not: None,
    };
    let late = PathRow {
        path: "late".into(),
        pps: Some(0.0),
        lost_pps: Some(0.0),
        why_not: Some("its port eth9 is not there".into()),
        ..PathRow::default()
    };
    let event = EventReport {
        number: 1,
        unix_s: 1_000_000_000.25,
        port: "eth1".into(),
        queue: 0,
        from: vec![1],
        to: vec![0],
        why: "core 1 is given back".into(),
    };
    let told = DaemonView {
        head: Head {
            version: "9".into(),
            uptime_s: 3725,
            policy: "pack".into(),
            forwarded_pps: Some(1_230_000.0),
            forwarded_bps: Some(4_920_000_000.0),
            passed_pps: Some(12.0),
            dropped_pps: Some(0.0),
            lost_pps: Some(0.0),
            ..Head::default()
        },
        queues: vec![queue, fixed],
        ports: vec![port],
        routers: vec![router("host", "partly", reasons), router("red", "kernel", Vec::new())],
        rules: Rules {
            status: FlowsStatus { rules: 1, in_charge: true, ..FlowsStatus::default() },
            hit_rate: Some(0.991),
            hits_pps: Some(99_100.0),
            misses_pps: Some(900.0),
            slow_pps: Some(0.0),
            slow_lost_pps: Some(0.0),
            busiest: Some(vec![rule]),
        },
        paths: vec![vpn, late],
        events: vec![event],
    };
    let cores = vec![
        core(0, "forward", [0.62, 0.1, 0.03, 0.0], &["eth1/0", "eth2/0"]),
        core(1, "serve", [0.0, 0.05, 0.9, 0.05], &[]),
        CoreRow { core: 12, role: "idle".into(), ..CoreRow::default() },
    ];
    Model { cores, daemon: Ok(told) }
}

fn state() -> Selection {
    Selection::new(Period(Duration::from_secs(1)))
}

/// The screen as text, without blanks at the ends of lines.
fn screen(model: Option<&Model>, state: &mut Selection, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|f| frame(f, model, state)).unwrap();
    let buffer = terminal.backend().buffer();
    let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..height).map(row).collect()
}

#[test]
fn cores_on_a_usual_terminal() {
    let expected = [
        "millrace 9, up 1 h 2 min, policy pack",
        "1.23 Mpps 4.92 Gbit/s forwarded; pps to the kernel 12, dropped 0, lost 0",
        "[1 cores] 2 queues  3 routers  4 flows  5 paths  every 1 s  q quit  space pause",
        "CORE  TIME                    FORW  KERN  APPS  IDLE  ROLE     QUEUES",
        "   0  [############++=     ]   62%   10%    3%   25%  forward  eth1/0 eth2/0",
        "   1  [+==================!]    0%    5%   90%    0%  serve    -",
        "  12  [                    ]     -     -     -     -  idle     -",
        "# forwarding  + kernel  = applications  ! stolen",
        "",
        "",
        "",
        "",
        "",
        "",
        "",
        "",
        "",
        "",
        "DECISIONS",
        "01:46:40.250 UTC  eth1/0  core 1 -> 0  core 1 is given back",
    ];
    assert_eq!(screen(Some(&model()), &mut state(), 80, 20), expected);
}

#[test]
fn cores_on_a_small_terminal_scroll_under_their_head() {
    let mut small = Selection { scroll: 99, ..state() };
    let expected = [
        "millrace 9, up 1 h 2 min, policy pack",
        "1.23 Mpps 4.92 Gbit/s forwarded; pps to",
        "[1 cores] 2 queues  3 routers  4 flows",
        "CORE  TIME          FORW  APPS  ROLE",
        "  12  [          ]     -     -  idle",
        "# forwarding  + kernel  = applications",
    ];
    assert_eq!(screen(Some(&model()), &mut small, 40, 6), expected);
    assert_eq!((small.scroll, small.page), (2, 2), "no further than the last line");
}

#[test]
fn queues_routers_flows_and_paths() {
    let body = |view, width| {
        let mut state = Selection { view, ..state() };
        screen(Some(&model()), &mut state, width, 10).split_off(3)
    };
    let queues = [
        "PORT  QUEUE  CORE  LOAD  PACKETS/S  WAKE-UPS/S  MOVED BY",
        "eth1      0     0   62%      1.23M       9.88k  thread 42",
        "tap0      0     -     -          -           -  nothing: it has no interrupt",
        "",
        "PORT   RX/S  TX/S  LOST/S  MODE    PROBLEMS",
        "eth1  1.23M     0       0  native",
        "",
    ];
    assert_eq!(body(View::Queues, 80), queues);
    let routers = [
        "ROUTER  IPV4  IPV6    FORWARDED/S  KERNEL/S  DROPPED/S  NS/PACKET  MOSTLY BECAUSE",
        "host    fast  partly        1.23M        12          0        141  local 11, ttl_exceeded 0.5",
        "red     fast  kernel        1.23M        12          0        141  -",
        "",
        "",
        "",
        "",
    ];
    assert_eq!(body(View::Routers, 100), routers);
    let few = [
        "ROUTER  FORWARDED/S  KERNEL/S  DROPPED/S",
        "host          1.23M        12          0",
        "red           1.23M        12          0",
        "",
        "",
        "",
        "",
    ];
    assert_eq!(body(View::Routers, 44), few);
    let flows = [
        "1 flow rules, packets go by them",
        "cache 99%: 99.1 kpps hits, 900 pps misses; user space 0 pps done, 0 pps lost",
        "PACKETS/S  BITS/S  PACKETS  BY      RULE",
        "    1.00k    480k    5.00M  kernel  in_port=1 actions=output:2",
        "",
        "",
        "",
    ];
    assert_eq!(body(View::Flows, 80), flows);
    let paths = [
        "PATH  CORE  SHARE  PACKETS/S  LOST/S  LOST AS",
        "vpn      3    25%       120k   1.01k  path_ring_full 1.00k, over_rate 10",
        "late     -      -          0       0  no packets: its port eth9 is not there",
        "",
        "",
        "",
        "",
    ];
    assert_eq!(body(View::Paths, 80), paths);
    let few = [
        "PATH  SHARE  PACKETS/S  LOST/S",
        "vpn     25%       120k   1.01k",
        "late      -          0       0",
        "",
        "",
        "",
        "",
    ];
    assert_eq!(body(View::Paths, 30), few);
}

#[test]
fn without_a_daemon_it_says_so_and_shows_cores() {
    let alone = Model { daemon: Err("no daemon is running\u{1b}[2J".into()), ..model() };
    let shown = screen(Some(&alone), &mut Selection { paused: true, ..state() }, 60, 5);
    let expected = [
        r"no daemon is running\u{1b}[2J",
        "[1 cores] 2 queues  3 routers  4 flows  5 paths  PAUSED  q q",
        "CORE  TIME                    FORW  KERN  APPS  ROLE",
        "   0  [############++=     ]   62%   10%    3%  forward",
        "   1  [+==================!]    0%    5%   90%  serve",
    ];
    assert_eq!(shown, expected);
    assert_eq!(screen(None, &mut state(), 17, 1), ["asking the daemon"]);
}

#[test]
fn problems_are_shown_but_do_not_fill_the_screen() {
    let mut model = model();
    let problems = ["a", "b", "c", "d"].map(String::from).to_vec();
    model.daemon.as_mut().unwrap().head.problems = problems;
    let shown = screen(Some(&model), &mut state(), 60, 8);
    let expected = ["PROBLEM a", "PROBLEM b", "PROBLEM and 2 more, see `millrace status`"];
    assert_eq!(shown[2..5], expected);
}

#[test]
fn a_pipe_gets_everything() {
    let text = text(&model(), usize::MAX);
    let starts: Vec<_> = text.split("\n\n").map(|part| part.split(' ').next().unwrap()).collect();
    assert_eq!(
        starts,
        ["millrace", "CORE", "PORT", "PORT", "ROUTER", "1", "PATH", "DECISIONS\n01:46:40.250"]
    );
    assert!(text.contains("CORE  TIME                                        FORW"), "{text}");
    assert!(text.lines().all(|line| line == line.trim_end()) && text.ends_with("given back\n"));
}

#[test]
fn amounts_have_three_digits() {
    let table = [
        (0.0, "0"),
        (0.25, "0.2"),
        (9.9, "9.9"),
        (9.96, "10"),
        (999.4, "999"),
        (999.6, "1.00k"),
        (9995.0, "10.0k"),
        (99_960.0, "100k"),
        (1_234_567.0, "1.23M"),
        (1.5e18, "1.50E"),
        (2e24, "2000000E"),
        (-1.0, "-"),
        (f64::NAN, "-"),
        (f64::INFINITY, "-"),
    ];
    for (value, expected) in table {
        assert_eq!(amount(Some(value)), expected, "{value}");
    }
    assert_eq!(
        [amount(None), spaced(None), spaced(Some(12.0)), spaced(Some(1500.0))],
        ["-", "- ", "12 ", "1.50 k"]
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// No answer of the daemon and no size makes it panic or write a control character.
    #[test]
    fn any_screen_can_be_drawn(
        before in any_reading(),
        now in any_reading(),
        view in 0_usize..View::ALL.len(),
        scroll in any::<usize>(),
        width in 0_u16..200,
        height in 0_u16..60,
    ) {
        let model = Model::new(Some(&before), &now);
        let mut state = Selection { view: View::ALL[view], scroll, ..state() };
        let lines = screen(Some(&model), &mut state, width, height);
        let text = text(&model, width.into());
        prop_assert!(lines.iter().all(|line| !line.chars().any(char::is_control)));
        prop_assert!(!text.chars().any(|c| c.is_control() && c != '\n'));
    }
}
