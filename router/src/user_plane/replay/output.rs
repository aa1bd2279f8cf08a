//! Writes pcap files.

use super::packet::Packet;
use anyhow::{Context, Result};
use logic::{plan::PortId, worker::Frame};
use pcap_file::{
    DataLink, Endianness, TsResolution,
    pcap::{PcapHeader, PcapPacket, PcapWriter},
};
use std::io::Write;

/// Files for packets that leave, whole and with their time stamps. A file gets all packets, or those of one port.
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
    /// Writes the headers of the files, each with its name and port. `nanoseconds` is the unit of the inputs' time stamps.
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

    /// Writes a packet that leaves by a port. A file ends when writing fails.
    pub fn write(&mut self, port: PortId, packet: &Packet) {
        let of_port = |file: &&mut File<W>| file.port.is_none_or(|of| of == port);
        for file in self.files.iter_mut().filter(of_port).filter(|file| file.error.is_none()) {
            let data = packet.data();
            let record = PcapPacket::new(packet.at, data.len() as u32, data);
            let written = file.writer.write_packet(&record);
            file.error = written.err().map(|error| cannot_write(&file.name, error));
        }
    }

    /// Writing to a file has failed.
    pub fn has_failed(&self) -> bool {
        self.files.iter().any(|file| file.error.is_some())
    }

    /// Writes everything; returns the errors of files that lack packets.
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
