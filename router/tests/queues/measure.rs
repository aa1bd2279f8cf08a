//! What a row of an RX queue saves, by BPF_PROG_TEST_RUN of the very program: `cargo test --test queues --
//! --ignored --nocapture measure`. The raw figures go to the file that MILLRACE_MEASURE names, as a line of
//! JSON each.

use super::{steered, world::*};
use crate::common::{driver::Driver, frame::Frame, in_new_namespace};
use logic::{
    fib::synthetic::{self, Random},
    flow::{
        Action, Field, FlowCommand, FlowMod, Instructions, Key, Match, RulePort,
        kernel::{FlowCapacity, Seed, Writer},
        packet::VXLAN_PORT,
        table::{Dialect, Tables},
    },
    memory::Capacity,
    net::{Mac, Prefix4, Prefix6},
    plan::Op,
};
use router::plane::{FlowMaps, FlowPlane, FlowSettings, Settings};
use std::{collections::BTreeSet, io::Write, process::Command, sync::Arc};

const ROUNDS: usize = 9;
const DESTINATIONS: usize = 4096;
const HOPS: u8 = 64;
const QUEUE: u32 = 2;

/// The prefixes of the file that MILLRACE_PREFIXES names (gzip, one a line), or made-up ones.
fn prefixes() -> (Vec<Prefix4>, Vec<Prefix6>) {
    let Some(file) = std::env::var_os("MILLRACE_PREFIXES") else {
        return (synthetic::prefixes4(900_000, 1), synthetic::prefixes6(160_000, 1));
    };
    let text = Command::new("gzip").arg("-dc").arg(&file).output().unwrap().stdout;
    let text = String::from_utf8(text).unwrap();
    let v4 = text.lines().filter_map(|l| l.parse().ok());
    (v4.collect(), text.lines().filter_map(|l| l.parse().ok()).collect())
}

/// A full table over 64 next hops. Every interface is plain.
fn world(queue_rows: bool, v4: &[Prefix4], v6: &[Prefix6]) -> World {
    let capacity = Capacity {
        fib_blocks: 420_000,
        fib_tails: 500_000,
        nexthops: 1024,
        neighbour_buckets: 64,
        interface_buckets: 64,
        routers: 256,
    };
    let mut w = World::with_queues(Settings { capacity, queue_rows, sample_interval: 128, ..settings() }, 4);
    let hop = |i: usize| format!("10.0.2.{}", 10 + i as u8 % HOPS);
    let hops: Vec<_> = (0..usize::from(HOPS)).map(|i| via(2, &hop(i))).collect();
    w.apply((0..HOPS).map(|i| neighbour(2, &hop(i.into()), Mac([2, 0, 0, 0, 8, i]))));
    let target = |i: usize| Some(hops[i.wrapping_mul(0x9e37_79b1) >> 7 & 63].clone());
    w.apply(v4.iter().enumerate().map(|(i, prefix)| Op::Route4(0, *prefix, target(i))));
    w.apply(v6.iter().enumerate().map(|(i, prefix)| Op::Route6(0, *prefix, target(i))));
    w
}

/// Frames to random addresses in random prefixes.
fn frames4(prefixes: &[Prefix4]) -> Vec<(String, Vec<u8>)> {
    let mut random = Random(1);
    let inside = |random: &mut Random| {
        let prefix = prefixes[random.below(prefixes.len() as u32) as usize];
        let host = random.next_u64() as u32;
        let host = host.checked_shr(prefix.length().into()).unwrap_or(0);
        std::net::Ipv4Addr::from(prefix.address() | host).to_string()
    };
    let frame = |to: String| (to.clone(), Frame::udp4(A, "10.0.1.5", &to).bytes());
    (0..DESTINATIONS).map(|_| frame(inside(&mut random))).collect()
}

fn frames6(prefixes: &[Prefix6]) -> Vec<(String, Vec<u8>)> {
    let mut random = Random(2);
    let inside = |random: &mut Random| {
        let prefix = prefixes[random.below(prefixes.len() as u32) as usize];
        let host = u128::from(random.next_u64()) << 64 | u128::from(random.next_u64());
        let host = host.checked_shr(prefix.length().into()).unwrap_or(0);
        std::net::Ipv6Addr::from(prefix.address() | host).to_string()
    };
    let frame = |to: String| (to.clone(), Frame::udp6(A, "2001:db8:1::5", &to).bytes());
    (0..DESTINATIONS).map(|_| frame(inside(&mut random))).collect()
}

