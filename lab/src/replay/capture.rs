//! A capture to replay: pcap or pcapng, of Ethernet or of bare IP.
//!
//! A broken file is refused, and so is one that holds more than fits in memory. Single packets that cannot be replayed
//! are left out, and counted by reason.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{Read, Seek},
    path::Path,
    sync::Arc,
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

#[cfg(test)]
mod tests;

/// Maximum number of packets of a replay.
pub const MAX_PACKETS: usize = 1 << 20;
/// Maximum number of bytes of all its frames. A comparison takes about four times as much memory: for the output of two
/// subjects, and for finding equal packets in it.
pub const MAX_BYTES: usize = 256 << 20;

/// First bytes of a pcapng file, in either byte order.
const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
const GZIP: [u8; 2] = [0x1f, 0x8b];
const ETHERNET: usize = ETHERNET_BYTES as usize;
const TAG: usize = 4;

/// A frame, and when it came, in nanoseconds since the first one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Never less than the time of the packet before.
    pub at_ns: u64,
    /// Ethernet without tags and FCS, with the MAC addresses of the replay.
    pub frame: Arc<[u8]>,
}

/// Contents of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capture {
    /// Packets in the file's order.
    pub packets: Vec<Packet>,
    /// Number of packets left out, by reason.
    pub left_out: BTreeMap<String, u64>,
    /// Packets whose VLAN tags were removed, because the testbed has no VLANs.
    pub untagged: u64,
    bytes: usize,
    first_ns: Option<u64>,
}

/// MAC addresses of the router and the generator, which replace those of the capture. Group addresses are kept.
#[derive(Clone, Copy, Debug)]
pub struct Macs {
    /// The router's.
    pub to: Mac,
    /// The generator's.
    pub from: Mac,
}

/// Reads a file, or only its first packets if `first` is given.
pub fn read(path: &Path, macs: Macs, first: Option<usize>) -> Result<Capture> {
    let name = path.display().to_string();
    ensure!(!path.is_dir(), "{name} is a directory: name a capture in it");
    let file = File::open(path).with_context(|| format!("cannot read {name}"))?;
    read_from(file, &name, macs, first)
}

/// The same for an open file, called `name` in errors.
pub fn read_from(
    mut file: impl Read + Seek,
    name: &str,
    macs: Macs,
    first: Option<usize>,
) -> Result<Capture> {
    let mut magic = Vec::new();
    file.by_ref().take(4).read_to_end(&mut magic).with_context(|| format!("cannot read {name}"))?;
    ensure!(!magic.is_empty(), "{name} is empty: with -U, tcpdump writes each packet when it comes");
    ensure!(!magic.starts_with(&GZIP), "{name} is compressed: `gunzip < {name} > plain.pcap` first");
    let is_pcapng = magic == PCAPNG;
    file.rewind().with_context(|| format!("cannot read {name}"))?;
    let neither = || format!("{name} is neither a pcap nor a pcapng file");
    let mut capture = Capture::default();
    let mut taken = 0;
    let mut next: Box<dyn FnMut() -> Option<Result<Found, PcapError>>> = if is_pcapng {
        let mut reader = PcapNgReader::new(file).with_context(neither)?;
        Box::new(move || next_of_pcapng(&mut reader))
    } else {
        let mut reader = PcapReader::new(file).with_context(neither)?;
        let link = reader.header().datalink;
        ensure!(
            Link::of(link).is_some(),
            "{name} holds {link:?} frames; Ethernet or bare IP can be replayed{}",
            of_one_device(link)
        );
        Box::new(move || next_of_pcap(&mut reader))
    };
    while first.is_none_or(|first| taken < first) {
        let Some(found) = next() else { break };
        taken += 1;
        let found = found.with_context(|| match taken {
            1 => format!("{name} is broken at packet 1, the first: capture it again"),
            _ => {
                format!("{name} is broken at packet {taken}; --packets {} replays those before it", taken - 1)
            }
        })?;
        capture.add(found, macs);
        ensure!(
            capture.packets.len() <= MAX_PACKETS && capture.bytes <= MAX_BYTES,
            "{name} holds more than the {MAX_PACKETS} packets or {} MiB that fit in memory: --packets N takes the first N",
            MAX_BYTES >> 20
        );
    }
    ensure!(taken > 0, "{name} holds no packets: see what `tcpdump -i DEVICE` shows without a filter");
    if capture.packets.is_empty() {
        let reasons: Vec<String> = capture.left_out.iter().map(|(why, n)| format!("{n} {why}")).collect();
        bail!("{name} holds nothing that can be replayed: {}", reasons.join("; "));
    }
    Ok(capture)
}

/// A packet of a file, or why it is left out.
type Found = Result<Raw, String>;

