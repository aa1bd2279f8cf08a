//! What a worker forwards and what that costs, how soon a packet comes out, and what paths cost each other:
//! `cargo test --release -p millrace --test workers -- --ignored --nocapture --test-threads=1 measure`, as
//! root. The generator is on core 0. By default, the port's receive side is there too, the worker is on core
//! 1, and a program at the other end drops packets that leave, within the worker's calls.

use super::*;
use crate::{
    af_xdp_bed::XdpPort,
    common::{Ends, be_urgent, only_on, world},
    flood::{Napi, flood_of},
};
use logic::paths::{
    class::Class,
    rows::{Otherwise, PathClass},
};
use router::{
    api::workers::{PathStand, WorkersReport},
    plane::PathMaps,
    user_plane::{
        af_xdp::Polling,
        workers::{Epochs, PassUp, Shared, Workers},
    },
};
use rustix::process::setpriority_process;
use std::{collections::BTreeMap, fs};

const ROUNDS: usize = 5;

/// Nanoseconds that the thread of this name ran, and that it waited for a core.
fn schedstat(name: &str) -> [u64; 2] {
    let stat = fs::read_to_string(task(name).path().join("schedstat")).unwrap();
    let mut fields = stat.split(' ').map(|field| field.trim().parse().unwrap());
    [fields.next().unwrap(), fields.next().unwrap()]
}

fn cpu_ns(name: &str) -> u64 {
    schedstat(name)[0]
}

/// The thread of this name.
pub fn task(name: &str) -> fs::DirEntry {
    let is_it = |task: &fs::DirEntry| {
        fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim() == name)
    };
    fs::read_dir("/proc/self/task").unwrap().flatten().find(is_it).expect("the worker's thread")
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

/// Runs `body` while a frame is sent again and again, with short pauses.
fn flooded<T>(by: &str, frame: &[u8], body: impl FnOnce() -> T) -> T {
    flooded_of(1 << 20, by, frame, body)
}

/// The same, with `packets` packets before each pause.
fn flooded_of<T>(packets: i32, by: &str, frame: &[u8], body: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _ends = Ends(&over);
        scope.spawn(|| {
            // Other threads on its core must not cause pauses.
            setpriority_process(None, -20).unwrap();
            flood_of(packets, "q0", by, frame, &over);
        });
        thread::sleep(Duration::from_millis(300));
        body()
    })
}

const ROUTED: [&str; 4] = ["check", "route", "ttl", "rewrite"];

#[test]
#[ignore = "a measurement; needs root"]
fn measure_forwarding() {
    in_new_namespace(|| {
        let bed = Bed::new(1, WorkersSettings::default());
        let _sink = XdpPort::with("q1", "millrace_sink");
        for (what, chain) in [("routed", &ROUTED[..]), ("forwarded", &["forward"])] {
            let of = PathPlan { ring: 1024, ..path(what, chain, 1) };
            bed.apply(&plan(&[1], &ports(1, Rings::default()), &[(0, of)]));
            flooded("repeat", &Frame::udp4(P0, "10.0.0.9", "10.1.0.1").bytes(), || {
                for round in 0..ROUNDS {
                    let (begun, before, cpu) = (Instant::now(), bed.path(0), cpu_ns("worker/1"));
                    thread::sleep(Duration::from_secs(1));
                    let (now, cpu, seconds) =
                        (bed.path(0), cpu_ns("worker/1") - cpu, begun.elapsed().as_secs_f64());
                    let packets = (now.packets - before.packets) as f64;
                    println!(
                        "{what}, round {round}: {:.3} Mpps, {:.0} ns of CPU a packet, worker on a core {:.2} of the time, \
                         {:?} cycles a packet sampled, {:.1} packets a run, {:.3} M a second found the ring full",
                        packets / seconds / 1e6,
                        cpu as f64 / packets,
                        cpu as f64 / 1e9 / seconds,
                        now.cycles_per_packet,
                        packets / (now.runs - before.runs) as f64,
                        (now.ring_full - before.ring_full) as f64 / seconds / 1e6,
                    );
                }
            });
            bed.quiet();
        }
        let report = bed.report();
        println!("clock: {}, {} Hz; {:?}", report.clock, report.hz, report.workers[0].outputs);
        assert!(bed.path(0).out["p1"] > 0, "nothing was forwarded");
        bed.end();
    });
}

