//! Addresses, prefixes, MAC addresses and VLAN tags.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

/// An IP address as an integer in host byte order: `u32` for IPv4, `u128` for IPv6.
pub trait Address: Copy + Ord + Eq + std::hash::Hash + fmt::Debug + Send + Sync + 'static {
    /// Width in bits, 32 or 128.
    const BITS: u8;
    /// The address with all but the first `length` bits cleared.
    fn masked(self, length: u8) -> Self;
    /// The eight bits after the first `offset`; `offset` is at most `BITS - 8`.
    fn octet(self, offset: u8) -> u8;
    /// The address shifted right by `bits` (all zero when `bits >= BITS`), truncated to 32 bits.
    fn head(self, bits: u8) -> u32;
    /// Left-aligned in 128 bits: IPv4 in the top 32.
    fn left_aligned(self) -> u128;
    /// The inverse of [`left_aligned`](Address::left_aligned); bits beyond the width are dropped.
    fn from_left_aligned(bits: u128) -> Self;
    /// The address in the type of `std`.
    fn ip(self) -> IpAddr;
}

impl Address for u32 {
    const BITS: u8 = 32;
    fn masked(self, length: u8) -> Self {
        self & u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0)
    }
    fn octet(self, offset: u8) -> u8 {
        (self >> (24 - offset)) as u8
    }
    fn head(self, bits: u8) -> u32 {
        self.checked_shr(bits.into()).unwrap_or(0)
    }
    fn left_aligned(self) -> u128 {
        u128::from(self) << 96
    }
    fn from_left_aligned(bits: u128) -> Self {
        (bits >> 96) as u32
    }
    fn ip(self) -> IpAddr {
        IpAddr::V4(Ipv4Addr::from_bits(self))
    }
}

impl Address for u128 {
    const BITS: u8 = 128;
    fn masked(self, length: u8) -> Self {
        self & u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0)
    }
    fn octet(self, offset: u8) -> u8 {
        (self >> (120 - offset)) as u8
    }
    fn head(self, bits: u8) -> u32 {
        self.checked_shr(bits.into()).unwrap_or(0) as u32
    }
    fn left_aligned(self) -> u128 {
        self
    }
    fn from_left_aligned(bits: u128) -> Self {
        bits
    }
    fn ip(self) -> IpAddr {
        IpAddr::V6(Ipv6Addr::from_bits(self))
    }
}

/// An IP prefix; bits beyond `length` are zero by construction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix<A> {
    address: A,
    length: u8,
}

/// An IPv4 prefix.
pub type Prefix4 = Prefix<u32>;
/// An IPv6 prefix.
pub type Prefix6 = Prefix<u128>;

impl<A: Address> Prefix<A> {
    /// `address/length` with host bits cleared; `None` if `length` is over the address width.
    pub fn new(address: A, length: u8) -> Option<Self> {
        (length <= A::BITS).then(|| Self { address: address.masked(length), length })
    }
    /// The prefix of length 0, which holds every address.
    pub fn everything() -> Self {
        Self { address: A::from_left_aligned(0), length: 0 }
    }
    /// The prefix of this address alone.
    pub fn one(address: A) -> Self {
        Self { address, length: A::BITS }
    }
    /// The network address.
    pub fn address(self) -> A {
        self.address
    }
    /// The prefix length in bits.
    pub fn length(self) -> u8 {
        self.length
    }
    /// Whether `address` is inside.
    pub fn contains(self, address: A) -> bool {
        address.masked(self.length) == self.address
    }
    /// Whether `other` is inside, or the same.
    pub fn covers(self, other: Self) -> bool {
        self.length <= other.length && self.contains(other.address)
    }
}

impl<A: Address> fmt::Display for Prefix<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address.ip(), self.length)
    }
}

impl<A: Address> fmt::Debug for Prefix<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is not a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadPrefix(pub String);

impl fmt::Display for BadPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not an IP prefix such as 192.0.2.0/24 or 2001:db8::/32: {:?}", self.0)
    }
}

impl std::error::Error for BadPrefix {}

impl FromStr for Prefix4 {
    type Err = BadPrefix;
    fn from_str(s: &str) -> Result<Self, BadPrefix> {
        parse(s, |a| a.parse().ok().map(Ipv4Addr::to_bits))
    }
}

impl FromStr for Prefix6 {
    type Err = BadPrefix;
    fn from_str(s: &str) -> Result<Self, BadPrefix> {
        parse(s, |a| a.parse().ok().map(Ipv6Addr::to_bits))
    }
}

fn parse<A: Address>(s: &str, address: impl Fn(&str) -> Option<A>) -> Result<Prefix<A>, BadPrefix> {
    s.split_once('/')
        .and_then(|(a, l)| Prefix::new(address(a)?, l.parse().ok()?))
        .ok_or_else(|| BadPrefix(s.into()))
}

