//! Captures: what all who read them ask of a file.

use anyhow::{Context, Result, ensure};
use pcap_file::{DataLink, pcap::PcapReader};
use std::{fmt::Display, io::Read};

/// First bytes of a pcapng file, in either byte order.
pub const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// A pcap file of Ethernet frames, which errors call `name`; `instead` says what is wrong with one of another kind.
pub fn open<R: Read>(file: R, name: impl Display, instead: &str) -> Result<PcapReader<R>> {
    let reader = PcapReader::new(file).with_context(|| format!("{name} is {instead}"))?;
    let link = reader.header().datalink;
    ensure!(link == DataLink::ETHERNET, "{name} holds {link:?} frames, not Ethernet");
    Ok(reader)
}
