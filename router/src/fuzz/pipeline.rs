//! The input is lines with rules, groups and meters, an empty line, and a frame. The pipeline must end, its result must be
//! bounded, and the program must find the same.
//!
//! ```text
//! group 5 all output:2/mod_nw_dst:10.0.0.1,output:3
//! meter 6 1
//! out output:1                                         a packet that a controller sends
//! priority=5,ip,actions=meter:6,group:5                a flow as ovs-ofctl has it
//! mod ip,actions=drop                                  or `del ip`
//! look                                                 the frame looks the rules up,
//! batch                                                and caches what it found when this batch begins
//!
//! the frame, which comes in by port 1
//! ```

use super::rules::{flows, look, run};
use logic::flow::{
    Action, Dialect, FlowCommand, Group, GroupKind, GroupMod, Instructions, Meter, MeterMod, RulePort,
    execute::Packet,
    flows::Flows,
    kernel::{HeapFlows, answer::Looked},
    pipeline::MOST_OUTPUTS,
    rule::{Band, BandKind, Bucket, MeterUnit},
    text::{parse_actions, parse_flow},
};

/// The most lines; more take long and test nothing new.
const MOST_LINES: usize = 64;
/// The longest frame.
const LONGEST: usize = 2048;

pub fn pipeline(bytes: &[u8]) {
    let end = bytes.windows(2).position(|two| two == b"\n\n").unwrap_or(bytes.len());
    let (text, frame) = (String::from_utf8_lossy(&bytes[..end]), bytes.get(end + 2..).unwrap_or_default());
    let frame = &frame[..frame.len().min(LONGEST)];
    let mut flows = flows(&Instructions::apply([Action::output(RulePort::NORMAL)]));
    flows.set_ports([1, 2, 3, 4].map(|port| (RulePort(port), port != 4)));
    let mut world = World { flows, frame, looked: Vec::new() };
    text.lines().take(MOST_LINES).for_each(|line| world.done(line));
    world.batch();
    run(&mut world.flows, frame, RulePort(1), 2_000_000_000);
}

struct World<'a> {
    flows: Flows<HeapFlows>,
    frame: &'a [u8],
    /// Results of lookups in this batch that are not cached yet.
    looked: Vec<Looked>,
}

impl World<'_> {
    /// Obeys a line; a wrong line does nothing.
    fn done(&mut self, line: &str) {
        let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
        let mut words = rest.split(' ');
        match first {
            "look" => self.looked.push(look(&self.flows, self.frame, RulePort(1))),
            "batch" => self.batch(),
            "group" => {
                let group = group(words.next(), words.next(), words.next().unwrap_or_default());
                let _ = group.map(|group| self.flows.apply_group(&GroupMod::Add(group), 0));
            }
            "meter" => {
                let mut number = || words.next()?.parse::<u32>().ok();
                let (Some(id), Some(rate)) = (number(), number()) else { return };
                let bands = vec![Band { rate, burst: 1, kind: BandKind::Drop }];
                let meter = Meter { id, unit: MeterUnit::Pps, burst: true, stats: true, bands };
                let _ = self.flows.apply_meter(&MeterMod::Add(meter), 0);
            }
            "out" => self.out(rest),
            "mod" => self.change(rest, FlowCommand::Modify { strict: false }),
            "del" => self.change(rest, FlowCommand::Delete { strict: false }),
            _ => self.change(line, FlowCommand::Add),
        }
    }

    fn change(&mut self, flow: &str, command: FlowCommand) {
        if let Ok(flow) = parse_flow(flow, command) {
            let _ = self.flows.apply(&flow, Dialect::OpenFlow13, 0);
        }
    }

    fn out(&mut self, actions: &str) {
        let Ok(actions) = parse_actions(actions) else { return };
        if self.flows.tables().check_actions(&actions).is_ok() {
            let done = self.flows.packet_out(Packet::new(self.frame, RulePort(1)), &actions, 1_000_000_000);
            assert!(done.outputs.len() <= MOST_OUTPUTS);
        }
    }

    fn batch(&mut self) {
        if self.flows.seal() {
            let reader = self.flows.reader();
            self.looked.drain(..).for_each(|looked| reader.cache(&looked));
            self.flows.void();
            self.flows.finish();
        }
    }
}

fn group(id: Option<&str>, kind: Option<&str>, buckets: &str) -> Option<Group> {
    let kind = match kind? {
        "all" => GroupKind::All,
        "select" => GroupKind::Select,
        "indirect" => GroupKind::Indirect,
        _ => GroupKind::FastFailover,
    };
    let bucket = |(n, actions): (u16, &str)| {
        let watch_port = (kind == GroupKind::FastFailover).then_some(RulePort(4 - n));
        let weight = if kind == GroupKind::Select { n + 1 } else { 0 };
        Some(Bucket { weight, watch_port, watch_group: None, actions: parse_actions(actions).ok()? })
    };
    let buckets = (0..4).zip(buckets.split('/')).map(bucket).collect::<Option<_>>()?;
    Some(Group { id: id?.parse().ok()?, kind, buckets })
}
