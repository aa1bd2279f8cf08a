//! Which resource is scarce now (P7), and therefore shared by weight.

use super::resource::{RESOURCES, Resource, Used};

/// From this utilisation on (of 1000) a resource is saturated.
pub const SATURATED: u16 = 900;
/// A scarce resource stays scarce down to this utilisation.
const RELEASED: u16 = 800;
/// Another resource replaces it if its utilisation is this much higher.
const CLEARLY: u16 = 50;
/// The number of control periods in a row before anything changes.
const PERIODS: u16 = 2;
/// The most periods until a resource that is no longer saturated stops being scarce.
const MOST_HELD: u16 = 64;
/// A resource that is scarce again within this many periods was released too soon.
const SOON: u16 = 64;

/// The resource that paths share by their weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Share {
    /// The resource that is scarce now.
    #[default]
    Scarce,
    /// Always this resource.
    Always(Resource),
}

/// The utilisation of each resource, of 1000. `None`: unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Utilisation([Option<u16>; RESOURCES.len()]);

impl Utilisation {
    /// From the use and the capacity in the same time. Used cycles are those of the worker's core, without those spent
    /// asking paths without work. The use of other resources is that of the whole machine. Benchmarks give their
    /// capacity (P, footnote 7).
    pub fn new(used: &Used, capacity: &Used) -> Self {
        Utilisation(RESOURCES.map(|resource| {
            let (used, capacity) = (used.get(resource)?, capacity.get(resource)?);
            let of_1000 = (u128::from(used) * 1000).checked_div(capacity.into())?;
            Some(of_1000.min(u16::MAX.into()) as u16)
        }))
    }

    /// The utilisation of this resource, of 1000.
    pub const fn get(&self, resource: Resource) -> Option<u16> {
        self.0[resource as usize]
    }

    /// An unknown resource counts as not saturated.
    fn of(&self, resource: Resource) -> u16 {
        self.get(resource).unwrap_or(0)
    }
}

/// Follows the scarce resource from control period to control period.
///
/// **Cycles come last.** A core whose packets wait for memory looks busy. So if memory, I/O or the cache is saturated,
/// cycles are, too. Sharing cycles would then let paths take the resource that is really scarce. Therefore cycles are
/// shared while nothing else is saturated. (Workers poll, so an unused share of cycles harms nobody.)
///
/// **No flapping.** A resource becomes scarce after two periods with at least 90 % of its capacity. It stays scarce
/// until it is below 80 % for two periods, or another one is saturated by 5 % more. Sharing it may be what reduces its
/// use, because the path that takes the most then runs less. It would be saturated again as soon as cycles are shared.
/// So if that happens within 64 periods, it must be below for twice as long the next time, up to 64 periods.
#[derive(Clone, Copy, Debug)]
pub struct Saturation {
    scarce: Resource,
    /// The resource that may become scarce, and for how many periods it has been so.
    next: (Resource, u16),
    /// The number of periods for which the scarce resource must be below.
    held: u16,
    /// The number of periods since only cycles are scarce.
    calm: u16,
}

impl Default for Saturation {
    fn default() -> Self {
        Saturation { scarce: Resource::Cycles, next: (Resource::Cycles, 0), held: PERIODS, calm: SOON }
    }
}

impl Saturation {
    /// Updates the state with a control period. Returns the resource that is scarce from now on.
    pub fn decide(&mut self, utilisation: &Utilisation) -> Resource {
        let wanted = self.wanted(utilisation);
        self.next = (wanted, if self.next.0 == wanted { self.next.1.saturating_add(1) } else { 1 });
        self.calm = self.calm.saturating_add(1);
        let needed = if wanted == Resource::Cycles { self.held } else { PERIODS };
        if wanted != self.scarce && self.next.1 >= needed {
            self.become_scarce(wanted);
        }
        self.scarce
    }

    /// The resource that is scarce now.
    pub const fn scarce(&self) -> Resource {
        self.scarce
    }

