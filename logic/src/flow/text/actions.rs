//! Actions and instructions under the names of Open vSwitch.

use super::{
    BadText, Names, Word,
    matching::{field_of_action, name_in_actions},
    none_of, value,
    value::ValueText,
    words,
};
use crate::{
    flow::{
        Action, CoreChoice, FcfPlace, Field, Instructions, RulePort, Vxlan,
        action::WHOLE_PACKET,
        field::{VLAN_PRESENT, ether_type},
        packet::VXLAN_PORT,
        rule::TABLES,
        table::settable,
    },
    net::Mac,
};
use std::fmt;

/// Actions of Open vSwitch that Millrace does not have.
const FOREIGN: &[&str] = &[
    "bundle",
    "bundle_load",
    "check_pkt_larger",
    "clone",
    "conjunction",
    "ct",
    "ct_clear",
    "ct_next",
    "debug_recirc",
    "debug_slow",
    "dec_mpls_ttl",
    "dec_nsh_ttl",
    "decap",
    "delete_field",
    "encap",
    "exit",
    "fin_timeout",
    "learn",
    "load",
    "move",
    "multipath",
    "nat",
    "note",
    "output_reg",
    "pop",
    "pop_mpls",
    "pop_queue",
    "push",
    "push_mpls",
    "reg_load",
    "resubmit",
    "sample",
    "set_mpls_label",
    "set_mpls_tc",
    "set_mpls_ttl",
    "set_tunnel64",
    "stack_pop",
    "stack_push",
    "unroll_xlate",
    "write_actset",
];

/// Instructions, in the order in which they must be given (OpenFlow 1.3 section 5.9).
const ORDER: [&str; 7] =
    ["meter", "an action", "clear_actions", "write_actions", "write_metadata", "goto_table", "drop"];

/// Parses actions without other instructions, as for a packet-out. `drop` or an empty text means no actions.
pub fn parse_actions(text: &str) -> Result<Vec<Action>, BadText> {
    actions_named(text, Names::default())
}

fn actions_named(text: &str, names: Names<'_>) -> Result<Vec<Action>, BadText> {
    let words = words(text, names)?;
    let mut actions = Vec::new();
    for &word in &words {
        match rank(word.key) {
            DROP => alone(word, &words)?,
            ACTION => actions.push(one(word)?),
            _ => return Err(word.bad("an instruction; only actions are allowed here")),
        }
    }
    Ok(actions)
}

/// Parses the text after `actions=` in a flow: actions, and the instructions of OpenFlow 1.3.
pub fn parse_instructions(text: &str) -> Result<Instructions, BadText> {
    instructions_named(text, Names::default())
}

pub(super) fn instructions_named(text: &str, names: Names<'_>) -> Result<Instructions, BadText> {
    let mut out = Instructions::default();
    let words = words(text, names)?;
    let mut last = None;
    for &word in &words {
        let rank = rank(word.key);
        if let Some(last) = last.filter(|&last| rank < last || rank == last && rank != ACTION) {
            return Err(word.bad(format!("must be given once, and before {}", ORDER[last])));
        }
        last = Some(rank);
        match rank {
            0 => out.meter = Some(word.number(u32::MAX.into())?),
            2 => out.clear = word.alone().map(|()| true)?,
            3 => out.write = actions_named(word.value()?, names)?,
            4 => {
                let (value, mask) = value::masked(word, 64)?;
                out.metadata = Some((value as u64, mask.map_or(u64::MAX, |mask| mask as u64)));
            }
            5 => out.goto_table = Some(word.number((TABLES - 1).into())?),
            DROP => alone(word, &words)?,
            _ => out.apply.push(one(word)?),
        }
    }
    Ok(out)
}

const ACTION: usize = 1;
const DROP: usize = 6;

/// The index of a word in [`ORDER`].
fn rank(key: &str) -> usize {
    match key {
        "meter" => 0,
        "clear_actions" => 2,
        "write_actions" => 3,
        "write_metadata" => 4,
        "goto_table" => 5,
        "drop" => DROP,
        _ => ACTION,
    }
}

