//! Security associations of ESP: `[[sa]]` in a file for captures, in the daemon's file, and in tables that are set
//! while the daemon runs. docs/reference/config.md says what each key means.
//!
//! The element that uses an SA gives it its direction. These files do not have the keys, but say where they are. The
//! keys are read when the paths are run ([`crate::user_plane::sas`]).

use super::{
    ConfigError,
    class::AddressesText,
    elements::ElementSettings,
    from_toml, line_of,
    paths::{Mtu, Name, Wrong, wrong},
};
use crate::base::BadValue;
use logic::{
    esp::{Dont, Ends, Mode, Selectors, Udp},
    net::Addresses,
};
use serde::{Deserialize, Deserializer, de::Error as _};
use std::{
    collections::BTreeMap,
    fmt,
    net::IpAddr,
    path::{Path, PathBuf},
    str::FromStr,
};
use toml::Spanned;

/// The most SAs.
pub(super) const MOST_SAS: usize = 1024;
const DEFAULT_WINDOW: u32 = 1024;
const DEFAULT_MTU: u32 = 1500;

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[doc(hidden)]
pub struct SaSettings {
    pub(super) name: Spanned<Name>,
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
    /// A port of UDP.
    UdpPort, |v| (1..=0xffff).contains(&v), "a port, 1 to 65535"
);

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct UdpSettings {
    local: UdpPort,
    remote: UdpPort,
}

#[derive(Clone, Copy, Debug, PartialEq)]
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

#[derive(Clone, Copy, Debug, PartialEq)]
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

/// A library that encrypts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// intel-ipsec-mb.
    IpsecMb,
    /// aws-lc-rs.
    AwsLc,
}

impl Library {
    /// Its name in the configuration and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Library::IpsecMb => "ipsec-mb",
            Library::AwsLc => "aws-lc-rs",
        }
    }
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Library {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        [Library::IpsecMb, Library::AwsLc]
            .into_iter()
            .find(|library| library.name() == s)
            .ok_or_else(|| format!("{s:?} is not allowed: \"ipsec-mb\" or \"aws-lc-rs\""))
    }
}

/// `"ipsec-mb"` or `"aws-lc-rs"`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LibraryText(pub Library);

impl FromStr for LibraryText {
    type Err = BadValue;
    fn from_str(s: &str) -> Result<Self, BadValue> {
        s.parse().map(Self).map_err(BadValue)
    }
}

deserialize_by_parsing!(ModeText, DontText, LibraryText);

/// Where to read a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// In a file.
    File(PathBuf),
    /// In an environment variable.
    Environment(String),
}

/// The direction of an SA, with the settings that only this direction has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Direction {
    /// `esp_encrypt` uses it.
    Outbound {
        /// The file that notes which sequence numbers are used.
        sequence_file: PathBuf,
        /// The longest IP packet that it makes, bytes.
        mtu: u16,
        dont_fragment: Dont,
    },
    /// `esp_decrypt` uses it.
    Inbound {
        /// Packets of the anti-replay window.
        window: u32,
        /// The longest IP packet that it accepts, bytes.
        mtu: u16,
    },
}

impl Direction {
    /// Its name in reports.
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
    /// The file and line where it is configured.
    pub file: PathBuf,
    pub line: usize,
}

impl SaConfig {
    /// Is it the same SA, wherever it is configured?
    pub fn is_same(&self, other: &SaConfig) -> bool {
        let anywhere = |sa: &SaConfig| SaConfig { file: PathBuf::new(), line: 0, ..sa.clone() };
        anywhere(self) == anywhere(other)
    }

    pub fn is_outbound(&self) -> bool {
        matches!(self.direction, Direction::Outbound { .. })
    }

    /// The files that belong only to this SA: those of its key and its sequence numbers.
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

    /// Could packets of one SA be taken for packets of the other?
    pub(crate) fn is_confused_with(&self, other: &SaConfig) -> bool {
        let is_inbound = |sa: &SaConfig| matches!(sa.direction, Direction::Inbound { .. });
        self.spi == other.spi
            && is_inbound(self) == is_inbound(other)
            && (is_inbound(self) || self.ends.remote() == other.ends.remote())
    }
}

/// The SAs of a file, checked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SasConfig {
    /// The library that encrypts; `None`: the fastest.
    pub crypto: Option<Library>,
    /// The SAs in the order of the file.
    pub sas: Vec<SaConfig>,
    /// What elements do with each SA, by name, including those of `sas_later`.
    uses: BTreeMap<String, Use>,
}

