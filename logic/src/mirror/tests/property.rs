//! Events may come in any order and be divided into plans in any way. The tables then end up as if the final state had
//! been dumped once. Until then a packet goes where Linux sent packets to its address at some time, or to the kernel.

use super::{
    world::{Dice, World},
    *,
};
use crate::{
    firewall::prove::Exception,
    plan::{Interface, InterfaceId, PairTable, RouterId},
};
use proptest::prelude::*;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// The contents of the tables, without numbers.
#[derive(Debug, Default, PartialEq)]
struct TableContents {
    routers: BTreeMap<NamespaceId, (crate::plan::MultipathHash, BTreeSet<u32>)>,
    interfaces: BTreeMap<(NamespaceId, u32), Interface>,
    routes: BTreeMap<(NamespaceId, String), String>,
    neighbours: BTreeMap<((NamespaceId, u32), IpAddr), Mac>,
    /// For packets from one link to another: do rules matter, for IPv4 and IPv6?
    pairs: BTreeMap<((NamespaceId, u32), (NamespaceId, u32)), [Option<u64>; 2]>,
    exceptions: BTreeMap<NamespaceId, [Vec<Exception>; 2]>,
}

fn told(mirror: &Mirror, model: &Model) -> TableContents {
    let names: BTreeMap<RouterId, NamespaceId> =
        mirror.routers().filter_map(|r| Some((r.router?, r.namespace))).collect();
    let mut told = TableContents::default();
    for (id, router) in &model.routers {
        let namespace = names[id];
        told.routers.insert(namespace, (router.multipath, router.addresses.clone()));
        let exceptions =
            |table: &Option<Arc<PairTable>>| table.iter().flat_map(|t| t.exceptions.clone()).collect();
        told.exceptions.insert(namespace, router.rules.each_ref().map(exceptions));
        let routes4 = router.routes4.iter().map(|(p, t)| (p.to_string(), t));
        for (prefix, target) in routes4.chain(router.routes6.iter().map(|(p, t)| (p.to_string(), t))) {
            told.routes.insert((namespace, prefix), tell(mirror, target));
        }
    }
    for (id, interface) in &model.interfaces {
        let link = mirror.link_of(*id).expect("an interface of the tables is known");
        told.interfaces.insert(link, Interface { router: 0, group: 0, ..interface.clone() });
        let rules = &model.routers[&interface.router].rules;
        for (other, to) in model.interfaces.iter().filter(|(_, i)| i.router == interface.router) {
            let pair = |table: &Option<Arc<PairTable>>| Some(table.as_ref()?.pair(interface.group, to.group));
            told.pairs.insert((link, mirror.link_of(*other).unwrap()), rules.each_ref().map(pair));
        }
    }
    for ((id, address), mac) in &model.neighbours {
        told.neighbours.insert((mirror.link_of(*id).unwrap(), *address), *mac);
    }
    told
}

fn tell(mirror: &Mirror, target: &Target) -> String {
    let link = |id: InterfaceId| mirror.link_of(id).expect("a next hop's interface is known");
    match target {
        Target::Pass { .. } => format!("{target:?}"),
        Target::Hop(hop) => format!("{:?} {:?} {}", link(hop.interface), hop.gateway, hop.mtu),
        Target::Multi(members) => {
            members.iter().map(|(t, w)| format!("[{} x{w}]", tell(mirror, t))).collect()
        }
    }
}

const ADDRESSES4: [u32; 6] = [0x0a01_0101, 0x0a01_01ff, 0x0a01_8001, 0x0a02_0000, 0xc000_0201, 0x0800_0000];
const ADDRESSES6: [u128; 4] = [
    0x2001_0db8_0001_0000_0000_0000_0000_0001,
    0x2001_0db8_0001_0000_0000_0000_0000_0002,
    0x2001_0db8_0002_0000_0000_0000_0000_0001,
    0x2002_0000_0000_0000_0000_0000_0000_0001,
];

