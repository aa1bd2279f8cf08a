//! Meters over real time.

use crate::{
    common::in_new_namespace,
    leave_this_cpu,
    notices::udp_frame,
    world::{FlowWorld, XDP_DROP, XDP_REDIRECT},
};
use logic::flow::{
    Action, FlowCommand, Instructions, Match, Meter, MeterMod, RulePort,
    rule::{Band, BandKind, MeterUnit},
};
use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

const FRAME_BYTES: usize = 1000;

fn meter(unit: MeterUnit, bands: &[(u32, u32)]) -> Meter {
    let bands = bands.iter().map(|&(rate, burst)| Band { rate, burst, kind: BandKind::Drop }).collect();
    Meter { id: 1, unit, burst: true, stats: true, bands }
}

/// CLOCK_MONOTONIC.
fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[test]
#[ignore = "needs root"]
fn a_meter_passes_its_rate_in_kernel_and_user_space_together_and_counts_the_rest() {
    in_new_namespace(|| {
        let mut w = FlowWorld::new();
        let frame = udp_frame(9, FRAME_BYTES);
        w.control.meter(&MeterMod::Add(meter(MeterUnit::Pps, &[(1, 1)])));
        let does = Instructions { meter: Some(1), ..Instructions::apply([Action::output(RulePort(2))]) };
        w.change(FlowCommand::Add, 0, 1, Match::ANY, does);
        w.finish();
        // Rate in packets a second, and burst in packets. The burst lasts a second, as this thread may have
        // to wait for a CPU that long.
        for (request, rate, burst, both) in [
            (meter(MeterUnit::Kbps, &[(10_000, 10_000), (20_000, 20_000)]), 1250.0, 1250.0, false),
            (meter(MeterUnit::Pps, &[(1000, 1000)]), 1000.0, 1000.0, false),
            (meter(MeterUnit::Pps, &[(1000, 1000)]), 1000.0, 1000.0, true),
        ] {
            w.control.meter(&MeterMod::Modify(request.clone()));
            let before = w.control.rules.meter_stats(Some(1), 0)[0].packets;
            let (over, ifindex) = (AtomicBool::new(false), w.ports[0]);
            let FlowWorld { flows, control, .. } = &mut w;
            let started = Instant::now();
            let (asked, passed, ended) = thread::scope(|scope| {
                let by_user_space = both.then(|| {
                    let (rules, over) = (&control.rules, &over);
                    scope.spawn(move || {
                        leave_this_cpu();
                        let (mut asked, mut passed) = (0, 0);
                        while !over.load(Relaxed) {
                            asked += 1;
                            passed += u64::from(rules.meter_passes(1, FRAME_BYTES as u64, now_ns()));
                        }
                        (asked, passed)
                    })
                });
                let (mut asked, mut passed) = (0, 0);
                while started.elapsed() < Duration::from_secs(2) {
                    let action = flows.run(ifindex, &frame).unwrap().action;
                    assert!([XDP_DROP, XDP_REDIRECT].contains(&action));
                    asked += 1;
                    passed += u64::from(action == XDP_REDIRECT);
                }
                over.store(true, Relaxed);
                let ended = started.elapsed();
                let others = by_user_space.map_or((0, 0), |thread| thread.join().unwrap());
                (asked + others.0, passed + others.1, ended)
            });
            // The other thread may wait for a CPU before it sees the end.
            let [least, most] = [ended, started.elapsed()].map(|time| burst + rate * time.as_secs_f64());
            assert!(
                (0.95 * least..=1.01 * most).contains(&(passed as f64)),
                "{passed} packets passed, not {least} to {most}: {request:?}"
            );
            let stats = w.control.rules.meter_stats(Some(1), 0).remove(0);
            assert_eq!((stats.packets - before, stats.bytes), (asked, stats.packets * FRAME_BYTES as u64));
            assert_eq!(stats.bands.iter().map(|band| band.0).sum::<u64>(), asked - passed);
            assert!(stats.bands.iter().all(|(packets, bytes)| *bytes == packets * FRAME_BYTES as u64));
            assert!(asked > 2 * passed, "{asked} packets do not overload the meter, which passed {passed}");
        }
    });
}
