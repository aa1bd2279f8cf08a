//! A queue that goes to another core sends on another TX queue (XDP sends on that of the core it runs on). What waits in the old one
//! leaves first, so that nothing passes it.
//!
//! Packets are not asked anything for that: while the old TX queue empties, the queue's NAPI thread does not run, and what comes
//! waits in the RX queue. It does not run because the thread that places queues, which has a real-time priority, takes its core
//! meanwhile: the new one, where it has been put; or, where whoever takes from the old TX queue needs that one, the old one, where
//! it still is. That is the only time that placing waits for others: [`MOST`] for each core that queues go to, and less where RX
//! queues fill in less.
//!
//! | packets leave by | then |
//! |---|---|
//! | one TX queue, or the new core sends on the same | nothing waits |
//! | veth, tap | what was put in the old ring is seen to be taken ([`TransmitRings`]) |
//! | a NIC, or another device with several TX queues | nobody sees its rings: [`UNSEEN`] |
//!
//! Until the queue's thread is on its new core, that core must not be left for a moment: see [`elsewhere`].
//!
//! Softirqs go before all threads, so queues that they poll cannot be held up.

mod elsewhere;

use self::elsewhere::Elsewhere;
use super::{CoreId, affinity::Affinity};
use crate::{
    base::clock::monotonic,
    plane::{Transmit, TransmitRings},
};
use logic::{cores::drain::Backlog, cpus::MOST_CORES};
use std::{collections::BTreeSet, hint::spin_loop, io, time::Duration};

/// The longest that one core's queues are held up: a tenth of a control period.
pub const MOST: Duration = Duration::from_millis(1);
/// Of one round; what is not moved then is in the next one.
const MOST_OF_ROUND: Duration = Duration::from_millis(2);
/// How long rings are waited for that nobody sees. At 10 Gbit/s that is 80 packets of 1500 bytes, or 1,500 small ones.
pub const UNSEEN: Duration = Duration::from_micros(100);

/// Sees what waits.
pub trait Look: Send {
    /// See [`TransmitRings::look`].
    fn look(&self, ifindex: u32, core: CoreId) -> io::Result<Option<Transmit>>;
}

impl Look for TransmitRings {
    fn look(&self, ifindex: u32, core: CoreId) -> io::Result<Option<Transmit>> {
        TransmitRings::look(self, ifindex, core)
    }
}

/// A port that packets may leave by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    pub ifindex: u32,
    /// Cores may have TX queues of their own, if it is of a kind that cannot be seen.
    pub several: bool,
}

/// Queues that go to one core.
#[derive(Clone, Debug, Default)]
pub struct Leaving {
    /// The threads that poll them, and that wait.
    pub threads: Vec<u32>,
    /// The cores that they leave.
    pub from: BTreeSet<CoreId>,
    pub to: CoreId,
    /// They run on no other.
    pub confined: bool,
}

/// What became of what waited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// There are no TX queues of which one could pass another.
    Alike,
    /// It has left, as far as can be seen; after so long.
    Left(Duration),
    /// Not all of it has, for this reason.
    Remains(String),
}

/// Since the beginning, moves of one or several queues to a core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// They waited until what was sent before had left; how long at most.
    pub left: u64,
    pub longest: Duration,
    /// They could not wait for it, or not so long.
    pub remained: u64,
}

/// Makes moves wait.
pub struct Drains {
    /// `None`: nothing can be seen.
    rings: Option<Box<dyn Look>>,
    elsewhere: Option<Elsewhere>,
    exits: Vec<Exit>,
    /// Of this round.
    left: Duration,
    pub told: Drained,
}

/// Something that is waited for.
struct Ring {
    ifindex: u32,
    core: CoreId,
    backlog: Option<Backlog>,
    taker: Option<CoreId>,
}

impl Drains {
    /// `None`: all rings are of those that cannot be seen.
    pub fn new(rings: Option<Box<dyn Look>>) -> Drains {
        Drains { rings, elsewhere: None, exits: Vec::new(), left: Duration::ZERO, told: Drained::default() }
    }

    /// Called by the thread that moves queues, when it is as urgent as it will be.
    ///
    /// # Errors
    /// No thread can be had.
    pub fn begin(&mut self) -> io::Result<()> {
        self.elsewhere = Some(Elsewhere::begin()?);
        Ok(())
    }

    /// Packets may leave by these ports from now on.
    pub fn leave_by(&mut self, exits: Vec<Exit>) {
        self.exits = exits;
    }

    pub fn begin_round(&mut self) {
        self.left = MOST_OF_ROUND;
    }

    /// May there be another move in this round?
    pub fn has_time(&self) -> bool {
        !self.left.is_zero()
    }

