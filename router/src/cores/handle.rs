//! The thread that places queues, and what clients are told of it.

use super::{
    Roots, affinity,
    placing::{Ask, Happened, Placing},
    queues::{Control, Told},
    report::{CoreReport, CoresReport, EventReport, QueueReport, WorkloadReport},
    watched::Watched,
    workloads::Workload,
};
use crate::{
    config::{Config, PlacementPolicy},
    daemon::{instance::Instance, kernel::monotonic},
};
use anyhow::{Context, Result};
use logic::cores::{QueueId, roles};
use rustix::thread::{ClockId, clock_nanosleep_absolute};
use std::{
    ffi::CString,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

type Shared = Arc<Mutex<Placing<affinity::Kernel>>>;

/// The placing thread of a daemon. Its period begins anew after it was late: what it missed is not made up for.
pub struct Thread {
    placing: Shared,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    put_back: bool,
}

/// Tells clients; to be cloned.
#[derive(Clone)]
pub struct Handle(Shared);

/// Starts it for the ports of a configuration, in the calling thread's network namespace. With the policy `off` what a daemon
/// before this one has moved is put back.
///
/// # Errors
/// /proc or /sys cannot be read, or no thread be had.
pub fn start(config: &Config, instance: &Instance) -> Result<Thread> {
    let ports = config.ports.iter().map(|port| port.as_str().to_owned()).collect();
    if config.cores.policy == PlacementPolicy::Off {
        clean(instance).iter().for_each(|line| tracing::info!("{line}"));
    }
    let roots = Roots::here().context("opening /sys of this network namespace")?;
    let file = instance.cores_file();
    let placing = Placing::new(roots, affinity::Kernel, ask(), config.cores.clone(), ports, file)
        .context("reading which cores there are")?;
    let placing = Arc::new(Mutex::new(placing));
    let stop = Arc::new(AtomicBool::new(false));
    let thread = {
        let (placing, stop) = (placing.clone(), stop.clone());
        thread::Builder::new().name("cores".into()).spawn(move || run(&placing, &stop))?
    };
    Ok(Thread { placing, stop, thread: Some(thread), put_back: true })
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
    let troubles = super::originals::Originals::read(file).put_back(&roots, &affinity::Kernel);
    let mut done = vec!["queues may run where they might before".to_owned()];
    done.extend(troubles);
    done
}

impl Thread {
    pub fn handle(&self) -> Handle {
        Handle(self.placing.clone())
    }

    /// Ends it, and leaves queues where they are, for the next daemon.
    pub fn leave(mut self) {
        self.put_back = false;
    }
}

impl Drop for Thread {
    /// Queues may then run where they might before.
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that places queues had ended");
        }
        if self.put_back {
            let troubles = lock(&self.placing).end();
            troubles.iter().for_each(|trouble| tracing::warn!("{trouble}"));
        }
    }
}

fn run(placing: &Shared, stop: &AtomicBool) {
    if let Err(error) = go_first(true) {
        tracing::warn!("placing of queues may be late on busy cores: no real-time priority: {error}");
    }
    let mut next = monotonic();
    while !stop.load(Relaxed) {
        let mut locked = lock(placing);
        if locked.is_look_due(monotonic()) {
            // Waits for locks of the kernel, and may be long.
            let _ = go_first(false);
            locked.look(monotonic());
            let _ = go_first(true);
        }
        let now = monotonic();
        let happened = locked.round(now).into_iter();
        let line = |Happened { event, .. }: Happened| {
            format!("queue {} of {}: {}", event.queue.index, locked.name(event.queue.port), event.change())
        };
        let lines: Vec<String> = happened.map(line).collect();
        let period = locked.period();
        drop(locked);
        lines.iter().for_each(|line| tracing::info!("{line}"));
        next = (next + period).max(now);
        let at =
            rustix::thread::Timespec { tv_sec: next.as_secs() as i64, tv_nsec: next.subsec_nanos().into() };
        // A signal ends it early: then a round comes early.
        let _ = clock_nanosleep_absolute(ClockId::Monotonic, &at);
    }
}

