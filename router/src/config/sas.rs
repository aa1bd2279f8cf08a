//! Security associations of ESP: `[[sa]]` of a path file. docs/esp.md says what each key means.
//!
//! What direction an SA has is said by the element that uses it. Keys are not in this file: it says where they are, and they are read when the
//! paths are run ([`crate::sas`]).

use super::{
    BadValue,
    class::AddressesText,
    elements::ElementSettings,
    paths::{Mtu, Name, Wrong, wrong},
};
use crate::crypto::Library;
use logic::{
    esp::{Dont, Ends, Mode, Selectors, Udp},
    paths::class::Addresses,
};
use serde::{Deserialize, Deserializer, de::Error as _};
use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    str::FromStr,
};
use toml::Spanned;

/// The most of them.
pub(super) const MOST_SAS: usize = 1024;
const DEFAULT_WINDOW: u32 = 1024;
const DEFAULT_MTU: u32 = 1500;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SaSettings {
    pub name: Spanned<Name>,
    spi: Spanned<Spi>,
    key_file: Option<PathBuf>,
    key_env: Option<String>,
    mode: ModeText,
    local: Spanned<IpAddr>,
    remote: IpAddr,
    udp: Option<UdpSettings>,
    #[serde(default)]
    esn: bool,
    window: Option<Spanned<WindowSize>>,
    sequence_file: Option<Spanned<PathBuf>>,
    mtu: Option<Spanned<Mtu>>,
    df: Option<Spanned<DontText>>,
    #[serde(default)]
    source: Vec<AddressesText>,
    #[serde(default)]
    destination: Vec<AddressesText>,
}

bounded!(
    /// Security parameters index.
    Spi, |v| v > 255, "256 to 4294967295 (RFC 4303 section 2.1)"
);
bounded!(
    /// Packets of an anti-replay window.
    WindowSize, |v| v.is_power_of_two() && (64..=65_536).contains(&v), "a power of two from 64 to 65536 packets"
);
bounded!(
    /// Of UDP.
    UdpPort, |v| (1..=0xffff).contains(&v), "a port, 1 to 65535"
);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct UdpSettings {
    local: UdpPort,
    remote: UdpPort,
}

#[derive(Clone, Copy, Debug)]
struct ModeText(Mode);

impl FromStr for ModeText {
    type Err = BadValue;
    fn from_str(s: &str) -> Result<Self, BadValue> {
        match s {
            "tunnel" => Ok(ModeText(Mode::Tunnel)),
            "transport" => Ok(ModeText(Mode::Transport)),
            _ => Err(BadValue(format!("{s:?} is not allowed: \"tunnel\" or \"transport\""))),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct DontText(Dont);

impl FromStr for DontText {
    type Err = BadValue;
    fn from_str(s: &str) -> Result<Self, BadValue> {
        match s {
            "copy" => Ok(DontText(Dont::Copy)),
            "set" => Ok(DontText(Dont::Set)),
            "clear" => Ok(DontText(Dont::Clear)),
            _ => Err(BadValue(format!("{s:?} is not allowed: \"copy\", \"set\" or \"clear\""))),
        }
    }
}

/// `"ipsec-mb"` or `"aws-lc-rs"`.
#[derive(Clone, Copy, Debug)]
pub(super) struct LibraryText(pub Library);

impl FromStr for LibraryText {
    type Err = BadValue;
    fn from_str(s: &str) -> Result<Self, BadValue> {
        s.parse().map(Self).map_err(BadValue)
    }
}

deserialize_by_parsing!(ModeText, DontText, LibraryText);

/// Where a key is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// In a file.
    File(PathBuf),
    /// In an environment variable.
    Environment(String),
}

/// Who uses an SA, and what only that direction has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Direction {
    /// `esp_encrypt`.
    Outbound {
        /// Where it is noted which sequence numbers are used.
        sequence_file: PathBuf,
        /// Longest IP packet, bytes.
        mtu: u16,
        dont_fragment: Dont,
    },
    /// `esp_decrypt`.
    Inbound {
        /// Packets of the anti-replay window.
        window: u32,
    },
}

impl Direction {
    /// As reports call it.
    pub fn name(&self) -> &'static str {
        match self {
            Direction::Outbound { .. } => "outbound",
            Direction::Inbound { .. } => "inbound",
        }
    }
}

/// A security association.
#[derive(Clone, Debug, PartialEq)]
pub struct SaConfig {
    pub name: String,
    pub spi: u32,
    pub key: KeySource,
    pub mode: Mode,
    pub ends: Ends,
    pub udp: Option<Udp>,
    pub is_extended: bool,
    pub selectors: Selectors,
    pub direction: Direction,
    /// Where in which file it stands.
    pub file: PathBuf,
    pub line: usize,
}

