//! Packets for the kernel, as they came in.
//!
//! To give one to the kernel takes a system call of some 16 us (BPF_PROG_TEST_RUN with live frames; one packet each, as all of a call
//! have the same bytes), so it is not the workers' time: one thread does it, in the order of each worker. What may wait for it is bounded,
//! and a quarter of that is for ARP and neighbour discovery alone. Before a packet is copied for it, its payer is charged as in the
//! kernel plane (`bpf/account.h`): its router, or its port where it is for no interface. Budgets are each worker's.

use crate::netns;
use anyhow::{Context, Result};
use logic::{
    elements::Ingress,
    plan::PortId,
    reason::{Class, Reason},
};
use serde::Serialize;
use std::{
    collections::BTreeMap,
    fs::File,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
        mpsc::{Receiver, Sender, channel},
    },
    thread::{self, JoinHandle},
};

/// Packets that wait, at most; and those that are neither ARP nor neighbour discovery.
const MOST_WAITING: usize = 1024;
const MOST_OTHERS: usize = MOST_WAITING / 4 * 3;
/// Routers; payers behind them are ports.
const ROUTERS: usize = 256;
const PORTS: usize = 64;

/// Gives packets to the kernel's stack.
pub trait Up: Send {
    /// As if it had come in by this device, which is in the calling thread's namespace.
    ///
    /// # Errors
    /// It is lost.
    fn up(&mut self, ifindex: u32, frame: &[u8]) -> Result<()>;
}

impl Up for crate::plane::Injector {
    fn up(&mut self, ifindex: u32, frame: &[u8]) -> Result<()> {
        self.local(ifindex, frame)
    }
}

/// What a payer may have of the kernel's time in a second, of each worker; 0: no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budgets {
    pub exception_pps: u64,
    pub control_pps: u64,
}

/// Packets for the kernel that did not get there, and those that did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UpReport {
    pub packets: u64,
    /// Over the payer's limit.
    pub policed: u64,
    pub control_policed: u64,
    /// Too many waited.
    pub queue_full: u64,
    /// The kernel did not take them, or the port is gone.
    pub failed: u64,
}

#[derive(Debug, Default)]
struct Counts {
    packets: AtomicU64,
    policed: AtomicU64,
    control_policed: AtomicU64,
    queue_full: AtomicU64,
    failed: AtomicU64,
}

/// A device that packets come in by.
#[derive(Clone, Debug)]
pub(super) struct Device {
    pub ifindex: u32,
    pub namespace: Arc<File>,
}

enum Message {
    Packet(PortId, Box<[u8]>),
    Ports(BTreeMap<PortId, Device>),
}

/// The thread, and the way to it.
pub(super) struct Ups {
    to: Sender<Message>,
    waiting: Arc<AtomicUsize>,
    counts: Arc<Counts>,
    budgets: Budgets,
    _thread: JoinHandle<()>,
}

impl Ups {
    /// The thread ends when this and all gates are gone.
    pub fn start(up: Box<dyn Up>, budgets: Budgets) -> Result<Ups> {
        let (to, messages) = channel();
        let (waiting, counts) = (Arc::<AtomicUsize>::default(), Arc::<Counts>::default());
        let thread = thread::Builder::new().name("up".into()).spawn({
            let (waiting, counts) = (waiting.clone(), counts.clone());
            move || give(&messages, up, &waiting, &counts)
        });
        let thread = thread.context("starting the thread that gives packets to the kernel")?;
        Ok(Ups { to, waiting, counts, budgets, _thread: thread })
    }

    /// From now on.
    pub fn set_ports(&self, ports: BTreeMap<PortId, Device>) {
        let _ = self.to.send(Message::Ports(ports));
    }

    /// For one worker.
    pub fn gate(&self) -> Gate {
        let Ups { to, waiting, counts, budgets, .. } = self;
        let payers = vec![[Bucket::FULL; 2]; ROUTERS + PORTS];
        Gate { to: to.clone(), waiting: waiting.clone(), counts: counts.clone(), budgets: *budgets, payers }
    }

    pub fn report(&self) -> UpReport {
        let Counts { packets, policed, control_policed, queue_full, failed } = &*self.counts;
        let [packets, policed, control_policed, queue_full, failed] =
            [packets, policed, control_policed, queue_full, failed].map(|count| count.load(Relaxed));
        UpReport { packets, policed, control_policed, queue_full, failed }
    }
}

fn give(messages: &Receiver<Message>, mut up: Box<dyn Up>, waiting: &AtomicUsize, counts: &Counts) {
    let mut ports = BTreeMap::<PortId, Device>::new();
    let mut here = None;
    for message in messages {
        let (port, frame) = match message {
            Message::Ports(now) => {
                ports = now;
                continue;
            }
            Message::Packet(port, frame) => (port, frame),
        };
        waiting.fetch_sub(1, Relaxed);
        let given = ports.get(&port).context("the port is gone").and_then(|device| {
            let key = netns::Key::of(&device.namespace)?;
            if here != Some(key) {
                // This thread's own business: it does nothing else.
                netns::enter(&device.namespace).context("entering a port's namespace")?;
                here = Some(key);
            }
            up.up(device.ifindex, &frame)
        });
        match given {
            Ok(()) => counts.packets.fetch_add(1, Relaxed),
            Err(error) => {
                tracing::debug!("a packet of port {port} does not go up: {error:#}");
                counts.failed.fetch_add(1, Relaxed)
            }
        };
    }
}

/// A worker's way to the thread.
pub(super) struct Gate {
    to: Sender<Message>,
    waiting: Arc<AtomicUsize>,
    counts: Arc<Counts>,
    budgets: Budgets,
    /// For exceptions and for control.
    payers: Vec<[Bucket; 2]>,
}

