//! The elements of the user plane, compared with the program of the kernel plane: with the same tables, both
//! make the same of each frame.

use super::*;
use fastrand::Rng;
use logic::{
    elements::{Batch, Chain, Check, Now, Rewrite, Route, Ttl, Verdict},
    net::Vlan,
    tables::{
        Ingress,
        encoding::{IF_IPV4, IF_IPV6, IF_REDIRECTS},
    },
};

const FRAMES: usize = 4000;
/// Room before and after a frame, as the program has.
const ROOM: usize = 256;

/// The chain of a router, over the memory that the program reads.
fn router(world: &World) -> Chain {
    let route = Route::new(world.plane.memory());
    Chain::new(vec![Box::new(Check), Box::new(route), Box::new(Ttl), Box::new(Rewrite)]).unwrap()
}

/// The interface of [`base`] that a frame is for; `None` if there is none, or the frame is so short that the
/// program does not look for one.
fn ingress(port: usize, frame: &[u8]) -> Option<Ingress> {
    let mac = Mac::from_slice(frame.get(..6)?)?;
    let (mut vlan, mut at) = (Vlan::NONE, 12);
    while let [a, b, c, d, ..] = *frame.get(at..)?
        && [0x8100, 0x88a8].contains(&u16::from_be_bytes([a, b]))
    {
        vlan = vlan.push(Tag { vid: u16::from_be_bytes([c, d]) & 0xfff, service: a == 0x88 })?;
        at += 4;
    }
    if at > 12 && frame.len() < 22 {
        return None;
    }
    let is_it = |op: &Op| match op {
        Op::Interface(id, i) if (usize::from(i.port), i.mac, i.vlan) == (port, mac, vlan) => {
            let flags = IF_IPV4 | IF_IPV6 | IF_REDIRECTS;
            Some(Ingress { port: i.port, router: i.router, interface: *id, flags })
        }
        _ => None,
    };
    base().iter().find_map(is_it)
}

/// What the chain does with a frame.
fn run_chain(chain: &mut Chain, frame: &[u8], ingress: Ingress) -> (Verdict, Vec<u8>) {
    let mut lent = [&[0; ROOM], frame, &[0; ROOM]].concat();
    let mut batch = Batch::default();
    batch.push(&mut lent, ROOM, frame.len(), ingress).unwrap();
    chain.run(&Now { ns: 0, ports: 0b11 }, &mut batch);
    let packet = &batch.packets()[0];
    (packet.verdict(), packet.data().to_vec())
}

/// Turns the frame into an ICMP message, mostly an error, about some other packet, and sometimes cut short.
fn error(rng: &mut Rng, frame: Frame) -> Frame {
    let v6 = frame.payload[0] >> 4 == 6;
    let header = if v6 { 40 } else { 20 };
    let about: Vec<u8> = (0..rng.usize(header - 1..header + 12)).map(|_| rng.u8(..)).collect();
    let change = |ip: &mut Vec<u8>| {
        ip.truncate(header);
        let kinds: &[u8] = if v6 { &[1, 2, 3, 4, 128] } else { &[3, 4, 5, 11, 12, 8] };
        ip.extend([*rng.choice(kinds).unwrap(), 0, 0, 0, 0, 0, 0, 0]);
        ip.extend(about);
        let length = (ip.len() - if v6 { 40 } else { 0 }) as u16;
        let (protocol, place) = if v6 { ((6, 58), 4) } else { ((9, 1), 2) };
        ip[protocol.0] = protocol.1;
        ip[place..place + 2].copy_from_slice(&length.to_be_bytes());
    };
    if v6 { frame.with(change) } else { frame.ip4(change) }
}

/// A packet to one of the groups, with random addresses, ports, protocols and flow labels. Some are
/// fragments, cut short or padded.
fn flow(rng: &mut Rng) -> Vec<u8> {
    let mut frame = if rng.bool() {
        let to = format!("10.{}.{}.{}", rng.u8(20..22), rng.u8(..), rng.u8(..));
        Frame::udp4(A, &format!("10.0.1.{}", rng.u8(2..)), &to).ip4(|ip| {
            ip[9] = *rng.choice(&[17, 17, 6, 6, 1, 132, 50, 51, 47]).unwrap();
            ip[6] = *rng.choice(&[0, 0, 0, 0x40, 0x20]).unwrap();
            ip[7] = rng.u8(..) * u8::from(rng.u8(..8) == 0);
            rng.fill(&mut ip[20..24]);
            let length = *rng.choice(&[46, 46, 24, 23, 20]).unwrap();
            ip.truncate(length);
            ip[3] = length as u8;
        })
    } else {
        let to = format!("2001:db8:{}:{:x}::{:x}", rng.u8(20..22), rng.u16(..), rng.u16(..));
        Frame::udp6(A, &format!("2001:db8:1:{:x}::5", rng.u16(..)), &to).with(|ip| {
            ip[6] = *rng.choice(&[17, 17, 6, 6, 58, 44, 43, 60, 51]).unwrap();
            rng.fill(&mut ip[1..4]);
            rng.fill(&mut ip[40..44]);
            let payload = *rng.choice(&[26, 26, 4, 3, 0]).unwrap();
            ip.truncate(40 + payload);
            ip[5] = payload as u8;
        })
    };
    if rng.u8(..4) == 0 {
        frame = error(rng, frame);
    }
    frame.tags = rng.choice(&[&[][..], &[], &[AD200, Q7]]).unwrap().to_vec();
    frame.padding = *rng.choice(&[0, 0, 1, 4, 9]).unwrap();
    frame.bytes()
}