impl SaConfig {
    /// Files that are its alone.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let key = match &self.key {
            KeySource::File(file) => Some(file.as_path()),
            KeySource::Environment(_) => None,
        };
        let sequence = match &self.direction {
            Direction::Outbound { sequence_file, .. } => Some(sequence_file.as_path()),
            Direction::Inbound { .. } => None,
        };
        [key, sequence].into_iter().flatten()
    }
}

/// The SAs of a file, for the elements of these chains, each with the path it is of and where that is written.
pub(super) fn check(
    file: &Path,
    line_of: impl Fn(usize) -> usize,
    sas: Vec<SaSettings>,
    chains: &[(usize, &str, &[ElementSettings])],
) -> Result<Vec<SaConfig>, Wrong> {
    if let Some(first) = sas.get(MOST_SAS) {
        let message = format!("{} are given, {MOST_SAS} are possible", sas.len());
        return wrong(first.name.span().start, "sa", message);
    }
    let names: Vec<_> = sas.iter().map(|sa| sa.name.get_ref().0.clone()).collect();
    let uses = uses(&names, chains)?;
    let mut checked = Vec::<SaConfig>::new();
    for (sa, used) in sas.into_iter().zip(uses) {
        let at = sa.name.span().start;
        let spi_at = sa.spi.span().start;
        let sa = one(file, line_of(at), sa, used)?;
        if checked.iter().any(|other| other.name == sa.name) {
            return wrong(at, "sa.name", format!("SA {} is given twice", sa.name));
        }
        if let Some(other) = checked.iter().find(|other| has_same_packets(other, &sa)) {
            let message = format!(
                "SA {} has the SPI of SA {} already: SPIs of what comes must differ, and of what goes to one address",
                sa.name, other.name
            );
            return wrong(spi_at, "sa.spi", message);
        }
        checked.push(sa);
    }
    Ok(checked)
}

