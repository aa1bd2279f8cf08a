//! Connections that Linux tracks (`include/uapi/linux/netfilter/nfnetlink_conntrack.h`).

use super::netlink::{
    socket::{Most, Socket},
    wire::{self, Message, Request},
};
use logic::firewall::{
    prove::AddressPart,
    traffic::{DST_NAT, SRC_NAT},
};
use std::{collections::BTreeSet, io, net::IpAddr};

const SUBSYSTEM: u16 = 1 << 8;
const NEW: u16 = SUBSYSTEM;
const GET: u16 = SUBSYSTEM | 1;
/// `CTA_*`
const TUPLE_REPLY: u16 = 2;
const STATUS: u16 = 3;
const STATUS_MASK: u16 = 26;
/// Two more addresses than exceptions of a router make no difference.
const MOST_ADDRESSES: usize = 64;

/// The addresses by which packets of translated connections can be told apart: new sources of connections (their answers
/// have them as destination), and new destinations (as source). Addresses in `own` are left out, because packets to the
/// router itself go to Linux anyway. At most 64 are returned.
///
/// # Errors
/// The table cannot be read. A kernel that tracks no connections has none.
pub fn translated(
    socket: &mut Socket,
    own: &BTreeSet<IpAddr>,
) -> io::Result<BTreeSet<(AddressPart, IpAddr)>> {
    let mut found = BTreeSet::new();
    for status in [SRC_NAT, DST_NAT] {
        // Kernels before 5.18 send all connections.
        let request = Request::new(GET, wire::DUMP, &[0; 4])
            .with(STATUS, &status.to_be_bytes())
            .with(STATUS_MASK, &status.to_be_bytes());
        let mut note = |message: Message<'_>| -> Option<()> {
            for address in addresses(message)? {
                if !own.contains(&address.1) && found.len() < MOST_ADDRESSES {
                    found.insert(address);
                }
            }
            None
        };
        match socket.dump_at_most(&mut Most::new(1, "connections"), request, &mut note) {
            Err(e) if super::nftables::is_absent(&e) => break,
            other => other?,
        };
    }
    Ok(found)
}

/// The addresses of one connection, if it is translated.
pub(crate) fn addresses(message: Message<'_>) -> Option<impl Iterator<Item = (AddressPart, IpAddr)>> {
    const IP: u16 = 1;
    const SOURCES: [u16; 2] = [1, 3];
    const DESTINATIONS: [u16; 2] = [2, 4];
    if message.kind != NEW {
        return None;
    }
    let (mut status, mut reply) = (0, None);
    for (kind, value) in wire::attributes_after(message.payload, 4) {
        match kind {
            STATUS => status = wire::be32_at(value, 0)?,
            TUPLE_REPLY => reply = wire::attribute(value, IP),
            _ => (),
        }
    }
    let address = |kinds: [u16; 2]| {
        let reply = reply?;
        kinds.into_iter().find_map(|kind| wire::attribute(reply, kind).and_then(wire::address))
    };
    let source = address(SOURCES).filter(|_| status & DST_NAT != 0);
    let destination = address(DESTINATIONS).filter(|_| status & SRC_NAT != 0);
    let parts = [(AddressPart::Source, source), (AddressPart::Destination, destination)];
    Some(parts.into_iter().filter_map(|(part, address)| Some((part, address?))))
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
    fn a_translated_connection_has_addresses_of_its_answers() {
        let ip = nested(&[(1, &[10, 0, 0, 5]), (2, &[192, 0, 2, 9])]);
        let of = |status: u32| {
            let mut request = Request::new(NEW, 0, &[2, 0, 0, 0])
                .with(TUPLE_REPLY, &nested(&[(1, &ip)]))
                .with(STATUS, &status.to_be_bytes());
            let bytes = request.bytes(1).to_vec();
            let message = wire::messages(&bytes).next().unwrap();
            addresses(message).unwrap().collect::<Vec<_>>()
        };
        let source = (AddressPart::Source, IpAddr::from([10, 0, 0, 5]));
        let destination = (AddressPart::Destination, IpAddr::from([192, 0, 2, 9]));
        assert_eq!(of(0x8e), []);
        assert_eq!(of(DST_NAT), [source]);
        assert_eq!(of(SRC_NAT | 0x8e), [destination]);
        assert_eq!(of(SRC_NAT | DST_NAT), [source, destination]);
    }
}
