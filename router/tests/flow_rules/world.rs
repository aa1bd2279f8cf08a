//! Four ports, flow tables, and the program with its memory.

use crate::common::{SMALL, ifindex, run};
use logic::flow::{
    FlowCommand, FlowFlags, FlowMod, Instructions, Key, Match, Port,
    kernel::{self, FlowCapacity, FlowMemory, Seed, Writer},
    table::{Dialect, Tables},
};
use router::plane::{Charge, FlowLast, FlowPlane, Grace, MappedFlows, Plane, Settings, TestRun};
use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering::Acquire},
    time::Duration,
};

pub const XDP_DROP: u32 = 1;
pub const XDP_PASS: u32 = 2;
pub const XDP_REDIRECT: u32 = 4;

const CAPACITY: FlowCapacity = FlowCapacity {
    rules: 4096,
    buckets: 4096,
    rest: 4096,
    patches: 1024,
    steps: 4096,
    groups: 16,
    meters: 16,
    cache_sets: 1024,
    port_sets: 64,
};

pub struct FlowWorld {
    plane: Plane,
    pub flows: FlowPlane,
    memory: Arc<MappedFlows>,
    tables: Tables,
    writer: Writer<Arc<MappedFlows>>,
    grace: Grace,
    ports: Vec<u32>,
    now_ms: u64,
}

impl FlowWorld {
    pub fn new() -> FlowWorld {
        // The program's notes on a packet are kept by CPU.
        let mut one = rustix::thread::CpuSet::new();
        one.set(rustix::thread::sched_getcpu());
        rustix::thread::sched_setaffinity(None, &one).unwrap();
        let plane = Plane::load(Settings {
            capacity: SMALL,
            interface_rows: 64,
            sample_interval: 0,
            exception_pps: 0,
            control_pps: 0,
        })
        .unwrap_or_else(|e| panic!("{e:#}"));
        plane.confirm_until(Duration::from_secs(1 << 32)).unwrap();
        let mut ports = Vec::new();
        for id in 0..4_u8 {
            run(&format!("ip link add p{id} type veth peer name q{id}"));
            ports.push(ifindex(&format!("p{id}")));
            plane.set_port(id, ports[usize::from(id)], true, true).unwrap();
        }
        // Rules are found by these hashes whatever they are.
        let seed = Seed::new([3, 5, 7, 11, 13].map(|n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let flows = FlowPlane::load(&plane, &CAPACITY, seed).unwrap_or_else(|e| panic!("{e:#}"));
        let memory = flows.memory();
        let known: BTreeMap<Port, (u32, bool)> =
            (1..).map(Port).zip(ports.iter().map(|ifindex| (*ifindex, true))).collect();
        memory.set_ports(known.clone()).unwrap();
        let mut tables = Tables::new();
        tables.set_ports(known.into_keys().map(|port| (port, true)));
        let writer = Writer::new(memory.clone(), seed);
        FlowWorld { plane, flows, memory, tables, writer, grace: Grace::new().unwrap(), ports, now_ms: 0 }
    }

    pub fn change(
        &mut self,
        command: FlowCommand,
        table: u8,
        priority: u16,
        matching: Match,
        does: Instructions,
    ) {
        self.now_ms += 1;
        let request = FlowMod {
            command,
            table: Some(table),
            cookie: 0,
            cookie_mask: 0,
            priority,
            matching,
            instructions: does,
            idle_timeout: 0,
            hard_timeout: 0,
            out_port: None,
            out_group: None,
            flags: FlowFlags::default(),
            buffer: None,
        };
        let changes = self.tables.apply(&request, Dialect::OpenFlow10, self.now_ms).unwrap();
        for change in changes {
            self.writer.apply(&self.tables, &change).unwrap();
        }
    }

    /// As the daemon ends a batch.
    pub fn finish(&mut self) {
        let mut batch = self.writer.seal();
        if batch.is_empty() {
            return;
        }
        self.grace.wait().unwrap();
        self.writer.void(&mut batch);
        self.grace.wait().unwrap();
        self.writer.reclaim(batch).into_iter().for_each(|id| self.tables.release(id));
    }

    pub fn run(&mut self, port: usize, frame: &[u8]) -> TestRun {
        self.flows.run(self.ports[port], frame).unwrap()
    }

    /// What the program made of the last packet.
    pub fn last(&self) -> FlowLast {
        self.flows.last()
    }

    /// Packets that user space was to do; nobody listens here.
    pub fn slow(&self) -> u64 {
        let counters = self.plane.counters().unwrap();
        let charged = |port| counters.charges.get(&(Charge::Port(port), logic::reason::Reason::RuleSlowLost));
        (0..4).filter_map(charged).sum()
    }

    /// The rows that the tables say decide.
    pub fn truth(&self, key: &Key) -> Vec<u32> {
        let (mut rows, mut table, mut seen) = (Vec::new(), 0, *key);
        loop {
            let Some(id) = self.tables.lookup(table, &seen) else {
                rows.push(1 + u32::from(table));
                return rows;
            };
            rows.push(kernel::row(id));
            let does = self.tables.rule(id).unwrap().instructions;
            let Some(next) = does.goto_table else { return rows };
            for action in &does.apply {
                if let logic::flow::Action::SetField { field, value, .. } = action {
                    seen.set(*field, *value);
                }
            }
            if let Some((value, mask)) = does.metadata {
                let old = seen.get(logic::flow::Field::Metadata) as u64;
                seen.set(logic::flow::Field::Metadata, u128::from(old & !mask | value & mask));
            }
            table = next;
        }
    }

    /// Packets that all rows counted.
    pub fn total(&self) -> u64 {
        self.memory.counters().chunks_exact(kernel::words::COUNT).map(|count| count[0].load(Acquire)).sum()
    }

    /// Packets that a row counted.
    pub fn packets(&self, row: u32) -> u64 {
        let counters = self.memory.counters();
        let per_cpu = counters.len() / self.memory.cpus();
        let at = |cpu: usize| cpu * per_cpu + row as usize * kernel::words::COUNT;
        (0..self.memory.cpus()).map(|cpu| counters[at(cpu)].load(Acquire)).sum()
    }
}
