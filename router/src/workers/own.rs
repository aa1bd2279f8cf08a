//! IP packets that elements made and could not route, sent by the kernel as the machine's own: a raw socket for each router's namespace.
//!
//! Linux finds their next hop, resolves its address, and has them go through its output hooks, as it does with what its own tunnels make. It fragments
//! none of them (`raw_send_hdrinc`): what is longer than the next hop's MTU is lost.

use crate::netns::{Key, OpenNamespace};
use anyhow::{Context, Result, bail};
use logic::plan::RouterId;
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrV4, SocketAddrV6, SocketFlags, SocketType, ipproto, sendto,
    socket_with,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::OwnedFd,
};

/// Of namespaces.
#[derive(Default)]
pub(super) struct Senders(BTreeMap<Key, Sender>);

/// Nothing is received by these (raw(7), `IPPROTO_RAW`).
struct Sender {
    ipv4: OwnedFd,
    ipv6: OwnedFd,
}

impl Senders {
    /// Those of namespaces without a router are closed: a socket keeps its namespace.
    pub fn keep(&mut self, routers: &BTreeMap<RouterId, OpenNamespace>) {
        let there: BTreeSet<Key> = routers.values().map(OpenNamespace::key).collect();
        self.0.retain(|key, _| there.contains(key));
    }

    /// `enter` has this thread go into the namespace.
    ///
    /// # Errors
    /// It is no IP packet with its header whole, or the kernel does not send it.
    pub fn send(&mut self, key: Key, packet: &[u8], enter: impl FnOnce() -> Result<()>) -> Result<()> {
        if !self.0.contains_key(&key) {
            enter()?;
            let opened = Sender::open().context("opening a raw socket (CAP_NET_RAW)")?;
            self.0.insert(key, opened);
        }
        let sender = self.0.get(&key).context("there is no socket")?;
        let sent = match (packet.first().map(|first| first >> 4), packet.first_chunk(), packet.first_chunk())
        {
            (Some(4), Some(header), _) => {
                let [.., a, b, c, d]: [u8; 20] = *header;
                sendto(&sender.ipv4, packet, SendFlags::empty(), &SocketAddrV4::new([a, b, c, d].into(), 0))
            }
            (Some(6), _, Some(header)) => {
                let header: &[u8; 40] = header;
                let to: [u8; 16] = header.last_chunk().copied().unwrap_or_default();
                sendto(&sender.ipv6, packet, SendFlags::empty(), &SocketAddrV6::new(to.into(), 0, 0, 0))
            }
            _ => bail!("it is no IP packet"),
        };
        sent.context("the kernel does not send it").map(drop)
    }
}

impl Sender {
    fn open() -> rustix::io::Result<Sender> {
        let open = |family| {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            socket_with(family, SocketType::RAW, flags, Some(ipproto::RAW))
        };
        Ok(Sender { ipv4: open(AddressFamily::INET)?, ipv6: open(AddressFamily::INET6)? })
    }
}