/// Where Linux sent packets to each address at each plan, since all interfaces of a router were last off.
#[derive(Default)]
struct Past {
    sent: BTreeMap<(NamespaceId, IpAddr), BTreeSet<String>>,
    /// Routers that are on, for IPv4 (true) and IPv6.
    on: BTreeSet<(NamespaceId, bool)>,
}

impl Past {
    /// A plan begins.
    fn note(&mut self, world: &World) {
        let mut fresh = Bench { mirror: Mirror::new(Limits::default()), model: Model::default() };
        fresh.mirror.admit_connections();
        fresh.after(world.events());
        self.on = on(&fresh.mirror, &fresh.model);
        self.on.retain(|(namespace, _)| world.lost != Some(*namespace));
        for (at, there) in sent(&fresh.mirror, &fresh.model) {
            self.sent.entry(at).or_default().insert(there);
        }
    }

    /// The plan is in force.
    fn forget(&mut self) {
        self.sent.retain(|(namespace, address), _| self.on.contains(&(*namespace, address.is_ipv4())));
    }

    fn check(&self, mirror: &Mirror, model: &Model) {
        for (at, there) in sent(mirror, model) {
            let known = self.sent.get(&at).is_some_and(|past| past.contains(&there));
            assert!(known, "Linux never sent {at:?} to {there}: {:?}", self.sent.get(&at));
        }
    }
}

/// The routers with interfaces that are on, for IPv4 (true) and IPv6.
fn on(mirror: &Mirror, model: &Model) -> BTreeSet<(NamespaceId, bool)> {
    let interfaces = model.interfaces.iter().filter_map(|(id, i)| Some((mirror.link_of(*id)?.0, i)));
    let families =
        |(namespace, i): (NamespaceId, &Interface)| [(namespace, true, i.ipv4), (namespace, false, i.ipv6)];
    interfaces.flat_map(families).filter(|(.., on)| *on).map(|(namespace, v4, _)| (namespace, v4)).collect()
}

/// Where the fast path sends packets of routers that are on. Those that pass to the kernel are left out.
fn sent(mirror: &Mirror, model: &Model) -> Vec<((NamespaceId, IpAddr), String)> {
    let mut sent = Vec::new();
    for router in mirror.routers() {
        let Some(tables) = router.router.and_then(|id| model.routers.get(&id)) else { continue };
        let on = on(mirror, model);
        let mut add = |address: IpAddr, target: Option<&Target>| {
            let goes = target.filter(|_| on.contains(&(router.namespace, address.is_ipv4())));
            let there = goes.and_then(|target| way(mirror, model, target));
            sent.extend(there.map(|there| ((router.namespace, address), there)));
        };
        for address in ADDRESSES4 {
            add(IpAddr::V4(address.into()), longest(&tables.routes4, address));
        }
        for address in ADDRESSES6 {
            add(IpAddr::V6(address.into()), longest(&tables.routes6, address));
        }
    }
    sent
}

fn longest<A: Address>(routes: &BTreeMap<Prefix<A>, Target>, address: A) -> Option<&Target> {
    let holds = routes.iter().filter(|(prefix, _)| prefix.contains(address));
    holds.max_by_key(|(prefix, _)| prefix.length()).map(|(_, target)| target)
}

/// The way of packets. `None`: to the kernel, also if the interface is gone or does not transmit.
fn way(mirror: &Mirror, model: &Model, target: &Target) -> Option<String> {
    let transmits = |id: &InterfaceId| model.interfaces.get(id).is_some_and(|i| i.transmit);
    match target {
        Target::Pass { .. } => None,
        Target::Hop(hop) => {
            let link = mirror.link_of(hop.interface).filter(|_| transmits(&hop.interface))?;
            Some(format!("{link:?} {:?}", hop.gateway))
        }
        Target::Multi(members) => {
            let ways = members
                .iter()
                .map(|(target, weight)| Some(format!("[{} x{weight}]", way(mirror, model, target)?)));
            ways.collect()
        }
    }
}

