//! Rulesets as firewalls install them (`rulesets/`), and what can be proven about each.
//!
//! | file | loaded by |
//! |---|---|
//! | `NAME.nft` | `nft -f` |
//! | `NAME.iptables`, `NAME.ip6tables` | `iptables-nft-restore`, `ip6tables-nft-restore` |
//!
//! The head of each file says what produced its rules. What is expected here follows from reading the rules, not from
//! running the proof.

use super::{
    Tally,
    bed::{Bed, fed},
    common::{ifindex, in_new_namespace, run},
    round,
};
use fastrand::Rng;
use logic::firewall::{
    prove::{AddressPart, Exception, Obstacle, Proof, Why, prove},
    ruleset::Ruleset,
    traffic::{
        ASSURED, CONFIRMED, DST_NAT, Device, Direction, SEEN_REPLY, SRC_NAT, Scope, TCP, Traffic, Tuple, UDP,
        Version,
    },
};
use router::linux::{netlink::socket::Socket, nftables};
use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
};

/// What holds between two devices.
struct Row {
    from: &'static str,
    to: &'static str,
    /// A typical connection from one to the other: `CLIENT > SERVER`, then `as ADDRESS` if the source is translated, or
    /// `to ADDRESS` if the destination is.
    connection: &'static str,
    /// Can the rules be left out for all packets?
    all: &'static str,
    /// Are the packets of each established connection accepted?
    established: &'static str,
    /// Are those of the typical connection, in both directions?
    one: &'static str,
}

