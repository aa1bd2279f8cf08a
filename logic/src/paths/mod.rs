//! The scheduling of the user plane's paths on their workers: which path runs next and for how long, by its real cost
//! (P5 to P8, P10, P12).
//!
//! A worker asks a [`Scheduler`] which path runs next ([`Scheduler::pick`]), runs it for up to [`Next::burst`] packets,
//! and reports what that took ([`Scheduler::charge`]). It measures the runs that the scheduler selects
//! ([`Next::measure`]). Once in a control period it sets the scarce resource ([`Saturation`], [`Scheduler::share`]).
//!
//! | file | holds |
//! |---|---|
//! | [`stride`] | tickets and passes: which task is next (P5) |
//! | [`class`] | which packets belong to a path (P4) |
//! | [`rows`] | classes in the form in which the kernel plane compares them |
//! | `scheduler` | paths of virtual routers on one worker (P12) |
//! | `slot` | one path of a scheduler; what a run is charged (P6, P7) |
//! | `idle` | tickets of paths that find no work (P5) |
//! | `resource` | the resources that may be scarce, and which of them this machine counts (P7) |
//! | [`cost`] | what a packet of each path takes, and when that is measured (P6, P7) |
//! | `saturation` | which resource is the scarce one now (P7) |
//! | [`burst`] | how many packets a run may have (P8) |
//! | [`calibrate`] | the cost of a context switch (P8) |
//! | [`printed`] | the paper's formula for tickets (P6), for comparison |
//! | [`place`] | which path goes to which core (P10) |
//! | [`layout`] | which worker has which queue, RX ring and TX ring |
//!
//! # What is charged
//! P6 makes paths equal by their tickets, `T_i = DTV C_total / (N C_i) W_i`, where every run counts alike. A path that
//! costs twice as much gets half the tickets. That is right if runs have equally many packets. P8 gives a path
//! `BURST_i = (R - C_cs) / C_i` packets in a run, so that all runs take R. Then runs *are* alike, and tickets by cost
//! make expensive paths pay twice. If the packets of two paths cost 1 and 10, with equal weights, the expensive path
//! gets 1/11 of the core.
//!
//! The exact form needs neither. Tickets are the weights, and a run advances its path's pass by its use of the scarce
//! resource, including the context switch, times the stride. Shares then hold for any bursts, also if rings hold fewer
//! packets than a burst, or if a path's cost changes. For equal bursts it *is* P6: a pass that advances by `C_i / W_i`
//! advances by `1 / T_i`, except for a factor that is the same for all. Tests run both (`tests/shares.rs`).
//!
//! # Two levels
//! Virtual routers have weights, and so have the paths in each of them (P12). First a router is picked by what all its
//! paths used, and then one of its paths. The alternative is one list with multiplied weights. There the part of an
//! idle path would go to all other paths by their weights. Take two equal routers with ten equal paths each: a router
//! with a single busy path would get 1/11 of the core beside ten busy ones. Here it gets the promised half, and the
//! part that *it* does not want goes to the other router. Weights need no update when paths come, go, sleep or wake.
//! Two levels are also cheaper: eight routers of eight paths are two scans of 8, not one of 64.
//!
//! A router's share applies to each worker on which it has paths.

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
