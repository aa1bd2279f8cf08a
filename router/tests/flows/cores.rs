//! SET_CORE: the core that handles a packet, and that this happens once, in order, and to the same bytes.

use crate::{
    bed::{Bed, host_mac, port_mac, routable},
    common::{hogged, in_new_namespace, only_on, run, wire::Wire},
    redirected,
};
use libbpf_rs::{
    MapCore, MapFlags, MapHandle,
    query::{ProgInfoIter, ProgInfoQueryOptions},
};
use logic::{
    flow::{FlowCommand, text::parse_flow},
    openflow::{
        Message,
        extension::{Extension, PROXY_ETHER_TYPE},
        v13,
    },
};
use router::plane::online_cpus;
use serde_json::Value;
use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

/// Runs a test in a namespace of its own, on core 0. Without another core, it runs nothing.
pub fn on_several_cores(test: impl FnOnce() + Send + 'static) {
    if online_cpus().unwrap()[..] != [0] {
        in_new_namespace(|| {
            // The ports that this thread sends to are polled on its core.
            only_on([0]);
            test();
        });
    }
}

/// The maps of the program that runs on p0.
pub struct Maps {
    counters: MapHandle,
    cores: u32,
}

impl Maps {
    pub fn of(bed: &Bed) -> Maps {
        assert_eq!(bed.program(0), "millrace_flow");
        let link = run("ip -d link show p0");
        let id: u32 = link.split("prog/xdp id ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        let options = ProgInfoQueryOptions::default().include_map_ids(true);
        let program = ProgInfoIter::with_query_opts(options).find(|program| program.id == id).unwrap();
        let maps = program.map_ids.into_iter().map(|id| MapHandle::from_map_id(id).unwrap());
        let maps: Vec<MapHandle> = maps.collect();
        let named = |name: &str| maps.iter().find(|map| map.name().to_str() == Some(name)).unwrap();
        let counters = MapHandle::try_from(named("flow_counters")).unwrap();
        Maps { counters, cores: named("rule_cores").info().unwrap().info.id }
    }

    /// Packets that each core has counted for rules, including misses of tables. The last entry is user
    /// space.
    pub fn counted(&self) -> Vec<u64> {
        let lots = libbpf_rs::num_possible_cpus().unwrap() as u32 + 1;
        let rows = self.counters.max_entries() / lots;
        // There are few rules, which have the first rows.
        let packets = |row: u32| {
            let count = self.counters.lookup(&row.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
            u64::from_ne_bytes(count[..8].try_into().unwrap())
        };
        (0..lots).map(|lot| (0..64).map(|row| packets(lot * rows + row)).sum()).collect()
    }

    /// The cores that have a thread for our packets.
    fn threads(&self) -> Vec<usize> {
        let name = |entry: fs::DirEntry| fs::read_to_string(entry.path().join("comm")).ok();
        let names = fs::read_dir("/proc").unwrap().filter_map(|entry| name(entry.unwrap()));
        let mut cores: Vec<usize> = names
            .filter_map(|name| {
                let (core, map) = name.trim().strip_prefix("cpumap/")?.split_once("/map:")?;
                (map == self.cores.to_string()).then(|| core.parse().unwrap())
            })
            .collect();
        cores.sort_unstable();
        cores
    }
}

/// A controller that speaks OpenFlow 1.3.
pub struct Controller(TcpStream);

impl Controller {
    pub fn connect() -> Controller {
        let stream = TcpStream::connect("127.0.0.1:6653").unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut controller = Controller(stream);
        controller.say(&Message::Hello { versions: None });
        assert!(matches!(controller.hear(), Message::Hello { .. }));
        controller
    }

    pub fn say(&mut self, message: &Message) {
        let mut bytes = Vec::new();
        v13::encode(message, 7, &mut bytes).unwrap();
        self.0.write_all(&bytes).unwrap();
    }

    pub fn hear(&mut self) -> Message {
        let mut bytes = vec![0; 8];
        self.0.read_exact(&mut bytes).unwrap();
        bytes.resize(u16::from_be_bytes([bytes[2], bytes[3]]).into(), 0);
        self.0.read_exact(&mut bytes[8..]).unwrap();
        v13::decode(&bytes).unwrap().1
    }

    /// From now on, messages about cores and workloads come only on request.
    pub fn unsubscribe(&mut self) {
        let nothing = Extension::Subscribe { cores: false, workloads: false };
        self.say(&Message::Experimenter(nothing.encode()));
        self.say(&Message::BarrierRequest);
        while self.hear() != Message::BarrierReply {}
    }

    /// Changes the core table, and returns the switch's error, if any. Packets obey the change when this
    /// returns.
    pub fn core_table(&mut self, command: FlowCommand, flow: &str) -> Option<Message> {
        let mut inner = Vec::new();
        v13::encode(&Message::FlowMod(parse_flow(flow, command).unwrap()), 8, &mut inner).unwrap();
        self.say(&Message::Experimenter(Extension::CoreFlowMod(inner).encode()));
        self.say(&Message::BarrierRequest);
        match self.hear() {
            Message::BarrierReply => None,
            other => {
                assert_eq!(self.hear(), Message::BarrierReply);
                Some(other)
            }
        }
    }
}

/// How much each core has counted between `before` and `after`.
pub fn since(before: &[u64], after: &[u64]) -> Vec<u64> {
    after.iter().zip(before).map(|(after, before)| after - before).collect()
}

#[test]
#[ignore = "needs root"]
fn the_core_that_a_rule_names_handles_each_packet_once() {
    on_several_cores(|| {
        let bed = Bed::new("o", "");
        let frame = routable(0, 1);
        let (bytes, routed) = (frame.bytes(), frame.routed(host_mac(1), port_mac(1), &[]));
        let elsewhere = redirected(&frame);
        let elsewhere_routed = elsewhere.routed(host_mac(2), port_mac(2), &[]);
        bed.flows(&["add", "in_port=1,ip,actions=output:2"]);
        let maps = Maps::of(&bed);
        bed.wires[0].send(&bytes);
        bed.comes_out(&[1], &bytes);
        assert_eq!(maps.threads(), [] as [usize; 0], "threads, before a rule names a core");

        let does = |actions: &str, core: usize, ports: &[usize], out: &[u8]| {
            let rule = format!("in_port=1,ip,actions={}", actions.replace('@', &core.to_string()));
            bed.flows(&["add", &rule]);
            // The third packet is answered from the cache of either core.
            for turn in 0..5 {
                let before = maps.counted();
                bed.wires[0].send(&bytes);
                bed.comes_out(ports, out);
                let mut one = vec![0; before.len()];
                one[core] = 1;
                assert_eq!(since(&before, &maps.counted()), one, "{rule}, turn {turn}");
            }
            assert_eq!(bed.list("")[0]["slow"], false, "{rule}");
        };
        for core in [1, 0] {
            does("set_core:@,output:2", core, &[1], &bytes);
            does("set_core:@,mod_nw_dst:10.0.2.9,output:2", core, &[1], &elsewhere.bytes());
            does("set_core:@,NORMAL", core, &[1], &routed);
            does("set_core:@,mod_nw_dst:10.0.2.9,NORMAL", core, &[2], &elsewhere_routed);
            does("set_core:@,LOCAL", core, &[1], &routed);
            does("set_core:@,flood", core, &[1, 2], &bytes);
            does("set_core:@,in_port", core, &[0], &bytes);
            does("set_core:@,CONTROLLER,output:3", core, &[2], &bytes);
            does("set_core:@", 0, &[], &bytes);
            // The last SET_CORE counts.
            does("set_core:1,set_core:0,set_core:@,output:2", core, &[1], &bytes);
            does("set_core:0,write_actions(set_core:@,output:3)", core, &[2], &bytes);
        }
        assert_eq!(maps.threads(), [0, 1]);

        // Each table may name another core.
        bed.flows(&["add", "in_port=1,ip,actions=set_core:0,mod_nw_dst:10.0.2.9,goto_table:1"]);
        bed.flows(&["add", "table=1,ip,nw_dst=10.0.2.9,actions=set_core:1,output:3"]);
        for _ in 0..3 {
            let before = maps.counted();
            bed.wires[0].send(&bytes);
            bed.comes_out(&[2], &elsewhere.bytes());
            assert_eq!(since(&before, &maps.counted())[..2], [0, 2]);
        }
        assert_eq!(bed.status().unwrap()["flows"]["slow_done"], 0);

        // Frames of several buffers leave by a port, and go up.
        for n in 0..3 {
            run(&format!("ip link set p{n} mtu 9000"));
            run(&format!("ip link set q{n} mtu 9000"));
        }
        let long = frame.ip4(|ip| {
            ip.resize(9000, 0);
            ip[2..4].copy_from_slice(&9000_u16.to_be_bytes());
        });
        let long_routed = long.routed(host_mac(1), port_mac(1), &[]);
        for (actions, out) in
            [("output:2", long.bytes()), ("NORMAL", long_routed.clone()), ("LOCAL", long_routed)]
        {
            bed.flows(&["add", &format!("in_port=1,ip,actions=set_core:1,{actions}")]);
            for _ in 0..3 {
                let before = maps.counted();
                bed.wires[0].send(&long.bytes());
                bed.comes_out(&[1], &out);
                assert_eq!(since(&before, &maps.counted())[..2], [0, 1], "{actions}");
            }
        }
        let charged = ["rule_core_full", "redirect_failed", "rule_no_port"].map(|name| bed.reason(name));
        assert_eq!(charged, [0; 3]);
    });
}

#[test]
#[ignore = "needs root"]
fn a_flow_keeps_its_order_and_nothing_is_left_of_a_rule_that_is_gone() {
    on_several_cores(|| {
        let bed = Bed::new("w", "");
        let rule = "in_port=1,ip,actions=set_core:1,output:2";
        bed.flows(&["add", rule]);
        let maps = Maps::of(&bed);
        let numbered = |n: u32| -> Vec<u8> {
            let mut bytes = routable(0, 1).bytes();
            let at = bytes.len() - 4;
            bytes[at..].copy_from_slice(&n.to_be_bytes());
            bytes
        };
        let before = maps.counted();
        // No more packets at once than a core's queue has room for.
        for lot in 0..20 {
            let numbers = lot * 500..(lot + 1) * 500;
            numbers.clone().for_each(|n| bed.wires[0].send(&numbered(n)));
            for n in numbers {
                let got = bed.next(1, Duration::from_secs(5));
                assert_eq!(got.as_deref(), Some(&numbered(n)[..]), "packet {n}");
            }
        }
        assert_eq!(since(&before, &maps.counted())[..2], [0, 10_000]);

        // Each change makes another decision, while packets sent before may wait in the core's queue.
        for turn in 0..50 {
            for (change, core, out) in [
                (&["mod", "in_port=1,actions=output:3"][..], 0, 2),
                (&["del", "in_port=1"][..], 0, 1),
                (&["add", rule][..], 1, 1),
            ] {
                let frame = routable(0, 1);
                let expected = if change[0] == "del" {
                    frame.routed(host_mac(1), port_mac(1), &[])
                } else {
                    frame.bytes()
                };
                bed.flows(change);
                // The packets that waited were decided again.
                thread::sleep(Duration::from_millis(5));
                bed.wires.iter().for_each(|wire| while wire.receive().is_some() {});
                let before = maps.counted();
                for packet in 0..10 {
                    bed.wires[0].send(&frame.bytes());
                    let got = bed.next(out, Duration::from_secs(5));
                    assert_eq!(
                        got.as_deref(),
                        Some(&expected[..]),
                        "turn {turn}, {change:?}, packet {packet}"
                    );
                }
                let counted = since(&before, &maps.counted());
                assert_eq!(counted[1 - core], 0, "turn {turn}, {change:?}: {counted:?}");
                for _ in 0..20 {
                    bed.wires[0].send(&frame.bytes());
                }
            }
        }
        let threads = |expected: &[usize]| {
            let start = Instant::now();
            while maps.threads() != expected {
                assert!(
                    start.elapsed() < Duration::from_secs(10),
                    "threads on {:?}, not {expected:?}",
                    maps.threads()
                );
                thread::sleep(Duration::from_millis(20));
            }
        };
        threads(&[1]);
        assert!(bed.millrace(&["stop"]).status.success());
        threads(&[]);
    });
}

/// CORE_FLOW_MOD in a frame, as a controller sends it through another switch. It is accepted only on ports
/// that the configuration names.
#[test]
#[ignore = "needs root"]
fn the_core_table_is_changed_through_another_switch() {
    in_new_namespace(|| {
        let bed = Bed::new("y", "[openflow]\nproxy_ports = [\"p2\"]\n");
        let frame = |port: usize, command, flow| {
            let (mut inner, mut message) = (Vec::new(), Vec::new());
            v13::encode(&Message::FlowMod(parse_flow(flow, command).unwrap()), 8, &mut inner).unwrap();
            let message_of = Message::Experimenter(Extension::CoreFlowMod(inner).encode());
            v13::encode(&message_of, 9, &mut message).unwrap();
            [&port_mac(port).0[..], &host_mac(port).0, &PROXY_ETHER_TYPE.to_be_bytes(), &message, &[0; 9]]
                .concat()
        };
        let core = || -> Value {
            let told =
                bed.millrace(&["explain", "udp 10.0.0.9:1 -> 10.0.1.9:2", "--port", "p0", "--json"]).stdout;
            serde_json::from_slice::<Value>(&told).unwrap()[0]["rules"]["core"].clone()
        };
        let becomes = |expected: Value| {
            let start = Instant::now();
            while core() != expected {
                assert!(start.elapsed() < Duration::from_secs(10), "the core is {}, not {expected}", core());
            }
        };
        let add = "priority=9,ip,actions=set_core:0";
        bed.wires[1].send(&frame(1, FlowCommand::Add, add));
        bed.wires[2].send(&frame(2, FlowCommand::Add, "priority=8,in_port=3,actions=set_core:0"));
        bed.wait_for("the second change", |s| s["flows"]["rules"] == 1);
        assert_eq!(core(), Value::Null);
        bed.wires[2].send(&frame(2, FlowCommand::Add, add));
        becomes(0.into());
        // This also works with rules in charge.
        bed.wires[2].send(&frame(2, FlowCommand::Delete { strict: true }, "priority=9,ip"));
        becomes(Value::Null);
    });
}

/// CORE_FLOW_MOD: rules that only name a core.
#[test]
#[ignore = "needs root"]
fn the_core_table_decides_the_core_and_the_flow_tables_the_rest() {
    on_several_cores(|| {
        let bed = Bed::new("t", "[openflow]\ncontrollers = [\"ptcp:6653:127.0.0.1\"]\n");
        let mut controller = Controller::connect();
        controller
            .say(&Message::Experimenter(Extension::Subscribe { cores: true, workloads: false }.encode()));
        let Message::Experimenter(told) = controller.hear() else { panic!("no CORES") };
        let Ok(Extension::Cores(cores)) = Extension::decode(&told) else { panic!("no CORES: {told:?}") };
        let numbers: Vec<usize> = cores.cores.iter().map(|core| core.number.into()).collect();
        assert_eq!((cores.features.core_redirect, numbers), (true, online_cpus().unwrap()));
        // Otherwise, messages with loads would come at any time.
        controller.unsubscribe();

        let frame = routable(0, 1);
        let routed = frame.routed(host_mac(1), port_mac(1), &[]);
        let other = routable(0, 2);
        let other_routed = other.routed(host_mac(2), port_mac(2), &[]);
        // Each packet goes through the rules of both tables on this core. The other flow has no core in the
        // core table.
        let check = |core: usize, at: usize, out: &[u8]| {
            let maps = Maps::of(&bed);
            for turn in 0..5 {
                for (core, at, sent, out) in
                    [(core, at, frame.bytes(), out), (0, 2, other.bytes(), &other_routed[..])]
                {
                    let before = maps.counted();
                    bed.wires[0].send(&sent);
                    bed.comes_out(&[at], out);
                    let mut two = vec![0; before.len()];
                    two[core] = 2;
                    assert_eq!(since(&before, &maps.counted()), two, "turn {turn} at q{at}");
                }
            }
        };
        let to_1 = "priority=9,ip,nw_dst=10.0.1.9,actions=set_core:1";
        // Flows cached before the core table had rules must follow it too.
        bed.flows(&["add", "in_port=2,actions=output:3"]);
        for _ in 0..3 {
            bed.wires[0].send(&frame.bytes());
            bed.comes_out(&[1], &routed);
        }
        for (command, flow, core) in [
            (FlowCommand::Add, to_1, 1),
            (FlowCommand::Modify { strict: false }, "ip,actions=set_core:0", 0),
            (FlowCommand::Add, "priority=10,in_port=1,ip,nw_dst=10.0.1.9,actions=set_core:1", 1),
        ] {
            assert_eq!(controller.core_table(command, flow), None);
            check(core, 1, &routed);
        }
        // The flow tables are asked on either core, and can override the core.
        bed.flows(&["add", "in_port=1,ip,nw_dst=10.0.1.9,actions=output:3"]);
        check(1, 2, &frame.bytes());
        bed.flows(&["add", "in_port=1,ip,nw_dst=10.0.1.9,actions=set_core:0,NORMAL"]);
        check(0, 1, &routed);
        bed.flows(&["del"]);
        // Without a rule in the flow tables, the rule in the core table stays, and so does the program.
        check(1, 1, &routed);
        assert_eq!(bed.list(""), [] as [serde_json::Value; 0]);

        for (flow, why) in [("actions=set_core:4000", (2, 5)), ("actions=output:2", (2, 0))] {
            let Some(Message::Error(error)) = controller.core_table(FlowCommand::Add, flow) else {
                panic!("{flow}: no error")
            };
            assert_eq!((error.kind, error.code), why, "{flow}");
        }
        assert_eq!(controller.core_table(FlowCommand::Delete { strict: false }, ""), None);
        assert_eq!(bed.program(0), "millrace");
        bed.wires[0].send(&frame.bytes());
        bed.comes_out(&[1], &routed);

        // A packet that also goes to the controllers goes there once.
        bed.flows(&["add", "in_port=1,ip,actions=set_core:1,CONTROLLER,output:2"]);
        for _ in 0..3 {
            bed.wires[0].send(&frame.bytes());
            bed.comes_out(&[1], &frame.bytes());
            let Message::PacketIn(packet) = controller.hear() else { panic!("no packet-in") };
            assert_eq!(packet.data, frame.bytes());
        }
        controller.say(&Message::BarrierRequest);
        assert_eq!(controller.hear(), Message::BarrierReply);
    });
}

#[test]
#[ignore = "needs root"]
fn packets_that_a_core_has_no_room_for_are_counted_by_name() {
    on_several_cores(|| {
        let bed = Bed::new("r", "");
        bed.flows(&["add", "in_port=1,ip,actions=set_core:1,output:2"]);
        let bytes = routable(0, 1).bytes();
        const SENT: u64 = 4000;
        hogged(1, || (0..SENT).for_each(|_| bed.wires[0].send(&bytes)));
        let mut came = 0;
        while bed.next(1, Duration::from_millis(200)).is_some() {
            came += 1;
        }
        assert!((2048..SENT).contains(&came), "{came} of {SENT} packets came out");
        bed.wait_for("the loss", |_| bed.reason("rule_core_full") == SENT - came);
    });
}

/// The driver of a port refuses XDP: packets stay on their core, and rules that need another one are refused.
#[test]
#[ignore = "needs root"]
fn packets_of_a_port_in_generic_mode_stay_on_their_core() {
    on_several_cores(|| {
        let mut bed = Bed::new("x", "generic = true\n");
        let rule = "ip,actions=set_core:1,output:3";
        bed.flows(&["add", rule]);
        // A veth refuses XDP if its peer has more TX queues than it has RX queues.
        run("ip link del p0");
        bed.wait_for("the port's end", |s| s["ports"][0]["problems"].to_string().contains("not there"));
        run(
            "ip link add p0 address 02:00:00:00:01:00 numtxqueues 1 numrxqueues 1 type veth peer name q0 numtxqueues 2 numrxqueues 2",
        );
        run("sysctl -qw net.ipv6.conf.p0.disable_ipv6=1 net.ipv6.conf.q0.disable_ipv6=1");
        run("ethtool -K q0 gro on tx off txvlan off tx-vlan-stag-hw-insert off");
        run("ip link set p0 up");
        run("ip link set q0 up");
        bed.wires[0] = Wire::open("q0");
        bed.wait_for("the port's return", |s| {
            s["ports"][0]["mode"] == "generic" && s["ports"][0]["problems"] == serde_json::json!([])
        });
        let maps = Maps::of(&bed);
        for (from, core) in [(0, 0), (1, 1)] {
            let before = maps.counted();
            let bytes = routable(from, 2).bytes();
            bed.wires[from].send(&bytes);
            bed.comes_out(&[2], &bytes);
            let mut one = vec![0; before.len()];
            one[core] = 1;
            assert_eq!(since(&before, &maps.counted()), one, "from q{from}");
        }
        let refused = bed.refused(&["add", rule]);
        assert!(refused.contains("action"), "the refusal names no action: {refused}");
    });
}
