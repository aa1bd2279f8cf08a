//! Pcap files that are written.

use super::packet::Packet;
use anyhow::{Context, Result};
use logic::{plan::PortId, worker::Frame};
use pcap_file::{
    DataLink, Endianness, TsResolution,
    pcap::{PcapHeader, PcapPacket, PcapWriter},
};
use std::io::Write;

/// What leaves, whole and with its time stamp: each file all of it, or what leaves by one port.
pub struct Outputs<W: Write> {
    files: Vec<File<W>>,
}

struct File<W: Write> {
    name: String,
    port: Option<PortId>,
    writer: PcapWriter<W>,
}

impl<W: Write> Outputs<W> {
    /// Files by name, and of which port; times are nanoseconds if those that come are.
    pub fn new(
        files: impl IntoIterator<Item = (String, Option<PortId>, W)>,
        nanoseconds: bool,
    ) -> Result<Self> {
        let ts_resolution = if nanoseconds { TsResolution::NanoSecond } else { TsResolution::MicroSecond };
        let header = PcapHeader {
            datalink: DataLink::ETHERNET,
            endianness: Endianness::native(),
            ts_resolution,
            ..PcapHeader::default()
        };
        let open = |(name, port, file)| {
            let writer =
                PcapWriter::with_header(file, header).with_context(|| format!("cannot write {name}"))?;
            Ok(File { name, port, writer })
        };
        Ok(Outputs { files: files.into_iter().map(open).collect::<Result<_>>()? })
    }

    /// A packet leaves by a port.
    pub fn write(&mut self, port: PortId, packet: &Packet) -> Result<()> {
        for file in self.files.iter_mut().filter(|file| file.port.is_none_or(|of| of == port)) {
            let data = packet.data();
            let record = PcapPacket::new(packet.at, data.len() as u32, data);
            file.writer.write_packet(&record).with_context(|| format!("cannot write {}", file.name))?;
        }
        Ok(())
    }

    /// All is written.
    pub fn finish(self) -> Result<()> {
        for File { name, writer, .. } in self.files {
            writer.into_writer().flush().with_context(|| format!("cannot write {name}"))?;
        }
        Ok(())
    }
}
