//! Connections to OpenFlow controllers, dialled and accepted, plain and by TLS. What is said on them is not looked at.
//!
//! One thread, in the network namespace of whoever starts it. Its user sets the pace: of a connection one chunk is read for
//! each [`Network::read`], and for what is sent [`NetEvent::Written`] tells when the kernel has it. So at most one chunk per
//! connection waits to be looked at, and what waits to be sent is as much as the user lets wait.
//!
//! | file | holds |
//! |---|---|
//! | `mod.rs` | start, orders to connections, events from them, reports |
//! | `dial.rs`, `listen.rs` | how connections come about |
//! | `connection.rs` | one connection, from its first byte to its last |
//! | `tls.rs` | keys and certificates |

mod connection;
mod dial;
mod listen;
#[cfg(test)]
mod tests;
mod tls;

use crate::{
    base::{privileges, seldom::Seldom},
    config::{OpenFlowSettings, Target},
};
use anyhow::{Context, Result};
use connection::Command;
pub use logic::openflow::agent::ConnectionId;
use serde::{Deserialize, Serialize};
use std::{
    collections::HashMap,
    io,
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};
use tokio::{
    runtime,
    sync::{mpsc, oneshot},
};

/// Most bytes of one [`NetEvent::Received`].
pub const CHUNK_BYTES: usize = 64 << 10;

/// What happened to a connection: first that it is there, last that it is closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetEvent {
    /// `target`: which of [`OpenFlowSettings::controllers`].
    Connected { connection: ConnectionId, peer: String, target: usize },
    /// At most [`CHUNK_BYTES`]; nothing more is read until [`Network::read`].
    Received { connection: ConnectionId, bytes: Vec<u8> },
    /// So many more bytes of what was sent are the kernel's.
    Written { connection: ConnectionId, bytes: usize },
    /// Also after [`Network::close`], with its reason.
    Closed { connection: ConnectionId, why: String },
}

/// What is known of one configured target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ControllerReport {
    /// As in the configuration, with the port.
    pub target: String,
    /// Of a listener: where.
    pub listening: Option<SocketAddr>,
    pub connections: Vec<ConnectionReport>,
    /// How often it was dialled.
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
    /// Seconds since it is there.
    pub age_s: f64,
}

