//! What a plan changes, and obstacles: ports that hold packets, slots that are refused, workers that do not
//! answer.

use super::*;
use crate::common::run;
use logic::plan::PortId;
use router::user_plane::{
    af_xdp::POOL_FRAMES,
    workers::{PortPlan, Shared},
};
use std::collections::BTreeMap;

const DOES_NOT_ANSWER: &str = "the worker on core 1 does not answer; it keeps its paths and their packets";
const MAKES_NO_PROGRESS: &str = "the worker on core 1 makes no progress; no path of this worker gets packets until it goes on; if it never does, restart Millrace";

/// Sends packets of path 0 with these numbers, and asserts that they come out by q1.
#[track_caller]
fn goes_through(numbers: std::ops::Range<u32>) {
    let (from, to) = (Wire::open("q0"), Wire::open("q1"));
    for n in numbers.clone() {
        from.send(&frame(0, n, 60));
    }
    let mut out = Vec::new();
    until("packets to come out", || {
        numbers_of(&to, 0, &mut out);
        out.len() >= numbers.len()
    });
    assert_eq!(out, numbers.collect::<Vec<_>>());
}

/// Adds p2 to the ports, without a program.
fn with_another(mut ports: BTreeMap<PortId, PortPlan>) -> BTreeMap<PortId, PortPlan> {
    crate::af_xdp_bed::make_port(2, 1);
    let third = PortPlan { name: "p2".into(), ifindex: common::ifindex("p2"), ..ports[&1].clone() };
    ports.insert(2, third);
    ports
}

/// A port that is down holds packets of one path. Another path moves past it at once, and so does the first.
#[test]
#[ignore = "needs root"]
fn a_port_that_is_down_delays_no_move() {
    in_new_namespace(|| {
        let bed = Bed::new(1, settings());
        let ports = with_another(ports(1, SMALL));
        let on = |core, held_on| {
            let held = PathPlan {
                chain: vec![element_of("{ element = \"forward\", port = \"p2\" }")],
                ..path("held", &[], held_on)
            };
            plan(&[0, 1], &ports, &[(0, path("goes", &["forward"], core)), (1, held)])
        };
        bed.apply(&on(0, 0));
        let moves = |first: u32| {
            let begun = Instant::now();
            for (n, (core, held_on)) in (first..).zip([(1, 0), (0, 0), (1, 1), (0, 0)]) {
                bed.apply(&on(core, held_on));
                goes_through(n * 20..(n + 1) * 20);
            }
            begun.elapsed()
        };
        let usual = moves(0);
        run("ip link set p2 down");
        let from = Wire::open("q0");
        for n in 0..50 {
            from.send(&frame(1, n, 60));
        }
        until("packets to wait", || bed.path(1).out.get("p2") == Some(&50));
        let waiting = |bed: &Bed| {
            let outputs = bed.report().workers.into_iter().flat_map(|worker| worker.outputs);
            outputs.filter(|output| output.port == 2).map(|output| output.sent_packets).sum::<u64>()
        };
        assert_eq!(waiting(&bed), 50, "packets in the TX ring of p2");
        // A move that waited would take 100 ms more.
        let held = moves(4);
        assert!(
            held < usual * 2 + Duration::from_millis(150),
            "moves past the port took {held:?}, usually {usual:?}"
        );
        run("ip link set p2 up");
        bed.end();
    });
}

#[test]
#[ignore = "needs root"]
fn workers_that_end_and_come_back_get_everything_again() {
    in_new_namespace(|| {
        let bed = Bed::new(2, settings());
        let ports = ports(2, SMALL);
        let paths = [(0, path("one", &["forward"], 1))];
        bed.apply(&plan(&[1], &ports, &paths));
        goes_through(0..20);
        assert_eq!(
            bed.workers.apply(&plan(&[], &ports, &paths)),
            ["path one: none of its cores has a worker"]
        );
        let report = bed.report();
        assert_eq!((report.workers.len(), report.queues.len(), report.paths.len()), (0, 0, 0));
        assert_eq!(
            (report.free_frames, report.promised_frames),
            (report.frames, 0),
            "(free, promised) frames after all is closed"
        );
        assert_eq!(report.closed_outputs.iter().map(|output| output.sent_packets).sum::<u64>(), 20);
        // Until the worker is back, its packets go to the kernel.
        let (from, kernel) = (Wire::open("q0"), Wire::open("p0"));
        from.send(&frame(0, 20, 60));
        assert_eq!(out_of(&kernel, 1, |f| f[12..14] == [0x88, 0xb5]), [frame(0, 20, 60)]);
        bed.apply(&plan(&[1], &ports, &paths));
        goes_through(30..50);
        assert_eq!(bed.report().queues.len(), 4);
        bed.end();
    });
}

