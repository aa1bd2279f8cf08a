//! nftables: the rules that forwarded packets pass (`include/uapi/linux/netfilter/nf_tables.h`).
//!
//! A chain on ingress or egress is bound to devices. It sees all their packets, also those of a macvlan in another
//! namespace. So a chain with effects is a hazard of the device. All other rules are left to
//! [`logic::firewall`], which decides which packets they can affect.

use super::{IN_NAMESPACE, MOST_SENTENCES};
use crate::{
    base::foreign::Shown,
    linux::{
        conntrack,
        netlink::{
            rtm,
            socket::Socket,
            wire::{self, Message, Request},
        },
        nftables, xtables,
    },
};
use logic::{
    cause::{Cause, Code},
    firewall::{
        ruleset::{Base, Devices, Family, Firewall},
        traffic::Version,
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::IpAddr,
    sync::Arc,
};

/// `NFNLGRP_NFTABLES`.
pub const GROUP: u32 = 7;

/// A base chain that forwarded packets pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BaseChain {
    family: Family,
    table: String,
    name: String,
    base: Base,
    /// It has rules, or its policy is drop.
    has_effects: bool,
}

/// The rules, and sentences about chains of devices.
#[derive(Debug)]
pub struct Found {
    /// The rules, or why they are not known.
    pub firewall: Result<Arc<Firewall>, String>,
    devices: BTreeMap<String, Vec<Cause>>,
    every_device: Vec<Cause>,
}

impl Default for Found {
    fn default() -> Found {
        Found { firewall: Ok(Arc::default()), devices: BTreeMap::new(), every_device: Vec::new() }
    }
}

impl Found {
    /// Not even the chains could be read. This counts as a hazard of everything that they may be bound to.
    pub fn doubt(error: &io::Error, cause: Cause) -> Found {
        Found { firewall: Err(error.to_string()), every_device: vec![cause], ..Found::default() }
    }

    /// Sentences about a device.
    pub fn of_device(&self, device: &str) -> impl Iterator<Item = &Cause> {
        self.devices.get(device).into_iter().flatten().chain(&self.every_device)
    }

    fn add(&mut self, chain: &BaseChain) {
        let cause = &Code::FirewallChain.cause(chain.sentence());
        match &chain.base.devices {
            Devices::All => (),
            Devices::Named(names) => {
                for name in names {
                    add(self.devices.entry(name.clone()).or_default(), cause);
                }
            }
            Devices::Unknown => add(&mut self.every_device, cause),
        }
    }
}

fn add(causes: &mut Vec<Cause>, cause: &Cause) {
    match causes.len() {
        ..MOST_SENTENCES => causes.push(cause.clone()),
        MOST_SENTENCES => {
            let text = format!("more nftables chains; list them with: {IN_NAMESPACE}nft list chains");
            causes.push(Code::FirewallChain.cause(text));
        }
        _ => (),
    }
}

/// Reads the rules. `route` is a socket of the same namespace. If the rules cannot be read, only the router of this
/// namespace goes to the kernel: the chains of devices are known without them.
pub fn read(socket: &mut Socket, route: &mut Socket) -> io::Result<Found> {
    let chains = match socket.dump(Request::new(nftables::GETCHAIN, wire::DUMP, &[0; 4]), parse) {
        Err(e) if nftables::is_absent(&e) => Vec::new(),
        other => other?,
    };
    let mut found = Found::default();
    chains.iter().filter(|chain| chain.has_effects).for_each(|chain| found.add(chain));
    if !chains.is_empty() || xtables::is_used() {
        found.firewall = read_rules(socket, route).map(Arc::new).map_err(|e| e.to_string());
    }
    Ok(found)
}

fn read_rules(socket: &mut Socket, route: &mut Socket) -> io::Result<Firewall> {
    let rules = nftables::read(socket)?;
    let versions = [Version::V4, Version::V6];
    let tracks = versions.into_iter().any(|version| rules.tracks_connections(version)) || xtables::is_used();
    // Linux continues to translate a connection after the rule is deleted.
    let translated = match tracks {
        true => conntrack::translated(socket, &own_addresses(route)?)?,
        false => Some(BTreeSet::new()),
    };
    Ok(Firewall { rules, translated })
}

pub(crate) fn parse(message: Message<'_>) -> Option<BaseChain> {
    let ((family, table), name, chain, uses) = nftables::chain_with_uses(message)?;
    let (family, base) = (nftables::family(family)?, chain.base?);
    Some(BaseChain { family, table, name, has_effects: uses > 0 || !base.accepts, base })
}

