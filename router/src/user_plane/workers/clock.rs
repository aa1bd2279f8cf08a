//! The clock of workers. It counts cycles of the time stamp counter if that runs evenly, also through sleep states (CPUID
//! says that it is invariant). Otherwise it counts nanoseconds of the monotonic clock, where a reading costs about 20 ns
//! more. (`unsafe` lives here, to read the time stamp counter.)

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// How long the counter is compared with the monotonic clock. The result is right to some 100 parts per million.
const COMPARED: Duration = Duration::from_millis(10);

/// A clock. All workers have copies, which read the same.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    source: Source,
    hz: u64,
    /// Nanoseconds of a cycle, in units of 2^-32.
    ns_32: u64,
    begun: Instant,
    first: u64,
}

#[derive(Clone, Copy, Debug)]
enum Source {
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    TimeStampCounter,
    Monotonic,
    /// The time of a test.
    Ticks(&'static AtomicU64),
}

/// Nanoseconds that a reading adds to a test's time. Otherwise, a worker that waits for time to pass would wait for ever.
const READING_NS: u64 = 20;

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock {
    /// The clock of the process. Times can be compared only if they come from the same clock.
    pub fn of_process() -> Clock {
        static CLOCK: OnceLock<Clock> = OnceLock::new();
        *CLOCK.get_or_init(Clock::new)
    }

    /// The best clock that this machine has.
    fn new() -> Clock {
        let monotonic = Clock {
            source: Source::Monotonic,
            hz: 1_000_000_000,
            ns_32: 1 << 32,
            begun: Instant::now(),
            first: 0,
        };
        if !is_invariant() {
            return monotonic;
        }
        let (begun, first) = (Instant::now(), counter());
        std::thread::sleep(COMPARED);
        let (passed, cycles) = (begun.elapsed().as_nanos() as u64, counter().saturating_sub(first));
        let Some(hz) = (u128::from(cycles) * 1_000_000_000).checked_div(passed.into()).filter(|hz| *hz > 0)
        else {
            return monotonic;
        };
        let ns_32 = (u128::from(passed) << 32) / u128::from(cycles);
        Clock { source: Source::TimeStampCounter, hz: hz as u64, ns_32: ns_32 as u64, begun, first }
    }

    /// A clock of nanoseconds that a test with one worker counts itself, so that no other program can use up that worker's
    /// time.
    #[doc(hidden)]
    pub fn of_ticks(ticks: &'static AtomicU64) -> Clock {
        Clock {
            source: Source::Ticks(ticks),
            hz: 1_000_000_000,
            ns_32: 1 << 32,
            begun: Instant::now(),
            first: 0,
        }
    }

    /// A reading of the clock. The cycles of all readings have the same length.
    #[inline]
    pub fn cycles(&self) -> u64 {
        match self.source {
            Source::TimeStampCounter => counter(),
            Source::Monotonic => self.begun.elapsed().as_nanos() as u64,
            Source::Ticks(ticks) => read_ticks(ticks),
        }
    }

    /// Nanoseconds from the making of the clock to this reading.
    #[inline]
    pub fn ns(&self, cycles: u64) -> u64 {
        ((u128::from(cycles.saturating_sub(self.first)) * u128::from(self.ns_32)) >> 32) as u64
    }

    /// Cycles in a second.
    pub fn hz(&self) -> u64 {
        self.hz
    }

    /// Cycles in this time.
    pub fn cycles_of(&self, time: Duration) -> u64 {
        (time.as_nanos() * u128::from(self.hz) / 1_000_000_000) as u64
    }

    /// Its name, for reports.
    pub fn name(&self) -> &'static str {
        match self.source {
            Source::TimeStampCounter => "time stamp counter",
            Source::Monotonic => "monotonic clock",
            Source::Ticks(_) => "ticks",
        }
    }
}

#[cold]
fn read_ticks(ticks: &AtomicU64) -> u64 {
    ticks.fetch_add(READING_NS, Relaxed)
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn counter() -> u64 {
    // SAFETY: every x86-64 CPU has this instruction, and Linux lets programs use it unless the program itself forbids it
    // (PR_SET_TSC).
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn counter() -> u64 {
    0
}

/// AMD64 Architecture Programmer's Manual volume 3, Fn8000_0007 EDX bit 8 (TscInvariant); Intel's is the same.
#[cfg(target_arch = "x86_64")]
fn is_invariant() -> bool {
    use core::arch::x86_64::__cpuid;
    const POWER_MANAGEMENT: u32 = 0x8000_0007;
    __cpuid(0x8000_0000).eax >= POWER_MANAGEMENT && __cpuid(POWER_MANAGEMENT).edx & 1 << 8 != 0
}

#[cfg(not(target_arch = "x86_64"))]
fn is_invariant() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_runs_as_the_monotonic_clock_does() {
        let clock = Clock::new();
        let (begun, first) = (Instant::now(), clock.cycles());
        std::thread::sleep(Duration::from_millis(50));
        let (passed, last) = (begun.elapsed().as_nanos() as f64, clock.cycles());
        let ratio = (clock.ns(last) - clock.ns(first)) as f64 / passed;
        assert!((0.98..1.02).contains(&ratio), "{ratio}, by the {}", clock.name());
        let second = clock.cycles_of(Duration::from_secs(1)) as f64 / clock.hz() as f64;
        assert!((0.999..1.001).contains(&second));
    }
}
