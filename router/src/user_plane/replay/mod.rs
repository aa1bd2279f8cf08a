//! The user plane over captures: one worker, no privileges, no devices (`millrace paths run`).
//!
//! ```text
//! Input, one for each file ──► by time ──► Rings: a class, a bounded ring for each path
//!                                             │
//!                                     logic::worker::Worker
//!                                             │ Replay::settle: counted, once
//! Outputs: all, or by port ◄── Order: as they came in ◄──┴──► up, dropped: counted only
//! ```
//!
//! * The file is read as fast as the rings have room, so nothing is lost for want of speed, and what becomes of a packet does not
//!   depend on this machine.
//! * The clock of the paths is the time stamps of the files: a `police` of 1,000 packets a second passes as many in a second of the capture.
//! * Runs are charged what they take by the machine's clock, nanoseconds in place of cycles, sampled (P6). So which path runs first differs from
//!   one time to the next; packets leave in the order in which they came nevertheless ([`order::Order`]).
//!
//! | file | holds |
//! |---|---|
//! | `tables.rs` | ports and routes of the configuration as forwarding tables |
//! | `packet.rs` | [`packet::Packet`]: a frame in memory of its own |
//! | `input.rs`, `output.rs` | pcap files |
//! | `order.rs` | packets back in order |
//! | `run.rs` | [`run()`] |
//! | `report.rs` | what is told of it |

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
