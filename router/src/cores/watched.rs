//! A queue that is watched: its time, read in each control period.

use super::{
    CoreId, Roots,
    load::{CoreTime, Load, Meter, QueueTime as _, Reading, SoftirqShare, ThreadTime, Times},
    queues::{Control, Obstacle, QueueSource},
};
use std::{io, time::Duration};

/// A queue, where it is, and what it takes.
#[derive(Debug)]
pub struct Watched {
    pub source: QueueSource,
    /// NUMA node of its port.
    pub node: Option<u16>,
    /// In the last period; of one that only softirqs tell of, over [`super::load::WINDOW`].
    pub load: Load,
    time: Time,
    meter: Meter,
    /// At the last reading.
    ran_ns: Option<u64>,
    /// What polled it is not there any more.
    is_gone: bool,
    /// The kernel did not move it: when it is asked again, and how long was waited for that.
    refused: Option<(Duration, Duration)>,
}

/// How long a queue that was not moved is left alone, at first and at most; each time twice as long.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(256)];

/// What tells its time.
#[derive(Debug)]
enum Time {
    Thread(ThreadTime),
    Softirqs(SoftirqShare),
    Nothing,
}

impl Watched {
    /// A queue as it was found.
    ///
    /// # Errors
    /// Its thread's time cannot be opened.
    pub fn new(roots: &Roots, source: QueueSource, node: Option<u16>) -> io::Result<Watched> {
        let time = match (&source.control, source.core) {
            (Control::Thread { pid }, _) => {
                ThreadTime::open(roots, *pid)?.map_or(Time::Nothing, Time::Thread)
            }
            (Control::Interrupt { .. }, Some(core)) => Time::Softirqs(SoftirqShare::new(core, 1)),
            _ => Time::Nothing,
        };
        let (load, meter) = (Load::default(), Meter::default());
        Ok(Watched { source, node, load, time, meter, ran_ns: None, is_gone: false, refused: None })
    }

    /// Is its time that of softirqs?
    pub fn is_estimate(&self) -> bool {
        matches!(self.time, Time::Softirqs(_))
    }

    /// Is it known where it is and what it takes?
    pub fn is_measured(&self) -> bool {
        self.source.core.is_some() && !matches!(self.time, Time::Nothing)
    }

    /// What moves it is known.
    pub fn is_movable(&self) -> bool {
        !matches!(self.source.control, Control::None { .. })
    }

    /// Is this the same queue, polled by the same?
    pub fn is_polled_as(&self, source: &QueueSource) -> bool {
        let same = |a: &Control, b: &Control| a == b || matches!(a, Control::None { why: Obstacle::Refused });
        self.source.id == source.id && same(&self.source.control, &source.control) && !self.is_gone
    }

    /// The same queue, looked at again: somebody may have moved it.
    pub fn seen_again(self, source: QueueSource, now: Duration) -> Watched {
        let mut seen = Watched { source, ..self };
        if seen.refused.is_some_and(|(until, _)| now < until) {
            seen.source.control = Control::None { why: Obstacle::Refused };
        }
        seen
    }

    /// It is on this core alone from now on.
    pub fn is_now_on(&mut self, core: CoreId) {
        (self.source.core, self.source.confined, self.refused) = (Some(core), true, None);
    }

    /// The kernel did not move it: it is left alone for a while.
    pub fn is_refused(&mut self, now: Duration) {
        let pause = self.refused.map_or(PAUSES[0], |(_, pause)| (pause * 2).min(PAUSES[1]));
        self.refused = Some((now + pause, pause));
        self.source.control = Control::None { why: Obstacle::Refused };
    }

    /// On each core are so many queues whose time is an estimate; times of cores as last read.
    pub fn shares(&mut self, estimated: impl Fn(CoreId) -> u16, cores: &[CoreTime]) {
        if let (Time::Softirqs(share), Some(core)) = (&mut self.time, self.source.core) {
            share.is_on(core, estimated(core), cores);
        }
    }

    /// Reads what it took since the last call; nanoseconds that it ran meanwhile. `None`: what polled it is gone.
    pub fn read(&mut self, now: Duration, cores: &[CoreTime]) -> io::Result<Option<u64>> {
        let reading = match &mut self.time {
            Time::Thread(thread) => thread.read(cores)?,
            Time::Softirqs(share) => share.read(cores)?,
            Time::Nothing => return Ok(Some(0)),
        };
        let (Reading::Exact(times) | Reading::Estimate(times)) = reading else {
            (self.time, self.load, self.is_gone) = (Time::Nothing, Load::default(), true);
            return Ok(None);
        };
        let ran_ns = self.ran_since(times);
        if let Some(load) = self.meter.load(now, times) {
            self.load = load;
        }
        Ok(Some(ran_ns))
    }

    fn ran_since(&mut self, times: Times) -> u64 {
        // The first reading is since long before.
        let before = self.ran_ns.replace(times.ran_ns).unwrap_or(times.ran_ns);
        times.ran_ns.saturating_sub(before)
    }
}
