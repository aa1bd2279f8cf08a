//! Captures: which packets are taken, and what is recorded about them. Programs with captures handle packets as those without do.

use super::{
    common::{frame::Frame, in_new_namespace, only_on},
    features, for_the_kernel, out, up,
    world::*,
};
use logic::{
    capture::{
        filter::{self, Classic},
        record::{Fate, Record},
        routed,
    },
    flow::kernel::Seed,
    reason::Reason,
};
use router::plane::{
    FlowMaps, FlowSettings, PathMaps,
    capture::{CaptureMaps, Missing, Wanted},
};
use std::{cell::RefCell, sync::Arc};

/// What a record holds.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    from: u8,
    router: Option<u8>,
    fate: Fate,
    came: Option<String>,
    left: String,
    left_bytes: u32,
    /// Of a sample; 0 for captured packets.
    ahead: u32,
}

impl Seen {
    fn of(record: &Record<'_>) -> Seen {
        Seen {
            from: record.in_port,
            router: record.router,
            fate: record.fate,
            came: record.as_it_came_in().map(|frame| hex(&frame)),
            left: hex(record.frame),
            left_bytes: record.out_bytes,
            ahead: record.ahead,
        }
    }
}

fn everything() -> Wanted {
    Wanted { most_bytes: 9216, pps: 0, ..Wanted::default() }
}

struct Capturing {
    w: World,
    maps: Arc<CaptureMaps>,
}

impl Capturing {
    fn new(w: World, wanted: &Wanted) -> Capturing {
        only_on([rustix::thread::sched_getcpu()]);
        let maps = Arc::new(CaptureMaps::new().unwrap_or_else(|e| panic!("{e:#}")));
        let mut capturing = Capturing { w, maps };
        capturing.want(wanted);
        capturing
    }

    fn want(&mut self, wanted: &Wanted) {
        self.maps.want(Some(wanted));
        self.w.plane.set_capture(Some(&self.maps)).unwrap_or_else(|e| panic!("{e:#}"));
        self.maps.begin();
    }

    /// What is captured of a frame that comes in by a port, and what becomes of it.
    fn outcome(&mut self, port: usize, frame: &[u8]) -> (Outcome, Vec<Seen>) {
        let ifindex = self.w.port[port];
        let outcome = self.w.outcome_of(|plane| plane.run_captured(ifindex, frame).unwrap());
        (outcome, self.read())
    }

    /// Captured packets.
    fn read(&self) -> Vec<Seen> {
        let seen = RefCell::<Vec<Seen>>::default();
        let each = |record: &Record<'_>| {
            seen.borrow_mut().push(Seen { ahead: 0, ..Seen::of(record) });
            true
        };
        let once = |read: &mut dyn FnMut()| {
            read();
            Ok(())
        };
        self.maps.follow(each, once).unwrap();
        seen.into_inner()
    }

    fn samples(&self) -> Vec<Seen> {
        let seen = RefCell::<Vec<Seen>>::default();
        let each = |record: &Record<'_>| {
            seen.borrow_mut().push(Seen::of(record));
            true
        };
        let once = |read: &mut dyn FnMut()| {
            read();
            Ok(())
        };
        self.maps.follow_samples(each, once).unwrap();
        seen.into_inner()
    }

    #[track_caller]
    fn is_captured(&mut self, port: usize, frame: &Frame) -> bool {
        !self.outcome(port, &frame.bytes()).1.is_empty()
    }
}

fn forwarded(frame: &[u8], to: u8, left: &[u8]) -> Vec<Seen> {
    vec![Seen {
        from: 0,
        router: Some(0),
        fate: Fate::Forwarded(Some(to)),
        came: Some(hex(frame)),
        left: hex(left),
        left_bytes: left.len() as u32,
        ahead: 0,
    }]
}

fn udp(to: &str) -> Frame {
    Frame::udp4(A, "10.0.1.5", to)
}

