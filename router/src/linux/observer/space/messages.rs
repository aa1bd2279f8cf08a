//! The kernel's messages: what each changes, how many a namespace may cause, and what happens beyond that.

use super::{
    super::{EVENTS_PER_POLL, HOST, ear::About, settings, unread::Part},
    Space,
};
use crate::{
    base::clock::monotonic,
    linux::netlink::{
        link::{self, LinkMessage, RawLink},
        neighbour, netconf, nexthop, route, rtm,
        wire::{self, Message},
    },
};
use logic::observe::{Change, Dump, Event, NexthopObject};
use std::{
    collections::HashMap,
    io, mem,
    time::{Duration, Instant},
};

/// Buffers of events taken from one socket before others have their turn. They take about a millisecond.
const BUFFERS_PER_TURN: usize = 256;
/// The same for the host, whose buffer no tenant can fill.
const HOST_BUFFERS_PER_TURN: usize = 4096;
/// The number of devices for which a message about all devices counts as one event.
const DEVICES_PER_EVENT: usize = 32;
/// More events than a tenant's receive buffer holds. If this many are discarded and more arrive, the storm is still
/// going on.
const THROWN_AWAY: usize = 1 << 16;
/// The pause for a namespace over its quota: the first one, and the longest.
const QUIET: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(64)];

impl Space {
    /// The namespace is over its quota: nothing in it is accelerated, and it is left alone for a while. Its known state
    /// stays, because forgetting and reading a long table again would take even more time.
    pub(super) fn exceed(&mut self, why: String, out: &mut Vec<Event>, now: Instant) {
        tracing::warn!(
            namespace = self.namespace.name,
            why,
            "the namespace is over its limits and left to the kernel"
        );
        let [first, last] = QUIET;
        let again = self.last_quiet.filter(|(ended, _)| now.saturating_duration_since(*ended) < last);
        let pause = again.map_or(first, |(_, pause)| (pause * 2).min(last));
        (self.quiet, self.last_quiet) = (Some(now + pause), Some((now + pause, pause)));
        (self.lost, self.thrown_away) = (true, 0);
        self.unread.add(Part::Quota, why);
        self.refresh_settings(out);
        if !mem::replace(&mut self.announced, true) {
            // Without its devices, packets for their addresses would leave the box.
            self.compose_all();
            self.emitted_settings = self.settings();
            let links = self.emitted.values().cloned().collect();
            let dump = Dump { links, settings: self.emitted_settings.clone(), ..Dump::default() };
            out.push(Event::Namespace(self.id, self.namespace.clone()));
            out.push(Event::Dump(self.id, Box::new(dump)));
        }
    }

    /// May it report this many more events? Discarded events have a limit of their own, so discarding ends.
    fn spend(&mut self, events: usize, now: Instant) -> bool {
        if self.lost {
            self.thrown_away += events;
            return self.id == HOST || self.thrown_away < THROWN_AWAY;
        }
        let (left, at) = self.credit;
        let earned = now.saturating_duration_since(at).as_secs_f64() * self.quota.events_per_second as f64;
        let left = (left + earned).min(self.quota.events_at_once as f64) - events as f64;
        self.credit = (left.max(0.0), now.max(at));
        self.id == HOST || left >= 0.0
    }

