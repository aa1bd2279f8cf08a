//! The observer against a real kernel. Every test makes namespaces of its own and works only in them.
//!
//! Needs root and iproute2, nftables, iptables, ethtool, util-linux (unshare), procps (sysctl): `make test-root`.

mod agree;
mod bed;
mod conntrack;
mod forged;
mod hazards;
mod hostile;
mod measure;
#[path = "../common/program.rs"]
mod program;

use bed::*;
use hostile::HANG;
use logic::{
    mirror::{Limits, Mirror},
    net::{Mac, Prefix4},
    observe::{Change, Event, LinkKind, Next, NexthopObjectKind, Route},
    plan::Target,
};
use router::linux::{
    netns::Source,
    observer::{HOST, Known, Observer, ObserverConfig, Question, Quota, Sent},
};
use std::{
    collections::{BTreeSet, VecDeque},
    net::IpAddr,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

fn route<'a>(routes: &'a [Route<u32>], prefix: &str) -> &'a Route<u32> {
    let prefix: Prefix4 = prefix.parse().unwrap();
    routes.iter().find(|r| r.prefix == prefix && r.table == 254).unwrap_or_else(|| panic!("no {prefix}"))
}

#[test]
#[ignore = "needs root"]
fn the_first_poll_returns_the_host_and_its_port() {
    with_bed(|_| {
        sh("ip addr add 192.0.2.1/24 dev port0; sysctl -qw net.ipv4.ip_forward=1");
        let events = observer().poll(Duration::ZERO).unwrap();
        assert!(matches!(&events[0], Event::Namespace(HOST, n) if n.host && n.name == "host"), "{events:?}");
        let Event::Dump(HOST, dump) = &events[1] else { panic!("the second event is no dump: {events:?}") };
        let Event::Port(0, port) = &events[2] else { panic!("the third event is no port: {events:?}") };
        let link = dump.links.iter().find(|l| l.ifindex == port.ifindex).unwrap();
        assert_eq!((link.name.as_str(), link.up, link.carrier), ("port0", true, true));
        assert_eq!(link.kind, LinkKind::Other("veth".into()));
        assert!(link.ipv4.forwarding && link.ipv4.has_address && !link.ipv6.forwarding);
        assert!(link.hazards.is_empty(), "port0 has hazards: {:?}", link.hazards);
        assert_eq!(
            (dump.settings.hazards4.len(), dump.settings.hazards6.len()),
            (0, 0),
            "{:?}",
            dump.settings
        );
        assert!(matches!(route(&dump.routes4, "192.0.2.0/24").next, Next::One(_)));
    });
}

#[test]
#[ignore = "needs root"]
fn a_missing_port_is_reported_when_it_appears() {
    with_bed(|bed| {
        let ports = ["later", "port0"].map(|port| port.parse().unwrap()).into();
        let config = ObserverConfig { ports, ..Default::default() };
        let mut observer = Watcher { observer: Observer::new(config).unwrap(), pending: VecDeque::new() };
        until(&mut observer, "the port that is there", |e| matches!(e, Event::Port(1, _)).then_some(()));
        sh(&format!("ip link add later type veth peer name far9 netns {}", bed.name("peer")));
        until(&mut observer, "the other one", |e| matches!(e, Event::Port(0, _)).then_some(()));
    });
}

/// A port, a router and a limit, while it observes.
#[test]
#[ignore = "needs root"]
fn other_ports_routers_and_limits_are_followed() {
    with_bed(|bed| {
        let mut observer = observer();
        settle(&mut observer);
        let pid = bed.unnamed();
        let red = bed.namespace("red");
        sh(&format!("ip link add other type veth peer name far9 netns {}", bed.name("peer")));
        sh(&format!("ip link add link other name m0 netns {red} type macvlan mode bridge"));
        let routers = vec![Source::Path(format!("/proc/{pid}/ns/net").into())];
        let ports = [(1, "other".parse().unwrap())].into();
        observer.observer.configure(&ports, routers, Quota::default());
        let mut wanted = BTreeSet::from(["port 0 gone", "port 1", "configured", "red"]);
        until(&mut observer, "all of it", |e| {
            match e {
                Event::PortGone(0) => wanted.remove("port 0 gone"),
                Event::Port(1, _) => wanted.remove("port 1"),
                Event::Namespace(_, n) if n.configured => wanted.remove("configured"),
                Event::Namespace(_, n) if n.name == red => wanted.remove("red"),
                _ => false,
            };
            wanted.is_empty().then_some(())
        });
        settle(&mut observer);
        // It has two devices, `lo` included.
        let limits = Quota { interfaces: 1, ..Quota::default() };
        observer.observer.configure(&ports, Vec::new(), limits);
        let is_over =
            |observer: &Watcher| observer.conditions().iter().any(|c| c.text.contains("network devices"));
        let end = Instant::now() + HANG;
        while !is_over(&observer) {
            assert!(Instant::now() < end, "nothing is over the limit: {:?}", observer.conditions());
            observer.observer.poll(Duration::from_millis(100)).unwrap();
        }
        observer.observer.configure(&ports, Vec::new(), Quota::default());
        while is_over(&observer) {
            assert!(Instant::now() < end, "still over the limit: {:?}", observer.conditions());
            observer.observer.poll(Duration::from_millis(100)).unwrap();
        }
    });
}

