//! `RTM_NEWNEIGH`: neighbour entries, and requests to the kernel to revalidate one.
//!
//! Kernel source: `neigh_fill_info` and `neigh_add` in `net/core/neighbour.c`, `struct ndmsg`.

use super::{
    INET, INET6,
    attributes::{self, has},
    rtm, wire,
};
use logic::{net::Mac, observe::Neighbour};
use std::net::IpAddr;

const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NDA_FLAGS_EXT: u16 = 15;
const NUD_REACHABLE: u16 = 0x02;
const NUD_STALE: u16 = 0x04;
const NUD_DELAY: u16 = 0x08;
const NUD_PROBE: u16 = 0x10;
const NUD_NOARP: u16 = 0x40;
const NUD_PERMANENT: u16 = 0x80;
const NUD_VALID: u16 = NUD_PERMANENT | NUD_NOARP | NUD_REACHABLE | NUD_PROBE | NUD_STALE | NUD_DELAY;
const NTF_USE: u8 = 1;
const NTF_PROXY: u8 = 8;
const HEADER: usize = 12;
const IRRELEVANT: u64 = attributes::NEIGHBOUR.irrelevant();
const KNOWN_FLAGS: u64 = attributes::NEIGHBOUR_FLAG.known();

/// A dump of a family's entries.
pub fn dump(family: u8) -> wire::Request {
    let mut header = [0; HEADER];
    header[0] = family;
    wire::Request::new(rtm::GETNEIGH, wire::DUMP, &header)
}

