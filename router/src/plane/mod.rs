//! The kernel plane from user space: loads it, maps its memory, attaches it, reads its counters.
//!
//! | file | holds |
//! |---|---|
//! | `mod.rs` | [`Plane`]: one loaded generation of the program and its maps |
//! | `memory.rs` | the mapped maps as slices of atomic words (`unsafe` lives here) |
//! | `link.rs` | attaching to a port, replacing, pinning (`unsafe` lives here) |
//! | `counters.rs` | counters and charges summed over CPUs |
//! | `policy.rs` | watching for changes of policy; its map outlives a generation (`unsafe` lives here) |
//! | `icmp_errors.rs` | destinations of ICMP errors from which Linux may learn |
//! | `connections.rs` | connections that bypass the rules; their maps outlive a generation (`unsafe` lives here) |
//! | `polls.rs` | counting the polls of queues (`unsafe` lives here) |
//! | `backlog.rs` | whether each CPU keeps up with its queues |
//! | `transmit.rs` | how full the rings are by which a core sends (`unsafe` lives here) |
//! | `losses.rs` | counting packets that are lost after the redirect |
//! | `variants.rs` | the programs of `bpf/millrace.bpf.c` that each load has |
//! | `flow.rs` | the program with flow rules in front |
//! | `flow_maps.rs` | flow rules' maps and memory, which outlive a generation |
//! | `port_sets.rs` | the devices that flow rules send to, one by one and in sets |
//! | `cores.rs` | cores that flow rules hand packets to |
//! | `choices.rs` | flows whose core is chosen |
//! | `shares.rs` | the routers' shares of full cores (`unsafe` lives here) |
//! | `paths.rs` | paths of the user plane: their program, and its maps, which outlive a generation |
//! | `splits.rs` | queues whose flows are shared among cores |
//! | `samples.rs` | sampled packets, for steering |
//! | `capture.rs` | captures and samples of packets (`unsafe` lives here) |
//! | `run.rs` | running the program on one packet (`millrace explain`, table tests) |
//! | `inject.rs` | giving a frame of user space to a program, as if it had come in by a port (`unsafe` lives here) |
//! | `heart.rs` | how long a generation forwards without being confirmed (`unsafe` lives here) |
//! | `grace.rs` | waiting until no running program can see an unpublished entry (`unsafe` lives here) |
//!
//! A generation never changes its size. Growing, upgrading and restarting are the same operation: load a new
//! generation, fill it, swap the program of every port's link (atomic per port, no packet lost), drop the old one.

mod backlog;
pub mod capture;
pub(crate) mod choices;
pub mod connections;
pub(crate) mod cores;
mod counters;
mod flow;
mod flow_maps;
mod grace;
mod heart;
pub mod icmp_errors;
mod inject;
mod link;
mod losses;
mod memory;
mod paths;
pub mod policy;
mod polls;
mod port_sets;
mod run;
mod samples;
mod shares;
#[cfg(test)]
mod sizes;
pub(crate) mod splits;
mod transmit;
mod variants;

use crate::{
    abi::{self, types},
    base::clock::monotonic,
};
use anyhow::{Context, Result, bail};
pub use backlog::Backlogs;
pub use choices::ChosenFlows;
pub use cores::Handed;
pub use counters::{Charge, Counters, InterfaceCount};
pub use flow::FlowPlane;
pub use flow_maps::{FlowLast, FlowMaps, FlowSettings, MappedFlows, Notices, WithoutDaemon};
pub use grace::{Grace, online_cpus};
pub use heart::Heart;
pub use inject::{Injector, MOST_INJECTED};
use libbpf_rs::{
    MapCore, MapFlags, MapHandle, OpenObject, ProgramInput,
    skel::{OpenSkel, SkelBuilder},
};
pub use link::{Mode, PortLink, running_program};
use logic::{
    memory::Capacity,
    plan::{InterfaceId, PortId},
    reason::Reason,
};
use losses::Losses;
pub use memory::MappedMemory;
use memory::{Mapping, Words64};
pub use paths::{NOT_GIVEN, PathCounts, PathMaps, PathsPlane};
pub use polls::{Polled, Polls, Slept};
pub use run::{Step, TestRun};
use samples::Samples;
pub use shares::{Shares, SharesInCharge, Taken};
pub use splits::{Helped, PREPARED, Spilled, SplitSeat, Splits};
use std::{
    cell::RefCell,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd},
    path::Path,
    sync::{
        Arc,
        atomic::{
            AtomicBool,
            Ordering::{AcqRel, Acquire},
        },
    },
    time::Duration,
};
pub use transmit::{Transmit, TransmitRings};
use variants::Variant;

