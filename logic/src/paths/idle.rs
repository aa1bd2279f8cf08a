//! Tickets of paths that find no work (P5).
//!
//! Asking a path with nothing to do costs a context switch. So each time it finds nothing its tickets are halved, down to
//! 1/1024 of what they were (Click's range, as 1,024 are its default), and each time it finds something doubled, up to what they were. So
//! not many more than half of all times are in vain beside paths that have work. To have all tickets back at once was worse: a path with a
//! packet now and then was asked nine times in vain after each.
//!
//! Half the tickets are the same as to be charged twice as much, which is how it is done, for what is asked in vain only: packets are
//! charged by all tickets, or shares would not hold. And no more than the longest run (P8) is charged, so an idle path
//! is asked as often as one that always has work, at least. Else a path with weight 1 beside others with 1,000 would be looked at
//! every 30 ms, at 100 cycles each time.

/// How often tickets are halved, at most: to 1/1024.
pub const MOST_HALVINGS: u8 = 10;

/// What asking is charged that took so much, after tickets were halved so often.
#[inline]
pub fn charge(units: u64, halvings: u8, longest: u64) -> u64 {
    (units << halvings.min(MOST_HALVINGS)).min(longest.max(units))
}

/// What is left of so many tickets: 1 or more.
pub fn tickets(tickets: u32, halvings: u8) -> u32 {
    (tickets >> halvings.min(MOST_HALVINGS)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_are_halved_and_asking_costs_no_more_than_a_run() {
        assert_eq!([0, 1, 5, 10, 200].map(|halvings| tickets(1024, halvings)), [1024, 512, 32, 1, 1]);
        assert_eq!(tickets(3, 4), 1);
        assert_eq!([0, 1, 5, 10, 200].map(|n| charge(100, n, 90_000)), [100, 200, 3200, 90_000, 90_000]);
        assert_eq!(charge(100_000, 3, 90_000), 100_000);
    }
}
