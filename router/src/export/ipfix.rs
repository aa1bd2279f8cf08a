//! Messages of IPFIX (RFC 7011) over UDP: flows of sampled packets, with the templates of their records, and the sampling
//! interval, so that collectors multiply.

use super::{
    flows::{Flow, Key},
    sample::{Drop, Output},
};
use std::{net::IpAddr, time::Duration};

const VERSION: u16 = 10;
/// Numbers of sets.
const TEMPLATES: u16 = 2;
const OPTIONS_TEMPLATES: u16 = 3;
/// Numbers of templates.
const FLOWS4: u16 = 256;
const FLOWS6: u16 = 257;
const SAMPLING: u16 = 258;
/// Templates are repeated after this time, as messages may be lost.
const REPEAT: Duration = Duration::from_secs(20);
/// The most bytes of a message, which then fits into every usual MTU.
const MOST_BYTES: usize = 1400;
const HEAD_BYTES: usize = 16;
/// A set begins with its number and length.
const SET_BYTES: usize = 4;

/// The fields of a flow after its addresses: number and bytes of an information element (RFC 5102, IANA), and its name.
const FIELDS: [(u16, u16, &str); 15] = [
    (7, 2, "sourceTransportPort"),
    (11, 2, "destinationTransportPort"),
    (4, 1, "protocolIdentifier"),
    (5, 1, "ipClassOfService"),
    (6, 1, "tcpControlBits"),
    (89, 1, "forwardingStatus"),
    (58, 2, "vlanId"),
    (61, 1, "flowDirection"),
    (10, 4, "ingressInterface"),
    (14, 4, "egressInterface"),
    (234, 4, "ingressVRFID"),
    (2, 8, "packetDeltaCount"),
    (1, 8, "octetDeltaCount"),
    (152, 8, "flowStartMilliseconds"),
    (153, 8, "flowEndMilliseconds"),
];
const ADDRESSES4: [(u16, u16); 2] = [(8, 4), (12, 4)];
const ADDRESSES6: [(u16, u16); 2] = [(27, 16), (28, 16)];
/// The fields of a record about sampling (RFC 5477); the first one is its scope, the observation domain. The second one is
/// deprecated, but older collectors know only this one. Beside `samplingAlgorithm` (35), nfdump 1.7.1 would ignore the record.
const OPTIONS: [(u16, u16, &str); 6] = [
    (149, 4, "observationDomainId"),
    (34, 4, "samplingInterval"),
    (304, 2, "selectorAlgorithm"),
    (305, 4, "samplingPacketInterval"),
    (306, 4, "samplingPacketSpace"),
    (311, 8, "samplingProbability"),
];
/// `selectorAlgorithm`
const UNIFORM_PROBABILISTIC: u16 = 4;

/// The observation domain of all messages.
pub const DOMAIN: u32 = 0;

/// Makes messages.
#[derive(Debug)]
pub struct Ipfix {
    every: u32,
    /// Records sent so far.
    records: u32,
    /// When templates were last sent.
    templates_sent: Option<Duration>,
}

/// The clocks at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// CLOCK_MONOTONIC.
    pub monotonic: Duration,
    /// Since 1970.
    pub real: Duration,
}

impl Now {
    fn milliseconds(&self, monotonic_ns: u64) -> u64 {
        let ago = self.monotonic.saturating_sub(Duration::from_nanos(monotonic_ns));
        self.real.saturating_sub(ago).as_millis() as u64
    }
}

impl Ipfix {
    /// Messages of an exporter that samples one packet in `every`.
    pub fn new(every: u32) -> Ipfix {
        Ipfix { every, records: 0, templates_sent: None }
    }

    /// The messages of these flows.
    pub fn messages(&mut self, flows: &[(Key, Flow)], now: Now) -> Vec<Vec<u8>> {
        let mut messages = Vec::new();
        if !flows.is_empty()
            && self.templates_sent.is_none_or(|sent| now.monotonic.saturating_sub(sent) >= REPEAT)
        {
            self.templates_sent = Some(now.monotonic);
            messages.push(self.message(now, &self.templates(), 1));
        }
        for (template, is_it) in [(FLOWS4, Key::is_ipv4 as fn(&Key) -> bool), (FLOWS6, |key| !key.is_ipv4())]
        {
            let records: Vec<Vec<u8>> = flows
                .iter()
                .filter(|(key, _)| is_it(key))
                .map(|(key, flow)| record(key, flow, now))
                .collect();
            let each = records.first().map_or(1, Vec::len);
            for records in records.chunks((MOST_BYTES - HEAD_BYTES - SET_BYTES) / each) {
                messages.push(self.message(now, &set(template, &records.concat()), records.len() as u32));
            }
        }
        messages
    }

