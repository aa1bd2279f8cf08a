//! Four ports, flow tables, and the program with its memory.

use crate::common::{SMALL, end_batch, ifindex, only_on, run};
use logic::flow::{
    FlowCommand, FlowMod, GroupMod, Instructions, Match, MeterMod, RulePort,
    execute::Packet,
    flows::Flows,
    kernel::{self, FlowCapacity, FlowMemory, Seed},
    packet::VXLAN_PORT,
    pipeline::{Done, Pipeline},
    table::{Count, Dialect},
};
use logic::reason::Reason;
use router::plane::{
    FlowLast, FlowMaps, FlowPlane, FlowSettings, Grace, MappedFlows, Mode, Plane, PortLink, Settings, Splits,
    TestRun,
};
use std::{
    sync::{Arc, atomic::Ordering::Acquire},
    time::Duration,
};

pub const XDP_DROP: u32 = 1;
pub const XDP_PASS: u32 = 2;
pub const XDP_REDIRECT: u32 = 4;

const CAPACITY: FlowCapacity = FlowCapacity {
    rules: 1024,
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
    pub plane: Plane,
    pub flows: FlowPlane,
    pub memory: Arc<MappedFlows>,
    pub control: Control,
    pub ports: Vec<u32>,
    /// The ports' numbers, and whether FLOOD reaches them: all but the last.
    known: Vec<(RulePort, bool)>,
}

/// Changes the rules.
pub struct Control {
    pub rules: Flows<Arc<MappedFlows>>,
    grace: Grace,
    now_ms: u64,
}

