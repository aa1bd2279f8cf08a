//! How long connections stay fast.

use super::{
    admission::{Admitted, Consent, Refusal},
    again::Again,
    kept::{Clock, Due, Kept, Reset, State, Timeouts, View},
    note::ConnectionNote,
    tracked::{Refresh, Special, Tracked, Way, Ways},
};
use crate::{
    firewall::{
        ruleset::{
            Base, Chain, Devices, Element, Expression, Family, Firewall, Header, Hook, Into, Register, Rule,
            Ruleset, Set, Table, Value, Verdict,
        },
        traffic::{ASSURED, CONFIRMED, DST_NAT, Device, SEEN_REPLY, SRC_NAT, TCP, Tuple, UDP, Version},
    },
    memory::words,
    mirror::ConnectionRules,
    tables::connections::{
        ConnectionKey, ConnectionMemory, ConnectionTable, HeapConnections, find_row, rows_for, validity, word,
    },
};
use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

const PAIRS: usize = 8;
const S: Duration = Duration::from_secs(1);
/// The time at which a bench begins.
const NOW: Duration = Duration::from_secs(1000);
/// Half a minute of jiffies, far from 0.
const HZ: f64 = 100.0;

struct Bench {
    kept: Kept<Arc<HeapConnections>>,
    memory: Arc<HeapConnections>,
    now: Duration,
}

fn clock(now: Duration) -> Clock {
    Clock { now, jiffies: 1_000_000 + (now.as_secs_f64() * HZ) as u64, hz: HZ }
}

fn firewall(table: Table) -> Arc<Firewall> {
    Arc::new(Firewall { rules: Ruleset { tables: vec![Arc::new(table)] }, ..Firewall::default() })
}

/// A router with the devices 1 and 2, a chain that accepts all, and an empty one of NAT.
fn rules(router: u8, generation: u32) -> ConnectionRules {
    let base = Base { hook: Hook::Forward, priority: 0, nat: false, accepts: true, devices: Devices::All };
    let rule =
        Rule { handle: 1, expressions: vec![Expression::Ct { key: 0, direction: None, into: Register(0) }] };
    let nat = Base { hook: Hook::Postrouting, priority: 100, nat: true, ..base.clone() };
    let chains = BTreeMap::from([
        ("f".into(), Chain { base: Some(base), rules: vec![rule] }),
        ("n".into(), Chain { base: Some(nat), rules: Vec::new() }),
    ]);
    let table =
        Table { family: Family::Inet, name: "t".into(), dormant: false, chains, sets: BTreeMap::new() };
    let device = |ifindex, name: &str| Device { ifindex, name: name.into(), below: Vec::new() };
    ConnectionRules {
        namespace: 0,
        name: "r".into(),
        router,
        generation,
        firewall: firewall(table),
        devices: [(1, device(10, "lan")), (2, device(11, "wan"))].into(),
    }
}

fn tuple(source: [u8; 4], source_port: u16, destination: [u8; 4], destination_port: u16) -> Tuple {
    Tuple { source: source.into(), destination: destination.into(), source_port, destination_port }
}

/// The n-th connection behind a masquerade.
fn tracked(protocol: u8, n: u16) -> Tracked {
    Tracked {
        tuples: [
            tuple([10, 0, 0, 2], n, [192, 0, 2, 1], 80),
            tuple([192, 0, 2, 1], 80, [198, 51, 100, 1], 1000 + n),
        ],
        protocol,
        status: SEEN_REPLY | ASSURED | CONFIRMED | SRC_NAT,
        tcp_state: (protocol == TCP).then_some(3),
        expires_s: 100,
        special: None,
    }
}

fn note(protocol: u8, n: u16) -> ConnectionNote {
    let tuple = tracked(protocol, n).tuples[0];
    ConnectionNote { router: 3, version: Version::V4, protocol, tuple, ingress: 1, egress: 2 }
}

impl Bench {
    fn new() -> Bench {
        Bench::with_room_for(PAIRS)
    }

    fn with_room_for(connections: usize) -> Bench {
        let memory = Arc::new(HeapConnections::new(rows_for(connections)));
        let mut kept = Kept::new(ConnectionTable::new(memory.clone(), 7), Consent::All);
        kept.follow(vec![rules(3, 1)]);
        Bench { kept, memory, now: NOW }
    }

    fn keep(&mut self, protocol: u8, n: u16, timeout_s: u32) -> Result<Ways, Refusal> {
        let (note, tracked) = (note(protocol, n), tracked(protocol, n));
        let admitted = self.kept.admit(&note, &tracked, self.now)?;
        let least_s = if protocol == TCP { 300 } else { timeout_s };
        let id = self.kept.keep(
            &note,
            admitted,
            Timeouts { usual_s: timeout_s, least_s, closing_s: u32::MAX },
            self.now,
        )?;
        self.kept.begin(&note, id, &tracked, clock(self.now))?;
        Ok(admitted.ways)
    }

    /// The word at which a row begins. Rows 0 and 1 are those of the first connection, and so on.
    fn at(&self, row: usize) -> usize {
        let find = |protocol| {
            let tuple = tracked(protocol, 1 + row as u16 / 2).tuples[row % 2];
            find_row(&self.memory, 7, &ConnectionKey { router: 3, protocol, tuple })
        };
        let row = [TCP, UDP].into_iter().find_map(find).expect("the connection is not there");
        row as usize * words::CONNECTION
    }

    fn row(&self, row: usize, word: usize) -> &std::sync::atomic::AtomicU64 {
        &self.memory.rows()[self.at(row) + word]
    }

    /// The generation of a row, and the jiffies until which it is valid.
    fn valid(&self, row: usize) -> (u32, u64) {
        validity(self.row(row, word::VALID).load(Relaxed))
    }

    /// The jiffies so many seconds from now, rounded down as in a row.
    fn in_s(&self, seconds: u64) -> u64 {
        (clock(self.now).jiffies + seconds * HZ as u64) / 64 * 64
    }

