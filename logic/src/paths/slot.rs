//! One path of a worker: its state, and what a run is charged (P6, P7).

use super::{
    burst::Bursts,
    cost::{Cost, Sampler},
    resource::{Counters, RESOURCES, Resource, Used},
    stride::MOST_UNITS,
};
use crate::plan::RouterId;

/// The number of a path.
pub type PathId = u16;

/// A run is charged at least a 16th of its cycles, however little it uses of the scarce resource. Otherwise a path that
/// uses none of it would have the core whenever it has packets.
const FLOOR_BITS: u32 = 4;
/// Cycles for a packet of a path that was never measured.
const UNKNOWN_CYCLES: u64 = 1000;
/// Fraction bits of a price.
const PRICE_BITS: u32 = 16;

/// Values from the configuration and from calibration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The bounds of a run.
    pub bursts: Bursts,
    /// One packet in this many is measured (P6), 1 or more.
    pub sample_every: u16,
    /// The resources that measured runs contain.
    pub counted: Counters,
}

/// A path for a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Its number.
    pub id: PathId,
    /// Its router.
    pub router: RouterId,
    /// W_i, its weight among the paths of its router; 1 or more.
    pub weight: u16,
}

/// The result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// The number of packets that were processed; 0: there were none.
    pub packets: u32,
    /// The use of resources, including the switch, since the previous run ended or the worker woke. `None`: not
    /// measured. A run may be measured without being asked for, for example by reading a clock with each run. Measured
    /// use is charged directly.
    pub used: Option<Used>,
}

/// The value of a unit of the scarce resource, in cycles / 2^16. It is the ratio of what packets of all paths take of
/// both on average, so that passes go on as before when another resource becomes scarce. Each path counts once (as in
/// C_total of P6). If packets counted, a path that gets less would have more expensive units, and get still less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Price {
    pub resource: Resource,
    pub cycles: u64,
}

/// A path. A run that is not measured touches only the first cache line.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(super) struct Slot {
    pub sampler: Sampler,
    /// Cycles of a packet, in 256ths.
    cycles_256: u64,
    /// The charge for a packet in 256ths, if it is not cycles.
    units_256: u64,
    pub packets: u64,
    pub cycles: u64,
    pub runs: u64,
    pub burst: u16,
    pub id: PathId,
    pub cost: Cost,
    pub empty_runs: u64,
    pub weight: u16,
    /// The total use of resources that are counted besides cycles.
    pub taken: Used,
}

const _: () = assert!(std::mem::offset_of!(Slot, cost) == 64);

impl Slot {
    pub fn new(path: Path, cost: Cost, settings: &Settings, price: Option<Price>) -> Self {
        let mut slot = Slot {
            sampler: Sampler::new(settings.sample_every, 1 + u32::from(path.id)),
            cycles_256: 0,
            units_256: 0,
            packets: 0,
            cycles: 0,
            runs: 0,
            burst: 1,
            id: path.id,
            cost,
            empty_runs: 0,
            weight: path.weight.max(1),
            taken: Used::default(),
        };
        slot.retune(settings, price);
        slot
    }

    /// Updates the values that depend on its cost.
    pub fn retune(&mut self, settings: &Settings, price: Option<Price>) {
        self.cycles_256 = self.cost.in_256ths(Resource::Cycles).unwrap_or(UNKNOWN_CYCLES << 8);
        let units = price.and_then(|price| Some(price.of(self.cost.in_256ths(price.resource)?)));
        self.units_256 = units.unwrap_or(self.cycles_256);
        self.burst = settings.bursts.of(&self.cost).min(u16::MAX.into()) as u16;
    }

    /// Measured cycles, or an estimate from the cost of packets.
    #[inline]
    pub fn cycles_of(&self, run: &Run, settings: &Settings) -> u64 {
        let measured = run.used.as_ref().and_then(|used| used.get(Resource::Cycles));
        let estimate = || {
            let packets = self.cycles_256.saturating_mul(run.packets.into()) >> 8;
            packets.saturating_add(settings.bursts.switch_cycles.into())
        };
        measured.unwrap_or_else(estimate).min(MOST_UNITS)
    }

    /// The charge: cycles, or the use of the scarce resource in cycles.
    #[inline]
    pub fn units_of(&self, run: &Run, cycles: u64, price: Option<Price>) -> u64 {
        let Some(price) = price.filter(|_| run.packets > 0) else { return cycles };
        let measured =
            run.used.as_ref().and_then(|used| used.get(price.resource)).map(|amount| price.of(amount));
        let estimate = || self.units_256.saturating_mul(run.packets.into()) >> 8;
        let units = measured.unwrap_or_else(estimate);
        units.clamp(cycles >> FLOOR_BITS, MOST_UNITS)
    }

    #[inline]
    pub fn count(&mut self, run: &Run, cycles: u64, settings: &Settings, price: Option<Price>) {
        self.packets += u64::from(run.packets);
        self.cycles += cycles;
        self.runs += 1;
        if settings.counted != Counters::CYCLES {
            self.take(run, settings.counted);
        }
        // A run without packets would not help, so the next one is measured.
        let sample = run.used.as_ref().filter(|_| run.packets > 0 && self.sampler.is_due());
        self.sampler.count(run.packets, cycles, sample.is_some());
        if let Some(used) = sample {
            self.cost.take_in(used, run.packets, settings.bursts.switch_cycles.into());
            self.retune(settings, price);
        }
    }
}

impl Slot {
    /// Adds the measured use, or an estimate from the cost of packets.
    fn take(&mut self, run: &Run, counted: Counters) {
        for resource in RESOURCES {
            if resource != Resource::Cycles && counted.has(resource) {
                let measured = run.used.as_ref().and_then(|used| used.get(resource));
                let amount = measured.or_else(|| self.cost.for_packets(resource, run.packets));
                self.taken.add(resource, amount.unwrap_or(0));
            }
        }
    }
}

impl Price {
    /// From the cost of each path's packets. `None`: no path is known to use this resource.
    pub fn new<'a>(resource: Resource, costs: impl Iterator<Item = &'a Cost>) -> Option<Self> {
        let known = |cost: &Cost| Some((cost.in_256ths(Resource::Cycles)?, cost.in_256ths(resource)?));
        let add = |(cycles, amount), (of_cycles, of_amount)| {
            (cycles + u128::from(of_cycles), amount + u128::from(of_amount))
        };
        let (cycles, amount) = costs.filter_map(known).fold((0, 0), add);
        let cycles = (cycles << PRICE_BITS).checked_div(amount)?.min(u64::MAX.into()) as u64;
        Some(Price { resource, cycles })
    }

    /// The value of an amount, in cycles.
    #[inline]
    pub fn of(self, amount: u64) -> u64 {
        let cycles = (u128::from(amount) * u128::from(self.cycles)) >> PRICE_BITS;
        cycles.min(u64::MAX.into()) as u64
    }
}
