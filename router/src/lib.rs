pub mod netlink;
