//! Workloads (V2): virtual machines, containers and processes that are pinned to few cores. Forwarding should stay away
//! from these cores. Workloads are found in /proc or declared.
//!
//! "Few" is at most half of the online cores. /proc is walked in parts of [`QUESTIONS`] a second, so thousands of
//! processes take no more time than hundreds. A part took 3.3 ms with 2,000 sleeping processes (not optimised; Linux
//! 6.18, 2.6 GHz). A pinned process is found within two seconds among a thousand, and within twenty among ten thousand.
//! If it ends or is pinned elsewhere, that is noticed within a second, as long as at most eighty processes are pinned.

use super::{
    CoreId, Roots,
    affinity::{Affinity, CoreMask},
    numbered, serve, threads,
};
use crate::base::foreign::shown;
use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    fmt, fs,
    os::unix::fs::MetadataExt as _,
    path::PathBuf,
    time::Duration,
};

/// The time between parts of the walk.
const PERIOD: Duration = Duration::from_secs(1);
/// The number of questions in one part. Each lists the threads of a process, or reads an affinity or a file.
const QUESTIONS: usize = 1000;
/// The most threads of one process that are asked about.
const MOST_THREADS: usize = 1024;

/// A workload and the cores it is pinned to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// The lowest of its process ids. A declared workload has a number that no process has.
    pub id: u32,
    /// A virtual machine's name is the one that its owner gave it; a container's is the path of its cpuset. Otherwise it is
    /// the name of the process.
    pub name: String,
    pub kind: WorkloadKind,
    pub cores: BTreeSet<CoreId>,
}

/// Kinds of [`Workload`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkloadKind {
    /// Its cores are those of the KVM threads that run virtual CPUs.
    VirtualMachine,
    /// Processes with a cpuset of their own.
    Container,
    Process,
    /// Named in the configuration.
    Declared,
}

impl fmt::Display for WorkloadKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WorkloadKind::VirtualMachine => "virtual machine",
            WorkloadKind::Container => "container",
            WorkloadKind::Process => "process",
            WorkloadKind::Declared => "declared",
        })
    }
}

/// A pinned process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pinned {
    name: String,
    kind: WorkloadKind,
    cores: BTreeSet<CoreId>,
}

/// Finds workloads.
pub struct Scanner<A> {
    affinity: A,
    /// This process, which is no workload.
    own: u32,
    /// Processes of this control group are no workloads, because its cores follow forwarding.
    served: Option<PathBuf>,
    next: Option<Duration>,
    walk: Option<fs::ReadDir>,
    /// By process.
    pinned: BTreeMap<u32, Pinned>,
    /// The last of `pinned` that was checked again.
    looked_at: u32,
}

impl<A: Affinity> Scanner<A> {
    /// `own`: the id of this process; `served`: the path of a control group whose processes are left out, as in
    /// /proc/PID/cpuset.
    pub fn new(affinity: A, own: u32, served: Option<PathBuf>) -> Scanner<A> {
        Scanner { affinity, own, served, next: None, walk: None, pinned: BTreeMap::new(), looked_at: 0 }
    }

    /// Checks the next part of /proc, if it is due. Returns whether any workload is new, gone or changed.
    pub fn scan(&mut self, roots: &Roots, online: &BTreeSet<CoreId>, now: Duration) -> bool {
        if self.next.is_some_and(|next| now < next) {
            return false;
        }
        self.next = Some(now + PERIOD);
        let online: CoreMask = online.iter().collect();
        let again = self.look_again(roots, &online, QUESTIONS / 2);
        let mut left = QUESTIONS - again.asked;
        let mut changed = again.changed;
        while left > 0
            && let Some(process) = self.step(roots)
        {
            let look = self.look(roots, &online, process);
            left = left.saturating_sub(look.asked);
            changed |= look.changed;
        }
        changed
    }

    /// Checks these processes now, as far as [`QUESTIONS`] allow. Returns whether any workload is new, gone or changed.
    pub fn look_at(&mut self, roots: &Roots, online: &BTreeSet<CoreId>, processes: Vec<u32>) -> bool {
        let online: CoreMask = online.iter().collect();
        let (mut left, mut changed) = (QUESTIONS, false);
        for process in processes {
            if left == 0 {
                break;
            }
            let look = self.look(roots, &online, process);
            left = left.saturating_sub(look.asked);
            changed |= look.changed;
        }
        changed
    }

