//! Reads the rules of legacy iptables, and translates them into the terms of nf_tables.
//!
//! A table is a block of entries (`struct ipt_entry`, `include/uapi/linux/netfilter_ipv4/ip_tables.h`, and the same for
//! IPv6). Each chain is a run of them, and a jump is the offset of its first entry. Asking for a table creates it, so
//! only those that exist are asked for.

use super::{
    netlink::{
        socket::set_option,
        wire::{text, u16_at, u32_at},
    },
    nftables::expression,
};
use logic::firewall::{
    ruleset::{
        Base, Chain, Comparison, Devices, Expression, Extension, Family, Header, Hook, Register, Rule, Table,
        Verdict,
    },
    traffic::Version,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
};

/// `IPT_SO_GET_INFO`, `IPT_SO_GET_ENTRIES`; IPv6 has the same numbers.
const GET_INFO: i32 = 64;
const GET_ENTRIES: i32 = 65;
/// `struct ipt_getinfo`, and the head of `struct ipt_get_entries`.
const INFO_BYTES: usize = 84;
const ENTRIES_HEAD: usize = 40;
const NAME_BYTES: usize = 32;
/// The mark of our own socket. The program that watches queries of others ignores it (`bpf/policy.bpf.c`).
const OUR_MARK: u32 = 0x4d69_6c6c;
/// Longer tables are not read.
const MOST_BYTES: usize = 4 << 20;
/// How often a table that changes meanwhile is read before Millrace gives up.
const ATTEMPTS: usize = 5;

const NAMES: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];

/// Reads all tables of the calling thread's namespace.
///
/// # Errors
/// `InvalidData`: a table has a format that this version does not know. `QuotaExceeded`: it is too long.
/// `Interrupted`: it changes faster than it can be read.
pub fn read(version: Version) -> io::Result<Vec<Table>> {
    names(version)?.lines().map(|name| read_table(version, name)).collect()
}

/// May the calling thread's namespace have any table?
pub fn is_used() -> bool {
    [Version::V4, Version::V6]
        .into_iter()
        .any(|version| names(version).map_or(true, |names| !names.is_empty()))
}

/// The names of the tables, in lines.
fn names(version: Version) -> io::Result<String> {
    let file = match version {
        Version::V4 => "/proc/thread-self/net/ip_tables_names",
        Version::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    match fs::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        other => other,
    }
}

fn read_table(version: Version, name: &str) -> io::Result<Table> {
    let socket = socket(version)?;
    for _ in 0..ATTEMPTS {
        let mut info = vec![0; INFO_BYTES];
        put_name(&mut info, name);
        get(&socket, version, GET_INFO, &mut info)?;
        let size = u32_at(&info, INFO_BYTES - 4).unwrap_or(0) as usize;
        if size > MOST_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::QuotaExceeded,
                format!("the table {name} is too long"),
            ));
        }
        let mut entries = vec![0; ENTRIES_HEAD + size];
        put_name(&mut entries, name);
        entries[NAME_BYTES..NAME_BYTES + 4].copy_from_slice(&(size as u32).to_ne_bytes());
        match get(&socket, version, GET_ENTRIES, &mut entries) {
            // The table was replaced since.
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => continue,
            other => other?,
        }
        let table = parse(version, name, &info, &entries[ENTRIES_HEAD..]);
        return table.ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, format!("the table {name} is unknown"))
        });
    }
    Err(io::Error::new(io::ErrorKind::Interrupted, "the table changes faster than it can be read"))
}

fn put_name(block: &mut [u8], name: &str) {
    let length = name.len().min(NAME_BYTES - 1);
    block[..length].copy_from_slice(&name.as_bytes()[..length]);
}

