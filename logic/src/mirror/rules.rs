//! The rules of a router's firewall: which packets they cannot affect.

use crate::{
    cause::{Cause, Code},
    firewall::{
        pairs::{FREE, GROUPS, LINUX, Pair, PairTable, Pairs, UNPROVEN},
        ruleset::Firewall,
        traffic::{Device, Version},
    },
    mirror::{Established, PairView, RulesView},
    observe::{Link, LinkKind, NamespaceId},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// The most devices below each other that are looked at.
const MOST_BELOW: usize = 8;

/// What is known about the rules, and about the links that they may name.
#[derive(Default)]
pub(super) struct Rules {
    firewall: Arc<Firewall>,
    /// For IPv4 and IPv6; `None`: no chain.
    pairs: [Option<Pairs>; 2],
    devices: BTreeMap<u32, Device>,
    groups: BTreeMap<u32, u8>,
    tables: PairTables,
    /// Some pairs are not decided yet.
    undecided: bool,
    /// Changes with everything that decides about connections; 0: none is fast.
    generation: u32,
}

/// The tables of both IP versions; `None`: rules affect no packet.
pub(super) type PairTables = [Option<Arc<PairTable>>; 2];

impl Rules {
    /// Follows the settings and links of the namespace. `generations`: the last one of any router; `None`: connections stay
    /// with Linux.
    pub fn settle(
        &mut self,
        namespace: NamespaceId,
        firewall: &Arc<Firewall>,
        links: &BTreeMap<u32, Link>,
        generations: Option<&mut u32>,
    ) {
        let renewed = self.firewall != *firewall;
        self.firewall = firewall.clone();
        if self.firewall.rules.tables.is_empty() {
            *self = Rules { firewall: self.firewall.clone(), ..Rules::default() };
            return;
        }
        let devices: BTreeMap<u32, Device> = links
            .values()
            .filter(|link| link.kind != LinkKind::Loopback)
            .map(|link| (link.ifindex, device(namespace, link, links)))
            .collect();
        if !renewed && devices == self.devices {
            return;
        }
        let is_known = |(ifindex, device)| devices.get(ifindex) == Some(device);
        if renewed || !self.devices.iter().all(is_known) {
            self.renew(generations);
        }
        self.devices = devices;
        if renewed || self.regroup() {
            self.pairs = [Version::V4, Version::V6].map(|version| {
                let has_chains = self.firewall.rules.has_chains(version);
                has_chains.then(|| Pairs::new(self.firewall.clone(), version))
            });
            self.regroup();
        }
        self.make_tables();
    }

    /// No connection that was admitted before is fast any more. New devices do not concern them.
    pub fn renew(&mut self, generations: Option<&mut u32>) {
        self.generation = 0;
        if let Some(last) = generations
            && [Version::V4, Version::V6].into_iter().any(|v| self.firewall.rules.tracks_connections(v))
        {
            *last = last.wrapping_add(1).max(1);
            self.generation = *last;
        }
    }

    fn make_tables(&mut self) {
        self.undecided = !self.pairs.iter().flatten().all(Pairs::is_done);
        self.tables = self.pairs.each_ref().map(|pairs| pairs.as_ref().and_then(Pairs::table).map(Arc::new));
    }

    /// Gives each device its group. Returns whether a group is left without devices.
    fn regroup(&mut self) -> bool {
        self.groups.clear();
        let mut unused = false;
        for pairs in self.pairs.iter_mut().flatten() {
            let mut used = BTreeSet::new();
            for (ifindex, device) in &self.devices {
                let group = pairs.group(device);
                used.insert(group);
                // Both versions have the same groups, because they see the same devices in the same order.
                self.groups.insert(*ifindex, group);
            }
            unused |= pairs.members().any(|(group, _)| !used.contains(&group)) || pairs.are_too_many();
        }
        unused
    }

    /// Decides about more pairs, until `steps` are used up. Returns whether anything was decided.
    pub fn advance(&mut self, steps: &mut u32) -> bool {
        let pairs = self.pairs.iter_mut().flatten();
        let decided = pairs.filter_map(|pairs| pairs.advance(steps).then_some(())).count() > 0;
        if decided {
            self.make_tables();
        }
        decided
    }

    /// Are all pairs decided?
    pub fn is_done(&self) -> bool {
        !self.undecided
    }

    pub fn group(&self, ifindex: u32) -> u8 {
        self.groups.get(&ifindex).copied().unwrap_or(UNPROVEN)
    }

    pub fn tables(&self) -> &PairTables {
        &self.tables
    }

    pub fn generation(&self) -> u32 {
        self.generation
    }

    pub fn device(&self, ifindex: u32) -> Option<&Device> {
        self.devices.get(&ifindex)
    }

    /// May connections of IPv4 and IPv6 be fast?
    fn admit(&self) -> [bool; 2] {
        let tracks = |version| self.generation != 0 && self.firewall.rules.tracks_connections(version);
        [tracks(Version::V4), tracks(Version::V6)]
    }

    /// What people see of it, for IPv4 and IPv6; `None`: there are no rules.
    pub fn views(&self) -> [Option<RulesView>; 2] {
        let mut groups: BTreeMap<u8, Vec<String>> = BTreeMap::new();
        for (ifindex, device) in &self.devices {
            groups.entry(self.group(*ifindex)).or_default().push(device.name.clone());
        }
        let mut tables = self.tables.iter().zip(self.admit());
        self.pairs.each_ref().map(|pairs| {
            let (table, admits) =
                tables.next().map(|(table, admits)| (table.as_deref(), admits)).unwrap_or_default();
            pairs.as_ref().map(|pairs| view(pairs, table, admits, groups.clone()))
        })
    }

    /// Why the rules may affect all packets of IPv4 and IPv6, as sentences. Empty: they do not.
    pub fn reasons(&self) -> [Vec<Cause>; 2] {
        let mut tables = self.tables.iter().zip(self.admit());
        self.pairs.each_ref().map(|pairs| match (pairs, tables.next()) {
            (Some(pairs), Some((table, false))) if !allows(table.as_deref()) => reasons(pairs),
            _ => Vec::new(),
        })
    }

    /// May the rules affect some packets of IPv4 and IPv6, but not all?
    pub fn affect_some(&self) -> [bool; 2] {
        let mut tables = self.tables.iter().zip(self.admit());
        self.pairs.each_ref().map(|pairs| match (pairs, tables.next()) {
            (Some(pairs), Some((Some(table), admits))) => {
                (admits || allows(Some(table)))
                    && !pairs.all().all(|(from, to, _)| table.pair(from, to) == FREE)
            }
            _ => false,
        })
    }
}

/// `admits`: connections may be fast.
fn view(
    pairs: &Pairs,
    table: Option<&PairTable>,
    admits: bool,
    groups: BTreeMap<u8, Vec<String>>,
) -> RulesView {
    let is_free = |from, to| table.is_none_or(|table| table.pair(from, to) != LINUX);
    let why = |from, to, pair: &Pair| match pair {
        _ if is_free(from, to) => None,
        Pair::Undecided => Some(Code::FirewallChecking.cause("Millrace is still checking the rules")),
        Pair::Ruled { obstacle, .. } => Some(obstacle.code().cause(obstacle.to_string())),
        Pair::Accepted(_) => Some(match pairs.hindrance() {
            Some(obstacle) => obstacle.code().cause(obstacle.to_string()),
            None if pairs.are_too_many() => {
                Code::FirewallTooLarge.cause("the rules distinguish too many groups of devices")
            }
            None if [from, to].map(|group| pairs.may_translate(group)).contains(&true) => Code::Nat.cause(
                "NAT may translate connections of one of the devices, and continues if their route changes",
            ),
            None if [from, to].map(|group| pairs.may_affect_replies(group)).contains(&true) => Code::Nat
                .cause("rules may affect replies, so conntrack must see all packets of the connection"),
            None => Code::FirewallTooLarge.cause("rules and translated connections have too many addresses"),
        }),
    };
    let established = |pair: &Pair| match pair {
        Pair::Undecided => None,
        Pair::Ruled { established: Some(obstacle), .. } => Some(Established::Checked(obstacle.to_string())),
        Pair::Ruled { established: None, .. } | Pair::Accepted(_) => Some(Established::Accepted),
    };
    let pair = |(from, to, pair)| PairView {
        from,
        to,
        why_not: why(from, to, pair),
        established: established(pair).filter(|_| admits && !is_free(from, to)),
    };
    RulesView {
        groups,
        pairs: pairs.all().map(pair).collect(),
        exceptions: table.into_iter().flat_map(|t| &t.exceptions).map(ToString::to_string).collect(),
    }
}

/// The most rules that are named as reasons.
const MOST_REASONS: usize = 4;

fn reasons(pairs: &Pairs) -> Vec<Cause> {
    if !pairs.is_done() {
        return vec![Code::FirewallChecking.cause("Millrace is still checking the rules of its firewall")];
    }
    if pairs.are_too_many() {
        let most = GROUPS - 1;
        return vec![
            Code::FirewallTooLarge
                .cause(format!("the rules of its firewall distinguish more than {most} groups of devices")),
        ];
    }
    let mut sentences: Vec<Cause> = Vec::new();
    let ruled = pairs.all().filter_map(|(_, _, pair)| match pair {
        Pair::Ruled { obstacle, .. } => Some(obstacle),
        _ => None,
    });
    for obstacle in pairs.hindrance().into_iter().chain(ruled) {
        let sentence = obstacle.code().cause(obstacle.to_string());
        match sentences.len() {
            _ if sentences.contains(&sentence) => (),
            MOST_REASONS => {
                sentences.push(Code::FirewallRule.cause("more rules: millrace firewall lists them"));
                break;
            }
            _ => sentences.push(sentence),
        }
    }
    if sentences.is_empty() {
        sentences.push(Code::FirewallTooLarge.cause(
            "the rules of its firewall and translated connections have too many addresses, or rules depend on set elements that expire",
        ));
    }
    sentences
}

/// May any packet bypass the rules?
pub(super) fn allows(table: Option<&PairTable>) -> bool {
    table.is_none_or(|table| table.pairs.iter().any(|row| *row != LINUX))
}

/// Does the new table leave packets to Linux that the old table forwarded?
pub(super) fn closes(old: Option<&PairTable>, new: Option<&PairTable>) -> bool {
    let Some(new) = new else { return false };
    old.is_none_or(|old| {
        let groups = 0..GROUPS as u8;
        let mut pairs = groups.clone().flat_map(|from| groups.clone().map(move |to| (from, to)));
        let closes = |(from, to)| ![LINUX, new.pair(from, to)].contains(&old.pair(from, to));
        old.exceptions != new.exceptions || pairs.any(closes)
    })
}

fn device(namespace: NamespaceId, link: &Link, links: &BTreeMap<u32, Link>) -> Device {
    let mut below = Vec::new();
    let mut at = link;
    while let Some((_, lower)) = at.below.filter(|(ns, _)| *ns == namespace)
        && let Some(lower) = links.get(&lower)
        && below.len() < MOST_BELOW
    {
        below.push(lower.name.clone());
        at = lower;
    }
    Device { ifindex: link.ifindex, name: link.name.clone(), below }
}
