//! The fields of a packet as one block of bytes, and matches over it.
//!
//! A [`Key`] holds every field in network byte order at its place ([`field`](super::field)). A [`Match`] is a key and a
//! mask of the same shape. "Covers", "overlaps" and "matches" are therefore a few `and` and `xor` of words, whatever the
//! fields.

use super::field::{FIELDS, Field, Needs, Spec, VLAN_PRESENT, ether_type, ip_proto};

/// The fields of a packet, or a mask over them: `struct flow_key` of `bpf/flow_abi.h`. A field that the packet lacks is 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub [u8; Key::BYTES]);

impl Key {
    pub const BYTES: usize = 152;
    pub const WORDS: usize = Self::BYTES / 8;
    /// No field, or no bit.
    pub const ZERO: Key = Key([0; Self::BYTES]);

    /// The bits of `field`, right-aligned.
    pub fn get(&self, field: Field) -> u128 {
        let s = field.spec();
        let raw = self.0[s.offset..s.offset + s.bytes].iter().fold(0, |raw, &b| raw << 8 | u128::from(b));
        raw >> s.shift & field.all_bits()
    }

    /// Writes the bits of `field`; bits of `value` beyond its width are dropped.
    pub fn set(&mut self, field: Field, value: u128) {
        let s = field.spec();
        let (bits, value) = (field.all_bits() << s.shift, (value & field.all_bits()) << s.shift);
        for (i, byte) in self.0[s.offset..s.offset + s.bytes].iter_mut().rev().enumerate() {
            *byte = *byte & !((bits >> (8 * i)) as u8) | (value >> (8 * i)) as u8;
        }
    }

    /// As words in memory order, the form that the kernel plane uses.
    pub fn words(&self) -> [u64; Self::WORDS] {
        let mut words = [0; Self::WORDS];
        let bytes = self.0.as_chunks().0;
        words.iter_mut().zip(bytes).for_each(|(word, bytes)| *word = u64::from_ne_bytes(*bytes));
        words
    }

    /// The inverse of [`words`](Key::words).
    pub fn from_words(words: [u64; Self::WORDS]) -> Key {
        let mut key = Key::ZERO;
        key.0.as_chunks_mut().0.iter_mut().zip(words).for_each(|(bytes, word)| *bytes = word.to_ne_bytes());
        key
    }

    /// Bit by bit: `self & mask`.
    pub fn masked(&self, mask: &Key) -> Key {
        self.with(mask, |mine, mask| mine & mask)
    }

    /// Bit by bit: `self | other`.
    pub fn union(&self, other: &Key) -> Key {
        self.with(other, |mine, other| mine | other)
    }

    /// The bits that both masks test.
    pub fn intersection(&self, other: &Key) -> Key {
        self.with(other, |mine, other| mine & other)
    }

    fn with(&self, other: &Key, both: impl Fn(u64, u64) -> u64) -> Key {
        let (mut words, others) = (self.words(), other.words());
        words.iter_mut().zip(others).for_each(|(word, other)| *word = both(*word, other));
        Key::from_words(words)
    }

    /// How many bits a mask tests.
    pub fn bits(&self) -> u32 {
        self.words().iter().map(|word| word.count_ones()).sum()
    }

    /// The rank of a mask. It decides between rules of one priority that match the same packet, where OpenFlow leaves the
    /// choice open. The mask with more bits wins, then the one with the higher hash. The rank has 36 bits. If two masks have
    /// the same rank, either may win.
    pub fn rank(&self) -> u64 {
        let hash = self
            .words()
            .iter()
            .fold(0_u64, |h, word| (h ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29));
        u64::from(self.bits()) << 25 | hash >> 39
    }

    /// Is every bit of `self` in `other`?
    pub fn within(&self, other: &Key) -> bool {
        self.words().iter().zip(other.words()).all(|(a, b)| a & !b == 0)
    }
}

