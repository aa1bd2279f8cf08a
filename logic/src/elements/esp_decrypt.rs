//! `esp_decrypt`: decrypts ESP packets (RFC 4303, RFC 4106), also in UDP if the SA uses UDP (RFC 3948).
//!
//! - **Input**: IP packets whose headers `check` has checked.
//! - **Output**: the inner packet, after the Ethernet header and tags of the outer one. In tunnel mode this is the
//!   inner packet without traffic flow padding and with the congestion marks of RFC 6040 section 4.2. In transport mode
//!   it is the packet with its decrypted payload. It is another packet, and nothing is known about it yet, so `check`
//!   must follow. If `check` or `route` passes it up, the kernel gets the decrypted packet.
//! - **Up**: packets that are not for an SA of this element, unchanged, as `local`. Before an element that encrypts,
//!   only packets for an address of its SAs go up, and others are dropped as `in_clear`. The counts name the cause:
//!   `not_esp`, `fragments` (Linux reassembles them), `unknown_spi` (also if the destination or UDP is not that of the
//!   SA), `ike` (the non-ESP marker), `keepalives` (one byte 0xff).
//! - **Counts**, besides: `reordered`, packets that were accepted and have a right tag, but a number below an earlier
//!   one.
//! - **Dropped** before decryption: `truncated`; `oversized` (longer than the SA's `mtu`); `too_old` and `replayed`, by
//!   the window. The window is checked again, exactly, after decryption.
//! - **Dropped** after decryption: `bad_tag` (changed, or from another key: AES-GCM cannot distinguish these);
//!   `bad_padding`, `dummy`, `bad_inner` (not of the SA's mode, or incomplete), `policy` (not within the SA's
//!   selectors), `congested` (RFC 6040: marked, but the flow does not use marks).
//!
//! | parameter | meaning |
//! |---|---|
//! | `sas` | names of the SAs |
//!
//! In transport mode in UDP, the checksums of the inner packet stay as they are (RFC 3948 section 3.1.2 c). Use tunnel
//! mode behind a NAT.

use super::{
    Batch, Contract, Counters, Element, Known, Now,
    check::{ETHERNET, IPV4, IPV6},
    esp_encrypt::{addresses, admits, emptied, readdress},
    packet::{Family, Headers, Loss, Packet, Verdict},
};
use crate::{
    esp::{self, Inbound, Job, Mode, SaTable, Stale, TAG, View},
    flow::checksum::fold,
    flow::field::{ether_type, ip_proto},
    reason::Reason,
};
use rustc_hash::FxHashMap;
use std::{any::Any, mem, net::IpAddr, sync::Arc};

const FRAGMENT: u16 = 0x3fff;
/// Codepoints in the low bits of TOS and traffic class (RFC 3168).
const NOT_ECT: u8 = 0;
const ECT1: u8 = 1;
const ECT0: u8 = 2;
const CE: u8 = 3;

/// See the head of this file.
pub struct EspDecrypt {
    names: Vec<String>,
    view: View,
    sas: Sas,
    /// Memory that each run uses again. The n-th elements of both belong to one packet.
    jobs: Vec<Job<'static>>,
    found: Vec<FoundSa>,
    counts: [u64; COUNTS.len()],
}

/// The SAs of this element.
#[derive(Default)]
struct Sas {
    all: Vec<Arc<Inbound>>,
    by_spi: FxHashMap<u32, u16>,
    /// Our addresses, without duplicates.
    locals: Vec<IpAddr>,
    /// Our ports for ESP in UDP.
    ports: Vec<u16>,
}

/// Why a packet is not for this element, as [`EspDecrypt::counts`] counts it.
#[derive(Clone, Copy)]
enum Up {
    NotEsp,
    Fragment,
    UnknownSpi,
    Ike,
    Keepalive,
}
/// The names of the counts: why packets are not for this element, and packets that were late.
const COUNTS: [&str; 6] = ["not_esp", "fragments", "unknown_spi", "ike", "keepalives", "reordered"];
const REORDERED: usize = 5;

