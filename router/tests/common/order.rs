//! Sends numbered packets of several flows, and counts those that a later packet of their flow overtook.

use super::{Ends, frame::Frame, only_on, wire::Wire};
use logic::cores::{CoreId, QueueId};
use router::{
    base::clock::monotonic,
    plane::{Splits, online_cpus},
};
use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

/// The most packets under way: fewer than a veth has room for (256), so that none is lost.
const MOST: u64 = 200;
const UDP: u8 = 17;
const PATIENCE: Duration = Duration::from_secs(5);

/// The counts of packets that were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Came {
    pub sent: u64,
    pub received: u64,
    /// Packets that a later one of their flow overtook, or that came twice.
    pub overtaken: u64,
}

/// Gives an IPv4 UDP frame this source port, and the number in its last bytes.
pub fn numbered(frame: Frame, flow: u16, number: u32) -> Vec<u8> {
    let frame = frame.ip4(|ip| {
        ip[20..22].copy_from_slice(&flow.to_be_bytes());
        let at = ip.len() - 4;
        ip[at..].copy_from_slice(&number.to_be_bytes());
    });
    frame.bytes()
}

/// Sends packets, taking the flows in turn, while `meanwhile` runs on a thread of its own. No more packets
/// are under way than there is room for. `frame` makes the packet of a number; `look` is called with each
/// number and packet that arrived.
pub fn send_while(
    wires: (&Wire, &Wire),
    flows: u16,
    frame: impl Fn(u32) -> Vec<u8>,
    look: impl FnMut(u32, &[u8]) + Send,
    meanwhile: impl FnOnce() + Send,
) -> Came {
    send_paced_while(wires, flows, |_| f64::INFINITY, frame, look, meanwhile)
}

/// Like [`send_while`], at no more than `rate` packets a second, where `rate` gets the time since the start.
/// Packets that could not be sent in time are not sent later.
pub fn send_paced_while(
    (from, to): (&Wire, &Wire),
    flows: u16,
    rate: impl Fn(Duration) -> f64,
    frame: impl Fn(u32) -> Vec<u8>,
    look: impl FnMut(u32, &[u8]) + Send,
    meanwhile: impl FnOnce() + Send,
) -> Came {
    let (received, all, over) = (AtomicU64::new(0), AtomicU64::new(u64::MAX), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let _ends = Ends(&over);
            only_on(online_cpus().unwrap());
            meanwhile();
        });
        let receiving = scope.spawn(|| {
            let _ends = Ends(&over);
            only_on(online_cpus().unwrap());
            overtaken(to, flows, &received, &all, look)
        });
        let (mut sent, mut pace) = (0, Pace::new(rate));
        while !over.load(Relaxed) {
            if pace.is_due() && u64::from(sent) < received.load(Relaxed) + MOST {
                from.send(&frame(sent));
                (sent, pace.due) = (sent + 1, pace.due - 1.0);
            } else {
                thread::yield_now();
            }
        }
        all.store(sent.into(), Relaxed);
        let overtaken = receiving.join().unwrap();
        Came { sent: sent.into(), received: received.load(Relaxed), overtaken }
    })
}

/// How many packets are due now: at most [`MOST`].
pub struct Pace<R> {
    rate: R,
    began: Instant,
    looked: Duration,
    pub due: f64,
}

impl<R: Fn(Duration) -> f64> Pace<R> {
    pub fn new(rate: R) -> Self {
        Pace { rate, began: Instant::now(), looked: Duration::ZERO, due: 0.0 }
    }

    pub fn is_due(&mut self) -> bool {
        let now = self.began.elapsed();
        self.due += (self.rate)(now) * (now - self.looked).as_secs_f64();
        self.due = self.due.min(MOST as f64);
        self.looked = now;
        self.due >= 1.0
    }
}

/// How many packets a core that shares a queue gets in each turn, at least.
const HANDED: u64 = 20;

/// Waits until each core that shares a queue, except its home, has received [`HANDED`] more packets. So packets are
/// handed over in each such turn, even on a busy machine.
pub fn until_handed(handed: impl Fn(CoreId) -> u64, home: CoreId, cores: &[CoreId]) {
    let start = Instant::now();
    for &core in cores.iter().filter(|&&core| core != home) {
        let before = handed(core);
        while handed(core) < before + HANDED {
            assert!(start.elapsed() < PATIENCE, "core {core} got no packets of the queue");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Changes `turns` times which cores share a queue that the first one polls: both, one of them, or none (the
/// queue is whole). In three of five turns, the second core gets packets. `handed`
/// returns how many a core got so far.
pub fn split_and_join(
    splits: &Splits,
    queue: QueueId,
    [here, other]: [CoreId; 2],
    turns: usize,
    handed: impl Fn(CoreId) -> u64,
) {
    let both = [here, other];
    let shares: [&[CoreId]; 5] = [&both, &[other], &[], &both, &[here]];
    for cores in shares.into_iter().cycle().take(turns) {
        match cores {
            [] => splits.join(queue),
            cores => splits.share(queue, here, cores).unwrap(),
        }
        until_handed(&handed, here, cores);
        thread::sleep(Duration::from_millis(15));
        splits.tidy(monotonic());
    }
}

/// Receives until all packets have come, or none comes any more. Returns how many were overtaken.
fn overtaken(
    wire: &Wire,
    flows: u16,
    received: &AtomicU64,
    all: &AtomicU64,
    mut look: impl FnMut(u32, &[u8]),
) -> u64 {
    let mut last = vec![None; flows.into()];
    let (mut overtaken, mut heard) = (0, Instant::now());
    while received.load(Relaxed) < all.load(Relaxed) && heard.elapsed() < PATIENCE {
        // The kernel's own packets come here too.
        let Some(bytes) = wire.receive().filter(|bytes| bytes[12..14] == [8, 0] && bytes[23] == UDP) else {
            thread::yield_now();
            continue;
        };
        let number = u32::from_be_bytes(*bytes.last_chunk().unwrap());
        let last = &mut last[(number % u32::from(flows)) as usize];
        overtaken += u64::from(Some(number) <= *last);
        *last = Some(number).max(*last);
        look(number, &bytes);
        received.fetch_add(1, Relaxed);
        heard = Instant::now();
    }
    overtaken
}
