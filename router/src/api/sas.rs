//! Security associations: what clients see, and ask for.

use serde::{Deserialize, Serialize};
use std::{net::IpAddr, path::PathBuf};

/// Which library encrypts.
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
    /// The last sequence number that was sent, or the highest that came.
    pub sequence: u64,
    /// Outbound: how many it can still send.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<u64>,
}

/// All of them (`millrace sas`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SasReport {
    /// `None`: there are no SAs.
    pub crypto: Option<CryptoReport>,
    pub sas: Vec<SaReport>,
}

/// Which SA is meant; several inbound ones may have one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SaName {
    pub sa: String,
    pub spi: u32,
}

/// Changes of security associations: these are set, and then those removed, all or none.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SasRequest {
    /// `[[sa]]` tables of TOML, as in the daemon's file.
    #[serde(default)]
    pub set: String,
    /// Where relative paths in it begin, and what errors call it.
    #[serde(default)]
    pub file: PathBuf,
    #[serde(default)]
    pub remove: Vec<SaName>,
}
