//! Turns links that can be interfaces into numbered routers and interfaces.

use super::{
    Held, Mirror,
    batch::Batch,
    parties::party,
    path::Egress,
    rules::{PairTables, closes},
    shape::{Address, LinkKey, Shape, shapes},
    space::Router,
};
use crate::{
    cause::{Cause, Code},
    firewall::pairs::UNPROVEN,
    multipath::MultipathHash,
    observe::{Link, NamespaceId},
    plan::{Interface, InterfaceId, Op, RouterId},
};
use rustc_hash::FxHashMap;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// A link that can be an interface, and its state.
#[derive(Clone, Debug)]
pub(super) struct Standing {
    pub shape: Shape,
    pub id: Option<InterfaceId>,
    /// Why it is not an interface, or why it is not used.
    pub trouble: Option<Cause>,
}

/// An interface that is not on yet, because old routes of its router may still be in the tables.
pub(super) struct Beginning {
    pub wanted: Interface,
    /// It begins after these numbers of batches have ended ([`super::space::Space::planned_after`]). `None`: the
    /// running plan sets them.
    after: Option<[u64; 2]>,
}

impl Mirror {
    /// Plans everything that follows from ports, links and settings.
    pub(super) fn reconcile(&mut self, batch: &mut Batch) {
        self.plan_ports(batch);
        let shapes = shapes(&self.spaces, &self.ports);
        self.retire_interfaces(&shapes, batch);
        self.settle_routers(&shapes, batch);
        self.standings = self.number(shapes);
        self.plan_rules(batch);
        self.plan_interfaces(batch);
        self.plan_others(batch);
        self.settle_egresses();
    }

    fn plan_ports(&mut self, batch: &mut Batch) {
        for (id, port) in &self.ports {
            if self.planned_ports.insert(*id, port.frags) != Some(port.frags) {
                batch.ports.push(Op::Port { port: *id, frags: port.frags });
            }
        }
    }

    /// Retires interfaces whose link is gone or whose address has changed.
    fn retire_interfaces(&mut self, shapes: &[Shape], batch: &mut Batch) {
        let there: FxHashMap<LinkKey, Address> = shapes.iter().map(|s| (s.link, s.address)).collect();
        let gone: Vec<LinkKey> = self
            .held
            .iter()
            .filter(|(link, held)| there.get(link) != Some(&held.address()))
            .map(|(l, _)| *l)
            .collect();
        for link in gone {
            self.retire(link);
        }
        batch.gone.extend(self.retired_interfaces.drain(..).map(Op::InterfaceGone));
    }

    /// Routers begin with their first interface and end with their last.
    fn settle_routers(&mut self, shapes: &[Shape], batch: &mut Batch) {
        let wanted: BTreeSet<NamespaceId> = shapes.iter().map(|shape| shape.link.0).collect();
        for (namespace, space) in &mut self.spaces {
            if wanted.contains(namespace) {
                continue;
            }
            if let Some(router) = space.router.take() {
                self.retired_routers.push((router.id, party(*namespace, &space.about)));
                space.rib4.withdraw();
                space.rib6.withdraw();
            }
        }
        for (id, party) in self.retired_routers.drain(..) {
            self.router_ids.release(id.into(), party);
            batch.gone.push(Op::RouterGone(id));
        }
        let mut taken = self.router_ids.resting();
        for (namespace, space) in self.spaces.iter().filter(|(_, space)| space.router.is_some()) {
            taken.add(party(*namespace, &space.about), 1);
        }
        for namespace in wanted {
            let Some(space) = self.spaces.get_mut(&namespace) else { continue };
            if space.router.is_none() {
                let party = party(namespace, &space.about);
                let id = match self.router_ids.take(taken.of(party)) {
                    Ok(id) => id,
                    Err(shortage) => {
                        space.shortage = shortage;
                        continue;
                    }
                };
                taken.add(party, 1);
                let (id, tables) = (id as u8, PairTables::default());
                space.router = Some(Router { id, multipath: None, tables, generation: 0, is_new: true });
                space.rib4.renew();
                space.rib6.renew();
            }
            let multipath = MultipathHash {
                l4: space.settings.multipath_policy.map(|policy| policy == 1),
                key: space.settings.multipath_key.words(),
            };
            let Some(router) = &mut space.router else { continue };
            if router.multipath != Some(multipath) {
                router.multipath = Some(multipath);
                batch.routers.push(Op::Router { router: router.id, multipath });
            }
        }
    }

