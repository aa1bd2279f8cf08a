//! The interface between the control loop and Linux: one trait for observing Linux, and one for changing it.
//!
//! The daemon implements them with netlink ([`super::observing`]) and BPF ([`super::kernel`]), and tests with fakes
//! over heap memory.

pub use crate::linux::observer::{Hardware, Known, PolicyRead, Question, Sent, Standing};
use crate::{
    base::conditions::Condition,
    config::{Changes, Config, ports::NumberedPorts},
    firewall::FastConnections,
    linux::{classifier::Classifier, ethtool::Problem, netns::NamespaceRef},
    plane::{Counters, Heart, Mode, Settings, Step, TestRun, capture::CaptureMaps, policy::Policy},
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

    /// Makes the kernel check whether a neighbour still answers.
    fn probe_neighbour(&mut self, namespace: NamespaceId, ifindex: u32, address: IpAddr) -> Result<()>;

    /// Requests that the routes of a namespace are read again soon, because messages did not report all changes.
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

    /// Follows other `ports`, `routers` and `limits`.
    fn follow(&mut self, config: &Config, ports: &NumberedPorts);

    /// The reasons not to trust the packets of a port.
    fn port_problems(&mut self, port: PortId) -> Vec<Problem>;

    /// How to enter an observed namespace; `None`: it is not observed.
    fn place(&self, _namespace: NamespaceId) -> Option<NamespaceRef> {
        None
    }

    /// Requests that a namespace's policies and settings are read. A reading that began earlier does not count.
    fn read_policy(&mut self, namespace: NamespaceId);

    /// Readings that are done. The last [`Observe::poll`] or an earlier one has returned their events.
    fn policies_read(&mut self) -> Vec<PolicyRead>;

    /// What cannot be read in full, and why. The routers concerned are not accelerated.
    fn conditions(&self) -> Vec<Condition>;

    /// Has the observer returned everything that Linux has reported of a namespace?
    fn standing(&self, _namespace: NamespaceId) -> Standing {
        Standing::Current
    }

    /// A reader for another thread, which queries Linux about the namespaces observed now. It does not affect the
    /// observer.
    fn questions(&mut self) -> Box<dyn Ask>;
}

/// The threads beside the loop that follow the configuration.
pub trait Beside {
    /// Makes them follow another configuration.
    ///
    /// # Errors
    /// Something cannot be used now. Everything is as before.
    fn reload(&mut self, changes: &Changes, config: &Config, ports: &NumberedPorts) -> Result<()>;
}

/// See [`Observe::questions`].
pub trait Ask: Send {
    /// Queries about this namespace fail from this time on.
    fn end_at(&mut self, namespace: NamespaceId, end: Instant);
    /// The routes of tables main and local, from which the addresses to compare are chosen.
    fn routes(&mut self, namespace: NamespaceId) -> Result<Vec<Known>>;
    /// Where Linux sends a packet; `None`: it does not forward it.
    fn way(&mut self, namespace: NamespaceId, question: &Question) -> Result<Option<Sent>>;
    /// Resolved neighbours, by device and address.
    fn neighbours(&mut self, namespace: NamespaceId) -> Result<BTreeMap<(u32, IpAddr), Mac>>;
    /// Devices by index.
    fn devices(&mut self, namespace: NamespaceId) -> Result<BTreeMap<u32, Hardware>>;
}

/// The kernel's side of Millrace: generations of the program, links and pins.
pub trait Kernel {
    /// One generation.
    type Plane: FastPath;

    /// Loads a generation. It is in charge of nothing yet.
    fn load(&mut self, settings: Settings) -> Result<Self::Plane>;

    /// Makes exactly these devices run this generation. Each changes between two packets.
    ///
    /// # Errors
    /// The number of the device that failed, and why. The previous programs still run.
    fn attach(&mut self, plane: &Self::Plane, devices: &[Device]) -> Result<(), (usize, anyhow::Error)>;

    /// Starts the user plane of this configuration, which has paths. It outlives generations.
    fn user_plane(&mut self, config: &Config) -> Result<<Self::Plane as FastPath>::UserPlane>;

    /// Makes these devices, which run this generation, run the program that it now wants.
    fn swap(&mut self, _plane: &Self::Plane, _devices: &[Device]) -> Result<()> {
        Ok(())
    }

    /// The mode in which a device runs a program of this instance; `None`: it runs none.
    fn mode(&self, device: &Device) -> Option<Mode>;

    /// Why an attached port is in generic mode, as a sentence.
    fn note(&self, port: &str) -> Option<String>;

    /// Publishes a generation that is in charge, for the next daemon, and for `status` without a daemon.
    fn publish(&mut self, plane: &mut Self::Plane, generation: u64) -> Result<()>;

    /// The counters of a dead daemon's generation; `None`: it was not published, or cannot be read.
    fn previous(&mut self, generation: u64) -> Option<Counters>;

    /// Removes what all other generations have published.
    fn retire(&mut self, generation: u64) -> Result<()>;

