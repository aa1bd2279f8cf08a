//! The two threads of placing. `placing` places queues in each control period and has a real-time priority. `cores` does
//! everything that may take long.
//!
//! `cores` starts `placing`, looks for cores, queues and workloads, lets TX queues follow, and writes the log. At the end
//! it restores everything: when the daemon stops, or when one of the two threads fails. After a failure it reports that,
//! and forwarding goes on where queues were originally.

use super::{
    Roots,
    affinity::{self, Scheduling},
    drain::{Drains, Look},
    exchange::{Exchange, News},
    handle::{CoresHandle, Handle},
    knob::System,
    knobs::Knobs,
    look::{CoresSnapshot, Looker},
    moderation::Moderation,
    newcomers::Newcomers,
    notices::noticed,
    placing::{PERIOD, Placing},
    polled::PolledPorts,
    ports::Ask,
    queues::NetdevQueues,
    shares::Sharing,
    splitting::Splitter,
    spreads::Spreader,
};
use crate::{
    base::{clock::monotonic, conditions::Conditions, instance::Instance, priority::set_policy},
    config::{
        Config, PlacementPolicy, PollingMode,
        ports::{self, NumberedPorts},
    },
    linux::{observer::Waker, spreading::Spreading},
    plane::{FlowMaps, Polls, SharesInCharge, Slept, SplitSeat, TransmitRings},
};
use anyhow::{Context, Result};
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    thread::{ClockId, Timespec, clock_nanosleep_absolute},
    time::clock_gettime,
};
use std::{
    ffi::CString,
    io,
    os::fd::{AsFd, BorrowedFd},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

/// The shortest time between two looks when something was missed.
const LEAST: Duration = Duration::from_millis(100);
/// The time between two looks at queues that are being joined.
const TIDY: Duration = Duration::from_millis(20);
/// The shortest time between two looks when control groups have changed.
const HURRY: Duration = Duration::from_millis(20);
/// How often clients get a new snapshot.
const PUBLISH: Duration = Duration::from_millis(100);
/// A worker polls at most this long after the end of a run, and spins this long without packets; microseconds.
const BESIDE_A_RUN_US: u32 = 50;
/// The priority of `placing`: above all normal threads, and above NAPI threads of the lowest real-time priority. A full
/// core needs a round most, and a round takes some ten microseconds of ten milliseconds. Threads that are to be held up
/// ([`super::drain`]) must have a lower priority.
pub(super) const PRIORITY: libc::c_int = 2;

/// What the threads need besides the configuration.
pub struct Means {
    pub instance: Instance,
    /// The shares that full cores enforce, if configured.
    pub shares: SharesInCharge,
    /// Where the tables for split queues are.
    pub seat: SplitSeat,
    /// The maps of flow rules, once there are some.
    pub rules: Arc<OnceLock<Arc<FlowMaps>>>,
    pub spreading: Option<Spreading>,
    pub polled: PolledPorts,
    pub conditions: Conditions,
}

impl Means {
    fn splitter(&self) -> Splitter {
        Splitter::new(self.seat.clone(), self.rules.clone())
    }
}

/// The placing of queues in a daemon, by threads that are started again when the configuration changes.
pub struct Cores {
    means: Means,
    handle: CoresHandle,
    /// `None`: they are being started again.
    threads: Option<Threads>,
}

impl Cores {
    /// Starts placing for the ports of a configuration, in the calling thread's network namespace. With the policy `off`,
    /// everything that an earlier daemon has changed is restored first.
    ///
    /// # Errors
    /// /proc or /sys cannot be read (with `off` this is only a condition), or no thread can be started.
    pub fn start(config: &Config, means: Means) -> Result<Cores> {
        let ports = ports::first(&config.ports);
        let threads = start(config, &ports, &means, Exchange::new())?;
        Ok(Cores { handle: CoresHandle::new(threads.handle()), means, threads: Some(threads) })
    }

    /// For clients, also after [`Cores::follow`].
    pub fn handle(&self) -> CoresHandle {
        self.handle.clone()
    }

    /// Follows another configuration. Queues stay on their cores until the new threads place them. If no threads can be
    /// started, queues return to their original cores, and a condition reports it. This takes about 100 ms, or up to a
    /// second with split queues.
    pub fn follow(&mut self, config: &Config, ports: &NumberedPorts) {
        let Some(threads) = self.threads.take() else { return };
        let before = threads.handle();
        threads.leave();
        // The new threads know nothing of the queues that were split.
        self.means.splitter().end();
        let (after, again) = (Exchange::after(&before.exchange), Exchange::after(&before.exchange));
        let threads = start(config, ports, &self.means, after).unwrap_or_else(|error| {
            clean(&self.means.instance).iter().for_each(|line| tracing::info!("{line}"));
            let handle = handle(config, ports, &self.means, again);
            handle.exchange.fail(format!("queues are not placed: {error:#}; restart the daemon"));
            handle.follow_conditions();
            Threads::none(handle)
        });
        self.handle.set(threads.handle());
        self.threads = Some(threads);
    }

    /// Ends the threads, and leaves queues where they are, for the next daemon.
    pub fn leave(mut self) {
        self.threads.take().into_iter().for_each(Threads::leave);
    }
}

/// The threads of a configuration. When this is dropped, they end and restore everything.
pub struct Threads {
    handle: Handle,
    leave: Arc<AtomicBool>,
    looking: Option<JoinHandle<()>>,
}

/// The names of ports, by number. An empty name: no port has this number.
fn names(ports: &NumberedPorts) -> Arc<[String]> {
    let last = ports.last_key_value().map_or(0, |(id, _)| usize::from(*id) + 1);
    let mut names = vec![String::new(); last];
    ports.iter().for_each(|(id, name)| names[usize::from(*id)] = name.to_string());
    names.into()
}

fn handle(config: &Config, ports: &NumberedPorts, means: &Means, exchange: Exchange) -> Handle {
    Handle {
        exchange: Arc::new(exchange),
        wanted: Arc::new(config.cores.clone()),
        experimental: config.experimental,
        conditions: means.conditions.clone(),
        names: names(ports),
    }
}

fn start(config: &Config, ports: &NumberedPorts, means: &Means, exchange: Exchange) -> Result<Threads> {
    if config.cores.policy == PlacementPolicy::Off {
        clean(&means.instance).iter().for_each(|line| tracing::info!("{line}"));
    }
    let handle = handle(config, ports, means, exchange);
    let shares = config.shares.enforce.then(|| means.shares.clone());
    match prepare(&means.instance, &handle, shares) {
        Ok((mut looker, placing)) => {
            looker.splitter = means.splitter();
            let mut placing = placing;
            placing.seat = means.seat.clone();
            looker.ports.moderation =
                looker.ports.moderation.or_else(|| deferring(config, means.polled.clone()));
            if let Some(spreading) = means.spreading.clone().filter(|_| config.uses_rss()) {
                looker.ports.spreader = Spreader::new(spreading);
            }
            Ok(run(looker, placing, handle)?)
        }
        // With `off`, a daemon can run without these threads.
        Err(error) if handle.is_off() => {
            handle.exchange.fail(format!(
                "cores and queues are not reported, and these keys have no effect: shares.enforce, cores.resume_latency, \
                 experimental.local and experimental.moderation: {error:#}"
            ));
            handle.follow_conditions();
            Ok(Threads::none(handle))
        }
        Err(error) => Err(error.context("placing queues (policy = \"off\" in [cores] starts without it)")),
    }
}

/// Keeps interrupts off on ports that workers poll. A worker may serve one path for `longest_run`, and then needs some time
/// for its rings.
fn deferring(config: &Config, polled: PolledPorts) -> Option<Moderation> {
    let is_wanted = config.experimental.polling == PollingMode::Busy;
    is_wanted.then(|| Moderation::while_polled(polled, config.experimental.longest_run.0 + BESIDE_A_RUN_US))
}

fn prepare(
    instance: &Instance,
    handle: &Handle,
    shares: Option<SharesInCharge>,
) -> Result<(Looker<affinity::Kernel>, Placing<affinity::Kernel>)> {
    let roots =
        || Roots::here().context("opening the /sys of this network namespace (needs CAP_SYS_ADMIN, fsopen)");
    let (kernel, Handle { wanted, experimental, names, .. }) = (affinity::Kernel, handle);
    let file = instance.cores_file();
    let looker = Looker::new(roots()?, kernel, Box::new(Netlink), wanted.clone(), *experimental, names, file)
        .context("reading which cores there are")?;
    let mut placing =
        Placing::new(roots()?, kernel, wanted, names.clone()).context("reading times of cores")?;
    match Polls::start() {
        Ok(polls) => placing.count(polls),
        Err(error) => handle.exchange.fail(format!("packets of queues are not counted: {error:#}")),
    }
    if wanted.policy != PlacementPolicy::Off {
        placing.drains = Some(Drains::new(rings()));
    }
    if let Some(shares) = shares {
        placing.sharing = Sharing::new(shares);
    }
    Ok((looker, placing))
}

/// The view of TX rings; `None`: the kernel does not allow it.
fn rings() -> Option<Box<dyn Look>> {
    let not_seen = |error: &anyhow::Error| {
        tracing::warn!(
            "the TX rings of veth and tap cannot be seen, so moves wait for a fixed time instead: {error:#}"
        );
    };
    TransmitRings::open().inspect_err(not_seen).ok().map(|rings| Box::new(rings) as Box<dyn Look>)
}

/// Restores everything that an earlier daemon has changed. Returns what was done and what failed, as sentences.
pub fn clean(instance: &Instance) -> Vec<String> {
    let file = instance.cores_file();
    if !file.exists() {
        return Vec::new();
    }
    let Ok(roots) = Roots::here() else {
        return vec!["queues stay where they are: /sys cannot be read".into()];
    };
    let conditions = Knobs::open(file, roots, affinity::Kernel).put_back();
    let mut done = vec!["queues may run on their original cores again".to_owned()];
    done.extend(conditions);
    done
}

impl Threads {
    /// No threads, and a handle that says why.
    fn none(handle: Handle) -> Threads {
        Threads { handle, leave: Arc::default(), looking: None }
    }

    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Ends the threads, and leaves queues where they are, for the next daemon.
    pub fn leave(self) {
        self.leave.store(true, Relaxed);
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.handle.exchange.end();
        if let Some(looking) = self.looking.take()
            && looking.join().is_err()
        {
            tracing::error!("queues stay where they are: restoring them failed");
        }
    }
}

/// Starts the two threads.
fn run<A: System + Clone>(mut looker: Looker<A>, placing: Placing<A>, handle: Handle) -> io::Result<Threads> {
    let leave = Arc::new(AtomicBool::new(false));
    let looking = {
        let (handle, leave) = (handle.clone(), leave.clone());
        thread::Builder::new().name("cores".into()).spawn(move || {
            let placing = begin(placing, &handle);
            let failed = catch_unwind(AssertUnwindSafe(|| look(&mut looker, &handle))).is_err();
            finish(&mut looker, placing, failed, leave.load(Relaxed), &handle);
        })?
    };
    Ok(Threads { handle, leave, looking: Some(looking) })
}

/// Starts the thread that places queues. It ends with the news that it could not hand over.
fn begin<A: System>(mut placing: Placing<A>, handle: &Handle) -> io::Result<JoinHandle<News>> {
    let exchange = handle.exchange.clone();
    let is_patient = handle.is_off() && !placing.sharing.is_enforced();
    let started = thread::Builder::new().name("placing".into()).spawn(move || {
        let _ending = Ending(&exchange);
        if !is_patient && let Err(error) = set_policy(libc::SCHED_FIFO, PRIORITY) {
            tracing::warn!(
                "no real-time priority, so queues may be placed late on busy cores, and moves may reorder flows: {error}"
            );
            placing.drains = None;
        }
        if let Some(Err(error)) = placing.drains.as_mut().map(Drains::begin) {
            tracing::warn!("moves may reorder flows, because they do not wait for earlier packets: {error}");
            placing.drains = None;
        }
        place(placing, &exchange)
    });
    if started.is_err() {
        handle.exchange.end();
    }
    started
}

/// Ends the other thread at once when the thread that places ends, also by a panic.
struct Ending<'a>(&'a Exchange);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Places queues until the end. After a late round a full period follows; missed rounds are not made up for.
fn place<A: Scheduling>(mut placing: Placing<A>, exchange: &Exchange) -> News {
    let (mut next, mut told) = (monotonic(), None::<Duration>);
    while !exchange.is_ending() {
        if let Some(found) = exchange.take_found() {
            placing.take(found);
        }
        let now = monotonic();
        placing.round(now);
        tell(&mut placing, now, &mut told, exchange);
        // A shorter period would say little about loads.
        let period = match placing.sleep(exchange.waker.as_ref()) {
            Slept::Long => continue,
            Slept::No => placing.period(),
            Slept::Woken => {
                next = monotonic();
                placing.rest(next);
                PERIOD
            }
        };
        let ended = monotonic();
        next = if next + period > ended { next + period } else { ended + period };
        let at = Timespec { tv_sec: next.as_secs() as i64, tv_nsec: next.subsec_nanos().into() };
        // A signal may end the sleep early. Then the round comes early, which is harmless.
        let _ = clock_nanosleep_absolute(ClockId::Monotonic, &at);
    }
    placing.news
}