#[test]
#[ignore = "needs root"]
fn a_macvlan_makes_a_router_and_deleting_the_namespace_really_deletes_it() {
    with_bed(|bed| {
        let mut observer = observer();
        settle(&mut observer);
        let red = bed.namespace("red");
        sh(&format!("ip link add link port0 name m0 netns {red} type macvlan mode bridge"));
        // The test waits less than the pause between scans.
        let id = until(&mut observer, "namespace", |e| match e {
            Event::Namespace(id, n) if n.name == red && !n.host => Some(*id),
            _ => None,
        });
        let below = until(&mut observer, "dump with the macvlan", |e| match e {
            Event::Dump(i, dump) if *i == id => dump.links.iter().find(|l| l.name == "m0").map(|l| l.below),
            _ => None,
        });
        let index: u32 = std::fs::read_to_string("/sys/class/net/port0/ifindex")
            .unwrap_or_default()
            .trim()
            .parse()
            .unwrap_or(0);
        assert!(
            matches!(below, Some((HOST, i)) if i == index || index == 0),
            "m0 is not above port0: {below:?}"
        );
        settle(&mut observer);
        sh(&format!("ip netns del {red}"));
        until(&mut observer, "end of the namespace", |e| {
            matches!(e, Event::NamespaceGone(i) if *i == id).then_some(())
        });
        // Nothing of ours may keep the namespace alive. The MAC address filter of the port knows the macvlan
        // until it is gone.
        let end = Instant::now() + PATIENCE;
        while upper_devices("port0") > 0 {
            assert!(Instant::now() < end, "the macvlan is still there");
            observer.poll(Duration::from_millis(20)).unwrap();
        }
    });
}

/// Whether devices sit on the port, in any namespace: 1 or 0. A passthru macvlan cannot be added beside
/// others.
fn upper_devices(port: &str) -> usize {
    let probe =
        format!("ip link add link {port} name probe0 type macvlan mode passthru && ip link del probe0");
    usize::from(!Command::new("sh").args(["-c", &probe]).stderr(Stdio::null()).status().unwrap().success())
}

#[test]
#[ignore = "needs root"]
fn a_namespace_without_a_name_is_found_and_ends_with_its_process() {
    with_bed(|bed| {
        let mut observer = observer();
        settle(&mut observer);
        let pid = bed.unnamed();
        sh(&format!("ip link add link port0 name m0 netns {pid} type macvlan mode bridge"));
        let name = format!("pid:{pid}");
        let id = until(&mut observer, "namespace", |e| match e {
            Event::Namespace(id, n) if n.name == name => Some(*id),
            _ => None,
        });
        let started = Instant::now();
        bed.end_processes();
        until(&mut observer, "end of the namespace", |e| {
            matches!(e, Event::NamespaceGone(i) if *i == id).then_some(())
        });
        // A container started again at once needs its MAC address, so the end must be seen without a slow
        // scan.
        assert!(started.elapsed() < Duration::from_secs(1), "the end was seen after {:?}", started.elapsed());
    });
}