impl FlowWorld {
    pub fn new() -> FlowWorld {
        // The program keeps its notes on a packet per CPU.
        only_on([rustix::thread::sched_getcpu()]);
        let plane = Plane::load(Settings {
            capacity: SMALL,
            interface_rows: 64,
            sample_interval: 0,
            exception_pps: 0,
            control_pps: 0,
            queue_rows: false,
            help: false,
        })
        .unwrap_or_else(|e| panic!("{e:#}"));
        plane.confirm_until(Duration::from_secs(1 << 32)).unwrap();
        let mut ports = Vec::new();
        for id in 0..4_u8 {
            run(&format!("ip link add p{id} type veth peer name q{id}"));
            ports.push(ifindex(&format!("p{id}")));
            plane.set_port(id, ports[usize::from(id)], true, true).unwrap();
        }
        // Rules are found with any hashes. These are fixed.
        let seed = Seed::new([3, 5, 7, 11, 13].map(|n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let settings = FlowSettings { capacity: CAPACITY, seed };
        let maps = Arc::new(FlowMaps::new(settings).unwrap_or_else(|e| panic!("{e:#}")));
        let flows = FlowPlane::load(&plane, &maps).unwrap_or_else(|e| panic!("{e:#}"));
        let memory = maps.memory().clone();
        let known: Vec<(RulePort, bool)> = (1..=4).map(|port| (RulePort(port), port != 4)).collect();
        let mut rules = Flows::new(memory.clone(), seed, &Instructions::default());
        rules.set_ports(known.iter().map(|&(port, _)| (port, true)));
        let control = Control { rules, grace: Grace::new().unwrap(), now_ms: 0 };
        let world = FlowWorld { plane, flows, memory, control, ports, known };
        world.show_ports();
        world
    }

    pub fn change(
        &mut self,
        command: FlowCommand,
        table: u8,
        priority: u16,
        matching: Match,
        does: Instructions,
    ) {
        self.control.change(command, table, priority, matching, does);
    }

    pub fn finish(&mut self) {
        self.control.finish();
    }

    /// The program handles packets that come in by a port, until the link is dropped.
    pub fn attach(&self, port: u8) -> PortLink {
        let ifindex = self.ports[usize::from(port)];
        let link = PortLink::attach(self.flows.program(), ifindex, Mode::Native).unwrap();
        self.plane.set_port(port, ifindex, true, true).unwrap();
        link
    }

    /// Queues of the ports that are shared among cores.
    pub fn splits(&self) -> &Splits {
        crate::common::count_polls();
        self.plane.splits()
    }

    pub fn run(&mut self, port: usize, frame: &[u8]) -> TestRun {
        self.flows.run(self.ports[port], frame).unwrap()
    }

    /// The program's notes on the last packet.
    pub fn last(&self) -> FlowLast {
        self.flows.maps().last()
    }

    /// Packets for user space. They are counted as lost, since nobody listens here.
    pub fn slow(&self) -> u64 {
        self.charged(Reason::RuleSlowLost)
    }

    /// Packets of all ports that were not forwarded for this reason.
    pub fn charged(&self, reason: Reason) -> u64 {
        self.plane.charged_to_ports(reason).unwrap()
    }

    /// Tells the kernel plane which devices the ports are.
    pub fn show_ports(&self) {
        let device =
            |&(port, floods): &(RulePort, bool)| (port, (self.ports[usize::from(port.0) - 1], floods));
        self.memory.set_ports(self.known.iter().map(device).collect()).unwrap();
    }

    /// What the rules do with a packet.
    pub fn reference(&self, in_port: RulePort, frame: &[u8]) -> Done {
        let meter = &mut |_: u32, _: usize| true;
        let (tables, miss, ports) = (self.control.rules.tables(), &Instructions::default(), &self.known);
        let mut pipeline = Pipeline { tables, miss, ports, vxlan_port: VXLAN_PORT, meter };
        pipeline.run(Packet::new(frame, in_port))
    }

    /// Where the program sent the last packet, and the XDP action that this implies. After NORMAL and LOCAL,
    /// the kernel decides.
    pub fn sent_to(&self, in_port: RulePort) -> (Vec<RulePort>, Option<u32>) {
        let last = self.last();
        let others = |ports: Vec<RulePort>| ports.into_iter().filter(|port| *port != in_port).collect();
        let redirected = |ports: Vec<RulePort>| {
            let action = if ports.is_empty() { None } else { Some(XDP_REDIRECT) };
            (ports, action)
        };
        match last.verdict as u8 {
            kernel::verdict::DROP | kernel::verdict::CONTROLLER | kernel::verdict::CONTROLLER_LOST => {
                (vec![], Some(XDP_DROP))
            }
            kernel::verdict::OUTPUT => redirected(others(vec![RulePort(last.port + 1)])),
            kernel::verdict::IN_PORT => redirected(vec![in_port]),
            kernel::verdict::BROADCAST => redirected(others(self.memory.ports_of_set(last.port.into()))),
            kernel::verdict::LOCAL => (vec![RulePort::LOCAL], Some(XDP_PASS)),
            kernel::verdict::NORMAL => (vec![RulePort::NORMAL], None),
            other => panic!("unknown verdict {other}"),
        }
    }

    /// Packets that all rows counted.
    pub fn total(&self) -> u64 {
        self.memory.counters().chunks_exact(kernel::words::COUNT).map(|count| count[0].load(Acquire)).sum()
    }

    /// Packets and bytes that rows counted.
    pub fn counted(&self, rows: &[u32]) -> Vec<Count> {
        rows.iter().map(|row| self.control.rules.counted(*row)).collect()
    }
}

impl Control {
    pub fn change(
        &mut self,
        command: FlowCommand,
        table: u8,
        priority: u16,
        matching: Match,
        does: Instructions,
    ) {
        self.now_ms += 1;
        let request = FlowMod { table: Some(table), ..FlowMod::new(command, priority, matching, does) };
        self.rules.apply(&request, Dialect::OpenFlow10, self.now_ms).unwrap();
    }

    pub fn group(&mut self, request: &GroupMod) {
        self.rules.apply_group(request, self.now_ms).unwrap();
    }

    pub fn meter(&mut self, request: &MeterMod) {
        self.rules.apply_meter(request, self.now_ms).unwrap();
    }

    /// Sets which of the four ports are up.
    pub fn set_up(&mut self, up: [bool; 4]) {
        self.rules.set_ports((1..).map(RulePort).zip(up));
    }

    /// Ends a batch.
    pub fn finish(&mut self) {
        end_batch(&mut self.rules, &mut self.grace);
    }
}
