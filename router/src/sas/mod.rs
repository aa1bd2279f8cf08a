//! Security associations of a path file, made: keys read, expanded by a library, and sequence numbers reserved.
//!
//! | file | holds |
//! |---|---|
//! | this one | [`Sas`]: the table that elements read, and what keeps it going |
//! | `key.rs` | keys, read |
//! | `sequence_file.rs` | which sequence numbers are used, noted before they are |

mod key;
mod sequence_file;
#[cfg(test)]
mod tests;

use crate::{
    config::{ConfigError, Direction, PathsConfig, SaConfig},
    crypto::Library,
};
use logic::esp::{Common, Inbound, Key, Outbound, SaTable};
use sequence_file::SequenceFile;
use serde::Serialize;
use std::{fs::File, sync::Arc};

/// See the head of this file. Nothing, by default.
#[derive(Default)]
pub struct Sas {
    pub table: Arc<SaTable>,
    library: Option<Library>,
    /// Why that is not the fastest.
    note: Option<String>,
    made: Vec<Made>,
}

struct Made {
    name: String,
    spi: u32,
    kind: Kind,
    /// Of the key of what is sent, locked as long as this is there.
    key_file: Option<File>,
}

enum Kind {
    /// Without a file: of a test, which has all numbers.
    Outbound(Arc<Outbound>, Option<SequenceFile>),
    Inbound(Arc<Inbound>),
}

/// Which library encrypts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CryptoReport {
    pub library: &'static str,
    /// Why it is not ipsec-mb.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// An SA, when all is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SaReport {
    pub sa: String,
    pub spi: u32,
    pub direction: &'static str,
    /// The last sequence number that was sent, or the highest that came.
    pub sequence: u64,
}

impl Sas {
    /// Those of a file; reads keys, and opens the files that have sequence numbers. None is reserved: [`Sas::reserve`] does that when all else
    /// is there, as each start that fails behind it would cost a block.
    pub fn load(config: &PathsConfig) -> Result<Sas, ConfigError> {
        let open = |sa: &SaConfig, key: &Key| match &sa.direction {
            Direction::Inbound { .. } => Ok(None),
            Direction::Outbound { sequence_file, .. } => {
                SequenceFile::open(sequence_file, key).map(Some).map_err(|e| e.to_string())
            }
        };
        let key = |sa: &SaConfig| key::read(&sa.key, matches!(sa.direction, Direction::Outbound { .. }));
        Sas::made(config, key, open)
    }

    /// For tests: with keys that are not read, and numbers that nobody notes.
    pub fn forgetful(config: &PathsConfig, key: impl Fn(&SaConfig) -> Key) -> Result<Sas, ConfigError> {
        Sas::made(config, |sa| Ok((key(sa), None)), |_, _| Ok(None))
    }

    fn made(
        config: &PathsConfig,
        key: impl Fn(&SaConfig) -> Result<(Key, Option<File>), String>,
        open: impl Fn(&SaConfig, &Key) -> Result<Option<SequenceFile>, String>,
    ) -> Result<Sas, ConfigError> {
        let mut sas = Sas::default();
        let mut keys = Vec::<Key>::with_capacity(config.sas.len());
        for sa in &config.sas {
            let wrong = |key: &str, message: String| ConfigError::Wrong {
                file: sa.file.clone(),
                line: sa.line,
                key: Some(format!("sa.{key}")),
                message: format!("SA {}: {message}", sa.name),
            };
            let library = match (sas.library, config.crypto) {
                (Some(library), _) => library,
                (None, Some(library)) => {
                    library.check().map_err(|why| wrong("name", format!("crypto = \"{library}\": {why}")))?;
                    library
                }
                (None, None) => {
                    let (library, why) = Library::best();
                    sas.note = why.map(|why| why.to_string());
                    library
                }
            };
            sas.library = Some(library);
            let (read, key_file) = key(sa).map_err(|why| wrong("key", why))?;
            if let Some((_, other)) = keys.iter().zip(&config.sas).find(|(other, _)| **other == read) {
                let message = format!(
                    "it has the key of SA {}: two SAs with one key encrypt different packets alike, and both can be read (docs/esp.md)",
                    other.name
                );
                return Err(wrong("key", message));
            }
            let aead = library.expand(&read).map_err(|why| wrong("name", why.to_string()))?;
            let common = Common {
                spi: sa.spi,
                key: &read,
                aead,
                mode: sa.mode,
                is_extended: sa.is_extended,
                ends: sa.ends,
                udp: sa.udp,
                selectors: sa.selectors.clone(),
            };
            let kind = match sa.direction {
                Direction::Outbound { mtu, dont_fragment, .. } => {
                    let file = open(sa, &read).map_err(|why| wrong("sequence_file", why))?;
                    let used = file.as_ref().map_or(0, SequenceFile::used);
                    let outbound = Arc::new(Outbound::new(common, mtu, dont_fragment, used));
                    if file.is_none() {
                        outbound.sequence.reserve(u64::MAX);
                    }
                    sas.table.set_outbound(&sa.name, outbound.clone());
                    Kind::Outbound(outbound, file)
                }
                Direction::Inbound { window } => {
                    let inbound = Inbound::new(common, window).map_err(|e| wrong("window", e.to_string()))?;
                    let inbound = Arc::new(inbound);
                    if !sas.table.add_inbound(&sa.name, inbound.clone()) {
                        return Err(wrong("spi", "its SPI is another SA's already".into()));
                    }
                    Kind::Inbound(inbound)
                }
            };
            sas.made.push(Made { name: sa.name.clone(), spi: sa.spi, kind, key_file });
            keys.push(read);
        }
        Ok(sas)
    }

    /// Reserves more sequence numbers where few are left; to be called before the first run, and between runs. Where that cannot be noted, the SA sends
    /// what it has, and stops.
    pub fn reserve(&mut self) -> Result<(), String> {
        for Made { name, kind, .. } in &mut self.made {
            if let Kind::Outbound(sa, Some(file)) = kind {
                file.reserve(&sa.sequence).map_err(|e| format!("SA {name}: {e}"))?;
            }
        }
        Ok(())
    }

    /// Which library there is; `None`: there are no SAs.
    pub fn crypto(&self) -> Option<CryptoReport> {
        self.library.map(|library| CryptoReport { library: library.name(), note: self.note.clone() })
    }

    /// What was sent and what came.
    pub fn report(&self) -> Vec<SaReport> {
        let report = |made: &Made| {
            let (direction, sequence) = match &made.kind {
                Kind::Outbound(sa, _) => ("outbound", sa.sequence.taken()),
                Kind::Inbound(sa) => ("inbound", sa.window.top()),
            };
            SaReport { sa: made.name.clone(), spi: made.spi, direction, sequence }
        };
        self.made.iter().map(report).collect()
    }

    /// Notes which numbers were really used, so that those that were reserved besides are not lost. Nothing may be sent any more: elements
    /// that had the table are gone.
    pub fn finish(self) -> Result<(), String> {
        let Sas { table, made, .. } = self;
        made.iter().for_each(|made| drop(table.remove_outbound(&made.name)));
        drop(table);
        for Made { name, kind, key_file, .. } in made {
            if let Kind::Outbound(sa, Some(file)) = kind {
                // An element that still has it may still send: then what was reserved stays used.
                if let Some(sa) = Arc::into_inner(sa) {
                    file.finish(sa.sequence.taken()).map_err(|e| format!("SA {name}: {e}"))?;
                }
            }
            drop(key_file);
        }
        Ok(())
    }
}
