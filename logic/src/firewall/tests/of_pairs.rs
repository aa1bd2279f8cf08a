use super::{
    super::pairs::{MOST_GROUPS, TooMany, pairs},
    *,
};
use proptest::prelude::*;

const STEPS: u32 = 10_000_000;

fn devices(count: u32) -> Vec<Device> {
    (1..=count).map(|i| device(i, &format!("eth{i}"))).collect()
}

#[test]
fn devices_that_no_rule_tells_apart_form_a_group() {
    let ruleset = forward(vec![
        and(name(6, "eth2"), and(name(7, "eth3"), accept())),
        // By a prefix, and by number.
        vec![Meta { key: 7, into: R }, is(b"eth4"), Ends(Verdict::Accept)],
        vec![Meta { key: 4, into: R }, is(&6u32.to_ne_bytes()), Ends(Verdict::Accept)],
        drop(),
    ]);
    let found = pairs(&ruleset, Version::V4, &devices(50), STEPS).unwrap();
    // eth4 and eth40 to eth49 share a prefix.
    assert_eq!(found.groups[..8], [0, 1, 2, 3, 0, 4, 0, 0]);
    assert!(found.groups[39..49].iter().all(|group| *group == 3));
    assert_eq!((found.groups[49], found.pairs.len()), (0, 5));
    assert!(found.pairs[1][2].all.is_ok());
    assert!(found.pairs[2][1].all.is_err());
    assert!(found.pairs[0][3].all.is_ok());
    assert!(found.pairs[4][0].all.is_ok());
    assert_eq!(
        found.pairs[0][0].established.each_ref().map(|e| e.as_ref().unwrap_err().handle),
        [Some(4); 2]
    );
}

#[test]
fn the_number_of_groups_and_steps_is_bounded() {
    let names =
        |count: u32| forward((1..=count).map(|i| and(name(6, &format!("eth{i}")), accept())).collect());
    let groups = |ruleset: &Ruleset| pairs(ruleset, Version::V4, &devices(40), STEPS).map(|p| p.pairs.len());
    assert_eq!(groups(&names(15)), Ok(MOST_GROUPS));
    assert_eq!(groups(&names(16)), Err(TooMany));
    assert_eq!(groups(&names(5000)), Err(TooMany));
    // Elements behind the limit tell devices apart, too.
    let key = |device: &str, n: u16| {
        let mut key = device.as_bytes().to_vec();
        key.resize(16, 0);
        key.extend([10, 0, (n >> 8) as u8, n as u8]);
        element(&key, &key, Value::None)
    };
    let elements = (0..5000).map(|n| key("eth1", n)).chain([key("eth2", 0)]).collect();
    let load = Payload { header: Header::Network, offset: 12, bytes: 4, into: Register(16) };
    let rule = vec![Meta { key: 6, into: R }, load, lookup(Into::Nowhere), Ends(Verdict::Drop)];
    let long = with_set(forward(vec![rule]), Set { parts: vec![16, 4], elements, ..Set::default() });
    assert_eq!(pairs(&long, Version::V4, &devices(3), STEPS).unwrap().groups, [0, 1, 2]);
    // A rule that computes with a name makes each device a group.
    let masked = vec![
        Meta { key: 6, into: R },
        Expression::Mask { from: R, into: R, mask: vec![0xf0; 16], xor: vec![0; 16] },
        is(&[0x60; 16]),
        Ends(Verdict::Drop),
    ];
    assert_eq!(groups(&forward(vec![masked.clone()])), Err(TooMany));
    assert_eq!(pairs(&forward(vec![masked]), Version::V4, &devices(3), STEPS).unwrap().groups, [0, 1, 2]);
    let few = pairs(&names(3), Version::V4, &devices(4), 20).unwrap();
    assert_eq!(few.pairs[3][3].all.as_ref().unwrap_err().why, Why::TooMuch);
}

#[test]
fn chains_bound_to_devices_tell_them_apart() {
    let mut chain = base(Hook::Ingress, 0, true, vec![drop()]);
    chain.base.as_mut().unwrap().devices = Devices::Named(vec!["eth2".into()]);
    let mut all = devices(4);
    all[3].below = vec!["eth2".into()];
    let found = pairs(&table(vec![("i", chain)]), Version::V4, &all, STEPS).unwrap();
    assert_eq!(found.groups, [0, 1, 0, 2]);
    assert_eq!([0, 1, 2].map(|from| found.pairs[from][0].all.is_ok()), [true, false, false]);
}

/// A rule with up to two questions about devices.
fn rule() -> impl Strategy<Value = Vec<Expression>> {
    let question = (4_u32..8, 1_u32..8, 0_usize..6, 1_usize..6).prop_map(|(key, number, by, length)| {
        let by = Comparison::ALL[by];
        let value = match key {
            4 | 5 => number.to_ne_bytes().to_vec(),
            _ => [format!("eth{number}").as_bytes(), &[0]].concat()[..length.min(5)].to_vec(),
        };
        vec![Meta { key, into: R }, Compare { from: R, by, value }]
    });
    let in_set = (6_u32..8).prop_map(|key| {
        let other = if key == 6 { 7 } else { 6 };
        vec![Meta { key, into: R }, Meta { key: other, into: Register(16) }, lookup(Into::Nowhere)]
    });
    let questions = prop::collection::vec(prop_oneof![3 => question, 1 => in_set], 0..3);
    (questions, any::<bool>()).prop_map(|(questions, accepts)| {
        let verdict = if accepts { Verdict::Accept } else { Verdict::Drop };
        questions.concat().into_iter().chain([Ends(verdict)]).collect()
    })
}

proptest! {
    #![proptest_config(crate::cases(60))]

    /// Groups give the answer that each pair of devices would have had.
    #[test]
    fn groups_agree_with_single_devices(rules in prop::collection::vec(rule(), 1..5), named in prop::collection::vec((1_u32..8, 1_u32..8), 1..4)) {
        let key = |number: u32| {
            let mut bytes = format!("eth{number}").into_bytes();
            bytes.resize(16, 0);
            bytes
        };
        let mut elements: Vec<_> = named
            .into_iter()
            .map(|(a, b)| { let both = [key(a), key(b)].concat(); element(&both, &both, Value::None) })
            .collect();
        elements.sort_by(|a, b| a.low.cmp(&b.low));
        let ruleset = with_set(forward(rules), Set { parts: vec![16, 16], elements, ..Set::default() });
        let all = devices(8);
        let found = pairs(&ruleset, Version::V4, &all, STEPS).unwrap();
        for (i, input) in all.iter().enumerate() {
            for (j, output) in all.iter().enumerate() {
                let one = Traffic { version: Version::V4, input: input.clone(), output: output.clone(), scope: Scope::All };
                let by_group = &found.pairs[found.groups[i]][found.groups[j]].all;
                prop_assert_eq!(&prove(&ruleset, &one), by_group, "{} {}", i, j);
            }
        }
    }
}
