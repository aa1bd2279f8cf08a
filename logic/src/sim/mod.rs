//! A machine that forwards, in virtual time. It runs the real [`crate::cores::Allocator`] for 1 to 128 simulated cores.
//!
//! A [`Scenario`] describes the cores, the packets that arrive at each queue, other work, and the cost of packets.
//! [`Scenario::run`] returns the results under a [`Placement`] ([`Results`]). Everything is seeded, so a scenario gives
//! the same results on every machine.
//!
//! | file | holds |
//! |---|---|
//! | [`scenario`] | the description of a simulation, as data |
//! | [`traffic`], [`random`] | how many packets arrive at each queue |
//! | [`cost`] | the cost of forwarding on a core |
//! | [`core`], [`ring`] | a core that divides its time; packets that wait for it |
//! | [`run`], [`place`] | the run, slice by slice; what the allocator sees and changes |
//! | [`oracle`] | a placement that knows the future |
//! | [`results`], [`latency`], [`reaction`] | what is counted |
//! | [`worker`] | one worker of the user plane, independent of the rest, with the real [`crate::paths::Scheduler`] |
//!
//! # The model
//!
//! Packets arrive one by one at the ring of a queue. A core polls its queues in turn. A poll takes up to 64 packets,
//! including those that arrive during the poll. A packet that finds its ring full is dropped. All packets are
//! counted: each packet that was sent was forwarded or dropped, or waits. Cores are simulated in slices of 100 us,
//! and in rounds of 5 us while they may hand packets to each other. At the end of every control period of 10 ms the
//! allocator sees the measurements that `router` would make, and its plan is applied at once.
//!
//! * A core needs [`Cost::ns_per_packet`] for a packet, and [`Cost::wake_ns`] more for the first one after a pause.
//! * Queues take turns, poll by poll, and share the core's time fairly. Applications get the rest, or take turns like
//!   a queue, for up to 10 us at a time ([`Sharing`]).
//! * Hyper-thread siblings slow each other down according to their work in the slice before.
//! * The core of a split queue hands packets on in eights, and at the end of a poll. If the other core sleeps, the
//!   queue's core wakes it. Each packet of a split queue belongs to one of 64 buckets of flows, at random.
//! * A core that takes too many full polls in a row shares its queues with another core, if the allocator has
//!   prepared help ([`crate::cores::Help`]). The first helper of a queue gets half of its buckets.
//!
//! # Limits, and the errors that they cause
//!
//! * Packets that are handed on reach the other core in the next round, up to 5 us late.
//! * The time slices of a scheduler (milliseconds) are not modelled. In reality, packets wait longer and rings fill
//!   if several NAPI threads, or applications, take such slices on one core. With one queue on a core that has time
//!   left, there is no difference.
//! * Switching between queues on a core is free, so many queues on a core are a little too cheap. Cold caches after a
//!   move and memory of another NUMA node are free, too. Neither was measured.
//! * Below a twentieth of the saturating load, a packet costs more than modelled (at 84 kpps 1,640 ns were measured,
//!   and the formula of [`Cost`] gives 908). Cores that sleep longer get colder.
//! * Each packet of a split queue draws its bucket. So a single flow is divided, too, which the kernel plane never does.
//! * The order of packets, transmit rings and the wire are not modelled. A simulated core is never taken away, as a
//!   hypervisor takes virtual cores away.

mod core;
mod cost;
mod latency;
mod oracle;
mod place;
mod random;
mod reaction;
mod results;
mod ring;
mod run;
mod scenario;
mod traffic;
pub mod worker;

pub use cost::Cost;
pub use latency::Latency;
pub use results::{Cores, Move, Results};
pub use scenario::{
    Application, Arrivals, BadScenario, Machine, Placement, Point, Rate, Scenario, Sharing, SimPort, Source,
};

use std::time::Duration;

const NS_PER_SECOND: u64 = 1_000_000_000;
const SLICE_NS: u64 = 100_000;
const ROUND_NS: u64 = 5_000;
/// The time between decisions of the allocator.
const PERIOD: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests;
