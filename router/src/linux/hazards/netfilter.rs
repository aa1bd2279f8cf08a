//! nftables base chains on hooks that forwarded packets pass (`NFT_MSG_GETCHAIN`, `include/uapi/linux/netfilter/nf_tables.h`).
//!
//! A chain on ingress or egress is bound to devices. It sees all their packets, also those of a macvlan in another
//! namespace. So it is a hazard of the device, not of the namespace.

use super::{ByFamily, IN_NAMESPACE, MOST_SENTENCES};
use crate::{
    base::foreign::Shown,
    linux::{
        netlink::{
            socket::Socket,
            wire::{self, Message, Request},
        },
        nftables,
    },
};
use logic::firewall::ruleset::{Devices, Family};
use std::{collections::BTreeMap, io};

/// `NFNLGRP_NFTABLES`.
pub const GROUP: u32 = 7;

/// A base chain that forwarded packets pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    family: &'static str,
    affects: [bool; 2],
    table: String,
    name: String,
    hook: &'static str,
    devices: Devices,
}

/// Sentences for all chains.
#[derive(Clone, Debug, Default)]
pub struct Sentences {
    pub namespace: ByFamily,
    devices: BTreeMap<String, Vec<String>>,
    every_device: Vec<String>,
}

impl Sentences {
    /// The chains could not be read. This counts as a hazard of everything that they may be bound to.
    pub fn doubt(sentence: &str) -> Sentences {
        let one = || vec![sentence.to_owned()];
        Sentences { namespace: [one(), one()], every_device: one(), ..Sentences::default() }
    }

    /// Sentences about a device.
    pub fn of_device(&self, device: &str) -> impl Iterator<Item = &String> {
        self.devices.get(device).into_iter().flatten().chain(&self.every_device)
    }

    fn add(&mut self, chain: &Chain) {
        let sentence = &chain.sentence();
        match &chain.devices {
            Devices::All => {
                let affected = self.namespace.iter_mut().zip(chain.affects).filter(|(_, affected)| *affected);
                affected.for_each(|(sentences, _)| add(sentences, sentence));
            }
            Devices::Named(names) => {
                for name in names {
                    add(self.devices.entry(name.clone()).or_default(), sentence);
                }
            }
            Devices::Unknown => add(&mut self.every_device, sentence),
        }
    }
}

fn add(sentences: &mut Vec<String>, sentence: &str) {
    match sentences.len() {
        ..MOST_SENTENCES => sentences.push(sentence.to_owned()),
        MOST_SENTENCES => {
            sentences.push(format!("more nftables chains; list them with: {IN_NAMESPACE}nft list chains"));
        }
        _ => (),
    }
}

/// Reads the chains and returns their sentences.
pub fn read(socket: &mut Socket) -> io::Result<Sentences> {
    let chains = match socket.dump(Request::new(nftables::GETCHAIN, wire::DUMP, &[0; 4]), parse) {
        Err(e) if nftables::is_absent(&e) => Vec::new(),
        other => other?,
    };
    let mut sentences = Sentences::default();
    chains.iter().for_each(|chain| sentences.add(chain));
    Ok(sentences)
}

pub(crate) fn parse(message: Message<'_>) -> Option<Chain> {
    let ((family, table), name, chain) = nftables::chain(message)?;
    let base = chain.base?;
    let (family, affects) = match nftables::family(family)? {
        Family::Inet => ("inet", [true; 2]),
        Family::Ipv4 => ("ip", [true, false]),
        Family::Ipv6 => ("ip6", [false, true]),
        Family::Netdev => ("netdev", [true; 2]),
    };
    Some(Chain { family, affects, table, name, hook: base.hook.name(), devices: base.devices })
}

impl Chain {
    fn sentence(&self) -> String {
        let Chain { family, table, name, hook, devices, .. } = self;
        let of = match devices {
            Devices::All => String::new(),
            Devices::Named(names) => {
                let names: Vec<_> = names.iter().map(|name| Shown(name).to_string()).collect();
                format!(" of {}", names.join(", "))
            }
            Devices::Unknown => " of some devices".into(),
        };
        let chain = format!("{family} {} {}", Shown(table), Shown(name));
        // nft parses its argument as a command, so quoting for the shell is not enough.
        let out = match is_word(table) && is_word(name) {
            true => format!("remove it with: {IN_NAMESPACE}nft 'flush chain {chain}; delete chain {chain}'"),
            false => format!(
                "nft does not accept this name, so delete it by handle; list handles with: {IN_NAMESPACE}nft -a list ruleset | cat -v"
            ),
        };
        format!("nftables chain {chain} hooks {hook}{of}; {out}")
    }
}

