//! A packet as elements see it: a lent frame, and what is known about it.
//!
//! ```text
//! frame    | head room |  data: Ethernet header, tags, IP packet, ...  | tail room |
//!          0           start       ip                               end           frame.len()
//! ```
//! `start <= end <= frame.len() <= 65,535` always holds. [`Packet::push`] and the others keep it true. Known headers
//! are positions in the frame, so they stay valid if the data begins elsewhere.

use super::check::{ETHERNET, IPV4};
use crate::{plan::PortId, reason::Reason, tables::Ingress};
use prefetch_index::prefetch_index;
use std::fmt;

/// The length of a cache line on nearly all CPUs.
const CACHE_LINE: usize = 64;

/// The decision about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It leaves by this port.
    To(PortId),
    /// It goes to the kernel as it arrived.
    Up(Reason),
    /// It goes to the kernel, for this reason, which sends it as one of the machine's own packets, because an element
    /// made it. Its data is the IP packet alone.
    Own(Reason),
    /// It is dropped.
    Drop(Loss),
}

impl fmt::Display for Verdict {
    /// Its name in counters: `to 3`, `up ttl_exceeded`, `own unresolved`, `dropped over_rate`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::To(port) => write!(f, "to {port}"),
            Verdict::Up(reason) => write!(f, "up {}", reason.name()),
            Verdict::Own(reason) => write!(f, "own {}", reason.name()),
            Verdict::Drop(loss) => write!(f, "dropped {}", loss.name()),
        }
    }
}

/// Why an element dropped a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Loss {
    /// The path ends with `discard`.
    Discarded,
    /// It is over the rate of a policer.
    OverRate,
    /// The CRC-32 at its end does not match its bytes.
    BadCrc,
    /// Its exit port cannot transmit.
    NoPort,
    /// Its frame has no room for more headers or for a trailer.
    NoRoom,
    /// No element found an exit for it. This cannot happen in a chain that [`super::Chain::new`] accepts; counters show
    /// that the packet left.
    NoExit,
    /// ESP: there is no SA for sending it.
    NoSa,
    /// ESP, VXLAN: it does not match the SA's selectors, or the tunnel's other end.
    Policy,
    /// ESP: it is a fragment or has IPv6 extension headers, and transport mode needs a whole packet.
    NotWhole,
    /// ESP, VXLAN: it would be longer than the MTU of the path there.
    OverMtu,
    /// ESP: the SA has no sequence numbers left.
    SequenceExhausted,
    /// ESP: no sequence number is reserved.
    SequenceUnreserved,
    /// ESP: the library did not encrypt it.
    NotSealed,
    /// A later element should have encrypted it, and the kernel would have forwarded it unencrypted.
    InClear,
    /// ESP, VXLAN: it is shorter than its headers, or than its own lengths.
    Truncated,
    /// ESP: it is longer than its SA allows.
    Oversized,
    /// ESP: the tag does not match. The packet was changed, or it is from another key.
    BadTag,
    /// ESP: it arrived before.
    Replayed,
    /// ESP: its sequence number is before the anti-replay window.
    TooOld,
    /// ESP: the padding has wrong contents.
    BadPadding,
    /// ESP: it is a dummy packet, which is made to be dropped.
    Dummy,
    /// ESP: the contents are no whole IP packet.
    BadInner,
    /// VXLAN: the UDP checksum does not match.
    BadChecksum,
    /// VXLAN: the flag of a valid VNI is missing.
    BadVxlan,
    /// ESP, VXLAN: the outer packet has a congestion mark, and the flow of the inner one does not use such marks.
    Congested,
}

