//! Ways through the box other than from port to port of a named router: between two routers, over several next hops,
//! through a namespace without a name.

use std::process::{Child, Command, Stdio};

use lab::namespace::Namespace;

use crate::{
    bed::{Background, Bed, be_router, output, ping, run},
    daemon::eventually_true,
};

/// The text of a device's MAC address.
fn mac(namespace: &Namespace, device: &str) -> String {
    let text = run(namespace, &format!("ip -br link show {device}"));
    text.split_whitespace().nth(2).unwrap().to_owned()
}

#[test]
#[ignore = "needs root"]
fn a_next_hop_on_the_same_port_of_the_same_box_is_never_put_on_the_wire() {
    let bed = Bed::new();
    let blue = Namespace::create(format!("{}-blue", bed.name)).unwrap();
    be_router(&blue);
    bed.macvlan(&blue, "x", "p2");
    bed.macvlan(&blue, "y", "p2");
    blue.sysctl(&[("net/ipv4/conf/x/rp_filter", "0"), ("net/ipv4/conf/y/rp_filter", "0")]).unwrap();
    // client - red - (10.9.0.0/24 on p2) - blue - (10.9.2.0/24 on p2) - server
    blue.ip_batch(
        "link set x up\nlink set y up\naddr add 10.9.0.2/24 dev x\naddr add 10.9.2.1/24 dev y\n\
         route add 10.7.1.0/24 via 10.9.0.1\n",
    )
    .unwrap();
    bed.red.ip_batch("addr add 10.9.0.1/24 dev out\nroute add 10.9.2.0/24 via 10.9.0.2\n").unwrap();
    bed.client.ip_batch("route add 10.9.2.0/24 via 10.7.1.1\n").unwrap();
    bed.server.ip_batch("addr add 10.9.2.2/24 dev eth0\nroute replace 10.7.1.0/24 via 10.9.2.1\n").unwrap();
    let daemon = bed.start(3, &[]);
    let inner = [mac(&blue, "x"), mac(&bed.red, "out")];
    // Packets on the wire to or from the way between red and blue.
    let filter =
        format!("ip and ((ether dst {}) or (ether dst {} and ether src {}))", inner[0], inner[1], inner[0]);
    let mut tcpdump = bed.server.command("tcpdump");
    let watch = tcpdump.args(["-nlei", "eth0", &filter]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut watch = watch.spawn().unwrap();
    wait_for_line(&mut watch, "listening");
    ping(&bed.client, "10.9.2.2", 50);
    let text = output(&bed.client, "traceroute -n -q 1 -w 5 -N 1 10.9.2.2");
    let hops: Vec<&str> = text.lines().skip(1).filter_map(|line| line.split_whitespace().nth(1)).collect();
    assert_eq!(hops, ["10.7.1.1", "10.9.0.2", "10.9.2.2"], "{text}");
    watch.kill().unwrap();
    let seen = watch.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&seen.stdout), "", "put on the wire");
    daemon.assert_verified();
}

/// Reads standard error until a line holds `word`.
pub fn wait_for_line(child: &mut Child, word: &str) {
    use std::io::{BufRead, BufReader};
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains(word)), "no {word}");
}

