//! `millrace-lab plan`: how many cores of a machine forward some traffic, and what is left for applications. The
//! allocator of `millrace` decides, in virtual time ([`logic::sim`]). Needs no root.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use logic::{
    cores::{Policy, Settings},
    sim::{
        Application, Arrivals, Cost, Machine, Placement, Point, Rate, Results, Scenario, Sharing, SimPort,
        Source,
    },
};
use serde_json::{Value, json};

use super::Named;
use crate::record::Output;

/// What to plan for.
#[derive(Args, Clone, Debug)]
pub struct PlanOptions {
    /// A built-in scenario of `sim`, or a file that describes one, in place of the options below
    #[arg(conflicts_with = "Described")]
    scenario: Option<String>,
    #[command(flatten)]
    described: Described,
    /// File for raw results, as JSON lines
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Machine and traffic in a few words; a file can say more.
#[derive(Args, Clone, Debug)]
pub struct Described {
    /// Traffic, million packets per second: the mean, or for `diurnal` the peak
    #[arg(long, required_unless_present = "scenario", value_name = "MPPS")]
    mpps: Option<f64>,
    /// Cores, 1 to 128 [default: those of this machine]
    #[arg(long, value_name = "N")]
    cores: Option<u16>,
    /// Two of the cores share a physical core
    #[arg(long)]
    hyper_threads: bool,
    /// Ports that the traffic comes to, evenly
    #[arg(long, default_value_t = 1, value_name = "N")]
    ports: u16,
    /// RX queues of each port [default: as many as cores]
    #[arg(long, value_name = "N")]
    queues: Option<u16>,
    /// Packets that a queue holds
    #[arg(long, default_value_t = super::file::RING, value_name = "PACKETS")]
    ring: u32,
    /// Pattern in which packets come
    #[arg(long, value_enum, default_value_t)]
    traffic: Traffic,
    /// Number of flows, which are hashed to queues; for `elephants` it follows from the rate
    #[arg(long, default_value_t = 10_000, value_name = "N")]
    flows: u32,
    /// Router whose measured cost of a packet is used
    #[arg(long, value_enum, default_value_t)]
    profile: Profile,
    /// Another cost of a packet on a saturated core, such as the one that `millrace-lab capacity` measures on your
    /// machine
    #[arg(long, value_name = "NS")]
    packet_ns: Option<u64>,
    /// Another cost of a wake-up
    #[arg(long, value_name = "NS")]
    wake_ns: Option<u64>,
    /// Part of each core that applications want, 0 to 1
    #[arg(long, default_value_t = 1.0, value_name = "FRACTION")]
    applications: f64,
    /// Length of the counted time, after 5 seconds for settling
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS")]
    seconds: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Traffic {
    /// Constant rate, packets at equal distances
    Constant,
    /// Constant rate, packets independent of each other
    #[default]
    Poisson,
    /// All packets within a quarter of the time, in bursts of about 10 ms
    Bursty,
    /// Up from a tenth of the peak and back, in a day of 20 s
    Diurnal,
    /// A few flows make most of it; each lasts a second
    Elephants,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Profile {
    /// Millrace with the full table, on veth
    #[default]
    Millrace,
    /// Linux with one route, on veth
    Linux,
}

/// Rates of elephants, packets per second: shape 4/3 between them, so the mean is `least * (4 - 3 * (least / most)^(1/3))`.
const ELEPHANTS: (u32, u32) = (300, 500_000);
/// Maximum number of flows of a scenario at once.
const MOST_ELEPHANTS: f64 = 1e5;

/// Policies to compare.
const POLICIES: [(&str, Policy); 2] = [("pack", Policy::Pack), ("spread", Policy::Spread)];

/// Prints a table, and a sentence with the conclusion.
pub fn run(options: &PlanOptions, command: Vec<String>) -> Result<()> {
    let output = Output { path: options.json.clone(), command };
    output.check(&options.scenario.iter().map(PathBuf::from).collect::<Vec<_>>())?;
    let named = match &options.scenario {
        Some(name) => Named::find(name)?,
        None => options.described.named()?,
    };
    let plan = Plan::new(&named.scenario)?;
    let mut recorder = output.recorder()?;
    for line in plan.lines(&named) {
        recorder.line(&line)?;
    }
    println!("{}\n\n{}\n{}", named.description, plan.table(), plan.sentences());
    Ok(())
}

impl Described {
    fn named(&self) -> Result<Named> {
        let scenario = self.scenario()?;
        scenario.check()?;
        Ok(Named { name: "options".into(), description: self.words(&scenario), scenario })
    }

    fn scenario(&self) -> Result<Scenario> {
        let mpps = self.mpps.unwrap_or(0.0);
        ensure!(mpps > 0.0 && mpps <= 1000.0, "--mpps {mpps}: more than 0, at most 1000");
        ensure!((0.0..=1.0).contains(&self.applications), "--applications {}: 0 to 1", self.applications);
        ensure!((1..=64).contains(&self.ports), "--ports {}: 1 to 64", self.ports);
        let cores = match self.cores {
            Some(cores) => cores,
            None => std::thread::available_parallelism()?.get().min(128) as u16,
        };
        let measured = match self.profile {
            Profile::Millrace => Cost::MILLRACE,
            Profile::Linux => Cost::LINUX,
        };
        let cost = Cost {
            ns_per_packet: self.packet_ns.unwrap_or(measured.ns_per_packet),
            wake_ns: self.wake_ns.unwrap_or(measured.wake_ns),
            ..measured
        };
        let port = SimPort { queues: self.queues.unwrap_or(cores), node: None, ring: self.ring };
        let rate = self.traffic.rate(mpps * 1e6 / f64::from(self.ports))?;
        let arrivals = if self.traffic == Traffic::Constant { Arrivals::Even } else { Arrivals::Poisson };
        let source = |port| Source { port, flows: Some(self.flows), rate: rate.clone(), arrivals };
        let application = Application {
            cores: None,
            wants: (self.applications * 1000.0).round() as u16,
            sharing: Sharing::Rest,
            pinned: false,
        };
        Ok(Scenario {
            machine: Machine {
                cores,
                nodes: 1,
                siblings: if self.hyper_threads { 2 } else { 1 },
                sibling_speed: (super::file::SIBLING_SPEED * 1000.0) as u16,
            },
            cost,
            ports: vec![port; self.ports.into()],
            sources: (0..self.ports).map(|port| source(port as u8)).collect(),
            applications: vec![application],
            // As in `millrace` by default: cores do not share a queue.
            settings: Settings { splits: false, ..Settings::default() },
            settle: Duration::from_secs(5),
            duration: Duration::try_from_secs_f64(self.seconds).context("--seconds")?,
            seed: 1,
        })
    }

    /// Machine and traffic, in one line.
    fn words(&self, scenario: &Scenario) -> String {
        let Machine { cores, siblings, .. } = scenario.machine;
        let threads = if siblings == 2 { ", two for each physical one" } else { "" };
        let ports = if self.ports == 1 { "1 port".into() } else { format!("{} ports", self.ports) };
        let queues = scenario.ports.first().map_or(0, |port| port.queues);
        let traffic = self.traffic.to_possible_value().map_or(String::new(), |value| value.get_name().into());
        let flows = if self.traffic == Traffic::Elephants {
            String::new()
        } else {
            format!(", {} flows", self.flows)
        };
        format!(
            "{cores} cores{threads}; {ports} of {queues} queues; {} Mpps, {traffic}{flows}; {} ns a packet, {} ns a wake-up; \
             applications want {:.0} % of each core",
            self.mpps.unwrap_or(0.0),
            scenario.cost.ns_per_packet,
            scenario.cost.wake_ns,
            self.applications * 100.0
        )
    }
}

impl Traffic {
    fn rate(self, pps: f64) -> Result<Rate> {
        let level = |pps: f64| pps.round() as u64;
        Ok(match self {
            Traffic::Constant | Traffic::Poisson => {
                Rate::Line(vec![Point { at: Duration::ZERO, pps: level(pps) }])
            }
            Traffic::Bursty => Rate::OnOff {
                pps: level(pps * 4.0),
                on: Duration::from_millis(10),
                off: Duration::from_millis(30),
            },
            Traffic::Diurnal => Rate::Wave {
                low_pps: level(pps / 10.0),
                high_pps: level(pps),
                period: Duration::from_secs(20),
            },
            Traffic::Elephants => {
                let (least, most) = ELEPHANTS;
                let mean = f64::from(least) * (4.0 - 3.0 * (f64::from(least) / f64::from(most)).cbrt());
                let flows = (pps / mean).round();
                ensure!(
                    (1.0..=MOST_ELEPHANTS).contains(&flows),
                    "elephants: a port has {:.4} to {:.0} Mpps of them",
                    mean / 1e6,
                    MOST_ELEPHANTS * mean / 1e6
                );
                Rate::Elephants {
                    flows_per_second: flows as u32,
                    lasting: Duration::from_secs(1),
                    least_pps: least,
                    most_pps: most,
                }
            }
        })
    }
}

/// A scenario with each policy.
struct Plan {
    scenario: Scenario,
    results: Vec<(&'static str, Results)>,
}

impl Plan {
    fn new(scenario: &Scenario) -> Result<Plan> {
        let each = |(name, policy)| Ok((name, scenario.run(&Placement::Allocator(policy))?));
        Ok(Plan {
            scenario: scenario.clone(),
            results: POLICIES.into_iter().map(each).collect::<Result<_>>()?,
        })
    }

    /// How many cores this time filled.
    fn cores(&self, time: Duration) -> f64 {
        time.as_secs_f64() / self.scenario.duration.as_secs_f64()
    }

    /// Number of cores that the packets would take if cores never slept.
    fn needed(&self, results: &Results) -> f64 {
        let ns = results.sent as f64 * self.scenario.cost.ns_per_packet as f64;
        ns / 1e9 / self.scenario.duration.as_secs_f64()
    }

    /// Table in Markdown.
    fn table(&self) -> String {
        let head =
            ["", "cores, p50 (most)", "of their time", "lost", "latency p99 (us)", "applications keep"];
        let row = |(policy, results): &(&str, Results)| {
            let p99_us = results.latency.quantile_ns(0.99).unwrap_or(0) as f64 / 1e3;
            let (got, alone) = (self.cores(results.applications), self.cores(results.applications_alone));
            let keep = match results.application_share() {
                Some(share) => format!("{got:.2} of {alone:.2} cores ({:.0} %)", share * 100.0),
                None => "-".into(),
            };
            format!(
                "| {policy} | {} ({}) | {:.2} cores | {} | {p99_us:.1} | {keep} |\n",
                results.cores.quantile(0.5),
                results.cores.most(),
                self.cores(results.forwarding),
                super::lost(results)
            )
        };
        let rows: String = self.results.iter().map(row).collect();
        format!("| {} |\n|{}\n{rows}", head.join(" | "), "---|".repeat(head.len()))
    }

    /// The conclusion, mainly about packing.
    fn sentences(&self) -> String {
        let Some((_, packed)) = self.results.first() else { return String::new() };
        let cores = self.scenario.machine.cores;
        let (needed, most) = (self.needed(packed), packed.cores.most());
        if packed.dropped == 0 {
            let usual = packed.cores.quantile(0.5);
            let burst = if most > usual { format!(", {most} at times,") } else { String::new() };
            let left = packed.application_share().map_or(String::new(), |_| {
                format!(" applications keep {:.1} cores.", self.cores(packed.applications))
            });
            return format!("Packed, {usual} of {cores} cores{burst} carry it without loss;{left}\n")
                .replace(";\n", ".\n");
        }
        let others = self.results.iter().skip(1).map(|(name, results)| {
            let percent = results.loss() * 100.0;
            if results.dropped == 0 { format!("{name} nothing") } else { format!("{name} {percent:.3} %") }
        });
        let mut text = format!(
            "Packed, {:.3} % is lost; {}. ",
            packed.loss() * 100.0,
            others.collect::<Vec<_>>().join(", ")
        );
        let high = self.scenario.settings.high;
        text += &if needed > f64::from(cores) {
            let least = (needed / high).ceil();
            format!(
                "This machine is too small: all packets take {needed:.2} cores, so at least {least} are wanted.\n"
            )
        } else {
            let mpps = 1e3 / self.scenario.cost.ns_per_packet as f64;
            format!(
                "All packets take {needed:.2} cores: at times a queue brings more than a core carries ({mpps:.2} Mpps), or more than \
                 its ring holds until another core helps. More queues, larger rings or another placement help, not more cores.\n"
            )
        };
        text
    }

    /// Raw results, one line for each policy.
    fn lines(&self, named: &Named) -> Vec<Value> {
        let line = |(policy, results): &(&str, Results)| {
            let mut line = super::line(named, policy, results);
            line["case"] = "plan".into();
            line["parameters"]["description"] = named.description.clone().into();
            line["sample"]["cores_p50"] = results.cores.quantile(0.5).into();
            line["sample"]["forwarding_cores"] = json!(self.cores(results.forwarding));
            line["sample"]["application_cores"] = json!(self.cores(results.applications));
            line["sample"]["needed_cores"] = json!(self.needed(results));
            line
        };
        self.results.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests;
