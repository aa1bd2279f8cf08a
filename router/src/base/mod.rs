//! Modules that all rooms use, and that use no room.
//!
//! | module | does |
//! |---|---|
//! | [`clock`] | the clock of all deadlines |
//! | [`conditions`] | what users are warned of, since when; logs it |
//! | [`door`] | how many peers may wait before a listener |
//! | [`foreign`] | text of others: for terminals, logs and shells |
//! | [`guard`] | locks, and files of one user |
//! | [`hex`] | bytes as digits |
//! | [`instance`] | the instances of the daemon: names, files, locks |
//! | [`library`] | libraries that are opened at run time |
//! | [`packet`] | a packet as users write it |
//! | [`pcap`] | opens captures |
//! | [`priority`] | scheduling policies and priorities of threads |
//! | [`privileges`] | the capabilities of the process, checked and given up |
//! | `reference` | tests: compares pages of `docs/reference` with the code |
//! | [`seldom`] | limits log lines that outsiders cause |
//! | [`systemd`] | reports to systemd how the daemon is |
//! | [`values`] | names and values of users, checked |
//! | [`whole`] | reads files that people edit |
//! | [`words`] | words for times and lists |

pub mod clock;
pub mod conditions;
pub mod door;
pub mod foreign;
pub mod guard;
pub mod hex;
pub mod instance;
pub mod library;
pub mod packet;
pub mod pcap;
pub mod priority;
pub mod privileges;
#[cfg(test)]
pub mod reference;
pub mod seldom;
pub mod systemd;
pub mod values;
pub mod whole;
pub mod words;

pub use values::{BadValue, PortName};
