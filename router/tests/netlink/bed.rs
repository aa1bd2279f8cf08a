//! Namespaces of a test's own, and functions that wait for events.

use logic::observe::{Dump, Event};
use router::linux::{
    netns::{self, Source},
    observer::{HOST, Observer, ObserverConfig},
};
use std::{
    collections::VecDeque,
    fs::File,
    io::Write as _,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

/// Long enough for the slowest setting that is polled.
pub const PATIENCE: Duration = Duration::from_secs(8);

/// Namespaces and processes that a test made; they end with it.
pub struct Bed {
    prefix: String,
    made: std::cell::RefCell<Vec<String>>,
    processes: std::cell::RefCell<Vec<Child>>,
}

impl Bed {
    pub fn name(&self, short: &str) -> String {
        format!("{}-{short}", self.prefix)
    }

    /// Makes a namespace, and returns its full name.
    pub fn namespace(&self, short: &str) -> String {
        let name = self.name(short);
        sh(&format!("ip netns add {name}"));
        self.made.borrow_mut().push(name.clone());
        name
    }

    /// Starts a process in a namespace without a name, and returns its number.
    pub fn unnamed(&self) -> u32 {
        self.unnamed_by(&["unshare", "-n"])
    }

    /// The same, for the user `nobody`.
    pub fn unnamed_of_a_user(&self) -> u32 {
        self.unnamed_by(&["setpriv", "--reuid=65534", "--clear-groups", "unshare", "-U", "-r", "-n"])
    }

    fn unnamed_by(&self, command: &[&str]) -> u32 {
        let child = Command::new(command[0]).args(&command[1..]).args(["sleep", "600"]).spawn().unwrap();
        let pid = child.id();
        self.processes.borrow_mut().push(child);
        let own = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        while std::fs::read_link(format!("/proc/{pid}/ns/net")).unwrap() == own {
            std::thread::sleep(Duration::from_millis(5));
        }
        pid
    }

    pub fn end_process(&self, pid: u32) {
        for child in self.processes.borrow_mut().iter_mut().filter(|child| child.id() == pid) {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    pub fn end_processes(&self) {
        for mut child in self.processes.borrow_mut().drain(..) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.end_processes();
        for name in self.made.borrow().iter() {
            let _ = Command::new("ip").args(["netns", "del", name]).stderr(Stdio::null()).status();
        }
    }
}

/// Runs `test` in a namespace that has a port `port0` that is up. This is a veth with its other end in a
/// namespace `peer`.
pub fn with_bed(test: impl FnOnce(&Bed) + Send) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let prefix = format!("mrnl{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let bed = Bed { prefix, made: Default::default(), processes: Default::default() };
    let host = bed.namespace("host");
    let peer = bed.namespace("peer");
    let file = File::open(format!("/run/netns/{host}")).unwrap();
    // The bed is moved in, so that a panic in there still cleans up.
    netns::inside(&file, move || {
        sh(&format!("ip link add port0 type veth peer name far0 netns {peer}"));
        sh(&format!("ip link set lo up; ip link set port0 up; ip -n {peer} link set far0 up"));
        test(&bed);
    })
    .expect("the test panicked, as shown above");
}

pub fn sh(command: &str) {
    let output = Command::new("sh").args(["-ec", command]).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

pub fn batch(lines: impl Iterator<Item = String>) {
    let mut child = Command::new("ip").args(["-force", "-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut input = std::io::BufWriter::new(child.stdin.take().unwrap());
    for line in lines {
        writeln!(input, "{line}").unwrap();
    }
    drop(input);
    assert!(child.wait().unwrap().success());
}

/// An observer, and events that it returned and no test has asked for yet.
pub struct Watcher {
    pub observer: Observer,
    pub pending: VecDeque<Event>,
}

impl std::ops::Deref for Watcher {
    type Target = Observer;
    fn deref(&self) -> &Observer {
        &self.observer
    }
}

impl std::ops::DerefMut for Watcher {
    fn deref_mut(&mut self) -> &mut Observer {
        &mut self.observer
    }
}

pub fn observer() -> Watcher {
    observer_of(&[])
}

/// An observer that has these routers configured.
pub fn observer_of(routers: &[Source]) -> Watcher {
    let (ports, routers) = (vec!["port0".parse().unwrap()], routers.to_vec());
    let observer = Observer::new(ObserverConfig { ports, routers, ..Default::default() }).unwrap();
    Watcher { observer, pending: VecDeque::new() }
}

/// Takes events until `wanted` returns something for one of them.
pub fn until<T>(watcher: &mut Watcher, what: &str, mut wanted: impl FnMut(&Event) -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    let mut seen = Vec::new();
    while Instant::now() < end {
        while let Some(event) = watcher.pending.pop_front() {
            if let Some(found) = wanted(&event) {
                return found;
            }
            if seen.len() < 100 {
                seen.push(event);
            }
        }
        let events = watcher.observer.poll(Duration::from_millis(100)).unwrap();
        watcher.pending.extend(events);
    }
    panic!("no {what} within {PATIENCE:?}; seen: {seen:#?}");
}

/// Takes all events until it has been quiet for a while.
pub fn settle(observer: &mut Watcher) -> Vec<Event> {
    let mut all: Vec<Event> = observer.pending.drain(..).collect();
    loop {
        let events = observer.poll(Duration::from_millis(150)).unwrap();
        if events.is_empty() {
            return all;
        }
        all.extend(events);
    }
}

pub fn host_dump(observer: &mut Watcher) -> Dump {
    until(observer, "dump of the host", |e| match e {
        Event::Dump(HOST, dump) => Some((**dump).clone()),
        _ => None,
    })
}
