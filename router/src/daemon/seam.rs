//! What the control loop needs of the world, as two traits: Linux as observed, and Linux as changed.
//!
//! The daemon implements them with netlink and BPF ([`super::kernel`]); tests with fakes over heap memory.

pub use crate::linux::observer::{Hardware, Known, PolicyRead, Question, Sent, Standing};
use crate::{
    config::Config,
    linux::{classifier::Classifier, ethtool::Problem, netns::NamespaceRef},
    plane::{Counters, Heart, Mode, Settings, Step, TestRun, policy::Policy},
    user_plane::seam::{Device, UserPlane},
};
use anyhow::Result;
use logic::{
    memory::Memory,
    net::Mac,
    observe::{Event, NamespaceId},
    plan::{PortId, RouterId},
    steer::Sample,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

/// Where events come from.
pub trait Observe {
    /// Waits at most `patience` for something to happen and returns it, in the order of the kernel. The first call
    /// returns the complete state. Empty: nothing happened, and everything reported so far is current.
    ///
    /// # Errors
    /// The state cannot be read: what was reported before may be out of date until a later call succeeds.
    fn poll(&mut self, patience: Duration) -> Result<Vec<Event>>;

    /// Makes the kernel find out whether a neighbour is still there.
    fn probe_neighbour(&mut self, namespace: NamespaceId, ifindex: u32, address: IpAddr) -> Result<()>;

    /// Has the routes of a namespace read again soon: messages did not tell all.
    fn read_routes_again(&mut self, _namespace: NamespaceId) {}

    /// Finds out whether Linux has learned about destinations from ICMP errors ([`Event::Learned`]). `lost` is the
    /// number of further errors, which were over a limit.
    fn look_at_destinations(
        &mut self,
        _namespace: NamespaceId,
        _destinations: &BTreeSet<IpAddr>,
        _lost: u64,
    ) {
    }

    /// What keeps packets of a port from being trusted.
    fn port_problems(&mut self, port: PortId) -> Vec<Problem>;

    /// A namespace that is observed.
    fn place(&self, _namespace: NamespaceId) -> Option<NamespaceRef> {
        None
    }

    /// Has a namespace's policies and settings read again, from now on: what was read before does not count.
    fn read_policy(&mut self, namespace: NamespaceId);

    /// Readings that are done. What came of them was returned by the last [`Observe::poll`], or earlier.
    fn policies_read(&mut self) -> Vec<PolicyRead>;

    /// What cannot be read, as sentences: the routers concerned are not accelerated.
    fn troubles(&self) -> Vec<String>;

    /// Is everything known that Linux has reported of a namespace?
    fn standing(&self, _namespace: NamespaceId) -> Standing {
        Standing::Current
    }

    /// For another thread: Linux itself, to be asked about the namespaces observed now, without a trace here.
    fn questions(&mut self) -> Box<dyn Ask>;
}

/// See [`Observe::questions`].
pub trait Ask: Send {
    /// Questions about this namespace fail from then on.
    fn end_at(&mut self, namespace: NamespaceId, end: Instant);
    /// The routes of tables main and local: places to look at.
    fn routes(&mut self, namespace: NamespaceId) -> Result<Vec<Known>>;
    /// Where a packet goes; `None`: it is not forwarded.
    fn way(&mut self, namespace: NamespaceId, question: &Question) -> Result<Option<Sent>>;
    /// Neighbours that can be sent to, by device and address.
    fn neighbours(&mut self, namespace: NamespaceId) -> Result<BTreeMap<(u32, IpAddr), Mac>>;
    /// Devices by index.
    fn devices(&mut self, namespace: NamespaceId) -> Result<BTreeMap<u32, Hardware>>;
}

/// The kernel's side of Millrace: generations of the program, links and pins.
pub trait Kernel {
    /// One generation.
    type Plane: FastPath;

    /// Loads a generation; it is in charge of nothing yet.
    fn load(&mut self, settings: Settings) -> Result<Self::Plane>;

    /// Afterwards exactly these devices run this generation, each swapped between two packets; or, on an error, what ran
    /// before still runs and the error says which device failed.
    fn attach(&mut self, plane: &Self::Plane, devices: &[Device]) -> Result<(), (usize, anyhow::Error)>;

    /// The user plane of this configuration, which has paths: what it is over all generations.
    fn user_plane(&mut self, config: &Config) -> Result<<Self::Plane as FastPath>::UserPlane>;

    /// These devices, which run this generation, run the program that it now wants.
    fn swap(&mut self, _plane: &Self::Plane, _devices: &[Device]) -> Result<()> {
        Ok(())
    }

    /// Where a program of this instance runs on a device; `None`: it runs none.
    fn mode(&self, device: &Device) -> Option<Mode>;

    /// Why an attached port is in generic mode, as a sentence.
    fn note(&self, port: &str) -> Option<String>;

    /// Leaves what the next daemon, and `status` without one, need of a generation that is in charge.
    fn publish(&mut self, plane: &mut Self::Plane, generation: u64) -> Result<()>;

    /// What a generation of a dead daemon has counted; `None` if it was not published, or cannot be read.
    fn previous(&mut self, generation: u64) -> Option<Counters>;

    /// Removes what other generations than this have published.
    fn retire(&mut self, generation: u64) -> Result<()>;

    /// Takes every program off and removes every pin of this instance; says what it did.
    fn remove(&mut self) -> Result<Vec<String>>;

    /// A function that returns when no program that ran at the call is running any more, and no run of a worker.
    fn grace(&mut self) -> Result<Box<dyn FnMut() -> Result<()> + Send>>;

    /// What sees changes of policy; asked for once, before anything is loaded.
    ///
    /// # Errors
    /// There is no memory.
    fn policy(&mut self) -> Result<Policy> {
        Policy::blind()
    }

    /// What speaks to the classifiers of the ports' devices, if anything can.
    fn classifier(&self) -> Option<Box<dyn Classifier>> {
        None
    }

    /// CLOCK_MONOTONIC.
    fn now(&self) -> Duration;
}

/// One generation of the program and its maps.
pub trait FastPath {
    /// Its tables; whoever holds one keeps them mapped.
    type Memory: Memory + Send + 'static;
    /// Flow rules, which outlive generations.
    type Rules: Clone;
    /// It outlives generations.
    type UserPlane: UserPlane<Self::Memory>;
    fn memory(&self) -> Self::Memory;
    /// From the next [`Kernel::attach`] on packets go by these rules, or by none; on an error, as before.
    fn set_rules(&mut self, rules: Option<&Self::Rules>) -> Result<()>;
    /// Packets that these rules decided about: from the cache, and not.
    fn decided(_rules: &Self::Rules) -> (u64, u64) {
        (0, 0)
    }
    fn set_port(&self, port: PortId, ifindex: u32, ready: bool, transmit: bool) -> Result<()>;
    fn clear_port(&self, port: PortId, ifindex: u32) -> Result<()>;
    /// Packets are forwarded until then (CLOCK_MONOTONIC).
    fn confirm_until(&self, deadline: Duration);
    /// The same, for another thread.
    fn heart(&self) -> Option<Arc<Heart>> {
        None
    }
    fn counters(&self) -> Result<Counters>;
    /// What it cannot count, as sentences.
    fn troubles(&self) -> Vec<String>;
    /// Forwarded packets that were sampled since the last call; none unless it was loaded for that.
    fn take_samples(&mut self) -> Vec<Sample> {
        Vec::new()
    }
    /// The program with shares is to be attached, or not any more: then from the next [`Kernel::swap`] on it is the one.
    fn follow_shares(&mut self) -> bool {
        false
    }
    /// Attaching failed: that is to be tried again.
    fn unfollow_shares(&mut self) {}
    /// Packets may be given to these paths; called before any rules are set.
    fn set_paths(&mut self, of: &Self::UserPlane) -> Result<()>;
    /// The program with paths is to be attached, or not: if that is new, from the next [`Kernel::swap`] or [`Kernel::attach`] on it is so.
    fn follow_paths(&mut self, some: bool) -> bool;
    /// Of all routers that there are: the weight of their shares of a full core, on which ports they have interfaces, which is the host.
    fn set_routers(
        &self,
        _weights: &BTreeMap<RouterId, u16>,
        _present: &BTreeSet<(PortId, RouterId)>,
        _host: Option<RouterId>,
    ) {
    }
    /// Of full cores, how much a router took in the last control period; `None`: none was full.
    fn taken_of_cores(&self, _router: RouterId) -> Option<f64> {
        None
    }
    /// What would become of a frame, without a trace of it in counters or budgets.
    fn explain(&self, ifindex: u32, frame: &[u8]) -> Result<(TestRun, Vec<Step>)>;
}
