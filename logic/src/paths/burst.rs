//! How many packets a run may have (P8): BURST_i = floor((R - C_cs) / C_i).

use super::{cost::Cost, resource::Resource};

/// The bounds of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bursts {
    /// R: the longest time that a path may hold its core, including the context switch.
    pub longest_cycles: u32,
    /// C_cs: the cost of a context switch, see [`super::calibrate`].
    pub switch_cycles: u32,
    /// The most packets that the worker takes at once, 1 or more, however cheap they are.
    pub most: u32,
}

impl Bursts {
    /// The burst before a packet was measured; Click's default.
    pub const UNKNOWN: u32 = 8;

    /// The burst for packets of this cost, 1 to `most`. One packet runs even if it alone takes
    /// longer than R.
    pub fn of(&self, cost: &Cost) -> u32 {
        let most = self.most.max(1);
        let Some(cost) = cost.in_256ths(Resource::Cycles) else { return Self::UNKNOWN.min(most) };
        let time = u64::from(self.longest_cycles.saturating_sub(self.switch_cycles)) << 8;
        (time / cost.max(1)).clamp(1, most.into()) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths::resource::Used;

    #[test]
    fn bursts_fill_the_longest_run_and_have_bounds() {
        let bursts = |longest_cycles| Bursts { longest_cycles, switch_cycles: 6100, most: 256 };
        let costing = |cycles| {
            let mut cost = Cost::default();
            cost.take_in(&Used::cycles(cycles), 1, 0);
            cost
        };
        assert_eq!(bursts(100_000).of(&Cost::default()), 8);
        for (longest, cycles, packets) in [
            // (100,000 - 6,100) / 1,000 = 93.9
            (100_000, 1000, 93),
            (100_000, 93_900, 1),
            (100_000, 93_901, 1),
            (100_000, 46_950, 2),
            (100_000, 46_951, 1),
            (100_000, 366, 256),
            (100_000, 0, 256),
            (6100, 10, 1),
            (0, 10, 1),
            (u32::MAX, 1, 256),
        ] {
            assert_eq!(bursts(longest).of(&costing(cycles)), packets, "R {longest}, C {cycles}");
        }
        assert_eq!(Bursts { most: 0, ..bursts(100_000) }.of(&costing(1)), 1);
    }
}
