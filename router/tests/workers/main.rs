//! Workers over AF_XDP between veths: the packets that come out, their order, what is counted, and that no
//! frame is missing at the end.

#[allow(dead_code)]
#[path = "../af_xdp/bed.rs"]
mod af_xdp_bed;
mod bed;
mod changes;
#[path = "../common/mod.rs"]
mod common;
mod faults;
#[path = "../af_xdp/flood.rs"]
mod flood;
mod measure;
mod scarce;
mod silent;
mod weights;

use af_xdp_bed::{Generator, frame, until};
use bed::*;
use common::{frame::Frame, in_new_namespace, run, wire::Wire};
use router::{
    linux::netns::NamespaceRef,
    user_plane::{
        af_xdp::{Polling, Rings},
        workers::{Namespaces, PathPlan, WorkersSettings},
    },
};
use rustix::process::{Pid, getpriority_process};
use std::{
    cell::Cell,
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
        mpsc::channel,
    },
    thread,
    time::{Duration, Instant},
};

/// The next `count` frames out of a wire that are ours.
#[track_caller]
fn out_of(wire: &Wire, count: usize, is_ours: impl Fn(&[u8]) -> bool) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    until(&format!("{count} frames"), || {
        frames.extend(std::iter::from_fn(|| wire.receive()).filter(|frame| is_ours(frame)));
        frames.len() >= count
    });
    assert_eq!(frames.len(), count);
    frames
}

fn settings() -> WorkersSettings {
    WorkersSettings { frames: 16384, auxiliary: 256, ..WorkersSettings::default() }
}

#[test]
#[ignore = "needs root"]
fn bytes_go_through_their_chain_and_up() {
    in_new_namespace(|| {
        let bed = Bed::new(2, settings());
        let route = path("routed", &["check", "route", "ttl", "rewrite"], 1);
        bed.apply(&plan(&[1], &ports(2, SMALL), &[(0, route), (1, path("plain", &["forward"], 1))]));
        let (from, to, kernel) = (Wire::open("q0"), Wire::open("q1"), Wire::open("p0"));
        let is_ip = |frame: &[u8]| frame[12..14] == [8, 0];
        let is_ours = |frame: &[u8]| frame[12..14] == [0x88, 0xb5];
        for n in 0..100_u8 {
            let sent = Frame::udp4(P0, "10.0.0.9", &format!("10.1.0.{n}"));
            from.send(&sent.bytes());
            let other = frame(1, n.into(), 60 + usize::from(n) * 11);
            from.send(&other);
            let out = out_of(&to, 2, |frame| is_ip(frame) || is_ours(frame));
            assert!(
                out.contains(&sent.routed(NEXT, P1, &[])) && out.contains(&other),
                "round {n}: a frame differs: {out:02x?}"
            );
        }
        assert_eq!(bed.path(0).out.get("p1"), Some(&100));
        until("the packets of the other path", || bed.path(1).out.get("p1") == Some(&100));
        for n in 0..20 {
            from.send(&frame(1, n, 60));
        }
        assert_eq!(out_of(&to, 20, is_ours), (0..20).map(|n| frame(1, n, 60)).collect::<Vec<_>>());
        // These go up as they came: a last hop, no route, and a MAC address of another host.
        let last = Frame::udp4(P0, "10.0.0.9", "10.1.0.1").ip4(|ip| ip[8] = 1);
        let ups = [last, Frame::udp4(P0, "10.0.0.9", "10.2.0.1"), Frame::udp4(NEXT, "10.0.0.9", "10.1.0.1")];
        for sent in &ups {
            from.send(&sent.bytes());
        }
        // These are different flows, without a common order: the sending thread may move to another core,
        // which has another queue.
        let sorted = |mut all: Vec<Vec<u8>>| {
            all.sort_unstable();
            all
        };
        assert_eq!(sorted(out_of(&kernel, 3, is_ip)), sorted(ups.map(|sent| sent.bytes()).into()));
        let up = bed.path(0).up;
        let expected = ["ttl_exceeded", "no_route", "not_our_mac"].map(|reason| up.get(reason).copied());
        assert_eq!(expected, [Some(1); 3]);
        // A packet is counted only after the kernel has it.
        until("the packets to be counted", || bed.report().up.all.packets == 3);
        assert_eq!(bed.report().up.all.failed, 0);
        bed.end();
    });
}

