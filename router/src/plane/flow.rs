//! The kernel plane with flow rules in front: another program, `millrace_flow`, on the same tables, attached in place of the
//! first while there are rules. Its own maps exist only then.

use super::{Plane, memory::Mapping, memory::Words64, run::TestRun};
use crate::abi::{self, types};
use anyhow::{Context, Result};
use libbpf_rs::{
    MapCore, MapFlags, MapHandle, MapType, OpenObject, PerfBuffer, PerfBufferBuilder,
    skel::{OpenSkel, SkelBuilder},
};
use logic::flow::{
    Port,
    kernel::{FlowCapacity, FlowMemory, MASKS, Notice, Seed, words},
    program::Ports,
    rule::TABLES,
};
use std::{
    collections::BTreeMap,
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    sync::{Arc, Mutex, atomic::AtomicU64},
    time::Duration,
};

/// The program and the memory of flow rules.
pub struct FlowPlane {
    skel: abi::MillraceSkel<'static>,
    memory: Arc<MappedFlows>,
}

/// What the program made of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowLast {
    pub key: logic::flow::Key,
    /// [`logic::flow::kernel::verdict`].
    pub verdict: u16,
    /// Port id or set.
    pub port: u16,
}

impl FlowPlane {
    /// Loads it beside a plane, with no rules: what misses is dropped. `seed`: of the hashes, random.
    ///
    /// # Errors
    /// A capacity is not possible, or the kernel refuses; the verifier's words are in the chain.
    pub fn load(plane: &Plane, capacity: &FlowCapacity, seed: Seed) -> Result<FlowPlane> {
        // Left behind as in `Plane::load`.
        let storage = Box::leak(Box::new(MaybeUninit::<OpenObject>::uninit()));
        let mut open =
            abi::MillraceSkelBuilder::default().open(storage).context("opening the kernel plane")?;
        super::size(&mut open, &plane.settings, plane.cpus)?;
        share(&mut open, plane)?;
        size(&mut open, capacity, seed, plane.cpus)?;
        for program in [&mut open.progs.millrace, &mut open.progs.millrace_explain] {
            program.set_autoload(false);
        }
        super::losses::leave_out(&mut open);
        let sets = PortSets::new(capacity.port_sets)?;
        open.maps.flow_sets.reuse_fd(sets.outer.as_fd()).context("giving the program its sets of ports")?;
        let skel = open.load().context("loading the kernel plane for flow rules")?;
        let memory = Arc::new(MappedFlows::new(&skel, capacity, plane.cpus, sets)?);
        Ok(FlowPlane { skel, memory })
    }

    /// The memory, for [`logic::flow::kernel::Writer`].
    pub fn memory(&self) -> Arc<MappedFlows> {
        self.memory.clone()
    }

    /// The program, to attach.
    pub fn program(&self) -> BorrowedFd<'_> {
        self.skel.progs.millrace_flow.as_fd()
    }

    /// Reads what the program hands to user space: notices, each with the bytes of the frame that came, and how many were
    /// lost because nobody read in time. At most one reader at a time: another one takes its place.
    ///
    /// # Errors
    /// The kernel refuses a buffer.
    pub fn notices<'a>(
        &self,
        mut told: impl FnMut(Notice, &[u8]) + 'a,
        mut lost: impl FnMut(u64) + 'a,
    ) -> Result<Notices<'a>> {
        let buffer = PerfBufferBuilder::new(&self.skel.maps.flow_notices)
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

    /// What the program made of the last packet on the CPU that this thread runs on.
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

    /// Packets that were answered from the cache, and that were not, summed over CPUs.
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

    /// Runs the program on a frame as if it came in by `ifindex`. The caller must be in the device's namespace.
    pub fn run(&mut self, ifindex: u32, frame: &[u8]) -> Result<TestRun> {
        super::run::run(&mut self.skel.progs.millrace_flow, ifindex, frame)
    }
}

/// Pages of each CPU's buffer of notices, a power of two: room for some 600 packets of 1,500 bytes.
const NOTICE_PAGES: usize = 256;

/// What the program hands to user space; closed when dropped: packets for user space are lost then.
pub struct Notices<'a> {
    buffer: PerfBuffer<'a>,
}

impl Notices<'_> {
    /// Waits until there is something, at most so long, and tells all of it.
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

/// The program reads and counts what the plane does.
fn share(open: &mut abi::OpenMillraceSkel<'_>, plane: &Plane) -> Result<()> {
    super::share_tables(open, plane)?;
    let (theirs, ours) = (&mut open.maps, &plane.skel.maps);
    for (map, fd) in [
        (&mut theirs.counters, ours.counters.as_fd()),
        (&mut theirs.charges, ours.charges.as_fd()),
        (&mut theirs.policers, ours.policers.as_fd()),
    ] {
        map.reuse_fd(fd).context("sharing a map with the program for flow rules")?;
    }
    Ok(())
}

/// Neither the program nor its maps.
pub(super) fn leave_out(open: &mut abi::OpenMillraceSkel<'_>) -> Result<()> {
    open.progs.millrace_flow.set_autoload(false);
    let maps = &mut open.maps;
    for map in [
        &mut maps.flow_masks,
        &mut maps.flow_tables,
        &mut maps.flow_index,
        &mut maps.flow_rules,
        &mut maps.flow_rest,
        &mut maps.flow_patches,
        &mut maps.flow_steps,
        &mut maps.flow_groups,
        &mut maps.flow_meters,
        &mut maps.flow_cache,
        &mut maps.flow_cache_rest,
        &mut maps.flow_seen,
        &mut maps.flow_counters,
        &mut maps.flow_scratch,
        &mut maps.flow_sets,
        &mut maps.flow_notices,
    ] {
        map.set_autocreate(false).context("leaving out a map of flow rules")?;
    }
    Ok(())
}

