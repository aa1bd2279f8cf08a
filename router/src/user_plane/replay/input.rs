//! Reads pcap files, and merges them by time.

use crate::base::pcap;
use anyhow::{Context, Result, ensure};
use logic::plan::PortId;
use pcap_file::{TsResolution, pcap::PcapReader};
use std::{
    io::{BufRead, BufReader, Read},
    time::Duration,
};

/// Nanoseconds in a second.
const SECOND_NS: u32 = 1_000_000_000;

/// First bytes of a compressed file.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// A file, and the port by which its packets came in.
pub struct Input<R: Read> {
    name: String,
    /// The port.
    pub port: PortId,
    reader: PcapReader<BufReader<R>>,
    resolution: TsResolution,
    /// The number of records that were read.
    records: u64,
    next: Option<Record>,
    error: Option<String>,
}

/// A packet of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// When it was captured.
    pub at: Duration,
    /// The captured bytes.
    pub data: Vec<u8>,
    /// The end of the packet was not captured.
    pub truncated: bool,
}

impl<R: Read> Input<R> {
    /// Reads the header of a file. Errors name it `name`.
    ///
    /// # Errors
    /// It is no pcap file of Ethernet frames.
    pub fn new(name: &str, port: PortId, file: R) -> Result<Self> {
        let mut file = BufReader::new(file);
        let start = file.fill_buf().with_context(|| format!("cannot read {name}"))?;
        ensure!(!start.is_empty(), "{name} is empty");
        ensure!(
            !start.starts_with(&pcap::PCAPNG),
            "{name} is a pcapng file: convert it with `editcap -F pcap {name} plain.pcap`"
        );
        ensure!(
            !start.starts_with(&GZIP),
            "{name} is compressed: expand it with `gunzip < {name} > plain.pcap`"
        );
        let reader = pcap::open(file, name, "not a pcap file")?;
        let resolution = reader.header().ts_resolution;
        Ok(Input { name: name.into(), port, reader, resolution, records: 0, next: None, error: None })
    }

    /// The time stamps are nanoseconds, not microseconds.
    pub fn has_nanoseconds(&self) -> bool {
        self.resolution == TsResolution::NanoSecond
    }

    /// Why it was not read to its end.
    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// The time of the next record; `None`: there is no other. A broken file ends at the fault.
    fn peek(&mut self) -> Option<Duration> {
        if self.next.is_none() && self.error.is_none() {
            match self.read() {
                Ok(next) => self.next = next,
                Err(error) => self.error = Some(format!("{error:#}")),
            }
        }
        self.next.as_ref().map(|record| record.at)
    }

    fn read(&mut self) -> Result<Option<Record>> {
        let Some(raw) = self.reader.next_raw_packet() else { return Ok(None) };
        self.records += 1;
        let broken = || match self.records {
            1 => format!("{} is broken at its first packet", self.name),
            packet => format!("{} is broken at packet {packet}; those before it were run", self.name),
        };
        let raw = raw.with_context(broken)?;
        let unit_ns = if self.resolution == TsResolution::NanoSecond { 1 } else { 1000 };
        // A whole second is no fault of the file: Scapy rounds 0.9999996 s to 1,000,000 us.
        let ns = raw.ts_frac.checked_mul(unit_ns).filter(|ns| *ns <= SECOND_NS);
        let ns = ns
            .with_context(|| format!("a wrong time stamp, {} s and {}", raw.ts_sec, raw.ts_frac))
            .with_context(broken)?;
        Ok(Some(Record {
            at: Duration::new(raw.ts_sec.into(), ns),
            truncated: raw.incl_len < raw.orig_len,
            data: raw.data.into_owned(),
        }))
    }
}

