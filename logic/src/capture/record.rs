//! The records of the ring (`struct capture_record` of `bpf/abi.h`).

use crate::{
    plan::{PortId, RouterId},
    reason::Reason,
};

/// The bytes at the beginning of a frame that are kept as it came in (`CAPTURE_HEAD_BYTES`).
pub const HEAD_BYTES: usize = 128;
/// The most bytes of a frame that are captured (`CAPTURE_FRAME_BYTES`).
pub const MOST_FRAME_BYTES: usize = 9216;

/// Offsets in `struct capture_record`.
pub mod at {
    pub const TIME: usize = 0;
    pub const IN_DATA: usize = 8;
    pub const OUT_DATA: usize = 16;
    pub const IN_BYTES: usize = 24;
    pub const OUT_BYTES: usize = 28;
    pub const FRAME_BYTES: usize = 32;
    pub const AHEAD: usize = 36;
    pub const IN_PORT: usize = 40;
    pub const OUT_PORT: usize = 42;
    pub const HEAD_BYTES: usize = 44;
    pub const REASON: usize = 47;
    pub const CORE: usize = 48;
    pub const ROUTER: usize = 50;
    pub const HAS_ROUTER: usize = 51;
    pub const CPU: usize = 52;
    pub const HEAD: usize = 56;
    pub const FRAME: usize = HEAD + super::HEAD_BYTES;
}

/// What happened to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Sent by a port; `None`: by several ports, or the port is not known.
    Forwarded(Option<PortId>),
    /// The program on another core went on with it.
    HandedTo(u16),
    /// It was passed up, dropped, or given to user space.
    Other(Reason),
}

/// A packet of the kernel plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    pub in_port: PortId,
    /// `None`: the packet was not for a router, or the program did not get as far as finding one.
    pub router: Option<RouterId>,
    pub fate: Fate,
    /// For samples: the packets that came on its core since the last one, including this one.
    pub ahead: u32,
    /// Length of the frame as it came in, and the first bytes of it. No bytes: it matched only as it left.
    pub in_bytes: u32,
    pub head: &'a [u8],
    /// Length of the frame as it left or where the program stopped, and the bytes of it.
    pub out_bytes: u32,
    pub frame: &'a [u8],
    /// Bytes that were put in front of the frame; below 0: that were taken from its front.
    pub pushed: i64,
}

