//! Routes to load and destinations to send to: prefixes from a file, or generated ones with the prefix lengths of the
//! Internet's tables.

use std::{
    collections::HashSet,
    io::Read,
    net::IpAddr,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use logic::net::{Address, Prefix, Prefix4, Prefix6};

use crate::command;

/// Prefix lengths, and how many of 10,000 prefixes have them: the 901,899 IPv4 prefixes of github.com/gaissmai/bart
/// v0.30.0.
const MIX4: [(u8, u32); 13] = [
    (24, 5968),
    (22, 1204),
    (23, 1070),
    (21, 563),
    (20, 472),
    (19, 276),
    (18, 153),
    (16, 150),
    (17, 91),
    (15, 23),
    (14, 13),
    (32, 10),
    (13, 7),
];
/// The same for its 160,147 IPv6 prefixes.
const MIX6: [(u8, u32); 17] = [
    (48, 4714),
    (32, 1408),
    (44, 897),
    (40, 838),
    (36, 374),
    (29, 273),
    (47, 197),
    (46, 190),
    (33, 183),
    (34, 163),
    (42, 144),
    (38, 101),
    (45, 97),
    (39, 86),
    (35, 65),
    (43, 63),
    (41, 207),
];

/// A small random generator with a seed, good enough for test traffic (splitmix64, Steele et al. 2014).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in 0..limit; limit is not 0.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.bits() % limit as u64) as usize
    }
}

/// Prefixes of both families, in an order that mixes them well: the first n are a fair sample.
#[derive(Clone, Debug, Default)]
pub struct Prefixes {
    /// IPv4.
    pub v4: Vec<Prefix4>,
    /// IPv6.
    pub v6: Vec<Prefix6>,
    /// Where they come from, for the record.
    pub source: String,
}

/// The prefix list of the project's developers, if it exists: at the path in `MILLRACE_PREFIXES`, or beside the
/// repository.
pub fn default_file() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/internet-prefixes.txt.gz");
    std::env::var_os("MILLRACE_PREFIXES")
        .map(PathBuf::from)
        .into_iter()
        .chain([beside])
        .find(|path| path.exists())
}

/// `count4` IPv4 and `count6` IPv6 prefixes from `file`, filled up with generated ones where it has too few.
pub fn prefixes(file: Option<&Path>, count4: usize, count6: usize) -> Result<Prefixes> {
    let mut list = match file {
        Some(file) => read(file)?,
        None => Prefixes { source: "generated".into(), ..Prefixes::default() },
    };
    let mut random = Random(2026);
    shuffle(&mut list.v4, &mut random);
    shuffle(&mut list.v6, &mut random);
    if file.is_some() && (list.v4.len() < count4 || list.v6.len() < count6) {
        list.source =
            format!("{} ({} IPv4, {} IPv6), rest generated", list.source, list.v4.len(), list.v6.len());
    }
    // Unicast space that the testbed itself does not use: 11.0.0.0 to 223.255.255.255 except 127/8, and 2000::/3.
    fill(&mut list.v4, count4, &MIX4, || {
        let address = 0x0b00_0000 + (random.bits() as u32) % (0xe000_0000 - 0x0b00_0000);
        (address >> 24 != 127).then_some(address)
    });
    fill(&mut list.v6, count6, &MIX6, || Some(u128::from(0x2000_0000_0000_0000 | random.bits() >> 3) << 64));
    Ok(list)
}

fn shuffle<T>(list: &mut [T], random: &mut Random) {
    for i in (1..list.len()).rev() {
        list.swap(i, random.below(i + 1));
    }
}

fn fill<A: Address>(
    list: &mut Vec<Prefix<A>>,
    count: usize,
    mix: &[(u8, u32)],
    mut address: impl FnMut() -> Option<A>,
) {
    list.truncate(count);
    let mut seen: HashSet<_> = list.iter().copied().collect();
    let mut random = Random(list.len() as u64);
    let total: u32 = mix.iter().map(|(_, weight)| weight).sum();
    while list.len() < count {
        let Some(address) = address() else { continue };
        let mut at = random.below(total as usize) as u32;
        let length = mix.iter().find(|(_, weight)| at.checked_sub(*weight).map(|rest| at = rest).is_none());
        let prefix = length.and_then(|(length, _)| Prefix::new(address, *length));
        list.extend(prefix.filter(|prefix| seen.insert(*prefix)));
    }
}

