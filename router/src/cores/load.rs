//! The loads of queues and cores, as fractions of a control period, from counters of the kernel.
//!
//! Counters only grow, and are read through descriptors that stay open, so a period allocates nothing. Reading a thread
//! takes 0.8 us, and /proc/stat and /proc/softirqs together 15 us (two cores, not optimised, Linux 6.18). The kernel
//! counts the time of NAPI threads, and of threads of CPU maps, to the nanosecond. No file reports the time of softirqs:
//! see [`Reading::Estimate`]. Other work on a core is the time that idling and forwarding leave (Q8, with the kernel's
//! idle time instead of a spinner's).

use super::{CoreId, Roots, is_gone, unless_gone};
use std::{
    collections::BTreeMap, fs::File, io, os::unix::fs::FileExt, str::SplitAsciiWhitespace, time::Duration,
};

/// The shortest time over which /proc/stat, which counts in steps of 10 ms, is of use.
pub const WINDOW: Duration = Duration::from_millis(200);
/// `USER_HZ` is 100 on all architectures that this runs on.
const TICK_NS: u64 = 10_000_000;
/// Enough for three numbers of 20 digits.
const SCHEDSTAT_BYTES: usize = 64;
/// The largest buffer for a file. A longer file is not the expected one.
const MOST_BYTES: usize = 16 << 20;

/// The times of a queue, since its first reading or earlier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    pub ran_ns: u64,
    /// The time that it could have run but something else ran.
    pub waited_ns: u64,
    /// How many times it began to run. For softirqs: how many times softirqs received packets on its core.
    pub wakeups: u64,
}

/// The result of reading a queue's times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// The times of a thread. A present run is counted at the next tick (4 ms at HZ = 250), a wait when it ends.
    Exact(Times),
    /// The time of softirqs on its core, counted by ticks that found one, and shared evenly among the queues there. It
    /// includes softirqs of all kinds and of other devices, so it is an upper bound. It is of use over at least
    /// [`WINDOW`]. The waiting time is unknown, and 0.
    Estimate(Times),
    /// The thread has ended: its port is gone, or another thread polls the queue now.
    Gone,
}

/// Reads the times of a queue.
pub trait QueueTime {
    /// The times since some moment. `cores`: the times of cores as last read.
    fn read(&mut self, cores: &[CoreTime]) -> io::Result<Reading>;
}

/// The times of a thread, from /proc/PID/schedstat (`Documentation/scheduler/sched-stats.rst`).
#[derive(Debug)]
pub struct ThreadTime(File);

impl ThreadTime {
    /// Opens the file of a thread; `Ok(None)`: there is no such thread. An open file stays that of this thread, even if
    /// another thread gets its number later.
    pub fn open(roots: &Roots, pid: u32) -> io::Result<Option<ThreadTime>> {
        Ok(unless_gone(File::open(roots.proc(format!("{pid}/schedstat"))))?.map(ThreadTime))
    }
}

impl QueueTime for ThreadTime {
    fn read(&mut self, _: &[CoreTime]) -> io::Result<Reading> {
        let mut buffer = [0; SCHEDSTAT_BYTES];
        let length = match self.0.read_at(&mut buffer, 0) {
            Err(error) if is_gone(&error) => return Ok(Reading::Gone),
            length => length?,
        };
        let text = str::from_utf8(&buffer[..length]).unwrap_or_default();
        let mut numbers = text.split_ascii_whitespace();
        match [(); 3].map(|()| next(&mut numbers)) {
            [Some(ran_ns), Some(waited_ns), Some(wakeups)] => {
                Ok(Reading::Exact(Times { ran_ns, waited_ns, wakeups }))
            }
            _ => Err(io::Error::other(format!("schedstat is not three numbers: {text:?}"))),
        }
    }
}

