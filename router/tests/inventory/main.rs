//! Cores, queues, loads and workloads of this machine, as the kernel shows them: veth queues polled by
//! threads, in namespaces of the test's own; a CPU map; pinned processes.

#[path = "../common/mod.rs"]
mod common;
mod drains;
mod measure;

use common::{ifindex, in_new_namespace, run};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, libbpf_sys::bpf_map_create_opts};
use logic::cpus;
use router::{
    cores::{
        CoreId, Ring, Roots,
        affinity::{Affinity, Kernel},
        apply::{MoveError, move_queue, transmit_from},
        knob::System,
        knobs::Knobs,
        load::{CoreTimes, Meter, Others, QueueTime, Reading, ThreadTime},
        machine::Machine,
        moderation::{Asked, Moderated, Moderation},
        queues::{Control, NetdevQueues, Obstacle, PortQueues, QueueSource},
        threads::{PartThread, part_threads},
        workloads::{Scanner, WorkloadKind},
    },
    linux::{ethtool::Coalescing, netlink::netdev::Napi, observer::Waker},
    plane::{Polls, Slept, TransmitRings, online_cpus},
};
use std::{
    collections::BTreeSet,
    fs,
    net::UdpSocket,
    process::{Child, Command},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

const QUEUES: u16 = 2;

/// Makes v0 with a NAPI instance for each queue, and v1 to send from, both up.
fn veth() -> Roots {
    let queues = format!("numrxqueues {QUEUES} numtxqueues {QUEUES}");
    run(&format!("ip link add v0 {queues} type veth peer name v1 {queues}"));
    run("ip addr add 192.0.2.1/24 dev v1");
    run("ip link set v0 up");
    run("ip link set v1 up");
    run("ethtool -K v0 gro on");
    Roots::here().unwrap()
}

/// Software devices cannot hold interrupts back: a veth's driver reports no setting, and a tap's driver
/// accepts no time.
#[test]
#[ignore = "needs root"]
fn software_devices_hold_nothing_back() {
    in_new_namespace(|| {
        let roots = veth();
        assert_eq!(Kernel.coalescing("v0").unwrap(), None);
        run("ip tuntap add t0 mode tap");
        let as_it_was = Coalescing { us: 0, adaptive: false };
        assert_eq!(Kernel.coalescing("t0").unwrap(), Some(as_it_was));
        let refused = Kernel.coalesce("t0", Coalescing { us: 50, ..as_it_was }).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EOPNOTSUPP));
        assert_eq!(Kernel.coalescing("none").unwrap_err().raw_os_error(), Some(libc::ENODEV));

        let file = tempfile::tempdir().unwrap();
        let timer_file = roots.device("v0").join("gro_flush_timeout");
        let mut knobs = Knobs::open(file.path().join("m.cores"), roots, Kernel);
        let mut moderation = Moderation::new(50);
        let told = NetdevQueues::ask(ifindex("v0"), "v0").unwrap();
        let port = Asked { device: "v0", ifindex: ifindex("v0"), told: &told };
        let Some(Moderated::Not(why)) = moderation.look(&mut knobs, &port) else {
            panic!("a veth has no interrupts");
        };
        assert_eq!((why.as_str(), knobs.is_empty()), ("it has no known interrupts", true));
        let timer = fs::read_to_string(&timer_file).unwrap();
        assert_eq!(timer, "0\n");

        // Linux reports the settings of NAPI instances since 6.13.
        let defer = || Vec::from_iter(told_napis("v0").iter().map(|napi| napi.defers));
        assert_eq!(defer(), [false; QUEUES as usize]);
        fs::write(timer_file, "20000").unwrap();
        assert_eq!(defer(), [true; QUEUES as usize]);
    });
}

