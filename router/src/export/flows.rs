//! The flows of sampled packets, as IPFIX reports them.

use super::sample::{Output, Sample};
use etherparse::{LaxNetSlice, LaxSlicedPacket, TransportSlice};
use logic::plan::RouterId;
use std::{
    collections::HashMap,
    mem,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// Flows that are kept until they are reported. A further one makes all of them be reported.
const MOST: usize = 4096;

/// What the packets of a flow have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Both of one IP version.
    pub source: IpAddr,
    pub destination: IpAddr,
    pub protocol: u8,
    /// 0 for protocols without ports, and for fragments behind the first.
    pub source_port: u16,
    pub destination_port: u16,
    /// TOS or traffic class.
    pub tos: u8,
    /// The outer one as the packet came in; 0: untagged.
    pub vlan: u16,
    pub input: u32,
    pub output: Output,
    pub router: Option<RouterId>,
}

/// The sampled packets of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    pub packets: u64,
    /// Of the IP packets.
    pub bytes: u64,
    /// All flags that its packets had.
    pub tcp_flags: u8,
    /// Of its first and its last packet, CLOCK_MONOTONIC.
    pub first_ns: u64,
    pub last_ns: u64,
}

/// The flows since the last report.
#[derive(Debug, Default)]
pub struct FlowCache {
    flows: HashMap<Key, Flow>,
    /// Sampled packets that are not IP.
    pub not_ip: u64,
}

impl FlowCache {
    /// Adds a packet. `Some`: the flows before it have to be reported, because there is no room for more.
    pub fn add(&mut self, sample: &Sample<'_>) -> Option<Vec<(Key, Flow)>> {
        let Some((key, bytes, tcp_flags)) = read(sample) else {
            self.not_ip += 1;
            return None;
        };
        let is_full = self.flows.len() >= MOST && !self.flows.contains_key(&key);
        let full = is_full.then(|| self.take());
        let new =
            Flow { packets: 0, bytes: 0, tcp_flags: 0, first_ns: sample.time_ns, last_ns: sample.time_ns };
        let flow = self.flows.entry(key).or_insert(new);
        flow.packets += 1;
        flow.bytes += bytes;
        flow.tcp_flags |= tcp_flags;
        // Packets of several cores may be read in another order.
        flow.first_ns = flow.first_ns.min(sample.time_ns);
        flow.last_ns = flow.last_ns.max(sample.time_ns);
        full
    }

    /// All flows. From now on, they are new ones.
    pub fn take(&mut self) -> Vec<(Key, Flow)> {
        mem::take(&mut self.flows).into_iter().collect()
    }
}

