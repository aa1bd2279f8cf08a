//! Traffic whose rate changes, and observations meanwhile: the load of cores, where queues are, what arrives, what is
//! lost.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::bed::{Bed, Move};
use crate::{cpu, losses::Losses, sys};

/// Time between two looks at where packets are forwarded, and between two changes of the rate.
const TICK: Duration = Duration::from_millis(2);
/// A core that forwards this many packets between two looks counts. A queue that was moved may leave one or two behind.
const FORWARDS: u64 = 16;
/// Time between two looks whether a hot queue is shared.
const URGE_EVERY_S: f64 = 0.1;
/// Least seconds of the low rate, so that decisions made just before its end are seen.
const AFTER_S: f64 = 0.1;
/// Time after the generator stops. Packets on their way have then arrived, or are lost.
const SETTLE: Duration = Duration::from_millis(300);
/// Most packets that may be skipped, as a share of those that were due.
const MOST_SKIPPED: f64 = 0.05;

/// What to send, and how often to note what is seen.
pub(super) struct Course<'a> {
    /// Name of the part, and which of its trials this is: for the record.
    pub part: &'a str,
    pub repeat: usize,
    pub seconds: f64,
    /// Packets a second, by the time in seconds.
    pub rate: &'a dyn Fn(f64) -> f64,
    /// The rate after that, until all queues are on one core again.
    pub little_pps: f64,
    pub every: Duration,
}

/// Counters at one moment, some time after the beginning.
struct Moment {
    at_s: f64,
    asked_pps: f64,
    sent: u64,
    received: u64,
    ring_full: u64,
    lost_behind: u64,
    times: Vec<cpu::Time>,
    places: Vec<Option<usize>>,
}

/// Results of a course.
pub(super) struct CourseOutcome {
    moments: Vec<Moment>,
    started_unix_s: f64,
    pub sent: u64,
    /// Packets that were due while the generator did not have its core.
    pub skipped: u64,
    pub received: u64,
    /// By name.
    pub lost: Losses,
    pub reordered: u64,
    pub duplicates: u64,
    pub moves: Vec<Move>,
    /// When packets first came by each core.
    pub first_s: BTreeMap<usize, f64>,
}

impl Bed {
    /// Sends and watches. All queues must be on one core before.
    pub fn follow(&mut self, course: &Course<'_>) -> Result<CourseOutcome> {
        self.moves()?;
        let losses = Losses::now(&self.testbed)?;
        let received_before = self.testbed.sink.arrived_in_all()?;
        let started_unix_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        self.begin((course.rate)(0.0))?;
        let started = Instant::now();
        let watched = self.watch(course, started, received_before);
        self.testbed.generator.stop()?;
        let (moments, first_s) = watched?;
        sys::sleep(SETTLE)?;
        self.check()?;
        let flows = self.testbed.sink.flows()?;
        Ok(CourseOutcome {
            moments,
            started_unix_s,
            sent: self.testbed.generator.packets()?,
            skipped: self.testbed.generator.skipped()?,
            received: self.testbed.sink.arrived_in_all()? - received_before,
            lost: Losses::now(&self.testbed)?.since(&losses),
            reordered: flows.iter().map(|flow| u64::from(flow.reordered)).sum(),
            duplicates: flows.iter().map(|flow| u64::from(flow.duplicates)).sum(),
            moves: self.moves()?,
            first_s,
        })
    }

    fn watch(
        &mut self,
        course: &Course<'_>,
        started: Instant,
        received_before: u64,
    ) -> Result<(Vec<Moment>, BTreeMap<usize, f64>)> {
        let (mut moments, mut first_s) = (Vec::new(), BTreeMap::new());
        let mut asked_pps = (course.rate)(0.0);
        let mut by_core = self.testbed.sink.arrived_by_core()?;
        let lost_before = self.lost()?;
        let mut next_tick = started;
        let mut urge_at_s = if self.is_hot { 0.0 } else { f64::INFINITY };
        let longest_s = course.seconds + 4.0 * self.hold.as_secs_f64() + 5.0;
        loop {
            let at_s = started.elapsed().as_secs_f64();
            let pps = if at_s < course.seconds { (course.rate)(at_s) } else { course.little_pps };
            if pps != asked_pps {
                self.set_rate(pps)?;
                asked_pps = pps;
            }
            if at_s >= urge_at_s {
                urge_at_s = if self.urge_parts()? { f64::INFINITY } else { at_s + URGE_EVERY_S };
            }
            let now = self.testbed.sink.arrived_by_core()?;
            for (core, _) in
                now.iter().zip(&by_core).enumerate().filter(|(_, (now, before))| **now >= **before + FORWARDS)
            {
                first_s.entry(core).or_insert(at_s);
            }
            by_core = now;
            if moments.last().is_none_or(|last: &Moment| last.at_s + course.every.as_secs_f64() <= at_s) {
                moments.push(self.moment(started, asked_pps, received_before, lost_before)?);
            }
            if at_s >= course.seconds + AFTER_S && self.packed_on()?.is_some() {
                return Ok((moments, first_s));
            }
            ensure!(
                at_s < longest_s,
                "the second core is not given back; queues are on cores {:?}",
                self.places()?
            );
            next_tick = (next_tick + TICK).max(Instant::now());
            sys::sleep(next_tick.saturating_duration_since(Instant::now()))?;
        }
    }

