//! AF_XDP: receives packets of a port in user space, and sends them. One worker owns a packet on the way (P1-P4, P9).
//!
//! ```text
//!            Umem: the memory of all frames; the holder of each; the depot of free ones; promises
//!              │ 64 frames at a time
//!            Pool: a worker's free frames ────────────── Buffer: a packet in one frame
//!              │ ▲                                            ▲             │
//!         fill │ │ completion                                 │             │ Output::send: TX ring, auxiliary queue
//!              ▼ │                                            │             ▼
//!            Queue: fill ring, completion ring    Receiver: RX ring of a path    Sender: a TX ring
//! ```
//!
//! * [`Umem`] is the memory, registered once and shared by all sockets (XDP_SHARED_UMEM). Each frame has a holder: user space, or
//!   the kernel through one queue. A frame is accepted from the kernel only if that queue gave it to the kernel before. So there
//!   cannot be two [`Buffer`]s of one frame, whatever a driver writes into a ring.
//! * [`Buffer`] owns a frame. It is neither `Copy` nor `Clone`, and not `Send`, because a packet stays on its core (P2). Dropping it
//!   gives the frame back to its [`Pool`].
//! * [`Queue`] is the part of an RX queue that one worker owns: the kernel gives a queue one fill and one completion ring, whatever
//!   the number of its sockets, so one thread has them. [`Receiver`] is an RX ring. Each path has its own (P4), so a path that is
//!   not read overflows only that ring. The worker of the path reads it. If this is not the queue's owner, its frames return
//!   through the depot. [`Sender`] is a TX ring. The first comes with the queue; a worker without a queue of its own on a port gets
//!   another ([`Opener`]). Frames of such a ring complete in the owner's ring and into the owner's pool, and return through the
//!   depot. Without an owner, the senders take them back. A worker that finds a fill ring low, or a completion ring full, does not
//!   wait for the owner.
//! * [`Output`] is a sender with the auxiliary queue of P3. [`RingSet`] has all rings of a worker, and receives from all its queues
//!   in turns (P9). [`Io`] is a [`RingSet`] with a pool.
//!
//! No frame can be missing. Everything that can hold frames states how many when it is made. It is refused
//! ([`OpenError::TooFewFrames`]) if all promises together exceed the memory without retired frames. So the pool always exceeds the
//! RX rings and the frames in flight, and nothing starves a neighbour of frames.
//!
//! Writers: a ring's producer index, entries and consumer index have one writer each, as `ring.rs` says. Only the owner of
//! a frame writes its holder: user space does before it gives the frame to a ring, and after it took it from one. The
//! depot has a lock, which is taken once for 64 frames, and never while workers send what they receive.
//!
//! This uses the kernel's own interface (`linux/if_xdp.h`), not xsk-rs, which wraps libxdp. libxdp finds the rings of a queue by
//! (ifindex, queue) without the namespace, so it confuses veths of equal index. Its frame descriptors are `Copy`, and frames can be
//! reached only through `unsafe`. It would save only about ten system calls, in `socket.rs`.
//!
//! | file | holds |
//! |---|---|
//! | `umem.rs` | [`Umem`]: memory, holders, depot, promises |
//! | `buffer.rs` | [`Pool`], [`Buffer`] (with `unsafe`) |
//! | `ring.rs` | producers and consumers, and their memory ordering |
//! | `ring_memory.rs` | a mapped ring as atomic words (with `unsafe`) |
//! | `socket.rs` | system calls (with `unsafe`) |
//! | `descriptor.rs` | checks entries that the kernel puts into a ring |
//! | `queue.rs`, `open.rs` | [`Queue`]: fills and completes; opened in a mode that the driver supports |
//! | `receiver.rs` | [`Receiver`] |
//! | `fill.rs` | a queue's fill ring |
//! | `polls.rs` | whether the kernel polls a device when it is asked for packets |
//! | `bell.rs` | [`Bell`]: wakes a sleeping worker, as packets do |
//! | `sender.rs`, `output.rs` | [`Sender`], [`Output`] |
//! | `device.rs` | what sockets of a port do not show: its TX queues, its carrier |
//! | `io.rs` | [`RingSet`], [`Io`] |

mod bell;
mod buffer;
mod descriptor;
mod device;
mod fill;
mod io;
mod open;
mod output;
mod polls;
mod queue;
mod receiver;
mod ring;
mod ring_memory;
mod sender;
mod socket;
#[cfg(test)]
mod tests;
mod umem;

pub use bell::Bell;
pub use buffer::{Buffer, HEAD_ROOM, POOL_FRAMES, Pool};
pub use io::{Closed, Io, RingSet};
pub use open::{Opener, Polling, Rings, Wanted};
pub use output::{Mark, Output, OutputCounts};
pub use polls::NotPolled;
pub use queue::{Queue, QueueCounts};
pub use receiver::Receiver;
pub use sender::Sender;
pub use socket::Statistics;
pub use umem::Umem;

use std::io::Error as IoError;

/// The most paths of a worker: as many as its scheduler has tasks.
pub const MOST_PATHS: usize = logic::paths::stride::MOST_TASKS;

/// Why something cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(
        "{what} needs {needed} frames; of {frames}, {promised} are promised to others and {retired} retired"
    )]
    TooFewFrames { what: &'static str, needed: u32, promised: u32, retired: u32, frames: u32 },
    #[error("a ring of {0} entries is not possible: the size must be a power of two, and at least 64")]
    RingSize(u32),
    #[error(
        "{0} frames of {1} bytes are not possible: a frame has 2048 or 4096 bytes, and there are at most 2^24"
    )]
    Frames(u32, u32),
    #[error("path {0} is not possible: paths are numbered from 0 to {last}", last = MOST_PATHS - 1)]
    PathNumber(usize),
    #[error("more than {0} queues are not possible")]
    TooManyQueues(usize),
    #[error("queue {queue} of device {ifindex}: {what}")]
    Kernel { what: &'static str, ifindex: u32, queue: u32, source: IoError },
    #[error("cannot allocate the memory for packets")]
    Memory(#[source] IoError),
}

/// Why a port carries no packets now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("the port is down")]
    Down,
    #[error("the port is gone")]
    Gone,
    #[error("the port has no carrier")]
    NoCarrier,
    #[error("the port has no TX queue of that number")]
    NoTransmitQueue,
}
