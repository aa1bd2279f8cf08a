//! Compares operations with a model that finds the way of a packet by linear search.

use super::{encoding::*, *};
use crate::{
    memory::{Capacity, HeapMemory},
    net::{Prefix, Prefix4, Prefix6, Tag},
    plan::{Hop, Interface, MultipathHash, ReversePath, Target},
    reason::Reason,
};
use proptest::prelude::*;
use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, Ipv6Addr},
    sync::atomic::Ordering::Relaxed,
};

const ROOMY: Capacity = Capacity {
    fib_blocks: 600,
    fib_tails: 300,
    nexthops: 500,
    neighbour_buckets: 4,
    interface_buckets: 4,
    routers: 3,
};

/// The part of an [`Answer`] that is compared.
type ComparedAnswer =
    (Option<Reason>, Option<(InterfaceId, IpAddr, Option<Mac>, Mac, PortId, Vlan, u32, bool)>, (bool, bool));

fn seen(answers: Vec<Answer>) -> BTreeSet<ComparedAnswer> {
    let one = |a: Answer| {
        let egress = a.interface.map(|i| {
            let neighbour = a.neighbour.expect("an egress has a neighbour");
            (i, neighbour, a.mac, a.source, a.port, a.vlan, a.mtu, a.frags)
        });
        (a.reason, egress, (a.unicast, a.local))
    };
    answers.into_iter().map(one).collect()
}

/// Whether sources behind such a target are not forwarded.
fn is_local(reason: Reason) -> bool {
    matches!(reason, Reason::Local | Reason::LocalPrefix | Reason::Broadcast)
}

#[derive(Default)]
struct Model {
    frags: BTreeMap<PortId, bool>,
    interfaces: BTreeMap<InterfaceId, Interface>,
    neighbours: BTreeMap<(InterfaceId, IpAddr), Mac>,
    routes4: BTreeMap<(RouterId, Prefix4), Target>,
    routes6: BTreeMap<(RouterId, Prefix6), Target>,
    others: Vec<(PortId, Vlan, Mac)>,
}

impl Model {
    fn apply(&mut self, op: &Op) {
        match op {
            Op::Port { port, frags } => _ = self.frags.insert(*port, *frags),
            Op::Router { .. } | Op::LocalAddresses { .. } | Op::Rules { .. } => {}
            Op::RouterGone(router) => {
                self.routes4.retain(|(r, _), _| r != router);
                self.routes6.retain(|(r, _), _| r != router);
                let gone: Vec<_> =
                    self.interfaces.iter().filter(|(_, i)| i.router == *router).map(|(id, _)| *id).collect();
                gone.into_iter().for_each(|id| self.interface_gone(id));
            }
            Op::Interface(id, interface) => {
                if self.interfaces.get(id).is_some_and(|old| old.router != interface.router) {
                    self.interface_gone(*id);
                }
                self.interfaces.insert(*id, interface.clone());
            }
            Op::OtherAddresses(addresses) => self.others = addresses.to_vec(),
            Op::InterfaceGone(id) => self.interface_gone(*id),
            Op::Route4(router, prefix, target) => {
                let target = target.as_ref().map(|t| self.reachable(t));
                set(&mut self.routes4, (*router, *prefix), target.filter(|_| !guarded4(*prefix)));
            }
            Op::Route6(router, prefix, target) => {
                let target = target.as_ref().map(|t| self.reachable(t));
                set(&mut self.routes6, (*router, *prefix), target.filter(|_| !guarded6(*prefix)));
            }
            Op::Neighbour(id, address, mac) => {
                let mac = mac.filter(|m| !m.is_group() && !m.is_zero() && self.interfaces.contains_key(id));
                set(&mut self.neighbours, (*id, *address), mac);
            }
        }
    }

    fn interface_gone(&mut self, id: InterfaceId) {
        self.interfaces.remove(&id);
        self.neighbours.retain(|(i, _), _| *i != id);
        let interfaces = std::mem::take(&mut self.interfaces);
        let keep = Model { interfaces, ..Model::default() };
        self.routes4.values_mut().for_each(|t| *t = keep.reachable(t));
        self.routes6.values_mut().for_each(|t| *t = keep.reachable(t));
        self.interfaces = keep.interfaces;
    }

    /// The target after hops through missing interfaces are replaced, equal members merged, and single ones unwrapped.
    fn reachable(&self, target: &Target) -> Target {
        match target {
            Target::Hop(hop) if !self.interfaces.contains_key(&hop.interface) => {
                Target::Pass { reason: Reason::EgressNotAPort, unicast: true }
            }
            Target::Multi(members) => {
                let mut merged: Vec<(Target, u16)> = Vec::new();
                for (target, weight) in members.iter().filter(|(_, w)| *w > 0) {
                    merged.push((self.reachable(target), *weight));
                }
                let first = merged.first().cloned();
                match first {
                    None => Target::Pass { reason: Reason::ComplexRoute, unicast: true },
                    Some((first, _)) if merged.iter().all(|(t, _)| *t == first) => first,
                    Some(_) => Target::Multi(merged.into()),
                }
            }
            _ => target.clone(),
        }
    }

    fn answers(&self, route: Option<&Target>, destination: IpAddr) -> BTreeSet<ComparedAnswer> {
        match route {
            None => [(Some(Reason::NoRoute), None, (false, false))].into(),
            Some(Target::Multi(members)) => {
                members.iter().flat_map(|(t, _)| self.answers(Some(t), destination)).collect()
            }
            Some(Target::Pass { reason, unicast }) => {
                [(Some(*reason), None, (*unicast, is_local(*reason)))].into()
            }
            Some(Target::Hop(hop)) => [self.hop(hop, destination)].into(),
        }
    }

