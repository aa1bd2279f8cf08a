//! Which buckets of a group a packet takes (OpenFlow 1.3.5 section 5.6.1).

use super::{Group, GroupKind, Key, RulePort, Tables, kernel, packet::VXLAN_PORT};

/// How many slots a select group has. Each slot belongs to a bucket.
pub const SLOTS: usize = 256;

/// A hash that spreads flows over a group's buckets. It covers the addresses, protocol and ports that the frame has now, and
/// the MAC addresses too if it is not IP. The kernel plane computes the same (`spread` of `bpf/flow.h`).
pub fn spread(frame: &[u8]) -> u32 {
    kernel::spread(&Key::of(frame, RulePort(0), VXLAN_PORT))
}

/// The slot of a flow.
fn slot(frame: &[u8]) -> usize {
    (spread(frame) >> 24) as usize
}

/// The bucket of each slot of a select group; the top byte of [`spread`] is the slot. Buckets share the slots by weight
/// (Webster's method), and every live bucket with a weight gets at least one. When a bucket dies, its slots go to the
/// others, which keep theirs. `None` if no live bucket has a weight.
pub fn select_slots(group: &Group, live: &dyn Fn(usize) -> bool) -> [Option<u8>; SLOTS] {
    let mut slots = [None; SLOTS];
    let weights = |counts: &dyn Fn(usize) -> bool| -> Vec<u32> {
        let weight =
            |(i, bucket): (usize, &super::rule::Bucket)| if counts(i) { bucket.weight.into() } else { 0 };
        group.buckets.iter().enumerate().take(SLOTS).map(weight).collect()
    };
    hand_out(&mut slots, &weights(&|_| true));
    for slot in &mut slots {
        *slot = slot.filter(|&bucket| live(bucket.into()));
    }
    hand_out(&mut slots, &weights(live));
    slots
}

/// Gives each free slot to the bucket that is furthest below its share.
fn hand_out(slots: &mut [Option<u8>; SLOTS], weights: &[u32]) {
    let mut has = vec![0_u32; weights.len()];
    slots.iter().flatten().for_each(|&bucket| has[usize::from(bucket)] += 1);
    for slot in slots.iter_mut().filter(|slot| slot.is_none()) {
        // A bucket without a slot is always the furthest below its share.
        let divisor = |i: usize| if has[i] == 0 { 0 } else { 2 * has[i] + 1 };
        let further = |a: usize, b: usize| weights[a] * divisor(b) > weights[b] * divisor(a);
        let weighted = (0..weights.len()).filter(|&i| weights[i] > 0);
        let Some(next) = weighted.reduce(|best, i| if further(i, best) { i } else { best }) else { return };
        has[next] += 1;
        *slot = Some(next as u8);
    }
}

