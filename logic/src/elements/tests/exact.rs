//! Elements that do not route: exact bytes, exact counters.

use super::*;
use crate::{
    elements::{Count, CrcAppend, CrcCheck, Discard, Forward, Loss, NotAFrame, Police, Rate},
    fib::synthetic::Random,
    flow::checksum,
};

fn plain(data: &[u8]) -> (Vec<u8>, Ingress) {
    (data.to_vec(), ingress(1, 0))
}

fn chain(elements: Vec<Box<dyn Element>>) -> Chain {
    Chain::new(elements).unwrap()
}

#[test]
fn ttl_and_checksum_are_those_of_a_newly_written_header() {
    let mut random = Random(3);
    let mut chain = chain(vec![Box::new(Check), Box::new(Ttl), Box::new(Forward::new(2))]);
    let mut sums = 0;
    for round in 0..20_000u32 {
        let word = random.next_u64().to_be_bytes();
        let ttl = 2 + (round % 254) as u8;
        let mut packet = udp4([10, word[0], word[1], word[2]], [10, word[3], word[4], word[5]], ttl, 0);
        // The identification makes the checksum 0xfeff or 0x00ff, where the carry is, or 0 after it.
        let mut set = |id: u16| {
            packet[18..20].copy_from_slice(&id.to_be_bytes());
            packet[24..26].fill(0);
            let sum = !checksum::sum(&packet[14..34]);
            packet[24..26].copy_from_slice(&sum.to_be_bytes());
            sum
        };
        let zero = set(0);
        if round % 4 > 0 {
            let wanted = [0, 0xfeff, 0xff00, 0xfefe][round as usize % 4];
            let id = u32::from(zero) + u32::from(!wanted);
            sums += usize::from(set((id + (id >> 16)) as u16) == wanted);
        }
        let (verdict, out) = run(&mut chain, &READY, &[plain(&packet)]).remove(0);
        assert_eq!(verdict, Verdict::To(2));
        let (header, _) = etherparse::Ipv4Header::from_slice(&out[14..]).unwrap();
        assert_eq!(header.time_to_live, ttl - 1);
        assert_eq!(header.header_checksum, header.calc_header_checksum(), "{packet:02x?}");
        let (old, new) = (&packet[22..24], &out[22..24]);
        let followed = checksum::follow(u16::from_be_bytes([packet[24], packet[25]]), old, new);
        assert_eq!(header.header_checksum, followed);
        assert_eq!((&out[..22], &out[26..]), (&packet[..22], &packet[26..]));
    }
    assert!(sums > 10_000, "the checksums that matter were met {sums} times");
}

#[test]
fn ttl_alone_passes_up_packets_without_a_hop_left() {
    let mut chain = chain(vec![Box::new(Check), Box::new(Ttl), Box::new(Forward::new(2))]);
    let packets = [1, 2, 0].map(|ttl| udp4([10, 1, 0, 1], [10, 2, 0, 1], ttl, 0));
    let seen = run(&mut chain, &READY, &packets.clone().map(|packet| plain(&packet)));
    let up = Verdict::Up(Reason::TtlExceeded);
    assert_eq!(seen[0], (up, packets[0].clone()));
    assert_eq!(seen[1].0, Verdict::To(2));
    assert_eq!(seen[2], (up, packets[2].clone()));
    let (_, ttl, _) = chain.counters().nth(1).unwrap();
    assert_eq!((ttl.packets(), ttl.went_on(), ttl.up(Reason::TtlExceeded)), (3, 1, 2));
}

/// CRC-32 bit by bit (IEEE 802.3 section 3.2.9), reflected.
fn crc_by_bits(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 != 0 { 0xedb8_8320 } else { 0 };
        }
    }
    !crc
}

