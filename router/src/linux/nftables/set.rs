//! Sets and maps.

use super::{
    NEWSET, NEWSETELEM, TableKey,
    expression::{value, verdict},
    object,
};
use crate::linux::netlink::wire::{self, Message};
use logic::firewall::ruleset::{Element, Set, Value};
use std::time::Duration;

pub(super) const LIST_TABLE: u16 = 1;
pub(super) const LIST_SET: u16 = 2;
const LIST_ELEMENTS: u16 = 3;

/// `NFT_SET_*`
const INTERVAL: u32 = 1 << 2;
const MAP: u32 = 1 << 3;
const EVAL: u32 = 1 << 5;
const OBJECT: u32 = 1 << 6;
/// Flags up to `NFT_SET_EXPR`. A set with any other flag counts as changing.
const KNOWN: u32 = 0x1ff;
/// `NFT_SET_ELEM_*`
const INTERVAL_END: u32 = 1;
const CATCH_ALL: u32 = 2;

/// What a set holds, without its elements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    flags: u32,
    parts: Vec<u32>,
    effects: bool,
}

/// An element as the kernel reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawElement {
    flags: u32,
    key: Vec<u8>,
    key_end: Option<Vec<u8>>,
    value: Option<Value>,
    /// The time that was left when the element was read.
    expires_ms: Option<u64>,
    effects: bool,
}

pub(super) fn description(message: Message<'_>) -> Option<(TableKey, String, Description)> {
    const TABLE: u16 = 1;
    const NAME: u16 = 2;
    const FLAGS: u16 = 3;
    const KEY_LENGTH: u16 = 5;
    const DESCRIPTION: u16 = 9;
    const EXPRESSION: u16 = 17;
    const EXPRESSIONS: u16 = 18;
    let key = object(&message, NEWSET, TABLE)?;
    let (mut name, mut set, mut length) = (String::new(), Description::default(), 0);
    for (kind, value) in wire::attributes_after(message.payload, 4) {
        match kind {
            NAME => name = wire::text(value),
            FLAGS => set.flags = wire::be32_at(value, 0)?,
            KEY_LENGTH => length = wire::be32_at(value, 0)?,
            DESCRIPTION => set.parts = parts(value),
            EXPRESSION => set.effects |= !only_counts(value),
            EXPRESSIONS => set.effects |= !wire::attributes(value).all(|(_, one)| only_counts(one)),
            _ => (),
        }
    }
    if set.parts.is_empty() {
        set.parts = vec![length];
    }
    Some((key, name, set))
}

/// `NFTA_SET_DESC_CONCAT`: a list of fields with their lengths.
fn parts(description: &[u8]) -> Vec<u32> {
    const CONCAT: u16 = 2;
    const FIELD_LENGTH: u16 = 1;
    let fields = wire::attribute(description, CONCAT).unwrap_or_default();
    let length = |field| wire::attribute(field, FIELD_LENGTH).and_then(|value| wire::be32_at(value, 0));
    wire::attributes(fields).filter_map(|(_, field)| length(field)).collect()
}

/// Does a statement of a set or element do nothing but count?
fn only_counts(expression: &[u8]) -> bool {
    const NAME: u16 = 1;
    wire::attribute(expression, NAME).map(wire::text).is_some_and(|name| name == "counter" || name == "last")
}

pub(super) fn elements(message: Message<'_>) -> Option<Vec<RawElement>> {
    if message.kind != NEWSETELEM {
        return None;
    }
    let list = wire::attributes_after(message.payload, 4).find(|(kind, _)| *kind == LIST_ELEMENTS)?.1;
    Some(wire::attributes(list).map(|(_, element)| raw(element)).collect())
}

