//! Paths of the user plane, as the kernel plane gives packets to them (`bpf/path.h`): classes, workers' sockets,
//! and counts. [`PathMaps`] are made once and outlive generations. [`PathsPlane`] is the program of a generation,
//! attached while there are paths.

use super::{
    Grace, MAX_PORTS, Plane,
    memory::{Mapping, Words64},
    run::TestRun,
    variants::Variant,
};
use crate::abi::{self, types};
use anyhow::{Context, Result, ensure};
use libbpf_rs::{
    Link, MapCore, MapFlags, MapHandle, OpenObject,
    skel::{OpenSkel, SkelBuilder},
};
use logic::{
    paths::{
        PathId,
        rows::{MOST_PATHS, PathClass, Rows, words},
    },
    plan::{PortId, RouterId},
    reason::Reason,
    tables::encoding::MAX_QUEUES,
};
use std::{
    collections::BTreeMap,
    mem::{MaybeUninit, offset_of},
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

/// Words of `struct path_control` and `struct path_count`.
const HALF: usize = offset_of!(types::path_control, half) / 8;
const MOST_BYTES: usize = offset_of!(types::path_control, most_bytes) / 8;
const SOCKETS: usize = offset_of!(types::path_control, sockets) / 8;
const HELD: usize = offset_of!(types::path_control, held) / 8;
const DROPS: usize = offset_of!(types::path_control, drops) / 8;
const COUNT: usize = size_of::<types::path_count>() / 8;

/// The reasons why no worker gets a packet, in the order of `struct path_count`.
pub const NOT_GIVEN: [Reason; 4] =
    [Reason::PathUnsure, Reason::PathFrameTooLong, Reason::PathNoWorker, Reason::PathUnseen];

/// Packets of a path, since the maps were made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathCounts {
    /// Packets that were given to its worker.
    pub packets: u64,
    pub bytes: u64,
    /// Packets that were given and lost because its ring was full (`receive_ring_full` of its sockets).
    pub ring_full: u64,
    /// Packets that were given and lost because the socket refused them for another reason.
    pub refused: u64,
    /// Packets that no worker got and that went on as if there were no path, by [`NOT_GIVEN`].
    pub up: [u64; 4],
    /// Packets that no worker got and that were dropped, by [`NOT_GIVEN`].
    pub dropped: [u64; 4],
}

/// The maps of paths. Workers put their sockets in from their own threads.
pub struct PathMaps {
    /// In the order of `path_maps!`.
    handles: Vec<MapHandle>,
    sockets: MapHandle,
    control: Words64,
    classes: Words64,
    counts: Words64,
    cpus: usize,
    /// Locked while classes change.
    writing: Mutex<Writing>,
    /// There are classes.
    some: AtomicBool,
    /// Why losses are not counted by path, as a sentence.
    condition: Option<String>,
}

struct Writing {
    grace: Grace,
    _losses: Option<Link>,
}

/// Every map of paths, always in the same order.
macro_rules! path_maps {
    ($maps:expr $(, $mutable:tt)?) => {
        [
            &$($mutable)? $maps.path_control,
            &$($mutable)? $maps.path_classes,
            &$($mutable)? $maps.path_counts,
            &$($mutable)? $maps.path_scratch,
            &$($mutable)? $maps.path_sockets,
        ]
    };
}

impl PathMaps {
    /// Makes the maps, without classes. `most_bytes`: the longest frame that fits into a worker's frame.
    ///
    /// # Errors
    /// The kernel lacks memory.
    pub fn new(most_bytes: u32) -> Result<PathMaps> {
        let cpus = libbpf_rs::num_possible_cpus().context("counting CPUs")?;
        let mut storage = MaybeUninit::<OpenObject>::uninit();
        let mut open =
            abi::MillraceSkelBuilder::default().open(&mut storage).context("opening the kernel plane")?;
        Variant::PathMaps.select(&mut open)?;
        size(&mut open, cpus)?;
        let skel = open.load().context("making the maps of paths")?;
        let maps = &skel.maps;
        let losses = if skel.progs.lost_to_path.autoload() {
            skel.progs.lost_to_path.attach_trace().map_err(|e| e.to_string())
        } else {
            Err("this kernel has no such tracepoint".into())
        };
        let condition = losses.as_ref().err().map(|why| {
            format!("packets lost to full rings of paths cannot be counted by xdp_redirect_err: {why}")
        });
        let handles = path_maps!(maps).into_iter().map(MapHandle::try_from);
        let handles = handles.collect::<Result<Vec<_>, _>>().context("keeping the maps of paths")?;
        let map =
            |fd: BorrowedFd<'_>, row: usize, rows: usize| Mapping::new(fd, row, rows).map(Words64::from);
        let control = map(maps.path_control.as_fd(), size_of::<types::path_control>(), 1)?;
        control.store(MOST_BYTES, most_bytes.into());
        let id = maps.path_sockets.info().context("asking for the map of workers' sockets")?.info.id;
        control.store(SOCKETS, id.into());
        Ok(PathMaps {
            sockets: MapHandle::try_from(&maps.path_sockets)
                .context("keeping the map of workers' sockets")?,
            control,
            classes: map(maps.path_classes.as_fd(), words::CLASSES * 8, 2)?,
            counts: map(maps.path_counts.as_fd(), COUNT * 8, cpus * MOST_PATHS)?,
            cpus,
            writing: Mutex::new(Writing { grace: Grace::new()?, _losses: losses.ok() }),
            some: AtomicBool::new(false),
            condition,
            handles,
        })
    }

