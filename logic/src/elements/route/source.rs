//! Validates sources like Linux: `check_source` and `look_at_source` of `bpf/ipv4.h`, `bad_source6` of `bpf/ipv6.h`.

use super::super::{check::IPV4, packet::Packet};
use crate::{
    fib::{self, Kind},
    memory::{Memory, words},
    reason::Reason,
    tables::{
        RouterRow, choose,
        encoding::{
            FLAG_LOCAL, FLAG_UNICAST, IF_ACCEPT_LOCAL, IF_LOOK_AT_SOURCES, IF_RPF_LOOSE, IF_RPF_STRICT,
        },
        nexthop,
    },
};

#[inline]
pub(super) fn check4(
    memory: &impl Memory,
    router: RouterRow<'_>,
    packet: &Packet<'_>,
    source: u32,
) -> Result<(), Reason> {
    if is_martian(source) {
        return Err(Reason::BadSource);
    }
    if needs_a_look(router, packet.ingress.flags, source) {
        look(memory, router, packet, source)
    } else {
        Ok(())
    }
}

/// The source of an IPv4 header, in host byte order.
#[inline]
pub(super) fn of(ip: &[u8; IPV4]) -> u32 {
    u32::from_be_bytes([ip[12], ip[13], ip[14], ip[15]])
}

/// Whether it needs neither refusal nor a lookup, on an interface with these flags.
#[inline]
pub(super) fn is_usual(router: RouterRow<'_>, flags: u8, source: u32) -> bool {
    !is_martian(source) && !needs_a_look(router, flags, source)
}

#[inline]
fn needs_a_look(router: RouterRow<'_>, flags: u8, source: u32) -> bool {
    flags & (IF_RPF_LOOSE | IF_RPF_STRICT | IF_LOOK_AT_SOURCES) != 0 || router.maybe_local(source)
}

/// Whether Linux refuses it on every interface (`ip_route_input_slow`): 0/8, 127/8, multicast, limited broadcast.
#[inline]
fn is_martian(source: u32) -> bool {
    let top = source >> 24;
    top == 0 || top == 127 || top & 0xf0 == 0xe0 || source == u32::MAX
}

/// Looks up the source. It must not be ours, and with reverse path filtering it must lead back (RFC 3704,
/// `fib_validate_source`).
#[cold]
fn look(memory: &impl Memory, router: RouterRow<'_>, packet: &Packet<'_>, source: u32) -> Result<(), Reason> {
    let flags = packet.ingress.flags;
    let (filtered, strict) = (flags & (IF_RPF_LOOSE | IF_RPF_STRICT) != 0, flags & IF_RPF_STRICT != 0);
    let mut leaf = fib::lookup(memory, router.root4(), source);
    let group = leaf.kind() == Kind::Group;
    if group {
        // Any member is enough, because strict mode leaves groups to the kernel.
        let block = memory.fib().get(leaf.index() as usize * words::FIB_BLOCK..);
        leaf = choose(block.unwrap_or_default(), 0);
    }
    let hop = nexthop(memory, leaf.index()).filter(|hop| hop.reason() != Reason::MapFull);
    let hop = hop.ok_or(Reason::SourceUnsure)?;
    if hop.has(FLAG_LOCAL) {
        // Linux refuses some only sometimes. `accept_local` lets some pass.
        let unsure = flags & IF_ACCEPT_LOCAL != 0
            || hop.reason() == Reason::LocalPrefix
            || hop.reason() == Reason::Broadcast && !filtered;
        return Err(if unsure { Reason::SourceUnsure } else { Reason::BadSource });
    }
    if !filtered {
        return Ok(());
    }
    if matches!(hop.reason(), Reason::ComplexRoute | Reason::LearnedPath) || group && strict {
        return Err(Reason::SourceUnsure);
    }
    let elsewhere = strict && hop.interface() != packet.ingress.interface;
    if !hop.has(FLAG_UNICAST) || elsewhere { Err(Reason::ReversePath) } else { Ok(()) }
}

/// Sources that `ip6_rcv_core` and `ip6_forward` refuse: unspecified, loopback, multicast, link-local.
#[inline]
pub(super) fn check6(source: u128) -> Result<(), Reason> {
    let bad = source >> 120 == 0xff || source >> 118 == 0xfe80 >> 6 || source <= 1;
    if bad { Err(Reason::BadSource) } else { Ok(()) }
}
