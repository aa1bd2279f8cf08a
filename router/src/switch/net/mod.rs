//! Connections to OpenFlow controllers, dialled and accepted, plain and with TLS. This module does not look at
//! messages.
//!
//! There is one thread, in the network namespace of the thread that starts it. Its user sets the pace. Each
//! [`Network::read`] reads one chunk of a connection, and [`NetEvent::Written`] reports bytes that the kernel has
//! taken. So at most one chunk per connection waits to be read by the user, and the user limits the bytes that wait
//! to be sent.
//!
//! | file | holds |
//! |---|---|
//! | `mod.rs` | the start, orders to connections, events from them, reports |
//! | `dial.rs`, `listen.rs` | making and accepting connections |
//! | `connection.rs` | one connection, from its first byte to its last |
//! | `tls.rs` | keys and certificates |

mod connection;
mod dial;
mod listen;
#[cfg(test)]
mod tests;
mod tls;

use crate::{
    base::{
        door::{advice, may_pass},
        privileges,
        seldom::Seldom,
    },
    config::{OpenFlowSettings, Target},
};
use anyhow::{Context, Result};
use connection::Command;
pub use logic::openflow::agent::ConnectionId;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, HashMap},
    io,
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    thread,
    time::{Duration, Instant},
};
use tokio::{
    runtime,
    sync::{mpsc, oneshot},
    task::AbortHandle,
};

/// The most bytes of one [`NetEvent::Received`].
pub const CHUNK_BYTES: usize = 64 << 10;

/// An event of a connection. The first one is `Connected`, the last one `Closed`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetEvent {
    /// `dialled`: we opened it.
    Connected { connection: ConnectionId, peer: String, dialled: bool },
    /// At most [`CHUNK_BYTES`]; nothing more is read until [`Network::read`].
    Received { connection: ConnectionId, bytes: Vec<u8> },
    /// The kernel has taken so many more bytes.
    Written { connection: ConnectionId, bytes: usize },
    /// Also after [`Network::close`], with its reason.
    Closed { connection: ConnectionId, why: String },
}

/// The state of one configured target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ControllerReport {
    /// As in the configuration, with the port.
    pub target: String,
    /// The address of a listener.
    pub listening: Option<SocketAddr>,
    pub connections: Vec<ConnectionReport>,
    /// The number of times that it was dialled.
    pub attempts: u64,
    /// Connections that a listener closed because there was no room for them ([`listen::ROOM`]).
    pub refused: u64,
    /// Why the last attempt failed or the last connection ended.
    pub last_end: Option<String>,
    /// Seconds since then.
    pub last_end_age_s: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConnectionReport {
    /// [`ConnectionId`].
    pub connection: u32,
    pub peer: String,
    /// Seconds since it was made.
    pub age_s: f64,
}

/// Time limits and intervals.
#[derive(Clone, Copy, Debug)]
struct Timing {
    /// The wait after the first failed attempt or short connection; it doubles each time.
    first_retry: Duration,
    /// The longest wait.
    last_retry: Duration,
    /// A connection that reached this age was good: the next wait is `first_retry`.
    settled: Duration,
    /// The limit for looking a name up, for connecting to each of its addresses, and for a TLS handshake.
    connect: Duration,
    /// The limit for the peer's first message, from a [`Network::read`] on.
    hello: Duration,
    /// After this time of silence the kernel probes the peer's kernel.
    keepalive: Duration,
    /// A peer is gone if its kernel sends nothing for this time, or takes none of the bytes that are sent.
    gone: Duration,
    /// The limit for the last messages of a connection that is closed here.
    linger: Duration,
}

const TIMING: Timing = Timing {
    first_retry: Duration::from_secs(1),
    last_retry: Duration::from_secs(8),
    settled: Duration::from_secs(10),
    connect: Duration::from_secs(5),
    hello: Duration::from_secs(10),
    keepalive: Duration::from_secs(10),
    gone: Duration::from_secs(30),
    linger: Duration::from_secs(1),
};

/// The thread and its connections; they end when this is dropped, without further events.
pub struct Network {
    shared: Arc<Shared>,
    runtime: runtime::Handle,
    /// The tasks that listen, and their sockets, by target.
    listening: BTreeMap<TargetId, (AbortHandle, Socket)>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

/// The socket of a task that listens; not set: its address cannot be listened on yet.
type Socket = Arc<OnceLock<TcpListener>>;

/// Counts up with each target that was ever configured.
type TargetId = usize;

impl Network {
    /// Begins to listen and to dial. The thread calls `events`, which must not block. With `may_wait`, an address that is taken
    /// or not there is tried again: any local user can take a port, and must not keep the daemon from starting.
    ///
    /// # Errors
    /// An address cannot be listened on, or a TLS file cannot be used.
    pub fn start(
        settings: &OpenFlowSettings,
        may_wait: bool,
        events: impl Fn(NetEvent) + Send + Sync + 'static,
    ) -> Result<Self> {
        Self::start_at_pace(settings, may_wait, TIMING, events)
    }

