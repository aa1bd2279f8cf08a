//! FRR's OSPF in two virtual routers of the same box. The fast path follows the routes that it installs.
//!
//! ```text
//!  client ── in(p1) red ── out(p2), 10.7.2.1      10.7.2.4, x(p2) blue ── y(p2), 10.9.2.1 ── server
//!                     └─── in(p1), 10.7.1.1      10.7.1.4, z(p1) ────┘
//! ```
//!
//! Two links between red and blue; OSPF prefers the one with the smaller cost.

use std::fs;

use lab::namespace::Namespace;
use serde_json::Value;

use crate::{
    bed::{Background, Bed, be_router, output, ping, run},
    daemon::{Daemon, eventually},
};

/// Daemons of one router, in a directory of their own, so that the machine's FRR is not affected.
pub struct Frr {
    _daemons: Vec<Background>,
    directory: tempfile::TempDir,
}

impl Frr {
    /// Starts zebra and these daemons with their configurations.
    pub fn start(namespace: &Namespace, daemons: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        // They run as user frr, the only member of the group that their sockets belong to.
        lab::command::run(std::process::Command::new("chown").arg("frr:frr").arg(directory.path())).unwrap();
        let path = |name: &str| directory.path().join(name).display().to_string();
        let start = |name: &str, config: &str| {
            fs::write(path(&format!("{name}.conf")), config).unwrap();
            Background::start(
                namespace,
                &format!(
                    "/usr/lib/frr/{name} -f {conf} -i {pid} -z {api} --vty_socket {directory} -P 0",
                    conf = path(&format!("{name}.conf")),
                    pid = path(&format!("{name}.pid")),
                    api = path("zserv.api"),
                    directory = directory.path().display(),
                ),
            )
        };
        let zebra = start("zebra", "log stdout\n");
        eventually("zebra", || fs::metadata(path("zserv.api")).map_err(|e| e.to_string()));
        let others = daemons.iter().map(|(name, config)| start(name, config));
        Self { _daemons: [zebra].into_iter().chain(others).collect(), directory }
    }

    /// The command line that gives these commands to a daemon.
    pub fn line(&self, namespace: &Namespace, daemon: &str, commands: &[&str]) -> String {
        let commands: String = commands.iter().map(|command| format!(" -c '{command}'")).collect();
        let (name, directory) = (namespace.name(), self.directory.path().display());
        format!("ip netns exec {name} vtysh --vty_socket {directory} -d {daemon}{commands}")
    }

    /// Output of these commands of a daemon, one after another.
    pub fn vtysh(&self, namespace: &Namespace, daemon: &str, commands: &[&str]) -> String {
        let mut vtysh = namespace.command("vtysh");
        vtysh.arg("--vty_socket").arg(self.directory.path()).args(["-d", daemon]);
        for command in commands {
            vtysh.args(["-c", command]);
        }
        lab::command::run(&mut vtysh).unwrap()
    }
}

/// ospfd's configuration.
pub fn ospf(id: &str, networks: &[&str], interfaces: &str) -> String {
    let networks: String = networks.iter().map(|n| format!(" network {n} area 0\n")).collect();
    format!("{interfaces}router ospf\n ospf router-id {id}\n timers throttle spf 0 50 500\n{networks}")
}

/// A neighbour that is silent for a second is considered gone.
const FAST_OSPF: &str =
    " ip ospf dead-interval minimal hello-multiplier 4\n ip ospf network point-to-point\n";

pub fn interface(name: &str, cost: u32) -> String {
    format!("interface {name}\n{FAST_OSPF} ip ospf cost {cost}\n")
}

/// Waits until red's fast table sends this address to that neighbour.
fn until_next_hop(bed: &Bed, daemon: &Daemon, address: &str, next_hop: Option<&str>) -> Value {
    eventually(&format!("{address} by {next_hop:?}"), || {
        let route = daemon.ask(&["routes", address, "--router", bed.red_name()]);
        let hop = &route["hops"][0];
        let is = match next_hop {
            Some(gateway) => hop["next_hop"] == gateway,
            None => hop["action"] == "pass" && hop["reason"]["code"] == "no_route",
        };
        if is { Ok(route) } else { Err(format!("{route:#}\n{}", output(&bed.red, "ip route"))) }
    })
}

#[test]
#[ignore = "needs root"]
fn ospf_between_two_virtual_routers() {
    let bed = Bed::new();
    let blue = Namespace::create(format!("{}-blue", bed.name)).unwrap();
    be_router(&blue);
    for (device, port, address) in [("x", "p2", "10.7.2.4"), ("y", "p2", "10.9.2.1"), ("z", "p1", "10.7.1.4")]
    {
        bed.macvlan(&blue, device, port);
        run(&blue, &format!("ip link set {device} up"));
        run(&blue, &format!("ip addr add {address}/24 dev {device}"));
        blue.sysctl(&[(&format!("net/ipv4/conf/{device}/rp_filter"), "0")]).unwrap();
    }
    bed.server.ip_batch("addr add 10.9.2.2/24 dev eth0\nroute replace 10.7.1.0/24 via 10.9.2.1\n").unwrap();
    bed.client.ip_batch("route add 10.9.2.0/24 via 10.7.1.1\n").unwrap();
    let daemon = bed.start(3, &[]);
    let links = ["10.7.1.0/24", "10.7.2.0/24"];
    let of_red = interface("out", 10) + &interface("in", 100);
    let of_blue = interface("x", 10) + &interface("z", 100) + "interface y\n ip ospf passive\n";
    let red = Frr::start(&bed.red, &[("ospfd", &ospf("1.1.1.1", &links, &of_red))]);
    let announced = [&links[..], &["10.9.2.0/24"]].concat();
    let blues = Frr::start(&blue, &[("ospfd", &ospf("2.2.2.2", &announced, &of_blue))]);

    until_next_hop(&bed, &daemon, "10.9.2.2", Some("10.7.2.4"));
    ping(&bed.client, "10.9.2.2", 20);
    // The way over p2 becomes dear: OSPF moves, and the fast path follows.
    red.vtysh(&bed.red, "ospfd", &["configure terminal", "interface out", "ip ospf cost 1000"]);
    until_next_hop(&bed, &daemon, "10.9.2.2", Some("10.7.1.4"));
    ping(&bed.client, "10.9.2.2", 20);
    // From red to blue the kernel forwards (packets are never on the wire). The answers cross blue from port to port.
    let forwarded = daemon.router(blue.name())["packets"]["forwarded"].as_u64().unwrap();
    assert!(forwarded >= 20, "only {forwarded} of 40 answers by the fast path");
    // OSPF moves back again, and then blue stops announcing.
    red.vtysh(&bed.red, "ospfd", &["configure terminal", "interface out", "ip ospf cost 10"]);
    until_next_hop(&bed, &daemon, "10.9.2.2", Some("10.7.2.4"));
    let silent = ["configure terminal", "router ospf", "no network 10.9.2.0/24 area 0"];
    blues.vtysh(&blue, "ospfd", &silent);
    until_next_hop(&bed, &daemon, "10.9.2.2", None);
    daemon.assert_verified();
}
