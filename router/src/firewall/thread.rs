//! The thread of fast connections.

use super::{Orders, RouterRules, WaitForGrace, place::Place};
use crate::{
    base::clock::monotonic,
    linux::{
        conntrack::{
            ends::Waiting,
            message::Destroyed,
            settings::Settings,
            tracker::{Answer, Refresh, Tracker},
        },
        observer::Waker,
    },
    plane::{
        Heart,
        connections::{ConnectionMaps, Connections, MappedConnections},
    },
};
use anyhow::{Context, Result};
use logic::{
    connections::{
        admission::{Consent, Refusal},
        kept::{Clock, Due, Kept},
        note::ConnectionNote,
        tracked::Tracked,
    },
    firewall::traffic::TCP,
    plan::RouterId,
};
use rustix::{
    event::{PollFd, PollFlags, poll},
    time::Timespec,
};
use std::{
    collections::BTreeMap,
    io,
    os::fd::AsFd,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// All connections are looked at this often.
const LOOK: Duration = Duration::from_millis(500);
/// Without this thread, connections are fast for so long.
const LEASE: Duration = Duration::from_secs(2);
/// Each router may send its notes once in this time. This bounds what packets can cost.
const NOTES: Duration = Duration::from_millis(15);
/// Settings are read, and namespaces that failed are tried, this often.
const AGAIN: Duration = Duration::from_secs(5);
/// Proofs are limited per second.
const PROOFS: Duration = Duration::from_secs(1);

type Fast = Kept<Arc<MappedConnections>>;

/// Runs until the loop ends it.
///
/// # Errors
/// There is no memory or descriptor left, or the kernel cannot wait.
pub(super) fn run(
    maps: &ConnectionMaps,
    consent: Consent,
    grace: WaitForGrace,
    orders: &Mutex<Orders>,
    waker: &Waker,
) -> Result<()> {
    let maps = Connections::open(maps)?;
    let now = monotonic();
    let mut thread = Thread {
        kept: Kept::new(maps.table(), consent),
        maps,
        grace,
        heart: None,
        routers: BTreeMap::new(),
        look_at: now,
        notes_at: now,
        again_at: now + AGAIN,
        proofs_at: now + PROOFS,
    };
    loop {
        let ordered = std::mem::take(&mut *orders.lock().unwrap_or_else(PoisonError::into_inner));
        if ordered.ended {
            return Ok(());
        }
        thread.obey(ordered);
        thread.turn()?;
        thread.wait(waker)?;
    }
}

/// A router, and conntrack of its namespace.
struct Router {
    rules: RouterRules,
    /// `None`: it could not be opened.
    place: Option<Place>,
}

struct Thread {
    kept: Fast,
    maps: Connections,
    grace: WaitForGrace,
    heart: Option<Arc<Heart>>,
    routers: BTreeMap<RouterId, Router>,
    look_at: Duration,
    notes_at: Duration,
    again_at: Duration,
    proofs_at: Duration,
}

impl Thread {
    fn obey(&mut self, orders: Orders) {
        if let Some(heart) = orders.heart {
            self.heart = Some(heart);
            self.look_at = monotonic();
        }
        if let Some(routers) = orders.routers {
            self.kept.follow(routers.iter().map(|router| router.rules.clone()).collect());
            let mut before = std::mem::take(&mut self.routers);
            for rules in routers {
                let old = before.remove(&rules.rules.router).and_then(|router| router.place);
                let place = old.filter(|place| place.key() == rules.place.key()).or_else(|| opened(&rules));
                self.routers.insert(rules.rules.router, Router { rules, place });
            }
        }
        for to in orders.reports {
            // This fails if nobody waits any more.
            let _ = to.try_send(self.kept.views().collect());
        }
    }

    /// Waits until something is due, or somebody calls. Notes that come too early wait, too.
    fn wait(&self, waker: &Waker) -> Result<()> {
        let places = self.routers.values().filter_map(|router| router.place.as_ref());
        let others = places.map(|place| place.ends.as_fd());
        let now = monotonic();
        let notes = (now >= self.notes_at).then(|| self.maps.readable());
        let readable = [waker.as_fd()].into_iter().chain(notes).chain(others);
        let mut ready: Vec<_> = readable.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let due = if notes.is_some() { self.look_at } else { self.look_at.min(self.notes_at) };
        let due = due.saturating_sub(now);
        let time = Timespec::try_from(due).context("a time to wait")?;
        match poll(&mut ready, Some(&time)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => (),
            Err(error) => return Err(error).context("waiting for notes of connections"),
        }
        waker.clear();
        Ok(())
    }

    fn turn(&mut self) -> Result<()> {
        let now = monotonic();
        if now >= self.proofs_at {
            self.proofs_at = now + PROOFS;
            self.kept.renew_proofs();
        }
        self.read_ends();
        if now >= self.notes_at {
            if self.read_notes()? {
                self.notes_at = now + NOTES;
            }
            self.maps.begin_again();
            // A connection may have ended since Linux answered.
            self.read_ends();
        }
        if now >= self.again_at {
            self.again_at = now + AGAIN;
            self.look_at_settings();
        }
        if now >= self.look_at {
            self.look_at = now + LOOK;
            self.look()?;
        }
        Ok(())
    }

    /// Drops connections that Linux has forgotten.
    fn read_ends(&mut self) {
        for (id, router) in &mut self.routers {
            let Some(place) = &mut router.place else { continue };
            let kept = &mut self.kept;
            let read = place.ends.destroyed(|Destroyed { protocol, tuples, .. }| {
                kept.destroyed(*id, protocol, &tuples);
            });
            match read {
                Ok(Waiting::Nothing | Waiting::More) => (),
                Ok(Waiting::Lost) => self.kept.drop_connections(*id),
                Err(error) => {
                    failed(&router.rules, &error);
                    router.place = None;
                    self.kept.drop_connections(*id);
                }
            }
        }
    }

    /// Returns whether there were any.
    fn read_notes(&mut self) -> Result<bool> {
        let now = monotonic();
        let notes = self.maps.notes(Duration::ZERO)?;
        let any = !notes.is_empty();
        let mut of_routers: BTreeMap<RouterId, Vec<ConnectionNote>> = BTreeMap::new();
        for note in notes.into_iter().chain(self.kept.ask_again(now)) {
            self.kept.forget_moved(&note);
            let notes = of_routers.entry(note.router).or_default();
            if !notes.contains(&note) && self.kept.wants(&note, now) {
                notes.push(note);
            }
        }
        let Some(heart) = self.heart.clone() else { return Ok(any) };
        for (id, notes) in of_routers.into_iter().filter(|(_, notes)| !notes.is_empty()) {
            let Some(router) = self.routers.get_mut(&id) else { continue };
            let kept = &mut self.kept;
            let asked = match &mut router.place {
                Some(place) => place.ask(|tracker, settings| {
                    for note in &notes {
                        // The note before this one may be of its other direction.
                        if !kept.wants(note, now) {
                            continue;
                        }
                        if let Err(why) = promote(kept, &heart, tracker, settings, note)? {
                            kept.refuse(note, why, now);
                        }
                    }
                    Ok(())
                }),
                None => {
                    notes.iter().for_each(|note| kept.refuse(note, Refusal::Unasked, now));
                    continue;
                }
            };
            if let Err(error) = asked {
                failed(&router.rules, &error);
                router.place = None;
                self.kept.drop_connections(id);
            }
        }
        Ok(any)
    }

    fn look_at_settings(&mut self) {
        for (id, router) in &mut self.routers {
            match &mut router.place {
                None => router.place = opened(&router.rules),
                Some(place) => match place.read_settings() {
                    Ok(()) if place.settings.accounting => self.kept.drop_connections(*id),
                    Ok(()) => (),
                    Err(error) => {
                        failed(&router.rules, &error);
                        router.place = None;
                        self.kept.drop_connections(*id);
                    }
                },
            }
        }
    }

    /// Looks at all connections, and confirms that somebody does.
    fn look(&mut self) -> Result<()> {
        let Some(heart) = self.heart.clone() else { return Ok(()) };
        let clock = clock(&heart)?;
        for (id, due) in self.kept.look(clock) {
            let Some(router) = self.routers.get_mut(&id) else { continue };
            let kept = &mut self.kept;
            let told = match &mut router.place {
                Some(place) => place.ask(|tracker, _| tell(kept, id, &due, tracker, clock)),
                None => continue,
            };
            if let Err(error) = told {
                failed(&router.rules, &error);
                router.place = None;
                self.kept.drop_connections(id);
            }
        }
        heart.extend_connections(LEASE)?;
        let epoch = self.kept.seal();
        (self.grace)()?;
        self.kept.reuse(epoch);
        Ok(())
    }
}

fn opened(rules: &RouterRules) -> Option<Place> {
    Place::open(&rules.place).inspect_err(|error| failed(rules, error)).ok()
}

fn failed(rules: &RouterRules, error: &io::Error) {
    tracing::warn!(
        "connections of router {} are not fast: conntrack does not answer: {error}",
        rules.rules.name
    );
}

fn clock(heart: &Heart) -> Result<Clock> {
    let (now, jiffies, hz) = heart.jiffies()?;
    Ok(Clock { now, jiffies, hz })
}

/// Asks Linux about a connection, and makes it fast if that is possible. The inner error is why not.
fn promote(
    kept: &mut Fast,
    heart: &Heart,
    tracker: &mut Tracker,
    settings: &Settings,
    note: &ConnectionNote,
) -> io::Result<Result<(), Refusal>> {
    if settings.accounting {
        return Ok(Err(Refusal::Counted));
    }
    // The time until Linux forgets it runs from a moment before the answer.
    let clock = clock(heart).map_err(io::Error::other)?;
    let mut tracked = match known(tracker.look(note.protocol, &note.tuple)?) {
        Ok(tracked) => tracked,
        Err(why) => return Ok(Err(why)),
    };
    let ways = match kept.admit(note, &tracked) {
        Ok(ways) => ways,
        Err(why) => return Ok(Err(why)),
    };
    let mut timeout_s = settings.udp_stream_s;
    if note.protocol == TCP {
        timeout_s = settings.tcp_established_s;
        let before = tracked.tuples;
        tracked = match known(tracker.make_liberal(&note.tuple)?) {
            Ok(tracked) => tracked,
            Err(why) => return Ok(Err(why)),
        };
        // It may have ended, or be another one, since the first answer.
        if let Err(why) = tracked.is_ready() {
            return Ok(Err(why));
        }
        if tracked.tuples != before {
            return Ok(Err(Refusal::Unknown));
        }
    }
    Ok(kept.keep(note, ways, &tracked, timeout_s, clock))
}

fn known(answer: Answer) -> Result<Tracked, Refusal> {
    match answer {
        Answer::Tracked(tracked) => Ok(tracked),
        Answer::Unwatched => Err(Refusal::Unwatched),
        Answer::Unreadable | Answer::Gone => Err(Refusal::Unknown),
    }
}

/// Tells Linux that connections are in use.
fn tell(kept: &mut Fast, router: RouterId, due: &Due, tracker: &mut Tracker, clock: Clock) -> io::Result<()> {
    let refresh: Vec<_> = due
        .refresh
        .iter()
        .map(|(_, protocol, tuple, timeout_s)| Refresh {
            protocol: *protocol,
            tuple: *tuple,
            timeout_s: *timeout_s,
        })
        .collect();
    let done = tracker.refresh(&refresh)?;
    for ((id, ..), done) in due.refresh.iter().zip(done) {
        kept.refreshed(router, *id, done, clock);
    }
    for (id, tuple) in &due.liberal {
        let done = known(tracker.make_liberal(tuple)?).is_ok_and(|tracked| tracked.is_ready().is_ok());
        kept.made_liberal(router, *id, done);
    }
    Ok(())
}
