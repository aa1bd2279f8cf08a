//! The switch: flow rules of a running daemon, in a thread of their own.
//!
//! | file | holds |
//! |---|---|
//! | `mod.rs` | [`start`], the events and the loop |
//! | `agent.rs` | what is decided: rules, ports, the miss |
//! | `rules.rs` | rules and their maps, once there are some |
//! | `batches.rs` | grace periods, waited for by a helper thread |
//! | `change.rs` | what clients add, modify and delete |
//! | `slow.rs` | packets that user space does |
//! | `listing.rs` | rules told to clients, some at a time |
//! | `net/` | connections to controllers, which know nothing of OpenFlow |
//! | `handle.rs` | the API's end |
//! | `report.rs` | the JSON of all that |
//!
//! Everything that happens reaches the thread as an [`Event`] through one channel; it never waits for anything else. The
//! control loop attaches the program that goes by rules while there are some (`crate::daemon::rules`).

mod agent;
mod batches;
mod change;
mod handle;
mod listing;
pub mod net;
pub mod report;
mod rules;
mod slow;

pub use handle::{Handle, Lines};
pub use rules::capacity;

use crate::{
    config,
    daemon::{
        api::ApiError,
        kernel::monotonic,
        seam::{Gauge, SwitchEnd, SwitchPort, Told},
    },
    observer::Waker,
    plane::{FlowMaps, Grace},
};
use anyhow::{Context, Result};
use change::{Change, Changing};
use listing::Listings;
use logic::flow::kernel::Notice;
use rules::Rules;
use slow::Waiting;
use std::{
    sync::{
        Arc,
        atomic::Ordering::Relaxed,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::Duration,
};

/// How often rules are looked at whose time may be up.
const TICK: Duration = Duration::from_secs(1);

/// What happens to the switch.
enum Event {
    Change(Change),
    List(listing::Request),
    /// A client has taken what it was given of a listing.
    More(u64),
    Told(Told),
    /// A packet that the kernel plane hands over.
    Notice(Notice, Vec<u8>),
    /// No program runs any more that ran when this was asked for.
    Passed(Result<()>),
}

/// The thread's state.
struct Switch {
    events: Receiver<Event>,
    to_self: Sender<Event>,
    config: config::Flows,
    /// `None`: the control loop has not told yet; changes wait.
    ports: Option<Vec<SwitchPort>>,
    early: Vec<Event>,
    /// `None`: there never was a rule.
    rules: Option<Rules>,
    charge: Charge,
    changing: Changing,
    listings: Listings,
    gauge: Arc<Gauge>,
    waiting: Waiting,
    ticked: Duration,
}

/// Which program is attached, and what was asked for.
struct Charge {
    orders: Sender<Option<Arc<FlowMaps>>>,
    waker: Waker,
    in_charge: bool,
    /// The control loop has yet to answer.
    asked: bool,
    /// Why not, from the last answer; asked again with the next tick.
    failed: Option<String>,
}

/// Starts the thread. It ends with the process.
///
/// # Errors
/// No thread can be had.
pub fn start(config: &config::Flows, waker: Waker) -> Result<(Handle, SwitchEnd<Arc<FlowMaps>>)> {
    let (to, events) = mpsc::channel();
    let (orders, ordered) = mpsc::channel();
    let gauge = Arc::new(Gauge::default());
    let charge = Charge { orders, waker, in_charge: false, asked: false, failed: None };
    let switch = Switch {
        events,
        to_self: to.clone(),
        config: config.clone(),
        ports: None,
        early: Vec::new(),
        rules: None,
        charge,
        changing: Changing::default(),
        listings: Listings::default(),
        gauge: gauge.clone(),
        waiting: Waiting::default(),
        ticked: monotonic(),
    };
    thread::Builder::new()
        .name("switch".into())
        .spawn(move || switch.run())
        .context("starting the switch thread")?;
    let told_to = to.clone();
    let tell = Box::new(move |told| drop(told_to.send(Event::Told(told))));
    Ok((Handle::new(to), SwitchEnd { orders: ordered, tell, gauge }))
}

impl Switch {
    fn run(mut self) {
        loop {
            let patience = (self.ticked + TICK).saturating_sub(monotonic());
            match self.events.recv_timeout(patience) {
                Ok(event) => self.take(event),
                Err(RecvTimeoutError::Timeout) => self.tick(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.settle();
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Change(_) | Event::List(_) if self.ports.is_none() => self.early.push(event),
            Event::Change(change) => self.change(change),
            Event::List(request) => {
                let agent = self.rules.as_mut().map(|rules| &mut rules.agent);
                let ports = self.ports.as_deref().unwrap_or_default();
                self.listings.begin(request, agent, ports, now_ms());
            }
            Event::More(id) => {
                self.listings.go_on(id, self.rules.as_mut().map(|rules| &mut rules.agent), now_ms());
            }
            Event::Told(Told::Ports(ports)) => self.set_ports(ports),
            Event::Told(Told::InCharge(done)) => self.charge.answered(done),
            Event::Notice(notice, frame) => {
                slow::taken(&self.waiting, &frame);
                if let Some(rules) = &mut self.rules {
                    rules.notice(notice, frame);
                }
            }
            Event::Passed(done) => {
                if let Some(rules) = &mut self.rules {
                    rules.passed(done);
                }
            }
        }
    }

    fn set_ports(&mut self, ports: Vec<SwitchPort>) {
        if let Some(rules) = &mut self.rules {
            rules.set_ports(&ports);
        }
        let first = self.ports.replace(ports).is_none();
        if first && self.config.miss != config::Miss::Normal {
            // Packets are to be missed from the start.
            if let Err(error) = self.rules() {
                tracing::error!("flows.miss cannot be done: {}", error.text);
            }
        }
        for event in std::mem::take(&mut self.early) {
            self.take(event);
        }
    }

    /// The rules; their maps are made now if there were none yet.
    fn rules(&mut self) -> Result<&mut Rules, ApiError> {
        if self.rules.is_none() {
            let passed = self.to_self.clone();
            let grace = Grace::new().and_then(|grace| {
                let wait = Box::new(move || grace.wait());
                batches::Batches::start(wait, move |done| drop(passed.send(Event::Passed(done))))
            });
            let made = grace.and_then(|batches| {
                let rules = Rules::new(&self.config, batches, self.gauge.clone())?;
                let maps = rules.maps().clone();
                slow::read(maps, self.to_self.clone(), self.waiting.clone(), self.gauge.clone())?;
                Ok(rules)
            });
            let mut rules =
                made.map_err(|e| ApiError::failed(format!("there can be no flow rules: {e:#}")))?;
            rules.set_ports(self.ports.as_deref().unwrap_or_default());
            self.rules = Some(rules);
        }
        self.rules.as_mut().ok_or_else(|| ApiError::failed("there are no flow rules"))
    }

    fn change(&mut self, change: Change) {
        let ports = self.ports.clone().unwrap_or_default();
        let done = self.rules().and_then(|rules| {
            let batch = rules.next_batch();
            change::apply(&mut rules.agent, &change.request, &ports, now_ms()).map(|report| (batch, report))
        });
        match done {
            Ok((batch, report)) if change.request.wait => self.changing.wait(batch, report, change.reply),
            // The client may have gone; that is its business.
            Ok((_, report)) => drop(change.reply.send(Ok(report))),
            Err(error) => drop(change.reply.send(Err(error))),
        }
    }

    fn tick(&mut self) {
        self.ticked = monotonic();
        self.charge.failed = None;
        if let Some(rules) = &mut self.rules {
            rules.agent.tick(now_ms());
            let (hits, misses) = rules.maps().cache_use();
            self.gauge.cache_hits.store(hits, Relaxed);
            self.gauge.cache_misses.store(misses, Relaxed);
        }
    }

    /// Whatever happened: ends batches, has the right program attached, and answers what obeys by now.
    fn settle(&mut self) {
        let Some(rules) = &mut self.rules else { return };
        rules.settle();
        let wanted = rules.agent.wants_rules();
        self.gauge.rules.store(rules.agent.count() as u64, Relaxed);
        self.charge.want(wanted.then(|| rules.maps()));
        let obeys = self.charge.in_charge == wanted && !self.charge.asked;
        self.changing.answer(rules.finished(), obeys, self.charge.failed.as_deref());
    }
}

impl Charge {
    /// Has these rules put in charge, or none; one order at a time.
    fn want(&mut self, rules: Option<&Arc<FlowMaps>>) {
        if self.in_charge != rules.is_some() && !self.asked && self.failed.is_none() {
            self.asked = self.orders.send(rules.cloned()).is_ok();
            self.waker.wake();
        }
    }

    fn answered(&mut self, done: Result<bool, String>) {
        self.asked = false;
        match done {
            Ok(in_charge) => self.in_charge = in_charge,
            Err(why) => self.failed = Some(why),
        }
    }
}

/// CLOCK_MONOTONIC in milliseconds.
fn now_ms() -> u64 {
    u64::try_from(monotonic().as_millis()).unwrap_or(u64::MAX)
}