/// A MAC address.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// `None` unless exactly six bytes.
    pub fn from_slice(bytes: &[u8]) -> Option<Mac> {
        bytes.try_into().ok().map(Mac)
    }
    /// Broadcast or multicast (group bit, IEEE 802).
    pub fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }
    /// All zero.
    pub fn is_zero(self) -> bool {
        self.0 == [0; 6]
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One VLAN tag: the VLAN identifier, and whether the tag is 802.1ad (otherwise 802.1Q).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag {
    /// VLAN identifier, 1..=4094.
    pub vid: u16,
    /// It is an 802.1ad service tag.
    pub service: bool,
}

/// The VLAN tags of a frame as one word, 0 = untagged: the "VLAN key" of `bpf/abi.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vlan(u32);

impl Vlan {
    /// No tag.
    pub const NONE: Vlan = Vlan(0);

    /// This key with one more tag inside; `None` if it has two already.
    pub fn push(self, tag: Tag) -> Option<Vlan> {
        let word = u32::from(tag.vid & 0xfff) | u32::from(tag.service) << 12 | 1 << 13;
        match self.tags() {
            0 => Some(Vlan(word)),
            1 => Some(Vlan(self.0 | word << 16)),
            _ => None,
        }
    }
    /// How many tags, 0..=2.
    pub fn tags(self) -> usize {
        usize::from(self.0 & 1 << 13 != 0) + usize::from(self.0 & 1 << 29 != 0)
    }
    /// The key as in the ABI.
    pub fn key(self) -> u32 {
        self.0
    }
    /// The VLAN with this key of the ABI.
    pub fn from_key(key: u32) -> Vlan {
        Vlan(key)
    }
}

impl fmt::Display for Vlan {
    /// `-`, `100` or `100.7` (outer.inner).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.tags() {
            0 => f.write_str("-"),
            1 => write!(f, "{}", self.0 & 0xfff),
            _ => write!(f, "{}.{}", self.0 & 0xfff, self.0 >> 16 & 0xfff),
        }
    }
}

/// An IP prefix of either version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Addresses {
    /// An IPv4 prefix.
    V4(Prefix4),
    /// An IPv6 prefix.
    V6(Prefix6),
}

impl Addresses {
    /// Whether this address is in it.
    pub fn contains(self, address: IpAddr) -> bool {
        match (self, address) {
            (Addresses::V4(prefix), IpAddr::V4(address)) => prefix.contains(address.to_bits()),
            (Addresses::V6(prefix), IpAddr::V6(address)) => prefix.contains(address.to_bits()),
            _ => false,
        }
    }
}

/// One address alone.
impl From<IpAddr> for Addresses {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Addresses::V4(Prefix4::one(address.to_bits())),
            IpAddr::V6(address) => Addresses::V6(Prefix6::one(address.to_bits())),
        }
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Addresses::V4(prefix) => prefix.fmt(f),
            Addresses::V6(prefix) => prefix.fmt(f),
        }
    }
}

impl FromStr for Addresses {
    type Err = BadPrefix;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        s.parse().map(Addresses::V4).or_else(|_| s.parse().map(Addresses::V6))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_mask_and_contain() {
        let p: Prefix4 = "10.1.2.3/16".parse().unwrap();
        assert_eq!(p.to_string(), "10.1.0.0/16");
        assert!(p.contains(0x0a01_ffff) && !p.contains(0x0a02_0000));
        let all: Prefix6 = "::/0".parse().unwrap();
        assert!(all.covers("2001:db8::/32".parse().unwrap()));
        assert!("10.0.0.0/33".parse::<Prefix4>().is_err());
        assert!("10.0.0.0".parse::<Prefix4>().is_err());
    }

    #[test]
    fn octets_and_heads() {
        assert_eq!(0x0a01_0203_u32.octet(8), 1);
        assert_eq!(0x0a01_0203_u32.head(24), 0x0a);
        assert_eq!(0x0a01_0203_u32.head(32), 0);
        let a: Ipv6Addr = "2001:db8::1".parse().unwrap();
        assert_eq!(a.to_bits().octet(120), 1);
        assert_eq!(a.to_bits().head(112), 0x2001);
    }

    #[test]
    fn vlan_keys() {
        let outer = Tag { vid: 100, service: true };
        let inner = Tag { vid: 7, service: false };
        let one = Vlan::NONE.push(outer).unwrap();
        let two = one.push(inner).unwrap();
        assert_eq!((one.key(), one.tags()), (0x3064, 1));
        assert_eq!((two.key(), two.tags()), (0x2007_3064, 2));
        assert_eq!(two.push(inner), None);
        assert_eq!((Vlan::NONE.to_string(), two.to_string()), ("-".into(), "100.7".into()));
    }
}
