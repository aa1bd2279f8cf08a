//! Lines and tables of invented results.

use clap::Parser;

use super::*;
use crate::{
    measure::spread,
    method::{Latency, back_to_back, latency, reset},
};

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    options: Rfc2544Options,
}

fn outcome(sent: u64, received: u64, skipped: u64) -> Outcome {
    let latency = Some(Latency { p99_ns: 20_000, ..Latency::default() });
    Outcome { sent, skipped, received, offered_pps: 500_000.0, latency, ..Outcome::default() }
}

fn of_frame() -> OfFrame {
    let found = |pps| Throughput { pps, trials: Vec::new(), noisy: pps.is_none() };
    let throughput = vec![Repeated {
        loss: 0.0,
        pps: spread(&[1e6]),
        searches: vec![found(Some(1_000_000)), found(None)],
    }];
    let none = spread(&[0.0]);
    let at = latency::AtRate {
        pps: 500_000,
        p50_ns: none,
        p99_ns: spread(&[20_000.0]),
        p999_ns: none,
        max_ns: none,
        mean_ns: none,
        loss: none,
        trials: vec![outcome(1000, 999, 0), outcome(1000, 1000, 2)],
        noisy: false,
    };
    let search = back_to_back::Search {
        between: (16, 100),
        step: 16,
        losses_to_believe: 1,
        repeats: 1,
        back_to_back_pps: 1e6,
        throughput_pps: 1e5,
    };
    let back_to_back = BackToBack {
        search,
        frames_mean: 58.0,
        frames_deviation: 0.0,
        frames: spread(&[58.0]),
        implied_buffer_seconds: 0.0,
        corrected_buffer_seconds: 0.0,
        at_limit: false,
        trials: vec![vec![outcome(100, 90, 0), outcome(58, 58, 0), outcome(79, 78, 0)]],
        noisy: false,
    };
    let outage = Outage { outcome: outcome(1000, 500, 0), gap_ns: 7_000_000 };
    let reset = reset::ResetTime {
        event: Event::Killed,
        pps: 100_000,
        reset_ns: none,
        gap_ns: spread(&[7e6]),
        lost: spread(&[500.0]),
        trials: vec![outage],
        noisy: false,
    };
    OfFrame {
        frame: 64,
        throughput_pps: 1_000_000,
        throughput,
        latency: Some(vec![at.clone(), at]),
        back_to_back: Some(back_to_back),
        reset: vec![reset],
        ..OfFrame::default()
    }
}

#[test]
fn every_repeat_is_a_line_and_every_figure_finds_some() {
    let options = Line::parse_from(["rfc2544"]).options;
    let document = document(&options, &[of_frame()], &[json!({"case": "trial"})], &Ok(()));
    let lines = document["lines"].as_array().unwrap();
    let seen: Vec<Value> = lines
        .iter()
        .filter(|line| line["record"] == "sample")
        .map(|line| json!([line["case"], line["repeat"], line["noisy"], line["parameters"]["frame"]]))
        .collect();
    let expected = [
        json!(["throughput", 0, false, 64]),
        json!(["throughput", 1, true, 64]),
        json!(["latency", 0, false, 64]),
        json!(["latency", 1, true, 64]),
        json!(["latency", 0, false, 64]),
        json!(["latency", 1, true, 64]),
        json!(["back-to-back", 0, false, 64]),
        json!(["reset", 0, false, 64]),
    ];
    assert_eq!(seen, expected);
    let first = |at: &str| lines.iter().find_map(|line| line.pointer(at)).unwrap();
    assert_eq!(first("/sample/throughput_gbps"), 0.512);
    assert_eq!(
        (first("/parameters/loss"), first("/parameters/at")),
        (&"no loss".into(), &"throughput".into())
    );
    assert_eq!((first("/sample/burst_frames"), first("/sample/reset_ms")), (&58.into(), &5.0.into()));
    assert_eq!((first("/sample/gap_ms"), first("/parameters/event")), (&7.0.into(), &"killed".into()));
    assert_eq!(lines.last().unwrap()["case"], "trial");
    for figure in
        figures().iter().filter(|figure| !["frame-loss", "recovery"].contains(&figure.name.as_str()))
    {
        let places = figure
            .series
            .iter()
            .chain(&figure.x.as_ref().map(|x| x.at.clone()))
            .chain([&figure.y.at])
            .cloned()
            .collect::<Vec<_>>();
        let found = lines.iter().any(|line| {
            figure.only.iter().all(|(at, value)| line.pointer(at) == Some(value))
                && places.iter().all(|at| line.pointer(at).is_some())
        });
        assert!(found, "{}", figure.name);
    }
}

#[test]
fn tables_have_what_was_found_and_only_that() {
    let results = [of_frame()];
    assert!(throughput(&results).ends_with("| 64 | 1.000 (1.000..1.000) (noisy) | 0.51 (0.51..0.51) |\n"));
    let latency = latency(&results);
    assert!(
        latency.contains("| 64 | 0.500 (half the throughput) | 0.0 (0.0..0.0) | 20.0 (20.0..20.0) |"),
        "{latency}"
    );
    assert_eq!(loss(&results), "");
    assert!(edges(&results).ends_with("| 64 | 58 (58..58) | 0.0 | - |\n"));
    let reset = "| 64 | killed | 0.100 | 500 (500..500) | 0.00 (0.00..0.00) | 7.00 (7.00..7.00) |\n";
    assert!(super::reset(&results).ends_with(reset));
    let lossy = |event, received| {
        let mut result = of_frame();
        result.reset[0].event = event;
        result.reset[0].trials[0].outcome = outcome(1000, received, 0);
        super::reset(&[result])
    };
    let much = lossy(Event::Nothing, 980);
    assert!(much.contains("\n0.100 Mpps is more than the router carries: 2.0 % were lost"), "{much}");
    for quiet in [lossy(Event::Nothing, 995), lossy(Event::Killed, 500)] {
        assert!(!quiet.contains("more than the router carries"), "{quiet}");
    }
}