impl Tables {
    /// The buckets, by their index, that a packet takes in a group.
    pub fn buckets_taken(&self, id: u32, frame: &[u8]) -> Vec<usize> {
        let Some(group) = self.group(id) else { return Vec::new() };
        match group.kind {
            GroupKind::All => (0..group.buckets.len()).collect(),
            GroupKind::Indirect => vec![0],
            GroupKind::FastFailover => self.live_bucket(id).into_iter().collect(),
            GroupKind::Select => {
                let live = self.live_buckets(id);
                let slots = select_slots(group, &|i| live >> i & 1 != 0);
                slots[slot(frame)].into_iter().map(usize::from).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::{
        Action, GroupMod,
        packet::samples::{Recipe, arp},
        rule::Bucket,
    };
    use proptest::prelude::*;

    fn select(weights: &[u16]) -> Group {
        let buckets = weights.iter().map(|&weight| Bucket { weight, ..Bucket::default() }).collect();
        Group { id: 1, kind: GroupKind::Select, buckets }
    }

    fn shares(slots: &[Option<u8>; SLOTS], buckets: usize) -> Vec<usize> {
        (0..buckets).map(|i| slots.iter().filter(|slot| **slot == Some(i as u8)).count()).collect()
    }

    #[test]
    fn slots_are_shared_out_by_weight() {
        for (weights, dead, expected) in [
            (&[1, 1][..], &[][..], &[128, 128][..]),
            (&[3, 1], &[], &[192, 64]),
            (&[1, 0, 1], &[], &[128, 0, 128]),
            (&[65535, 1, 1], &[], &[254, 1, 1]),
            (&[1, 1, 1], &[], &[86, 85, 85]),
            (&[1, 1, 2], &[0], &[0, 85, 171]),
            (&[5, 0], &[0], &[0, 0]),
            (&[0, 0], &[], &[0, 0]),
            (&[], &[], &[]),
        ] {
            let slots = select_slots(&select(weights), &|i| !dead.contains(&i));
            assert_eq!(shares(&slots, weights.len()), expected, "{weights:?} without {dead:?}");
        }
    }

    proptest! {
        #[test]
        fn a_live_bucket_keeps_its_slots_and_gets_its_share(
            weights in prop::collection::vec(prop_oneof![Just(0), 1_u16..10, any::<u16>()], 1..=64),
            dead: u64,
        ) {
            let (group, live) = (select(&weights), |i: usize| dead >> i & 1 == 0);
            let (all, left) = (select_slots(&group, &|_| true), select_slots(&group, &live));
            for (before, after) in all.iter().zip(&left) {
                prop_assert!(before == after || before.is_some_and(|bucket| !live(bucket.into())));
            }
            let total: u64 = (0..weights.len()).filter(|&i| live(i)).map(|i| u64::from(weights[i])).sum();
            let shares = shares(&left, weights.len());
            prop_assert_eq!(shares.iter().sum::<usize>(), if total > 0 { SLOTS } else { 0 });
            for (i, &share) in shares.iter().enumerate() {
                let usable = live(i) && weights[i] > 0;
                prop_assert_eq!(share > 0, usable, "bucket {}", i);
            }
        }
    }

    #[test]
    fn a_flow_keeps_its_slot_and_flows_spread() {
        let flow = |v6, n: u16| {
            let [high, low] = n.to_be_bytes();
            let mut r = Recipe { v6, ports: (n, 80), ..Recipe::default() };
            if v6 {
                (r.ports, r.source[14], r.source[15]) = ((1, 80), high, low);
            }
            r
        };
        for v6 in [false, true] {
            let frame = flow(v6, 7).frame();
            let another = Recipe { payload: b"other".to_vec(), ttl: 3, tos: 1, ..flow(v6, 7) };
            assert_eq!(spread(&frame), spread(&another.frame()));
            let mut taken = [0; SLOTS];
            (0..4096).for_each(|n| taken[slot(&flow(v6, n).frame())] += 1);
            let (fewest, most) = (taken.iter().min(), taken.iter().max());
            assert!(fewest > Some(&0) && most < Some(&40), "{fewest:?} to {most:?} of 16 on average");
        }
    }

    #[test]
    fn frames_without_ip_spread_by_mac_addresses_and_ip_packets_do_not() {
        for at in [4, 10] {
            let slots_of = |mut frame: Vec<u8>| {
                let mut taken = [0; SLOTS];
                for n in 0..4096_u16 {
                    frame[at..at + 2].copy_from_slice(&n.to_be_bytes());
                    taken[slot(&frame)] += 1;
                }
                taken.iter().filter(|taken| **taken > 0).count()
            };
            let ip = [false, true].map(|v6| slots_of(Recipe { v6, ..Recipe::default() }.frame()));
            assert_eq!(ip, [1, 1], "a flow keeps its slot when a router before us changes");
            let of_type = |kind: u16| [&[0; 12][..], &kind.to_be_bytes(), &[0; 46]].concat();
            for (name, frame) in [("ARP", arp()), ("LLDP", of_type(0x88cc)), ("802.3", of_type(0x26))] {
                assert_eq!(slots_of(frame), SLOTS, "{name}, byte {at}");
            }
        }
    }

    #[test]
    fn each_kind_of_group_takes_its_buckets() {
        let mut tables = Tables::new();
        tables.set_ports([(RulePort(1), false), (RulePort(2), true)]);
        let bucket = |port, weight| {
            let actions = vec![Action::output(RulePort(port))];
            Bucket { weight, watch_port: Some(RulePort(port)), watch_group: None, actions }
        };
        let frame = Recipe::default().frame();
        for (id, kind, buckets, expected) in [
            (1, GroupKind::All, vec![bucket(1, 0), bucket(2, 0)], &[0, 1][..]),
            (2, GroupKind::Indirect, vec![bucket(1, 0)], &[0]),
            (3, GroupKind::FastFailover, vec![bucket(1, 0), bucket(2, 0)], &[1]),
            (4, GroupKind::FastFailover, vec![bucket(1, 0)], &[]),
            (5, GroupKind::Select, vec![bucket(1, 9), bucket(2, 1)], &[1]),
            (6, GroupKind::Select, vec![bucket(1, 9), bucket(2, 0)], &[]),
        ] {
            tables.apply_group(&GroupMod::Add(Group { id, kind, buckets }), 0).unwrap();
            assert_eq!(tables.buckets_taken(id, &frame), expected, "group {id}");
        }
        assert_eq!(tables.buckets_taken(7, &frame), [0; 0]);
        let moved: Vec<_> = tables.set_ports([(RulePort(1), true), (RulePort(2), true)]);
        assert_eq!(
            moved,
            [3, 4, 5, 6].map(super::super::Change::Group),
            "the groups whose packets take other buckets"
        );
    }
}
