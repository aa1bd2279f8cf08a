//! `esp_encrypt`: encrypts packets as ESP (RFC 4303, RFC 4106), also in UDP if the SA uses UDP (RFC 3948).
//!
//! - **Input**: IP packets whose headers `check` has checked.
//! - **Output**: in tunnel mode, a packet of ours around the whole packet. In transport mode, the same packet with its
//!   payload encrypted. The Ethernet header and tags stay in front. It is another packet: its headers are known, its
//!   next hop is not (`route` may find it), and if it goes up, it goes up encrypted. The outer header has TTL 64 and
//!   DSCP and ECN of the inner one (RFC 4301 section 5.1.2.1, RFC 6040 normal mode). The SA sets DF. The identification
//!   is the low bits of the sequence number.
//! - **Dropped**, before anything is written and without using a sequence number: `no_sa`, `policy` (not within the
//!   SA's selectors), `not_whole` (transport mode: a fragment, or IPv6 extension headers), `over_mtu` (longer than the
//!   SA's MTU after encryption), `no_room`, `sequence_exhausted`, `sequence_unreserved`. `not_sealed`: the library did
//!   not encrypt the packet. Its number is used up.
//!
//! Packets that must not leave unencrypted never go up, also not from elements before this one (`clear.rs`:
//! `in_clear`).
//!
//! | parameter | meaning |
//! |---|---|
//! | `sa` | the name of the SA |
//!
//! - **Counts**, besides: `bytes` of the IP packets that arrived and were encrypted. `near_end`: packets that were sent
//!   with less than an eighth of all sequence numbers left, when it is time for another key.

mod tunnel4;

use super::{
    Batch, Contract, Counters, Element, Known, Now,
    check::{ETHERNET, IPV4, IPV6},
    packet::{Family, Headers, Loss, Packet, Verdict},
};
use crate::esp::{self, Ends, Job, Mode, NoNumber, Outbound, SaTable, Selectors, TAG, View};
use std::{
    any::Any,
    mem,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::Range,
    sync::Arc,
};
use tunnel4::Tunnel4;

/// The length of text, padding and trailer is a multiple of this (RFC 4303 section 2.4).
const ALIGNMENT: usize = 4;
/// IPv4: flags and fragment offset.
const DONT_FRAGMENT: u8 = 0x40;
const FRAGMENT: u16 = 0x3fff;

/// See the head of this file.
pub struct EspEncrypt {
    name: String,
    view: View,
    sa: Option<Arc<Outbound>>,
    /// Memory that each run uses again.
    jobs: Vec<Job<'static>>,
    sent: Sent,
}

#[derive(Clone, Copy, Default)]
struct Sent {
    bytes: u64,
    near_end: u64,
}

impl EspEncrypt {
    /// Uses the SA that has this name in the table.
    pub fn new(table: Arc<SaTable>, name: &str) -> Self {
        let view = View::new(table);
        EspEncrypt { name: name.into(), view, sa: None, jobs: Vec::new(), sent: Sent::default() }
    }
}

/// An empty vector for other packets, in the same memory.
pub(super) fn emptied<'b>(mut jobs: Vec<Job<'_>>) -> Vec<Job<'b>> {
    jobs.clear();
    jobs.into_iter().map_while(|_| None).collect()
}

