//! Decides for each pair of devices whether rules can affect packets between them.
//!
//! A namespace can have thousands of devices, and most rules name few of them. Devices that no rule tells apart form a
//! group, and a proof about one pair of devices holds for all pairs of their groups.
//!
//! Rules that test what conntrack knows of a connection, or that translate, need to see all its packets. If a router has
//! any such rule, a connection must be fast as a whole or not at all:
//!
//! * Replies are assumed to leave by one of the two devices that the first packet used. They may come in by any device.
//!   So rules must accept all packets that leave by these two.
//! * If NAT may translate a packet that comes in by a device, no packet that comes in or leaves by it is free: a route
//!   can change.
//! * An exception applies if either address of a packet is in it, so it also applies to replies.
//! * Linux translates all packets of a translated connection, wherever they pass. Their addresses are exceptions
//!   ([`translated`](super::translated)).

use super::{
    bits::{Answer, Bits},
    prove::{Exception, Obstacle, Prover},
    ruleset::{Comparison, Devices, Expression, Firewall, Into, Register, Rule, Ruleset, Set, Table},
    traffic::{Device, Scope, TCP, Traffic, UDP, Version, device_name},
    translated::translated,
};
use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    sync::Arc,
    time::Duration,
};

/// The number of groups per router, including [`UNPROVEN`].
pub const GROUPS: usize = 16;
/// The group of devices about which nothing is proven, because there are too many groups.
pub const UNPROVEN: u8 = 0;
/// The most exceptions of a router.
pub const MOST_EXCEPTIONS: usize = 16;
/// The most names and numbers that rules may compare devices with.
const MOST_CONSTANTS: usize = 1024;
/// The most comparisons of constants with devices.
const MOST_COMPARISONS: usize = 1 << 14;
/// The most elements of sets that are looked at, once for each rule that names the set.
const MOST_ELEMENTS: usize = 1 << 17;
/// The most steps of the proof about one pair.
const MOST_STEPS: u32 = 50_000;

/// What holds for the packets from one group to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pair {
    /// Nothing is known yet.
    Undecided,
    /// All rules accept all packets, except those of these addresses.
    Accepted(Vec<Exception>),
    /// Rules may affect them.
    Ruled {
        /// The first rule that may.
        obstacle: Obstacle,
        /// The addresses of packets that NAT may translate; `None`: it may translate any.
        translates: Option<Vec<Exception>>,
        /// The first rule that may affect packets of established connections; `None`: all rules accept these packets.
        established: Option<Box<Obstacle>>,
    },
}

/// The groups of the devices, and the pairs of groups. Pairs are decided little by little ([`Pairs::advance`]).
#[derive(Clone, Debug)]
pub struct Pairs {
    firewall: Arc<Firewall>,
    version: Version,
    /// `None`: rules compare devices with too many constants, so no device has a group.
    constants: Option<Constants>,
    groups: BTreeMap<Signature, u8>,
    /// Devices whose group is known.
    known: BTreeMap<Device, u8>,
    /// Comparisons of constants with devices so far.
    comparisons: usize,
    /// Some device has no group.
    too_many: bool,
    /// A device of each group from 1 on.
    members: Vec<Device>,
    /// `pairs[from - 1][to - 1]`
    pairs: Vec<Vec<Pair>>,
    /// The new addresses of connections that rules translate; or the rule that may translate to any.
    translated: Result<Vec<Exception>, Obstacle>,
    tracks_connections: bool,
}

/// What the kernel plane needs to know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PairTable {
    /// By the group where a packet comes in: four bits for each group where it leaves, [`FREE`] and so on.
    pub pairs: [u64; GROUPS],
    /// Linux decides about packets with such a source or destination, if their pair says [`FREE_EXCEPT`].
    pub exceptions: Vec<Exception>,
}

