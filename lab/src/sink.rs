//! The packet sink: counts test packets by router, and on demand keeps whole frames or the time each next hop was first
//! used (sink.bpf.c).

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libbpf_rs::{
    Link, RingBufferBuilder,
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

/// A sink program on a device. Dropped, it detaches.
pub struct Sink {
    skeleton: skeleton::SinkSkel<'static>,
    _link: Link,
}

impl Sink {
    /// Attaches to `device` of `namespace`.
    pub fn attach(namespace: &Namespace, device: &str) -> Result<Self> {
        let skeleton =
            skeleton::SinkSkelBuilder::default().open(bpf::storage())?.load().context("sink program")?;
        let index = namespace.interface_index(device)? as i32;
        let link = namespace.enter(|| skeleton.progs.sink.attach_xdp(index).context("attaching the sink"))?;
        Ok(Self { skeleton, _link: link })
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

    /// Sum of [`Sink::arrived`] of the host and routers 1..=`routers`, and of unknown sources.
    pub fn arrived_in_all(&self, routers: u16) -> Result<Arrived> {
        (0..=routers).chain([MAX_ROUTERS - 1]).try_fold(Arrived::default(), |sum, r| {
            let row = self.arrived(r)?;
            Ok(Arrived { packets: sum.packets + row.packets, bytes: sum.bytes + row.bytes })
        })
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

    /// The frames (cut at [`CAPTURE_BYTES`]) that arrive while `work` runs and shortly after.
    pub fn capture(&self, work: impl FnOnce() -> Result<()>) -> Result<Vec<Vec<u8>>> {
        let mut frames = Vec::new();
        let mut builder = RingBufferBuilder::new();
        builder.add(&self.skeleton.maps.captured, |record| {
            frames.extend(captured_frame(record));
            0
        })?;
        let ring = builder.build()?;
        ring.consume()?;
        self.set(skeleton::types::settings { watch: 0, capture: 1 })?;
        let worked = work();
        std::thread::sleep(Duration::from_millis(20));
        self.set(skeleton::types::settings::default())?;
        ring.consume()?;
        drop(ring);
        worked.map(|()| frames)
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
