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
//! | [`results`], [`latency`], [`reaction`] | what is counted |
//! | [`worker`] | one worker of the user plane, independent of the rest, with the real [`crate::paths::Scheduler`] |
//!
//! # The model
//!
//! Time advances in slices of 100 us. In each slice, packets arrive at the ring of a queue, its core divides its time
//! among its queues and applications, and packets leave. Then the newest packets that the ring cannot hold are dropped.
//! All packets are counted, and none is lost by rounding: each packet that was sent was forwarded or dropped, or waits.
//! At the end of every control period of 10 ms the allocator sees the measurements that `router` would make, and its
//! plan is applied at once.
//!
//! * A core needs [`Cost::ns_per_packet`] for a packet, and more at low load, when every few packets wake it.
//! * Queues share a core max-min fairly, like threads of one priority over a long time. Applications get the rest, or
//!   share in the same way ([`Sharing`]).
//! * Hyper-thread siblings slow each other down according to their work in the slice before.
//! * A split queue costs its home [`Cost::hand_on_ns`] for each packet handed on. The other core begins with it in the
//!   next slice.
//! * A queue's `waited` follows from processor sharing: `ran / share - ran`, where the share is what other queues
//!   leave.
//!
//! # Limits, and the errors that they cause
//!
//! * Packets of a slice arrive evenly over it. Bursts shorter than 100 us are not modelled, so a ring that such a burst
//!   would fill is not full here. The error of a ring's filling is less than the packets of a slice.
//! * The waiting time is that of the middle packet of those that arrived and left together. Quantiles are correct to
//!   half a slice (50 us) if packets stay for another slice, to half a wake-up if they do not, and to a slice more if
//!   they are handed on.
//! * The time slices of a scheduler (milliseconds) are not modelled. If applications share fairly, packets wait longer
//!   in reality and rings fill. With one queue on a core that has time left, there is no difference.
//! * Switching between queues on a core is free, so many queues on a core are a little too cheap. Cold caches after a
//!   move and memory of another NUMA node are free, too. Neither was measured.
//! * Below a twentieth of the saturating load, a packet costs more than modelled (at 84 kpps 1,640 ns were measured,
//!   and the formula gives 908). Cores that sleep longer get colder.
//! * The order of packets, transmit rings and the wire are not modelled.

mod core;
mod cost;
mod latency;
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
/// The time between decisions of the allocator.
const PERIOD: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests;
