//! The clock of all deadlines.

use std::time::Duration;

/// CLOCK_MONOTONIC.
pub fn monotonic() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(t.tv_sec.try_into().unwrap_or(0), t.tv_nsec.try_into().unwrap_or(0))
}
