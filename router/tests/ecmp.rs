//! Linux is the judge of which member of a multipath route a packet takes. This kernel forwards frames, and
//! the same frames run through the program.

mod common;

use common::{
    frame::{Frame, fix_checksum},
    ifindex, in_new_namespace, run,
    wire::Wire,
    world::{A, B, loaded},
};
use fastrand::Rng;
use libbpf_sys as sys;
use logic::{
    net::Mac,
    observe::MultipathKey,
    plan::{Hop, MultipathHash, Op, Target},
    reason::Reason,
};
use router::linux::multipath::{Ecmp, MultipathKeys};
use std::{
    fs,
    os::fd::AsRawFd,
    thread,
    time::{Duration, Instant},
};

/// Weights of the members, in their order.
const WEIGHTS: [u16; 6] = [3, 1, 7, 2, 5, 9];
const FRAMES: usize = 1500;
const XDP_PASS: u32 = 2;
const XDP_REDIRECT: u32 = 4;
const SEED: &str = "net.ipv4.fib_multipath_hash_seed";

fn gateway(v6: bool, member: usize) -> String {
    if v6 { format!("fd00:2::{:x}", 0x20 + member) } else { format!("10.0.2.{}", 32 + member) }
}

fn mac(member: usize) -> Mac {
    Mac([2, 0, 0, 0, 9, member as u8])
}

/// Makes two wires, and two groups of each family: one listed in the route, one of nexthop objects.
fn build() {
    for n in 0..2 {
        run(&format!("ip link add p{n} address {} type veth peer name q{n}", [A, B][n]));
        run(&format!("ip link set p{n} up"));
        run(&format!("ip link set q{n} up"));
        run(&format!("ip addr add 10.0.{}.1/24 dev p{n}", n + 1));
        run(&format!("ip addr add fd00:{}::1/64 dev p{n} nodad", n + 1));
        for key in
            ["ipv4.conf.p{}.rp_filter=0", "ipv4.conf.p{}.send_redirects=0", "ipv6.conf.q{}.disable_ipv6=1"]
        {
            run(&format!("sysctl -qw net.{}", key.replace("{}", &n.to_string())));
        }
    }
    run("sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 net.ipv6.conf.all.forwarding=1");
    for v6 in [false, true] {
        let mut hops = String::new();
        let mut ids = Vec::new();
        for (member, weight) in WEIGHTS.into_iter().enumerate() {
            let (gateway, id) = (gateway(v6, member), 100 * usize::from(v6) + member + 1);
            let family = if v6 { "-6 " } else { "" };
            run(&format!("ip neigh add {gateway} dev p1 lladdr {}", mac(member)));
            run(&format!("ip {family}nexthop add id {id} via {gateway} dev p1"));
            hops.push_str(&format!(" nexthop via {gateway} dev p1 weight {weight}"));
            ids.push(format!("{id},{weight}"));
        }
        let (id, listed, named) =
            if v6 { (1000, "fd20::/16", "fd21::/16") } else { (999, "10.20.0.0/16", "10.21.0.0/16") };
        run(&format!("ip nexthop add id {id} group {}", ids.join("/")));
        run(&format!("ip route add {listed}{hops}"));
        run(&format!("ip route add {named} nhid {id}"));
    }
}

/// The operations that the mirror makes of these routes.
fn routes() -> Vec<Op> {
    let group = |v6| -> Target {
        let member = |(member, weight)| {
            let gateway = Some(gateway(v6, member).parse().unwrap());
            (Target::Hop(Hop { interface: 2, gateway, mtu: 1500 }), weight)
        };
        Target::Multi(WEIGHTS.into_iter().enumerate().map(member).collect())
    };
    let mut ops = Vec::new();
    for prefix in ["10.20.0.0/16", "10.21.0.0/16"] {
        ops.push(Op::Route4(0, prefix.parse().unwrap(), Some(group(false))));
    }
    for prefix in ["fd20::/16", "fd21::/16"] {
        ops.push(Op::Route6(0, prefix.parse().unwrap(), Some(group(true))));
    }
    for v6 in [false, true] {
        let neighbour = |member| Op::Neighbour(2, gateway(v6, member).parse().unwrap(), Some(mac(member)));
        ops.extend((0..WEIGHTS.len()).map(neighbour));
    }
    ops
}

/// A packet of some flow, or an error about one: protocols with and without ports, fragments, errors, headers
/// cut short.
fn packet(rng: &mut Rng) -> Frame {
    if rng.bool() { ipv4(rng) } else { ipv6(rng) }
}