/// The estimated times of a queue whose interrupt fires on a core. [`SoftirqShare::is_on`] must be called when it moves.
#[derive(Clone, Debug)]
pub struct SoftirqShare {
    core: CoreId,
    /// The number of queues on the core, this one included.
    queues: u16,
    last: Option<CoreTime>,
    times: Times,
}

impl SoftirqShare {
    pub fn new(core: CoreId, queues: u16) -> SoftirqShare {
        SoftirqShare { core, queues, last: None, times: Times::default() }
    }

    /// Records that it is on this core from now on, one of `queues` there. `cores`: the times of cores as last read.
    pub fn is_on(&mut self, core: CoreId, queues: u16, cores: &[CoreTime]) {
        if core != self.core {
            self.last = cores.iter().find(|time| time.id == core).copied();
        }
        (self.core, self.queues) = (core, queues);
    }
}

impl QueueTime for SoftirqShare {
    fn read(&mut self, cores: &[CoreTime]) -> io::Result<Reading> {
        let now = cores.iter().find(|core| core.id == self.core).copied();
        if let Some((now, last)) = now.zip(self.last).filter(|(now, last)| now.id == last.id) {
            let wakeups = now.net_rx.saturating_sub(last.net_rx);
            // Without NET_RX, all softirq time was for other work.
            if wakeups > 0 {
                let ran_ns = now.softirq_ns.saturating_sub(last.softirq_ns);
                self.times.ran_ns += ran_ns / u64::from(self.queues.max(1));
                self.times.wakeups += wakeups;
            }
        }
        self.last = now;
        Ok(Reading::Estimate(self.times))
    }
}

/// The times of a core, since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreTime {
    pub id: CoreId,
    /// Includes waiting for disks.
    pub idle_ns: u64,
    pub softirq_ns: u64,
    /// How many times softirqs received packets.
    pub net_rx: u64,
}

/// Reads [`CoreTime`]s from /proc/stat and /proc/softirqs.
#[derive(Debug)]
pub struct CoreTimes {
    stat: File,
    softirqs: File,
    buffer: Vec<u8>,
    cores: Vec<CoreTime>,
}

impl CoreTimes {
    pub fn open(roots: &Roots) -> io::Result<CoreTimes> {
        let open = |name| File::open(roots.proc(name));
        let (stat, softirqs) = (open("stat")?, open("softirqs")?);
        Ok(CoreTimes { stat, softirqs, buffer: vec![0; 16 << 10], cores: Vec::new() })
    }

    /// The times as last read.
    pub fn last(&self) -> &[CoreTime] {
        &self.cores
    }

    /// Reads the times of all online cores, ascending.
    pub fn read(&mut self) -> io::Result<&[CoreTime]> {
        // The rest of the file is long on large machines, and not needed.
        let text = read_until(&self.stat, &mut self.buffer, "intr")?;
        self.cores.clear();
        self.cores.extend(text.lines().filter_map(core_time));
        let text = read_until(&self.softirqs, &mut self.buffer, "BLOCK:")?;
        let mut counts = text.lines().map(|line| line.split_ascii_whitespace());
        // Only cores that are online have a column.
        let columns = counts.next().into_iter().flatten().map(|name| name.strip_prefix("CPU")?.parse().ok());
        let of_row = counts.find_map(|mut row| (row.next() == Some("NET_RX:")).then_some(row));
        for (id, count) in columns.zip(of_row.into_iter().flatten()) {
            if let Some(core) = self.cores.iter_mut().find(|core| Some(core.id) == id) {
                core.net_rx = count.parse().unwrap_or(0);
            }
        }
        Ok(&self.cores)
    }
}

/// The text of a file before `end`, or all of it if `end` does not occur.
fn read_until<'a>(file: &File, buffer: &'a mut Vec<u8>, end: &str) -> io::Result<&'a str> {
    loop {
        let length = file.read_at(buffer, 0)?;
        let at = buffer[..length].windows(end.len()).position(|window| window == end.as_bytes());
        if at.is_some() || length < buffer.len() || length >= MOST_BYTES {
            return str::from_utf8(&buffer[..at.unwrap_or(length)]).map_err(io::Error::other);
        }
        let twice = 2 * buffer.len();
        buffer.resize(twice, 0);
    }
}

