//! A scenario as a TOML file (lab/README.md describes it).

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, Result};
use logic::{
    cores::{CoreId, Settings},
    plan::PortId,
    sim,
};
use serde::Deserialize;

use crate::built_in;

/// Built-in scenarios: name and text.
const BUILT_IN: [(&str, &str); 12] = [
    ("step", include_str!("../../scenarios/step.toml")),
    ("ramp", include_str!("../../scenarios/ramp.toml")),
    ("wobble", include_str!("../../scenarios/wobble.toml")),
    ("quarters", include_str!("../../scenarios/quarters.toml")),
    ("flash-crowd", include_str!("../../scenarios/flash-crowd.toml")),
    ("hot-step", include_str!("../../scenarios/hot-step.toml")),
    ("step-queues", include_str!("../../scenarios/step-queues.toml")),
    ("surge", include_str!("../../scenarios/surge.toml")),
    ("bursts", include_str!("../../scenarios/bursts.toml")),
    ("diurnal-8", include_str!("../../scenarios/diurnal-8.toml")),
    ("elephants-32", include_str!("../../scenarios/elephants-32.toml")),
    ("mixed-128", include_str!("../../scenarios/mixed-128.toml")),
];

/// A scenario with its name.
#[derive(Clone, Debug, PartialEq)]
pub struct Named {
    /// The name by which it was found.
    pub name: String,
    /// What it shows, in a line.
    pub description: String,
    /// What is simulated.
    pub scenario: sim::Scenario,
}

impl Named {
    /// A built-in one by its name, or one from a file.
    pub fn find(name_or_path: &str) -> Result<Self> {
        Self::parse(name_or_path, &built_in::text("scenario", &BUILT_IN, name_or_path)?)
    }

    /// All built-in scenarios.
    pub fn built_in() -> impl Iterator<Item = Result<Self>> {
        BUILT_IN.iter().map(|(name, text)| Self::parse(name, text))
    }