fn alone(word: Word<'_>, words: &[Word<'_>]) -> Result<(), BadText> {
    match words {
        [_] => word.alone(),
        _ => {
            Err(word
                .bad("must stand alone; with others, leave it out: a packet that nothing sends is dropped"))
        }
    }
}

fn one(word: Word<'_>) -> Result<Action, BadText> {
    if let Some(action) = output(word)? {
        return Ok(action);
    }
    let set = |field: Field, value: u128| Ok(Action::set(field, value));
    match word.key {
        "set_queue" => Ok(Action::SetQueue(word.number(u32::MAX.into())?)),
        "group" => Ok(Action::Group(word.number(u32::MAX.into())?)),
        "mod_vlan_vid" | "set_vlan_vid" => Ok(Action::SetVlanVid(word.number(4095)?)),
        "mod_vlan_pcp" | "set_vlan_pcp" => Ok(Action::SetVlanPcp(word.number(7)?)),
        "strip_vlan" | "pop_vlan" => word.alone().map(|()| Action::PopVlan),
        "push_vlan" => match word.number(0xffff)? {
            kind @ (ether_type::VLAN | ether_type::SERVICE_VLAN) => Ok(Action::PushVlan(kind)),
            _ => Err(word.bad("needs the type of a tag, 0x8100 or 0x88a8")),
        },
        "mod_dl_src" => set(Field::EthSrc, exact(word, Field::EthSrc)?),
        "mod_dl_dst" => set(Field::EthDst, exact(word, Field::EthDst)?),
        "mod_nw_src" => set(Field::Ipv4Src, exact(word, Field::Ipv4Src)?),
        "mod_nw_dst" => set(Field::Ipv4Dst, exact(word, Field::Ipv4Dst)?),
        "mod_nw_tos" => match word.number::<u8>(255)? {
            tos if tos & 3 == 0 => set(Field::IpDscp, (tos >> 2).into()),
            _ => Err(word.bad("needs the ToS byte with its two lowest bits 0; mod_nw_ecn sets these")),
        },
        "mod_nw_ecn" => set(Field::IpEcn, exact(word, Field::IpEcn)?),
        "mod_nw_ttl" => Ok(Action::SetTtl(word.number(255)?)),
        "mod_tp_src" => Ok(Action::SetTpSrc(word.number(0xffff)?)),
        "mod_tp_dst" => Ok(Action::SetTpDst(word.number(0xffff)?)),
        "dec_ttl" => word.alone().map(|()| Action::DecTtl),
        "set_field" => set_field(word),
        "set_tunnel" => set(Field::TunnelId, exact(word, Field::TunnelId)?),
        "encap_vxlan" => encap_vxlan(word),
        "decap_vxlan" => word.alone().map(|()| Action::DecapVxlan),
        "set_fcf" => set_fcf(word),
        "set_core" => match word.value()? {
            "choose" => Ok(Action::SetCore(CoreChoice::Choose)),
            "choose_first" => Ok(Action::SetCore(CoreChoice::ChooseFirst)),
            _ => word
                .number(0xffff)
                .map(|core| Action::SetCore(CoreChoice::This(core)))
                .map_err(|_| word.bad("needs the number of a core, choose or choose_first: set_core:1")),
        },
        key if FOREIGN.contains(&key) => {
            Err(word.bad("an action of Open vSwitch that is not supported here"))
        }
        _ => Err(word.bad(none_of(word.key, "an action", ACTIONS.iter().map(|(name, _)| *name)))),
    }
}

