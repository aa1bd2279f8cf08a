//! Counters that outlive their maps: across growth, restarts, and new owners of reused numbers.
//!
//! In every generation, the kernel plane counts from zero, by number. A base is added to these counts: the sum of
//! what earlier generations counted. When a number gets a new owner, its base becomes the negative of its present
//! count; all arithmetic wraps. So the new owner starts at zero, and memory that the program writes is not written
//! here. A state file has the base, and what the numbers mean, for the next daemon.

use crate::{
    base::{guard, instance::Instance},
    plane::{Charge, Counters, InterfaceCount},
};
use anyhow::Result;
use logic::{
    plan::{InterfaceId, PortId, RouterId},
    reason::Reason,
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, path::PathBuf, time::Duration};

/// The shortest time between two writes of the state file.
const SAVE: Duration = Duration::from_secs(1);

/// The names of ports, routers and interfaces in a generation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Names {
    /// By port number.
    pub ports: BTreeMap<u8, String>,
    /// By router number.
    pub routers: BTreeMap<RouterId, String>,
    /// By interface number: router, interface.
    pub interfaces: BTreeMap<InterfaceId, (String, String)>,
}

/// The base that is added to a generation's counters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Totals {
    base: Counters,
    file: PathBuf,
    /// Names have changed since the file was written.
    pub unsaved: bool,
    /// When the file was last written because it was due, CLOCK_MONOTONIC.
    pub saved: Duration,
}

/// What a daemon leaves for the next one: names, and its base, by number.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SavedTotals {
    /// Number of the generation in charge.
    pub generation: u64,
    pub names: Names,
    packets: u64,
    interfaces: BTreeMap<InterfaceId, [u64; 8]>,
    /// Payer (`router`, `port`, `other`), number, reason name.
    charges: Vec<(String, u8, String, u64)>,
}

impl Totals {
    /// Those of a daemon that has just started.
    pub fn new(file: PathBuf) -> Self {
        Self { file, unsaved: true, ..Self::default() }
    }

    /// When to write the file again; `None`: it is up to date.
    pub fn due(&self) -> Option<Duration> {
        self.unsaved.then_some(self.saved + SAVE)
    }

    /// Writes the file.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn save(&mut self, generation: u64, names: Names) -> Result<()> {
        self.unsaved = false;
        let state = self.state(generation, names);
        Ok(guard::replace(&self.file, &serde_json::to_vec(&state)?)?)
    }

    /// The sum of all counts.
    pub fn of(&self, current: &Counters) -> Counters {
        sum(&self.base, current)
    }

    /// Adds the counts of a generation that ends to the base.
    pub fn absorb(&mut self, ended: &Counters) {
        self.base = sum(&self.base, ended);
    }

    /// Makes the next owners of these numbers start at zero.
    pub fn forget(&mut self, interfaces: &[InterfaceId], routers: &[RouterId], current: &Counters) {
        for id in interfaces {
            let negative = negate(current.interfaces.get(id).copied().unwrap_or_default());
            self.base.interfaces.insert(*id, negative);
        }
        self.forget_payers(|payer| matches!(payer, Charge::Router(r) if routers.contains(&r)), current);
    }

    /// Likewise for ports.
    pub fn forget_ports(&mut self, ports: &[PortId], current: &Counters) {
        self.forget_payers(|payer| matches!(payer, Charge::Port(p) if ports.contains(&p)), current);
    }

    fn forget_payers(&mut self, is_gone: impl Fn(Charge) -> bool, current: &Counters) {
        self.base.charges.retain(|(payer, _), _| !is_gone(*payer));
        for (key, packets) in current.charges.iter().filter(|((payer, _), _)| is_gone(*payer)) {
            self.base.charges.insert(*key, packets.wrapping_neg());
        }
    }

    /// As the next daemon will read it.
    fn state(&self, generation: u64, names: Names) -> SavedTotals {
        let payer = |charge: Charge| match charge {
            Charge::Router(id) => ("router", id),
            Charge::Port(id) => ("port", id),
            Charge::Other => ("other", 0),
        };
        SavedTotals {
            generation,
            names,
            packets: self.base.packets,
            interfaces: self.base.interfaces.iter().map(|(id, count)| (*id, array(*count))).collect(),
            charges: self
                .base
                .charges
                .iter()
                .map(|((charge, reason), n)| {
                    (payer(*charge).0.into(), payer(*charge).1, reason.name().into(), *n)
                })
                .collect(),
        }
    }

    /// Continues the counts of a dead daemon, from its `state` and the counters of its generation (`counted`). Counts
    /// go to what has the same name `now`.
    pub fn inherit(&mut self, state: &SavedTotals, counted: &Counters, now: &Names) {
        let old = sum(&state.base(), counted);
        let router = |id: RouterId| {
            let name = state.names.routers.get(&id)?;
            now.routers.iter().find(|(_, n)| *n == name).map(|(id, _)| *id)
        };
        let port = |id: u8| {
            let name = state.names.ports.get(&id)?;
            now.ports.iter().find(|(_, n)| *n == name).map(|(id, _)| *id)
        };
        let by_name: BTreeMap<_, _> = now.interfaces.iter().map(|(id, name)| (name, *id)).collect();
        let mut base = Counters { packets: old.packets, ..Counters::default() };
        for (id, count) in old.interfaces {
            if let Some(new) = state.names.interfaces.get(&id).and_then(|name| by_name.get(name)) {
                base.interfaces.insert(*new, count);
            }
        }
        for ((payer, reason), packets) in old.charges {
            let payer = match payer {
                Charge::Router(id) => router(id).map(Charge::Router),
                Charge::Port(id) => port(id).map(Charge::Port),
                Charge::Other => Some(Charge::Other),
            };
            payer.map(|payer| base.charges.insert((payer, reason), packets));
        }
        self.base = sum(&self.base, &base);
    }
}

