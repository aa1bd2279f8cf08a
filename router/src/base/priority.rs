//! Scheduling policies and priorities of threads.

use serde::{Deserialize, Serialize};
use std::io;

/// The scheduling of a thread (sched(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Urgency {
    /// `SCHED_OTHER`, `SCHED_FIFO` and the like.
    pub policy: i32,
    /// 1 to 99 for real-time policies, 0 for others.
    pub priority: i32,
    /// -20 to 19; matters for policies that are not real-time.
    pub nice: i32,
}

impl Urgency {
    /// A normal thread with this nice value.
    pub fn usual(nice: i32) -> Urgency {
        Urgency { policy: libc::SCHED_OTHER, priority: 0, nice }
    }

    /// Reads the scheduling of a thread; `ESRCH` if it is gone.
    pub fn of(thread: libc::pid_t) -> io::Result<Urgency> {
        let mut parameters = libc::sched_param { sched_priority: 0 };
        // SAFETY: the kernel writes the parameters, which are ours, and nothing else.
        let (policy, result) =
            unsafe { (libc::sched_getscheduler(thread), libc::sched_getparam(thread, &raw mut parameters)) };
        if policy < 0 || result < 0 {
            return Err(io::Error::last_os_error());
        }
        let nice = rustix::process::getpriority_process(rustix::process::Pid::from_raw(thread))?;
        Ok(Urgency { policy, priority: parameters.sched_priority, nice })
    }

    /// Applies this to a thread; `ESRCH` if it is gone.
    pub fn set(self, thread: libc::pid_t) -> io::Result<()> {
        let parameters = libc::sched_param { sched_priority: self.priority };
        // SAFETY: the kernel only reads the parameters.
        if unsafe { libc::sched_setscheduler(thread, self.policy, &raw const parameters) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let pid = rustix::process::Pid::from_raw(thread);
        Ok(rustix::process::setpriority_process(pid, self.nice)?)
    }
}

/// Sets the policy (`SCHED_OTHER`, `SCHED_FIFO`; sched(7)) and the priority of the calling thread.
///
/// # Errors
/// The kernel does not allow it (`CAP_SYS_NICE`, `RLIMIT_RTPRIO`); nothing changes.
pub fn set_policy(policy: libc::c_int, sched_priority: libc::c_int) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority };
    // SAFETY: this changes the calling thread; the kernel only reads the parameters.
    let result = unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
