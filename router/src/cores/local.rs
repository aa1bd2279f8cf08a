//! Local delivery that follows: the network stack does its work for a local socket on the core where the socket is read.
//!
//! Linux does this by receive flow steering (`get_rps_cpu`, net/core/dev.c; `Documentation/networking/scaling.rst`). A
//! reader of a connected socket leaves its core in a table. Packets that XDP passes up are handed to that core. A flow
//! changes to another core only when all earlier packets are done, as V8 requires. There is one table of sockets for the
//! whole machine, and a table of flows for each RX queue. When Linux starts, they have no entries. If a table has
//! entries, somebody else has set it, and it is left as it is.
//!
//! Forwarded packets see none of this. To look sockets up in XDP instead, every packet would pay, and programs would have
//! to follow each read and the packets that still wait on each core. The tables of Linux do just that.

use super::{
    is_gone,
    knob::{Knob, Value, What, number_of},
    knobs::Knobs,
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, fmt, io};

/// The entries of the table of sockets, four bytes each. Two sockets that share an entry take it from each other, and
/// packets may then overtake others. So there are many more entries than busy sockets. Linux rounds up to a power of two.
const SOCKETS: u32 = 65536;
/// The fewest entries of a queue's table of flows.
const LEAST_FLOWS: u32 = 1024;

/// One of the tables.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Table {
    /// The core where each socket of the machine is read.
    Sockets,
    /// The core of each flow of an RX queue.
    Flows { device: String, queue: u16 },
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Table::Sockets => f.write_str("net.core.rps_sock_flow_entries"),
            Table::Flows { device, queue } => write!(f, "rps_flow_cnt of queue {queue} of {device}"),
        }
    }
}

/// How far local delivery follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Following {
    /// The entries of the table of sockets; 0: it has none, or the number is unknown.
    pub sockets: u32,
    /// The number of RX queues of all present ports.
    pub queues: usize,
    /// The number of these queues whose local packets follow.
    pub follow: usize,
}

/// Gives the tables entries.
#[derive(Debug, Default)]
pub struct Local {
    /// The tables that had entries after the last look.
    filled: BTreeSet<Table>,
}

impl Local {
    /// Gives entries to the table of sockets and to the tables of these devices, where they have none. Saves the originals
    /// first. Returns how far packets follow, and the problems, as sentences.
    pub fn look<'a>(
        &mut self,
        knobs: &mut Knobs,
        devices: impl Iterator<Item = &'a str>,
    ) -> (Following, Vec<String>) {
        let before = std::mem::take(&mut self.filled);
        let (mut following, mut conditions) = (Following::default(), Vec::new());
        let devices: Vec<(&str, Vec<u16>)> =
            devices.map(|device| (device, knobs.roots.rx_queues(device))).collect();
        following.queues = devices.iter().map(|(_, queues)| queues.len()).sum();
        if following.queues == 0 {
            return (following, conditions);
        }
        let mut fill = |table: Table, wanted| match fill(knobs, &table, wanted, before.contains(&table)) {
            Ok((entries, condition)) => {
                conditions.extend(condition);
                self.filled.insert(table);
                Some(entries)
            }
            Err(error) => {
                // A device may vanish during a look.
                if table == Table::Sockets || !is_gone(&error) {
                    conditions.push(stays(&table, &error));
                }
                None
            }
        };
        // Without the table of sockets, the others are useless and are left alone.
        let Some(sockets) = fill(Table::Sockets, SOCKETS) else { return (following, conditions) };
        following.sockets = sockets;
        for (device, queues) in devices {
            // Linux's documentation recommends this.
            let wanted = (sockets / queues.len().max(1) as u32).next_power_of_two().max(LEAST_FLOWS);
            let tables = queues.into_iter().map(|queue| Table::Flows { device: device.into(), queue });
            following.follow += tables.filter_map(|table| fill(table, wanted)).count();
        }
        (following, conditions)
    }
}

/// Gives a table entries if it has none. Returns its entries, and a problem, as a sentence, if it `had` entries before.
fn fill(knobs: &mut Knobs, table: &Table, wanted: u32, had: bool) -> io::Result<(u32, Option<String>)> {
    let device = match table {
        Table::Sockets => String::new(),
        Table::Flows { device, .. } => device.clone(),
    };
    let ifindex = number_of(&knobs.roots, &device);
    let knob = Knob { device, what: What::Table { table: table.clone(), ifindex } };
    match knobs.read(&knob)? {
        Some(Value::Entries(0)) => {}
        Some(Value::Entries(entries)) => return Ok((entries, None)),
        _ => return Err(io::Error::from_raw_os_error(libc::ENOENT)),
    }
    knobs.set(&knob, &Value::Entries(wanted))?;
    let condition = || format!("{table} had become 0; Millrace sets it again (experimental.local)");
    Ok((wanted, had.then(condition)))
}

fn stays(table: &Table, error: &io::Error) -> String {
    let why = match error.kind() {
        io::ErrorKind::NotFound => {
            " (the kernel lacks receive flow steering, CONFIG_RPS, or this PID namespace cannot see the machine's first network \
             namespace)"
        }
        _ => "",
    };
    format!("local packets stay on the cores that receive them: {table}: {error}{why}")
}

#[cfg(test)]
mod tests {
    use super::{
        super::{fake::Fake, tree::Tree},
        *,
    };
    use std::fs;

    const TABLE: &str = "proc/sys/net/core/rps_sock_flow_entries";

