//! The commands that print state, as an operator uses them, on a box with a tenant.

use crate::{
    bed::{Bed, ping, run},
    daemon::{Leftovers, eventually_true},
};
use serde_json::Value;

fn text(daemon: &crate::daemon::Daemon, words: &[&str]) -> String {
    let output = daemon.millrace(words);
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
#[ignore = "needs root"]
fn commands_print_one_line_of_json_and_tables_that_fit() {
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    let daemon = bed.start(2, &[]);
    ping(&bed.client, "10.7.2.2", 5);
    for words in [
        &["status"][..],
        &["ports"],
        &["routers"],
        &["interfaces"],
        &["interfaces", "--rates"],
        &["firewall"],
        &["connections"],
        &["routes"],
        &["routes", "0.0.0.0/0", "--longer", "--router", bed.red_name()],
        &["neighbours"],
        &["cores"],
        &["controllers"],
        &["sas"],
        &["flows", "list"],
    ] {
        let json = text(&daemon, &[words, &["--json"]].concat());
        assert_eq!(json.lines().count(), 1, "{words:?}: {json}");
        serde_json::from_str::<Value>(&json).unwrap();
        let table = text(&daemon, words);
        // Settings of `cores` and notes are sentences.
        let is_row =
            |line: &&str| line.contains("  ") && !line.starts_with("policy") && !line.starts_with(' ');
        let rows = table.lines().filter(is_row);
        for line in rows {
            assert!(line.chars().count() <= 100, "{words:?}: {line}");
            assert!(!line.contains("NaN"), "{line}");
        }
        println!("$ millrace {}\n{table}", words.join(" "));
    }
    let top = text(&daemon, &["top", "--once"]);
    println!("$ millrace top --once\n{top}");
    for part in ["no paths are configured", "connections that bypass a firewall", "RX BIT/S"] {
        assert!(top.contains(part), "{part}: {top}");
    }
}

/// The first line names what is not fast, and it is listed once.
#[test]
#[ignore = "needs root"]
fn status_names_what_is_not_fast() {
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    let daemon = bed.start(2, &[]);
    let first = |daemon: &crate::daemon::Daemon| text(daemon, &["status"]).lines().next().unwrap().to_owned();
    assert_eq!(first(&daemon), "forwarding; IPv4 and IPv6 of all 2 routers are on the fast path");
    assert_eq!(daemon.ask(&["status"])["summary"]["state"], "fast");
    run(&bed.red, "ip rule add priority 100 table 100");
    let wanted = format!(
        "forwarding; router {}: IPv4 on the kernel path: policy rule with priority 100",
        bed.red_name()
    );
    eventually_true("the policy rule to be named first", || first(&daemon) == wanted);
    let status = text(&daemon, &["status"]);
    assert_eq!(status.matches("rule del priority 100").count(), 1, "{status}");
    let summary = &daemon.ask(&["status"])["summary"];
    assert_eq!(
        (&summary["state"], format!("forwarding; {}", summary["text"].as_str().unwrap())),
        (&"slow".into(), wanted)
    );
    assert_eq!(summary["not_fast"], serde_json::json!([summary["text"]]), "{summary}");
    assert!(summary["notes"].to_string().contains("rule del priority 100"), "{summary}");
    println!("$ millrace status\n{status}");
    let routers = daemon.ask(&["routers"]);
    let red = routers.as_array().unwrap().iter().find(|r| r["router"] == bed.red_name()).unwrap();
    assert_eq!(red["why_not"]["ipv4"][0]["code"], "policy_rule", "{red}");
    run(&bed.red, "ip rule del priority 100");
    eventually_true("the router to be fast again", || first(&daemon).contains("of all 2 routers"));
}

/// A list has every route of Linux once, in order, however short its pages are.
#[test]
#[ignore = "needs root"]
fn routes_are_listed_exact_longer_and_bounded() {
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    let daemon = bed.start(2, &[]);
    let batch: String =
        (0..300).map(|i| format!("route add 10.99.{}.{}/30 via 10.7.2.2\n", i / 64, i % 64 * 4)).collect();
    bed.red.ip_batch(&batch).unwrap();
    let red = bed.red_name();
    let list = |limit: &str| {
        let words = ["routes", "10.99.0.0/16", "--longer", "--limit", limit, "--router", red];
        daemon.ask(&words)
    };
    eventually_true("all routes to be listed", || list("1000")["routes"].as_array().unwrap().len() == 300);
    let all = list("1000");
    assert_eq!(all["more"], 0);
    let prefixes: Vec<_> =
        all["routes"].as_array().unwrap().iter().map(|r| r["prefix"].as_str().unwrap()).collect();
    assert_eq!((prefixes[0], prefixes[1], prefixes[299]), ("10.99.0.0/30", "10.99.0.4/30", "10.99.4.172/30"));
    let hop = &all["routes"][7]["hops"][0];
    assert_eq!((&hop["action"], &hop["next_hop"]), (&"forward".into(), &"10.7.2.2".into()), "{hop}");
    let some = list("7");
    assert_eq!((some["routes"].as_array().unwrap().len(), &some["more"]), (7, &293.into()));
    assert!(
        text(&daemon, &["routes", "10.99.0.0/16", "--longer", "--limit", "7", "--router", red])
            .ends_with("293 more routes; --limit lists more\n")
    );
    let exact = daemon.ask(&["routes", "10.99.1.4/30", "--router", red]);
    assert_eq!(exact["routes"].as_array().unwrap().len(), 1);
    let none = text(&daemon, &["routes", "10.99.0.0/16", "--router", red]);
    assert!(none.contains("no route to exactly 10.99.0.0/16"), "{none}");
    let unknown = daemon.millrace(&["routes", "10.0.0.0/8", "--router", "nobody"]);
    assert!(!unknown.status.success() && String::from_utf8_lossy(&unknown.stderr).contains("no router"));

    let interfaces = daemon.ask(&["interfaces", "--router", red, "--rates"]);
    let has = |address: &str| {
        let mut all = interfaces.as_array().unwrap().iter().flat_map(|i| i["addresses"].as_array().unwrap());
        all.any(|found| found == address)
    };
    assert!(has("10.7.1.1/24") && has("10.7.2.1/24"), "{interfaces}");
    assert!(interfaces[0]["rx_packets_per_s"].is_number(), "{interfaces}");

    ping(&bed.client, "10.7.2.2", 3);
    let neighbours = daemon.ask(&["neighbours", "--router", red]);
    let found = neighbours.as_array().unwrap().iter().find(|n| n["address"] == "10.7.2.2").unwrap();
    assert_eq!((&found["why_not"], found["mac"].as_str().unwrap().len()), (&Value::Null, 17), "{found}");
    assert_eq!(daemon.ask(&["neighbours", "--router", "nobody"]), Value::Array(Vec::new()));
}
