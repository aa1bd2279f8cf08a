//! Measures the flow tables: `cargo bench -p millrace-logic --bench flow`.
//!
//! First it prints a table at full size, 1,000,000 exact rules beside 10,000 wildcard rules of 60 masks: memory, and
//! nanoseconds in CPU time of this thread. Then criterion measures look-ups and changes. With the argument `table` it
//! only prints the table.

use criterion::{BenchmarkId, Criterion, Throughput};
use logic::flow::{
    Action, Field, FlowCommand, FlowFilter, FlowMod, Instructions, Key, Match, RuleId, RulePort, Tables,
    field::ether_type,
    table::{Change, Dialect},
};
use std::{hint::black_box, process::Command, time::Duration};

const EXACT: u32 = 1_000_000;
/// Ten below the limit, for those that are added during the measurement.
const WILDCARD: u32 = 9_990;

/// The time that this thread has been on a core, from the scheduler.
fn cpu_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(text.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0))
}

/// Memory of this process in bytes.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    4096 * text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0)
}

/// Nanoseconds for each of `count` operations.
fn per(count: u32, work: impl FnOnce()) -> f64 {
    let start = cpu_time();
    work();
    (cpu_time() - start).as_nanos() as f64 / f64::from(count)
}

/// A permutation of numbers, so that entries are not found in the order in which they were added.
fn shuffled(i: u32) -> u32 {
    i.wrapping_mul(0x9e37_79b1) ^ i >> 7
}

/// A TCP flow with all twelve fields of OpenFlow 1.0.
fn exact(i: u32) -> Match {
    let i = shuffled(i);
    Match::ANY
        .with(Field::InPort, 1 + i % 4)
        .with(Field::EthDst, 0x0200_0000_0001_u64)
        .with(Field::EthSrc, 0x0200_0000_0000_u64 + u64::from(i >> 8))
        .with(Field::EthType, ether_type::IPV4)
        .with(Field::VlanVid, 0_u16)
        .with(Field::VlanPcp, 0_u16)
        .with(Field::IpDscp, 0_u16)
        .with(Field::IpProto, 6_u16)
        .with(Field::Ipv4Src, 0x0a00_0000 | i >> 8)
        .with(Field::Ipv4Dst, i)
        .with(Field::TcpSrc, 1024 + i % 60_000)
        .with(Field::TcpDst, 443_u16)
}

/// One of 60 masks: a prefix of the destination, with or without the receive port or the protocol and TCP port.
fn wildcard(i: u32) -> Match {
    let (net, length) = (shuffled(i), 13 + i % 20);
    let mut m = Match::ANY.with(Field::EthType, ether_type::IPV4);
    m.set(Field::Ipv4Dst, net.into(), u128::from(u32::MAX << (32 - length)));
    match i / 20 % 3 {
        0 => m,
        1 => m.with(Field::InPort, 1 + net % 4),
        _ => m.with(Field::IpProto, 6_u16).with(Field::TcpDst, 80 + i % 1000),
    }
}

fn request(command: FlowCommand, priority: u16, matching: Match, actions: impl Into<Vec<Action>>) -> FlowMod {
    FlowMod::new(command, priority, matching, Instructions::apply(actions))
}

fn add(tables: &mut Tables, request: &FlowMod) -> RuleId {
    match tables.apply(request, Dialect::OpenFlow13, 0).as_deref() {
        Ok(&[Change::Added(id)]) => id,
        other => panic!("{other:?}"),
    }
}

/// Removes a rule, and lets its id be used again.
fn delete(tables: &mut Tables, request: &FlowMod) {
    for change in tables.apply(request, Dialect::OpenFlow13, 0).expect("deleting") {
        if let Change::Removed { id, .. } = change {
            tables.release(id);
        }
    }
}

struct Bed {
    exact: Vec<Match>,
    tables: Tables,
}

impl Bed {
    /// Exact rules at this priority, and wildcard ones at 1 to 99. Each exact rule writes its own MAC address (`own`),
    /// or there are 16 different actions. Also returns the cost of adding them, as a line of the table.
    fn new(priority: u16, own: bool, idle_timeout: u16) -> (Bed, String) {
        let exact: Vec<Match> = (0..EXACT).map(exact).collect();
        let mut tables = Tables::new();
        tables.set_ports((1..=16).map(|port| (RulePort(port), true)));
        let before = resident();
        let mut r = FlowMod { idle_timeout, ..request(FlowCommand::Add, priority, Match::ANY, []) };
        let exact_ns = per(EXACT, || {
            for (i, matching) in exact.iter().enumerate() {
                r.matching = *matching;
                r.instructions.apply.clear();
                if own {
                    r.instructions.apply.push(Action::set(Field::EthDst, i as u64));
                }
                r.instructions.apply.push(Action::output(RulePort(1 + i as u16 % 16)));
                add(&mut tables, &r);
            }
        });
        let wildcards: Vec<Match> = (0..WILDCARD).map(wildcard).collect();
        let wildcard_ns = per(WILDCARD, || {
            for (i, matching) in wildcards.iter().enumerate() {
                (r.matching, r.priority) = (*matching, 1 + i as u16 % 99);
                // The same net may occur twice.
                _ = tables.apply(&r, Dialect::OpenFlow13, 0);
            }
        });
        let mib = (resident() - before) as f64 / f64::from(1 << 20);
        let line = format!(
            "| priority {priority}{}{} | {exact_ns:.0} | {wildcard_ns:.0} | {mib:.0} MiB |",
            if own { ", own actions" } else { "" },
            if idle_timeout > 0 { ", timeouts" } else { "" },
        );
        (Bed { exact, tables }, line)
    }

