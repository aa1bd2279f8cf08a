//! `mirror`: copies packets to a file.
//!
//! - **Input**: any frame.
//! - **Output**: all frames, unchanged, whatever happens to the copies. Nothing waits for the writer, and nothing is
//!   allocated. A copy is the data at this point, from the Ethernet header on, cut to `snap_bytes`, with the time at
//!   which the packet arrived. The writer makes the file (`router/src/user_plane/captures/`).
//!
//! | parameter | meaning |
//! |---|---|
//! | `file` | the pcap file (nanoseconds); only one element may use it |
//! | `snap_bytes` | the most bytes copied of each packet: 14 to 65535, 256 by default |
//! | `file_mib` | the maximum size of the file: 1 to 4096, 100 by default |
//! | `every_packets` | one packet in this many is copied, beginning with the first: 1 to 2^20, 1 by default |
//!
//! - **Counts**: `written` copies, and lost ones: `mirror_full` (the writer did not keep up), `mirror_disk` (the file
//!   cannot be written, or the disk is full) and `mirror_limit` (the file has its maximum size). Each copy is in
//!   exactly one of them, or still on its way. The counts belong to the file, and continue as long as it is written,
//!   also if the chain is replaced.
//!
//! The cost is in `lab/runs/2026-11-23-mirror.txt`: 20 ns for a packet of 60 bytes, 46 ns for 256 bytes.

use super::{Batch, Contract, Copies, Counters, Element, NoCopy, Now};
use std::{any::Any, sync::Arc};

/// See the head of this file.
#[derive(Clone)]
pub struct Mirror {
    copies: Arc<Copies>,
    snap_bytes: usize,
    every: u32,
    /// The number of packets that pass before the next one is copied.
    passing: u32,
}

impl Mirror {
    /// Copies at most `snap_bytes` of one packet in `every_packets`.
    pub fn new(copies: Arc<Copies>, snap_bytes: usize, every_packets: u32) -> Self {
        Mirror { copies, snap_bytes, every: every_packets.max(1), passing: 0 }
    }
}

impl Element for Mirror {
    fn name(&self) -> &'static str {
        "mirror"
    }

    fn contract(&self) -> Contract {
        Contract { asks_when: true, ..Contract::default() }
    }

    fn run(&mut self, now: &Now, batch: &mut Batch<'_>, counters: &mut Counters) {
        let Mirror { copies, snap_bytes, every, passing } = self;
        let (mut putting, mut not_put) = (copies.begin(), 0);
        batch.each(counters, |packet| {
            match passing.checked_sub(1) {
                Some(less) => *passing = less,
                None => {
                    *passing = *every - 1;
                    match &mut putting {
                        Ok(putting) => putting.put(now.ns, packet.data(), *snap_bytes),
                        Err(_) => not_put += 1,
                    }
                }
            }
            None
        });
        if let Err(why) = putting {
            copies.lose(why, not_put);
        }
    }

    fn counted(&self) -> Vec<(&'static str, u64)> {
        let lost = NoCopy::ALL.into_iter().map(|why| (why.name(), self.copies.lost(why)));
        [("written", self.copies.written())].into_iter().chain(lost).collect()
    }

    fn kept(&self) -> Option<&dyn Any> {
        Some(self)
    }

    /// Continues with the same packet of the cycle. The file is the same in any case.
    fn go_on_from(&mut self, kept: &dyn Any) {
        if let Some(before) = kept.downcast_ref::<Mirror>() {
            self.passing = before.passing.min(self.every - 1);
        }
    }
}