#[test]
#[ignore = "needs root"]
fn every_packet_is_seen_as_it_came_in_and_as_it_left() {
    in_new_namespace(|| {
        let mut c = Capturing::new(World::new(), &everything());
        let cases = [
            (udp("10.0.2.9"), 2, FRIEND, vec![]),
            (udp("10.0.2.9").padded(7), 2, FRIEND, vec![]),
            (udp("10.0.3.9"), 3, FRIEND, vec![Q100]),
            (udp("10.0.2.9").tagged(&[AD200, Q7]), 2, FRIEND, vec![]),
            (
                udp("192.0.2.1")
                    .with(|ip| ip.extend([7; 800]))
                    .ip4(|ip| ip[2..4].copy_from_slice(&[3, 0x4e])),
                2,
                GATEWAY,
                vec![],
            ),
        ];
        for (frame, interface, mac, tags) in cases {
            let left = frame.routed(mac, B, &tags);
            let (outcome, seen) = c.outcome(0, &frame.bytes());
            assert_eq!(seen, forwarded(&frame.bytes(), 1, &left));
            outcome.assert("captured", &frame.bytes(), out(interface, left));
        }
        // Padding behind a long packet is cut off, and is not in the capture.
        let long =
            udp("10.0.3.9").with(|ip| ip.extend([7; 800])).ip4(|ip| ip[2..4].copy_from_slice(&[3, 0x4e]));
        let padded = [long.bytes(), vec![9; 200]].concat();
        let (_, seen) = c.outcome(0, &padded);
        assert_eq!(seen, forwarded(&long.bytes(), 1, &long.routed(FRIEND, B, &[Q100])));

        for (name, frame, reason) in for_the_kernel() {
            let (outcome, seen) = c.outcome(0, &frame.bytes());
            let [seen] = &seen[..] else { panic!("{name}: {seen:?}") };
            assert_eq!((seen.fate, seen.router), (Fate::Other(reason), Some(0)), "{name}");
            assert_eq!(seen.came, Some(hex(&frame.bytes())), "{name}");
            outcome.assert(name, &frame.bytes(), up(reason));
        }
        assert_eq!(c.maps.missing(), Missing::default());
    });
}

#[test]
#[ignore = "needs root"]
fn a_capture_takes_what_it_names() {
    in_new_namespace(|| {
        let mut c = Capturing::new(World::new(), &Wanted { ports: [1].into(), ..everything() });
        let local = Frame::udp4(B, "10.0.2.5", "10.0.2.1");
        assert!(c.is_captured(0, &udp("10.0.2.9")), "it leaves by port 1");
        assert!(c.is_captured(1, &local), "it comes in by port 1");
        assert!(!c.is_captured(0, &udp("10.0.1.1")), "it goes up from port 0");

        c.want(&Wanted { router: Some(1), ..everything() });
        assert!(c.is_captured(0, &Frame::udp4(V, "10.1.1.5", "10.0.2.9")));
        assert!(!c.is_captured(0, &udp("10.0.2.9")));
        assert!(!c.is_captured(0, &Frame::udp4(OTHER, "10.1.1.5", "10.0.2.9")), "nobody's");

        c.want(&Wanted { reasons: [Reason::TtlExceeded].into(), ..everything() });
        assert!(c.is_captured(0, &udp("10.0.2.9").ip4(|ip| ip[8] = 1)));
        assert!(!c.is_captured(0, &udp("10.0.2.9")) && !c.is_captured(0, &udp("10.0.1.1")));

        c.want(&Wanted { most_bytes: 20, ..everything() });
        let frame = udp("10.0.2.9");
        let seen = c.outcome(0, &frame.bytes()).1;
        let left = frame.routed(FRIEND, B, &[]);
        assert_eq!((seen[0].left.clone(), seen[0].left_bytes), (hex(&left[..20]), left.len() as u32));

        c.maps.want(None);
        assert!(!c.is_captured(0, &udp("10.0.2.9")), "the capture has ended");
    });
}

/// `ip[16:4] = ADDRESS` over Ethernet.
fn to(address: [u8; 4]) -> Vec<u64> {
    let i = |code, jt, jf, k| Classic { code, jt, jf, k };
    let filter =
        [i(0x20, 0, 0, 30), i(0x15, 0, 1, u32::from_be_bytes(address)), i(6, 0, 0, 1), i(6, 0, 0, 0)];
    filter::compile(&filter).unwrap()
}

