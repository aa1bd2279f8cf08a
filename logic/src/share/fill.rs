//! Max-min fair division: nobody gets more than it wants, and unwanted parts go to the others by their weights.

/// What somebody wants of the divided amount.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Want {
    /// Above 0.
    pub weight: f64,
    /// 0 or more.
    pub amount: f64,
}

/// The part of `capacity` that each gets, in the order of `wants`.
pub fn fill(capacity: f64, wants: &[Want]) -> Vec<f64> {
    let level = level(capacity, wants);
    wants.iter().map(|want| want.amount.min(want.weight * level)).collect()
}

/// The most that a weight of 1 gets. It is the water level in vessels that are as wide as the weights and as high as
/// the wants.
fn level(capacity: f64, wants: &[Want]) -> f64 {
    let mut order: Vec<Want> = wants.to_vec();
    order.sort_by(|a, b| (a.amount / a.weight).total_cmp(&(b.amount / b.weight)));
    let (mut left, mut weights) = (capacity.max(0.0), order.iter().map(|want| want.weight).sum::<f64>());
    for want in order {
        if want.amount * weights > left * want.weight {
            return left / weights;
        }
        left = (left - want.amount).max(0.0);
        weights -= want.weight;
    }
    f64::INFINITY
}
