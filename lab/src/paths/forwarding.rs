//! Chains without encryption, memory to memory: forward, route, CRC.
//!
//! A packet is copied from a trace into the next frame of a pool (2,048 bytes each, data from byte 256 on, as in
//! AF_XDP). A batch of frames runs through a chain, and the verdict and length of each is read. Packets of a trace lie
//! one after another in memory, each flow once. They have 60 bytes each (64 on the wire, with the FCS), 1,400, or the
//! lengths of IMIX ([`super::IMIX`], less the FCS). A pool has 512 frames, whose headers stay in the second-level
//! cache, or 32,768. The latter take 64 MiB, more than that cache, so each header comes from farther away, as after a
//! NIC without direct cache access. Frames are used one after another, round after round.
//!
//! The table holds all routes, or 256,000 of them (P's table). Destinations are 1,024 flows, or 1,000,000 at random in
//! the routed prefixes. Beside each router's chain, in turn, runs a loop written by hand for the same work
//! ([`super::bare`]). It shows which part of a result is due to the machine.

use logic::{
    elements::{
        Batch, Chain, Check, CrcAppend, CrcCheck, Element, Forward, Now, Rewrite, Route, Ttl, Verdict,
    },
    memory::{Capacity, HeapMemory},
    net::{Mac, Prefix4, Vlan},
    plan::{Hop, Interface, Op, ReversePath, Target},
    tables::{Ingress, Tables, encoding::IF_IPV4},
};
use std::{sync::Arc, time::Instant};

use super::{Case, IMIX, Ways, bare::Bare};
use crate::prefixes::Random;

pub(crate) const FRAME: usize = 2048;
pub(crate) const HEAD_ROOM: usize = 256;

/// A frame as in AF_XDP's memory: it begins at a multiple of its length, whatever the allocator would do.
#[repr(C, align(2048))]
#[derive(Clone)]
pub(crate) struct Frame(pub [u8; FRAME]);

const _: () = assert!(size_of::<Frame>() == FRAME);

const NEXT_HOPS: u32 = 256;
/// Packets of a round, or more.
const PACKETS: usize = 2_000_000;
/// Routes of the paper's table (P11).
pub(crate) const SMALLER_TABLE: usize = 256_000;
/// Bytes behind each packet on the wire.
const FCS: usize = 4;
/// Where all packets come in.
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
            accept_local: false,
            priority_tags: false,
            look_at_sources: false,
            group: 0,
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

/// Bytes that are copied at once.
pub(crate) const LINE: usize = 64;

/// Packets one behind another, each in its own cache lines, to random addresses in random prefixes.
pub(crate) struct Trace {
    /// Length of a packet; in a mix, the longest.
    pub bytes: usize,
    /// Lengths, used in turn.
    lengths: Vec<usize>,
    pub(super) packets: Vec<u8>,
    flows: usize,
}

impl Trace {
    /// Packets of this length.
    pub(crate) fn new(flows: usize, bytes: usize, prefixes: &[Prefix4]) -> Self {
        Self::mixed(flows, vec![bytes], prefixes)
    }

    /// Packets of these lengths in turn. There must be at least one.
    fn mixed(flows: usize, lengths: Vec<usize>, prefixes: &[Prefix4]) -> Self {
        let bytes = lengths.iter().copied().max().unwrap_or(0);
        let slot = bytes.next_multiple_of(LINE);
        let mut random = Random(flows as u64);
        let mut packets = Vec::with_capacity(flows * slot);
        let mut flow = 0;
        while packets.len() < flows * slot {
            let prefix = prefixes[random.below(prefixes.len())];
            let host = (random.bits() as u32).checked_shr(prefix.length().into()).unwrap_or(0);
            let address = prefix.address() | host;
            if !(1..224).contains(&(address >> 24)) || address >> 24 == 127 {
                continue;
            }
            let payload = lengths[flow % lengths.len()] - 42;
            flow += 1;
            let [a, b, c, d] = (flow as u32).to_be_bytes();
            let build = etherparse::PacketBuilder::ethernet2([9; 6], [2, 0, 0, 0, 0, 1])
                .ipv4([198, 18, 0, 1], address.to_be_bytes(), 64)
                .udp(u16::from_be_bytes([c, d]), u16::from_be_bytes([a, b]));
            build.write(&mut packets, &vec![0; payload]).expect("a packet can be written");
            packets.resize(flow * slot, 0);
        }
        Trace { bytes, lengths, packets, flows }
    }

