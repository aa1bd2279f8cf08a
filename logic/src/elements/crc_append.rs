//! `crc_append`: CRC-32 of the frame behind it (CRC of P11): IEEE 802.3 section 3.2.9, over all data, least significant byte first,
//! as a frame check sequence is sent.
//!
//! Goes on: the frame, 4 bytes longer. Dropped: `no_room`, without 4 bytes of tail room. Parameters: none.

use super::{
    Batch, Contract, Counters, Element, Known, Now,
    packet::{Loss, Packet, Verdict},
};

/// Bytes of a CRC-32.
pub(super) const CRC: usize = 4;

/// See the head of this file.
#[derive(Clone, Copy, Debug, Default)]
pub struct CrcAppend;

impl Element for CrcAppend {
    fn name(&self) -> &'static str {
        "crc_append"
    }

    fn contract(&self) -> Contract {
        Contract { gives: Known::WRITTEN, ..Contract::default() }
    }

    fn run(&mut self, _: &Now, batch: &mut Batch<'_>, counters: &mut Counters) {
        batch.each(counters, |packet| (!append(packet)).then_some(Verdict::Drop(Loss::NoRoom)));
    }
}

fn append(packet: &mut Packet<'_>) -> bool {
    let crc = crc32fast::hash(packet.data());
    if !packet.append(CRC) {
        return false;
    }
    match packet.data_mut().last_chunk_mut::<CRC>() {
        Some(end) => *end = crc.to_le_bytes(),
        None => return false,
    }
    true
}
