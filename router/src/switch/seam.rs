//! What the control loop and the switch thread are to each other.

use crate::{api::flows::ControllerLost, plane::PathCounts};
use logic::{flow::RulePort, net::Mac, plan::PortId};
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
    mpsc::Receiver,
};

/// The switch thread ([`crate::switch`]), as the control loop sees it.
pub struct SwitchEnd<R> {
    /// The rules to be put in charge; `None`: none are to be any more. Answered by [`SwitchMessage::InCharge`], in order.
    pub orders: Receiver<Option<R>>,
    /// Never waits.
    pub tell: Box<dyn Fn(SwitchMessage) + Send>,
    pub gauge: Arc<Gauge>,
}

/// What the switch thread counts, for `millrace status`.
#[derive(Debug, Default)]
pub struct Gauge {
    /// Rules there are.
    pub rules: AtomicU64,
    /// Packets that user space has done.
    pub slow_done: AtomicU64,
    /// Packets that it was to do, or to send, and could not.
    pub slow_lost: AtomicU64,
    /// Packets for controllers that none got ([`logic::openflow::agent::PacketInsLost`]).
    pub no_controller: AtomicU64,
    pub over_rate: AtomicU64,
    pub not_read: AtomicU64,
    /// Why packets do not go by rules, as a sentence; `None`: they do, or there are none.
    why_not: Mutex<Option<String>>,
}

impl Gauge {
    pub fn controller_lost(&self) -> ControllerLost {
        ControllerLost {
            no_controller: self.no_controller.load(Relaxed),
            over_rate: self.over_rate.load(Relaxed),
            not_read: self.not_read.load(Relaxed),
        }
    }

    /// A thread that panicked while it had it left a whole sentence.
    pub fn why_not(&self) -> MutexGuard<'_, Option<String>> {
        self.why_not.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the control loop tells the switch thread.
#[derive(Clone, Debug, PartialEq)]
pub enum SwitchMessage {
    /// All ports, whenever something about one is new.
    Ports(Vec<SwitchPort>),
    /// All paths of the configuration, in its order: when another has a worker, and once a second.
    Paths(Vec<SwitchPath>),
    /// Are rules in charge of all ports that are attached? Or why they could not be put there.
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
    /// The device it is attached to; `None`: it is not there, or not attached.
    pub ifindex: Option<u32>,
    /// Administratively.
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
    /// What it was given, by its class and by rules.
    pub counts: PathCounts,
}