/// The flow of a packet, the bytes of its IP packet, and its TCP flags; `None`: it is not IP, or its header is cut off.
fn read(sample: &Sample<'_>) -> Option<(Key, u64, u8)> {
    let packet = LaxSlicedPacket::from_ethernet(sample.head).ok()?;
    let vlan = packet.vlan_ids().first().map_or(0, |vlan| vlan.value());
    let (source, destination, protocol, tos, bytes) = match packet.net.as_ref()? {
        LaxNetSlice::Ipv4(ip) => {
            let header = ip.header();
            (
                IpAddr::from(Ipv4Addr::from(header.source())),
                IpAddr::from(Ipv4Addr::from(header.destination())),
                header.protocol().0,
                header.dcp().value() << 2 | header.ecn().value(),
                u64::from(header.total_len()),
            )
        }
        LaxNetSlice::Ipv6(ip) => {
            let header = ip.header();
            (
                IpAddr::from(Ipv6Addr::from(header.source())),
                IpAddr::from(Ipv6Addr::from(header.destination())),
                ip.payload().ip_number.0,
                header.traffic_class(),
                u64::from(header.payload_length()) + 40,
            )
        }
        LaxNetSlice::Arp(_) => return None,
    };
    let (source_port, destination_port, tcp_flags) = match &packet.transport {
        Some(TransportSlice::Udp(udp)) => (udp.source_port(), udp.destination_port(), 0),
        // The control bits are this byte (RFC 9293, RFC 7125).
        Some(TransportSlice::Tcp(tcp)) => {
            (tcp.source_port(), tcp.destination_port(), tcp.slice().get(13).copied().unwrap_or(0))
        }
        // IPFIX gives collectors type and code here, as NetFlow did.
        Some(TransportSlice::Icmpv4(icmp)) => (0, u16::from_be_bytes([icmp.type_u8(), icmp.code_u8()]), 0),
        Some(TransportSlice::Icmpv6(icmp)) => (0, u16::from_be_bytes([icmp.type_u8(), icmp.code_u8()]), 0),
        Some(TransportSlice::Igmp(_)) | None => (0, 0, 0),
    };
    let key = Key {
        source,
        destination,
        protocol,
        source_port,
        destination_port,
        tos,
        vlan,
        input: sample.input,
        output: sample.output,
        router: sample.router,
    };
    Some((key, bytes, tcp_flags))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::packet::PacketText;
    use logic::net::Mac;

    fn sample(head: &[u8]) -> Sample<'_> {
        Sample {
            time_ns: 5,
            input: 7,
            output: Output::Port(8),
            router: Some(1),
            ahead: 1,
            bytes: head.len() as u32,
            head,
        }
    }

    fn frame(text: &str) -> Vec<u8> {
        let packet: PacketText = text.parse().unwrap();
        packet.frame(Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]), packet.vlan.unwrap_or_default())
    }

    fn of(text: &str) -> (Key, u64, u8) {
        let frame = frame(text);
        read(&sample(&frame[..frame.len().min(128)])).unwrap()
    }

    #[test]
    fn a_flow_has_the_fields_of_its_packets() {
        let (key, bytes, flags) = of("udp 10.0.0.1:1234 -> 10.1.0.1:80 tos=184 vlan=10.20 len=1400");
        let expected = Key {
            source: "10.0.0.1".parse().unwrap(),
            destination: "10.1.0.1".parse().unwrap(),
            protocol: 17,
            source_port: 1234,
            destination_port: 80,
            tos: 184,
            vlan: 10,
            input: 7,
            output: Output::Port(8),
            router: Some(1),
        };
        assert_eq!((key, bytes, flags), (expected, 1400, 0));
        let (key, bytes, flags) = of("tcp [2001:db8::1]:1 -> [2001:db8::2]:2 tos=3 len=1500");
        let expected = Key {
            source: "2001:db8::1".parse().unwrap(),
            destination: "2001:db8::2".parse().unwrap(),
            protocol: 6,
            source_port: 1,
            destination_port: 2,
            tos: 3,
            vlan: 0,
            ..expected
        };
        assert_eq!((key, bytes), (expected, 1500));
        assert_eq!(flags, frame("tcp [2001:db8::1]:1 -> [2001:db8::2]:2")[14 + 40 + 13]);
        let (key, ..) = of("icmp 10.0.0.1 -> 10.1.0.1");
        assert_eq!((key.protocol, key.source_port, key.destination_port), (1, 0, 8 << 8));
    }

    #[test]
    fn a_fragment_has_no_ports() {
        let mut frame = frame("udp 10.0.0.1:1234 -> 10.1.0.1:80 len=1400");
        frame[20..22].copy_from_slice(&100_u16.to_be_bytes());
        let (key, bytes, _) = read(&sample(&frame[..128])).unwrap();
        assert_eq!((key.protocol, key.source_port, key.destination_port, bytes), (17, 0, 0, 1400));
    }

    #[test]
    fn packets_of_a_flow_are_added_up_and_a_full_cache_is_reported() {
        let mut cache = FlowCache::default();
        let first = frame("udp 10.0.0.1:1 -> 10.1.0.1:80 len=100");
        for time_ns in [7, 5, 6] {
            assert_eq!(cache.add(&Sample { time_ns, ..sample(&first) }), None);
        }
        assert_eq!(cache.add(&sample(&[0; 60])), None);
        assert_eq!(cache.add(&sample(&[])), None);
        assert_eq!(cache.not_ip, 2);
        let [(key, flow)] = cache.take()[..] else { panic!("not one flow") };
        assert_eq!(key.source_port, 1);
        assert_eq!(flow, Flow { packets: 3, bytes: 300, tcp_flags: 0, first_ns: 5, last_ns: 7 });
        let mut frame = first;
        let mut reported = 0;
        for port in 0..=MOST as u16 {
            frame[34..36].copy_from_slice(&port.to_be_bytes());
            reported += cache.add(&sample(&frame)).map_or(0, |flows| flows.len());
        }
        assert_eq!((reported, cache.take().len()), (MOST, 1));
    }

    proptest::proptest! {
        #[test]
        fn nothing_panics(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..128)) {
            read(&sample(&bytes));
        }
    }
}
