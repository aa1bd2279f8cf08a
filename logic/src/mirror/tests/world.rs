//! A small Linux: lists of links, routes and neighbours. The kernel's rules change them in the most obvious way. Each
//! change returns the events that report it.

use super::*;

/// Everything that the kernels of all namespaces hold.
pub struct World {
    pub ports: Vec<(PortId, AttachedPort)>,
    pub spaces: Vec<(NamespaceId, Dump)>,
    next_namespace: NamespaceId,
    /// Events of this namespace are lost until the next dump. The interfaces of its router are off.
    pub lost: Option<NamespaceId>,
}

/// A source of choices.
pub struct Dice(pub u64);

impl Dice {
    /// A number below `n`.
    pub fn roll(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.roll(from.len())].clone()
    }
}

const PREFIXES4: [&str; 9] = [
    "0.0.0.0/0",
    "10.0.0.0/8",
    "10.1.0.0/16",
    "10.1.1.0/24",
    "10.1.1.1/32",
    "10.1.1.255/32",
    "10.1.128.0/17",
    "127.0.0.0/8",
    "192.0.2.0/24",
];
const PREFIXES6: [&str; 5] = ["::/0", "2001:db8::/32", "2001:db8:1::/64", "2001:db8:1::1/128", "ff00::/8"];
const GATEWAYS6: [&str; 3] = ["fe80::1", "fe80::2", "fe80::3"];
const LINKS: [u32; 5] = [1, 2, 3, 4, 9];

impl World {
    pub fn new() -> World {
        let links = vec![physical(1), physical(2), physical(9)];
        World {
            ports: vec![(0, port(HOST, 1)), (1, port(HOST, 2))],
            spaces: vec![(HOST, Dump { links, ..Dump::default() })],
            next_namespace: RED,
            lost: None,
        }
    }

    /// Events that report everything to a fresh mirror.
    pub fn events(&self) -> Vec<Event> {
        let ports = self.ports.iter().map(|(id, port)| Event::Port(*id, port.clone()));
        let spaces = self.spaces.iter().flat_map(|(id, dump)| {
            [Event::Namespace(*id, namespace(&format!("ns{id}"))), Event::Dump(*id, Box::new(dump.clone()))]
        });
        ports.chain(spaces).collect()
    }

    /// Makes a random change.
    pub fn step(&mut self, dice: &mut Dice) -> Vec<Event> {
        match (self.lost, dice.roll(12)) {
            (None, 0) => self.lose(dice),
            (Some(_), 0 | 1) => self.find(),
            (lost, _) => {
                let mut events = self.change(dice);
                events.retain(|event| lost.is_none_or(|id| !is_lost(event, id)));
                events
            }
        }
    }

    /// Changes an IPv4 route of the host.
    pub fn step4(&mut self, dice: &mut Dice) -> Option<Event> {
        let (id, space) = &mut self.spaces[0];
        change4(space, dice).map(|(change, route)| Event::Route4(*id, change, route))
    }

    fn lose(&mut self, dice: &mut Dice) -> Vec<Event> {
        // Other namespaces depend on the host's links.
        let at = dice.roll(self.spaces.len());
        let Some((id, space)) = self.spaces.get(at).filter(|(id, _)| *id != HOST) else { return Vec::new() };
        self.lost = Some(*id);
        let mut settings = space.settings.clone();
        settings.hazards4.push(Code::Unreadable.cause("events were lost"));
        settings.hazards6.push(Code::Unreadable.cause("events were lost"));
        vec![Event::Settings(*id, settings)]
    }

    /// The dump that replaces lost events.
    pub fn find(&mut self) -> Vec<Event> {
        let lost = self.lost.take();
        let found = self.spaces.iter().filter(|(id, _)| Some(*id) == lost);
        found.map(|(id, space)| Event::Dump(*id, Box::new(space.clone()))).collect()
    }

