//! Which path goes to which core (P10).
//!
//! *Principle 1*: paths with alike profiles share a core, so that what the core takes of memory and I/O stays the same whichever of them
//! runs. *Principle 2*: hyper-thread siblings get paths whose profiles are unlike, which wait for different things.
//!
//! A path's **profile** is what it takes of memory, I/O and the cache for each cycle, in relation to what all paths take. Two are
//! as **unlike** as their profiles are apart, summed up over the resources that are known of all, at most [`FARTHEST`] each.
//!
//! A path's **load** is the part of a core that it wants (rate x cycles), but no more than it would get if all cores were one and
//! full: max-min fair by weight, as the schedulers divide it. Paths are whole: one that wants more than a core gets one.
//!
//! Of two placements the better one, by the first of these that differs, has
//! 1. less load above [`HIGH`] of a core;
//! 2. less on another NUMA node than its packets;
//! 3. on each core less that is unlike: for each two paths how unlike, times the lesser load;
//! 4. on siblings less that is alike: the same, for how much they are not unlike;
//! 5. its load spread more evenly.
//!
//! Found from two first placements (by profile in order, cores filled one after another; the largest first, where most room is) and from
//! the one that is, by moving a path or exchanging two as long as that is better. That is the best of all for 93 % of small
//! machines made up at random, and has no more load above the mark than the best for 99 % (`place/tests.rs`); to let the second one go to a third
//! core found the best once more in a thousand. A placement that is stays unless another has less above the mark by [`WORTH`]
//! of a core, or no more there and less far, or is better by a tenth in the third and fourth way together: a move costs caches.
//!
//! Made for a thread that is not urgent: 64 paths took 0.4 s on 64 cores and 1 s on 16, 16 paths on 4 cores 26 ms, in a test build.
//!
//! Loads are fractions of a core in floating point, as in [`crate::cores`]; what is compared are millionths.

mod board;

use super::{
    cost::Cost,
    resource::{RESOURCES, Resource},
    slot::PathId,
};
use crate::{
    cores::{Core, CoreId},
    share::{Want, fill},
};
use board::{Board, Item, Score, millionths};
use std::collections::{BTreeMap, BTreeSet};

/// What a core's paths may want together: the rest carries bursts.
pub const HIGH: f64 = 0.85;
/// So much less of a core above [`HIGH`] is worth a move: loads are not measured more exactly.
pub const WORTH: f64 = 0.02;
/// Profiles are apart by no more than this for each resource.
pub const FARTHEST: f64 = 4.0;

/// A path that is to be placed.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// Which.
    pub id: PathId,
    /// Packets that come for it in a second.
    pub pps: u64,
    /// Of a packet.
    pub cost: Cost,
    /// Its share of the machine against other paths, above 0: its weight in its router, times the router's, over all of the router's.
    pub weight: f64,
    /// NUMA node of the port its packets come from, if that is one.
    pub node: Option<u16>,
    /// Cores it may run on; `None`: all.
    pub allowed: Option<BTreeSet<CoreId>>,
}

/// Where paths shall run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// The core of each path.
    pub core: BTreeMap<PathId, CoreId>,
    /// Paths that may run on none of the cores there are.
    pub nowhere: Vec<PathId>,
}

/// Places paths on the cores of workers that run `hz` cycles a second, `now` being where they are. The same for the same arguments.
pub fn place(paths: &[Load], cores: &[Core], hz: u64, now: &BTreeMap<PathId, CoreId>) -> Placement {
    let items = items(paths, cores, hz);
    let (placeable, nowhere): (Vec<Item>, Vec<Item>) =
        items.into_iter().partition(|item| !item.allowed.is_empty());
    let mut best = found(cores, &placeable);
    if placeable.iter().any(|item| now.contains_key(&item.id)) {
        let mut kept = best.emptied();
        kept.put_as(now);
        let mut improved = kept.clone();
        improved.improve();
        if improved.score() <= best.score() {
            best = improved;
        }
        let is_whole = placeable.iter().all(|item| now.contains_key(&item.id));
        if is_whole && kept.is_as(now) && !is_worth(best.score(), kept.score()) {
            best = kept;
        }
    }
    let nowhere = nowhere.into_iter().map(|item| item.id).collect();
    Placement { core: best.cores().collect(), nowhere }
}

/// The better one of what two first placements lead to.
fn found<'a>(cores: &'a [Core], items: &'a [Item]) -> Board<'a> {
    let (mut alike, mut even) = (Board::new(cores, items), Board::new(cores, items));
    alike.fill();
    even.spread();
    alike.improve();
    even.improve();
    if even.score() < alike.score() { even } else { alike }
}

/// Is the one that much better than what is?
fn is_worth(better: Score, now: Score) -> bool {
    let unlike = |score: Score| score.mixed + score.alike_beside;
    let is_less = now.over - better.over >= millionths(WORTH);
    is_less || (better.over <= now.over && better.far < now.far) || unlike(better) * 10 < unlike(now) * 9
}

/// Loads and profiles.
fn items(paths: &[Load], cores: &[Core], hz: u64) -> Vec<Item> {
    let wants: Vec<Want> =
        paths.iter().map(|path| Want { weight: path.weight, amount: wanted(path, hz) }).collect();
    let capacity = cores.iter().map(|core| 1.0 - core.other.clamp(0.0, 1.0)).sum();
    let loads = fill(capacity, &wants);
    let profiles = profiles(paths, &loads);
    let items = paths.iter().zip(loads).zip(profiles);
    items
        .map(|((path, load), profile)| Item {
            id: path.id,
            load,
            profile,
            node: path.node,
            allowed: (0..cores.len()).filter(|&core| may(path, &cores[core])).collect(),
        })
        .collect()
}

fn may(path: &Load, core: &Core) -> bool {
    path.allowed.as_ref().is_none_or(|allowed| allowed.contains(&core.id))
}

/// Of one core.
fn wanted(path: &Load, hz: u64) -> f64 {
    let cycles = path.cost.in_256ths(Resource::Cycles).unwrap_or(0) as f64 / 256.0;
    (path.pps as f64 * cycles / hz.max(1) as f64).min(1.0)
}

/// By path: what it takes for each cycle of resources other than cycles, in relation to all paths, weighed by their loads.
fn profiles(paths: &[Load], loads: &[f64]) -> Vec<Vec<f64>> {
    let mut profiles = vec![Vec::new(); paths.len()];
    for resource in RESOURCES.into_iter().filter(|&resource| resource != Resource::Cycles) {
        let for_cycle = |path: &Load| {
            let cycles = path.cost.in_256ths(Resource::Cycles)?.max(1);
            Some(path.cost.in_256ths(resource)? as f64 / cycles as f64)
        };
        let Some(taken) = paths.iter().map(for_cycle).collect::<Option<Vec<f64>>>() else { continue };
        let all: f64 = taken.iter().zip(loads).map(|(taken, load)| taken * load).sum();
        let mean = all / loads.iter().sum::<f64>();
        for (profile, taken) in profiles.iter_mut().zip(taken) {
            // Of nothing, or where nothing is to be done, all are alike.
            profile.push(if mean > 0.0 { (taken / mean).min(FARTHEST) } else { 0.0 });
        }
    }
    profiles
}

#[cfg(test)]
mod tests;