    /// The program forwards so many packets and bytes of the first direction of the first connection.
    fn use_first(&self, packets: u64, bytes: u64) {
        self.row(0, word::PACKETS).fetch_add(packets, Relaxed);
        self.row(0, word::BYTES).fetch_add(bytes, Relaxed);
    }

    /// Frees rows of removed connections.
    fn free(&mut self) {
        if let Some(epoch) = self.kept.seal() {
            self.kept.reuse(epoch);
        }
    }

    fn look_after(&mut self, time: Duration) -> Due {
        self.now += time;
        self.kept.look(clock(self.now)).remove(&3).unwrap_or_default()
    }

    fn count(&self) -> usize {
        self.kept.count(3)
    }
}

/// Linux ends a masqueraded connection when packets of its first direction leave by another device. Answers do not show by
/// which one they leave.
#[test]
fn answers_do_not_make_a_masqueraded_connection_fast() {
    let mut bench = Bench::new();
    let back = ConnectionNote { tuple: tracked(UDP, 1).tuples[1], ingress: 2, egress: 1, ..note(UDP, 1) };
    assert_eq!(bench.kept.admit(&back, &tracked(UDP, 1), NOW), Err(Refusal::OnlyAnswers));
    for status in
        [SEEN_REPLY | ASSURED, SEEN_REPLY | ASSURED | DST_NAT, SEEN_REPLY | ASSURED | DST_NAT | SRC_NAT]
    {
        let other = Tracked { status, ..tracked(UDP, 1) };
        assert!(bench.kept.admit(&back, &other, NOW).is_ok(), "{status:#x}");
    }
    assert!(bench.kept.admit(&note(UDP, 1), &tracked(UDP, 1), NOW).is_ok());
}

/// Linux translates no connection any more when the last chain of NAT is deleted.
#[test]
fn a_translated_connection_without_a_chain_of_nat_stays_with_linux() {
    let mut bench = Bench::new();
    let mut without = rules(3, 2);
    let mut table = (*without.firewall.rules.tables[0]).clone();
    table.chains.remove("n");
    let rules = Ruleset { tables: vec![Arc::new(table)] };
    without.firewall = Arc::new(Firewall { rules, ..Firewall::default() });
    bench.kept.follow(vec![without]);
    assert_eq!(bench.keep(UDP, 1, 120), Err(Refusal::Untranslated));
    let mut plain = tracked(UDP, 1);
    plain.tuples[1] = plain.tuples[0].reversed();
    assert!(bench.kept.admit(&note(UDP, 1), &plain, NOW).is_ok());
}

#[test]
fn a_connection_is_kept_with_both_ways_until_linux_forgets_it() {
    let mut bench = Bench::new();
    let Ways([there, back]) = bench.keep(UDP, 1, 120).unwrap();
    let [original, reply] = tracked(UDP, 1).tuples;
    assert_eq!(there, Way { arrives: original, leaves: tuple([198, 51, 100, 1], 1001, [192, 0, 2, 1], 80) });
    assert_eq!(back, Way { arrives: reply, leaves: tuple([192, 0, 2, 1], 80, [10, 0, 0, 2], 1) });
    // 100 s until Linux forgets it, and one of these is left to Linux.
    for row in [0, 1] {
        assert_eq!(bench.valid(row).1, bench.in_s(99));
    }
    assert!(!bench.kept.wants(&note(UDP, 1), bench.now), "it is fast already");
    assert!(bench.kept.wants(&note(UDP, 2), bench.now));
    assert!(!bench.kept.wants(&ConnectionNote { router: 4, ..note(UDP, 2) }, bench.now), "another router");
    // Used a little all the time, but Linux is not told: then it ends here first.
    for _ in 0..98 {
        bench.use_first(1, 100);
        bench.look_after(S);
        assert_eq!(bench.count(), 1);
    }
    bench.use_first(1, 100);
    bench.look_after(S);
    assert_eq!(bench.count(), 0);
}

/// The timeouts that Linux is asked to set, as (protocol, seconds).
fn told(due: &Due) -> Vec<(u8, u32)> {
    due.refresh.iter().map(|(_, one)| (one.protocol, one.timeout_s)).collect()
}

#[test]
fn timeouts_of_used_connections_are_renewed() {
    let mut bench = Bench::new();
    bench.keep(UDP, 1, 120).unwrap();
    bench.use_first(1, 100);
    assert_eq!(bench.look_after(9 * S), Due::default(), "more than three quarters of the timeout are left");
    bench.use_first(1, 100);
    let due = bench.look_after(S);
    assert_eq!(told(&due), [(UDP, 120)]);
    let (id, Refresh { tuple, .. }) = due.refresh[0];
    assert_eq!(tuple, tracked(UDP, 1).tuples[0]);
    bench.kept.refreshed(3, id, 120, true, clock(bench.now));
    assert_eq!(bench.valid(1).1, bench.in_s(119));
    for _ in 0..29 {
        bench.use_first(1, 100);
        assert_eq!(bench.look_after(S), Due::default());
    }
    bench.use_first(1, 100);
    assert_eq!(told(&bench.look_after(S)), [(UDP, 120)]);
    bench.kept.refreshed(3, id, 120, false, clock(bench.now));
    assert_eq!(bench.count(), 0, "Linux does not know it any more");
}

#[test]
fn linux_forgets_a_quiet_connection_as_late_as_without_millrace() {
    let mut bench = Bench::new();
    bench.keep(UDP, 1, 120).unwrap();
    bench.use_first(1, 100);
    bench.look_after(S);
    assert_eq!(bench.look_after(2 * S), Due::default());
    let due = bench.look_after(S);
    assert_eq!(told(&due), [(UDP, 117)], "the last packet was three seconds ago");
    bench.kept.refreshed(3, due.refresh[0].0, 117, true, clock(bench.now));
    assert_eq!(bench.look_after(S), Due::default(), "told already");
    bench.use_first(1, 100);
    bench.look_after(S);
    assert_eq!(told(&bench.look_after(3 * S)), [(UDP, 117)]);
}