    fn start_at_pace(
        settings: &OpenFlowSettings,
        may_wait: bool,
        timing: Timing,
        events: impl Fn(NetEvent) + Send + Sync + 'static,
    ) -> Result<Self> {
        let state = ConnectionTable::default();
        let shared = Arc::new(Shared { events: Box::new(events), timing, state: Mutex::new(state) });
        // Names are looked up on threads of their own: getaddrinfo(3) blocks.
        let runtime = runtime::Builder::new_current_thread().enable_all().max_blocking_threads(4).build()?;
        let (stop, stopped) = oneshot::channel();
        let mut network = Self {
            shared,
            runtime: runtime.handle().clone(),
            listening: BTreeMap::new(),
            stop: Some(stop),
            thread: None,
        };
        network.apply(settings, may_wait)?;
        let thread = thread::Builder::new().name("openflow-net".into()).spawn(move || {
            privileges::serve_with_nothing("openflow-net");
            let _ = runtime.block_on(stopped);
            runtime.shutdown_background();
        });
        network.thread = Some(thread.context("starting the thread of the OpenFlow connections")?);
        Ok(network)
    }

    /// Follows other settings: begins to listen to new targets, or to dial them, and ends the connections of targets that are
    /// gone. Other connections go on. TLS files are read again, for new connections.
    ///
    /// # Errors
    /// An address cannot be listened on, or a TLS file cannot be used. Everything is as before.
    pub fn follow(&mut self, settings: &OpenFlowSettings) -> Result<()> {
        self.apply(settings, false)
    }

    fn apply(&mut self, settings: &OpenFlowSettings, may_wait: bool) -> Result<()> {
        settings.check()?;
        let tls = settings.tls.as_ref().map(tls::Tls::load).transpose()?;
        let known = self.shared.state().configured();
        let mut listeners = BTreeMap::new();
        for (place, target) in settings.controllers.iter().enumerate() {
            if target.listens && !known.iter().any(|(_, known)| known == target) {
                // With or without TLS, it is the same socket.
                let is_it = |known: &Target| {
                    known.listens
                        && known.port != 0
                        && (&known.host, known.port) == (&target.host, target.port)
                };
                let before = known.iter().find(|(_, known)| is_it(known));
                let before = before.and_then(|(id, _)| self.listening.get(id)?.1.get());
                let bound = match before {
                    Some(listener) => Ok(listener.try_clone()?),
                    None => listen::bind(target),
                };
                let opened = match bound {
                    Err(error) if !(may_wait && may_pass(&error)) => return Err(error),
                    bound => bound.and_then(|socket| Ok((socket.local_addr()?, socket.try_clone()?, socket))),
                };
                listeners.insert(place, opened);
            }
        }
        // From here on nothing can fail.
        self.shared.state().tls = tls;
        for (id, _) in known.iter().filter(|(_, target)| !settings.controllers.contains(target)) {
            self.forget(*id);
        }
        for (place, target) in settings.controllers.iter().enumerate() {
            if let Some((id, _)) = known.iter().find(|(_, known)| known == target) {
                self.shared.state().place(*id, Some(place));
                continue;
            }
            let id = self.shared.state().add(TargetState::new(target, place));
            let (shared, socket) = (self.shared.clone(), Socket::default());
            let task = match listeners.remove(&place) {
                Some(Ok((address, kept, listener))) => {
                    let _ = socket.set(kept);
                    shared.with(id, |target| target.listening = Some(address));
                    self.runtime.spawn(listen::serve(shared, id, listener, target.tls))
                }
                Some(Err(error)) => {
                    shared.with(id, |target| target.deaf = Some(error));
                    self.runtime.spawn(listen::wait(shared, id, target.clone(), socket.clone()))
                }
                None => {
                    drop(self.runtime.spawn(dial::keep(shared, id, target.clone())));
                    continue;
                }
            };
            self.listening.insert(id, (task.abort_handle(), socket));
        }
        Ok(())
    }

    /// Addresses that could not be listened on at the start, and still cannot: why, and what to do.
    pub fn deaf(&self) -> Vec<String> {
        let state = self.shared.state();
        let advice = |target: &TargetState| {
            let error = target.deaf.as_ref().filter(|_| target.place.is_some())?;
            Some(advice("openflow.controllers", target.target.port, error))
        };
        state.targets.values().filter_map(advice).collect()
    }

