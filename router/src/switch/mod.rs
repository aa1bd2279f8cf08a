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
//! | `device.rs` | setting ports up and down, their counters |
//! | `controllers.rs` | the report about controllers, for clients |
//! | `slow.rs` | packets that user space forwards |
//! | `explain.rs` | explaining what rules do with a packet |
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
    base::{clock::monotonic, privileges},
    config::{Config, Miss},
    cores,
    linux::observer::Waker,
    plane::{FlowMaps, Grace},
    switch::seam::{Gauge, SwitchEnd, SwitchMessage, SwitchPath, SwitchPort},
};
use anyhow::{Context, Result};
use change::{Change, Changing};
use charge::Charge;
use controllers::ControllersReport;
use device::Devices;
use listing::Listings;
use net::{NetEvent, Network};
use proxied::ProxiedFrame;
use rules::Rules;
use slow::{Handed, Reader, Waiting};
use std::{
    collections::VecDeque,
    sync::{
        Arc, OnceLock,
        atomic::Ordering::Relaxed,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
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
    Told(SwitchMessage),
    /// Packets from the kernel plane wait in their own channel.
    Noticed,
    /// A grace period has passed, or the helper thread could not wait for it.
    Passed(Result<()>),
    Net(NetEvent),
    Proxied(ProxiedFrame),
    /// The source of cores and workloads.
    Machine(cores::handle::Handle),
    Controllers(oneshot::Sender<ControllersReport>),
}

/// The thread's state.
struct Switch {
    events: Receiver<Event>,
    to_self: Sender<Event>,
    /// Packets for user space. The thread takes them when there are no other events.
    handed: Receiver<Handed>,
    /// The thread that reads them from the kernel.
    reader: Reader,
    /// There may be packets in `handed`.
    noticed: bool,
    config: Config,
    /// `None`: no controllers are configured.
    network: Option<Network>,
    /// `None`: the control loop has not sent them yet. Until then changes wait in `early`.
    ports: Option<Vec<SwitchPort>>,
    /// The paths of the configuration; empty until the control loop sends them.
    paths: Vec<SwitchPath>,
    /// `None`: not known yet.
    machine: Option<cores::handle::Handle>,
    /// The thread that chooses cores for flows runs.
    chooses: bool,
    /// Shows the maps of rules to the API.
    told_maps: Arc<OnceLock<Arc<FlowMaps>>>,
    early: Vec<Event>,
    /// Events of controllers that came while the control loop was changing the attached program.
    held: VecDeque<NetEvent>,
    /// `None`: there has been no rule yet.
    rules: Option<Rules>,
    charge: Charge,
    changing: Changing,
    listings: Listings,
    gauge: Arc<Gauge>,
    waiting: Waiting,
    ticked: Duration,
}

/// Starts the thread. It ends with the process.
///
/// # Errors
/// The thread cannot be started, an address cannot be listened on, or a TLS file cannot be used.
pub fn start(config: &Config, waker: Waker) -> Result<(Handle, SwitchEnd<Arc<FlowMaps>>)> {
    let (to, events) = mpsc::channel();
    let (orders, ordered) = mpsc::channel();
    let gauge = Arc::new(Gauge::default());
    let charge = Charge::new(orders, waker);
    let net_to = to.clone();
    let told = move |event| drop(net_to.send(Event::Net(event)));
    let network = match config.openflow.controllers.is_empty() {
        true => None,
        false => Some(Network::start(&config.openflow, told).context("OpenFlow controllers")?),
    };
    if !config.openflow.proxy_ports.is_empty() {
        proxied::listen(to.clone())?;
    }
    let (hand, handed) = mpsc::channel();
    let waiting = Waiting::default();
    let reader = Reader::start(hand, to.clone(), waiting.clone(), gauge.clone())?;
    let told_maps = Arc::<OnceLock<_>>::default();
    let switch = Switch {
        events,
        to_self: to.clone(),
        handed,
        reader,
        noticed: false,
        config: config.clone(),
        network,
        ports: None,
        paths: Vec::new(),
        machine: None,
        chooses: false,
        told_maps: told_maps.clone(),
        early: Vec::new(),
        held: VecDeque::new(),
        rules: None,
        charge,
        changing: Changing::default(),
        listings: Listings::default(),
        gauge: gauge.clone(),
        waiting,
        ticked: monotonic(),
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
    let told_to = to.clone();
    let tell = Box::new(move |told| drop(told_to.send(Event::Told(told))));
    Ok((Handle::new(to, told_maps), SwitchEnd { orders: ordered, tell, gauge }))
}

impl Switch {
    fn run(mut self) {
        loop {
            let patience = (self.ticked + TICK).saturating_sub(monotonic());
            match self.events.recv_timeout(if self.noticed { Duration::ZERO } else { patience }) {
                Ok(event) => self.take(event),
                Err(RecvTimeoutError::Timeout) => self.take_packets(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
            // The tick comes however many events there are.
            if monotonic() >= self.ticked + TICK {
                self.tick();
            }
            self.settle();
            while let Some(event) = (!self.charge.asked).then(|| self.held.pop_front()).flatten() {
                self.net(event);
                self.settle();
            }
        }
    }

    /// Takes some of the packets for user space.
    fn take_packets(&mut self) {
        for _ in 0..PACKETS {
            let Ok((notice, frame)) = self.handed.try_recv() else {
                self.noticed = false;
                return;
            };
            // If none wait any more, the reader sends an event with the next one.
            self.noticed = !slow::taken(&self.waiting, &frame);
            if let Some(rules) = &mut self.rules {
                rules.notice(notice, &frame);
            }
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Change(_) | Event::List(_) | Event::Explain(_) | Event::Net(_) if self.ports.is_none() => {
                self.early.push(event)
            }
            Event::Change(change) => self.change(change),
            Event::List(request) => {
                let agent = self.rules.as_mut().map(|rules| &mut rules.agent);
                let ports = self.ports.as_deref().unwrap_or_default();
                self.listings.begin(request, agent, ports, now_ms());
            }
            Event::Explain(request) => self.explain(request),
            Event::More(id) => {
                self.listings.go_on(id, self.rules.as_mut().map(|rules| &mut rules.agent), now_ms());
            }
            Event::Told(SwitchMessage::Ports(ports)) => self.set_ports(ports),
            Event::Told(SwitchMessage::Paths(paths)) => {
                if let Some(rules) = &mut self.rules {
                    rules.set_paths(&self.config.paths, &paths);
                }
                self.paths = paths;
            }
            Event::Told(SwitchMessage::InCharge(done)) => self.charge.answered(done),
            Event::Noticed => self.noticed = true,
            Event::Passed(done) => {
                if let Some(rules) = &mut self.rules {
                    rules.passed(done);
                }
            }
            Event::Net(event) if self.charge.asked || !self.held.is_empty() => self.held.push_back(event),
            Event::Net(event) => self.net(event),
            Event::Proxied(frame) => self.proxied(&frame),
            Event::Machine(machine) => {
                self.machine = Some(machine);
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
        let ports = self.ports.clone().unwrap_or_default();
        let (paths, machine) = (self.paths.clone(), self.machine.clone());
        let listens = |target: usize| self.config.openflow.controllers.get(target).is_some_and(|t| t.listens);
        let dialled = matches!(event, NetEvent::Connected { target, .. } if !listens(target));
        let Ok(rules) = self.rules() else { return };
        let maps = rules.maps().clone();
        let outside =
            &Devices { ports: &ports, paths: &paths, machine: machine.as_ref(), memory: maps.memory() };
        let agent = &mut rules.agent;
        match event {
            NetEvent::Connected { connection, peer, .. } => {
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
        let ports = self.ports.as_deref().unwrap_or_default();
        let explain::Request { port, frame, reply } = request;
        let rules = self.rules.as_mut().filter(|_| self.charge.in_charge());
        let told = rules.and_then(|rules| {
            let mut told = explain::report(&mut rules.agent, ports, &port, frame, now_ms())?;
            if told.outputs.iter().any(|output| output.to == "CONTROLLER") && !rules.agent.has_peer() {
                let state = if self.network.is_some() { "connected" } else { "configured" };
                told.notes.push(format!("no controller is {state}, so packets to CONTROLLER are lost"));
            }
            Some(told)
        });
        // It does no harm if the client is gone.
        let _ = reply.send(told);
    }

    /// Takes a flow-mod that came through another switch. It is lost if it comes before the ports are known.
    fn proxied(&mut self, frame: &ProxiedFrame) {
        let mut ports = self.ports.iter().flatten();
        let Some(port) = ports.find(|port| port.ifindex == Some(frame.ifindex)).map(rules::number) else {
            return;
        };
        if let Ok(rules) = self.rules() {
            rules.agent.proxied(port, &frame.bytes, now_ms());
        }
    }

    fn set_ports(&mut self, ports: Vec<SwitchPort>) {
        if let Some(rules) = &mut self.rules {
            rules.set_ports(&ports, self.machine.as_ref());
        }
        let first = self.ports.replace(ports).is_none();
        if first && (self.config.flows.miss != Miss::Normal || self.network.is_some()) {
            // Misses and controllers need rules from the start.
            if let Err(error) = self.rules() {
                tracing::error!("{}", error.text);
            }
        }
        for event in std::mem::take(&mut self.early) {
            self.take(event);
        }
    }

    /// The rules. The first call makes their maps.
    fn rules(&mut self) -> Result<&mut Rules, ApiError> {
        if self.rules.is_none() {
            let passed = self.to_self.clone();
            let grace = Grace::new().and_then(|grace| {
                let wait = Box::new(move || grace.wait());
                batches::Batches::start(wait, move |done| drop(passed.send(Event::Passed(done))))
            });
            let ports = self.ports.as_deref().unwrap_or_default();
            let made = grace.and_then(|batches| {
                let rules = Rules::new(&self.config, ports, batches, self.gauge.clone())?;
                self.reader.read(rules.maps().clone())?;
                Ok(rules)
            });
            let mut rules =
                made.map_err(|e| ApiError::failed(format!("there can be no flow rules: {e:#}")))?;
            rules.set_ports(self.ports.as_deref().unwrap_or_default(), self.machine.as_ref());
            rules.set_paths(&self.config.paths, &self.paths);
            // The cell is still empty.
            let _ = self.told_maps.set(rules.maps().clone());
            self.rules = Some(rules);
        }
        self.rules.as_mut().ok_or_else(|| ApiError::failed("there are no flow rules"))
    }

    fn change(&mut self, change: Change) {
        let ports = self.ports.clone().unwrap_or_default();
        let most = self.config.flows.rules.0;
        let done = self.rules().map(|rules| {
            let batch = rules.next_batch();
            let mut report = change::apply(&mut rules.agent, &change.request, &ports, most, now_ms());
            let stands_alone = rules.agent.has_rules() && rules.agent.stands_alone();
            report.note =
                stands_alone.then(|| format!("packets do not go by rules: {}", charge::STANDS_ALONE));
            (batch, report)
        });
        match done {
            Ok((batch, report)) if change.request.wait => self.changing.wait(batch, report, change.reply),
            // It does no harm if the client is gone.
            Ok((_, report)) => drop(change.reply.send(Ok(report))),
            Err(error) => drop(change.reply.send(Err(error))),
        }
    }

    fn tick(&mut self) {
        self.ticked = monotonic();
        self.charge.tick();
        if let Some(rules) = &mut self.rules {
            rules.agent.tick(now_ms());
        }
        self.show_machine();
    }

    fn show_machine(&mut self) {
        let ports = self.ports.as_deref().unwrap_or_default();
        if let (Some(rules), Some(machine)) = (&mut self.rules, &self.machine) {
            rules.show_machine(ports, Some(machine));
        }
    }

    /// Starts to choose cores for flows, after the first rule that asks for it.
    fn choose(&mut self) {
        let (Some(rules), Some(machine), false) = (&self.rules, &self.machine, self.chooses) else { return };
        if !rules.maps().memory().chooses() {
            return;
        }
        self.chooses = true;
        if let Err(error) = choosing::start(rules.maps().clone(), machine.clone(), &self.config.cores) {
            tracing::error!(
                "cannot choose cores for flows, so they stay on the cores where they come in: {error:#}"
            );
        }
    }

    /// Runs after each event: ends batches, orders the right program, carries out the agent's effects, and answers
    /// changes that packets obey.
    fn settle(&mut self) {
        self.choose();
        let Some(rules) = &mut self.rules else { return };
        let ports = self.ports.as_deref().unwrap_or_default();
        let obeys = self.charge.is(rules.agent.wants_rules());
        rules.settle(obeys, ports, &self.paths, self.machine.as_ref());
        // Asked again: controllers that waited for a barrier go on, and may have changed that.
        let wanted = rules.agent.wants_rules();
        rules.carry_out(self.network.as_ref(), ports);
        self.gauge.rules.store(rules.count(), Relaxed);
        let lost = rules.agent.packet_ins_lost();
        self.gauge.no_controller.store(lost.no_controller, Relaxed);
        self.gauge.over_rate.store(lost.over_rate, Relaxed);
        self.gauge.not_read.store(lost.not_read, Relaxed);
        self.charge.want(wanted.then(|| rules.maps()));
        let standing = self.charge.standing(rules.agent.has_rules(), rules.agent.stands_alone());
        self.charge.tell(&standing);
        *self.gauge.why_not() = standing.why_not().filter(|_| !self.charge.in_charge());
        self.changing.answer(rules.over(), self.charge.is(wanted), self.charge.failed());
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
