//! The SAs of a daemon. Requests change them, while a thread keeps sequence numbers reserved.
//!
//! Numbers are noted on a disk, which may take long. The thread holds no lock meanwhile that anything else needs, so neither workers
//! nor their control wait for it. A change reads keys and opens files, which may take as long, under a lock that only changes take. A
//! list of SAs shows the result of the last change, and does not keep SAs alive.

use super::{FILES, Listed, Made, Sas, Sending, first_error};
use crate::{
    api::sas::{CryptoReport, SaName, SasReport},
    base::guard::locked,
    config::{ConfigError, SasConfig},
};
use anyhow::{Context, Result};
use logic::esp::SaTable;
use std::{
    path::Path,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError},
    thread,
    time::Duration,
};

/// How often the thread looks whether an outbound SA needs more numbers.
const LOOKS: Duration = Duration::from_millis(50);

/// The SAs of a daemon; see the head of this file.
#[derive(Clone, Default)]
pub struct RunningSas(Arc<Running>);

#[derive(Default)]
struct Running {
    config: Mutex<SasConfig>,
    table: Arc<SaTable>,
    /// Locked during a change.
    sas: Mutex<Sas>,
    /// The SAs after the last change. Never locked for long.
    listing: Mutex<Listing>,
    work: Mutex<Work>,
    /// Notified when `work` changes.
    news: Condvar,
    /// Why numbers could not be noted the last time.
    condition: Mutex<Option<String>>,
}

#[derive(Default)]
struct Listing {
    crypto: Option<CryptoReport>,
    sas: Vec<Listed>,
}

/// The work of the thread.
#[derive(Default)]
struct Work {
    sending: Vec<Arc<Sending>>,
    /// There are SAs to let go of.
    is_untidy: bool,
    /// The thread was started.
    has_begun: bool,
    /// Nothing is sent any more.
    has_ended: bool,
}

impl Running {
    /// Publishes the SAs. It is called after each change, and before replaced SAs are let go of.
    fn tell(&self, sas: &Sas) {
        *locked(&self.listing) = Listing { crypto: sas.crypto(), sas: sas.listed() };
        let mut work = locked(&self.work);
        work.sending = sas.sending().into_iter().map(Arc::new).collect();
        work.is_untidy = !sas.leaving.is_empty();
        self.news.notify_all();
    }
}

/// A change that is ready to be put in force. If it is dropped, nothing changes.
#[must_use]
pub struct Prepared<'a> {
    running: &'a Running,
    sas: MutexGuard<'a, Sas>,
    made: Vec<Made>,
    remove: Vec<SaName>,
    config: SasConfig,
}

impl Prepared<'_> {
    pub fn put_in_force(mut self) {
        *locked(&self.running.config) = std::mem::take(&mut self.config);
        self.sas.put(std::mem::take(&mut self.made));
        for SaName { sa, spi } in &self.remove {
            self.sas.remove(sa, *spi);
        }
        self.running.tell(&self.sas);
        self.sas.tidy();
        locked(&self.running.work).is_untidy = !self.sas.leaving.is_empty();
    }
}

impl Drop for Prepared<'_> {
    fn drop(&mut self) {
        Sas::give_back(std::mem::take(&mut self.made)).iter().for_each(|failed| tracing::warn!("{failed}"));
    }
}

impl RunningSas {
    /// Like [`Sas::load`].
    pub fn load(config: &SasConfig) -> Result<Self, ConfigError> {
        let sas = Sas::load(config)?;
        let (config, table) = (Mutex::new(config.clone()), sas.table.clone());
        let listing = Mutex::new(Listing { crypto: sas.crypto(), sas: sas.listed() });
        Ok(Self(Arc::new(Running { config, table, sas: Mutex::new(sas), listing, ..Running::default() })))
    }

    /// The table that elements read.
    pub fn table(&self) -> Arc<SaTable> {
        self.0.table.clone()
    }

    /// Begins to reserve numbers. When this returns, the first ones are reserved and packets may come.
    ///
    /// # Errors
    /// Numbers cannot be noted, or the thread cannot be started.
    pub fn begin(&self) -> Result<()> {
        let mut sas = locked(&self.0.sas);
        sas.reserve().map_err(anyhow::Error::msg)?;
        self.0.tell(&sas);
        let mut work = locked(&self.0.work);
        if !work.has_begun {
            let its = self.0.clone();
            let thread = thread::Builder::new().name("sas".into()).spawn(move || keep(&its));
            thread.context("starting the thread that reserves sequence numbers")?;
            work.has_begun = true;
        }
        Ok(())
    }

    /// Like [`Sas::change`], with the SAs of a text ([`SasConfig::more`]).
    ///
    /// # Errors
    /// The change is not possible. Then nothing changes.
    pub fn change(&self, file: &Path, text: &str, remove: &[SaName]) -> Result<(), String> {
        let set = match text {
            "" => Vec::new(),
            text => locked(&self.0.config).more(file, text).map_err(|wrong| wrong.to_string())?,
        };
        let mut sas = locked(&self.0.sas);
        if locked(&self.0.work).has_ended {
            return Err("the daemon is ending".into());
        }
        let changed = sas.change(&set, remove);
        self.0.tell(&sas);
        sas.tidy();
        locked(&self.0.work).is_untidy = !sas.leaving.is_empty();
        changed
    }

