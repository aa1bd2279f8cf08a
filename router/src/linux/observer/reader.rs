//! Queries to Linux from another thread, with sockets of its own: `millrace routes --verify`.
//!
//! This module parses the answers itself, so a fault in the observer's parsers cannot hide itself.

use super::{Observer, Quota, same, unread::Part};
use crate::linux::{
    netlink::{INET, INET6, rtm, socket::Socket, wire},
    netns::NamespaceRef,
};
use logic::{net::Mac, observe::NamespaceId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{collections::BTreeMap, io, net::IpAddr, time::Instant};

const TABLE_MAIN: u32 = 254;
const TABLE_LOCAL: u32 = 255;
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;
/// States of neighbours that can be sent to: permanent, noarp, probe, delay, stale, reachable.
const NUD_VALID: u16 = 0xde;

/// A route, as far as the verification needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    pub address: IpAddr,
    pub length: u8,
    /// The device, if destinations are neighbours on it.
    pub connected: Option<u32>,
    /// An address of the machine itself.
    pub local: bool,
    /// Packets leave by a nexthop object.
    pub object: bool,
}

/// A packet for which Linux is queried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    pub address: IpAddr,
    /// The sender, and the ingress device; `None`: the machine itself.
    pub from: Option<(IpAddr, u32)>,
    /// The prefix that gave rise to the question.
    pub prefix: String,
}

/// Where Linux sends a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    pub oif: u32,
    pub gateway: Option<IpAddr>,
    /// The MTU of the route, if it has one.
    pub mtu: Option<u32>,
}

/// The properties of a device, apart from its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hardware {
    pub mac: Mac,
    pub mtu: u32,
}

/// How complete the knowledge of a namespace is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The last [`Observer::poll`] has returned all of it.
    Current,
    /// Reports wait to be read, or a reading is due.
    Behind,
    /// It is left alone, for this reason.
    OverLimits(String),
    /// It is not observed.
    Gone,
}

impl Observer {
    /// Returns a reader for another thread, which queries Linux with sockets of its own, for comparison
    /// (`millrace routes --verify`). It does not query namespaces that are over their limits and not read now.
    pub fn reader(&self) -> Reader {
        let read = self.spaces.values().filter(|s| s.announced && !s.is_quiet());
        let open =
            |place: &NamespaceRef| place.inside(|| Socket::requests(libc::NETLINK_ROUTE)).and_then(|s| s);
        Reader { sockets: read.map(|s| (s.id, open(&s.place))).collect(), quota: self.config.quota }
    }

    /// Says how complete the knowledge of a namespace is.
    pub fn standing(&self, id: NamespaceId) -> Standing {
        let Some(space) = self.spaces.get(&id) else { return Standing::Gone };
        if let Some(why) = space.unread.why(Part::Quota) {
            return Standing::OverLimits(why.to_owned());
        }
        let heard = space.ear.as_ref().is_some_and(|ear| !is_readable(&ear.route));
        if heard && space.is_current() { Standing::Current } else { Standing::Behind }
    }
}

/// An error counts as readable.
fn is_readable(socket: &Socket) -> bool {
    let mut polled = [PollFd::new(socket, PollFlags::IN)];
    !poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready == 0)
}

/// Queries the namespaces that were observed when it was created. Its sockets keep namespaces alive: do not store it.
pub struct Reader {
    sockets: BTreeMap<NamespaceId, io::Result<Socket>>,
    /// A namespace may have grown since then.
    quota: Quota,
}

impl Reader {
    /// Queries of this namespace fail from then on.
    pub fn end_at(&mut self, namespace: NamespaceId, end: Instant) {
        if let Some(Ok(socket)) = self.sockets.get_mut(&namespace) {
            socket.end_at(end);
        }
    }

    fn socket(&mut self, namespace: NamespaceId) -> io::Result<&mut Socket> {
        match self.sockets.get_mut(&namespace) {
            Some(Ok(socket)) => Ok(socket),
            Some(Err(error)) => Err(same(error)),
            None => Err(io::Error::new(io::ErrorKind::NotFound, "the namespace is not observed")),
        }
    }

    /// The routes of tables main and local.
    pub fn routes(&mut self, namespace: NamespaceId) -> io::Result<Vec<Known>> {
        let most = &mut self.quota.of(namespace).routes();
        let socket = self.socket(namespace)?;
        let mut known = socket.dump_at_most(most, dump(rtm::GETROUTE, INET, 12), |m| route(m.payload))?;
        match socket.dump_at_most(most, dump(rtm::GETROUTE, INET6, 12), |m| route(m.payload)) {
            Ok(more) => known.extend(more),
            // A kernel without IPv6.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EAFNOSUPPORT)) => (),
            Err(error) => return Err(error),
        }
        Ok(known)
    }

    /// The route that Linux uses for a packet; `None`: it does not forward it.
    pub fn way(&mut self, namespace: NamespaceId, question: &Question) -> io::Result<Option<Sent>> {
        let socket = self.socket(namespace)?;
        match socket.ask(get(question.address, question.from), |m| Some(sent(m.payload, question.address))) {
            Ok(answer) => Ok(answer.flatten()),
            // Linux refuses this sender, or any sender, or the device is gone. A request without a sender returns the
            // route.
            Err(error) if question.from.is_some() && refuses_source(&error) => {
                match socket.ask(get(question.address, None), |m| Some(sent(m.payload, question.address))) {
                    Ok(answer) => Ok(answer.flatten()),
                    Err(error) => not_forwarded(error),
                }
            }
            Err(error) => not_forwarded(error),
        }
    }

