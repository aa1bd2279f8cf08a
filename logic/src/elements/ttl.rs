//! `ttl`: decrements the TTL of IPv4 or the hop limit of IPv6, and updates the checksum (RFC 1812 section 5.3.1, RFC
//! 8200 section 3).
//!
//! - **Input**: IP packets whose headers `check` has checked.
//! - **Output**: the same packets with one hop less.
//! - **Up**, unchanged: `ttl_exceeded`, if the value is 1 or less. After `route`, which has checked this, there are
//!   none.
//! - **Parameters**: none.

use super::{
    Batch, Contract, Counters, Element, Known, Now, Part,
    check::{IPV4, IPV6},
    packet::{Family, Packet, Verdict},
};
use crate::reason::Reason;

/// See the head of this file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ttl;

impl Element for Ttl {
    fn name(&self) -> &'static str {
        "ttl"
    }

    fn contract(&self) -> Contract {
        Contract {
            needs: Known::HEADERS,
            gives: Known::HOP_COUNTED | Known::WRITTEN,
            passes_up: true,
            part: Some(Part::Ttl),
            ..Contract::default()
        }
    }

    fn run(&mut self, _: &Now, batch: &mut Batch<'_>, counters: &mut Counters) {
        batch.each(counters, |packet| decrement(packet).err().map(Verdict::Up));
    }
}

#[inline]
pub(super) fn decrement(packet: &mut Packet<'_>) -> Result<(), Reason> {
    match packet.headers.family {
        Family::V4 => decrement4(packet.header_mut().ok_or(Reason::Ipv4BadHeader)?),
        Family::V6 => decrement6(packet.header_mut().ok_or(Reason::Ipv6BadHeader)?),
        Family::Unknown => Err(Reason::NotIp),
    }
}

/// HC' = ~(~HC + ~m + m') (RFC 1624 section 3), where m' = m - 0x0100 for the word of TTL and protocol. Therefore ~m +
/// m' is `0xffff - 0x0100`, and 0xffff is zero in ones' complement. So HC' = HC + 0x0100 with the carry added again
/// (`ip_decrease_ttl` of Linux). A sum of 0xffff becomes 0, which is the same.
#[inline]
pub(super) fn decrement4(header: &mut [u8; IPV4]) -> Result<(), Reason> {
    if header[8] <= 1 {
        return Err(Reason::TtlExceeded);
    }
    header[8] -= 1;
    let sum = u32::from(u16::from_be_bytes([header[10], header[11]])) + 0x0100;
    let checksum = (sum as u16).wrapping_add(u16::from(sum >= 0xffff));
    [header[10], header[11]] = checksum.to_be_bytes();
    Ok(())
}

#[inline]
fn decrement6(header: &mut [u8; IPV6]) -> Result<(), Reason> {
    if header[7] <= 1 {
        return Err(Reason::TtlExceeded);
    }
    header[7] -= 1;
    Ok(())
}
