//! Into ESP and out of it. The bytes are those of the RFCs, checked with etherparse and an AEAD of RustCrypto's. Wrong
//! packets are in `esp_wrong`.

use super::*;
use crate::{
    elements::{EspDecrypt, EspEncrypt, Forward, Loss},
    esp::{
        Aead, Common, Dont, Ends, Inbound, Job, Key, Mode, Outbound, SaTable, Selectors, Udp, tests::Oracle,
    },
};
use proptest::prelude::*;

#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub mode: Mode,
    pub is_v6: bool,
    pub udp: Option<Udp>,
    pub is_extended: bool,
    pub key_bytes: usize,
    pub spi: u32,
    pub window: u32,
    pub mtu: u16,
    pub used: u64,
    pub selectors: Selectors,
}

pub(super) const PLAIN: Setting = Setting {
    mode: Mode::Tunnel,
    is_v6: false,
    udp: None,
    is_extended: false,
    key_bytes: 20,
    spi: 0x1001,
    window: 64,
    mtu: 1500,
    used: 0,
    selectors: Selectors { source: Vec::new(), destination: Vec::new() },
};
pub(super) const NAT: Option<Udp> = Some(Udp { local: 4500, remote: 4501 });
const NAT_BACK: Option<Udp> = Some(Udp { local: 4501, remote: 4500 });

impl Setting {
    pub(super) fn key(&self) -> Key {
        let bytes: Vec<u8> = (0..self.key_bytes as u8).map(|n| n ^ self.spi as u8).collect();
        Key::new(&bytes).unwrap()
    }

    fn common<'k>(&self, key: &'k Key, is_outbound: bool) -> Common<'k> {
        let (a, b): (IpAddr, IpAddr) = match self.is_v6 {
            false => ("10.0.0.1".parse().unwrap(), "10.1.0.1".parse().unwrap()),
            true => ("2001:db8:2::1".parse().unwrap(), "2001:db8:1::1".parse().unwrap()),
        };
        let (local, remote, udp) = if is_outbound { (a, b, NAT) } else { (b, a, NAT_BACK) };
        Common {
            spi: self.spi,
            key,
            aead: Arc::new(Oracle::new(key)),
            mode: self.mode,
            is_extended: self.is_extended,
            ends: Ends::new(local, remote).unwrap(),
            udp: self.udp.and(udp),
            selectors: self.selectors.clone(),
        }
    }

    pub(super) fn outbound(&self) -> Arc<Outbound> {
        let key = self.key();
        let sa = Outbound::new(self.common(&key, true), self.mtu, Dont::Copy, self.used);
        sa.sequence.reserve(u64::MAX);
        Arc::new(sa)
    }

    pub(super) fn inbound(&self) -> Arc<Inbound> {
        let key = self.key();
        Arc::new(Inbound::new(self.common(&key, false), self.window, self.mtu).unwrap())
    }
}

/// Like `run` of these tests, in frames with as much room as those of AF_XDP.
pub(super) fn run(chain: &mut Chain, packets: &[Vec<u8>]) -> Vec<(Verdict, Vec<u8>)> {
    const ROOM: usize = 256;
    let frame = |packet: &Vec<u8>| [&[0xaa; ROOM], &packet[..], &[0x55; 64]].concat();
    let mut frames: Vec<Vec<u8>> = packets.iter().map(frame).collect();
    let mut batch = Batch::default();
    for (frame, packet) in frames.iter_mut().zip(packets) {
        batch.push(frame, ROOM, packet.len(), ingress(1, 0)).unwrap();
    }
    chain.run(&READY, &mut batch);
    batch.packets().iter().map(|packet| (packet.verdict(), packet.data().to_vec())).collect()
}

/// Two chains, and the table that they read.
pub(super) struct Pair {
    table: Arc<SaTable>,
    out: Chain,
    pub(super) back: Chain,
}

impl Pair {
    pub(super) fn new(setting: &Setting) -> Self {
        Pair::between(setting, setting)
    }

    /// The chains of two ends, which need not agree.
    pub(super) fn between(sends: &Setting, receives: &Setting) -> Self {
        let table = Arc::new(SaTable::default());
        table.set_outbound("a", sends.outbound());
        assert!(table.add_inbound("a", receives.inbound()));
        Pair::over(&table)
    }

