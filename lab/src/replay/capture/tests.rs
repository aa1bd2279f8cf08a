use std::{borrow::Cow, io::Cursor, time::Duration};

use pcap_file::{
    Endianness,
    pcap::{PcapHeader, PcapPacket, PcapWriter},
    pcapng::{
        PcapNgWriter,
        blocks::{enhanced_packet::EnhancedPacketBlock, packet::PacketBlock},
    },
};
use proptest::prelude::*;

use super::*;

const ANY: &str =
    "neither Ethernet nor bare IP (LINUX_SLL; capture on one device: tcpdump -i eth0, not -i any)";

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
    let header = PcapHeader { datalink, ts_resolution, endianness: Endianness::Big, ..PcapHeader::default() };
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
        assert_eq!(*capture.packets[0].frame, sent(&[8, 0], &[0x45; 40])[..]);
    }
}

#[test]
fn tags_are_removed_and_group_addresses_are_kept() {
    let payload = [&[8, 0][..], &[0x45; 40]].concat();
    let tagged = ethernet(&[0x88, 0xa8, 0, 5, 0x81, 0, 0, 7], &payload);
    let capture = read(&one(&tagged)).unwrap();
    assert_eq!((capture.untagged, &*capture.packets[0].frame), (1, &sent(&[8, 0], &[0x45; 40])[..]));
    let mut multicast = ethernet(&[8, 0], &[0x45; 40]);
    multicast[0] = 1;
    let frame = &read(&one(&multicast)).unwrap().packets[0].frame;
    assert_eq!((&frame[..6], &frame[6..12]), (&multicast[..6], &MACS.from[..]));
}

#[test]
fn bare_ip_becomes_ethernet() {
    let (four, six) = ([0x45; 30], [0x60; 50]);
    let packets = [(Duration::ZERO, 30, &four[..]), (Duration::ZERO, 50, &six), (Duration::ZERO, 2, &[0; 2])];
    let capture = read(&pcap(DataLink::RAW, TsResolution::MicroSecond, &packets)).unwrap();
    let frames: Vec<_> = capture.packets.iter().map(|packet| packet.frame.to_vec()).collect();
    assert_eq!(frames, [sent(&[8, 0], &four), sent(&[0x86, 0xdd], &six)]);
    assert_eq!(capture.left_out, [("neither IPv4 nor IPv6, though captured as bare IP".into(), 1)].into());
}

#[test]
fn packets_that_cannot_be_replayed_are_counted_by_reason() {
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
    for (linktype, resolution) in
        [(DataLink::ETHERNET, None), (DataLink::ETHERNET, Some(3)), (DataLink::LINUX_SLL, Some(0x80 | 10))]
    {
        let options = resolution.map(InterfaceDescriptionOption::IfTsResol).into_iter().collect();
        writer.write_pcapng_block(InterfaceDescriptionBlock { linktype, snaplen: 0, options }).unwrap();
    }
    for (interface_id, units) in [(0, 5_000_000), (1, 5020), (2, 9 << 10)] {
        let (timestamp, data) = (Duration::from_nanos(units), Cow::Borrowed(&frame[..]));
        let block = EnhancedPacketBlock { interface_id, timestamp, original_len: 54, data, options: vec![] };
        writer.write_pcapng_block(block).unwrap();
    }
    let file = writer.into_inner();
    let capture = read(&file).unwrap();
    assert_eq!(capture.packets.iter().map(|packet| packet.at_ns).collect::<Vec<_>>(), [0, 20_000_000]);
    assert_eq!(capture.left_out, [(ANY.into(), 1)].into());
    assert!(
        refused(&file[..file.len() - 5]).starts_with("it is broken at packet 3; --packets 2 replays"),
        "{}",
        refused(&file[..file.len() - 5])
    );
    assert_eq!(
        read_from(Cursor::new(&file[..file.len() - 5]), "it", MACS, Some(2)).unwrap().packets.len(),
        2
    );
}

