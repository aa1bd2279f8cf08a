//! `[openflow]`: controllers, and how the agent works with them.

use super::Interval;
use crate::base::BadValue;
use serde::{Deserialize, Deserializer, de::Error as _};
use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::PathBuf,
    str::FromStr,
    time::Duration,
};

/// The port that IANA registered for OpenFlow.
const DEFAULT_PORT: u16 = 6653;
/// The most controllers and listeners together.
pub const MAX_CONTROLLERS: usize = 16;

/// The settings of `[openflow]`. Without controllers, OpenFlow does not run.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OpenFlowSettings {
    /// Controllers to dial and addresses to listen on, at most [`MAX_CONTROLLERS`].
    #[serde(deserialize_with = "controllers")]
    pub controllers: Vec<Target>,
    /// The only version to speak; `None`: both.
    pub version: Option<OpenFlowVersion>,
    /// What happens to packets while no dialled controller is connected.
    pub fail: FailMode,
    /// How controllers recognise this switch; `None`: made from the first port's MAC address.
    pub datapath_id: Option<DatapathId>,
    /// The most packets per second for controllers, all together.
    pub packet_in_pps: PacketInRate,
    /// A controller that is silent for this time gets an echo request. After the same time again, its connection is
    /// closed.
    pub echo_interval: Interval,
    /// Files of TLS, which `ssl:` and `pssl:` need.
    pub tls: Option<TlsFiles>,
    /// Names of ports where frames of another switch may change the core table. The sender of such a frame cannot be
    /// checked, so every sender that reaches the port is trusted.
    pub proxy_ports: Vec<String>,
}

impl Default for OpenFlowSettings {
    fn default() -> Self {
        Self {
            controllers: Vec::new(),
            version: None,
            fail: FailMode::Standalone,
            datapath_id: None,
            packet_in_pps: PacketInRate(1000),
            echo_interval: Interval(Duration::from_secs(10)),
            tls: None,
            proxy_ports: Vec::new(),
        }
    }
}

impl OpenFlowSettings {
    /// Checks keys against each other: TLS needs its files, and no target may be given twice.
    pub fn check(&self) -> Result<(), BadValue> {
        unique(&self.controllers)?;
        match self.controllers.iter().find(|target| target.tls) {
            Some(target) if self.tls.is_none() => Err(BadValue(format!(
                "openflow.controllers: {target} needs a key, a certificate and a CA: [openflow] {}",
                FORMS[6].1
            ))),
            _ => Ok(()),
        }
    }

    /// The datapath id: as configured, or 16 zero bits and `mac` (OpenFlow 1.0.2, 5.3.1).
    pub fn datapath_id(&self, mac: [u8; 6]) -> u64 {
        let from_mac = || mac.iter().fold(0, |id, byte| id << 8 | u64::from(*byte));
        self.datapath_id.map_or_else(from_mac, |id| id.0)
    }
}

/// Keys, each with an example.
pub(super) const FORMS: [(&str, &str); 8] = [
    ("openflow.controllers", "controllers = [\"tcp:192.0.2.1:6653\", \"ptcp:6653:127.0.0.1\"]"),
    ("openflow.version", "version = \"1.3\""),
    ("openflow.fail", "fail = \"secure\""),
    ("openflow.datapath_id", "datapath_id = \"00000000000000ab\""),
    ("openflow.packet_in_pps", "packet_in_pps = 1000"),
    ("openflow.echo_interval", "echo_interval = \"10s\""),
    (
        "openflow.tls",
        "tls = { key = \"sw-key.pem\", certificate = \"sw-cert.pem\", ca = \"controller-ca.pem\" }",
    ),
    ("openflow.proxy_ports", "proxy_ports = [\"eth3\"]"),
];

fn controllers<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<Target>, D::Error> {
    let targets = Vec::deserialize(d)?;
    unique(&targets).map_err(D::Error::custom)?;
    Ok(targets)
}