    fn over(table: &Arc<SaTable>) -> Self {
        let encrypt = Box::new(EspEncrypt::new(table.clone(), "a"));
        let decrypt = Box::new(EspDecrypt::new(table.clone(), vec!["a".into(), "b".into()]));
        let out = Chain::new(vec![Box::new(Check), encrypt, Box::new(Forward::new(2))]).unwrap();
        let back = Chain::new(vec![Box::new(Check), decrypt, Box::new(Forward::new(1))]).unwrap();
        Pair { table: table.clone(), out, back }
    }

    pub(super) fn encrypt(&mut self, packets: &[Vec<u8>]) -> Vec<(Verdict, Vec<u8>)> {
        run(&mut self.out, packets)
    }

    pub(super) fn encrypted(&mut self, packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let all = self.encrypt(packets).into_iter();
        all.map(|(verdict, data)| {
            assert_eq!(verdict, Verdict::To(2));
            data
        })
        .collect()
    }

    pub(super) fn decrypt(&mut self, packets: &[Vec<u8>]) -> Vec<(Verdict, Vec<u8>)> {
        run(&mut self.back, packets)
    }

    pub(super) fn fate(&mut self, packet: &[u8]) -> Verdict {
        self.decrypt(&[packet.to_vec()]).remove(0).0
    }

    pub(super) fn counted(&self, name: &str) -> u64 {
        let all = self.out.counters().chain(self.back.counters()).flat_map(|(_, _, counted)| counted);
        all.filter(|(of, _)| *of == name).map(|(_, count)| count).sum()
    }
}

pub(super) fn dropped(loss: Loss) -> Verdict {
    Verdict::Drop(loss)
}

fn settings() -> impl Strategy<Value = Setting> {
    let mode = prop_oneof![Just(Mode::Tunnel), Just(Mode::Transport)];
    (mode, any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<u32>()).prop_map(
        |(mode, is_v6, udp, is_extended, large, used)| Setting {
            mode,
            is_v6,
            udp: NAT.filter(|_| udp),
            is_extended,
            key_bytes: if large { 36 } else { 20 },
            // A window that has seen nothing cannot infer the high half of numbers far ahead.
            used: if is_extended { u64::from(used >> 4) } else { u64::from(used >> 1) },
            ..PLAIN
        },
    )
}

/// IP packets of both versions. In transport mode they are between the ends of the SA.
fn inner() -> impl Strategy<Value = (bool, Vec<u8>, u8)> {
    (any::<bool>(), prop::collection::vec(any::<u8>(), 0..200), any::<u8>())
}

pub(super) fn packet(is_v6: bool, payload: &[u8], tos: u8) -> Vec<u8> {
    let length = payload.len();
    let mut packet = match is_v6 {
        false => udp4([10, 0, 0, 1], [10, 1, 0, 1], 64, length),
        true => udp6("2001:db8:2::1", "2001:db8:1::1", 64, length),
    };
    let end = packet.len();
    packet[end - length..].copy_from_slice(payload);
    if is_v6 {
        packet[14] |= tos >> 4;
        packet[15] |= tos << 4;
    } else {
        packet[15] = tos;
        packet[24..26].fill(0);
        let sum = !crate::flow::checksum::sum(&packet[14..34]);
        packet[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    packet
}

proptest! {
    #![proptest_config(crate::cases(300))]

    #[test]
    fn encrypted_packets_are_decrypted_to_the_originals(
        setting in settings(),
        all in prop::collection::vec(inner(), 1..40),
        pads in prop::collection::vec(0..6usize, 40),
    ) {
        let mut pair = Pair::new(&setting);
        let is_v6 = |of: bool| if setting.mode == Mode::Transport { setting.is_v6 } else { of };
        let plain: Vec<_> = all.iter().map(|(of, payload, tos)| packet(is_v6(*of), payload, *tos)).collect();
        // Ethernet padding does not belong to the packet.
        let padded: Vec<_> = plain.iter().zip(&pads).map(|(packet, pad)| [&packet[..], &vec![0xee; *pad]].concat()).collect();
        let sent = pair.encrypted(&padded);
        for (n, (sent, plain)) in sent.iter().zip(&plain).enumerate() {
            check_outer(&setting, setting.used + 1 + n as u64, sent, plain);
        }
        let padded: Vec<_> = sent.iter().zip(&pads).map(|(packet, pad)| [&packet[..], &vec![0xee; *pad]].concat()).collect();
        let back = pair.decrypt(&padded);
        for ((verdict, back), plain) in back.iter().zip(&plain) {
            prop_assert_eq!((*verdict, back), (Verdict::To(1), plain));
        }
        // The same packets are not accepted a second time.
        for (verdict, _) in pair.decrypt(&sent) {
            prop_assert_eq!(verdict, dropped(Loss::Replayed));
        }
    }

    #[test]
    fn any_bytes_get_a_verdict(
        setting in settings(),
        packets in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..120), 0..4u8), 1..30),
    ) {
        let mut pair = Pair::new(&setting);
        let make = |(is_v6, bytes, kind): &(bool, Vec<u8>, u8)| {
            let mut packet = packet(*is_v6, bytes, 0);
            let (proto, at) = if *is_v6 { (20, 54) } else { (23, 34) };
            if *kind > 0 {
                packet[proto] = 50;
            }
            if *kind > 1 {
                packet[at..at + 4].copy_from_slice(&setting.spi.to_be_bytes());
            }
            if !*is_v6 {
                packet[24..26].fill(0);
                let sum = !crate::flow::checksum::sum(&packet[14..34]);
                packet[24..26].copy_from_slice(&sum.to_be_bytes());
            }
            packet
        };
        let all: Vec<_> = packets.iter().map(make).collect();
        for ((verdict, data), came) in pair.decrypt(&all).into_iter().zip(&all) {
            prop_assert!(!matches!(verdict, Verdict::To(_)), "{:?}", verdict);
            if let Verdict::Up(_) = verdict {
                prop_assert_eq!(&data, came);
            }
        }
        pair.encrypt(&all);
    }
}

