//! The online cores and what they share, from sysfs (`Documentation/ABI/stable/sysfs-devices-system-cpu`,
//! `Documentation/admin-guide/cputopology.rst`).

use super::{CoreId, Roots, cores, number, numbered};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

/// The online part of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Ascending.
    pub cores: Vec<CoreSite>,
    /// Caches of level 2 and above, by level and cores. Only online cores are listed.
    pub caches: Vec<Cache>,
}

/// Where a core is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreSite {
    pub id: CoreId,
    /// NUMA node; 0 where the machine has none.
    pub node: u16,
    pub socket: u16,
    /// The lowest of its hyper-thread siblings, itself included. Siblings share this number.
    pub physical: u16,
    /// Excluded from the scheduler's balancing (`isolcpus=`).
    pub isolated: bool,
    /// Without a tick while one thread runs (`nohz_full=`).
    pub nohz_full: bool,
}

/// A cache and the cores that share it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cache {
    pub level: u8,
    pub cores: BTreeSet<CoreId>,
}

impl Machine {
    /// Reads the machine as it is now.
    ///
    /// # Errors
    /// The list of online cores cannot be read. Everything else that is missing has a default.
    pub fn observe(roots: &Roots) -> io::Result<Machine> {
        let cpu = roots.sys("devices/system/cpu");
        let online = cores(&cpu.join("online")).filter(|online| !online.is_empty());
        let online = online
            .ok_or_else(|| io::Error::other(format!("no list of online cores in {}", cpu.display())))?;
        let set = |name| cores(&cpu.join(name)).unwrap_or_default();
        let (isolated, nohz_full, nodes) = (set("isolated"), set("nohz_full"), nodes(roots));
        let site = |&id: &CoreId| {
            let topology = cpu.join(format!("cpu{id}/topology"));
            let siblings = cores(&topology.join("thread_siblings_list")).unwrap_or_default();
            CoreSite {
                id,
                node: nodes.get(&id).copied().unwrap_or(0),
                // -1 where the firmware does not say.
                socket: number(&topology.join("physical_package_id")).unwrap_or(0),
                physical: siblings.first().copied().unwrap_or(id),
                isolated: isolated.contains(&id),
                nohz_full: nohz_full.contains(&id),
            }
        };
        Ok(Machine { cores: online.iter().map(site).collect(), caches: caches(roots, &online) })
    }

    /// The ids of all online cores.
    pub fn online(&self) -> BTreeSet<CoreId> {
        self.cores.iter().map(|core| core.id).collect()
    }
}

/// The NUMA node of each core.
fn nodes(roots: &Roots) -> BTreeMap<CoreId, u16> {
    let directory = roots.sys("devices/system/node");
    let mut nodes = BTreeMap::new();
    for node in numbered(&directory, "node").into_iter().filter_map(|node| u16::try_from(node).ok()) {
        let cores = cores(&directory.join(format!("node{node}/cpulist"))).unwrap_or_default();
        nodes.extend(cores.into_iter().map(|core| (core, node)));
    }
    nodes
}

fn caches(roots: &Roots, online: &BTreeSet<CoreId>) -> Vec<Cache> {
    let mut caches = BTreeSet::new();
    for core in online {
        let directory = roots.sys(format!("devices/system/cpu/cpu{core}/cache"));
        for index in numbered(&directory, "index") {
            let of = |name: &str| directory.join(format!("index{index}/{name}"));
            let level = number(&of("level")).filter(|level| *level >= 2);
            if let Some((level, cores)) = level.zip(cores(&of("shared_cpu_list"))) {
                caches.insert(Cache { level, cores: cores.intersection(online).copied().collect() });
            }
        }
    }
    caches.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::{super::tree::Tree, *};

    #[test]
    fn two_sockets_with_hyper_threads() {
        let tree = Tree::two_sockets();
        let machine = Machine::observe(&tree.roots()).unwrap();
        let site = |id, node, socket, physical| {
            let isolated = [3, 7].contains(&id);
            CoreSite { id, node, socket, physical, isolated, nohz_full: id == 7 }
        };
        assert_eq!(
            machine.cores,
            [
                site(0, 0, 0, 0),
                site(1, 0, 0, 1),
                site(2, 1, 1, 2),
                site(3, 1, 1, 3),
                site(4, 0, 0, 0),
                site(5, 0, 0, 1),
                site(7, 1, 1, 3),
            ],
            "core 6 is offline"
        );
        let caches: Vec<_> =
            machine.caches.iter().map(|c| (c.level, Vec::from_iter(c.cores.clone()))).collect();
        let expected: [(u8, &[u16]); 6] =
            [(2, &[0, 4]), (2, &[1, 5]), (2, &[2]), (2, &[3, 7]), (3, &[0, 1, 4, 5]), (3, &[2, 3, 7])];
        assert_eq!(caches, expected.map(|(level, cores)| (level, cores.to_vec())));
        assert_eq!(machine.online(), [0, 1, 2, 3, 4, 5, 7].into());
    }

    #[test]
    fn missing_files_have_defaults() {
        let tree = Tree::new();
        assert!(Machine::observe(&tree.roots()).is_err());
        tree.write("sys/devices/system/cpu/online", "0-1\n");
        tree.write("sys/devices/system/cpu/cpu1/topology/physical_package_id", "-1\n");
        let machine = Machine::observe(&tree.roots()).unwrap();
        let site = |id| CoreSite { id, node: 0, socket: 0, physical: id, isolated: false, nohz_full: false };
        assert_eq!(machine, Machine { cores: vec![site(0), site(1)], caches: Vec::new() });
    }
}