#[test]
#[ignore = "needs root"]
fn the_filter_is_a_part_of_the_program() {
    in_new_namespace(|| {
        let mut c = Capturing::new(World::new(), &Wanted { filter: to([10, 0, 2, 9]), ..everything() });
        assert!(c.is_captured(0, &udp("10.0.2.9")));
        assert!(!c.is_captured(0, &udp("10.0.3.9")));
        c.want(&Wanted { filter: to([10, 0, 3, 9]), ..everything() });
        assert!(!c.is_captured(0, &udp("10.0.2.9")));
        assert!(c.is_captured(0, &udp("10.0.3.9")));
        // The tag moves the address to where the filter looks for it: it matches only as it leaves.
        let tagged = udp("10.0.2.9").tagged(&[Q7, Q7]);
        assert!(!c.is_captured(0, &tagged));
        let tagged = udp("10.0.2.9").tagged(&[AD200, Q7]);
        c.want(&Wanted { filter: to([10, 0, 2, 9]), ..everything() });
        let (_, seen) = c.outcome(0, &tagged.bytes());
        assert_eq!((seen.len(), seen[0].came.clone()), (1, None));
        assert_eq!(seen[0].left, hex(&tagged.routed(FRIEND, B, &[])));
    });
}

/// The test sets `filter_once` for a filter that routing affects. This shows when the filter does not run again.
#[test]
#[ignore = "needs root"]
fn a_filter_runs_again_only_if_its_answer_may_change() {
    in_new_namespace(|| {
        let i = |code, jt, jf, k| Classic { code, jt, jf, k };
        // The TTL is 63.
        let program = |at| {
            filter::compile(&[i(0x30, 0, 0, at), i(0x15, 0, 1, 63), i(6, 0, 0, 1), i(6, 0, 0, 0)]).unwrap()
        };
        let mut c = Capturing::new(World::new(), &everything());
        for (frame, tags, once, unsure) in [
            (udp("10.0.2.9"), 0, false, true),
            (udp("10.0.3.9"), 4, true, true),
            (udp("10.0.2.9").tagged(&[AD200, Q7]), 0, true, true),
        ] {
            for (filter_once, seen) in [(true, once), (false, unsure)] {
                c.want(&Wanted { filter: program(22 + tags), filter_once, ..everything() });
                assert_eq!(c.is_captured(0, &frame), seen, "{frame:?}, once: {filter_once}");
            }
        }
        let routed = udp("10.0.1.1").ip4(|ip| ip[8] = 63);
        assert!(c.is_captured(0, &routed), "it goes up as it came in");
    });
}

/// Filters of tcpdump find packets with and without tags, and negations do not find more of them.
#[test]
#[ignore = "needs root"]
fn filters_of_tcpdump_see_through_tags() {
    in_new_namespace(|| {
        let mut c = Capturing::new(World::new(), &everything());
        for (filter, matches) in [
            ("dst host 10.0.2.9", true),
            ("not dst host 10.0.2.9", false),
            ("not udp", false),
            ("ip and not tcp", true),
            ("vlan 200 and vlan 7", true),
            ("udp dst port 2000 or icmp6 or ip6 host fd00::1", true),
        ] {
            let classic = router::cli::compiled_filter(filter).unwrap();
            let classic: Vec<_> =
                classic.into_iter().map(|(code, jt, jf, k)| Classic { code, jt, jf, k }).collect();
            assert!(!routed::can_match_later(&classic), "{filter}");
            // It must match as the packet comes in: the reason is one of packets that do not leave.
            let reasons = [Reason::TtlExceeded].into();
            c.want(&Wanted { filter: filter::compile(&classic).unwrap(), reasons, ..everything() });
            let frame = udp("10.0.2.9").ip4(|ip| ip[8] = 1);
            for tags in [&[][..], &[AD200, Q7]] {
                if filter.starts_with("vlan") && tags.is_empty() {
                    continue;
                }
                assert_eq!(c.is_captured(0, &frame.clone().tagged(tags)), matches, "{filter} {tags:?}");
            }
        }
    });
}

