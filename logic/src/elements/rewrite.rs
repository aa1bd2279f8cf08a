//! `rewrite`: writes the Ethernet header for the next hop.
//!
//! - **Input**: IP packets whose next hop `route` has found and whose hop `ttl` has counted.
//! - **Output**: the IP packet without Ethernet padding, which Linux cuts off too (`pskb_trim_rcsum`), after an
//!   Ethernet header with the next hop's addresses and VLAN tags. Priority and DEI are 0. It leaves by the next hop's
//!   port.
//! - **Dropped**: `no_room`, if the frame has no head room for tags. `route` has checked that, so this happens only if
//!   an element in between took the room.
//! - **Parameters**: none.

use super::{
    Batch, Contract, Counters, Element, Known, Now, Part,
    check::{ETHERNET, TAG},
    packet::{Family, Loss, Packet, Verdict},
};
use crate::{flow::field::ether_type, net::Vlan};

/// Parts of a VLAN key (`bpf/abi.h`).
const VLAN_VID: u16 = 0x0fff;
const VLAN_AD: u32 = 0x1000;
const VLAN_PRESENT: u32 = 0x2000;

/// See the head of this file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rewrite;

impl Element for Rewrite {
    fn name(&self) -> &'static str {
        "rewrite"
    }

    fn contract(&self) -> Contract {
        Contract {
            needs: Known::HEADERS | Known::NEXT_HOP | Known::HOP_COUNTED,
            gives: Known::EXIT | Known::WRITTEN,
            forgets: Known::NEXT_HOP | Known::HOP_COUNTED,
            part: Some(Part::Rewrite),
            ..Contract::default()
        }
    }

    fn run(&mut self, _: &Now, batch: &mut Batch<'_>, counters: &mut Counters) {
        batch.each(counters, |packet| rewrite(packet).err().map(Verdict::Drop));
    }
}

#[inline]
pub(super) fn rewrite(packet: &mut Packet<'_>) -> Result<(), Loss> {
    write_headers(packet).ok_or(Loss::NoRoom)
}

#[inline]
fn write_headers(packet: &mut Packet<'_>) -> Option<()> {
    let (headers, hop) = (packet.headers, packet.hop);
    let kind = match headers.family {
        Family::V4 => ether_type::IPV4,
        Family::V6 => ether_type::IPV6,
        Family::Unknown => return None,
    };
    let ip = usize::from(headers.ip);
    // An element in between may have shortened it.
    let end = (ip + usize::from(headers.bytes)).min(packet.end());
    let before = if hop.vlan == 0 { ETHERNET } else { ETHERNET + TAG * Vlan::from_key(hop.vlan).tags() };
    let data = packet.move_to(ip.checked_sub(before)?, end)?;
    let ethernet = data.first_chunk_mut()?;
    write_macs(ethernet, (hop.macs, hop.macs_end));
    ethernet[ETHERNET - 2..].copy_from_slice(&kind.to_be_bytes());
    if hop.vlan != 0 {
        write_tags(data, hop.vlan, kind);
    }
    packet.exit = Some(packet.hop_port);
    Some(())
}

/// Writes both addresses, as they are in memory.
#[inline]
pub(super) fn write_macs(ethernet: &mut [u8; ETHERNET], (first, rest): (u64, u32)) {
    ethernet[..8].copy_from_slice(&first.to_le_bytes());
    ethernet[8..12].copy_from_slice(&rest.to_le_bytes());
}

/// Writes the tags of this VLAN key after the addresses, and the EtherType after the tags.
#[cold]
fn write_tags(data: &mut [u8], vlan: u32, kind: u16) {
    let mut at = ETHERNET - 2;
    for word in [vlan, vlan >> 16].into_iter().filter(|word| word & VLAN_PRESENT != 0) {
        let tag = if word & VLAN_AD != 0 { ether_type::SERVICE_VLAN } else { ether_type::VLAN };
        write(data, at, tag);
        write(data, at + 2, word as u16 & VLAN_VID);
        at += TAG;
    }
    write(data, at, kind);
}

fn write(data: &mut [u8], at: usize, value: u16) {
    if let Some(place) = data.get_mut(at..at + 2) {
        place.copy_from_slice(&value.to_be_bytes());
    }
}