/// Checks every byte in front of the encrypted text.
fn check_outer(setting: &Setting, number: u64, sent: &[u8], plain: &[u8]) {
    let ip = &sent[14..];
    assert_eq!(sent[..12], plain[..12]);
    let is_v6 = ip[0] >> 4 == 6;
    assert_eq!(sent[12..14], if is_v6 { [0x86, 0xdd] } else { [8, 0] });
    let inner_tos = if plain[14] >> 4 == 4 { plain[15] } else { plain[14] << 4 | plain[15] >> 4 };
    let (proto, header, tos) = if is_v6 {
        let header = etherparse::Ipv6Header::from_slice(ip).unwrap().0;
        assert_eq!(usize::from(header.payload_length), ip.len() - 40);
        assert_eq!((header.hop_limit, header.flow_label.value()), (64, 0));
        (header.next_header.0, 40, header.traffic_class)
    } else {
        let header = etherparse::Ipv4Header::from_slice(ip).unwrap().0;
        assert_eq!((usize::from(header.total_len), header.time_to_live), (ip.len(), 64));
        assert_eq!(header.header_checksum, header.calc_header_checksum());
        if setting.mode == Mode::Tunnel {
            let dont = plain[14] >> 4 == 6 || plain[20] & 0x40 != 0;
            assert_eq!((header.identification, header.dont_fragment), (number as u16, dont));
        }
        (header.protocol.0, 20, ip[1])
    };
    assert_eq!(is_v6, setting.is_v6);
    assert_eq!(tos, inner_tos);
    let mut esp = &ip[header..];
    if setting.udp.is_some() {
        assert_eq!((proto, &esp[..4]), (17, &[4500u16.to_be_bytes(), 4501u16.to_be_bytes()].concat()[..]));
        assert_eq!(u16::from_be_bytes([esp[4], esp[5]]) as usize, esp.len());
        if is_v6 {
            let (header, _) = etherparse::Ipv6Header::from_slice(ip).unwrap();
            let (udp, payload) = etherparse::UdpHeader::from_slice(esp).unwrap();
            assert_eq!(udp.checksum, udp.calc_checksum_ipv6(&header, payload).unwrap());
        } else {
            assert_eq!(esp[6..8], [0, 0]);
        }
        esp = &esp[8..];
    } else {
        assert_eq!(proto, 50);
    }
    assert_eq!(esp[..4], setting.spi.to_be_bytes());
    assert_eq!(esp[4..8], (number as u32).to_be_bytes());
    assert_eq!(esp[8..16], number.to_be_bytes());
    assert_eq!(esp.len() % 4, 0);
}

