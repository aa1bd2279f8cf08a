//! Sees changes of policy inside the system calls that make them (`bpf/policy.bpf.c`), and marks the routers concerned.
//! Packets of a marked router go to the kernel until user space has read the change. [`crate::daemon`] decides when
//! that is.
//!
//! The map of marks outlives generations of the kernel plane. The sockets end with the process. Links are pinned, and
//! `millrace stop` removes them. [`Policy::unseen`] reports the kinds of changes that cannot be watched.

use super::{
    MAX_ROUTERS, Mapping, Words64,
    connections::ConnectionMaps,
    icmp_errors::{ErrorNotes, IcmpErrors, RouterErrors},
};
use crate::linux::{
    hazards::{netfilter, xfrm},
    netlink::{
        nsid,
        socket::{Socket, set_option},
    },
    netns::{self, NamespaceRef},
    observer::Waker,
};
use anyhow::{Context, Result};
use libbpf_rs::{
    Link, MapCore, MapFlags, MapHandle, OpenObject, ProgramInput, ProgramMut, RingBufferBuilder, libbpf_sys,
    skel::{OpenSkel, SkelBuilder},
};
use logic::plan::RouterId;
use rustix::{
    event::{PollFd, PollFlags, poll},
    time::Timespec,
};
use skeleton::{PolicySkel, PolicySkelBuilder, types};
use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    fs::File,
    io,
    mem::{MaybeUninit, offset_of},
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    sync::atomic::{
        AtomicU64,
        Ordering::{AcqRel, Acquire, Release, SeqCst},
    },
    thread,
    time::Duration,
};

#[allow(clippy::all, clippy::undocumented_unsafe_blocks, missing_docs, non_camel_case_types, non_snake_case)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/policy.skel.rs"));
}

/// A row of `policy_slots`, for one namespace. A router's namespace has the router's number.
pub type Slot = u32;
/// The namespace of the ports.
pub const HOST: Slot = MAX_ROUTERS as Slot;
const SLOTS: usize = MAX_ROUTERS + 1;
const SLOT_WORDS: usize = size_of::<types::policy_slot>() / 8;
const PENDING: usize = offset_of!(types::policy_slot, pending) / 8;
const EARLY_NS: usize = offset_of!(types::policy_slot, early_ns) / 8;
const ROUTER: usize = offset_of!(types::policy_slot, router) / 8;
const ALL: usize = offset_of!(types::policy_slot, all) / 8;
const NO_DEVICE_CHAINS: usize = offset_of!(types::policy_slot, no_device_chains) / 8;

/// The number by which a viewer knows its namespace.
const VIEWED: i32 = 1;
/// The kinds of changes that programs for all namespaces see.
const SETTINGS: &str = "settings without a message (net.ipv4.*, net.ipv6.*)";
const LEGACY: &str = "legacy iptables";
/// Changes within this time wake user space once.
const PAUSE: Duration = Duration::from_millis(1);
/// The interval of the search for new BPF links, which the kernel does not report, and for notes of ICMP errors.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 15_000_000 };

/// Protocols, and their groups from `include/uapi/linux/{rtnetlink,netfilter/nfnetlink,xfrm}.h` that report policy
/// changes.
const GROUPS: [(i32, &[u32], &str); 3] = [
    // TC, IPV4_RULE, IPV6_RULE, IPV4_NETCONF, IPV6_NETCONF
    (libc::NETLINK_ROUTE, &[4, 8, 19, 24, 25], "policy rules, qdiscs, filters and forwarding"),
    (libc::NETLINK_NETFILTER, &[netfilter::GROUP], "nftables"),
    (libc::NETLINK_XFRM, &[xfrm::GROUP], "IPsec policies"),
];

/// The maps, shared by all loaded programs.
struct Maps {
    plane: PlaneMaps,
    slots: MapHandle,
    cookies: MapHandle,
    wakes: MapHandle,
    daemon: MapHandle,
}

