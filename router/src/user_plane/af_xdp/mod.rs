//! AF_XDP: packets of a port in user space and out of it again, owned by one worker on the way (P1-P4, P9).
//!
//! ```text
//!            Umem: one memory of frames; who holds each; a depot of free ones, and what is promised of them
//!              │ 64 frames at a time
//!            Pool: a worker's free frames ────────────── Buffer: a packet in one frame
//!              │ ▲                                            ▲             │
//!         fill │ │ completion                                 │             │ Output::send: TX ring, auxiliary queue
//!              ▼ │                                            │             ▼
//!            Queue: fill ring, completion ring    Receiver: RX ring of a path    Sender: a TX ring
//! ```
//!
//! * [`Umem`] is the memory, registered once and shared by all sockets (XDP_SHARED_UMEM). Each frame has a holder: user space, or
//!   the kernel through one queue. A frame that the kernel hands over is taken only if it was given to it there, so two
//!   [`Buffer`]s of one frame cannot be, whatever a driver writes into a ring.
//! * [`Buffer`] owns a frame: neither `Copy` nor `Clone`, and not `Send`, as a packet stays on its core (P2). Dropping it gives
//!   the frame back to its [`Pool`].
//! * [`Queue`] is what one worker owns of an RX queue of a port: the kernel gives a queue one fill and one completion ring, whatever
//!   the number of its sockets, so one thread has them. [`Receiver`] is an RX ring; each path has its own (P4): a path that is
//!   not read overflows that ring and nothing else. Its worker reads it, the queue's owner or another, whose frames go back through the depot.
//!   [`Sender`] is a TX ring: the first comes with the queue; a worker without a queue of its own on a port gets another
//!   ([`Opener`]). Those frames complete in the owner's ring, into the owner's pool, and come back through the depot; without
//!   an owner, its senders take them back. Who finds a fill ring low, or a completion ring full, does not wait for its owner.
//! * [`Output`] is a sender with the auxiliary queue of P3, and [`RingSet`] all rings of a worker: it receives from all its queues in turns (P9). [`Io`] is that
//!   with a pool.
//!
//! No frame is missing, by construction: whatever can hold frames says how many at most when it is made, and is refused
//! ([`OpenError::TooFewFrames`]) if all that were promised together exceed what there is: the memory without frames that are retired.
//! So the pool always exceeds the RX rings and what is in flight, and nobody's hoard starves a neighbour.
//!
//! Who writes what: a ring's producer index, entries and consumer index have one writer each, as `ring.rs` says. A frame's holder is
//! written by who has the frame: user space before it gives it to a ring, and after it took it from one. The depot has a lock,
//! taken once for 64 frames, and by nobody as long as workers send what they receive.
//!
//! Over the kernel's own interface (`linux/if_xdp.h`) and not over xsk-rs: that is libxdp, which finds the rings of a queue by
//! (ifindex, queue) without the namespace, so that it confuses veths of equal index; its frame descriptors are `Copy`, and
//! frames reached through `unsafe` only; and what it would save are some ten system calls, in `socket.rs`.
//!
//! | file | holds |
//! |---|---|
//! | `umem.rs` | [`Umem`]: memory, holders, depot, promises |
//! | `buffer.rs` | [`Pool`], [`Buffer`] (`unsafe` lives here) |
//! | `ring.rs` | producers and consumers, and their memory ordering |
//! | `ring_memory.rs` | a mapped ring as atomic words (`unsafe` lives here) |
//! | `socket.rs` | system calls (`unsafe` lives here) |
//! | `descriptor.rs` | what the kernel puts into a ring, checked |
//! | `queue.rs`, `open.rs` | [`Queue`]: filling, completing; opened in the mode the driver can |
//! | `receiver.rs` | [`Receiver`] |
//! | `fill.rs` | a queue's fill ring |
//! | `polls.rs` | whether the kernel polls a device when it is asked for packets |
//! | `bell.rs` | [`Bell`]: what a sleeping worker is woken by, beside packets |
//! | `sender.rs`, `output.rs` | [`Sender`], [`Output`] |
//! | `device.rs` | what a port's sockets do not tell: its TX queues, its carrier |
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
pub(crate) use umem::Promise;
pub use umem::Umem;

use std::io::Error as IoError;

/// Paths of a worker, at most: as many as its scheduler has tasks.
pub const MOST_PATHS: usize = logic::paths::stride::MOST_TASKS;

/// Why something cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(
        "{what} may hold {needed} frames; of {frames}, {promised} are promised to others, {retired} retired"
    )]
    TooFewFrames { what: &'static str, needed: u32, promised: u32, retired: u32, frames: u32 },
    #[error("a ring of {0} entries: the kernel wants a power of two, and at least 64 are useful")]
    RingSize(u32),
    #[error("{0} frames of {1} bytes: a frame has 2048 or 4096, and there are at most 2^24")]
    Frames(u32, u32),
    #[error("path {0}: they are numbered from 0 to {last}", last = MOST_PATHS - 1)]
    PathNumber(usize),
    #[error("more than {0} queues")]
    TooManyQueues(usize),
    #[error("queue {queue} of device {ifindex}: {what}")]
    Kernel { what: &'static str, ifindex: u32, queue: u32, source: IoError },
    #[error("memory for packets")]
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
