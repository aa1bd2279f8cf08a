//! The few system calls that the standard library lacks. All `unsafe` about processes, threads and socket options is
//! here; for most calls rustix has a safe one.

use std::{
    ffi::CString,
    io,
    os::fd::{AsRawFd, BorrowedFd},
    os::unix::{process::CommandExt, thread::JoinHandleExt},
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use router::{
    base::{clock::monotonic, priority::set_policy},
    linux::netlink::socket::set_option,
};
use rustix::{
    io::Errno,
    process::{self, Pid, Signal},
    thread::{CpuSet, LinkNameSpaceType, move_into_link_name_space, sched_getaffinity, sched_setaffinity},
};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static TERMINATED: AtomicBool = AtomicBool::new(false);

/// The user, or the program that runs us, asked us to stop (SIGINT, SIGTERM or SIGHUP).
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

extern "C" fn on_signal(signal: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
    if signal != libc::SIGINT {
        TERMINATED.store(true, Ordering::Relaxed);
    }
}

extern "C" fn on_wake(_: libc::c_int) {}

fn handle(signal: libc::c_int, handler: extern "C" fn(libc::c_int)) {
    // SAFETY: an all-zero sigaction is valid (no flags, so system calls are interrupted); the handlers only store to
    // atomics or do nothing, which is async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        libc::sigaction(signal, &action, std::ptr::null_mut());
    }
}

/// From now on SIGINT, SIGTERM and SIGHUP make [`sleep`] and [`check_interrupted`] fail, so that everything on the
/// stack is dropped and cleans up. SIGUSR1 only wakes a thread from a system call ([`wake`]).
pub fn handle_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        handle(signal, on_signal);
    }
    handle_wake();
}

/// See [`handle_signals`]. Needed before [`wake`]; harmless when repeated.
pub fn handle_wake() {
    handle(libc::SIGUSR1, on_wake);
}

/// Fails once a signal has asked us to stop.
pub fn check_interrupted() -> Result<(), Interrupted> {
    if INTERRUPTED.load(Ordering::Relaxed) { Err(Interrupted) } else { Ok(()) }
}

/// Did the signal go to this process alone (SIGTERM, SIGHUP), and not to the whole terminal, as Ctrl-C does?
pub fn terminated() -> bool {
    TERMINATED.load(Ordering::Relaxed)
}

/// Sleeps. A signal that asks us to stop ends the sleep.
pub fn sleep(duration: Duration) -> Result<(), Interrupted> {
    let end = Instant::now() + duration;
    loop {
        check_interrupted()?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(Duration::from_millis(50)));
    }
}

/// Interrupts the system call that a thread is in, if any; needs [`handle_wake`].
pub fn wake<T>(thread: &JoinHandle<T>) {
    // SAFETY: the handle exists, so the thread has not been joined and its id is valid; SIGUSR1's handler does nothing.
    unsafe { libc::pthread_kill(thread.as_pthread_t(), libc::SIGUSR1) };
}

