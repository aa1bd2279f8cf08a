//! One visit to a namespace, in a thread of its own, with sockets that are closed at the end.
//!
//! A namespace may be hostile: it can grow its tables, change them during a reading, or hold locks that a reading
//! needs. That delays this thread, never the observer's own. A table larger than the [`Quota`] is not read to its end.

use super::{Quota, siblings, space::Peers, sysctl::Polled};
use crate::{
    base::clock::monotonic,
    linux::{
        hazards::{self, bpf, traffic},
        netlink::{
            INET, INET6,
            learned::{self, LearnedRoute},
            link::{self, LinkMessage, RawLink},
            neighbour, nexthop, nsid, route,
            socket::Socket,
        },
        netns::{self, NamespaceRef},
    },
};
use logic::{
    learned::MOST_BOUND,
    observe::{NamespaceId, Neighbour, NexthopObject, Route},
};
use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    net::{IpAddr, Ipv4Addr},
    os::fd::AsFd,
    time::{Duration, Instant},
};

/// The longest duration of a visit, even if something is missing.
const LONGEST: Duration = Duration::from_secs(5);
/// The same for a visit that reads everything, or all routes.
const LONGEST_OF_ALL: Duration = Duration::from_secs(20);
/// The index of `lo` in each namespace.
const LOOPBACK: u32 = 1;

/// The numbers by which a namespace knows others; `None`: it has no number for that one.
pub type Numbers = HashMap<NamespaceId, Option<i32>>;

/// The things to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Everything below, and devices, addresses, neighbours.
    pub state: bool,
    /// Routes, and the nexthop objects under them.
    pub routes: bool,
    /// Everything that decides whether packets may bypass the kernel, now: [`Wanted::add_policy`].
    pub policy: bool,
    pub hazards: bool,
    pub traffic: bool,
    /// Settings of devices and XDP programs, which no message reports.
    pub devices: bool,
    /// Files of /proc.
    pub polled: bool,
    pub numbers: bool,
    /// Count the programs on these devices.
    pub programs: Option<BTreeSet<u32>>,
    /// Neighbours that the kernel must revalidate.
    pub probes: Vec<(u32, IpAddr)>,
    /// Destinations about which Linux may have learned something.
    pub destinations: Vec<IpAddr>,
}

impl Wanted {
    /// Does it read state that events also report, so that these must be applied after it?
    pub fn precedes_events(&self) -> bool {
        self.state || self.routes
    }

    /// Does it read tables that a namespace can make long, and that are not urgent?
    pub fn is_long(&self) -> bool {
        self.state || self.routes || self.devices
    }

    /// Does it read only such tables?
    pub fn is_only_long(&self) -> bool {
        let (state, routes, devices) = (self.state, self.routes, self.devices);
        *self == Wanted { state, routes, devices, ..Wanted::default() }
    }

    /// Adds the parts of policies. `chain` holds the devices of the namespace on ports.
    pub fn add_policy(&mut self, chain: &BTreeSet<u32>) {
        (self.hazards, self.traffic, self.devices, self.polled) = (true, true, true, true);
        self.programs = Some(chain.clone());
    }

    /// Leaves the long tables for another visit, and returns them.
    pub fn put_off(&mut self) -> Wanted {
        let long =
            Wanted { state: self.state, routes: self.routes, devices: self.devices, ..Wanted::default() };
        (self.state, self.routes, self.devices) = (false, false, false);
        long
    }

    pub fn is_empty(&self) -> bool {
        *self == Wanted::default()
    }
}

/// The results: `None` for parts that were not wanted.
#[derive(Default)]
pub struct SurveyResult {
    pub state: Option<io::Result<NamespaceState>>,
    pub routes: Option<io::Result<Routes>>,
    pub hazards: Option<hazards::Read>,
    pub traffic: Option<io::Result<traffic::Findings>>,
    pub devices: Option<io::Result<Vec<RawLink>>>,
    pub polled: Option<Polled>,
    pub numbers: Option<io::Result<Numbers>>,
    pub programs: Option<io::Result<BTreeMap<u32, u32>>>,
    /// Answers about the wanted destinations, and about others. Destinations whose question failed are missing. The
    /// second part holds the duration of the questions about IPv4 and about IPv6.
    pub learned: (Vec<LearnedRoute>, [Duration; 2]),
    /// The namespace could not be entered: it may have moved, or be gone.
    pub lost_the_way: bool,
    /// Another namespace has its number now.
    pub ended: bool,
}