/// Applies a plan step by step. An address that has a route before and after the plan has one at each step.
fn apply(model: &mut Model, mirror: &Mirror, past: &mut Past, ops: &[Op]) {
    model.is_behind = mirror.is_behind();
    let mut after = model.clone();
    after.apply(ops);
    let gone: BTreeSet<_> =
        ops.iter().filter_map(|o| if let Op::RouterGone(r) = o { Some(*r) } else { None }).collect();
    let routers: Vec<RouterId> = model.routers.keys().copied().filter(|id| !gone.contains(id)).collect();
    let states = |model: &Model| routers.iter().map(|id| model.covered(*id, &ADDRESSES4)).collect::<Vec<_>>();
    let (start, end) = (states(model), states(&after));
    for op in ops {
        model.apply_one(op);
        for ((now, start), end) in
            states(model).iter().flatten().zip(start.iter().flatten()).zip(end.iter().flatten())
        {
            assert!(*now || !(*start && *end), "no route in between: {op:?}");
        }
        past.check(mirror, model);
    }
    past.forget();
    let routes4: usize = mirror.routers().map(|r| mirror.routes4(r.namespace).count()).sum();
    assert_eq!(routes4, model.routers.values().map(|r| r.routes4.len()).sum::<usize>());
}

/// `routes_per_plan` applies to namespaces other than the host.
fn check(seed: u64, steps: usize, routes_per_plan: usize) {
    let (mut dice, mut world) = (Dice(seed), World::new());
    let limits = Limits { routes_per_plan, ..Limits::default() };
    let (mut mirror, mut model, mut past) = (Mirror::new(limits), Model::default(), Past::default());
    mirror.admit_connections();
    world.events().into_iter().for_each(|event| mirror.observe(event));
    for _ in 0..steps {
        world.step(&mut dice).into_iter().for_each(|event| mirror.observe(event));
        if dice.roll(3) == 0 {
            past.note(&world);
            let ops = mirror.plan();
            mirror.check();
            apply(&mut model, &mirror, &mut past, &ops);
        }
    }
    world.find().into_iter().for_each(|event| mirror.observe(event));
    past.note(&world);
    loop {
        let ops = mirror.plan();
        mirror.check();
        apply(&mut model, &mirror, &mut past, &ops);
        if !mirror.is_behind() {
            break;
        }
    }
    let mut fresh = Bench { mirror: Mirror::new(Limits::default()), model: Model::default() };
    fresh.mirror.admit_connections();
    let everything = world.events();
    fresh.after(everything);
    assert_eq!(
        told(&mirror, &model),
        told(&fresh.mirror, &fresh.model),
        "seed {seed}, {steps} steps, {routes_per_plan}"
    );
}

/// One route changes at a time, and one is planned at a time, so several change while they wait.
fn check_routes(seed: u64, steps: usize) {
    let (mut dice, mut world) = (Dice(seed), World::new());
    let limits = Limits { routes_per_plan: 1, ..Limits::default() };
    let (mut mirror, mut model, mut past) = (Mirror::new(limits), Model::default(), Past::default());
    mirror.admit_connections();
    world.events().into_iter().for_each(|event| mirror.observe(event));
    for _ in 0..steps {
        world.step4(&mut dice).into_iter().for_each(|event| mirror.observe(event));
        if dice.roll(2) == 0 {
            past.note(&world);
            let ops = mirror.plan();
            mirror.check();
            apply(&mut model, &mirror, &mut past, &ops);
        }
    }
}

proptest! {
    #![proptest_config(crate::cases(200))]
    #[test]
    fn incremental_equals_from_scratch(seed: u64, steps in 1usize..120, routes_per_plan in 1usize..40) {
        check(seed, steps, routes_per_plan);
    }

    #[test]
    fn packets_go_where_linux_sent_them(seed: u64) {
        check_routes(seed, 100);
    }
}
