//! Which lists are chains. Also runs random lists over arbitrary bytes: no panic, each packet stays within its frame
//! and has one verdict, and the counters add up.

use super::{
    esp::PLAIN,
    routing::{of_each, packets},
    *,
};
use crate::{
    elements::{
        BadChain, Copies, Count, CrcAppend, CrcCheck, Discard, EspDecrypt, EspEncrypt, Forward, Loss, Mirror,
        Police, Rate, Vxlan, VxlanDecap, VxlanEncap,
    },
    esp::{Ends, SaTable},
};
use proptest::prelude::*;
use std::net::Ipv4Addr;

const KINDS: u8 = 15;
/// Elements from this number on make other packets.
const MAKERS: u8 = 11;

fn element(world: &World, kind: u8) -> Box<dyn Element> {
    match kind {
        0 => Box::new(Check),
        1 => Box::new(Route::new(world.memory())),
        2 => Box::new(Ttl),
        3 => Box::new(Rewrite),
        4 => Box::new(Forward::new(2)),
        5 => Box::new(CrcAppend),
        6 => Box::new(CrcCheck),
        7 => Box::new(Police::new(Rate::Packets { per_second: 1000, burst: 8 })),
        8 => Box::new(Count::default()),
        // A ring that is soon full.
        9 => Box::new(Mirror::new(Copies::new(0).0, 60, 2)),
        10 => Box::new(Discard),
        11 => Box::new(EspEncrypt::new(associations(), "a")),
        12 => Box::new(EspDecrypt::new(associations(), vec!["a".into()])),
        13 => Box::new(VxlanEncap::new(TUNNEL)),
        _ => Box::new(VxlanDecap::new(TUNNEL.vni, TUNNEL.ends.remote(), None, TUNNEL.port)),
    }
}

const TUNNEL: Vxlan = Vxlan {
    vni: 7,
    ends: Ends::V4 { local: Ipv4Addr::new(10, 0, 0, 1), remote: Ipv4Addr::new(10, 1, 0, 1) },
    port: 4789,
    mtu: 1500,
    hops: 64,
    is_whole: false,
};

/// SAs of both directions with one key.
fn associations() -> Arc<SaTable> {
    let table = Arc::new(SaTable::default());
    table.set_outbound("a", PLAIN.outbound());
    assert!(table.add_inbound("a", PLAIN.inbound()));
    table
}

fn list(names: &str) -> Result<Chain, BadChain> {
    let world = World::new();
    let one =
        |name: &str| (0..KINDS).map(|kind| element(&world, kind)).find(|e| e.name() == name).expect(name);
    Chain::new(names.split_whitespace().map(one).collect())
}

#[test]
fn lists_that_are_no_chains_are_refused() {
    let good = [
        "discard",
        "forward",
        "check route ttl rewrite",
        "count crc_check check police route count ttl rewrite crc_append count",
        "check ttl forward",
        "crc_append forward",
        "check discard",
        "mirror check mirror route mirror ttl rewrite mirror",
    ];
    for names in good {
        assert_eq!(list(names).err(), None, "{names}");
    }
    let needs = |at, name, missing| BadChain::Needs { at, name, missing };
    let bad = [
        ("", BadChain::Empty),
        ("check", BadChain::NoExit),
        ("check route ttl", BadChain::NoExit),
        ("route ttl rewrite", needs(1, "route", Known::HEADERS)),
        ("check route rewrite", needs(3, "rewrite", Known::HOP_COUNTED)),
        ("check ttl rewrite", needs(3, "rewrite", Known::NEXT_HOP)),
        ("check crc_check ttl forward", needs(3, "ttl", Known::HEADERS)),
        ("check ttl route rewrite", BadChain::TooLate { at: 3, name: "route" }),
        ("check route ttl ttl rewrite", BadChain::TooLate { at: 4, name: "ttl" }),
        ("crc_append check forward", BadChain::TooLate { at: 2, name: "check" }),
        ("check route ttl crc_append rewrite", needs(5, "rewrite", Known::HEADERS | Known::NEXT_HOP)),
        ("check route ttl rewrite forward", BadChain::TwoExits { at: 5, name: "forward" }),
        ("count discard count", BadChain::Behind { at: 3, name: "count" }),
        ("discard forward", BadChain::Behind { at: 2, name: "forward" }),
        ("check route ttl rewrite rewrite", needs(5, "rewrite", Known::NEXT_HOP | Known::HOP_COUNTED)),
    ];
    for (names, error) in bad {
        assert_eq!(list(names).err(), Some(error), "{names}");
    }
    assert_eq!(
        list("check route rewrite").err().unwrap().to_string(),
        "element 3, rewrite, needs to know about a packet: that the hop is counted (ttl)"
    );
}

/// Its contract promises an exit, but it sets none.
struct Liar;

impl Element for Liar {
    fn name(&self) -> &'static str {
        "liar"
    }
    fn contract(&self) -> Contract {
        Contract { gives: Known::EXIT, ..Contract::default() }
    }
    fn run(&mut self, _: &Now, _: &mut Batch<'_>, _: &mut Counters) {}
}

