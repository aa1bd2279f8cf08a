//! The forwarding table measured: `cargo bench -p millrace-logic --bench fib`.
//!
//! First a table of build time, memory and update rate for each shape, then lookups by criterion. Real prefixes are
//! taken from shared/data beside the repository when it is there, made-up ones (`logic::fib::synthetic`) otherwise.

use criterion::{BenchmarkId, Criterion, Throughput};
use logic::{
    fib::{Policy, Pool, Slot, Space, Table, empty_root, lookup, synthetic},
    memory::{Capacity, HeapMemory, Memory, words},
    net::{Address, Prefix, Prefix4, Prefix6},
};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    hash::{BuildHasherDefault, Hasher},
    hint::black_box,
    path::Path,
    process::Command,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

const DESTINATIONS: [usize; 4] = [1, 4_096, 100_000, 1_000_000];

struct Bed<A> {
    memory: HeapMemory,
    pool: Pool,
    root: AtomicU64,
    table: Table<A>,
}

impl<A: Address> Bed<A> {
    fn new(policy: Policy, fib_blocks: usize) -> Self {
        let memory = HeapMemory::new(Capacity {
            fib_blocks,
            fib_tails: 400_000,
            nexthops: 0,
            neighbour_buckets: 0,
            interface_buckets: 0,
            routers: 0,
        });
        // Mapped maps are there before the first route is.
        memory.fib().iter().step_by(1024).for_each(|w| w.store(0, Relaxed));
        let (pool, root) = (Pool::new(&memory), AtomicU64::new(empty_root::<A>()));
        Self { memory, pool, root, table: Table::with_policy(policy) }
    }

    fn change(&mut self, prefix: Prefix<A>, leaf: Option<Slot>) {
        let full = Slot::nexthop(1);
        let mut space = Space { memory: &self.memory, pool: &mut self.pool, root: &self.root, full };
        match leaf {
            Some(leaf) => self.table.insert(&mut space, prefix, leaf).expect("room"),
            None => _ = self.table.remove(&mut space, prefix),
        }
    }

    fn reclaim(&mut self) {
        let epoch = self.pool.seal();
        self.pool.reclaim(epoch);
    }

    fn lookup(&self, address: A) -> u32 {
        lookup(&self.memory, self.root.load(Relaxed), address).0
    }
}

fn leaf(i: usize) -> Slot {
    Slot::nexthop(2 + (i as u32).wrapping_mul(0x9e37_79b1) % 64)
}

fn load() -> (&'static str, Vec<Prefix4>, Vec<Prefix6>) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/internet-prefixes.txt.gz");
    let real = Command::new("gzip").arg("-dc").arg(&file).output();
    match real.ok().filter(|o| o.status.success()).and_then(|o| String::from_utf8(o.stdout).ok()) {
        Some(text) => (
            "real prefixes",
            text.lines().filter_map(|l| l.parse().ok()).collect(),
            text.lines().filter_map(|l| l.parse().ok()).collect(),
        ),
        None => ("synthetic prefixes", synthetic::prefixes4(900_000, 1), synthetic::prefixes6(160_000, 1)),
    }
}

/// Random addresses inside random prefixes.
fn destinations<A: Address>(prefixes: &[Prefix<A>], count: usize, from_bits: impl Fn(u128) -> A) -> Vec<A> {
    let mut random = synthetic::Random(count as u64);
    (0..count)
        .map(|_| {
            let prefix = prefixes[random.below(prefixes.len() as u32) as usize];
            let host = u128::from(random.next_u64()) << 64 | u128::from(random.next_u64());
            let host = host.checked_shr(prefix.length().into()).unwrap_or(0);
            from_bits((prefix.address().left_aligned() | host) >> (128 - u32::from(A::BITS)))
        })
        .collect()
}

fn build<A: Address>(name: &str, prefixes: &[Prefix<A>], policy: Policy, blocks: usize) -> Bed<A> {
    let mut bed = Bed::new(policy, blocks);
    let start = Instant::now();
    for (i, prefix) in prefixes.iter().enumerate() {
        bed.change(*prefix, Some(leaf(i)));
        if i % 8192 == 0 {
            bed.reclaim();
        }
    }
    let built = start.elapsed();
    bed.reclaim();
    let (blocks, tails) = (bed.pool.blocks_used().used, bed.pool.tails_used().used);
    let bytes = blocks * words::FIB_BLOCK * 4 + tails * words::FIB_TAIL * 8;
    let mut random = synthetic::Random(5);
    let (changes, start) = (100_000, Instant::now());
    for i in 0..changes / 2 {
        let prefix = prefixes[random.below(prefixes.len() as u32) as usize];
        bed.change(prefix, None);
        bed.change(prefix, Some(leaf(i)));
        if i % 256 == 0 {
            bed.reclaim();
        }
    }
    let rate = f64::from(changes as u32) / start.elapsed().as_secs_f64();
    println!(
        "| {name} | {:.2} s | {blocks} | {tails} | {:.1} | {:.1} MiB | {:.2} M/s |",
        built.as_secs_f64(),
        bytes as f64 / prefixes.len() as f64,
        bytes as f64 / f64::from(1 << 20),
        rate / 1e6,
    );
    bed
}

fn shape(bits: u8, tails: bool) -> Policy {
    let at = |wanted: u8| if bits >= wanted { 0 } else { usize::MAX };
    Policy { routes_16: at(16), routes_24: at(24), tails }
}

