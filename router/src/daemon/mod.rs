//! The daemon: the loop that keeps the fast path equal to Linux.
//!
//! | file | holds |
//! |---|---|
//! | `mod.rs` | [`Control`]: observe, decide, apply |
//! | `generation.rs` | programs and maps in charge: first start, growth, ports that come and go |
//! | `connections.rs` | connections that bypass rules; reports about them |
//! | `rules.rs` | flow rules put in charge; the switch thread, and what it last had |
//! | `confirming.rs`, `beats.rs` | confirms the mirror; the heartbeat, in a thread of its own |
//! | `capturing.rs`, `exporting.rs` | captures and exports: their program on the ports |
//! | `answers.rs` | answers to clients, in the words of [`crate::api`] |
//! | `routes.rs` | lists of routes and neighbours |
//! | `verify.rs`, `verify/` | comparing the tables with Linux, in a thread of its own |
//! | `reload.rs` | following another configuration without a restart |
//! | `explain.rs` | the way of one packet through the real program, step by step |
//! | `seam.rs`, `kernel.rs` | the traits by which the loop uses Linux, and the implementation |
//! | `refusal.rs` | why a driver may refuse XDP |
//! | `start.rs` | `millrace run` and `millrace stop`: lock, checks, privileges, threads |
//! | `api.rs`, `serving.rs`, `client.rs` | both ends of the API's socket |
//! | `metrics.rs` | metrics for Prometheus |
//! | `web.rs` | the web page, beside requests of the API that read |
//! | `listening.rs` | pages over TCP: a listener and its thread |
//! | `observing.rs` | the netlink observer behind `seam.rs` |
//! | `finding.rs` | finds the conditions that hold |
//! | `world.rs`, `ledger.rs` | the observed state and the decisions, to fill further generations |
//! | `policy.rs` | reads policy again after a change, before the fast path gets the packets back |
//! | `paths.rs` | paths of the user plane: which are active |
//! | `neighbours.rs` | neighbours that only the fast path uses |
//! | `steering.rs` | steers heavy flows to queues of their next hops, where a NIC can |
//! | `totals.rs`, `reclaim.rs` | counters across generations, the state file; grace periods |
//!
//! One thread runs the loop and owns all changing state of routing. The API thread sends it requests through a queue.
//! The grace thread waits for grace periods in its place. The switch thread ([`crate::switch`]) owns flow rules. The
//! loop waits in three cases only: at most a second for workers when the tables move to larger memory, one grace period
//! when flow rules come into charge or go, and for other threads when they follow another configuration.

mod answers;
pub mod api;
mod beats;
mod capturing;
pub mod client;
mod confirming;
mod connections;
pub mod dry;
mod explain;
mod exporting;
mod finding;
mod generation;
pub mod kernel;
mod ledger;
mod listening;
mod metrics;
mod neighbours;
pub mod observing;
mod paths;
mod policy;
mod reclaim;
mod refusal;
mod reload;
mod routes;
mod rules;
pub mod seam;
mod serving;
pub mod start;
mod steering;
#[cfg(test)]
mod tests;
mod totals;
mod verify;
mod web;
mod world;

use crate::{
    base::instance::Instance,
    capture::Captures,
    config::{Config, PathNumbers},
};
use anyhow::Result;
use api::{Query, Request};
use confirming::Confirming;
use connections::Following;
use exporting::Exports;
use finding::Finding;
use generation::Generation;
use logic::plan::Op;
use policy::Windows;
use rules::Flows;
use seam::{Beside, FastPath, Kernel, Observe};
use std::{sync::mpsc::Receiver, time::Duration};
use steering::Steerer;
use totals::Totals;
use verify::Verifying;
use world::World;

/// The longest wait for events while another thread works for the loop.
const POLL: Duration = Duration::from_millis(20);