/// A packet as the file has it.
struct Raw {
    link: DataLink,
    /// Since the start of the file's time; `None`: not noted.
    time_ns: Option<u64>,
    data: Vec<u8>,
    /// Length on the wire.
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

/// Advice for the user, if frames of this kind come from a wrong way of capturing.
fn of_one_device(link: DataLink) -> &'static str {
    match link {
        DataLink::LINUX_SLL | DataLink::LINUX_SLL2 => "; capture on one device: tcpdump -i eth0, not -i any",
        _ => "",
    }
}

impl Capture {
    /// Seconds from the first packet to the last.
    pub fn recorded_seconds(&self) -> f64 {
        self.packets.last().map_or(0.0, |packet| packet.at_ns as f64 / 1e9)
    }

    fn add(&mut self, found: Found, macs: Macs) {
        let last_ns = self.packets.last().map_or(0, |packet| packet.at_ns);
        let time_ns = found.as_ref().ok().and_then(|raw| raw.time_ns);
        let at_ns = time_ns.map_or(last_ns, |ns| {
            let first_ns = *self.first_ns.get_or_insert(ns);
            ns.saturating_sub(first_ns).max(last_ns)
        });
        match found.and_then(|raw| frame(raw, macs, &mut self.untagged)) {
            Ok(frame) => {
                self.bytes += frame.len();
                self.packets.push(Packet { at_ns, frame: frame.into() });
            }
            Err(why) => *self.left_out.entry(why).or_default() += 1,
        }
    }
}

/// The frame to send for a packet, or the reason why nothing is sent.
fn frame(raw: Raw, macs: Macs, untagged: &mut u64) -> Result<Vec<u8>, String> {
    let Some(link) = Link::of(raw.link) else {
        return Err(format!("neither Ethernet nor bare IP ({:?}{})", raw.link, of_one_device(raw.link)));
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

/// Reads the next packet without the library's own iterator, which refuses files with packets that were longer on the
/// wire than their kept part.
fn next_of_pcap(reader: &mut PcapReader<impl Read>) -> Option<Result<Found, PcapError>> {
    let header = reader.header();
    let nanoseconds = if header.ts_resolution == TsResolution::NanoSecond { 1 } else { 1000 };
    let raw = reader.next_raw_packet()?;
    Some(raw.map(|packet| {
        Ok(Raw {
            link: header.datalink,
            time_ns: Some(u64::from(packet.ts_sec) * 1_000_000_000 + u64::from(packet.ts_frac) * nanoseconds),
            length: packet.orig_len,
            data: packet.data.into_owned(),
        })
    }))
}

/// Reads the next packet. Skips blocks that hold none.
fn next_of_pcapng(reader: &mut PcapNgReader<impl Read>) -> Option<Result<Found, PcapError>> {
    loop {
        let (interface, units, mut data, length) = match reader.next_block()? {
            // The library takes all times for nanoseconds.
            Ok(Block::EnhancedPacket(p)) => {
                (p.interface_id, Some(p.timestamp.as_nanos()), p.data.into_owned(), p.original_len)
            }
            Ok(Block::SimplePacket(p)) => (0, None, p.data.into_owned(), p.original_len),
            // The library splits their times wrongly.
            Ok(Block::Packet(_)) => {
                return Some(Ok(Err(
                    "in obsolete Packet Blocks (`tcpdump -r FILE -w new.pcap` converts them)".into(),
                )));
            }
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
                return Some(Err(PcapError::InvalidField("an impossible time stamp")));
            }
            Some(time_ns) => time_ns,
            None => None,
        };
        return Some(Ok(Ok(Raw { link: interface.linktype, time_ns, data, length })));
    }
}

/// Converts units of an interface: 10^-n s, or 2^-n s if the highest bit is set, after the interface's offset in
/// seconds.
fn nanoseconds(units: u128, interface: &InterfaceDescriptionBlock<'_>) -> Option<u64> {
    const MICROSECONDS: u8 = 6;
    let (mut resolution, mut offset_seconds) = (MICROSECONDS, 0);
    for option in &interface.options {
        match option {
            InterfaceDescriptionOption::IfTsResol(given) => resolution = *given,
            InterfaceDescriptionOption::IfTsOffset(given) => offset_seconds = given.cast_signed(),
            _ => {}
        }
    }
    let base: u128 = if resolution & 0x80 == 0 { 10 } else { 2 };
    let per_second = base.checked_pow((resolution & 0x7f).into())?;
    let ns = i128::try_from(units.checked_mul(1_000_000_000)? / per_second).ok()?;
    u64::try_from(ns + i128::from(offset_seconds) * 1_000_000_000).ok()
}
