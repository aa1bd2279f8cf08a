//! The header that all versions share, and bounded reading and writing of big-endian fields.

use super::{BadMessage, CannotSay, format::Choice};

/// Bytes of the header: version, type, length, transaction id (OpenFlow 1.0 section 5.1, 1.3 section A.1).
pub const HEADER: usize = 8;

/// The longest message. Its length has 16 bits.
pub const LONGEST: usize = u16::MAX as usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub version: u8,
    pub kind: u8,
    /// Length of the whole message in bytes, including the header. At least [`HEADER`].
    pub length: u16,
    pub xid: u32,
}

/// The beginning of a stream of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split<'a> {
    /// The message is not complete yet.
    Wait,
    /// A message with its header. The stream continues after it.
    Message(Header, &'a [u8]),
    /// The length is less than that of the header, so the start of the next message is unknown.
    Broken(Header),
}

/// Splits off the first message of `stream`.
pub fn split(stream: &[u8]) -> Split<'_> {
    let Some(header) = Header::read(stream) else { return Split::Wait };
    match usize::from(header.length) {
        length if length < HEADER => Split::Broken(header),
        length => stream.get(..length).map_or(Split::Wait, |message| Split::Message(header, message)),
    }
}

impl Header {
    /// Reads a header. `None` if there are fewer than eight bytes.
    pub fn read(bytes: &[u8]) -> Option<Header> {
        let mut r = Reader::new(bytes, BadMessage::Length);
        Some(Header { version: r.u8().ok()?, kind: r.u8().ok()?, length: r.u16().ok()?, xid: r.u32().ok()? })
    }
}

/// Reads fields in order. If bytes are missing, it returns the error given to [`new`](Reader::new).
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    short: BadMessage,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8], short: BadMessage) -> Self {
        Self { rest: bytes, short }
    }
    /// The bytes that were not read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
    #[inline]
    pub fn take(&mut self, bytes: usize) -> Result<&'a [u8], BadMessage> {
        let (taken, rest) = self.rest.split_at_checked(bytes).ok_or(self.short)?;
        self.rest = rest;
        Ok(taken)
    }
    /// The next `bytes` as a separate reader, with its own error.
    pub fn part(&mut self, bytes: usize, short: BadMessage) -> Result<Reader<'a>, BadMessage> {
        Ok(Reader::new(self.take(bytes)?, short))
    }
    /// Takes the next structure. Its length is `at` bytes after its beginning and covers all of it.
    pub fn structure(&mut self, at: usize, bad: BadMessage) -> Result<Reader<'a>, BadMessage> {
        let length = self.rest.get(at..at + 2).map(|l| u16::from_be_bytes([l[0], l[1]])).ok_or(bad)?;
        self.part(length.into(), bad).map_err(|_| bad)
    }
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], BadMessage> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(self.short)?;
        self.rest = rest;
        Ok(*taken)
    }
    #[inline]
    pub fn skip(&mut self, bytes: usize) -> Result<(), BadMessage> {
        self.take(bytes).map(drop)
    }
    #[inline]
    pub fn u8(&mut self) -> Result<u8, BadMessage> {
        Ok(u8::from_be_bytes(self.array()?))
    }
    #[inline]
    pub fn u16(&mut self) -> Result<u16, BadMessage> {
        Ok(u16::from_be_bytes(self.array()?))
    }
    #[inline]
    pub fn u32(&mut self) -> Result<u32, BadMessage> {
        Ok(u32::from_be_bytes(self.array()?))
    }
    #[inline]
    pub fn u64(&mut self) -> Result<u64, BadMessage> {
        Ok(u64::from_be_bytes(self.array()?))
    }
    /// Reads a big-endian integer of 1 to 16 bytes.
    pub fn uint(&mut self, bytes: usize) -> Result<u128, BadMessage> {
        Ok(self.take(bytes)?.iter().fold(0, |value, &b| value << 8 | u128::from(b)))
    }
    /// Reads a string from a field of `bytes`: up to the first zero, and without the last byte, which should be zero.
    pub fn text(&mut self, bytes: usize) -> Result<Vec<u8>, BadMessage> {
        let field = &self.take(bytes)?[..bytes - 1];
        Ok(field.split(|&b| b == 0).next().unwrap_or_default().to_vec())
    }
}

/// Begins a message: writes the header with a length of 0.
pub fn begin(version: u8, kind: u8, xid: u32, out: &mut Vec<u8>) {
    out.u8(version);
    out.u8(kind);
    out.u16(0);
    out.u32(xid);
}

/// Appends one message with its header. On error, `out` stays as it was.
pub fn append<C: Choice<Number = u8>>(
    version: u8,
    message: &C::Value,
    xid: u32,
    too_long: CannotSay,
    out: &mut Vec<u8>,
) -> Result<(), CannotSay> {
    let from = out.len();
    begin(version, C::number(message)?, xid, out);
    let written =
        C::write(message, out).and_then(|()| if out.len() - from > LONGEST { Err(too_long) } else { Ok(()) });
    match written {
        Ok(()) => out.patch_length(from + 2, from),
        Err(_) => out.truncate(from),
    }
    written
}

