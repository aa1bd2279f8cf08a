use super::*;
use crate::capture::filter::tests::{dns, instruction, load, run_classic};
use proptest::{collection::vec, prelude::*};

fn jump(k: u32, jt: u8, jf: u8) -> Classic {
    Classic { code: JUMP_EQUAL, jt, jf, k }
}

/// A filter that accepts a packet if this byte is 1. `first` comes before it.
fn byte(first: &[Classic], at: u32) -> Vec<Classic> {
    [first, &[load(0x30, at), jump(1, 0, 1), load(6, 1), load(6, 0)]].concat()
}

#[test]
fn a_filter_runs_again_if_routing_changes_what_it_reads() {
    assert!(!can_match_later(&dns()), "ports of IPv4, behind the header and its fragment offset");
    assert!(!can_match_later(&[load(6, 1)]));
    let changed =
        |first: &[Classic]| -> Vec<u32> { (0..40).filter(|at| can_match_later(&byte(first, *at))).collect() };
    let both: Vec<u32> = (0..12).chain([21, 22, 24, 25]).collect();
    assert_eq!(changed(&[]), both);
    // The filter rejects packets of other types.
    let only = |kind| [load(0x28, 12), jump(kind, 1, 0), load(6, 0)];
    assert_eq!(changed(&only(IPV4)), (0..12).chain([22, 24, 25]).collect::<Vec<_>>());
    assert_eq!(changed(&only(IPV6)), (0..12).chain([21]).collect::<Vec<_>>());
    // Packets of other types are not routed.
    assert_eq!(changed(&only(0x8100)), []);
    // Both ways lead to the byte.
    assert_eq!(changed(&[load(0x28, 12), jump(IPV4, 0, 0)]), both);
    // Wide loads.
    for (at, changes) in [(12, false), (14, false), (18, true), (20, true), (23, true), (26, false)] {
        assert_eq!(can_match_later(&[load(0x20, at), load(0x16, 0)]), changes, "{at}");
    }
    assert!(can_match_later(&[load(0x80, 0), load(0x16, 0)]), "padding is cut off");
}

#[test]
fn places_behind_x_are_safe_only_behind_an_ipv4_header() {
    let [ipv4, other] = [[jump(IPV4, 0, 3)], [jump(IPV6, 0, 3)]];
    let behind = |jump: &[Classic], length: Classic, at| {
        [&[load(0x28, 12)], jump, &[length, load(0x48, at), load(0x16, 0), load(6, 0)]].concat()
    };
    assert!(!can_match_later(&behind(&ipv4, load(0xb1, 14), 16)));
    assert!(can_match_later(&behind(&other, load(0xb1, 14), 16)), "not IPv4");
    assert!(can_match_later(&behind(&ipv4, load(0xb1, 15), 16)), "not a header's length");
    assert!(can_match_later(&behind(&ipv4, load(1, 4), 16)), "X is a number");
    assert!(can_match_later(&behind(&ipv4, load(7, 0), 16)), "X is A");
    assert!(can_match_later(&behind(&ipv4, load(0xb1, 14), 2)), "with X = 20, this is byte 22");
}

#[test]
fn known_facts_hold_on_each_way_to_an_instruction() {
    let ends = [load(0x16, 0), load(6, 0)];
    // X is the length of a header on one way, and A on the other.
    let x = [load(0x28, 12), jump(IPV4, 0, 2), load(0xb1, 14), load(5, 1), load(7, 0), load(0x48, 16)];
    assert!(can_match_later(&[&x[..], &ends].concat()));
    // A is the type on one way, and a byte of the header on the other.
    let a = [load(0x30, 14), jump(0x45, 0, 1), load(0x28, 12), jump(IPV4, 0, 1), load(0x30, 21)];
    assert!(can_match_later(&[&a[..], &ends].concat()));
    // A is not the type any more.
    let a = [load(0x28, 12), load(0x54, 0xfff), jump(IPV4, 0, 1), load(0x30, 21)];
    assert!(can_match_later(&[&a[..], &ends].concat()));
    let a = [load(0x28, 12), load(0x87, 0), jump(IPV4, 0, 1), load(0x30, 21)];
    assert!(can_match_later(&[&a[..], &ends].concat()));
}

/// The frame as plain routing sends it on.
fn routed(frame: &[u8], new: &[u8; 16], bytes: usize) -> Vec<u8> {
    let mut left = frame[..bytes.clamp(40, frame.len())].to_vec();
    let is_ipv4 = frame[12] == 8;
    for (at, byte) in left.iter_mut().enumerate() {
        match at {
            0..12 => *byte = new[at],
            22 if is_ipv4 => *byte = byte.wrapping_sub(1),
            24..26 if is_ipv4 => *byte = new[at - 12],
            21 if !is_ipv4 => *byte = byte.wrapping_sub(1),
            _ => {}
        }
    }
    left
}

proptest! {
    #![proptest_config(crate::cases(2000))]

    #[test]
    fn packets_that_match_only_as_they_leave_are_predicted(
        mut filter in vec(instruction(), 1..12),
        begins in prop_oneof![
            Just(vec![]),
            any::<bool>().prop_map(|to| vec![load(0x28, 12), jump(IPV4, to.into(), (!to).into())]),
            Just(vec![load(0x28, 12), jump(IPV4, 0, 1), load(0xb1, 14)]),
            Just(vec![load(0x28, 12), jump(0x8100, 2, 0), jump(IPV6, 0, 1), load(0x30, 14)]),
        ],
        mut frame in vec(prop_oneof![0_u8..4, any::<u8>()], 40..120),
        is_ipv4: bool,
        new: [u8; 16],
        cut in 0_usize..120,
    ) {
        let begin: [u8; 3] = if is_ipv4 { [8, 0, 0x45] } else { [0x86, 0xdd, 0x60 | frame[14] & 15] };
        frame[12..15].copy_from_slice(&begin);
        filter.splice(0..0, begins);
        filter.extend([load(0x16, 0), load(6, 1), load(6, 0), load(6, 1)]);
        let left = routed(&frame, &new, cut);
        if run_classic(&filter, &left, left.len()) && !run_classic(&filter, &frame, frame.len()) {
            prop_assert!(can_match_later(&filter), "{:?}", filter);
        }
    }
}
