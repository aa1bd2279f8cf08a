//! Security associations of paths: reads keys, expands them with a library, and reserves sequence numbers.
//!
//! | file | holds |
//! |---|---|
//! | this one | [`Sas`]: the table that elements read, and its changes |
//! | `running.rs` | [`RunningSas`]: the SAs of a daemon, with the thread that reserves numbers |
//! | `key.rs` | reads keys |
//! | `sequence_file.rs` | notes sequence numbers in a file before they are used |

pub(crate) mod key;
mod running;
pub(crate) mod sequence_file;
#[cfg(test)]
mod tests;

pub use running::{Prepared, RunningSas};

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

/// The SAs of all paths. None, by default.
#[derive(Default)]
pub struct Sas {
    pub table: Arc<SaTable>,
    /// The configured library; `None`: the fastest.
    wanted: Option<Library>,
    library: Option<Library>,
    /// Why `library` is not the fastest.
    note: Option<String>,
    made: Vec<Made>,
    /// SAs that were replaced or removed, while a worker may still have them.
    leaving: Vec<Made>,
    /// Keys of SAs that are gone, by fingerprint.
    spent: BTreeMap<String, Spent>,
}

/// What a key was used for.
#[derive(Clone, Copy)]
enum Spent {
    /// To send, up to this number.
    Outbound(u64),
    Inbound,
}

/// One SA.
struct Made {
    config: SaConfig,
    /// The fingerprint of its key.
    fingerprint: String,
    kind: Kind,
    /// The key file of an outbound SA, locked as long as this exists.
    _key_file: Option<File>,
}

enum Kind {
    /// Without a file in tests, which have all numbers.
    Outbound(Arc<Outbound>, Option<Arc<Mutex<SequenceFile>>>),
    Inbound(Arc<Inbound>),
}

/// A key, and its file if it is locked.
type ReadKey = Result<(Key, Option<File>), String>;
/// The file that numbers are noted in; `None`: they are not noted.
type Numbers = Result<Option<SequenceFile>, String>;

