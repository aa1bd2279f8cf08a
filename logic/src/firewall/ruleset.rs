//! The rules of a namespace, as the kernel holds them: tables, chains, expressions, sets (nf_tables), in the kernel's
//! own terms. Rules of iptables are translated into the same types.
//!
//! Other people chose the names and texts in the rules. Escape them before you show them.

use super::{extension, traffic::Version};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

/// The rules of a namespace's firewall.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Firewall {
    pub rules: Ruleset,
    /// Old and new addresses of connections that Linux already translated when the rules were read, maybe by rules that
    /// are gone. Those of the router itself are left out where packets to it show the connection. `None`: too many.
    pub translated: Option<BTreeSet<IpAddr>>,
}

impl Default for Firewall {
    fn default() -> Self {
        Firewall { rules: Ruleset::default(), translated: Some(BTreeSet::new()) }
    }
}

/// The priority of conntrack in the hook prerouting (`NF_IP_PRI_CONNTRACK`).
const CONNTRACK: i32 = -200;

/// The rules of one namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruleset {
    pub tables: Vec<Arc<Table>>,
}

impl Ruleset {
    /// All chains that packets of this version may pass.
    fn chains(&self, version: Version) -> impl Iterator<Item = &Chain> {
        let tables = self.tables.iter().filter(move |t| !t.dormant && t.family.concerns(version));
        tables.flat_map(|table| table.chains.values())
    }

    /// Do packets of this version pass any chain?
    pub fn has_chains(&self, version: Version) -> bool {
        self.chains(version).any(|chain| chain.base.is_some())
    }

    /// Is a chain bound to devices?
    pub fn has_device_chains(&self) -> bool {
        let chains = self.tables.iter().flat_map(|table| table.chains.values());
        chains.filter_map(|chain| chain.base.as_ref()).any(|base| base.devices != Devices::All)
    }

    /// Are all chains of this version empty, with policy accept?
    pub fn is_empty(&self, version: Version) -> bool {
        let accepts = |base: &Base| base.accepts && !base.nat && base.hook != Hook::Unknown;
        self.chains(version).all(|chain| chain.rules.is_empty() && chain.base.as_ref().is_none_or(accepts))
    }

    /// Does Linux translate packets at all? Without a chain of NAT it does not translate those of any connection.
    pub fn translates(&self, version: Version) -> bool {
        self.chains(version).any(|chain| chain.base.as_ref().is_some_and(|base| base.nat))
    }

    /// May rules drop packets before conntrack sees them?
    pub fn may_drop_before_conntrack(&self, version: Version) -> bool {
        let is_before = |base: &Base| {
            base.hook < Hook::Prerouting || base.hook == Hook::Prerouting && base.priority <= CONNTRACK
        };
        self.chains(version).any(|chain| {
            let base = chain.base.as_ref().filter(|base| is_before(base));
            base.is_some_and(|base| !base.accepts || !chain.rules.is_empty())
        })
    }

    /// May rules depend on, or change, what conntrack knows of a connection?
    pub fn tracks_connections(&self, version: Version) -> bool {
        let mut steps =
            self.chains(version).flat_map(|chain| &chain.rules).flat_map(|rule| &rule.expressions);
        self.translates(version) || steps.any(Expression::tracks_connections)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    pub family: Family,
    pub name: String,
    /// `NFT_TABLE_F_DORMANT`: its chains are not hooked.
    pub dormant: bool,
    pub chains: BTreeMap<String, Chain>,
    pub sets: BTreeMap<String, Set>,
}

/// `NFPROTO_*`. Tables of ARP and of bridges are not read: the fast path takes no packet from a port of a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Inet,
    Ipv4,
    Ipv6,
    Netdev,
    /// Legacy iptables, which has rules of its own.
    Iptables,
    Ip6tables,
}

impl Family {
    /// Is it one of legacy iptables?
    pub fn is_legacy(self) -> bool {
        matches!(self, Family::Iptables | Family::Ip6tables)
    }