    /// Prepares the change to the SAs of another configuration, with every step that can fail. Other changes wait meanwhile.
    ///
    /// # Errors
    /// The change is not possible. Then nothing changes.
    pub fn prepare(&self, config: &SasConfig) -> Result<Prepared<'_>, String> {
        let mut sas = locked(&self.0.sas);
        if locked(&self.0.work).has_ended {
            return Err("the daemon is ending".into());
        }
        let (set, remove) = sas.difference(&locked(&self.0.config), config)?;
        let made = sas.prepare(&set, &remove, &FILES)?;
        Ok(Prepared { running: &self.0, sas, made, remove, config: config.clone() })
    }

    /// The SAs. It does not wait for a change that is in progress, and shows nothing of it.
    pub fn report(&self) -> SasReport {
        let listing = locked(&self.0.listing);
        let sas = listing.sas.iter().filter_map(Listed::report).collect();
        SasReport { crypto: listing.crypto.clone(), sas }
    }

    /// Why numbers cannot be noted, as a sentence.
    pub fn condition(&self) -> Option<String> {
        locked(&self.0.condition).clone()
    }

    /// Like [`Sas::finish`]; also ends the thread.
    ///
    /// # Errors
    /// Numbers cannot be noted.
    pub fn finish(&self) -> Result<(), String> {
        let mut sas = locked(&self.0.sas);
        let mut work = locked(&self.0.work);
        work.has_ended = true;
        // The thread may still note numbers of some of these. It lets go of each when it is done.
        let sending = std::mem::take(&mut work.sending);
        self.0.news.notify_all();
        drop(work);
        for sending in sending {
            while Arc::strong_count(&sending) > 1 {
                thread::sleep(Duration::from_millis(1));
            }
        }
        // Nothing lists them while they are let go of.
        locked(&self.0.listing).sas.clear();
        sas.finish()
    }
}

fn keep(running: &Running) {
    let mut work = locked(&running.work);
    while !work.has_ended {
        work = if work.sending.is_empty() && !work.is_untidy {
            running.news.wait(work).unwrap_or_else(PoisonError::into_inner)
        } else {
            running.news.wait_timeout(work, LOOKS).unwrap_or_else(PoisonError::into_inner).0
        };
        let (sending, is_untidy) = (work.sending.clone(), work.is_untidy);
        drop(work);
        let reserved = first_error(sending.into_iter().map(|sending| sending.reserve()));
        let mut condition = locked(&running.condition);
        if let Some(new) = reserved.as_ref().err().filter(|new| condition.as_ref() != Some(new)) {
            tracing::warn!("{new}");
        }
        *condition = reserved.err();
        drop(condition);
        if is_untidy {
            tidy(running);
        }
        work = locked(&running.work);
    }
}

/// Lets go of SAs, unless a change is in progress; then the next round tries again.
fn tidy(running: &Running) {
    let mut sas = match running.sas.try_lock() {
        Ok(sas) => sas,
        Err(TryLockError::Poisoned(sas)) => sas.into_inner(),
        Err(TryLockError::WouldBlock) => return,
    };
    sas.tidy();
    let is_untidy = !sas.leaving.is_empty();
    locked(&running.work).is_untidy = is_untidy;
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Kind, tests},
        *,
    };
    use std::{fs, sync::mpsc::channel};

    /// A disk may take long to open the files of a change.
    #[test]
    fn a_list_does_not_wait_for_a_change() {
        let sas = RunningSas::default();
        let changing = locked(&sas.0.sas);
        let (tell, listed) = channel();
        let asks = sas.clone();
        thread::spawn(move || tell.send(asks.report()));
        assert_eq!(listed.recv_timeout(Duration::from_secs(10)), Ok(SasReport::default()));
        drop(changing);
    }
    /// An outbound SA, and its sequence file.
    fn sending() -> (tempfile::TempDir, RunningSas, std::path::PathBuf) {
        let (directory, sas) = tests::running();
        sas.begin().unwrap();
        sas.change(&directory.path().join("set.toml"), &tests::table("x", 1000, "a"), &[]).unwrap();
        let file = directory.path().join("a.sequence");
        (directory, sas, file)
    }

    /// While the thread notes numbers of an SA, it has the file.
    #[test]
    fn the_end_waits_for_numbers_that_are_being_noted() {
        let (_directory, sas, file) = sending();
        let at_it = locked(&sas.0.work).sending[0].clone();
        sas.table().outbound()[0].1.sequence.take(3);
        let noting = thread::spawn(move || {
            thread::sleep(Duration::from_millis(300));
            drop(at_it);
        });
        sas.finish().unwrap();
        noting.join().unwrap();
        assert_eq!(tests::noted(&file), 3);
    }

    #[test]
    fn numbers_that_cannot_be_noted_are_a_condition_until_they_can() {
        let (_directory, sas, file) = sending();
        assert_eq!(sas.condition(), None);
        let told = |what: &str, is: &dyn Fn(Option<String>) -> bool| {
            let found = (0..500).any(|_| {
                thread::sleep(Duration::from_millis(10));
                is(sas.condition())
            });
            assert!(found, "{what}: {:?}", sas.condition());
        };
        let its = match &locked(&sas.0.sas).made[0].kind {
            Kind::Outbound(_, file) => file.clone().unwrap(),
            Kind::Inbound(_) => unreachable!(),
        };
        let mended = fs::File::options().write(true).open(&file).unwrap();
        locked(&its).cannot_be_written();
        let sequence = &sas.table().outbound()[0].1.clone().sequence;
        sequence.take((1 << 20) - 1);
        told("a condition", &|condition| {
            condition.is_some_and(|text| text.starts_with("SA x: cannot write the sequence file"))
        });
        assert_eq!((tests::noted(&file), sequence.reserved()), (1 << 20, 1 << 20));
        locked(&its).is_mended(mended);
        told("no condition", &|condition| condition.is_none());
        assert_eq!((tests::noted(&file), sequence.reserved()), (2 << 20, 2 << 20));
    }
}
