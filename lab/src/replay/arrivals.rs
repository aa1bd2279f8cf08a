//! Arrivals at the sink during a replay (replay.bpf.c).

use std::{cell::Cell, time::Duration};

use anyhow::{Context, Result};
use libbpf_rs::{
    Link, RingBuffer, RingBufferBuilder,
    skel::{OpenSkel, SkelBuilder},
};

use crate::{
    bpf::{self, replay as skeleton},
    testbed::Testbed,
};

/// What to note of each frame, and where, in the order of arrival.
pub(super) enum Noted<'a> {
    /// The whole frame.
    Frames(&'a mut Vec<Vec<u8>>),
    /// The mark, if the frame has one.
    Marks(&'a mut dyn FnMut(Marked)),
}

/// A marked frame that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marked {
    /// Its number in the run.
    pub sequence: u32,
    /// Time from marking to arrival.
    pub latency_ns: u32,
    /// Length of the frame.
    pub bytes: u32,
    /// When it arrived (CLOCK_MONOTONIC).
    pub time_ns: u64,
}

/// Counts of arrivals.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arrivals {
    /// All frames.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Frames that the sink could not note, or not completely. Results about the others are then not exact.
    pub missed: u64,
}

/// struct arrival: time, length of the frame, padding.
const HEAD: usize = 16;

/// The program at the sink. Dropping it detaches it.
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
        let (namespace, device) = ends.last().context("the testbed has no ports")?;
        let index = namespace.interface_index(device)? as i32;
        let attach =
            || skeleton.progs.millrace_replay.attach_xdp(index).context("attaching the sink of a replay");
        let link = namespace.enter(attach)?;
        Ok(Self { skeleton, _link: link })
    }

    /// Counts and notes arrivals while `run` runs. `run` must call its argument repeatedly to take arrivals, until all
    /// are taken.
    pub(super) fn arrivals(
        &mut self,
        mut noted: Noted<'_>,
        run: impl FnOnce(&mut dyn FnMut(Duration) -> Result<Arrivals>) -> Result<()>,
    ) -> Result<Arrivals> {
        let data = self.skeleton.maps.data_data.as_deref_mut().context("sink of a replay without data")?;
        data.whole_frames = u32::from(matches!(noted, Noted::Frames(_)));
        // Discard frames that came after the last run; they have the form of that run.
        ring(&self.skeleton, |_| {})?.consume()?;
        let before = counted(&self.skeleton)?;
        let unread = Cell::new(0);
        let ring = ring(&self.skeleton, |record| {
            let read = match &mut noted {
                Noted::Frames(frames) => frame(record).map(|frame| frames.push(frame)),
                Noted::Marks(note) => mark(record).map(note),
            };
            unread.set(unread.get() + u64::from(read.is_none()));
        })?;
        let arrived = || -> Result<Arrivals> {
            let now = counted(&self.skeleton)?;
            Ok(Arrivals {
                packets: now.packets - before.packets,
                bytes: now.bytes - before.bytes,
                missed: now.missed - before.missed + unread.get(),
            })
        };
        run(&mut |wait| {
            bpf::poll(&ring, wait)?;
            arrived()
        })?;
        ring.consume()?;
        arrived()
    }
}

fn ring<'a>(
    skeleton: &'a skeleton::ReplaySkel<'static>,
    mut read: impl FnMut(&[u8]) + 'a,
) -> Result<RingBuffer<'a>> {
    let mut builder = RingBufferBuilder::new();
    builder.add(&skeleton.maps.arrivals, move |record| {
        read(record);
        0
    })?;
    Ok(builder.build()?)
}

/// Sum of all CPUs.
fn counted(skeleton: &skeleton::ReplaySkel<'_>) -> Result<skeleton::types::counted> {
    let rows: Vec<skeleton::types::counted> = bpf::read_per_cpu(&skeleton.maps.counted, 0)?;
    Ok(rows.iter().fold(Default::default(), |sum: skeleton::types::counted, row| skeleton::types::counted {
        packets: sum.packets + row.packets,
        bytes: sum.bytes + row.bytes,
        missed: sum.missed + row.missed,
    }))
}

fn frame(record: &[u8]) -> Option<Vec<u8>> {
    let bytes = u32::from_ne_bytes(record.get(8..12)?.try_into().ok()?) as usize;
    (bytes > 0).then_some(())?;
    Some(record.get(HEAD..HEAD + bytes)?.to_vec())
}

fn mark(record: &[u8]) -> Option<Marked> {
    let time_ns = u64::from_ne_bytes(record.get(..8)?.try_into().ok()?);
    let bytes = u32::from_ne_bytes(record.get(8..12)?.try_into().ok()?);
    let word = |at: usize| Some(u32::from_be_bytes(record.get(HEAD + at..HEAD + at + 4)?.try_into().ok()?));
    // The clocks of two cores may differ by some nanoseconds.
    let latency_ns = (time_ns as u32).wrapping_sub(word(8)?).cast_signed().max(0).cast_unsigned();
    Some(Marked { sequence: word(4)?, latency_ns, bytes, time_ns })
}
