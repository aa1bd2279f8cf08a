//! Without sockets: the path of a packet, what the path counts, and what is charged.

use super::*;
use fastrand::Rng;
use logic::{
    flow::packet::Headers,
    net::{Tag, Vlan},
    paths::class::Classifier,
    reason::Reason,
    tables::Ingress,
};
use router::plane::{Charge, Step};

/// The router that a frame belongs to: that of its interface, or else the port's own.
fn ingress(port: usize, frame: &[u8]) -> Ingress {
    let interface = || {
        let mac = logic::net::Mac::from_slice(frame.get(..6)?)?;
        let (mut vlan, mut at) = (Vlan::NONE, 12);
        for _ in 0..2 {
            let Some([a, b, c, d]) = frame.get(at..).and_then(|rest| rest.first_chunk().copied()) else {
                break;
            };
            if ![0x8100, 0x88a8].contains(&u16::from_be_bytes([a, b])) {
                break;
            }
            vlan = vlan.push(Tag { vid: u16::from_be_bytes([c, d]) & 0xfff, service: a == 0x88 })?;
            at += 4;
        }
        // The program needs room for two tags if there is one.
        let tagged = [0x8100, 0x88a8].contains(&u16::from_be_bytes([frame[12], frame[13]]));
        if tagged && frame.len() < 22 {
            return None;
        }
        base().iter().find_map(|op| match op {
            logic::plan::Op::Interface(id, i)
                if (usize::from(i.port), i.mac, i.vlan) == (port, mac, vlan) =>
            {
                Some((i.router, *id))
            }
            _ => None,
        })
    };
    let (router, interface) = interface().unwrap_or((own()[&(port as u8)], 0));
    Ingress { port: port as u8, router, interface, flags: 0 }
}

fn path_step(steps: &[Step]) -> Option<(u16, Option<Reason>)> {
    steps.iter().find_map(|step| match step {
        Step::Path { path, why } => Some((*path, *why)),
        _ => None,
    })
}

/// The oracle is `logic::paths::class::Classifier`. Sets of 1 to 64 classes replace each other while the
/// program stays.
#[test]
#[ignore = "needs root"]
fn a_packet_belongs_to_the_path_whose_class_matches_it() {
    in_new_namespace(|| {
        let (mut w, maps) = with_paths(settings());
        let mut rng = Rng::with_seed(7);
        let (mut of_paths, mut nobodys, mut seen) = (0, 0, std::collections::BTreeSet::new());
        // An emulated machine only shows whether another kernel runs the program.
        let rounds = if crate::common::is_emulated() { 12 } else { 150 };
        for round in 0..rounds {
            let frames: Vec<_> = (0..100).map(|_| made::frame(&mut rng)).collect();
            let count = *rng.choice(&[1, 2, 3, 5, 8, 20, 64]).unwrap();
            let classes: Vec<_> = (0..count).map(|_| made::class(&mut rng, &frames)).collect();
            // The paths are not in the order of their numbers.
            let number = |i: usize| (i as u16 * 37 + 5) % 64;
            let paths: Vec<_> = classes
                .iter()
                .enumerate()
                .map(|(i, class)| path(number(i), Otherwise::Up, class.clone()))
                .collect();
            maps.set_classes(&paths, &own()).unwrap();
            let oracle = Classifier::new(classes.clone());
            for frame in frames.iter().filter(|frame| frame.len() >= 14) {
                let port = rng.usize(0..2);
                // Another test covers headers that the program does not look for.
                if Headers::of(frame, 0, None).is_some_and(|h| h.transport.is_some_and(|at| at > 1023))
                    || frame.len() > 1500
                {
                    continue;
                }
                let expected = oracle.path_of(frame, ingress(port, frame)).map(|i| number(i.into()));
                let before = maps.counts();
                let run = w.plane.run(w.port[port], frame).unwrap();
                let counted = counted_since(&maps, &before);
                let found = format!("round {round}, {count} classes, port {port}, {}", hex(frame));
                assert_eq!(counted, Vec::from_iter(expected), "{found}\n{classes:#?}");
                let (explained, steps) = w.plane.explain(w.port[port], frame).unwrap();
                assert_eq!(
                    path_step(&steps),
                    expected.map(|path| (path, Some(Reason::PathNoWorker))),
                    "{found}"
                );
                assert_eq!(explained, run, "{found}");
                match expected {
                    Some(path) => of_paths += usize::from(seen.insert(path)) | 1,
                    None => nobodys += 1,
                }
            }
        }
        assert!(
            of_paths > 7 * rounds && nobodys > 7 * rounds && 10 * seen.len() > rounds,
            "too few: {of_paths} packets of paths, {nobodys} of none, paths {seen:?}"
        );
    });
}

fn udp_to(port: u16) -> Class {
    Class { protocol: Some(17), destination_port: Some(port), ..Class::default() }
}

/// `Frame::udp4` goes from port 1000 to 2000.
fn all_udp() -> Class {
    udp_to(2000)
}

