//! The slow, obvious flow tables: a list of rules. The fast tables must do the same in every detail.

use super::*;
use crate::flow::{
    Action, Field, FlowFlags, FlowStats, Group, GroupKind, GroupMod, Meter, MeterMod,
    rule::{Bucket, MeterUnit},
};
use proptest::prelude::*;
use std::cmp::Reverse;

#[derive(Clone)]
struct Slow {
    id: RuleId,
    stats: FlowStats,
    created_ms: u64,
    used_ms: u64,
    total: Count,
    base: Count,
}

impl Slow {
    fn stats(&self, now_ms: u64) -> FlowStats {
        let ms = now_ms - self.created_ms;
        let count = self.total.since(self.base);
        FlowStats {
            duration_sec: (ms / 1000) as u32,
            duration_nsec: (ms % 1000) as u32 * 1_000_000,
            packets: count.packets,
            bytes: count.bytes,
            ..self.stats.clone()
        }
    }

    fn notice(&self, reason: Removed, now_ms: u64) -> Option<Box<FlowRemoved>> {
        let s = self.stats(now_ms);
        s.flags.send_removed.then(|| {
            Box::new(FlowRemoved {
                matching: s.matching,
                cookie: s.cookie,
                priority: s.priority,
                reason,
                table: s.table,
                duration_sec: s.duration_sec,
                duration_nsec: s.duration_nsec,
                idle_timeout: s.idle_timeout,
                hard_timeout: s.hard_timeout,
                packets: s.packets,
                bytes: s.bytes,
            })
        })
    }

    fn wins(&self) -> impl Ord + use<> {
        let mask = *self.stats.matching.mask();
        (self.stats.priority, mask.rank())
    }

    fn is(&self, filter: &FlowFilter, strict: Option<u16>) -> bool {
        let s = &self.stats;
        filter.table.is_none_or(|table| table == s.table)
            && match strict {
                Some(priority) => s.matching == filter.matching && s.priority == priority,
                None => filter.matching.covers(&s.matching),
            }
            && filter.out_port.is_none_or(|port| s.instructions.outputs_to(port))
            && filter.out_group.is_none_or(|group| s.instructions.uses_group(group))
            && s.cookie & filter.cookie_mask == filter.cookie & filter.cookie_mask
    }

