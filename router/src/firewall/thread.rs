//! The thread of fast connections.

use super::{Counts, Orders, RouterRules, WaitForGrace, place::Place};
use crate::{
    base::{clock::monotonic, guard::locked},
    linux::{
        conntrack::{
            ends::Waiting,
            message::Destroyed,
            settings::Settings,
            tracker::{Answer, Tracker},
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
        again::Again,
        kept::{Clock, Due, Kept, Reset, Timeouts},
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
    collections::{BTreeMap, BTreeSet},
    io, iter,
    os::fd::AsFd,
    sync::{Arc, Mutex},
    time::Duration,
};

/// All connections are looked at this often, or less often if a look takes more than a tenth of this time.
const LOOK: Duration = Duration::from_millis(500);
/// The longest time between two looks.
const LONGEST_LOOK: Duration = Duration::from_secs(2);
/// The time between two looks is at least this many times as long as a look, up to [`LONGEST_LOOK`].
const TIMES_A_LOOK: u32 = 10;
/// While there are connections, their lease is extended and settings of conntrack are read this often.
const EXTEND: Duration = Duration::from_millis(500);
/// How long connections stay fast if this thread hangs or ends.
const LEASE: Duration = Duration::from_secs(2);
/// Each router may send its notes once in this time. This bounds what packets can cost.
const NOTES: Duration = Duration::from_millis(15);
/// Notes that cannot be handled in this time wait. Meanwhile their router gets no room for more notes.
const LONGEST_NOTES: Duration = Duration::from_millis(10);
/// The number of connections in one batch of questions to Linux.
const AT_ONCE: usize = 32;
/// Namespaces that failed are tried again this often. While there are no connections, looks are this far apart.
const AGAIN: Duration = Duration::from_secs(5);
/// The longest wait, while no router has connections.
const LONGEST: Duration = Duration::from_secs(60);
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
    counts: &Counts,
) -> Result<()> {
    let maps = Connections::open(maps)?;
    let now = monotonic();
    let mut thread = Thread {
        kept: Kept::new(maps.table(), consent),
        maps,
        grace,
        heart: None,
        routers: BTreeMap::new(),
        first_router: 0,
        late: BTreeMap::new(),
        look_at: now,
        extend_at: now,
        notes_at: now,
        again_at: now + AGAIN,
        proofs_at: now + PROOFS,
    };
    loop {
        let ordered = std::mem::take(&mut *locked(orders));
        if ordered.ended {
            thread.end();
            return Ok(());
        }
        thread.obey(ordered);
        if thread.turn()? {
            *locked(counts) = thread.counts();
        }
        thread.wait(waker)?;
    }
}

/// A router, and conntrack of its namespace.
struct Router {
    rules: RouterRules,
    /// `None`: it could not be opened, or has failed.
    place: Option<Place>,
    /// Its failure is in the log.
    warned: bool,
}

impl Router {
    fn new(rules: RouterRules) -> Router {
        let mut router = Router { rules, place: None, warned: false };
        router.open();
        router
    }

    /// Opens its namespace if it is not open.
    fn open(&mut self) {
        if self.place.is_none() {
            match Place::open(&self.rules.place) {
                Ok(place) => (self.place, self.warned) = (Some(place), false),
                Err(error) => self.fail(&error),
            }
        }
    }

    /// If a timeout has changed, connections stop being fast: Linux may forget them sooner than their rows say.
    fn read_settings(&mut self, kept: &mut Fast) {
        let Some(place) = &mut self.place else { return };
        match place.read_settings() {
            Ok(false) => return,
            Ok(true) => self.settle(kept),
            Err(error) => self.fail(&error),
        }
        kept.drop_connections(self.rules.rules.router);
    }

    /// Sets the timeouts in Linux as if it had seen all packets.
    fn settle(&mut self, kept: &mut Fast) {
        let owed = kept.owed(self.rules.rules.router, monotonic());
        let Some(place) = self.place.as_mut().filter(|_| !owed.is_empty()) else { return };
        if let Err(error) = place.ask(|tracker, _| tracker.refresh(&owed)) {
            self.fail(&error);
        }
    }

    fn fail(&mut self, error: &io::Error) {
        self.place = None;
        let name = &self.rules.rules.name;
        if !std::mem::replace(&mut self.warned, true) {
            tracing::warn!(
                "cannot ask conntrack of router {name}: {error}; its connections stay with Linux; retrying every 5 s"
            );
        }
    }
}

struct Thread {
    kept: Fast,
    maps: Connections,
    grace: WaitForGrace,
    heart: Option<Arc<Heart>>,
    routers: BTreeMap<RouterId, Router>,
    /// The router whose notes come first.
    first_router: RouterId,
    /// Notes that wait, by router.
    late: BTreeMap<RouterId, Vec<ConnectionNote>>,
    look_at: Duration,
    extend_at: Duration,
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
        if let Some(consent) = orders.consent {
            self.routers.values_mut().for_each(|router| router.settle(&mut self.kept));
            self.kept.set_consent(consent);
        }
        if let Some(routers) = orders.routers {
            self.kept.follow(routers.iter().map(|router| router.rules.clone()).collect());
            let mut before = std::mem::take(&mut self.routers);
            for rules in routers {
                let id = rules.rules.router;
                // One that has failed is tried again later.
                let router = match before.remove(&id).filter(|old| old.rules.place == rules.place) {
                    Some(old) => Router { rules, ..old },
                    None => {
                        self.kept.drop_connections(id);
                        Router::new(rules)
                    }
                };
                self.routers.insert(id, router);
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
        let due = match notes {
            None => self.look_at.min(self.extend_at).min(self.notes_at),
            Some(_) if self.kept.has_waiting() || !self.late.is_empty() => now,
            Some(_) if self.routers.is_empty() => now + LONGEST,
            Some(_) => self.look_at.min(self.extend_at),
        };
        let due = due.saturating_sub(now);
        let time = Timespec::try_from(due).context("setting the time to wait for notes of connections")?;
        match poll(&mut ready, Some(&time)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => (),
            Err(error) => return Err(error).context("waiting for notes of connections"),
        }
        waker.clear();
        Ok(())
    }

    fn counts(&self) -> BTreeMap<RouterId, u64> {
        self.routers.keys().map(|id| (*id, self.kept.fast(*id) as u64)).collect()
    }

    /// Returns whether all connections were looked at.
    fn turn(&mut self) -> Result<bool> {
        let now = monotonic();
        if now >= self.proofs_at {
            self.proofs_at = now + PROOFS;
            self.kept.renew_proofs();
        }
        // Ends are known up to here.
        let heard = self.heart.as_ref().map(|heart| heart.jiffies()).transpose()?;
        self.read_ends();
        if now >= self.notes_at {
            let was_idle = self.kept.is_idle();
            let waited = self.kept.has_waiting();
            if self.read_notes()? || waited {
                self.notes_at = now + NOTES;
                if was_idle {
                    // The first connection needs a deadline.
                    self.look_at = now;
                }
            }
            self.maps.begin_again(|router| self.late.contains_key(&router));
            // A connection may have ended since Linux answered.
            self.read_ends();
        }
        if now >= self.again_at {
            self.again_at = now + AGAIN;
            self.routers.values_mut().for_each(Router::open);
        }
        let (looks, extends) = (now >= self.look_at, now >= self.look_at.min(self.extend_at));
        if extends {
            self.read_settings();
        }
        if looks {
            let begun = monotonic();
            self.look()?;
            let pause = (monotonic().saturating_sub(begun) * TIMES_A_LOOK).clamp(LOOK, LONGEST_LOOK);
            self.look_at = now + if self.kept.is_idle() { AGAIN } else { pause };
        }
        if extends {
            self.free_rows()?;
            // If this thread was stopped meanwhile for longer than the lease, it hears of ends before connections are fast.
            if let (Some(heart), Some(heard)) = (&self.heart, heard) {
                heart.extend_connections(heard, LEASE);
            }
            self.extend_at = now + if self.kept.is_idle() { LONGEST } else { EXTEND };
        }
        Ok(looks)
    }

    /// Sets the timeouts in Linux: the rows expire soon, and another daemon does not know them.
    fn end(&mut self) {
        self.read_ends();
        self.routers.values_mut().for_each(|router| router.settle(&mut self.kept));
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
                Ok(Waiting::Nothing) => (),
                // A connection that has ended must not stay fast while the rest is read.
                Ok(Waiting::More | Waiting::Lost) => {
                    router.settle(&mut self.kept);
                    self.kept.drop_connections(*id);
                }
                Err(error) => {
                    router.fail(&error);
                    self.kept.drop_connections(*id);
                }
            }
        }
    }

    /// Returns whether there were any.
    fn read_notes(&mut self) -> Result<bool> {
        let now = monotonic();
        let fresh = self.maps.notes(Duration::ZERO)?;
        let late: Vec<_> = std::mem::take(&mut self.late).into_values().flatten().collect();
        let any = !fresh.is_empty() || !late.is_empty();
        fresh.iter().for_each(|note| self.kept.forget_moved(note));
        // The newest note of a connection says where its packets leave now.
        let newest_first = fresh.into_iter().rev().chain(late).chain(self.kept.ask_again(now));
        let (mut known, mut of_routers) = (BTreeSet::new(), BTreeMap::<RouterId, Vec<_>>::new());
        for note in newest_first {
            if known.insert((note.router, note.protocol, note.tuple)) && self.kept.wants(&note, now) {
                of_routers.entry(note.router).or_default().push(note);
            }
        }
        let Some(heart) = self.heart.clone() else { return Ok(any) };
        for router in self.kept.waiting_routers() {
            of_routers.entry(router).or_default();
        }
        // Routers take turns to be first.
        let later = of_routers.split_off(&self.first_router);
        // Some time is always left for the first one.
        let (end, mut next) = (monotonic() + LONGEST_NOTES, None);
        for (nth, (id, mut notes)) in later.into_iter().chain(of_routers).enumerate() {
            if nth > 0 && monotonic() >= end {
                next.get_or_insert(id);
                if !notes.is_empty() {
                    self.late.insert(id, notes);
                }
                continue;
            }
            let Some(router) = self.routers.get_mut(&id) else { continue };
            router.read_settings(&mut self.kept);
            // Anybody can send packets to the router, so others come first.
            notes.sort_by_key(ConnectionNote::is_local);
            let (kept, late) = (&mut self.kept, &mut self.late);
            let asked = match &mut router.place {
                Some(place) => place.ask(|tracker, settings| {
                    for (n, note) in notes.iter().enumerate() {
                        if n > 0 && monotonic() >= end {
                            late.insert(id, notes[n..].to_vec());
                            break;
                        }
                        // The note before this one may be of its other direction.
                        if !kept.wants(note, now) {
                            continue;
                        }
                        let Some(note) = locate(kept, tracker, note, now)? else { continue };
                        if let Err(why) = promote(kept, &heart, tracker, settings, &note)? {
                            kept.refuse(&note, why, now);
                        }
                    }
                    promote_again(kept, &heart, tracker, id, end)
                }),
                None => {
                    let others = notes.iter().filter(|note| !note.is_local());
                    others.for_each(|note| kept.refuse(note, Refusal::Unasked, now));
                    continue;
                }
            };
            if let Err(error) = asked {
                router.fail(&error);
                self.kept.drop_connections(id);
            }
        }
        self.first_router = next.unwrap_or(self.first_router);
        Ok(any)
    }

    /// Reads the settings of routers that have connections.
    fn read_settings(&mut self) {
        for (id, router) in &mut self.routers {
            if self.kept.count(*id) > 0 {
                router.read_settings(&mut self.kept);
            }
        }
    }

    /// Looks at all connections.
    fn look(&mut self) -> Result<()> {
        let Some(heart) = self.heart.clone() else { return Ok(()) };
        let clock = clock(&heart)?;
        for (id, due) in self.kept.look(clock) {
            let Some(router) = self.routers.get_mut(&id) else { continue };
            let kept = &mut self.kept;
            let told = match &mut router.place {
                Some(place) => place.ask(|tracker, settings| tell(kept, id, &due, tracker, settings, clock)),
                None => continue,
            };
            if let Err(error) = told {
                router.fail(&error);
                self.kept.drop_connections(id);
            }
        }
        Ok(())
    }

    /// Rows of removed connections are free after a grace period.
    fn free_rows(&mut self) -> Result<()> {
        if let Some(epoch) = self.kept.seal() {
            (self.grace)()?;
            self.kept.reuse(epoch);
        }
        Ok(())
    }
}

