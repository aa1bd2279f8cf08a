//! How long a path may run, and how often packets are measured: keys of `[experimental]` in the daemon's file and in
//! a file of paths.

use super::cores::microseconds;
use crate::base::BadValue;
use serde::{Deserialize, Deserializer, de::Error as _};
use std::{str::FromStr, time::Duration};

bounded!(
    /// Workers measure one packet in so many (P6). With the largest value, a path with a million packets a second is
    /// measured every 10 ms.
    MeasuredEvery, |v| (1..=10_000).contains(&v), "1 (every packet) to 10000 packets"
);

impl MeasuredEvery {
    /// The value in the type that the scheduler uses.
    pub fn packets(self) -> u16 {
        self.0 as u16
    }
}

impl Default for MeasuredEvery {
    fn default() -> Self {
        Self(20)
    }
}

/// The longest run of a path, microseconds (R of P8). Other paths may wait so long behind it. With the smallest
/// value, a run still takes longer than a few switches between paths. With more than a thousand, commands and other
/// paths would wait longer than on a core of the kernel plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongestRun(pub u32);

impl LongestRun {
    pub fn duration(self) -> Duration {
        Duration::from_micros(self.0.into())
    }
}

impl Default for LongestRun {
    fn default() -> Self {
        Self(100)
    }
}

impl FromStr for LongestRun {
    type Err = BadValue;
    fn from_str(s: &str) -> Result<Self, BadValue> {
        microseconds(s, 10..=1000).map(Self)
    }
}

/// `[experimental]` of a file of paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunsSettings {
    pub sample_every: MeasuredEvery,
    pub longest_run: LongestRun,
}

/// Keys, each with an example.
pub(super) const FORMS: [(&str, &str); 2] = [
    ("experimental.sample_every", "sample_every = 20"),
    ("experimental.longest_run", "longest_run = \"100us\""),
];

#[cfg(test)]
mod tests {
    use super::{
        super::{Config, Experimental, PathsConfig},
        *,
    };
    use std::path::Path;

    const PATHS: &str = "[[port]]\nname = \"a\"\n[[path]]\nname = \"p\"\nchain = [\"discard\"]\n";

    /// Parses the same keys in both files.
    fn both(text: &str) -> [Result<RunsSettings, String>; 2] {
        let file = Path::new("m.toml");
        let of_daemon = Config::parse(file, text).map(|config| {
            let Experimental { sample_every, longest_run, .. } = config.experimental;
            RunsSettings { sample_every, longest_run }
        });
        let of_paths = PathsConfig::parse(file, &format!("{text}\n{PATHS}")).map(|config| config.runs);
        [of_daemon, of_paths].map(|read| read.map_err(|error| error.to_string()))
    }

    #[test]
    fn both_files_have_the_same_keys() {
        for (text, expected) in [
            ("", (20, 100)),
            ("[experimental]", (20, 100)),
            ("[experimental]\nsample_every = 1\nlongest_run = \"10us\"", (1, 10)),
            ("[experimental]\nsample_every = 10000\nlongest_run = \"1000us\"", (10_000, 1000)),
        ] {
            for read in both(text) {
                let read = read.unwrap();
                assert_eq!((read.sample_every.packets(), read.longest_run.0), expected, "{text}");
            }
        }
        assert_eq!(LongestRun(250).duration(), Duration::from_micros(250));
    }

    #[test]
    fn errors_name_line_key_and_what_is_allowed() {
        let (every, run) = (
            "is not allowed: 1 (every packet) to 10000 packets",
            "is not allowed: a time from 10us to 1000us",
        );
        for (line, parts) in [
            ("sample_every = 0", ["experimental.sample_every: 0", every]),
            ("sample_every = 10001", ["experimental.sample_every: 10001", every]),
            ("sample_every = -1", ["experimental.sample_every: -1", every]),
            ("sample_every = \"20\"", ["experimental.sample_every: wrong type", "sample_every = 20"]),
            ("longest_run = \"9us\"", ["experimental.longest_run: \"9us\"", run]),
            ("longest_run = \"1001us\"", ["experimental.longest_run: \"1001us\"", run]),
            ("longest_run = \"100\"", ["experimental.longest_run: \"100\"", run]),
            ("longest_run = \"100ms\"", ["experimental.longest_run: \"100ms\"", run]),
            ("longest_run = 100", ["experimental.longest_run: wrong type", "longest_run = \"100us\""]),
        ] {
            for read in both(&format!("[experimental]\n{line}")) {
                let error = read.unwrap_err();
                assert!(error.starts_with("m.toml:2: "), "{line}: {error}");
                assert!(parts.iter().all(|part| error.contains(part)), "{line}: {error}");
            }
        }
        // Other keys are for the daemon's file only.
        let [_, of_paths] = both("[experimental]\nrss = true");
        assert!(of_paths.unwrap_err().contains("unknown field 'rss'"));
    }
}
