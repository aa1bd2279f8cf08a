//! One namespace under observation: its sockets, what is known of it, and the events that follow from a message.
//!
//! The subscription is opened before the first dump, so nothing falls between the two; events that were under way
//! while a dump was read are applied after it, which is harmless because they are absolute.

use super::{
    due::Due,
    poller::ProcessWatch,
    settings,
    sysctl::{Sysctls, Values},
    troubles::{Troubles, What},
};
use crate::{
    clock::monotonic,
    foreign::{Quoted, Shown},
    hazards::{Hazards, command},
    multipath::MultipathKeys,
    netlink::{
        GROUPS, INET, INET6,
        link::{self, LinkMessage, RawLink},
        neighbour, netconf, nexthop, nsid, route, rtm,
        socket::Socket,
        wire::{self, Message},
    },
    netns::{self, Key},
};
use logic::observe::{Change, Dump, Event, Link, Namespace, NamespaceId, NexthopObject, Route, Settings};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs::File,
    io,
    os::fd::AsFd,
    sync::Arc,
    time::Instant,
};

/// Buffers of events taken from one socket before others get their turn.
const BUFFERS_PER_TURN: usize = 8192;

/// The namespaces under observation, by handle: where devices below may be.
pub type Peers = Vec<(NamespaceId, Arc<File>)>;

/// All routes of a namespace.
type Routes = (Vec<Route<u32>>, Vec<Route<u128>>);

/// A namespace under observation.
pub struct Space {
    pub id: NamespaceId,
    pub key: Key,
    pub file: Arc<File>,
    pub namespace: Namespace,
    /// Devices of this namespace that are ports or sit on ports.
    pub chain: BTreeSet<u32>,
    /// A device appeared, went, or moved: look again where routers are.
    pub topology_changed: bool,
    /// Events were lost: what waits is thrown away, then everything is read again.
    lost: bool,
    pub due: Due,
    /// The process it is known by, if it has no name.
    pub process: Option<ProcessWatch>,
    pub(super) links: BTreeMap<u32, RawLink>,
    pub(super) requests: Socket,
    pub(super) events: Socket,
    pub(super) hazards: Hazards,
    pub(super) troubles: Troubles,
    sysctls: Sysctls,
    values: Values,
    multipath_keys: MultipathKeys,
    /// By device and address: whether it is understood.
    addresses: HashMap<u32, HashMap<(u32, u8, u32), bool>>,
    nexthops: BTreeMap<u32, NexthopObject>,
    /// By which number this namespace knows others.
    nsids: HashMap<NamespaceId, Option<i32>>,
    emitted: BTreeMap<u32, Link>,
    emitted_settings: Settings,
    /// Messages that wait may be older than what was read last.
    catching_up: bool,
}

impl Space {
    /// Opens sockets in the namespace and subscribes; nothing is read yet.
    pub fn open(
        id: NamespaceId,
        key: Key,
        file: Arc<File>,
        namespace: Namespace,
        receive_buffer_bytes: usize,
        multipath_keys: MultipathKeys,
    ) -> io::Result<Space> {
        let (requests, events, sysctls, hazards) = netns::inside(&file, || {
            Ok::<_, io::Error>((
                Socket::requests(libc::NETLINK_ROUTE)?,
                Socket::subscription(libc::NETLINK_ROUTE, GROUPS, receive_buffer_bytes)?,
                Sysctls::open()?,
                Hazards::open()?,
            ))
        })??;
        Ok(Space {
            id,
            key,
            file,
            namespace,
            chain: BTreeSet::new(),
            topology_changed: false,
            lost: false,
            due: Due::default(),
            process: None,
            links: BTreeMap::new(),
            requests,
            events,
            hazards,
            troubles: Troubles::default(),
            values: sysctls.read(),
            multipath_keys,
            sysctls,
            addresses: HashMap::new(),
            nexthops: BTreeMap::new(),
            nsids: HashMap::new(),
            emitted: BTreeMap::new(),
            emitted_settings: Settings::default(),
            catching_up: false,
        })
    }

