//! `route`: finds where a packet goes, in the forwarding table that both planes share.
//!
//! Comes in: IP packets whose headers `check` has found right. Goes on, unwritten: those that Linux would forward and that need nothing
//! special; their next hop is known from here on, its MAC address and port too (`rewrite` sends them there), and room for its VLAN
//! tags is there. The next hop is marked as used, so that it is kept alive.
//!
//! Goes up, for the first of these reasons, in the order of `forward_ipv4` and `forward_ipv6` in `bpf/`: `no_route`; what the next hop says
//! (`local`, `broadcast`, `special_route`, `unresolved` ...; `neighbour_discovery` in place of `local` where it is that); `over_mtu` of a
//! connected route; `bad_source`, `reverse_path`, `source_unsure` (RFC 3704, `fib_validate_source`); `ttl_exceeded`; `same_interface`;
//! `over_mtu`; `tx_not_ready`; `no_headroom`. Parameters: none; the tables are given.
//!
//! Of a packet that an element made here (`esp_encrypt` in tunnel mode) the source, which is our own, is not validated, nor its TTL, and it may leave where
//! what is inside came in: so Linux does with its own. What `esp_decrypt` took out of one is a packet that came: with a source of ours it is a `bad_source`, as Linux has it.
//!
//! # Many lookups at once
//! A lookup in a full table waits for memory, mostly once (DIR-24-8, `fib` says why), and a core can wait for many words at once, if it
//! comes to them: so all packets take the first step of their lookups in one short loop, those who need more the next, and only
//! then is it decided packet by packet. A router's chain, measured as in `batch`, medians of two rounds, against lookups packet by packet: 1,024
//! flows 28.5 and 26.7 to 27.6 ns; 1,000,000 random destinations in 901,899 real prefixes 60.2 and 113.6, of which about 9
//! are the copy from a trace that is in no cache. A first step of its own, that asks nothing of what comes, made of these 24.3 and 43.1
//! (`lab/runs/2026-11-23-elements-first-step.txt`).
//!
//! The word of each first step is asked for as soon as the address is known: 1,000,000 random destinations 33.9 instead of 38.7 ns, 1,024 flows the same
//! (on another machine; `lab/runs/2026-11-25-joined.txt`).

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
    /// What was found, by the order of the packets that have no verdict.
    leaves: Box<[Slot; MOST_PACKETS]>,
    /// In the same order.
    first4: Box<[First; MOST_PACKETS]>,
    open4: Vec<Open<u32>>,
    open6: Vec<Open<u128>>,
}

/// A lookup of IPv4 before its first step, which is the last of nearly all (DIR-24-8).
#[derive(Clone, Copy)]
struct First {
    /// Where that looks.
    at: usize,
    address: u32,
    /// Of the address, so many bits are before what is behind that step.
    bits: u8,
}

impl First {
    /// Of a packet that has none.
    const NOWHERE: First = First { at: usize::MAX, address: 0, bits: 0 };
}

/// A lookup that is not done.
struct Open<A> {
    packet: usize,
    address: A,
    walk: Walk,
}

impl<M: Memory> Route<M> {
    /// By the tables in this memory.
    pub fn new(memory: M) -> Self {
        let leaves = Box::new([Slot::NO_ROUTE; MOST_PACKETS]);
        let first4 = Box::new([First::NOWHERE; MOST_PACKETS]);
        Route { memory, leaves, first4, open4: Vec::new(), open6: Vec::new() }
    }

    /// Finds leaves, and does something with each packet before and behind that; a verdict comes with the number of the element that gives it.
    /// How many each gave before, and behind.
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

    /// Takes the first step of so many lookups of IPv4, and notes those that need another.
    fn step4(&mut self, lookups: usize) {
        let Route { memory, first4, leaves, open4, .. } = self;
        let (fib, first4) = (memory.fib(), first4.get(..lookups).unwrap_or_default());
        // So short that a core has many of these loads under way at once: nothing is asked of what comes.
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

/// The router of the packets before, which is mostly that of the next.
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
    /// Of a packet of IPv6, which is this one of those without a verdict.
    #[inline(never)]
    fn of(number: usize, packet: &Packet<'_>, router: RouterRow<'_>) -> Option<Self> {
        let address = destination6(packet).filter(|_| packet.headers.family == Family::V6)?;
        Some(Open { packet: number, address, walk: Walk::new(router.root6(), address) })
    }
}

/// A step of all lookups, and another, until all are done.
fn finish<A: Address>(memory: &impl Memory, open: &mut Vec<Open<A>>, leaves: &mut [Slot; MOST_PACKETS]) {
    while !open.is_empty() {
        let mut done = 0;
        // So short that a core has many of these loads under way at once.
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

/// Host byte order.
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
