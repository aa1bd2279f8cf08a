//! Chooses the namespaces to watch: configured ones, and those that hold a device on a port, at any depth (a macvlan on
//! a VLAN on a port). Devices that may take a port's packets count, too (an ipvlan in a container). So do devices of
//! unknown kinds.
//!
//! Three signs start a look: a name in /run/netns appeared or vanished; a namespace got a number for another
//! (`RTM_NEWNSID`); or the kernel sent a message about a device of the chain. Such a message also shows that something
//! was put on a port, in any namespace. Without a sign, a slow scan of /proc finds new and vanished namespaces. A
//! thread does the looking, so a namespace that answers slowly delays only that thread.

use super::{
    HOST, Observer, PROCESS, Quota,
    ear::Ear,
    poller::ProcessWatch,
    space::{Peers, Space},
    sysctl::Sysctls,
    token,
    unread::unread,
};
use crate::linux::{
    netlink::{
        link::{self, LinkMessage},
        nsid,
        socket::Socket,
    },
    netns::{self, FoundNamespace, Key, NamespaceRef, Source},
};
use logic::observe::{Event, Namespace, NamespaceId, Owner};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io,
    os::fd::AsFd,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

/// Devices that are ports or sit on ports.
type Chain = BTreeSet<(NamespaceId, u32)>;

/// Devices can be stacked: port, VLAN, VLAN, macvlan. More rounds than this are never needed.
const DEPTH: usize = 5;
/// A namespace that does not list its devices within this time is looked at another time.
const LOOK: Duration = Duration::from_millis(500);
/// The time for all namespaces of one owner together in one look, and for those of all owners except root. The others
/// are looked at another time.
const LOOK_OF_AN_OWNER: Duration = Duration::from_millis(500);
const LOOK_OF_OWNERS: Duration = Duration::from_secs(2);
/// The number of watched namespaces of all owners except root, not counting configured ones. There are 256 numbers of
/// routers. In a container without a user namespace, a process can become any number of owners.
const WATCHED_OF_OWNERS: usize = 128;

/// The input of a look through the namespaces.
pub(super) struct Look {
    own: Key,
    /// Namespaces not to look at: observed, or known to be of no interest.
    known: BTreeSet<Key>,
    observed: BTreeSet<Key>,
    routers: Vec<Source>,
    chain: Chain,
    peers: Arc<Peers>,
    quota: Quota,
    receive_buffer_bytes: usize,
    owners: Owners,
}

/// The shares of all limited owners. All owners except root are limited.
#[derive(Default)]
struct Owners(BTreeMap<Owner, Share>);

impl Owners {
    fn share(&mut self, owner: Owner) -> &mut Share {
        self.0.entry(owner).or_default()
    }

    fn has_time(&self, owner: Owner) -> bool {
        let all: Duration = self.0.values().map(|share| share.took).sum();
        let own = self.0.get(&owner).map_or(Duration::ZERO, |share| share.took);
        own < LOOK_OF_AN_OWNER && all < LOOK_OF_OWNERS
    }

    /// `most`: the limit of one owner.
    fn has_room(&self, owner: Owner, most: usize) -> bool {
        let all: usize = self.0.values().map(|share| share.watched).sum();
        let own = self.0.get(&owner).map_or(0, |share| share.watched);
        own < most && all < WATCHED_OF_OWNERS
    }

    fn crowds(&self) -> BTreeMap<Owner, Left> {
        let left = self.0.iter().map(|(owner, share)| (*owner, share.left));
        left.filter(|(_, left)| *left != Left::default()).collect()
    }
}

/// How much of its limits an owner of namespaces has used.
#[derive(Clone, Copy, Default)]
struct Share {
    /// Namespaces that are watched.
    watched: usize,
    /// The duration of this look so far.
    took: Duration,
    left: Left,
}

/// Namespaces of an owner that are left to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Left {
    /// They hold something but are over the limit.
    pub refused: usize,
    /// There was no time to look at them.
    pub unseen: usize,
}

/// The result of a look.
#[derive(Default)]
pub(super) struct Looked {
    found: BTreeMap<Key, FoundNamespace>,
    configured: BTreeMap<Key, FoundNamespace>,
    /// Namespaces to observe.
    begun: Vec<(FoundNamespace, bool, Opened)>,
    dull: Vec<Key>,
    failed: Vec<(Key, FoundNamespace, io::Error)>,
    /// Owners with more namespaces than are watched.
    crowds: BTreeMap<Owner, Left>,
}