    /// Do packets of this version pass its chains?
    pub fn concerns(self, version: Version) -> bool {
        match self {
            Family::Inet | Family::Netdev => true,
            Family::Ipv4 | Family::Iptables => version == Version::V4,
            Family::Ipv6 | Family::Ip6tables => version == Version::V6,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// `None`: forwarded packets reach this chain only from other chains.
    pub base: Option<Base>,
    pub rules: Vec<Rule>,
}

/// Where a base chain is hooked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    pub hook: Hook,
    pub priority: i32,
    /// A chain of type `nat`: only the first packet of a connection passes it.
    pub nat: bool,
    /// The verdict of packets that no rule decides about.
    pub accepts: bool,
    pub devices: Devices,
}

/// The hooks that forwarded packets pass, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hook {
    Ingress,
    Prerouting,
    Forward,
    Postrouting,
    Egress,
    /// A hook that this version does not know.
    Unknown,
}

impl Hook {
    /// Its name in rules.
    pub fn name(self) -> &'static str {
        match self {
            Hook::Ingress => "ingress",
            Hook::Prerouting => "prerouting",
            Hook::Forward => "forward",
            Hook::Postrouting => "postrouting",
            Hook::Egress => "egress",
            Hook::Unknown => "an unknown hook",
        }
    }
}

/// The devices that a chain is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Devices {
    All,
    Named(Vec<String>),
    /// Some devices, but it is not known which.
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// `NFTA_RULE_HANDLE`; for a legacy rule, its number in the chain, from 1.
    pub handle: u64,
    pub expressions: Vec<Expression>,
}

/// A register, as the offset of its first byte: `NFT_REG_1` and `NFT_REG32_00` begin at 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register(pub u8);

/// The length of all registers, in bytes.
pub const REGISTER_BYTES: usize = 64;

/// One step of a rule. A rule goes on as long as its steps match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expression {
    /// Loads `NFT_META_*`.
    Meta {
        key: u32,
        into: Register,
    },
    /// Sets `NFT_META_*`.
    SetMeta {
        key: u32,
        from: Register,
    },
    /// Sets the packet's mark to `(mark & keep) ^ flip`.
    ChangeMark {
        keep: u32,
        flip: u32,
    },
    /// Gives a new connection a helper.
    SetHelper,
    /// Translates addresses of a new connection. `name`: the statement in nft. `version`: the IP version that it
    /// applies to; `None`: all versions of the table.
    Translate {
        name: &'static str,
        version: Option<Version>,
        into: Addresses,
    },
    /// Loads `NFT_CT_*`. `direction`: `IP_CT_DIR_*`.
    Ct {
        key: u32,
        direction: Option<u8>,
        into: Register,
    },
    /// Loads bytes of the packet, from the start of this header on.
    Payload {
        header: Header,
        offset: u32,
        bytes: u32,
        into: Register,
    },
    /// Loads `RTN_*` of the destination (`fib daddr type`).
    DestinationType {
        into: Register,
    },
    /// Loads a value that is not followed here. The load has no effect.
    Load {
        bytes: u32,
        into: Register,
    },
    /// Loads a constant.
    Constant {
        value: Vec<u8>,
        into: Register,
    },
    /// Compares the first bytes of a register.
    Compare {
        from: Register,
        by: Comparison,
        value: Vec<u8>,
    },
    /// Is a register between two values, both included?
    Range {
        from: Register,
        outside: bool,
        low: Vec<u8>,
        high: Vec<u8>,
    },
    /// `(register & mask) ^ xor`
    Mask {
        from: Register,
        into: Register,
        mask: Vec<u8>,
        xor: Vec<u8>,
    },
    /// Swaps bytes within each unit of so many bytes.
    Swap {
        from: Register,
        into: Register,
        bytes: u32,
        unit: u32,
    },
    /// Looks a register up in a set. `absent`: matches if it is not there. `into`: where the value of a map goes.
    Lookup {
        from: Register,
        set: String,
        absent: bool,
        into: Into,
    },
    Verdict(Verdict),
    /// Counts packets; nothing else can see it.
    Count,
    /// `flow add @NAME`: lets the kernel's flow table forward the connection.
    AddFlow(String),
    /// Adds to this set, or changes it.
    Update {
        set: String,
    },
    /// A match of iptables, with the bytes that its module defines.
    Match(Extension),
    /// A step that may or may not match, and does nothing else.
    Maybe(String),
    /// A rule that is too long to be read.
    Hidden,
    /// Anything else, by its name.
    Other(String),
}