    fn change(&mut self, dice: &mut Dice) -> Vec<Event> {
        let at = dice.roll(self.spaces.len());
        let (id, space) = &mut self.spaces[at];
        let id = *id;
        match dice.roll(20) {
            0..=6 => change4(space, dice).into_iter().map(|(c, r)| Event::Route4(id, c, r)).collect(),
            7..=9 => change6(space, dice).into_iter().map(|(c, r)| Event::Route6(id, c, r)).collect(),
            10 | 11 => vec![Event::Neighbour(id, neighbour_changes(space, dice))],
            12 | 13 => link_changes(id, space, dice),
            14 => object_changes(id, space, dice),
            15 => settings_change(id, space, dice),
            16 => {
                // Messages were lost.
                link_changes(id, space, dice);
                object_changes(id, space, dice);
                neighbour_changes(space, dice);
                silent_changes(space, dice);
                vec![Event::Dump(id, Box::new(space.clone()))]
            }
            17 => {
                silent_changes(space, dice);
                vec![Event::Routes(id, space.routes4.clone(), space.routes6.clone())]
            }
            18 => self.ports_change(dice),
            _ => self.namespaces_change(dice),
        }
    }

    fn ports_change(&mut self, dice: &mut Dice) -> Vec<Event> {
        if self.ports.len() > 1 && dice.roll(2) == 0 {
            let (id, _) = self.ports.pop().unwrap();
            return vec![Event::PortGone(id)];
        }
        let (id, ifindex) = (1, dice.pick(&[2, 9]));
        let port =
            AttachedPort { namespace: HOST, ifindex, frags: dice.roll(2) == 0, hashes: dice.roll(4) == 0 };
        let gone = self.ports.iter().any(|(other, _)| *other == id).then_some(Event::PortGone(id));
        self.ports.retain(|(other, _)| *other != id);
        self.ports.push((id, port.clone()));
        gone.into_iter().chain([Event::Port(id, port)]).collect()
    }

    fn namespaces_change(&mut self, dice: &mut Dice) -> Vec<Event> {
        if self.spaces.len() > 3 || (self.spaces.len() > 1 && dice.roll(2) == 0) {
            let (id, _) = self.spaces.pop().unwrap();
            return vec![Event::NamespaceGone(id)];
        }
        let id = self.next_namespace;
        self.next_namespace += 1;
        let mut dump = Dump { links: vec![physical(9)], ..Dump::default() };
        dump.links.push(Link { mac: mac(100 + id as u8), ..macvlan(1, (HOST, 1 + dice.roll(3) as u32)) });
        self.spaces.push((id, dump.clone()));
        vec![Event::Namespace(id, namespace(&format!("ns{id}"))), Event::Dump(id, Box::new(dump))]
    }
}

/// Whether it belongs to this namespace, and is neither its beginning nor its end.
fn is_lost(event: &Event, namespace: NamespaceId) -> bool {
    match event {
        Event::Link(id, _) | Event::LinkGone(id, _) | Event::Settings(id, _) => *id == namespace,
        Event::Route4(id, ..) | Event::Route6(id, ..) | Event::Routes(id, ..) => *id == namespace,
        Event::Neighbour(id, _) | Event::Nexthop(id, _) | Event::NexthopGone(id, _) => *id == namespace,
        Event::Dump(id, _) => *id == namespace,
        _ => false,
    }
}

fn change4(space: &mut Dump, dice: &mut Dice) -> Option<(Change, Route<u32>)> {
    let routes = &mut space.routes4;
    if dice.roll(3) == 0 && !routes.is_empty() {
        let route = routes.remove(dice.roll(routes.len()));
        return Some((Change::Delete, route));
    }
    let route = random4(dice);
    let key = |r: &Route<u32>| (r.prefix, r.table, r.tos, r.metric);
    let first = routes.iter().position(|r| key(r) == key(&route));
    let same = |r: &Route<u32>| (key(r), r.kind, r.rest) == (key(&route), route.kind, route.rest);
    if let Some(at) = routes.iter().position(|r| same(r) && same_next(&r.next, &route.next)) {
        // EEXIST; or its nexthop object was replaced.
        return (dice.roll(2) == 0).then(|| (Change::Replace, routes[at].clone()));
    }
    let change = dice.pick(&[Change::Add, Change::Append, Change::Replace]);
    match (change, first) {
        (Change::Replace, Some(first)) => routes[first] = route.clone(),
        (Change::Append, _) => routes.push(route.clone()),
        _ => routes.insert(0, route.clone()),
    }
    Some((change, route))
}