    /// The workloads that were found so far. All processes of a container are one workload.
    pub fn workloads(&self) -> Vec<Workload> {
        let mut found: Vec<Workload> = Vec::new();
        let mut containers: BTreeMap<&str, usize> = BTreeMap::new();
        for (&id, Pinned { name, kind, cores }) in &self.pinned {
            if *kind == WorkloadKind::Container {
                match containers.entry(name) {
                    Entry::Occupied(at) => {
                        found[*at.get()].cores.extend(cores);
                        continue;
                    }
                    Entry::Vacant(at) => at.insert(found.len()),
                };
            }
            found.push(Workload { id, name: name.clone(), kind: *kind, cores: cores.clone() });
        }
        found
    }

    /// The next process of the walk; `None` at its end. Then the walk begins again.
    fn step(&mut self, roots: &Roots) -> Option<u32> {
        if self.walk.is_none() {
            self.walk = fs::read_dir(&roots.proc).ok();
        }
        let walk = self.walk.as_mut()?;
        let process = walk.find_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        if process.is_none() {
            self.walk = None;
        }
        process
    }

    /// Checks known pinned processes again, in turn, with at most this many questions.
    fn look_again(&mut self, roots: &Roots, online: &CoreMask, questions: usize) -> Look {
        let mut all = Look::default();
        for _ in 0..self.pinned.len() {
            let after = self.pinned.range(self.looked_at.saturating_add(1)..).next();
            let Some((&process, _)) = after.or(self.pinned.first_key_value()) else { break };
            self.looked_at = process;
            let look = self.look(roots, online, process);
            all = Look { asked: all.asked + look.asked, changed: all.changed | look.changed };
            if all.asked >= questions {
                break;
            }
        }
        all
    }

    fn look(&mut self, roots: &Roots, online: &CoreMask, process: u32) -> Look {
        let mut asked = 1;
        let now = if process == self.own { None } else { self.pinned(roots, online, process, &mut asked) };
        let before = match now.clone() {
            Some(now) => self.pinned.insert(process, now),
            None => self.pinned.remove(&process),
        };
        Look { asked, changed: now != before }
    }

    /// The process, if it exists and is pinned.
    fn pinned(&self, roots: &Roots, online: &CoreMask, process: u32, asked: &mut usize) -> Option<Pinned> {
        let few = |cores: &CoreMask| {
            let (count, all) = (cores.len(), online.len());
            count > 0 && 2 * count <= all
        };
        let mut narrow = Vec::new();
        for thread in threads_of(roots, process)? {
            *asked += 1;
            let cores = self.affinity.allowed(thread).ok().map(|cores| cores.and(online));
            narrow.extend(cores.filter(few).map(|cores| (thread, cores)));
        }
        if narrow.is_empty() {
            return None;
        }
        *asked += 3 + narrow.len();
        let stat = threads::stat(roots, process).ok().flatten().filter(|stat| !stat.kernel && !stat.ended)?;
        let text =
            |file: &str| fs::read_to_string(roots.proc(format!("{process}/{file}"))).unwrap_or_default();
        // In cgroup v2 this is the nearest ancestor with the cpuset controller.
        let cpuset = text("cpuset");
        if self.served.as_ref().is_some_and(|served| serve::is_within(cpuset.trim_end(), served)) {
            return None;
        }
        let is_vcpu =
            |&&(thread, _): &&(u32, CoreMask)| vcpu(text(&format!("task/{thread}/comm")).trim_end());
        let cores = |threads: &mut dyn Iterator<Item = &(u32, CoreMask)>| {
            threads.flat_map(|(_, cores)| cores.cores()).collect::<BTreeSet<CoreId>>()
        };
        let vcpus = cores(&mut narrow.iter().filter(is_vcpu));
        if !vcpus.is_empty() {
            let name = shown(&guest(&text("cmdline")).unwrap_or(stat.name));
            return Some(Pinned { name, kind: WorkloadKind::VirtualMachine, cores: vcpus });
        }
        let cores = cores(&mut narrow.iter());
        Some(match cpuset.trim_end() {
            "" | "/" => Pinned { name: shown(&stat.name), kind: WorkloadKind::Process, cores },
            path => Pinned { name: shown(path), kind: WorkloadKind::Container, cores },
        })
    }
}

/// The threads of a process; `None`: it is gone.
fn threads_of(roots: &Roots, process: u32) -> Option<Vec<u32>> {
    let directory = roots.proc(format!("{process}/task"));
    // The directory has two links and one for each thread (`proc_task_getattr`, fs/proc/base.c). Most processes have one
    // thread, and need no listing.
    if fs::metadata(&directory).ok()?.nlink() == 3 {
        return Some(vec![process]);
    }
    let mut threads = numbered(&directory, "");
    threads.truncate(MOST_THREADS);
    Some(threads)
}