impl SurveyResult {
    /// The result of a visit that did not take place. Its parts are read another time.
    pub fn nothing() -> SurveyResult {
        let error = || io::Error::other("the thread that reads the namespace did not start or panicked");
        let wanted = Wanted { state: true, programs: Some(BTreeSet::new()), ..Wanted::default() };
        failed(&wanted, &error())
    }

    /// The number of routes read.
    pub fn route_count(&self) -> usize {
        let of_all =
            self.state.iter().flatten().filter_map(|state| state.tables.as_ref().ok()).map(|t| &t.routes);
        of_all.chain(self.routes.iter().flatten()).map(|routes| routes.v4.len() + routes.v6.len()).sum()
    }

    /// Why a part of the policies could not be read; `None`: all were read. Rules that cannot be read are hazards
    /// themselves.
    pub fn why_no_policy(&self) -> Option<String> {
        let devices = match (&self.state, &self.devices) {
            (Some(Ok(_)), _) | (_, Some(Ok(_))) => None,
            (Some(Err(error)), _) | (_, Some(Err(error))) => Some(error.to_string()),
            (None, None) => Some("devices were not read".into()),
        };
        match &self.traffic {
            Some(Ok(_)) => devices,
            Some(Err(error)) => Some(error.to_string()),
            None => Some("queueing disciplines were not read".into()),
        }
    }
}

/// Devices, addresses, neighbours and routes.
pub struct NamespaceState {
    pub links: BTreeMap<u32, RawLink>,
    pub addresses: Vec<link::Address4>,
    /// An error when the namespace has too many. Its devices must be known all the same: others may send to their addresses.
    pub tables: io::Result<Tables>,
}

pub struct Tables {
    pub neighbours: Vec<Neighbour>,
    pub routes: Routes,
}

pub struct Routes {
    pub nexthops: Vec<NexthopObject>,
    pub v4: Vec<Route<u32>>,
    /// Learned routes that bind packets. For IPv4, only those that were used since they were learned.
    pub learned: Vec<LearnedRoute>,
    pub v6: Vec<Route<u128>>,
    /// The number that they count as ([`route::weight`]).
    pub weight: usize,
}

/// Reads the wanted parts of the namespace at `place`.
pub fn visit(
    place: &NamespaceRef,
    wanted: &Wanted,
    id: NamespaceId,
    peers: &Peers,
    quota: &Quota,
) -> SurveyResult {
    let task = || Socket::requests(libc::NETLINK_ROUTE).map(|s| read(s, wanted, id, peers, quota));
    let visited = place.inside(task);
    match visited {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => failed(wanted, &error),
        Err(error) => {
            SurveyResult { ended: netns::was_replaced(&error), lost_the_way: true, ..failed(wanted, &error) }
        }
    }
}

fn read(mut socket: Socket, wanted: &Wanted, id: NamespaceId, peers: &Peers, quota: &Quota) -> SurveyResult {
    let longest = if wanted.precedes_events() { LONGEST_OF_ALL } else { LONGEST };
    let end = Instant::now() + longest;
    socket.end_at(end);
    let socket = &mut socket;
    for (ifindex, address) in &wanted.probes {
        if let Err(error) = socket.ask(neighbour::touch(*ifindex, *address), |_| None::<()>) {
            tracing::debug!("cannot probe neighbour {address}: {error}");
        }
    }
    let all = wanted.state;
    let state = all.then(|| read_state(socket, quota));
    let is_whole =
        |state: &io::Result<NamespaceState>| state.as_ref().is_ok_and(|state| state.tables.is_ok());
    if !state.as_ref().is_none_or(is_whole) {
        let wanted = Wanted { state: false, ..wanted.clone() };
        return SurveyResult { state, ..failed(&wanted, &io::ErrorKind::Other.into()) };
    }
    SurveyResult {
        state,
        routes: (wanted.routes && !all).then(|| read_routes(socket, quota)),
        hazards: (all || wanted.hazards).then(|| hazards::read(socket, end)),
        traffic: (all || wanted.traffic).then(|| traffic::read(socket)),
        devices: (wanted.devices && !all).then(|| read_links(socket, quota)),
        polled: (all || wanted.polled).then(Polled::read),
        numbers: (all || wanted.numbers).then(|| read_numbers(socket, id, peers)),
        programs: wanted.programs.as_ref().map(bpf::tcx_programs),
        learned: ask_about(socket, &wanted.destinations),
        lost_the_way: false,
        ended: false,
    }
}

