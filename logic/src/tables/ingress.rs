//! Finds the interface of a frame, as `parse_ethernet()` and `classify()` of `bpf/` do. It does not use the rows of
//! queues, which give the same result.

use super::{
    answer::{RouterRow, find_interface},
    links::IF_PRIORITY_TAGS,
};
use crate::{
    memory::Memory,
    net::{Tag, Vlan},
    plan::{InterfaceId, PortId, RouterId},
    tables::encoding::{IF_IPV4, IF_IPV6},
};
use std::sync::atomic::Ordering::Acquire;

/// Lengths of an Ethernet header and of a VLAN tag, in bytes.
const ETHERNET: usize = 14;
const TAG: usize = 4;

/// How a packet arrived: the port, and the entry of the interface index for its VLAN and destination MAC address
/// (`struct interface_slot` of `bpf/abi.h`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ingress {
    /// The port where it arrived.
    pub port: PortId,
    /// The router to which it belongs.
    pub router: RouterId,
    /// The interface to which it belongs; 0: none.
    pub interface: InterfaceId,
    /// That interface's flags (`IF_` of [`super::encoding`]).
    pub flags: u8,
}

/// Looks up frames in the interface index. Many frames that arrive together belong to one interface, so the last result
/// is remembered. Between two runs a worker must forget it, like everything that it has read from the tables.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arrivals {
    last: Option<(u64, u32, Ingress)>,
}

impl Arrivals {
    /// The ingress of a frame that arrived on `port`. If the frame is for no interface, only `port` is set.
    #[inline]
    pub fn ingress(&mut self, memory: &(impl Memory + ?Sized), port: PortId, frame: &[u8]) -> Ingress {
        let nowhere = Ingress { port, ..Ingress::default() };
        let (Some(mac), Some(vlan)) = (frame.first_chunk::<6>(), vlan(frame)) else { return nowhere };
        let [a, b, c, d, e, f] = *mac;
        let first = u64::from_le_bytes([a, b, c, d, e, f, port, 0]);
        let ingress = match self.last {
            Some((known, its_vlan, ingress)) if (known, its_vlan) == (first, vlan) => ingress,
            _ => {
                let found = find_interface(memory, first, vlan).or_else(|| {
                    let untagged = is_priority_tag(vlan).then(|| find_interface(memory, first, 0)).flatten();
                    untagged.filter(|second| (second >> 56) as u8 & IF_PRIORITY_TAGS != 0)
                });
                let ingress = found.map_or(nowhere, |second| Ingress {
                    port,
                    interface: (second >> 32) as u16,
                    router: (second >> 48) as u8,
                    flags: (second >> 56) as u8,
                });
                self.last = Some((first, vlan, ingress));
                ingress
            }
        };
        let stays = if is_marked(memory, ingress.router) {
            IF_IPV4 | IF_IPV6
        } else {
            // User space does not know which packets rules affect.
            RouterRow::of(memory, ingress.router).with_rules()
        };
        Ingress { flags: ingress.flags & !stays, ..ingress }
    }
}

/// Whether a policy of the router has changed and the daemon has not read it yet. Then nothing of the router is
/// accelerated. This is `policy_changed()` of `bpf/`, which also asks for each packet.
#[inline]
fn is_marked(memory: &(impl Memory + ?Sized), router: RouterId) -> bool {
    memory.policy().get(usize::from(router)).is_some_and(|changes| changes.load(Acquire) != 0)
}

/// The key of up to two tags. `None` if the header is incomplete, or the bytes that must follow a tag are missing.
#[inline]
fn vlan(frame: &[u8]) -> Option<u32> {
    let header = frame.first_chunk::<ETHERNET>()?;
    let Some(outer_is_service) = tag_kind([header[12], header[13]]) else { return Some(0) };
    let tags = frame.get(ETHERNET..)?.first_chunk::<{ 2 * TAG }>()?;
    let vid = |at: usize| u16::from_be_bytes([tags[at], tags[at + 1]]) & 0xfff;
    let outer = Tag { vid: vid(0), service: outer_is_service };
    let inner = tag_kind([tags[2], tags[3]]).map(|service| Tag { vid: vid(4), service });
    // The outer tag is in the low half, as if it was pushed first.
    let one = Vlan::NONE.push(outer)?;
    Some(match inner {
        Some(inner) => one.push(inner)?.key(),
        None => one.key(),
    })
}

/// Whether the only tag is a priority tag (802.1p): VLAN 0, of either type.
fn is_priority_tag(vlan: u32) -> bool {
    let tag = |service| Vlan::NONE.push(Tag { vid: 0, service }).map(Vlan::key);
    [tag(false), tag(true)].contains(&Some(vlan))
}