/// A thread that sleeps until a queue is polled is woken by the first poll. This includes a poll between the
/// check that all is still and the sleep.
#[test]
#[ignore = "needs root"]
fn the_first_poll_wakes_a_sleeping_thread() {
    in_new_namespace(|| {
        let roots = veth();
        set_threaded(&roots, true);
        // Otherwise packets that cannot be merged go past NAPI (`veth_skb_is_eligible_for_gro`).
        run("ethtool -K v1 tso off");
        ["v0", "v1"].iter().for_each(|v| _ = run(&format!("sysctl -qw net.ipv6.conf.{v}.disable_ipv6=1")));
        run("ip neigh add 192.0.2.9 lladdr 02:00:00:00:00:09 dev v1");
        let sender = UdpSocket::bind("192.0.2.1:0").unwrap();
        let send = || _ = sender.send_to(b"x", "192.0.2.9:9").unwrap();
        let napis: BTreeSet<u32> = observe(&roots).queues.iter().filter_map(|queue| queue.napi).collect();
        assert_eq!(napis.len(), usize::from(QUEUES));
        let mut polls = Polls::start().unwrap();
        polls.watch(&napis);
        let total = |polls: &Polls| napis.iter().map(|&napi| polls.of(napi).unwrap().packets).sum::<u64>();
        let (long, waker) = (Duration::from_secs(1), Waker::new().unwrap());
        let sleep = |is_still: &dyn Fn(&Polls) -> bool| {
            let began = Instant::now();
            (polls.sleep(long, Some(&waker), is_still).unwrap(), began.elapsed())
        };

        let quiet = |polls: &Polls| {
            let before = total(polls);
            thread::sleep(Duration::from_millis(50));
            total(polls) == before
        };
        // Waits for the packets that are sent when devices come up.
        while !quiet(&polls) {}
        let (slept, took) = sleep(&|_| true);
        assert_eq!((slept, took >= long), (Slept::Long, true), "{took:?}");
        assert_eq!(sleep(&|_| false).0, Slept::No);

        let before = total(&polls);
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(50));
                send();
            });
            let (slept, took) = sleep(&|_| true);
            assert_eq!((slept, total(&polls)), (Slept::Woken, before + 1), "{took:?}");
            assert!(took >= Duration::from_millis(50), "{took:?}");
        });
        assert_eq!(total(&polls), before + 1);
        let polled_before_the_sleep = sleep(&|polls| {
            send();
            while total(polls) == before + 1 {}
            true
        });
        assert_eq!(polled_before_the_sleep.0, Slept::Woken);

        // The waker ends a sleep, before it or during it, once.
        waker.wake();
        assert_eq!(sleep(&|_| true).0, Slept::Woken);
        assert_eq!(sleep(&|_| true).0, Slept::Long);
        // A poll that woke nobody wakes the next sleeper, and only this one.
        let polled_meanwhile = sleep(&|polls| {
            let before = total(polls);
            send();
            while total(polls) == before {}
            false
        });
        assert_eq!(polled_meanwhile.0, Slept::No);
        assert_eq!([(); 2].map(|()| sleep(&|_| true).0), [Slept::Woken, Slept::Long]);
    });
}

fn told_napis(device: &str) -> Vec<Napi> {
    NetdevQueues::ask(ifindex(device), device).unwrap().napis.unwrap()
}

fn set_threaded(roots: &Roots, threaded: bool) {
    fs::write(roots.device("v0").join("threaded"), u8::from(threaded).to_string()).unwrap();
}

fn observe(roots: &Roots) -> PortQueues {
    PortQueues::observe(roots, &Kernel, 0, "v0", &NetdevQueues::ask(ifindex("v0"), "v0").unwrap()).unwrap()
}

fn pid(queue: &QueueSource) -> u32 {
    match queue.control {
        Control::Thread { pid } => pid,
        ref other => panic!("the queue has no thread: {other:?}"),
    }
}

fn pids(queues: &[QueueSource]) -> Vec<u32> {
    queues.iter().map(pid).collect()
}

fn comm(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap().trim_end().to_owned()
}

#[test]
#[ignore = "needs root"]
fn queues_without_threads_cannot_be_moved_and_say_why() {
    in_new_namespace(|| {
        let roots = veth();
        let before = observe(&roots);
        let sender = Control::None { why: Obstacle::SenderCore };
        let found = before.queues.iter().map(|q| (q.id.index, q.control, q.core)).collect::<Vec<_>>();
        assert_eq!(found, [(0, sender, None), (1, sender, None)]);
        assert_eq!((before.node, before.several_tx), (None, true));
        let refused = move_queue(&roots, &Kernel, before.queues[0].control, 0).unwrap_err();
        assert!(matches!(refused, MoveError::Immovable(Obstacle::SenderCore)), "{refused}");
        // Threads that are no longer used do not count, although some kernels keep them.
        set_threaded(&roots, true);
        assert_eq!(pids(&observe(&roots).queues).len(), 2);
        set_threaded(&roots, false);
        assert_eq!(observe(&roots).queues, before.queues);
        // Our own sysfs shows this namespace only.
        assert!(PortQueues::observe(&roots, &Kernel, 0, "eth0", &NetdevQueues::default()).is_err());
    });
}

