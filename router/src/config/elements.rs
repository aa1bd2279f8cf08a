//! Elements of a chain: `"check"`, or `{ element = "forward", port = "eth1" }` for an element with parameters. The
//! manual page of each element describes its parameters (`logic/src/elements/`).

use super::paths::Name;
use crate::base::{BadValue, PortName};
use logic::{
    elements::{
        Check, Copies, Count, CrcAppend, CrcCheck, Discard, Element, EspDecrypt, EspEncrypt, Forward, Mirror,
        Police, Rate, Rewrite, Route, Ttl, Vxlan, VxlanDecap, VxlanEncap,
    },
    esp::{Ends, SaTable},
    memory::Memory,
    plan::PortId,
};
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, IgnoredAny, MapAccess, Visitor, value::MapAccessDeserializer},
};
use std::{
    collections::BTreeMap,
    fmt,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

/// An element of a chain.
#[derive(Clone, Debug, PartialEq)]
pub enum ElementSettings {
    Check,
    Route,
    Ttl,
    Rewrite,
    Forward(PortName),
    CrcAppend,
    CrcCheck,
    Police(Rate),
    Count,
    Mirror(MirrorSettings),
    Discard,
    /// With this SA.
    EspEncrypt(Name),
    /// With any of these SAs.
    EspDecrypt(Vec<Name>),
    VxlanEncap(Vxlan),
    /// Packets with this VNI, to this address, from this address if one is given, and to this UDP port.
    VxlanDecap(u32, IpAddr, Option<IpAddr>, u16),
}

/// The parameters of `mirror` (`logic/src/elements/mirror.rs`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorSettings {
    pub file: PathBuf,
    pub snap_bytes: usize,
    /// The largest size of the file, bytes.
    pub file_bytes: u64,
    pub every_packets: u32,
}

/// Queues of copies for capture files, by the name of the file.
#[derive(Clone, Default)]
pub struct Captures(Arc<BTreeMap<PathBuf, Arc<Copies>>>);

impl Captures {
    pub fn new(by_file: BTreeMap<PathBuf, Arc<Copies>>) -> Captures {
        Captures(Arc::new(by_file))
    }

    /// The queue of a file. Copies for an unknown file are lost.
    pub fn copies(&self, file: &Path) -> Arc<Copies> {
        self.0.get(file).cloned().unwrap_or_else(Copies::nowhere)
    }
}

const NAMES: &str = "\"check\", \"route\", \"ttl\", \"rewrite\", \"forward\", \"crc_append\", \"crc_check\", \"police\", \"count\", \"mirror\", \"discard\", \"esp_encrypt\", \"esp_decrypt\", \"vxlan_encap\" or \"vxlan_decap\"";
const POLICE: &str = "{ element = \"police\", packets_per_second = 1000, burst_packets = 32 }, or bits_per_second and burst_bytes";
const ENCRYPT: &str = "{ element = \"esp_encrypt\", sa = \"to-b\" }";
const DECRYPT: &str = "{ element = \"esp_decrypt\", sas = [\"from-b\"] }";
const ENCAP: &str = "{ element = \"vxlan_encap\", vni = 100, local = \"192.0.2.1\", remote = \"192.0.2.2\" }, and udp_port, mtu, ttl and df";
const DECAP: &str =
    "{ element = \"vxlan_decap\", vni = 100, local = \"192.0.2.1\" }, and remote and udp_port";
const MIRROR: &str = "{ element = \"mirror\", file = \"/var/log/millrace/web.pcap\" }, and snap_bytes, file_mib and every_packets";
const FORWARD: &str = "{ element = \"forward\", port = \"eth1\" }";
/// The limits of `police` (`logic/src/elements/police.rs`).
const MOST_RATE: u64 = 1 << 40;
const MOST_BURST: u64 = 1 << 31;
/// RFC 7348 section 5.
const MOST_VNI: u64 = (1 << 24) - 1;
const VXLAN_PORT: u16 = 4789;