#[derive(Clone, Copy, Default)]
struct Look {
    asked: usize,
    changed: bool,
}

/// The found and the declared workloads, by id. A declared one replaces a found one with the same id.
pub fn merge(found: Vec<Workload>, declared: &[Workload]) -> Vec<Workload> {
    let all = found.into_iter().chain(declared.iter().cloned());
    let by_id: BTreeMap<u32, Workload> = all.map(|workload| (workload.id, workload)).collect();
    by_id.into_values().collect()
}

/// The number of workloads that are pinned to each core; cores without workloads are left out.
pub fn per_core(workloads: &[Workload]) -> BTreeMap<CoreId, u16> {
    let mut counts: BTreeMap<CoreId, u16> = BTreeMap::new();
    for core in workloads.iter().flat_map(|workload| &workload.cores) {
        let count = counts.entry(*core).or_default();
        *count = count.saturating_add(1);
    }
    counts
}

/// Whether this is the name of a thread that runs a virtual CPU ("CPU 3/KVM", `kvm_vcpu_thread_fn`,
/// accel/kvm/kvm-accel-ops.c of QEMU).
fn vcpu(name: &str) -> bool {
    let number = name.strip_prefix("CPU ").and_then(|rest| rest.strip_suffix("/KVM"));
    number.is_some_and(|number| number.parse::<u32>().is_ok())
}

