//! Workers that hang: other workers continue, another thread takes over, and the frames in hand are counted
//! and come back.

use super::*;
use crate::common::{hogged, only_on};
use std::collections::BTreeSet;

/// Short, so that rings can hold the packets that come in this time.
const PATIENCE: Duration = Duration::from_millis(450);
const LARGE: Rings = Rings { fill: 4096, ..SMALL };

fn quick(patience: Duration) -> WorkersSettings {
    WorkersSettings { patience, frames: 32768, ..settings() }
}

fn hung_in_stuck(packets: u64) -> String {
    format!(
        "a thread of the worker on core 0 hangs in path stuck; another thread has taken over, and {packets} packets \
         are lost"
    )
}

/// Three paths: one that hangs, one on the same core, and one on another core whose queue belongs to the
/// first worker.
fn three(stuck_on: u16) -> [(u16, PathPlan); 3] {
    let mut paths = [
        (0, path("stuck", &["forward"], stuck_on)),
        (1, path("beside", &["count", "forward"], 0)),
        (2, path("elsewhere", &["forward"], 1)),
    ];
    paths.iter_mut().for_each(|(_, path)| path.ring = 2048);
    paths
}

/// Counts that never go down, by path; empty while a worker is silent.
fn counts(bed: &Bed) -> Vec<[u64; 4]> {
    let report = bed.report();
    if report.workers.iter().any(|worker| worker.silent.is_some()) {
        return Vec::new();
    }
    report.paths.iter().map(|path| [path.packets, path.out.values().sum(), path.cycles, path.runs]).collect()
}

#[test]
#[ignore = "needs root"]
fn a_worker_that_hangs_is_taken_over_and_costs_the_packets_in_hand() {
    in_new_namespace(|| {
        let bed = Bed::new(1, quick(2 * PATIENCE));
        let on = |stuck_on| plan(&[0, 1], &ports(1, LARGE), &three(stuck_on));
        bed.apply(&on(0));
        assert!(
            bed.report().queues.iter().any(|queue| (queue.port, queue.owner) == (0, 0)),
            "worker 0 does not own the fill ring"
        );
        let _goes_on = GoesOn(bed.told.clone());
        bed.told.waits_at.store(100, Relaxed);
        bed.told.waits.store(true, Relaxed);
        let (mut generator, to) = (Generator::new("q0", 1), Wire::open("q1"));
        let (mut sent, mut out, mut before) = (0, [const { Vec::new() }; 3], counts(&bed));
        let take = |out: &mut [Vec<u32>; 3]| {
            while let Some(frame) = to.receive() {
                if frame.len() > 18 && frame[12..14] == [0x88, 0xb5] {
                    out[usize::from(frame[14])].push(crate::af_xdp_bed::number(&frame));
                }
            }
        };
        let mut send = |out: &mut [Vec<u32>; 3]| {
            generator.send(0, (sent..sent + 8).flat_map(|n| [0, 1, 2].map(|path| frame(path, n, 60))));
            sent += 8;
            // The other core continues at every moment, also while another thread has the fill ring.
            until("packets of the path on the other core", || {
                take(out);
                out[2].len() == sent as usize
            });
            thread::sleep(Duration::from_millis(4));
            sent
        };
        while bed.told.waiting.load(Relaxed) == 0 {
            send(&mut out);
        }
        let hangs = Instant::now();
        (0..10).for_each(|_| _ = send(&mut out));
        assert!(
            hangs.elapsed() < 2 * PATIENCE,
            "too slow: a takeover may have happened after {:?}",
            hangs.elapsed()
        );
        // Counts are read while the worker hangs, and while it is taken over.
        let mut now = Vec::new();
        until("another to take over", || {
            send(&mut out);
            now = counts(&bed);
            !now.is_empty() && bed.path(0).hangs == 1
        });
        assert!(now.iter().flatten().zip(before.iter().flatten()).all(|(now, before)| now >= before));
        before = now;
        let all = send(&mut out) as usize;
        until("the packets that waited", || {
            take(&mut out);
            out[1].len() == all && bed.path(0).packets == all as u64
        });
        let stuck = bed.path(0);
        let lost = stuck.worker_silent;
        assert!((1..=256).contains(&lost) && stuck.ring_full == 0, "packets lost, or a full ring: {stuck:?}");
        // The thread still hangs, and its path continues, where it was and on the other core.
        assert_eq!(bed.told.waiting.load(Relaxed), 1);
        assert!(
            bed.epochs.wait(Duration::from_millis(1)).is_err(),
            "the hanging thread is not waited for, but still reads the tables"
        );
        assert_eq!(bed.workers.apply(&on(1)), [hung_in_stuck(lost)]);
        assert_eq!(bed.path(0).worker, 1);
        let all = send(&mut out) as usize;
        until("all packets", || {
            take(&mut out);
            out[0].len() + lost as usize == all && out[1].len() == all
        });
        let every = (0..all as u32).collect::<Vec<_>>();
        assert_eq!([&out[1], &out[2]], [&every; 2]);
        // All packets except one run came out, in order.
        let had: BTreeSet<u32> = out[0].iter().copied().collect();
        let missing: Vec<u32> = every.iter().copied().filter(|n| !had.contains(n)).collect();
        assert!(out[0].is_sorted() && missing.contains(&100), "missing numbers: {missing:?}");
        assert_eq!(missing, (missing[0]..missing[0] + lost as u32).collect::<Vec<_>>());
        let (report, beside) = (bed.report(), bed.path(1));
        let worker = |core| report.workers.iter().find(|worker| worker.core == core).unwrap();
        assert_eq!([0, 1].map(|core| worker(core).taken_over), [1, 0]);
        assert!(report.paths.iter().all(|path| path.ring_full == 0), "a ring was full: {report:?}");
        assert_eq!(
            (beside.elements[0].packets, beside.hangs),
            (all as u64, 0),
            "(packets of the first element, hangs) of a path that keeps its chain"
        );
        let now = counts(&bed);
        assert!(now.iter().flatten().zip(before.iter().flatten()).all(|(now, before)| now >= before));
        bed.told.waits.store(false, Relaxed);
        until("the thread to end", || bed.workers.apply(&on(1)).is_empty());
        bed.epochs.wait(Duration::from_secs(1)).unwrap();
        // None of the packets in hand goes anywhere.
        thread::sleep(Duration::from_millis(20));
        take(&mut out);
        assert_eq!((out[0].len(), bed.path(0).worker_silent), (all - lost as usize, lost));
        generator.end();
        bed.end();
    });
}

