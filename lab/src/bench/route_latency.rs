//! Time from a route change to packets leaving by it. A stream of packets to one address leaves through next hop 1; a
//! host route through next hop 2 is added, later deleted; the sink notes when the first packet for the other next hop
//! came. The clock starts just before the request is handed to the kernel.

use std::{net::Ipv4Addr, time::Duration};

use anyhow::{Result, ensure};
use serde_json::json;

use super::{Options, print_head, print_row, show, testbed};
use crate::{
    addresses::nexthop4,
    generator::{Load, Pace},
    measure::spread,
    netlink::{Change, Netlink, Route},
    record::Recorder,
    subject, sys,
    testbed::{PORT_OUT, Priority, Testbed},
    workload::{Family, Workload},
};

/// 5 us between packets: the resolution.
const RATE_PPS: u64 = 200_000;
const CHANGES: usize = 50;
const LIMIT: Duration = Duration::from_secs(5);

pub(super) fn run(options: &Options, recorder: &mut Recorder) -> Result<()> {
    let mut testbed = testbed(0)?;
    testbed.set_priority(Priority::Reaction)?;
    let workload = Workload::benchmark(Family::V4, 1, 0..=0);
    let title = format!("From a route change to the first packet on the new way, ms, {CHANGES} changes each");
    print_head(&title, &["subject", "change", "median (range)"]);
    for name in options.subjects(Some(&["linux", "millrace"])) {
        let subject = match subject::start(name, &testbed) {
            Ok(subject) => subject,
            Err(error) if error.is::<sys::Interrupted>() => return Err(error),
            Err(error) => {
                eprintln!("{name} cannot run here: {error:#}");
                continue;
            }
        };
        testbed.generator.set_targets(workload.targets.clone(), workload.frame_bytes)?;
        testbed.generator.start(Load { frame_bytes: workload.frame_bytes, pace: Pace::Rate(RATE_PPS) })?;
        let times = changes(&testbed, name, recorder);
        testbed.generator.stop()?;
        drop(subject);
        let (added, deleted): (Vec<f64>, Vec<f64>) = times?.into_iter().unzip();
        print_row(&[name.into(), "add".into(), show(spread(&added), 1.0, 3)]);
        print_row(&[name.into(), "delete".into(), show(spread(&deleted), 1.0, 3)]);
    }
    Ok(())
}

/// Milliseconds of each addition and deletion.
fn changes(testbed: &Testbed, name: &str, recorder: &mut Recorder) -> Result<Vec<(f64, f64)>> {
    let interface = testbed.box_namespace.interface_index(PORT_OUT)?;
    let mut netlink = testbed.box_namespace.enter(Netlink::route)?;
    let route = Route {
        address: Ipv4Addr::new(198, 18, 0, 0).into(),
        length: 32,
        gateway: nexthop4(2).into(),
        interface,
    };
    let mut times = Vec::new();
    for repeat in 0..CHANGES {
        let added = time(testbed, 2, || netlink.change_routes(Change::Set, [route]))?;
        let deleted = time(testbed, 1, || netlink.change_routes(Change::Delete, [route]))?;
        recorder
            .line(&json!({"record": "change", "case": "route-latency", "subject": name, "repeat": repeat,
            "add_ms": added, "delete_ms": deleted, "rate_pps": RATE_PPS}))?;
        times.push((added, deleted));
    }
    Ok(times)
}

/// Milliseconds from the beginning of `change` to the first packet through next hop `n`, which was not in use.
fn time(testbed: &Testbed, n: u8, change: impl FnOnce() -> Result<()>) -> Result<f64> {
    sys::sleep(Duration::from_millis(20))?;
    testbed.sink.watch(true)?;
    let start_ns = sys::monotonic_ns();
    change()?;
    while testbed.sink.watched(n)?.packets == 0 {
        let waited = Duration::from_nanos(sys::monotonic_ns() - start_ns);
        ensure!(waited < LIMIT, "no packet through next hop {n} {} s after the change", LIMIT.as_secs());
        sys::sleep(Duration::from_micros(200))?;
    }
    let first_ns = testbed.sink.watched(n)?.first_ns;
    testbed.sink.watch(false)?;
    ensure!(first_ns >= start_ns, "next hop {n} was in use before the change");
    Ok((first_ns - start_ns) as f64 / 1e6)
}
