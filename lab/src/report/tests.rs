use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::figure::{Axis, Bound, Figure, Point, Published, Reference};

fn point(x: Option<Value>, y: f64, bound: Bound) -> Point {
    Point { x, y, bound, note: String::new() }
}

fn published(figure: &str, series: &str, beside: &[&str], unit: &str, points: Vec<Point>) -> Published {
    Published {
        figure: figure.into(),
        series: series.into(),
        paper: "M, fig. 5".into(),
        beside: beside.iter().map(|name| name.to_string()).collect(),
        unit: unit.into(),
        points,
        note: "section 4.2".into(),
    }
}

/// Results as the lab would write them: a load curve, a scale, latencies, a table of two routers, and typical faults.
fn results() -> String {
    let mut lines =
        vec![json!({"record": "run", "unix_seconds": 1_795_261_274, "cpu": "A <CPU>", "cores": 2,
        "kernel": "6.18", "revision": "abc", "build": "debug", "command": ["millrace-lab", "figures"]})];
    let mut line = |value: Value| lines.push(value);
    let kpps = |at: &str, label: &str| Axis::new(at, label, "kpps").times(1e-3);
    let throughput = || kpps("/sample/received_pps", "throughput");
    let load = Figure::new(
        "load",
        "Load and throughput",
        Some(kpps("/sample/offered_pps", "offered").by("/pace").log()),
        throughput().log(),
    )
    .only("/case", "load")
    .series("/subject");
    line(serde_json::to_value(load).unwrap());
    let routers = Axis::new("/parameters/routers", "routers", "").log();
    let scale = Figure::new("scale", "Virtual routers", Some(routers), throughput())
        .only("/case", "scale")
        .series("/subject");
    line(serde_json::to_value(&scale).unwrap());
    let mut relative = scale.relative_to(Reference::Series("linux".into()));
    relative.name = "relative".into();
    line(serde_json::to_value(relative).unwrap());
    let bars = Figure::new("table", "Isolation", Some(Axis::new("/router", "router", "")), throughput())
        .only("/case", "isolation")
        .series("/subject");
    line(serde_json::to_value(bars).unwrap());
    let at = |x: f64, y: f64| point(Some(json!(x)), y, Bound::Exact);
    for curve in [
        published("load", "IP forwarder", &["linux"], "kpps", vec![point(None, 785.0, Bound::Exact)]),
        published("load", "macvlan", &["linux-macvlan"], "kpps", vec![at(600.0, 600.0), at(1000.0, 480.0)]),
        published("scale", "NAPI-macvlan", &["millrace*"], "kpps", vec![]),
        published("relative", "NAPI-macvlan", &["millrace*"], "× linux", vec![at(1.0, 1.0), at(32.0, 1.0)]),
        published(
            "table",
            "macvlan",
            &["linux-macvlan"],
            "kpps",
            vec![
                point(Some(json!("VR1")), 480.0, Bound::Exact),
                point(Some(json!("VR2")), 55.0, Bound::Exact),
            ],
        ),
    ] {
        line(serde_json::to_value(curve).unwrap());
    }
    for repeat in 0..3_u64 {
        for (subject, capacity) in [("linux", 1.2e6), ("linux-macvlan", 0.7e6), ("millrace", 3.1e6)] {
            let capacity = capacity * (1.0 + repeat as f64 * 0.03);
            for offered in [250_000, 500_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000_u64] {
                let out = (offered as f64).min(capacity - (offered as f64 - capacity).max(0.0) * 0.03);
                let lost = (offered as f64 - out) as u64;
                line(
                    json!({"record": "sample", "case": "load", "parameters": {}, "subject": subject, "repeat": repeat,
                    "frame_bytes": 60, "pace": {"rate": offered}, "sample": {"offered_pps": offered as f64,
                    "received_pps": out, "ns_per_packet": 9e8 / out, "loss": lost as f64 / offered as f64,
                    "sent": offered, "skipped": if offered == 8_000_000 { 100_000 } else { 0 },
                    "unexplained": if subject == "linux-macvlan" { 3 } else { 0 }, "lost": {"gen.eth0.ring_full": lost}}}),
                );
            }
            for routers in [1, 8, 32, 255_u64] {
                line(
                    json!({"record": "sample", "case": "scale", "parameters": {"routers": routers}, "subject": subject,
                    "repeat": repeat, "pace": "saturate", "sample": {"received_pps": capacity, "ns_per_packet": 9e8 / capacity,
                    "latency": {"p50_us": 12.5, "p99_us": 40.0 + repeat as f64}}}),
                );
            }
            for (router, share) in [("VR1", 0.9), ("VR2", 0.1)] {
                line(json!({"record": "sample", "case": "isolation", "router": router, "subject": subject,
                    "repeat": repeat, "pace": "saturate", "sample": {"received_pps": capacity * share}}));
            }
        }
    }
    line(
        json!({"record": "skipped", "case": "load", "subject": "ovs-afxdp", "why": "ovs-vswitchd is not <installed>"}),
    );
    lines.iter().map(|line| format!("{line}\n")).collect::<String>() + "{\"record\":\"sam"
}

