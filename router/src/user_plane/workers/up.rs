//! Gives packets to the kernel: as they came in, or, if an element made them, to be sent as the machine's own
//! ([`super::own`]).
//!
//! Giving the kernel a packet that came in takes a system call of some 16 us (BPF_PROG_TEST_RUN with live frames, one packet
//! each, because all packets of a call have the same bytes). Workers do not spend that time: one thread does it, in the
//! order of each worker. Before a packet is copied for that thread, its payer is charged as in the kernel plane
//! (`bpf/account.h`). The payer is the router, or the port for packets of no interface. Each worker has budgets of its own.
//!
//! A limited number of packets may wait for the thread, and a quarter of the places is for ARP and neighbour discovery
//! alone. A payer has at most as many places as are free (dynamic thresholds; Choudhury and Hahne 1998, with alpha = 1). So
//! a payer alone has half of them, and a new payer always finds room.

use super::{
    exchange::PORTS,
    own::{Namespaces, Senders},
};
use crate::{
    api::workers::{UpCounts, UpReport},
    linux::netns,
    plane::Injector,
};
use anyhow::{Context, Result};
use libbpf_rs::ObjectBuilder;
use logic::{
    plan::{PortId, RouterId},
    reason::{Class, Reason},
    tables::Ingress,
};
use std::{
    collections::BTreeMap,
    fs::File,
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{
            AtomicU64, AtomicUsize,
            Ordering::{Acquire, Relaxed, Release},
        },
        mpsc::{Receiver, Sender, TryRecvError, channel},
    },
    thread,
};

const PASS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pass.bpf.o"));
/// The calling thread's namespace.
const OWN: &str = "/proc/thread-self/ns/net";

/// The most packets that wait, and the most of them that are neither ARP nor neighbour discovery.
const MOST_WAITING: usize = 1024;
const MOST_OTHERS: usize = MOST_WAITING / 4 * 3;
/// Payers: first routers, then ports.
const ROUTERS: usize = 256;
const PAYERS: usize = ROUTERS + PORTS;

/// Gives packets to the kernel's stack.
pub trait Up: Send {
    /// Gives the kernel a frame as if it had come in by this device, which is in the calling thread's namespace.
    ///
    /// # Errors
    /// The frame is lost.
    fn up(&mut self, ifindex: u32, frame: &[u8]) -> Result<()>;
}

/// Gives packets up by a program of its own, which passes all packets and belongs to no generation of the kernel plane.
pub struct PassUp(Injector);

impl PassUp {
    /// # Errors
    /// The kernel refuses the program, which needs CAP_BPF and CAP_NET_ADMIN; so does giving packets to it.
    pub fn new() -> Result<PassUp> {
        let mut builder = ObjectBuilder::default();
        let object = builder.open_memory(PASS).and_then(|object| object.load());
        let object =
            object.context("loading the program that passes packets up (needs CAP_BPF and CAP_NET_ADMIN)")?;
        let program = object.progs().next().context("no program passes packets up")?;
        Ok(PassUp(Injector::new(program.as_fd(), program.as_fd())?))
    }
}

impl Up for PassUp {
    fn up(&mut self, ifindex: u32, frame: &[u8]) -> Result<()> {
        self.0.local(ifindex, frame)
    }
}

/// The most packets of a payer in a second that each worker gives the kernel; 0: no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budgets {
    pub exception_pps: u64,
    pub control_pps: u64,
}

/// A payer; all threads share it.
#[derive(Debug, Default)]
struct Payer {
    /// Its packets in the queue.
    waiting: AtomicUsize,
    packets: AtomicU64,
    policed: AtomicU64,
    control_policed: AtomicU64,
    queue_full: AtomicU64,
    failed: AtomicU64,
}

impl Payer {
    fn counts(&self) -> UpCounts {
        let Payer { packets, policed, control_policed, queue_full, failed, .. } = self;
        let [packets, policed, control_policed, queue_full, failed] =
            [packets, policed, control_policed, queue_full, failed].map(|count| count.load(Relaxed));
        UpCounts { packets, policed, control_policed, queue_full, failed }
    }
}

/// The queue to the thread.
struct Line {
    waiting: AtomicUsize,
    payers: [Payer; PAYERS],
}

impl Line {
    /// Lets a packet of this payer wait if there is room, with `most` places for all; returns whether it waits.
    fn enter(&self, payer: &Payer, most: usize) -> bool {
        let all = self.waiting.fetch_add(1, Relaxed);
        let theirs = payer.waiting.fetch_add(1, Relaxed);
        let may = theirs < most.saturating_sub(all);
        if !may {
            self.leave(payer);
        }
        may
    }

