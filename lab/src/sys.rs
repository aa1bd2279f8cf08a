//! The few system calls that the standard library lacks. All `unsafe` about processes, threads and socket options is
//! here.

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
    // SAFETY: setns takes no pointers.
    check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) })
}

/// Makes `command` start in a network namespace. Unlike `ip netns exec`, this keeps the mounts, such as /sys/fs/bpf.
/// `namespace` must stay open until the command has been spawned.
pub fn start_in_network_namespace(command: &mut Command, namespace: BorrowedFd<'_>) {
    let fd = namespace.as_raw_fd();
    // SAFETY: setns is async-signal-safe, and the closure touches nothing else.
    unsafe {
        command.pre_exec(move || check(libc::setns(fd, libc::CLONE_NEWNET)));
    }
}

/// Makes `command` end when the thread that spawns it ends, even if that thread is killed.
pub fn end_with_parent(command: &mut Command) {
    // SAFETY: prctl is async-signal-safe, and the closure touches nothing else.
    unsafe {
        command.pre_exec(|| check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM)));
    }
}

/// Makes `command` run on any core, even if its parent is pinned.
pub fn start_on_all_cores(command: &mut Command) {
    // SAFETY: sched_setaffinity is async-signal-safe, and the closure touches nothing else.
    unsafe {
        command.pre_exec(|| set_affinity(0, &[]));
    }
}

/// Restricts a thread to these cores, or lets it run on all cores if none is named. Thread 0 is the calling one.
pub fn set_affinity(thread_id: i32, cores: &[usize]) -> io::Result<()> {
    // SAFETY: cpu_set_t is plain bits, all-zero is the empty set; CPU_SET ignores numbers beyond its size; the kernel
    // ignores cores that do not exist.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        cores.iter().for_each(|&core| libc::CPU_SET(core, &mut set));
        if cores.is_empty() {
            (0..libc::CPU_SETSIZE as usize).for_each(|core| libc::CPU_SET(core, &mut set));
        }
        check(libc::sched_setaffinity(thread_id, size_of_val(&set), &set))
    }
}

/// The cores that a thread may run on.
pub fn affinity(thread_id: i32) -> io::Result<Vec<usize>> {
    // SAFETY: cpu_set_t is plain bits, all-zero is the empty set, and the kernel writes at most its size; CPU_ISSET is asked
    // for numbers within it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        check(libc::sched_getaffinity(thread_id, size_of_val(&set), &mut set))?;
        Ok((0..libc::CPU_SETSIZE as usize).filter(|&core| libc::CPU_ISSET(core, &set)).collect())
    }
}

/// A queue of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Data that it received.
    Receive,
    /// Data that it sent, until it is freed, wherever it is.
    Send,
}

/// Lets a queue of a socket hold this many bytes. The machine's limit for other sockets does not apply.
pub fn set_buffer(socket: BorrowedFd<'_>, queue: Queue, bytes: i32) -> io::Result<()> {
    let option = match queue {
        Queue::Receive => libc::SO_RCVBUFFORCE,
        Queue::Send => libc::SO_SNDBUFFORCE,
    };
    set_socket_option(socket, option, bytes)
}

/// Makes datagrams of this socket leave without a UDP checksum.
pub fn without_checksum(socket: BorrowedFd<'_>) -> io::Result<()> {
    set_socket_option(socket, libc::SO_NO_CHECK, 1)
}

fn set_socket_option(socket: BorrowedFd<'_>, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: `value` is valid for `length` bytes.
    check(unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const value).cast(), length)
    })
}

/// Sets the nice value of one thread.
pub fn set_nice(thread_id: i32, nice: i32) -> io::Result<()> {
    // SAFETY: takes no pointers; thread ids are positive.
    check(unsafe { libc::setpriority(libc::PRIO_PROCESS, thread_id as libc::id_t, nice) })
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
        command.pre_exec(|| if libc::setsid() < 0 { Err(io::Error::last_os_error()) } else { Ok(()) });
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
    // SAFETY: setsid has no preconditions; it fails, harmlessly, for a process that already leads a group.
    unsafe { libc::setsid() };
    set_group_nice(std::process::id() as i32, 19)?;
    let parameter = libc::sched_param { sched_priority: 0 };
    // SAFETY: `parameter` is valid for the call.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &parameter) })
}

/// Id of the calling thread.
pub fn thread_id() -> i32 {
    // SAFETY: has no preconditions.
    unsafe { libc::gettid() }
}

/// Is there a process with this id?
pub fn process_exists(pid: i32) -> bool {
    // SAFETY: signal 0 only tests whether the process exists.
    unsafe { libc::kill(pid, 0) == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH) }
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
    send_signal(pid, libc::SIGTERM);
}

/// Kills one process, which may be gone already (SIGKILL).
pub fn kill(pid: i32) {
    send_signal(pid, libc::SIGKILL);
}

/// Kills a process group, by the id of its leader.
pub fn kill_group(leader: i32) {
    if leader > 1 {
        // SAFETY: kill takes no pointers; a negative id is a group's.
        unsafe { libc::kill(-leader, libc::SIGKILL) };
    }
}

/// Tells a shell that its terminal is gone (SIGHUP).
pub fn hang_up(pid: i32) {
    send_signal(pid, libc::SIGHUP);
}

fn send_signal(pid: i32, signal: libc::c_int) {
    if pid > 1 {
        // SAFETY: kill takes no pointers; pid is positive, so one process is meant.
        unsafe { libc::kill(pid, signal) };
    }
}

/// Is the effective user root?
pub fn is_root() -> bool {
    // SAFETY: has no preconditions.
    unsafe { libc::geteuid() == 0 }
}

/// CLOCK_MONOTONIC in nanoseconds: the clock of `bpf_ktime_get_ns`.
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid timespec; CLOCK_MONOTONIC always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
