//! A queue whose time is read in each control period.

use super::{
    CoreId, QueueId, Roots,
    affinity::Scheduling,
    balancer::{self, Balancer},
    contest::Contest,
    load::{CoreTime, Load, Meter, QueueTime as _, Reading, SoftirqShare, ThreadTime, Times},
    queues::{Control, Obstacle, QueueSource},
    traffic::{Traffic, TrafficMeter},
};
use crate::plane::Polled;
use logic::cores::Counted;
use std::{io, time::Duration};

/// A queue, its place and its measured time.
#[derive(Debug)]
pub struct Watched {
    pub source: QueueSource,
    /// The NUMA node of its port.
    pub node: Option<u16>,
    /// The lowest of the queues that are moved together with this one, itself included. The leader's time is that of all.
    pub leader: QueueId,
    /// The load in the last period; over [`super::load::WINDOW`] if it is estimated from softirqs.
    pub load: Load,
    /// `load` was measured.
    has_load: bool,
    pub traffic: TrafficMeter,
    /// At the last reading.
    pub times: Times,
    time: Time,
    meter: Meter,
    /// At the last reading.
    ran_ns: Option<u64>,
    /// Its thread has ended.
    is_gone: bool,
    /// The `nice` that its thread was given.
    nice: Option<i8>,
    /// The core that Millrace moved it to, and when.
    placed: Option<(CoreId, Duration)>,
    refusal: Option<Refusal>,
    contest: Contest,
}

/// The kernel refused to move the queue.
#[derive(Debug)]
struct Refusal {
    /// The next attempt. If it fails, too, the pause doubles.
    until: Duration,
    pause: Duration,
    /// A sentence without its subject, the queue.
    why: String,
}

/// The pause after a refused move: the first and the longest. It doubles each time.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(256)];

/// The source of a queue's time.
#[derive(Debug)]
enum Time {
    Thread(ThreadTime),
    Softirqs(SoftirqShare),
    Nothing,
}

impl Time {
    fn of_softirqs(source: &QueueSource) -> Time {
        let has_interrupt = matches!(
            source.control,
            Control::Interrupt { .. } | Control::None { why: Obstacle::InterruptManaged { .. } }
        );
        let core = source.core.filter(|_| has_interrupt);
        core.map_or(Time::Nothing, |core| Time::Softirqs(SoftirqShare::new(core, 1)))
    }
}

impl Watched {
    /// Begins to watch a queue that was found. `leader`: the queue whose time is measured for it.
    ///
    /// # Errors
    /// The time of its thread cannot be opened.
    pub fn new(
        roots: &Roots,
        source: QueueSource,
        node: Option<u16>,
        leader: QueueId,
    ) -> io::Result<Watched> {
        let time = match source.control {
            _ if leader != source.id => Time::Nothing,
            Control::Thread { pid } => ThreadTime::open(roots, pid)?.map_or(Time::Nothing, Time::Thread),
            _ => Time::of_softirqs(&source),
        };
        Ok(Watched {
            source,
            node,
            leader,
            load: Load::default(),
            has_load: false,
            traffic: TrafficMeter::default(),
            times: Times::default(),
            time,
            meter: Meter::default(),
            ran_ns: None,
            is_gone: false,
            nice: None,
            placed: None,
            refusal: None,
            contest: Contest::default(),
        })
    }

    /// Its NAPI thread, if it has one.
    pub fn thread(&self) -> Option<u32> {
        match self.source.control {
            Control::Thread { pid } => Some(pid),
            _ => None,
        }
    }

