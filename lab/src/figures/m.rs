//! M: virtual routers. Its macvlan is today's `linux-macvlan` (whose packets no longer wait in a backlog queue).
//! Millrace is the counterpart of its NAPI-macvlan. Where the topology has the virtual routers, so that they have ports
//! or many interfaces of their own, `linux` and `millrace` stand for both.

use anyhow::{Result, bail};
use serde_json::json;

use super::{FiguresOptions, in_kpps, kpps, picture, published::PaperFigure};
use crate::{
    compare::{Plan, compare, figures, pps, prepare},
    experiment::isolation::UNSHARED,
    figure::{Axis, Figure, Reference},
    generator::Pace,
    measure::{Sample, measure_streams, median},
    record::Recorder,
    sink::Watch,
    testbed::{Priority, Testbed},
    topology::Topology,
    workload::{Family, Way, Workload},
};

/// The host's router, and the virtual routers that subjects make themselves.
const VIRTUAL: [&str; 4] = ["linux", "linux-macvlan", "millrace", "millrace-macvlan"];
const PLAIN: [&str; 2] = ["linux", "millrace"];
const OF_TOPOLOGY: &str =
    "the virtual routers are the testbed's: linux forwards in them by macvlan, millrace accelerates them";

fn rates(kpps: &[u64]) -> Vec<Pace> {
    kpps.iter().map(|kpps| Pace::Rate(kpps * 1000)).collect()
}

/// M4: load against throughput.
pub(super) fn load(figure: &PaperFigure, options: &FiguresOptions, recorder: &mut Recorder) -> Result<()> {
    let x = kpps("/sample/offered_pps", "offered").by("/pace").log();
    let y = kpps("/sample/received_pps", "throughput").log();
    recorder.figure(&picture(figure, x, y, "100 destinations, veth ports instead of gigabit ones"))?;
    let mut testbed = Testbed::for_rates(&Topology::rfc2544())?;
    let workload = Workload::benchmark(Family::V4, 100, 0..=0);
    let subjects = ["linux", "linux-macvlan", "linux-bridge-veth", "millrace", "millrace-macvlan"];
    let paces = rates(&[500, 1000, 2000, 3500, 8000]);
    compare(&mut testbed, &workload, &options.plan(figure, json!({}), &subjects, &paces), recorder).map(drop)
}

/// M5: several ports into one.
pub(super) fn several_into_one(
    figure: &PaperFigure,
    options: &FiguresOptions,
    recorder: &mut Recorder,
) -> Result<()> {
    let x = kpps("/sample/offered_pps", "offered on all ports").by("/pace").log();
    let y = kpps("/sample/received_pps", "throughput").log();
    let ours = "100 destinations from each port, veth ports; a virtual router has one interface on each port";
    let both = picture(figure, x, y, ours);
    let title = format!("{}: three into one", both.title);
    let three = Figure { name: "M5 three into one".into(), title, ..both.clone() };
    recorder.figure(&both.only("/parameters/case", "two into one"))?;
    recorder.figure(&three.only("/parameters/case", "three into one"))?;
    for (name, ports, case) in [("two-in", 2, "two into one"), ("three-in", 3, "three into one")] {
        let topology = Topology::named(name)?;
        let ways: Vec<Way> = (0..ports).map(|from| Way { router: 0, from, to: ports, weight: 1 }).collect();
        let workload = Workload::across(&topology, &ways, 100)?;
        let mut testbed = Testbed::for_rates(&topology)?;
        let paces = rates(&[500, 1500, 3000, 7500]);
        let plan = options.plan(figure, json!({"case": case}), &VIRTUAL, &paces);
        compare(&mut testbed, &workload, &plan, recorder)?;
    }
    Ok(())
}

/// M6: the number of virtual routers. In the paper they carry the packets one after another; here packets go through
/// them in turn.
pub(super) fn routers(figure: &PaperFigure, options: &FiguresOptions, recorder: &mut Recorder) -> Result<()> {
    let ours =
        "virtual routers with two interfaces each, packets through all of them in turn, the core saturated";
    let x = Axis::new("/parameters/routers", "virtual routers", "").log();
    let absolute =
        picture(figure, x, kpps("/sample/received_pps", "throughput"), &format!("{ours}; {OF_TOPOLOGY}"));
    recorder.figure(&absolute.clone().relative_to(Reference::First))?;
    recorder.figure(&in_kpps(absolute))?;
    for routers in [1, 8, 32, 255] {
        let mut testbed = Testbed::for_rates(&Topology::rfc2544().with_routers(routers))?;
        let workload = Workload::benchmark(Family::V4, 4096, 1..=routers);
        let plan = options.plan(figure, json!({"routers": routers}), &PLAIN, &[Pace::Saturate]);
        compare(&mut testbed, &workload, &plan, recorder)?;
    }
    Ok(())
}