#[test]
#[ignore = "needs root"]
fn threads_are_found_and_moved_and_their_end_is_reported() {
    in_new_namespace(|| {
        let roots = veth();
        set_threaded(&roots, true);
        let queues = observe(&roots).queues;
        for (index, queue) in (0..).zip(&queues) {
            assert_eq!(queue.id.index, index);
            assert_eq!(comm(pid(queue)), format!("napi/v0-{}", queue.napi.unwrap()));
            assert!(!queue.confined);
        }
        assert_eq!(queues.len(), usize::from(QUEUES));
        // Before Linux 6.8, threads are found by name. Namesakes in namespaces of earlier tests must be gone
        // first, and the kernel takes those down in its own time. A thread that may run anywhere may be on
        // another core by now.
        let observe_by_name =
            || PortQueues::observe(&roots, &Kernel, 0, "v0", &NetdevQueues::default()).unwrap().queues;
        let namesakes = Control::None { why: Obstacle::Namesakes };
        let until = Instant::now() + Duration::from_secs(20);
        let mut by_name = observe_by_name();
        while by_name.iter().any(|queue| queue.control == namesakes) && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
            by_name = observe_by_name();
        }
        let anywhere = |queues: &[QueueSource]| -> Vec<QueueSource> {
            queues.iter().map(|queue| QueueSource { core: None, ..*queue }).collect()
        };
        assert_eq!(anywhere(&by_name), anywhere(&queues));

        let cores: Vec<CoreId> = online_cpus().unwrap().into_iter().map(|core| core as CoreId).collect();
        let xps = |queue| {
            let file = roots.device("v0").join(format!("queues/tx-{queue}/xps_cpus"));
            cpus::parse_mask(&fs::read_to_string(file).unwrap())
        };
        for &core in [&cores[..], &cores[..1]].concat().iter() {
            move_queue(&roots, &Kernel, queues[1].control, core).unwrap();
            assert!(transmit_from(&roots, "v0", 1, core));
            let now = observe(&roots);
            assert_eq!((now.queues[1].core, now.queues[1].confined), (Some(core), true));
            assert_eq!((now.queues[0].confined, xps(0)), (false, Some(BTreeSet::new())));
            assert_eq!(xps(1), Some([core].into()));
        }
        let offline = cores[cores.len() - 1] + 1;
        let refused = move_queue(&roots, &Kernel, queues[1].control, offline).unwrap_err();
        assert!(matches!(refused, MoveError::Core { core, .. } if core == offline), "{refused}");

        let mut time = ThreadTime::open(&roots, pid(&queues[0])).unwrap().unwrap();
        assert!(matches!(time.read(&[]).unwrap(), Reading::Exact(_)));
        run("ip link del v0");
        let until = Instant::now() + Duration::from_secs(5);
        while time.read(&[]).unwrap() != Reading::Gone {
            assert!(Instant::now() < until, "the thread has not ended after 5 s");
            thread::sleep(Duration::from_millis(5));
        }
        let refused = move_queue(&roots, &Kernel, queues[0].control, cores[0]).unwrap_err();
        assert!(matches!(refused, MoveError::Gone), "{refused}");
        assert!(ThreadTime::open(&roots, pid(&queues[0])).unwrap().is_none());
    });
}

#[test]
#[ignore = "needs root"]
fn threads_of_a_namesake_elsewhere_are_not_taken() {
    in_new_namespace(|| {
        let roots = veth();
        set_threaded(&roots, true);
        let here = pids(&observe(&roots).queues);
        let (index, (say, hear)) = (ifindex("v0"), mpsc::channel());
        let (go, wait) = mpsc::channel::<()>();
        let elsewhere = thread::spawn(move || {
            in_new_namespace(move || {
                let roots = veth();
                set_threaded(&roots, true);
                assert_eq!(
                    ifindex("v0"),
                    index,
                    "the devices have different indexes, and the test shows nothing"
                );
                say.send(pids(&observe(&roots).queues)).unwrap();
                let _ = wait.recv_timeout(Duration::from_secs(20));
            });
        });
        let there = hear.recv_timeout(Duration::from_secs(20)).unwrap();
        assert!(here.iter().all(|pid| !there.contains(pid)), "threads here {here:?}, and there {there:?}");
        assert_eq!(pids(&observe(&roots).queues), here);
        let by_name = PortQueues::observe(&roots, &Kernel, 0, "v0", &NetdevQueues::default()).unwrap().queues;
        let namesakes = Control::None { why: Obstacle::Namesakes };
        assert!(
            by_name.iter().all(|queue| queue.control == namesakes),
            "a queue found without namesakes: {by_name:?}"
        );
        drop(go);
        elsewhere.join().unwrap();
    });
}

