//! `struct xdp_desc`: the entries of RX and TX rings.

use super::buffer::Packet;

/// The shortest packet that is sent, in bytes: an Ethernet header. The kernel takes an empty packet from the ring and never completes
/// it.
pub(super) const SHORTEST: u16 = 14;

/// The meaning of a descriptor in an RX ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// A packet in one frame.
    Whole { frame: u32, start: u16, length: u16 },
    /// A part of a packet in several frames, which we did not ask for. `more`: other parts follow.
    Part { frame: u32, more: bool },
    /// It names no frame.
    Nonsense,
}

/// Reads a descriptor. The memory has `frames` of `frame_bytes` (a power of two, at most 4096). `within`: the descriptor before was a
/// part that other parts follow.
#[inline]
pub(super) fn read([address, rest]: [u64; 2], frame_bytes: u32, frames: u32, within: bool) -> Received {
    // struct xdp_desc: addr, then len and options of 32 bits each.
    let [length, options] = halves(rest);
    let start = (address & u64::from(frame_bytes - 1)) as u32;
    let frame = address / u64::from(frame_bytes);
    if frame >= u64::from(frames) {
        return Received::Nonsense;
    }
    let frame = frame as u32;
    let more = options & libc::XDP_PKT_CONTD != 0;
    if within || more || options != 0 {
        return Received::Part { frame, more };
    }
    if length > frame_bytes - start {
        return Received::Nonsense;
    }
    Received::Whole { frame, start: start as u16, length: length as u16 }
}

#[inline]
pub(super) fn write(packet: &Packet, frame_bytes: u32) -> [u64; 2] {
    let address = u64::from(packet.frame) * u64::from(frame_bytes) + u64::from(packet.start);
    let [a, b, c, d] = u32::from(packet.length).to_ne_bytes();
    [address, u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0])]
}

/// The frame of an entry of a completion ring or fill ring. Entries are addresses, and the kernel may give one inside the frame.
#[inline]
pub(super) fn frame_of(address: u64, frame_bytes: u32) -> u32 {
    u32::try_from(address / u64::from(frame_bytes)).unwrap_or(u32::MAX)
}

#[inline]
fn halves(word: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
    [u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h])]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn word(length: u32, options: u32) -> u64 {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        bytes[4..].copy_from_slice(&options.to_ne_bytes());
        u64::from_ne_bytes(bytes)
    }

    #[test]
    fn received_descriptors_are_checked() {
        let read = |address, length, options| super::read([address, word(length, options)], 2048, 10, false);
        assert_eq!(read(2048 * 3 + 256, 60, 0), Received::Whole { frame: 3, start: 256, length: 60 });
        assert_eq!(read(2048 * 9 + 256, 1792, 0), Received::Whole { frame: 9, start: 256, length: 1792 });
        assert_eq!(read(2048 * 9 + 256, 1793, 0), Received::Nonsense, "into the next frame");
        assert_eq!(read(2048 * 9 + 256, u32::MAX, 0), Received::Nonsense);
        assert_eq!(read(2048 * 10, 60, 0), Received::Nonsense, "after the last frame");
        assert_eq!(read(u64::MAX, 0, 0), Received::Nonsense);
        assert_eq!(read(2048, 60, 1), Received::Part { frame: 1, more: true });
        assert_eq!(read(2048, 60, 4), Received::Part { frame: 1, more: false }, "unknown options");
        let last = super::read([2048, word(60, 0)], 2048, 10, true);
        assert_eq!(last, Received::Part { frame: 1, more: false });
    }

    proptest! {
        #[test]
        fn a_packet_is_never_outside_of_its_frame(entry: [u64; 2], near in 0_u64..30_000, length in 0_u32..5000, within: bool) {
            for entry in [entry, [near, word(length, 0)], [near, entry[1]]] {
                match read(entry, 2048, 10, within) {
                    Received::Whole { frame, start, length } => {
                        prop_assert!(frame < 10 && u32::from(start) + u32::from(length) <= 2048);
                        prop_assert_eq!(write(&Packet { frame, start, length }, 2048), entry);
                    }
                    Received::Part { frame, .. } => prop_assert!(frame < 10),
                    Received::Nonsense => {}
                }
            }
        }
    }
}
