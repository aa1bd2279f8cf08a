//! `millrace check`: what a daemon would do, and nothing is done.

use crate::{
    bed::{Bed, run},
    daemon::{Daemon, binary},
    firewall::nft,
    load::testbed,
};
use lab::{namespace::Namespace, subject};
use serde_json::{Value, json};
use std::{fs, process::Output};

const PORTS: [&str; 4] = ["--port", "p1", "--port", "p2"];

fn millrace(namespace: &Namespace, words: &[&str]) -> Output {
    namespace.command(binary()).args(words).output().unwrap()
}

/// The report, and whether the daemon would start.
fn check(namespace: &Namespace, instance: &str, words: &[&str]) -> (Value, bool) {
    let output = millrace(namespace, &[&["check", "--json", "--instance", instance][..], words].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    let report = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text} {output:?}"));
    (report, output.status.success())
}

/// What is known of a router before packets come.
fn routers(of: &Value) -> Vec<Value> {
    let router = |r: &Value| {
        json!([r["router"], r["accelerated"], r["why_not"], r["ruled"], r["interfaces"], r["left_to_kernel"]])
    };
    of["routers"].as_array().unwrap().iter().map(router).collect()
}

/// Files of an instance.
fn left(instance: &str) -> Vec<String> {
    let names = ["/run", "/sys/fs/bpf"].into_iter().flat_map(|directory| fs::read_dir(directory).unwrap());
    let names = names.map(|file| file.unwrap().path().display().to_string());
    names.filter(|name| name.contains(&format!("millrace-{instance}"))).collect()
}

#[test]
#[ignore = "needs root"]
fn a_check_says_what_the_daemon_then_does_and_changes_nothing() {
    let bed = Bed::new();
    // The rules of `red` may drop some packets, and the host does not forward IPv6.
    nft(&bed, "table ip t { chain f { type filter hook forward priority 0; udp dport 9 drop; }; }");
    bed.the_box.sysctl(&[("net/ipv6/conf/all/forwarding", "0")]).unwrap();
    let links = || run(&bed.the_box, "ip -d link show");
    let before = links();
    let (report, starts) = check(&bed.the_box, &bed.name, &PORTS);
    assert!(starts && report["why_not"] == Value::Null, "{report:#}");
    assert_eq!(links(), before);
    assert_eq!(left(&bed.name), [""; 0]);
    assert_eq!(report["ports"][0]["mode"], "native");

    let daemon = bed.start(0, &[]);
    let status = daemon.ask(&["status"]);
    assert_eq!(routers(&report), routers(&status));
    assert_eq!(report["firewall"], daemon.ask(&["firewall"]));
    // The daemon does not notice another check.
    let links_of_daemon = links();
    let (again, starts) = check(&bed.the_box, &bed.name, &PORTS);
    assert!(starts, "{again:#}");
    assert_eq!(routers(&again), routers(&status));
    assert_eq!(links(), links_of_daemon);
    let after = daemon.ask(&["status"]);
    assert_eq!((&after["generation"], &after["ready"]), (&status["generation"], &json!(true)));
}

#[test]
#[ignore = "needs root"]
fn a_check_says_in_words_what_would_not_be_fast() {
    let bed = Bed::new();
    let said = |words: &[&str]| {
        let output = millrace(&bed.the_box, words);
        (String::from_utf8_lossy(&output.stdout).into_owned(), output.status.success())
    };
    let name = &bed.name;
    let file = std::env::temp_dir().join(format!("{name}-check.toml"));
    fs::write(&file, "ports = [\"p1\", \"p2\", \"p9\"]\n").unwrap();
    let words = ["check", "--instance", name, "--config", file.to_str().unwrap()];
    let (text, starts) = said(&words);
    assert!(
        starts && text.contains("port p9 does not exist yet; it would be used once it appears"),
        "{text}"
    );
    assert!(text.ends_with("Millrace would start; 1 of 3 ports would be left to Linux\n"), "{text}");
    let run_words = ["run", "--dry-run", "--instance", name, "--config", file.to_str().unwrap()];
    assert_eq!(said(&run_words), (text, true));
    fs::remove_file(&file).unwrap();

    let words = [&["check", "--instance", name][..], &PORTS].concat();
    let (text, _) = said(&words);
    assert!(text.ends_with("\nMillrace would start; all routers would be fast\n"), "{text}");
    run(&bed.the_box, "ip link set dev p1 down");
    let (text, starts) = said(&words);
    assert!(starts && text.contains("the port is down"), "{text}");
    assert!(text.ends_with("Millrace would start; 1 of 2 ports would be left to Linux\n"), "{text}");
    run(&bed.the_box, "ip link set dev p1 up");
    nft(&bed, "table ip t { chain f { type filter hook forward priority 0; udp dport 9 drop; }; }");
    let (text, _) = said(&words);
    assert!(text.contains("nftables chain ip t f"), "{text}");
}

