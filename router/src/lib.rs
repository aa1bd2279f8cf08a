pub mod ethtool;
pub mod hazards;
pub mod netlink;
pub mod netns;
pub mod observer;
