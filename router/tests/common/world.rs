//! The kernel plane with two ports, and a host behind the second.

use super::{SMALL, frame::vlan, ifindex, run};
use logic::{
    net::Mac,
    plan::{Hop, Interface, MultipathHash, Op, ReversePath, Target},
    reason::Reason,
    tables::Tables,
};
use router::plane::{MappedMemory, Mode, Plane, PortLink, Settings, policy::PlaneMaps};
use std::{path::Path, sync::Arc, time::Duration};

/// MAC addresses of the ports.
pub const A: Mac = Mac([2, 0, 0, 0, 0, 1]);
pub const B: Mac = Mac([2, 0, 0, 0, 0, 2]);
const NEIGHBOUR: Mac = Mac([2, 0, 0, 0, 7, 1]);
/// A directory that does not exist: nothing is pinned.
const NOWHERE: &str = "/sys/fs/bpf/nowhere";
pub const SETTINGS: Settings = Settings {
    capacity: SMALL,
    interface_rows: 8,
    sample_interval: 128,
    exception_pps: 0,
    control_pps: 0,
    queue_rows: false,
    help: true,
};

/// Port 0 is p0, with q0 at the other end of its wire. Port 1 is p1, with 10.0.2.9 behind it. The program is
/// attached to p0.
pub struct World {
    pub plane: Plane,
    _tables: Tables<Arc<MappedMemory>>,
    pub link: PortLink,
}

impl World {
    /// p0 has this many queues, and p1 has one.
    pub fn new(queues: u16) -> World {
        super::count_polls();
        for (n, queues) in [queues, 1].into_iter().enumerate() {
            let queues = format!("numrxqueues {queues} numtxqueues {queues}");
            run(&format!("ip link add p{n} {queues} type veth peer name q{n} {queues}"));
        }
        ["p0", "q0", "p1", "q1"].iter().for_each(|device| drop(run(&format!("ip link set {device} up"))));
        let (plane, tables) = loaded();
        let link = PortLink::attach(plane.program(), ifindex("p0"), Mode::Native).unwrap();
        // What the program may do with packets of a port depends on how it is attached.
        plane.set_port(0, ifindex("p0"), true, true).unwrap();
        World { plane, _tables: tables, link }
    }

    /// Starts counting packets that are lost after the redirect.
    pub fn count_losses(&self) {
        self.plane.count_losses(Path::new(NOWHERE));
    }

    pub fn forwarded(&self) -> u64 {
        self.plane.counters().unwrap().interfaces.get(&1).map_or(0, |c| c.forwarded_packets)
    }

    /// Packets of all routers and ports with this reason: not forwarded, or lost.
    pub fn charged(&self, reason: Reason) -> u64 {
        let charges = self.plane.counters().unwrap().charges;
        charges.into_iter().filter(|((_, why), _)| *why == reason).map(|(_, packets)| packets).sum()
    }
}

/// Loads the plane, with the tables of [`World`].
pub fn loaded() -> (Plane, Tables<Arc<MappedMemory>>) {
    loaded_watched(None)
}

/// Like [`loaded`], with the maps of a watch on policies.
pub fn loaded_watched(maps: Option<&PlaneMaps>) -> (Plane, Tables<Arc<MappedMemory>>) {
    let plane = Plane::load_watched(SETTINGS, maps).unwrap_or_else(|e| panic!("{e:#}"));
    assert_eq!(plane.conditions(), [""; 0]);
    plane.confirm_until(Duration::from_secs(1 << 32)).unwrap();
    for (id, device) in (0..).zip(["p0", "p1"]) {
        plane.set_port(id, ifindex(device), true, true).unwrap();
    }
    let mut tables = Tables::new(plane.memory());
    // The table assumes this MTU, whatever the device has.
    let hop = Target::Hop(Hop { interface: 2, gateway: None, mtu: 1500 });
    let local = Target::Pass { reason: Reason::Local, unicast: true };
    for op in [
        Op::Port { port: 0, frags: false },
        Op::Port { port: 1, frags: false },
        Op::Router { router: 0, multipath: MultipathHash::default() },
        Op::LocalAddresses { router: 0, addresses: [0x0a00_0101].into() },
        Op::Interface(1, interface(0, A)),
        Op::Interface(2, interface(1, B)),
        Op::Route4(0, "10.0.1.1/32".parse().unwrap(), Some(local.clone())),
        Op::Route4(0, "10.0.2.0/24".parse().unwrap(), Some(hop.clone())),
        Op::Neighbour(2, "10.0.2.9".parse().unwrap(), Some(NEIGHBOUR)),
        Op::Route6(0, "fd00:1::1/128".parse().unwrap(), Some(local)),
        Op::Route6(0, "fd00:2::/64".parse().unwrap(), Some(hop)),
        Op::Neighbour(2, "fd00:2::9".parse().unwrap(), Some(NEIGHBOUR)),
    ] {
        tables.apply(&op).unwrap();
    }
    (plane, tables)
}

fn interface(port: u8, mac: Mac) -> Interface {
    Interface {
        router: 0,
        port,
        vlan: vlan(&[]),
        mac,
        ipv4: true,
        ipv6: true,
        transmit: true,
        reverse_path: ReversePath::Off,
        redirects: false,
        accept_local: false,
        priority_tags: false,
        look_at_sources: false,
        group: 0,
    }
}