    /// Number of packets.
    pub(crate) fn flows(&self) -> usize {
        self.flows
    }

    /// Packet `number` of a trace whose packets all have one length, padded to whole lines.
    pub(crate) fn packet(&self, number: usize) -> &[u8] {
        let bytes = self.bytes.next_multiple_of(LINE);
        self.packets.get(number * bytes..(number + 1) * bytes).unwrap_or_default()
    }

    /// All packets, padded to whole lines.
    pub(super) fn packets(&self) -> std::slice::ChunksExact<'_, u8> {
        self.packets.chunks_exact(self.bytes.next_multiple_of(LINE))
    }

    /// Mean length of a packet.
    fn mean_bytes(&self) -> f64 {
        let all: usize = self.lengths.iter().cycle().take(self.flows).sum();
        all as f64 / self.flows as f64
    }
}

/// Frames that are used one after another, and then again.
pub(super) struct Pool {
    pub frames: Vec<Frame>,
    /// Index of the next one.
    at: usize,
}

impl Pool {
    /// A pool with this many frames, a multiple of the batch.
    pub fn new(frames: usize) -> Self {
        Pool { frames: vec![Frame([1; FRAME]); frames], at: 0 }
    }

    /// The next frames for a batch.
    #[inline]
    pub fn next(&mut self, most: usize) -> &mut [Frame] {
        let from = self.at;
        self.at = (from + most) % self.frames.len();
        &mut self.frames[from..from + most]
    }
}

/// Copies whole lines, so that the compiler knows the length.
pub(crate) fn copy(frame: &mut [u8], packet: &[u8]) {
    let (lines, _) = frame[HEAD_ROOM..].as_chunks_mut::<LINE>();
    for (line, from) in lines.iter_mut().zip(packet.as_chunks::<LINE>().0) {
        *line = *from;
    }
}

/// Runs packets, each with its length, through a chain. Returns how many left by a port, and their bytes.
fn pass<'t>(
    packets: impl Iterator<Item = (&'t [u8], usize)>,
    pool: &mut Pool,
    chain: &mut Chain,
    most: usize,
) -> (usize, usize) {
    let ingress = INGRESS;
    let (mut sent, mut bytes) = (0, 0);
    let mut packets = packets.peekable();
    let mut batch = Batch::default();
    while packets.peek().is_some() {
        let mut now = batch.emptied();
        for (Frame(frame), (packet, length)) in pool.next(most).iter_mut().zip(packets.by_ref()) {
            copy(frame, packet);
            now.push(frame, HEAD_ROOM, length, ingress).expect("it is within the frame");
        }
        chain.run(&NOW, &mut now);
        for packet in now.packets() {
            if let Verdict::To(_) = packet.verdict() {
                sent += 1;
                bytes += packet.length();
            }
        }
        batch = now.emptied();
    }
    (sent, bytes)
}

/// Runs the trace once through a chain.
pub(super) fn through_chain(
    trace: &Trace,
    pool: &mut Pool,
    chain: &mut Chain,
    most: usize,
) -> (usize, usize) {
    let slots = trace.packets();
    match trace.lengths[..] {
        [length] => pass(slots.map(|slot| (slot, length)), pool, chain, most),
        _ => {
            let lengths = trace.lengths.iter().copied().cycle();
            let packets = slots.zip(lengths);
            let packets = packets.map(|(slot, length)| (&slot[..length.next_multiple_of(LINE)], length));
            pass(packets, pool, chain, most)
        }
    }
}

