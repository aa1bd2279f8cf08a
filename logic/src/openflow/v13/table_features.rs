//! The abilities of a table (section 7.3.5.5).
//!
//! Rules and the table-miss rule have the same abilities, so each list is written twice. When reading, the lists for the
//! table-miss rule are skipped, and so are unknown lists.

use super::{oxm, pad, padding};
use crate::{
    flow::Field,
    openflow::{
        BadMessage,
        common::TABLE_NAME,
        format::{Format, Layout, Pad, REST, Sized, Skip, U8, U16, U32, U64, layout},
        message::TableFeatures,
        wire::{Reader, Write},
    },
};

/// Bytes of the header of a property. An instruction or action that only names its type has the same length.
const HEADER: u16 = 4;

/// OFPTFPT: property types. The number after each is that of the table-miss rule, where there is one.
const INSTRUCTIONS: u16 = 0;
const NEXT_TABLES: u16 = 2;
const WRITE_ACTIONS: u16 = 4;
const APPLY_ACTIONS: u16 = 6;
const MATCH: u16 = 8;
const WILDCARDS: u16 = 10;
const WRITE_SET_FIELD: u16 = 12;
const APPLY_SET_FIELD: u16 = 14;

pub(super) const FEATURES: Sized<Layout<TableFeatures>> = Sized(
    0,
    BadMessage::Length,
    Layout(
        |r| {
            let mut features = HEAD.read(r)?;
            while !r.is_empty() {
                read_property(r, &mut features)?;
            }
            Ok(features)
        },
        |features, out| {
            HEAD.write(features, out)?;
            write_properties(features, out);
            Ok(())
        },
    ),
);

/// The part before the properties, with the length before it. Its last bytes are settings (OFPTC), which are all deprecated,
/// and the room of the table.
const HEAD: Layout<TableFeatures> = layout!(
    TableFeatures {
        table: Skip(2, Pad(U8, 5)),
        name: TABLE_NAME,
        metadata_match: U64,
        metadata_write: U64,
        max_entries: Skip(4, U32),
    },
    absent {
        instructions: 0,
        next_tables: Vec::new(),
        actions: 0,
        matches: Vec::new(),
        set_fields: Vec::new(),
    }
);

fn read_property(r: &mut Reader<'_>, features: &mut TableFeatures) -> Result<(), BadMessage> {
    let mut property = r.structure(2, BadMessage::Length)?;
    r.skip(padding(property.rest().len()))?;
    match Pad(U16, 2).read(&mut property)? {
        INSTRUCTIONS => features.instructions |= read_types(&mut property)?,
        NEXT_TABLES => features.next_tables = REST.read(&mut property)?,
        WRITE_ACTIONS | APPLY_ACTIONS => features.actions |= read_types(&mut property)?,
        MATCH => read_fields(&mut property, &mut features.matches)?,
        WRITE_SET_FIELD | APPLY_SET_FIELD => read_fields(&mut property, &mut features.set_fields)?,
        _ => {}
    }
    Ok(())
}

/// Reads a bitmap of instructions or actions, each without its body. The bitmap does not include those of experimenters.
fn read_types(r: &mut Reader<'_>) -> Result<u32, BadMessage> {
    let mut types = 0;
    while !r.is_empty() {
        let kind = r.structure(2, BadMessage::Length)?.u16()?;
        types |= 1_u32.checked_shl(kind.into()).unwrap_or(0);
    }
    Ok(types)
}

/// Reads headers of TLVs. Each field counts once.
fn read_fields(r: &mut Reader<'_>, fields: &mut Vec<Field>) -> Result<(), BadMessage> {
    while !r.is_empty() {
        if let (Some(field), ..) = oxm::read_header(r)?
            && !fields.contains(&field)
        {
            fields.push(field);
        }
    }
    Ok(())
}

fn write_properties(features: &TableFeatures, out: &mut Vec<u8>) {
    let pair = |kind, out: &mut Vec<u8>, write: &dyn Fn(&mut Vec<u8>)| {
        write_property(kind, out, write);
        write_property(kind + 1, out, write);
    };
    let (instructions, actions) = (features.instructions, features.actions);
    pair(INSTRUCTIONS, out, &|out| write_types(instructions, out));
    pair(NEXT_TABLES, out, &|out| out.extend_from_slice(&features.next_tables));
    pair(WRITE_ACTIONS, out, &|out| write_types(actions, out));
    pair(APPLY_ACTIONS, out, &|out| write_types(actions, out));
    // Every field may have its mask, and may be left out.
    let masks = |field: &Field| field.spec().maskable;
    write_property(MATCH, out, &|out| write_fields(&features.matches, masks, out));
    write_property(WILDCARDS, out, &|out| write_fields(&features.matches, |_| false, out));
    pair(WRITE_SET_FIELD, out, &|out| write_fields(&features.set_fields, |_| false, out));
    pair(APPLY_SET_FIELD, out, &|out| write_fields(&features.set_fields, |_| false, out));
}

fn write_property(kind: u16, out: &mut Vec<u8>, write: &dyn Fn(&mut Vec<u8>)) {
    let from = out.len();
    out.u16(kind);
    out.u16(0);
    write(out);
    out.patch_length(from + 2, from);
    pad(out, from);
}

fn write_types(types: u32, out: &mut Vec<u8>) {
    for kind in (0..32).filter(|kind| types >> kind & 1 == 1) {
        out.u16(kind);
        out.u16(HEADER);
    }
}

fn write_fields(fields: &[Field], has_mask: impl Fn(&Field) -> bool, out: &mut Vec<u8>) {
    fields.iter().for_each(|field| oxm::write_header(*field, has_mask(field), out));
}
