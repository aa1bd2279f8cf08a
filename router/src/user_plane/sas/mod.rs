//! Security associations of paths, made: keys read, expanded by a library, and sequence numbers reserved.
//!
//! | file | holds |
//! |---|---|
//! | this one | [`Sas`]: the table that elements read, what keeps it going, and how it is changed |
//! | `running.rs` | [`RunningSas`]: those of a daemon, with the thread that reserves numbers |
//! | `key.rs` | keys, read |
//! | `sequence_file.rs` | which sequence numbers are used, noted before they are |

pub(crate) mod key;
mod running;
pub(crate) mod sequence_file;
#[cfg(test)]
mod tests;

pub use running::RunningSas;

use crate::{
    api::sas::{CryptoReport, SaName, SaReport},
    base::guard::locked,
    config::{ConfigError, Direction, Library, SaConfig, SasConfig},
};
use logic::esp::{Common, Inbound, Key, Mode, Outbound, SaTable};
use sequence_file::SequenceFile;
use std::{
    collections::BTreeMap,
    fs::File,
    mem,
    sync::{Arc, Mutex, PoisonError, Weak},
};

/// The most SAs of one daemon.
const MOST_SAS: usize = 1024;

/// See the head of this file. Nothing, by default.
#[derive(Default)]
pub struct Sas {
    pub table: Arc<SaTable>,
    /// That is wanted; the fastest otherwise.
    wanted: Option<Library>,
    library: Option<Library>,
    /// Why that is not the fastest.
    note: Option<String>,
    made: Vec<Made>,
    /// Those that were replaced or removed, while a worker may still have them.
    leaving: Vec<Made>,
    /// Keys of those that are gone, by fingerprint.
    spent: BTreeMap<String, Spent>,
}

/// What a key was used for.
#[derive(Clone, Copy)]
enum Spent {
    /// To send, up to this number.
    Outbound(u64),
    Inbound,
}

/// One of them.
struct Made {
    config: SaConfig,
    /// Of the key.
    fingerprint: String,
    kind: Kind,
    /// Of the key of what is sent, locked as long as this is there.
    _key_file: Option<File>,
}

enum Kind {
    /// Without a file: of a test, which has all numbers.
    Outbound(Arc<Outbound>, Option<Arc<Mutex<SequenceFile>>>),
    Inbound(Arc<Inbound>),
}

/// A key; and its file, locked.
type ReadKey = Result<(Key, Option<File>), String>;
/// Where numbers are noted, if they are.
type Numbers = Result<Option<SequenceFile>, String>;

/// How keys are read, and numbers noted; tests do without.
struct Means<'a> {
    key: &'a dyn Fn(&SaConfig) -> ReadKey,
    numbers: &'a dyn Fn(&SaConfig, &Key) -> Numbers,
}

const FILES: Means<'static> = Means {
    key: &|sa| key::read(&sa.key, matches!(sa.direction, Direction::Outbound { .. })),
    numbers: &|sa, key| match &sa.direction {
        Direction::Inbound { .. } => Ok(None),
        Direction::Outbound { sequence_file, .. } => {
            SequenceFile::open(sequence_file, key).map(Some).map_err(|e| e.to_string())
        }
    },
};

impl Sas {
    /// Those of a file; reads keys, and opens the files that have sequence numbers. None is reserved: [`Sas::reserve`] does that when all else
    /// is there, as each start that fails behind it would cost a block.
    pub fn load(config: &SasConfig) -> Result<Sas, ConfigError> {
        Sas::by(config, &FILES)
    }

    /// For tests: with keys that are not read, and numbers that nobody notes.
    pub fn forgetful(config: &SasConfig, key: impl Fn(&SaConfig) -> Key) -> Result<Sas, ConfigError> {
        Sas::by(config, &Means { key: &|sa| Ok((key(sa), None)), numbers: &|_, _| Ok(None) })
    }

    fn by(config: &SasConfig, means: &Means<'_>) -> Result<Sas, ConfigError> {
        let mut sas = Sas { wanted: config.crypto, ..Sas::default() };
        let made = sas.make(&config.sas, means)?;
        sas.put(made);
        Ok(sas)
    }

