//! From a ring to the records of a pcap file.

use super::sink::{Failed, MOST_CAPTURED, RECORD, Sink};
use crate::{base::guard::locked, config::MirrorSettings};
use logic::elements::{NoCopy, Taker};
use std::{
    path::PathBuf,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

/// Written at once, and a packet more.
const CHUNK: usize = 256 << 10;
/// So often it is tried again, and looked whether the file still has its name.
const LOOKS: Duration = Duration::from_secs(1);
/// Clocks that are compared differ so much at most without one having been set.
const DRIFT_NS: u64 = 1_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// Why copies are lost, if they are.
pub(super) type Fault = Arc<Mutex<Option<String>>>;

pub(super) fn read(fault: &Fault) -> Option<String> {
    locked(fault).clone()
}

/// Takes copies from one ring to one file, of whole records at any time.
pub(super) struct Writer<S> {
    taker: Taker,
    sink: S,
    file: PathBuf,
    most_bytes: u64,
    /// That the file has; `None`: it is not open.
    bytes: Option<u64>,
    /// Why nothing is written now.
    stopped: Option<NoCopy>,
    /// It could not be written, and is tried again.
    is_tried: bool,
    /// Why first something was lost that was to be in the file.
    failed: Option<String>,
    fault: Fault,
    looked: Option<Instant>,
    /// Of the last record.
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

    /// What the file lacks it lacks for this, also when it could be written again.
    pub fn failed(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    /// Nothing will be written, for this reason: every copy is lost.
    pub fn fails(mut self, why: &str) {
        self.stop(NoCopy::Disk, why);
    }

    /// So long nothing needs to be done, if nothing is put.
    pub fn rests(&self, now: Instant) -> Duration {
        self.looked
            .map_or(Duration::ZERO, |looked| LOOKS.saturating_sub(now.saturating_duration_since(looked)))
    }

    /// Writes some of what was put; are there more? `to_unix_ns` makes the time of elements that of records.
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
                self.stop(NoCopy::Limit, &format!("it has {mib} MiB, the most it may have"));
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
                    // These may be the last ones that it may have, which is told already.
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

    /// Opens it, if it is not open, or its name means another file now; tries again what failed.
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
        let advice = if why == NoCopy::Limit { ": move it away, and a new one begins" } else { "" };
        self.say(Some(text + advice));
    }

    fn say(&self, text: Option<String>) {
        *locked(&self.fault) = text;
    }

    /// Clocks are compared again and again: what came later is not told as earlier for that.
    fn stamp(&mut self, ns: u64) -> u64 {
        let back = self.last_ns.saturating_sub(ns);
        self.last_ns = if back < DRIFT_NS { ns + back } else { ns };
        self.last_ns
    }
}