#[test]
#[ignore = "needs root"]
fn multipath_uses_its_members_and_nothing_else() {
    let bed = Bed::new();
    // A second way to the server, with its own MAC address.
    bed.server
        .ip_batch(
            "link add second link eth0 type macvlan mode bridge\nlink set second up\n\
             addr add 10.7.2.3/24 dev second\nroute add local 198.51.100.0/24 dev lo\n",
        )
        .unwrap();
    // Only its own device answers for each address of the server.
    bed.server
        .sysctl(&[("net/ipv4/conf/all/arp_ignore", "1"), ("net/ipv4/conf/all/rp_filter", "0")])
        .unwrap();
    bed.red.ip_batch("route add 198.51.100.0/24 nexthop via 10.7.2.2 nexthop via 10.7.2.3\n").unwrap();
    bed.client.ip_batch("route add 198.51.100.0/24 via 10.7.1.1\n").unwrap();
    let daemon = bed.start(2, &[]);
    let forwarded = || daemon.router(bed.red_name())["packets"]["forwarded"].as_u64().unwrap();
    let everyone = || (1..=64).for_each(|n| ping(&bed.client, &format!("198.51.100.{n}"), 1));
    // The first packets resolve the neighbours.
    everyone();
    eventually_true("the fast path takes all", || {
        let before = forwarded();
        everyone();
        forwarded() - before == 128
    });
    let received = |device: &str| -> u64 {
        let text = run(&bed.server, "cat /proc/self/net/dev");
        let line = text.lines().find_map(|line| line.trim().strip_prefix(&format!("{device}:"))).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let before = (received("eth0"), received("second"));
    everyone();
    // eth0 also sees packets to `second`.
    let (all, second) = (received("eth0") - before.0, received("second") - before.1);
    assert!(
        (64..64 + 20).contains(&all) && second > 8 && second < 56,
        "{second} of {all} by the second next hop"
    );
    let route = daemon.ask(&["routes", "198.51.100.1", "--router", bed.red_name()]);
    let hops = route["hops"].as_array().unwrap();
    assert_eq!(hops.iter().filter(|hop| hop["action"] == "forward").count(), 2, "{route:#}");
    daemon.assert_verified();
}

#[test]
#[ignore = "needs root"]
fn a_router_without_a_name_is_given_by_its_process() {
    let bed = Bed::new();
    let holder = Background(Command::new("unshare").args(["-n", "sleep", "600"]).spawn().unwrap());
    let pid = holder.0.id();
    let own = std::fs::read_link("/proc/self/ns/net").unwrap();
    let theirs = || std::fs::read_link(format!("/proc/{pid}/ns/net")).unwrap();
    eventually_true("unshare", || theirs() != own);
    let inside = |line: &str| {
        let mut command = Command::new("nsenter");
        lab::command::run(command.args(["-t", &pid.to_string(), "-n", "sh", "-ec", line])).unwrap();
    };
    for (device, port, side) in [("in", "p1", 1), ("out", "p2", 2)] {
        bed.the_box
            .ip_batch(&format!("link add {device} link {port} netns {pid} type macvlan mode bridge\n"))
            .unwrap();
        inside(&format!(
            "ip link set lo up; ip link set {device} up; ip addr add 10.9.{side}.1/24 dev {device};
             echo 0 > /proc/sys/net/ipv4/conf/{device}/rp_filter; echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter;
             echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding"
        ));
    }
    bed.client.ip_batch("addr add 10.9.1.2/24 dev eth0\nroute add 10.9.2.0/24 via 10.9.1.1\n").unwrap();
    bed.server.ip_batch("addr add 10.9.2.2/24 dev eth0\nroute add 10.9.1.0/24 via 10.9.2.1\n").unwrap();
    let daemon = bed.start(3, &["--router", &format!("pid:{pid}")]);
    let status = daemon.ask(&["status"]);
    let known = [bed.red_name(), "host"];
    let names =
        status["routers"].as_array().unwrap().iter().map(|r| r["router"].as_str().unwrap().to_owned());
    let name = names.into_iter().find(|name| !known.contains(&name.as_str())).unwrap();
    assert!(name.contains(&pid.to_string()), "{name}");
    ping(&bed.client, "10.9.2.2", 5);
    eventually_true("the fast path takes over", || {
        let before = daemon.router(&name)["packets"]["forwarded"].as_u64().unwrap();
        ping(&bed.client, "10.9.2.2", 20);
        daemon.router(&name)["packets"]["forwarded"].as_u64().unwrap() - before == 40
    });
    daemon.assert_verified();
}
