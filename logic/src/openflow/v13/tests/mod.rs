//! | file | tests |
//! |---|---|
//! | `session`, `flows`, `multipart` | the bytes of each message |
//! | `fields` | the bytes of each field and action, and which of them are refused |
//! | `refused` | other messages that are refused, and with which error |
//! | `arbitrary`, `properties` | round trips of random messages, and random bytes |

mod arbitrary;
mod fields;
mod flows;
mod multipart;
mod properties;
mod refused;
mod session;

use super::*;
use crate::{
    flow::{Action, Field, Match, RulePort},
    openflow::wire::{Write, begin},
};

const XID: u32 = 0x0102_0304;

/// Bytes from hexadecimal digits. Blanks are skipped.
fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u32> = hex.chars().filter_map(|c| c.to_digit(16)).collect();
    assert!(
        hex.chars().all(|c| c.is_whitespace() || c.is_ascii_hexdigit()) && digits.len().is_multiple_of(2),
        "{hex}"
    );
    digits.chunks(2).map(|two| (two[0] << 4 | two[1]) as u8).collect()
}

/// A whole message of this type with this body.
fn whole(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut message = Vec::new();
    begin(VERSION, kind, XID, &mut message);
    message.extend_from_slice(body);
    message.patch_length(2, 0);
    message
}

/// Checks that the message is written as these bytes after the header, and read from them.
#[track_caller]
fn both(message: Message, kind: u8, body: &str) {
    let expected = whole(kind, &bytes(body));
    let mut out = vec![0xee];
    encode(&message, XID, &mut out).unwrap();
    assert_eq!(out[0], 0xee);
    assert_eq!(hex(&out[1..]), hex(&expected));
    let header = Header { version: 4, kind, length: expected.len() as u16, xid: XID };
    assert_eq!(decode(&expected), Ok((header, message)));
}

/// Checks that the message is read from these bytes. It would be written as other bytes.
#[track_caller]
fn read_as(kind: u8, body: &str, message: Message) {
    assert_eq!(read(kind, body), Ok(message));
}

fn read(kind: u8, body: &str) -> Result<Message, BadMessage> {
    decode(&whole(kind, &bytes(body))).map(|(_, message)| message)
}

/// Checks that 1.3 cannot express the message and that nothing is written.
#[track_caller]
fn unsaid(message: Message, what: &str) {
    let mut out = vec![0xee];
    assert_eq!(encode(&message, XID, &mut out).unwrap_err().what, what);
    assert_eq!(out, [0xee]);
}

/// The bytes in groups of four.
fn hex(bytes: &[u8]) -> String {
    let words: Vec<String> =
        bytes.chunks(4).map(|word| word.iter().map(|b| format!("{b:02x}")).collect()).collect();
    words.join(" ")
}

/// A match of TCP over IPv4 to port 80.
fn web() -> Match {
    Match::ANY.with(Field::EthType, 0x0800_u16).with(Field::IpProto, 6_u8).with(Field::TcpDst, 80_u16)
}

/// [`web`] on the wire: 4 + 6 + 5 + 6 bytes, and three of padding.
const WEB: &str = "0001 0015 80000a02 0800 80001401 06 80001c02 0050 000000";

/// A match of every packet on the wire.
const ANY: &str = "0001 0004 00000000";

fn to_controller() -> Action {
    Action::output(RulePort::CONTROLLER)
}
const TO_CONTROLLER: &str = "0000 0010 fffffffd ffff 000000000000";
