//! The observer against real kernels: every test makes namespaces of its own and works only in them.
//!
//! Needs root, iproute2, nftables, util-linux (unshare). Without root the tests say so and do nothing.

use logic::{
    net::Prefix4,
    observe::{Change, Dump, Event, LinkKind, Next, NexthopObjectKind, Route},
};
use router::{
    ethtool::ProblemKind,
    netns,
    observer::{HOST, Observer, ObserverConfig, PortName},
};
use std::{
    collections::VecDeque,
    fs::File,
    io::Write as _,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

/// Long enough for the slowest of what is polled.
const PATIENCE: Duration = Duration::from_secs(8);

/// Names of namespaces a test made; they go when it ends.
struct Bed {
    prefix: String,
    made: std::cell::RefCell<Vec<String>>,
    processes: std::cell::RefCell<Vec<Child>>,
}

impl Bed {
    fn name(&self, short: &str) -> String {
        format!("{}-{short}", self.prefix)
    }

    /// Make a namespace; its full name.
    fn namespace(&self, short: &str) -> String {
        let name = self.name(short);
        sh(&format!("ip netns add {name}"));
        self.made.borrow_mut().push(name.clone());
        name
    }

    /// A process in a namespace without a name; its number.
    fn unnamed(&self) -> u32 {
        let child = Command::new("unshare").args(["-n", "sleep", "600"]).spawn().unwrap();
        let pid = child.id();
        self.processes.borrow_mut().push(child);
        let own = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        while std::fs::read_link(format!("/proc/{pid}/ns/net")).unwrap() == own {
            std::thread::sleep(Duration::from_millis(5));
        }
        pid
    }

    fn end_processes(&self) {
        for mut child in self.processes.borrow_mut().drain(..) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.end_processes();
        for name in self.made.borrow().iter() {
            let _ = Command::new("ip").args(["netns", "del", name]).stderr(Stdio::null()).status();
        }
    }
}

/// Run `test` in a namespace that has a port `port0` (a veth whose other end is in a namespace `peer`), up.
fn with_bed(test: impl FnOnce(&Bed) + Send) {
    // SAFETY: no arguments, cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("SKIPPED: needs root (run: make test-root)");
        return;
    }
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let prefix = format!("mrnl{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let bed = Bed { prefix, made: Default::default(), processes: Default::default() };
    let host = bed.namespace("host");
    let peer = bed.namespace("peer");
    let file = File::open(format!("/run/netns/{host}")).unwrap();
    // The bed is moved in, so that a panic in there still cleans up.
    netns::inside(&file, move || {
        sh(&format!("ip link add port0 type veth peer name far0 netns {peer}"));
        sh(&format!("ip link set lo up; ip link set port0 up; ip -n {peer} link set far0 up"));
        test(&bed);
    })
    .expect("the test panicked, see above");
}

fn sh(command: &str) {
    let output = Command::new("sh").args(["-ec", command]).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

fn batch(lines: impl Iterator<Item = String>) {
    let mut child = Command::new("ip").args(["-force", "-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut input = std::io::BufWriter::new(child.stdin.take().unwrap());
    for line in lines {
        writeln!(input, "{line}").unwrap();
    }
    drop(input);
    assert!(child.wait().unwrap().success());
}

/// An observer, and events it handed out that no test has asked for yet.
struct Watcher {
    observer: Observer,
    pending: VecDeque<Event>,
}

impl std::ops::Deref for Watcher {
    type Target = Observer;
    fn deref(&self) -> &Observer {
        &self.observer
    }
}

impl std::ops::DerefMut for Watcher {
    fn deref_mut(&mut self) -> &mut Observer {
        &mut self.observer
    }
}

fn observer() -> Watcher {
    let ports = vec![PortName::Name("port0".into())];
    let observer = Observer::new(ObserverConfig { ports, ..Default::default() }).unwrap();
    Watcher { observer, pending: VecDeque::new() }
}

/// Take events until one of them makes `wanted` say something.
fn until<T>(watcher: &mut Watcher, what: &str, mut wanted: impl FnMut(&Event) -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    let mut seen = Vec::new();
    while Instant::now() < end {
        while let Some(event) = watcher.pending.pop_front() {
            if let Some(found) = wanted(&event) {
                return found;
            }
            if seen.len() < 100 {
                seen.push(event);
            }
        }
        let events = watcher.observer.poll(Duration::from_millis(100)).unwrap();
        watcher.pending.extend(events);
    }
    panic!("no {what} within {PATIENCE:?}; seen: {seen:#?}");
}

/// Take everything until it has been quiet for a while.
fn settle(observer: &mut Watcher) -> Vec<Event> {
    let mut all: Vec<Event> = observer.pending.drain(..).collect();
    loop {
        let events = observer.poll(Duration::from_millis(150)).unwrap();
        if events.is_empty() {
            return all;
        }
        all.extend(events);
    }
}

fn host_dump(observer: &mut Watcher) -> Dump {
    until(observer, "dump of the host", |e| match e {
        Event::Dump(HOST, dump) => Some((**dump).clone()),
        _ => None,
    })
}

fn route<'a>(routes: &'a [Route<u32>], prefix: &str) -> &'a Route<u32> {
    let prefix: Prefix4 = prefix.parse().unwrap();
    routes.iter().find(|r| r.prefix == prefix && r.table == 254).unwrap_or_else(|| panic!("no {prefix}"))
}

#[test]
fn the_first_poll_hands_out_the_host_and_its_port() {
    with_bed(|_| {
        sh("ip addr add 192.0.2.1/24 dev port0; sysctl -qw net.ipv4.conf.port0.forwarding=1");
        let events = observer().poll(Duration::ZERO).unwrap();
        assert!(matches!(&events[0], Event::Namespace(HOST, n) if n.host && n.name == "host"), "{events:?}");
        let Event::Dump(HOST, dump) = &events[1] else { panic!("{events:?}") };
        let Event::Port(0, port) = &events[2] else { panic!("{events:?}") };
        let link = dump.links.iter().find(|l| l.ifindex == port.ifindex).unwrap();
        assert_eq!((link.name.as_str(), link.up, link.carrier), ("port0", true, true));
        assert_eq!(link.kind, LinkKind::Other("veth".into()));
        assert!(link.ipv4.forwarding && link.ipv4.has_address && !link.ipv6.forwarding);
        assert!(link.hazards.is_empty(), "{:?}", link.hazards);
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
fn a_port_that_is_not_there_is_an_error() {
    with_bed(|_| {
        let config = ObserverConfig { ports: vec![PortName::Name("nope".into())], ..Default::default() };
        let error = Observer::new(config).err().unwrap().to_string();
        assert!(error.contains("no network device nope"), "{error}");
    });
}

#[test]
fn a_macvlan_makes_a_router_and_deleting_the_namespace_really_deletes_it() {
    with_bed(|bed| {
        let mut observer = observer();
        settle(&mut observer);
        let red = bed.namespace("red");
        let started = Instant::now();
        sh(&format!("ip link add link port0 name m0 netns {red} type macvlan mode bridge"));
        let id = until(&mut observer, "namespace", |e| match e {
            Event::Namespace(id, n) if n.name == red && !n.host => Some(*id),
            _ => None,
        });
        assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
        let below = until(&mut observer, "dump with the macvlan", |e| match e {
            Event::Dump(i, dump) if *i == id => dump.links.iter().find(|l| l.name == "m0").map(|l| l.below),
            _ => None,
        });
        let index: u32 = std::fs::read_to_string("/sys/class/net/port0/ifindex")
            .unwrap_or_default()
            .trim()
            .parse()
            .unwrap_or(0);
        assert!(matches!(below, Some((HOST, i)) if i == index || index == 0), "{below:?}");
        settle(&mut observer);
        sh(&format!("ip netns del {red}"));
        until(&mut observer, "end of the namespace", |e| {
            matches!(e, Event::NamespaceGone(i) if *i == id).then_some(())
        });
        // Nothing of ours may keep it alive: the MAC address filter of the port knows the macvlan until it is gone.
        let end = Instant::now() + PATIENCE;
        while upper_devices("port0") > 0 {
            assert!(Instant::now() < end, "the macvlan is still there");
            observer.poll(Duration::from_millis(20)).unwrap();
        }
    });
}

/// How many devices sit on it, in whatever namespace: macvlan allows no second device with the same MAC address.
fn upper_devices(port: &str) -> usize {
    let probe =
        format!("ip link add link {port} name probe0 type macvlan mode passthru && ip link del probe0");
    usize::from(!Command::new("sh").args(["-c", &probe]).stderr(Stdio::null()).status().unwrap().success())
}

#[test]
fn a_namespace_without_a_name_is_found_and_goes_with_its_process() {
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
        // A container started again at once wants its MAC address back: no waiting for a slow scan.
        assert!(started.elapsed() < Duration::from_millis(500), "{:?}", started.elapsed());
    });
}

#[test]
fn a_namespace_that_no_longer_holds_a_device_of_ours_is_let_go() {
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
        let Next::Many(hops) = &added.next else { panic!("{added:?}") };
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
        until(&mut observer, "its route", |e| {
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
        assert!(object_gone, "the kernel drops nexthop objects of a device that is down without a word");
    });
}

#[test]
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
        expect("net.ipv4.conf.all.accept_local=1", |l| l.ipv4.unusual == ["accept_local"]);
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
fn hazards_come_and_go() {
    with_bed(|bed| {
        let host = bed.name("host");
        let mut observer = observer();
        settle(&mut observer);
        let mut expect = |command: &str, v4: &[&str], v6: &[&str]| {
            sh(command);
            until(&mut observer, command, |e| match e {
                Event::Settings(HOST, s) => {
                    let fits = |have: &[String], want: &[&str]| {
                        have.len() == want.len() && have.iter().zip(want).all(|(h, w)| h.contains(w))
                    };
                    (fits(&s.hazards4, v4) && fits(&s.hazards6, v6)).then_some(())
                }
                _ => None,
            });
        };
        let forward = "nftables chain inet f pass hooks forward; remove it with: nft ";
        expect(
            "nft 'add table inet f; add chain inet f pass { type filter hook forward priority 0; }'",
            &[forward],
            &[forward],
        );
        expect("nft delete table inet f", &[], &[]);
        expect(
            "nft 'add table ip f; add chain ip f x { type filter hook prerouting priority 0; }'",
            &["prerouting"],
            &[],
        );
        expect("nft delete table ip f", &[], &[]);
        expect("ip -6 rule add priority 77 from 2001:db8::1 table 5", &[], &["ip -6 rule del priority 77"]);
        expect("ip -6 rule del priority 77", &[], &[]);
        expect("ip rule del priority 32767", &["table 253 is missing"], &[]);
        expect("ip rule add priority 32767 table 253", &[], &[]);
        expect("ip xfrm policy add src 10.0.0.0/8 dst 10.1.0.0/16 dir fwd", &["1 IPsec policies"], &[]);
        expect("ip xfrm policy flush", &[], &[]);
        expect("ip xfrm policy setdefault fwd block", &["default IPsec"], &["default IPsec"]);
        expect("ip xfrm policy setdefault fwd accept", &[], &[]);
        // Chains for the box itself are none of our business: nothing is said of them, so the next thing said is this.
        sh("nft 'add table ip f; add chain ip f i { type filter hook input priority 0; }'");
        expect("iptables-legacy -t mangle -L -n >/dev/null", &["table mangle"], &[]);
        drop(host);
    });
}

#[test]
fn qdiscs_and_filters_are_told_of_their_device() {
    with_bed(|_| {
        let mut observer = observer();
        settle(&mut observer);
        let mut expect = |command: &str, wanted: Option<&str>| {
            sh(command);
            until(&mut observer, command, |e| match e {
                Event::Link(HOST, l) if l.name == "port0" => match (wanted, &l.hazards[..]) {
                    (None, []) => Some(()),
                    (Some(wanted), [hazard]) => hazard.contains(wanted).then_some(()),
                    _ => None,
                },
                _ => None,
            });
        };
        expect("tc qdisc add dev port0 root tbf rate 1mbit burst 10k latency 10ms", Some("qdisc tbf"));
        expect("tc qdisc del dev port0 root", None);
        sh("tc qdisc add dev port0 clsact");
        expect(
            "tc filter add dev port0 ingress protocol ip u32 match u32 0 0",
            Some("tc filters on its qdisc clsact"),
        );
        expect("tc qdisc del dev port0 clsact", None);
    });
}

/// Load and attach a program that lets everything pass; it stays for as long as the result lives.
fn attach_tcx(ifindex: i32) -> [std::os::fd::OwnedFd; 2] {
    use libbpf_rs::libbpf_sys::{self as sys, bpf_insn};
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    let instruction = |code, imm| {
        let mut i = bpf_insn { code, imm, ..Default::default() };
        i.set_dst_reg(0);
        i
    };
    // r0 = -1 (TCX_NEXT); exit
    let program = [instruction(0xb7, -1), instruction(0x95, 0)];
    let (name, license) = (c"pass".as_ptr(), c"GPL".as_ptr());
    let own = |fd: i32| {
        assert!(fd >= 0, "{}", std::io::Error::from_raw_os_error(-fd));
        // SAFETY: a new descriptor, owned by nobody else.
        unsafe { OwnedFd::from_raw_fd(fd) }
    };
    // SAFETY: strings and instructions live across the call; no options are passed.
    let program = own(unsafe {
        sys::bpf_prog_load(
            sys::BPF_PROG_TYPE_SCHED_CLS,
            name,
            license,
            program.as_ptr(),
            2,
            std::ptr::null_mut(),
        )
    });
    // SAFETY: no options are passed.
    let link = own(unsafe {
        sys::bpf_link_create(program.as_raw_fd(), ifindex, sys::BPF_TCX_INGRESS, std::ptr::null())
    });
    [program, link]
}

#[test]
fn tcx_programs_are_found() {
    with_bed(|_| {
        let mut observer = observer();
        let port =
            until(&mut observer, "port", |e| if let Event::Port(0, p) = e { Some(p.ifindex) } else { None });
        settle(&mut observer);
        let attached = attach_tcx(port as i32);
        until(&mut observer, "tcx program", |e| {
            matches!(e, Event::Link(HOST, l) if l.hazards.iter().any(|h| h.contains("1 tcx program")))
                .then_some(())
        });
        drop(attached);
        until(&mut observer, "its end", |e| {
            matches!(e, Event::Link(HOST, l) if l.hazards.is_empty()).then_some(())
        });
    });
}

#[test]
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
        // And it goes on as before.
        settle(&mut observer);
        sh("ip route del 10.0.0.7/32");
        until(&mut observer, "deletion", |e| {
            matches!(e, Event::Route4(HOST, Change::Delete, _)).then_some(())
        });
    });
}

