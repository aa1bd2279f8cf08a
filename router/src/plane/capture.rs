//! Captures and samples of packets (`bpf/capture.h`): their maps, which outlive generations, and the program that has them. It
//! replaces the program without `capture` while packets are captured or sampled.

use super::{
    MAX_PORTS, Plane,
    connections::make,
    flow_maps::{self, FlowMaps},
    memory::{Mapping, Words64},
    paths,
    variants::Variant,
};
use crate::{
    abi::{self, types},
    base::guard::locked,
};
use anyhow::{Context, Result, anyhow, ensure};
use libbpf_rs::{
    AsRawLibbpf, MapHandle, MapType, OpenObject, RingBufferBuilder,
    libbpf_sys::{self as sys, bpf_insn},
    skel::{OpenSkel, Skel, SkelBuilder},
};
use logic::{
    capture::{filter::ROOM, record::Record},
    plan::{PortId, RouterId},
    reason::Reason,
};
use std::{
    collections::BTreeSet,
    ffi::CString,
    io,
    mem::{MaybeUninit, offset_of},
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, Mutex},
    time::Duration,
};

/// `CAPTURE_RING_BYTES`
pub(crate) const RING_BYTES: u32 = 8 << 20;
/// `SAMPLE_RING_BYTES`
pub(crate) const SAMPLE_RING_BYTES: u32 = 1 << 20;
/// `CAPTURE_FILTER_MARK`
pub(crate) const MARK: i32 = 1_836_213_104;
/// The instruction `goto +0`.
const NOTHING: bpf_insn = bpf_insn {
    code: 5,
    _bitfield_align_1: [],
    _bitfield_1: sys::__BindgenBitfieldUnit::new([0]),
    off: 0,
    imm: 0,
};

/// Which packets are captured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The result of [`logic::capture::filter::compile`]; empty: all packets.
    pub filter: Vec<u64>,
    /// Routing alone cannot make a packet match ([`logic::capture::routed::can_match_later`]), so the filter does not run again.
    pub filter_once: bool,
    /// Where they come in or leave; empty: anywhere.
    pub ports: BTreeSet<PortId>,
    /// The router that they are for; `None`: any or none.
    pub router: Option<RouterId>,
    /// Why they were not forwarded; empty: any, and those that were forwarded.
    pub reasons: BTreeSet<Reason>,
    /// The most bytes of each frame.
    pub most_bytes: u32,
    /// The most packets per second of each CPU.
    pub pps: u32,
}

/// Packets that are missing in captures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// They exceeded [`Wanted::pps`].
    pub over_rate: u64,
    /// Nobody read the ring in time.
    pub no_room: u64,
}

/// The maps. There is one capture and one sampler at a time.
pub struct CaptureMaps {
    control: MapHandle,
    words: Words64,
    rows: MapHandle,
    counts: Words64,
    cpus: usize,
    ring: MapHandle,
    samples: MapHandle,
    /// The instructions of the filter.
    filter: Mutex<Vec<u64>>,
}

impl CaptureMaps {
    /// # Errors
    /// The kernel lacks memory or capabilities.
    pub fn new() -> Result<CaptureMaps> {
        let cpus = libbpf_rs::num_possible_cpus().context("counting CPUs")?;
        let mapped = |name, bytes: usize, rows: usize| -> Result<(MapHandle, Words64)> {
            let map = make(MapType::Array, name, (4, bytes as u32), rows as u32, sys::BPF_F_MMAPABLE)?;
            let words = Mapping::new(map.as_fd(), bytes, rows)?.into();
            Ok((map, words))
        };
        let (control, words) = mapped("capture_control", size_of::<types::capture_control>(), 1)?;
        let (rows, counts) = mapped("capture_rows", size_of::<types::capture_row>(), cpus)?;
        let ring = make(MapType::RingBuf, "capture_ring", (0, 0), RING_BYTES, 0)?;
        let samples = make(MapType::RingBuf, "sample_ring", (0, 0), SAMPLE_RING_BYTES, 0)?;
        Ok(CaptureMaps { control, words, rows, counts, cpus, ring, samples, filter: Mutex::default() })
    }