/// A next hop becomes known while packets to it wait for the kernel. Later packets of their flow wait behind them.
/// Packets to other destinations or of other paths do not. The number of packets that wait and their time are limited.
#[test]
#[ignore = "needs root"]
fn packets_wait_behind_those_that_wait_for_the_kernel() {
    in_new_namespace(|| {
        let bed = Bed::of_ticks(1, settings());
        let route = path("routed", &["check", "route", "ttl", "rewrite"], 1);
        let paths = [(0, route.clone()), (1, path("plain", &["forward"], 1))];
        bed.apply(&plan(&[1], &ports(1, SMALL), &paths));
        let (from, to, kernel) = (Wire::open("q0"), Wire::open("q1"), Wire::open("p0"));
        let is_ours = |frame: &[u8]| [[8, 0], [0x88, 0xb5]].contains(&[frame[12], frame[13]]);
        let udp = |source: u32, destination: u8| {
            let [_, _, high, low] = source.to_be_bytes();
            Frame::udp4(P0, &format!("10.0.{high}.{low}"), &format!("10.1.0.{destination}"))
        };
        let (ups, sent) = (Cell::new(0), Cell::new(0));
        let sends = |frame: &Frame| {
            from.send(&frame.bytes());
            sent.set(sent.get() + 1);
            // More than a few would find no room in the ring.
            if sent.get() % 16 == 0 {
                until("some to be taken", || bed.path(0).packets == sent.get());
            }
        };
        // The next hop is not known, so a packet goes up. Then it is known, and these packets follow.
        let one_waits = |rest: &[Frame]| {
            bed.told.up_waits.store(true, Relaxed);
            bed.tables.borrow_mut().apply(&next_is(false)).unwrap();
            sends(&udp(0, 1));
            ups.set(ups.get() + 1);
            until("it to go up", || bed.path(0).up.get("unresolved") == Some(&ups.get()));
            bed.tables.borrow_mut().apply(&next_is(true)).unwrap();
            rest.iter().for_each(sends);
        };
        let routed =
            |frames: &[Frame]| Vec::from_iter(frames.iter().map(|frame| frame.routed(NEXT, P1, &[])));
        let goes_up = || {
            bed.told.up_waits.store(false, Relaxed);
            assert_eq!(out_of(&kernel, 1, is_ours).len(), 1);
            until("the packet to go up", || bed.report().up.all.packets == ups.get());
        };
        let all_taken = || until("all to be taken", || bed.path(0).packets == sent.get());

        let flow: Vec<Frame> = (0..3).map(|n| udp(n, 1)).collect();
        one_waits(&[&flow[..], &[udp(9, 2)]].concat());
        assert_eq!(out_of(&to, 1, is_ours), routed(&[udp(9, 2)]), "another destination does not wait");
        from.send(&frame(1, 7, 60));
        assert_eq!(out_of(&to, 1, is_ours), [frame(1, 7, 60)], "another path does not wait");
        goes_up();
        assert_eq!(out_of(&to, 3, is_ours), routed(&flow), "the flow follows, in order");

        // They have waited for too long.
        one_waits(&flow);
        all_taken();
        bed.told.ticks.unwrap().fetch_add(11_000_000, Relaxed);
        assert_eq!(out_of(&to, 3, is_ours), routed(&flow));
        sends(&flow[0]);
        assert_eq!(out_of(&to, 1, is_ours), routed(&flow[..1]), "later ones wait no longer");
        goes_up();

        // They are too many.
        let flow: Vec<Frame> = (0..65).map(|n| udp(n, 1)).collect();
        one_waits(&flow);
        assert_eq!(out_of(&to, 65, is_ours), routed(&flow), "all leave, in order");
        goes_up();

        // One more goes up, and must not overtake them.
        one_waits(&flow[..2]);
        all_taken();
        bed.tables.borrow_mut().apply(&next_is(false)).unwrap();
        sends(&flow[2]);
        ups.set(ups.get() + 1);
        assert_eq!(out_of(&to, 2, is_ours), routed(&flow[..2]));
        bed.told.up_waits.store(false, Relaxed);
        assert_eq!(out_of(&kernel, 2, is_ours).len(), 2);
        until("both to go up", || bed.report().up.all.packets == ups.get());

        // Before a path moves, its packets that wait leave.
        one_waits(&flow[..2]);
        all_taken();
        let moved = [(0, PathPlan { cores: Some([0].into()), ..route }), paths[1].clone()];
        bed.apply(&plan(&[0, 1], &ports(1, SMALL), &moved));
        assert_eq!(out_of(&to, 2, is_ours), routed(&flow[..2]));
        goes_up();
        let routed = bed.path(0);
        assert_eq!((routed.worker, routed.packets), (0, sent.get()));
        assert_eq!(routed.out.get("p1"), Some(&(sent.get() - ups.get())), "its counts moved");
        bed.end();
    });
}

