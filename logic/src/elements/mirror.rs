//! `mirror`: copies packets to a file.
//!
//! Comes in: any frame. Goes on: all, unchanged, whatever becomes of the copies: nothing waits for who writes, and nothing is allocated. A copy is the data as it is
//! here, from the Ethernet header on, cut to `snap_bytes`, with the time at which the packet came; who writes makes the file of it
//! (`router/src/user_plane/captures/`).
//!
//! | parameter | meaning |
//! |---|---|
//! | `file` | the pcap file (nanoseconds); of one element alone |
//! | `snap_bytes` | of each packet so many bytes are copied at most: 14 to 65535, 256 by default |
//! | `file_mib` | the file is not made larger than this: 1 to 4096, 100 by default |
//! | `every_packets` | one packet in so many is copied, the first one to begin with: 1 to 2^20, 1 by default |
//!
//! Counts, of packets that were to be copied, each in exactly one or still on its way: `written`; lost are `mirror_full`, as who writes did not keep up,
//! `mirror_disk`, as the file cannot be written or the disk is full, `mirror_limit`, as the file has its size. These are of the file, and go on as long as it is
//! written, whatever becomes of the chain.
//!
//! What it costs is in `lab/runs/2026-11-23-mirror.txt`: 20 ns for a packet of 60 bytes, 46 ns for 256 bytes.

use super::{Batch, Contract, Copies, Counters, Element, NoCopy, Now};
use std::{any::Any, sync::Arc};

/// See the head of this file.
#[derive(Clone)]
pub struct Mirror {
    copies: Arc<Copies>,
    snap_bytes: usize,
    every: u32,
    /// Packets that pass before the next one is copied.
    passing: u32,
}

impl Mirror {
    /// Of one packet in `every_packets`, `snap_bytes` at most.
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

    /// With the same packet in so many; the file is the same anyhow.
    fn go_on_from(&mut self, kept: &dyn Any) {
        if let Some(before) = kept.downcast_ref::<Mirror>() {
            self.passing = before.passing.min(self.every - 1);
        }
    }
}
