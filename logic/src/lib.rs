//! Every decision that Millrace takes, as pure functions and plain data: no I/O, no unsafe code, no clock.
//!
//! | module | contents |
//! |---|---|
//! | [`cause`] | why something is not on the fast path |
//! | [`observe`] | the types in which `router` reports the state of Linux |
//! | [`mirror`] | decides from these reports which routers are safe, and what their tables hold ([`plan::Op`]) |
//! | [`learned`] | decides which destinations Linux is asked about, and which ones it forwards in its own way |
//! | [`plan`] | the types of a plan |
//! | [`memory`], [`hash`] | the memory that both planes share, and the hash functions that find rows in it |
//! | [`multipath`] | computes which member of a multipath route Linux chooses |
//! | [`tables`] | writes a plan to memory: interface index, next hops, neighbours, roots |
//! | [`fib`] | the forwarding table itself |
//! | [`steer`] | decides which flows a NIC's classifier steers, and to which queues |
//! | [`cores`] | decides which core polls each RX queue |
//! | [`share`] | decides how much of a full core each router may use |
//! | [`paths`] | decides which path of the user plane runs next, for how long, and on which worker |
//! | [`elements`] | the elements: what paths do with their packets |
//! | [`esp`] | security associations: keys, sequence numbers, windows |
//! | [`worker`] | lets `paths` pick and `elements` run, wherever packets come from |
//! | [`firewall`] | proves which packets the rules of a firewall accept without any effect |
//! | [`capture`] | filters and records of captured and sampled packets |
//! | [`connections`] | decides which tracked connections bypass the rules, and for how long |
//! | [`flow`] | flow rules: what they match and do, and what the flow tables hold |
//! | [`sim`] | runs the allocator of `cores` and a worker of `paths` in virtual time |
//! | [`openflow`] | OpenFlow messages on the wire |
//! | [`cpus`] | sets of cores as the kernel writes them |
//! | [`net`], [`reason`] | addresses and VLAN tags; why the kernel plane did not forward a packet |
//!
//! Time is an argument, and so is memory that programs share. Everything is deterministic.
#![forbid(unsafe_code)]

pub mod capture;
pub mod cause;
pub mod connections;
pub mod cores;
pub mod cpus;
pub mod elements;
pub mod esp;
pub mod fib;
pub mod firewall;
pub mod flow;
pub mod hash;
pub mod learned;
pub mod memory;
pub mod mirror;
pub mod multipath;
pub mod net;
pub mod observe;
pub mod openflow;
pub mod paths;
pub mod plan;
pub mod reason;
pub mod share;
pub mod sim;
pub mod steer;
pub mod tables;
pub mod worker;

/// The number of cases of a property test: so many in `make test`, and MILLRACE_CASES times as many in `make soak`.
#[cfg(test)]
fn cases(usual: u32) -> proptest::test_runner::Config {
    let times = std::env::var("MILLRACE_CASES").ok().and_then(|times| times.parse().ok()).unwrap_or(1);
    proptest::test_runner::Config::with_cases(usual * times)
}