/// Lookups per destination set, by criterion.
fn lookups<A: Address>(c: &mut Criterion, group: &str, name: &str, sets: &[Vec<A>], find: impl Fn(A) -> u32) {
    let mut group = c.benchmark_group(group);
    for set in sets {
        // Enough lookups per iteration to go round the whole set, and not only its first part.
        let count = set.len().max(65_536);
        group.throughput(Throughput::Elements(count as u64));
        group.bench_with_input(BenchmarkId::new(name, set.len()), set, |b, set| {
            b.iter(|| {
                let all = set.iter().cycle().take(count);
                black_box(all.fold(0u32, |sum, a| sum.wrapping_add(find(black_box(*a)))))
            })
        });
    }
    group.finish();
}

/// The other structure for IPv6: a hash table per prefix length, searched by length with markers (Waldvogel et al.,
/// SIGCOMM 1997). Static: built once from all routes.
struct ByLength {
    lengths: Vec<u8>,
    tables: Vec<HashMap<u128, (bool, u32), BuildHasherDefault<Mix>>>,
}

#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
    fn write(&mut self, _: &[u8]) {}
    fn write_u128(&mut self, v: u128) {
        let h = (v >> 64) as u64 ^ (v as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = (h ^ h >> 31).wrapping_mul(0xff51_afd7_ed55_8ccd);
    }
}

impl ByLength {
    fn new(prefixes: &[Prefix6], bed: &Bed<u128>) -> Self {
        let lengths: Vec<u8> =
            prefixes.iter().map(|p| p.length()).collect::<HashSet<_>>().into_iter().collect();
        let mut this = Self { lengths, tables: Vec::new() };
        this.lengths.sort_unstable();
        this.tables.resize_with(this.lengths.len(), HashMap::default);
        let routes: BTreeMap<Prefix6, u32> = bed.table.routes().map(|(p, s)| (p, s.0)).collect();
        for (prefix, leaf) in &routes {
            let (mut low, mut high) = (0, this.lengths.len());
            while low < high {
                let middle = (low + high) / 2;
                let length = this.lengths[middle];
                if length > prefix.length() {
                    high = middle;
                    continue;
                }
                let key = prefix.address().masked(length);
                if length == prefix.length() {
                    this.tables[middle].insert(key, (true, *leaf));
                    break;
                }
                // A marker remembers the best match so far, so that a search led astray need not go back.
                let best = (0..=length).rev().find_map(|l| routes.get(&Prefix::new(key, l)?));
                this.tables[middle].entry(key).or_insert((best.is_some(), best.copied().unwrap_or(0)));
                low = middle + 1;
            }
        }
        this
    }

    fn lookup(&self, address: u128) -> u32 {
        let (mut low, mut high, mut best) = (0, self.lengths.len(), 0);
        while low < high {
            let middle = (low + high) / 2;
            match self.tables[middle].get(&address.masked(self.lengths[middle])) {
                Some((found, leaf)) => {
                    best = if *found { *leaf } else { best };
                    low = middle + 1;
                }
                None => high = middle,
            }
        }
        best
    }

    fn entries(&self) -> usize {
        self.tables.iter().map(HashMap::capacity).sum()
    }
}

fn main() {
    let (source, four, six) = load();
    let mut c = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800))
        .configure_from_args();
    println!("{source}: {} IPv4, {} IPv6", four.len(), six.len());
    println!("| shape | load | blocks | tails | bytes/route | memory | updates |");
    println!("|---|---|---|---|---|---|---|");
    let sets4: Vec<_> = DESTINATIONS.iter().map(|n| destinations(&four, *n, |a| a as u32)).collect();
    let sets6: Vec<_> = DESTINATIONS.iter().map(|n| destinations(&six, *n, |a| a)).collect();

    for (bits, tails) in [(8, true), (16, true), (24, true), (24, false)] {
        let name = format!("{bits}-bit root{}", if tails { "" } else { ", no tails" });
        let bed = build(&format!("IPv4 {name}"), &four, shape(bits, tails), 200_000);
        lookups(&mut c, "ipv4", &name, &sets4, |a| bed.lookup(a));
    }
    let grown = build("IPv4 as grown", &four, Policy::of::<u32>(), 200_000);
    drop(grown);
    for (bits, tails) in [(8, true), (16, true), (24, true), (16, false)] {
        let name = format!("{bits}-bit root{}", if tails { "" } else { ", no tails" });
        let bed = build(&format!("IPv6 {name}"), &six, shape(bits, tails), 400_000);
        lookups(&mut c, "ipv6", &name, &sets6, |a| bed.lookup(a));
        if bits == 24 {
            let start = Instant::now();
            let by_length = ByLength::new(&six, &bed);
            let bytes = by_length.entries() * 33;
            println!(
                "| IPv6 hash per length | {:.2} s | | {} entries | {:.1} | {:.1} MiB | static |",
                start.elapsed().as_secs_f64(),
                by_length.entries(),
                bytes as f64 / six.len() as f64,
                bytes as f64 / f64::from(1 << 20)
            );
            assert!(sets6[2].iter().all(|a| by_length.lookup(*a) == bed.lookup(*a)));
            lookups(&mut c, "ipv6", "hash per length", &sets6, |a| by_length.lookup(a));
        }
    }
    roots(&mut c, &four);
    c.final_summary();
}

/// Where a bigger root pays: tables of some hundreds and some thousands of routes.
fn roots(c: &mut Criterion, four: &[Prefix4]) {
    for routes in [64, 256, 1024, 4096, 16_384, 65_536] {
        let some: Vec<_> = four.iter().copied().step_by(four.len() / routes).take(routes).collect();
        let sets = [destinations(&some, 4096, |a| a as u32)];
        for bits in [8, 16, 24] {
            let name = format!("{bits}-bit root");
            let bed = build(&format!("IPv4 {routes} routes, {name}"), &some, shape(bits, true), 150_000);
            lookups(c, &format!("ipv4 {routes} routes"), &name, &sets, |a| bed.lookup(a));
        }
    }
}
