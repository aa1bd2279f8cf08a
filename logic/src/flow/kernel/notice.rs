//! Why the kernel plane hands a packet to user space: `struct flow_notice` of `bpf/flow_abi.h`.

use crate::flow::action::RulePort;

/// A packet that came to user space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The row of the rule whose steps say so, a table's miss among them; 0: [`NoticeReason::Slow`].
    pub rule: u32,
    /// The port it came in by.
    pub port: RulePort,
    pub reason: NoticeReason,
    /// Of the whole frame, as it was at that step: fewer may have come.
    pub frame_bytes: u32,
    /// What the rules before wrote for this one. Not known, and 0, of [`NoticeReason::Slow`].
    pub metadata: u64,
    /// What set-field actions before wrote. Not known either of [`NoticeReason::Slow`].
    pub tunnel_id: u64,
}

/// `enum flow_notice_reason` of `bpf/flow_abi.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoticeReason {
    /// A rule sends it to the controller.
    Action = 1,
    /// Its TTL was 1 or less where a rule takes one off; the rest of the rules is not done.
    Ttl = 2,
    /// User space does what the rules say: nothing has been done to it.
    Slow = 3,
}

impl Notice {
    /// Bytes of it, before those of the frame.
    pub const BYTES: usize = 32;

    /// A record of the program and the bytes of the frame in it, as many as the program gave. `None`: it is not one.
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