impl Default for Key {
    fn default() -> Self {
        Self::ZERO
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let set = FIELDS.iter().filter(|s| self.get(s.field) != 0).map(|s| (s.name, self.get(s.field)));
        f.write_str("Key")?;
        f.debug_map().entries(set).finish()
    }
}

/// The match of a rule: packets whose key equals this key in the bits where the mask is 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Match {
    key: Key,
    mask: Key,
}

impl Match {
    /// Every packet.
    pub const ANY: Match = Match { key: Key::ZERO, mask: Key::ZERO };

    /// Clears the bits of `key` outside `mask`.
    pub fn new(key: &Key, mask: &Key) -> Match {
        Match { key: key.masked(mask), mask: *mask }
    }

    /// The values to match; zero where the mask is zero.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The bits to compare.
    pub fn mask(&self) -> &Key {
        &self.mask
    }

    /// Adds a field with all its bits.
    pub fn with(mut self, field: Field, value: impl Into<u128>) -> Match {
        self.set(field, value.into(), field.all_bits());
        self
    }

    /// Replaces the match of a field: the bits of `value` where `mask` is 1. A mask of 0 removes the field.
    pub fn set(&mut self, field: Field, value: u128, mask: u128) {
        self.mask.set(field, mask);
        self.key.set(field, value & mask);
    }

    /// Value and mask of a field; `None` if it is not matched. The bits may belong to another field at the same place:
    /// [`fields`](Match::fields) distinguishes them.
    pub fn get(&self, field: Field) -> Option<(u128, u128)> {
        let mask = self.mask.get(field);
        (mask != 0).then(|| (self.key.get(field), mask))
    }

    /// The value of a field, if all its bits are matched.
    pub fn exact(&self, field: Field) -> Option<u128> {
        self.get(field).and_then(|(value, mask)| (mask == field.all_bits()).then_some(value))
    }

    /// Does the packet with this key match?
    pub fn matches(&self, key: &Key) -> bool {
        key.masked(&self.mask) == self.key
    }

    /// Does it match every packet that `other` matches (OpenFlow 1.0, section 4.6: non-strict modify and delete)?
    pub fn covers(&self, other: &Match) -> bool {
        self.mask.within(&other.mask) && other.key.masked(&self.mask) == self.key
    }

    /// Is there a packet that both match (CHECK_OVERLAP)?
    pub fn overlaps(&self, other: &Match) -> bool {
        let both = self.mask.masked(&other.mask);
        self.key.masked(&both) == other.key.masked(&both)
    }

    /// Does the match contain what `field` needs?
    pub fn permits(&self, field: Field) -> bool {
        let is = |field, values: &[u128]| self.exact(field).is_some_and(|v| values.contains(&v));
        let ip = || is(Field::EthType, &[ether_type::IPV4.into(), ether_type::IPV6.into()]);
        let any =
            |field, values: &[u16]| self.exact(field).is_some_and(|v| values.iter().any(|&x| v == x.into()));
        let any8 =
            |field, values: &[u8]| self.exact(field).is_some_and(|v| values.iter().any(|&x| v == x.into()));
        let present =
            |field| self.get(field).is_some_and(|(value, mask)| value & mask & u128::from(VLAN_PRESENT) != 0);
        match field.spec().needs {
            Needs::Nothing => true,
            Needs::Vlan => present(Field::VlanVid),
            Needs::Type(types) => any(Field::EthType, types),
            Needs::Proto(proto) => ip() && is(Field::IpProto, &[proto.into()]),
            Needs::TypeProto(kind, proto) => {
                is(Field::EthType, &[kind.into()]) && is(Field::IpProto, &[proto.into()])
            }
            Needs::Icmp6(types) => {
                is(Field::EthType, &[ether_type::IPV6.into()])
                    && is(Field::IpProto, &[ip_proto::ICMPV6.into()])
                    && any8(Field::Icmpv6Type, types)
            }
            Needs::InnerVlan => present(Field::InnerVlanVid),
            Needs::InnerType(types) => any(Field::InnerEthType, types),
            Needs::InnerProto(protos) => any8(Field::InnerIpProto, protos),
        }
    }

