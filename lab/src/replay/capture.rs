//! A capture as it is replayed: pcap or pcapng, of Ethernet or of bare IP.
//!
//! A file that is broken is refused, and so is one that holds more than fits in memory; single packets that cannot be
//! replayed are left out and counted by the reason.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{Read, Seek},
    path::Path,
};

use anyhow::{Context, Result, bail, ensure};
use pcap_file::{
    DataLink, PcapError, TsResolution,
    pcap::PcapReader,
    pcapng::{
        Block, PcapNgReader,
        blocks::interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption},
    },
};

use crate::{addresses::Mac, generator::MAX_JUMBO, packet::ETHERNET_BYTES};

/// Most packets of a replay.
pub const MAX_PACKETS: usize = 1 << 20;
/// Most bytes of all its frames. What comes out of two subjects is in memory too.
pub const MAX_BYTES: usize = 256 << 20;

/// First bytes of a pcapng file, in either byte order.
const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
const ETHERNET: usize = ETHERNET_BYTES as usize;
const TAG: usize = 4;

/// A frame, and when it came: nanoseconds since the first one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Never less than that of the one before.
    pub at_ns: u64,
    /// Ethernet without tags and FCS, with the MAC addresses of the replay.
    pub frame: Vec<u8>,
}

/// What a file holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capture {
    /// In the file's order.
    pub packets: Vec<Packet>,
    /// So many packets are left out, by the reason.
    pub left_out: BTreeMap<String, u64>,
    /// Packets whose VLAN tags were taken away: the testbed has no VLANs.
    pub untagged: u64,
    bytes: usize,
    first_ns: Option<u64>,
}

/// Who sends, and to whom: in place of the MAC addresses of the capture. Group addresses are kept.
#[derive(Clone, Copy, Debug)]
pub struct Macs {
    /// The router's.
    pub to: Mac,
    /// The generator's.
    pub from: Mac,
}

/// Reads a file; only its first packets, if so many are asked for.
pub fn read(path: &Path, macs: Macs, first: Option<usize>) -> Result<Capture> {
    let name = path.display().to_string();
    let file = File::open(path).with_context(|| format!("cannot read {name}"))?;
    read_from(file, &name, macs, first)
}

/// The same of what is open, which errors call `name`.
pub fn read_from(
    mut file: impl Read + Seek,
    name: &str,
    macs: Macs,
    first: Option<usize>,
) -> Result<Capture> {
    let mut magic = [0; 4];
    let is_pcapng = file.read_exact(&mut magic).is_ok() && magic == PCAPNG;
    file.rewind().with_context(|| format!("cannot read {name}"))?;
    let neither = || format!("{name} is neither a pcap nor a pcapng file");
    let mut capture = Capture::default();
    let mut taken = 0;
    let mut next: Box<dyn FnMut() -> Option<Result<Raw, PcapError>>> = if is_pcapng {
        let mut reader = PcapNgReader::new(file).with_context(neither)?;
        Box::new(move || next_of_pcapng(&mut reader))
    } else {
        let mut reader = PcapReader::new(file).with_context(neither)?;
        let link = reader.header().datalink;
        ensure!(
            Link::of(link).is_some(),
            "{name} holds {link:?} frames; Ethernet or bare IP can be replayed"
        );
        Box::new(move || next_of_pcap(&mut reader))
    };
    while first.is_none_or(|first| taken < first) {
        let Some(raw) = next() else { break };
        taken += 1;
        let raw = raw.with_context(|| {
            format!(
                "{name} is broken at packet {taken}; `tcpdump -r {name} -w whole.pcap` keeps those before it"
            )
        })?;
        capture.add(raw, macs);
        ensure!(
            capture.packets.len() <= MAX_PACKETS && capture.bytes <= MAX_BYTES,
            "{name} holds more than the {MAX_PACKETS} packets or {} MiB that fit in memory: --packets N takes the first N",
            MAX_BYTES >> 20
        );
    }
    if capture.packets.is_empty() {
        let reasons: Vec<String> = capture.left_out.iter().map(|(why, n)| format!("{n} {why}")).collect();
        bail!(
            "{name} holds nothing that can be replayed{}{}",
            if taken > 0 { ": " } else { "" },
            reasons.join("; ")
        );
    }
    Ok(capture)
}