impl Loss {
    /// All losses, in order.
    pub const ALL: [Loss; 25] = [
        Loss::Discarded,
        Loss::OverRate,
        Loss::BadCrc,
        Loss::NoPort,
        Loss::NoRoom,
        Loss::NoExit,
        Loss::NoSa,
        Loss::Policy,
        Loss::NotWhole,
        Loss::OverMtu,
        Loss::SequenceExhausted,
        Loss::SequenceUnreserved,
        Loss::NotSealed,
        Loss::InClear,
        Loss::Truncated,
        Loss::Oversized,
        Loss::BadTag,
        Loss::Replayed,
        Loss::TooOld,
        Loss::BadPadding,
        Loss::Dummy,
        Loss::BadInner,
        Loss::BadChecksum,
        Loss::BadVxlan,
        Loss::Congested,
    ];

    /// Short name, for counters and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Loss::Discarded => "discarded",
            Loss::OverRate => "over_rate",
            Loss::BadCrc => "bad_crc",
            Loss::NoPort => "no_port",
            Loss::NoRoom => "no_room",
            Loss::NoExit => "no_exit",
            Loss::NoSa => "no_sa",
            Loss::Policy => "policy",
            Loss::NotWhole => "not_whole",
            Loss::OverMtu => "over_mtu",
            Loss::SequenceExhausted => "sequence_exhausted",
            Loss::SequenceUnreserved => "sequence_unreserved",
            Loss::NotSealed => "not_sealed",
            Loss::InClear => "in_clear",
            Loss::Truncated => "truncated",
            Loss::Oversized => "oversized",
            Loss::BadTag => "bad_tag",
            Loss::Replayed => "replayed",
            Loss::TooOld => "too_old",
            Loss::BadPadding => "bad_padding",
            Loss::Dummy => "dummy",
            Loss::BadInner => "bad_inner",
            Loss::BadChecksum => "bad_checksum",
            Loss::BadVxlan => "bad_vxlan",
            Loss::Congested => "congested",
        }
    }
}

/// Why a frame cannot be lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAFrame {
    /// The data is not within the frame, or the frame is longer than 65,535 bytes.
    #[error("the data is not within a frame of up to 65,535 bytes")]
    Bounds,
    /// The batch has [`super::MOST_PACKETS`].
    #[error("the batch is full")]
    Full,
}

/// The version of the IP packet in a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Family {
    /// Not parsed, or no longer known.
    #[default]
    Unknown,
    V4,
    V6,
}

/// Where the IP packet is, as `check` found it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Headers {
    pub family: Family,
    /// The position of its first byte in the frame.
    pub ip: u16,
    /// Its length. The bytes after it are Ethernet padding.
    pub bytes: u16,
    /// IPv4 only, host byte order.
    pub destination: u32,
    /// An element made it around another packet, so its source is our own.
    pub is_ours: bool,
}

/// How it leaves, as `route` found it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Hop {
    /// The destination and source MAC addresses as they lie in memory: the first eight bytes, and the last four.
    pub macs: u64,
    pub macs_end: u32,
    /// VLAN key.
    pub vlan: u32,
}

/// See the head of this file. Each element walks through a batch of them, so it is exactly one cache line.
#[derive(Debug)]
#[repr(align(64))]
pub struct Packet<'a> {
    frame: &'a mut [u8],
    start: u16,
    end: u16,
    pub(super) ingress: Ingress,
    pub(super) verdict: Option<Verdict>,
    /// The number of bytes after the data that it gets back if it goes up.
    behind: u8,
    /// The port by which it leaves, unless it gets a verdict before the chain ends.
    pub(super) exit: Option<PortId>,
    pub(super) headers: Headers,
    pub(super) hop: Hop,
    /// The port of the next hop. It is not in [`Hop`], because it would take eight bytes there.
    pub(super) hop_port: PortId,
}

