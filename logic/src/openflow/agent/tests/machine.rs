use super::*;
use crate::openflow::extension::{Core, Cores, Extension, Features, Workload};
use proptest::{collection::vec, prelude::*};

const BOTH: [Version; 2] = [OpenFlow10, OpenFlow13];

/// OFPT_VENDOR, OFPT_EXPERIMENTER in both versions.
const VENDOR: u8 = 4;

fn workload(id: u32, tenant: u32, cores: &[u16]) -> Workload {
    Workload { id, tenant, cores: cores.into() }
}

/// Cores 0, 1, ... with these loads. The workloads are pinned to the first.
fn cores(loads: &[Option<u16>], workloads: u16) -> Cores {
    let core = |(n, &load): (usize, _)| Core {
        number: n as u16,
        load,
        workloads: if n == 0 { workloads } else { 0 },
    };
    let features = Features { rss: true, core_redirect: true, ..Features::default() };
    Cores { features, cores: loads.iter().enumerate().map(core).collect() }
}

fn subscribe(cores: bool, workloads: bool) -> Message {
    Message::Experimenter(Extension::Subscribe { cores, workloads }.encode())
}

/// Our extension's messages, with connection and transaction id.
fn told(did: Vec<Did>) -> Vec<(u32, u32, Extension)> {
    let one = |did| match did {
        Said(n, xid, Message::Experimenter(message)) => (n, xid, Extension::decode(&message).unwrap()),
        other => panic!("{other:?}"),
    };
    did.into_iter().map(one).collect()
}

fn start(id: u32, tenant: u32, cores: &[u16]) -> Extension {
    Extension::WorkloadStart(workload(id, tenant, cores))
}

fn stop(id: u32, tenant: u32) -> Extension {
    Extension::WorkloadStop { id, tenant }
}

#[test]
fn a_subscription_is_answered_in_order_and_changes_follow() {
    for version in BOTH {
        let mut b = bench(settings());
        b.open(1, version);
        b.agent.set_cores(cores(&[Some(250), None], 2), b.now_ms);
        b.agent.set_workloads(vec![workload(9, 1, &[]), workload(7, 5, &[2, 1, 2])], b.now_ms);
        assert_eq!(b.done(), [], "there is no subscriber yet");
        let says = |xid, body: &str| raw(version, VENDOR, xid, &format!("4d4c5243 {body}"));
        let echo = raw(version, 2, 3, "ab");
        b.bytes(1, &[&says(2, "00000001 00000003 00000000")[..], &echo].concat());
        let list = "00000009 0002 0000  0000 00fa 0002 0000  0001 ffff 0000 0000";
        let answers = [
            says(2, &format!("00000002 {list}")),
            says(2, "00000003 00000007 00000005 0002 0000 0001 0002"),
            says(2, "00000003 00000009 00000001 0000 0000 00000000"),
            raw(version, 3, 3, "ab"),
        ];
        assert_eq!(b.sent(1), answers.concat());

        b.agent.set_workloads(vec![workload(7, 5, &[3])], b.now_ms);
        let changes = [
            says(0, "00000004 00000009 00000001"),
            says(0, "00000003 00000007 00000005 0001 0000 0003 0000"),
        ];
        assert_eq!(b.sent(1), changes.concat());
        b.agent.set_cores(cores(&[None, None], 1), b.now_ms);
        let list = "00000009 0002 0000  0000 ffff 0001 0000  0001 ffff 0000 0000";
        assert_eq!(b.sent(1), says(0, &format!("00000002 {list}")));

        // No more workloads, then nothing at all.
        b.bytes(1, &says(4, "00000001 00000001 00000000"));
        assert_eq!(b.sent(1), says(4, &format!("00000002 {list}")));
        b.agent.set_workloads(vec![], b.now_ms);
        assert_eq!(b.sent(1), [0; 0]);
        b.bytes(1, &says(5, "00000001 00000000 00000000"));
        b.agent.set_cores(cores(&[], 0), b.now_ms);
        assert_eq!(b.sent(1), [0; 0]);
    }
}