    fn hop(&self, hop: &Hop, destination: IpAddr) -> ComparedAnswer {
        let interface = &self.interfaces[&hop.interface];
        let neighbour = hop.gateway.unwrap_or(destination);
        let known = self.neighbours.get(&(hop.interface, neighbour));
        let same_box = known.is_some_and(|mac| {
            let key = (interface.port, interface.vlan, *mac);
            self.interfaces.values().any(|i| (i.port, i.vlan, i.mac) == key) || self.others.contains(&key)
        });
        let (mac, reason) = match known {
            None => (None, Some(Reason::Unresolved)),
            Some(_) if same_box => (None, Some(Reason::SameBox)),
            Some(_) if !interface.transmit => (None, Some(Reason::TxNotReady)),
            Some(mac) => (Some(*mac), None),
        };
        let frags = self.frags.get(&interface.port).copied().unwrap_or(false);
        let egress =
            (hop.interface, neighbour, mac, interface.mac, interface.port, interface.vlan, hop.mtu, frags);
        (reason, Some(egress), (true, false))
    }

    fn answers4(&self, router: RouterId, address: u32) -> BTreeSet<ComparedAnswer> {
        let ip = IpAddr::from(address.to_be_bytes());
        let routed = self.routes4.keys().any(|(r, _)| *r == router);
        if routed && guarded4(Prefix::new(address, 32).unwrap()) {
            return [(Some(Reason::Broadcast), None, (false, true))].into();
        }
        self.answers(longest(&self.routes4, router, address), ip)
    }

    fn answers6(&self, router: RouterId, address: u128) -> BTreeSet<ComparedAnswer> {
        let ip = IpAddr::from(address.to_be_bytes());
        let routed = self.routes6.keys().any(|(r, _)| *r == router);
        if routed && guarded6(Prefix::new(address, 128).unwrap()) {
            let multicast = address >> 120 == 0xff;
            let reason = if multicast { Reason::Broadcast } else { Reason::Local };
            return [(Some(reason), None, (false, true))].into();
        }
        self.answers(longest(&self.routes6, router, address), ip)
    }
}

fn set<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
    match value {
        Some(value) => _ = map.insert(key, value),
        None => _ = map.remove(&key),
    }
}

fn longest<A: crate::net::Address>(
    routes: &BTreeMap<(RouterId, Prefix<A>), Target>,
    router: RouterId,
    address: A,
) -> Option<&Target> {
    let covering = routes.iter().filter(|((r, p), _)| *r == router && p.contains(address));
    covering.max_by_key(|((_, p), _)| p.length()).map(|(_, t)| t)
}

fn guarded4(prefix: Prefix4) -> bool {
    let guards = ["0.0.0.0/8", "127.0.0.0/8", "224.0.0.0/4", "255.255.255.255/32"];
    guards.iter().any(|g| g.parse::<Prefix4>().unwrap().covers(prefix))
}

fn guarded6(prefix: Prefix6) -> bool {
    ["::/128", "::1/128", "::/127", "ff00::/8", "fe80::/10"]
        .iter()
        .any(|g| g.parse::<Prefix6>().unwrap().covers(prefix))
}

fn macs() -> impl Strategy<Value = Mac> {
    (0u8..6).prop_map(|i| Mac([2, 0, 0, 0, 0, i]))
}

fn addresses4() -> Vec<u32> {
    let near = [0x0a00_0001, 0x0a00_0002, 0x0a00_0003, 0x0a00_0101, 0x0a00_0102, 0x0b00_0000];
    let martian = [0x0001_0203, 0x7f00_0001, 0xe000_0005, 0xffff_ffff, 0xffff_fffe, 0xf000_0001];
    near.into_iter().chain(martian).collect()
}

fn addresses6() -> Vec<u128> {
    ["2001:db8::1", "2001:db8::2", "2001:db8:1::1", "::", "::1", "::2", "fe80::1", "ff02::5", "fd00::1"]
        .map(|a| a.parse::<std::net::Ipv6Addr>().unwrap().to_bits())
        .into()
}

fn interface() -> impl Strategy<Value = Interface> {
    let reverse_path =
        prop_oneof![Just(ReversePath::Off), Just(ReversePath::Loose), Just(ReversePath::Strict)];
    let vlan = prop_oneof![Just(Vlan::NONE), Just(Vlan::NONE.push(Tag { vid: 7, service: false }).unwrap())];
    (0u8..3, 0u8..2, vlan, macs(), any::<[bool; 4]>(), reverse_path).prop_map(
        |(router, port, vlan, mac, [ipv4, ipv6, transmit, redirects], reverse_path)| Interface {
            router,
            port,
            vlan,
            mac,
            ipv4,
            ipv6,
            transmit,
            reverse_path,
            redirects,
            accept_local: redirects,
            priority_tags: ipv4,
            look_at_sources: ipv6,
            group: 0,
        },
    )
}

fn neighbour_address() -> impl Strategy<Value = IpAddr> {
    let four = prop::sample::select(vec![0x0a00_0001u32, 0x0a00_0002, 0x0a00_0101]);
    let six = prop::sample::select(addresses6()[..2].to_vec());
    prop_oneof![
        four.prop_map(|a| IpAddr::from(a.to_be_bytes())),
        six.prop_map(|a| IpAddr::from(a.to_be_bytes()))
    ]
}

fn single_target() -> impl Strategy<Value = Target> {
    let reason = prop::sample::select(vec![
        Reason::Local,
        Reason::LocalPrefix,
        Reason::SpecialRoute,
        Reason::Broadcast,
    ]);
    let hop = (1u16..5, prop::option::of(neighbour_address()), prop::sample::select(vec![1400u32, 1500]));
    prop_oneof![
        1 => (reason, any::<bool>()).prop_map(|(reason, unicast)| Target::Pass { reason, unicast }),
        4 => hop.prop_map(|(interface, gateway, mtu)| Target::Hop(Hop { interface, gateway, mtu })),
    ]
}

fn target() -> impl Strategy<Value = Target> {
    let many = prop::collection::vec((single_target(), 0u16..4), 0..4);
    prop_oneof![3 => single_target(), 1 => many.prop_map(|m| Target::Multi(m.into()))]
}