impl Gate {
    /// What becomes of it is counted.
    pub fn give(&mut self, reason: Reason, ingress: Ingress, now_ns: u64, frame: &[u8]) {
        let payer = match ingress.interface {
            0 => ROUTERS + usize::from(ingress.port),
            _ => usize::from(ingress.router),
        };
        let (class, Budgets { exception_pps, control_pps }) = (reason.class(), self.budgets);
        let limit = match class {
            Class::Exception => Some((0, exception_pps, &self.counts.policed)),
            Class::Control => Some((1, control_pps, &self.counts.control_policed)),
            _ => None,
        };
        if let Some((bucket, pps, policed)) = limit
            && pps > 0
            && let Some(bucket) = self.payers.get_mut(payer).and_then(|payer| payer.get_mut(bucket))
            && !bucket.spend(now_ns, 1_000_000_000 / pps)
        {
            policed.fetch_add(1, Relaxed);
            return;
        }
        let most = if class == Class::Control { MOST_WAITING } else { MOST_OTHERS };
        if self.waiting.fetch_add(1, Relaxed) >= most
            || self.to.send(Message::Packet(ingress.port, frame.into())).is_err()
        {
            self.waiting.fetch_sub(1, Relaxed);
            self.counts.queue_full.fetch_add(1, Relaxed);
        }
    }
}

/// `struct bucket` and `spend()` of `bpf/account.h`.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    credit_ns: u64,
    last_ns: u64,
}

impl Bucket {
    const BURST_NS: u64 = 100_000_000;
    const FULL: Bucket = Bucket { credit_ns: Bucket::BURST_NS, last_ns: 0 };

    fn spend(&mut self, now_ns: u64, cost_ns: u64) -> bool {
        let credit = self.credit_ns + now_ns.saturating_sub(self.last_ns);
        self.last_ns = self.last_ns.max(now_ns);
        self.credit_ns = credit.min(Bucket::BURST_NS.max(cost_ns));
        let enough = self.credit_ns >= cost_ns;
        if enough {
            self.credit_ns -= cost_ns;
        }
        enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        sync::mpsc::{SyncSender, sync_channel},
        time::Duration,
    };

    type Given = (u32, Vec<u8>);

    /// Says what it gets, when it may.
    struct Told(Sender<Given>, Receiver<()>);
    impl Up for Told {
        fn up(&mut self, ifindex: u32, frame: &[u8]) -> Result<()> {
            self.1.recv()?;
            Ok(self.0.send((ifindex, frame.into()))?)
        }
    }

    fn start(budgets: Budgets) -> (Ups, Receiver<Given>, SyncSender<()>) {
        let ((told, tells), (go, may)) = (channel(), sync_channel(4096));
        let ups = Ups::start(Box::new(Told(told, may)), budgets).unwrap();
        let namespace = Arc::new(File::open("/proc/thread-self/ns/net").unwrap());
        ups.set_ports(BTreeMap::from([(3, Device { ifindex: 77, namespace })]));
        (ups, tells, go)
    }

    #[test]
    fn a_flood_of_exceptions_pays_and_leaves_room_for_control() {
        let (ups, tells, go) = start(Budgets { exception_pps: 1000, control_pps: 2000 });
        let mut gate = ups.gate();
        let ingress = |router| Ingress { port: 3, router, interface: 1, flags: 0 };
        // 100 ms of 1000 a second; another router has its own.
        for n in 0..500_u16 {
            gate.give(Reason::TtlExceeded, ingress(1), 0, &n.to_be_bytes());
        }
        assert_eq!(ups.report().policed, 400);
        gate.give(Reason::TtlExceeded, ingress(2), 0, &[]);
        gate.give(Reason::Arp, ingress(1), 0, &[]);
        assert_eq!((ups.report().policed, ups.report().control_policed), (400, 0));
        gate.give(Reason::TtlExceeded, ingress(1), 1_000_000, &[]);
        gate.give(Reason::TtlExceeded, ingress(1), 1_000_000, &[]);
        assert_eq!(ups.report().policed, 401, "a millisecond later there is one more");
        // What is not policed fills no more than its part.
        for _ in 0..2000 {
            gate.give(Reason::Local, ingress(1), 0, &[]);
        }
        let full = ups.report().queue_full;
        assert!((1300..1400).contains(&full), "{full}");
        gate.give(Reason::Arp, ingress(1), 0, &[1, 2, 3]);
        assert_eq!(ups.report().queue_full, full);
        (0..2000).for_each(|_| go.send(()).unwrap());
        let all: Vec<_> = std::iter::from_fn(|| {
            tells.recv_timeout(Duration::from_secs(5)).ok().filter(|(_, frame)| *frame != [1, 2, 3])
        })
        .collect();
        assert!(all.iter().all(|(ifindex, _)| *ifindex == 77));
        let numbered: Vec<_> =
            all.iter().filter(|(_, frame)| frame.len() == 2).map(|(_, f)| f.clone()).collect();
        assert_eq!(numbered, (0..100_u16).map(|n| n.to_be_bytes().to_vec()).collect::<Vec<_>>(), "in order");
    }

    #[test]
    fn of_a_port_that_is_gone_nothing_goes_up() {
        let (ups, _tells, go) = start(Budgets { exception_pps: 0, control_pps: 0 });
        let mut gate = ups.gate();
        go.send(()).unwrap();
        for port in [3, 4] {
            gate.give(Reason::Local, Ingress { port, ..Ingress::default() }, 0, &[]);
        }
        let report = || ups.report();
        for _ in 0..1000 {
            if report().packets + report().failed == 2 {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!((report().packets, report().failed), (1, 1));
    }
}
