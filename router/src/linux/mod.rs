//! How Linux is asked, and what it reports.
//!
//! | module | does |
//! |---|---|
//! | [`classifier`] | the rules of a NIC that steer flows to its queues, and its indirection table |
//! | [`ethtool`] | devices and their settings |
//! | [`hazards`] | what keeps a router or port off the fast path |
//! | [`multipath`] | by which key Linux chooses among next hops |
//! | [`netlink`] | messages and sockets |
//! | [`netns`] | network namespaces |
//! | [`observer`] | turns what Linux reports, in every namespace involved, into events |
//! | [`spreading`] | who wants what of an indirection table |

pub mod classifier;
pub mod ethtool;
pub mod hazards;
pub mod multipath;
pub mod netlink;
pub mod netns;
pub mod observer;
pub mod spreading;
