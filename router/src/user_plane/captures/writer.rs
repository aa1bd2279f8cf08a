//! Writes the copies of a ring as records of a pcap file.

use super::sink::{Failed, MOST_CAPTURED, RECORD, Sink};
use crate::{base::guard::locked, config::MirrorSettings};
use logic::elements::{NoCopy, Taker};
use std::{
    path::PathBuf,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

/// The most bytes written at once, not counting the last packet.
const CHUNK: usize = 256 << 10;
/// How often a failed file is tried again, and how often its name is checked.
const LOOKS: Duration = Duration::from_secs(1);
/// The most that two comparisons of the clocks differ unless one of the clocks was set.
const DRIFT_NS: u64 = 1_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// Why copies are lost; `None`: none are.
pub(super) type Fault = Arc<Mutex<Option<String>>>;

pub(super) fn read(fault: &Fault) -> Option<String> {
    locked(fault).clone()
}

/// Writes the copies of a ring to a file, which has whole records at any time.
pub(super) struct Writer<S> {
    taker: Taker,
    sink: S,
    file: PathBuf,
    most_bytes: u64,
    /// The length of the file; `None`: it is not open.
    bytes: Option<u64>,
    /// Why nothing is written now.
    stopped: Option<NoCopy>,
    /// The last write failed, and is tried again.
    is_tried: bool,
    /// Why the first lost copy was lost.
    failed: Option<String>,
    fault: Fault,
    looked: Option<Instant>,
    /// The time of the last record.
    last_ns: u64,
    chunk: Vec<u8>,
}

impl<S: Sink> Writer<S> {
    /// The file is opened by the first [`Writer::drain`].
    pub fn new(taker: Taker, sink: S, mirror: &MirrorSettings) -> Writer<S> {
        Writer {
            taker,
            sink,
            file: mirror.file.clone(),
            most_bytes: mirror.file_bytes,
            bytes: None,
            stopped: None,
            is_tried: false,
            failed: None,
            fault: Fault::default(),
            looked: None,
            last_ns: 0,
            chunk: Vec::with_capacity(CHUNK + RECORD + MOST_CAPTURED),
        }
    }

    pub fn fault(&self) -> Fault {
        self.fault.clone()
    }

    /// Why the file lacks copies, even if it could be written again later.
    pub fn failed(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    /// Ends the writer for this reason: every copy is lost.
    pub fn fails(mut self, why: &str) {
        self.stop(NoCopy::Disk, why);
    }

    /// How long nothing needs to be done, if no copies come.
    pub fn rests(&self, now: Instant) -> Duration {
        self.looked
            .map_or(Duration::ZERO, |looked| LOOKS.saturating_sub(now.saturating_duration_since(looked)))
    }

    /// Writes some copies; returns whether more wait. `to_unix_ns` is added to the time of elements to get that of records.
    pub fn drain(&mut self, now: Instant, to_unix_ns: u64) -> bool {
        if self.looked.is_none_or(|looked| now.saturating_duration_since(looked) >= LOOKS) {
            self.looked = Some(now);
            self.look();
        }
        let (mut copies, mut lost) = (0, 0);
        self.chunk.clear();
        let is_empty = loop {
            let start = self.chunk.len();
            if start >= CHUNK {
                break false;
            }
            self.chunk.extend([0; RECORD]);
            let Some(copied) = self.taker.take(&mut self.chunk) else {
                self.chunk.truncate(start);
                break true;
            };
            if self.stopped.is_none() && self.bytes.unwrap_or(0) + self.chunk.len() as u64 > self.most_bytes {
                let mib = self.most_bytes >> 20;
                self.stop(NoCopy::Limit, &format!("it has reached its limit of {mib} MiB"));
            }
            if self.stopped.is_some() {
                self.chunk.truncate(start);
                lost += 1;
                if lost >= CHUNK as u64 / RECORD as u64 {
                    break false;
                }
                continue;
            }
            let stamp_ns = self.stamp(copied.at_ns.wrapping_add(to_unix_ns));
            let parts = [
                (stamp_ns / SECOND_NS) as u32,
                (stamp_ns % SECOND_NS) as u32,
                copied.captured,
                copied.original,
            ];
            let header = self.chunk.iter_mut().skip(start);
            header.zip(parts.into_iter().flat_map(u32::to_le_bytes)).for_each(|(to, from)| *to = from);
            copies += 1;
        };
        if let Some(why) = self.stopped {
            self.taker.lose(why, lost);
        }
        if copies > 0 {
            self.write(copies);
        }
        !is_empty
    }

    fn write(&mut self, copies: u64) {
        let at = self.bytes.unwrap_or(0);
        match self.sink.write(at, &self.chunk) {
            Ok(()) => {
                self.bytes = Some(at + self.chunk.len() as u64);
                self.taker.count_written(copies);
                if self.is_tried {
                    self.is_tried = false;
                    // These copies may have reached the limit, which is already reported.
                    if self.stopped.is_none() {
                        self.say(None);
                    }
                }
            }
            Err(Failed { error, fit }) => {
                self.bytes = Some(at + fit.bytes as u64);
                self.taker.count_written(fit.records);
                self.taker.lose(NoCopy::Disk, copies - fit.records);
                self.stop(NoCopy::Disk, &format!("cannot write it: {error}"));
                self.is_tried = true;
            }
        }
    }

    /// Opens the file if it is not open, or if its name now means another file. Tries again after an error.
    fn look(&mut self) {
        let was_open = self.bytes.is_some() && !self.sink.is_gone();
        if !was_open {
            match self.sink.open() {
                Ok(bytes) => self.bytes = Some(bytes),
                Err(error) => {
                    self.bytes = None;
                    return self.stop(NoCopy::Disk, &format!("{error:#}"));
                }
            }
        }
        if !was_open || self.stopped == Some(NoCopy::Disk) {
            self.stopped = None;
            self.taker.refuse(None);
        }
        if !was_open {
            self.say(None);
        }
    }

    fn stop(&mut self, why: NoCopy, text: &str) {
        self.stopped = Some(why);
        self.taker.refuse(Some(why));
        let text = format!("mirror {}: {text}", self.file.display());
        self.failed.get_or_insert_with(|| text.clone());
        let advice = if why == NoCopy::Limit { "; if you move it away, a new one begins" } else { "" };
        self.say(Some(text + advice));
    }

    fn say(&self, text: Option<String>) {
        *locked(&self.fault) = text;
    }

    /// The time of a record. The clocks are compared repeatedly; a small step back must not make a later record earlier.
    fn stamp(&mut self, ns: u64) -> u64 {
        let back = self.last_ns.saturating_sub(ns);
        self.last_ns = if back < DRIFT_NS { ns + back } else { ns };
        self.last_ns
    }
}
