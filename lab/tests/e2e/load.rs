//! Sends packets through the lab's testbed while something happens, and accounts for every one.

use std::{
    thread,
    time::{Duration, Instant},
};

use lab::{
    cpu::{Threads, Time},
    generator::{Load, Pace},
    losses::Losses,
    subject::Subject,
    sys,
    testbed::{Priority, Testbed},
    topology::Topology,
    workload::{Family, Workload},
};

use crate::daemon::eventually_true;

/// High enough to notice a gap of a tenth of a millisecond, low enough for a busy machine.
const RATE_PPS: u64 = 15_000;
/// Least packets of a test.
const ENOUGH: u64 = 3000;

/// A testbed whose generator runs after all others, so that a daemon gets its core.
pub fn testbed(routers: u16) -> Testbed {
    let mut testbed = Testbed::new(&Topology::rfc2544().with_routers(routers)).unwrap();
    testbed.set_priority(Priority::Reaction).unwrap();
    testbed
}

/// Counts of the packets.
#[derive(Debug)]
pub struct Account {
    pub sent: u64,
    /// Packets at the sink, by router; the last one counts packets that came through none.
    pub received: Vec<u64>,
    pub bytes: u64,
    pub lost: Losses,
    /// How many packets found the generator's wire full when the same was sent and nothing happened.
    pub wire_full_idle: u64,
    /// How long the thread that empties the wire waited for its core. The wait of the quiet run is not subtracted:
    /// it varies by more than 0.1 s.
    pub robbed: Duration,
}

/// The generator's wire, whose other end is the port's receive queue.
const WIRE: &str = "gen.eth0.ring_full";
/// How long the event may keep the thread that empties the wire busy.
const WIRE_SLACK: Duration = Duration::from_millis(30);
/// How long other programs may hold that thread's core. More than this counts against the event.
const MOST_ROBBED: Duration = Duration::from_millis(300);

impl Account {
    /// Every packet arrived, except those that found the wire to the box full.
    pub fn assert_no_loss(&self, what: &str) {
        let full = self.wire_full();
        assert!(self.sent >= ENOUGH, "{what}: nothing was tested: {self:?}");
        assert_eq!(self.sent, self.received.iter().sum::<u64>() + full, "{what}: {self:?}");
    }

    /// How many packets found the wire to the box full. Asserts that this is normal, or due to others that had the
    /// core.
    pub fn wire_full(&self) -> u64 {
        let full = self.lost.0.get(WIRE).copied().unwrap_or(0);
        let slack = RATE_PPS as f64 * (WIRE_SLACK + self.robbed.min(MOST_ROBBED)).as_secs_f64();
        assert!(full <= self.wire_full_idle + slack as u64, "nobody took packets in: {self:?}");
        full
    }
}

/// The traffic: IPv4 or IPv6 through some routers, with the frames' length.
pub fn benchmark(family: Family, routers: impl Iterator<Item = u16> + Clone) -> Workload {
    Workload::benchmark(family, 500, routers)
}

/// Waits until so many packets are sent. It fails only if the generator stops.
fn until_sent(testbed: &Testbed, packets: u64) {
    let sent = || testbed.generator.packets().unwrap();
    while sent() < packets {
        let before = sent();
        eventually_true("the generator sends", || sent() > before);
    }
}

/// Sends at least [`ENOUGH`] packets while `work` runs, before, during and after it. Then sends as many while nothing
/// happens.
pub fn while_sending(testbed: &mut Testbed, workload: &Workload, work: impl FnOnce(&Testbed)) -> Account {
    let mut account = send(testbed, workload, 0, work);
    let idle = send(testbed, workload, account.sent, |_| {});
    account.wire_full_idle = idle.lost.0.get(WIRE).copied().unwrap_or(0);
    account
}

fn send(testbed: &mut Testbed, workload: &Workload, least: u64, work: impl FnOnce(&Testbed)) -> Account {
    testbed.generator.set_targets(workload.targets.clone(), workload.frame_bytes).unwrap();
    let threads = testbed.router_threads().unwrap().0;
    // The first thread belongs to the port at the wire.
    let empties = Threads(vec![threads[0]]);
    // A thread ends with its port. Then nothing has taken its core.
    let time = || empties.times().map_or(Time::default(), |times| times[0]);
    let before_all = time();
    let _first = First::of(threads);
    let rows = [&(0..=testbed.topology.router_count()).collect::<Vec<_>>()[..], &[511]].concat();
    let (before, losses) = (received(testbed, &rows), Losses::now(testbed).unwrap());
    testbed.generator.start(Load { frame_bytes: workload.frame_bytes, pace: Pace::Rate(RATE_PPS) }).unwrap();
    // Wait for a number of packets, not for a time: on a busy machine the generator comes last.
    until_sent(testbed, 1000);
    work(testbed);
    until_sent(testbed, testbed.generator.packets().unwrap().max(ENOUGH - 1000) + 1000);
    until_sent(testbed, least);
    testbed.generator.stop().unwrap();
    let sent = testbed.generator.packets().unwrap();
    let end = Instant::now() + Duration::from_secs(5);
    loop {
        thread::sleep(Duration::from_millis(50));
        let now = received(testbed, &rows);
        let difference = |at: usize| {
            now.iter().zip(&before).map(move |(n, b)| if at == 0 { n.0 - b.0 } else { n.1 - b.1 })
        };
        let account = Account {
            sent,
            received: difference(0).collect(),
            bytes: difference(1).sum(),
            lost: Losses::now(testbed).unwrap().since(&losses),
            wire_full_idle: 0,
            robbed: Duration::from_nanos(time().since(before_all).waited_ns),
        };
        if account.received.iter().sum::<u64>() + account.lost.total() >= sent || Instant::now() > end {
            let frames: u64 = account.received.iter().sum();
            assert_eq!(
                account.bytes,
                frames * u64::from(workload.frame_bytes),
                "frames changed their length"
            );
            return account;
        }
    }
}

/// Makes threads go before all others, as interrupts go before every program. Dropping this ends it, because some
/// threads belong to the machine and outlive the testbed.
struct First(Vec<i32>);

impl First {
    fn of(threads: Vec<i32>) -> Self {
        let first = First(threads);
        first.0.iter().for_each(|thread| sys::set_nice(*thread, -20).unwrap());
        first
    }
}

impl Drop for First {
    fn drop(&mut self) {
        // Threads that have ended cause an error, which does not matter.
        self.0.iter().for_each(|thread| _ = sys::set_nice(*thread, 0));
    }
}

fn received(testbed: &Testbed, rows: &[u16]) -> Vec<(u64, u64)> {
    rows.iter().map(|r| testbed.sink.arrived(*r).unwrap()).map(|a| (a.packets, a.bytes)).collect()
}

/// Stands for a plain forwarder in `lab::check`: the output must be that of a router.
pub struct Any;

impl Subject for Any {
    fn name(&self) -> &'static str {
        "millrace"
    }
}

/// Asserts that the output equals, byte for byte, what a router makes of these packets.
pub fn assert_forwards_right(testbed: &mut Testbed, workload: &Workload) {
    let next_hop = |address| workload.next_hop(address);
    lab::check::check_forwarding(testbed, &Any, &workload.targets, workload.frame_bytes, next_hop).unwrap();
}
