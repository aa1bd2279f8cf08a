//! The packet sink (sink.bpf.c): counts test packets by router. On request it notes more, or keeps whole frames.

use std::{
    cell::{Cell, RefCell},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use libbpf_rs::{
    Link, MapCore, MapHandle, RingBufferBuilder, num_possible_cpus,
    skel::{OpenSkel, SkelBuilder},
};

use crate::{
    bpf::{self, MAX_STREAMS, sink as skeleton},
    histogram::Histogram,
    namespace::Namespace,
};

/// Rows of the map `arrived`.
const MAX_ROUTERS: u16 = 512;
/// Rows of the map `watched`.
const NEXT_HOPS: u32 = 256;
/// Bytes of a frame that a capture keeps.
pub const CAPTURE_BYTES: usize = 2048;
/// Most flows whose order can be watched: rows of the map `flows`.
pub const MAX_FLOWS: usize = 1 << 18;

/// What the sink notes besides counting. Each costs the router's core some time per packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watch {
    /// When each next hop was used (25 ns).
    pub next_hops: bool,
    /// Packets of each stream.
    pub streams: bool,
    /// Packets reordered, and packets that came twice, in each flow.
    pub order: bool,
    /// One-way latency by router (25 ns).
    pub latency: bool,
    /// The longest time in which no packet came (25 ns).
    pub interruption: bool,
}

impl Watch {
    /// Nothing.
    pub const NOTHING: Self =
        Self { next_hops: false, streams: false, order: false, latency: false, interruption: false };

    fn bits(self) -> u32 {
        let watched = [self.next_hops, self.streams, self.order, self.latency, self.interruption];
        watched.into_iter().zip(0..).map(|(on, bit)| u32::from(on) << bit).sum()
    }
}

/// `WATCH_CAPTURE` in sink.bpf.c.
const CAPTURE: u32 = 32;

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

/// Packets of a flow that the sink saw. Lost packets are those sent and not received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowSeen {
    /// All that came, duplicates included.
    pub received: u32,
    /// Packets that came for the first time, and after one with a higher number (RFC 4737, 3.3).
    pub reordered: u32,
    /// Packets that had come before. This is unknown for packets more than 64 behind the highest number; they count as
    /// reordered.
    pub duplicates: u32,
}

/// A sink program on devices. Dropping it detaches it.
pub struct Sink {
    skeleton: skeleton::SinkSkel<'static>,
    settings: Cell<skeleton::types::settings>,
    latency_rows: u32,
    links: Vec<Link>,
}

impl Sink {
    /// Attaches to each of `devices`. Keeps the latencies of this number of routers apart.
    pub fn attach(devices: &[(&Namespace, String)], routers: u16) -> Result<Self> {
        let mut open = skeleton::SinkSkelBuilder::default().open(bpf::storage())?;
        let latency_rows = u32::from(routers.clamp(1, MAX_ROUTERS));
        open.maps.rodata_data.as_mut().context("sink without rodata")?.latency_rows = latency_rows;
        open.maps.latency.set_max_entries(latency_rows * num_possible_cpus()? as u32)?;
        let skeleton = open.load().context("sink program")?;
        let attach = |(namespace, device): &(&Namespace, String)| {
            let index = namespace.interface_index(device)? as i32;
            namespace.enter(|| skeleton.progs.millrace_sink.attach_xdp(index).context("attaching the sink"))
        };
        let links = devices.iter().map(attach).collect::<Result<_>>()?;
        Ok(Self { skeleton, settings: Cell::default(), latency_rows, links })
    }

    /// Detaches from the last of its devices for good, so that another program can attach there.
    pub(crate) fn leave_last(&mut self) {
        self.links.pop();
    }