/// The owner of the only queue has nothing to do and sleeps, while another worker takes far more frames than
/// the fill ring holds.
#[test]
#[ignore = "needs root"]
fn an_owner_that_sleeps_fills_for_its_neighbour() {
    in_new_namespace(|| {
        let bed = Bed::new(1, settings());
        let paths = [(0, path("idle", &["forward"], 0)), (1, path("busy", &["discard"], 1))];
        bed.apply(&plan(&[0, 1], &ports(1, SMALL), &paths));
        assert!(bed.report().queues.iter().any(|queue| (queue.port, queue.owner) == (0, 0)));
        let mut generator = Generator::new("q0", 1);
        for n in 0..200 {
            generator.send(0, (n * 32..(n + 1) * 32).map(|n| frame(1, n, 60)));
            until("the packets of the busy path", || bed.path(1).packets == u64::from(n + 1) * 32);
        }
        assert_eq!((bed.path(1).ring_full, bed.path(1).dropped.get("discarded")), (0, Some(&6400)));
        generator.end();
        bed.end();
    });
}

/// Each packet takes 4 us, and more come than the worker can handle. It handles as many in a run as the limit
/// of a run allows.
#[test]
#[ignore = "needs root"]
fn a_run_takes_no_longer_than_allowed() {
    let a_run = |longest_us| {
        let (tell, told) = channel();
        in_new_namespace(move || {
            let longest_run = Duration::from_micros(longest_us);
            let bed =
                Bed::new(1, WorkersSettings { longest_run, sample_every: 7, ..WorkersSettings::default() });
            let path = PathPlan { ring: 1024, ..path("in", &["discard"], 1) };
            bed.apply(&plan(&[1], &ports(1, Rings::default()), &[(0, path)]));
            let mut generator = Generator::new("q0", 1);
            for n in 0..40 {
                generator.send(0, (n * 64..(n + 1) * 64).map(|n| frame(0, n, 60)));
            }
            until("all packets to be counted", || {
                let path = bed.path(0);
                path.packets + path.ring_full == 40 * 64
            });
            let (path, report) = (bed.path(0), bed.report());
            assert_eq!((report.longest_run_us, report.sample_every), (longest_us, 7));
            generator.end();
            bed.end();
            tell.send(path.packets as f64 / path.runs as f64).unwrap();
        });
        told.recv().unwrap()
    };
    let [short, long] = [10, 1000].map(a_run);
    assert!(short < 4.0 && long > 4.0 * short, "{short} and {long} packets a run");
}

/// Under load, a worker polls the device itself if the kernel allows it. Either way all packets come, in
/// order, and without load the worker sleeps.
#[test]
#[ignore = "needs root"]
fn a_worker_that_polls_forwards_in_order_and_sleeps_without_load() {
    in_new_namespace(|| {
        let bed = Bed::new(1, settings());
        let polls = |polling| {
            let mut ports = ports(1, Rings::default());
            ports.values_mut().for_each(|port| port.polling = polling);
            bed.apply(&plan(&[1], &ports, &[(0, path("one", &["forward"], 1))]));
        };
        let queue = || bed.report().queues.into_iter().find(|queue| queue.port == 0).unwrap();
        let to = Wire::open("q1");
        let mut generator = Generator::new("q0", 1);
        let busy = Polling::Busy { microseconds: 20, budget: 64 };
        for (round, polling) in (0..).zip([Polling::Interrupts, busy, Polling::Interrupts, busy]) {
            polls(polling);
            let mut numbers = Vec::new();
            for n in round * 200..(round + 1) * 200 {
                let sent = n * 32..(n + 1) * 32;
                generator.send(0, sent.clone().map(|n| frame(0, n, 60)));
                numbers.clear();
                until("32 frames", || {
                    numbers_of(&to, 0, &mut numbers);
                    numbers.len() >= 32
                });
                assert_eq!(numbers, Vec::from_iter(sent), "numbers of the frames that came out");
            }
            let queue = queue();
            match polling {
                Polling::Interrupts => assert_eq!((queue.polled, queue.not_polled_because), (false, None)),
                // After packets it is known whether the kernel can poll.
                Polling::Busy { .. } => match queue.not_polled_because {
                    None => assert!(queue.polled, "the queue is not polled, without a reason"),
                    Some(why) => assert!(
                        !queue.polled && why.starts_with("neither its driver nor"),
                        "polled: {}, reason: {why}",
                        queue.polled
                    ),
                },
            }
            // The worker must sleep except for a fiftieth of the time.
            until("the worker to sleep", || is_idle(&bed));
        }
        assert_eq!((bed.path(0).packets, bed.path(0).ring_full), (800 * 32, 0));
        generator.end();
        bed.end();
    });
}