    /// Sets the `nice` of its thread, unless it is known to have it.
    pub fn renice(&mut self, threads: &impl Scheduling, nice: i8) -> io::Result<()> {
        match self.thread() {
            Some(pid) if self.nice != Some(nice) => {
                threads.renice(pid, nice)?;
                self.nice = Some(nice);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Whether its time is estimated from softirqs.
    pub fn is_estimate(&self) -> bool {
        matches!(self.time, Time::Softirqs(_))
    }

    /// Whether its core and its time are known.
    pub fn is_measured(&self) -> bool {
        self.source.core.is_some() && !matches!(self.time, Time::Nothing)
    }

    /// Its packets and wake-ups in the last period, if both are known exactly.
    pub fn counted(&self) -> Option<Counted> {
        let traffic = self.traffic.traffic.filter(|_| matches!(self.time, Time::Thread(_)))?;
        let Traffic { packets_per_s, .. } = traffic;
        Some(Counted { packets_per_s, wakeups_per_s: self.load.wakeups_per_s })
    }

    /// Whether it can be moved now: it has a thread or an interrupt, and is not left alone after a refusal or because
    /// somebody else moves it.
    pub fn is_movable(&self, now: Duration) -> bool {
        !matches!(self.source.control, Control::None { .. }) && self.refused(now).is_none()
    }

    /// Why it is not moved now, although its thread or interrupt is known.
    pub fn refused(&self, now: Duration) -> Option<Obstacle> {
        let refused = self.refusal.as_ref().filter(|refusal| now < refusal.until).map(|_| Obstacle::Refused);
        refused.or_else(|| self.contest.is_left_alone(now).then_some(Obstacle::Contested))
    }

    /// The problem with moving it, as a sentence; `name`: the name of the queue.
    pub fn condition(&self, name: &str, now: Duration, balancer: Option<&Balancer>) -> Option<String> {
        if let Some(refusal) = &self.refusal {
            return Some(format!("{name} {}", refusal.why));
        }
        let Contest { times, pause, .. } = self.contest;
        if !self.contest.goes_on(now) {
            return None;
        }
        let left_alone = match pause.as_secs() {
            0 => "was moved back".to_owned(),
            seconds => format!("is left alone for {seconds} s at a time"),
        };
        let (who, way_out) = self.rival(balancer);
        Some(format!("{name} is moved by {who}, {times} times so far, and {left_alone}: {way_out}"))
    }

    /// Records that somebody else has moved it. Returns the text of the event.
    pub fn strays(&mut self, now: Duration, balancer: Option<&Balancer>) -> String {
        self.contest.strayed(now);
        let Contest { times, pause, .. } = self.contest;
        let then = match pause.as_secs() {
            0 => "it is moved back".to_owned(),
            seconds => format!("it is left alone for {seconds} s"),
        };
        format!("moved by {}, {times} times so far; {then}", self.rival(balancer).0)
    }

    /// Who else may move it, and what users can do about that.
    fn rival(&self, balancer: Option<&Balancer>) -> (String, String) {
        match (self.source.control, balancer) {
            (Control::Interrupt { irq }, Some(balancer)) => {
                let who = format!("somebody else, probably irqbalance (process {})", balancer.pid);
                (who, balancer::way_out(&[irq].into()))
            }
            _ => {
                ("somebody else".into(), "stop the other program, or set policy = \"off\" in [cores]".into())
            }
        }
    }

    /// Whether `source` is the same queue, polled and moved by the same thread or interrupt.
    pub fn is_polled_as(&self, source: &QueueSource, leader: QueueId) -> bool {
        let (a, b) = (&self.source, source);
        (a.id, a.control, self.leader) == (b.id, b.control, leader) && !self.is_gone
    }

    /// Updates it from a look that began at `began`. If somebody else has moved it, returns the core that Millrace had moved
    /// it to.
    pub fn seen_again(&mut self, source: QueueSource, began: Duration) -> Option<CoreId> {
        if self.placed.is_some_and(|(_, at)| at >= began) {
            return None;
        }
        self.source = source;
        // Somebody may have changed the `nice` of its thread.
        self.nice = None;
        // At first the core of its interrupt may have been unknown.
        if matches!(self.time, Time::Nothing) && self.leader == source.id {
            self.time = Time::of_softirqs(&source);
        }
        let is_elsewhere = |core: &CoreId| !source.confined || source.core != Some(*core);
        let strayed = self.placed.map(|(core, _)| core).filter(is_elsewhere)?;
        self.placed = None;
        Some(strayed)
    }

    /// Records that it was moved to this core, and may run on no other.
    pub fn is_now_on(&mut self, core: CoreId, now: Duration) {
        (self.source.core, self.source.confined) = (Some(core), true);
        (self.placed, self.refusal) = (Some((core, now)), None);
    }

    /// Records that the kernel refused to move it, and begins a pause.
    pub fn is_refused(&mut self, now: Duration, why: String) {
        let pause = self.refusal.as_ref().map_or(PAUSES[0], |refusal| (refusal.pause * 2).min(PAUSES[1]));
        self.refusal = Some(Refusal { until: now + pause, pause, why });
    }

    /// Sets the number of queues that share the softirq time of its core. `estimated`: the number of queues on a core
    /// whose time is an estimate; `cores`: times of cores as last read.
    pub fn shares(&mut self, estimated: impl Fn(CoreId) -> u16, cores: &[CoreTime]) {
        if let (Time::Softirqs(share), Some(core)) = (&mut self.time, self.source.core) {
            share.is_on(core, estimated(core), cores);
        }
    }

    /// Reads its time. Returns the nanoseconds that it ran since the last call; `None`: its thread is gone.
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
        self.times = times;
        if let Some(load) = self.meter.load(now, times) {
            (self.load, self.has_load) = (load, true);
        }
        Ok(Some(ran_ns))
    }

    /// Whether it took no time in the last period, and has polled nothing since.
    pub fn is_still(&self, polled: impl Fn(u32) -> Option<Polled>) -> bool {
        let now = self.source.napi.and_then(polled);
        let is_idle = self.load.ran == 0.0 && self.load.waited == 0.0;
        is_idle && !self.is_gone && now.is_some_and(|now| now == self.traffic.total)
    }

    /// Whether its time was read at least once.
    pub fn was_read(&self) -> bool {
        self.ran_ns.is_some()
    }

    /// Whether its time was measured over a whole period.
    pub fn has_load(&self) -> bool {
        self.has_load
    }

    /// Like [`Watched::read`], for a queue that [`Watched::is_still`]; it takes almost no time.
    pub fn rest(&mut self, now: Duration) {
        if self.traffic.traffic.is_some() {
            self.traffic.read(now, Some(self.traffic.total));
        }
        if let (Time::Thread(_), Some(load)) = (&self.time, self.meter.load(now, self.times)) {
            (self.load, self.has_load) = (load, true);
        }
    }

    fn ran_since(&mut self, times: Times) -> u64 {
        // The first reading includes time from before this daemon.
        let before = self.ran_ns.replace(times.ran_ns).unwrap_or(times.ran_ns);
        times.ran_ns.saturating_sub(before)
    }
}
