//! Distributions, computed with arithmetic that gives the same on every machine. There are no logarithms or powers,
//! whose last bits differ.

use crate::fib::synthetic::Random;

/// The numbers of one of several independent streams of a seed.
pub(super) fn stream(seed: u64, number: u64) -> Random {
    Random(Random(seed ^ Random(number).next_u64()).next_u64())
}

/// Above 0, at most 1.
pub(super) fn unit(random: &mut Random) -> f64 {
    ((random.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
}

/// The number of independent events if their mean is known.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Poisson {
    #[default]
    None,
    /// e^-mean.
    Few(f64),
    /// The mean.
    Many(f64),
}

impl Poisson {
    pub fn new(mean: f64) -> Self {
        if mean <= 0.0 {
            Self::None
        } else if mean < 16.0 {
            Self::Few(exp_of_minus(mean))
        } else {
            Self::Many(mean)
        }
    }

    pub fn draw(self, random: &mut Random) -> u64 {
        match self {
            Self::None => 0,
            // Knuth, The Art of Computer Programming 3.4.1: as long as a product of uniform numbers is above e^-mean.
            Self::Few(limit) => {
                let mut product = unit(random);
                let mut events = 0;
                while product > limit {
                    product *= unit(random);
                    events += 1;
                }
                events
            }
            // Nearly normal. The number of ones among 256 random bits is nearly normal, too, with mean 128 and
            // deviation 8. Uniform numbers fill the gaps.
            Self::Many(mean) => {
                let ones: u32 = (0..4).map(|_| random.next_u64().count_ones()).sum();
                let normal = (f64::from(ones) - 128.5 + unit(random)) / 8.0;
                (mean + mean.sqrt() * normal).round().max(0.0) as u64
            }
        }
    }
}

/// Pareto distributed from 1 up with shape 4/3. The mean is 4, and the variance is infinite.
pub(super) fn pareto(random: &mut Random) -> f64 {
    let root = unit(random).sqrt();
    1.0 / (root * root.sqrt())
}

/// For 0 to 16: (e^(-x/64))^64. The inner power is computed by its series.
fn exp_of_minus(x: f64) -> f64 {
    let y = -x / 64.0;
    let mut power =
        1.0 + y * (1.0 + y / 2.0 * (1.0 + y / 3.0 * (1.0 + y / 4.0 * (1.0 + y / 5.0 * (1.0 + y / 6.0)))));
    for _ in 0..6 {
        power *= power;
    }
    power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_are_right() {
        for x in [0.0f64, 0.01, 1.0, 5.5, 15.9] {
            assert!((exp_of_minus(x) / (-x).exp() - 1.0).abs() < 1e-6, "{x}");
        }
    }

    #[test]
    fn counts_have_their_mean_and_the_same_variance() {
        for mean in [0.1, 3.0, 15.9, 16.1, 200.0] {
            let mut random = stream(1, 2);
            let n = 100_000;
            let counts: Vec<f64> = (0..n).map(|_| Poisson::new(mean).draw(&mut random) as f64).collect();
            let average = counts.iter().sum::<f64>() / f64::from(n);
            let variance = counts.iter().map(|count| (count - average).powi(2)).sum::<f64>() / f64::from(n);
            assert!((average / mean - 1.0).abs() < 0.02, "{mean}: {average}");
            assert!((variance / mean - 1.0).abs() < 0.03, "{mean}: {variance}");
        }
    }

    #[test]
    fn a_few_of_the_heavy_tailed_are_most_of_the_sum() {
        let mut random = stream(3, 0);
        let mut sizes: Vec<f64> = (0..100_000).map(|_| pareto(&mut random)).collect();
        sizes.sort_by(|a, b| b.total_cmp(a));
        assert!(sizes.iter().all(|size| *size >= 1.0));
        // The fraction above x is x^(-4/3): 1 in 16 is above 8.
        let large = sizes.iter().filter(|size| **size > 8.0).count();
        assert!((large as f64 / 6250.0 - 1.0).abs() < 0.03, "{large}");
        let share = sizes[..10_000].iter().sum::<f64>() / sizes.iter().sum::<f64>();
        // The largest tenth has 0.1^(1/4) of all, 0.56.
        assert!((0.45..0.65).contains(&share), "{share}");
    }
}
