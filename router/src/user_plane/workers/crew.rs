//! The threads of workers, and which of them make no progress, because their elements do not end or their cores have no
//! time.
//!
//! Nothing is taken from such a worker, because it may still use everything that it has. Its slots are emptied, so
//! the XDP program treats packets of its paths as if they had no worker. Other workers fill its queues
//! (`af_xdp/fill.rs`). Packets in its hands and rings wait until it goes on. Then its slots are filled again.

use super::{
    epochs::Epochs,
    inner::Inner,
    thread::{NotTaken, Thread},
    watch::Watch,
};
use crate::user_plane::af_xdp::Bell;
use anyhow::{Context, Result, bail};
use logic::{cores::CoreId, paths::PathId};
use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::AtomicU32},
    thread,
    time::{Duration, Instant},
};

/// How often a worker is asked while the control waits for something.
const ASKS: Duration = Duration::from_micros(200);

/// See the head of this file.
pub(super) struct Crew {
    pub threads: BTreeMap<CoreId, Thread>,
    silent: BTreeMap<CoreId, Silent>,
    /// Runs of each path that took longer than the patience of the settings, counted when they ended.
    hangs: BTreeMap<PathId, u64>,
    epochs: Epochs,
    pub watch: Watch,
}

/// A worker that makes no progress.
struct Silent {
    /// The path whose elements do not end.
    path: Option<PathId>,
    /// A sentence.
    condition: String,
}

impl Crew {
    pub fn new(epochs: Epochs) -> Crew {
        let (threads, silent, hangs) = Default::default();
        Crew { threads, silent, hangs, epochs, watch: Watch::default() }
    }

    /// Starts a worker ([`Thread::start`]).
    pub fn start(
        &mut self,
        core: CoreId,
        nice: i8,
        make: impl FnOnce(Arc<Bell>, Arc<AtomicU32>) -> Result<Inner> + Send + 'static,
    ) -> Result<()> {
        self.threads.insert(core, Thread::start(core, nice, &self.epochs, &self.watch, make)?);
        Ok(())
    }

    /// The workers that make progress.
    pub fn answering(&self) -> Vec<CoreId> {
        self.threads.keys().copied().filter(|core| !self.silent.contains_key(core)).collect()
    }

    /// The workers that make no progress.
    pub fn silent(&self) -> impl Iterator<Item = (CoreId, &Thread)> {
        self.silent.keys().filter_map(|core| Some((*core, self.threads.get(core)?)))
    }

    /// Notes which workers make no progress (`watch.rs`); returns those that were not silent before. `name` returns
    /// the name of a path.
    pub fn look<'a>(&mut self, name: impl Fn(PathId) -> &'a str) -> Vec<CoreId> {
        self.silent.retain(|core, _| self.threads.contains_key(core));
        let mut new = Vec::new();
        for (core, thread) in &self.threads {
            if thread.is_still() == self.silent.contains_key(core) {
                continue;
            }
            if let Some(silent) = self.silent.remove(core) {
                silent.path.iter().for_each(|path| *self.hangs.entry(*path).or_default() += 1);
                thread.yields(false);
                continue;
            }
            let path = thread.running();
            // Otherwise it went on, and this is the path of another run.
            if thread.is_still() {
                thread.yields(true);
                let condition = match path {
                    Some(path) => format!(
                        "the worker on core {core} hangs in path {}; no path of this worker gets packets until the worker goes on; if it never does, restart Millrace",
                        name(path)
                    ),
                    None => format!(
                        "the worker on core {core} makes no progress; no path of this worker gets packets until it goes on; if it never does, restart Millrace"
                    ),
                };
                self.silent.insert(*core, Silent { path, condition });
                new.push(*core);
            }
        }
        new
    }

    /// # Errors
    /// The worker makes no progress.
    pub fn is_not_silent(&self, core: CoreId) -> Result<()> {
        self.silent.get(&core).map_or(Ok(()), |silent| bail!("{}", silent.condition))
    }

    /// How many runs of a path have hung and then ended.
    pub fn hangs(&self, path: PathId) -> u64 {
        self.hangs.get(&path).copied().unwrap_or_default()
    }

    /// The conditions of workers, as sentences.
    pub fn conditions(&self) -> impl Iterator<Item = String> {
        let away = self.threads.iter().filter(|(_, thread)| thread.standing().has_no_core());
        let away = away.map(|(core, _)| {
            format!("core {core} has no time for its worker, which runs on other cores until it has")
        });
        self.silent.values().map(|silent| silent.condition.clone()).chain(away)
    }

    fn thread(&self, core: CoreId) -> Result<&Thread> {
        self.is_not_silent(core)?;
        self.threads.get(&core).with_context(|| format!("core {core} has no worker"))
    }

    pub fn ask<T: Send + 'static>(
        &self,
        core: CoreId,
        what: impl FnOnce(&mut Inner) -> T + Send + 'static,
    ) -> Result<T> {
        self.thread(core)?.ask(what)
    }

    /// Gives a worker a thing. An error returns the thing if the worker did not take it.
    pub fn give<A: Send + 'static, T: Send + 'static>(
        &self,
        core: CoreId,
        thing: A,
        take: impl FnOnce(&mut Inner, A) -> T + Send + 'static,
    ) -> Result<T, NotTaken<A>> {
        match self.thread(core) {
            Ok(thread) => thread.give(thing, take),
            Err(error) => Err(NotTaken { error, thing: Some(thing) }),
        }
    }

    /// Asks until the answer is yes (true) or this time has passed (false).
    pub fn until(
        &self,
        core: CoreId,
        longest: Duration,
        is: impl Fn(&mut Inner) -> bool + Send + Clone + 'static,
    ) -> Result<bool> {
        let begun = Instant::now();
        loop {
            if self.ask(core, is.clone())? {
                return Ok(true);
            }
            if begun.elapsed() > longest {
                return Ok(false);
            }
            thread::sleep(ASKS);
        }
    }
}