enum Not {
    Ours(Up),
    Right(Loss),
}

/// An ESP packet.
struct FoundSa {
    sa: u16,
    number: u64,
    /// Positions in the data: the IP header, the ESP header, the text, and the tag.
    ip: u16,
    esp: u16,
    text: u16,
    tag: u16,
    tos: u8,
    /// An error until the packet has been authenticated.
    fate: Result<(), Loss>,
}

impl EspDecrypt {
    /// Uses the SAs that have these names in the table.
    pub fn new(table: Arc<SaTable>, names: Vec<String>) -> Self {
        let view = View::new(table);
        EspDecrypt {
            names,
            view,
            sas: Sas::default(),
            jobs: Vec::new(),
            found: Vec::new(),
            counts: [0; COUNTS.len()],
        }
    }
}

impl Sas {
    fn of(all: &esp::Sas, names: &[String]) -> Sas {
        let all: Vec<_> = names.iter().flat_map(|name| all.inbound(name)).cloned().collect();
        let by_spi = (0..).zip(&all).map(|(at, sa): (u16, _)| (sa.spi, at)).collect();
        let ports = all.iter().filter_map(|sa| sa.udp).map(|udp| udp.local).collect();
        let mut locals: Vec<_> = all.iter().map(|sa| sa.local).collect();
        locals.sort_unstable();
        locals.dedup();
        Sas { all, by_spi, locals, ports }
    }
}

impl Element for EspDecrypt {
    fn name(&self) -> &'static str {
        "esp_decrypt"
    }

    fn contract(&self) -> Contract {
        let forgets = Known::HEADERS | Known::NEXT_HOP | Known::HOP_COUNTED | Known::WRITTEN;
        Contract { needs: Known::HEADERS, forgets, passes_up: true, ..Contract::default() }
    }

    #[inline]
    fn refresh(&mut self) {
        if let Some(all) = self.view.renew() {
            self.sas = Sas::of(&all, &self.names);
        }
    }

    fn run(&mut self, _: &Now, batch: &mut Batch<'_>, counters: &mut Counters) {
        self.refresh();
        let EspDecrypt { sas, found, counts, .. } = self;
        let is_guarded = batch.is_guarded();
        let mut jobs = emptied(mem::take(&mut self.jobs));
        found.clear();
        let mut last = 0;
        batch.gather(
            counters,
            |_| {},
            |packet| {
                if let Some((sa, of_packet)) = again(sas, last, packet) {
                    jobs.push(job(sa, packet, &of_packet));
                    found.push(of_packet);
                    return None;
                }
                match find(sas, packet) {
                    Ok((sa, of_packet)) => {
                        last = of_packet.sa;
                        jobs.push(job(sa, packet, &of_packet));
                        found.push(of_packet);
                        None
                    }
                    Err(Not::Ours(why)) => {
                        counts[why as usize] += 1;
                        // Before an element that encrypts, packets for others are not `local`.
                        let may_go_up = !is_guarded || is_local(sas, packet.ip());
                        let fate =
                            if may_go_up { Verdict::Up(Reason::Local) } else { Verdict::Drop(Loss::InClear) };
                        Some((packet, fate))
                    }
                    Err(Not::Right(loss)) => Some((packet, Verdict::Drop(loss))),
                }
            },
        );
        counts[REORDERED] += open(sas, found, &mut jobs);
        self.jobs = emptied(jobs);
        let mut found = found.iter();
        batch.each(counters, |packet| {
            let next = found.next().and_then(|found| Some((found, sas.all.get(usize::from(found.sa))?)));
            let fate = next.ok_or(Loss::BadTag);
            let fate = fate.and_then(|(found, sa)| found.fate.and_then(|()| uncover(sa, packet, found)));
            fate.err().map(Verdict::Drop)
        });
    }

    fn counted(&self) -> Vec<(&'static str, u64)> {
        COUNTS.into_iter().zip(self.counts).collect()
    }

    /// The SAs in the table keep the windows, so only the counts continue.
    fn kept(&self) -> Option<&dyn Any> {
        Some(&self.counts)
    }

    fn go_on_from(&mut self, kept: &dyn Any) {
        self.counts = kept.downcast_ref().copied().unwrap_or(self.counts);
    }
}