#[test]
fn linux_is_owed_the_timeouts_of_packets_that_it_has_not_seen() {
    let mut bench = Bench::new();
    bench.keep(UDP, 1, 120).unwrap();
    bench.keep(TCP, 2, 600).unwrap();
    assert_eq!(bench.kept.owed(3, bench.now), []);
    bench.now += 10 * S;
    bench.use_first(1, 100);
    let owed = Refresh { protocol: UDP, tuple: tracked(UDP, 1).tuples[0], timeout_s: 120 };
    assert_eq!(bench.kept.owed(3, bench.now), [owed]);
    bench.now += 2 * S;
    assert_eq!(bench.kept.owed(3, bench.now), [Refresh { timeout_s: 118, ..owed }]);
    // Linux itself sets the timeout of a closing connection.
    bench.row(0, word::ENDED).store(1, Relaxed);
    assert_eq!(bench.kept.owed(3, bench.now), []);
    assert_eq!(bench.kept.owed(4, bench.now), []);
}

/// Any packet of TCP that Linux sees may set a short timeout: data that is not acknowledged yet.
#[test]
fn tcp_is_valid_only_as_long_as_the_shortest_timeout() {
    let mut bench = Bench::new();
    bench.keep(TCP, 1, 432_000).unwrap();
    let use_both = |bench: &Bench| {
        bench.use_first(1, 100);
        bench.row(1, word::PACKETS).fetch_add(1, Relaxed);
    };
    // Linux has said that 100 s are left of 300 s.
    use_both(&bench);
    let due = bench.look_after(S);
    assert_eq!(told(&due), [(TCP, 432_000)]);
    bench.kept.refreshed(3, due.refresh[0].0, 432_000, true, clock(bench.now));
    assert_eq!(bench.valid(0).1, bench.in_s(299));
    for _ in 0..74 {
        use_both(&bench);
        assert_eq!(bench.look_after(S), Due::default());
    }
    use_both(&bench);
    let due = bench.look_after(S);
    assert_eq!(told(&due), [(TCP, 432_000)]);
    bench.kept.refreshed(3, due.refresh[0].0, 432_000, true, clock(bench.now));
    // Nobody answers any more.
    for _ in 0..74 {
        bench.use_first(1, 100);
        assert_eq!(bench.look_after(S), Due::default());
    }
    bench.use_first(1, 100);
    assert_eq!(told(&bench.look_after(S)), [(TCP, 300)]);
}

/// Linux may not have seen the acknowledgement that RST follows, and then keeps the connection. Its timeout is not renewed.
#[test]
fn linux_is_told_of_a_connection_that_rst_has_ended() {
    for (flags, is_told) in [(1, false), (2, false), (4, true), (6, false)] {
        let mut bench = Bench::new();
        bench.keep(TCP, 1, 432_000).unwrap();
        bench.use_first(1, 100);
        bench.row(1, word::ENDED).fetch_or(flags, Relaxed);
        let due = bench.look_after(100 * S);
        let reset = Reset { tuple: tracked(TCP, 1).tuples[0], may_be_dropped: false };
        let told = if is_told { vec![reset] } else { Vec::new() };
        assert_eq!((due.reset, due.refresh.len()), (told, usize::from(flags == 2)), "flags {flags}");
        assert_eq!(bench.count(), 0);
    }
}

/// A rule that comes before conntrack may drop the RST. Then conntrack has not seen it.
#[test]
fn linux_is_told_that_rules_may_have_dropped_the_rst() {
    let mut bench = Bench::new();
    let mut rules = rules(3, 2);
    let mut table = Table::clone(&rules.firewall.rules.tables[0]);
    let mut raw = table.chains["f"].clone();
    raw.base = raw.base.map(|base| Base { hook: Hook::Prerouting, priority: -300, ..base });
    table.chains.insert("raw".into(), raw);
    rules.firewall = firewall(table);
    bench.kept.follow(vec![rules]);
    bench.keep(TCP, 1, 432_000).unwrap();
    bench.row(1, word::ENDED).fetch_or(4, Relaxed);
    let reset = Reset { tuple: tracked(TCP, 1).tuples[0], may_be_dropped: true };
    assert_eq!(bench.look_after(100 * S).reset, [reset]);
    // The rules have changed since.
    let mut bench = Bench::new();
    bench.keep(TCP, 1, 432_000).unwrap();
    bench.row(1, word::ENDED).fetch_or(4, Relaxed);
    bench.kept.follow(vec![self::rules(3, 2)]);
    assert_eq!(bench.look_after(100 * S).reset, [reset]);
}

/// The program may miss a FIN. So Linux says in time whether the connection is still established.
#[test]
fn linux_is_asked_before_it_forgets_a_connection_that_is_closing() {
    let mut bench = Bench::new();
    let (note, tracked) = (note(TCP, 1), tracked(TCP, 1));
    let admitted = bench.kept.admit(&note, &tracked, NOW).unwrap();
    let timeouts = Timeouts { usual_s: 432_000, least_s: 300, closing_s: 30 };
    let id = bench.kept.keep(&note, admitted, timeouts, bench.now).unwrap();
    bench.kept.begin(&note, id, &tracked, clock(bench.now)).unwrap();
    assert_eq!(bench.valid(0).1, bench.in_s(29));
    let use_both = |bench: &Bench| {
        bench.use_first(1, 100);
        bench.row(1, word::PACKETS).fetch_add(1, Relaxed);
    };
    for _ in 0..14 {
        use_both(&bench);
        assert_eq!(bench.look_after(S), Due::default());
    }
    use_both(&bench);
    assert_eq!(told(&bench.look_after(S)), [(TCP, 432_000)]);
    bench.kept.refreshed(3, id, 432_000, true, clock(bench.now));
    assert_eq!(bench.valid(0).1, bench.in_s(29));
    bench.kept.refreshed(3, id, 432_000, false, clock(bench.now));
    assert_eq!(bench.count(), 0, "it is closing");
}

