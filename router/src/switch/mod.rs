//! The switch: the flow rules of a running daemon, in a thread of their own.
//!
//! | file | holds |
//! |---|---|
//! | `mod.rs` | [`start`], the events and the loop |
//! | `rules.rs` | rules and their maps, from the first rule on; the effects of [`logic::openflow::agent`] |
//! | `batches.rs` | grace periods, for which a helper thread waits |
//! | `charge.rs` | whether the program with rules is attached, and if not, why |
//! | `change.rs` | adding, modifying and deleting rules for clients |
//! | `choosing.rs` | cores for flows whose rules ask for a choice |
//! | `machine.rs` | cores and workloads, for controllers and clients |
//! | `device.rs` | the ports, paths and cores of this box; setting ports up and down, counters |
//! | `controllers.rs` | the report about controllers, for clients |
//! | `slow.rs` | packets that user space forwards |
//! | `explain.rs` | explaining what rules do with a packet |
//! | `file.rs` | rules that apply from the start |
//! | `listing.rs` | listing rules for clients, some at a time |
//! | `proxied.rs` | flow-mods that come through another switch |
//! | `net/` | connections to controllers, as bytes without OpenFlow |
//! | `handle.rs` | the API's end |
//! | `seam.rs` | the interface to the control loop; the JSON is in [`crate::api::flows`] |
//!
//! Everything that happens reaches the thread as an [`Event`] through one channel. It never waits for anything
//! else. The control loop attaches the program with rules while there are some (`crate::daemon::rules`).

mod batches;
mod change;
mod charge;
mod choosing;
pub mod controllers;
mod device;
mod explain;
pub mod file;
mod handle;
mod listing;
pub mod machine;
pub mod net;
mod proxied;
mod rules;
pub mod seam;
mod slow;

pub use handle::{Handle, Lines};
pub use rules::capacity;

use crate::{
    api::ApiError,
    base::{clock::monotonic, guard::locked, privileges},
    config::{Config, Miss},
    cores,
    linux::observer::Waker,
    plane::{FlowMaps, Grace},
    switch::seam::{Gauge, SwitchEnd, SwitchMessage, SwitchPort},
};
use anyhow::{Context, Result, anyhow};
use change::Change;
use charge::Charge;
use controllers::ControllersReport;
use device::{Counted, Devices};
use file::Loading;
use listing::Listings;
use net::{NetEvent, Network};
use proxied::ProxiedFrame;
use rules::Rules;
use slow::Reader;
use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::Ordering::Relaxed,
        mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender},
    },
    thread,
    time::Duration,
};
use tokio::sync::oneshot;

/// The time between two searches for rules whose time is up.
const TICK: Duration = Duration::from_secs(1);

/// The most packets that are done before other events get their turn.
const PACKETS: usize = 64;

/// An event for the switch thread.
enum Event {
    Change(Change),
    List(listing::Request),
    Explain(explain::Request),
    /// A client has taken a piece of a listing.
    More(u64),
    /// A message of the control loop.
    Message(SwitchMessage),
    /// Packets from the kernel plane wait in their own channel.
    Noticed,
    /// A grace period has passed, or the helper thread could not wait for it.
    Passed(Result<()>),
    Net(NetEvent),
    Proxied(ProxiedFrame),
    Reload(Reload),
    /// The source of cores and workloads.
    Machine(cores::handle::CoresHandle),
    Controllers(oneshot::Sender<ControllersReport>),
}

/// Another configuration. A caller that times out withdraws it by taking it.
struct Reload {
    config: Arc<Mutex<Option<Config>>>,
    /// Receives the result.
    reply: SyncSender<Result<()>>,
}

/// The thread's state.
struct Switch {
    events: Receiver<Event>,
    to_self: Sender<Event>,
    /// Has packets for user space. The thread takes them when there are no other events.
    reader: Reader,
    config: Config,
    /// `None`: no controllers are configured.
    network: Option<Network>,
    devices: Devices,
    /// Rules that wait for the ports.
    loading: Option<Loading>,
    /// Events that wait until the control loop has sent the ports; `None`: it has.
    early: Option<Vec<Event>>,
    /// Shows the maps of rules to the API.
    shown_maps: Arc<OnceLock<Arc<FlowMaps>>>,
    /// Events of controllers that came while the control loop was changing the attached program.
    held: VecDeque<NetEvent>,
    /// `None`: there has been no rule yet.
    rules: Option<Rules>,
    charge: Charge,
    listings: Listings,
    gauge: Arc<Gauge>,
    ticked: Duration,
    /// An answer that waits until other threads have their orders.
    reloaded: Option<(SyncSender<Result<()>>, Result<()>)>,
}

