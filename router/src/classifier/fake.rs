//! A NIC with a classifier, as bytes: what `SIOCETHTOOL` would be asked, and what it would answer.

use super::*;
use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
};

/// A device that has none.
const WITHOUT: &str = "eth2";

/// Rules by place, each a whole `struct ethtool_rx_flow_spec`; copies are the same NIC.
#[derive(Clone)]
pub struct Nic(Rc<State>);

struct State {
    queues: u32,
    places: u32,
    chooses: bool,
    rules: RefCell<BTreeMap<u32, Vec<u8>>>,
    rings: RefCell<Vec<u32>>,
    requests: RefCell<Vec<Vec<u8>>>,
    last: RefCell<Vec<u8>>,
    errno: Cell<Option<i32>>,
}

impl Nic {
    pub fn new(queues: u32, places: u32, chooses: bool) -> Nic {
        let nic = Nic(Rc::new(State {
            queues,
            places,
            chooses,
            rules: RefCell::default(),
            rings: RefCell::default(),
            requests: RefCell::default(),
            last: RefCell::default(),
            errno: Cell::default(),
        }));
        nic.spread();
        nic
    }

    fn spread(&self) {
        *self.0.rings.borrow_mut() = (0..8).map(|i| i % self.0.queues).collect();
    }

    /// From now on everything fails so.
    pub fn fail(&self, errno: Option<i32>) {
        self.0.errno.set(errno);
    }

    /// As a device that was made again.
    pub fn forget_all(&self) {
        self.0.rules.borrow_mut().clear();
        self.spread();
    }

    /// The last structure, as it was answered.
    pub fn last(&self) -> Vec<u8> {
        self.0.last.borrow().clone()
    }

    /// All requests of this command, as they were asked.
    pub fn asked(&self, command: u32) -> Vec<Vec<u8>> {
        self.0.requests.borrow().iter().filter(|r| u32_at(r, 0) == command).cloned().collect()
    }

    fn answer(&self, request: &mut [u8]) -> Result<(), i32> {
        let location = || u32_at(request, SPEC_AT + LOCATION_AT);
        let mut rules = self.0.rules.borrow_mut();
        let special = if self.0.chooses { RX_CLS_LOC_SPECIAL } else { 0 };
        let put = |request: &mut [u8], at: usize, value: u32| {
            request[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        };
        match u32_at(request, 0) {
            ETHTOOL_GRXRINGS => put(request, DATA_AT, self.0.queues),
            ETHTOOL_GRXCLSRLCNT => {
                put(request, COUNT_AT, rules.len() as u32);
                put(request, DATA_AT, self.0.places | special);
            }
            ETHTOOL_GRXCLSRLALL => {
                if (u32_at(request, COUNT_AT) as usize) < rules.len() {
                    return Err(libc::EMSGSIZE);
                }
                for (i, at) in rules.keys().enumerate() {
                    put(request, LOCATIONS_AT + 4 * i, *at);
                }
                put(request, COUNT_AT, rules.len() as u32);
                put(request, DATA_AT, self.0.places);
            }
            ETHTOOL_GRXCLSRULE => {
                let spec = rules.get(&location()).ok_or(libc::ENOENT)?;
                request[SPEC_AT..][..SPEC_BYTES].copy_from_slice(spec);
            }
            ETHTOOL_SRXCLSRLDEL => drop(rules.remove(&location()).ok_or(libc::ENOENT)?),
            ETHTOOL_SRXCLSRLINS => {
                let free = (0..self.0.places).find(|at| !rules.contains_key(at));
                let at = match location() {
                    RX_CLS_LOC_ANY if self.0.chooses => free.ok_or(libc::ENOSPC)?,
                    at if at < self.0.places => at,
                    _ => return Err(libc::EINVAL),
                };
                put(request, SPEC_AT + LOCATION_AT, at);
                rules.insert(at, request[SPEC_AT..][..SPEC_BYTES].to_vec());
            }
            ETHTOOL_GRXFHINDIR => {
                let rings = self.0.rings.borrow();
                let size = u32_at(request, 4) as usize;
                put(request, 4, rings.len() as u32);
                for (i, ring) in rings.iter().enumerate().take(size) {
                    put(request, RINGS_AT + 4 * i, *ring);
                }
            }
            ETHTOOL_SRXFHINDIR if u32_at(request, 4) == 0 => self.spread(),
            ETHTOOL_SRXFHINDIR => {
                let rings = request[RINGS_AT..].chunks_exact(4).map(|ring| u32_at(ring, 0));
                *self.0.rings.borrow_mut() = rings.collect();
            }
            _ => return Err(libc::EOPNOTSUPP),
        }
        Ok(())
    }
}

impl Ioctl for &Nic {
    fn ethtool(&self, device: &str, request: &mut [u8]) -> io::Result<()> {
        self.0.requests.borrow_mut().push(request.to_vec());
        let answered = match self.0.errno.get() {
            Some(errno) => Err(errno),
            None if device == WITHOUT => Err(libc::EOPNOTSUPP),
            None => self.answer(request),
        };
        *self.0.last.borrow_mut() = request.to_vec();
        answered.map_err(io::Error::from_raw_os_error)
    }
}

impl Ioctl for Nic {
    fn ethtool(&self, device: &str, request: &mut [u8]) -> io::Result<()> {
        (&self).ethtool(device, request)
    }
}
