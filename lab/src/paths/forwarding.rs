//! Chains without encryption, memory to memory: forward, route, CRC.
//!
//! A packet is copied from a trace into the next frame of a pool (2,048 bytes each, data from byte 256 on, as AF_XDP has them), a batch of
//! them runs through a chain, and the verdict and length of each is read. Trace: packets of `bytes` each, one after another in
//! memory, each flow once. Pool: 512 frames (their headers stay in the second-level cache), or 32,768 (64 MiB, more than
//! any cache: each header comes from memory, as after a NIC without direct cache access).

use logic::{
    elements::{
        Batch, Chain, Check, CrcAppend, CrcCheck, Element, Forward, Ingress, Now, Rewrite, Route, Ttl,
        Verdict,
    },
    memory::{Capacity, HeapMemory},
    net::{Mac, Prefix4, Vlan},
    plan::{Hop, Interface, Op, ReversePath, Target},
    tables::{Tables, encoding::IF_IPV4},
};
use std::{sync::Arc, time::Instant};

use super::{Case, Ways};
use crate::prefixes::Random;

pub(crate) const FRAME: usize = 2048;
pub(crate) const HEAD_ROOM: usize = 256;
const NEXT_HOPS: u32 = 256;
/// Of a round, or more.
const PACKETS: usize = 2_000_000;
/// Of all packets.
pub(crate) const INGRESS: Ingress = Ingress { port: 1, router: 0, interface: 1, flags: IF_IPV4 };
const NOW: Now = Now { ns: 0, ports: u64::MAX };

pub(crate) fn tables(prefixes: &[Prefix4]) -> Arc<HeapMemory> {
    let memory = Arc::new(HeapMemory::new(Capacity {
        fib_blocks: 200_000,
        fib_tails: 100_000,
        nexthops: 4096,
        neighbour_buckets: 1024,
        interface_buckets: 64,
        routers: 4,
    }));
    let mut tables = Tables::new(memory.clone());
    let apply = |tables: &mut Tables<_>, op| tables.apply(&op).expect("there is room");
    for id in 1..=2 {
        let mac = Mac([2, 0, 0, 0, 0, id]);
        let interface = Interface {
            router: 0,
            port: id,
            vlan: Vlan::NONE,
            mac,
            ipv4: true,
            ipv6: true,
            transmit: true,
            reverse_path: ReversePath::Off,
            redirects: true,
        };
        apply(&mut tables, Op::Interface(id.into(), interface));
    }
    let gateway = |n: u32| std::net::IpAddr::from((0x0a00_0000 | n).to_be_bytes());
    for n in 0..NEXT_HOPS {
        let [_, _, high, low] = n.to_be_bytes();
        apply(&mut tables, Op::Neighbour(2, gateway(n), Some(Mac([2, 1, 0, 0, high, low]))));
    }
    for (i, prefix) in prefixes.iter().enumerate() {
        let n = (i as u32).wrapping_mul(0x9e37_79b1) % NEXT_HOPS;
        let target = Target::Hop(Hop { interface: 2, gateway: Some(gateway(n)), mtu: 1500 });
        apply(&mut tables, Op::Route4(0, *prefix, Some(target)));
        if i % 8192 == 0 {
            let epoch = tables.seal();
            tables.reclaim(epoch).expect("there is room");
        }
    }
    drop(tables);
    memory
}

/// What is copied at once.
pub(crate) const LINE: usize = 64;

/// Frames one behind another, each in lines of its own, to random addresses in random prefixes.
pub(crate) struct Trace {
    pub bytes: usize,
    packets: Vec<u8>,
    flows: usize,
}

