//! `mirror` and its ring. Copies are taken in the order in which they were put, and packets go on whatever happens to
//! copies.

use super::*;
use crate::elements::{Copied, Copies, CrcAppend, Forward, Mirror, NoCopy, Taker};
use proptest::prelude::*;
use std::thread;

/// A numbered packet of this length.
fn packet(number: u32, length: usize) -> (Vec<u8>, Ingress) {
    let bytes = number.to_be_bytes().into_iter().cycle().take(length);
    (bytes.collect(), ingress(1, 0))
}

fn chain(mirror: Mirror) -> Chain {
    Chain::new(vec![Box::new(mirror), Box::new(CrcAppend), Box::new(Forward::new(2))]).unwrap()
}

/// Each packet went on unchanged, with padding and its CRC.
fn went_on(chain: &mut Chain, ns: u64, data: &[(Vec<u8>, Ingress)]) {
    let seen = run(chain, &Now { ns, ..READY }, data);
    for ((verdict, out), (came, _)) in seen.iter().zip(data) {
        assert_eq!(*verdict, Verdict::To(2));
        let came = [&came[..], &[0; 56][came.len().min(56)..]].concat();
        let crc = crc32fast::hash(&came).to_le_bytes();
        assert_eq!(out, &[&came[..], &crc[..]].concat());
    }
    assert_eq!(seen.len(), data.len());
}

fn taken(taker: &mut Taker) -> Vec<(Copied, Vec<u8>)> {
    let one = || {
        // Copies are appended to existing data.
        let mut to = vec![0xbb; 3];
        let copied = taker.take(&mut to)?;
        assert_eq!(to[..3], [0xbb; 3]);
        Some((copied, to.split_off(3)))
    };
    std::iter::from_fn(one).collect()
}

/// The counts of the mirror, which is the first element.
fn counted(chain: &Chain) -> [u64; 4] {
    let (name, _, counted) = chain.counters().next().unwrap();
    assert_eq!(name, "mirror");
    let names: Vec<_> = counted.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["written", "mirror_full", "mirror_disk", "mirror_limit"]);
    std::array::from_fn(|n| counted[n].1)
}

#[test]
fn copies_are_cut_and_come_in_order_and_packets_go_on() {
    let (copies, mut taker) = Copies::new(1 << 17);
    let mut chain = chain(Mirror::new(copies, 60, 1));
    went_on(&mut chain, 7, &[packet(1, 59), packet(2, 60), packet(3, 61)]);
    went_on(&mut chain, 9, &[packet(4, 14), packet(5, 1400), packet(6, 64), packet(7, 0)]);
    let expected: Vec<_> =
        [(1, 59, 7), (2, 60, 7), (3, 61, 7), (4, 14, 9), (5, 1400, 9), (6, 64, 9), (7, 0, 9)]
            .into_iter()
            .map(|(number, length, at_ns)| {
                let captured = length.min(60);
                let copied = Copied { at_ns, original: length as u32, captured: captured as u32 };
                (copied, packet(number, captured).0)
            })
            .collect();
    assert_eq!(taken(&mut taker), expected);
    assert_eq!(taken(&mut taker), []);
    taker.count_written(7);
    assert_eq!(counted(&chain), [7, 0, 0, 0]);
}

#[test]
fn one_in_so_many_is_copied_and_a_chain_that_goes_on_keeps_which() {
    let (copies, mut taker) = Copies::new(1 << 17);
    let new = || chain(Mirror::new(copies.clone(), 60, 3));
    let numbers = |taker: &mut Taker| -> Vec<u8> { taken(taker).iter().map(|(_, data)| data[3]).collect() };
    let mut first = new();
    went_on(&mut first, 1, &[packet(0, 60), packet(1, 60), packet(2, 60), packet(3, 60), packet(4, 60)]);
    assert_eq!(numbers(&mut taker), [0, 3]);
    let mut next = new();
    next.go_on_from(&first);
    went_on(&mut next, 2, &[packet(5, 60), packet(6, 60), packet(7, 60)]);
    assert_eq!(numbers(&mut taker), [6]);
    went_on(&mut new(), 3, &[packet(8, 60)]);
    assert_eq!(numbers(&mut taker), [8], "a new mirror begins with the first packet");
}

/// Nobody takes copies. Copies without room are counted, and room that is made is used again.
#[test]
fn a_full_ring_loses_copies_and_no_packet() {
    let (copies, mut taker) = Copies::new(Copies::bytes_for(1, 65_535));
    let mut chain = chain(Mirror::new(copies, 256, 1));
    // Each copy has 2 + 32 words, and the ring has 2 + 8192.
    let whole: Vec<_> = (0..256).map(|n| packet(n, 1000)).collect();
    went_on(&mut chain, 1, &whole);
    assert_eq!(counted(&chain), [0, 256 - 241, 0, 0]);
    let mut to = Vec::new();
    assert!((0..3).all(|_| taker.take(&mut to).is_some()));
    went_on(&mut chain, 2, &whole[..5]);
    assert_eq!(counted(&chain), [0, 256 - 241 + 2, 0, 0]);
    let numbers: Vec<_> = taken(&mut taker).iter().map(|(copied, data)| (copied.at_ns, data[3])).collect();
    let expected = (3..241).map(|n| (1, n)).chain((0..3).map(|n| (2, n)));
    assert_eq!(numbers, expected.collect::<Vec<_>>());
}

