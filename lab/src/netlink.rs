//! Two requests of netlink that `ip` cannot make, or not fast enough: routes by the hundred thousand, and the threads
//! of a device's NAPI instances. Messages are built by hand, because a bulk load is one buffer after another of the
//! same few bytes (layouts: rtnetlink(7), linux/netdev.h).

use std::{io::ErrorKind, net::IpAddr};

use anyhow::{Context, Result, bail, ensure};
use netlink_sys::{Socket, SocketAddr, protocols};

const REQUEST: u16 = 1;
const ACK: u16 = 4;
const DUMP: u16 = 0x300;
const REPLACE: u16 = 0x100;
const CREATE: u16 = 0x400;

const ERROR: u16 = 2;
const DONE: u16 = 3;
const NEW_ROUTE: u16 = 24;
const DELETE_ROUTE: u16 = 25;
const GENERIC_CONTROL: u16 = 0x10;

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
        Self::open(protocols::NETLINK_ROUTE)
    }

    fn open(protocol: isize) -> Result<Self> {
        let mut socket = Socket::new(protocol).context("netlink socket")?;
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
            self.push_route(&mut batch, change, &route, last);
            if last {
                self.socket.send(&batch, 0).context("sending routes")?;
                self.wait_for_ack()?;
                batch.clear();
            }
        }
        Ok(())
    }

    fn push_route(&mut self, batch: &mut Vec<u8>, change: Change, route: &Route, ack: bool) {
        let (kind, flags) = match change {
            Change::Set => (NEW_ROUTE, CREATE | REPLACE),
            Change::Delete => (DELETE_ROUTE, 0),
        };
        let family = if route.address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u8;
        self.push(batch, kind, flags | if ack { ACK } else { 0 }, |message| {
            // struct rtmsg: main table, protocol static, universe, unicast.
            message.extend([family, route.length, 0, 0, 254, 4, 0, 1, 0, 0, 0, 0]);
            push_attribute(message, libc::RTA_DST, &octets(route.address));
            push_attribute(message, libc::RTA_GATEWAY, &octets(route.gateway));
            push_attribute(message, libc::RTA_OIF, &route.interface.to_ne_bytes());
        });
    }

    /// Appends one nlmsghdr with its payload.
    fn push(&mut self, to: &mut Vec<u8>, kind: u16, flags: u16, payload: impl FnOnce(&mut Vec<u8>)) {
        self.sequence += 1;
        let start = to.len();
        to.extend([0; 4]);
        to.extend(kind.to_ne_bytes());
        to.extend((REQUEST | flags).to_ne_bytes());
        to.extend(self.sequence.to_ne_bytes());
        to.extend([0; 4]);
        payload(to);
        let length = (to.len() - start) as u32;
        to[start..start + 4].copy_from_slice(&length.to_ne_bytes());
        to.resize(to.len().next_multiple_of(4), 0);
    }

    fn wait_for_ack(&mut self) -> Result<()> {
        let sequence = self.sequence;
        self.receive(|kind, received, payload| {
            if kind == ERROR {
                check_error(payload)?;
            }
            Ok(kind == ERROR && received == sequence)
        })
    }

    /// Hands every received message (type, sequence number, payload) to `take` until it returns true.
    fn receive(&mut self, mut take: impl FnMut(u16, u32, &[u8]) -> Result<bool>) -> Result<()> {
        loop {
            let (datagram, _) = match self.socket.recv_from_full() {
                // A signal interrupted the call. The kernel's answer still comes.
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                received => received.context("receiving from netlink")?,
            };
            let mut rest = &datagram[..];
            while let Some((header, _)) = rest.split_at_checked(16) {
                let length = word(header, 0)? as usize;
                ensure!(
                    (16..=rest.len()).contains(&length),
                    "a netlink message of impossible length {length}"
                );
                let kind = u16::from_ne_bytes([header[4], header[5]]);
                if take(kind, word(header, 8)?, &rest[16..length])? {
                    return Ok(());
                }
                rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            }
        }
    }

    /// Sends one generic netlink command; hands the attributes of every answer to `take`.
    fn generic(
        &mut self,
        family: u16,
        command: u8,
        dump: bool,
        attribute: (u16, &[u8]),
        mut take: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut message = Vec::new();
        self.push(&mut message, family, if dump { DUMP } else { ACK }, |payload| {
            payload.extend([command, 1, 0, 0]);
            push_attribute(payload, attribute.0, attribute.1);
        });
        self.socket.send(&message, 0)?;
        self.receive(|kind, _, payload| {
            match kind {
                ERROR => check_error(payload)?,
                DONE => {}
                _ => take(payload.get(4..).unwrap_or_default())?,
            }
            Ok(matches!(kind, ERROR | DONE))
        })
    }
}