    fn moment(&self, started: Instant, asked_pps: f64, received: u64, lost: (u64, u64)) -> Result<Moment> {
        let times = self.queues.times()?;
        // Read what was received before what was sent, so that packets on their way do not count as lost.
        let received = self.testbed.sink.arrived_in_all()? - received;
        let (ring_full, lost_behind) = self.lost()?;
        Ok(Moment {
            at_s: started.elapsed().as_secs_f64(),
            asked_pps,
            sent: self.testbed.generator.packets()?,
            received,
            ring_full: ring_full - lost.0,
            lost_behind: lost_behind - lost.1,
            times,
            places: self.places()?,
        })
    }

    /// Packets that found the ring of a port full, and those lost after a redirect in the box.
    fn lost(&self) -> Result<(u64, u64)> {
        let Bed { testbed, .. } = self;
        let hosts = testbed.redirects.lost_in(testbed.hosts.iter())?;
        Ok((hosts, testbed.redirects.lost_in([&testbed.box_namespace].into_iter())?))
    }
}

impl CourseOutcome {
    /// Packets that found the ring of the port they came by full: the router's core was late, or not there.
    pub fn ring_full(&self) -> u64 {
        let full =
            self.lost.0.iter().filter(|(name, _)| name.starts_with("gen.") && name.ends_with(".ring_full"));
        full.map(|(_, packets)| packets).sum()
    }

    /// Was there too little time to send the requested packets?
    pub fn is_noisy(&self) -> bool {
        lacked_time(self.sent, self.skipped, MOST_SKIPPED)
    }

    /// Share of what was sent that did not arrive, wherever it was lost.
    pub fn loss(&self) -> f64 {
        self.sent.saturating_sub(self.received) as f64 / self.sent.max(1) as f64
    }

    /// Cores that packets came by.
    pub fn cores(&self) -> usize {
        self.first_s.len()
    }

    /// What was lost and why, for people.
    pub fn in_words(&self) -> String {
        format!(
            "{} of {} packets lost ({} ring full), {} reordered, {} skipped",
            self.sent.saturating_sub(self.received),
            self.sent,
            self.ring_full(),
            self.reordered,
            self.skipped
        )
    }

    /// When the load of a core was first above this, from `after_s` on: the start of the interval between two notes.
    /// `after_s` if no note shows it.
    pub fn passed(&self, core: usize, high: f64, after_s: f64) -> f64 {
        let is_above = |pair: &&[Moment]| {
            pair[1].at_s > after_s
                && by_core(&pair[0], &pair[1])
                    .get(&core)
                    .is_some_and(|times| load(times, &pair[0], &pair[1]) > high)
        };
        let first = self.moments.windows(2).find(is_above);
        let other_s = self.first_s.iter().filter(|(other, _)| **other != core).map(|(_, at_s)| *at_s);
        let other_s = other_s.fold(f64::INFINITY, f64::min);
        first
            .map(|pair| pair[0].at_s)
            .filter(|at_s| *at_s < other_s)
            .map_or(after_s, |at_s| at_s.max(after_s))
    }

    /// Packets a second that arrived from `from_s` to `to_s`, by the notes, and those that were asked for.
    pub fn carried_pps(&self, from_s: f64, to_s: f64) -> Option<(f64, f64)> {
        let mut within = self.moments.iter().filter(|moment| (from_s..=to_s).contains(&moment.at_s));
        let (first, last) = (within.next()?, within.next_back()?);
        Some(((last.received - first.received) as f64 / (last.at_s - first.at_s), first.asked_pps))
    }

    /// The highest load that a core had in a tenth of a second.
    pub fn highest_load(&self) -> f64 {
        let tenth = |from: &Moment| {
            let later = self.moments.iter().find(|moment| moment.at_s >= from.at_s + 0.1)?;
            by_core(from, later).values().map(|times| load(times, from, later)).reduce(f64::max)
        };
        self.moments.iter().filter_map(tenth).fold(0.0, f64::max)
    }

    /// The most moves of one queue in any time as long as this.
    pub fn moves_within(&self, hold: Duration) -> usize {
        let within = |first: &Move| {
            let of_queue = self.moves.iter().filter(|other| other.port == first.port);
            of_queue.filter(|m| (first.unix_s..first.unix_s + hold.as_secs_f64()).contains(&m.unix_s)).count()
        };
        self.moves.iter().map(within).max().unwrap_or(0)
    }

