//! `[web]`: the address of the web page, for browsers on this machine.

use super::{Config, ConfigError, key_at};
use crate::base::BadValue;
use serde::Deserialize;
use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
    str::FromStr,
};

/// The settings of `[web]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WebSettings {
    /// `None`: there is no page.
    pub listen: Option<LoopbackAddress>,
    /// Everyone who can reach the page may run the program on a packet, which shows firewall and flow rules.
    pub explain: bool,
}

/// A loopback address and a port. Ports below 1024 need a capability that the daemon does not keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopbackAddress(pub SocketAddr);

impl FromStr for LoopbackAddress {
    type Err = BadValue;
    fn from_str(s: &str) -> Result<Self, BadValue> {
        let parsed: Option<SocketAddr> = s.parse().ok();
        match parsed.filter(|address| address.port() >= 1024) {
            Some(address) if address.ip().is_loopback() => Ok(Self(address)),
            Some(address) => {
                let port = address.port();
                Err(BadValue(format!(
                    "{s:?} is not allowed: only a loopback address, 127.0.0.1 or [::1], because the page has neither TLS nor a \
                     password; to look from another machine: ssh -L {port}:localhost:{port} HOST"
                )))
            }
            None => Err(BadValue(format!(
                "{s:?} is not allowed: a loopback address and a port from 1024 to 65535, such as \"[::1]:9112\" or \
                 \"127.0.0.1:9112\""
            ))),
        }
    }
}

/// Checks that metrics have another address. `text` is that of the file.
pub(super) fn check(config: &Config, file: &Path, text: &str) -> Result<(), ConfigError> {
    const KEY: &str = "web.listen";
    let (Some(LoopbackAddress(web)), Some(metrics)) = (config.web.listen, config.metrics.listen) else {
        return Ok(());
    };
    let of_metrics = metrics.0.ip();
    let is_other = of_metrics != web.ip()
        && of_metrics != IpAddr::V6(Ipv6Addr::UNSPECIFIED)
        && !(of_metrics == IpAddr::V4(Ipv4Addr::UNSPECIFIED) && web.is_ipv4());
    if is_other || metrics.0.port() != web.port() {
        return Ok(());
    }
    let mut ends_of_lines = text.match_indices('\n').map(|(at, _)| at).chain([text.len()]);
    let at = ends_of_lines.find(|at| key_at(text, *at).as_deref() == Some(KEY)).unwrap_or(0);
    let message = format!("metrics.listen is {}, which has the same port; choose another port", metrics.0);
    Err(ConfigError::at(file, text, at, Some(KEY.into()), message))
}

/// Keys, each with an example.
pub(super) const FORMS: [(&str, &str); 2] =
    [("web.listen", "listen = \"[::1]:9112\""), ("web.explain", "explain = true")];

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<WebSettings, String> {
        let text = format!("[web]\n{text}");
        Config::parse(Path::new("m.toml"), &text).map(|config| config.web).map_err(|e| e.to_string())
    }

    #[test]
    fn only_loopback_addresses_are_allowed() {
        for address in ["[::1]:9112", "127.0.0.1:1024", "127.9.9.9:65535"] {
            let listen = Some(LoopbackAddress(address.parse().unwrap()));
            assert_eq!(parse(&format!("listen = \"{address}\"")), Ok(WebSettings { listen, explain: false }));
        }
        for address in
            ["0.0.0.0:9112", "[::]:9112", "192.0.2.1:9112", "[fe80::1%2]:9112", "[::ffff:127.0.0.1]:9112"]
        {
            let error = parse(&format!("listen = \"{address}\"")).unwrap_err();
            assert!(
                error.starts_with("m.toml:2: web.listen: ")
                    && error.contains("machine: ssh -L 9112:localhost:9112 HOST"),
                "{error}"
            );
        }
    }

    #[test]
    fn metrics_have_another_address() {
        let parse = |metrics: &str, web: &str| {
            let text = format!("[web]\n# here\nlisten = \"{web}\"\n[metrics]\nlisten = \"{metrics}\"\n");
            Config::parse(Path::new("m.toml"), &text).map(|_| ()).map_err(|error| error.to_string())
        };
        for (metrics, web) in [
            ("[::1]:9112", "[::1]:9112"),
            ("127.0.0.1:9112", "127.0.0.1:9112"),
            ("[::]:9112", "127.0.0.1:9112"),
            ("[::]:9112", "[::1]:9112"),
            ("0.0.0.0:9112", "127.0.0.1:9112"),
        ] {
            let expected = format!(
                "m.toml:3: web.listen: metrics.listen is {metrics}, which has the same port; choose another port"
            );
            assert_eq!(parse(metrics, web), Err(expected), "{metrics} {web}");
        }
        for (metrics, web) in [
            ("[::1]:9111", "[::1]:9112"),
            ("127.0.0.1:9112", "[::1]:9112"),
            ("0.0.0.0:9112", "[::1]:9112"),
            ("127.0.0.2:9112", "127.0.0.1:9112"),
        ] {
            assert_eq!(parse(metrics, web), Ok(()), "{metrics} {web}");
        }
    }

    #[test]
    fn an_error_names_line_key_and_what_is_allowed() {
        assert_eq!(parse(""), Ok(WebSettings::default()));
        assert_eq!(parse("explain = true").map(|web| web.explain), Ok(true));
        let allowed = "a loopback address and a port from 1024 to 65535, such as \"[::1]:9112\"";
        for wrong in ["", "9112", "localhost:9112", "127.0.0.1", "[::1]:80", "[::1]:65536"] {
            let error = parse(&format!("listen = \"{wrong}\"")).unwrap_err();
            assert!(error.starts_with("m.toml:2: web.listen: ") && error.contains(allowed), "{error}");
        }
        for (text, part) in [("explain = \"yes\"", "example: explain = true"), ("port = 1", "unknown field")]
        {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with("m.toml:2: web.") && error.contains(part), "{error}");
        }
    }
}