/// Settings of a generation, fixed when it is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Rows of every table.
    pub capacity: Capacity,
    /// Highest interface id + 1.
    pub interface_rows: u32,
    /// One packet in this many is timed, per CPU; a power of two, or 0 for none.
    pub sample_interval: u32,
    /// Packets per second that may take the slow path, per CPU and router; 0: no limit.
    pub exception_pps: u32,
    /// ARP and neighbour discovery packets per second, per CPU and router or port; 0: no limit.
    pub control_pps: u32,
    /// A port has a classifier: the program looks in rows of RX queues, and samples flows.
    pub queue_rows: bool,
    /// Cores that fall behind may get help (`bpf/spill.h`).
    pub help: bool,
}

/// `enum port_flags`.
pub(crate) const PORT_READY: u64 = 1;
pub(crate) const PORT_NO_RECV: u64 = 2;
pub(crate) const PORT_HANDS_OVER: u64 = 4;
pub(crate) const PORT_SPLITS: u64 = 8;
/// Words of `struct control`.
const RULES_DEADLINE: usize = std::mem::offset_of!(types::control, rules_deadline_jiffies) / 8;
const KEEP_DROPS: usize = std::mem::offset_of!(types::control, rules_keep_drops) / 8;
const CONNECTIONS_DEADLINE: usize = std::mem::offset_of!(types::control, connections_deadline_jiffies) / 8;
const SPLIT_MAP: usize = std::mem::offset_of!(types::control, split_map) / 8;
const CORE_MAP: usize = std::mem::offset_of!(types::control, core_map) / 8;

/// Limits of the ABI.
pub const MAX_PORTS: usize = 64;
/// Routers that `charges` has rows for.
pub const MAX_ROUTERS: usize = 256;

/// One loaded generation: program and maps. Dropping it frees both, unless a link or a pin still holds them.
pub struct Plane {
    skel: abi::MillraceSkel<'static>,
    losses: Losses,
    samples: Option<Samples>,
    splits: Arc<Splits>,
    settings: Settings,
    memory: Arc<MappedMemory>,
    shares: Arc<Shares>,
    control: Words64,
    heart: Arc<Heart>,
    port_index: Words64,
    cpus: usize,
    /// The copy that explains packets, since the first request.
    explainer: RefCell<Option<abi::MillraceSkel<'static>>>,
    /// The program with flow rules, since the first rule.
    rules: Option<FlowPlane>,
    /// The program with flow rules is the one to attach.
    by_rules: bool,
    /// The program with shares is the one to attach.
    shared: bool,
    /// The program with paths, if there may be paths.
    paths: Option<PathsPlane>,
    /// The program with paths is the one to attach, or with rules the one that has both.
    with_paths: bool,
    /// The program with captures, while there are any.
    capture: Option<capture::CapturePlane>,
}

impl Plane {
    /// Loads the program with maps of these sizes, all zero. It passes every packet up until the maps are filled.
    ///
    /// # Errors
    /// The kernel refuses (missing capability, missing feature, no memory); the verifier's message is in the chain.
    pub fn load(settings: Settings) -> Result<Plane> {
        Self::load_changed(settings, |_| Ok(()))
    }

    /// As [`Plane::load`], with the maps of a [`policy::Policy`].
    ///
    /// # Errors
    /// As there.
    pub fn load_watched(settings: Settings, maps: Option<&policy::PlaneMaps>) -> Result<Plane> {
        Self::load_changed(settings, |open| {
            let Some(maps) = maps else { return Ok(()) };
            open.maps.policy.reuse_fd(maps.marks.as_fd())?;
            open.maps.learned.reuse_fd(maps.learned.as_fd())?;
            open.maps.learned_counts.reuse_fd(maps.learned_counts.as_fd())?;
            maps.connections.iter().try_for_each(|connections| connections.share(open))
        })
    }