    fn leave(&self, payer: &Payer) {
        payer.waiting.fetch_sub(1, Relaxed);
        self.waiting.fetch_sub(1, Relaxed);
    }
}

/// A device that packets come in by.
#[derive(Clone, Debug)]
pub(super) struct Device {
    pub ifindex: u32,
    pub namespace: Arc<File>,
}

/// How a packet is given to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// A frame, as it came in by this port.
    Came(PortId),
    /// An IP packet, to be sent as this router's own.
    Own(RouterId),
}

enum Message {
    /// `done`: how many of the gate's packets the kernel has got, or the thread has lost.
    Packet {
        payer: usize,
        how: How,
        data: Box<[u8]>,
        done: Arc<AtomicU64>,
    },
    Ports(BTreeMap<PortId, Device>),
}

/// The thread that gives packets to the kernel, and the way to it.
pub(super) struct Ups {
    to: Sender<Message>,
    line: Arc<Line>,
    budgets: Budgets,
}

impl Ups {
    /// Starts the thread. It ends when this and all gates are gone.
    pub fn start(up: Box<dyn Up>, routers: Namespaces, budgets: Budgets) -> Result<Ups> {
        let (to, messages) = channel();
        let payers = std::array::from_fn(|_| Payer::default());
        let line = Arc::new(Line { waiting: AtomicUsize::new(0), payers });
        let its = line.clone();
        thread::Builder::new()
            .name("up".into())
            .spawn(move || give(&messages, up, routers, &its))
            .context("starting the thread that gives packets to the kernel")?;
        Ok(Ups { to, line, budgets })
    }

    /// Sets the ports from now on.
    pub fn set_ports(&self, ports: BTreeMap<PortId, Device>) {
        let _ = self.to.send(Message::Ports(ports));
    }

    /// A gate for one worker.
    pub fn gate(&self) -> Gate {
        let Ups { to, line, budgets } = self;
        let buckets = vec![[Bucket::FULL; 2]; PAYERS];
        let (done, seen) = Default::default();
        Gate { to: to.clone(), line: line.clone(), budgets: *budgets, buckets, queued: 0, done, seen }
    }

    pub fn report(&self) -> UpReport {
        let mut report = UpReport::default();
        for (number, payer) in self.line.payers.iter().enumerate() {
            let counts = payer.counts();
            if counts == UpCounts::default() {
                continue;
            }
            let UpCounts { packets, policed, control_policed, queue_full, failed } = counts;
            report.all.packets += packets;
            report.all.policed += policed;
            report.all.control_policed += control_policed;
            report.all.queue_full += queue_full;
            report.all.failed += failed;
            match number.checked_sub(ROUTERS) {
                Some(port) => report.ports.insert(port as PortId, counts),
                None => report.routers.insert(number as RouterId, counts),
            };
        }
        report
    }
}

fn give(messages: &Receiver<Message>, up: Box<dyn Up>, routers: Namespaces, line: &Line) {
    let (ports, senders) = (BTreeMap::new(), Senders::default());
    let mut place =
        UpThread { up, ports, routers, senders, home: File::open(OWN).ok(), away: None, visits: false };
    loop {
        let message = match messages.try_recv() {
            Ok(message) => message,
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) => {
                // A socket or this thread would keep a deleted namespace alive.
                place.leave_routers();
                let Ok(message) = messages.recv() else { return };
                message
            }
        };
        match message {
            Message::Ports(ports) => {
                place.go_home();
                place.leave_routers();
                place.ports = ports;
            }
            Message::Packet { payer, how, data, done } => {
                let Some(payer) = line.payers.get(payer) else { continue };
                line.leave(payer);
                let given = match how {
                    How::Came(port) => place.up(port, &data),
                    How::Own(router) => place.send(router, &data),
                };
                match given {
                    Ok(()) => payer.packets.fetch_add(1, Relaxed),
                    Err(error) => {
                        tracing::debug!("a packet was not given to the kernel ({how:?}): {error:#}");
                        payer.failed.fetch_add(1, Relaxed)
                    }
                };
                done.fetch_add(1, Release);
            }
        }
    }
}

/// The state of the thread. It stays in a port's namespace while packets of that port come.
struct UpThread {
    up: Box<dyn Up>,
    ports: BTreeMap<PortId, Device>,
    routers: Namespaces,
    senders: Senders,
    home: Option<File>,
    /// The namespace it is in, if not its own.
    away: Option<netns::Key>,
    /// There are sockets in namespaces of routers, and the thread may be in one of these.
    visits: bool,
}