/// Whether the worker slept for nearly all of 200 ms.
fn is_idle(bed: &Bed) -> bool {
    let ran = || bed.report().workers[0].ran_ns;
    let (before, begun) = (ran(), Instant::now());
    thread::sleep(Duration::from_millis(200));
    (ran() - before) as f64 <= begun.elapsed().as_nanos() as f64 / 50.0
}

/// Lets all that wait continue when it is dropped, however the test ends.
struct GoesOn(Arc<Orders>);
impl Drop for GoesOn {
    fn drop(&mut self) {
        self.0.waits.store(false, Relaxed);
        self.0.chains_wait.store(false, Relaxed);
        self.0.settles_not.store(false, Relaxed);
    }
}

/// Settings with which no hanging worker is left alone.
fn patient() -> WorkersSettings {
    WorkersSettings { patience: Duration::from_secs(600), ..settings() }
}

/// Two workers share one queue. One of them hangs, and the other does not notice.
#[test]
#[ignore = "needs root"]
fn a_stalled_path_costs_its_neighbour_on_the_queue_nothing() {
    in_new_namespace(|| {
        let bed = Bed::new(1, patient());
        let paths = [(0, path("going", &["forward"], 0)), (1, path("stuck", &["forward"], 1))];
        bed.apply(&plan(&[0, 1], &ports(1, SMALL), &paths));
        let (mut generator, to) = (Generator::new("q0", 1), Wire::open("q1"));
        let _goes_on = GoesOn(bed.told.clone());
        bed.told.waits.store(true, Relaxed);
        let mut out = Vec::new();
        for n in 0..100 {
            generator.send(0, (n * 16..(n + 1) * 16).flat_map(|n| [frame(0, n, 60), frame(1, n, 60)]));
            until("packets of the path that runs", || {
                numbers_of(&to, 0, &mut out);
                out.len() == (n as usize + 1) * 16
            });
        }
        assert_eq!(out, (0..1600).collect::<Vec<_>>());
        bed.told.waits.store(false, Relaxed);
        until("the path that was stalled", || {
            let stuck = bed.path(1);
            stuck.packets + stuck.ring_full == 1600
        });
        let (going, stuck) = (bed.path(0), bed.path(1));
        assert_eq!((going.ring_full, going.packets), (0, 1600));
        // The packets of its ring, and of the runs that it was in.
        assert!((64..64 + 256).contains(&stuck.packets), "packets of the stalled path: {stuck:?}");
        generator.end();
        bed.end();
    });
}