#[test]
#[ignore = "needs root"]
fn a_check_names_what_keeps_the_daemon_from_starting() {
    let bed = Bed::new();
    let why = |words: &[&str]| {
        let (report, starts) = check(&bed.the_box, &bed.name, words);
        assert!(!starts, "{report:#}");
        report["why_not"].as_str().unwrap().to_owned()
    };
    assert_eq!(why(&["--port", "p1", "--port", "p1"]), "port p1 is given twice");
    bed.the_box.ip_batch("link add dull type bridge\nlink set dull up\n").unwrap();
    let dull = ["--port", "p1", "--port", "dull"];
    assert!(why(&dull).starts_with("port dull: the driver has no native XDP"), "{}", why(&dull));
    let (report, starts) = check(&bed.the_box, &bed.name, &[&dull[..], &["--generic"]].concat());
    assert!(starts, "{report:#}");
    let modes = |report: &Value| [0, 1].map(|n| report["ports"][n]["mode"].clone());
    assert_eq!(modes(&report), ["native", "generic"]);
    // Without --generic, too: a daemon keeps the program that runs.
    let daemon = Daemon::start(&bed.the_box, &bed.name, &[&dull[..], &["--generic"]].concat());
    let (report, starts) = check(&bed.the_box, &bed.name, &dull);
    assert!(starts && modes(&report) == ["native", "generic"], "{report:#}");
    daemon.leave();
    let daemon = Daemon::start(&bed.the_box, &bed.name, &dull);
    assert_eq!(modes(&daemon.ask(&["status"])), ["native", "generic"]);
    daemon.stop();
    // Only attaching shows whether a driver refuses.
    run(&bed.the_box, "ip link set dev p1 mtu 3000");
    let (report, _) = check(&bed.the_box, &bed.name, &["--port", "p1"]);
    let note = report["ports"][0]["note"]["text"].as_str().unwrap_or_default();
    assert!(note.contains("its MTU is 3000"), "{report:#}");
    run(&bed.the_box, "ip link set dev p1 mtu 1500");

    // The configuration itself.
    let file = std::env::temp_dir().join(format!("{}-check.toml", bed.name));
    fs::write(&file, "ports = [\"p1\"]\n[policing]\ncontrol_pps = -1\n").unwrap();
    let output = millrace(&bed.the_box, &["check", "--json", "--config", file.to_str().unwrap()]);
    assert!(!output.status.success());
    let error: Value = serde_json::from_slice(&output.stdout).unwrap();
    let expected = format!("{}:3: policing.control_pps: -1 is not allowed", file.display());
    assert!(error["error"].as_str().unwrap().starts_with(&expected), "{error}");
    fs::remove_file(&file).unwrap();
    let output = millrace(&bed.the_box, &["check", "--instance", &bed.name]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains(&format!("/etc/millrace/{}.toml", bed.name)), "{error}");
}

#[test]
#[ignore = "needs root"]
fn a_check_names_the_program_that_a_port_runs() {
    let testbed = testbed(0);
    let _redirect = subject::start("redirect", &testbed).unwrap();
    let ports = ["--port", "eth2", "--port", "eth1"];
    let (report, starts) = check(&testbed.box_namespace, &testbed.name, &ports);
    let why = report["why_not"].as_str().unwrap_or_default();
    assert!(!starts && why.contains("port eth1: ") && why.contains("redirect"), "{report:#}");
}
