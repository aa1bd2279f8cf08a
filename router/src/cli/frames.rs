//! Frames from a capture, pcap or pcapng.

use crate::base::pcap;
use anyhow::{Context, Result};
use pcap_file::{
    DataLink, PcapError,
    pcapng::{Block, PcapNgReader},
};
use std::{
    fmt::Display,
    fs::File,
    io::{Read, Seek},
    path::Path,
};

/// The most frames of one file that are explained.
pub const MAX_FRAMES: usize = 1000;

const NEITHER: &str = "neither a pcap nor a pcapng file";

/// A frame, or why there is none.
pub type Frame = Result<Vec<u8>, String>;

/// The frames of a file.
#[derive(Debug)]
pub struct Capture {
    /// At most [`MAX_FRAMES`].
    pub frames: Vec<Frame>,
    /// The file holds more.
    pub more: bool,
}

/// The Ethernet frames of a file.
///
/// # Errors
/// The file does not exist, or is no capture. Faults further on are errors in the place of their frame.
pub fn read(file: &Path) -> Result<Capture> {
    let name = file.display();
    let opened = File::open(file).with_context(|| {
        format!("cannot read {name} (a packet would be written as 'udp 10.0.0.1:1234 -> 10.1.0.1:80')")
    })?;
    frames(opened, name)
}

/// The Ethernet frames of a capture; errors name it `name`.
pub(crate) fn frames(mut opened: impl Read + Seek, name: impl Display) -> Result<Capture> {
    let mut magic = [0; 4];
    let is_pcapng = opened.read_exact(&mut magic).is_ok() && magic == pcap::PCAPNG;
    opened.rewind().with_context(|| format!("cannot read {name}"))?;
    if is_pcapng {
        let mut reader = PcapNgReader::new(opened).with_context(|| format!("{name} is {NEITHER}"))?;
        return Ok(gather(|| next_of_pcapng(&mut reader)));
    }
    let mut reader = pcap::open(opened, name, NEITHER)?;
    Ok(gather(|| Some(reader.next_packet()?.map(|p| whole(&p.data, p.orig_len)))))
}

fn gather(mut next: impl FnMut() -> Option<Result<Frame, PcapError>>) -> Capture {
    let mut frames = Vec::new();
    while frames.len() < MAX_FRAMES {
        match next() {
            None => return Capture { frames, more: false },
            Some(Ok(frame)) => frames.push(frame),
            Some(Err(error)) => {
                frames.push(Err(format!("the file is broken here: {error}")));
                return Capture { frames, more: false };
            }
        }
    }
    Capture { frames, more: next().is_some() }
}

/// The next frame; skips blocks without one.
fn next_of_pcapng(reader: &mut PcapNgReader<impl Read>) -> Option<Result<Frame, PcapError>> {
    loop {
        let (interface, data, length) = match reader.next_block()? {
            Ok(Block::EnhancedPacket(p)) => (p.interface_id, p.data.into_owned(), p.original_len),
            Ok(Block::SimplePacket(p)) => {
                // Its data ends with padding to four bytes.
                let length = p.data.len().min(p.original_len as usize);
                (0, p.data[..length].to_vec(), p.original_len)
            }
            Ok(_) => continue,
            Err(error) => return Some(Err(error)),
        };
        let link = reader.interfaces().get(interface as usize).map(|i| i.linktype);
        return Some(Ok(match link {
            Some(DataLink::ETHERNET) => whole(&data, length),
            Some(other) => Err(format!("a {other:?} frame, not Ethernet")),
            None => Err(format!("captured on interface {interface}, which the file does not describe")),
        }));
    }
}

fn whole(data: &[u8], length: u32) -> Frame {
    if data.len() < length as usize {
        return Err("the capture lacks its end; capture with `tcpdump -s 0`".into());
    }
    Ok(data.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcap_file::{
        pcap::{PcapPacket, PcapWriter},
        pcapng::{
            PcapNgWriter,
            blocks::{
                enhanced_packet::EnhancedPacketBlock, interface_description::InterfaceDescriptionBlock,
                simple_packet::SimplePacketBlock,
            },
        },
    };
    use std::{borrow::Cow, fs, path::PathBuf, time::Duration};

    fn pcap(directory: &Path, count: usize, frame: &[u8], length: u32) -> PathBuf {
        let file = directory.join("a.pcap");
        let mut writer = PcapWriter::new(File::create(&file).unwrap()).unwrap();
        for _ in 0..count {
            writer.write_packet(&PcapPacket::new(Duration::ZERO, length, frame)).unwrap();
        }
        file
    }

    #[test]
    fn frames_come_back_and_broken_files_are_errors() {
        let directory = tempfile::tempdir().unwrap();
        let frame = vec![7; 60];
        let file = pcap(directory.path(), 1, &frame, 60);
        let capture = read(&file).unwrap();
        assert_eq!((capture.frames, capture.more), (vec![Ok(frame)], false));

        let bytes = fs::read(&file).unwrap();
        for length in 0..bytes.len() {
            fs::write(&file, &bytes[..length]).unwrap();
            assert!(read(&file).map_or(true, |c| c.frames.iter().all(Result::is_err)), "cut at {length}");
        }
        assert!(
            format!("{:#}", read(Path::new("/nonexistent")).unwrap_err())
                .contains("cannot read /nonexistent")
        );
    }

    #[test]
    fn more_frames_and_cut_frames_are_reported() {
        let directory = tempfile::tempdir().unwrap();
        let capture = read(&pcap(directory.path(), MAX_FRAMES, &[7; 60], 60)).unwrap();
        assert_eq!((capture.frames.len(), capture.more), (MAX_FRAMES, false));
        let capture = read(&pcap(directory.path(), MAX_FRAMES + 1, &[7; 60], 60)).unwrap();
        assert_eq!((capture.frames.len(), capture.more), (MAX_FRAMES, true));
        let capture = read(&pcap(directory.path(), 2, &[7; 60], 61)).unwrap();
        assert!(capture.frames.iter().all(|f| f.as_ref().is_err_and(|e| e.contains("tcpdump -s 0"))));
    }

    #[test]
    fn pcapng_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a.pcapng");
        let mut writer = PcapNgWriter::new(File::create(&file).unwrap()).unwrap();
        for linktype in [DataLink::ETHERNET, DataLink::LINUX_SLL] {
            writer
                .write_pcapng_block(InterfaceDescriptionBlock { linktype, snaplen: 0, options: vec![] })
                .unwrap();
        }
        let frame = [7; 61];
        for interface_id in [0, 1] {
            let block = EnhancedPacketBlock {
                interface_id,
                timestamp: Duration::ZERO,
                original_len: 61,
                data: Cow::Borrowed(&frame),
                options: vec![],
            };
            writer.write_pcapng_block(block).unwrap();
        }
        let block = SimplePacketBlock { original_len: 61, data: Cow::Borrowed(&frame) };
        writer.write_pcapng_block(block).unwrap();
        drop(writer);
        let frames = read(&file).unwrap().frames;
        assert_eq!((&frames[0], &frames[2]), (&Ok(frame.to_vec()), &Ok(frame.to_vec())));
        assert!(frames[1].as_ref().is_err_and(|e| e.contains("not Ethernet")), "{frames:?}");
    }
}