#[test]
#[ignore = "needs root"]
fn a_namespace_is_reported_by_the_name_it_has_now() {
    with_bed(|bed| {
        let mut observer = observer();
        let pid = bed.unnamed();
        sh(&format!("ip link add link port0 name m0 netns {pid} type macvlan mode bridge"));
        let mut expect = |command: &str, name: &str, way_out: &str| {
            sh(command);
            let id = until(&mut observer, name, |e| match e {
                Event::Namespace(id, n) if n.name == name => Some(*id),
                _ => None,
            });
            until(&mut observer, way_out, |e| match e {
                Event::Link(i, l) if *i == id => l.hazards.iter().any(|h| h.contains(way_out)).then_some(()),
                Event::Dump(i, dump) if *i == id => {
                    dump.links.iter().flat_map(|l| &l.hazards).any(|h| h.contains(way_out)).then_some(())
                }
                _ => None,
            });
            id
        };
        let shape = "tc qdisc add dev m0 root tbf rate 1mbit burst 10k latency 10ms";
        let by_process = format!("nsenter -t {pid} -n tc");
        let id = expect(&format!("nsenter -t {pid} -n {shape}"), &format!("pid:{pid}"), &by_process);
        let red = bed.name("red");
        let by_name = format!("ip netns exec {red} tc");
        assert_eq!(expect(&format!("ip netns attach {red} {pid}"), &red, &by_name), id);
        bed.end_processes();
        assert!(settle(&mut observer).iter().all(|e| !matches!(e, Event::NamespaceGone(_))));
        sh(&format!("ip netns del {red}"));
        until(&mut observer, "end of the namespace", |e| {
            matches!(e, Event::NamespaceGone(i) if *i == id).then_some(())
        });
    });
}

/// `above` has macvlans on devices of `below`, which is not watched until it has a device on a port.
#[test]
#[ignore = "needs root"]
fn a_device_below_is_found_once_its_namespace_is_known() {
    with_bed(|bed| {
        let [above, below, other] = ["above", "below", "other"].map(|name| bed.namespace(name));
        for name in [&below, &other] {
            sh(&format!("ip -n {name} link add v0 type veth peer name v1"));
        }
        sh(&format!("ip -n {below} link add link v0 name m0 netns {above} type macvlan"));
        sh(&format!("ip -n {other} link add link v0 name m1 netns {above} type macvlan"));
        let mut observer = observer_of(&[Source::Name(above.clone())]);
        let id = until(&mut observer, "namespace above", |e| match e {
            Event::Namespace(id, n) if n.name == above => Some(*id),
            _ => None,
        });
        settle(&mut observer);
        let found = |watcher: &mut Watcher, command: &str, device: &str| {
            sh(command);
            until(watcher, device, |e| match e {
                Event::Link(i, l) if *i == id && l.name == device => l.below,
                Event::Dump(i, dump) if *i == id => dump.links.iter().find(|l| l.name == device)?.below,
                _ => None,
            });
        };
        let on_port =
            |space: &str| format!("ip link add link port0 name p0 netns {space} type macvlan mode bridge");
        found(&mut observer, &on_port(&below), "m0");

        // The message that a namespace got a number is lost.
        let late = bed.namespace("late");
        sh(&format!("ip -n {late} link add v0 type veth peer name v1; {}", on_port(&late)));
        settle(&mut observer);
        observer.set_receive_buffer(id, 4096).unwrap();
        let flood =
            "for i in $(seq 2000); do echo route add blackhole 10.0.$((i / 250)).$((i % 250))/32; done";
        let above_late = format!("ip -n {late} link add link v0 name m2 netns {above} type macvlan");
        found(&mut observer, &format!("{flood} | ip -n {above} -batch -; {above_late}"), "m2");
    });
}

#[test]
#[ignore = "needs root"]
fn a_namespace_that_no_longer_has_a_device_on_a_port_is_let_go() {
    with_bed(|bed| {
        let red = bed.namespace("red");
        sh(&format!("ip link add link port0 name m0 netns {red} type macvlan mode bridge"));
        let mut observer = observer();
        let id = until(&mut observer, "namespace", |e| match e {
            Event::Namespace(id, n) if n.name == red => Some(*id),
            _ => None,
        });
        sh(&format!("ip -n {red} link del m0"));
        until(&mut observer, "end of the namespace", |e| {
            matches!(e, Event::NamespaceGone(i) if *i == id).then_some(())
        });
    });
}

