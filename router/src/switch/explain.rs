//! What flow rules do with a packet, told to `millrace explain`.

use super::{
    report::{BucketTaken, OutputReport, RulePassed, RulesReport},
    rules::{number, numbered},
};
use crate::{
    daemon::{packet::Headers, seam::SwitchPort},
    hex,
};
use logic::{
    flow::{
        CoreChoice, FlowCommand, FlowMod, FlowStats, Port, RuleId, TableId,
        execute::Packet,
        explain::{Explained, explain},
        kernel::FlowMemory,
        pipeline::{Done, Output},
        text::FlowText,
    },
    openflow::agent::Agent,
};
use tokio::sync::oneshot;

/// A frame that arrives on a port, by its name, and where the answer goes. `None`: rules do not decide about it.
pub struct Request {
    pub port: String,
    pub frame: Vec<u8>,
    pub reply: oneshot::Sender<Option<RulesReport>>,
}

/// `None`: there is no such port.
pub fn report<M: FlowMemory>(
    agent: &mut Agent<M>,
    ports: &[SwitchPort],
    name: &str,
    frame: Vec<u8>,
    now_ms: u64,
) -> Option<RulesReport> {
    let arrives = ports.iter().find(|port| port.name == name)?;
    let port = number(arrives);
    if agent.port_flags(port).no_recv {
        let note = format!("a controller has set NO_RECV for {name}: what arrives there is dropped");
        return Some(RulesReport { notes: vec![note], ..RulesReport::default() });
    }
    let Explained { rules, done, slow } = explain(agent.flows(), Packet::new(frame, port));
    let meters = done.rows.iter().filter_map(|&row| agent.flows().instructions(row)?.meter);
    let meters: Vec<String> = meters.map(|id| format!("meter {id} is taken to let it pass")).collect();
    Some(RulesReport {
        notes: meters,
        rules: rules.into_iter().map(|(table, id)| passed(agent, table, id, now_ms)).collect(),
        buckets: done.buckets.iter().map(|&(group, bucket)| BucketTaken { group, bucket }).collect(),
        core: named_core(&done).filter(|_| slow.is_none() && !arrives.generic),
        slow: slow.is_some(),
        why: slow,
        outputs: done.outputs.iter().map(|output| told(agent, ports, output)).collect(),
    })
}

/// A packet is handed over once.
fn named_core(done: &Done) -> Option<u16> {
    done.outputs.iter().rev().find_map(|output| match output.core {
        Some(CoreChoice::This(core)) => Some(core),
        _ => None,
    })
}

fn passed<M: FlowMemory>(
    agent: &mut Agent<M>,
    table: TableId,
    id: Option<RuleId>,
    now_ms: u64,
) -> RulePassed {
    let stats = id.and_then(|id| agent.flows().tables().flow(id, now_ms));
    RulePassed {
        table,
        priority: stats.as_ref().map(|stats| stats.priority),
        cookie: stats.as_ref().map(|stats| stats.cookie),
        flow: stats.map(|stats| FlowText { flow: &flow(stats), counted: None }.to_string()),
    }
}

/// The flow that would add this rule.
fn flow(stats: FlowStats) -> FlowMod {
    FlowMod {
        command: FlowCommand::Add,
        table: Some(stats.table),
        cookie: stats.cookie,
        cookie_mask: 0,
        priority: stats.priority,
        matching: stats.matching,
        instructions: stats.instructions,
        idle_timeout: stats.idle_timeout,
        hard_timeout: stats.hard_timeout,
        out_port: None,
        out_group: None,
        flags: stats.flags,
        buffer: None,
    }
}

fn told<M: FlowMemory>(agent: &Agent<M>, ports: &[SwitchPort], output: &Output) -> OutputReport {
    let Output { port, ref frame, in_port, .. } = *output;
    let lost = match port {
        Port::NORMAL | Port::LOCAL => None,
        Port::CONTROLLER => {
            agent.port_flags(in_port).no_packet_in.then_some("a controller has set NO_PACKET_IN")
        }
        port => agent.port_flags(port).no_fwd.then_some("a controller has set NO_FWD for the port"),
    };
    let to = numbered(ports, port).map_or_else(|| port.to_string(), |port| port.name.clone());
    OutputReport {
        to,
        lost: lost.map(String::from),
        headers: Headers::read(frame),
        frame: hex::encode(frame),
    }
}
