//! The heartbeat of a generation: how long it forwards without being confirmed again. Any thread may set it.

use super::{CONNECTIONS_DEADLINE, Pace, RULES_DEADLINE, Words64};
use anyhow::{Context, Result};
use libbpf_rs::libbpf_sys as sys;
use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

/// Its words of `struct control`, and the program that reads jiffies.
pub struct Heart {
    pub(super) control: Words64,
    pub(super) clock: OwnedFd,
    pub(super) pace: Pace,
    /// Flow rules go on without a daemon.
    pub(super) rules_outlast: AtomicBool,
}

impl Heart {
    /// Confirms the mirror until `deadline` (CLOCK_MONOTONIC); past it every packet goes to the kernel.
    ///
    /// # Errors
    /// The kernel did not run the program that reads jiffies; the deadline is unchanged.
    pub fn beat_until(&self, deadline: Duration) -> Result<()> {
        let (now, jiffies) = self.clock()?;
        let hz = self.pace.hz(now, jiffies);
        let left = deadline.saturating_sub(now).as_secs_f64() * hz;
        let deadline_jiffies = if deadline > now { jiffies.saturating_add(left as u64) } else { jiffies - 1 };
        self.control.store(0, u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX));
        self.control.store(1, deadline_jiffies);
        self.control.store(
            RULES_DEADLINE,
            if self.rules_outlast.load(Relaxed) { u64::MAX } else { deadline_jiffies },
        );
        Ok(())
    }

    /// Connections may bypass the rules for this time from then; zero: from now on they may not. `then`: from
    /// [`Heart::jiffies`].
    pub fn extend_connections(&self, (_, jiffies, hz): (Duration, u64, f64), time: Duration) {
        let ticks = (time.as_secs_f64() * hz) as u64;
        let deadline = if ticks == 0 { 0 } else { jiffies.saturating_add(ticks) };
        self.control.store(CONNECTIONS_DEADLINE, deadline);
    }

    /// The time now: CLOCK_MONOTONIC, jiffies, and jiffies per second.
    ///
    /// # Errors
    /// The kernel did not run the program that reads jiffies.
    pub fn jiffies(&self) -> Result<(Duration, u64, f64)> {
        let (now, jiffies) = self.clock()?;
        Ok((now, jiffies, self.pace.hz(now, jiffies)))
    }

    /// Sets whether flow rules go on without a daemon.
    pub(super) fn set_rules_outlast(&self, outlast: bool) {
        let before = self.rules_outlast.swap(outlast, Relaxed);
        if outlast {
            self.control.store(RULES_DEADLINE, u64::MAX);
        } else if before {
            // As the last beat would have set it.
            self.control.store(RULES_DEADLINE, self.control.load(1));
        }
    }

    /// CLOCK_MONOTONIC and jiffies, now.
    fn clock(&self) -> Result<(Duration, u64)> {
        let mut options =
            sys::bpf_test_run_opts { sz: size_of::<sys::bpf_test_run_opts>() as _, ..Default::default() };
        // SAFETY: a program's descriptor, and options that outlive the call and hold no pointers.
        let rc = unsafe { sys::bpf_prog_test_run_opts(self.clock.as_raw_fd(), &raw mut options) };
        if rc < 0 {
            return Err(io::Error::from_raw_os_error(-rc)).context("reading the kernel's clock");
        }
        Ok((super::monotonic(), self.control.load(2)))
    }
}
