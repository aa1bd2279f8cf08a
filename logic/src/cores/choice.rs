//! Chooses the core of a flow if its rule lets the switch choose (SET_CORE "choose": V3, V7, V8).
//!
//! The kernel plane gives a flow's first packet the next core of a ring. The flow stays there until it had no packets
//! for a long time (V4). In every control period a [`Chooser`] decides what the rings are, and how many flows should
//! leave a core. Only the kernel plane knows when a flow can leave with its packets in order.
//!
//! **Candidates** may forward, have no pinned workload (V3), and are loaded at most `high`. Without candidates, flows
//! stay on the core that receives them.
//!
//! **Load** is everything except idling, as the mean of a fifth of a second, because other work is not known sooner.
//! The work of flows that were given to a core in the meantime is not visible yet. Each is assumed to take [`FLOW`]. So
//! the next flow goes to the least loaded core, and flows that begin at the same time are spread.
//!
//! **Priority flows** (V7) get the least loaded cores first. They have a ring of their own, in which one weighs more.
//! Other flows avoid cores with priority flows, unless there is no other candidate and that one is loaded below `low`.
//! Among cores with similar load ([`POLLS`]), priority flows get those that poll queues. Other flows then fill a
//! different core, which drops their packets after the port's ring. If they filled the core that polls, packets would
//! be dropped in the ring, including those of the priority flow.
//!
//! **Leaving** (V8). All flows leave a core that may no longer forward, is offline, or got a workload, if there is a
//! candidate. If a core was above `high` for a whole hold time, as many flows leave as would bring it down to `low`.
//! They must find room below `low` elsewhere, even if they were twice as heavy as the average. So a flow that alone is
//! too much stays. If flows have to leave again soon after, they were the wrong ones. The next step then waits twice as
//! long each time, beginning with a hold time. Priority flows stay in that case.

use super::{CoreId, Settings, View, measure::fraction};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Entries of a ring. These are more flows than begin in a control period in which their cores matter.
pub const RING: usize = 64;
/// The assumed load of a flow until its load is visible. Ten at once are a fifth of a core. That is enough to try
/// others, but a small flow does not close a core.
const FLOW: f64 = 0.02;
/// The same for a priority flow: the next one looks for another core.
const FIRST: f64 = 0.1;
/// A core that polls a queue gets a priority flow even if it is loaded by this much more than another.
const POLLS: f64 = 0.1;
/// At most this many hold times pass until flows may leave again.
const PATIENCE: u32 = 64;
/// The accuracy of sums of fractions.
const EXACT: f64 = 1e-9;
/// Loads are means over this time.
const WINDOW: Duration = Duration::from_millis(200);

/// The flows of a core that were chosen for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flows {
    /// Flows given to it since the beginning, and priority flows among them.
    pub given: u64,
    pub given_first: u64,
    /// Flows on it now: others, and priority flows.
    pub others: u32,
    pub first: u32,
}

/// How many flows may leave a core from now on. This replaces earlier numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leave {
    pub others: u32,
    pub first: u32,
}

/// The instructions for the kernel plane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choices {
    /// The cores for new flows, used in turn from the first on. Empty: flows stay where they arrive.
    pub ring: Vec<CoreId>,
    /// The same for priority flows.
    pub ring_first: Vec<CoreId>,
    pub leave: BTreeMap<CoreId, Leave>,
}

/// Decides, and keeps the history that it needs.
#[derive(Debug, Default)]
pub struct Chooser {
    cores: BTreeMap<CoreId, Known>,
    /// When the present window began.
    since: Option<Duration>,
    /// When flows last had to leave a core that is too busy, and how long others then stay.
    told: Option<(Duration, Duration)>,
}

/// The state of a core.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// The load in the last whole window. For a new core, the first load seen.
    load: f64,
    /// For the present window: the sum, and the number of periods.
    sum: f64,
    periods: u32,
    /// The assumed load of flows given to it: of all, and as it was at the beginning of this window and of the one
    /// before.
    guess: f64,
    guesses: [f64; 2],
    /// Since when its load has been above the high mark.
    high_since: Option<Duration>,
    /// Some of its flows had to leave because of that.
    told: bool,
}

impl Known {
    /// The load including flows that are not visible yet. Flows given in the last window are only partly visible, so
    /// they count, too.
    fn expected(&self) -> f64 {
        (self.load + (self.guess - self.guesses[0]).max(0.0)).min(1.0)
    }
}

/// A core that may be chosen.
struct Candidate {
    core: CoreId,
    expected: f64,
    has_first: bool,
    polls: bool,
}

impl Chooser {
    /// The instructions for the kernel plane after the control period that ends at `now`, a time that does not go back.
    pub fn decide(
        &mut self,
        now: Duration,
        view: &View,
        flows: &BTreeMap<CoreId, Flows>,
        settings: &Settings,
    ) -> Choices {
        let window_ends = self.observe(now, view, flows, settings);
        let of = |core| flows.get(&core).copied().unwrap_or_default();
        let may = |core: &&super::Core| settings.allows(core.id) && core.workloads == 0;
        let usable: BTreeSet<CoreId> = view.cores.iter().filter(may).map(|core| core.id).collect();
        let candidates = usable.iter().map(|&core| Candidate {
            core,
            expected: self.cores.get(&core).map_or(0.0, Known::expected),
            has_first: of(core).first > 0,
            polls: view.queues.iter().any(|queue| queue.core == core),
        });
        let candidates: Vec<Candidate> = candidates.filter(|c| c.expected <= settings.high).collect();
        let leave = if window_ends {
            self.leave(now, &candidates, &usable, flows, settings)
        } else {
            BTreeMap::new()
        };
        Choices {
            ring: ring(&for_others(&candidates, settings.low), FLOW, settings.high, |_| 0.0),
            ring_first: ring(&Vec::from_iter(&candidates), FIRST, settings.high, |c| {
                if c.polls { POLLS } else { 0.0 }
            }),
            leave,
        }
    }