/// Parses a line "cpu3 ..." (proc_stat(5)): user, nice, system, idle, iowait, irq, softirq.
fn core_time(line: &str) -> Option<CoreTime> {
    let mut fields = line.strip_prefix("cpu")?.split_ascii_whitespace();
    let id = fields.next().filter(|_| !line.starts_with("cpu "))?.parse().ok()?;
    let mut ticks = fields.skip(3);
    let mut ns = || Some(ticks.next()?.parse::<u64>().ok()?.saturating_mul(TICK_NS));
    let idle_ns = ns()?.saturating_add(ns()?);
    let _interrupts = ns()?;
    Some(CoreTime { id, idle_ns, softirq_ns: ns()?, net_rx: 0 })
}

fn next(numbers: &mut SplitAsciiWhitespace<'_>) -> Option<u64> {
    numbers.next()?.parse().ok()
}

/// The load of a queue in one control period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// A fraction of the period.
    pub ran: f64,
    /// A fraction of the period.
    pub waited: f64,
    pub wakeups_per_s: f64,
}

/// Computes [`Load`]s from the [`Times`] of one queue.
///
/// The kernel counts some time late, so a period can have more than its length. The excess is carried into the next
/// period, up to the length of a period. So a thread that has its core to itself has a load of 1, instead of 0.8 and 1.2
/// by turns.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    last: Option<(Duration, Times)>,
    ran_ns: u64,
    waited_ns: u64,
}

impl Meter {
    /// The load since the last call; `None` at the first call, or if no time has passed.
    pub fn load(&mut self, now: Duration, times: Times) -> Option<Load> {
        let (before, last) = self.last.replace((now, times))?;
        let period_ns = u64::try_from(now.saturating_sub(before).as_nanos()).ok().filter(|ns| *ns > 0)?;
        let fraction = |carried: &mut u64, ns: u64| {
            let all = carried.saturating_add(ns);
            let fits = all.min(period_ns);
            *carried = (all - fits).min(period_ns);
            fits as f64 / period_ns as f64
        };
        Some(Load {
            ran: fraction(&mut self.ran_ns, times.ran_ns.saturating_sub(last.ran_ns)),
            waited: fraction(&mut self.waited_ns, times.waited_ns.saturating_sub(last.waited_ns)),
            wakeups_per_s: times.wakeups.saturating_sub(last.wakeups) as f64 * 1e9 / period_ns as f64,
        })
    }
}

/// The time of each core that is neither idle nor forwarding, averaged over [`WINDOW`] or more.
#[derive(Clone, Debug, Default)]
pub struct Others {
    since: Option<Duration>,
    /// The times idle and forwarding, nanoseconds, at the beginning of the window.
    before: BTreeMap<CoreId, (u64, u64)>,
    other: BTreeMap<CoreId, f64>,
}

impl Others {
    /// Whether [`Others::update`] should be called.
    pub fn is_due(&self, now: Duration) -> bool {
        self.since.is_none_or(|since| now.saturating_sub(since) >= WINDOW)
    }

    /// Ends a window and begins the next. `forwarding_ns`: the time that queues ran since some moment, by the core that they
    /// ran on; cores without queues may be left out.
    pub fn update(&mut self, now: Duration, cores: &[CoreTime], forwarding_ns: &BTreeMap<CoreId, u64>) {
        let window_ns =
            self.since.map(|since| now.saturating_sub(since).as_nanos() as f64).filter(|ns| *ns > 0.0);
        let forwarding = |core| forwarding_ns.get(&core).copied().unwrap_or(0);
        let now_ns = |core: &CoreTime| (core.id, (core.idle_ns, forwarding(core.id)));
        let after: BTreeMap<CoreId, (u64, u64)> = cores.iter().map(now_ns).collect();
        let other = |(core, now): (&CoreId, &(u64, u64))| {
            let (window_ns, before) = window_ns.zip(self.before.get(core))?;
            // Idle time can go back a little (iowait, proc_stat(5)).
            let taken_ns = now.0.saturating_sub(before.0) + now.1.saturating_sub(before.1);
            Some((*core, (1.0 - taken_ns as f64 / window_ns).clamp(0.0, 1.0)))
        };
        self.other = after.iter().filter_map(other).collect();
        (self.before, self.since) = (after, Some(now));
    }

