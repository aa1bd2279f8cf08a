//! Whatever happens, and however it is cut into plans, the tables end up as if the final state had been dumped once.

use super::{
    world::{Dice, World},
    *,
};
use crate::plan::{Interface, InterfaceId, RouterId};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// What the tables hold, told without numbers.
#[derive(Debug, Default, PartialEq)]
struct Told {
    routers: BTreeMap<NamespaceId, (crate::plan::MultipathHash, BTreeSet<u32>)>,
    interfaces: BTreeMap<(NamespaceId, u32), Interface>,
    routes: BTreeMap<(NamespaceId, String), String>,
    neighbours: BTreeMap<((NamespaceId, u32), IpAddr), Mac>,
}

fn told(mirror: &Mirror, model: &Model) -> Told {
    let names: BTreeMap<RouterId, NamespaceId> =
        mirror.routers().filter_map(|r| Some((r.router?, r.namespace))).collect();
    let mut told = Told::default();
    for (id, router) in &model.routers {
        let namespace = names[id];
        told.routers.insert(namespace, (router.multipath, router.addresses.clone()));
        let routes4 = router.routes4.iter().map(|(p, t)| (p.to_string(), t));
        for (prefix, target) in routes4.chain(router.routes6.iter().map(|(p, t)| (p.to_string(), t))) {
            told.routes.insert((namespace, prefix), tell(mirror, target));
        }
    }
    for (id, interface) in &model.interfaces {
        let link = mirror.link_of(*id).expect("an interface of the tables is known");
        told.interfaces.insert(link, Interface { router: 0, ..interface.clone() });
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

/// Applies a plan step by step: an address that has a route before and after has one at each step.
fn apply(model: &mut Model, mirror: &Mirror, ops: &[Op]) {
    let addresses = [0x0a01_0101, 0x0a01_01ff, 0x0a01_8001, 0x0a02_0000, 0xc000_0201, 0x0800_0000];
    model.is_behind = mirror.is_behind();
    let mut after = model.clone();
    after.apply(ops);
    let gone: BTreeSet<_> =
        ops.iter().filter_map(|o| if let Op::RouterGone(r) = o { Some(*r) } else { None }).collect();
    let routers: Vec<RouterId> = model.routers.keys().copied().filter(|id| !gone.contains(id)).collect();
    let states = |model: &Model| routers.iter().map(|id| model.covered(*id, &addresses)).collect::<Vec<_>>();
    let (start, end) = (states(model), states(&after));
    for op in ops {
        model.apply_one(op);
        for ((now, start), end) in
            states(model).iter().flatten().zip(start.iter().flatten()).zip(end.iter().flatten())
        {
            assert!(*now || !(*start && *end), "no route in between: {op:?}");
        }
    }
    let routes4: usize = mirror.routers().map(|r| mirror.routes4(r.namespace).count()).sum();
    assert_eq!(routes4, model.routers.values().map(|r| r.routes4.len()).sum::<usize>());
}

/// `routes_per_plan`: of namespaces other than the host.
fn check(seed: u64, steps: usize, routes_per_plan: usize) {
    let (mut dice, mut world) = (Dice(seed), World::new());
    let limits = Limits { routes_per_plan, ..Limits::default() };
    let (mut mirror, mut model) = (Mirror::new(limits), Model::default());
    world.events().into_iter().for_each(|event| mirror.observe(event));
    for _ in 0..steps {
        world.step(&mut dice).into_iter().for_each(|event| mirror.observe(event));
        if dice.roll(3) == 0 {
            let ops = mirror.plan();
            apply(&mut model, &mirror, &ops);
        }
    }
    loop {
        let ops = mirror.plan();
        apply(&mut model, &mirror, &ops);
        if !mirror.is_behind() {
            break;
        }
    }
    let mut fresh = Bench { mirror: Mirror::new(Limits::default()), model: Model::default() };
    let everything = world.events();
    fresh.after(everything);
    assert_eq!(
        told(&mirror, &model),
        told(&fresh.mirror, &fresh.model),
        "seed {seed}, {steps} steps, {routes_per_plan}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn incremental_equals_from_scratch(seed: u64, steps in 1usize..120, routes_per_plan in 1usize..40) {
        check(seed, steps, routes_per_plan);
    }
}

/// Seeds on their own: more cases than proptest keeps time for.
#[test]
#[ignore = "long"]
fn incremental_equals_from_scratch_for_long() {
    for seed in 0..100_000 {
        check(seed, 60, 1 + seed as usize % 40);
    }
}
