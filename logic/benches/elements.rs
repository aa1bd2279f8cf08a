//! Chains of elements measured, memory to memory on one core: `cargo bench -p millrace-logic --bench elements`.
//!
//! A packet is copied from a trace into the next frame of a pool (2,048 bytes each, data from byte 256 on, as AF_XDP has them), a batch of
//! them runs through a chain, and the verdict and length of each is read. Trace: packets of `bytes` each, one after another in
//! memory, each flow once. Pool: 512 frames (their headers stay in the second-level cache), or 32,768 (64 MiB, more than
//! any cache: each header comes from memory, as after a NIC without direct cache access).
//!
//! A line says nanoseconds for each packet and millions in a second, by wall time: the best, median and worst of 9 runs of 2,000,000 packets or
//! more. Real prefixes are taken from the file of shared/data beside the repository, or that which `PREFIXES` names, when it is
//! there, made-up ones (`logic::fib::synthetic`) otherwise. Arguments: the beginnings of names of what is to be measured.

use logic::{
    elements::{
        Batch, Chain, Check, CrcAppend, CrcCheck, Element, Forward, Ingress, Now, Rewrite, Route, Ttl,
    },
    fib::synthetic::{self, Random},
    memory::{Capacity, HeapMemory},
    net::{Mac, Prefix4, Vlan},
    plan::{Hop, Interface, Op, ReversePath, Target},
    tables::{Tables, encoding::IF_IPV4},
};
use std::{path::Path, process::Command, sync::Arc, time::Instant};

const FRAME: usize = 2048;
const HEAD_ROOM: usize = 256;
const NEXT_HOPS: u32 = 256;
const NOW: Now = Now { ns: 0, ports: u64::MAX };

fn load() -> (&'static str, Vec<Prefix4>) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/internet-prefixes.txt.gz");
    let real = std::env::var_os("PREFIXES").map_or(file, Into::into);
    let real = Command::new("gzip").arg("-dc").arg(real).output();
    match real.ok().filter(|o| o.status.success()).and_then(|o| String::from_utf8(o.stdout).ok()) {
        Some(text) => ("real", text.lines().filter_map(|l| l.parse().ok()).collect()),
        None => ("made-up", synthetic::prefixes4(900_000, 1)),
    }
}

fn tables(prefixes: &[Prefix4]) -> Arc<HeapMemory> {
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
const LINE: usize = 64;

/// Frames one behind another, each in lines of its own, to random addresses in random prefixes.
struct Trace {
    bytes: usize,
    packets: Vec<u8>,
    /// With right headers.
    right: usize,
}

impl Trace {
    fn new(flows: usize, bytes: usize, prefixes: &[Prefix4]) -> Self {
        let mut random = Random(flows as u64);
        let mut packets = Vec::with_capacity(flows * bytes.next_multiple_of(LINE));
        let mut flow = 0u32;
        while packets.len() < flows * bytes.next_multiple_of(LINE) {
            let prefix = prefixes[random.below(prefixes.len() as u32) as usize];
            let host = (random.next_u64() as u32).checked_shr(prefix.length().into()).unwrap_or(0);
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
        Trace { bytes, packets, right: flows }
    }

    /// Every second packet, at random, gets a wrong header checksum.
    fn half_broken(mut self) -> Self {
        let mut random = Random(1);
        for packet in self.packets.chunks_exact_mut(self.bytes.next_multiple_of(LINE)) {
            if random.below(2) == 0 {
                packet[24] ^= 1;
                self.right -= 1;
            }
        }
        self
    }
}

/// By lines, so that the compiler knows how long it is.
fn copy(frame: &mut [u8], packet: &[u8]) {
    let (lines, _) = frame[HEAD_ROOM..].as_chunks_mut::<LINE>();
    for (line, from) in lines.iter_mut().zip(packet.as_chunks::<LINE>().0) {
        *line = *from;
    }
}

/// Runs the trace once: how many packets left by a port, and their bytes.
fn pass(trace: &Trace, pool: &mut [u8], chain: &mut Chain, most: usize) -> (usize, usize) {
    let ingress = Ingress { port: 1, router: 0, interface: 1, flags: IF_IPV4 };
    let (mut sent, mut bytes) = (0, 0);
    let mut packets = trace.packets.chunks_exact(trace.bytes.next_multiple_of(LINE)).peekable();
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
                if let Some(logic::elements::Verdict::To(_)) = packet.verdict() {
                    sent += 1;
                    bytes += packet.length();
                }
            }
            batch = now.emptied();
        }
    }
    (sent, bytes)
}