/// Sends UDP out of v1 from a core, whose XPS puts the packets on one queue. A veth delivers to the queue of
/// the same number.
fn send(core: CoreId, packets: usize) {
    thread::scope(|scope| {
        scope.spawn(|| {
            let this = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            Kernel.allow(this, &[core].into()).unwrap();
            let socket = UdpSocket::bind("192.0.2.1:0").unwrap();
            for _ in 0..packets {
                socket.send_to(b"x", "192.0.2.2:9").unwrap();
            }
        });
    });
}

#[test]
#[ignore = "needs root"]
fn the_order_of_ids_is_that_of_queues_and_loads_are_measured() {
    in_new_namespace(|| {
        let roots = veth();
        set_threaded(&roots, true);
        // Otherwise packets of sockets go past NAPI (`veth_skb_is_eligible_for_gro`).
        run("ethtool -K v1 tx off tso off");
        run("ip neigh add 192.0.2.2 lladdr 02:00:00:00:09:09 dev v1");
        let core = online_cpus().unwrap()[0] as CoreId;
        let queues = observe(&roots).queues;
        let mut times: Vec<_> =
            queues.iter().map(|queue| ThreadTime::open(&roots, pid(queue)).unwrap().unwrap()).collect();
        let mut read = move || {
            times
                .iter_mut()
                .map(|time| match time.read(&[]).unwrap() {
                    Reading::Exact(times) => times,
                    other => panic!("no exact times: {other:?}"),
                })
                .collect::<Vec<_>>()
        };
        for used in 0..2 {
            let masks = [(used, format!("{:x}", 1 << core)), (1 - used, "0".into())];
            for (queue, mask) in masks {
                fs::write(roots.device("v1").join(format!("queues/tx-{queue}/xps_cpus")), mask).unwrap();
            }
            thread::sleep(Duration::from_millis(50));
            let (mut meters, started) = ([Meter::default(), Meter::default()], Instant::now());
            for (meter, times) in meters.iter_mut().zip(read()) {
                assert_eq!(meter.load(Duration::ZERO, times), None);
            }
            send(core, 2000);
            thread::sleep(Duration::from_millis(20));
            let now = started.elapsed();
            let loads: Vec<_> = meters.iter_mut().zip(read()).map(|(m, t)| m.load(now, t).unwrap()).collect();
            let (busy, idle) = (&loads[used], &loads[1 - used]);
            assert!(busy.ran > 0.0 && busy.ran <= 1.0 && busy.wakeups_per_s > 0.0, "queue {used}: {loads:?}");
            assert!(idle.wakeups_per_s * now.as_secs_f64() < 20.0, "queue {used}: {loads:?}");
        }
    });
}

#[test]
fn cores_of_this_machine_are_read() {
    let roots = Roots::at("/proc", "/sys");
    let machine = Machine::observe(&roots).unwrap();
    let online: Vec<CoreId> = online_cpus().unwrap().into_iter().map(|core| core as CoreId).collect();
    assert_eq!(Vec::from_iter(machine.online()), online);
    let mut times = CoreTimes::open(&roots).unwrap();
    let first = times.read().unwrap().to_vec();
    assert_eq!(first.iter().map(|core| core.id).collect::<Vec<_>>(), online);
    let (mut others, started) = (Others::default(), Instant::now());
    others.update(Duration::ZERO, &first, &Default::default());
    // A core that computes is busy with other work than forwarding.
    let core = online[0];
    let spinning = thread::spawn(move || {
        let this = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        Kernel.allow(this, &[core].into()).unwrap();
        while started.elapsed() < Duration::from_millis(400) {
            std::hint::spin_loop();
        }
    });
    thread::sleep(Duration::from_millis(350));
    let now = times.read().unwrap();
    others.update(started.elapsed(), now, &Default::default());
    assert!(others.of(core).unwrap() > 0.7, "share of other work on a busy core: {:?}", others.of(core));
    assert!(now[0].net_rx >= first[0].net_rx && now[0].softirq_ns >= first[0].softirq_ns);
    spinning.join().unwrap();
}

#[test]
#[ignore = "needs root"]
fn threads_of_a_cpu_map_are_parts() {
    let opts = bpf_map_create_opts { sz: size_of::<bpf_map_create_opts>() as _, ..Default::default() };
    let map = MapHandle::create(MapType::Cpumap, Some("parts"), 4, 8, 64, &opts).unwrap();
    let core = *online_cpus().unwrap().last().unwrap() as CoreId;
    // `struct bpf_cpumap_val`: length of the queue, no program.
    let value = [64u32, 0].map(u32::to_ne_bytes).concat();
    map.update(&u32::from(core).to_ne_bytes(), &value, MapFlags::ANY).unwrap();
    let id = map.info().unwrap().info.id;
    let ours = |part: &PartThread| part.map == id;
    let found: Vec<_> = part_threads(&Roots::at("/proc", "/sys")).into_iter().filter(ours).collect();
    let [part] = found[..] else { panic!("not one thread: {found:?}") };
    assert_eq!((part.core, comm(part.pid)), (core, format!("cpumap/{core}/map:{id}")));
}

