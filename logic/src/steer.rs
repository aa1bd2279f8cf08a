//! Decides which flows a NIC's classifier steers, and to which RX queues (Q3, Q4). The heaviest flows each go to a
//! queue of their next hop, where a row saves the lookup.
//!
//! The input is sampled packets, the output is rules. A flow gets a rule if it was heavy in two windows in a row. It
//! loses the rule if it was almost silent in five windows in a row. Moving a flow to another queue may reorder its
//! packets, so rules must not flap.

use crate::{
    plan::{InterfaceId, PortId},
    tables::Steered,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

/// The key of a flow, as a classifier distinguishes flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flow {
    /// The port where its packets arrive.
    pub port: PortId,
    /// The interface to which they belong.
    pub interface: InterfaceId,
    pub source: IpAddr,
    pub destination: IpAddr,
    /// IP protocol number.
    pub protocol: u8,
    /// Source and destination port; 0 in fragments.
    pub ports: [u16; 2],
}

impl Flow {
    const TCP: u8 = 6;
    const UDP: u8 = 17;

    /// Whether all classifiers can match it. Fragments have no ports.
    pub fn is_steerable(&self) -> bool {
        matches!(self.protocol, Self::TCP | Self::UDP) && self.ports != [0, 0]
    }
}

/// One sampled packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    pub flow: Flow,
    /// Length of the frame.
    pub bytes: u32,
}

/// The heaviest flows of a stream, in bounded memory. The algorithm is space-saving (Metwally, Agrawal, El Abbadi, ICDT
/// 2005). With C counters and N bytes in all, every flow of more than N/C bytes has a counter, and no counter is more
/// than N/C too high.
#[derive(Debug)]
pub struct HeavyHitters {
    capacity: usize,
    counters: BTreeMap<Flow, Counter>,
    by_bytes: BTreeSet<(u64, Flow)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counter {
    bytes: u64,
    /// The part of `bytes` that may belong to other flows.
    error: u64,
}

impl HeavyHitters {
    /// Makes this many counters, at least 1.
    pub fn new(capacity: usize) -> Self {
        Self { capacity: capacity.max(1), counters: BTreeMap::new(), by_bytes: BTreeSet::new() }
    }

    /// Counts a packet. A flow without a counter takes over the smallest one.
    pub fn add(&mut self, flow: Flow, bytes: u64) {
        let mut counter = match self.counters.remove(&flow) {
            Some(counter) => {
                self.by_bytes.remove(&(counter.bytes, flow));
                counter
            }
            None if self.counters.len() < self.capacity => Counter::default(),
            None => match self.by_bytes.pop_first() {
                Some((bytes, smallest)) => {
                    self.counters.remove(&smallest);
                    Counter { bytes, error: bytes }
                }
                None => Counter::default(),
            },
        };
        counter.bytes = counter.bytes.saturating_add(bytes);
        self.counters.insert(flow, counter);
        self.by_bytes.insert((counter.bytes, flow));
    }

    /// Flows with the least number of bytes that they can have. The flow with the highest counter is first.
    pub fn heaviest(&self) -> impl Iterator<Item = (Flow, u64)> + '_ {
        self.by_bytes.iter().rev().map(|(bytes, flow)| (*flow, bytes - self.error(flow)))
    }

    /// The least number of bytes that the flow can have.
    fn sure(&self, flow: &Flow) -> u64 {
        self.counters.get(flow).map_or(0, |c| c.bytes - c.error)
    }

    fn error(&self, flow: &Flow) -> u64 {
        self.counters.get(flow).map_or(0, |c| c.error)
    }
}

/// How long packets are counted before flows are compared.
pub const WINDOW_MS: u64 = 1000;
/// Counters of a port in a window. They are enough to find every flow with a fiftieth of the bytes.
const COUNTERS: usize = 512;
/// A flow is heavy if it has at least 1 / this of its port's bytes.
const HEAVY: u64 = 50;
/// A flow gets a rule after it was heavy in this many windows in a row.
const HEAVY_WINDOWS: u8 = 2;
/// A flow is quiet if it has less than 1 / this of its port's bytes.
const QUIET: u64 = 400;
/// A flow loses its rule after it was quiet in this many windows in a row.
const QUIET_WINDOWS: u8 = 5;
/// A flow takes another one's rule if it is this many times heavier.
const HEAVIER: u64 = 2;
/// The number of windows until a flow that the classifier refused is tried again.
const REFUSED_WINDOWS: u8 = 60;
/// The most refused flows that are remembered for a port.
const MOST_REFUSED: usize = 1024;