/// M7: 2 and 512 virtual interfaces.
pub(super) fn interfaces(
    figure: &PaperFigure,
    options: &FiguresOptions,
    recorder: &mut Recorder,
) -> Result<()> {
    let x = Axis::new("/parameters/case", "", "");
    let ours = format!(
        "both ways, half of the interfaces on each port, half of the destinations behind each (one behind each for \"1 destination\"), \
         a route for each interface, the core saturated; {OF_TOPOLOGY}"
    );
    recorder.figure(&picture(figure, x, kpps("/sample/received_pps", "throughput"), &ours))?;
    let cases = [
        (1, 1, "2 interfaces, 1 destination"),
        (1, 256, "2 interfaces, 512 destinations"),
        (256, 256, "512 interfaces, 512 destinations"),
    ];
    for (on_port, destinations, case) in cases {
        both_ways(
            on_port,
            destinations,
            &options.plan(figure, json!({"case": case}), &PLAIN, &[Pace::Saturate]),
            recorder,
        )?;
    }
    Ok(())
}

/// M8: the number of virtual interfaces.
pub(super) fn more_interfaces(
    figure: &PaperFigure,
    options: &FiguresOptions,
    recorder: &mut Recorder,
) -> Result<()> {
    let x = Axis::new("/parameters/interfaces", "virtual interfaces", "").log();
    let ours = format!("as figure 7, as many destinations as interfaces; {OF_TOPOLOGY}");
    recorder.figure(&picture(figure, x, kpps("/sample/received_pps", "throughput"), &ours))?;
    for on_port in [1, 8, 64, 256] {
        let parameters = json!({"interfaces": 2 * on_port});
        both_ways(
            on_port,
            on_port.into(),
            &options.plan(figure, parameters, &PLAIN, &[Pace::Saturate]),
            recorder,
        )?;
    }
    Ok(())
}

/// Through a virtual router with `on_port` interfaces on each port, to `destinations` destinations behind each.
fn both_ways(on_port: u16, destinations: u32, plan: &Plan<'_>, recorder: &mut Recorder) -> Result<()> {
    let topology = Topology::named("interfaces")?.with_interfaces(on_port);
    let ways = [Way { router: 1, from: 0, to: 1, weight: 1 }, Way { router: 1, from: 1, to: 0, weight: 1 }];
    let workload = Workload::across(&topology, &ways, destinations)?;
    let mut testbed = Testbed::for_rates(&topology)?;
    compare(&mut testbed, &workload, plan, recorder).map(drop)
}

/// M9: latency, at the same share of the IP forwarder's capacity as in the paper.
pub(super) fn latency(figure: &PaperFigure, options: &FiguresOptions, recorder: &mut Recorder) -> Result<()> {
    const LOAD: f64 = 600.0 / 785.0;
    let mut testbed = Testbed::for_rates(&Topology::rfc2544())?;
    let workload = Workload::benchmark(Family::V4, 100, 0..=0);
    let saturated =
        Plan { case: "M9 capacity", ..options.plan(figure, json!({}), &["linux"], &[Pace::Saturate]) };
    let capacity = compare(&mut testbed, &workload, &saturated, recorder)?;
    let rate = (LOAD * median(&figures(&capacity, "linux", 0, pps))) as u64;
    let ours = format!(
        "mean one-way latency from the generator to the sink at {} kpps for {} s, 600 / 785 of what linux carries here (its \
         median); 100 destinations; a load that another subject does not carry fills its queues",
        rate / 1000,
        options.seconds
    );
    let x = Axis::new("/parameters/load", "load", "");
    let absolute =
        picture(figure, x, Axis::new("/sample/latency/mean_ns", "mean latency", "us").times(1e-3), &ours);
    recorder.figure(&absolute.clone().relative_to(Reference::Series("linux".into())))?;
    let title = format!("{}, in microseconds", absolute.title);
    recorder.figure(&Figure { name: "M9 in us".into(), title, ..absolute })?;
    let paces = [Pace::Rate(rate)];
    let mut plan = options.plan(figure, json!({"load": "600 / 785 of linux"}), &VIRTUAL, &paces);
    plan.window = plan.window.watching(Watch { latency: true, ..Watch::NOTHING });
    compare(&mut testbed, &workload, &plan, recorder).map(drop)
}

/// 700 kpps in M, table 1, correspond to the rate that the subject carries through both routers here.
const CAPACITY_KPPS: u64 = 700;
/// Rates offered to VR1 and VR2, and the names of their values in the record.
const LOADS: [([u64; 2], [&str; 3]); 2] =
    [([1000, 300], ["VR1", "VR2", "total"]), ([300, 300], ["VR1 of 300", "VR2 of 300", "total of 600"])];