impl UpThread {
    fn up(&mut self, port: PortId, frame: &[u8]) -> Result<()> {
        let Device { ifindex, namespace } = self.ports.get(&port).context("the port is gone")?;
        enter(&mut self.away, namespace)?;
        self.up.up(*ifindex, frame)
    }

    fn send(&mut self, router: RouterId, packet: &[u8]) -> Result<()> {
        let namespace = self.routers.of(router).context("the router is gone")?;
        let open = || {
            self.away = Some(namespace.key());
            self.visits = true;
            namespace.enter().context("entering a router's namespace (needs CAP_SYS_ADMIN)")
        };
        self.senders.send(namespace.cookie(), packet, open)
    }

    /// Leaves the namespaces of routers, and closes the sockets there.
    fn leave_routers(&mut self) {
        if std::mem::take(&mut self.visits) {
            self.go_home();
            self.senders.close();
        }
    }

    fn go_home(&mut self) {
        if let (Some(_), Some(home)) = (self.away, &self.home) {
            match netns::enter(home) {
                Ok(()) => self.away = None,
                Err(error) => {
                    tracing::warn!(
                        "the thread that gives packets to the kernel cannot return to its own namespace: {error}"
                    )
                }
            }
        }
    }
}

/// Enters a namespace. Only this thread is affected, and it does nothing else.
fn enter(away: &mut Option<netns::Key>, namespace: &File) -> Result<()> {
    let key = netns::Key::of(namespace)?;
    if *away != Some(key) {
        netns::enter(namespace).context("entering a namespace (needs CAP_SYS_ADMIN)")?;
        *away = Some(key);
    }
    Ok(())
}

/// A worker's way to the thread.
pub(super) struct Gate {
    to: Sender<Message>,
    line: Arc<Line>,
    budgets: Budgets,
    /// By payer, for exceptions and for control.
    buckets: Vec<[Bucket; 2]>,
    /// Packets put into the thread's queue, and how many of these it has given to the kernel or lost.
    queued: u64,
    done: Arc<AtomicU64>,
    /// `done` when it was last read.
    seen: u64,
}

impl Gate {
    /// How many packets were put into the thread's queue.
    pub fn queued(&self) -> u64 {
        self.queued
    }

    /// Whether the thread still has packets of this gate.
    #[inline]
    pub fn has_waiting(&mut self) -> bool {
        self.queued != self.seen && self.done() != self.queued
    }

    /// How many packets the thread has given to the kernel, or lost.
    pub fn done(&mut self) -> u64 {
        self.seen = self.done.load(Acquire);
        self.seen
    }

