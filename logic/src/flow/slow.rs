//! Why user space does what a rule says, in words.

use super::{
    Action, Instructions, Port,
    program::{MAX_TUNNELS, compile, tunnels},
    text::ActionsText,
};
use std::collections::BTreeSet;

/// The first reason that is found; `None`: the kernel plane does it, if it has room. `deaf`: the ports that nothing can be
/// redirected to.
pub fn why_slow(instructions: &Instructions, deaf: &BTreeSet<Port>) -> Option<String> {
    let is_slow = |instructions: &Instructions| compile(instructions, &|_| true).is_slow();
    if !is_slow(instructions) {
        let to_deaf = |action: &&Action| {
            matches!(action, Action::Output { port, .. } if deaf.contains(port)
                || !deaf.is_empty() && [Port::ALL, Port::FLOOD, Port::IN_PORT].contains(port))
        };
        if let Some(action) = instructions.actions().find(to_deaf) {
            let list = deaf.iter().map(Port::to_string).collect::<Vec<_>>().join(", ");
            let action = ActionsText(std::slice::from_ref(action));
            return Some(format!("{action}: nothing can be redirected to port {list}"));
        }
        let group = instructions.actions().find(|action| matches!(action, Action::Group(_)));
        let text =
            |group| format!("{} sends a packet to several buckets", ActionsText(std::slice::from_ref(group)));
        return group.map(text);
    }
    let alone = |action: &&Action| is_slow(&Instructions::apply([(*action).clone()]));
    if let Some(action) = instructions.actions().find(alone) {
        return Some(format!(
            "{} is nothing the kernel plane does",
            ActionsText(std::slice::from_ref(action))
        ));
    }
    if tunnels(&instructions.apply) > MAX_TUNNELS {
        return Some("it puts the packet into more than four tunnels".into());
    }
    let ends = Instructions { goto_table: None, ..instructions.clone() };
    if !is_slow(&ends) {
        let sends = instructions.apply.iter().any(sends);
        let why = match sends {
            true => "it sends the packet and goes on to another table",
            false => "later tables cannot be told of what it changes",
        };
        return Some(why.into());
    }
    let outputs = instructions.actions().filter(|action| sends(action)).count();
    Some(match outputs {
        0 | 1 => "it does more than the kernel plane has steps for".into(),
        _ => "its copies of the packet differ, or not all of them go to ports".into(),
    })
}

fn sends(action: &Action) -> bool {
    match action {
        Action::Output { port, .. } => *port != Port::CONTROLLER,
        action => matches!(action, Action::Enqueue { .. } | Action::Group(_)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::text::parse_instructions;

    #[test]
    fn what_is_slow_has_a_reason_and_what_is_not_has_none() {
        let why = |text| why_slow(&parse_instructions(text).unwrap(), &[Port(5)].into()).unwrap_or_default();
        for fast in [
            "drop",
            "normal",
            "output:1,output:2",
            "mod_nw_dst:1.2.3.4,output:1",
            "goto_table:1",
            "controller",
        ] {
            assert_eq!(why(fast), "", "{fast}");
        }
        let copies = "its copies of the packet differ, or not all of them go to ports";
        for (slow, reason) in [
            ("output:1,mod_nw_dst:1.2.3.4,output:2", copies),
            ("output:1,normal", copies),
            ("output:1,goto_table:1", "it sends the packet and goes on to another table"),
            (
                "output:1,set_field:::7->nd_target",
                "set_field:::7->nd_target is nothing the kernel plane does",
            ),
            ("dec_ttl,output:5", "output:5: nothing can be redirected to port 5"),
            ("flood", "FLOOD: nothing can be redirected to port 5"),
            ("group:7", "group:7 sends a packet to several buckets"),
        ] {
            assert_eq!(why(slow), reason, "{slow}");
        }
    }
}