/// A measurement. `family` is one of the names on the command line.
struct Chosen<'a> {
    name: &'a str,
    family: &'static str,
    trace: &'a Trace,
    frames: usize,
    batch: usize,
    chain: Vec<Box<dyn Element>>,
    /// Runs in turn with it.
    beside: Option<&'a Bare<'a>>,
}

fn measure(chosen: Chosen<'_>, ways: &mut Ways<'_>) -> anyhow::Result<()> {
    let Chosen { name, family, trace, frames, batch, chain, beside } = chosen;
    if !ways.wants(family) {
        return Ok(());
    }
    let mut chain = Chain::new(chain)?;
    let mut pool = Pool::new(frames);
    let (mut of_chain, mut of_bare) = (Vec::new(), Vec::new());
    // The first round does not count.
    for _ in 0..=ways.rounds {
        of_chain.push(round(name, trace, || through_chain(trace, &mut pool, &mut chain, batch).0)?);
        if let Some(bare) = beside {
            of_bare.push(round(name, trace, || bare.pass(trace, &mut pool, batch))?);
        }
    }
    let case = |name: String, mut ns: Vec<f64>| {
        ns.remove(0);
        Case { name, bytes: trace.mean_bytes(), frames, batch, ns }
    };
    if beside.is_some() {
        ways.add(case(super::beside(name), of_bare))?;
    }
    ways.add(case(name.into(), of_chain))
}

/// Runs the trace repeatedly. Returns nanoseconds a packet. All packets must leave.
fn round(name: &str, trace: &Trace, mut pass: impl FnMut() -> usize) -> anyhow::Result<f64> {
    let passes = PACKETS.div_ceil(trace.flows);
    let start = Instant::now();
    for _ in 0..passes {
        let sent = std::hint::black_box(pass());
        anyhow::ensure!(sent == trace.flows, "{name}: {sent} of {} packets left", trace.flows);
    }
    Ok(start.elapsed().as_nanos() as f64 / (passes * trace.flows) as f64)
}

pub(crate) fn router(memory: &Arc<HeapMemory>) -> Vec<Box<dyn Element>> {
    vec![Box::new(Check), Box::new(Route::new(memory.clone())), Box::new(Ttl), Box::new(Rewrite)]
}

pub(crate) fn forward() -> Box<dyn Element> {
    Box::new(Forward::new(2))
}

/// Parts of names: destinations, and routes.
pub(super) const OF_MANY: &str = " of 1,000,000";
pub(super) const OVER_FEWER: &str = " over 256,000 routes";

/// Makes all measurements of this file, over these routes.
pub(super) fn run(prefixes: &[Prefix4], ways: &mut Ways<'_>) -> anyhow::Result<()> {
    let lengths = IMIX.map(|bytes| bytes - FCS).to_vec();
    let mix = Trace::mixed(1024, lengths, prefixes);
    let (frames, batch, beside) = (512, 64, None);
    if ways.wants("fwd") || ways.wants("rtr") {
        let memory = tables(prefixes);
        routed("", prefixes, &memory, ways)?;
        for (family, chain) in [("fwd", vec![forward()]), ("rtr", router(&memory))] {
            let name = &format!("{family}{}", super::OF_IMIX);
            measure(Chosen { name, family, trace: &mix, frames, batch, chain, beside }, ways)?;
        }
    }
    if ways.wants("rtr") {
        let fewer = prefixes.get(..SMALLER_TABLE).unwrap_or(prefixes);
        routed(OVER_FEWER, fewer, &tables(fewer), ways)?;
    }
    for bytes in [60, 1400] {
        crc("", &Trace::new(1024, bytes, prefixes), ways)?;
    }
    crc(super::OF_IMIX, &mix, ways)?;
    if ways.wants("crc") { from_memory(ways) } else { Ok(()) }
}