    /// Test packets that came through router `r` since the sink was attached (0: the host router; a packet whose source
    /// MAC is not one of ours counts as the last router's).
    pub fn arrived(&self, r: u16) -> Result<Arrived> {
        ensure!(r < MAX_ROUTERS, "router {r} has no row");
        self.sum(&self.skeleton.maps.arrived, r.into())
    }

    /// Packets of a stream since the sink was attached, counted while streams were watched.
    pub fn arrived_of_stream(&self, stream: usize) -> Result<Arrived> {
        self.sum(&self.skeleton.maps.arrived_by_stream, stream as u32)
    }

    fn sum(&self, map: &impl MapCore, row: u32) -> Result<Arrived> {
        let rows: Vec<skeleton::types::arrived> = bpf::read_per_cpu(map, row)?;
        let add = |sum: Arrived, row: &skeleton::types::arrived| Arrived {
            packets: sum.packets + row.packets,
            bytes: sum.bytes + row.bytes,
        };
        Ok(rows.iter().fold(Arrived::default(), add))
    }

    /// All test packets since the sink was attached.
    pub fn arrived_in_all(&self) -> Result<u64> {
        Ok(self.arrived_by_core()?.iter().sum())
    }

    /// The same by the core that the sink ran on. Where the sink has no threads of its own, this is the core that
    /// forwarded.
    pub fn arrived_by_core(&self) -> Result<Vec<u64>> {
        let rows: Vec<skeleton::types::arrived_in_all> =
            bpf::read_per_cpu(&self.skeleton.maps.arrived_in_all, 0)?;
        Ok(rows.iter().map(|row| row.packets).collect())
    }

    /// From now on, notes when each core receives its first packet ([`Sink::first_by_core`]). Something must be watched.
    pub fn mark(&self) -> Result<()> {
        let settings = self.settings.get();
        ensure!(settings.watch != 0, "the sink watches nothing, so it cannot note first packets");
        self.set(skeleton::types::settings { mark: settings.mark.wrapping_add(1).max(1), ..settings })
    }

    /// When each core received its first packet since the last [`Sink::mark`], in nanoseconds of CLOCK_MONOTONIC; `None`
    /// for a core without packets. For the meaning of the core, see [`Sink::arrived_by_core`].
    pub fn first_by_core(&self) -> Result<Vec<Option<u64>>> {
        let mark = self.settings.get().mark;
        let rows: Vec<skeleton::types::first_seen> = bpf::read_per_cpu(&self.skeleton.maps.first_seen, 0)?;
        Ok(rows.iter().map(|row| (row.mark == mark).then_some(row.ns)).collect())
    }

    /// The counter behind [`Sink::arrived_in_all`], one row per CPU, for the generator.
    pub fn arrived_map(&self) -> Result<MapHandle> {
        Ok(MapHandle::try_from(&self.skeleton.maps.arrived_in_all)?)
    }

    /// Watches this from now on. Notes of order, latency and so on start empty if they begin now. For the order, call
    /// [`Sink::set_flows`] first.
    pub fn watch(&self, watch: Watch) -> Result<()> {
        let mut settings = self.settings.get();
        let (before, now) = (settings.watch, watch.bits() | settings.watch & CAPTURE);
        let begins = |what: Watch| now & !before & what.bits() != 0;
        if begins(Watch { next_hops: true, ..Watch::NOTHING }) {
            self.clear(&self.skeleton.maps.watched, NEXT_HOPS)?;
        }
        if begins(Watch { order: true, ..Watch::NOTHING }) {
            self.clear(&self.skeleton.maps.flows, settings.flow_count)?;
        }
        if begins(Watch { latency: true, ..Watch::NOTHING }) {
            self.clear(&self.skeleton.maps.latency, self.latency_rows * num_possible_cpus()? as u32)?;
        }
        if begins(Watch { interruption: true, ..Watch::NOTHING }) {
            self.clear(&self.skeleton.maps.interruption, 1)?;
        }
        settings.watch = now;
        self.set(settings)
    }