#[test]
#[ignore = "needs root"]
fn a_slot_that_could_not_be_filled_is_filled_by_the_next_plan() {
    in_new_namespace(|| {
        let bed = Bed::new(1, settings());
        let plan = plan(&[1], &ports(1, SMALL), &[(0, path("one", &["forward"], 1))]);
        bed.told.put_fails.store(true, Relaxed);
        assert_eq!(bed.workers.apply(&plan), ["as the test asks"]);
        let (from, kernel) = (Wire::open("q0"), Wire::open("p0"));
        from.send(&frame(0, 7, 60));
        assert_eq!(
            out_of(&kernel, 1, |f| f[12..14] == [0x88, 0xb5]),
            [frame(0, 7, 60)],
            "packets that go to the kernel"
        );
        bed.told.put_fails.store(false, Relaxed);
        bed.apply(&plan);
        goes_through(20..40);
        // The same with a ring that is to be replaced: the old one stays.
        bed.told.put_fails.store(true, Relaxed);
        let larger = PathPlan { ring: 128, ..path("one", &["forward"], 1) };
        let larger = super::plan(&[1], &ports(1, Rings { fill: 256, ..SMALL }), &[(0, larger)]);
        assert!(!bed.workers.apply(&larger).is_empty(), "the trouble is not reported");
        bed.told.put_fails.store(false, Relaxed);
        bed.apply(&larger);
        goes_through(40..60);
        bed.end();
    });
}

/// The worker hangs outside of elements. It does not do later what it was asked and did not answer. It is asked again when
/// it continues, and not before.
#[test]
#[ignore = "needs root"]
fn a_request_that_was_not_answered_is_not_done_later() {
    in_new_namespace(|| {
        let bed = Bed::new(1, settings());
        let ports = ports(1, SMALL);
        let stuck = (1, path("trap", &["forward"], 1));
        let before = [(0, path("going", &["forward"], 0)), stuck.clone()];
        let after = [(0, path("going", &["forward"], 0)), stuck, (2, path("new", &["forward"], 1))];
        bed.apply(&plan(&[0, 1], &ports, &before));
        let _goes_on = GoesOn(bed.told.clone());
        // The worker makes its chain again after the panic.
        bed.told.chains_wait.store(true, Relaxed);
        bed.told.panics_at.store(0, Relaxed);
        let from = Wire::open("q0");
        from.send(&frame(1, 0, 60));
        thread::sleep(Duration::from_millis(50));
        let apply = || {
            let begun = Instant::now();
            (bed.workers.apply(&plan(&[0, 1], &ports, &after)), begun.elapsed())
        };
        let (troubles, took) = apply();
        assert_eq!(troubles, [DOES_NOT_ANSWER]);
        assert!(took >= Duration::from_secs(1), "the request was waited for less than 1 s: {took:?}");
        let (troubles, took) = apply();
        assert_eq!(troubles, [MAKES_NO_PROGRESS]);
        assert!(took < Duration::from_secs(1), "a request to a silent worker was waited for: {took:?}");
        // A report does not wait either, and other workers continue.
        let report = bed.report();
        let silent = report.workers.iter().filter(|worker| worker.silent.is_some());
        assert_eq!(silent.map(|worker| worker.core).collect::<Vec<_>>(), [1]);
        goes_through(0..20);
        assert!(
            bed.epochs.wait(Duration::from_millis(1)).is_err(),
            "the silent worker is not waited for, but still reads the tables"
        );
        bed.told.chains_wait.store(false, Relaxed);
        until("the worker to continue", || bed.report().workers.iter().all(|worker| worker.silent.is_none()));
        let paths: Vec<_> = bed.report().paths.into_iter().map(|path| path.path).collect();
        assert_eq!(paths, ["going", "trap"], "paths after an unanswered request for a third");
        assert_eq!(apply().0, Vec::<String>::new());
        let to = Wire::open("q1");
        from.send(&frame(2, 5, 60));
        assert_eq!(out_of(&to, 1, |f| f[12..15] == [0x88, 0xb5, 2]), [frame(2, 5, 60)]);
        bed.end();
    });
}