    /// Has `go` move what polls queues; what they sent before leaves first. `patience`: for how long nothing may be polled on a core.
    /// The calling thread goes before those of the queues, and is for that long on another core than it may have been.
    pub fn around<T>(
        &mut self,
        affinity: &impl Affinity,
        leaving: &Leaving,
        patience: impl Fn(CoreId) -> Duration,
        go: impl FnOnce() -> T,
    ) -> (T, Outcome) {
        let (mut rings, unseen) = self.behind(leaving);
        if rings.is_empty() && !unseen {
            return (go(), Outcome::Alike);
        }
        let on = taken(leaving, &rings);
        let held = match Held::on(affinity, on) {
            Ok(held) => held,
            Err(error) => return (go(), self.remains(format!("core {on} cannot be held: {error}"))),
        };
        let began = monotonic();
        let (until, unseen) =
            (began + patience(on).min(self.left), if unseen { UNSEEN } else { Duration::ZERO });
        let mut wait = || self.wait(&mut rings, began + unseen, until);
        let (gone, all) = if on == leaving.to {
            if let Some(elsewhere) = &self.elsewhere {
                elsewhere.put(&leaving.threads, leaving.to);
            }
            let gone = go();
            (gone, wait())
        } else {
            let all = wait();
            (go(), all)
        };
        drop(held);
        let took = monotonic().saturating_sub(began);
        self.left = self.left.saturating_sub(took);
        if !all {
            return (gone, self.remains(format!("{} us are not enough", took.as_micros())));
        }
        (self.told.left, self.told.longest) = (self.told.left + 1, self.told.longest.max(took));
        (gone, Outcome::Left(took))
    }

    fn remains(&mut self, why: String) -> Outcome {
        self.told.remained += 1;
        Outcome::Remains(why)
    }

    /// The rings that queues leave, and whether there are some that cannot be seen.
    fn behind(&self, leaving: &Leaving) -> (Vec<Ring>, bool) {
        let (mut rings, mut unseen) = (Vec::new(), false);
        for Exit { ifindex, several } in self.exits.iter().copied() {
            for core in leaving.from.iter().copied().filter(|core| *core != leaving.to) {
                match self.look(ifindex, core) {
                    Some(Transmit { rings: all, ring, taker }) => {
                        let own = |core| u32::from(core) % all.max(1);
                        if ring.is_some() && own(core) != own(leaving.to) {
                            rings.push(Ring { ifindex, core, backlog: None, taker });
                        }
                    }
                    None => unseen |= several,
                }
            }
        }
        (rings, unseen)
    }

    fn look(&self, ifindex: u32, core: CoreId) -> Option<Transmit> {
        self.rings.as_ref()?.look(ifindex, core).ok()?
    }

    /// Has all left that is in the rings now?
    fn wait(&self, rings: &mut Vec<Ring>, at_least: Duration, until: Duration) -> bool {
        loop {
            rings.retain_mut(|ring| {
                // A device that is gone has nothing that waits.
                let Some(now) = self.look(ring.ifindex, ring.core).and_then(|now| now.ring) else {
                    return false;
                };
                !ring.backlog.get_or_insert_with(|| Backlog::of(now)).has_left(now)
            });
            let now = monotonic();
            if rings.is_empty() && now >= at_least {
                return true;
            }
            if now >= until {
                return false;
            }
            spin_loop();
        }
    }
}

/// The core to hold: the new one, as the old one is busy, and more than these queues would wait there.
fn taken(leaving: &Leaving, rings: &[Ring]) -> CoreId {
    let takes = |core: CoreId| rings.iter().any(|ring| ring.taker == Some(core));
    match Vec::from_iter(leaving.from.iter().copied().filter(|core| *core != leaving.to))[..] {
        [from] if leaving.confined && takes(leaving.to) && !takes(from) => from,
        _ => leaving.to,
    }
}

/// The calling thread is on one core, and nothing less urgent runs there.
struct Held<'a, A: Affinity> {
    affinity: &'a A,
    thread: u32,
    before: BTreeSet<CoreId>,
}

impl<A: Affinity> Held<'_, A> {
    fn on(affinity: &A, core: CoreId) -> io::Result<Held<'_, A>> {
        let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let before = affinity.allowed(thread)?.cores().collect();
        affinity.allow(thread, &BTreeSet::from([core]))?;
        Ok(Held { affinity, thread, before })
    }
}

impl<A: Affinity> Drop for Held<'_, A> {
    fn drop(&mut self) {
        // Refused if none of them is in use any more: then wherever threads may be.
        if self.affinity.allow(self.thread, &self.before).is_err() {
            let _ = self.affinity.allow(self.thread, &(0..MOST_CORES).collect());
        }
    }
}

#[cfg(test)]
mod tests;
