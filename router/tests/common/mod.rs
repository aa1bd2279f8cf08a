//! What the tests that need root share: a namespace of their own, frames, the ends of wires, and a small
//! router.
#![allow(dead_code)]

pub mod driver;
pub mod frame;
pub mod instructions;
pub mod order;
pub mod program;
pub mod ruleset;
pub mod wire;
pub mod world;

use logic::{flow::flows::Flows, memory::Capacity};
use router::plane::{Grace, MappedFlows, Polls};
use rustix::{
    net::sockopt::set_socket_recv_buffer_size_force,
    thread::{CpuSet, sched_setaffinity},
};
use std::{
    collections::BTreeSet,
    net::UdpSocket,
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread,
};

/// Tables for a test's few routes.
pub const SMALL: Capacity = Capacity::SMALL;

/// Ends a batch of changes of flow rules, as the daemon does. Returns whether there were any.
pub fn end_batch(rules: &mut Flows<Arc<MappedFlows>>, grace: &mut Grace) -> bool {
    let any = rules.seal();
    if any {
        grace.wait().unwrap();
        rules.void();
        grace.wait().unwrap();
        rules.finish();
    }
    any
}

/// Counts polls until the end of this process. Without that, no queue can be split.
pub fn count_polls() {
    watch_polls(&BTreeSet::new());
}

/// Watches these NAPI instances, and no others. Only their queues get help.
pub fn watch_polls(napis: &BTreeSet<u32>) {
    static POLLS: Mutex<Option<Polls>> = Mutex::new(None);
    POLLS.lock().unwrap().get_or_insert_with(|| Polls::start().unwrap()).watch(napis);
}

/// Runs `body` on a thread in a new network namespace, which vanishes with the thread. Needs root.
pub fn in_new_namespace(body: impl FnOnce() + Send + 'static) {
    let result = thread::spawn(move || {
        // SAFETY: moves only this thread, which ends here, into a new network namespace.
        let result = unsafe { libc::unshare(libc::CLONE_NEWNET) };
        assert_eq!(result, 0, "unshare: {}", std::io::Error::last_os_error());
        run("ip link set lo up");
        body();
    })
    .join();
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
}

/// Runs a command line (split at spaces) in this thread's namespace. If it fails, panics with its error
/// output.
pub fn run(line: &str) -> String {
    let mut words = line.split_whitespace();
    let output =
        Command::new(words.next().unwrap()).args(words).output().unwrap_or_else(|e| panic!("{line}: {e}"));
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A device's index in this thread's namespace.
pub fn ifindex(device: &str) -> u32 {
    let name = std::ffi::CString::new(device).unwrap();
    // SAFETY: a NUL-terminated name.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    assert_ne!(index, 0, "{device}: no such device");
    index
}

/// Gives a socket room for thousands of packets. A packet that came through XDP takes a page or more, so a socket
/// usually has room for only 50 of them.
pub fn give_room(socket: &UdpSocket) {
    set_socket_recv_buffer_size_force(socket, 32 << 20).unwrap();
}

/// Pins the calling thread to these cores.
pub fn only_on(cores: impl IntoIterator<Item = usize>) {
    let mut set = CpuSet::new();
    cores.into_iter().for_each(|core| set.set(core));
    sched_setaffinity(None, &set).unwrap();
}

/// Whether this is the machine that `make test-vm` emulates.
pub fn is_emulated() -> bool {
    std::env::var_os("MILLRACE_VM_NIC").is_some()
}

/// Gives the calling thread real-time priority, above all usual threads.
pub fn be_urgent() {
    let parameters = libc::sched_param { sched_priority: 50 };
    // SAFETY: concerns the calling thread only, and reads a struct of ours.
    let rc = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
}

/// Sets the flag when it is dropped: other threads see that this one is done, however it ends.
pub struct Ends<'a>(pub &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Runs `body` while a thread of real-time priority occupies a core.
pub fn hogged<T>(core: usize, body: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let _ends = Ends(&done);
        let (begun_to, begun) = mpsc::channel();
        scope.spawn({
            let done = &done;
            move || {
                only_on([core]);
                be_urgent();
                begun_to.send(()).unwrap();
                while !done.load(Relaxed) {}
            }
        });
        begun.recv().unwrap();
        body()
    })
}
