//! The paper's formula for tickets (P6), as printed: T_i = DTV C_total / (N C_i) W_i.
//!
//! It makes paths equal if every run counts alike and has equally many packets. [`super::Scheduler`] charges actual use
//! instead (see [`super`]). This is for comparison with the paper, in tests and by people.

use super::stride::MOST_TICKETS;

/// Tickets of a path with average cost and weight 1.
pub const DTV: u32 = 1024;

/// The tickets of each path, rounded, 1..=[`MOST_TICKETS`], from its cost (of the scarce resource, in any unit) and
/// weight. A path that costs nothing gets the most tickets.
pub fn tickets(paths: &[(u64, u32)]) -> Vec<u32> {
    let total: u128 = paths.iter().map(|&(cost, _)| u128::from(cost)).sum();
    let tickets = |&(cost, weight): &(u64, u32)| {
        let divisor = paths.len() as u128 * u128::from(cost);
        // At most 2^10 2^64 N 2^32, for N paths.
        let dividend = u128::from(DTV) * total * u128::from(weight);
        let tickets = (dividend + divisor / 2).checked_div(divisor).unwrap_or(MOST_TICKETS.into());
        tickets.clamp(1, MOST_TICKETS.into()) as u32
    };
    paths.iter().map(tickets).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_are_as_printed() {
        assert_eq!(tickets(&[(500, 1); 3]), [1024; 3]);
        // 1024 * 11 / 2 and a tenth of it.
        assert_eq!(tickets(&[(100, 1), (1000, 1)]), [5632, 563]);
        // Fig. 11(C): the expensive path costs 1.4 times as much, and the third gets twice as much as the second. 1024
        // * 3.4 / 3 = 1160.5.
        assert_eq!(tickets(&[(1400, 3), (1000, 2), (1000, 4)]), [2487, 2321, 4642]);
        assert_eq!(tickets(&[(0, 1), (7, 1)]), [MOST_TICKETS, 512]);
        assert_eq!(tickets(&[(u64::MAX, u32::MAX), (1, u32::MAX)]), [MOST_TICKETS, MOST_TICKETS]);
        assert_eq!(tickets(&[]), []);
    }
}