const fn row(devices: [&'static str; 2], connection: &'static str, results: [&'static str; 3]) -> Row {
    let [from, to] = devices;
    let [all, established, one] = results;
    Row { from, to, connection, all, established, one }
}

const OUT: [&str; 2] = ["lan", "wan"];
const IN: [&str; 2] = ["wan", "lan"];
const MASQUERADED: &str = "10.0.0.2:5000 > 198.51.100.7:443 as 203.0.113.1:6000";
const FORWARDED: &str = "198.51.100.7:5000 > 203.0.113.1:8443 to 10.0.0.2:443";
const OUT6: &str = "[2001:db8:1::2]:5000 > [2001:db8:2::7]:443";
const IN6: &str = "[2001:db8:2::7]:5000 > [2001:db8:1::2]:443";

type Case = (&'static str, &'static [Row]);

const CASES: &[Case] = &[
    (
        "home_router.nft",
        &[
            row(["eth1", "ppp0"], MASQUERADED, ["global forward: drops", "yes", "yes"]),
            row(["ppp0", "eth1"], FORWARDED, ["global forward: drops", "yes", "yes"]),
            // Its table has family ip.
            row(["eth1", "ppp0"], OUT6, ["yes", "yes", "yes"]),
        ],
    ),
    (
        "firewalld.nft",
        &[
            row(OUT, MASQUERADED, ["firewalld filter_FORWARD: drops", "yes", "yes"]),
            row(IN, FORWARDED, ["firewalld filter_FORWARD: drops", "yes", "yes"]),
            // The reverse path of each packet is checked by `fib`, and routes are no part of a proof.
            row(OUT, OUT6, ["firewalld filter_PREROUTING: drops"; 3]),
        ],
    ),
    (
        "ufw.iptables",
        &[
            row(OUT, MASQUERADED, ["yes", "yes", "yes"]),
            row(IN, FORWARDED, ["filter ufw-after-logging-forward: limit", "yes", "yes"]),
        ],
    ),
    (
        "ufw.ip6tables",
        &[
            // A packet of an established connection with a routing header stays with Linux.
            row(OUT, OUT6, ["filter ufw6-before-forward: -m rt", "yes", "yes"]),
            row(IN, IN6, ["filter ufw6-before-forward: -m rt", "yes", "yes"]),
        ],
    ),
    (
        "shorewall.iptables",
        &[
            row(OUT, MASQUERADED, ["mangle FORWARD: -j TCPMSS", "yes", "yes"]),
            row(IN, FORWARDED, ["mangle FORWARD: -j TCPMSS", "yes", "yes"]),
        ],
    ),
    (
        "docker.iptables",
        &[
            // A drop before NAT for the container's address is all that concerns other devices, and its class has no
            // addresses.
            row(
                OUT,
                MASQUERADED,
                [
                    "yes, except to 192.0.2.2, from 192.0.2.0-192.0.2.255, from 172.17.0.0-172.17.255.255",
                    "raw PREROUTING: drops",
                    "yes",
                ],
            ),
            row(
                ["bridge1", "wan"],
                "192.0.2.2:5000 > 198.51.100.7:443 as 203.0.113.1:6000",
                ["yes, except from 192.0.2.0-192.0.2.255, from 172.17.0.0-172.17.255.255", "yes", "yes"],
            ),
            row(
                ["wan", "bridge1"],
                "198.51.100.7:5000 > 203.0.113.1:8080 to 192.0.2.2:80",
                ["filter DOCKER: drops", "raw PREROUTING: drops", "yes"],
            ),
            row(["docker0", "wan"], OUT6, ["yes", "yes", "yes"]),
        ],
    ),
    (
        "docker.nft",
        &[
            row(
                OUT,
                MASQUERADED,
                ["yes, except to 192.0.2.2", "docker-bridges raw-PREROUTING: drops", "yes"],
            ),
            row(
                ["bridge1", "wan"],
                "192.0.2.2:5000 > 198.51.100.7:443 as 203.0.113.1:6000",
                ["yes, except from 192.0.2.0-192.0.2.255", "yes", "yes"],
            ),
            row(
                ["wan", "bridge1"],
                "198.51.100.7:5000 > 203.0.113.1:8080 to 192.0.2.2:80",
                [
                    "docker-bridges filter-forward-in__bridge1: drops",
                    "docker-bridges raw-PREROUTING: drops",
                    "yes",
                ],
            ),
        ],
    ),
    (
        "libvirt.iptables",
        &[
            row(OUT, MASQUERADED, ["yes, except from 192.168.122.0-192.168.122.255", "yes", "yes"]),
            // Only addresses of the network are accepted.
            row(
                ["virbr0", "wan"],
                "192.168.122.5:5000 > 198.51.100.7:443 as 203.0.113.1:6000",
                ["filter LIBVIRT_FWO: -j REJECT", "filter LIBVIRT_FWO: -j REJECT", "yes"],
            ),
            row(
                ["wan", "virbr0"],
                "198.51.100.7:5000 > 203.0.113.1:8080 to 192.168.122.5:80",
                ["filter LIBVIRT_FWI: -j REJECT", "filter LIBVIRT_FWI: -j REJECT", "yes"],
            ),
        ],
    ),
    (
        "libvirt.nft",
        &[
            row(OUT, MASQUERADED, ["yes, except from 192.168.122.0-192.168.122.255", "yes", "yes"]),
            row(
                ["virbr0", "wan"],
                "192.168.122.5:5000 > 198.51.100.7:443 as 203.0.113.1:6000",
                ["libvirt_network guest_output: reject", "libvirt_network guest_output: reject", "yes"],
            ),
            row(
                ["wan", "virbr0"],
                "198.51.100.7:5000 > 203.0.113.1:8080 to 192.168.122.5:80",
                ["libvirt_network guest_input: reject", "libvirt_network guest_input: reject", "yes"],
            ),
            row(["virbr0", "wan"], OUT6, ["yes", "yes", "yes"]),
        ],
    ),
    (
        "incus.nft",
        &[
            row(OUT, MASQUERADED, ["yes, except from 10.20.30.0-10.20.30.255", "yes", "yes"]),
            row(
                ["incusbr0", "wan"],
                "10.20.30.2:5000 > 198.51.100.7:443 as 203.0.113.1:6000",
                ["yes, except from 10.20.30.0-10.20.30.255", "yes", "yes"],
            ),
            row(
                ["incusbr0", "wan"],
                "[fd42:20:30::2]:5000 > [2001:db8:2::7]:443 as [2001:db8:3::1]:6000",
                ["yes, except from fd42:20:30::-fd42:20:30:0:ffff:ffff:ffff:ffff", "yes", "yes"],
            ),
        ],
    ),
    (
        "kube_proxy.nft",
        &[
            // A new packet may be one to a load balancer with source ranges.
            row(OUT, MASQUERADED, ["kube-proxy firewall-HVFWP5L3-ns5/svc5/tcp/p80: drops", "yes", "yes"]),
            row(
                IN,
                "198.51.100.7:5000 > 172.30.0.41:80 to 10.180.0.1:80",
                ["kube-proxy firewall-HVFWP5L3-ns5/svc5/tcp/p80: drops", "yes", "yes"],
            ),
            row(OUT, OUT6, ["kube-proxy firewall-HVFWP5L3-ns5/svc5/tcp/p80: drops", "yes", "yes"]),
        ],
    ),
    (
        "kube_proxy.iptables",
        &[
            row(OUT, MASQUERADED, ["filter KUBE-FORWARD: drops", "yes", "yes"]),
            row(
                IN,
                "198.51.100.7:5000 > 172.30.0.41:80 to 10.180.0.1:80",
                ["filter KUBE-FORWARD: drops", "yes", "yes"],
            ),
        ],
    ),
    (
        "podman.nft",
        &[
            row(OUT, MASQUERADED, ["netavark FORWARD: drops", "yes", "yes"]),
            row(
                ["podman0", "wan"],
                "10.88.0.2:5000 > 198.51.100.7:443 as 203.0.113.1:6000",
                ["netavark FORWARD: drops", "yes", "yes"],
            ),
            row(IN, IN6, ["netavark FORWARD: drops", "yes", "yes"]),
        ],
    ),
    (
        "calico.iptables",
        &[
            row(OUT, MASQUERADED, ["yes", "yes", "yes"]),
            // The reverse path of packets from workloads is checked, and routes are no part of a proof.
            row(["cali1234", "wan"], "10.244.0.5:5000 > 198.51.100.7:443", ["raw cali-PREROUTING: drops"; 3]),
            row(
                ["wan", "cali1234"],
                "198.51.100.7:5000 > 10.244.0.5:80",
                ["filter cali-tw-cali1234: drops", "yes", "raw cali-PREROUTING: drops"],
            ),
        ],
    ),
    (
        "openwrt.nft",
        &[
            row(OUT, MASQUERADED, ["fw4 helper_lan: ct helper set", "yes", "yes"]),
            // The MSS of connections that begin is changed.
            row(IN, FORWARDED, ["fw4 mangle_forward: exthdr", "yes", "yes"]),
            row(OUT, OUT6, ["fw4 helper_lan: ct helper set", "yes", "yes"]),
        ],
    ),
    (
        "vyos_policy.nft",
        &[
            row(OUT, MASQUERADED, ["vyos_conntrack VYOS_CT_HELPER: ct helper set", "yes", "yes"]),
            row(IN, FORWARDED, ["vyos_conntrack VYOS_CT_HELPER: ct helper set", "yes", "yes"]),
            row(OUT, OUT6, ["vyos_conntrack VYOS_CT_HELPER: ct helper set", "yes", "yes"]),
        ],
    ),
    (
        "vyos_zones.nft",
        &[
            row(OUT, MASQUERADED, ["vyos_conntrack VYOS_CT_HELPER: ct helper set", "yes", "yes"]),
            row(IN, FORWARDED, ["vyos_conntrack VYOS_CT_HELPER: ct helper set", "yes", "yes"]),
            row(IN, IN6, ["vyos_conntrack VYOS_CT_HELPER: ct helper set", "yes", "yes"]),
        ],
    ),
    (
        "proxmox.nft",
        &[
            row(OUT, MASQUERADED, ["proxmox-firewall invalid-conntrack: drops", "yes", "yes"]),
            row(IN, IN6, ["proxmox-firewall invalid-conntrack: drops", "yes", "yes"]),
        ],
    ),
    (
        "proxmox.iptables",
        &[
            row(OUT, MASQUERADED, ["filter PVEFW-FORWARD: drops", "yes", "yes"]),
            row(IN, FORWARDED, ["filter PVEFW-FORWARD: drops", "yes", "yes"]),
        ],
    ),
];

#[test]
#[ignore = "needs root"]
fn rulesets_of_real_firewalls_are_proven_as_far_as_their_rules_allow() {
    let (tell, wrong) = mpsc::channel();
    for (file, rows) in CASES {
        let (path, tell) = (directory().join(file), tell.clone());
        in_new_namespace(move || {
            let ruleset = load(&path, rows);
            for row in *rows {
                let results = row.results(&ruleset);
                if results != [row.all, row.established, row.one] {
                    let Row { from, to, connection, .. } = row;
                    tell.send(format!("{file}: {from} to {to}, {connection}: {results:?}\n")).unwrap();
                }
            }
        });
    }
    drop(tell);
    let wrong: String = wrong.iter().collect();
    assert!(wrong.is_empty(), "{wrong}");
    let files = std::fs::read_dir(directory()).unwrap().count();
    assert_eq!(files, CASES.len(), "a ruleset has no case");
}

#[test]
#[ignore = "needs root"]
fn packets_of_proofs_come_out_of_real_firewalls() {
    let cases: Vec<&Case> = CASES.iter().filter(|(file, _)| !file.ends_with(".ip6tables")).collect();
    // Most of the time is waiting until connections are assured.
    for several in cases.chunks(6) {
        thread::scope(|scope| {
            for &&(file, rows) in several {
                scope.spawn(move || in_new_namespace(move || packets_of_proofs_come_out(file, rows)));
            }
        });
    }
}

fn packets_of_proofs_come_out(file: &str, rows: &[Row]) {
    let mut bed = Bed::new();
    let connections = bed.connect();
    let ruleset = load(&directory().join(file), rows);
    let (mut rng, mut tally) = (Rng::with_seed(1), Tally::default());
    for _ in 0..4 {
        let faults = round(&mut bed, &ruleset, &connections, &mut rng, &mut tally);
        assert!(faults.is_empty(), "{file}: {faults:?}");
    }
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/firewall/rulesets")
}

/// Loads a file in this thread's namespace, and reads what Linux has made of it.
fn load(path: &Path, rows: &[Row]) -> Ruleset {
    for device in rows.iter().flat_map(|row| [row.from, row.to]) {
        if !Path::new("/proc/sys/net/ipv4/conf").join(device).exists() {
            run(&format!("ip link add {device} type bridge"));
        }
    }
    let (tool, arguments): (_, &[&str]) = match path.extension().and_then(|kind| kind.to_str()) {
        Some("nft") => ("nft", &["-f", "-"]),
        Some("iptables") => ("iptables-nft-restore", &[]),
        Some("ip6tables") => ("ip6tables-nft-restore", &[]),
        _ => panic!("{}: its kind is not known", path.display()),
    };
    let text = std::fs::read_to_string(path).unwrap();
    fed(tool, arguments, &text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    nftables::read(&mut Socket::requests(libc::NETLINK_NETFILTER).unwrap()).unwrap()
}

impl Row {
    /// As `all`, `established` and `one`.
    fn results(&self, ruleset: &Ruleset) -> [String; 3] {
        let (tuples, status) = tuples(self.connection);
        let version = if tuples[0].source.is_ipv4() { Version::V4 } else { Version::V6 };
        let device = |name: &str| Device { ifindex: ifindex(name), name: name.into(), below: Vec::new() };
        let ask = |reply: bool, scope: Scope| {
            let [input, output] = if reply { [self.to, self.from] } else { [self.from, self.to] }.map(device);
            said(&prove(ruleset, &Traffic { version, input, output, scope }))
        };
        let established = [TCP, UDP].map(|protocol| ask(false, Scope::Established { protocol }));
        let one = [TCP, UDP].into_iter().flat_map(|protocol| {
            [false, true].map(|reply| {
                let direction = Direction { protocol, reply, tuples, status };
                ask(reply, Scope::Connection(Box::new(direction)))
            })
        });
        [ask(false, Scope::All), of_all(established), of_all(one)]
    }
}

/// "yes", if all say so.
fn of_all(results: impl IntoIterator<Item = String>) -> String {
    results.into_iter().find(|result| result != "yes").unwrap_or_else(|| "yes".into())
}

/// Both tuples of a connection and its status, from `CLIENT > SERVER`, `as ADDRESS` or `to ADDRESS`.
fn tuples(connection: &str) -> ([Tuple; 2], u32) {
    let words: Vec<_> = connection.split(' ').collect();
    let address = |text: &str| text.parse::<SocketAddr>().unwrap_or_else(|e| panic!("{text}: {e}"));
    let tuple = |source: SocketAddr, destination: SocketAddr| Tuple {
        source: source.ip(),
        destination: destination.ip(),
        source_port: source.port(),
        destination_port: destination.port(),
    };
    let (client, server) = (address(words[0]), address(words[2]));
    let status = SEEN_REPLY | ASSURED | CONFIRMED;
    let (back, status) = match words.get(3..) {
        Some(["as", source]) => (tuple(server, address(source)), status | SRC_NAT),
        Some(["to", host]) => (tuple(address(host), client), status | DST_NAT),
        _ => (tuple(server, client), status),
    };
    ([tuple(client, server), back], status)
}

fn said(result: &Result<Proof, Obstacle>) -> String {
    match result {
        Ok(proof) if proof.except.is_empty() => "yes".into(),
        Ok(proof) => {
            format!("yes, except {}", proof.except.iter().map(excepted).collect::<Vec<_>>().join(", "))
        }
        Err(Obstacle { table, chain, why, .. }) => {
            let why = match why {
                Why::Drops => "drops",
                Why::Policy => "policy",
                Why::Does(what) => what,
                other => &format!("{other:?}"),
            };
            format!("{table} {chain}: {why}")
        }
    }
}

fn excepted(exception: &Exception) -> String {
    let side = if exception.part == AddressPart::Source { "from" } else { "to" };
    let [low, high] = [&exception.low, &exception.high].map(|bytes| match <[u8; 4]>::try_from(&bytes[..]) {
        Ok(bytes) => IpAddr::from(bytes),
        Err(_) => IpAddr::from(<[u8; 16]>::try_from(&bytes[..]).unwrap()),
    });
    if low == high { format!("{side} {low}") } else { format!("{side} {low}-{high}") }
}
