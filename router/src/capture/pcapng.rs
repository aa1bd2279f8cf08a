//! Packets as blocks of a pcapng file (draft-ietf-opsawg-pcapng). Each port is an interface of the file. A packet is written
//! where it came in and, if it was forwarded, where it left. Comments say what happened to it.

use super::Names;
use crate::base::clock::monotonic;
use logic::{
    capture::record::{Fate, Record},
    plan::PortId,
    reason::Class,
};
use pcap_file::{
    DataLink, Endianness,
    pcapng::{
        PcapNgBlock, PcapNgWriter,
        blocks::{
            enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption},
            interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption},
            section_header::{SectionHeaderBlock, SectionHeaderOption},
        },
    },
};
use std::{
    borrow::Cow,
    collections::BTreeMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Flags of a block.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// Writes packets as bytes of a file. Writing to memory does not fail.
pub struct Writer {
    file: PcapNgWriter<Vec<u8>>,
    names: Names,
    snaplen: u32,
    /// Interfaces of the file by port. They are described when they first occur.
    interfaces: BTreeMap<Option<PortId>, u32>,
    /// The time of day when CLOCK_MONOTONIC was 0.
    epoch: Duration,
}

impl Writer {
    pub fn new(names: Names, snaplen: u32) -> Writer {
        let epoch =
            SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(monotonic());
        Self::at(names, snaplen, epoch)
    }

    fn at(names: Names, snaplen: u32, epoch: Duration) -> Writer {
        let program = concat!("millrace ", env!("CARGO_PKG_VERSION"));
        let section = SectionHeaderBlock {
            endianness: Endianness::native(),
            options: vec![SectionHeaderOption::UserApplication(program.into())],
            ..SectionHeaderBlock::default()
        };
        #[expect(clippy::unwrap_used, reason = "writing to memory does not fail")]
        let file = PcapNgWriter::with_section_header(Vec::new(), section).unwrap();
        let mut writer = Writer { file, names, snaplen, interfaces: BTreeMap::new(), epoch };
        // So that readers know the ports before the first packet.
        let names = &writer.names;
        let named = |port: &&PortId| names.only.is_empty() || names.only.contains(port);
        let ports: Vec<PortId> = names.ports.keys().filter(named).copied().collect();
        for port in ports {
            writer.interface(Some(port));
        }
        writer
    }

    /// What was written since the last call.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(self.file.get_mut())
    }

    /// Bytes that were written since then.
    pub fn len(&self) -> usize {
        self.file.get_ref().len()
    }

    pub fn put(&mut self, record: &Record<'_>) {
        let whose = self.whose(record);
        let time = self.epoch + Duration::from_nanos(record.time_ns);
        let wants = |port: PortId| self.names.only.is_empty() || self.names.only.contains(&port);
        let (in_wanted, out_wanted) = match record.fate {
            Fate::Forwarded(Some(port)) => (wants(record.in_port), wants(port)),
            _ => (wants(record.in_port), true),
        };
        if let Some(frame) = record.as_it_came_in().filter(|_| in_wanted) {
            let comment = format!("{whose}{}", self.verdict(record.fate));
            let kept = &frame[..frame.len().min(self.snaplen as usize)];
            self.packet(Some(record.in_port), time, kept, record.in_bytes, INBOUND, comment);
        }
        if let Fate::Forwarded(port) = record.fate
            && out_wanted
        {
            let comment = format!("{whose}forwarded from {}", self.port(Some(record.in_port)));
            self.packet(port, time, record.frame, record.out_bytes, OUTBOUND, comment);
        }
    }

    fn whose(&self, record: &Record<'_>) -> String {
        let name = record.router.map(|router| match self.names.routers.get(&router) {
            Some(name) => name.clone(),
            None => router.to_string(),
        });
        name.map_or(String::new(), |name| format!("router {name}: "))
    }

    fn port(&self, port: Option<PortId>) -> Cow<'_, str> {
        match port.map(|port| (port, self.names.ports.get(&port))) {
            Some((_, Some(name))) => name.into(),
            Some((port, None)) => format!("port {port}").into(),
            None => "several ports".into(),
        }
    }

    fn verdict(&self, fate: Fate) -> String {
        match fate {
            Fate::Forwarded(port) => format!("forwarded by {}", self.port(port)),
            Fate::HandedTo(core) => format!("core {core} goes on with it"),
            Fate::Other(reason) => {
                let verdict = match reason.class() {
                    Class::Drop | Class::Lost => "dropped",
                    Class::Taken => "given to user space",
                    Class::Pass | Class::Slow | Class::Exception | Class::Control => "to the kernel",
                };
                format!("{verdict} ({}): {}", reason.name(), reason.text())
            }
        }
    }

    /// The number of a port's interface in the file.
    fn interface(&mut self, port: Option<PortId>) -> u32 {
        let next = self.interfaces.len() as u32;
        if let Some(number) = self.interfaces.get(&port) {
            return *number;
        }
        self.interfaces.insert(port, next);
        let name = self.port(port).into_owned();
        let options = vec![
            InterfaceDescriptionOption::IfName(name.into()),
            // Nanoseconds.
            InterfaceDescriptionOption::IfTsResol(9),
        ];
        self.write(InterfaceDescriptionBlock {
            linktype: DataLink::ETHERNET,
            snaplen: self.snaplen,
            options,
        });
        next
    }

    fn packet(
        &mut self,
        port: Option<PortId>,
        timestamp: Duration,
        frame: &[u8],
        bytes: u32,
        direction: u32,
        comment: String,
    ) {
        let interface_id = self.interface(port);
        let options =
            vec![EnhancedPacketOption::Comment(comment.into()), EnhancedPacketOption::Flags(direction)];
        let (original_len, data) = (bytes, frame.into());
        self.write(EnhancedPacketBlock { interface_id, timestamp, original_len, data, options });
    }

    fn write<'a>(&mut self, block: impl PcapNgBlock<'a>) {
        if let Err(error) = self.file.write_pcapng_block(block) {
            tracing::error!("a packet cannot be written as pcapng: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use logic::reason::Reason;
    use pcap_file::pcapng::{Block, PcapNgParser};
    use std::collections::BTreeSet;

    fn record<'a>(fate: Fate, head: &'a [u8], frame: &'a [u8]) -> Record<'a> {
        Record {
            time_ns: 7,
            in_port: 0,
            router: Some(1),
            fate,
            ahead: 0,
            in_bytes: head.len() as u32,
            head,
            out_bytes: frame.len() as u32,
            frame,
            pushed: 0,
        }
    }

    /// Interface, time, bytes, original length, comment and direction.
    type Packet = (u32, Duration, Vec<u8>, u32, String, u32);

    /// The interfaces and packets of a file.
    fn packets(bytes: &[u8]) -> (Vec<String>, Vec<Packet>) {
        let (rest, mut parser) = PcapNgParser::new(bytes).unwrap();
        let (mut rest, mut interfaces, mut packets) = (rest, Vec::new(), Vec::new());
        while !rest.is_empty() {
            let (after, block) = parser.next_block(rest).unwrap();
            rest = after;
            match block {
                Block::InterfaceDescription(block) => {
                    let name = block.options.iter().find_map(|option| match option {
                        InterfaceDescriptionOption::IfName(name) => Some(name.to_string()),
                        _ => None,
                    });
                    interfaces.push(name.unwrap());
                }
                Block::EnhancedPacket(block) => {
                    let [EnhancedPacketOption::Comment(comment), EnhancedPacketOption::Flags(flags)] =
                        &block.options[..]
                    else {
                        panic!("{block:?}")
                    };
                    packets.push((
                        block.interface_id,
                        block.timestamp,
                        block.data.to_vec(),
                        block.original_len,
                        comment.to_string(),
                        *flags,
                    ));
                }
                block => panic!("{block:?}"),
            }
        }
        (interfaces, packets)
    }

    #[test]
    fn a_packet_is_written_where_it_came_in_and_where_it_left() {
        let names = Names {
            ports: [(0, "eth0".into()), (1, "eth1".into())].into(),
            routers: [(1, "blue".into())].into(),
            only: BTreeSet::new(),
        };
        let mut writer = Writer::at(names, 3, Duration::from_secs(1));
        writer.put(&record(Fate::Forwarded(Some(1)), b"abcd", b"xyz"));
        let first = writer.take();
        writer.put(&record(Fate::Other(Reason::OverMtu), b"abcd", b"abcd"));
        writer.put(&record(Fate::Other(Reason::RuleDrop), b"ab", b"ab"));
        writer.put(&record(Fate::HandedTo(3), b"ab", b"ab"));
        writer.put(&record(Fate::Forwarded(None), b"", b"x"));
        writer.put(&record(Fate::Forwarded(Some(9)), b"", b"x"));
        let all = [first, writer.take()].concat();
        let (interfaces, packets) = packets(&all);
        assert_eq!(interfaces, ["eth0", "eth1", "several ports", "port 9"]);
        let time = Duration::from_nanos(1_000_000_007);
        let packet = |interface, data: &[u8], length, comment: &str, flags| {
            (interface, time, data.to_vec(), length, comment.to_owned(), flags)
        };
        let expected = [
            packet(0, b"abc", 4, "router blue: forwarded by eth1", 1),
            packet(1, b"xyz", 3, "router blue: forwarded from eth0", 2),
            packet(
                0,
                b"abc",
                4,
                "router blue: to the kernel (over_mtu): longer than the egress MTU, and not to be fragmented",
                1,
            ),
            packet(0, b"ab", 2, "router blue: dropped (rule_drop): a flow rule drops it", 1),
            packet(0, b"ab", 2, "router blue: core 3 goes on with it", 1),
            packet(2, b"x", 1, "router blue: forwarded from eth0", 2),
            packet(3, b"x", 1, "router blue: forwarded from eth0", 2),
        ];
        assert_eq!(packets, expected);
    }

    #[test]
    fn a_file_of_one_port_has_what_passes_there() {
        let ports = [(0, "eth0".into()), (1, "eth1".into())].into();
        let names = Names { ports, only: [1].into(), ..Names::default() };
        let mut writer = Writer::at(names, 9, Duration::ZERO);
        writer.put(&record(Fate::Forwarded(Some(1)), b"abcd", b"xyz"));
        writer.put(&Record { in_port: 1, ..record(Fate::Forwarded(Some(0)), b"ab", b"cd") });
        let (interfaces, packets) = packets(&writer.take());
        assert_eq!(interfaces, ["eth1"]);
        let packets: Vec<_> = packets.into_iter().map(|(_, _, data, _, _, flags)| (data, flags)).collect();
        assert_eq!(packets, [(b"xyz".to_vec(), 2), (b"ab".to_vec(), 1)]);
    }
}
