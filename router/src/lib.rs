//! Everything of Millrace that touches Linux.

pub mod abi;
pub mod ethtool;
pub mod hazards;
pub mod netlink;
pub mod netns;
pub mod observer;
pub mod plane;