/// A path moves from worker to worker, with other chains, rings and weights, next to paths that come and go.
/// Every packet comes out, in order.
#[test]
#[ignore = "needs root"]
fn reconfiguration_loses_nothing_and_keeps_order() {
    const COUNT: u32 = 192_000;
    in_new_namespace(|| {
        // Packets that waited during a move are sent at once.
        let bed = Bed::new(1, WorkersSettings { auxiliary: 1024, frames: 32768, ..settings() });
        let ports = ports(1, Rings { fill: 4096, ..SMALL });
        let mut first = path("moves", &["forward"], 0);
        first.ring = 1024;
        bed.apply(&plan(&[0, 1], &ports, &[(0, first.clone())]));
        let to = Wire::open("q1");
        let (came, mut out, mut changes) = (AtomicU32::new(0), Vec::new(), 0_u16);
        // The most packets that are sent; on a slow machine it is less.
        let (count, begun) = (AtomicU32::new(COUNT), Instant::now());
        let is_through = || came.load(Relaxed) >= count.load(Relaxed);
        let goes_on = || !is_through() && begun.elapsed() < Duration::from_secs(25);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut generator = Generator::new("q0", 1);
                for n in 0..COUNT / 16 {
                    if begun.elapsed() > Duration::from_secs(15) {
                        count.store(n * 16, Relaxed);
                        break;
                    }
                    generator.send(0, (n * 16..(n + 1) * 16).map(|n| frame(0, n, 60)));
                    // The most packets under way: as many as a ring holds while no worker has its path, and
                    // as pass well within a second.
                    let room = || {
                        let came = came.load(Relaxed);
                        let in_time = f64::from(came) / begun.elapsed().as_secs_f64() * 0.2;
                        came + (in_time as u32).clamp(32, 800)
                    };
                    while goes_on() && (n + 1) * 16 >= room() {
                        thread::sleep(Duration::from_micros(50));
                    }
                }
                generator.end();
            });
            scope.spawn(|| {
                while goes_on() {
                    numbers_of(&to, 0, &mut out);
                    came.store(out.len() as u32, Relaxed);
                    thread::sleep(Duration::from_micros(200));
                }
            });
            while goes_on() {
                changes += 1;
                let chain: &[&str] = if changes % 3 == 0 { &["count", "forward"] } else { &["forward"] };
                // Sometimes a worker ends, and the other has its queues.
                let (here, alone) = (changes % 2, changes % 8 > 5);
                let there = if alone { here } else { changes / 2 % 2 };
                let weight = 1 + changes % 7;
                let ring = if changes % 5 < 2 { 1024 } else { 2048 };
                let mut paths = vec![(0, PathPlan { ring, weight, ..path("moves", chain, here) })];
                if changes % 4 < 2 {
                    paths.push((1, path("other", &["forward"], there)));
                }
                let both = [0, 1];
                let cores = if alone { &both[usize::from(here)..=usize::from(here)] } else { &both };
                bed.apply(&plan(cores, &ports, &paths));
                thread::sleep(Duration::from_millis(3));
            }
        });
        let first_wrong = out.iter().zip(0..).find(|(number, at)| *number != at);
        let count = count.load(Relaxed);
        assert_eq!((first_wrong, out.len() as u32), (None, count), "{:?}", bed.report());
        let stand = bed.path(0);
        assert_eq!(
            (stand.packets, stand.out.get("p1"), stand.ring_full, stand.ring_closed),
            (count.into(), Some(&count.into()), 0, 0)
        );
        // Workers and their outputs came and went.
        let report = bed.report();
        assert!(report.queues.iter().all(|queue| queue.fill_empty == 0), "a fill ring was empty: {report:?}");
        let now = report.workers.iter().flat_map(|worker| &worker.outputs);
        let sent = now.chain(&report.closed_outputs).map(|output| output.sent_packets).sum::<u64>();
        assert_eq!(sent, u64::from(count), "packets sent by all outputs: {report:?}");
        assert!(
            report.closed_outputs.iter().any(|output| output.sent_packets > 0),
            "no closed output has sent packets: {report:?}"
        );
        println!("{changes} changes");
        assert!(changes > 8, "too few changes for a worker to end and come back: {changes}");
        bed.end();
    });
}

/// Without packets a worker uses no CPU time, and a change of the tables does not wait for it.
#[test]
#[ignore = "needs root"]
fn a_worker_without_packets_sleeps() {
    in_new_namespace(|| {
        let bed = Bed::new(1, settings());
        bed.apply(&plan(&[0, 1], &ports(1, SMALL), &[(0, path("quiet", &["forward"], 0))]));
        thread::sleep(Duration::from_millis(50));
        let before = bed.report();
        thread::sleep(Duration::from_millis(1500));
        bed.epochs.wait(Duration::from_millis(1)).unwrap();
        let after = bed.report();
        for (before, after) in before.workers.iter().zip(&after.workers) {
            assert!(after.sleeps - before.sleeps <= 3, "the worker woke more than for reports: {after:?}");
            assert!(after.slept > 0.9, "the worker slept too little: {after:?}");
        }
        // It still handles a packet that comes.
        let (from, to) = (Wire::open("q0"), Wire::open("q1"));
        from.send(&frame(0, 5, 60));
        assert_eq!(out_of(&to, 1, |f| f[12..14] == [0x88, 0xb5]), [frame(0, 5, 60)]);
        bed.end();
    });
}