#[test]
#[ignore = "needs root"]
fn routes_multipath_and_nexthop_objects_are_followed() {
    with_bed(|_| {
        sh("ip addr add 192.0.2.1/24 dev port0");
        let mut observer = observer();
        settle(&mut observer);
        sh("ip route add 10.0.0.0/8 mtu 1400 nexthop via 192.0.2.2 weight 3 nexthop via 192.0.2.3");
        let (change, added) = until(&mut observer, "multipath route", |e| match e {
            Event::Route4(HOST, change, r) => Some((*change, r.clone())),
            _ => None,
        });
        let Next::Many(hops) = &added.next else { panic!("not several next hops: {added:?}") };
        assert_eq!(change, Change::Add);
        assert_eq!(hops.iter().map(|h| h.weight).collect::<Vec<_>>(), [3, 1]);
        assert_eq!((added.mtu, added.complex), (Some(1400), None));

        sh(
            "ip route replace 10.0.0.0/8 via 192.0.2.9; ip route append 10.0.0.0/8 via 192.0.2.8; ip route del 10.0.0.0/8",
        );
        let mut changes = Vec::new();
        until(&mut observer, "three changes", |e| {
            changes.extend(if let Event::Route4(_, change, _) = e { Some(*change) } else { None });
            (changes.len() == 3).then_some(())
        });
        assert_eq!(changes, [Change::Replace, Change::Append, Change::Delete]);

        sh(
            "ip nexthop add id 7 via 192.0.2.7 dev port0; ip nexthop add id 8 group 7,5; ip route add 10.8.0.0/16 nhid 8",
        );
        until(&mut observer, "group", |e| match e {
            Event::Nexthop(HOST, o) if o.kind == NexthopObjectKind::Group(vec![(7, 5)]) => Some(()),
            _ => None,
        });
        until(&mut observer, "route of the group", |e| {
            matches!(e, Event::Route4(_, _, r) if r.next == Next::Object(8)).then_some(())
        });
        sh("ip nexthop del id 7");
        until(&mut observer, "end of the object", |e| matches!(e, Event::NexthopGone(HOST, 7)).then_some(()));
        until(&mut observer, "routes read again", |e| {
            matches!(e, Event::Routes(HOST, v4, _) if v4.iter().all(|r| r.next != Next::Object(8)))
                .then_some(())
        });
    });
}

#[test]
#[ignore = "needs root"]
fn ipv6_messages_hold_the_whole_multipath_route() {
    with_bed(|_| {
        sh("ip addr add 2001:db8::1/64 dev port0 nodad");
        let mut observer = observer();
        settle(&mut observer);
        let mut expect = |command: &str, change: Change, weights: &[u16]| {
            sh(command);
            let (got, next) = until(&mut observer, command, |e| match e {
                Event::Route6(HOST, change, r) if r.prefix.to_string() == "2001:db8:1::/48" => {
                    Some((*change, r.next.clone()))
                }
                _ => None,
            });
            let mut hops: Vec<u16> = match next {
                Next::Many(hops) => hops.iter().map(|h| h.weight).collect(),
                Next::One(hop) => vec![hop.weight],
                _ => vec![],
            };
            // The kernel names first the next hop that it changed.
            hops.sort_unstable();
            assert_eq!((got, &hops[..]), (change, weights), "{command}");
        };
        let to = "2001:db8:1::/48";
        let two = "nexthop via 2001:db8::2 weight 3 nexthop via 2001:db8::3";
        expect(&format!("ip -6 route add {to} {two}"), Change::Add, &[1, 3]);
        expect(&format!("ip -6 route append {to} via 2001:db8::4"), Change::Append, &[1, 1, 3]);
        // The exception: a message about one removed member names only that one, without its weight.
        expect(&format!("ip -6 route del {to} via 2001:db8::2"), Change::Delete, &[1]);
        expect(&format!("ip -6 route replace {to} via 2001:db8::5"), Change::Replace, &[1]);
        expect(&format!("ip -6 route del {to}"), Change::Delete, &[1]);
    });
}

#[test]
#[ignore = "needs root"]
fn a_link_that_goes_down_makes_routes_be_read_again() {
    with_bed(|_| {
        sh("ip addr add 192.0.2.1/24 dev port0; ip route add 10.0.0.0/8 via 192.0.2.2");
        sh("ip nexthop add id 7 via 192.0.2.7 dev port0");
        let mut observer = observer();
        settle(&mut observer);
        sh("ip link set port0 down");
        until(&mut observer, "link down", |e| matches!(e, Event::Link(HOST, l) if !l.up).then_some(()));
        let mut object_gone = false;
        until(&mut observer, "routes", |e| match e {
            Event::NexthopGone(HOST, 7) => {
                object_gone = true;
                None
            }
            Event::Routes(HOST, v4, _) => v4.iter().all(|r| r.table != 254).then_some(()),
            _ => None,
        });
        assert!(
            object_gone,
            "the object was not reported as gone; the kernel deletes objects of a device that is down without a message"
        );
    });
}