/// Opens all packets, consecutive ones of an SA at once. Accepts the numbers of those with a right tag, in order.
/// Returns the number of reordered packets.
fn open(sas: &Sas, found: &mut [FoundSa], jobs: &mut [Job<'_>]) -> u64 {
    let (mut jobs, mut reordered) = (jobs, 0);
    for found in found.chunk_by_mut(|a, b| a.sa == b.sa) {
        let Some((of_sa, rest)) = mem::take(&mut jobs).split_at_mut_checked(found.len()) else { break };
        jobs = rest;
        let Some(sa) = found.first().and_then(|first| sas.all.get(usize::from(first.sa))) else { continue };
        sa.aead.open(of_sa);
        let window = sa.window.lock();
        for (packet, job) in found.iter_mut().zip(of_sa) {
            let is_late = packet.number < sa.window.top();
            packet.fate = match job.is_right {
                true => window.accept(packet.number).map_err(stale),
                false => Err(Loss::BadTag),
            };
            reordered += u64::from(is_late && packet.fate.is_ok());
        }
    }
    reordered
}

/// Whether it is for one of our addresses.
fn is_local(sas: &Sas, ip: &[u8]) -> bool {
    addresses(ip).is_some_and(|(_, to)| sas.locals.contains(&to))
}

fn stale(stale: Stale) -> Loss {
    match stale {
        Stale::Replayed => Loss::Replayed,
        Stale::TooOld => Loss::TooOld,
    }
}

/// The short way for usual packets: ESP over IPv4, not a fragment, not in UDP, for the same SA as the packet before.
/// `None`: the packet is not usual, or must not be opened. Then [`find`] decides, with the same result for usual
/// packets.
#[inline]
fn again<'s>(sas: &'s Sas, last: u16, packet: &Packet<'_>) -> Option<(&'s Inbound, FoundSa)> {
    const BOTH: usize = IPV4 + esp::HEADER;
    let Headers { family, ip: at, bytes, destination, .. } = packet.headers;
    let sa = sas.all.get(usize::from(last))?;
    let header = packet.header::<BOTH>()?;
    let (ip, esp) = header.split_first_chunk::<IPV4>()?;
    let [a, b, c, d, low @ ..] = *esp.first_chunk::<{ esp::HEADER }>()?;
    let is_usual = family == Family::V4
        && ip[9] == esp::PROTO_ESP
        && u16::from_be_bytes([ip[6], ip[7]]) & FRAGMENT == 0
        && sa.usual == Some(destination)
        && sa.spi == u32::from_be_bytes([a, b, c, d])
        && usize::from(bytes) >= BOTH + esp::IV + esp::TRAILER + TAG
        && bytes <= sa.mtu
        && usize::from(at) + usize::from(bytes) <= packet.end();
    if !is_usual {
        return None;
    }
    let number = sa.window.infer(u32::from_be_bytes(low))?;
    sa.window.check(number).ok()?;
    let ip_at = at.checked_sub(packet.head_room() as u16)?;
    let esp_at = ip_at + IPV4 as u16;
    Some((
        sa,
        FoundSa {
            sa: last,
            number,
            ip: ip_at,
            esp: esp_at,
            text: esp_at + (esp::HEADER + esp::IV) as u16,
            tag: ip_at + bytes - TAG as u16,
            tos: ip[1],
            fate: Err(Loss::BadTag),
        },
    ))
}

