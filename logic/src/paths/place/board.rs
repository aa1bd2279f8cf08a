//! A possible placement, and its score.

use super::{FARTHEST, HIGH};
use crate::{
    cores::{Core, CoreId},
    paths::PathId,
};
use std::collections::BTreeMap;

/// A path, with the properties that matter here.
#[derive(Clone, Debug)]
pub struct Item {
    pub id: PathId,
    /// Its load, as a part of a core.
    pub load: f64,
    /// Its profile, by resource.
    pub profile: Vec<f64>,
    pub node: Option<u16>,
    /// The numbers of allowed cores, ascending.
    pub allowed: Vec<usize>,
}

/// Less is better. In millionths, see [`super`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Score {
    pub over: i64,
    pub far: i64,
    pub mixed: i64,
    pub alike_beside: i64,
    pub uneven: i64,
}

impl Score {
    fn plus(self, other: Score) -> Score {
        Score {
            over: self.over + other.over,
            far: self.far + other.far,
            mixed: self.mixed + other.mixed,
            alike_beside: self.alike_beside + other.alike_beside,
            uneven: self.uneven + other.uneven,
        }
    }
}

pub fn millionths(value: f64) -> i64 {
    (value * 1e6).round() as i64
}

/// A placement that is being made.
#[derive(Clone, Debug)]
pub struct Board<'a> {
    cores: &'a [Core],
    items: &'a [Item],
    /// Groups of siblings, and the group of each core.
    groups: Vec<Vec<usize>>,
    group_of: Vec<usize>,
    /// The items on each core, by number.
    on: Vec<Vec<usize>>,
    /// The core of each item.
    at: Vec<Option<usize>>,
    /// The score of each group.
    scores: Vec<Score>,
}

impl<'a> Board<'a> {
    /// A board without paths. Each item may be on at least one core.
    pub fn new(cores: &'a [Core], items: &'a [Item]) -> Self {
        let mut by_physical: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
        for (number, core) in cores.iter().enumerate() {
            by_physical.entry(core.physical).or_default().push(number);
        }
        let groups: Vec<Vec<usize>> = by_physical.into_values().collect();
        let mut group_of = vec![0; cores.len()];
        for (group, members) in groups.iter().enumerate() {
            members.iter().for_each(|&core| group_of[core] = group);
        }
        let (on, at, scores) =
            (vec![Vec::new(); cores.len()], vec![None; items.len()], vec![Score::default(); groups.len()]);
        let mut board = Board { cores, items, groups, group_of, on, at, scores };
        (0..board.groups.len()).for_each(|group| board.rate(group));
        board
    }

    /// The same board without placed items.
    pub fn emptied(&self) -> Self {
        Board::new(self.cores, self.items)
    }

    /// Places items by profile in order. Fills one core after another up to its part of the whole load: first one
    /// thread of each physical core, then the others. An item that may not be there goes to the allowed core with the
    /// least load.
    pub fn fill(&mut self) {
        let mut order: Vec<usize> = (0..self.items.len()).collect();
        let taking = |item: usize| self.items[item].profile.iter().sum::<f64>();
        order.sort_by(|&a, &b| taking(a).total_cmp(&taking(b)).then(a.cmp(&b)));
        let threads = self.groups.iter().map(Vec::len).max().unwrap_or(0);
        let mut sequence =
            (0..threads).flat_map(|thread| self.groups.iter().filter_map(move |group| group.get(thread)));
        let all: f64 = self.items.iter().map(|item| item.load).sum();
        let part = all / self.cores.len().max(1) as f64;
        let mut core = sequence.next().copied();
        let mut places = Vec::new();
        let mut loads = vec![0.0; self.cores.len()];
        for item in order {
            let Item { load, allowed, .. } = &self.items[item];
            while core.is_some_and(|core| loads[core] + load / 2.0 > part) {
                core = sequence.next().copied();
            }
            let least =
                allowed.iter().copied().min_by(|&a, &b| loads[a].total_cmp(&loads[b]).then(a.cmp(&b)));
            if let Some(place) = core.filter(|core| allowed.contains(core)).or(least) {
                loads[place] += load;
                places.push((item, place));
            }
        }
        places.into_iter().for_each(|(item, core)| self.place_at(item, core));
    }

    /// Places the largest item first, each on the core with the most room.
    pub fn spread(&mut self) {
        let mut order: Vec<usize> = (0..self.items.len()).collect();
        order.sort_by(|&a, &b| self.items[b].load.total_cmp(&self.items[a].load).then(a.cmp(&b)));
        let mut busy: Vec<f64> = self.cores.iter().map(|core| core.other.clamp(0.0, 1.0)).collect();
        for item in order {
            let least = |&&a: &&usize, &&b: &&usize| busy[a].total_cmp(&busy[b]).then(a.cmp(&b));
            if let Some(&core) = self.items[item].allowed.iter().min_by(least) {
                busy[core] += self.items[item].load;
                self.place_at(item, core);
            }
        }
    }