    /// A message with these sets, which have so many records.
    fn message(&mut self, now: Now, sets: &[u8], records: u32) -> Vec<u8> {
        let mut message = Vec::with_capacity(HEAD_BYTES + sets.len());
        message.extend(VERSION.to_be_bytes());
        message.extend(((HEAD_BYTES + sets.len()) as u16).to_be_bytes());
        for word in [now.real.as_secs() as u32, self.records, DOMAIN] {
            message.extend(word.to_be_bytes());
        }
        message.extend(sets);
        self.records = self.records.wrapping_add(records);
        message
    }

    /// The templates, and the record about sampling.
    fn templates(&self) -> Vec<u8> {
        let mut templates = Vec::new();
        for (number, addresses) in [(FLOWS4, ADDRESSES4), (FLOWS6, ADDRESSES6)] {
            let fields = addresses.into_iter().chain(FIELDS.iter().map(|&(id, bytes, _)| (id, bytes)));
            shorts(&mut templates, &[number, (addresses.len() + FIELDS.len()) as u16]);
            fields.for_each(|(id, bytes)| shorts(&mut templates, &[id, bytes]));
        }
        let mut options = Vec::new();
        let scopes = 1;
        shorts(&mut options, &[SAMPLING, OPTIONS.len() as u16, scopes]);
        OPTIONS.iter().for_each(|(id, bytes, _)| shorts(&mut options, &[*id, *bytes]));
        let mut sampling = Vec::new();
        sampling.extend(DOMAIN.to_be_bytes());
        sampling.extend(self.every.to_be_bytes());
        sampling.extend(UNIFORM_PROBABILISTIC.to_be_bytes());
        sampling.extend(1_u32.to_be_bytes());
        sampling.extend(self.every.saturating_sub(1).to_be_bytes());
        sampling.extend((1.0 / f64::from(self.every)).to_be_bytes());
        [set(TEMPLATES, &templates), set(OPTIONS_TEMPLATES, &options), set(SAMPLING, &sampling)].concat()
    }
}

impl Key {
    fn is_ipv4(&self) -> bool {
        self.source.is_ipv4()
    }
}

fn shorts(to: &mut Vec<u8>, all: &[u16]) {
    all.iter().for_each(|short| to.extend(short.to_be_bytes()));
}

fn set(number: u16, content: &[u8]) -> Vec<u8> {
    let mut set = Vec::with_capacity(SET_BYTES + content.len());
    shorts(&mut set, &[number, (SET_BYTES + content.len()) as u16]);
    set.extend(content);
    set
}

/// The fields of [`FIELDS`], in their order.
fn record(key: &Key, flow: &Flow, now: Now) -> Vec<u8> {
    let mut record = Vec::new();
    for address in [key.source, key.destination] {
        match address {
            IpAddr::V4(address) => record.extend(address.octets()),
            IpAddr::V6(address) => record.extend(address.octets()),
        }
    }
    let ingress = 0;
    let (egress, status) = output(key.output);
    shorts(&mut record, &[key.source_port, key.destination_port]);
    record.extend([key.protocol, key.tos, flow.tcp_flags, status]);
    shorts(&mut record, &[key.vlan]);
    record.push(ingress);
    for word in [key.input, egress, key.router.map_or(0, u32::from)] {
        record.extend(word.to_be_bytes());
    }
    let times = [flow.first_ns, flow.last_ns].map(|ns| now.milliseconds(ns));
    for long in [flow.packets, flow.bytes].into_iter().chain(times) {
        record.extend(long.to_be_bytes());
    }
    record
}

