//! Fake machines for tests: trees of files like /proc and /sys.

use super::{
    CoreId, Roots,
    affinity::{Affinity, CoreMask},
    numbered,
};
use logic::cpus;
use std::{
    collections::BTreeSet,
    fs,
    io::{self, Write},
    os::unix::fs::symlink,
    path::PathBuf,
};

pub struct Tree(tempfile::TempDir);

impl Tree {
    pub fn new() -> Tree {
        let tree = Tree(tempfile::tempdir().unwrap());
        fs::create_dir_all(tree.path("proc")).unwrap();
        tree
    }

    pub fn roots(&self) -> Roots {
        Roots::at(self.path("proc"), self.path("sys"))
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    pub fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        // The file is not truncated first, because a disk may take milliseconds to free its blocks.
        let mut file = fs::OpenOptions::new().write(true).create(true).truncate(false).open(path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file.set_len(text.len() as u64).unwrap();
    }

    pub fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }

    pub fn remove(&self, path: &str) {
        fs::remove_dir_all(self.path(path)).unwrap();
    }

    /// Eight cores: sockets {0, 1, 4, 5} and {2, 3, 6, 7}, siblings four apart, core 6 offline, 3 and 7 isolated.
    pub fn two_sockets() -> Tree {
        let tree = Tree::new();
        let cpu = |file: &str, text: &str| tree.write(&format!("sys/devices/system/cpu/{file}"), text);
        cpu("online", "0-5,7\n");
        cpu("isolated", "3,7\n");
        cpu("nohz_full", "7\n");
        for core in [0, 1, 2, 3, 4, 5, 7] {
            let socket = core / 2 % 2;
            let siblings = format!("{},{}\n", core % 4, core % 4 + 4);
            cpu(&format!("cpu{core}/topology/thread_siblings_list"), &siblings);
            cpu(&format!("cpu{core}/topology/physical_package_id"), &format!("{socket}\n"));
            let l3 = ["0-1,4-5\n", "2-3,6-7\n"][socket];
            for (index, level, shared) in [(0, "1\n", &*siblings), (1, "2\n", &siblings), (2, "3\n", l3)] {
                cpu(&format!("cpu{core}/cache/index{index}/level"), level);
                cpu(&format!("cpu{core}/cache/index{index}/shared_cpu_list"), shared);
            }
        }
        tree.write("sys/devices/system/node/node0/cpulist", "0-1,4-5\n");
        tree.write("sys/devices/system/node/node1/cpulist", "2-3,7\n");
        tree
    }

    /// A network device with this number of RX queues, and as many TX queues.
    pub fn device(&self, name: &str, queues: usize, threaded: bool) {
        let at = format!("sys/class/net/{name}");
        self.write(&format!("{at}/threaded"), if threaded { "1\n" } else { "0\n" });
        for queue in 0..queues {
            self.write(&format!("{at}/queues/rx-{queue}/rps_cpus"), "0\n");
            self.write(&format!("{at}/queues/rx-{queue}/rps_flow_cnt"), "0\n");
            self.write(&format!("{at}/queues/tx-{queue}/xps_cpus"), "00000000\n");
        }
    }

    /// Puts the device on a PCI function with these interrupts on this NUMA node, or on a bus device below the function.
    pub fn hardware(&self, name: &str, bus: &str, node: i32, irqs: &[u32]) {
        let pci = "sys/devices/pci0000:3a/0000:3b:00.0";
        self.write(&format!("{pci}/numa_node"), &format!("{node}\n"));
        for irq in irqs {
            self.write(&format!("{pci}/msi_irqs/{irq}"), "msix\n");
        }
        let at = if bus.is_empty() { self.path(pci) } else { self.path(pci).join(bus) };
        fs::create_dir_all(&at).unwrap();
        symlink(at, self.path(&format!("sys/class/net/{name}/device"))).unwrap();
    }

    /// An interrupt with this action. It may fire on `allowed`, and fires on `effective`.
    pub fn irq(&self, irq: u32, action: &str, allowed: &str, effective: &str) {
        let at = format!("proc/irq/{irq}");
        fs::create_dir_all(self.path(&format!("{at}/{action}"))).unwrap();
        self.write(&format!("{at}/smp_affinity_list"), &format!("{allowed}\n"));
        self.write(&format!("{at}/effective_affinity_list"), &format!("{effective}\n"));
    }

    /// A thread of a process. It may run on `allowed`, and last ran on `last`.
    pub fn thread(&self, process: u32, id: u32, name: &str, kernel: bool, allowed: &str, last: u16) {
        // Fields of proc_pid_stat(5): the flags are the 9th, the core the 39th.
        let flags = if kernel { 0x0020_8040 } else { 0x0040_0000 };
        let stat = format!("{id} ({name}) S 2 0 0 0 -1 {flags}{} {last} 0 0 0 0 0\n", " 0".repeat(29));
        let status =
            format!("Name:\t{name}\nTgid:\t{process}\nCpus_allowed:\tff\nCpus_allowed_list:\t{allowed}\n");
        let places = [format!("proc/{process}/task/{id}"), format!("proc/{process}")];
        for at in &places[..if process == id { 2 } else { 1 }] {
            self.write(&format!("{at}/stat"), &stat);
            self.write(&format!("{at}/status"), &status);
            self.write(&format!("{at}/comm"), &format!("{name}\n"));
            self.write(&format!("{at}/schedstat"), "0 0 0\n");
        }
        self.write(&format!("proc/{process}/cpuset"), "/\n");
        self.write(&format!("proc/{process}/cmdline"), "");
    }
}

/// The affinities are those that the files of threads list.
impl Affinity for &Tree {
    fn allowed(&self, thread: u32) -> io::Result<CoreMask> {
        let processes = numbered(&self.path("proc"), "").into_iter();
        let status =
            |process| fs::read_to_string(self.path(&format!("proc/{process}/task/{thread}/status"))).ok();
        let status = processes.filter_map(status).next();
        let status = status.ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
        Ok(cpus::parse_list(list).unwrap().iter().collect())
    }

    fn allow(&self, _: u32, _: &BTreeSet<CoreId>) -> io::Result<()> {
        unreachable!("files have no threads")
    }
}
