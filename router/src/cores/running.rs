//! The two threads: one that places queues in each control period, before all others, and one that does what may take long.
//!
//! The second starts the first, looks for what there is, lets transmission follow, writes the log, and puts queues back at the end,
//! whatever that is: told to, or one of the two has failed. Then it is said so, and forwarding goes on where it was before.

use super::{
    Roots,
    affinity::{self, Scheduling},
    drain::{Drains, Look},
    exchange::Exchange,
    handle::Handle,
    look::{Ask, CoresSnapshot, Looker},
    notices::noticed,
    originals::{Originals, System},
    placing::{PERIOD, Placing},
    polled::{Deferring, PolledPorts},
    queues::NetdevQueues,
    shares::Sharing,
    splitting::Splitter,
    spreads::Spreader,
};
use crate::{
    base::{clock::monotonic, conditions::Conditions, instance::Instance, priority::set_policy},
    config::{Config, PlacementPolicy, PollingMode},
    linux::spreading::Spreading,
    plane::{Polls, SharesInCharge, Slept, TransmitRings},
};
use anyhow::{Context, Result};
use rustix::thread::{ClockId, Timespec, clock_nanosleep_absolute};
use std::{
    collections::BTreeSet,
    ffi::CString,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

/// What was missed is not looked for more often than this.
const LEAST: Duration = Duration::from_millis(100);
/// How often clients are told anew.
const PUBLISH: Duration = Duration::from_millis(100);
/// A worker that has packets polls so long after a run, and one that has none spins so long, microseconds.
const BESIDE_A_RUN_US: u32 = 50;
/// Above all normal threads, and NAPI threads of the lowest real-time priority: a core that is full is where a round is needed, and
/// takes some ten microseconds of ten milliseconds. What is to be held up ([`super::drain`]) must be below.
pub(super) const PRIORITY: libc::c_int = 2;

/// The threads of a daemon; when dropped, they end, and queues may run where they might before.
pub struct Threads {
    handle: Handle,
    leave: Arc<AtomicBool>,
    looking: Option<JoinHandle<()>>,
}

/// Starts placing for the ports of a configuration, and sharing of full cores by what is in charge of them, in the calling
/// thread's network namespace. With the policy `off` what a daemon before this one has moved is put back.
///
/// # Errors
/// /proc or /sys cannot be read (with `off` that is told to clients only), or no thread be had.
pub fn start(
    config: &Config,
    instance: &Instance,
    shares: SharesInCharge,
    splitter: Splitter,
    spreading: Option<Spreading>,
    polled: PolledPorts,
    conditions: Conditions,
) -> Result<Threads> {
    if config.cores.policy == PlacementPolicy::Off {
        clean(instance).iter().for_each(|line| tracing::info!("{line}"));
    }
    let names: Arc<[String]> = config.ports.iter().map(|port| port.as_str().to_owned()).collect();
    let handle = Handle {
        exchange: Arc::default(),
        wanted: Arc::new(config.cores.clone()),
        experimental: config.experimental,
        conditions,
        names,
    };
    let shares = config.shares.enforce.then_some(shares);
    match prepare(instance, &handle, shares) {
        Ok((mut looker, placing)) => {
            looker.splitter = splitter;
            looker.deferring = deferring(config, polled);
            if let Some(spreading) = spreading.filter(|_| config.uses_rss()) {
                looker.spreader = Spreader::new(spreading);
            }
            Ok(run(looker, placing, handle)?)
        }
        // Who only looks can do without.
        Err(error) if handle.is_off() => {
            handle.exchange.fail(format!(
                "nothing can be told of cores and queues, full cores are not shared, local delivery does not follow, wake-ups are not \
                 held back, and cores wake up as late as ever: \
                 {error:#}"
            ));
            handle.follow_conditions();
            Ok(Threads { handle, leave: Arc::default(), looking: None })
        }
        Err(error) => Err(error.context("placing queues (policy = \"off\" in [cores] does without)")),
    }
}

/// Where workers poll: as often as they may be at one path, and look after their rings, and then some.
fn deferring(config: &Config, polled: PolledPorts) -> Option<Deferring> {
    let is_wanted = config.experimental.polling == PollingMode::Busy && !config.paths.is_empty();
    is_wanted.then(|| Deferring::new(polled, config.experimental.longest_run.0 + BESIDE_A_RUN_US))
}

fn prepare(
    instance: &Instance,
    handle: &Handle,
    shares: Option<SharesInCharge>,
) -> Result<(Looker<affinity::Kernel>, Placing<affinity::Kernel>)> {
    let roots = || Roots::here().context("opening /sys of this network namespace (CAP_SYS_ADMIN, fsopen)");
    let (kernel, Handle { wanted, experimental, names, .. }) = (affinity::Kernel, handle);
    let file = instance.cores_file();
    let looker = Looker::new(roots()?, kernel, Box::new(Netlink), wanted.clone(), *experimental, names, file)
        .context("reading which cores there are")?;
    let mut placing =
        Placing::new(roots()?, kernel, wanted, names.clone()).context("reading times of cores")?;
    placing.count(Polls::start());
    if wanted.policy != PlacementPolicy::Off {
        placing.drains = Some(Drains::new(rings()));
    }
    if let Some(shares) = shares {
        placing.sharing = Sharing::new(shares);
    }
    Ok((looker, placing))
}

/// Where TX rings can be seen, if the kernel lets us.
fn rings() -> Option<Box<dyn Look>> {
    let not_seen = |error: &anyhow::Error| {
        tracing::warn!(
            "what waits in TX rings of veth and tap is not seen, and waited for blindly: {error:#}"
        );
    };
    TransmitRings::open().inspect_err(not_seen).ok().map(|rings| Box::new(rings) as Box<dyn Look>)
}

/// Puts back what a daemon that is gone has changed; says what it did.
pub fn clean(instance: &Instance) -> Vec<String> {
    let file = instance.cores_file();
    if !file.exists() {
        return Vec::new();
    }
    let Ok(roots) = Roots::here() else {
        return vec!["queues stay where they are: /sys cannot be read".into()];
    };
    let troubles = Originals::read(file).put_back(&roots, &affinity::Kernel);
    let mut done = vec!["queues may run where they might before".to_owned()];
    done.extend(troubles);
    done
}

impl Threads {
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Ends them, and leaves queues where they are, for the next daemon.
    pub fn leave(self) {
        self.leave.store(true, Relaxed);
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.handle.exchange.end();
        if let Some(looking) = self.looking.take() {
            looking.thread().unpark();
            if looking.join().is_err() {
                tracing::error!("queues stay where they are: putting them back has failed");
            }
        }
    }
}

/// Begins.
fn run<A: System + Clone + Send + 'static>(
    mut looker: Looker<A>,
    placing: Placing<A>,
    handle: Handle,
) -> io::Result<Threads> {
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

/// Starts the thread that places queues.
fn begin<A: System + Send + 'static>(mut placing: Placing<A>, handle: &Handle) -> io::Result<JoinHandle<()>> {
    let (exchange, looking) = (handle.exchange.clone(), thread::current());
    let is_patient = handle.is_off() && !placing.sharing.is_enforced();
    let started = thread::Builder::new().name("placing".into()).spawn(move || {
        let _ending = Ending(&exchange, &looking);
        if !is_patient && let Err(error) = set_policy(libc::SCHED_FIFO, PRIORITY) {
            tracing::warn!(
                "placing of queues may be late on busy cores, and moves may reorder flows: no real-time priority: {error}"
            );
            placing.drains = None;
        }
        if let Some(Err(error)) = placing.drains.as_mut().map(Drains::begin) {
            tracing::warn!("moves may reorder flows: {error}");
            placing.drains = None;
        }
        place(placing, &exchange, &looking);
    });
    if started.is_err() {
        handle.exchange.end();
    }
    started
}