    /// Gives numbers to links that have none. Two links may claim the same port, VLAN and MAC address (a link that
    /// moves between namespaces can be seen in the new one first). Both are then left to the kernel until one is gone.
    fn number(&mut self, shapes: Vec<Shape>) -> Vec<Standing> {
        let mut claims: FxHashMap<Address, usize> = FxHashMap::default();
        let rivals: Vec<(usize, usize)> = (0..)
            .zip(&shapes)
            .filter_map(|(at, shape)| claims.insert(shape.address, at).map(|other| (at, other)))
            .collect();
        let mut standings: Vec<Standing> = shapes
            .into_iter()
            .map(|shape| Standing { id: self.held.get(&shape.link).map(|h| h.id), shape, trouble: None })
            .collect();
        for (one, other) in rivals {
            for (at, rival) in [(one, other), (other, one)] {
                let name = &standings[rival].shape.name;
                let why = Code::SameAddress.cause(format!("same port, VLAN and MAC as {name}"));
                standings[at].trouble = Some(why);
            }
        }
        self.waiting = false;
        let mut taken = self.interface_ids.resting();
        for (namespace, _) in self.held.keys() {
            taken.add(self.spaces.get(namespace).and_then(|space| party(*namespace, &space.about)), 1);
        }
        for standing in standings.iter_mut().filter(|s| s.id.is_none() && s.trouble.is_none()) {
            let namespace = standing.shape.link.0;
            let Some(space) = self.spaces.get(&namespace) else { continue };
            let party = party(namespace, &space.about);
            let (id, what) = match space.router {
                Some(_) => (self.interface_ids.take(taken.of(party)), "interfaces"),
                None => (Err(space.shortage), "routers"),
            };
            match id {
                Ok(id) => {
                    taken.add(party, 1);
                    standing.id = Some(id as InterfaceId);
                }
                Err(shortage) => {
                    self.waiting = true;
                    standing.trouble = Some(shortage.of(what));
                }
            }
        }
        standings
    }

    /// Linux decides about everything while tables or groups change, unless the new tables only leave more to us.
    fn plan_rules(&mut self, batch: &mut Batch) {
        let mut moved = BTreeSet::new();
        for ((namespace, ifindex), held) in &self.held {
            let group = self.spaces.get(namespace).map(|space| space.rules.group(*ifindex));
            if group != Some(held.interface.group) {
                moved.insert(*namespace);
            }
        }
        for (namespace, space) in &mut self.spaces {
            let (tables, generation) = (space.rules.tables().clone(), space.rules.generation());
            let Some(router) = &mut space.router else { continue };
            let pairs = || router.tables.iter().zip(&tables);
            let closes =
                moved.contains(namespace) || pairs().any(|(old, new)| closes(old.as_deref(), new.as_deref()));
            if tables == router.tables && generation == router.generation && !moved.contains(namespace) {
                continue;
            }
            let renews = router.generation != 0 && router.generation != generation;
            if (closes || renews) && !router.is_new {
                let closed = tables.each_ref().map(|table| table.as_ref().map(|_| Arc::default()));
                let tables = if closes { closed } else { router.tables.clone() };
                batch.off.push(Op::Rules { router: router.id, tables, generation: 0 });
            }
            batch.on.push(Op::Rules { router: router.id, tables: tables.clone(), generation });
            (router.tables, router.generation) = (tables, generation);
        }
    }

    fn plan_interfaces(&mut self, batch: &mut Batch) {
        let fast: BTreeMap<NamespaceId, [bool; 2]> =
            self.spaces.iter().map(|(ns, space)| (*ns, space.reasons().map(|r| r.is_empty()))).collect();
        for standing in &self.standings {
            let (Some(id), (namespace, ifindex)) = (standing.id, standing.shape.link) else { continue };
            let Some(space) = self.spaces.get_mut(&namespace) else { continue };
            let Some(router) = &space.router else { continue };
            let (id_of_router, is_new) = (router.id, router.is_new);
            let safe = fast.get(&namespace).copied().unwrap_or_default();
            let wanted = Interface {
                look_at_sources: space.rib4.has_local_prefixes(),
                group: space.rules.group(ifindex),
                ..interface(standing, id_of_router, safe)
            };
            let link = (namespace, ifindex);
            let old = self.held.get(&link).map(|held| &held.interface);
            let first = until_it_begins(old, &wanted);
            match old {
                Some(old) if *old == first => {}
                Some(_) => batch.off.push(Op::Interface(id, first.clone())),
                None => {
                    self.by_id.insert(id, link);
                    space.neighbours.renew(ifindex);
                    batch.interfaces.push(Op::Interface(id, first.clone()));
                }
            }
            let waited =
                self.beginning.remove(&link).filter(|b| until_it_begins(Some(&b.wanted), &wanted) == wanted);
            if first != wanted {
                // The tables of a new router are empty, so no old route is in them.
                let after = if is_new { Some([0; 2]) } else { waited.and_then(|before| before.after) };
                self.beginning.insert(link, Beginning { wanted, after });
            }
            self.held.insert(link, Held { id, interface: first });
        }
    }

