//! The ports that flow rules send to: a slot for each port, and sets of ports. A set is a row of a map of maps, with a
//! device map that has the same slots.
//!
//! A row keeps its device map for ever, and the device map changes in place. To put another one into the row would
//! wait for all running programs, but rules and ports change on a thread that must not wait. A packet sees the old
//! or the new value of each slot.

use super::MAX_PORTS;
use crate::base::guard::locked;
use anyhow::{Context, Result};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use logic::flow::{RulePort, program::Ports};
use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::{AsFd, AsRawFd},
    sync::{Arc, Mutex},
    thread,
};

/// `rule_ports` and `flow_sets`.
pub(super) struct PortSets {
    outer: MapHandle,
    targets: MapHandle,
    rows: usize,
    /// One thread at a time makes the device maps of rows.
    making: Mutex<()>,
    /// The device maps of rows that have one. To open one by its number would take `CAP_SYS_ADMIN`.
    maps: Mutex<BTreeMap<u32, Arc<MapHandle>>>,
    state: Mutex<SetState>,
}

#[derive(Default)]
struct SetState {
    ports: BTreeMap<RulePort, (u32, bool)>,
    sets: BTreeMap<u32, Ports>,
}

impl PortSets {
    /// Makes `flow_sets`, with no device maps.
    pub fn outer(rows: usize) -> Result<MapHandle> {
        let template = device_map()?;
        let opts = libbpf_rs::libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
            inner_map_fd: template.as_fd().as_raw_fd() as u32,
            ..Default::default()
        };
        MapHandle::create(MapType::ArrayOfMaps, Some("flow_sets"), 4, 4, rows.max(1) as u32, &opts)
            .context("creating the map of sets of ports")
    }

    /// `outer` has `rows` rows; `targets` is `rule_ports`.
    pub fn new(outer: MapHandle, targets: MapHandle, rows: usize) -> PortSets {
        let (making, maps, state) = Default::default();
        PortSets { outer, targets, rows, making, maps, state }
    }

    /// See [`logic::flow::kernel::FlowMemory::sets`].
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Makes the device maps of all rows, on a thread of its own, in the order in which rows are taken. Each waits
    /// for the programs that run now, for tens of milliseconds. The thread ends with the sets.
    pub fn make_ahead(self: &Arc<Self>) -> Result<()> {
        let (rows, sets) = (self.rows as u32, Arc::downgrade(self));
        let make = move || {
            for row in 1..rows {
                let Some(sets) = sets.upgrade() else { return };
                if let Err(error) = sets.make(row) {
                    tracing::warn!(
                        "cannot make sets of ports for flow rules ahead, only when a rule needs one: {error:#}"
                    );
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("flow-sets".into()).spawn(make);
        thread.map(drop).context("starting the thread that makes sets of ports")
    }

    /// Gives a row its device map, if it has none yet.
    fn make(&self, row: u32) -> Result<()> {
        let _one = self.making.lock().unwrap_or_else(|e| e.into_inner());
        if locked(&self.maps).contains_key(&row) {
            return Ok(());
        }
        let map = device_map()?;
        let inner = map.as_fd().as_raw_fd().to_ne_bytes();
        self.outer.update(&row.to_ne_bytes(), &inner, MapFlags::ANY).context("adding a set of ports")?;
        locked(&self.maps).insert(row, Arc::new(map));
        Ok(())
    }

    fn set(&self, row: u32) -> Result<Arc<MapHandle>> {
        let map = locked(&self.maps).get(&row).cloned();
        map.with_context(|| format!("set {row} of ports is not there"))
    }

    /// The ports that are in a row's device map now, as the kernel has it.
    pub fn ports(&self, row: u32) -> Vec<RulePort> {
        let Ok(map) = self.set(row) else { return Vec::new() };
        let there = |port: &RulePort| matches!(map.lookup(&slot(*port), MapFlags::ANY), Ok(Some(_)));
        (1..=MAX_PORTS as u16).map(RulePort).filter(there).collect()
    }

    /// Puts these ports into a row.
    pub fn write(&self, row: u32, ports: &Ports) -> Result<()> {
        self.make(row)?;
        let map = self.set(row)?;
        let mut state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        for port in (1..=MAX_PORTS as u16).map(RulePort) {
            if let Err(error) = set_slot(&map, port, member(ports, &state.ports, port)) {
                tracing::warn!("{error:#}");
            }
        }
        state.sets.insert(row, ports.clone());
        Ok(())
    }

    /// Forgets a row that no rule names any more.
    pub fn forget(&self, row: u32) {
        self.state.lock().unwrap_or_else(|e| e.into_inner()).sets.remove(&row);
    }

    /// See [`super::MappedFlows::set_ports`].
    pub fn set_ports(&self, ports: BTreeMap<RulePort, (u32, bool)>) -> Result<()> {
        let mut state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        let before = std::mem::replace(&mut state.ports, ports);
        let known: BTreeSet<RulePort> = before.keys().chain(state.ports.keys()).copied().collect();
        // All slots are written, also those that did not change: the kernel empties the slots of a device that
        // leaves its namespace, and the device may be back with the same index.
        let device = |port| member(&Ports::All, &state.ports, port);
        let mut done: Vec<_> =
            known.iter().map(|&port| set_slot(&self.targets, port, device(port))).collect();
        for (&row, set) in &state.sets {
            match self.set(row) {
                Ok(map) => done
                    .extend(known.iter().map(|&port| set_slot(&map, port, member(set, &state.ports, port)))),
                Err(error) => done.push(Err(error)),
            }
        }
        done.into_iter().collect()
    }
}

/// The device of a port, if it is in the set.
fn member(set: &Ports, known: &BTreeMap<RulePort, (u32, bool)>, port: RulePort) -> Option<u32> {
    let &(ifindex, floods) = known.get(&port)?;
    let reached = match set {
        Ports::All => true,
        Ports::Flood => floods,
        Ports::These(these) => these.contains(&port),
    };
    reached.then_some(ifindex)
}

/// The slot of a port in each device map.
fn slot(port: RulePort) -> [u8; 4] {
    u32::from(port.0 - 1).to_ne_bytes()
}

fn set_slot(map: &MapHandle, port: RulePort, ifindex: Option<u32>) -> Result<()> {
    let Some(ifindex) = ifindex else {
        return match map.delete(&slot(port)) {
            Err(e) if e.kind() != libbpf_rs::ErrorKind::NotFound => {
                Err(e).with_context(|| format!("taking port {port} from flow rules"))
            }
            _ => Ok(()),
        };
    };
    // `struct bpf_devmap_val`: ifindex, and 0 for "no egress program".
    map.update(&slot(port), &u64::from(ifindex).to_le_bytes(), MapFlags::ANY)
        .with_context(|| format!("giving flow rules port {port} (device {ifindex})"))
}

fn device_map() -> Result<MapHandle> {
    let opts = libbpf_rs::libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
        ..Default::default()
    };
    MapHandle::create(MapType::Devmap, Some("flow_set"), 4, 8, MAX_PORTS as u32, &opts)
        .context("creating a set of ports")
}