fn read(file: &Path) -> Result<Prefixes> {
    let context = || format!("prefix list {}", file.display());
    let text = if file.extension().is_some_and(|extension| extension == "gz") {
        command::run(Command::new("gzip").arg("-dc").arg(file)).with_context(context)?
    } else {
        let mut text = String::new();
        std::fs::File::open(file)
            .and_then(|mut file| file.read_to_string(&mut text))
            .with_context(context)?;
        text
    };
    let mut list = Prefixes {
        source: file.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        ..Prefixes::default()
    };
    for (number, line) in (1..).zip(text.lines().map(str::trim)).filter(|(_, line)| !line.is_empty()) {
        let prefix = line.split_once('/').and_then(|(a, l)| Some((a.parse().ok()?, l.parse::<u8>().ok()?)));
        let parsed = match prefix {
            Some((IpAddr::V4(a), length)) => {
                Prefix::new(a.to_bits(), length).map(|prefix| list.v4.push(prefix))
            }
            Some((IpAddr::V6(a), length)) => {
                Prefix::new(a.to_bits(), length).map(|prefix| list.v6.push(prefix))
            }
            None => None,
        };
        ensure!(
            parsed.is_some(),
            "{}, line {number}: {line:?} is not a prefix such as 192.0.2.0/24 or 2001:db8::/32",
            file.display()
        );
    }
    Ok(list)
}

/// `count` different addresses inside these prefixes (fewer only if the prefixes do not hold as many).
pub fn destinations<A: Address>(
    prefixes: &[Prefix<A>],
    count: usize,
    seed: u64,
    from_bits: impl Fn(u128) -> A,
) -> Vec<A> {
    let mut random = Random(seed);
    let mut seen = HashSet::new();
    let mut list = Vec::with_capacity(count);
    let tries = if prefixes.is_empty() { 0 } else { count.saturating_mul(20) };
    for _ in 0..tries {
        if list.len() == count {
            break;
        }
        let prefix = prefixes[random.below(prefixes.len())];
        let noise = u128::from(random.bits()) << 64 | u128::from(random.bits());
        let host_bits = A::BITS - prefix.length();
        let host = noise & 1u128.checked_shl(host_bits.into()).unwrap_or(0).wrapping_sub(1);
        let network = prefix.address().left_aligned() >> (128 - u32::from(A::BITS));
        let address = from_bits(network | host);
        if seen.insert(address) {
            list.push(address);
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_prefixes_are_distinct_and_have_the_mix() {
        let list = prefixes(None, 20_000, 5_000).unwrap();
        assert_eq!((list.v4.len(), list.v6.len()), (20_000, 5_000));
        assert_eq!(list.v4.iter().collect::<HashSet<_>>().len(), 20_000);
        let slash24 = list.v4.iter().filter(|prefix| prefix.length() == 24).count();
        assert!((11_000..13_000).contains(&slash24), "{slash24}");
        assert!(list.v6.iter().all(|prefix| prefix.address() >> 125 == 1));
    }

    #[test]
    fn a_line_that_is_no_prefix_is_reported_with_its_number() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "192.0.2.0/24\n\n2001:db8::/32\n192.0.2.1\n").unwrap();
        let error = prefixes(Some(file.path()), 1, 1).unwrap_err().to_string();
        let why = "line 4: \"192.0.2.1\" is not a prefix such as 192.0.2.0/24 or 2001:db8::/32";
        assert!(error.ends_with(why), "{error}");
    }

    #[test]
    fn destinations_are_inside_and_distinct() {
        let list = prefixes(None, 1000, 1000).unwrap();
        let addresses = destinations(&list.v4, 4096, 1, |bits| bits as u32);
        assert_eq!(addresses.iter().collect::<HashSet<_>>().len(), 4096);
        assert!(addresses.iter().all(|&address| list.v4.iter().any(|prefix| prefix.contains(address))));
        let addresses = destinations(&list.v6, 4096, 1, |bits| bits);
        assert!(addresses.iter().all(|&address| list.v6.iter().any(|prefix| prefix.contains(address))));
        let one = Prefix4::new(0x0102_0304, 32).unwrap();
        assert_eq!(destinations(&[one], 5, 1, |bits| bits as u32), [0x0102_0304]);
    }
}
