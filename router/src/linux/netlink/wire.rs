//! The netlink framing: messages in a buffer, attributes in a message, requests to send.
//!
//! All reads stay within the given slice: a length that does not fit ends the iteration. Multi-byte values are in host
//! byte order unless the text says otherwise. Kernel source: `include/uapi/linux/netlink.h`.

use std::{fmt::Write as _, net::IpAddr};

/// `NLM_F_REQUEST`.
pub const REQUEST: u16 = 1;
/// `NLM_F_ACK`.
pub const ACK: u16 = 4;
/// `NLM_F_ECHO`: the kernel also sends the event of the request to whoever asked.
pub const ECHO: u16 = 8;
/// `NLM_F_DUMP`, in a request.
pub const DUMP: u16 = 0x300;
/// `NLM_F_DUMP_INTR`, in an answer: the table changed while it was read.
pub const DUMP_INTERRUPTED: u16 = 0x10;
/// `NLM_F_REPLACE`.
pub const REPLACE: u16 = 0x100;
/// `NLM_F_APPEND`.
pub const APPEND: u16 = 0x800;
/// `NLMSG_ERROR`.
pub const ERROR: u16 = 2;
/// `NLMSG_DONE`.
pub const DONE: u16 = 3;
/// `NLMSG_OVERRUN`.
pub const OVERRUN: u16 = 4;

const HEADER: usize = 16;
/// `NLA_F_NESTED` and `NLA_F_NET_BYTEORDER` are flags in the type of an attribute.
const ATTRIBUTE_TYPE_MASK: u16 = 0x3fff;

/// One netlink message.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// `nlmsg_type`.
    pub kind: u16,
    /// `nlmsg_flags`.
    pub flags: u16,
    /// `nlmsg_seq`: the number of the request that this message answers.
    pub sequence: u32,
    /// The bytes after the header.
    pub payload: &'a [u8],
}

/// The messages in the bytes that one receive call returned.
pub fn messages(bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    framed(bytes).map(|(_, message)| message)
}

/// The messages that answer a request from this port id, in the bytes that one receive call returned.
pub fn messages_to(port: u32, bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    framed(bytes).filter(move |(to, _)| *to == port).map(|(_, message)| message)
}

/// Messages, each with its `nlmsg_pid`.
fn framed(mut bytes: &[u8]) -> impl Iterator<Item = (u32, Message<'_>)> {
    std::iter::from_fn(move || {
        let length = u32_at(bytes, 0)? as usize;
        let payload = bytes.get(HEADER..length)?;
        let message = Message {
            kind: u16_at(bytes, 4)?,
            flags: u16_at(bytes, 6)?,
            sequence: u32_at(bytes, 8)?,
            payload,
        };
        let port = u32_at(bytes, 12)?;
        bytes = bytes.get(align(length)..).unwrap_or_default();
        Some((port, message))
    })
}

/// The attributes in `bytes`, as (type, value).
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)? & ATTRIBUTE_TYPE_MASK;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(align(length)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The attributes after a fixed header of `header` bytes; none if the header is cut short.
pub fn attributes_after(payload: &[u8], header: usize) -> impl Iterator<Item = (u16, &[u8])> {
    attributes(payload.get(align(header)..).unwrap_or_default())
}

/// The first attribute of this type.
pub fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|a| a.0 == kind).map(|a| a.1)
}

/// Lengths are padded to four bytes.
pub fn align(length: usize) -> usize {
    length.next_multiple_of(4)
}

/// The u16 at `offset`.
pub fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(offset..)?.first_chunk()?))
}

/// The u32 at `offset`.
pub fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(offset..)?.first_chunk()?))
}

/// The big-endian u32 at `offset` (netfilter's attributes).
pub fn be32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(offset..)?.first_chunk()?))
}

/// A string attribute, up to its terminating zero.
pub fn text(bytes: &[u8]) -> String {
    let bytes = bytes.split(|b| *b == 0).next().unwrap_or_default();
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        // The bytes follow in hex, so different names stay different.
        Err(_) => bytes.iter().fold(String::from_utf8_lossy(bytes).into_owned(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        }),
    }
}

