//! Memory bandwidth: what cores reach together, by the counter that workers have ([`Counter`]), so that both mean the same by it (P, footnote 7).
//!
//! Each core has a thread that goes through more memory than caches hold, line by line, and writes to it: once in order, which memory serves best, and
//! once at random, of which CPUs guess nothing: some count what they fetched on a guess as a miss, some do not. The more that was counted of the two is what there is.

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
/// What a core goes through, bytes: several times what the last caches hold, and no more than machines have to spare.
const LEAST_MEMORY: usize = 64 << 20;
const MOST_MEMORY: usize = 1 << 30;
const TIMES_CACHE: usize = 4;
/// Lines between two looks at the clock.
const STRETCH: usize = 1 << 12;
const WINDOW: Duration = Duration::from_millis(300);

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bandwidth {
    pub bytes_per_second: u64,
    /// By all of these together.
    pub cores: BTreeSet<CoreId>,
}

/// By these cores, all of which workers may have.
///
/// # Errors
/// Their CPU has no counter for us, or another reason to know nothing.
pub fn bandwidth(cores: &BTreeSet<CoreId>) -> Result<Bandwidth> {
    let open = || {
        let counter = Counter::cache_misses()
            .context("the CPU has no counter of cache misses for us: perf_event_open")?;
        Ok(move || counter.used())
    };
    by(cores, memory_of(cores.len()), WINDOW, &open)
}

/// By whatever counts memory bandwidth of the thread that opens it.
pub(super) fn by<C: Fn() -> Used>(
    cores: &BTreeSet<CoreId>,
    bytes: usize,
    window: Duration,
    open: &(impl Fn() -> Result<C> + Sync),
) -> Result<Bandwidth> {
    ensure!(!cores.is_empty(), "no cores were named");
    // Before any thread waits for another: what one cannot have none can.
    open().map(drop)?;
    let together = Barrier::new(cores.len());
    let of = |core: CoreId| {
        let ready = pin(core).and_then(|()| Ok((open()?, Walk::new(bytes)?)));
        // Also who cannot: the others wait for all.
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

/// Bytes of memory bandwidth a second while this is done again and again.
fn rate(counter: impl Fn() -> Used, window: Duration, mut stretch: impl FnMut()) -> Result<u64> {
    let (begun, before) = (Instant::now(), counter());
    while begun.elapsed() < window {
        stretch();
    }
    let (used, passed) = (counter().since(&before), begun.elapsed());
    let bytes =
        used.get(Resource::Memory).context("the CPU has too few counters for all who want one now")?;
    Ok((u128::from(bytes) * 1_000_000_000 / passed.as_nanos().max(1)).min(u64::MAX.into()) as u64)
}

/// Through memory of one core.
struct Walk {
    memory: MmapMut,
    lines: usize,
    at: usize,
    random: u64,
}

impl Walk {
    fn new(bytes: usize) -> Result<Walk> {
        let mut memory = MmapMut::map_anon(bytes).context("memory to go through")?;
        // There is none before it is written to.
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
            // Marsaglia, Xorshift RNGs (2003): the next place does not depend on what is read at this one.
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

/// For each of so many cores.
fn memory_of(cores: usize) -> usize {
    let caches = fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index3/size").unwrap_or_default();
    let kib = caches.trim().trim_end_matches('K').parse::<usize>().unwrap_or(0);
    (TIMES_CACHE * (kib << 10) / cores.max(1)).clamp(LEAST_MEMORY, MOST_MEMORY)
}
