//! Which core a flow gets whose rule lets the switch choose (SET_CORE "choose": V3, V7, V8).
//!
//! The kernel plane gives a flow's first packet the next core of a ring, and the flow stays there until none of its packets came
//! for long (V4). A [`Chooser`] says in every control period what the rings are, and how many flows shall leave a core; when
//! one of them can leave with its packets in order, only the kernel plane knows.
//!
//! **Candidates** may forward, have no pinned workload (V3), and are loaded no more than `high`. Without any, flows stay on the core that
//! receives them.
//!
//! **Load** is all but idling, the mean of a fifth of a second: other work is not known sooner. What flows do that were given
//! to a core meanwhile is not seen yet; each is thought to take [`FLOW`]. So the next flow goes to the least loaded core, and
//! those that come at once are spread.
//!
//! **Priority flows** (V7) get the least loaded cores first: they have a ring of their own, in which one weighs more, and other flows keep
//! off the cores where some are, unless there is no other candidate and that one is loaded below `low`. Of cores loaded about alike
//! ([`POLLS`]) priority flows get those that poll queues: a core that others then fill drops their packets behind the port's ring, not
//! in it, where it would drop those of the priority flow, too.
//!
//! **Leaving** (V8). All flows leave a core that may not forward any more, is offline, or got a workload, if there is a candidate.
//! If a core was above `high` for a whole hold time, as many flows leave it as would bring it down to `low`, and find
//! room below `low` elsewhere, were they twice as heavy as the average: so a flow that alone is too much stays. If flows have to
//! leave again soon after, it was the wrong ones: each time what follows is twice as far away, from a hold time on.
//! Priority flows stay then.

use super::{CoreId, Settings, View, measure::fraction};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Entries of a ring: more flows than begin in a control period where it matters which core they get.
pub const RING: usize = 64;
/// What a flow is thought to take of a core until it is seen. Ten at once are a fifth of a core: enough to try others, not so
/// much that a small flow closes a core.
const FLOW: f64 = 0.02;
/// The same of a priority flow: the next one looks for another core.
const FIRST: f64 = 0.1;
/// A core that polls a queue may be loaded by so much more than another, and get the priority flow.
const POLLS: f64 = 0.1;
/// At most so many hold times pass until flows may leave again.
const PATIENCE: u32 = 64;
/// Sums of fractions are this exact.
const EXACT: f64 = 1e-9;
/// Loads are means of so long.
const WINDOW: Duration = Duration::from_millis(200);

/// The flows of a core that were chosen for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flows {
    /// Given to it since the beginning, and priority flows among the two.
    pub given: u64,
    pub given_first: u64,
    /// On it now, without priority flows, and priority flows.
    pub others: u32,
    pub first: u32,
}

/// So many flows may leave a core from now on, instead of what was said before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leave {
    pub others: u32,
    pub first: u32,
}

/// What the kernel plane goes by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choices {
    /// Cores for flows to come, to be taken in turn from the first on; none: they stay where they come in.
    pub ring: Vec<CoreId>,
    /// The same for priority flows.
    pub ring_first: Vec<CoreId>,
    pub leave: BTreeMap<CoreId, Leave>,
}

/// Decides, and keeps what it needs of the past.
#[derive(Debug, Default)]
pub struct Chooser {
    cores: BTreeMap<CoreId, Known>,
    /// When the present window began.
    since: Option<Duration>,
    /// When flows were told last to leave a core that is too busy, and how long others stay after that.
    told: Option<(Duration, Duration)>,
}

/// A core.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// Of the last whole window; of a core that is new, what was seen first.
    load: f64,
    /// Of the present window: sum, and of how many periods.
    sum: f64,
    periods: u32,
    /// What flows given take, as guessed: all; at the beginning of this window and of the one before.
    guess: f64,
    guesses: [f64; 2],
    /// Loaded above the high mark since.
    high_since: Option<Duration>,
    /// Some of its flows were told to leave because of that.
    told: bool,
}

impl Known {
    /// With what is not seen yet: the work of flows given in the last window, which was seen in part, counts as well.
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
    /// What the kernel plane shall go by after the control period that ends `now`, a time that does not go back.
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

    /// Takes in what was measured. Whether a window ended.
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
        // What candidates can take and stay below the low mark.
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
                // What has not left by then need not, or is decided anew.
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

/// How many of so many flows fit, each on one core; takes their room.
fn find_room(room: &mut [f64], each: f64, wanted: u32) -> u32 {
    let mut found = 0;
    for room in room {
        let fits = ((*room / each).max(0.0) as u32).min(wanted - found);
        *room -= f64::from(fits) * each;
        found += fits;
    }
    found
}

/// All that cores did but idling.
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

/// Cores for flows that are no priority flows.
fn for_others(candidates: &[Candidate], low: f64) -> Vec<&Candidate> {
    let free: Vec<&Candidate> = candidates.iter().filter(|c| !c.has_first).collect();
    if free.is_empty() { candidates.iter().filter(|c| c.expected < low).collect() } else { free }
}

/// The least loaded candidate for each of the next flows, if each adds so much, until all have too much. `favour`: as if it were loaded
/// by so much less.
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
