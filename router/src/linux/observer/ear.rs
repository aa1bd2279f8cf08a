//! Listens to the kernel's reports of a namespace without keeping the namespace alive.
//!
//! A netlink socket keeps its own namespace alive. So the sockets for a router's namespace are in another one, the ear,
//! which is empty and ours alone. With `NETLINK_LISTEN_ALL_NSID` they receive the messages of every namespace that has
//! a number in the ear (`do_one_broadcast()`). A number keeps nothing alive, and exactly one namespace gets one. When
//! it ends, the kernel reports `RTM_DELNSID` in the ear, before it takes the devices apart.
//!
//! Each namespace has an ear of its own because a shared receive buffer overflows for all when one namespace storms.
//! Here a storm fills only the buffer of its own ear, which can be left unread. Nobody else can send to the port ids of
//! these sockets, because nobody else can enter an ear. An ear takes about half a MiB of kernel memory and a
//! millisecond to create.

use crate::linux::{
    hazards,
    netlink::{GROUPS, nsid, rtm, socket::Socket, wire},
    netns,
};
use std::{fs::File, io, os::fd::AsFd};

/// The number of the namespace in its ear.
const NUMBER: i32 = 1;
/// Receive buffers for nftables and IPsec. An overrun is itself a sign of a change.
const SIDE_BUFFER_BYTES: usize = 256 << 10;

/// Subscriptions to all relevant messages of one namespace.
pub struct Ear {
    pub route: Socket,
    /// `None`: the kernel lacks the protocol.
    pub netfilter: Option<Socket>,
    pub xfrm: Option<Socket>,
    /// `None`: the sockets are in the namespace itself.
    number: Option<i32>,
}

/// The subject of a buffer of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// The namespace.
    Namespace,
    /// The namespace has ended.
    End,
    /// The ear, or nothing.
    Nothing,
}

impl Ear {
    /// Opens the sockets in the calling thread's namespace and keeps that alive: only for our own.
    pub fn here(receive_buffer_bytes: usize) -> io::Result<Ear> {
        let route = Socket::subscription(libc::NETLINK_ROUTE, GROUPS, receive_buffer_bytes)?;
        let side = |protocol, group| known(Socket::subscription(protocol, &[group], SIDE_BUFFER_BYTES));
        Ok(Ear {
            route,
            netfilter: side(libc::NETLINK_NETFILTER, hazards::netfilter::GROUP)?,
            xfrm: side(libc::NETLINK_XFRM, hazards::xfrm::GROUP)?,
            number: None,
        })
    }

    /// Opens the sockets for another namespace.
    ///
    /// # Errors
    /// `EPERM` without CAP_SYS_ADMIN and CAP_NET_BROADCAST.
    pub fn of(namespace: &File, receive_buffer_bytes: usize) -> io::Result<Ear> {
        netns::in_a_new_one(|| {
            let all = |protocol, groups: &[u32], bytes| {
                let socket = Socket::subscription(protocol, groups, bytes)?;
                socket.hear_all_namespaces()?;
                Ok(socket)
            };
            let side = |protocol, group| known(all(protocol, &[group], SIDE_BUFFER_BYTES));
            let ear = Ear {
                route: all(libc::NETLINK_ROUTE, GROUPS, receive_buffer_bytes)?,
                netfilter: side(libc::NETLINK_NETFILTER, hazards::netfilter::GROUP)?,
                xfrm: side(libc::NETLINK_XFRM, hazards::xfrm::GROUP)?,
                number: Some(NUMBER),
            };
            nsid::assign(&mut Socket::requests(libc::NETLINK_ROUTE)?, namespace.as_fd(), NUMBER)?;
            Ok(ear)
        })?
    }

    /// The subject of the last buffer that `route` returned.
    pub fn about(&self, bytes: &[u8]) -> About {
        match (self.number, self.route.origin()) {
            (None, _) => About::Namespace,
            (number, origin) if number == origin => About::Namespace,
            (_, None) if wire::messages(bytes).any(|m| m.kind == rtm::DELNSID) => About::End,
            _ => About::Nothing,
        }
    }

    /// The number of messages that did not come from the kernel.
    pub fn forged(&self) -> u64 {
        let sides = [&self.netfilter, &self.xfrm].into_iter().flatten();
        self.route.forged() + sides.map(Socket::forged).sum::<u64>()
    }
}

/// `Ok(None)`: the kernel lacks the protocol.
fn known(socket: io::Result<Socket>) -> io::Result<Option<Socket>> {
    match socket {
        Err(e) if e.raw_os_error() == Some(libc::EPROTONOSUPPORT) => Ok(None),
        other => other.map(Some),
    }
}