/// The daemon's state.
pub struct Control<K: Kernel, O> {
    config: Config,
    instance: Instance,
    /// CLOCK_MONOTONIC.
    started: Duration,
    kernel: K,
    observer: O,
    world: World,
    generation: Generation<K::Plane>,
    confirming: Confirming,
    windows: Windows,
    totals: Totals,
    uses: neighbours::Uses,
    finding: Finding,
    flows: Flows<<K::Plane as FastPath>::Rules>,
    connections: Following,
    /// `None`: no path has been configured.
    paths: Option<paths::Following<<K::Plane as FastPath>::UserPlane>>,
    path_numbers: PathNumbers,
    /// `None`: not configured, or no port had a classifier at the start.
    steerer: Option<Steerer>,
    verifying: Option<Verifying>,
    captures: Captures,
    /// The program with a capture is attached, or is to be.
    capturing: bool,
    exports: Exports,
}

/// How the loop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// `millrace stop`: nothing is left in the kernel.
    Stopped,
    /// A signal: the fast path goes on until the heartbeat expires.
    Left {
        /// At least one port was trusted.
        forwarding: bool,
    },
}

impl<K: Kernel, O: Observe> Control<K, O> {
    /// Observes, decides and applies, until a request ends it.
    pub fn run(mut self, requests: &Receiver<Request>, beside: &mut dyn Beside) -> Result<Ended> {
        loop {
            if let Err(error) = self.round() {
                self.leave_capture();
                return Err(error);
            }
            for request in requests.try_iter().take(api::QUEUE) {
                let request = match request.query {
                    Query::Verify => {
                        self.begin_verify(request.reply);
                        continue;
                    }
                    Query::Reload(config) => {
                        let answer = self.reload(*config, beside)?.and_then(|report| answers::json(&report));
                        let _ = request.reply.send(answer);
                        continue;
                    }
                    _ => request,
                };
                let ended = match &request.query {
                    Query::Stop => Some(Ended::Stopped),
                    Query::Leave => Some(Ended::Left { forwarding: self.forwards() }),
                    _ => None,
                };
                if matches!(ended, Some(Ended::Left { .. })) {
                    // Nobody would read the packets.
                    self.leave_capture();
                    self.remember_now();
                }
                let answer = self.answer(&request.query);
                let ended = ended.filter(|_| answer.is_ok());
                // This fails if the client has gone.
                let _ = request.reply.send(answer);
                if let Some(ended) = ended {
                    return Ok(ended);
                }
            }
        }
    }

    /// Is any port trusted? Logs why the others are not.
    fn forwards(&self) -> bool {
        for port in self.world.ports.values() {
            port.obstacles()
                .iter()
                .for_each(|why| tracing::warn!("port {} is not trusted: {why}", port.name));
        }
        self.world.ports.values().any(|port| port.obstacles().is_empty())
    }

    /// One round of the loop: observes, applies, and does what is due.
    fn round(&mut self) -> Result<()> {
        self.observe(self.patience());
        self.read_policy();
        self.look_at_destinations();
        self.apply()?;
        self.settle_policy();
        let now = self.kernel.now();
        self.settle_ports(now)?;
        self.want_paths();
        self.generation.reclaim(now);
        self.grow(now)?;
        self.follow_switch();
        if self.generation.weighed != Some(self.world.mirror.revision()) {
            self.weigh();
        }
        self.follow_shares();
        self.confirming.follow(now, &self.generation.plane);
        self.keep_alive(now);
        self.steer(now);
        self.remember(now);
        self.follow_verify(now);
        self.follow_capture();
        self.follow_export_devices();
        self.follow_fast_path(now);
        self.follow_conditions(now);
        Ok(())
    }

    /// The longest time to wait for events: until the next work is due. Requests end the wait.
    fn patience(&self) -> Duration {
        if self.world.mirror.is_behind() {
            return Duration::ZERO;
        }
        if self.verifying.is_some() || self.generation.is_reclaiming() || self.world.mirror.is_judging() {
            return POLL;
        }
        let mut due = self.world.check_due();
        due = due.min(self.uses.due(self.world.mirror.stale_neighbours().next().is_some()));
        due = due.min(self.confirming.due());
        due = due.min(self.totals.due().unwrap_or(due));
        due = due.min(self.finding.due().unwrap_or(due));
        due = due.min(self.world.mirror.next_end().unwrap_or(due));
        due = due.min(self.windows.due().unwrap_or(due));
        due = due.min(self.steerer.as_ref().and_then(Steerer::due).unwrap_or(due));
        due.saturating_sub(self.kernel.now())
    }