    /// Applies the kernel's reports, in order, up to this namespace's turn.
    pub fn take_events(&mut self, out: &mut Vec<Event>, now: Instant) -> io::Result<()> {
        let begin = out.len();
        let turn = if self.id == HOST { HOST_BUFFERS_PER_TURN } else { BUFFERS_PER_TURN };
        self.more = true;
        self.unheard_turns = self.unheard_turns.saturating_sub(1);
        let mut left = turn;
        while left > 0 {
            let Some(ear) = self.ear.as_mut().filter(|_| self.quiet.is_none()) else { break };
            // The buffer belongs to the socket. It is moved out so that messages can be applied to `self`.
            match ear.route.take_buffer() {
                Ok(None) => {
                    // All waiting events are discarded: later ones are newer.
                    if mem::take(&mut self.lost) {
                        self.due.dump = Some(now);
                    }
                    (self.catching_up, self.more, self.unheard_turns) = (false, false, 0);
                    break;
                }
                Ok(Some((buffer, length))) => {
                    let about = ear.about(&buffer[..length]);
                    if about == About::Namespace {
                        self.take_buffer(&buffer[..length], out, now);
                    }
                    self.ended |= about == About::End;
                    if let Some(ear) = &mut self.ear {
                        ear.route.return_buffer(buffer);
                    }
                    // Every buffer counts, whatever it contains, including forged messages.
                    let cost = 1 + mem::take(&mut self.extra_cost);
                    left = left.saturating_sub(cost);
                    if !self.spend(cost, now) {
                        let most = self.quota.events_per_second;
                        self.exceed(format!("it changes more than {most} times a second"), out, now);
                    }
                    if out.len() - begin >= EVENTS_PER_POLL {
                        break;
                    }
                }
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {
                    left -= 1;
                    tracing::warn!(
                        namespace = self.namespace.name,
                        "netlink events were lost; reading everything again"
                    );
                    (self.lost, self.thrown_away, self.topology_changed) = (true, 0, true);
                    self.distrust(Part::State, "events were lost".into(), out);
                }
                Err(e) => return Err(e),
            }
        }
        self.check_quota(out, now);
        // Most turns concern no device, and composing the settings takes time.
        if !self.stale.is_empty() {
            self.refresh_stale(out);
        }
        Ok(())
    }

    fn take_buffer(&mut self, bytes: &[u8], out: &mut Vec<Event>, now: Instant) {
        for message in wire::messages(bytes) {
            if !self.lost {
                self.apply(message, out, now);
            }
        }
    }

    /// Checks the additions by messages since the last reading. Counts of routes and neighbours are approximate, so a
    /// new reading decides.
    fn check_quota(&mut self, out: &mut Vec<Event>, now: Instant) {
        // The host has no quota, and counting its addresses takes time.
        if self.id == HOST || self.unread.has(Part::Quota) {
            return;
        }
        if let Err(error) = self.quota.interfaces().check(self.links.len()) {
            self.exceed(error.to_string(), out, now);
        }
        let over = |most: crate::linux::netlink::socket::Most, count| most.check(count).is_err();
        let addresses = self.addresses.values().map(HashMap::len).sum();
        if over(self.quota.routes(), self.routes)
            || over(self.quota.routes(), self.nexthops.len())
            || over(self.quota.neighbours(), self.neighbours)
            || over(self.quota.addresses(), addresses)
        {
            self.due.dump = Some(now);
        }
    }

