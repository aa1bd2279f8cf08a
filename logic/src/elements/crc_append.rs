//! `crc_append`: appends the CRC-32 of the frame (CRC of P11): IEEE 802.3 section 3.2.9, over all data, least
//! significant byte first, like a frame check sequence.
//!
//! A frame shorter than 56 bytes is padded with zeros first. Devices pad frames to 60 bytes, and the CRC would then not
//! be at the end.
//!
//! - **Output**: the frame, 4 bytes longer and at least 60 bytes long.
//! - **Dropped**: `no_room` if there is no tail room for that.
//! - **Parameters**: none.

use super::{
    Batch, Contract, Counters, Element, Known, Now,
    packet::{Loss, Packet, Verdict},
};

/// Length of a CRC-32 in bytes.
pub(super) const CRC: usize = 4;
/// The shortest frame that devices send unchanged (IEEE 802.3 section 3.2.8, without the frame check sequence).
const SHORTEST: usize = 60;

/// See the head of this file.
#[derive(Clone, Copy, Debug, Default)]
pub struct CrcAppend;

impl Element for CrcAppend {
    fn name(&self) -> &'static str {
        "crc_append"
    }

    fn contract(&self) -> Contract {
        // `rewrite` would cut it off.
        Contract { gives: Known::WRITTEN, forgets: Known::HEADERS | Known::NEXT_HOP, ..Contract::default() }
    }

    fn run(&mut self, _: &Now, batch: &mut Batch<'_>, counters: &mut Counters) {
        batch.each_ahead(counters, |packet| (!append(packet)).then_some(Verdict::Drop(Loss::NoRoom)));
    }
}

fn append(packet: &mut Packet<'_>) -> bool {
    let length = packet.length();
    if !packet.append((length + CRC).max(SHORTEST) - length) {
        return false;
    }
    let Some((data, end)) = packet.data_mut().split_last_chunk_mut::<CRC>() else { return false };
    data.iter_mut().skip(length).for_each(|byte| *byte = 0);
    *end = crc32fast::hash(data).to_le_bytes();
    true
}