/// The thread continues at any moment before, during and after a takeover. Each packet is accounted for once,
/// and all frames come back.
#[test]
#[ignore = "needs root"]
fn a_thread_that_continues_while_it_is_taken_over_has_all_or_nothing() {
    const PATIENCE: Duration = Duration::from_millis(150);
    in_new_namespace(|| {
        let bed = Bed::new(1, quick(PATIENCE));
        // Three hangs in ten seconds would stop the path, so its chain is changed each time.
        let with = |name: &str, chain: &[&str]| plan(&[0], &ports(1, SMALL), &[(0, path(name, chain, 0))]);
        let stuck = with("stuck", &["forward"]);
        let from = Wire::open("q0");
        let to = Wire::open("q1");
        let (mut sent, mut taken_over, mut out, begun) = (0_u32, Vec::new(), Vec::new(), Instant::now());
        let mut random = 1_u32;
        while taken_over.len() < 100 && begun.elapsed() < Duration::from_secs(40) {
            bed.apply(&with("other", &["count", "forward"]));
            bed.apply(&stuck);
            let _goes_on = GoesOn(bed.told.clone());
            bed.told.waits.store(true, Relaxed);
            from.send(&frame(0, sent, 60));
            until("the worker to hang", || bed.told.waiting.load(Relaxed) == 1);
            let hangs = Instant::now();
            // Other packets wait in its ring.
            (sent + 1..sent + 4).for_each(|n| from.send(&frame(0, n, 60)));
            sent += 4;
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let until_then = PATIENCE + Duration::from_micros(u64::from(random >> 8) % 25_000);
            thread::sleep(until_then.saturating_sub(hangs.elapsed()));
            bed.told.waits.store(false, Relaxed);
            let mut path = bed.path(0);
            until("all to be accounted for", || {
                path = bed.path(0);
                path.packets == u64::from(sent)
                    && path.out.values().sum::<u64>() + path.worker_silent == path.packets
            });
            taken_over.push(bed.report().workers[0].taken_over);
            let came = path.out["p1"] as usize;
            until("the packets to come out", || {
                numbers_of(&to, 0, &mut out);
                out.len() == came
            });
            until("the thread to end", || bed.workers.apply(&stuck).is_empty());
        }
        let times = *taken_over.last().unwrap();
        println!("{times} of {} times another took over", taken_over.len());
        assert!(
            (5..taken_over.len() as u64 - 4).contains(&times),
            "{times} takeovers in {} hangs: the test needs both outcomes",
            taken_over.len()
        );
        let path = bed.path(0);
        assert_eq!(path.worker_silent, times, "packets lost in {times} takeovers");
        assert!(out.is_sorted() && BTreeSet::from_iter(&out).len() == out.len());
        bed.end();
    });
}

