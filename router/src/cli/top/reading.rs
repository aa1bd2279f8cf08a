//! Readings of the daemon and of /proc. Everything is bounded: the client bounds answers, this file rules and decisions.

use super::{
    state::View,
    ticks::{self, Ticks},
};
use crate::{
    api::{
        cores::{CoresReport, EventReport},
        flows::FlowReport,
        status::{ConnectionReport, InterfaceReport, Status},
    },
    base::{clock::monotonic, instance::Instance},
    cli::{PATIENCE, flows, get, said},
    daemon::client::{self, CallError},
};
use anyhow::{Result, bail};
use std::{
    collections::VecDeque,
    fs::File,
    io::{self, Read as _},
    time::Duration,
};

/// Rules are listed only if there are at most this many: listing more would be a load of its own.
pub const MOST_RULES: usize = 1000;
/// Connections are listed only if there are at most this many, for the same reason.
pub const MOST_CONNECTIONS: u64 = 10_000;
/// Decisions that are kept.
const MOST_EVENTS: usize = 64;

/// What is known at one moment.
#[derive(Clone, Debug)]
pub struct Reading {
    /// The daemon's answers, or why there are none.
    pub daemon: Result<Daemon, String>,
    pub ticks: Vec<Ticks>,
}

/// The daemon's answers.
#[derive(Clone, Debug, Default)]
pub struct Daemon {
    /// The time of `status`, since boot.
    pub at: Duration,
    pub status: Status,
    pub cores: CoresReport,
    /// The last decisions, in order.
    pub events: Vec<EventReport>,
    /// `None`: not asked for, more than [`MOST_RULES`], or only for root.
    pub rules: Option<Vec<FlowReport>>,
    /// `None`: not asked for.
    pub interfaces: Option<Vec<InterfaceReport>>,
    /// Those that are fast; `None`: not asked for, more than [`MOST_CONNECTIONS`], or only for root.
    pub connections: Option<Vec<ConnectionReport>>,
    /// The time of these lists, since boot.
    pub listed_at: Duration,
}

/// Makes readings; remembers the decisions that it has seen.
pub struct Reader {
    instance: Instance,
    /// Process of the daemon that `events` come from.
    pid: u32,
    events: VecDeque<EventReport>,
}

impl Reader {
    pub fn new(instance: Instance) -> Reader {
        Reader { instance, pid: 0, events: VecDeque::new() }
    }

    /// A reading of this moment for a view; `None`: for all views.
    pub fn read(&mut self, view: Option<View>) -> Reading {
        let daemon = self.ask(view).map_err(|error| format!("{error:#}"));
        let ticks = read_ticks().unwrap_or_default();
        Reading { daemon, ticks }
    }

    fn ask(&mut self, view: Option<View>) -> Result<Daemon> {
        let wants = |wanted| view.is_none_or(|view| view == wanted);
        let status: Status = get(&self.instance, "/status")?;
        let at = monotonic();
        let cores = get(&self.instance, "/cores")?;
        self.ask_events(status.pid)?;
        let rules = match wants(View::Flows) && status.flows.rules <= MOST_RULES as u64 {
            true => self.ask_rules()?,
            false => None,
        };
        let interfaces = match wants(View::Interfaces) {
            true => Some(get(&self.instance, "/interfaces")?),
            false => None,
        };
        let fast = status.routers.iter().fold(0_u64, |sum, router| sum.saturating_add(router.connections));
        let connections = match wants(View::Talkers) && fast <= MOST_CONNECTIONS {
            true => self.ask_connections()?,
            false => None,
        };
        let (listed_at, events) = (monotonic(), self.events.iter().cloned().collect());
        Ok(Daemon { at, status, cores, events, rules, interfaces, connections, listed_at })
    }

    fn ask_events(&mut self, pid: u32) -> Result<()> {
        if pid != self.pid {
            // Another daemon numbers its events from 1 again.
            (self.pid, self.events) = (pid, VecDeque::new());
        }
        let seen = self.events.back().map_or(0, |event| event.number);
        let new: Vec<EventReport> = get(&self.instance, &format!("/events?after={seen}"))?;
        self.events.extend(new);
        self.events.drain(..self.events.len().saturating_sub(MOST_EVENTS));
        Ok(())
    }

    fn ask_connections(&self) -> Result<Option<Vec<ConnectionReport>>> {
        let path = "/connections?state=fast";
        match client::call(&self.instance.socket(), "GET", path, None, PATIENCE) {
            // Only root may list connections.
            Err(CallError::Forbidden) => Ok(None),
            Err(error) => Err(said(&self.instance, error)),
            Ok(connections) => Ok(Some(connections)),
        }
    }

    fn ask_rules(&self) -> Result<Option<Vec<FlowReport>>> {
        let mut rules = Vec::new();
        let mut is_whole = true;
        let listed = flows::each(&self.instance, "", |flow| {
            is_whole = rules.len() < MOST_RULES;
            if !is_whole {
                bail!("more rules than are listed");
            }
            rules.push(flow);
            Ok(())
        });
        match listed {
            // Only root may list rules.
            Err(error) if matches!(error.downcast_ref(), Some(CallError::Forbidden)) => Ok(None),
            listed if is_whole => listed.map(|()| Some(rules)),
            _ => Ok(None),
        }
    }
}

fn read_ticks() -> io::Result<Vec<Ticks>> {
    let mut text = String::new();
    File::open("/proc/stat")?.take(ticks::MOST_BYTES).read_to_string(&mut text)?;
    Ok(ticks::parse(&text))
}