    fn keys(&self, step: usize) -> impl Iterator<Item = &Key> {
        self.exact.iter().step_by(step).map(Match::key)
    }
}

fn everything() -> FlowFilter {
    FlowFilter {
        table: None,
        matching: Match::ANY,
        out_port: None,
        out_group: None,
        cookie: 0,
        cookie_mask: 0,
    }
}

/// Prints the table in the doc comment of `flow/table`.
fn table() -> Bed {
    println!("| 1,000,000 exact, 10,000 wildcard rules | ns per exact add | ns per wildcard add | memory |");
    println!("|---|---|---|---|");
    // Memory that one bed has released would be used by the next, so each is measured in a process of its own.
    for bed in ["", "own", "timeouts"] {
        let this = std::env::current_exe().expect("a path");
        let child = Command::new(this).args(["bed", bed]).status();
        assert!(child.is_ok_and(|status| status.success()));
    }
    println!("\n| with these | ns |\n|---|---|");
    let (mut bed, _) = Bed::new(0, false, 0);
    overlaps(&mut bed.tables, "wildcard above all exact rules", 200, wildcard(5), 10);
    (bed, _) = Bed::new(100, false, 0);
    let t = &mut bed.tables;
    let (count, mut found) = (EXACT / 100, 0);
    let ids = (0..count).map(|i| RuleId(100 * i));
    let ns = per(count, || ids.for_each(|id| found += t.overlapped_by(id).count()));
    line(&format!("overlapped_by, exact rule ({:.2} found)", found as f64 / f64::from(count)), ns);
    overlaps(t, "wildcard below all exact rules", 50, wildcard(77_777), 5000);
    let tuple = exact(EXACT + 9);
    let mut five = Match::ANY.with(Field::EthType, ether_type::IPV4);
    for field in [Field::IpProto, Field::Ipv4Src, Field::Ipv4Dst, Field::TcpSrc, Field::TcpDst] {
        five.set(field, tuple.key().get(field), field.all_bits());
    }
    overlaps(
        t,
        "5-tuple below all exact rules, a third of the wildcards matching the port too",
        99,
        five,
        5000,
    );
    overlaps(t, "5-tuple beside the exact rules", 100, five, 10);
    lookups_and_changes(&mut bed);
    bed
}

fn line(what: &str, ns: f64) {
    println!("| {what} | {ns:.0} |");
}

fn overlaps(tables: &mut Tables, what: &str, priority: u16, matching: Match, times: u32) {
    let id = add(tables, &request(FlowCommand::Add, priority, matching, []));
    let ns = per(times, || (0..times).for_each(|_| _ = black_box(tables.overlapped_by(id).count())));
    line(&format!("overlapped_by, {what}"), ns);
}

fn lookups_and_changes(bed: &mut Bed) {
    let keys: Vec<Key> = bed.keys(3).copied().collect();
    let t = &mut bed.tables;
    let hit = per(keys.len() as u32, || keys.iter().for_each(|key| _ = black_box(t.lookup(0, key))));
    line("lookup, exact rule of highest priority", hit);
    let misses: Vec<Key> = (0..100_000).map(|i| *exact(EXACT + i).key()).collect();
    let miss = per(100_000, || misses.iter().for_each(|key| _ = black_box(t.lookup(0, key))));
    line("lookup, wildcard rule or none, 62 masks", miss);

    let some: Vec<Match> = bed.exact.iter().step_by(7).copied().collect();
    let mut r = request(FlowCommand::Delete { strict: true }, 100, Match::ANY, [Action::output(RulePort(2))]);
    for (what, command) in [
        ("delete strict", FlowCommand::Delete { strict: true }),
        ("add", FlowCommand::Add),
        ("modify", FlowCommand::Modify { strict: false }),
        ("add again", FlowCommand::Add),
        ("delete, not strict", FlowCommand::Delete { strict: false }),
        ("add", FlowCommand::Add),
    ] {
        r.command = command;
        let ns = per(some.len() as u32, || {
            for matching in &some {
                r.matching = *matching;
                delete(t, &r);
            }
        });
        line(&format!("{what}, exact rule"), ns);
    }
    let ns = per(1, || _ = black_box(t.flows(&everything(), 0).count()));
    line("all statistics, in order", ns);
    let ns = per(1, || _ = black_box(t.aggregate(&everything())));
    line("aggregate of all", ns);
}

fn main() {
    let has = |wanted: &str| std::env::args().any(|a| a == wanted);
    if has("bed") {
        let (_, line) = Bed::new(100, has("own"), if has("timeouts") { 60 } else { 0 });
        return println!("{line}");
    }
    let mut bed = table();
    if has("table") {
        return;
    }
    let mut c =
        Criterion::default().sample_size(10).measurement_time(Duration::from_secs(1)).configure_from_args();
    let mut group = c.benchmark_group("flow");
    for step in [100_000, 250, 1] {
        let keys: Vec<Key> = bed.keys(step).copied().collect();
        group.throughput(Throughput::Elements(keys.len() as u64));
        group.bench_with_input(BenchmarkId::new("lookup", keys.len()), &keys, |b, keys| {
            b.iter(|| keys.iter().for_each(|key| _ = black_box(bed.tables.lookup(0, key))))
        });
    }
    group.throughput(Throughput::Elements(2));
    let matching = exact(EXACT + 1);
    let new = request(FlowCommand::Add, 100, matching, [Action::output(RulePort(2))]);
    let old = FlowMod { command: FlowCommand::Delete { strict: true }, ..new.clone() };
    group.bench_function("add and delete", |b| {
        b.iter(|| {
            add(&mut bed.tables, &new);
            delete(&mut bed.tables, &old);
        })
    });
    group.finish();
    c.final_summary();
}
