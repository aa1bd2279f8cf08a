//! Shares of a full core (`bpf/shares.h`): which packets are cut, which never are, and for how long.

use super::*;
use logic::share::Grant;
use router::plane::Taken;

const NOTHING: u32 = 1;
const HALF: u32 = 1 << 31;
const LONG: Duration = Duration::from_secs(60);

/// A world on one CPU, whose shares are in force.
fn with_grant(grant: Grant) -> (World, u16) {
    let cpu = rustix::thread::sched_getcpu();
    only_on([cpu]);
    let mut w = World::new();
    w.plane.set_shared(true);
    w.plane.shares().set(cpu as u16, 0, grant);
    w.plane.shares().in_force(LONG).unwrap();
    (w, cpu as u16)
}

fn cut() -> Expect {
    Expect::Drop(Charge::Router(0), Reason::OverShare)
}

#[test]
#[ignore = "needs root"]
fn a_router_over_its_share_forwards_nothing() {
    in_new_namespace(|| {
        let (mut w, cpu) = with_grant(Grant { admit: NOTHING, own_admit: 0 });
        let udp = |to: &str| Frame::udp4(A, "10.0.1.5", to);
        let udp6 = |to: &str| Frame::udp6(A, "2001:db8:1::5", to);
        w.expect("IPv4", &udp("10.0.2.9"), cut());
        w.expect("IPv6", &udp6("2001:db8:2::9"), cut());
        w.expect(
            "an exception, before the kernel has work with it",
            &udp("10.0.2.9").ip4(|ip| ip[8] = 1),
            cut(),
        );
        w.expect("to the router", &udp("10.0.2.1"), up(Reason::Local));
        w.expect("to the router, IPv6", &udp6("2001:db8:2::1"), up(Reason::Local));
        w.expect("routing protocols", &udp("224.0.0.5"), up(Reason::Broadcast));
        w.expect("routing protocols, IPv6", &udp6("ff02::5"), up(Reason::Broadcast));
        w.expect("groups elsewhere are no routing protocols", &udp("239.1.1.1"), cut());
        w.expect("all on the link", &udp("255.255.255.255"), up(Reason::Broadcast));
        let solicitation = Frame::udp6(A, "fe80::9", "2001:db8:2::1").with(|ip| (ip[6], ip[40]) = (58, 135));
        w.expect("neighbour discovery", &solicitation, up(Reason::NeighbourDiscovery));
        let f = Frame::udp4(V, "10.1.1.5", "10.0.2.9");
        w.expect("the other router", &f, out(6, f.routed(OTHER, W, &[])));
        let taken = Taken { packets: 10, cut: 4, own_cut: 0, own: 5, other: 1 };
        assert_eq!(
            w.plane.shares().taken(cpu, 0),
            taken,
            "counts of router 0; neighbour discovery is not its own traffic"
        );
        assert_eq!(w.plane.shares().taken(cpu, 1), Taken { packets: 1, ..Taken::default() });
    });
}

#[test]
#[ignore = "needs root"]
fn a_flood_to_the_router_itself_is_cut_and_arp_is_not() {
    in_new_namespace(|| {
        let (mut w, cpu) = with_grant(Grant { admit: 0, own_admit: NOTHING });
        let f = Frame::udp4(A, "10.0.1.5", "10.0.2.9");
        w.expect("forwarded", &f, out(2, f.routed(FRIEND, B, &[])));
        w.expect("to the router", &Frame::udp4(A, "10.0.1.5", "10.0.2.1"), cut());
        w.expect("to the router, IPv6", &Frame::udp6(A, "2001:db8:1::5", "2001:db8:2::1"), cut());
        let mut arp = f.bytes();
        arp[12..14].copy_from_slice(&[8, 6]);
        w.expect_from("ARP", 0, &arp, up(Reason::Arp));
        let taken = Taken { packets: 4, own_cut: 2, cut: 0, own: 0, other: 1 };
        assert_eq!(w.plane.shares().taken(cpu, 0), taken);
    });
}

#[test]
#[ignore = "needs root"]
fn packets_are_cut_evenly() {
    in_new_namespace(|| {
        for (admit, of_1000) in [(HALF, 500), (HALF + HALF / 2, 750), (u32::MAX / 1000 + 1, 1)] {
            let (mut w, _) = with_grant(Grant { admit, own_admit: 0 });
            let frame = Frame::udp4(A, "10.0.1.5", "10.0.2.9").bytes();
            let verdicts: Vec<bool> =
                (0..1000).map(|_| w.plane.run(w.port[0], &frame).unwrap().action == XDP_REDIRECT).collect();
            assert_eq!(verdicts.iter().filter(|sent| **sent).count(), of_1000);
            if admit == HALF {
                assert!(verdicts.windows(2).all(|two| two[0] != two[1]), "packets are not cut in turns");
            }
            run("ip link del p0");
            run("ip link del p1");
        }
    });
}

