//! Packets that wait behind earlier ones of their flow, which the kernel must get first.
//!
//! A worker that cannot forward a packet leaves it to the thread that gives packets to the kernel (`up.rs`), and that thread
//! may have to wait for a core. Meanwhile the worker may learn how to forward that flow itself: the next hop's MAC address
//! becomes known, for example. Its later packets would then overtake the earlier ones. So they wait until the thread has
//! given the earlier ones to the kernel.
//!
//! A flow is a path's packets to a destination, so paths do not wait for each other. The number of packets that wait is
//! limited, and so is their time. At a limit, packets leave before the kernel has got the earlier ones, so their flows may be
//! reordered. The same happens if the path moves to another worker.

use super::own;
use crate::{base::packet::behind_tags, user_plane::af_xdp::MOST_PATHS};
use logic::{paths::PathId, reason::Reason};
use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    net::IpAddr,
};

/// The most packets of a path that wait.
const MOST: usize = 64;
/// The most packets of a worker that wait. Their buffers are part of `WorkersSettings::in_hand`.
const MOST_OF_ALL: usize = 256;
/// Packets that have waited for this long leave as soon as the worker looks.
const LONGEST_NS: u64 = 10_000_000;

/// If a packet goes up for one of these reasons, the kernel forwards it, or drops it only because a route or a neighbour is
/// not known yet. The worker may soon forward later packets of the same flow itself.
pub(super) fn may_be_forwarded_soon(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::Unresolved
            | Reason::NoRoute
            | Reason::EgressNotAPort
            | Reason::TxNotReady
            | Reason::PortNotReady
            | Reason::RouterNotAccelerated
            | Reason::PolicyChanged
            | Reason::MapFull
            | Reason::Fallback
    )
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Flow {
    path: PathId,
    destination: Option<IpAddr>,
}

impl Flow {
    pub fn of_frame(path: PathId, frame: &[u8]) -> Flow {
        let packet = match behind_tags(frame) {
            Some((_, 0x0800 | 0x86dd, packet)) => packet,
            _ => &[],
        };
        Flow::of_packet(path, packet)
    }

    /// Of an IP packet.
    pub fn of_packet(path: PathId, packet: &[u8]) -> Flow {
        Flow { path, destination: own::ends(packet).map(|(_, destination)| destination) }
    }
}

struct Waiting<P> {
    flow: Flow,
    /// The kernel must have got the worker's packets up to this number.
    needs: u64,
    since_ns: u64,
    packet: P,
}

/// The packets of a worker that wait.
pub(super) struct Behind<P> {
    /// Packets that the kernel has not got yet and that others may have to wait for. Numbers begin at 1.
    ups: VecDeque<(u64, Flow)>,
    /// How many of these each path has.
    of_path: [u32; MOST_PATHS],
    /// By flow: the number of its last packet among these.
    last: HashMap<Flow, u64>,
    /// By path. No list is empty.
    waiting: BTreeMap<PathId, VecDeque<Waiting<P>>>,
    count: usize,
}

impl<P> Default for Behind<P> {
    fn default() -> Behind<P> {
        let (ups, last, waiting) = Default::default();
        Behind { ups, of_path: [0; MOST_PATHS], last, waiting, count: 0 }
    }
}

impl<P> Behind<P> {
    /// Whether no packets wait.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether a packet of this path may have to wait.
    pub fn concerns(&self, path: PathId) -> bool {
        self.of_path.get(usize::from(path)).is_some_and(|ups| *ups > 0) || self.waiting.contains_key(&path)
    }

    /// Notes that the worker's packet of this number goes to the kernel. `done`: how many packets the kernel has got.
    pub fn note(&mut self, flow: Flow, number: u64, done: u64) {
        self.forget(done);
        let Some(of_path) = self.of_path.get_mut(usize::from(flow.path)) else { return };
        *of_path += 1;
        self.ups.push_back((number, flow));
        self.last.insert(flow, number);
    }

    /// The position of the first packet of this flow, among those of its path that wait.
    fn first_of(&self, flow: Flow) -> Option<usize> {
        self.waiting.get(&flow.path)?.iter().position(|one| one.flow == flow)
    }

    /// Whether there is no room for another packet of this path.
    pub fn is_full(&self, path: PathId) -> bool {
        self.count >= MOST_OF_ALL || self.waiting.get(&path).is_some_and(|waiting| waiting.len() >= MOST)
    }

    /// Lets a packet wait if it would overtake an earlier one. Otherwise, or if there is no room, returns it. `done`: how many
    /// packets the kernel has got.
    pub fn hold(&mut self, flow: Flow, done: u64, now_ns: u64, packet: P) -> Option<P> {
        self.forget(done);
        let needs = self.last.get(&flow).copied();
        if needs.is_none() && self.first_of(flow).is_none() || self.is_full(flow.path) {
            return Some(packet);
        }
        let waiting = Waiting { flow, needs: needs.unwrap_or(0), since_ns: now_ns, packet };
        self.waiting.entry(flow.path).or_default().push_back(waiting);
        self.count += 1;
        None
    }

