//! Security associations: reports and requests.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{net::IpAddr, path::PathBuf};

/// The library that encrypts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CryptoReport {
    /// Its name.
    pub library: String,
    /// Why it is not ipsec-mb.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// An SA.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SaReport {
    /// Its name.
    pub sa: String,
    /// Its SPI.
    pub spi: u32,
    /// `outbound` or `inbound`.
    pub direction: String,
    /// `tunnel` or `transport`.
    pub mode: String,
    /// The address of this end.
    pub local: IpAddr,
    /// The address of the other end.
    pub remote: IpAddr,
    /// The last sequence number sent, or the highest received.
    pub sequence: u64,
    /// Outbound: how many packets it can still send.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<u64>,
}

/// All security associations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SasReport {
    /// The library that encrypts; null: there are no SAs.
    pub crypto: Option<CryptoReport>,
    /// The security associations.
    pub sas: Vec<SaReport>,
}

/// Identifies an SA; several inbound ones may share a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SaName {
    /// Its name.
    pub sa: String,
    /// Its SPI.
    pub spi: u32,
}

/// Changes of security associations, all or none: first `set`, then `remove`.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SasRequest {
    /// TOML with `[[sa]]` tables, as in the daemon's configuration.
    #[serde(default)]
    pub set: String,
    /// The absolute name of the file that `set` comes from; required with `set`. Relative file names in `set` begin in its
    /// directory, and errors name it.
    #[serde(default)]
    pub file: PathBuf,
    /// Security associations to remove.
    #[serde(default)]
    pub remove: Vec<SaName>,
}