/// `crypto`, `sas_later` and `[[sa]]`, as they are written.
pub(super) struct SasSettings {
    pub crypto: Option<LibraryText>,
    pub later: Vec<Spanned<Name>>,
    pub sas: Vec<SaSettings>,
}

/// The byte where a chain begins, the name of its path, and the chain.
pub(super) type ChainAt<'a> = (usize, &'a str, &'a [ElementSettings]);

impl SasConfig {
    /// Are the SAs the same, wherever they stand in the file?
    pub(super) fn is_same(&self, other: &SasConfig) -> bool {
        let (ours, theirs) = (&self.sas, &other.sas);
        let are_same = || ours.iter().zip(theirs).all(|(our, their)| our.is_same(their));
        self.uses == other.uses && ours.len() == theirs.len() && are_same()
    }

    /// Does an element use SAs of this name?
    pub fn uses(&self, name: &str) -> bool {
        self.uses.contains_key(name)
    }

    /// Checks the SAs of a file against the elements of these chains.
    pub(super) fn check(
        file: &Path,
        text: &str,
        settings: SasSettings,
        chains: &[ChainAt<'_>],
    ) -> Result<SasConfig, Wrong> {
        let SasSettings { crypto, later, sas } = settings;
        let given = sas.iter().map(|sa| sa.name.get_ref().0.clone());
        let uses = uses(given.chain(later.iter().map(|name| name.get_ref().0.clone())), chains)?;
        for name in later {
            let (at, Name(name)) = (name.span().start, name.into_inner());
            if !uses.contains_key(&name) {
                return wrong(at, "sas_later", format!("SA {name} is used by no element"));
            }
        }
        let sas = checked(file, text, sas, &uses)?;
        let crypto = crypto.map(|library| library.0);
        Ok(SasConfig { crypto, sas: sas.into_iter().map(|(_, sa)| sa).collect(), uses })
    }

    /// Parses further SAs for the same elements. `text` has only `[[sa]]` tables. Relative files begin in the
    /// directory of `file`, which errors name.
    ///
    /// # Errors
    /// The same as for a configuration file.
    pub fn more(&self, file: &Path, text: &str) -> Result<Vec<SaConfig>, ConfigError> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct More {
            sa: Vec<SaSettings>,
        }
        let More { sa } = from_toml(file, text, &[&FORMS])?;
        let sas = checked(file, text, sa, &self.uses).map_err(|wrong| wrong.error(file, text))?;
        Ok(sas.into_iter().map(|(_, sa)| sa).collect())
    }
}

/// Checks SAs. Each is returned with the byte where its name stands.
fn checked(
    file: &Path,
    text: &str,
    sas: Vec<SaSettings>,
    uses: &BTreeMap<String, Use>,
) -> Result<Vec<(usize, SaConfig)>, Wrong> {
    if let Some(first) = sas.get(MOST_SAS) {
        let message = format!("{} are given, {MOST_SAS} are possible", sas.len());
        return wrong(first.name.span().start, "sa", message);
    }
    let mut checked = Vec::<(usize, SaConfig)>::new();
    for sa in sas {
        let (at, spi_at) = (sa.name.span().start, sa.spi.span().start);
        let Some(used) = uses.get(&sa.name.get_ref().0) else {
            return wrong(at, "sa.name", format!("SA {} is used by no element", sa.name.get_ref().0));
        };
        let sa = one(file, line_of(text, at), sa, *used)?;
        // While keys change, several SAs of a name receive.
        if *used == Use::Encrypt && checked.iter().any(|(_, other)| other.name == sa.name) {
            return wrong(at, "sa.name", format!("SA {} is given twice: only one can send", sa.name));
        }
        if let Some((_, other)) = checked.iter().find(|(_, other)| other.is_confused_with(&sa)) {
            let message = format!(
                "SA {} has the same SPI as SA {}: inbound SPIs must differ, and outbound SPIs to one address, too",
                sa.name, other.name
            );
            return wrong(spi_at, "sa.spi", message);
        }
        checked.push((at, sa));
    }
    Ok(checked)
}

/// What elements do with an SA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Encrypt,
    Decrypt,
}