    /// As [`Plane::load`], with maps or constants changed first, as another version would load them: for tests of
    /// upgrades.
    #[doc(hidden)]
    pub fn load_changed(
        settings: Settings,
        change: impl FnOnce(&mut abi::OpenMillraceSkel<'_>) -> libbpf_rs::Result<()>,
    ) -> Result<Plane> {
        let cpus = libbpf_rs::num_possible_cpus().context("counting CPUs")?;
        // A skeleton borrows its object for its whole life, and a generation lives as long as the daemon wants. So one
        // pointer-sized allocation per generation is leaked.
        let storage = Box::leak(Box::new(MaybeUninit::<OpenObject>::uninit()));
        let mut open =
            abi::MillraceSkelBuilder::default().open(storage).context("opening the kernel plane")?;
        size(&mut open, &settings, cpus)?;
        losses::look_from_here(&mut open)?;
        Variant::Routing.select(&mut open)?;
        if !settings.help {
            open.progs.share_queues.set_autoload(false);
        }
        change(&mut open).context("changing the kernel plane")?;
        let skel = open.load().context("loading the kernel plane")?;
        let memory = Arc::new(MappedMemory::new(&skel, &settings)?);
        let samples =
            settings.queue_rows.then(|| Samples::new(skel.maps.flow_samples.as_fd(), cpus)).transpose()?;
        let control: Words64 =
            Mapping::new(skel.maps.control.as_fd(), size_of::<types::control>(), 1)?.into();
        let losses = Losses::attach(&skel);
        let splits = Arc::new(Splits::new(&skel, cpus, losses.counts_handed())?);
        control.store(SPLIT_MAP, splits.map()?.into());
        let (at, jiffies) = read_clock(&skel, &control)?;
        let shares = Arc::new(Shares::new(&skel, cpus, Pace { at, jiffies })?);
        let heart = Arc::new(Heart {
            control: Mapping::new(skel.maps.control.as_fd(), size_of::<types::control>(), 1)?.into(),
            clock: skel.progs.millrace_clock.as_fd().try_clone_to_owned()?,
            pace: Pace { at, jiffies },
            rules_outlast: AtomicBool::new(false),
        });
        Ok(Plane {
            shares,
            control,
            heart,
            port_index: Mapping::new(
                skel.maps.port_index.as_fd(),
                size_of::<types::port>(),
                skel.maps.port_index.max_entries() as usize,
            )?
            .into(),
            losses,
            samples,
            splits,
            skel,
            settings,
            memory,
            cpus,
            explainer: RefCell::default(),
            rules: None,
            by_rules: false,
            shared: false,
            paths: None,
            with_paths: false,
            capture: None,
        })
    }

    /// The tables, for `logic::tables`.
    pub fn memory(&self) -> Arc<MappedMemory> {
        self.memory.clone()
    }

    /// The routers' shares of full cores.
    pub fn shares(&self) -> &Arc<Shares> {
        &self.shares
    }

    /// Whether [`Plane::program`] is the one with shares. With flow rules it always has them.
    pub fn set_shared(&mut self, shared: bool) {
        self.shared = shared;
    }

    pub fn is_shared(&self) -> bool {
        self.shared
    }

    /// The settings that it was loaded with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Makes a device known as port `id`. Packets from it are accelerated if `ready`. Packets are sent to it if
    /// `transmit`.
    ///
    /// # Errors
    /// Another port's ifindex has the same low 12 bits, or the kernel refuses the transmit slot.
    pub fn set_port(&self, id: PortId, ifindex: u32, ready: bool, transmit: bool) -> Result<()> {
        let slots = self.port_index.len();
        let at = ifindex as usize % slots;
        let present = self.port_index.load(at) as u32;
        if present != 0 && present != ifindex {
            bail!(
                "device {ifindex} cannot be a port beside device {present}: their indexes are equal modulo {slots}"
            );
        }
        if transmit {
            // struct bpf_devmap_val: ifindex, and 0 for "no egress program".
            let slot = u64::from(ifindex).to_le_bytes();
            self.skel
                .maps
                .tx_ports
                .update(&u32::from(id).to_ne_bytes(), &slot, MapFlags::ANY)
                .with_context(|| format!("giving port {id} (device {ifindex}) a transmit slot"))?;
        } else {
            self.clear_slot(id)?;
        }
        let no_recv = self.rules.as_ref().is_some_and(|rules| rules.maps().no_recv(id));
        let hands_over = hands_over(ifindex);
        self.splits.with_port(id, |splits| {
            let flags = u64::from(ready) * PORT_READY
                + u64::from(no_recv) * PORT_NO_RECV
                + u64::from(hands_over) * PORT_HANDS_OVER
                + u64::from(hands_over && splits) * PORT_SPLITS;
            let word = u64::from(ifindex) | u64::from(id) << 32 | flags << 48;
            let place = &self.port_index.as_slice()[at];
            // If the kernel plane spills a queue meanwhile, it sets PORT_SPLITS.
            let same = |old: u64| old as u32 == ifindex && (old >> 32) as u16 == u16::from(id) && hands_over;
            let kept = |old: u64| if same(old) { old & (PORT_SPLITS << 48) } else { 0 };
            let _ = place.fetch_update(AcqRel, Acquire, |old| Some(word | kept(old)));
        });
        Ok(())
    }

    /// Forgets a port: packets from it go to the kernel, and none are sent to it.
    pub fn clear_port(&self, id: PortId, ifindex: u32) -> Result<()> {
        let at = ifindex as usize % self.port_index.len();
        self.splits.with_port(id, |_| {
            if self.port_index.load(at) as u32 == ifindex {
                self.port_index.store(at, 0);
            }
        });
        self.clear_slot(id)
    }

    fn clear_slot(&self, id: PortId) -> Result<()> {
        match self.skel.maps.tx_ports.delete(&u32::from(id).to_ne_bytes()) {
            Err(e) if e.kind() != libbpf_rs::ErrorKind::NotFound => {
                Err(e).context("clearing a transmit slot")
            }
            _ => Ok(()),
        }
    }

    /// Confirms the mirror until `deadline` (CLOCK_MONOTONIC); past it every packet goes to the kernel.
    ///
    /// # Errors
    /// The kernel did not run the program that reads jiffies; the deadline is unchanged.
    pub fn confirm_until(&self, deadline: Duration) -> Result<()> {
        self.heart.beat_until(deadline)
    }

    /// Confirms the mirror from another thread.
    pub fn heart(&self) -> &Arc<Heart> {
        &self.heart
    }

    /// With rules, [`Plane::program`] is from now on the one that follows them; without, the plain one.
    ///
    /// # Errors
    /// The program cannot be loaded; nothing has changed.
    pub fn set_rules(&mut self, maps: Option<&Arc<FlowMaps>>) -> Result<()> {
        if let Some(maps) = maps
            && self.rules.as_ref().is_none_or(|rules| !Arc::ptr_eq(rules.maps(), maps))
        {
            let rules = FlowPlane::load(self, maps)?;
            // From their first packet on, rules hand packets of shared queues over by a CPU map of their own.
            for core in self.splits.ready() {
                if let Err(error) = maps.memory().make_ready(core) {
                    tracing::warn!("core {core} does not share queues under flow rules yet: {error:#}");
                }
            }
            self.rules = Some(rules);
        }
        if let Some(maps) = maps {
            let without_daemon = maps.without_daemon();
            self.control.store(KEEP_DROPS, (without_daemon != WithoutDaemon::End).into());
            self.heart.set_rules_outlast(without_daemon == WithoutDaemon::GoOn);
        }
        self.by_rules = maps.is_some();
        self.splits.set_map_of_rules(maps.and_then(|maps| maps.memory().core_map()));
        Ok(())
    }

    /// Loads the program that gives packets to these paths; [`Plane::set_with_paths`] chooses it. Later programs
    /// with flow rules also ask paths first.
    ///
    /// # Errors
    /// The program cannot be loaded, or there are flow rules already; nothing has changed.
    pub fn set_paths(&mut self, maps: &Arc<PathMaps>) -> Result<()> {
        anyhow::ensure!(self.rules.is_none(), "paths come before flow rules");
        self.paths = Some(PathsPlane::load(self, maps)?);
        self.explainer.take();
        Ok(())
    }

    /// Whether [`Plane::program`] is the one with paths, if there may be paths. With flow rules it always has them.
    pub fn set_with_paths(&mut self, with_paths: bool) {
        self.with_paths = with_paths && self.paths.is_some();
    }

    pub fn is_with_paths(&self) -> bool {
        self.with_paths
    }

    /// The maps of the paths that packets may be given to.
    pub fn path_maps(&self) -> Option<&Arc<PathMaps>> {
        self.paths.as_ref().map(PathsPlane::maps)
    }

    /// The split queues of this generation.
    pub fn splits(&self) -> &Arc<Splits> {
        &self.splits
    }

    /// The rows of `core_queues` for cores that flow rules hand packets to.
    fn core_queues(&self) -> Result<Words64> {
        let map = self.skel.maps.core_queues.as_fd();
        Ok(Mapping::new(map, size_of::<types::core_queue>(), self.cpus)?.into())
    }

    /// Packets of all ports that no interface matched, and that were not forwarded for this reason: for tests that
    /// ask after each packet.
    pub fn charged_to_ports(&self, reason: Reason) -> Result<u64> {
        counters::charged_to_ports(self.skel.maps.charges.as_fd(), self.cpus, reason)
    }

    /// Packets and bytes of every interface that has any, summed over CPUs.
    pub fn counters(&self) -> Result<Counters> {
        counters::read(
            self.skel.maps.counters.as_fd(),
            self.skel.maps.charges.as_fd(),
            self.cpus,
            self.settings.interface_rows,
        )
    }

    /// Zeroes the counters of an interface id, for a new owner.
    pub fn reset_interface(&self, interface: InterfaceId) -> Result<()> {
        counters::reset(self.skel.maps.counters.as_fd(), self.cpus, self.settings.interface_rows, interface)
    }

    /// Forwarded packets that were sampled since the last call; none without [`Settings::queue_rows`].
    pub fn take_samples(&mut self) -> Vec<logic::steer::Sample> {
        self.samples.as_mut().map(Samples::take).unwrap_or_default()
    }

    /// The program, to attach.
    pub fn program(&self) -> BorrowedFd<'_> {
        if let Some(capture) = self.capture.as_ref().filter(|c| c.variant == self.capture_variant()) {
            return capture.program();
        }
        match (&self.rules, &self.paths) {
            (Some(rules), _) if self.by_rules => rules.program(),
            (_, Some(paths)) if self.with_paths => paths.program(),
            _ if self.shared => self.skel.progs.millrace_shared.as_fd(),
            _ => self.skel.progs.millrace.as_fd(),
        }
    }

