//! Security associations: reports and requests.

use serde::{Deserialize, Serialize};
use std::{net::IpAddr, path::PathBuf};

/// The library that encrypts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CryptoReport {
    pub library: String,
    /// Why it is not ipsec-mb.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// An SA.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SaReport {
    pub sa: String,
    pub spi: u32,
    /// `outbound` or `inbound`.
    pub direction: String,
    /// `tunnel` or `transport`.
    pub mode: String,
    pub local: IpAddr,
    pub remote: IpAddr,
    /// The last sequence number sent, or the highest received.
    pub sequence: u64,
    /// Outbound: how many packets it can still send.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<u64>,
}

/// All security associations (`millrace sas`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SasReport {
    /// `None`: there are no SAs.
    pub crypto: Option<CryptoReport>,
    pub sas: Vec<SaReport>,
}

/// Identifies an SA; several inbound ones may share a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SaName {
    pub sa: String,
    pub spi: u32,
}

/// Changes of security associations, all or none: first `set`, then `remove`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SasRequest {
    /// TOML with `[[sa]]` tables, as in the daemon's configuration.
    #[serde(default)]
    pub set: String,
    /// The file name of `set`: relative file names begin in its directory, and errors name it.
    #[serde(default)]
    pub file: PathBuf,
    #[serde(default)]
    pub remove: Vec<SaName>,
}
