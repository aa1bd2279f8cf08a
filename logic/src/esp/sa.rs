//! Security associations.

use super::{
    Aead, Jobs, Key, Sequence, Window,
    headers::{Dont, Ends, HOPS, Outer, Udp},
    window::BadWindow,
};
use crate::net::Addresses;
use std::{fmt, net::IpAddr, sync::Arc};

/// The contents of ESP packets (RFC 4303 section 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A whole IP packet.
    Tunnel,
    /// The payload of the packet's IP header.
    Transport,
}

/// The packets that may be inside (RFC 4301 section 4.4.1.1). Both conditions must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selectors {
    /// The source is in one of these prefixes. Empty: any source.
    pub source: Vec<Addresses>,
    /// The same for the destination.
    pub destination: Vec<Addresses>,
}

impl Selectors {
    /// Selectors for packets between two addresses.
    pub fn between(source: IpAddr, destination: IpAddr) -> Self {
        Selectors { source: vec![source.into()], destination: vec![destination.into()] }
    }

    /// Whether it allows every packet.
    #[inline]
    pub fn is_any(&self) -> bool {
        self.source.is_empty() && self.destination.is_empty()
    }

    /// Whether this packet may be inside.
    pub fn has(&self, source: IpAddr, destination: IpAddr) -> bool {
        let of =
            |list: &[Addresses], address| list.is_empty() || list.iter().any(|one| one.contains(address));
        of(&self.source, source) && of(&self.destination, destination)
    }
}

/// An SA for sending packets.
pub struct Outbound {
    pub(crate) spi: u32,
    pub(crate) jobs: Jobs,
    pub(crate) aead: Arc<dyn Aead>,
    pub(crate) mode: Mode,
    pub(crate) udp: Option<Udp>,
    pub(crate) ends: Ends,
    pub(crate) outer: Outer,
    /// The longest IP packet that it makes.
    pub(crate) mtu: usize,
    pub(crate) selectors: Selectors,
    /// Packets with higher numbers are counted as near the end.
    pub(crate) soft: u64,
    /// The numbers of packets that are sent.
    pub sequence: Sequence,
}

/// An SA for receiving packets.
pub struct Inbound {
    pub(crate) spi: u32,
    pub(crate) jobs: Jobs,
    pub(crate) aead: Arc<dyn Aead>,
    pub(crate) mode: Mode,
    pub(crate) udp: Option<Udp>,
    pub(crate) local: IpAddr,
    /// Our address in host byte order, if it is IPv4 and the SA does not use UDP.
    pub(crate) usual: Option<u32>,
    /// The longest IP packet that it accepts.
    pub(crate) mtu: u16,
    pub(crate) selectors: Selectors,
    /// The numbers of packets that have arrived.
    pub window: Window,
}

/// The parameters that both kinds have.
pub struct Common<'a> {
    /// The SPI of the packets.
    pub spi: u32,
    /// The key, for its salt; `aead` holds the AES key.
    pub key: &'a Key,
    /// The same key in the form of a library.
    pub aead: Arc<dyn Aead>,
    /// The contents of packets.
    pub mode: Mode,
    /// Sequence numbers have 64 bits (ESN).
    pub is_extended: bool,
    /// The addresses of the two ends. In transport mode these are the addresses of the packets
    /// themselves.
    pub ends: Ends,
    /// The ports, if ESP is in UDP.
    pub udp: Option<Udp>,
    /// The packets that may be inside.
    pub selectors: Selectors,
}

impl Outbound {
    /// Makes an SA whose numbers continue after `used`. `mtu`: the longest IP packet that it makes.
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
    /// Makes an SA with a window of this many packets. `mtu`: the longest IP packet that it accepts;
    /// 65,535 allows any.
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

/// Shows no keys.
impl fmt::Debug for Outbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbound")
            .field("spi", &self.spi)
            .field("sequence", &self.sequence)
            .finish_non_exhaustive()
    }
}

/// Shows no keys.
impl fmt::Debug for Inbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbound")
            .field("spi", &self.spi)
            .field("top", &self.window.top())
            .finish_non_exhaustive()
    }
}
