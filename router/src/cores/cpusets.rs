//! Cores that control groups keep for themselves. No queue may be on them.
//!
//! | version | a group keeps its cores for itself if | its cores |
//! |---|---|---|
//! | 2 | `cpuset.cpus.partition` is `root` or `isolated` (cgroup-v2.rst, "Cpuset Interface Files") | `cpuset.cpus.effective` |
//! | 1 | `cpuset.cpu_exclusive` is 1 (cgroup-v1/cpusets.rst, 1.4) | `cpuset.effective_cpus` |
//!
//! Groups that contain this process do not count. Neither do the group of `serve` ([`super::serve`]) and groups below
//! it. All groups are read at the start, and again at least once a minute. In between, inotify reports which groups
//! have changed. A program that writes such a file causes an event. So does the kernel when it ends a partition
//! (`cgroup_file_notify`, kernel/cgroup/cgroup.c).
//!
//! A container that gets other cores may become a workload ([`super::workloads`]). Kubernetes' static CPU manager, for
//! example, writes `cpuset.cpus`. The processes of changed groups are therefore looked at, too.

use super::{CoreId, Roots, cores};
use crate::base::foreign::shown;
use rustix::{
    fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags},
    io::Errno,
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    time::Duration,
};

/// The most groups that are watched, and that one walk reads.
const MOST_GROUPS: usize = 4096;
/// The most events that are taken in at a time. The kernel keeps 16,384 of them.
const MOST_EVENTS: usize = 1024;
/// The most changed groups that are remembered, and what is read because of them: groups below, and processes.
const MOST_CHANGED: usize = 64;
const MOST_BELOW: usize = 256;
const MOST_PROCESSES: usize = 256;
/// All groups are read again after this time.
const AGAIN: Duration = Duration::from_secs(60);
/// The same if changes are not reported, or were too many.
const AGAIN_SOON: Duration = Duration::from_secs(5);

/// Finds these cores.
pub struct Cpusets {
    /// Where the control groups with cpusets are mounted.
    mounts: Vec<Mount>,
    /// The control group of this process, as in /proc/self/cpuset, and the file that says it.
    own: PathBuf,
    own_file: PathBuf,
    /// The group that gets the cores that do not forward.
    served: Option<PathBuf>,
    /// `None`: nothing reports changes.
    inotify: Option<OwnedFd>,
    /// Watched groups, by number of the watch.
    watched: BTreeMap<i32, PathBuf>,
    /// The groups that keep cores for themselves.
    groups: BTreeMap<PathBuf, BTreeSet<CoreId>>,
    /// Groups whose cores may have changed since [`Cpusets::take_processes`].
    changed: BTreeSet<PathBuf>,
    /// When all groups were last read.
    walked: Option<Duration>,
    /// Changes may have been missed, so all groups have to be read again.
    is_stale: bool,
    /// Not all groups are watched, or nothing reports changes.
    is_partial: bool,
}

/// A mount of control groups.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    point: PathBuf,
    /// The group that is mounted there; "/" or a group of the hierarchy.
    root: PathBuf,
}

impl Cpusets {
    /// `served`: the group that gets the cores that do not forward. Reads nothing yet.
    pub fn new(roots: &Roots, served: Option<&Path>) -> Cpusets {
        Cpusets {
            mounts: mounts(&fs::read_to_string(roots.proc("self/mountinfo")).unwrap_or_default()),
            own: PathBuf::new(),
            own_file: roots.proc("self/cpuset"),
            served: served.map(Path::to_owned),
            inotify: None,
            watched: BTreeMap::new(),
            groups: BTreeMap::new(),
            changed: BTreeSet::new(),
            walked: None,
            is_stale: false,
            is_partial: false,
        }
    }