/// Every action and instruction, and how it is written.
pub(super) const ACTIONS: &[(&str, &str)] = &[
    ("output", "output:PORT"),
    ("in_port", "in_port"),
    ("normal", "normal"),
    ("local", "local"),
    ("flood", "flood"),
    ("all", "all"),
    ("controller", "controller[:BYTES]"),
    ("drop", "drop"),
    ("enqueue", "enqueue:PORT:QUEUE"),
    ("set_queue", "set_queue:QUEUE"),
    ("group", "group:N"),
    ("mod_dl_src", "mod_dl_src:MAC"),
    ("mod_dl_dst", "mod_dl_dst:MAC"),
    ("mod_vlan_vid", "mod_vlan_vid:0..4095"),
    ("set_vlan_vid", "set_vlan_vid:0..4095"),
    ("mod_vlan_pcp", "mod_vlan_pcp:0..7"),
    ("set_vlan_pcp", "set_vlan_pcp:0..7"),
    ("push_vlan", "push_vlan:0x8100"),
    ("pop_vlan", "pop_vlan"),
    ("strip_vlan", "strip_vlan"),
    ("mod_nw_src", "mod_nw_src:IPV4"),
    ("mod_nw_dst", "mod_nw_dst:IPV4"),
    ("mod_nw_tos", "mod_nw_tos:0..252"),
    ("mod_nw_ecn", "mod_nw_ecn:0..3"),
    ("mod_nw_ttl", "mod_nw_ttl:0..255"),
    ("dec_ttl", "dec_ttl"),
    ("mod_tp_src", "mod_tp_src:0..65535"),
    ("mod_tp_dst", "mod_tp_dst:0..65535"),
    ("set_field", "set_field:VALUE[/MASK]->FIELD"),
    ("set_tunnel", "set_tunnel:N"),
    ("encap_vxlan", "encap_vxlan(vni=VNI,src=IPV4,dst=IPV4[,eth_src=MAC][,eth_dst=MAC][,port=4789])"),
    ("decap_vxlan", "decap_vxlan"),
    ("set_fcf", "set_fcf(tos|vlan,workload=N[,priority=0|1])"),
    ("set_core", "set_core:CORE|choose|choose_first"),
    ("meter", "meter:N"),
    ("clear_actions", "clear_actions"),
    ("write_actions", "write_actions(ACTION[,ACTION...])"),
    ("write_metadata", "write_metadata:N[/MASK]"),
    ("goto_table", "goto_table:0..15"),
];

/// How an action is written.
pub(super) fn syntax(name: &str) -> Option<&'static str> {
    ACTIONS.iter().find(|(n, _)| *n == name).map(|(_, syntax)| *syntax)
}

/// Parses actions that send. `None` if the word is none of them.
fn output(word: Word<'_>) -> Result<Option<Action>, BadText> {
    let names = word.names;
    let action = match word.key {
        "output" => {
            // Output to a register, or with a length, is not supported.
            let port = names.port(word.value()?).map_err(|e| word.bad(e.right))?;
            Action::output(port)
        }
        key if key.eq_ignore_ascii_case("controller") => {
            let max_len = match word.value {
                None => WHOLE_PACKET,
                Some(value) => {
                    let max_len = value.strip_prefix("max_len=").unwrap_or(value);
                    let max_len = value::number(max_len).and_then(|n| u16::try_from(n).ok());
                    max_len.ok_or_else(|| word.bad("needs at most a length: controller(max_len=65535)"))?
                }
            };
            Action::Output { port: RulePort::CONTROLLER, max_len }
        }
        "enqueue" => {
            let bad = || word.bad("needs port and queue: enqueue:1:2");
            let (port, queue) = word.value()?.split_once([':', ',']).ok_or_else(bad)?;
            let queue = value::number(queue.trim()).and_then(|n| u32::try_from(n).ok()).ok_or_else(bad)?;
            Action::Enqueue { port: names.port(port)?, queue }
        }
        _ if word.value.is_none() => match names.port(word.key) {
            Ok(port) => Action::output(port),
            Err(_) => return Ok(None),
        },
        _ => return Ok(None),
    };
    Ok(Some(action))
}

/// Parses the value of a field, without a mask.
fn exact(word: Word<'_>, field: Field) -> Result<u128, BadText> {
    match value::of_field(field, word.value()?, word.names) {
        Some((value, None)) => Ok(value),
        _ => Err(word.bad(format!("needs {}", value::example(field)))),
    }
}