/// However the thread that places ends, the other one learns of it at once.
struct Ending<'a>(&'a Exchange, &'a thread::Thread);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.end();
        self.1.unpark();
    }
}

/// Places queues until the end. A period begins anew after it was late: what was missed is not made up for.
fn place<A: Scheduling>(mut placing: Placing<A>, exchange: &Exchange, looking: &thread::Thread) {
    let (mut next, mut told) = (monotonic(), None::<Duration>);
    while !exchange.is_ending() {
        if let Some(found) = exchange.take_found() {
            placing.take(found);
        }
        let now = monotonic();
        placing.round(now);
        tell(&mut placing, now, &mut told, exchange, looking);
        // A period that would be shorter says little of loads.
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
        // A signal ends it early: then a round comes early.
        let _ = clock_nanosleep_absolute(ClockId::Monotonic, &at);
    }
}

/// Tells the other thread, and through it clients, what came of a round.
fn tell<A: Scheduling>(
    placing: &mut Placing<A>,
    now: Duration,
    told: &mut Option<Duration>,
    exchange: &Exchange,
    looking: &thread::Thread,
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
        looking.unpark();
    }
}

/// Looks, and does what follows from what was placed, until the end.
fn look<A: System + Clone>(looker: &mut Looker<A>, handle: &Handle) {
    let exchange = &handle.exchange;
    let mut before = None::<Arc<CoresSnapshot>>;
    let (mut looked, mut due, mut missed, mut logged) = (Duration::ZERO, Duration::ZERO, false, 0);
    while !exchange.is_ending() {
        missed |= exchange.take_look_wanted();
        let now = monotonic();
        if now >= due || missed && now >= looked + LEAST {
            let found = Arc::new(looker.look(now, missed));
            exchange.tell(noticed(before.as_deref(), &found));
            exchange.tell(looker.spreader.take_news(now));
            exchange.found(found.clone());
            before = Some(found);
            (looked, due, missed) = (now, now + looker.every, false);
            handle.follow_conditions();
        }
        if let Some(splits) = exchange.take_splits() {
            looker.splitter.set(splits);
            // At once, as packets are lost meanwhile. The look tells of the threads of other cores, and of what could not be done.
            looker.split(monotonic());
            due = Duration::ZERO;
        }
        if let Some(cores) = exchange.take_awake() {
            looker.keep_awake(&cores).iter().for_each(|trouble| tracing::warn!("{trouble}"));
            // Clients are told by the look.
            due = Duration::ZERO;
        }
        for (at, resize) in exchange.take_resizes() {
            exchange.tell(Vec::from_iter(looker.resize(at, &resize)));
            // Queues that are not in use go with others.
            due = Duration::ZERO;
        }
        for (queue, core) in exchange.take_moved() {
            looker.transmit_from(queue, core);
        }
        if let Some(snapshot) = exchange.snapshot() {
            looker.serve(&snapshot.view, &snapshot.plan);
        }
        for happened in exchange.events(logged) {
            tracing::info!("{}", handle.line(&happened));
            logged = happened.number;
        }
        let next = if missed { looked + LEAST } else { due };
        thread::park_timeout(next.saturating_sub(monotonic()));
    }
}