impl Element for EspEncrypt {
    fn name(&self) -> &'static str {
        "esp_encrypt"
    }

    fn contract(&self) -> Contract {
        let forgets = Known::NEXT_HOP | Known::WRITTEN;
        Contract {
            needs: Known::HEADERS,
            gives: Known::HEADERS,
            forgets,
            encrypts: true,
            ..Contract::default()
        }
    }

    #[inline]
    fn refresh(&mut self) {
        if let Some(sas) = self.view.renew() {
            self.sa = sas.outbound(&self.name).cloned();
        }
    }

    fn run(&mut self, _: &Now, batch: &mut Batch<'_>, counters: &mut Counters) {
        self.refresh();
        let Some(sa) = self.sa.as_deref() else {
            return batch.each(counters, |_| Some(Verdict::Drop(Loss::NoSa)));
        };
        let taken = sa.sequence.take(batch.going() as u64);
        let usual = Tunnel4::new(sa);
        let mut jobs = emptied(mem::take(&mut self.jobs));
        let (mut number, mut bytes) = (taken.start, 0);
        let of_batch = sa.jobs.of_batch();
        batch.gather(counters, Packet::ask_for_ends, |packet| {
            let length = u64::from(packet.headers.bytes);
            let text = if let Some(usual) = usual.as_ref().filter(|_| number < taken.end)
                && let Some(place) = usual.place(packet)
            {
                usual.write(packet, &place, number)
            } else {
                match write(sa, packet, number..taken.end) {
                    Ok(text) => packet.data_mut().get_mut(text..).unwrap_or_default(),
                    Err(loss) => return Some((packet, Verdict::Drop(loss))),
                }
            };
            jobs.push(of_batch.job(number.to_be_bytes(), number, text));
            number += 1;
            bytes += length;
            None
        });
        self.sent.bytes += bytes;
        self.sent.near_end += number.saturating_sub(taken.start.max(sa.soft + 1));
        let all = sa.aead.seal(&mut jobs);
        debug_assert_eq!(all, jobs.iter().all(|job| job.is_right));
        let sealed = (!all).then(|| jobs.iter().map(|job| job.is_right).collect::<Vec<_>>());
        self.jobs = emptied(jobs);
        sa.sequence.give_back(number..taken.end);
        if let Some(sealed) = sealed {
            let mut sealed = sealed.into_iter();
            let lost = Some(Verdict::Drop(Loss::NotSealed));
            batch.each(counters, |_| if sealed.next() == Some(true) { None } else { lost });
        }
        // In transport mode, the IP header is that of the packet itself.
        if sa.udp.is_some() && (sa.mode == Mode::Transport || matches!(sa.ends, Ends::V6 { .. })) {
            batch.each(counters, |packet| {
                if packet.headers.family == Family::V6 {
                    esp::udp6_checksum(packet.ip_mut());
                }
                None
            });
        }
    }

    fn counted(&self) -> Vec<(&'static str, u64)> {
        vec![("bytes", self.sent.bytes), ("near_end", self.sent.near_end)]
    }

    /// The SA in the table keeps the sequence numbers, so only the counts continue.
    fn kept(&self) -> Option<&dyn Any> {
        Some(&self.sent)
    }

    fn go_on_from(&mut self, kept: &dyn Any) {
        self.sent = kept.downcast_ref().copied().unwrap_or(self.sent);
    }
}

/// The layout of the new packet. Positions are in the frame.
struct Layout {
    /// The Ethernet header, tags, and the IP header that stays in front of ESP. These bytes move.
    moved: Range<usize>,
    ethernet: usize,
    /// Lengths of the IP header in front of ESP and of the UDP header.
    ip: usize,
    udp: usize,
    /// The position of the part to encrypt, and its length.
    inner: usize,
    payload: usize,
    /// The number of padding bytes.
    padding: usize,
    next: u8,
    tos: u8,
    dont_fragment: bool,
}

