//! Frames from a classic pcap file.

use anyhow::{Context, Result, bail};
use pcap_file::{DataLink, pcap::PcapReader};
use std::{fs::File, path::Path};

/// Frames explained of one file.
const MAX_FRAMES: usize = 1000;

/// The Ethernet frames of a file, at most [`MAX_FRAMES`].
pub fn read(file: &Path) -> Result<Vec<Vec<u8>>> {
    let name = file.display();
    let opened = File::open(file)
        .with_context(|| format!("cannot read {name} (nor is it a packet such as \"udp A -> B\")"))?;
    let mut reader = PcapReader::new(opened).with_context(|| format!("{name} is not a pcap file"))?;
    if reader.header().datalink != DataLink::ETHERNET {
        bail!("{name} holds {:?} frames, not Ethernet", reader.header().datalink);
    }
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.with_context(|| format!("{name}, frame {}", frames.len() + 1))?;
        if packet.data.len() < packet.orig_len as usize {
            bail!(
                "{name}, frame {}: captured without its end; capture with `tcpdump -s 0`",
                frames.len() + 1
            );
        }
        frames.push(packet.data.into_owned());
        if frames.len() == MAX_FRAMES {
            break;
        }
    }
    Ok(frames)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcap_file::pcap::{PcapPacket, PcapWriter};
    use std::{fs, time::Duration};

    #[test]
    fn frames_come_back_and_broken_files_are_errors() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a.pcap");
        let mut writer = PcapWriter::new(File::create(&file).unwrap()).unwrap();
        let frame = vec![7; 60];
        writer.write_packet(&PcapPacket::new(Duration::ZERO, 60, &frame)).unwrap();
        drop(writer);
        assert_eq!(read(&file).unwrap(), [frame]);

        let bytes = fs::read(&file).unwrap();
        for length in 0..bytes.len() {
            fs::write(&file, &bytes[..length]).unwrap();
            assert!(read(&file).map_or(true, |frames| frames.is_empty()), "cut at {length}");
        }
        assert!(
            format!("{:#}", read(Path::new("/nonexistent")).unwrap_err())
                .contains("cannot read /nonexistent")
        );
    }
}
