//! Plays a case in two beds side by side: plain Linux, and Linux with Millrace.

use crate::{
    bed::{Bed, FrameCounts, Namespace, differences},
    case::{Case, Step, hex},
    daemon::Daemon,
    sides::Sent,
};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    thread,
    time::{Duration, Instant},
};

/// How long to wait for differences to vanish.
#[derive(Clone, Copy)]
pub struct Patience {
    /// Waits before each look at the frames.
    looks: &'static [Duration],
    /// The longest time a change may take to show in reports.
    reports: Duration,
}

pub const PATIENT: Patience = Patience {
    looks: &[Duration::ZERO, Duration::from_millis(400), Duration::from_millis(1500)],
    reports: Duration::from_secs(20),
};
/// For making a case smaller, where a wrong result costs little.
pub const HASTY: Patience =
    Patience { looks: &[Duration::ZERO, Duration::from_millis(300)], reports: Duration::from_secs(2) };
/// Frames sent before and after each command in the middle of traffic.
const MIDDLE: usize = 32;
/// Commands that Linux completes after they return: IPv6 begins to use an address by a workqueue (addrconf_dad_work()). If
/// the next command came before that in one bed only, their states would differ for good.
const WORKED_OFF_LATER: [&str; 3] = ["ip addr", "ip link", "sysctl"];
const LATER: Duration = Duration::from_millis(15);
/// The longest time that a busy machine may take for this.
const LONGEST: Duration = Duration::from_millis(600);
/// Differing frames that are printed.
const PRINTED: usize = 6;

/// The kind of difference that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Other frames came out.
    Frames,
    /// A command was refused in one bed only.
    Refusal,
    /// A change does not show, or the fast table does not agree with Linux.
    Report,
    /// The daemon did not start, or did not stop.
    Life,
}

#[derive(Clone, Debug)]
pub struct Failure {
    /// The step at which it was found.
    pub at: usize,
    pub kind: Kind,
    pub words: String,
    /// Frames that came out of one bed more often than of the other.
    pub frames: Vec<Vec<u8>>,
}

/// A case played to its end.
#[derive(Debug, Default)]
pub struct Played {
    /// Frames that came out of plain Linux in the first comparison.
    pub out: usize,
    /// Packets that the fast path forwarded.
    pub fast: u64,
    /// The reasons why others did not take the fast path.
    pub reasons: String,
    /// Commands that Linux refused.
    pub refused: BTreeSet<String>,
}

struct Play<'a> {
    linux: Bed,
    millrace: Bed,
    daemon: Option<Daemon>,
    frames: &'a [Sent],
    played: Played,
    commands: usize,
    /// A command since the last comparison was refused, so its change need not show.
    refused: bool,
    patience: Patience,
    differing: Vec<Vec<u8>>,
}

/// Plays a case to its end, or to its first difference.
pub fn play(case: &Case, patience: Patience) -> Result<Played, Failure> {
    let home = Namespace::current();
    let result = in_beds(case, patience);
    home.enter();
    result
}

fn in_beds(case: &Case, patience: Patience) -> Result<Played, Failure> {
    let mut play = Play {
        linux: Bed::build(),
        millrace: Bed::build(),
        daemon: None,
        frames: &case.frames,
        played: Played::default(),
        commands: 0,
        refused: false,
        patience,
        differing: Vec::new(),
    };
    let start = case.steps.iter().position(|step| *step == Step::Start).unwrap_or(0);
    play.set_up(&case.steps[..start]);
    for (at, step) in case.steps.iter().enumerate().skip(start) {
        if let Err((kind, words)) = play.step(step) {
            let status = play.daemon.as_ref().and_then(Daemon::status).unwrap_or_default();
            let words = format!("{words}\nnot by the fast path: {}", reasons(&status));
            return Err(Failure { at, kind, words, frames: play.differing });
        }
    }
    let at = case.steps.len().saturating_sub(1);
    play.end().map_err(|(kind, words)| Failure { at, kind, words, frames: Vec::new() })
}

type Found<T = ()> = Result<T, (Kind, String)>;

