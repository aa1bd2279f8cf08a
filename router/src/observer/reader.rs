//! Queries to Linux from another thread, with sockets of its own: `millrace routes --verify`.
//!
//! This module parses the answers itself, so a fault in the observer's parsers cannot hide itself.

use super::{Quota, space::Peers};
use crate::netlink::{INET, INET6, rtm, socket::Socket, wire};
use logic::{net::Mac, observe::NamespaceId};
use std::{collections::BTreeMap, io, net::IpAddr};

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

/// Queries the namespaces that were observed when it was created. Its sockets keep namespaces alive: do not store it.
pub struct Reader {
    sockets: BTreeMap<NamespaceId, Socket>,
    /// A namespace may have grown since then.
    quota: Quota,
}

impl Reader {
    /// Opens a socket in each. A namespace that has already ended appears empty.
    pub(super) fn open(places: &Peers, quota: Quota) -> io::Result<Reader> {
        let mut sockets = BTreeMap::new();
        for (id, place) in places {
            match place.inside(|| Socket::requests(libc::NETLINK_ROUTE)).and_then(|socket| socket) {
                Ok(socket) => drop(sockets.insert(*id, socket)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => (),
                Err(error) => return Err(error),
            }
        }
        Ok(Reader { sockets, quota })
    }

    /// The routes of tables main and local.
    pub fn routes(&mut self, namespace: NamespaceId) -> io::Result<Vec<Known>> {
        let Some(socket) = self.sockets.get_mut(&namespace) else { return Ok(Vec::new()) };
        let most = self.quota.of(namespace).routes();
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
        let Some(socket) = self.sockets.get_mut(&namespace) else { return Ok(None) };
        match socket.ask(get(question.address, question.from), |m| Some(sent(m.payload, question.address))) {
            Ok(answer) => Ok(answer.flatten()),
            // Linux refuses this sender, or every sender: without it the route alone answers.
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
        let Some(socket) = self.sockets.get_mut(&namespace) else { return Ok(found) };
        for family in [INET, INET6] {
            let most = self.quota.of(namespace).neighbours();
            let request = dump(rtm::GETNEIGH, family, 12);
            found.extend(socket.dump_at_most(most, request, |m| neighbour(m.payload))?);
        }
        Ok(found)
    }

    /// Devices.
    pub fn devices(&mut self, namespace: NamespaceId) -> io::Result<BTreeMap<u32, Hardware>> {
        let Some(socket) = self.sockets.get_mut(&namespace) else { return Ok(BTreeMap::new()) };
        let most = self.quota.of(namespace).interfaces();
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
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EXDEV))
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
    let (mut oif, mut gateway, mut mtu) = (None, None, None);
    for (number, value) in wire::attributes_after(payload, 12) {
        match number {
            4 => oif = wire::u32_at(value, 0),
            5 => gateway = wire::address(value),
            8 => mtu = wire::attribute(value, 2).and_then(|mtu| wire::u32_at(mtu, 0)),
            18 => gateway = wire::address(value.get(2..)?),
            _ => (),
        }
    }
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