fn unique(targets: &[Target]) -> Result<(), BadValue> {
    if targets.len() > MAX_CONTROLLERS {
        return Err(BadValue(format!(
            "{} controllers are given, {MAX_CONTROLLERS} are possible",
            targets.len()
        )));
    }
    for (i, target) in targets.iter().enumerate() {
        let before = &targets[..i];
        if before.contains(target) {
            return Err(BadValue(format!("controller {target} is given twice")));
        }
        if let Some(other) = before.iter().find(|other| other.shares_its_port(target)) {
            return Err(BadValue(format!(
                "{other} and {target} would listen on one port: leave one of them out"
            )));
        }
    }
    Ok(())
}

/// A controller to dial or an address to listen on, written as for `ovs-vsctl set-controller`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// Whether to listen: `ptcp`, `pssl`.
    pub listens: bool,
    /// Whether to use TLS: `ssl`, `pssl`.
    pub tls: bool,
    /// A name or an address; for a listener always an address. An IPv6 address has no brackets, and may have a
    /// `%ZONE`.
    pub host: String,
    /// The TCP port. 0 (listeners only): any free port.
    pub port: u16,
}

impl Target {
    /// Would both listen on one port? An address of a version that stands for all contains the others.
    fn shares_its_port(&self, other: &Target) -> bool {
        let is_all = |host: &str| host.parse::<IpAddr>().is_ok_and(|address| address.is_unspecified());
        let same_version = self.host.contains(':') == other.host.contains(':');
        let same_place =
            self.host == other.host || (same_version && (is_all(&self.host) || is_all(&other.host)));
        self.listens && other.listens && self.port != 0 && self.port == other.port && same_place
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let method = match (self.listens, self.tls) {
            (false, false) => "tcp",
            (false, true) => "ssl",
            (true, false) => "ptcp",
            (true, true) => "pssl",
        };
        let (open, close) = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        match self.listens {
            true => write!(f, "{method}:{}:{open}{}{close}", self.port, self.host),
            false => write!(f, "{method}:{open}{}{close}:{}", self.host, self.port),
        }
    }
}

impl FromStr for Target {
    type Err = BadValue;
    fn from_str(s: &str) -> Result<Self, BadValue> {
        parse_target(s).ok_or_else(|| {
            let hint = listener_hint(s).map_or(String::new(), |hint| format!("; {hint}"));
            BadValue(format!(
                "{s:?} is not a controller{hint}: tcp:HOST[:PORT] or ssl:HOST[:PORT] to dial, ptcp:[PORT][:ADDRESS] or \
                 pssl:[PORT][:ADDRESS] to listen (port {DEFAULT_PORT} if absent; IPv6 in brackets)"
            ))
        })
    }
}

/// A hint for a text that is almost a listener.
fn listener_hint(s: &str) -> Option<String> {
    let (method, rest) = s.split_once(':').filter(|(method, _)| ["ptcp", "pssl"].contains(method))?;
    let address_first = match rest.rsplit_once(':') {
        Some((address, port)) if parse_host(address, true).is_some() && digits(port).is_some() => {
            Some((address, port))
        }
        _ => parse_host(rest, true).map(|_| (rest, "6653")),
    };
    if let Some((address, port)) = address_first {
        return Some(format!("the port comes first: {method}:{port}:{address}"));
    }
    let (port, host) = rest.split_once(':')?;
    let is_name = (port.is_empty() || digits(port).is_some()) && parse_host(host, false).is_some();
    is_name.then(|| format!("{host} is a name, but a listener needs an address, such as 127.0.0.1"))
}

fn parse_target(s: &str) -> Option<Target> {
    let (method, rest) = s.split_once(':')?;
    let (listens, tls) = match method {
        "tcp" => (false, false),
        "ssl" => (false, true),
        "ptcp" => (true, false),
        "pssl" => (true, true),
        _ => return None,
    };
    let (host, port) = if listens { split_listener(rest)? } else { split_remote(rest)? };
    let port = if port.is_empty() { DEFAULT_PORT } else { digits(port)? };
    let any = Ipv4Addr::UNSPECIFIED.to_string();
    let host = if listens && host.is_empty() { any } else { parse_host(host, listens)? };
    (listens || port != 0).then_some(Target { listens, tls, host, port })
}

