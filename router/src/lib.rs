//! Everything that touches Linux: the kernel plane, netlink, namespaces, the daemon and its command line.
//!
//! A room imports only from rooms below it; `lab/tests/rooms.rs` tests that.
//!
//! | room | does |
//! |---|---|
//! | [`cli`] | the command line |
//! | [`daemon`] | observes, decides (in `logic`), applies; answers the API |
//! | [`switch`] | flow rules: the thread that owns them, what clients ask of it, connections to OpenFlow controllers |
//! | [`user_plane`] | paths: AF_XDP, workers, ESP |
//! | [`cores`] | cores, queues, loads and workloads: measured, and queues moved |
//! | [`api`] | what goes over the API's socket |
//! | [`config`] | what the user wants, checked |
//! | [`plane`] | loads and attaches the XDP program, maps its memory, reads its counters |
//! | [`linux`] | how Linux is asked, and what it reports |
//! | [`abi`] | what Rust and the programs in `bpf/` share |
//! | [`base`] | what all rooms use |

pub mod abi;
pub mod api;
pub mod base;
pub mod cli;
pub mod config;
pub mod cores;
pub mod daemon;
#[doc(hidden)]
pub mod fuzz;
pub mod linux;
pub mod plane;
pub mod switch;
pub mod user_plane;