#[test]
fn a_connection_that_ends_before_it_begins_is_not_fast() {
    let mut bench = Bench::new();
    let (note, tracked) = (note(TCP, 1), tracked(TCP, 1));
    let admitted = bench.kept.admit(&note, &tracked, NOW).unwrap();
    let timeouts = Timeouts { usual_s: 432_000, least_s: 300, closing_s: 30 };
    let id = bench.kept.keep(&note, admitted, timeouts, bench.now).unwrap();
    assert_eq!(bench.valid(0).1, 0);
    // The program sees a FIN, while Linux is asked.
    bench.row(1, word::ENDED).fetch_or(1, Relaxed);
    assert_eq!(bench.kept.begin(&note, id, &tracked, clock(bench.now)), Err(Refusal::NotEstablished));
    assert_eq!(bench.count(), 0);
    for (usual_s, least_s, closing_s) in [(3, 300, 30), (432_000, 0, 30), (432_000, 300, 3)] {
        let kept = bench.kept.keep(&note, admitted, Timeouts { usual_s, least_s, closing_s }, bench.now);
        assert_eq!(kept, Err(Refusal::ShortTimeout));
    }
}

#[test]
fn an_idle_connection_makes_room() {
    let mut bench = Bench::new();
    bench.keep(TCP, 1, 432_000).unwrap();
    bench.use_first(1, 100);
    let refresh = bench.look_after(S).refresh;
    bench.kept.refreshed(3, refresh[0].0, 432_000, true, clock(bench.now));
    bench.look_after(59 * S);
    assert_eq!(bench.count(), 1);
    bench.look_after(S);
    assert_eq!(bench.count(), 0);
}

#[test]
fn flags_of_tcp_are_set_again_before_sequence_numbers_wrap() {
    let mut bench = Bench::new();
    bench.keep(TCP, 1, 432_000).unwrap();
    bench.use_first(1, (1 << 30) - 1);
    assert_eq!(bench.look_after(S).liberal, []);
    bench.use_first(1, 1);
    let due = bench.look_after(S);
    assert_eq!(due.liberal, [(due.refresh[0].0, tracked(TCP, 1).tuples[0])]);
    bench.kept.made_liberal(3, due.liberal[0].0, true);
    assert_eq!(bench.look_after(S).liberal, []);
    bench.row(1, word::BYTES).store(1 << 30, Relaxed);
    assert_eq!(bench.look_after(S).liberal.len(), 1, "of the other direction");
    bench.kept.made_liberal(3, due.liberal[0].0, false);
    assert_eq!(bench.count(), 0);
    // UDP has no sequence numbers.
    bench.keep(UDP, 2, 120).unwrap();
    let row = bench.row(2, word::BYTES);
    row.store(1 << 40, Relaxed);
    assert_eq!(bench.look_after(S).liberal, []);
}

/// A connection of IPv6 takes the room of two.
#[test]
fn a_router_of_ipv6_leaves_room_for_others() {
    let wide = |tuple: Tuple| {
        let wide = |address| match address {
            IpAddr::V4(address) => address.to_ipv6_compatible().into(),
            IpAddr::V6(_) => address,
        };
        Tuple { source: wide(tuple.source), destination: wide(tuple.destination), ..tuple }
    };
    let mut bench = Bench::with_room_for(64);
    let timeouts = Timeouts { usual_s: 120, least_s: 120, closing_s: u32::MAX };
    let mut keep = |n| {
        let tracked = tracked(UDP, n);
        let tracked = Tracked { tuples: tracked.tuples.map(wide), ..tracked };
        let note = ConnectionNote { version: Version::V6, tuple: tracked.tuples[0], ..note(UDP, n) };
        let admitted = Admitted { ways: tracked.ways(&note.tuple).unwrap(), holds_until: None };
        bench.kept.keep(&note, admitted, timeouts, bench.now)
    };
    let kept: Vec<_> = (0..32).map_while(|n| keep(n).ok()).collect();
    assert_eq!(kept.len(), 31, "62 of 64: more than 16 times the 2 that are left");
    assert!(!bench.kept.has_room(3));
    bench.kept.remove(3, kept[0]);
    bench.free();
    assert!(bench.kept.has_room(3), "60 of 64");
    bench.kept.drop_connections(3);
    bench.free();
    assert_eq!(
        (0..64).take_while(|n| bench.keep(UDP, *n, 120).is_ok()).count(),
        61,
        "as if there had been none"
    );
}

/// Routers get room by what is left, so one cannot take all of it.
#[test]
fn a_router_leaves_room_for_others() {
    let mut bench = Bench::with_room_for(64);
    let kept = (0..64).take_while(|n| bench.keep(UDP, *n, 120).is_ok()).count();
    assert_eq!(kept, 61, "of 64: more than 16 times the 3 that are left");
    assert!(!bench.kept.has_room(3) && bench.kept.has_room(4));
    bench.kept.follow(vec![rules(3, 1), rules(4, 2)]);
    let (note, tracked) = (ConnectionNote { router: 4, ..note(UDP, 1) }, tracked(UDP, 1));
    let admitted = bench.kept.admit(&note, &tracked, NOW).unwrap();
    assert!(
        bench
            .kept
            .keep(&note, admitted, Timeouts { usual_s: 120, least_s: 120, closing_s: u32::MAX }, bench.now)
            .is_ok()
    );
}

