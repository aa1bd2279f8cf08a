//! The configuration: the TOML file, checked, and merged with the command line.
//!
//! A wrong file is refused. The error names the file, the line, the key and what is allowed. The daemon never starts
//! with a part of a configuration.

use crate::{
    base::{BadValue, PortName, whole},
    linux::{multipath::Ecmp, netns::Source},
};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error as _},
};
use std::{
    io, mem,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};
use toml::Spanned;

/// Everything `millrace run` needs to know, from file and command line.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Devices to attach to, by name in the daemon's own namespace.
    pub ports: Vec<PortName>,
    /// Namespaces to accelerate besides those that are discovered automatically.
    pub routers: Vec<Source>,
    /// How long forwarding goes on without a daemon that confirms the mirror.
    pub heartbeat: HeartbeatTime,
    /// Attach in generic mode (slower, any driver) where a port has no native XDP.
    pub generic: bool,
    /// How the next hop of a multipath route is chosen.
    pub ecmp: Ecmp,
    pub api: ApiSettings,
    pub policing: Policing,
    pub firewall: FirewallSettings,
    pub limits: Limits,
    pub flows: Flows,
    pub cores: CoresSettings,
    pub shares: SharesSettings,
    pub openflow: OpenFlowSettings,
    pub metrics: MetricsSettings,
    pub web: WebSettings,
    pub export: ExportSettings,
    pub workers: WorkersSettings,
    pub experimental: Experimental,
    /// As written in the file. [`Config::sas`] has the checked form.
    #[doc(hidden)]
    pub crypto: Option<LibraryText>,
    #[doc(hidden)]
    pub sas_later: Vec<Spanned<paths::Name>>,
    #[serde(rename = "sa")]
    #[doc(hidden)]
    pub sa_settings: Vec<SaSettings>,
    /// Security associations of paths.
    #[serde(skip)]
    pub sas: SasConfig,
    /// As written in the file. [`Config::paths`] has the checked form.
    #[serde(rename = "path")]
    #[doc(hidden)]
    pub path_settings: Vec<PathSettings>,
    /// Forwarding paths of the user plane.
    #[serde(skip)]
    pub paths: Vec<DaemonPath>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            ports: Vec::new(),
            routers: Vec::new(),
            heartbeat: HeartbeatTime(Duration::from_secs(3)),
            generic: false,
            ecmp: Ecmp::Auto,
            api: ApiSettings::default(),
            policing: Policing::default(),
            firewall: FirewallSettings::default(),
            limits: Limits::default(),
            flows: Flows::default(),
            cores: CoresSettings::default(),
            shares: SharesSettings::default(),
            openflow: OpenFlowSettings::default(),
            metrics: MetricsSettings::default(),
            web: WebSettings::default(),
            export: ExportSettings::default(),
            workers: WorkersSettings::default(),
            experimental: Experimental::default(),
            crypto: None,
            sas_later: Vec::new(),
            sa_settings: Vec::new(),
            sas: SasConfig::default(),
            path_settings: Vec::new(),
            paths: Vec::new(),
        }
    }
}

/// Rates of packets that go to the kernel, per core and router; 0: unlimited.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policing {
    /// Packets of the classes `slow` and `exception` (docs/reference/reasons.md).
    pub exception_pps: Rate,
    /// Packets of ARP and neighbour discovery.
    pub control_pps: Rate,
}

impl Default for Policing {
    fn default() -> Self {
        Self { exception_pps: Rate(100_000), control_pps: Rate(10_000) }
    }
}

/// Firewalls and NAT of routers.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FirewallSettings {
    /// Which established connections bypass rules that accept them.
    pub established: Established,
    /// The most fast connections of all routers.
    pub connections: ConnectionCount,
}

impl Default for FirewallSettings {
    fn default() -> Self {
        Self { established: Established::Udp, connections: ConnectionCount(65_536) }
    }
}