    /// Sets how many flows each stream has, before their order is watched.
    pub fn set_flows(&self, by_stream: &[usize]) -> Result<()> {
        let all: usize = by_stream.iter().sum();
        ensure!(all <= MAX_FLOWS, "the order of {all} flows cannot be watched: at most {MAX_FLOWS}");
        ensure!(by_stream.len() <= MAX_STREAMS, "{} streams: at most {MAX_STREAMS}", by_stream.len());
        let mut settings = self.settings.get();
        settings.flow_count = all as u32;
        let mut first = 0;
        for (row, flows) in settings.first_flow.iter_mut().zip(by_stream) {
            *row = first;
            first += *flows as u32;
        }
        self.set(settings)
    }

    /// Notes of each flow, in the order of streams and their targets.
    pub fn flows(&self) -> Result<Vec<FlowSeen>> {
        let count = self.settings.get().flow_count as usize;
        let rows: Vec<skeleton::types::flow> = bpf::read_all(&self.skeleton.maps.flows, count)?;
        let seen = |row: &skeleton::types::flow| FlowSeen {
            received: row.received,
            reordered: row.reordered,
            duplicates: row.duplicates,
        };
        Ok(rows.iter().map(seen).collect())
    }

    /// Reordered packets of all flows.
    pub fn reordered(&self) -> Result<u64> {
        Ok(self.flows()?.iter().map(|flow| u64::from(flow.reordered)).sum())
    }

    /// Latencies of packets that came through router `r`.
    pub fn latency(&self, r: u16) -> Result<Histogram> {
        ensure!(u32::from(r) < self.latency_rows, "latencies of router {r} are not kept apart");
        let mut all = Histogram::default();
        for cpu in 0..num_possible_cpus()? as u32 {
            let row: skeleton::types::latency =
                bpf::read(&self.skeleton.maps.latency, cpu * self.latency_rows + u32::from(r))?;
            all.add(&Histogram {
                packets: row.packets,
                sum_ns: row.sum_ns,
                max_ns: row.max_ns,
                buckets: row.buckets.iter().map(|&count| count.into()).collect(),
            });
        }
        Ok(all)
    }

    /// Latencies of all packets.
    pub fn latency_of_all(&self) -> Result<Histogram> {
        let mut all = Histogram::default();
        for r in 0..self.latency_rows {
            all.add(&self.latency(r as u16)?);
        }
        Ok(all)
    }

    fn clear(&self, map: &impl MapCore, count: u32) -> Result<()> {
        bpf::write_all(map, &vec![0; (map.value_size() * count) as usize], count as usize)
    }

    /// Notes of next hop `n` (last byte of its MAC).
    pub fn watched(&self, n: u8) -> Result<Watched> {
        let row: skeleton::types::watched = bpf::read(&self.skeleton.maps.watched, n.into())?;
        Ok(Watched { packets: row.packets, first_ns: row.first_ns, last_ns: row.last_ns })
    }

    /// The longest time between two packets since watching began, in nanoseconds; 0 if fewer than two came.
    pub fn longest_interruption_ns(&self) -> Result<u64> {
        let row: skeleton::types::interruption = bpf::read(&self.skeleton.maps.interruption, 0)?;
        Ok(row.longest_ns)
    }

    /// Returns the frames (cut at [`CAPTURE_BYTES`]) that arrive while `work` runs and after it, until there are
    /// `expected` or a second has passed. A router's thread may have to wait for its core.
    pub fn capture(&self, expected: usize, work: impl FnOnce() -> Result<()>) -> Result<Vec<Vec<u8>>> {
        let frames = RefCell::new(Vec::new());
        let mut builder = RingBufferBuilder::new();
        builder.add(&self.skeleton.maps.captured, |record| {
            frames.borrow_mut().extend(captured_frame(record));
            0
        })?;
        let ring = builder.build()?;
        // Discard frames that came too late for an earlier capture.
        ring.consume()?;
        frames.borrow_mut().clear();
        let before = self.settings.get();
        self.set(skeleton::types::settings { watch: before.watch | CAPTURE, ..before })?;
        let worked = work();
        let end = Instant::now() + Duration::from_secs(1);
        while frames.borrow().len() < expected && Instant::now() < end {
            bpf::poll(&ring, Duration::from_millis(10))?;
        }
        // Give duplicates time to arrive.
        bpf::poll(&ring, Duration::from_millis(5))?;
        self.set(before)?;
        drop(ring);
        worked.map(|()| frames.into_inner())
    }

