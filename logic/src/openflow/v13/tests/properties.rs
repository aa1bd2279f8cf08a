use super::*;
use crate::openflow::message::StatsRequest;
use proptest::{collection::vec, prelude::*, sample::Index};

/// Checks that a message that can be read can be written, and is read back as the same.
fn settles(message: &[u8]) -> Result<(), TestCaseError> {
    let Ok((header, decoded)) = decode(message) else { return Ok(()) };
    let mut again = Vec::new();
    match encode(&decoded, header.xid, &mut again) {
        Ok(()) => prop_assert_eq!(decode(&again).map(|(_, message)| message), Ok(decoded)),
        // The features to set are not kept.
        Err(_) => prop_assert_eq!(decoded, Message::StatsRequest(StatsRequest::TableFeatures { sets: true })),
    }
    Ok(())
}

proptest! {
    #[test]
    fn a_written_message_is_read_back(message in arbitrary::message(), xid: u32) {
        let mut out = Vec::new();
        encode(&message, xid, &mut out).unwrap();
        let header = Header { version: VERSION, kind: Body::number(&message).unwrap(), length: out.len() as u16, xid };
        prop_assert_eq!(decode(&out), Ok((header, message)));
    }

    #[test]
    fn random_bytes_do_no_harm(kind in 0..31_u8, body in vec(any::<u8>(), 0..200)) {
        settles(&whole(kind, &body))?;
        let _ = decode(&body);
    }

    /// Few random multipart messages have a known kind, so this test draws the kinds.
    #[test]
    fn random_multipart_bytes_do_no_harm(kind in 18..=19_u8, part in 0..15_u8, body in vec(any::<u8>(), 0..200)) {
        let head = [0, part, 0, 0, 0, 0, 0, 0];
        settles(&whole(kind, &[&head, &body[..]].concat()))?;
    }

    #[test]
    fn spoilt_messages_do_no_harm(
        message in arbitrary::message(),
        spoilt in vec((any::<Index>(), any::<u8>(), 0..4_u8), 1..4),
    ) {
        let mut out = Vec::new();
        encode(&message, XID, &mut out).unwrap();
        for (at, byte, how) in spoilt {
            let at = at.index(out.len());
            match how {
                0 => drop(out.drain(at..)),
                1 => out.insert(at, byte),
                2 => out[at] ^= 1 << (byte % 8),
                _ => out[at] = byte,
            }
            // The rest is reached only if version, type and length are right.
            out.resize(out.len().max(HEADER), 0);
            out[0] = VERSION;
            out[1] = Body::number(&message).unwrap();
            out.patch_length(2, 0);
        }
        settles(&out)?;
    }
}
