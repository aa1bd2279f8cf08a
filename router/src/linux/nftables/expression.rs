//! Steps of rules: `NFTA_EXPR_NAME` says what one is, and `NFTA_EXPR_DATA` holds its attributes. A step that is not
//! known, or whose attributes are not, is [`Expression::Other`].

use crate::linux::netlink::wire;
use logic::firewall::{
    ruleset::{
        Addresses, Comparison, Expression, Extension, Header, Into, Operand, Register, SETS_EVENTS,
        SETS_TIMEOUT, SETS_ZONE, Verdict,
    },
    traffic::Version,
};

/// A step of a rule.
pub fn parse(expression: &[u8]) -> Expression {
    const NAME: u16 = 1;
    const DATA: u16 = 2;
    let name = wire::attribute(expression, NAME).map(wire::text).unwrap_or_default();
    let data = Attributes(wire::attribute(expression, DATA).unwrap_or_default());
    known(&name, data).unwrap_or(Expression::Other(name))
}

/// The attributes of a step. Numbers are big-endian.
#[derive(Clone, Copy)]
struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    fn bytes(self, kind: u16) -> Option<&'a [u8]> {
        wire::attribute(self.0, kind)
    }

    fn number(self, kind: u16) -> Option<u32> {
        wire::be32_at(self.bytes(kind)?, 0)
    }

    fn text(self, kind: u16) -> Option<String> {
        self.bytes(kind).map(wire::text)
    }

    fn register(self, kind: u16) -> Option<Register> {
        register(self.number(kind)?)
    }

    /// `NFTA_DATA_VALUE` inside an attribute.
    fn value(self, kind: u16) -> Option<Vec<u8>> {
        value(self.bytes(kind)?)
    }
}

/// `NFT_REG_1` to `NFT_REG_4` have 16 bytes, `NFT_REG32_00` to `NFT_REG32_15` four.
fn register(number: u32) -> Option<Register> {
    match number {
        1..=4 => Some(Register((number as u8 - 1) * 16)),
        8..=23 => Some(Register((number as u8 - 8) * 4)),
        _ => None,
    }
}

/// `NFTA_DATA_VALUE`
pub(super) fn value(data: &[u8]) -> Option<Vec<u8>> {
    wire::attribute(data, 1).map(<[u8]>::to_vec)
}

/// `NFTA_DATA_VERDICT`
pub(super) fn verdict(data: &[u8]) -> Option<Verdict> {
    const CODE: u16 = 1;
    const CHAIN: u16 = 2;
    let verdict = wire::attribute(data, 2)?;
    let chain = || wire::attribute(verdict, CHAIN).map(wire::text).unwrap_or_default();
    Some(match wire::be32_at(wire::attribute(verdict, CODE)?, 0)? as i32 {
        0 => Verdict::Drop,
        1 => Verdict::Accept,
        -1 => Verdict::Continue,
        -2 => Verdict::Break,
        -3 => Verdict::Jump(chain()),
        -4 => Verdict::Goto(chain()),
        -5 => Verdict::Return,
        _ => Verdict::Other,
    })
}

