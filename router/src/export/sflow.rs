//! Datagrams of sFlow version 5 (<https://sflow.org/sflow_version_5.txt>): samples of packets, and counters of interfaces.
//!
//! All samples have the expanded form, in which an interface index has 32 bits. A source of samples is an interface. Its pool
//! is the sum of the distances between its samples. So the pools of all interfaces together are all packets that came, except
//! those ahead of samples that were lost.

use super::{
    counters::InterfaceCounters,
    sample::{Drop, Output, Sample},
};
use std::{collections::BTreeMap, net::IpAddr};

const VERSION: u32 = 5;
/// Format numbers of samples and of the records in them.
const FLOW_SAMPLE_EXPANDED: u32 = 3;
const COUNTERS_SAMPLE_EXPANDED: u32 = 4;
const SAMPLED_HEADER: u32 = 1;
const IF_COUNTERS: u32 = 1;
/// `enum header_protocol`
const ETHERNET: u32 = 1;
/// Bytes of the frame check sequence, which a frame length includes and a header does not.
const FCS: u32 = 4;
/// The class of sources that are interfaces.
const IF_INDEX: u32 = 0;
/// Formats of an output.
const SINGLE: u32 = 0;
const DISCARDED: u32 = 1;
const SEVERAL: u32 = 2;
/// An interface within the box.
const INTERNAL: u32 = 0x3fff_ffff;
/// Codes of discarded packets.
const UNKNOWN: u32 = 256;
const ACL: u32 = 258;
const TRAFFIC_SHAPING: u32 = 261;
/// A counter that is not known.
const NOT_KNOWN: u32 = u32::MAX;
/// The most bytes of a datagram, which then fits into every usual MTU.
const MOST_BYTES: usize = 1400;
/// Bytes of a datagram before its samples, with an IPv6 address.
const HEAD_BYTES: usize = 40;

/// Makes datagrams.
#[derive(Debug)]
pub struct Sflow {
    agent: IpAddr,
    every: u32,
    uptime_ms: u32,
    datagrams: u32,
    sources: BTreeMap<u32, Source>,
    /// Samples that were lost in the ring since the start.
    drops: u32,
    /// Samples that wait.
    samples: Vec<u8>,
    count: u32,
    ready: Vec<Vec<u8>>,
}

/// Counts of a source in datagrams.
#[derive(Debug, Default)]
struct Source {
    samples: u32,
    pool: u32,
    counters: u32,
}

fn put(to: &mut Vec<u8>, words: &[u32]) {
    words.iter().for_each(|word| to.extend(word.to_be_bytes()));
}

impl Sflow {
    /// Datagrams of the agent with this address, which samples one packet in `every`.
    pub fn new(agent: IpAddr, every: u32) -> Sflow {
        Sflow {
            agent,
            every,
            uptime_ms: 0,
            datagrams: 0,
            sources: BTreeMap::new(),
            drops: 0,
            samples: Vec::new(),
            count: 0,
            ready: Vec::new(),
        }
    }

    /// Sets the time since the start, and the samples that were lost since then.
    pub fn set(&mut self, uptime_ms: u32, drops: u32) {
        (self.uptime_ms, self.drops) = (uptime_ms, drops);
    }

    /// Adds a sampled packet.
    pub fn add(&mut self, sample: &Sample<'_>) {
        let source = self.sources.entry(sample.input).or_default();
        source.samples = source.samples.wrapping_add(1);
        source.pool = source.pool.wrapping_add(sample.ahead);
        let (format, output) = match sample.output {
            Output::Port(ifindex) => (SINGLE, ifindex),
            Output::Several => (SEVERAL, 0),
            Output::Itself => (SINGLE, INTERNAL),
            Output::Dropped(Drop::Limit) => (DISCARDED, TRAFFIC_SHAPING),
            Output::Dropped(Drop::Rule) => (DISCARDED, ACL),
            Output::Dropped(Drop::Other) => (DISCARDED, UNKNOWN),
            Output::Unknown => (SINGLE, 0),
        };
        let head = sample.head;
        let padding = head.len().next_multiple_of(4) - head.len();
        let record = 16 + head.len() + padding;
        let mut bytes = Vec::with_capacity(record + 60);
        put(&mut bytes, &[FLOW_SAMPLE_EXPANDED, (44 + 8 + record) as u32]);
        put(&mut bytes, &[source.samples, IF_INDEX, sample.input, self.every, source.pool, self.drops]);
        put(&mut bytes, &[SINGLE, sample.input, format, output, 1]);
        put(&mut bytes, &[SAMPLED_HEADER, record as u32]);
        put(&mut bytes, &[ETHERNET, sample.bytes.saturating_add(FCS), FCS, head.len() as u32]);
        bytes.extend(head);
        bytes.extend(&[0; 3][..padding]);
        self.append(&bytes);
    }

