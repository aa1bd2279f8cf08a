//! Sends IP packets that elements made and could not route. The kernel sends them as the machine's own, by raw sockets in
//! each router's namespace.
//!
//! Linux finds their next hop by their addresses, resolves its link-layer address, and lets them pass its output hooks, as
//! it does with packets of its own tunnels. Packets longer than the MTU of the device that they leave by are lost
//! (`raw_send_hdrinc`).

use crate::{base::guard::locked, linux::netns::NamespaceRef};
use anyhow::{Context, Result};
use logic::plan::RouterId;
use rustix::net::{
    AddressFamily, SendFlags, SocketFlags, SocketType, bind, ipproto, sendto, socket_with,
    sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size_force},
};
use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard},
};

/// Bytes that may wait for next hops: so many that packets for next hops that never answer leave room for others.
const WAITING: usize = 4 << 20;

/// The namespaces of routers. Whoever knows them sets them here.
#[derive(Clone, Debug, Default)]
pub struct Namespaces(Arc<Mutex<BTreeMap<RouterId, NamespaceRef>>>);

impl Namespaces {
    fn all(&self) -> MutexGuard<'_, BTreeMap<RouterId, NamespaceRef>> {
        locked(&self.0)
    }

    /// Sets all namespaces. Packets of a router that is missing here are not sent, even if they wait already.
    pub fn set(&self, all: BTreeMap<RouterId, NamespaceRef>) {
        *self.all() = all;
    }

    pub(super) fn of(&self, router: RouterId) -> Option<NamespaceRef> {
        self.all().get(&router).cloned()
    }
}

/// Sockets, by the cookie of their namespace and by whether they are for IPv6.
#[derive(Default)]
pub(super) struct Senders(HashMap<(u64, bool), Sender>);

struct Sender {
    socket: OwnedFd,
    /// The source of the last packet.
    bound: Option<IpAddr>,
}

impl Senders {
    /// Closes all sockets, because a socket keeps its namespace alive.
    pub fn close(&mut self) {
        self.0.clear();
    }

    /// Sends a packet in the namespace with this cookie. `enter` makes this thread enter it.
    ///
    /// # Errors
    /// The data is not an IP packet with a whole header, its source is not an address of the machine, or the kernel does not
    /// send it.
    pub fn send(&mut self, cookie: u64, packet: &[u8], enter: impl FnOnce() -> Result<()>) -> Result<()> {
        let (source, destination) =
            ends(packet).context("the data is not an IP packet with a whole header")?;
        let sender = match self.0.entry((cookie, source.is_ipv6())) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(place) => {
                enter()?;
                let opened =
                    Sender::open(source.is_ipv6()).context("opening a raw socket (needs CAP_NET_RAW)")?;
                place.insert(opened)
            }
        };
        // Routes may depend on the source.
        if sender.bound != Some(source) {
            bind(&sender.socket, &SocketAddr::new(source, 0))
                .with_context(|| format!("sending from {source}"))?;
            sender.bound = Some(source);
        }
        let sent = sendto(&sender.socket, packet, SendFlags::empty(), &SocketAddr::new(destination, 0));
        sent.context("the kernel does not send the packet").map(drop)
    }
}

/// Source and destination of an IP packet; `None`: the data has no whole header.
pub(super) fn ends(packet: &[u8]) -> Option<(IpAddr, IpAddr)> {
    match packet.first().map(|first| first >> 4) {
        Some(4) if let Some(&[source @ .., a, b, c, d]) = packet.first_chunk::<20>() => {
            let [.., e, f, g, h] = source;
            Some((Ipv4Addr::new(e, f, g, h).into(), Ipv4Addr::new(a, b, c, d).into()))
        }
        Some(6)
            if let Some((source, destination)) =
                packet.get(8..40).and_then(|ends| ends.split_first_chunk::<16>()) =>
        {
            let destination: [u8; 16] = destination.try_into().ok()?;
            Some((Ipv6Addr::from(*source).into(), Ipv6Addr::from(destination).into()))
        }
        _ => None,
    }
}

impl Sender {
    fn open(is_v6: bool) -> rustix::io::Result<Sender> {
        let family = if is_v6 { AddressFamily::INET6 } else { AddressFamily::INET };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::RAW, flags, Some(ipproto::RAW))?;
        set_socket_send_buffer_size_force(&socket, WAITING)?;
        // Nobody reads packets of IP protocol 255 that come in.
        set_socket_recv_buffer_size(&socket, 0)?;
        Ok(Sender { socket, bound: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_only_from_a_whole_header() {
        let mut packet = [0; 40];
        packet[0] = 0x45;
        packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        let four = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        assert_eq!(ends(&packet).unwrap(), four);
        assert_eq!(ends(&packet[..20]).unwrap(), four);
        packet = [0; 40];
        packet[0] = 0x60;
        (packet[23], packet[39]) = (1, 2);
        assert_eq!(ends(&packet).unwrap(), ("::1".parse().unwrap(), "::2".parse().unwrap()));
        for (first, length) in [(0x45, 19), (0x60, 39), (0x50, 40), (0x45, 0)] {
            packet[0] = first;
            assert!(ends(&packet[..length]).is_none(), "{first:x} {length}");
        }
    }
}