    fn set(&self, settings: skeleton::types::settings) -> Result<()> {
        self.settings.set(settings);
        bpf::write(&self.skeleton.maps.settings, 0, &settings)
    }
}

/// struct captured: length of the frame, then CAPTURE_BYTES.
fn captured_frame(record: &[u8]) -> Option<Vec<u8>> {
    let length = u32::from_ne_bytes(record.get(..4)?.try_into().ok()?) as usize;
    let frame = record.get(4..4 + length.min(CAPTURE_BYTES))?;
    Some(frame.to_vec())
}

#[cfg(test)]
mod tests {
    use std::{os::fd::AsFd, thread};

    use super::*;
    use crate::{
        addresses::nexthop_mac,
        packet::Stamp,
        workload::{Family, Workload},
    };

    #[test]
    #[ignore = "needs root"]
    fn two_cores_lose_no_count_of_a_next_hop() {
        const PACKETS: u32 = 2_000_000;
        let sink = Sink::attach(&[], 1).unwrap();
        let workload = Workload::benchmark(Family::V4, 1, 0..=0);
        let mut frame = workload.targets[0].frame(workload.frame_bytes, Stamp::default());
        frame[..6].copy_from_slice(&nexthop_mac(7));
        sink.watch(Watch { next_hops: true, interruption: true, ..Watch::NOTHING }).unwrap();
        let program = sink.skeleton.progs.millrace_sink.as_fd();
        let send = &|core: usize| {
            crate::sys::set_affinity(0, &[core]).unwrap();
            bpf::run_live(program, &frame, PACKETS, 64).unwrap();
        };
        let started = crate::sys::monotonic_ns();
        thread::scope(|scope| {
            for core in [0, 1] {
                scope.spawn(move || send(core));
            }
        });
        let watched = sink.watched(7).unwrap();
        assert_eq!(watched.packets, 2 * u64::from(PACKETS));
        let all_ns = crate::sys::monotonic_ns() - started;
        assert!((1..all_ns).contains(&sink.longest_interruption_ns().unwrap()), "{all_ns}");
    }

    #[test]
    #[ignore = "needs root"]
    fn the_first_packet_of_each_core_since_the_mark_is_noted() {
        let sink = Sink::attach(&[], 1).unwrap();
        let workload = Workload::benchmark(Family::V4, 1, 0..=0);
        let frame = workload.targets[0].frame(workload.frame_bytes, Stamp::default());
        let send = |core: usize| {
            crate::sys::set_affinity(0, &[core]).unwrap();
            bpf::run_live(sink.skeleton.progs.millrace_sink.as_fd(), &frame, 10, 1).unwrap();
        };
        sink.mark().unwrap_err();
        sink.watch(Watch { order: true, ..Watch::NOTHING }).unwrap();
        send(0);
        for core in [1, 0] {
            sink.mark().unwrap();
            assert!(sink.first_by_core().unwrap().iter().all(Option::is_none));
            let marked = crate::sys::monotonic_ns();
            send(core);
            let sent = crate::sys::monotonic_ns();
            send(core);
            let first = sink.first_by_core().unwrap();
            assert!((marked..=sent).contains(&first[core].unwrap()), "{first:?}, not {marked}..={sent}");
            assert_eq!(first[1 - core], None);
        }
    }
}