impl Expression {
    fn tracks_connections(&self) -> bool {
        match self {
            Expression::Ct { .. }
            | Expression::SetHelper
            | Expression::Translate { .. }
            | Expression::AddFlow(_)
            | Expression::Hidden
            | Expression::Maybe(_) => true,
            Expression::Match(extension) => extension::tracks_connections(&extension.name),
            Expression::Other(name) => !STATELESS.contains(&name.as_str()),
            _ => false,
        }
    }
}

/// Statements that decide which reports Linux makes about a new connection, when it forgets it, and how it finds it.
pub const SETS_EVENTS: &str = "ct event set";
pub const SETS_ZONE: &str = "ct zone set";
pub const SETS_TIMEOUT: &str = "ct timeout set";

/// Steps that look at no connection and translate nothing.
pub(super) const STATELESS: [&str; 9] =
    ["log", "limit", "quota", "reject", "queue", "-j LOG", "-j NFLOG", "-j REJECT", "-j TCPMSS"];

/// The new addresses of a connection that NAT translates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// One of the router itself.
    Own,
    /// One between these two, both included, as the source of the connection's packets.
    Source(Operand, Operand),
    /// The same as their destination.
    Destination(Operand, Operand),
    /// Any.
    Any,
}

/// An operand of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operand {
    Constant(Vec<u8>),
    Register(Register),
}

/// An extension of iptables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extension {
    pub name: String,
    pub revision: u32,
    pub info: Vec<u8>,
}

/// `NFT_PAYLOAD_*_HEADER`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    Network,
    Transport,
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Comparison {
    /// All of them, in the order of `NFT_CMP_*`.
    pub const ALL: [Comparison; 6] = [
        Comparison::Equal,
        Comparison::Unequal,
        Comparison::Less,
        Comparison::LessOrEqual,
        Comparison::Greater,
        Comparison::GreaterOrEqual,
    ];
}

/// Where the value of a map goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Into {
    /// A set, not a map.
    Nowhere,
    /// The value is a verdict, which is followed.
    Verdict,
    Register(Register),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Accept,
    Drop,
    /// Goes on with the next step.
    Continue,
    /// Goes on with the next rule.
    Break,
    Return,
    Jump(String),
    Goto(String),
    /// Queue, stolen, or a number that this version does not know.
    Other,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Set {
    /// The length of each part of a key. Each part begins at a multiple of four bytes.
    pub parts: Vec<u32>,
    /// Packets can change it: a rule adds elements, or its flags allow that.
    pub changing: bool,
    /// A match has an effect other than counting (`limit`, `quota`).
    pub effects: bool,
    /// In the order of `low`.
    pub elements: Vec<Element>,
    /// The value for keys that no element has (`*`).
    pub otherwise: Option<Value>,
}

/// Keys from `low` to `high`, both included, in each of their parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    pub low: Vec<u8>,
    pub high: Vec<u8>,
    pub value: Value,
    /// The earliest time of CLOCK_MONOTONIC at which it may expire; `None`: it never expires.
    pub expires_at: Option<Duration>,
}

/// What a map has for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    None,
    Bytes(Vec<u8>),
    Verdict(Verdict),
}

impl Set {
    /// Offset and length of each part of a key.
    pub fn layout(&self) -> impl Iterator<Item = (usize, usize)> {
        self.parts.iter().scan(0, |end, length| {
            let at = *end;
            *end = at + (*length as usize).next_multiple_of(4);
            Some((at, *length as usize))
        })
    }

    /// The length of a key.
    pub fn key_bytes(&self) -> usize {
        self.layout().last().map_or(0, |(at, length)| at + length)
    }
}
