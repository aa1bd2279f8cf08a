//! Compares the output of one subject with that of another, byte by byte.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    mem,
};

use serde::Serialize;

use super::view;
use crate::sys;

/// Each extra frame is compared with this many missing frames of its flow, and then of all flows: it may be the same
/// packet, changed.
const CANDIDATES: usize = 256;
/// A packet whose flow was changed, too, still counts as the same packet if no more than this many bytes differ.
const FEW_BYTES: usize = 16;

/// How a packet differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// It came out of the reference only.
    Missing,
    /// It did not come out of the reference, or not so often.
    Extra,
    /// It came out with other bytes.
    Changed,
}

/// One packet that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// How.
    pub kind: Kind,
    /// The packet in words: as it came out of the reference, if it did.
    pub packet: String,
    /// What came out of the reference, in hexadecimal.
    pub reference: Option<String>,
    /// What came out of the subject.
    pub seen: Option<String>,
}

/// All differences.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Comparison {
    /// Packets of each kind.
    pub missing: usize,
    /// See [`Kind::Extra`].
    pub extra: usize,
    /// See [`Kind::Changed`].
    pub changed: usize,
    /// Flows whose packets are all there, but in another order. This is no difference: a router need not keep the order
    /// of packets that it forwards in two ways.
    pub reordered_flows: usize,
    /// The first differences.
    pub differences: Vec<Difference>,
}

impl Comparison {
    /// Do the same packets come out?
    pub fn is_same(&self) -> bool {
        self.missing + self.extra + self.changed == 0
    }
}

type Frames<'a> = Vec<&'a [u8]>;

/// Compares frames as they left, and returns the first `keep` that differ. Fails only when interrupted.
pub fn compare(reference: &[Vec<u8>], seen: &[Vec<u8>], keep: usize) -> Result<Comparison, sys::Interrupted> {
    let (mut missing, mut extra) = (without(reference, seen), without(seen, reference));
    let reordered_flows = reordered(reference, seen, missing.iter().chain(&extra));
    let mut changed = Vec::new();
    pair(&mut missing, &mut extra, &mut changed, view::flow, usize::MAX)?;
    pair(&mut missing, &mut extra, &mut changed, |_| Vec::new(), FEW_BYTES)?;
    let difference = |kind, reference: Option<&[u8]>, seen: Option<&[u8]>| Difference {
        kind,
        packet: view::describe(reference.or(seen).unwrap_or_default()),
        reference: reference.map(view::hex),
        seen: seen.map(view::hex),
    };
    let told = changed.iter().map(|&(a, b)| difference(Kind::Changed, Some(a), Some(b)));
    let told = told.chain(missing.iter().map(|a| difference(Kind::Missing, Some(a), None)));
    let told = told.chain(extra.iter().map(|b| difference(Kind::Extra, None, Some(b))));
    Ok(Comparison {
        missing: missing.len(),
        extra: extra.len(),
        changed: changed.len(),
        reordered_flows,
        differences: told.take(keep).collect(),
    })
}

/// Frames of `all` that are not in `others`, each as often as it is missing there.
fn without<'a>(all: &'a [Vec<u8>], others: &[Vec<u8>]) -> Frames<'a> {
    let mut left: HashMap<&[u8], usize> = HashMap::new();
    others.iter().for_each(|frame| *left.entry(frame).or_default() += 1);
    let is_left = |frame: &&Vec<u8>| match left.get_mut(frame.as_slice()) {
        Some(count) if *count > 0 => {
            *count -= 1;
            false
        }
        _ => true,
    };
    all.iter().filter(is_left).map(Vec::as_slice).collect()
}

/// Moves frames that are the same packet to `changed`: each extra one with the nearest missing one of the same key, if
/// at most `most` bytes differ.
fn pair<'a>(
    missing: &mut Frames<'a>,
    extra: &mut Frames<'a>,
    changed: &mut Vec<(&'a [u8], &'a [u8])>,
    key: impl Fn(&[u8]) -> Vec<u8>,
    most: usize,
) -> Result<(), sys::Interrupted> {
    let mut candidates: HashMap<Vec<u8>, VecDeque<usize>> = HashMap::new();
    for (at, frame) in missing.iter().enumerate() {
        candidates.entry(key(frame)).or_default().push_back(at);
    }
    let mut is_paired = vec![false; missing.len()];
    for frame in mem::take(extra) {
        sys::check_interrupted()?;
        let alike = candidates.get_mut(&key(frame));
        let found = alike.and_then(|alike| {
            let near = alike.iter().take(CANDIDATES).map(|&at| distance(missing[at], frame)).enumerate();
            let (place, bytes) = near.min_by_key(|&(_, bytes)| bytes)?;
            if bytes <= most { alike.remove(place) } else { None }
        });
        match found {
            Some(at) => {
                is_paired[at] = true;
                changed.push((missing[at], frame));
            }
            None => extra.push(frame),
        }
    }
    let mut is_paired = is_paired.into_iter();
    missing.retain(|_| is_paired.next() == Some(false));
    Ok(())
}

/// Number of bytes that differ.
fn distance(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).filter(|(a, b)| a != b).count() + a.len().abs_diff(b.len())
}