#[test]
#[ignore = "needs root"]
fn settings_are_followed_with_and_without_messages() {
    with_bed(|_| {
        let mut observer = observer();
        settle(&mut observer);
        let mut expect = |command: &str, wanted: fn(&logic::observe::Link) -> bool| {
            sh(&format!("sysctl -qw {command}"));
            until(&mut observer, command, |e| {
                matches!(e, Event::Link(HOST, l) if l.name == "port0" && wanted(l)).then_some(())
            });
        };
        expect("net.ipv4.ip_forward=1", |l| l.ipv4.forwarding);
        expect("net.ipv4.conf.port0.forwarding=0", |l| !l.ipv4.forwarding);
        expect("net.ipv6.conf.all.forwarding=1", |l| l.ipv6.forwarding);
        expect("net.ipv6.conf.all.forwarding=0", |l| !l.ipv6.forwarding);
        expect("net.ipv4.conf.all.rp_filter=1", |l| l.ipv4.rp_filter == logic::plan::ReversePath::Strict);
        expect("net.ipv4.conf.port0.rp_filter=2", |l| l.ipv4.rp_filter == logic::plan::ReversePath::Loose);
        expect("net.ipv4.conf.all.send_redirects=0 net.ipv4.conf.port0.send_redirects=0", |l| {
            !l.ipv4.send_redirects
        });
        expect("net.ipv4.conf.all.accept_local=1", |l| l.ipv4.accept_local && l.ipv4.unusual.is_empty());
        expect("net.ipv4.conf.all.route_localnet=1", |l| l.ipv4.unusual == ["route_localnet"]);
        expect("net.ipv6.conf.port0.mtu=1280", |l| l.ipv6.mtu == 1280 && l.mtu == 1500);
        expect("net.ipv6.conf.port0.mtu=1500", |l| l.ipv6.mtu == 0);
        if std::path::Path::new("/proc/sys/net/ipv6/conf/port0/force_forwarding").exists() {
            expect("net.ipv6.conf.port0.force_forwarding=1", |l| l.ipv6.forwarding);
        }
        sh("sysctl -qw net.ipv4.fib_multipath_hash_policy=1");
        until(&mut observer, "hash policy", |e| {
            matches!(e, Event::Settings(HOST, s) if s.multipath_policy == [1, 0]).then_some(())
        });
    });
}

#[test]
#[ignore = "needs root"]
fn lost_events_cost_a_dump_and_nothing_else() {
    with_bed(|_| {
        sh("ip addr add 192.0.2.1/24 dev port0");
        let mut observer = observer();
        settle(&mut observer);
        observer.set_receive_buffer(HOST, 4096).unwrap();
        batch(
            (0..50_000)
                .map(|i| format!("route add 10.{}.{}.{}/32 via 192.0.2.2", i >> 16, i >> 8 & 255, i & 255)),
        );
        let dump = host_dump(&mut observer);
        assert_eq!(dump.routes4.iter().filter(|r| r.prefix.length() == 32 && r.table == 254).count(), 50_000);
        // Events continue as before.
        settle(&mut observer);
        sh("ip route del 10.0.0.7/32");
        until(&mut observer, "deletion", |e| {
            matches!(e, Event::Route4(HOST, Change::Delete, _)).then_some(())
        });
    });
}