    /// eth0 with two queues, and eth1 with one.
    struct World {
        tree: Tree,
        local: Local,
        knobs: Knobs,
    }

    impl World {
        fn new(file: &str) -> World {
            let tree = Tree::new();
            tree.write(TABLE, "0\n");
            tree.device("eth0", 2, true);
            tree.device("eth1", 1, true);
            World { local: Local::default(), knobs: World::knobs(&tree, file), tree }
        }

        fn knobs(tree: &Tree, file: &str) -> Knobs {
            Knobs::open(tree.path(file), tree.roots(), Fake::default())
        }

        fn look(&mut self) -> (Following, Vec<String>) {
            self.local.look(&mut self.knobs, ["eth0", "eth1"].into_iter())
        }

        fn put_back(&mut self) {
            assert_eq!(self.knobs.put_back(), Vec::<String>::new());
        }

        /// The entries of the table of sockets, and of the tables of the queues.
        fn entries(&self) -> [u32; 4] {
            let files = [TABLE, &flows("eth0", 0), &flows("eth0", 1), &flows("eth1", 0)];
            files.map(|file| self.tree.read(file).trim().parse().unwrap())
        }
    }

    fn flows(device: &str, queue: u16) -> String {
        format!("sys/class/net/{device}/queues/rx-{queue}/rps_flow_cnt")
    }

    fn all(sockets: u32) -> Following {
        Following { sockets, queues: 3, follow: 3 }
    }

    #[test]
    fn tables_get_entries_and_are_restored() {
        let mut world = World::new("m.cores");
        for _ in 0..2 {
            assert_eq!(world.look(), (all(65536), vec![]));
            assert_eq!(world.entries(), [65536, 32768, 32768, 65536]);
        }
        // The daemon is killed. The next one finds the tables filled, and restores the originals.
        (world.local, world.knobs) = (Local::default(), World::knobs(&world.tree, "m.cores"));
        assert_eq!(world.look(), (all(65536), vec![]));
        world.put_back();
        assert_eq!(world.entries(), [0; 4]);
        assert!(!world.tree.path("m.cores").exists());
    }

    #[test]
    fn a_table_that_somebody_has_set_is_left_alone() {
        let mut world = World::new("m.cores");
        world.tree.write(TABLE, "4096\n");
        world.tree.write(&flows("eth0", 1), "256\n");
        assert_eq!(world.look(), (all(4096), vec![]));
        assert_eq!(world.entries(), [4096, 2048, 256, 4096]);
        // The same holds for a table that is set later.
        world.tree.write(&flows("eth1", 0), "512\n");
        assert_eq!(world.look(), (all(4096), vec![]));
        world.put_back();
        assert_eq!(world.entries(), [4096, 0, 256, 512]);
    }

    #[test]
    fn an_emptied_table_is_reported_and_ports_come_and_go() {
        let mut world = World::new("m.cores");
        world.look();
        world.tree.write(TABLE, "0\n");
        let (following, conditions) = world.look();
        assert_eq!((following, conditions.len()), (all(65536), 1));
        assert!(conditions[0].starts_with("net.core.rps_sock_flow_entries had become 0"), "{conditions:?}");
        assert_eq!(world.look(), (all(65536), vec![]));
        world.tree.remove("sys/class/net/eth0");
        assert_eq!(world.look(), (Following { queues: 1, follow: 1, ..all(65536) }, vec![]));
        // Another device of that name appears.
        world.tree.device("eth0", 1, true);
        world.tree.write("sys/class/net/eth0/ifindex", "12\n");
        assert_eq!(world.look(), (Following { queues: 2, follow: 2, ..all(65536) }, vec![]));
        world.put_back();
        assert_eq!((world.tree.read(TABLE), world.tree.read(&flows("eth0", 0))), ("0".into(), "0".into()));
    }

    #[test]
    fn without_ports_the_machine_is_left_alone() {
        let mut world = World::new("m.cores");
        ["eth0", "eth1"].iter().for_each(|device| world.tree.remove(&format!("sys/class/net/{device}")));
        assert_eq!(world.look(), (Following::default(), vec![]));
        assert_eq!(world.tree.read(TABLE), "0\n");
    }

    #[test]
    fn failures_are_reported() {
        let none = Following { sockets: 0, queues: 3, follow: 0 };
        // The originals cannot be saved.
        let mut world = World::new("nowhere/m.cores");
        let (following, conditions) = world.look();
        assert_eq!((following, conditions.len(), world.entries()), (none, 1, [0; 4]));
        assert!(conditions[0].contains("the original value cannot be saved"), "{conditions:?}");
        // The kernel has no such table.
        let mut world = World::new("m.cores");
        fs::remove_file(world.tree.path(TABLE)).unwrap();
        let (following, conditions) = world.look();
        assert_eq!((following, conditions.len()), (none, 1));
        assert!(conditions[0].contains("CONFIG_RPS"), "{conditions:?}");
        assert_eq!(world.tree.read(&flows("eth0", 0)), "0\n");
        // One queue refuses, and the others follow.
        let mut world = World::new("m.cores");
        fs::remove_file(world.tree.path(&flows("eth0", 1))).unwrap();
        world.tree.write(&format!("{}/x", flows("eth0", 1)), "");
        let (following, conditions) = world.look();
        assert_eq!(
            (following, conditions.len()),
            (Following { follow: 2, ..all(65536) }, 1),
            "{conditions:?}"
        );
    }
}