/// Before all normal threads, or as one of them: a core that is full is where a round is needed, which takes some ten microseconds
/// every ten milliseconds.
fn go_first(first: bool) -> io::Result<()> {
    let (policy, sched_priority) = if first { (libc::SCHED_FIFO, 1) } else { (libc::SCHED_OTHER, 0) };
    let parameters = libc::sched_param { sched_priority };
    // SAFETY: the kernel only reads the parameters.
    let result = unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn ask() -> Ask {
    Box::new(|device| {
        let name = CString::new(device)?;
        // SAFETY: the name is a C string.
        match unsafe { libc::if_nametoindex(name.as_ptr()) } {
            0 => Err(io::ErrorKind::NotFound.into()),
            ifindex => Told::ask(ifindex, device),
        }
    })
}

fn lock(placing: &Shared) -> MutexGuard<'_, Placing<affinity::Kernel>> {
    placing.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Handle {
    /// As of the last control period.
    pub fn cores(&self) -> CoresReport {
        let placing = lock(&self.0);
        let (wanted, hold) = (&placing.wanted, placing.wanted.hold.0);
        CoresReport {
            policy: wanted.policy.name().into(),
            allowed: wanted.allowed.as_ref().map(|cores| cores.0.iter().copied().collect()),
            high: wanted.high.0,
            low: wanted.low.0,
            hold_s: hold.as_secs_f64(),
            period_ms: placing.period().as_millis() as u64,
            cores: cores(&placing),
            queues: placing.queues.iter().map(|(id, queue)| queue_report(&placing, *id, queue)).collect(),
            workloads: placing.workloads.iter().map(workload).collect(),
            troubles: placing.troubles.iter().cloned().collect(),
        }
    }

    /// Decisions with higher numbers than this, in order; of those, the ones that are still remembered.
    pub fn events(&self, after: u64) -> Vec<EventReport> {
        let placing = lock(&self.0);
        let now_unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = monotonic();
        let unix_s = |at: Duration| now_unix.saturating_sub(now.saturating_sub(at)).as_secs_f64();
        let new = placing.events.iter().filter(|happened| happened.number > after);
        let report = |Happened { number, at, event }: &Happened| EventReport {
            number: *number,
            unix_s: unix_s(*at),
            port: placing.name(event.queue.port).into(),
            queue: event.queue.index,
            from: event.from.clone(),
            to: event.to.clone(),
            why: event.why.to_string(),
        };
        new.map(report).collect()
    }
}

fn cores(placing: &Placing<affinity::Kernel>) -> Vec<CoreReport> {
    let roles = roles(&placing.view, &placing.plan);
    let report = |site: &super::machine::CoreSite| {
        let here = placing.view.queues.iter().filter(|queue| queue.core == site.id);
        let pinned = placing.workloads.iter().filter(|workload| workload.cores.contains(&site.id));
        CoreReport {
            core: site.id,
            node: site.node,
            socket: site.socket,
            physical: site.physical,
            role: roles.get(&site.id).map_or("idle", |role| role.name()).into(),
            may_forward: placing.wanted.allowed.as_ref().is_none_or(|allowed| allowed.0.contains(&site.id)),
            forwarding: here.fold(0.0, |sum, queue| sum + queue.ran),
            other: placing.others.of(site.id),
            workloads: pinned.map(|workload| workload.name.clone()).collect(),
        }
    };
    placing.machine.cores.iter().map(report).collect()
}

fn queue_report(placing: &Placing<affinity::Kernel>, id: QueueId, queue: &Watched) -> QueueReport {
    let (moved_by, why_not) = match queue.source.control {
        Control::Thread { pid } => (Some(format!("thread {pid}")), None),
        Control::Interrupt { irq } => (Some(format!("interrupt {irq}")), None),
        Control::None { why } => (None, Some(why.to_string())),
    };
    QueueReport {
        port: placing.name(id.port).into(),
        queue: id.index,
        core: queue.source.core,
        moved_by,
        why_not,
        ran: queue.load.ran,
        waited: queue.load.waited,
        wakeups_per_s: queue.load.wakeups_per_s,
        is_estimate: queue.is_estimate(),
    }
}

fn workload(workload: &Workload) -> WorkloadReport {
    WorkloadReport {
        id: workload.id,
        name: workload.name.clone(),
        kind: workload.kind.to_string(),
        cores: workload.cores.iter().copied().collect(),
    }
}