/// Processes that end with the test.
struct Sleepers(Vec<Child>);

impl Sleepers {
    fn start(count: usize) -> Sleepers {
        Sleepers((0..count).map(|_| Command::new("sleep").arg("100").spawn().unwrap()).collect())
    }
}

impl Drop for Sleepers {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
        }
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}

#[test]
fn a_process_that_is_pinned_is_a_workload_until_it_ends() {
    let online: BTreeSet<CoreId> = online_cpus().unwrap().into_iter().map(|core| core as CoreId).collect();
    let (&core, 2..) = (online.first().unwrap(), online.len()) else { return };
    let mut sleepers = Sleepers::start(2);
    let [pinned, free] = [0, 1].map(|i| sleepers.0[i].id());
    Kernel.allow(pinned, &[core].into()).unwrap();
    let mut scanner = Scanner::new(Kernel, std::process::id(), None);
    let roots = Roots::at("/proc", "/sys");
    let scan =
        |scanner: &mut Scanner<Kernel>, second| scanner.scan(&roots, &online, Duration::from_secs(second));
    let find =
        |scanner: &Scanner<Kernel>, id| scanner.workloads().into_iter().find(|workload| workload.id == id);
    let found = (0..1000).find_map(|second| {
        scan(&mut scanner, second);
        find(&scanner, pinned)
    });
    let workload = found.unwrap();
    assert_eq!(
        (&*workload.name, workload.kind, workload.cores),
        ("sleep", WorkloadKind::Process, [core].into())
    );
    assert_eq!(find(&scanner, free), None);
    sleepers.0[0].kill().unwrap();
    let stat = format!("/proc/{pinned}/stat");
    while !fs::read_to_string(&stat).unwrap().contains(") Z ") {
        thread::sleep(Duration::from_millis(5));
    }
    assert!(
        scan(&mut scanner, 1000),
        "no change of workloads, although the process has ended (its parent has not waited for it)"
    );
    assert_eq!(find(&scanner, pinned), None);
}

/// The rings of a veth as user space sees them. The driver does not report them.
#[test]
#[ignore = "needs root"]
fn packets_that_wait_for_a_veth_are_seen_at_its_sender() {
    in_new_namespace(|| {
        run("sysctl -qw net.ipv6.conf.all.disable_ipv6=1");
        run("sysctl -qw net.ipv6.conf.default.disable_ipv6=1");
        veth();
        run("ip neigh add 192.0.2.9 lladdr 02:00:00:00:00:09 dev v1");
        // Otherwise packets of sockets do not go through rings.
        run("ethtool -K v1 tso off");
        let rings = TransmitRings::open().unwrap();
        let v1 = ifindex("v1");
        let look = |core| {
            let seen = rings.look(v1, core).unwrap().unwrap();
            assert_eq!((seen.rings, seen.taker), (u32::from(QUEUES), None));
            seen.ring.unwrap()
        };
        assert_eq!(
            [0, 1].map(look),
            [2, 3].map(look),
            "cores use the ring of their number modulo the number of queues"
        );
        let before = [0, 1].map(look);
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        let send_ten = || (0..10).for_each(|_| assert_eq!(socket.send_to(b"x", "192.0.2.9:9").unwrap(), 1));
        send_ten();
        let is_still = |ring: &Ring| ring.is_empty && !ring.is_taking && ring.head == ring.tail;
        let start = Instant::now();
        while ![0, 1].map(look).iter().all(is_still) && start.elapsed() < Duration::from_secs(5) {}
        let after = [0, 1].map(look);
        assert!(
            after.iter().all(|ring| is_still(ring) && ring.size == 256),
            "a ring is not still, or has another size: {after:?}"
        );
        let taken = |n: usize| (after[n].head + 256 - before[n].head) % 256;
        assert_eq!(taken(0) + taken(1), 10, "packets taken: before {before:?}, after {after:?}");
        // With threads, the core that takes packets is known.
        set_threaded(&Roots::here().unwrap(), true);
        send_ten();
        assert!([0, 1].iter().any(|&core| rings.look(v1, core).unwrap().unwrap().taker.is_some()));
        assert_eq!([ifindex("lo"), 99_999].map(|ifindex| rings.look(ifindex, 0).unwrap()), [None, None]);
    });
}
