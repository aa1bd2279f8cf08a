//! Batches run while the tables are written. Every packet leaves by an old or a new next hop of its net, never by a
//! mixture.

use super::{reference::rewritten, ways::Egress, *};
use crate::fib::{grace::Readers, synthetic::Random};

const NETS: u32 = 4;
const GATEWAYS: u32 = 3;

/// Net n leaves by interface n + 1 and by gateways of its own, so no value of one net is right for another.
fn mac(net: u32, gateway: u32) -> Mac {
    Mac([2, 0, 0, 1, net as u8, gateway as u8])
}

fn gateway(net: u32, gateway: u32) -> IpAddr {
    IpAddr::from([10, 200, net as u8, gateway as u8])
}

fn out(net: u32) -> InterfaceId {
    net as InterfaceId + 1
}

/// One of the net's gateways, or two with weights.
fn somewhere(random: &mut Random, net: u32) -> Target {
    let mut hop = || {
        let gateway = Some(gateway(net, random.below(GATEWAYS)));
        Target::Hop(Hop { interface: out(net), gateway, mtu: 1500 })
    };
    let members = [(hop(), 1), (hop(), 2)];
    if random.below(3) == 0 { Target::Multi(members.into()) } else { members[0].0.clone() }
}

/// A change of the net's own route, which is never withdrawn, or of one within it.
fn change(random: &mut Random) -> Op {
    let net = random.below(NETS);
    let target = Some(somewhere(random, net)).filter(|_| random.below(3) > 0);
    let n = random.below(3);
    match random.below(6) {
        0 => cover4(net, somewhere(random, net)),
        1 => cover6(net, somewhere(random, net)),
        2 => Op::Route6(0, format!("2001:db8:{net:x}:{n:x}::/64").parse().unwrap(), target),
        3 => Op::Route6(0, format!("2001:db8:{net:x}:{n:x}::1/128").parse().unwrap(), target),
        4 => Op::Route4(0, format!("10.{net}.{n}.0/24").parse().unwrap(), target),
        _ => Op::Route4(0, format!("10.{net}.{n}.128/27").parse().unwrap(), target),
    }
}

fn cover4(net: u32, target: Target) -> Op {
    Op::Route4(0, format!("10.{net}.0.0/16").parse().unwrap(), Some(target))
}

fn cover6(net: u32, target: Target) -> Op {
    Op::Route6(0, format!("2001:db8:{net:x}::/48").parse().unwrap(), Some(target))
}

/// A packet to a net in which routes change.
fn packet(random: &mut Random) -> (u32, Vec<u8>) {
    let (net, n) = (random.below(NETS), random.below(3));
    let frame = if random.below(2) == 0 {
        udp4(
            [198, 51, 100, random.below(200) as u8],
            [10, net as u8, n as u8, 120 + random.below(16) as u8],
            64,
            0,
        )
    } else {
        udp6(
            &format!("2001:db8:ff::{:x}", random.below(200)),
            &format!("2001:db8:{net:x}:{n:x}::{}", random.below(2)),
            64,
            0,
        )
    };
    (net, frame)
}

/// A worker's chain, and batches for it.
struct Worker {
    chain: Chain,
    packets: Vec<(u32, Vec<u8>)>,
}

impl Worker {
    fn new(memory: Arc<HeapMemory>, seed: u64) -> Worker {
        let route = Route::new(memory);
        let chain =
            vec![Box::new(Check) as Box<dyn Element>, Box::new(route), Box::new(Ttl), Box::new(Rewrite)];
        let mut random = Random(seed);
        Worker { chain: Chain::new(chain).unwrap(), packets: (0..32).map(|_| packet(&mut random)).collect() }
    }

    fn run(&mut self) {
        // No gateway is on interface 5.
        let data: Vec<_> = self.packets.iter().map(|(_, frame)| (frame.clone(), ingress(5, 0))).collect();
        for ((verdict, left), (net, came)) in
            run(&mut self.chain, &READY, &data).into_iter().zip(&self.packets)
        {
            let interface = interface(out(*net));
            assert_eq!(verdict, Verdict::To(interface.port), "{came:02x?}");
            let right = (0..GATEWAYS).any(|gateway| {
                let mac = Some(mac(*net, gateway));
                let egress =
                    Egress { id: out(*net), interface: interface.clone(), mtu: 1500, connected: false, mac };
                left == rewritten(&came[14..], &egress)
            });
            assert!(right, "{came:02x?} left as {left:02x?}");
        }
    }
}

#[test]
fn packets_leave_by_an_old_or_a_new_next_hop_whatever_is_written() {
    let capacity = Capacity {
        fib_blocks: 600,
        fib_tails: 300,
        nexthops: 64,
        neighbour_buckets: 8,
        interface_buckets: 8,
        routers: 1,
    };
    let mut tables = Tables::new(Arc::new(HeapMemory::new(capacity)));
    let mut random = Random(7);
    for net in 0..NETS {
        tables.apply(&Op::Interface(out(net), interface(out(net)))).unwrap();
        for n in 0..GATEWAYS {
            tables.apply(&Op::Neighbour(out(net), gateway(net, n), Some(mac(net, n)))).unwrap();
        }
        tables.apply(&cover4(net, somewhere(&mut random, net))).unwrap();
        tables.apply(&cover6(net, somewhere(&mut random, net))).unwrap();
    }
    let readers = Readers::default();
    let memory = tables.memory().clone();
    let worker = |n: usize| Worker::new(memory.clone(), n as u64);
    let write = || {
        for round in 0..2_000 {
            tables.apply(&change(&mut random)).unwrap();
            if round % 4 == 0 {
                let epoch = tables.seal();
                readers.grace_period();
                tables.reclaim(epoch).unwrap();
            }
        }
    };
    readers.race(worker, Worker::run, write);
}