/// The result of looking at one namespace.
enum Outcome {
    Begun(Box<Opened>),
    /// It holds nothing of interest, or its owner has reached the limit of watched namespaces.
    Dull,
    /// The time of its owner is used up.
    Later,
}

/// A namespace, ready to be observed.
struct Opened {
    place: NamespaceRef,
    owner: Owner,
    ear: Ear,
    sysctls: Sysctls,
}

impl Look {
    /// Looks through the namespaces. Run this in a separate thread.
    pub fn look(mut self) -> Looked {
        let mut found = netns::list();
        let configured = configured(&self.routers);
        let absent = |found: &BTreeMap<Key, FoundNamespace>| {
            self.observed.iter().any(|key| !found.contains_key(key) && !configured.contains_key(key))
        };
        // A process that forked while /proc was read can hide its namespace once, hardly twice.
        if absent(&found) {
            found = netns::list();
        }
        let mut looked = Looked { found, configured, ..Looked::default() };
        let places: BTreeMap<Key, (FoundNamespace, bool)> = looked
            .found
            .iter()
            .map(|(key, place)| (*key, (place.clone(), false)))
            .chain(looked.configured.iter().map(|(key, place)| (*key, (place.clone(), true))))
            .filter(|(key, _)| *key != self.own && !self.known.contains(key))
            .collect();
        for (key, (place, configured)) in places {
            match self.open(key, &place.path, configured) {
                Ok(Outcome::Begun(opened)) => looked.begun.push((place, configured, *opened)),
                Ok(Outcome::Dull) => looked.dull.push(key),
                Ok(Outcome::Later) => (),
                Err((false, error)) => {
                    tracing::debug!(namespace = place.name, %error, "cannot look into the namespace");
                }
                Err((true, error)) => looked.failed.push((key, place, error)),
            }
        }
        looked.crowds = self.owners.crowds();
        looked
    }

    /// An error comes with a flag: does the namespace hold something?
    fn open(&mut self, key: Key, path: &Path, configured: bool) -> Result<Outcome, (bool, io::Error)> {
        let there = |error| (configured, error);
        let file = File::open(path).map_err(there)?;
        if Key::of(&file).map_err(there)? != key {
            return Err(there(io::ErrorKind::NotFound.into()));
        }
        let owner = netns::owner(&file).map_err(there)?;
        let is_limited = owner != Owner::Machine && !configured;
        if is_limited && !self.owners.has_time(owner) {
            self.owners.share(owner).left.unseen += 1;
            return Ok(Outcome::Later);
        }
        if !configured {
            let began = Instant::now();
            let holds = netns::inside(&file, || self.holds_part()).and_then(|holds| holds);
            if is_limited {
                self.owners.share(owner).took += began.elapsed();
            }
            if !holds.map_err(there)? {
                return Ok(Outcome::Dull);
            }
        }
        if is_limited && !self.owners.has_room(owner, self.quota.namespaces) {
            self.owners.share(owner).left.refused += 1;
            return Ok(Outcome::Dull);
        }
        let opened = self.begin(&file, key, path, owner).map_err(|error| (true, error))?;
        if is_limited {
            self.owners.share(owner).watched += 1;
        }
        Ok(Outcome::Begun(Box::new(opened)))
    }

    fn begin(&self, file: &File, key: Key, path: &Path, owner: Owner) -> io::Result<Opened> {
        let (cookie, sysctls) =
            netns::inside(file, || Ok::<_, io::Error>((netns::cookie()?, Sysctls::open()?)))??;
        let ear = Ear::of(file, self.receive_buffer_bytes)?;
        Ok(Opened { place: NamespaceRef::new(key, cookie, path.to_owned()), owner, ear, sysctls })
    }

