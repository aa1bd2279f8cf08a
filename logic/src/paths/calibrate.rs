//! Measures the cost of a context switch from path to path (P8, fig. 15). A run of b packets takes C_cs + b C, so the
//! line through runs of several sizes gives both.
//!
//! The fit minimizes the squares of relative errors, because measurements are off by a few percent of their value.
//! Large runs must not hide small ones, in which the switch matters most. It uses floating point, because nothing here
//! has to be exact.

/// Runs of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The number of packets in a run.
    pub batch: u32,
    /// The cycles of one run, from pick to pick: the mean or the median of many.
    pub cycles: f64,
}

/// The result of a fit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// C_cs.
    pub switch_cycles: f64,
    /// The standard error of the switch.
    pub switch_error: f64,
    /// C, for the packets that were used.
    pub packet_cycles: f64,
    /// The part that the line does not explain: the root of the mean square of relative errors. The mean divides by the
    /// number of points less two.
    pub residual: f64,
}

/// If more than this is unexplained, there is no line. Measured runs leave 3 to 5 %, and not by chance. A packet in a
/// run of 8 or more costs a quarter more than one in a run of 6 or fewer. So a line through small runs alone has a
/// tenth more for the switch, and one through large runs has three tenths less
/// (`lab/runs/2026-11-23-figures/P15.jsonl`).
pub const MOST_RESIDUAL: f64 = 0.10;
/// The number of sizes needed. Two always make a line, and do not show whether it is one.
pub const LEAST_SIZES: usize = 3;

/// Why points do not give the cost of a context switch.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum BadFit {
    /// Too few sizes.
    #[error("runs of {sizes} different sizes were measured, at least {LEAST_SIZES} are needed")]
    Sizes {
        /// The number of sizes.
        sizes: usize,
    },
    /// An impossible measurement.
    #[error("a run of {batch} packets cannot take {cycles} cycles")]
    Point {
        /// The number of packets.
        batch: u32,
        /// The time, which is not a positive number.
        cycles: f64,
    },
    /// The cost is not a constant plus an amount per packet.
    #[error(
        "the cost of a run does not grow evenly with its packets: a line leaves {:.1} % unexplained, at most {:.0} % are allowed \
         (is the machine busy with something else?)", residual * 100.0, MOST_RESIDUAL * 100.0
    )]
    NoLine {
        /// See [`Fit::residual`].
        residual: f64,
    },
    /// Packets would cost nothing or less.
    #[error("larger runs do not take longer: a packet would cost {packet_cycles:.1} cycles")]
    Flat {
        /// The cost of a packet on the line.
        packet_cycles: f64,
    },
    /// The switch is hidden in the noise.
    #[error(
        "a context switch takes {switch_cycles:.0} cycles, with a standard error of {switch_error:.0}: too uncertain; measure smaller runs, or longer"
    )]
    Unsure {
        /// The switch on the line.
        switch_cycles: f64,
        /// Its standard error.
        switch_error: f64,
    },
}

/// The line through these points, if it gives the switch: that must be at least twice its standard error.
pub fn fit(points: &[Point]) -> Result<Fit, BadFit> {
    let bad = |point: &&Point| point.batch == 0 || !point.cycles.is_finite() || point.cycles <= 0.0;
    if let Some(&Point { batch, cycles }) = points.iter().find(bad) {
        return Err(BadFit::Point { batch, cycles });
    }
    let mut sizes: Vec<u32> = points.iter().map(|point| point.batch).collect();
    sizes.sort_unstable();
    sizes.dedup();
    if sizes.len() < LEAST_SIZES {
        return Err(BadFit::Sizes { sizes: sizes.len() });
    }
    let fit = line(points);
    let Fit { switch_cycles, switch_error, packet_cycles, residual } = fit;
    if packet_cycles <= 0.0 {
        Err(BadFit::Flat { packet_cycles })
    } else if residual > MOST_RESIDUAL {
        Err(BadFit::NoLine { residual })
    } else if switch_cycles <= 2.0 * switch_error {
        Err(BadFit::Unsure { switch_cycles, switch_error })
    } else {
        Ok(fit)
    }
}

