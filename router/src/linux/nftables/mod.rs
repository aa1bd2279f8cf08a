//! Reads the nf_tables rules of a namespace (`include/uapi/linux/netfilter/nf_tables.h`).
//!
//! | file | reads |
//! |---|---|
//! | this one | tables, base chains, and puts the parts together |
//! | [`expression`] | the steps of rules |
//! | [`set`] | sets and their elements |

pub mod expression;
pub mod set;

use super::netlink::{
    socket::{Most, Socket},
    wire::{self, Message, Request},
};
use crate::base::clock::monotonic;
use logic::firewall::ruleset::{
    Base, Chain, Devices, Expression, Family, Hook, Rule, Ruleset, Set, Table, Value, Verdict,
};
use std::{collections::BTreeMap, io, sync::Arc, time::Duration};

const SUBSYSTEM: u16 = 10 << 8;
const NEWTABLE: u16 = SUBSYSTEM;
const GETTABLE: u16 = SUBSYSTEM | 1;
const NEWCHAIN: u16 = SUBSYSTEM | 3;
pub(super) const GETCHAIN: u16 = SUBSYSTEM | 4;
const NEWRULE: u16 = SUBSYSTEM | 6;
const GETRULE: u16 = SUBSYSTEM | 7;
const NEWSET: u16 = SUBSYSTEM | 9;
const GETSET: u16 = SUBSYSTEM | 10;
const NEWSETELEM: u16 = SUBSYSTEM | 12;
const GETSETELEM: u16 = SUBSYSTEM | 13;
const NEWGEN: u16 = SUBSYSTEM | 15;
const GETGEN: u16 = SUBSYSTEM | 16;

/// The most tables, chains, rules and sets of a namespace, all together.
/// A long one counts as several.
const MOST_RULES: usize = 1 << 16;
/// The most elements of all sets, 32 bytes each.
const MOST_ELEMENTS: usize = 1 << 17;
/// How often rules that change meanwhile are read before Millrace gives up.
const ATTEMPTS: usize = 5;

/// Where a part belongs: family and name of its table.
type TableKey = (u8, String);

/// Reads all rules. They are of one generation.
///
/// # Errors
/// `QuotaExceeded`: there are too many. `Interrupted`: they change all the time.
pub fn read(socket: &mut Socket) -> io::Result<Ruleset> {
    for _ in 0..ATTEMPTS {
        let before = match generation(socket) {
            Err(e) if is_absent(&e) => return Ok(Ruleset::default()),
            other => other?,
        };
        let ruleset = read_once(socket);
        if generation(socket)? == before {
            return ruleset;
        }
    }
    Err(io::Error::new(io::ErrorKind::Interrupted, "the rules change faster than they can be read"))
}

/// nfnetlink without nf_tables does not know its messages.
pub(super) fn is_absent(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP))
}

/// `NFPROTO_*`; `None`: tables of this family are not read ([`Family`]).
pub(super) fn family(number: u8) -> Option<Family> {
    match number {
        1 => Some(Family::Inet),
        2 => Some(Family::Ipv4),
        5 => Some(Family::Netdev),
        10 => Some(Family::Ipv6),
        _ => None,
    }
}

fn generation(socket: &mut Socket) -> io::Result<Option<u32>> {
    let parse = |m: Message<'_>| {
        let id = wire::attributes_after(m.payload, 4).find(|(kind, _)| *kind == 1)?.1;
        (m.kind == NEWGEN).then(|| wire::be32_at(id, 0)).flatten()
    };
    socket.ask(Request::new(GETGEN, wire::ACK, &[0; 4]), parse)
}

fn read_once(socket: &mut Socket) -> io::Result<Ruleset> {
    let all = |kind| Request::new(kind, wire::DUMP, &[0; 4]);
    let mut most = Most::new(MOST_RULES, "nftables rules").weighed(|m| 1 + m.payload.len() / 256);
    let mut parts = Parts::default();
    for (key, dormant) in socket.dump_at_most(&mut most, all(GETTABLE), table)? {
        parts.add_table(key, dormant);
    }
    for (key, name, chain, uses) in socket.dump_at_most(&mut most, all(GETCHAIN), chain_with_uses)? {
        parts.uses.insert((key.clone(), name.clone()), uses);
        parts.chain(key, name, chain);
    }
    for (key, name, rule) in socket.dump_at_most(&mut most, all(GETRULE), rule)? {
        parts.rule(&key, &name, rule);
    }
    let mut most_elements = Most::new(MOST_ELEMENTS, "elements of sets").weighed(|m| m.payload.len() / 32);
    for (key, name, description) in socket.dump_at_most(&mut most, all(GETSET), set::description)? {
        let request = Request::new(GETSETELEM, wire::DUMP, &[key.0, 0, 0, 0])
            .with(set::LIST_TABLE, &[key.1.as_bytes(), &[0]].concat())
            .with(set::LIST_SET, &[name.as_bytes(), &[0]].concat());
        let read_at = monotonic();
        let elements = socket.dump_at_most(&mut most_elements, request, set::elements)?;
        parts.set(&key, name, description.with(elements.into_iter().flatten().collect(), read_at));
    }
    Ok(parts.ruleset())
}

