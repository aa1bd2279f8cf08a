//! `millrace capture`: packets of the kernel plane as a pcapng file.
//!
//! | file | holds |
//! |---|---|
//! | `mod.rs` | the one capture that may run, and the thread that reads its packets |
//! | `reading.rs` | the thread that reads packets, and when it ends |
//! | `pcapng.rs` | packets as blocks of a pcapng file |
//!
//! The control loop attaches the program with the capture ([`crate::plane::capture`]). A thread of this module reads its ring, and
//! a client of the API takes the bytes. If the client is slow, the ring fills, and packets are missing in the capture. Forwarding
//! never waits.

pub(crate) mod pcapng;
mod reading;

use crate::{
    api::capture::CaptureReport,
    base::{clock::monotonic, guard::locked, privileges},
    linux::observer::Waker,
    plane::capture::{CaptureMaps, Missing},
};
use logic::plan::{PortId, RouterId};
use reading::Reading;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
};
use tokio::sync::mpsc::{Receiver, channel};

/// Pieces of the file that wait for the client.
const PIECES: usize = 2;

/// What the control loop has begun.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    /// CLOCK_MONOTONIC.
    pub since_ns: u64,
    pub names: Names,
}

/// When a capture ends by itself, and how much it takes of each packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    pub snaplen: u32,
    /// After this many packets.
    pub packets: Option<u64>,
    /// After the packet with which the file has this many bytes.
    pub bytes: Option<u64>,
}

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
        if self.0.is_taken.swap(true, Relaxed) {
            return None;
        }
        self.0.ends.store(false, Relaxed);
        Some(Claim(self.clone()))
    }

    /// Counts from now on. The control loop calls it when the program of the new capture is attached. Returns the time: earlier
    /// packets in the ring belong to another capture.
    pub fn begin(&self) -> u64 {
        self.0.packets.store(0, Relaxed);
        *locked(&self.0.missing_before) = self.0.maps.get().map(|maps| maps.missing()).unwrap_or_default();
        monotonic().as_nanos() as u64
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
    /// Starts the thread that reads the packets. Returns the pieces of the file.
    ///
    /// # Errors
    /// There are no maps, or no thread.
    pub fn read(self, start: Started, bounds: Bounds) -> io::Result<Receiver<Vec<u8>>> {
        let maps = self.0.0.maps.get().cloned().ok_or_else(|| io::Error::other("nothing is captured"))?;
        let (to, pieces) = channel(PIECES);
        thread::Builder::new().name("capture".into()).spawn(move || {
            privileges::serve_with_nothing("capture");
            if let Err(error) = Reading::new(self, start, bounds).run(&maps, &to) {
                tracing::warn!("the capture has ended: {error:#}");
            }
        })?;
        Ok(pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_captures_at_a_time() {
        let captures = Captures::default();
        let claim = captures.claim().unwrap();
        assert!(captures.claim().is_none() && captures.is_claimed());
        assert!(claim.read(Started::default(), Bounds::default()).is_err(), "nothing has begun");
        assert!(!captures.is_claimed() && captures.claim().is_some());
        assert_eq!(captures.report(), CaptureReport::default());
    }
}