/// Hands the results of a round to the other thread and to clients.
fn tell<A: Scheduling>(
    placing: &mut Placing<A>,
    now: Duration,
    told: &mut Option<Duration>,
    exchange: &Exchange,
) {
    let is_due = placing.has_news() || told.is_none_or(|told| now.saturating_sub(told) >= PUBLISH);
    let snapshot = if is_due { placing.snapshot(now) } else { None };
    if snapshot.is_some() {
        *told = Some(now);
    }
    let mut wake = exchange.publish(snapshot.map(Arc::new), &mut placing.news);
    if placing.take_look_wanted() {
        exchange.want_look();
        wake = true;
    }
    if wake {
        exchange.wake_looker();
    }
}

/// Looks, and applies what the other thread has decided, until the end.
fn look<A: System + Clone>(looker: &mut Looker<A>, handle: &Handle) {
    let exchange = &handle.exchange;
    let (mut before, mut newcomers) = (None::<Arc<CoresSnapshot>>, Newcomers::default());
    let (mut looked, mut due, mut missed) = (Duration::ZERO, Duration::ZERO, false);
    let mut tidied = Duration::ZERO;
    // Whether control groups have changed since the last look, and when a change last woke this thread.
    let (mut hurried, mut asked) = (false, Duration::ZERO);
    // No earlier look follows because of them.
    let mut rested = Duration::ZERO;
    // Earlier threads have logged the events that are there now.
    let mut logged = exchange.last_number();
    while !exchange.is_ending() {
        missed |= exchange.take_look_wanted();
        let now = monotonic();
        if now >= due || missed && now >= looked + LEAST || hurried && now >= rested {
            let spent = cpu_time();
            let found = Arc::new(looker.look(now, missed));
            exchange.tell(noticed(before.as_deref(), &found));
            exchange.tell(newcomers.follow(&found));
            exchange.tell(looker.ports.spreader.take_news(now));
            exchange.found(found.clone());
            before = Some(found);
            (looked, due, missed, hurried) = (now, now + looker.every, false, false);
            // A long look rests longer, so that nobody keeps this thread busy with changes.
            rested = monotonic() + HURRY.max(9 * cpu_time().saturating_sub(spent));
            handle.follow_conditions();
        }
        let News { moved, splits, spilled, help, awake, resizes, .. } = exchange.take_news();
        if let Some(help) = help {
            looker.splitter.help(help);
            // The next look reports failures.
            looker.prepare(monotonic());
        }
        if looker.splitter.is_tidying() && now >= tidied + TIDY {
            looker.split(monotonic());
            tidied = now;
        }
        if let Some(splits) = splits {
            looker.splitter.set(splits, spilled);
            // This happens at once, because packets are lost until then. The next look finds the threads of other cores,
            // and reports failures.
            looker.split(monotonic());
            due = Duration::ZERO;
        }
        if let Some(cores) = awake {
            looker.keep_awake(&cores).iter().for_each(|condition| tracing::warn!("{condition}"));
            // The next look reports this to clients.
            due = Duration::ZERO;
        }
        for (at, resize) in resizes {
            exchange.tell(Vec::from_iter(looker.ports.resize(at, &resize)));
            // The next look finds the queues that are not in use, which go with others.
            due = Duration::ZERO;
        }
        moved.into_iter().for_each(|(queue, core)| looker.moved(queue, core));
        if let Some(snapshot) = exchange.snapshot() {
            looker.serve(&snapshot.view, &snapshot.plan);
        }
        for happened in exchange.events(logged) {
            tracing::info!("{}", handle.line(&happened));
            logged = happened.number;
        }
        let next = if missed { looked + LEAST } else { due };
        let next = if looker.splitter.is_tidying() { next.min(tidied + TIDY) } else { next };
        let next = if hurried { next.min(rested) } else { next };
        // Programs may change groups all the time, so at most one change per `HURRY` wakes this thread.
        let asks = monotonic() >= asked + HURRY;
        let next = if asks { next } else { next.min(asked + HURRY) };
        if wait(exchange.looker.as_ref(), looker.group_changes().filter(|_| asks), next) {
            asked = monotonic();
            hurried |= looker.have_groups_changed();
        }
    }
}

