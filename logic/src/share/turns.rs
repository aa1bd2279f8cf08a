//! Threads that poll rings take turns on a core. A router needs no other protection if it shares its rings with no
//! router that wants too much.

use super::{Want, fill};
use crate::plan::RouterId;
use std::collections::{BTreeMap, BTreeSet};

/// The accuracy of sums.
const EXACT: f64 = 1e-9;

/// Rings, each polled by a thread of its own, with the routers of their packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Rings {
    threads: u16,
    routers: BTreeSet<RouterId>,
    /// Routers that get only occasional packets here.
    beside: BTreeSet<RouterId>,
}

/// Groups rings so that no router is in two groups. Routers in `beside` may be.
fn grouped(rings: impl IntoIterator<Item = Rings>) -> Vec<Rings> {
    let mut groups: Vec<Rings> = Vec::new();
    for mut group in rings {
        groups.retain(|other| {
            let is_apart = other.routers.is_disjoint(&group.routers);
            if !is_apart {
                group.threads += other.threads;
                group.routers.extend(&other.routers);
                group.beside.extend(&other.beside);
            }
            is_apart
        });
        groups.push(group);
    }
    groups
}

/// The demand of a router, in parts of the core.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due {
    /// Its want, including hidden packets.
    pub wants: f64,
    /// The part of its known want that it must get.
    pub least: f64,
    /// Packets arrive all the time, so its rings are one group.
    pub is_steady: bool,
}