    /// Neighbours that can be sent to.
    pub fn neighbours(&mut self, namespace: NamespaceId) -> io::Result<BTreeMap<(u32, IpAddr), Mac>> {
        let mut found = BTreeMap::new();
        let most = &mut self.quota.of(namespace).neighbours();
        let socket = self.socket(namespace)?;
        for family in [INET, INET6] {
            let request = dump(rtm::GETNEIGH, family, 12);
            found.extend(socket.dump_at_most(most, request, |m| neighbour(m.payload))?);
        }
        Ok(found)
    }

    /// Devices.
    pub fn devices(&mut self, namespace: NamespaceId) -> io::Result<BTreeMap<u32, Hardware>> {
        let most = &mut self.quota.of(namespace).interfaces();
        let socket = self.socket(namespace)?;
        let devices = socket.dump_at_most(most, dump(rtm::GETLINK, 0, 16), |m| device(m.payload))?;
        Ok(devices.into_iter().collect())
    }
}

fn dump(kind: u16, family: u8, header: usize) -> wire::Request {
    let mut bytes = vec![0; header];
    bytes[0] = family;
    wire::Request::new(kind, wire::DUMP, &bytes)
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(a) => a.octets().to_vec(),
        IpAddr::V6(a) => a.octets().to_vec(),
    }
}

fn get(address: IpAddr, from: Option<(IpAddr, u32)>) -> wire::Request {
    let (family, bits) = if address.is_ipv4() { (INET, 32) } else { (INET6, 128) };
    let source_bits = if from.is_some() { bits } else { 0 };
    let header = [family, bits, source_bits, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let request = wire::Request::new(rtm::GETROUTE, wire::ACK, &header).with(1, &octets(address));
    match from {
        Some((source, device)) => request.with(2, &octets(source)).with(3, &device.to_ne_bytes()),
        None => request,
    }
}

fn refuses_source(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EXDEV | libc::ENODEV))
}

fn not_forwarded(error: io::Error) -> io::Result<Option<Sent>> {
    match error.raw_os_error() {
        Some(
            libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES | libc::EINVAL | libc::EXDEV | libc::EAGAIN,
        ) => Ok(None),
        _ => Err(error),
    }
}

fn route(payload: &[u8]) -> Option<Known> {
    let (&family, &length, &kind) = (payload.first()?, payload.get(1)?, payload.get(7)?);
    let mut table = u32::from(*payload.get(4)?);
    let mut address = if family == INET { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
    let (mut device, mut gateway, mut object) = (None, false, false);
    for (number, value) in wire::attributes_after(payload, 12) {
        object |= number == 30;
        match number {
            1 => address = wire::address(value)?,
            4 => device = wire::u32_at(value, 0),
            5 | 9 | 18 | 30 => gateway = true,
            15 => table = wire::u32_at(value, 0)?,
            _ => (),
        }
    }
    let connected = device.filter(|_| !gateway && kind == RTN_UNICAST && table == TABLE_MAIN);
    let object = object && kind == RTN_UNICAST;
    let known = Known { address, length, connected, local: kind == RTN_LOCAL, object };
    matches!(table, TABLE_MAIN | TABLE_LOCAL).then_some(known)
}

fn sent(payload: &[u8], address: IpAddr) -> Option<Sent> {
    let (mut oif, mut gateway, mut mtu, mut locked, mut learned) = (None, None, None, false, false);
    for (number, value) in wire::attributes_after(payload, 12) {
        match number {
            4 => oif = wire::u32_at(value, 0),
            5 => gateway = wire::address(value),
            8 => {
                mtu = wire::attribute(value, 2).and_then(|mtu| wire::u32_at(mtu, 0));
                locked = wire::attribute(value, 1).and_then(|lock| wire::u32_at(lock, 0)).unwrap_or(0)
                    & 1 << 2
                    != 0;
            }
            // `rta_expires`.
            12 => learned = wire::u32_at(value, 8).is_some_and(|expires| expires != 0),
            18 => gateway = wire::address(value.get(2..)?),
            _ => (),
        }
    }
    // IPv4 does not forward by a path MTU that it has learned, unless it is locked (`ip_dst_mtu_maybe_forward()`).
    let binds = locked || !learned || address.is_ipv6();
    let mtu = mtu.filter(|_| binds);
    let gateway = gateway.filter(|gateway| !gateway.is_unspecified() && *gateway != address);
    (*payload.get(7)? == RTN_UNICAST).then_some(Sent { oif: oif?, gateway, mtu })
}

fn neighbour(payload: &[u8]) -> Option<((u32, IpAddr), Mac)> {
    let (device, state) = (wire::u32_at(payload, 4)?, wire::u16_at(payload, 8)?);
    let (mut address, mut mac) = (None, None);
    for (number, value) in wire::attributes_after(payload, 12) {
        match number {
            1 => address = wire::address(value),
            2 => mac = Mac::from_slice(value),
            _ => (),
        }
    }
    (state & NUD_VALID != 0).then_some(((device, address?), mac?))
}

fn device(payload: &[u8]) -> Option<(u32, Hardware)> {
    let mut device = Hardware::default();
    for (number, value) in wire::attributes_after(payload, 16) {
        match number {
            1 => device.mac = Mac::from_slice(value).unwrap_or_default(),
            4 => device.mtu = wire::u32_at(value, 0)?,
            _ => (),
        }
    }
    Some((wire::u32_at(payload, 4)?, device))
}