/// The same routes, in turn through the kernel plane and through a worker, which shares core 1 with the
/// receiving thread.
#[test]
#[ignore = "a measurement; needs root"]
fn measure_beside_the_kernel_plane() {
    in_new_namespace(|| {
        let mut world = world::World::new(1);
        let _sink = XdpPort::with("q1", "millrace_sink");
        let napi = Napi::new("p0", 1);
        let maps = Arc::new(PathMaps::new(1792).unwrap());
        world.plane.set_paths(&maps).unwrap_or_else(|error| panic!("{error:#}"));
        let udp = Class { protocol: Some(17), ..Class::default() };
        let class = PathClass { path: 0, class: udp, otherwise: Otherwise::Drop };
        maps.set_classes(&[class], &BTreeMap::from([(0, 0), (1, 0)])).unwrap();
        let tables = Arc::new(Shared {
            memory: world.plane.memory(),
            sas: Arc::default(),
            captures: Default::default(),
        });
        let up = Box::new(PassUp::new().unwrap());
        let slots = Box::new(maps.clone());
        let workers =
            Workers::start(WorkersSettings::default(), Epochs::default(), tables, slots, up).unwrap();
        let of = PathPlan { ring: 1024, ..path("routed", &ROUTED, 1) };
        assert_eq!(workers.apply(&plan(&[1], &ports(1, Rings::default()), &[(0, of)])), Vec::<String>::new());
        // The bytes that a router overwrites are stored a second time after the headers.
        let mut sent = Frame::udp4(world::A, "10.0.1.5", "10.0.2.9").bytes();
        let written: Vec<u8> = [&sent[..12], &sent[22..23], &sent[24..26]].concat();
        sent[42..57].copy_from_slice(&written);
        let forwarded = |world: &world::World| {
            let path = workers.report().paths.remove(0);
            (world.forwarded(), path.out.get("p1").copied().unwrap_or(0))
        };
        flooded("restore", &sent, || {
            for round in 0..ROUNDS {
                for with_paths in [false, true] {
                    world.plane.set_with_paths(with_paths);
                    world.link.replace(world.plane.program()).unwrap();
                    thread::sleep(Duration::from_millis(300));
                    let (begun, before) = (Instant::now(), forwarded(&world));
                    let (received, worked) = (napi.cpu_ns(), cpu_ns("worker/1"));
                    thread::sleep(Duration::from_secs(1));
                    let (after, seconds) = (forwarded(&world), begun.elapsed().as_secs_f64());
                    let (received, worked) = (napi.cpu_ns() - received, cpu_ns("worker/1") - worked);
                    let packets = (after.0 - before.0, after.1 - before.1);
                    let (which, packets) = if with_paths {
                        ("worker", packets.1 as f64)
                    } else {
                        ("kernel plane", packets.0 as f64)
                    };
                    println!(
                        "round {round}, {which}: {:.3} Mpps, {:.0} ns of CPU a packet that left: {:.0} of the receiving thread, {:.0} of \
                         the worker",
                        packets / seconds / 1e6,
                        (received + worked) as f64 / packets,
                        received as f64 / packets,
                        worked as f64 / packets,
                    );
                }
            }
        });
        let umem = workers.umem();
        assert_eq!(workers.stop(), Vec::<String>::new());
        assert_eq!(umem.free_frames(), umem.frames());
    });
}

