//! Opens the sockets of a queue, in a mode that the driver supports.
//!
//! All sockets use one memory: the first socket of each mode registers it, and others share it (XDP_SHARED_UMEM). The kernel keeps
//! the mode with the registration, and a socket that shares one must have its mode. If some drivers support zero-copy mode and others
//! do not, the same memory is registered twice, once for each mode. Packets can still go from any port to any other.

use super::{
    Fault, OpenError,
    device::Device,
    fill::Fill,
    queue::Queue,
    ring::{Consumer, Producer},
    ring_memory::RingMemory,
    sender::{Sender, Slot},
    socket::{Socket, Which},
    umem::{Anchor, QueueId, Umem},
};
use crate::linux::netns;
use logic::plan::PortId;
use std::{
    io,
    os::fd::{AsFd, AsRawFd},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// How long the kernel may take to let go of a queue after its last socket was closed (a work item, `xp_release_deferred`).
const LETS_GO: Duration = Duration::from_millis(500);

// Errors name the rights that a step needs.
const OPENING: &str = "opening an AF_XDP socket (this needs CAP_NET_RAW)";
const REGISTERING: &str =
    "registering the memory, which is locked (this needs CAP_IPC_LOCK, or a limit of that size, ulimit -l)";

/// Entries of rings, each a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rings {
    /// Frames that wait for packets of all paths of a queue.
    pub fill: u32,
    /// Sent frames that were not taken back yet, of all senders of a queue.
    pub completion: u32,
    /// Packets that wait for a path.
    pub receive: u32,
    /// Packets that wait to be sent.
    pub transmit: u32,
}

impl Default for Rings {
    fn default() -> Rings {
        Rings { fill: 2048, completion: 2048, receive: 1024, transmit: 1024 }
    }
}

/// How packets of a queue come to the worker that owns it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Polling {
    /// Interrupts fill the rings, on any core; the worker looks at the rings, or sleeps ([`super::RingSet::sleep`]).
    #[default]
    Interrupts,
    /// The worker polls the device itself, where the kernel allows it (SO_PREFER_BUSY_POLL, [`super::NotPolled`]): up to `budget` packets
    /// at a time, for `microseconds`. Interrupts also come, unless the device's interrupts are deferred (`napi_defer_hard_irqs`,
    /// `gro_flush_timeout`).
    Busy { microseconds: u32, budget: u16 },
}

/// The settings to open a queue with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The port's number in the plan; nothing here depends on it.
    pub port: PortId,
    /// The device, in the calling thread's namespace.
    pub ifindex: u32,
    pub queue: u32,
    /// Try zero-copy first.
    pub zero_copy: bool,
    pub polling: Polling,
    pub rings: Rings,
}

impl Wanted {
    /// The best mode that the driver supports, with interrupts and rings of the default sizes.
    pub fn new(ifindex: u32, queue: u32) -> Wanted {
        Wanted {
            port: 0,
            ifindex,
            queue,
            zero_copy: true,
            polling: Polling::default(),
            rings: Rings::default(),
        }
    }

    pub(super) fn failed(&self, what: &'static str) -> impl FnOnce(io::Error) -> OpenError {
        let Wanted { ifindex, queue, .. } = *self;
        move |source| OpenError::Kernel { what, ifindex, queue, source }
    }

    fn check_sizes(&self) -> Result<(), OpenError> {
        let Rings { fill, completion, receive, transmit } = self.rings;
        match [fill, completion, receive, transmit].into_iter().find(|n| !n.is_power_of_two() || *n < 64) {
            Some(size) => Err(OpenError::RingSize(size)),
            None => Ok(()),
        }
    }
}

/// The first socket of a queue, bound, and its rings.
struct First {
    socket: Socket,
    fill: RingMemory,
    completion: Consumer<1>,
    transmit: Producer<2>,
}

/// A step that the kernel refused.
struct Refused {
    what: &'static str,
    error: io::Error,
}

