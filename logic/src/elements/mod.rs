//! The elements of the user plane's paths. A path is a list of elements, and each element runs over a whole batch of
//! packets.
//!
//! There are four structures:
//! - A [`Packet`] is a frame that a worker *lends* for one run. It knows where in the frame the data begins and ends,
//!   where the packet arrived ([`Ingress`]), what earlier elements found out about it, and its [`Verdict`]. Data grows
//!   and shrinks only within the frame.
//! - A [`Batch`] holds up to 256 packets in the order of arrival. [`Batch::each`] and similar methods are the one place
//!   where elements see packets. They show the packets without a verdict, and store and count the verdict if the
//!   element returns one.
//! - An [`Element`] is one step. It owns its parameters and scratch memory, never a packet.
//! - A [`Chain`] is a list of elements. It is checked when it is made: each element finds what it needs, no packet goes
//!   up after it was written to, and every packet finds an exit.
//!
//! ```text
//! worker: frames of an RX ring -> Batch::push      Chain::run: check, route, ttl, rewrite      Packet::verdict -> worker: by
//!         (it owns them)          (lends them)                 over all, one after another                        port, kernel, free
//! ```
//!
//! So elements can neither leak nor free a packet. After the run every packet has exactly one verdict, and the worker
//! moves its own buffers. Nothing here blocks, allocates per packet, or reads a clock. A run gets the time and the
//! ports that can transmit as an argument ([`Now`]).
//!
//! # What goes up
//! The user plane passes packets up for the same reasons as the kernel plane ([`crate::reason::Reason`]), byte for byte
//! as they arrived. Elements that may pass up only read, and [`Chain::new`] refuses them after one that writes. The XDP
//! program has checked the heartbeat and the trust of the port before it gives a packet to a path.
//!
//! [`EspEncrypt`], [`EspDecrypt`], [`VxlanEncap`] and [`VxlanDecap`] make another packet. After them a packet goes up
//! in its new form. Before [`EspEncrypt`], only packets that Linux never forwards go up. All others are dropped
//! (`clear`).
//!
//! # Shared tables
//! [`Route`] reads the memory of [`crate::tables`] during a run and keeps nothing of it, because rows may be reused
//! after the run. So between any two runs a worker has finished with an epoch.
//!
//! | file | element | |
//! |---|---|---|
//! | `check` | [`Check`] | checks Ethernet, VLAN tags, IPv4 and IPv6 headers |
//! | `route` | [`Route`] | finds the next hop in the forwarding table that both planes share |
//! | `ttl` | [`Ttl`] | decrements the TTL or hop limit |
//! | `rewrite` | [`Rewrite`] | writes the Ethernet header for the next hop, and sets its port |
//! | `forward` | [`Forward`] | sends to a given port |
//! | `esp_encrypt`, `esp_decrypt` | [`EspEncrypt`], [`EspDecrypt`] | into and out of ESP ([`crate::esp`]) |
//! | `vxlan_encap`, `vxlan_decap` | [`VxlanEncap`], [`VxlanDecap`] | into and out of VXLAN |
//! | `crc_append`, `crc_check` | [`CrcAppend`], [`CrcCheck`] | CRC-32 at the end of the frame |
//! | `police` | [`Police`] | a token bucket |
//! | `count` | [`Count`] | counts packets and bytes |
//! | `mirror` | [`Mirror`] | copies packets to a file, through [`Copies`] |
//! | `discard` | [`Discard`] | drops packets |

mod batch;
mod chain;
mod check;
mod clear;
mod contract;
mod copies;
mod count;
mod counters;
mod crc_append;
mod crc_check;
mod discard;
mod esp_decrypt;
mod esp_encrypt;
mod forward;
mod mirror;
mod packet;
mod police;
mod rewrite;
mod route;
mod ttl;
mod vxlan_decap;
mod vxlan_encap;

pub use batch::{Batch, MOST_PACKETS};
pub use chain::{Chain, Whole};
pub use check::Check;
pub use contract::{BadChain, Contract, Known, Part};
pub use copies::{Copied, Copies, NoCopy, Taker};
pub use count::Count;
pub use counters::Counters;
pub use crc_append::CrcAppend;
pub use crc_check::CrcCheck;
pub use discard::Discard;
pub use esp_decrypt::EspDecrypt;
pub use esp_encrypt::EspEncrypt;
pub use forward::Forward;
pub use mirror::Mirror;
pub use packet::{Loss, NotAFrame, Packet, Verdict};
pub use police::{Police, Rate};
pub use rewrite::Rewrite;
pub use route::Route;
pub use ttl::Ttl;
pub use vxlan_decap::VxlanDecap;
pub use vxlan_encap::{Vxlan, VxlanEncap};

use crate::plan::PortId;
use std::any::Any;

/// The state of the world during a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Time of a clock that never goes back, the same for all runs.
    pub ns: u64,
    /// If bit p is set, port p can transmit.
    pub ports: u64,
}

impl Now {
    /// Whether the port can transmit.
    pub fn can_send(&self, port: PortId) -> bool {
        self.ports.checked_shr(port.into()).unwrap_or(0) & 1 != 0
    }
}

/// One step of a chain.
pub trait Element: Send {
    /// Its name in the configuration and in counters.
    fn name(&self) -> &'static str;

    /// What must be known about packets before it, and what is known after it.
    fn contract(&self) -> Contract;

    /// Runs over all packets of the batch that have no verdict.
    fn run(&mut self, now: &Now, batch: &mut Batch<'_>, counters: &mut Counters);

    /// Some for [`Part::Route`], which does the work of the other parts along with its own.
    fn joined(&mut self) -> Option<&mut dyn Joined> {
        None
    }

    /// Releases data that was replaced in its source, such as SAs. Called from time to time while no packets arrive.
    fn refresh(&mut self) {}

    /// What it counts besides packets and verdicts.
    fn counted(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// State for a new instance of the same element with other tables. `None`: the new instance starts from the
    /// beginning.
    fn kept(&self) -> Option<&dyn Any> {
        None
    }

    /// Continues from the state of an instance of the same element with the same parameters.
    fn go_on_from(&mut self, _kept: &dyn Any) {}
}

/// The [`Part`]s of a router, one after another in a chain. Run as one, they walk through the batch twice instead of
/// five times. The packets and all counts are the same.
pub trait Joined: Send {
    /// Runs all four, with the counters of each.
    fn run(&mut self, now: &Now, batch: &mut Batch<'_>, counters: [&mut Counters; 4]);
}

#[cfg(test)]
mod tests;
