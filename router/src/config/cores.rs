//! `[cores]`: how queues are placed on cores, and which cores applications have.

use super::Interval;
use crate::base::{BadValue, PortName};
use logic::{cores::CoreId, cpus};
use serde::{Deserialize, Deserializer, de::Error as _};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
    path::PathBuf,
    str::FromStr,
    time::Duration,
};

/// How queues are placed on cores. `logic::cores` says what the numbers mean.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CoresSettings {
    pub policy: PlacementPolicy,
    /// Cores that may forward; `None`: all.
    pub allowed: Option<CoreList>,
    /// A core with more to forward gives queues away, percent.
    pub high: Percent,
    /// A core is released when the others would then have no more than this, percent; below `high`.
    pub low: Percent,
    /// How long a lower load must last before a core is released.
    pub hold: Interval,
    /// The part of a forwarding core that applications keep, percent; `None`: what Linux gives them.
    pub floor: Option<Floor>,
    /// The directory of the control group that gets the cores that do not forward.
    pub serve: Option<PathBuf>,
    /// How long a forwarding core may take to wake up; `None`: the default of [`CoresSettings::resume_us`].
    pub resume_latency: Option<ResumeLatency>,
    /// With the policy `fixed`: the core of each queue of a port.
    pub fixed: BTreeMap<PortName, Vec<CoreId>>,
    /// Workloads that are not discovered automatically.
    pub workloads: Vec<DeclaredWorkload>,
}

impl Default for CoresSettings {
    fn default() -> Self {
        Self {
            policy: PlacementPolicy::Pack,
            allowed: None,
            high: Percent(85),
            low: Percent(70),
            hold: Interval(Duration::from_secs(2)),
            floor: None,
            serve: None,
            resume_latency: None,
            fixed: BTreeMap::new(),
            workloads: Vec::new(),
        }
    }
}

impl CoresSettings {
    /// How long a forwarding core may take to wake up, microseconds; `None`: as the machine has it. The default is 0
    /// where queues are placed.
    pub fn resume_us(&self) -> Option<u32> {
        match self.resume_latency {
            Some(ResumeLatency::Within(us)) => Some(us),
            None if self.policy != PlacementPolicy::Off => Some(0),
            Some(ResumeLatency::Any) | None => None,
        }
    }

    /// Checks the values against each other.
    ///
    /// # Errors
    /// Names the values that do not fit together.
    pub fn check(&self) -> Result<(), BadValue> {
        if self.low.0 >= self.high.0 {
            return Err(BadValue(format!(
                "cores.low is {} and cores.high {}: a core would be given back and taken again; low must be below high",
                self.low.0, self.high.0
            )));
        }
        if self.policy != PlacementPolicy::Fixed && !self.fixed.is_empty() {
            return Err(BadValue("cores.fixed works only with policy = \"fixed\"".into()));
        }
        if self.policy == PlacementPolicy::Off && (self.floor.is_some() || self.serve.is_some()) {
            return Err(BadValue(
                "with cores.policy = \"off\" cores.floor and cores.serve do nothing: leave them out".into(),
            ));
        }
        if let Some(serve) = self.serve.as_ref().filter(|serve| !serve.is_absolute()) {
            return Err(BadValue(format!(
                "cores.serve is {serve:?}: it must be the absolute path of a directory of the cpuset controller"
            )));
        }
        Ok(())
    }
}

/// How the cores of queues are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementPolicy {
    /// On the fewest cores that carry the load.
    Pack,
    /// On all cores in turn.
    Spread,
    /// As the configuration says.
    Fixed,
    /// Not at all: queues are observed and left alone.
    Off,
}

impl PlacementPolicy {
    /// Its name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pack => "pack",
            Self::Spread => "spread",
            Self::Fixed => "fixed",
            Self::Off => "off",
        }
    }
}

impl FromStr for PlacementPolicy {
    type Err = BadValue;
    fn from_str(s: &str) -> Result<Self, BadValue> {
        let all = [Self::Pack, Self::Spread, Self::Fixed, Self::Off];
        all.into_iter().find(|policy| policy.name() == s).ok_or_else(|| {
            BadValue(format!("{s:?} is not allowed: \"pack\", \"spread\", \"fixed\" or \"off\""))
        })
    }
}

