//! Starts and changes paths, and moves them from worker to worker.
//!
//! A path that moves is taken from its worker between two runs, with its RX rings. Its packets wait in these rings
//! meanwhile. When the packets that it sent have left (completions show that), the other worker gets it. No other path
//! waits.

use super::{
    control::Control,
    exchange::Fates,
    inner::{Lane, Moving},
    plan::{PathPlan, WorkersPlan},
    thread::NotTaken,
};
use crate::user_plane::af_xdp::Mark;
use anyhow::{Context, Result, ensure};
use logic::{
    cores::CoreId,
    paths::{Cost, PathId},
    plan::PortId,
};
use std::{
    collections::BTreeMap,
    thread,
    time::{Duration, Instant},
};

/// Packets that were sent leave within this time, unless the port holds them.
const LEAVES: Duration = Duration::from_millis(100);
/// How often the worker is asked whether they have left.
const ASKS: Duration = Duration::from_micros(200);

impl Control {
    pub(super) fn change_paths(&mut self, plan: &WorkersPlan, at: &BTreeMap<PathId, CoreId>) {
        for (path, core) in at {
            let Some(new) = plan.paths.get(path) else { continue };
            let done = match self.held.paths.contains_key(path) {
                false => self.begin_path(*path, *core, new),
                true => self.change_path(*path, *core, new),
            };
            self.note(done);
        }
    }

    fn begin_path(&mut self, path: PathId, core: CoreId, plan: &PathPlan) -> Result<()> {
        let made = self.common.made.clone();
        let chain = made.tables.chain(plan, &made.names)?;
        let lane = Lane::new(plan.clone(), made);
        let moving = Moving {
            path,
            lane,
            chain: Some(chain),
            cost: Cost::default(),
            receivers: Vec::new(),
            fates: Fates::default(),
            stopped: false,
            marks: Vec::new(),
        };
        let held = moving.held(core);
        self.crew.give(core, moving, |inner, moving| inner.take_in(moving)).map_err(|not| not.error)??;
        self.held.paths.insert(path, held);
        Ok(())
    }

    fn change_path(&mut self, path: PathId, core: CoreId, new: &PathPlan) -> Result<()> {
        let old = self.held.paths.get(&path).context("the path has no worker")?.clone();
        let made = self.common.made.clone();
        let is_other = old.plan.chain != new.chain;
        let same = !is_other && old.made.holds(&new.chain, &made);
        // If the chain cannot be made, nothing changes.
        let chain = (!same).then(|| made.tables.chain(new, &made.names)).transpose()?;
        if old.core != core || old.plan.router != new.router {
            self.move_path(path, old.core, core, new)?;
        }
        if same && old.plan == *new {
            return Ok(());
        }
        let (is_new, change) = (chain.is_some(), (new.clone(), chain, made.clone()));
        let before = self.crew.give(core, change, move |inner, (plan, chain, made)| {
            inner.change(path, plan, chain.map(|chain| (chain, made)))
        });
        drop(before.map_err(|not| not.error)?);
        if let Some(held) = self.held.paths.get_mut(&path) {
            held.plan = new.clone();
            held.is_stopped &= !is_other;
            if is_new {
                held.made = made;
            }
        }
        Ok(())
    }

    /// Moves the path to this worker, or adds it again to the worker that it is on.
    fn move_path(&mut self, path: PathId, from: CoreId, to: CoreId, plan: &PathPlan) -> Result<()> {
        ensure!(self.crew.threads.contains_key(&to), "path {}: core {to} has no worker", plan.name);
        self.crew.is_not_silent(to)?;
        let moving = self.crew.ask(from, move |inner| inner.give_up(path))?;
        let mut moving =
            moving.with_context(|| format!("path {}: its worker does not have it", plan.name))?;
        if from != to {
            self.wait_for(from, std::mem::take(&mut moving.marks), &format!("path {}", plan.name));
        }
        moving.lane.plan.router = plan.router;
        let held = moving.held(to);
        match self.crew.give(to, moving, |inner, moving| inner.take_in(moving)) {
            Ok(taken) => taken?,
            Err(NotTaken { error, thing }) => {
                // Back to where it was.
                if let Some(moving) = thing {
                    self.crew
                        .give(from, moving, |inner, moving| inner.take_in(moving))
                        .map_err(|not| not.error)??;
                }
                return Err(error);
            }
        }
        self.held.paths.insert(path, held);
        for (ring, (core, _)) in &mut self.held.rings {
            if ring.1 == path {
                *core = to;
            }
        }
        Ok(())
    }

    /// Waits until the packets that a worker sent have left, and reports ports that hold some. It does not wait for a port
    /// that is down.
    pub(super) fn wait_for(&mut self, core: CoreId, mut marks: Vec<(PortId, Mark)>, whose: &str) {
        let begun = Instant::now();
        while !marks.is_empty() {
            let asked = self.crew.ask(core, move |inner| inner.have_not_left(marks));
            let Some(rest) = self.note(asked) else { return };
            if begun.elapsed() > LEAVES {
                for (port, _) in &rest {
                    tracing::warn!(
                        "{whose}: port {port} held packets of core {core} for {LEAVES:?}; later packets may overtake them"
                    );
                }
                return;
            }
            marks = rest;
            if !marks.is_empty() {
                thread::sleep(ASKS);
            }
        }
    }
}
