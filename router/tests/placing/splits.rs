//! A daemon splits a queue that is too much for one core. Packets stay in order, also with flow rules in
//! charge, and when somebody moves the queue's home. Nothing is left of the split afterwards.

use super::{Bed, PATIENCE, Traffic, whys};
use crate::common::{
    Ends, be_urgent,
    frame::Frame,
    in_new_namespace, only_on,
    order::{Came, Pace, numbered, send_paced_while},
    run,
    wire::Wire,
};
use libbpf_rs::query::MapInfoIter;
use logic::net::Mac;
use router::cores::affinity::{Affinity, Kernel};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

/// A rate in packets a second that rises again and again from 2,000 to `top`, and doubles in equal times. So on a
/// slow and on a fast machine there is as long a time when a queue is too much for one core, and not for two.
fn teeth(top: f64) -> impl Fn(Duration) -> f64 {
    const TOOTH_S: f64 = 5.0;
    const LEAST: f64 = 2000.0;
    move |time| LEAST * (top / LEAST).powf(time.as_secs_f64() % TOOTH_S / TOOTH_S)
}

/// The top where each packet is waited for.
const LOW_TEETH: f64 = 300_000.0;
/// The top for packets sent in bursts.
const HIGH_TEETH: f64 = 800_000.0;

/// Sends frames of 64 flows from q0 to a host behind p1, until `stopped` is set.
fn send(stopped: &AtomicBool) {
    let wire = Wire::open("q0");
    let frames: Vec<Vec<u8>> = (0..FLOWS)
        .map(|flow| {
            let frame = Frame::udp4(P0, "10.0.0.9", "10.0.1.9");
            frame.with(|ip| ip[20..22].copy_from_slice(&flow.to_be_bytes())).bytes()
        })
        .collect();
    let mut pace = Pace::new(teeth(HIGH_TEETH));
    while !stopped.load(Relaxed) {
        if pace.is_due() && pace.due >= FLOWS.into() {
            frames.iter().for_each(|frame| wire.send(frame));
            pace.due -= f64::from(FLOWS);
        } else {
            thread::sleep(Duration::from_micros(200));
        }
    }
}

fn maps() -> BTreeSet<u32> {
    MapInfoIter::default().map(|map| map.id).collect()
}

/// The maps that a process has open.
fn maps_of(process: u32) -> BTreeSet<u32> {
    let descriptors = fs::read_dir(format!("/proc/{process}/fdinfo")).into_iter().flatten();
    let texts = descriptors.filter_map(|entry| fs::read_to_string(entry.ok()?.path()).ok());
    let id = |text: String| text.lines().find_map(|line| line.strip_prefix("map_id:")?.trim().parse().ok());
    texts.filter_map(id).collect()
}

/// The number of threads of these CPU maps.
fn threads_of(maps: &BTreeSet<u32>) -> usize {
    let name = |entry: fs::DirEntry| fs::read_to_string(entry.path().join("comm")).ok();
    let names = fs::read_dir("/proc").unwrap().filter_map(|entry| name(entry.unwrap()));
    let map = |name: String| name.trim_end().strip_prefix("cpumap/")?.split_once("/map:")?.1.parse().ok();
    names.filter_map(map).filter(|map| maps.contains(map)).count()
}

