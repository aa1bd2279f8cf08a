//! The addresses of translated connections.

use super::{GET, NEW, STATUS, STATUS_MASK, TUPLE_ORIGINAL, TUPLE_REPLY};
use crate::linux::{
    netlink::{
        socket::{Most, Socket},
        wire::{self, Message, Request},
    },
    nftables,
};
use logic::firewall::{
    prove::AddressPart,
    traffic::{DST_NAT, SRC_NAT},
};
use std::{collections::BTreeSet, io, net::IpAddr};

/// At most this many addresses are kept. A NAT router can have far more. The limit is higher than that of exceptions,
/// because a few ranges may contain most addresses.
const MOST_ADDRESSES: usize = 1024;

/// The addresses by which packets of translated connections can be told apart: old and new sources of connections, and old
/// and new destinations. A packet to an address in `own` goes to Linux anyway, so such addresses are left out as
/// destinations. `None`: there are too many.
///
/// # Errors
/// The table cannot be read. A kernel without conntrack returns an empty set.
pub fn translated(socket: &mut Socket, own: &BTreeSet<IpAddr>) -> io::Result<Option<BTreeSet<IpAddr>>> {
    let mut found = BTreeSet::new();
    for status in [SRC_NAT, DST_NAT] {
        // Kernels before 5.18 send all connections.
        let request = Request::new(GET, wire::DUMP, &[0; 4])
            .with(STATUS, &status.to_be_bytes())
            .with(STATUS_MASK, &status.to_be_bytes());
        let note = |message: Message<'_>| -> Option<()> {
            let new = addresses(message)?.filter(|(part, address)| {
                (*part == AddressPart::Source || !own.contains(address)) && found.insert(*address)
            });
            (new.count() > 0).then_some(())
        };
        match socket.dump_at_most(&mut Most::new(MOST_ADDRESSES, "translated connections"), request, note) {
            Err(e) if nftables::is_absent(&e) => break,
            Err(e) if e.kind() == io::ErrorKind::QuotaExceeded => return Ok(None),
            other => other?,
        };
    }
    Ok(Some(found))
}

/// The addresses that packets of a translated connection have before translation, in both directions. Empty if the
/// connection is not translated.
pub(crate) fn addresses(message: Message<'_>) -> Option<impl Iterator<Item = (AddressPart, IpAddr)>> {
    const IP: u16 = 1;
    const SOURCES: [u16; 2] = [1, 3];
    const DESTINATIONS: [u16; 2] = [2, 4];
    if message.kind != NEW {
        return None;
    }
    let (mut status, mut tuples) = (0, [None; 2]);
    for (kind, value) in wire::attributes_after(message.payload, 4) {
        match kind {
            STATUS => status = wire::be32_at(value, 0)?,
            TUPLE_ORIGINAL => tuples[0] = wire::attribute(value, IP),
            TUPLE_REPLY => tuples[1] = wire::attribute(value, IP),
            _ => (),
        }
    }
    let address = |tuple: usize, kinds: [u16; 2]| {
        let tuple: &[u8] = tuples[tuple]?;
        kinds.into_iter().find_map(|kind| wire::attribute(tuple, kind).and_then(wire::address))
    };
    let of_source =
        [(AddressPart::Source, address(0, SOURCES)), (AddressPart::Destination, address(1, DESTINATIONS))];
    let of_destination =
        [(AddressPart::Destination, address(0, DESTINATIONS)), (AddressPart::Source, address(1, SOURCES))];
    let of_source = of_source.into_iter().filter(move |_| status & SRC_NAT != 0);
    let of_destination = of_destination.into_iter().filter(move |_| status & DST_NAT != 0);
    Some(of_source.chain(of_destination).filter_map(|(part, address)| Some((part, address?))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(parts: &[(u16, &[u8])]) -> Vec<u8> {
        let mut request =
            parts.iter().fold(Request::new(0, 0, &[]), |all, (kind, value)| all.with(*kind, value));
        request.bytes(1)[16..].to_vec()
    }

    #[test]
    fn a_translated_connection_has_the_addresses_before_and_after() {
        let ip = |source: [u8; 4], destination: [u8; 4]| {
            nested(&[(1, &nested(&[(1, &source), (2, &destination)]))])
        };
        let of = |status: u32| {
            let mut request = Request::new(NEW, 0, &[2, 0, 0, 0])
                .with(TUPLE_ORIGINAL, &ip([10, 0, 0, 1], [198, 51, 100, 1]))
                .with(TUPLE_REPLY, &ip([10, 0, 0, 5], [192, 0, 2, 9]))
                .with(STATUS, &status.to_be_bytes());
            let bytes = request.bytes(1).to_vec();
            let message = wire::messages(&bytes).next().unwrap();
            addresses(message).unwrap().collect::<Vec<_>>()
        };
        let (source, destination) = (AddressPart::Source, AddressPart::Destination);
        let of_source = [(source, [10, 0, 0, 1].into()), (destination, [192, 0, 2, 9].into())];
        let of_destination = [(destination, [198, 51, 100, 1].into()), (source, [10, 0, 0, 5].into())];
        assert_eq!(of(0x8e), []);
        assert_eq!(of(SRC_NAT | 0x8e), of_source);
        assert_eq!(of(DST_NAT), of_destination);
        assert_eq!(of(SRC_NAT | DST_NAT), [of_source, of_destination].concat());
    }
}
