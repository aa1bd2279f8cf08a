//! Which rules decide about a packet, what happens to it, and which plane does the work: the answer of
//! `millrace explain`.

use super::{
    Key, RuleId, TableId,
    execute::Packet,
    flows::Flows,
    kernel::{FlowMemory, miss, rule_of},
    packet::VXLAN_PORT,
    pipeline::Done,
    slow::{why_slow, why_slow_together},
};

/// What rules do with a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explained {
    /// The rule of each table that the packet comes to. `None`: no rule matched, and the table's miss decides.
    pub rules: Vec<(TableId, Option<RuleId>)>,
    /// The result, as if every meter let the packet pass.
    pub done: Done,
    /// Why user space does the work. `None`: the kernel plane does it, if the frame is in one buffer.
    pub slow: Option<String>,
}

/// Explains a packet without changing counters or meters. Which plane does the work is read from the memory
/// that the program reads.
pub fn explain<M: FlowMemory>(flows: &Flows<M>, packet: Packet) -> Explained {
    let key = Key::of(&packet.frame, packet.in_port, VXLAN_PORT);
    let looked = flows.reader().look(&key);
    let rows = looked.rows();
    let slow = match rows.last() {
        Some(&row) if looked.slow => {
            let why = flows.instructions(row).and_then(|does| why_slow(does, flows.deaf()));
            Some(why.unwrap_or_else(|| "a rule is being changed, or the tables are full".into()))
        }
        _ => {
            let says: Vec<_> = rows.iter().filter_map(|&row| flows.instructions(row)).collect();
            why_slow_together(&says, &packet.frame)
        }
    };
    let done = flows.trace(packet);
    let table = |row: u32| match rule_of(row) {
        Some(id) => (flows.tables().rule(id).map_or(0, |rule| rule.table), Some(id)),
        None => (row.saturating_sub(miss(0)) as TableId, None),
    };
    let rules = done.rows.iter().map(|&row| table(row)).collect();
    Explained { rules, done, slow }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::{
        Dialect, FlowCommand, RulePort,
        kernel::{HeapFlows, Seed, tests::SMALL},
        text::{parse_flow, parse_instructions},
    };

    fn flows(texts: &[&str]) -> Flows<HeapFlows> {
        let normal = parse_instructions("normal").unwrap();
        let mut flows = Flows::new(HeapFlows::new(SMALL, 2), Seed::default(), &normal);
        flows.set_ports((1..=4).map(|port| (RulePort(port), true)));
        for text in texts {
            let flow = parse_flow(text, FlowCommand::Add).unwrap();
            flows.apply(&flow, Dialect::OpenFlow13, 0).unwrap();
        }
        flows.seal();
        flows.void();
        flows.finish();
        flows
    }

    fn ports(explained: &Explained) -> Vec<RulePort> {
        explained.done.outputs.iter().map(|output| output.port).collect()
    }

    #[test]
    fn each_table_is_named_with_its_rule_and_nothing_is_counted() {
        let f = flows(&[
            "priority=7,in_port=1,actions=write_metadata:5,goto_table:3",
            "table=3,priority=9,metadata=5,actions=output:2,output:3",
        ]);
        let explained = explain(&f, Packet::new([0; 60], RulePort(1)));
        let priorities = explained
            .rules
            .iter()
            .map(|&(table, id)| (table, f.tables().rule(id.unwrap()).unwrap().priority));
        assert_eq!(priorities.collect::<Vec<_>>(), [(0, 7), (3, 9)]);
        assert_eq!((ports(&explained), explained.slow), (vec![RulePort(2), RulePort(3)], None));
        let other = explain(&f, Packet::new([0; 60], RulePort(2)));
        assert_eq!(
            (other.rules.clone(), ports(&other), other.slow),
            (vec![(0, None)], vec![RulePort::NORMAL], None)
        );
        assert!((miss(0)..60).all(|row| f.counted(row).packets == 0));
    }

    #[test]
    fn user_space_has_a_reason() {
        let f = flows(&[
            "priority=9,in_port=1,actions=output:2,normal",
            "priority=9,in_port=2,actions=write_actions(dec_ttl),goto_table:1",
            "table=1,actions=output:3",
            "priority=9,in_port=3,actions=goto_table:2",
        ]);
        let why = |port| explain(&f, Packet::new([0; 60], RulePort(port))).slow.unwrap_or_default();
        assert_eq!(why(1), "its copies of the packet differ, or not all of them go to ports");
        assert_eq!(why(2), "a rule sends the packet before the action set is done");
        let dropped = explain(&f, Packet::new([0; 60], RulePort(3)));
        assert_eq!((dropped.rules[1], ports(&dropped), dropped.slow), ((2, None), vec![], None));
    }
}
