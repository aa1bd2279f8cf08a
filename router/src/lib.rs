//! Everything that touches Linux: the kernel plane, netlink, namespaces, the daemon and its command line.
//!
//! A room imports only from rooms below it; `lab/tests/rooms.rs` tests that.
//!
//! | room | does |
//! |---|---|
//! | [`cli`] | the command line |
//! | [`daemon`] | observes, decides (in `logic`), applies; answers the API |
//! | [`switch`] | owns the flow rules, answers requests about them, and talks to OpenFlow controllers |
//! | [`user_plane`] | runs paths: AF_XDP, workers, ESP |
//! | [`cores`] | measures cores, queues, loads and workloads, and moves queues |
//! | [`firewall`] | makes connections fast that firewall rules accept |
//! | [`capture`] | hands packets of the kernel plane to clients, as a pcapng file |
//! | [`web`] | the files of the web page, and the check of who asks for them |
//! | [`export`] | sends samples of the kernel plane's packets to collectors: sFlow, IPFIX |
//! | [`api`] | the requests and answers of the API |
//! | [`config`] | reads and checks the configuration |
//! | [`plane`] | loads and attaches the XDP program, maps its memory, reads its counters |
//! | [`linux`] | reads Linux and hears its changes: netlink, namespaces, ethtool, sysctl |
//! | [`abi`] | the types that Rust shares with the programs in `bpf/` |
//! | [`base`] | clock, locks, privileges, text: used by all rooms |

pub mod abi;
pub mod api;
pub mod base;
pub mod capture;
pub mod cli;
pub mod config;
pub mod cores;
pub mod daemon;
pub mod export;
pub mod firewall;
#[doc(hidden)]
pub mod fuzz;
pub mod linux;
pub mod plane;
pub mod switch;
pub mod user_plane;
pub mod web;