/// The CPU time of this thread.
fn cpu_time() -> Duration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(tv_sec as u64, tv_nsec as u32)
}

/// Sleeps until the waker is used, `changes` is readable, or `until` is over. Returns whether `changes` is readable.
fn wait(waker: Option<&Waker>, changes: Option<BorrowedFd<'_>>, until: Duration) -> bool {
    let longest = until.saturating_sub(monotonic());
    // Without a waker, nobody ends the sleep.
    let longest = if waker.is_some() { longest } else { longest.min(LEAST) };
    let longest = Timespec { tv_sec: longest.as_secs() as i64, tv_nsec: longest.subsec_nanos().into() };
    let fds = [waker.map(AsFd::as_fd), changes];
    let mut fds: Vec<PollFd<'_>> =
        fds.into_iter().flatten().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    // A signal may end this early, which is harmless.
    if poll(&mut fds, Some(&longest)).is_err_and(|error| error != Errno::INTR) {
        thread::sleep(LEAST);
    }
    let is_changed = changes.is_some() && fds.last().is_some_and(|fd| fd.revents().contains(PollFlags::IN));
    waker.into_iter().for_each(Waker::clear);
    is_changed
}

/// Restores everything, unless queues are to be left to the next daemon (`leave`).
fn finish<A: System + Clone>(
    looker: &mut Looker<A>,
    placing: io::Result<JoinHandle<News>>,
    looking_failed: bool,
    leave: bool,
    handle: &Handle,
) {
    let exchange = &handle.exchange;
    exchange.end();
    let last = match placing {
        Ok(placing) => placing.join().ok(),
        Err(error) => {
            exchange.fail(format!("queues are not placed: no thread can be started: {error}"));
            Some(News::default())
        }
    };
    let placing_failed = last.is_none();
    let failed = looking_failed || placing_failed;
    if failed {
        // Some moves may be unknown.
        looker.knobs.forget_places();
        let who = if placing_failed { "placing queues" } else { "looking for queues" };
        exchange.fail(format!(
            "{who} has failed, which is a bug in Millrace (see the log): queues may run on their original cores again, and \
             are not placed until the next start; restart the daemon and report this"
        ));
    } else {
        let moved = exchange.take_news().moved.into_iter().chain(last.unwrap_or_default().moved);
        moved.for_each(|(queue, core)| looker.moved(queue, core));
    }
    looker.end().into_iter().for_each(|condition| exchange.fail(condition));
    if failed || !leave {
        // Nobody would notice if a core that shares a queue had too much.
        looker.splitter.end();
        looker.put_back().into_iter().for_each(|condition| exchange.fail(condition));
    }
    handle.follow_conditions();
}

/// Asks the kernel about devices in the calling thread's network namespace.
struct Netlink;

impl Ask for Netlink {
    fn ifindex(&self, device: &str) -> io::Result<u32> {
        let name = CString::new(device)?;
        // SAFETY: the name is a C string.
        match unsafe { libc::if_nametoindex(name.as_ptr()) } {
            0 => Err(match io::Error::last_os_error() {
                error if error.raw_os_error() == Some(libc::ENODEV) => io::ErrorKind::NotFound.into(),
                error => error,
            }),
            ifindex => Ok(ifindex),
        }
    }

    fn told(&self, ifindex: u32, device: &str) -> io::Result<NetdevQueues> {
        NetdevQueues::ask(ifindex, device)
    }
}

#[cfg(test)]
mod tests;
