//! The user plane: takes packets of paths from AF_XDP rings, runs elements over them, and sends them.
//!
//! | module | does |
//! |---|---|
//! | [`af_xdp`] | receives packets of ports in user space, and sends them |
//! | [`calibrate`] | measures a switch between paths, and the memory bandwidth |
//! | [`captures`] | writes the files that packets are copied to |
//! | [`crypto`] | AES-GCM for ESP, by the fastest library on this machine |
//! | [`other_work`] | measures what else runs on the cores of workers |
//! | [`planner`] | plans of workers, from what the control loop wants |
//! | [`replay`] | runs packets of captures through paths |
//! | [`running`] | the daemon's thread that controls workers |
//! | [`sas`] | security associations: reads keys, notes sequence numbers |
//! | [`seam`] | the interface to the control loop |
//! | [`tally`] | counters of workers that never go down |
//! | [`workers`] | threads that run paths over `af_xdp` |

pub mod af_xdp;
pub mod calibrate;
pub mod captures;
pub mod crypto;
pub mod other_work;
mod planner;
pub mod replay;
pub mod running;
pub mod sas;
pub mod seam;
pub mod tally;
pub mod workers;