    fn apply(&mut self, message: Message<'_>, out: &mut Vec<Event>, now: Instant) {
        match message.kind {
            rtm::NEWROUTE | rtm::DELROUTE => out.extend(self.route(message, now)),
            rtm::NEWNEIGH | rtm::DELNEIGH => {
                self.neighbours += usize::from(message.kind == rtm::NEWNEIGH);
                out.extend(neighbour::parse(message).map(|n| Event::Neighbour(self.id, n)));
            }
            rtm::NEWLINK | rtm::DELLINK => match link::parse(message) {
                Some(LinkMessage::New(link)) => self.new_link(*link, now),
                Some(LinkMessage::Gone { ifindex }) => self.link_gone(ifindex, out, now),
                Some(LinkMessage::Settings6 { ifindex, conf6 }) => {
                    if let Some(link) = self.links.get_mut(&ifindex) {
                        link.conf6 = Some(conf6);
                        self.refresh(ifindex);
                    }
                }
                None => (),
            },
            rtm::NEWADDR | rtm::DELADDR => {
                if let Some(address) = link::parse_address4(message.payload) {
                    self.address(address, message.kind == rtm::NEWADDR, now);
                }
            }
            rtm::NEWNEXTHOP | rtm::DELNEXTHOP => {
                self.extra_cost += route::weight(&message) - 1;
                if let Some(object) = nexthop::parse(message) {
                    self.nexthop(object, message.kind == rtm::NEWNEXTHOP, out, now);
                }
            }
            rtm::NEWNETCONF => {
                if let Some(conf) = netconf::parse(message.payload) {
                    self.netconf(&conf);
                }
            }
            rtm::NEWNSID | rtm::DELNSID => {
                self.asked.numbers = true;
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
        let weight = route::weight(&message);
        self.extra_cost += weight - 1;
        match change {
            Change::Add | Change::Append => self.routes += weight,
            Change::Delete => self.routes = self.routes.saturating_sub(weight),
            // The replaced route may have counted less.
            Change::Replace | Change::ReplaceLate => self.routes += weight - 1,
        }
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

    fn new_link(&mut self, mut new: RawLink, now: Instant) {
        let index = new.ifindex;
        let old = self.links.remove(&index);
        if let Some(old) = &old {
            new.conf4 = new.conf4.or_else(|| old.conf4.clone());
            new.conf6 = new.conf6.or_else(|| old.conf6.clone());
            // IPv4 marks and drops routes of a device without a message when its state changes (fib_sync_down_dev), and IPv6
            // changes their MTUs with the device's (rt6_mtu_change_route).
            let state = |l: &RawLink| (l.up, l.carrier, l.running, l.master, l.mtu);
            // A dormant device may be reported twice alike, before and after IPv6 marks its routes (addrconf_notify).
            let dormant = new.up && new.carrier && !new.running;
            if state(old) != state(&new) || dormant {
                self.due.routes_soon(now);
            }
        }
        if old.as_ref().is_some_and(|old| old.name != new.name) {
            // Hazards of nftables chains refer to devices by name.
            self.due.hazards_soon(now);
        }
        let place = |l: &RawLink| (l.below, l.below_nsid, l.kind.clone(), l.name.clone());
        // A port's RTM_NEWLINK also reports that something was put on it, in any namespace (NETDEV_CHANGEUPPER).
        self.topology_changed |= self.chain.contains(&index) || old.as_ref().map(place) != Some(place(&new));
        if old.is_none_or(|old| old.qdisc != new.qdisc) {
            self.due.traffic_soon(now);
        }
        self.links.insert(index, new);
        self.refresh(index);
    }

    fn link_gone(&mut self, ifindex: u32, out: &mut Vec<Event>, now: Instant) {
        self.addresses.remove(&ifindex);
        self.hazards.forget_link(ifindex);
        self.emitted.remove(&ifindex);
        for devices in &mut self.redirected {
            devices.remove(&ifindex);
        }
        // The settings can contain its name.
        self.stale.insert(ifindex);
        self.topology_changed = true;
        if self.links.remove(&ifindex).is_some() {
            out.push(Event::LinkGone(self.id, ifindex));
        }
        self.due.routes_soon(now);
    }

    fn address(&mut self, a: link::Address4, new: bool, now: Instant) {
        let addresses = self.addresses.entry(a.ifindex).or_default();
        if new {
            addresses.insert(a.key, a.understood);
        } else {
            addresses.remove(&a.key);
            // Linux removes routes that name it as their source without a message (fib_sync_down_addr).
            self.due.routes_soon(now);
        }
        self.refresh(a.ifindex);
    }

    fn nexthop(&mut self, object: NexthopObject, new: bool, out: &mut Vec<Event>, now: Instant) {
        if new {
            self.nexthops.insert(object.id, object.clone());
            out.push(Event::Nexthop(self.id, object));
        } else {
            self.nexthops.remove(&object.id);
            out.push(Event::NexthopGone(self.id, object.id));
            // Linux removes IPv4 routes through it, and its place in groups, without a message.
            self.due.routes_soon(now);
        }
    }

    fn netconf(&mut self, conf: &netconf::Netconf) {
        if conf.ifindex == -1 {
            settings::apply_to_all(&mut self.values, conf);
            self.stale.extend(self.links.keys());
            self.extra_cost += self.links.len() / DEVICES_PER_EVENT;
        } else if let Ok(ifindex) = u32::try_from(conf.ifindex)
            && let Some(link) = self.links.get_mut(&ifindex)
        {
            let values = if conf.v6 { &mut link.conf6 } else { &mut link.conf4 };
            settings::apply_to_device(values.as_deref_mut().unwrap_or_default(), conf);
            self.refresh(ifindex);
        }
    }
}