/// Starts the thread. It ends with the process.
///
/// # Errors
/// The thread cannot be started, an address cannot be listened on for another reason than that it is taken or not there, or a TLS
/// file cannot be used.
pub fn start(config: &Config, waker: Waker) -> Result<(Handle, SwitchEnd<Arc<FlowMaps>>)> {
    let (to, events) = mpsc::channel();
    let (orders, ordered) = mpsc::channel();
    let gauge = Arc::new(Gauge::default());
    let charge = Charge::new(orders, waker);
    let network = network(config, &to, true)?;
    *locked(&gauge.not_listening) = network.as_ref().map_or_else(Vec::new, Network::deaf);
    if !config.openflow.proxy_ports.is_empty() {
        proxied::listen(to.clone())?;
    }
    let reader = Reader::start(to.clone(), gauge.clone())?;
    let (loading, loaded) = config.flows.file.as_deref().map(Loading::begin).transpose()?.unzip();
    let shown_maps = Arc::<OnceLock<_>>::default();
    let switch = Switch {
        events,
        to_self: to.clone(),
        reader,
        config: config.clone(),
        network,
        devices: Devices::default(),
        loading,
        early: Some(Vec::new()),
        shown_maps: shown_maps.clone(),
        held: VecDeque::new(),
        rules: None,
        charge,
        listings: Listings::default(),
        gauge: gauge.clone(),
        ticked: monotonic(),
        reloaded: None,
    };
    thread::Builder::new()
        .name("switch".into())
        .spawn(move || {
            if let Err(error) = privileges::serve_only(privileges::OF_FLOW_RULES) {
                tracing::error!("the thread of flow rules keeps its rights: {error:#}");
            }
            switch.run()
        })
        .context("starting the switch thread")?;
    let tell_to = to.clone();
    let tell = Box::new(move |message| drop(tell_to.send(Event::Message(message))));
    Ok((Handle::new(to, shown_maps), SwitchEnd { orders: ordered, tell, gauge, loaded }))
}

/// Does this configuration need rules from the start? Misses and controllers do.
fn needs_rules(config: &Config) -> bool {
    config.flows.miss != Miss::Normal || !config.openflow.controllers.is_empty()
}

/// The connections to controllers, if any are configured. `may_wait`: as for [`Network::start`].
fn network(config: &Config, to: &Sender<Event>, may_wait: bool) -> Result<Option<Network>> {
    if config.openflow.controllers.is_empty() {
        return Ok(None);
    }
    let to = to.clone();
    let take = move |event| drop(to.send(Event::Net(event)));
    Network::start(&config.openflow, may_wait, take).context("OpenFlow controllers").map(Some)
}