impl Refused {
    fn to(what: &'static str) -> impl FnOnce(io::Error) -> Refused {
        move |error| Refused { what, error }
    }

    fn is(&self, errno: i32) -> bool {
        self.error.raw_os_error() == Some(errno)
    }
}

impl Queue {
    /// Opens a queue of a port for one worker, with a TX ring and without paths. The worker may run in another thread.
    ///
    /// # Errors
    /// Another process has the queue, the queue or device does not exist, there are too few frames, or the kernel refuses.
    pub fn open(umem: &Arc<Umem>, wanted: Wanted) -> Result<(Queue, Sender), OpenError> {
        wanted.check_sizes()?;
        let device = Device::open(wanted.ifindex, wanted.queue);
        let device = device.map_err(wanted.failed("reading its TX queues"))?;
        let rings = wanted.rings;
        let needed = u64::from(rings.fill) + u64::from(rings.completion) + u64::from(rings.transmit);
        let promise = umem.promise("a queue's fill, completion and TX ring", saturate(needed))?;
        let id = umem.new_queue()?;
        let mut copies_because = None;
        let opened = if wanted.zero_copy {
            bind_in_mode(umem, id, &wanted, true).or_else(|why| {
                if why.is(libc::EBUSY) {
                    // Another process has the queue. That says nothing about the driver, and copy mode would be for good.
                    return Err(why);
                }
                copies_because = Some(why.error);
                bind_in_mode(umem, id, &wanted, false)
            })
        } else {
            bind_in_mode(umem, id, &wanted, false)
        };
        let first = opened
            .inspect_err(|_| umem.end_queue(id, false))
            .map_err(|no| wanted.failed(no.what)(no.error))?;
        let fill = Fill::new(first.fill, rings);
        let slot =
            Slot::new(umem, id, first.socket, device, fill, (first.completion, rings.completion), promise);
        // From here on, the slot gives back everything when it is dropped.
        let slot = Arc::new(slot.map_err(wanted.failed("reading its mode"))?);
        slot.polls.set(slot.socket(), wanted.polling);
        let sender = Sender::new(slot.clone(), None, first.transmit, None);
        Ok((Queue::new(slot, wanted, copies_because), sender))
    }

    /// Opens another TX ring on this queue, for a worker that has no queue of its own on the port.
    ///
    /// # Errors
    /// There are too few frames, or the kernel refuses.
    pub fn another_sender(&self) -> Result<Sender, OpenError> {
        self.opener().sender()
    }
}

/// Opens more rings of a queue that a worker owns. The queue stays open as long as one of these exists.
#[derive(Clone)]
pub struct Opener {
    pub(super) slot: Arc<Slot>,
    pub(super) wanted: Wanted,
}

impl Opener {
    /// Sets the number of entries of RX rings that it opens.
    #[must_use]
    pub fn with_ring(mut self, entries: u32) -> Opener {
        self.wanted.rings.receive = entries;
        self
    }

    /// Like [`Queue::another_sender`].
    ///
    /// # Errors
    /// There are too few frames, or the kernel refuses.
    pub fn sender(&self) -> Result<Sender, OpenError> {
        let promise = self.slot.umem().promise("a TX ring", self.wanted.rings.transmit)?;
        let (socket, ring) = self.shared(Which::Transmit, self.wanted.rings.transmit)?;
        Ok(Sender::new(self.slot.clone(), Some(socket), Producer::new(ring), Some(promise)))
    }

    /// The settings that the queue was opened with.
    pub fn wanted(&self) -> Wanted {
        self.wanted
    }

    /// The namespace that it was opened in; `None`: it could not be found out.
    pub fn namespace(&self) -> Option<netns::Key> {
        self.slot.namespace()
    }

    /// Like [`Queue::check`].
    ///
    /// # Errors
    /// The port is down, gone, or without a carrier.
    pub fn check(&self) -> Result<(), Fault> {
        self.slot.check()
    }