/// Forward, which does not depend on a table, and route: with 1,024 flows and with 1,000,000.
fn routed(
    over: &str,
    prefixes: &[Prefix4],
    memory: &Arc<HeapMemory>,
    ways: &mut Ways<'_>,
) -> anyhow::Result<()> {
    let bare = Bare::new(memory)?;
    let (few, many) = (Trace::new(1024, 60, prefixes), Trace::new(1_000_000, 60, prefixes));
    for frames in [512, 32_768] {
        for batch in [64, 256] {
            for (of, trace) in [("", &few), (OF_MANY, &many)] {
                if over.is_empty() {
                    let (name, chain) = (&format!("fwd{of}"), vec![forward()]);
                    let family = "fwd";
                    measure(Chosen { name, family, trace, frames, batch, chain, beside: None }, ways)?;
                }
                let (name, chain) = (&format!("rtr{of}{over}"), router(memory));
                let (family, beside) = ("rtr", Some(&bare));
                measure(Chosen { name, family, trace, frames, batch, chain, beside }, ways)?;
            }
        }
    }
    Ok(())
}

/// Append a CRC, and check it again, beside the copy alone.
fn crc(of: &str, trace: &Trace, ways: &mut Ways<'_>) -> anyhow::Result<()> {
    let append = || Box::new(CrcAppend) as Box<dyn Element>;
    let (family, frames, batch, beside) = ("crc", 512, 64, None);
    for (name, chain) in [
        ("fwd", vec![forward()]),
        ("crc_append", vec![append(), forward()]),
        ("crc_append, crc_check", vec![append(), Box::new(CrcCheck), forward()]),
    ] {
        let name = &format!("{name}{of}");
        measure(Chosen { name, family, trace, frames, batch, chain, beside }, ways)?;
    }
    Ok(())
}

pub(super) const CRC_FROM_MEMORY: &str = "crc_check where packets lie, in memory";
pub(super) const READ_FROM_MEMORY: &str = "words of them added up";
/// Length with the CRC.
pub(super) const IN_MEMORY: usize = 1404;

/// Packets in 1 GiB of frames, which are not copied first. In turn, measures CRC-32 that waits for memory, and the rate
/// at which memory serves one core that does next to nothing with the data.
fn from_memory(ways: &mut Ways<'_>) -> anyhow::Result<()> {
    let (frames, batch) = (1 << 19, 64);
    let bytes = |frame: usize| std::array::from_fn(|at| ((frame * FRAME + at) / 7) as u8);
    let mut pool: Vec<Frame> = (0..frames).map(|frame| Frame(bytes(frame))).collect();
    let mut append = Chain::new(vec![Box::new(CrcAppend), forward()])?;
    let mut check = Chain::new(vec![Box::new(CrcCheck), forward()])?;
    anyhow::ensure!(through(&mut append, &mut pool, IN_MEMORY - 4, batch) == frames, "not all packets left");
    let mut ns = [Vec::new(), Vec::new()];
    for _ in 0..ways.rounds {
        let start = Instant::now();
        anyhow::ensure!(through(&mut check, &mut pool, IN_MEMORY, batch) == frames, "not all CRCs are right");
        ns[0].push(start.elapsed().as_nanos() as f64 / frames as f64);
        let start = Instant::now();
        for Frame(frame) in &pool {
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

/// Runs packets of this length, one in each frame, through a chain. Returns how many left by a port.
fn through(chain: &mut Chain, pool: &mut [Frame], length: usize, most: usize) -> usize {
    let mut batch = Batch::default();
    let mut sent = 0;
    for frames in pool.chunks_mut(most) {
        let mut now = batch.emptied();
        for Frame(frame) in frames {
            now.push(frame, HEAD_ROOM, length, INGRESS).expect("it is within the frame");
        }
        chain.run(&NOW, &mut now);
        sent += now.packets().iter().filter(|packet| matches!(packet.verdict(), Verdict::To(_))).count();
        batch = now.emptied();
    }
    sent
}
