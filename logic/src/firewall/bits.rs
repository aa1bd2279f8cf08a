//! Bytes of which some bits are known, and three-valued comparisons of them.

use super::ruleset::{Comparison, REGISTER_BYTES, Register};
use std::cmp::Ordering;

/// An answer about packets of which not everything is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Yes,
    No,
    /// Yes for some packets and no for others, as far as is known.
    Maybe,
}

impl Answer {
    pub fn of(yes: bool) -> Answer {
        if yes { Answer::Yes } else { Answer::No }
    }

    pub fn opposite(self) -> Answer {
        match self {
            Answer::Yes => Answer::No,
            Answer::No => Answer::Yes,
            Answer::Maybe => Answer::Maybe,
        }
    }

    pub fn and(self, other: Answer) -> Answer {
        match (self, other) {
            (Answer::No, _) | (_, Answer::No) => Answer::No,
            (Answer::Yes, Answer::Yes) => Answer::Yes,
            _ => Answer::Maybe,
        }
    }

    /// The opposite answer if `inverted`.
    pub fn inverted(self, inverted: bool) -> Answer {
        if inverted { self.opposite() } else { self }
    }
}

/// Up to 64 bytes. A bit that is not known is 0 in `value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bits {
    value: [u8; REGISTER_BYTES],
    known: [u8; REGISTER_BYTES],
    length: usize,
}

impl Bits {
    /// `length` unknown bytes, at most as many as the registers hold.
    pub fn unknown(length: usize) -> Bits {
        Bits { value: [0; REGISTER_BYTES], known: [0; REGISTER_BYTES], length: length.min(REGISTER_BYTES) }
    }

    /// Known bytes.
    pub fn known(bytes: &[u8]) -> Bits {
        let mut bits = Bits::unknown(bytes.len());
        bits.put(0, bytes);
        bits
    }

    /// Sets known bytes from offset `at` on. Bytes beyond the end are ignored.
    pub fn put(&mut self, at: usize, bytes: &[u8]) {
        for (i, byte) in bytes.iter().enumerate() {
            self.put_masked(at + i, *byte, 0xff);
        }
    }

    /// Makes the bits of `mask` known in byte `at`.
    pub fn put_masked(&mut self, at: usize, byte: u8, mask: u8) {
        if at < self.length {
            self.value[at] = self.value[at] & !mask | byte & mask;
            self.known[at] |= mask;
        }
    }

    pub fn bytes(&self) -> usize {
        self.length
    }

    /// The bytes from `at` on; unknown where there are none.
    pub fn part(&self, at: usize, length: usize) -> Bits {
        let mut part = Bits::unknown(length);
        for i in 0..part.length.min(self.length.saturating_sub(at)) {
            (part.value[i], part.known[i]) = (self.value[at + i], self.known[at + i]);
        }
        part
    }

    pub fn is_known(&self) -> bool {
        self.known[..self.length].iter().all(|known| *known == 0xff)
    }

    /// The lowest and the highest value that it can have.
    fn bounds(&self) -> ([u8; REGISTER_BYTES], [u8; REGISTER_BYTES]) {
        let mut highest = self.value;
        for (byte, known) in highest.iter_mut().zip(self.known) {
            *byte |= !known;
        }
        (self.value, highest)
    }

    /// `(self & mask) ^ xor`. A mask is as long as these bytes.
    pub fn masked(&self, mask: &[u8], xor: &[u8]) -> Bits {
        let mut bits = Bits::unknown(self.length);
        for i in 0..self.length {
            let (mask, xor) = (mask.get(i).copied().unwrap_or(0), xor.get(i).copied().unwrap_or(0));
            // A bit that the mask clears is known to be that of `xor`.
            bits.known[i] = self.known[i] | !mask;
            bits.value[i] = (self.value[i] & mask ^ xor) & bits.known[i];
        }
        bits
    }

    /// The bytes in reverse within each unit.
    pub fn swapped(&self, unit: usize) -> Bits {
        let mut bits = *self;
        if unit > 0 {
            bits.value[..self.length].chunks_exact_mut(unit).for_each(<[u8]>::reverse);
            bits.known[..self.length].chunks_exact_mut(unit).for_each(<[u8]>::reverse);
        }
        bits
    }

    /// What is known of a value that is one of the two.
    pub fn join(&self, other: &Bits) -> Bits {
        let mut bits = Bits::unknown(self.length.min(other.length));
        for i in 0..bits.length {
            bits.known[i] = self.known[i] & other.known[i] & !(self.value[i] ^ other.value[i]);
            bits.value[i] = self.value[i] & bits.known[i];
        }
        bits
    }