fn clock(heart: &Heart) -> Result<Clock> {
    let (now, jiffies, hz) = heart.jiffies()?;
    Ok(Clock { now, jiffies, hz })
}

/// The note with its egress; `None`: it is not known (yet).
fn locate(
    kept: &mut Fast,
    tracker: &mut Tracker,
    note: &ConnectionNote,
    now: Duration,
) -> io::Result<Option<ConnectionNote>> {
    if !note.is_local() {
        return Ok(Some(*note));
    }
    let tracked = known(tracker.look(note.protocol, &note.tuple)?).ok();
    Ok(kept.pair(note, tracked.as_ref(), now))
}

/// Asks Linux about a connection, and makes it fast if that is possible. The inner error is why not.
fn promote(
    kept: &mut Fast,
    heart: &Heart,
    tracker: &mut Tracker,
    settings: &Settings,
    note: &ConnectionNote,
) -> io::Result<Result<(), Refusal>> {
    if !kept.has_room(note.router) {
        return Ok(Err(Refusal::Full));
    }
    // The time until Linux forgets it runs from a moment before the answer.
    let clock = clock(heart).map_err(io::Error::other)?;
    let mut tracked = match known(tracker.look(note.protocol, &note.tuple)?) {
        Ok(tracked) => tracked,
        Err(why) => return Ok(Err(why)),
    };
    let admitted = match kept.admit(note, &tracked, clock.now) {
        Ok(admitted) => admitted,
        Err(why) => return Ok(Err(why)),
    };
    if tracker.is_counted(note.protocol, &note.tuple)? {
        return Ok(Err(Refusal::Counted));
    }
    let udp = settings.udp_stream_s;
    let timeouts = match note.protocol {
        TCP => Timeouts {
            usual_s: settings.tcp_established_s,
            least_s: settings.tcp_least_s,
            closing_s: settings.tcp_closing_s,
        },
        _ => Timeouts { usual_s: udp, least_s: udp, closing_s: u32::MAX },
    };
    // The row comes first, so a FIN that passes meanwhile ends it.
    let id = match kept.keep(note, admitted, timeouts, clock.now) {
        Ok(id) => id,
        Err(why) => return Ok(Err(why)),
    };
    if note.protocol == TCP {
        let before = tracked.tuples;
        let after = known(tracker.make_liberal(&note.tuple)?).and_then(|after| match after.is_ready() {
            Ok(()) if after.tuples == before => Ok(after),
            Ok(()) => Err(Refusal::Unknown),
            Err(why) => Err(why),
        });
        tracked = match after {
            Ok(after) => after,
            Err(why) => {
                kept.remove(note.router, id);
                return Ok(Err(why));
            }
        };
    }
    Ok(kept.begin(note, id, &tracked, clock))
}

