//! The header that all versions share, and bounded reading and writing of big-endian fields.

use super::BadMessage;

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
    pub fn take(&mut self, bytes: usize) -> Result<&'a [u8], BadMessage> {
        let (taken, rest) = self.rest.split_at_checked(bytes).ok_or(self.short)?;
        self.rest = rest;
        Ok(taken)
    }
    /// The next `bytes` as a separate reader, with its own error.
    pub fn part(&mut self, bytes: usize, short: BadMessage) -> Result<Reader<'a>, BadMessage> {
        Ok(Reader::new(self.take(bytes)?, short))
    }
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], BadMessage> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(self.short)?;
        self.rest = rest;
        Ok(*taken)
    }
    pub fn skip(&mut self, bytes: usize) -> Result<(), BadMessage> {
        self.take(bytes).map(drop)
    }
    pub fn u8(&mut self) -> Result<u8, BadMessage> {
        Ok(u8::from_be_bytes(self.array()?))
    }
    pub fn u16(&mut self) -> Result<u16, BadMessage> {
        Ok(u16::from_be_bytes(self.array()?))
    }
    pub fn u32(&mut self) -> Result<u32, BadMessage> {
        Ok(u32::from_be_bytes(self.array()?))
    }
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