    /// Adds the counters of an interface.
    pub fn add_counters(&mut self, of: &InterfaceCounters) {
        let source = self.sources.entry(of.ifindex).or_default();
        source.counters = source.counters.wrapping_add(1);
        let mut record = Vec::new();
        let long = |n: u64| [(n >> 32) as u32, n as u32];
        put(&mut record, &[of.ifindex, of.if_type]);
        put(&mut record, &long(of.speed_bps));
        put(&mut record, &[of.duplex, u32::from(of.is_up) | u32::from(of.is_running) << 1]);
        put(&mut record, &long(of.received.bytes));
        put(
            &mut record,
            &[of.received.packets.saturating_sub(of.multicast) as u32, of.multicast as u32, NOT_KNOWN],
        );
        put(&mut record, &[of.received.dropped as u32, of.received.errors as u32, NOT_KNOWN]);
        put(&mut record, &long(of.sent.bytes));
        put(&mut record, &[of.sent.packets as u32, NOT_KNOWN, NOT_KNOWN]);
        put(&mut record, &[of.sent.dropped as u32, of.sent.errors as u32]);
        // 1: promiscuous; 2: not.
        put(&mut record, &[2 - u32::from(of.is_promiscuous)]);
        let mut bytes = Vec::new();
        put(&mut bytes, &[COUNTERS_SAMPLE_EXPANDED, (16 + 8 + record.len()) as u32]);
        put(&mut bytes, &[source.counters, IF_INDEX, of.ifindex, 1, IF_COUNTERS, record.len() as u32]);
        bytes.extend(record);
        self.append(&bytes);
    }

    /// Forgets interfaces that are not among these.
    pub fn keep(&mut self, is_there: impl Fn(u32) -> bool) {
        self.sources.retain(|ifindex, _| is_there(*ifindex));
    }

    /// The datagrams of everything that was added.
    pub fn take(&mut self) -> Vec<Vec<u8>> {
        self.finish();
        std::mem::take(&mut self.ready)
    }

    fn append(&mut self, sample: &[u8]) {
        if HEAD_BYTES + self.samples.len() + sample.len() > MOST_BYTES {
            self.finish();
        }
        self.samples.extend(sample);
        self.count += 1;
    }

    fn finish(&mut self) {
        if self.count == 0 {
            return;
        }
        self.datagrams = self.datagrams.wrapping_add(1);
        let mut datagram = Vec::with_capacity(HEAD_BYTES + self.samples.len());
        match self.agent {
            IpAddr::V4(agent) => {
                put(&mut datagram, &[VERSION, 1]);
                datagram.extend(agent.octets());
            }
            IpAddr::V6(agent) => {
                put(&mut datagram, &[VERSION, 2]);
                datagram.extend(agent.octets());
            }
        }
        let sub_agent = 0;
        put(&mut datagram, &[sub_agent, self.datagrams, self.uptime_ms, self.count]);
        datagram.append(&mut self.samples);
        self.count = 0;
        self.ready.push(datagram);
    }
}

#[cfg(test)]
mod tests {
    use super::{super::counters::Traffic, *};

