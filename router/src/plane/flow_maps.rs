//! The maps of flow rules and their memory. They are made with the first rule, and outlive generations of routing
//! tables.

use super::{
    choices::{ChoiceMaps, ChosenFlows},
    cores::{Handed, NamedCores},
    inject::Injector,
    memory::{Mapping, Words64},
    port_sets::PortSets,
    variants::Variant,
};
use crate::{
    abi::{self, types},
    base::guard::locked,
};
use anyhow::{Context, Result};
use libbpf_rs::{
    MapHandle, OpenObject, PerfBuffer, PerfBufferBuilder,
    skel::{OpenSkel, SkelBuilder},
};
use logic::{
    cores::{
        CoreId,
        choice::{Choices, Leave},
    },
    flow::{
        CoreChoice, RulePort,
        kernel::{FIRST_ROW, FlowCapacity, FlowMemory, MASKS, Notice, Seed, TABLE_ROWS, words},
        program::Ports,
    },
    plan::PortId,
};
use std::{
    collections::BTreeMap,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// Settings that are fixed when the maps are made.
#[derive(Clone, Copy)]
pub struct FlowSettings {
    /// Rows of every map.
    pub capacity: FlowCapacity,
    /// The random seed of the hashes.
    pub seed: Seed,
}

/// What rules do once the heartbeat of a daemon has expired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WithoutDaemon {
    /// They stop: all packets go to the kernel.
    End,
    /// They still drop packets. All others go to the kernel.
    #[default]
    Drop,
    /// They go on (fail-secure, OpenFlow 1.3.5 section 6.4).
    GoOn,
}

/// All maps of flow rules, with their settings.
pub struct FlowMaps {
    settings: FlowSettings,
    handles: Vec<MapHandle>,
    notices: MapHandle,
    memory: Arc<MappedFlows>,
    /// Ports whose packets are dropped (OFPPC_NO_RECV), one bit each.
    no_recv: AtomicU64,
    without_daemon: Mutex<WithoutDaemon>,
    /// The injector of the generation in charge.
    injector: Mutex<Option<Injector>>,
}

/// The program's result for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowLast {
    pub key: logic::flow::Key,
    /// [`logic::flow::kernel::verdict`].
    pub verdict: u16,
    /// Port id or set.
    pub port: u16,
}

/// Every map of flow rules, always in the same order.
macro_rules! flow_maps {
    ($maps:expr $(, $mutable:tt)?) => {
        [
            &$($mutable)? $maps.flow_masks,
            &$($mutable)? $maps.flow_tables,
            &$($mutable)? $maps.flow_index,
            &$($mutable)? $maps.flow_rules,
            &$($mutable)? $maps.flow_rest,
            &$($mutable)? $maps.flow_patches,
            &$($mutable)? $maps.flow_steps,
            &$($mutable)? $maps.flow_groups,
            &$($mutable)? $maps.flow_meters,
            &$($mutable)? $maps.flow_cache,
            &$($mutable)? $maps.flow_cache_rest,
            &$($mutable)? $maps.flow_seen,
            &$($mutable)? $maps.flow_counters,
            &$($mutable)? $maps.flow_scratch,
            &$($mutable)? $maps.flow_choices,
            &$($mutable)? $maps.core_rings,
            &$($mutable)? $maps.flow_sets,
            &$($mutable)? $maps.flow_notices,
            &$($mutable)? $maps.rule_ports,
        ]
    };
}

impl FlowMaps {
    /// Makes the maps, without rules and ports.
    ///
    /// # Errors
    /// A capacity is not possible, or the kernel lacks memory.
    pub fn new(settings: FlowSettings) -> Result<FlowMaps> {
        let cpus = libbpf_rs::num_possible_cpus().context("counting CPUs")?;
        let c = &settings.capacity;
        let mut storage = MaybeUninit::<OpenObject>::uninit();
        let mut open =
            abi::MillraceSkelBuilder::default().open(&mut storage).context("opening the kernel plane")?;
        Variant::RuleMaps.select(&mut open)?;
        size(&mut open, c, cpus)?;
        let outer = PortSets::outer(c.port_sets)?;
        open.maps.flow_sets.reuse_fd(outer.as_fd()).context("giving the program its sets of ports")?;
        let skel = open.load().context("making the maps of flow rules")?;
        let handles = flow_maps!(skel.maps).into_iter().map(MapHandle::try_from);
        let handles = handles.collect::<Result<Vec<_>, _>>().context("keeping the maps of flow rules")?;
        let targets =
            MapHandle::try_from(&skel.maps.rule_ports).context("keeping the map of rules' outputs")?;
        let sets = Arc::new(PortSets::new(outer, targets, c.port_sets.max(1)));
        let memory = Arc::new(MappedFlows::new(&skel, c, cpus, sets.clone())?);
        sets.make_ahead()?;
        let notices = MapHandle::try_from(&skel.maps.flow_notices).context("keeping the map of notices")?;
        Ok(FlowMaps {
            settings,
            handles,
            notices,
            memory,
            no_recv: AtomicU64::new(0),
            without_daemon: Mutex::default(),
            injector: Mutex::default(),
        })
    }