/// Which established connections bypass rules that accept them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Established {
    /// Those of UDP; and those of TCP that rules add to a flow table.
    Udp,
    /// Those of UDP and TCP. Linux then no longer checks sequence numbers.
    Fast,
    /// None.
    Linux,
}

impl FromStr for Established {
    type Err = BadValue;
    fn from_str(s: &str) -> Result<Self, BadValue> {
        match s {
            "udp" => Ok(Established::Udp),
            "fast" => Ok(Established::Fast),
            "linux" => Ok(Established::Linux),
            _ => Err(BadValue(format!("{s:?} is not allowed: \"udp\", \"fast\" or \"linux\""))),
        }
    }
}

/// Limits of memory and of namespaces.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// The most memory of all tables together, MiB. Tables start small and grow to this size. The kernel serves what
    /// does not fit, with the reason `map_full`.
    pub memory_mib: MemoryMib,
    /// The most routes of a network namespace, IPv4 and IPv6 together. The kernel serves a namespace with more,
    /// unless it is the host's.
    pub routes_per_namespace: RouteCount,
    /// The most network devices of a namespace, likewise.
    pub devices_per_namespace: DeviceCount,
    /// The most watched namespaces of one owner. Configured ones and those of root do not count.
    pub namespaces_per_owner: NamespaceCount,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_mib: MemoryMib(2048),
            routes_per_namespace: RouteCount(24_576),
            devices_per_namespace: DeviceCount(4096),
            namespaces_per_owner: NamespaceCount(16),
        }
    }
}

/// Flow rules. Their memory is taken with the first rule; [`crate::switch::capacity`] says how much.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Flows {
    /// The number of rules for which there is always room. The maps have some more rows, for rules that a batch
    /// replaces, and these rows can hold rules, too.
    pub rules: RuleCount,
    /// What happens to a packet that no rule matches.
    pub miss: Miss,
    /// The file of the rules that apply from the start.
    pub file: Option<PathBuf>,
}

impl Default for Flows {
    fn default() -> Self {
        Self { rules: RuleCount(65_536), miss: Miss::Normal, file: None }
    }
}

/// What happens to a packet that no rule of table 0 matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    /// It is routed, as without rules.
    Normal,
    /// It goes to the controllers (OpenFlow 1.0 section 3.4).
    Controller,
    Drop,
}

impl FromStr for Miss {
    type Err = BadValue;
    fn from_str(s: &str) -> Result<Self, BadValue> {
        Ok(match s {
            "normal" => Miss::Normal,
            "controller" => Miss::Controller,
            "drop" => Miss::Drop,
            _ => {
                return Err(BadValue(format!(
                    "{s:?} is not allowed: \"normal\", \"controller\" or \"drop\""
                )));
            }
        })
    }
}

/// A number with an allowed range. It is checked while the file is read, so that the error can name the line.
macro_rules! bounded {
    ($(#[$doc:meta])* $name:ident, $check:expr, $allowed:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name(pub u32);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let value = i64::deserialize(d)?;
                let check: fn(u32) -> bool = $check;
                match u32::try_from(value) {
                    Ok(v) if check(v) => Ok(Self(v)),
                    _ => Err(D::Error::custom(format!("{value} is not allowed: {}", $allowed))),
                }
            }
        }
    };
}

bounded!(
    /// Packets per second.
    Rate, |v| v <= 100_000_000, "0 (unlimited) to 100000000 packets per second"
);
bounded!(
    /// Connections.
    ConnectionCount, |v| (1..=4_194_304).contains(&v), "1 to 4194304 connections"
);
bounded!(
    /// Flow rules.
    RuleCount, |v| (1..=1_010_000).contains(&v), "1 to 1010000 rules"
);
bounded!(
    /// MiB.
    MemoryMib, |v| (16..=262_144).contains(&v), "16 to 262144 MiB"
);
bounded!(
    /// A count of routes.
    RouteCount, |v| (1..=16_777_216).contains(&v), "1 to 16777216"
);
bounded!(
    /// A count of network devices.
    DeviceCount, |v| (1..=65_536).contains(&v), "1 to 65536"
);
bounded!(
    /// A count of network namespaces.
    NamespaceCount, |v| (1..=1024).contains(&v), "1 to 1024"
);