fn ipv4(rng: &mut Rng) -> Frame {
    let source = format!(
        "{}.{}.{}.{}",
        *rng.choice(&[11, 100, 198, 222]).unwrap(),
        rng.u8(..),
        rng.u8(..),
        rng.u8(..)
    );
    let destination = format!("10.{}.{}.{}", rng.u8(20..22), rng.u8(..), rng.u8(..));
    let mut behind = vec![0; *rng.choice(&[0, 2, 4, 7, 8, 20, 27, 28, 29, 40]).unwrap()];
    rng.fill(&mut behind);
    let protocol = match rng.u8(0..4) {
        0 => *rng.choice(&[6, 17]).unwrap(),
        1 => *rng.choice(&[33, 50, 51, 132, 136, 47, 4, 41, 137]).unwrap(),
        2 => 1,
        _ => rng.u8(..),
    };
    if protocol == 1 && !behind.is_empty() {
        behind[0] = *rng.choice(&[0, 3, 4, 5, 8, 11, 12, 13]).unwrap();
    }
    let fragment = *rng.choice(&[0, 0, 0, 0x4000, 0x2000, 0x2001, 0x0009]).unwrap_or(&0_u16);
    Frame::udp4(A, &source, &destination).ip4(|ip| {
        ip.truncate(20);
        ip.extend(&behind);
        let length = ip.len() as u16;
        ip[2..4].copy_from_slice(&length.to_be_bytes());
        ip[6..8].copy_from_slice(&fragment.to_be_bytes());
        ip[9] = protocol;
    })
}

fn ipv6(rng: &mut Rng) -> Frame {
    let source = format!("2001:{:x}::{:x}", rng.u16(..), rng.u16(..));
    let destination = format!("fd{}:{:x}::{:x}", rng.u8(20..22), rng.u16(..), rng.u16(..));
    let mut behind = vec![0; *rng.choice(&[0, 3, 4, 8, 12, 20, 47, 48, 49, 60]).unwrap()];
    rng.fill(&mut behind);
    let next = match rng.u8(0..4) {
        0 => *rng.choice(&[6, 17]).unwrap(),
        1 => *rng.choice(&[33, 50, 51, 132, 136, 47, 4, 41, 59]).unwrap(),
        2 => 58,
        _ => *rng.choice(&[44, 44, 60, 43]).unwrap(),
    };
    if let Some(first) = behind.first_mut() {
        match next {
            58 => *first = *rng.choice(&[1, 2, 3, 4, 5, 128, 129]).unwrap(),
            // The header after an extension header. Some of these have ports.
            44 | 60 | 43 => *first = *rng.choice(&[6, 17, 58, 59]).unwrap(),
            _ => (),
        }
    }
    if let (43 | 60, Some(length)) = (next, behind.get_mut(1)) {
        *length = 0;
    }
    Frame::udp6(A, &source, &destination).with(|ip| {
        ip.truncate(40);
        ip.extend(&behind);
        ip[1..4].copy_from_slice(&rng.u32(..).to_be_bytes()[1..]);
        ip[4..6].copy_from_slice(&(behind.len() as u16).to_be_bytes());
        ip[6] = next;
    })
}

/// Sends a frame, and returns what Linux forwards for it.
fn forward(wires: &[Wire; 2], frame: &[u8]) -> Vec<u8> {
    wires[0].send(frame);
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        match wires[1].receive() {
            // Skips Linux's own neighbour discovery.
            Some(out) if is_routed(&out) => return out,
            Some(_) => (),
            None => {
                assert!(Instant::now() < until, "Linux did not forward this frame within 20 s: {frame:02x?}");
                thread::sleep(Duration::from_micros(20));
            }
        }
    }
}

/// Whether the packet is for one of the groups.
fn is_routed(out: &[u8]) -> bool {
    match out[12..14] {
        [8, 0] => matches!(out.get(30..32), Some([10, 20 | 21])),
        [0x86, 0xdd] => matches!(out.get(38..40), Some([0xfd, 0x20 | 0x21])),
        _ => false,
    }
}

#[test]
#[ignore = "needs root"]
fn linux_and_the_program_choose_the_same_member() {
    in_new_namespace(|| {
        build();
        let (mut plane, mut tables) = loaded();
        routes().iter().for_each(|op| tables.apply(op).unwrap());
        let wires = [Wire::open("q0"), Wire::open("q1")];
        let input = ifindex("p0");
        let keys = MultipathKeys::read(Ecmp::Linux);
        let can_be_seeded = fs::exists(format!("/proc/sys/{}", SEED.replace('.', "/"))).unwrap();
        let mut rng = Rng::with_seed(26);
        for seed in if can_be_seeded { vec![Some(0), Some(20_261_126)] } else { vec![None] } {
            if let Some(seed) = seed {
                run(&format!("sysctl -qw {SEED}={seed}"));
            }
            let MultipathKey::Linux(key) = keys.of(seed) else {
                panic!("Linux's key is not known: {keys:?}")
            };
            for policy in 0..2 {
                for family in ["ipv4", "ipv6"] {
                    run(&format!("sysctl -qw net.{family}.fib_multipath_hash_policy={policy}"));
                }
                let hash = MultipathHash { l4: [policy == 1; 2], key };
                let mut of = |key| {
                    tables.apply(&Op::Router { router: 0, multipath: MultipathHash { key, ..hash } }).unwrap()
                };
                let (mut by_another_key, mut members) = (0, [0; WEIGHTS.len()]);
                for _ in 0..FRAMES {
                    let frame = packet(&mut rng).bytes();
                    let linux = forward(&wires, &frame);
                    of(key);
                    let ours = plane.run(input, &frame).unwrap();
                    if ours.action == XDP_PASS {
                        assert!(
                            policy == 1 && matches!(frame[20], 43 | 44 | 60),
                            "policy {policy}: the program passed this frame up: {frame:02x?}"
                        );
                        continue;
                    }
                    assert_eq!(ours.action, XDP_REDIRECT, "the action for {frame:02x?}");
                    assert_eq!(ours.frame, linux, "seed {seed:?}, policy {policy}: {frame:02x?}");
                    members[usize::from(linux[5])] += 1;
                    of([1, 2]);
                    by_another_key += usize::from(plane.run(input, &frame).unwrap().frame != linux);
                }
                // The weights add up to 27. The test must be able to fail.
                assert!(
                    by_another_key > FRAMES / 2,
                    "another key changed only {by_another_key} of {FRAMES} choices"
                );
                assert!(members.iter().all(|n| *n > 0), "a member got no frame: {members:?}");
                eprintln!("seed {seed:?}, policy {policy}: {members:?}");
            }
        }
    });
}