/// `set_field:value[/mask]->field`
fn set_field(word: Word<'_>) -> Result<Action, BadText> {
    let (text, name) =
        word.value()?.rsplit_once("->").ok_or_else(|| word.bad("needs a field: set_field:VALUE->FIELD"))?;
    if name == "nw_ttl" {
        return match value::number(text).and_then(|n| u8::try_from(n).ok()) {
            Some(ttl) => Ok(Action::SetTtl(ttl)),
            None => Err(word.bad("needs a number from 0 to 255")),
        };
    }
    let field = field_of_action(name)?;
    if !settable(field) {
        return Err(BadText::new(name, "can be matched, not set"));
    }
    let (value, mask) = value::of_field(field, text, word.names)
        .ok_or_else(|| word.bad(format!("needs {}", value::example(field))))?;
    let mask = mask.unwrap_or(field.all_bits());
    // The bit for the presence of a tag is part of the value (OpenFlow 1.3 section 7.2.3.7). It is always set.
    let present = u128::from(if field == Field::VlanVid { VLAN_PRESENT } else { 0 });
    Ok(Action::SetField { field, value: value & mask | present & mask, mask })
}

/// `encap_vxlan(vni=..,src=..,dst=..[,eth_src=..][,eth_dst=..][,port=..])`
fn encap_vxlan(word: Word<'_>) -> Result<Action, BadText> {
    let (mut vni, mut source, mut destination) = (None, None, None);
    let (mut eth_source, mut eth_destination, mut udp_port) = ([0; 6], [0; 6], VXLAN_PORT);
    let mac = |part: Word<'_>| {
        value::mac_octets(part.value()?)
            .ok_or_else(|| part.bad(format!("needs {}", value::example(Field::EthSrc))))
    };
    let address = |part: Word<'_>| {
        part.value()?.parse().map(Some).map_err(|_| part.bad("needs an IPv4 address such as 192.0.2.1"))
    };
    for part in words(word.value()?, word.names)? {
        match part.key {
            "vni" => vni = Some(part.number(0xff_ffff)?),
            "src" => source = address(part)?,
            "dst" => destination = address(part)?,
            "eth_src" => eth_source = mac(part)?,
            "eth_dst" => eth_destination = mac(part)?,
            "port" => udp_port = part.number(0xffff)?,
            _ => return Err(part.bad("needs one of vni, src, dst, eth_src, eth_dst, port")),
        }
    }
    let (Some(vni), Some(source), Some(destination)) = (vni, source, destination) else {
        return Err(
            word.bad("needs at least vni, src and dst: encap_vxlan(vni=1,src=192.0.2.1,dst=192.0.2.2)")
        );
    };
    Ok(Action::EncapVxlan(Vxlan { vni, source, destination, eth_source, eth_destination, udp_port }))
}

/// `set_fcf(tos|vlan,workload=..,priority=0|1)`
fn set_fcf(word: Word<'_>) -> Result<Action, BadText> {
    let (mut place, mut workload, mut priority) = (None, None, false);
    for part in words(word.value()?, word.names)? {
        match part.key {
            "tos" => place = part.alone().map(|()| Some((FcfPlace::Tos, 31)))?,
            "vlan" => place = part.alone().map(|()| Some((FcfPlace::Vlan, 4095)))?,
            "workload" => workload = Some(part),
            "priority" => priority = part.number::<u8>(1)? == 1,
            _ => return Err(part.bad("needs tos or vlan, workload and priority")),
        }
    }
    let (Some((place, most)), Some(workload)) = (place, workload) else {
        return Err(word.bad("needs a place and a workload: set_fcf(tos,workload=3,priority=1)"));
    };
    Ok(Action::SetFcf { place, workload: workload.number(most)?, priority })
}

/// Actions as `ovs-ofctl` writes them; `drop` for none.
pub struct ActionsText<'a>(pub &'a [Action]);

impl fmt::Display for ActionsText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let actions: Vec<_> = self.0.iter().map(|action| OneText(action).to_string()).collect();
        f.write_str(if actions.is_empty() { "drop" } else { "" })?;
        f.write_str(&actions.join(","))
    }
}

/// The text after `actions=`.
pub struct InstructionsText<'a>(pub &'a Instructions);