    /// A socket with one ring; it shares the fill and completion ring of the queue.
    pub(super) fn shared(&self, which: Which, entries: u32) -> Result<(Socket, RingMemory), OpenError> {
        let wanted = self.wanted;
        let socket = Socket::open().map_err(wanted.failed(OPENING))?;
        let ring = socket.ring(which, entries).map_err(wanted.failed("making a ring"))?;
        let base = self.slot.socket().as_fd().as_raw_fd();
        socket
            .bind(wanted.ifindex, wanted.queue, 0, Some(base))
            .map_err(wanted.failed("sharing the queue"))?;
        self.slot.polls.set(&socket, wanted.polling);
        Ok((socket, ring))
    }
}

pub(super) fn saturate(frames: u64) -> u32 {
    u32::try_from(frames).unwrap_or(u32::MAX)
}

/// Binds the first socket of a queue: with the memory of another socket of that mode, or registers the memory. If another socket has
/// the queue, it waits a moment.
fn bind_in_mode(umem: &Arc<Umem>, id: QueueId, wanted: &Wanted, zero_copy: bool) -> Result<First, Refused> {
    let begun = Instant::now();
    loop {
        match bind_once(umem, id, wanted, zero_copy) {
            Err(refused) if refused.is(libc::EBUSY) && begun.elapsed() < LETS_GO => {
                thread::sleep(Duration::from_millis(5));
            }
            bound => return bound,
        }
    }
}

fn bind_once(umem: &Arc<Umem>, id: QueueId, wanted: &Wanted, zero_copy: bool) -> Result<First, Refused> {
    // Locked until this is done: listed sockets stay open, and two threads do not register the memory at once.
    let mut anchors = umem.anchors();
    let mut others: Vec<i32> =
        anchors.iter().filter(|anchor| anchor.zero_copy == zero_copy).map(|anchor| anchor.fd).collect();
    let first = loop {
        // Without another socket, this one registers the memory.
        let shared = others.pop();
        match bind_to(umem, wanted, zero_copy, shared) {
            // The device of that socket is gone, so the next one is tried.
            Err(refused) if shared.is_some() && refused.is(libc::EBADF) => {}
            bound => break bound?,
        }
    };
    anchors.push(Anchor { queue: id, zero_copy, fd: first.socket.as_fd().as_raw_fd() });
    Ok(first)
}

/// XDP_USE_NEED_WAKEUP saves system calls while rings show that the kernel is at work. It is not used in zero-copy mode: with it, some
/// drivers (ice, i40e, ixgbe) end their poll at a full RX ring (`ice_run_xdp_zc`: ICE_XDP_EXIT), so a path that is not read would stop
/// its queue. Without it, they drop packets that find the ring full. Sockets that share the memory have the flag of the socket that they
/// share it with.
fn flags(zero_copy: bool) -> u16 {
    if zero_copy { libc::XDP_ZEROCOPY } else { libc::XDP_COPY | libc::XDP_USE_NEED_WAKEUP }
}

fn bind_to(umem: &Umem, wanted: &Wanted, zero_copy: bool, shared: Option<i32>) -> Result<First, Refused> {
    let socket = Socket::open().map_err(Refused::to(OPENING))?;
    if shared.is_none() {
        socket.register(umem).map_err(Refused::to(REGISTERING))?;
    }
    let ring = |which, entries| socket.ring(which, entries).map_err(Refused::to("making a ring"));
    let rings = wanted.rings;
    let fill = ring(Which::Fill, rings.fill)?;
    let completion = Consumer::new(ring(Which::Completion, rings.completion)?);
    let transmit = Producer::new(ring(Which::Transmit, rings.transmit)?);
    let bound = socket.bind(wanted.ifindex, wanted.queue, flags(zero_copy), shared);
    bound.map_err(Refused::to("binding"))?;
    Ok(First { socket, fill, completion, transmit })
}