fn op() -> impl Strategy<Value = Op> {
    let lengths4 = prop_oneof![Just(0u8), Just(8), Just(24), Just(31), Just(32), 0u8..=32];
    let prefix4 =
        (prop::sample::select(addresses4()), lengths4).prop_map(|(a, l)| Prefix::new(a, l).unwrap());
    let lengths6 = prop_oneof![Just(0u8), Just(48), Just(64), Just(128), 0u8..=128];
    let prefix6 =
        (prop::sample::select(addresses6()), lengths6).prop_map(|(a, l)| Prefix::new(a, l).unwrap());
    let neighbour_mac = prop::option::weighted(0.8, prop_oneof![9 => macs(), 1 => Just(Mac([1; 6]))]);
    prop_oneof![
        1 => (0u8..2, any::<bool>()).prop_map(|(port, frags)| Op::Port { port, frags }),
        1 => (0u8..3, any::<[bool; 2]>())
            .prop_map(|(router, l4)| Op::Router { router, multipath: MultipathHash { l4, key: [1, 2] } }),
        1 => (0u8..3).prop_map(Op::RouterGone),
        6 => (1u16..5, interface()).prop_map(|(id, i)| Op::Interface(id, i)),
        2 => (1u16..5).prop_map(Op::InterfaceGone),
        1 => prop::collection::vec((0u8..2, Just(Vlan::NONE), macs()), 0..3).prop_map(|a| Op::OtherAddresses(a.into())),
        8 => (0u8..3, prefix4, prop::option::weighted(0.8, target()))
            .prop_map(|(r, p, t)| Op::Route4(r, p, t)),
        6 => (0u8..3, prefix6, prop::option::weighted(0.8, target()))
            .prop_map(|(r, p, t)| Op::Route6(r, p, t)),
        8 => (1u16..5, neighbour_address(), neighbour_mac)
            .prop_map(|(i, a, m)| Op::Neighbour(i, a, m)),
    ]
}

/// The interface of a packet, as the program finds it.
fn classify(memory: &HeapMemory, port: PortId, vlan: Vlan, mac: Mac) -> Option<u64> {
    answer::find_interface(memory, nexthops::mac_word(mac) | u64::from(port) << 48, vlan.key())
}

fn check_index(tables: &Tables<HeapMemory>, model: &Model) {
    for i in model.interfaces.values() {
        let found = classify(tables.memory(), i.port, i.vlan, i.mac).expect("every interface is found");
        let owner = &model.interfaces[&((found >> 32) as u16)];
        assert_eq!((owner.port, owner.vlan, owner.mac), (i.port, i.vlan, i.mac));
        assert_eq!((found >> 48) as u8, owner.router);
        let flags = (found >> 56) as u8;
        assert_eq!(
            (flags & 1 != 0, flags & 2 != 0, flags & 16 != 0),
            (owner.ipv4, owner.ipv6, owner.redirects)
        );
    }
    let used = tables.memory().interface_index().chunks(2).filter(|s| s[1].load(Relaxed) != 0);
    assert_eq!(used.count(), model.interfaces.len());
}

fn check_answers(tables: &Tables<HeapMemory>, model: &Model) {
    for router in 0..3 {
        for a in addresses4() {
            let got = seen(tables.lookup(router, Ipv4Addr::from(a).into()));
            assert_eq!(got, model.answers4(router, a), "router {router} {:?}", std::net::Ipv4Addr::from(a));
        }
        for a in addresses6() {
            let got = seen(tables.lookup(router, Ipv6Addr::from(a).into()));
            assert_eq!(got, model.answers6(router, a), "router {router} {:?}", std::net::Ipv6Addr::from(a));
        }
        let routes: Vec<Prefix4> = tables.routes4(router).map(|(p, _)| p).collect();
        let expected: Vec<_> = model.routes4.keys().filter(|(r, _)| *r == router).map(|(_, p)| *p).collect();
        assert_eq!(routes, expected);
    }
}

/// A part of all combinations, chosen so that some share rows.
fn all_steered() -> BTreeSet<Steered> {
    let v4 = addresses4().into_iter().map(|a| IpAddr::from(Ipv4Addr::from(a)));
    let v6 = addresses6().into_iter().map(|a| IpAddr::from(Ipv6Addr::from(a)));
    let steered = |(i, destination)| {
        let port = (i % 2) as PortId;
        [1, 2].map(|interface| Steered { port, queue: (i / 2 % 4) as u8, interface, destination })
    };
    v4.chain(v6).enumerate().flat_map(steered).collect()
}

/// Rows in use are equal to a lookup. `whole`: and none is missing.
fn check_queues(tables: &Tables<HeapMemory>, model: &Model, whole: bool) {
    let mut first = BTreeMap::new();
    for steered in all_steered() {
        first.entry(steered.row().unwrap()).or_insert(steered);
    }
    for (at, row) in tables.memory().queues().chunks(words::QUEUE_ROW).enumerate() {
        let row: Vec<u64> = row.iter().map(|w| w.load(Relaxed)).collect();
        let Some(steered) = first.get(&at) else {
            assert_eq!(row[0], 0);
            continue;
        };
        let found = model.interfaces.get(&steered.interface).and_then(|i| {
            let slot = classify(tables.memory(), i.port, i.vlan, i.mac)?;
            let is_it = i.port == steered.port && (slot >> 32) as u16 == steered.interface;
            let [only] = &tables.lookup(i.router, steered.destination)[..] else { return None };
            let way = answer::only_next_hop(tables.memory(), i.router, steered.destination);
            is_it.then_some((i, slot, only.clone(), way?))
        });
        let Some((i, slot, only, _)) = found else {
            assert_eq!(row[0], 0, "{steered:?}");
            continue;
        };
        assert!(row[0] != 0 || !whole, "{steered:?}");
        if row[0] == 0 {
            continue;
        }
        assert_eq!(row[1], nexthops::mac_word(i.mac) | u64::from(i.port) << 48);
        assert_eq!((row[2], row[5] as u32), (slot, only.nexthop), "{steered:?}");
        assert!(only.reason.is_none() || only.mac.is_none(), "{only:?}");
        let bytes: Vec<u8> = row[3..5].iter().flat_map(|w| w.to_le_bytes()).collect();
        assert_eq!(bytes, nexthops::address_bytes(steered.destination));
        assert!((row[5] >> 32) as u32 == only.mtu || row[5] >> 32 == u64::from(u32::MAX));
    }
}

