//! `bytes`: each message byte by byte; `refusals`: what is refused in reading and in writing; `generated`:
//! round trips.

mod bytes;
mod generated;
mod refusals;

use super::*;
use crate::flow::{Action, Field, FlowCommand, FlowFlags, FlowMod, Instructions, Match};

/// The transaction id of all messages in these tests.
const XID: u32 = 7;

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|d| d as u8).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// A message of this type with this body, in hexadecimal.
fn message(kind: u8, body: &str) -> Vec<u8> {
    let body = unhex(body);
    let mut message = vec![1, kind];
    message.u16((8 + body.len()) as u16);
    message.u32(XID);
    message.extend(body);
    message
}

fn encoded(message: &Message) -> Vec<u8> {
    let mut out = Vec::new();
    encode(message, XID, &mut out).unwrap();
    out
}

/// The message decoded from these bytes.
fn decoded(bytes: &[u8]) -> Result<Message, BadMessage> {
    decode(bytes).map(|(_, message)| message)
}

/// A flow-mod that adds a rule for all packets with these actions.
fn add(actions: Vec<Action>) -> FlowMod {
    FlowMod {
        command: FlowCommand::Add,
        table: Some(0),
        cookie: 0,
        cookie_mask: 0,
        priority: 100,
        matching: Match::ANY,
        instructions: Instructions::apply(actions),
        idle_timeout: 0,
        hard_timeout: 0,
        out_port: None,
        out_group: None,
        flags: FlowFlags { reset_counts: true, ..FlowFlags::default() },
        buffer: None,
    }
}

/// A match of this field alone.
fn only(field: Field, value: u128) -> Match {
    Match::ANY.with(field, value)
}
