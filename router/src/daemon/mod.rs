//! The daemon: the loop that keeps the fast path equal to what Linux says.
//!
//! | file | holds |
//! |---|---|
//! | `mod.rs` | [`Control`]: observe, decide, apply; heartbeat |
//! | `generation.rs` | programs and maps in charge: first start, growth, ports that come and go |
//! | `rules.rs` | flow rules put in charge, and what the switch thread is told |
//! | `beats.rs` | the heartbeat, in a thread of its own |
//! | `answers.rs` | answers to clients, in the words of [`crate::api`] |
//! | `verify.rs`, `verify/` | comparing the tables with Linux, in a thread of its own |
//! | `explain.rs` | one packet through the real program, told step by step |
//! | `seam.rs`, `kernel.rs` | what the loop needs of Linux, and the real thing |
//! | `refusal.rs` | why a driver may refuse XDP |
//! | `start.rs` | `millrace run` and `millrace stop`: lock, checks, privileges, threads |
//! | `api.rs`, `serving.rs`, `client.rs` | the socket, both ends |
//! | `changes.rs` | conditions of ports, routers and interfaces |
//! | `world.rs`, `ledger.rs` | what was observed and decided, to be read or done again |
//! | `policy.rs` | what is read again after a change of policy, before the fast path has packets again |
//! | `paths.rs` | paths of the user plane: which are active |
//! | `neighbours.rs` | neighbours that only the fast path uses |
//! | `steering.rs` | heavy flows to queues of their next hops, where a NIC can |
//! | `totals.rs`, `reclaim.rs` | counters across generations; grace periods |
//!
//! One thread runs the loop and owns everything that changes of routing. The API thread asks it through a queue, the grace
//! thread waits for it, the switch thread ([`crate::switch`]) owns flow rules; none makes it wait, but for
//! the user plane, a second at most, when tables move to larger memory.

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

/// Wait for events while a thread of ours is about to have done something.
const POLL: Duration = Duration::from_millis(20);
/// How often the mirror is confirmed.
const CONFIRM: Duration = Duration::from_secs(1);
/// How long it is confirmed for at least.
const LEAST_HEARTBEAT: Duration = Duration::from_secs(2);
/// Least time between two writes of the state file.
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
    /// Why not everything is in the tables.
    stuck: Option<Stuck>,
    /// How often the loop has gone around.
    rounds: u64,
    verifying: Option<Verifying>,
    /// Names have changed since they were last written for the next daemon.
    unremembered: bool,
    times: Times,
    uses: neighbours::Uses,
    instance: Instance,
    /// Place of the port looked at last.
    next_port: usize,
    changes: Changes,
    conditions: Conditions,
    switch: SwitchEnd<<K::Plane as FastPath>::Rules>,
    /// In charge of the ports; `None`: packets are routed.
    rules: Option<<K::Plane as FastPath>::Rules>,
    /// What the switch thread knows.
    told_ports: Option<Vec<SwitchPort>>,
    /// When, and which of them had a worker.
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
    /// The revision of the mirror that routers were last weighed by.
    weighed: Option<u64>,
}

/// How the loop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// `millrace stop`: nothing is left in the kernel.
    Stopped,
    /// A signal: forwarding goes on until the heartbeat expires.
    Left {
        /// At least one port was trusted.
        forwarding: bool,
    },
}

impl<K: Kernel, O: Observe> Control<K, O> {
    /// Observes, decides, applies, until told to end.
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
                // The client may have gone; that is its business.
                let _ = request.reply.send(answer);
                if let Some(ended) = ended {
                    return Ok(ended);
                }
            }
        }
    }

    /// Is there a port whose packets are taken at all? Says of the others why not.
    fn forwards(&self) -> bool {
        for port in self.world.ports.values() {
            port.obstacles()
                .iter()
                .for_each(|why| tracing::warn!("port {} is not trusted: {why}", port.name));
        }
        self.world.ports.values().any(|port| port.obstacles().is_empty())
    }

    /// Once around: what has happened, what follows, and what is due.
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

    /// How long to wait for events: until something is due. Clients end the wait themselves.
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

    /// Takes in what has happened.
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
                    tracing::error!("{text}; not confirming the mirror until it can be read again");
                }
                self.trouble = Some(text);
                std::thread::sleep(POLL);
            }
        }
    }

    /// Brings the fast path up to what was taken in.
    fn apply(&mut self) -> Result<()> {
        let plan = self.world.plan(self.kernel.now());
        for namespace in self.world.mirror.unsure() {
            self.observer.read_routes_again(namespace);
        }
        self.forget_gone(&plan)?;
        self.unremembered |= plan.iter().any(|op| matches!(op, Op::Interface(..) | Op::Router { .. }));
        // Before what they say is forwarded: a path's packets are so from the first one on.
        self.follow_paths();
        self.follow_policy();
        self.generation.apply(plan.into_iter());
        Ok(())
    }

    /// A number whose owner is gone will be given to another, who must not inherit its counters.
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

    /// Vouches for the mirror, for as long as the heartbeat says.
    fn confirm(&mut self, now: Duration) {
        self.beats.vouch(self.trouble.is_none());
        let due = self.times.confirmed.is_none_or(|last| now.saturating_sub(last) >= CONFIRM);
        if due && self.trouble.is_none() {
            self.generation.confirm_until(now + self.heartbeat());
            self.times.confirmed = Some(now);
        }
    }

    /// How long a confirmation lasts. With a heartbeat of 0 the end of this process ends forwarding; where the kernel does
    /// not let us see that, it lasts as short as beats can be relied on.
    fn heartbeat(&self) -> Duration {
        self.config.heartbeat.0.max(LEAST_HEARTBEAT)
    }

    /// A core is full: the program with shares takes over; or none is any more.
    fn follow_shares(&mut self) {
        if !self.generation.plane.follow_shares() {
            return;
        }
        let (_, devices): (Vec<_>, Vec<_>) = self.world.devices().unzip();
        if let Err(error) = self.kernel.swap(&self.generation.plane, &devices) {
            tracing::warn!("routers on full cores are not cut as they should be: {error:#}");
            self.generation.plane.unfollow_shares();
        }
    }

    /// Tells which routers there are, and their weights.
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

    /// Lets classifiers of NICs follow the traffic.
    fn steer(&mut self, now: Duration) {
        if let Some(steerer) = &mut self.steerer {
            steerer.round(now, self.generation.plane.take_samples(), &mut self.generation.tables);
        }
    }

    /// Writes down what the numbers mean, for the daemon after this one.
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
        let paths = self
            .paths
            .iter()
            .flat_map(|paths| paths.trouble.clone().into_iter().chain(paths.plane.stand().troubles.clone()));
        of(Linux, self.observer.troubles());
        of(Counters, self.generation.plane.troubles());
        of(Tables, self.stuck.iter().map(|stuck| stuck.why.clone()).collect());
        of(Path, paths.chain(self.past_paths()).collect());
        let late = |what| format!("policy changes are seen late: {what}");
        of(Policy, self.windows.unseen().into_iter().map(late).collect());
        of(Configuration, self.unknown_weights().collect());
        of(Privileges, privileges::trouble().into_iter().collect());
    }

    /// All conditions that hold, except those of interfaces.
    fn condition_reports(&self) -> Vec<ConditionReport> {
        self.find_conditions();
        let all = self.conditions.all().into_iter();
        let shown = all.filter(|(condition, _)| condition.kind != ConditionKind::Interface);
        shown.map(|(condition, since)| ConditionReport::new(condition, since)).collect()
    }

    /// Routers that have a weight and are none: maybe misspelt.
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