    /// From now on this generation takes the frames that user space hands to NORMAL and LOCAL, if it has rules.
    /// Call this just before it is attached, so that it is in place when its first packets reach user space.
    ///
    /// # Errors
    /// There are no descriptors left; the previous generation still takes the frames.
    pub fn take_injected(&self) -> Result<()> {
        self.rules.iter().filter(|_| self.by_rules).try_for_each(FlowPlane::take_injected)
    }

    /// From now on this generation counts packets that are lost after the redirect; the one pinned in `directory`
    /// stops.
    pub fn count_losses(&self, directory: &Path) {
        losses::take_over(&self.control, directory);
    }

    /// The losses that it cannot count, as sentences.
    pub fn conditions(&self) -> &[String] {
        &self.losses.conditions
    }

    /// Pins the maps that a later daemon, or `status` without a daemon, reads: `control`, `counters-GENERATION` and
    /// `charges-GENERATION`. Pins also the programs that count losses. May be repeated; it replaces pins of these
    /// names.
    pub fn pin(&mut self, directory: &Path, generation: u64) -> Result<()> {
        let maps = &self.skel.maps;
        for (map, name) in [
            (&maps.control, "control".to_owned()),
            (&maps.counters, format!("counters-{generation}")),
            (&maps.charges, format!("charges-{generation}")),
        ] {
            // Not through the map itself: libbpf remembers that it is pinned, and does nothing the next time.
            replace_pin(&directory.join(name), |path| {
                MapHandle::try_from(map).and_then(|mut handle| handle.pin(path))
            })?;
        }
        self.losses.pin(directory)
    }
}