impl Switch {
    fn run(mut self) {
        loop {
            let patience = (self.ticked + TICK).saturating_sub(monotonic());
            match self.events.recv_timeout(if self.reader.noticed { Duration::ZERO } else { patience }) {
                Ok(event) => self.take(event),
                Err(RecvTimeoutError::Timeout) => self.take_packets(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
            // The tick comes however many events there are.
            if monotonic() >= self.ticked + TICK {
                self.tick();
            }
            self.settle();
            // The control loop has the order to put rules in charge before the answer.
            self.reloaded.take().into_iter().for_each(|(reply, done)| drop(reply.send(done)));
            while let Some(event) = (!self.charge.asked).then(|| self.held.pop_front()).flatten() {
                self.net(event);
                self.settle();
            }
        }
    }

    /// Takes some of the packets for user space.
    fn take_packets(&mut self) {
        for _ in 0..PACKETS {
            let Some((notice, frame)) = self.reader.take() else { return };
            if let Some(rules) = &mut self.rules {
                rules.notice(notice, &frame);
            }
        }
    }

    fn take(&mut self, event: Event) {
        let waits = matches!(event, Event::Change(_) | Event::List(_) | Event::Explain(_) | Event::Net(_));
        if let Some(early) = self.early.as_mut().filter(|_| waits) {
            return early.push(event);
        }
        match event {
            Event::Change(change) => match self.rules() {
                Ok((rules, devices)) => rules.change(change, &devices.ports),
                Err(error) => drop(change.reply.send(Err(error))),
            },
            Event::List(request) => {
                let agent = self.rules.as_mut().map(|rules| &mut rules.agent);
                self.listings.begin(request, agent, &self.devices.ports, now_ms());
            }
            Event::Explain(request) => self.explain(request),
            Event::More(id) => {
                self.listings.go_on(id, self.rules.as_mut().map(|rules| &mut rules.agent), now_ms());
            }
            Event::Message(SwitchMessage::Ports(ports)) => self.set_ports(ports),
            Event::Message(SwitchMessage::Paths(paths)) => {
                self.devices.paths = paths;
                if let Some(rules) = &mut self.rules {
                    rules.set_paths(&self.config.paths, &self.devices.paths);
                }
            }
            Event::Message(SwitchMessage::InCharge(done)) => self.charge.answered(done),
            Event::Noticed => self.reader.noticed = true,
            Event::Passed(done) => {
                if let Some(rules) = &mut self.rules {
                    rules.passed(done);
                }
            }
            Event::Net(event) if self.charge.asked || !self.held.is_empty() => self.held.push_back(event),
            Event::Net(event) => self.net(event),
            Event::Proxied(frame) => self.proxied(&frame),
            Event::Reload(Reload { config, reply }) => {
                // A caller that timed out has withdrawn it.
                let taken = locked(&config).take();
                self.reloaded = taken.map(|config| (reply, self.reload(config)));
            }
            Event::Machine(machine) => {
                self.devices.machine = Some(machine);
                self.show_machine();
            }
            Event::Controllers(reply) => {
                let said = self.rules.as_ref().map(|rules| rules.agent.report()).unwrap_or_default();
                let targets = self.network.as_ref().map(Network::report).unwrap_or_default();
                let fail = controllers::fail_mode(&self.config.openflow);
                let in_charge = self.charge.in_charge();
                let _ = reply.send(controllers::report(targets, &said, fail, in_charge, &self.gauge));
            }
        }
    }

    fn net(&mut self, event: NetEvent) {
        let Ok((rules, devices)) = self.rules() else { return };
        let maps = rules.maps().clone();
        let outside = &Counted { devices, memory: maps.memory() };
        let agent = &mut rules.agent;
        match event {
            NetEvent::Connected { connection, peer, dialled } => {
                agent.connected(connection, &peer, dialled, now_ms())
            }
            NetEvent::Received { connection, bytes } => agent.received(connection, &bytes, now_ms(), outside),
            NetEvent::Written { connection, bytes } => agent.written(connection, bytes, now_ms(), outside),
            NetEvent::Closed { connection, why } => {
                tracing::debug!("a controller's connection has ended: {why}");
                agent.closed(connection);
            }
        }
    }

    fn explain(&mut self, request: explain::Request) {
        let explain::Request { port, frame, reply } = request;
        let rules = self.rules.as_mut().filter(|_| self.charge.in_charge());
        let report = rules.and_then(|rules| {
            let mut report = explain::report(&mut rules.agent, &self.devices.ports, &port, frame, now_ms())?;
            if report.outputs.iter().any(|output| output.to == "CONTROLLER") && !rules.agent.has_peer() {
                let none = self.config.openflow.controllers.is_empty();
                let state = if none { "configured" } else { "connected" };
                report.notes.push(format!("no controller is {state}, so packets to CONTROLLER are lost"));
            }
            Some(report)
        });
        // It does no harm if the client is gone.
        let _ = reply.send(report);
    }

    /// Follows another configuration.
    ///
    /// # Errors
    /// There is no memory for rules, an address cannot be listened on, or a TLS file cannot be used. Everything is as before.
    fn reload(&mut self, config: Config) -> Result<()> {
        let made = match self.rules.is_none() && needs_rules(&config) {
            true => Some(self.make_rules(&config)?),
            false => None,
        };
        match &mut self.network {
            Some(network) => network.follow(&config.openflow)?,
            None => self.network = network(&config, &self.to_self, false)?,
        }
        self.config = config;
        self.show_listeners();
        if let Some(rules) = made {
            self.begin_rules(rules)?;
        } else if let Some(rules) = &mut self.rules {
            rules.follow(&self.config, &self.devices.ports);
            rules.set_paths(&self.config.paths, &self.devices.paths);
        }
        Ok(())
    }

    /// Takes a flow-mod that came through another switch. It is lost if it comes before the ports are known.
    fn proxied(&mut self, frame: &ProxiedFrame) {
        let mut ports = self.devices.ports.iter();
        let Some(port) = ports.find(|port| port.ifindex == Some(frame.ifindex)).map(rules::number) else {
            return;
        };
        if let Ok((rules, _)) = self.rules() {
            rules.agent.proxied(port, &frame.bytes, now_ms());
        }
    }

    fn set_ports(&mut self, ports: Vec<SwitchPort>) {
        self.devices.ports = ports;
        if let Some(rules) = &mut self.rules {
            rules.set_ports(&self.devices);
        }
        if let Some(loading) = self.loading.take() {
            let done = self.load(&loading);
            // It does no harm if the daemon is ending.
            let _ = loading.done.send(done.map_err(|error| format!("{error:#}")));
        }
        let Some(early) = self.early.take() else { return };
        if needs_rules(&self.config)
            && let Err(error) = self.rules()
        {
            tracing::error!("{}", error.text);
        }
        early.into_iter().for_each(|event| self.take(event));
    }

    /// Adds the rules of the configured file. Returns the rules that are to be put in charge, if any.
    fn load(&mut self, loading: &Loading) -> Result<Option<Arc<FlowMaps>>> {
        let (rules, devices) = self.rules().map_err(|error| anyhow!("{}", error.text))?;
        rules.load(loading, devices)?;
        let wanted = rules.agent.wants_rules().then(|| rules.maps().clone());
        // The control loop reports when it has put them in charge.
        self.charge.asked = wanted.is_some();
        Ok(wanted)
    }

    /// The rules, and what they are about. The first call makes their maps.
    fn rules(&mut self) -> Result<(&mut Rules, &Devices), ApiError> {
        if self.rules.is_none() {
            let config = self.config.clone();
            let made = self.make_rules(&config).and_then(|rules| self.begin_rules(rules));
            made.map_err(|e| ApiError::failed(format!("{e:#}")))?;
        }
        let rules = self.rules.as_mut().ok_or_else(|| ApiError::failed("there are no flow rules"))?;
        Ok((rules, &self.devices))
    }

    /// Makes the maps of rules for a configuration.
    fn make_rules(&self, config: &Config) -> Result<Rules> {
        let passed = self.to_self.clone();
        let grace = Grace::new().and_then(|grace| {
            let wait = Box::new(move || grace.wait());
            batches::Batches::start(wait, move |done| drop(passed.send(Event::Passed(done))))
        });
        let made =
            grace.and_then(|batches| Rules::new(config, &self.devices.ports, batches, self.gauge.clone()));
        made.context("there can be no flow rules")
    }

    fn begin_rules(&mut self, mut rules: Rules) -> Result<()> {
        self.reader.read(rules.maps().clone()).context("there can be no flow rules")?;
        rules.set_ports(&self.devices);
        rules.set_paths(&self.config.paths, &self.devices.paths);
        // The cell is still empty.
        let _ = self.shown_maps.set(rules.maps().clone());
        self.rules = Some(rules);
        Ok(())
    }

    fn tick(&mut self) {
        self.ticked = monotonic();
        self.show_listeners();
        self.charge.tick();
        if let Some(rules) = &mut self.rules {
            rules.agent.tick(now_ms());
        }
        self.show_machine();
    }

    fn show_listeners(&self) {
        *locked(&self.gauge.not_listening) = self.network.as_ref().map_or_else(Vec::new, Network::deaf);
    }

    fn show_machine(&mut self) {
        if let Some(rules) = self.rules.as_mut().filter(|_| self.devices.machine.is_some()) {
            rules.show_machine(&self.devices);
        }
    }

    /// Runs after each event: ends batches, orders the right program, carries out the agent's effects, and answers
    /// changes that packets obey.
    fn settle(&mut self) {
        let Some(rules) = &mut self.rules else { return };
        rules.choose(&self.devices);
        let obeys = self.charge.is(rules.agent.wants_rules());
        rules.settle(obeys, &self.devices);
        // Asked again: controllers that waited for a barrier go on, and may have changed that.
        let wanted = rules.agent.wants_rules();
        rules.carry_out(self.network.as_ref(), &self.devices.ports);
        self.gauge.rules.store(rules.count(), Relaxed);
        self.gauge.core_rules.store(rules.agent.flows().tables().core_rules() as u64, Relaxed);
        let lost = rules.agent.packet_ins_lost();
        self.gauge.no_controller.store(lost.no_controller, Relaxed);
        self.gauge.over_rate.store(lost.over_rate, Relaxed);
        self.gauge.not_read.store(lost.not_read, Relaxed);
        self.charge.want(wanted.then(|| rules.maps()));
        let standing = self.charge.standing(rules.agent.has_rules(), rules.agent.stands_alone());
        self.charge.log(&standing);
        *self.gauge.why_not() = standing.why_not().filter(|_| !self.charge.in_charge());
        rules.answer(self.charge.is(wanted), self.charge.failed());
    }
}

/// CLOCK_MONOTONIC.
fn now() -> Duration {
    monotonic()
}

/// CLOCK_MONOTONIC in milliseconds.
fn now_ms() -> u64 {
    u64::try_from(monotonic().as_millis()).unwrap_or(u64::MAX)
}
