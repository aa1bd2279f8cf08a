//! nftables base chains on hooks that forwarded packets pass (`NFT_MSG_GETCHAIN`, `include/uapi/linux/netfilter/nf_tables.h`).

use super::{ByFamily, IN_NAMESPACE};
use crate::netlink::{
    socket::Socket,
    wire::{self, Message, Request},
};
use std::io;

/// `NFNLGRP_NFTABLES`.
pub const GROUP: u32 = 7;

const NEWCHAIN: u16 = 10 << 8 | 3;
const GETCHAIN: u16 = 10 << 8 | 4;
const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_HOOK_HOOKNUM: u16 = 1;
const NFTA_HOOK_DEV: u16 = 3;

/// Names of hooks by number: `enum nf_inet_hooks`.
pub const HOOKS: [&str; 6] = ["prerouting", "input", "forward", "output", "postrouting", "ingress"];

/// A base chain that forwarded packets pass.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Chain {
    family: &'static str,
    affects: [bool; 2],
    table: String,
    name: String,
    hook: &'static str,
    device: Option<String>,
}

/// Sentences for all of them.
pub fn read(socket: &mut Socket) -> io::Result<ByFamily> {
    let chains = match socket.dump(Request::new(GETCHAIN, wire::DUMP, &[0; 4]), parse) {
        // nfnetlink without nf_tables knows no such message.
        Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => Vec::new(),
        other => other?,
    };
    let mut sentences = ByFamily::default();
    for chain in chains {
        for (sentences, affected) in sentences.iter_mut().zip(chain.affects) {
            if affected {
                sentences.push(chain.sentence());
            }
        }
    }
    Ok(sentences)
}

fn parse(message: Message<'_>) -> Option<Chain> {
    if message.kind != NEWCHAIN {
        return None;
    }
    let (mut table, mut name, mut hook) = (String::new(), String::new(), None);
    for (kind, value) in wire::attributes_after(message.payload, 4) {
        match kind {
            NFTA_CHAIN_TABLE => table = wire::text(value),
            NFTA_CHAIN_NAME => name = wire::text(value),
            NFTA_CHAIN_HOOK => hook = Some(value),
            _ => (),
        }
    }
    let hook = hook?;
    let number = wire::be32_at(wire::attribute(hook, NFTA_HOOK_HOOKNUM)?, 0)? as usize;
    // NFPROTO_*. ARP chains see no IP packet, and devices under a bridge are not accelerated anyway.
    let (family, affects, names): (_, _, &[&'static str]) = match *message.payload.first()? {
        1 => ("inet", [true; 2], &HOOKS),
        2 => ("ip", [true, false], &HOOKS),
        5 => ("netdev", [true; 2], &["ingress", "egress"]),
        10 => ("ip6", [false, true], &HOOKS),
        _ => return None,
    };
    let hook_name = names.get(number).copied().unwrap_or("an unknown hook");
    if matches!(hook_name, "input" | "output") {
        return None;
    }
    let device = wire::attribute(hook, NFTA_HOOK_DEV).map(wire::text);
    Some(Chain { family, affects, table, name, hook: hook_name, device })
}

impl Chain {
    fn sentence(&self) -> String {
        let Chain { family, table, name, hook, device, .. } = self;
        let device = device.as_ref().map(|d| format!(" of {d}")).unwrap_or_default();
        format!(
            "nftables chain {family} {table} {name} hooks {hook}{device}; \
             remove it with: {IN_NAMESPACE}nft 'flush chain {family} {table} {name}; delete chain {family} {table} {name}'"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(family: u8, hook: u8) -> Option<Chain> {
        let mut request = Request::new(NEWCHAIN, 0, &[family, 0, 0, 0])
            .with(NFTA_CHAIN_TABLE, b"filter\0")
            .with(NFTA_CHAIN_NAME, b"fwd\0")
            .with(NFTA_CHAIN_HOOK | 0x8000, &[8, 0, 1, 0, 0, 0, 0, hook]);
        wire::messages(request.bytes(1)).next().and_then(parse)
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

    proptest! {
        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = parse(Message { kind: NEWCHAIN, flags: 0, sequence: 0, payload: &bytes });
        }
    }
}