/// The tables of IP, as far as they are read.
#[derive(Default)]
struct Parts {
    tables: BTreeMap<TableKey, Table>,
    /// The number of rules of each chain and of jumps to it.
    uses: BTreeMap<(TableKey, String), u32>,
}

impl Parts {
    fn add_table(&mut self, key: TableKey, dormant: bool) {
        let Some(family) = family(key.0) else { return };
        let name = key.1.clone();
        let (chains, sets) = (BTreeMap::new(), BTreeMap::new());
        self.tables.insert(key, Table { family, name, dormant, chains, sets });
    }

    fn chain(&mut self, key: TableKey, name: String, chain: Chain) {
        if let Some(table) = self.tables.get_mut(&key) {
            table.chains.insert(name, chain);
        }
    }

    fn rule(&mut self, key: &TableKey, chain: &str, rule: Rule) {
        if let Some(chain) = self.tables.get_mut(key).and_then(|table| table.chains.get_mut(chain)) {
            chain.rules.push(rule);
        }
    }

    fn set(&mut self, key: &TableKey, name: String, set: Set) {
        if let Some(table) = self.tables.get_mut(key) {
            table.sets.insert(name, set);
        }
    }

    fn ruleset(self) -> Ruleset {
        let mut tables = self.tables;
        for ((key, name), uses) in self.uses {
            if let Some(table) = tables.get_mut(&key) {
                mark_hidden_rules(table, &name, uses);
            }
        }
        let mut tables: Vec<_> = tables.into_values().collect();
        tables.iter_mut().for_each(mark_changing_sets);
        Ruleset { tables: tables.into_iter().map(Arc::new).collect() }
    }
}

/// A dump leaves out a rule that is too long for a message. The chain then has a higher use count
/// than its rules plus the jumps to it.
fn mark_hidden_rules(table: &mut Table, name: &str, uses: u32) {
    let jumps_here =
        |verdict: &Verdict| matches!(verdict, Verdict::Jump(to) | Verdict::Goto(to) if to == name);
    let steps = table.chains.values().flat_map(|chain| &chain.rules).flat_map(|rule| &rule.expressions);
    let by_rules = steps.filter(|step| matches!(step, Expression::Verdict(verdict) if jumps_here(verdict)));
    let values = table
        .sets
        .values()
        .flat_map(|set| set.elements.iter().map(|element| &element.value).chain(&set.otherwise));
    let by_maps = values.filter(|value| matches!(value, Value::Verdict(verdict) if jumps_here(verdict)));
    let jumps = by_rules.count() + by_maps.count();
    let Some(chain) = table.chains.get_mut(name) else { return };
    if (uses as usize) > chain.rules.len() + jumps {
        chain.rules.insert(0, Rule { handle: 0, expressions: vec![Expression::Hidden] });
    }
}

/// Rules can add to sets whose flags do not say so.
fn mark_changing_sets(table: &mut Table) {
    let steps = table.chains.values().flat_map(|chain| &chain.rules).flat_map(|rule| &rule.expressions);
    for step in steps {
        if let Expression::Update { set } = step
            && let Some(set) = table.sets.get_mut(set)
        {
            set.changing = true;
        }
    }
}

/// The key of the table that holds an object; `None`: the message is of another kind.
fn object(message: &Message<'_>, kind: u16, table: u16) -> Option<TableKey> {
    if message.kind != kind {
        return None;
    }
    let name = wire::attributes_after(message.payload, 4).find(|(kind, _)| *kind == table)?.1;
    Some((*message.payload.first()?, wire::text(name)))
}

fn table(message: Message<'_>) -> Option<(TableKey, bool)> {
    const NAME: u16 = 1;
    const FLAGS: u16 = 2;
    const DORMANT: u32 = 1;
    let key = object(&message, NEWTABLE, NAME)?;
    let flags = wire::attributes_after(message.payload, 4).find(|(kind, _)| *kind == FLAGS);
    let flags = flags.and_then(|(_, value)| wire::be32_at(value, 0)).unwrap_or(0);
    Some((key, flags & DORMANT != 0))
}

