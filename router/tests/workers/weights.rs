//! Weights of routers and of their paths on one worker (P6, P12).

use super::*;
use crate::{
    af_xdp_bed::XdpPort,
    common::{Ends, be_urgent, only_on},
    flood::flood,
};

/// Packets that the ring of a path holds: those of 0.2 s, so that the generator can start again, or wait for its core.
const RING: u32 = 4096;

/// The parts of the cycles that paths took in a second in which each path of `with_packets` always had some.
///
/// A ring that was full between two reports is not empty before the path has handled [`RING`] packets more.
fn shares(bed: &Bed, with_packets: &[usize]) -> Vec<f64> {
    let report = || bed.report().paths;
    let mut took = vec![0; report().len()];
    let (mut before, mut last, begun) = (report(), report(), Instant::now());
    while took.iter().sum::<u64>() < 1_000_000_000 {
        assert!(begun.elapsed() < Duration::from_secs(60), "paths had no packets for a second within 60 s");
        thread::sleep(Duration::from_millis(20));
        let now = report();
        let had_packets = |path: &usize| {
            last[*path].ring_full > before[*path].ring_full
                && now[*path].packets - before[*path].packets < u64::from(RING)
        };
        if with_packets.iter().all(had_packets) {
            for (took, (now, last)) in took.iter_mut().zip(now.iter().zip(&last)) {
                *took += now.cycles - last.cycles;
            }
        }
        (before, last) = (last, now);
    }
    took.iter().map(|of| *of as f64 / took.iter().sum::<u64>() as f64).collect()
}

/// Router 1 has two paths and router 2 one. Each path has more packets than the worker can handle, except the
/// first path, which later has none.
#[test]
#[ignore = "needs root"]
fn routers_get_their_weights_and_spare_time_goes_to_the_same_router_first() {
    in_new_namespace(|| {
        let bed = Bed::of_ticks(1, WorkersSettings::default());
        let of = |id, router, weight| {
            (id, PathPlan { ring: RING, router, weight, ..path("slow", &["discard"], 1) })
        };
        let rings = Rings { fill: 16_384, ..Rings::default() };
        let mut plan = plan(&[1], &ports(1, rings), &[of(0, 1, 3), of(1, 1, 1), of(2, 2, 1)]);
        let _sink = XdpPort::with("q1", "millrace_sink");
        // Of each round of frames, `favoured` are of the first path, and one is of each other path.
        let sent = |favoured| {
            let mut sent = frame(0, 0, 60);
            sent[15] = favoured;
            sent
        };
        let found =
            |plan: &router::user_plane::workers::WorkersPlan, favoured, what: &str, expected: [f64; 3]| {
                bed.apply(plan);
                let (over, frame) = (AtomicBool::new(false), sent(favoured));
                let found = thread::scope(|scope| {
                    let _ends = Ends(&over);
                    scope.spawn(|| {
                        be_urgent();
                        flood("q0", "mix", &frame, &over);
                    });
                    // Not on the core of the generator, which would leave it no time.
                    only_on([1]);
                    shares(&bed, if favoured == 0 { &[1, 2] } else { &[0, 1, 2] })
                });
                println!("{what}: {found:.4?}");
                let is_near = |(found, expected): (&f64, &f64)| (found - expected).abs() < 0.02;
                assert!(found.iter().zip(&expected).all(is_near), "{what}: {found:.4?}, not {expected:.4?}");
                bed.quiet();
            };
        plan.routers = BTreeMap::from([(1, 1), (2, 2)]);
        found(&plan, 1, "routers 1 to 2, paths 3 to 1", [0.25, 1.0 / 12.0, 2.0 / 3.0]);
        // The time that the first path leaves goes to the other path of its router.
        found(&plan, 0, "the first has no packets", [0.0, 1.0 / 3.0, 2.0 / 3.0]);
        plan.routers = BTreeMap::from([(1, 3), (2, 1)]);
        found(&plan, 1, "routers 3 to 1, changed while they run", [0.5625, 0.1875, 0.25]);
        bed.end();
    });
}
