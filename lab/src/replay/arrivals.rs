//! What arrives at the sink while something is replayed (replay.bpf.c).

use std::{cell::RefCell, time::Duration};

use anyhow::{Context, Result};
use libbpf_rs::{
    Link, RingBuffer, RingBufferBuilder,
    skel::{OpenSkel, SkelBuilder},
};

use crate::{
    bpf::{self, replay as skeleton},
    testbed::Testbed,
};

/// What is noted of each frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// All of it.
    Frames,
    /// The marks of those that have one.
    Marks,
}

/// A marked frame that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marked {
    /// Its number in the run.
    pub sequence: u32,
    /// From the time that it was marked with.
    pub latency_ns: u32,
    /// Length of the frame.
    pub bytes: u32,
    /// When it arrived (CLOCK_MONOTONIC).
    pub time_ns: u64,
}

/// What arrived during a run.
#[derive(Clone, Debug, Default)]
pub struct Arrivals {
    /// All frames.
    pub packets: u64,
    /// Those that the sink could not note, or not wholly: what is told of the others is not exact.
    pub missed: u64,
    /// In the order of their arrival, with their times (CLOCK_MONOTONIC), if frames are noted.
    pub frames: Vec<(u64, Vec<u8>)>,
    /// The same, if marks are.
    pub marks: Vec<Marked>,
}

/// struct arrival: time, length of the frame, padding.
const HEAD: usize = 16;

/// The program at the sink. Dropped, it detaches.
pub(super) struct ReplaySink {
    skeleton: skeleton::ReplaySkel<'static>,
    _link: Link,
}

impl ReplaySink {
    /// Takes the place of the testbed's sink on the last port, for good.
    pub(super) fn attach(testbed: &mut Testbed) -> Result<Self> {
        let open = skeleton::ReplaySkelBuilder::default().open(bpf::storage())?;
        let skeleton = open.load().context("sink of a replay")?;
        testbed.sink.leave_last();
        let ends = testbed.host_ends();
        let (namespace, device) = ends.last().context("a testbed without ports")?;
        let index = namespace.interface_index(device)? as i32;
        let attach =
            || skeleton.progs.replay_sink.attach_xdp(index).context("attaching the sink of a replay");
        let link = namespace.enter(attach)?;
        Ok(Self { skeleton, _link: link })
    }

    /// What arrives while `run` runs; it must let what has arrived be taken, again and again, until all has.
    pub(super) fn arrivals(
        &mut self,
        noted: Noted,
        run: impl FnOnce(&mut dyn FnMut(Duration) -> Result<u64>) -> Result<()>,
    ) -> Result<Arrivals> {
        let data = self.skeleton.maps.data_data.as_deref_mut().context("sink of a replay without data")?;
        data.whole_frames = u32::from(noted == Noted::Frames);
        let before = counted(&self.skeleton)?;
        let found = RefCell::new(Arrivals::default());
        let ring = ring(&self.skeleton, &found, noted)?;
        let mut take = |wait: Duration| -> Result<u64> {
            ring.poll(wait)?;
            Ok(counted(&self.skeleton)?.packets - before.packets)
        };
        run(&mut take)?;
        ring.consume()?;
        drop(ring);
        let after = counted(&self.skeleton)?;
        let mut found = found.into_inner();
        found.packets = after.packets - before.packets;
        found.missed += after.missed - before.missed;
        Ok(found)
    }
}

fn ring<'a>(
    skeleton: &'a skeleton::ReplaySkel<'static>,
    found: &'a RefCell<Arrivals>,
    noted: Noted,
) -> Result<RingBuffer<'a>> {
    let mut builder = RingBufferBuilder::new();
    builder.add(&skeleton.maps.arrivals, move |record| {
        let mut found = found.borrow_mut();
        let known = match noted {
            Noted::Frames => frame(record).map(|frame| found.frames.push(frame)),
            Noted::Marks => mark(record).map(|mark| found.marks.push(mark)),
        };
        found.missed += u64::from(known.is_none());
        0
    })?;
    Ok(builder.build()?)
}

/// Of all CPUs.
fn counted(skeleton: &skeleton::ReplaySkel<'_>) -> Result<skeleton::types::counted> {
    let rows: Vec<skeleton::types::counted> = bpf::read_per_cpu(&skeleton.maps.counted, 0)?;
    Ok(rows.iter().fold(Default::default(), |sum: skeleton::types::counted, row| skeleton::types::counted {
        packets: sum.packets + row.packets,
        bytes: sum.bytes + row.bytes,
        missed: sum.missed + row.missed,
    }))
}

fn frame(record: &[u8]) -> Option<(u64, Vec<u8>)> {
    let time_ns = u64::from_ne_bytes(record.get(..8)?.try_into().ok()?);
    let bytes = u32::from_ne_bytes(record.get(8..12)?.try_into().ok()?) as usize;
    (bytes > 0).then_some(())?;
    Some((time_ns, record.get(HEAD..HEAD + bytes)?.to_vec()))
}

fn mark(record: &[u8]) -> Option<Marked> {
    let time_ns = u64::from_ne_bytes(record.get(..8)?.try_into().ok()?);
    let bytes = u32::from_ne_bytes(record.get(8..12)?.try_into().ok()?);
    let word = |at: usize| Some(u32::from_be_bytes(record.get(HEAD + at..HEAD + at + 4)?.try_into().ok()?));
    // The clocks of two cores need not agree to the last nanosecond.
    let latency_ns = (time_ns as u32).wrapping_sub(word(8)?).cast_signed().max(0).cast_unsigned();
    Some(Marked { sequence: word(4)?, latency_ns, bytes, time_ns })
}
