//! Everything that touches Linux: the kernel plane, netlink, namespaces, the daemon and its command line.
//!
//! | module | does |
//! |---|---|
//! | [`plane`] | loads and attaches the XDP program, maps its memory, reads its counters |
//! | [`daemon`] | observes, decides (in `logic`), applies; answers the API |
//! | [`af_xdp`] | packets of ports in user space and out again |
//! | [`calibrate`] | what a switch from path to path takes |
//! | [`workers`] | threads that run forwarding paths over `af_xdp` |
//! | [`paths`] | packets of captures through forwarding paths |
//! | [`captures`] | files that packets are copied to, of both |
//! | [`sas`] | security associations of a path file: keys, sequence numbers noted |
//! | [`crypto`] | AES-GCM for ESP, by the fastest library there is |
//! | [`switch`] | flow rules: the thread that owns them, what clients ask of it, connections to OpenFlow controllers |
//! | [`observer`] | turns what Linux reports, in every namespace involved, into events |
//! | [`netlink`], [`hazards`], [`ethtool`], [`netns`] | how it is asked |
//! | [`multipath`] | by which key Linux chooses among the next hops of a route |
//! | [`cores`] | cores, queues, loads and workloads: measured, and queues moved |
//! | [`classifier`] | the rules of a NIC that steer flows to its queues, and its indirection table |
//! | [`spreading`] | who wants what of an indirection table |
//! | [`cli`] | the command line |
//! | [`config`], [`privileges`] | what the user wants, and what the process may do, checked |
//! | `foreign` | text of others: for terminals, logs and shells |
//! | `pcap` | opens captures |
//! | `priority` | how urgent threads are |

pub mod abi;
pub mod af_xdp;
pub mod calibrate;
pub mod captures;
pub mod classifier;
pub mod cli;
pub mod clock;
pub mod config;
pub mod cores;
pub mod crypto;
pub mod daemon;
mod door;
pub mod ethtool;
mod foreign;
#[doc(hidden)]
pub mod fuzz;
mod guard;
pub mod hazards;
mod hex;
pub mod multipath;
pub mod netlink;
pub mod netns;
pub mod observer;
pub mod paths;
mod pcap;
pub mod plane;
mod priority;
pub mod privileges;
pub mod sas;
mod seldom;
pub mod spreading;
pub mod switch;
pub mod workers;
