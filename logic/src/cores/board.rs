//! A possible placement of queues on cores, to try decisions on before they are taken.

use super::{
    Core, CoreId, QueueId, Settings, View,
    measure::{Want, fraction},
};
use std::collections::BTreeMap;

/// The accuracy of sums of fractions.
const EXACT: f64 = 1e-9;
/// A queue has its core to itself if the others there want no more than this together.
pub(super) const NEXT_TO_NOTHING: f64 = 0.01;

/// The position of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub home: CoreId,
    /// The cores that share it, as in [`super::Plan::split`]. Empty: it is not split.
    pub shares: Vec<CoreId>,
}

impl Spot {
    pub fn at(home: CoreId) -> Self {
        Self { home, shares: Vec::new() }
    }

    /// Removes a split among the home alone, which is none.
    pub fn tidy(mut self) -> Self {
        if self.shares.iter().all(|&core| core == self.home) {
            self.shares.clear();
        }
        self
    }

    /// The cores it uses, its home first.
    pub fn cores(&self) -> impl Iterator<Item = CoreId> + '_ {
        std::iter::once(self.home).chain(self.shares.iter().copied().filter(|&core| core != self.home))
    }

    /// Its load on a core at one moment.
    fn load(&self, core: CoreId, want: Want) -> f64 {
        self.loads(want).find(|(used, _)| *used == core).map_or(0.0, |(_, load)| load)
    }

    /// Its load on each core at one moment.
    fn loads(&self, want: Want) -> impl Iterator<Item = (CoreId, f64)> + '_ {
        let share = want.work / self.shares.len().max(1) as f64;
        self.cores().map(move |core| {
            let handing = if core == self.home && !self.shares.is_empty() { want.handing } else { 0.0 };
            let shares = self.shares.is_empty() || self.shares.contains(&core);
            (core, handing + if shares { share } else { 0.0 })
        })
    }
}

/// A queue on the board.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub spot: Spot,
    pub movable: bool,
    pub node: Option<u16>,
    /// Its wants at each moment on the board.
    pub wants: Vec<Want>,
}

impl Item {
    /// The most that it wants of one core if it is not split.
    pub fn size(&self) -> f64 {
        self.wants.iter().map(|want| want.work).fold(0.0, f64::max)
    }

    /// Its work at each moment.
    fn works(&self) -> Vec<f64> {
        self.wants.iter().map(|want| want.work).collect()
    }

    /// Whether it can move to another core as a whole.
    pub fn is_loose(&self) -> bool {
        self.movable && self.spot.shares.is_empty()
    }
}

#[derive(Clone, Debug)]
struct Bin {
    node: u16,
    physical: u16,
    workloads: u16,
    /// Other work in tenths, so that noise decides nothing.
    other: u8,
    allowed: bool,
    /// The queues that use it.
    users: Vec<QueueId>,
    /// The load at each moment.
    loads: Vec<f64>,
}

/// Cores with queues on them, and the resulting load, at one or more moments.
#[derive(Clone, Debug)]
pub(super) struct Board {
    bins: BTreeMap<CoreId, Bin>,
    items: BTreeMap<QueueId, Item>,
    /// The number of forwarding cores of each physical core.
    siblings: BTreeMap<u16, usize>,
}

impl Board {
    /// A board with all online cores.
    pub fn new(view: &View, settings: &Settings, moments: usize) -> Self {
        let bin = |core: &Core| Bin {
            node: core.node,
            physical: core.physical,
            workloads: core.workloads,
            other: (fraction(core.other) * 10.0) as u8,
            allowed: settings.allows(core.id),
            users: Vec::new(),
            loads: vec![0.0; moments],
        };
        let bins = view.cores.iter().map(|core| (core.id, bin(core))).collect();
        Self { bins, items: BTreeMap::new(), siblings: BTreeMap::new() }
    }

    pub fn items(&self) -> &BTreeMap<QueueId, Item> {
        &self.items
    }

    pub fn put(&mut self, id: QueueId, item: Item) {
        for core in item.spot.cores() {
            let Some(bin) = self.bins.get_mut(&core) else { continue };
            if bin.users.is_empty() {
                *self.siblings.entry(bin.physical).or_default() += 1;
            }
            bin.users.push(id);
        }
        self.add_loads(&item, 1.0);
        self.items.insert(id, item);
    }

    pub fn take(&mut self, id: QueueId) -> Option<Item> {
        let item = self.items.remove(&id)?;
        self.add_loads(&item, -1.0);
        for core in item.spot.cores() {
            let Some(bin) = self.bins.get_mut(&core) else { continue };
            bin.users.retain(|user| *user != id);
            if bin.users.is_empty() {
                bin.loads.fill(0.0);
                *self.siblings.entry(bin.physical).or_default() -= 1;
            }
        }
        Some(item)
    }

