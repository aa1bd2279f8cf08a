//! Waits, when a queue moves, until the packets that it sent before have left.
//!
//! A queue that moves to another core also changes its TX queue, because XDP sends on the TX queue of the core it runs
//! on. Packets that wait in the old TX queue leave first, so that later packets do not overtake them.
//!
//! The packets themselves pay nothing for this. While the old TX queue empties, the queue's NAPI thread does not run,
//! and new packets wait in the RX queue. The thread does not run because the thread that places queues occupies its
//! core with a real-time priority. Usually this is the new core, and the NAPI thread has been moved there before. If the
//! new core is the one that empties the old TX queue, the placing thread occupies the old core instead, and moves the
//! NAPI thread afterwards. Placing waits for nothing else: [`MOST`] for each core that queues go to, and less if RX
//! queues would fill sooner.
//!
//! | packets leave by | the move waits |
//! |---|---|
//! | one TX queue, or both cores use the same | not at all |
//! | veth, tap | until the packets of the old ring are taken ([`TransmitRings`]) |
//! | a NIC, or another device with several TX queues | [`UNSEEN`], because its rings cannot be seen |
//!
//! The new core must be occupied without a gap until the NAPI thread is there: see [`elsewhere`].
//!
//! Softirqs preempt all threads, so queues that softirqs poll cannot be held up.

mod elsewhere;

use self::elsewhere::Elsewhere;
use super::{CoreId, affinity::Affinity};
use crate::{
    base::clock::monotonic,
    plane::{Transmit, TransmitRings},
};
use logic::{cores::drain::Backlog, cpus::MOST_CORES};
use std::{collections::BTreeSet, hint::spin_loop, io, time::Duration};

/// The longest time that one core's queues are held up: a tenth of a control period.
pub const MOST: Duration = Duration::from_millis(1);
/// The longest time that one round waits. The remaining moves follow in the next round.
const MOST_OF_ROUND: Duration = Duration::from_millis(2);
/// The wait for rings that cannot be seen. At 10 Gbit/s this is enough for 80 packets of 1,500 bytes, or 1,500 small
/// ones.
pub const UNSEEN: Duration = Duration::from_micros(100);

/// Sees the packets that wait in TX rings.
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
    /// Cores may have TX queues of their own. Only used if the rings of this kind of device cannot be seen.
    pub several: bool,
}

/// Queues that go to one core.
#[derive(Clone, Debug, Default)]
pub struct Leaving {
    /// The threads that poll them and are held up.
    pub threads: Vec<u32>,
    /// The cores that they leave.
    pub from: BTreeSet<CoreId>,
    pub to: CoreId,
    /// Each of them may run on its present core only.
    pub confined: bool,
}

/// How a wait ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing had to wait, because the move changes no TX queue.
    Alike,
    /// All earlier packets have left, as far as can be seen, after this time.
    Left(Duration),
    /// Some packets remain, for this reason.
    Remains(String),
}

/// Counts of moves to a core, each of one or several queues, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Moves that waited until all earlier packets had left.
    pub left: u64,
    /// The longest of these waits.
    pub longest: Duration,
    /// Moves that could not wait, or not long enough.
    pub remained: u64,
}

/// Makes moves wait.
pub struct Drains {
    /// `None`: no rings can be seen.
    rings: Option<Box<dyn Look>>,
    elsewhere: Option<Elsewhere>,
    exits: Vec<Exit>,
    /// The time that is left to wait in this round.
    left: Duration,
    /// The clock. Tests have one of their own.
    now: Box<dyn Fn() -> Duration + Send>,
    pub told: Drained,
}

/// A TX ring that a move waits for.
struct Ring {
    ifindex: u32,
    core: CoreId,
    backlog: Option<Backlog>,
    taker: Option<CoreId>,
}

impl Drains {
    /// `rings`: sees the packets in rings; `None`: no rings can be seen.
    pub fn new(rings: Option<Box<dyn Look>>) -> Drains {
        Drains {
            rings,
            elsewhere: None,
            exits: Vec::new(),
            left: Duration::ZERO,
            now: Box::new(monotonic),
            told: Drained::default(),
        }
    }

    /// Starts the helper thread with the priority of the caller. To be called by the thread that moves queues, after it
    /// has set its own priority.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn begin(&mut self) -> io::Result<()> {
        self.elsewhere = Some(Elsewhere::begin()?);
        Ok(())
    }

    /// Sets the ports that packets may leave by from now on.
    pub fn leave_by(&mut self, exits: Vec<Exit>) {
        self.exits = exits;
    }

    pub fn begin_round(&mut self) {
        self.left = MOST_OF_ROUND;
    }

    /// Whether there is time for another move in this round.
    pub fn has_time(&self) -> bool {
        !self.left.is_zero()
    }

    /// Moves queues by calling `go`, and waits until the packets that they sent before have left. `patience` returns the
    /// longest time that nothing may be polled on a core. The calling thread must have a higher priority than the threads
    /// of the queues. During the call it is confined to one of the two cores.
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
            Err(error) => return (go(), self.remains(format!("core {on} cannot be occupied: {error}"))),
        };
        let began = (self.now)();
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
        let took = (self.now)().saturating_sub(began);
        self.left = self.left.saturating_sub(took);
        if !all {
            return (gone, self.remains(format!("{} us were not enough", took.as_micros())));
        }
        (self.told.left, self.told.longest) = (self.told.left + 1, self.told.longest.max(took));
        (gone, Outcome::Left(took))
    }

    fn remains(&mut self, why: String) -> Outcome {
        self.told.remained += 1;
        Outcome::Remains(why)
    }

    /// The rings that the queues leave, and whether some rings cannot be seen.
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

    /// Waits until the packets that are in the rings now have left. Returns whether they have.
    fn wait(&self, rings: &mut Vec<Ring>, at_least: Duration, until: Duration) -> bool {
        loop {
            rings.retain_mut(|ring| {
                // In a device that is gone, nothing waits.
                let Some(now) = self.look(ring.ifindex, ring.core).and_then(|now| now.ring) else {
                    return false;
                };
                !ring.backlog.get_or_insert_with(|| Backlog::of(now)).has_left(now)
            });
            let now = (self.now)();
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

/// The core to occupy. It is the new one, because other work would also wait on the old one, which is busy. Exception:
/// the old one, if the new one empties the old ring.
fn taken(leaving: &Leaving, rings: &[Ring]) -> CoreId {
    let takes = |core: CoreId| rings.iter().any(|ring| ring.taker == Some(core));
    match Vec::from_iter(leaving.from.iter().copied().filter(|core| *core != leaving.to))[..] {
        [from] if leaving.confined && takes(leaving.to) && !takes(from) => from,
        _ => leaving.to,
    }
}

/// While this exists, the calling thread is confined to one core, and nothing with a lower priority runs there.
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
        // The kernel refuses if all of these cores have gone offline. Then the thread may run on all cores.
        if self.affinity.allow(self.thread, &self.before).is_err() {
            let _ = self.affinity.allow(self.thread, &(0..MOST_CORES).collect());
        }
    }
}

#[cfg(test)]
mod tests;
