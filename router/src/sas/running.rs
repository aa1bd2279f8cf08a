//! SAs of a daemon: changed by whoever asks, while a thread keeps sequence numbers reserved.

use super::{SaName, Sas, SasReport};
use crate::config::{ConfigError, SaConfig, SasConfig};
use anyhow::{Context, Result};
use logic::esp::SaTable;
use std::{
    path::Path,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// Between two looks whether an SA that sends needs more numbers: what is reserved at least (2^19) lasts so long at ten million packets a second.
const LOOKS: Duration = Duration::from_millis(50);

/// See the head of this file.
#[derive(Clone, Default)]
pub struct RunningSas(Arc<Running>);

#[derive(Default)]
struct Running {
    config: SasConfig,
    inner: Mutex<Inner>,
    /// There is something to do.
    news: Condvar,
}

#[derive(Default)]
struct Inner {
    sas: Sas,
    /// The thread is there, or was.
    has_begun: bool,
    /// Nothing is sent any more.
    has_ended: bool,
    /// Why numbers could not be noted, last.
    trouble: Option<String>,
}

impl Running {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RunningSas {
    /// As [`Sas::load`].
    pub fn load(config: &SasConfig) -> Result<Self, ConfigError> {
        let inner = Inner { sas: Sas::load(config)?, ..Inner::default() };
        let config = config.clone();
        Ok(Self(Arc::new(Running { config, inner: Mutex::new(inner), news: Condvar::new() })))
    }

    /// What elements read.
    pub fn table(&self) -> Arc<SaTable> {
        self.0.inner().sas.table.clone()
    }

    /// From now on numbers are reserved, before this returns the first: packets may come.
    ///
    /// # Errors
    /// They cannot be noted, or there is no thread.
    pub fn begin(&self) -> Result<()> {
        let mut inner = self.0.inner();
        inner.sas.reserve().map_err(anyhow::Error::msg)?;
        if !inner.has_begun {
            let its = self.0.clone();
            let thread = thread::Builder::new().name("sas".into()).spawn(move || keep(&its));
            thread.context("starting the thread that reserves sequence numbers")?;
            inner.has_begun = true;
        }
        Ok(())
    }

    /// As [`Sas::change`], with what this text says of SAs ([`SasConfig::more`]).
    ///
    /// # Errors
    /// Why that cannot be; nothing is changed.
    pub fn change(&self, file: &Path, text: &str, remove: &[SaName]) -> Result<(), String> {
        let set: Vec<SaConfig> = match text {
            "" => Vec::new(),
            text => self.0.config.more(file, text).map_err(|wrong| wrong.to_string())?,
        };
        let mut inner = self.0.inner();
        if inner.has_ended {
            return Err("the daemon is ending".into());
        }
        let changed = inner.sas.change(&set, remove);
        self.0.news.notify_all();
        changed
    }

    pub fn report(&self) -> SasReport {
        let inner = self.0.inner();
        SasReport { crypto: inner.sas.crypto(), sas: inner.sas.report() }
    }

    /// As a sentence.
    pub fn trouble(&self) -> Option<String> {
        self.0.inner().trouble.clone()
    }

    /// As [`Sas::finish`]; the thread ends.
    ///
    /// # Errors
    /// They cannot be noted.
    pub fn finish(&self) -> Result<(), String> {
        let mut inner = self.0.inner();
        inner.has_ended = true;
        self.0.news.notify_all();
        inner.sas.finish()
    }
}

fn keep(running: &Running) {
    let mut inner = running.inner();
    while !inner.has_ended {
        inner = if inner.sas.sends() || !inner.sas.leaving.is_empty() {
            running.news.wait_timeout(inner, LOOKS).unwrap_or_else(PoisonError::into_inner).0
        } else {
            running.news.wait(inner).unwrap_or_else(PoisonError::into_inner)
        };
        if inner.has_ended {
            return;
        }
        let trouble = inner.sas.reserve().err();
        if let Some(trouble) = trouble.as_ref().filter(|new| inner.trouble.as_ref() != Some(new)) {
            tracing::warn!("{trouble}");
        }
        inner.trouble = trouble;
        inner.sas.tidy();
    }
}
