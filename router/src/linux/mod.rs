//! Queries Linux and parses its reports.
//!
//! | module | does |
//! |---|---|
//! | [`classifier`] | the rules of a NIC that steer flows to its queues, and its indirection table |
//! | [`conntrack`] | the connections that Linux tracks |
//! | [`ethtool`] | devices and their settings |
//! | [`hazards`] | what keeps a router or port off the fast path |
//! | [`multipath`] | the key with which Linux chooses among next hops |
//! | [`netlink`] | messages and sockets |
//! | [`netns`] | network namespaces |
//! | [`nftables`] | the rules of nf_tables |
//! | [`observer`] | turns the reports of Linux, in every namespace involved, into events |
//! | [`spreading`] | changes indirection tables, for steered flows and for placing |
//! | [`xtables`] | the rules of legacy iptables |

pub mod classifier;
pub mod conntrack;
pub mod ethtool;
pub mod hazards;
pub mod multipath;
pub mod netlink;
pub mod netns;
pub mod nftables;
pub mod observer;
pub mod spreading;
pub mod xtables;