const _: () = assert!(size_of::<Packet<'_>>() == 64);

impl<'a> Packet<'a> {
    /// Whether such data is within the frame.
    #[inline]
    pub(super) fn fits(frame: &[u8], start: usize, length: usize) -> bool {
        frame.len() <= u16::MAX.into() && start <= frame.len() && length <= frame.len() - start
    }

    /// A packet with data that fits.
    #[inline]
    pub(super) fn new(frame: &'a mut [u8], start: usize, length: usize, ingress: Ingress) -> Self {
        Packet {
            frame,
            start: start as u16,
            end: (start + length) as u16,
            ingress,
            verdict: None,
            behind: 0,
            exit: None,
            headers: Headers::default(),
            hop: Hop::default(),
            hop_port: 0,
        }
    }

    /// The verdict after a chain has run: the one of an element, or the exit.
    #[inline]
    pub fn verdict(&self) -> Verdict {
        let exit = || self.exit.map_or(Verdict::Drop(Loss::NoExit), Verdict::To);
        self.verdict.unwrap_or_else(exit)
    }

    /// How it arrived.
    #[inline]
    pub fn ingress(&self) -> Ingress {
        self.ingress
    }

    /// The bytes in the frame before its data.
    #[inline]
    pub fn head_room(&self) -> usize {
        self.start.into()
    }

    /// The position in the frame at which its data ends.
    #[inline]
    pub(super) fn end(&self) -> usize {
        self.end.into()
    }

    /// The length of the frame.
    #[inline]
    pub(super) fn room(&self) -> usize {
        self.frame.len()
    }

    /// The bytes in the frame after its data.
    #[inline]
    pub fn tail_room(&self) -> usize {
        self.frame.len() - usize::from(self.end)
    }

    /// The length of its data.
    #[inline]
    pub fn length(&self) -> usize {
        usize::from(self.end - self.start)
    }

    /// The data.
    #[inline]
    pub fn data(&self) -> &[u8] {
        self.frame.get(self.start.into()..self.end.into()).unwrap_or_default()
    }

    /// The data.
    #[inline]
    pub fn data_mut(&mut self) -> &mut [u8] {
        self.frame.get_mut(self.start.into()..self.end.into()).unwrap_or_default()
    }

    /// Prefetches all cache lines of its data. This is a hint and changes nothing.
    #[inline]
    pub(super) fn ask_for(&self) {
        let data = self.data();
        (0..data.len()).step_by(CACHE_LINE).for_each(|at| prefetch_index(data, at));
    }

    /// Prefetches the cache lines where its data begins and ends, and the one before it, for new headers. This is a
    /// hint and changes nothing.
    #[inline]
    pub(super) fn ask_for_ends(&self) {
        let (start, end) = (usize::from(self.start), usize::from(self.end));
        [start.saturating_sub(CACHE_LINE), start, end]
            .iter()
            .for_each(|at| prefetch_index(&*self.frame, *at));
    }

    /// From the IP header to the end of the data. Empty if the position of the header is unknown.
    #[inline]
    pub(super) fn ip(&self) -> &[u8] {
        self.frame.get(self.headers.ip.into()..self.end.into()).unwrap_or_default()
    }

    /// Like [`Packet::ip`].
    #[inline]
    pub(super) fn ip_mut(&mut self) -> &mut [u8] {
        self.frame.get_mut(self.headers.ip.into()..self.end.into()).unwrap_or_default()
    }

    /// The first bytes of the IP header. `None`: it is incomplete.
    #[inline]
    pub(super) fn header<const BYTES: usize>(&self) -> Option<&[u8; BYTES]> {
        let ip = usize::from(self.headers.ip);
        if ip + BYTES > self.end.into() {
            return None;
        }
        self.frame.get(ip..ip + BYTES)?.first_chunk()
    }

    /// Like [`Packet::header`].
    #[inline]
    pub(super) fn header_mut<const BYTES: usize>(&mut self) -> Option<&mut [u8; BYTES]> {
        let ip = usize::from(self.headers.ip);
        if ip + BYTES > self.end.into() {
            return None;
        }
        self.frame.get_mut(ip..ip + BYTES)?.first_chunk_mut()
    }

    /// The Ethernet header and the IPv4 header directly after it. `None`: one is incomplete, or there are tags in
    /// between.
    #[inline]
    pub(super) fn untagged_mut(&mut self) -> Option<(&mut [u8; ETHERNET], &mut [u8; IPV4])> {
        let (start, ip) = (usize::from(self.start), usize::from(self.headers.ip));
        let headers = ETHERNET + IPV4;
        if ip != start + ETHERNET || start + headers > self.end.into() {
            return None;
        }
        let (ethernet, behind) = self.frame.get_mut(start..start + headers)?.split_first_chunk_mut()?;
        Some((ethernet, behind.first_chunk_mut()?))
    }

    /// Moves the data to this range of the frame, and returns it. Returns `None` and changes nothing if the range is
    /// not in the frame.
    #[inline]
    pub(super) fn move_to(&mut self, start: usize, end: usize) -> Option<&mut [u8]> {
        let data = self.frame.get_mut(start..end)?;
        (self.start, self.end) = (start as u16, end as u16);
        Some(data)
    }

    /// Makes the data begin this many bytes earlier. Returns false and changes nothing if there is no room.
    #[must_use]
    pub fn push(&mut self, bytes: usize) -> bool {
        self.begin_at(self.head_room().checked_sub(bytes))
    }

    /// Makes the data begin this many bytes later. Returns false and changes nothing if it is shorter.
    #[must_use]
    pub fn pull(&mut self, bytes: usize) -> bool {
        self.begin_at(self.head_room().checked_add(bytes))
    }

    /// Makes the data end this many bytes later. Returns false and changes nothing if there is no room.
    #[must_use]
    pub fn append(&mut self, bytes: usize) -> bool {
        self.end_at(usize::from(self.end).checked_add(bytes))
    }

    /// Makes the data end this many bytes earlier. Returns false and changes nothing if it is shorter.
    #[must_use]
    pub fn trim(&mut self, bytes: usize) -> bool {
        self.end_at(usize::from(self.end).checked_sub(bytes))
    }

    /// Like [`Packet::trim`], but the packet gets these bytes back if it goes up.
    #[must_use]
    pub(super) fn cut(&mut self, bytes: usize) -> bool {
        let behind = u8::try_from(bytes).ok().and_then(|bytes| self.behind.checked_add(bytes));
        let Some(behind) = behind.filter(|_| self.trim(bytes)) else { return false };
        self.behind = behind;
        true
    }

    /// Makes this another packet, which would go up in its present form. `headers` are the new headers, or unknown.
    #[inline]
    pub(super) fn renew(&mut self, headers: Headers) {
        self.headers = headers;
        self.behind = 0;
    }

    /// Like [`Packet::renew`], for a packet in this range of the frame. Returns the range, to be written. Returns
    /// nothing if the range is not in the frame; then only the headers change.
    #[inline]
    pub(super) fn renew_at(&mut self, start: usize, end: usize, headers: Headers) -> &mut [u8] {
        self.renew(headers);
        self.move_to(start, end).unwrap_or_default()
    }

    /// Makes it go up: as it arrived, or, if it was made here, as the IP packet alone.
    #[inline]
    pub(super) fn go_up(&mut self, reason: Reason) -> Verdict {
        if self.headers.is_ours {
            let ip = usize::from(self.headers.ip);
            self.move_to(ip, ip + usize::from(self.headers.bytes));
            return Verdict::Own(reason);
        }
        if self.behind > 0 {
            let _ = self.append(self.behind.into());
        }
        Verdict::Up(reason)
    }

    /// Makes the data begin at this position of the frame.
    #[inline]
    pub(super) fn begin_at(&mut self, start: Option<usize>) -> bool {
        let start = start.filter(|start| *start <= usize::from(self.end));
        start.map(|start| self.start = start as u16).is_some()
    }

    /// Makes the data end at this position of the frame.
    #[inline]
    pub(super) fn end_at(&mut self, end: Option<usize>) -> bool {
        let end = end.filter(|end| (self.start.into()..=self.frame.len()).contains(end));
        end.map(|end| self.end = end as u16).is_some()
    }
}