/// Index of a network device in the calling thread's namespace.
pub fn interface_index(name: &str) -> io::Result<u32> {
    let name = CString::new(name)?;
    // SAFETY: `name` is a terminated string.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Moves the calling thread into a network namespace.
pub fn enter_network_namespace(namespace: BorrowedFd<'_>) -> io::Result<()> {
    Ok(move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?)
}

/// Makes `command` start in a network namespace. Unlike `ip netns exec`, this keeps the mounts, such as /sys/fs/bpf.
/// `namespace` must stay open until the command has been spawned.
pub fn start_in_network_namespace(command: &mut Command, namespace: BorrowedFd<'_>) {
    let fd = namespace.as_raw_fd();
    // SAFETY: setns is async-signal-safe, and the closure touches nothing else; the caller keeps the descriptor open.
    unsafe {
        command.pre_exec(move || enter_network_namespace(BorrowedFd::borrow_raw(fd)));
    }
}

/// Makes `command` end when the thread that spawns it ends, even if that thread is killed.
pub fn end_with_parent(command: &mut Command) {
    // SAFETY: prctl is async-signal-safe, and the closure touches nothing else.
    unsafe {
        command.pre_exec(|| Ok(process::set_parent_process_death_signal(Some(Signal::TERM))?));
    }
}

/// Makes `command` run on any core, even if its parent is pinned.
pub fn start_on_all_cores(command: &mut Command) {
    // SAFETY: sched_setaffinity is async-signal-safe, and the closure touches nothing else.
    unsafe {
        command.pre_exec(|| set_affinity(0, &[]));
    }
}

/// Restricts a thread to these cores, or lets it run on all cores if none is named. Thread 0 is the calling one. Cores that
/// do not exist are ignored.
pub fn set_affinity(thread_id: i32, cores: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    let named = |core: &usize| cores.is_empty() || cores.contains(core);
    (0..CpuSet::MAX_CPU).filter(named).for_each(|core| set.set(core));
    Ok(sched_setaffinity(Pid::from_raw(thread_id), &set)?)
}

/// The cores that a thread may run on.
pub fn affinity(thread_id: i32) -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(Pid::from_raw(thread_id))?;
    Ok((0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect())
}

/// Makes datagrams of this socket leave without a UDP checksum.
pub fn without_checksum(socket: BorrowedFd<'_>) -> io::Result<()> {
    set_option(&socket, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1)
}

/// Sets the nice value of one thread.
pub fn set_nice(thread_id: i32, nice: i32) -> io::Result<()> {
    Ok(process::setpriority_process(Pid::from_raw(thread_id), nice)?)
}

/// Sets the weight of a thread's session among sessions (sched_autogroup). Does nothing where that is off, or for a
/// kernel thread. Use it only for sessions of their own.
pub fn set_group_nice(thread_id: i32, nice: i32) -> io::Result<()> {
    match std::fs::write(format!("/proc/{thread_id}/autogroup"), nice.to_string()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Gives the session of this process a great weight among sessions: its threads go before nearly all normal threads.
/// Dropping this restores the old weight.
pub struct Weighty {
    before: String,
}

impl Weighty {
    const FILE: &str = "/proc/self/autogroup";

    /// Starts it. Where sched_autogroup is off there are no such weights, and this does nothing.
    pub fn own_session() -> io::Result<Self> {
        let text = std::fs::read_to_string(Self::FILE).unwrap_or_default();
        let before = text.split("nice ").nth(1).map_or_else(String::new, |nice| nice.trim().to_owned());
        if !before.is_empty() {
            std::fs::write(Self::FILE, "-20")?;
        }
        Ok(Self { before })
    }
}

impl Drop for Weighty {
    fn drop(&mut self) {
        if !self.before.is_empty() {
            let _ = std::fs::write(Self::FILE, &self.before);
        }
    }
}

/// Makes `command` start in a session, and so a scheduling group, of its own. Ctrl-C does not reach it.
pub fn start_in_own_session(command: &mut Command) {
    // SAFETY: setsid is async-signal-safe, and the closure touches nothing else.
    unsafe {
        command.pre_exec(|| Ok(process::setsid().map(drop)?));
    }
}

/// Lets a thread (0: the calling one) run before all normal ones. A higher level goes before a lower one; `None` is
/// normal again. Its children are normal. Nice values alone do not suffice, because the kernel shares cores evenly
/// between sessions (sched_autogroup).
pub fn set_realtime(thread_id: i32, level: Option<i32>) -> io::Result<()> {
    let policy = level.map_or(libc::SCHED_OTHER, |_| libc::SCHED_RR | libc::SCHED_RESET_ON_FORK);
    let parameter = libc::sched_param { sched_priority: level.unwrap_or(0) };
    // SAFETY: `parameter` is valid for the call.
    check(unsafe { libc::sched_setscheduler(thread_id, policy, &parameter) })
}

/// Makes the calling process the last to run: idle scheduling, in a session of its own with the least weight. Where
/// sched_autogroup is on, the kernel shares cores between sessions by their weights.
pub fn become_last() -> io::Result<()> {
    // It fails, harmlessly, for a process that already leads a group.
    let _ = process::setsid();
    set_group_nice(std::process::id() as i32, 19)?;
    set_policy(libc::SCHED_IDLE, 0)
}

/// Id of the calling thread.
pub fn thread_id() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Is there a process with this id?
pub fn process_exists(pid: i32) -> bool {
    Pid::from_raw(pid).is_some_and(|pid| process::test_kill_process(pid) != Err(Errno::SRCH))
}

/// CPU time of a process so far, including threads that have ended.
pub fn process_cpu(pid: i32) -> io::Result<Duration> {
    let mut clock = 0;
    // SAFETY: the variable for the clock's id is ours.
    match unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) } {
        0 => {}
        error => return Err(io::Error::from_raw_os_error(error)),
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is ours.
    check(unsafe { libc::clock_gettime(clock, &raw mut time) })?;
    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// Asks one process to end (SIGTERM); it may be gone already.
pub fn terminate(pid: i32) {
    send_signal(pid, Signal::TERM);
}

/// Kills one process, which may be gone already (SIGKILL).
pub fn kill(pid: i32) {
    send_signal(pid, Signal::KILL);
}

/// Tells a shell that its terminal is gone (SIGHUP).
pub fn hang_up(pid: i32) {
    send_signal(pid, Signal::HUP);
}

fn send_signal(pid: i32, signal: Signal) {
    let _ = one(pid).map(|pid| process::kill_process(pid, signal));
}

/// Kills a process group, by the id of its leader.
pub fn kill_group(leader: i32) {
    let _ = one(leader).map(|leader| process::kill_process_group(leader, Signal::KILL));
}

/// A process other than init. Smaller numbers would mean other things.
fn one(pid: i32) -> Option<Pid> {
    if pid > 1 { Pid::from_raw(pid) } else { None }
}

/// Is the effective user root?
pub fn is_root() -> bool {
    process::geteuid().is_root()
}

/// CLOCK_MONOTONIC in nanoseconds: the clock of `bpf_ktime_get_ns`.
pub fn monotonic_ns() -> u64 {
    monotonic().as_nanos() as u64
}