/// Finds the SA of a packet. Writes nothing.
#[inline(never)]
fn find<'s>(sas: &'s Sas, packet: &Packet<'_>) -> Result<(&'s Inbound, FoundSa), Not> {
    let Headers { family, ip: at, bytes, .. } = packet.headers;
    let whole = packet.ip().get(..bytes.into()).ok_or(Not::Ours(Up::NotEsp))?;
    let (tos, proto, is_fragment, ip_bytes) = match family {
        Family::V4 => {
            let header = whole.first_chunk::<IPV4>().ok_or(Not::Ours(Up::NotEsp))?;
            let fragment = u16::from_be_bytes([header[6], header[7]]) & FRAGMENT != 0;
            (header[1], header[9], fragment, IPV4)
        }
        Family::V6 => {
            let header = whole.first_chunk::<IPV6>().ok_or(Not::Ours(Up::NotEsp))?;
            (header[0] << 4 | header[1] >> 4, header[6], header[6] == FRAGMENT_HEADER, IPV6)
        }
        Family::Unknown => return Err(Not::Ours(Up::NotEsp)),
    };
    if is_fragment {
        return Err(Not::Ours(Up::Fragment));
    }
    let behind = whole.get(ip_bytes..).unwrap_or_default();
    // A packet for others is not parsed further. It may have any length.
    let is_local = is_local(sas, whole);
    let (ports, esp) = match proto {
        esp::PROTO_ESP if is_local => (None, behind),
        esp::PROTO_ESP => return Err(Not::Ours(Up::UnknownSpi)),
        ip_proto::UDP if is_local => udp(sas, behind)?,
        _ => return Err(Not::Ours(Up::NotEsp)),
    };
    let spi = esp.first_chunk().copied().map(u32::from_be_bytes).ok_or(Not::Right(Loss::Truncated))?;
    let (sa_at, sa) = sas
        .by_spi
        .get(&spi)
        .and_then(|at| Some((*at, sas.all.get(usize::from(*at))?)))
        .filter(|(_, sa)| sa.udp.map(|udp| udp.local) == ports)
        .filter(|(_, sa)| addresses(whole).is_some_and(|(_, to)| to == sa.local))
        .ok_or(Not::Ours(Up::UnknownSpi))?;
    let low = esp.get(4..).and_then(|low| low.first_chunk()).copied().map(u32::from_be_bytes);
    let least = esp::HEADER + esp::IV + esp::TRAILER + TAG;
    let low = low.filter(|_| esp.len() >= least).ok_or(Not::Right(Loss::Truncated))?;
    if bytes > sa.mtu {
        return Err(Not::Right(Loss::Oversized));
    }
    let number = sa.window.infer(low).ok_or(Not::Right(Loss::TooOld))?;
    sa.window.check(number).map_err(|why| Not::Right(stale(why)))?;
    let ip = usize::from(at).checked_sub(packet.head_room()).ok_or(Not::Ours(Up::NotEsp))?;
    // The UDP datagram may be shorter than the packet. The tag is at the end of the datagram.
    let esp_at = ip + ip_bytes + if ports.is_some() { esp::UDP } else { 0 };
    let text = esp_at + esp::HEADER + esp::IV;
    let tag = esp_at + esp.len() - TAG;
    let place = |at: usize| at as u16;
    let found = FoundSa {
        sa: sa_at,
        number,
        ip: place(ip),
        esp: place(esp_at),
        text: place(text),
        tag: place(tag),
        tos,
        fate: Err(Loss::BadTag),
    };
    Ok((sa, found))
}

/// The fragment header of IPv6.
const FRAGMENT_HEADER: u8 = 44;

