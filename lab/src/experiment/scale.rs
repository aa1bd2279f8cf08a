//! The same traffic through more and more routers: the host's own, and virtual ones, each a namespace with two macvlan
//! interfaces (256 are Millrace's limit). Also through more and more interfaces of virtual routers.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::{Args, value_parser};
use serde_json::{Value, json};

use super::{Sampling, cost_rows, head};
use crate::{
    compare::{Plan, compare_in},
    figure::{Axis, Figure, Reference},
    generator::Pace,
    progress::Progress,
    record::Output,
    subject,
    testbed::Testbed,
    topology::{MAX_INTERFACES, MAX_INTERFACES_ON_PORT, Topology},
    workload::{Family, Way, Workload},
};

const DESTINATIONS: u32 = 4096;
/// Time of building a testbed after which progress is reported, and after which it is given up.
const TELL_AFTER: Duration = Duration::from_secs(2);
const BUILD_LIMIT: Duration = Duration::from_secs(300);

/// What to measure.
#[derive(Args, Clone, Debug)]
pub struct ScaleOptions {
    /// Numbers of routers, including the host's, 1 to 256, in this order; ratios are to the first
    /// [default: 1,8,32,256, or none if interfaces are given]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = value_parser!(u16).range(1..=256))]
    routers: Vec<u16>,
    /// Numbers of interfaces of virtual routers, half of them on each port: 2, 4, 8 ... 4096, in this order; ratios are
    /// to the first
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = interfaces)]
    interfaces: Vec<u16>,
    /// Subjects, alternately
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = ["linux", "millrace"], default_values = ["linux", "millrace"])]
    pub(super) subjects: Vec<String>,
    #[command(flatten)]
    pub(super) sampling: Sampling,
}

pub(super) fn run(options: &ScaleOptions, output: &Output) -> Result<()> {
    let (cases, subjects) = (options.cases()?, subject::named(&options.subjects));
    let mut recorder = output.recorder()?;
    let mut progress = Progress::new(0);
    figure_records().iter().try_for_each(|figure| recorder.figure(figure))?;
    let (mut title, mut first) = ("", None);
    for (at, case) in cases.iter().enumerate() {
        if case.of != title {
            (title, first) = (case.of, None);
            let heading = format!(
                "{}{}, IPv4, {DESTINATIONS} destinations (ratio: to the first)",
                title[..1].to_uppercase(),
                &title[1..]
            );
            progress.print(&head(&heading, &[title, "subject", "Mpps", "ns/packet", "ns, ratio"]));
        }
        let workload = case.workload()?;
        let plan = options.plan(case, &subjects);
        progress.expect(plan.steps());
        progress.then((cases.len() - at - 1) as u64 * plan.steps());
        let mut testbed = build(case)?;
        let results = compare_in(&mut testbed, &workload, &plan, &mut recorder, &mut progress)?;
        let first = first.get_or_insert_with(|| results.clone());
        for row in cost_rows(&[case.count.to_string()], &results, first) {
            progress.print(&row);
        }
    }
    Ok(())
}

/// A number of routers or interfaces.
struct Case {
    of: &'static str,
    count: u16,
    topology: Topology,
}

impl Case {
    fn routers(count: u16) -> Self {
        Self { of: "routers", count, topology: Topology::rfc2544().with_routers(count - 1) }
    }

    /// On as few routers as can have this many interfaces.
    fn interfaces(count: u16) -> Result<Self> {
        let on_port = (count / 2).min(MAX_INTERFACES_ON_PORT);
        let topology = Topology::named("interfaces")?.with_interfaces(on_port);
        Ok(Self { of: "interfaces", count, topology: topology.with_routers(count / 2 / on_port) })
    }

    /// A router has up to 256 interfaces on a port, so more interfaces need more routers.
    fn parameters(&self) -> Value {
        match self.of {
            "routers" => json!({"routers": self.count}),
            of => json!({of: self.count, "virtual_routers": self.virtual_routers()}),
        }
    }

    fn virtual_routers(&self) -> u16 {
        self.topology.routers.iter().map(|routers| routers.count).sum()
    }

    /// The same number of destinations in every case, through all routers or interfaces in turn.
    fn workload(&self) -> Result<Workload> {
        if self.of == "routers" {
            return Ok(Workload::benchmark(Family::V4, DESTINATIONS, 0..=self.count - 1));
        }
        let routers = self.virtual_routers();
        let ways: Vec<Way> = (1..=routers).map(|router| Way { router, from: 0, to: 1, weight: 1 }).collect();
        Workload::across(&self.topology, &ways, DESTINATIONS / u32::from(routers))
    }
}