fn has_same_packets(a: &SaConfig, b: &SaConfig) -> bool {
    let is_inbound = |sa: &SaConfig| matches!(sa.direction, Direction::Inbound { .. });
    a.spi == b.spi && is_inbound(a) == is_inbound(b) && (is_inbound(a) || a.ends.remote() == b.ends.remote())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Used {
    Never,
    ToEncrypt,
    ToDecrypt,
}

/// What the elements do with each.
fn uses(names: &[String], chains: &[(usize, &str, &[ElementSettings])]) -> Result<Vec<Used>, Wrong> {
    let mut uses = vec![Used::Never; names.len()];
    for (at, path, chain) in chains {
        for (position, element) in (1..).zip(*chain) {
            let (wanted, used) = match element {
                ElementSettings::EspEncrypt(name) => (std::slice::from_ref(name), Used::ToEncrypt),
                ElementSettings::EspDecrypt(names) => (names.as_slice(), Used::ToDecrypt),
                _ => continue,
            };
            for Name(name) in wanted {
                let Some(found) = names.iter().position(|known| known == name) else {
                    let known = if names.is_empty() { "there is none".into() } else { names.join(", ") };
                    let message = format!(
                        "path {path}: element {position} uses {name}, which is no [[sa]] of this file: {known}"
                    );
                    return wrong(*at, "path.chain", message);
                };
                if ![Used::Never, used].contains(&uses[found]) {
                    let message = format!(
                        "path {path}: SA {name} is used by esp_encrypt and by esp_decrypt: an SA has one direction, and each its own key"
                    );
                    return wrong(*at, "path.chain", message);
                }
                uses[found] = used;
            }
        }
    }
    Ok(uses)
}

fn one(file: &Path, line: usize, sa: SaSettings, used: Used) -> Result<SaConfig, Wrong> {
    let at = sa.name.span().start;
    let Name(name) = sa.name.into_inner();
    let directory = file.parent().unwrap_or(Path::new(""));
    let shown = |key: &str| {
        let message = format!(
            "SA {name} has what looks like the key itself: {key} says where the key is. What was written here must not be used any more"
        );
        wrong(at, format!("sa.{key}"), message)
    };
    let key = match (sa.key_file, sa.key_env) {
        (Some(key), None) if is_key(key.as_os_str().as_encoded_bytes()) => return shown("key_file"),
        (None, Some(variable)) if is_key(variable.as_bytes()) => return shown("key_env"),
        (Some(key), None) => KeySource::File(directory.join(key)),
        (None, Some(variable)) => KeySource::Environment(variable),
        _ => {
            let message =
                format!("SA {name} needs a key: key_file = \"FILE\" or key_env = \"VARIABLE\", one of them");
            return wrong(at, "sa", message);
        }
    };
    let (local, remote) = (*sa.local.get_ref(), sa.remote);
    let Some(ends) = Ends::new(local, remote) else {
        let message = format!("{local} and {remote} are not of one version of IP");
        return wrong(sa.local.span().start, "sa.local", message);
    };
    let udp = sa.udp.map(|udp| Udp { local: udp.local.0 as u16, remote: udp.remote.0 as u16 });
    let list = |list: Vec<AddressesText>| list.into_iter().map(|one| one.0).collect::<Vec<_>>();
    let mut selectors = Selectors { source: list(sa.source), destination: list(sa.destination) };
    let only = |key: &str, at: usize, who: &str| {
        wrong(at, format!("sa.{key}"), format!("SA {name} is used by {who}, which has no {key}"))
    };
    let direction = match used {
        Used::Never => return wrong(at, "sa.name", format!("SA {name} is used by no element")),
        Used::ToEncrypt => {
            if let Some(window) = sa.window {
                return only("window", window.span().start, "esp_encrypt");
            }
            let Some(sequence_file) = sa.sequence_file else {
                let message = format!(
                    "SA {name} is used by esp_encrypt, and needs sequence_file = \"FILE\": sequence numbers must never be used \
                     again with a key (docs/esp.md), so it is noted there which ones are"
                );
                return wrong(at, "sa", message);
            };
            Direction::Outbound {
                sequence_file: directory.join(sequence_file.into_inner()),
                mtu: sa.mtu.map_or(DEFAULT_MTU, |mtu| mtu.get_ref().0) as u16,
                dont_fragment: sa.df.map_or(Dont::Copy, |df| df.get_ref().0),
            }
        }
        Used::ToDecrypt => {
            let given = [
                ("sequence_file", sa.sequence_file.map(|key| key.span())),
                ("mtu", sa.mtu.map(|key| key.span())),
                ("df", sa.df.map(|key| key.span())),
            ];
            for (key, span) in given {
                if let Some(span) = span {
                    return only(key, span.start, "esp_decrypt");
                }
            }
            Direction::Inbound { window: sa.window.map_or(DEFAULT_WINDOW, |window| window.get_ref().0) }
        }
    };
    if sa.mode.0 == Mode::Transport {
        let ends = match used {
            Used::ToEncrypt => Selectors::between(local, remote),
            _ => Selectors::between(remote, local),
        };
        let is_within = |given: &[Addresses], end: &[Addresses]| given.iter().all(|one| end.contains(one));
        if !is_within(&selectors.source, &ends.source)
            || !is_within(&selectors.destination, &ends.destination)
        {
            let message = format!(
                "SA {name} is of transport mode, whose packets are those between {local} and {remote}: other source or destination is not possible"
            );
            return wrong(at, "sa", message);
        }
        selectors = ends;
    }
    let (spi, mode, is_extended) = (sa.spi.get_ref().0, sa.mode.0, sa.esn);
    Ok(SaConfig {
        name,
        spi,
        key,
        mode,
        ends,
        udp,
        is_extended,
        selectors,
        direction,
        file: file.into(),
        line,
    })
}

/// A key, and not where one is.
fn is_key(text: &[u8]) -> bool {
    let digits = text.strip_prefix(b"0x").unwrap_or(text);
    [40, 72].contains(&digits.len()) && digits.iter().all(u8::is_ascii_hexdigit)
}

/// Keys, and how they are written.
pub(super) const FORMS: [(&str, &str); 18] = [
    ("crypto", "crypto = \"ipsec-mb\""),
    ("sa.name", "name = \"to-b\""),
    ("sa.spi", "spi = 0x1001"),
    ("sa.key_file", "key_file = \"to-b.key\""),
    ("sa.key_env", "key_env = \"TO_B_KEY\""),
    ("sa.mode", "mode = \"tunnel\""),
    ("sa.local", "local = \"192.0.2.1\""),
    ("sa.remote", "remote = \"192.0.2.2\""),
    ("sa.udp", "udp = { local = 4500, remote = 4500 }"),
    ("sa.esn", "esn = true"),
    ("sa.window", "window = 1024"),
    ("sa.sequence_file", "sequence_file = \"to-b.sequence\""),
    ("sa.mtu", "mtu = 1500"),
    ("sa.df", "df = \"copy\""),
    ("sa.source", "source = [\"10.0.0.0/16\"]"),
    ("sa.destination", "destination = [\"10.1.0.0/16\"]"),
    ("sa.key", "key_file = \"to-b.key\""),
    ("sa", "[[sa]]"),
];