/// Whether a tag is for a provider's VLAN (802.1ad) or a customer's (802.1Q). `None`: it is no tag.
#[inline]
fn tag_kind(kind: [u8; 2]) -> Option<bool> {
    match kind {
        [0x81, 0x00] => Some(false),
        [0x88, 0xa8] => Some(true),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Tables, encoding::IF_RPF_LOOSE, tests::plain_interface},
        *,
    };
    use crate::{
        memory::{Capacity, HeapMemory},
        plan::{Interface, Op},
    };
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn frames_are_for_the_interface_of_their_port_tags_and_address() {
        let tag = |vid, service| Tag { vid, service };
        let one = Vlan::NONE.push(tag(100, false)).unwrap();
        let two = Vlan::NONE.push(tag(7, true)).unwrap().push(tag(100, false)).unwrap();
        let capacity = Capacity {
            fib_blocks: 16,
            fib_tails: 16,
            nexthops: 16,
            neighbour_buckets: 4,
            interface_buckets: 4,
            routers: 8,
        };
        let mut tables = Tables::new(HeapMemory::new(capacity));
        for (id, vlan) in [(1, Vlan::NONE), (2, one), (3, two)] {
            let interface = Interface { router: id as u8, vlan, priority_tags: true, ..plain_interface(5) };
            tables.apply(&Op::Interface(id, interface)).unwrap();
        }
        let frame = |tags: &[u8]| {
            let mut frame = vec![2, 0, 0, 0, 0, 5, 9, 9, 9, 9, 9, 9];
            frame.extend(tags);
            frame.extend([0x08, 0x00, 0x45, 0, 0, 20, 0, 0]);
            frame
        };
        let mut arrivals = Arrivals::default();
        let mut found = |port, tags: &[u8]| {
            let ingress = arrivals.ingress(tables.memory(), port, &frame(tags));
            (ingress.port, ingress.router, ingress.interface, ingress.flags & 3)
        };
        for _ in 0..2 {
            assert_eq!(found(1, &[]), (1, 1, 1, 3));
            assert_eq!(found(1, &[]), (1, 1, 1, 3), "remembered");
            // Priority bits do not matter for the VLAN.
            assert_eq!(found(1, &[0x81, 0, 0xe0, 100]), (1, 2, 2, 3));
            assert_eq!(found(1, &[0x88, 0xa8, 0, 7, 0x81, 0, 0, 100]), (1, 3, 3, 3));
            assert_eq!(found(2, &[]), (2, 0, 0, 0), "another port");
            // VLAN 0 counts as untagged if the interface accepts that and it is the only tag.
            for (tags, interface) in [
                (&[0x81, 0, 0xe0, 0][..], 1),
                (&[0x88, 0xa8, 0, 0], 1),
                (&[0x81, 0, 0, 0, 0x81, 0, 0, 0], 0),
                (&[0x81, 0, 0, 0, 0x81, 0, 0, 100], 0),
                (&[0x81, 0, 0, 100, 0x81, 0, 0, 0], 0),
            ] {
                assert_eq!(found(1, tags).2, interface, "{tags:?}");
            }
            assert_eq!(found(1, &[0x81, 0, 0, 101]), (1, 0, 0, 0));
            assert_eq!(found(1, &[0x88, 0xa8, 0, 100]), (1, 0, 0, 0), "another kind of tag");
        }
        // A policy of router 2 has changed. This also affects the frame that is remembered.
        let tagged = [0x81, 0, 0, 100];
        let mut flags = |tags: &[u8]| arrivals.ingress(tables.memory(), 1, &frame(tags)).flags & 3;
        assert_eq!(flags(&tagged), 3);
        tables.memory().policy()[2].fetch_add(1, Relaxed);
        assert_eq!((flags(&tagged), flags(&[]), flags(&tagged)), (0, 3, 0));
        tables.memory().policy()[2].store(0, Relaxed);
        assert_eq!(flags(&tagged), 3);
        for end in 0..22 {
            arrivals.ingress(tables.memory(), 1, &frame(&[0x81, 0, 0, 100])[..end]);
        }
        let short = arrivals.ingress(tables.memory(), 1, &frame(&[0x81, 0, 0, 100])[..21]);
        assert_eq!(short.interface, 0, "malformed, so for no interface, as in the kernel plane");
        // Another device takes the frames of VLAN 0 before this interface.
        let strict = Interface { router: 1, redirects: false, priority_tags: false, ..plain_interface(5) };
        tables.apply(&Op::Interface(1, strict)).unwrap();
        let mut arrivals = Arrivals::default();
        let mut ingress = |tags: &[u8]| arrivals.ingress(tables.memory(), 1, &frame(tags));
        assert_eq!((ingress(&[]).interface, ingress(&[]).flags), (1, IF_IPV4 | IF_IPV6 | IF_RPF_LOOSE));
        assert_eq!(ingress(&[0x81, 0, 0xe0, 0]).interface, 0);
    }
}