#[test]
fn ends_are_seen_wherever_they_come_from() {
    for end in ["program", "original", "reply", "rules", "router", "lost"] {
        let mut bench = Bench::new();
        bench.keep(TCP, 1, 432_000).unwrap();
        bench.keep(TCP, 2, 432_000).unwrap();
        let [original, reply] = tracked(TCP, 1).tuples;
        let other = tuple([9; 4], 1, [8; 4], 2);
        let left = match end {
            "program" => {
                bench.row(1, word::ENDED).fetch_or(1, Relaxed);
                bench.look_after(S);
                1
            }
            "original" => {
                bench.kept.destroyed(4, TCP, &[original, reply]);
                bench.kept.destroyed(3, UDP, &[original, reply]);
                assert_eq!(bench.count(), 2, "another router or protocol");
                bench.kept.destroyed(3, TCP, &[original, other]);
                1
            }
            "reply" => {
                bench.kept.destroyed(3, TCP, &[other, reply]);
                1
            }
            "rules" => {
                bench.kept.follow(vec![rules(3, 1)]);
                assert_eq!(bench.count(), 2, "the same rules");
                // The kernel plane does not use them. They wait.
                bench.kept.follow(vec![rules(3, 2)]);
                assert_eq!(bench.kept.fast(3), 0);
                bench.kept.drop_connections(3);
                assert!(!bench.kept.has_waiting());
                0
            }
            "router" => {
                bench.kept.follow(vec![rules(4, 2)]);
                0
            }
            _ => {
                bench.kept.drop_connections(3);
                0
            }
        };
        assert_eq!(bench.count(), left, "{end}");
        let is_there = |tuple: &Tuple| {
            let key = ConnectionKey { router: 3, protocol: TCP, tuple: *tuple };
            find_row(&bench.memory, 7, &key).is_some()
        };
        let both = [tracked(TCP, 1).tuples, tracked(TCP, 2).tuples].concat();
        assert_eq!(both.iter().filter(|tuple| is_there(tuple)).count(), 2 * left, "{end}");
    }
}

#[test]
fn rows_are_used_again_after_a_grace_period_only() {
    let mut bench = Bench::new();
    // Each router takes as much as it may.
    bench.kept.follow((3..8).map(|router| rules(router, u32::from(router))).collect());
    let fill = |bench: &mut Bench| {
        let timeouts = Timeouts { usual_s: 120, least_s: 120, closing_s: u32::MAX };
        let mut keep = |router: u8, n: u16| {
            let note = ConnectionNote { router, ..note(UDP, n) };
            let admitted = bench.kept.admit(&note, &tracked(UDP, n), NOW)?;
            bench.kept.keep(&note, admitted, timeouts, bench.now)
        };
        (3..8)
            .flat_map(|router| (0..8).map(move |n| (router, n)))
            .filter(|(r, n)| keep(*r, *n).is_ok())
            .count()
    };
    assert_eq!(fill(&mut bench), PAIRS);
    (3..8).for_each(|router| bench.kept.drop_connections(router));
    assert_eq!(fill(&mut bench), 0);
    let epoch = bench.kept.seal().unwrap();
    assert!(bench.kept.seal().is_none(), "nothing was removed since");
    bench.kept.reuse(epoch);
    assert_eq!(fill(&mut bench), PAIRS);
}

/// Notes of both directions may come at once, and Linux may have refused both before.
#[test]
fn the_other_direction_of_a_fast_connection_is_not_asked_about() {
    let mut bench = Bench::new();
    let back = ConnectionNote { tuple: tracked(UDP, 1).tuples[1], ingress: 2, egress: 1, ..note(UDP, 1) };
    bench.kept.refuse(&note(UDP, 1), Refusal::TooNew, bench.now);
    bench.kept.refuse(&back, Refusal::TooNew, bench.now);
    bench.keep(UDP, 1, 120).unwrap();
    assert!(!bench.kept.wants(&back, bench.now));
    assert_eq!(bench.kept.ask_again(bench.now + 100 * S), []);
    assert_eq!(bench.kept.views().count(), 1, "neither direction is refused any more");
    bench.kept.refuse(&back, Refusal::Unknown, bench.now);
    assert!(!bench.kept.wants(&back, bench.now), "a late refusal");
}

#[test]
fn a_connection_that_takes_other_interfaces_is_asked_about_again() {
    let mut bench = Bench::new();
    bench.keep(UDP, 1, 120).unwrap();
    let back = ConnectionNote { tuple: tracked(UDP, 1).tuples[1], ingress: 2, egress: 1, ..note(UDP, 1) };
    for same in [note(UDP, 1), back] {
        bench.kept.forget_moved(&same);
        assert!(!bench.kept.wants(&same, bench.now), "{same:?}");
    }
    for moved in [ConnectionNote { egress: 3, ..note(UDP, 1) }, ConnectionNote { ingress: 3, ..back }] {
        bench.kept.forget_moved(&moved);
        assert!(bench.kept.wants(&moved, bench.now), "{moved:?}");
        assert_eq!(bench.count(), 0);
        bench.keep(UDP, 1, 120).unwrap();
    }
}

/// The n-th connection from outside to a port of the router, forwarded to an inside host that sees the router's address.
fn forwarded(n: u16) -> Tracked {
    let tuples = [
        tuple([192, 0, 2, 1], n, [198, 51, 100, 1], 80),
        tuple([10, 0, 0, 2], 8080, [10, 0, 0, 1], 1000 + n),
    ];
    Tracked { tuples, status: SEEN_REPLY | ASSURED | CONFIRMED | SRC_NAT | DST_NAT, ..tracked(UDP, n) }
}

/// The notes of both directions. The client is behind device 2, the server behind 1.
fn local_notes(n: u16) -> [ConnectionNote; 2] {
    let [there, back] = forwarded(n).tuples;
    let local = |tuple, ingress| ConnectionNote { tuple, ingress, egress: 0, ..note(UDP, n) };
    [local(there, 2), local(back, 1)]
}

