//! Hello, error, experimenter, features, switch settings, role and asynchronous settings.

use super::{ALL_TABLES, cannot, pad, padding, rest, structure, unless};
use crate::{
    flow::TableId,
    openflow::{
        BadMessage, CannotSay, Message,
        message::{AsyncConfig, Config, ErrorMessage, Experimenter, Features, Fragments, Role},
        wire::{Reader, Write},
    },
};

/// OFPHET_VERSIONBITMAP.
const VERSION_BITMAP: u16 = 1;

/// The versions of the bitmap, ascending (section 7.5.1). Unknown or broken elements are skipped: a body that we cannot
/// read must not end the session.
pub(super) fn read_hello(body: &[u8]) -> Option<Vec<u8>> {
    let mut r = Reader::new(body, BadMessage::Length);
    while let Ok(element) = structure(&mut r, 2, BadMessage::Length) {
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

pub(super) fn write_hello(versions: Option<&[u8]>, out: &mut Vec<u8>) {
    let Some(versions) = versions else { return };
    let from = out.len();
    out.u16(VERSION_BITMAP);
    out.u16(0);
    for word in 0..versions.iter().max().map_or(0, |v| v / 32 + 1) {
        out.u32(versions.iter().filter(|&&v| v / 32 == word).fold(0, |bits, v| bits | 1 << (v % 32)));
    }
    out.patch_length(from + 2, from);
    pad(out, from);
}

/// Section 7.4.4. For an experimenter's error (type 0xffff), the code is its `exp_type`, and `data` begins with its id.
pub(super) fn read_error(r: &mut Reader<'_>) -> Result<ErrorMessage, BadMessage> {
    Ok(ErrorMessage { kind: r.u16()?, code: r.u16()?, data: rest(r)? })
}

pub(super) fn write_error(error: &ErrorMessage, out: &mut Vec<u8>) {
    out.u16(error.kind);
    out.u16(error.code);
    out.extend_from_slice(&error.data);
}

/// Sections 7.5.4 and 7.3.5.15: the body is the same in a message, a multipart request and a reply.
pub(super) fn read_experimenter(r: &mut Reader<'_>) -> Result<Experimenter, BadMessage> {
    Ok(Experimenter { id: r.u32()?, subtype: r.u32()?, body: rest(r)? })
}

pub(super) fn write_experimenter(experimenter: &Experimenter, out: &mut Vec<u8>) {
    out.u32(experimenter.id);
    out.u32(experimenter.subtype);
    out.extend_from_slice(&experimenter.body);
}

/// Section 7.3.1.
pub(super) fn read_features(r: &mut Reader<'_>) -> Result<Features, BadMessage> {
    let (datapath_id, buffers, tables, auxiliary_id) = (r.u64()?, r.u32()?, r.u8()?, r.u8()?);
    r.skip(2)?;
    let capabilities = r.u32()?;
    r.skip(4)?;
    Ok(Features { datapath_id, buffers, tables, auxiliary_id, capabilities, actions: None, ports: None })
}

pub(super) fn write_features(features: &Features, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    if features.actions.is_some() || features.ports.is_some() {
        return Err(cannot("actions or ports among a switch's features"));
    }
    out.u64(features.datapath_id);
    out.u32(features.buffers);
    out.u8(features.tables);
    out.u8(features.auxiliary_id);
    out.zeros(2);
    out.u32(features.capabilities);
    out.zeros(4);
    Ok(())
}

/// Section 7.3.2.
pub(super) fn read_config(r: &mut Reader<'_>) -> Result<Config, BadMessage> {
    let fragments = match r.u16()? {
        0 => Fragments::Normal,
        1 => Fragments::Drop,
        2 => Fragments::Reassemble,
        _ => return Err(BadMessage::SwitchConfig),
    };
    Ok(Config { fragments, miss_send_len: r.u16()? })
}

pub(super) fn write_config(config: Config, out: &mut Vec<u8>) {
    out.u16(match config.fragments {
        Fragments::Normal => 0,
        Fragments::Drop => 1,
        Fragments::Reassemble => 2,
    });
    out.u16(config.miss_send_len);
}

/// Section 7.3.3.
pub(super) fn read_table_mod(r: &mut Reader<'_>) -> Result<Message, BadMessage> {
    let table = unless(r.u8()?, ALL_TABLES);
    r.skip(3)?;
    Ok(Message::TableMod { table, config: r.u32()? })
}

pub(super) fn write_table_mod(table: Option<TableId>, config: u32, out: &mut Vec<u8>) {
    out.u8(table.unwrap_or(ALL_TABLES));
    out.zeros(3);
    out.u32(config);
}

/// Section 7.3.9: the role and the generation id.
pub(super) fn read_role(r: &mut Reader<'_>) -> Result<(Role, u64), BadMessage> {
    let role = match r.u32()? {
        0 => Role::NoChange,
        1 => Role::Equal,
        2 => Role::Master,
        3 => Role::Slave,
        _ => return Err(BadMessage::Role),
    };
    r.skip(4)?;
    Ok((role, r.u64()?))
}

pub(super) fn write_role(role: Role, generation: u64, out: &mut Vec<u8>) {
    out.u32(match role {
        Role::NoChange => 0,
        Role::Equal => 1,
        Role::Master => 2,
        Role::Slave => 3,
    });
    out.zeros(4);
    out.u64(generation);
}

/// Section 7.3.10.
pub(super) fn read_async(r: &mut Reader<'_>) -> Result<AsyncConfig, BadMessage> {
    Ok(AsyncConfig {
        packet_in: [r.u32()?, r.u32()?],
        port_status: [r.u32()?, r.u32()?],
        flow_removed: [r.u32()?, r.u32()?],
    })
}

pub(super) fn write_async(config: &AsyncConfig, out: &mut Vec<u8>) {
    for masks in [config.packet_in, config.port_status, config.flow_removed] {
        masks.into_iter().for_each(|mask| out.u32(mask));
    }
}