#[test]
fn ike_and_keepalives_go_up() {
    let setting = Setting { udp: NAT, ..PLAIN };
    let mut pair = Pair::new(&setting);
    let to_4501 = |payload: &[u8]| {
        let mut packet = packet(false, payload, 0);
        packet[36..38].copy_from_slice(&4501u16.to_be_bytes());
        packet
    };
    let ike = to_4501(&[&[0; 4][..], &[7; 40]].concat());
    let keepalive = to_4501(&[0xff]);
    let seen = pair.decrypt(&[ike.clone(), keepalive.clone(), to_4501(&[1, 2]), to_4501(&[])]);
    assert_eq!(seen[..2], [(Verdict::Up(Reason::Local), ike), (Verdict::Up(Reason::Local), keepalive)]);
    assert_eq!([seen[2].0, seen[3].0], [dropped(Loss::Truncated); 2]);
    assert_eq!(["ike", "keepalives"].map(|name| pair.counted(name)), [1, 1]);
    // Not in UDP, but the SA is.
    let sent = pair.encrypted(&[packet(false, b"x", 0)]).remove(0);
    let mut bare = [&sent[..34], &sent[42..]].concat();
    let length = (bare.len() - 14) as u16;
    bare[16..18].copy_from_slice(&length.to_be_bytes());
    bare[23] = 50;
    bare[24..26].fill(0);
    let sum = !crate::flow::checksum::sum(&bare[14..34]);
    bare[24..26].copy_from_slice(&sum.to_be_bytes());
    assert_eq!((pair.fate(&bare), pair.fate(&sent)), (Verdict::Up(Reason::Local), Verdict::To(1)));
}

#[test]
fn packets_that_must_not_leave_are_dropped_and_use_no_number() {
    let to_other = Selectors { destination: vec!["10.1.0.2/32".parse().unwrap()], ..Selectors::default() };
    let mut pair = Pair::new(&Setting { selectors: to_other, ..PLAIN });
    let plain = packet(false, b"x", 0);
    assert_eq!(pair.encrypt(std::slice::from_ref(&plain)).remove(0), (dropped(Loss::Policy), plain.clone()));
    let long = udp4([10, 0, 0, 1], [10, 1, 0, 1], 64, 1440 - 28);
    let mut pair = Pair::new(&PLAIN);
    // 20 + 16 + 1446 (with 1 to 3 bytes of padding and the trailer 1448) + 16 = 1500.
    let fits = udp4([10, 0, 0, 1], [10, 1, 0, 1], 64, 1446 - 28);
    let over = udp4([10, 0, 0, 1], [10, 1, 0, 1], 64, 1447 - 28);
    let seen: Vec<_> = pair.encrypt(&[long, over.clone(), fits]).into_iter().collect();
    assert_eq!(
        (seen[0].0, &seen[1], seen[2].0),
        (Verdict::To(2), &(dropped(Loss::OverMtu), over), Verdict::To(2))
    );
    assert_eq!((seen[2].1.len(), &seen[2].1[38..42]), (1514, &[0, 0, 0, 2][..]));
    // No SA, then one.
    let old = pair.table.remove_outbound("a").unwrap();
    assert_eq!(pair.encrypt(std::slice::from_ref(&plain)).remove(0).0, dropped(Loss::NoSa));
    assert_eq!(old.sequence.taken(), 2);
    let mut transport = Pair::new(&Setting { mode: Mode::Transport, ..PLAIN });
    let mut fragment = plain;
    fragment[21] = 1;
    fragment[24..26].fill(0);
    let sum = !crate::flow::checksum::sum(&fragment[14..34]);
    fragment[24..26].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(transport.encrypt(&[fragment.clone()]).remove(0), (dropped(Loss::NotWhole), fragment));
}

#[test]
fn an_sa_stops_at_its_last_number_and_counts_near_end_before() {
    let last = u64::from(u32::MAX);
    let mut pair = Pair::new(&Setting { used: last - last / 8 - 2, ..PLAIN });
    let plain = packet(false, b"x", 0);
    pair.encrypted(&vec![plain.clone(); 5]);
    assert_eq!(pair.counted("near_end"), 3);
    let mut pair = Pair::new(&Setting { used: last - 2, ..PLAIN });
    let seen: Vec<_> = pair.encrypt(&vec![plain.clone(); 4]).into_iter().map(|seen| seen.0).collect();
    let end = dropped(Loss::SequenceExhausted);
    assert_eq!(seen, [Verdict::To(2), Verdict::To(2), end, end]);
    assert_eq!(pair.encrypt(&[plain]).remove(0).0, end);
}