/// May packets of a device be handed to another core? Not those of a port in generic mode: up to Linux 6.14 the
/// program there runs only for the first of several packets that wait together, and the others go to the kernel's
/// stack (cpu_map_bpf_prog_run_skb, kernel/bpf/cpumap.c).
fn hands_over(ifindex: u32) -> bool {
    matches!(link::mode(ifindex), Ok(Some(Mode::Native)))
}

/// Pins something at this path, and replaces an older pin.
pub(crate) fn replace_pin(path: &Path, pin: impl FnOnce(&Path) -> libbpf_rs::Result<()>) -> Result<()> {
    if path.exists() {
        std::fs::remove_file(path).with_context(|| format!("removing {}", path.display()))?;
    }
    pin(path).with_context(|| format!("pinning {}", path.display()))
}

/// When the generation was loaded, on two clocks. This shows how fast jiffies go.
struct Pace {
    at: Duration,
    jiffies: u64,
}

impl Pace {
    /// Jiffies per second (CONFIG_HZ), measured since the generation was loaded. While too few have passed, the
    /// lowest value that there is, 100: then a deadline comes too early rather than too late.
    fn hz(&self, now: Duration, jiffies: u64) -> f64 {
        match jiffies - self.jiffies {
            passed if passed <= 10 => 100.0,
            passed => (passed - 1) as f64 / now.saturating_sub(self.at).as_secs_f64(),
        }
    }
}

