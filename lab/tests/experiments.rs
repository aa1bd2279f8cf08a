//! The experiments as commands: what they write, also when they are interrupted. Root, in namespaces of their own.

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
};

use serde_json::Value;

fn lab(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millrace-lab"));
    command.args(arguments.split(' ')).stdout(Stdio::null());
    command
}

#[test]
#[ignore = "needs root"]
fn an_interrupted_rfc2544_keeps_what_it_measured_and_leaves_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rfc2544.json");
    let mut command = lab("rfc2544 --subject redirect --frames 64 --seconds 0.2 --json");
    let mut child = command.arg(&path).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let third = lines.find(|line| line.as_ref().unwrap().contains("[3/")).expect("a third trial").unwrap();
    assert!(third.contains(" left] 64 bytes, "), "{third}");
    lab::sys::terminate(child.id() as i32);
    lines.for_each(|line| drop(line.unwrap()));
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let document: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!((&document["interrupted"], &document["results"][0]["frame"]), (&true.into(), &64.into()));
    let is_trial = |line: &&Value| line["case"] == "trial" && line["sample"]["sent"].as_u64() > Some(0);
    assert!(document["lines"].as_array().unwrap().iter().filter(is_trial).count() >= 3);
    let namespaces = lab::command::ip("netns list").unwrap();
    assert!(!namespaces.contains(&format!("mlr-{}-", child.id())), "{namespaces}");
}
