//! Flow rules in memory of their own, and the check that the program finds what the tables say.

use logic::flow::{
    Instructions, Key, RulePort,
    execute::Packet,
    explain::explain,
    flows::Flows,
    kernel::{FlowCapacity, FlowMemory, HeapFlows, Seed, TABLE_ROWS, answer::Looked, miss, rule_of},
    packet::VXLAN_PORT,
    pipeline::{Done, MOST_OUTPUTS},
    rule::{CORE_TABLE, TABLES},
};

/// Small, because full tables must be tested, too.
pub const CAPACITY: FlowCapacity = FlowCapacity {
    rules: 64,
    buckets: 64,
    rest: 16,
    patches: 8,
    steps: 32,
    groups: 4,
    meters: 4,
    cache_sets: 4,
    port_sets: 8,
};

pub fn flows(miss: &Instructions) -> Flows<HeapFlows> {
    Flows::new(HeapFlows::new(CAPACITY, 2), Seed::default(), miss)
}

/// The result of the program's lookup for a frame.
pub fn look<M: FlowMemory>(flows: &Flows<M>, frame: &[u8], port: RulePort) -> Looked {
    flows.reader().look(&Key::of(frame, port, VXLAN_PORT))
}

/// The rows without the core table's miss, which decides nothing. An entry cached while that table had rules may still have it.
fn decided(mut rows: Vec<u32>) -> Vec<u32> {
    rows.retain(|&row| row != miss(CORE_TABLE));
    rows
}

/// Runs the frame in user space. The program, with its cache, must find what the tables say, as far as it can know before
/// actions are applied. No batch is in progress.
pub fn run<M: FlowMemory>(flows: &mut Flows<M>, frame: &[u8], port: RulePort, now_ns: u64) -> Done {
    let looked = look(flows, frame, port);
    if let Some(cached) = flows.reader().cached(&looked.key()) {
        assert_eq!(decided(cached), decided(looked.rows()), "the cache is wrong");
    }
    let told = explain(flows, Packet::new(frame, port));
    let done = flows.run(Packet::new(frame, port), now_ns);
    if flows.drops(frame) {
        assert_eq!((&told.done, &done), (&Done::default(), &Done::default()), "a fragment");
        return done;
    }
    let meters = |row: &u32| flows.instructions(*row).is_some_and(|does| does.meter.is_some());
    if !told.done.rows.iter().any(meters) {
        assert_eq!(told.done, done, "not what `explain` reported");
    }
    let tables = flows.tables();
    for (&row, &found) in done.rows.iter().zip(&looked.rows()) {
        assert_eq!(row, found, "{done:?}, {looked:?}");
        let rule = rule_of(row).and_then(|id| tables.rule(id));
        if rule.is_some_and(|rule| rule.table != CORE_TABLE && !rule.instructions.apply.is_empty()) {
            break;
        }
    }
    check(&done, frame.len());
    done
}

/// Checks that the result of any packet is bounded.
fn check(done: &Done, bytes: usize) {
    assert!((1..=TABLE_ROWS).contains(&done.rows.len()), "{done:?}");
    assert!(done.rows.iter().all(|&row| row >= miss(0)), "{done:?}");
    assert!(done.outputs.len() <= MOST_OUTPUTS, "{} outputs", done.outputs.len());
    for output in &done.outputs {
        assert!(output.frame.len() <= MOST_BYTES.max(bytes), "{bytes} bytes become {}", output.frame.len());
        assert!(output.table < TABLES);
    }
}

/// The longest frame: the longest IP packet, and the headers that may stand before it.
const MOST_BYTES: usize = 0x1_0000 + 1024;