fn known(name: &str, data: Attributes<'_>) -> Option<Expression> {
    Some(match name {
        "meta" => meta(data)?,
        "ct" => {
            let direction = data.bytes(3).and_then(|bytes| bytes.first().copied());
            let key = data.number(2)?;
            match data.register(1) {
                Some(into) => Expression::Ct { key, direction, into },
                None => Expression::Other(sets(key).into()),
            }
        }
        "payload" => Expression::Payload {
            header: match data.number(2)? {
                1 => Header::Network,
                2 => Header::Transport,
                _ => Header::Other,
            },
            offset: data.number(3)?,
            bytes: data.number(4)?,
            into: data.register(1)?,
        },
        "immediate" => immediate(data)?,
        "cmp" => {
            let by = *Comparison::ALL.get(data.number(2)? as usize)?;
            Expression::Compare { from: data.register(1)?, by, value: data.value(3)? }
        }
        "range" => Expression::Range {
            from: data.register(1)?,
            outside: match data.number(2)? {
                0 => false,
                1 => true,
                _ => return None,
            },
            low: data.value(3)?,
            high: data.value(4)?,
        },
        "bitwise" => bitwise(data)?,
        "byteorder" => Expression::Swap {
            from: data.register(1)?,
            into: data.register(2)?,
            bytes: data.number(4)?,
            unit: data.number(5)?,
        },
        "lookup" => lookup(data)?,
        "counter" | "last" => Expression::Count,
        "objref" => match data.number(1)? {
            OBJECT_COUNTER => Expression::Count,
            OBJECT_HELPER => Expression::SetHelper,
            OBJECT_TIMEOUT => Expression::Other(SETS_TIMEOUT.into()),
            _ => return None,
        },
        "flow_offload" => Expression::AddFlow(data.text(1)?),
        "dynset" => Expression::Update { set: data.text(1)? },
        "match" => Expression::Match(Extension {
            name: data.text(1)?,
            revision: data.number(2)?,
            info: data.bytes(3)?.to_vec(),
        }),
        "target" => target(&data.text(1)?, data.number(2)?, data.bytes(3)?),
        "nat" => nat(data)?,
        "masq" => Expression::Translate { name: "masquerade", version: None, into: Addresses::Own },
        "redir" => Expression::Translate { name: "redirect", version: None, into: Addresses::Own },
        "fib" => fib(data)?,
        _ => load(name, data)?,
    })
}

/// `NFT_OBJECT_*`
const OBJECT_COUNTER: u32 = 1;
const OBJECT_HELPER: u32 = 3;
const OBJECT_TIMEOUT: u32 = 7;

/// The statement that sets this part of a connection (`NFT_CT_*`).
fn sets(key: u32) -> &'static str {
    match key {
        3 => "ct mark set",
        17 => SETS_ZONE,
        18 => SETS_EVENTS,
        _ => "ct set",
    }
}

/// A target of iptables.
pub fn target(name: &str, revision: u32, info: &[u8]) -> Expression {
    let number = |at| wire::u32_at(info, at);
    let known = match (name, revision) {
        // `struct xt_mark_tginfo2`
        ("MARK", 2) => {
            number(0).zip(number(4)).map(|(flip, mask)| Expression::ChangeMark { flip, keep: !mask })
        }
        ("MASQUERADE", 0) => {
            Some(Expression::Translate { name: "masquerade", version: None, into: Addresses::Own })
        }
        ("REDIRECT", 0) => {
            Some(Expression::Translate { name: "redirect", version: None, into: Addresses::Own })
        }
        ("SNAT", _) => Some(Expression::Translate {
            name: "snat",
            version: None,
            into: range(revision, info).map_or(Addresses::Any, |(low, high)| Addresses::Source(low, high)),
        }),
        ("DNAT", _) => Some(Expression::Translate {
            name: "dnat",
            version: None,
            into: range(revision, info)
                .map_or(Addresses::Any, |(low, high)| Addresses::Destination(low, high)),
        }),
        _ => None,
    };
    known.unwrap_or_else(|| Expression::Other(format!("-j {name}")))
}

/// `NF_NAT_RANGE_MAP_IPS`, `NF_NAT_RANGE_NETMAP`
const MAPS_ADDRESSES: u32 = 1;
const MAPS_NETWORKS: u32 = 1 << 6;

/// The addresses of `struct nf_nat_ipv4_multi_range_compat` (revision 0, with one range) or `struct nf_nat_range`. An
/// IPv4 address is in the first bytes of the latter. `None`: any address, or none is changed.
fn range(revision: u32, info: &[u8]) -> Option<(Operand, Operand)> {
    let number = |at| wire::u32_at(info, at);
    let (flags, low, bytes) = match revision {
        0 if number(0)? == 1 => (number(4)?, 8, 4),
        1 | 2 => (number(0)?, 4, 16),
        _ => return None,
    };
    let address = |at: usize| Some(Operand::Constant(info.get(at..at + bytes)?.to_vec()));
    let known = flags & MAPS_ADDRESSES != 0 && flags & MAPS_NETWORKS == 0;
    Some((address(low)?, address(low + bytes)?)).filter(|_| known)
}