    /// Values of the whole course, and `more` of its part.
    pub fn sample(&self, course: &Course<'_>, more: Value) -> Value {
        let mut sample = json!({
            "sent": self.sent, "skipped": self.skipped, "received": self.received, "loss": self.loss(),
            "ring_full": self.ring_full(), "lost": self.lost.0,
            "unexplained": self.sent as i64 - self.received as i64 - self.lost.total() as i64,
            "reordered": self.reordered, "duplicates": self.duplicates,
            "moves": self.moves.len(), "cores": self.cores(),
        });
        if let (Some(sample), Value::Object(more)) = (sample.as_object_mut(), more) {
            sample.extend(more);
        }
        json!({"record": "sample", "case": course.part, "subject": "millrace", "repeat": course.repeat, "sample": sample})
    }

    /// What happened when: a line for each interval, one for each core in it, and one for each move.
    pub fn time_line(&self, course: &Course<'_>) -> Vec<Value> {
        let (part, repeat) = (course.part, course.repeat);
        let mut lines = Vec::new();
        for pair in self.moments.windows(2) {
            let [before, now] = pair else { continue };
            let seconds = now.at_s - before.at_s;
            let at_s = rounded(now.at_s, 4);
            let rate = |now: u64, before: u64| rounded((now.saturating_sub(before)) as f64 / seconds, 0);
            let mut cores = by_core(before, now);
            for core in 0..self.core_count() {
                cores.entry(core).or_default();
            }
            let places: BTreeSet<_> = now.places.iter().flatten().collect();
            lines.push(json!({"record": "moment", "part": part, "repeat": repeat, "at_s": at_s, "asked_pps": rounded(now.asked_pps, 0),
                "offered_pps": rate(now.sent, before.sent), "received_pps": rate(now.received, before.received),
                "cores": places.len(), "ring_full": now.ring_full - before.ring_full,
                "lost_behind": now.lost_behind - before.lost_behind}));
            lines.extend(cores.into_iter().map(|(core, times)| {
                json!({"record": "core", "part": part, "repeat": repeat, "at_s": at_s, "core": format!("core {core}"),
                    "load": rounded(load(&times, before, now), 4),
                    "stolen": rounded(share(cpu::stolen_ns(&times), before, now), 4)})
            }));
        }
        lines.extend(self.moves.iter().map(|m| {
            json!({"record": "move", "part": part, "repeat": repeat, "at_s": rounded(m.unix_s - self.started_unix_s, 4),
                "port": m.port, "from": m.from, "to": m.to, "why": m.why})
        }));
        lines
    }

    fn core_count(&self) -> usize {
        let places = self.moments.iter().flat_map(|moment| moment.places.iter().flatten());
        places.max().map_or(0, |core| core + 1).max(2)
    }
}

/// Did the generator skip more than this share of the packets due, for lack of time?
pub(super) fn lacked_time(sent: u64, skipped: u64, most: f64) -> bool {
    skipped as f64 > most * (sent + skipped) as f64
}

/// Work of queues on each core between two moments, in nanoseconds. A queue that was moved counts where it is now.
fn by_core(before: &Moment, now: &Moment) -> BTreeMap<usize, Vec<cpu::Time>> {
    let mut times: BTreeMap<usize, Vec<cpu::Time>> = BTreeMap::new();
    for ((time, earlier), place) in now.times.iter().zip(&before.times).zip(&now.places) {
        times.entry(place.unwrap_or_default()).or_default().push(time.since(*earlier));
    }
    times
}

/// Share of the time between two moments.
fn share(ns: u64, before: &Moment, now: &Moment) -> f64 {
    ns as f64 / 1e9 / (now.at_s - before.at_s)
}

fn load(times: &[cpu::Time], before: &Moment, now: &Moment) -> f64 {
    share(times.iter().map(|time| time.busy_ns).sum(), before, now)
}

fn rounded(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}

/// The values with this name in the samples of a part.
pub(super) fn told<'a>(lines: &'a [Value], part: &'a str, name: &'a str) -> impl Iterator<Item = f64> + 'a {
    let of_part = lines.iter().filter(move |line| line["record"] == "sample" && line["case"] == part);
    of_part.filter_map(move |line| line["sample"][name].as_f64())
}

/// Seconds until a second core forwarded. Fails if none did: such a course says nothing about adding a core.
pub(super) fn second_core(seen: &CourseOutcome, first: usize) -> Result<f64> {
    let other = seen.first_s.iter().find(|(core, _)| **core != first);
    other.map(|(_, at_s)| *at_s).with_context(|| {
        format!(
            "no second core forwarded; moves: {:?}",
            seen.moves.iter().map(|m| &m.why).collect::<Vec<_>>()
        )
    })
}