impl Trace {
    pub(crate) fn new(flows: usize, bytes: usize, prefixes: &[Prefix4]) -> Self {
        let mut random = Random(flows as u64);
        let mut packets = Vec::with_capacity(flows * bytes.next_multiple_of(LINE));
        let mut flow = 0u32;
        while packets.len() < flows * bytes.next_multiple_of(LINE) {
            let prefix = prefixes[random.below(prefixes.len())];
            let host = (random.bits() as u32).checked_shr(prefix.length().into()).unwrap_or(0);
            let address = prefix.address() | host;
            if !(1..224).contains(&(address >> 24)) || address >> 24 == 127 {
                continue;
            }
            flow += 1;
            let [a, b, c, d] = flow.to_be_bytes();
            let build = etherparse::PacketBuilder::ethernet2([9; 6], [2, 0, 0, 0, 0, 1])
                .ipv4([198, 18, 0, 1], address.to_be_bytes(), 64)
                .udp(u16::from_be_bytes([c, d]), u16::from_be_bytes([a, b]));
            build.write(&mut packets, &vec![0; bytes - 42]).expect("a packet can be written");
            packets.resize(packets.len().next_multiple_of(LINE), 0);
        }
        Trace { bytes, packets, flows }
    }

    /// How many packets it has.
    pub(crate) fn flows(&self) -> usize {
        self.flows
    }

    /// One of them, and what is behind it in its last line.
    pub(crate) fn packet(&self, number: usize) -> &[u8] {
        let bytes = self.bytes.next_multiple_of(LINE);
        self.packets.get(number * bytes..(number + 1) * bytes).unwrap_or_default()
    }

    /// One after another, in lines of their own.
    fn packets(&self) -> std::slice::ChunksExact<'_, u8> {
        self.packets.chunks_exact(self.bytes.next_multiple_of(LINE))
    }
}

/// By lines, so that the compiler knows how long it is.
pub(crate) fn copy(frame: &mut [u8], packet: &[u8]) {
    let (lines, _) = frame[HEAD_ROOM..].as_chunks_mut::<LINE>();
    for (line, from) in lines.iter_mut().zip(packet.as_chunks::<LINE>().0) {
        *line = *from;
    }
}

/// Runs the trace once: how many packets left by a port, and their bytes.
fn pass(trace: &Trace, pool: &mut [u8], chain: &mut Chain, most: usize) -> (usize, usize) {
    let ingress = INGRESS;
    let (mut sent, mut bytes) = (0, 0);
    let mut packets = trace.packets().peekable();
    let mut batch = Batch::default();
    while packets.peek().is_some() {
        for frames in pool.chunks_mut(FRAME * most) {
            let mut now = batch.emptied();
            for (frame, packet) in frames.chunks_exact_mut(FRAME).zip(packets.by_ref()) {
                copy(frame, packet);
                now.push(frame, HEAD_ROOM, trace.bytes, ingress).expect("it is within the frame");
            }
            chain.run(&NOW, &mut now);
            for packet in now.packets() {
                if let Some(Verdict::To(_)) = packet.verdict() {
                    sent += 1;
                    bytes += packet.length();
                }
            }
            batch = now.emptied();
        }
    }
    (sent, bytes)
}

/// What is to be measured: `family` is one of the names of the command line.
struct Chosen<'a> {
    name: &'static str,
    family: &'static str,
    trace: &'a Trace,
    frames: usize,
    batch: usize,
    chain: Vec<Box<dyn Element>>,
}

fn measure(chosen: Chosen<'_>, ways: &mut Ways<'_>) -> anyhow::Result<()> {
    let Chosen { name, family, trace, frames, batch, chain } = chosen;
    if !ways.wants(family) {
        return Ok(());
    }
    let mut chain = Chain::new(chain)?;
    let mut pool = vec![1; frames * FRAME];
    let passes = PACKETS.div_ceil(trace.flows);
    let mut run = || {
        let start = Instant::now();
        for _ in 0..passes {
            let (sent, _) = std::hint::black_box(pass(trace, &mut pool, &mut chain, batch));
            anyhow::ensure!(sent == trace.flows, "{name}: {sent} of {} packets left", trace.flows);
        }
        Ok(start.elapsed().as_nanos() as f64 / (passes * trace.flows) as f64)
    };
    run()?;
    let ns = (0..ways.rounds).map(|_| run()).collect::<anyhow::Result<_>>()?;
    ways.add(Case { name: name.into(), bytes: trace.bytes as f64, frames, batch, ns })
}

pub(crate) fn router(memory: &Arc<HeapMemory>) -> Vec<Box<dyn Element>> {
    vec![Box::new(Check), Box::new(Route::new(memory.clone())), Box::new(Ttl), Box::new(Rewrite)]
}

