//! `millrace capture`: packets of the kernel plane as a pcapng file.
//!
//! | file | holds |
//! |---|---|
//! | `mod.rs` | the one capture that may run, and the thread that reads its packets |
//! | `pcapng.rs` | packets as blocks of a pcapng file |
//!
//! The control loop attaches the program with the capture ([`crate::plane::capture`]). A thread of this module reads its ring, and
//! a client of the API takes the bytes. If the client is slow, the ring fills, and packets are missing in the capture. Forwarding
//! never waits.

pub(crate) mod pcapng;

use crate::{
    api::capture::CaptureReport,
    base::{clock::monotonic, guard::locked, privileges},
    linux::observer::Waker,
    plane::capture::{CaptureMaps, Missing, READ_EVERY},
};
use logic::plan::{PortId, RouterId};
use pcapng::Writer;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};
use tokio::sync::mpsc::{Receiver, Sender, channel, error::TrySendError};

/// A client that takes nothing for this long is gone.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pieces of the file that wait for the client.
const PIECES: usize = 2;

/// What a file needs to know about the box.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Names {
    /// The ports whose packets are in the file; empty: all.
    pub only: BTreeSet<PortId>,
    pub ports: BTreeMap<PortId, String>,
    pub routers: BTreeMap<RouterId, String>,
}

/// The place of the one capture that may run. Clones share it.
#[derive(Clone, Default)]
pub struct Captures(Arc<Place>);

#[derive(Default)]
struct Place {
    is_taken: AtomicBool,
    /// A client has asked for its end.
    ends: AtomicBool,
    maps: OnceLock<Arc<CaptureMaps>>,
    /// Wakes the control loop, which ends the capture.
    waker: Option<Waker>,
    /// Of the last capture.
    packets: AtomicU64,
    missing_before: Mutex<Missing>,
}

/// The right to capture. The capture ends when this is dropped.
pub struct Claim(Captures);

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.0.is_taken.store(false, Relaxed);
        self.0.0.waker.iter().for_each(Waker::wake);
    }
}

impl Captures {
    pub fn waking(waker: Waker) -> Captures {
        Captures(Arc::new(Place { waker: Some(waker), ..Place::default() }))
    }

    /// `None`: another capture runs.
    pub fn claim(&self) -> Option<Claim> {
        (!self.0.is_taken.swap(true, Relaxed)).then(|| Claim(self.clone()))
    }

    pub fn is_claimed(&self) -> bool {
        self.0.is_taken.load(Relaxed)
    }

    /// Ends the capture. Its client still gets the packets captured so far.
    pub fn end(&self) {
        self.0.ends.store(true, Relaxed);
    }

    /// The maps of captures, which are made by the first call that succeeds.
    ///
    /// # Errors
    /// They cannot be made.
    pub fn maps<E>(&self, make: impl FnOnce() -> Result<CaptureMaps, E>) -> Result<&Arc<CaptureMaps>, E> {
        if let Some(maps) = self.0.maps.get() {
            return Ok(maps);
        }
        let made = Arc::new(make()?);
        Ok(self.0.maps.get_or_init(|| made))
    }

    /// The maps, if they have been made.
    pub fn made(&self) -> Option<&Arc<CaptureMaps>> {
        self.0.maps.get()
    }

    pub fn report(&self) -> CaptureReport {
        let missing = self.0.maps.get().map(|maps| maps.missing()).unwrap_or_default();
        let before = *locked(&self.0.missing_before);
        CaptureReport {
            running: self.is_claimed(),
            packets: self.0.packets.load(Relaxed),
            over_rate: missing.over_rate.saturating_sub(before.over_rate),
            no_room: missing.no_room.saturating_sub(before.no_room),
        }
    }
}

impl Claim {
    /// Counts from now on. Call it before the program is attached. Returns the time: earlier packets in the ring belong to another
    /// capture.
    pub fn begin(&self) -> Duration {
        let place = &self.0.0;
        place.packets.store(0, Relaxed);
        place.ends.store(false, Relaxed);
        *locked(&place.missing_before) = place.maps.get().map(|maps| maps.missing()).unwrap_or_default();
        monotonic()
    }

    /// Starts the thread that reads the packets since this time, at most `count`. Returns the pieces of the file.
    ///
    /// # Errors
    /// There are no maps, or no thread.
    pub fn read(
        self,
        names: Names,
        since: Duration,
        snaplen: u32,
        count: Option<u64>,
    ) -> io::Result<Receiver<Vec<u8>>> {
        let maps = self.0.0.maps.get().cloned().ok_or_else(|| io::Error::other("nothing is captured"))?;
        let (to, pieces) = channel(PIECES);
        thread::Builder::new().name("capture".into()).spawn(move || {
            privileges::serve_with_nothing("capture");
            let mut reading =
                Reading { claim: self, writer: Writer::new(names, snaplen), since, left: count };
            if let Err(error) = reading.run(&maps, &to) {
                tracing::warn!("the capture has ended: {error:#}");
            }
        })?;
        Ok(pieces)
    }
}

struct Reading {
    claim: Claim,
    writer: Writer,
    since: Duration,
    left: Option<u64>,
}

impl Reading {
    fn run(&mut self, maps: &CaptureMaps, to: &Sender<Vec<u8>>) -> anyhow::Result<()> {
        let this = Mutex::new(self);
        let each = |record: &logic::capture::record::Record<'_>| locked(&this).take(record);
        maps.follow(each, |read| {
            while send(to, locked(&this).writer.take()) && !locked(&this).is_done() {
                thread::sleep(READ_EVERY);
                read();
            }
            read();
            send(to, locked(&this).writer.take());
            Ok(())
        })
    }

    fn is_done(&self) -> bool {
        self.left == Some(0) || self.claim.0.0.ends.load(Relaxed)
    }

    fn take(&mut self, record: &logic::capture::record::Record<'_>) {
        if !record.is_captured || u128::from(record.time_ns) < self.since.as_nanos() || self.left == Some(0) {
            return;
        }
        self.left = self.left.map(|left| left - 1);
        self.claim.0.0.packets.fetch_add(1, Relaxed);
        self.writer.put(record);
    }
}

/// Returns false if the client is gone.
fn send(to: &Sender<Vec<u8>>, mut piece: Vec<u8>) -> bool {
    if piece.is_empty() {
        return !to.is_closed();
    }
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
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
    use super::*;

    #[test]
    fn one_captures_at_a_time() {
        let captures = Captures::default();
        let claim = captures.claim().unwrap();
        assert!(captures.claim().is_none() && captures.is_claimed());
        assert!(claim.read(Names::default(), Duration::ZERO, 100, None).is_err(), "nothing has begun");
        assert!(!captures.is_claimed() && captures.claim().is_some());
        assert_eq!(captures.report(), CaptureReport::default());
    }

    #[test]
    fn a_client_that_has_gone_ends_the_capture() {
        let (to, mut pieces) = channel(PIECES);
        assert!(send(&to, Vec::new()) && send(&to, vec![1]));
        assert_eq!(pieces.try_recv(), Ok(vec![1]));
        drop(pieces);
        assert!(!send(&to, vec![1]) && !send(&to, Vec::new()));
    }
}
