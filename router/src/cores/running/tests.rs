//! Both threads on a fake machine, also when one of them fails.

use super::super::{
    fake::{self, Fake},
    tree::Tree,
};
use super::*;
use crate::{
    base::conditions::Conditions,
    config::{CoresSettings, Experimental, Interval},
    cores::queues::NetdevQueues,
    linux::classifier::{Classifier as _, Ntuple, fake::Nic},
};
use std::{collections::BTreeSet, io::Write as _, time::Instant};

/// Cores 0..4; eth0 with two queues, whose threads 70 and 71 are on cores 0 and 1, and are placed on 2 and 3.
struct World {
    tree: Tree,
    fake: Fake,
    polled: PolledPorts,
    threads: Option<Threads>,
}

impl World {
    fn new(ask: impl FnOnce(fake::Netlink) -> Box<dyn Ask>) -> World {
        World::with("", ask)
    }

    fn with(settings: &str, ask: impl FnOnce(fake::Netlink) -> Box<dyn Ask>) -> World {
        let (tree, fake, netlink) = (Tree::new(), Fake::default(), fake::Netlink::default());
        tree.write("sys/devices/system/cpu/online", "0-3\n");
        tree.write("proc/stat", "cpu0 0 0 0 1\nintr 0\n");
        tree.write("proc/softirqs", " CPU0\nNET_RX: 0\nBLOCK:\n");
        tree.device("eth0", 2, true);
        for (pid, core) in [(70, 0), (71, 1)] {
            tree.thread(pid, pid, &format!("napi/eth0-{}", 500 + pid), true, &core.to_string(), core);
            fake.get().of.insert(pid, [core].into());
        }
        netlink.threads(&[70, 71]);
        tree.write("sys/devices/system/cpu/cpuidle/current_driver", "intel_idle\n");
        (0..4).for_each(|core| tree.write(&limit(core), "0\n"));
        let text = format!("[cores]\npolicy = \"fixed\"\nfixed = {{ eth0 = [2, 3] }}\n{settings}");
        let config = Config::parse(std::path::Path::new("m.toml"), &text).unwrap();
        let (ask, polled) = (ask(netlink), PolledPorts::default());
        let moderation = Moderation::while_polled(polled.clone(), 150);
        let mut world = World::begin(tree, fake, ask, config.cores, config.experimental, |looker| {
            looker.ports.moderation = Some(moderation);
        });
        world.polled = polled;
        world
    }

    /// Starts the threads for port eth0. `change` changes what looks before.
    fn begin(
        tree: Tree,
        fake: Fake,
        ask: Box<dyn Ask>,
        wanted: CoresSettings,
        experimental: Experimental,
        change: impl FnOnce(&mut Looker<Fake>),
    ) -> World {
        let (wanted, names) = (Arc::new(wanted), Arc::<[String]>::from(["eth0".to_owned()]));
        let file = tree.path("m.cores");
        let mut looker =
            Looker::new(tree.roots(), fake.clone(), ask, wanted.clone(), experimental, &names, file).unwrap();
        change(&mut looker);
        let placing = Placing::new(tree.roots(), fake.clone(), &wanted, names.clone()).unwrap();
        let handle = Handle {
            exchange: Arc::new(Exchange::new()),
            wanted,
            experimental,
            conditions: Conditions::default(),
            names,
        };
        let threads = Some(run(looker, placing, handle).unwrap());
        World { tree, fake, polled: PolledPorts::default(), threads }
    }

    fn handle(&self) -> Handle {
        self.threads.as_ref().unwrap().handle()
    }

