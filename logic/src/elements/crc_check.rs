//! `crc_check`: checks that the last 4 bytes are the CRC-32 of all bytes before them, as `crc_append` writes it.
//!
//! - **Output**: the frame without these bytes. It gets them back if it goes up. The headers are no longer known.
//! - **Dropped**: `bad_crc`, also for frames shorter than 4 bytes.
//! - **Parameters**: none.

use super::{
    Batch, Contract, Counters, Element, Known, Now,
    crc_append::CRC,
    packet::{Headers, Loss, Packet, Verdict},
};

/// See the head of this file.
#[derive(Clone, Copy, Debug, Default)]
pub struct CrcCheck;

impl Element for CrcCheck {
    fn name(&self) -> &'static str {
        "crc_check"
    }

    fn contract(&self) -> Contract {
        Contract { forgets: Known::HEADERS | Known::NEXT_HOP, ..Contract::default() }
    }

    fn run(&mut self, _: &Now, batch: &mut Batch<'_>, counters: &mut Counters) {
        batch.each_ahead(counters, |packet| (!check(packet)).then_some(Verdict::Drop(Loss::BadCrc)));
    }
}

fn check(packet: &mut Packet<'_>) -> bool {
    packet.headers = Headers::default();
    let Some((data, crc)) = packet.data().split_last_chunk::<CRC>() else { return false };
    crc32fast::hash(data) == u32::from_le_bytes(*crc) && packet.cut(CRC)
}