#[test]
fn a_packet_without_exit_is_dropped() {
    let mut chain = Chain::new(vec![Box::new(Liar)]).unwrap();
    let seen = run(&mut chain, &READY, &[(vec![0; 60], ingress(1, 0))]);
    assert_eq!(seen[0].0, Verdict::Drop(Loss::NoExit));
}

/// Each element sees the packets that the one before it let go on. The packets that left and those that were lost are
/// all that arrived.
fn counters_add_up(chain: &Chain, packets: u64) -> Result<(), TestCaseError> {
    let mut coming = packets;
    let mut lost = 0;
    for (name, counters, _) in chain.counters() {
        prop_assert_eq!(counters.packets(), coming, "{}", name);
        coming = counters.went_on();
        lost += counters.lost().map(|(_, packets)| packets).sum::<u64>();
    }
    let whole = chain.whole();
    prop_assert_eq!((whole.packets, whole.to + lost, whole.to), (packets, packets, coming));
    Ok(())
}

/// The beginnings of lists: none; a router's elements one by one; the same as one; then as one before an element that
/// encrypts, after one, and after one that decrypts again.
const FIRST: [&[u8]; 6] =
    [&[], &[0, 8, 1, 7, 2, 3], &[0, 1, 2, 3], &[0, 1, 2, 3, 11], &[13, 0, 1, 2, 3], &[0, 11, 12, 0, 1, 2, 3]];

proptest! {
    #![proptest_config(crate::cases(300))]

    /// Lists that begin like a router's are chains more often. Half of the packets have a right CRC. Elements that run
    /// as one do the same as they do one by one.
    #[test]
    fn random_chains(
        first in prop::sample::select(&FIRST[..]),
        check_crc in any::<bool>(),
        kinds in prop::collection::vec(0..KINDS, 1..7),
        data in prop::collection::vec((packets(), any::<bool>()), 0..60),
        ports in any::<u64>(),
    ) {
        let checked = |(packet, crc): (Vec<u8>, bool)| {
            let end = crc32fast::hash(&packet).to_le_bytes();
            if crc { [&packet[..], &end].concat() } else { packet }
        };
        let data = data.into_iter().map(checked);
        let world = World::new();
        let kinds: Vec<u8> = check_crc.then_some(6).into_iter().chain(first.iter().copied()).chain(kinds).collect();
        let makes = kinds.iter().any(|kind| *kind >= MAKERS);
        let Ok(mut chain) = Chain::new(kinds.iter().map(|kind| element(&world, *kind)).collect()) else { return Ok(()) };
        let data: Vec<_> = data.map(|packet| (packet, ingress(1, 0))).collect();
        let now = Now { ns: 5, ports };
        let look = |packet: &Packet<'_>| {
            let whole = packet.head_room() + packet.length() + packet.tail_room();
            (packet.verdict(), whole, packet.length(), packet.data().to_vec())
        };
        let seen = with_batch(&data, |batch| chain.run(&now, batch), look);
        let mut to = 0;
        for ((verdict, whole, length, bytes), (packet, _)) in seen.clone().into_iter().zip(&data) {
            prop_assert_eq!((whole, length), (HEAD + packet.len() + TAIL, bytes.len()));
            match verdict {
                Verdict::To(_) => to += 1,
                Verdict::Up(_) => prop_assert!(makes || *packet == bytes),
                Verdict::Drop(loss) => prop_assert_ne!(loss, Loss::NoExit),
                Verdict::Own(_) => prop_assert!(makes, "no element makes packets"),
            }
        }
        prop_assert_eq!(chain.whole().to, to);
        counters_add_up(&chain, data.len() as u64)?;
        let apart = |kind: &u8| Box::new(Apart(element(&world, *kind))) as _;
        let mut apart = Chain::new(kinds.iter().map(apart).collect()).unwrap();
        prop_assert_eq!(with_batch(&data, |batch| apart.run(&now, batch), look), seen);
        prop_assert_eq!(of_each(&apart), of_each(&chain));
    }

    /// Any elements in any order, whatever they need: none panics, and all packets stay within their frames.
    #[test]
    fn elements_without_their_contract(
        kinds in prop::collection::vec(0..KINDS, 1..10),
        data in prop::collection::vec(packets(), 0..20),
    ) {
        let world = World::new();
        let data: Vec<_> = data.into_iter().map(|packet| (packet, ingress(1, 0))).collect();
        let mut counters = Counters::default();
        let all = |batch: &mut Batch<'_>| {
            counters.come(batch.going());
            kinds.iter().for_each(|kind| element(&world, *kind).run(&READY, batch, &mut counters));
            assert_eq!(counters.went_on(), batch.going() as u64);
        };
        let look = |packet: &Packet<'_>| (packet.head_room() + packet.length() + packet.tail_room(), packet.data().len() == packet.length());
        let seen = with_batch(&data, all, look);
        for (seen, (packet, _)) in seen.into_iter().zip(&data) {
            prop_assert_eq!(seen, (HEAD + packet.len() + TAIL, true));
        }
    }
}