/// OFPSF_REPLY_MORE, OFPMPF_REQ_MORE and OFPMPF_REPLY_MORE, and the offset of their byte in a message.
pub const MORE: u16 = 1;
const MORE_AT: usize = HEADER + 3;

/// Appends as many messages as a reply needs, each begun by `begin`. Each has the flag [`MORE`], except the last one, which
/// has it only if `more` is set. An item that does not fit into the message begins the next one. Items of a list that
/// cannot be expressed or fit into no message are left out; their number is returned. On error, `out` stays as it was.
pub fn divide<C: Choice>(
    reply: &C::Value,
    more: bool,
    begin: impl Fn(&mut Vec<u8>),
    too_long: CannotSay,
    out: &mut Vec<u8>,
) -> Result<usize, CannotSay> {
    let finish = |message: usize, more: bool, out: &mut Vec<u8>| {
        out.patch_length(message + 2, message);
        out[message + MORE_AT] = more.into();
    };
    let before = out.len();
    let (mut message, mut left_out) = (before, 0);
    begin(out);
    let head = out.len() - message;
    let items = C::items(reply);
    for at in 0..items.unwrap_or(1) {
        let item = out.len();
        let written = C::write_item(reply, at, out);
        let fits = head + out.len() - item <= LONGEST;
        match written.and(if fits { Ok(()) } else { Err(too_long) }) {
            Err(refused) if items.is_none() => {
                out.truncate(before);
                return Err(refused);
            }
            Err(_) => {
                out.truncate(item);
                left_out += 1;
            }
            Ok(()) if out.len() - message > LONGEST => {
                let moved = out.split_off(item);
                finish(message, true, out);
                message = out.len();
                begin(out);
                out.extend_from_slice(&moved);
            }
            Ok(()) => {}
        }
    }
    finish(message, more, out);
    Ok(left_out)
}

/// Appends fields.
pub trait Write {
    fn u8(&mut self, value: u8);
    fn u16(&mut self, value: u16);
    fn u32(&mut self, value: u32);
    fn u64(&mut self, value: u64);
    /// The lowest `bytes` bytes of an integer, big-endian.
    fn uint(&mut self, value: u128, bytes: usize);
    fn zeros(&mut self, bytes: usize);
    /// Writes a string into a field of `bytes`. It is cut so that a zero follows it.
    fn text(&mut self, text: &[u8], bytes: usize);
    /// Writes a length at `at`: the number of bytes from `from` to the end. It saturates at 65,535; callers limit what
    /// they write.
    fn patch_length(&mut self, at: usize, from: usize);
}

impl Write for Vec<u8> {
    fn u8(&mut self, value: u8) {
        self.push(value);
    }
    fn u16(&mut self, value: u16) {
        self.extend_from_slice(&value.to_be_bytes());
    }
    fn u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_be_bytes());
    }
    fn u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_be_bytes());
    }
    fn uint(&mut self, value: u128, bytes: usize) {
        self.extend_from_slice(&value.to_be_bytes()[16 - bytes..]);
    }
    fn zeros(&mut self, bytes: usize) {
        self.resize(self.len() + bytes, 0);
    }
    fn text(&mut self, text: &[u8], bytes: usize) {
        let text = &text[..text.len().min(bytes - 1)];
        self.extend_from_slice(text);
        self.zeros(bytes - text.len());
    }
    fn patch_length(&mut self, at: usize, from: usize) {
        let length = u16::try_from(self.len() - from).unwrap_or(u16::MAX);
        self[at..at + 2].copy_from_slice(&length.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_split_where_the_lengths_say() {
        let echo = [1, 2, 0, 10, 0, 0, 0, 7, 0xab, 0xcd];
        let header = Header { version: 1, kind: 2, length: 10, xid: 7 };
        let mut stream = echo.to_vec();
        stream.extend([4, 0]);
        assert_eq!(split(&stream), Split::Message(header, &echo));
        assert_eq!(split(&stream[10..]), Split::Wait);
        assert_eq!(split(&echo[..9]), Split::Wait);
        assert!(matches!(split(&[1, 2, 0, 7, 0, 0, 0, 7]), Split::Broken(_)));
    }

    #[test]
    fn missing_bytes_give_the_readers_error() {
        let mut r = Reader::new(&[0, 1, 2], BadMessage::ActionLength);
        assert_eq!((r.u16(), r.u16(), r.u8()), (Ok(1), Err(BadMessage::ActionLength), Ok(2)));
    }

    #[test]
    fn a_text_leaves_a_zero_at_its_end() {
        let mut out = Vec::new();
        out.text(b"abcdef", 4);
        assert_eq!(out, b"abc\0");
        assert_eq!(Reader::new(&out, BadMessage::Length).text(4), Ok(b"abc".to_vec()));
    }
}
