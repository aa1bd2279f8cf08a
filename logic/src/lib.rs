//! Every decision Millrace takes, as pure functions and plain data: no I/O, no unsafe, no clock.
//!
//! | module | decides |
//! |---|---|
//! | [`observe`] | nothing: the words in which `router` reports what Linux looks like |
//! | [`mirror`] | from what was observed: which routers are safe, what their tables should hold ([`plan::Op`]) |
//! | [`learned`] | which destinations Linux is asked about, and which it forwards to in its own way |
//! | [`plan`] | nothing: the words in which a plan is written |
//! | [`memory`], [`hash`] | nothing: the words of memory both planes share, and how they are found |
//! | [`multipath`] | which member of a multipath route Linux chooses |
//! | [`tables`] | how a plan becomes words of memory: interface index, next hops, neighbours, roots |
//! | [`fib`] | the forwarding table itself |
//! | [`steer`] | which flows a NIC's classifier steers, and to which queues |
//! | [`cores`] | which core each RX queue is placed on |
//! | [`share`] | what each router may take of a core that is full
//! | [`paths`] | which forwarding path of the user plane runs next on a worker, how long, and on which worker
//! | [`elements`] | what those paths do with their packets
//! | [`esp`] | security associations: keys, sequence numbers, windows
//! | [`worker`] | nothing: lets `paths` pick and `elements` run, wherever packets come from
//! | [`flow`] | flow rules: what they match and do, and what the flow tables hold |
//! | [`sim`] | nothing: the allocator of `cores`, and a worker of `paths`, in virtual time
//! | [`openflow`] | nothing: OpenFlow messages on the wire |
//! | [`cpus`] | nothing: sets of cores as the kernel writes them |
//!
//! Time is an argument, memory that programs share is an argument, and everything is deterministic.
#![forbid(unsafe_code)]

pub mod cores;
pub mod cpus;
pub mod elements;
pub mod esp;
pub mod fib;
pub mod flow;
pub mod hash;
pub mod learned;
pub mod memory;
pub mod mirror;
pub mod multipath;
pub mod net;
pub mod observe;
pub mod openflow;
pub mod paths;
pub mod plan;
pub mod reason;
pub mod share;
pub mod sim;
pub mod steer;
pub mod tables;
pub mod worker;
