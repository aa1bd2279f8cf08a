//! The thread that reads the packets of a capture, until the client, a bound or somebody else ends it.

use super::{Bounds, Claim, Started, pcapng::Writer};
use crate::{
    base::{clock::monotonic, guard::locked},
    plane::capture::{CaptureMaps, READ_EVERY},
};
use logic::capture::record::Record;
use std::{
    sync::{Mutex, atomic::Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};
use tokio::sync::mpsc::{Sender, error::TrySendError};

/// A client that takes nothing for this long is gone.
const PATIENCE: Duration = Duration::from_secs(30);
/// The same after somebody has ended the capture.
const LAST_PATIENCE: Duration = Duration::from_secs(1);
/// The most bytes that are written before the client gets them.
const MOST_BYTES: usize = 4 << 20;

pub(super) struct Reading {
    claim: Claim,
    writer: Writer,
    since_ns: u64,
    /// Later packets do not belong to the capture.
    until_ns: u64,
    packets: u64,
    bytes: u64,
}

impl Reading {
    pub(super) fn new(claim: Claim, started: Started, bounds: Bounds) -> Reading {
        Reading {
            claim,
            writer: Writer::new(started.names, bounds.snaplen),
            since_ns: started.since_ns,
            until_ns: u64::MAX,
            packets: bounds.packets.unwrap_or(u64::MAX),
            bytes: bounds.bytes.unwrap_or(u64::MAX),
        }
    }

    pub(super) fn run(&mut self, maps: &CaptureMaps, to: &Sender<Vec<u8>>) -> anyhow::Result<()> {
        let this = Mutex::new(self);
        maps.follow(
            |record| locked(&this).take(record),
            |read| {
                while locked(&this).send(to) {
                    thread::sleep(READ_EVERY);
                    read();
                }
                Ok(())
            },
        )
    }

    /// Returns false if packets must be sent before more are read, or if no more are wanted.
    fn take(&mut self, record: &Record<'_>) -> bool {
        if record.time_ns >= self.until_ns {
            return false;
        }
        if record.time_ns < self.since_ns {
            return true;
        }
        if self.is_full() {
            return false;
        }
        self.packets -= 1;
        self.claim.0.0.packets.fetch_add(1, Relaxed);
        self.writer.put(record);
        !self.is_full() && self.writer.len() < MOST_BYTES
    }

    fn is_full(&self) -> bool {
        self.packets == 0 || self.bytes <= self.writer.len() as u64
    }

    /// Sends what was written. Returns false if the capture is over.
    fn send(&mut self, to: &Sender<Vec<u8>>) -> bool {
        let is_full = self.is_full();
        let ends = self.claim.0.0.ends.load(Relaxed);
        // After its end, packets that had come before are read once more, as far as there is room.
        let is_last = is_full || self.until_ns < u64::MAX && self.writer.len() < MOST_BYTES;
        if ends && self.until_ns == u64::MAX {
            self.until_ns = monotonic().as_nanos() as u64;
        }
        let piece = self.writer.take();
        self.bytes = self.bytes.saturating_sub(piece.len() as u64);
        let is_sent = send(to, piece, || match self.claim.0.0.ends.load(Relaxed) {
            true => LAST_PATIENCE,
            false => PATIENCE,
        });
        is_sent && !is_last
    }
}

/// Returns false if the client is gone.
fn send(to: &Sender<Vec<u8>>, mut piece: Vec<u8>, patience: impl Fn() -> Duration) -> bool {
    if piece.is_empty() {
        return !to.is_closed();
    }
    let started = Instant::now();
    while started.elapsed() < patience() {
        match to.try_send(piece) {
            Ok(()) => return true,
            Err(TrySendError::Closed(_)) => return false,
            Err(TrySendError::Full(back)) => piece = back,
        }
        thread::sleep(READ_EVERY);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::{super::Captures, *};
    use logic::capture::record::Fate;
    use tokio::sync::mpsc::channel;

    fn record(time_ns: u64, frame: &[u8]) -> Record<'_> {
        Record {
            time_ns,
            in_port: 0,
            router: None,
            fate: Fate::Forwarded(Some(1)),
            ahead: 0,
            in_bytes: frame.len() as u32,
            head: &frame[..frame.len().min(128)],
            out_bytes: frame.len() as u32,
            frame,
            pushed: 0,
        }
    }

    fn reading(captures: &Captures, bounds: Bounds) -> Reading {
        let started = Started { since_ns: 100, ..Started::default() };
        Reading::new(captures.claim().unwrap(), started, Bounds { snaplen: 9000, ..bounds })
    }

    #[test]
    fn packets_of_this_capture_are_taken_up_to_its_bounds() {
        let captures = Captures::default();
        let (to, mut pieces) = channel(8);
        let mut counted = reading(&captures, Bounds { packets: Some(2), ..Bounds::default() });
        assert!(counted.take(&record(99, b"earlier")) && counted.take(&record(100, b"first")));
        assert!(!counted.take(&Record { time_ns: 101, ..record(101, b"second") }), "the last one");
        assert!(!counted.take(&record(102, b"third")));
        assert!(!counted.send(&to), "it is over");
        let file = pieces.try_recv().unwrap();
        let has = |part: &[u8]| file.windows(part.len()).any(|window| window == part);
        assert!(has(b"first") && has(b"second") && !has(b"earlier") && !has(b"third"));
        assert_eq!(captures.report().packets, 2);
        drop(counted);
        let mut sized = reading(&captures, Bounds { bytes: Some(1000), ..Bounds::default() });
        assert!(sized.take(&record(100, &[7; 100])) && !sized.take(&record(100, &[7; 1000])));
        assert!(!sized.send(&to), "it is over");
    }

    /// Packets may come as fast as they are read: they are sent all the same.
    #[test]
    fn a_flood_is_sent_in_pieces() {
        let captures = Captures::default();
        let (to, mut pieces) = channel(8);
        let mut reading = reading(&captures, Bounds::default());
        let flood = (0_u64..).take_while(|_| reading.take(&record(100, &[7; 1400]))).count();
        assert!((1000..2000).contains(&flood), "{flood}");
        assert!(reading.send(&to) && pieces.try_recv().unwrap().len() < MOST_BYTES + 4000);
        assert!(reading.take(&record(100, b"more")));
    }

    #[test]
    fn packets_that_came_before_the_end_are_still_read() {
        let captures = Captures::default();
        let (to, mut pieces) = channel(8);
        let mut reading = reading(&captures, Bounds::default());
        captures.end();
        assert!(reading.send(&to), "once more");
        assert!(reading.take(&record(100, b"before")) && !reading.take(&record(u64::MAX - 1, b"after")));
        assert!(!reading.send(&to));
        drop(reading);
        let file: Vec<u8> = std::iter::from_fn(|| pieces.try_recv().ok()).flatten().collect();
        assert!(file.windows(6).any(|window| window == b"before"));
        assert!(captures.claim().is_some());
    }

    #[test]
    fn a_client_that_has_gone_ends_the_capture() {
        let (to, mut pieces) = channel(1);
        let patience = || Duration::ZERO;
        assert!(send(&to, Vec::new(), patience) && send(&to, vec![1], || PATIENCE));
        assert!(!send(&to, vec![2], patience), "it takes nothing");
        assert_eq!(pieces.try_recv(), Ok(vec![1]));
        drop(pieces);
        assert!(!send(&to, vec![1], || PATIENCE) && !send(&to, Vec::new(), patience));
    }
}