    /// Everything, read now.
    pub fn dump(&mut self, peers: &Peers) -> io::Result<Dump> {
        self.due.dump = None;
        // Messages about them may be among the lost.
        self.nsids.clear();
        self.values = self.sysctls.read();
        self.read_links()?;
        let nexthops = self.read_nexthops()?;
        self.nexthops = nexthops.iter().map(|n| (n.id, n.clone())).collect();
        let mut neighbours = self.requests.dump(neighbour::dump(INET), neighbour::parse)?;
        neighbours.extend(self.requests.dump(neighbour::dump(INET6), neighbour::parse)?);
        let (routes4, routes6) = self.read_routes()?;
        self.read_hazards(Instant::now());
        self.hazards.read_traffic(&mut self.requests)?;
        for read in [What::State, What::Traffic, What::DeviceSettings] {
            self.troubles.settle(read);
        }
        self.emitted_settings = self.settings();
        let indexes: Vec<u32> = self.links.keys().copied().collect();
        self.emitted = indexes.iter().filter_map(|i| Some((*i, self.compose(*i, peers)?))).collect();
        Ok(Dump {
            links: self.emitted.values().cloned().collect(),
            routes4,
            routes6,
            nexthops,
            neighbours,
            settings: self.emitted_settings.clone(),
        })
    }

    fn read_links(&mut self) -> io::Result<()> {
        let links = self.requests.dump(link::dump(), |m| match link::parse(m)? {
            LinkMessage::New(link) => Some((link.ifindex, *link)),
            _ => None,
        })?;
        self.links = links.into_iter().collect();
        let addresses =
            self.requests.dump(link::dump_addresses(INET), |m| link::parse_address4(m.payload))?;
        self.addresses.clear();
        for address in addresses {
            self.addresses.entry(address.ifindex).or_default().insert(address.key, address.understood);
        }
        Ok(())
    }

    fn read_routes(&mut self) -> io::Result<Routes> {
        self.due.ending = None;
        self.catching_up = true;
        let v4 = self.requests.dump(route::dump(INET), |m| route::parse4(m, monotonic()))?;
        let v6 = self.requests.dump(route::dump(INET6), |m| route::parse6(m, monotonic()));
        let v6 = none_without_family(v6)?;
        if let Some(end) = v6.iter().filter_map(|route| route.expires).min() {
            self.due.routes_end(Instant::now(), end.saturating_sub(monotonic()));
        }
        Ok((v4, v6))
    }

    fn read_nexthops(&mut self) -> io::Result<Vec<NexthopObject>> {
        self.requests.dump(nexthop::dump(), nexthop::parse)
    }

    /// Messages that did not come from the kernel.
    pub fn forged(&self) -> u64 {
        let sides = [&self.hazards.netfilter, &self.hazards.xfrm];
        let sides = sides.into_iter().flatten().map(|side| side.events.forged());
        self.events.forged() + sides.sum::<u64>()
    }

