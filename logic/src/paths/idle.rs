//! Tickets of paths that find no work (P5).
//!
//! Asking a path with nothing to do costs a context switch. So its tickets are halved each time it finds nothing, down
//! to 1/1024 (Click's range, whose default is 1,024). They are doubled each time it finds something, up to the full
//! number. So not many more than half of all requests find nothing if other paths have work. Giving back all tickets at
//! once was worse: a path with an occasional packet was asked nine times without result after each.
//!
//! Halving the tickets is the same as charging twice as much. It is done in this way, and only for requests that find
//! nothing. Packets are charged by all tickets, because shares would not hold otherwise. At most the longest run (P8)
//! is charged, so an idle path is asked at least as often as one that always has work. Otherwise a path with weight 1
//! beside others with 1,000 would be asked every 30 ms, at 100 cycles each time.

/// The most halvings: to 1/1024.
pub const MOST_HALVINGS: u8 = 10;

/// The charge for a request that took `units`, after tickets were halved `halvings` times.
#[inline]
pub fn charge(units: u64, halvings: u8, longest: u64) -> u64 {
    (units << halvings.min(MOST_HALVINGS)).min(longest.max(units))
}

/// The tickets left after so many halvings: 1 or more.
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