    /// Sets the classes, in this order. Each packet meets either all old classes or all new ones. `own`: by port,
    /// the router of packets to no interface.
    ///
    /// # Errors
    /// A class is not possible, or the kernel cannot wait for running programs; nothing has changed.
    pub fn set_classes(&self, classes: &[PathClass], own: &BTreeMap<PortId, RouterId>) -> Result<()> {
        self.set_rows(&Rows::new(classes)?, own)
    }

    /// Sets the paths whose packets from flow rules are dropped if no worker gets them. Those of other paths are
    /// routed.
    pub fn set_drops(&self, paths: impl IntoIterator<Item = PathId>) {
        self.control.store(DROPS, paths.into_iter().fold(0, |bits, path| bits | 1 << path));
    }

    /// As [`PathMaps::set_classes`], with given rows: for measurements.
    #[doc(hidden)]
    pub fn set_rows(&self, rows: &Rows, own: &BTreeMap<PortId, RouterId>) -> Result<()> {
        let writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let half = 1 - (self.control.load(HALF) & 1);
        // A packet that came before the last change may still use this half.
        writing.grace.wait().context("waiting for packets that still use older classes")?;
        let at = half as usize * words::CLASSES;
        let words = rows.words(|port| own.get(&port).copied());
        words.into_iter().enumerate().for_each(|(i, word)| self.classes.store(at + i, word));
        self.control.store(HALF, half);
        self.some.store(!rows.is_empty(), Relaxed);
        Ok(())
    }

    /// Is any class in force? If not, the program with paths need not be attached.
    pub fn has_classes(&self) -> bool {
        self.some.load(Relaxed)
    }

    /// From now on packets of this path that come in by this queue of a port go to this socket. The socket must be
    /// of the same queue, and its fill ring must have frames.
    ///
    /// # Errors
    /// There is no such slot, or the kernel refuses the socket.
    pub fn put(&self, port: PortId, queue: u32, path: PathId, socket: BorrowedFd<'_>) -> Result<()> {
        let slot = slot(port, queue, path)?;
        self.sockets
            .update(&slot.to_ne_bytes(), &socket.as_raw_fd().to_ne_bytes(), MapFlags::ANY)
            .with_context(|| {
                format!("giving packets of path {path}, port {port} and queue {queue} to a worker")
            })
    }

    /// From now on these packets go to no socket. Until [`PathMaps::settle`] returns, packets on their way may
    /// still come.
    ///
    /// # Errors
    /// There is no such slot, or the kernel refuses.
    pub fn take(&self, port: PortId, queue: u32, path: PathId) -> Result<()> {
        let slot = slot(port, queue, path)?;
        match self.sockets.delete(&slot.to_ne_bytes()) {
            Err(e) if e.kind() != libbpf_rs::ErrorKind::NotFound => Err(e).with_context(|| {
                format!("taking packets of path {path}, port {port} and queue {queue} from a worker")
            }),
            _ => Ok(()),
        }
    }

    /// Returns when no packet is on its way any more by classes and slots that were in force before the call. All such
    /// packets are in their rings then.
    ///
    /// # Errors
    /// The kernel cannot wait.
    pub fn settle(&self) -> Result<()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner).grace.wait()
    }

    /// Stops giving packets to workers ([`Reason::PathUnsure`]), or begins again: for the time in which the tables
    /// of workers are not kept up to date.
    pub fn hold(&self, holds: bool) {
        self.control.store(HELD, holds.into());
    }

    /// The counts of every path, by its number.
    pub fn counts(&self) -> Vec<PathCounts> {
        let count = |path: usize| {
            let sum = |field: usize| {
                let word = |cpu: usize| self.counts.load((cpu * MOST_PATHS + path) * COUNT + field / 8);
                (0..self.cpus).map(word).sum::<u64>()
            };
            let four = |field: usize| std::array::from_fn(|i| sum(field + 8 * i));
            PathCounts {
                packets: sum(offset_of!(types::path_count, packets)),
                bytes: sum(offset_of!(types::path_count, bytes)),
                ring_full: sum(offset_of!(types::path_count, ring_full)),
                refused: sum(offset_of!(types::path_count, refused)),
                up: four(offset_of!(types::path_count, up)),
                dropped: four(offset_of!(types::path_count, dropped)),
            }
        };
        (0..MOST_PATHS).map(count).collect()
    }

    /// Why losses cannot be counted, as a sentence.
    pub fn condition(&self) -> Option<&str> {
        self.condition.as_deref()
    }
}

