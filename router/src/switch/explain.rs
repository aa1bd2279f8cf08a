//! Explains to `millrace explain` what flow rules do with a packet.

use super::rules::{number, numbered};
use crate::{
    api::flows::{BucketTaken, OutputReport, RulePassed, RulesReport},
    base::{hex, packet::Headers},
    switch::seam::SwitchPort,
};
use logic::{
    flow::{
        Action, CoreChoice, FlowCommand, FlowMod, FlowStats, Instructions, RuleId, RulePort, TableId,
        execute::Packet,
        explain::{Explained, explain},
        kernel::FlowMemory,
        pipeline::{Done, Output},
        text::FlowText,
    },
    openflow::agent::Agent,
};
use tokio::sync::oneshot;

/// A frame that arrives on the port of this name, and the channel of the answer. `None`: rules do not decide about it.
pub struct Request {
    pub port: String,
    pub frame: Vec<u8>,
    pub reply: oneshot::Sender<Option<RulesReport>>,
}

/// Reports what rules do with a frame. `None`: there is no such port.
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
    let said = done.rows.iter().filter_map(|&row| agent.flows().instructions(row).cloned());
    let said: Vec<_> = said.collect();
    Some(RulesReport {
        notes: notes(arrives, ports, &said, &done, slow.is_some()),
        rules: rules.into_iter().map(|(table, id)| passed(agent, table, id, now_ms)).collect(),
        buckets: done.buckets.iter().map(|&(group, bucket)| BucketTaken { group, bucket }).collect(),
        core: named_core(&done).filter(|_| slow.is_none() && !arrives.generic),
        slow: slow.is_some(),
        why: slow,
        outputs: done.outputs.iter().map(|output| output_report(agent, ports, output)).collect(),
    })
}

/// Notes on effects that users may not expect.
fn notes(
    arrives: &SwitchPort,
    ports: &[SwitchPort],
    rules: &[Instructions],
    done: &Done,
    slow: bool,
) -> Vec<String> {
    let meters = rules.iter().filter_map(|rule| rule.meter);
    let mut notes: Vec<_> = meters.map(|id| format!("this assumes that meter {id} lets it pass")).collect();
    if done.rows.is_empty() {
        notes.push("it is a fragment, and a controller has set that fragments are dropped".into());
    }
    let actions = || rules.iter().flat_map(Instructions::actions);
    let back = |action: &Action| matches!(action, Action::Output { port, .. } if *port == number(arrives));
    if actions().any(back) {
        let name = &arrives.name;
        notes.push(format!(
            "a packet does not leave by the port that it came in by, {name}, unless `in_port` says so"
        ));
    }
    let names_core = actions().any(|action| matches!(action, Action::SetCore(_)));
    if names_core && done.outputs.is_empty() {
        notes.push("`set_core` says where outputs are done, and there is none: the packet is dropped".into());
    } else if names_core && slow {
        notes.push("`set_core` has no effect, because user space carries out these rules".into());
    }
    let chosen = |output: &Output| matches!(output.core, Some(CoreChoice::Choose | CoreChoice::ChooseFirst));
    if !slow && done.outputs.last().is_some_and(chosen) {
        notes.push("the switch chooses the core when the flow's first packet comes (`millrace cores` shows loads and flows)".into());
    }
    let unrouted = |output: &&Output| output.frame.get(..6) == Some(&arrives.mac.0[..]);
    let unrouted = done.outputs.iter().filter(unrouted).filter_map(|output| numbered(ports, output.port));
    notes.extend(unrouted.map(|port| {
        format!(
            "sent to {}, its destination MAC is still this box's: `output` does not route, `normal` does",
            port.name
        )
    }));
    notes
}

/// The core that the last output names; a packet is handed over only once.
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

fn output_report<M: FlowMemory>(agent: &mut Agent<M>, ports: &[SwitchPort], output: &Output) -> OutputReport {
    let Output { port, ref frame, in_port, .. } = *output;
    let lost = match port {
        RulePort::NORMAL | RulePort::LOCAL => None,
        port if port.path().is_some() => None,
        RulePort::CONTROLLER => {
            agent.port_flags(in_port).no_packet_in.then_some("a controller has set NO_PACKET_IN")
        }
        port => agent.port_flags(port).no_fwd.then_some("a controller has set NO_FWD for the port"),
    };
    let path = port.path().and_then(|path| agent.flows().tables().paths().get(&path));
    let to = match (path, numbered(ports, port)) {
        (Some(path), _) => format!("path {}", path.name),
        (None, Some(port)) => port.name.clone(),
        (None, None) => port.to_string(),
    };
    OutputReport {
        to,
        lost: lost.map(String::from),
        headers: Headers::read(frame),
        frame: hex::encode(frame),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use logic::{
        flow::{PacketInReason, text::parse_instructions},
        net::Mac,
    };

    fn port(id: u8) -> SwitchPort {
        SwitchPort {
            id,
            name: format!("eth{id}"),
            ifindex: Some(id.into()),
            up: true,
            carrier: true,
            mac: Mac([2, 0, 0, 0, 0, id]),
            transmits: true,
            generic: false,
        }
    }

    #[test]
    fn notes_name_effects_that_users_may_not_expect() {
        let ports = [port(1), port(2)];
        let sent = |port: SwitchPort, mac: Mac| Output {
            port: number(&port),
            frame: [&mac.0[..], &[0; 54]].concat(),
            queue: None,
            core: None,
            reason: PacketInReason::Action,
            of_rule: true,
            table: 0,
            cookie: 0,
            in_port: number(&ports[0]),
            metadata: 0,
            tunnel_id: 0,
        };
        let [own, other] = [port(1).mac, Mac([2, 0, 0, 0, 9, 9])];
        let unrouted =
            "sent to eth2, its destination MAC is still this box's: `output` does not route, `normal` does";
        let back = "a packet does not leave by the port that it came in by, eth1, unless `in_port` says so";
        let nowhere = "`set_core` says where outputs are done, and there is none: the packet is dropped";
        let stays = "`set_core` has no effect, because user space carries out these rules";
        let to_2 = |mac| vec![sent(port(2), mac)];
        for (said, outputs, slow, expected) in [
            ("output:3", to_2(own), false, &[unrouted][..]),
            ("output:3", to_2(other), false, &[]),
            ("output:2", vec![], false, &[back]),
            ("in_port", vec![sent(port(1), other)], false, &[]),
            ("set_core:1", vec![], false, &[nowhere]),
            ("set_core:1,output:3", to_2(other), false, &[]),
            ("set_core:1,output:3", to_2(other), true, &[stays]),
            ("meter:6,output:3", to_2(other), false, &["this assumes that meter 6 lets it pass"]),
        ] {
            let done = Done { outputs, rows: vec![1], ..Done::default() };
            let rules = [parse_instructions(said).unwrap()];
            assert_eq!(notes(&ports[0], &ports, &rules, &done, slow), expected, "{said}");
        }
        let dropped = notes(&ports[0], &ports, &[], &Done::default(), false);
        assert_eq!(dropped, ["it is a fragment, and a controller has set that fragments are dropped"]);
    }
}