impl<'a> Record<'a> {
    /// `None`: it is not a record.
    pub fn read(bytes: &'a [u8]) -> Option<Record<'a>> {
        let u16_at = |at: usize| Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        let u64_at = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let u32_at = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let byte = |at: usize| bytes.get(at).copied();
        let port = |at: usize| Some(u16_at(at)?.try_into().ok());
        let reason = byte(at::REASON)?;
        let fate = match (u16_at(at::CORE)?, reason) {
            (0, u8::MAX) => Fate::Forwarded(port(at::OUT_PORT)?),
            (core, u8::MAX) => Fate::HandedTo(core - 1),
            (_, reason) => Fate::Other(Reason::from_abi(reason.into())?),
        };
        let head = usize::from(u16_at(at::HEAD_BYTES)?);
        let frame = u32_at(at::FRAME_BYTES)? as usize;
        Some(Record {
            time_ns: u64_at(at::TIME)?,
            in_port: port(at::IN_PORT)??,
            router: (byte(at::HAS_ROUTER)? != 0).then_some(byte(at::ROUTER)?),
            fate,
            ahead: u32_at(at::AHEAD)?,
            in_bytes: u32_at(at::IN_BYTES)?,
            head: bytes.get(at::HEAD..at::HEAD + HEAD_BYTES)?.get(..head)?,
            out_bytes: u32_at(at::OUT_BYTES)?,
            frame: bytes.get(at::FRAME..)?.get(..frame)?,
            pushed: u64_at(at::IN_DATA)?.wrapping_sub(u64_at(at::OUT_DATA)?).cast_signed(),
        })
    }

    /// The frame as it came in, as far as it is captured: the head, then the rest of the frame, which forwarding does not change.
    /// Padding that was cut off from the end is missing. `None`: it matched only as it left.
    pub fn as_it_came_in(&self) -> Option<Vec<u8>> {
        if self.head.is_empty() {
            return None;
        }
        let mut frame = self.head.to_vec();
        let rest = self.pushed.saturating_add(HEAD_BYTES as i64);
        if self.in_bytes as usize > frame.len() {
            let rest = usize::try_from(rest).ok().and_then(|rest| self.frame.get(rest..));
            frame.extend(rest.unwrap_or_default());
        }
        frame.truncate(self.in_bytes as usize);
        Some(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(fill: impl FnOnce(&mut [u8])) -> Vec<u8> {
        let mut bytes = vec![0; at::FRAME];
        bytes[at::REASON] = u8::MAX;
        bytes[at::OUT_PORT..at::OUT_PORT + 2].copy_from_slice(&[0xff; 2]);
        fill(&mut bytes);
        bytes
    }

    fn put(bytes: &mut [u8], at: usize, value: u32) {
        bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }

    #[test]
    fn records_are_read() {
        let bytes = record(|bytes| {
            bytes[at::OUT_PORT..at::OUT_PORT + 2].copy_from_slice(&7_u16.to_ne_bytes());
            (bytes[at::IN_PORT], bytes[at::ROUTER], bytes[at::HAS_ROUTER]) = (3, 5, 1);
        });
        let read = Record::read(&bytes).unwrap();
        assert_eq!((read.in_port, read.router, read.fate), (3, Some(5), Fate::Forwarded(Some(7))));
        assert_eq!(read.as_it_came_in(), None);
        let bytes = record(|bytes| {
            bytes[at::REASON] = Reason::TtlExceeded as u8;
            put(bytes, at::AHEAD, 70_000);
        });
        let read = Record::read(&bytes).unwrap();
        assert_eq!((read.fate, read.router), (Fate::Other(Reason::TtlExceeded), None));
        assert_eq!(read.ahead, 70_000);
        let bytes = record(|bytes| bytes[at::CORE] = 4);
        assert_eq!(Record::read(&bytes).unwrap().fate, Fate::HandedTo(3));
        let bytes = record(|bytes| bytes[at::REASON] = 200);
        assert_eq!(Record::read(&bytes), None);
        assert_eq!(Record::read(&bytes[..at::FRAME - 1]), None);
    }

    /// A tag of four bytes is added to a frame, or removed, or neither. Padding is cut off from its end, or nothing.
    #[test]
    fn the_frame_that_came_in_is_put_together() {
        for (in_bytes, pushed, cut, snaplen) in [
            (1000, 0, 0, 9000),
            (1000, -4, 0, 9000),
            (1000, 4, 0, 9000),
            (1000, 4, 300, 9000),
            (1000, -50, 300, 9000),
            (1000, 0, 0, 200),
            (1000, 4, 0, 200),
            (1000, 0, 0, 100),
            (60, 0, 0, 9000),
            (64, 0, 18, 9000),
            (128, -4, 0, 9000),
        ] {
            let before: Vec<u8> = (0..in_bytes as usize).map(|at| at as u8 ^ (at >> 8) as u8).collect();
            let mut after = match pushed {
                0.. => [vec![9; pushed as usize], before.clone()].concat(),
                _ => before[-pushed as usize..].to_vec(),
            };
            after.truncate(after.len() - cut);
            let out_bytes = after.len();
            after.truncate(snaplen);
            let head = before.len().min(HEAD_BYTES);
            let mut bytes = record(|bytes| {
                bytes[at::IN_DATA..at::IN_DATA + 8].copy_from_slice(&5000_i64.to_ne_bytes());
                bytes[at::OUT_DATA..at::OUT_DATA + 8].copy_from_slice(&(5000_i64 - pushed).to_ne_bytes());
                put(bytes, at::IN_BYTES, in_bytes);
                put(bytes, at::OUT_BYTES, out_bytes as u32);
                put(bytes, at::FRAME_BYTES, after.len() as u32);
                bytes[at::HEAD_BYTES] = head as u8;
                bytes[at::HEAD..at::HEAD + head].copy_from_slice(&before[..head]);
            });
            let captured = (after.len() as i64 - pushed) as usize;
            bytes.extend(after);
            let came = Record::read(&bytes).unwrap().as_it_came_in().unwrap();
            assert_eq!(came, before[..captured.max(head)], "{in_bytes} {pushed} {cut} {snaplen}");
        }
    }

    proptest::proptest! {
        #[test]
        fn nothing_panics(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..400)) {
            if let Some(record) = Record::read(&bytes) {
                record.as_it_came_in();
            }
        }
    }
}