fn own_addresses(route: &mut Socket) -> io::Result<BTreeSet<IpAddr>> {
    const IFA_ADDRESS: u16 = 1;
    const IFA_LOCAL: u16 = 2;
    let parse = |message: Message<'_>| {
        let of = |wanted| wire::attributes_after(message.payload, 8).find(|(kind, _)| *kind == wanted);
        wire::address(of(IFA_LOCAL).or_else(|| of(IFA_ADDRESS))?.1)
    };
    Ok(route.dump(Request::new(rtm::GETADDR, wire::DUMP, &[0; 8]), parse)?.into_iter().collect())
}

impl BaseChain {
    fn sentence(&self) -> String {
        let BaseChain { family, table, name, base, .. } = self;
        let of = match &base.devices {
            Devices::All => String::new(),
            Devices::Named(names) => {
                let names: Vec<_> = names.iter().map(|name| Shown(name).to_string()).collect();
                format!(" of {}", names.join(", "))
            }
            Devices::Unknown => " of some devices".into(),
        };
        let hook = base.hook.name();
        // nft parses its argument as a command, so quoting for the shell is not enough.
        let list = match is_word(table) && is_word(name) {
            true => format!("list chain {family} {table} {name}"),
            false => "-a list ruleset | cat -v".into(),
        };
        format!(
            "Linux must apply the rules of nftables chain {family} {} {} to each packet at {hook}{of}; \
             see them with: {IN_NAMESPACE}nft {list}",
            Shown(table),
            Shown(name)
        )
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

    /// A chain with more attributes of its hook.
    fn bound(family: u8, hook: u8, more: &[u8]) -> Option<BaseChain> {
        let mut request = Request::new(NEWCHAIN, 0, &[family, 0, 0, 0])
            .with(NFTA_CHAIN_TABLE, b"filter\0")
            .with(NFTA_CHAIN_NAME, b"fwd\0")
            .with(NFTA_CHAIN_HOOK | 0x8000, &[&[8, 0, 1, 0, 0, 0, 0, hook], more].concat());
        wire::messages(request.bytes(1)).next().and_then(parse)
    }

    #[test]
    fn the_number_of_sentences_is_limited() {
        let mut found = Found::default();
        let dev = [6, 0, 3, 0, b'a', 0, 0, 0];
        (0..1000).for_each(|_| found.add(&bound(5, 0, &dev).unwrap()));
        let sentences: Vec<_> = found.of_device("a").collect();
        assert_eq!(sentences.len(), MOST_SENTENCES + 1);
        assert!(sentences.last().unwrap().starts_with("more nftables chains; list them with: "));
    }

    #[test]
    fn hooks_of_forwarded_packets_count() {
        for (family, hook) in [(1, 2), (2, 0), (10, 4), (5, 1), (1, 5)] {
            assert!(bound(family, hook, &[]).is_some(), "{family} {hook}");
        }
        for (family, hook) in [(1, 1), (2, 3), (3, 0), (7, 2)] {
            assert_eq!(bound(family, hook, &[]), None, "{family} {hook}");
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
            let mut found = Found::default();
            found.add(&bound(family, hook, more).unwrap());
            let told = ["a", "b", "c"].map(|device| found.of_device(device).count());
            assert_eq!(told, expected, "{family} {hook} {more:?}");
        }
        let chain = bound(5, 0, &devs(1)).unwrap();
        let plain = chain.sentence();
        assert!(plain.contains(" at ingress of a, b; see them with: "), "{plain}");
        let named = HOSTILE.iter().flat_map(|name| [("filter", *name), (*name, "fwd"), (*name, *name)]);
        for (table, name) in named {
            let base =
                Base { devices: Devices::Named(vec![table.into(), name.into()]), ..chain.base.clone() };
            let named = BaseChain { table: table.into(), name: name.into(), base, ..chain.clone() };
            let sentence = named.sentence();
            let (before, command) = sentence.split_once(IN_NAMESPACE).unwrap();
            assert_fit(before);
            assert_eq!(command, "nft -a list ruleset | cat -v", "{before}");
        }
        let mut pasted = Pasted::default();
        let sentence = plain.replace(IN_NAMESPACE, "");
        let (_, line) = sentence.split_once(" with: ").unwrap();
        pasted.add(&sentence, line, "nft", &["list", "chain", "netdev", "filter", "fwd"]);
        pasted.run();
        let doubt = Found::doubt(&io::ErrorKind::Other.into(), Code::Unreadable.cause("?"));
        assert_eq!((doubt.of_device("a").count(), doubt.firewall.is_err()), (1, true));
    }

    proptest! {
        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = parse(Message { kind: NEWCHAIN, flags: 0, sequence: 0, payload: &bytes });
        }
    }
}