/// An element with parameters.
#[derive(Debug, Default, Deserialize)]
struct Table {
    element: String,
    port: Option<PortName>,
    packets_per_second: Option<i64>,
    bits_per_second: Option<i64>,
    burst_packets: Option<i64>,
    burst_bytes: Option<i64>,
    sa: Option<Name>,
    sas: Option<Vec<Name>>,
    vni: Option<i64>,
    local: Option<IpAddr>,
    remote: Option<IpAddr>,
    udp_port: Option<i64>,
    mtu: Option<i64>,
    ttl: Option<i64>,
    df: Option<String>,
    file: Option<PathBuf>,
    snap_bytes: Option<i64>,
    file_mib: Option<i64>,
    every_packets: Option<i64>,
    /// Parameters that no element has. They are refused like those of other elements.
    #[serde(flatten)]
    others: BTreeMap<String, IgnoredAny>,
}

impl Table {
    fn settings(self) -> Result<ElementSettings, BadValue> {
        let name = self.element.as_str();
        let plain = match name {
            "check" => ElementSettings::Check,
            "route" => ElementSettings::Route,
            "ttl" => ElementSettings::Ttl,
            "rewrite" => ElementSettings::Rewrite,
            "crc_append" => ElementSettings::CrcAppend,
            "crc_check" => ElementSettings::CrcCheck,
            "count" => ElementSettings::Count,
            "discard" => ElementSettings::Discard,
            "forward" => {
                self.has_only(&["port"], FORWARD)?;
                let port = self.port.ok_or_else(|| BadValue(format!("forward needs a port: {FORWARD}")))?;
                return Ok(ElementSettings::Forward(port));
            }
            "esp_encrypt" => {
                self.has_only(&["sa"], ENCRYPT)?;
                let sa = self.sa.ok_or_else(|| BadValue(format!("esp_encrypt needs an SA: {ENCRYPT}")))?;
                return Ok(ElementSettings::EspEncrypt(sa));
            }
            "esp_decrypt" => {
                self.has_only(&["sas"], DECRYPT)?;
                let sas = self.sas.filter(|sas| !sas.is_empty());
                let sas = sas.ok_or_else(|| BadValue(format!("esp_decrypt needs SAs: {DECRYPT}")))?;
                return Ok(ElementSettings::EspDecrypt(sas));
            }
            "vxlan_encap" => return self.vxlan_encap().map(ElementSettings::VxlanEncap),
            "vxlan_decap" => {
                self.has_only(&["vni", "local", "remote", "udp_port"], DECAP)?;
                let (vni, local, port) = self.vxlan(DECAP)?;
                return Ok(ElementSettings::VxlanDecap(vni, local, self.remote, port));
            }
            "mirror" => return self.mirror().map(ElementSettings::Mirror),
            "police" => return self.rate().map(ElementSettings::Police),
            _ => return Err(BadValue(format!("{name:?} is not an element: {NAMES}"))),
        };
        self.has_only(&[], &format!("{name:?} alone")).map(|()| plain)
    }

    fn has_only(&self, allowed: &[&str], form: &str) -> Result<(), BadValue> {
        let given = [
            ("port", self.port.is_some()),
            ("packets_per_second", self.packets_per_second.is_some()),
            ("bits_per_second", self.bits_per_second.is_some()),
            ("burst_packets", self.burst_packets.is_some()),
            ("burst_bytes", self.burst_bytes.is_some()),
            ("sa", self.sa.is_some()),
            ("sas", self.sas.is_some()),
            ("vni", self.vni.is_some()),
            ("local", self.local.is_some()),
            ("remote", self.remote.is_some()),
            ("udp_port", self.udp_port.is_some()),
            ("mtu", self.mtu.is_some()),
            ("ttl", self.ttl.is_some()),
            ("df", self.df.is_some()),
            ("file", self.file.is_some()),
            ("snap_bytes", self.snap_bytes.is_some()),
            ("file_mib", self.file_mib.is_some()),
            ("every_packets", self.every_packets.is_some()),
        ];
        let given = given.iter().filter(|(name, given)| *given && !allowed.contains(name));
        match given.map(|(name, _)| *name).chain(self.others.keys().map(String::as_str)).next() {
            Some(name) => Err(BadValue(format!("{} has no parameter {name}: {form}", self.element))),
            None => Ok(()),
        }
    }