    /// The fraction of the core's time that other work took; `None`: not known yet, or the core is offline.
    pub fn of(&self, core: CoreId) -> Option<f64> {
        self.other.get(&core).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tree::Tree, *};

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    fn times(ran_ms: u64, waited_ms: u64, wakeups: u64) -> Times {
        Times { ran_ns: ran_ms * 1_000_000, waited_ns: waited_ms * 1_000_000, wakeups }
    }

    #[test]
    fn a_thread_is_read_again_and_again_until_it_is_gone() {
        let tree = Tree::new();
        assert!(ThreadTime::open(&tree.roots(), 7).unwrap().is_none());
        tree.write("proc/7/schedstat", "1234567 89 10\n");
        let mut thread = ThreadTime::open(&tree.roots(), 7).unwrap().unwrap();
        let exact = |ran_ns, waited_ns, wakeups| Reading::Exact(Times { ran_ns, waited_ns, wakeups });
        assert_eq!(thread.read(&[]).unwrap(), exact(1234567, 89, 10));
        tree.write("proc/7/schedstat", "18446744073709551615 18446744073709551615 18446744073709551615\n");
        assert_eq!(thread.read(&[]).unwrap(), exact(u64::MAX, u64::MAX, u64::MAX));
        tree.write("proc/7/schedstat", "1 2\n");
        assert!(thread.read(&[]).is_err());
    }

