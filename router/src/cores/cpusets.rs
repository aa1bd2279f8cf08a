//! Cores that control groups keep for themselves. No queue may be on them.
//!
//! | version | a group keeps its cores for itself if | its cores |
//! |---|---|---|
//! | 2 | `cpuset.cpus.partition` is `root` or `isolated` (cgroup-v2.rst, "Cpuset Interface Files") | `cpuset.cpus.effective` |
//! | 1 | `cpuset.cpu_exclusive` is 1 (cgroup-v1/cpusets.rst, 1.4) | `cpuset.effective_cpus` |
//!
//! Groups with this process in them do not count, nor does the group that gets the cores that do not forward
//! ([`super::serve`]). All groups are read once. Then inotify reports which ones have changed: programs that write such a
//! file cause an event, and so does the kernel when it ends a partition (`cgroup_file_notify`, kernel/cgroup/cgroup.c).
//!
//! A container that gets other cores may be a workload ([`super::workloads`]). So the processes of changed groups are
//! looked at, too: Kubernetes' static CPU manager writes `cpuset.cpus`.

use super::{CoreId, Roots, cores, serve};
use crate::base::foreign::shown;
use rustix::{
    fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags},
    io::Errno,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    time::Duration,
};

/// The most groups that are watched.
const MOST_GROUPS: usize = 4096;
/// The most groups whose change is taken in at a time, and the most processes of them.
const MOST_CHANGED: usize = 64;
const MOST_PROCESSES: usize = 256;
/// All groups are read again after this time.
const AGAIN: Duration = Duration::from_secs(60);
/// The same if nothing reports changes.
const AGAIN_UNWATCHED: Duration = Duration::from_secs(5);

/// Finds these cores.
pub struct Cpusets {
    /// The control groups with cpusets are below these directories.
    tops: Vec<PathBuf>,
    /// The path of this process within its hierarchy, as in /proc/PID/cpuset.
    own: String,
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
    /// Not all groups are watched, or nothing reports changes.
    is_partial: bool,
}

