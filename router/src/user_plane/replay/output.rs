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
    error: Option<String>,
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
            Ok(File { name, port, writer, error: None })
        };
        Ok(Outputs { files: files.into_iter().map(open).collect::<Result<_>>()? })
    }

    /// A packet leaves by a port. What cannot be written ends its file.
    pub fn write(&mut self, port: PortId, packet: &Packet) {
        let of_port = |file: &&mut File<W>| file.port.is_none_or(|of| of == port);
        for file in self.files.iter_mut().filter(of_port).filter(|file| file.error.is_none()) {
            let data = packet.data();
            let record = PcapPacket::new(packet.at, data.len() as u32, data);
            let written = file.writer.write_packet(&record);
            file.error = written.err().map(|error| cannot_write(&file.name, error));
        }
    }

    /// Something could not be written.
    pub fn has_failed(&self) -> bool {
        self.files.iter().any(|file| file.error.is_some())
    }

    /// All is written, but for these errors.
    pub fn finish(self) -> Vec<String> {
        let finish = |File { name, writer, error, .. }: File<W>| {
            error.or_else(|| {
                let flushed = writer.into_writer().flush();
                flushed.err().map(|error| cannot_write(&name, error))
            })
        };
        self.files.into_iter().filter_map(finish).collect()
    }
}

fn cannot_write(name: &str, error: impl Into<anyhow::Error>) -> String {
    format!("{:#}", error.into().context(format!("cannot write {name}")))
}