/// A path is stopped while a plan is applied that starts it again with another chain.
#[test]
#[ignore = "needs root"]
fn a_stop_that_is_reported_too_late_leaves_the_new_chain_running() {
    in_new_namespace(|| {
        let bed = Bed::new(1, settings());
        let ports = ports(1, SMALL);
        let leaves = (1, path("leaves", &["forward"], 1));
        bed.apply(&plan(&[1], &ports, &[(0, path("trap", &["forward"], 1)), leaves]));
        let _goes_on = GoesOn(bed.told.clone());
        bed.told.settles_not.store(true, Relaxed);
        let mended = plan(&[1], &ports, &[(0, path("mended", &["count", "forward"], 1))]);
        thread::scope(|scope| {
            let applies = scope.spawn(|| bed.workers.apply(&mended));
            thread::sleep(Duration::from_millis(50));
            bed.told.panics_at.store(0, Relaxed);
            bed.told.panics_on.store(true, Relaxed);
            let from = Wire::open("q0");
            for n in 0..10 {
                from.send(&frame(0, n, 60));
                thread::sleep(Duration::from_millis(5));
            }
            assert!(!applies.is_finished(), "the plan was applied before the slots settled");
            bed.told.settles_not.store(false, Relaxed);
            assert_eq!(applies.join().unwrap(), Vec::<String>::new());
        });
        let path = bed.path(0);
        assert_eq!((path.panics, path.stopped.is_some()), (3, false), "(panics, stopped) of {path:?}");
        // The cost of a panic in packets depends on how soon it is reported.
        assert_eq!(path.worker_panicked + path.stopped_packets, 10, "packets lost: {path:?}");
        thread::sleep(Duration::from_millis(50));
        goes_through(20..40);
        bed.end();
    });
}

/// A worker that hangs does not delay the stop for ever. Only the frames that it holds do not come back.
#[test]
#[ignore = "needs root"]
fn workers_that_do_not_end_are_left_behind() {
    in_new_namespace(|| {
        let bed = Bed::new(1, settings());
        bed.apply(&plan(&[0, 1], &ports(1, SMALL), &[(1, path("stuck", &["forward"], 1))]));
        let (goes_on, umem) = (GoesOn(bed.told.clone()), bed.umem.clone());
        bed.told.waits.store(true, Relaxed);
        Wire::open("q0").send(&frame(1, 0, 60));
        until("the worker to hang", || bed.told.waiting.load(Relaxed) == 1);
        let epochs = bed.epochs.clone();
        let begun = Instant::now();
        drop(bed);
        assert!(
            begun.elapsed() >= Duration::from_secs(1),
            "the worker was waited for only {:?}",
            begun.elapsed()
        );
        assert!(
            epochs.wait(Duration::from_millis(1)).is_err(),
            "the silent worker is not waited for, but still reads the tables"
        );
        // It has the frames of its pool, and the one of its packet.
        until("the rest to come back", || umem.free_frames() >= umem.frames() - (POOL_FRAMES as u32 + 1));
        // It keeps its pool, the queue of each port and its ways out.
        let Rings { fill, completion, transmit, .. } = SMALL;
        let port = fill + completion + transmit + settings().auxiliary as u32 + transmit;
        let kept = (settings().in_hand + POOL_FRAMES) as u32 + 2 * port;
        assert_eq!((umem.free_frames() < umem.frames(), umem.promised_frames()), (true, kept));
        drop(goes_on);
        let (all, now) =
            ((umem.frames(), 0, 0), || (umem.free_frames(), umem.retired_frames(), umem.promised_frames()));
        until("all frames to be free", || now() == all);
    });
}

/// Tables that cannot make chains.
struct Broken(Shared<Arc<logic::memory::HeapMemory>>);
impl router::user_plane::workers::Tables for Broken {
    fn memory(&self) -> &dyn logic::memory::Memory {
        self.0.memory()
    }
    fn chain(&self, path: &PathPlan, _: &BTreeMap<String, PortId>) -> anyhow::Result<logic::elements::Chain> {
        anyhow::bail!("no chain for {}", path.name)
    }
}