/// A time span between two seconds and one day, written `2500ms`, `30s`, `5m` or `1h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval(pub Duration);

impl FromStr for Interval {
    type Err = BadValue;
    fn from_str(s: &str) -> Result<Self, BadValue> {
        let bad = || {
            BadValue(format!(
                "{s:?} is not allowed: a time from 2s to 24h, such as \"30s\", \"1500ms\", \"5m\" or \"1h\""
            ))
        };
        let ms = parse_ms(s).filter(|ms| (2000..=86_400_000).contains(ms)).ok_or_else(bad)?;
        Ok(Self(Duration::from_millis(ms)))
    }
}

/// As [`Interval`], or `0`: nothing is forwarded without a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeartbeatTime(pub Duration);

impl FromStr for HeartbeatTime {
    type Err = BadValue;
    fn from_str(s: &str) -> Result<Self, BadValue> {
        if s == "0" || parse_ms(s) == Some(0) {
            return Ok(Self(Duration::ZERO));
        }
        let or_none = |BadValue(why)| BadValue(format!("{why}; or \"0\": no forwarding without a daemon"));
        s.parse().map(|Interval(time)| Self(time)).map_err(or_none)
    }
}

/// The milliseconds of a time with a unit, such as `30s`.
pub(crate) fn parse_ms(s: &str) -> Option<u64> {
    let digits = s.bytes().take_while(u8::is_ascii_digit).count();
    let number: u64 = s[..digits].parse().ok()?;
    let unit_ms = match &s[digits..] {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    number.checked_mul(unit_ms)
}

macro_rules! deserialize_by_parsing {
    ($($name:ty),*) => {$(
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                String::deserialize(d)?.parse().map_err(D::Error::custom)
            }
        }
    )*};
}
deserialize_by_parsing!(
    GroupName,
    PortName,
    Source,
    Interval,
    Ecmp,
    Established,
    HeartbeatTime,
    ListenAddress,
    LoopbackAddress,
    Miss,
    CoreList,
    PlacementPolicy,
    LocalDelivery,
    Latency,
    ResumeLatency,
    paths::Name,
    paths::OtherwiseText,
    runs::LongestRun,
    experimental::SharedResource,
    experimental::PollingMode,
    class::MacText,
    class::AddressesText
);

// These modules use the macros, so they come after them.
mod api;
mod changes;
mod class;
mod cores;
mod elements;
mod experimental;
mod export;
mod metrics;
mod openflow;
mod paths;
pub mod ports;
#[cfg(test)]
mod reference;
mod runs;
mod sas;
mod shares;
mod web;
mod workers;

pub use api::{ApiSettings, GroupName};
pub use changes::Changes;
pub use cores::{
    CoreList, CoresSettings, DeclaredWorkload, Floor, Latency, LocalDelivery, Percent, PlacementPolicy,
    ResumeLatency,
};
pub use elements::{Captures, ElementSettings, MirrorSettings};
pub use experimental::{Experimental, IoRate, PollingMode, SharedResource};
pub use export::{AgentAddress, Collector, ExportSettings, SampleEvery};
pub use metrics::{ListenAddress, MetricsSettings};
pub use openflow::{DatapathId, FailMode, OpenFlowSettings, OpenFlowVersion, PacketInRate, Target, TlsFiles};
pub use paths::{PathConfig, PathSettings, PathsConfig, PortConfig, RouteConfig};
pub use runs::{LongestRun, MeasuredEvery, RunsSettings};
pub use sas::{Direction, KeySource, Library, LibraryText, SaConfig, SaSettings, SasConfig};
pub use shares::{SharesSettings, Weight};
pub use web::{LoopbackAddress, WebSettings};
pub use workers::{CALIBRATION_FILE, DaemonPath, PathNumbers, WorkersSettings};

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read the configuration {}", file.display())]
    Read { file: PathBuf, source: io::Error },
    /// `FILE:LINE: KEY: what is wrong and what is allowed`.
    #[error("{}:{line}: {}{message}", file.display(), key.as_ref().map(|k| format!("{k}: ")).unwrap_or_default())]
    Wrong { file: PathBuf, line: usize, key: Option<String>, message: String },
}

