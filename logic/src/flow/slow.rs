//! Why user space does the work of a rule, or of several rules for one packet, in words.

use super::{
    Action, Field, Instructions, Key, RulePort,
    field::ip_proto,
    packet::{Fragment, Headers, MOST_TAGS, Network, VXLAN_PORT},
    program::{MAX_TUNNELS, Patch, compile, needs, tunnels},
    text::ActionsText,
};
use std::collections::BTreeSet;

/// The first reason that is found. `None`: the kernel plane does the work, if it has room. `deaf`: ports to which nothing
/// can be redirected.
pub fn why_slow(instructions: &Instructions, deaf: &BTreeSet<RulePort>) -> Option<String> {
    let is_slow = |instructions: &Instructions| compile(instructions, &|_| true).is_slow();
    if !is_slow(instructions) {
        let to_deaf = |action: &&Action| {
            matches!(action, Action::Output { port, .. } if deaf.contains(port)
                || !deaf.is_empty() && [RulePort::ALL, RulePort::FLOOD, RulePort::IN_PORT].contains(port))
        };
        if let Some(action) = instructions.actions().find(to_deaf) {
            let list = deaf.iter().map(RulePort::to_string).collect::<Vec<_>>().join(", ");
            let action = ActionsText(std::slice::from_ref(action));
            return Some(format!("{action}: nothing can be redirected to port {list}"));
        }
        let group = instructions.actions().find(|action| matches!(action, Action::Group(_)));
        let text = |group| format!("the kernel plane cannot do {}", ActionsText(std::slice::from_ref(group)));
        return group.map(text);
    }
    let alone = |action: &&Action| is_slow(&Instructions::apply([(*action).clone()]));
    if let Some(action) = instructions.actions().find(alone) {
        return Some(format!("the kernel plane cannot do {}", ActionsText(std::slice::from_ref(action))));
    }
    if tunnels(&instructions.apply) > MAX_TUNNELS {
        return Some("it puts the packet into more than four tunnels".into());
    }
    let ends = Instructions { goto_table: None, ..instructions.clone() };
    if !is_slow(&ends) {
        let sends = instructions.apply.iter().any(sends);
        let why = match sends {
            true => "it sends the packet and goes on to another table",
            false => "later tables of the kernel plane would not see what it changes",
        };
        return Some(why.into());
    }
    let outputs = instructions.actions().filter(|action| sends(action)).count();
    Some(match outputs {
        0 | 1 => "it does more than the kernel plane has steps for".into(),
        _ => "its copies of the packet differ, or not all of them go to ports".into(),
    })
}

/// Why user space has to do rules that a frame matches one after another, although none of them is slow. `goes_together` of
/// `bpf/flow.h` and `flow_patch_holds` of `bpf/flow_rules.h` decide the same. `None`: the kernel plane does the work.
pub fn why_slow_together(rules: &[&Instructions], frame: &[u8]) -> Option<String> {
    let has = Headers::of(frame, 0, Some(VXLAN_PORT)).map_or(0, |headers| has(&headers));
    let mut port = Key::of(frame, RulePort(0), VXLAN_PORT).get(Field::UdpDst);
    let (mut ranks, mut sent) = (0_u16, false);
    for instructions in rules {
        let program = compile(instructions, &|_| true);
        if program.patch.is_some_and(|patch| !holds(&patch, &mut port, has)) {
            return Some(
                "a rule sets a field for later tables that this packet lacks, or changes its tunnel".into(),
            );
        }
        ranks = if program.clear { 0 } else { ranks };
        if program.set_ranks != 0 && ranks >= 1 << program.set_ranks.trailing_zeros() {
            return Some("its rules write the action set out of order".into());
        }
        ranks |= program.set_ranks;
        sent |= program.sends;
        if sent && ranks != 0 {
            return Some("a rule sends the packet before the action set is done".into());
        }
    }
    None
}

/// The [`needs`] that a packet fulfils.
fn has(headers: &Headers) -> u64 {
    let network = match headers.network {
        Network::Arp(_) => needs::ARP,
        Network::Ipv4(_) => needs::IPV4,
        Network::Ipv6(_) => needs::IPV6,
        Network::Other => 0,
    };
    let ports = headers.transport.is_some() && headers.fragment == Fragment::Whole;
    let transport = match headers.proto {
        ip_proto::TCP if ports => needs::TCP,
        ip_proto::UDP if ports => needs::UDP,
        _ => 0,
    };
    let tag = if headers.tags > 0 { needs::TAG } else { 0 };
    let room = if headers.tags < MOST_TAGS { needs::ROOM } else { 0 };
    network | transport | tag | room
}

/// Does the patch describe all changes that later tables see? `port` is the UDP destination port as they see it, and is
/// updated.
fn holds(patch: &Patch, port: &mut u128, has: u64) -> bool {
    let of = |key: &Key| key.get(Field::UdpDst);
    let before = std::mem::replace(port, *port & !of(&patch.mask) | of(&patch.value));
    // The new port makes the packet a VXLAN packet, or ends that.
    let opens = before != *port && [before, *port].contains(&VXLAN_PORT.into());
    patch.needs & !has == 0 && !(opens && has & needs::UDP != 0)
}

fn sends(action: &Action) -> bool {
    match action {
        Action::Output { port, .. } => *port != RulePort::CONTROLLER,
        action => matches!(action, Action::Enqueue { .. } | Action::Group(_)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::text::parse_instructions;

    #[test]
    fn slow_rules_have_a_reason_and_fast_ones_have_none() {
        let why =
            |text| why_slow(&parse_instructions(text).unwrap(), &[RulePort(5)].into()).unwrap_or_default();
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
            ("output:1,set_field:::7->nd_target", "the kernel plane cannot do set_field:::7->nd_target"),
            ("dec_ttl,output:5", "output:5: nothing can be redirected to port 5"),
            ("flood", "FLOOD: nothing can be redirected to port 5"),
            ("group:7", "the kernel plane cannot do group:7"),
        ] {
            assert_eq!(why(slow), reason, "{slow}");
        }
    }

    #[test]
    fn rules_that_do_not_go_together_have_a_reason() {
        let mut tagged = [0; 60];
        tagged[12..18].copy_from_slice(&[0x81, 0, 0, 5, 8, 0]);
        let lacks = "a rule sets a field for later tables that this packet lacks, or changes its tunnel";
        let order = "its rules write the action set out of order";
        let late = "a rule sends the packet before the action set is done";
        for (rules, plain, with_tag) in [
            (&["goto_table:1", "output:2"][..], "", ""),
            (&["set_field:4103->vlan_vid,goto_table:1", "output:2"], lacks, ""),
            (&["write_actions(output:2),goto_table:1", "write_actions(dec_ttl)"], order, order),
            (&["write_actions(output:2),goto_table:1", "clear_actions,write_actions(dec_ttl)"], "", ""),
            (&["write_actions(dec_ttl),goto_table:1", "write_actions(output:2)"], "", ""),
            (&["write_actions(dec_ttl),goto_table:1", "output:2"], late, late),
        ] {
            let parsed: Vec<_> = rules.iter().map(|text| parse_instructions(text).unwrap()).collect();
            let parsed: Vec<_> = parsed.iter().collect();
            let why = |frame: &[u8]| why_slow_together(&parsed, frame).unwrap_or_default();
            assert_eq!((why(&[0; 60]).as_str(), why(&tagged).as_str()), (plain, with_tag), "{rules:?}");
        }
    }
}
