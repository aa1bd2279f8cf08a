//! What paths use, and which of it this machine counts (P7).

use std::fmt;

/// Something that packets need, and that there may be too little of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// Time of a core.
    Cycles,
    /// What goes between the last cache and memory, bytes.
    Memory,
    /// What goes to and from devices, bytes.
    Io,
    /// Misses of the last cache, as it is shared.
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

/// An amount of each resource; `None`: this machine does not count it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used([Option<u64>; RESOURCES.len()]);

impl Used {
    /// Cycles only.
    pub const fn cycles(cycles: u64) -> Self {
        Used([Some(cycles), None, None, None])
    }

    /// With so much of this resource.
    pub const fn with(mut self, resource: Resource, amount: u64) -> Self {
        self.0[resource as usize] = Some(amount);
        self
    }

    /// Of this resource.
    pub const fn get(&self, resource: Resource) -> Option<u64> {
        self.0[resource as usize]
    }

    /// With so much more of this resource.
    pub fn add(&mut self, resource: Resource, amount: u64) {
        let mine = &mut self.0[resource as usize];
        *mine = Some(mine.unwrap_or(0).saturating_add(amount));
    }

    /// Together with another amount of each.
    pub fn plus(mut self, more: &Used) -> Self {
        for resource in RESOURCES {
            more.get(resource).into_iter().for_each(|amount| self.add(resource, amount));
        }
        self
    }

    /// Of this resource nothing is known.
    pub const fn without(mut self, resource: Resource) -> Self {
        self.0[resource as usize] = None;
        self
    }

    /// With what the other knows besides.
    pub fn and(mut self, other: &Used) -> Self {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine = mine.or(theirs);
        }
        self
    }

    /// What was used since another reading of the same counters; those that are in one of the two only are not known.
    pub fn since(&self, before: &Used) -> Self {
        let mut since = *self;
        for (now, before) in since.0.iter_mut().zip(before.0) {
            *now = now.zip(before).map(|(now, before)| now.saturating_sub(before));
        }
        since
    }

    /// Which are known.
    pub fn counters(&self) -> Counters {
        RESOURCES
            .into_iter()
            .filter(|&resource| self.get(resource).is_some())
            .fold(Counters::default(), Counters::with)
    }
}

/// Which resources are counted for each path on this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters(u8);

impl Counters {
    /// A clock that counts cycles, and nothing else: what every machine has.
    pub const CYCLES: Counters = Counters(1 << Resource::Cycles as u8);

    /// And this one.
    pub const fn with(self, resource: Resource) -> Self {
        Counters(self.0 | 1 << resource as u8)
    }

    /// Is it counted?
    pub const fn has(self, resource: Resource) -> bool {
        self.0 & 1 << resource as u8 != 0
    }

    /// Are there any that counters of the CPU have, beside the clock?
    pub const fn has_others(self) -> bool {
        self.has(Resource::Memory) || self.has(Resource::CacheMisses)
    }

    /// An error if it is not: what is not counted cannot be shared fairly.
    pub fn require(self, resource: Resource) -> Result<(), NotCounted> {
        if self.has(resource) { Ok(()) } else { Err(NotCounted { resource }) }
    }
}

/// Paths cannot share this fairly: nothing tells what each uses of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("paths cannot share {resource} fairly: this machine does not count what each of them uses of it")]
pub struct NotCounted {
    /// Which.
    pub resource: Resource,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_counted_is_refused_by_name() {
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
