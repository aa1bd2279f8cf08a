//! The resources that paths use, and which of them this machine counts (P7).

use std::fmt;

/// A resource that packets need and that may be scarce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// Time of a core.
    Cycles,
    /// Bytes between the last cache and memory.
    Memory,
    /// Bytes to and from devices.
    Io,
    /// Misses of the last cache, which is shared.
    CacheMisses,
}

/// In the order of [`Used`].
pub const RESOURCES: [Resource; 4] =
    [Resource::Cycles, Resource::Memory, Resource::Io, Resource::CacheMisses];

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Resource::Cycles => "CPU cycles",
            Resource::Memory => "memory bandwidth",
            Resource::Io => "I/O bandwidth",
            Resource::CacheMisses => "cache misses",
        })
    }
}

/// An amount of each resource. `None`: this machine does not count it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used([Option<u64>; RESOURCES.len()]);

impl Used {
    /// Only cycles.
    pub const fn cycles(cycles: u64) -> Self {
        Used([Some(cycles), None, None, None])
    }

    /// The same with this amount of a resource.
    pub const fn with(mut self, resource: Resource, amount: u64) -> Self {
        self.0[resource as usize] = Some(amount);
        self
    }

    /// The amount of this resource.
    pub const fn get(&self, resource: Resource) -> Option<u64> {
        self.0[resource as usize]
    }

    /// Adds an amount of this resource.
    pub fn add(&mut self, resource: Resource, amount: u64) {
        let mine = &mut self.0[resource as usize];
        *mine = Some(mine.unwrap_or(0).saturating_add(amount));
    }

    /// The sum of both.
    pub fn plus(mut self, more: &Used) -> Self {
        for resource in RESOURCES {
            more.get(resource).into_iter().for_each(|amount| self.add(resource, amount));
        }
        self
    }

    /// The same without this resource.
    pub const fn without(mut self, resource: Resource) -> Self {
        self.0[resource as usize] = None;
        self
    }

    /// The same, with the other's amounts of resources that are unknown here.
    pub fn and(mut self, other: &Used) -> Self {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine = mine.or(theirs);
        }
        self
    }

    /// The difference from an earlier reading of the same counters. A resource that is missing in one of them is
    /// unknown.
    pub fn since(&self, before: &Used) -> Self {
        let mut since = *self;
        for (now, before) in since.0.iter_mut().zip(before.0) {
            *now = now.zip(before).map(|(now, before)| now.saturating_sub(before));
        }
        since
    }

    /// The resources that are known.
    pub fn counters(&self) -> Counters {
        RESOURCES
            .into_iter()
            .filter(|&resource| self.get(resource).is_some())
            .fold(Counters::default(), Counters::with)
    }
}

/// The resources that this machine counts for each path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters(u8);

impl Counters {
    /// Only a clock that counts cycles, which every machine has.
    pub const CYCLES: Counters = Counters(1 << Resource::Cycles as u8);

    /// The same with this resource.
    pub const fn with(self, resource: Resource) -> Self {
        Counters(self.0 | 1 << resource as u8)
    }

    /// Whether this resource is counted.
    pub const fn has(self, resource: Resource) -> bool {
        self.0 & 1 << resource as u8 != 0
    }

    /// Whether it has resources that counters of the CPU count, besides the clock.
    pub const fn has_others(self) -> bool {
        self.has(Resource::Memory) || self.has(Resource::CacheMisses)
    }

    /// Returns an error if this resource is not counted, because then it cannot be shared fairly.
    pub fn require(self, resource: Resource) -> Result<(), NotCounted> {
        if self.has(resource) { Ok(()) } else { Err(NotCounted { resource }) }
    }
}

/// Paths cannot share this resource fairly, because its use by each path is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("paths cannot share {resource} fairly: this machine does not count what each of them uses of it")]
pub struct NotCounted {
    /// The resource.
    pub resource: Resource,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_that_is_not_counted_is_refused_by_name() {
        let used = Used::cycles(5).with(Resource::CacheMisses, 0);
        let counters = used.counters();
        assert_eq!(counters, Counters::CYCLES.with(Resource::CacheMisses));
        assert_eq!(counters.require(Resource::CacheMisses), Ok(()));
        let refused = counters.require(Resource::Memory).unwrap_err();
        assert_eq!(refused, NotCounted { resource: Resource::Memory });
        assert_eq!(
            refused.to_string(),
            "paths cannot share memory bandwidth fairly: this machine does not count what each of them uses of it"
        );
    }
}
