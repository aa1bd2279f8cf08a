//! Decides for each pair of devices which packets between them need not pass the rules.
//!
//! A namespace can have thousands of devices, and most rules name few of them. Devices that no rule tells apart form a
//! group, and a proof about one pair of devices holds for all pairs of their groups.

use super::{
    bits::{Answer, Bits},
    prove::{Obstacle, Proof, Prover},
    ruleset::{Comparison, Devices, Expression, Into, Register, Rule, Ruleset, Set, Table},
    traffic::{Device, Scope, TCP, Traffic, UDP, Version, device_name},
};
use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
};

/// The most groups of one router.
pub const MOST_GROUPS: usize = 16;
/// The most names and numbers that rules may compare devices with.
const MOST_CONSTANTS: usize = 4096;

/// The most elements of sets that are looked at, once for each rule that names the set.
const MOST_ELEMENTS: usize = 1 << 20;

/// What holds for the packets between two devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// For all packets; or why rules may matter to some.
    pub all: Result<Proof, Obstacle>,
    /// For established connections of TCP and of UDP; or why they must be looked at one by one.
    pub established: [Result<Proof, Obstacle>; 2],
}

/// The groups of the devices, and the pairs of groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pairs {
    /// The group of each device, in the order of the devices.
    pub groups: Vec<usize>,
    /// `pairs[from][to]`: what holds for packets from a device of group `from` to a device of group `to`.
    pub pairs: Vec<Vec<Pair>>,
}

/// The devices form too many groups, or rules compare devices with too many constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMany;

/// Decides about all pairs of these devices. `steps`: the limit for all proofs together.
///
/// # Errors
/// [`TooMany`] groups or constants.
pub fn pairs(ruleset: &Ruleset, version: Version, devices: &[Device], steps: u32) -> Result<Pairs, TooMany> {
    let constants = Constants::of(ruleset)?;
    let mut by_signature = BTreeMap::new();
    let mut representatives = Vec::new();
    let mut groups = Vec::with_capacity(devices.len());
    for device in devices {
        let group = *by_signature.entry(constants.signature(device)).or_insert(representatives.len());
        if group == representatives.len() {
            representatives.push(device);
        }
        if group == MOST_GROUPS {
            return Err(TooMany);
        }
        groups.push(group);
    }
    let mut prover = Prover::new(ruleset, version, steps);
    let mut pair = |input: &Device, output: &Device| {
        let mut ask =
            |scope| prover.prove(&Traffic { version, input: input.clone(), output: output.clone(), scope });
        Pair {
            all: ask(Scope::All),
            established: [TCP, UDP].map(|protocol| ask(Scope::Established { protocol })),
        }
    };
    let pairs = representatives
        .iter()
        .map(|input| representatives.iter().map(|output| pair(input, output)).collect());
    Ok(Pairs { pairs: pairs.collect(), groups })
}

/// What rules compare devices with.
#[derive(Default)]
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
    fn of(ruleset: &Ruleset) -> Result<Constants, TooMany> {
        let mut constants = Constants::default();
        for table in &ruleset.tables {
            for chain in table.chains.values() {
                if let Some(Devices::Named(names)) = chain.base.as_ref().map(|base| &base.devices) {
                    constants.lists.push(names.clone());
                }
                for rule in &chain.rules {
                    constants.add_rule(table, rule);
                    if constants.are_too_many() {
                        return Err(TooMany);
                    }
                }
            }
        }
        Ok(constants)
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