impl Cpusets {
    /// `served`: the group that gets the cores that do not forward. Reads nothing yet.
    pub fn new(roots: &Roots, served: Option<&Path>) -> Cpusets {
        Cpusets {
            tops: tops(&fs::read_to_string(roots.proc("self/mountinfo")).unwrap_or_default()),
            own: fs::read_to_string(roots.proc("self/cpuset")).unwrap_or_default().trim_end().to_owned(),
            served: served.map(Path::to_owned),
            inotify: inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok(),
            watched: BTreeMap::new(),
            groups: BTreeMap::new(),
            changed: BTreeSet::new(),
            walked: None,
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
        let (mut changed, mut stale) = (false, false);
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = Reader::new(&inotify, &mut buffer);
        let mut new = Vec::new();
        loop {
            let event = match events.next() {
                Ok(event) => event,
                Err(Errno::INTR) => continue,
                Err(_) => break,
            };
            let what = event.events();
            stale |= what.contains(ReadFlags::QUEUE_OVERFLOW);
            if what.intersects(ReadFlags::IGNORED | ReadFlags::DELETE_SELF) {
                let gone = self.watched.remove(&event.wd());
                changed |= gone.is_some_and(|group| self.groups.remove(&group).is_some());
                continue;
            }
            let Some((group, name)) = self.watched.get(&event.wd()).zip(event.file_name()) else { continue };
            if what.contains(ReadFlags::CREATE | ReadFlags::ISDIR)
                && let Ok(name) = name.to_str()
            {
                new.push(group.join(name));
            }
            if name.to_bytes().starts_with(b"cpuset.") {
                changed = true;
                if self.changed.len() < MOST_CHANGED {
                    self.changed.insert(group.clone());
                }
                if !new.contains(group) {
                    new.push(group.clone());
                }
            }
        }
        self.inotify = Some(inotify);
        if stale {
            self.walked = None;
            return true;
        }
        for group in new {
            changed |= self.enter(group);
        }
        changed
    }

    /// The cores that are kept, each with the path of its group.
    pub fn look(&mut self, now: Duration) -> BTreeMap<CoreId, String> {
        self.have_changed();
        let again = if self.inotify.is_some() { AGAIN } else { AGAIN_UNWATCHED };
        if self.walked.is_none_or(|walked| now.saturating_sub(walked) >= again) {
            (self.walked, self.is_partial) = (Some(now), self.inotify.is_none());
            self.groups.clear();
            for top in self.tops.clone() {
                self.enter(top);
            }
        }
        // Cores may have gone offline, or to a group below.
        let known: Vec<PathBuf> = self.groups.keys().cloned().collect();
        known.into_iter().for_each(|group| _ = self.read(&group));
        let path = |group: &Path| {
            let within = self.tops.iter().find_map(|top| group.strip_prefix(top).ok());
            shown(&Path::new("/").join(within.unwrap_or(group)).to_string_lossy())
        };
        let cores = |(group, cores): (&PathBuf, &BTreeSet<CoreId>)| {
            let path = path(group);
            cores.iter().map(move |core| (*core, path.clone())).collect::<Vec<_>>()
        };
        self.groups.iter().flat_map(cores).collect()
    }

    /// Processes of the groups that have changed since the last call. Their cores may be others.
    pub fn take_processes(&mut self) -> Vec<u32> {
        let (mut next, mut processes) = (Vec::from_iter(std::mem::take(&mut self.changed)), Vec::new());
        while let Some(group) = next.pop().filter(|_| processes.len() < MOST_PROCESSES) {
            let listed = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
            processes.extend(listed.lines().filter_map(|line| line.parse::<u32>().ok()));
            next.extend(below(&group));
        }
        processes.truncate(MOST_PROCESSES);
        processes
    }

    /// The problem, as a sentence.
    pub fn condition(&self) -> Option<String> {
        self.is_partial.then(|| {
            "queues may be on cores that a control group has just taken for itself: Millrace cannot watch all control \
             groups (see fs.inotify.max_user_watches)"
                .to_owned()
        })
    }

    /// Watches and reads a group and those below it. Returns whether any of them keeps cores, or did.
    fn enter(&mut self, group: PathBuf) -> bool {
        let (mut next, mut left, mut any) = (vec![group], MOST_GROUPS, false);
        while let Some(group) = next.pop() {
            if left == 0 {
                self.is_partial = true;
                break;
            }
            left -= 1;
            self.watch(&group);
            any |= self.read(&group);
            next.extend(below(&group));
        }
        any
    }

    fn watch(&mut self, group: &Path) {
        let Some(inotify) = &self.inotify else { return };
        if self.watched.len() >= MOST_GROUPS {
            self.is_partial = true;
            return;
        }
        let flags = WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::DELETE_SELF | WatchFlags::ONLYDIR;
        match inotify::add_watch(inotify, group, flags) {
            Ok(watch) => _ = self.watched.insert(watch, group.to_owned()),
            // It is gone again.
            Err(Errno::NOENT | Errno::NOTDIR) => {}
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
        let top = self.tops.iter().find(|top| group.starts_with(top))?;
        let path = Path::new("/").join(group.strip_prefix(top).ok()?);
        let is_served = self.served.as_ref().is_some_and(|served| path.starts_with(served));
        if path == Path::new("/") || is_served || serve::is_within(&self.own, &path) {
            return None;
        }
        let text = |file: &str| fs::read_to_string(group.join(file)).unwrap_or_default();
        match text("cpuset.cpus.partition").trim_end() {
            "root" | "isolated" => cores(&group.join("cpuset.cpus.effective")),
            _ if text("cpuset.cpu_exclusive").trim_end() == "1" => {
                cores(&group.join("cpuset.effective_cpus"))
            }
            _ => None,
        }
    }
}

/// The groups directly below a group.
fn below(group: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(group).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

/// The directories at which control groups with cpusets are mounted.
fn tops(mounts: &str) -> Vec<PathBuf> {
    // "36 35 98:0 /root /mount options - type source superoptions" (proc_pid_mountinfo(5)).
    let top = |line: &str| {
        let (mount, filesystem) = line.split_once(" - ")?;
        let point = mount.split(' ').nth(4)?;
        let mut words = filesystem.split(' ');
        let has_cpusets = match words.next()? {
            "cgroup2" => true,
            "cgroup" => words.nth(1)?.split(',').any(|option| option == "cpuset"),
            _ => false,
        };
        has_cpusets.then(|| PathBuf::from(point))
    };
    let mut tops: Vec<PathBuf> = mounts.lines().filter_map(top).collect();
    tops.sort_unstable();
    tops.dedup();
    tops
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
        group(&tree, "v2/pods", "member", "0-7");
        group(&tree, "v2/pods/a", "isolated", "2-3");
        tree
    }

    fn group(tree: &Tree, path: &str, partition: &str, cores: &str) {
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
        group(&tree, "v2/served/below", "root", "4");
        group(&tree, "v2/broken", "root invalid (Cpu list in cpuset.cpus not exclusive)", "5");
        tree.write("v1/x/cpuset.cpu_exclusive", "1\n");
        tree.write("v1/x/cpuset.effective_cpus", "6\n");
        tree.write("v1/cpuset.cpu_exclusive", "1\n");
        tree.write("v1/cpuset.effective_cpus", "0-7\n");
        let mut cpusets = Cpusets::new(&tree.roots(), Some(Path::new("/served")));
        let found = cpusets.look(SECOND);
        assert_eq!(kept(&found), [(2, "/pods/a"), (3, "/pods/a"), (6, "/x")]);
        assert_eq!(cpusets.condition(), None);
    }

    #[test]
    fn changes_are_reported() {
        let tree = world();
        let mut cpusets = Cpusets::new(&tree.roots(), None);
        cpusets.look(SECOND);
        assert!(!cpusets.have_changed(), "nothing has changed");
        tree.write("v2/pods/a/cgroup.procs", "1\n");
        assert!(!cpusets.have_changed(), "another file");
        tree.write("v2/pods/a/cpuset.cpus.partition", "member\n");
        assert!(cpusets.have_changed());
        assert_eq!(kept(&cpusets.look(SECOND)), []);
        // New groups, one below the other. The inner one may be there before the outer one is watched.
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
        tree.write("v2/pods/cgroup.procs", "34\n");
        let mut cpusets = Cpusets::new(&tree.roots(), None);
        cpusets.look(SECOND);
        tree.write("v2/pods/a/cpuset.cpus", "3\n");
        assert!(cpusets.have_changed());
        assert_eq!(cpusets.take_processes(), [31, 32, 33]);
        assert_eq!(cpusets.take_processes(), [0; 0]);
        // A long list is cut.
        let many: String = (0..1000).map(|process| format!("{process}\n")).collect();
        tree.write("v2/pods/cgroup.procs", &many);
        tree.write("v2/pods/cpuset.cpus", "3\n");
        assert!(cpusets.have_changed());
        assert_eq!(cpusets.take_processes().len(), MOST_PROCESSES);
    }
}