/// Minimizes the sum of ((y - a - b x) / y)^2 for a, the switch, and b, the packet. There must be three different x or
/// more.
fn line(points: &[Point]) -> Fit {
    let sum = |of: fn(f64, f64) -> f64| {
        points
            .iter()
            .map(|point| of(point.batch.into(), point.cycles) / (point.cycles * point.cycles))
            .sum::<f64>()
    };
    let (one, x, xx) = (sum(|_, _| 1.0), sum(|x, _| x), sum(|x, _| x * x));
    let (y, xy) = (sum(|_, y| y), sum(|x, y| x * y));
    // Above 0, because not all x are the same (Cauchy and Schwarz).
    let determinant = one * xx - x * x;
    let switch_cycles = (xx * y - x * xy) / determinant;
    let packet_cycles = (one * xy - x * y) / determinant;
    let left = |point: &Point| 1.0 - (switch_cycles + packet_cycles * f64::from(point.batch)) / point.cycles;
    let squares: f64 = points.iter().map(|point| left(point).powi(2)).sum();
    let variance = squares / (points.len() - 2) as f64;
    let switch_error = (variance * xx / determinant).sqrt();
    Fit { switch_cycles, switch_error, packet_cycles, residual: variance.sqrt() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn points(of: impl Fn(u32) -> f64) -> Vec<Point> {
        [1, 2, 4, 8, 16, 32, 64].map(|batch| Point { batch, cycles: of(batch) }).to_vec()
    }

    #[test]
    fn the_switch_of_the_paper_is_found() {
        let fit = fit(&points(|b| 6100.0 + 1200.0 * f64::from(b))).unwrap();
        assert!(
            (fit.switch_cycles - 6100.0).abs() < 1e-6 && (fit.packet_cycles - 1200.0).abs() < 1e-6,
            "{fit:?}"
        );
        assert!(fit.residual < 1e-9 && fit.switch_error < 1e-3, "{fit:?}");
    }

    #[test]
    fn points_that_do_not_give_a_switch_are_refused() {
        let line = |b: u32| 6100.0 + 1200.0 * f64::from(b);
        assert_eq!(fit(&[]), Err(BadFit::Sizes { sizes: 0 }));
        let two = [1, 1, 9, 9, 9].map(|batch| Point { batch, cycles: line(batch) });
        assert_eq!(fit(&two), Err(BadFit::Sizes { sizes: 2 }));
        for (batch, cycles) in [(0, 1.0), (1, 0.0), (1, f64::INFINITY), (1, -3.0)] {
            let with = [points(line), vec![Point { batch, cycles }]].concat();
            assert_eq!(fit(&with), Err(BadFit::Point { batch, cycles }));
        }
        // From 16 packets on the cache is too small.
        let bent = points(|b| line(b) * if b < 16 { 1.0 } else { 1.5 });
        assert!(matches!(fit(&bent), Err(BadFit::NoLine { residual }) if residual > 0.1), "{:?}", fit(&bent));
        assert!(matches!(fit(&points(|_| 5000.0)), Err(BadFit::Flat { .. })));
        // No switch at all, and noise of 2 %.
        let noise =
            |b: u32| 1200.0 * f64::from(b) * if b.trailing_zeros().is_multiple_of(2) { 1.02 } else { 0.98 };
        let unsure = fit(&points(noise)).unwrap_err();
        assert!(matches!(unsure, BadFit::Unsure { .. }), "{unsure:?}");
        assert!(unsure.to_string().contains("too uncertain"), "{unsure}");
    }

    proptest! {
        #[test]
        fn errors_are_as_large_as_reported(
            switch in 50.0..10_000.0_f64, packet in 5.0..5_000.0_f64, off in prop::collection::vec(-0.02..0.02_f64, 21)
        ) {
            let batches = [1, 2, 3, 4, 6, 8, 12].into_iter().cycle().take(21);
            let points: Vec<Point> = batches.zip(&off)
                .map(|(batch, off)| Point { batch, cycles: (switch + packet * f64::from(batch)) * (1.0 + off) })
                .collect();
            let fit = line(&points);
            // Five times a standard error is far less likely than one in a million with 19 degrees of freedom.
            prop_assert!((fit.switch_cycles - switch).abs() <= 6.0 * fit.switch_error, "{fit:?}");
            prop_assert!(fit.residual < 0.025, "{fit:?}");
        }
    }
}