/// The earliest record of all files, and its port. If times are equal, the first file comes first.
pub fn next<R: Read>(inputs: &mut [Input<R>]) -> Option<(PortId, Record)> {
    let times = inputs.iter_mut().enumerate().filter_map(|(number, input)| Some((input.peek()?, number)));
    let (_, number) = times.min()?;
    let input = inputs.get_mut(number)?;
    Some((input.port, input.next.take()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a file: the header, then for each record (seconds, fraction, captured, length on the wire) and the captured bytes.
    fn file(magic: u32, big: bool, link: u32, records: &[(u32, u32, usize, u32)]) -> Vec<u8> {
        let word = |value: u32| if big { value.to_be_bytes() } else { value.to_le_bytes() };
        let versions = if big { [0, 2, 0, 4] } else { [2, 0, 4, 0] };
        let mut bytes = [word(magic), versions, word(0), word(0), word(64), word(link)].concat();
        for (n, (seconds, fraction, captured, length)) in records.iter().enumerate() {
            bytes.extend([word(*seconds), word(*fraction), word(*captured as u32), word(*length)].concat());
            bytes.extend(vec![n as u8; *captured]);
        }
        bytes
    }

    const MICRO: u32 = 0xa1b2_c3d4;
    const NANO: u32 = 0xa1b2_3c4d;

    fn all(bytes: &[u8]) -> Result<Vec<Record>> {
        let mut inputs = [Input::new("x.pcap", 3, bytes)?];
        let mut records = Vec::new();
        while let Some((port, record)) = next(&mut inputs) {
            assert_eq!(port, 3);
            records.push(record);
        }
        match inputs[0].error() {
            Some(error) => anyhow::bail!("{error}"),
            None => Ok(records),
        }
    }

    #[test]
    fn both_orders_of_bytes_and_both_units_of_time() {
        for (magic, ns) in [(MICRO, 7000), (NANO, 7)] {
            for big in [false, true] {
                let bytes = file(magic, big, 1, &[(5, 7, 60, 60), (6, 0, 64, 1500)]);
                let record =
                    |seconds, ns, data, truncated| Record { at: Duration::new(seconds, ns), data, truncated };
                let expected = [record(5, ns, vec![0; 60], false), record(6, 0, vec![1; 64], true)];
                assert_eq!(all(&bytes).unwrap(), expected, "{magic:x} {big}");
                assert_eq!(Input::new("x", 0, &bytes[..]).unwrap().has_nanoseconds(), magic == NANO);
            }
        }
    }

    #[test]
    fn a_fraction_of_a_whole_second_is_the_next_second() {
        for (magic, fraction) in [(MICRO, 1_000_000), (NANO, 1_000_000_000)] {
            let records = all(&file(magic, false, 1, &[(u32::MAX, fraction, 60, 60)])).unwrap();
            assert_eq!(records[0].at, Duration::from_secs(1 << 32));
        }
    }

    #[test]
    fn files_are_merged_by_time_and_equal_times_by_file() {
        let one = file(MICRO, false, 1, &[(1, 0, 10, 10), (3, 0, 11, 11), (3, 0, 12, 12)]);
        let two = file(NANO, true, 1, &[(0, 5, 20, 20), (3, 0, 21, 21), (9, 0, 22, 22)]);
        let none = file(MICRO, false, 1, &[]);
        let mut inputs =
            [&one, &none, &two].map(|bytes| Input::new("x", bytes.len() as u8, &bytes[..]).unwrap());
        let mut lengths = Vec::new();
        while let Some((_, record)) = next(&mut inputs) {
            lengths.push(record.data.len());
        }
        assert_eq!(lengths, [20, 10, 11, 12, 21, 22]);
    }

    #[test]
    fn errors_say_why_a_file_is_no_capture_of_ethernet() {
        let refused = |bytes: &[u8]| format!("{:#}", all(bytes).unwrap_err());
        assert_eq!(refused(&[]), "x.pcap is empty");
        assert!(refused(&[7; 100]).starts_with("x.pcap is not a pcap file"));
        assert!(
            refused(&pcap::PCAPNG)
                .contains("x.pcap is a pcapng file: convert it with `editcap -F pcap x.pcap plain.pcap`")
        );
        assert!(refused(&[0x1f, 0x8b, 8, 0]).contains("x.pcap is compressed: expand it with `gunzip"));
        let link = refused(&file(MICRO, false, 101, &[]));
        assert_eq!(link, "x.pcap holds RAW frames, not Ethernet");
        let link = refused(&file(NANO, true, 113, &[]));
        assert_eq!(link, "x.pcap holds LINUX_SLL frames, not Ethernet");
    }

    #[test]
    fn broken_files_are_errors_at_their_packet() {
        let bytes = file(MICRO, false, 1, &[(1, 0, 60, 60), (2, 0, 60, 60)]);
        for length in 0..bytes.len() {
            let seen = all(&bytes[..length]);
            let fine = [24, 24 + 76].contains(&length);
            assert_eq!(seen.is_ok(), fine, "cut at {length}: {seen:?}");
        }
        let cut = format!("{:#}", all(&bytes[..bytes.len() - 1]).unwrap_err());
        assert!(cut.starts_with("x.pcap is broken at packet 2; those before it were run"), "{cut}");
        for (magic, fraction) in [(MICRO, 1_000_001), (NANO, 1_000_000_001), (MICRO, u32::MAX)] {
            let time = format!("{:#}", all(&file(magic, false, 1, &[(1, fraction, 60, 60)])).unwrap_err());
            let expected =
                format!("x.pcap is broken at its first packet: a wrong time stamp, 1 s and {fraction}");
            assert!(time.starts_with(&expected), "{time}");
        }
        // More bytes than the file has, and more than any packet has.
        for length in [61, u32::MAX] {
            let mut bytes = file(MICRO, false, 1, &[(1, 0, 60, 60)]);
            bytes[32..36].copy_from_slice(&length.to_le_bytes());
            assert!(all(&bytes).is_err());
        }
    }
}