/// As a file has it.
struct Raw {
    link: DataLink,
    /// Since whenever the file counts from; `None`: not noted.
    time_ns: Option<u64>,
    data: Vec<u8>,
    /// On the wire.
    length: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Link {
    Ethernet,
    Ip,
}

impl Link {
    fn of(link: DataLink) -> Option<Self> {
        match link {
            DataLink::ETHERNET => Some(Self::Ethernet),
            DataLink::RAW | DataLink::IPV4 | DataLink::IPV6 => Some(Self::Ip),
            _ => None,
        }
    }
}

impl Capture {
    fn add(&mut self, raw: Raw, macs: Macs) {
        let last_ns = self.packets.last().map_or(0, |packet| packet.at_ns);
        let at_ns = raw.time_ns.map_or(last_ns, |ns| {
            let first_ns = *self.first_ns.get_or_insert(ns);
            ns.saturating_sub(first_ns).max(last_ns)
        });
        match frame(raw, macs, &mut self.untagged) {
            Ok(frame) => {
                self.bytes += frame.len();
                self.packets.push(Packet { at_ns, frame });
            }
            Err(why) => *self.left_out.entry(why).or_default() += 1,
        }
    }
}

/// What is sent for a packet, or why nothing is.
fn frame(raw: Raw, macs: Macs, untagged: &mut u64) -> Result<Vec<u8>, String> {
    let Some(link) = Link::of(raw.link) else {
        return Err(format!("neither Ethernet nor bare IP ({:?})", raw.link));
    };
    if raw.data.len() < raw.length as usize {
        return Err("captured without their end (tcpdump -s 0 captures whole packets)".into());
    }
    let mut frame = match link {
        Link::Ethernet => raw.data,
        Link::Ip => {
            let ether_type = match raw.data.first().map(|byte| byte >> 4) {
                Some(4) => [0x08, 0x00],
                Some(6) => [0x86, 0xdd],
                _ => return Err("neither IPv4 nor IPv6, though captured as bare IP".into()),
            };
            [&macs.to[..], &macs.from, &ether_type, &raw.data].concat()
        }
    };
    if frame.len() < ETHERNET {
        return Err("shorter than an Ethernet header".into());
    }
    let is_tagged =
        |frame: &[u8]| matches!(frame[12..14], [0x81, 0x00] | [0x88, 0xa8]) && frame.len() >= ETHERNET + TAG;
    *untagged += u64::from(is_tagged(&frame));
    while is_tagged(&frame) {
        frame.drain(12..12 + TAG);
    }
    if frame.len() > usize::from(MAX_JUMBO) {
        return Err(format!(
            "longer than {MAX_JUMBO} bytes: merged before they were captured (ethtool -K DEVICE gro off tso off)"
        ));
    }
    let is_group = frame[0] & 1 == 1;
    if !is_group {
        frame[..6].copy_from_slice(&macs.to);
    }
    frame[6..12].copy_from_slice(&macs.from);
    Ok(frame)
}

/// Not the library's own packets: it refuses files with packets that were longer on the wire than what is kept of each.
fn next_of_pcap(reader: &mut PcapReader<impl Read>) -> Option<Result<Raw, PcapError>> {
    let header = reader.header();
    let nanoseconds = if header.ts_resolution == TsResolution::NanoSecond { 1 } else { 1000 };
    let raw = reader.next_raw_packet()?;
    Some(raw.map(|packet| Raw {
        link: header.datalink,
        time_ns: Some(u64::from(packet.ts_sec) * 1_000_000_000 + u64::from(packet.ts_frac) * nanoseconds),
        length: packet.orig_len,
        data: packet.data.into_owned(),
    }))
}

/// Blocks that hold no packet are skipped.
fn next_of_pcapng(reader: &mut PcapNgReader<impl Read>) -> Option<Result<Raw, PcapError>> {
    loop {
        let (interface, units, mut data, length) = match reader.next_block()? {
            // The library takes all times for nanoseconds.
            Ok(Block::EnhancedPacket(p)) => {
                (p.interface_id, Some(p.timestamp.as_nanos()), p.data.into_owned(), p.original_len)
            }
            Ok(Block::SimplePacket(p)) => (0, None, p.data.into_owned(), p.original_len),
            Ok(_) => continue,
            Err(error) => return Some(Err(error)),
        };
        let Some(interface) = reader.interfaces().get(interface as usize) else {
            return Some(Err(PcapError::InvalidField("a packet of an interface that is not described")));
        };
        // A simple packet ends with padding to four bytes.
        data.truncate(data.len().min(length as usize));
        let time_ns = match units.map(|units| nanoseconds(units, interface)) {
            Some(None) => {
                return Some(Err(PcapError::InvalidField("time stamps of an impossible resolution")));
            }
            Some(time_ns) => time_ns,
            None => None,
        };
        return Some(Ok(Raw { link: interface.linktype, time_ns, data, length }));
    }
}

/// Of an interface's units of time: 10^-n s, or 2^-n s if the highest bit is set.
fn nanoseconds(units: u128, interface: &InterfaceDescriptionBlock<'_>) -> Option<u64> {
    const MICROSECONDS: u8 = 6;
    let resolution = interface.options.iter().find_map(|option| match option {
        InterfaceDescriptionOption::IfTsResol(resolution) => Some(*resolution),
        _ => None,
    });
    let resolution = resolution.unwrap_or(MICROSECONDS);
    let base: u128 = if resolution & 0x80 == 0 { 10 } else { 2 };
    let per_second = base.checked_pow((resolution & 0x7f).into())?;
    u64::try_from(units.checked_mul(1_000_000_000)? / per_second).ok()
}

#[cfg(test)]
mod tests {
    use std::{borrow::Cow, io::Cursor, time::Duration};