/// The core on which the stack works for sockets of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalDelivery {
    /// The core that receives the packets.
    Stay,
    /// The core where the socket is read. The kernel needs a table for this, which belongs to the whole machine.
    Follow,
}

impl FromStr for LocalDelivery {
    type Err = BadValue;
    fn from_str(s: &str) -> Result<Self, BadValue> {
        match s {
            "stay" => Ok(Self::Stay),
            "follow" => Ok(Self::Follow),
            _ => Err(BadValue(format!("{s:?} is not allowed: \"stay\" or \"follow\""))),
        }
    }
}

/// Cores, as Linux writes them: `0-3,8`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreList(pub BTreeSet<CoreId>);

impl FromStr for CoreList {
    type Err = BadValue;
    fn from_str(s: &str) -> Result<Self, BadValue> {
        cpus::parse_list(s).filter(|cores| !cores.is_empty()).map(Self).ok_or_else(|| {
            BadValue(format!("{s:?} is not allowed: a list of core numbers, such as \"0-3,8\""))
        })
    }
}

bounded!(
    /// A part of a core's time.
    Percent, |v| (1..=100).contains(&v), "1 to 100 percent of a core"
);

bounded!(
    /// The part of a core's time that applications keep.
    Floor, |v| (5..=95).contains(&v), "5 to 95 percent of a core"
);

/// How long a packet may wait, microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency(pub u32);

impl FromStr for Latency {
    type Err = BadValue;
    fn from_str(s: &str) -> Result<Self, BadValue> {
        microseconds(s, 10..=1000).map(Self)
    }
}

/// How long a core may take to wake up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumeLatency {
    /// At most so many microseconds; 0: it does not sleep.
    Within(u32),
    /// As the machine has it.
    Any,
}

impl FromStr for ResumeLatency {
    type Err = BadValue;
    fn from_str(s: &str) -> Result<Self, BadValue> {
        if s == "any" {
            return Ok(Self::Any);
        }
        let within = microseconds(s, 0..=1000).map(Self::Within);
        within.map_err(|BadValue(why)| BadValue(format!("{why}, or \"any\"")))
    }
}

pub(super) fn microseconds(s: &str, allowed: RangeInclusive<u32>) -> Result<u32, BadValue> {
    let us = s.strip_suffix("us").and_then(|us| us.parse().ok()).filter(|us| allowed.contains(us));
    us.ok_or_else(|| {
        let (least, most) = (allowed.start(), allowed.end());
        BadValue(format!("{s:?} is not allowed: a time from {least}us to {most}us, such as \"50us\""))
    })
}

impl Percent {
    pub fn fraction(self) -> f64 {
        f64::from(self.0) / 100.0
    }
}

impl Floor {
    pub fn fraction(self) -> f64 {
        f64::from(self.0) / 100.0
    }
}

/// A workload that is pinned to cores, according to the configuration (V2).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeclaredWorkload {
    pub name: String,
    pub cores: CoreList,
}

/// Keys, each with an example.
pub(super) const FORMS: [(&str, &str); 10] = [
    ("cores.policy", "policy = \"pack\""),
    ("cores.allowed", "allowed = \"0-3,8\""),
    ("cores.high", "high = 85"),
    ("cores.low", "low = 70"),
    ("cores.hold", "hold = \"2s\""),
    ("cores.floor", "floor = 40"),
    ("cores.serve", "serve = \"/sys/fs/cgroup/apps\""),
    ("cores.resume_latency", "resume_latency = \"0us\""),
    ("cores.fixed", "fixed = { eth1 = [0, 1] }"),
    ("cores.workloads", "workloads = [{ name = \"database\", cores = \"4-7\" }]"),
];

#[cfg(test)]
mod tests {
    use super::{super::Config, *};
    use std::path::Path;

    fn parse(text: &str) -> Result<CoresSettings, String> {
        Config::parse(Path::new("m.toml"), text).map(|config| config.cores).map_err(|e| e.to_string())
    }

