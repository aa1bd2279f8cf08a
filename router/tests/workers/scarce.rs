//! Which resource paths share, as the worker finds while they run.

use super::*;
use crate::{
    af_xdp_bed::XdpPort,
    common::{Ends, be_urgent, only_on},
    flood::flood,
};
use router::api::workers::{Capacity, PathStand, WorkerStand, WorkersReport};

/// Returns the report after a second of the worker's time, in which paths are looked at once.
fn a_second(bed: &Bed, plan: &router::user_plane::workers::WorkersPlan) -> WorkersReport {
    let ticks = || bed.told.ticks.expect("a bed of ticks").load(Relaxed);
    let (begun, before) = (Instant::now(), ticks());
    while ticks() - before < 1_050_000_000 {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "the worker's time did not advance by a second within 60 s"
        );
        thread::sleep(Duration::from_millis(10));
    }
    bed.apply(plan);
    bed.report()
}

/// Bytes in and out, with frames of 60 bytes.
fn bytes(path: &PathStand) -> u64 {
    60 * (path.packets + path.out.values().sum::<u64>())
}

fn parts(before: &WorkersReport, after: &WorkersReport, of: fn(&PathStand) -> u64) -> Vec<f64> {
    let each = before.paths.iter().zip(&after.paths);
    let each: Vec<f64> = each.map(|(before, after)| (of(after) - of(before)) as f64).collect();
    each.iter().map(|part| part / each.iter().sum::<f64>()).collect()
}

fn worker(report: &WorkersReport) -> &WorkerStand {
    &report.workers[0]
}

/// The packets of two paths take equally long, but one path also sends them, and so uses twice as much I/O.
#[test]
#[ignore = "needs root"]
fn io_is_shared_while_it_is_scarce() {
    in_new_namespace(|| {
        let bed = Bed::of_ticks(1, WorkersSettings::default());
        let _sink = XdpPort::with("q1", "millrace_sink");
        // The rings are small: they run empty between two rounds of the generator, one sooner than the other.
        let of = |id, name| (id, PathPlan { ring: 256, ..path(name, &["forward"], 1) });
        let rings = Rings { fill: 4096, ..Rings::default() };
        let mut plan = plan(&[1], &ports(1, rings), &[of(0, "in and out"), of(1, "in")]);
        let mut sent = frame(0, 0, 60);
        sent[15] = 1;
        bed.apply(&plan);
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let _ends = Ends(&over);
            scope.spawn(|| {
                be_urgent();
                flood("q0", "mix", &sent, &over);
            });
            only_on([0]);
            a_second(&bed, &plan);
            // The capacity of I/O is not known, so I/O is not even counted.
            let (before, after) = (a_second(&bed, &plan), a_second(&bed, &plan));
            assert_eq!((&*worker(&after).share, &*after.share), ("CPU cycles", "CPU cycles"));
            assert!(
                !worker(&after).used.contains_key("I/O bandwidth") && after.follows,
                "I/O is counted, or shares do not follow: {after:?}"
            );
            let io = |report: &WorkersReport| report.resources[2].clone();
            assert!(
                !io(&after).counted && io(&after).basis.contains("is not known"),
                "I/O is counted, or its capacity known: {:?}",
                io(&after)
            );
            let by_cycles = parts(&before, &after, |path| path.cycles);
            let told: Vec<f64> = after.paths.iter().map(|path| path.share).collect();
            println!(
                "cycles are shared: {by_cycles:.3?}, as reported {told:.3?}; bytes {:.3?}",
                parts(&before, &after, bytes)
            );
            assert!(
                by_cycles.iter().all(|part| (part / 0.5 - 1.0).abs() < 0.05),
                "parts of the cycles: {by_cycles:?}"
            );
            assert!(
                parts(&before, &after, bytes)[0] > 0.55,
                "parts of the bytes: {:?}",
                parts(&before, &after, bytes)
            );
            // The stated capacity is much less than they use.
            plan.io = Capacity::of_io_stated(8);
            let shared = |report: WorkersReport| worker(&report).share == "I/O bandwidth";
            assert!(
                (0..10).any(|_| shared(a_second(&bed, &plan))),
                "I/O is not shared after 10 s of the worker"
            );
            a_second(&bed, &plan);
            let (before, after) = (a_second(&bed, &plan), a_second(&bed, &plan));
            let by_bytes = parts(&before, &after, bytes);
            let told: Vec<f64> = after.paths.iter().map(|path| path.share).collect();
            let used = worker(&after).used["I/O bandwidth"];
            println!(
                "I/O is shared: bytes {by_bytes:.3?}, as reported {told:.3?}, {used:.1} of the capacity; {:?}",
                io(&after)
            );
            assert_eq!((&*worker(&after).share, &*after.share), ("I/O bandwidth", "I/O bandwidth"));
            assert!(
                by_bytes.iter().all(|part| (part / 0.5 - 1.0).abs() < 0.05),
                "parts of the bytes: {by_bytes:?}"
            );
            assert!(told.iter().all(|part| (part / 0.5 - 1.0).abs() < 0.06), "reported shares: {told:?}");
            assert!(
                io(&after).counted
                    && used > 1.0
                    && io(&after).used.is_some_and(|of| (of / used - 1.0).abs() < 0.1)
            );
            // The worker uses less than its whole core: between two rounds of the generator it has nothing to
            // do. The worker's use and the clock are not read at the same moment.
            assert!(
                (0.5..1.1).contains(&worker(&after).used["CPU cycles"]),
                "the worker's use of its core: {:?}",
                worker(&after)
            );
            // The stated capacity is much more than they use.
            plan.io = Capacity::of_io_stated(80_000);
            assert!(
                (0..10).any(|_| !shared(a_second(&bed, &plan))),
                "cycles are not shared after 10 s of the worker"
            );
            let (before, after) = (a_second(&bed, &plan), a_second(&bed, &plan));
            let by_cycles = parts(&before, &after, |path| path.cycles);
            assert!(
                by_cycles.iter().all(|part| (part / 0.5 - 1.0).abs() < 0.05),
                "parts of the cycles: {by_cycles:?}"
            );
            assert!(
                io(&after).counted && worker(&after).used["I/O bandwidth"] < 0.9,
                "use of I/O: {:?}",
                worker(&after)
            );
        });
        bed.quiet();
        bed.end();
    });
}
