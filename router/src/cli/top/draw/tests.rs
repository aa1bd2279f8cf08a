use super::*;
use crate::{
    api::{cores::EventReport, flows::FlowsStatus},
    cli::top::{
        model::tests::{any_reading, odd_reading},
        state::Period,
    },
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
        rx_bps: Some(620_000_000.0),
        tx_pps: Some(0.0),
        tx_bps: Some(0.0),
        lost_pps: Some(0.0),
        problems: Vec::new(),
    };
    let router = |router: &str, ipv6, reasons| RouterRow {
        router: router.into(),
        ipv4: "fast",
        ipv6,
        forwarded_pps: Some(1_230_000.0),
        forwarded_bps: Some(4_920_000_000.0),
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
        bps: Some(80_000_000.0),
        lost_pps: Some(1010.0),
        lost: vec![("path_ring_full".into(), 1000.0), ("over_rate".into(), 10.0)],
        why_not: None,
    };
    let late = PathRow {
        path: "late".into(),
        pps: Some(0.0),
        bps: Some(0.0),
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
        interfaces: Some(vec![InterfaceRow {
            router: "host".into(),
            interface: "eth1.100".into(),
            ipv4: "fast",
            ipv6: "kernel",
            rx_pps: Some(1_230_000.0),
            rx_bps: Some(620_000_000.0),
            tx_pps: Some(5.0),
            tx_bps: Some(2400.0),
            other_pps: Some(12.0),
        }]),
        talkers: Some(vec![TalkerRow {
            router: "red".into(),
            connection: "tcp 10.0.0.2:40001 > 192.0.2.9:443".into(),
            pps: Some(9000.0),
            bps: Some(100_000_000.0),
            bytes: 123_456_789,
        }]),
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
        "[1 cores] 2 queues 3 routers 4 interfaces 5 flows 6 talkers 7 paths  every 1 s",
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
    ];
    let model = model();
    let event = cores::event(&model.daemon.as_ref().unwrap().events[0]);
    let expected = [&expected[..], &[event.trim_end()]].concat();
    assert_eq!(screen(Some(&model), &mut state(), 80, 20), expected);
}

#[test]
fn cores_on_a_small_terminal_scroll_under_their_head() {
    let mut small = Selection { scroll: 99, ..state() };
    let expected = [
        "millrace 9, up 1 h 2 min, policy pack",
        "1.23 Mpps 4.92 Gbit/s forwarded; pps to",
        "[1 cores] 2 queues 3 routers 4 interface",
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
        "PORT   RX/S  RX BIT/S  TX/S  TX BIT/S  LOST/S  MODE    PROBLEMS",
        "eth1  1.23M      620M     0         0       0  native  -",
        "",
    ];
    assert_eq!(body(View::Queues, 80), queues);
    let routers = [
        "ROUTER  IPV4  IPV6    FORWARDED/S  BIT/S  KERNEL/S  DROPPED/S  NS/PACKET  MOSTLY BECAUSE",
        "host    fast  partly        1.23M  4.92G        12          0        141  local 11, ttl_exceeded 0.5",
        "red     fast  kernel        1.23M  4.92G        12          0        141  -",
        "",
        "",
        "",
        "",
    ];
    assert_eq!(body(View::Routers, 110), routers);
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
        "PACKETS/S  BIT/S  PACKETS  BY      RULE",
        "    1.00k   480k    5.00M  kernel  in_port=1 actions=output:2",
        "",
        "",
        "",
    ];
    assert_eq!(body(View::Flows, 80), flows);
    let interfaces = [
        "ROUTER  INTERFACE   RX/S  RX BIT/S  TX/S  TX BIT/S  NOT FORWARDED/S  IPV4  IPV6",
        "host    eth1.100   1.23M      620M     5     2.40k               12  fast  kernel",
        "",
        "",
        "",
        "",
        "",
    ];
    assert_eq!(body(View::Interfaces, 90), interfaces);
    let talkers = [
        "connections that bypass a firewall; flows of plain routing have no counters of their own",
        "BIT/S  PACKETS/S  BYTES  ROUTER  CONNECTION",
        " 100M      9.00k   123M  red     tcp 10.0.0.2:40001 > 192.0.2.9:443",
        "",
        "",
        "",
        "",
    ];
    assert_eq!(body(View::Talkers, 90), talkers);
    let paths = [
        "PATH  CORE  SHARE  PACKETS/S  BIT/S  LOST/S  LOST AS",
        "vpn      3    25%       120k  80.0M   1.01k  path_ring_full 1.00k, over_rate 10",
        "late     -      -          0      0       0  no packets: its port eth9 is not there",
        "",
        "",
        "",
        "",
    ];
    assert_eq!(body(View::Paths, 90), paths);
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
        "[1 cores] 2 queues 3 routers 4 interfaces 5 flows 6 talkers",
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
    let starts = text.split("\n\n").map(|part| part.split(' ').next().unwrap());
    // The time depends on the zone of this machine.
    let starts: Vec<_> = starts.map(|word| word.split('\n').next().unwrap()).collect();
    assert_eq!(
        starts,
        ["millrace", "CORE", "PORT", "PORT", "ROUTER", "ROUTER", "1", "connections", "PATH", "DECISIONS"]
    );
    assert!(text.contains("CORE  TIME                                        FORW"), "{text}");
    assert!(text.lines().all(|line| line == line.trim_end()) && text.ends_with("given back\n"));
}