/// The maps that the kernel plane shares with a [`Policy`].
pub struct PlaneMaps {
    /// Marks of routers, which the kernel plane reads.
    pub marks: MapHandle,
    /// Destinations of ICMP errors, which the kernel plane notes.
    pub learned: MapHandle,
    /// The number of ICMP errors of each router since the last look.
    pub learned_counts: MapHandle,
    /// Connections that bypass the rules, if there may be any.
    pub connections: Option<ConnectionMaps>,
}

impl PlaneMaps {
    /// # Errors
    /// There is no descriptor left.
    pub fn try_clone(&self) -> libbpf_rs::Result<PlaneMaps> {
        Ok(PlaneMaps {
            marks: MapHandle::try_from(&self.marks)?,
            learned: MapHandle::try_from(&self.learned)?,
            learned_counts: MapHandle::try_from(&self.learned_counts)?,
            connections: self.connections.as_ref().map(ConnectionMaps::try_clone).transpose()?,
        })
    }
}

/// The watch on one namespace. It ends on drop.
struct Watched {
    sockets: Vec<netlink_sys::Socket>,
    cookie: Option<u64>,
    missing: Missing,
}

impl Watched {
    fn watching(&self) -> Watching {
        match (self.missing.is_empty(), self.sockets.is_empty()) {
            (true, _) => Watching::All,
            (false, false) => Watching::Some,
            (false, true) => Watching::Nothing,
        }
    }
}

/// The kinds of changes that are seen in a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Watching {
    /// No message of the kernel.
    Nothing,
    /// Not all.
    Some,
    /// All that can be seen.
    All,
}

/// The marks, and the watches that set them.
pub struct Policy {
    maps: Option<Maps>,
    /// Unread changes, by router.
    marks: Words64,
    slots: Words64,
    watched: BTreeMap<Slot, Watched>,
    /// Kinds of changes that are not seen inside the system call in any namespace, and why.
    unseen: Missing,
    /// Kinds that were reported as not seen.
    reported: BTreeSet<&'static str>,
    /// Links of the programs that watch all namespaces, by the names of their pins.
    links: Vec<(&'static str, Link)>,
    /// Ends the thread that wakes the daemon.
    stop: Option<Waker>,
    notes: ErrorNotes,
}

impl Drop for Policy {
    fn drop(&mut self) {
        self.stop.iter().for_each(Waker::wake);
    }
}

impl Policy {
    /// Watches nothing: nothing else sets marks.
    ///
    /// # Errors
    /// There is no memory.
    pub fn blind() -> Result<Policy> {
        Ok(Policy {
            maps: None,
            marks: Mapping::anonymous(MAX_ROUTERS * 8)?.into(),
            slots: Mapping::anonymous(SLOTS * SLOT_WORDS * 8)?.into(),
            watched: BTreeMap::new(),
            unseen: Missing::new(),
            reported: BTreeSet::new(),
            links: Vec::new(),
            stop: None,
            notes: ErrorNotes::default(),
        })
    }

    /// Watches settings and legacy iptables, of no namespace yet. `waker` is used after each change. With
    /// `marks_at_exit`, all routers are marked when this process ends. `connections`: the most that may bypass the rules.
    ///
    /// # Errors
    /// The kernel refuses the maps.
    pub fn start(waker: Waker, marks_at_exit: bool, connections: usize) -> Result<Policy> {
        let mut storage = MaybeUninit::uninit();
        let skel = load(&mut storage, None, Which::None)?;
        let map = |map: &libbpf_rs::MapMut<'_>| MapHandle::try_from(map).context("keeping a map of policy");
        let maps = Maps {
            plane: PlaneMaps {
                marks: map(&skel.maps.policy)?,
                learned: map(&skel.maps.learned)?,
                learned_counts: map(&skel.maps.learned_counts)?,
                connections: connection_maps(connections),
            },
            slots: map(&skel.maps.policy_slots)?,
            cookies: map(&skel.maps.policy_cookies)?,
            wakes: map(&skel.maps.policy_wakes)?,
            daemon: map(&skel.maps.policy_daemon)?,
        };
        let notes = ErrorNotes::default();
        let mut policy = Policy {
            marks: Mapping::new(maps.plane.marks.as_fd(), 8, MAX_ROUTERS)?.into(),
            slots: Mapping::new(maps.slots.as_fd(), size_of::<types::policy_slot>(), SLOTS)?.into(),
            stop: Some(Watcher::start(&maps, waker, notes.clone())?),
            notes,
            maps: Some(maps),
            watched: BTreeMap::new(),
            unseen: Missing::new(),
            reported: BTreeSet::new(),
            links: Vec::new(),
        };
        policy.watch_settings();
        if marks_at_exit {
            policy.watch_daemon();
        }
        Ok(policy)
    }