/// The contents of UDP, and our port (RFC 3948 sections 2.2 to 2.4).
fn udp<'p>(sas: &Sas, behind: &'p [u8]) -> Result<(Option<u16>, &'p [u8]), Not> {
    let header = behind.first_chunk::<{ esp::UDP }>().ok_or(Not::Ours(Up::NotEsp))?;
    let (port, length) =
        (u16::from_be_bytes([header[2], header[3]]), u16::from_be_bytes([header[4], header[5]]));
    if !sas.ports.contains(&port) {
        return Err(Not::Ours(Up::NotEsp));
    }
    let inside = behind.get(esp::UDP..length.into()).ok_or(Not::Right(Loss::Truncated))?;
    match inside {
        [0xff] => Err(Not::Ours(Up::Keepalive)),
        [0, 0, 0, 0, ..] => Err(Not::Ours(Up::Ike)),
        _ => Ok((Some(port), inside)),
    }
}

#[inline]
fn job<'t>(sa: &Inbound, packet: &'t mut Packet<'_>, found: &FoundSa) -> Job<'t> {
    let (text, end) = (usize::from(found.text), usize::from(found.tag) + TAG);
    let behind = packet.data_mut().get_mut(text.wrapping_sub(esp::IV)..end);
    match behind.and_then(|behind| behind.split_first_chunk_mut()) {
        Some((iv, text)) => sa.jobs.job(*iv, found.number, text),
        // An empty text has no right tag.
        None => sa.jobs.job([0; esp::IV], found.number, &mut []),
    }
}

/// Removes everything around a packet whose tag was right.
#[inline]
fn uncover(sa: &Inbound, packet: &mut Packet<'_>, found: &FoundSa) -> Result<(), Loss> {
    let (text_at, tag) = (usize::from(found.text), usize::from(found.tag));
    let text = packet.data().get(text_at..tag).ok_or(Loss::Truncated)?;
    let (text, [padding, next]) = text.split_last_chunk::<2>().ok_or(Loss::Truncated)?;
    let (payload, padded) =
        text.split_at_checked(text.len().wrapping_sub((*padding).into())).ok_or(Loss::BadPadding)?;
    // RFC 4303 section 2.4.
    if !padded.iter().zip(1..=u8::MAX).all(|(byte, n)| *byte == n) {
        return Err(Loss::BadPadding);
    }
    if *next == esp::PROTO_NONE {
        return Err(Loss::Dummy);
    }
    let (next, payload) = (*next, payload.len());
    match sa.mode {
        Mode::Tunnel => uncover_tunnel(sa, packet, found, next, payload),
        Mode::Transport => uncover_transport(sa, packet, found, next, payload),
    }
}

#[inline]
fn uncover_tunnel(
    sa: &Inbound,
    packet: &mut Packet<'_>,
    found: &FoundSa,
    next: u8,
    payload: usize,
) -> Result<(), Loss> {
    let (ethernet, inner) = (usize::from(found.ip), usize::from(found.text));
    let start = packet.head_room();
    let data = packet.data_mut();
    let ip = data.get_mut(inner..inner + payload).ok_or(Loss::BadInner)?;
    let (length, kind) = match next {
        esp::PROTO_IPV4 => (whole4(ip).ok_or(Loss::BadInner)?, ether_type::IPV4),
        esp::PROTO_IPV6 => (whole6(ip).ok_or(Loss::BadInner)?, ether_type::IPV6),
        _ => return Err(Loss::BadInner),
    };
    may_be_inside(sa, ip)?;
    mark(ip, found.tos & 3)?;
    // The Ethernet header and tags are shorter than everything in between.
    back(data, ethernet, inner - ethernet);
    if let Some(place) = data.get_mut(inner - 2..inner) {
        place.copy_from_slice(&kind.to_be_bytes());
    }
    packet.renew(Headers::default());
    let fits = packet.end_at(Some(start + inner + length)) && packet.begin_at(Some(start + inner - ethernet));
    if fits { Ok(()) } else { Err(Loss::BadInner) }
}

