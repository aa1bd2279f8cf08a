//! A fake NIC with a classifier. It answers `SIOCETHTOOL` requests byte by byte.

use super::*;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// A device without a classifier.
const WITHOUT: &str = "eth2";

/// A fake NIC. Copies are the same NIC.
#[derive(Clone)]
pub struct Nic(Arc<Mutex<FakeNic>>);

#[derive(Default)]
struct FakeNic {
    queues: u32,
    places: u32,
    chooses: bool,
    /// By location, each a whole `struct ethtool_rx_flow_spec`.
    rules: BTreeMap<u32, Vec<u8>>,
    rings: Vec<u32>,
    requests: Vec<Vec<u8>>,
    last: Vec<u8>,
    errno: Option<i32>,
    /// The error of requests that set a table.
    table_errno: Option<i32>,
    /// In spite of this error, the table is set.
    does_it: bool,
    is_down: bool,
    /// Somebody has set the table (`IFF_RXFH_CONFIGURED`).
    is_set: bool,
    /// The current names of renamed devices; `None`: the device is gone.
    names: BTreeMap<u32, Option<String>>,
}

impl Nic {
    pub fn new(queues: u32, places: u32, chooses: bool) -> Nic {
        let mut state = FakeNic { queues, places, chooses, ..FakeNic::default() };
        state.spread();
        Nic(Arc::new(Mutex::new(state)))
    }

    fn get(&self) -> MutexGuard<'_, FakeNic> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes all requests fail with this error.
    pub fn fail(&self, errno: Option<i32>) {
        self.get().errno = errno;
    }

    /// Makes requests that set an indirection table fail with this error.
    pub fn refuse_tables(&self, errno: Option<i32>) {
        self.get().table_errno = errno;
    }

    /// Renames a device; `None`: it is gone.
    pub fn rename(&self, ifindex: u32, name: Option<&str>) {
        self.get().names.insert(ifindex, name.map(str::to_owned));
    }

    /// Acts like drivers that store a table, return an error, and set the table with their next reset.
    pub fn refuse_and_do_it(&self, errno: i32) {
        let mut state = self.get();
        (state.table_errno, state.does_it) = (Some(errno), true);
    }

    /// While the device is down, its table reads as zeros, as with some drivers.
    pub fn set_down(&self, is_down: bool) {
        self.get().is_down = is_down;
    }

    /// Acts like a device that was created again.
    pub fn forget_all(&self) {
        let mut state = self.get();
        state.rules.clear();
        state.spread();
    }

    /// Sets the number of queues (`ethtool -L`, or programs that need some for themselves). The driver keeps a table
    /// that somebody has set, and otherwise creates a new one.
    pub fn set_queues(&self, queues: u32) {
        let mut state = self.get();
        state.queues = queues;
        if !state.is_set {
            state.spread();
        }
    }

    /// The last request, with its answer.
    pub fn last(&self) -> Vec<u8> {
        self.get().last.clone()
    }

    /// All requests of this command, without their answers.
    pub fn asked(&self, command: u32) -> Vec<Vec<u8>> {
        self.get().requests.iter().filter(|r| u32_at(r, 0) == command).cloned().collect()
    }

    /// The tables of all requests that set one, each entry by entry; empty: the default.
    pub fn tables(&self) -> Vec<Vec<u32>> {
        let rings =
            |request: Vec<u8>| request[RINGS_AT..].chunks_exact(4).map(|ring| u32_at(ring, 0)).collect();
        self.asked(ETHTOOL_SRXFHINDIR).into_iter().map(rings).collect()
    }
}

impl FakeNic {
    /// Sets the initial table of a driver.
    fn spread(&mut self) {
        self.is_set = false;
        let entries = match self.rings.len() {
            0 if self.queues > 8 => 128,
            0 => 8,
            as_ever => as_ever,
        };
        let entries = entries as u32;
        self.rings = (0..entries).map(|i| i % self.queues).collect();
    }