fn tell(line: String) {
    println!("{line}");
    let Some(file) = std::env::var_os("MILLRACE_MEASURE") else { return };
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(file).unwrap();
    writeln!(file, "{line}").unwrap();
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// Measures the subjects in turn (A B A B). Each is a name, and a function that prepares the program and runs
/// it.
fn compare(family: &str, workload: &str, subjects: &mut [(&str, &mut dyn FnMut() -> f64)]) {
    let mut samples = vec![Vec::new(); subjects.len()];
    for _ in 0..ROUNDS {
        for ((_, run), samples) in subjects.iter_mut().zip(&mut samples) {
            samples.push(run());
        }
    }
    for ((name, _), samples) in subjects.iter().zip(samples) {
        let raw: Vec<String> = samples.iter().map(|ns| format!("{ns:.2}")).collect();
        let ns = median(samples);
        tell(format!(
            "{{\"record\":\"queue_rows\",\"family\":\"{family}\",\"workload\":\"{workload}\",\"subject\":\"{name}\",\
             \"median_ns\":{ns:.2},\"ns\":[{}]}}",
            raw.join(",")
        ));
    }
}

/// Half of the packets go to the first destination, the rest to all others in turn.
fn half(frames: &[(String, Vec<u8>)]) -> Vec<Vec<u8>> {
    frames.iter().flat_map(|f| [frames[0].1.clone(), f.1.clone()]).collect()
}

fn routing(
    family: &str,
    plain: &mut World,
    rows: &mut World,
    frames: &[(String, Vec<u8>)],
    near: (&str, Vec<u8>),
) {
    let [far, near_row] = [&frames[0].0, near.0].map(|to| steered(0, QUEUE as u8, 1, to));
    rows.tables.set_steered(&BTreeSet::from([far, near_row]));
    assert_eq!(rows.tables.steered().count(), 2, "rows in use, of {far:?} and {near_row:?}");
    let all: Vec<Vec<u8>> = frames.iter().map(|f| f.1.clone()).collect();
    for (workload, list, heavy) in [
        ("one destination", all[..1].to_vec(), far),
        ("one neighbour", vec![near.1], near_row),
        ("half to one, half to 4,096", half(frames), far),
        ("4,096 destinations", all, far),
    ] {
        let mut drivers = [Driver::new(&list), Driver::new(&list), Driver::new(&list)];
        let [a, b, c] = &mut drivers;
        let (tables, program) = (&mut rows.tables, rows.plane.program());
        let (plain_port, port) = (plain.port[0], rows.port[0]);
        let tables = std::cell::RefCell::new(tables);
        compare(
            family,
            workload,
            &mut [
                ("program without rows", &mut || a.run(plain.plane.program(), plain_port, QUEUE, &list[0])),
                ("rows empty", &mut || {
                    tables.borrow_mut().set_steered(&BTreeSet::new());
                    b.run(program, port, QUEUE, &list[0])
                }),
                ("row of the one", &mut || {
                    tables.borrow_mut().set_steered(&BTreeSet::from([heavy]));
                    c.run(program, port, QUEUE, &list[0])
                }),
            ],
        );
    }
}

const FLOWS: FlowCapacity = FlowCapacity {
    rules: 8192,
    buckets: 8192,
    rest: 8192,
    patches: 1024,
    steps: 4096,
    groups: 16,
    meters: 16,
    cache_sets: 8192,
    port_sets: 64,
};

/// A match on the 5-tuple.
fn five_fields(frame: &[u8]) -> Match {
    let key = Key::of(frame, RulePort(1), VXLAN_PORT);
    let addresses = if frame[12..14] == [8, 0] {
        [Field::Ipv4Src, Field::Ipv4Dst]
    } else {
        [Field::Ipv6Src, Field::Ipv6Dst]
    };
    let mut m = Match::ANY;
    for field in [Field::EthType, Field::IpProto, Field::UdpSrc, Field::UdpDst].into_iter().chain(addresses) {
        m.set(field, key.get(field), field.all_bits());
    }
    m
}

/// A rule for the flow of each frame.
pub fn flows(w: &World, frames: &[(String, Vec<u8>)], to: RulePort) -> FlowPlane {
    let seed = Seed::new([3, 5, 7, 11, 13].map(|n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    let maps = FlowMaps::new(FlowSettings { capacity: FLOWS, seed }).unwrap();
    let plane = FlowPlane::load(&w.plane, &Arc::new(maps)).unwrap();
    let memory = plane.maps().memory();
    memory.set_ports([(RulePort(1), (w.port[0], true)), (RulePort(2), (w.port[1], true))].into()).unwrap();
    let mut tables = Tables::new();
    tables.set_ports([(RulePort(1), true), (RulePort(2), true)]);
    let mut writer = Writer::new(memory.clone(), seed);
    for (_, frame) in frames {
        let request =
            FlowMod::new(FlowCommand::Add, 1, five_fields(frame), Instructions::apply([Action::output(to)]));
        for change in tables.apply(&request, Dialect::OpenFlow10, 1).unwrap() {
            writer.apply(&tables, &change).unwrap();
        }
    }
    plane
}

/// The flow cache answers every packet. Its answer is an output, or NORMAL with and without a row.
fn against_the_cache(family: &str, w: &mut World, frames: &[(String, Vec<u8>)]) {
    let output = flows(w, frames, RulePort(2));
    let normal = flows(w, frames, RulePort::NORMAL);
    let heavy = steered(0, QUEUE as u8, 1, &frames[0].0);
    let all: Vec<Vec<u8>> = frames.iter().map(|f| f.1.clone()).collect();
    for (workload, list) in
        [("one destination", all[..1].to_vec()), ("half to one, half to 4,096", half(frames))]
    {
        let mut drivers = [Driver::new(&list), Driver::new(&list), Driver::new(&list), Driver::new(&list)];
        let [a, b, c, d] = &mut drivers;
        let (port, program) = (w.port[0], w.plane.program());
        let tables = std::cell::RefCell::new(&mut w.tables);
        let rows = |on: bool| tables.borrow_mut().set_steered(&on.then_some(heavy).into_iter().collect());
        compare(
            family,
            workload,
            &mut [
                ("flow cache, output", &mut || a.run(output.program(), port, QUEUE, &list[0])),
                ("flow cache, NORMAL", &mut || {
                    rows(false);
                    b.run(normal.program(), port, QUEUE, &list[0])
                }),
                ("flow cache, NORMAL by a row", &mut || {
                    rows(true);
                    c.run(normal.program(), port, QUEUE, &list[0])
                }),
                ("row of the one, no flow rules", &mut || {
                    rows(true);
                    d.run(program, port, QUEUE, &list[0])
                }),
            ],
        );
    }
}

#[test]
#[ignore = "a measurement"]
fn rows_against_routing_and_the_flow_cache() {
    in_new_namespace(|| {
        crate::common::only_on([1]);
        let (v4, v6) = prefixes();
        let (routes4, routes6) = (v4.len(), v6.len());
        tell(format!("{{\"record\":\"queue_rows\",\"routes4\":{routes4},\"routes6\":{routes6}}}"));
        let mut plain = world(false, &v4, &v6);
        crate::common::run("ip link set p0 name o0");
        crate::common::run("ip link set p1 name o1");
        crate::common::run("ip link set q0 name x0");
        crate::common::run("ip link set q1 name x1");
        let mut rows = world(true, &v4, &v6);
        let (mut frames4, mut frames6) = (frames4(&v4), frames6(&v6));
        let (frame, port) = (&frames4[0].1, rows.port[0]);
        let mut driver = Driver::new(std::slice::from_ref(frame));
        let driver = median((0..ROUNDS).map(|_| driver.alone(port, frame)).collect());
        tell(format!("{{\"record\":\"queue_rows\",\"subject\":\"driver\",\"median_ns\":{driver:.2}}}"));
        let near4 = ("10.0.2.9", Frame::udp4(A, "10.0.1.5", "10.0.2.9").bytes());
        let near6 = ("2001:db8:2::9", Frame::udp6(A, "2001:db8:1::5", "2001:db8:2::9").bytes());
        for (family, frames, near) in [("IPv4", &mut frames4, near4), ("IPv6", &mut frames6, near6)] {
            let row = |to: &str| steered(0, QUEUE as u8, 1, to).row();
            // No router forwards to 127.0.0.0/8, which the made-up prefixes do not leave out.
            let has_row = |to: &str| row(to) != row(near.0) && !to.starts_with("127.");
            let other = frames.iter().position(|(to, _)| has_row(to)).unwrap();
            frames.swap(0, other);
            routing(family, &mut plain, &mut rows, frames, near);
            against_the_cache(family, &mut rows, frames);
        }
    });
}
