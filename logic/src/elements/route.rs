//! `route`: finds the next hop of a packet in the forwarding table that both planes share.
//!
//! - **Input**: IP packets whose headers `check` has checked.
//! - **Output**, unchanged: packets that Linux would forward and that need nothing special. Their next hop is known
//!   from here on, with its MAC address and port (`rewrite` sends them there). There is room for its VLAN tags. The
//!   next hop is marked as used, so that it is kept alive.
//! - **Parameters**: none. The caller gives the tables.
//!
//! It passes packets up for the first of these reasons, in the order of `forward_ipv4` and `forward_ipv6` in `bpf/`:
//! `no_route`; the reason in the next hop (`local`, `broadcast`, `special_route`, `unresolved` ...;
//! `neighbour_discovery` instead of `local` for such packets); `over_mtu` of a connected route; `bad_source`,
//! `reverse_path`, `source_unsure` (RFC 3704, `fib_validate_source`); `ttl_exceeded`; `same_interface`; `over_mtu`;
//! `tx_not_ready`; `no_headroom`.
//!
//! If an element made the packet here (`esp_encrypt` in tunnel mode), its source is our own and is not validated, and
//! neither is its TTL. It may leave where the inner packet arrived. Linux does the same for its own packets. A packet
//! that `esp_decrypt` decrypted counts as received. If its source is ours, it is a `bad_source`, as in Linux.
//!
//! # Many lookups at once
//! A lookup in a full table waits for memory, mostly once (DIR-24-8; `fib` gives the reasons). A core can wait for many
//! words at once, if it reaches their loads. So all packets take the first step of their lookups in one short loop, and
//! those that need more take the next step together. Packets are decided one by one after that. Measured with a
//! router's chain as in `batch`, medians of two rounds, in nanoseconds per packet:
//!
//! | | this loop | packet by packet |
//! |---|---|---|
//! | 1,024 flows | 28.5 | 26.7 to 27.6 |
//! | 1,000,000 random destinations in 901,899 real prefixes | 60.2 | 113.6 |
//!
//! About 9 ns of these are the copy from a trace that is in no cache. With a first step of its own, which does not look
//! at the result, the values of this loop become 24.3 and 43.1 ns (`lab/runs/2026-11-23-elements-first-step.txt`).
//!
//! The word of each first step is prefetched as soon as the address is known. 1,000,000 random destinations take 33.9
//! instead of 38.7 ns, and 1,024 flows take the same (on another machine; `lab/runs/2026-11-25-joined.txt`).

mod hop;
mod joined;
mod source;

use super::{
    Batch, Contract, Counters, Element, Joined, Known, MOST_PACKETS, Now, Part,
    check::IPV6,
    packet::{Family, Packet, Verdict},
};
use crate::{
    fib::{Root4, Slot, Walk},
    memory::Memory,
    net::Address,
    plan::RouterId,
    tables::{RouterRow, nexthop_rows},
};
use hop::Given;
use prefetch_index::prefetch_index;
use std::sync::atomic::Ordering::Acquire;

/// See the head of this file.
pub struct Route<M> {
    memory: M,
    /// The leaves found, in the order of the packets without a verdict.
    leaves: Box<[Slot; MOST_PACKETS]>,
    /// The first steps, in the same order.
    first4: Box<[First; MOST_PACKETS]>,
    open4: Vec<Open<u32>>,
    open6: Vec<Open<u128>>,
}

/// An IPv4 lookup before its first step, which is the last step for nearly all lookups (DIR-24-8).
#[derive(Clone, Copy)]
struct First {
    /// The index of the step in `fib`.
    at: usize,
    address: u32,
    /// The number of address bits up to the end of that step.
    bits: u8,
}

impl First {
    /// For a packet without an IPv4 lookup.
    const NOWHERE: First = First { at: usize::MAX, address: 0, bits: 0 };
}

/// A lookup that is not finished.
struct Open<A> {
    packet: usize,
    address: A,
    walk: Walk,
}

impl<M: Memory> Route<M> {
    /// Uses the tables in this memory.
    pub fn new(memory: M) -> Self {
        let leaves = Box::new([Slot::NO_ROUTE; MOST_PACKETS]);
        let first4 = Box::new([First::NOWHERE; MOST_PACKETS]);
        Route { memory, leaves, first4, open4: Vec::new(), open6: Vec::new() }
    }

