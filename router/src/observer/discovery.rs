//! Which namespaces to watch: those that hold a device on a port, however deep (a macvlan on a VLAN on a port), and
//! those that are configured. Devices that may take a port's packets count, too (an ipvlan in a container), and so
//! do those of kinds that are not known.
//!
//! Signs that it is time to look: a name in /run/netns came or went; a namespace got a number for another
//! (`RTM_NEWNSID`); a device of the chain was told of again, which is also how a port shows that something was put on
//! it anywhere. Without a sign, new and vanished namespaces are noticed by a slow scan of /proc.

use super::{HOST, Observer, PROCESS, Trouble, poller::ProcessWatch, space::Peers, token};
use crate::{
    netlink::{
        link::{self, LinkMessage},
        nsid,
        socket::Socket,
    },
    netns::{self, Found, Key, Source},
};
use logic::observe::{Event, Namespace, NamespaceId};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io,
    os::fd::AsFd,
    path::Path,
    time::SystemTime,
};

/// Devices that are ports or sit on ports.
type Chain = BTreeSet<(NamespaceId, u32)>;

/// Devices may be stacked: port, VLAN, VLAN, macvlan. More rounds than this are never needed.
const DEPTH: usize = 5;

impl Observer {
    /// Look for namespaces that came, went, or changed what they hold. `again`: also look again into those that held
    /// nothing of interest before.
    pub(super) fn discover(&mut self, again: bool) {
        self.refresh_ports();
        if again {
            self.peer_places.clear();
        }
        let known = self.known();
        let mut found = netns::list();
        let configured = self.configured();
        self.drop_vanished(&mut found, &configured);
        self.dull.retain(|key| !again && found.contains_key(key));
        self.unobserved.retain(|key, _| found.contains_key(key) || configured.contains_key(key));
        for (key, place) in &configured {
            let known = self.spaces.values().any(|s| s.key == *key);
            if !known && *key != self.own {
                self.begin(*key, place, true);
            }
        }
        for _ in 0..DEPTH {
            let chain = self.chain();
            let mut more = false;
            for (key, place) in &found {
                let known = self.spaces.values().any(|s| s.key == *key) || self.dull.contains(key);
                if known || *key == self.own {
                    continue;
                }
                match holds_part_of(&place.path, &chain, &self.peers) {
                    Ok(true) => more |= self.begin(*key, place, false),
                    Ok(false) => {
                        self.dull.insert(*key);
                    }
                    Err(error) => tracing::debug!(namespace = place.name, %error, "cannot look into it"),
                }
            }
            if !more {
                break;
            }
            // What was just found may be what others sit on.
            self.dull.clear();
        }
        self.drop_dull();
        self.watch_processes(&found);
        self.renew_names(&found, &configured);
        if self.known() != known {
            // Where a device below is depends on which namespaces are known.
            for space in self.spaces.values_mut() {
                space.refresh_all(&self.peers, &mut self.out);
            }
        }
    }

    fn known(&self) -> Vec<NamespaceId> {
        self.spaces.keys().copied().collect()
    }

    /// A namespace that was found by a process may get a name, or outlive the process.
    fn renew_names(&mut self, found: &BTreeMap<Key, Found>, configured: &BTreeMap<Key, Found>) {
        for space in self.spaces.values_mut().filter(|s| s.id != HOST) {
            let Some(place) = configured.get(&space.key).or(found.get(&space.key)) else { continue };
            if place.name != space.namespace.name {
                space.namespace.name.clone_from(&place.name);
                self.out.push(Event::Namespace(space.id, space.namespace.clone()));
                // Sentences say how to get there.
                space.refresh_settings(&mut self.out);
                space.refresh_all(&self.peers, &mut self.out);
            }
        }
    }

    /// A namespace without a name lives as long as its processes, and we must not keep it longer: a container that is
    /// started again at once wants its MAC address back. When the process it is known by ends, we look for another.
    fn watch_processes(&mut self, found: &BTreeMap<Key, Found>) {
        self.unwatched = false;
        for space in self.spaces.values_mut().filter(|s| s.id != HOST) {
            let pid = found.get(&space.key).and_then(|f| f.pid);
            if space.process.as_ref().map(|p| p.pid) == pid {
                continue;
            }
            // Dropping the old watch ends it. A process that has just ended is noticed by the slow scan.
            space.process = pid.and_then(|pid| ProcessWatch::new(pid).ok());
            self.unwatched |= pid.is_some() && space.process.is_none();
            if let Some(process) = &space.process
                && let Err(error) = self.poller.add(process, token(space.id, PROCESS))
            {
                tracing::debug!(%error, "cannot wait for a process to end");
            }
        }
    }