    /// Readable when a group may have changed; `None`: nothing reports changes.
    pub fn changes(&self) -> Option<BorrowedFd<'_>> {
        self.inotify.as_ref().map(AsFd::as_fd)
    }

    /// Takes in the changes that were reported. Returns whether any concerns cores.
    pub fn have_changed(&mut self) -> bool {
        let Some(inotify) = self.inotify.take() else { return false };
        let mut new = BTreeSet::new();
        let mut changed = self.read_events(&inotify, &mut new);
        self.inotify = Some(inotify);
        let mut left = MOST_BELOW;
        for group in new {
            changed |= self.enter(group, &mut left);
        }
        self.is_stale |= left == 0;
        changed
    }

    /// Inserts the groups to read into `new`. Returns whether a group that kept cores is gone, or cores may have changed.
    fn read_events(&mut self, inotify: &OwnedFd, new: &mut BTreeSet<PathBuf>) -> bool {
        let mut changed = false;
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = Reader::new(inotify, &mut buffer);
        for _ in 0..MOST_EVENTS {
            let event = match events.next() {
                Ok(event) => event,
                Err(Errno::INTR) => continue,
                Err(_) => break,
            };
            let what = event.events();
            self.is_stale |= what.contains(ReadFlags::QUEUE_OVERFLOW);
            if what.intersects(ReadFlags::IGNORED | ReadFlags::DELETE_SELF) {
                let gone = self.watched.remove(&event.wd());
                changed |= gone.is_some_and(|group| self.groups.remove(&group).is_some());
                continue;
            }
            let Some((group, name)) = self.watched.get(&event.wd()).zip(event.file_name()) else { continue };
            let Ok(name) = name.to_str() else { continue };
            let is_cpuset = name.starts_with("cpuset.") && !what.contains(ReadFlags::ISDIR);
            if what.contains(ReadFlags::DELETE | ReadFlags::ISDIR) {
                changed |= self.groups.remove(&group.join(name)).is_some();
            } else if new.len() >= MOST_CHANGED || self.changed.len() >= MOST_CHANGED {
                self.is_stale = true;
            } else if what.contains(ReadFlags::CREATE | ReadFlags::ISDIR) {
                // Whoever made it may have set its cores, and moved processes there, before it is watched.
                new.insert(group.join(name));
                self.changed.insert(group.join(name));
                changed = true;
            } else if name == "cgroup.procs" {
                self.changed.insert(group.clone());
            } else if is_cpuset || name == "cgroup.subtree_control" {
                new.insert(group.clone());
                self.changed.insert(group.clone());
            }
            changed |= is_cpuset;
        }
        changed
    }

    /// The cores that are kept, each with the path of its group.
    pub fn look(&mut self, now: Duration) -> BTreeMap<CoreId, String> {
        self.own = fs::read_to_string(&self.own_file).unwrap_or_default().trim_end().into();
        self.have_changed();
        let soon = self.inotify.is_none() || self.is_stale;
        let again = if soon { AGAIN_SOON } else { AGAIN };
        if self.walked.is_none_or(|walked| now.saturating_sub(walked) >= again) {
            self.walk(now);
        }
        // Cores may have gone offline, or to a group below.
        let known: Vec<PathBuf> = self.groups.keys().cloned().collect();
        known.into_iter().for_each(|group| _ = self.read(&group));
        // In version 1, a group can keep cores only if those above it do.
        let has_below =
            |group: &Path| self.groups.keys().any(|other| other != group && other.starts_with(group));
        let groups = self.groups.iter().filter(|(group, _)| !has_below(group) || is_partition(group));
        let cores = |(group, cores): (&PathBuf, &BTreeSet<CoreId>)| {
            let path = shown(&self.path(group).unwrap_or_default().to_string_lossy());
            cores.iter().map(move |core| (*core, path.clone())).collect::<Vec<_>>()
        };
        groups.flat_map(cores).collect()
    }

    /// Reads all groups and watches them again. Old watches end here, because the kernel does not end the watch of a
    /// control group that was removed.
    fn walk(&mut self, now: Duration) {
        self.inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok();
        (self.walked, self.is_stale, self.is_partial) = (Some(now), false, self.inotify.is_none());
        self.watched.clear();
        self.groups.clear();
        let mut left = MOST_GROUPS;
        for point in self.mounts.iter().map(|mount| mount.point.clone()).collect::<Vec<_>>() {
            self.enter(point, &mut left);
        }
        self.is_partial |= left == 0;
    }

    /// Processes of the groups that have changed since the last call. Their allowed cores may have changed.
    pub fn take_processes(&mut self) -> Vec<u32> {
        let mut next = VecDeque::from_iter(std::mem::take(&mut self.changed));
        let (mut processes, mut left) = (Vec::new(), MOST_BELOW);
        while let Some(group) = next.pop_front().filter(|_| processes.len() < MOST_PROCESSES) {
            let listed = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
            processes.extend(listed.lines().filter_map(|line| line.parse::<u32>().ok()));
            let below = below(&group, left);
            left -= below.len();
            next.extend(below);
        }
        processes.truncate(MOST_PROCESSES);
        processes
    }

    /// The problem, as a sentence.
    pub fn condition(&self) -> Option<String> {
        self.is_partial.then(|| {
            "queues may be on a core that a control group keeps for itself: Millrace cannot watch all control groups \
             (there are more than 4096, or a limit in fs.inotify is too low)"
                .to_owned()
        })
    }

    /// Watches and reads a group and those below it, at most `left` of them, which it reduces. Those near the top come
    /// first. Returns whether any of them keeps cores, or did.
    fn enter(&mut self, group: PathBuf, left: &mut usize) -> bool {
        let (mut next, mut any) = (VecDeque::from([group]), false);
        while let Some(group) = next.pop_front().filter(|_| *left > 0) {
            *left -= 1;
            let is_top = self.mounts.iter().any(|mount| mount.point == group);
            if !is_top && !group.join("cpuset.cpus").exists() {
                // The controller is not enabled there, so it is not enabled below either.
                continue;
            }
            self.watch(&group);
            any |= self.read(&group);
            next.extend(below(&group, *left));
        }
        any
    }

    fn watch(&mut self, group: &Path) {
        let Some(inotify) = &self.inotify else { return };
        if self.watched.len() >= MOST_GROUPS {
            // Some of them may be gone.
            self.is_stale = true;
            return;
        }
        let flags = WatchFlags::MODIFY
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::DELETE_SELF
            | WatchFlags::ONLYDIR;
        match inotify::add_watch(inotify, group, flags) {
            Ok(watch) => _ = self.watched.insert(watch, group.to_owned()),
            // It is gone again, or its path is longer than any that counts.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG) => {}
            Err(_) => self.is_partial = true,
        }
    }

    /// Reads a group. Returns whether it keeps cores, or did.
    fn read(&mut self, group: &Path) -> bool {
        let kept = self.kept(group).filter(|cores| !cores.is_empty());
        match kept {
            Some(cores) => {
                self.groups.insert(group.to_owned(), cores);
                true
            }
            None => self.groups.remove(group).is_some(),
        }
    }

    /// The cores that a group keeps for itself.
    fn kept(&self, group: &Path) -> Option<BTreeSet<CoreId>> {
        let path = self.path(group)?;
        let is_served = self.served.as_ref().is_some_and(|served| path.starts_with(served));
        if path == Path::new("/") || is_served || self.own.starts_with(&path) {
            return None;
        }
        if is_partition(group) {
            return cores(&group.join("cpuset.cpus.effective"));
        }
        (text(&group.join("cpuset.cpu_exclusive")) == "1")
            .then(|| cores(&group.join("cpuset.effective_cpus")))?
    }

    /// The path of a group within its hierarchy, as in /proc/PID/cpuset.
    fn path(&self, group: &Path) -> Option<PathBuf> {
        self.mounts.iter().find_map(|mount| Some(mount.root.join(group.strip_prefix(&mount.point).ok()?)))
    }
}

