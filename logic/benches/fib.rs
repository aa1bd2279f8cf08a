//! Measures the forwarding table: `cargo bench -p millrace-logic --bench fib`.
//!
//! First it prints a table of all shapes: load time, memory, update rate, nanoseconds per lookup. All are in CPU time
//! of this thread, on which other work on the machine has less influence than on wall time. Then criterion measures
//! lookups of the shapes in use. With the argument `table` it only prints the table, with `ipv6` only its IPv6 part in
//! the shape in use. It uses real prefixes from shared/data beside the repository if they are there, and otherwise
//! synthetic ones (`logic::fib::synthetic`).

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
    time::Duration,
};

const DESTINATIONS: [usize; 4] = [1, 4_096, 100_000, 1_000_000];

/// The time that this thread has been on a core, from the scheduler.
fn cpu_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(text.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0))
}

/// Nanoseconds per lookup for each set of destinations, the best of three.
fn lookup_ns<A: Copy>(sets: &[Vec<A>], find: impl Fn(A) -> u32) -> String {
    let mut columns = String::new();
    for set in sets {
        let count = set.len().max(4_000_000);
        let times = (0..3).map(|_| {
            let start = cpu_time();
            black_box(
                set.iter().cycle().take(count).fold(0u32, |sum, a| sum.wrapping_add(find(black_box(*a)))),
            );
            (cpu_time() - start).as_nanos() as f64 / count as f64
        });
        columns += &format!(" {:.1} |", times.fold(f64::INFINITY, f64::min));
    }
    columns
}

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
        // Maps are mapped before the first route is added.
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

