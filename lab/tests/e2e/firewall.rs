//! Routers whose rules affect only some packets.

use std::{io::Write as _, net::UdpSocket, process::Stdio, time::Duration};

use lab::{command, namespace::Namespace};

use crate::{
    bed::{Background, Bed, output, ping},
    daemon::{Daemon, Leftovers, eventually, eventually_true, router},
};

pub const SERVER: &str = "10.7.2.2";
pub const SERVER6: &str = "fd07:2::2";
const RULESETS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../router/tests/firewall/rulesets");

/// Gives a tool this text.
fn feed(namespace: &Namespace, tool: &str, text: &str) {
    let words: Vec<&str> = tool.split(' ').collect();
    let mut command = namespace.command(words[0]);
    let mut child = command.args(&words[1..]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{tool}: {text}");
}

pub fn nft(bed: &Bed, text: &str) {
    feed(&bed.red, "nft -f -", text);
}

fn start(bed: &Bed, more: &[&str]) -> Daemon {
    Daemon::start(&bed.the_box, &bed.name, &[&["--port", "p1", "--port", "p2"], more].concat())
}

/// Waits until IPv4 and IPv6 of red are fast, at least for some packets, and the rest is as wanted.
fn until_fast(daemon: &mut Daemon, bed: &Bed, ruled: [bool; 2]) {
    daemon.until(&format!("red to be fast, ruled {ruled:?}"), |status| {
        let red = router(status, bed.red_name());
        let none = serde_json::json!([]);
        red["why_not"]["ipv4"] == none
            && red["why_not"]["ipv6"] == none
            && [&red["ruled"]["ipv4"], &red["ruled"]["ipv6"]] == ruled
    });
}

/// Pings, and returns how many packets red forwarded on the fast path.
fn forwarded(daemon: &Daemon, bed: &Bed, to: &str) -> u64 {
    let count = || daemon.router(bed.red_name())["packets"]["forwarded"].as_u64().unwrap();
    let before = count();
    ping(&bed.client, to, 20);
    count() - before
}

/// Bridges as Docker makes them, and a container behind one of them.
fn container(bed: &Bed) -> Namespace {
    let container = Namespace::create(format!("{}-container", bed.name)).unwrap();
    bed.red
        .ip_batch(&format!(
            "link add docker0 type bridge\nlink set docker0 up\naddr add 172.17.0.1/16 dev docker0\n\
             link add bridge1 type bridge\nlink set bridge1 up\naddr add 192.0.2.1/24 dev bridge1\n\
             link add veth1 type veth peer name eth0 netns {}\nlink set veth1 master bridge1 up\n",
            container.name()
        ))
        .unwrap();
    container
        .ip_batch("link set eth0 up\naddr add 192.0.2.2/24 dev eth0\nroute add default via 192.0.2.1\n")
        .unwrap();
    container
}

#[test]
#[ignore = "needs root"]
fn docker_changes_nothing_for_packets_that_it_has_no_part_in() {
    for file in ["docker.nft", "docker.iptables"] {
        let bed = Bed::new();
        let _leftovers = Leftovers(bed.name.clone());
        let container = container(&bed);
        let rules = std::fs::read_to_string(format!("{RULESETS}/{file}")).unwrap();
        let tool = if file.ends_with(".nft") { "nft -f -" } else { "iptables-nft-restore" };
        feed(&bed.red, tool, &rules);
        let mut daemon = start(&bed, &[]);
        until_fast(&mut daemon, &bed, [true, false]);
        ping(&bed.client, SERVER, 3);
        ping(&bed.client, SERVER6, 3);
        assert!(forwarded(&daemon, &bed, SERVER) >= 40, "{file}");
        assert!(forwarded(&daemon, &bed, SERVER6) >= 40, "{file}");

        // Linux still translates what it has to: the port of the container, and its address.
        let server = Background::start(&container, "python3 -m http.server 80 --directory /sys/class/net");
        let got = |from: &Namespace, url: &str| {
            let mut curl = from.command("curl");
            command::run(curl.args([
                "-s",
                "--retry",
                "20",
                "--retry-connrefused",
                "--retry-delay",
                "1",
                "-m",
                "5",
                url,
            ]))
        };
        assert!(got(&bed.client, "http://10.7.1.1:8080/").unwrap().contains("eth0"), "{file}");
        drop(server);
        // The server has no route to the container, so its answers go to the router's address.
        ping(&container, SERVER, 10);

        let pairs = daemon.ask(&["firewall"]);
        let red = pairs.as_array().unwrap().iter().find(|r| r["router"] == bed.red_name()).unwrap();
        let pair = |from: &str, to: &str| {
            let has =
                |list: &serde_json::Value, name: &str| list.as_array().unwrap().iter().any(|n| n == name);
            let mut pairs = red["rules"]["ipv4"]["pairs"].as_array().unwrap().iter();
            pairs.find(|p| has(&p["from"], from) && has(&p["to"], to)).unwrap()["why_not"]["text"].clone()
        };
        assert_eq!(pair("in", "out"), serde_json::Value::Null, "{file}");
        assert!(pair("in", "bridge1").as_str().unwrap().contains("nftables chain ip "), "{pairs}");
        assert_eq!(red["rules"]["ipv6"], serde_json::Value::Null);
        daemon.stop();
    }
}

/// The first packet after a command returns is treated as Linux would treat it.
#[test]
#[ignore = "needs root"]
fn rules_and_elements_are_obeyed_when_their_command_returns_though_the_daemon_is_stopped() {
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    nft(
        &bed,
        "table inet t {
            set blocked { type ipv4_addr; }
            map verdicts { type ifname : verdict; }
            chain forward { type filter hook forward priority 0; ip saddr @blocked drop; iifname vmap @verdicts; }
            chain quiet { type filter hook forward priority 10; }
        }",
    );
    let mut daemon = start(&bed, &["--heartbeat", "1h"]);
    until_fast(&mut daemon, &bed, [false, false]);
    ping(&bed.client, SERVER, 3);
    for (change, back) in [
        ("add rule inet t quiet drop", "flush chain inet t quiet"),
        ("add element inet t blocked { 10.7.1.2 }", "delete element inet t blocked { 10.7.1.2 }"),
        ("add element inet t verdicts { in : drop }", "delete element inet t verdicts { in : drop }"),
        ("chain inet t quiet { policy drop; }", "chain inet t quiet { policy accept; }"),
        ("insert rule inet t forward ip daddr 10.7.2.2 drop", "flush chain inet t forward"),
    ] {
        // The daemon may not have read yet that the last change is undone.
        eventually_true(&format!("all packets to be fast before {change}"), || {
            forwarded(&daemon, &bed, SERVER) >= 40
        });
        daemon.pause(true);
        nft(&bed, change);
        let answered = output(&bed.client, &format!("ping -n -W 1 -c 1 {SERVER}"));
        daemon.pause(false);
        assert!(answered.contains("0 received"), "{change}: {answered}");
        nft(&bed, back);
    }

    // A rule that tests states keeps both directions with Linux, because conntrack must see both.
    nft(&bed, "add rule inet t quiet ct state new oifname in udp dport 7 drop");
    until_fast(&mut daemon, &bed, [true, true]);
    eventually_true("no packet to be fast", || forwarded(&daemon, &bed, SERVER) == 0);
    // While rules are being read, no packet is fast, either.
    for (packet, why) in [
        ("udp 10.7.1.2:9 -> 10.7.2.2:7", "between these interfaces: rules may affect replies"),
        ("udp 10.7.2.2:9 -> 10.7.1.2:7", "of nftables chain inet t quiet may drop packets"),
    ] {
        eventually(&format!("{packet} to be explained"), || {
            let explained = daemon.ask(&["explain", packet, "--router", bed.red_name()]).to_string();
            if explained.contains(why) { Ok(()) } else { Err(explained) }
        });
    }
    daemon.stop();
}

