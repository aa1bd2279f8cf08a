//! Workers that hang: other workers continue, packets of their paths find no worker, and nothing is lost if they go on.

use super::*;
use crate::common::{hogged, only_on};
use router::user_plane::workers::Shared;

/// Short, so that rings can hold the packets that come in this time.
const PATIENCE: Duration = Duration::from_millis(450);
const LARGE: Rings = Rings { fill: 4096, ..SMALL };
const HANGS: &str = "the worker on core 0 hangs in path stuck; no path of this worker gets packets until the worker goes on; if it never does, restart Millrace";

fn quick(patience: Duration) -> WorkersSettings {
    WorkersSettings { patience, frames: 32768, ..settings() }
}

/// Collects the numbers of frames that come out of a wire, by path.
fn take(wire: &Wire, to: &mut [Vec<u32>; 3]) {
    while let Some(frame) = wire.receive() {
        if frame.len() > 18 && frame[12..14] == [0x88, 0xb5] {
            to[usize::from(frame[14])].push(crate::af_xdp_bed::number(&frame));
        }
    }
}

/// Two paths are on the core of the worker that hangs, and one on another core. The queue belongs to the worker that
/// hangs.
#[test]
#[ignore = "needs root"]
fn a_worker_that_hangs_gets_no_packets_until_it_goes_on() {
    in_new_namespace(|| {
        let bed = Bed::new(1, quick(2 * PATIENCE));
        let mut paths = [
            (0, path("stuck", &["forward"], 0)),
            (1, path("beside", &["count", "forward"], 0)),
            (2, path("elsewhere", &["forward"], 1)),
        ];
        paths.iter_mut().for_each(|(_, path)| path.ring = 2048);
        let plan = plan(&[0, 1], &ports(1, LARGE), &paths);
        bed.apply(&plan);
        assert!(
            bed.report().queues.iter().any(|queue| (queue.port, queue.owner) == (0, 0)),
            "worker 0 does not own the fill ring"
        );
        let _goes_on = GoesOn(bed.told.clone());
        bed.told.waits_at.store(100, Relaxed);
        bed.told.waits.store(true, Relaxed);
        let (mut generator, to, kernel) = (Generator::new("q0", 1), Wire::open("q1"), Wire::open("p0"));
        let mut sent = 0_u32;
        let (mut out, mut passed) = ([const { Vec::new() }; 3], [const { Vec::new() }; 3]);
        let mut send = |out: &mut [Vec<u32>; 3]| {
            generator.send(0, (sent..sent + 8).flat_map(|n| [0, 1, 2].map(|path| frame(path, n, 60))));
            sent += 8;
            until("packets of the path on the other core", || {
                take(&to, out);
                out[2].len() == sent as usize
            });
            thread::sleep(Duration::from_millis(4));
            sent as usize
        };
        while bed.told.waiting.load(Relaxed) == 0 {
            send(&mut out);
        }
        until("the slots of its paths to be empty", || {
            send(&mut out);
            take(&kernel, &mut passed);
            !passed[0].is_empty() && !passed[1].is_empty()
        });
        assert_eq!(bed.workers.apply(&plan), [HANGS]);
        let silent: Vec<_> =
            bed.report().workers.into_iter().map(|worker| (worker.core, worker.silent)).collect();
        assert_eq!(silent, [(0, Some(HANGS.to_owned())), (1, None)]);
        assert!(
            bed.epochs.wait(Duration::from_millis(1)).is_err(),
            "the hanging worker is not waited for, but still reads the tables"
        );
        // Other workers get other tables, and so does the silent one before its next run.
        let other = Shared { memory: tables(), sas: Arc::default(), captures: Default::default() };
        bed.workers.set_tables(Arc::new(Rigged(other, bed.told.clone()))).unwrap();
        send(&mut out);
        bed.told.waits.store(false, Relaxed);
        until("the worker to go on", || bed.workers.apply(&plan).is_empty());
        bed.epochs.wait(Duration::from_secs(1)).unwrap();
        let all = send(&mut out);
        until("all packets", || {
            take(&to, &mut out);
            take(&kernel, &mut passed);
            [0, 1, 2].iter().all(|path| out[*path].len() + passed[*path].len() == all)
        });
        assert!(
            passed[2].is_empty(),
            "packets of the path on the other core that found no worker: {passed:?}"
        );
        for path in [0, 1] {
            assert!(
                out[path].is_sorted() && out[path].ends_with(&Vec::from_iter(all as u32 - 8..all as u32))
            );
            let mut both = [out[path].clone(), passed[path].clone()].concat();
            both.sort_unstable();
            assert_eq!(both, (0..all as u32).collect::<Vec<_>>(), "numbers of path {path}");
        }
        let [stuck, beside] = [0, 1].map(|path| bed.path(path));
        assert_eq!([&stuck, &beside].map(|path| (path.hangs, path.ring_full)), [(1, 0), (0, 0)]);
        assert_eq!(stuck.stopped, None);
        generator.end();
        bed.end();
    });
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
        assert_eq!((bed.path(0).hangs, bed.path(0).ring_full), (0, 0));
        bed.end();
    });
}