#[test]
fn pcapng_times_have_the_offset_of_their_interface() {
    let frame = ethernet(&[8, 0], &[0x45; 40]);
    let read_with = |offsets: [i64; 2]| {
        let mut writer = PcapNgWriter::new(Vec::new()).unwrap();
        for offset in offsets {
            let options = vec![InterfaceDescriptionOption::IfTsOffset(offset.cast_unsigned())];
            let linktype = DataLink::ETHERNET;
            writer.write_pcapng_block(InterfaceDescriptionBlock { linktype, snaplen: 0, options }).unwrap();
        }
        for (interface_id, microseconds) in [(0, 5_000_000), (1, 1_000_001)] {
            let (timestamp, data) = (Duration::from_nanos(microseconds), Cow::Borrowed(&frame[..]));
            let block =
                EnhancedPacketBlock { interface_id, timestamp, original_len: 54, data, options: vec![] };
            writer.write_pcapng_block(block).unwrap();
        }
        read(&writer.into_inner())
    };
    let last_ns = |offsets| read_with(offsets).unwrap().packets[1].at_ns;
    assert_eq!(last_ns([0, 0]), 0);
    assert_eq!(last_ns([0, 10]), 6_000_001_000);
    assert_eq!(last_ns([-3, 1_700_000_000]), 1_699_999_999_000_001_000);
    for offset in [-2, i64::MIN, i64::MAX] {
        let why = format!("{:#}", read_with([0, offset]).unwrap_err());
        assert!(
            why.starts_with("it is broken at packet 2") && why.ends_with("an impossible time stamp"),
            "{why}"
        );
    }
}

#[test]
fn obsolete_packet_blocks_are_counted_as_left_out() {
    let frame = ethernet(&[8, 0], &[0x45; 40]);
    let mut writer = PcapNgWriter::new(Vec::new()).unwrap();
    let (linktype, data) = (DataLink::ETHERNET, Cow::Borrowed(&frame[..]));
    writer.write_pcapng_block(InterfaceDescriptionBlock { linktype, snaplen: 0, options: vec![] }).unwrap();
    let (timestamp, options) = (Duration::ZERO, vec![]);
    let block =
        EnhancedPacketBlock { interface_id: 0, timestamp, original_len: 54, data: data.clone(), options };
    writer.write_pcapng_block(block).unwrap();
    for _ in 0..2 {
        let (timestamp, captured_len, original_len, options) = (0, 54, 54, vec![]);
        let data = data.clone();
        let block = PacketBlock {
            interface_id: 0,
            drop_count: 0,
            timestamp,
            captured_len,
            original_len,
            data,
            options,
        };
        writer.write_pcapng_block(block).unwrap();
    }
    let file = writer.into_inner();
    let capture = read(&file).unwrap();
    let why = "in obsolete Packet Blocks (`tcpdump -r FILE -w new.pcap` converts them)";
    assert_eq!((capture.packets.len(), capture.left_out), (1, [(why.into(), 2)].into()));
    let capture = read_from(Cursor::new(&file[..]), "it", MACS, Some(2)).unwrap();
    assert_eq!(capture.left_out.values().sum::<u64>(), 1);
}

#[test]
fn a_file_that_is_no_capture_is_refused() {
    let file = one(&ethernet(&[8, 0], &[0; 46]));
    for length in 0..file.len() {
        let why = refused(&file[..length]);
        let right = match length {
            0 => "it is empty",
            1..24 => "it is neither a pcap nor a pcapng file",
            24 => "it holds no packets",
            _ => "it is broken at packet 1, the first: capture it again",
        };
        assert!(why.starts_with(right), "{length}: {why}");
    }
    assert!(refused(b"hello, this is a text and no capture").starts_with("it is neither"));
    let usb = pcap(DataLink::USB_LINUX, TsResolution::MicroSecond, &[]);
    assert_eq!(refused(&usb), "it holds USB_LINUX frames; Ethernet or bare IP can be replayed");
    let any = pcap(DataLink::LINUX_SLL2, TsResolution::MicroSecond, &[]);
    assert!(refused(&any).ends_with("capture on one device: tcpdump -i eth0, not -i any"));
    assert_eq!(refused(&[0x1f, 0x8b, 8, 0]), "it is compressed: `gunzip < it > plain.pcap` first");
    let directory = super::read(Path::new("/"), MACS, None).unwrap_err();
    assert_eq!(directory.to_string(), "/ is a directory: name a capture in it");
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