/// The guest's name in QEMU's command line: "-name web", "-name guest=web,debug-threads=on".
fn guest(command_line: &str) -> Option<String> {
    let value = command_line.split('\0').skip_while(|argument| *argument != "-name").nth(1)?;
    let first = value.split(',').next()?;
    Some(first.strip_prefix("guest=").unwrap_or(first)).filter(|name| !name.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::{super::tree::Tree, *};
    use std::io;

    const OWN: u32 = 50;

    fn online() -> BTreeSet<CoreId> {
        (0..8).collect()
    }

    fn workload(id: u32, name: &str, kind: WorkloadKind, cores: &[CoreId]) -> Workload {
        Workload { id, name: name.into(), kind, cores: cores.iter().copied().collect() }
    }

    fn second(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn virtual_machines_containers_and_processes_are_found() {
        let tree = Tree::new();
        // A virtual machine with a pinned virtual CPU, one that is not pinned, and another pinned thread.
        tree.thread(20, 20, "qemu-system-x86", false, "0-7", 0);
        tree.thread(20, 21, "CPU 0/KVM", false, "2,6", 2);
        tree.thread(20, 22, "CPU 1/KVM", false, "0-7", 3);
        tree.thread(20, 23, "IO iothread1", false, "7", 7);
        tree.write("proc/20/cmdline", "qemu\0-name\0guest=web,debug-threads=on\0");
        tree.write("proc/20/cpuset", "/machine.slice/web\n");
        for (process, cores) in [(31, "4"), (32, "5")] {
            tree.thread(process, process, "nginx", false, cores, 4);
            tree.write(&format!("proc/{process}/cpuset"), "/docker/3f2a\n");
        }
        tree.thread(40, 40, "stress\u{1b}[2J", false, "0-3", 1);
        tree.thread(41, 41, "just too wide", false, "0-4", 1);
        tree.thread(42, 42, "ksoftirqd/1", true, "1", 1);
        tree.thread(OWN, OWN, "millrace", false, "1", 1);
        tree.thread(60, 60, "offline", false, "9-10", 1);
        let mut scanner = Scanner::new(&tree, OWN, None);
        assert!(scanner.scan(&tree.roots(), &online(), second(0)));
        let found = scanner.workloads();
        use WorkloadKind::*;
        assert_eq!(
            found,
            [
                workload(20, "web", VirtualMachine, &[2, 6]),
                workload(31, "/docker/3f2a", Container, &[4, 5]),
                workload(40, r"stress\u{1b}[2J", Process, &[0, 1, 2, 3]),
            ]
        );
        let per_core = per_core(&found);
        assert_eq!(per_core, [(0, 1), (1, 1), (2, 2), (3, 1), (4, 1), (5, 1), (6, 1)].into());
    }

    #[test]
    fn processes_of_the_served_group_are_no_workloads() {
        let tree = Tree::new();
        for (process, cpuset) in [(31, "/apps"), (32, "/apps/web"), (33, "/others")] {
            tree.thread(process, process, "nginx", false, "4", 4);
            tree.write(&format!("proc/{process}/cpuset"), &format!("{cpuset}\n"));
        }
        let served = Some("/apps".into());
        let mut scanner = Scanner::new(&tree, OWN, served);
        scanner.scan(&tree.roots(), &online(), second(0));
        assert_eq!(scanner.workloads(), [workload(33, "/others", WorkloadKind::Container, &[4])]);
    }

    #[test]
    fn on_a_machine_with_two_cores_one_core_is_few() {
        let tree = Tree::new();
        tree.thread(20, 20, "both", false, "0-1", 0);
        tree.thread(21, 21, "one", false, "1", 0);
        let mut scanner = Scanner::new(&tree, OWN, None);
        scanner.scan(&tree.roots(), &[0, 1].into(), second(0));
        assert_eq!(scanner.workloads(), [workload(21, "one", WorkloadKind::Process, &[1])]);
        let mut scanner = Scanner::new(&tree, OWN, None);
        scanner.scan(&tree.roots(), &[1].into(), second(0));
        assert_eq!(scanner.workloads(), [], "everything runs on all cores of this machine");
    }

    #[test]
    fn a_process_that_ends_or_moves_is_noticed_at_the_next_second() {
        let tree = Tree::new();
        tree.thread(20, 20, "a", false, "1", 1);
        tree.thread(21, 21, "b", false, "1", 1);
        let mut scanner = Scanner::new(&tree, OWN, None);
        let mut scan = |at: f64| scanner.scan(&tree.roots(), &online(), Duration::from_secs_f64(at));
        assert_eq!([scan(5.0), scan(6.0)], [true, false]);
        tree.thread(21, 21, "b", false, "2", 2);
        tree.remove("proc/20");
        assert_eq!([scan(6.9), scan(7.0), scan(8.0)], [false, true, false]);
        assert_eq!(scanner.workloads(), [workload(21, "b", WorkloadKind::Process, &[2])]);
    }

    #[test]
    fn many_processes_are_walked_in_parts() {
        let tree = Tree::new();
        let processes = 1200;
        for process in 1000..1000 + processes {
            tree.write(&format!("proc/{process}/task/{process}/status"), "Cpus_allowed_list:\t0-7\n");
        }
        tree.thread(500, 500, "pinned", false, "3", 3);
        struct Counting(std::cell::Cell<usize>);
        impl Affinity for &Counting {
            fn allowed(&self, thread: u32) -> io::Result<CoreMask> {
                self.0.set(self.0.get() + 1);
                Ok(if thread == 500 { [3].iter().collect() } else { online().iter().collect() })
            }
            fn allow(&self, _: u32, _: &BTreeSet<CoreId>) -> io::Result<()> {
                unreachable!("a scanner sets no affinity")
            }
        }
        let count = Counting(0.into());
        let mut scanner = Scanner::new(&count, OWN, None);
        let mut asked = Vec::new();
        for at in 0..3 {
            scanner.scan(&tree.roots(), &online(), second(at));
            asked.push(count.0.take());
        }
        assert!(asked.iter().all(|asked| *asked <= QUESTIONS / 2 + 1), "{asked:?}");
        assert!(asked.iter().sum::<usize>() > processes, "all were asked: {asked:?}");
        assert_eq!(scanner.workloads(), [workload(500, "pinned", WorkloadKind::Process, &[3])]);
    }

    #[test]
    fn declared_workloads_replace_found_ones() {
        use WorkloadKind::*;
        let found = vec![workload(7, "a", Process, &[1]), workload(9, "b", Process, &[2])];
        let declared = [workload(8, "x", Declared, &[4]), workload(9, "y", Declared, &[3])];
        let names: Vec<_> = merge(found, &declared).into_iter().map(|w| (w.id, w.name)).collect();
        assert_eq!(names, [(7, "a".into()), (8, "x".into()), (9, "y".into())]);
    }

    #[test]
    fn names_of_guests_and_of_their_threads_are_recognised() {
        let table = [
            ("qemu\0-name\0web\0", Some("web")),
            ("qemu\0-name\0guest=web,process=x\0", Some("web")),
            ("qemu\0-name\0", None),
            ("qemu\0-smp\0cores=2\0", None),
        ];
        for (line, name) in table {
            assert_eq!(guest(line).as_deref(), name, "{line:?}");
        }
        assert!(vcpu("CPU 12/KVM"));
        assert!(!vcpu("CPU 0/TCG") && !vcpu("CPU /KVM") && !vcpu("KVM"));
    }
}