    /// Checks a number against its bounds. `None`: it is not given.
    fn number(&self, name: &str, value: Option<i64>, least: u64, most: u64) -> Result<Option<u64>, BadValue> {
        let wrong = |value| {
            let element = &self.element;
            BadValue(format!("{element}: {name} = {value} is not allowed: {least} to {most}"))
        };
        let within = |value: i64| u64::try_from(value).ok().filter(|value| (least..=most).contains(value));
        value.map(|value| within(value).ok_or_else(|| wrong(value))).transpose()
    }

    /// The parameters of both elements of VXLAN: VNI, our address, UDP port.
    fn vxlan(&self, form: &str) -> Result<(u32, IpAddr, u16), BadValue> {
        let needs = |what: &str| BadValue(format!("{} needs {what}: {form}", self.element));
        let vni = self.number("vni", self.vni, 0, MOST_VNI)?.ok_or_else(|| needs("a vni"))?;
        let local = self.local.ok_or_else(|| needs("local, our address"))?;
        let port = self.number("udp_port", self.udp_port, 1, u16::MAX.into())?;
        Ok((vni as u32, local, port.map_or(VXLAN_PORT, |port| port as u16)))
    }

    fn vxlan_encap(&self) -> Result<Vxlan, BadValue> {
        self.has_only(&["vni", "local", "remote", "udp_port", "mtu", "ttl", "df"], ENCAP)?;
        let (vni, local, port) = self.vxlan(ENCAP)?;
        let remote = self.remote.ok_or_else(|| BadValue(format!("vxlan_encap needs a remote: {ENCAP}")))?;
        let ends = Ends::new(local, remote);
        let ends = ends.ok_or_else(|| {
            BadValue(format!("vxlan_encap: {local} and {remote} are not of one version of IP"))
        })?;
        if !ends.are_hosts() {
            let wrong = format!(
                "vxlan_encap: {local} and {remote} must each be the address of one machine, and not link-local"
            );
            return Err(BadValue(wrong));
        }
        let mtu = self.number("mtu", self.mtu, 128, 65_000)?.unwrap_or(1500) as u16;
        let hops = self.number("ttl", self.ttl, 1, u8::MAX.into())?.unwrap_or(64) as u8;
        let is_whole = match self.df.as_deref() {
            None | Some("clear") => false,
            Some("set") => true,
            Some(other) => {
                return Err(BadValue(format!(
                    "vxlan_encap: df = {other:?} is not allowed: \"set\" or \"clear\""
                )));
            }
        };
        Ok(Vxlan { vni, ends, port, mtu, hops, is_whole })
    }

    fn mirror(&self) -> Result<MirrorSettings, BadValue> {
        self.has_only(&["file", "snap_bytes", "file_mib", "every_packets"], MIRROR)?;
        let file = self.file.clone().filter(|file| !file.as_os_str().is_empty());
        let file = file.ok_or_else(|| BadValue(format!("mirror needs a file: {MIRROR}")))?;
        let snap_bytes = self.number("snap_bytes", self.snap_bytes, 14, u16::MAX.into())?;
        let file_mib = self.number("file_mib", self.file_mib, 1, 4096)?;
        let every_packets = self.number("every_packets", self.every_packets, 1, 1 << 20)?;
        Ok(MirrorSettings {
            file,
            snap_bytes: snap_bytes.unwrap_or(256) as usize,
            file_bytes: file_mib.unwrap_or(100) << 20,
            every_packets: every_packets.unwrap_or(1) as u32,
        })
    }

    fn rate(&self) -> Result<Rate, BadValue> {
        self.has_only(&["packets_per_second", "bits_per_second", "burst_packets", "burst_bytes"], POLICE)?;
        let within = |value: i64, most: u64, name: &str| match u64::try_from(value) {
            Ok(value) if (1..=most).contains(&value) => Ok(value),
            _ => Err(BadValue(format!("police: {name} = {value} is not allowed: 1 to {most}"))),
        };
        let Table { packets_per_second, bits_per_second, burst_packets, burst_bytes, .. } = *self;
        match (packets_per_second, burst_packets, bits_per_second, burst_bytes) {
            (Some(rate), Some(burst), None, None) => Ok(Rate::Packets {
                per_second: within(rate, MOST_RATE, "packets_per_second")?,
                burst: within(burst, MOST_BURST, "burst_packets")?,
            }),
            (None, None, Some(rate), Some(burst)) => Ok(Rate::Bytes {
                bits_per_second: within(rate, MOST_RATE, "bits_per_second")?,
                burst: within(burst, MOST_BURST, "burst_bytes")?,
            }),
            _ => Err(BadValue(format!("police needs a rate and the burst that goes with it: {POLICE}"))),
        }
    }
}