pub(super) fn chain_with_uses(message: Message<'_>) -> Option<(TableKey, String, Chain, u32)> {
    const USE: u16 = 6;
    let uses = wire::attributes_after(message.payload, 4).find(|(kind, _)| *kind == USE);
    let uses = uses.and_then(|(_, value)| wire::be32_at(value, 0)).unwrap_or(0);
    chain(message).map(|(key, name, chain)| (key, name, chain, uses))
}

pub(super) fn chain(message: Message<'_>) -> Option<(TableKey, String, Chain)> {
    const TABLE: u16 = 1;
    const NAME: u16 = 3;
    const HOOK: u16 = 4;
    const POLICY: u16 = 5;
    const TYPE: u16 = 7;
    const ACCEPT: u32 = 1;
    let key = object(&message, NEWCHAIN, TABLE)?;
    let (mut name, mut hook, mut accepts, mut nat) = (String::new(), None, true, false);
    for (kind, value) in wire::attributes_after(message.payload, 4) {
        match kind {
            NAME => name = wire::text(value),
            HOOK => hook = Some(value),
            POLICY => accepts = wire::be32_at(value, 0) == Some(ACCEPT),
            TYPE => nat = wire::text(value) == "nat",
            _ => (),
        }
    }
    let base = hook.and_then(|hook| base(key.0, hook)).map(|base| Base { accepts, nat, ..base });
    Some((key, name, Chain { base, rules: Vec::new() }))
}

/// `None`: forwarded packets do not pass the hook.
fn base(family: u8, hook: &[u8]) -> Option<Base> {
    const NUMBER: u16 = 1;
    const PRIORITY: u16 = 2;
    const NETDEV: u8 = 5;
    let number = wire::attribute(hook, NUMBER).and_then(|value| wire::be32_at(value, 0));
    let priority = wire::attribute(hook, PRIORITY).and_then(|value| wire::be32_at(value, 0)).unwrap_or(0);
    let hook_place = match (family, number) {
        (NETDEV, Some(0)) => Hook::Ingress,
        (NETDEV, Some(1)) => Hook::Egress,
        (NETDEV, _) => Hook::Unknown,
        (_, Some(0)) => Hook::Prerouting,
        (_, Some(1 | 3)) => return None,
        (_, Some(2)) => Hook::Forward,
        (_, Some(4)) => Hook::Postrouting,
        (_, Some(5)) => Hook::Ingress,
        _ => Hook::Unknown,
    };
    let devices = match hook_place {
        Hook::Ingress | Hook::Egress | Hook::Unknown => devices(hook),
        _ => Devices::All,
    };
    Some(Base { hook: hook_place, priority: priority as i32, nat: false, accepts: true, devices })
}

fn devices(hook: &[u8]) -> Devices {
    const DEV: u16 = 3;
    const DEVS: u16 = 4;
    const DEVICE_NAME: u16 = 1;
    let names = match wire::attribute(hook, DEVS) {
        // The list can also contain prefixes of names.
        Some(list) => wire::attributes(list)
            .map(|(kind, name)| (kind == DEVICE_NAME).then(|| wire::text(name)))
            .collect(),
        None => wire::attribute(hook, DEV).map(|name| vec![wire::text(name)]),
    };
    names.map_or(Devices::Unknown, Devices::Named)
}

fn rule(message: Message<'_>) -> Option<(TableKey, String, Rule)> {
    const TABLE: u16 = 1;
    const CHAIN: u16 = 2;
    const HANDLE: u16 = 3;
    const EXPRESSIONS: u16 = 4;
    let key = object(&message, NEWRULE, TABLE)?;
    let (mut chain, mut rule) = (String::new(), Rule { handle: 0, expressions: Vec::new() });
    for (kind, value) in wire::attributes_after(message.payload, 4) {
        match kind {
            CHAIN => chain = wire::text(value),
            HANDLE => rule.handle = value.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes)),
            EXPRESSIONS => {
                rule.expressions = wire::attributes(value).map(|(_, one)| expression::parse(one)).collect()
            }
            _ => (),
        }
    }
    Some((key, chain, rule))
}

/// Reads any message as each part of a ruleset; for fuzzing.
pub(crate) fn read_any(message: Message<'_>) -> Ruleset {
    let mut parts = Parts::default();
    let key = (2, "t".to_owned());
    parts.add_table(key.clone(), false);
    let of = |kind| Message { kind, ..message };
    if let Some((_, name, one)) = chain(of(NEWCHAIN)) {
        parts.chain(key.clone(), name, one);
    }
    if let Some((_, name, one)) = rule(of(NEWRULE)) {
        parts.rule(&key, &name, one);
    }
    if let Some((_, name, one)) = set::description(of(NEWSET)) {
        let elements = set::elements(of(NEWSETELEM)).unwrap_or_default();
        parts.set(&key, name, one.with(elements, Duration::ZERO));
    }
    let _ = table(of(NEWTABLE));
    parts.ruleset()
}