#[test]
fn the_writer_refuses_by_name_and_takes_again() {
    let (copies, mut taker) = Copies::new(1 << 17);
    let mut chain = chain(Mirror::new(copies.clone(), 256, 2));
    let four = [packet(1, 60), packet(2, 60), packet(3, 60), packet(4, 60)];
    taker.refuse(Some(NoCopy::Disk));
    went_on(&mut chain, 1, &four);
    taker.refuse(Some(NoCopy::Limit));
    went_on(&mut chain, 1, &four);
    taker.lose(NoCopy::Limit, 1);
    assert_eq!((counted(&chain), taken(&mut taker).len()), ([0, 0, 2, 3], 0));
    taker.refuse(None);
    went_on(&mut chain, 1, &four);
    assert_eq!((counted(&chain), taken(&mut taker).len()), ([0, 0, 2, 3], 2));
    drop(taker);
    went_on(&mut chain, 1, &four);
    assert_eq!(counted(&chain), [0, 0, 4, 3], "the writer is gone");
    let mut nowhere = self::chain(Mirror::new(Copies::nowhere(), 256, 1));
    went_on(&mut nowhere, 1, &four);
    assert_eq!(counted(&nowhere), [0, 0, 4, 0]);
}

/// A second thread does not wait, and their copies do not mix.
#[test]
fn only_one_puts_at_a_time() {
    let (copies, mut taker) = Copies::new(1 << 17);
    let mut hangs = copies.begin().unwrap();
    hangs.put(1, &[1; 20], 60);
    assert_eq!(copies.begin().err(), Some(NoCopy::Full));
    let mut chain = chain(Mirror::new(copies.clone(), 256, 1));
    went_on(&mut chain, 1, &[packet(1, 60)]);
    assert_eq!(taken(&mut taker), [], "copies are visible after the run");
    drop(hangs);
    went_on(&mut chain, 2, &[packet(1, 60)]);
    assert_eq!(counted(&chain), [0, 1, 0, 0]);
    assert_eq!(taken(&mut taker).iter().map(|(copied, _)| copied.at_ns).collect::<Vec<_>>(), [1, 2]);
}

/// Two threads, and a ring that is full most of the time. Copies that are taken are whole and in order. With the lost
/// ones they are all.
#[test]
fn copies_taken_during_a_run_are_whole() {
    const RUNS: u32 = 3000;
    let (copies, mut taker) = Copies::new(0);
    let puts = copies.clone();
    let putter = thread::spawn(move || {
        for run in 0..RUNS {
            let Ok(mut putting) = puts.begin() else { panic!("nobody else puts") };
            for n in 0..32 {
                let number = run * 32 + n;
                putting.put(number.into(), &packet(number, number as usize * 31 % 1500).0, 1024);
            }
        }
    });
    let (mut came, mut next, mut ended) = (0, 0, false);
    while !ended {
        ended = putter.is_finished();
        for (copied, data) in taken(&mut taker) {
            let length = copied.at_ns as usize * 31 % 1500;
            assert!(copied.at_ns >= next, "in order");
            assert_eq!((copied.original as usize, data.len()), (length, length.min(1024)));
            assert_eq!(data, packet(copied.at_ns as u32, length.min(1024)).0);
            (came, next) = (came + 1, copied.at_ns + 1);
        }
    }
    putter.join().unwrap();
    assert_eq!(came + copies.lost(NoCopy::Full), u64::from(RUNS) * 32);
    assert!(came > 0);
}

proptest! {
    /// The ring is compared with an unlimited queue. Nothing is lost or mixed where the ring begins again.
    #[test]
    fn a_ring_is_a_queue(steps in prop::collection::vec((0_usize..3000, 0_usize..2000, 0_usize..12), 1..300)) {
        let (copies, mut taker) = Copies::new(0);
        let room = Copies::bytes_for(1, 65_535);
        let (mut queue, mut used, mut lost) = (std::collections::VecDeque::new(), 0, 0);
        for (n, (length, most, takes)) in steps.into_iter().enumerate() {
            let (data, _) = packet(n as u32, length);
            copies.begin().unwrap().put(n as u64, &data, most);
            let bytes = Copies::bytes_for(1, length.min(most));
            if used + bytes <= room {
                used += bytes;
                queue.push_back((n as u64, data, length.min(most)));
            } else {
                lost += 1;
            }
            // Seldom more than one, so that the ring fills.
            for _ in 0..takes.saturating_sub(9) {
                let mut to = Vec::new();
                let copied = taker.take(&mut to);
                let expected = queue.pop_front();
                prop_assert_eq!(copied.map(|copied| copied.at_ns), expected.as_ref().map(|(n, ..)| *n));
                if let (Some(copied), Some((_, data, captured))) = (copied, expected) {
                    prop_assert_eq!((copied.original as usize, copied.captured as usize), (data.len(), captured));
                    prop_assert_eq!(&to[..], &data[..captured]);
                    used -= Copies::bytes_for(1, captured);
                }
            }
            prop_assert_eq!(copies.lost(NoCopy::Full), lost);
        }
    }
}

/// Each copy is counted, also those that were on their way when the writer ended.
#[test]
fn copies_without_a_writer_are_lost() {
    let (copies, mut taker) = Copies::new(1 << 17);
    let mut chain = chain(Mirror::new(copies, 60, 1));
    went_on(&mut chain, 7, &[packet(1, 60), packet(2, 60), packet(3, 60)]);
    assert!(taker.take(&mut Vec::new()).is_some());
    taker.count_written(1);
    drop(taker);
    assert_eq!(counted(&chain), [1, 0, 2, 0]);
    went_on(&mut chain, 7, &[packet(4, 60)]);
    assert_eq!(counted(&chain), [1, 0, 3, 0]);
}
