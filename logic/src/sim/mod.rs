//! A machine that forwards, in virtual time: the very same [`crate::cores::Allocator`] on 1 to 128 cores, without the cores.
//!
//! A [`Scenario`] says which cores there are, what comes to which queues, what else runs and what a packet costs;
//! [`Scenario::run`] says what became of it ([`Results`]) under a [`Placement`]. Everything is seeded: the same scenario gives the
//! same results on every machine.
//!
//! | file | holds |
//! |---|---|
//! | [`scenario`] | what is simulated, as data |
//! | [`traffic`], [`random`] | how many packets come to each queue |
//! | [`cost`] | what forwarding takes of a core, from measurements |
//! | [`core`], [`ring`] | a core that shares its time; packets that wait for it |
//! | [`run`], [`place`] | slice by slice; what the allocator sees and changes |
//! | [`results`], [`latency`], [`reaction`] | what is counted |
//! | [`worker`] | one worker of the user plane, apart from all that: the very same [`crate::paths::Scheduler`] |
//!
//! # What is modelled
//!
//! Time goes in slices of 100 us. In each, packets come to the ring of a queue, its core shares its time among its queues and
//! applications, and packets leave; what the ring cannot hold then is dropped, the newest first. All packets are counted, none is
//! lost to rounding: what was sent was forwarded, dropped or waits. At the end of every control period of 10 ms the allocator
//! sees what `router` would have measured, and its plan is applied at once.
//!
//! * A core takes [`Cost::ns_per_packet`] for a packet, and more at low load, when every few packets wake it.
//! * Queues share a core max-min fairly, as threads of one priority do in the long run. Applications get what is left, or share
//!   in the same way ([`Sharing`]).
//! * Hyper-thread siblings slow each other down by what they did in the slice before.
//! * A queue that is split costs its home [`Cost::hand_on_ns`] for each packet handed on, which the other core begins with in the
//!   next slice.
//! * A queue's `waited` is what processor sharing makes of it: `ran / share - ran`, where the share is what other queues leave.
//!
//! # What is not, and how wrong that is
//!
//! * Packets of a slice come evenly spread over it. A burst shorter than 100 us is not seen: a ring that it would fill is not full
//!   here. The error of a ring's filling is below what comes in a slice.
//! * Waiting is that of the middle packet of those that came and left together: quantiles are right to half a slice (50 us) where
//!   packets stay for another slice, to half a wake-up where they do not, and to a slice more where they are handed on.
//! * The time slices of a scheduler (milliseconds) are not modelled. Where applications share fairly, packets wait longer in reality
//!   and rings fill; with one queue on a core that has time left, nothing does.
//! * Switching from one queue to another on the same core is free: many queues on a core are a little too cheap. So are caches that
//!   a queue finds cold after a move, and memory of another NUMA node: neither was measured.
//! * Below a twentieth of the saturating load a packet costs more than modelled (at 84 kpps 1,640 ns were measured where the formula
//!   says 908): cores that sleep longer get colder.
//! * The order of packets, transmit rings and the wire.

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
/// After which the allocator decides.
const PERIOD: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests;