/// An address attribute: 4 or 16 bytes in network order.
pub fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(<[u8; 4]>::try_from(bytes).ok()?.into()),
        16 => Some(<[u8; 16]>::try_from(bytes).ok()?.into()),
        _ => None,
    }
}

/// Appends an attribute. `value` has at most some hundred bytes.
pub fn push(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    bytes.extend_from_slice(&length.to_ne_bytes());
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(&value[..usize::from(length) - 4]);
    bytes.resize(align(bytes.len()), 0);
}

/// A request under construction.
#[derive(Clone, Debug)]
pub struct Request(Vec<u8>);

impl Request {
    /// A message of this type. `flags` are set in addition to `NLM_F_REQUEST`. `header` is the fixed part after the
    /// netlink header.
    pub fn new(kind: u16, flags: u16, header: &[u8]) -> Request {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | REQUEST).to_ne_bytes());
        bytes.extend_from_slice(header);
        bytes.resize(align(bytes.len()), 0);
        Request(bytes)
    }

    /// Adds an attribute. `value` has at most some hundred bytes.
    pub fn with(mut self, kind: u16, value: &[u8]) -> Request {
        push(&mut self.0, kind, value);
        self
    }

    /// Sets these flags, too.
    pub fn set_flags(&mut self, flags: u16) {
        let flags = flags | u16::from_ne_bytes([self.0[6], self.0[7]]);
        self.0[6..8].copy_from_slice(&flags.to_ne_bytes());
    }

    /// The bytes to send under this sequence number.
    pub fn bytes(&mut self, sequence: u32) -> &[u8] {
        let length = self.0.len() as u32;
        self.0[0..4].copy_from_slice(&length.to_ne_bytes());
        self.0[8..12].copy_from_slice(&sequence.to_ne_bytes());
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_request_is_read_as_it_was_built() {
        let mut request = Request::new(24, DUMP, &[7; 3]).with(1, &[1, 2, 3]).with(2 | 0x8000, &[]);
        let bytes = request.bytes(9).to_vec();
        let all: Vec<_> = messages(&bytes).collect();
        assert_eq!(all.len(), 1);
        assert_eq!((all[0].kind, all[0].flags, all[0].sequence), (24, DUMP | REQUEST, 9));
        assert_eq!((messages_to(0, &bytes).count(), messages_to(7, &bytes).count()), (1, 0));
        let found: Vec<_> = attributes_after(all[0].payload, 3).collect();
        assert_eq!(found, [(1, &[1u8, 2, 3][..]), (2, &[][..])]);
    }

    #[test]
    fn lengths_that_do_not_fit_end_the_iteration() {
        assert_eq!(attributes(&[3, 0, 1, 0]).count(), 0);
        assert_eq!(attributes(&[9, 0, 1, 0, 0, 0, 0, 0]).count(), 0);
        assert_eq!(attributes(&[5, 0, 1, 0, 7]).collect::<Vec<_>>(), [(1, &[7u8][..])]);
        assert_eq!(messages(&[15, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).count(), 0);
    }

    #[test]
    fn each_message_goes_to_its_port() {
        // The first one has no payload, the second one has padding.
        let first = [16, 0, 0, 0, 3, 0, 2, 0, 9, 0, 0, 0, 7, 1, 0, 0];
        let second = [17, 0, 0, 0, 24, 0, 0, 0, 0, 1, 0, 0, 8, 1, 0, 0, 5, 0, 0, 0];
        let bytes = [&first[..], &second].concat();
        let read = |m: Message<'_>| (m.kind, m.flags, m.sequence, m.payload.to_vec());
        let (one, other) = ((DONE, 2, 9, vec![]), (24, 0, 256, vec![5]));
        assert_eq!(messages(&bytes).map(read).collect::<Vec<_>>(), [one.clone(), other.clone()]);
        assert_eq!(messages_to(0x107, &bytes).map(read).collect::<Vec<_>>(), [one]);
        assert_eq!(messages_to(0x108, &bytes).map(read).collect::<Vec<_>>(), [other]);
    }

    proptest! {
        #[test]
        fn the_iteration_over_any_bytes_ends(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(messages(&bytes).count() <= bytes.len() / HEADER);
            prop_assert!(attributes(&bytes).count() <= bytes.len().div_ceil(4));
        }
    }
}