#[test]
#[ignore = "needs root"]
fn packets_that_no_worker_can_take_are_routed_or_dropped_as_their_path_says() {
    in_new_namespace(|| {
        let (mut w, maps) = with_paths(settings());
        let f = Frame::udp4(A, "10.0.1.5", "10.0.2.9");
        let sent = || out(2, f.routed(FRIEND, B, &[]));
        w.expect("no path", &f, sent());
        let before = maps.counts();
        maps.set_classes(&[path(3, Otherwise::Up, all_udp())], &own()).unwrap();
        w.expect("up: as if there were no path", &f, sent());
        assert_eq!(since(&maps, 3, &before).up, [0, 0, 1, 0]);
        maps.set_classes(&[path(3, Otherwise::Drop, all_udp())], &own()).unwrap();
        let dropped = |reason| Expect::Drop(Charge::Router(0), reason);
        w.expect("drop", &f, dropped(Reason::PathNoWorker));
        let other = Frame::udp4(OTHER, "10.0.1.5", "10.0.2.9");
        w.expect("for no interface", &other, Expect::Drop(Charge::Port(0), Reason::PathNoWorker));
        w.expect(
            "of another class",
            &f.clone().ip4(|ip| ip[9] = 6),
            out(2, f.clone().ip4(|ip| ip[9] = 6).routed(FRIEND, B, &[])),
        );
        let longest = |bytes: usize| {
            f.clone().ip4(|ip| {
                ip.resize(bytes - 14, 0);
                ip[2..4].copy_from_slice(&(bytes as u16 - 14).to_be_bytes());
            })
        };
        w.expect("as long as a frame", &longest(MOST_BYTES as usize), dropped(Reason::PathNoWorker));
        w.expect("longer", &longest(MOST_BYTES as usize + 1), dropped(Reason::PathFrameTooLong));
        w.plane.set_port(0, w.port[0], false, true).unwrap();
        w.expect("a port that is not trusted", &f, dropped(Reason::PathUnsure));
        w.plane.set_port(0, w.port[0], true, true).unwrap();
        w.plane.confirm_until(std::time::Duration::ZERO).unwrap();
        w.expect("a mirror that is not confirmed", &f, dropped(Reason::PathUnsure));
        w.plane.confirm_until(std::time::Duration::from_secs(1 << 32)).unwrap();
        let counts = since(&maps, 3, &before);
        assert_eq!(counts, PathCounts { up: [0, 0, 1, 0], dropped: [2, 1, 3, 0], ..Default::default() });
    });
}

/// A packet with 129 options headers, 1,032 bytes long; the program looks no further than 1,023 bytes.
fn far_in() -> Frame {
    Frame::udp6(A, "2001:db8:1::5", "2001:db8:2::9").with(|ip| {
        ip[6] = 60;
        let mut options = vec![0; 1032];
        (options[0], options[1]) = (17, 128);
        ip.splice(40..40, options);
        let length = (ip.len() - 40) as u16;
        ip[4..6].copy_from_slice(&length.to_be_bytes());
    })
}

#[test]
#[ignore = "needs root"]
fn a_packet_whose_headers_are_not_seen_passes_no_path_that_drops() {
    in_new_namespace(|| {
        let (mut w, maps) = with_paths(settings());
        let f = far_in();
        let mine = Class { port: Some(0), ..all_udp() };
        let paths = |otherwise| {
            [
                path(1, Otherwise::Up, all_udp()),
                path(2, otherwise, Class { port: Some(1), ..all_udp() }),
                path(3, otherwise, mine.clone()),
            ]
        };
        maps.set_classes(&paths(Otherwise::Up), &own()).unwrap();
        let before = maps.counts();
        let sent = out(2, f.routed(FRIEND, B, &[]));
        w.expect("no path drops", &f, sent);
        assert_eq!(counted_since(&maps, &before), [0; 0], "a path counted a packet whose path is not known");
        maps.set_classes(&paths(Otherwise::Drop), &own()).unwrap();
        w.expect("one drops", &f, Expect::Drop(Charge::Router(0), Reason::PathUnseen));
        assert_eq!(since(&maps, 3, &before), PathCounts { dropped: [0, 0, 0, 1], ..Default::default() });
    });
}

/// Growth replaces the plane. Classes and counts stay.
#[test]
#[ignore = "needs root"]
fn paths_outlive_a_generation() {
    in_new_namespace(|| {
        let (mut w, maps) = with_paths(settings());
        maps.set_classes(&[path(0, Otherwise::Drop, all_udp())], &own()).unwrap();
        let f = Frame::udp4(A, "10.0.1.5", "10.0.2.9").bytes();
        assert_eq!(w.plane.run(w.port[0], &f).unwrap().action, XDP_DROP);
        let mut next = Plane::load(settings()).unwrap();
        next.confirm_until(std::time::Duration::from_secs(1 << 32)).unwrap();
        next.set_port(0, w.port[0], true, true).unwrap();
        give_paths(&mut next, &maps);
        assert_eq!(next.run(w.port[0], &f).unwrap().action, XDP_DROP);
        next.set_with_paths(false);
        assert_eq!(
            next.run(w.port[0], &f).unwrap().action,
            XDP_PASS,
            "the action of the program without paths"
        );
        assert_eq!(maps.counts()[0].dropped, [0, 0, 2, 0]);
    });
}