#[test]
fn keys_change_without_a_loss() {
    let mut pair = Pair::new(&PLAIN);
    let new = Setting { spi: 0x2002, key_bytes: 36, ..PLAIN };
    let plain = packet(false, b"some payload", 0);
    let old = pair.encrypted(&vec![plain.clone(); 3]);
    assert!(pair.table.add_inbound("b", new.inbound()));
    assert!(!pair.table.add_inbound("a", new.inbound()), "its SPI is taken");
    pair.table.set_outbound("a", new.outbound());
    let sent = pair.encrypted(&vec![plain.clone(); 3]);
    assert_eq!(
        (&old[0][34..42], &sent[0][34..42]),
        (&[0, 0, 0x10, 1, 0, 0, 0, 1][..], &[0, 0, 0x20, 2, 0, 0, 0, 1][..])
    );
    // Both, mixed.
    let mixed: Vec<_> = old[..2].iter().zip(&sent[..2]).flat_map(|(a, b)| [b.clone(), a.clone()]).collect();
    for seen in pair.decrypt(&mixed) {
        assert_eq!(seen, (Verdict::To(1), plain.clone()));
    }
    assert!(pair.table.remove_inbound(PLAIN.spi).is_some() && pair.table.remove_inbound(1).is_none());
    assert_eq!((pair.fate(&old[2]), pair.fate(&sent[2])), (Verdict::Up(Reason::Local), Verdict::To(1)));
}

/// A chain is replaced because tables moved or the path's elements were made again. Packets are still not accepted
/// twice, no number is used twice, and counts go on.
#[test]
fn a_chain_in_place_of_another_goes_on() {
    let mut pair = Pair::new(&PLAIN);
    let plain = packet(false, b"some payload", 0);
    let old = pair.encrypted(&vec![plain.clone(); 3]);
    assert_eq!(pair.fate(&old[0]), Verdict::To(1));
    // Not ESP.
    assert_eq!(pair.fate(&plain), Verdict::Up(Reason::Local));
    let bytes = pair.counted("bytes");
    let table = pair.table.clone();
    let mut new = Pair::over(&table);
    new.out.go_on_from(&pair.out);
    new.back.go_on_from(&pair.back);
    drop(pair);
    assert_eq!((new.counted("bytes"), new.counted("not_esp")), (bytes, 1));
    assert_eq!((new.fate(&old[0]), new.fate(&old[1])), (dropped(Loss::Replayed), Verdict::To(1)));
    let next = new.encrypted(std::slice::from_ref(&plain)).remove(0);
    assert_eq!(next[38..42], [0, 0, 0, 4]);
    assert_eq!(new.fate(&next), Verdict::To(1));
    assert_eq!((new.counted("bytes"), new.fate(&plain)), (bytes / 3 * 4, Verdict::Up(Reason::Local)));
    assert_eq!(new.counted("not_esp"), 2);
    let decrypt = new.back.counters().nth(1).unwrap().1.clone();
    assert_eq!((decrypt.packets(), decrypt.dropped(Loss::Replayed)), (6, 1));
}

/// Keys of removed SAs are in no memory, and no list keeps them.
#[test]
fn old_sas_are_released_without_packets() {
    let mut pair = Pair::new(&PLAIN);
    let sa = PLAIN.outbound();
    pair.table.set_outbound("a", sa.clone());
    let sent = pair.encrypted(&[packet(false, b"x", 0)]);
    pair.decrypt(&sent);
    pair.table.remove_outbound("a");
    let of_other = pair.table.remove_inbound(PLAIN.spi).unwrap();
    assert_eq!((Arc::strong_count(&sa), Arc::strong_count(&of_other)), (2, 2));
    pair.out.refresh();
    pair.back.refresh();
    assert_eq!((Arc::strong_count(&sa), Arc::strong_count(&of_other)), (1, 1));
    assert_eq!(pair.encrypt(&[packet(false, b"x", 0)])[0].0, dropped(Loss::NoSa));
}