/// The longest filter that libpcap and the room allow. The kernel's verifier takes it.
#[test]
#[ignore = "needs root"]
fn a_long_filter_fits() {
    in_new_namespace(|| {
        let i = |code, jt, jf, k| Classic { code, jt, jf, k };
        let mut long = vec![i(0x20, 0, 0, 30)];
        long.extend((0..253).map(|n| i(0x15, (253 - n) as u8, 0, 0x0a00_0300 + n)));
        long.extend([i(6, 0, 0, 0), i(6, 0, 0, 1)]);
        let filter = filter::compile(&long).unwrap();
        let mut c = Capturing::new(World::new(), &Wanted { filter, ..everything() });
        assert!(c.is_captured(0, &udp("10.0.3.9")));
        assert!(!c.is_captured(0, &udp("10.0.2.9")));
        let branches = (0..120)
            .flat_map(|n| [i(0x30, 0, 0, n), i(0x45, 1, 0, 1), i(0x04, 0, 0, 3), i(0x02, 0, 0, n % 16)]);
        let branching: Vec<_> = branches.chain([i(0x60, 0, 0, 3), i(0x16, 0, 0, 0)]).collect();
        c.want(&Wanted { filter: filter::compile(&branching).unwrap(), ..everything() });
    });
}

#[test]
#[ignore = "needs root"]
fn a_capture_is_bounded() {
    in_new_namespace(|| {
        // A packet each hour.
        let mut c = Capturing::new(World::new(), &Wanted { pps: 1, ..everything() });
        let frame = udp("10.0.2.9").bytes();
        let seen: Vec<_> = (0..50).flat_map(|_| c.outcome(0, &frame).1).collect();
        assert!((1..50).contains(&seen.len()), "{}", seen.len());
        assert_eq!(c.maps.missing(), Missing { over_rate: 50 - seen.len() as u64, no_room: 0 });

        // 100 packets at once, and one each millisecond. Then the rate is used up until the next tick of the kernel.
        c.want(&Wanted { pps: 1000, ..everything() });
        let ifindex = c.w.port[0];
        std::thread::sleep(std::time::Duration::from_millis(150));
        let before = c.maps.missing().over_rate;
        (0..3000).for_each(|_| drop(c.w.plane.run_captured(ifindex, &frame).unwrap()));
        let (seen, over) = (c.read(), c.maps.missing().over_rate - before);
        assert!(seen.len() >= 100 && seen.len() as u64 + over == 3000, "{} + {over}", seen.len());
        assert!(seen.iter().all(|seen| seen.came == Some(hex(&frame))));
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert_eq!(c.outcome(0, &frame).1.len(), 1, "the rate allows more");

        c.want(&Wanted { pps: 0, ..everything() });
        let long = Frame::udp4(A, "10.0.1.5", "10.0.1.1").with(|ip| ip.resize(1500, 7)).bytes();
        let runs = (8 << 20) / 1500;
        (0..runs).for_each(|_| drop(c.w.plane.run_captured(ifindex, &long).unwrap()));
        let (no_room, read) = (c.maps.missing().no_room, c.read().len() as u64);
        assert!(no_room > 0 && no_room + read == runs, "{no_room} + {read}");
    });
}

#[test]
#[ignore = "needs root"]
fn samples_are_taken_at_their_rate() {
    in_new_namespace(|| {
        let mut c = Capturing::new(World::new(), &everything());
        c.maps.want(None);
        c.maps.sample(16);
        let frame = udp("10.0.2.9").bytes();
        let ifindex = c.w.port[0];
        (0..16_000).for_each(|_| drop(c.w.plane.run_captured(ifindex, &frame).unwrap()));
        let seen = c.samples();
        // The distances are equally distributed on 1 to 31: 1,000 samples have a standard deviation of 18.
        assert!((850..1150).contains(&seen.len()), "{}", seen.len());
        let of: u32 = seen.iter().map(|seen| seen.ahead).sum();
        assert!((15_900..=16_000).contains(&of), "{of}");
        let sample = &seen[0];
        assert_eq!((sample.came.clone(), sample.left.as_str()), (Some(hex(&frame)), ""));
        assert_eq!(sample.fate, Fate::Forwarded(Some(1)));
        assert_eq!((c.read(), c.maps.samples_lost()), (vec![], 0));
        // A ring that nobody reads fills up.
        c.maps.sample(1);
        (0..8000).for_each(|_| drop(c.w.plane.run_captured(ifindex, &frame).unwrap()));
        let (lost, read) = (c.maps.samples_lost(), c.samples().len() as u64);
        assert!(lost > 0, "{read}");
        assert_eq!(lost + read, 8000);
        // A long distance does not outlive its rate.
        c.maps.sample(1 << 20);
        (0..2).for_each(|_| drop(c.w.plane.run_captured(ifindex, &frame).unwrap()));
        c.samples();
        c.maps.sample(4);
        (0..100).for_each(|_| drop(c.w.plane.run_captured(ifindex, &frame).unwrap()));
        assert!(c.samples().len() >= 100 / 7);
    });
}