/// Is a group a valid partition (version 2)?
fn is_partition(group: &Path) -> bool {
    matches!(text(&group.join("cpuset.cpus.partition")).as_str(), "root" | "isolated")
}

/// A file's text without the end of the line; empty if it cannot be read.
fn text(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_default().trim_end().to_owned()
}

/// The groups directly below a group, at most `most`.
fn below(group: &Path, most: usize) -> Vec<PathBuf> {
    let entries = fs::read_dir(group).into_iter().flatten().flatten();
    let groups = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    groups.take(most).map(|entry| entry.path()).collect()
}

/// The mounts of control groups with cpusets. Groups outside this process's cgroup namespace are left out.
fn mounts(mountinfo: &str) -> Vec<Mount> {
    // "36 35 98:0 /root /mount options - type source superoptions" (proc_pid_mountinfo(5)).
    let mount = |line: &str| {
        let (mount, filesystem) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        let mut words = filesystem.split(' ');
        let has_cpusets = match words.next()? {
            "cgroup2" => true,
            "cgroup" => words.nth(1)?.split(',').any(|option| option == "cpuset"),
            _ => false,
        };
        let is_inside = !root.starts_with("/..");
        (has_cpusets && is_inside).then(|| Mount { point: point.into(), root: root.into() })
    };
    let mut mounts: Vec<Mount> = mountinfo.lines().filter_map(mount).collect();
    mounts.sort_by(|a, b| a.point.cmp(&b.point));
    mounts.dedup_by(|a, b| a.point == b.point);
    mounts
}

