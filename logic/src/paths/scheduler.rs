//! The paths of one worker: which one runs next, and what a run is charged (P5 to P8, P12). [`super`] has the rules.
//!
//! [`Scheduler::pick`] and [`Scheduler::charge`] allocate nothing, and search only two short lists. A run touches the
//! words of routers and those of one router's paths (8 to a cache line), and a stride and a place of each. It also
//! touches the path's slot, which is one cache line if nothing was measured. [`super::stride`] has the times.

use super::{
    cost::Cost,
    idle,
    printed::DTV,
    resource::{Counters, NotCounted, Resource, Used},
    slot::{Path, PathId, Price, Run, Settings, Slot},
    stride::{Full, MOST_TASKS, Stride, Task},
};
use crate::plan::RouterId;
use std::collections::BTreeMap;

/// Why a path is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It is on this worker already.
    #[error("path {0} is on this core already")]
    Twice(PathId),
    /// There are too many.
    #[error(transparent)]
    Full(#[from] Full),
}

/// The position of a path in its scheduler, as long as it is there. Calls with the handle of a removed path change
/// nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle {
    router: Task,
    path: Task,
    /// The number of the path.
    pub id: PathId,
}

/// What to run now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Next {
    /// The path that runs.
    pub handle: Handle,
    /// The most packets, 1 or more.
    pub burst: u32,
    /// Whether the caller should measure the run.
    pub measure: bool,
}

/// The state of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// The path.
    pub path: Path,
    /// Its router's weight.
    pub router_weight: u16,
    /// The rest of its weight x [`DTV`] while it finds no work.
    pub tickets: u32,
    /// The most packets of a run.
    pub burst: u32,
    /// The cost of a packet.
    pub cost: Cost,
    /// The number of packets that were processed.
    pub packets: u64,
    /// All runs, also those that found nothing.
    pub runs: u64,
    /// The runs that found nothing.
    pub empty_runs: u64,
    /// The cycles that were charged, or would have been if cycles were scarce.
    pub cycles: u64,
    /// The use of other resources that are counted.
    pub taken: Used,
}

/// A router with paths here.
#[derive(Clone, Debug)]
struct Member {
    id: RouterId,
    paths: Stride,
    halvings: [u8; MOST_TASKS],
    slots: Vec<Slot>,
}

/// Paths that share a worker.
#[derive(Clone, Debug)]
pub struct Scheduler {
    settings: Settings,
    /// `None`: cycles are charged.
    price: Option<Price>,
    routers: Stride,
    /// By the routers' tasks.
    members: Vec<Member>,
    /// The weights that were set.
    weights: BTreeMap<RouterId, u16>,
}

impl Scheduler {
    /// A scheduler without paths. Returns an error if cycles are not counted, because then nothing can be shared.
    pub fn new(settings: Settings) -> Result<Self, NotCounted> {
        settings.counted.require(Resource::Cycles)?;
        let (routers, members, weights) = (Stride::default(), Vec::new(), BTreeMap::new());
        Ok(Scheduler { settings, price: None, routers, members, weights })
    }

    /// Sets a router's weight among all with paths here, 1 or more, now and in the future. The default is 1.
    pub fn weigh(&mut self, router: RouterId, weight: u16) {
        self.weights.insert(router, weight.max(1));
        if let Some(task) = self.router(router) {
            self.routers.set_tickets(task, weight.into());
        }
    }

    /// Adds a path, awake. `cost` is its known cost if another worker had it. If it is unknown, the first run is
    /// measured.
    pub fn add(&mut self, path: Path, cost: Cost) -> Result<Handle, Refused> {
        if self.find(path.id).is_some() {
            return Err(Refused::Twice(path.id));
        }
        let router = match self.router(path.router) {
            Some(router) => router,
            None => self.add_router(path.router)?,
        };
        let member = &mut self.members[router.index()];
        let task = member.paths.add(path.weight.into())?;
        let slot = Slot::new(path, cost, &self.settings, self.price);
        match member.slots.get_mut(task.index()) {
            Some(free) => *free = slot,
            None => member.slots.push(slot),
        }
        member.halvings[task.index()] = 0;
        self.routers.wake(router);
        Ok(Handle { router, path: task, id: path.id })
    }

    fn add_router(&mut self, id: RouterId) -> Result<Task, Full> {
        let router = self.routers.add(self.weight(id).into())?;
        let member = Member { id, paths: Stride::default(), halvings: [0; MOST_TASKS], slots: Vec::new() };
        match self.members.get_mut(router.index()) {
            Some(free) => *free = member,
            None => self.members.push(member),
        }
        Ok(router)
    }

    /// Removes a path. Returns its cost, or `None` if it was not there.
    pub fn remove(&mut self, handle: Handle) -> Option<Cost> {
        let member = member_of(&mut self.members, handle)?;
        member.paths.remove(handle.path);
        if member.paths.is_empty() {
            self.routers.remove(handle.router);
        } else if member.paths.all_sleep() {
            self.routers.sleep(handle.router);
        }
        Some(member.slots[handle.path.index()].cost)
    }

    /// Sets the weight of a path.
    pub fn set_weight(&mut self, handle: Handle, weight: u16) {
        if let Some(member) = member_of(&mut self.members, handle) {
            member.slots[handle.path.index()].weight = weight.max(1);
            member.paths.set_tickets(handle.path, weight.into());
        }
    }

    /// Makes a path sleep: it is not picked until it wakes, because its ring is known to be empty.
    pub fn sleep(&mut self, handle: Handle) {
        let Some(member) = member_of(&mut self.members, handle) else { return };
        member.paths.sleep(handle.path);
        if member.paths.all_sleep() {
            self.routers.sleep(handle.router);
        }
    }

