//! Millrace as people run it, in network namespaces of the test: the daemon killed, restarted, silent; routers and
//! links that come and go under load; real TCP, ICMP, ARP and routing daemons through it.
//!
//! Nothing here asserts a speed: only losses, bytes, counters and the output of commands, each within a generous time.
//! The tests need root, and run in namespaces of their own (`make test-root`).
//!
//! | file | holds |
//! |---|---|
//! | `daemon.rs` | starts, asks and kills the `millrace` binary |
//! | `load.rs` | sends packets through the lab's testbed while something happens, and accounts for every one |
//! | `bed.rs` | hosts with a real stack of their own on both sides of a box |
//! | `lifetime.rs`, `upgrade.rs`, `changes.rs` | tests under load |
//! | `capture.rs` | captures of packets |
//! | `export.rs` | samples for collectors |
//! | `losses.rs` | an egress port that is too slow |
//! | `metrics.rs` | the page of metrics, and counters of devices |
//! | `web.rs` | the web page, by plain HTTP |
//! | `user_plane.rs`, `esp.rs`, `mirror.rs` | paths of the user plane |
//! | `stack.rs`, `jumbo.rs`, `neighbours.rs`, `policy.rs`, `refusals.rs`, `paths.rs`, `frr.rs`, `ecmp.rs`, `sessions.rs`, `firewall.rs`, `connections.rs`, `interruptions.rs`, `conntrack.rs`, `successors.rs`, `flows.rs`, `check.rs`, `api.rs`, `cli.rs`, `systemd.rs`, `vrrp.rs` | tests with real hosts |

mod api;
mod bed;
mod capture;
mod changes;
mod check;
mod cli;
mod connections;
mod conntrack;
mod daemon;
mod ecmp;
mod esp;
mod export;
mod firewall;
mod flows;
mod frr;
mod interruptions;
mod jumbo;
mod lifetime;
mod load;
mod losses;
mod metrics;
mod mirror;
mod neighbours;
mod paths;
mod policy;
mod refusals;
mod reload;
mod sessions;
mod stack;
mod successors;
mod systemd;
mod upgrade;
mod user_plane;
mod vrrp;
mod web;