#[test]
#[ignore = "needs root"]
fn nothing_is_left_of_a_queue_that_was_split() {
    in_new_namespace(|| {
        let mut bed = Bed::new("l");
        run("ip link set p0 address 02:00:00:00:00:01");
        run("ip neigh add 10.0.1.9 lladdr 02:00:00:00:07:01 dev p1");
        // One queue gets all packets, and no other queue can leave its core instead.
        run("ethtool -L q0 tx 1");
        fs::write(bed.roots.device("p1").join("threaded"), "0").unwrap();
        for is_killed in [false, true] {
            bed.start(SPLITS);
            bed.wait_for("the daemon to be ready", |_| {
                bed.json(&["status"]).is_some_and(|s| s["ready"] == true)
            });
            let traffic = Traffic::of(send);
            let process = bed.daemon.as_ref().unwrap().id();
            let ours = || maps_of(process);
            let report = bed.wait_for("a queue that is split", |report| {
                let queues = report["queues"].as_array().unwrap();
                let split = |queue: &Value| queue["shared"].as_array().is_some_and(|cores| cores.len() == 2);
                queues.iter().any(split) && threads_of(&ours()) == 2
            });
            let ours = ours();
            drop(traffic);
            assert_eq!(report["conditions"], serde_json::json!([]));
            if is_killed {
                bed.daemon.as_mut().unwrap().kill().unwrap();
                bed.end();
                assert!(threads_of(&ours) > 0, "no thread is left, so forwarding ended with the daemon");
                bed.millrace(&["stop"]);
            } else {
                bed.millrace(&["stop"]);
                bed.end();
            }
            let start = Instant::now();
            loop {
                let left: Vec<u32> = maps().intersection(&ours).copied().collect();
                if left.is_empty() && threads_of(&ours) == 0 {
                    break;
                }
                assert!(
                    start.elapsed() < PATIENCE,
                    "killed: {is_killed}; maps {left:?} and {} threads are left",
                    threads_of(&ours)
                );
                thread::sleep(Duration::from_millis(50));
            }
        }
    });
}

/// The addresses of the ports.
const P0: Mac = Mac([2, 0, 0, 0, 0, 1]);
const P1: Mac = Mac([2, 0, 0, 0, 0, 2]);
/// The number of flows.
const FLOWS: u16 = 64;
/// Kinds of flows, by DSCP.
const KINDS: u16 = 3;
/// Low shares of a core: a queue that a test can fill then needs more than one core, and two are enough. On a
/// machine with other work, the queue gets at least so much.
const SPLITS: &str = "high = 8\nlow = 2\n[experimental]\nsplit = true";

/// Starts a daemon on ports where one queue gets all packets, and packets leave by one queue.
fn hot(name: &str) -> Bed {
    hot_with(name, SPLITS)
}

/// The same with other settings.
fn hot_with(name: &str, cores: &str) -> Bed {
    let mut bed = Bed::new(name);
    run(&format!("ip link set p0 address {P0}"));
    run(&format!("ip link set p1 address {P1}"));
    run("ip neigh add 10.0.0.9 lladdr 02:00:00:00:09:09 dev p0");
    run("ip neigh add 10.0.1.9 lladdr 02:00:00:00:07:01 dev p1");
    run("ethtool -L q0 tx 1");
    run("ethtool -L q1 rx 1");
    fs::write(bed.roots.device("p1").join("threaded"), "0").unwrap();
    bed.start(cores);
    bed.wait_for("the daemon to be ready", |_| {
        bed.json(&["status"]).is_some_and(|status| status["ready"] == true)
    });
    bed
}

fn frame(number: u32) -> Vec<u8> {
    let frame = Frame::udp4(P0, "10.0.0.9", "10.0.1.9");
    let flow = number as u16 % FLOWS;
    numbered(frame.ip4(|ip| ip[1] = (flow % KINDS) as u8 * 4), flow, number)
}

/// The queue that is split.
fn split(report: &Value) -> Option<&Value> {
    let is_split = |queue: &&Value| queue["shared"].as_array().is_some_and(|cores| cores.len() == 2);
    report["queues"].as_array().unwrap().iter().find(is_split)
}