/// nh_comp() ignores RTNH_F_DEAD and RTNH_F_LINKDOWN.
fn same_next(a: &Next, b: &Next) -> bool {
    match (a, b) {
        (Next::One(a), Next::One(b)) => (a.ifindex, a.gateway) == (b.ifindex, b.gateway),
        (a, b) => a == b,
    }
}

/// The changes that Linux makes without a message when a link goes down.
fn silent_changes(space: &mut Dump, dice: &mut Dice) {
    space.routes4.retain(|_| dice.roll(4) > 0);
    space.routes6.retain(|_| dice.roll(4) > 0);
    for _ in 0..dice.roll(3) {
        change4(space, dice);
        change6(space, dice);
    }
}

fn random4(dice: &mut Dice) -> Route<u32> {
    let gateway = format!("10.9.9.{}", dice.roll(3));
    let next = match dice.roll(8) {
        0 => Next::Object(1 + dice.roll(3) as u32),
        1 => Next::Many([hop(dice.pick(&LINKS), None), hop(dice.pick(&LINKS), Some(&gateway))].into()),
        2 => Next::One(NextHop { dead: true, ..hop(dice.pick(&LINKS), None) }),
        3 => Next::One(NextHop { linkdown: true, ..hop(dice.pick(&LINKS), Some(&gateway)) }),
        _ => via(dice.pick(&LINKS), &gateway),
    };
    let mut route = route4(dice.pick(&PREFIXES4), next);
    route.metric = dice.roll(3) as u32;
    route.rest = dice.roll(2) as u64;
    match dice.roll(16) {
        0 => route.tos = 8,
        1 => route.table = 253,
        2 => route.table = 100,
        3..=5 => (route.table, route.kind) = (255, RouteKind::Local),
        6 => (route.kind, route.next) = (RouteKind::Blackhole, Next::None),
        _ => {}
    }
    route
}

/// Routes with gateways and equal metric are one route. Others are separate.
fn change6(space: &mut Dump, dice: &mut Dice) -> Option<(Change, Route<u128>)> {
    let routes = &mut space.routes6;
    let ifindex = dice.pick(&LINKS);
    let (gateway, on_link) = (hop(ifindex, Some(dice.pick(&GATEWAYS6))), dice.roll(4) == 0);
    if dice.roll(3) == 0 && !routes.is_empty() {
        let at = dice.roll(routes.len());
        return Some((Change::Delete, delete6(routes, at, dice)));
    }
    let next = if on_link { dev(ifindex) } else { Next::One(gateway.clone()) };
    let mut new = route6(dice.pick(&PREFIXES6), next);
    new.metric = 1024 + dice.roll(2) as u32;
    let has_gateway = |r: &Route<u128>| match &r.next {
        Next::One(h) => h.gateway.is_some(),
        _ => true,
    };
    let equals = |r: &Route<u128>| (r.prefix, r.metric) == (new.prefix, new.metric);
    let twin = routes.iter().position(|r| equals(r) && has_gateway(r) && !on_link);
    let Some(at) = twin else {
        if routes.contains(&new) {
            return None; // EEXIST
        }
        routes.push(new.clone());
        return Some((Change::Add, new));
    };
    if dice.roll(3) == 0 {
        routes[at] = new.clone();
        return Some((Change::Replace, new));
    }
    let mut hops = match &routes[at].next {
        Next::One(hop) => vec![hop.clone()],
        Next::Many(hops) => hops.to_vec(),
        _ => unreachable!("the line above makes only hops"),
    };
    if hops.contains(&gateway) {
        return None; // EEXIST
    }
    // A message begins with the next hop that it is about (inet6_rt_notify()).
    let message: Vec<NextHop> = std::iter::once(gateway.clone()).chain(hops.iter().cloned()).collect();
    hops.push(gateway);
    routes[at].next = Next::Many(hops.into());
    Some((Change::Append, Route { next: Next::Many(message.into()), ..routes[at].clone() }))
}

