//! Filters of captures: classic BPF, to which libpcap compiles an expression, becomes the function `capture_filter` of the program
//! (`bpf/capture.h`).
//!
//! A filter sees the first buffer of a frame. A load past its end ends the filter, and the packet does not match, as in
//! bpf_convert_filter (net/core/filter.c). The kernel's verifier checks the result once more.

use std::fmt;

/// An instruction of classic BPF (`struct sock_filter`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Classic {
    pub code: u16,
    pub jt: u8,
    pub jf: u8,
    pub k: u32,
}

/// The most instructions of a filter. libpcap needs about six for each address and port.
pub const MOST_CLASSIC: usize = 512;
/// The room of the program, in its instructions (`CAPTURE_FILTER_ROOM`).
pub const ROOM: usize = 2048;
/// Offsets beyond this never match.
const MOST_OFFSET: u32 = 0x2400;

/// Why a filter cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilterError {
    Empty,
    TooLong {
        instructions: usize,
        most: usize,
    },
    /// The number of an instruction, and its code.
    Unknown {
        at: usize,
        code: u16,
    },
    /// It jumps out of the filter, or the filter does not end with a return.
    Open {
        at: usize,
    },
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FilterError::Empty => write!(f, "the filter has no instructions"),
            FilterError::TooLong { instructions, most } => {
                write!(
                    f,
                    "the filter has {instructions} instructions, and {most} are allowed: make it shorter"
                )
            }
            FilterError::Unknown { at, code } => {
                write!(f, "instruction {at} of the filter has code {code:#x}, which captures do not support")
            }
            FilterError::Open { at } => write!(f, "instruction {at} of the filter leads out of it"),
        }
    }
}

impl std::error::Error for FilterError {}

/// Registers of the function.
mod reg {
    pub const RESULT: u8 = 0;
    pub const CONTEXT: u8 = 1;
    pub const POINTER: u8 = 1;
    /// The second argument of the function, and where it is kept.
    pub const CELLS_ARGUMENT: u8 = 2;
    pub const END: u8 = 3;
    pub const CELLS: u8 = 5;
    pub const DATA: u8 = 6;
    pub const DATA_END: u8 = 7;
    pub const A: u8 = 8;
    pub const X: u8 = 9;
}

/// Codes of instructions: eBPF in capitals, and the classes of classic BPF (include/uapi/linux/bpf_common.h).
pub(super) mod code {
    pub const MOV_REG: u8 = 0xbf;
    pub const MOV32_IMM: u8 = 0xb4;
    pub const MOV32_REG: u8 = 0xbc;
    pub const ADD_IMM: u8 = 0x07;
    pub const ADD_REG: u8 = 0x0f;
    pub const ADD32_IMM: u8 = 0x04;
    pub const AND32_IMM: u8 = 0x54;
    pub const LSH32_IMM: u8 = 0x64;
    pub const NEG32: u8 = 0x84;
    pub const TO_BE: u8 = 0xdc;
    pub const LOAD_WORD: u8 = 0x61;
    pub const STORE_WORD: u8 = 0x63;
    pub const STORE_WORD_IMM: u8 = 0x62;
    pub const JUMP: u8 = 0x05;
    pub const JUMP_GREATER_REG: u8 = 0x2d;
    pub const JUMP_EQUAL_IMM: u8 = 0x15;
    pub const JUMP32_EQUAL_IMM: u8 = 0x16;
    pub const JUMP32_GREATER_IMM: u8 = 0x26;
    pub const JUMP32_NOT_LESS_IMM: u8 = 0x36;
    pub const CALL: u8 = 0x85;
    /// The helper bpf_xdp_get_buff_len.
    pub const FRAME_BYTES: i32 = 188;

    pub const LD: u16 = 0;
    pub const LDX: u16 = 1;
    pub const ST: u16 = 2;
    pub const STX: u16 = 3;
    pub const ALU: u16 = 4;
    pub const JMP: u16 = 5;
    pub const RET: u16 = 6;
    pub const MISC: u16 = 7;
}

/// Where a jump leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Classic(usize),
    Reject,
    Out,
}

#[derive(Default)]
struct Program {
    words: Vec<u64>,
    /// Jumps whose targets are not known yet, by their place.
    jumps: Vec<(usize, Target)>,
    /// Where the instructions of classic BPF begin.
    begins: Vec<usize>,
}

