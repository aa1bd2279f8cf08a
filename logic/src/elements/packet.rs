//! A packet as elements see it: a frame that is lent, and what is known of it.
//!
//! ```text
//! frame    | head room |  data: Ethernet header, tags, IP packet, ...  | tail room |
//!          0           start       ip                               end           frame.len()
//! ```
//! `start <= end <= frame.len() <= 65,535` always holds; [`Packet::push`] and the others keep it. What is known of headers are places in
//! the frame, so it stays true when the data begins elsewhere.

use super::check::{ETHERNET, IPV4};
use crate::{plan::PortId, reason::Reason, tables::Ingress};
use prefetch_index::prefetch_index;
use std::fmt;

/// Bytes of a line of the cache, on nearly all CPUs.
const CACHE_LINE: usize = 64;

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It leaves by this port.
    To(PortId),
    /// To the kernel, as it came.
    Up(Reason),
    /// To the kernel, for this reason, to be sent as one of the machine's own: an element made it. Its data is the IP packet alone.
    Own(Reason),
    /// It is gone.
    Drop(Loss),
}

impl fmt::Display for Verdict {
    /// As counters call it: `to 3`, `up ttl_exceeded`, `own unresolved`, `dropped over_rate`.
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
    /// The path ends so.
    Discarded,
    /// Over the rate of a policer.
    OverRate,
    /// The CRC-32 at its end is not that of its bytes.
    BadCrc,
    /// The port it is to leave by cannot transmit.
    NoPort,
    /// Its frame has no room for what is put in front of it or behind it.
    NoRoom,
    /// No element found an exit for it: never of a chain that [`super::Chain::new`] accepts, so that counters say it left.
    NoExit,
    /// ESP: there is no SA to send it by.
    NoSa,
    /// ESP, VXLAN: not of the packets that the SA or the tunnel is for.
    Policy,
    /// ESP: a fragment, or with IPv6 extension headers, where transport mode wants what is whole.
    NotWhole,
    /// ESP, VXLAN: it would be longer than the path there takes.
    OverMtu,
    /// ESP: the SA has no sequence number left.
    SequenceExhausted,
    /// ESP: no sequence number is reserved.
    SequenceUnreserved,
    /// ESP: the library did not encrypt it.
    NotSealed,
    /// It was to be encrypted by a later element, and the kernel would have forwarded it in clear.
    InClear,
    /// ESP, VXLAN: shorter than what is always there, or than its own lengths.
    Truncated,
    /// ESP: longer than its SA takes.
    Oversized,
    /// ESP: the tag is not that of its bytes: changed, or of another key.
    BadTag,
    /// ESP: it came before.
    Replayed,
    /// ESP: its sequence number is before the anti-replay window.
    TooOld,
    /// ESP: the padding is not as it is written.
    BadPadding,
    /// ESP: a dummy packet, made to be dropped.
    Dummy,
    /// ESP: what is inside is no whole IP packet.
    BadInner,
    /// VXLAN: the checksum of UDP is not that of its bytes.
    BadChecksum,
    /// VXLAN: without the flag that its VNI is one.
    BadVxlan,
    /// ESP, VXLAN: congestion was marked on a packet whose flow does not know such marks.
    Congested,
}

impl Loss {
    /// All, in order.
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

/// A frame that cannot be lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAFrame {
    /// Data beyond the frame, or a frame over 65,535 bytes.
    #[error("the data is not within a frame of up to 65,535 bytes")]
    Bounds,
    /// The batch has [`super::MOST_PACKETS`].
    #[error("the batch is full")]
    Full,
}

/// What the IP packet in a frame is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Family {
    /// Not looked at, or no longer known.
    #[default]
    Unknown,
    V4,
    V6,
}

/// Where the IP packet is: what `check` found.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Headers {
    pub family: Family,
    /// Its first byte, in the frame.
    pub ip: u16,
    /// Its length; what follows is Ethernet padding.
    pub bytes: u16,
    /// IPv4 only, host byte order.
    pub destination: u32,
    /// An element made it around what came: its source is our own.
    pub is_ours: bool,
}

/// Where it leaves: what `route` found.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Hop {
    /// Destination and source MAC address, as they are in memory: the first eight bytes, and the last four.
    pub macs: u64,
    pub macs_end: u32,
    /// VLAN key.
    pub vlan: u32,
}

/// See the head of this file. A batch of them is walked through by each element, so it is one cache line, and in no other.
#[derive(Debug)]
#[repr(align(64))]
pub struct Packet<'a> {
    frame: &'a mut [u8],
    start: u16,
    end: u16,
    pub(super) ingress: Ingress,
    pub(super) verdict: Option<Verdict>,
    /// Bytes behind the data that it has again if it goes up.
    behind: u8,
    /// The port it leaves by, unless it gets a verdict before the chain ends.
    pub(super) exit: Option<PortId>,
    pub(super) headers: Headers,
    pub(super) hop: Hop,
    /// That the next hop is at. Not in [`Hop`], where it would take eight bytes.
    pub(super) hop_port: PortId,
}