/// Linux translates a connection until it ends, even after the rule is deleted.
#[test]
#[ignore = "needs root"]
fn a_connection_is_translated_as_long_as_linux_translates_it() {
    let bed = Bed::new();
    let _leftovers = Leftovers(bed.name.clone());
    nft(
        &bed,
        "table ip n {
            chain post { type nat hook postrouting priority 100; oifname out ip saddr 10.7.1.2 masquerade; }
            chain forward { type filter hook forward priority 0; ct state invalid counter; }
        }",
    );
    let server = bed.server.enter(|| Ok(UdpSocket::bind("0.0.0.0:5000")?)).unwrap();
    server.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let client = bed.client.enter(|| Ok(UdpSocket::bind("10.7.1.2:4000")?)).unwrap();
    let other = bed.client.enter(|| Ok(UdpSocket::bind("10.7.1.2:4001")?)).unwrap();
    // Returns the sender that the server sees.
    let sender = |socket: &UdpSocket| {
        socket.send_to(b"x", (SERVER, 5000)).unwrap();
        server.recv_from(&mut [0; 8]).unwrap().1.ip().to_string()
    };
    let mut daemon = start(&bed, &[]);
    daemon.until("the rules to be read", |status| {
        router(status, bed.red_name())["ruled"]["ipv4"] == true
            || !router(status, bed.red_name())["why_not"]["ipv4"].as_array().is_none_or(Vec::is_empty)
    });
    assert_eq!(sender(&client), "10.7.2.1");
    nft(&bed, "flush chain ip n post");
    for _ in 0..50 {
        assert_eq!(sender(&client), "10.7.2.1", "its connection is still translated");
        assert_eq!(sender(&other), "10.7.1.2", "a new connection is not");
    }
    daemon.until("the router to be fast for others", |status| {
        router(status, bed.red_name())["why_not"]["ipv4"] == serde_json::json!([])
    });
    assert_eq!((sender(&client), sender(&other)), ("10.7.2.1".into(), "10.7.1.2".into()));
    daemon.stop();
}