#[test]
#[ignore = "needs root"]
fn shares_hold_only_while_they_are_in_force() {
    in_new_namespace(|| {
        let (mut w, cpu) = with_grant(Grant { admit: NOTHING, own_admit: NOTHING });
        let f = Frame::udp4(A, "10.0.1.5", "10.0.2.9");
        let sent = || out(2, f.routed(FRIEND, B, &[]));
        w.expect("in force", &f, cut());
        let (explained, steps) = w.plane.explain(w.port[0], &f.bytes()).unwrap();
        assert_eq!(explained.action, XDP_REDIRECT, "the explanation, as on a core with time left: {steps:?}");
        assert_eq!(
            w.plane.shares().taken(cpu, 0).packets,
            1,
            "packets counted; an explanation leaves no trace"
        );
        w.plane.shares().in_force(Duration::ZERO).unwrap();
        w.expect("no longer in force", &f, sent());
        w.plane.shares().in_force(Duration::from_millis(30)).unwrap();
        w.expect("in force again", &f, cut());
        std::thread::sleep(Duration::from_millis(100));
        w.expect("not renewed for too long", &f, sent());
        w.plane.shares().in_force(LONG).unwrap();
        w.plane.shares().set(cpu, 0, Grant::ALL);
        w.expect("within its share", &f, sent());
        assert_eq!(w.plane.shares().taken(cpu, 0), Taken { packets: 3, cut: 2, ..Taken::default() });
    });
}

/// The rounds of a daemon, with real packets and a core that is declared full.
#[test]
#[ignore = "needs root"]
fn a_round_counts_and_cuts_and_ends() {
    use logic::cores::{Queue, QueueId, View};
    use router::{cores::shares::Sharing, plane::SharesInCharge};
    in_new_namespace(|| {
        let (mut w, cpu) = with_grant(Grant::ALL);
        w.plane.shares().in_force(Duration::ZERO).unwrap();
        w.plane.shares().set_routers(&[(0, 1)].into(), &[(0, 0)].into());
        let in_charge = SharesInCharge::default();
        in_charge.put(Some(w.plane.shares().clone()));
        let mut sharing = Sharing::new(in_charge.clone());
        let view = |ran: f64| View {
            cores: Vec::new(),
            queues: [(0, ran), (1, 0.0)]
                .map(|(port, ran)| Queue {
                    id: QueueId { port, index: 0 },
                    node: None,
                    core: cpu,
                    movable: true,
                    ran,
                    waited: 0.0,
                    counted: None,
                    parts: Vec::new(),
                    is_partial: false,
                    spilled: vec![],
                })
                .into(),
        };
        let (big, small) =
            (Frame::udp4(A, "10.0.1.5", "10.0.2.9").bytes(), Frame::udp4(V, "10.1.1.5", "10.0.2.9").bytes());
        let (mut now, cutting) = (Duration::from_secs(100), std::cell::Cell::new(false));
        let turns = std::cell::Cell::new(true);
        let mut round = |w: &mut World, ran: f64| {
            for i in 0..400 {
                w.plane.run(w.port[0], if i % 40 == 0 { &small } else { &big }).unwrap();
            }
            now += Duration::from_millis(10);
            sharing.round(now, &view(ran), |_| false, |_| turns.get()).unwrap();
            cutting.set(sharing.is_cutting(cpu));
            w.plane.set_shared(w.plane.shares().wanted());
            [0, 1].map(|router| w.plane.shares().taken(cpu, router))
        };
        assert_eq!(round(&mut w, 0.9), [Taken::default(); 2], "counts of a core with time left");
        for _ in 0..4 {
            assert_eq!(
                round(&mut w, 1.0),
                [Taken::default(); 2],
                "counts of a single router, which shares with nobody"
            );
        }
        let weights = [(0, 1), (1, 2)].into();
        w.plane.shares().set_routers(&weights, &[(0, 0), (0, 1), (1, 1)].into());
        let cut = |taken: [Taken; 2]| taken.map(|taken| taken.cut);
        // The core is full once, the first round counts, and it is full a second time.
        (0..3).for_each(|_| assert_eq!(cut(round(&mut w, 1.0)), [0, 0], "packets that were cut too early"));
        assert!(cutting.get(), "nothing is cut");
        let [big, small] = round(&mut w, 0.93);
        assert!(
            big.cut > 100 && small.cut == 0 && small.packets == 30,
            "counts of the big and the small router: {big:?} {small:?}"
        );
        let share = |router| w.plane.shares().taken_of_cores(router).unwrap();
        assert!(
            share(0) > 5 * share(1) && (920..=940).contains(&(share(0) + share(1))),
            "shares {} and {}",
            share(0),
            share(1)
        );
        assert_eq!(w.plane.shares().weight(1), 2);
        // Each router has a ring of its own, and their threads take turns.
        w.plane.shares().set_routers(&weights, &[(0, 0), (1, 1)].into());
        round(&mut w, 1.0);
        assert_eq!((round(&mut w, 1.0)[0].cut, cutting.get()), (round(&mut w, 1.0)[0].cut, false));
        turns.set(false);
        (0..2).for_each(|_| _ = round(&mut w, 1.0));
        assert!(cutting.get(), "nothing is cut, although the threads do not take turns");
        turns.set(true);
        w.plane.shares().set_routers(&weights, &[(0, 0), (0, 1)].into());
        (0..2).for_each(|_| _ = round(&mut w, 1.0));
        assert!(cutting.get(), "nothing is cut");
        // Another generation is in charge. The old one cuts nothing any more.
        in_charge.put(None);
        let before = round(&mut w, 1.0);
        assert_eq!(round(&mut w, 1.0), before, "counts of the old generation");
    });
}