/// Linux decides.
pub const LINUX: u64 = 0;
/// Rules do not affect the packets.
pub const FREE: u64 = 1;
/// Rules do not affect the packets, except those with addresses of [`PairTable::exceptions`].
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
        Pairs {
            version,
            constants: Constants::of(&firewall.rules),
            groups: BTreeMap::new(),
            known: BTreeMap::new(),
            comparisons: 0,
            too_many: false,
            members: Vec::new(),
            pairs: Vec::new(),
            translated: translated(&firewall.rules, version),
            tracks_connections: firewall.rules.tracks_connections(version),
            firewall,
        }
    }

    /// The group of a device. It may be a new one.
    pub fn group(&mut self, device: &Device) -> u8 {
        if let Some(group) = self.known.get(device) {
            return *group;
        }
        let group = self.new_group(device).unwrap_or(UNPROVEN);
        self.too_many |= group == UNPROVEN;
        self.known.insert(device.clone(), group);
        group
    }

    fn new_group(&mut self, device: &Device) -> Option<u8> {
        let constants = self.constants.as_ref()?;
        self.comparisons += constants.count();
        // The bytes of such a name are not known, so rules cannot be compared with it.
        if self.comparisons > MOST_COMPARISONS || device.name.contains('\u{fffd}') {
            return None;
        }
        let next = self.members.len() + 1;
        match self.groups.entry(constants.signature(device)) {
            Entry::Occupied(group) => Some(*group.get()),
            Entry::Vacant(slot) => {
                let group = *slot.insert(u8::try_from(next).ok().filter(|_| next < GROUPS)?);
                self.members.push(device.clone());
                self.pairs.iter_mut().for_each(|row| row.push(Pair::Undecided));
                self.pairs.push(vec![Pair::Undecided; next]);
                Some(group)
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
        let prover = Prover::new(&self.firewall.rules, self.version).holding_until(Duration::MAX);
        for (from, row) in self.pairs.iter_mut().enumerate() {
            for (to, pair) in row.iter_mut().enumerate().filter(|(_, pair)| **pair == Pair::Undecided) {
                if *steps == 0 {
                    return decided;
                }
                let traffic = Traffic {
                    version: self.version,
                    input: self.members[from].clone(),
                    output: self.members[to].clone(),
                    scope: Scope::All,
                };
                let (proof, used) = prover.prove(&traffic, MOST_STEPS);
                *steps = steps.saturating_sub(used.max(1));
                *pair = match proof {
                    Ok(proof) => Pair::Accepted(proof.except),
                    Err(obstacle) => {
                        let (proof, used) = prover.prove_untranslated(&traffic, MOST_STEPS);
                        *steps = steps.saturating_sub(used);
                        let translates = proof.ok().map(|proof| proof.except);
                        let established = [TCP, UDP].into_iter().find_map(|protocol| {
                            let traffic =
                                Traffic { scope: Scope::Established { protocol }, ..traffic.clone() };
                            let (proof, used) = prover.prove(&traffic, MOST_STEPS);
                            *steps = steps.saturating_sub(used);
                            proof.err().map(Box::new)
                        });
                        Pair::Ruled { obstacle, translates, established }
                    }
                };
                decided = true;
            }
        }
        decided
    }

    /// Are all pairs decided?
    pub fn is_done(&self) -> bool {
        !self.pairs.iter().flatten().any(|pair| *pair == Pair::Undecided)
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

    /// May rules affect packets of connections that leave by this group?
    pub fn may_affect_replies(&self, group: u8) -> bool {
        let mut to_group = self.all().filter(|(_, to, _)| *to == group);
        self.tracks_connections && !to_group.all(|(_, _, pair)| matches!(pair, Pair::Accepted(_)))
    }

    /// May NAT translate any packet that comes in by this group? Linux translates all later packets of its connection, also
    /// when these take another way.
    pub fn may_translate(&self, group: u8) -> bool {
        let mut from_group = self.all().filter(|(from, ..)| *from == group);
        from_group.any(|(_, _, pair)| matches!(pair, Pair::Ruled { translates: None, .. }))
    }

    /// The addresses that are left out of all pairs; `None`: there are too many.
    fn exceptions(&self) -> Option<Vec<Exception>> {
        let mut all = self.translated.clone().unwrap_or_default();
        let accepted = self.all().filter_map(|(_, _, pair)| match pair {
            Pair::Accepted(except) | Pair::Ruled { translates: Some(except), .. } => Some(except),
            _ => None,
        });
        accepted.flatten().for_each(|one| add(&mut all, one));
        if self.tracks_connections {
            let addresses = self.firewall.translated.as_ref()?;
            let of_version = addresses.iter().filter_map(|a| Exception::of_address(*a, self.version));
            for address in of_version {
                add(&mut all, &address);
                if all.len() > MOST_EXCEPTIONS {
                    break;
                }
            }
        }
        (all.len() <= MOST_EXCEPTIONS).then_some(all)
    }

    /// What the kernel plane needs to know. `None`: rules affect no packet.
    pub fn table(&self) -> Option<PairTable> {
        if self.firewall.rules.is_empty(self.version) {
            return None;
        }
        let mut table = PairTable::default();
        let exceptions = self.exceptions().filter(|_| !self.too_many && self.translated.is_ok());
        let Some(exceptions) = exceptions else { return Some(table) };
        let what = if exceptions.is_empty() { FREE } else { FREE_EXCEPT };
        table.exceptions = exceptions;
        let is_clear = |(group, _)| !self.may_affect_replies(group) && !self.may_translate(group);
        let clear: Vec<bool> = self.members().map(is_clear).collect();
        for (from, to, pair) in self.all() {
            let are_clear = [from, to].into_iter().all(|group| clear[usize::from(group) - 1]);
            if matches!(pair, Pair::Accepted(_)) && are_clear {
                table.set(from.into(), to.into(), what);
            }
        }
        Some(table)
    }
}

/// Adds an exception, unless another one contains it.
pub(super) fn add(all: &mut Vec<Exception>, one: &Exception) {
    if !all.iter().any(|other| other.contains(one)) {
        all.retain(|other| !one.contains(other));
        all.push(one.clone());
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

impl Held {
    fn bytes(self) -> usize {
        match self {
            Held::Name => 16,
            Held::Index => 4,
        }
    }
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
            Some(what) if length <= what.bytes() => drop(self.tests.insert((*what, test()))),
            // The comparison covers bytes beyond the name or index.
            Some(_) => self.each = true,
            None => self.each |= overlaps(held, from, length),
        }
    }

    /// The number of comparisons with each device.
    fn count(&self) -> usize {
        1 + self.tests.len() + self.lists.iter().map(Vec::len).sum::<usize>()
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
    held.iter().any(|(at, what)| usize::from(*at) < end && begin < usize::from(*at) + what.bytes())
}
