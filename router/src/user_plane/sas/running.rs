//! SAs of a daemon: changed by whoever asks, while a thread keeps sequence numbers reserved.
//!
//! Numbers are noted on a disk, which may take long. So the thread that does that holds no lock meanwhile that anybody else needs, and neither workers nor who
//! keeps them ever wait for one that is held over it. A change reads keys and opens files, which may take as long, under a lock that nobody takes but for a change: who lists SAs
//! finds what the last change left, without keeping it from being let go of.

use super::{Listed, Sas, Sending, first_error};
use crate::{
    api::sas::{CryptoReport, SaName, SasReport},
    base::guard::locked,
    config::{ConfigError, SasConfig},
};
use anyhow::{Context, Result};
use logic::esp::SaTable;
use std::{
    path::Path,
    sync::{Arc, Condvar, Mutex, PoisonError, TryLockError},
    thread,
    time::Duration,
};

/// Between two looks whether an SA that sends needs more numbers.
const LOOKS: Duration = Duration::from_millis(50);

/// See the head of this file.
#[derive(Clone, Default)]
pub struct RunningSas(Arc<Running>);

#[derive(Default)]
struct Running {
    config: SasConfig,
    table: Arc<SaTable>,
    /// Held as long as one is changed.
    sas: Mutex<Sas>,
    /// As the last change left them. Never held long.
    listing: Mutex<Listing>,
    work: Mutex<Work>,
    /// Something about the work is new.
    news: Condvar,
    /// Why numbers could not be noted, last.
    trouble: Mutex<Option<String>>,
}

#[derive(Default)]
struct Listing {
    crypto: Option<CryptoReport>,
    sas: Vec<Listed>,
}

/// What the thread has to do.
#[derive(Default)]
struct Work {
    sending: Vec<Arc<Sending>>,
    /// SAs are to be let go of.
    is_untidy: bool,
    /// The thread is there, or was.
    has_begun: bool,
    /// Nothing is sent any more.
    has_ended: bool,
}

impl Running {
    /// After each change, and before what it replaced is let go of.
    fn tell(&self, sas: &Sas) {
        *locked(&self.listing) = Listing { crypto: sas.crypto(), sas: sas.listed() };
        let mut work = locked(&self.work);
        work.sending = sas.sending().into_iter().map(Arc::new).collect();
        work.is_untidy = !sas.leaving.is_empty();
        self.news.notify_all();
    }
}

impl RunningSas {
    /// As [`Sas::load`].
    pub fn load(config: &SasConfig) -> Result<Self, ConfigError> {
        let sas = Sas::load(config)?;
        let (config, table) = (config.clone(), sas.table.clone());
        let listing = Mutex::new(Listing { crypto: sas.crypto(), sas: sas.listed() });
        Ok(Self(Arc::new(Running { config, table, sas: Mutex::new(sas), listing, ..Running::default() })))
    }

    /// What elements read.
    pub fn table(&self) -> Arc<SaTable> {
        self.0.table.clone()
    }

    /// From now on numbers are reserved, before this returns the first: packets may come.
    ///
    /// # Errors
    /// They cannot be noted, or there is no thread.
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

    /// As [`Sas::change`], with what this text says of SAs ([`SasConfig::more`]).
    ///
    /// # Errors
    /// Why that cannot be; nothing is changed.
    pub fn change(&self, file: &Path, text: &str, remove: &[SaName]) -> Result<(), String> {
        let set = match text {
            "" => Vec::new(),
            text => self.0.config.more(file, text).map_err(|wrong| wrong.to_string())?,
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

    /// Does not wait for a change that is under way, of which it has nothing yet.
    pub fn report(&self) -> SasReport {
        let listing = locked(&self.0.listing);
        let sas = listing.sas.iter().filter_map(Listed::report).collect();
        SasReport { crypto: listing.crypto.clone(), sas }
    }

    /// As a sentence.
    pub fn trouble(&self) -> Option<String> {
        locked(&self.0.trouble).clone()
    }

    /// As [`Sas::finish`]; the thread ends.
    ///
    /// # Errors
    /// They cannot be noted.
    pub fn finish(&self) -> Result<(), String> {
        let mut sas = locked(&self.0.sas);
        let mut work = locked(&self.0.work);
        work.has_ended = true;
        // The thread may be at the last ones of them; it lets go of each when it has noted it.
        let sending = std::mem::take(&mut work.sending);
        self.0.news.notify_all();
        drop(work);
        for sending in sending {
            while Arc::strong_count(&sending) > 1 {
                thread::sleep(Duration::from_millis(1));
            }
        }
        // Nobody looks at them while they are let go of.
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
        let mut trouble = locked(&running.trouble);
        if let Some(new) = reserved.as_ref().err().filter(|new| trouble.as_ref() != Some(new)) {
            tracing::warn!("{new}");
        }
        *trouble = reserved.err();
        drop(trouble);
        if is_untidy {
            tidy(running);
        }
        work = locked(&running.work);
    }
}

/// Unless they are changed right now: then again.
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

    /// A disk may take long to open what a change names.
    #[test]
    fn who_lists_does_not_wait_for_a_change() {
        let sas = RunningSas::default();
        let changing = locked(&sas.0.sas);
        let (tell, listed) = channel();
        let asks = sas.clone();
        thread::spawn(move || tell.send(asks.report()));
        assert_eq!(listed.recv_timeout(Duration::from_secs(10)), Ok(SasReport::default()));
        drop(changing);
    }
    /// An SA that sends, and its sequence file.
    fn sending() -> (tempfile::TempDir, RunningSas, std::path::PathBuf) {
        let (directory, sas) = tests::running();
        sas.begin().unwrap();
        sas.change(&directory.path().join("set.toml"), &tests::table("x", 1000, "a"), &[]).unwrap();
        let file = directory.path().join("a.sequence");
        (directory, sas, file)
    }

    /// The thread may be noting numbers of an SA: then it has its file.
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
    fn numbers_that_cannot_be_noted_are_a_trouble_as_long_as_it_is_so() {
        let (_directory, sas, file) = sending();
        assert_eq!(sas.trouble(), None);
        let told = |what: &str, is: &dyn Fn(Option<String>) -> bool| {
            let found = (0..500).any(|_| {
                thread::sleep(Duration::from_millis(10));
                is(sas.trouble())
            });
            assert!(found, "{what}: {:?}", sas.trouble());
        };
        let its = match &locked(&sas.0.sas).made[0].kind {
            Kind::Outbound(_, file) => file.clone().unwrap(),
            Kind::Inbound(_) => unreachable!(),
        };
        let mended = fs::File::options().write(true).open(&file).unwrap();
        locked(&its).cannot_be_written();
        let sequence = &sas.table().outbound()[0].1.clone().sequence;
        sequence.take((1 << 20) - 1);
        told("a trouble", &|trouble| {
            trouble.is_some_and(|text| text.starts_with("SA x: cannot write the sequence file"))
        });
        assert_eq!((tests::noted(&file), sequence.reserved()), (1 << 20, 1 << 20));
        locked(&its).is_mended(mended);
        told("no trouble", &|trouble| trouble.is_none());
        assert_eq!((tests::noted(&file), sequence.reserved()), (2 << 20, 2 << 20));
    }
}