/// MT1: isolation of two virtual routers, on ports of their own as in the paper, and on the same ports. Millrace runs
/// with and without shares.
pub(super) fn isolation(
    figure: &PaperFigure,
    options: &FiguresOptions,
    recorder: &mut Recorder,
) -> Result<()> {
    let ours = format!(
        "each subject is first saturated through both routers in turn; this is its capacity C, measured again in each repeat. A load \
         of n kpps in the table is n / {CAPACITY_KPPS} x C here, and a throughput of p packets a second is shown as p x \
         {CAPACITY_KPPS} / C kpps. {CAPACITY_KPPS} kpps is what NAPI-macvlan carries in the paper, 690 what macvlan does. The last three \
         bars: 300 kpps each. 100 destinations each; {OF_TOPOLOGY}. NAPI threads have normal priorities. millrace enforces shares \
         (docs/inside/shares.md), {UNSHARED} does not"
    );
    let x = Axis::new("/parameters/router", "", "");
    let y = Axis::new("/sample/scaled_kpps", "throughput, scaled", "kpps");
    let own = picture(figure, x, y, &ours);
    let title = format!("{}: on the same ports", figure.paper);
    let same = Figure { name: "MT1 same ports".into(), title, ..own.clone() };
    recorder.figure(&own.only("/parameters/ports", "own"))?;
    recorder.figure(&same.only("/parameters/ports", "the same"))?;
    for (ports, topology, from_to) in
        [("own", "pairs", [(0, 1), (2, 3)]), ("the same", "shared", [(0, 1); 2])]
    {
        let topology = Topology::named(topology)?;
        let mut testbed = Testbed::for_rates(&topology)?;
        // A daemon enforces shares. It must not wait for the core that is sent too much.
        testbed.set_priority(Priority::Reaction)?;
        for repeat in 0..options.repeat {
            for name in ["linux", UNSHARED, "millrace"] {
                let mut case =
                    Pairs { figure, name, ports, from_to, repeat, options, recorder: &mut *recorder };
                case.measure(&mut testbed, &topology)?;
            }
        }
    }
    Ok(())
}

/// One run of a subject.
struct Pairs<'a> {
    figure: &'a PaperFigure,
    name: &'a str,
    /// Ports of each router.
    ports: &'a str,
    from_to: [(u8, u8); 2],
    repeat: u16,
    options: &'a FiguresOptions,
    recorder: &'a mut Recorder,
}

impl Pairs<'_> {
    fn measure(&mut self, testbed: &mut Testbed, topology: &Topology) -> Result<()> {
        let from_to = self.from_to;
        let workload = |weights: [u64; 2]| {
            let way = |place: usize| {
                let (from, to) = from_to[place];
                Way { router: place as u16 + 1, from, to, weight: weights[place] }
            };
            Workload::across(topology, &[way(0), way(1)], 100)
        };
        let even = workload([1, 1])?;
        testbed.shares = self.name != UNSHARED;
        let subject = if self.name == UNSHARED { "millrace" } else { self.name };
        let subject = prepare(testbed, &even, &self.figure.id, subject, self.recorder)?;
        let Some(_subject) = subject else { return Ok(()) };
        let capacity = measure_streams(testbed, self.options.window())?;
        self.run(Pace::Saturate, "saturated", &capacity)?;
        for (load, names) in LOADS {
            let kpps = load.iter().sum::<u64>() as f64;
            let pace = Pace::Rate((kpps / CAPACITY_KPPS as f64 * capacity.received_pps) as u64);
            let workload = workload(load)?;
            testbed.generator.set_streams(workload.streams(&workload.targets, pace))?;
            let sample = measure_streams(testbed, self.options.window())?;
            self.run(pace, &format!("{} and {}", load[0], load[1]), &sample)?;
            self.parts(&names, &sample, CAPACITY_KPPS as f64 / capacity.received_pps)?;
        }
        Ok(())
    }

    /// Makes one measurement.
    fn run(&mut self, pace: Pace, offered: &str, sample: &Sample) -> Result<()> {
        eprintln!(
            "  {} on {} ports #{} {offered}: {:.3} Mpps",
            self.name,
            self.ports,
            self.repeat + 1,
            sample.received_pps / 1e6
        );
        let parameters = json!({"offered": offered, "ports": self.ports});
        self.recorder.line(&json!({"record": "sample", "case": "MT1 runs", "parameters": parameters,
            "subject": self.name, "repeat": self.repeat, "pace": pace, "sample": sample}))
    }

    /// The same measurement by router, in the paper's kpps.
    fn parts(&mut self, names: &[&str; 3], sample: &Sample, scale: f64) -> Result<()> {
        let [one, two] = &sample.streams[..] else { bail!("two streams were sent") };
        let total = one.received_pps + two.received_pps;
        for (router, received_pps) in names.iter().zip([one.received_pps, two.received_pps, total]) {
            self.recorder.line(&json!({"record": "sample", "case": self.figure.id,
                "parameters": {"router": router, "ports": self.ports},
                "subject": self.name, "repeat": self.repeat,
                "sample": {"received_pps": received_pps, "scaled_kpps": received_pps * scale}}))?;
        }
        Ok(())
    }
}