const _: () = assert!(size_of::<Packet<'_>>() == 64);

impl<'a> Packet<'a> {
    /// Is there such data in the frame?
    #[inline]
    pub(super) fn fits(frame: &[u8], start: usize, length: usize) -> bool {
        frame.len() <= u16::MAX.into() && start <= frame.len() && length <= frame.len() - start
    }

    /// Of data that fits.
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

    /// What became of it, once a chain has run: what an element said, or it leaves by its exit.
    #[inline]
    pub fn verdict(&self) -> Verdict {
        let exit = || self.exit.map_or(Verdict::Drop(Loss::NoExit), Verdict::To);
        self.verdict.unwrap_or_else(exit)
    }

    /// Where it came in.
    #[inline]
    pub fn ingress(&self) -> Ingress {
        self.ingress
    }

    /// Where its data begins in the frame, bytes: the head room.
    #[inline]
    pub fn head_room(&self) -> usize {
        self.start.into()
    }

    /// Where its data ends in the frame.
    #[inline]
    pub(super) fn end(&self) -> usize {
        self.end.into()
    }

    /// Bytes of the frame.
    #[inline]
    pub(super) fn room(&self) -> usize {
        self.frame.len()
    }

    /// Bytes behind the data.
    #[inline]
    pub fn tail_room(&self) -> usize {
        self.frame.len() - usize::from(self.end)
    }

    /// Bytes of data.
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

    /// Has the cache fetch all lines of its data. It is a hint, which changes nothing.
    #[inline]
    pub(super) fn ask_for(&self) {
        let data = self.data();
        (0..data.len()).step_by(CACHE_LINE).for_each(|at| prefetch_index(data, at));
    }

    /// Has the cache fetch the lines where its data begins and ends, and that in front of it, for headers to come. It is a hint, which changes nothing.
    #[inline]
    pub(super) fn ask_for_ends(&self) {
        let (start, end) = (usize::from(self.start), usize::from(self.end));
        [start.saturating_sub(CACHE_LINE), start, end]
            .iter()
            .for_each(|at| prefetch_index(&*self.frame, *at));
    }

    /// From the IP header to the end of the data; empty if it is not known where that is.
    #[inline]
    pub(super) fn ip(&self) -> &[u8] {
        self.frame.get(self.headers.ip.into()..self.end.into()).unwrap_or_default()
    }

    /// The same.
    #[inline]
    pub(super) fn ip_mut(&mut self) -> &mut [u8] {
        self.frame.get_mut(self.headers.ip.into()..self.end.into()).unwrap_or_default()
    }

    /// So much of the IP header; `None`: it is not there whole.
    #[inline]
    pub(super) fn header<const BYTES: usize>(&self) -> Option<&[u8; BYTES]> {
        let ip = usize::from(self.headers.ip);
        if ip + BYTES > self.end.into() {
            return None;
        }
        self.frame.get(ip..ip + BYTES)?.first_chunk()
    }

    /// The same.
    #[inline]
    pub(super) fn header_mut<const BYTES: usize>(&mut self) -> Option<&mut [u8; BYTES]> {
        let ip = usize::from(self.headers.ip);
        if ip + BYTES > self.end.into() {
            return None;
        }
        self.frame.get_mut(ip..ip + BYTES)?.first_chunk_mut()
    }

    /// The Ethernet header and the IPv4 header right behind it; `None`: they are not there whole, or between them are tags.
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

    /// The data is there in the frame from now on: this. `None`, and nothing is changed: that is no place in it.
    #[inline]
    pub(super) fn move_to(&mut self, start: usize, end: usize) -> Option<&mut [u8]> {
        let data = self.frame.get_mut(start..end)?;
        (self.start, self.end) = (start as u16, end as u16);
        Some(data)
    }

    /// The data begins so many bytes earlier. False, and nothing is changed, if there is no room.
    #[must_use]
    pub fn push(&mut self, bytes: usize) -> bool {
        self.begin_at(self.head_room().checked_sub(bytes))
    }

    /// The data begins so many bytes later. False, and nothing is changed, if there are not so many.
    #[must_use]
    pub fn pull(&mut self, bytes: usize) -> bool {
        self.begin_at(self.head_room().checked_add(bytes))
    }

    /// The data ends so many bytes later. False, and nothing is changed, if there is no room.
    #[must_use]
    pub fn append(&mut self, bytes: usize) -> bool {
        self.end_at(usize::from(self.end).checked_add(bytes))
    }

    /// The data ends so many bytes earlier. False, and nothing is changed, if there are not so many.
    #[must_use]
    pub fn trim(&mut self, bytes: usize) -> bool {
        self.end_at(usize::from(self.end).checked_sub(bytes))
    }

    /// As [`Packet::trim`], but it goes up with these bytes.
    #[must_use]
    pub(super) fn cut(&mut self, bytes: usize) -> bool {
        let behind = u8::try_from(bytes).ok().and_then(|bytes| self.behind.checked_add(bytes));
        let Some(behind) = behind.filter(|_| self.trim(bytes)) else { return false };
        self.behind = behind;
        true
    }

    /// It is another packet from here on, which would go up as it is now: with these headers, or where they are is not known.
    #[inline]
    pub(super) fn renew(&mut self, headers: Headers) {
        self.headers = headers;
        self.behind = 0;
    }

    /// The same, of one that is there in the frame from now on: this, which is to be written. Empty, and all else is as it says: that is no place in the frame.
    #[inline]
    pub(super) fn renew_at(&mut self, start: usize, end: usize, headers: Headers) -> &mut [u8] {
        self.renew(headers);
        self.move_to(start, end).unwrap_or_default()
    }

    /// It goes up: as it came, or, if it was made here, as the IP packet that it is.
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

    /// The data begins there in the frame.
    #[inline]
    pub(super) fn begin_at(&mut self, start: Option<usize>) -> bool {
        let start = start.filter(|start| *start <= usize::from(self.end));
        start.map(|start| self.start = start as u16).is_some()
    }

    /// The data ends there in the frame.
    #[inline]
    pub(super) fn end_at(&mut self, end: Option<usize>) -> bool {
        let end = end.filter(|end| (self.start.into()..=self.frame.len()).contains(end));
        end.map(|end| self.end = end as u16).is_some()
    }
}