    #[test]
    fn the_end_of_a_process_is_noticed() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let roots = Roots::at("/proc", "/sys");
        let mut thread = ThreadTime::open(&roots, child.id()).unwrap().unwrap();
        assert!(matches!(thread.read(&[]).unwrap(), Reading::Exact(_)));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(thread.read(&[]).unwrap(), Reading::Gone);
    }

    #[test]
    fn times_of_cores_are_read() {
        let tree = Tree::new();
        let long = "0 ".repeat(20_000);
        let cores = "cpu0 1 2 3 40 5 6 7 8 9 10\ncpu12 0 0 0 1 0 0 2 0 0 0\n";
        tree.write("proc/stat", &format!("cpu  9 9 9 9 9 9 9 9 9 9\n{cores}intr {long}\nctxt 7\n"));
        let softirqs = "                    CPU0       CPU12      \n  NET_TX:  1 2\n   NET_RX:         77         88\n   BLOCK: 3 4\n";
        tree.write("proc/softirqs", softirqs);
        let mut times = CoreTimes::open(&tree.roots()).unwrap();
        let core = |id, idle, softirq, net_rx| CoreTime {
            id,
            idle_ns: idle * TICK_NS,
            softirq_ns: softirq * TICK_NS,
            net_rx,
        };
        assert_eq!(times.read().unwrap(), [core(0, 45, 7, 77), core(12, 1, 2, 88)]);
        tree.write("proc/stat", "cpu0 1 2\nintr 1\n");
        assert_eq!(times.read().unwrap(), []);
        tree.write("proc/stat", &format!("cpu  {long}\ncpu3 0 0 0 1 0 0 2\n"));
        assert_eq!(times.read().unwrap(), [core(3, 1, 2, 0)], "a buffer that had to grow");
    }

    #[test]
    fn loads_are_fractions_of_the_period() {
        let mut meter = Meter::default();
        assert_eq!(meter.load(ms(100), times(500, 70, 1000)), None);
        let load = |ran, waited, wakeups_per_s| Some(Load { ran, waited, wakeups_per_s });
        assert_eq!(meter.load(ms(110), times(504, 75, 1020)), load(0.4, 0.5, 2000.0));
        assert_eq!(meter.load(ms(110), times(504, 75, 1020)), None, "no time has passed");
        assert_eq!(meter.load(ms(120), times(504, 75, 1020)), load(0.0, 0.0, 0.0));
    }

    #[test]
    fn time_that_is_counted_late_is_carried_over() {
        let mut meter = Meter::default();
        meter.load(ms(0), times(0, 0, 0));
        // A thread runs all the time, and is counted every 4 ms.
        let counted = [8, 20, 28, 40, 48, 60].map(|ran| times(ran, 0, 0));
        let loads = (1..).zip(counted).map(|(i, times)| meter.load(ms(10 * i), times).unwrap().ran);
        assert_eq!(loads.collect::<Vec<_>>(), [0.8, 1.0, 1.0, 1.0, 1.0, 1.0]);
        // After a long wait, at most the length of a period is carried over.
        let waits = [1000, 1000, 1000].map(|waited| times(60, waited, 0));
        let loads = (7..).zip(waits).map(|(i, times)| meter.load(ms(10 * i), times).unwrap().waited);
        assert_eq!(loads.collect::<Vec<_>>(), [1.0, 1.0, 0.0]);
    }

    #[test]
    fn softirq_time_is_shared_among_the_queues_of_a_core() {
        let core = |id, softirq_ns, net_rx| CoreTime { id, idle_ns: 0, softirq_ns, net_rx };
        let mut queue = SoftirqShare::new(1, 2);
        let read = |queue: &mut SoftirqShare, cores: &[CoreTime]| match queue.read(cores).unwrap() {
            Reading::Estimate(times) => (times.ran_ns, times.wakeups),
            other => panic!("{other:?}"),
        };
        assert_eq!(read(&mut queue, &[core(0, 5, 5), core(1, 1000, 10)]), (0, 0), "a beginning");
        assert_eq!(read(&mut queue, &[core(0, 9, 9), core(1, 1600, 13)]), (300, 3));
        assert_eq!(read(&mut queue, &[core(1, 1900, 13)]), (300, 3), "nothing was received");
        queue.is_on(2, 2, &[core(2, 500, 5)]);
        assert_eq!(read(&mut queue, &[core(1, 9000, 99), core(2, 700, 7)]), (400, 5), "moved");
        queue.is_on(2, 1, &[]);
        assert_eq!(read(&mut queue, &[core(2, 800, 8)]), (500, 6));
        assert_eq!(read(&mut queue, &[]), (500, 6), "its core is offline");
    }

    #[test]
    fn other_work_is_what_idling_and_forwarding_leave() {
        let core = |id, idle_ms: u64| CoreTime { id, idle_ns: idle_ms * 1_000_000, ..CoreTime::default() };
        let forwarding = |ms: u64| BTreeMap::from([(0, ms * 1_000_000)]);
        let mut others = Others::default();
        assert!(others.is_due(ms(1000)));
        others.update(ms(1000), &[core(0, 500), core(1, 500)], &forwarding(70));
        assert_eq!(others.of(0), None);
        assert_eq!([1199, 1200].map(|at| others.is_due(ms(at))), [false, true]);
        others.update(ms(1200), &[core(0, 550), core(1, 700), core(2, 0)], &forwarding(120));
        assert_eq!([0, 1, 2].map(|core| others.of(core)), [Some(0.5), Some(0.0), None]);
        // Core 0's idle time went back, and core 1 was idle for longer than the window.
        others.update(ms(1400), &[core(0, 549), core(1, 950)], &forwarding(120));
        assert_eq!([0, 1, 2].map(|core| others.of(core)), [Some(1.0), Some(0.0), None]);
    }
}