fn layout(sa: &Outbound, packet: &Packet<'_>) -> Result<Layout, Loss> {
    let Headers { family, ip: at, bytes, .. } = packet.headers;
    let (at, bytes) = (usize::from(at), usize::from(bytes));
    let whole = packet.ip().get(..bytes).ok_or(Loss::NotWhole)?;
    let (tos, dont_fragment, fixed, tunnelled) = match family {
        Family::V4 => {
            let header = whole.first_chunk::<IPV4>().ok_or(Loss::NotWhole)?;
            (header[1], header[6] & DONT_FRAGMENT != 0, IPV4, esp::PROTO_IPV4)
        }
        Family::V6 => {
            let header = whole.first_chunk::<IPV6>().ok_or(Loss::NotWhole)?;
            (header[0] << 4 | header[1] >> 4, true, IPV6, esp::PROTO_IPV6)
        }
        Family::Unknown => return Err(Loss::NotWhole),
    };
    if !admits(&sa.selectors, whole) {
        return Err(Loss::Policy);
    }
    let udp = if sa.udp.is_some() { esp::UDP } else { 0 };
    let ethernet =
        at.checked_sub(packet.head_room()).filter(|bytes| *bytes >= ETHERNET).ok_or(Loss::NotWhole)?;
    let frame_start = at - ethernet;
    let (ip, kept, next) = match sa.mode {
        Mode::Tunnel => (sa.outer.bytes - udp, 0, tunnelled),
        Mode::Transport => (fixed, fixed, carried(family, whole).ok_or(Loss::NotWhole)?),
    };
    let payload = bytes - kept;
    let padding = (payload + esp::TRAILER).next_multiple_of(ALIGNMENT) - payload - esp::TRAILER;
    let inner = at + kept;
    Ok(Layout {
        moved: frame_start..inner,
        ethernet,
        ip,
        udp,
        inner,
        payload,
        padding,
        next,
        tos,
        dont_fragment,
    })
}

/// The protocol that a whole packet carries directly after its IP header.
fn carried(family: Family, whole: &[u8]) -> Option<u8> {
    if family == Family::V4 {
        let header = whole.first_chunk::<IPV4>()?;
        return (u16::from_be_bytes([header[6], header[7]]) & FRAGMENT == 0).then_some(header[9]);
    }
    // The extension headers of RFC 8200 section 4, and mobility, HIP and shim6.
    let next = whole.first_chunk::<IPV6>()?[6];
    (!matches!(next, 0 | 43 | 44 | 51 | 60 | 135 | 139 | 140)).then_some(next)
}

/// Whether this packet matches the selectors (RFC 4301 sections 5.1 and 5.2).
#[inline]
pub(super) fn admits(selectors: &Selectors, ip: &[u8]) -> bool {
    selectors.is_any() || addresses(ip).is_some_and(|(from, to)| selectors.has(from, to))
}

/// The source and destination.
pub(super) fn addresses(ip: &[u8]) -> Option<(IpAddr, IpAddr)> {
    if ip.first()? >> 4 == 4 {
        let header = ip.first_chunk::<IPV4>()?;
        let of = |at| header.get(at..).and_then(|bytes: &[u8]| bytes.first_chunk::<4>());
        return Some((Ipv4Addr::from(*of(12)?).into(), Ipv4Addr::from(*of(16)?).into()));
    }
    let header = ip.first_chunk::<IPV6>()?;
    let of = |at| header.get(at..).and_then(|bytes: &[u8]| bytes.first_chunk::<16>());
    Some((Ipv6Addr::from(*of(8)?).into(), Ipv6Addr::from(*of(24)?).into()))
}