/// `HOST[:PORT]`.
fn split_remote(rest: &str) -> Option<(&str, &str)> {
    let end = if rest.starts_with('[') { rest.find(']')? + 1 } else { rest.find(':').unwrap_or(rest.len()) };
    let (host, port) = rest.split_at(end);
    match port.strip_prefix(':') {
        Some("") => None,
        Some(port) => Some((host, port)),
        None => port.is_empty().then_some((host, "")),
    }
}

/// `[PORT][:ADDRESS]`.
fn split_listener(rest: &str) -> Option<(&str, &str)> {
    match rest.split_once(':') {
        Some((_, "")) => None,
        Some((port, host)) => Some((host, port)),
        None => Some(("", rest)),
    }
}

/// Parses a port number. `u16::from_str` would accept a sign.
fn digits(port: &str) -> Option<u16> {
    port.bytes().all(|b| b.is_ascii_digit()).then(|| port.parse().ok()).flatten()
}

/// Parses a host, and removes the brackets of an IPv6 address. A name may have the characters of RFC 1123 section
/// 2.1, and `_`, which is in use.
fn parse_host(host: &str, must_be_address: bool) -> Option<String> {
    if let Some(inner) = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
        let (address, zone) = inner.split_once('%').unwrap_or((inner, "eth0"));
        return (address.parse::<Ipv6Addr>().is_ok() && zone.parse::<super::PortName>().is_ok())
            .then(|| inner.to_owned());
    }
    let is_name = |h: &str| {
        (1..=253).contains(&h.len()) && h.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
    };
    let allowed = if must_be_address { host.parse::<IpAddr>().is_ok() } else { is_name(host) };
    (allowed && !host.contains(':')).then(|| host.to_owned())
}

/// A version of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenFlowVersion {
    V10,
    V13,
}

impl FromStr for OpenFlowVersion {
    type Err = BadValue;
    fn from_str(s: &str) -> Result<Self, BadValue> {
        match s {
            "1.0" => Ok(Self::V10),
            "1.3" => Ok(Self::V13),
            _ => Err(BadValue(format!("{s:?} is not allowed: \"1.0\" or \"1.3\"; both if absent"))),
        }
    }
}

/// What happens to packets while no dialled controller is connected (OpenFlow 1.3.5, 6.3.2), from the start on.
/// Without a controller to dial, it has no effect, and rules apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailMode {
    /// Packets are forwarded as without rules.
    Standalone,
    /// The rules stay and apply. Packets for controllers are lost.
    Secure,
}

impl FromStr for FailMode {
    type Err = BadValue;
    fn from_str(s: &str) -> Result<Self, BadValue> {
        match s {
            "standalone" => Ok(Self::Standalone),
            "secure" => Ok(Self::Secure),
            _ => Err(BadValue(format!("{s:?} is not allowed: \"standalone\" or \"secure\""))),
        }
    }
}

/// The number by which controllers recognise a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatapathId(pub u64);

impl FromStr for DatapathId {
    type Err = BadValue;
    fn from_str(s: &str) -> Result<Self, BadValue> {
        let is_hex = s.len() == 16 && s.bytes().all(|b| b.is_ascii_hexdigit());
        match u64::from_str_radix(s, 16) {
            Ok(id) if is_hex && id != 0 => Ok(Self(id)),
            _ => Err(BadValue(format!(
                "{s:?} is not allowed: 16 hexadecimal digits, not all 0, such as \"00000000000000ab\""
            ))),
        }
    }
}

bounded!(
    /// Packets per second.
    PacketInRate, |v| (1..=1_000_000).contains(&v), "1 to 1000000 packets per second"
);

deserialize_by_parsing!(Target, OpenFlowVersion, FailMode, DatapathId);