fn delete6(routes: &mut Vec<Route<u128>>, at: usize, dice: &mut Dice) -> Route<u128> {
    let route = routes[at].clone();
    match &route.next {
        Next::Many(hops) if dice.roll(2) == 0 => {
            let mut left = hops.to_vec();
            let gone = left.remove(dice.roll(hops.len()));
            routes[at].next =
                if left.len() == 1 { Next::One(left.remove(0)) } else { Next::Many(left.into()) };
            Route { next: Next::One(gone), ..route }
        }
        _ => routes.remove(at),
    }
}

fn neighbour_changes(space: &mut Dump, dice: &mut Dice) -> Neighbour {
    let address = format!("10.9.9.{}", dice.roll(3));
    let new =
        neighbour(dice.pick(&LINKS), &address, (dice.roll(3) > 0).then(|| mac(200 + dice.roll(3) as u8)));
    space.neighbours.retain(|n| (n.ifindex, n.address) != (new.ifindex, new.address));
    if new.mac.is_some() {
        space.neighbours.push(new.clone());
    }
    new
}

fn link_changes(id: NamespaceId, space: &mut Dump, dice: &mut Dice) -> Vec<Event> {
    let ifindex = dice.pick(&LINKS);
    let Some(at) = space.links.iter().position(|l| l.ifindex == ifindex) else {
        let below = (HOST, 1 + dice.roll(2) as u32);
        let fresh = if ifindex == 3 { vlan(3, 1 + id as u16, below) } else { macvlan(ifindex, below) };
        let link = Link { mac: mac((ifindex as u8) << 4 | id as u8), ..fresh };
        space.links.push(link.clone());
        return vec![Event::Link(id, link)];
    };
    if dice.roll(4) == 0 && ifindex > 2 {
        space.links.remove(at);
        space.neighbours.retain(|n| n.ifindex != ifindex);
        return vec![Event::LinkGone(id, ifindex)];
    }
    let link = &mut space.links[at];
    match dice.roll(10) {
        8 => link.running = !link.running,
        0 => link.up = !link.up,
        1 => link.carrier = !link.carrier,
        2 => link.ipv4.forwarding = !link.ipv4.forwarding,
        3 => link.ipv6.forwarding = !link.ipv6.forwarding,
        4 => link.mac = mac((ifindex as u8) << 4 | id as u8 | (dice.roll(2) as u8) << 3),
        5 => link.mtu = dice.pick(&[1400, 1500]),
        6 => link.ipv4.ignore_routes_with_linkdown = !link.ipv4.ignore_routes_with_linkdown,
        7 => link.ipv6.disabled = !link.ipv6.disabled,
        _ => {
            link.hazards =
                if link.hazards.is_empty() { vec![Code::Qdisc.cause("qdisc tbf")] } else { Vec::new() }
        }
    }
    vec![Event::Link(id, link.clone())]
}

fn object_changes(id: NamespaceId, space: &mut Dump, dice: &mut Dice) -> Vec<Event> {
    let object = 1 + dice.roll(3) as u32;
    let known = space.nexthops.iter().any(|o| o.id == object);
    space.nexthops.retain(|o| o.id != object);
    if known && dice.roll(2) == 0 {
        return vec![Event::NexthopGone(id, object)];
    }
    let kind = match dice.roll(4) {
        0 => NexthopObjectKind::Blackhole,
        1 if object == 3 => NexthopObjectKind::Group(vec![(1, 1), (2, 5)]),
        _ => NexthopObjectKind::Single(hop(dice.pick(&LINKS), Some("10.9.9.1"))),
    };
    let new = NexthopObject { id: object, kind };
    space.nexthops.push(new.clone());
    vec![Event::Nexthop(id, new)]
}

fn settings_change(id: NamespaceId, space: &mut Dump, dice: &mut Dice) -> Vec<Event> {
    let keys = [MultipathKey::Unknown, MultipathKey::Linux([1, 2]), MultipathKey::Own([3, 4])];
    match dice.roll(7) {
        0 => space.settings.hazards4 = vec![Code::FirewallChain.cause("an nftables hook")],
        1 => space.settings = choosing(),
        2 => space.settings.multipath_key = dice.pick(&keys),
        3..6 => space.settings.firewall = super::rules::any(dice.roll(7)),
        _ => space.settings.multipath_policy = [dice.roll(3) as u8, dice.roll(3) as u8],
    }
    vec![Event::Settings(id, space.settings.clone())]
}