/// Words 1, 2, 4 and 5 of every next hop. They are constant from publication to reclaim.
fn constant_words(memory: &HeapMemory) -> Vec<[u64; 4]> {
    let rows = memory.nexthops().chunks(words::NEXTHOP);
    rows.map(|row| [1, 2, 4, 5].map(|i| row[i].load(Relaxed))).collect()
}

fn all_gone(tables: &mut Tables<HeapMemory>) {
    tables.apply(&Op::OtherAddresses([].into())).unwrap();
    for router in 0..3 {
        tables.apply(&Op::RouterGone(router)).unwrap();
    }
    let epoch = tables.seal();
    tables.reclaim(epoch).unwrap();
    let used = tables.occupancy().map(|(_, o)| o.used);
    assert_eq!(used, [1, 0, 2, 0, 0, 0]);
    assert!(tables.memory().neighbour_index().iter().all(|w| w.load(Relaxed) == 0));
    assert!(tables.interfaces.is_empty() && tables.neighbours.is_empty() && tables.by_mac.is_empty());
    assert!(tables.boxes.is_empty() && tables.groups.by_block.is_empty() && tables.groups.by_key.is_empty());
}

proptest! {
    #![proptest_config(crate::cases(150))]

    #[test]
    fn packets_go_where_the_model_says(ops in prop::collection::vec((op(), 0u8..12), 1..80)) {
        let mut tables = Tables::new(HeapMemory::with_queue_rows(ROOMY, queue_rows(2)));
        tables.set_steered(&all_steered());
        let mut model = Model::default();
        for (op, pause) in ops {
            let before = constant_words(tables.memory());
            tables.apply(&op).unwrap();
            model.apply(&op);
            for (old, new) in before.iter().zip(constant_words(tables.memory())) {
                prop_assert!(*old == [0; 4] || *old == new, "{op:?} changed a published next hop");
            }
            check_answers(&tables, &model);
            check_index(&tables, &model);
            check_queues(&tables, &model, true);
            if pause == 0 {
                let epoch = tables.seal();
                tables.reclaim(epoch).unwrap();
                let rows = tables.memory().nexthops().chunks(words::NEXTHOP).enumerate();
                // Rows that are free again may be written at any time.
                for (id, row) in rows {
                    if tables.nexthops.key(id as u32).is_none() {
                        row.iter().for_each(|w| w.store(0, Relaxed));
                    }
                }
            }
        }
        all_gone(&mut tables);
    }

    /// With too little room everywhere, forwarded packets still go the right way. Everything is forwarded again after
    /// there is room.
    #[test]
    fn full_maps_lead_to_the_kernel(
        ops in prop::collection::vec((op(), 0u8..6), 1..80),
        (fib_blocks, fib_tails, nexthops) in (1usize..12, 0usize..8, 2usize..16)
    ) {
        let capacity = Capacity {
            fib_blocks, fib_tails, nexthops, neighbour_buckets: 2, interface_buckets: 2, ..ROOMY
        };
        let mut tables = Tables::new(HeapMemory::with_queue_rows(capacity, queue_rows(2)));
        tables.set_steered(&all_steered());
        let mut model = Model::default();
        for (op, pause) in ops {
            let _ = tables.apply(&op);
            model.apply(&op);
            if pause == 0 {
                let epoch = tables.seal();
                let _ = tables.reclaim(epoch);
            }
            check_queues(&tables, &model, false);
            for router in 0..3 {
                for a in addresses4() {
                    for got in seen(tables.lookup(router, Ipv4Addr::from(a).into())) {
                        let right = model.answers4(router, a);
                        prop_assert!(got.0.is_some() || right.iter().any(|r| r.0.is_none()), "{:?}", got);
                        if let (None, Some((i, n, mac, _, _, _, mtu, _))) = (got.0, got.1) {
                            let agrees = |r: &ComparedAnswer| r.1.is_some_and(|e| (e.0, e.1, e.2, e.6) == (i, n, mac, mtu));
                            prop_assert!(right.iter().any(agrees), "{:?} instead of {:?}", got, right);
                        }
                    }
                }
            }
        }
        // With one router there is often room for all of it.
        for op in [1, 2].map(Op::RouterGone) {
            let _ = tables.apply(&op);
            model.apply(&op);
        }
        for _ in 0..3 {
            let epoch = tables.seal();
            let _ = tables.reclaim(epoch);
        }
        let waits = !tables.pending.is_empty() || !tables.starved.is_empty() || tables.unplaced() != (0, 0);
        if !waits && !(0..3).any(|router| tables.route_counts(router).2) {
            check_answers(&tables, &model);
            check_index(&tables, &model);
            check_queues(&tables, &model, true);
        }
        for router in 0..3 {
            let _ = tables.apply(&Op::RouterGone(router));
        }
        let epoch = tables.seal();
        let _ = tables.reclaim(epoch);
        let used = tables.occupancy().map(|(_, o)| o.used);
        prop_assert_eq!(used, [1, 0, 2, 0, 0, 0]);
    }
}

fn simple(ops: &[Op]) -> Tables<HeapMemory> {
    let mut tables = Tables::new(HeapMemory::new(ROOMY));
    for op in ops {
        tables.apply(op).unwrap();
    }
    tables
}

pub(super) fn plain_interface(mac: u8) -> Interface {
    Interface {
        router: 0,
        port: 1,
        vlan: Vlan::NONE,
        mac: Mac([2, 0, 0, 0, 0, mac]),
        ipv4: true,
        ipv6: true,
        transmit: true,
        reverse_path: ReversePath::Loose,
        redirects: true,
        accept_local: false,
        priority_tags: false,
        look_at_sources: false,
        group: 0,
    }
}