    /// Ends the capture, and sets which packets the next one takes. It begins with [`CaptureMaps::begin`], when
    /// [`Plane::set_capture`] has loaded the filter and the program is attached. Until then, the attached program has an earlier
    /// filter.
    pub fn want(&self, wanted: Option<&Wanted>) {
        let put = |offset: usize, value: u64| self.words.store(offset / 8, value);
        put(offset_of!(types::capture_control, capturing), 0);
        let Some(wanted) = wanted else { return };
        let bits = |all: &BTreeSet<PortId>| {
            all.iter().fold(0, |bits, port| bits | 1 << (usize::from(*port) % MAX_PORTS))
        };
        put(
            offset_of!(types::capture_control, ports),
            if wanted.ports.is_empty() { u64::MAX } else { bits(&wanted.ports) },
        );
        let reasons = match wanted.reasons.is_empty() {
            true => [u64::MAX; 2],
            false => [wanted.reasons.iter().fold(0, |bits, reason| bits | 1 << (*reason as u64)), 0],
        };
        put(offset_of!(types::capture_control, reasons), reasons[0]);
        put(offset_of!(types::capture_control, reasons) + 8, reasons[1]);
        put(
            offset_of!(types::capture_control, router),
            wanted.router.map_or(0, |router| u64::from(router) + 1),
        );
        put(offset_of!(types::capture_control, filter_once), wanted.filter_once.into());
        put(offset_of!(types::capture_control, most_bytes), wanted.most_bytes.into());
        let cost_ns = super::cost_ns(wanted.pps);
        put(offset_of!(types::capture_control, cost_ns), cost_ns);
        put(offset_of!(types::capture_control, burst_ns), super::BURST_NS.max(cost_ns));
        *locked(&self.filter) = wanted.filter.clone();
    }

    /// Begins the capture.
    pub fn begin(&self) {
        self.words.store(offset_of!(types::capture_control, capturing) / 8, 1);
    }

    /// Samples one in this many packets; 0: none.
    pub fn sample(&self, every: u32) {
        self.words.store(offset_of!(types::capture_control, sample_every) / 8, every.into());
    }

    /// All packets match, until [`CaptureMaps::want`] sets another filter.
    pub fn forget_filter(&self) {
        locked(&self.filter).clear();
    }

    /// Packets that were not put into the ring of captures since it was made.
    pub fn missing(&self) -> Missing {
        Missing {
            over_rate: self.sum(offset_of!(types::capture_row, over_rate)),
            no_room: self.sum(offset_of!(types::capture_row, no_room)),
        }
    }

    /// Samples that were not put into their ring since it was made.
    pub fn samples_lost(&self) -> u64 {
        self.sum(offset_of!(types::capture_row, samples_lost))
    }

    fn sum(&self, offset: usize) -> u64 {
        let words = size_of::<types::capture_row>() / 8;
        (0..self.cpus).map(|cpu| self.counts.load(cpu * words + offset / 8)).sum()
    }