#[test]
fn each_direction_leaves_where_the_other_comes_in() {
    let mut bench = Bench::new();
    let [there, back] = local_notes(1);
    let linux = forwarded(1);
    assert_eq!(bench.kept.pair(&there, Some(&linux), bench.now), None, "its answers may come in anywhere");
    assert_eq!(bench.kept.pair(&back, Some(&forwarded(2)), bench.now), None, "of another connection");
    assert_eq!(bench.kept.pair(&there, None, bench.now), None, "Linux does not know it");
    let other_router = ConnectionNote { router: 4, ..back };
    assert_eq!(bench.kept.pair(&other_router, Some(&linux), bench.now), None);
    let found = bench.kept.pair(&back, Some(&linux), bench.now);
    assert_eq!(found, Some(ConnectionNote { egress: 2, ..back }));
    assert!(bench.kept.wants(&found.unwrap(), bench.now));

    // It is too new, and Linux is asked again with both interfaces.
    bench.kept.refuse(&found.unwrap(), Refusal::TooNew, bench.now);
    assert_eq!(bench.kept.ask_again(bench.now + 3 * S), [found.unwrap()]);
    assert!(!bench.kept.wants(&there, bench.now), "Linux was asked just now");
    let admitted = bench.kept.admit(&found.unwrap(), &linux, NOW).unwrap();
    let timeouts = Timeouts { usual_s: 120, least_s: 120, closing_s: u32::MAX };
    let id = bench.kept.keep(&found.unwrap(), admitted, timeouts, bench.now).unwrap();
    bench.kept.begin(&found.unwrap(), id, &linux, clock(bench.now)).unwrap();
    for note in [there, back, ConnectionNote { ingress: 3, ..there }] {
        bench.kept.forget_moved(&note);
        assert!(!bench.kept.wants(&note, bench.now), "{note:?}");
    }
    bench.kept.forget_moved(&ConnectionNote { egress: 3, ..there });
    assert_eq!(bench.count(), 0, "it leaves by another interface");
    // What was noted before it was fast may be wrong now.
    assert_eq!(bench.kept.pair(&back, Some(&linux), bench.now), None);
    assert!(bench.kept.pair(&there, Some(&linux), bench.now).is_some());
}

#[test]
fn linux_is_asked_once_about_packets_for_the_router_itself() {
    let mut bench = Bench::new();
    let [own, _] = local_notes(1);
    let mut linux = forwarded(1);
    linux.tuples[1] = linux.tuples[0].reversed();
    for known in [Some(&linux), None] {
        assert!(bench.kept.wants(&own, bench.now));
        assert_eq!(bench.kept.pair(&own, known, bench.now), None);
        assert!(!bench.kept.wants(&own, bench.now + 29 * S));
        assert_eq!(bench.kept.ask_again(bench.now + 29 * S), []);
        assert_eq!(bench.kept.views().count(), 0);
        assert!(bench.kept.is_idle());
        bench.now += 30 * S;
    }
    assert!(bench.kept.wants(&own, bench.now));
    assert!(
        bench.kept.wants(&ConnectionNote { egress: 2, ..own }, bench.now - 10 * S),
        "it is forwarded now"
    );
    bench.kept.follow(vec![rules(3, 2)]);
    assert!(bench.kept.wants(&own, bench.now - 10 * S), "other rules");
}

#[test]
fn packets_to_the_router_do_not_make_it_forget_refusals() {
    let mut bench = Bench::new();
    bench.kept.refuse(&note(TCP, 1), Refusal::NoConsent, bench.now);
    let [first, back] = local_notes(0);
    let pair = |bench: &mut Bench, n: u16| bench.kept.pair(&local_notes(n)[0], None, bench.now);
    pair(&mut bench, 0);
    (1..1024).for_each(|n| _ = pair(&mut bench, n));
    assert!(!bench.kept.wants(&first, bench.now));
    pair(&mut bench, 1024);
    assert!(bench.kept.wants(&first, bench.now), "a bounded number is remembered");
    assert!(!bench.kept.wants(&note(TCP, 1), bench.now));

    // Where packets came in long ago says nothing about now.
    pair(&mut bench, 0);
    assert_eq!(bench.kept.pair(&back, Some(&forwarded(0)), bench.now + 30 * S), None);
}

#[test]
fn refusals_are_remembered_for_a_while() {
    let mut bench = Bench::new();
    bench.kept.refuse(&note(TCP, 1), Refusal::NoConsent, bench.now);
    bench.kept.refuse(&note(TCP, 2), Refusal::TooNew, bench.now);
    assert!(!bench.kept.wants(&note(TCP, 1), bench.now + 29 * S));
    assert!(bench.kept.wants(&note(TCP, 1), bench.now + 30 * S));
    assert!(bench.kept.wants(&note(TCP, 2), bench.now));
    // Linux is asked again soon, at most three times, however often the connection is noted before.
    (0..10).for_each(|_| bench.kept.refuse(&note(TCP, 2), Refusal::TooNew, bench.now));
    for wait in [2500, 5000, 7500] {
        assert_eq!(bench.kept.ask_again(bench.now + Duration::from_millis(wait - 1)), []);
        bench.now += Duration::from_millis(wait);
        assert_eq!(bench.kept.ask_again(bench.now), [note(TCP, 2)]);
        bench.kept.refuse(&note(TCP, 2), Refusal::NotEstablished, bench.now);
    }
    assert_eq!(bench.kept.ask_again(bench.now + 100 * S), []);
    bench.keep(TCP, 2, 432_000).unwrap();
    let states: Vec<_> = bench.kept.views().map(|view| matches!(view.state, State::Fast { .. })).collect();
    assert_eq!(states, [true, false], "a fast connection is not refused any more");
    for n in 0..5000 {
        bench.kept.refuse(&note(UDP, n), Refusal::NoConsent, bench.now);
    }
    assert!(bench.kept.views().count() <= 1025, "a bounded number is remembered");
    bench.kept.follow(vec![rules(3, 2)]);
    assert!(bench.kept.wants(&note(TCP, 1), bench.now), "other rules");
    let waits = |view: View| matches!(view.state, State::Refused { why: Refusal::Waiting, .. });
    assert_eq!(bench.kept.views().map(waits).collect::<Vec<_>>(), [true], "only the fast one is left");
}

