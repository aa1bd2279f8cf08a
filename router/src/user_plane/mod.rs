//! The user plane: packets of paths, from AF_XDP rings through elements and out again.
//!
//! | module | does |
//! |---|---|
//! | [`af_xdp`] | packets of ports in user space and out again |
//! | [`calibrate`] | what a switch from path to path takes |
//! | [`captures`] | files that packets are copied to |
//! | [`crypto`] | AES-GCM for ESP, by the fastest library there is |
//! | [`other_work`] | what else runs on cores of workers |
//! | [`replay`] | packets of captures through paths |
//! | [`running`] | workers of the daemon, in a thread of their own |
//! | [`sas`] | security associations: keys, sequence numbers noted |
//! | [`seam`] | what the control loop wants of it |
//! | [`tally`] | counters of workers, whatever becomes of these |
//! | [`workers`] | threads that run paths over `af_xdp` |

pub mod af_xdp;
pub mod calibrate;
pub mod captures;
pub mod crypto;
pub mod other_work;
pub mod replay;
pub mod running;
pub mod sas;
pub mod seam;
pub mod tally;
pub mod workers;
