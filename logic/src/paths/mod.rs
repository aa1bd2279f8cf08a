//! The forwarding paths of the user plane on their workers: who runs next and how long, by what it really costs (P5 to P8, P10,
//! P12).
//!
//! A worker asks a [`Scheduler`] which path runs next ([`Scheduler::pick`]), runs it for up to [`Next::burst`] packets, and says what that
//! took ([`Scheduler::charge`]). It measures what it is told to ([`Next::measure`]). Once in a control period it says which
//! resource is the scarce one ([`Saturation`], [`Scheduler::share`]).
//!
//! | file | holds |
//! |---|---|
//! | [`stride`] | tickets and passes: who is next (P5) |
//! | [`class`] | which packets are a path's (P4) |
//! | [`rows`] | the same, as the kernel plane compares it |
//! | `scheduler` | paths of virtual routers on one worker (P12) |
//! | `slot` | one path there; what a run is charged (P6, P7) |
//! | `idle` | tickets of paths that find no work (P5) |
//! | `resource` | what is used and may be scarce, and which of it is counted on this machine (P7) |
//! | [`cost`] | what a packet of each path takes, and when that is measured (P6, P7) |
//! | `saturation` | which resource is the scarce one now (P7) |
//! | [`burst`] | how many packets a run may have (P8) |
//! | [`calibrate`] | what a context switch costs (P8) |
//! | [`printed`] | the paper's formula for tickets (P6), to compare with |
//! | [`place`] | which path goes to which core (P10) |
//! | [`layout`] | which worker has which queue, RX ring and TX ring |
//!
//! # What is charged
//! P6 makes paths equal by their tickets, `T_i = DTV C_total / (N C_i) W_i`, where every run counts alike: a path that costs twice as
//! much gets half the tickets. That is right if runs have equally many packets. P8 gives a path `BURST_i = (R - C_cs) / C_i`
//! packets in a run, so that all runs take R: then runs *are* alike, and tickets by cost make dear paths pay twice. Of two whose
//! packets cost 1 and 10, with equal weights, the dear one gets 1/11 of the core.
//!
//! The exact form needs neither: tickets are the weights, and a run advances its path's pass by what it used of the scarce
//! resource, the context switch included, times the stride. Shares then hold for any bursts, also where rings hold fewer
//! packets than a burst, or a path's cost changes. For equal bursts it *is* P6: a pass that advances by `C_i / W_i` is one that advances
//! by `1 / T_i`, but for a factor that all have. Tests run both (`tests/shares.rs`).
//!
//! # Two levels
//! Virtual routers have weights, and in each its paths do (P12). A router is picked by what all its paths used, then one of its paths.
//! With weights that are multiplied out into one list, the part of a path that has nothing to do would go to all others by
//! their weights: of two equal routers with ten equal paths each, one that has a single busy path would get 1/11 of the core beside ten
//! busy ones. Here it gets the half it was promised, and what *it* does not want goes to the other. Nor is there anything to be done
//! to weights when paths come, go, sleep or wake. And it is cheaper: eight routers of eight paths are two scans of 8, not one of 64.
//!
//! A router's share is of each worker on which it has paths.

pub mod burst;
pub mod calibrate;
pub mod class;
pub mod cost;
mod idle;
pub mod layout;
pub mod place;
pub mod printed;
mod resource;
pub mod rows;
mod saturation;
mod scheduler;
mod slot;
pub mod stride;

pub use burst::Bursts;
pub use cost::{Cost, Sampler};
pub use resource::{Counters, NotCounted, RESOURCES, Resource, Used};
pub use saturation::{SATURATED, Saturation, Share, Utilisation};
pub use scheduler::{Account, Handle, Next, Refused, Scheduler};
pub use slot::{Path, PathId, Run, Settings};

#[cfg(test)]
mod tests;
