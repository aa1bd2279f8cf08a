//! What a forwarding path of the user plane does with its packets: a list of elements, each of which runs over a whole batch.
//!
//! Four structures:
//! - A [`Packet`] is a frame that a worker *lends* for the time of one run: where in it the data begins and ends, where it came
//!   in ([`Ingress`]), what earlier elements found out about it, and its [`Verdict`]. Data grows and shrinks within the frame only.
//! - A [`Batch`] is up to 256 of them, in the order of arrival. [`Batch::each`] and its like are the one place where elements meet packets: they
//!   show those that have no verdict yet, and take and count the verdict if one is given.
//! - An [`Element`] is one step. It owns its parameters and scratch memory, never a packet.
//! - A [`Chain`] is a plain list of elements, checked when it is made: each finds what it needs, nothing goes up that has been
//!   written to, and every packet finds an exit.
//!
//! ```text
//! worker: frames of an RX ring -> Batch::push      Chain::run: check, route, ttl, rewrite      Packet::verdict -> worker: by
//!         (it owns them)          (lends them)                 over all, one after another                        port, kernel, free
//! ```
//!
//! So elements can neither leak nor free a packet: after the run every packet has exactly one verdict, and the worker moves its
//! own buffers. Nothing here blocks, allocates per packet, or knows a clock: a run is told the time and which ports can transmit
//! ([`Now`]).
//!
//! # What goes up
//! What the kernel plane passes up ([`crate::reason::Reason`]) the user plane passes up for the same reason, byte for byte as it came
//! in: elements that may pass up only read, and [`Chain::new`] refuses them behind one that writes. Whether the mirror is confirmed and
//! the port trusted the XDP program has asked before it hands a packet to a path.
//!
//! What [`EspEncrypt`], [`EspDecrypt`], [`VxlanEncap`] and [`VxlanDecap`] make is another packet than the one that came: from there on it goes up as it was made.
//! In front of [`EspEncrypt`] only what Linux never forwards goes up, and all else is dropped (`clear`).
//!
//! # Shared tables
//! [`Route`] reads the memory of [`crate::tables`] while it runs and keeps nothing of it: what a run has read may be reused once the
//! run is over, so a worker is through with an epoch between any two runs.
//!
//! | file | element | |
//! |---|---|---|
//! | `check` | [`Check`] | Ethernet, VLAN tags, IPv4 and IPv6 headers are right |
//! | `route` | [`Route`] | finds the next hop in the forwarding table both planes share |
//! | `ttl` | [`Ttl`] | TTL or hop limit, one less |
//! | `rewrite` | [`Rewrite`] | the Ethernet header of the next hop, and its port |
//! | `forward` | [`Forward`] | to a given port |
//! | `esp_encrypt`, `esp_decrypt` | [`EspEncrypt`], [`EspDecrypt`] | into and out of ESP ([`crate::esp`]) |
//! | `vxlan_encap`, `vxlan_decap` | [`VxlanEncap`], [`VxlanDecap`] | into and out of VXLAN |
//! | `crc_append`, `crc_check` | [`CrcAppend`], [`CrcCheck`] | CRC-32 behind the frame |
//! | `police` | [`Police`] | a token bucket |
//! | `count` | [`Count`] | packets and bytes |
//! | `mirror` | [`Mirror`] | copies to a file, by way of [`Copies`] |
//! | `discard` | [`Discard`] | drops |

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

/// What a run is told of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Of a clock that never goes back, the same for all runs.
    pub ns: u64,
    /// Bit p: port p can transmit.
    pub ports: u64,
}

impl Now {
    /// Can the port transmit?
    pub fn can_send(&self, port: PortId) -> bool {
        self.ports.checked_shr(port.into()).unwrap_or(0) & 1 != 0
    }
}

/// One step of a chain.
pub trait Element: Send {
    /// As configuration and counters call it.
    fn name(&self) -> &'static str;

    /// What it needs to be known of packets, and what is known after it.
    fn contract(&self) -> Contract;

    /// Runs over all packets of the batch that have no verdict.
    fn run(&mut self, now: &Now, batch: &mut Batch<'_>, counters: &mut Counters);

    /// Of [`Part::Route`]: what does, along with its own work, that of the others.
    fn joined(&mut self) -> Option<&mut dyn Joined> {
        None
    }

    /// Lets go of what was replaced where it reads: called now and then where no packets come.
    fn refresh(&mut self) {}

    /// What it counted besides packets and verdicts.
    fn counted(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// For the same element, made anew over other tables: what that goes on from. `None`: it begins anew.
    fn kept(&self) -> Option<&dyn Any> {
        None
    }

    /// Goes on from what the same element with the same parameters kept.
    fn go_on_from(&mut self, _kept: &dyn Any) {}
}

/// The [`Part`]s of a router, one after another in a chain. Run as one they walk through the batch twice in place
/// of five times; the same packets come out, and each counts the same.
pub trait Joined: Send {
    /// Runs all four, with the counters of each.
    fn run(&mut self, now: &Now, batch: &mut Batch<'_>, counters: [&mut Counters; 4]);
}

#[cfg(test)]
mod tests;