impl<'de> Deserialize<'de> for ElementSettings {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(NameOrTable)
    }
}

struct NameOrTable;

impl<'de> Visitor<'de> for NameOrTable {
    type Value = ElementSettings;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an element, {NAMES}, or with parameters: {FORWARD}")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<ElementSettings, E> {
        Table { element: name.into(), ..Table::default() }.settings().map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ElementSettings, A::Error> {
        Table::deserialize(MapAccessDeserializer::new(map))?.settings().map_err(A::Error::custom)
    }
}

impl ElementSettings {
    /// Does it encrypt, so that its packets must not leave without it?
    pub fn encrypts(&self) -> bool {
        matches!(self, Self::EspEncrypt(_))
    }

    /// The name of the port that it sends to.
    pub fn port(&self) -> Option<&PortName> {
        match self {
            Self::Forward(port) => Some(port),
            _ => None,
        }
    }

    /// The settings of its capture file, if it is a `mirror`.
    pub fn mirror(&self) -> Option<&MirrorSettings> {
        match self {
            Self::Mirror(mirror) => Some(mirror),
            _ => None,
        }
    }

    /// Makes the element, with these tables, SAs and capture files. `Err`: there is no port of this name.
    pub fn element<M: Memory + Clone + Send + 'static>(
        &self,
        memory: &M,
        sas: &Arc<SaTable>,
        captures: &Captures,
        port: impl Fn(&PortName) -> Option<PortId>,
    ) -> Result<Box<dyn Element>, &PortName> {
        Ok(match self {
            Self::Check => Box::new(Check),
            Self::Route => Box::new(Route::new(memory.clone())),
            Self::Ttl => Box::new(Ttl),
            Self::Rewrite => Box::new(Rewrite),
            Self::Forward(name) => Box::new(Forward::new(port(name).ok_or(name)?)),
            Self::CrcAppend => Box::new(CrcAppend),
            Self::CrcCheck => Box::new(CrcCheck),
            Self::Police(rate) => Box::new(Police::new(*rate)),
            Self::Count => Box::<Count>::default(),
            Self::Mirror(MirrorSettings { file, snap_bytes, every_packets, .. }) => {
                Box::new(Mirror::new(captures.copies(file), *snap_bytes, *every_packets))
            }
            Self::Discard => Box::new(Discard),
            Self::EspEncrypt(Name(name)) => Box::new(EspEncrypt::new(sas.clone(), name)),
            Self::EspDecrypt(names) => {
                let names = names.iter().map(|name| name.0.clone()).collect();
                Box::new(EspDecrypt::new(sas.clone(), names))
            }
            Self::VxlanEncap(vxlan) => Box::new(VxlanEncap::new(*vxlan)),
            Self::VxlanDecap(vni, local, remote, port) => {
                Box::new(VxlanDecap::new(*vni, *local, *remote, *port))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        base::reference::{file, quoted, tables},
        config::{PathsConfig, reference::range},
    };
    use std::{collections::BTreeSet, path::Path};

    /// The parameters of each element. Other elements have none.
    const KEYS: [(&str, &[&str]); 7] = [
        ("forward", &["port"]),
        ("police", &["packets_per_second", "bits_per_second", "burst_packets", "burst_bytes"]),
        ("mirror", &["file", "snap_bytes", "file_mib", "every_packets"]),
        ("esp_encrypt", &["sa"]),
        ("esp_decrypt", &["sas"]),
        ("vxlan_encap", &["vni", "local", "remote", "udp_port", "mtu", "ttl", "df"]),
        ("vxlan_decap", &["vni", "local", "remote", "udp_port"]),
    ];

    #[test]
    fn the_page_has_all_elements_with_their_parameters() {
        let page = std::fs::read_to_string(file("docs/reference/config.md")).unwrap();
        let mut shown = BTreeMap::new();
        for row in tables(&page).iter().filter(|table| table.columns[0] == "element").flat_map(|t| &t.rows) {
            let keys: BTreeSet<_> =
                quoted(&row[1]).filter(|word| !word.starts_with('"')).map(String::from).collect();
            shown.extend(quoted(&row[0]).map(|element| (element.to_string(), keys.clone())));
        }
        let keys =
            |element: &str| KEYS.iter().find(|(name, _)| *name == element).map_or(&[][..], |(_, keys)| keys);
        let known = NAMES
            .split('"')
            .skip(1)
            .step_by(2)
            .map(|name| (name.to_string(), keys(name).iter().map(|k| k.to_string()).collect()));
        assert_eq!(shown, known.collect());
    }

    /// Parameters are written as in "`file_mib` = 100 (1 to 4096)".
    #[test]
    fn the_page_has_the_defaults_and_ranges_of_parameters() {
        let page = std::fs::read_to_string(file("docs/reference/config.md")).unwrap();
        let tables = tables(&page);
        let rows = tables.iter().find(|table| table.columns[0] == "element").unwrap().rows.iter();
        let mut compared = 0;
        for row in rows.filter(|row| row[1].contains(" = ") || row[1].contains(" to ")) {
            let form = [MIRROR, ENCAP, DECAP]
                .into_iter()
                .find(|form| form.contains(quoted(&row[0]).next().unwrap()));
            let Some((least, _)) = form.and_then(|form| form.split_once(" }")) else { continue };
            let parse = |key: &str, value: &str| {
                let least =
                    least.split(", ").filter(|one| !one.starts_with(key)).collect::<Vec<_>>().join(", ");
                let text = format!("element = {least}, {key} = {value} }}");
                toml::from_str::<BTreeMap<String, ElementSettings>>(&text).map_err(|error| error.to_string())
            };
            let without = toml::from_str(&format!("element = {least} }}")).unwrap();
            for part in row[1].split(';').flat_map(|part| part.split("), ")) {
                let key = quoted(part).next().unwrap();
                if let Some((_, default)) = part.split_once(" = ").filter(|(_, default)| *default != "any") {
                    let default = default.split(' ').next().unwrap().trim_matches('`');
                    assert_eq!(parse(key, default).as_ref(), Ok(&without), "{part}");
                    compared += 1;
                }
                if let Some((least, most)) = range(part) {
                    let is_allowed = |value: i64| parse(key, &value.to_string()).is_ok();
                    let found = [least - 1, least, most, most + 1].map(is_allowed);
                    assert_eq!(found, [false, true, true, false], "{part}");
                    compared += 1;
                }
            }
        }
        assert!(compared >= 12, "{compared}");
    }

    #[test]
    fn a_wrong_parameter_is_refused_and_the_right_ones_are_named() {
        let elements: Vec<_> = NAMES.split('"').skip(1).step_by(2).collect();
        assert_eq!(elements.len(), 15);
        let all: BTreeSet<_> = KEYS.iter().flat_map(|(_, keys)| *keys).copied().collect();
        for element in elements {
            let own = KEYS.iter().find(|(name, _)| *name == element).map_or(&[][..], |(_, keys)| keys);
            // A parameter of no element, and those of others.
            for key in ["burst"].iter().chain(all.iter().filter(|key| !own.contains(key))) {
                let value = match *key {
                    "port" | "sa" | "df" | "file" => "\"x\"",
                    "sas" => "[\"x\"]",
                    "local" | "remote" => "\"192.0.2.1\"",
                    _ => "7",
                };
                let text = format!(
                    "[[path]]\nname = \"a\"\n\nchain = [{{ element = \"{element}\", {key} = {value} }}, \"discard\"]\n"
                );
                let error = PathsConfig::parse(Path::new("p.toml"), &text).unwrap_err().to_string();
                let head = format!("p.toml:4: path.chain: {element} has no parameter {key}: ");
                let form = error.strip_prefix(&head).unwrap_or_else(|| panic!("{error}, and not {head}"));
                if own.is_empty() {
                    assert_eq!(form, format!("\"{element}\" alone"));
                } else {
                    let words = form.split(|c: char| !c.is_ascii_lowercase() && c != '_');
                    let named: BTreeSet<_> = words.filter(|word| all.contains(word)).collect();
                    assert_eq!(named, BTreeSet::from_iter(own.iter().copied()), "{form}");
                }
            }
        }
    }
}
