//! Routing written by hand, for one machine and this table: the router's chain is measured beside it.
//!
//! Trace, frames, table and answers are the same. It verifies the Ethernet and IPv4 headers and the checksum, and looks
//! the destination up by DIR-24-8. It prefetches the first step of all packets of a batch while they are copied. It counts
//! the hop and writes both MAC addresses. It has no list of packets, no verdicts and no counters. It knows no VLAN, no
//! IPv6, no MTU and no source that Linux would refuse, and gives up where anything is unusual. So it is about the least
//! that routing takes here. Its result on one machine shows what to expect of the chain on that machine. `unsafe` is needed
//! here for the prefetch.

use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicU64, Ordering::Acquire},
};

use anyhow::{Result, ensure};
use logic::{
    elements::MOST_PACKETS,
    fib::{Kind, Root4, Slot, lookup},
    memory::{HeapMemory, Memory, words},
    tables::encoding::KIND_VIA,
};

use super::forwarding::{Frame, HEAD_ROOM, Pool, Trace, copy};

/// Bytes of an Ethernet and an IPv4 header without options.
const HEADERS: usize = 34;
/// The place of a packet that is not routed.
const NOWHERE: usize = usize::MAX;

/// Tables of router 0.
pub(super) struct Bare<'a> {
    memory: &'a HeapMemory,
    fib: &'a [AtomicU32],
    nexthops: &'a [[AtomicU64; words::NEXTHOP]],
    root: u64,
    first: Root4,
}

impl<'a> Bare<'a> {
    /// Routes with the tables in this memory.
    pub fn new(memory: &'a Arc<HeapMemory>) -> Result<Self> {
        let root = memory.routers()[0].load(Acquire);
        let first = Root4::new(root);
        ensure!(first.bits() == 24, "a table so small has no first step of 24 bits");
        let nexthops = memory.nexthops().as_chunks().0;
        Ok(Bare { memory, fib: memory.fib(), nexthops, root, first })
    }

    /// Goes through the trace once. Returns how many packets were routed. Its packets are as long as the first one
    /// says.
    pub fn pass(&self, trace: &Trace, pool: &mut Pool, most: usize) -> usize {
        let mut places = [NOWHERE; MOST_PACKETS];
        let mut packets = trace.packets().peekable();
        let mut sent = 0;
        while packets.peek().is_some() {
            let frames = pool.next(most);
            let mut many = 0;
            let each = frames.iter_mut().zip(&mut places).zip(packets.by_ref());
            for ((Frame(frame), place), packet) in each {
                copy(frame, packet);
                *place = self.place(&frame[HEAD_ROOM..HEAD_ROOM + trace.bytes]);
                many += 1;
            }
            for (Frame(frame), place) in frames.iter_mut().zip(&places[..many]) {
                sent += usize::from(self.send(&mut frame[HEAD_ROOM..], *place).is_some());
            }
        }
        sent
    }

    /// Place of the first step of the lookup, which it prefetches. `NOWHERE` for a packet that is not to be routed.
    #[inline]
    fn place(&self, data: &[u8]) -> usize {
        let Some(headers) = data.first_chunk::<HEADERS>() else { return NOWHERE };
        let bytes = u16::from_be_bytes([headers[16], headers[17]]);
        let is_right = headers[12..15] == [0x08, 0x00, 0x45]
            && (20..=data.len() - 14).contains(&bytes.into())
            && headers[22] > 1
            && sum(headers) == 0xffff;
        if !is_right {
            return NOWHERE;
        }
        let place = self.first.place(destination(headers));
        if let Some(word) = self.fib.get(place) {
            prefetch(word);
        }
        place
    }

    /// Looks up the route, and rewrites the packet.
    #[inline]
    fn send(&self, data: &mut [u8], place: usize) -> Option<()> {
        let headers = data.first_chunk_mut::<HEADERS>()?;
        let mut leaf = Slot(self.fib.get(place)?.load(Acquire));
        if !leaf.is_leaf() {
            leaf = lookup(self.memory, self.root, destination(headers));
        }
        let hop = self.nexthops.get(leaf.index() as usize)?;
        let (link, source, state) = (hop[0].load(Acquire), hop[1].load(Acquire), hop[3].load(Acquire));
        if leaf.kind() != Kind::Nexthop || (state >> 16) as u8 != KIND_VIA || link == 0 {
            return None;
        }
        headers[..6].copy_from_slice(&link.to_le_bytes()[..6]);
        headers[6..12].copy_from_slice(&source.to_le_bytes()[..6]);
        headers[22] -= 1;
        // RFC 1624, as in Linux's `ip_decrease_ttl`.
        let checksum = u32::from(u16::from_be_bytes([headers[24], headers[25]])) + 0x0100;
        let checksum = (checksum + u32::from(checksum >= 0xffff)) as u16;
        headers[24..26].copy_from_slice(&checksum.to_be_bytes());
        Some(())
    }
}