#[test]
fn core_statistics_are_sent_on_request() {
    for version in BOTH {
        let mut b = bench(settings());
        b.open(1, version);
        for (core, expected) in
            [(None, vec![core_stats(0), core_stats(3)]), (Some(3), vec![core_stats(3)]), (Some(7), vec![])]
        {
            let asks = Message::Experimenter(Extension::CoreStatsRequest { core }.encode());
            b.bytes(1, &encoded(version, 9, &asks));
            assert_eq!(told(b.done()), [(1, 9, Extension::CoreStats(expected))]);
        }
    }
}

#[test]
fn messages_that_only_a_switch_sends_and_broken_ones_are_refused() {
    for version in BOTH {
        let mut b = bench(settings());
        b.open(1, version);
        for (body, code) in [
            ("00000001 00000003", 6),
            ("00000001 00000003 00000000 00", 6),
            ("00000002 00000000 0000 0000", 4),
            ("00000003 00000007 00000005 0000 0000 00000000", 4),
            ("00000004 00000007 00000005", 4),
            ("00000005", 6),
            ("00000005 01 0e 0008 000000", 6),
            ("00000006 00000000", 6),
            ("00000007 0000 000000000000", 4),
            ("00000008 00000000", 4),
        ] {
            let bytes = raw(version, VENDOR, 8, &format!("4d4c5243 {body}"));
            b.bytes(1, &bytes);
            assert_eq!(b.done(), [Said(1, 8, error(1, code, &bytes))], "{body}");
        }
        b.agent.set_workloads(vec![workload(1, 1, &[])], b.now_ms);
        assert_eq!(b.done(), []);
    }
}

#[test]
fn only_subscribers_get_notices_including_slaves() {
    let mut b = bench(settings());
    [(1, OpenFlow10), (2, OpenFlow13), (3, OpenFlow13)].into_iter().for_each(|(n, v)| b.open(n, v));
    b.say(1, 1, &subscribe(true, false));
    b.say(2, 1, &subscribe(false, true));
    b.say(2, 0, &Message::RoleRequest { role: Role::Slave, generation: 1 });
    assert_eq!(b.done().len(), 2);
    b.agent.set_workloads(vec![workload(7, 5, &[0])], b.now_ms);
    b.agent.set_cores(cores(&[Some(0)], 1), b.now_ms);
    let told_of = Extension::Cores(cores(&[Some(0)], 1));
    assert_eq!(told(b.done()), [(2, 0, start(7, 5, &[0])), (1, 0, told_of)]);
    b.agent.closed(ConnectionId(2));
    b.agent.set_workloads(vec![], b.now_ms);
    assert_eq!(b.done(), []);
}

#[test]
fn starts_and_stops_are_the_difference() {
    let a = || workload(1, 1, &[0]);
    for (before, after, expected) in [
        (vec![], vec![], vec![]),
        (vec![], vec![a()], vec![start(1, 1, &[0])]),
        (vec![a()], vec![a()], vec![]),
        (vec![a()], vec![], vec![stop(1, 1)]),
        (vec![a()], vec![workload(1, 1, &[])], vec![start(1, 1, &[])]),
        (vec![a()], vec![workload(1, 2, &[0])], vec![stop(1, 1), start(1, 2, &[0])]),
        (vec![workload(1, 1, &[2, 1])], vec![workload(1, 1, &[1, 2, 2])], vec![]),
        (vec![a()], vec![workload(1, 1, &[9]), a()], vec![]),
        (
            vec![a(), workload(5, 1, &[])],
            vec![workload(9, 3, &[]), workload(0, 3, &[])],
            vec![stop(1, 1), stop(5, 1), start(0, 3, &[]), start(9, 3, &[])],
        ),
    ] {
        let mut b = bench(settings());
        b.agent.set_workloads(before.clone(), b.now_ms);
        b.open(1, OpenFlow13);
        b.say(1, 1, &subscribe(false, true));
        assert_eq!(told(b.done()).len(), before.len());
        b.agent.set_workloads(after.clone(), b.now_ms);
        let expected: Vec<_> = expected.into_iter().map(|extension| (1, 0, extension)).collect();
        assert_eq!(told(b.done()), expected, "{before:?} {after:?}");
    }
}

