//! `[metrics]`: where scrapers read metrics over TCP.

use crate::base::BadValue;
use serde::Deserialize;
use std::{net::SocketAddr, str::FromStr};

/// The settings of `[metrics]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MetricsSettings {
    /// `None`: the API's socket only.
    pub listen: Option<ListenAddress>,
}

/// An address and a port. Ports below 1024 need a capability that the daemon does not keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenAddress(pub SocketAddr);

impl FromStr for ListenAddress {
    type Err = BadValue;
    fn from_str(s: &str) -> Result<Self, BadValue> {
        match s.parse() {
            Ok(address) if SocketAddr::port(&address) >= 1024 => Ok(Self(address)),
            _ => Err(BadValue(format!(
                "{s:?} is not allowed: an IP address and a port from 1024 to 65535, such as \"[::1]:9111\" or \
                 \"127.0.0.1:9111\""
            ))),
        }
    }
}

/// Keys, each with an example.
pub(super) const FORMS: [(&str, &str); 1] = [("metrics.listen", "listen = \"[::1]:9111\"")];

#[cfg(test)]
mod tests {
    use super::{super::Config, *};
    use std::path::Path;

    fn parse(text: &str) -> Result<MetricsSettings, String> {
        let text = format!("[metrics]\n{text}");
        Config::parse(Path::new("m.toml"), &text).map(|config| config.metrics).map_err(|e| e.to_string())
    }

    #[test]
    fn an_error_names_line_key_and_what_is_allowed() {
        for address in ["[::1]:9111", "127.0.0.1:1024", "0.0.0.0:65535", "[fe80::1%2]:9111"] {
            let listen = Some(ListenAddress(address.parse().unwrap()));
            assert_eq!(parse(&format!("listen = \"{address}\"")), Ok(MetricsSettings { listen }));
        }
        assert_eq!(parse(""), Ok(MetricsSettings::default()));
        let allowed = "an IP address and a port from 1024 to 65535, such as \"[::1]:9111\"";
        for wrong in [
            "",
            "9111",
            ":9111",
            "::1:9111",
            "localhost:9111",
            "127.0.0.1",
            "[::1]:80",
            "[::1]:0",
            "[::1]:65536",
        ] {
            let error = parse(&format!("listen = \"{wrong}\"")).unwrap_err();
            assert!(error.starts_with("m.toml:2: metrics.listen: ") && error.contains(allowed), "{error}");
        }
        for (text, part) in
            [("listen = 9111", "example: listen = \"[::1]:9111\""), ("port = 1", "unknown field")]
        {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with("m.toml:2: metrics.") && error.contains(part), "{error}");
        }
    }
}
