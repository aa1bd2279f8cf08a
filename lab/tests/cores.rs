//! Moves of queues keep the order of packets: the part `drain` of `millrace-lab cores`. Its other parts judge how soon cores
//! come and go, which depends on what else the machine does. They are measurements (`make bench-goals`), not tests.

use std::process::Command;

use serde_json::Value;

/// The samples of a part, which runs this many times.
fn run(part: &str, times: u64) -> Vec<Value> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cores.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_millrace-lab"));
    command.args(["cores", "--only", part, "--repeat", &times.to_string(), "--json"]).arg(&path);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut measured: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let lines = measured["lines"].as_array_mut().unwrap().drain(..);
    lines.filter(|line| line["record"] == "sample" && line["case"] == part).collect()
}

/// Samples of one way to move.
fn of<'a>(samples: &'a [Value], way: &'static str) -> impl Iterator<Item = &'a Value> {
    samples.iter().filter(move |line| line["subject"] == way).map(|line| &line["sample"])
}

/// The number of times that each way makes 200 moves, 100 with each place of the receivers. `make soak` sets
/// MILLRACE_CASES.
fn times() -> u64 {
    std::env::var("MILLRACE_CASES").ok().and_then(|times| times.parse().ok()).unwrap_or(3)
}

/// Some moves that do not wait reorder packets. Moves that wait until the transmit queue is empty reorder none. A wait
/// ends after a millisecond even if packets remain.
#[test]
#[ignore = "needs root"]
fn moves_that_wait_for_the_transmit_queue_reorder_nothing() {
    let samples = run("drain", times());
    let sum = |way, name: &str| of(&samples, way).map(|sample| sample[name].as_u64().unwrap()).sum::<u64>();
    assert!(sum("at once", "reordered") > 0, "{samples:#?}");
    assert_eq!(sum("waiting", "moves"), times() * 200);
    assert!(sum("waiting", "remained") < times() * 100, "{samples:#?}");
    for sample in of(&samples, "waiting") {
        let [reordered, remained] = ["reordered", "remained"].map(|name| sample[name].as_u64().unwrap());
        // A ring has 256 packets.
        assert!(reordered <= remained * 256, "{sample:#}");
    }
}

mod measure {
    use super::*;
    use lab::measure::median;

    const TIMES: u64 = 3;

    fn each(part: &str, name: &str) -> Vec<f64> {
        run(part, TIMES).iter().map(|line| line["sample"][name].as_f64().unwrap()).collect()
    }

    #[test]
    #[ignore = "a measurement"]
    fn a_step_gets_its_second_core_within_50_ms() {
        let reactions = each("step", "reaction_ms");
        assert!(median(&reactions) < 50.0, "{reactions:?}");
    }

    #[test]
    #[ignore = "a measurement"]
    fn nothing_is_lost_on_a_ramp_while_a_core_is_added() {
        for line in run("ramp", TIMES) {
            let ramp = &line["sample"];
            assert_eq!((&ramp["cores"], &ramp["unexplained"]), (&2.into(), &0.into()), "{ramp}");
            assert_eq!(ramp["sent"], ramp["received"], "{ramp}");
        }
    }

    #[test]
    #[ignore = "a measurement"]
    fn a_wobble_around_the_mark_moves_a_queue_at_most_once_in_a_hold_time() {
        let most = each("wobble", "moves_per_hold");
        assert!(median(&most) <= 1.0, "{most:?}");
    }

    #[test]
    #[ignore = "a measurement"]
    fn moves_under_every_load_reorder_nothing() {
        let all: Vec<Value> =
            ["step", "ramp", "wobble"].into_iter().flat_map(|part| run(part, TIMES)).collect();
        let sum = |name: &str| all.iter().map(|line| line["sample"][name].as_u64().unwrap()).sum::<u64>();
        assert!(sum("moves") >= 12, "{all:#?}");
        assert_eq!((sum("reordered"), sum("duplicates")), (0, 0), "{all:#?}");
    }
}
