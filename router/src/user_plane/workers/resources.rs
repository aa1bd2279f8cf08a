//! The resources that paths share (P7): their capacities, what is counted, and how much is used.

use super::{
    clock::Clock,
    counters::{counts_misses, stand},
    held::Held,
    scarce::{Reading, Scarce},
};
use crate::{
    api::workers::{Capacity, ResourceStand},
    user_plane::calibrate::Calibrated,
};
use logic::{
    cores::CoreId,
    paths::{RESOURCES, Resource, Share, Used, Utilisation},
};
use std::collections::BTreeMap;

/// See the head of this file.
pub(super) struct Resources {
    clock: Clock,
    pub calibrated: Calibrated,
    /// Workers read the CPU's counter of cache misses; `Err`: why they do not.
    misses: Result<(), String>,
    /// The I/O capacity of the last plan.
    io: Capacity,
    /// Which of them is shared now.
    pub scarce: Scarce,
}

impl Resources {
    pub fn new(share: Share, calibrated: Calibrated, clock: Clock) -> Resources {
        let misses = counts_misses(share, calibrated.memory.per_second.is_some());
        Resources { clock, calibrated, misses, io: Capacity::default(), scarce: Scarce::new(share) }
    }

    /// Takes in the present I/O capacity, and what paths and workers have used until now.
    pub fn take_in(&mut self, io: &Capacity, held: &Held) {
        self.io.clone_from(io);
        let paths = held.paths.iter().map(|(path, held)| (*path, (held.core, held.taken)));
        let now = Reading { at: self.clock.cycles(), busy: held.busy.clone(), paths: paths.collect() };
        let capacities = self.capacities();
        self.scarce.take_in(now, self.clock.hz(), &capacities);
    }

    pub fn counts_io(&self) -> bool {
        self.scarce.counts_io(self.io.per_second.is_some())
    }

    /// The capacity of each resource in a second, if it is known; of cycles, that of a core.
    fn capacities(&self) -> Used {
        let known = RESOURCES.into_iter().filter_map(|r| Some((r, self.capacity(r).per_second?)));
        known.fold(Used::default(), |all, (resource, amount)| all.with(resource, amount))
    }

    fn capacity(&self, resource: Resource) -> Capacity {
        match resource {
            Resource::Cycles => Capacity { per_second: Some(self.clock.hz()), basis: "of a core".into() },
            Resource::Memory => self.calibrated.memory.clone(),
            Resource::Io => self.io.clone(),
            // Memory bandwidth bounds them, too.
            Resource::CacheMisses => Capacity { per_second: None, basis: "as of memory bandwidth".into() },
        }
    }

    /// What a worker uses, as parts of the capacities.
    pub fn used_by(&self, core: CoreId) -> BTreeMap<String, f64> {
        let used = Utilisation::new(&self.scarce.used_by(core), &self.capacities());
        let known = RESOURCES.into_iter().filter_map(|r| Some((r.to_string(), used.get(r)?)));
        known.map(|(resource, of_1000)| (resource, f64::from(of_1000) / 1000.0)).collect()
    }

    /// The reports of all resources.
    pub fn report(&self) -> Vec<ResourceStand> {
        let io = match self.scarce.share {
            _ if self.counts_io() => Ok(()),
            Share::Scarce => Err(format!("its capacity is not known: {}", self.io.basis)),
            Share::Always(_) => Err("it is not shared".into()),
        };
        let used = Utilisation::new(&self.scarce.used(), &self.capacities());
        let report = |resource| ResourceStand {
            capacity: self.capacity(resource),
            used: used.get(resource).map(|of_1000| f64::from(of_1000) / 1000.0),
            ..stand(resource, &self.misses, &io)
        };
        RESOURCES.map(report).to_vec()
    }
}