/// Sends packets until the queue is split, and for a second more. Then it is joined. All packets must come out as expected,
/// in order.
fn split_and_joined(
    bed: &Bed,
    wires: (&Wire, &Wire),
    frame: impl Fn(u32) -> Vec<u8>,
    expected: impl Fn(u32) -> Vec<u8> + Sync,
) -> Came {
    let mut wrong = 0;
    let came = send_paced_while(
        wires,
        FLOWS,
        teeth(LOW_TEETH),
        frame,
        |number, bytes| wrong += u64::from(bytes != expected(number)),
        || {
            bed.wait_for("a queue that is split", |report| split(report).is_some());
            thread::sleep(Duration::from_secs(1));
        },
    );
    eprintln!("{came:?}");
    assert_eq!((came.overtaken, came.received, wrong), (0, came.sent, 0), "(overtaken, received, wrong)");
    bed.wait_for("the queue to be whole", |report| split(report).is_none());
    came
}

/// Packets gather while a sender keeps the core from the queue's thread. Then the thread takes full polls, and the core
/// shares the queue. The daemon sees that this was needless, and the queue is whole again.
#[test]
#[ignore = "needs root"]
fn a_core_that_falls_behind_shares_its_queue_at_once_until_it_keeps_up() {
    in_new_namespace(|| {
        let bed = hot_with("b", "[experimental]\nsplit = true");
        let (from, to) = (Wire::open("q0"), Wire::open("q1"));
        let (stopped, received) = (&AtomicBool::new(false), &AtomicU64::new(0));
        thread::scope(|scope| {
            let sending = scope.spawn(move || {
                be_urgent();
                let mut sent: u32 = 0;
                // The ring has room for one burst, so each must arrive before the next one, and before the end.
                let mut send = |packets: u32| {
                    (0..packets).for_each(|n| from.send(&frame(sent + n)));
                    sent += packets;
                    let start = Instant::now();
                    while received.load(Relaxed) < u64::from(sent) && start.elapsed() < PATIENCE {
                        thread::sleep(Duration::from_micros(500));
                    }
                };
                for core in [0, 1].into_iter().cycle().take_while(|_| !stopped.load(Relaxed)) {
                    (0..10).for_each(|_| send(20));
                    // One of the two is the queue's core. This thread stays there only briefly, so that it does not
                    // count as a workload.
                    only_on([core]);
                    send(240);
                    only_on([0, 1]);
                }
                sent
            });
            let receiving = scope.spawn(move || {
                let (mut last, mut overtaken) = ([None; FLOWS as usize], 0);
                let mut ended = None;
                while ended.is_none_or(|at: Instant| at.elapsed() < Duration::from_secs(2)) {
                    ended = ended.or_else(|| stopped.load(Relaxed).then(Instant::now));
                    let is_udp = |bytes: &Vec<u8>| bytes[12..14] == [8, 0] && bytes[23] == 17;
                    let Some(bytes) = to.receive().filter(is_udp) else {
                        thread::sleep(Duration::from_micros(200));
                        continue;
                    };
                    let number = u32::from_be_bytes(*bytes.last_chunk().unwrap());
                    let before = last[number as usize % last.len()].replace(number);
                    overtaken += u64::from(before >= Some(number));
                    received.fetch_add(1, Relaxed);
                }
                overtaken
            });
            let _ends = Ends(stopped);
            for end in [
                "fell behind within a control period and shared the queue at once",
                "it is whole again on its core",
            ] {
                bed.wait_for(end, |_| {
                    whys(&bed.json(&["events"]).unwrap()).iter().any(|why| why.ends_with(end))
                });
            }
            stopped.store(true, Relaxed);
            let sent = u64::from(sending.join().unwrap());
            let start = Instant::now();
            while received.load(Relaxed) < sent {
                let losses =
                    || [bed.millrace(&["interfaces", "--json"]), bed.millrace(&["reasons", "--json"])];
                let came = received.load(Relaxed);
                assert!(start.elapsed() < PATIENCE, "{came} of {sent} packets have come: {:?}", losses());
                thread::sleep(Duration::from_millis(10));
            }
            assert_eq!(receiving.join().unwrap(), 0, "packets were overtaken");
        });
        bed.wait_for("the queue to be whole", |report| split(report).is_none());
    });
}