    /// Takes a packet that may leave now, because the kernel has got the earlier ones or the packet has waited too long.
    pub fn take(&mut self, done: u64, now_ns: u64) -> Option<P> {
        self.forget(done);
        let may_leave =
            |one: &Waiting<P>| one.needs <= done || now_ns.saturating_sub(one.since_ns) > LONGEST_NS;
        let first = |(path, waiting): (&PathId, &VecDeque<_>)| {
            waiting.front().is_some_and(may_leave).then_some(*path)
        };
        let path = self.waiting.iter().find_map(first)?;
        self.take_of(path)
    }

    /// Takes the next packet of this path in any case. Packets of its flow that arrive later do not wait for what this
    /// packet waited for.
    pub fn take_of(&mut self, path: PathId) -> Option<P> {
        self.take_at(path, 0)
    }

    /// Takes the next packet of this flow in any case.
    pub fn take_flow(&mut self, flow: Flow) -> Option<P> {
        self.take_at(flow.path, self.first_of(flow)?)
    }

    fn take_at(&mut self, path: PathId, at: usize) -> Option<P> {
        let waiting = self.waiting.get_mut(&path)?;
        let Waiting { flow, needs, packet, .. } = waiting.remove(at)?;
        if waiting.is_empty() {
            self.waiting.remove(&path);
        }
        self.count -= 1;
        if self.last.get(&flow) == Some(&needs) {
            self.last.remove(&flow);
        }
        Some(packet)
    }

    /// Takes the next packet of any path.
    pub fn take_any(&mut self) -> Option<P> {
        let path = *self.waiting.keys().next()?;
        self.take_of(path)
    }