    use pcap_file::{
        Endianness,
        pcap::{PcapHeader, PcapPacket, PcapWriter},
        pcapng::{PcapNgWriter, blocks::enhanced_packet::EnhancedPacketBlock},
    };
    use proptest::prelude::*;

    use super::*;

    const MACS: Macs = Macs { to: [2, 0, 0, 0, 0, 1], from: [2, 0, 0, 0, 0, 2] };

    fn read(bytes: &[u8]) -> Result<Capture> {
        read_from(Cursor::new(bytes), "it", MACS, None)
    }

    fn refused(bytes: &[u8]) -> String {
        format!("{:#}", read(bytes).unwrap_err())
    }

    fn ethernet(ether_type: &[u8], payload: &[u8]) -> Vec<u8> {
        [&[0x08; 12], ether_type, payload].concat()
    }

    fn sent(ether_type: &[u8], payload: &[u8]) -> Vec<u8> {
        [&MACS.to[..], &MACS.from, ether_type, payload].concat()
    }

    fn pcap(datalink: DataLink, ts_resolution: TsResolution, packets: &[(Duration, u32, &[u8])]) -> Vec<u8> {
        let header =
            PcapHeader { datalink, ts_resolution, endianness: Endianness::Big, ..PcapHeader::default() };
        let mut writer = PcapWriter::with_header(Vec::new(), header).unwrap();
        for (time, length, data) in packets {
            writer.write_packet(&PcapPacket::new(*time, *length, data)).unwrap();
        }
        writer.into_writer()
    }