    /// Calls `run` with a function that hands each captured packet since its last call to `each`. `each` returns false to end the
    /// call: packets may come as fast as they are read. There is one reader at a time.
    ///
    /// # Errors
    /// The ring cannot be mapped, or an error of `run`.
    pub fn follow<T>(
        &self,
        each: impl FnMut(&Record<'_>) -> bool,
        run: impl FnOnce(&mut dyn FnMut()) -> Result<T>,
    ) -> Result<T> {
        follow(&self.ring, each, run)
    }

    /// As [`CaptureMaps::follow`], with samples.
    ///
    /// # Errors
    /// As there.
    pub fn follow_samples<T>(
        &self,
        each: impl FnMut(&Record<'_>) -> bool,
        run: impl FnOnce(&mut dyn FnMut()) -> Result<T>,
    ) -> Result<T> {
        follow(&self.samples, each, run)
    }

    fn share(&self, open: &mut abi::OpenMillraceSkel<'_>) -> Result<()> {
        for (map, ours) in [
            (&mut open.maps.capture_control, &self.control),
            (&mut open.maps.capture_rows, &self.rows),
            (&mut open.maps.capture_ring, &self.ring),
            (&mut open.maps.sample_ring, &self.samples),
        ] {
            map.reuse_fd(ours.as_fd()).context("sharing a map of captures")?;
        }
        Ok(())
    }
}

fn follow<T>(
    ring: &MapHandle,
    mut each: impl FnMut(&Record<'_>) -> bool,
    run: impl FnOnce(&mut dyn FnMut()) -> Result<T>,
) -> Result<T> {
    let mut reader = RingBufferBuilder::new();
    reader.add(ring, |bytes| {
        // libbpf stops behind a packet for which this is below 0.
        if Record::read(bytes).is_none_or(|record| each(&record)) { 0 } else { -1 }
    })?;
    let reader = reader.build().context("reading captured packets")?;
    run(&mut || {
        reader.consume_raw();
    })
}

/// Loads without captures have no such maps.
pub(super) fn leave_out(open: &mut abi::OpenMillraceSkel<'_>) -> Result<()> {
    for map in [
        &mut open.maps.capture_control,
        &mut open.maps.capture_rows,
        &mut open.maps.capture_ring,
        &mut open.maps.sample_ring,
    ] {
        map.set_autocreate(false).context("leaving out a map of captures")?;
    }
    Ok(())
}

/// The program with captures, loaded for one generation and one filter.
pub(super) struct CapturePlane {
    skel: abi::MillraceSkel<'static>,
    /// What it was loaded for.
    pub variant: Variant,
    filter: Vec<u64>,
    rules: Option<Arc<FlowMaps>>,
}

impl CapturePlane {
    /// Loads it beside a plane.
    ///
    /// # Errors
    /// The kernel refuses, perhaps because of the filter; the verifier's message is in the chain.
    pub fn load(plane: &Plane, maps: &CaptureMaps, variant: Variant) -> Result<CapturePlane> {
        let filter = locked(&maps.filter).clone();
        // Leaked as in `Plane::load`.
        let storage = Box::leak(Box::new(MaybeUninit::<OpenObject>::uninit()));
        let mut open =
            abi::MillraceSkelBuilder::default().open(storage).context("opening the kernel plane")?;
        super::size(&mut open, &plane.settings, plane.cpus)?;
        super::share_with_counts(&mut open, plane)?;
        variant.select(&mut open)?;
        if variant.has_rules() {
            let rules = plane.rules.as_ref().context("there are no flow rules")?;
            flow_maps::share(&mut open, rules.maps())?;
            open.maps.rule_cores.reuse_fd(rules.cores_map()).context("sharing the map of cores")?;
        }
        if variant.has_paths() {
            let paths = plane.path_maps().context("there are no paths")?;
            paths::share(&mut open, Some(paths))?;
        }
        maps.share(&mut open)?;
        put_filter(&mut open, variant.programs()[0], &filter)?;
        let skel = open.load().context("loading the kernel plane with a capture")?;
        Ok(CapturePlane {
            skel,
            variant,
            filter,
            rules: plane.rules.as_ref().map(|rules| rules.maps().clone()),
        })
    }

    fn fits(&self, plane: &Plane, variant: Variant, maps: &CaptureMaps) -> bool {
        let same_rules = match (&self.rules, &plane.rules) {
            (Some(ours), Some(theirs)) => Arc::ptr_eq(ours, theirs.maps()),
            (None, None) => true,
            _ => !variant.has_rules(),
        };
        self.variant == variant && same_rules && self.filter == *locked(&maps.filter)
    }

    /// The program, to attach.
    pub fn program(&self) -> BorrowedFd<'_> {
        let programs = &self.skel.progs;
        match self.variant {
            Variant::RulesCapture => programs.millrace_flow_capture.as_fd(),
            Variant::RulesAndPathsCapture => programs.millrace_flow_paths_capture.as_fd(),
            Variant::PathsCapture => programs.millrace_paths_capture.as_fd(),
            _ => programs.millrace_capture.as_fd(),
        }
    }
}

/// Puts the instructions of a filter into the room that `capture_filter` has for them.
fn put_filter(open: &mut abi::OpenMillraceSkel<'_>, program: &str, filter: &[u64]) -> Result<()> {
    if filter.is_empty() {
        return Ok(());
    }
    ensure!(
        filter.len() <= ROOM,
        "the filter has {} instructions, and there is room for {ROOM}",
        filter.len()
    );
    let object = open.open_object_mut().as_libbpf_object();
    let name = CString::new(program)?;
    // SAFETY: an open object, which has not been loaded. After this call its programs are complete: libbpf has put the functions
    // behind them, and the numbers of the maps into them.
    let rc = unsafe { sys::bpf_object__prepare(object.as_ptr()) };
    if rc < 0 {
        return Err(io::Error::from_raw_os_error(-rc)).context("preparing the kernel plane");
    }
    // SAFETY: a prepared object, and a name that ends with NUL. The program belongs to the object.
    let found = unsafe { sys::bpf_object__find_program_by_name(object.as_ptr(), name.as_ptr()) };
    ensure!(!found.is_null(), "the kernel plane has no program {program}");
    // SAFETY: a program of the object, whose instructions stay where they are until they are set below.
    let mut instructions = unsafe {
        let first = sys::bpf_program__insns(found);
        std::slice::from_raw_parts(first, sys::bpf_program__insn_cnt(found) as usize).to_vec()
    };
    replace(&mut instructions, filter)?;
    // SAFETY: libbpf copies this many instructions.
    let rc = unsafe {
        sys::bpf_program__set_insns(found, instructions.as_mut_ptr(), instructions.len() as sys::size_t)
    };
    if rc < 0 {
        return Err(io::Error::from_raw_os_error(-rc)).context("putting the filter into the program");
    }
    Ok(())
}

/// Instructions before the unused room: the mark, and the jump over the room.
const BEFORE_ROOM: usize = 3;

fn replace(instructions: &mut [bpf_insn], filter: &[u64]) -> Result<()> {
    let is_room = |at: usize| {
        let room = instructions.get(at + BEFORE_ROOM..at + BEFORE_ROOM + ROOM)?;
        room.iter().all(|i| i.code == NOTHING.code && i.off == 0).then_some(at)
    };
    let marked = instructions.iter().enumerate().filter(|(_, i)| i.code == 0xb4 && i.imm == MARK);
    let rooms: Vec<usize> = marked.filter_map(|(at, _)| is_room(at)).collect();
    let [at] = rooms[..] else { return Err(anyhow!("the program has {} rooms for a filter", rooms.len())) };
    // The jump moves to the end of the filter.
    let [zero, mut jump] = [instructions[at + 1], instructions[at + 2]];
    instructions[at..at + BEFORE_ROOM].fill(NOTHING);
    let end = at + filter.len();
    jump.off = (at + BEFORE_ROOM + ROOM - (end + 2)) as i16;
    instructions[end..end + 2].copy_from_slice(&[zero, jump]);
    for (to, word) in instructions[at..].iter_mut().zip(filter) {
        to.code = *word as u8;
        to.set_dst_reg((*word >> 8) as u8 & 15);
        to.set_src_reg((*word >> 12) as u8 & 15);
        to.off = (*word >> 16) as i16;
        to.imm = (*word >> 32) as i32;
    }
    Ok(())
}

impl Plane {
    /// From now on [`Plane::program`] is the one with captures, or the one without. It loads that program, if the present one
    /// has another filter or does not fit.
    ///
    /// # Errors
    /// The program cannot be loaded; then it is the one without captures.
    pub fn set_capture(&mut self, maps: Option<&Arc<CaptureMaps>>) -> Result<()> {
        let Some(maps) = maps else {
            self.capture = None;
            return Ok(());
        };
        let variant = self.capture_variant();
        if self.capture.as_ref().is_some_and(|capture| capture.fits(self, variant, maps)) {
            return Ok(());
        }
        self.capture = None;
        self.capture = Some(CapturePlane::load(self, maps, variant)?);
        Ok(())
    }

    /// The variant with captures of the program that is to be attached.
    pub(super) fn capture_variant(&self) -> Variant {
        match (self.rules.is_some() && self.by_rules, self.paths.is_some()) {
            (true, true) => Variant::RulesAndPathsCapture,
            (true, false) => Variant::RulesCapture,
            (false, true) if self.with_paths => Variant::PathsCapture,
            _ => Variant::RoutingCapture,
        }
    }

    /// Runs the program with captures on a frame. The caller must be in the device's namespace.
    #[doc(hidden)]
    pub fn run_captured(&mut self, ifindex: u32, frame: &[u8]) -> Result<super::TestRun> {
        let capture = self.capture.as_mut().context("nothing is captured")?;
        let name = capture.variant.programs()[0];
        let mut program = capture.skel.object_mut().progs_mut().find(|program| program.name() == name);
        let program = program.as_mut().with_context(|| format!("there is no program {name}"))?;
        super::run::run(program, ifindex, frame)
    }
}

/// How long packets may wait in the ring.
pub const READ_EVERY: Duration = Duration::from_millis(20);