fn size(open: &mut abi::OpenMillraceSkel<'_>, c: &FlowCapacity, seed: Seed, cpus: usize) -> Result<()> {
    anyhow::ensure!(
        c.buckets.is_power_of_two() && c.cache_sets.is_power_of_two(),
        "flow rules: {} buckets and {} sets of the cache must be powers of two",
        c.buckets,
        c.cache_sets
    );
    anyhow::ensure!(
        c.rules > 1 + usize::from(TABLES) && c.rules.is_multiple_of(4),
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
    let constants = maps.rodata_data.as_deref_mut().context("the kernel plane has no constants")?;
    constants.flow_rows = u32::try_from(c.rules).context("more than 2^32 rules")?;
    constants.flow_cache_mask = u32::try_from(c.cache_sets).context("a cache of more than 2^32 sets")? - 1;
    constants.flow_seen_mask = SEEN as u32 - 1;
    constants.flow_seed = seed.0;
    Ok(())
}

/// Lines of tags of flows seen once, per CPU: 65,536 tags.
const SEEN: usize = 1 << 11;

/// [`FlowMemory`] over the maps.
pub struct MappedFlows {
    regions: [Words64; 11],
    scratch: Words64,
    sets: PortSets,
    cpus: usize,
}

impl MappedFlows {
    fn new(
        skel: &abi::MillraceSkel<'_>,
        c: &FlowCapacity,
        cpus: usize,
        sets: PortSets,
    ) -> Result<MappedFlows> {
        let maps = &skel.maps;
        let map = |fd: BorrowedFd<'_>, row_words: usize, rows: usize| {
            Mapping::new(fd, row_words * 8, rows.max(1)).map(Words64::from)
        };
        Ok(MappedFlows {
            regions: [
                map(maps.flow_masks.as_fd(), words::MASK, MASKS)?,
                map(maps.flow_tables.as_fd(), words::TABLE, TABLES.into())?,
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
            cpus,
        })
    }

    /// The ports there are: number, device, and whether FLOOD reaches it. All sets are written again.
    ///
    /// # Errors
    /// The kernel refuses a set.
    pub fn set_ports(&self, ports: BTreeMap<Port, (u32, bool)>) -> Result<()> {
        self.sets.set_ports(ports)
    }

    /// The ports that a broadcast to this row of `flow_sets` reaches, the one it came in by among them.
    pub fn ports_of_set(&self, row: u32) -> Vec<Port> {
        let state = self.sets.state.lock().unwrap_or_else(|e| e.into_inner());
        let set = state.sets.get(&row);
        set.into_iter().flat_map(|set| members(set, &state.ports)).map(|(port, _)| port).collect()
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
        self.sets.rows
    }
    fn write_set(&self, row: u32, ports: &Ports) -> bool {
        self.sets
            .write(row, ports)
            .inspect_err(|e| tracing::warn!("a set of ports for flow rules: {e:#}"))
            .is_ok()
    }
}

/// Sets of ports, a device map each, in a map of maps.
struct PortSets {
    outer: MapHandle,
    rows: usize,
    state: Mutex<SetState>,
}

#[derive(Default)]
struct SetState {
    ports: BTreeMap<Port, (u32, bool)>,
    sets: BTreeMap<u32, Ports>,
}

impl PortSets {
    fn new(rows: usize) -> Result<PortSets> {
        let rows = rows.max(1);
        let template = device_map()?;
        let opts = libbpf_rs::libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
            inner_map_fd: template.as_fd().as_raw_fd() as u32,
            ..Default::default()
        };
        let outer = MapHandle::create(MapType::ArrayOfMaps, Some("flow_sets"), 4, 4, rows as u32, &opts)
            .context("creating the map of sets of ports")?;
        Ok(PortSets { outer, rows, state: Mutex::default() })
    }

    fn write(&self, row: u32, ports: &Ports) -> Result<()> {
        let mut state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        self.publish(row, ports, &state.ports)?;
        state.sets.insert(row, ports.clone());
        Ok(())
    }

    fn set_ports(&self, ports: BTreeMap<Port, (u32, bool)>) -> Result<()> {
        let mut state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        state.ports = ports;
        state.sets.iter().try_for_each(|(row, set)| self.publish(*row, set, &state.ports))
    }

    /// A new map in the place of the old one: a packet sees the one or the other.
    fn publish(&self, row: u32, set: &Ports, known: &BTreeMap<Port, (u32, bool)>) -> Result<()> {
        let map = device_map()?;
        for (slot, (port, ifindex)) in members(set, known).enumerate() {
            let value = u64::from(ifindex).to_le_bytes();
            map.update(&(slot as u32).to_ne_bytes(), &value, MapFlags::ANY)
                .with_context(|| format!("adding port {port} (device {ifindex}) to a set"))?;
        }
        let inner = map.as_fd().as_raw_fd().to_ne_bytes();
        self.outer.update(&row.to_ne_bytes(), &inner, MapFlags::ANY).context("replacing a set of ports")
    }
}

/// The ports of a set, and their devices.
fn members(set: &Ports, known: &BTreeMap<Port, (u32, bool)>) -> impl Iterator<Item = (Port, u32)> {
    let reached = known.iter().filter(move |(port, (_, floods))| match set {
        Ports::All => true,
        Ports::Flood => *floods,
        Ports::These(these) => these.contains(port),
    });
    reached.map(|(port, (ifindex, _))| (*port, *ifindex))
}

fn device_map() -> Result<MapHandle> {
    let opts = libbpf_rs::libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
        ..Default::default()
    };
    MapHandle::create(MapType::Devmap, Some("flow_set"), 4, 8, super::MAX_PORTS as u32, &opts)
        .context("creating a set of ports")
}