fn socket(version: Version) -> io::Result<OwnedFd> {
    let family = if version == Version::V4 { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: a plain system call.
    let fd = unsafe { libc::socket(family, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::IPPROTO_RAW) };
    match fd {
        0.. => {
            // SAFETY: the descriptor is new and nobody else's.
            let socket = unsafe { OwnedFd::from_raw_fd(fd) };
            // Without the right to mark sockets, a reading counts as a change, which costs another reading.
            let _ = set_option(&socket, libc::SOL_SOCKET, libc::SO_MARK, OUR_MARK);
            Ok(socket)
        }
        _ => Err(io::Error::last_os_error()),
    }
}

fn get(socket: &OwnedFd, version: Version, option: i32, block: &mut [u8]) -> io::Result<()> {
    let level = if version == Version::V4 { libc::SOL_IP } else { libc::SOL_IPV6 };
    let mut length = block.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to the block, which is as long.
    let rc = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, option, block.as_mut_ptr().cast(), &raw mut length)
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Offsets in an entry of one version.
struct Layout {
    address_bytes: usize,
    /// The kernel masks the rule's address, too, not only the packet's.
    masks_both: bool,
    /// Where the source stands in the packet, and the destination.
    in_packet: [u32; 2],
    protocol: usize,
    flags: usize,
    inverted: usize,
    target: usize,
    head: usize,
    goto: u8,
    /// Flags that enable a condition: on the protocol, on fragments, on the traffic class.
    protocol_flag: u8,
    fragment: u8,
    class: u8,
}

const V4: Layout = Layout {
    address_bytes: 4,
    masks_both: false,
    in_packet: [12, 16],
    protocol: 80,
    flags: 82,
    inverted: 83,
    target: 88,
    head: 112,
    goto: 2,
    protocol_flag: 0,
    fragment: 1,
    class: 0,
};

const V6: Layout = Layout {
    address_bytes: 16,
    masks_both: true,
    in_packet: [8, 24],
    protocol: 128,
    flags: 131,
    inverted: 132,
    target: 140,
    head: 168,
    goto: 4,
    protocol_flag: 1,
    fragment: 0,
    class: 2,
};

/// `struct xt_entry_match` and `struct xt_entry_target` begin alike: length, name, revision.
const EXTENSION_HEAD: usize = 32;

/// One entry of a table.
struct Entry<'a> {
    at: usize,
    next: usize,
    bytes: &'a [u8],
    target: &'a [u8],
}

/// A table as the kernel gives it; `None`: it is not what this version knows.
pub(crate) fn parse(version: Version, name: &str, info: &[u8], entries: &[u8]) -> Option<Table> {
    let layout = if version == Version::V4 { &V4 } else { &V6 };
    let valid_hooks = u32_at(info, 32)?;
    if u32_at(info, INFO_BYTES - 4)? as usize != entries.len() {
        return None;
    }
    let mut all = Vec::new();
    let mut at = 0;
    while at < entries.len() {
        let next = at + usize::from(u16_at(entries, at + layout.target + 2)?);
        let target = at + usize::from(u16_at(entries, at + layout.target)?);
        let bytes = entries.get(at..next).filter(|bytes| bytes.len() >= layout.head + EXTENSION_HEAD)?;
        let target = entries.get(target..next).filter(|_| target >= at + layout.head)?;
        all.push(Entry { at, next, bytes, target });
        at = next;
    }
    // The name of the chain that begins at an offset.
    let mut begins: BTreeMap<usize, String> = BTreeMap::new();
    let (mut bases, mut policies) = (BTreeMap::new(), BTreeSet::new());
    for (hook, chain) in NAMES.iter().enumerate().filter(|(hook, _)| valid_hooks >> hook & 1 == 1) {
        let entry = u32_at(info, 36 + 4 * hook)? as usize;
        let policy = u32_at(info, 56 + 4 * hook)? as usize;
        if begins.insert(entry, (*chain).to_owned()).is_some() {
            return None;
        }
        policies.insert(policy);
        let policy = all.iter().find(|entry| entry.at == policy)?;
        bases.insert((*chain).to_owned(), base(name, hook, verdict_of(policy)? == ACCEPT));
    }
    for entry in all.iter().filter(|entry| target_name(entry) == "ERROR") {
        begins.insert(entry.next, text(entry.target.get(EXTENSION_HEAD..)?));
    }
    let family = if version == Version::V4 { Family::Iptables } else { Family::Ip6tables };
    let mut table = Table {
        family,
        name: name.to_owned(),
        dormant: false,
        chains: BTreeMap::new(),
        sets: BTreeMap::new(),
    };
    let mut current: Option<String> = None;
    for entry in &all {
        if let Some(name) = begins.get(&entry.at) {
            current = Some(name.clone());
            let base = bases.get(name).cloned().flatten();
            table.chains.insert(name.clone(), Chain { base, rules: Vec::new() });
        }
        if target_name(entry) == "ERROR" {
            current = None;
            continue;
        }
        if policies.contains(&entry.at) {
            current = None;
            continue;
        }
        let chain = table.chains.get_mut(current.as_ref()?)?;
        let handle = chain.rules.len() as u64 + 1;
        chain.rules.push(Rule { handle, expressions: rule(layout, entry, &begins)? });
    }
    Some(table)
}

fn base(table: &str, hook: usize, accepts: bool) -> Option<Base> {
    let place = match hook {
        0 => Hook::Prerouting,
        2 => Hook::Forward,
        4 => Hook::Postrouting,
        _ => return None,
    };
    let priority = match (table, place) {
        ("raw", _) => -300,
        ("mangle", _) => -150,
        ("nat", Hook::Prerouting) => -100,
        ("nat", _) => 100,
        ("security", _) => 50,
        _ => 0,
    };
    Some(Base { hook: place, priority, nat: table == "nat", accepts, devices: Devices::All })
}

