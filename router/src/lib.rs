//! Everything that touches Linux: the kernel plane, netlink, namespaces, the daemon and its command line.
//!
//! | module | does |
//! |---|---|
//! | [`plane`] | loads and attaches the XDP program, maps its memory, reads its counters |
//! | [`daemon`] | observes, decides (in `logic`), applies; answers the API |
//! | [`config`] | what the user wants, checked |
pub mod abi;
pub mod cli;
pub mod config;
pub mod daemon;
pub mod plane;
pub mod privileges;