/// What the elements of these chains do with each SA. `names` has all known SAs.
fn uses(names: impl Iterator<Item = String>, chains: &[ChainAt<'_>]) -> Result<BTreeMap<String, Use>, Wrong> {
    let names: Vec<String> = names.collect();
    let mut uses = BTreeMap::new();
    for (at, path, chain) in chains {
        for (position, element) in (1..).zip(*chain) {
            let (wanted, used) = match element {
                ElementSettings::EspEncrypt(name) => (std::slice::from_ref(name), Use::Encrypt),
                ElementSettings::EspDecrypt(names) => (names.as_slice(), Use::Decrypt),
                _ => continue,
            };
            for Name(name) in wanted {
                if !names.contains(name) {
                    let known = if names.is_empty() { "there is none".into() } else { names.join(", ") };
                    let message = format!(
                        "path {path}: element {position} uses {name}, which is not an [[sa]] of this file: {known}"
                    );
                    return wrong(*at, "path.chain", message);
                }
                if uses.insert(name.clone(), used).is_some_and(|before| before != used) {
                    let message = format!(
                        "path {path}: SA {name} is used by esp_encrypt and by esp_decrypt: each direction needs an SA and a key of its own"
                    );
                    return wrong(*at, "path.chain", message);
                }
            }
        }
    }
    Ok(uses)
}

fn one(file: &Path, line: usize, sa: SaSettings, used: Use) -> Result<SaConfig, Wrong> {
    let at = sa.name.span().start;
    let Name(name) = sa.name.into_inner();
    let directory = file.parent().unwrap_or(Path::new(""));
    let shown = |key: &str| {
        let message = format!(
            "SA {name} has what looks like the key itself: {key} must say where the key is. Do not use this key any more"
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
    if !ends.are_hosts() {
        let message =
            format!("{local} and {remote} must each be the address of one machine, and not link-local");
        return wrong(sa.local.span().start, "sa.local", message);
    }
    let udp = sa.udp.map(|udp| Udp { local: udp.local.0 as u16, remote: udp.remote.0 as u16 });
    let list = |list: Vec<AddressesText>| list.into_iter().map(|one| one.0).collect::<Vec<_>>();
    let mut selectors = Selectors { source: list(sa.source), destination: list(sa.destination) };
    let only = |key: &str, at: usize, who: &str| {
        wrong(at, format!("sa.{key}"), format!("SA {name} is used by {who}, which has no {key}"))
    };
    let direction = match used {
        Use::Encrypt => {
            if let Some(window) = sa.window {
                return only("window", window.span().start, "esp_encrypt");
            }
            let Some(sequence_file) = sa.sequence_file else {
                let message = format!(
                    "SA {name} is used by esp_encrypt, and needs sequence_file = \"FILE\": with one key, no sequence number may \
                     be used twice (docs/howto/esp.md), so this file notes which ones are used"
                );
                return wrong(at, "sa", message);
            };
            Direction::Outbound {
                sequence_file: directory.join(sequence_file.into_inner()),
                mtu: sa.mtu.map_or(DEFAULT_MTU, |mtu| mtu.get_ref().0) as u16,
                dont_fragment: sa.df.map_or(Dont::Copy, |df| df.get_ref().0),
            }
        }
        Use::Decrypt => {
            let given = [
                ("sequence_file", sa.sequence_file.map(|key| key.span())),
                ("df", sa.df.map(|key| key.span())),
            ];
            for (key, span) in given {
                if let Some(span) = span {
                    return only(key, span.start, "esp_decrypt");
                }
            }
            Direction::Inbound {
                window: sa.window.map_or(DEFAULT_WINDOW, |window| window.get_ref().0),
                // Linux accepts any length.
                mtu: sa.mtu.map_or(u16::MAX, |mtu| mtu.get_ref().0 as u16),
            }
        }
    };
    if sa.mode.0 == Mode::Transport {
        let ends = match used {
            Use::Encrypt => Selectors::between(local, remote),
            _ => Selectors::between(remote, local),
        };
        let is_within = |given: &[Addresses], end: &[Addresses]| given.iter().all(|one| end.contains(one));
        if !is_within(&selectors.source, &ends.source)
            || !is_within(&selectors.destination, &ends.destination)
        {
            let message = format!(
                "SA {name} is in transport mode, which has only packets between {local} and {remote}: no other source or destination is possible"
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

/// Does this look like a key, and not like the place of one?
fn is_key(text: &[u8]) -> bool {
    let digits = text.strip_prefix(b"0x").unwrap_or(text);
    [40, 72].contains(&digits.len()) && digits.iter().all(u8::is_ascii_hexdigit)
}

/// Keys, each with an example.
pub(super) const FORMS: [(&str, &str); 19] = [
    ("crypto", "crypto = \"ipsec-mb\""),
    ("sas_later", "sas_later = [\"to-b\"]"),
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
