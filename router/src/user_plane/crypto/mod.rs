//! AES-GCM for ESP ([`logic::esp::Aead`]), by the fastest library on this machine.
//!
//! | file | library | when |
//! |---|---|---|
//! | `ipsec_mb.rs` | Intel's multi-buffer library, from Debian, opened at run time | the supported version is installed, and the CPU has AES and carry-less multiplication |
//! | `aws_lc.rs` | aws-lc-rs, part of the program | otherwise |
//!
//! Both give the same bytes (`tests.rs`, Wycheproof's and NIST's vectors). docs/measured.md has their speeds.

mod aws_lc;
mod ipsec_mb;
#[cfg(test)]
mod tests;

pub use ipsec_mb::Absent;

use crate::config::Library;
use logic::esp::{Aead, Key};
use std::sync::Arc;

impl Library {
    /// The fastest library on this machine, and why it is not ipsec-mb.
    pub fn best() -> (Library, Option<Absent>) {
        match ipsec_mb::check() {
            Ok(()) => (Library::IpsecMb, None),
            Err(why) => (Library::AwsLc, Some(why)),
        }
    }

    /// Checks that the library can be used.
    pub fn check(self) -> Result<(), Absent> {
        match self {
            Library::IpsecMb => ipsec_mb::check(),
            Library::AwsLc => Ok(()),
        }
    }

    /// Expands a key for this library.
    pub fn expand(self, key: &Key) -> Result<Arc<dyn Aead>, Absent> {
        Ok(match self {
            Library::IpsecMb => Arc::new(ipsec_mb::Expanded::new(key)?),
            Library::AwsLc => Arc::new(aws_lc::Expanded::new(key)),
        })
    }
}
