//! Wrong packets at `esp_decrypt`. Each kind increments its own counter by one, and no other.

use super::{
    esp::{NAT, PLAIN, Pair, Setting, dropped, packet},
    *,
};
use crate::{
    elements::Loss,
    esp::{self, Aead, Mode, tests::Oracle},
    flow::checksum,
};
use std::{collections::BTreeMap, slice};

const ETHERNET: usize = 14;
/// The number of packets sent before each case. One of them has arrived: number 151. The window has 64.
const SENT: usize = 200;
const CAME: usize = 150;

/// The ways through the element: the short one and all others.
fn settings() -> [Setting; 6] {
    let transport = Setting { mode: Mode::Transport, ..PLAIN };
    [
        PLAIN,
        Setting { is_extended: true, ..PLAIN },
        Setting { is_v6: true, ..PLAIN },
        Setting { udp: NAT, ..PLAIN },
        Setting { is_v6: true, udp: NAT, ..transport.clone() },
        transport,
    ]
}

/// The position of the ESP header.
fn esp_at(setting: &Setting) -> usize {
    ETHERNET + if setting.is_v6 { 40 } else { 20 } + if setting.udp.is_some() { 8 } else { 0 }
}

/// The packet with lengths and checksum for its bytes.
fn fitted(setting: &Setting, mut packet: Vec<u8>) -> Vec<u8> {
    let length = packet.len() - ETHERNET;
    if setting.udp.is_some() {
        let (at, bytes) = (esp_at(setting), packet.len() + 8 - esp_at(setting));
        packet[at - 4..at - 2].copy_from_slice(&(bytes as u16).to_be_bytes());
    }
    if setting.is_v6 {
        packet[18..20].copy_from_slice(&(length as u16 - 40).to_be_bytes());
    } else {
        packet[16..18].copy_from_slice(&(length as u16).to_be_bytes());
        packet[24..26].fill(0);
        let sum = !checksum::sum(&packet[14..34]);
        packet[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    packet
}

fn changed(setting: &Setting, packet: &[u8], at: usize) -> Vec<u8> {
    let mut packet = packet.to_vec();
    packet[at] ^= 1;
    fitted(setting, packet)
}

/// The packet with another text (the encrypted part: payload, padding, its length, next header) and a right tag.
fn resealed(setting: &Setting, packet: &[u8], text: &[u8]) -> Vec<u8> {
    let text_at = esp_at(setting) + 16;
    let mut iv = [0; 8];
    iv.copy_from_slice(&packet[text_at - 8..text_at]);
    let mut text = [text, &[0; 16]].concat();
    let number = u64::from_be_bytes(iv);
    let sa = setting.inbound();
    assert!(Oracle::new(&setting.key()).seal(&mut [sa.jobs.job(iv, number, &mut text)]));
    fitted(setting, [&packet[..text_at], &text].concat())
}

/// Everything that the elements passed up, dropped and counted.
fn counters(pair: &Pair) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for (element, counters, counted) in pair.back.counters() {
        all.extend(counters.lost().map(|(verdict, n)| (format!("{element} {verdict}"), n)));
        all.extend(counted.into_iter().map(|(name, n)| (format!("{element} {name}"), n)));
    }
    all
}

/// The verdict on one packet, and the counters that it increments by one.
fn moved(pair: &mut Pair, packet: &[u8]) -> (Verdict, Vec<String>) {
    let before = counters(pair);
    let (verdict, data) = pair.decrypt(&[packet.to_vec()]).remove(0);
    if let Verdict::Up(_) = verdict {
        assert_eq!(data, packet, "packets go up unchanged");
    }
    let mut names = Vec::new();
    for (name, after) in counters(pair) {
        match after - before.get(&name).unwrap_or(&0) {
            0 => {}
            1 => names.push(name),
            more => panic!("{name} moved by {more}"),
        }
    }
    (verdict, names)
}

/// Two ends with this setting, and the packets that were sent. The receiver accepts packets up to `mtu`.
fn world(setting: &Setting, mtu: u16) -> (Pair, Vec<Vec<u8>>) {
    let receives = Setting { mtu, ..setting.clone() };
    let mut pair = Pair::between(setting, &receives);
    let sent = pair.encrypted(&vec![packet(setting.is_v6, b"some payload", 0); SENT]);
    if usize::from(mtu) >= sent[CAME].len() - ETHERNET {
        assert_eq!(moved(&mut pair, &sent[CAME]), (Verdict::To(1), vec![]), "a correct packet");
    }
    (pair, sent)
}

/// Name, packet, and the counters that it increments: none if it goes on.
type Case = (String, Vec<u8>, &'static [&'static str]);

