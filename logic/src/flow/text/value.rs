//! Numbers, addresses, masks and ports as words.

use super::{BadText, Names, Word};
use crate::{
    flow::{Field, RulePort},
    net::Mac,
};
use std::{
    fmt,
    net::{Ipv4Addr, Ipv6Addr},
};

/// How the values of a field are written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Decimal,
    Hexadecimal,
    Mac,
    Ipv4,
    Ipv6,
    Port,
}

fn form(field: Field) -> Form {
    use Field::*;
    match (field, field.spec().bits) {
        (InPort, _) => Form::Port,
        (_, 48) => Form::Mac,
        (_, 128) => Form::Ipv6,
        (Ipv4Src | Ipv4Dst | ArpSpa | ArpTpa | InnerIpv4Src | InnerIpv4Dst, _) => Form::Ipv4,
        (Metadata | TunnelId | EthType | InnerEthType | Ipv6Flabel | InnerVlanVid, _) => Form::Hexadecimal,
        _ => Form::Decimal,
    }
}

/// Parses decimal or `0x...`. A leading zero is refused, because other programs take it for octal.
pub(super) fn number(text: &str) -> Option<u128> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) if !digits.starts_with('+') => u128::from_str_radix(digits, 16).ok(),
        None if text == "0" || !text.starts_with(['0', '+']) => text.parse().ok(),
        _ => None,
    }
}

fn ones(bits: u32) -> u128 {
    u128::MAX.checked_shr(128 - bits).unwrap_or(0)
}

/// Parses `number[/mask]` with so many bits. A mask of -1 is all bits.
pub(super) fn masked(word: Word<'_>, bits: u32) -> Result<(u128, Option<u128>), BadText> {
    let bad = || word.bad(format!("needs a number of {bits} bits, decimal or 0x..., or number/mask"));
    let fits = |text| number(text).filter(|&n| n <= ones(bits)).ok_or_else(bad);
    match word.value()?.split_once('/') {
        None => Ok((fits(word.value()?)?, None)),
        Some((value, "-1")) => Ok((fits(value)?, Some(ones(bits)))),
        Some((value, mask)) => Ok((fits(value)?, Some(fits(mask)?))),
    }
}

/// Parses the value of a field, and the mask if there is one.
pub(super) fn of_field(field: Field, text: &str, names: Names<'_>) -> Option<(u128, Option<u128>)> {
    let form = form(field);
    let bits = field.spec().bits;
    let one = |text: &str| match form {
        Form::Decimal | Form::Hexadecimal => number(text).filter(|&n| n <= ones(bits)),
        Form::Mac => mac(text),
        Form::Ipv4 => text.parse().ok().map(|a: Ipv4Addr| a.to_bits().into()),
        Form::Ipv6 => text.parse().ok().map(Ipv6Addr::to_bits),
        Form::Port => names.port(text).ok().map(|port| port.0.into()),
    };
    let Some((value, mask)) = text.split_once('/') else { return Some((one(text)?, None)) };
    let length = mask.parse().ok().filter(|&length: &u32| length <= bits);
    let mask = match (form, length) {
        (Form::Ipv4 | Form::Ipv6, Some(length)) => ones(bits) & !ones(bits - length),
        (Form::Decimal | Form::Hexadecimal, _) if mask == "-1" => ones(bits),
        _ => one(mask)?,
    };
    Some((one(value)?, Some(mask)))
}

/// An example of a value of the field.
pub(super) fn example(field: Field) -> String {
    let bits = field.spec().bits;
    match form(field) {
        Form::Decimal | Form::Hexadecimal => {
            format!("a number from 0 to {:#x}, decimal or 0x...", ones(bits))
        }
        Form::Mac => "a MAC address such as 02:00:00:00:00:01".into(),
        Form::Ipv4 => "an IPv4 address such as 192.0.2.1 or 192.0.2.0/24".into(),
        Form::Ipv6 => "an IPv6 address such as 2001:db8::1 or 2001:db8::/32".into(),
        Form::Port => PORTS.into(),
    }
}

fn mac(text: &str) -> Option<u128> {
    let mut value = 0;
    let mut octets = 0;
    for octet in text.split(':') {
        if octet.is_empty() || octet.len() > 2 || octet.starts_with('+') {
            return None;
        }
        value = value << 8 | u128::from(u8::from_str_radix(octet, 16).ok()?);
        octets += 1;
        if octets > 6 {
            return None;
        }
    }
    (octets == 6).then_some(value)
}

/// Parses a MAC address without a mask.
pub(super) fn mac_octets(text: &str) -> Option<[u8; 6]> {
    mac(text).map(octets)
}

fn octets(mac: u128) -> [u8; 6] {
    std::array::from_fn(|i| (mac >> (40 - 8 * i)) as u8)
}

const PORTS: &str =
    "a port number from 1 to 65280, or IN_PORT, TABLE, NORMAL, FLOOD, ALL, CONTROLLER, LOCAL, ANY or NONE";

/// Parses a port by number or reserved name, in upper or lower case. Numbers of reserved ports may be those of
/// OpenFlow 1.0 or 1.3.
pub fn parse_port(text: &str) -> Result<RulePort, BadText> {
    let named = || {
        let name = if text.eq_ignore_ascii_case("NONE") { "ANY" } else { text };
        RulePort::NAMES.iter().find(|(_, n)| n.eq_ignore_ascii_case(name)).map(|&(port, _)| port)
    };
    let numbered = |n: u128| match n {
        0..=0xff00 | 0xfff8..=0xffff => Some(RulePort(n as u16)),
        0xffff_fff8..=0xffff_ffff => Some(RulePort(n as u16)),
        _ => None,
    };
    named().or_else(|| numbered(number(text)?)).ok_or_else(|| BadText::new(text, format!("needs {PORTS}")))
}

/// A value of a field. The mask is written unless it is all bits.
pub(super) struct ValueText(pub Field, pub u128, pub u128);

impl fmt::Display for ValueText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ValueText(field, value, mask) = *self;
        let bits = field.spec().bits;
        let form = form(field);
        let one = |f: &mut fmt::Formatter<'_>, value: u128| match form {
            Form::Decimal => write!(f, "{value}"),
            Form::Hexadecimal => write!(f, "{value:#x}"),
            Form::Mac => write!(f, "{}", Mac(octets(value))),
            Form::Ipv4 => write!(f, "{}", Ipv4Addr::from_bits(value as u32)),
            Form::Ipv6 => write!(f, "{}", Ipv6Addr::from_bits(value)),
            Form::Port => write!(f, "{}", RulePort(value as u16)),
        };
        one(f, value)?;
        if mask == field.all_bits() {
            return Ok(());
        }
        f.write_str("/")?;
        // The number of leading ones of the mask within its field.
        let length = (mask << (128 - bits)).leading_ones();
        match form {
            Form::Ipv4 | Form::Ipv6 if mask == ones(bits) & !ones(bits - length) => write!(f, "{length}"),
            Form::Decimal | Form::Port => write!(f, "{mask:#x}"),
            _ => one(f, mask),
        }
    }
}