#[test]
fn neighbours_are_followed_and_probed() {
    with_bed(|bed| {
        let peer = bed.name("peer");
        sh(&format!("ip addr add 192.0.2.1/24 dev port0; ip -n {peer} addr add 192.0.2.2/24 dev far0"));
        let mut observer = observer();
        let port =
            until(&mut observer, "port", |e| if let Event::Port(0, p) = e { Some(p.ifindex) } else { None });
        settle(&mut observer);
        let address = "192.0.2.2".parse().unwrap();
        assert!(observer.probe_neighbour(HOST, port, address).is_err(), "there is no entry to probe");
        observer.resolve_neighbour(HOST, port, address).unwrap();
        until(&mut observer, "resolved", |e| {
            matches!(e, Event::Neighbour(HOST, n) if n.address == address && n.mac.is_some()).then_some(())
        });
        sh("ip neigh change 192.0.2.2 dev port0 nud stale");
        until(&mut observer, "stale", |e| {
            matches!(e, Event::Neighbour(HOST, n) if n.address == address && n.stale).then_some(())
        });
        sh("sysctl -qw net.ipv4.neigh.port0.delay_first_probe_time=0");
        observer.probe_neighbour(HOST, port, address).unwrap();
        until(&mut observer, "fresh again", |e| {
            matches!(e, Event::Neighbour(HOST, n) if n.address == address && !n.stale && n.mac.is_some())
                .then_some(())
        });
        sh("ip neigh del 192.0.2.2 dev port0");
        until(&mut observer, "gone", |e| {
            matches!(e, Event::Neighbour(HOST, n) if n.address == address && n.mac.is_none()).then_some(())
        });
    });
}