    /// Sets these, and then removes those. An outbound SA takes the place of the one of its name, whole batches go by the one or by the other;
    /// an inbound one comes beside those of its name, until they are removed. What is replaced or removed is let go of by [`Sas::tidy`].
    ///
    /// # Errors
    /// Why one cannot be, and nothing is changed.
    pub fn change(&mut self, set: &[SaConfig], remove: &[SaName]) -> Result<(), String> {
        self.change_by(set, remove, &FILES)
    }

    fn change_by(&mut self, set: &[SaConfig], remove: &[SaName], means: &Means<'_>) -> Result<(), String> {
        for SaName { sa, spi } in remove {
            if !self.made.iter().any(|made| (&made.config.name, made.config.spi) == (sa, *spi)) {
                return Err(format!("there is no SA {sa} with SPI {spi}: see `millrace sas`"));
            }
        }
        if let Some(both) =
            set.iter().find(|sa| remove.iter().any(|gone| (&gone.sa, gone.spi) == (&sa.name, sa.spi)))
        {
            return Err(format!("SA {} with SPI {} is set and removed at once", both.name, both.spi));
        }
        let made = self.make(set, means).map_err(|wrong| wrong.to_string())?;
        if let Some((of, why)) = made.iter().find_map(|made| Some((made, made.reserve().err()?))) {
            let why = of.config.wrong("sequence_file", why).to_string();
            // What was reserved of others before is given back.
            let given_back: Vec<_> = made.into_iter().filter_map(|made| made.finish().1.err()).collect();
            return Err([vec![why], given_back].concat().join("; "));
        }
        self.put(made);
        for SaName { sa, spi } in remove {
            self.remove(sa, *spi);
        }
        Ok(())
    }

    /// Without any of them in the table yet.
    fn make(&mut self, sas: &[SaConfig], means: &Means<'_>) -> Result<Vec<Made>, ConfigError> {
        let mut all = Vec::<Made>::new();
        for sa in sas {
            let wrong = |key: &str, message: String| sa.wrong(key, message);
            if self.made.len() + self.leaving.len() + all.len() >= MOST_SAS {
                return Err(wrong("name", format!("{MOST_SAS} SAs are possible")));
            }
            let library = self.library().map_err(|why| wrong("name", why))?;
            let (key, key_file) = (means.key)(sa).map_err(|why| wrong("key", why))?;
            let fingerprint = sequence_file::fingerprint(&key);
            let mut others = self.made.iter().chain(&self.leaving).chain(&all);
            if let Some(other) = others.clone().find(|other| other.fingerprint == fingerprint) {
                let message = format!(
                    "it has the key of SA {}: two SAs with one key encrypt different packets alike, and both can be read (docs/howto/esp.md)",
                    other.config.name
                );
                return Err(wrong("key", message));
            }
            let is_outbound = matches!(sa.direction, Direction::Outbound { .. });
            let spent = self.spent.get(&fingerprint).copied();
            if spent.is_some_and(|spent| matches!(spent, Spent::Outbound(_)) != is_outbound) {
                let message = "its key was another SA's, of the other direction (docs/howto/esp.md): it needs one of its own";
                return Err(wrong("key", message.into()));
            }
            if let Some(other) = others.find(|other| other.config.is_confused_with(sa)) {
                let message = format!("its SPI is that of SA {} already", other.config.name);
                return Err(wrong("spi", message));
            }
            let aead = library.expand(&key).map_err(|why| wrong("name", why.to_string()))?;
            let common = Common {
                spi: sa.spi,
                key: &key,
                aead,
                mode: sa.mode,
                is_extended: sa.is_extended,
                ends: sa.ends,
                udp: sa.udp,
                selectors: sa.selectors.clone(),
            };
            let kind = match sa.direction {
                Direction::Outbound { mtu, dont_fragment, .. } => {
                    let file = (means.numbers)(sa, &key).map_err(|why| wrong("sequence_file", why))?;
                    let used = file.as_ref().map_or(0, SequenceFile::used);
                    if let Some(Spent::Outbound(most)) = spent.filter(|_| file.is_some())
                        && used < most
                    {
                        let message = format!(
                            "{most} numbers were used with its key, and this file says {used}: with it they would be used again (docs/howto/esp.md)"
                        );
                        return Err(wrong("sequence_file", message));
                    }
                    let outbound = Arc::new(Outbound::new(common, mtu, dont_fragment, used));
                    if file.is_none() {
                        outbound.sequence.reserve(u64::MAX);
                    }
                    Kind::Outbound(outbound, file.map(|file| Arc::new(Mutex::new(file))))
                }
                Direction::Inbound { window, mtu } => {
                    let inbound =
                        Inbound::new(common, window, mtu).map_err(|e| wrong("window", e.to_string()))?;
                    Kind::Inbound(Arc::new(inbound))
                }
            };
            all.push(Made { config: sa.clone(), fingerprint, kind, _key_file: key_file });
        }
        Ok(all)
    }

