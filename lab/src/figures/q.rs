//! Q and O: forwarding beside applications. Their Quickpath and offloaded router have their counterpart in Millrace.

use anyhow::Result;
use serde_json::json;

use super::{Options, in_kpps, kpps, picture, published::PaperFigure};
use crate::{
    compare::compare,
    cpu::Spinners,
    experiment::apps::{self, Traffic},
    figure::{Axis, Figure, Reference},
    generator::Pace,
    prefixes::{self, Prefixes},
    record::Recorder,
    testbed::Testbed,
    topology::{Cores, Topology},
    workload::{Family, Way, Workload},
};

const FLOWS: u32 = 100;
/// Open vSwitch polls its core whatever the load; where it is not installed the others are measured.
const FORWARDERS: [&str; 3] = ["linux", "millrace", "ovs-afxdp"];
const LOADS_PPS: [u64; 4] = [10_000, 100_000, 500_000, 1_500_000];

/// Q2: the number of table entries; ours are routes.
pub(super) fn entries(figure: &PaperFigure, options: &Options, recorder: &mut Recorder) -> Result<()> {
    const ENTRIES: [usize; 3] = [100, 1000, 5000];
    let ours = "routes instead of flow entries, 100 destinations, the core saturated. Open vSwitch (if installed) is its \
                userspace datapath over AF_XDP, with one OpenFlow rule for each route";
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
        let plan = options.plan(figure, parameters, &FORWARDERS, &[Pace::Saturate]);
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
    let ours = "an integer benchmark of stress-ng, nice 0, beside NAPI threads of real-time priority; published loads \
                are those of the paper's machine, which is saturated by 550 kpps";
    let y = Axis::new("/sample/application/index", "integer benchmark", "index");
    recorder.figure(&picture(figure, offered(), y, ours))?;
    let rates = [100_000, 500_000, 1_000_000, 2_000_000];
    apps::measure(&integer(options, &rates), &figure.id, recorder)
}

fn integer(options: &Options, rates: &[u64]) -> apps::Options {
    apps::Options {
        subjects: ["linux", "millrace"].map(str::to_owned).to_vec(),
        workloads: vec!["integer".into()],
        rates: rates.to_vec(),
        topology: "rfc2544".into(),
        floor: None,
        router_cores: Vec::new(),
        cores: Vec::new(),
        // The benchmark's clock is in whole seconds.
        seconds: options.seconds.ceil() as u16,
        repeat: options.repeat,
        json: None,
    }
}

/// Q7: applications on two cores, one of which forwards all, or both a half. As in the paper (Q6) both have a receive queue at
/// all times, and it is the packets that are sent to one or to both.
pub(super) fn two_cores(figure: &PaperFigure, options: &Options, recorder: &mut Recorder) -> Result<()> {
    const RATES_PPS: [u64; 6] = [0, 250_000, 500_000, 1_000_000, 1_500_000, 3_000_000];
    let ours = "an integer benchmark of stress-ng on each core, nice 0, beside NAPI threads of real-time priority. The \
                queue of a core is a port: one core forwards when all packets come to one port, both when they come to two in turn; each port has a \
                port out of its own, so that the cores share nothing. 100 destinations behind each";
    let x = kpps("/sample/offered_pps", "offered").by("/pace");
    let y = Axis::new("/sample/application/index", "integer benchmark on both cores", "index");
    let index = picture(figure, x, y, ours).series("/parameters/forwarding");
    let throughput = Figure {
        name: "Q7 throughput".into(),
        title: format!("{}: what is forwarded", figure.paper),
        y: kpps("/sample/received_pps", "throughput"),
        ..index.clone()
    };
    recorder.figure(&index)?;
    recorder.figure(&throughput)?;
    let topology = Topology::named("two-ways")?;
    let cores = Cores {
        router: options.cores.clone(),
        applications: options.cores.clone(),
        ..topology.cores.clone()
    };
    let topology = topology.with_cores(cores);
    let ways = [Way { router: 0, from: 0, to: 2, weight: 1 }, Way { router: 0, from: 1, to: 3, weight: 1 }];
    let through = |name, ways: &[Way]| -> Result<Traffic> {
        Ok(Traffic { name: Some(name), workload: Workload::across(&topology, ways, FLOWS)? })
    };
    let traffic = [through("one core", &ways[..1])?, through("both cores", &ways)?];
    apps::measure_beside(&integer(options, &RATES_PPS), &topology, &traffic, &figure.id, recorder)
}