const BAD_TAG: &[&str] = &["esp_decrypt dropped bad_tag"];
const BAD_PADDING: &[&str] = &["esp_decrypt dropped bad_padding"];
const BAD_INNER: &[&str] = &["esp_decrypt dropped bad_inner"];
const OVERSIZED: &[&str] = &["esp_decrypt dropped oversized"];
const REORDERED: &[&str] = &["esp_decrypt reordered"];
const REPLAYED: &[&str] = &["esp_decrypt dropped replayed"];
const TOO_OLD: &[&str] = &["esp_decrypt dropped too_old"];
const TRUNCATED: &[&str] = &["esp_decrypt dropped truncated"];
const UNKNOWN_SPI: &[&str] = &["esp_decrypt unknown_spi", "esp_decrypt up local"];

fn cases(setting: &Setting, sent: &[Vec<u8>]) -> Vec<Case> {
    let esp = esp_at(setting);
    let next = &sent[CAME + 1];
    let last = next.len() - 1;
    // With ESN, a number before the window is read as one that is 2^32 later (RFC 4303 appendix A2.2). The tag does not
    // match that.
    let too_old = if setting.is_extended { BAD_TAG } else { TOO_OLD };
    let other_key = Setting { key_bytes: 36, ..setting.clone() };
    let of_other_key = Pair::new(&other_key).encrypted(&vec![packet(setting.is_v6, b"x", 0); CAME + 2]);
    let mut cases: Vec<Case> = vec![
        ("the next".into(), next.clone(), &[]),
        ("one after a gap".into(), sent[SENT - 1].clone(), &[]),
        ("the one before".into(), sent[CAME - 1].clone(), REORDERED),
        ("the first of the window".into(), sent[CAME - 63].clone(), REORDERED),
        ("one that came".into(), sent[CAME].clone(), REPLAYED),
        ("the last before the window".into(), sent[CAME - 64].clone(), too_old),
        ("the first of all".into(), sent[0].clone(), too_old),
        ("another key".into(), of_other_key[CAME + 1].clone(), BAD_TAG),
        ("another key, in the window".into(), of_other_key[CAME - 1].clone(), BAD_TAG),
        ("another number".into(), changed(setting, next, esp + 7), BAD_TAG),
        ("another IV".into(), changed(setting, next, esp + 15), BAD_TAG),
        ("another byte of text".into(), changed(setting, next, esp + 16), BAD_TAG),
        ("another byte of the tag".into(), changed(setting, next, last), BAD_TAG),
        ("another SPI".into(), changed(setting, next, esp + 3), UNKNOWN_SPI),
        ("another SPI, in the window".into(), changed(setting, &sent[CAME - 1], esp + 3), UNKNOWN_SPI),
    ];
    for bytes in 0..next.len() - esp {
        // ESP header, IV, trailer and tag.
        let moves = if bytes < 34 { TRUNCATED } else { BAD_TAG };
        cases.push((format!("{bytes} bytes of ESP"), fitted(setting, next[..esp + bytes].to_vec()), moves));
    }
    if setting.udp.is_some() {
        let mut longer = next.clone();
        longer[esp - 3] += 1;
        cases.push(("UDP that is longer than IP".into(), longer, TRUNCATED));
    }
    cases.extend(texts(setting, next));
    cases
}

/// Packets with wrong texts and right tags.
fn texts(setting: &Setting, next: &[u8]) -> Vec<Case> {
    let plain = packet(setting.is_v6, b"some payload", 0);
    let header = if setting.is_v6 { 40 } else { 20 };
    let is_tunnel = setting.mode == Mode::Tunnel;
    let (inner, proto) = match (is_tunnel, setting.is_v6) {
        (true, false) => (&plain[ETHERNET..], esp::PROTO_IPV4),
        (true, true) => (&plain[ETHERNET..], esp::PROTO_IPV6),
        (false, _) => (&plain[ETHERNET + header..], 17),
    };
    let other = if setting.is_v6 { esp::PROTO_IPV4 } else { esp::PROTO_IPV6 };
    let mut texts: Vec<(&str, Vec<u8>, &[&str])> = vec![
        ("padding in another order", [inner, &[4, 3, 2, 1, 4, proto]].concat(), BAD_PADDING),
        ("zeros for padding", [inner, &[0, 0, 2, proto]].concat(), BAD_PADDING),
        ("more padding than there is", [inner, &[200, proto]].concat(), BAD_PADDING),
        ("one byte more of padding than there is", [1, proto].to_vec(), BAD_PADDING),
        ("a dummy", [b"nothing", &[1, 1, 59][..]].concat(), &["esp_decrypt dropped dummy"]),
    ];
    if is_tunnel {
        texts.extend([
            ("the other version of IP", [inner, &[1, 1, other]].concat(), BAD_INNER),
            ("UDP in tunnel mode", [inner, &[1, 1, 17]].concat(), BAD_INNER),
            ("a packet without its end", [&inner[..inner.len() - 1], &[1, 1, proto]].concat(), BAD_INNER),
            ("a header without its end", [&inner[..19], &[1, 1, proto]].concat(), BAD_INNER),
            ("nothing", [0, proto].to_vec(), BAD_INNER),
            ("padding of traffic flow confidentiality", [inner, &[9; 40], &[1, 2, 2, proto]].concat(), &[]),
        ]);
    }
    let case = |(name, text, moves): (&str, Vec<u8>, _)| (name.into(), resealed(setting, next, &text), moves);
    texts.into_iter().map(case).collect()
}