/// Moves the first `bytes` bytes to `to`. An Ethernet header without tags has a constant length, so that is not a call.
#[inline]
fn back(data: &mut [u8], bytes: usize, to: usize) {
    if bytes == ETHERNET
        && let Some(header) = data.first_chunk::<ETHERNET>().copied()
        && let Some(place) = data.get_mut(to..).and_then(|data| data.first_chunk_mut::<ETHERNET>())
    {
        *place = header;
    } else if to.checked_add(bytes).is_some_and(|end| end <= data.len()) {
        data.copy_within(..bytes, to);
    }
}

fn uncover_transport(
    sa: &Inbound,
    packet: &mut Packet<'_>,
    found: &FoundSa,
    next: u8,
    payload: usize,
) -> Result<(), Loss> {
    let (ethernet, esp, text) = (usize::from(found.ip), usize::from(found.esp), usize::from(found.text));
    let udp = if sa.udp.is_some() { esp::UDP } else { 0 };
    let start = packet.head_room();
    let data = packet.data_mut();
    let header = data.get_mut(ethernet..esp - udp).ok_or(Loss::BadInner)?;
    let header_bytes = header.len();
    may_be_inside(sa, header)?;
    readdress(header, (header_bytes + payload) as u16, next);
    let moved = text - (esp - udp);
    data.copy_within(..esp - udp, moved);
    packet.renew(Headers::default());
    let fits = packet.end_at(Some(start + text + payload)) && packet.begin_at(Some(start + moved));
    if fits { Ok(()) } else { Err(Loss::BadInner) }
}

/// The inner packet must match the SA's selectors (RFC 4301 section 5.2 step 4).
#[inline]
fn may_be_inside(sa: &Inbound, ip: &[u8]) -> Result<(), Loss> {
    if admits(&sa.selectors, ip) { Ok(()) } else { Err(Loss::Policy) }
}

/// The length of an IPv4 packet that is complete. `check` looks at the rest of its header.
fn whole4(ip: &[u8]) -> Option<usize> {
    let header = ip.first_chunk::<IPV4>()?;
    let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let header_bytes = usize::from(header[0] & 15) * 4;
    (header[0] >> 4 == 4 && header_bytes >= IPV4 && (header_bytes..=ip.len()).contains(&length))
        .then_some(length)
}

fn whole6(ip: &[u8]) -> Option<usize> {
    let header = ip.first_chunk::<IPV6>()?;
    let length = IPV6 + usize::from(u16::from_be_bytes([header[4], header[5]]));
    (header[0] >> 4 == 6 && length <= ip.len()).then_some(length)
}

/// Copies the congestion marks of the outer header to the inner one (RFC 6040 section 4.2).
#[inline]
pub(super) fn mark(ip: &mut [u8], outer: u8) -> Result<(), Loss> {
    let Some(first) = ip.first_chunk_mut::<IPV4>() else { return Err(Loss::BadInner) };
    let is_ipv4 = first[0] >> 4 == 4;
    let inner = if is_ipv4 { first[1] & 3 } else { first[1] >> 4 & 3 };
    let marked = match (inner, outer) {
        (NOT_ECT, CE) => return Err(Loss::Congested),
        (ECT0 | ECT1, CE) => CE,
        (ECT0, ECT1) => ECT1,
        _ => return Ok(()),
    };
    if is_ipv4 {
        first[1] = first[1] & !3 | marked;
        // HC' = ~(~HC + ~m + m') (RFC 1624 section 3); m' - m is less than 4.
        let more = u64::from(marked.wrapping_sub(inner)) & 0xff;
        let more = if marked < inner { 0xffff - u64::from(inner - marked) } else { more };
        let sum = u64::from(!u16::from_be_bytes([first[10], first[11]])) + more;
        [first[10], first[11]] = (!fold(sum)).to_be_bytes();
    } else {
        first[1] = first[1] & !0x30 | marked << 4;
    }
    Ok(())
}