impl Config {
    /// Do indirection tables of NICs follow the cores that forward?
    pub fn uses_rss(&self) -> bool {
        self.experimental.rss && self.cores.policy == PlacementPolicy::Pack
    }

    /// Reads and checks a file.
    pub fn read(file: &Path) -> Result<Self, ConfigError> {
        Self::parse(file, &text_of(file)?)
    }

    /// Parses and checks `text`. `file` is only named in errors.
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigError> {
        let forms: &[&[_]] = &[
            &FORMS,
            &api::FORMS,
            &cores::FORMS,
            &shares::FORMS,
            &openflow::FORMS,
            &metrics::FORMS,
            &web::FORMS,
            &export::FORMS,
            &paths::FORMS,
            &sas::FORMS,
            &workers::FORMS,
            &runs::FORMS,
            &experimental::FORMS,
        ];
        let mut config: Config = from_toml(file, text, forms)?;
        let directory = file.parent().unwrap_or(Path::new(""));
        // Commands in other directories use it, too.
        let absolute = |rules| std::path::absolute(directory.join(rules));
        let rules = config.flows.file.take().map(absolute).transpose();
        config.flows.file = rules.map_err(|source| ConfigError::Read { file: file.into(), source })?;
        let paths = mem::take(&mut config.path_settings);
        let sas = sas::SasSettings {
            crypto: config.crypto.take(),
            later: mem::take(&mut config.sas_later),
            sas: mem::take(&mut config.sa_settings),
        };
        (config.paths, config.sas) = workers::check(file, text, paths, sas, &config.workers)?;
        web::check(&config, file, text)?;
        Ok(config)
    }
}

/// The longest configuration file.
const MOST_BYTES: u64 = 16 << 20;

/// The text of a configuration file.
fn text_of(file: &Path) -> Result<String, ConfigError> {
    let read = whole::read_text(file, MOST_BYTES, |_| Ok(()));
    read.map_err(|source| ConfigError::Read { file: file.into(), source })
}

/// Parses TOML. `forms` has an example of each key, for errors about values of a wrong type.
/// Earlier versions read keys of `[experimental]` in other tables, so the error of such a key names the table.
fn from_toml<T: DeserializeOwned>(
    file: &Path,
    text: &str,
    forms: &[&[(&str, &str)]],
) -> Result<T, ConfigError> {
    toml::from_str(text).map_err(|e| {
        let at = e.span().map_or(0, |s| s.start.min(text.len()));
        let mut message = e.message().trim().replace('\n', "; ").replace('`', "'");
        let key = key_at(text, at);
        let form = |key: &str| forms.iter().copied().flatten().find(|(known, _)| *known == key);
        let name = key.as_deref().and_then(|key| key.rsplit('.').next()).unwrap_or_default();
        if message.starts_with("invalid type") {
            let form = key.as_deref().and_then(form);
            message = form.map_or(message, |(_, form)| format!("wrong type; example: {form}"));
        } else if message.starts_with("unknown field") && form(&format!("experimental.{name}")).is_some() {
            message = "this key is experimental: write it in the table [experimental]".into();
        }
        ConfigError::at(file, text, at, key, message)
    })
}

impl ConfigError {
    /// An error at byte `at` of the text.
    fn at(file: &Path, text: &str, at: usize, key: Option<String>, message: String) -> Self {
        ConfigError::Wrong { file: file.into(), line: line_of(text, at), key, message }
    }
}

/// The line of byte `at`, counted from 1.
fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes().iter().take(at).filter(|byte| **byte == b'\n').count() + 1
}

