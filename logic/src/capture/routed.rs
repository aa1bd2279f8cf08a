//! Can routing alone make a packet match a filter that it did not match before? If not, the program does not run the filter
//! again on packets that are only routed (`bpf/capture.h`).
//!
//! Plain routing of a packet without tags changes its MAC addresses, its TTL or hop limit, and the checksum of an IPv4 header, and
//! cuts off padding. A filter that needs cut bytes does not match afterwards.

use super::filter::{Classic, code, next};
use std::ops::Range;

/// Where the type of an untagged frame is, and where its IP header begins.
const TYPE: u32 = 12;
const IP: u32 = 14;
const IPV4: u32 = 0x800;
const IPV6: u32 = 0x86dd;
/// Bytes that routing changes: the MAC addresses, and the TTL and checksum of IPv4, or the hop limit of IPv6.
const CHANGED4: [Range<u64>; 3] = [0..12, 22..23, 24..26];
const CHANGED6: [Range<u64>; 2] = [0..12, 21..22];

/// What is known of A, of X and of the packet before an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    /// A holds the type of the frame.
    type_in_a: bool,
    is_ipv4: bool,
    is_ipv6: bool,
    /// X is 0, or the length of an IPv4 header.
    x: bool,
}

impl Known {
    /// What two ways to an instruction have in common.
    fn and(self, other: Option<Known>) -> Known {
        let Some(other) = other else { return self };
        Known {
            type_in_a: self.type_in_a && other.type_in_a,
            is_ipv4: self.is_ipv4 && other.is_ipv4,
            is_ipv6: self.is_ipv6 && other.is_ipv6,
            x: self.x && other.x,
        }
    }

    fn after(self, i: &Classic) -> Known {
        let class = i.code & 7;
        let is_misc = class == code::MISC;
        Known {
            type_in_a: match class {
                code::LD => i.code == LOAD_HALF && i.k == TYPE,
                code::ALU => false,
                code::MISC => self.type_in_a && i.code & 0xf8 == 0,
                _ => self.type_in_a,
            },
            x: match class {
                code::LDX => i.code & 0xe0 == HEADER_LENGTH && i.k == IP && self.is_ipv4,
                _ => self.x && !(is_misc && i.code & 0xf8 == 0),
            },
            ..self
        }
    }
}

/// `ldh [k]`
const LOAD_HALF: u16 = 0x28;
/// `jeq #k`
const JUMP_EQUAL: u16 = 0x15;
/// Modes of loads: a fixed place, a place behind X, the length of the frame, and that of an IPv4 header (`ldxb 4*([k]&0xf)`).
const FIXED: u16 = 0x20;
const BEHIND_X: u16 = 0x40;
const LENGTH: u16 = 0x80;
const HEADER_LENGTH: u16 = 0xa0;

/// Can the filter match a packet as it leaves, although it did not match the packet as it came in? The packet has no tags, and is
/// only routed. `true` if unsure.
pub fn can_match_later(filter: &[Classic]) -> bool {
    let mut known: Vec<Option<Known>> = vec![None; filter.len() + 1];
    known[0] = Some(Known { type_in_a: false, is_ipv4: false, is_ipv6: false, x: true });
    for (at, i) in filter.iter().enumerate() {
        let Some(now) = known[at] else { continue };
        if reads_changed(now, i) {
            return true;
        }
        let asks_type = now.type_in_a && i.code == JUMP_EQUAL;
        for (way, to) in next(at, i).into_iter().enumerate() {
            let is_type = |k| asks_type && way == 0 && i.k == k;
            if asks_type && way == 0 && ![IPV4, IPV6].contains(&i.k) {
                continue;
            }
            let then = Known {
                is_ipv4: now.is_ipv4 || is_type(IPV4),
                is_ipv6: now.is_ipv6 || is_type(IPV6),
                ..now.after(i)
            };
            let Some(old) = known.get_mut(to) else { return true };
            *old = Some(then.and(*old));
        }
    }
    false
}

fn reads_changed(known: Known, i: &Classic) -> bool {
    if !matches!(i.code & 7, code::LD | code::LDX) {
        return false;
    }
    let size = match i.code & 0x18 {
        0 => 4,
        0x08 => 2,
        _ => 1,
    };
    let from = u64::from(i.k);
    let is_in = |bytes: &Range<u64>| from < bytes.end && bytes.start < from + size;
    let is_changed =
        || (!known.is_ipv6 && CHANGED4.iter().any(is_in)) || (!known.is_ipv4 && CHANGED6.iter().any(is_in));
    match i.code & 0xe0 {
        FIXED | HEADER_LENGTH => is_changed(),
        // With a header's length in X (at least 20) and k from 12 on, this reads behind all that changes. The bytes at k itself are
        // those for X = 0.
        BEHIND_X => !known.x || is_changed(),
        LENGTH => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
