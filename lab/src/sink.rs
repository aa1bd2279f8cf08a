//! The packet sink: counts test packets by router, and on demand keeps whole frames or the time each next hop was first
//! used (sink.bpf.c).

use std::{
    cell::RefCell,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use libbpf_rs::{
    Link, MapHandle, RingBufferBuilder,
    skel::{OpenSkel, SkelBuilder},
};

use crate::{
    bpf::{self, sink as skeleton},
    namespace::Namespace,
};

/// Rows of the map `arrived`.
const MAX_ROUTERS: u16 = 512;
/// Bytes of a frame that a capture keeps.
pub const CAPTURE_BYTES: usize = 128;

/// Packets that came to the sink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrived {
    /// Packets.
    pub packets: u64,
    /// Bytes without FCS.
    pub bytes: u64,
}

/// When a next hop was used; times are CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watched {
    /// Packets since watching began.
    pub packets: u64,
    /// The first of them; 0 if none.
    pub first_ns: u64,
    /// The last of them.
    pub last_ns: u64,
}

/// A sink program on devices. Dropped, it detaches.
pub struct Sink {
    skeleton: skeleton::SinkSkel<'static>,
    _links: Vec<Link>,
}

impl Sink {
    /// Attaches to each of `devices`.
    pub fn attach(devices: &[(&Namespace, String)]) -> Result<Self> {
        let skeleton =
            skeleton::SinkSkelBuilder::default().open(bpf::storage())?.load().context("sink program")?;
        let attach = |(namespace, device): &(&Namespace, String)| {
            let index = namespace.interface_index(device)? as i32;
            namespace.enter(|| skeleton.progs.sink.attach_xdp(index).context("attaching the sink"))
        };
        let links = devices.iter().map(attach).collect::<Result<_>>()?;
        Ok(Self { skeleton, _links: links })
    }

    /// Test packets that came through router `r` since the sink was attached (0: the host router; a packet whose source
    /// MAC is not one of ours counts as the last router's).
    pub fn arrived(&self, r: u16) -> Result<Arrived> {
        ensure!(r < MAX_ROUTERS, "router {r} has no row");
        let rows: Vec<skeleton::types::arrived> = bpf::read_per_cpu(&self.skeleton.maps.arrived, r.into())?;
        let add = |sum: Arrived, row: &skeleton::types::arrived| Arrived {
            packets: sum.packets + row.packets,
            bytes: sum.bytes + row.bytes,
        };
        Ok(rows.iter().fold(Arrived::default(), add))
    }

    /// Test packets in all since the sink was attached.
    pub fn arrived_in_all(&self) -> Result<u64> {
        Ok(bpf::read_per_cpu::<u64>(&self.skeleton.maps.arrived_in_all, 0)?.into_iter().sum())
    }

    /// The counter behind [`Sink::arrived_in_all`], one row per CPU, for the generator.
    pub fn arrived_map(&self) -> Result<MapHandle> {
        Ok(MapHandle::try_from(&self.skeleton.maps.arrived_in_all)?)
    }

    /// Notes from now on when each next hop was used (it costs 25 ns a packet), or stops doing so.
    pub fn watch(&self, on: bool) -> Result<()> {
        if on {
            for key in 0..=u8::MAX {
                bpf::write(&self.skeleton.maps.watched, key.into(), &skeleton::types::watched::default())?;
            }
        }
        self.set(skeleton::types::settings { watch: on.into(), capture: 0 })
    }

    /// What was noted of next hop `n` (last byte of its MAC).
    pub fn watched(&self, n: u8) -> Result<Watched> {
        let row: skeleton::types::watched = bpf::read(&self.skeleton.maps.watched, n.into())?;
        Ok(Watched { packets: row.packets, first_ns: row.first_ns, last_ns: row.last_ns })
    }

    /// The frames (cut at [`CAPTURE_BYTES`]) that arrive while `work` runs and after it, until there are `expected` or a
    /// second has passed: a router's thread may have to wait for its core.
    pub fn capture(&self, expected: usize, work: impl FnOnce() -> Result<()>) -> Result<Vec<Vec<u8>>> {
        let frames = RefCell::new(Vec::new());
        let mut builder = RingBufferBuilder::new();
        builder.add(&self.skeleton.maps.captured, |record| {
            frames.borrow_mut().extend(captured_frame(record));
            0
        })?;
        let ring = builder.build()?;
        // What an earlier capture was too late for.
        ring.consume()?;
        frames.borrow_mut().clear();
        self.set(skeleton::types::settings { watch: 0, capture: 1 })?;
        let worked = work();
        let end = Instant::now() + Duration::from_secs(1);
        while frames.borrow().len() < expected && Instant::now() < end {
            ring.poll(Duration::from_millis(10))?;
        }
        // Duplicates are seen too.
        ring.poll(Duration::from_millis(5))?;
        self.set(skeleton::types::settings::default())?;
        drop(ring);
        worked.map(|()| frames.into_inner())
    }

    fn set(&self, settings: skeleton::types::settings) -> Result<()> {
        bpf::write(&self.skeleton.maps.settings, 0, &settings)
    }
}

/// struct captured: length of the frame, then CAPTURE_BYTES.
fn captured_frame(record: &[u8]) -> Option<Vec<u8>> {
    let length = u32::from_ne_bytes(record.get(..4)?.try_into().ok()?) as usize;
    let frame = record.get(4..4 + length.min(CAPTURE_BYTES))?;
    Some(frame.to_vec())
}
