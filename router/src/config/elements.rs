//! Elements of a chain: `"check"`, or `{ element = "forward", port = "eth1" }` for those with parameters, which are those of the element's
//! manual page (`logic/src/elements/`).

use super::{BadValue, PortName, paths::Name};
use logic::{
    elements::{
        Check, Count, CrcAppend, CrcCheck, Discard, Element, EspDecrypt, EspEncrypt, Forward, Police, Rate,
        Rewrite, Route, Ttl,
    },
    esp::SaTable,
    memory::Memory,
    plan::PortId,
};
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, Visitor, value::MapAccessDeserializer},
};
use std::{fmt, sync::Arc};

/// One of a chain.
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
    Discard,
    /// By this SA.
    EspEncrypt(Name),
    /// By any of these.
    EspDecrypt(Vec<Name>),
}

const NAMES: &str = "\"check\", \"route\", \"ttl\", \"rewrite\", \"forward\", \"crc_append\", \"crc_check\", \"police\", \"count\", \"discard\", \"esp_encrypt\" or \"esp_decrypt\"";
const POLICE: &str = "{ element = \"police\", packets_per_second = 1000, burst_packets = 32 }, or bits_per_second and burst_bytes";
const ENCRYPT: &str = "{ element = \"esp_encrypt\", sa = \"to-b\" }";
const DECRYPT: &str = "{ element = \"esp_decrypt\", sas = [\"from-b\"] }";
const FORWARD: &str = "{ element = \"forward\", port = \"eth1\" }";
/// Of `police` (`logic/src/elements/police.rs`).
const MOST_RATE: u64 = 1 << 40;
const MOST_BURST: u64 = 1 << 31;

/// An element with parameters.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    element: String,
    port: Option<PortName>,
    packets_per_second: Option<i64>,
    bits_per_second: Option<i64>,
    burst_packets: Option<i64>,
    burst_bytes: Option<i64>,
    sa: Option<Name>,
    sas: Option<Vec<Name>>,
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
            "police" => return self.rate().map(ElementSettings::Police),
            _ => return Err(BadValue(format!("{name:?} is no element: {NAMES}"))),
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
        ];
        match given.iter().find(|(name, given)| *given && !allowed.contains(name)) {
            Some((name, _)) => Err(BadValue(format!("{} has no parameter {name}: {form}", self.element))),
            None => Ok(()),
        }
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
    /// It needs security associations.
    pub fn needs_sas(&self) -> bool {
        matches!(self, Self::EspEncrypt(_) | Self::EspDecrypt(_))
    }

    /// That it sends to, by name.
    pub fn port(&self) -> Option<&PortName> {
        match self {
            Self::Forward(port) => Some(port),
            _ => None,
        }
    }

    /// The element, over these tables and SAs. `Err`: there is no such port.
    pub fn element<M: Memory + Clone + Send + 'static>(
        &self,
        memory: &M,
        sas: &Arc<SaTable>,
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
            Self::Discard => Box::new(Discard),
            Self::EspEncrypt(Name(name)) => Box::new(EspEncrypt::new(sas.clone(), name)),
            Self::EspDecrypt(names) => {
                let names = names.iter().map(|name| name.0.clone()).collect();
                Box::new(EspDecrypt::new(sas.clone(), names))
            }
        })
    }
}
