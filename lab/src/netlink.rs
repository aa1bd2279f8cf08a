//! Two requests of netlink that `ip` cannot make, or not fast enough: routes by the hundred thousand, and the threads
//! of a device's NAPI instances.

use std::{
    io::{Error, ErrorKind},
    net::IpAddr,
};

use anyhow::{Context, Result, bail};
use netlink_sys::{Socket, SocketAddr, protocols};
use router::linux::netlink::{
    INET, INET6,
    netdev::Netdev,
    rtm,
    wire::{self, Request},
};

/// `NLM_F_CREATE`.
const CREATE: u16 = 0x400;

/// Bytes of messages handed over in one system call, well below the default send buffer.
const BATCH_BYTES: usize = 48 * 1024;

/// A route to add or delete: `prefix` via `gateway` (same family) out of device `interface`, in the main table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Network address; host bits zero.
    pub address: IpAddr,
    /// Prefix length.
    pub length: u8,
    /// Next hop.
    pub gateway: IpAddr,
    /// Device index in the namespace of the socket.
    pub interface: u32,
}

/// What to do with routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Add, or replace one that exists.
    Set,
    /// Delete.
    Delete,
}

/// A netlink socket, in the namespace of the thread that opened it.
pub struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl Netlink {
    /// A socket for routes.
    pub fn route() -> Result<Self> {
        let mut socket = Socket::new(protocols::NETLINK_ROUTE).context("netlink socket")?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        // An error acknowledgement need not contain our message.
        socket.set_cap_ack(true)?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Changes routes in order, and returns when the kernel has done so. Fails on the first route that the kernel
    /// refuses; others may have been changed.
    pub fn change_routes(&mut self, change: Change, routes: impl IntoIterator<Item = Route>) -> Result<()> {
        let mut routes = routes.into_iter().peekable();
        let mut batch = Vec::with_capacity(BATCH_BYTES + 256);
        while let Some(route) = routes.next() {
            // The kernel always acknowledges errors, and success only on request.
            let last = batch.len() > BATCH_BYTES || routes.peek().is_none();
            self.sequence += 1;
            batch.extend_from_slice(request(change, &route, last).bytes(self.sequence));
            if last {
                self.socket.send(&batch, 0).context("sending routes")?;
                self.wait_for_ack()?;
                batch.clear();
            }
        }
        Ok(())
    }

    fn wait_for_ack(&mut self) -> Result<()> {
        loop {
            let (datagram, _) = match self.socket.recv_from_full() {
                // A signal interrupted the call. The kernel's answer still comes.
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                received => received.context("receiving from netlink")?,
            };
            for message in wire::messages(&datagram).filter(|message| message.kind == wire::ERROR) {
                match wire::u32_at(message.payload, 0).context("a netlink message is cut short")? as i32 {
                    0 if message.sequence == self.sequence => return Ok(()),
                    0 => {}
                    error => bail!("netlink: {}", Error::from_raw_os_error(-error)),
                }
            }
        }
    }
}

fn request(change: Change, route: &Route, ack: bool) -> Request {
    let (kind, flags) = match change {
        Change::Set => (rtm::NEWROUTE, CREATE | wire::REPLACE),
        Change::Delete => (rtm::DELROUTE, 0),
    };
    let family = if route.address.is_ipv4() { INET } else { INET6 };
    // struct rtmsg: main table, protocol static, universe, unicast.
    let header = [family, route.length, 0, 0, 254, 4, 0, rtm::UNICAST, 0, 0, 0, 0];
    Request::new(kind, flags | if ack { wire::ACK } else { 0 }, &header)
        .with(libc::RTA_DST, &octets(route.address))
        .with(libc::RTA_GATEWAY, &octets(route.gateway))
        .with(libc::RTA_OIF, &route.interface.to_ne_bytes())
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Process ids of a device's NAPI threads, in the order of its queues (linux/netdev.h, napi-get; Linux 6.8). Empty
/// unless the device is threaded. Asks in the calling thread's namespace.
pub fn napi_threads(interface: u32) -> Result<Vec<i32>> {
    let napis = Netdev::open()?.map(|mut netdev| netdev.napis(interface)).transpose()?.flatten();
    let napis = napis.context(
        "this kernel has no netdev netlink family (Linux 6.8 or newer is needed to list NAPI threads)",
    )?;
    // The kernel assigns ids queue by queue.
    Ok(napis.into_iter().filter_map(|napi| napi.pid?.try_into().ok()).collect())
}
