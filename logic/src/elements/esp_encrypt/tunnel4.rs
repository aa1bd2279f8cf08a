//! The usual packet, by a short way: tunnel mode over IPv4, not in UDP, behind an Ethernet header without tags. So all that is in front of it has a length
//! known here, and is a few words, most of which are the SA's. Byte for byte it is what `layout` and `write` make, which are also for all that is not usual,
//! and decide what is dropped (`tests::esp` compares them).

use super::{
    super::{
        check::{ETHERNET, IPV4},
        packet::{Family, Headers, Packet},
    },
    ALIGNMENT, admits,
};
use crate::esp::{self, Dont, Ends, Mode, Outbound, Selectors, TAG};

/// Bytes in front of what came: Ethernet header, IPv4, ESP, IV.
const FRONT: usize = ETHERNET + OUTER;
const OUTER: usize = IPV4 + esp::HEADER + esp::IV;
/// Padding of 0 to 3 bytes (RFC 4303 section 2.4), its length and the next header, the first byte lowest: of IPv4 and of IPv6.
const TRAILERS: [[u64; ALIGNMENT]; 2] = [
    [0x04_00, 0x04_01_01, 0x04_02_02_01, 0x04_03_03_02_01],
    [0x29_00, 0x29_01_01, 0x29_02_02_01, 0x29_03_03_02_01],
];
/// In the seventh byte of an IPv4 header, which is the first of a word in network order.
const DONT_FRAGMENT: u8 = 0x40;

/// What the packets of a batch have in common.
pub(super) struct Tunnel4<'s> {
    /// All from the outer IP header on, but for what differs.
    template: [u8; OUTER],
    /// Of its IP header, in words as they are in memory: a sum of ones' complement is the same in any order of bytes (RFC 1071 section 2 B).
    sum: u32,
    /// DF is that of the inner packet, if it is in this mask, and what is set here.
    copied: u8,
    set: u8,
    /// The longest packet that fits into the SA's MTU, encrypted.
    longest: usize,
    /// If there are any.
    selectors: Option<&'s Selectors>,
    destination: u32,
}

/// Where a packet that is usual will be.
pub(super) struct Place {
    /// In the frame: its Ethernet header, and the end of its tag.
    start: usize,
    end: usize,
    /// Bytes of what came.
    payload: usize,
}

impl<'s> Tunnel4<'s> {
    /// `None`: the SA is another.
    pub(super) fn new(sa: &'s Outbound) -> Option<Self> {
        let (Mode::Tunnel, None, Ends::V4 { remote, .. }) = (sa.mode, sa.udp, sa.ends) else { return None };
        let mut template = [0; OUTER];
        let (ip, rest) = template.split_first_chunk_mut::<IPV4>()?;
        *ip = *sa.outer.ipv4()?;
        *rest.first_chunk_mut()? = sa.spi.to_be_bytes();
        let (words, _) = ip.as_chunks();
        let sum = words.iter().map(|word| u32::from(u16::from_ne_bytes(*word))).sum();
        let (copied, set) = match sa.outer.dont {
            Dont::Copy => (DONT_FRAGMENT, 0),
            Dont::Set => (0, DONT_FRAGMENT),
            Dont::Clear => (0, 0),
        };
        let selectors = Some(&sa.selectors).filter(|selectors| !selectors.is_any());
        let longest = (sa.mtu.checked_sub(OUTER + TAG)? & !(ALIGNMENT - 1)).checked_sub(esp::TRAILER)?;
        Some(Tunnel4 { template, sum, copied, set, longest, selectors, destination: remote.to_bits() })
    }

    /// Where it will be. `None`: it is not usual, or there is a reason not to send it.
    #[inline]
    pub(super) fn place(&self, packet: &Packet<'_>) -> Option<Place> {
        let Headers { family, ip, bytes, .. } = packet.headers;
        let (ip, payload) = (usize::from(ip), usize::from(bytes));
        let text = (payload + esp::TRAILER + (ALIGNMENT - 1)) & !(ALIGNMENT - 1);
        let (start, end) = (ip.checked_sub(FRONT)?, ip + text + TAG);
        let is_usual = packet.head_room() + ETHERNET == ip
            && family != Family::Unknown
            && ip + payload <= packet.end()
            && end <= packet.room()
            && payload <= self.longest
            && self.selectors.is_none_or(|selectors| admits(selectors, packet.ip()));
        is_usual.then_some(Place { start, end, payload })
    }

    /// Everything but the encryption; what is returned are text and tag.
    #[inline]
    pub(super) fn write<'p>(&self, packet: &'p mut Packet<'_>, place: &Place, number: u64) -> &'p mut [u8] {
        let Place { start, end, payload } = *place;
        let came = packet.headers.family;
        let (family, ip, total) = (Family::V4, (start + ETHERNET) as u16, (end - start - ETHERNET) as u16);
        let headers = Headers { family, ip, bytes: total, destination: self.destination, is_ours: true };
        let data = packet.renew_at(start, end, headers);
        let Some((front, inner)) = data.split_first_chunk_mut::<FRONT>() else { return &mut [] };
        let Some([first, second, .., flags, _]) = inner.first_chunk::<8>() else { return &mut [] };
        let [of_ipv4, of_ipv6] = &TRAILERS;
        let (tos, dont_fragment, trailers) = match came {
            Family::V4 => (*second, *flags, of_ipv4),
            _ => (first << 4 | second >> 4, DONT_FRAGMENT, of_ipv6),
        };
        // What is beyond the trailer is the tag's, which is written later.
        let padding = (payload ^ 1).wrapping_add(1) & (ALIGNMENT - 1);
        if let Some(trailer) = inner.get_mut(payload..payload + 8) {
            trailer.copy_from_slice(&trailers[padding].to_le_bytes());
        }
        let Some((ethernet, rest)) = front.split_first_chunk_mut::<ETHERNET>() else { return &mut [] };
        let Some(outer) = rest.first_chunk_mut::<OUTER>() else { return &mut [] };
        // The addresses of the Ethernet header that came: it ends where the outer headers will.
        let macs: [u8; 12] = outer[OUTER - ETHERNET..].first_chunk().copied().unwrap_or_default();
        ethernet[..12].copy_from_slice(&macs);
        ethernet[12..].copy_from_slice(&[0x08, 0x00]);
        *outer = self.template;
        // As it is in memory; the identification are its last two bytes.
        let iv = number.to_be();
        let flags = dont_fragment & self.copied | self.set;
        let (first, second) = (u16::from_ne_bytes([0, tos]), total.to_be());
        let [id, flags] = [(iv >> 48) as u16, u16::from_ne_bytes([flags, 0])];
        let sum = [first, second, id, flags].into_iter().fold(self.sum, |sum, word| sum + u32::from(word));
        // A sum of fewer than 2^16 words carries twice at most.
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = sum + (sum >> 16);
        outer[1] = tos;
        outer[2..4].copy_from_slice(&second.to_ne_bytes());
        outer[4..6].copy_from_slice(&id.to_ne_bytes());
        outer[6..8].copy_from_slice(&flags.to_ne_bytes());
        outer[10..12].copy_from_slice(&(!sum as u16).to_ne_bytes());
        outer[IPV4 + 4..IPV4 + 8].copy_from_slice(&((iv >> 32) as u32).to_ne_bytes());
        outer[IPV4 + 8..].copy_from_slice(&iv.to_ne_bytes());
        inner
    }
}