fn nat(data: Attributes<'_>) -> Option<Expression> {
    let low = data.register(3).map(Operand::Register);
    let high = data.register(4).map(Operand::Register).or(low.clone());
    let addresses = low.zip(high).filter(|_| data.number(7).unwrap_or(0) & MAPS_NETWORKS == 0);
    let (name, into) = match data.number(1)? {
        0 => ("snat", addresses.map(|(low, high)| Addresses::Source(low, high))),
        1 => ("dnat", addresses.map(|(low, high)| Addresses::Destination(low, high))),
        _ => return None,
    };
    let version = match data.number(2)? {
        2 => Some(Version::V4),
        10 => Some(Version::V6),
        _ => None,
    };
    Some(Expression::Translate { name, version, into: into.unwrap_or(Addresses::Any) })
}

fn meta(data: Attributes<'_>) -> Option<Expression> {
    let key = data.number(2)?;
    Some(match data.register(3) {
        Some(from) => Expression::SetMeta { key, from },
        None => Expression::Meta { key, into: data.register(1)? },
    })
}

fn immediate(data: Attributes<'_>) -> Option<Expression> {
    const VERDICT: u32 = 0;
    Some(match data.number(1)? {
        VERDICT => Expression::Verdict(verdict(data.bytes(2)?)?),
        _ => Expression::Constant { into: data.register(1)?, value: data.value(2)? },
    })
}

fn bitwise(data: Attributes<'_>) -> Option<Expression> {
    const MASK_XOR: u32 = 0;
    let (from, into, bytes) = (data.register(1)?, data.register(2)?, data.number(3)?);
    if data.number(6).unwrap_or(MASK_XOR) != MASK_XOR {
        return Some(Expression::Load { bytes, into });
    }
    let (mask, xor) = (data.value(4)?, data.value(5)?);
    (mask.len() == bytes as usize && xor.len() == mask.len()).then_some(Expression::Mask {
        from,
        into,
        mask,
        xor,
    })
}

fn lookup(data: Attributes<'_>) -> Option<Expression> {
    const VERDICT: u32 = 0;
    const INVERTED: u32 = 1;
    let into = match data.number(3) {
        None => Into::Nowhere,
        Some(VERDICT) => Into::Verdict,
        Some(number) => Into::Register(register(number)?),
    };
    let absent = data.number(5).unwrap_or(0) & INVERTED != 0;
    Some(Expression::Lookup { from: data.register(2)?, set: data.text(1)?, absent, into })
}

fn fib(data: Attributes<'_>) -> Option<Expression> {
    const ADDRESS_TYPE: u32 = 3;
    const DESTINATION: u32 = 1 << 1;
    let (into, result, flags) = (data.register(1)?, data.number(2)?, data.number(3)?);
    Some(match (result, flags) {
        (ADDRESS_TYPE, DESTINATION) => Expression::DestinationType { into },
        _ => Expression::Load { bytes: 16, into },
    })
}

/// Steps that only read. One that writes has no destination register.
fn load(name: &str, data: Attributes<'_>) -> Option<Expression> {
    const RANDOM: u32 = 1;
    let (register, bytes) = match name {
        "exthdr" => (1, data.number(4)?),
        "rt" | "osf" | "xfrm" => (1, 16),
        "socket" => (2, 16),
        "hash" => (2, 4),
        // Only the random mode. The other mode counts packets, which is an effect.
        "numgen" if data.number(3)? == RANDOM => (1, 4),
        _ => return None,
    };
    Some(Expression::Load { bytes, into: data.register(register)? })
}
