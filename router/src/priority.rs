//! How urgent threads are.

use std::io;

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