    /// Gives a frame that came in, or an IP packet that was made of it, and counts what happens to it. Returns
    /// whether the thread has it now.
    pub fn give(&mut self, reason: Reason, is_own: bool, ingress: Ingress, now_ns: u64, data: &[u8]) -> bool {
        let number = match ingress.interface {
            0 => ROUTERS + usize::from(ingress.port),
            _ => usize::from(ingress.router),
        };
        // Workers have no ports and routers beyond these.
        let (Some(payer), Some(buckets)) = (self.line.payers.get(number), self.buckets.get_mut(number))
        else {
            return false;
        };
        let (class, [exception, control]) = (reason.class(), buckets);
        let limit = match class {
            Class::Exception => Some((exception, self.budgets.exception_pps, &payer.policed)),
            Class::Control => Some((control, self.budgets.control_pps, &payer.control_policed)),
            _ => None,
        };
        if let Some((bucket, pps, policed)) = limit
            && pps > 0
            && !bucket.spend(now_ns, 1_000_000_000 / pps)
        {
            policed.fetch_add(1, Relaxed);
            return false;
        }
        let most = if class == Class::Control { MOST_WAITING } else { MOST_OTHERS };
        if !self.line.enter(payer, most) {
            payer.queue_full.fetch_add(1, Relaxed);
            return false;
        }
        let how = if is_own { How::Own(ingress.router) } else { How::Came(ingress.port) };
        let message = Message::Packet { payer: number, how, data: data.into(), done: self.done.clone() };
        let is_queued = self.to.send(message).is_ok();
        if is_queued {
            self.queued += 1;
        } else {
            self.line.leave(payer);
            payer.failed.fetch_add(1, Relaxed);
        }
        is_queued
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

    /// Waits for a permission, and then reports the packet that it got.
    struct PacedUp(Sender<Given>, Receiver<()>);
    impl Up for PacedUp {
        fn up(&mut self, ifindex: u32, frame: &[u8]) -> Result<()> {
            self.1.recv()?;
            Ok(self.0.send((ifindex, frame.into()))?)
        }
    }

    fn start(budgets: Budgets) -> (Ups, Receiver<Given>, SyncSender<()>) {
        let ((told, tells), (go, may)) = (channel(), sync_channel(4096));
        let ups = Ups::start(Box::new(PacedUp(told, may)), Namespaces::default(), budgets).unwrap();
        let namespace = Arc::new(File::open("/proc/thread-self/ns/net").unwrap());
        ups.set_ports(BTreeMap::from([(3, Device { ifindex: 77, namespace })]));
        (ups, tells, go)
    }

    fn of(router: RouterId) -> Ingress {
        Ingress { port: 3, router, interface: 1, flags: 0 }
    }

    #[test]
    fn a_flood_of_exceptions_is_policed_and_leaves_room_for_control() {
        let (ups, tells, go) = start(Budgets { exception_pps: 1000, control_pps: 2000 });
        let mut gate = ups.gate();
        let policed = || (ups.report().all.policed, ups.report().all.control_policed);
        // The burst is 100 ms of 1000 packets a second. Another router has its own.
        for n in 0..500_u16 {
            gate.give(Reason::TtlExceeded, false, of(1), 0, &n.to_be_bytes());
        }
        assert_eq!(policed(), (400, 0));
        gate.give(Reason::TtlExceeded, false, of(2), 0, &[]);
        gate.give(Reason::Arp, false, of(1), 0, &[]);
        assert_eq!(policed(), (400, 0));
        gate.give(Reason::TtlExceeded, false, of(1), 1_000_000, &[]);
        gate.give(Reason::TtlExceeded, false, of(1), 1_000_000, &[]);
        assert_eq!(policed(), (401, 0), "a millisecond later, one more may pass");
        assert_eq!(ups.report().routers[&1].policed, 401);
        assert!(ups.report().routers.get(&2).is_none_or(|other| other.policed == 0));
        (0..103).for_each(|_| go.send(()).unwrap());
        let numbered: Vec<_> = (0..103)
            .map(|_| tells.recv_timeout(Duration::from_secs(5)).unwrap())
            .inspect(|(ifindex, _)| assert_eq!(*ifindex, 77))
            .filter_map(|(_, frame)| Some(u16::from_be_bytes(frame.try_into().ok()?)))
            .collect();
        assert_eq!(numbered, (0..100).collect::<Vec<_>>(), "in order");
    }

    /// Packets that are not policed, such as those for the box itself.
    #[test]
    fn a_payers_flood_leaves_room_for_others() {
        let (ups, _tells, go) = start(Budgets { exception_pps: 0, control_pps: 0 });
        let mut gate = ups.gate();
        let full = |router| ups.report().routers.get(&router).map_or(0, |counts| counts.queue_full);
        (0..2000).for_each(|_| _ = gate.give(Reason::Local, false, of(1), 0, &[]));
        // The thread may have one of them.
        assert!((2000 - 385..=2000 - 384).contains(&full(1)), "half of the places: {}", full(1));
        (0..2000).for_each(|_| _ = gate.give(Reason::Local, false, of(2), 0, &[]));
        assert!((2000 - 193..=2000 - 192).contains(&full(2)), "half of the rest: {}", full(2));
        (0..96).for_each(|_| _ = gate.give(Reason::Local, false, of(3), 0, &[]));
        assert_eq!(full(3), 0);
        // Control has another quarter.
        (0..128).for_each(|_| _ = gate.give(Reason::Arp, false, of(4), 0, &[]));
        assert_eq!(full(4), 0);
        (0..801).for_each(|_| _ = go.send(()));
        let report = || ups.report().all;
        for _ in 0..5000 {
            if report().packets + report().queue_full == 4224 {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        gate.give(Reason::Local, false, of(1), 0, &[]);
        assert_eq!(report().queue_full, full(1) + full(2), "there is room again: {:?}", report());
    }

    #[test]
    fn packets_of_a_port_that_is_gone_do_not_go_up() {
        let (ups, _tells, go) = start(Budgets { exception_pps: 0, control_pps: 0 });
        let mut gate = ups.gate();
        go.send(()).unwrap();
        for port in [3, 4] {
            gate.give(Reason::Local, false, Ingress { port, ..Ingress::default() }, 0, &[]);
        }
        for _ in 0..1000 {
            if ups.report().all.packets + ups.report().all.failed == 2 {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        let ports = ups.report().ports;
        assert_eq!(
            (ports[&3].packets, ports[&4].failed),
            (1, 1),
            "packets for no interface are counted by port"
        );
    }
}