    /// Does the calling thread's namespace hold a device that sits on a device of the chain?
    fn holds_part(&self) -> io::Result<bool> {
        let mut socket = Socket::requests(libc::NETLINK_ROUTE)?;
        socket.end_at(Instant::now() + LOOK);
        let below =
            socket.dump_at_most(&mut self.quota.interfaces(), link::dump(), |m| match link::parse(m)? {
                LinkMessage::New(link) if link.kind.sits_on_another() => {
                    Some((link.below_nsid?, link.below?))
                }
                _ => None,
            });
        let below = match below {
            // The namespace may hold a router: the observer reports its limits.
            Err(error) if error.kind() == io::ErrorKind::QuotaExceeded => return Ok(true),
            other => other?,
        };
        let wanted: BTreeSet<NamespaceId> = self.chain.iter().map(|c| c.0).collect();
        for (id, place) in self.peers.iter().filter(|peer| !below.is_empty() && wanted.contains(&peer.0)) {
            let Ok(file) = place.open() else { continue };
            let Some(number) = nsid::ask(&mut socket, file.as_fd())? else { continue };
            if below.iter().any(|(nsid, index)| *nsid == number && self.chain.contains(&(*id, *index))) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Configured namespaces that exist now.
fn configured(routers: &[Source]) -> BTreeMap<Key, FoundNamespace> {
    let place = |source: &Source| {
        let key = source.key().ok()?;
        let name = match source {
            Source::Path(_) => format!("netns:{}", key.inode()),
            named => named.to_string(),
        };
        Some((key, FoundNamespace { name, path: source.path(), pid: None }))
    };
    routers.iter().filter_map(place).collect()
}

impl Observer {
    /// Starts a look for namespaces that came, went, or hold other devices. With `again`, it also looks into those that
    /// held nothing of interest before.
    pub(super) fn discover(&mut self, again: bool) {
        if self.looking {
            // The look under way may have read this one before the sign.
            if again {
                self.discover_at.get_or_insert_with(Instant::now);
            }
            return;
        }
        self.refresh_ports();
        if again {
            self.peer_places.clear();
            self.dull.clear();
        }
        let observed: BTreeSet<Key> = self.spaces.values().map(|s| s.place.key()).collect();
        let look = Look {
            own: self.own,
            known: observed.iter().chain(&self.dull).copied().collect(),
            observed,
            routers: self.config.routers.clone(),
            chain: self.chain(),
            peers: self.peers.clone(),
            quota: self.config.quota,
            receive_buffer_bytes: self.config.tenant_receive_buffer_bytes,
            owners: self.owners(again),
        };
        self.begin_look(look);
    }

    /// The shares of owners before a look. Without `again`, namespaces that were refused before are not looked at.
    fn owners(&self, again: bool) -> Owners {
        let mut owners = Owners::default();
        let limited = |n: &Namespace| n.owner != Owner::Machine && !n.configured;
        for space in self.spaces.values().filter(|space| limited(&space.namespace)) {
            owners.share(space.namespace.owner).watched += 1;
        }
        for (owner, left) in self.crowds.iter().filter(|_| !again) {
            owners.share(*owner).left.refused = left.refused;
        }
        owners
    }

    /// Applies the result of a look.
    pub(super) fn end_look(&mut self, looked: Looked) {
        let Looked { found, configured, begun, dull, failed, crowds } = looked;
        let is_there = |key: &Key| found.contains_key(key) || configured.contains_key(key);
        self.dull.retain(is_there);
        self.dull.extend(dull);
        self.unobserved.retain(|key, _| is_there(key));
        self.take_crowds(crowds);
        for (key, place, error) in failed {
            self.cannot_observe(key, &place, &error);
        }
        // No name and no process refers to these any more.
        let vanished = |s: &&Space| s.id != HOST && !is_there(&s.place.key());
        let vanished: Vec<NamespaceId> = self.spaces.values().filter(vanished).map(|s| s.id).collect();
        for id in vanished {
            tracing::info!(id, "the namespace is gone");
            self.forget(id);
        }
        for (place, configured, opened) in begun {
            self.begin(&place, configured, opened);
        }
        self.drop_dull();
        self.watch_processes(&found);
        self.renew_names(&found, &configured);
    }

    fn take_crowds(&mut self, crowds: BTreeMap<Owner, Left>) {
        for (owner, Left { refused, unseen }) in &crowds {
            if !self.crowds.contains_key(owner) {
                tracing::warn!(%owner, refused, unseen, "namespaces of an owner are left to the kernel");
            }
        }
        self.crowds = crowds;
    }

    /// A namespace that was found by a process may get a name, or outlive the process. Any namespace may
    /// become configured, or cease to be.
    fn renew_names(
        &mut self,
        found: &BTreeMap<Key, FoundNamespace>,
        configured: &BTreeMap<Key, FoundNamespace>,
    ) {
        for space in self.spaces.values_mut().filter(|s| s.id != HOST) {
            let key = space.place.key();
            let Some(place) = configured.get(&key).or(found.get(&key)) else { continue };
            space.place.move_to(&place.path);
            let is_configured = configured.contains_key(&key);
            if (&place.name, is_configured) != (&space.namespace.name, space.namespace.configured) {
                space.namespace.name.clone_from(&place.name);
                space.namespace.configured = is_configured;
                if space.announced {
                    self.out.push(Event::Namespace(space.id, space.namespace.clone()));
                }
                // Hazards contain commands that name the namespace.
                space.refresh_all(&mut self.out);
            }
        }
        self.renew_peers();
    }

    /// A namespace without a name lives as long as its processes. When its known process ends, we look for another one.
    fn watch_processes(&mut self, found: &BTreeMap<Key, FoundNamespace>) {
        self.unwatched = false;
        for space in self.spaces.values_mut().filter(|s| s.id != HOST) {
            let pid = found.get(&space.place.key()).and_then(|f| f.pid);
            if space.process.as_ref().map(|p| p.pid) == pid {
                continue;
            }
            // Dropping the old watch ends it. The slow scan notices a process that has just ended.
            space.process = pid.and_then(|pid| ProcessWatch::new(pid).ok());
            self.unwatched |= pid.is_some() && space.process.is_none();
            if let Some(process) = &space.process
                && let Err(error) = self.poller.add(process, token(space.id, PROCESS))
            {
                tracing::debug!(%error, "cannot wait for a process to end");
            }
        }
    }

    fn begin(&mut self, place: &FoundNamespace, configured: bool, opened: Opened) {
        let Opened { place: way, owner, ear, sysctls } = opened;
        let key = way.key();
        // A namespace that ended since then may have left its inode number to this one.
        if let Some(old) = self.spaces.values().find(|s| s.place.key() == key).map(|s| s.id) {
            self.forget(old);
        }
        let namespace = Namespace { name: place.name.clone(), host: false, configured, owner };
        match self.watch(way, namespace, ear, sysctls) {
            Ok(id) => {
                self.unobserved.remove(&key);
                tracing::info!(id, namespace = place.name, "observing the namespace");
            }
            Err(error) => self.cannot_observe(key, place, &error),
        }
    }

    fn cannot_observe(&mut self, key: Key, place: &FoundNamespace, error: &io::Error) {
        tracing::warn!(namespace = place.name, %error, "cannot observe the namespace; trying again later");
        let why = format!("it cannot be observed (trying again): {error}");
        self.unobserved.insert(key, unread(&place.name, why));
    }

    /// Stops observing namespaces that no longer hold anything on a port.
    fn drop_dull(&mut self) {
        let chain = self.chain();
        for space in self.spaces.values_mut() {
            let own: BTreeSet<u32> =
                chain.iter().filter(|(id, _)| *id == space.id).map(|(_, index)| *index).collect();
            if space.chain != own {
                space.chain = own;
                space.count_programs();
            }
        }
        let is_dull = |s: &&Space| {
            let settled = s.announced && s.is_settled();
            s.id != HOST && !s.namespace.configured && s.chain.is_empty() && settled
        };
        let dull: Vec<(NamespaceId, Key)> =
            self.spaces.values().filter(is_dull).map(|s| (s.id, s.place.key())).collect();
        for (id, key) in dull {
            self.dull.insert(key);
            self.forget(id);
        }
    }

    /// Ports and all watched devices that sit on them.
    fn chain(&mut self) -> Chain {
        let mut chain: Chain =
            self.ports.values().filter_map(|p| p.port.as_ref()).map(|p| (HOST, p.ifindex)).collect();
        let mut candidates = Vec::new();
        for space in self.spaces.values_mut() {
            let links: Vec<_> = space.links.values().filter(|l| l.kind.sits_on_another()).cloned().collect();
            for link in links {
                if let Some(below) = space.below(&link) {
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