#[test]
fn used_neighbours_are_reported_once() {
    let gateway: IpAddr = "10.0.0.1".parse().unwrap();
    let hop = Target::Hop(Hop { interface: 1, gateway: Some(gateway), mtu: 1500 });
    let mut tables = simple(&[
        Op::Interface(1, plain_interface(1)),
        Op::Route4(0, "0.0.0.0/0".parse().unwrap(), Some(hop)),
        Op::Neighbour(1, gateway, Some(Mac([2, 0, 0, 0, 0, 9]))),
    ]);
    assert_eq!(tables.take_used(), []);
    let id = tables.lookup(0, [8, 8, 8, 8].into())[0].nexthop as usize;
    tables.memory().nexthops()[id * words::NEXTHOP + 6].store(1, Relaxed);
    assert_eq!(tables.take_used(), [(1, gateway)]);
    assert_eq!(tables.take_used(), []);
    // Two next hops lead to the gateway, one to another neighbour.
    let other: IpAddr = "10.0.0.0".parse().unwrap();
    for (prefix, gateway) in [("10.1.0.0/16", gateway), ("10.2.0.0/16", other)] {
        let hop = Target::Hop(Hop { interface: 1, gateway: Some(gateway), mtu: 1400 });
        tables.apply(&Op::Route4(0, prefix.parse().unwrap(), Some(hop))).unwrap();
    }
    let use_all = |tables: &Tables<HeapMemory>| {
        for to in [[8, 8, 8, 8], [10, 1, 0, 1], [10, 2, 0, 1]] {
            let id = tables.lookup(0, to.into())[0].nexthop;
            let hop = answer::nexthop(tables.memory(), id).unwrap();
            (0..2).for_each(|_| hop.mark_used());
        }
    };
    use_all(&tables);
    assert_eq!(tables.take_used(), [(1, other), (1, gateway)]);
    use_all(&tables);
    assert!(!tables.take_use_of(2, gateway) && !tables.take_use_of(1, [10, 0, 0, 9].into()));
    assert!(tables.take_use_of(1, gateway) && !tables.take_use_of(1, gateway));
    assert_eq!(tables.take_used(), [(1, other)]);
}

/// The interface's MAC address changes, and there is room for one new next hop of two.
#[test]
fn a_group_that_lost_members_because_a_map_was_full_gets_them_back() {
    let hop = |n| Target::Hop(Hop { interface: 1, gateway: Some([10, 0, 0, n].into()), mtu: 1500 });
    let ops = [
        Op::Interface(1, plain_interface(1)),
        Op::Neighbour(1, [10, 0, 0, 1].into(), Some(Mac([2, 0, 0, 0, 0, 8]))),
        Op::Neighbour(1, [10, 0, 0, 2].into(), Some(Mac([2, 0, 0, 0, 0, 9]))),
        Op::Route4(0, "10.1.0.0/16".parse().unwrap(), Some(Target::Multi([(hop(1), 1), (hop(2), 1)].into()))),
    ];
    let used = simple(&ops).nexthops.occupancy().used;
    let mut tables = Tables::new(HeapMemory::new(Capacity { nexthops: used + 1, ..ROOMY }));
    ops.iter().for_each(|op| tables.apply(op).unwrap());
    let reasons = |tables: &Tables<HeapMemory>| -> Vec<_> {
        tables.lookup(0, [10, 1, 2, 3].into()).iter().map(|a| (a.reason, a.source.0[5])).collect()
    };
    assert_eq!(reasons(&tables), [(None, 1), (None, 1)]);
    assert!(tables.apply(&Op::Interface(1, plain_interface(2))).is_err());
    assert!(reasons(&tables).contains(&(Some(Reason::MapFull), 0)));
    for _ in 0..2 {
        let epoch = tables.seal();
        let _ = tables.reclaim(epoch);
    }
    assert_eq!(reasons(&tables), [(None, 2), (None, 2)]);
}

/// As above, for routes of both families with one next hop, and for a neighbour in the index.
#[test]
fn routes_and_neighbours_that_lost_their_next_hop_get_it_back() {
    let via =
        |gateway: &str| Some(Target::Hop(Hop { interface: 1, gateway: gateway.parse().ok(), mtu: 1500 }));
    let neighbour =
        |address: &str, mac| Op::Neighbour(1, address.parse().unwrap(), Some(Mac([2, 0, 0, 0, 0, mac])));
    let ops = [
        Op::Interface(1, plain_interface(1)),
        neighbour("10.0.0.1", 8),
        neighbour("10.3.0.1", 9),
        neighbour("fd00::1", 10),
        Op::Route4(0, "10.1.0.0/16".parse().unwrap(), via("10.0.0.1")),
        Op::Route4(0, "10.3.0.0/16".parse().unwrap(), via("")),
        Op::Route6(0, "2001:db8::/32".parse().unwrap(), via("fd00::1")),
    ];
    let used = simple(&ops).nexthops.occupancy().used;
    let mut tables = Tables::new(HeapMemory::new(Capacity { nexthops: used + 1, ..ROOMY }));
    ops.iter().for_each(|op| tables.apply(op).unwrap());
    let found = |tables: &Tables<HeapMemory>| {
        ["10.1.2.3", "10.3.0.1", "2001:db8::9"].map(|to| {
            let answer = &tables.lookup(0, to.parse().unwrap())[0];
            (answer.reason, answer.source.0[5])
        })
    };
    assert_eq!(found(&tables), [(None, 1); 3]);
    assert!(tables.apply(&Op::Interface(1, plain_interface(2))).is_err());
    assert!(found(&tables).iter().all(|(reason, source)| reason.is_some() || *source == 2));
    for _ in 0..4 {
        let epoch = tables.seal();
        let _ = tables.reclaim(epoch);
    }
    assert_eq!(found(&tables), [(None, 2); 3]);
    assert!(tables.pending.is_empty() && tables.starved.is_empty());
}

#[test]
fn parts_of_a_table_that_found_no_room_are_there_after_some_is_free() {
    let pass = |reason| Some(Target::Pass { reason, unicast: false });
    let route = |prefix: &str, target| Op::Route4(0, prefix.parse().unwrap(), target);
    // One tail is that of 255.255.255.255/32.
    let mut tables = Tables::new(HeapMemory::new(Capacity { fib_tails: 2, ..ROOMY }));
    tables.apply(&route("10.1.2.3/32", pass(Reason::SpecialRoute))).unwrap();
    assert!(tables.apply(&route("11.1.2.3/32", pass(Reason::SpecialRoute))).is_err());
    let reason = |tables: &Tables<HeapMemory>| tables.lookup(0, [11, 1, 2, 3].into())[0].reason;
    assert_eq!((reason(&tables), tables.route_counts(0)), (Some(Reason::MapFull), (2, 0, true)));
    let epoch = tables.seal();
    assert!(tables.reclaim(epoch).is_err());
    tables.apply(&route("10.1.2.3/32", None)).unwrap();
    let epoch = tables.seal();
    assert_eq!(tables.reclaim(epoch), Ok(()));
    assert_eq!((reason(&tables), tables.route_counts(0)), (Some(Reason::SpecialRoute), (1, 0, false)));
}