/// How long what takes.
#[derive(Clone, Copy, Debug)]
struct Timing {
    /// From the end of the first failed attempt or short connection to the next attempt; doubles each time.
    first_retry: Duration,
    /// Where doubling ends.
    last_retry: Duration,
    /// A connection of this age was a good one: the next wait is `first_retry`.
    settled: Duration,
    /// For a name, for each address of it, and for a TLS handshake.
    connect: Duration,
    /// For the peer's first message, once somebody listens.
    hello: Duration,
    /// Silence after which the kernel asks the peer's kernel.
    keepalive: Duration,
    /// A peer whose kernel says nothing, or takes nothing of what is sent, for so long is gone.
    gone: Duration,
    /// For the last messages of a connection that is closed here.
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
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Network {
    /// Begins to listen and to dial. `events` is called on the thread and must not block.
    ///
    /// Errors: an address that cannot be listened on, a TLS file that cannot be used.
    pub fn start(
        settings: &OpenFlowSettings,
        events: impl Fn(NetEvent) + Send + Sync + 'static,
    ) -> Result<Self> {
        Self::start_at_pace(settings, TIMING, events)
    }

    fn start_at_pace(
        settings: &OpenFlowSettings,
        timing: Timing,
        events: impl Fn(NetEvent) + Send + Sync + 'static,
    ) -> Result<Self> {
        settings.check()?;
        let tls = settings.tls.as_ref().map(tls::Tls::load).transpose()?;
        let mut state = ConnectionTable { next: 0, orders: HashMap::new(), targets: Vec::new() };
        let mut listeners = Vec::new();
        for target in &settings.controllers {
            let listener = target.listens.then(|| listen::bind(target)).transpose()?;
            let listening = listener.as_ref().map(TcpListener::local_addr).transpose()?;
            state.targets.push(TargetState::new(target, listening));
            listeners.push(listener);
        }
        let shared = Arc::new(Shared { events: Box::new(events), timing, state: Mutex::new(state) });
        // Names are looked up on threads of their own: getaddrinfo(3) blocks.
        let runtime = runtime::Builder::new_current_thread().enable_all().max_blocking_threads(4).build()?;
        for (index, (target, listener)) in settings.controllers.iter().zip(listeners).enumerate() {
            let (shared, tls) = (shared.clone(), tls.clone().filter(|_| target.tls));
            match listener {
                Some(listener) => runtime.spawn(listen::serve(shared, index, listener, tls)),
                None => runtime.spawn(dial::keep(shared, index, target.clone(), tls)),
            };
        }
        let (stop, stopped) = oneshot::channel();
        let thread = thread::Builder::new().name("openflow-net".into()).spawn(move || {
            privileges::serve_with_nothing("openflow-net");
            let _ = runtime.block_on(stopped);
            runtime.shutdown_background();
        });
        let thread = thread.context("starting the thread of the OpenFlow connections")?;
        Ok(Self { shared, stop: Some(stop), thread: Some(thread) })
    }

    /// Queues bytes to be written; nothing happens if the connection is gone.
    pub fn send(&self, connection: ConnectionId, bytes: Vec<u8>) {
        self.order(connection, Command::Send(bytes));
    }

    /// Asks for one more [`NetEvent::Received`].
    pub fn read(&self, connection: ConnectionId) {
        self.order(connection, Command::Read);
    }

    /// Ends a connection when what was sent before is written, or after a second.
    pub fn close(&self, connection: ConnectionId, why: &str) {
        self.order(connection, Command::Close(why.to_owned()));
    }

    /// How it stands, in the order of the configuration.
    pub fn report(&self) -> Vec<ControllerReport> {
        self.shared.state().targets.iter().map(TargetState::report).collect()
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

/// What the tasks share with [`Network`].
struct Shared {
    events: Box<dyn Fn(NetEvent) + Send + Sync>,
    timing: Timing,
    state: Mutex<ConnectionTable>,
}

struct ConnectionTable {
    /// The number of the next connection.
    next: u32,
    orders: HashMap<ConnectionId, mpsc::UnboundedSender<Command>>,
    targets: Vec<TargetState>,
}

struct TargetState {
    target: String,
    listening: Option<SocketAddr>,
    connections: Vec<(ConnectionId, String, Instant)>,
    attempts: u64,
    refused: u64,
    last_end: Option<(String, Instant)>,
    seldom: Seldom,
}

impl TargetState {
    fn new(target: &Target, listening: Option<SocketAddr>) -> Self {
        let target = target.to_string();
        Self {
            target,
            listening,
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
            target: self.target.clone(),
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
    /// Tools come to listeners and go all the time: that is nothing to be told of each time.
    fn log(&self, what: &str) {
        match self.listening {
            Some(_) => tracing::debug!("OpenFlow: {}: {what}", self.target),
            None => tracing::info!("OpenFlow: {what}"),
        }
    }
}

impl Shared {
    /// A thread that panicked while it counted left nothing half done.
    fn state(&self) -> MutexGuard<'_, ConnectionTable> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, event: NetEvent) {
        (self.events)(event);
    }

    /// A new connection; returns what it is ordered to do.
    fn opened(&self, target: usize, peer: &str) -> (ConnectionId, mpsc::UnboundedReceiver<Command>) {
        let (to, orders) = mpsc::unbounded_channel();
        let mut state = self.state();
        let connection = ConnectionId(state.next);
        state.next = state.next.wrapping_add(1);
        state.orders.insert(connection, to);
        state.targets[target].connections.push((connection, peer.to_owned(), Instant::now()));
        state.targets[target].log(&format!("connected with {peer}"));
        drop(state);
        self.tell(NetEvent::Connected { connection, peer: peer.to_owned(), target });
        (connection, orders)
    }

    fn closed(&self, target: usize, connection: ConnectionId, peer: &str, why: String) {
        let mut state = self.state();
        state.orders.remove(&connection);
        state.targets[target].connections.retain(|(id, ..)| *id != connection);
        state.targets[target].refused += u64::from(why == connection::NO_ROOM);
        state.targets[target].last_end = Some((why.clone(), Instant::now()));
        state.targets[target].log(&format!("connection with {peer} ended: {why}"));
        drop(state);
        self.tell(NetEvent::Closed { connection, why });
    }

    /// One that a peer opened came to nothing. Whoever reaches the port can cause that, so it is logged seldom.
    fn turned_away(&self, target: usize, peer: &str, why: &io::Error) {
        let mut state = self.state();
        let target = &mut state.targets[target];
        target.refused += u64::from(why.to_string() == connection::NO_ROOM);
        let source = peer.rsplit_once(':').map_or(peer, |(source, _)| source);
        if let Some(more) = target.seldom.may("turned away", source, Instant::now()) {
            tracing::warn!("OpenFlow: {}: {peer}: {why}{more}", target.target);
        }
        target.last_end = Some((format!("{peer}: {why}"), Instant::now()));
    }

    /// No connection came about. The same reason is told once, not each time.
    fn failed(&self, target: usize, why: String) {
        let mut state = self.state();
        let target = &mut state.targets[target];
        if target.last_end.as_ref().is_none_or(|(before, _)| *before != why) {
            tracing::warn!("OpenFlow: {}: {why}", target.target);
        }
        target.last_end = Some((why, Instant::now()));
    }
}