/// A request that makes the kernel act as if a packet had just been sent to the neighbour (`NTF_USE`). The kernel then
/// revalidates a stale entry. Without such an entry, the kernel returns `ENOENT`.
///
/// Do not use this for permanent entries: `NTF_USE` makes the kernel forget that they are permanent (`__neigh_update`).
pub fn touch(ifindex: u32, address: IpAddr) -> wire::Request {
    let mut header = [0; HEADER];
    header[0] = if address.is_ipv4() { INET } else { INET6 };
    header[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    header[10] = NTF_USE;
    let request = wire::Request::new(rtm::NEWNEIGH, wire::ACK, &header);
    match address {
        IpAddr::V4(a) => request.with(NDA_DST, &a.octets()),
        IpAddr::V6(a) => request.with(NDA_DST, &a.octets()),
    }
}

/// Parses an entry. Returns `None` for entries of bridges and for proxy entries. After `RTM_DELNEIGH`, or if a part of
/// the entry is unknown, the result has no MAC address, and packets for the neighbour go to the kernel.
pub fn parse(message: wire::Message<'_>) -> Option<Neighbour> {
    let payload = message.payload;
    if !matches!(message.kind, rtm::NEWNEIGH | rtm::DELNEIGH)
        || !matches!(*payload.first()?, INET | INET6)
        || *payload.get(10)? & NTF_PROXY != 0
    {
        return None;
    }
    let ifindex = wire::u32_at(payload, 4)?;
    let state = wire::u16_at(payload, 8)?;
    let mut flags = u64::from(*payload.get(10)?);
    let mut understood = matches!(*payload.get(11)?, 0 | rtm::UNICAST);
    let (mut address, mut mac) = (None, None);
    for (kind, value) in wire::attributes_after(payload, HEADER) {
        match kind {
            NDA_DST => address = wire::address(value),
            NDA_LLADDR => mac = Mac::from_slice(value),
            NDA_FLAGS_EXT => flags |= u64::from(wire::u32_at(value, 0).unwrap_or(u32::MAX)) << 8,
            _ => understood &= has(IRRELEVANT, kind),
        }
    }
    understood &= (0..64).all(|bit| flags >> bit & 1 == 0 || has(KNOWN_FLAGS, bit));
    let valid = understood && message.kind == rtm::NEWNEIGH && state & NUD_VALID != 0;
    Some(Neighbour {
        ifindex,
        address: address?,
        mac: mac.filter(|_| valid),
        stale: valid && state & NUD_STALE != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wire::{Message, Request};

    fn parsed(kind: u16, state: u16, flags: u8) -> Option<Neighbour> {
        let [low, high] = state.to_ne_bytes();
        let mut request = Request::new(kind, 0, &[INET, 0, 0, 0, 6, 0, 0, 0, low, high, flags, 1])
            .with(NDA_DST, &[192, 0, 2, 9])
            .with(NDA_LLADDR, &[2, 0, 0, 0, 0, 9]);
        wire::messages(request.bytes(1)).next().and_then(parse)
    }

    #[test]
    fn only_valid_states_have_a_mac() {
        for (state, valid) in
            [(1, false), (2, true), (4, true), (8, true), (16, true), (32, false), (64, true)]
        {
            let neighbour = parsed(rtm::NEWNEIGH, state, 0).unwrap();
            assert_eq!(neighbour.mac.is_some(), valid, "state {state}");
            assert_eq!(neighbour.stale, state == NUD_STALE);
            assert_eq!(neighbour.ifindex, 6);
        }
        assert_eq!(parsed(rtm::DELNEIGH, NUD_REACHABLE, 0).unwrap().mac, None);
        assert_eq!(parsed(rtm::NEWNEIGH, NUD_PERMANENT, NTF_PROXY), None);
    }

    fn with(header: [u8; 12], number: u16, value: &[u8]) -> Option<Neighbour> {
        let mut request = Request::new(rtm::NEWNEIGH, 0, &header)
            .with(NDA_DST, &[192, 0, 2, 9])
            .with(NDA_LLADDR, &[2, 0, 0, 0, 0, 9])
            .with(number, value);
        wire::messages(request.bytes(1)).next().and_then(parse)
    }

    const HEAD: [u8; 12] = [INET, 0, 0, 0, 6, 0, 0, 0, 2, 0, 0, 1];

    #[test]
    fn every_attribute_and_flag_does_what_its_class_says() {
        use super::super::attributes::{Class, NEIGHBOUR, NEIGHBOUR_FLAG};
        let plain = with(HEAD, 3, &[]);
        assert!(plain.as_ref().is_some_and(|n| n.mac.is_some()));
        for number in 0..=63 {
            for value in [&[][..], &[1], &[9; 4], &[7; 16], &[0; 6]] {
                let got = with(HEAD, number, value);
                match NEIGHBOUR.class(number) {
                    Some(Class::Irrelevant(_)) => assert_eq!(got, plain, "{number}"),
                    Some(Class::Heeded(_)) => {}
                    _ => assert_eq!(got.unwrap().mac, None, "{number}"),
                }
            }
        }
        for bit in 0..40 {
            let extended = if bit < 8 { 0 } else { 1u32 << (bit - 8) };
            let head = [INET, 0, 0, 0, 6, 0, 0, 0, 2, 0, if bit < 8 { 1 << bit } else { 0 }, 1];
            let got = with(head, NDA_FLAGS_EXT, &extended.to_ne_bytes());
            match NEIGHBOUR_FLAG.class(bit) {
                Some(Class::Irrelevant(_)) => assert_eq!(got, plain, "{bit}"),
                Some(Class::Heeded(_)) => assert_eq!(got, None, "{bit}"),
                _ => assert_eq!(got.unwrap().mac, None, "{bit}"),
            }
        }
        let broadcast = [INET, 0, 0, 0, 6, 0, 0, 0, 2, 0, 0, 3];
        assert_eq!(with(broadcast, 3, &[]).unwrap().mac, None);
        // The kernel alone uses an entry with an unknown attribute, so Millrace need not keep it fresh.
        let stale = [INET, 0, 0, 0, 6, 0, 0, 0, 4, 0, 0, 1];
        assert!(with(stale, 3, &[]).unwrap().stale && !with(stale, 5, &[]).unwrap().stale);
    }

    #[test]
    fn other_messages_are_no_neighbours() {
        assert!(parsed(rtm::NEWNEIGH, 2, 0).is_some() && parsed(rtm::DELNEIGH, 2, 0).is_some());
        assert_eq!(parsed(rtm::GETNEIGH, 2, 0), None);
        let bridge = [libc::AF_BRIDGE as u8, 0, 0, 0, 6, 0, 0, 0, 2, 0, 0, 1];
        assert_eq!(with(bridge, 3, &[]), None);
    }

    proptest! {
        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = parse(Message { kind: rtm::NEWNEIGH, flags: 0, sequence: 0, payload: &bytes });
        }
    }
}