    #[track_caller]
    fn wait_for(&self, what: &str, condition: impl Fn() -> bool) {
        let began = Instant::now();
        while !condition() {
            assert!(began.elapsed() < Duration::from_secs(10), "waited too long for {what}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn places(&self) -> [Vec<u16>; 2] {
        [70, 71].map(|pid| self.fake.cores(pid))
    }
}

#[test]
fn queues_are_placed_reported_and_restored() {
    let mut world = World::new(|netlink| Box::new(netlink));
    let handle = world.handle();
    world.wait_for("the places", || world.places() == [vec![2], vec![3]]);
    let xps = |queue| world.tree.read(&format!("sys/class/net/eth0/queues/tx-{queue}/xps_cpus"));
    world.wait_for("TX queues to follow", || (xps(0).trim(), xps(1).trim()) == ("00000004", "00000008"));
    world
        .wait_for("a report", || handle.cores().queues.iter().map(|queue| queue.core).eq([Some(2), Some(3)]));
    let events = handle.events(0);
    let told: Vec<_> =
        events.iter().map(|event| (event.number, &*event.port, event.queue, &event.to)).collect();
    assert_eq!(told, [(1, "eth0", 0, &vec![2]), (2, "eth0", 1, &vec![3])]);
    assert_eq!((handle.events(1).len(), handle.cores().conditions), (1, vec![]));
    drop(world.threads.take());
    assert_eq!(world.places(), [vec![0], vec![1]]);
    assert_eq!(xps(0), "00000000");
    assert!(!world.tree.path("m.cores").exists());
}

/// The file with the time that a core may take to wake up.
fn limit(core: u16) -> String {
    format!("sys/devices/system/cpu/cpu{core}/power/pm_qos_resume_latency_us")
}

/// Limits are not left to the next daemon, because nobody would notice that a core has stopped forwarding.
#[test]
fn a_core_that_forwards_wakes_up_quickly_until_the_daemon_ends() {
    let mut world = World::with("resume_latency = \"30us\"", |netlink| Box::new(netlink));
    let limits = |world: &World| [2, 3].map(|core| world.tree.read(&limit(core)).trim().to_owned());
    let (mut ran, handle) = (0_u64, world.handle());
    let held = || handle.cores().cores.iter().map(|core| core.resume_us).collect::<Vec<_>>();
    let began = Instant::now();
    while held() != [None, None, None, Some(30)] {
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", held());
        ran += 1_000_000;
        world.tree.write("proc/71/schedstat", &format!("{ran} 0 1\n"));
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(limits(&world), ["0", "30"]);
    world.threads.take().unwrap().leave();
    assert_eq!((limits(&world), world.places()), (["0".into(), "0".into()], [vec![2], vec![3]]));
}

/// Timers are not left to the next daemon, because nobody polls.
#[test]
fn interrupts_are_kept_off_while_workers_poll_until_the_daemon_ends() {
    let mut world = World::new(|netlink| Box::new(netlink));
    world.tree.hardware("eth0", "", 0, &[38]);
    world.tree.irq(38, "eth0-TxRx-0", "0-3", "0");
    let files = ["ifindex", "gro_flush_timeout", "napi_defer_hard_irqs"];
    let file = |name: &str| format!("sys/class/net/eth0/{name}");
    files.into_iter().zip(["8\n", "0\n", "0\n"]).for_each(|(name, text)| world.tree.write(&file(name), text));
    let timer = |world: &World| [1, 2].map(|n: usize| world.tree.read(&file(files[n])).trim().to_owned());
    let (as_it_was, off) = (["0", "0"].map(String::from), ["150000", "1"].map(String::from));
    world.wait_for("the places", || world.places() == [vec![2], vec![3]]);
    for _ in 0..2 {
        world.polled.set([8].into());
        world.wait_for("no interrupts", || timer(&world) == off);
        world.wait_for("a report", || {
            world.handle().cores().moderations.iter().any(|port| port.us == Some(150.0))
        });
        world.polled.set(BTreeSet::new());
        world.wait_for("interrupts", || timer(&world) == as_it_was);
    }
    world.polled.set([8].into());
    world.wait_for("no interrupts", || timer(&world) == off);
    world.threads.take().unwrap().leave();
    assert_eq!((timer(&world), world.places()), (as_it_was, [vec![2], vec![3]]));
}

#[test]
fn queues_stay_for_the_next_daemon() {
    let mut world = World::new(|netlink| Box::new(netlink));
    world.wait_for("the places", || world.places() == [vec![2], vec![3]]);
    world.threads.take().unwrap().leave();
    assert_eq!(world.places(), [vec![2], vec![3]]);
    assert!(world.tree.path("m.cores").exists());
}

#[test]
fn a_failure_of_placing_is_reported_at_once_and_queues_are_restored() {
    let world = World::new(|netlink| Box::new(netlink));
    let handle = world.handle();
    world.wait_for("the places", || world.places() == [vec![2], vec![3]]);
    // Somebody moves a queue, and moving it back fails.
    world.fake.get().panics = true;
    world.fake.get().of.insert(70, [1].into());
    world.wait_for("the failure", || !handle.cores().conditions.is_empty());
    let condition = &handle.cores().conditions[0].sentence;
    assert!(condition.starts_with("placing queues has failed"), "{condition}");
    world.wait_for("the original places", || world.places() == [vec![0], vec![1]]);
    assert_eq!(handle.cores().conditions.len(), 1);
}

/// Panics at the first question after it was asked about queues.
struct Failing(fake::Netlink, AtomicBool);

impl Ask for Failing {
    fn ifindex(&self, device: &str) -> io::Result<u32> {
        assert!(!self.1.load(Relaxed), "a test asked for this fault");
        self.0.ifindex(device)
    }

    fn told(&self, ifindex: u32, device: &str) -> io::Result<NetdevQueues> {
        self.1.store(true, Relaxed);
        self.0.told(ifindex, device)
    }
}

#[test]
fn a_failure_of_looking_is_reported_at_once_and_queues_are_restored() {
    let world = World::new(|netlink| Box::new(Failing(netlink, AtomicBool::new(false))));
    let handle = world.handle();
    world.wait_for("the places", || world.places() == [vec![2], vec![3]]);
    world.wait_for("the failure", || !handle.cores().conditions.is_empty());
    let conditions = handle.cores().conditions;
    assert!(conditions[0].sentence.starts_with("looking for queues has failed"), "{conditions:?}");
    world.wait_for("the original places", || world.places() == [vec![0], vec![1]]);
}

/// Longer than any test. So a looker looks once, and then only when something asks for it.
const ONCE: Duration = Duration::from_secs(3600);

/// eth0 with eight queues, whose threads 70..78 are on core 0, and a NIC that spreads packets over them. The hold time is
/// 100 ms.
fn spreading(nic: &Nic, file: &str) -> World {
    let (tree, fake, netlink) = (Tree::new(), Fake::default(), fake::Netlink::default());
    tree.write("sys/devices/system/cpu/online", "0-3\n");
    tree.write("proc/stat", "cpu0 0 0 0 1\nintr 0\n");
    tree.write("proc/softirqs", " CPU0\nNET_RX: 0\nBLOCK:\n");
    tree.device("eth0", 8, true);
    for pid in 70..78 {
        tree.thread(pid, pid, &format!("napi/eth0-{}", 500 + pid), true, "0", 0);
        fake.get().of.insert(pid, [0].into());
    }
    netlink.threads(&(70..78).collect::<Vec<_>>());
    let wanted = CoresSettings { hold: Interval(Duration::from_millis(100)), ..CoresSettings::default() };
    World::begin(tree, fake, Box::new(netlink), wanted, Experimental::default(), |looker| {
        let classifier = Box::new(Ntuple(nic.clone()));
        looker.ports.spreader = Spreader::new(Spreading::open(classifier, file.into(), |_| true));
        looker.every = ONCE;
    })
}

#[test]
fn a_table_follows_the_cores_that_forward_and_is_restored() {
    let (nic, directory) = (Nic::new(8, 64, false), tempfile::tempdir().unwrap());
    let file = directory.path().join("m.spreading");
    let table = || Ntuple(&nic).indirection("eth0").unwrap();
    let (few, all) = (vec![0, 1, 2, 3, 0, 1, 2, 3], (0..8).collect::<Vec<_>>());
    let mut world = spreading(&nic, file.to_str().unwrap());
    let handle = world.handle();
    world.wait_for("fewer queues", || table() == few);
    world.wait_for("a report", || {
        handle.cores().spreads.iter().map(|spread| (spread.used, spread.of)).eq([(4, 8)])
    });
    assert!(file.exists());
    // The core has too much, so a core is added. As soon as it forwards, more queues are used. This needs no further look.
    let began = Instant::now();
    world.wait_for("more queues", || {
        let ns = began.elapsed().as_nanos();
        for pid in 70..74 {
            let (ran, waited) = (ns / 4, ns * 3 / 4);
            // The file is never truncated, because a reader would find it empty in the meantime.
            let schedstat = world.tree.path(&format!("proc/{pid}/schedstat"));
            let mut schedstat = std::fs::OpenOptions::new().write(true).open(schedstat).unwrap();
            schedstat.write_all(format!("{ran:020} {waited:020} 1\n").as_bytes()).unwrap();
        }
        table() == all
    });
    let resizes = || -> Vec<String> {
        let told = handle.events(0).into_iter().map(|event| event.why);
        told.filter(|why| why.contains("are spread over")).collect()
    };
    world.wait_for("the events", || resizes().len() > 1);
    let told = resizes();
    assert!(told[0].starts_with("packets of eth0 are spread over 4 queues, no longer over 8: "), "{told:?}");
    assert!(told[1].contains("over 8 queues, no longer over 4: "), "{told:?}");
    world.wait_for("fewer queues again", || table() == few);
    drop(world.threads.take());
    assert_eq!((table(), file.exists()), (all, false));
}

#[test]
fn a_table_stays_for_the_next_daemon_which_goes_on_with_it() {
    let (nic, directory) = (Nic::new(8, 64, false), tempfile::tempdir().unwrap());
    let file = directory.path().join("m.spreading");
    let table = || Ntuple(&nic).indirection("eth0").unwrap();
    let mut world = spreading(&nic, file.to_str().unwrap());
    world.wait_for("fewer queues", || table().iter().max() == Some(&3));
    world.threads.take().unwrap().leave();
    assert_eq!((table().iter().max(), file.exists()), (Some(&3), true));
    let mut world = spreading(&nic, file.to_str().unwrap());
    let handle = world.handle();
    world.wait_for("a report", || {
        handle.cores().spreads.iter().map(|spread| (spread.used, spread.of)).eq([(4, 8)])
    });
    assert_eq!(nic.tables().len(), 1, "the next daemon has set the table again");
    drop(world.threads.take());
    assert_eq!((table(), file.exists()), ((0..8).collect(), false));
}