#[test]
fn crcs_are_appended_and_checked() {
    let mut append = chain(vec![Box::new(CrcAppend), Box::new(Forward::new(1))]);
    let mut check = chain(vec![Box::new(CrcCheck), Box::new(Forward::new(1))]);
    assert_eq!(crc_by_bits(b"123456789"), 0xcbf4_3926);
    let mut random = Random(1);
    for length in (0..200).chain([1400, 9000]) {
        let mut data: Vec<u8> = (0..length).map(|_| random.next_u64() as u8).collect();
        let (_, mut out) = run(&mut append, &READY, &[plain(&data)]).remove(0);
        // Long enough that no device pads it.
        data.resize(length.max(56), 0);
        assert_eq!(out, [&data[..], &crc_by_bits(&data).to_le_bytes()].concat());
        assert_eq!(run(&mut check, &READY, &[plain(&out)]).remove(0), (Verdict::To(1), data));
        let bit = random.below(8 * out.len() as u32) as usize;
        out[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(run(&mut check, &READY, &[plain(&out)]).remove(0), (Verdict::Drop(Loss::BadCrc), out));
    }
    assert_eq!(run(&mut check, &READY, &[plain(&[0; 3])]).remove(0).0, Verdict::Drop(Loss::BadCrc));
    let counters: Vec<_> = check.counters().map(|(_, counters, _)| counters.clone()).collect();
    assert_eq!((counters[0].packets(), counters[0].dropped(Loss::BadCrc)), (2 * 202 + 1, 203));
}

#[test]
fn crcs_need_tail_room() {
    let mut chain = chain(vec![Box::new(CrcAppend), Box::new(Forward::new(1))]);
    let no_room = Verdict::Drop(Loss::NoRoom);
    for (length, room, expected) in
        [(60, 3, no_room), (60, 4, Verdict::To(1)), (40, 19, no_room), (40, 20, Verdict::To(1))]
    {
        let mut frame = vec![1; length + room];
        let mut batch = Batch::default();
        batch.push(&mut frame, 0, length, ingress(1, 0)).unwrap();
        chain.run(&READY, &mut batch);
        let packet = &batch.packets()[0];
        let grown = if expected == no_room { 0 } else { room };
        assert_eq!((packet.verdict(), packet.length()), (expected, length + grown));
    }
}

/// How many of 20 packets of 100 bytes pass at each of these times.
fn passed(rate: Rate, times_ns: &[u64]) -> Vec<u64> {
    let mut chain = chain(vec![Box::new(Police::new(rate)), Box::new(Forward::new(1))]);
    let data = vec![plain(&[0; 100]); 20];
    let pass = |ns: &u64| {
        let before = chain.whole().to;
        run(&mut chain, &Now { ns: *ns, ..READY }, &data);
        chain.whole().to - before
    };
    let passed: Vec<u64> = times_ns.iter().map(pass).collect();
    let (_, police, _) = chain.counters().next().unwrap();
    let all = 20 * times_ns.len() as u64;
    assert_eq!((police.packets(), police.dropped(Loss::OverRate)), (all, all - passed.iter().sum::<u64>()));
    passed
}

#[test]
fn a_policer_lets_the_burst_pass_and_then_the_rate() {
    const MS: u64 = 1_000_000;
    let packets = |per_second, burst| Rate::Packets { per_second, burst };
    // A burst of 10; 5 in 5 ms; one more at the exact nanosecond; none saved beyond the burst; none if time goes back.
    let times = [7, 7 + 5 * MS, 6 + 6 * MS, 7 + 6 * MS, 7 + 1000 * MS, 7];
    assert_eq!(passed(packets(1000, 10), &times), [10, 5, 0, 1, 10, 0]);
    // 100 bytes are 800 bits: 8 Mbit/s are 10 packets per millisecond.
    let bytes = |burst| Rate::Bytes { bits_per_second: 8_000_000, burst };
    assert_eq!(passed(bytes(550), &[0, MS / 10, MS / 10 + MS / 20, MS]), [5, 1, 1, 5]);
    assert_eq!(passed(bytes(99), &[0, 1000 * MS]), [0, 0]);
    assert_eq!(passed(packets(u64::MAX, u64::MAX), &[0, u64::MAX]), [20, 20]);
    assert_eq!(passed(bytes(u64::MAX), &[0, u64::MAX]), [20, 20]);
    assert_eq!(passed(packets(0, 0), &[0, 999 * MS, 1000 * MS]), [1, 0, 1]);
}

/// The chain is made again with other tables. The bucket stays as empty, and counts go on.
#[test]
fn a_chain_goes_on_from_another() {
    let new = |burst| {
        let rate = Rate::Packets { per_second: 1000, burst };
        chain(vec![Box::new(Count::default()), Box::new(Police::new(rate)), Box::new(Forward::new(1))])
    };
    let data = vec![plain(&[0; 100]); 20];
    let (mut before, mut after, mut other) = (new(10), new(10), new(5));
    run(&mut before, &READY, &data);
    assert_eq!(before.whole().to, 10);
    for (chain, to) in [(&mut after, 10), (&mut other, 15)] {
        chain.go_on_from(&before);
        run(chain, &READY, &data);
        assert_eq!((chain.whole().packets, chain.whole().to), (40, to), "another bucket is full");
        let counted: Vec<_> = chain.counters().map(|(_, counters, own)| (counters.packets(), own)).collect();
        assert_eq!(counted, [(40, vec![("bytes", 4000)]), (40, vec![]), (to, vec![])]);
    }
}

#[test]
fn forward_count_and_discard() {
    let data = vec![plain(&[0; 60]), plain(&[0; 100])];
    let mut to = chain(vec![Box::new(Count::default()), Box::new(Forward::new(3))]);
    assert_eq!(
        run(&mut to, &READY, &data),
        data.iter().map(|d| (Verdict::To(3), d.0.clone())).collect::<Vec<_>>()
    );
    assert_eq!(to.counters().next().unwrap().2, [("bytes", 160)]);
    let mut gone = chain(vec![Box::new(Discard)]);
    assert!(
        run(&mut gone, &READY, &data).iter().all(|(verdict, _)| *verdict == Verdict::Drop(Loss::Discarded))
    );
    assert_eq!((gone.whole().packets, gone.whole().to), (2, 0));
    for port in [4, 63, 64, 255] {
        let mut nowhere = chain(vec![Box::new(Forward::new(port))]);
        assert!(
            run(&mut nowhere, &READY, &data)
                .iter()
                .all(|(verdict, _)| *verdict == Verdict::Drop(Loss::NoPort))
        );
    }
}

#[test]
fn frames_are_lent_within_bounds() {
    let mut frames = vec![vec![0u8; 64]; 300];
    let mut batch = Batch::default();
    let mut large = vec![0; 65_536];
    let mut odd = vec![0; 64];
    for (start, length) in [(0, 65), (65, 0), (1, 64), (usize::MAX, 1), (1, usize::MAX)] {
        let mut lent = Batch::default();
        assert_eq!(lent.push(&mut odd, start, length, ingress(1, 0)), Err(NotAFrame::Bounds));
    }
    assert_eq!(batch.push(&mut large, 0, 60, ingress(1, 0)), Err(NotAFrame::Bounds));
    let pushed = frames.iter_mut().map(|frame| batch.push(frame, 0, 64, ingress(1, 0)));
    assert_eq!(pushed.filter(|pushed| *pushed == Err(NotAFrame::Full)).count(), 44);
    assert_eq!((batch.going(), batch.packets().len()), (256, 256));
    let again: Batch<'_> = batch.emptied();
    assert_eq!((again.going(), again.packets().len()), (0, 0));
}

#[test]
fn data_grows_and_shrinks_within_its_frame() {
    let mut frame = vec![0; 100];
    let mut packet = Packet::new(&mut frame, 30, 40, ingress(1, 0));
    let shape = |packet: &Packet<'_>| (packet.head_room(), packet.length(), packet.tail_room());
    for too_much in [31, usize::MAX] {
        assert!(!packet.push(too_much) && !packet.append(too_much));
    }
    for too_much in [41, usize::MAX] {
        assert!(!packet.pull(too_much) && !packet.trim(too_much));
    }
    assert_eq!(shape(&packet), (30, 40, 30));
    assert!(packet.push(30) && packet.append(30));
    assert_eq!(shape(&packet), (0, 100, 0));
    assert!(packet.pull(60) && packet.trim(40));
    assert_eq!(shape(&packet), (60, 0, 40));
    assert_eq!(packet.data(), []);
}