fn raw(attributes: &[u8]) -> RawElement {
    const KEY: u16 = 1;
    const DATA: u16 = 2;
    const FLAGS: u16 = 3;
    const EXPIRATION: u16 = 5;
    const EXPRESSION: u16 = 7;
    const KEY_END: u16 = 10;
    const EXPRESSIONS: u16 = 11;
    let mut element = RawElement::default();
    for (kind, bytes) in wire::attributes(attributes) {
        match kind {
            KEY => element.key = value(bytes).unwrap_or_default(),
            KEY_END => element.key_end = value(bytes),
            DATA => element.value = verdict(bytes).map(Value::Verdict).or(value(bytes).map(Value::Bytes)),
            FLAGS => element.flags = wire::be32_at(bytes, 0).unwrap_or(0),
            EXPIRATION => element.expires_ms = bytes.first_chunk().map(|bytes| u64::from_be_bytes(*bytes)),
            EXPRESSION => element.effects |= !only_counts(bytes),
            EXPRESSIONS => element.effects |= !wire::attributes(bytes).all(|(_, one)| only_counts(one)),
            _ => (),
        }
    }
    element
}

impl Description {
    /// The set with these elements. `read_at`: a time of CLOCK_MONOTONIC before they were read.
    pub fn with(self, raw: Vec<RawElement>, read_at: Duration) -> Set {
        let mut set = Set {
            parts: self.parts,
            // A value that is not read (an object) is as good as one that changes.
            changing: self.flags & (EVAL | OBJECT) != 0
                || self.flags & !KNOWN != 0
                || raw.iter().any(|e| e.flags & !(INTERVAL_END | CATCH_ALL) != 0),
            effects: self.effects || raw.iter().any(|e| e.effects),
            elements: Vec::new(),
            otherwise: None,
        };
        let (all, mut raw): (Vec<_>, Vec<_>) = raw.into_iter().partition(|e| e.flags & CATCH_ALL != 0);
        // There is no place for the time until it expires.
        set.changing |= all.iter().any(|e| e.expires_ms.is_some());
        set.otherwise = all.into_iter().next().map(|e| e.value.unwrap_or(Value::None));
        let length = set.key_bytes();
        // Keys of several parts may come without the zeros that fill the last one.
        let fits = |key: &Vec<u8>| {
            key.len() == length || set.parts.len() > 1 && key.len() == length.next_multiple_of(4)
        };
        let wrong = raw.iter().any(|e| {
            !fits(&e.key)
                || e.key_end.as_ref().is_some_and(|end| !fits(end))
                || self.flags & MAP != 0 && !e.is_map_value()
        });
        set.changing |= wrong;
        if wrong {
            return set;
        }
        raw.sort_by(|a, b| (&a.key, a.flags & INTERVAL_END == 0).cmp(&(&b.key, b.flags & INTERVAL_END == 0)));
        set.elements = match self.flags & INTERVAL != 0 && set.parts.len() == 1 {
            true => intervals(raw, read_at),
            false => raw.into_iter().map(|element| element.alone(read_at)).collect(),
        };
        set
    }
}

impl RawElement {
    fn is_map_value(&self) -> bool {
        self.value.is_some() || self.flags & INTERVAL_END != 0
    }

    fn alone(self, read_at: Duration) -> Element {
        let high = self.key_end.unwrap_or_else(|| self.key.clone());
        let expires_at = self.expires_ms.map(|ms| read_at.saturating_add(Duration::from_millis(ms)));
        Element { high, low: self.key, value: self.value.unwrap_or(Value::None), expires_at }
    }
}

/// An interval begins with an element, and ends before the next one, of either kind. Elements are in order, and one
/// that ends an interval comes before one that begins another at the same key.
fn intervals(raw: Vec<RawElement>, read_at: Duration) -> Vec<Element> {
    let ends: Vec<Option<Vec<u8>>> = (0..raw.len())
        .map(|i| raw[i + 1..].iter().find(|next| next.key > raw[i].key).map(|next| one_less(&next.key)))
        .collect();
    raw.into_iter()
        .zip(ends)
        .filter(|(element, _)| element.flags & INTERVAL_END == 0)
        .map(|(element, end)| {
            let high = end.unwrap_or_else(|| vec![0xff; element.key.len()]);
            Element { high, ..element.alone(read_at) }
        })
        .collect()
}

/// The number before this one, big-endian.
fn one_less(key: &[u8]) -> Vec<u8> {
    let mut key = key.to_vec();
    for byte in key.iter_mut().rev() {
        *byte = byte.wrapping_sub(1);
        if *byte != 0xff {
            break;
        }
    }
    key
}