/// The generations in the rows of the first connection.
fn generations(bench: &Bench) -> [u32; 2] {
    [0, 1].map(|row| bench.valid(row).0)
}

#[test]
fn connections_are_fast_again_under_new_rules() {
    let mut bench = Bench::new();
    bench.keep(UDP, 1, 120).unwrap();
    bench.use_first(7, 700);
    bench.look_after(S);
    bench.kept.follow(vec![rules(3, 2)]);
    assert_eq!((bench.kept.fast(3), bench.count(), generations(&bench)), (0, 1, [1, 1]));
    assert!(!bench.kept.wants(&note(UDP, 1), bench.now), "it is asked about without a note");
    let why = bench.kept.views().map(|view| view.state).next();
    assert!(matches!(why, Some(State::Refused { why: Refusal::Waiting, .. })), "{why:?}");
    // Linux sees the packets, so it needs no new timeouts.
    assert_eq!(bench.look_after(4 * S), Due::default());

    assert_eq!(bench.kept.waiting_routers(), [3]);
    let (id, asked) = bench.kept.next_waiting(3).unwrap();
    assert_eq!((asked, bench.kept.next_waiting(3)), (note(UDP, 1), None));
    let fresh = Tracked { expires_s: 118, ..tracked(UDP, 1) };
    let now = clock(bench.now);
    assert_eq!(bench.kept.decide_again(id, &asked, Ok(fresh), now), Again::Fast);
    assert_eq!((bench.kept.fast(3), generations(&bench)), (1, [2, 2]));
    assert_eq!(bench.valid(1).1, bench.in_s(117));
    assert_eq!(bench.row(0, word::PACKETS).load(Relaxed), 7, "it counts on");
    assert!(!bench.kept.has_waiting());
    // Rules may change several times before Linux is asked.
    bench.kept.follow(vec![rules(3, 3)]);
    bench.kept.follow(vec![rules(3, 4)]);
    let (id, asked) = bench.kept.next_waiting(3).unwrap();
    let fresh = tracked(UDP, 1);
    assert_eq!(bench.kept.decide_again(id, &asked, Ok(fresh), clock(bench.now)), Again::Fast);
    assert_eq!((generations(&bench), bench.kept.next_waiting(3)), ([4, 4], None));
}

#[test]
fn connections_that_changed_meanwhile_are_not_fast_again() {
    let other = tuple([9; 4], 1, [8; 4], 2);
    let cases = [
        ("it has ended", Err(Refusal::Unknown), Refusal::Unknown),
        ("FIN", Ok(Tracked { tcp_state: Some(4), ..tracked(TCP, 1) }), Refusal::NotEstablished),
        (
            "a helper",
            Ok(Tracked { special: Some(Special::Helper), ..tracked(TCP, 1) }),
            Refusal::Special(Special::Helper),
        ),
        (
            "other ports",
            Ok(Tracked { tuples: [tracked(TCP, 1).tuples[0], other], ..tracked(TCP, 1) }),
            Refusal::Unknown,
        ),
    ];
    for (what, answer, expected) in cases {
        let mut bench = Bench::new();
        bench.keep(TCP, 1, 432_000).unwrap();
        bench.use_first(1, 100);
        bench.look_after(S);
        bench.kept.follow(vec![rules(3, 2)]);
        let (id, asked) = bench.kept.next_waiting(3).unwrap();
        assert_eq!(bench.kept.decide_again(id, &asked, answer, clock(bench.now)), Again::Out(None), "{what}");
        assert_eq!(bench.count(), 0, "{what}");
        let states: Vec<_> = bench.kept.views().map(|view| view.state).collect();
        assert_eq!(states, [State::Refused { why: expected, at: bench.now }], "{what}");
    }
    // The program sees a FIN while it waits.
    let mut bench = Bench::new();
    bench.keep(TCP, 1, 432_000).unwrap();
    bench.kept.follow(vec![rules(3, 2)]);
    let (id, asked) = bench.kept.next_waiting(3).unwrap();
    bench.row(0, word::ENDED).fetch_or(1, Relaxed);
    let decided = bench.kept.decide_again(id, &asked, Ok(tracked(TCP, 1)), clock(bench.now));
    assert_eq!((decided, bench.count()), (Again::Out(None), 0));
}

/// The program does not see packets while rules are being read. FIN may be among them, after Linux has answered.
#[test]
fn linux_is_asked_once_more_after_a_change_of_rules() {
    let mut bench = Bench::new();
    bench.keep(TCP, 1, 432_000).unwrap();
    bench.kept.follow(vec![rules(3, 2)]);
    let (id, asked) = bench.kept.next_waiting(3).unwrap();
    assert_eq!(bench.kept.decide_again(id, &asked, Ok(tracked(TCP, 1)), clock(bench.now)), Again::Fast);
    assert_eq!(bench.look_after(S / 2), Due::default());
    assert_eq!(bench.look_after(S / 2).liberal, [(id, tracked(TCP, 1).tuples[0])]);
    bench.kept.made_liberal(3, id, true);
    assert_eq!(bench.look_after(S), Due::default(), "once");
    bench.kept.made_liberal(3, id, false);
    assert_eq!(bench.count(), 0, "it is not established any more");
}