    /// Forgets packets that the kernel has got.
    pub fn forget(&mut self, done: u64) {
        while let Some((number, flow)) = self.ups.front().filter(|up| up.0 <= done) {
            if self.last.get(flow) == Some(number) {
                self.last.remove(flow);
            }
            if let Some(of_path) = self.of_path.get_mut(usize::from(flow.path)) {
                *of_path -= 1;
            }
            self.ups.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn flow(path: PathId, last: u8) -> Flow {
        Flow { path, destination: Some([last; 16].into()) }
    }

    fn taken(behind: &mut Behind<u32>, done: u64, now_ns: u64) -> Vec<u32> {
        std::iter::from_fn(|| behind.take(done, now_ns)).collect()
    }

    #[test]
    fn a_flow_has_the_destination_behind_all_tags() {
        let mut packet = vec![0x45; 20];
        packet[16..].copy_from_slice(&[10, 1, 2, 3]);
        let framed = |tags: &[u8], packet: &[u8]| [&[0; 12], tags, packet].concat();
        let of_packet = Flow::of_packet(1, &packet);
        assert_eq!(of_packet.destination, Some([10, 1, 2, 3].into()));
        for tags in [&[8, 0][..], &[0x81, 0, 0, 7, 8, 0], &[0x88, 0xa8, 0, 1, 0x81, 0, 0, 2, 8, 0]] {
            assert_eq!(Flow::of_frame(1, &framed(tags, &packet)), of_packet);
        }
        assert_ne!(Flow::of_packet(2, &packet), of_packet);
        let mut packet = vec![0x60; 40];
        packet[39] = 1;
        let destination =
            Some([[0x60; 15].as_slice(), &[1]].concat()).and_then(|bytes| bytes.try_into().ok());
        let destination = destination.map(|bytes: [u8; 16]| bytes.into());
        assert_eq!(Flow::of_frame(1, &framed(&[0x86, 0xdd], &packet)).destination, destination);
        let nowhere =
            [&[][..], &[0x45], &[0x81, 0, 0, 7, 8], &framed(&[8, 6], &[0; 28]), &framed(&[8, 0], &[])];
        nowhere.into_iter().for_each(|bytes| assert_eq!(Flow::of_frame(1, bytes).destination, None));
    }

    #[test]
    fn a_packet_waits_for_earlier_ones_of_its_flow_only() {
        let mut behind = Behind::default();
        assert_eq!(behind.hold(flow(1, 1), 0, 0, 1), Some(1), "nothing went to the kernel");
        behind.note(flow(1, 1), 5, 0);
        assert!(behind.concerns(1) && !behind.concerns(2));
        for other in [flow(1, 2), flow(2, 1)] {
            assert_eq!(behind.hold(other, 4, 0, 2), Some(2));
        }
        assert_eq!(behind.hold(flow(1, 1), 5, 0, 3), Some(3), "the kernel has got it");
        assert!(!behind.concerns(1));
        behind.note(flow(1, 1), 6, 5);
        assert_eq!(behind.hold(flow(1, 1), 5, 0, 4), None);
        assert_eq!(taken(&mut behind, 5, LONGEST_NS), [0; 0]);
        // It still waits, so a later one does not overtake it.
        assert_eq!(behind.hold(flow(1, 1), 6, 0, 5), None);
        assert_eq!(taken(&mut behind, 6, 0), [4, 5]);
        assert!(behind.is_empty() && !behind.concerns(1));
    }

    #[test]
    fn paths_do_not_wait_for_each_other() {
        let mut behind = Behind::default();
        behind.note(flow(1, 1), 1, 0);
        behind.note(flow(2, 1), 2, 0);
        behind.note(flow(0, 1), 3, 0);
        for path in 0..3 {
            assert_eq!(behind.hold(flow(path, 1), 0, 0, path.into()), None);
        }
        assert_eq!(taken(&mut behind, 2, 0), [1, 2], "path 0 waits for a later one");
        // A path that is full takes no room from others.
        (1..MOST as u32).for_each(|n| assert_eq!(behind.hold(flow(0, 1), 2, 0, n), None));
        assert!(behind.is_full(0) && !behind.is_full(1));
        assert_eq!(behind.hold(flow(0, 1), 2, 0, 99), Some(99));
    }

    #[test]
    fn a_packet_that_has_waited_too_long_leaves_and_later_ones_do_not_wait() {
        let mut behind = Behind::default();
        behind.note(flow(1, 1), 1, 0);
        assert_eq!(behind.hold(flow(1, 1), 0, 5, 1), None);
        assert_eq!(taken(&mut behind, 0, 5 + LONGEST_NS), [0; 0]);
        assert_eq!(taken(&mut behind, 0, 6 + LONGEST_NS), [1]);
        assert_eq!(behind.hold(flow(1, 1), 0, 7 + LONGEST_NS, 2), Some(2));
        // Another packet for the kernel is waited for again.
        behind.note(flow(1, 1), 2, 0);
        assert_eq!(behind.hold(flow(1, 1), 0, 0, 3), None);
    }

    #[test]
    fn memory_is_bounded_by_the_packets_that_the_kernel_has_not_got() {
        let mut behind = Behind::<u32>::default();
        (1..=100_000).for_each(|n| behind.note(flow(1, n as u8), n, n.saturating_sub(10)));
        assert_eq!((behind.ups.len(), behind.last.len(), behind.of_path[1]), (10, 10, 10));
    }

    #[derive(Clone, Copy)]
    struct Sent {
        path: PathId,
        key: u8,
        number: u32,
        /// The last packet that the kernel must get before this one, and the time when this one arrived.
        needs: u64,
        since: u64,
    }

    proptest! {
        /// Packets of a flow leave in order. None overtakes one of the kernel's, unless there is no room or no time.
        #[test]
        fn packets_of_a_flow_are_in_order(steps in prop::collection::vec((0..8_u8, 0..2_u8, 0..2_u8), 1..600)) {
            let (mut behind, mut done, mut now) = (Behind::<Sent>::default(), 0, 0);
            // `excused`: packets of the kernel up to this number may have been overtaken.
            let (mut all, mut given, mut excused) = (0, [[0; 2]; 2], [[0; 2]; 2]);
            let (mut left, mut number) = (Vec::<Sent>::new(), 0);
            for (step, path, key) in steps {
                let (at, in_path) = (usize::from(path), usize::from(key));
                let flow = flow(path.into(), key);
                match step {
                    0 => {
                        all += 1;
                        // It does not overtake those that wait.
                        while let Some(sent) = behind.take_flow(flow) {
                            excused[at][in_path] = sent.needs;
                            left.push(sent);
                        }
                        given[at][in_path] = all;
                        behind.note(flow, all, done);
                    }
                    1 => done = (done + 1).min(all),
                    2 => now += LONGEST_NS / 4,
                    _ => {
                        number += 1;
                        while behind.is_full(flow.path) && let Some(sent) = behind.take_of(flow.path) {
                            excused[at][usize::from(sent.key)] = sent.needs;
                            left.push(sent);
                        }
                        let needs = given[at][in_path];
                        let sent = Sent { path: flow.path, key, number, needs, since: now };
                        if let Some(sent) = behind.hold(flow, done, now, sent) {
                            prop_assert!(sent.needs <= done.max(excused[at][in_path]));
                            left.push(sent);
                        }
                    }
                }
                while let Some(sent) = behind.take(done, now) {
                    let excused = &mut excused[usize::from(sent.path)][usize::from(sent.key)];
                    if now - sent.since > LONGEST_NS {
                        *excused = sent.needs;
                    }
                    prop_assert!(sent.needs <= done.max(*excused));
                    left.push(sent);
                }
            }
            left.extend(std::iter::from_fn(|| behind.take_any()));
            prop_assert!(behind.is_empty());
            prop_assert_eq!(left.len(), number as usize);
            for (path, key) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                let of_flow = left.iter().filter(|sent| (sent.path, sent.key) == (path, key));
                prop_assert!(of_flow.map(|sent| sent.number).is_sorted());
            }
        }
    }
}