fn slot(port: PortId, queue: u32, path: PathId) -> Result<u32> {
    let (port, path) = (u32::from(port), u32::from(path));
    let (ports, queues, paths) = (MAX_PORTS as u32, MAX_QUEUES as u32, MOST_PATHS as u32);
    ensure!(
        port < ports && queue < queues && path < paths,
        "port {port}, queue {queue}, path {path}: there are {ports} ports with {queues} queues and {paths} paths at most"
    );
    Ok((port * queues + queue) * paths + path)
}

/// Sets the sizes of the maps that have rows for each CPU.
fn size(open: &mut abi::OpenMillraceSkel<'_>, cpus: usize) -> Result<()> {
    let rows = u32::try_from(cpus * MOST_PATHS).context("more than 2^32 CPUs")?;
    open.maps.path_counts.set_max_entries(rows).context("sizing a map")?;
    open.maps.path_scratch.set_max_entries(cpus as u32).context("sizing a map")
}

/// Leaves out all maps of paths, for a load without them.
pub(super) fn leave_out(open: &mut abi::OpenMillraceSkel<'_>) -> Result<()> {
    for map in path_maps!(open.maps, mut) {
        map.set_autocreate(false).context("leaving out a map of paths")?;
    }
    Ok(())
}

/// Makes a program use these classes; `None`: no classes, with empty maps of its own.
pub(super) fn share(open: &mut abi::OpenMillraceSkel<'_>, ours: Option<&PathMaps>) -> Result<()> {
    let Some(ours) = ours else {
        return open.maps.path_sockets.set_max_entries(1).context("sizing a map");
    };
    for (map, handle) in path_maps!(open.maps, mut).into_iter().zip(&ours.handles) {
        map.reuse_fd(handle.as_fd()).context("sharing a map of paths")?;
    }
    Ok(())
}

/// The program with paths, loaded for one generation of routing tables.
pub struct PathsPlane {
    skel: abi::MillraceSkel<'static>,
    maps: Arc<PathMaps>,
}

impl PathsPlane {
    /// Loads it beside a plane.
    ///
    /// # Errors
    /// The kernel refuses; the verifier's message is in the chain.
    pub fn load(plane: &Plane, maps: &Arc<PathMaps>) -> Result<PathsPlane> {
        // Leaked as in `Plane::load`.
        let storage = Box::leak(Box::new(MaybeUninit::<OpenObject>::uninit()));
        let mut open =
            abi::MillraceSkelBuilder::default().open(storage).context("opening the kernel plane")?;
        super::size(&mut open, &plane.settings, plane.cpus)?;
        super::share_with_counts(&mut open, plane)?;
        Variant::Paths.select(&mut open)?;
        share(&mut open, Some(maps))?;
        let skel = open.load().context("loading the kernel plane for paths")?;
        Ok(PathsPlane { skel, maps: maps.clone() })
    }

    /// The maps that it uses.
    pub fn maps(&self) -> &Arc<PathMaps> {
        &self.maps
    }

    /// The program, to attach.
    pub fn program(&self) -> BorrowedFd<'_> {
        self.skel.progs.millrace_paths.as_fd()
    }

    pub(super) fn run_from(&mut self, ifindex: u32, queue: u32, frame: &[u8]) -> Result<TestRun> {
        super::run::run_from(&mut self.skel.progs.millrace_paths, ifindex, queue, frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_in_the_order_of_the_counts() {
        for (i, reason) in NOT_GIVEN.into_iter().enumerate() {
            assert_eq!(reason as usize, NOT_GIVEN[0] as usize + i);
        }
    }

    #[test]
    fn slots_are_of_port_queue_and_path() {
        assert_eq!(slot(0, 0, 0).unwrap(), 0);
        assert_eq!(slot(63, 63, 63).unwrap(), 64 * 64 * 64 - 1);
        assert_eq!(slot(1, 2, 3).unwrap(), (64 + 2) * 64 + 3);
        for (port, queue, path) in [(64, 0, 0), (0, 64, 0), (0, 0, 64)] {
            assert!(slot(port, queue, path).unwrap_err().to_string().contains("64 queues"));
        }
    }
}
