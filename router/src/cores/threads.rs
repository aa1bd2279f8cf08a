//! Threads as /proc shows them (proc_pid_stat(5), proc_pid_status(5)).

use super::{CoreId, Roots, numbered, unless_gone};
use std::{fs, io, path::Path};

/// `PF_KTHREAD` (`include/linux/sched.h`).
const KERNEL_THREAD: u64 = 0x0020_0000;

/// Some fields of /proc/PID/stat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// As in /proc/PID/comm. Kernel threads have their whole name since Linux 5.17, and its first 15 bytes before.
    pub name: String,
    /// A kernel thread.
    pub kernel: bool,
    /// It has ended, and its parent has not yet waited for it.
    pub ended: bool,
    /// It runs, or waits for a core.
    pub runnable: bool,
    pub last_core: CoreId,
}

impl Stat {
    /// Parses the text of the file.
    pub fn parse(text: &str) -> Option<Stat> {
        // A name may contain anything, also parentheses and spaces.
        let (head, tail) = text.rsplit_once(')')?;
        let (_, name) = head.split_once('(')?;
        // The fields from the third one on.
        let mut fields = tail.split_ascii_whitespace();
        let state = fields.next()?;
        let (ended, runnable) = (matches!(state, "Z" | "X"), state == "R");
        let flags: u64 = fields.nth(5)?.parse().ok()?;
        let last_core = fields.nth(29)?.parse().ok()?;
        Some(Stat { name: name.into(), kernel: flags & KERNEL_THREAD != 0, ended, runnable, last_core })
    }
}

/// Reads the stat file of a thread; `Ok(None)`: the thread is gone.
pub fn stat(roots: &Roots, id: u32) -> io::Result<Option<Stat>> {
    read(&roots.proc(format!("{id}/stat")), Stat::parse)
}

/// All kernel threads whose names begin with `prefix`, by id: each id, and the rest of the name. Reads the name of every
/// process, which takes about 10 us each.
pub fn kernel_threads(roots: &Roots, prefix: &str) -> Vec<(u32, String)> {
    let mut found = Vec::new();
    for id in numbered(&roots.proc, "") {
        let name = fs::read_to_string(roots.proc(format!("{id}/comm"))).unwrap_or_default();
        if let Some(rest) = name.trim_end().strip_prefix(prefix)
            // Any process may have such a name.
            && stat(roots, id).is_ok_and(|stat| stat.is_some_and(|stat| stat.kernel))
        {
            found.push((id, rest.to_owned()));
        }
    }
    found
}

/// The thread of one CPU map that runs on a core, which packets are handed to (`__cpu_map_entry_alloc`,
/// kernel/bpf/cpumap.c).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PartThread {
    pub pid: u32,
    pub core: CoreId,
    /// The id of its map, as `bpftool map` shows it.
    pub map: u32,
}

/// The threads of all CPU maps; see [`kernel_threads`].
pub fn part_threads(roots: &Roots) -> Vec<PartThread> {
    let thread = |(pid, rest): (u32, String)| {
        let (core, map) = rest.split_once("/map:")?;
        Some(PartThread { pid, core: core.parse().ok()?, map: map.parse().ok()? })
    };
    kernel_threads(roots, "cpumap/").into_iter().filter_map(thread).collect()
}

fn read<T>(path: &Path, parse: impl FnOnce(&str) -> Option<T>) -> io::Result<Option<T>> {
    let Some(bytes) = unless_gone(fs::read(path))? else { return Ok(None) };
    let text = String::from_utf8_lossy(&bytes);
    parse(&text).map(Some).ok_or_else(|| io::Error::other(format!("{} holds {text}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::{super::tree::Tree, *};

    #[test]
    fn names_may_contain_anything() {
        let fields = " 1".repeat(29);
        let line = |name: &str, state| format!("7 ({name}) {state} 2 0 0 0 -1 4194304{fields} 5 0\n");
        let user = |name: &str, ended, runnable| {
            Some(Stat { name: name.into(), kernel: false, ended, runnable, last_core: 5 })
        };
        assert_eq!(Stat::parse(&line("CPU 0/KVM", 'S')), user("CPU 0/KVM", false, false));
        assert_eq!(Stat::parse(&line("a) S (b", 'Z')), user("a) S (b", true, false));
        assert_eq!(Stat::parse(&line("a) S (b", 'R')), user("a) S (b", false, true));
        for cut in ["", "7 (a) S 2 0", "7 a S 2", ") 7 (a"] {
            assert_eq!(Stat::parse(cut), None, "{cut}");
        }
    }

    #[test]
    fn processes_with_names_of_kernel_threads_are_ignored() {
        let tree = Tree::new();
        tree.thread(7, 7, "cpumap/3/map:41", true, "3", 3);
        tree.thread(8, 8, "cpumap/4/map:41", false, "4", 4);
        tree.thread(9, 9, "cpumap/x/map:41", true, "5", 5);
        tree.thread(10, 10, "cpumap/5/map:42", true, "5", 5);
        let part = |pid, core, map| PartThread { pid, core, map };
        assert_eq!(part_threads(&tree.roots()), [part(7, 3, 41), part(10, 5, 42)]);
    }
}
