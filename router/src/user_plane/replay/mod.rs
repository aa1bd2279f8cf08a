//! Runs the user plane over captures, with one worker, and without privileges and devices (`millrace paths run`).
//!
//! ```text
//! Input, one for each file ──► by time ──► Rings: a class, a bounded ring for each path
//!                                             │
//!                                     logic::worker::Worker
//!                                             │ Replay::settle: counted, once
//! Outputs: all, or by port ◄── Order: as they came in ◄──┴──► up, dropped: counted only
//! ```
//!
//! * Files are read only as fast as the rings have room. So no packet is lost for lack of speed, and its fate does not depend on this
//!   machine.
//! * The clock of the paths is the time stamps of the files: a `police` of 1,000 packets per second passes as many in a second of the
//!   capture.
//! * Runs are charged the time that they take by the machine's clock, in nanoseconds instead of cycles, sampled (P6). So the order of
//!   paths differs from run to run, but packets leave in the order in which they came ([`order::Order`]).
//!
//! | file | holds |
//! |---|---|
//! | `tables.rs` | ports and routes of the configuration as forwarding tables |
//! | `packet.rs` | [`packet::Packet`]: a frame in memory of its own |
//! | `input.rs`, `output.rs` | pcap files |
//! | `order.rs` | restores the order of packets |
//! | `run.rs` | [`run()`] |
//! | `report.rs` | the report |

mod input;
mod order;
mod output;
mod packet;
mod report;
mod run;
pub(crate) mod tables;
#[cfg(test)]
mod tests;

pub use input::Input;
pub use output::Outputs;
pub(crate) use report::elements;
pub use report::{PathReport, PathsReport};
pub use run::run;
pub(crate) use run::worker;