#[test]
fn a_veth_peer_that_breaks_packets_is_named() {
    with_bed(|bed| {
        let peer = bed.name("peer");
        let mut observer = observer();
        assert_eq!(observer.port_driver(0).unwrap(), "veth");
        let problems =
            |watcher: &mut Watcher| watcher.port_problems(0).iter().map(|p| p.kind).collect::<Vec<_>>();
        use ProblemKind::*;
        assert_eq!(problems(&mut observer), [PartialChecksums, VlanTagsHidden, CannotTransmit]);
        let text = observer.port_problems(0)[0].to_string();
        assert_eq!(
            text,
            format!(
                "veth peer far0 in namespace {peer} sends partial checksums; \
                 run: ip netns exec {peer} ethtool -K far0 tx off"
            )
        );
        // Every way out that is offered must work.
        for problem in observer.port_problems(0) {
            sh(problem.text.split_once("run: ").unwrap().1);
        }
        assert_eq!(problems(&mut observer), []);
    });
}

#[test]
fn a_port_that_goes_and_comes_back_is_reported() {
    with_bed(|bed| {
        let mut observer = observer();
        settle(&mut observer);
        sh("ip link del port0");
        until(&mut observer, "port gone", |e| matches!(e, Event::PortGone(0)).then_some(()));
        sh(&format!("ip link add port0 type veth peer name far0 netns {}", bed.name("peer")));
        until(&mut observer, "port back", |e| matches!(e, Event::Port(0, _)).then_some(()));
    });
}

