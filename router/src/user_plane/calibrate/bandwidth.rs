//! Memory bandwidth: what cores reach together. It is counted with the counter that workers use ([`Counter`]), so that both mean
//! the same by it (P, footnote 7).
//!
//! A thread on each core writes to memory line by line, through more memory than the caches hold. It does this once in order, which
//! memory serves best, and once at random, where the CPU cannot prefetch. Some CPUs count prefetched lines as misses, some do not.
//! The larger of the two counts is the bandwidth.

use crate::user_plane::workers::{Counter, pin};
use anyhow::{Context, Result, anyhow, ensure};
use logic::{
    cores::CoreId,
    paths::{Resource, Used},
};
use memmap2::MmapMut;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    fs,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

const LINE: usize = 64;
/// Bounds of the memory that a core goes through, in bytes: several times the size of the last caches, and no more than machines
/// can spare.
const LEAST_MEMORY: usize = 64 << 20;
const MOST_MEMORY: usize = 1 << 30;
const TIMES_CACHE: usize = 4;
/// Lines between two readings of the clock.
const STRETCH: usize = 1 << 12;
const WINDOW: Duration = Duration::from_millis(300);

/// The memory bandwidth.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bandwidth {
    pub bytes_per_second: u64,
    /// The cores that reached it together.
    pub cores: BTreeSet<CoreId>,
}

/// Measures the bandwidth of these cores, which are all cores that workers may have.
///
/// # Errors
/// The CPU has no counter that we may use, or the measurement failed.
pub fn bandwidth(cores: &BTreeSet<CoreId>) -> Result<Bandwidth> {
    let open = || {
        let counter = Counter::cache_misses()
            .context("the CPU has no counter of cache misses that we may use: perf_event_open")?;
        Ok(move || counter.used())
    };
    by(cores, memory_of(cores.len()), WINDOW, &open)
}

/// Measures with a counter that `open` makes; it counts the memory bandwidth of the thread that opens it.
pub(super) fn by<C: Fn() -> Used>(
    cores: &BTreeSet<CoreId>,
    bytes: usize,
    window: Duration,
    open: &(impl Fn() -> Result<C> + Sync),
) -> Result<Bandwidth> {
    ensure!(!cores.is_empty(), "no cores were named");
    // Fails before any thread waits for another. If one counter cannot be opened, none can.
    open().map(drop)?;
    let together = Barrier::new(cores.len());
    let of = |core: CoreId| {
        let ready = pin(core).and_then(|()| Ok((open()?, Walk::new(bytes)?)));
        // A thread that failed waits too, because the others wait for all.
        together.wait();
        let (counter, mut walk) = ready?;
        Ok([rate(&counter, window, || walk.in_order())?, rate(&counter, window, || walk.at_random())?])
    };
    let rates: Vec<Result<[u64; 2]>> = thread::scope(|scope| {
        let threads: Vec<_> = cores.iter().map(|core| scope.spawn(|| of(*core))).collect();
        let panicked = |_| Err(anyhow!("a thread that measured memory panicked"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
    });
    let rates = rates.into_iter().collect::<Result<Vec<_>>>()?;
    let most = [0, 1].map(|way: usize| rates.iter().filter_map(|of| of.get(way)).sum::<u64>());
    let bytes_per_second = most.into_iter().max().unwrap_or(0);
    ensure!(bytes_per_second > 0, "the CPU's counter of cache misses counts nothing");
    Ok(Bandwidth { bytes_per_second, cores: cores.clone() })
}

/// Bytes of memory bandwidth per second while `stretch` is repeated.
fn rate(counter: impl Fn() -> Used, window: Duration, mut stretch: impl FnMut()) -> Result<u64> {
    let (begun, before) = (Instant::now(), counter());
    while begun.elapsed() < window {
        stretch();
    }
    let (used, passed) = (counter().since(&before), begun.elapsed());
    let bytes = used
        .get(Resource::Memory)
        .context("the CPU has too few counters for all programs that want one now")?;
    Ok((u128::from(bytes) * 1_000_000_000 / passed.as_nanos().max(1)).min(u64::MAX.into()) as u64)
}

/// A walk through memory, by one core.
struct Walk {
    memory: MmapMut,
    lines: usize,
    at: usize,
    random: u64,
}

impl Walk {
    fn new(bytes: usize) -> Result<Walk> {
        let mut memory = MmapMut::map_anon(bytes).context("no memory to walk through")?;
        // Pages exist only after they are written.
        memory.fill(1);
        Ok(Walk { lines: memory.len() / LINE, memory, at: 0, random: 1 })
    }

    fn in_order(&mut self) {
        for _ in 0..STRETCH {
            self.at = (self.at + 1) % self.lines;
            self.write(self.at);
        }
    }

    fn at_random(&mut self) {
        for _ in 0..STRETCH {
            // Marsaglia, Xorshift RNGs (2003): the next position does not depend on the content of this one.
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            self.write((self.random % self.lines as u64) as usize);
        }
    }

    #[inline]
    fn write(&mut self, line: usize) {
        if let Some(byte) = self.memory.get_mut(line * LINE) {
            *byte = byte.wrapping_add(1);
        }
    }
}

/// The bytes that each of these cores goes through.
fn memory_of(cores: usize) -> usize {
    let caches = fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index3/size").unwrap_or_default();
    let kib = caches.trim().trim_end_matches('K').parse::<usize>().unwrap_or(0);
    (TIMES_CACHE * (kib << 10) / cores.max(1)).clamp(LEAST_MEMORY, MOST_MEMORY)
}
