//! Q and O: forwarding beside applications. Their Quickpath and offloaded router have their counterpart in Millrace.

use anyhow::Result;
use serde_json::json;

use super::{Options, in_kpps, kpps, picture, published::PaperFigure};
use crate::{
    compare::compare,
    cpu::Spinners,
    experiment::apps,
    figure::{Axis, Figure, Reference},
    generator::Pace,
    prefixes::{self, Prefixes},
    record::Recorder,
    testbed::Testbed,
    topology::Topology,
    workload::{Family, Workload},
};

const FLOWS: u32 = 100;
/// Open vSwitch polls its core whatever the load.
const FORWARDERS: [&str; 3] = ["linux", "millrace", "ovs-afxdp"];
const LOADS_PPS: [u64; 4] = [10_000, 100_000, 500_000, 1_500_000];

/// Q2: the number of table entries; ours are routes.
pub(super) fn entries(figure: &PaperFigure, options: &Options, recorder: &mut Recorder) -> Result<()> {
    const ENTRIES: [usize; 3] = [100, 1000, 5000];
    let ours = "routes instead of flow entries, 100 destinations, the core saturated; Open vSwitch as a subject forwards the \
                benchmarking networks by rules of its own and takes no such table, so it is left out";
    let x = Axis::new("/parameters/entries", "table entries", "").log();
    let absolute = picture(figure, x, kpps("/sample/received_pps", "throughput"), ours);
    recorder.figure(&absolute.clone().relative_to(Reference::First))?;
    recorder.figure(&in_kpps(absolute))?;
    let full = prefixes::prefixes(prefixes::default_file().as_deref(), ENTRIES[ENTRIES.len() - 1], 0)?;
    let mut testbed = Testbed::for_rates(&Topology::rfc2544())?;
    for entries in ENTRIES {
        let loaded =
            Prefixes { v4: full.v4[..entries].to_vec(), v6: Vec::new(), source: full.source.clone() };
        testbed.load_routes(&loaded)?;
        let workload = Workload::inside(&loaded, Family::V4, FLOWS as usize, testbed.next_hops()?);
        let parameters = json!({"entries": entries, "prefixes": full.source});
        let plan = options.plan(figure, parameters, &["linux", "millrace"], &[Pace::Saturate]);
        compare(&mut testbed, &workload, &plan, recorder)?;
    }
    Ok(())
}

/// Q4: load of the core that forwards, and what is left of it.
pub(super) fn core_load(figure: &PaperFigure, options: &Options, recorder: &mut Recorder) -> Result<()> {
    let ours = "time on the core of all threads and softirqs that forward, the sink among them; what is left is measured by \
                subtraction, with a process of the lowest priority. Open vSwitch (over AF_XDP, if installed) polls: its core is \
                always busy";
    let y = Axis::new("/sample/busy", "load of the core", "%").times(100.0);
    let busy = picture(figure, offered(), y, ours);
    let left = Figure {
        name: "Q4 left".into(),
        title: format!("{}: what is left", figure.paper),
        y: Axis::new("/sample/cpu_left", "left of the core", "%").times(100.0),
        ..busy.clone()
    };
    recorder.figure(&busy)?;
    recorder.figure(&left)?;
    let mut testbed = Testbed::for_rates(&Topology::rfc2544())?;
    testbed.spinners = Spinners::start(&testbed.topology.cores.router)?;
    by_load(figure, options, &mut testbed, recorder)
}

/// Q5: how often the core is taken. A veth port has no interrupts: its NAPI thread is woken.
pub(super) fn wakeups(figure: &PaperFigure, options: &Options, recorder: &mut Recorder) -> Result<()> {
    let ours = "wake-ups of the threads that forward, which take the place of interrupts: veth ports with threaded NAPI have none";
    let y = Axis::new("/sample/wakeups_per_s", "wake-ups", "1/s");
    recorder.figure(&picture(figure, offered(), y, ours))?;
    let mut testbed = Testbed::for_rates(&Topology::rfc2544())?;
    by_load(figure, options, &mut testbed, recorder)
}

fn offered() -> Axis {
    kpps("/sample/offered_pps", "offered").by("/pace").log()
}

fn by_load(
    figure: &PaperFigure,
    options: &Options,
    testbed: &mut Testbed,
    recorder: &mut Recorder,
) -> Result<()> {
    let workload = Workload::benchmark(Family::V4, FLOWS, 0..=0);
    let paces = LOADS_PPS.map(Pace::Rate);
    compare(testbed, &workload, &options.plan(figure, json!({}), &FORWARDERS, &paces), recorder).map(drop)
}

/// O2: what an application on the forwarding core achieves.
pub(super) fn application(figure: &PaperFigure, options: &Options, recorder: &mut Recorder) -> Result<()> {
    let ours = "an integer benchmark of stress-ng, nice 0, beside NAPI threads of nice -20; published loads are those of the \
                paper's machine, which is saturated by 550 kpps";
    let y = Axis::new("/sample/application/index", "integer benchmark", "index");
    recorder.figure(&picture(figure, offered(), y, ours))?;
    let options = apps::Options {
        subjects: ["linux", "millrace"].map(str::to_owned).to_vec(),
        workloads: vec!["integer".into()],
        rates: vec![100_000, 500_000, 1_000_000, 2_000_000],
        topology: "rfc2544".into(),
        router_cores: Vec::new(),
        cores: Vec::new(),
        // The benchmark's clock is in whole seconds.
        seconds: options.seconds.ceil() as u16,
        repeat: options.repeat,
        json: None,
    };
    apps::measure(&options, &figure.id, recorder)
}
