//! The daemon: the loop that keeps the fast path equal to what Linux says.
//!
//! | file | holds |
//! |---|---|
//! | `mod.rs` | [`Control`]: observe, decide, apply; heartbeat and neighbours |
//! | `generation.rs` | programs and maps in charge: first start, growth, ports that come and go |
//! | `answers.rs`, `report.rs` | what is told to clients, and its words |
//! | `explain.rs`, `packet.rs` | one packet through the real program, told step by step |
//! | `seam.rs`, `kernel.rs` | what the loop needs of Linux, and the real thing |
//! | `start.rs` | `millrace run` and `millrace stop`: lock, checks, privileges, threads |
//! | `api.rs`, `client.rs`, `instance.rs` | the socket, both ends, and who may own it |
//! | `totals.rs`, `reclaim.rs` | counters across generations; grace periods |
//!
//! One thread runs the loop and owns everything that changes. The API thread asks it through a queue, the grace thread
//! waits for it; neither makes it wait.

mod answers;
pub mod api;
pub mod client;
mod explain;
mod generation;
pub mod instance;
pub mod kernel;
mod ledger;
pub mod observing;
pub mod packet;
mod pending;
mod reclaim;
pub mod report;
pub mod seam;
pub mod start;
mod totals;

use crate::config::Config;
use anyhow::Result;
use api::{Query, Request};
use generation::{Generation, note_port};
use logic::plan::{Op, PortId};
use pending::Mirror;
use seam::{Kernel, Observe};
use std::{collections::BTreeMap, sync::mpsc::Receiver, time::Duration};
use totals::Totals;

/// Longest wait for events: also how long a client may wait for its turn.
const POLL: Duration = Duration::from_millis(20);
/// How often the mirror is confirmed.
const CONFIRM: Duration = Duration::from_secs(1);
/// How often neighbours in use are looked after. The kernel calls an entry stale after 15 to 45 s without use and drops
/// it from 60 s on (`base_reachable_time_ms`, `gc_stale_time`).
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// Least time between two writes of the state file.
const REMEMBER: Duration = Duration::from_secs(1);

/// The daemon's state.
pub struct Control<K: Kernel, O> {
    config: Config,
    kernel: K,
    observer: O,
    mirror: Mirror,
    generation: Generation<K::Plane>,
    ports: BTreeMap<PortId, PortState>,
    totals: Totals,
    /// Why the mirror may be out of date.
    trouble: Option<String>,
    /// Names have changed since they were last written for the next daemon.
    unremembered: bool,
    times: Times,
    instance: instance::Instance,
}

/// A configured port.
#[derive(Clone, Debug, Default)]
struct PortState {
    name: String,
    /// `None`: the device is not there.
    ifindex: Option<u32>,
    /// The device the program in charge is attached to.
    attached: Option<u32>,
    mode: Option<crate::plane::Mode>,
    /// Why it is not attached.
    refused: Option<String>,
    /// Why packets from it are not trusted.
    problems: Vec<String>,
}

impl PortState {
    /// The device to be attached to.
    fn wanted(&self) -> Option<u32> {
        self.ifindex.filter(|_| self.refused.is_none())
    }
}

/// When periodic work was last done, CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    started: Duration,
    confirmed: Option<Duration>,
    kept_alive: Duration,
    looked_at_ports: Duration,
    remembered: Duration,
}

/// How the loop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// `millrace stop`: nothing is left in the kernel.
    Stopped,
    /// A signal: forwarding goes on until the heartbeat expires.
    Left,
}

impl<K: Kernel, O: Observe> Control<K, O> {
    /// Observes, decides, applies, until told to end.
    pub fn run(mut self, requests: &Receiver<Request>) -> Result<Ended> {
        loop {
            self.observe(POLL);
            self.apply()?;
            let now = self.kernel.now();
            self.settle_ports(now)?;
            self.generation.reclaim(now);
            self.confirm(now);
            self.keep_alive(now);
            self.remember(now);
            for request in requests.try_iter().take(api::QUEUE) {
                let ended = match &request.query {
                    Query::Stop => Some(Ended::Stopped),
                    Query::Leave => Some(Ended::Left),
                    _ => None,
                };
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

    /// Takes in what has happened.
    fn observe(&mut self, patience: Duration) {
        match self.observer.poll(patience) {
            Ok(events) => {
                if self.trouble.take().is_some() {
                    tracing::info!("the mirror is current again");
                }
                for event in events {
                    note_port(&mut self.ports, &event);
                    self.mirror.observe(event);
                }
            }
            Err(error) => {
                let text = format!("cannot read the kernel's state: {error:#}");
                if self.trouble.as_ref() != Some(&text) {
                    tracing::error!("{text}; not confirming the mirror until it can be read again");
                }
                self.trouble = Some(text);
                std::thread::sleep(patience);
            }
        }
    }

    /// Brings the fast path up to what was taken in.
    fn apply(&mut self) -> Result<()> {
        let plan = self.mirror.plan();
        self.forget_gone(&plan)?;
        let full = self.generation.apply(&plan);
        self.unremembered |= plan.iter().any(|op| matches!(op, Op::Interface(..) | Op::Router { .. }));
        if let Some(full) = full {
            self.grow(&full)?;
        }
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
        let due = self.times.confirmed.is_none_or(|last| now.saturating_sub(last) >= CONFIRM);
        if due && self.trouble.is_none() {
            self.generation.confirm_until(now + self.config.heartbeat.0);
            self.times.confirmed = Some(now);
        }
    }

    /// Makes the kernel look after neighbours that only the fast path uses.
    fn keep_alive(&mut self, now: Duration) {
        if now.saturating_sub(self.times.kept_alive) < KEEP_ALIVE {
            return;
        }
        self.times.kept_alive = now;
        let interfaces: BTreeMap<_, _> = self
            .mirror
            .interfaces()
            .into_iter()
            .filter_map(|i| Some((i.id?, (i.namespace, i.ifindex))))
            .collect();
        for (interface, address) in self.generation.take_used() {
            let Some((namespace, ifindex)) = interfaces.get(&interface) else { continue };
            if self.mirror.is_stale(interface, address) {
                if let Err(error) = self.observer.probe_neighbour(*namespace, *ifindex, address) {
                    tracing::debug!("cannot probe neighbour {address}: {error:#}");
                }
            }
        }
    }

    /// Writes down what the numbers mean, for the daemon after this one.
    fn remember(&mut self, now: Duration) {
        if !self.unremembered || now.saturating_sub(self.times.remembered) < REMEMBER {
            return;
        }
        (self.unremembered, self.times.remembered) = (false, now);
        if let Err(error) = self.write_state() {
            tracing::warn!("cannot write {}: {error:#}", self.instance.state_file().display());
        }
    }

    fn write_state(&self) -> Result<()> {
        let path = self.instance.state_file();
        let new = path.with_extension("state.new");
        std::fs::write(&new, serde_json::to_string(&self.totals.state(self.names()))?)?;
        Ok(std::fs::rename(new, path)?)
    }
}
