//! The ports: their queues, and what is set on each.
//!
//! A port is read completely, with what polls each queue, when its number, its mode or the number of its queues has
//! changed, and every [`THOROUGH`]. At each look, only the place of each queue is read. Before a queue is passed on, its
//! original settings are saved (see [`super::knobs`]).

use super::{
    CoreId, QueueId, Roots,
    drain::Exit,
    is_gone,
    knob::System,
    knobs::Knobs,
    look::FoundQueue,
    moderation::{Asked, Moderated, Moderation, overflows},
    number,
    placing::Happened,
    queues::{Control, NetdevQueues, Obstacle, PortQueues, QueueSource},
    spreads::Spreader,
};
use crate::{
    base::priority::Urgency,
    config::{CoresSettings, PlacementPolicy},
    linux::spreading::Spreads,
};
use logic::{cores::in_use::Resize, plan::PortId};
use std::{io, iter::repeat, time::Duration};

/// How often a port is read completely if nothing seems to have changed.
const THOROUGH: Duration = Duration::from_secs(10);

/// Asks the kernel about devices in the daemon's network namespace.
pub trait Ask: Send {
    /// The number of a device; an error of the kind `NotFound`: there is no device of this name.
    fn ifindex(&self, device: &str) -> io::Result<u32>;

    /// The kernel's reports about a device's queues.
    fn told(&self, ifindex: u32, device: &str) -> io::Result<NetdevQueues>;
}

/// Looks at ports. Holds their interrupts back and spreads their packets, if configured.
pub struct Ports {
    ask: Box<dyn Ask>,
    all: Vec<ObservedPort>,
    pub moderation: Option<Moderation>,
    pub spreader: Spreader,
    /// Whether queues may be moved.
    places: bool,
    floor: bool,
}

/// A port, by its name, and what is known about it. If the name is empty, no port has this number.
struct ObservedPort {
    name: String,
    known: Option<Known>,
}

/// What is known about a port that exists.
#[derive(Clone)]
pub struct Known {
    shape: Shape,
    pub queues: PortQueues,
    /// When everything was read.
    asked: Duration,
    /// The problems at that time, as sentences.
    pub conditions: Vec<String>,
    pub spreads: Option<Spreads>,
    pub moderated: Option<Moderated>,
}

/// The properties of a device that change when its queues change.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Shape {
    ifindex: u32,
    threaded: Option<u8>,
    queues: usize,
    /// Whether workers poll it.
    polled: bool,
}

impl Known {
    pub fn exit(&self) -> Exit {
        Exit { ifindex: self.shape.ifindex, several: self.queues.several_tx }
    }

    /// Its queues, with their present places; `None`: a thread or an interrupt is gone.
    fn placed(&self, knobs: &Knobs) -> io::Result<Option<Vec<QueueSource>>> {
        self.queues.queues.iter().map(|queue| queue.placed(&knobs.roots, &*knobs.system)).collect()
    }

    pub fn queues(&self) -> impl Iterator<Item = FoundQueue> {
        let PortQueues { node, entries, .. } = self.queues;
        self.queues.queues.iter().map(move |&source| FoundQueue { source, node, entries })
    }
}

impl Ports {
    pub fn new(ask: Box<dyn Ask>, wanted: &CoresSettings, names: &[String]) -> Ports {
        let port = |name: &String| ObservedPort { name: name.clone(), known: None };
        Ports {
            ask,
            all: names.iter().map(port).collect(),
            moderation: None,
            spreader: Spreader::default(),
            places: wanted.policy != PlacementPolicy::Off,
            floor: wanted.floor.is_some(),
        }
    }

    /// The ports that exist, with their names.
    pub fn known(&self) -> impl Iterator<Item = (PortId, &str, &Known)> {
        (0..).zip(&self.all).filter_map(|(id, port)| Some((id, &*port.name, port.known.as_ref()?)))
    }

    /// Looks at all ports. Returns those that cannot be read, as sentences: they keep their known queues. A port that does
    /// not exist may appear later.
    pub fn look(&mut self, knobs: &mut Knobs, now: Duration, thoroughly: bool) -> Vec<String> {
        let mut conditions = Vec::new();
        for id in 0..self.all.len() {
            let (name, known) = (self.all[id].name.clone(), self.all[id].known.take());
            if name.is_empty() {
                continue;
            }
            match self.observe(knobs, id as PortId, &name, known.as_ref(), now, thoroughly) {
                Ok(found) => self.all[id].known = Some(found),
                // The device may vanish during a look.
                Err(error) if is_gone(&error) || error.kind() == io::ErrorKind::NotFound => {
                    known.iter().for_each(|known| self.lose(&name, known.shape.ifindex));
                }
                Err(error) => {
                    conditions.push(format!("the queues of {name} cannot be read: {error}"));
                    self.all[id].known = known;
                }
            }
        }
        conditions
    }