/// All wanted parts failed for this reason.
fn failed(wanted: &Wanted, error: &io::Error) -> SurveyResult {
    fn fail<T>(wanted: bool, error: &io::Error) -> Option<io::Result<T>> {
        wanted.then(|| Err(super::same(error)))
    }
    SurveyResult {
        state: fail(wanted.state, error),
        routes: fail(wanted.routes, error),
        hazards: wanted.hazards.then(|| hazards::Read::failed(error)),
        traffic: fail(wanted.traffic, error),
        devices: fail(wanted.devices, error),
        numbers: fail(wanted.numbers, error),
        programs: fail(wanted.programs.is_some(), error),
        ..SurveyResult::default()
    }
}

fn read_state(socket: &mut Socket, quota: &Quota) -> io::Result<NamespaceState> {
    let links = read_links(socket, quota)?.into_iter().map(|link| (link.ifindex, link)).collect();
    let address = |m: crate::linux::netlink::wire::Message<'_>| link::parse_address4(m.payload);
    let addresses = socket.dump_at_most(&mut quota.addresses(), link::dump_addresses(INET), address)?;
    Ok(NamespaceState { links, addresses, tables: read_tables(socket, quota) })
}

fn read_tables(socket: &mut Socket, quota: &Quota) -> io::Result<Tables> {
    let most = &mut quota.neighbours();
    let mut neighbours = socket.dump_at_most(most, neighbour::dump(INET), neighbour::parse)?;
    neighbours.extend(socket.dump_at_most(most, neighbour::dump(INET6), neighbour::parse)?);
    Ok(Tables { neighbours, routes: read_routes(socket, quota)? })
}

fn read_links(socket: &mut Socket, quota: &Quota) -> io::Result<Vec<RawLink>> {
    socket.dump_at_most(&mut quota.interfaces(), link::dump(), |m| match link::parse(m)? {
        LinkMessage::New(link) => Some(*link),
        _ => None,
    })
}

/// Waits for a change that is under way. Its message can come before its effects: IPv6 changes the MTUs of routes after
/// RTM_NEWLINK was sent (`rt6_mtu_change()`), and a dump of routes does not wait. A question about a device does, because it
/// takes the lock of all such changes (`rtnl_lock()`).
fn wait_for_change(socket: &mut Socket) -> io::Result<()> {
    match socket.ask(link::get(LOOPBACK), |_| None::<()>) {
        Err(error) if error.raw_os_error() != Some(libc::ENODEV) => Err(error),
        _ => Ok(()),
    }
}

fn read_routes(socket: &mut Socket, quota: &Quota) -> io::Result<Routes> {
    wait_for_change(socket)?;
    let nexthops = socket.dump_at_most(&mut quota.routes(), nexthop::dump(), nexthop::parse)?;
    let most = &mut quota.routes();
    let v4 = socket.dump_at_most(most, route::dump(INET), |m| route::parse4(m, monotonic()))?;
    let mut learned = read_learned(socket, INET, &BTreeSet::new())?;
    let v6 = socket.dump_at_most(most, route::dump(INET6), |m| route::parse6(m, monotonic()));
    let mut v6 = none_without_family(v6)?;
    siblings::look_at(socket, &mut v6);
    learned.extend(none_without_family(read_learned(socket, INET6, &BTreeSet::new()))?);
    Ok(Routes { nexthops, v4, learned, v6, weight: most.used() })
}

/// Reads learned routes. Linux can keep more than 9,000 destinations for each next hop (`FNHE_RECLAIM_DEPTH`,
/// `FIB6_MAX_DEPTH`). The result holds all destinations in `asked`, and at most [`MOST_BOUND`] others.
fn read_learned(socket: &mut Socket, family: u8, asked: &BTreeSet<IpAddr>) -> io::Result<Vec<LearnedRoute>> {
    let others = Cell::new(0);
    let of_use = |learned: &LearnedRoute| {
        asked.contains(&learned.destination) || others.replace(others.get() + 1) < MOST_BOUND
    };
    let mut found = socket.dump(learned::dump(family), |m| {
        learned::parse(m, monotonic()).filter(|learned| learned.binds_until.is_some()).filter(of_use)
    })?;
    found.sort_by_key(|learned| !asked.contains(&learned.destination));
    Ok(found)
}