    /// Takes effect when a plane next gets these rules ([`Plane::set_rules`](super::Plane::set_rules)).
    pub fn set_without_daemon(&self, without_daemon: WithoutDaemon) {
        *locked(&self.without_daemon) = without_daemon;
    }

    pub fn without_daemon(&self) -> WithoutDaemon {
        *locked(&self.without_daemon)
    }

    /// The memory, for [`logic::flow::kernel::Writer`].
    pub fn memory(&self) -> &Arc<MappedFlows> {
        &self.memory
    }

    /// The settings that they were made with.
    pub fn settings(&self) -> &FlowSettings {
        &self.settings
    }

    /// Sets the ports whose packets are dropped (OFPPC_NO_RECV). It holds from the next
    /// [`Plane::set_port`](super::Plane::set_port) on.
    pub fn set_no_recv(&self, ports: impl IntoIterator<Item = PortId>) {
        self.no_recv.store(ports.into_iter().fold(0, |bits, id| bits | 1_u64 << id), Relaxed);
    }

    /// Are the packets of this port dropped?
    pub fn no_recv(&self, id: PortId) -> bool {
        self.no_recv.load(Relaxed) & 1 << id != 0
    }

    pub(super) fn set_injector(&self, injector: Injector) {
        *self.injector.lock().unwrap_or_else(|e| e.into_inner()) = Some(injector);
    }

    /// Calls `give` with the programs for frames of user space; `None`: rules were never in charge.
    pub fn with_injector<T>(&self, give: impl FnOnce(&Injector) -> T) -> Option<T> {
        self.injector.lock().unwrap_or_else(|e| e.into_inner()).as_ref().map(give)
    }

    /// Reads the notices of the program. Calls `told` with each notice and the bytes of its frame, and `lost` with
    /// the number of notices that were lost because they were not read in time. There is one reader at a time: a
    /// new one takes over.
    ///
    /// # Errors
    /// The kernel refuses a buffer.
    pub fn notices<'a>(
        &self,
        mut told: impl FnMut(Notice, &[u8]) + 'a,
        mut lost: impl FnMut(u64) + 'a,
    ) -> Result<Notices<'a>> {
        let buffer = PerfBufferBuilder::new(&self.notices)
            .pages(NOTICE_PAGES)
            .sample_cb(move |_, record| {
                if let Some((notice, frame)) = Notice::read(record) {
                    told(notice, frame);
                }
            })
            .lost_cb(move |_, count| lost(count))
            .build()
            .context("opening the buffers of packets for user space")?;
        Ok(Notices { buffer })
    }

    /// The program's result for the last packet on the CPU that this thread runs on.
    pub fn last(&self) -> FlowLast {
        let row = size_of::<types::flow_scratch>() / 8 * rustix::thread::sched_getcpu();
        let half = |offset: usize| {
            let word = self.memory.scratch.load(row + offset / 8);
            (word >> (8 * (offset % 8))) as u16
        };
        FlowLast {
            key: logic::flow::Key::from_words(std::array::from_fn(|i| self.memory.scratch.load(row + i))),
            verdict: half(std::mem::offset_of!(types::flow_scratch, verdict)),
            port: half(std::mem::offset_of!(types::flow_scratch, port)),
        }
    }

    /// Packets whose rules were found in the cache, and packets whose rules were not, summed over CPUs.
    pub fn cache_use(&self) -> (u64, u64) {
        let row = size_of::<types::flow_scratch>() / 8;
        let at = |field: usize| {
            (0..self.memory.cpus).map(|cpu| self.memory.scratch.load(cpu * row + field / 8)).sum()
        };
        (
            at(std::mem::offset_of!(types::flow_scratch, hits)),
            at(std::mem::offset_of!(types::flow_scratch, misses)),
        )
    }
}

/// Pages of each CPU's buffer of notices, a power of two: room for some 600 packets of 1,500 bytes.
const NOTICE_PAGES: usize = 256;

/// The open buffers of notices. While nobody has them open, packets for user space are lost.
pub struct Notices<'a> {
    buffer: PerfBuffer<'a>,
}