/// Interrupts, and polling by the worker where the kernel can, in turns. Measures what is forwarded when more
/// is offered than possible, its cost in the worker and in the receiving thread, both on core 1, and how soon
/// a packet comes out, each 500 us and each 20 us.
#[test]
#[ignore = "a measurement; needs root"]
fn measure_polling() {
    in_new_namespace(|| {
        let bed = Bed::new(1, WorkersSettings::default());
        let napi = Napi::new("p0", 1);
        // The thread gets the worker's priority, or other threads here would delay it.
        setpriority_process(Pid::from_raw(napi.0 as i32), -20).unwrap();
        let polls = |polling| {
            let mut ports = ports(1, Rings::default());
            ports.values_mut().for_each(|port| port.polling = polling);
            bed.apply(&plan(&[1], &ports, &[(0, PathPlan { ring: 1024, ..path("one", &["forward"], 1) })]));
        };
        let busy = Polling::Busy { microseconds: 20, budget: 64 };
        let modes = [("interrupts", Polling::Interrupts), ("busy", busy)];
        for round in 0..ROUNDS {
            for (mode, polling) in modes {
                polls(polling);
                let sink = XdpPort::with("q1", "millrace_sink");
                flooded("repeat", &frame(0, 0, 60), || {
                    let (begun, before) = (Instant::now(), bed.path(0).packets);
                    let (received, worked) = (napi.cpu_ns(), cpu_ns("worker/1"));
                    thread::sleep(Duration::from_secs(1));
                    let (packets, seconds) =
                        ((bed.path(0).packets - before) as f64, begun.elapsed().as_secs_f64());
                    let (received, worked) = (napi.cpu_ns() - received, cpu_ns("worker/1") - worked);
                    println!(
                        "round {round}, {mode}, more than can be: {:.4} Mpps, {:.0} ns of CPU a packet in the worker, {:.0} in the thread that \
                         receives",
                        packets / seconds / 1e6,
                        worked as f64 / packets,
                        received as f64 / packets,
                    );
                });
                bed.quiet();
                drop(sink);
                let affinity = rustix::thread::sched_getaffinity(None).unwrap();
                only_on([0]);
                for us in [500, 20] {
                    let [half, most, nearly_all] = took(1000, || {
                        let until = Instant::now() + Duration::from_micros(us);
                        while Instant::now() < until {
                            std::hint::spin_loop();
                        }
                    });
                    println!(
                        "round {round}, {mode}, a packet each {us} us: median {half:.1}, 90 % {most:.1}, 99 % {nearly_all:.1} us"
                    );
                }
                rustix::thread::sched_setaffinity(None, &affinity).unwrap();
                let (idle, begun) = (cpu_ns("worker/1"), Instant::now());
                thread::sleep(Duration::from_millis(500));
                println!(
                    "round {round}, {mode}, no load: {:.2} % of a core; {:?}",
                    (cpu_ns("worker/1") - idle) as f64 / begun.elapsed().as_nanos() as f64 * 100.0,
                    bed.report()
                        .queues
                        .iter()
                        .find(|queue| queue.port == 0)
                        .map(|queue| (queue.polled, queue.not_polled_because.clone())),
                );
            }
        }
        bed.end();
    });
}

/// Microseconds from a packet socket at one end, through the worker, to one at the other: the median, 90 %
/// and 99 %.
fn took(count: usize, mut pause: impl FnMut()) -> [f64; 3] {
    let (from, to) = (Wire::open("q0"), Wire::open("q1"));
    let mut took = Vec::new();
    for n in 0..count as u32 {
        pause();
        let (sent, begun) = (frame(0, n, 60), Instant::now());
        from.send(&sent);
        while to.receive().as_ref() != Some(&sent) {}
        took.push(begun.elapsed().as_nanos() as f64 / 1e3);
    }
    took.sort_by(f64::total_cmp);
    [500, 900, 990].map(|part| took[count * part / 1000])
}

#[test]
#[ignore = "a measurement; needs root"]
fn measure_waking() {
    for round in 0..3 {
        for (what, spin) in [("sleeps", Duration::ZERO), ("spins", Duration::from_secs(1))] {
            in_new_namespace(move || {
                let bed = Bed::new(1, WorkersSettings { spin, ..WorkersSettings::default() });
                bed.apply(&plan(&[1], &ports(1, SMALL), &[(0, path("one", &["forward"], 1))]));
                only_on([0]);
                let [half, most, nearly_all] = took(2000, || thread::sleep(Duration::from_micros(500)));
                println!(
                    "round {round}: the worker {what}: microseconds: median {half:.1}, 90 % {most:.1}, 99 % {nearly_all:.1}; it slept {} times",
                    bed.report().workers[0].sleeps
                );
                bed.end();
            });
        }
    }
}