    /// Updates the state with measurements. Returns whether a window ended.
    fn observe(
        &mut self,
        now: Duration,
        view: &View,
        flows: &BTreeMap<CoreId, Flows>,
        settings: &Settings,
    ) -> bool {
        let loads = loads(view);
        let ends = self.since.is_none_or(|since| now.saturating_sub(since) >= WINDOW);
        self.cores.retain(|core, _| loads.contains_key(core));
        for (&core, &load) in &loads {
            let given = flows.get(&core).copied().unwrap_or_default();
            let guess = given.given as f64 * FLOW + given.given_first as f64 * FIRST;
            let known =
                self.cores.entry(core).or_insert(Known { load, guesses: [guess; 2], ..Known::default() });
            (known.sum, known.periods, known.guess) = (known.sum + load, known.periods + 1, guess);
            if ends {
                known.load = known.sum / f64::from(known.periods);
                (known.sum, known.periods, known.guesses) = (0.0, 0, [known.guesses[1], guess]);
                let is_high = known.load > settings.high;
                known.high_since = known.high_since.or(Some(now)).filter(|_| is_high);
            }
        }
        if ends {
            self.since = Some(now);
        }
        ends
    }

    fn leave(
        &mut self,
        now: Duration,
        candidates: &[Candidate],
        usable: &BTreeSet<CoreId>,
        flows: &BTreeMap<CoreId, Flows>,
        settings: &Settings,
    ) -> BTreeMap<CoreId, Leave> {
        let (mut leave, mut told) = (BTreeMap::new(), false);
        let waits = self.told.is_some_and(|(at, pause)| now.saturating_sub(at) < pause);
        // The room of each candidate below the low mark.
        let mut room: Vec<f64> = candidates.iter().map(|c| settings.low - c.expected).collect();
        for (&core, on) in flows.iter().filter(|(_, on)| on.others + on.first > 0) {
            if !usable.contains(&core) {
                let all = Leave { others: on.others, first: on.first };
                leave.extend((!candidates.is_empty()).then_some((core, all)));
                continue;
            }
            let Some(known) = self.cores.get_mut(&core) else { continue };
            let lasts = known.high_since.is_some_and(|at| now.saturating_sub(at) >= settings.hold);
            if lasts && !waits {
                let each = known.load / f64::from(on.others + on.first);
                let wanted = ((known.load - settings.low) / each - EXACT).ceil() as u32;
                let others = find_room(&mut room, 2.0 * each, wanted.min(on.others));
                // Flows that have not left by then need not leave, or are decided again.
                (known.high_since, known.told) = (Some(now), others > 0);
                leave.insert(core, Leave { others, first: 0 });
                told |= others > 0;
            } else if known.high_since.is_none() && std::mem::take(&mut known.told) {
                leave.insert(core, Leave::default());
            }
        }
        if told {
            let again = self.told.filter(|&(at, pause)| now.saturating_sub(at) < 2 * pause + settings.hold);
            let pause = again.map_or(settings.hold, |(_, pause)| (2 * pause).min(PATIENCE * settings.hold));
            self.told = Some((now, pause));
        }
        leave
    }
}

/// The number of flows, at most `wanted`, that find room, each on one core. Takes this room.
fn find_room(room: &mut [f64], each: f64, wanted: u32) -> u32 {
    let mut found = 0;
    for room in room {
        let fits = ((*room / each).max(0.0) as u32).min(wanted - found);
        *room -= f64::from(fits) * each;
        found += fits;
    }
    found
}

/// Everything that cores did except idling.
fn loads(view: &View) -> BTreeMap<CoreId, f64> {
    let mut loads: BTreeMap<CoreId, f64> =
        view.cores.iter().map(|core| (core.id, fraction(core.other))).collect();
    for queue in &view.queues {
        let parts = queue.parts.iter().map(|part| (part.core, part.ran));
        for (core, ran) in parts.chain([(queue.core, queue.ran)]) {
            if let Some(load) = loads.get_mut(&core) {
                *load = (*load + fraction(ran)).min(1.0);
            }
        }
    }
    loads
}

/// The cores for flows without priority.
fn for_others(candidates: &[Candidate], low: f64) -> Vec<&Candidate> {
    let free: Vec<&Candidate> = candidates.iter().filter(|c| !c.has_first).collect();
    if free.is_empty() { candidates.iter().filter(|c| c.expected < low).collect() } else { free }
}

/// The least loaded candidate for each of the next flows, if each adds this much, until all have too much. A core's
/// load counts as less by `favour`.
fn ring(candidates: &[&Candidate], each: f64, high: f64, favour: impl Fn(&Candidate) -> f64) -> Vec<CoreId> {
    let mut loads: Vec<(f64, f64, CoreId)> =
        candidates.iter().map(|c| (c.expected - favour(c), c.expected, c.core)).collect();
    let mut ring = Vec::new();
    while ring.len() < RING {
        let open = loads.iter_mut().filter(|(_, load, _)| *load <= high);
        let Some((rank, load, core)) = open.min_by(|a, b| a.0.total_cmp(&b.0).then(a.2.cmp(&b.2))) else {
            break;
        };
        ring.push(*core);
        (*rank, *load) = (*rank + each, *load + each);
    }
    ring
}