impl Play<'_> {
    /// Runs the commands before Millrace starts. Nothing has come in yet.
    fn set_up(&mut self, steps: &[Step]) {
        for bed in [&self.linux, &self.millrace] {
            let refused = bed.run_all(steps).err().unwrap_or_default();
            self.played.refused.extend(refused.lines().map(str::to_owned));
        }
    }

    fn step(&mut self, step: &Step) -> Found {
        let patience = self.patience.reports;
        let report = |result: Result<(), String>| result.map_err(|words| (Kind::Report, words));
        match (step, &self.daemon) {
            (Step::Host(line), _) => self.command(false, line),
            (Step::Tenant(line), _) => self.command(true, line),
            (Step::Start, _) => {
                self.millrace.enter();
                self.daemon = Some(Daemon::start(&self.millrace).map_err(|words| (Kind::Life, words))?);
                Ok(())
            }
            (Step::Shows(_), _) if self.refused => Ok(()),
            (Step::Shows(text), Some(daemon)) => report(daemon.wait_for(text, true, patience)),
            (Step::Hides(text), Some(daemon)) => report(daemon.wait_for(text, false, patience)),
            (Step::Compare, Some(daemon)) => {
                report(daemon.verify(patience))?;
                self.refused = false;
                self.compare()
            }
            (_, None) => Ok(()),
        }
    }

    /// Runs a command in both beds. Once Millrace runs, this happens in the middle of traffic, and these
    /// packets are not compared.
    fn command(&mut self, tenant: bool, line: &str) -> Found {
        self.traffic();
        let [linux, millrace] = [&self.linux, &self.millrace].map(|bed| bed.run(tenant, line));
        self.traffic();
        if WORKED_OFF_LATER.iter().any(|start| line.starts_with(start)) {
            self.wait_for_addresses(tenant);
        }
        match (linux, millrace) {
            (Ok(()), Ok(())) => {}
            (Err(words), Err(_)) => {
                self.refused = true;
                self.played.refused.insert(words);
            }
            (Ok(()), Err(words)) => return Err((Kind::Refusal, format!("only with Millrace: {words}"))),
            (Err(words), Ok(())) => return Err((Kind::Refusal, format!("only without Millrace: {words}"))),
        }
        Ok(())
    }

    /// Waits until the kernel uses the same addresses in both beds. If it never does, a comparison finds the
    /// difference.
    fn wait_for_addresses(&self, tenant: bool) {
        let end = Instant::now() + LONGEST;
        thread::sleep(LATER);
        while self.linux.anycast_addresses(tenant) != self.millrace.anycast_addresses(tenant)
            && Instant::now() < end
        {
            thread::sleep(LATER);
        }
    }

    fn traffic(&mut self) {
        if self.daemon.is_none() || self.frames.is_empty() {
            return;
        }
        let bursts = self.frames.chunks(MIDDLE).collect::<Vec<_>>();
        let burst = bursts[self.commands % bursts.len()];
        self.commands += 1;
        self.linux.send(burst);
        self.millrace.send(burst);
    }

    /// Sends all frames through both beds. Linux does not always agree with itself, as it limits some answers
    /// by the clock. A count differs only if no look at Millrace shows a count that some look at Linux has
    /// shown.
    fn compare(&mut self) -> Found {
        for bed in [&self.linux, &self.millrace] {
            bed.forget_routes();
        }
        let mut looks: Vec<[FrameCounts; 2]> = Vec::new();
        let mut differing = BTreeSet::new();
        for wait in self.patience.looks {
            thread::sleep(*wait);
            looks.push([&self.linux, &self.millrace].map(|bed| bed.observe(self.frames)));
            let [linux, millrace] = looks.last().unwrap();
            if self.played.out == 0 {
                self.played.out = linux.values().sum();
            }
            let now = differences(linux, millrace);
            differing = if looks.len() == 1 { now } else { &differing & &now };
            if differing.is_empty() {
                return Ok(());
            }
        }
        differing.retain(|key| {
            looks.iter().all(|[_, fast]| looks.iter().all(|[linux, _]| linux.get(key) != fast.get(key)))
        });
        if differing.is_empty() {
            return Ok(());
        }
        self.differing = differing.iter().map(|key| key.1.clone()).collect();
        Err((Kind::Frames, describe(&differing, &looks) + &self.counted()))
    }

    /// The kernel's counters that differ between the beds during one more look. They hint at reasons.
    fn counted(&self) -> String {
        let [linux, millrace] = [&self.linux, &self.millrace].map(|bed| {
            let before = bed.counters();
            bed.observe(self.frames);
            let after = bed.counters();
            let more = after.into_iter().map(|(name, count)| {
                let before = before.get(&name).copied().unwrap_or(0);
                (name, count.wrapping_sub(before))
            });
            more.collect::<BTreeMap<String, u64>>()
        });
        let differing = linux.iter().filter(|(name, count)| millrace.get(*name) != Some(count));
        let words = differing.map(|(name, count)| {
            format!("\n{name}: Linux {count}, Millrace {}", millrace.get(name).copied().unwrap_or(0))
        });
        words.collect()
    }

    fn end(mut self) -> Found<Played> {
        let Some(daemon) = self.daemon.take() else { return Ok(self.played) };
        let status = daemon.stop().map_err(|words| (Kind::Life, words))?;
        self.played.fast = status["packets"]["forwarded"].as_u64().unwrap_or(0);
        self.played.reasons = reasons(&status);
        Ok(self.played)
    }
}

/// Describes the frames that differ, and how often each look showed them.
fn describe(differing: &BTreeSet<(usize, Vec<u8>)>, looks: &[[FrameCounts; 2]]) -> String {
    let mut words = format!("{} differences", differing.len());
    for key in differing.iter().take(PRINTED) {
        let [linux, millrace] = [0, 1].map(|bed| {
            let counts = looks.iter().map(|look| look[bed].get(key).copied().unwrap_or(0).to_string());
            counts.collect::<Vec<_>>().join(", ")
        });
        let (port, frame) = (key.0, hex(&key.1));
        write!(words, "\nport {port}: Linux {linux} times, Millrace {millrace} times: {frame}").unwrap();
    }
    words
}

/// Packets that the fast path did not forward, by reason.
fn reasons(status: &Value) -> String {
    let list = status["reasons"].as_array().cloned().unwrap_or_default();
    let reasons = list.iter().map(|r| format!("{} {}", r["reason"], r["packets"]));
    reasons.collect::<Vec<_>>().join(", ")
}