    /// Waits for events and takes them in.
    fn observe(&mut self, patience: Duration) {
        match self.observer.poll(patience) {
            Ok(events) => {
                self.confirming.is_read();
                for event in events {
                    self.uses.observe(&event);
                    if let Some(verifying) = &mut self.verifying {
                        verifying.observe(&event);
                    }
                    self.world.observe(event);
                }
                self.take_policies();
            }
            Err(error) => {
                self.confirming.is_unread(&error);
                std::thread::sleep(POLL);
            }
        }
    }

    /// Applies the events that were taken in to the fast path.
    fn apply(&mut self) -> Result<()> {
        let plan = self.world.plan(self.kernel.now());
        for namespace in self.world.mirror.unsure() {
            self.observer.read_routes_again(namespace);
        }
        self.forget_gone(&plan)?;
        self.totals.unsaved |= plan.iter().any(|op| matches!(op, Op::Interface(..) | Op::Router { .. }));
        // This comes before the plan is applied: a new path gets its packets from the first one on.
        self.follow_paths();
        self.follow_policy();
        self.generation.apply(plan.into_iter());
        self.follow_connections();
        Ok(())
    }

    /// Resets the counters of numbers whose owners are gone. The next owner must not inherit them.
    fn forget_gone(&mut self, plan: &[Op]) -> Result<()> {
        let (mut interfaces, mut routers) = (Vec::new(), Vec::new());
        for op in plan {
            match op {
                Op::InterfaceGone(id) => interfaces.push(*id),
                Op::RouterGone(id) => routers.push(*id),
                _ => {}
            }
        }
        if !interfaces.is_empty() || !routers.is_empty() {
            self.totals.forget(&interfaces, &routers, &self.generation.plane.counters()?);
        }
        Ok(())
    }

    /// Attaches the program with shares when a core becomes full, and the other one when no core is full any more.
    fn follow_shares(&mut self) {
        if !self.generation.plane.follow_shares() {
            return;
        }
        if let Err(error) = self.swap() {
            tracing::warn!("cannot switch to or from the program that cuts routers on full cores: {error:#}");
            self.generation.plane.unfollow_shares();
        }
    }

    /// Gives the kernel plane the routers and their weights, if shares are enforced.
    fn weigh(&mut self) {
        if !self.config.shares.enforce {
            return;
        }
        self.generation.weighed = Some(self.world.mirror.revision());
        let routers = Vec::from_iter(self.world.mirror.routers());
        let weight = |name: &str| self.config.shares.weight(name);
        let weights =
            routers.iter().filter_map(|router| Some((router.router?, weight(&router.name)))).collect();
        let present = self.world.mirror.routers_on_ports().collect();
        let host = routers.iter().find(|router| router.host).and_then(|router| router.router);
        self.generation.plane.set_routers(&weights, &present, host);
    }

    /// Adapts the classifiers of NICs to the traffic.
    fn steer(&mut self, now: Duration) {
        if let Some(steerer) = &mut self.steerer {
            steerer.round(now, self.generation.plane.take_samples(), &mut self.generation.tables);
        }
    }

    /// Writes what the numbers mean into the state file, for the next daemon.
    fn remember(&mut self, now: Duration) {
        if self.totals.due().is_some_and(|due| due <= now) {
            self.totals.saved = now;
            self.remember_now();
        }
    }

    fn remember_now(&mut self) {
        if self.kernel.is_dry() {
            return;
        }
        let number = self.generation.number;
        let written = self.totals.save(number, self.world.names()).and_then(|()| self.kernel.retire(number));
        if let Err(error) = written {
            tracing::warn!("cannot write {}: {error:#}", self.instance.state_file().display());
        }
    }
}