/// `^^` below each byte of two frames in hexadecimal that differs, or that only one of them has.
pub fn marks(one: &str, other: &str) -> String {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let bytes = one.len().max(other.len()) / 2;
    let byte = |of: &[u8], at: usize| of.get(2 * at..2 * at + 2).map(<[u8]>::to_vec);
    let mark = |at| if byte(one, at) == byte(other, at) { "  " } else { "^^" };
    (0..bytes).map(mark).collect::<String>().trim_end().to_owned()
}

/// Flows in another order, among those in which no frame differs.
fn reordered<'a>(
    reference: &[Vec<u8>],
    seen: &[Vec<u8>],
    different: impl Iterator<Item = &'a &'a [u8]>,
) -> usize {
    let different: HashSet<Vec<u8>> = different.map(|frame| view::flow(frame)).collect();
    let (reference, seen) = (by_flow(reference), by_flow(seen));
    let is_reordered = |(flow, frames): &(&Vec<u8>, &Frames<'_>)| {
        !different.contains(*flow) && seen.get(*flow) != Some(frames)
    };
    reference.iter().filter(is_reordered).count()
}

fn by_flow(frames: &[Vec<u8>]) -> BTreeMap<Vec<u8>, Frames<'_>> {
    let mut flows: BTreeMap<Vec<u8>, Frames<'_>> = BTreeMap::new();
    frames.iter().for_each(|frame| flows.entry(view::flow(frame)).or_default().push(frame));
    flows
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use etherparse::PacketBuilder;
    use proptest::prelude::*;

    use super::*;

    fn udp(port: u16, payload: &[u8]) -> Vec<u8> {
        let mut frame = Vec::new();
        let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 9, 0, 1], 64);
        builder.udp(port, 9).write(&mut frame, payload).unwrap();
        frame
    }

    #[test]
    fn each_difference_has_a_kind() {
        let frames: Vec<_> = (0..4).map(|n| udp(7, &[n; 20])).collect();
        let [a, b, c, d] = &frames[..] else { unreachable!() };
        let all = frames.clone();
        let counts = |seen: &[&Vec<u8>]| {
            let seen: Vec<_> = seen.iter().map(|frame| frame.to_vec()).collect();
            let found = compare(&all, &seen, 10).unwrap();
            (found.missing, found.extra, found.changed, found.reordered_flows)
        };
        assert_eq!(counts(&[a, b, c, d]), (0, 0, 0, 0));
        assert_eq!(counts(&[a, c, b, d]), (0, 0, 0, 1));
        assert_eq!(counts(&[a, b, d]), (1, 0, 0, 0));
        assert_eq!(counts(&[a, b, b, c, d]), (0, 1, 0, 0));
        let mut other = c.clone();
        other[8] ^= 1;
        assert_eq!(counts(&[a, b, &other, d]), (0, 0, 1, 0));
        // Its flow has changed, and still it is found; another packet is not.
        let mut other = c.clone();
        other[33] ^= 1;
        assert_eq!(counts(&[a, b, &other, d]), (0, 0, 1, 0));
        assert_eq!(counts(&[a, b, &udp(8, &[0x55; 100]), d]), (1, 1, 0, 0));
    }

    #[test]
    fn a_changed_packet_is_found_among_any_number_of_missing_ones() {
        let last = 2 * CANDIDATES as u16;
        let reference: Vec<_> = (0..=last).map(|port| udp(port, &[0x33; 40])).collect();
        let seen = [udp(last, &[0x44; 40])];
        let found = compare(&reference, &seen, 2).unwrap();
        assert_eq!((found.missing, found.extra, found.changed), (last.into(), 0, 1));
        let told: Vec<_> =
            found.differences.iter().map(|told| (told.kind, told.reference.clone().unwrap())).collect();
        let of = |port: u16| view::hex(&reference[usize::from(port)]);
        assert_eq!(told, [(Kind::Changed, of(last)), (Kind::Missing, of(0))]);
    }

    #[test]
    fn differences_are_shown_in_words_and_bytes() {
        let [a, mut b] = [udp(7, &[1; 20]), udp(7, &[1; 20])];
        b[22] -= 1;
        let (reference, seen) = (from_ref(&a), from_ref(&b));
        let found = compare(reference, seen, 10).unwrap();
        let told = Difference {
            kind: Kind::Changed,
            packet: "udp 10.0.0.1:7 -> 10.9.0.1:9, ttl 64, 62 bytes".into(),
            reference: Some(view::hex(&a)),
            seen: Some(view::hex(&b)),
        };
        assert_eq!((found.is_same(), found.differences), (false, vec![told]));
        assert!(compare(reference, seen, 0).unwrap().differences.is_empty());
        assert!(compare(reference, reference, 0).unwrap().is_same());
    }

    proptest! {
        #[test]
        fn every_frame_is_accounted_for(
            reference in prop::collection::vec(prop::collection::vec(0u8..3, 0..20), 0..20),
            seen in prop::collection::vec(prop::collection::vec(0u8..3, 0..20), 0..20),
        ) {
            let found = compare(&reference, &seen, usize::MAX).unwrap();
            prop_assert_eq!(reference.len() + found.extra, seen.len() + found.missing);
            prop_assert_eq!(found.differences.len(), found.missing + found.extra + found.changed);
            let mut sorted = [reference.clone(), seen.clone()];
            sorted.iter_mut().for_each(|frames| frames.sort());
            prop_assert_eq!(found.is_same(), sorted[0] == sorted[1]);
        }
    }
}
