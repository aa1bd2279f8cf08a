//! Decides for each pair of devices whether rules can matter to packets between them.
//!
//! A namespace can have thousands of devices, and most rules name few of them. Devices that no rule tells apart form a
//! group, and a proof about one pair of devices holds for all pairs of their groups.
//!
//! Two kinds of packets between a pair need Linux although all rules accept them. Both belong to connections that the
//! rules treat in some other place:
//!
//! * Packets of a translated connection. Linux translates all its later packets, wherever they pass. Their addresses
//!   are left out ([`translated`](super::translated)).
//! * Packets of a connection whose answers meet a rule that asks for its state. Conntrack must see it from the first
//!   packet on. Answers leave where the first packet came in, so all pairs *to* that device must be free, too.

use super::{
    bits::{Answer, Bits},
    prove::{Exception, Obstacle, Prover},
    ruleset::{Comparison, Devices, Expression, Into, Register, Rule, Ruleset, Set, Table},
    traffic::{Device, Scope, Traffic, Version, device_name},
    translated::translated,
};
use crate::observe::Firewall;
use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    sync::Arc,
};

/// The groups of one router, with [`UNPROVEN`].
pub const GROUPS: usize = 16;
/// The group of devices about which nothing is proven, because there are too many groups.
pub const UNPROVEN: u8 = 0;
/// The most ranges of addresses that Linux keeps for itself.
pub const MOST_EXCEPTIONS: usize = 8;
/// The most names and numbers that rules may compare devices with.
const MOST_CONSTANTS: usize = 4096;
/// The most elements of sets that are looked at, once for each rule that names the set.
const MOST_ELEMENTS: usize = 1 << 20;
/// The most steps of the proof about one pair.
const MOST_STEPS: u32 = 50_000;

/// What holds for the packets from one group to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pair {
    /// Nothing is known yet.
    Open,
    /// All rules accept all packets, except those of these addresses.
    Accepted(Vec<Exception>),
    /// All rules accept them, but only until an element of a set expires.
    Expiring,
    /// Rules may matter.
    Ruled(Obstacle),
}

/// The groups of the devices, and the pairs of groups. Pairs are decided little by little ([`Pairs::advance`]).
#[derive(Clone, Debug)]
pub struct Pairs {
    firewall: Arc<Firewall>,
    version: Version,
    /// `None`: rules compare devices with too many constants, so no device has a group.
    constants: Option<Constants>,
    groups: BTreeMap<Signature, u8>,
    /// Some device has no group.
    too_many: bool,
    /// A device of each group from 1 on.
    members: Vec<Device>,
    /// `pairs[from - 1][to - 1]`
    pairs: Vec<Vec<Pair>>,
    /// The addresses of translated connections; or the rule that may translate to any.
    translated: Result<Vec<Exception>, Obstacle>,
}

/// What the kernel plane needs to know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PairTable {
    /// By the group where a packet comes in: four bits for each group where it leaves, [`FREE`] and so on.
    pub pairs: [u64; GROUPS],
    /// Linux decides about packets with these addresses, if their pair says [`FREE_EXCEPT`].
    pub exceptions: Vec<Exception>,
}

/// Linux decides.
pub const LINUX: u64 = 0;
/// Rules do not matter.
pub const FREE: u64 = 1;
/// Rules do not matter, except to packets with the addresses of [`PairTable::exceptions`].
pub const FREE_EXCEPT: u64 = 2;

impl PairTable {
    /// What holds from one group to another.
    pub fn pair(&self, from: u8, to: u8) -> u64 {
        self.pairs.get(usize::from(from)).map_or(LINUX, |row| row >> (4 * (to & 15)) & 15)
    }

    fn set(&mut self, from: usize, to: usize, what: u64) {
        self.pairs[from] = self.pairs[from] & !(15 << (4 * to)) | what << (4 * to);
    }
}

impl Pairs {
    /// No devices yet.
    pub fn new(firewall: Arc<Firewall>, version: Version) -> Pairs {
        let of_rules = translated(&firewall.rules, version);
        let also = firewall
            .translated
            .iter()
            .filter_map(|(part, address)| Exception::of_address(*part, *address, version));
        Pairs {
            version,
            constants: Constants::of(&firewall.rules),
            groups: BTreeMap::new(),
            too_many: false,
            members: Vec::new(),
            pairs: Vec::new(),
            translated: of_rules.map(|mut all| {
                also.for_each(|one| add(&mut all, one));
                all
            }),
            firewall,
        }
    }

