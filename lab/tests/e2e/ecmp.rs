//! Two boxes share the traffic by BGP (docs/howto/several-boxes.md). One is drained, stopped and started while packets run.
//!
//! ```text
//!                     ┌ 10.11.0.0/24 ─ in :one: out ─ 10.21.0.0/24 ┐
//!  client ── hosts edge                                            core hosts ── server
//!      10.1.0.0/24    └ 10.12.0.0/24 ─ in :two: out ─ 10.22.0.0/24 ┘    10.2.0.0/24
//! ```
//!
//! Each router is .1 towards its hosts; the edge is .1 and the core is .2 on the links to the boxes.

use crate::{
    bed::{be_router, run},
    daemon::{Daemon, eventually, eventually_true},
    frr::Frr,
};
use lab::{
    command,
    namespace::{Namespace, unique_run_name},
    openflow::Controller,
};
use logic::flow::{FlowCommand, text::parse_flow};
use std::{
    net::{TcpListener, UdpSocket},
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::Duration,
};

/// Sockets with ports of their own, so that routers spread the packets over both boxes.
const FLOWS: usize = 16;

struct Boxes {
    client: Namespace,
    server: Namespace,
    edge: Namespace,
    core: Namespace,
    boxes: [Namespace; 2],
    name: String,
}

impl Boxes {
    fn new() -> Boxes {
        let name = unique_run_name();
        let create = |short: &str| Namespace::create(format!("{name}-{short}")).unwrap();
        let [client, server, edge, core] = ["client", "server", "edge", "core"].map(create);
        let all = Boxes { client, server, edge, core, boxes: ["one", "two"].map(create), name };
        link(&all.client, ("eth0", "10.1.0.2"), &all.edge, ("hosts", "10.1.0.1"));
        link(&all.server, ("eth0", "10.2.0.2"), &all.core, ("hosts", "10.2.0.1"));
        all.client.ip_batch("route add default via 10.1.0.1\n").unwrap();
        all.server.ip_batch("route add default via 10.2.0.1\n").unwrap();
        for (n, (a_box, name)) in (1..).zip(all.boxes.iter().zip(["one", "two"])) {
            link(&all.edge, (name, &format!("10.1{n}.0.1")), a_box, ("in", &format!("10.1{n}.0.2")));
            link(&all.core, (name, &format!("10.2{n}.0.2")), a_box, ("out", &format!("10.2{n}.0.1")));
        }
        for router in [&all.edge, &all.core, &all.boxes[0], &all.boxes[1]] {
            be_router(router);
        }
        for router in [&all.edge, &all.core] {
            router.sysctl(&[("net/ipv4/fib_multipath_hash_policy", "1")]).unwrap();
        }
        all
    }

    /// FRR of the edge, the core and both boxes.
    fn frr(&self) -> [Frr; 4] {
        let start = |router, text: &str| Frr::start(router, &[("bgpd", text)]);
        [
            start(&self.edge, &bgp(65001, "10.1.0.0/24", &[("10.11.0.2", 65011), ("10.12.0.2", 65012)])),
            start(&self.core, &bgp(65002, "10.2.0.0/24", &[("10.21.0.1", 65011), ("10.22.0.1", 65012)])),
            start(&self.boxes[0], &bgp(65011, "", &[("10.11.0.1", 65001), ("10.21.0.2", 65002)])),
            start(&self.boxes[1], &bgp(65012, "", &[("10.12.0.1", 65001), ("10.22.0.2", 65002)])),
        ]
    }

    fn daemon(&self, n: usize, more: &[&str]) -> Daemon {
        let ports = ["--port", "in", "--port", "out", "--heartbeat", "30s"];
        let words = [&ports[..], more].concat();
        let mut daemon = Daemon::start(&self.boxes[n], &format!("{}-{n}", self.name), &words);
        daemon.until_accelerated(1);
        daemon
    }
}

