//! `[export]`: which packets are sampled, and which collectors get them.

use super::Interval;
use crate::base::BadValue;
use serde::{Deserialize, Deserializer, de::Error as _};
use std::{
    collections::BTreeSet,
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
    time::Duration,
};

/// The most collectors of a protocol.
const MOST_COLLECTORS: usize = 8;

/// The settings of `[export]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ExportSettings {
    /// One packet in this many is sampled, on average.
    pub every: SampleEvery,
    /// Collectors of sFlow version 5.
    #[serde(deserialize_with = "collectors")]
    pub sflow: Vec<Collector>,
    /// Collectors of IPFIX.
    #[serde(deserialize_with = "collectors")]
    pub ipfix: Vec<Collector>,
    /// The address by which sFlow knows this box. `None`: the one from which the first collector gets datagrams.
    pub agent: Option<AgentAddress>,
    /// How often sFlow reports the counters of ports.
    pub counters: Interval,
}

impl Default for ExportSettings {
    fn default() -> Self {
        Self {
            every: SampleEvery(1000),
            sflow: Vec::new(),
            ipfix: Vec::new(),
            agent: None,
            counters: Interval(Duration::from_secs(20)),
        }
    }
}

impl ExportSettings {
    /// Does any collector get samples?
    pub fn is_on(&self) -> bool {
        !self.sflow.is_empty() || !self.ipfix.is_empty()
    }
}

bounded!(
    /// Packets.
    SampleEvery, |v| (1..=16_777_216).contains(&v), "1 to 16777216 packets"
);

/// Where a collector receives UDP datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Collector(pub SocketAddr);

impl fmt::Display for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Collector {
    type Err = BadValue;
    fn from_str(s: &str) -> Result<Self, BadValue> {
        match s.parse() {
            Ok(address) if SocketAddr::port(&address) != 0 && !address.ip().is_unspecified() => {
                Ok(Self(address))
            }
            _ => Err(BadValue(format!(
                "{s:?} is not allowed: an IP address and a UDP port, such as \"192.0.2.7:6343\" or \
                 \"[2001:db8::7]:4739\""
            ))),
        }
    }
}

/// An address of this box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentAddress(pub IpAddr);

impl FromStr for AgentAddress {
    type Err = BadValue;
    fn from_str(s: &str) -> Result<Self, BadValue> {
        match s.parse() {
            Ok(address) if !IpAddr::is_unspecified(&address) => Ok(Self(address)),
            _ => Err(BadValue(format!(
                "{s:?} is not allowed: an IP address of this box, such as \"192.0.2.1\""
            ))),
        }
    }
}

deserialize_by_parsing!(Collector, AgentAddress);

fn collectors<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<Collector>, D::Error> {
    let all = Vec::<Collector>::deserialize(d)?;
    if all.len() > MOST_COLLECTORS {
        return Err(D::Error::custom(format!(
            "{} collectors are given; at most {MOST_COLLECTORS} are possible",
            all.len()
        )));
    }
    let mut seen = BTreeSet::new();
    match all.iter().find(|collector| !seen.insert(**collector)) {
        Some(twice) => Err(D::Error::custom(format!("collector {twice} is listed twice"))),
        None => Ok(all),
    }
}

/// Keys, each with an example.
pub(super) const FORMS: [(&str, &str); 5] = [
    ("export.every", "every = 1000"),
    ("export.sflow", "sflow = [\"192.0.2.7:6343\"]"),
    ("export.ipfix", "ipfix = [\"192.0.2.7:4739\"]"),
    ("export.agent", "agent = \"192.0.2.1\""),
    ("export.counters", "counters = \"20s\""),
];

#[cfg(test)]
mod tests {
    use super::{super::Config, *};
    use std::path::Path;

    fn parse(text: &str) -> Result<ExportSettings, String> {
        let text = format!("[export]\n{text}");
        Config::parse(Path::new("m.toml"), &text).map(|config| config.export).map_err(|e| e.to_string())
    }

    #[test]
    fn collectors_turn_exports_on() {
        let none = parse("every = 10\nagent = \"192.0.2.1\"").unwrap();
        assert!(!none.is_on() && none.every == SampleEvery(10));
        let on = parse("sflow = [\"192.0.2.7:6343\", \"[2001:db8::7]:6343\"]\ncounters = \"5s\"").unwrap();
        assert!(on.is_on() && on.sflow.len() == 2 && on.every == SampleEvery(1000));
        assert!(parse("ipfix = [\"192.0.2.7:4739\"]").unwrap().is_on());
    }

    #[test]
    fn an_error_names_line_key_and_what_is_allowed() {
        let nine: Vec<String> = (1..=9).map(|n| format!("\"192.0.2.{n}:1\"")).collect();
        let nine = format!("ipfix = [{}]", nine.join(", "));
        for (text, key, part) in [
            ("every = 0", "every", "1 to 16777216 packets"),
            ("every = 16777217", "every", "1 to 16777216 packets"),
            ("sflow = [\"192.0.2.7\"]", "sflow", "an IP address and a UDP port"),
            ("sflow = [\"192.0.2.7:0\"]", "sflow", "an IP address and a UDP port"),
            ("sflow = [\"0.0.0.0:6343\"]", "sflow", "an IP address and a UDP port"),
            ("sflow = [\"collector:6343\"]", "sflow", "an IP address and a UDP port"),
            ("sflow = [\"192.0.2.7:1\", \"192.0.2.7:1\"]", "sflow", "collector 192.0.2.7:1 is listed twice"),
            (nine.as_str(), "ipfix", "9 collectors are given; at most 8 are possible"),
            ("agent = \"::\"", "agent", "an IP address of this box"),
            ("agent = \"box\"", "agent", "an IP address of this box"),
            ("counters = \"1s\"", "counters", "a time from 2s to 24h"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(
                error.starts_with(&format!("m.toml:2: export.{key}: ")) && error.contains(part),
                "{error}"
            );
        }
    }
}