    /// The group of a device. It may be a new one.
    pub fn group(&mut self, device: &Device) -> u8 {
        let next = self.members.len() + 1;
        // The bytes of such a name are not known, so rules cannot be compared with it.
        let constants = self.constants.as_ref().filter(|_| !device.name.contains('\u{fffd}'));
        let signature = constants.map(|constants| constants.signature(device));
        match signature.map(|signature| self.groups.entry(signature)) {
            Some(Entry::Occupied(group)) => *group.get(),
            Some(Entry::Vacant(slot)) if next < GROUPS => {
                slot.insert(next as u8);
                self.members.push(device.clone());
                self.pairs.iter_mut().for_each(|row| row.push(Pair::Open));
                self.pairs.push(vec![Pair::Open; next]);
                next as u8
            }
            _ => {
                self.too_many = true;
                UNPROVEN
            }
        }
    }

    /// Are there devices without a group?
    pub fn are_too_many(&self) -> bool {
        self.too_many
    }

    /// Decides about more pairs, until `steps` are used up. Returns whether anything was decided.
    pub fn advance(&mut self, steps: &mut u32) -> bool {
        let mut decided = false;
        let mut prover = Prover::new(&self.firewall.rules, self.version, u32::MAX);
        for (from, row) in self.pairs.iter_mut().enumerate() {
            for (to, pair) in row.iter_mut().enumerate().filter(|(_, pair)| **pair == Pair::Open) {
                if *steps == 0 {
                    return decided;
                }
                let traffic = Traffic {
                    version: self.version,
                    input: self.members[from].clone(),
                    output: self.members[to].clone(),
                    scope: Scope::All,
                };
                let (proof, used) = prover.prove_within(&traffic, MOST_STEPS);
                *steps = steps.saturating_sub(used.max(1));
                *pair = match proof {
                    Ok(proof) if proof.holds_ms.is_some() => Pair::Expiring,
                    Ok(proof) => Pair::Accepted(proof.except),
                    Err(obstacle) => Pair::Ruled(obstacle),
                };
                decided = true;
            }
        }
        decided
    }

    /// Are all pairs decided?
    pub fn is_done(&self) -> bool {
        !self.pairs.iter().flatten().any(|pair| *pair == Pair::Open)
    }

    /// The groups, each with a device of it.
    pub fn members(&self) -> impl Iterator<Item = (u8, &Device)> {
        (1..).zip(&self.members)
    }

    /// What was decided about each pair of groups.
    pub fn all(&self) -> impl Iterator<Item = (u8, u8, &Pair)> {
        let row = |(from, row)| (1..).zip(row).map(move |(to, pair)| (from, to, pair));
        (1..).zip(&self.pairs).flat_map(row)
    }

    /// Why no pair can be free, whatever is decided about it.
    pub fn hindrance(&self) -> Option<&Obstacle> {
        self.translated.as_ref().err()
    }

    /// Are all packets to this group accepted, wherever they come from? Answers leave where the first packet came in.
    pub fn is_clear(&self, group: u8) -> bool {
        self.all().filter(|(_, to, _)| *to == group).all(|(_, _, pair)| matches!(pair, Pair::Accepted(_)))
    }

    /// What the kernel plane needs to know. `None`: rules matter to no packet.
    pub fn table(&self) -> Option<PairTable> {
        let translated = self.translated.as_deref().unwrap_or_default();
        let mut table = PairTable::default();
        if self.too_many || self.translated.is_err() || translated.len() > MOST_EXCEPTIONS {
            return Some(table);
        }
        table.exceptions = translated.to_vec();
        let count = self.members.len();
        let accepted = |from: usize, to: usize| match &self.pairs[from][to] {
            Pair::Accepted(except) => Some(except),
            _ => None,
        };
        let mut all_free = true;
        for from in 0..count {
            let is_clear = self.is_clear(from as u8 + 1);
            for to in 0..count {
                let mut all = table.exceptions.clone();
                accepted(from, to).into_iter().flatten().for_each(|one| add(&mut all, one.clone()));
                if is_clear && accepted(from, to).is_some() && all.len() <= MOST_EXCEPTIONS {
                    table.exceptions = all;
                    table.set(from + 1, to + 1, FREE);
                } else {
                    all_free = false;
                }
            }
        }
        if table.exceptions.is_empty() {
            return (!all_free).then_some(table);
        }
        // They are the same for all pairs.
        table.pairs.iter_mut().for_each(|row| *row *= FREE_EXCEPT);
        Some(table)
    }
}

/// Adds an exception that is not there yet.
pub(super) fn add(all: &mut Vec<Exception>, one: Exception) {
    if !all.contains(&one) {
        all.push(one);
    }
}

/// What rules compare devices with.
#[derive(Clone, Debug, Default)]
struct Constants {
    tests: BTreeSet<(Held, Test)>,
    /// Lists of the devices that a chain is bound to.
    lists: Vec<Vec<String>>,
    /// A rule computes with a device's name or number, so each device is a group.
    each: bool,
    /// Elements of sets that were looked at.
    elements: usize,
}

/// A comparison with a constant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Test {
    Equal(Vec<u8>),
    /// Is it smaller, equal or greater?
    Order(Vec<u8>),
    /// Is it between the two, both included?
    Between(Vec<u8>, Vec<u8>),
}