    fn library(&mut self) -> Result<Library, String> {
        if let Some(library) = self.library {
            return Ok(library);
        }
        let (library, note) = match self.wanted {
            Some(library) => {
                library.check().map_err(|why| format!("crypto = \"{library}\": {why}"))?;
                (library, None)
            }
            None => Library::best(),
        };
        self.note = note.map(|why| why.to_string());
        self.library = Some(library);
        Ok(library)
    }

    fn put(&mut self, all: Vec<Made>) {
        for made in all {
            let name = &made.config.name;
            match &made.kind {
                Kind::Outbound(sa, _) => {
                    self.table.set_outbound(name, sa.clone());
                    let is_replaced = |old: &mut Made| {
                        matches!(old.kind, Kind::Outbound(..)) && old.config.name == made.config.name
                    };
                    self.leaving.extend(self.made.extract_if(.., is_replaced));
                }
                Kind::Inbound(sa) => {
                    let added = self.table.add_inbound(name, sa.clone());
                    debug_assert!(added, "SPIs differ");
                }
            }
            self.made.push(made);
        }
    }

    fn remove(&mut self, name: &str, spi: u32) {
        let is_it = |made: &mut Made| (made.config.name.as_str(), made.config.spi) == (name, spi);
        for made in self.made.extract_if(.., is_it) {
            match &made.kind {
                Kind::Outbound(..) => drop(self.table.remove_outbound(name)),
                Kind::Inbound(_) => drop(self.table.remove_inbound(spi)),
            }
            self.leaving.push(made);
        }
    }

    /// Lets go of those that are in no worker's hands any more, and notes which numbers they really used.
    fn tidy(&mut self) {
        let is_free = |made: &mut Made| match &made.kind {
            Kind::Outbound(sa, file) => {
                Arc::strong_count(sa) == 1 && file.as_ref().is_none_or(|file| Arc::strong_count(file) == 1)
            }
            Kind::Inbound(sa) => Arc::strong_count(sa) == 1,
        };
        for made in self.leaving.extract_if(.., is_free) {
            let fingerprint = made.fingerprint.clone();
            let (spent, noted) = made.finish();
            self.spent.insert(fingerprint, spent);
            if let Err(error) = noted {
                tracing::warn!("{error}");
            }
        }
    }

    /// Reserves more sequence numbers where few are left; to be called before the first run, and between runs. Where that cannot be noted, the SA sends
    /// what it has, and stops.
    pub fn reserve(&mut self) -> Result<(), String> {
        first_error(self.made.iter().map(Made::reserve))
    }

    /// Those that send.
    fn sending(&self) -> Vec<Sending> {
        self.made.iter().filter_map(Made::sending).collect()
    }

    /// Which library there is; `None`: there are no SAs.
    pub fn crypto(&self) -> Option<CryptoReport> {
        let library = self.library?.name().into();
        Some(CryptoReport { library, note: self.note.clone() })
    }

    /// What was sent and what came.
    pub fn report(&self) -> Vec<SaReport> {
        self.listed().iter().filter_map(Listed::report).collect()
    }

    fn listed(&self) -> Vec<Listed> {
        self.made.iter().map(Listed::of).collect()
    }

