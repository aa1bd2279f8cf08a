//! Periods of a machine that is made up: files in a directory, affinities in memory.

use super::super::{affinity::CoreMask, tree::Tree};
use super::*;
use crate::netlink::netdev::Napi;
use std::{
    fmt::Write as _,
    sync::{Arc, Mutex},
};

const MS: Duration = Duration::from_millis(1);

/// Affinities of threads, and the error that setting one gets.
#[derive(Clone, Default)]
struct Fake(Arc<Mutex<Affinities>>);

#[derive(Default)]
struct Affinities {
    of: BTreeMap<u32, BTreeSet<CoreId>>,
    refuses: i32,
}

impl Affinity for Fake {
    fn allowed(&self, thread: u32) -> io::Result<CoreMask> {
        Ok(self.0.lock().unwrap().of.get(&thread).into_iter().flatten().collect())
    }
    fn allow(&self, thread: u32, cores: &BTreeSet<CoreId>) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        if state.refuses != 0 {
            return Err(io::Error::from_raw_os_error(state.refuses));
        }
        state.of.insert(thread, cores.clone());
        Ok(())
    }
}

/// Cores 0..4; eth0 with two queues, whose threads 70 and 71 are on cores 0 and 1.
struct World {
    tree: Tree,
    fake: Fake,
    placing: Placing<Fake>,
    now: Duration,
    /// By thread: time run and waited, ns.
    times: BTreeMap<u32, (u64, u64)>,
    told: Arc<Mutex<Vec<u32>>>,
}

impl World {
    fn new(settings: &str) -> World {
        let tree = Tree::new();
        tree.write("sys/devices/system/cpu/online", "0-3\n");
        tree.write("proc/stat", "cpu0 0 0 0 1\ncpu1 0 0 0 1\ncpu2 0 0 0 1\ncpu3 0 0 0 1\nintr 0\n");
        tree.write("proc/softirqs", " CPU0 CPU1 CPU2 CPU3\nNET_RX: 0 0 0 0\nBLOCK:\n");
        tree.device("eth0", 2, true);
        let fake = Fake::default();
        let told = Arc::new(Mutex::new(vec![70, 71]));
        let napis = told.clone();
        let ask: Ask = Box::new(move |device| {
            if device != "eth0" {
                return Err(io::ErrorKind::NotFound.into());
            }
            let napi = |&pid: &u32| Napi { id: 500 + pid, irq: None, pid: Some(pid), threaded: Some(true) };
            Ok(Told { napis: Some(napis.lock().unwrap().iter().map(napi).collect()), ..Told::default() })
        });
        let file = std::path::Path::new("m.toml");
        let wanted = crate::config::Config::parse(file, &format!("[cores]\n{settings}")).unwrap().cores;
        let ports = vec!["eth7".into(), "eth0".into()];
        let state = tree.path("m.cores");
        let placing = Placing::new(tree.roots(), fake.clone(), ask, wanted, ports, state).unwrap();
        let mut world = World { tree, fake, placing, now: 1000 * MS, times: BTreeMap::new(), told };
        world.thread(70, "0");
        world.thread(71, "1");
        world
    }

    fn thread(&mut self, pid: u32, cores: &str) {
        let name = format!("napi/eth0-{}", 500 + pid);
        self.tree.thread(pid, pid, &name, true, cores, cores[..1].parse().unwrap());
        self.fake.0.lock().unwrap().of.insert(pid, logic::cpus::parse_list(cores).unwrap());
        self.times.insert(pid, (0, 0));
    }

    /// So many periods, in each of which threads ran and waited for so many milliseconds of ten.
    fn periods(&mut self, count: u32, loads: &[(u32, u64, u64)]) -> String {
        let mut told = String::new();
        for _ in 0..count {
            self.now += PERIOD;
            for &(pid, ran_ms, waited_ms) in loads {
                let (ran, waited) = self.times.get_mut(&pid).unwrap();
                (*ran, *waited) = (*ran + ran_ms * 1_000_000, *waited + waited_ms * 1_000_000);
                self.tree.write(&format!("proc/{pid}/schedstat"), &format!("{ran} {waited} 1\n"));
            }
            if self.placing.is_look_due(self.now) {
                self.placing.look(self.now);
            }
            for happened in self.placing.round(self.now) {
                let at = (happened.at - 1000 * MS).as_millis();
                writeln!(told, "{at} ms: {}", happened.event).unwrap();
            }
            // Where the threads may run is told by their files, too.
            for (pid, cores) in &self.fake.0.lock().unwrap().of {
                let cores = cores.iter().map(u16::to_string).collect::<Vec<_>>().join(",");
                let status = format!("proc/{pid}/status");
                if self.tree.path(&status).exists() {
                    self.tree.write(&status, &format!("Cpus_allowed_list:\t{cores}\n"));
                }
            }
        }
        told
    }