    #[test]
    fn all_keys() {
        let cores = parse(
            r#"
            [cores]
            policy = "fixed"
            allowed = "0-1,3"
            high = 90
            low = 50
            hold = "5s"
            floor = 40
            serve = "/sys/fs/cgroup/apps"
            resume_latency = "0us"
            fixed = { eth1 = [0, 3], eth2 = [1] }
            workloads = [{ name = "db", cores = "2" }]
            "#,
        )
        .unwrap();
        let port = |name: &str| name.parse::<PortName>().unwrap();
        assert_eq!(
            cores,
            CoresSettings {
                policy: PlacementPolicy::Fixed,
                allowed: Some(CoreList([0, 1, 3].into())),
                high: Percent(90),
                low: Percent(50),
                hold: Interval(Duration::from_secs(5)),
                floor: Some(Floor(40)),
                serve: Some("/sys/fs/cgroup/apps".into()),
                resume_latency: Some(ResumeLatency::Within(0)),
                fixed: BTreeMap::from([(port("eth1"), vec![0, 3]), (port("eth2"), vec![1])]),
                workloads: vec![DeclaredWorkload { name: "db".into(), cores: CoreList([2].into()) }],
            }
        );
        assert_eq!(cores.check(), Ok(()));
        assert_eq!(parse("").unwrap(), CoresSettings::default());
    }

    #[test]
    fn errors_name_line_key_and_what_is_allowed() {
        for (text, parts) in [
            ("policy = \"pac\"", &["m.toml:2: cores.policy: ", "\"pac\" is not allowed: \"pack\""][..]),
            ("policy = 1", &["m.toml:2: cores.policy: ", "example: policy = \"pack\""]),
            ("allowed = \"3-1\"", &["m.toml:2: cores.allowed: ", "\"0-3,8\""]),
            ("allowed = \"\"", &["m.toml:2: cores.allowed: ", "\"0-3,8\""]),
            ("high = 0", &["m.toml:2: cores.high: ", "0 is not allowed: 1 to 100"]),
            ("high = 300", &["m.toml:2: cores.high: ", "300 is not allowed: 1 to 100"]),
            ("floor = 99", &["m.toml:2: cores.floor: ", "99 is not allowed: 5 to 95"]),
            ("serve = 1", &["m.toml:2: cores.serve: ", "example: serve = \"/sys/fs/cgroup/apps\""]),
            (
                "resume_latency = \"2ms\"",
                &[
                    "m.toml:2: cores.resume_latency: ",
                    "\"2ms\" is not allowed: a time from 0us to 1000us",
                    "or \"any\"",
                ],
            ),
            ("hold = \"1s\"", &["m.toml:2: cores.hold: ", "2s to 24h"]),
            ("fixed = { eth1 = 1 }", &["m.toml:2: cores.fixed: ", "example: fixed = { eth1 = [0, 1] }"]),
            ("workloads = [{ cores = \"1\" }]", &["m.toml:2: cores.workloads: ", "missing field 'name'"]),
        ] {
            let error = parse(&format!("[cores]\n{text}")).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{text}: {error}");
        }
        let check = |text: &str| parse(&format!("[cores]\n{text}")).unwrap().check().unwrap_err().to_string();
        assert!(check("low = 85").contains("cores.low is 85 and cores.high 85"));
        assert!(check("serve = \"apps\"").contains("absolute path"));
        assert!(check("policy = \"off\"\nfloor = 40").contains("leave them out"));
        assert!(check("fixed = { eth1 = [0] }").contains("policy = \"fixed\""));
    }

    #[test]
    fn cores_wake_up_at_once_where_queues_are_placed() {
        let resume = |text: &str| parse(&format!("[cores]\n{text}")).unwrap().resume_us();
        assert_eq!(resume(""), Some(0));
        assert_eq!(resume("policy = \"off\""), None);
        assert_eq!(resume("policy = \"off\"\nresume_latency = \"20us\""), Some(20));
        assert_eq!(resume("resume_latency = \"any\""), None);
    }
}