fn measure(name: &str, trace: &Trace, frames: usize, most: usize, chain: Vec<Box<dyn Element>>) {
    let name = format!("{name}, {} B, {frames} frames, batches of {most}", trace.bytes);
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    if !wanted.is_empty() && !wanted.iter().any(|w| name.starts_with(w.as_str())) {
        return;
    }
    let mut chain = Chain::new(chain).expect("it is a chain");
    let mut pool = vec![1; frames * FRAME];
    let packets = trace.packets.len() / trace.bytes.next_multiple_of(LINE);
    let passes = 2_000_000usize.div_ceil(packets);
    let run = |chain: &mut Chain, pool: &mut [u8]| {
        let start = Instant::now();
        for _ in 0..passes {
            let (sent, _) = std::hint::black_box(pass(trace, pool, chain, most));
            assert_eq!(sent, trace.right, "all right packets leave by a port");
        }
        start.elapsed().as_nanos() as f64 / (passes * packets) as f64
    };
    run(&mut chain, &mut pool);
    let mut ns: Vec<f64> = (0..9).map(|_| run(&mut chain, &mut pool)).collect();
    ns.sort_by(f64::total_cmp);
    let line = |ns: f64| format!("{ns:.2} ns {:.1} Mpps", 1e3 / ns);
    println!("{name}: best {}, median {}, worst {}", line(ns[0]), line(ns[4]), line(ns[8]));
}

fn router(memory: &Arc<HeapMemory>) -> Vec<Box<dyn Element>> {
    vec![Box::new(Check), Box::new(Route::new(memory.clone())), Box::new(Ttl), Box::new(Rewrite)]
}

/// How fast the core is: multiplications that wait for each other.
fn clock() {
    let (start, mut x) = (Instant::now(), std::hint::black_box(3u64));
    for _ in 0..100_000_000 {
        x = x.wrapping_mul(x | 1);
    }
    std::hint::black_box(x);
    println!(
        "a multiplication and an or, one after another: {:.3} ns",
        start.elapsed().as_nanos() as f64 / 1e8
    );
}

fn main() {
    let (source, prefixes) = load();
    println!("{source} prefixes: {}", prefixes.len());
    let memory = tables(&prefixes);
    let (few, many) = (Trace::new(1024, 60, &prefixes), Trace::new(1_000_000, 60, &prefixes));
    clock();
    let broken = Trace::new(16_384, 60, &prefixes).half_broken();
    measure("RTR, 16,384 flows, half of them broken", &broken, 512, 64, router(&memory));
    for frames in [512, 32_768] {
        for most in [64, 256] {
            measure("nothing but the copy", &few, frames, most, vec![Box::new(Forward::new(2))]);
            measure("RTR, 1,024 flows", &few, frames, most, router(&memory));
            measure("nothing but the copy, 1,000,000", &many, frames, most, vec![Box::new(Forward::new(2))]);
            measure("RTR, 1,000,000 destinations", &many, frames, most, router(&memory));
        }
    }
    for bytes in [60, 1400] {
        let trace = Trace::new(1024, bytes, &prefixes);
        let append = || Box::new(CrcAppend) as Box<dyn Element>;
        measure("FWD", &trace, 512, 64, vec![Box::new(Forward::new(2))]);
        measure("CRC append", &trace, 512, 64, vec![append(), Box::new(Forward::new(2))]);
        let check = Box::new(CrcCheck);
        measure("CRC append and check", &trace, 512, 64, vec![append(), check, Box::new(Forward::new(2))]);
    }
}
