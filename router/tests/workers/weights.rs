//! Weights of routers and of their paths on one worker (P6, P12).

use super::*;
use crate::{
    af_xdp_bed::XdpPort,
    common::{Ends, be_urgent, only_on},
    flood::flood,
};

/// The parts of the cycles that paths took in a second.
fn shares(bed: &Bed) -> Vec<f64> {
    let cycles = || bed.report().paths.iter().map(|path| path.cycles).collect::<Vec<_>>();
    let before = cycles();
    thread::sleep(Duration::from_secs(1));
    let took: Vec<u64> = cycles().iter().zip(before).map(|(after, before)| after - before).collect();
    took.iter().map(|of| *of as f64 / took.iter().sum::<u64>() as f64).collect()
}

/// Router 1 has two paths and router 2 one. Each path has more packets than the worker can handle, except the
/// first path, which later has none.
#[test]
#[ignore = "needs root"]
fn routers_get_their_weights_and_spare_time_goes_to_the_same_router_first() {
    in_new_namespace(|| {
        let bed = Bed::of_ticks(1, WorkersSettings::default());
        // Rings last for 0.2 s, so that the generator can start again, or wait for its core.
        let of = |id, router, weight| {
            (id, PathPlan { ring: 4096, router, weight, ..path("slow", &["discard"], 1) })
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
                    only_on([0]);
                    thread::sleep(Duration::from_millis(300));
                    shares(&bed)
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
