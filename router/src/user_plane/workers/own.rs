//! IP packets that elements made and could not route, sent by the kernel as the machine's own: raw sockets in each router's namespace.
//!
//! Linux finds their next hop by their addresses, resolves its address, and has them go through its output hooks, as it does with what its own tunnels make.
//! What is longer than the MTU of the device that it leaves by is lost (`raw_send_hdrinc`).

use crate::{base::guard::locked, linux::netns::NamespaceRef};
use anyhow::{Context, Result, bail};
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

/// What may wait for next hops, bytes: so many that some hops that never answer leave room for others.
const WAITING: usize = 4 << 20;

/// Where routers are, from now on: who knows says it here.
#[derive(Clone, Debug, Default)]
pub struct Namespaces(Arc<Mutex<BTreeMap<RouterId, NamespaceRef>>>);

impl Namespaces {
    fn all(&self) -> MutexGuard<'_, BTreeMap<RouterId, NamespaceRef>> {
        locked(&self.0)
    }

    /// Packets that wait for a router which is not here any more are not sent.
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
    /// The source of what it sent last.
    bound: Option<IpAddr>,
}

impl Senders {
    /// Closes all: a socket keeps its namespace alive.
    pub fn close(&mut self) {
        self.0.clear();
    }

    /// `enter` has this thread go into the namespace.
    ///
    /// # Errors
    /// It is no IP packet with its header whole, its source is not the machine's, or the kernel does not send it.
    pub fn send(&mut self, cookie: u64, packet: &[u8], enter: impl FnOnce() -> Result<()>) -> Result<()> {
        let (source, destination) = ends(packet)?;
        let sender = match self.0.entry((cookie, source.is_ipv6())) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(place) => {
                enter()?;
                let opened = Sender::open(source.is_ipv6()).context("opening a raw socket (CAP_NET_RAW)")?;
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
        sent.context("the kernel does not send it").map(drop)
    }
}

/// Source and destination.
fn ends(packet: &[u8]) -> Result<(IpAddr, IpAddr)> {
    match packet.first().map(|first| first >> 4) {
        Some(4) if let Some(&[source @ .., a, b, c, d]) = packet.first_chunk::<20>() => {
            let [.., e, f, g, h] = source;
            Ok((Ipv4Addr::new(e, f, g, h).into(), Ipv4Addr::new(a, b, c, d).into()))
        }
        Some(6)
            if let Some((source, destination)) =
                packet.get(8..40).and_then(|ends| ends.split_first_chunk::<16>()) =>
        {
            let destination: [u8; 16] = destination.try_into()?;
            Ok((Ipv6Addr::from(*source).into(), Ipv6Addr::from(destination).into()))
        }
        _ => bail!("it is no IP packet"),
    }
}

impl Sender {
    fn open(is_v6: bool) -> rustix::io::Result<Sender> {
        let family = if is_v6 { AddressFamily::INET6 } else { AddressFamily::INET };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::RAW, flags, Some(ipproto::RAW))?;
        set_socket_send_buffer_size_force(&socket, WAITING)?;
        // Nobody reads what comes of IP protocol 255.
        set_socket_recv_buffer_size(&socket, 0)?;
        Ok(Sender { socket, bound: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_in_the_header_or_it_is_no_packet() {
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
            assert!(ends(&packet[..length]).is_err(), "{first:x} {length}");
        }
    }
}