/// A flow, and the queue to which its packets are steered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rule {
    pub flow: Flow,
    pub queue: u8,
}

impl Rule {
    /// The row of the queue.
    pub fn steered(&self) -> Steered {
        let Flow { port, interface, destination, .. } = self.flow;
        Steered { port, queue: self.queue, interface, destination }
    }
}

/// A change of the classifier. Changes are made in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Delete(Rule),
    Insert(Rule),
}

/// The flows that are steered, and those that may soon be.
#[derive(Debug, Default)]
pub struct Steering {
    ports: BTreeMap<PortId, SteerPort>,
    window_ends_ms: Option<u64>,
}

#[derive(Debug)]
struct SteerPort {
    /// The queues that only get steered flows.
    queues: Vec<u8>,
    /// The most rules.
    rules: usize,
    window: HeavyHitters,
    bytes: u64,
    /// For each flow without a rule, the number of windows in a row in which it was heavy.
    candidates: BTreeMap<Flow, u8>,
    steered: BTreeMap<Flow, SteeredFlow>,
    refused: BTreeMap<Flow, u8>,
}

#[derive(Clone, Copy, Debug)]
struct SteeredFlow {
    queue: u8,
    /// The next hop that its queue serves.
    nexthop: u32,
    /// The number of windows in a row in which it was quiet.
    quiet: u8,
    /// Its bytes in the last window.
    bytes: u64,
}

impl Steering {
    /// Sets up a port. Its classifier takes this many rules. These queues, numbered below 64, get only steered flows.
    pub fn set_port(&mut self, port: PortId, queues: Vec<u8>, rules: usize) {
        let fresh = SteerPort {
            queues,
            rules,
            window: HeavyHitters::new(COUNTERS),
            bytes: 0,
            candidates: BTreeMap::new(),
            steered: BTreeMap::new(),
            refused: BTreeMap::new(),
        };
        self.ports.insert(port, fresh);
    }

    /// Removes a port that has no classifier any more. Its rules are gone.
    pub fn port_gone(&mut self, port: PortId) {
        self.ports.remove(&port);
    }

    /// Counts sampled packets.
    pub fn note(&mut self, samples: impl IntoIterator<Item = Sample>) {
        for Sample { flow, bytes } in samples {
            let Some(port) = self.ports.get_mut(&flow.port) else { continue };
            port.bytes = port.bytes.saturating_add(bytes.into());
            if flow.is_steerable() {
                port.window.add(flow, bytes.into());
            }
        }
    }

    /// The time of the next decision; `None` if no port has a classifier.
    pub fn due_ms(&self) -> Option<u64> {
        self.window_ends_ms.filter(|_| !self.ports.is_empty())
    }

    /// Returns the changes at the end of a window. `nexthop` returns the next hop of a lookup if there is exactly one.
    pub fn decide(&mut self, now_ms: u64, nexthop: impl Fn(&Flow) -> Option<u32>) -> Vec<Change> {
        let ends = *self.window_ends_ms.get_or_insert(now_ms.saturating_add(WINDOW_MS));
        if now_ms < ends {
            return Vec::new();
        }
        self.window_ends_ms = Some(now_ms.saturating_add(WINDOW_MS));
        self.ports.values_mut().flat_map(|port| port.decide(&nexthop)).collect()
    }

    /// Notes that the classifier refused a rule.
    pub fn refused(&mut self, rule: &Rule) {
        let Some(port) = self.ports.get_mut(&rule.flow.port) else { return };
        port.steered.remove(&rule.flow);
        if port.refused.len() < MOST_REFUSED {
            port.refused.insert(rule.flow, REFUSED_WINDOWS);
        }
    }

    /// All rules that should exist.
    pub fn rules(&self) -> impl Iterator<Item = Rule> + '_ {
        let steered = self.ports.values().flat_map(|port| &port.steered);
        steered.map(|(flow, state)| Rule { flow: *flow, queue: state.queue })
    }

    /// All rows that should exist.
    pub fn steered(&self) -> BTreeSet<Steered> {
        self.rules().map(|rule| rule.steered()).collect()
    }
}

