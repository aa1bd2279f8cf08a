//! Flow rules and paths: classes come first.

use super::*;
use logic::{
    flow::kernel::{FlowCapacity, Seed},
    reason::Reason,
};
use router::plane::{Charge, FlowMaps, FlowPlane, FlowSettings};

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
        // Without any rule all is dropped.
        let settings =
            FlowSettings { capacity: CAPACITY, seed: Seed::new([3, 5, 7, 11, 13]), outlast_daemon: false };
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
        assert_eq!(charged(&w, &udp), by_rules, "as if there were no path");
        assert_eq!((maps.counts()[9].dropped, maps.counts()[9].up), ([0, 0, 1, 0], [0, 0, 1, 0]));
        // OFPPC_NO_RECV: nothing comes in there, for paths neither.
        rules.set_no_recv([0]);
        w.plane.set_rules(Some(&rules)).unwrap();
        w.plane.set_port(0, w.port[0], true, true).unwrap();
        assert_eq!(charged(&w, &udp), by_rules);
        assert_eq!(maps.counts()[9].up, [0, 0, 1, 0]);
        assert!(w.plane.set_paths(&maps).is_err(), "paths are loaded before rules");
    });
}