    /// The fields it matches, each with value and mask. A field comes after those that it needs.
    pub fn fields(&self) -> impl Iterator<Item = (Field, u128, u128)> + '_ {
        FIELDS.iter().filter_map(|s: &Spec| {
            let (value, mask) = self.get(s.field)?;
            self.permits(s.field).then_some((s.field, value, mask))
        })
    }

    /// Without bits whose field lacks what it needs. OpenFlow 1.0 ignores these (section 3.4).
    pub fn normalised(&self) -> Match {
        let mut clean = Match::ANY;
        // A field comes after those that it needs, except types at a shared place.
        for (field, value, mask) in self.fields() {
            clean.set(field, value, mask);
        }
        if clean == *self { clean } else { clean.normalised() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn web() -> Match {
        Match::ANY
            .with(Field::EthType, ether_type::IPV4)
            .with(Field::IpProto, ip_proto::TCP)
            .with(Field::TcpDst, 80_u16)
    }

    #[test]
    fn fields_are_written_in_network_byte_order_at_their_place() {
        let mut key = Key::ZERO;
        key.set(Field::EthDst, 0x0102_0304_0506);
        key.set(Field::VlanVid, 0x1064);
        key.set(Field::VlanPcp, 5);
        key.set(Field::IpDscp, 46);
        key.set(Field::IpEcn, 1);
        assert_eq!(key.0[8..14], [1, 2, 3, 4, 5, 6]);
        assert_eq!(key.0[4..6], [0xb0, 0x64]);
        assert_eq!(key.0[7], 46 << 2 | 1);
        assert_eq!((key.get(Field::VlanVid), key.get(Field::VlanPcp)), (0x1064, 5));
        key.set(Field::VlanPcp, 0);
        assert_eq!(key.0[4..6], [0x10, 0x64]);
        assert_eq!(Key::from_words(key.words()), key);
    }

    #[test]
    fn a_field_without_what_it_needs_is_not_listed_and_is_normalised_away() {
        let names = |m: &Match| m.fields().map(|(f, ..)| f.to_string()).collect::<Vec<_>>();
        assert_eq!(names(&web()), ["eth_type", "ip_proto", "tcp_dst"]);
        let mut no_type = web();
        no_type.set(Field::EthType, 0, 0);
        assert_eq!(no_type.normalised(), Match::ANY);
        let arp = Match::ANY.with(Field::EthType, ether_type::ARP).with(Field::ArpOp, 1_u16);
        assert_eq!(names(&arp), ["eth_type", "arp_op"]);
    }

    #[test]
    fn a_prefix_covers_what_is_inside_and_overlaps_what_it_shares() {
        let mut net = Match::ANY.with(Field::EthType, ether_type::IPV4);
        net.set(Field::Ipv4Dst, 0x0a00_0000, 0xff00_0000);
        let host = Match::ANY.with(Field::EthType, ether_type::IPV4).with(Field::Ipv4Dst, 0x0a01_0203_u32);
        assert!(net.covers(&host) && !host.covers(&net) && net.overlaps(&host));
        assert!(net.overlaps(&web()) && !net.covers(&web()));
        assert!(!host.overlaps(&Match::ANY.with(Field::EthType, ether_type::IPV6)));
        assert!(Match::ANY.covers(&net));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(at in 0..FIELDS.len(), value: u128, before: [u8; 16]) {
            let field = FIELDS[at].field;
            let mut key = Key(std::array::from_fn(|i| before[i % 16]));
            let old = key;
            key.set(field, value);
            prop_assert_eq!(key.get(field), value & field.all_bits());
            key.set(field, old.get(field));
            prop_assert_eq!(key, old);
        }
    }
}