impl SteerPort {
    fn decide(&mut self, nexthop: &impl Fn(&Flow) -> Option<u32>) -> Vec<Change> {
        let mut changes = self.release(nexthop);
        self.refused.retain(|_, windows| {
            *windows -= 1;
            *windows > 0
        });
        let heavy: Vec<(Flow, u64)> =
            self.window.heaviest().filter(|(_, bytes)| bytes * HEAVY >= self.bytes.max(1)).collect();
        let before = std::mem::take(&mut self.candidates);
        for (flow, bytes) in heavy {
            if self.steered.contains_key(&flow) || self.refused.contains_key(&flow) {
                continue;
            }
            let windows = before.get(&flow).map_or(1, |n| n.saturating_add(1));
            self.candidates.insert(flow, windows);
            if windows >= HEAVY_WINDOWS
                && let Some(nexthop) = nexthop(&flow)
            {
                changes.extend(self.place(flow, bytes, nexthop));
            }
        }
        self.window = HeavyHitters::new(COUNTERS);
        self.bytes = 0;
        changes
    }

    /// Flows lose their rule if they have ended or their next hop has changed.
    fn release(&mut self, nexthop: &impl Fn(&Flow) -> Option<u32>) -> Vec<Change> {
        let mut gone = Vec::new();
        for (flow, state) in &mut self.steered {
            state.bytes = self.window.sure(flow);
            let is_quiet = self.bytes == 0 || state.bytes * QUIET < self.bytes;
            state.quiet = if is_quiet { state.quiet + 1 } else { 0 };
            if state.quiet >= QUIET_WINDOWS || nexthop(flow) != Some(state.nexthop) {
                gone.push(Rule { flow: *flow, queue: state.queue });
            }
        }
        for rule in &gone {
            self.steered.remove(&rule.flow);
        }
        gone.into_iter().map(Change::Delete).collect()
    }

    /// Finds a rule and a queue for a flow, if there are any.
    fn place(&mut self, flow: Flow, bytes: u64, nexthop: u32) -> Vec<Change> {
        let mut changes = Vec::new();
        if self.steered.len() >= self.rules {
            let weakest = self.steered.iter().min_by_key(|(_, state)| state.bytes);
            let Some((weak, state)) = weakest.filter(|(_, s)| bytes > s.bytes * HEAVIER) else {
                return changes;
            };
            let rule = Rule { flow: *weak, queue: state.queue };
            if self.queue_for(&flow, nexthop, Some(&rule.flow)).is_none() {
                return changes;
            }
            self.steered.remove(&rule.flow);
            changes.push(Change::Delete(rule));
        }
        let Some(queue) = self.queue_for(&flow, nexthop, None) else { return changes };
        self.candidates.remove(&flow);
        self.steered.insert(flow, SteeredFlow { queue, nexthop, quiet: 0, bytes });
        changes.push(Change::Insert(Rule { flow, queue }));
        changes
    }

