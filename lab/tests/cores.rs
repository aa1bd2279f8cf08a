//! Moves of queues keep the order of packets: the part `drain` of `millrace-lab cores`. Its other parts judge how soon cores
//! come and go, which depends on what else the machine does: they are measurements, not tests.

use std::process::Command;

use serde_json::Value;

fn drain() -> Vec<Value> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cores.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_millrace-lab"));
    command.args(["cores", "--only", "drain", "--repeat", "3", "--json"]).arg(&path);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut measured: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let lines = measured["lines"].as_array_mut().unwrap().drain(..);
    lines.filter(|line| line["record"] == "sample" && line["case"] == "drain").collect()
}

/// Samples of one way to move.
fn of<'a>(samples: &'a [Value], way: &'static str) -> impl Iterator<Item = &'a Value> {
    samples.iter().filter(move |line| line["subject"] == way).map(|line| &line["sample"])
}

/// Each way 600 moves. Some that do not wait reorder packets; those that wait until the transmit queue is empty reorder none. A
/// wait ends after a millisecond even if packets remain.
#[test]
#[ignore = "needs root"]
fn moves_that_wait_for_the_transmit_queue_reorder_nothing() {
    let samples = drain();
    let sum = |way, name: &str| of(&samples, way).map(|sample| sample[name].as_u64().unwrap()).sum::<u64>();
    assert!(sum("at once", "reordered") > 0, "{samples:#?}");
    assert_eq!(sum("waiting", "moves"), 600);
    for sample in of(&samples, "waiting") {
        assert!(sample["reordered"] == 0 || sample["remained"] != 0, "{sample:#}");
    }
    assert!(of(&samples, "waiting").any(|sample| sample["remained"] == 0), "{samples:#?}");
}