#[test]
#[ignore = "needs root"]
fn an_error_follows_its_flow_with_policy_0() {
    in_new_namespace(|| {
        build();
        let (mut plane, mut tables) = loaded();
        routes().iter().for_each(|op| tables.apply(op).unwrap());
        let input = ifindex("p0");
        let mut rng = Rng::with_seed(7);
        for _ in 0..200 {
            let inside = format!("10.20.{}.{}", rng.u8(..), rng.u8(..));
            let outside = format!("100.64.{}.{}", rng.u8(..), rng.u8(..));
            let flow = Frame::udp4(A, &outside, &inside);
            let sent = Frame::udp4(A, &inside, &outside);
            let error = Frame::udp4(A, "100.99.0.1", &inside).with(|ip| {
                ip.truncate(20);
                ip.extend([11, 0, 0, 0, 0, 0, 0, 0]);
                ip.extend(&sent.payload[..28]);
                let length = ip.len() as u16;
                ip[2..4].copy_from_slice(&length.to_be_bytes());
                ip[9] = 1;
                fix_checksum(ip);
            });
            let [flow, error] =
                [flow, error].map(|frame| plane.run(input, &frame.bytes()).unwrap().frame[..6].to_vec());
            assert_eq!(flow, error, "next hops of a packet to {inside}, and of an error about one from it");
        }
    });
}

/// Nanoseconds of one packet, as the mean of a million like it. It must be passed up, so that all are alike.
fn cost_ns(program: i32, input: u32, frame: &[u8]) -> u32 {
    // struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex.
    let mut context = [0, frame.len() as u32, 0, input, 0, 0];
    let mut opts = sys::bpf_test_run_opts {
        sz: size_of::<sys::bpf_test_run_opts>() as _,
        data_in: frame.as_ptr().cast(),
        data_size_in: frame.len() as u32,
        ctx_in: context.as_mut_ptr().cast(),
        ctx_size_in: size_of_val(&context) as u32,
        repeat: 1 << 20,
        ..Default::default()
    };
    // SAFETY: a valid descriptor; the frame and the context are readable for the sizes given, and nothing is written back.
    let rc = unsafe { sys::bpf_prog_test_run_opts(program, &mut opts) };
    assert_eq!((rc, opts.retval), (0, XDP_PASS));
    opts.duration
}

/// Prints the cost of a choice: the same packets to one next hop, and to one of two. The kernel handles both
/// next hops.
#[test]
#[ignore = "needs root"]
fn the_cost_of_a_choice_is_measured() {
    in_new_namespace(|| {
        build();
        let (plane, mut tables) = loaded();
        let pass = |reason| Target::Pass { reason, unicast: true };
        let one = pass(Reason::EgressNotAPort);
        let two = Target::Multi([(one.clone(), 1), (pass(Reason::ComplexRoute), 1)].into());
        for (v4, v6, target) in [("10.30.0.0/16", "fd30::/16", &one), ("10.31.0.0/16", "fd31::/16", &two)] {
            tables.apply(&Op::Route4(0, v4.parse().unwrap(), Some(target.clone()))).unwrap();
            tables.apply(&Op::Route6(0, v6.parse().unwrap(), Some(target.clone()))).unwrap();
        }
        let (program, input) = (plane.program().as_raw_fd(), ifindex("p0"));
        for l4 in [false, true] {
            let multipath = MultipathHash { l4: [l4; 2], key: [1, 2] };
            tables.apply(&Op::Router { router: 0, multipath }).unwrap();
            for v6 in [false, true] {
                let frame = |net| match v6 {
                    false => Frame::udp4(A, "100.64.0.5", &format!("10.{net}.0.9")).bytes(),
                    true => Frame::udp6(A, "2001:db8::5", &format!("fd{net}::9")).bytes(),
                };
                let best = |net| (0..5).map(|_| cost_ns(program, input, &frame(net))).min().unwrap();
                let (without, with) = (best(30), best(31));
                eprintln!("IPv{}, policy {}: {without} ns, {with} ns", if v6 { 6 } else { 4 }, u8::from(l4));
            }
        }
    });
}