    /// Wakes a path that has work again. It has saved nothing, and has all its tickets. Does nothing if it is awake.
    pub fn wake(&mut self, handle: Handle) {
        let Some(member) = member_of(&mut self.members, handle) else { return };
        if !member.paths.is_awake(handle.path) {
            member.paths.wake(handle.path);
            member.halvings[handle.path.index()] = 0;
            self.routers.wake(handle.router);
        }
    }

    /// The next run. `None`: there is no path, or all sleep.
    #[inline]
    pub fn pick(&mut self) -> Option<Next> {
        let router = self.routers.pick()?;
        let member = &mut self.members[router.index()];
        let path = member.paths.pick()?;
        let slot = &member.slots[path.index()];
        let (burst, measure) = (slot.burst.into(), slot.sampler.is_due());
        Some(Next { handle: Handle { router, path, id: slot.id }, burst, measure })
    }

    /// Charges a run, before the next one is picked.
    #[inline]
    pub fn charge(&mut self, handle: Handle, run: &Run) {
        let Some(member) = member_of(&mut self.members, handle) else { return };
        let slot = &mut member.slots[handle.path.index()];
        let cycles = slot.cycles_of(run, &self.settings);
        let units = slot.units_of(run, cycles, self.price);
        slot.count(run, cycles, &self.settings, self.price);
        let (of_path, of_router) = if run.packets == 0 {
            slot.empty_runs += 1;
            let longest = self.settings.bursts.longest_cycles.into();
            let halvings = member.halve(handle.path);
            (idle::charge(units, halvings, longest), idle::charge(units, member.least_halvings(), longest))
        } else {
            member.double(handle.path);
            (units, units)
        };
        member.paths.charge(handle.path, of_path);
        self.routers.charge(handle.router, of_router);
    }

    /// Sets what measured runs contain from now on; cycles are always included. If the shared resource is no longer
    /// counted, cycles are shared instead.
    pub fn count(&mut self, counted: Counters) {
        self.settings.counted = counted.with(Resource::Cycles);
        if !self.settings.counted.has(self.shared()) {
            let _ = self.share(Resource::Cycles);
        }
    }

    /// Sets the scarce resource, which is shared from now on. Call it once per control period, because the value of its
    /// unit follows the cost of packets. Cycles are shared as long as packets' use of it is unknown.
    pub fn share(&mut self, resource: Resource) -> Result<(), NotCounted> {
        self.settings.counted.require(resource)?;
        let costs = self.handles().map(|handle| &self.slot(handle).cost);
        self.price = (resource != Resource::Cycles).then(|| Price::new(resource, costs)).flatten();
        for slot in self.members.iter_mut().flat_map(|member| &mut member.slots) {
            slot.retune(&self.settings, self.price);
        }
        Ok(())
    }

    /// The resource by which runs are charged now.
    pub fn shared(&self) -> Resource {
        self.price.map_or(Resource::Cycles, |price| price.resource)
    }

    /// The handle of a path.
    pub fn find(&self, id: PathId) -> Option<Handle> {
        self.handles().find(|handle| handle.id == id)
    }

    /// The state of all paths, by router.
    pub fn accounts(&self) -> impl Iterator<Item = Account> {
        self.handles().map(|handle| {
            let (member, slot) = (&self.members[handle.router.index()], self.slot(handle));
            Account {
                path: Path { id: slot.id, router: member.id, weight: slot.weight },
                router_weight: self.weight(member.id),
                tickets: idle::tickets(DTV * u32::from(slot.weight), member.halvings[handle.path.index()]),
                burst: slot.burst.into(),
                cost: slot.cost,
                packets: slot.packets,
                runs: slot.runs,
                empty_runs: slot.empty_runs,
                cycles: slot.cycles,
                taken: slot.taken,
            }
        })
    }

    fn handles(&self) -> impl Iterator<Item = Handle> {
        self.routers.tasks().flat_map(|router| {
            let Member { paths, slots, .. } = &self.members[router.index()];
            paths.tasks().map(move |path| Handle { router, path, id: slots[path.index()].id })
        })
    }

    fn slot(&self, handle: Handle) -> &Slot {
        &self.members[handle.router.index()].slots[handle.path.index()]
    }

    fn router(&self, id: RouterId) -> Option<Task> {
        self.routers.tasks().find(|router| self.members[router.index()].id == id)
    }

    fn weight(&self, router: RouterId) -> u16 {
        self.weights.get(&router).copied().unwrap_or(1)
    }
}

/// The router of a path that is there.
#[inline]
fn member_of(members: &mut [Member], handle: Handle) -> Option<&mut Member> {
    let member = members.get_mut(handle.router.index())?;
    let is_there = member.paths.has(handle.path) && member.slots[handle.path.index()].id == handle.id;
    is_there.then_some(member)
}

impl Member {
    /// Halves the tickets of a path that found nothing. Returns how often they are halved now.
    fn halve(&mut self, path: Task) -> u8 {
        let halvings = &mut self.halvings[path.index()];
        *halvings = (*halvings + 1).min(idle::MOST_HALVINGS);
        *halvings
    }

    /// Doubles the tickets of a path that found something.
    fn double(&mut self, path: Task) {
        let halvings = &mut self.halvings[path.index()];
        *halvings = halvings.saturating_sub(1);
    }

    /// A router is as idle as the busiest of its paths.
    fn least_halvings(&self) -> u8 {
        self.paths
            .tasks()
            .filter(|path| self.paths.is_awake(*path))
            .map(|path| self.halvings[path.index()])
            .min()
            .unwrap_or(0)
    }
}