/// RFC 6040 figure 4: rows are marks of the inner header, columns of the outer one: not-ECT, ECT(0), ECT(1), CE.
#[test]
fn congestion_marks_are_kept() {
    let (not, ect0, ect1, ce) = (0, 2, 1, 3);
    let table = [
        (not, [Some(not), Some(not), Some(not), None]),
        (ect0, [Some(ect0), Some(ect0), Some(ect1), Some(ce)]),
        (ect1, [Some(ect1), Some(ect1), Some(ect1), Some(ce)]),
        (ce, [Some(ce); 4]),
    ];
    for is_v6 in [false, true] {
        for (inner, row) in table {
            for (outer, expected) in [not, ect0, ect1, ce].into_iter().zip(row) {
                let mut pair = Pair::new(&PLAIN);
                let plain = |mark: u8| packet(is_v6, b"x", 0xb8 | mark);
                let mut sent = pair.encrypted(&[plain(inner)]).remove(0);
                sent[15] = sent[15] & !3 | outer;
                sent[24..26].fill(0);
                let sum = !crate::flow::checksum::sum(&sent[14..34]);
                sent[24..26].copy_from_slice(&sum.to_be_bytes());
                let (verdict, back) = pair.decrypt(&[sent]).remove(0);
                match expected {
                    Some(mark) => {
                        assert_eq!((verdict, back), (Verdict::To(1), plain(mark)), "{inner} {outer}")
                    }
                    None => assert_eq!(verdict, dropped(Loss::Congested)),
                }
            }
        }
    }
}

#[test]
fn without_room_nothing_is_written() {
    let table = Arc::new(SaTable::default());
    table.set_outbound("a", PLAIN.outbound());
    let encrypt = Box::new(EspEncrypt::new(table.clone(), "a"));
    let mut chain = Chain::new(vec![Box::new(Check), encrypt, Box::new(Forward::new(2))]).unwrap();
    let plain = packet(false, b"1234567", 0);
    // 36 bytes in front. 3 bytes of padding, 2 of trailer and 16 of tag at the end.
    for (head, tail, fits) in [(36, 21, true), (35, 64, false), (64, 20, false)] {
        let mut frame = [vec![0; head], plain.clone(), vec![0; tail]].concat();
        let mut batch = Batch::default();
        batch.push(&mut frame, head, plain.len(), ingress(1, 0)).unwrap();
        chain.run(&READY, &mut batch);
        let expected = if fits { Verdict::To(2) } else { dropped(Loss::NoRoom) };
        assert_eq!(batch.packets()[0].verdict(), expected, "{head} {tail}");
    }
    assert_eq!(table.remove_outbound("a").unwrap().sequence.taken(), 1);
}

/// Seals only the first of each batch, and leaves the others zeroed.
struct Lazy(Oracle);