impl Program {
    fn put(&mut self, code: u8, to: u8, from: u8, offset: i16, value: i32) {
        let registers = u64::from(to) | u64::from(from) << 4;
        let word = u64::from(code)
            | registers << 8
            | u64::from(offset.cast_unsigned()) << 16
            | u64::from(value.cast_unsigned()) << 32;
        self.words.push(word);
    }

    fn jump(&mut self, code: u8, to: u8, from: u8, value: i32, target: Target) {
        self.jumps.push((self.words.len(), target));
        self.put(code, to, from, 0, value);
    }

    /// Loads bytes of the frame at `offset` from a pointer. They are known to be there.
    fn load(&mut self, size: u8, to: u8, pointer: u8, offset: i16) {
        let code = match size {
            1 => 0x71,
            2 => 0x69,
            _ => code::LOAD_WORD,
        };
        self.put(code, to, pointer, offset, 0);
        if size > 1 {
            self.put(code::TO_BE, to, 0, 0, i32::from(size) * 8);
        }
    }

    /// Loads from a fixed place.
    fn load_at(&mut self, size: u8, to: u8, offset: u32) {
        let Ok(at) = i16::try_from(offset.min(MOST_OFFSET)) else { return };
        if offset > MOST_OFFSET {
            // Always. The kernel refuses programs whose instructions after a plain jump nothing reaches.
            self.jump(code::JUMP32_NOT_LESS_IMM, reg::A, 0, 0, Target::Reject);
            return;
        }
        self.put(code::MOV_REG, reg::POINTER, reg::DATA, 0, 0);
        self.put(code::ADD_IMM, reg::POINTER, 0, 0, i32::from(at) + i32::from(size));
        self.jump(code::JUMP_GREATER_REG, reg::POINTER, reg::DATA_END, 0, Target::Reject);
        self.load(size, to, reg::DATA, at);
    }

    /// Loads from X + `offset`.
    fn load_behind_x(&mut self, size: u8, offset: u32) {
        self.put(code::MOV32_REG, reg::RESULT, reg::X, 0, 0);
        self.put(code::ADD32_IMM, reg::RESULT, 0, 0, offset.cast_signed());
        self.jump(code::JUMP32_GREATER_IMM, reg::RESULT, 0, MOST_OFFSET as i32, Target::Reject);
        self.put(code::MOV_REG, reg::POINTER, reg::DATA, 0, 0);
        self.put(code::ADD_REG, reg::POINTER, reg::RESULT, 0, 0);
        self.put(code::MOV_REG, reg::END, reg::POINTER, 0, 0);
        self.put(code::ADD_IMM, reg::END, 0, 0, size.into());
        self.jump(code::JUMP_GREATER_REG, reg::END, reg::DATA_END, 0, Target::Reject);
        self.load(size, reg::A, reg::POINTER, 0);
    }

    fn begin(&mut self, filter: &[Classic]) {
        if filter.iter().any(|i| is_length(i) || is_memory(i)) {
            // It is never NULL, which the kernel does not know.
            self.jump(code::JUMP_EQUAL_IMM, reg::CELLS_ARGUMENT, 0, 0, Target::Reject);
            self.put(code::MOV_REG, reg::CELLS, reg::CELLS_ARGUMENT, 0, 0);
        }
        if filter.iter().any(is_length) {
            self.put(code::MOV_REG, reg::DATA, reg::CONTEXT, 0, 0);
            self.put(code::MOV_REG, reg::DATA_END, reg::CELLS, 0, 0);
            self.put(code::CALL, 0, 0, 0, code::FRAME_BYTES);
            self.put(code::MOV_REG, reg::CONTEXT, reg::DATA, 0, 0);
            self.put(code::MOV_REG, reg::CELLS, reg::DATA_END, 0, 0);
            self.put(code::STORE_WORD, reg::CELLS, reg::RESULT, LENGTH, 0);
        }
        // data and data_end of struct xdp_md
        self.put(code::LOAD_WORD, reg::DATA, reg::CONTEXT, 0, 0);
        self.put(code::LOAD_WORD, reg::DATA_END, reg::CONTEXT, 4, 0);
        self.put(code::MOV32_IMM, reg::A, 0, 0, 0);
        self.put(code::MOV32_IMM, reg::X, 0, 0, 0);
        for cell in 0..CELLS {
            if filter.iter().any(|i| i.k == cell && is_memory(i)) {
                self.put(code::STORE_WORD_IMM, reg::CELLS, 0, place(cell), 0);
            }
        }
    }

