//! Flow rules and paths: classes come before rules.

use super::*;
use logic::{
    flow::{
        Action, CoreChoice, Field, FlowCommand, FlowMod, Instructions, Match, RulePort,
        flows::Flows,
        kernel::{FlowCapacity, Seed},
        table::{Dialect, PathPort},
    },
    reason::Reason,
};
use router::plane::{Charge, FlowMaps, FlowPlane, FlowSettings, Grace, MappedFlows};

const CAPACITY: FlowCapacity = FlowCapacity {
    rules: 64,
    buckets: 64,
    rest: 64,
    patches: 16,
    steps: 64,
    groups: 16,
    meters: 16,
    cache_sets: 64,
    port_sets: 16,
};

#[test]
#[ignore = "needs root"]
fn paths_are_asked_before_flow_rules() {
    in_new_namespace(|| {
        let (mut w, maps) = with_paths(settings());
        // Without any rule, all packets are dropped.
        let settings = FlowSettings { capacity: CAPACITY, seed: Seed::new([3, 5, 7, 11, 13]) };
        let rules = Arc::new(FlowMaps::new(settings).unwrap());
        let mut flows = FlowPlane::load(&w.plane, &rules).unwrap_or_else(|e| panic!("{e:#}"));
        let class = Class { protocol: Some(17), ..Class::default() };
        let f = Frame::udp4(A, "10.0.1.5", "10.0.2.9");
        let (udp, tcp) = (f.bytes(), f.ip4(|ip| ip[9] = 6).bytes());
        let mut charged = |w: &World, frame: &[u8]| {
            let before = w.plane.counters().unwrap().charges;
            assert_eq!(flows.run(w.port[0], frame).unwrap().action, XDP_DROP);
            let after = w.plane.counters().unwrap().charges;
            let new = after.into_iter().filter(|(key, n)| before.get(key) != Some(n));
            new.map(|(key, _)| key).collect::<Vec<_>>()
        };
        let by_rules = [(Charge::Port(0), Reason::RuleDrop)];
        assert_eq!(charged(&w, &udp), by_rules);
        maps.set_classes(&[path(9, Otherwise::Drop, class.clone())], &own()).unwrap();
        assert_eq!(charged(&w, &udp), [(Charge::Router(0), Reason::PathNoWorker)]);
        assert_eq!(charged(&w, &tcp), by_rules);
        maps.set_classes(&[path(9, Otherwise::Up, class)], &own()).unwrap();
        assert_eq!(charged(&w, &udp), by_rules, "charges of a packet that its path passes on to the rules");
        assert_eq!((maps.counts()[9].dropped, maps.counts()[9].up), ([0, 0, 1, 0], [0, 0, 1, 0]));
        // OFPPC_NO_RECV: nothing is received on this port, for paths neither.
        rules.set_no_recv([0]);
        w.plane.set_rules(Some(&rules)).unwrap();
        w.plane.set_port(0, w.port[0], true, true).unwrap();
        assert_eq!(charged(&w, &udp), by_rules);
        assert_eq!(maps.counts()[9].up, [0, 0, 1, 0]);
        assert!(w.plane.set_paths(&maps).is_err(), "paths were loaded after rules");
    });
}

/// Rules for UDP by destination port, which name paths 0 to 9. The last path drops packets that no worker can
/// take.
pub struct Rules {
    pub plane: FlowPlane,
    tables: Flows<Arc<MappedFlows>>,
    grace: Grace,
}

impl Rules {
    pub fn new(plane: &Plane, maps: &PathMaps) -> Rules {
        let seed = Seed::new([3, 5, 7, 11, 13]);
        let settings = FlowSettings { capacity: CAPACITY, seed };
        let memory = Arc::new(FlowMaps::new(settings).unwrap());
        let flows = FlowPlane::load(plane, &memory).unwrap_or_else(|e| panic!("{e:#}"));
        let mut tables = Flows::new(
            memory.memory().clone(),
            seed,
            &Instructions::apply([Action::output(RulePort::NORMAL)]),
        );
        tables.set_cores(Some([0, 1].into()));
        tables.set_paths((0..10).map(|n| (n, PathPort { name: format!("{n}"), drops: n == 9 })).collect());
        maps.set_drops([9]);
        Rules { plane: flows, tables, grace: Grace::new().unwrap() }
    }

