//! A packet that came from a capture.

use logic::{elements::Ingress, worker::Frame};
use std::{ops::Range, time::Duration};

/// Room for what elements put in front of a packet and behind it: as in `af_xdp`, and a CRC, a trailer of ESP.
const HEAD: usize = 256;
const TAIL: usize = 64;
/// The longest frame that is taken: a packet and its room are 65,535 bytes.
pub const MOST_DATA: usize = u16::MAX as usize - HEAD - TAIL;

/// See the head of this file.
#[derive(Debug)]
pub struct Packet {
    memory: Vec<u8>,
    data: Range<usize>,
    ingress: Ingress,
    /// Its time stamp.
    pub at: Duration,
    /// Its place among all that came.
    pub number: u64,
}

impl Packet {
    /// In this memory, which had another packet. `data` is no longer than [`MOST_DATA`].
    pub fn new(mut memory: Vec<u8>, data: &[u8], ingress: Ingress, at: Duration) -> Self {
        let range = HEAD..HEAD + data.len();
        memory.resize(range.end + TAIL, 0);
        memory[range.clone()].copy_from_slice(data);
        Packet { memory, data: range, ingress, at, number: 0 }
    }

    /// What it takes of memory, with its room.
    pub fn bytes(&self) -> usize {
        self.memory.len()
    }

    /// Its memory, for another.
    pub fn into_memory(self) -> Vec<u8> {
        self.memory
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
        self.at.as_nanos().try_into().unwrap_or(u64::MAX)
    }
}