    fn become_scarce(&mut self, resource: Resource) {
        if self.scarce == Resource::Cycles {
            let soon = self.calm < SOON;
            self.held = if soon { (self.held * 2).min(MOST_HELD) } else { PERIODS };
        }
        if resource == Resource::Cycles {
            self.calm = 0;
        }
        self.scarce = resource;
    }

    /// The result if one period was enough.
    fn wanted(&self, utilisation: &Utilisation) -> Resource {
        let shared = RESOURCES.into_iter().filter(|&resource| resource != Resource::Cycles);
        // The first of those with the highest utilisation.
        let most = shared.rev().max_by_key(|&resource| utilisation.of(resource));
        let saturated = most.filter(|&resource| utilisation.of(resource) >= SATURATED);
        let now = utilisation.of(self.scarce);
        if self.scarce == Resource::Cycles || now < RELEASED {
            return saturated.unwrap_or(Resource::Cycles);
        }
        saturated
            .filter(|&resource| utilisation.of(resource) >= now.saturating_add(CLEARLY))
            .unwrap_or(self.scarce)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Resource::*;

    fn used(cycles: u64, memory: u64, io: u64) -> Utilisation {
        let used = Used::cycles(cycles).with(Memory, memory).with(Io, io);
        let capacity = Used::cycles(1000).with(Memory, 1000).with(Io, 1000).with(CacheMisses, 0);
        Utilisation::new(&used, &capacity)
    }

    #[test]
    fn the_scarce_resource_is_followed_without_flapping() {
        let mut saturation = Saturation::default();
        for (period, (cycles, memory, io, scarce)) in [
            (1000, 300, 100, Cycles),
            // Memory makes cores wait, so both look full.
            (1000, 950, 100, Cycles),
            (1000, 950, 100, Memory),
            (1000, 820, 100, Memory),
            (1000, 950, 960, Memory),
            (1000, 950, 960, Memory),
            (1000, 940, 990, Memory),
            (1000, 940, 990, Io),
            (1000, 990, 400, Io),
            (1000, 990, 960, Io),
            (1000, 990, 400, Io),
            (1000, 990, 400, Memory),
            (500, 700, 400, Memory),
            (500, 950, 400, Memory),
            (500, 700, 400, Memory),
            (500, 700, 400, Cycles),
            (500, 890, 890, Cycles),
            (500, 890, 890, Cycles),
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(saturation.decide(&used(cycles, memory, io)), scarce, "period {period}");
        }
    }

    /// Memory is saturated while cycles are shared, and not while it is shared itself.
    #[test]
    fn a_resource_that_is_saturated_again_and_again_is_released_ever_more_seldom() {
        let (mut saturation, mut lasted) = (Saturation::default(), vec![0_u32]);
        for _ in 0..1000 {
            let before = saturation.scarce();
            let memory = if before == Memory { 600 } else { 950 };
            if saturation.decide(&used(1000, memory, 0)) != before {
                lasted.push(0);
            }
            *lasted.last_mut().unwrap() += 1;
        }
        // Cycles, memory, cycles, ...
        assert_eq!(lasted[..12], [1, 2, 2, 4, 2, 8, 2, 16, 2, 32, 2, 64]);
        assert!(lasted[12..lasted.len() - 1].iter().all(|periods| [2, 64].contains(periods)), "{lasted:?}");
        // After a quiet time it starts from the beginning.
        (0..200).for_each(|_| _ = saturation.decide(&used(500, 100, 0)));
        let memory = [950, 950, 600, 600].map(|memory| saturation.decide(&used(1000, memory, 0)));
        assert_eq!(memory, [Cycles, Memory, Memory, Cycles]);
    }

    #[test]
    fn an_unknown_resource_is_not_saturated() {
        let mut saturation = Saturation::default();
        let unknown = Utilisation::new(&Used::cycles(999), &Used::cycles(1000).with(Memory, 10));
        let endless = Utilisation::new(&Used::default().with(Io, u64::MAX), &Used::default().with(Io, 1));
        assert_eq!([0; 3].map(|_| saturation.decide(&unknown)), [Cycles; 3]);
        assert_eq!([0; 3].map(|_| saturation.decide(&endless)), [Cycles, Io, Io]);
    }
}
