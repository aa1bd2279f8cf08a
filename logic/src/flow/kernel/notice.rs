//! Why the kernel plane hands a packet to user space: `struct flow_notice` of `bpf/flow_abi.h`.

use crate::flow::action::RulePort;

/// The data that comes to user space with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The row of the rule whose step sent the packet; it may be a table's miss. 0 for [`NoticeReason::Slow`].
    pub rule: u32,
    /// The port that the packet came in by.
    pub port: RulePort,
    pub reason: NoticeReason,
    /// Length of the whole frame at that step. Fewer bytes may have come.
    pub frame_bytes: u32,
    /// The metadata that earlier rules wrote. Unknown, and 0, for [`NoticeReason::Slow`].
    pub metadata: u64,
    /// The tunnel id that earlier set-field actions wrote. Also unknown for [`NoticeReason::Slow`].
    pub tunnel_id: u64,
}

/// `enum flow_notice_reason` of `bpf/flow_abi.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoticeReason {
    /// A rule sends the packet to the controller.
    Action = 1,
    /// The TTL was 1 or less where a rule decrements it. The rest of the rules is not done.
    Ttl = 2,
    /// User space does the work of the rules. Nothing has been done to the packet.
    Slow = 3,
}

impl Notice {
    /// Length of the notice. The bytes of the frame follow it.
    pub const BYTES: usize = 32;

    /// Splits a record of the program into the notice and the bytes of the frame that came with it. `None` if it is
    /// not a record.
    pub fn read(record: &[u8]) -> Option<(Notice, &[u8])> {
        let (head, rest) = record.split_first_chunk::<{ Self::BYTES }>()?;
        let word = |at: usize| u32::from_ne_bytes(std::array::from_fn(|i| head[at + i]));
        let reason = match head[14] {
            1 => NoticeReason::Action,
            2 => NoticeReason::Ttl,
            3 => NoticeReason::Slow,
            _ => return None,
        };
        let port = RulePort(u16::from_ne_bytes([head[12], head[13]]).checked_add(1)?);
        let beside = |at: usize| u64::from_be_bytes(std::array::from_fn(|i| head[at + i]));
        let (metadata, tunnel_id) = (beside(16), beside(24));
        let notice = Notice { rule: word(0), port, reason, frame_bytes: word(4), metadata, tunnel_id };
        Some((notice, rest.get(..usize::try_from(word(8)).ok()?)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_to_its_end_and_no_further() {
        let record = |bytes: u32, port: u16, reason: u8| {
            let words = [7, 1500, bytes].map(u32::to_ne_bytes).concat();
            let beside = [9_u64, 8].map(u64::to_be_bytes).concat();
            [&words, &port.to_ne_bytes()[..], &[reason, 0], &beside, b"frame", &[0; 3]].concat()
        };
        let (port, reason) = (RulePort(3), NoticeReason::Ttl);
        let notice = Notice { rule: 7, port, reason, frame_bytes: 1500, metadata: 9, tunnel_id: 8 };
        assert_eq!(Notice::read(&record(5, 2, 2)), Some((notice, &b"frame"[..])));
        for bad in
            [record(9, 2, 2), record(u32::MAX, 2, 2), record(5, 2, 0), record(5, 2, 4), record(5, 0xffff, 1)]
        {
            assert_eq!(Notice::read(&bad), None, "{bad:?}");
        }
        let short = record(0, 2, 3);
        assert!((0..Notice::BYTES).all(|length| Notice::read(&short[..length]).is_none()));
        assert!(Notice::read(&short[..Notice::BYTES]).is_some_and(|(_, frame)| frame.is_empty()));
    }
}