fn read_clock(skel: &abi::MillraceSkel<'_>, control: &Words64) -> Result<(Duration, u64)> {
    skel.progs.millrace_clock.test_run(ProgramInput::default()).context("reading the kernel's clock")?;
    Ok((monotonic(), control.load(2)))
}

/// Makes another program of ours read the tables of a plane.
fn share_tables(open: &mut abi::OpenMillraceSkel<'_>, plane: &Plane) -> Result<()> {
    let (theirs, ours) = (&mut open.maps, &plane.skel.maps);
    for (map, fd) in [
        (&mut theirs.control, ours.control.as_fd()),
        (&mut theirs.port_index, ours.port_index.as_fd()),
        (&mut theirs.interface_index, ours.interface_index.as_fd()),
        (&mut theirs.routers, ours.routers.as_fd()),
        (&mut theirs.firewalls, ours.firewalls.as_fd()),
        (&mut theirs.interface_groups, ours.interface_groups.as_fd()),
        (&mut theirs.policy, ours.policy.as_fd()),
        (&mut theirs.learned, ours.learned.as_fd()),
        (&mut theirs.learned_counts, ours.learned_counts.as_fd()),
        (&mut theirs.connections, ours.connections.as_fd()),
        (&mut theirs.connection_counts, ours.connection_counts.as_fd()),
        (&mut theirs.candidates, ours.candidates.as_fd()),
        (&mut theirs.connection_notes, ours.connection_notes.as_fd()),
        (&mut theirs.fib, ours.fib.as_fd()),
        (&mut theirs.fib_tails, ours.fib_tails.as_fd()),
        (&mut theirs.nexthops, ours.nexthops.as_fd()),
        (&mut theirs.neighbour_index, ours.neighbour_index.as_fd()),
        (&mut theirs.queues, ours.queues.as_fd()),
        (&mut theirs.flow_samples, ours.flow_samples.as_fd()),
        (&mut theirs.tx_ports, ours.tx_ports.as_fd()),
        (&mut theirs.core_queues, ours.core_queues.as_fd()),
        (&mut theirs.shares, ours.shares.as_fd()),
        (&mut theirs.split_index, ours.split_index.as_fd()),
        (&mut theirs.split_queues, ours.split_queues.as_fd()),
        (&mut theirs.split_cores, ours.split_cores.as_fd()),
    ] {
        map.reuse_fd(fd).context("sharing a map with another program")?;
    }
    if let (Some(constants), Some(ours)) = (theirs.rodata_data.as_deref_mut(), ours.rodata_data) {
        constants.connection_mask = ours.connection_mask;
        constants.candidate_mask = ours.candidate_mask;
        constants.connection_seed = ours.connection_seed;
    }
    Ok(())
}