#[test]
#[ignore = "needs root"]
fn neighbours_are_followed_and_probed() {
    with_bed(|bed| {
        let peer = bed.name("peer");
        sh(&format!("ip addr add 192.0.2.1/24 dev port0; ip -n {peer} addr add 192.0.2.2/24 dev far0"));
        let mut observer = observer();
        let port =
            until(&mut observer, "port", |e| if let Event::Port(0, p) = e { Some(p.ifindex) } else { None });
        settle(&mut observer);
        let address = "192.0.2.2".parse().unwrap();
        // There is no entry to probe, and none is made.
        observer.probe_neighbour(HOST, port, address).unwrap();
        assert!(!settle(&mut observer).iter().any(|e| matches!(e, Event::Neighbour(..))));
        std::net::UdpSocket::bind("192.0.2.1:0").unwrap().send_to(b"resolve", (address, 9)).unwrap();
        until(&mut observer, "resolved neighbour", |e| {
            matches!(e, Event::Neighbour(HOST, n) if n.address == address && n.mac.is_some()).then_some(())
        });
        sh("ip neigh change 192.0.2.2 dev port0 nud stale");
        until(&mut observer, "stale neighbour", |e| {
            matches!(e, Event::Neighbour(HOST, n) if n.address == address && n.stale).then_some(())
        });
        sh("sysctl -qw net.ipv4.neigh.port0.delay_first_probe_time=0");
        observer.probe_neighbour(HOST, port, address).unwrap();
        until(&mut observer, "neighbour that is fresh again", |e| {
            matches!(e, Event::Neighbour(HOST, n) if n.address == address && !n.stale && n.mac.is_some())
                .then_some(())
        });
        sh("ip neigh del 192.0.2.2 dev port0");
        until(&mut observer, "end of the neighbour", |e| {
            matches!(e, Event::Neighbour(HOST, n) if n.address == address && n.mac.is_none()).then_some(())
        });
    });
}

#[test]
#[ignore = "needs root"]
fn a_port_that_goes_and_comes_back_is_reported() {
    with_bed(|bed| {
        let mut observer = observer();
        settle(&mut observer);
        sh("ip link del port0");
        until(&mut observer, "end of the port", |e| matches!(e, Event::PortGone(0)).then_some(()));
        sh(&format!("ip link add port0 type veth peer name far0 netns {}", bed.name("peer")));
        until(&mut observer, "return of the port", |e| matches!(e, Event::Port(0, _)).then_some(()));
    });
}

#[test]
#[ignore = "needs root"]
fn a_router_can_be_configured_by_file() {
    with_bed(|bed| {
        let pid = bed.unnamed();
        let mut observer = observer_of(&[Source::Path(format!("/proc/{pid}/ns/net").into())]);
        until(&mut observer, "configured namespace", |e| {
            matches!(e, Event::Namespace(_, n) if n.configured && n.name.starts_with("netns:")).then_some(())
        });
    });
}

#[test]
#[ignore = "needs root"]
fn another_thread_can_ask_the_kernel() {
    with_bed(|bed| {
        let peer = bed.name("peer");
        sh(
            "sysctl -qw net.ipv4.ip_forward=1; ip addr add 192.0.2.1/24 dev port0; ip link set port0 mtu 1400",
        );
        sh(
            "ip neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev port0; ip neigh add 192.0.2.3 nud failed dev port0",
        );
        sh("ip route add 10.0.0.0/8 via 192.0.2.2 mtu 1300; ip route add prohibit 10.1.0.0/16");
        sh("ip route add 10.2.0.0/16 dev port0 table 100; ip addr add 2001:db8::1/64 dev port0 nodad");
        sh(&format!("ip -n {peer} addr add 192.0.2.2/24 dev far0"));
        let mut observer = observer();
        let mut reader = observer.reader();
        let of_port = |e: &Event| if let Event::Port(0, port) = e { Some(port.ifindex) } else { None };
        let port = until(&mut observer, "port", of_port);
        let answers = move || {
            let known = reader.routes(HOST).unwrap();
            let mut way = |to: &str| {
                let from = Some(("192.0.2.9".parse().unwrap(), port));
                let question = Question { address: to.parse().unwrap(), from, prefix: String::new() };
                reader.way(HOST, &question).unwrap()
            };
            let ways = ["10.0.0.1", "10.1.0.1", "192.0.2.7", "192.0.2.1", "11.0.0.1"].map(&mut way);
            (known, ways, reader.neighbours(HOST).unwrap(), reader.devices(HOST).unwrap())
        };
        let (known, ways, neighbours, devices) = std::thread::spawn(answers).join().unwrap();
        let find = |address: &str, length| {
            let address: IpAddr = address.parse().unwrap();
            known.iter().find(|known| (known.address, known.length) == (address, length)).copied()
        };
        let plain =
            Known { address: [10, 0, 0, 0].into(), length: 8, connected: None, local: false, object: false };
        assert_eq!(find("10.0.0.0", 8), Some(plain));
        assert_eq!(find("192.0.2.0", 24).unwrap().connected, Some(port));
        assert_eq!(find("2001:db8::", 64).unwrap().connected, Some(port));
        assert!(find("192.0.2.1", 32).unwrap().local && find("10.2.0.0", 16).is_none());
        let gateway = "192.0.2.2".parse().ok();
        let sent = |gateway, mtu| Some(Sent { oif: port, gateway, mtu });
        assert_eq!(ways, [sent(gateway, Some(1300)), None, sent(None, None), None, None]);
        let mac = |address: &str| neighbours.get(&(port, address.parse().unwrap())).copied();
        assert_eq!((mac("192.0.2.2"), mac("192.0.2.3")), (Some(Mac([2, 0, 0, 0, 0, 2])), None));
        assert_eq!(devices[&port].mtu, 1400);
    });
}

