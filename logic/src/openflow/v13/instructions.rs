//! Instructions (section 7.2.4).

use super::actions::{self, ACTIONS, Known};
use crate::{
    flow::{Action, Instructions, Refused},
    openflow::{
        BadMessage, CannotSay,
        format::{Format, Pad, Skip, U8, U64},
        wire::{Reader, Write},
    },
};

/// OFPIT: instruction types.
const GOTO_TABLE: u16 = 1;
const WRITE_METADATA: u16 = 2;
const WRITE_ACTIONS: u16 = 3;
const APPLY_ACTIONS: u16 = 4;
const CLEAR_ACTIONS: u16 = 5;
const METER: u16 = 6;
const EXPERIMENTER: u16 = 0xffff;

/// The instructions of a rule until the end, in the order in which they are done, and what is known of its packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct InstructionsWith(pub Known);

impl Format for InstructionsWith {
    type Value = Instructions;
    fn read(self, r: &mut Reader<'_>) -> Result<Instructions, BadMessage> {
        read(r)
    }
    fn write(self, instructions: &Instructions, out: &mut Vec<u8>) -> Result<(), CannotSay> {
        write(instructions, self.0, out)
    }
}

/// Each type may occur only once (section 5.9).
fn read(r: &mut Reader<'_>) -> Result<Instructions, BadMessage> {
    let (mut all, mut seen) = (Instructions::default(), 0_u8);
    while !r.is_empty() {
        let mut r = r.structure(2, BadMessage::InstructionLength)?;
        let (kind, length) = (r.u16()?, r.u16()?);
        if length % 8 != 0 {
            return Err(BadMessage::InstructionLength);
        }
        match kind {
            GOTO_TABLE => all.goto_table = Some(Pad(U8, 3).read(&mut r)?),
            WRITE_METADATA => all.metadata = Some((Skip(4, U64).read(&mut r)?, r.u64()?)),
            WRITE_ACTIONS => all.write = Skip(4, ACTIONS).read(&mut r)?,
            APPLY_ACTIONS => all.apply = Skip(4, ACTIONS).read(&mut r)?,
            CLEAR_ACTIONS => {
                all.clear = true;
                r.skip(4)?;
            }
            METER => all.meter = Some(r.u32()?),
            EXPERIMENTER => return Err(BadMessage::InstructionExperimenter),
            _ => return Err(BadMessage::InstructionType),
        }
        if !r.is_empty() {
            return Err(BadMessage::InstructionLength);
        }
        if seen & 1 << kind != 0 {
            return Err(Refused::BadInstruction.into());
        }
        seen |= 1 << kind;
    }
    Ok(all)
}

fn write(instructions: &Instructions, known: Known, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    if let Some(meter) = instructions.meter {
        write_word(METER, meter, out);
    }
    write_actions(APPLY_ACTIONS, &instructions.apply, known, out)?;
    if instructions.clear {
        write_word(CLEAR_ACTIONS, 0, out);
    }
    // Other tables may have changed the packet before the action set is done.
    write_actions(WRITE_ACTIONS, &instructions.write, Known::default(), out)?;
    if let Some((value, mask)) = instructions.metadata {
        out.u16(WRITE_METADATA);
        out.u16(24);
        out.zeros(4);
        out.u64(value);
        out.u64(mask);
    }
    if let Some(table) = instructions.goto_table {
        write_word(GOTO_TABLE, u32::from(table) << 24, out);
    }
    Ok(())
}

/// Writes an instruction of eight bytes.
fn write_word(kind: u16, word: u32, out: &mut Vec<u8>) {
    out.u16(kind);
    out.u16(8);
    out.u32(word);
}

fn write_actions(kind: u16, actions: &[Action], known: Known, out: &mut Vec<u8>) -> Result<(), CannotSay> {
    if actions.is_empty() {
        return Ok(());
    }
    let from = out.len();
    out.u16(kind);
    out.zeros(6);
    actions::write_list(actions, known, out)?;
    out.patch_length(from + 2, from);
    Ok(())
}
