//! `[experimental]`: mechanisms that are tested but have not yet shown on a real NIC that they are worth their code.
//! Each is off by default, may change, and may go.

use super::{
    cores::{Latency, LocalDelivery, PlacementPolicy},
    runs::{LongestRun, MeasuredEvery},
};
use crate::base::BadValue;
use logic::paths::{Resource, Share};
use serde::{Deserialize, Deserializer, de::Error as _};
use std::str::FromStr;

/// Every key of the table.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Experimental {
    /// Rules in a NIC's classifier steer heavy flows to the RX queue of their next hop (Q3).
    pub steering: bool,
    /// With the policy `pack`, NICs spread packets over as few queues as the forwarding cores need.
    pub rss: bool,
    /// With the policy `pack`, several cores share the flows of a queue that is too much for one core.
    pub split: bool,
    /// The core on which the stack works for sockets of this machine.
    pub local: LocalDelivery,
    /// How long packets may wait for others, to save wake-ups; `None`: as the device has it.
    pub moderation: Option<Latency>,
    /// How workers ask for packets.
    pub polling: PollingMode,
    /// The resource that paths share by their weights (P7).
    pub share: SharedResource,
    /// The packets that all workers together may receive and send; `None`: what links of ports and slots of NICs
    /// carry.
    pub io_mbps: Option<IoRate>,
    /// Workers measure one packet in so many (P6).
    pub sample_every: MeasuredEvery,
    /// How long a path may run at a time.
    pub longest_run: LongestRun,
}

impl Default for Experimental {
    fn default() -> Self {
        Self {
            steering: false,
            rss: false,
            split: false,
            local: LocalDelivery::Stay,
            moderation: None,
            polling: PollingMode::default(),
            share: SharedResource::default(),
            io_mbps: None,
            sample_every: MeasuredEvery::default(),
            longest_run: LongestRun::default(),
        }
    }
}

impl Experimental {
    /// Checks the values against the policy that places queues.
    ///
    /// # Errors
    /// Names the key that does nothing with this policy.
    pub fn check(&self, policy: PlacementPolicy) -> Result<(), BadValue> {
        if self.split && policy != PlacementPolicy::Pack {
            return Err(BadValue(
                "experimental.split works only with cores.policy = \"pack\": remove one of the two lines"
                    .into(),
            ));
        }
        Ok(())
    }
}

bounded!(
    /// Megabits of packets in a second, in both directions.
    IoRate, |v| (1..=100_000_000).contains(&v), "1 to 100000000 megabits per second"
);

/// How workers ask for packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PollingMode {
    /// Interrupts fill their rings, on whichever core they arrive.
    #[default]
    Interrupts,
    /// Under load, workers poll devices themselves where the kernel can; without load, interrupts wake them.
    Busy,
}

impl FromStr for PollingMode {
    type Err = BadValue;
    fn from_str(s: &str) -> Result<Self, BadValue> {
        match s {
            "interrupts" => Ok(Self::Interrupts),
            "busy" => Ok(Self::Busy),
            _ => Err(BadValue(format!("{s:?} is not allowed: \"interrupts\" or \"busy\""))),
        }
    }
}

/// The resource that paths share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedResource(pub Share);

impl Default for SharedResource {
    fn default() -> Self {
        Self(Share::Always(Resource::Cycles))
    }
}

impl FromStr for SharedResource {
    type Err = BadValue;
    fn from_str(s: &str) -> Result<Self, BadValue> {
        Ok(Self(match s {
            "auto" => Share::Scarce,
            "cycles" => Share::Always(Resource::Cycles),
            "memory" => Share::Always(Resource::Memory),
            "io" => Share::Always(Resource::Io),
            "cache_misses" => Share::Always(Resource::CacheMisses),
            _ => {
                return Err(BadValue(format!(
                    "{s:?} is not allowed: \"auto\", \"cycles\", \"memory\", \"io\" or \"cache_misses\""
                )));
            }
        }))
    }
}

