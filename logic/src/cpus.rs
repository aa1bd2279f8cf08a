//! Sets of cores as the kernel writes them: lists ("0-3,8") and masks ("00000001,0000000f").

use std::{collections::BTreeSet, fmt::Write as _, ops::RangeInclusive};

/// Core numbers are below this. Linux cannot be built for more cores (`NR_CPUS_RANGE_END`, arch/x86/Kconfig).
pub const MOST_CORES: u16 = 8192;
/// Bits in one group of a mask. Commas separate groups.
const GROUP_BITS: u16 = 32;

/// Parses a list of cores: numbers and ranges between commas. A blank text is an empty list. Returns `None` if the text
/// is not a list, or names more than [`MOST_CORES`] cores, counting repeated ones.
pub fn parse_list(list: &str) -> Option<BTreeSet<u16>> {
    let mut cores = BTreeSet::new();
    let mut named = 0;
    for range in parts(list) {
        let range = parse_range(range)?;
        named += range.len();
        if named > usize::from(MOST_CORES) {
            return None;
        }
        cores.extend(range);
    }
    Some(cores)
}

fn parse_range(range: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let (first, last) = (parse_core(first)?, parse_core(last)?);
    (first <= last).then_some(first..=last)
}

fn parse_core(number: &str) -> Option<u16> {
    // `parse` would accept a sign.
    let digits = number.bytes().all(|byte| byte.is_ascii_digit());
    number.parse().ok().filter(|&core| digits && core < MOST_CORES)
}

/// Parses a mask of cores: groups of up to eight hexadecimal digits between commas, the highest cores first. Returns
/// `None` if the text is not a mask, or is longer than [`MOST_CORES`] need.
pub fn parse_mask(mask: &str) -> Option<BTreeSet<u16>> {
    let mut cores = BTreeSet::new();
    for (group, digits) in mask.trim().rsplit(',').enumerate() {
        let first = u16::try_from(group).ok()?.checked_mul(GROUP_BITS).filter(|&first| first < MOST_CORES)?;
        let hexadecimal = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let bits = u32::from_str_radix(digits, 16).ok().filter(|_| hexadecimal)?;
        cores.extend((0..GROUP_BITS).filter(|bit| bits >> bit & 1 != 0).map(|bit| first + bit));
    }
    Some(cores)
}

/// The mask of these cores, as [`parse_mask`] reads it. Cores from [`MOST_CORES`] on are left out.
pub fn mask(cores: &BTreeSet<u16>) -> String {
    let cores = || cores.range(..MOST_CORES);
    let mut groups = vec![0u32; 1 + usize::from(cores().next_back().unwrap_or(&0) / GROUP_BITS)];
    for core in cores() {
        groups[usize::from(core / GROUP_BITS)] |= 1 << (core % GROUP_BITS);
    }
    let mut text = String::with_capacity(9 * groups.len());
    for (i, group) in groups.iter().rev().enumerate() {
        let comma = if i == 0 { "" } else { "," };
        let _ = write!(text, "{comma}{group:08x}");
    }
    text
}

/// The list of these cores, as [`parse_list`] reads it: "0-3,8".
pub fn list(cores: &BTreeSet<u16>) -> String {
    let mut text = String::new();
    let mut left = cores.iter().copied().peekable();
    while let Some(first) = left.next() {
        let mut last = first;
        while let Some(next) = left.next_if(|next| *next == last.saturating_add(1)) {
            last = next;
        }
        let comma = if text.is_empty() { "" } else { "," };
        let _ = if first == last {
            write!(text, "{comma}{first}")
        } else {
            write!(text, "{comma}{first}-{last}")
        };
    }
    text
}

/// The parts between commas; none if the text is blank.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let text = text.trim();
    text.split(',').filter(move |_| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists() {
        let table: [(&str, Option<&[u16]>); 13] = [
            ("0-2,5,7-8\n", Some(&[0, 1, 2, 5, 7, 8])),
            ("3", Some(&[3])),
            ("8,0-1", Some(&[0, 1, 8])),
            ("\n", Some(&[])),
            ("8191", Some(&[8191])),
            ("8192", None),
            ("0-8191,0", None),
            ("2-1", None),
            ("a", None),
            ("1-", None),
            ("0-1,", None),
            ("+1", None),
            ("0-4294967295", None),
        ];
        for (text, cores) in table {
            assert_eq!(parse_list(text), cores.map(|cores| cores.iter().copied().collect()), "{text}");
        }
    }

    #[test]
    fn a_list_is_read_as_it_was_written() {
        assert_eq!(list(&[0, 1, 2, 5, 7, 8].into()), "0-2,5,7-8");
        assert_eq!(list(&BTreeSet::new()), "");
        assert_eq!(list(&[65534, 65535].into()), "65534-65535");
        proptest!(|(cores: BTreeSet<u16>)| {
            let cores: BTreeSet<u16> = cores.into_iter().map(|core| core % MOST_CORES).collect();
            prop_assert_eq!(parse_list(&list(&cores)), Some(cores));
        });
    }

    #[test]
    fn masks() {
        let table: [(&str, Option<&[u16]>); 9] = [
            ("3\n", Some(&[0, 1])),
            ("00000000,00000004", Some(&[2])),
            ("80000000,00000000,00000001", Some(&[0, 95])),
            ("0", Some(&[])),
            ("", None),
            ("1,", None),
            ("+1", None),
            ("x", None),
            ("100000000", None),
        ];
        for (text, cores) in table {
            assert_eq!(parse_mask(text), cores.map(|cores| cores.iter().copied().collect()), "{text}");
        }
        assert_eq!(parse_mask(&["1"; 256].join(",")).unwrap().len(), 256);
        assert_eq!(parse_mask(&["1"; 257].join(",")), None);
        assert_eq!(mask(&[0, 95].into()), "80000000,00000000,00000001");
        assert_eq!(mask(&BTreeSet::new()), "00000000");
        assert_eq!(mask(&[1, MOST_CORES].into()), "00000002");
    }

    proptest! {
        #[test]
        fn any_text_parses_or_is_refused_without_a_panic(text in "[0-9a-f,\\- \n+x]{0,60}") {
            for cores in [parse_list(&text), parse_mask(&text)].into_iter().flatten() {
                prop_assert!(cores.len() <= usize::from(MOST_CORES));
            }
        }

        #[test]
        fn a_mask_is_read_as_it_was_written(cores in prop::collection::btree_set(0..MOST_CORES, 0..40)) {
            prop_assert_eq!(parse_mask(&mask(&cores)), Some(cores));
        }
    }
}