impl fmt::Display for InstructionsText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Instructions { meter, apply, clear, write, metadata, goto_table } = self.0;
        let mut parts = Vec::new();
        parts.extend(meter.map(|id| format!("meter:{id}")));
        parts.extend(apply.iter().map(|action| OneText(action).to_string()));
        parts.extend(clear.then(|| "clear_actions".into()));
        parts.extend((!write.is_empty()).then(|| format!("write_actions({})", ActionsText(write))));
        parts.extend(metadata.map(|(value, mask)| match mask {
            u64::MAX => format!("write_metadata:{value:#x}"),
            _ => format!("write_metadata:{value:#x}/{mask:#x}"),
        }));
        parts.extend(goto_table.map(|table| format!("goto_table:{table}")));
        f.write_str(if parts.is_empty() { "drop" } else { "" })?;
        f.write_str(&parts.join(","))
    }
}

struct OneText<'a>(&'a Action);

impl fmt::Display for OneText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self.0 {
            Action::Output { port: RulePort::CONTROLLER, max_len } => write!(f, "CONTROLLER:{max_len}"),
            Action::Output { port, .. } if port <= RulePort::MAX => write!(f, "output:{port}"),
            Action::Output { port, .. } => write!(f, "{port}"),
            Action::Enqueue { port, queue } => write!(f, "enqueue:{port}:{queue}"),
            Action::SetQueue(queue) => write!(f, "set_queue:{queue}"),
            Action::SetField { field, value, mask } => {
                let text = ValueText(field, value, mask);
                match (field, mask == field.all_bits()) {
                    (Field::EthSrc, true) => write!(f, "mod_dl_src:{text}"),
                    (Field::EthDst, true) => write!(f, "mod_dl_dst:{text}"),
                    (Field::Ipv4Src, true) => write!(f, "mod_nw_src:{text}"),
                    (Field::Ipv4Dst, true) => write!(f, "mod_nw_dst:{text}"),
                    (Field::IpDscp, true) => write!(f, "mod_nw_tos:{}", value << 2),
                    _ => write!(f, "set_field:{text}->{}", name_in_actions(field)),
                }
            }
            Action::SetVlanVid(vid) => write!(f, "mod_vlan_vid:{vid}"),
            Action::SetVlanPcp(pcp) => write!(f, "mod_vlan_pcp:{pcp}"),
            Action::SetTpSrc(port) => write!(f, "mod_tp_src:{port}"),
            Action::SetTpDst(port) => write!(f, "mod_tp_dst:{port}"),
            Action::PushVlan(kind) => write!(f, "push_vlan:{kind:#06x}"),
            Action::PopVlan => f.write_str("strip_vlan"),
            Action::DecTtl => f.write_str("dec_ttl"),
            Action::SetTtl(ttl) => write!(f, "mod_nw_ttl:{ttl}"),
            Action::Group(id) => write!(f, "group:{id}"),
            Action::EncapVxlan(ref outer) => write_vxlan(f, outer),
            Action::DecapVxlan => f.write_str("decap_vxlan"),
            Action::SetFcf { place, workload, priority } => {
                let place = if place == FcfPlace::Tos { "tos" } else { "vlan" };
                write!(f, "set_fcf({place},workload={workload},priority={})", u8::from(priority))
            }
            Action::SetCore(CoreChoice::This(core)) => write!(f, "set_core:{core}"),
            Action::SetCore(CoreChoice::Choose) => f.write_str("set_core:choose"),
            Action::SetCore(CoreChoice::ChooseFirst) => f.write_str("set_core:choose_first"),
        }
    }
}

/// Leaves out parameters that have their default.
fn write_vxlan(f: &mut fmt::Formatter<'_>, outer: &Vxlan) -> fmt::Result {
    let Vxlan { vni, source, destination, eth_source, eth_destination, udp_port } = *outer;
    write!(f, "encap_vxlan(vni={vni},src={source},dst={destination}")?;
    for (name, mac) in [("eth_src", eth_source), ("eth_dst", eth_destination)] {
        if mac != [0; 6] {
            write!(f, ",{name}={}", Mac(mac))?;
        }
    }
    if udp_port != VXLAN_PORT {
        write!(f, ",port={udp_port}")?;
    }
    f.write_str(")")
}