/// Many more routes wait than one call tries. Each reclaim tries the next ones, and none is forgotten. After all have
/// been tried, none is tried until something changes.
#[test]
fn routes_that_wait_are_tried_in_turn() {
    let prefix = |i: u32| Prefix4::new(0x0a00_0000 | i << 8, 24).unwrap();
    let hop = |i: u32| {
        let gateway = std::net::Ipv4Addr::from_bits(0x0b00_0000 | i).into();
        Target::Hop(Hop { interface: 1, gateway: Some(gateway), mtu: 1500 })
    };
    let routes = 10_000;
    let mut tables = Tables::new(HeapMemory::new(Capacity { nexthops: 16, ..ROOMY }));
    tables.apply(&Op::Interface(1, plain_interface(1))).unwrap();
    for i in 0..routes {
        let _ = tables.apply(&Op::Route4(0, prefix(i), Some(hop(i))));
    }
    let reclaim = |tables: &mut Tables<HeapMemory>| {
        let epoch = tables.seal();
        let _ = tables.reclaim(epoch);
        tables.has_untried()
    };
    assert_eq!([(); 4].map(|()| reclaim(&mut tables)), [true, true, false, false]);
    let last = routes - 3;
    for i in 0..last {
        tables.apply(&Op::Route4(0, prefix(i), None)).unwrap();
    }
    while reclaim(&mut tables) {}
    for i in last..routes {
        assert_eq!(
            tables.lookup(0, Ipv4Addr::from(prefix(i).address()).into())[0].interface,
            Some(1),
            "route {i}"
        );
    }
}

#[test]
fn groups_share_hashes_by_weight_and_are_shared_themselves() {
    let hop = |i| Target::Hop(Hop { interface: i, gateway: Some("10.0.0.1".parse().unwrap()), mtu: 1500 });
    let group = |a, b| Some(Target::Multi([(hop(1), a), (hop(2), b)].into()));
    let mut tables = simple(&[
        Op::Interface(1, plain_interface(1)),
        Op::Interface(2, plain_interface(2)),
        Op::Route4(0, "10.1.0.0/16".parse().unwrap(), group(1, 3)),
        Op::Route4(0, "10.2.0.0/16".parse().unwrap(), group(1, 3)),
    ]);
    let shares: Vec<_> = tables.lookup(0, [10, 1, 2, 3].into()).iter().map(|a| a.share).collect();
    assert_eq!(shares, [64, 192]);
    assert_eq!(tables.groups.by_block.len(), 1);
    let target = tables.routes4(0).next().unwrap().1;
    assert_eq!(Some(target), group(1, 3));
    tables.apply(&Op::Route4(0, "10.1.0.0/16".parse().unwrap(), None)).unwrap();
    let shares: Vec<_> = tables.lookup(0, [10, 2, 2, 3].into()).iter().map(|a| a.share).collect();
    assert_eq!((shares, tables.groups.by_block.len()), (vec![64, 192], 1), "the other route keeps it");
    tables.apply(&Op::Route4(0, "10.1.0.0/16".parse().unwrap(), group(1, 3))).unwrap();
    tables.apply(&Op::InterfaceGone(2)).unwrap();
    let reasons: Vec<_> = tables.lookup(0, [10, 2, 2, 3].into()).iter().map(|a| a.reason).collect();
    assert_eq!(reasons, [Some(Reason::Unresolved), Some(Reason::EgressNotAPort)]);
    for prefix in ["10.1.0.0/16", "10.2.0.0/16"] {
        tables.apply(&Op::Route4(0, prefix.parse().unwrap(), None)).unwrap();
    }
    assert!(tables.groups.by_block.is_empty() && tables.groups.by_key.is_empty());
}

#[test]
fn groups_merge_equal_members_and_have_a_limit() {
    let hop = |n: u8| Target::Hop(Hop { interface: 1, gateway: Some([10, 0, 0, n].into()), mtu: 1500 });
    let mut tables = simple(&[Op::Interface(1, plain_interface(1))]);
    let mut stored = |members: &[(u8, u16)]| {
        let target = Target::Multi(members.iter().map(|(n, weight)| (hop(*n), *weight)).collect());
        tables.apply(&Op::Route4(0, "10.1.0.0/16".parse().unwrap(), Some(target))).unwrap();
        let target = tables.routes4(0).next().unwrap().1;
        (target, tables.groups.by_block.len())
    };
    let multi = |members: &[(u8, u16)]| Target::Multi(members.iter().map(|(n, w)| (hop(*n), *w)).collect());
    assert_eq!(stored(&[(1, 1), (1, 2), (2, 1), (1, 4), (3, 0)]), (multi(&[(1, 3), (2, 1), (1, 4)]), 1));
    assert_eq!(stored(&[(7, 1), (7, 2), (8, 0)]), (hop(7), 0));
    let complex = Target::Pass { reason: Reason::ComplexRoute, unicast: true };
    assert_eq!(stored(&[(7, 0)]), (complex.clone(), 0));
    let many: Vec<_> = (0..=128).map(|n| (n, 1)).collect();
    assert_eq!(stored(&many[..128]), (multi(&many[..128]), 1));
    assert_eq!(stored(&many), (complex, 0));
}

