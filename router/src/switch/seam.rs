//! The interface between the control loop and the switch thread.

use crate::{api::flows::ControllerLost, plane::PathCounts};
use logic::{cause::Cause, flow::RulePort, net::Mac, paths::PathId, plan::PortId};
use std::collections::BTreeMap;
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
    mpsc::Receiver,
};

/// The switch thread ([`crate::switch`]), as the control loop sees it.
pub struct SwitchEnd<R> {
    /// The rules to put in charge; `None`: no rules. [`SwitchMessage::InCharge`] answers each order, in their order.
    pub orders: Receiver<Option<R>>,
    /// Sends a message to the switch thread. It never waits.
    pub tell: Box<dyn Fn(SwitchMessage) + Send>,
    pub gauge: Arc<Gauge>,
    /// The rules of the configured file, if they are to be put in charge, or why they cannot be used. They come after the first
    /// ports. `None`: there is no file.
    pub loaded: Option<Receiver<Loaded<R>>>,
}

/// See [`SwitchEnd::loaded`].
pub type Loaded<R> = Result<Option<R>, String>;

/// The counters of the switch thread, for `millrace status`.
#[derive(Debug, Default)]
pub struct Gauge {
    /// The number of rules.
    pub rules: AtomicU64,
    /// Of these, rules of the core table.
    pub core_rules: AtomicU64,
    /// Packets that user space has forwarded or dropped by rules.
    pub slow_done: AtomicU64,
    /// Packets that user space could not forward, or could not send.
    pub slow_lost: AtomicU64,
    /// Packets for controllers that no controller got ([`logic::openflow::agent::PacketInsLost`]).
    pub no_controller: AtomicU64,
    pub over_rate: AtomicU64,
    pub not_read: AtomicU64,
    /// Why packets do not go by rules, as a sentence; `None`: they do, or there are no rules.
    why_not: Mutex<Option<Cause>>,
    /// Addresses for controllers that cannot be listened on, as sentences.
    pub not_listening: Mutex<Vec<String>>,
}

impl Gauge {
    pub fn controller_lost(&self) -> ControllerLost {
        ControllerLost {
            no_controller: self.no_controller.load(Relaxed),
            over_rate: self.over_rate.load(Relaxed),
            not_read: self.not_read.load(Relaxed),
        }
    }

    /// The lock may be poisoned: a thread that panicked with it left a whole sentence.
    pub fn why_not(&self) -> MutexGuard<'_, Option<Cause>> {
        self.why_not.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A message of the control loop to the switch thread.
#[derive(Clone, Debug, PartialEq)]
pub enum SwitchMessage {
    /// All ports, after each change of one.
    Ports(Vec<SwitchPort>),
    /// All paths of the configuration, by number: once a second, and when a path gets or loses its worker.
    Paths(BTreeMap<PathId, SwitchPath>),
    /// Whether rules are in charge of all attached ports, or why they could not be put in charge.
    InCharge(Result<bool, String>),
}

/// A port's number in flow rules and OpenFlow.
pub fn rule_port(id: PortId) -> RulePort {
    RulePort(u16::from(id) + 1)
}

/// A port, as flow rules see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchPort {
    pub id: PortId,
    pub name: String,
    /// Its device; `None`: there is none, or it is not attached.
    pub ifindex: Option<u32>,
    /// It is administratively up.
    pub up: bool,
    /// It has a carrier.
    pub carrier: bool,
    pub mac: Mac,
    /// Packets may be redirected to it.
    pub transmits: bool,
    /// Its program runs in generic mode.
    pub generic: bool,
}

/// A path of the user plane, as flow rules see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchPath {
    /// A worker takes its packets.
    pub has_worker: bool,
    /// Its packets, from its class and from rules.
    pub counts: PathCounts,
}