/// A link with its addresses. GRO is on at both ends, so that redirected frames arrive.
fn link(a: &Namespace, (device, address): (&str, &str), b: &Namespace, (peer, peer_address): (&str, &str)) {
    a.ip_batch(&format!("link add {device} type veth peer name {peer} netns {}\n", b.name())).unwrap();
    for (namespace, device, address) in [(a, device, address), (b, peer, peer_address)] {
        namespace.ip_batch(&format!("link set {device} up\naddr add {address}/24 dev {device}\n")).unwrap();
    }
    for (namespace, device) in [(a, device), (b, peer)] {
        let offloads = "tx off tso off gso off txvlan off tx-vlan-stag-hw-insert off gro on";
        let offloads = ["-K", device].into_iter().chain(offloads.split(' '));
        command::run(namespace.command("ethtool").args(offloads)).unwrap();
        namespace.sysctl(&[(&format!("net/ipv4/conf/{device}/rp_filter"), "0")]).unwrap();
    }
}

/// bgpd's configuration, as in docs/howto/several-boxes.md.
fn bgp(number: u32, network: &str, peers: &[(&str, u32)]) -> String {
    let peers: String = peers
        .iter()
        .map(|(peer, number)| {
            format!(" neighbor {peer} remote-as {number}\n neighbor {peer} timers 1 3\n neighbor {peer} timers connect 1\n")
        })
        .collect();
    let network = if network.is_empty() { String::new() } else { format!("  network {network}\n") };
    format!(
        "router bgp {number}\n no bgp ebgp-requires-policy\n bgp bestpath as-path multipath-relax\n{peers} \
         address-family ipv4 unicast\n{network}  maximum-paths 2\n exit-address-family\n"
    )
}

#[test]
#[ignore = "needs root"]
fn a_box_is_drained_and_replaced_without_a_lost_packet() {
    let all = Boxes::new();
    let [_edge, _core, one, _two] = all.frr();
    let (first, second) = (all.daemon(0, &[]), all.daemon(1, &[]));
    let is_shared = |router: &Namespace, to: &str| {
        run(router, &format!("ip route show {to}")).matches("nexthop").count() == 2
    };
    eventually_true("both boxes are next hops", || {
        is_shared(&all.edge, "10.2.0.0/24") && is_shared(&all.core, "10.1.0.0/24")
    });
    let server = all.server.enter(|| Ok(UdpSocket::bind("10.2.0.2:4000")?)).unwrap();
    let clients: Vec<_> = (0..FLOWS)
        .map(|n| all.client.enter(|| Ok(UdpSocket::bind(format!("10.1.0.2:{}", 5000 + n))?)).unwrap())
        .collect();
    server.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let (sent, arrived, ends, over) =
        (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            for client in clients.iter().cycle() {
                if ends.load(Relaxed) {
                    break;
                }
                client.send_to(&[1; 60], "10.2.0.2:4000").unwrap();
                sent.fetch_add(1, Relaxed);
                thread::sleep(Duration::from_millis(1));
            }
        });
        scope.spawn(|| {
            while !over.load(Relaxed) {
                if server.recv(&mut [0; 100]).is_ok() {
                    arrived.fetch_add(1, Relaxed);
                }
            }
        });
        let is_used = |daemon: &Daemon| {
            let before = daemon.forwarded();
            eventually("packets", || {
                if daemon.forwarded() > before + 50 { Ok(()) } else { Err(format!("{before}")) }
            });
        };
        is_used(&first);
        is_used(&second);

        // Packets still pass: nobody was told.
        let drain = |daemon: &Daemon, words: &[&str]| {
            let output = daemon.millrace(&[&["drain"], words].concat());
            (String::from_utf8_lossy(&output.stdout).into_owned(), output.status.code())
        };
        let (said, status) = drain(&first, &["--command", "true", "--timeout", "2s"]);
        assert!(
            status == Some(1) && said.starts_with("not drained: ") && said.contains("; by router: host "),
            "{said}"
        );
        let output = first.millrace(&["drain", "--command", "echo no session; exit 3"]);
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(why.contains("cannot withdraw routes: ") && why.contains("no session"), "{why}");

        let shutdown = one.line(&all.boxes[0], "bgpd", &["configure terminal", "bgp graceful-shutdown"]);
        let (said, status) = drain(&first, &["--command", &shutdown, "--calm", "3s"]);
        assert!(status == Some(0) && said.starts_with("drained after "), "{said}");
        let quiet = first.forwarded();
        is_used(&second);
        assert!(first.forwarded() <= quiet + 20);
        // Nothing of it is left, and a new one begins.
        first.stop();
        is_used(&second);
        let first = all.daemon(0, &[]);
        let undo = one.line(&all.boxes[0], "bgpd", &["configure terminal", "no bgp graceful-shutdown"]);
        let (said, status) = drain(&first, &["--undo", "--command", &undo]);
        assert!(status == Some(0) && said == "routes are announced again\n", "{said}");
        is_used(&first);
        is_used(&second);
        ends.store(true, Relaxed);
        eventually("every packet", || match (sent.load(Relaxed), arrived.load(Relaxed)) {
            (sent, arrived) if sent == arrived => Ok(()),
            (sent, arrived) => Err(format!("{arrived} of {sent} arrived")),
        });
        over.store(true, Relaxed);
    });
    drop(second);
}