    pub fn add(&mut self, table: u8, port: u16, instructions: Instructions) {
        let udp = Match::ANY.with(Field::EthType, 0x0800_u16).with(Field::IpProto, 17_u8);
        let request = FlowMod {
            table: Some(table),
            ..FlowMod::new(FlowCommand::Add, 1, udp.with(Field::UdpDst, port), instructions)
        };
        self.tables.apply(&request, Dialect::OpenFlow13, 0).unwrap();
        assert!(common::end_batch(&mut self.tables, &mut self.grace));
    }

    /// Gives packets for one port to a path.
    pub fn give(&mut self, port: u16, path: u16) {
        self.add(0, port, to(path));
    }

    /// Gives packets for one port to a path, after a rule that writes a source port and names a core.
    pub fn give_from_core(&mut self, port: u16, path: u16, core: u16) {
        let first = [Action::set(Field::UdpSrc, 77_u16), Action::SetCore(CoreChoice::This(core))];
        self.add(0, port, Instructions { goto_table: Some(1), ..Instructions::apply(first) });
        self.add(1, port, to(path));
    }
}

fn to(path: u16) -> Instructions {
    Instructions::apply([Action::output(RulePort::of_path(path).unwrap())])
}

/// Rules name the path, whatever the classes are. A packet that no worker can take is handled as its path
/// says, with the changes that earlier rules made.
#[test]
#[ignore = "needs root"]
fn a_rule_gives_packets_to_a_path() {
    in_new_namespace(|| {
        let (w, maps) = with_paths(settings());
        let mut rules = Rules::new(&w.plane, &maps);
        rules.give(9, 9);
        rules.give(3, 3);
        rules.give_from_core(4, 4, 1);
        let frame = |port: u16| {
            Frame::udp4(A, "10.0.1.5", "10.0.2.9").ip4(|ip| ip[22..24].copy_from_slice(&port.to_be_bytes()))
        };
        let mut counted = |path: usize, frame: &[u8]| {
            let before = maps.counts();
            let run = rules.plane.run(w.port[0], frame).unwrap();
            assert!(counted_since(&maps, &before).iter().all(|p| usize::from(*p) == path));
            (since(&maps, path, &before), run)
        };
        for _ in 0..2 {
            // The first turn finds the rule by search, the second in the cache.
            let (counts, run) = counted(9, &frame(9).bytes());
            assert_eq!((counts.dropped, counts.up, run.action), ([0, 0, 1, 0], [0; 4], XDP_DROP));
            let (counts, run) = counted(3, &frame(3).bytes());
            assert_eq!(
                (counts.dropped, counts.up, run.action),
                ([0; 4], [0, 0, 1, 0], XDP_REDIRECT),
                "the packet is routed"
            );
            let (counts, run) = counted(4, &frame(4).bytes());
            assert_eq!(
                (counts.up, run.action, &run.frame[34..36]),
                ([0, 0, 1, 0], XDP_REDIRECT, &[0, 77][..])
            );
        }
        assert_eq!(
            w.plane.counters().unwrap().charges.get(&(Charge::Router(0), Reason::PathNoWorker)),
            Some(&2)
        );
        // Rules are not asked about packets that a class matches.
        let class = Class { protocol: Some(17), ..Class::default() };
        maps.set_classes(&[path(7, Otherwise::Drop, class)], &own()).unwrap();
        assert_eq!(counted(7, &frame(3).bytes()).0.dropped, [0, 0, 1, 0]);
        let by_rules = Class { flow_rules: true, ..Class::default() };
        maps.set_classes(&[path(7, Otherwise::Drop, by_rules)], &own()).unwrap();
        assert_eq!(
            counted(3, &frame(3).bytes()).0.up,
            [0, 0, 1, 0],
            "(the class of flow rules matches no packet itself)"
        );
    });
}