/// The results of all comparisons with a device. Devices whose results are equal are alike for every rule.
type Signature = (Vec<Ordering>, Vec<[bool; 2]>, Option<u32>);

/// Which of a device's properties a register holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Held {
    Name,
    Index,
}

/// What registers hold of devices, by their first byte. An entry that is overwritten does no harm.
type Registers = BTreeMap<u8, Held>;

impl Constants {
    /// `None`: there are too many.
    fn of(ruleset: &Ruleset) -> Option<Constants> {
        let mut constants = Constants::default();
        for table in &ruleset.tables {
            for chain in table.chains.values() {
                if let Some(Devices::Named(names)) = chain.base.as_ref().map(|base| &base.devices) {
                    constants.lists.push(names.clone());
                }
                for rule in &chain.rules {
                    constants.add_rule(table, rule);
                    if constants.are_too_many() {
                        return None;
                    }
                }
            }
        }
        Some(constants)
    }

    fn are_too_many(&self) -> bool {
        let names: usize = self.lists.iter().map(Vec::len).sum();
        self.tests.len() + names > MOST_CONSTANTS || self.elements > MOST_ELEMENTS
    }

    fn add_rule(&mut self, table: &Table, rule: &Rule) {
        let mut held = Registers::new();
        for step in &rule.expressions {
            match step {
                Expression::Meta { key: 4 | 5, into } => drop(held.insert(into.0, Held::Index)),
                Expression::Meta { key: 6 | 7, into } => drop(held.insert(into.0, Held::Name)),
                Expression::Compare { from, by: Comparison::Equal | Comparison::Unequal, value } => {
                    self.add(&held, *from, value.len(), || Test::Equal(value.clone()));
                }
                Expression::Compare { from, value, .. } => {
                    self.add(&held, *from, value.len(), || Test::Order(value.clone()));
                }
                Expression::Range { from, low, high, .. } => {
                    self.add(&held, *from, low.len(), || Test::Between(low.clone(), high.clone()));
                }
                Expression::Lookup { from, set, into, .. } => {
                    if let Some(set) = table.sets.get(set) {
                        self.add_set(&held, *from, set);
                    }
                    // The value that a map has for a device.
                    self.each |= matches!(into, Into::Register(_)) && held.contains_key(&from.0);
                }
                Expression::Mask { from, mask, .. } => self.each |= overlaps(&held, *from, mask.len()),
                Expression::Swap { from, bytes, .. } => self.each |= overlaps(&held, *from, *bytes as usize),
                _ => (),
            }
        }
    }

    fn add_set(&mut self, held: &Registers, from: Register, set: &Set) {
        for (at, length) in set.layout() {
            let Some(register) = u8::try_from(usize::from(from.0) + at).ok().map(Register) else { continue };
            if !overlaps(held, register, length) {
                continue;
            }
            for element in &set.elements {
                self.elements += 1;
                if self.are_too_many() {
                    return;
                }
                let part = |key: &Vec<u8>| key.get(at..at + length).unwrap_or_default().to_vec();
                self.add(held, register, length, || match (part(&element.low), part(&element.high)) {
                    (low, high) if low == high => Test::Equal(low),
                    (low, high) => Test::Between(low, high),
                });
            }
        }
    }

    fn add(&mut self, held: &Registers, from: Register, length: usize, test: impl FnOnce() -> Test) {
        match held.get(&from.0) {
            Some(what) => drop(self.tests.insert((*what, test()))),
            None => self.each |= overlaps(held, from, length),
        }
    }

    fn signature(&self, device: &Device) -> Signature {
        let name = device_name(&device.name);
        let index = Bits::known(&device.ifindex.to_ne_bytes());
        let results = self.tests.iter().map(|(what, test)| {
            let bits = if *what == Held::Name { &name } else { &index };
            match test {
                Test::Equal(value) => {
                    if bits.order(value).is_eq() {
                        Ordering::Equal
                    } else {
                        Ordering::Less
                    }
                }
                Test::Order(value) => bits.order(value),
                Test::Between(low, high) => match bits.between(low, high) {
                    Answer::Yes => Ordering::Equal,
                    _ => Ordering::Less,
                },
            }
        });
        let bound = self.lists.iter().map(|names| {
            [names.contains(&device.name), names.iter().any(|name| device.below.contains(name))]
        });
        (results.collect(), bound.collect(), self.each.then_some(device.ifindex))
    }
}

/// Does a device's name or number lie in these bytes of the registers?
fn overlaps(held: &Registers, from: Register, length: usize) -> bool {
    let (begin, end) = (usize::from(from.0), usize::from(from.0) + length);
    held.iter().any(|(at, what)| {
        let bytes = if *what == Held::Name { 16 } else { 4 };
        usize::from(*at) < end && begin < usize::from(*at) + bytes
    })
}