#[test]
#[ignore = "needs root"]
fn other_tables_replace_those_of_all_workers_or_of_none() {
    in_new_namespace(|| {
        let bed = Bed::new(1, settings());
        let police = "{ element = \"police\", packets_per_second = 1, burst_packets = 30 }";
        let chain = [police, "\"count\"", "{ element = \"forward\", port = \"p1\" }"];
        let limited = PathPlan { chain: chain.map(element_of).into(), ..path("limited", &[], 1) };
        bed.apply(&plan(&[0, 1], &ports(1, SMALL), &[(0, limited), (1, path("other", &["forward"], 0))]));
        goes_through(0..20);
        let shared = || Shared { memory: tables(), sas: Arc::default(), captures: Default::default() };
        let broken = Arc::new(Broken(shared()));
        let refused = bed.workers.set_tables(broken.clone()).unwrap_err();
        assert_eq!((refused.to_string().as_str(), Arc::strong_count(&broken)), ("no chain for limited", 1));
        let first = Arc::new(Rigged(shared(), bed.told.clone()));
        bed.workers.set_tables(first.clone()).unwrap();
        // References: this one, one of control, one of each of two workers, and two of each of two paths, for
        // worker and control.
        assert_eq!(Arc::strong_count(&first), 1 + 1 + 2 + 2 * 2);
        bed.workers.set_tables(Arc::new(Rigged(shared(), bed.told.clone()))).unwrap();
        assert_eq!(Arc::strong_count(&first), 1, "references to the old tables");
        // The bucket had ten packets left.
        let from = Wire::open("q0");
        for n in 20..40 {
            from.send(&frame(0, n, 60));
        }
        until("all to be counted", || bed.path(0).packets == 40);
        let path = bed.path(0);
        let of = |n: usize| (path.elements[n].element.as_str(), path.elements[n].packets);
        assert_eq!((path.out["p1"], path.dropped["over_rate"]), (30, 10), "(out, over_rate) of {path:?}");
        assert_eq!((of(0), of(1)), (("police", 40), ("count", 30)));
        assert_eq!(path.elements[1].counted["bytes"], 1800);
        bed.end();
    });
}

/// The namespace of the thread that passes packets up.
fn of_up() -> std::path::PathBuf {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten().map(|task| task.path());
    let is_up = |task: &std::path::PathBuf| {
        std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim() == "up")
    };
    std::fs::read_link(tasks.filter(is_up).last().unwrap().join("ns/net")).unwrap()
}

#[test]
#[ignore = "needs root"]
fn packets_go_up_in_the_namespace_of_their_port_which_is_not_kept_alive() {
    in_new_namespace(|| {
        let [home, here] =
            ["/proc/self/ns/net", "/proc/thread-self/ns/net"].map(|ns| std::fs::read_link(ns).unwrap());
        let bed = Bed::new(1, settings());
        let plan =
            plan(&[1], &ports(1, SMALL), &[(0, path("routed", &["check", "route", "ttl", "rewrite"], 1))]);
        bed.apply(&plan);
        let (from, kernel) = (Wire::open("q0"), Wire::open("p0"));
        let sent = Frame::udp4(NEXT, "10.0.0.9", "10.1.0.1").bytes();
        for _ in 0..2 {
            from.send(&sent);
            assert_eq!(out_of(&kernel, 1, |f| f[12..14] == [8, 0]), std::slice::from_ref(&sent));
            assert_eq!(of_up(), here);
            bed.apply(&plan);
            until("the thread to leave", || of_up() == home);
        }
        let up = bed.report().up;
        assert_eq!(
            (up.all.packets, up.all.failed, up.ports[&0].packets),
            (2, 0, 2),
            "(packets, failed, packets of port 0)"
        );
        bed.end();
    });
}

/// A port that is down holds its packets, and its worker still sleeps.
#[test]
#[ignore = "needs root"]
fn a_port_that_is_down_lets_its_worker_sleep() {
    in_new_namespace(|| {
        let bed = Bed::new(1, settings());
        let ports = with_another(ports(1, SMALL));
        let held = PathPlan {
            chain: vec![element_of("{ element = \"forward\", port = \"p2\" }")],
            ..path("held", &[], 1)
        };
        let plan = plan(&[1], &ports, &[(1, held)]);
        bed.apply(&plan);
        run("ip link set p2 down");
        let (from, to) = (Wire::open("q0"), Wire::open("q2"));
        from.send(&frame(1, 0, 60));
        until("the packet to wait", || bed.path(1).out.get("p2") == Some(&1));
        let sleeps = || bed.report().workers[0].sleeps;
        let before = sleeps();
        thread::sleep(Duration::from_millis(1500));
        let slept = sleeps() - before;
        assert!(slept <= 14, "the worker slept and woke {slept} times in 1.5 s");
        run("ip link set p2 up");
        bed.apply(&plan);
        assert_eq!(out_of(&to, 1, |f| f[12..14] == [0x88, 0xb5]), [frame(1, 0, 60)]);
        bed.end();
    });
}