impl Aead for Lazy {
    fn seal(&self, jobs: &mut [Job<'_>]) -> bool {
        let Some((first, rest)) = jobs.split_first_mut() else { return true };
        rest.iter_mut().for_each(|job| job.text.fill(0));
        self.0.seal(std::slice::from_mut(first)) && rest.is_empty()
    }

    fn open(&self, _: &mut [Job<'_>]) {}
}

#[test]
fn packets_that_the_library_did_not_encrypt_are_not_sent() {
    let mut pair = Pair::new(&PLAIN);
    let key = PLAIN.key();
    let common = Common { aead: Arc::new(Lazy(Oracle::new(&key))), ..PLAIN.common(&key, true) };
    let sa = Outbound::new(common, 1500, Dont::Copy, 0);
    sa.sequence.reserve(u64::MAX);
    pair.table.set_outbound("a", Arc::new(sa));
    let seen = pair.encrypt(&vec![packet(false, b"x", 0); 3]);
    let fates: Vec<_> = seen.iter().map(|seen| seen.0).collect();
    assert_eq!(fates, [Verdict::To(2), dropped(Loss::NotSealed), dropped(Loss::NotSealed)]);
    assert_eq!(pair.fate(&seen[0].1), Verdict::To(1));
}

/// This holds for any lengths in the packet, and any port.
#[test]
fn packets_for_others_are_passed_up_unread() {
    let mut pair = Pair::new(&Setting { udp: NAT, ..PLAIN });
    let mut short = udp4([10, 0, 0, 1], [10, 1, 0, 2], 64, 2);
    short[36..38].copy_from_slice(&4501u16.to_be_bytes());
    let mut esp = udp4([10, 0, 0, 1], [10, 1, 0, 2], 64, 0);
    esp[23] = 50;
    esp[24..26].fill(0);
    let sum = !crate::flow::checksum::sum(&esp[14..34]);
    esp[24..26].copy_from_slice(&sum.to_be_bytes());
    for packet in [short, esp] {
        assert_eq!(
            pair.decrypt(std::slice::from_ref(&packet)).remove(0),
            (Verdict::Up(Reason::Local), packet)
        );
    }
}

/// A packet after an Ethernet header without tags takes the short way, in tunnel mode over IPv4. A packet with a tag
/// does not.
#[test]
fn the_short_way_makes_the_same_bytes() {
    let lengths = [0, 1, 2, 3, 4, 5, 61, 62, 63, 64, 1400, 1419, 1418, 1420];
    let source = ["10.0.0.0/31", "2001:db8:2::/48"].map(|prefix| prefix.parse().unwrap()).to_vec();
    let selectors = Selectors { source, ..Selectors::default() };
    for dont in [Dont::Copy, Dont::Set, Dont::Clear] {
        for (is_extended, selectors) in [(false, Selectors::default()), (true, selectors.clone())] {
            // Numbers whose low half carries into the checksum.
            let setting = Setting { is_extended, selectors, used: 0xfff0, ..PLAIN };
            let key = setting.key();
            let chain = || {
                let sa = Outbound::new(setting.common(&key, true), 1500, dont, setting.used);
                sa.sequence.reserve(u64::MAX);
                let table = Arc::new(SaTable::default());
                table.set_outbound("a", Arc::new(sa));
                let encrypt = Box::new(EspEncrypt::new(table, "a"));
                Chain::new(vec![Box::new(Check), encrypt, Box::new(Forward::new(2))]).unwrap()
            };
            let mut packets = Vec::new();
            for (n, length) in lengths.into_iter().enumerate() {
                let mut packet = packet(n % 3 == 2, &vec![n as u8; length], 0xff - n as u8);
                if n % 2 == 0 && n % 3 < 2 {
                    packet[20] |= 0x40;
                    packet[24..26].fill(0);
                    let sum = !crate::flow::checksum::sum(&packet[14..34]);
                    packet[24..26].copy_from_slice(&sum.to_be_bytes());
                }
                packets.push(packet);
            }
            // Not within the selectors, if there are any.
            packets.push(udp4([10, 0, 0, 2], [10, 1, 0, 1], 64, 9));
            let tagged: Vec<_> = packets
                .iter()
                .map(|packet| [&packet[..12], &[0x81, 0, 0, 9], &packet[12..]].concat())
                .collect();
            let (plain, tagged) = (run(&mut chain(), &packets), run(&mut chain(), &tagged));
            let mut left = 0;
            for ((plain, tagged), packet) in plain.iter().zip(&tagged).zip(&packets) {
                assert_eq!((plain.0, &plain.1[..12]), (tagged.0, &tagged.1[..12]));
                assert_eq!(plain.1[12..], tagged.1[16..], "{}", packet.len());
                left += usize::from(plain.0 == Verdict::To(2));
            }
            // At most 1446 bytes of IP fit: 1418 of payload over IPv4.
            assert_eq!(left, 12 + usize::from(setting.selectors.is_any()));
        }
    }
}

/// An AEAD that does nothing and reports success.
struct Nothing;

impl Aead for Nothing {
    fn seal(&self, jobs: &mut [Job<'_>]) -> bool {
        jobs.iter_mut().for_each(|job| job.is_right = true);
        true
    }

    fn open(&self, _: &mut [Job<'_>]) {}
}

/// Also if a sum of 16 bits carries twice (the first ends), and one of 32 bits (the other ends, for packets without and
/// with DF, at identification 0x7fff).
#[test]
fn outer_headers_have_right_checksums_with_every_identification() {
    for (local, remote) in [
        ("223.255.255.250", "191.255.255.251"),
        ("189.166.223.213", "190.166.223.213"),
        ("189.166.255.213", "190.166.255.213"),
    ] {
        every_identification(Ends::new(local.parse().unwrap(), remote.parse().unwrap()).unwrap());
    }
}

fn every_identification(ends: Ends) {
    let key = PLAIN.key();
    let common = Common { aead: Arc::new(Nothing), ends, ..PLAIN.common(&key, true) };
    let sa = Outbound::new(common, 1500, Dont::Copy, 0);
    sa.sequence.reserve(u64::MAX);
    let pair = Pair::new(&PLAIN);
    pair.table.set_outbound("a", Arc::new(sa));
    let mut chain = pair.out;
    for _ in 0..256 {
        for (_, sent) in run(&mut chain, &vec![packet(false, b"x", 0); 256]) {
            assert_eq!(crate::flow::checksum::sum(&sent[14..34]), 0xffff, "{:02x?}", &sent[14..34]);
        }
    }
}
