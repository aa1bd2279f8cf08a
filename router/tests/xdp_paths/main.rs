//! The kernel plane with paths of the user plane: which path a packet belongs to, compared with
//! `logic::paths::class`, and what becomes of it.

#[path = "../af_xdp/bed.rs"]
#[allow(dead_code)]
mod bed;
#[path = "../common/mod.rs"]
mod common;
mod made;
mod measure;
mod rules;
mod sockets;
mod table;
#[path = "../xdp_table/world.rs"]
#[allow(dead_code)]
mod world;

use common::{frame::Frame, in_new_namespace, run};
use logic::{
    paths::{
        class::Class,
        rows::{Otherwise, PathClass},
    },
    plan::RouterId,
};
use router::plane::{PathCounts, PathMaps, Plane};
use std::{collections::BTreeMap, sync::Arc};
use world::*;

/// The longest frame that a worker's frame of 2,048 bytes has room for.
const MOST_BYTES: u32 = 1792;

/// The routers that own packets for no interface: router 0 on p0, router 1 on p1.
fn own() -> BTreeMap<u8, RouterId> {
    [(0, 0), (1, 1)].into()
}

fn path(path: u16, otherwise: Otherwise, class: Class) -> PathClass {
    PathClass { path, class, otherwise }
}

/// The box of the table tests, with the program that has paths.
fn with_paths(settings: router::plane::Settings) -> (World, Arc<PathMaps>) {
    let mut w = World::with_queues(settings, 2);
    let maps = Arc::new(PathMaps::new(MOST_BYTES).unwrap());
    assert_eq!(maps.condition(), None);
    give_paths(&mut w.plane, &maps);
    (w, maps)
}

fn give_paths(plane: &mut Plane, maps: &Arc<PathMaps>) {
    plane.set_paths(maps).unwrap_or_else(|e| panic!("{e:#}"));
    plane.set_with_paths(true);
}

/// What a path has counted since `before`.
fn since(maps: &PathMaps, path: usize, before: &[PathCounts]) -> PathCounts {
    less(maps.counts()[path], before[path])
}

/// The paths that have counted something since `before`.
fn counted_since(maps: &PathMaps, before: &[PathCounts]) -> Vec<u16> {
    let counts = maps.counts();
    let since = |path: &u16| less(counts[usize::from(*path)], before[usize::from(*path)]);
    (0..64).filter(|path| since(path) != PathCounts::default()).collect()
}

fn less(now: PathCounts, before: PathCounts) -> PathCounts {
    let each = |a: [u64; 4], b: [u64; 4]| std::array::from_fn(|i| a[i] - b[i]);
    PathCounts {
        packets: now.packets - before.packets,
        bytes: now.bytes - before.bytes,
        ring_full: now.ring_full - before.ring_full,
        refused: now.refused - before.refused,
        up: each(now.up, before.up),
        dropped: each(now.dropped, before.dropped),
    }
}
