//! The routers' shares of full cores, as the program reads them (`bpf/shares.h`), and what the routers took
//! (`unsafe` lives here).

use super::{MAX_PORTS, MAX_ROUTERS, Pace, counters::CHARGE_ROWS, memory::Mapping, memory::Words64};
use crate::{
    abi::{self, types},
    base::clock::monotonic,
    linux::observer::Waker,
};
use anyhow::{Context, Result};
use libbpf_rs::libbpf_sys as sys;
use logic::{
    cores::CoreId,
    plan::{PortId, RouterId},
    reason::Reason,
    share::Grant,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    mem::offset_of,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::{
        Arc, Mutex, PoisonError, TryLockError,
        atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

const SHARE_WORDS: usize = size_of::<types::share>() / 8;
const OWN_ADMIT: usize = offset_of!(types::share, own_admit) / 4;
const PACKETS: usize = offset_of!(types::share, packets) / 8;
const OWN_CUT: usize = offset_of!(types::share, own_cut) / 8;
const CHARGE_WORDS: usize = size_of::<types::charges>() / 8;
const DEADLINE: usize = offset_of!(types::control, shares_deadline_jiffies) / 8;
const JIFFIES: usize = offset_of!(types::control, jiffies) / 8;

const _: () = assert!(offset_of!(types::share, admit) == 0);

/// Shares of one generation. The placing thread reads and writes rows, and the control loop writes weights.
pub struct Shares {
    rows: Mapping,
    charges: Words64,
    control: Words64,
    clock: OwnedFd,
    pace: Pace,
    cpus: usize,
    wanted: AtomicBool,
    /// By router; 0: there is no such router.
    weights: Vec<AtomicU16>,
    /// By port and router: whether the router has interfaces on the port.
    present: Vec<AtomicBool>,
    /// The host's number, + 1; 0: it has none.
    host: AtomicU32,
    /// By router: thousandths of a core that it took of full cores in the last period, + 1; 0: no core was full.
    taken: Vec<AtomicU32>,
}

/// A router's packets on a core since the generation was loaded, while shares were in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// All that came.
    pub packets: u64,
    /// Packets to be forwarded that were cut.
    pub cut: u64,
    /// Packets for the router itself that were cut.
    pub own_cut: u64,
    /// Packets for the router itself that were passed up.
    pub own: u64,
    /// Packets that were passed up or dropped for other reasons, also those that the kernel forwarded.
    pub other: u64,
}

impl Shares {
    pub(super) fn new(skel: &abi::MillraceSkel<'_>, cpus: usize, pace: Pace) -> Result<Shares> {
        let maps = &skel.maps;
        let rows = Mapping::new(maps.shares.as_fd(), size_of::<types::share>(), cpus * MAX_ROUTERS)?;
        let charges = Mapping::new(maps.charges.as_fd(), size_of::<types::charges>(), cpus * CHARGE_ROWS)?;
        let control = Mapping::new(maps.control.as_fd(), size_of::<types::control>(), 1)?;
        let clock = skel.progs.millrace_clock.as_fd().try_clone_to_owned();
        Ok(Shares {
            rows,
            charges: charges.into(),
            control: control.into(),
            clock: clock.context("keeping the program that reads the clock")?,
            pace,
            cpus,
            wanted: AtomicBool::new(false),
            weights: (0..MAX_ROUTERS).map(|_| AtomicU16::new(0)).collect(),
            host: AtomicU32::new(0),
            present: (0..MAX_PORTS * MAX_ROUTERS).map(|_| AtomicBool::new(false)).collect(),
            taken: (0..MAX_ROUTERS).map(|_| AtomicU32::new(0)).collect(),
        })
    }

    /// Must the program with shares be attached?
    pub fn wanted(&self) -> bool {
        self.wanted.load(Relaxed)
    }

    /// Puts shares in force for this time, as soon as their program is attached. Zero ends them.
    ///
    /// # Errors
    /// The kernel did not run the program that reads jiffies; nothing has changed.
    pub fn in_force(&self, time: Duration) -> Result<()> {
        if time.is_zero() {
            self.wanted.store(false, Relaxed);
            self.control.store(DEADLINE, 0);
            return Ok(());
        }
        let mut opts =
            sys::bpf_test_run_opts { sz: size_of::<sys::bpf_test_run_opts>() as _, ..Default::default() };
        // SAFETY: a valid descriptor; the program takes and gives no data.
        let rc = unsafe { sys::bpf_prog_test_run_opts(self.clock.as_raw_fd(), &mut opts) };
        if rc < 0 {
            return Err(io::Error::from_raw_os_error(-rc)).context("reading the kernel's clock");
        }
        let jiffies = self.control.load(JIFFIES);
        let ticks = (time.as_secs_f64() * self.pace.hz(monotonic(), jiffies)).ceil() as u64;
        self.control.store(DEADLINE, jiffies.saturating_add(ticks));
        self.wanted.store(true, Relaxed);
        Ok(())
    }

    /// Sets a router's share of a core, while shares are in force.
    pub fn set(&self, core: CoreId, router: RouterId, grant: Grant) {
        if let Some(row) = self.row(core, router) {
            let words: &[AtomicU32] = self.rows.words();
            words[row * SHARE_WORDS * 2].store(grant.admit, Relaxed);
            words[row * SHARE_WORDS * 2 + OWN_ADMIT].store(grant.own_admit, Relaxed);
        }
    }

    /// [`Taken::packets`].
    pub fn packets(&self, core: CoreId, router: RouterId) -> u64 {
        self.row(core, router).map_or(0, |row| self.word(row, PACKETS))
    }

    fn word(&self, row: usize, word: usize) -> u64 {
        let words: &[AtomicU64] = self.rows.words();
        words[row * SHARE_WORDS + word].load(Relaxed)
    }

    /// The packets of a router on a core.
    pub fn taken(&self, core: CoreId, router: RouterId) -> Taken {
        let Some(row) = self.row(core, router) else { return Taken::default() };
        let charges = (usize::from(core) * CHARGE_ROWS + usize::from(router)) * CHARGE_WORDS;
        let mut taken =
            Taken { packets: self.word(row, PACKETS), own_cut: self.word(row, OWN_CUT), ..Taken::default() };
        for reason in Reason::all() {
            let packets = self.charges.load(charges + reason as usize);
            match reason {
                Reason::OverShare => taken.cut = packets.saturating_sub(taken.own_cut),
                Reason::Local | Reason::Broadcast | Reason::NotIp => taken.own += packets,
                // These are not among `packets`: they went to workers, which have their own shares, or to nobody.
                Reason::PathGiven
                | Reason::PathUnsure
                | Reason::PathFrameTooLong
                | Reason::PathNoWorker
                | Reason::PathUnseen => {}
                _ => taken.other += packets,
            }
        }
        taken
    }

    fn row(&self, core: CoreId, router: RouterId) -> Option<usize> {
        let fits = usize::from(core) < self.cpus && usize::from(router) < MAX_ROUTERS;
        fits.then(|| usize::from(core) * MAX_ROUTERS + usize::from(router))
    }

    /// The weight of a router, at least 1.
    pub fn weight(&self, router: RouterId) -> u16 {
        self.weights.get(usize::from(router)).map_or(1, |weight| weight.load(Relaxed).max(1))
    }

    /// Sets the weights of all routers, and the ports on which each has interfaces.
    pub fn set_routers(&self, weights: &BTreeMap<RouterId, u16>, present: &BTreeSet<(PortId, RouterId)>) {
        for (router, word) in (0..=RouterId::MAX).zip(&self.weights) {
            word.store(weights.get(&router).copied().unwrap_or(0), Relaxed);
        }
        for (port, row) in (0..).zip(self.present.chunks(MAX_ROUTERS)) {
            (0..=RouterId::MAX)
                .zip(row)
                .for_each(|(router, is)| is.store(present.contains(&(port, router)), Relaxed));
        }
    }

    /// Sets which of the routers is the host.
    pub fn set_host(&self, host: Option<RouterId>) {
        self.host.store(host.map_or(0, |host| u32::from(host) + 1), Relaxed);
    }

    /// The router that is the host.
    pub fn host(&self) -> Option<RouterId> {
        RouterId::try_from(self.host.load(Relaxed).checked_sub(1)?).ok()
    }

    /// The routers that have interfaces on a port.
    pub fn routers_on(&self, port: PortId) -> BTreeSet<RouterId> {
        let row = self.present.chunks(MAX_ROUTERS).nth(usize::from(port)).unwrap_or_default();
        (0..=RouterId::MAX).zip(row).filter(|(_, is)| is.load(Relaxed)).map(|(router, _)| router).collect()
    }

    /// Are there several routers? A single one shares with nobody.
    pub fn are_divided(&self) -> bool {
        self.weights.iter().filter(|weight| weight.load(Relaxed) > 0).nth(1).is_some()
    }

    /// Thousandths of a core that a router took of full cores in the last period; `None`: no core was full.
    pub fn taken_of_cores(&self, router: RouterId) -> Option<u32> {
        self.taken.get(usize::from(router))?.load(Relaxed).checked_sub(1)
    }

    pub fn set_taken_of_cores(&self, router: RouterId, thousandths: Option<u32>) {
        if let Some(word) = self.taken.get(usize::from(router)) {
            word.store(thousandths.map_or(0, |taken| taken.saturating_add(1)), Relaxed);
        }
    }
}

/// The shares of the generation that is in charge, for the placing thread. Clones share them.
#[derive(Clone, Default)]
pub struct SharesInCharge {
    shares: Arc<Mutex<Option<Arc<Shares>>>>,
    /// Wakes the control loop, which attaches programs.
    waker: Option<Waker>,
}

impl SharesInCharge {
    /// A clone that uses this waker when another program must be attached.
    pub fn waking(&self, waker: Waker) -> SharesInCharge {
        SharesInCharge { waker: Some(waker), ..self.clone() }
    }

    /// Makes the control loop look at [`Shares::wanted`].
    pub fn wake(&self) {
        self.waker.iter().for_each(Waker::wake);
    }

    pub fn put(&self, shares: Option<Arc<Shares>>) {
        *self.shares.lock().unwrap_or_else(PoisonError::into_inner) = shares;
    }

    /// Returns `Some(None)` if none are in charge, and `None` if another thread is just putting them there: this
    /// never waits.
    pub fn get(&self) -> Option<Option<Arc<Shares>>> {
        match self.shares.try_lock() {
            Ok(shares) => Some(shares.clone()),
            Err(TryLockError::Poisoned(shares)) => Some(shares.into_inner().clone()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}