impl Notices<'_> {
    /// Waits until there are notices, at most for this time, and reads all of them.
    ///
    /// # Errors
    /// The buffers cannot be read.
    pub fn wait(&self, at_most: Duration) -> Result<()> {
        match self.buffer.poll(at_most) {
            Err(e) if e.kind() == libbpf_rs::ErrorKind::Interrupted => Ok(()),
            other => other.context("waiting for packets for user space"),
        }
    }
}

/// Leaves out all maps of flow rules, for a load without them.
pub(super) fn leave_out(open: &mut abi::OpenMillraceSkel<'_>) -> Result<()> {
    for map in flow_maps!(open.maps, mut) {
        map.set_autocreate(false).context("leaving out a map of flow rules")?;
    }
    Ok(())
}

/// Makes a program follow these rules.
pub(super) fn share(open: &mut abi::OpenMillraceSkel<'_>, ours: &FlowMaps) -> Result<()> {
    for (map, handle) in flow_maps!(open.maps, mut).into_iter().zip(&ours.handles) {
        map.reuse_fd(handle.as_fd()).context("sharing a map of flow rules")?;
    }
    let (c, seed) = (&ours.settings.capacity, ours.settings.seed);
    let constants = open.maps.rodata_data.as_deref_mut().context("the kernel plane has no constants")?;
    constants.flow_rows = u32::try_from(c.rules).context("more than 2^32 rules")?;
    constants.flow_cache_mask = u32::try_from(c.cache_sets).context("a cache of more than 2^32 sets")? - 1;
    constants.flow_seen_mask = SEEN as u32 - 1;
    constants.flow_seed = seed.0;
    Ok(())
}

/// Sets the sizes of the maps.
fn size(open: &mut abi::OpenMillraceSkel<'_>, c: &FlowCapacity, cpus: usize) -> Result<()> {
    anyhow::ensure!(
        c.buckets.is_power_of_two() && c.cache_sets.is_power_of_two(),
        "flow rules: {} buckets and {} sets of the cache must be powers of two",
        c.buckets,
        c.cache_sets
    );
    anyhow::ensure!(
        c.rules > FIRST_ROW && c.rules.is_multiple_of(4),
        "flow rules: {} rows must be more than the tables and a multiple of 4, so that no CPU's counters share a line",
        c.rules
    );
    let cached = cpus * c.cache_sets * logic::flow::kernel::CACHE_WAYS;
    let maps = &mut open.maps;
    for (map, rows) in [
        (&mut maps.flow_index, c.buckets),
        (&mut maps.flow_rules, c.rules),
        (&mut maps.flow_rest, c.rest),
        (&mut maps.flow_patches, c.patches),
        (&mut maps.flow_steps, c.steps),
        (&mut maps.flow_groups, c.groups),
        (&mut maps.flow_meters, c.meters),
        (&mut maps.flow_cache, cached),
        (&mut maps.flow_cache_rest, cached),
        (&mut maps.flow_seen, cpus * SEEN),
        (&mut maps.flow_counters, (cpus + 1) * c.rules),
        (&mut maps.flow_scratch, cpus),
    ] {
        let rows = u32::try_from(rows.max(1)).context("a map of more than 2^32 rows")?;
        map.set_max_entries(rows).context("sizing a map")?;
    }
    Ok(())
}

/// Cache lines of tags of flows that were seen once, per CPU: 65,536 tags.
const SEEN: usize = 1 << 11;

/// [`FlowMemory`] over the maps.
pub struct MappedFlows {
    regions: [Words64; 11],
    scratch: Words64,
    sets: Arc<PortSets>,
    cores: NamedCores,
    choices: ChoiceMaps,
    /// A rule has asked for a choice of cores.
    chooses: AtomicBool,
    cpus: usize,
}