    pub(super) fn parse(name: &str, text: &str) -> Result<Self> {
        let file: File = toml::from_str(text).with_context(|| format!("scenario {name}"))?;
        let description = file.description.clone();
        let scenario = file.scenario().with_context(|| format!("scenario {name}"))?;
        scenario.check().with_context(|| format!("scenario {name}"))?;
        Ok(Self { name: name.to_owned(), description, scenario })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    description: String,
    seconds: f64,
    #[serde(default = "settle_seconds")]
    settle_seconds: f64,
    #[serde(default)]
    seed: u64,
    machine: Machine,
    #[serde(default)]
    cost: Cost,
    #[serde(default)]
    settings: Marks,
    #[serde(rename = "port")]
    ports: Vec<PortEntry>,
    #[serde(rename = "source", default)]
    sources: Vec<Source>,
    #[serde(rename = "application", default)]
    applications: Vec<Application>,
}

fn settle_seconds() -> f64 {
    5.0
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Machine {
    cores: u16,
    #[serde(default = "one")]
    nodes: u16,
    #[serde(default = "one")]
    siblings: u16,
    #[serde(default = "sibling_speed")]
    sibling_speed: f64,
}

fn one() -> u16 {
    1
}

/// Two hyper-threads together do a fifth more than one alone (P10: 12 to 30 %).
pub(super) const SIBLING_SPEED: f64 = 0.6;

fn sibling_speed() -> f64 {
    SIBLING_SPEED
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Cost {
    ns_per_packet: u64,
    wake_ns: u64,
    hand_on_ns: u64,
    take_ns: u64,
    rouse_ns: u64,
    start_ns: u64,
}

impl Default for Cost {
    fn default() -> Self {
        let sim::Cost { ns_per_packet, wake_ns, hand_on_ns, take_ns, rouse_ns, start_ns } =
            sim::Cost::MILLRACE;
        Self { ns_per_packet, wake_ns, hand_on_ns, take_ns, rouse_ns, start_ns }
    }
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Marks {
    allowed: Option<BTreeSet<CoreId>>,
    high: f64,
    low: f64,
    hold_seconds: f64,
}

impl Default for Marks {
    fn default() -> Self {
        let Settings { allowed, high, low, hold, .. } = Settings::default();
        Self { allowed, high, low, hold_seconds: hold.as_secs_f64() }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PortEntry {
    queues: u16,
    node: Option<u16>,
    #[serde(default = "ring")]
    ring: u32,
}

/// The default of drivers of fast NICs.
pub(super) const RING: u32 = 1024;

fn ring() -> u32 {
    RING
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Source {
    #[serde(default)]
    port: PortId,
    flows: Option<u32>,
    rate: Rate,
    #[serde(default)]
    arrivals: Arrivals,
}

/// Rates, in seconds and packets per second.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Rate {
    Constant(u64),
    Line(Vec<(f64, u64)>),
    Wave { low: u64, high: u64, period: f64 },
    OnOff { rate: u64, on: f64, off: f64 },
    Elephants { flows_per_second: u32, lasting: f64, least: u32, most: u32 },
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Arrivals {
    #[default]
    Even,
    Poisson,
    Bursts(u32),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Application {
    cores: Option<Vec<CoreId>>,
    wants: f64,
    #[serde(default)]
    sharing: Sharing,
    #[serde(default)]
    pinned: bool,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Sharing {
    #[default]
    Rest,
    Fair,
}

fn duration(seconds: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(seconds).with_context(|| format!("{seconds} seconds"))
}

/// A fraction of 1, in thousandths.
fn thousandths(fraction: f64) -> u16 {
    (fraction * 1000.0).round() as u16
}

impl File {
    fn scenario(self) -> Result<sim::Scenario> {
        let File { machine, cost, settings, .. } = self;
        let Cost { ns_per_packet, wake_ns, hand_on_ns, take_ns, rouse_ns, start_ns } = cost;
        let Marks { allowed, high, low, hold_seconds } = settings;
        Ok(sim::Scenario {
            machine: sim::Machine {
                cores: machine.cores,
                nodes: machine.nodes,
                siblings: machine.siblings,
                sibling_speed: thousandths(machine.sibling_speed),
            },
            cost: sim::Cost { ns_per_packet, wake_ns, hand_on_ns, take_ns, rouse_ns, start_ns },
            ports: self.ports.iter().map(PortEntry::port).collect(),
            sources: self.sources.into_iter().map(Source::source).collect::<Result<_>>()?,
            applications: self.applications.into_iter().map(Application::application).collect(),
            settings: Settings { allowed, high, low, hold: duration(hold_seconds)?, ..Settings::default() },
            settle: duration(self.settle_seconds)?,
            duration: duration(self.seconds)?,
            seed: self.seed,
        })
    }
}

impl PortEntry {
    fn port(&self) -> sim::SimPort {
        sim::SimPort { queues: self.queues, node: self.node, ring: self.ring }
    }
}

impl Source {
    fn source(self) -> Result<sim::Source> {
        let arrivals = match self.arrivals {
            Arrivals::Even => sim::Arrivals::Even,
            Arrivals::Poisson => sim::Arrivals::Poisson,
            Arrivals::Bursts(packets) => sim::Arrivals::Bursts(packets),
        };
        Ok(sim::Source { port: self.port, flows: self.flows, rate: self.rate.rate()?, arrivals })
    }
}

impl Rate {
    fn rate(self) -> Result<sim::Rate> {
        let point = |(seconds, pps): (f64, u64)| Ok(sim::Point { at: duration(seconds)?, pps });
        Ok(match self {
            Self::Constant(pps) => sim::Rate::Line(vec![point((0.0, pps))?]),
            Self::Line(points) => sim::Rate::Line(points.into_iter().map(point).collect::<Result<_>>()?),
            Self::Wave { low, high, period } => {
                sim::Rate::Wave { low_pps: low, high_pps: high, period: duration(period)? }
            }
            Self::OnOff { rate, on, off } => {
                sim::Rate::OnOff { pps: rate, on: duration(on)?, off: duration(off)? }
            }
            Self::Elephants { flows_per_second, lasting, least, most } => sim::Rate::Elephants {
                flows_per_second,
                lasting: duration(lasting)?,
                least_pps: least,
                most_pps: most,
            },
        })
    }
}

impl Application {
    fn application(self) -> sim::Application {
        let sharing = match self.sharing {
            Sharing::Rest => sim::Sharing::Rest,
            Sharing::Fair => sim::Sharing::Fair,
        };
        sim::Application { cores: self.cores, wants: thousandths(self.wants), sharing, pinned: self.pinned }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readmes_example_can_be_simulated() {
        let readme = include_str!("../../README.md");
        let text = readme.rsplit_once("```toml\n").unwrap().1.split_once("```").unwrap().0;
        let scenario = Named::parse("README", text).unwrap().scenario;
        assert_eq!((scenario.machine.cores, scenario.ports.len(), scenario.sources.len()), (8, 2, 3));
        assert_eq!((scenario.cost, scenario.settle), (sim::Cost::MILLRACE, Duration::from_secs(5)));
        let application = &scenario.applications[0];
        assert_eq!((application.wants, application.sharing), (1000, sim::Sharing::Rest));
        scenario.run(&sim::Placement::RssHash).unwrap();
    }

    #[test]
    fn faults_of_a_file_are_reported() {
        let good = "description = \"it\"\nseconds = 1\n[machine]\ncores = 2\n[[port]]\nqueues = 2\n";
        Named::parse("it", good).unwrap();
        let bad = |more: &str| format!("{:#}", Named::parse("it", &format!("{good}{more}")).unwrap_err());
        assert_eq!(
            bad("[settings]\nhold_seconds = -1"),
            "scenario it: -1 seconds: cannot convert float seconds to Duration: value is negative"
        );
        assert_eq!(bad("[[source]]\nport = 1\nrate.constant = 1"), "scenario it: source: a port that exists");
        assert!(bad("color = 1").contains("unknown field `color`"));
        let error = Named::find("flood").unwrap_err().to_string();
        assert!(error.contains("called flood") && error.contains("step, ramp, wobble"), "{error}");
    }
}
