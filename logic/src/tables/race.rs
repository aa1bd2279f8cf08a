//! Readers that race with the writer of the tables.

use super::{answer::answer, tests::plain_interface, *};
use crate::{
    fib::{grace::Readers, lookup, synthetic::Random},
    memory::{Capacity, HeapMemory},
    net::Tag,
    plan::{Hop, Interface, Target},
    reason::Reason,
};
use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicU64, Ordering::Acquire},
};

#[derive(Clone)]
struct Shared(Arc<HeapMemory>);

impl Memory for Shared {
    fn fib(&self) -> &[AtomicU32] {
        self.0.fib()
    }
    fn fib_tails(&self) -> &[AtomicU64] {
        self.0.fib_tails()
    }
    fn nexthops(&self) -> &[AtomicU64] {
        self.0.nexthops()
    }
    fn neighbour_index(&self) -> &[AtomicU64] {
        self.0.neighbour_index()
    }
    fn interface_index(&self) -> &[AtomicU64] {
        self.0.interface_index()
    }
    fn routers(&self) -> &[AtomicU64] {
        self.0.routers()
    }
    fn firewalls(&self) -> &[AtomicU64] {
        self.0.firewalls()
    }
    fn interface_groups(&self) -> &[AtomicU64] {
        self.0.interface_groups()
    }
}

/// The interface is either (MAC 1, untagged) or (MAC 2, VLAN 7).
fn looks(second: bool, transmit: bool) -> Interface {
    let vlan = Vlan::NONE.push(Tag { vid: 7, service: false }).unwrap();
    let plain = plain_interface(if second { 2 } else { 1 });
    Interface { vlan: if second { vlan } else { Vlan::NONE }, transmit, ..plain }
}

fn change(random: &mut Random) -> Op {
    let gateway = [10, 0, 0, 1 + random.below(3) as u8].into();
    let hop = |gateway| Target::Hop(Hop { interface: 1, gateway, mtu: 1500 });
    let group = Target::Multi([(hop(Some(gateway)), 1), (hop(None), 2)].into());
    match random.below(8) {
        0 => Op::Interface(1, looks(random.below(2) == 0, random.below(4) > 0)),
        1..=3 => {
            let mac = Mac([2, 0, 0, 0, 1, gateway_byte(gateway)]);
            Op::Neighbour(1, gateway, (random.below(3) > 0).then_some(mac))
        }
        _ => {
            let prefix = format!("10.{}.{}.0/24", random.below(2), random.below(3)).parse().unwrap();
            let target = [None, Some(hop(None)), Some(hop(Some(gateway))), Some(group)];
            Op::Route4(0, prefix, target[random.below(4) as usize].clone())
        }
    }
}

fn gateway_byte(gateway: IpAddr) -> u8 {
    match gateway {
        IpAddr::V4(a) => a.octets()[3],
        IpAddr::V6(_) => 0,
    }
}

fn check(memory: &Shared, random: &mut Random) {
    let destination = 0x0a00_0000 | random.below(2) << 16 | random.below(3) << 8 | random.below(4);
    let root = memory.routers()[0].load(Acquire);
    let mut leaf = lookup(memory, root, destination);
    if leaf.kind() == crate::fib::Kind::Group {
        let hash = random.below(1 << 31);
        leaf = super::choose(&memory.fib()[leaf.index() as usize * words::FIB_BLOCK..], hash);
    }
    let answer = answer(memory, leaf, IpAddr::from(destination.to_be_bytes()));
    assert!(
        matches!(answer.reason, None | Some(Reason::Unresolved | Reason::TxNotReady | Reason::SameBox)),
        "{answer:?}"
    );
    assert_eq!(answer.interface, Some(1));
    let second = answer.vlan != Vlan::NONE;
    assert_eq!(answer.source.0[5], if second { 2 } else { 1 }, "{answer:?}");
    if let (Some(mac), Some(neighbour)) = (answer.mac, answer.neighbour) {
        assert_eq!(mac.0[5], gateway_byte(neighbour), "{answer:?}");
    }
}

/// The default route covers everything. So a packet is forwarded or waits for a neighbour, whatever changes. The parts
/// of its new headers belong together.
#[test]
fn readers_see_whole_next_hops_and_no_holes() {
    let memory = Shared(Arc::new(HeapMemory::new(Capacity {
        fib_blocks: 256,
        fib_tails: 64,
        nexthops: 512,
        neighbour_buckets: 2,
        interface_buckets: 2,
        routers: 1,
    })));
    let mut tables = Tables::new(memory.clone());
    let gateway = Some([10, 0, 0, 1].into());
    let default = Target::Hop(Hop { interface: 1, gateway, mtu: 1500 });
    tables.apply(&Op::Interface(1, looks(false, true))).unwrap();
    tables.apply(&Op::Route4(0, "0.0.0.0/0".parse().unwrap(), Some(default))).unwrap();
    let readers = Readers::default();
    let read = |random: &mut Random| check(&memory, random);
    let write = || {
        let mut random = Random(11);
        for round in 0..5_000 {
            tables.apply(&change(&mut random)).unwrap();
            if round % 16 == 0 {
                let epoch = tables.seal();
                readers.grace_period();
                tables.reclaim(epoch).unwrap();
            }
        }
    };
    readers.race(|n| Random(n as u64), read, write);
}
