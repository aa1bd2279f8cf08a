//! Opens captures, with the checks that all readers need.

use anyhow::{Context, Result, ensure};
use pcap_file::{DataLink, pcap::PcapReader};
use std::{fmt::Display, io::Read};

/// First bytes of a pcapng file, in either byte order.
pub const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// Opens a pcap file of Ethernet frames. Errors name it `name`, and `instead` says what another kind of file is.
pub fn open<R: Read>(file: R, name: impl Display, instead: &str) -> Result<PcapReader<R>> {
    let reader = PcapReader::new(file).with_context(|| format!("{name} is {instead}"))?;
    let link = reader.header().datalink;
    ensure!(link == DataLink::ETHERNET, "{name} holds {link:?} frames, not Ethernet");
    Ok(reader)
}