/// Groups with weights, one with a member that is left to the kernel, and both hash policies of Linux.
#[test]
#[ignore = "needs root"]
fn a_flow_leaves_by_the_same_member_of_a_group_on_both_planes() {
    in_new_namespace(|| {
        let mut w = World::new();
        let two = [(via(2, "10.0.2.254"), 3), (via(3, "10.0.3.254"), 1)];
        let many = [
            (via(2, "10.0.2.9"), 5),
            (via(3, "10.0.3.9"), 256),
            (via(2, "10.0.2.254"), 90),
            (pass(Reason::EgressNotAPort, true), 40),
        ];
        let two6 = [(via(2, "fe80::254"), 1), (via(3, "2001:db8:3::9"), 2)];
        let many6 = [(via(2, "2001:db8:2::9"), 7), (via(2, "fe80::254"), 1), (via(3, "2001:db8:3::9"), 4)];
        w.apply([
            route4(0, "10.20.0.0/16", Target::Multi(two.into())),
            route4(0, "10.21.0.0/16", Target::Multi(many.into())),
            route6(0, "2001:db8:20::/48", Target::Multi(two6.into())),
            route6(0, "2001:db8:21::/48", Target::Multi(many6.into())),
        ]);
        let mut chain = router(&w);
        let mut rng = Rng::with_seed(2);
        for l4 in [[false, false], [true, false], [false, true], [true, true]] {
            w.apply([Op::Router { router: 0, multipath: MultipathHash { l4, key: [3, 4] } }]);
            let mut ways = std::collections::BTreeMap::new();
            for _ in 0..FRAMES {
                let frame = flow(&mut rng);
                let kernel = w.plane.run(w.port[0], &frame).unwrap();
                let (verdict, out) = run_chain(&mut chain, &frame, ingress(0, &frame).unwrap());
                let action = if let Verdict::To(_) = verdict { XDP_REDIRECT } else { XDP_PASS };
                let both = ((kernel.action, hex(&kernel.frame)), (action, hex(&out)));
                assert_eq!(
                    both.0,
                    both.1,
                    "kernel plane and elements, for {}: {verdict:?}, {l4:?}",
                    hex(&frame)
                );
                let way = if action == XDP_REDIRECT { out[..14].to_vec() } else { Vec::new() };
                *ways.entry(way).or_insert(0) += 1;
            }
            // For IPv4 and IPv6: friend and gateway by one interface, and one of them by the other with a
            // tag; and the kernel.
            assert_eq!(ways.len(), 7, "number of ways: {ways:?}");
        }
    });
}

/// Compares verdicts, reasons, ports and bytes.
#[test]
#[ignore = "needs root"]
fn any_frame_becomes_the_same_on_both_planes() {
    in_new_namespace(|| {
        let mut w = World::new();
        let mut chain = router(&w);
        let mut rng = Rng::with_seed(3);
        let (mut left, mut up) = (0, std::collections::BTreeSet::new());
        for _ in 0..FRAMES {
            let (port, frame) = (rng.usize(0..8) / 7, random::frame(&mut rng));
            let Some(ingress) = ingress(port, &frame) else { continue };
            let kernel = w.outcome(port, 0, &frame);
            let (verdict, out) = run_chain(&mut chain, &frame, ingress);
            assert_eq!(
                kernel.frame,
                hex(&out),
                "bytes by kernel plane and elements, for {}: {verdict:?}",
                hex(&frame)
            );
            match verdict {
                Verdict::To(to) => {
                    let of = |op: &Op| match op {
                        Op::Interface(id, i) if kernel.sent == [(*id, 1)] => Some(i.port),
                        _ => None,
                    };
                    assert_eq!(base().iter().find_map(of), Some(to), "port of {}", hex(&frame));
                    left += 1;
                }
                Verdict::Up(reason) => {
                    let charged = [((Charge::Router(ingress.router), reason), 1)];
                    assert_eq!(kernel.charged, charged, "charges for {}", hex(&frame));
                    up.insert(reason.name());
                }
                Verdict::Own(_) | Verdict::Drop(_) => {
                    panic!("unexpected verdict for {}: {verdict}", hex(&frame))
                }
            }
        }
        assert!(left > FRAMES / 10 && up.len() >= 10, "too few: {left} left; reasons to go up: {up:?}");
    });
}