/// The same, and the program counts in the plane's maps.
fn share_with_counts(open: &mut abi::OpenMillraceSkel<'_>, plane: &Plane) -> Result<()> {
    share_tables(open, plane)?;
    let (theirs, ours) = (&mut open.maps, &plane.skel.maps);
    for (map, fd) in [
        (&mut theirs.counters, ours.counters.as_fd()),
        (&mut theirs.charges, ours.charges.as_fd()),
        (&mut theirs.policers, ours.policers.as_fd()),
    ] {
        map.reuse_fd(fd).context("sharing a map with another program")?;
    }
    Ok(())
}

/// Sizes of the maps and constants of the program.
fn size(open: &mut abi::OpenMillraceSkel<'_>, settings: &Settings, cpus: usize) -> Result<()> {
    let capacity = &settings.capacity;
    for (what, n) in [("interface", capacity.interface_buckets), ("neighbour", capacity.neighbour_buckets)] {
        if !n.is_power_of_two() {
            bail!("{what} buckets: {n} is not a power of two");
        }
    }
    let charge_rows = cpus * counters::CHARGE_ROWS;
    let queue_rows = if settings.queue_rows { logic::tables::queue_rows(MAX_PORTS) } else { 1 };
    let maps = &mut open.maps;
    for (map, rows) in [
        (&mut maps.interface_index, capacity.interface_buckets),
        (&mut maps.fib, capacity.fib_blocks),
        (&mut maps.fib_tails, capacity.fib_tails),
        (&mut maps.nexthops, capacity.nexthops),
        (&mut maps.neighbour_index, capacity.neighbour_buckets),
        (&mut maps.queues, queue_rows),
        (&mut maps.flow_samples, if settings.queue_rows { cpus } else { 1 }),
        (&mut maps.interface_groups, settings.interface_rows as usize),
        (&mut maps.counters, cpus * settings.interface_rows as usize),
        (&mut maps.charges, charge_rows),
        (&mut maps.policers, charge_rows),
        (&mut maps.core_queues, 2 * cpus),
        (&mut maps.split_cores, cpus),
        (&mut maps.shares, cpus * MAX_ROUTERS),
    ] {
        let rows = u32::try_from(rows.max(1)).context("a map of more than 2^32 rows")?;
        map.set_max_entries(rows).context("sizing a map")?;
    }
    maps.backlogs.reuse_fd(backlog::map()?).context("sharing the map of backlogs")?;
    let constants = maps.rodata_data.as_deref_mut().context("the kernel plane has no constants")?;
    constants.core_rows = u32::try_from(cpus).context("more than 2^32 CPUs")?;
    constants.interface_rows = settings.interface_rows;
    constants.interface_mask = capacity.interface_buckets as u32 - 1;
    constants.neighbour_mask = capacity.neighbour_buckets as u32 - 1;
    constants.queue_rows = settings.queue_rows;
    // 0 means none: it becomes one in 2^32, the longest interval that the mask allows.
    constants.sample_mask = settings.sample_interval.wrapping_sub(1);
    constants.exception_cost_ns = cost_ns(settings.exception_pps);
    constants.control_cost_ns = cost_ns(settings.control_pps);
    // A bucket that cannot hold the cost of one packet would let none pass.
    constants.police_burst_ns = BURST_NS.max(constants.exception_cost_ns).max(constants.control_cost_ns);
    Ok(())
}

/// The time without packets after which policing has forgotten earlier packets, ns. It is longer if one packet
/// costs more.
const BURST_NS: u64 = 100_000_000;

fn cost_ns(pps: u32) -> u64 {
    if pps == 0 { 0 } else { 1_000_000_000 / u64::from(pps) }
}