impl ScaleOptions {
    fn cases(&self) -> Result<Vec<Case>> {
        const ROUTERS: [u16; 4] = [1, 8, 32, 256];
        let by_default = if self.interfaces.is_empty() { &ROUTERS[..] } else { &[] };
        let routers = if self.routers.is_empty() { by_default } else { &self.routers };
        let cases = routers.iter().map(|&count| Ok(Case::routers(count)));
        cases.chain(self.interfaces.iter().map(|&count| Case::interfaces(count))).collect()
    }

    fn plan<'a>(&self, case: &Case, subjects: &'a [&'a str]) -> Plan<'a> {
        Plan {
            case: case.of,
            parameters: case.parameters(),
            subjects,
            paces: &[Pace::Saturate],
            repeats: 0..self.sampling.repeat.into(),
            window: self.sampling.window(),
        }
    }
}

/// Builds the testbed. A large one takes a while, so progress is reported.
fn build(case: &Case) -> Result<Testbed> {
    let routers = case.topology.all_routers()?;
    let all: usize = routers.iter().skip(1).map(|router| router.interfaces.len()).sum();
    let started = Instant::now();
    Testbed::for_rates_told(&case.topology, &mut |built| {
        if started.elapsed() > TELL_AFTER {
            eprintln!("  {built} of {all} interfaces built ...");
        }
        ensure!(
            started.elapsed() < BUILD_LIMIT,
            "only {built} of {all} interfaces were built in {} s: try fewer {}",
            BUILD_LIMIT.as_secs(),
            case.of
        );
        Ok(())
    })
}

fn interfaces(text: &str) -> Result<u16, String> {
    let count: u16 = text.parse().map_err(|_| "not a number")?;
    let right = count.is_power_of_two() && (2..=MAX_INTERFACES).contains(&count.into());
    if right { Ok(count) } else { Err(format!("2, 4, 8 ... {MAX_INTERFACES}")) }
}

fn figure_records() -> Vec<Figure> {
    let of = |case: &'static str, name: &str, x: &str| {
        let ns = Axis::new("/sample/ns_per_packet", "CPU per packet", "ns");
        let title = format!("Cost against the number of {case}");
        let count = Axis::new(x, case, "").log();
        let cost = Figure::new(name, &title, Some(count), ns).only("/case", case).series("/subject");
        let relative =
            Figure { name: format!("{name}-relative"), title: format!("{title}, relative"), ..cost.clone() };
        [cost, relative.relative_to(Reference::First)]
    };
    let routers = of("routers", "scale", "/parameters/routers");
    routers.into_iter().chain(of("interfaces", "scale-interfaces", "/parameters/interfaces")).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: ScaleOptions,
    }

    fn cases(line: &str) -> Vec<(&'static str, u16)> {
        let options =
            Line::try_parse_from(line.split(' ')).map_err(|error| error.to_string()).unwrap().options;
        options.cases().unwrap().iter().map(|case| (case.of, case.count)).collect()
    }

    #[test]
    fn routers_are_the_default_and_interfaces_a_choice() {
        let of = |what, counts: &[u16]| counts.iter().map(|&count| (what, count)).collect::<Vec<_>>();
        assert_eq!(cases("scale"), of("routers", &[1, 8, 32, 256]));
        assert_eq!(cases("scale --interfaces 2,512"), of("interfaces", &[2, 512]));
        let both = [of("routers", &[1]), of("interfaces", &[4096])].concat();
        assert_eq!(cases("scale --routers 1 --interfaces 4096"), both);
        assert_eq!(["1", "3", "8192", "x"].map(|text| interfaces(text).is_ok()), [false; 4]);
    }

    #[test]
    fn packets_go_in_and_out_by_every_interface() {
        for count in [2, 64, 512, 1024, 4096] {
            let case = Case::interfaces(count).unwrap();
            case.topology.check(2).unwrap();
            let workload = case.workload().unwrap();
            assert_eq!(workload.targets.len(), DESTINATIONS as usize);
            let routers = case.topology.all_routers().unwrap();
            let all: usize = routers[1..].iter().map(|router| router.interfaces.len()).sum();
            assert_eq!(all, usize::from(count));
            let into: HashSet<_> = workload.targets.iter().map(|target| target.router_mac).collect();
            assert_eq!(into.len(), all / 2);
            // Each of these reaches a part of the networks behind the other port.
            let parts: HashSet<_> = workload
                .targets
                .iter()
                .map(|target| {
                    let std::net::IpAddr::V4(address) = target.destination else { panic!("IPv6") };
                    let part = (1 << 16) / u32::from(routers[1].interfaces_on_port);
                    (target.router_mac[4..].to_vec(), address.to_bits() / part)
                })
                .collect();
            assert_eq!(parts.len(), all / 2);
        }
    }
}