    /// Places items as in `now` if that is allowed, and others where they give the best score.
    pub fn put_as(&mut self, now: &BTreeMap<PathId, CoreId>) {
        for item in 0..self.items.len() {
            if let Some(core) = self.wished(item, now) {
                self.place_at(item, core);
            }
        }
        for item in 0..self.items.len() {
            if self.at[item].is_none() {
                let board = &*self;
                let with = |core: usize| {
                    let mut board = board.clone();
                    board.place_at(item, core);
                    board.score()
                };
                if let Some(&core) = self.items[item].allowed.iter().min_by_key(|&&core| with(core)) {
                    self.place_at(item, core);
                }
            }
        }
    }

    /// Whether each path is where `now` has it.
    pub fn is_as(&self, now: &BTreeMap<PathId, CoreId>) -> bool {
        self.cores().all(|(id, core)| now.get(&id) == Some(&core))
    }

    fn wished(&self, item: usize, now: &BTreeMap<PathId, CoreId>) -> Option<usize> {
        let id = *now.get(&self.items[item].id)?;
        self.items[item].allowed.iter().copied().find(|&core| self.cores[core].id == id)
    }

    /// Moves and exchanges items as long as that is better. Each step reduces the score, which is bounded, so this
    /// ends.
    pub fn improve(&mut self) {
        while self.move_one() || self.exchange_two() {}
    }

    fn move_one(&mut self) -> bool {
        let mut found = false;
        for (item, Item { allowed, .. }) in self.items.iter().enumerate() {
            for &core in allowed {
                found |= self.tried(&[(item, core)]);
            }
        }
        found
    }

    fn exchange_two(&mut self) -> bool {
        let mut found = false;
        for (a, Item { allowed: may_a, .. }) in self.items.iter().enumerate() {
            for (b, Item { allowed: may_b, .. }) in self.items[..a].iter().enumerate() {
                let (Some(of_a), Some(of_b)) = (self.at[a], self.at[b]) else { continue };
                if of_a != of_b && may_a.contains(&of_b) && may_b.contains(&of_a) {
                    found |= self.tried(&[(a, of_b), (b, of_a)]);
                }
            }
        }
        found
    }

    /// Makes these moves if they are better.
    fn tried(&mut self, moves: &[(usize, usize)]) -> bool {
        let before = self.score();
        let back: Vec<(usize, usize)> =
            moves.iter().filter_map(|&(item, _)| Some((item, self.at[item]?))).collect();
        moves.iter().for_each(|&(item, core)| self.place_at(item, core));
        let is_better = self.score() < before;
        if !is_better {
            back.into_iter().for_each(|(item, core)| self.place_at(item, core));
        }
        is_better
    }

    pub fn place_at(&mut self, item: usize, core: usize) {
        let before = self.at[item].replace(core);
        if before == Some(core) {
            return;
        }
        if let Some(before) = before {
            self.on[before].retain(|&other| other != item);
            self.rate(self.group_of[before]);
        }
        self.on[core].push(item);
        self.rate(self.group_of[core]);
    }

    /// The score of all groups.
    pub fn score(&self) -> Score {
        self.scores.iter().fold(Score::default(), |sum, score| sum.plus(*score))
    }

    /// The core of each path.
    pub fn cores(&self) -> impl Iterator<Item = (PathId, CoreId)> {
        let items = self.items.iter().zip(&self.at);
        items.filter_map(|(item, at)| Some((item.id, self.cores[(*at)?].id)))
    }

    /// Computes the score of a group again.
    fn rate(&mut self, group: usize) {
        let members = &self.groups[group];
        let mut score = Score::default();
        for (nth, &core) in members.iter().enumerate() {
            score = score.plus(self.core(core));
            for &sibling in &members[..nth] {
                let pairs = self.on[core].iter().flat_map(|a| self.on[sibling].iter().map(move |b| (a, b)));
                score.alike_beside +=
                    pairs.map(|(&a, &b)| self.weighed(a, b, |unlike, most| most - unlike)).sum::<i64>();
            }
        }
        self.scores[group] = score;
    }

    /// The part of the score of one core, without siblings.
    fn core(&self, core: usize) -> Score {
        let (on, Core { node, other, .. }) = (&self.on[core], &self.cores[core]);
        let load = |items: &[usize]| items.iter().map(|&item| self.items[item].load).sum::<f64>();
        let far: Vec<usize> =
            on.iter().copied().filter(|&item| self.items[item].node.is_some_and(|of| of != *node)).collect();
        let busy = load(on) + other.clamp(0.0, 1.0);
        let pairs = on.iter().enumerate().flat_map(|(nth, a)| on[..nth].iter().map(move |b| (a, b)));
        Score {
            over: millionths((busy - HIGH).max(0.0)),
            far: millionths(load(&far)),
            mixed: pairs.map(|(&a, &b)| self.weighed(a, b, |unlike, _| unlike)).sum(),
            alike_beside: 0,
            uneven: millionths(busy * busy),
        }
    }

    /// A function of the difference of two paths and of the largest difference, times the smaller load.
    fn weighed(&self, a: usize, b: usize, of: impl Fn(f64, f64) -> f64) -> i64 {
        let (a, b) = (&self.items[a], &self.items[b]);
        let unlike = a.profile.iter().zip(&b.profile).map(|(a, b)| (a - b).abs()).sum::<f64>();
        millionths(of(unlike, FARTHEST * a.profile.len() as f64) * a.load.min(b.load))
    }
}