/// Can the name be used in an nft command? The scanner of nft takes such words as one name (`string`, src/scanner.l of
/// nftables).
fn is_word(name: &str) -> bool {
    let letter = |c: char| c.is_ascii_alphabetic() || c == '_';
    name.starts_with(letter) && name.chars().all(|c| letter(c) || c.is_ascii_digit() || "./-".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::foreign::{HOSTILE, Pasted, assert_fit};
    use proptest::prelude::*;

    const NEWCHAIN: u16 = 10 << 8 | 3;
    const NFTA_CHAIN_TABLE: u16 = 1;
    const NFTA_CHAIN_NAME: u16 = 3;
    const NFTA_CHAIN_HOOK: u16 = 4;

    fn parsed(family: u8, hook: u8) -> Option<Chain> {
        bound(family, hook, &[])
    }

    /// A chain with more attributes of its hook.
    fn bound(family: u8, hook: u8, more: &[u8]) -> Option<Chain> {
        let mut request = Request::new(NEWCHAIN, 0, &[family, 0, 0, 0])
            .with(NFTA_CHAIN_TABLE, b"filter\0")
            .with(NFTA_CHAIN_NAME, b"fwd\0")
            .with(NFTA_CHAIN_HOOK | 0x8000, &[&[8, 0, 1, 0, 0, 0, 0, hook], more].concat());
        wire::messages(request.bytes(1)).next().and_then(parse)
    }

    #[test]
    fn the_number_of_sentences_is_limited() {
        let mut sentences = Sentences::default();
        (0..1000).for_each(|_| sentences.add(&parsed(1, 2).unwrap()));
        let [ipv4, ipv6] = &sentences.namespace;
        assert_eq!((ipv4.len(), ipv6.len()), (MOST_SENTENCES + 1, MOST_SENTENCES + 1));
        assert!(ipv4.last().unwrap().starts_with("more nftables chains; list them with: "));
    }

    #[test]
    fn hooks_of_forwarded_packets_count() {
        let chain = parsed(1, 2).unwrap();
        assert_eq!((chain.affects, chain.hook), ([true, true], "forward"));
        assert!(
            chain.sentence().starts_with("nftables chain inet filter fwd hooks forward; remove it with: ")
        );
        assert_eq!(parsed(2, 0).unwrap().affects, [true, false]);
        assert_eq!(parsed(10, 4).unwrap().affects, [false, true]);
        assert_eq!(parsed(5, 1).unwrap().hook, "egress");
        for (family, hook) in [(1, 1), (2, 3), (3, 0), (7, 2)] {
            assert_eq!(parsed(family, hook), None);
        }
    }

    #[test]
    fn only_names_that_nft_accepts_are_used_in_its_commands() {
        for fine in ["fwd", "_x", "a.b/c-d9"] {
            assert!(is_word(fine), "{fine}");
        }
        for wrong in HOSTILE.into_iter().chain(["", "9a", "a b", "a;b", "a{", "ä", "@a", "$a"]) {
            assert!(!is_word(wrong), "{wrong}");
        }
    }

    #[test]
    fn device_hooks_count_for_their_devices() {
        let dev = [6, 0, 3, 0, b'a', 0, 0, 0];
        let devs =
            |second_kind: u8| [20, 0, 4, 0, 6, 0, 1, 0, b'a', 0, 0, 0, 6, 0, second_kind, 0, b'b', 0, 0, 0];
        let none = [4, 0, 4, 0];
        let rows: [(u8, u8, &[u8], [usize; 3]); 7] = [
            (5, 0, &dev, [1, 0, 0]),
            (1, 5, &devs(1), [1, 1, 0]),
            (5, 1, &devs(1), [1, 1, 0]),
            (5, 0, &devs(2), [1, 1, 1]),
            (5, 0, &[], [1, 1, 1]),
            (5, 0, &none, [0, 0, 0]),
            (1, 2, &dev, [0, 0, 0]),
        ];
        for (family, hook, more, expected) in rows {
            let mut sentences = Sentences::default();
            sentences.add(&bound(family, hook, more).unwrap());
            let told = ["a", "b", "c"].map(|device| sentences.of_device(device).count());
            assert_eq!(told, expected, "{family} {hook} {more:?}");
            assert_eq!(sentences.namespace[0].len(), usize::from(hook == 2), "{family} {hook} {more:?}");
        }
        let sentence = bound(5, 0, &devs(1)).unwrap().sentence();
        assert!(sentence.contains(" hooks ingress of a, b; remove it with: "), "{sentence}");
        let named = HOSTILE.iter().flat_map(|name| [("filter", *name), (*name, "fwd"), (*name, *name)]);
        for (table, name) in named {
            for devices in [Devices::All, Devices::Named(vec![table.into(), name.into()])] {
                let mut chain = parsed(1, 2).unwrap();
                (chain.table, chain.name, chain.devices) = (table.into(), name.into(), devices);
                let sentence = chain.sentence();
                let (before, command) = sentence.split_once(IN_NAMESPACE).unwrap();
                assert_fit(before);
                assert_eq!(command, "nft -a list ruleset | cat -v", "{before}");
            }
        }
        let mut pasted = Pasted::default();
        let sentence = parsed(1, 2).unwrap().sentence().replace(IN_NAMESPACE, "");
        let (_, line) = sentence.split_once(" with: ").unwrap();
        pasted.add(&sentence, line, "nft", &["flush chain inet filter fwd; delete chain inet filter fwd"]);
        pasted.run();
        assert_eq!(Sentences::doubt("?").of_device("a").count(), 1);
    }

    proptest! {
        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = parse(Message { kind: NEWCHAIN, flags: 0, sequence: 0, payload: &bytes });
        }
    }
}