/// PEM files: the identity of the switch, and the CA of its controllers.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsFiles {
    /// The switch's private key.
    pub key: PathBuf,
    /// The switch's certificate, and the intermediate certificates up to the CA that controllers trust.
    pub certificate: PathBuf,
    /// The CA or CAs that must have issued the certificates of controllers.
    pub ca: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use std::path::Path;

    fn parse(text: &str) -> Result<OpenFlowSettings, String> {
        Config::parse(Path::new("m.toml"), text).map(|c| c.openflow).map_err(|e| e.to_string())
    }

    #[test]
    fn full_table() {
        let settings = parse(
            r#"
            [openflow]
            controllers = ["tcp:192.0.2.1", "pssl:"]
            version = "1.3"
            fail = "secure"
            datapath_id = "00000000000000aB"
            packet_in_pps = 50
            echo_interval = "5s"
            tls = { key = "/k", certificate = "c", ca = "/a" }
            proxy_ports = ["eth3"]
            "#,
        )
        .unwrap();
        let expected = OpenFlowSettings {
            controllers: vec!["tcp:192.0.2.1:6653".parse().unwrap(), "pssl:6653:0.0.0.0".parse().unwrap()],
            version: Some(OpenFlowVersion::V13),
            fail: FailMode::Secure,
            datapath_id: Some(DatapathId(0xab)),
            packet_in_pps: PacketInRate(50),
            echo_interval: Interval(Duration::from_secs(5)),
            tls: Some(TlsFiles { key: "/k".into(), certificate: "c".into(), ca: "/a".into() }),
            proxy_ports: vec!["eth3".into()],
        };
        assert_eq!(settings, expected);
        assert_eq!(settings.check(), Ok(()));
        assert_eq!(parse("").unwrap(), OpenFlowSettings::default());
    }

    #[test]
    fn targets_are_written_as_for_ovs_vsctl() {
        for (text, canonical) in [
            ("tcp:192.0.2.1", "tcp:192.0.2.1:6653"),
            ("tcp:192.0.2.1:1", "tcp:192.0.2.1:1"),
            ("ssl:c0.example_net:65535", "ssl:c0.example_net:65535"),
            ("tcp:[::1]", "tcp:[::1]:6653"),
            ("tcp:[fe80::1%eth1]:7", "tcp:[fe80::1%eth1]:7"),
            ("ptcp:", "ptcp:6653:0.0.0.0"),
            ("ptcp:0", "ptcp:0:0.0.0.0"),
            ("ptcp:7:127.0.0.1", "ptcp:7:127.0.0.1"),
            ("pssl::[::]", "pssl:6653:[::]"),
            ("ptcp:7:[::1]", "ptcp:7:[::1]"),
        ] {
            let target: Target = text.parse().unwrap();
            assert_eq!(target.to_string(), canonical);
            assert_eq!(canonical.parse::<Target>().unwrap(), target);
        }
        for text in [
            "",
            "tcp",
            "tcp:",
            "tcp::1",
            "udp:1.2.3.4",
            "TCP:1.2.3.4",
            "tcp:1.2.3.4:",
            "tcp:1.2.3.4:0",
            "tcp:1.2.3.4:+1",
            "tcp:1.2.3.4:65536",
            "tcp:1.2.3.4:1:2",
            "tcp:::1",
            "tcp:[::1",
            "tcp:[::1]6653",
            "tcp:[1.2.3.4]",
            "tcp:a b",
            "tcp:[fe80::1%]",
            "ptcp:x",
            "ptcp:1:",
            "ptcp:1:name",
            "ptcp:1:::1",
            "ptcp:-1",
            "ptcp:99999",
        ] {
            let error = text.parse::<Target>().unwrap_err().to_string();
            assert!(error.contains("tcp:HOST[:PORT]"), "{text:?}: {error}");
        }
    }

    #[test]
    fn an_error_has_a_hint_if_the_text_is_almost_a_listener() {
        let port_first = |right: &str| format!("; the port comes first: {right}: tcp:HOST");
        for (text, hint) in [
            ("ptcp:[::1]:6653", port_first("ptcp:6653:[::1]")),
            ("pssl:127.0.0.1:7", port_first("pssl:7:127.0.0.1")),
            ("ptcp:[::1]", port_first("ptcp:6653:[::1]")),
            ("ptcp:10.0.0.1", port_first("ptcp:6653:10.0.0.1")),
            ("ptcp:6653:localhost", "; localhost is a name, but a listener needs an address".into()),
            ("ptcp::localhost", "; localhost is a name, but a listener needs an address".into()),
            ("ptcp:x:y", "is not a controller: tcp:HOST".into()),
            ("tcp:1:2:3", "is not a controller: tcp:HOST".into()),
        ] {
            let error = text.parse::<Target>().unwrap_err().to_string();
            assert!(error.contains(&hint), "{error:?} lacks {hint:?}");
        }
    }

    #[test]
    fn errors_name_line_key_and_what_is_allowed() {
        let seventeen: Vec<_> = (1..=17).map(|i| format!("\"ptcp:{i}\"")).collect();
        let seventeen = format!("controllers = [{}]", seventeen.join(","));
        for (line, wanted) in [
            (
                "controllers = [\"udp:x\"]",
                &["m.toml:2: openflow.controllers: ", "\"udp:x\" is not", "ptcp:"][..],
            ),
            ("controllers = \"tcp:x\"", &["openflow.controllers: ", "example: controllers = [\"tcp:"]),
            (
                "controllers = [\"ptcp:\", \"ptcp:6653\"]",
                &["openflow.controllers: ", "ptcp:6653:0.0.0.0 is given twice"],
            ),
            (
                "controllers = [\"ptcp:6653:127.0.0.1\", \"pssl:6653\"]",
                &["ptcp:6653:127.0.0.1 and pssl:6653:0.0.0.0 would listen on one port"],
            ),
            (&seventeen, &["openflow.controllers: ", "17 controllers are given, 16 are possible"]),
            (
                "version = \"1.4\"",
                &["m.toml:2: openflow.version: ", "\"1.4\" is not allowed: \"1.0\" or \"1.3\""],
            ),
            ("version = 1.3", &["openflow.version: ", "example: version = \"1.3\""]),
            ("fail = \"open\"", &["openflow.fail: ", "\"standalone\" or \"secure\""]),
            ("datapath_id = \"ab\"", &["openflow.datapath_id: ", "16 hexadecimal digits"]),
            ("datapath_id = \"0000000000000000\"", &["openflow.datapath_id: ", "not all 0"]),
            ("datapath_id = \"+0000000000000ab\"", &["openflow.datapath_id: ", "16 hexadecimal digits"]),
            ("packet_in_pps = 0", &["openflow.packet_in_pps: ", "1 to 1000000 packets per second"]),
            ("echo_interval = \"1s\"", &["openflow.echo_interval: ", "2s to 24h"]),
            ("tls = { key = \"k\" }", &["openflow.tls: ", "missing field 'certificate'"]),
            ("tls = \"k\"", &["openflow.tls: ", "example: tls = { key = "]),
            ("retries = 1", &["openflow.retries: ", "unknown field", "controllers"]),
        ] {
            let error = parse(&format!("[openflow]\n{line}")).unwrap_err();
            let mut rest = error.as_str();
            for part in wanted {
                let at = rest.find(part).unwrap_or_else(|| panic!("{line}: {error:?} lacks {part:?}"));
                rest = &rest[at + part.len()..];
            }
        }
    }

    #[test]
    fn tls_needs_its_files() {
        let settings = parse("[openflow]\ncontrollers = [\"tcp:a\", \"ssl:b\"]").unwrap();
        let error = settings.check().unwrap_err().to_string();
        assert!(error.starts_with("openflow.controllers: ssl:b:6653 needs a key"), "{error}");
    }

    #[test]
    fn the_datapath_id_is_configured_or_the_mac_address() {
        let mac = [2, 0, 0, 0, 0xab, 0xcd];
        assert_eq!(OpenFlowSettings::default().datapath_id(mac), 0x0000_0200_0000_abcd);
        let settings = parse("[openflow]\ndatapath_id = \"ff00000000000001\"").unwrap();
        assert_eq!(settings.datapath_id(mac), 0xff00_0000_0000_0001);
    }

    proptest::proptest! {
        #[test]
        fn targets_never_panic_and_read_back(method in "p?(tcp|ssl)", rest in "[0-9a-f:.\\[\\]%]{0,24}|\\PC{0,20}") {
            if let Ok(target) = format!("{method}:{rest}").parse::<Target>() {
                assert_eq!(target.to_string().parse::<Target>().unwrap(), target);
            }
        }
    }
}
