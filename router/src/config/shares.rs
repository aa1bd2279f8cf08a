//! `[shares]`: how much of a full core routers may take.

use serde::{Deserialize, Deserializer, de::Error as _};
use std::collections::BTreeMap;

/// The settings of `[shares]`. `logic::share` describes how a core is divided.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SharesSettings {
    /// On a full core, cut routers that exceed their share.
    pub enforce: bool,
    /// Weights by the name of the router; other routers have 1.
    pub weights: BTreeMap<String, Weight>,
}

impl SharesSettings {
    /// The weight of the router with this name.
    pub fn weight(&self, router: &str) -> u16 {
        self.weights.get(router).map_or(1, |weight| weight.0 as u16)
    }
}

bounded!(
    /// A weight, relative to others.
    Weight, |v| (1..=1000).contains(&v), "1 to 1000"
);

/// Keys, each with an example.
pub(super) const FORMS: [(&str, &str); 2] =
    [("shares.enforce", "enforce = true"), ("shares.weights", "weights = { red = 2 }")];

#[cfg(test)]
mod tests {
    use super::{super::Config, *};
    use std::path::Path;

    fn parse(text: &str) -> Result<SharesSettings, String> {
        let text = format!("[shares]\n{text}");
        Config::parse(Path::new("m.toml"), &text).map(|config| config.shares).map_err(|e| e.to_string())
    }

    #[test]
    fn weights_have_names_and_bounds() {
        let shares = parse("enforce = true\nweights = { red = 3, host = 1000 }").unwrap();
        assert!(shares.enforce);
        assert_eq!(["red", "host", "blue"].map(|name| shares.weight(name)), [3, 1000, 1]);
        assert_eq!(parse("").unwrap(), SharesSettings::default());
        assert!(!SharesSettings::default().enforce);
        for (text, parts) in [
            ("weights = { red = 0 }", &["m.toml:2: shares.weights: ", "0 is not allowed: 1 to 1000"][..]),
            ("weights = { red = 1001 }", &["m.toml:2: shares.weights: ", "1 to 1000"]),
            ("weights = [2]", &["m.toml:2: shares.weights: ", "example: weights = { red = 2 }"]),
            ("enforce = 1", &["m.toml:2: shares.enforce: ", "example: enforce = true"]),
            ("weight = 1", &["m.toml:2: shares.weight: ", "unknown field"]),
        ] {
            let error = parse(text).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{text}: {error}");
        }
    }
}
