//! The daemon: the loop that keeps the fast path equal to Linux.
//!
//! | file | holds |
//! |---|---|
//! | `mod.rs` | [`Control`]: observe, decide, apply; heartbeat |
//! | `generation.rs` | programs and maps in charge: first start, growth, ports that come and go |
//! | `rules.rs` | flow rules put in charge; messages to the switch thread |
//! | `beats.rs` | the heartbeat, in a thread of its own |
//! | `answers.rs` | answers to clients, in the words of [`crate::api`] |
//! | `verify.rs`, `verify/` | comparing the tables with Linux, in a thread of its own |
//! | `explain.rs` | the way of one packet through the real program, step by step |
//! | `seam.rs`, `kernel.rs` | the traits by which the loop uses Linux, and the implementation |
//! | `refusal.rs` | why a driver may refuse XDP |
//! | `start.rs` | `millrace run` and `millrace stop`: lock, checks, privileges, threads |
//! | `api.rs`, `serving.rs`, `client.rs` | both ends of the API's socket |
//! | `metrics.rs` | metrics for Prometheus |
//! | `observing.rs` | the netlink observer behind `seam.rs` |
//! | `changes.rs` | conditions of ports, routers and interfaces |
//! | `world.rs`, `ledger.rs` | the observed state and the decisions, to fill further generations |
//! | `policy.rs` | reads policy again after a change, before the fast path gets the packets back |
//! | `paths.rs` | paths of the user plane: which are active |
//! | `neighbours.rs` | neighbours that only the fast path uses |
//! | `steering.rs` | steers heavy flows to queues of their next hops, where a NIC can |
//! | `totals.rs`, `reclaim.rs` | counters across generations; grace periods |
//!
//! One thread runs the loop and owns all changing state of routing. The API thread sends it requests through a queue.
//! The grace thread waits for grace periods in its place. The switch thread ([`crate::switch`]) owns flow rules. The
//! loop waits in two cases only: at most a second for workers when the tables move to larger memory, and one grace
//! period when flow rules come into charge or go.

mod answers;
pub mod api;
mod beats;
mod changes;
pub mod client;
mod explain;
mod generation;
pub mod kernel;
mod ledger;
mod metrics;
mod neighbours;
pub mod observing;
mod paths;
mod policy;
mod reclaim;
mod refusal;
mod rules;
pub mod seam;
mod serving;
pub mod start;
mod steering;
#[cfg(test)]
mod tests;
mod totals;
mod verify;
mod world;

use crate::{
    api::status::ConditionReport,
    base::{
        conditions::{Condition, ConditionKind, Conditions},
        guard,
        instance::Instance,
        privileges,
    },
    config::Config,
    switch::seam::{SwitchEnd, SwitchPort},
    user_plane::seam::UserPlane,
};
use anyhow::Result;
use api::{Query, Request};
use beats::Beats;
use changes::Changes;
use generation::{Generation, Stuck};
use logic::plan::Op;
use policy::Windows;
use seam::{FastPath, Kernel, Observe};
use std::{collections::BTreeSet, sync::mpsc::Receiver, time::Duration};
use steering::Steerer;
use totals::Totals;
use verify::Verifying;
use world::World;

/// The longest wait for events while another thread works for the loop.
const POLL: Duration = Duration::from_millis(20);
/// The interval between confirmations of the mirror.
const CONFIRM: Duration = Duration::from_secs(1);
/// The shortest time that a confirmation lasts.
const LEAST_HEARTBEAT: Duration = Duration::from_secs(2);
/// The shortest time between two writes of the state file.
const REMEMBER: Duration = Duration::from_secs(1);