fn target_name(entry: &Entry<'_>) -> String {
    text(entry.target.get(2..31).unwrap_or_default())
}

/// Verdicts of the standard target: below 0 a verdict, else the offset of a chain.
const DROP: i32 = -1;
const ACCEPT: i32 = -2;
const RETURN: i32 = -5;

/// The verdict of a standard target.
fn verdict_of(entry: &Entry<'_>) -> Option<i32> {
    target_name(entry).is_empty().then_some(u32_at(entry.target, EXTENSION_HEAD)? as i32)
}

fn rule(layout: &Layout, entry: &Entry<'_>, begins: &BTreeMap<usize, String>) -> Option<Vec<Expression>> {
    let mut steps = conditions(layout, entry.bytes)?;
    let mut at = layout.head;
    let target = entry.bytes.len() - entry.target.len();
    while at < target {
        let length = usize::from(u16_at(entry.bytes, at)?);
        let one = entry.bytes.get(at..at + length).filter(|_| at + length <= target)?;
        let info = one.get(EXTENSION_HEAD..)?.to_vec();
        let name = text(&one[2..31]);
        steps.push(Expression::Match(Extension { name, revision: one[31].into(), info }));
        at += length;
    }
    let goto = entry.bytes[layout.flags] & layout.goto != 0;
    steps.push(match (target_name(entry).as_str(), verdict_of(entry)) {
        (name, None) => {
            let revision = u32::from(*entry.target.get(EXTENSION_HEAD - 1)?);
            expression::target(name, revision, entry.target.get(EXTENSION_HEAD..)?)
        }
        (_, Some(DROP)) => Expression::Verdict(Verdict::Drop),
        (_, Some(ACCEPT)) => Expression::Verdict(Verdict::Accept),
        (_, Some(RETURN)) => Expression::Verdict(Verdict::Return),
        // A rule without a target goes on with the next one.
        (_, Some(next)) if next as usize == entry.next && !goto => Expression::Count,
        (_, Some(chain @ 0..)) => {
            let name = begins.get(&(chain as usize))?.clone();
            Expression::Verdict(if goto { Verdict::Goto(name) } else { Verdict::Jump(name) })
        }
        _ => Expression::Verdict(Verdict::Other),
    });
    Some(steps)
}