#[test]
fn an_index_is_searched_in_both_buckets() {
    let capacity = Capacity { neighbour_buckets: 2, interface_buckets: 2, ..ROOMY };
    let mut tables = Tables::new(HeapMemory::new(capacity));
    // All belong in the first bucket, so half of them are in the other one.
    let is_first = |n: &u8| crate::hash::interface_bucket([2, 0, 0, 0, 0, *n], 1, Vlan::NONE.key(), 1) == 0;
    let macs: Vec<u8> = (0..=255).filter(is_first).take(9).collect();
    let found = |tables: &Tables<HeapMemory>| -> Vec<u16> {
        let find = |n: &u8| classify(tables.memory(), 1, Vlan::NONE, Mac([2, 0, 0, 0, 0, *n]));
        macs.iter().filter_map(find).map(|slot| (slot >> 32) as u16).collect()
    };
    let full = |region| Err(Full { region, rows: 1 });
    for (id, mac) in (1..).zip(&macs) {
        let added = tables.apply(&Op::Interface(id, plain_interface(*mac)));
        assert_eq!(added, if id > 8 { full(Region::InterfaceIndex) } else { Ok(()) });
    }
    assert_eq!((found(&tables), tables.unplaced()), ((1..=8).collect(), (0, 1)));
    tables.apply(&Op::InterfaceGone(3)).unwrap();
    assert_eq!((found(&tables), tables.unplaced()), (vec![1, 2, 4, 5, 6, 7, 8, 9], (0, 0)));

    let connected = Target::Hop(Hop { interface: 1, gateway: None, mtu: 1500 });
    tables.apply(&Op::Route4(0, "10.0.0.0/8".parse().unwrap(), Some(connected))).unwrap();
    let neighbour = |n: u8| Op::Neighbour(1, [10, 0, 0, n].into(), Some(Mac([2, 0, 0, 0, 1, n])));
    let found = |tables: &Tables<HeapMemory>| -> Vec<u8> {
        let find = |n: u8| tables.lookup(0, [10, 0, 0, n].into())[0].mac;
        (1..=17).filter(|n| find(*n) == Some(Mac([2, 0, 0, 0, 1, *n]))).collect()
    };
    (1..=16).for_each(|n| tables.apply(&neighbour(n)).unwrap());
    assert_eq!(tables.apply(&neighbour(17)), full(Region::NeighbourIndex));
    assert_eq!((found(&tables), tables.unplaced()), ((1..=16).collect(), (1, 0)));
    tables.apply(&Op::Neighbour(1, [10, 0, 0, 5].into(), None)).unwrap();
    assert_eq!((found(&tables).len(), tables.unplaced()), (16, (0, 0)));
}

/// Two addresses with the same hash.
#[test]
fn a_neighbour_with_the_hash_of_another_is_not_that_one() {
    let hash = |interface, address: u32| {
        let address = nexthops::address_bytes(Ipv4Addr::from(address).into());
        crate::hash::neighbour_bucket(interface, address, 3)
    };
    let mut seen = BTreeMap::new();
    let (one, other) = (0x0a00_0000..)
        .find_map(|address| seen.insert(hash(1, address), address).map(|other| (address, other)))
        .unwrap();
    let connected = |interface| Some(Target::Hop(Hop { interface, gateway: None, mtu: 1500 }));
    let mut tables = simple(&[
        Op::Interface(1, plain_interface(1)),
        Op::Route4(0, "10.0.0.0/8".parse().unwrap(), connected(1)),
        Op::Neighbour(1, Ipv4Addr::from(one).into(), Some(Mac([2, 0, 0, 0, 0, 9]))),
    ]);
    let reason = |tables: &Tables<HeapMemory>, to: u32| tables.lookup(0, Ipv4Addr::from(to).into())[0].reason;
    assert_eq!([reason(&tables, one), reason(&tables, other)], [None, Some(Reason::Unresolved)]);
    tables.apply(&Op::Neighbour(1, Ipv4Addr::from(other).into(), Some(Mac([2, 0, 0, 0, 0, 8])))).unwrap();
    assert_eq!([reason(&tables, one), reason(&tables, other)], [None, None]);
}

#[test]
fn memory_is_initialized() {
    let memory = HeapMemory::with_queue_rows(ROOMY, queue_rows(1));
    let regions = [
        memory.neighbour_index(),
        memory.interface_index(),
        memory.routers(),
        memory.queues(),
        memory.nexthops(),
    ];
    regions.into_iter().flatten().for_each(|word| word.store(u64::MAX, Relaxed));
    memory.fib().iter().for_each(|slot| slot.store(u32::MAX, Relaxed));
    let tables = Tables::new(memory);
    let memory = tables.memory();
    let zero = [memory.neighbour_index(), memory.interface_index(), memory.queues()];
    assert!(zero.into_iter().flatten().all(|word| word.load(Relaxed) == 0));
    assert!(memory.fib()[..words::FIB_BLOCK].iter().all(|slot| slot.load(Relaxed) == 0));
    for row in memory.routers().chunks(words::ROUTER) {
        let row: Vec<u64> = row.iter().map(|word| word.load(Relaxed)).collect();
        assert_eq!(row[..2], [32 << 32, 128 << 32]);
        assert!(row[2..].iter().all(|word| *word == 0));
    }
    let all = tables.occupancy().map(|(_, occupancy)| (occupancy.used, occupancy.capacity));
    assert_eq!(all, [(1, 600), (0, 300), (2, 500), (0, 32), (0, 16), (0, 3)]);
    for router in 0..3 {
        assert_eq!(
            seen(tables.lookup(router, [10, 0, 0, 1].into())),
            Model::default().answers(None, [0; 4].into())
        );
    }
}

#[test]
fn a_next_hop_is_free_only_after_a_grace_period_from_its_end() {
    let hop = Target::Hop(Hop { interface: 1, gateway: Some([10, 0, 0, 1].into()), mtu: 1500 });
    let route = |target| Op::Route4(0, "10.0.0.0/8".parse().unwrap(), target);
    let mut tables = simple(&[Op::Interface(1, plain_interface(1)), route(Some(hop))]);
    let before = tables.seal();
    tables.apply(&route(None)).unwrap();
    let used = |tables: &Tables<HeapMemory>| tables.nexthops.occupancy().used;
    let in_use = used(&tables);
    tables.reclaim(before).unwrap();
    assert_eq!(used(&tables), in_use);
    let after = tables.seal();
    tables.reclaim(after).unwrap();
    assert!(used(&tables) < in_use);
}