    /// Configured namespaces that exist now.
    fn configured(&self) -> BTreeMap<Key, Found> {
        let place = |source: &Source| {
            let key = source.key().ok()?;
            let name = match source {
                Source::Path(_) => format!("netns:{}", key.inode()),
                named => named.to_string(),
            };
            Some((key, Found { name, path: source.path(), pid: None }))
        };
        self.config.routers.iter().filter_map(place).collect()
    }

    fn begin(&mut self, key: Key, place: &Found, configured: bool) -> bool {
        let namespace = Namespace { name: place.name.clone(), host: false, configured };
        match self.watch(key, &place.path, namespace) {
            Ok(id) => {
                self.unobserved.remove(&key);
                tracing::info!(id, namespace = place.name, "observing");
                true
            }
            Err(error) => {
                tracing::warn!(namespace = place.name, %error, "cannot be observed; trying again later");
                let since = self.unobserved.get(&key).map_or_else(SystemTime::now, |known| known.since);
                let what = format!("cannot be observed: {error}");
                self.unobserved.insert(key, Trouble { namespace: place.name.clone(), what, since });
                false
            }
        }
    }

    /// Let go of namespaces that have neither name nor process: without us they would be gone.
    fn drop_vanished(&mut self, found: &mut BTreeMap<Key, Found>, configured: &BTreeMap<Key, Found>) {
        let absent = |found: &BTreeMap<Key, Found>, key: &Key| {
            !found.contains_key(key) && !configured.contains_key(key)
        };
        let vanished = |observer: &Observer, found: &BTreeMap<Key, Found>| -> Vec<NamespaceId> {
            let spaces = observer.spaces.values();
            spaces.filter(|s| s.id != HOST && absent(found, &s.key)).map(|s| s.id).collect()
        };
        if vanished(self, found).is_empty() {
            return;
        }
        // A process that forked while /proc was read can hide its namespace once, hardly twice.
        *found = netns::list();
        for id in vanished(self, found) {
            tracing::info!(id, "namespace gone");
            self.forget(id);
        }
    }

    /// Let go of namespaces that no longer hold anything on a port.
    fn drop_dull(&mut self) {
        let chain = self.chain();
        for space in self.spaces.values_mut() {
            space.chain = chain.iter().filter(|(id, _)| *id == space.id).map(|(_, index)| *index).collect();
        }
        let dull: Vec<(NamespaceId, Key)> = self
            .spaces
            .values()
            .filter(|s| s.id != HOST && !s.namespace.configured && s.chain.is_empty())
            .map(|s| (s.id, s.key))
            .collect();
        for (id, key) in dull {
            self.dull.insert(key);
            self.forget(id);
        }
    }

    /// Ports and everything watched that sits on them.
    fn chain(&mut self) -> Chain {
        let mut chain: Chain =
            self.ports.iter().filter_map(|p| p.port.as_ref()).map(|p| (HOST, p.ifindex)).collect();
        let mut candidates = Vec::new();
        for space in self.spaces.values_mut() {
            let links: Vec<_> = space.links.values().filter(|l| l.kind.sits_on_another()).cloned().collect();
            for link in links {
                if let Some(below) = space.below(&link, &self.peers) {
                    candidates.push(((space.id, link.ifindex), below));
                }
            }
        }
        for _ in 0..DEPTH {
            let before = chain.len();
            let upper: Vec<_> =
                candidates.iter().filter(|(_, below)| chain.contains(below)).map(|c| c.0).collect();
            chain.extend(upper);
            if chain.len() == before {
                break;
            }
        }
        chain
    }
}

/// Does the namespace hold a device that sits on one of `chain`?
fn holds_part_of(path: &Path, chain: &Chain, peers: &Peers) -> io::Result<bool> {
    let file = File::open(path)?;
    netns::inside(&file, || {
        let mut socket = Socket::requests(libc::NETLINK_ROUTE)?;
        let below = socket.dump(link::dump(), |m| match link::parse(m)? {
            LinkMessage::New(link) if link.kind.sits_on_another() => Some((link.below_nsid?, link.below?)),
            _ => None,
        })?;
        let wanted: BTreeSet<NamespaceId> = chain.iter().map(|c| c.0).collect();
        for (id, peer) in peers.iter().filter(|peer| !below.is_empty() && wanted.contains(&peer.0)) {
            let Some(number) = nsid::ask(&mut socket, peer.as_fd())? else { continue };
            if below.iter().any(|(nsid, index)| *nsid == number && chain.contains(&(*id, *index))) {
                return Ok(true);
            }
        }
        Ok(false)
    })?
}