#[test]
fn a_router_can_be_configured_by_file() {
    with_bed(|bed| {
        let pid = bed.unnamed();
        let ports = vec![PortName::Name("port0".into())];
        let routers = vec![netns::Source::parse(&format!("/proc/{pid}/ns/net"))];
        let observer = Observer::new(ObserverConfig { ports, routers, ..Default::default() }).unwrap();
        let mut watcher = Watcher { observer, pending: VecDeque::new() };
        until(&mut watcher, "configured namespace", |e| {
            matches!(e, Event::Namespace(_, n) if n.configured && n.name.starts_with("netns:")).then_some(())
        });
    });
}

/// Slow without optimisation: run by `cargo test --release -- --ignored`.
#[test]
#[ignore = "a measurement"]
fn a_million_routes_are_dumped_in_two_seconds() {
    with_bed(|_| {
        sh("ip addr add 192.0.2.1/24 dev port0");
        batch((0..1_000_000).map(|i| {
            format!("route add {}.{}.{}.0/26 via 192.0.2.2", 11 + (i >> 16), i >> 8 & 255, i & 255)
        }));
        let started = Instant::now();
        let mut observer = observer();
        let dump = host_dump(&mut observer);
        let took = started.elapsed();
        println!("{} routes dumped and parsed in {took:?}", dump.routes4.len());
        assert!(dump.routes4.len() >= 1_000_000 && took < Duration::from_secs(2), "{took:?}");
        settle(&mut observer);
        let started = Instant::now();
        let count = 100_000;
        batch(
            (0..count)
                .map(|i| format!("route add 9.{}.{}.{}/32 via 192.0.2.2", i >> 16, i >> 8 & 255, i & 255)),
        );
        let made = started.elapsed();
        let read = Instant::now();
        let mut seen = 0;
        until(&mut observer, "all changes", |e| {
            seen += u32::from(matches!(e, Event::Route4(..)));
            (seen == count).then_some(())
        });
        println!("{count} route events made in {made:?}, absorbed in {:?}", read.elapsed());
    });
}