/// The daemon's state.
pub struct Control<K: Kernel, O> {
    config: Config,
    kernel: K,
    observer: O,
    world: World,
    generation: Generation<K::Plane>,
    windows: Windows,
    beats: Beats,
    totals: Totals,
    /// Why the mirror may be out of date.
    trouble: Option<String>,
    /// Why the tables lack something.
    stuck: Option<Stuck>,
    /// The number of rounds of the loop so far.
    rounds: u64,
    verifying: Option<Verifying>,
    /// Names have changed since the state file was written.
    unremembered: bool,
    times: Times,
    uses: neighbours::Uses,
    instance: Instance,
    /// The place of the last checked port among the ports.
    next_port: usize,
    changes: Changes,
    conditions: Conditions,
    switch: SwitchEnd<<K::Plane as FastPath>::Rules>,
    /// The flow rules in charge of the ports; `None`: packets are routed.
    rules: Option<<K::Plane as FastPath>::Rules>,
    /// The ports last reported to the switch thread.
    told_ports: Option<Vec<SwitchPort>>,
    /// When paths were last reported to the switch thread, and which of them had a worker.
    told_paths: Option<(Duration, Vec<bool>)>,
    /// `None`: no path is configured.
    paths: Option<paths::Following<<K::Plane as FastPath>::UserPlane>>,
    /// `None`: not configured, or no port had a classifier at the start.
    steerer: Option<Steerer>,
}

