//! The fake kernel of tests, except its files: affinities of threads, interrupts of devices, and answers of netlink.

use super::{
    CoreId,
    affinity::{Affinity, CoreMask, Scheduling},
    knob::System,
    ports::Ask,
    queues::NetdevQueues,
};
use crate::{
    base::priority::Urgency,
    linux::{ethtool::Coalescing, netlink::netdev::Napi},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Affinities of threads, and how setting one fails.
#[derive(Clone, Default)]
pub struct Fake(Arc<Mutex<Affinities>>);

#[derive(Default)]
pub struct Affinities {
    pub of: BTreeMap<u32, BTreeSet<CoreId>>,
    /// The scheduling of threads; others have the usual one.
    pub urgency: BTreeMap<u32, Urgency>,
    /// Setting an affinity fails with this error; 0: it succeeds.
    pub refuses: i32,
    pub panics: bool,
    /// Setting an affinity takes this long.
    pub takes: Duration,
    pub interrupts: BTreeMap<String, Interrupts>,
    /// Drivers answer every question about interrupts with this error; 0: they answer.
    pub is_silent: i32,
}

impl Fake {
    pub fn get(&self) -> MutexGuard<'_, Affinities> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn cores(&self, thread: u32) -> Vec<CoreId> {
        self.get().of[&thread].iter().copied().collect()
    }
}

impl Affinity for Fake {
    fn allowed(&self, thread: u32) -> io::Result<CoreMask> {
        let state = self.get();
        let cores = state.of.get(&thread).ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
        Ok(cores.iter().collect())
    }

    fn allow(&self, thread: u32, cores: &BTreeSet<CoreId>) -> io::Result<()> {
        let mut state = self.get();
        std::thread::sleep(state.takes);
        if std::mem::take(&mut state.panics) {
            panic!("a test asked for this fault");
        }
        if state.refuses != 0 {
            return Err(io::Error::from_raw_os_error(state.refuses));
        }
        state.of.insert(thread, cores.clone());
        Ok(())
    }
}

impl Scheduling for Fake {
    fn urgency(&self, thread: u32) -> io::Result<Urgency> {
        Ok(self.get().urgency.get(&thread).copied().unwrap_or(Urgency::usual(0)))
    }

    fn set_urgency(&self, thread: u32, urgency: Urgency) -> io::Result<()> {
        self.get().urgency.insert(thread, urgency);
        Ok(())
    }

    fn renice(&self, thread: u32, nice: i8) -> io::Result<()> {
        let before = self.urgency(thread)?;
        self.set_urgency(thread, Urgency { nice: nice.into(), ..before })
    }
}

/// What netlink reports about eth0.
#[derive(Clone, Default)]
pub struct Netlink(Arc<Mutex<NetdevQueues>>);

impl Netlink {
    /// Gives its NAPI instances these threads, in the order of its queues.
    pub fn threads(&self, threads: &[u32]) {
        let napi = |&pid: &u32| Napi {
            id: 500 + pid,
            irq: None,
            pid: Some(pid),
            threaded: Some(true),
            defers: false,
        };
        self.tell(NetdevQueues {
            napis: Some(threads.iter().map(napi).collect()),
            ..NetdevQueues::default()
        });
    }

    pub fn tell(&self, told: NetdevQueues) {
        *self.0.lock().unwrap() = told;
    }
}

impl Ask for Netlink {
    fn ifindex(&self, device: &str) -> io::Result<u32> {
        if device == "eth0" { Ok(8) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    fn told(&self, _: u32, _: &str) -> io::Result<NetdevQueues> {
        Ok(self.0.lock().unwrap().clone())
    }
}

/// The interrupt moderation of a fake device, and what its driver does with a new setting.
#[derive(Clone, Copy, Debug)]
pub struct Interrupts {
    pub now: Coalescing,
    /// The driver rounds down to a multiple of this, microseconds.
    pub step: u32,
    /// Setting fails with this error; 0: it succeeds.
    pub refuses: i32,
    /// The driver reports success, and does nothing.
    pub ignores: bool,
    /// The driver applies the setting, and reports the error nevertheless.
    pub half: bool,
    /// The driver refuses adaptive moderation.
    pub never_adapts: bool,
}

impl Interrupts {
    pub fn new(us: u32, adaptive: bool) -> Interrupts {
        Interrupts {
            now: Coalescing { us, adaptive },
            step: 1,
            refuses: 0,
            ignores: false,
            half: false,
            never_adapts: false,
        }
    }
}

impl System for Fake {
    fn coalescing(&self, device: &str) -> io::Result<Option<Coalescing>> {
        let state = self.get();
        match state.is_silent {
            0 => Ok(state.interrupts.get(device).map(|interrupts| interrupts.now)),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    fn coalesce(&self, device: &str, wanted: Coalescing) -> io::Result<()> {
        let mut state = self.get();
        let unsupported = || io::Error::from_raw_os_error(libc::EOPNOTSUPP);
        if state.is_silent != 0 {
            return Err(io::Error::from_raw_os_error(state.is_silent));
        }
        let interrupts = state.interrupts.get_mut(device).ok_or_else(unsupported)?;
        let Interrupts { now, step, refuses, ignores, half, .. } = *interrupts;
        // Like the driver ice.
        if wanted.adaptive && (wanted.us != now.us || interrupts.never_adapts) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        if !ignores && (refuses == 0 || half) {
            interrupts.now = Coalescing { us: wanted.us / step * step, ..wanted };
        }
        if refuses == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(refuses)) }
    }
}