#[test]
fn a_router_leaves_an_empty_row_and_one_without_a_row_is_refused() {
    let multipath = MultipathHash { l4: [true, true], key: [1, 2] };
    let addresses = [0x0a00_0001].into();
    let mut tables = simple(&[
        Op::Router { router: 1, multipath },
        Op::LocalAddresses { router: 1, addresses },
        Op::RouterGone(1),
    ]);
    let row = &tables.memory().routers()[words::ROUTER..2 * words::ROUTER];
    assert!(row[2..].iter().all(|word| word.load(Relaxed) == 0));
    let refused = Err(Full { region: Region::Routers, rows: 1 });
    assert_eq!(tables.apply(&Op::Router { router: 3, multipath }), refused);
    assert_eq!(tables.apply(&Op::LocalAddresses { router: 3, addresses: [].into() }), refused);
    assert_eq!(tables.occupancy()[5].1.used, 0);
}

#[test]
fn guards_are_no_routes() {
    let pass = Target::Pass { reason: Reason::SpecialRoute, unicast: false };
    let prefix = |i: u32| Prefix::new(0x0a00_0000 + i, 32).unwrap();
    let mut tables = simple(&[]);
    let root = |tables: &Tables<HeapMemory>| tables.memory().routers()[0].load(Relaxed) >> 32;
    for i in 0..256 {
        tables.apply(&Op::Route4(0, prefix(i), Some(pass.clone()))).unwrap();
    }
    assert_eq!((root(&tables), tables.route_counts(0)), (32, (256, 0, false)), "one block");
    tables.apply(&Op::Route4(0, prefix(256), Some(pass.clone()))).unwrap();
    tables.apply(&Op::Route6(0, "2001:db8::/32".parse().unwrap(), Some(pass))).unwrap();
    assert_eq!((root(&tables), tables.route_counts(0)), (24, (257, 1, false)));
    assert_eq!(tables.route_counts(1), (0, 0, false));
    assert!(holds4("10.0.0.0/8".parse().unwrap()) && holds4("0.0.0.0/0".parse().unwrap()));
    assert!(!holds4("127.0.0.0/8".parse().unwrap()) && !holds4("224.0.0.5/32".parse().unwrap()));
    assert!(holds6("2001:db8::/32".parse().unwrap()) && holds6("::/0".parse().unwrap()));
    assert!(!holds6("fe80::/64".parse().unwrap()) && !holds6("ff02::/16".parse().unwrap()));
}

#[test]
fn router_rows_are_those_of_the_abi() {
    let tables = simple(&[
        Op::Router { router: 1, multipath: MultipathHash { l4: [false, true], key: [7, 8] } },
        Op::LocalAddresses { router: 1, addresses: [0x0a00_0001, 0xc0a8_0101].into() },
        Op::Route4(
            1,
            "10.0.0.0/8".parse().unwrap(),
            Some(Target::Pass { reason: Reason::SpecialRoute, unicast: false }),
        ),
    ]);
    let row = &tables.memory().routers()[words::ROUTER..2 * words::ROUTER];
    let word = |i: usize| row[i].load(Relaxed);
    assert_eq!(word(0) >> 32, 32, "a small table has one block");
    assert_eq!(word(1), 128 << 32, "no IPv6 routes: the empty block");
    assert_eq!(word(2), 2);
    assert_eq!((word(3), word(4)), (7, 8));
    assert!(row[5..8].iter().all(|w| w.load(Relaxed) == 0));
    let multipath = answer::RouterRow::of(tables.memory(), 1).multipath();
    assert_eq!(multipath, MultipathHash { l4: [false, true], key: [7, 8] });
    let other = MultipathHash { l4: [true, false], key: [9, 10] };
    let another = simple(&[Op::Router { router: 0, multipath: other }]);
    assert_eq!(answer::RouterRow::of(another.memory(), 0).multipath(), other);
    let bits: u32 = row[8..].iter().map(|w| w.load(Relaxed).count_ones()).sum();
    assert_eq!(bits, 2);
    let bit = (0x0a00_0001_u32.wrapping_mul(0x9e37_79b1) >> 21) as usize;
    assert_ne!(word(8 + bit / 64) & 1 << (bit % 64), 0);
}

#[test]
fn interface_slots_are_those_of_the_abi() {
    let vlan = Vlan::NONE.push(Tag { vid: 100, service: true }).unwrap();
    let interface = Interface { router: 2, vlan, ipv6: false, ..plain_interface(5) };
    let tables = simple(&[Op::Interface(0x0102, interface)]);
    let index = tables.memory().interface_index();
    let slot = index.chunks(2).find(|s| s[1].load(Relaxed) != 0).unwrap();
    let bytes: Vec<u8> = slot.iter().flat_map(|w| w.load(Relaxed).to_le_bytes()).collect();
    assert_eq!(bytes, [2, 0, 0, 0, 0, 5, 1, 0, 100, 0x30, 0, 0, 2, 1, 2, 1 | 4 | 16]);
    let none = Interface {
        ipv4: false,
        ipv6: false,
        redirects: false,
        reverse_path: ReversePath::Off,
        ..plain_interface(5)
    };
    for (interface, flags) in [
        (Interface { ipv4: true, ..none.clone() }, IF_IPV4),
        (Interface { ipv6: true, ..none.clone() }, IF_IPV6),
        (Interface { reverse_path: ReversePath::Loose, ..none.clone() }, IF_RPF_LOOSE),
        (Interface { reverse_path: ReversePath::Strict, ..none.clone() }, IF_RPF_STRICT),
        (Interface { redirects: true, ..none.clone() }, IF_REDIRECTS),
        (Interface { accept_local: true, ..none.clone() }, IF_ACCEPT_LOCAL),
        (Interface { priority_tags: true, ..none.clone() }, IF_PRIORITY_TAGS),
        (Interface { look_at_sources: true, ..none.clone() }, IF_LOOK_AT_SOURCES),
        (none, 0),
    ] {
        assert_eq!(links::interface_words(7, &interface)[1] >> 56, u64::from(flags), "{interface:?}");
    }
}