/// Keys, each with an example.
pub(super) const FORMS: [(&str, &str); 8] = [
    ("experimental.steering", "steering = true"),
    ("experimental.rss", "rss = true"),
    ("experimental.split", "split = true"),
    ("experimental.local", "local = \"follow\""),
    ("experimental.moderation", "moderation = \"50us\""),
    ("experimental.polling", "polling = \"busy\""),
    ("experimental.share", "share = \"auto\""),
    ("experimental.io_mbps", "io_mbps = 20000"),
];

#[cfg(test)]
mod tests {
    use super::{super::Config, *};
    use std::path::Path;

    fn parse(text: &str) -> Result<Experimental, String> {
        let text = format!("[experimental]\n{text}");
        Config::parse(Path::new("m.toml"), &text).map(|config| config.experimental).map_err(|e| e.to_string())
    }

    #[test]
    fn all_keys() {
        let all = "steering = true\nrss = true\nsplit = true\nlocal = \"follow\"\nmoderation = \"50us\"\npolling = \"busy\"\n\
                   share = \"memory\"\nio_mbps = 80\nsample_every = 1\nlongest_run = \"10us\"";
        assert_eq!(
            parse(all).unwrap(),
            Experimental {
                steering: true,
                rss: true,
                split: true,
                local: LocalDelivery::Follow,
                moderation: Some(Latency(50)),
                polling: PollingMode::Busy,
                share: SharedResource(Share::Always(Resource::Memory)),
                io_mbps: Some(IoRate(80)),
                sample_every: MeasuredEvery(1),
                longest_run: LongestRun(10),
            }
        );
        assert_eq!(parse("").unwrap(), Experimental::default());
        let share = |text: &str| parse(text).unwrap().share.0;
        assert_eq!(
            [share(""), share("share = \"auto\""), share("share = \"io\"")],
            [Share::Always(Resource::Cycles), Share::Scarce, Share::Always(Resource::Io)]
        );
    }

    #[test]
    fn an_error_names_line_key_and_allowed_values() {
        for (line, parts) in [
            ("local = \"here\"", ["experimental.local: ", "\"here\" is not allowed: \"stay\" or \"follow\""]),
            ("local = true", ["experimental.local: ", "example: local = \"follow\""]),
            (
                "moderation = \"1ms\"",
                ["experimental.moderation: ", "\"1ms\" is not allowed: a time from 10us"],
            ),
            ("moderation = \"9us\"", ["experimental.moderation: ", "\"9us\" is not allowed"]),
            ("moderation = 50", ["experimental.moderation: ", "example: moderation = \"50us\""]),
            (
                "share = \"time\"",
                [
                    "experimental.share: ",
                    "\"time\" is not allowed: \"auto\", \"cycles\", \"memory\", \"io\" or \"cache_misses\"",
                ],
            ),
            (
                "polling = \"auto\"",
                ["experimental.polling: ", "\"auto\" is not allowed: \"interrupts\" or \"busy\""],
            ),
            ("polling = true", ["experimental.polling: ", "example: polling = \"busy\""]),
            (
                "io_mbps = 0",
                ["experimental.io_mbps: ", "0 is not allowed: 1 to 100000000 megabits per second"],
            ),
            ("split = 1", ["experimental.split: ", "example: split = true"]),
            ("floor = 40", ["experimental.floor: ", "unknown field"]),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.starts_with("m.toml:2: "), "{line}: {error}");
            assert!(parts.iter().all(|part| error.contains(part)), "{line}: {error}");
        }
    }

    #[test]
    fn a_key_that_does_nothing_is_refused() {
        let split = Experimental { split: true, ..Experimental::default() };
        assert_eq!(split.check(PlacementPolicy::Pack), Ok(()));
        let error = split.check(PlacementPolicy::Spread).unwrap_err().to_string();
        assert!(error.contains("experimental.split") && error.contains("policy = \"pack\""), "{error}");
    }
}