    /// Notes which numbers were really used, so that those that were reserved besides are not lost. Nothing may be sent any more: elements
    /// that had the table are gone.
    pub fn finish(&mut self) -> Result<(), String> {
        let mut first = Ok(());
        for made in mem::take(&mut self.made).into_iter().chain(mem::take(&mut self.leaving)) {
            match &made.kind {
                Kind::Outbound(..) => drop(self.table.remove_outbound(&made.config.name)),
                Kind::Inbound(_) => drop(self.table.remove_inbound(made.config.spi)),
            }
            first = first.and(made.finish().1);
        }
        first
    }
}

/// What is told of an SA, which it does not keep.
struct Listed {
    /// Without numbers.
    sa: SaReport,
    numbers: Counted,
}

enum Counted {
    Outbound(Weak<Outbound>),
    Inbound(Weak<Inbound>),
}

impl Listed {
    fn of(made: &Made) -> Listed {
        let SaConfig { name, spi, mode, ends, direction, .. } = &made.config;
        let mode = match mode {
            Mode::Tunnel => "tunnel",
            Mode::Transport => "transport",
        };
        let sa = SaReport {
            sa: name.clone(),
            spi: *spi,
            direction: direction.name().into(),
            mode: mode.into(),
            local: ends.local(),
            remote: ends.remote(),
            sequence: 0,
            left: None,
        };
        let numbers = match &made.kind {
            Kind::Outbound(sa, _) => Counted::Outbound(Arc::downgrade(sa)),
            Kind::Inbound(sa) => Counted::Inbound(Arc::downgrade(sa)),
        };
        Listed { sa, numbers }
    }

    /// `None`: it is gone.
    fn report(&self) -> Option<SaReport> {
        let (sequence, left) = match &self.numbers {
            Counted::Outbound(sa) => {
                let sequence = &sa.upgrade()?.sequence;
                (sequence.taken(), Some(sequence.last().saturating_sub(sequence.taken())))
            }
            Counted::Inbound(sa) => (sa.upgrade()?.window.top(), None),
        };
        Some(SaReport { sequence, left, ..self.sa.clone() })
    }
}

impl SaConfig {
    fn wrong(&self, key: &str, message: String) -> ConfigError {
        ConfigError::Wrong {
            file: self.file.clone(),
            line: self.line,
            key: Some(format!("sa.{key}")),
            message: format!("SA {}: {message}", self.name),
        }
    }
}

/// All are done, whatever one says.
fn first_error(all: impl Iterator<Item = Result<(), String>>) -> Result<(), String> {
    let errors: Vec<_> = all.filter_map(Result::err).collect();
    errors.into_iter().next().map_or(Ok(()), Err)
}

/// What is needed to reserve numbers of an SA.
struct Sending {
    name: String,
    sa: Arc<Outbound>,
    file: Arc<Mutex<SequenceFile>>,
}

impl Sending {
    fn reserve(&self) -> Result<(), String> {
        let mut file = locked(&self.file);
        file.reserve(&self.sa.sequence).map_err(|e| format!("SA {}: {e}", self.name))
    }
}

impl Made {
    /// `None`: it does not send, or is of a test.
    fn sending(&self) -> Option<Sending> {
        let Kind::Outbound(sa, Some(file)) = &self.kind else { return None };
        Some(Sending { name: self.config.name.clone(), sa: sa.clone(), file: file.clone() })
    }

    fn reserve(&self) -> Result<(), String> {
        self.sending().map_or(Ok(()), |sending| sending.reserve())
    }

    /// What its key was used for, and whether that is noted. An element that still has it may still send: then what was reserved stays used.
    fn finish(self) -> (Spent, Result<(), String>) {
        let Kind::Outbound(sa, file) = self.kind else { return (Spent::Inbound, Ok(())) };
        let reserved = sa.sequence.reserved();
        let file = file.and_then(Arc::into_inner);
        match (Arc::into_inner(sa), file) {
            (Some(sa), Some(file)) => {
                let file = file.into_inner().unwrap_or_else(PoisonError::into_inner);
                let taken = sa.sequence.taken();
                (
                    Spent::Outbound(taken),
                    file.finish(taken).map_err(|e| format!("SA {}: {e}", self.config.name)),
                )
            }
            _ => (Spent::Outbound(reserved), Ok(())),
        }
    }
}
