//! Marks: a number and a time in the last bytes of a frame, where its payload ends. Marking keeps right checksums
//! right, and wrong ones wrong.

use etherparse::{NetSlice, SlicedPacket, TransportSlice};

/// `struct mark` in replay.bpf.c: magic, number, CLOCK_MONOTONIC in nanoseconds (its low 32 bits), in network order.
pub const BYTES: usize = 12;
const MAGIC: u32 = 0x6d6c_7265;

/// Where a frame's transport header is, and the checksum that covers the mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    transport_at: usize,
    checksum_at: Option<usize>,
    is_udp: bool,
}

/// `None` if the frame cannot be marked. Its last bytes must be payload of UDP, TCP or an ICMP echo; it must not be a
/// fragment or padded.
pub fn room(frame: &[u8]) -> Option<Room> {
    let parsed = SlicedPacket::from_ethernet(frame).ok()?;
    matches!(parsed.net, Some(NetSlice::Ipv4(_) | NetSlice::Ipv6(_))).then_some(())?;
    let (slice, payload, checksum) = match &parsed.transport {
        Some(TransportSlice::Udp(udp)) => (udp.slice(), udp.payload(), 6),
        Some(TransportSlice::Tcp(tcp)) => (tcp.slice(), tcp.payload(), 16),
        Some(TransportSlice::Icmpv4(icmp)) if matches!(icmp.type_u8(), 0 | 8) => {
            (icmp.slice(), icmp.payload(), 2)
        }
        Some(TransportSlice::Icmpv6(icmp)) if matches!(icmp.type_u8(), 128 | 129) => {
            (icmp.slice(), icmp.payload(), 2)
        }
        _ => return None,
    };
    let transport_at = slice.as_ptr() as usize - frame.as_ptr() as usize;
    if payload.len() < BYTES || transport_at + slice.len() != frame.len() {
        return None;
    }
    let is_udp = checksum == 6;
    let checksum_at = transport_at + checksum;
    let has_none = is_udp && frame[checksum_at..checksum_at + 2] == [0, 0];
    Some(Room { transport_at, checksum_at: (!has_none).then_some(checksum_at), is_udp })
}

/// Marks a frame that has this room.
pub fn write(frame: &mut [u8], room: Room, sequence: u32, time_ns: u32) {
    let at = frame.len() - BYTES;
    let is_odd = !(at - room.transport_at).is_multiple_of(2);
    let before = sum(&frame[at..], is_odd);
    for (place, word) in [MAGIC, sequence, time_ns].into_iter().enumerate() {
        frame[at + 4 * place..][..4].copy_from_slice(&word.to_be_bytes());
    }
    let Some(checksum) = room.checksum_at else { return };
    let old = u16::from_be_bytes([frame[checksum], frame[checksum + 1]]);
    // RFC 1624, equation 3.
    let mut new = !fold(u64::from(!old) + u64::from(!before) + u64::from(sum(&frame[at..], is_odd)));
    if room.is_udp && new == 0 {
        new = 0xffff;
    }
    frame[checksum..checksum + 2].copy_from_slice(&new.to_be_bytes());
}

/// Checksum of 16-bit words. If `is_odd`, the first word begins one byte earlier.
fn sum(bytes: &[u8], is_odd: bool) -> u16 {
    let word = |(at, byte): (usize, &u8)| {
        let is_high = at.is_multiple_of(2) != is_odd;
        u64::from(*byte) << if is_high { 8 } else { 0 }
    };
    fold(bytes.iter().enumerate().map(word).sum())
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;
    use proptest::prelude::*;

    use super::*;

    fn udp(payload: &[u8]) -> Vec<u8> {
        let mut frame = Vec::new();
        let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 9, 0, 1], 64);
        builder.udp(1, 2).write(&mut frame, payload).unwrap();
        frame
    }

    fn is_right(frame: &[u8]) -> bool {
        let parsed = SlicedPacket::from_ethernet(frame).unwrap();
        let (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Udp(udp))) = (parsed.net, parsed.transport)
        else {
            panic!("no UDP");
        };
        let header = udp.to_header();
        header.calc_checksum_ipv4(&ip.header().to_header(), udp.payload()).unwrap() == udp.checksum()
    }

    #[test]
    fn frames_without_room_cannot_be_marked() {
        assert!(room(&udp(&[0; BYTES - 1])).is_none());
        assert!(room(&udp(&[0; BYTES])).is_some());
        let padded = [udp(&[0; BYTES]), vec![0]].concat();
        assert!(room(&padded).is_none());
        let mut fragment = udp(&[0; 40]);
        fragment[20] = 0x20;
        assert!(room(&fragment).is_none());
        assert!(room(&[0; 64]).is_none());
    }

    proptest! {
        #[test]
        fn checksums_stay_right_or_wrong(
            payload in prop::collection::vec(any::<u8>(), BYTES..100), sequence: u32, time_ns: u32,
            error in prop_oneof![Just(0), any::<u16>()],
        ) {
            let mut frame = udp(&payload);
            let checksum = frame[40..42].to_vec();
            let wrong = (u16::from_be_bytes([checksum[0], checksum[1]]) ^ error).max(1);
            frame[40..42].copy_from_slice(&wrong.to_be_bytes());
            let was_right = is_right(&frame);
            let room = room(&frame).unwrap();
            write(&mut frame, room, sequence, time_ns);
            prop_assert_eq!(is_right(&frame), was_right);
            prop_assert_eq!(&frame[frame.len() - 8..frame.len() - 4], &sequence.to_be_bytes()[..]);
        }

        #[test]
        fn no_frame_is_too_strange(frame in prop::collection::vec(any::<u8>(), 0..200)) {
            room(&frame);
        }
    }
}