/// How keys are read and numbers are noted. Tests replace these.
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
    /// The SAs of a file. Reads keys, and opens sequence files. It reserves no numbers: [`Sas::reserve`] does that when nothing else can
    /// fail any more, because each start that fails after it would use up a block.
    pub fn load(config: &SasConfig) -> Result<Sas, ConfigError> {
        Sas::by(config, &FILES)
    }

    /// For tests: keys are not read, and numbers are not noted.
    pub fn forgetful(config: &SasConfig, key: impl Fn(&SaConfig) -> Key) -> Result<Sas, ConfigError> {
        Sas::by(config, &Means { key: &|sa| Ok((key(sa), None)), numbers: &|_, _| Ok(None) })
    }

    fn by(config: &SasConfig, means: &Means<'_>) -> Result<Sas, ConfigError> {
        let mut sas = Sas { wanted: config.crypto, ..Sas::default() };
        let made = sas.make(&config.sas, means)?;
        sas.put(made);
        Ok(sas)
    }

    /// Sets the SAs `set`, and then removes `remove`. An outbound SA replaces the one with its name; a batch uses one of the two for all
    /// of its packets. An inbound SA joins those with its name until they are removed. [`Sas::tidy`] lets go of SAs that were replaced
    /// or removed.
    ///
    /// # Errors
    /// One of the changes is not possible. Then nothing changes.
    pub fn change(&mut self, set: &[SaConfig], remove: &[SaName]) -> Result<(), String> {
        self.change_by(set, remove, &FILES)
    }

    fn change_by(&mut self, set: &[SaConfig], remove: &[SaName], means: &Means<'_>) -> Result<(), String> {
        let made = self.prepare(set, remove, means)?;
        self.put(made);
        for SaName { sa, spi } in remove {
            self.remove(sa, *spi);
        }
        Ok(())
    }

    /// Takes all steps of a change that can fail. The SAs are then put into the table with [`Sas::put`], or given back with
    /// [`Sas::give_back`].
    fn prepare(
        &mut self,
        set: &[SaConfig],
        remove: &[SaName],
        means: &Means<'_>,
    ) -> Result<Vec<Made>, String> {
        for SaName { sa, spi } in remove {
            if !self.made.iter().any(|made| (&made.config.name, made.config.spi) == (sa, *spi)) {
                return Err(format!("there is no SA {sa} with SPI {spi}: see `millrace sas`"));
            }
        }
        if let Some(both) =
            set.iter().find(|sa| remove.iter().any(|gone| (&gone.sa, gone.spi) == (&sa.name, sa.spi)))
        {
            return Err(format!("SA {} with SPI {} is both set and removed", both.name, both.spi));
        }
        let made = self.make(set, means).map_err(|wrong| wrong.to_string())?;
        if let Some((of, why)) = made.iter().find_map(|made| Some((made, made.reserve().err()?))) {
            let why = of.config.wrong("sequence_file", why).to_string();
            return Err([vec![why], Sas::give_back(made)].concat().join("; "));
        }
        Ok(made)
    }

    /// Gives back the numbers that were reserved for unused SAs. Returns the errors.
    fn give_back(made: Vec<Made>) -> Vec<String> {
        made.into_iter().filter_map(|made| made.finish().1.err()).collect()
    }

    /// The change from the SAs of one configuration to those of another: SAs to set and to remove. SAs that are in both
    /// configurations stay as they are, even if `sas set` has set others meanwhile.
    ///
    /// # Errors
    /// An SA has changed, but keeps the SPI of a running one.
    fn difference(&self, old: &SasConfig, new: &SasConfig) -> Result<(Vec<SaConfig>, Vec<SaName>), String> {
        let has = |all: &[SaConfig], sa: &SaConfig| all.iter().any(|other| other.is_same(sa));
        let running = |sa: &SaConfig| self.made.iter().any(|made| made.config.is_same(sa));
        let set: Vec<SaConfig> =
            new.sas.iter().filter(|sa| !has(&old.sas, sa) && !running(sa)).cloned().collect();
        let is = |sa: &SaConfig, other: &SaConfig| (&sa.name, sa.spi) == (&other.name, other.spi);
        if let Some(changed) = set.iter().find(|sa| self.made.iter().any(|made| is(&made.config, sa))) {
            return Err(changed
                .wrong(
                    "spi",
                    "a changed SA needs another SPI, and another key, because no key may be used twice"
                        .into(),
                )
                .to_string());
        }
        let is_replaced = |sa: &SaConfig| {
            sa.is_outbound() && set.iter().any(|new| new.is_outbound() && new.name == sa.name)
        };
        let goes = |sa: &&SaConfig| {
            let was_configured =
                old.sas.iter().any(|old| is(old, sa)) && !new.sas.iter().any(|new| is(new, sa));
            (was_configured || !new.uses(&sa.name)) && !is_replaced(sa)
        };
        let gone = self.made.iter().map(|made| &made.config).filter(goes);
        let remove = gone.map(|sa| SaName { sa: sa.name.clone(), spi: sa.spi }).collect();
        Ok((set, remove))
    }

    /// Makes SAs, without putting them into the table.
    fn make(&mut self, sas: &[SaConfig], means: &Means<'_>) -> Result<Vec<Made>, ConfigError> {
        let mut all = Vec::<Made>::new();
        for sa in sas {
            let wrong = |key: &str, message: String| sa.wrong(key, message);
            if self.made.len() + self.leaving.len() + all.len() >= MOST_SAS {
                return Err(wrong("name", format!("only {MOST_SAS} SAs are possible")));
            }
            let library = self.library().map_err(|why| wrong("name", why))?;
            let (key, key_file) = (means.key)(sa).map_err(|why| wrong("key", why))?;
            let fingerprint = sequence_file::fingerprint(&key);
            let mut others = self.made.iter().chain(&self.leaving).chain(&all);
            if let Some(other) = others.clone().find(|other| other.fingerprint == fingerprint) {
                let message = format!(
                    "it has the key of SA {}: two SAs with one key use the same key stream for different packets, and both can be read (docs/howto/esp.md)",
                    other.config.name
                );
                return Err(wrong("key", message));
            }
            let is_outbound = matches!(sa.direction, Direction::Outbound { .. });
            let spent = self.spent.get(&fingerprint).copied();
            if spent.is_some_and(|spent| matches!(spent, Spent::Outbound(_)) != is_outbound) {
                let message =
                    "an SA of the other direction used its key (docs/howto/esp.md): it needs a new key";
                return Err(wrong("key", message.into()));
            }
            if let Some(other) = others.find(|other| other.config.is_confused_with(sa)) {
                let message = format!("SA {} already has its SPI", other.config.name);
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
                            "{most} numbers were used with its key, but this file says {used}, so numbers would be used again (docs/howto/esp.md)"
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

    /// Lets go of SAs that no worker has any more, and notes the numbers that they really used.
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

    /// Reserves more sequence numbers where few are left. It must be called before the first run, and between runs. If the numbers
    /// cannot be noted, the SA uses those that it has, and then stops.
    pub fn reserve(&mut self) -> Result<(), String> {
        first_error(self.made.iter().map(Made::reserve))
    }

    /// The outbound SAs.
    fn sending(&self) -> Vec<Sending> {
        self.made.iter().filter_map(Made::sending).collect()
    }

    /// The library; `None`: there are no SAs.
    pub fn crypto(&self) -> Option<CryptoReport> {
        let library = self.library?.name().into();
        Some(CryptoReport { library, note: self.note.clone() })
    }

    /// All SAs with their present sequence numbers.
    pub fn report(&self) -> Vec<SaReport> {
        self.listed().iter().filter_map(Listed::report).collect()
    }

    fn listed(&self) -> Vec<Listed> {
        self.made.iter().map(Listed::of).collect()
    }

    /// Notes the numbers that were really used, so that other reserved numbers are not lost. Nothing may be sent any more: elements that
    /// had the table are gone.
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

/// What is reported of an SA. It does not keep the SA alive.
struct Listed {
    /// The report without numbers.
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

    /// The report; `None`: the SA is gone.
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

/// Does all of them, also after an error; returns the first error.
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
    /// `None`: it is inbound, or of a test.
    fn sending(&self) -> Option<Sending> {
        let Kind::Outbound(sa, Some(file)) = &self.kind else { return None };
        Some(Sending { name: self.config.name.clone(), sa: sa.clone(), file: file.clone() })
    }

    fn reserve(&self) -> Result<(), String> {
        self.sending().map_or(Ok(()), |sending| sending.reserve())
    }

    /// Returns what its key was used for, and whether that is noted. If an element still has the SA, it may still send, so all reserved
    /// numbers stay used.
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
