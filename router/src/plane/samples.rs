//! The packets that the program has sampled: a ring per CPU, written by the program and read without locks.

use super::memory::{Mapping, Words64};
use crate::abi::types;
use anyhow::Result;
use logic::steer::{Flow, Sample};
use std::{
    mem::offset_of,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::BorrowedFd,
    sync::atomic::{AtomicU64, Ordering::Acquire},
};

/// `FLOW_SAMPLES`.
const RING: usize = 1024;
const SAMPLE_WORDS: usize = size_of::<types::flow_sample>() / 8;
const RING_WORDS: usize = size_of::<types::flow_samples>() / 8;
const FIRST: usize = offset_of!(types::flow_samples, sample) / 8;

const _: () = {
    assert!(RING_WORDS == FIRST + RING * SAMPLE_WORDS);
    assert!(offset_of!(types::flow_sample, source) == 0 && offset_of!(types::flow_sample, destination) == 16);
    assert!(offset_of!(types::flow_sample, ports) == 32 && offset_of!(types::flow_sample, frame_bytes) == 36);
    assert!(offset_of!(types::flow_sample, interface) == 40 && offset_of!(types::flow_sample, port) == 42);
    assert!(offset_of!(types::flow_sample, protocol) == 43 && offset_of!(types::flow_sample, family) == 44);
};

pub(super) struct Samples {
    rings: Words64,
    /// By ring: the number of samples that were taken or lost so far.
    seen: Vec<u64>,
}

impl Samples {
    pub fn new(fd: BorrowedFd<'_>, cpus: usize) -> Result<Samples> {
        let rings = Mapping::new(fd, size_of::<types::flow_samples>(), cpus)?.into();
        Ok(Samples { rings, seen: vec![0; cpus] })
    }

    /// Takes the samples since the last call, except those that the program has overwritten.
    pub fn take(&mut self) -> Vec<Sample> {
        let mut taken = Vec::new();
        for (ring, seen) in self.rings.as_slice().chunks_exact(RING_WORDS).zip(&mut self.seen) {
            take_ring(ring, seen, &mut taken);
        }
        taken
    }
}

fn take_ring(ring: &[AtomicU64], seen: &mut u64, taken: &mut Vec<Sample>) {
    let count = ring[0].load(Acquire);
    let from = (*seen).max(count.saturating_sub(RING as u64));
    *seen = count;
    for i in from..count {
        let at = FIRST + i as usize % RING * SAMPLE_WORDS;
        let words: [u64; SAMPLE_WORDS] = std::array::from_fn(|word| ring[at + word].load(Acquire));
        // The program may be writing the entry behind the last counted one. After a whole ring that is this one.
        if ring[0].load(Acquire).saturating_sub(i) < RING as u64 {
            taken.extend(decode(words));
        }
    }
}

fn decode([s0, s1, d0, d1, ports, rest]: [u64; SAMPLE_WORDS]) -> Option<Sample> {
    let [interface_low, interface_high, port, protocol, family, ..] = rest.to_le_bytes();
    let address = |lo: u64, hi: u64| {
        let both = (u128::from(hi) << 64 | u128::from(lo)).to_le_bytes();
        let [a, b, c, d, ..] = both;
        match family {
            4 => Some(IpAddr::from(Ipv4Addr::new(a, b, c, d))),
            6 => Some(IpAddr::from(Ipv6Addr::from(both))),
            _ => None,
        }
    };
    let [a, b, c, d, ..] = ports.to_le_bytes();
    let flow = Flow {
        port,
        interface: u16::from_le_bytes([interface_low, interface_high]),
        source: address(s0, s1)?,
        destination: address(d0, d1)?,
        protocol,
        ports: [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])],
    };
    Some(Sample { flow, bytes: (ports >> 32) as u32 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(count: u64) -> Vec<AtomicU64> {
        let words: Vec<AtomicU64> = (0..RING_WORDS).map(|_| AtomicU64::new(0)).collect();
        words[0].store(count, std::sync::atomic::Ordering::Relaxed);
        for i in 0..RING {
            // UDP 10.0.0.1:1000 -> 10.0.0.2:i, of 60 bytes, to interface 3 of port 2.
            let ports = u64::from((i as u16).to_be()) << 16 | u64::from(1000_u16.to_be()) | 60 << 32;
            let rest = 3 | 2 << 16 | 17 << 24 | 4 << 32;
            for (at, value) in [0x0100_000a, 0, 0x0200_000a, 0, ports, rest].into_iter().enumerate() {
                words[FIRST + i * SAMPLE_WORDS + at].store(value, std::sync::atomic::Ordering::Relaxed);
            }
        }
        words
    }

    #[test]
    fn samples_are_taken_once_and_overwritten_ones_are_left_out() {
        let (ring, mut seen, mut taken) = (ring(3), 0, Vec::new());
        take_ring(&ring, &mut seen, &mut taken);
        let flow = Flow {
            port: 2,
            interface: 3,
            source: "10.0.0.1".parse().unwrap(),
            destination: "10.0.0.2".parse().unwrap(),
            protocol: 17,
            ports: [1000, 1],
        };
        assert_eq!((taken.len(), &taken[1]), (3, &Sample { flow, bytes: 60 }));
        take_ring(&ring, &mut seen, &mut taken);
        assert_eq!(taken.len(), 3);
        ring[0].store(5000, std::sync::atomic::Ordering::Relaxed);
        taken.clear();
        take_ring(&ring, &mut seen, &mut taken);
        let first = taken[0].flow.ports[1];
        assert_eq!((taken.len(), usize::from(first), seen), (RING - 1, (5000 - RING + 1) % RING, 5000));
    }
}