#[test]
fn changes_of_load_are_sent_once_a_second_and_from_five_percent_on() {
    let mut b = bench(settings());
    b.agent.set_cores(cores(&[Some(100), None], 0), b.now_ms);
    b.open(1, OpenFlow13);
    b.say(1, 1, &subscribe(true, false));
    assert_eq!(b.done().len(), 1);
    // Milliseconds that pass; the new loads and pinned workloads, or `None`; the load in the notice, if there
    // is one.
    for (after_ms, change, is_told) in [
        (0, Some((Some(900), 0)), None),
        (999, None, None),
        (1, None, Some(900)),
        (0, Some((Some(850), 0)), None),
        (1000, None, Some(850)),
        (0, Some((Some(801), 0)), None),
        (5000, None, None),
        (0, Some((Some(800), 0)), Some(800)),
        (0, Some((None, 0)), None),
        (10, Some((Some(790), 1)), Some(790)),
        (990, Some((Some(0), 1)), None),
        (10, Some((Some(0), 1)), Some(0)),
    ] {
        b.now_ms += after_ms;
        match change {
            Some((load, workloads)) => b.agent.set_cores(cores(&[load, None], workloads), b.now_ms),
            None => b.agent.tick(b.now_ms),
        }
        let loads: Vec<_> = told(b.done())
            .into_iter()
            .map(|(_, _, extension)| match extension {
                Extension::Cores(cores) => cores.cores[0].load.unwrap(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(loads, Vec::from_iter(is_told), "{after_ms} {change:?}");
    }
    // A core more or less, or another feature, is sent at once.
    for (list, expected) in [(&[None; 3][..], 1), (&[None; 3], 0), (&[None], 1), (&[], 1)] {
        b.agent.set_cores(cores(list, 0), b.now_ms);
        assert_eq!(b.done().len(), expected);
    }
    b.agent.set_cores(Cores::default(), b.now_ms);
    assert_eq!(b.done().len(), 1);
}

#[test]
fn workloads_are_bounded_and_the_known_ones_stay() {
    let mut b = bench(settings());
    b.open(1, OpenFlow13);
    let many = |from: u32, count| (from..from + count).map(|id| workload(id, 1, &[])).collect::<Vec<_>>();
    b.agent.set_workloads(many(1000, WORKLOADS as u32 + 3), b.now_ms);
    assert_eq!(b.agent.workloads_left_out(), 3);
    b.say(1, 1, &subscribe(false, true));
    let all = told(b.done());
    assert_eq!((all.len(), &all[0].2, &all[4095].2), (4096, &start(1000, 1, &[]), &start(5095, 1, &[])));
    let mut more = many(1000, WORKLOADS as u32 - 1);
    more.extend(many(0, 2));
    b.agent.set_workloads(more, b.now_ms);
    assert_eq!(told(b.done()), [(1, 0, stop(5095, 1)), (1, 0, start(0, 1, &[]))]);
    assert_eq!(b.agent.workloads_left_out(), 1);
}

#[test]
fn a_slow_reader_gets_only_the_newest_cores_and_is_closed_for_too_many_workloads() {
    let mut b = bench(settings());
    let wide: Vec<u16> = (0..4096).collect();
    let all = |tenant| (0..WORKLOADS as u32).map(|id| workload(id, tenant, &wide)).collect::<Vec<_>>();
    b.agent.set_workloads(all(0), b.now_ms);
    b.open(1, OpenFlow10);
    b.reads = false;
    b.say(1, 1, &subscribe(true, true));
    for n in 1..=5 {
        b.agent.set_cores(cores(&[None], n), b.now_ms);
        b.agent.set_workloads(if n == 1 { all(1) } else { all(1)[1..].to_vec() }, b.now_ms);
    }
    let mut unsent = 0;
    loop {
        let did = b.agent.take_effects();
        let bytes: Vec<u8> = did
            .into_iter()
            .flat_map(|effect| match effect {
                Effect::Send { bytes, .. } => bytes,
                Effect::Read(_) => vec![],
                other => panic!("{other:?}"),
            })
            .collect();
        unsent += bytes.len();
        assert!(b.report(1).unsent_bytes <= UNSENT + (600 << 10));
        let cores = messages(&bytes).filter_map(|(xid, message)| match message {
            Message::Experimenter(m) => Some((xid, Extension::decode(&m).unwrap())),
            _ => None,
        });
        let pinned: Vec<_> = cores
            .filter_map(|(xid, extension)| match extension {
                Extension::Cores(cores) => Some((xid, cores.cores.first().map(|core| core.workloads))),
                _ => None,
            })
            .collect();
        let expected = match unsent == bytes.len() {
            // The answer.
            true => vec![(1, None)],
            false if pinned.is_empty() => vec![],
            false => vec![(0, Some(5))],
        };
        assert_eq!(pinned, expected);
        if bytes.is_empty() {
            break;
        }
        b.agent.written(ConnectionId(1), bytes.len(), b.now_ms, &Counters);
    }
    // The answer, a start for each workload again, one stop.
    let start_bytes = 16 + 12 + 2 * 4096 + 4;
    let cores_bytes = 24 + 24 + 8;
    assert_eq!(unsent, 2 * WORKLOADS * start_bytes + (WORKLOADS + 1) * 24 + cores_bytes);

    b.say(1, 1, &subscribe(false, true));
    b.agent.set_workloads(all(2), b.now_ms);
    assert!(!b.done().iter().any(|did| matches!(did, Closed(..))));
    b.agent.set_workloads(all(3), b.now_ms);
    let why = "it does not read the notices that it asked for".into();
    assert_eq!(b.done(), [Closed(1, why)]);
}

proptest! {
    #![proptest_config(crate::cases(64))]

    /// A peer that applies all notices knows the running workloads.
    #[test]
    fn a_subscriber_knows_the_running_workloads(
        steps in vec((any::<bool>(), vec((0..6_u32, 0..2_u32, vec(0..3_u16, 0..3)), 0..8)), 1..12),
    ) {
        let mut b = bench(settings());
        b.open(1, OpenFlow10);
        let mut known: Option<BTreeMap<u32, Workload>> = None;
        for (subscribes, list) in steps {
            if subscribes {
                b.say(1, 1, &subscribe(false, true));
                known = Some(BTreeMap::new());
            }
            let list: Vec<_> = list.into_iter().map(|(id, tenant, cores)| Workload { id, tenant, cores }).collect();
            b.agent.set_workloads(list.clone(), b.now_ms);
            let did = told(b.done());
            let Some(known) = &mut known else {
                prop_assert_eq!(did, []);
                continue;
            };
            for (_, _, extension) in did {
                match extension {
                    Extension::WorkloadStart(new) => {
                        let before = known.insert(new.id, new.clone());
                        prop_assert!(before.is_none_or(|old| old != new && old.tenant == new.tenant));
                    }
                    Extension::WorkloadStop { id, tenant } => {
                        prop_assert_eq!(known.remove(&id).map(|old| old.tenant), Some(tenant));
                    }
                    other => panic!("{other:?}"),
                }
            }
            let mut runs = BTreeMap::new();
            for mut workload in list {
                workload.cores = workload.cores.into_iter().collect::<BTreeSet<_>>().into_iter().collect();
                runs.insert(workload.id, workload);
            }
            prop_assert_eq!(&*known, &runs);
        }
    }
}