    fn end(mut self) -> Vec<u64> {
        let reject = self.words.len();
        if self.jumps.iter().any(|(_, target)| *target == Target::Reject) {
            self.put(code::MOV32_IMM, reg::RESULT, 0, 0, 0);
        }
        let out = self.words.len();
        for (at, target) in std::mem::take(&mut self.jumps) {
            let to = match target {
                Target::Classic(n) => self.begins.get(n).copied().unwrap_or(out),
                Target::Reject => reject,
                Target::Out => out,
            };
            // At most ROOM instructions, so the distance fits.
            let distance = u64::try_from(to - at - 1).unwrap_or_default();
            self.words[at] |= (distance & 0xffff) << 16;
        }
        self.words
    }
}

/// Words of memory (`struct capture_cells`). The length of the frame is behind them.
const CELLS: u32 = 16;
const LENGTH: i16 = 4 * CELLS as i16;

fn place(cell: u32) -> i16 {
    4 * cell.min(CELLS) as i16
}

fn class(i: &Classic) -> u16 {
    i.code & 7
}

fn mode(i: &Classic) -> u16 {
    i.code & 0xe0
}

fn is_load(i: &Classic) -> bool {
    matches!(class(i), code::LD | code::LDX)
}

fn is_length(i: &Classic) -> bool {
    is_load(i) && mode(i) == 0x80
}

fn is_memory(i: &Classic) -> bool {
    matches!(class(i), code::ST | code::STX) || (is_load(i) && mode(i) == 0x60)
}

/// Translates a filter. The result falls through at its end with the answer in r0: other than 0 if the packet matches.
///
/// # Errors
/// The filter is not valid, or too long.
pub fn compile(filter: &[Classic]) -> Result<Vec<u64>, FilterError> {
    if filter.is_empty() {
        return Err(FilterError::Empty);
    }
    if filter.len() > MOST_CLASSIC {
        return Err(FilterError::TooLong { instructions: filter.len(), most: MOST_CLASSIC });
    }
    let reached = reached(filter)?;
    let mut program = Program::default();
    program.begin(filter);
    for (at, (instruction, reached)) in filter.iter().zip(reached).enumerate() {
        program.begins.push(program.words.len());
        if reached && !translate(&mut program, at, instruction) {
            return Err(FilterError::Unknown { at, code: instruction.code });
        }
    }
    let words = program.end();
    if words.len() > ROOM {
        return Err(FilterError::TooLong { instructions: words.len(), most: ROOM });
    }
    Ok(words)
}

/// Where the program can go on after this instruction. The first place is where a jump leads if its condition holds.
pub(super) fn next(at: usize, i: &Classic) -> Vec<usize> {
    match (class(i), i.code & 0xf0) {
        (code::RET, _) => Vec::new(),
        (code::JMP, 0) => vec![(at + 1).saturating_add(i.k as usize)],
        (code::JMP, _) => vec![at + 1 + usize::from(i.jt), at + 1 + usize::from(i.jf)],
        _ => vec![at + 1],
    }
}

/// Whether each instruction is reached. The kernel refuses programs with others. All jumps lead forward.
fn reached(filter: &[Classic]) -> Result<Vec<bool>, FilterError> {
    let mut reached = vec![false; filter.len()];
    reached[0] = true;
    for (at, i) in filter.iter().enumerate() {
        if !reached[at] {
            continue;
        }
        for to in next(at, i) {
            *reached.get_mut(to).ok_or(FilterError::Open { at })? = true;
        }
    }
    Ok(reached)
}