#[cfg(test)]
mod tests {
    use super::{super::tree::Tree, *};

    const SECOND: Duration = Duration::from_secs(1);

    fn world() -> Tree {
        let tree = Tree::new();
        let mounts: String = [
            ("v2", "cgroup2 none rw,nsdelegate"),
            ("v1", "cgroup none rw,cpuset"),
            ("cpu", "cgroup none rw,cpu"),
        ]
        .map(|(point, kind)| format!("36 35 0:30 / {} rw,relatime - {kind}\n", tree.path(point).display()))
        .concat();
        tree.write("proc/self/mountinfo", &mounts);
        tree.write("proc/self/cpuset", "/system/millrace\n");
        tree.write("v2/cgroup.procs", "");
        tree.write("v1/cgroup.procs", "");
        group(&tree, "v2/pods", "member", "0-7");
        group(&tree, "v2/pods/a", "isolated", "2-3");
        tree
    }

    fn group(tree: &Tree, path: &str, partition: &str, cores: &str) {
        tree.write(&format!("{path}/cpuset.cpus"), &format!("{cores}\n"));
        tree.write(&format!("{path}/cpuset.cpus.effective"), &format!("{cores}\n"));
        tree.write(&format!("{path}/cpuset.cpus.partition"), &format!("{partition}\n"));
    }

    fn kept(found: &BTreeMap<CoreId, String>) -> Vec<(CoreId, &str)> {
        found.iter().map(|(core, path)| (*core, path.as_str())).collect()
    }

    #[test]
    fn groups_of_both_versions_are_found_but_not_our_own_nor_the_served_one() {
        let tree = world();
        group(&tree, "v2/system", "root", "0-1");
        group(&tree, "v2/served", "member", "4");
        group(&tree, "v2/served/below", "root", "4");
        group(&tree, "v2/broken", "root invalid (Cpu list in cpuset.cpus not exclusive)", "5");
        for (path, cores) in [("x", "6-7"), ("x/y", "6")] {
            tree.write(&format!("v1/{path}/cpuset.cpus"), &format!("{cores}\n"));
            tree.write(&format!("v1/{path}/cpuset.effective_cpus"), &format!("{cores}\n"));
            tree.write(&format!("v1/{path}/cpuset.cpu_exclusive"), "1\n");
        }
        tree.write("v1/cpuset.cpu_exclusive", "1\n");
        tree.write("v1/cpuset.effective_cpus", "0-7\n");
        let mut cpusets = Cpusets::new(&tree.roots(), Some(Path::new("/served")));
        let found = cpusets.look(SECOND);
        assert_eq!(kept(&found), [(2, "/pods/a"), (3, "/pods/a"), (6, "/x/y")]);
        assert_eq!(cpusets.condition(), None);
    }

