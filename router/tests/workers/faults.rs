//! Chains that panic, and ports that vanish.

use super::*;
use crate::common::run;
use router::{
    api::workers::PathStand,
    user_plane::{af_xdp::Rings, workers::PathPlan},
};

fn lost(path: &PathStand) -> u64 {
    path.worker_panicked
}

#[test]
#[ignore = "needs root"]
fn a_panic_costs_the_packets_in_hand_and_the_third_stops_only_its_path() {
    in_new_namespace(|| {
        let bed = Bed::new(1, settings());
        // Both paths are on one worker, with room for packets that come while a panic is reported.
        let mut paths = [(0, path("trap", &["forward"], 1)), (1, path("other", &["forward"], 1))];
        paths.iter_mut().for_each(|(_, path)| path.ring = 1024);
        bed.apply(&plan(&[1], &ports(1, Rings { fill: 2048, ..SMALL }), &paths));
        let (mut generator, to, kernel) = (Generator::new("q0", 1), Wire::open("q1"), Wire::open("p0"));
        let mut send = |range: std::ops::Range<u32>| {
            for n in range.step_by(16) {
                generator.send(0, (n..n + 16).flat_map(|n| [frame(0, n, 60), frame(1, n, 60)]));
                thread::sleep(Duration::from_micros(300));
            }
        };
        for (panics, at) in [(1, 500), (2, 1500)] {
            bed.told.panics_at.store(at, Relaxed);
            send((panics - 1) * 1008..panics * 1008);
            let all = u64::from(panics) * 1008;
            until("all to be counted", || [0, 1].iter().all(|path| bed.path(*path).packets == all));
            until("the panic", || bed.path(0).panics == u64::from(panics));
        }
        let trap = bed.path(0);
        assert!((2..=2 * 256).contains(&lost(&trap)), "two panics cost {} packets: {trap:?}", lost(&trap));
        assert_eq!(trap.out["p1"] + lost(&trap), 2016, "packets out and lost: {trap:?}");
        let (mut of_trap, mut of_other) = (Vec::new(), Vec::new());
        let out = out_of(&to, (2016 + trap.out["p1"]) as usize, |f| f[12..14] == [0x88, 0xb5]);
        for frame in &out {
            let to = if frame[14] == 0 { &mut of_trap } else { &mut of_other };
            to.push(crate::af_xdp_bed::number(frame));
        }
        assert_eq!(of_other, (0..2016).collect::<Vec<_>>(), "packets of the other path");
        assert!(of_trap.is_sorted() && !of_trap.contains(&500) && !of_trap.contains(&1500));
        // The third panic within ten seconds.
        let emptied = || bed.told.emptied.load(Relaxed);
        let before = emptied();
        bed.told.panics_at.store(2016, Relaxed);
        send(2016..2032);
        until("the path to be stopped", || bed.path(0).stopped.is_some());
        until("its slot to be emptied", || emptied() > before);
        until("the packets of the other path", || bed.path(1).out["p1"] == 2032);
        // Its slot is empty, so its packets go to the kernel.
        send(2032..2048);
        assert_eq!(
            out_of(&kernel, 16, |f| f[12..15] == [0x88, 0xb5, 0]),
            (2032..2048).map(|n| frame(0, n, 60)).collect::<Vec<_>>()
        );
        // The same plan changes nothing; another chain starts it.
        bed.apply(&plan(&[1], &ports(1, Rings { fill: 2048, ..SMALL }), &paths));
        assert!(bed.path(0).stopped.is_some(), "the same plan started the path again");
        let mended = PathPlan { ring: 1024, ..path("mended", &["count", "forward"], 1) };
        let mended = [(0, mended), paths[1].clone()];
        bed.apply(&plan(&[1], &ports(1, Rings { fill: 2048, ..SMALL }), &mended));
        let before = bed.path(0).out["p1"];
        send(2048..2064);
        until("the path to continue", || bed.path(0).out["p1"] == before + 16);
        until("the packets of the other path", || bed.path(1).out["p1"] == 2064);
        generator.end();
        bed.end();
    });
}

#[test]
#[ignore = "needs root"]
fn a_port_that_goes_and_comes_back() {
    in_new_namespace(|| {
        let bed = Bed::new(1, settings());
        let paths = [(0, path("one", &["forward"], 0))];
        bed.apply(&plan(&[0], &ports(1, SMALL), &paths));
        let from = Wire::open("q0");
        let sends = |numbers: std::ops::Range<u32>| {
            let to = Wire::open("q1");
            for n in numbers.clone() {
                from.send(&frame(0, n, 60));
            }
            let out = out_of(&to, numbers.len(), |f| f[12..14] == [0x88, 0xb5]);
            assert_eq!(out, numbers.map(|n| frame(0, n, 60)).collect::<Vec<_>>());
        };
        sends(0..50);
        run("ip link del p1");
        until("packets to be dropped", || {
            from.send(&frame(0, 60, 60));
            bed.report().workers[0].outputs.iter().any(|output| output.port == 1 && output.dropped_gone > 0)
        });
        let told = bed.report();
        assert_eq!(
            told.queues.iter().find(|queue| queue.port == 1).unwrap().fault.as_deref(),
            Some("the port is gone")
        );
        crate::af_xdp_bed::make_port(1, 1);
        bed.apply(&plan(&[0], &ports(1, SMALL), &paths));
        sends(70..120);
        // Without the port, packets that chains send there are dropped.
        let mut without = plan(
            &[0],
            &ports(1, SMALL),
            &[(0, path("one", &["forward"], 0)), (1, path("two", &["forward"], 0))],
        );
        without.ports.remove(&1);
        let troubles = bed.workers.apply(&without);
        let nowhere = |path| format!("path {path}: there is no port p1, so packets sent there are dropped");
        assert_eq!(troubles, [nowhere("one"), nowhere("two")]);
        from.send(&frame(0, 150, 60));
        until("a packet to be dropped", || bed.path(0).dropped.get("no_port") == Some(&1));
        // The port is reported by its name, as if it were there.
        let told = bed.report();
        assert_eq!(told.closed_outputs.iter().map(|closed| &*closed.name).collect::<Vec<_>>(), ["p1"]);
        assert_eq!(Vec::from_iter(bed.path(0).out.keys()), ["p1"]);
        bed.apply(&plan(&[0], &ports(1, SMALL), &paths));
        sends(200..220);
        bed.end();
    });
}

/// A second panic happens while the first is handled.
#[test]
#[ignore = "needs root"]
fn a_chain_that_panics_when_it_is_made_again_stops_only_its_path() {
    in_new_namespace(|| {
        let bed = Bed::new(1, settings());
        bed.apply(&plan(
            &[1],
            &ports(1, SMALL),
            &[(0, path("trap", &["forward"], 1)), (1, path("other", &["forward"], 1))],
        ));
        bed.told.panics_at.store(5, Relaxed);
        bed.told.chains_panic.store(true, Relaxed);
        let (from, to) = (Wire::open("q0"), Wire::open("q1"));
        from.send(&frame(0, 5, 60));
        until("the path to be stopped", || bed.path(0).stopped.is_some());
        assert_eq!((bed.path(0).panics, bed.path(0).worker_panicked), (1, 1));
        for n in 0..20 {
            from.send(&frame(1, n, 60));
        }
        assert_eq!(
            out_of(&to, 20, |f| f[12..14] == [0x88, 0xb5]),
            (0..20).map(|n| frame(1, n, 60)).collect::<Vec<_>>()
        );
        bed.end();
    });
}