    /// Removes every program and every pin of this instance; returns what it did.
    fn remove(&mut self) -> Result<Vec<String>>;

    /// A function that waits until all programs and all runs of workers that were under way at the call have ended.
    fn grace(&mut self) -> Result<Box<dyn FnMut() -> Result<()> + Send>>;

    /// Starts to watch changes of policy. It is called once, before anything is loaded.
    ///
    /// # Errors
    /// There is no memory.
    fn policy(&mut self) -> Result<Policy> {
        Policy::blind()
    }

    /// Starts the thread that makes connections fast. Call it after [`Kernel::policy`]. `None`: all stay with Linux.
    ///
    /// # Errors
    /// There is no memory or thread.
    fn connections(&mut self, _config: &Config) -> Result<Option<FastConnections>> {
        Ok(None)
    }

    /// Would the daemon make connections fast, although nothing does so here?
    fn admits_connections(&self, _config: &Config) -> bool {
        false
    }

    /// Nothing is attached, and nothing may be left behind.
    fn is_dry(&self) -> bool {
        false
    }

    /// Access to the classifiers of the ports' devices; `None`: there is none.
    fn classifier(&self) -> Option<Box<dyn Classifier>> {
        None
    }

    /// Makes the maps of captures.
    ///
    /// # Errors
    /// There is no memory, or nothing can be captured here.
    fn capture_maps(&mut self) -> Result<CaptureMaps> {
        anyhow::bail!("nothing can be captured here")
    }

    /// CLOCK_MONOTONIC.
    fn now(&self) -> Duration;
}

/// One generation of the program and its maps.
pub trait FastPath {
    /// Its tables. They stay mapped as long as somebody holds one.
    type Memory: Memory + Send + 'static;
    /// Flow rules, which outlive generations.
    type Rules: Clone;
    /// The user plane, which outlives generations.
    type UserPlane: UserPlane<Self::Memory>;
    fn memory(&self) -> Self::Memory;
    /// Sets the rules, or none, that packets go by from the next [`Kernel::attach`] on. After an error nothing has
    /// changed.
    fn set_rules(&mut self, rules: Option<&Self::Rules>) -> Result<()>;
    /// Packets whose rules were found in the cache, and packets whose rules were not.
    fn decided(_rules: &Self::Rules) -> (u64, u64) {
        (0, 0)
    }
    fn set_port(&self, port: PortId, ifindex: u32, ready: bool, transmit: bool) -> Result<()>;
    fn clear_port(&self, port: PortId, ifindex: u32) -> Result<()>;
    /// Forwards packets until this time (CLOCK_MONOTONIC).
    fn confirm_until(&self, deadline: Duration);
    /// The heartbeat, for another thread.
    fn heart(&self) -> Option<Arc<Heart>> {
        None
    }
    fn counters(&self) -> Result<Counters>;
    /// What it cannot count, as sentences.
    fn conditions(&self) -> Vec<String>;
    /// The samples of forwarded packets since the last call. There are none unless it was loaded with queue rows.
    fn take_samples(&mut self) -> Vec<Sample> {
        Vec::new()
    }
    /// Chooses the program with shares if a core is full, and the one without them otherwise. Returns whether the
    /// choice has changed; the next [`Kernel::swap`] attaches it.
    fn follow_shares(&mut self) -> bool {
        false
    }
    /// Takes the choice of [`FastPath::follow_shares`] back after a failure, so that it is tried again.
    fn unfollow_shares(&mut self) {}
    /// Chooses the program with captures, or the one without. The next [`Kernel::swap`] or [`Kernel::attach`] attaches it.
    ///
    /// # Errors
    /// The program cannot be loaded; the one without captures is chosen.
    fn set_capture(&mut self, _maps: Option<&Arc<CaptureMaps>>) -> Result<()> {
        Ok(())
    }
    /// Lets packets be given to these paths. Call it before rules are set.
    fn set_paths(&mut self, of: &Self::UserPlane) -> Result<()>;
    /// Chooses the program with paths, or the one without them. Returns whether the choice has changed; the next
    /// [`Kernel::swap`] or [`Kernel::attach`] attaches it.
    fn follow_paths(&mut self, some: bool) -> bool;
    /// Sets, for all existing routers, the weights of their shares of a full core, the ports on which they have
    /// interfaces, and which router is the host.
    fn set_routers(
        &self,
        _weights: &BTreeMap<RouterId, u16>,
        _present: &BTreeSet<(PortId, RouterId)>,
        _host: Option<RouterId>,
    ) {
    }
    /// The time of full cores that a router took in the last control period, in cores; `None`: no core was full.
    fn taken_of_cores(&self, _router: RouterId) -> Option<f64> {
        None
    }
    /// Runs the program on a frame, without an effect on counters or budgets.
    fn explain(&self, ifindex: u32, frame: &[u8]) -> Result<(TestRun, Vec<Step>)>;
}