/// Each box dials the same controller, which gives both the same rules.
#[test]
#[ignore = "needs root"]
fn one_controller_has_several_boxes() {
    let all = Boxes::new();
    all.edge.ip_batch("route add 10.2.0.0/24 nexthop via 10.11.0.2 nexthop via 10.12.0.2\n").unwrap();
    all.core.ip_batch("route add 10.1.0.0/24 nexthop via 10.21.0.1 nexthop via 10.22.0.1\n").unwrap();
    for (n, a_box) in (1..).zip(&all.boxes) {
        a_box
            .ip_batch(&format!(
                "route add 10.1.0.0/24 via 10.1{n}.0.1\nroute add 10.2.0.0/24 via 10.2{n}.0.2\n"
            ))
            .unwrap();
    }
    let listener = all.edge.enter(|| Ok(TcpListener::bind("0.0.0.0:6653")?)).unwrap();
    let daemons = [0, 1].map(|n| all.daemon(n, &["--controller", &format!("tcp:10.1{}.0.1", n + 1)]));
    let drop = parse_flow("udp,tp_dst=9,actions=drop", FlowCommand::Add).unwrap();
    let rest = parse_flow("actions=normal", FlowCommand::Add).unwrap();
    let mut controllers = [(); 2].map(|()| {
        let mut controller = Controller::over(listener.accept().unwrap().0).unwrap();
        controller.change([rest.clone(), drop.clone()]).unwrap();
        controller.barrier().unwrap();
        controller
    });
    let ids = controllers.each_mut().map(|controller| controller.datapath_id().unwrap());
    assert_ne!(ids[0], ids[1]);
    let servers = [9, 10].map(|port| all.server.enter(|| Ok(UdpSocket::bind(("10.2.0.2", port))?)).unwrap());
    let send = || {
        for port in 5000..5000 + FLOWS {
            let client = all.client.enter(|| Ok(UdpSocket::bind(format!("10.1.0.2:{port}"))?)).unwrap();
            for to in ["10.2.0.2:9", "10.2.0.2:10"] {
                client.send_to(&[1; 60], to).unwrap();
            }
        }
    };
    servers[1].set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    servers[0].set_nonblocking(true).unwrap();
    send();
    for _ in 0..FLOWS {
        servers[1].recv(&mut [0; 100]).expect("a packet that no rule drops");
    }
    assert!(servers[0].recv(&mut [0; 100]).is_err(), "a packet passed the rule");
    for daemon in &daemons {
        let dropped =
            |flow: &&serde_json::Value| flow["actions"] == "drop" && flow["packets"].as_u64().unwrap() > 0;
        let flows = daemon.ask(&["flows", "list"]);
        assert_eq!(flows.as_array().unwrap().iter().filter(dropped).count(), 1, "{flows:#}");
    }
}