fn report_of(text: &str) -> (String, String) {
    let runs = read::runs("results.jsonl", text).unwrap();
    let blocks = blocks(&Results { runs, unread: Vec::new() });
    (page::html(TITLE, &blocks), page::markdown(&blocks))
}

#[test]
fn a_report_shows_what_ran_what_was_measured_and_what_is_doubtful() {
    let (html, markdown) = report_of(&results());
    // Three figures of load and scale, one of isolation.
    assert_eq!(html.matches("<svg").count(), 4);
    assert!(html.contains("A &lt;CPU&gt;") && !html.contains("<CPU>"));
    for text in [
        "2026-11-21 11:41",
        "Measured with a debug build",
        "the last, is incomplete: the run was interrupted",
        "ovs-afxdp (load) was skipped: ovs-vswitchd is not \\<installed\\>",
        "linux: the machine disturbed 3 of 18 measurements (noisy); up to 1.235 %",
        "linux-macvlan: in 18 of 18 measurements packets were lost or doubled that no counter explains",
        "| IP forwarder (M, fig. 5) | section 4.2 |  | 785 kpps | linux 1,213 (1,176..1,250) |",
        "| macvlan (M, fig. 5) | section 4.2 | VR2 | 55 kpps | linux-macvlan 72.1 (70..74.2) |",
        "latency p99, µs",
    ] {
        assert!(markdown.contains(text), "{text}\n{markdown}");
    }
    let kept = std::env::var_os("KEEP_REPORT").map(PathBuf::from);
    if let Some(path) = kept {
        std::fs::write(path, html).unwrap();
    }
}

#[test]
fn ratios_are_drawn_repeat_by_repeat() {
    let runs = read::runs("a.jsonl", &results()).unwrap();
    let figure = runs[0].figures.iter().find(|figure| figure.name == "relative").unwrap();
    let values = draw::draw(figure, &runs[0]).unwrap().values().unwrap();
    let millrace = values.rows.iter().find(|row| row[0] == "millrace").unwrap();
    assert_eq!(millrace[1..], ["1", "2.583", "3"]);
}

#[test]
fn ratios_to_the_first_are_those_of_each_curve() {
    let runs = read::runs("a.jsonl", &results()).unwrap();
    let load = runs[0].figures.iter().find(|figure| figure.name == "load").unwrap();
    let figure = load.clone().relative_to(Reference::First);
    let values = draw::draw(&figure, &runs[0]).unwrap().values().unwrap();
    assert_eq!(values.head[2], "throughput (× the first)");
    let of = |name: &str| {
        values.rows.iter().filter(|row| row[0] == name).map(|row| row[2].clone()).collect::<Vec<_>>()
    };
    assert_eq!(of("millrace")[..4], ["1", "2", "4", "8"]);
    assert_eq!(of("linux")[..4], ["1", "2", "4", "4.852 (4.704..5.001)"]);
}