/// Holds both when the threads still hang, and when they have continued.
#[test]
#[ignore = "needs root"]
fn the_third_hang_stops_only_the_path() {
    for hang_on in [true, false] {
        in_new_namespace(move || {
            let bed = Bed::new(1, quick(Duration::from_millis(150)));
            let paths = [(0, path("stuck", &["forward"], 0)), (1, path("other", &["forward"], 0))];
            let first = plan(&[0], &ports(1, SMALL), &paths);
            bed.apply(&first);
            let _goes_on = GoesOn(bed.told.clone());
            let (from, to) = (Wire::open("q0"), Wire::open("q1"));
            for time in 1..=3 {
                bed.told.waits.store(true, Relaxed);
                from.send(&frame(0, time, 60));
                let hanging = if hang_on { time } else { 1 };
                until("the worker to hang", || bed.told.waiting.load(Relaxed) == hanging);
                let taken_over = || bed.report().workers.iter().map(|worker| worker.taken_over).sum::<u64>();
                until("another to take over", || taken_over() == u64::from(time));
                if !hang_on {
                    bed.told.waits.store(false, Relaxed);
                    until("the thread to end", || bed.workers.apply(&first).is_empty());
                }
            }
            until("the path to be stopped", || bed.path(0).stopped.is_some());
            assert_eq!((bed.path(0).hangs, bed.path(0).worker_silent), (3, 3));
            for n in 0..20 {
                from.send(&frame(1, n, 60));
            }
            let out = out_of(&to, 20, |f| f[12..14] == [0x88, 0xb5]);
            assert_eq!(out, (0..20).map(|n| frame(1, n, 60)).collect::<Vec<_>>());
            // Another chain starts the path, whether or not threads hang.
            let mended = [(0, path("mended", &["count", "forward"], 0)), paths[1].clone()];
            let mended = plan(&[0], &ports(1, SMALL), &mended);
            let told = if hang_on { 3 } else { 0 };
            assert_eq!(bed.workers.apply(&mended), vec![hung_in_stuck(1); told]);
            from.send(&frame(0, 9, 60));
            assert_eq!(out_of(&to, 1, |f| f[12..14] == [0x88, 0xb5]), [frame(0, 9, 60)]);
            bed.told.waits.store(false, Relaxed);
            until("the threads to end", || bed.workers.apply(&mended).is_empty());
            bed.end();
        });
    }
}

/// A real-time task takes the worker's core. The worker runs on another core with all its packets, and comes
/// back.
#[test]
#[ignore = "needs root"]
fn a_worker_whose_core_is_taken_continues_on_another() {
    in_new_namespace(|| {
        let bed = Bed::new(1, quick(PATIENCE));
        let mut paths = [(0, path("hungry", &["forward"], 1)), (1, path("other", &["forward"], 0))];
        paths.iter_mut().for_each(|(_, path)| path.ring = 1024);
        let plan = plan(&[0, 1], &ports(1, Rings { fill: 2048, ..SMALL }), &paths);
        bed.apply(&plan);
        only_on([0]);
        let (from, to) = (Wire::open("q0"), Wire::open("q1"));
        let mut out = Vec::new();
        let no_time = "core 1 has no time for its worker, which runs on other cores until it has";
        let mut sent = 0_u32;
        let mut goes_through = |out: &mut Vec<u32>| {
            from.send(&frame(0, sent, 60));
            sent += 1;
            let begun = Instant::now();
            until("the packet to come out", || {
                numbers_of(&to, 0, out);
                out.len() == sent as usize
            });
            begun.elapsed()
        };
        hogged(1, || {
            thread::sleep(Duration::from_millis(100));
            let first = goes_through(&mut out);
            let (begun, mut slow) = (Instant::now(), Vec::new());
            let mut told = false;
            while begun.elapsed() < Duration::from_secs(6) && !told {
                slow.push(goes_through(&mut out));
                thread::sleep(Duration::from_millis(5));
                told = bed.workers.apply(&plan).contains(&no_time.to_owned());
            }
            slow.sort_unstable();
            let most = slow[slow.len() * 9 / 10];
            println!(
                "the first took {first:?}; then 90 % took less than {most:?}, the longest {:?}",
                slow.last()
            );
            assert!(told && most < Duration::from_millis(100), "reported: {told}, 90 % took up to {most:?}");
        });
        until("the worker to return to its core", || bed.workers.apply(&plan).is_empty());
        goes_through(&mut out);
        assert_eq!(out, (0..sent).collect::<Vec<_>>());
        let report = bed.report();
        assert!(
            report.workers.iter().all(|worker| worker.taken_over == 0),
            "a worker was taken over: {report:?}"
        );
        assert_eq!((bed.path(0).worker_silent, bed.path(0).ring_full), (0, 0));
        bed.end();
    });
}