pub(crate) fn forward() -> Box<dyn Element> {
    Box::new(Forward::new(2))
}

/// All of them, over these routes.
pub(super) fn run(prefixes: &[Prefix4], ways: &mut Ways<'_>) -> anyhow::Result<()> {
    let memory = tables(prefixes);
    let (few, many) = (Trace::new(1024, 60, prefixes), Trace::new(1_000_000, 60, prefixes));
    for frames in [512, 32_768] {
        for batch in [64, 256] {
            let traces = [("fwd", "rtr", &few), ("fwd of 1,000,000", "rtr of 1,000,000", &many)];
            for (fwd, rtr, trace) in traces {
                measure(
                    Chosen { name: fwd, family: "fwd", trace, frames, batch, chain: vec![forward()] },
                    ways,
                )?;
                measure(
                    Chosen { name: rtr, family: "rtr", trace, frames, batch, chain: router(&memory) },
                    ways,
                )?;
            }
        }
    }
    for bytes in [60, 1400] {
        let trace = &Trace::new(1024, bytes, prefixes);
        let append = || Box::new(CrcAppend) as Box<dyn Element>;
        let (frames, batch) = (512, 64);
        for (name, chain) in [
            ("fwd", vec![forward()]),
            ("crc_append", vec![append(), forward()]),
            ("crc_append, crc_check", vec![append(), Box::new(CrcCheck), forward()]),
        ] {
            measure(Chosen { name, family: "crc", trace, frames, batch, chain }, ways)?;
        }
    }
    if ways.wants("crc") { from_memory(ways) } else { Ok(()) }
}

pub(super) const CRC_FROM_MEMORY: &str = "crc_check where packets lie, in memory";
pub(super) const READ_FROM_MEMORY: &str = "words of them added up";
/// With the CRC.
pub(super) const IN_MEMORY: usize = 1404;

/// Packets that lie in 1 GiB of frames are not copied first: what CRC-32 takes that waits for memory, and what memory gives one core that does
/// next to nothing with it, in turn.
fn from_memory(ways: &mut Ways<'_>) -> anyhow::Result<()> {
    let (frames, batch) = (1 << 19, 64);
    let mut pool: Vec<u8> = (0..frames * FRAME).map(|at| (at / 7) as u8).collect();
    let mut append = Chain::new(vec![Box::new(CrcAppend), forward()])?;
    let mut check = Chain::new(vec![Box::new(CrcCheck), forward()])?;
    anyhow::ensure!(through(&mut append, &mut pool, IN_MEMORY - 4, batch) == frames, "not all packets left");
    let mut ns = [Vec::new(), Vec::new()];
    for _ in 0..ways.rounds {
        let start = Instant::now();
        anyhow::ensure!(through(&mut check, &mut pool, IN_MEMORY, batch) == frames, "not all CRCs are right");
        ns[0].push(start.elapsed().as_nanos() as f64 / frames as f64);
        let start = Instant::now();
        for frame in pool.chunks_exact(FRAME) {
            let words = frame[HEAD_ROOM..][..IN_MEMORY].as_chunks().0.iter();
            std::hint::black_box(words.fold(0_u64, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word))));
        }
        ns[1].push(start.elapsed().as_nanos() as f64 / frames as f64);
    }
    for (name, ns) in [CRC_FROM_MEMORY, READ_FROM_MEMORY].into_iter().zip(ns) {
        ways.add(Case { name: name.into(), bytes: IN_MEMORY as f64, frames, batch, ns })?;
    }
    Ok(())
}

/// How many packets of this length, one in each frame, left by a port.
fn through(chain: &mut Chain, pool: &mut [u8], length: usize, most: usize) -> usize {
    let mut batch = Batch::default();
    let mut sent = 0;
    for frames in pool.chunks_mut(FRAME * most) {
        let mut now = batch.emptied();
        for frame in frames.chunks_exact_mut(FRAME) {
            now.push(frame, HEAD_ROOM, length, INGRESS).expect("it is within the frame");
        }
        chain.run(&NOW, &mut now);
        sent +=
            now.packets().iter().filter(|packet| matches!(packet.verdict(), Some(Verdict::To(_)))).count();
        batch = now.emptied();
    }
    sent
}