impl SavedTotals {
    /// Reads what an earlier daemon of the instance left. `None`: there is nothing, or another version wrote it in
    /// another form.
    pub fn read(instance: &Instance) -> Option<SavedTotals> {
        serde_json::from_slice(&guard::read_ours(&instance.state_file()).ok()?).ok()
    }

    fn base(&self) -> Counters {
        let reason = |name: &str| Reason::all().find(|r| r.name() == name);
        let payer = |kind: &str, id: u8| match kind {
            "router" => Charge::Router(id),
            "port" => Charge::Port(id),
            _ => Charge::Other,
        };
        Counters {
            packets: self.packets,
            interfaces: self.interfaces.iter().map(|(id, words)| (*id, count(*words))).collect(),
            charges: self
                .charges
                .iter()
                .filter_map(|(kind, id, name, n)| Some(((payer(kind, *id), reason(name)?), *n)))
                .collect(),
        }
    }
}

fn sum(a: &Counters, b: &Counters) -> Counters {
    let mut sum = a.clone();
    sum.packets = a.packets.wrapping_add(b.packets);
    for (id, count) in &b.interfaces {
        sum.interfaces.entry(*id).or_default().add(*count);
    }
    for (key, packets) in &b.charges {
        let total = sum.charges.entry(*key).or_default();
        *total = total.wrapping_add(*packets);
    }
    sum.interfaces.retain(|_, count| *count != InterfaceCount::default());
    sum.charges.retain(|_, packets| *packets != 0);
    sum
}

fn array(mut c: InterfaceCount) -> [u64; 8] {
    c.fields().map(|field| *field)
}

fn count(words: [u64; 8]) -> InterfaceCount {
    let mut count = InterfaceCount::default();
    for (field, word) in count.fields().into_iter().zip(words) {
        *field = word;
    }
    count
}

fn negate(c: InterfaceCount) -> InterfaceCount {
    count(array(c).map(u64::wrapping_neg))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(interface: InterfaceId, router: RouterId, n: u64) -> Counters {
        Counters {
            packets: n,
            interfaces: [(interface, InterfaceCount { other_packets: n, ..Default::default() })].into(),
            charges: [((Charge::Router(router), Reason::Arp), n), ((Charge::Port(0), Reason::NotOurMac), n)]
                .into(),
        }
    }

    #[test]
    fn a_new_owner_of_a_number_starts_at_zero() {
        let mut totals = Totals::default();
        totals.absorb(&counted(1, 1, 5));
        totals.forget(&[1], &[1], &counted(1, 1, 7));
        let total = totals.of(&counted(1, 1, 10));
        assert_eq!(total.interfaces[&1].other_packets, 3);
        assert_eq!(total.charges[&(Charge::Router(1), Reason::Arp)], 3);
        assert_eq!(total.charges[&(Charge::Port(0), Reason::NotOurMac)], 15, "the port kept its owner");
    }

    #[test]
    fn a_restarted_daemon_continues_by_name() {
        let names = |router, interface, id| Names {
            ports: [(0, "eth1".into())].into(),
            routers: [(router, "red".into())].into(),
            interfaces: [(interface, ("red".into(), id))].into(),
        };
        let mut first = Totals::default();
        first.absorb(&counted(1, 1, 5));
        let text = serde_json::to_string(&first.state(1, names(1, 1, "m0".into()))).unwrap();
        let state: SavedTotals = serde_json::from_str(&text).unwrap();

        let mut second = Totals::default();
        second.inherit(&state, &counted(1, 1, 2), &names(4, 9, "m0".into()));
        let total = second.of(&counted(9, 4, 1));
        assert_eq!(total.interfaces[&9].other_packets, 8);
        assert_eq!(total.charges[&(Charge::Router(4), Reason::Arp)], 8);
        assert!(!total.interfaces.contains_key(&1));

        let mut other = Totals::default();
        other.inherit(&state, &counted(1, 1, 2), &names(4, 9, "m1".into()));
        assert!(other.of(&Counters::default()).interfaces.is_empty(), "another interface does not inherit");
    }
}