    #[test]
    fn changes_are_reported() {
        let tree = world();
        let mut cpusets = Cpusets::new(&tree.roots(), None);
        cpusets.look(SECOND);
        assert!(!cpusets.have_changed(), "nothing has changed");
        tree.write("v2/pods/a/cgroup.procs", "1\n");
        assert!(!cpusets.have_changed(), "this waits for the next look");
        tree.write("v2/pods/a/cpuset.cpus.partition", "member\n");
        assert!(cpusets.have_changed());
        assert_eq!(kept(&cpusets.look(SECOND)), []);
        // New groups, one below the other. The inner one may be there before the outer one is watched.
        group(&tree, "v2/pods/b", "member", "4-5");
        group(&tree, "v2/pods/b/c", "root", "4");
        assert!(cpusets.have_changed());
        assert_eq!(kept(&cpusets.look(SECOND)), [(4, "/pods/b/c")]);
        group(&tree, "v2/pods/b/c", "root", "4-5");
        assert!(cpusets.have_changed());
        assert_eq!(kept(&cpusets.look(SECOND)), [(4, "/pods/b/c"), (5, "/pods/b/c")]);
        tree.remove("v2/pods/b");
        assert!(cpusets.have_changed());
        assert_eq!(kept(&cpusets.look(SECOND)), []);
        assert!(!cpusets.have_changed());
    }

    #[test]
    fn processes_of_changed_groups_are_looked_at() {
        let tree = world();
        tree.write("v2/pods/a/cgroup.procs", "31\n32\n");
        tree.write("v2/pods/a/below/cgroup.procs", "33\n");
        tree.write("v2/pods/a/below/cpuset.cpus", "3\n");
        tree.write("v2/pods/cgroup.procs", "34\n");
        let mut cpusets = Cpusets::new(&tree.roots(), None);
        cpusets.look(SECOND);
        tree.write("v2/pods/a/cpuset.cpus", "3\n");
        assert!(cpusets.have_changed());
        assert_eq!(cpusets.take_processes(), [31, 32, 33]);
        assert_eq!(cpusets.take_processes(), [0; 0]);
        tree.write("v2/pods/b/cgroup.procs", "35\n");
        assert!(cpusets.have_changed());
        assert_eq!(cpusets.take_processes(), [35], "a new group");
        // A long list is cut.
        let many: String = (0..1000).map(|process| format!("{process}\n")).collect();
        tree.write("v2/pods/cgroup.procs", &many);
        tree.write("v2/pods/cpuset.cpus", "3\n");
        assert!(cpusets.have_changed());
        assert_eq!(cpusets.take_processes().len(), MOST_PROCESSES);
    }

    #[test]
    fn a_flood_of_changes_is_cut_and_read_later() {
        let tree = world();
        let mut cpusets = Cpusets::new(&tree.roots(), None);
        cpusets.look(SECOND);
        for n in 0..200 {
            group(&tree, &format!("v2/pods/flood{n}"), "member", "0-7");
        }
        group(&tree, "v2/pods/z", "root", "5");
        while cpusets.have_changed() {}
        assert!(cpusets.is_stale && cpusets.watched.len() < 100, "{}", cpusets.watched.len());
        assert!(!cpusets.look(5 * SECOND).contains_key(&5), "a walk not even five seconds after the last");
        assert!(cpusets.look(6 * SECOND).contains_key(&5));
        assert!(!cpusets.is_stale && cpusets.watched.len() > 200);
    }

    #[test]
    fn groups_are_named_as_in_proc_when_only_a_part_of_them_is_mounted() {
        let tree = Tree::new();
        let line = |root: &str, point: &str| {
            format!("36 35 0:30 {root} {} rw,relatime - cgroup none rw,cpuset\n", tree.path(point).display())
        };
        tree.write("proc/self/mountinfo", &(line("/docker/1", "v1") + &line("/../other", "v0")));
        tree.write("proc/self/cpuset", "/docker/1/init\n");
        for group in ["v1/init", "v1/x", "v0/x"] {
            tree.write(&format!("{group}/cpuset.cpus"), "3\n");
            tree.write(&format!("{group}/cpuset.effective_cpus"), "3\n");
            tree.write(&format!("{group}/cpuset.cpu_exclusive"), "1\n");
        }
        assert_eq!(kept(&Cpusets::new(&tree.roots(), None).look(SECOND)), [(3, "/docker/1/x")]);
    }
}