    fn observe(
        &mut self,
        knobs: &mut Knobs,
        port: PortId,
        name: &str,
        known: Option<&Known>,
        now: Duration,
        thoroughly: bool,
    ) -> io::Result<Known> {
        let shape = self.shape(&knobs.roots, name)?;
        let ifindex = shape.ifindex;
        let before = known.filter(|known| known.shape.ifindex == ifindex).and_then(|known| known.spreads);
        let is_fresh = |known: &&Known| {
            let is_recent = now.saturating_sub(known.asked) < THOROUGH && !known.queues.is_incomplete();
            known.shape == shape && !thoroughly && is_recent
        };
        if let Some(known) = known.filter(is_fresh)
            && let Some(queues) = known.placed(knobs)?
        {
            let mut known = known.clone();
            known.queues.queues = queues;
            if self.spreader.is_unread(name) {
                known.spreads = self.spreader.look(name, ifindex, before);
            }
            return Ok(known);
        }
        let told = self.ask.told(ifindex, name)?;
        let mut queues = PortQueues::observe(&knobs.roots, &*knobs.system, port, name, &told)?;
        let mut conditions = self.save(knobs, name, &mut queues.queues);
        conditions.extend(self.no_floor(name, &queues.queues));
        let spreads = self.spreader.look(name, ifindex, before);
        let asked = Asked { device: name, ifindex, told: &told };
        let moderated = self.moderation.as_mut().and_then(|moderation| moderation.look(knobs, &asked));
        if let Some(Moderated::By(set)) = moderated {
            conditions.extend(overflows(&knobs.roots, name, told.entries, set));
        }
        Ok(Known { shape, queues, asked: now, conditions, spreads, moderated })
    }

    /// Gives up a port that is gone. A device that exists, but does not answer now, keeps its interrupt moderation.
    fn lose(&mut self, name: &str, ifindex: u32) {
        self.spreader.let_go(name, ifindex);
        if self.ask.ifindex(name).ok() != Some(ifindex) {
            self.moderation.iter_mut().for_each(|moderation| moderation.forget(ifindex));
        }
    }

    fn shape(&self, roots: &Roots, device: &str) -> io::Result<Shape> {
        let ifindex = self.ask.ifindex(device)?;
        Ok(Shape {
            ifindex,
            threaded: number(&roots.device(device).join("threaded")),
            queues: roots.rx_queues(device).len(),
            polled: self.moderation.as_ref().is_some_and(|moderation| moderation.is_polled(ifindex)),
        })
    }

    /// Saves the original settings of all queues that can be moved. Marks the queues for which that fails as immovable, and
    /// returns the reasons.
    fn save(&self, knobs: &mut Knobs, device: &str, queues: &mut [QueueSource]) -> Vec<String> {
        let mut conditions = Vec::new();
        if !self.places {
            return conditions;
        }
        for queue in queues.iter_mut().filter(|queue| !matches!(queue.control, Control::None { .. })) {
            let index = queue.id.index;
            if let Err(error) = knobs.save_queue(device, index, queue.control, self.floor) {
                conditions.push(format!(
                    "queue {index} of {device} is not moved: its original settings cannot be saved: {error}"
                ));
                queue.control = Control::None { why: Obstacle::Unnoted };
            } else if self.floor
                && let Err(error) = make_usual(&*knobs.system, queue.control)
            {
                conditions
                    .push(format!("applications have no floor beside queue {index} of {device}: {error}"));
            }
        }
        conditions
    }

    /// The problem, as a sentence, if a port has queues beside which applications can have no floor.
    fn no_floor(&self, device: &str, queues: &[QueueSource]) -> Option<String> {
        let has_none = queues.iter().any(|queue| !matches!(queue.control, Control::Thread { .. }));
        (self.floor && has_none).then(|| {
            format!(
                "applications have no floor beside queues of {device}: softirqs poll them, and come before all threads; turn on \
                 threaded NAPI (echo 1 > /sys/class/net/{device}/threaded)"
            )
        })
    }

    /// Spreads packets of a port over the number of queues that was decided at `at`. Returns an event, if there is one.
    pub fn resize(&mut self, at: Duration, resize: &Resize) -> Option<Happened> {
        let ObservedPort { name, known } = self.all.get_mut(usize::from(resize.port))?;
        let known = known.as_mut()?;
        let ifindex = known.shape.ifindex;
        let told = self.spreader.resize(name, ifindex, at, resize);
        known.spreads = self.spreader.look(name, ifindex, known.spreads);
        told
    }

    /// Records that an RX queue was moved to a core. Moves the TX queue of the same number there, too.
    pub fn moved(&self, knobs: &mut Knobs, queue: QueueId, core: CoreId) {
        let mut all = self.known().flat_map(|(_, name, known)| known.queues.queues.iter().zip(repeat(name)));
        match all.find(|(source, _)| source.id == queue) {
            Some((source, name)) => knobs.moved(name, queue.index, source.control, core),
            // The port has just vanished, at least for a while.
            None => knobs.forget_places(),
        }
    }
}

/// Makes a real-time thread a normal one, because `nice` has no effect on a real-time thread.
fn make_usual(system: &dyn System, control: Control) -> io::Result<()> {
    let Control::Thread { pid } = control else { return Ok(()) };
    match system.urgency(pid)? {
        Urgency { policy: libc::SCHED_OTHER, .. } => Ok(()),
        Urgency { nice, .. } => system.set_urgency(pid, Urgency::usual(nice)),
    }
}