/// Asks what Linux has learned about these destinations. Also returns how long the questions about IPv4 and about IPv6
/// took. One dump answers all questions about IPv6.
fn ask_about(socket: &mut Socket, destinations: &[IpAddr]) -> (Vec<LearnedRoute>, [Duration; 2]) {
    let began = Instant::now();
    let mut answers = Vec::new();
    let mut unanswered6 = BTreeSet::new();
    for destination in destinations {
        match destination {
            IpAddr::V4(address) => answers.extend(ask_about4(socket, *address)),
            IpAddr::V6(_) => _ = unanswered6.insert(*destination),
        }
    }
    let took4 = began.elapsed();
    if unanswered6.is_empty() {
        return (answers, [took4, Duration::ZERO]);
    }
    match read_learned(socket, INET6, &unanswered6) {
        Ok(learned) => {
            learned.iter().for_each(|learned| _ = unanswered6.remove(&learned.destination));
            let nothing = unanswered6.into_iter();
            answers.extend(nothing.map(|destination| LearnedRoute { destination, binds_until: None }));
            answers.extend(learned);
        }
        Err(error) => tracing::debug!("cannot ask about IPv6 destinations: {error}"),
    }
    (answers, [took4, began.elapsed() - took4])
}

/// The most devices of one multipath route about which Linux is asked.
const MOST_DEVICES: usize = 32;

/// Asks what Linux has learned about a destination. `None`: the question failed. For a destination without a route,
/// nothing binds packets.
fn ask_about4(socket: &mut Socket, address: Ipv4Addr) -> Option<LearnedRoute> {
    let answer = |binds_until| LearnedRoute { destination: address.into(), binds_until };
    let ask = |socket: &mut Socket, device| -> Option<Option<Duration>> {
        let learned = socket.ask(learned::to(address, device), |m| learned::parse(m, monotonic()));
        let learned = answered(address, learned)?.filter(|learned| learned.destination == address);
        Some(learned.and_then(|learned| learned.binds_until))
    };
    if let Some(until) = ask(socket, None)? {
        return Some(answer(Some(until)));
    }
    // Each next hop of a multipath route has entries of its own.
    let devices = answered(address, socket.ask(learned::route_to(address), learned::devices))?;
    for device in devices.unwrap_or_default().into_iter().take(MOST_DEVICES) {
        if let Some(until) = ask(socket, Some(device))? {
            return Some(answer(Some(until)));
        }
    }
    Some(answer(None))
}

/// The kernel's answer. `Some(None)`: the kernel has none, for example because there is no route. `None`: the question
/// failed.
fn answered<T>(address: Ipv4Addr, answer: io::Result<Option<T>>) -> Option<Option<T>> {
    match answer {
        Ok(answer) => Some(answer),
        Err(error) if is_no_route(&error) => Some(None),
        Err(error) => {
            tracing::debug!("cannot ask about {address}: {error}");
            None
        }
    }
}

fn is_no_route(error: &io::Error) -> bool {
    let number = error.raw_os_error();
    matches!(
        number,
        Some(
            libc::ENETUNREACH
                | libc::EHOSTUNREACH
                | libc::EACCES
                | libc::EINVAL
                | libc::EAGAIN
                | libc::ENODEV
        )
    )
}

/// A kernel without IPv6 has no IPv6 tables.
fn none_without_family<T>(result: io::Result<Vec<T>>) -> io::Result<Vec<T>> {
    match result {
        Err(e) if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EAFNOSUPPORT)) => Ok(Vec::new()),
        other => other,
    }
}

/// Reads the numbers of the other namespaces. A namespace that is gone has none.
fn read_numbers(socket: &mut Socket, id: NamespaceId, peers: &Peers) -> io::Result<Numbers> {
    let others = peers.iter().filter(|(peer, _)| *peer != id);
    let number = |(peer, place): &(NamespaceId, NamespaceRef)| {
        let known = match place.open() {
            Ok(file) => nsid::ask(socket, file.as_fd())?,
            Err(_) => None,
        };
        Ok((*peer, known))
    };
    others.map(number).collect()
}
