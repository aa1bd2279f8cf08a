//! The key with which Linux hashes packets of multipath routes: read from the kernel, and tested against it.
//!
//! On Linux 6.11 and later the key follows from a seed: that of `net.ipv4.fib_multipath_hash_seed`, or a random one for
//! each boot. Before, the key itself is random. No file shows a random key, so a small program reads it
//! (`bpf/multipath_key.bpf.c`). The daemon does not assume that its hash is Linux's. In a namespace of its own it asks
//! the kernel for many routes. If one member differs from the computed one, Linux's choice counts as unknown.

use crate::{
    base::BadValue,
    linux::netlink::{
        INET, rtm,
        socket::Socket,
        wire::{self, Request},
    },
};
use anyhow::{Context, Result, ensure};
use libbpf_rs::{ObjectBuilder, ProgramInput};
use logic::{
    multipath::{hash4, key_of_seed, upper_bounds},
    observe::MultipathKey,
};
use std::{fs, io, str::FromStr, thread};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/multipath_key.bpf.o"));
/// Words of the program's `struct answer`.
const WORDS: usize = 5;

/// Weights of the members that the kernel chooses among. The sum is no power of two, so each bit of a hash counts.
const WEIGHTS: [u8; 7] = [3, 1, 5, 2, 9, 4, 7];
const QUESTIONS: u32 = 48;
/// 198.18.0.0/15, for benchmarks (RFC 2544).
const ASKED: u32 = 0xc612_0000;
/// 10.0.0.0: gateways of the members count up from here.
const GATEWAYS: u32 = 0x0a00_0000;
const LOOPBACK: u32 = 1;

const RTA_DST: u16 = 1;
const RTA_GATEWAY: u16 = 5;
const RTA_MULTIPATH: u16 = 9;
const RTNH_F_ONLINK: u8 = 4;
const NLM_F_CREATE: u16 = 0x400;

/// How next hops of multipath routes are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ecmp {
    /// The fast path chooses, as Linux does. If Linux's key is not known, it uses a key of its own.
    Auto,
    /// The fast path chooses only if it can choose as Linux does. Otherwise the kernel chooses.
    Linux,
}

impl FromStr for Ecmp {
    type Err = BadValue;
    fn from_str(s: &str) -> Result<Self, BadValue> {
        match s {
            "auto" => Ok(Ecmp::Auto),
            "linux" => Ok(Ecmp::Linux),
            _ => Err(BadValue(format!("{s:?} is not allowed: \"auto\" or \"linux\""))),
        }
    }
}

/// The value that Linux uses in a namespace whose seed nobody has set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Secret {
    Seed(u32),
    Key([u64; 2]),
}

/// Keys of this boot.
#[derive(Clone, Copy, Debug, Default)]
pub struct MultipathKeys {
    /// `None`: it cannot be read, or Linux chooses differently from this version.
    secret: Option<Secret>,
    /// The key used if the real one is not known.
    own: Option<[u64; 2]>,
}

impl MultipathKeys {
    /// Reads the keys. If Linux's key is not available, either a key of this machine and boot or the kernel alone
    /// chooses members.
    pub fn read(ecmp: Ecmp) -> MultipathKeys {
        let secret = thread::scope(|scope| scope.spawn(tried_secret).join());
        let secret =
            secret.unwrap_or_else(|_| Err(anyhow::anyhow!("the thread that reads the key panicked")));
        let secret = secret.inspect_err(|error| {
            tracing::warn!(
                "the key with which Linux chooses next hops of multipath routes is unknown: {error:#}"
            );
        });
        let own = (ecmp == Ecmp::Auto).then(of_this_boot).flatten();
        MultipathKeys { secret: secret.ok(), own }
    }

    /// The key of a namespace with this `fib_multipath_hash_seed`; `None`: the kernel has no such setting.
    pub fn of(&self, seed: Option<u32>) -> MultipathKey {
        match (seed, self.secret) {
            (Some(seed @ 1..), Some(Secret::Seed(_))) => MultipathKey::Linux(key_of_seed(seed)),
            (Some(0), Some(Secret::Seed(seed))) => MultipathKey::Linux(key_of_seed(seed)),
            (None, Some(Secret::Key(key))) => MultipathKey::Linux(key),
            _ => self.own.map_or(MultipathKey::Unknown, MultipathKey::Own),
        }
    }
}

/// The same key at each start of the daemon, and another one on each machine: two routers in a row must not choose
/// alike.
fn of_this_boot() -> Option<[u64; 2]> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let id = u128::from_str_radix(&digits, 16).ok()?;
    Some([id as u64, (id >> 64) as u64])
}

/// Reads and tests the key. The calling thread must end afterwards, because it moves to a network namespace of its own.
fn tried_secret() -> Result<Secret> {
    // SAFETY: changes the network namespace of this thread only, which ends with this function.
    ensure!(unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0, io::Error::last_os_error());
    let begun = ask_linux().context("asking the kernel for routes")?;
    let secret = read_secret().context("reading the kernel's key")?;
    let key = match secret {
        Secret::Seed(seed) => key_of_seed(seed),
        Secret::Key(key) => key,
    };
    let bounds = upper_bounds(&WEIGHTS.map(u32::from));
    for (destination, chosen) in begun {
        let hash = hash4(&header(destination), false, key).unwrap_or(u32::MAX);
        let ours = bounds.iter().position(|bound| hash <= *bound);
        ensure!(ours == Some(chosen), "the kernel hashes packets differently from this version of Millrace");
    }
    Ok(secret)
}