fn build<A: Address>(
    name: &str,
    prefixes: &[Prefix<A>],
    sets: &[Vec<A>],
    policy: Policy,
    blocks: usize,
) -> Bed<A> {
    let mut bed = Bed::new(policy, blocks);
    let start = cpu_time();
    for (i, prefix) in prefixes.iter().enumerate() {
        bed.change(*prefix, Some(leaf(i)));
        if i % 8192 == 0 {
            bed.reclaim();
        }
    }
    let built = cpu_time() - start;
    bed.reclaim();
    let (blocks, tails) = (bed.pool.blocks_used().used, bed.pool.tails_used().used);
    let bytes = blocks * words::FIB_BLOCK * 4 + tails * words::FIB_TAIL * 8;
    let mut random = synthetic::Random(5);
    let (changes, start) = (100_000, cpu_time());
    for i in 0..changes / 2 {
        let prefix = prefixes[random.below(prefixes.len() as u32) as usize];
        bed.change(prefix, None);
        bed.change(prefix, Some(leaf(i)));
        if i % 256 == 0 {
            bed.reclaim();
        }
    }
    let rate = f64::from(changes as u32) / (cpu_time() - start).as_secs_f64();
    println!(
        "| {name} | {:.2} s | {blocks} | {tails} | {:.1} | {:.1} MiB | {:.2} M/s |{}",
        built.as_secs_f64(),
        bytes as f64 / prefixes.len() as f64,
        bytes as f64 / f64::from(1 << 20),
        rate / 1e6,
        lookup_ns(sets, |a| bed.lookup(a)),
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
        // Enough lookups per iteration to go around the whole set, and not only its first part.
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

/// The alternative structure for IPv6: a hash table per prefix length, searched by length with markers (Waldvogel et
/// al., SIGCOMM 1997). It is static: built once from all routes.
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
                // A marker remembers the best match so far, so that a search that follows it in error need not go back.
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

/// The routes that Linux has for 4,096 interfaces: for each a /64 with `::`, the interface's own `::1`, and two more
/// host routes. The lookups are for neighbours `::9` to `::f8`.
fn interfaces() {
    let net = |i: u128| 0x2001_0db8u128 << 96 | i << 64;
    let hosts = [(0, 64), (0, 128), (1, 128), (0x10, 128), (0x11, 128)];
    let routes: Vec<Prefix6> =
        (0..4096).flat_map(|i| hosts.map(|(h, l)| Prefix::new(net(i) | h, l).expect("length"))).collect();
    let mut random = synthetic::Random(9);
    let mut address = || net(random.below(4096).into()) | u128::from(9 + random.below(240));
    let sets: Vec<Vec<u128>> = DESTINATIONS.iter().map(|n| (0..*n).map(|_| address()).collect()).collect();
    header("IPv6, 4,096 interfaces");
    for (name, tails) in [("no tails", false), ("as grown", true)] {
        build(name, &routes, &sets, Policy { tails, ..Policy::of::<u128>() }, 200_000);
    }
}

fn header(first: &str) {
    println!(
        "\n| {first} | load | blocks | tails | bytes/route | memory | updates | ns: 1 | 4,096 | 100,000 | 1,000,000 destinations |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
}

fn main() {
    let only6 = std::env::args().any(|a| a == "ipv6");
    let (source, four, six) = load();
    println!("{source}: {} IPv4, {} IPv6", four.len(), six.len());
    let sets4: Vec<_> = DESTINATIONS.iter().map(|n| destinations(&four, *n, |a| a as u32)).collect();
    let sets6: Vec<_> = DESTINATIONS.iter().map(|n| destinations(&six, *n, |a| a)).collect();
    let name = |bits: u8, tails: bool| format!("{bits}-bit root{}", if tails { "" } else { ", no tails" });

    if only6 {
        header("IPv6");
        build("as grown", &six, &sets6, Policy::of::<u128>(), 400_000);
        return interfaces();
    }
    header("IPv4");
    for (bits, tails) in [(8, true), (16, true), (24, true), (24, false)] {
        build(&name(bits, tails), &four, &sets4, shape(bits, tails), 200_000);
    }
    let four_bed = build("as grown", &four, &sets4, Policy::of::<u32>(), 200_000);
    header("IPv6");
    for (bits, tails) in [(8, true), (24, true), (16, false), (16, true)] {
        build(&name(bits, tails), &six, &sets6, shape(bits, tails), 400_000);
    }
    let six_bed = build("as grown", &six, &sets6, Policy::of::<u128>(), 400_000);
    by_length(&six, &sets6, &six_bed);
    roots(&four);
    interfaces();
    if std::env::args().any(|a| a == "table") {
        return;
    }
    let mut c =
        Criterion::default().sample_size(10).measurement_time(Duration::from_secs(1)).configure_from_args();
    lookups(&mut c, "ipv4", "as grown", &sets4, |a| four_bed.lookup(a));
    lookups(&mut c, "ipv6", "as grown", &sets6, |a| six_bed.lookup(a));
    c.final_summary();
}

fn by_length(six: &[Prefix6], sets: &[Vec<u128>], bed: &Bed<u128>) {
    let start = cpu_time();
    let by_length = ByLength::new(six, bed);
    let (built, bytes) = (cpu_time() - start, by_length.entries() * 33);
    assert!(sets[2].iter().all(|a| by_length.lookup(*a) == bed.lookup(*a)));
    println!(
        "| hash per length | {:.2} s | | {} entries | {:.1} | {:.1} MiB | static |{}",
        built.as_secs_f64(),
        by_length.entries(),
        bytes as f64 / six.len() as f64,
        bytes as f64 / f64::from(1 << 20),
        lookup_ns(sets, |a| by_length.lookup(a)),
    );
}

/// Shows where a bigger root is worth it: tables of some hundreds and some thousands of routes.
fn roots(four: &[Prefix4]) {
    header("IPv4, few routes");
    for routes in [64, 256, 1024, 4096, 16_384, 65_536] {
        let some: Vec<_> = four.iter().copied().step_by(four.len() / routes).take(routes).collect();
        let sets: Vec<_> = DESTINATIONS[..3].iter().map(|n| destinations(&some, *n, |a| a as u32)).collect();
        for bits in [8, 16, 24] {
            build(&format!("{routes} routes, {bits}-bit root"), &some, &sets, shape(bits, true), 150_000);
        }
    }
}