    fn words(bytes: &[u8]) -> Vec<u32> {
        bytes.chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap())).collect()
    }

    const SAMPLE: Sample<'_> = Sample {
        time_ns: 0,
        input: 70_000,
        output: Output::Port(0x1234_5678),
        router: Some(1),
        ahead: 900,
        bytes: 60,
        head: b"abcdef",
    };

    /// The words as the specification of sFlow lists them.
    #[test]
    fn a_sample_has_the_words_of_the_specification() {
        let mut sflow = Sflow::new("192.0.2.1".parse().unwrap(), 1000);
        assert!(sflow.take().is_empty());
        sflow.set(5000, 3);
        sflow.add(&SAMPLE);
        let expected = |number, samples, pool| {
            let abcd = u32::from_be_bytes(*b"abcd");
            let ef = u32::from_be_bytes(*b"ef\0\0");
            vec![
                5,
                1,
                0xc000_0201,
                0,
                number,
                5000,
                1, // the head
                3,
                76,
                samples,
                0,
                70_000,
                1000,
                pool,
                3,
                0,
                70_000,
                0,
                0x1234_5678,
                1, // the sample
                1,
                24,
                1,
                64,
                4,
                6,
                abcd,
                ef, // the record
            ]
        };
        assert_eq!(words(&sflow.take()[0]), expected(1, 1, 900));
        sflow.add(&SAMPLE);
        assert_eq!(words(&sflow.take()[0]), expected(2, 2, 1800));
        sflow.keep(|ifindex| ifindex != 70_000);
        sflow.add(&SAMPLE);
        assert_eq!(
            words(&sflow.take()[0]),
            expected(3, 1, 900),
            "another device with the index of one that is gone"
        );
    }

    #[test]
    fn what_became_of_packets_has_the_numbers_of_the_specification() {
        for (output, format, value) in [
            (Output::Several, 2, 0),
            (Output::Itself, 0, 0x3fff_ffff),
            (Output::Unknown, 0, 0),
            (Output::Dropped(Drop::Limit), 1, 261),
            (Output::Dropped(Drop::Rule), 1, 258),
            (Output::Dropped(Drop::Other), 1, 256),
        ] {
            let mut sflow = Sflow::new("2001:db8::1".parse().unwrap(), 1000);
            sflow.add(&Sample { output, ..SAMPLE });
            let words = words(&sflow.take()[0]);
            assert_eq!(words[..3], [5, 2, 0x2001_0db8]);
            assert_eq!(words[20..22], [format, value], "{output:?}");
        }
    }

    #[test]
    fn counters_have_the_words_of_the_specification() {
        let mut sflow = Sflow::new("192.0.2.1".parse().unwrap(), 1000);
        sflow.add_counters(&InterfaceCounters {
            ifindex: 9,
            if_type: 6,
            speed_bps: 25_000_000_000,
            duplex: 1,
            is_up: true,
            is_running: false,
            is_promiscuous: true,
            received: Traffic { bytes: 5 << 32 | 6, packets: 1 << 32 | 17, dropped: 8, errors: 9 },
            multicast: 10,
            sent: Traffic { bytes: 11, packets: 12, dropped: 13, errors: 14 },
        });
        let unknown = u32::MAX;
        let speed = [5, 25_000_000_000_u64 as u32];
        let expected = [
            &[4, 112, 1, 0, 9, 1, 1, 88, 9, 6][..],
            &speed,
            &[1, 1, 5, 6, 7, 10, unknown, 8, 9, unknown, 0, 11, 12, unknown, unknown, 13, 14, 1],
        ];
        assert_eq!(words(&sflow.take()[0])[7..], expected.concat());
    }

    #[test]
    fn datagrams_are_full_and_not_too_long() {
        let mut sflow = Sflow::new("2001:db8::1".parse().unwrap(), 1000);
        (0..100).for_each(|_| sflow.add(&Sample { head: &[7; 128], ..SAMPLE }));
        let datagrams = sflow.take();
        let counts: Vec<u32> = datagrams.iter().map(|datagram| words(datagram)[9]).collect();
        assert_eq!(counts, [&[6; 16][..], &[4]].concat());
        assert!(datagrams.iter().all(|datagram| datagram.len() <= MOST_BYTES));
    }
}