/// Process ids of a device's NAPI threads, in the order of its queues (linux/netdev.h, napi-get; Linux 6.8). Empty
/// unless the device is threaded. Asks in the calling thread's namespace.
pub fn napi_threads(interface: u32) -> Result<Vec<i32>> {
    const GET_FAMILY: u8 = 3;
    const FAMILY_NAME: u16 = 2;
    const FAMILY_ID: u16 = 1;
    const NAPI_GET: u8 = 11;
    const NAPI_IFINDEX: u16 = 1;
    const NAPI_ID: u16 = 2;
    const NAPI_PID: u16 = 4;

    let mut netlink = Netlink::open(protocols::NETLINK_GENERIC)?;
    let mut family = None;
    netlink
        .generic(GENERIC_CONTROL, GET_FAMILY, false, (FAMILY_NAME, b"netdev\0"), |attributes| {
            family =
                attribute(attributes, FAMILY_ID).and_then(|id| Some(u16::from_ne_bytes(id.try_into().ok()?)));
            Ok(())
        })
        .context(
            "this kernel has no netdev netlink family (Linux 6.8 or newer is needed to list NAPI threads)",
        )?;
    let family = family.context("netdev netlink family without an id")?;
    let mut threads = Vec::new();
    let filter = interface.to_ne_bytes();
    netlink.generic(family, NAPI_GET, true, (NAPI_IFINDEX, &filter), |attributes| {
        let number =
            |kind| attribute(attributes, kind).and_then(|v| Some(u32::from_ne_bytes(v.try_into().ok()?)));
        if number(NAPI_IFINDEX) == Some(interface) {
            threads.extend(number(NAPI_ID).zip(number(NAPI_PID).and_then(|pid| i32::try_from(pid).ok())));
        }
        Ok(())
    })?;
    // The kernel assigns ids queue by queue.
    threads.sort_unstable();
    Ok(threads.into_iter().map(|(_, pid)| pid).collect())
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn push_attribute(to: &mut Vec<u8>, kind: u16, value: &[u8]) {
    to.extend((value.len() as u16 + 4).to_ne_bytes());
    to.extend(kind.to_ne_bytes());
    to.extend(value);
    to.resize(to.len().next_multiple_of(4), 0);
}

fn attribute(attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    let mut rest = attributes;
    while let Some(header) = rest.get(..4) {
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & 0x3fff;
        let value = rest.get(4..length)?;
        if kind == wanted {
            return Some(value);
        }
        rest = rest.get(length.next_multiple_of(4)..)?;
    }
    None
}

fn word(bytes: &[u8], at: usize) -> Result<u32> {
    let word = bytes.get(at..at + 4).context("a netlink message is cut short")?;
    Ok(u32::from_ne_bytes([word[0], word[1], word[2], word[3]]))
}

fn check_error(payload: &[u8]) -> Result<()> {
    match word(payload, 0)? as i32 {
        0 => Ok(()),
        error => bail!("netlink: {}", std::io::Error::from_raw_os_error(-error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_after_padding_and_cut_ones_are_not() {
        let mut bytes = Vec::new();
        push_attribute(&mut bytes, 7, b"abc");
        push_attribute(&mut bytes, 9, b"defg");
        assert_eq!(attribute(&bytes, 9), Some(&b"defg"[..]));
        assert_eq!(attribute(&bytes, 8), None);
        assert_eq!(attribute(&bytes[..12], 9), None);
        assert_eq!(attribute(&[0, 0, 9, 0, 1], 9), None);
    }
}