    fn one(data: &[u8]) -> Vec<u8> {
        pcap(DataLink::ETHERNET, TsResolution::MicroSecond, &[(Duration::ZERO, data.len() as u32, data)])
    }

    #[test]
    fn times_are_since_the_first_and_never_go_back() {
        for resolution in [TsResolution::MicroSecond, TsResolution::NanoSecond] {
            let frame = ethernet(&[8, 0], &[0x45; 40]);
            let times = [100_000_001, 100_000_003, 100_000_002, 120_000_001].map(Duration::from_micros);
            let packets = times.map(|time| (time, frame.len() as u32, &frame[..]));
            let capture = read(&pcap(DataLink::ETHERNET, resolution, &packets)).unwrap();
            let at: Vec<u64> = capture.packets.iter().map(|packet| packet.at_ns).collect();
            assert_eq!(at, [0, 2000, 2000, 20_000_000_000]);
            assert_eq!(capture.packets[0].frame, sent(&[8, 0], &[0x45; 40]));
        }
    }

    #[test]
    fn tags_are_taken_away_and_group_addresses_are_kept() {
        let payload = [&[8, 0][..], &[0x45; 40]].concat();
        let tagged = ethernet(&[0x88, 0xa8, 0, 5, 0x81, 0, 0, 7], &payload);
        let capture = read(&one(&tagged)).unwrap();
        assert_eq!((capture.untagged, &capture.packets[0].frame), (1, &sent(&[8, 0], &[0x45; 40])));
        let mut multicast = ethernet(&[8, 0], &[0x45; 40]);
        multicast[0] = 1;
        let frame = &read(&one(&multicast)).unwrap().packets[0].frame;
        assert_eq!((&frame[..6], &frame[6..12]), (&multicast[..6], &MACS.from[..]));
    }

    #[test]
    fn bare_ip_becomes_ethernet() {
        let (four, six) = ([0x45; 30], [0x60; 50]);
        let packets =
            [(Duration::ZERO, 30, &four[..]), (Duration::ZERO, 50, &six), (Duration::ZERO, 2, &[0; 2])];
        let capture = read(&pcap(DataLink::RAW, TsResolution::MicroSecond, &packets)).unwrap();
        let frames: Vec<_> = capture.packets.iter().map(|packet| packet.frame.clone()).collect();
        assert_eq!(frames, [sent(&[8, 0], &four), sent(&[0x86, 0xdd], &six)]);
        assert_eq!(
            capture.left_out,
            [("neither IPv4 nor IPv6, though captured as bare IP".into(), 1)].into()
        );
    }

    #[test]
    fn what_cannot_be_replayed_is_counted_by_the_reason() {
        let (whole, huge) = (ethernet(&[8, 0], &[0; 46]), ethernet(&[8, 0], &[0; 9001]));
        let packets = [
            (Duration::ZERO, 60, &whole[..]),
            (Duration::ZERO, 1514, &whole),
            (Duration::ZERO, 9015, &huge),
            (Duration::ZERO, 13, &whole[..13]),
        ];
        // A snap length below the packets' own, as tcpdump -s writes it.
        let mut file = pcap(DataLink::ETHERNET, TsResolution::MicroSecond, &packets);
        file[16..20].copy_from_slice(&96u32.to_be_bytes());
        let capture = read(&file).unwrap();
        let reasons: Vec<_> = capture.left_out.iter().map(|(why, n)| (&why[..12], *n)).collect();
        assert_eq!(
            (capture.packets.len(), reasons),
            (1, vec![("captured wit", 1), ("longer than ", 1), ("shorter than", 1)])
        );
        assert!(
            refused(&one(&whole[..13]))
                .contains("nothing that can be replayed: 1 shorter than an Ethernet header")
        );
    }