    /// Returns a queue of the next hop in which no other destination needs the same row, or else an unused queue.
    /// `without`: a flow that is about to lose its rule.
    fn queue_for(&self, flow: &Flow, nexthop: u32, without: Option<&Flow>) -> Option<u8> {
        let fits = |queue: u8| {
            let row = Rule { flow: *flow, queue }.steered();
            self.steered.iter().filter(|(f, s)| s.queue == queue && Some(*f) != without).all(|(f, s)| {
                let other = Rule { flow: *f, queue }.steered();
                s.nexthop == nexthop && (other == row || other.row() != row.row())
            })
        };
        let used = |queue: u8| self.steered.values().any(|s| s.queue == queue);
        let fitting = || self.queues.iter().copied().filter(|queue| fits(*queue));
        fitting().find(|queue| used(*queue)).or_else(|| fitting().next())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Flow n, whose row is n modulo 4.
    fn flow(n: u16) -> Flow {
        let is_way = |a: &IpAddr| {
            let steered = Steered { port: 0, queue: 0, interface: 1, destination: *a };
            steered.row() == Some(usize::from(n % 4))
        };
        let mut addresses = (0..=255).map(|last| IpAddr::from([10, (n >> 8) as u8, n as u8, last]));
        let destination = addresses.find(is_way).unwrap();
        Flow {
            port: 0,
            interface: 1,
            source: IpAddr::from([10, 0, 0, 1]),
            destination,
            protocol: Flow::UDP,
            ports: [1000, n],
        }
    }

    proptest! {
        #[test]
        fn counters_are_as_good_as_promised(
            capacity in 1usize..12,
            packets in prop::collection::vec((0u16..20, 0u64..2000), 0..300),
        ) {
            let mut hitters = HeavyHitters::new(capacity);
            let mut exact: BTreeMap<Flow, u64> = BTreeMap::new();
            for (n, bytes) in &packets {
                hitters.add(flow(*n), *bytes);
                *exact.entry(flow(*n)).or_default() += bytes;
            }
            let total: u64 = exact.values().sum();
            prop_assert!(hitters.counters.len() <= capacity && hitters.by_bytes.len() == hitters.counters.len());
            for (flow, c) in &hitters.counters {
                prop_assert!(c.bytes - c.error <= exact[flow] && exact[flow] <= c.bytes);
                prop_assert!(c.error <= total / capacity as u64);
            }
            for (flow, bytes) in &exact {
                prop_assert!(*bytes <= total / capacity as u64 || hitters.counters.contains_key(flow));
            }
        }

        /// In every case there are no more rules than allowed, each queue has flows of one next hop, no two
        /// destinations share a row, and changes fit the state.
        #[test]
        fn rules_keep_within_their_bounds(
            windows in prop::collection::vec(prop::collection::vec((0u16..40, 1u32..5000), 0..30), 1..20),
            rules in 1usize..6, hops in 1u32..5,
        ) {
            let mut steering = Steering::default();
            steering.set_port(0, vec![2, 3, 4], rules);
            let mut installed = BTreeSet::new();
            for (i, window) in windows.iter().enumerate() {
                steering.note(window.iter().map(|(n, bytes)| Sample { flow: flow(*n), bytes: *bytes }));
                // Every tenth flow goes to the kernel, and next hops change now and then.
                let nexthop = |f: &Flow| (f.ports[1] % 10 != 9).then(|| u32::from(f.ports[1]) % hops + i as u32 / 7);
                for change in steering.decide(i as u64 * WINDOW_MS, nexthop) {
                    match change {
                        Change::Insert(rule) => prop_assert!(installed.insert(rule)),
                        Change::Delete(rule) => prop_assert!(installed.remove(&rule)),
                    }
                    prop_assert!(installed.len() <= rules);
                }
                prop_assert_eq!(steering.rules().collect::<BTreeSet<_>>(), installed.clone());
                let mut rows = BTreeMap::new();
                let mut of_queue = BTreeMap::new();
                for rule in &installed {
                    let hop = steering.ports[&0].steered[&rule.flow].nexthop;
                    prop_assert_eq!(*of_queue.entry(rule.queue).or_insert(hop), hop);
                    let steered = rule.steered();
                    prop_assert_eq!(*rows.entry(steered.row()).or_insert(steered), steered);
                }
            }
        }
    }

    /// Feeds windows with a number of bytes per flow, and returns the changes after each.
    struct Case {
        steering: Steering,
        now_ms: u64,
    }

    impl Case {
        fn new(queues: Vec<u8>, rules: usize) -> Case {
            let mut steering = Steering::default();
            steering.set_port(0, queues, rules);
            assert_eq!(steering.decide(0, |_| None), []);
            Case { steering, now_ms: 0 }
        }

        fn window(&mut self, flows: &[(u16, u32)]) -> Vec<Change> {
            self.steering.note(flows.iter().map(|(n, bytes)| Sample { flow: flow(*n), bytes: *bytes }));
            assert_eq!(self.steering.decide(self.now_ms + WINDOW_MS - 1, |_| Some(7)), []);
            self.now_ms += WINDOW_MS;
            // The next hop is the hundreds digit of the flow.
            self.steering.decide(self.now_ms, |f| Some(u32::from(f.ports[1]) / 100))
        }
    }

    fn insert(n: u16, queue: u8) -> Change {
        Change::Insert(Rule { flow: flow(n), queue })
    }

    fn delete(n: u16, queue: u8) -> Change {
        Change::Delete(Rule { flow: flow(n), queue })
    }

    #[test]
    fn heavy_flows_get_a_queue_of_their_next_hop() {
        let mut case = Case::new(vec![4, 5], 8);
        let traffic = [(101, 500), (202, 400), (103, 90), (301, 50), (104, 1)];
        assert_eq!(case.window(&traffic), [], "one window is not enough");
        assert_eq!(case.window(&traffic), [insert(101, 4), insert(202, 5), insert(103, 4)]);
        assert_eq!(
            case.window(&traffic),
            [],
            "no queue is left for the third next hop, and the fourth flow is light"
        );
        assert_eq!(case.steering.steered().len(), 3);
    }

    #[test]
    fn rules_do_not_flap() {
        let mut case = Case::new(vec![4], 8);
        for _ in 0..5 {
            assert_eq!(case.window(&[(101, 1000)]), []);
            assert_eq!(case.window(&[(102, 1000), (101, 1)]), []);
        }
        assert_eq!(case.steering.rules().count(), 0, "heavy every second window only");
        case.window(&[(101, 1000)]);
        assert_eq!(case.window(&[(101, 1000)]), [insert(101, 4)]);
        for quiet in 0..20 {
            let bytes = if quiet % 5 == 4 { 10 } else { 0 };
            assert_eq!(case.window(&[(101, bytes)]), [], "never quiet for long");
        }
    }

    #[test]
    fn a_flow_that_ended_is_released_and_its_queue_is_free() {
        let mut case = Case::new(vec![4], 8);
        case.window(&[(101, 9)]);
        assert_eq!(case.window(&[(101, 9)]), [insert(101, 4)]);
        for _ in 0..4 {
            assert_eq!(case.window(&[(201, 9)]), []);
        }
        assert_eq!(case.window(&[(201, 9)]), [delete(101, 4), insert(201, 4)]);
        for _ in 0..4 {
            assert_eq!(case.window(&[]), []);
        }
        assert_eq!(case.window(&[]), [delete(201, 4)], "nothing comes at all");
    }

    #[test]
    fn a_much_heavier_flow_takes_a_rule_over() {
        let mut case = Case::new(vec![4], 2);
        let both = [(101, 100), (102, 50)];
        case.window(&both);
        assert_eq!(case.window(&both), [insert(101, 4), insert(102, 4)]);
        let heavier = [(101, 100), (102, 50), (103, 100)];
        for _ in 0..4 {
            assert_eq!(case.window(&heavier), [], "twice as heavy is not enough");
        }
        assert_eq!(case.window(&[(101, 100), (102, 50), (103, 101)]), [delete(102, 4), insert(103, 4)]);
    }

    #[test]
    fn a_refused_flow_waits_and_a_moved_route_moves_its_flows() {
        let mut case = Case::new(vec![4, 5], 2);
        case.window(&[(101, 9)]);
        assert_eq!(case.window(&[(101, 9)]), [insert(101, 4)]);
        case.steering.refused(&Rule { flow: flow(101), queue: 4 });
        for _ in 0..REFUSED_WINDOWS {
            assert_eq!(case.window(&[(101, 9)]), []);
        }
        assert_eq!(case.window(&[(101, 9)]), [insert(101, 4)]);
        case.steering.note([Sample { flow: flow(101), bytes: 9 }]);
        case.now_ms += WINDOW_MS;
        assert_eq!(case.steering.decide(case.now_ms, |_| Some(8)), [delete(101, 4)]);
        case.window(&[(101, 9)]);
    }

    #[test]
    fn flows_that_some_classifiers_cannot_match_are_not_steered() {
        let mut case = Case::new(vec![4], 8);
        let fragment = Flow { ports: [0, 0], ..flow(101) };
        let icmp = Flow { protocol: 1, ..flow(101) };
        let elsewhere = Flow { port: 3, ..flow(101) };
        for _ in 0..3 {
            case.steering.note([fragment, icmp, elsewhere].map(|flow| Sample { flow, bytes: 100 }));
            assert_eq!(case.window(&[]), []);
        }
    }
}