fn read_secret() -> Result<Secret> {
    let mut builder = ObjectBuilder::default();
    let object = builder.open_memory(OBJECT)?.load().context("loading the program that reads the key")?;
    let program = object.progs_mut().next().context("the object has no program")?;
    let mut answer = [0u8; WORDS * 8];
    let input = ProgramInput { context_in: Some(&mut answer), ..ProgramInput::default() };
    program.test_run(input).context("running the program that reads the key")?;
    let (words, _) = answer.as_chunks();
    let [has_seed, user_seed, seed, key @ ..] =
        std::array::from_fn::<_, WORDS, _>(|i| u64::from_ne_bytes(words[i]));
    if has_seed == 1 && user_seed == 0 {
        return Ok(Secret::Seed(u32::try_from(seed)?));
    }
    ensure!(
        has_seed == 0 && key != [0; 2],
        "the kernel does not show the key; before Linux 6.11, reading it needs CAP_SYSLOG"
    );
    Ok(Secret::Key(key))
}

/// Destinations, each with the member that the kernel chooses for it.
fn ask_linux() -> Result<Vec<(u32, usize)>> {
    let mut socket = Socket::requests(libc::NETLINK_ROUTE)?;
    let up = [&[0; 4][..], &LOOPBACK.to_ne_bytes(), &[1, 0, 0, 0], &[1, 0, 0, 0]].concat();
    socket.ask(Request::new(rtm::NEWLINK, wire::ACK, &up), |_| None::<()>)?;
    socket.ask(group(), |_| None::<()>)?;
    let mut found = Vec::new();
    for i in 0..QUESTIONS {
        // Odd multipliers reach all bits of an address, including the highest bit of each byte.
        let destination = ASKED | i.wrapping_mul(0x9e37_79b1) >> 15;
        let question = Request::new(rtm::GETROUTE, wire::ACK, &[INET, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let question = question.with(RTA_DST, &destination.to_be_bytes());
        let gateway = socket.ask(question, |message| {
            let mut all = wire::attributes_after(message.payload, 12);
            all.find(|(kind, _)| *kind == RTA_GATEWAY).and_then(|(_, value)| wire::be32_at(value, 0))
        })?;
        let member = gateway
            .and_then(|gateway| gateway.checked_sub(GATEWAYS))
            .context("the answer does not name a gateway")?;
        found.push((destination, member as usize));
    }
    Ok(found)
}

/// The route that the kernel chooses a member of.
fn group() -> Request {
    let member = |(gateway, weight): (u32, u8)| {
        let mut bytes = vec![16, 0, RTNH_F_ONLINK, weight - 1];
        bytes.extend(LOOPBACK.to_ne_bytes());
        bytes.extend([8, 0, RTA_GATEWAY as u8, 0]);
        bytes.extend(gateway.to_be_bytes());
        bytes
    };
    let members: Vec<u8> = (GATEWAYS..).zip(WEIGHTS).flat_map(member).collect();
    Request::new(rtm::NEWROUTE, wire::ACK | NLM_F_CREATE, &route_header(15, 254))
        .with(RTA_DST, &ASKED.to_be_bytes())
        .with(RTA_MULTIPATH, &members)
}

/// `struct rtmsg`: protocol static, scope universe, type unicast.
fn route_header(length: u8, table: u8) -> [u8; 12] {
    [INET, length, 0, 0, table, 4, 0, 1, 0, 0, 0, 0]
}

/// The header of a packet as the kernel assumes it for a request without a source.
fn header(destination: u32) -> [u8; 20] {
    let mut ip = [0; 20];
    ip[0] = 0x45;
    ip[16..].copy_from_slice(&destination.to_be_bytes());
    ip
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_tested_key_counts_as_that_of_linux() {
        let known = MultipathKeys { secret: Some(Secret::Seed(7)), own: Some([1, 2]) };
        assert_eq!(known.of(Some(0)), MultipathKey::Linux(key_of_seed(7)));
        assert_eq!(known.of(Some(9)), MultipathKey::Linux(key_of_seed(9)));
        assert_eq!(known.of(None), MultipathKey::Own([1, 2]), "no such setting, but a seed");
        let before = MultipathKeys { secret: Some(Secret::Key([5, 6])), own: None };
        assert_eq!(before.of(None), MultipathKey::Linux([5, 6]));
        assert_eq!(before.of(Some(3)), MultipathKey::Unknown);
        let unknown = MultipathKeys { secret: None, own: Some([1, 2]) };
        assert_eq!(unknown.of(Some(9)), MultipathKey::Own([1, 2]), "a hash that is not Linux's");
        assert_eq!(MultipathKeys::default().of(Some(9)), MultipathKey::Unknown);
    }

    #[test]
    fn each_start_finds_the_same_key_of_this_boot() {
        let key = of_this_boot().unwrap();
        assert_ne!(key, [0; 2]);
        assert_eq!(of_this_boot(), Some(key));
    }

    #[test]
    #[ignore = "needs root"]
    fn linux_chooses_the_computed_members() {
        let secret = thread::spawn(tried_secret).join().unwrap();
        assert!(secret.is_ok(), "{secret:?}");
        let keys = MultipathKeys::read(Ecmp::Linux);
        let seed = fs::read_to_string("/proc/sys/net/ipv4/fib_multipath_hash_seed").ok();
        let seed = seed.map(|text| text.trim().parse().unwrap());
        assert!(matches!(keys.of(seed), MultipathKey::Linux(_)), "{keys:?}");
    }
}
