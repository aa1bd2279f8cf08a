//! Paths of the user plane in the daemon's configuration. No workers run yet, so packets take their path's word.

use std::{net::UdpSocket, time::Duration};

use lab::namespace::Namespace;
use serde_json::Value;

use crate::{
    bed::{Bed, be_router, ping},
    daemon::{Daemon, Leftovers, eventually_true},
};

/// To the server by red; did it come?
fn udp_arrives(bed: &Bed, port: u16) -> bool {
    let to = format!("10.7.2.2:{port}");
    let server = bed.server.enter(|| Ok(UdpSocket::bind(&to)?)).unwrap();
    server.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let client = bed.client.enter(|| Ok(UdpSocket::bind("10.7.1.2:0")?)).unwrap();
    client.send_to(&port.to_be_bytes(), &to).unwrap();
    let mut bytes = [0; 8];
    server.recv(&mut bytes).is_ok_and(|n| bytes[..n] == port.to_be_bytes())
}

fn path(daemon: &Daemon, name: &str) -> Value {
    let status = daemon.ask(&["status"]);
    let mut paths = status["paths"].as_array().unwrap().iter();
    paths.find(|path| path["path"] == name).cloned().unwrap_or_else(|| panic!("{status:#}"))
}

fn no_worker(counts: &Value) -> u64 {
    let found = counts.as_array().unwrap().iter().find(|count| count["reason"] == "path_no_worker");
    found.map_or(0, |count| count["packets"].as_u64().unwrap())
}

#[test]
#[ignore = "needs root"]
fn without_workers_packets_of_paths_take_their_paths_word() {
    let bed = Bed::new();
    let blue_name = format!("{}-blue", bed.name);
    let file = std::env::temp_dir().join(format!("{}.toml", bed.name));
    let red = bed.red_name();
    let text = format!(
        r#"
ports = ["p1", "p2"]
[workers]
cores = "0"
[[path]]
name = "later"
router = "{blue_name}"
chain = ["count", "discard"]
[[path]]
name = "open"
router = "{red}"
class = {{ protocol = "udp", destination_port = 4000 }}
chain = ["check", "route", "ttl", "rewrite"]
[[path]]
name = "sealed"
router = "{red}"
class = {{ protocol = "udp", destination_port = 5000 }}
chain = ["check", "route", "ttl", "rewrite"]
otherwise = "drop"
"#
    );
    std::fs::write(&file, text).unwrap();
    let _leftovers = Leftovers(bed.name.clone());
    let mut daemon = Daemon::start(&bed.the_box, &bed.name, &["--config", file.to_str().unwrap()]);
    daemon.until_accelerated(2);
    ping(&bed.client, "10.7.2.2", 5);
    let before = daemon.forwarded();
    assert!(udp_arrives(&bed, 4000), "as if there were no path");
    assert!(!udp_arrives(&bed, 5000), "dropped");
    assert!(udp_arrives(&bed, 6000), "of no path");
    assert_eq!(
        (no_worker(&path(&daemon, "open")["up"]), no_worker(&path(&daemon, "sealed")["dropped"])),
        (1, 1)
    );
    assert!(daemon.forwarded() - before >= 2, "what goes on is forwarded by the fast path");
    let why = path(&daemon, "later")["why_not"].clone();
    assert_eq!(why, format!("its router {blue_name} is not there (see `millrace routers`)"));
    let explained = daemon.ask(&["explain", "udp 10.7.1.2:9 -> 10.7.2.2:5000", "--router", red]);
    assert_eq!(
        (&explained[0]["path"], &explained[0]["verdict"]),
        (&"sealed".into(), &"drop".into()),
        "{explained:#}"
    );
    // A router that comes later.
    let blue = Namespace::create(blue_name.clone()).unwrap();
    be_router(&blue);
    bed.macvlan(&blue, "x", "p2");
    blue.ip_batch("link set x up\naddr add 10.9.0.2/24 dev x\n").unwrap();
    eventually_true("the router is there", || path(&daemon, "later")["why_not"].is_null());
    drop(blue);
    eventually_true("the router is gone", || !path(&daemon, "later")["why_not"].is_null());
    // Without a daemon forwarding goes on, and so does what a path drops.
    daemon.kill();
    ping(&bed.client, "10.7.2.2", 5);
    assert!(!udp_arrives(&bed, 5000), "nothing gets past a path that drops");
    assert!(udp_arrives(&bed, 4000));
    // The next daemon has other paths: none.
    let mut next = Daemon::start(&bed.the_box, &bed.name, &["--port", "p1", "--port", "p2"]);
    next.until_accelerated(2);
    assert!(udp_arrives(&bed, 5000));
    assert_eq!(next.ask(&["status"])["paths"], Value::Array(Vec::new()));
    next.stop();
    std::fs::remove_file(file).unwrap();
}