/// Writes everything except the encryption, with the first of these numbers. Returns where in the data the text begins.
/// The tag is at its end.
#[inline(never)]
fn write(sa: &Outbound, packet: &mut Packet<'_>, numbers: Range<u64>) -> Result<usize, Loss> {
    let layout = layout(sa, packet)?;
    let Layout { ethernet, ip, udp, inner, payload, padding, tos, dont_fragment, .. } = layout;
    let front = ethernet + ip + udp + esp::HEADER + esp::IV;
    let text = payload + padding + esp::TRAILER;
    let total = front - ethernet + text + TAG;
    if total > sa.mtu {
        return Err(Loss::OverMtu);
    }
    if numbers.is_empty() {
        return Err(match sa.sequence.why() {
            NoNumber::Exhausted => Loss::SequenceExhausted,
            NoNumber::Unreserved => Loss::SequenceUnreserved,
        });
    }
    let number = numbers.start;
    let old = layout.moved.start;
    let start = inner.checked_sub(front).ok_or(Loss::NoRoom)?;
    if !packet.end_at(Some(inner + text + TAG)) || !packet.begin_at(Some(start)) {
        return Err(Loss::NoRoom);
    }
    let data = packet.data_mut();
    forth(data, old - start, layout.moved.len());
    let (headers, rest) = data.split_at_mut_checked(front).ok_or(Loss::NoRoom)?;
    let (headers, iv) = headers.split_last_chunk_mut::<{ esp::IV }>().ok_or(Loss::NoRoom)?;
    let (headers, header) = headers.split_last_chunk_mut::<{ esp::HEADER }>().ok_or(Loss::NoRoom)?;
    *iv = number.to_be_bytes();
    let (spi, low) = header.split_at_mut(4);
    spi.copy_from_slice(&sa.spi.to_be_bytes());
    low.copy_from_slice(&(number as u32).to_be_bytes());
    // The bytes after the trailer are for the tag, which is written later.
    let trailer = rest.get_mut(payload..).and_then(|rest| rest.first_chunk_mut::<5>()).ok_or(Loss::NoRoom)?;
    *trailer = TRAILERS[padding & 3];
    trailer[(padding & 3) + 1] = layout.next;
    let outer = headers.get_mut(ethernet..).ok_or(Loss::NoRoom)?;
    let family = match sa.mode {
        Mode::Tunnel => {
            if !sa.outer.write(outer, total as u16, tos, dont_fragment, number as u16) {
                return Err(Loss::NoRoom);
            }
            if let Some(kind) = headers.get_mut(ethernet - 2..ethernet) {
                kind.copy_from_slice(&sa.outer.kind);
            }
            if ip == IPV4 { Family::V4 } else { Family::V6 }
        }
        Mode::Transport => {
            let proto = if udp == 0 { esp::PROTO_ESP } else { UDP };
            let (header, behind) = outer.split_at_mut_checked(ip).ok_or(Loss::NoRoom)?;
            readdress(header, total as u16, proto);
            if !sa.outer.write_udp(behind, (total - ip) as u16) {
                return Err(Loss::NoRoom);
            }
            packet.headers.family
        }
    };
    let destination = match (sa.mode, sa.ends) {
        (Mode::Tunnel, Ends::V4 { remote, .. }) => remote.to_bits(),
        (Mode::Tunnel, Ends::V6 { .. }) => 0,
        (Mode::Transport, _) => packet.headers.destination,
    };
    // In transport mode the source address does not change.
    let is_ours = sa.mode == Mode::Tunnel || packet.headers.is_ours;
    packet.renew(Headers {
        family,
        ip: (start + ethernet) as u16,
        bytes: total as u16,
        destination,
        is_ours,
    });
    Ok(front)
}

/// Moves `bytes` bytes from `from` to the beginning. Nearly all Ethernet headers have no tags and so a constant length;
/// moving them is not a call.
#[inline]
fn forth(data: &mut [u8], from: usize, bytes: usize) {
    if bytes == ETHERNET
        && let Some(header) = data.get(from..).and_then(|data| data.first_chunk::<ETHERNET>()).copied()
        && let Some(place) = data.first_chunk_mut::<ETHERNET>()
    {
        *place = header;
    } else if let Some(end) = from.checked_add(bytes).filter(|end| *end <= data.len()) {
        data.copy_within(from..end, 0);
    }
}

/// IP protocol of UDP.
const UDP: u8 = crate::flow::field::ip_proto::UDP;

/// Padding of 0 to 3 bytes (RFC 4303 section 2.4), its length, and a place for the next header.
const TRAILERS: [[u8; 5]; 4] = [[0, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 2, 2, 0, 0], [1, 2, 3, 3, 0]];

/// Writes another length and protocol to an IP header.
pub(super) fn readdress(header: &mut [u8], total: u16, proto: u8) {
    if let Ok(header) = <&mut [u8; IPV4]>::try_from(&mut *header) {
        [header[2], header[3]] = total.to_be_bytes();
        header[9] = proto;
        [header[10], header[11]] = [0, 0];
        [header[10], header[11]] = esp::checksum(header).to_be_bytes();
    } else if let Some(header) = header.first_chunk_mut::<IPV6>() {
        [header[4], header[5]] = total.saturating_sub(IPV6 as u16).to_be_bytes();
        header[6] = proto;
    }
}