impl MappedFlows {
    fn new(
        skel: &abi::MillraceSkel<'_>,
        c: &FlowCapacity,
        cpus: usize,
        sets: Arc<PortSets>,
    ) -> Result<MappedFlows> {
        let maps = &skel.maps;
        let map = |fd: BorrowedFd<'_>, row_words: usize, rows: usize| {
            Mapping::new(fd, row_words * 8, rows.max(1)).map(Words64::from)
        };
        Ok(MappedFlows {
            regions: [
                map(maps.flow_masks.as_fd(), words::MASK, MASKS)?,
                map(maps.flow_tables.as_fd(), words::TABLE, TABLE_ROWS)?,
                map(maps.flow_index.as_fd(), words::BUCKET, c.buckets)?,
                map(maps.flow_rules.as_fd(), words::RULE, c.rules)?,
                map(maps.flow_rest.as_fd(), words::REST, c.rest)?,
                map(maps.flow_patches.as_fd(), words::PATCH, c.patches)?,
                map(maps.flow_steps.as_fd(), words::STEP, c.steps)?,
                map(maps.flow_groups.as_fd(), words::GROUP, c.groups)?,
                map(maps.flow_meters.as_fd(), words::METER, c.meters)?,
                map(
                    maps.flow_cache.as_fd(),
                    words::CACHED,
                    cpus * c.cache_sets * logic::flow::kernel::CACHE_WAYS,
                )?,
                map(maps.flow_counters.as_fd(), words::COUNT, (cpus + 1) * c.rules)?,
            ],
            scratch: map(maps.flow_scratch.as_fd(), size_of::<types::flow_scratch>() / 8, cpus)?,
            sets,
            cores: NamedCores::default(),
            choices: ChoiceMaps::new(maps)?,
            chooses: AtomicBool::new(false),
            cpus,
        })
    }

    pub(super) fn cores(&self) -> &NamedCores {
        &self.cores
    }

    /// Has any rule asked for a choice of cores since the daemon began? Then flows get the cores of
    /// [`choose`](MappedFlows::choose).
    pub fn chooses(&self) -> bool {
        self.chooses.load(Relaxed)
    }

    /// Makes this core ready for packets, whether rules name it or not.
    ///
    /// # Errors
    /// There is no such core, or no memory.
    pub fn make_ready(&self, core: CoreId) -> Result<()> {
        self.cores.name(core)
    }

    /// The kernel's id of the map by which rules hand packets over; `None` before rules were in charge.
    pub fn core_map(&self) -> Option<u32> {
        self.cores.map()
    }

    /// Packets and flows that were handed to each core that was named or chosen.
    pub fn handed(&self) -> BTreeMap<CoreId, Handed> {
        self.cores.handed()
    }

    /// The number of flows that are on each core by choice. Ends flows without packets for a long time.
    pub fn chosen_flows(&self, now: Duration) -> BTreeMap<CoreId, ChosenFlows> {
        self.choices.look(now, |core, jiffies| self.cores.is_past(core, jiffies))
    }

    /// From now on new flows get the cores of `choices`. Lets flows leave the cores of `leave`.
    ///
    /// # Errors
    /// A core cannot be made ready for packets; nothing has changed.
    pub fn choose(&self, choices: &Choices, leave: &BTreeMap<CoreId, Leave>) -> Result<()> {
        choices.ring.iter().chain(&choices.ring_first).try_for_each(|&core| self.cores.name(core))?;
        self.choices.write_ring(false, &choices.ring);
        self.choices.write_ring(true, &choices.ring_first);
        leave.iter().for_each(|(&core, &leave)| self.cores.let_leave(core, leave));
        Ok(())
    }

    /// Sets the ports that rules send to: number, device, and whether FLOOD reaches it. Packets to other ports are
    /// dropped.
    ///
    /// # Errors
    /// The kernel refuses a set, or a port, which is then left out.
    pub fn set_ports(&self, ports: BTreeMap<RulePort, (u32, bool)>) -> Result<()> {
        self.sets.set_ports(ports)
    }

    /// The ports in this row of `flow_sets`, as the kernel has it. A broadcast reaches all of them except the
    /// ingress port.
    pub fn ports_of_set(&self, row: u32) -> Vec<RulePort> {
        self.sets.ports(row)
    }
}

macro_rules! regions {
    ($($name:ident $at:literal),*) => {
        $(fn $name(&self) -> &[AtomicU64] { self.regions[$at].as_slice() })*
    };
}

impl FlowMemory for MappedFlows {
    regions!(masks 0, tables 1, index 2, rules 3, rest 4, patches 5, steps 6, groups 7, meters 8, cache 9, counters 10);
    fn cpus(&self) -> usize {
        self.cpus
    }
    fn sets(&self) -> usize {
        self.sets.rows()
    }
    fn write_set(&self, row: u32, ports: &Ports) -> bool {
        self.sets
            .write(row, ports)
            .inspect_err(|e| tracing::warn!("cannot write a set of ports for flow rules: {e:#}"))
            .is_ok()
    }
    fn write_core(&self, choice: CoreChoice) -> bool {
        let CoreChoice::This(core) = choice else {
            self.chooses.store(true, Relaxed);
            return true;
        };
        let named = self.cores.name(core);
        named.inspect_err(|e| tracing::warn!("cannot use a core that a flow rule names: {e:#}")).is_ok()
    }
    fn forget_set(&self, row: u32) {
        self.sets.forget(row);
    }
}