    pub fn place(&mut self, id: QueueId, spot: Spot) {
        if let Some(item) = self.take(id) {
            self.put(id, Item { spot, ..item });
        }
    }

    fn add_loads(&mut self, item: &Item, sign: f64) {
        for (moment, want) in item.wants.iter().enumerate() {
            for (core, load) in item.spot.loads(*want) {
                if let Some(load_then) = self.bins.get_mut(&core).and_then(|bin| bin.loads.get_mut(moment)) {
                    *load_then += sign * load;
                }
            }
        }
    }

    /// The cores that forward, which means that a queue uses them.
    pub fn forwarding(&self) -> impl Iterator<Item = CoreId> + '_ {
        self.bins.iter().filter(|(_, bin)| !bin.users.is_empty()).map(|(id, _)| *id)
    }

    /// The queues that use a core.
    pub fn users(&self, core: CoreId) -> impl Iterator<Item = (QueueId, &Item)> {
        let users = self.bins.get(&core).map_or(&[][..], |bin| &bin.users);
        users.iter().filter_map(|id| Some((*id, self.items.get(id)?)))
    }

    pub fn forwards(&self, core: CoreId) -> bool {
        self.bins.get(&core).is_some_and(|bin| !bin.users.is_empty())
    }

    pub fn is_allowed(&self, core: CoreId) -> bool {
        self.bins.get(&core).is_some_and(|bin| bin.allowed)
    }

    /// The cores that may forward.
    pub fn allowed(&self) -> impl Iterator<Item = CoreId> + '_ {
        self.bins.iter().filter(|(_, bin)| bin.allowed).map(|(id, _)| *id)
    }

    pub fn is_online(&self, core: CoreId) -> bool {
        self.bins.contains_key(&core)
    }

    pub fn workloads(&self, core: CoreId) -> u16 {
        self.bins.get(&core).map_or(0, |bin| bin.workloads)
    }

    /// The highest load of a core.
    pub fn peak(&self, core: CoreId) -> f64 {
        self.bins.get(&core).map_or(0.0, |bin| bin.loads.iter().copied().fold(0.0, f64::max))
    }

    /// The lowest load of a core.
    pub fn least(&self, core: CoreId) -> f64 {
        self.bins.get(&core).map_or(0.0, |bin| bin.loads.iter().copied().reduce(f64::min).unwrap_or(0.0))
    }

    /// Whether the load of a core is always at most `goal`, or nearly all of it belongs to one queue. One core can do
    /// no better for that queue.
    pub fn is_below(&self, core: CoreId, goal: f64) -> bool {
        self.peak(core) <= goal + EXACT || self.has_one(core, goal)
    }

    /// The same for a core after this whole queue has left it.
    pub fn is_below_without(&self, core: CoreId, (id, item): (QueueId, &Item), goal: f64) -> bool {
        self.bins.get(&core).is_none_or(|bin| {
            let left = |(load, want): (&f64, &Want)| load - want.work <= goal + EXACT;
            bin.loads.iter().zip(&item.wants).all(left) || is_one(self.loads_of(core, Some(id)), goal)
        })
    }

    /// Whether one queue that wants more than `goal` has this core nearly to itself. This is also true for an empty
    /// core.
    pub fn has_one(&self, core: CoreId, goal: f64) -> bool {
        is_one(self.loads_of(core, None), goal)
    }

    /// The load of each queue on a core at each moment, except for one queue.
    fn loads_of(&self, core: CoreId, but: Option<QueueId>) -> impl Iterator<Item = Vec<f64>> + '_ {
        let users = self.users(core).filter(move |(id, _)| Some(*id) != but);
        users.map(move |(_, item)| item.wants.iter().map(|want| item.spot.load(core, *want)).collect())
    }

    /// Whether all load would fit on one core less if it could be divided freely.
    pub fn may_be_fewer(&self, goal: f64) -> bool {
        let cores = self.forwarding().count();
        let moments = self.bins.values().map(|bin| bin.loads.len()).max().unwrap_or(0);
        let total = |moment: usize| self.bins.values().filter_map(|bin| bin.loads.get(moment)).sum::<f64>();
        (0..moments).all(|moment| total(moment) <= goal * cores.saturating_sub(1) as f64 + EXACT)
    }

    /// Whether an allowed core has room for this additional load.
    pub fn has_room(&self, core: CoreId, more: impl Fn(usize) -> f64, goal: f64) -> bool {
        let room = |bin: &Bin| bin.loads.iter().enumerate().all(|(i, load)| load + more(i) <= goal + EXACT);
        self.bins.get(&core).is_some_and(|bin| bin.allowed && room(bin))
    }

    /// Cores that may be taken, in the order in which they are tried.
    pub fn preferred(&self, may: impl Fn(CoreId) -> bool) -> Vec<CoreId> {
        let mut cores: Vec<(&CoreId, &Bin)> = self.bins.iter().filter(|(core, _)| may(**core)).collect();
        cores.sort_by_cached_key(|(id, bin)| self.preference(**id, bin, None));
        cores.into_iter().map(|(id, _)| *id).collect()
    }

    /// The order in which cores are tried: those without workloads, that already forward, with no hyper-thread sibling
    /// that forwards, of the port's node, with the least other work.
    fn preference(&self, id: CoreId, bin: &Bin, node: Option<u16>) -> impl Ord + use<> {
        let sibling = bin.users.is_empty() && self.siblings.get(&bin.physical).is_some_and(|&n| n > 0);
        let far = node.is_some_and(|node| node != bin.node);
        (bin.workloads, bin.users.is_empty(), sibling, far, bin.other, id)
    }

    /// The first core that can take a whole queue, which is not there, and stay at most at `goal`. Otherwise the first
    /// core that one queue would have nearly to itself. If that is this queue, no other core would do better.
    pub fn target(&self, item: &Item, goal: f64, may: impl Fn(&Board, CoreId) -> bool) -> Option<CoreId> {
        let first = |takes: &dyn Fn(CoreId) -> bool| {
            let cores = self.bins.iter().filter(|&(&core, _)| may(self, core) && takes(core));
            cores.min_by_key(|(id, bin)| self.preference(**id, bin, item.node)).map(|(id, _)| *id)
        };
        let has_room = |core| self.has_room(core, |moment| item.wants[moment].work, goal);
        let for_one = |core| {
            let loads = || self.loads_of(core, None).chain([item.works()]);
            self.is_allowed(core) && is_one(loads(), goal)
        };
        first(&has_room).or_else(|| first(&for_one))
    }

    /// The allowed core with the lowest load.
    pub fn idlest(&self) -> Option<CoreId> {
        self.allowed().min_by(|&a, &b| {
            self.workloads(a).cmp(&self.workloads(b)).then(self.peak(a).total_cmp(&self.peak(b)))
        })
    }

    /// The fewest cores, `least` or more, that can share a queue's flows with each at most at `goal`. The queue is not
    /// on the board. Its home shares if it can, and otherwise only hands on.
    pub fn shares(
        &self,
        item: &Item,
        least: usize,
        goal: f64,
        may: impl Fn(CoreId) -> bool,
    ) -> Option<Vec<CoreId>> {
        let home = item.spot.home;
        let wants = &item.wants;
        let mut order: Vec<(&CoreId, &Bin)> = self.bins.iter().collect();
        order.sort_by_cached_key(|(id, bin)| self.preference(**id, bin, item.node));
        let others = |sharers: usize, count: usize| -> Option<Vec<CoreId>> {
            let share = |moment: usize| wants[moment].work / sharers as f64;
            let fits = |core: &CoreId| *core != home && may(*core) && self.has_room(*core, share, goal);
            let cores: Vec<_> = order.iter().map(|(id, _)| **id).filter(fits).take(count).collect();
            (cores.len() == count).then_some(cores)
        };
        let sorted = |mut cores: Vec<CoreId>| {
            cores.sort_unstable();
            cores
        };
        (least.max(2)..=self.bins.len()).find_map(|n| {
            let handing = |moment: usize| wants[moment].handing;
            let sharing = |moment: usize| handing(moment) + wants[moment].work / n as f64;
            if self.has_room(home, sharing, goal)
                && let Some(cores) = others(n, n - 1)
            {
                return Some(sorted([vec![home], cores].concat()));
            }
            let hands_on = self.bins.get(&home).is_some_and(|bin| {
                bin.loads.iter().enumerate().all(|(i, load)| load + handing(i) <= goal + EXACT)
            });
            // A single other core that does everything would be a move, not a split.
            others(n - 1, n - 1).filter(|_| hands_on && n > 2).map(sorted)
        })
    }
}

/// Whether nearly all load of a core belongs to one queue, always the same one, which wants more than `goal`. `loads`:
/// the load of each queue at some moments.
fn is_one(loads: impl Iterator<Item = Vec<f64>>, goal: f64) -> bool {
    let mut loads: Vec<Vec<f64>> = loads.collect();
    loads.sort_by(|a, b| b.iter().sum::<f64>().total_cmp(&a.iter().sum()));
    let others = |moment: usize| loads[1..].iter().map(|loads| loads[moment]).sum::<f64>();
    let is_large = |one: &Vec<f64>| one.iter().any(|load| *load > goal + EXACT);
    let has_it = |one: &Vec<f64>| (0..one.len()).all(|moment| others(moment) <= NEXT_TO_NOTHING);
    loads.first().is_none_or(|one| loads.len() == 1 || is_large(one) && has_it(one))
}
