//! Security associations.

use super::{
    Aead, Jobs, Key, Sequence, Window,
    headers::{Dont, Ends, HOPS, Outer, Udp},
    window::BadWindow,
};
use crate::net::Addresses;
use std::{fmt, net::IpAddr, sync::Arc};

/// What is inside (RFC 4303 section 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A whole IP packet.
    Tunnel,
    /// What the IP header of the packet carries.
    Transport,
}

/// Which packets may be inside (RFC 4301 section 4.4.1.1): both hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selectors {
    /// The source is in one of these; none: any.
    pub source: Vec<Addresses>,
    /// The same of the destination.
    pub destination: Vec<Addresses>,
}

impl Selectors {
    /// Of packets between two addresses.
    pub fn between(source: IpAddr, destination: IpAddr) -> Self {
        Selectors { source: vec![source.into()], destination: vec![destination.into()] }
    }

    /// Are there any?
    #[inline]
    pub fn is_any(&self) -> bool {
        self.source.is_empty() && self.destination.is_empty()
    }

    /// May this packet be inside?
    pub fn has(&self, source: IpAddr, destination: IpAddr) -> bool {
        let of =
            |list: &[Addresses], address| list.is_empty() || list.iter().any(|one| one.contains(address));
        of(&self.source, source) && of(&self.destination, destination)
    }
}

/// An SA that packets are sent by.
pub struct Outbound {
    pub(crate) spi: u32,
    pub(crate) jobs: Jobs,
    pub(crate) aead: Arc<dyn Aead>,
    pub(crate) mode: Mode,
    pub(crate) udp: Option<Udp>,
    pub(crate) ends: Ends,
    pub(crate) outer: Outer,
    /// The longest IP packet it makes.
    pub(crate) mtu: usize,
    pub(crate) selectors: Selectors,
    /// Numbers beyond this are told of.
    pub(crate) soft: u64,
    /// Numbers of what is sent.
    pub sequence: Sequence,
}

/// An SA that packets come by.
pub struct Inbound {
    pub(crate) spi: u32,
    pub(crate) jobs: Jobs,
    pub(crate) aead: Arc<dyn Aead>,
    pub(crate) mode: Mode,
    pub(crate) udp: Option<Udp>,
    pub(crate) local: IpAddr,
    /// That, where it is IPv4 and not in UDP, in host byte order.
    pub(crate) usual: Option<u32>,
    /// The longest IP packet that may come by it.
    pub(crate) mtu: u16,
    pub(crate) selectors: Selectors,
    /// Numbers of what came.
    pub window: Window,
}

/// What both kinds have.
pub struct Common<'a> {
    /// Of the packets.
    pub spi: u32,
    /// Its salt is used; the AES key is in `aead`.
    pub key: &'a Key,
    /// The same key, as a library has it.
    pub aead: Arc<dyn Aead>,
    /// What is inside.
    pub mode: Mode,
    /// Sequence numbers have 64 bits (ESN).
    pub is_extended: bool,
    /// In transport mode those of the packets themselves.
    pub ends: Ends,
    /// In UDP.
    pub udp: Option<Udp>,
    /// What may be inside.
    pub selectors: Selectors,
}

impl Outbound {
    /// Whose numbers go on behind `used`. `mtu`: longest IP packet it makes.
    pub fn new(common: Common<'_>, mtu: u16, dont: Dont, used: u64) -> Self {
        let Common { spi, key, aead, mode, is_extended, ends, udp, selectors } = common;
        let sequence = Sequence::new(is_extended, used);
        // An eighth is left.
        let soft = sequence.last() - sequence.last() / 8;
        let outer = Outer::new(ends, udp, dont, HOPS);
        let (jobs, mtu) = (Jobs::new(spi, key.salt(), is_extended), mtu.into());
        Outbound { spi, jobs, aead, mode, udp, ends, outer, mtu, selectors, soft, sequence }
    }
}

impl Inbound {
    /// That has a window of so many packets. `mtu`: longest IP packet that may come by it; 65,535 is any.
    pub fn new(common: Common<'_>, window: u32, mtu: u16) -> Result<Self, BadWindow> {
        let Common { spi, key, aead, mode, is_extended, ends, udp, selectors } = common;
        let window = Window::new(window, is_extended)?;
        let (jobs, local) = (Jobs::new(spi, key.salt(), is_extended), ends.local());
        let usual = match (ends, udp) {
            (Ends::V4 { local, .. }, None) => Some(local.to_bits()),
            _ => None,
        };
        Ok(Inbound { spi, jobs, aead, mode, udp, local, usual, mtu, selectors, window })
    }
}

/// Without keys.
impl fmt::Debug for Outbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbound")
            .field("spi", &self.spi)
            .field("sequence", &self.sequence)
            .finish_non_exhaustive()
    }
}

/// Without keys.
impl fmt::Debug for Inbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbound")
            .field("spi", &self.spi)
            .field("top", &self.window.top())
            .finish_non_exhaustive()
    }
}