#[test]
#[ignore = "needs root"]
fn flow_rules_act_on_every_packet_of_a_queue_that_is_split_and_joined() {
    in_new_namespace(|| {
        let bed = hot("f");
        // The rule's priority is the kind.
        let actions = ["output:2", "mod_dl_dst:02:00:00:00:07:02,output:2", "set_core:1,output:2"];
        for (kind, actions) in actions.iter().enumerate() {
            let rule = format!("priority={kind},in_port=1,ip,ip_dscp={kind},actions={actions}");
            bed.millrace(&["flows", "add", &rule]);
        }
        let counted = || -> Vec<(u64, u64)> {
            let rules = bed.json(&["flows", "list"]).unwrap();
            let mut rules = rules.as_array().unwrap().clone();
            rules.sort_by_key(|rule| rule["priority"].as_u64());
            let number = |rule: &Value, name: &str| rule[name].as_u64().unwrap();
            rules.iter().map(|rule| (number(rule, "packets"), number(rule, "bytes"))).collect()
        };
        assert_eq!(counted(), [(0, 0); 3]);
        let (from, to) = (Wire::open("q0"), Wire::open("q1"));
        let mut all = [(0, 0); 3];
        // The queue is split and joined, twice.
        for _ in 0..2 {
            let came = split_and_joined(&bed, (&from, &to), frame, |number| {
                let mut expected = frame(number);
                if expected[15] == 4 {
                    expected[..6].copy_from_slice(&[2, 0, 0, 0, 7, 2]);
                }
                expected
            });
            for (kind, (packets, bytes)) in (0..KINDS.into()).zip(&mut all) {
                let is_it = |number: &u64| number % u64::from(FLOWS) % u64::from(KINDS) == kind;
                *packets += (0..came.sent).filter(is_it).count() as u64;
                *bytes = *packets * frame(0).len() as u64;
            }
            assert_eq!(counted(), all);
        }
    });
}

/// The home is moved back twice. Then the thread stays where it is, and this core is the home.
#[test]
#[ignore = "needs root"]
fn nothing_is_lost_when_somebody_moves_the_home_of_a_queue_that_is_split() {
    in_new_namespace(|| {
        let bed = hot("h");
        let (from, to) = (Wire::open("q0"), Wire::open("q1"));
        let is_on = |report: &Value, core: u64| split(report).is_some_and(|queue| queue["core"] == core);
        let came = send_paced_while(
            (&from, &to),
            FLOWS,
            teeth(LOW_TEETH),
            frame,
            |_, _| (),
            || {
                let report = bed.wait_for("a queue that is split", |report| split(report).is_some());
                let home = split(&report).unwrap()["core"].as_u64().unwrap();
                let thread = split(&report).unwrap()["moved_by"].as_str().unwrap();
                let thread = thread.strip_prefix("thread ").unwrap().parse().unwrap();
                for times in 1..=3 {
                    // A look that begins after the placing confirms it. Only then does a move count as
                    // somebody else's.
                    thread::sleep(Duration::from_millis(1100));
                    Kernel.allow(thread, &[1 - home as u16].into()).unwrap();
                    bed.wait_for("the move to be noticed", |report| {
                        report["conditions"].to_string().contains(&format!("by somebody else, {times} times"))
                    });
                    if times < 3 {
                        bed.wait_for("the return to the old home", |report| is_on(report, home));
                    }
                }
                bed.wait_for("the new home", |report| is_on(report, 1 - home));
                thread::sleep(Duration::from_secs(1));
            },
        );
        eprintln!("{came:?}");
        assert_eq!((came.overtaken, came.received), (0, came.sent));
        let told = whys(&bed.json(&["events"]).unwrap());
        let moved: Vec<_> = told.iter().filter(|why| why.contains("moved by somebody else")).collect();
        let ends = [
            "1 times so far; it is moved back",
            "2 times so far; it is moved back",
            "3 times so far; it is left alone for 30 s",
        ];
        assert!(
            moved.len() == 3 && moved.iter().zip(ends).all(|(why, end)| why.ends_with(end)),
            "other events: {told:?}"
        );
        let status = bed.json(&["status"]).unwrap();
        assert!(
            status["conditions"].to_string().contains("is left alone for 30 s at a time"),
            "not left alone: {status}"
        );
    });
}

