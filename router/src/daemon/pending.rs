//! Stand-ins with the shape expected of `logic::mirror` and `logic::tables` until those are merged.

use logic::{memory::Memory, net::*, observe::*, plan::*};
use std::{fmt, marker::PhantomData, net::IpAddr};

#[derive(Default)]
pub struct Mirror;

pub struct RouterView {
    pub id: Option<RouterId>,
    pub name: String,
    pub accelerated: [bool; 2],
    pub why_not: [Vec<String>; 2],
}

pub struct InterfaceView {
    pub id: Option<InterfaceId>,
    pub router: String,
    pub namespace: NamespaceId,
    pub ifindex: u32,
    pub name: String,
    pub port: Option<PortId>,
    pub vlan: Vlan,
    pub mac: Mac,
    pub mtu: u32,
    pub accelerated: [bool; 2],
    pub why_not: Vec<String>,
}

impl Mirror {
    pub fn observe(&mut self, _event: Event) {}
    pub fn plan(&mut self) -> Vec<Op> {
        Vec::new()
    }
    pub fn everything(&self) -> Vec<Op> {
        Vec::new()
    }
    pub fn routers(&self) -> Vec<RouterView> {
        Vec::new()
    }
    pub fn interfaces(&self) -> Vec<InterfaceView> {
        Vec::new()
    }
    pub fn routes4(&self, _router: RouterId) -> Vec<(Prefix4, Target)> {
        Vec::new()
    }
    pub fn routes6(&self, _router: RouterId) -> Vec<(Prefix6, Target)> {
        Vec::new()
    }
    pub fn is_stale(&self, _interface: InterfaceId, _address: IpAddr) -> bool {
        false
    }
    pub fn neighbours(&self, _router: RouterId) -> usize {
        0
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Region {
    FibBlocks,
    FibTails,
    Nexthops,
    Neighbours,
    Interfaces,
}

#[derive(Debug)]
pub struct Full {
    pub region: Region,
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is full", self.region)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch(u64);

pub struct Tables<M>(PhantomData<M>);

impl<M: Memory> Tables<M> {
    pub fn new(_memory: M) -> Self {
        Tables(PhantomData)
    }
    pub fn apply(&mut self, _op: &Op) -> Result<(), Full> {
        Ok(())
    }
    pub fn seal(&mut self) -> Epoch {
        Epoch(0)
    }
    pub fn reclaim(&mut self, _epoch: Epoch) {}
    pub fn take_used(&mut self) -> Vec<(InterfaceId, IpAddr)> {
        Vec::new()
    }
    pub fn lookup(&self, _router: RouterId, _address: IpAddr) -> Vec<(Target, Option<Mac>, u16)> {
        Vec::new()
    }
    pub fn occupancy(&self) -> Vec<(&'static str, usize, usize)> {
        Vec::new()
    }
}