    /// Turns on the interfaces that waited for the routes of their router. Call it after the routes are planned.
    pub(super) fn begin_interfaces(&mut self, batch: &mut Batch) {
        let (spaces, held, before) = (&self.spaces, &mut self.held, self.beginning.len());
        self.beginning.retain(|link, beginning| {
            let (Some(space), Some(held)) = (spaces.get(&link.0), held.get_mut(link)) else { return false };
            let after = beginning.after.get_or_insert_with(|| space.planned_after());
            if !space.has_planned(after) {
                return true;
            }
            held.interface = beginning.wanted.clone();
            batch.on.push(Op::Interface(held.id, beginning.wanted.clone()));
            false
        });
        self.revision += u64::from(self.beginning.len() != before);
    }

    /// Plans the other addresses, after the interfaces. So an address that gets a number is known all the time.
    fn plan_others(&mut self, batch: &mut Batch) {
        let others = self.standings.iter().filter(|s| s.id.is_none()).map(|s| s.shape.address).collect();
        if others != self.others {
            self.others = others;
            batch.interfaces.push(Op::OtherAddresses(self.others.clone()));
        }
    }

    fn settle_egresses(&mut self) {
        let mtus: FxHashMap<LinkKey, [u32; 2]> =
            self.standings.iter().map(|s| (s.shape.link, s.shape.mtu)).collect();
        let hashes = |held: &Held| self.ports.get(&held.interface.port).is_some_and(|port| port.hashes);
        let hashed: BTreeSet<NamespaceId> =
            self.held.iter().filter(|(_, held)| hashes(held)).map(|((namespace, _), _)| *namespace).collect();
        for (namespace, space) in &mut self.spaces {
            let held = &self.held;
            let egress = |link: &Link| {
                let key = (*namespace, link.ifindex);
                let interface = held.get(&key).map(|held| held.id);
                let mtu = interface.and_then(|_| mtus.get(&key).copied()).unwrap_or_default();
                let ignore_linkdown =
                    [link.ipv4.ignore_routes_with_linkdown, link.ipv6.ignore_routes_with_linkdown];
                let (up, carrier) = (link.up, link.up && link.carrier);
                let (running, dormant) = (carrier && link.running, carrier && !link.running);
                let ipv6_disabled = link.ipv6.disabled;
                let egress = Egress { interface, mtu, up, running, dormant, ignore_linkdown, ipv6_disabled };
                (link.ifindex, egress)
            };
            let egresses: FxHashMap<u32, Egress> = space.links.values().map(egress).collect();
            if egresses != space.egresses {
                space.egresses = egresses;
                space.refresh = true;
            }
            let hashed = hashed.contains(namespace);
            space.refresh |= hashed != std::mem::replace(&mut space.hashed, hashed);
        }
    }

    /// Retires the interface on this link, which is gone. The next plan removes it.
    pub(super) fn retire(&mut self, link: LinkKey) {
        if let Some(held) = self.held.remove(&link) {
            self.beginning.remove(&link);
            self.by_id.remove(&held.id);
            self.retired_interfaces.push(held.id);
            let space = self.spaces.get_mut(&link.0);
            let party = space.as_ref().and_then(|space| party(link.0, &space.about));
            self.interface_ids.release(held.id.into(), party);
            if let Some(space) = space {
                space.neighbours.renew(link.1);
                // The number may get another owner, and connections know interfaces by their numbers.
                space.rules.renew(self.generations.as_mut());
            }
        }
    }
}

fn interface(standing: &Standing, router: RouterId, safe: [bool; 2]) -> Interface {
    let shape = &standing.shape;
    let usable = shape.common.is_empty() && standing.trouble.is_none();
    let (port, vlan, mac) = shape.address;
    Interface {
        router,
        port,
        vlan,
        mac,
        ipv4: usable && safe[0] && shape.ipv4.is_empty(),
        ipv6: usable && safe[1] && shape.ipv6.is_empty(),
        transmit: usable && shape.carrier,
        reverse_path: shape.reverse_path,
        redirects: shape.redirects,
        accept_local: shape.accept_local,
        priority_tags: shape.priority_tags,
        look_at_sources: false,
        group: UNPROVEN,
    }
}

/// Features that end do so before everything else in the plan. Features that begin do so after it. A new interface may
/// transmit at once, because no old route leads to it.
fn until_it_begins(old: Option<&Interface>, wanted: &Interface) -> Interface {
    let (ipv4, ipv6, transmit) = old.map_or((false, false, true), |old| (old.ipv4, old.ipv6, old.transmit));
    Interface {
        ipv4: ipv4 && wanted.ipv4,
        ipv6: ipv6 && wanted.ipv6,
        transmit: transmit && wanted.transmit,
        ..wanted.clone()
    }
}