/// A packet to the remote host, without a UDP checksum. The number determines the connection.
fn to_remote(number: u32) -> Frame {
    let frame = Frame::udp4(P0, "10.0.0.9", "10.0.1.9");
    frame.ip4(|ip| {
        ip[20..22].copy_from_slice(&port(number).to_be_bytes());
        ip[26..28].fill(0);
        let at = ip.len() - 4;
        ip[at..].copy_from_slice(&number.to_be_bytes());
    })
}

/// An answer, to the masqueraded address.
fn answer(number: u32) -> Frame {
    Frame::udp4(P1, "10.0.1.9", "10.0.1.1").with(|ip| {
        ip[20..22].copy_from_slice(&2000u16.to_be_bytes());
        ip[22..24].copy_from_slice(&port(number).to_be_bytes());
        ip[26..28].fill(0);
    })
}

fn port(number: u32) -> u16 {
    4000 + number as u16 % FLOWS
}

#[test]
#[ignore = "needs root"]
fn connections_of_a_queue_that_is_split_are_translated_and_stay_in_order() {
    in_new_namespace(|| {
        let bed = hot("n");
        run("nft add table ip nat");
        run("nft add chain ip nat post { type nat hook postrouting priority 100 ; }");
        run("nft add rule ip nat post oifname p1 masquerade");
        run("nft add table ip filter");
        run("nft add chain ip filter forward { type filter hook forward priority 0 ; policy drop ; }");
        run("nft add rule ip filter forward ct state established accept");
        run("nft add rule ip filter forward iifname p0 accept");
        let (from, to) = (Wire::open("q0"), Wire::open("q1"));
        let fast = || -> Vec<u64> {
            let connections = bed.json(&["connections", "--state", "fast"]).unwrap();
            let connections = connections.as_array().unwrap().clone();
            connections.iter().map(|connection| connection["packets"].as_u64().unwrap()).collect()
        };
        let begun = Instant::now();
        while fast().len() < usize::from(FLOWS) {
            let all = || bed.millrace(&["connections"]);
            assert!(begun.elapsed() < PATIENCE, "not all connections are fast: {}", all());
            (0..u32::from(FLOWS)).for_each(|number| from.send(&to_remote(number).bytes()));
            // An answer that came before these packets would begin a connection of its own.
            let mut came = 0;
            while came < FLOWS {
                let udp = |bytes: &Vec<u8>| bytes[12..14] == [8, 0] && bytes[23] == 17;
                came += u16::from(to.receive().as_ref().is_some_and(udp));
                assert!(begun.elapsed() < PATIENCE, "only {came} packets came out: {}", all());
            }
            (0..u32::from(FLOWS)).for_each(|number| to.send(&answer(number).bytes()));
        }
        // The queue is split and joined, twice.
        for _ in 0..2 {
            while to.receive().is_some() {}
            let before = fast().iter().sum::<u64>();
            let came = split_and_joined(
                &bed,
                (&from, &to),
                |number| to_remote(number).bytes(),
                |number| {
                    let translated = to_remote(number).with(|ip| ip[12..16].copy_from_slice(&[10, 0, 1, 1]));
                    translated.routed(Mac([2, 0, 0, 0, 7, 1]), P1, &[])
                },
            );
            let fast = fast();
            let bypassed = fast.iter().sum::<u64>() - before;
            assert_eq!(
                (fast.len(), bypassed),
                (FLOWS.into(), came.sent),
                "(fast connections, their packets)"
            );
        }
    });
}
