//! ICMP errors from which Linux may learn about a destination ([`logic::learned`]).
//!
//! The kernel plane notes those that come to a port, for each router (`bpf/learned.h`). Sockets of the host's namespace get a
//! copy of those that the host takes in, also by devices that are no ports, out of tunnels, and from workers.

use super::{MAX_ROUTERS, Mapping, Words64, policy::PlaneMaps};
use crate::netlink::{socket::set_option, wire};
use anyhow::{Context, Result};
use libbpf_rs::{MapHandle, RingBufferBuilder};
use logic::plan::RouterId;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, ipproto, recv, socket_with};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::IpAddr,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::{Arc, Mutex, PoisonError, atomic::Ordering::Relaxed},
};

/// Errors of a router that the kernel plane notes, at most, between two looks.
pub const LEARNED_NOTES: u64 = 16;
/// Errors that a socket is read for, at most, in one look.
const READ_AT_ONCE: usize = 64;
/// Destinations of a router that wait for the daemon, at most.
const MOST_WAITING: usize = 64;
/// Bytes of memory that a socket has for errors that were not read yet.
const BUFFER: i32 = 1 << 16;

const UNREACHABLE: u8 = 3;
const FRAGMENTATION_NEEDED: u8 = 4;
const REDIRECT: u8 = 5;
const TOO_BIG6: u8 = 2;
const REDIRECT6: u8 = 137;
/// Of `include/uapi/linux/{icmp,icmpv6}.h`: a bit for each type that is left out.
const ICMP_FILTER: i32 = 1;
const SOL_RAW: i32 = 255;
/// The place of the drops among the words of `SO_MEMINFO` (`include/uapi/linux/sock_diag.h`).
const DROPS: usize = 8;

/// The errors of one router.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Noted {
    pub destinations: BTreeSet<IpAddr>,
    /// Errors that were over a limit.
    pub lost: u64,
}

/// Errors that the daemon has not taken yet, by router. `None`: the host's namespace.
#[derive(Clone, Default)]
pub struct Notes(Arc<Mutex<BTreeMap<Option<RouterId>, Noted>>>);

impl Notes {
    fn with(&self, router: Option<RouterId>, change: impl FnOnce(&mut Noted)) {
        let mut notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(notes.entry(router).or_default());
    }

    fn add(&self, router: Option<RouterId>, destination: IpAddr) {
        self.with(router, |noted| {
            let has_room = noted.destinations.len() < MOST_WAITING;
            if !has_room && !noted.destinations.contains(&destination) {
                noted.lost += 1;
            } else {
                noted.destinations.insert(destination);
            }
        });
    }

    /// Takes in a record of the ring.
    fn add_record(&self, record: &[u8]) {
        let word = |at| wire::u32_at(record, at);
        let (Some(router), Some(family)) = (word(0), word(4)) else { return };
        let (Ok(router), Some(address)) = (RouterId::try_from(router), record.get(8..24)) else { return };
        let address = if family == 4 { &address[..4] } else { address };
        wire::address(address).into_iter().for_each(|destination| self.add(Some(router), destination));
    }

    pub fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    pub fn take(&self) -> BTreeMap<Option<RouterId>, Noted> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Where errors are noted, and where they go.
pub struct Errors {
    ring: MapHandle,
    counts: Words64,
    sockets: Vec<Copies>,
    notes: Notes,
}

impl Errors {
    /// # Errors
    /// There is no descriptor left.
    pub fn open(maps: &PlaneMaps, notes: Notes) -> Result<Errors> {
        let open = |family| {
            Copies::open(family).map_err(|error| {
                tracing::warn!(
                    "ICMP errors that come by devices that are no ports are not followed: {error}"
                );
            })
        };
        Ok(Errors {
            ring: MapHandle::try_from(&maps.learned)?,
            counts: Mapping::new(maps.learned_counts.as_fd(), 8, MAX_ROUTERS)?.into(),
            sockets: [AddressFamily::INET, AddressFamily::INET6].into_iter().flat_map(open).collect(),
            notes,
        })
    }

    /// Calls `look` with a function that takes in all errors since its last call.
    ///
    /// # Errors
    /// The ring cannot be read, or an error of `run`.
    pub fn follow<T>(&self, run: impl FnOnce(&mut dyn FnMut()) -> Result<T>) -> Result<T> {
        let mut ring = RingBufferBuilder::new();
        ring.add(&self.ring, |record| {
            self.notes.add_record(record);
            0
        })?;
        let ring = ring.build().context("reading notes of ICMP errors")?;
        let mut lost = vec![0; self.sockets.len()];
        run(&mut || {
            // The counts bound what is in the ring.
            ring.consume_raw();
            self.count_lost();
            for (socket, lost) in self.sockets.iter().zip(&mut lost) {
                socket.take(&self.notes, lost);
            }
        })
    }

    fn count_lost(&self) {
        for (router, count) in (0..=RouterId::MAX).zip(self.counts.as_slice()) {
            if count.load(Relaxed) > 0 {
                let lost = count.swap(0, Relaxed).saturating_sub(LEARNED_NOTES);
                if lost > 0 {
                    self.notes.with(Some(router), |noted| noted.lost += lost);
                }
            }
        }
    }
}

/// A socket that gets a copy of each error of one family, before the kernel reads it (`raw_local_deliver`, `raw6_local_deliver`).
struct Copies {
    socket: OwnedFd,
    destination: fn(&[u8]) -> Option<IpAddr>,
}

impl Copies {
    fn open(family: AddressFamily) -> io::Result<Copies> {
        let v6 = family == AddressFamily::INET6;
        let protocol = if v6 { ipproto::ICMPV6 } else { ipproto::ICMP };
        let socket = raw(family, protocol)?;
        set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, BUFFER)?;
        if v6 {
            let mut left_out = [u32::MAX; 8];
            for kind in [TOO_BIG6, REDIRECT6] {
                left_out[usize::from(kind / 32)] &= !(1 << (kind % 32));
            }
            set_option(&socket, libc::IPPROTO_ICMPV6, ICMP_FILTER, left_out)?;
        } else {
            set_option(&socket, SOL_RAW, ICMP_FILTER, !(1_u32 << UNREACHABLE | 1 << REDIRECT))?;
        }
        Ok(Copies { socket, destination: if v6 { destination6 } else { destination4 } })
    }