    #[test]
    fn pcapng_is_read_with_the_resolution_of_its_interface() {
        let frame = ethernet(&[8, 0], &[0x45; 40]);
        let mut writer = PcapNgWriter::new(Vec::new()).unwrap();
        for (linktype, resolution) in [
            (DataLink::ETHERNET, None),
            (DataLink::ETHERNET, Some(3)),
            (DataLink::LINUX_SLL, Some(0x80 | 10)),
        ] {
            let options = resolution.map(InterfaceDescriptionOption::IfTsResol).into_iter().collect();
            writer.write_pcapng_block(InterfaceDescriptionBlock { linktype, snaplen: 0, options }).unwrap();
        }
        for (interface_id, units) in [(0, 5_000_000), (1, 5020), (2, 9 << 10)] {
            let (timestamp, data) = (Duration::from_nanos(units), Cow::Borrowed(&frame[..]));
            let block =
                EnhancedPacketBlock { interface_id, timestamp, original_len: 54, data, options: vec![] };
            writer.write_pcapng_block(block).unwrap();
        }
        let file = writer.into_inner();
        let capture = read(&file).unwrap();
        assert_eq!(capture.packets.iter().map(|packet| packet.at_ns).collect::<Vec<_>>(), [0, 20_000_000]);
        assert_eq!(capture.left_out, [("neither Ethernet nor bare IP (LINUX_SLL)".into(), 1)].into());
        assert!(
            refused(&file[..file.len() - 5]).contains("it is broken at packet 3"),
            "{}",
            refused(&file[..file.len() - 5])
        );
        assert_eq!(
            read_from(Cursor::new(&file[..file.len() - 5]), "it", MACS, Some(2)).unwrap().packets.len(),
            2
        );
    }

    #[test]
    fn what_is_no_capture_is_refused() {
        let file = one(&ethernet(&[8, 0], &[0; 46]));
        for length in 0..file.len() {
            let why = refused(&file[..length]);
            let right = match length {
                0..24 => "it is neither a pcap nor a pcapng file",
                24 => "it holds nothing that can be replayed",
                _ => "it is broken at packet 1; `tcpdump -r it -w whole.pcap` keeps",
            };
            assert!(why.starts_with(right), "{length}: {why}");
        }
        assert!(refused(b"hello, this is a text and no capture").starts_with("it is neither"));
        let usb = pcap(DataLink::USB_LINUX, TsResolution::MicroSecond, &[]);
        assert_eq!(refused(&usb), "it holds USB_LINUX frames; Ethernet or bare IP can be replayed");
        // A record of 4 GiB.
        let mut long = one(&[0; 60]);
        long[32..36].copy_from_slice(&[0xff; 4]);
        assert!(refused(&long).starts_with("it is broken at packet 1"));
        assert!(
            format!("{:#}", super::read(Path::new("/none"), MACS, None).unwrap_err())
                .starts_with("cannot read /none")
        );
    }

    proptest! {
        #[test]
        fn broken_files_are_errors_and_no_panics(
            seed in 0usize..2, changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8)
        ) {
            let frame = ethernet(&[0x81, 0], &[0x81; 60]);
            let mut writer = PcapNgWriter::new(Vec::new()).unwrap();
            let interface = InterfaceDescriptionBlock { linktype: DataLink::RAW, snaplen: 0, options: vec![InterfaceDescriptionOption::IfTsResol(9)] };
            writer.write_pcapng_block(interface).unwrap();
            let block = EnhancedPacketBlock { interface_id: 0, timestamp: Duration::ZERO, original_len: 74, data: Cow::Borrowed(&frame), options: vec![] };
            writer.write_pcapng_block(block).unwrap();
            let mut file = [one(&frame), writer.into_inner()][seed].clone();
            for (at, byte) in changes {
                let at = at.index(file.len());
                file[at] = byte;
            }
            if let Ok(capture) = read(&file) {
                prop_assert!(capture.packets.iter().all(|packet| packet.frame.len() >= 14));
            }
        }
    }
}