/// 802.1X: the device keeps its carrier, and no message reports what becomes of next hops.
#[test]
#[ignore = "needs root"]
fn a_device_that_goes_dormant_makes_routes_be_read_again() {
    with_bed(|_| {
        sh("ip addr add 2001:db8::1/64 dev port0 nodad; ip -6 route add 2001:db8:1::/48 via 2001:db8::2");
        let mut observer = observer();
        settle(&mut observer);
        let mut expect = |command: &str, running: bool| {
            sh(command);
            until(&mut observer, command, |e| {
                matches!(e, Event::Link(HOST, l) if l.name == "port0" && l.running == running && l.carrier)
                    .then_some(())
            });
            until(&mut observer, "routes read again", |e| match e {
                Event::Routes(HOST, _, v6) => {
                    let route = v6.iter().find(|r| r.prefix.length() == 48)?;
                    let Next::One(hop) = &route.next else { panic!("not one next hop: {route:?}") };
                    (hop.linkdown != running).then_some(())
                }
                _ => None,
            });
        };
        expect("ip link set port0 mode dormant; ip link set port0 state dormant", false);
        expect("ip link set port0 mode default; ip link set port0 state up", true);
    });
}

/// The time at which a route expires changes without a message, so the route is read again before.
#[test]
#[ignore = "needs root"]
fn routes_that_expire_are_read_again_before_they_end() {
    with_bed(|_| {
        sh("ip addr add 2001:db8::1/64 dev port0 nodad");
        sh("ip -6 route add 2001:db8:1::/48 via 2001:db8::2 expires 8");
        let mut observer = observer();
        settle(&mut observer);
        sh("ip -6 route add 2001:db8:1::/48 via 2001:db8::2 expires 4000 || true");
        let read = |e: &Event| match e {
            Event::Routes(HOST, _, v6) => v6.iter().find(|r| r.prefix.length() == 48).map(|r| r.expires),
            _ => None,
        };
        let end = until(&mut observer, "routes read again", read).expect("the route does not expire");
        assert!(
            end > router::base::clock::monotonic() + Duration::from_secs(2),
            "the new end was not read: {end:?}"
        );
    });
}

/// `ip nexthop replace` makes the kernel send messages about routes that use the object, although no route
/// was replaced.
#[test]
#[ignore = "needs root"]
fn a_replaced_object_leaves_routes_of_equal_metric_alone() {
    with_bed(|_| {
        sh("sysctl -qw net.ipv4.ip_forward=1; ip addr add 192.0.2.1/24 dev port0");
        sh("ip nexthop add id 7 via 192.0.2.7 dev port0; ip route add 10.0.0.0/8 via 192.0.2.2");
        sh("ip route append 10.0.0.0/8 nhid 7");
        let (mut observer, mut mirror) = (observer(), Mirror::new(Limits::default()));
        settle(&mut observer).into_iter().for_each(|event| mirror.observe(event));
        sh("ip nexthop replace id 7 via 192.0.2.8 dev port0");
        settle(&mut observer).into_iter().for_each(|event| mirror.observe(event));
        mirror.plan();
        let gateway = |mirror: &Mirror| match mirror.route4_to(HOST, 0x0a00_0001) {
            Some((_, Target::Hop(hop))) => hop.gateway,
            other => panic!("no single next hop: {other:?}"),
        };
        assert_eq!(gateway(&mirror), "192.0.2.2".parse().ok());
        sh("ip route del 10.0.0.0/8 via 192.0.2.2");
        settle(&mut observer).into_iter().for_each(|event| mirror.observe(event));
        mirror.plan();
        assert_eq!(gateway(&mirror), "192.0.2.8".parse().ok());
    });
}
