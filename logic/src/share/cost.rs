//! Estimates what packets cost on a core. The time that its queues ran is that of packets carried and of packets cut.
//! Least squares over the last periods separate the two as soon as their ratio changes.

/// The first value for the cost of cutting a packet relative to forwarding one: on veth 160 to 200 ns of 300. Later the
/// last result is used.
const CUT: f64 = 0.6;
/// The possible values.
const CUT_RANGE: [f64; 2] = [0.2, 0.95];
/// The weight of the previous value relative to measured periods.
const TRUST: f64 = 0.002;
/// The weight of a period is multiplied by this in each later period.
const FORGET: f64 = 0.8;

/// The cost of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Price {
    /// The core time for forwarding it, in seconds; 0: not known yet.
    pub packet_s: f64,
    /// The cost of cutting it, relative to that.
    pub cut: f64,
}

/// The result, and sums over periods for the normal equations: carried and cut packets, and the time of both.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    price: Price,
    carried2: f64,
    mixed: f64,
    cut2: f64,
    carried_s: f64,
    cut_s: f64,
}

impl Default for Costs {
    fn default() -> Self {
        let price = Price { packet_s: 0.0, cut: CUT };
        Costs { price, carried2: 0.0, mixed: 0.0, cut2: 0.0, carried_s: 0.0, cut_s: 0.0 }
    }
}

impl Costs {
    /// The costs as of the last period.
    pub fn price(&self) -> Price {
        self.price
    }

    /// Adds a period. `carried` is in units of a forwarded packet.
    pub fn take_in(&mut self, ran_s: f64, carried: f64, cut: f64) {
        let Costs { carried2, mixed, cut2, carried_s, cut_s, .. } = self;
        let sums = [carried2, mixed, cut2, carried_s, cut_s];
        let new = [carried * carried, carried * cut, cut * cut, carried * ran_s, cut * ran_s];
        sums.into_iter().zip(new).for_each(|(sum, new)| *sum = *sum * FORGET + new);
        self.price = self.solve();
    }

    /// Minimizes the squares of `ran - packet carried - cut_packet cut`, and of `cut_packet - before packet`, with
    /// [`TRUST`].
    fn solve(&self) -> Price {
        let before = self.price.cut;
        let trust = TRUST * (self.carried2 + self.cut2);
        let a = self.carried2 + trust * before * before;
        let b = self.mixed - trust * before;
        let c = self.cut2 + trust;
        let determinant = a * c - b * b;
        if determinant <= 0.0 {
            return self.price;
        }
        let packet = (self.carried_s * c - self.cut_s * b) / determinant;
        let cut_packet = (self.cut_s * a - self.carried_s * b) / determinant;
        let [least, most] = CUT_RANGE;
        let cut = if packet > 0.0 { (cut_packet / packet).clamp(least, most) } else { most };
        // The best packet cost for that ratio.
        let (units2, units_s) = (
            self.carried2 + 2.0 * cut * self.mixed + cut * cut * self.cut2,
            self.carried_s + cut * self.cut_s,
        );
        Price { packet_s: units_s / units2, cut }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Minimizes by turns in one cost and in the other, which is slow and obviously right. Returns both costs.
    fn least_squares(rows: &[[f64; 4]]) -> [f64; 2] {
        let mut costs = [0.0, 0.0];
        for _ in 0..20_000 {
            for (of, other) in [(0, 1), (1, 0)] {
                let sum = |part: fn(&[f64; 4], usize, f64) -> f64| -> f64 {
                    rows.iter().map(|row| row[3] * part(row, of, row[other] * costs[other])).sum()
                };
                let (numerator, denominator) =
                    (sum(|row, of, rest| row[of] * (row[2] - rest)), sum(|row, of, _| row[of] * row[of]));
                costs[of] = numerator / denominator;
            }
        }
        costs
    }

    proptest! {
        #![proptest_config(crate::cases(32))]

        /// Few packets, so that no initial value is lost among them.
        #[test]
        fn the_price_is_that_of_least_squares(
            periods in prop::collection::vec((0.1..2.0_f64, 0.0..3.0_f64, 0.0..3.0_f64), 1..6)
        ) {
            let mut costs = Costs::default();
            for now in 1..=periods.len() {
                let before = costs.price().cut;
                let (ran_s, carried, cut) = periods[now - 1];
                costs.take_in(ran_s, carried, cut);
                let age = |at: usize| FORGET.powi((now - 1 - at) as i32);
                let mut rows: Vec<[f64; 4]> = periods[..now].iter().enumerate()
                    .map(|(at, &(ran_s, carried, cut))| [carried, cut, ran_s, age(at)]).collect();
                let trust = TRUST * rows.iter().map(|row| row[3] * (row[0].powi(2) + row[1].powi(2))).sum::<f64>();
                let packets = rows.clone();
                rows.push([-before, 1.0, 0.0, trust]);
                let [packet_s, cut_s] = least_squares(&rows);
                let price = costs.price();
                prop_assume!(packet_s.abs() > 1e-3);
                let [least, most] = CUT_RANGE;
                let ratio = if packet_s > 0.0 { (cut_s / packet_s).clamp(least, most) } else { most };
                prop_assert!((price.cut - ratio).abs() < 1e-3 * (1.0 + 1.0 / packet_s.abs()), "{price:?}, not {ratio}");
                // The best cost for that ratio.
                let units = |row: &[f64; 4]| row[0] + price.cut * row[1];
                let sum = |of: &dyn Fn(&[f64; 4]) -> f64| packets.iter().map(|row| row[3] * of(row)).sum::<f64>();
                let best = sum(&|row| units(row) * row[2]) / sum(&|row| units(row).powi(2));
                prop_assert!((price.packet_s - best).abs() < 1e-9 * best, "{price:?}, not {best}");
            }
        }
    }

    #[test]
    fn a_period_without_packets_says_nothing() {
        let mut costs = Costs::default();
        costs.take_in(0.01, 0.0, 0.0);
        assert_eq!(costs.price(), Costs::default().price());
        assert_eq!(costs.price(), Price { packet_s: 0.0, cut: CUT });
    }

    #[test]
    fn two_mixes_give_the_cost_of_each() {
        let mut costs = Costs::default();
        assert_eq!(costs.price().packet_s, 0.0);
        costs.take_in(0.009, 30_000.0, 0.0);
        let first = costs.price();
        assert!((first.packet_s * 1e9 - 300.0).abs() < 1e-6 && (first.cut - CUT).abs() < 1e-6, "{first:?}");
        for (carried, cut) in [(20_000.0, 20_000.0), (10_000.0, 30_000.0), (12_000.0, 25_000.0)] {
            costs.take_in((carried * 300.0 + cut * 120.0) * 1e-9, carried, cut);
        }
        let price = costs.price();
        assert!((price.packet_s * 1e9 - 300.0).abs() < 15.0 && (price.cut - 0.4).abs() < 0.04, "{price:?}");
    }
}