/// A path sleeps while another path of its worker has more packets than it can handle. Its packets are sent
/// at real-time priority.
#[test]
#[ignore = "a measurement; needs root"]
fn measure_waking_beside_a_busy_path() {
    in_new_namespace(|| {
        let bed = Bed::new(1, WorkersSettings::default());
        let busy = PathPlan { ring: 1024, ..path("busy", &["count", "discard"], 1) };
        bed.apply(&plan(
            &[1],
            &ports(1, Rings::default()),
            &[(0, path("quiet", &["forward"], 1)), (1, busy)],
        ));
        flooded("repeat", &frame(1, 0, 60), || {
            only_on([0]);
            be_urgent();
            for round in 0..ROUNDS {
                let [half, most, nearly_all] = took(1000, || thread::sleep(Duration::from_millis(1)));
                println!(
                    "round {round}: microseconds: median {half:.1}, 90 % {most:.1}, 99 % {nearly_all:.1}"
                );
            }
        });
        let busy = bed.path(1);
        println!("the busy path: {} packets, {} found its ring full", busy.packets, busy.ring_full);
        bed.quiet();
        bed.end();
    });
}

/// Two workers on one queue: what one forwards while the other runs, and while it hangs.
#[test]
#[ignore = "a measurement; needs root"]
fn measure_what_a_stalled_path_costs() {
    in_new_namespace(|| {
        let patience = Duration::from_secs(600);
        let bed = Bed::new(1, WorkersSettings { patience, ..WorkersSettings::default() });
        let _sink = XdpPort::with("q1", "millrace_sink");
        let paths = [(0, path("going", &["forward"], 1)), (1, path("stuck", &["forward"], 0))];
        let paths = paths.map(|(id, path)| (id, PathPlan { ring: 1024, ..path }));
        bed.apply(&plan(&[0, 1], &ports(1, Rings::default()), &paths));
        let _goes_on = GoesOn(bed.told.clone());
        // One of three frames belongs to each path; nobody has the third.
        let mut sent = frame(0, 0, 60);
        sent[15] = 1;
        flooded("mix", &sent, || {
            for round in 0..ROUNDS {
                for stalls in [false, true] {
                    bed.told.waits.store(stalls, Relaxed);
                    thread::sleep(Duration::from_millis(200));
                    // The first report waits some seconds for the hanging worker.
                    bed.report();
                    let (begun, before, cpu) = (Instant::now(), bed.path(0).packets, cpu_ns("worker/1"));
                    thread::sleep(Duration::from_secs(1));
                    let (packets, seconds) =
                        ((bed.path(0).packets - before) as f64, begun.elapsed().as_secs_f64());
                    println!(
                        "round {round}, its neighbour {}: {:.4} Mpps, {:.0} ns of CPU a packet",
                        if stalls { "hangs" } else { "runs" },
                        packets / seconds / 1e6,
                        (cpu_ns("worker/1") - cpu) as f64 / packets
                    );
                }
            }
        });
        bed.told.waits.store(false, Relaxed);
        bed.quiet();
        let stuck = bed.path(1);
        println!("the one that hung: {} packets, {} found its ring full", stuck.packets, stuck.ring_full);
        bed.end();
    });
}

/// More packets than are sent in a round. Otherwise the round would include the generator's pause, in which
/// rings run empty, and a path without packets is owed nothing.
const WITHOUT_PAUSE: i32 = 1 << 24;
const OVERLOADED_ROUNDS: usize = 20;
/// The part of the best round's offered packets that a round needs. With less, the generator did not have
/// enough of its core.
const NEARLY_ALL: f64 = 0.9;

/// The measurements of a second with three paths.
struct Second {
    /// The share of all cycles, by path.
    parts: Vec<f64>,
    packets: Vec<f64>,
    offered: Vec<f64>,
    /// How long the worker waited for its core. The path that ran is charged for that, and the others' turns
    /// make up for it.
    waited: Duration,
    /// How long the host had the core, in hundredths of a second.
    stolen: u64,
    /// How often the worker fell asleep. All rings were empty then, so no path had more than it can handle.
    sleeps: u64,
}