    /// The map of marks.
    pub fn map(&self) -> Option<&MapHandle> {
        self.maps.as_ref().map(|maps| &maps.plane.marks)
    }

    /// For the kernel plane.
    pub fn plane_maps(&self) -> Option<&PlaneMaps> {
        self.maps.as_ref().map(|maps| &maps.plane)
    }

    /// ICMP errors since the last call, by router.
    pub fn take_noted(&self) -> BTreeMap<RouterId, RouterErrors> {
        self.notes.take()
    }

    /// Kinds of changes that are not seen inside the system call now, as sentences.
    pub fn unseen(&self) -> Vec<String> {
        let of_namespaces = self.watched.values().flat_map(|watched| &watched.missing);
        let mut kinds = BTreeMap::new();
        for (what, why) in self.unseen.iter().chain(of_namespaces) {
            kinds.entry(what).or_insert(why);
        }
        kinds.into_iter().map(|(what, why)| format!("{what}: {why}")).collect()
    }

    /// Links that must outlive this process, each with the name to pin it by.
    pub fn take_links(&mut self) -> Vec<(&'static str, Link)> {
        std::mem::take(&mut self.links)
    }

    fn watch_settings(&mut self) {
        let attach = |which: fn(bool) -> Which| {
            let root = root_cgroup().context("opening the root of control groups")?;
            let attach = |which| self.attach(which, |program| program.attach_cgroup(root.as_raw_fd()));
            // A machine in lockdown "confidentiality" lets no program read the kernel's memory.
            attach(which(true)).or_else(|error| {
                tracing::warn!(
                    error = format!("{error:#}"),
                    "cannot check the privileges of tasks: those that may not change a policy mark routers, too"
                );
                attach(which(false))
            })
        };
        let (settings, read) = (attach(Which::SettingWritten), attach(Which::OptionRead));
        let written = attach(Which::OptionWritten);
        self.keep(SETTINGS, "policy-settings", settings);
        self.keep(LEGACY, "policy-options", read);
        self.keep(LEGACY, "policy-tables", written);
    }

    fn watch_daemon(&mut self) {
        let attached = self.register().and_then(|()| {
            self.attach(Which::DaemonExits, |program| program.attach_raw_tracepoint("sched_process_exit"))
        });
        self.keep("the end of the daemon", "policy-exit", attached);
    }

    /// Registers this process as the daemon.
    fn register(&self) -> Result<()> {
        let mut storage = MaybeUninit::uninit();
        let skel = load(&mut storage, self.maps.as_ref(), Which::DaemonIsHere)?;
        skel.progs.daemon_is_here.test_run(ProgramInput::default()).context("registering this process")?;
        Ok(())
    }