/// When periodic work was last done, CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    started: Duration,
    confirmed: Option<Duration>,
    looked_at_port: Duration,
    remembered: Duration,
    found_conditions: Duration,
    /// The revision of the mirror from which the weights of routers were last set.
    weighed: Option<u64>,
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
    pub fn run(mut self, requests: &Receiver<Request>) -> Result<Ended> {
        loop {
            self.round()?;
            for request in requests.try_iter().take(api::QUEUE) {
                if matches!(request.query, Query::Verify) {
                    self.begin_verify(request.reply);
                    continue;
                }
                let ended = match &request.query {
                    Query::Stop => Some(Ended::Stopped),
                    Query::Leave => Some(Ended::Left { forwarding: self.forwards() }),
                    _ => None,
                };
                if matches!(ended, Some(Ended::Left { .. })) {
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
        if self.times.weighed != Some(self.world.mirror.revision()) {
            self.weigh();
        }
        self.follow_shares();
        self.confirm(now);
        self.keep_alive(now);
        self.steer(now);
        self.remember(now);
        self.follow_verify(now);
        self.follow_fast_path(now);
        self.follow_conditions(now);
        Ok(())
    }

    /// The longest time to wait for events: until the next work is due. Requests end the wait.
    fn patience(&self) -> Duration {
        if self.world.mirror.is_behind() {
            return Duration::ZERO;
        }
        if self.verifying.is_some() || self.generation.is_reclaiming() {
            return POLL;
        }
        let times = &self.times;
        let mut due = self.next_look_at_ports();
        due = due.min(self.uses.due(self.world.mirror.stale_neighbours().next().is_some()));
        due = due.min(times.confirmed.unwrap_or_default() + CONFIRM);
        if self.unremembered {
            due = due.min(times.remembered + REMEMBER);
        }
        due = due.min(self.changes.due().unwrap_or(due));
        due = due.min(self.world.mirror.next_end().unwrap_or(due));
        due = due.min(self.windows.due().unwrap_or(due));
        due = due.min(self.steerer.as_ref().and_then(Steerer::due).unwrap_or(due));
        due.saturating_sub(self.kernel.now())
    }

    /// Waits for events and takes them in.
    fn observe(&mut self, patience: Duration) {
        self.rounds += 1;
        match self.observer.poll(patience) {
            Ok(events) => {
                if self.trouble.take().is_some() {
                    tracing::info!("the mirror is current again");
                }
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
                let text = format!("cannot read the kernel's state: {error:#}");
                if self.trouble.as_ref() != Some(&text) {
                    tracing::error!("{text}; the mirror is not confirmed until it can be read again");
                }
                self.trouble = Some(text);
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
        self.unremembered |= plan.iter().any(|op| matches!(op, Op::Interface(..) | Op::Router { .. }));
        // This comes before the plan is applied: a new path gets its packets from the first one on.
        self.follow_paths();
        self.follow_policy();
        self.generation.apply(plan.into_iter());
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
            self.totals.forget(&interfaces, &routers, &self.generation.counters()?);
        }
        Ok(())
    }

    /// Confirms the mirror for the time of the heartbeat, unless the kernel's state cannot be read.
    fn confirm(&mut self, now: Duration) {
        self.beats.vouch(self.trouble.is_none());
        let due = self.times.confirmed.is_none_or(|last| now.saturating_sub(last) >= CONFIRM);
        if due && self.trouble.is_none() {
            self.generation.confirm_until(now + self.heartbeat());
            self.times.confirmed = Some(now);
        }
    }

    /// How long a confirmation lasts. With a heartbeat of 0, the end of this process ends forwarding. Where the kernel
    /// cannot show the end of a process, forwarding lasts for the shortest time that beats can keep up with.
    fn heartbeat(&self) -> Duration {
        self.config.heartbeat.0.max(LEAST_HEARTBEAT)
    }

    /// Attaches the program with shares when a core becomes full, and the other one when no core is full any more.
    fn follow_shares(&mut self) {
        if !self.generation.plane.follow_shares() {
            return;
        }
        let (_, devices): (Vec<_>, Vec<_>) = self.world.devices().unzip();
        if let Err(error) = self.kernel.swap(&self.generation.plane, &devices) {
            tracing::warn!("cannot switch to or from the program that cuts routers on full cores: {error:#}");
            self.generation.plane.unfollow_shares();
        }
    }

    /// Gives the kernel plane the routers and their weights, if shares are enforced.
    fn weigh(&mut self) {
        if !self.config.shares.enforce {
            return;
        }
        self.times.weighed = Some(self.world.mirror.revision());
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
        if !self.unremembered || now.saturating_sub(self.times.remembered) < REMEMBER {
            return;
        }
        self.times.remembered = now;
        self.remember_now();
    }

    fn remember_now(&mut self) {
        self.unremembered = false;
        let written = self.write_state().and_then(|()| self.kernel.retire(self.generation.number));
        if let Err(error) = written {
            tracing::warn!("cannot write {}: {error:#}", self.instance.state_file().display());
        }
    }

    /// Finds the conditions that hold now, except those of ports, routers and interfaces
    /// ([`Control::follow_fast_path`]) and of cores, which another thread sets.
    fn follow_conditions(&mut self, now: Duration) {
        if now.saturating_sub(self.times.found_conditions) >= CONFIRM {
            self.times.found_conditions = now;
            self.find_conditions();
        }
    }

    fn find_conditions(&self) {
        use ConditionKind::{Configuration, Counters, Linux, Path, Policy, Privileges, Tables};
        let of = |kind: ConditionKind, texts: Vec<String>| {
            self.conditions.set(&[kind], texts.into_iter().map(|text| Condition::new(kind, text)));
        };
        let paths = self.paths.iter().flat_map(|paths| {
            paths.condition.clone().into_iter().chain(paths.plane.stand().conditions.clone())
        });
        self.conditions.set(&[Linux], self.observer.conditions());
        of(Counters, self.generation.plane.conditions());
        of(Tables, self.stuck.iter().map(|stuck| stuck.why.clone()).collect());
        of(Path, paths.chain(self.past_paths()).collect());
        let late = |what| format!("policy changes are seen late: {what}");
        of(Policy, self.windows.unseen().into_iter().map(late).collect());
        of(Configuration, self.unknown_weights().collect());
        of(Privileges, privileges::condition().into_iter().collect());
    }

    /// All conditions that hold, except those of interfaces.
    fn condition_reports(&self) -> Vec<ConditionReport> {
        self.find_conditions();
        let shown = self.conditions.of(|kind| kind != ConditionKind::Interface).into_iter();
        shown.map(|(condition, since)| ConditionReport::new(condition, since)).collect()
    }

    /// Names in `shares.weights` that no router has. They may be misspelt.
    fn unknown_weights(&self) -> impl Iterator<Item = String> {
        let mut names: BTreeSet<&String> = self.config.shares.weights.keys().collect();
        if !names.is_empty() {
            self.world.mirror.routers().for_each(|router| {
                names.remove(&router.name);
            });
        }
        names
            .into_iter()
            .map(|name| format!("shares.weights: there is no router {name} (see `millrace routers`)"))
    }

    fn write_state(&self) -> Result<()> {
        let state = self.totals.state(self.generation.number, self.world.names());
        Ok(guard::replace(&self.instance.state_file(), &serde_json::to_vec(&state)?)?)
    }
}