    fn cores(&self, pid: u32) -> Vec<CoreId> {
        self.fake.0.lock().unwrap().of[&pid].iter().copied().collect()
    }
}

#[test]
fn queues_are_packed_spread_on_overload_and_put_back() {
    let mut world = World::new("");
    assert_eq!(world.periods(199, &[(70, 2, 0), (71, 1, 0)]), "");
    let packed = world.periods(10, &[(70, 2, 0), (71, 1, 0)]);
    assert_eq!(packed.lines().count(), 1, "{packed}");
    assert!(packed.contains("port 1 queue 1: core 1 -> core 0: core 1 is given back"), "{packed}");
    assert_eq!((world.cores(70), world.cores(71)), (vec![0], vec![0]));
    // A step: both want six tenths, and get half of the core.
    let step = world.periods(4, &[(70, 5, 4), (71, 5, 4)]);
    let at: u64 = step.split(' ').next().unwrap().parse().unwrap();
    assert!(at <= 2090 + 30 && step.contains("core 0 had"), "{step}");
    assert_ne!(world.cores(70), world.cores(71));
    assert_eq!(world.placing.end(), Vec::<String>::new());
    assert_eq!((world.cores(70), world.cores(71)), (vec![0], vec![1]));
    assert!(!world.tree.path("m.cores").exists());
    let numbers: Vec<u64> = world.placing.events.iter().map(|happened| happened.number).collect();
    assert_eq!(numbers, [1, 2]);
}

#[test]
fn a_thread_that_may_run_anywhere_is_confined_where_it_is() {
    let mut world = World::new("policy = \"fixed\"\nfixed = { eth0 = [0, 3] }");
    world.thread(70, "0-3");
    world.periods(1, &[(70, 1, 0), (71, 1, 0)]);
    assert_eq!((world.cores(70), world.cores(71)), (vec![0], vec![3]));
    world.placing.end();
    assert_eq!((world.cores(70), world.cores(71)), (vec![0, 1, 2, 3], vec![1]));
}

#[test]
fn a_thread_that_is_replaced_is_found_again() {
    let mut world = World::new("policy = \"fixed\"\nfixed = { eth0 = [2, 3] }");
    world.periods(2, &[(70, 1, 0), (71, 1, 0)]);
    // The device was taken down and up.
    world.tree.remove("proc/71");
    world.thread(99, "0");
    *world.told.lock().unwrap() = vec![70, 99];
    world.periods(120, &[(70, 1, 0), (99, 3, 0)]);
    assert_eq!((world.cores(70), world.cores(99)), (vec![2], vec![3]));
    let queue = QueueId { port: 1, index: 1 };
    assert_eq!(world.placing.queues[&queue].load.ran, 0.3);
    // The port is gone, and the thread with it.
    world.tree.remove("sys/class/net/eth0");
    world.periods(120, &[]);
    assert!(
        world.placing.queues.is_empty() && world.placing.troubles.is_empty(),
        "{:?}",
        world.placing.troubles
    );
}

#[test]
fn what_is_refused_is_told_and_tried_again() {
    let mut world = World::new("policy = \"fixed\"\nfixed = { eth0 = [2, 1] }");
    world.fake.0.lock().unwrap().refuses = libc::EPERM;
    assert_eq!(world.periods(5, &[(70, 1, 0)]), "", "nothing was done");
    assert_eq!(world.cores(70), [0]);
    let troubles: Vec<&String> = world.placing.troubles.iter().collect();
    assert!(troubles[0].starts_with("queue 0 of eth0 is not moved to core 2: "), "{troubles:?}");
    world.fake.0.lock().unwrap().refuses = 0;
    world.periods(110, &[(70, 1, 0)]);
    assert_eq!((world.cores(70), world.placing.troubles.len()), (vec![2], 0));
}

#[test]
fn off_only_looks() {
    let mut world = World::new("policy = \"off\"");
    assert_eq!(world.periods(300, &[(70, 10, 0), (71, 10, 0)]), "");
    assert_eq!((world.cores(70), world.cores(71)), (vec![0], vec![1]));
    assert_eq!(world.placing.queues[&QueueId { port: 1, index: 0 }].load.ran, 1.0);
    assert_eq!(world.placing.period(), LOOKING_PERIOD);
}

#[test]
fn declared_workloads_are_avoided() {
    let mut world = World::new("workloads = [{ name = \"db\", cores = \"0\" }]");
    world.periods(230, &[(70, 2, 0), (71, 1, 0)]);
    assert_eq!((world.cores(70), world.cores(71)), (vec![1], vec![1]));
}