#[test]
fn each_kind_increments_its_own_counter_and_no_other() {
    for setting in settings() {
        let (_, sent) = world(&setting, setting.mtu);
        let plain = packet(setting.is_v6, b"some payload", 0);
        for (name, packet, moves) in cases(&setting, &sent) {
            let (mut pair, _) = world(&setting, setting.mtu);
            let (verdict, names) = moved(&mut pair, &packet);
            assert_eq!(names, moves, "{name}: {setting:?}");
            let goes_on = moves.is_empty() || moves == REORDERED;
            assert_eq!(verdict == Verdict::To(1), goes_on, "{name}: {setting:?}");
            // A packet with a wrong tag does not move the window: the next number and the one before are still
            // accepted.
            let had = moves == BAD_PADDING || moves == BAD_INNER || verdict == dropped(Loss::Dummy);
            if !goes_on && !had {
                let before = moved(&mut pair, &sent[CAME - 1]);
                assert_eq!(before, (Verdict::To(1), vec![REORDERED[0].to_owned()]), "{name}: {setting:?}");
                assert_eq!(
                    pair.decrypt(slice::from_ref(&sent[CAME + 1]))[0],
                    (Verdict::To(1), plain.clone())
                );
            }
        }
    }
}

/// The SA allows exactly the packet's length, and then one byte less.
#[test]
fn packets_longer_than_the_sa_allows_are_not_decrypted() {
    for setting in settings() {
        let length = (world(&setting, setting.mtu).1[CAME].len() - ETHERNET) as u16;
        for (mtu, moves) in [(length, &[][..]), (length - 1, OVERSIZED), (u16::MAX, &[])] {
            let (mut pair, sent) = world(&setting, mtu);
            // Ethernet padding does not count.
            let padded = [&sent[CAME + 1][..], &[0xee; 9]].concat();
            assert_eq!(moved(&mut pair, &padded).1, moves, "{mtu}: {setting:?}");
        }
        let (mut pair, sent) = world(&setting, length - 1);
        // Nothing else is checked, and no number is accepted.
        let wrong = changed(&setting, &sent[CAME], sent[CAME].len() - 1);
        for packet in [&sent[CAME], &sent[CAME], &wrong, &sent[0]] {
            assert_eq!(moved(&mut pair, packet).1, OVERSIZED, "{setting:?}");
        }
        let other = changed(&setting, &sent[CAME], esp_at(&setting) + 3);
        assert_eq!(moved(&mut pair, &other).1, UNKNOWN_SPI, "an unknown SA has no limit");
    }
}

/// One batch, whose numbers are accepted together. One number comes twice.
#[test]
fn reordered_packets_are_counted_in_a_batch_too() {
    let mut pair = Pair::new(&PLAIN);
    let sent = pair.encrypted(&vec![packet(false, b"some payload", 0); 200]);
    let batch = [3, 2, 2, 4, 1, 90, 5].map(|n| sent[n].clone());
    let verdicts: Vec<_> = pair.decrypt(&batch).into_iter().map(|(verdict, _)| verdict).collect();
    let (to, replayed, old) = (Verdict::To(1), dropped(Loss::Replayed), dropped(Loss::TooOld));
    assert_eq!(verdicts, [to, to, replayed, to, to, to, old]);
    assert_eq!(pair.counted("reordered"), 2);
}

/// The headers decide, not a tag.
#[test]
fn fragments_and_other_protocols_have_their_own_counters() {
    let mut pair = Pair::new(&PLAIN);
    let plain = packet(false, b"some payload", 0);
    let sent = pair.encrypted(slice::from_ref(&plain)).remove(0);
    let mut fragment = sent.clone();
    fragment[20] |= 0x20;
    let fragment = fitted(&PLAIN, fragment);
    let up = Verdict::Up(Reason::Local);
    let of = |name: &str| (up, vec![format!("esp_decrypt {name}"), "esp_decrypt up local".into()]);
    assert_eq!(moved(&mut pair, &fragment), of("fragments"));
    assert_eq!(moved(&mut pair, &plain), of("not_esp"));
    // A packet that was cut off on its way is found by `check`.
    let cut = moved(&mut pair, &sent[..sent.len() - 1]);
    assert_eq!(cut.1.len(), 1, "{cut:?}");
    assert!(cut.1[0].starts_with("check up "), "{cut:?}");
}