/// A worker goes before nearly all other threads of its core, unless configured otherwise.
#[test]
#[ignore = "needs root"]
fn workers_have_the_priority_that_is_configured() {
    for (settings, nice) in [(settings(), -20), (WorkersSettings { nice: 7, ..settings() }, 7)] {
        in_new_namespace(move || {
            let bed = Bed::new(1, settings);
            bed.apply(&plan(&[1], &ports(1, SMALL), &[]));
            let worker = measure::task("worker/1").file_name().to_str().unwrap().parse().unwrap();
            assert_eq!(getpriority_process(Pid::from_raw(worker)), Ok(nice));
            bed.end();
        });
    }
}

/// Packets that an element made and `route` cannot send are sent by the kernel, as its own, in the router's
/// namespace. Frames for no interface belong to their port's router.
#[test]
#[ignore = "needs root"]
fn packets_that_elements_make_are_sent_in_the_namespace_of_their_router() {
    in_new_namespace(|| {
        let namespaces = Namespaces::default();
        let bed = Bed::new(1, WorkersSettings { namespaces: namespaces.clone(), ..settings() });
        run("ip link add x0 type veth peer name x1");
        run("ip link set x1 up");
        run("ip link set x0 address 02:00:00:00:00:77 up");
        for (local, remote, bits) in [("10.5.0.1", "10.5.0.2", 24), ("2001:db8:5::1", "2001:db8:5::2", 64)] {
            let nodad = if bits == 64 { "nodad" } else { "" };
            run(&format!("ip address add {local}/{bits} dev x0 {nodad}"));
            run(&format!("ip neighbour add {remote} lladdr 02:00:00:00:00:78 dev x0"));
        }
        let tunnel = |name: &str, ends: &str| {
            let encap = element_of(&format!("{{ element = \"vxlan_encap\", vni = 5, {ends} }}"));
            let rest = ["route", "rewrite"].map(|name| element_of(&format!("\"{name}\"")));
            let chain = std::iter::once(encap).chain(rest).collect();
            PathPlan { chain, ..path(name, &[], 1) }
        };
        let paths = [
            (0, tunnel("four", "local = \"10.5.0.1\", remote = \"10.5.0.2\"")),
            (1, tunnel("six", "local = \"2001:db8:5::1\", remote = \"2001:db8:5::2\"")),
        ];
        bed.apply(&plan(&[1], &ports(1, SMALL), &paths));
        let (from, far) = (Wire::open("q0"), Wire::open("x1"));
        let counts = || bed.report().up.all;
        // The namespace of router 0 is not known yet.
        from.send(&frame(0, 7, 60));
        until("the packet to be counted", || (counts().packets, counts().failed) == (0, 1));
        namespaces.set(BTreeMap::from([(0, NamespaceRef::own().unwrap())]));
        for n in 8..40 {
            (0..2).for_each(|path| from.send(&frame(path, n, 60)));
        }
        let out = out_of(&far, 64, |out| out[..12] == [2, 0, 0, 0, 0, 0x78, 2, 0, 0, 0, 0, 0x77]);
        for (path, kind) in [(0, [0x08, 0x00]), (1, [0x86, 0xdd])] {
            let inside: Vec<_> = out
                .iter()
                .filter(|out| out[12..14] == kind)
                .map(|out| out[out.len() - 60..].to_vec())
                .collect();
            assert_eq!(inside, (8..40).map(|n| frame(path, n, 60)).collect::<Vec<_>>());
        }
        until("the packets to be counted", || counts().packets == 64);
        assert_eq!(counts().failed, 1);
        assert_eq!(bed.path(0).up.get("no_route"), Some(&33));
        // A router that is gone gets nothing, although the socket is still open.
        namespaces.set(BTreeMap::new());
        from.send(&frame(0, 50, 60));
        until("the packet to be counted", || counts().failed == 2);
        // The source is no longer an address of the machine.
        namespaces.set(BTreeMap::from([(0, NamespaceRef::own().unwrap())]));
        run("ip address flush dev x0");
        from.send(&frame(0, 51, 60));
        until("the packet to be counted", || counts().failed == 3);
        bed.end();
    });
}