#[test]
fn new_rules_may_refuse_a_connection() {
    let mut bench = Bench::new();
    bench.keep(UDP, 1, 120).unwrap();
    bench.use_first(1, 100);
    bench.look_after(S);
    let mut drops = rules(3, 2);
    let mut table = Table::clone(&drops.firewall.rules.tables[0]);
    table.chains.get_mut("f").unwrap().rules[0].expressions.push(Expression::Other("log".into()));
    drops.firewall =
        Arc::new(Firewall { rules: Ruleset { tables: vec![Arc::new(table)] }, ..Firewall::default() });
    bench.kept.follow(vec![drops]);
    let (id, asked) = bench.kept.next_waiting(3).unwrap();
    bench.now += 2 * S;
    // Linux has seen no packet for 20 s, but the last one was 2 s ago.
    let answer = Ok(Tracked { expires_s: 100, ..tracked(UDP, 1) });
    let owed = Refresh { protocol: UDP, tuple: tracked(UDP, 1).tuples[0], timeout_s: 118 };
    let rows = [0, 1].map(|row| bench.at(row) + word::VALID);
    assert_eq!(bench.kept.decide_again(id, &asked, answer, clock(bench.now)), Again::Out(Some(owed)));
    let generations = rows.map(|at| validity(bench.memory.rows()[at].load(Relaxed)).0);
    assert_eq!((bench.count(), generations), (0, [1, 1]));
}

/// Rules that accept only packets whose source is in a set. The element of the client expires at `expires_at`.
/// `in_another`: another set has the same addresses forever.
fn rules_with_a_set(generation: u32, expires_at: Duration, in_another: bool) -> ConnectionRules {
    let mut rules = rules(3, generation);
    let mut table = Table::clone(&rules.firewall.rules.tables[0]);
    let of = |address: [u8; 4], expires_at| Element {
        low: address.to_vec(),
        high: address.to_vec(),
        value: Value::None,
        expires_at,
    };
    let set = |expires_at| {
        let elements = vec![of([10, 0, 0, 2], expires_at), of([192, 0, 2, 1], None)];
        Set { parts: vec![4], elements, ..Set::default() }
    };
    let accepts = |name: &str| {
        let register = Register(8);
        vec![
            Expression::Payload { header: Header::Network, offset: 12, bytes: 4, into: register },
            Expression::Lookup { from: register, set: name.into(), absent: false, into: Into::Nowhere },
            Expression::Verdict(Verdict::Accept),
        ]
    };
    let forward = table.chains.get_mut("f").unwrap();
    forward.base.iter_mut().for_each(|base| base.accepts = false);
    forward.rules[0].expressions.extend(accepts("s"));
    if in_another {
        forward.rules.push(Rule { handle: 2, expressions: accepts("t") });
    }
    table.sets.extend([("s".into(), set(Some(expires_at))), ("t".into(), set(None))]);
    rules.firewall = firewall(table);
    rules
}

#[test]
fn a_connection_is_fast_until_an_element_of_a_set_expires() {
    for in_another in [false, true] {
        let mut bench = Bench::new();
        let expires_at = bench.now + 20 * S;
        bench.kept.follow(vec![rules_with_a_set(2, expires_at, in_another)]);
        bench.keep(UDP, 1, 120).unwrap();
        let last = (2, bench.in_s(19));
        assert_eq!(bench.valid(0), last);
        // A renewed timeout changes nothing.
        bench.use_first(1, 100);
        bench.look_after(10 * S);
        let key = ConnectionKey { router: 3, protocol: UDP, tuple: tracked(UDP, 1).tuples[0] };
        let (id, _) = bench.kept.table.find(&key).unwrap();
        bench.kept.refreshed(3, id, 120, true, clock(bench.now));
        assert_eq!(bench.valid(0), last);
        // Shortly before the end, a new proof does not depend on the element.
        bench.now = expires_at - 3 * S / 2;
        let without = bench.keep(UDP, 2, 120);
        bench.use_first(2, 100);
        bench.look_after(S / 2);
        assert_eq!(bench.valid(0).0, 0, "the row is void");
        let (waits, asked) = bench.kept.next_waiting(3).unwrap();
        let answer = Ok(Tracked { expires_s: 100, ..tracked(UDP, 1) });
        let decided = bench.kept.decide_again(waits, &asked, answer, clock(bench.now));
        if in_another {
            assert_eq!((decided, bench.count(), without.is_ok()), (Again::Fast, 2, true));
            assert_eq!(bench.valid(0), (2, bench.in_s(99)));
            continue;
        }
        assert!(matches!(without, Err(Refusal::Ruled(_))), "{without:?}");
        // Linux has not seen the last packets.
        let owed = Refresh { protocol: UDP, tuple: tracked(UDP, 1).tuples[0], timeout_s: 120 };
        assert_eq!((waits, decided, bench.count()), (id, Again::Out(Some(owed)), 0));

        // The element was added again.
        bench.kept.follow(vec![rules_with_a_set(3, bench.now + 60 * S, in_another)]);
        bench.keep(UDP, 1, 120).unwrap();
        assert_eq!(bench.valid(0), (3, bench.in_s(59)));
    }
}

#[test]
fn nobody_is_asked_while_proofs_take_too_long() {
    let mut bench = Bench::new();
    bench.keep(UDP, 1, 120).unwrap();
    bench.kept.follow(vec![rules(3, 2)]);
    bench.kept.routers.get_mut(&3).unwrap().admission.renew(0);
    assert_eq!((bench.kept.next_waiting(3), bench.kept.has_waiting()), (None, true));
    bench.kept.renew_proofs();
    let (id, asked) = bench.kept.next_waiting(3).unwrap();
    bench.kept.wait_on(3, id);
    assert_eq!(bench.kept.next_waiting(3), Some((id, asked)));
}

/// Interfaces of the proof may have other numbers, names or namespaces now.
#[test]
fn connections_of_other_devices_do_not_wait() {
    let mut renamed = rules(3, 2);
    renamed.devices.get_mut(&2).unwrap().name = "dmz".into();
    let mut gone = rules(3, 2);
    gone.devices.remove(&1);
    let moved = ConnectionRules { namespace: 1, ..rules(3, 2) };
    for other in [renamed, gone, moved] {
        let mut bench = Bench::new();
        bench.keep(UDP, 1, 120).unwrap();
        bench.kept.follow(vec![other]);
        assert_eq!((bench.count(), bench.kept.has_waiting()), (0, false));
    }
}