    /// Take what the kernel has reported, in order. `Ok(true)`: there may be more.
    pub fn take_events(&mut self, peers: &Peers, out: &mut Vec<Event>, now: Instant) -> io::Result<bool> {
        if self.lost {
            // What still waits is older than the dump to come.
            self.lost = !self.events.discard();
            if !self.lost {
                self.due.dump = Some(now);
            }
            return Ok(self.lost);
        }
        for _ in 0..BUFFERS_PER_TURN {
            // The buffer is the socket's own; it is moved out so that messages can be applied to `self`.
            match self.events.take_buffer() {
                Ok(None) => {
                    self.catching_up = false;
                    return Ok(false);
                }
                Ok(Some((buffer, length))) => {
                    for message in wire::messages(&buffer[..length]) {
                        self.apply(message, peers, out, now);
                    }
                    self.events.return_buffer(buffer);
                }
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {
                    tracing::warn!(
                        namespace = self.namespace.name,
                        "netlink events were lost; reading everything again"
                    );
                    self.lost = true;
                    self.topology_changed = true;
                    self.distrust(What::State, "events were lost".into(), out);
                    return Ok(true);
                }
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    fn apply(&mut self, message: Message<'_>, peers: &Peers, out: &mut Vec<Event>, now: Instant) {
        match message.kind {
            rtm::NEWROUTE | rtm::DELROUTE => out.extend(self.route(message, now)),
            rtm::NEWNEIGH | rtm::DELNEIGH => {
                out.extend(neighbour::parse(message).map(|n| Event::Neighbour(self.id, n)));
            }
            rtm::NEWLINK | rtm::DELLINK => match link::parse(message) {
                Some(LinkMessage::New(link)) => self.new_link(*link, peers, out, now),
                Some(LinkMessage::Gone { ifindex }) => self.link_gone(ifindex, out, now),
                Some(LinkMessage::Settings6 { ifindex, conf6 }) => {
                    if let Some(link) = self.links.get_mut(&ifindex) {
                        link.conf6 = Some(conf6);
                        self.refresh(ifindex, peers, out);
                    }
                }
                None => (),
            },
            rtm::NEWADDR | rtm::DELADDR => {
                if let Some(address) = link::parse_address4(message.payload) {
                    self.address(address, message.kind == rtm::NEWADDR, peers, out, now);
                }
            }
            rtm::NEWNEXTHOP | rtm::DELNEXTHOP => {
                if let Some(object) = nexthop::parse(message) {
                    self.nexthop(object, message.kind == rtm::NEWNEXTHOP, out, now);
                }
            }
            rtm::NEWNETCONF => {
                if let Some(conf) = netconf::parse(message.payload) {
                    self.netconf(&conf, peers, out);
                }
            }
            rtm::NEWNSID | rtm::DELNSID => {
                self.nsids.clear();
                self.topology_changed = true;
            }
            rtm::NEWRULE | rtm::DELRULE => self.due.hazards_soon(now),
            rtm::NEWQDISC..=rtm::DELTCLASS | rtm::NEWTFILTER..=46 | 100..=rtm::DELCHAIN => {
                self.due.traffic_soon(now)
            }
            _ => (),
        }
    }

    fn route(&mut self, message: Message<'_>, now: Instant) -> Option<Event> {
        let change = match route::change(message) {
            Change::Replace if self.catching_up => Change::ReplaceLate,
            change => change,
        };
        Some(match route::parse(message, monotonic())? {
            route::Parsed::V4(route) => Event::Route4(self.id, change, route),
            route::Parsed::V6(route) => {
                if let Some(end) = route.expires.filter(|_| change != Change::Delete) {
                    self.due.routes_end(now, end.saturating_sub(monotonic()));
                }
                Event::Route6(self.id, change, route)
            }
        })
    }

    fn new_link(&mut self, mut new: RawLink, peers: &Peers, out: &mut Vec<Event>, now: Instant) {
        let index = new.ifindex;
        let old = self.links.remove(&index);
        if let Some(old) = &old {
            new.conf4 = new.conf4.or_else(|| old.conf4.clone());
            new.conf6 = new.conf6.or_else(|| old.conf6.clone());
            // IPv4 marks and drops routes of a device without a word when its state changes (fib_sync_down_dev).
            let state = |l: &RawLink| (l.up, l.carrier, l.running, l.master);
            if state(old) != state(&new) {
                self.due.routes_soon(now);
            }
        }
        if old.as_ref().is_some_and(|old| old.name != new.name) {
            // Chains are told of by the names of their devices.
            self.due.hazards_soon(now);
        }
        let place = |l: &RawLink| (l.below, l.below_nsid, l.kind.clone(), l.name.clone());
        // A port's RTM_NEWLINK also says that something was put on it, in whatever namespace (NETDEV_CHANGEUPPER).
        self.topology_changed |= self.chain.contains(&index) || old.as_ref().map(place) != Some(place(&new));
        if old.is_none_or(|old| old.qdisc != new.qdisc) {
            self.due.traffic_soon(now);
        }
        self.links.insert(index, new);
        self.refresh(index, peers, out);
    }

    fn link_gone(&mut self, ifindex: u32, out: &mut Vec<Event>, now: Instant) {
        self.addresses.remove(&ifindex);
        self.hazards.forget_link(ifindex);
        self.emitted.remove(&ifindex);
        self.topology_changed = true;
        if self.links.remove(&ifindex).is_some() {
            out.push(Event::LinkGone(self.id, ifindex));
        }
        self.due.routes_soon(now);
    }

    fn address(&mut self, a: link::Address4, new: bool, peers: &Peers, out: &mut Vec<Event>, now: Instant) {
        let addresses = self.addresses.entry(a.ifindex).or_default();
        if new {
            addresses.insert(a.key, a.understood);
        } else {
            addresses.remove(&a.key);
            // Routes that name it as their source go without a word (fib_sync_down_addr).
            self.due.routes_soon(now);
        }
        self.refresh(a.ifindex, peers, out);
    }

    fn nexthop(&mut self, object: NexthopObject, new: bool, out: &mut Vec<Event>, now: Instant) {
        if new {
            self.nexthops.insert(object.id, object.clone());
            out.push(Event::Nexthop(self.id, object));
        } else {
            self.nexthops.remove(&object.id);
            out.push(Event::NexthopGone(self.id, object.id));
            // IPv4 routes through it, and its place in groups, go without a word.
            self.due.routes_soon(now);
        }
    }

    fn netconf(&mut self, conf: &netconf::Netconf, peers: &Peers, out: &mut Vec<Event>) {
        if conf.ifindex == -1 {
            settings::apply_to_all(&mut self.values, conf);
            self.refresh_all(peers, out);
        } else if let Ok(ifindex) = u32::try_from(conf.ifindex)
            && let Some(link) = self.links.get_mut(&ifindex)
        {
            let values = if conf.v6 { &mut link.conf6 } else { &mut link.conf4 };
            settings::apply_to_device(values.as_deref_mut().unwrap_or_default(), conf);
            self.refresh(ifindex, peers, out);
        }
    }

    /// Emit the device if it is not as last emitted.
    pub fn refresh(&mut self, ifindex: u32, peers: &Peers, out: &mut Vec<Event>) {
        if let Some(link) = self.compose(ifindex, peers)
            && self.emitted.get(&ifindex) != Some(&link)
        {
            let ignores = |l: &Link| (l.ipv4.ignore_routes_with_linkdown, l.ipv6.ignore_routes_with_linkdown);
            if self.emitted.get(&ifindex).is_some_and(|old| ignores(old) != ignores(&link)) {
                // The kernel says dead also of what is linkdown and ignored.
                self.due.routes_soon(Instant::now());
            }
            self.emitted.insert(ifindex, link.clone());
            out.push(Event::Link(self.id, link));
        }
    }

    /// Emit every device that is not as last emitted.
    pub fn refresh_all(&mut self, peers: &Peers, out: &mut Vec<Event>) {
        for index in self.links.keys().copied().collect::<Vec<_>>() {
            self.refresh(index, peers, out);
        }
    }

    fn compose(&mut self, ifindex: u32, peers: &Peers) -> Option<Link> {
        let raw = self.links.get(&ifindex)?.clone();
        let has_address = self.addresses.get(&ifindex).is_some_and(|a| !a.is_empty());
        let below = self.below(&raw, peers);
        let mut hazards = self.hazards.of_link(ifindex, &raw.name, &self.namespace.name);
        if raw.egress_priority_map {
            hazards.push(format!(
                "{} maps priorities to VLAN priority bits; recreate it without egress-qos-map",
                Shown(&raw.name)
            ));
        }
        if self.addresses.get(&ifindex).is_some_and(|a| a.values().any(|understood| !understood)) {
            hazards
                .push(format!("{} has an address with attributes that are not understood", Shown(&raw.name)));
        }
        hazards.extend(raw.oddities.iter().map(|what| format!("{} {what}", Shown(&raw.name))));
        let xdp = raw.xdp.then(|| {
            let off = format!("ip link set dev {} xdp off", Quoted(&raw.name));
            let off = command(&self.namespace.name, &off);
            format!("{} runs an XDP program; detach it with: {off}", Shown(&raw.name))
        });
        Some(Link {
            ifindex,
            xdp,
            mac: raw.mac,
            mtu: raw.mtu,
            up: raw.up,
            carrier: raw.carrier,
            running: raw.running,
            below,
            master: raw.master,
            ipv4: settings::fold4(raw.conf4.as_deref(), &self.values, has_address),
            ipv6: settings::fold6(raw.conf6.as_deref(), &self.values, raw.mtu),
            hazards,
            kind: raw.kind,
            name: raw.name,
        })
    }

    /// Where the device below is; resolved only for devices that can carry a router's interface.
    pub fn below(&mut self, raw: &RawLink, peers: &Peers) -> Option<(NamespaceId, u32)> {
        let below = raw.below?;
        let Some(number) = raw.below_nsid else { return Some((self.id, below)) };
        raw.kind.sits_on_another().then_some(())?;
        Some((self.resolve(number, peers)?, below))
    }

    /// The namespace this one knows by `number`. The host's is asked for first: nearly always it is that one.
    pub fn resolve(&mut self, number: i32, peers: &Peers) -> Option<NamespaceId> {
        if let Some((id, _)) =
            self.nsids.iter().find(|(id, n)| **n == Some(number) && peers.iter().any(|p| p.0 == **id))
        {
            return Some(*id);
        }
        for (id, file) in peers {
            if *id == self.id || self.nsids.contains_key(id) {
                continue;
            }
            let known = nsid::ask(&mut self.requests, file.as_fd()).ok().flatten();
            self.nsids.insert(*id, known);
            if known == Some(number) {
                return Some(*id);
            }
        }
        None
    }

    fn settings(&self) -> Settings {
        let mut settings = self.hazards.of_namespace(&self.namespace.name);
        settings.multipath_policy =
            [self.values.multipath4, self.values.multipath6].map(|p| p.min(255) as u8);
        settings.multipath_key = self.multipath_keys.of(self.values.multipath_seed);
        if self.values.forward_use_pmtu != 0 {
            settings.hazards4.push(
                "net.ipv4.ip_forward_use_pmtu is on: learned path MTUs bind forwarded packets; set it to 0"
                    .into(),
            );
        }
        self.troubles.add_to(&mut settings);
        settings
    }

    /// Something is not known until it is read again, and until then nothing is accelerated here.
    pub fn distrust(&mut self, what: What, why: String, out: &mut Vec<Event>) {
        self.troubles.add(what, why);
        self.refresh_settings(out);
    }

    /// Emit settings and hazards if they are not as last emitted.
    pub fn refresh_settings(&mut self, out: &mut Vec<Event>) {
        let settings = self.settings();
        if settings != self.emitted_settings {
            self.emitted_settings = settings.clone();
            out.push(Event::Settings(self.id, settings));
        }
    }

    /// What decides whether packets may pass by the kernel, read now.
    pub fn read_policy(&mut self, peers: &Peers, out: &mut Vec<Event>, now: Instant) -> io::Result<()> {
        (self.due.hazards, self.due.traffic) = (None, None);
        self.values = self.sysctls.read();
        self.read_device_settings();
        self.read_hazards(now);
        let traffic = self.hazards.read_traffic(&mut self.requests);
        if traffic.is_err() {
            self.due.traffic_later(now);
        }
        self.refresh_settings(out);
        self.refresh_all(peers, out);
        traffic
    }

    /// Everything whose time has come.
    pub fn run_due(&mut self, peers: &Peers, out: &mut Vec<Event>, now: Instant) {
        let result = if Due::take(&mut self.due.dump, now) {
            self.due.routes = None;
            self.dump(peers).map(|dump| out.push(Event::Dump(self.id, Box::new(dump))))
        } else if Due::take(&mut self.due.routes, now) || Due::take(&mut self.due.ending, now) {
            self.read_routes_again(out)
        } else {
            Ok(())
        };
        let result = result.and_then(|()| self.catch_up(peers, out, now));
        if let Err(error) = result {
            tracing::warn!(namespace = self.namespace.name, %error, "reading again later");
            self.distrust(What::State, error.to_string(), out);
            self.due.dump_later(now);
        }
        if Due::take(&mut self.due.hazards, now) {
            self.read_hazards(now);
            self.refresh_settings(out);
            self.refresh_all(peers, out);
        }
        if Due::take(&mut self.due.traffic, now) {
            match self.hazards.read_traffic(&mut self.requests) {
                Ok(()) => self.troubles.settle(What::Traffic),
                Err(error) => {
                    self.troubles.add(What::Traffic, error.to_string());
                    self.due.traffic_later(now);
                }
            }
            self.refresh_settings(out);
            self.refresh_all(peers, out);
        }
    }

    /// Takes the messages that came while everything was read: they may be older than that.
    pub fn catch_up(&mut self, peers: &Peers, out: &mut Vec<Event>, now: Instant) -> io::Result<()> {
        if self.catching_up {
            self.take_events(peers, out, now)?;
        }
        Ok(())
    }

    fn read_hazards(&mut self, now: Instant) {
        if !self.hazards.read_namespace(&mut self.requests, &self.sysctls) {
            self.due.hazards_later(now);
        }
    }

    /// Routes, and the nexthop objects under them: those of a device that went down are gone without a word.
    fn read_routes_again(&mut self, out: &mut Vec<Event>) -> io::Result<()> {
        let started = Instant::now();
        let now: BTreeMap<u32, NexthopObject> =
            self.read_nexthops()?.into_iter().map(|n| (n.id, n)).collect();
        let (routes4, routes6) = self.read_routes()?;
        let gone = self.nexthops.keys().filter(|id| !now.contains_key(id)).copied();
        out.extend(gone.map(|id| Event::NexthopGone(self.id, id)));
        let changed = now.values().filter(|n| self.nexthops.get(&n.id) != Some(n)).cloned();
        out.extend(changed.map(|n| Event::Nexthop(self.id, n)));
        out.push(Event::Routes(self.id, routes4, routes6));
        self.nexthops = now;
        self.due.routes_took(started);
        Ok(())
    }

    /// What changes without a message: settings, legacy iptables. `slow` also reads every device's own settings again.
    pub fn tick(&mut self, slow: bool, peers: &Peers, out: &mut Vec<Event>) {
        if slow
            && self.sysctls.lacks_module_files()
            && let Ok(Ok(sysctls)) = netns::inside(&self.file, Sysctls::open)
        {
            self.sysctls = sysctls;
        }
        let values = self.sysctls.read();
        let mut changed = values != self.values;
        self.values = values;
        if slow {
            changed |= self.read_device_settings();
        }
        if changed {
            self.refresh_all(peers, out);
        }
        self.hazards.read_polled(&self.sysctls);
        self.refresh_settings(out);
    }

    fn read_device_settings(&mut self) -> bool {
        let mut changed = false;
        // Only settings, and XDP programs attached by a BPF link, which no message tells of; what else differs is on its way
        // as an event, in its place.
        let fresh = match self.requests.dump(link::dump(), link::parse) {
            Ok(fresh) => fresh,
            Err(error) => {
                self.troubles.add(What::DeviceSettings, error.to_string());
                return false;
            }
        };
        self.troubles.settle(What::DeviceSettings);
        for message in fresh {
            if let LinkMessage::New(fresh) = message
                && let Some(link) = self.links.get_mut(&fresh.ifindex)
                && (&link.conf4, &link.conf6, link.xdp) != (&fresh.conf4, &fresh.conf6, fresh.xdp)
            {
                (link.conf4, link.conf6, link.xdp) = (fresh.conf4, fresh.conf6, fresh.xdp);
                changed = true;
            }
        }
        changed
    }
}

/// A kernel without IPv6 has no IPv6 tables.
fn none_without_family<T>(result: io::Result<Vec<T>>) -> io::Result<Vec<T>> {
    match result {
        Err(e) if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EAFNOSUPPORT)) => Ok(Vec::new()),
        other => other,
    }
}
