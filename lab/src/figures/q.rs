//! Q and O: forwarding beside applications. Millrace is the counterpart of their Quickpath and of their offloaded
//! router.

use anyhow::Result;
use logic::{
    cores::Policy,
    sim::{Cost, Placement},
};
use serde_json::{Value, json};

use super::{
    FiguresOptions, in_kpps, kpps, picture,
    published::PaperFigure,
    simulated::{self, Length, MARK, Simulated},
};
use crate::{
    compare::{compare, figures, pps},
    cpu::{self, Spinners},
    experiment::apps::{self, Traffic},
    figure::{Axis, Figure, Reference},
    generator::Pace,
    measure::median,
    prefixes::{self, Prefixes},
    record::Recorder,
    testbed::Testbed,
    topology::{Cores, Topology},
    workload::{Family, Way, Workload},
};

const FLOWS: u32 = 100;
/// Open vSwitch polls its core at any load. Where it is not installed, the others are measured.
const FORWARDERS: [&str; 3] = ["linux", "millrace", "ovs-afxdp"];
const LOADS_PPS: [u64; 4] = [10_000, 100_000, 500_000, 1_500_000];

/// Q2: the number of table entries; ours are routes.
pub(super) fn entries(figure: &PaperFigure, options: &FiguresOptions, recorder: &mut Recorder) -> Result<()> {
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

/// Q3: the number of cores that forward. One core is measured, because the generator has the other one of this machine.
/// From two on, cores are simulated at the measured cost of a packet on one core.
pub(super) fn scaling(figure: &PaperFigure, options: &FiguresOptions, recorder: &mut Recorder) -> Result<()> {
    const CORES: u16 = 8;
    let ours = "one core is measured (saturated); the generator has another core of this machine. Simulated values are computed in \
                virtual time at the cost of a packet measured on one core, with a queue for each core. Cores 5 to 8 are \
                hyper-threads; two of them do 1.2 times the work of one. Open vSwitch (if installed) is its userspace datapath over AF_XDP";
    let x = Axis::new("/parameters/cores", "cores", "");
    recorder.figure(&picture(figure, x, kpps("/sample/received_pps", "throughput"), ours))?;
    let mut testbed = Testbed::for_rates(&Topology::rfc2544())?;
    let workload = Workload::benchmark(Family::V4, FLOWS, 0..=0);
    let plan = options.plan(figure, json!({"cores": 1}), &FORWARDERS, &[Pace::Saturate]);
    let one = compare(&mut testbed, &workload, &plan, recorder)?;
    for subject in one.keys() {
        let ns_per_packet = (1e9 / median(&figures(&one, subject, 0, pps))) as u64;
        for cores in 1..=CORES {
            let (cost, length) = (Cost { ns_per_packet, ..Cost::MILLRACE }, Length::beside(options.seconds));
            let received_pps = simulated::throughput(cores, cost, length)?;
            let sample = json!({"received_pps": received_pps});
            line(figure, &format!("{subject}{MARK}"), json!({"cores": cores}), None, sample, recorder)?;
        }
    }
    Ok(())
}

/// Records a simulated measurement. One is enough, because repeats give the same.
fn line(
    figure: &PaperFigure,
    subject: &str,
    parameters: Value,
    pace: Option<Pace>,
    sample: Value,
    recorder: &mut Recorder,
) -> Result<()> {
    recorder.line(&json!({"record": "sample", "case": figure.id, "parameters": parameters,
        "subject": subject, "repeat": 0, "pace": pace, "sample": sample}))
}

/// Records one of Millrace, at this many packets a second.
fn at_load(
    figure: &PaperFigure,
    parameters: Value,
    offered: u64,
    sample: Value,
    recorder: &mut Recorder,
) -> Result<()> {
    line(figure, &format!("millrace{MARK}"), parameters, Some(Pace::Rate(offered)), sample, recorder)
}

/// The machine of Q8, with this policy.
fn of_four(policy: Policy) -> Simulated {
    Simulated {
        cores: 4,
        hyper_threads: false,
        forwarding: 4,
        queues: 16,
        cost: Cost::MILLRACE,
        placement: Placement::Allocator(policy),
        applications: true,
    }
}

/// Q8: applications on four cores, of which all forward, or only as many as are needed.
pub(super) fn four_cores(
    figure: &PaperFigure,
    options: &FiguresOptions,
    recorder: &mut Recorder,
) -> Result<()> {
    const STEPS: u64 = 16;
    let cost = Cost::MILLRACE;
    let all_pps = 4 * 1_000_000_000 / cost.ns_per_packet;
    let ours = format!(
        "simulated, as this machine has two cores: the allocator of Millrace on four cores with sixteen queues, and an application that \
         wants all that is left on each, at the costs measured on one core ({} ns a packet saturated). Packed: cores are added and \
         given back as usual (policy pack); spread: policy spread. Each load grows from nothing within 10 s; the highest is what all cores \
         carry, {} kpps",
        cost.ns_per_packet,
        all_pps / 1000
    );
    let x = kpps("/sample/offered_pps", "offered");
    let loss = Axis::new("/sample/loss", "loss", "%").times(100.0);
    let lost = picture(figure, x, loss, &ours).series("/parameters/forwarding");
    let index = Figure {
        name: "Q8 index".into(),
        title: format!("{}: what applications achieve", figure.paper),
        y: Axis::new("/sample/index", "applications on all cores", "index"),
        ..lost.clone()
    };
    let used = Figure {
        name: "Q8 cores".into(),
        title: format!("{}: cores that forward", figure.paper),
        y: Axis::new("/sample/cores_mean", "cores, mean", ""),
        ..lost.clone()
    };
    [index, lost, used].iter().try_for_each(|figure| recorder.figure(figure))?;
    for step in 0..=STEPS {
        let offered = all_pps * step / STEPS;
        for (forwarding, policy) in [("packed", Policy::Pack), ("spread", Policy::Spread)] {
            let results = of_four(policy).run(offered, Length::beside(options.seconds))?;
            let sample = json!({"offered_pps": offered, "loss": results.loss(),
                "index": results.application_share(), "cores_mean": results.cores.mean()});
            let parameters = json!({"forwarding": forwarding});
            at_load(figure, parameters, offered, sample, recorder)?;
        }
    }
    Ok(())
}

/// Q4: load of the core that forwards, and what is left of it.
pub(super) fn core_load(
    figure: &PaperFigure,
    options: &FiguresOptions,
    recorder: &mut Recorder,
) -> Result<()> {
    let ours = "time on the core of all threads and softirqs that forward, including the sink; what is left is measured by \
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

/// Q5: how often the core is taken. A veth port has no interrupts; instead its NAPI thread is woken.
pub(super) fn wakeups(figure: &PaperFigure, options: &FiguresOptions, recorder: &mut Recorder) -> Result<()> {
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
    options: &FiguresOptions,
    testbed: &mut Testbed,
    recorder: &mut Recorder,
) -> Result<()> {
    let workload = Workload::benchmark(Family::V4, FLOWS, 0..=0);
    let paces = LOADS_PPS.map(Pace::Rate);
    compare(testbed, &workload, &options.plan(figure, json!({}), &FORWARDERS, &paces), recorder).map(drop)
}

/// O2: the score of an application on the forwarding core.
pub(super) fn application(
    figure: &PaperFigure,
    options: &FiguresOptions,
    recorder: &mut Recorder,
) -> Result<()> {
    let ours = "an integer benchmark of stress-ng, nice 0, beside NAPI threads of real-time priority; published loads \
                are those of the paper's machine, which is saturated by 550 kpps";
    let y = Axis::new("/sample/application/index", "integer benchmark", "index");
    recorder.figure(&picture(figure, offered(), y, ours))?;
    let rates = [100_000, 500_000, 1_000_000, 2_000_000];
    apps::measure(&integer(options, &rates), &figure.id, recorder)
}

fn integer(options: &FiguresOptions, rates: &[u64]) -> apps::AppsOptions {
    apps::AppsOptions {
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

/// Q7: applications on two cores. One core forwards everything, or each forwards half. As in the paper (Q6) both cores
/// always have a receive queue; packets are sent to one or to both. This is measured where there is another core for
/// the generator, and simulated everywhere.
pub(super) fn two_cores(
    figure: &PaperFigure,
    options: &FiguresOptions,
    recorder: &mut Recorder,
) -> Result<()> {
    const RATES_PPS: [u64; 6] = [0, 250_000, 500_000, 1_000_000, 1_500_000, 3_000_000];
    let ours = "an integer benchmark of stress-ng on each core, nice 0, beside NAPI threads of real-time priority; the same with nginx \
                and wrk as its client. The \
                queue of a core is a port: one core forwards when all packets come to one port, both when they come to two in turn. Each port has a \
                port out of its own, so that the cores share nothing. 100 destinations behind each. Simulated: two cores in virtual time, at \
                the costs measured on one core, beside applications that want all that is left";
    let x = kpps("/sample/offered_pps", "offered").by("/pace");
    let of = |workload: &str, said: &str| {
        let y = Axis::new("/sample/application/index", said, "index");
        let picture = picture(figure, x.clone(), y, ours).series("/parameters/forwarding");
        picture.only("/parameters/workload", workload)
    };
    let index = of("integer", "integer benchmark on both cores");
    let server = Figure {
        name: "Q7 server".into(),
        title: format!("{}: a web server on both cores", figure.paper),
        ..of("nginx", "nginx on both cores")
    };
    let throughput = Figure {
        name: "Q7 throughput".into(),
        title: format!("{}: what is forwarded", figure.paper),
        y: kpps("/sample/received_pps", "throughput"),
        ..index.clone()
    };
    [index, server, throughput].iter().try_for_each(|figure| recorder.figure(figure))?;
    for (forwarding, forward) in [("one core", 1), ("both cores", 2)] {
        let machine = Simulated {
            cores: 2,
            hyper_threads: false,
            forwarding: forward,
            queues: forward,
            cost: Cost::MILLRACE,
            placement: Placement::Allocator(Policy::Spread),
            applications: true,
        };
        for offered in RATES_PPS {
            let results = machine.run(offered, Length::beside(options.seconds))?;
            let sample = json!({"offered_pps": offered, "received_pps": offered as f64 * (1.0 - results.loss()),
                "application": {"index": results.application_share()}});
            let parameters = json!({"forwarding": forwarding, "workload": "integer"});
            at_load(figure, parameters, offered, sample, recorder)?;
        }
    }
    if let Some(why) = too_few_cores(options, cpu::online()?) {
        eprintln!("Q7 is only simulated: {why}");
        return recorder
            .line(&json!({"record": "skipped", "case": figure.id, "subject": "millrace", "why": why}));
    }
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
    let mut measured = integer(options, &RATES_PPS);
    measured.workloads.push("nginx".into());
    apps::measure_beside(&measured, &topology, &traffic, &figure.id, recorder)
}

/// The reason why a machine with this many cores can only simulate Q7; `None` if it can measure it.
fn too_few_cores(options: &FiguresOptions, cores: usize) -> Option<String> {
    let needed = options.cores.iter().max().map_or(1, |last| last + 1);
    (cores < needed).then(|| {
        format!(
            "it needs {needed} cores, one for the generator and two that forward and run applications with a queue each; \
             this machine has {cores}"
        )
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn too_few_cores_are_reported_with_the_number_needed() {
        let options = |cores| FiguresOptions {
            paper: None,
            only: None,
            out: PathBuf::new(),
            seconds: 1.0,
            repeat: 1,
            cores,
        };
        let why = "it needs 3 cores, one for the generator and two that forward and run applications with a queue each; \
                   this machine has 2";
        assert_eq!(too_few_cores(&options(vec![1, 2]), 2).as_deref(), Some(why));
        assert_eq!(
            [too_few_cores(&options(vec![1, 2]), 3), too_few_cores(&options(vec![1]), 2)],
            [None, None]
        );
    }

    #[test]
    fn packing_leaves_applications_more_until_all_cores_forward_and_drops_nothing() {
        let of = |policy, pps| {
            let results = of_four(policy).run(pps, Length::beside(1.0)).unwrap();
            (results.application_share().unwrap(), results.dropped)
        };
        for (pps, gain) in [(1_600_000, 0.08), (4_000_000, 0.05), (9_000_000, -1e-3)] {
            let [(packed, lost), (spread, _)] = [Policy::Pack, Policy::Spread].map(|policy| of(policy, pps));
            assert!(packed > spread + gain && lost == 0, "{pps}: {packed} {spread} {lost}");
        }
    }
}