#[test]
fn amounts_have_three_digits() {
    let table = [
        (0.0, "0"),
        (-0.0, "0"),
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

/// Fractions of all odd kinds.
const ODD: [f64; 7] = [0.0, -0.0, -0.001, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX];

#[test]
fn no_view_shows_blank_cells_or_numbers_that_are_none() {
    let long = "\u{1b}[31m".repeat(51);
    for (many, name) in [(0, ""), (1, ""), (1, "a"), (2, &*long), (300, "r")] {
        // Many rows take long to draw.
        let fractions = if many > 2 { &ODD[3..4] } else { &ODD[..] };
        for &fraction in fractions {
            for (was, number) in [(0, 0), (0, u64::MAX), (u64::MAX, 0), (u64::MAX, u64::MAX)] {
                let before = odd_reading(many, name, was, fraction, 1);
                let now = odd_reading(many, name, number, fraction, 2);
                for before in [None, Some(&before)] {
                    let what = format!("{many} {name:?} {fraction} {was} {number}");
                    let model = Model::new(before, &now);
                    odd_text(&model, &what);
                }
            }
        }
    }
}

#[track_caller]
fn odd_text(model: &Model, what: &str) {
    let text = text(model, 400);
    for word in text.split([' ', '\n', ',', ':']) {
        let is_odd = ["NaN", "inf", "-inf", "-0", "-0%", "-0.0"].contains(&word);
        assert!(!is_odd, "{word} for {what}: {text}");
    }
    assert!(!text.contains("core  ") && !text.contains("core : "), "{what}: {text}");
    for view in View::ALL {
        let lines: Vec<_> = view_lines(model, view, 400);
        assert!(lines.first().is_some_and(|line| !line.is_empty()), "{} is blank for {what}", view.name());
        if ![View::Cores, View::Flows, View::Talkers].contains(&view) {
            let mut heads = 0;
            for line in &lines {
                let cells = line.split("  ").filter(|cell| !cell.trim().is_empty()).count();
                if line.chars().all(|c| !c.is_lowercase()) || line.is_empty() {
                    heads = cells;
                }
                assert!(cells == heads || lines.len() == 1, "{} for {what}: {line}", view.name());
            }
        }
        for (width, height) in [(1, 1), (20, 5), (80, 24), (100, 50)] {
            let mut state = Selection { view, ..state() };
            let shown = screen(Some(model), &mut state, width, height);
            assert!(shown.iter().all(|line| line.chars().count() <= width.into()), "{what}");
            let table = view_lines(model, view, width.into());
            let fits = |line: &String| line.chars().count() <= usize::from(width);
            // The legend and the notes are cut by the screen.
            let is_row = |line: &&String| line.contains("  ") && !line.starts_with('#');
            assert!(
                width < 80 || table.iter().filter(is_row).all(fits),
                "{} for {what}: {table:#?}",
                view.name()
            );
        }
    }
}

fn view_lines(model: &Model, of: View, width: usize) -> Vec<String> {
    view(model, of, width).iter().map(ToString::to_string).collect()
}