    /// As `memcmp` of as many bytes as `value` has.
    pub fn compare(&self, by: Comparison, value: &[u8]) -> Answer {
        if value.len() > self.length {
            return Answer::Maybe;
        }
        let differs = (0..value.len()).any(|i| (self.value[i] ^ value[i]) & self.known[i] != 0);
        let same = !differs && self.part(0, value.len()).is_known();
        let equal = match (differs, same) {
            (true, _) => Answer::No,
            (_, true) => Answer::Yes,
            _ => Answer::Maybe,
        };
        let (lowest, highest) = self.bounds();
        let (lowest, highest) = (lowest[..value.len()].cmp(value), highest[..value.len()].cmp(value));
        match by {
            Comparison::Equal => equal,
            Comparison::Unequal => equal.opposite(),
            Comparison::Less => below(lowest, highest),
            Comparison::GreaterOrEqual => below(lowest, highest).opposite(),
            Comparison::Greater => above(lowest, highest),
            Comparison::LessOrEqual => above(lowest, highest).opposite(),
        }
    }

    /// How its first bytes, which are known, compare with `value`.
    pub fn order(&self, value: &[u8]) -> Ordering {
        self.value[..value.len().min(self.length)].cmp(value)
    }

    /// Is it between the two, both included?
    pub fn between(&self, low: &[u8], high: &[u8]) -> Answer {
        self.compare(Comparison::GreaterOrEqual, low).and(self.compare(Comparison::LessOrEqual, high))
    }

    /// Is any of the bits of `mask` set? Both have the same length.
    pub fn any_of(&self, mask: &[u8]) -> Answer {
        let bits = self.masked(mask, &[]);
        let set = (0..bits.length).any(|i| bits.value[i] != 0);
        match (set, bits.is_known()) {
            (true, _) => Answer::Yes,
            (_, true) => Answer::No,
            _ => Answer::Maybe,
        }
    }
}

/// What is known of a packet's mark. Unlike [`Bits`], it takes little room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark {
    value: u32,
    known: u32,
}

impl Mark {
    pub fn unknown() -> Mark {
        Mark { value: 0, known: 0 }
    }

    pub fn known(mark: u32) -> Mark {
        Mark { value: mark, known: u32::MAX }
    }

    /// The mark whose bytes these are.
    pub fn of(bits: &Bits) -> Mark {
        let word = |bytes: &[u8; REGISTER_BYTES]| u32::from_ne_bytes(std::array::from_fn(|i| bytes[i]));
        Mark { value: word(&bits.value), known: word(&bits.known) }
    }

    pub fn bits(self) -> Bits {
        let mut bits = Bits::unknown(4);
        for (i, (byte, mask)) in
            self.value.to_ne_bytes().into_iter().zip(self.known.to_ne_bytes()).enumerate()
        {
            bits.put_masked(i, byte, mask);
        }
        bits
    }

    /// `(self & keep) ^ flip`
    pub fn changed(self, keep: u32, flip: u32) -> Mark {
        let known = self.known | !keep;
        Mark { value: (self.value & keep ^ flip) & known, known }
    }

    /// What is known of a mark that is one of the two.
    pub fn join(self, other: Mark) -> Mark {
        let known = self.known & other.known & !(self.value ^ other.value);
        Mark { value: self.value & known, known }
    }
}

fn below(lowest: Ordering, highest: Ordering) -> Answer {
    match (lowest, highest) {
        (_, Ordering::Less) => Answer::Yes,
        (Ordering::Equal | Ordering::Greater, _) => Answer::No,
        _ => Answer::Maybe,
    }
}

fn above(lowest: Ordering, highest: Ordering) -> Answer {
    match (lowest, highest) {
        (Ordering::Greater, _) => Answer::Yes,
        (_, Ordering::Less | Ordering::Equal) => Answer::No,
        _ => Answer::Maybe,
    }
}

/// The registers of a rule.
#[derive(Clone, Copy, Debug)]
pub struct Registers(Bits);

impl Registers {
    pub fn unknown() -> Registers {
        Registers(Bits::unknown(REGISTER_BYTES))
    }

    /// Stores a value, as the kernel does: it fills the last word with zeros.
    pub fn store(&mut self, into: Register, bits: &Bits) {
        let at = usize::from(into.0);
        for i in 0..bits.length.next_multiple_of(4) {
            let (value, known) = if i < bits.length { (bits.value[i], bits.known[i]) } else { (0, 0xff) };
            if at + i < REGISTER_BYTES {
                (self.0.value[at + i], self.0.known[at + i]) = (value, known);
            }
        }
    }