/// Asks Linux about connections of a router that wait for a new proof, until `end`.
fn promote_again(
    kept: &mut Fast,
    heart: &Heart,
    tracker: &mut Tracker,
    router: RouterId,
    end: Duration,
) -> io::Result<()> {
    let mut owed = Vec::new();
    // A moment before all answers.
    let clock = clock(heart).map_err(io::Error::other)?;
    let mut asked = Ok(());
    while asked.is_ok() && monotonic() < end {
        let part: Vec<_> = iter::from_fn(|| kept.next_waiting(router)).take(AT_ONCE).collect();
        if part.is_empty() {
            break;
        }
        let connections: Vec<_> = part.iter().map(|(_, note)| (note.protocol, note.tuple)).collect();
        asked = tracker.ask_again(&connections).map(|answers| {
            for (n, ((id, note), answer)) in iter::zip(&part, answers).enumerate() {
                // A proof may take long.
                if n > 0 && monotonic() >= end {
                    kept.wait_on(router, *id);
                } else if let Again::Out(timeout) = kept.decide_again(*id, note, known(answer), clock) {
                    owed.extend(timeout);
                }
            }
        });
    }
    let told = tracker.refresh(&owed).map(drop);
    asked.and(told)
}

fn known(answer: Answer) -> Result<Tracked, Refusal> {
    match answer {
        Answer::Tracked(tracked) => Ok(tracked),
        Answer::Unwatched => Err(Refusal::Unwatched),
        Answer::Unreadable => Err(Refusal::Unreadable),
        Answer::Gone => Err(Refusal::Unknown),
    }
}

/// Tells Linux that connections are in use.
fn tell(
    kept: &mut Fast,
    router: RouterId,
    due: &Due,
    tracker: &mut Tracker,
    settings: &Settings,
    clock: Clock,
) -> io::Result<()> {
    for Reset { tuple, may_be_dropped } in &due.reset {
        if !may_be_dropped {
            tracker.close(tuple, u32::MAX, settings.tcp_close_s)?;
        } else if settings.shows_resets() {
            tracker.close(tuple, settings.tcp_close_s, settings.tcp_close_s)?;
        }
    }
    let refresh: Vec<_> = due.refresh.iter().map(|(_, refresh)| *refresh).collect();
    let done = tracker.refresh(&refresh)?;
    for ((id, refresh), done) in due.refresh.iter().zip(done) {
        kept.refreshed(router, *id, refresh.timeout_s, done, clock);
    }
    for (id, tuple) in &due.liberal {
        let answer = known(tracker.make_liberal(tuple)?);
        let done = answer.is_ok_and(|tracked| tracked.is_ready().is_ok());
        kept.made_liberal(router, *id, done);
    }
    Ok(())
}