    /// Ends a target that is not configured any more, and its connections.
    fn forget(&mut self, id: TargetId) {
        self.listening.remove(&id).iter().for_each(|(task, _)| task.abort());
        self.shared.state().place(id, None);
    }

    /// Queues bytes to be written. Does nothing if the connection is gone.
    pub fn send(&self, connection: ConnectionId, bytes: Vec<u8>) {
        self.order(connection, Command::Send(bytes));
    }

    /// Asks for one more [`NetEvent::Received`].
    pub fn read(&self, connection: ConnectionId) {
        self.order(connection, Command::Read);
    }

    /// Ends a connection when all bytes that were sent before are written, or after a second.
    pub fn close(&self, connection: ConnectionId, why: &str) {
        self.order(connection, Command::Close(why.to_owned()));
    }

    /// The state of each target, in the order of the configuration.
    pub fn report(&self) -> Vec<ControllerReport> {
        let state = self.shared.state();
        let mut targets: Vec<_> =
            state.targets.values().filter_map(|target| Some((target.place?, target))).collect();
        targets.sort_by_key(|(place, _)| *place);
        targets.into_iter().map(|(_, target)| target.report()).collect()
    }

    fn order(&self, connection: ConnectionId, command: Command) {
        if let Some(orders) = self.shared.state().orders.get(&connection) {
            let _ = orders.send(command);
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The state that the tasks share with [`Network`].
struct Shared {
    events: Box<dyn Fn(NetEvent) + Send + Sync>,
    timing: Timing,
    state: Mutex<ConnectionTable>,
}

#[derive(Default)]
struct ConnectionTable {
    /// The number of the next connection.
    next: u32,
    orders: HashMap<ConnectionId, mpsc::UnboundedSender<Command>>,
    /// For connections that begin now.
    tls: Option<tls::Tls>,
    next_target: TargetId,
    /// Also those that are not configured any more, until their last connection has ended.
    targets: BTreeMap<TargetId, TargetState>,
}

impl ConnectionTable {
    /// The configured targets.
    fn configured(&self) -> Vec<(TargetId, Target)> {
        let configured = self.targets.iter().filter(|(_, target)| target.place.is_some());
        configured.map(|(id, target)| (*id, target.target.clone())).collect()
    }

    fn add(&mut self, target: TargetState) -> TargetId {
        let id = self.next_target;
        self.next_target += 1;
        self.targets.insert(id, target);
        id
    }

    /// Sets the place of a target in the configuration; `None`: it is not there, and its connections end.
    fn place(&mut self, id: TargetId, place: Option<usize>) {
        let Some(target) = self.targets.get_mut(&id) else { return };
        target.place = place;
        if place.is_none() {
            for (connection, ..) in &target.connections {
                self.orders.get(connection).map(|to| to.send(Command::Close(NOT_CONFIGURED.into())));
            }
        }
        self.tidy(id);
    }

    /// Forgets a target that listened, is not configured any more, and has no connection left. One that is dialled is
    /// forgotten before its next attempt.
    fn tidy(&mut self, id: TargetId) {
        let is_over = |target: &mut TargetState| {
            target.place.is_none() && target.target.listens && target.connections.is_empty()
        };
        if self.targets.get_mut(&id).is_some_and(is_over) {
            self.targets.remove(&id);
        }
    }
}

/// Why a connection ends after a change of the configuration.
const NOT_CONFIGURED: &str = "its target is no longer configured";

struct TargetState {
    target: Target,
    /// `None`: it is not configured any more.
    place: Option<usize>,
    listening: Option<SocketAddr>,
    /// Why its address cannot be listened on yet.
    deaf: Option<anyhow::Error>,
    connections: Vec<(ConnectionId, String, Instant)>,
    attempts: u64,
    refused: u64,
    last_end: Option<(String, Instant)>,
    seldom: Seldom,
}

impl TargetState {
    fn new(target: &Target, place: usize) -> Self {
        Self {
            target: target.clone(),
            place: Some(place),
            listening: None,
            deaf: None,
            connections: Vec::new(),
            attempts: 0,
            refused: 0,
            last_end: None,
            seldom: Seldom::default(),
        }
    }

    fn report(&self) -> ControllerReport {
        let connection = |(id, peer, since): &(ConnectionId, String, Instant)| ConnectionReport {
            connection: id.0,
            peer: peer.clone(),
            age_s: since.elapsed().as_secs_f64(),
        };
        ControllerReport {
            target: self.target.to_string(),
            listening: self.listening,
            connections: self.connections.iter().map(connection).collect(),
            attempts: self.attempts,
            refused: self.refused,
            last_end: self.last_end.as_ref().map(|(why, _)| why.clone()),
            last_end_age_s: self.last_end.as_ref().map(|(_, at)| at.elapsed().as_secs_f64()),
        }
    }
}

impl TargetState {
    fn begin_to_listen(&mut self, address: SocketAddr) {
        (self.listening, self.deaf) = (Some(address), None);
        tracing::info!("OpenFlow: now listening on {address}");
    }

    /// Logs an event. Those of listeners are debug messages, because tools connect to listeners all the time.
    fn log(&self, what: &str) {
        match self.listening {
            Some(_) => tracing::debug!("OpenFlow: {}: {what}", self.target),
            None => tracing::info!("OpenFlow: {what}"),
        }
    }
}

impl Shared {
    /// The lock may be poisoned: a thread that panicked with it left nothing half done.
    fn state(&self) -> MutexGuard<'_, ConnectionTable> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, event: NetEvent) {
        (self.events)(event);
    }

    /// TLS for a connection that begins now, if its target uses it.
    fn tls(&self, is_used: bool) -> Option<tls::Tls> {
        self.state().tls.clone().filter(|_| is_used)
    }

    /// Counts an attempt to reach a target. Returns false if it is not configured any more, and forgets it.
    fn begin_attempt(&self, target: TargetId) -> bool {
        let mut state = self.state();
        let configured = state.targets.get_mut(&target).filter(|target| target.place.is_some());
        if let Some(target) = configured {
            target.attempts += 1;
            return true;
        }
        state.targets.remove(&target);
        false
    }

    /// Does something with a target. `None`: it is forgotten.
    fn with<T>(&self, target: TargetId, act: impl FnOnce(&mut TargetState) -> T) -> Option<T> {
        self.state().targets.get_mut(&target).map(act)
    }

    /// Registers a new connection. Returns its number, and the orders to it. If its target is not configured any more, the
    /// first order is to close it.
    fn opened(&self, target: TargetId, peer: &str) -> (ConnectionId, mpsc::UnboundedReceiver<Command>) {
        let (to, orders) = mpsc::unbounded_channel();
        let mut state = self.state();
        let connection = ConnectionId(state.next);
        state.next = state.next.wrapping_add(1);
        let mut dialled = false;
        let known = state.targets.get_mut(&target);
        if known.as_ref().is_none_or(|target| target.place.is_none()) {
            let _ = to.send(Command::Close(NOT_CONFIGURED.into()));
        }
        if let Some(target) = known {
            target.connections.push((connection, peer.to_owned(), Instant::now()));
            target.log(&format!("connected with {peer}"));
            dialled = !target.target.listens;
        }
        state.orders.insert(connection, to);
        drop(state);
        self.tell(NetEvent::Connected { connection, peer: peer.to_owned(), dialled });
        (connection, orders)
    }

    fn closed(&self, target: TargetId, connection: ConnectionId, peer: &str, why: String) {
        let mut state = self.state();
        state.orders.remove(&connection);
        if let Some(known) = state.targets.get_mut(&target) {
            known.connections.retain(|(id, ..)| *id != connection);
            known.refused += u64::from(why == connection::NO_ROOM);
            known.last_end = Some((why.clone(), Instant::now()));
            known.log(&format!("connection with {peer} ended: {why}"));
        }
        state.tidy(target);
        drop(state);
        self.tell(NetEvent::Closed { connection, why });
    }

    /// Records that a connection of a peer failed. Anybody who reaches the port can cause that, so it is logged seldom.
    fn turned_away(&self, target: TargetId, peer: &str, why: &io::Error) {
        self.with(target, |target| {
            target.refused += u64::from(why.to_string() == connection::NO_ROOM);
            let source = peer.rsplit_once(':').map_or(peer, |(source, _)| source);
            if let Some(more) = target.seldom.may("turned away", source, Instant::now()) {
                tracing::warn!("OpenFlow: {}: {peer}: {why}{more}", target.target);
            }
            target.last_end = Some((format!("{peer}: {why}"), Instant::now()));
        });
    }

    /// Records a failed attempt. A reason that repeats is logged only once.
    fn failed(&self, target: TargetId, why: String) {
        self.with(target, |target| {
            if target.last_end.as_ref().is_none_or(|(before, _)| *before != why) {
                tracing::warn!("OpenFlow: {}: {why}", target.target);
            }
            target.last_end = Some((why, Instant::now()));
        });
    }
}