    pub fn load(&self, from: Register, bytes: usize) -> Bits {
        self.0.part(usize::from(from.0), bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases;
    use proptest::prelude::*;

    fn holds(by: Comparison, order: Ordering) -> bool {
        match by {
            Comparison::Equal => order.is_eq(),
            Comparison::Unequal => order.is_ne(),
            Comparison::Less => order.is_lt(),
            Comparison::LessOrEqual => order.is_le(),
            Comparison::Greater => order.is_gt(),
            Comparison::GreaterOrEqual => order.is_ge(),
        }
    }

    /// Bits with the given mask of `value`.
    fn bits(value: &[u8], known: &[u8]) -> Bits {
        let mut bits = Bits::unknown(value.len());
        for (i, (value, known)) in value.iter().zip(known).enumerate() {
            bits.put_masked(i, *value, *known);
        }
        bits
    }

    fn expected(some: bool, all: bool) -> Answer {
        match (some, all) {
            (_, true) => Answer::Yes,
            (false, _) => Answer::No,
            _ => Answer::Maybe,
        }
    }

    /// All values that two bytes with these known bits can have.
    fn values(value: [u8; 2], known: [u8; 2]) -> Vec<[u8; 2]> {
        let mask = u16::from_be_bytes(known);
        let wanted = u16::from_be_bytes(value) & mask;
        (0..=u16::MAX).filter(|v| v & mask == wanted).map(u16::to_be_bytes).collect()
    }

    proptest! {
        #![proptest_config(cases(60))]

        /// Each answer is right for every value that the known bits allow, and no less definite than possible for
        /// comparisons with one bound.
        #[test]
        fn comparisons_agree_with_all_values(
            value: [u8; 2], known: [u8; 2], with: [u8; 2], high: [u8; 2], mask: [u8; 2], xor: [u8; 2],
        ) {
            let unsure = bits(&value, &known);
            let all = values(value, known);
            for by in Comparison::ALL {
                let count = all.iter().filter(|v| holds(by, v[..].cmp(&with))).count();
                prop_assert_eq!(unsure.compare(by, &with), expected(count > 0, count == all.len()), "{:?}", by);
            }
            let count = all.iter().filter(|v| (with..=high).contains(*v)).count();
            match unsure.between(&with, &high) {
                Answer::Yes => prop_assert_eq!(count, all.len()),
                Answer::No => prop_assert_eq!(count, 0),
                Answer::Maybe => (),
            }
            let set = all.iter().filter(|v| v[0] & mask[0] | v[1] & mask[1] != 0).count();
            prop_assert_eq!(unsure.any_of(&mask), expected(set > 0, set == all.len()));

            let masked = unsure.masked(&mask, &xor);
            let of = |v: &[u8; 2]| [v[0] & mask[0] ^ xor[0], v[1] & mask[1] ^ xor[1]];
            let swapped = unsure.swapped(2);
            for i in 0..2 {
                for bit in 0..8 {
                    let first = of(&all[0])[i] >> bit & 1;
                    let same = all.iter().all(|v| of(v)[i] >> bit & 1 == first);
                    prop_assert_eq!(masked.known[i] >> bit & 1 == 1, same);
                    if same {
                        prop_assert_eq!(masked.value[i] >> bit & 1, first);
                    }
                }
                prop_assert_eq!(swapped.value[i], unsure.value[1 - i]);
            }
            let joined = unsure.join(&Bits::known(&with));
            prop_assert_eq!(joined.compare(Comparison::Unequal, &with) == Answer::Yes, false);
            prop_assert_eq!(joined.compare(Comparison::Unequal, &all[0]) == Answer::Yes, false);
        }
    }

    #[test]
    fn registers_hold_words_and_fill_them_with_zeros() {
        let mut registers = Registers::unknown();
        registers.store(Register(4), &Bits::known(&[1, 2]));
        assert_eq!(registers.load(Register(4), 4), Bits::known(&[1, 2, 0, 0]));
        assert_eq!(registers.load(Register(2), 4), bits(&[0, 0, 1, 2], &[0, 0, 255, 255]));
        // Nothing that lies outside is read or written.
        registers.store(Register(62), &Bits::known(&[7; 16]));
        assert_eq!(registers.load(Register(60), 64).part(0, 4), bits(&[0, 0, 7, 7], &[0, 0, 255, 255]));
        assert_eq!(registers.load(Register(255), 8), Bits::unknown(8));
        assert_eq!(Bits::known(&[1; 80]).bytes(), REGISTER_BYTES);
        // A comparison with more than is there can go either way.
        assert_eq!(Bits::known(&[1]).compare(Comparison::Equal, &[1, 2]), Answer::Maybe);
    }
}