    /// Finds leaves, and calls a function for each packet before that and after it. A verdict comes with the number of
    /// the element that gives it. Returns how many verdicts each element gave before and after.
    #[inline]
    fn run_between<const ELEMENTS: usize>(
        &mut self,
        now: &Now,
        batch: &mut Batch<'_>,
        mut counters: [&mut Counters; ELEMENTS],
        before: impl Fn(&mut Packet<'_>) -> Option<(usize, Verdict)>,
        behind: impl Fn(&Given<'_, M>, &mut Packet<'_>, Slot) -> Option<(usize, Verdict)>,
    ) -> [[usize; ELEMENTS]; 2] {
        let mut lookups = 0;
        let Route { memory, first4, open6, .. } = self;
        let mut router = Router::of(memory, 0);
        let given_before = batch.each_of(counters.each_mut().map(|counters| &mut **counters), |packet| {
            if let Some(verdict) = before(packet) {
                return Some(verdict);
            }
            if packet.ingress.router != router.id {
                router = Router::of(memory, packet.ingress.router);
            }
            let first = first4.get_mut(lookups)?;
            if packet.headers.family == Family::V4 {
                let (address, root) = (packet.headers.destination, router.root4);
                let at = root.place(address);
                prefetch_index(memory.fib(), at);
                *first = First { at, address, bits: root.bits() };
            } else {
                *first = First::NOWHERE;
                open6.extend(Open::of(lookups, packet, router.row));
            }
            lookups += 1;
            None
        });
        self.step4(lookups);
        finish(&self.memory, &mut self.open4, &mut self.leaves);
        finish(&self.memory, &mut self.open6, &mut self.leaves);
        let (memory, mut leaves) = (&self.memory, self.leaves.iter());
        let mut given = Given { memory, rows: nexthop_rows(memory), router: RouterRow::of(memory, 0), now };
        let mut router = 0;
        let given_behind = batch.each_of(counters, |packet| {
            if packet.ingress.router != router {
                router = packet.ingress.router;
                given.router = RouterRow::of(memory, router);
            }
            behind(&given, packet, leaves.next().copied().unwrap_or(Slot::NO_ROUTE))
        });
        [given_before, given_behind]
    }

    /// Takes the first step of the IPv4 lookups, and notes those that need another.
    fn step4(&mut self, lookups: usize) {
        let Route { memory, first4, leaves, open4, .. } = self;
        let (fib, first4) = (memory.fib(), first4.get(..lookups).unwrap_or_default());
        // The loop is short and does not look at the results, so a core has many of these loads under way at once.
        let mut leaves_only = true;
        for (first, leaf) in first4.iter().zip(leaves.iter_mut()) {
            *leaf = fib.get(first.at).map_or(Slot::NO_ROUTE, |word| Slot(word.load(Acquire)));
            leaves_only &= leaf.is_leaf();
        }
        if leaves_only {
            return;
        }
        for (packet, (first, leaf)) in first4.iter().zip(leaves.iter()).enumerate() {
            if !leaf.is_leaf() {
                open4.push(Open { packet, address: first.address, walk: Walk::after(first.bits, *leaf) });
            }
        }
    }
}

/// The router of the previous packet, which mostly is that of the next one.
struct Router<'m> {
    id: RouterId,
    row: RouterRow<'m>,
    root4: Root4,
}

impl<'m> Router<'m> {
    fn of(memory: &'m impl Memory, id: RouterId) -> Self {
        let row = RouterRow::of(memory, id);
        Router { id, row, root4: Root4::new(row.root4()) }
    }
}

impl Open<u128> {
    /// The lookup of an IPv6 packet. `number` is its position among the packets without a verdict.
    #[inline(never)]
    fn of(number: usize, packet: &Packet<'_>, router: RouterRow<'_>) -> Option<Self> {
        let address = destination6(packet).filter(|_| packet.headers.family == Family::V6)?;
        Some(Open { packet: number, address, walk: Walk::new(router.root6(), address) })
    }
}

/// Takes steps of all lookups until all are finished.
fn finish<A: Address>(memory: &impl Memory, open: &mut Vec<Open<A>>, leaves: &mut [Slot; MOST_PACKETS]) {
    while !open.is_empty() {
        let mut done = 0;
        // The loop is short, so a core has many of these loads under way at once.
        for lookup in open.iter_mut() {
            lookup.walk = lookup.walk.step(memory, lookup.address);
            if let (Some(leaf), Some(place)) = (lookup.walk.leaf(), leaves.get_mut(lookup.packet)) {
                *place = leaf;
                done += 1;
            }
        }
        if done == open.len() {
            open.clear();
        } else {
            open.retain(|lookup| lookup.walk.leaf().is_none());
        }
    }
}

/// The destination address in host byte order.
#[inline]
fn destination6(packet: &Packet<'_>) -> Option<u128> {
    packet.header::<IPV6>()?.last_chunk().map(|address| u128::from_be_bytes(*address))
}

impl<M: Memory + Send> Element for Route<M> {
    fn name(&self) -> &'static str {
        "route"
    }

    fn contract(&self) -> Contract {
        Contract {
            needs: Known::HEADERS,
            gives: Known::NEXT_HOP,
            passes_up: true,
            part: Some(Part::Route),
            ..Contract::default()
        }
    }

    fn run(&mut self, now: &Now, batch: &mut Batch<'_>, counters: &mut Counters) {
        let decide = |given: &Given<'_, M>, packet: &mut Packet<'_>, leaf| {
            let reason = given.decide(packet, leaf).err()?;
            Some((0, Verdict::Up(reason)))
        };
        self.run_between(now, batch, [counters], |_| None, decide);
    }

    fn joined(&mut self) -> Option<&mut dyn Joined> {
        Some(self)
    }
}
