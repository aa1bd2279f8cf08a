//! How urgent threads are.

use serde::{Deserialize, Serialize};
use std::io;

/// How urgent a thread is (sched(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Urgency {
    /// `SCHED_OTHER`, `SCHED_FIFO` and the like.
    pub policy: i32,
    /// Of real-time policies 1..=99, of others 0.
    pub priority: i32,
    /// -20 to 19; counts for policies that are not real-time.
    pub nice: i32,
}

impl Urgency {
    /// Of a thread like most others, this nice.
    pub fn usual(nice: i32) -> Urgency {
        Urgency { policy: libc::SCHED_OTHER, priority: 0, nice }
    }

    /// Of a thread; `ESRCH` if it is gone.
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

    /// Makes a thread this urgent; `ESRCH` if it is gone.
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

/// Runs the calling thread by this policy (`SCHED_OTHER`, `SCHED_FIFO`; sched(7)) and with this priority from now on.
///
/// # Errors
/// The kernel does not allow it (`CAP_SYS_NICE`, `RLIMIT_RTPRIO`): all is as it was.
pub fn set_policy(policy: libc::c_int, sched_priority: libc::c_int) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority };
    // SAFETY: of the calling thread; the kernel only reads the parameters.
    let result = unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