/// The conditions in the head of an entry.
fn conditions(layout: &Layout, entry: &[u8]) -> Option<Vec<Expression>> {
    const IN: u8 = 1;
    const OUT: u8 = 2;
    const SOURCE: u8 = 8;
    const DESTINATION: u8 = 16;
    const FRAGMENT: u8 = 32;
    const PROTOCOL: u8 = 64;
    let register = Register(0);
    let (flags, inverted) = (entry[layout.flags], entry[layout.inverted]);
    let compare = |value: &[u8], flag| {
        let by = if inverted & flag == 0 { Comparison::Equal } else { Comparison::Unequal };
        Expression::Compare { from: register, by, value: value.to_vec() }
    };
    let mut steps = Vec::new();
    for (i, flag) in [SOURCE, DESTINATION].into_iter().enumerate() {
        let part = |n: usize| entry.get(n * layout.address_bytes..(n + 1) * layout.address_bytes);
        let (address, mask) = (part(i)?, part(i + 2)?);
        if mask.iter().all(|byte| *byte == 0) && inverted & flag == 0 {
            continue;
        }
        let (offset, bytes) = (layout.in_packet[i], layout.address_bytes as u32);
        steps.push(Expression::Payload { header: Header::Network, offset, bytes, into: register });
        let (mask, xor) = (mask.to_vec(), vec![0; layout.address_bytes]);
        steps.push(Expression::Mask { from: register, into: register, mask, xor });
        let masked = |(byte, mask): (&u8, &u8)| if layout.masks_both { byte & mask } else { *byte };
        steps.push(compare(&address.iter().zip(part(i + 2)?).map(masked).collect::<Vec<_>>(), flag));
    }
    for (i, (key, flag)) in [(6, IN), (7, OUT)].into_iter().enumerate() {
        let names = 4 * layout.address_bytes;
        let name = entry.get(names + 16 * i..names + 16 * (i + 1))?;
        let mask = entry.get(names + 32 + 16 * i..names + 32 + 16 * (i + 1))?;
        let length = mask.iter().take_while(|byte| **byte == 0xff).count();
        if mask[length..].iter().any(|byte| *byte != 0) {
            return None;
        }
        if length > 0 || inverted & flag != 0 {
            steps.push(Expression::Meta { key, into: register });
            steps.push(compare(&name[..length], flag));
        }
    }
    let protocol = u16_at(entry, layout.protocol)?;
    if protocol != 0 && (layout.protocol_flag == 0 || flags & layout.protocol_flag != 0) {
        steps.push(Expression::Meta { key: 16, into: register });
        steps.push(compare(&[u8::try_from(protocol).ok()?], PROTOCOL));
    }
    // No fragment is forwarded past the rules.
    if flags & layout.fragment != 0 && inverted & FRAGMENT == 0 {
        steps.push(Expression::Verdict(Verdict::Break));
    }
    if flags & layout.class != 0 {
        steps.push(Expression::Maybe("class of traffic".into()));
    }
    Some(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of this input, as the kernel gave it:
    ///
    ///     :FORWARD DROP
    ///     -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
    ///     -A FORWARD -i lan -s 10.0.0.0/8 -p tcp -m tcp --dport 80 -j c
    ///     -A FORWARD ! -o w+ -g c
    ///     -A c -j RETURN
    ///     -A c -m mark --mark 5
    ///     -A c -j LOG
    const SEED: &[u8] = include_bytes!("../../../fuzz/seeds/xtables/filter");

    #[test]
    fn a_table_of_the_kernel_is_translated() {
        let table = parse(Version::V4, "filter", &SEED[..INFO_BYTES], &SEED[INFO_BYTES..]).unwrap();
        let names: Vec<_> = table.chains.keys().map(String::as_str).collect();
        assert_eq!((names, table.name.as_str()), (vec!["FORWARD", "INPUT", "OUTPUT", "c"], "filter"));
        let forward = &table.chains["FORWARD"];
        let base = forward.base.as_ref().unwrap();
        assert_eq!((base.hook, base.priority, base.nat, base.accepts), (Hook::Forward, 0, false, false));
        assert!(["INPUT", "OUTPUT", "c"].iter().all(|name| table.chains[*name].base.is_none()));
        let is_match =
            |step: &Expression, wanted: &str| matches!(step, Expression::Match(m) if m.name == wanted);
        let register = Register(0);
        let compare = |by, value: &[u8]| Expression::Compare { from: register, by, value: value.into() };
        let [first, second, third] = &forward.rules[..] else { panic!("{forward:?}") };
        assert_eq!((first.handle, second.handle, third.handle), (1, 2, 3));
        assert!(is_match(&first.expressions[0], "conntrack"), "{first:?}");
        assert_eq!(first.expressions[1..], [Expression::Verdict(Verdict::Accept)]);
        let (conditions, rest) = second.expressions.split_at(7);
        assert_eq!(
            conditions,
            [
                Expression::Payload { header: Header::Network, offset: 12, bytes: 4, into: register },
                Expression::Mask {
                    from: register,
                    into: register,
                    mask: vec![255, 0, 0, 0],
                    xor: vec![0; 4]
                },
                compare(Comparison::Equal, &[10, 0, 0, 0]),
                Expression::Meta { key: 6, into: register },
                compare(Comparison::Equal, b"lan\0"),
                Expression::Meta { key: 16, into: register },
                compare(Comparison::Equal, &[6]),
            ]
        );
        assert!(is_match(&rest[0], "tcp"), "{rest:?}");
        assert_eq!(rest[1..], [Expression::Verdict(Verdict::Jump("c".into()))]);
        assert_eq!(
            third.expressions,
            [
                Expression::Meta { key: 7, into: register },
                compare(Comparison::Unequal, b"w"),
                Expression::Verdict(Verdict::Goto("c".into())),
            ]
        );
        // Each chain ends with a rule that returns.
        let [returns, marked, logs, end] = &table.chains["c"].rules[..] else { panic!("{table:?}") };
        assert_eq!(end.expressions, returns.expressions);
        assert_eq!(returns.expressions, [Expression::Verdict(Verdict::Return)]);
        assert!(is_match(&marked.expressions[0], "mark"), "{marked:?}");
        assert_eq!(marked.expressions[1..], [Expression::Count]);
        assert_eq!(logs.expressions, [Expression::Other("-j LOG".into())]);
    }

    #[test]
    fn a_table_that_is_cut_short_or_of_another_version_is_unknown() {
        for length in INFO_BYTES..SEED.len() {
            let cut = &SEED[..length];
            assert_eq!(
                parse(Version::V4, "filter", &cut[..INFO_BYTES], &cut[INFO_BYTES..]),
                None,
                "{length}"
            );
        }
        assert_eq!(parse(Version::V6, "filter", &SEED[..INFO_BYTES], &SEED[INFO_BYTES..]), None);
        let mut endless = SEED.to_vec();
        endless[INFO_BYTES + V4.target + 2..INFO_BYTES + V4.target + 4].fill(0);
        assert_eq!(parse(Version::V4, "filter", &endless[..INFO_BYTES], &endless[INFO_BYTES..]), None);
    }
}