/// Keys, each with an example.
const FORMS: [(&str, &str); 16] = [
    ("ports", "ports = [\"eth1\", \"eth2\"]"),
    ("routers", "routers = [\"red\", \"pid:42\"]"),
    ("heartbeat", "heartbeat = \"3s\""),
    ("generic", "generic = true"),
    ("ecmp", "ecmp = \"linux\""),
    ("policing.exception_pps", "exception_pps = 100000"),
    ("policing.control_pps", "control_pps = 10000"),
    ("firewall.established", "established = \"fast\""),
    ("firewall.connections", "connections = 65536"),
    ("limits.memory_mib", "memory_mib = 2048"),
    ("limits.routes_per_namespace", "routes_per_namespace = 24576"),
    ("limits.devices_per_namespace", "devices_per_namespace = 4096"),
    ("limits.namespaces_per_owner", "namespaces_per_owner = 16"),
    ("flows.rules", "rules = 65536"),
    ("flows.miss", "miss = \"normal\""),
    ("flows.file", "file = \"/etc/millrace/flows\""),
];

/// The key at byte `at`, or that of the value there, with its table: `policing.control_pps`.
///
/// The error of the parser has only a position. The key says more to a person, so it is found by reading backwards.
fn key_at(text: &str, at: usize) -> Option<String> {
    let before = text.get(..at)?;
    let line_start = before.rfind('\n').map_or(0, |i| i + 1);
    let line_end = text[line_start..].find('\n').map_or(text.len(), |i| line_start + i);
    // An error of a whole table belongs to no key.
    if text[line_start..line_end].trim_start().starts_with('[') {
        return None;
    }
    // `{ element = ...` within a list is not a key.
    let is_key = |line: &&str| {
        let key = line.split_once('=').map(|(key, _)| key.trim()).unwrap_or_default();
        !key.is_empty() && !key.contains(['{', '[', '#'])
    };
    let line =
        Some(&text[line_start..line_end]).filter(is_key).or_else(|| before.lines().rev().find(is_key))?;
    let key = line.split('=').next()?.trim();
    let table = before
        .lines()
        .rev()
        .find_map(|l| l.trim().strip_prefix('[')?.split(']').next().map(|t| t.trim_matches(['[', ' '])));
    Some(match table {
        Some(table) => format!("{table}.{key}"),
        None => key.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(Path::new("m.toml"), text).map_err(|e| e.to_string())
    }

    #[test]
    fn an_unreadable_or_too_long_file_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        rustix::fs::mkfifoat(rustix::fs::CWD, path("fifo"), rustix::fs::Mode::RUSR).unwrap();
        fs::write(path("bytes"), [0xff, 0xfe]).unwrap();
        fs::File::create(path("long")).unwrap().set_len(MOST_BYTES + 1).unwrap();
        for (name, why) in [
            ("fifo", "it is not a file"),
            (".", "it is not a file"),
            ("bytes", "it is not UTF-8"),
            ("long", "it is larger than 16 MiB"),
            ("none", "No such file"),
        ] {
            let error = anyhow::Error::from(Config::read(&path(name)).unwrap_err());
            let said = format!("{error:#}");
            assert!(said.starts_with("cannot read the configuration /") && said.contains(why), "{said}");
        }
    }

    #[test]
    fn full_file() {
        let config = parse(
            r#"
            ports = ["eth1", "eth2"]
            routers = ["red", "pid:42", "/run/x"]
            heartbeat = "1500s"
            generic = true
            ecmp = "linux"
            [policing]
            exception_pps = 0
            [limits]
            memory_mib = 64
            [flows]
            rules = 1010000
            miss = "drop"
            file = "/etc/f"
            "#,
        )
        .unwrap();
        assert_eq!(config.ports.len(), 2);
        assert_eq!(
            config.routers,
            [Source::Name("red".into()), Source::Pid(42), Source::Path("/run/x".into())]
        );
        assert_eq!(config.heartbeat.0, Duration::from_secs(1500));
        assert_eq!(config.policing, Policing { exception_pps: Rate(0), control_pps: Rate(10_000) });
        assert_eq!(
            config.flows,
            Flows { rules: RuleCount(1_010_000), miss: Miss::Drop, file: Some("/etc/f".into()) }
        );
        assert_eq!(parse("").unwrap(), Config::default());
    }

    /// Each row has a text, and what its error must contain, in order: position and key, then what is allowed.
    #[test]
    fn errors_name_file_line_key_and_what_is_allowed() {
        let table: &[(&str, &[&str])] = &[
            ("port = [\"eth1\"]", &["m.toml:1: port: ", "unknown field 'port'", "ports"]),
            ("\n\nheartbeat = \"1s\"", &["m.toml:3: heartbeat: ", "\"1s\" is not allowed", "2s to 24h"]),
            ("heartbeat = \"999999999999999999999h\"", &["m.toml:1: heartbeat: ", "2s to 24h"]),
            ("heartbeat = 30", &["m.toml:1: heartbeat: ", "example: heartbeat = \"3s\""]),
            ("generic = \"yes\"", &["m.toml:1: generic: ", "example: generic = true"]),
            (
                "ports = [\"eth1\",\n \"a/b\"]",
                &["m.toml:1: ports: ", "\"a/b\" is not a device name", "1 to 15"],
            ),
            ("ports = \"eth1\"", &["m.toml:1: ports: ", "example: ports = [\"eth1\", \"eth2\"]"]),
            (
                "[limits]\nmemory_mib = \"1\"",
                &["m.toml:2: limits.memory_mib: ", "example: memory_mib = 2048"],
            ),
            ("routers = [\"pid:x\"]", &["m.toml:1: routers: ", "\"pid:x\" is not a router", "pid:NUMBER"]),
            ("[policing]\ncontrol_pps = -1", &["m.toml:2: policing.control_pps: ", "-1", "0 (unlimited)"]),
            ("[policing]\nburst = 1", &["m.toml:2: policing.burst: ", "exception_pps", "control_pps"]),
            ("[limits]\nmemory_mib = 1", &["m.toml:2: limits.memory_mib: ", "16 to 262144"]),
            ("[flows]\nrules = 0", &["m.toml:2: flows.rules: ", "1 to 1010000"]),
            ("[flows]\nrules = 1010001", &["m.toml:2: flows.rules: ", "1 to 1010000"]),
            ("[flows]\nmiss = \"flood\"", &["m.toml:2: flows.miss: ", "\"normal\""]),
            ("[flows]\nmiss = 1", &["m.toml:2: flows.miss: ", "example: miss = \"normal\""]),
            ("[nonsense]", &["m.toml:1: ", "unknown field 'nonsense'", "policing"]),
            ("steering = true", &["m.toml:1: steering: ", "write it in the table [experimental]"]),
            ("[cores]\nrss = true", &["m.toml:2: cores.rss: ", "write it in the table [experimental]"]),
            ("[workers]\nlongest_run = 1", &["m.toml:2: workers.longest_run: ", "[experimental]"]),
            ("generic = true\ngeneric = false", &["m.toml:2: generic: ", "duplicate key"]),
            ("ports = [", &["m.toml:1: ports: "]),
            ("\u{0}", &["m.toml:1: "]),
        ];
        for (text, wanted) in table {
            let error = parse(text).unwrap_err();
            let mut rest = error.as_str();
            for part in *wanted {
                let at = rest.find(part).unwrap_or_else(|| panic!("{text:?}: {error:?} lacks {part:?}"));
                rest = &rest[at + part.len()..];
            }
        }
        let missing = Config::read(Path::new("/nonexistent.toml")).unwrap_err().to_string();
        assert_eq!(missing, "cannot read the configuration /nonexistent.toml");
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text in "\\PC{0,60}", noise in proptest::collection::vec(proptest::num::u8::ANY, 0..80)) {
            let _ = parse(&text);
            let _ = parse(&format!("[policing]\ncontrol_pps = {text}\n"));
            let _ = parse(&String::from_utf8_lossy(&noise));
            let _ = text.parse::<Interval>();
            let _ = text.parse::<Source>();
        }
    }
}