/// What 256 routers cost while nothing happens.
#[test]
#[ignore = "a measurement"]
fn many_routers_idle_cheaply() {
    with_bed(|bed| {
        for i in 0..256 {
            let name = bed.namespace(&format!("r{i}"));
            sh(&format!("ip link add link port0 name m0 netns {name} type macvlan mode bridge"));
        }
        let started = Instant::now();
        let mut observer = observer();
        let events = observer.poll(Duration::ZERO).unwrap();
        let dumps = events.iter().filter(|e| matches!(e, Event::Dump(..))).count();
        println!("{dumps} namespaces read in {:?}", started.elapsed());
        assert_eq!(dumps, 257);
        settle(&mut observer);
        let (before, started) = (cpu_time(), Instant::now());
        while started.elapsed() < Duration::from_secs(10) {
            observer.poll(Duration::from_secs(1)).unwrap();
        }
        let share = (cpu_time() - before).as_secs_f64() / started.elapsed().as_secs_f64();
        println!("idle: {:.2} % of a core, {} KiB resident", share * 100.0, resident_kib());
        assert!(share < 0.05, "{share}");
    });
}

/// Of this process, all threads, user and system.
fn cpu_time() -> Duration {
    // SAFETY: all zeros is a value of this plain C struct, which lives across the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let time = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    time(usage.ru_utime) + time(usage.ru_stime)
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