/// Destination in host byte order.
#[inline]
fn destination(headers: &[u8; HEADERS]) -> u32 {
    u32::from_be_bytes([headers[30], headers[31], headers[32], headers[33]])
}

/// Checksum of the IP header in ones' complement, in any byte order (RFC 1071 section 2 B and C).
#[inline]
fn sum(headers: &[u8; HEADERS]) -> u16 {
    let words = headers[14..].as_chunks::<4>().0.iter().map(|word| u64::from(u32::from_ne_bytes(*word)));
    let sum: u64 = words.sum();
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    ((sum >> 16) + (sum & 0xffff)) as u16
}

#[inline]
fn prefetch(word: &AtomicU32) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: it reads and writes nothing, whatever the address; every x86-64 has it.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(word).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = word;
}

#[cfg(test)]
mod tests {
    use super::{
        super::forwarding::{LINE, router, tables, through_chain},
        *,
    };
    use crate::prefixes;
    use logic::{elements::Chain, net::Prefix4};

    const FLOWS: usize = 4096;

    /// For some of them one step is not enough: a /32 in the /24 beside them.
    fn routes() -> Vec<Prefix4> {
        let mut routes = prefixes::prefixes(None, 70_000, 0).unwrap().v4;
        let within: Vec<Prefix4> =
            routes.iter().filter(|route| route.length() == 24).step_by(50).copied().collect();
        routes.extend(within.iter().filter_map(|route| Prefix4::new(route.address() | 77, 32)));
        routes
    }

    /// Compares every byte of every frame, of packets that leave and of those that do not.
    #[test]
    fn it_leaves_frames_as_the_chain_does() {
        let routes = routes();
        let memory = tables(&routes);
        let bare = Bare::new(&memory).unwrap();
        let mut trace = Trace::new(FLOWS, 60, &routes);
        let broken: [(usize, u8); 7] =
            [(12, 0x86), (14, 0x46), (14, 0x65), (16, 1), (17, 19), (25, 0xff), (22, 1)];
        for (number, packet) in trace.packets.chunks_exact_mut(LINE).enumerate() {
            // The identification has any value, so checksums of all values occur.
            packet[18..20].copy_from_slice(&(number as u16).wrapping_mul(0x9e37).to_be_bytes());
            if number % 5 == 0 {
                packet[30..34].copy_from_slice(&[250, 1, 2, 3]);
            }
            packet[24..26].fill(0);
            let sum = sum(packet.first_chunk().unwrap());
            packet[24..26].copy_from_slice(&(!sum).to_ne_bytes());
            if let Some((at, value)) = broken.get(number % 64) {
                packet[*at] = if packet[*at] == *value { !value } else { *value };
            }
        }
        for most in [64, 256] {
            let (mut by_chain, mut by_hand) = (Pool::new(FLOWS), Pool::new(FLOWS));
            let mut chain = Chain::new(router(&memory)).unwrap();
            let (sent, _) = through_chain(&trace, &mut by_chain, &mut chain, most);
            assert!(sent > FLOWS / 2 && sent < FLOWS * 9 / 10, "{sent}");
            assert_eq!(bare.pass(&trace, &mut by_hand, most), sent);
            let each = by_chain.frames.iter().zip(&by_hand.frames);
            for (number, (chain, hand)) in each.enumerate() {
                assert_eq!(chain.0, hand.0, "packet {number}");
            }
            // Packets that left were written to.
            let untouched = trace.packets().zip(&by_hand.frames);
            let untouched = untouched.filter(|(packet, frame)| frame.0[HEAD_ROOM..][..60] == packet[..60]);
            assert_eq!(untouched.count(), FLOWS - sent);
        }
    }

    #[test]
    fn some_lookups_have_a_second_step() {
        let routes = routes();
        let memory = tables(&routes);
        let bare = Bare::new(&memory).unwrap();
        let trace = Trace::new(FLOWS, 60, &routes);
        let more = trace.packets().filter(|packet| {
            let place = bare.place(&packet[..60]);
            !Slot(memory.fib()[place].load(Acquire)).is_leaf()
        });
        assert!(more.count() > 100);
    }
}
