//! A packet of a capture.

use logic::{tables::Ingress, worker::Frame};
use std::{ops::Range, time::Duration};

/// Room for bytes that elements put before a packet, as in `af_xdp`.
const HEAD: usize = 256;
/// Room for bytes that elements put after a packet: a CRC, a trailer of ESP.
const TAIL: usize = 64;
/// The longest frame that is accepted: a packet with its room has 65,535 bytes.
pub const MOST_DATA: usize = u16::MAX as usize - HEAD - TAIL;

/// The largest memory that is kept for other packets; it fits frames of common MTUs.
const MOST_KEPT: usize = 4096;

/// A packet of a capture, in memory of its own.
#[derive(Debug)]
pub struct Packet {
    memory: Vec<u8>,
    data: Range<usize>,
    ingress: Ingress,
    /// Its time stamp.
    pub at: Duration,
    /// When it came, by the clock of the paths.
    pub came: Duration,
    /// Its position among all packets that came.
    pub number: u64,
}

impl Packet {
    /// A packet in this memory, which another packet may have used. `data` is at most [`MOST_DATA`] long.
    pub fn new(mut memory: Vec<u8>, data: &[u8], ingress: Ingress, at: Duration) -> Self {
        let range = HEAD..HEAD + data.len();
        memory.resize(range.end + TAIL, 0);
        memory[range.clone()].copy_from_slice(data);
        Packet { memory, data: range, ingress, at, came: at, number: 0 }
    }

    /// The bytes of its memory, with its room.
    pub fn bytes(&self) -> usize {
        self.memory.capacity()
    }

    /// Its memory, for another packet; `None`: it is so large that most packets would waste it.
    pub fn into_memory(self) -> Option<Vec<u8>> {
        (self.bytes() <= MOST_KEPT).then_some(self.memory)
    }
}

impl Frame for Packet {
    fn data(&self) -> &[u8] {
        self.memory.get(self.data.clone()).unwrap_or_default()
    }
    fn parts_mut(&mut self) -> (&mut [u8], Range<usize>) {
        (&mut self.memory, self.data.clone())
    }
    fn set_range(&mut self, data: Range<usize>) {
        self.data = data;
    }
    fn ingress(&self) -> Ingress {
        self.ingress
    }
    fn came_ns(&self) -> u64 {
        self.came.as_nanos().try_into().unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_counted_as_it_is_had_and_large_memory_is_not_kept() {
        let of = |memory, length| Packet::new(memory, &vec![1; length], Ingress::default(), Duration::ZERO);
        let used = of(Vec::new(), 1514).into_memory().expect("memory for 1514 bytes is kept");
        assert!(of(used, 60).bytes() >= 1514 + HEAD + TAIL);
        assert_eq!(of(Vec::new(), MOST_DATA).into_memory(), None);
    }
}