/// Returns false if the instruction is not supported.
fn translate(p: &mut Program, at: usize, i: &Classic) -> bool {
    match class(i) {
        code::LD | code::LDX => return translate_load(p, i),
        code::ST if i.code == code::ST && i.k < CELLS => {
            p.put(code::STORE_WORD, reg::CELLS, reg::A, place(i.k), 0);
        }
        code::STX if i.code == code::STX && i.k < CELLS => {
            p.put(code::STORE_WORD, reg::CELLS, reg::X, place(i.k), 0);
        }
        code::ALU => return translate_arithmetic(p, i),
        code::JMP => return translate_jump(p, at, i),
        code::RET => {
            match i.code & 0x18 {
                0 => p.put(code::MOV32_IMM, reg::RESULT, 0, 0, i32::from(i.k != 0)),
                0x10 => p.put(code::MOV32_REG, reg::RESULT, reg::A, 0, 0),
                _ => return false,
            }
            p.jump(code::JUMP, 0, 0, 0, Target::Out);
        }
        code::MISC => match i.code & 0xf8 {
            0 => p.put(code::MOV32_REG, reg::X, reg::A, 0, 0),
            0x80 => p.put(code::MOV32_REG, reg::A, reg::X, 0, 0),
            _ => return false,
        },
        _ => return false,
    }
    true
}

fn translate_load(p: &mut Program, i: &Classic) -> bool {
    let size = match i.code & 0x18 {
        0 => 4,
        0x08 => 2,
        0x10 => 1,
        _ => return false,
    };
    let to = if class(i) == code::LD { reg::A } else { reg::X };
    match (mode(i), size) {
        (0, 4) => p.put(code::MOV32_IMM, to, 0, 0, i.k.cast_signed()),
        (0x60, 4) if i.k < CELLS => p.put(code::LOAD_WORD, to, reg::CELLS, place(i.k), 0),
        (0x80, 4) => p.put(code::LOAD_WORD, to, reg::CELLS, LENGTH, 0),
        // Offsets from SKF_LL_OFF (-0x200000) on do not mean bytes of the frame.
        (0x20, _) if to == reg::A && i.k < 0x8000_0000 => p.load_at(size, to, i.k),
        (0x40, _) if to == reg::A && i.k < 0x8000_0000 => p.load_behind_x(size, i.k),
        // The length of an IPv4 header.
        (0xa0, 1) if to == reg::X && i.k < 0x8000_0000 => {
            p.load_at(1, to, i.k);
            if i.k <= MOST_OFFSET {
                p.put(code::AND32_IMM, to, 0, 0, 0xf);
                p.put(code::LSH32_IMM, to, 0, 0, 2);
            }
        }
        _ => return false,
    }
    true
}

fn translate_arithmetic(p: &mut Program, i: &Classic) -> bool {
    let (op, by_x) = (i.code & 0xf0, i.code & 8 != 0);
    match op {
        0x80 if !by_x => p.put(code::NEG32, reg::A, 0, 0, 0),
        // or, and, add, sub, mul, xor have the same codes in both.
        0x00..=0x20 | 0x40 | 0x50 | 0xa0 | 0x30 | 0x60 | 0x70 | 0x90 => {
            let divides = matches!(op, 0x30 | 0x90);
            let shifts = matches!(op, 0x60 | 0x70);
            if !by_x && (divides && i.k == 0 || shifts && i.k > 31) {
                return false;
            }
            if divides && by_x {
                p.jump(code::JUMP32_EQUAL_IMM, reg::X, 0, 0, Target::Reject);
            }
            let code = 0x04 | op as u8;
            match by_x {
                true => p.put(code | 8, reg::A, reg::X, 0, 0),
                false => p.put(code, reg::A, 0, 0, i.k.cast_signed()),
            }
        }
        _ => return false,
    }
    true
}

fn translate_jump(p: &mut Program, at: usize, i: &Classic) -> bool {
    let to = |n: usize| Target::Classic(at + 1 + n);
    let (op, by_x) = ((i.code & 0xf0) as u8, i.code & 8 != 0);
    match op {
        0 => p.jump(code::JUMP, 0, 0, 0, to(i.k as usize)),
        // equal, greater, greater or equal, any of these bits
        0x10 | 0x20 | 0x30 | 0x40 => {
            match by_x {
                true => p.jump(0x06 | op | 8, reg::A, reg::X, 0, to(i.jt.into())),
                false => p.jump(0x06 | op, reg::A, 0, i.k.cast_signed(), to(i.jt.into())),
            }
            if i.jf > 0 {
                p.jump(code::JUMP, 0, 0, 0, to(i.jf.into()));
            }
        }
        _ => return false,
    }
    true
}

#[cfg(test)]
pub(super) mod tests;
