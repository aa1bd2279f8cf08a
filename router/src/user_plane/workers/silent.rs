//! Workers that make no progress, because their elements do not end or their cores have no time.
//!
//! Nothing is taken from such a worker, because it may still use everything that it has. Its slots are emptied, so the XDP
//! program treats packets of its paths as if they had no worker. Other workers fill its queues (`af_xdp/fill.rs`). Packets
//! in its hands and rings wait until it goes on. Then its slots are filled again.

use super::{control::Control, held::Ring, thread::Thread};
use anyhow::{Result, bail};
use logic::{cores::CoreId, paths::PathId};

impl Control {
    /// Stops giving packets to workers that make no progress (`watch.rs`). The next plan gives packets to those that went on.
    pub fn look_at_silent(&mut self) {
        self.silent.retain(|core, _| self.threads.contains_key(core));
        let changed = |(core, thread): (&CoreId, &Thread)| {
            (thread.is_still() != self.silent.contains_key(core)).then_some(*core)
        };
        let changed: Vec<CoreId> = self.threads.iter().filter_map(changed).collect();
        for core in changed {
            match self.silent.remove(&core) {
                Some(path) => self.goes_on(core, path),
                None => self.leave_alone(core),
            }
        }
    }

    fn leave_alone(&mut self, core: CoreId) {
        let Some(thread) = self.threads.get(&core) else { return };
        let path = thread.running();
        // Otherwise it went on, and this is the path of another run.
        if !thread.is_still() {
            return;
        }
        thread.yields(true);
        self.silent.insert(core, path);
        let of_core = |(_, (reader, _)): &(&Ring, &(CoreId, u32))| *reader == core;
        let rings: Vec<Ring> = self.held.rings.iter().filter(of_core).map(|(ring, _)| *ring).collect();
        for ring in rings {
            if let Err(error) = self.empty_slot(ring) {
                tracing::warn!("the worker on core {core} is silent, but may still get packets: {error:#}");
            }
        }
    }

    fn goes_on(&mut self, core: CoreId, path: Option<PathId>) {
        path.iter().for_each(|path| *self.hangs.entry(*path).or_default() += 1);
        self.threads.get(&core).iter().for_each(|thread| thread.yields(false));
    }

    /// # Errors
    /// The worker makes no progress.
    pub fn is_not_silent(&self, core: CoreId) -> Result<()> {
        match self.silent.get(&core) {
            None => Ok(()),
            Some(Some(path)) => {
                let name = self.held.paths.get(path).map_or("?", |path| path.plan.name.as_str());
                bail!(
                    "the worker on core {core} hangs in path {name}; no path of this worker gets packets until the worker goes on; if it never does, restart Millrace"
                )
            }
            Some(None) => bail!(
                "the worker on core {core} makes no progress; no path of this worker gets packets until it goes on; if it never does, restart Millrace"
            ),
        }
    }

    /// What is wrong with workers, for people, as long as it lasts.
    pub fn problems(&self) -> Vec<String> {
        let silent = self.silent.keys().filter_map(|core| self.is_not_silent(*core).err());
        let away = self.threads.iter().filter(|(_, thread)| thread.standing().has_no_core());
        let away = away.map(|(core, _)| {
            format!("core {core} has no time for its worker, which runs on other cores until it has")
        });
        silent.map(|error| error.to_string()).chain(away).collect()
    }
}