    fn ends(&self, now_ms: u64) -> Option<Removed> {
        let hard = self.created_ms + 1000 * u64::from(self.stats.hard_timeout);
        let idle = self.used_ms + 1000 * u64::from(self.stats.idle_timeout);
        match (self.stats.hard_timeout > 0 && hard <= now_ms, self.stats.idle_timeout > 0 && idle <= now_ms) {
            (true, true) if idle < hard => Some(Removed::IdleTimeout),
            (true, _) => Some(Removed::HardTimeout),
            (_, true) => Some(Removed::IdleTimeout),
            _ => None,
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Change { request: FlowMod, dialect: Dialect },
    Count { at: usize, packets: u64, used: bool },
    Expire { after_ms: u64 },
    Query(FlowFilter),
    DeleteGroup,
    DeleteMeter,
    Release,
}

const GROUP: u32 = 7;
const METER: u32 = 5;

fn matches() -> impl Strategy<Value = Match> {
    let port = prop_oneof![Just(0_u128), Just(0xffff)];
    (port, 0..3_u128, 0..4_u128, 0..4_u128, prop_oneof![Just(0_u128), Just(0x800)], 0..2_u128).prop_map(
        |(port_mask, port, mac_mask, mac, type_mask, kind)| {
            let mut m = Match::ANY;
            m.set(Field::InPort, port, port_mask);
            m.set(Field::EthDst, mac, mac_mask);
            m.set(Field::EthType, kind << 11, type_mask);
            m
        },
    )
}

/// Every packet that rules of `matches` can distinguish.
fn packets() -> impl Iterator<Item = Key> {
    (0..3 * 4 * 2_u128).map(|i| {
        let mut key = Key::ZERO;
        key.set(Field::InPort, i % 3);
        key.set(Field::EthDst, i / 3 % 4);
        key.set(Field::EthType, (i / 12) << 11);
        key
    })
}

fn instructions() -> impl Strategy<Value = Instructions> {
    prop_oneof![
        Just(Instructions::default()),
        (1..3_u16).prop_map(|port| Instructions::apply([Action::output(RulePort(port))])),
        Just(Instructions { write: vec![Action::Group(GROUP)], ..Instructions::default() }),
        Just(Instructions { meter: Some(METER), ..Instructions::apply([Action::output(RulePort(1))]) }),
    ]
}

fn filters() -> impl Strategy<Value = FlowFilter> {
    let out_port = prop_oneof![4 => Just(None), 1 => Just(Some(RulePort(1)))];
    let out_group = prop_oneof![4 => Just(None), 1 => Just(Some(GROUP))];
    let cookie_mask = prop_oneof![3 => Just(0_u64), 1 => 1..4_u64];
    (
        prop_oneof![Just(None), Just(Some(0)), Just(Some(1))],
        matches(),
        out_port,
        out_group,
        0..4_u64,
        cookie_mask,
    )
        .prop_map(|(table, matching, out_port, out_group, cookie, cookie_mask)| FlowFilter {
            table,
            matching,
            out_port,
            out_group,
            cookie,
            cookie_mask,
        })
}

fn requests() -> impl Strategy<Value = FlowMod> {
    let command = prop_oneof![
        6 => Just(FlowCommand::Add),
        2 => any::<bool>().prop_map(|strict| FlowCommand::Modify { strict }),
        1 => any::<bool>().prop_map(|strict| FlowCommand::Delete { strict }),
    ];
    let timeouts = prop_oneof![2 => Just((0, 0)), 1 => (0..4_u16, 0..4_u16)];
    (command, filters(), 0..3_u16, instructions(), timeouts, any::<[bool; 2]>(), 0..8_u8).prop_map(
        |(command, filter, priority, instructions, (idle_timeout, hard_timeout), flags, overlap)| FlowMod {
            command,
            table: filter.table,
            cookie: filter.cookie,
            cookie_mask: filter.cookie_mask,
            priority,
            matching: filter.matching,
            instructions,
            idle_timeout,
            hard_timeout,
            out_port: filter.out_port,
            out_group: filter.out_group,
            flags: FlowFlags {
                send_removed: flags[0],
                reset_counts: flags[1],
                check_overlap: overlap == 0,
                ..FlowFlags::default()
            },
            buffer: None,
        },
    )
}

fn steps() -> impl Strategy<Value = Step> {
    let dialect = prop_oneof![Just(Dialect::OpenFlow10), Just(Dialect::OpenFlow13)];
    prop_oneof![
        12 => (requests(), dialect).prop_map(|(request, dialect)| Step::Change { request, dialect }),
        3 => (0..64_usize, 1..9_u64, any::<bool>())
            .prop_map(|(at, packets, used)| Step::Count { at, packets, used }),
        3 => (0..2500_u64).prop_map(|after_ms| Step::Expire { after_ms }),
        3 => filters().prop_map(Step::Query),
        1 => Just(Step::DeleteGroup),
        1 => Just(Step::DeleteMeter),
        1 => Just(Step::Release),
    ]
}

struct Both {
    fast: Tables,
    slow: Vec<Slow>,
    held: Vec<RuleId>,
    now_ms: u64,
}

impl Both {
    fn new() -> Both {
        let mut both = Both { fast: Tables::new(), slow: vec![], held: vec![], now_ms: 1_000 };
        both.fast.set_ports([(RulePort(1), true), (RulePort(2), true)]);
        both.add_group_and_meter();
        both
    }

    fn add_group_and_meter(&mut self) {
        let group = Group { id: GROUP, kind: GroupKind::Indirect, buckets: vec![Bucket::default()] };
        let meter = Meter { id: METER, unit: MeterUnit::Pps, burst: false, stats: false, bands: vec![] };
        _ = self.fast.apply_group(&GroupMod::Add(group), 0);
        _ = self.fast.apply_meter(&MeterMod::Add(meter), 0);
    }

    fn add(&mut self, request: &FlowMod, dialect: Dialect) {
        let Some(table) = request.table else {
            return assert_eq!(self.fast.apply(request, dialect, self.now_ms), Err(Refused::BadTable));
        };
        let beside = |s: &Slow| {
            let s = &s.stats;
            s.table == table && s.priority == request.priority && s.matching.overlaps(&request.matching)
        };
        if request.flags.check_overlap && self.slow.iter().any(beside) {
            return assert_eq!(self.fast.apply(request, dialect, self.now_ms), Err(Refused::Overlap));
        }
        let same = |s: &Slow| {
            let s = &s.stats;
            s.table == table && s.priority == request.priority && s.matching == request.matching
        };
        let at = self.slow.iter().position(same);
        let old = at.map(|at| self.slow.remove(at));
        let changes = self.fast.apply(request, dialect, self.now_ms).expect("a good request");
        let id = match (&old, &changes[..]) {
            (None, &[Change::Added(id)]) => {
                assert!(!self.held.contains(&id) && self.slow.iter().all(|s| s.id != id));
                id
            }
            (Some(old), []) if old.stats.instructions == request.instructions => old.id,
            (Some(old), &[Change::Instructions(id)]) if old.stats.instructions != request.instructions => {
                assert_eq!(id, old.id);
                id
            }
            _ => panic!("{changes:?}"),
        };
        let total = old.as_ref().map_or(Count::default(), |old| old.total);
        let resets = dialect == Dialect::OpenFlow10 || request.flags.reset_counts;
        self.slow.push(Slow {
            id,
            created_ms: self.now_ms,
            used_ms: self.now_ms,
            total,
            base: if resets { total } else { old.map_or(Count::default(), |old| old.base) },
            stats: FlowStats {
                table,
                matching: request.matching,
                duration_sec: 0,
                duration_nsec: 0,
                priority: request.priority,
                idle_timeout: request.idle_timeout,
                hard_timeout: request.hard_timeout,
                flags: request.flags,
                cookie: request.cookie,
                packets: 0,
                bytes: 0,
                instructions: request.instructions.clone(),
            },
        });
    }

    fn modify(&mut self, request: &FlowMod, strict: bool, dialect: Dialect) {
        if request.table.is_none() {
            return assert_eq!(self.fast.apply(request, dialect, self.now_ms), Err(Refused::BadTable));
        }
        let wanted = FlowFilter { out_port: None, out_group: None, ..filter(request) };
        let strict = strict.then_some(request.priority);
        if dialect == Dialect::OpenFlow10 && !self.slow.iter().any(|s| s.is(&wanted, strict)) {
            return self.add(request, dialect);
        }
        let mut expected = vec![];
        for s in self.slow.iter_mut().filter(|s| s.is(&wanted, strict)) {
            if s.stats.instructions != request.instructions {
                expected.push(s.id);
                s.stats.instructions = request.instructions.clone();
            }
            if dialect == Dialect::OpenFlow10 {
                s.stats.cookie = request.cookie;
            } else if request.flags.reset_counts {
                s.base = s.total;
            }
        }
        let changes = self.fast.apply(request, dialect, self.now_ms).expect("a good request");
        let mut changed: Vec<RuleId> = changes
            .iter()
            .map(|change| match change {
                Change::Instructions(id) => *id,
                other => panic!("{other:?}"),
            })
            .collect();
        changed.sort_unstable();
        expected.sort_unstable();
        assert_eq!(changed, expected);
    }

    /// Checks that these changes remove exactly the rules for which `gone` returns a reason.
    fn removed(&mut self, changes: Vec<Change>, gone: impl Fn(&Slow) -> Option<Removed>) {
        for change in changes {
            let (id, next, notice) = match change {
                Change::Removed { id, next, notice } => (id, next, notice),
                Change::GroupRemoved(GROUP) | Change::MeterRemoved(METER) => continue,
                other => panic!("{other:?}"),
            };
            let at = self.slow.iter().position(|s| s.id == id).expect("a rule that was there");
            let old = self.slow.remove(at);
            let reason = gone(&old).expect("a rule that had to end");
            let below = |s: &&Slow| {
                s.stats.table == old.stats.table
                    && s.stats.matching == old.stats.matching
                    && s.stats.priority < old.stats.priority
            };
            let heir = self.slow.iter().filter(below).max_by_key(|s| s.stats.priority).map(|s| s.id);
            assert_eq!((next, notice), (heir, old.notice(reason, self.now_ms)));
            self.held.push(id);
        }
        assert_eq!(self.slow.iter().filter_map(&gone).count(), 0);
    }

    fn step(&mut self, step: &Step) {
        let now_ms = self.now_ms;
        match step {
            Step::Change { request, dialect } => match request.command {
                FlowCommand::Add => self.add(request, *dialect),
                FlowCommand::Modify { strict } => self.modify(request, strict, *dialect),
                FlowCommand::Delete { strict } => {
                    let changes = self.fast.apply(request, *dialect, now_ms).expect("deleting");
                    let strict = strict.then_some(request.priority);
                    self.removed(changes, |s| s.is(&filter(request), strict).then_some(Removed::Delete));
                }
            },
            Step::Count { at, packets, used } => {
                let Some(at) = at.checked_rem(self.slow.len()) else { return };
                let s = &mut self.slow[at];
                s.total = Count { packets: s.total.packets + packets, bytes: s.total.bytes + 60 * packets };
                s.used_ms = if *used { now_ms } else { s.used_ms };
                self.fast.count(s.id, s.total, s.used_ms);
            }
            Step::Expire { after_ms } => {
                self.now_ms += after_ms;
                let now_ms = self.now_ms;
                let due: Vec<_> = self.fast.due(now_ms).collect();
                assert!(self.slow.iter().filter(|s| s.ends(now_ms).is_some()).all(|s| due.contains(&s.id)));
                let changes = self.fast.expire(now_ms);
                self.removed(changes, |s| s.ends(now_ms));
                assert!(self.fast.next_expiry_ms().is_none_or(|at| at > now_ms));
            }
            Step::Query(filter) => self.query(filter),
            Step::DeleteGroup => {
                let changes = self.fast.apply_group(&GroupMod::Delete(Some(GROUP)), now_ms).expect("there");
                let uses = |s: &Slow| s.stats.instructions.uses_group(GROUP);
                self.removed(changes, |s| uses(s).then_some(Removed::GroupDelete));
                self.add_group_and_meter();
            }
            Step::DeleteMeter => {
                let changes = self.fast.apply_meter(&MeterMod::Delete(Some(METER)), now_ms).expect("there");
                let uses = |s: &Slow| s.stats.instructions.meter == Some(METER);
                self.removed(changes, |s| uses(s).then_some(Removed::MeterDelete));
                self.add_group_and_meter();
            }
            Step::Release => self.held.drain(..).for_each(|id| self.fast.release(id)),
        }
    }

    fn query(&self, filter: &FlowFilter) {
        let mut stats: Vec<_> =
            self.slow.iter().filter(|s| s.is(filter, None)).map(|s| s.stats(self.now_ms)).collect();
        stats.sort_by_key(|s| (s.table, Reverse(s.priority), *s.matching.mask(), *s.matching.key()));
        assert_eq!(self.fast.flows(filter, self.now_ms).collect::<Vec<_>>(), stats);
        let sum = |of: fn(&FlowStats) -> u64| stats.iter().map(of).sum();
        let all =
            Aggregate { packets: sum(|s| s.packets), bytes: sum(|s| s.bytes), rules: stats.len() as u32 };
        assert_eq!(self.fast.aggregate(filter), all);
    }

    fn compare(&self) {
        for table in [0, 1] {
            let here: Vec<&Slow> = self.slow.iter().filter(|s| s.stats.table == table).collect();
            for key in packets() {
                let hit = here.iter().filter(|s| s.stats.matching.matches(&key)).max_by_key(|s| s.wins());
                assert_eq!(self.fast.lookup(table, &key), hit.map(|s| s.id));
            }
            for s in &here {
                let overlapped = |o: &&&Slow| {
                    o.id != s.id
                        && o.stats.priority <= s.stats.priority
                        && o.stats.matching.overlaps(&s.stats.matching)
                };
                let mut expected: Vec<RuleId> = here.iter().filter(overlapped).map(|o| o.id).collect();
                let mut found: Vec<RuleId> = self.fast.overlapped_by(s.id).collect();
                expected.sort_unstable();
                found.sort_unstable();
                assert_eq!(found, expected);
                let same = here.iter().filter(|o| o.stats.matching == s.stats.matching);
                let first = same.max_by_key(|o| o.stats.priority).map(|o| o.id);
                assert_eq!(self.fast.first_of_match(s.id), first);
            }
            assert_eq!(self.fast.tables().nth(table.into()), Some((table, here.len() as u32)));
        }
        let uses = |s: &&Slow| s.stats.instructions.uses_group(GROUP);
        let references = self.fast.group_stats(None, self.now_ms).map(|g| g.references).sum::<u32>();
        assert_eq!(references as usize, self.slow.iter().filter(uses).count());
        let metered = |s: &&Slow| s.stats.instructions.meter.is_some();
        let flows = self.fast.meter_stats(None, self.now_ms).map(|m| m.flows).sum::<u32>();
        assert_eq!(flows as usize, self.slow.iter().filter(metered).count());
    }
}

proptest! {
    #![proptest_config(crate::cases(192))]
    #[test]
    fn the_tables_do_what_a_list_of_rules_does(steps in prop::collection::vec(steps(), 1..80)) {
        let mut both = Both::new();
        for step in &steps {
            both.step(step);
            both.compare();
        }
        // Finally remove all rules and check that nothing is left.
        let everything = FlowFilter {
            table: None, matching: Match::ANY, out_port: None, out_group: None, cookie: 0, cookie_mask: 0,
        };
        let ids: Vec<RuleId> = both.fast.hits(&everything, None).collect();
        prop_assert_eq!(ids.len(), both.slow.len());
        ids.into_iter().for_each(|id| _ = both.fast.remove(id, Removed::Delete, both.now_ms));
        prop_assert!(both.fast.due.is_empty() && both.fast.masks(0).chain(both.fast.masks(1)).next().is_none());
    }
}