/// Whether turns alone give all routers their due within `time`. A router with rings of its own has it if their turns
/// are enough for `least`. Others have it if the turns are enough for all known packets in these rings, so that nothing
/// is lost there. If routers have several rings in common, each ring is assumed to hold the same amount. `rings`: the
/// routers whose packets each may hold. `hidden`: wants are this many times the known amounts.
pub(super) fn serve(
    due: &BTreeMap<RouterId, Due>,
    rings: &[BTreeSet<RouterId>],
    time: f64,
    hidden: f64,
) -> bool {
    let ring = |ring: &BTreeSet<RouterId>| {
        let used = ring.iter().copied().filter(|router| due.contains_key(router));
        let (routers, beside) = used.partition(|router| due[router].is_steady);
        Rings { threads: 1, routers, beside }
    };
    let groups = grouped(rings.iter().map(ring));
    let all =
        |group: &Rings| Vec::from_iter(group.routers.iter().chain(&group.beside).map(|router| due[router]));
    let want = |group: &Rings| Want {
        weight: f64::from(group.threads),
        amount: all(group).iter().map(|due| due.wants).sum(),
    };
    let wants: Vec<Want> = groups.iter().map(want).collect();
    let is_known = |router| rings.iter().any(|ring| ring.contains(router));
    due.keys().all(is_known)
        && fill(time, &wants).into_iter().zip(groups.iter().zip(&wants)).all(|(turns, (group, want))| {
            match all(group)[..] {
                [alone] => turns >= alone.least - EXACT,
                _ => turns >= want.amount / hidden - EXACT,
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rings(of: &[&[RouterId]]) -> Vec<BTreeSet<RouterId>> {
        of.iter().map(|routers| routers.iter().copied().collect()).collect()
    }

    #[test]
    fn rings_with_a_router_in_common_are_one_group() {
        let group = |threads, routers: &[RouterId]| {
            let beside = routers.iter().map(|router| router + 100).collect();
            Rings { threads, routers: routers.iter().copied().collect(), beside }
        };
        let rings = |of: &[&[RouterId]]| grouped(of.iter().map(|routers| group(1, routers)));
        assert_eq!(rings(&[&[1], &[2], &[3, 4]]), [group(1, &[1]), group(1, &[2]), group(1, &[3, 4])]);
        // The last ring joins the first two.
        assert_eq!(rings(&[&[1, 2], &[3, 4], &[5], &[2, 3]]), [group(1, &[5]), group(3, &[1, 2, 3, 4])]);
        assert_eq!(rings(&[&[7], &[7], &[7]]), [group(3, &[7])], "queues of one port");
    }

    #[test]
    fn a_router_with_few_packets_is_not_lost_beside_one_with_too_many() {
        let due = |wants: f64, is_steady| Due { wants, least: wants.min(0.46), is_steady };
        let served = |of: &[&[RouterId]], second: Due, third: Due| {
            let due = [(1, due(1.4, true)), (2, second), (3, third)].into();
            serve(&due, &rings(of), 0.92, 1.5)
        };
        let (some, little) = (due(0.4, true), due(0.0001, false));
        assert!(served(&[&[1], &[2, 3]], some, little));
        assert!(
            !served(&[&[1, 3], &[2]], some, little),
            "it shares a ring with the router that has too much"
        );
        assert!(!served(&[&[1, 3], &[2, 3]], some, little), "it may");
        assert!(!served(&[&[1, 2, 3]], little, little));
    }

    #[test]
    fn occasional_packets_join_no_rings() {
        let served = |is_steady| {
            let due = |wants, least, is_steady| Due { wants, least, is_steady };
            let all = [
                (1, due(1.4, 0.4, true)),
                (2, due(0.5, 0.3, true)),
                (3, due(1e-4, 1e-4, is_steady)),
                (4, due(0.1, 0.1, true)),
            ];
            serve(&all.into(), &rings(&[&[1], &[2, 3], &[3, 4]]), 0.92, 1.5)
        };
        assert!(served(false));
        assert!(!served(true), "two threads as one group may get twice as much");
    }

    /// Routers with these wants and weights. Nothing is hidden.
    fn served(of: &[&[RouterId]], wants: &[(f64, f64)]) -> bool {
        let wants: Vec<Want> = wants.iter().map(|&(amount, weight)| Want { weight, amount }).collect();
        let due = |(least, want): (f64, &Want)| Due { wants: want.amount, least, is_steady: true };
        let due = (1..).zip(fill(0.92, &wants).into_iter().zip(&wants).map(due)).collect();
        serve(&due, &rings(of), 0.92, 1.0)
    }

    #[test]
    fn turns_serve_routers_that_share_no_ring_with_an_overloaded_one() {
        let own: &[&[RouterId]] = &[&[1], &[2], &[3]];
        assert!(served(own, &[(1.4, 1.0), (0.1, 1.0), (0.4, 1.0)]));
        assert!(served(own, &[(1.4, 1.0), (2.0, 1.0), (0.5, 1.0)]), "all want more");
        assert!(
            !served(own, &[(1.4, 1.0), (0.1, 1.0), (0.5, 3.0)]),
            "its weight gives it more than its turns"
        );
        let first_two: &[&[RouterId]] = &[&[1, 2], &[3]];
        assert!(!served(first_two, &[(1.4, 1.0), (0.1, 1.0), (0.1, 1.0)]));
        assert!(!served(first_two, &[(1.4, 1.0), (1.2, 1.0), (0.1, 1.0)]), "they share a ring");
        assert!(served(first_two, &[(0.2, 1.0), (0.1, 1.0), (1.4, 1.0)]), "another ring has too much");
        assert!(!served(first_two, &[(0.3, 1.0), (0.3, 1.0), (1.4, 1.0)]), "both are within their share");
        assert!(
            !served(&[&[1], &[2]], &[(1.4, 1.0), (0.1, 1.0), (0.1, 1.0)]),
            "the rings of the third are unknown"
        );
        // The fourth router, for which nothing arrives, is on all rings.
        assert!(served(&[&[1, 4], &[2, 4], &[3, 4]], &[(1.4, 1.0), (0.1, 1.0), (0.4, 1.0)]));
        let two_threads: &[&[RouterId]] = &[&[1], &[2], &[2]];
        assert!(!served(two_threads, &[(1.4, 1.0), (0.6, 1.0)]), "two threads have more turns than a share");
        assert!(served(two_threads, &[(1.4, 1.0), (0.6, 2.0)]));
    }

    /// A full ring may hide packets. The packets that were seen came through.
    #[test]
    fn hidden_packets_do_not_count_against_others() {
        let due = [(1.4, 0.46), (0.6, 0.4)].map(|(wants, least)| Due { wants, least, is_steady: true });
        let due = [(1, due[0]), (2, due[1])].into();
        assert!(serve(&due, &rings(&[&[1], &[2]]), 0.92, 1.5));
        assert!(!serve(&due, &rings(&[&[1, 2]]), 0.92, 1.5));
        assert!(serve(&due, &rings(&[&[1, 2]]), 0.92, 2.5), "the known packets have room");
    }
}