    /// Takes errors in. `lost`: errors for which there was no room, ever.
    fn take(&self, notes: &Notes, lost: &mut u32) {
        // More than any header with the header inside of it.
        let mut packet = [0; 256];
        let mut read = 0;
        while read < READ_AT_ONCE
            && let Ok((bytes, _)) = recv(&self.socket, &mut packet, RecvFlags::DONTWAIT)
        {
            read += 1;
            let destination = (self.destination)(&packet[..bytes.min(packet.len())]);
            destination.into_iter().for_each(|destination| notes.add(None, destination));
        }
        if read > 0
            && let Ok(drops) = drops(&self.socket)
        {
            let more = drops.wrapping_sub(*lost);
            if more > 0 {
                notes.with(None, |noted| noted.lost += u64::from(more));
            }
            *lost = drops;
        }
    }
}

fn raw(family: AddressFamily, protocol: Protocol) -> io::Result<OwnedFd> {
    Ok(socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, Some(protocol))?)
}

/// Packets that the socket had no room for.
fn drops(socket: &OwnedFd) -> io::Result<u32> {
    let mut words = [0_u32; DROPS + 1];
    let mut length = size_of_val(&words) as libc::socklen_t;
    // SAFETY: `words` is writable and `length` is its size.
    let rc = unsafe {
        let to = words.as_mut_ptr().cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_MEMINFO, to, &raw mut length)
    };
    if rc == 0 { Ok(words[DROPS]) } else { Err(io::Error::last_os_error()) }
}

/// The destination of the packet that an IPv4 packet with an ICMP error is about.
pub fn destination4(packet: &[u8]) -> Option<IpAddr> {
    let header = usize::from(packet.first()? & 15) * 4;
    let icmp = packet.get(header..)?;
    let teaches = matches!(icmp.get(..2)?, [UNREACHABLE, FRAGMENTATION_NEEDED] | [REDIRECT, _]);
    teaches.then(|| wire::address(icmp.get(24..28)?)).flatten()
}

/// The same of an ICMPv6 error, without its IPv6 header.
pub fn destination6(icmp: &[u8]) -> Option<IpAddr> {
    match *icmp.first()? {
        TOO_BIG6 => wire::address(icmp.get(32..48)?),
        // Behind the target (RFC 4861 section 4.5).
        REDIRECT6 => wire::address(icmp.get(24..40)?),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    fn address(n: u32) -> IpAddr {
        Ipv4Addr::from_bits(n).into()
    }

    #[test]
    fn a_router_has_room_for_its_own_errors_only() {
        let notes = Notes::default();
        for n in 0..200 {
            notes.add(Some(1), address(n));
            // Repeated errors need no further room.
            notes.add(Some(1), address(0));
        }
        notes.add(Some(2), address(7));
        let mut taken = notes.take();
        let flooded = taken.remove(&Some(1)).unwrap();
        assert_eq!((flooded.destinations.len(), flooded.lost), (MOST_WAITING, 200 - MOST_WAITING as u64));
        assert_eq!(taken, [(Some(2), Noted { destinations: [address(7)].into(), lost: 0 })].into());
        assert!(notes.is_empty());
    }

    #[test]
    fn errors_say_whose_packet_they_are_about() {
        let inner = [&[0x45; 16][..], &[10, 9, 0, 1], &[0; 8]].concat();
        let with = |options: u8, kind: u8, code: u8| {
            let header = vec![0x40 | (5 + options); 20 + usize::from(options) * 4];
            [&header, &[kind, code, 0, 0, 0, 0, 2, 0][..], &inner].concat()
        };
        let to = Some(IpAddr::from([10, 9, 0, 1]));
        assert_eq!(destination4(&with(0, 3, 4)), to);
        assert_eq!(destination4(&with(10, 5, 1)), to);
        assert_eq!(destination4(&with(0, 3, 3)), None, "no port");
        assert_eq!(destination4(&with(0, 3, 4)[..47]), None, "cut off");

        let d = Ipv6Addr::from_bits(9 << 64 | 7);
        let [target, to] = [[0xee; 16], d.octets()];
        let too_big = [&[2, 0, 0, 0, 0, 0, 5, 0][..], &[0x60; 8], &target, &to].concat();
        let redirect = [&[137, 0, 0, 0, 0, 0, 0, 0][..], &target, &to].concat();
        assert_eq!([&too_big, &redirect].map(|icmp| destination6(icmp)), [Some(d.into()); 2]);
        assert_eq!(destination6(&too_big[..47]), None);
        assert_eq!(destination6(&[&[3][..], &too_big[1..]].concat()), None);
    }

    proptest::proptest! {
        #[test]
        fn never_panics(packet in proptest::collection::vec(proptest::num::u8::ANY, 0..80)) {
            let _ = (destination4(&packet), destination6(&packet), Notes::default().add_record(&packet));
        }
    }
}