#[test]
fn results_without_figures_get_default_ones() {
    let text: String = results()
        .lines()
        .filter(|line| !line.contains("\"figure\""))
        .map(|line| format!("{line}\n"))
        .collect();
    let (html, markdown) = report_of(&text);
    assert!(html.contains("load: throughput") && html.contains("scale: CPU per packet"));
    assert!(markdown.contains("÷ linux"));
}

#[test]
fn reports_are_written_where_asked() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("a.jsonl"), results()).unwrap();
    write(directory.path(), None).unwrap();
    write(directory.path(), Some(&directory.path().join("other.html"))).unwrap();
    let read = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap();
    assert_eq!(read("report.html"), read("other.html"));
    assert_eq!(read("report.md"), read("other.md"));
    assert!(read("report.md").starts_with("# Millrace: measured\n"));
}

#[test]
fn dates_are_right_at_the_edges() {
    let seen = [0, 951_782_400, 951_868_800, 1_795_261_274, 4_102_444_799].map(date);
    let expected =
        ["1970-01-01 00:00", "2000-02-29 00:00", "2000-03-01 00:00", "2026-11-21 11:41", "2099-12-31 23:59"];
    assert_eq!(seen, expected);
}

fn arbitrary_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(|number| json!(number)),
        "[a-z/~<é\n]{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map(word(), inner, 0..5)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// Names with a meaning, and others.
fn word() -> impl Strategy<Value = String> {
    let known = [
        "record",
        "case",
        "subject",
        "repeat",
        "pace",
        "rate",
        "parameters",
        "sample",
        "lost",
        "noisy",
        "received_pps",
        "offered_pps",
        "unexplained",
        "skipped",
        "sent",
        "x",
        "y",
        "points",
        "series",
        "where",
        "run",
    ];
    prop_oneof![prop::sample::select(known.to_vec()).prop_map(str::to_owned), "[a-z/~<]{0,4}"]
}

/// A good line in which one value is replaced.
fn bent_line() -> impl Strategy<Value = String> {
    let lines: Vec<Value> = results().lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    (prop::sample::select(lines), any::<prop::sample::Index>(), arbitrary_json()).prop_map(
        |(mut line, at, value)| {
            let mut places: Vec<String> = Vec::new();
            place("", &line, &mut places);
            if let Some(old) = line.pointer_mut(&places[at.index(places.len())]) {
                *old = value;
            }
            line.to_string()
        },
    )
}

fn place(at: &str, value: &Value, places: &mut Vec<String>) {
    places.push(at.into());
    for (name, value) in value.as_object().into_iter().flatten() {
        place(&format!("{at}/{}", name.replace('~', "~0").replace('/', "~1")), value, places);
    }
}

proptest! {
    #[test]
    fn no_lines_make_it_panic(
        lines in prop::collection::vec(
            prop_oneof![bent_line(), bent_line(), arbitrary_json().prop_map(|value| value.to_string()), any::<String>()], 0..20),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut text = lines.join("\n");
        let mut end = cut.index(text.len() + 1);
        while !text.is_char_boundary(end) { end -= 1 }
        text.truncate(end);
        if let Ok(runs) = read::runs("a.jsonl", &text) {
            let blocks = blocks(&Results { runs, unread: Vec::new() });
            let html = page::html(TITLE, &blocks);
            prop_assert!(!html.contains("NaN"), "{html}");
            page::markdown(&blocks);
        }
    }

    #[test]
    fn no_document_makes_it_panic(run in arbitrary_json(), list in arbitrary_json(), name in "samples|lines|x") {
        let text = json!({"run": run, name: list, "parameters": {}}).to_string();
        if let Ok(runs) = read::runs("a.json", &text) {
            page::html(TITLE, &blocks(&Results { runs, unread: Vec::new() }));
        }
    }
}