impl Second {
    fn of(bed: &Bed, overload: u8) -> Second {
        let mut sent = frame(0, 0, 60);
        sent[15] = overload;
        let read = || (bed.report(), schedstat("worker/1")[1], stolen(1));
        let (before, after) = flooded_of(WITHOUT_PAUSE, "mix", &sent, || {
            let before = read();
            thread::sleep(Duration::from_secs(1));
            (before, read())
        });
        let of = |what: fn(&PathStand) -> u64| -> Vec<f64> {
            let each = after.0.paths.iter().zip(&before.0.paths);
            each.map(|(after, before)| (what(after) - what(before)) as f64).collect()
        };
        let (cycles, packets) = (of(|path| path.cycles), of(|path| path.packets));
        let offered = packets.iter().zip(of(|path| path.ring_full)).map(|(had, full)| had + full).collect();
        let sleeps = |report: &WorkersReport| report.workers[0].sleeps;
        Second {
            parts: cycles.iter().map(|of| of / cycles.iter().sum::<f64>()).collect(),
            packets,
            offered,
            waited: Duration::from_nanos(after.1 - before.1),
            stolen: after.2 - before.2,
            sleeps: sleeps(&after.0) - sleeps(&before.0),
        }
    }

    /// The largest relative deviation from a third, among the paths that are not overloaded.
    fn off(&self) -> f64 {
        self.parts[1..].iter().map(|part| (3.0 * part - 1.0).abs()).fold(0.0, f64::max)
    }

    /// Whether paths always had packets. A worker sleeps only when all rings are empty, which happens some 2
    /// ms after the generator loses its core.
    fn was_overloaded(&self, most_offered: f64) -> bool {
        self.sleeps == 0 && self.all_offered() >= NEARLY_ALL * most_offered
    }

    fn all_offered(&self) -> f64 {
        self.offered.iter().sum()
    }
}

/// Time stolen from this core since the machine started.
fn stolen(core: usize) -> u64 {
    let stat = fs::read_to_string("/proc/stat").unwrap();
    let line = stat.lines().find(|line| line.starts_with(&format!("cpu{core} "))).unwrap();
    line.split_whitespace().nth(8).unwrap().parse().unwrap()
}

/// Three paths of one worker all have more packets than it can handle; then one of them gets ten times as
/// much as the others. The two kinds of rounds take turns, so that disturbances by the machine also show in
/// those without the overload.
#[test]
#[ignore = "a measurement; needs root"]
fn measure_a_path_overloaded() {
    in_new_namespace(|| {
        let bed = Bed::new(1, WorkersSettings::default());
        let _sink = XdpPort::with("q1", "millrace_sink");
        let of = |id, name| (id, PathPlan { ring: 1024, ..path(name, &["forward"], 1) });
        let rings = Rings { fill: 4096, ..Rings::default() };
        bed.apply(&plan(&[1], &ports(1, rings), &[of(0, "a"), of(1, "b"), of(2, "c")]));
        let mut seconds = [Vec::new(), Vec::new()];
        for round in 0..OVERLOADED_ROUNDS {
            for (overload, seconds) in [1, 10].into_iter().zip(&mut seconds) {
                let second = Second::of(&bed, overload);
                println!(
                    "round {round}, {overload} to 1 to 1: shares {:.4?}, others off by {:.2} %; packets {:?} of {:?} offered; the worker waited {:.2?} \
                     for its core, {} hundredths of a second stolen, it slept {} times",
                    second.parts,
                    second.off() * 100.0,
                    second.packets,
                    second.offered,
                    second.waited,
                    second.stolen,
                    second.sleeps
                );
                seconds.push(second);
                bed.quiet();
            }
        }
        let far = |seconds: &[&Second]| seconds.iter().filter(|second| second.off() >= 0.01).count();
        let counting = seconds.each_ref().map(|seconds: &Vec<Second>| {
            let most = seconds.iter().map(Second::all_offered).fold(0.0, f64::max);
            seconds.iter().filter(|second| second.was_overloaded(most)).collect::<Vec<_>>()
        });
        for ((what, all), counting) in ["1 to 1 to 1", "10 to 1 to 1"].iter().zip(&seconds).zip(&counting) {
            println!(
                "{what}: others off by {:.2} % in the median; {} of {} rounds by 1 % or more, of the {} in which paths always had packets {}",
                median(all.iter().map(Second::off).collect()) * 100.0,
                far(&all.iter().collect::<Vec<_>>()),
                all.len(),
                counting.len(),
                far(counting),
            );
        }
        let [_, overloaded] = counting;
        assert!(
            overloaded.len() >= OVERLOADED_ROUNDS / 4,
            "only {} rounds count: the generator has too little of its core",
            overloaded.len()
        );
        assert_eq!(
            far(&overloaded),
            0,
            "rounds in which the others are off by 1 % or more, although paths always had packets"
        );
        bed.end();
    });
}