/// A path comes and goes under traffic. Each of its packets goes to its worker or to the kernel, and none is
/// lost.
#[test]
#[ignore = "needs root"]
fn a_path_that_ends_loses_nothing() {
    const COUNT: u32 = 100_000;
    in_new_namespace(|| {
        let bed = Bed::new(1, settings());
        let ports = ports(1, Rings { fill: 2048, ..SMALL });
        let with = plan(&[1], &ports, &[(0, PathPlan { ring: 1024, ..path("one", &["forward"], 1) })]);
        let without = plan(&[1], &ports, &[]);
        let (to, kernel) = (Wire::open("q1"), Wire::open("p0"));
        bed.apply(&with);
        let (mut out, mut up, mut changes) = (Vec::new(), Vec::new(), 0);
        let came = AtomicU32::new(0);
        thread::scope(|scope| {
            let sends = scope.spawn(|| {
                let mut generator = Generator::new("q0", 1);
                for n in (0..COUNT).step_by(16) {
                    generator.send(0, (n..n + 16).map(|n| frame(0, n, 60)));
                    let begun = Instant::now();
                    while n >= came.load(Relaxed) + 200 && begun.elapsed() < Duration::from_secs(1) {
                        thread::sleep(Duration::from_micros(20));
                    }
                }
                generator.end();
            });
            let takes = scope.spawn(|| {
                let begun = Instant::now();
                while out.len() + up.len() < COUNT as usize && begun.elapsed() < Duration::from_secs(20) {
                    numbers_of(&to, 0, &mut out);
                    numbers_of(&kernel, 0, &mut up);
                    came.store((out.len() + up.len()) as u32, Relaxed);
                    thread::sleep(Duration::from_micros(50));
                }
            });
            while !takes.is_finished() {
                changes += 1;
                bed.apply(if changes % 2 == 0 { &with } else { &without });
                thread::sleep(Duration::from_millis(2));
            }
            sends.join().unwrap();
        });
        assert!(
            out.is_sorted() && out.len() > 100 && up.len() > 100,
            "out of order, or too few: {} out, {} up",
            out.len(),
            up.len()
        );
        let mut all = [out, up].concat();
        all.sort_unstable();
        let missing = (0..COUNT).find(|number| all.binary_search(number).is_err());
        assert_eq!(
            (missing, all.len() as u32),
            (None, COUNT),
            "(first missing, received) after {changes} changes"
        );
        assert!(changes > 8, "only {changes} changes");
        bed.end();
    });
}

/// With another fill ring, queues are closed and opened one after another, and packets continue.
#[test]
#[ignore = "needs root"]
fn queues_are_opened_with_other_rings_and_impossible_rings_are_reported() {
    in_new_namespace(|| {
        let bed = Bed::new(2, settings());
        let paths = [(0, path("one", &["forward"], 1))];
        let with = |fill, ring| {
            let paths = [(0, PathPlan { ring, ..paths[0].1.clone() })];
            plan(&[1], &ports(2, Rings { fill, ..SMALL }), &paths)
        };
        bed.apply(&with(128, 64));
        goes_through(0..20);
        let promised = bed.report().promised_frames;
        bed.apply(&with(256, 64));
        goes_through(20..40);
        assert_eq!(bed.report().promised_frames, promised + 4 * 128);
        bed.apply(&with(256, 128));
        goes_through(40..60);
        // The frames of the old rings are free again.
        assert_eq!(bed.report().promised_frames, promised + 4 * 128 + 2 * 64);
        let two = |what: &str| [0, 1].map(|queue| format!("path one: port p0, queue {queue}: {what}"));
        let wants = "a ring of 256 packets needs a fill ring of twice as many or more; the queue's has 256";
        assert_eq!(bed.workers.apply(&with(256, 256)), two(wants));
        let size = "a ring of 100 entries is not possible: the size must be a power of two, and at least 64";
        assert_eq!(bed.workers.apply(&with(256, 100)), two(size));
        goes_through(60..80);
        let stand = bed.path(0);
        assert_eq!((stand.packets, stand.ring_full, stand.ring_closed), (80, 0, 0));
        let all = "memory for packets: the plan may need 35328 frames of 2048 bytes; there are 16384, of which 0 are retired; open \
                   queues stay as they are, and new queues and rings that find no memory are not opened";
        assert_eq!(bed.workers.apply(&with(8192, 64)), [all]);
        goes_through(80..90);
        // Both rings change at once.
        bed.apply(&with(128, 64));
        goes_through(90..100);
        bed.apply(&with(1024, 512));
        goes_through(100..120);
        bed.end();
    });
}