    fn answer(&mut self, request: &mut [u8]) -> Result<(), i32> {
        let location = u32_at(request, SPEC_AT + LOCATION_AT);
        let special = if self.chooses { RX_CLS_LOC_SPECIAL } else { 0 };
        let put = |request: &mut [u8], at: usize, value: u32| {
            request[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        };
        match u32_at(request, 0) {
            ETHTOOL_GRXRINGS => put(request, DATA_AT, self.queues),
            ETHTOOL_GRXCLSRLCNT => {
                put(request, COUNT_AT, self.rules.len() as u32);
                put(request, DATA_AT, self.places | special);
            }
            ETHTOOL_GRXCLSRLALL => {
                if (u32_at(request, COUNT_AT) as usize) < self.rules.len() {
                    return Err(libc::EMSGSIZE);
                }
                for (i, at) in self.rules.keys().enumerate() {
                    put(request, LOCATIONS_AT + 4 * i, *at);
                }
                put(request, COUNT_AT, self.rules.len() as u32);
                put(request, DATA_AT, self.places);
            }
            ETHTOOL_GRXCLSRULE => {
                let spec = self.rules.get(&location).ok_or(libc::ENOENT)?;
                request[SPEC_AT..][..SPEC_BYTES].copy_from_slice(spec);
            }
            ETHTOOL_SRXCLSRLDEL => drop(self.rules.remove(&location).ok_or(libc::ENOENT)?),
            ETHTOOL_SRXCLSRLINS => {
                let free = (0..self.places).find(|at| !self.rules.contains_key(at));
                let at = match location {
                    RX_CLS_LOC_ANY if self.chooses => free.ok_or(libc::ENOSPC)?,
                    at if at < self.places => at,
                    _ => return Err(libc::EINVAL),
                };
                put(request, SPEC_AT + LOCATION_AT, at);
                self.rules.insert(at, request[SPEC_AT..][..SPEC_BYTES].to_vec());
            }
            ETHTOOL_GRXFHINDIR => {
                let size = u32_at(request, 4) as usize;
                put(request, 4, self.rings.len() as u32);
                for (i, ring) in self.rings.iter().enumerate().take(size) {
                    put(request, RINGS_AT + 4 * i, if self.is_down { 0 } else { *ring });
                }
            }
            ETHTOOL_SRXFHINDIR if self.table_errno.is_some() && !self.does_it => {
                return Err(self.table_errno.unwrap_or(0));
            }
            ETHTOOL_SRXFHINDIR if u32_at(request, 4) == 0 => self.spread(),
            // The kernel makes the same checks (`ethtool_copy_validate_indir`).
            ETHTOOL_SRXFHINDIR => {
                let rings: Vec<u32> =
                    request[RINGS_AT..].chunks_exact(4).map(|ring| u32_at(ring, 0)).collect();
                if rings.len() != self.rings.len() || rings.iter().any(|ring| *ring >= self.queues) {
                    return Err(libc::EINVAL);
                }
                (self.rings, self.is_set) = (rings, true);
                if let Some(errno) = self.table_errno {
                    return Err(errno);
                }
            }
            _ => return Err(libc::EOPNOTSUPP),
        }
        Ok(())
    }
}

impl Ioctl for &Nic {
    fn ethtool(&self, device: &str, request: &mut [u8]) -> io::Result<()> {
        let mut state = self.get();
        state.requests.push(request.to_vec());
        let answered = match state.errno {
            Some(errno) => Err(errno),
            None if device == WITHOUT => Err(libc::EOPNOTSUPP),
            None => state.answer(request),
        };
        state.last = request.to_vec();
        answered.map_err(io::Error::from_raw_os_error)
    }

    fn name(&self, ifindex: u32) -> io::Result<Option<String>> {
        let usual = || Some(format!("eth{ifindex}"));
        Ok(self.get().names.get(&ifindex).cloned().unwrap_or_else(usual))
    }
}

impl Ioctl for Nic {
    fn ethtool(&self, device: &str, request: &mut [u8]) -> io::Result<()> {
        (&self).ethtool(device, request)
    }

    fn name(&self, ifindex: u32) -> io::Result<Option<String>> {
        (&self).name(ifindex)
    }
}