    fn attach(
        &self,
        which: Which,
        attach: impl FnOnce(&ProgramMut<'_>) -> libbpf_rs::Result<Link>,
    ) -> Result<Link> {
        let mut storage = MaybeUninit::uninit();
        let skel = load(&mut storage, self.maps.as_ref(), which)?;
        let program = match which {
            Which::SettingWritten(_) => &skel.progs.setting_written,
            Which::OptionRead(_) => &skel.progs.option_read,
            Which::OptionWritten(_) => &skel.progs.option_written,
            _ => &skel.progs.daemon_exits,
        };
        attach(program).with_context(|| format!("attaching {which:?}"))
    }

    fn keep(&mut self, what: &'static str, name: &'static str, link: Result<Link>) {
        match link {
            Ok(link) => self.links.push((name, link)),
            Err(error) => {
                let missing = (what, format!("{error:#}"));
                self.report(std::slice::from_ref(&missing));
                self.unseen.push(missing);
            }
        }
    }

    /// Reports each kind once.
    fn report(&mut self, missing: &[(&'static str, String)]) {
        for (what, why) in missing {
            if self.reported.insert(what) {
                tracing::warn!("changes are not seen while they are made, but soon after: {what}: {why}");
            }
        }
    }

    /// Sees changes in this namespace from now on. It reports kinds that cannot be watched. Another call tries these
    /// again and loses no kind. After each call that sees more, [`Policy::bind`] makes earlier changes count as unread.
    pub fn watch(&mut self, slot: Slot, place: Option<&NamespaceRef>) -> Watching {
        let Some(maps) = &self.maps else { return Watching::All };
        let watched = match place {
            Some(place) => watch(maps, slot, place),
            None => Watched { sockets: Vec::new(), cookie: None, missing: nothing_because("it is gone") },
        };
        self.report(&watched.missing);
        match self.watched.entry(slot) {
            Entry::Vacant(free) => free.insert(watched).watching(),
            Entry::Occupied(mut before) => {
                let before = before.get_mut();
                before.cookie = before.cookie.or(watched.cookie);
                if watched.missing.len() < before.missing.len() {
                    *before = watched;
                }
                before.watching()
            }
        }
    }

    /// Stops watching this namespace.
    pub fn forget(&mut self, slot: Slot) {
        let gone = self.watched.remove(&slot);
        if let (Some(maps), Some(cookie)) = (&self.maps, gone.and_then(|gone| gone.cookie)) {
            let _ = maps.cookies.delete(&cookie.to_ne_bytes());
        }
        self.word(slot, ROUTER).store(0, Release);
    }

    /// Makes changes in this namespace mark this router, and marks it now: earlier changes may be unread.
    pub fn bind(&self, slot: Slot, router: Option<RouterId>) {
        self.word(slot, ROUTER).store(router.map_or(0, |router| u64::from(router) + 1), Release);
        self.word(slot, PENDING).fetch_add(1, AcqRel);
        if let Some(router) = router {
            self.marks.as_slice()[usize::from(router)].fetch_add(1, AcqRel);
        }
    }

    /// The number of unread changes of this router's policy.
    pub fn marks(&self, router: RouterId) -> u64 {
        self.marks.load(router.into())
    }

    /// Removes the mark after `read` changes were read; false: there are more by now.
    pub fn unmark(&self, router: RouterId, read: u64) -> bool {
        self.marks.as_slice()[usize::from(router)].compare_exchange(read, 0, AcqRel, Acquire).is_ok()
    }

    /// The number of changes in a namespace since the last call. The caller is about to read them.
    pub fn take_pending(&self, slot: Slot) -> u64 {
        match self.word(slot, PENDING).load(Acquire) {
            0 => 0,
            _ => self.word(slot, PENDING).swap(0, AcqRel),
        }
    }

    /// Takes note whether a chain of the host may be bound to a device, as of a reading that began after `read` changes
    /// that concern all. If none is, later changes of the host's rules do not concern all.
    pub fn note_device_chains(&self, may_be: bool, read: u64) {
        let word = self.word(HOST, NO_DEVICE_CHAINS);
        word.store(u64::from(!may_be), SeqCst);
        // A chain that came since then has set it to 0, maybe before the line above.
        if self.changes_of_all() != read {
            word.store(0, SeqCst);
        }
    }

    /// The number of changes in the host's namespace so far that concern all routers.
    pub fn changes_of_all(&self) -> u64 {
        self.word(HOST, ALL).load(Acquire)
    }

    /// The time of the last change that was seen before it was made (CLOCK_MONOTONIC).
    pub fn seen_early(&self, slot: Slot) -> Duration {
        Duration::from_nanos(self.word(slot, EARLY_NS).load(Acquire))
    }

    /// Acts like the program that sees a change. `early` is the time, if the change is yet to be made.
    #[cfg(test)]
    pub fn change(&self, slot: Slot, early: Option<Duration>) {
        if let Some(at) = early {
            self.word(slot, EARLY_NS).store(at.as_nanos() as u64, Release);
        }
        self.word(slot, PENDING).fetch_add(1, AcqRel);
        if let Some(router) = self.word(slot, ROUTER).load(Acquire).checked_sub(1) {
            self.marks.as_slice()[router as usize].fetch_add(1, AcqRel);
        }
    }

    /// The same for a change in the host's namespace that concerns all routers.
    #[cfg(test)]
    pub fn change_all(&self) {
        self.word(HOST, ALL).fetch_add(1, AcqRel);
        self.word(HOST, PENDING).fetch_add(1, AcqRel);
        self.marks.as_slice().iter().for_each(|marks| _ = marks.fetch_add(1, AcqRel));
    }

    fn word(&self, slot: Slot, word: usize) -> &AtomicU64 {
        &self.slots.as_slice()[slot as usize * SLOT_WORDS + word]
    }
}

/// The maps for so many connections. Without them, all connections stay with Linux.
fn connection_maps(pairs: usize) -> Option<ConnectionMaps> {
    if pairs == 0 {
        return None;
    }
    ConnectionMaps::new(pairs)
        .inspect_err(|error| {
            tracing::warn!("cannot make the maps of connections: {error:#}; all connections stay with Linux")
        })
        .ok()
}

/// The program to load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    None,
    MessageSent(Slot),
    /// With true, a task that could not make the change marks nobody.
    SettingWritten(bool),
    /// The same.
    OptionRead(bool),
    /// The same.
    OptionWritten(bool),
    DaemonIsHere,
    DaemonExits,
}

/// Loads one program, with the existing maps or with new ones.
fn load<'o>(
    storage: &'o mut MaybeUninit<OpenObject>,
    maps: Option<&Maps>,
    which: Which,
) -> Result<PolicySkel<'o>> {
    let mut open =
        PolicySkelBuilder::default().open(storage).context("opening the programs that watch policy")?;
    let progs = &mut open.progs;
    progs.message_sent.set_autoload(matches!(which, Which::MessageSent(_)));
    progs.setting_written.set_autoload(matches!(which, Which::SettingWritten(_)));
    progs.option_read.set_autoload(matches!(which, Which::OptionRead(_)));
    progs.option_written.set_autoload(matches!(which, Which::OptionWritten(_)));
    progs.daemon_is_here.set_autoload(which == Which::DaemonIsHere);
    progs.daemon_exits.set_autoload(which == Which::DaemonExits);
    if let Some(maps) = maps {
        let theirs = &mut open.maps;
        for (map, ours) in [
            (&mut theirs.policy, &maps.plane.marks),
            (&mut theirs.policy_slots, &maps.slots),
            (&mut theirs.policy_cookies, &maps.cookies),
            (&mut theirs.policy_wakes, &maps.wakes),
            (&mut theirs.learned, &maps.plane.learned),
            (&mut theirs.learned_counts, &maps.plane.learned_counts),
            (&mut theirs.policy_daemon, &maps.daemon),
        ] {
            map.reuse_fd(ours.as_fd()).context("sharing a map of policy")?;
        }
    }
    let constants =
        open.maps.rodata_data.as_deref_mut().context("the programs that watch policy have no constants")?;
    match which {
        Which::MessageSent(slot) => constants.filter_slot = slot,
        Which::SettingWritten(reads) | Which::OptionRead(reads) | Which::OptionWritten(reads) => {
            constants.reads_kernel = reads;
        }
        _ => {}
    }
    open.load().with_context(|| format!("loading {which:?}"))
}

/// Kinds of changes, and why they cannot be watched.
type Missing = Vec<(&'static str, String)>;

fn nothing_because(why: &str) -> Missing {
    GROUPS.iter().map(|(_, _, what)| (*what, why.to_owned())).collect()
}

fn watch(maps: &Maps, slot: Slot, place: &NamespaceRef) -> Watched {
    let viewed = view(maps, slot, place).context("watching a namespace");
    let (sockets, mut missing) =
        viewed.unwrap_or_else(|error| (Vec::new(), nothing_because(&format!("{error:#}"))));
    let cookie = place.cookie();
    if let Err(error) = maps.cookies.update(&cookie.to_ne_bytes(), &slot.to_ne_bytes(), MapFlags::ANY) {
        missing.extend([SETTINGS, LEGACY].map(|what| (what, error.to_string())));
    }
    Watched { sockets, cookie: Some(cookie), missing }
}

/// Sockets that listen to a namespace, each with the filter; and the kinds for which there is none.
fn view(maps: &Maps, slot: Slot, place: &NamespaceRef) -> Result<(Vec<netlink_sys::Socket>, Missing)> {
    // The file is only of this namespace, and not kept beyond this call. A place that is gone costs no program.
    let file = place.inside(|| File::open("/proc/thread-self/ns/net"))??;
    let mut storage = MaybeUninit::uninit();
    let skel = load(&mut storage, Some(maps), Which::MessageSent(slot))?;
    let filter = skel.progs.message_sent.as_fd();
    let opened = match slot {
        HOST => place.inside(|| Ok(listen(filter, false))),
        _ => netns::in_a_new_one(|| {
            let mut socket = Socket::requests(libc::NETLINK_ROUTE)?;
            nsid::assign(&mut socket, file.as_fd(), VIEWED)?;
            Ok(listen(filter, true))
        }),
    };
    Ok(opened.and_then(|opened| opened)?)
}

/// Listens in the calling thread's namespace. With `all`, also to namespaces that have an id there.
fn listen(filter: BorrowedFd<'_>, all: bool) -> (Vec<netlink_sys::Socket>, Missing) {
    let (mut sockets, mut missing) = (Vec::new(), Vec::new());
    for (protocol, groups, what) in GROUPS {
        match filtered(protocol, groups, filter, all) {
            Ok(socket) => sockets.push(socket),
            // Without the protocol there are no such policies.
            Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => {}
            Err(error) => missing.push((what, error.to_string())),
        }
    }
    (sockets, missing)
}

fn filtered(
    protocol: i32,
    groups: &[u32],
    filter: BorrowedFd<'_>,
    all: bool,
) -> io::Result<netlink_sys::Socket> {
    let mut socket = netlink_sys::Socket::new(protocol as isize)?;
    socket.bind_auto()?;
    set_option(&socket, libc::SOL_SOCKET, libc::SO_ATTACH_BPF, filter.as_raw_fd())?;
    if all {
        socket.set_listen_all_namespaces(true)?;
    }
    groups.iter().try_for_each(|group| socket.add_membership(*group))?;
    Ok(socket)
}

/// The root of the control groups of version 2, mounted or not.
fn root_cgroup() -> io::Result<OwnedFd> {
    use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
    let context = fsopen("cgroup2", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(context.as_fd())?;
    Ok(fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?)
}

/// Wakes user space after changes, in a thread of its own, and looks for new BPF links.
struct Watcher {
    wakes: MapHandle,
    errors: IcmpErrors,
    notes: ErrorNotes,
    marks: Words64,
    slots: Words64,
    waker: Waker,
    stop: Waker,
}

impl Watcher {
    /// Starts the thread. Returns the waker that ends it.
    fn start(maps: &Maps, waker: Waker, notes: ErrorNotes) -> Result<Waker> {
        let stop = Waker::new().context("what ends a thread")?;
        let watcher = Watcher {
            wakes: MapHandle::try_from(&maps.wakes)?,
            errors: IcmpErrors::open(&maps.plane, notes.clone())?,
            notes,
            marks: Mapping::new(maps.plane.marks.as_fd(), 8, MAX_ROUTERS)?.into(),
            slots: Mapping::new(maps.slots.as_fd(), size_of::<types::policy_slot>(), SLOTS)?.into(),
            waker,
            stop: stop.clone(),
        };
        thread::Builder::new().name("policy".into()).spawn(move || {
            if let Err(error) = watcher.run() {
                tracing::warn!("changes of policy are read later than they could be: {error:#}");
            }
        })?;
        Ok(stop)
    }

    fn run(&self) -> Result<()> {
        self.errors.follow(|take_errors| self.run_with(take_errors))
    }

    fn run_with(&self, take_errors: &mut dyn FnMut()) -> Result<()> {
        let mut ring = RingBufferBuilder::new();
        ring.add(&self.wakes, |_| 0)?;
        let ring = ring.build()?;
        let mut links = BpfLinks::default();
        links.are_new();
        loop {
            // SAFETY: the ring has its descriptor for as long as it is borrowed.
            let readable = unsafe { BorrowedFd::borrow_raw(ring.epoll_fd()) };
            let [stop, changes] =
                [self.stop.as_fd(), readable].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            let mut ready = [stop, changes];
            match poll(&mut ready, Some(&LOOK)) {
                Err(rustix::io::Errno::INTR) => continue,
                other => other.context("waiting for changes")?,
            };
            if ready[0].revents().contains(PollFlags::IN) {
                return Ok(());
            }
            let wake = ready[1].revents().contains(PollFlags::IN);
            if wake {
                ring.consume_raw();
            }
            take_errors();
            if links.are_new() {
                self.mark_all();
            } else if !wake && self.notes.is_empty() {
                continue;
            }
            self.waker.wake();
            thread::sleep(PAUSE);
        }
    }

    /// Acts like a change in every namespace: each counts its own programs again.
    fn mark_all(&self) {
        self.slots.as_slice()[HOST as usize * SLOT_WORDS + ALL].fetch_add(1, AcqRel);
        let pending = self.slots.as_slice().iter().skip(PENDING).step_by(SLOT_WORDS);
        pending.for_each(|pending| _ = pending.fetch_add(1, AcqRel));
        self.marks.as_slice().iter().for_each(|marks| _ = marks.fetch_add(1, AcqRel));
    }
}

/// The BPF links of the machine. Their numbers count up.
#[derive(Default)]
struct BpfLinks {
    newest: u32,
}

impl BpfLinks {
    /// Is there a new link, since the last call, that may take packets?
    fn are_new(&mut self) -> bool {
        let mut found = false;
        let mut next = 0;
        // SAFETY: the number lives across the call.
        while unsafe { libbpf_sys::bpf_link_get_next_id(self.newest, &raw mut next) } == 0 {
            // The kernel is still making it: the next call looks at it.
            let Some(takes) = takes_packets(next) else { break };
            self.newest = next;
            found |= takes;
        }
        found
    }
}

/// Is the link of tcx, of netfilter, or of XDP and not ours? An unreadable link counts as one. `None`: it is not ready
/// yet.
fn takes_packets(link: u32) -> Option<bool> {
    // SAFETY: no pointers.
    let fd = unsafe { libbpf_sys::bpf_link_get_fd_by_id(link) };
    if fd < 0 {
        return (fd != -libc::EAGAIN).then_some(false);
    }
    // SAFETY: a descriptor just returned to us.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut info = libbpf_sys::bpf_link_info::default();
    let mut length = size_of_val(&info) as u32;
    // SAFETY: `info` is writable and `length` is its size.
    if unsafe { libbpf_sys::bpf_link_get_info_by_fd(fd.as_raw_fd(), &raw mut info, &raw mut length) } < 0 {
        return Some(true);
    }
    Some(match info.type_ {
        libbpf_sys::BPF_LINK_TYPE_XDP => !is_ours(info.prog_id),
        libbpf_sys::BPF_LINK_TYPE_TCX | libbpf_sys::BPF_LINK_TYPE_NETFILTER => true,
        _ => false,
    })
}

fn is_ours(program: u32) -> bool {
    let mut programs = libbpf_rs::query::ProgInfoIter::default();
    programs.any(|found| found.id == program && found.name.as_encoded_bytes().starts_with(b"millrace"))
}
