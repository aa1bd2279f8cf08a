//! Hello, experimenter, features, role and asynchronous settings.

use super::{cannot, pad, padding};
use crate::openflow::{
    BadMessage, CannotSay,
    format::{Format, Layout, OneOf, Pad, REST, U8, U32, U64, layout, words},
    message::{AsyncConfig, Experimenter, Features, Role},
    wire::{Reader, Write},
};

/// OFPHET_VERSIONBITMAP.
const VERSION_BITMAP: u16 = 1;

pub(super) const HELLO: Layout<Option<Vec<u8>>> =
    Layout(|r| REST.read(r).map(|body| read_hello(&body)), write_hello);

/// The versions of the bitmap, ascending (section 7.5.1). Unknown or broken elements are skipped: a body that we cannot
/// read must not end the session.
fn read_hello(body: &[u8]) -> Option<Vec<u8>> {
    let mut r = Reader::new(body, BadMessage::Length);
    while let Ok(element) = r.structure(2, BadMessage::Length) {
        match *element.rest() {
            [high, low, _, _, ref bitmaps @ ..] if u16::from_be_bytes([high, low]) == VERSION_BITMAP => {
                return Some((0..=u8::MAX).filter(|&version| in_bitmap(bitmaps, version)).collect());
            }
            [_, _, _, _, ..] => r.skip(padding(element.rest().len())).ok()?,
            _ => return None,
        }
    }
    None
}

/// Bit `n` of 32-bit word `i` is version `32 * i + n`.
fn in_bitmap(bitmaps: &[u8], version: u8) -> bool {
    let (word, bit) = (usize::from(version / 32), version % 32);
    let word = bitmaps.chunks_exact(4).nth(word).map(|w| u32::from_be_bytes([w[0], w[1], w[2], w[3]]));
    word.is_some_and(|word| word >> bit & 1 == 1)
}

fn write_hello(versions: &Option<Vec<u8>>, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    let Some(versions) = versions else { return Ok(()) };
    let from = out.len();
    out.u16(VERSION_BITMAP);
    out.u16(0);
    for word in 0..versions.iter().max().map_or(0, |v| v / 32 + 1) {
        out.u32(versions.iter().filter(|&&v| v / 32 == word).fold(0, |bits, v| bits | 1 << (v % 32)));
    }
    out.patch_length(from + 2, from);
    pad(out, from);
    Ok(())
}

/// Sections 7.5.4 and 7.3.5.15: the body is the same in a message, a multipart request and a reply.
pub(super) const EXPERIMENTER: Layout<Experimenter> =
    layout!(Experimenter { id: U32, subtype: U32, body: REST });

/// Section 7.3.1.
pub(super) const FEATURES: Layout<Features> = Layout(
    |r| FEATURES_FIELDS.read(r),
    |features, out| {
        if features.actions.is_some() || features.ports.is_some() {
            return Err(cannot("actions or ports among a switch's features"));
        }
        FEATURES_FIELDS.write(features, out)
    },
);
const FEATURES_FIELDS: Layout<Features> = layout!(
    Features {
        datapath_id: U64,
        buffers: U32,
        tables: U8,
        auxiliary_id: Pad(U8, 2),
        capabilities: Pad(U32, 4),
    },
    absent { actions: None, ports: None }
);

/// Section 7.3.9.
pub(super) const ROLE: OneOf<U32, Role> =
    OneOf(U32, &[Role::NoChange, Role::Equal, Role::Master, Role::Slave], BadMessage::Role);

/// Section 7.3.10.
pub(super) const ASYNC: Layout<AsyncConfig> =
    layout!(AsyncConfig { packet_in: words(), port_status: words(), flow_removed: words() });