/// A capture and samples have nothing to do with each other.
#[test]
#[ignore = "needs root"]
fn packets_are_sampled_and_captured_at_once() {
    in_new_namespace(|| {
        let mut c = Capturing::new(World::new(), &everything());
        c.maps.sample(1);
        let frame = udp("10.0.2.9");
        (0..40).for_each(|_| drop(c.outcome(0, &frame.bytes())));
        c.samples();
        let left = frame.routed(FRIEND, B, &[]);
        let captured = forwarded(&frame.bytes(), 1, &left);
        assert_eq!(c.outcome(0, &frame.bytes()).1, captured);
        let sampled = Seen { left: String::new(), ahead: 1, ..captured[0].clone() };
        assert_eq!(c.samples(), std::slice::from_ref(&sampled));
        // The filter matches the frame only as it leaves: these bytes are of its destination.
        let ends = u32::from_be_bytes(FRIEND.0[2..].try_into().unwrap());
        let classic = [
            Classic { code: 0x20, jt: 0, jf: 0, k: 2 },
            Classic { code: 0x15, jt: 0, jf: 1, k: ends },
            Classic { code: 0x06, jt: 0, jf: 0, k: 1 },
            Classic { code: 0x06, jt: 0, jf: 0, k: 0 },
        ];
        c.want(&Wanted { filter: filter::compile(&classic).unwrap(), ..everything() });
        let only_left = Seen { came: None, ..captured[0].clone() };
        assert_eq!(c.outcome(0, &frame.bytes()).1, [only_left]);
        assert_eq!(c.samples(), std::slice::from_ref(&sampled));
        let other = udp("192.0.2.1").bytes();
        assert_eq!(c.outcome(0, &other).1, []);
        assert_eq!(c.samples()[0].came, Some(hex(&other)));
    });
}

/// Each program has one with captures, with the same verdicts.
#[test]
#[ignore = "needs root"]
fn paths_and_flow_rules_are_captured() {
    in_new_namespace(|| {
        let mut w = World::new();
        let paths = Arc::new(PathMaps::new(1792).unwrap());
        w.plane.set_paths(&paths).unwrap();
        w.plane.set_with_paths(true);
        let mut c = Capturing::new(w, &everything());
        let frame = udp("10.0.2.9");
        let left = frame.routed(FRIEND, B, &[]);
        let routed = forwarded(&frame.bytes(), 1, &left);
        assert_eq!(c.outcome(0, &frame.bytes()).1, routed);
        for with_paths in [true, false] {
            let mut w = {
                for port in ["p0", "p1"] {
                    super::run(&format!("ip link del {port}"));
                }
                World::new()
            };
            if with_paths {
                w.plane.set_paths(&paths).unwrap();
            }
            let seed = Seed::new([3, 5, 7, 11, 13]);
            let rules = FlowMaps::new(FlowSettings { capacity: features::CAPACITY, seed });
            w.plane.set_rules(Some(&Arc::new(rules.unwrap()))).unwrap_or_else(|e| panic!("{e:#}"));
            let mut c = Capturing::new(w, &everything());
            // No rule has been set, not even the one for packets that no rule matches.
            let seen = c.outcome(0, &frame.bytes()).1;
            assert!(matches!(seen[..], [Seen { fate: Fate::Other(_), from: 0, .. }]), "{seen:?}");
        }
    });
}
