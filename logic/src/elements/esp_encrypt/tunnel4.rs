//! The short way for usual packets: tunnel mode over IPv4, not in UDP, after an Ethernet header without tags. The
//! headers in front then have a constant length. They are a few words, most of which belong to the SA. The bytes are
//! the same as those of `layout` and `write`, which handle all other packets and decide what is dropped (`tests::esp`
//! compares them).

use super::{
    super::{
        check::{ETHERNET, IPV4},
        packet::{Family, Headers, Packet},
    },
    ALIGNMENT, admits,
};
use crate::{
    esp::{self, Dont, Ends, Mode, Outbound, Selectors, TAG},
    flow::checksum::fold,
};

/// Length of everything before the inner packet: Ethernet header, IPv4, ESP, IV.
const FRONT: usize = ETHERNET + OUTER;
const OUTER: usize = IPV4 + esp::HEADER + esp::IV;
/// Padding of 0 to 3 bytes (RFC 4303 section 2.4), its length and the next header, with the first byte lowest, for IPv4
/// and IPv6.
const TRAILERS: [[u64; ALIGNMENT]; 2] = [
    [0x04_00, 0x04_01_01, 0x04_02_02_01, 0x04_03_03_02_01],
    [0x29_00, 0x29_01_01, 0x29_02_02_01, 0x29_03_03_02_01],
];
/// In the seventh byte of an IPv4 header, which is the first byte of a word in network order.
const DONT_FRAGMENT: u8 = 0x40;

/// The part that all packets of a batch share.
pub(super) struct Tunnel4<'s> {
    /// The outer IP header and the SPI, without the fields that differ. The first byte is lowest.
    template: [u64; 3],
    /// The sum of that header, in words of that byte order. A ones' complement sum is the same in any byte order (RFC
    /// 1071 section 2 B).
    sum: u64,
    /// DF is the inner packet's if this mask has it, combined with `set`.
    copied: u8,
    set: u8,
    /// The longest packet that fits into the SA's MTU after encryption.
    longest: usize,
    /// The selectors, if there are any.
    selectors: Option<&'s Selectors>,
    destination: u32,
}

/// The layout of a usual packet.
pub(super) struct OutputLayout {
    /// Positions in the frame: the Ethernet header, and the end of the tag.
    start: usize,
    end: usize,
    /// Length of the original packet.
    payload: usize,
}

impl<'s> Tunnel4<'s> {
    /// `None`: the SA does not allow the short way.
    pub(super) fn new(sa: &'s Outbound) -> Option<Self> {
        let (Mode::Tunnel, None, Ends::V4 { remote, .. }) = (sa.mode, sa.udp, sa.ends) else { return None };
        let mut template = [0; IPV4 + 4];
        let (ip, spi) = template.split_first_chunk_mut::<IPV4>()?;
        *ip = *sa.outer.ipv4()?;
        let sum = ip.as_chunks().0.iter().map(|word| u64::from(u32::from_le_bytes(*word))).sum();
        spi.copy_from_slice(&sa.spi.to_be_bytes());
        let [first, second, third] = template.as_chunks().0 else { return None };
        let template = [first, second, third].map(|word| u64::from_le_bytes(*word));
        let (copied, set) = match sa.outer.dont {
            Dont::Copy => (DONT_FRAGMENT, 0),
            Dont::Set => (0, DONT_FRAGMENT),
            Dont::Clear => (0, 0),
        };
        let selectors = Some(&sa.selectors).filter(|selectors| !selectors.is_any());
        let longest = (sa.mtu.checked_sub(OUTER + TAG)? & !(ALIGNMENT - 1)).checked_sub(esp::TRAILER)?;
        Some(Tunnel4 { template, sum, copied, set, longest, selectors, destination: remote.to_bits() })
    }

    /// The layout of the packet. `None`: it is not usual, or there is a reason not to send it.
    #[inline]
    pub(super) fn place(&self, packet: &Packet<'_>) -> Option<OutputLayout> {
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
        is_usual.then_some(OutputLayout { start, end, payload })
    }

    /// Writes everything except the encryption. Returns the text and the tag.
    #[inline]
    pub(super) fn write<'p>(
        &self,
        packet: &'p mut Packet<'_>,
        place: &OutputLayout,
        number: u64,
    ) -> &'p mut [u8] {
        let OutputLayout { start, end, payload } = *place;
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
        // The bytes after the trailer are for the tag, which is written later.
        let padding = (payload ^ 1).wrapping_add(1) & (ALIGNMENT - 1);
        if let Some(trailer) = inner.get_mut(payload..payload + 8) {
            trailer.copy_from_slice(&trailers[padding].to_le_bytes());
        }
        let Some((ethernet, rest)) = front.split_first_chunk_mut::<ETHERNET>() else { return &mut [] };
        let Some(outer) = rest.first_chunk_mut::<OUTER>() else { return &mut [] };
        // The addresses of the original Ethernet header. It ends where the outer headers will end.
        let macs: [u8; 12] = outer[OUTER - ETHERNET..].first_chunk().copied().unwrap_or_default();
        ethernet[..12].copy_from_slice(&macs);
        ethernet[12..].copy_from_slice(&[0x08, 0x00]);
        let flags = dont_fragment & self.copied | self.set;
        let differs = u64::from(tos) << 8
            | u64::from(total.swap_bytes()) << 16
            | u64::from((number as u16).swap_bytes()) << 32
            | u64::from(flags) << 48;
        let [first, second, third] = self.template;
        let (first, checksum) = (first | differs, self.checksum(differs));
        let second = second | u64::from(checksum) << 16;
        outer[..8].copy_from_slice(&first.to_le_bytes());
        outer[8..16].copy_from_slice(&second.to_le_bytes());
        outer[16..24].copy_from_slice(&third.to_le_bytes());
        outer[24..28].copy_from_slice(&(number as u32).to_be_bytes());
        outer[28..].copy_from_slice(&number.to_be_bytes());
        inner
    }

    /// The checksum of the IP header, with `differs` in addition to the common part.
    #[inline]
    fn checksum(&self, differs: u64) -> u16 {
        !fold(self.sum + (differs & 0xffff_ffff) + (differs >> 32))
    }
}