/// Everything is as it was, unless it shall be left to the next daemon.
fn finish<A: System + Clone>(
    looker: &mut Looker<A>,
    placing: io::Result<JoinHandle<()>>,
    looking_failed: bool,
    leave: bool,
    handle: &Handle,
) {
    let exchange = &handle.exchange;
    exchange.end();
    let placing_failed = match placing {
        Ok(placing) => placing.join().is_err(),
        Err(error) => {
            exchange.fail(format!("queues are not placed: no thread can be had: {error}"));
            false
        }
    };
    let failed = looking_failed || placing_failed;
    if failed {
        let who = if placing_failed { "placing queues" } else { "looking for queues" };
        exchange.fail(format!(
            "{who} has failed (a fault of Millrace, see the log): queues may run where they might before, and are placed no more \
             until the next start"
        ));
    }
    // Nobody would let them sleep again.
    looker.keep_awake(&BTreeSet::new()).into_iter().for_each(|trouble| exchange.fail(trouble));
    // Workers end with the daemon, whoever comes next.
    looker.end_deferring().into_iter().for_each(|trouble| exchange.fail(trouble));
    if failed || !leave {
        // Nobody would notice any more that a core has too much.
        looker.splitter.end();
        looker.put_back().into_iter().for_each(|trouble| exchange.fail(trouble));
    }
    handle.follow_conditions();
}

/// The kernel, asked about the calling thread's network namespace.
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