/// `egressInterface` and `forwardingStatus` (RFC 7270) of an output.
fn output(output: Output) -> (u32, u8) {
    const NOT_KNOWN: u8 = 0;
    const FORWARDED: u8 = 64;
    const DROPPED: u8 = 128;
    const ACL_DROP: u8 = 130;
    const POLICER: u8 = 138;
    const FOR_US: u8 = 195;
    match output {
        Output::Port(ifindex) => (ifindex, FORWARDED),
        Output::Several => (0, FORWARDED),
        Output::Itself => (0, FOR_US),
        Output::Dropped(Drop::Limit) => (0, POLICER),
        Output::Dropped(Drop::Rule) => (0, ACL_DROP),
        Output::Dropped(Drop::Other) => (0, DROPPED),
        Output::Unknown => (0, NOT_KNOWN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Now = Now { monotonic: Duration::from_secs(100), real: Duration::from_secs(1_000_100) };
    const FLOW: Flow =
        Flow { packets: 3, bytes: 300, tcp_flags: 2, first_ns: 99_000_000_000, last_ns: 99_500_000_000 };

    fn key(source: &str, destination: &str) -> Key {
        Key {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            protocol: 6,
            source_port: 0x1234,
            destination_port: 80,
            tos: 184,
            vlan: 10,
            input: 7,
            output: Output::Port(8),
            router: Some(2),
        }
    }

    /// The sets of a message: number and content.
    fn sets(message: &[u8]) -> Vec<(u16, &[u8])> {
        let short = |at: usize| u16::from_be_bytes(message[at..at + 2].try_into().unwrap());
        assert_eq!((short(0), short(2) as usize), (VERSION, message.len()));
        let (mut at, mut sets) = (HEAD_BYTES, Vec::new());
        while at < message.len() {
            let end = at + usize::from(short(at + 2));
            sets.push((short(at), &message[at + SET_BYTES..end]));
            at = end;
        }
        sets
    }

    fn word(bytes: &[u8], at: usize) -> u32 {
        u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    #[test]
    fn a_record_has_the_fields_of_its_template() {
        for (source, destination, addresses) in
            [("10.0.0.1", "10.1.0.1", ADDRESSES4), ("2001:db8::1", "2001:db8::2", ADDRESSES6)]
        {
            let record = record(&key(source, destination), &FLOW, NOW);
            let bytes: u16 =
                addresses.iter().map(|(_, bytes)| bytes).chain(FIELDS.iter().map(|(_, b, _)| b)).sum();
            assert_eq!(record.len(), usize::from(bytes));
            let fields = &record[addresses.iter().map(|(_, bytes)| usize::from(*bytes)).sum()..];
            let numbers = [7, 8, 2].map(u32::to_be_bytes).concat();
            let counts = [3, 300, 1_000_099_000, 1_000_099_500].map(u64::to_be_bytes).concat();
            let expected = [&[0x12, 0x34, 0, 80, 6, 184, 2, 64, 0, 10, 0][..], &numbers, &counts].concat();
            assert_eq!(fields, expected);
        }
    }

    #[test]
    fn templates_come_first_and_again_after_a_while() {
        let mut ipfix = Ipfix::new(1000);
        assert!(ipfix.messages(&[], NOW).is_empty());
        let flows = [(key("10.0.0.1", "10.1.0.1"), FLOW), (key("2001:db8::1", "2001:db8::2"), FLOW)];
        let messages = ipfix.messages(&flows, NOW);
        let numbers: Vec<Vec<u16>> =
            messages.iter().map(|message| sets(message).iter().map(|set| set.0).collect()).collect();
        assert_eq!(numbers, [vec![TEMPLATES, OPTIONS_TEMPLATES, SAMPLING], vec![FLOWS4], vec![FLOWS6]]);
        let sequence: Vec<u32> = messages.iter().map(|message| word(message, 8)).collect();
        assert_eq!(sequence, [0, 1, 2], "the records before each message, with the one about sampling");
        assert!(messages.iter().all(|message| word(message, 4) == 1_000_100 && word(message, 12) == DOMAIN));
        let templates = sets(&messages[0]);
        assert_eq!(templates[0].1[..12], [1, 0, 0, 17, 0, 8, 0, 4, 0, 12, 0, 4]);
        assert_eq!(templates[0].1.len(), 2 * (4 + 17 * 4));
        assert_eq!(templates[1].1[..10], [1, 2, 0, 6, 0, 1, 0, 149, 0, 4]);
        let numbers = [0, 0, 0, 0].into_iter().chain(1000_u32.to_be_bytes()).chain([0, 4, 0, 0, 0, 1]);
        let expected: Vec<u8> = numbers.chain(999_u32.to_be_bytes()).chain(0.001_f64.to_be_bytes()).collect();
        assert_eq!(templates[2].1, expected);
        let bytes: u16 = OPTIONS.iter().map(|(_, bytes, _)| bytes).sum();
        assert_eq!(templates[2].1.len(), usize::from(bytes));
        let later = |s| Now { monotonic: NOW.monotonic + Duration::from_secs(s), ..NOW };
        assert_eq!(ipfix.messages(&flows, later(19)).len(), 2);
        assert_eq!(ipfix.messages(&flows, later(20)).len(), 3);
    }

    #[test]
    fn many_flows_are_divided_into_messages() {
        let mut ipfix = Ipfix::new(10);
        let flows = vec![(key("2001:db8::1", "2001:db8::2"), FLOW); 100];
        let messages = ipfix.messages(&flows, NOW);
        assert!(messages.iter().all(|message| message.len() <= MOST_BYTES && message.len() > 100));
        let bytes: usize = messages[1..].iter().map(|message| sets(message)[0].1.len()).sum();
        assert_eq!(bytes, 100 * record(&flows[0].0, &FLOW, NOW).len());
        assert_eq!(ipfix.records, 101);
    }

    #[test]
    fn outputs_have_the_numbers_of_the_rfc() {
        let all = [
            Output::Port(9),
            Output::Several,
            Output::Itself,
            Output::Dropped(Drop::Limit),
            Output::Dropped(Drop::Rule),
            Output::Dropped(Drop::Other),
            Output::Unknown,
        ];
        let expected = [(9, 64), (0, 64), (0, 195), (0, 138), (0, 130), (0, 128), (0, 0)];
        assert_eq!(all.map(output), expected);
    }
}
