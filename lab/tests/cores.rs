//! What issue 5 promises of queues on cores, on a running daemon: one run of `millrace-lab cores`, and a test for each
//! promise. Timing is judged by the best of a few trials, as others may have the machine; order never is.

use std::{process::Command, sync::OnceLock};

use serde_json::Value;

/// Without the costs of packets, which need a quiet machine.
fn measured() -> &'static Value {
    static MEASURED: OnceLock<Value> = OnceLock::new();
    MEASURED.get_or_init(|| measure("step,ramp,wobble,drain"))
}

fn measure(parts: &str) -> Value {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cores.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_millrace-lab"));
    command.args(["cores", "--only", parts, "--repeat", "3", "--json"]).arg(&path);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// The trials of a part.
fn samples(part: &str) -> Vec<&Value> {
    samples_in(measured(), part)
}

fn samples_in<'a>(measured: &'a Value, part: &str) -> Vec<&'a Value> {
    let lines = measured["lines"].as_array().unwrap();
    let of_part = |line: &&Value| line["record"] == "sample" && line["case"] == part;
    let found: Vec<&Value> = lines.iter().filter(of_part).map(|line| &line["sample"]).collect();
    assert!(!found.is_empty(), "no {part}");
    found
}

#[test]
#[ignore = "needs root"]
fn a_step_gets_its_second_core_within_50_ms() {
    let reactions: Vec<f64> = samples("step").iter().map(|s| s["reaction_ms"].as_f64().unwrap()).collect();
    let fastest = reactions.iter().copied().fold(f64::INFINITY, f64::min);
    assert!(fastest < 50.0, "{reactions:?}");
}

#[test]
#[ignore = "needs root"]
fn nothing_is_lost_on_a_ramp_while_a_core_is_added() {
    let mut all = Vec::new();
    for trial in 0..3 {
        let again = (trial > 0).then(|| measure("ramp"));
        for ramp in samples_in(again.as_ref().unwrap_or_else(|| measured()), "ramp") {
            assert_eq!((&ramp["cores"], &ramp["unexplained"]), (&2.into(), &0.into()), "{ramp}");
            // A pause of the machine fills rings.
            if ramp["sent"] == ramp["received"] {
                return;
            }
            all.push(ramp.clone());
        }
    }
    panic!("{all:#?}");
}

#[test]
#[ignore = "needs root"]
fn a_wobble_around_the_mark_moves_a_queue_at_most_once_in_a_hold_time() {
    let mut most = Vec::new();
    // Growing never waits: a pause of the machine just after a core was given back takes it again.
    for trial in 0..3 {
        let again = (trial > 0).then(|| measure("wobble"));
        for wobble in samples_in(again.as_ref().unwrap_or_else(|| measured()), "wobble") {
            assert!(wobble["moves"].as_u64().unwrap() > 0, "{wobble}");
            most.push(wobble["moves_per_hold"].as_u64().unwrap());
        }
        if most.last().is_some_and(|most| *most <= 1) {
            return;
        }
    }
    panic!("the most moves of a queue in a hold time, of each trial: {most:?}");
}

#[test]
#[ignore = "needs root"]
fn moves_reorder_nothing() {
    let parts = ["step", "ramp", "wobble"];
    let all: Vec<&Value> = parts.into_iter().flat_map(samples).collect();
    let sum = |name: &str| all.iter().map(|sample| sample[name].as_u64().unwrap()).sum::<u64>();
    assert!(sum("moves") >= 12, "{all:#?}");
    assert_eq!((sum("reordered"), sum("duplicates")), (0, 0), "{all:#?}");
}

/// Of six times a hundred moves each way some reorder, if they do not wait for what was sent before.
#[test]
#[ignore = "needs root"]
fn moves_to_another_transmit_queue_that_wait_reorder_nothing() {
    let sum = |way: &str, name: &str| -> u64 {
        let lines = measured()["lines"].as_array().unwrap();
        let of_way = lines.iter().filter(|line| line["case"] == "drain" && line["subject"] == way);
        of_way.map(|line| line["sample"][name].as_u64().unwrap()).sum()
    };
    assert!(sum("at once", "reordered") > 0);
    assert_eq!((sum("waiting", "moves"), sum("waiting", "reordered")), (600, 0));
    // The machine may stand still.
    assert!(sum("waiting", "remained") < 60);
}
