use super::*;
use proptest::{collection::vec, prelude::*};

/// Runs classic BPF as net/core/filter.c does, on a frame whose first buffer has `first` bytes.
pub(in crate::capture) fn run_classic(filter: &[Classic], frame: &[u8], first: usize) -> bool {
    let (mut a, mut x, mut cells, mut at) = (0_u32, 0_u32, [0_u32; 16], 0);
    loop {
        let i = filter[at];
        at += 1;
        let bytes = |offset: u64, size: usize| {
            let from = usize::try_from(offset).ok().filter(|from| *from <= MOST_OFFSET as usize)?;
            let bytes = frame[..first].get(from..from + size)?;
            Some(bytes.iter().fold(0_u32, |word, byte| word << 8 | u32::from(*byte)))
        };
        let size = [4, 2, 1, 0][usize::from(i.code >> 3 & 3)];
        let operand = if i.code & 8 == 0 { i.k } else { x };
        match (i.code & 7, i.code & 0xe0) {
            (code::LD, 0) => a = i.k,
            (code::LDX, 0) => x = i.k,
            (code::LD, 0x60) => a = cells[i.k as usize],
            (code::LDX, 0x60) => x = cells[i.k as usize],
            (code::LD, 0x80) => a = frame.len() as u32,
            (code::LDX, 0x80) => x = frame.len() as u32,
            (code::LD, 0x20) => match bytes(i.k.into(), size) {
                Some(word) => a = word,
                None => return false,
            },
            (code::LD, 0x40) => match bytes(u64::from(x.wrapping_add(i.k)), size) {
                Some(word) => a = word,
                None => return false,
            },
            (code::LDX, 0xa0) => match bytes(i.k.into(), 1) {
                Some(byte) => x = (byte & 15) << 2,
                None => return false,
            },
            (code::ST, _) => cells[i.k as usize] = a,
            (code::STX, _) => cells[i.k as usize] = x,
            (code::RET, _) => return if i.code & 0x18 == 0 { i.k != 0 } else { a != 0 },
            (code::MISC, _) if i.code & 0xf8 == 0 => x = a,
            (code::MISC, _) => a = x,
            (code::JMP, _) => {
                let jumps = match i.code & 0xf0 {
                    0 => {
                        at += i.k as usize;
                        continue;
                    }
                    0x10 => a == operand,
                    0x20 => a > operand,
                    0x30 => a >= operand,
                    _ => a & operand != 0,
                };
                at += usize::from(if jumps { i.jt } else { i.jf });
            }
            _ => {
                a = match i.code & 0xf0 {
                    0x00 => a.wrapping_add(operand),
                    0x10 => a.wrapping_sub(operand),
                    0x20 => a.wrapping_mul(operand),
                    0x30 if operand == 0 => return false,
                    0x30 => a / operand,
                    0x40 => a | operand,
                    0x50 => a & operand,
                    0x60 => a.wrapping_shl(operand),
                    0x70 => a.wrapping_shr(operand),
                    0x80 => a.wrapping_neg(),
                    0x90 if operand == 0 => return false,
                    0x90 => a % operand,
                    _ => a ^ operand,
                }
            }
        }
    }
}

/// Addresses in the run of a program: the frame, and the end of its first buffer, are far from all small numbers.
const FRAME: u64 = 1 << 40;
const CELLS_AT: u64 = 2 << 40;

/// Runs a translated filter. It panics if a load is not within the first buffer, the context or the stack.
fn run(program: &[u64], frame: &[u8], first: usize) -> bool {
    // The kernel does not empty the cells between two packets.
    let (mut r, mut cells, mut at) = ([0xdead_beef_u64; 11], [7_u8; 68], 0);
    (r[1], r[2]) = (1, CELLS_AT);
    while let Some(word) = program.get(at) {
        at += 1;
        let (code, to, from) = (*word as u8, (word >> 8 & 15) as usize, (word >> 12 & 15) as usize);
        let (offset, value) = ((word >> 16) as i16, (word >> 32) as i32);
        let place = |base: u64| base.wrapping_add_signed(offset.into());
        let operand = if code & 8 == 0 { value as u64 } else { r[from] };
        match code {
            0x61 if r[from] == 1 => r[to] = if offset == 0 { FRAME } else { FRAME + first as u64 },
            0x61 if r[from] == CELLS_AT => {
                let cell = offset as usize;
                r[to] = u32::from_ne_bytes(cells[cell..cell + 4].try_into().unwrap()).into();
            }
            0x61 | 0x69 | 0x71 => {
                let size = [4, 2, 1][usize::from(code >> 3 & 3)];
                let from = (place(r[from]) - FRAME) as usize;
                let bytes = &frame[..first][from..from + size];
                r[to] = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
            }
            0x62 | 0x63 => {
                assert_eq!(r[to], CELLS_AT);
                let value = if code == 0x62 { value as u32 } else { r[from] as u32 };
                cells[offset as usize..][..4].copy_from_slice(&value.to_ne_bytes());
            }
            0xdc if value == 16 => r[to] = u64::from((r[to] as u16).swap_bytes()),
            0xdc => r[to] = u64::from((r[to] as u32).swap_bytes()),
            0x85 => {
                assert_eq!(value, code::FRAME_BYTES);
                r[..6].fill(0xdead_beef);
                r[0] = frame.len() as u64;
            }
            0x05 => at = at.wrapping_add_signed(offset.into()),
            0x15 => assert_ne!(r[to], operand),
            0x2d => at = if r[to] > r[from] { at + offset as usize } else { at },
            0xbf => r[to] = r[from],
            0x07 | 0x0f => r[to] = r[to].wrapping_add(operand),
            _ if code & 7 == 6 => {
                let (a, b) = (r[to] as u32, operand as u32);
                let jumps = [a == b, a > b, a >= b, a & b != 0][usize::from(code >> 4) - 1];
                at = if jumps { at + offset as usize } else { at };
            }
            _ if code & 7 == 4 => {
                let (a, b) = (r[to] as u32, operand as u32);
                r[to] = u64::from(match code & 0xf0 {
                    0x00 => a.wrapping_add(b),
                    0x10 => a.wrapping_sub(b),
                    0x20 => a.wrapping_mul(b),
                    0x30 => a / b,
                    0x40 => a | b,
                    0x50 => a & b,
                    0x60 => a << (b & 31),
                    0x70 => a >> (b & 31),
                    0x80 => a.wrapping_neg(),
                    0x90 => a % b,
                    0xa0 => a ^ b,
                    _ => b,
                });
            }
            _ => panic!("code {code:#x}"),
        }
    }
    r[0] as u32 != 0
}

pub(in crate::capture) fn load(code: u16, k: u32) -> Classic {
    Classic { code, k, ..Classic::default() }
}

/// `tcpdump -d 'udp port 53'` over Ethernet, shortened to IPv4.
pub(in crate::capture) fn dns() -> Vec<Classic> {
    let jump = |k, jt, jf| Classic { code: 0x15, jt, jf, k };
    vec![
        load(0x28, 12),
        jump(0x800, 0, 10),
        load(0x30, 23),
        jump(17, 0, 8),
        load(0x28, 20),
        Classic { code: 0x45, jt: 6, jf: 0, k: 0x1fff },
        load(0xb1, 14),
        load(0x48, 14),
        jump(53, 2, 0),
        load(0x48, 16),
        jump(53, 0, 1),
        load(6, 0x40000),
        load(6, 0),
    ]
}

fn udp(source: u16, destination: u16) -> Vec<u8> {
    let mut frame = vec![0; 60];
    frame[12] = 8;
    (frame[14], frame[23]) = (0x46, 17);
    frame[38..40].copy_from_slice(&source.to_be_bytes());
    frame[40..42].copy_from_slice(&destination.to_be_bytes());
    frame
}

#[test]
fn a_filter_of_tcpdump_finds_its_packets() {
    let program = compile(&dns()).unwrap();
    for (frame, matches) in [(udp(53, 9), true), (udp(9, 53), true), (udp(9, 9), false), (vec![0; 60], false)]
    {
        assert_eq!(run(&program, &frame, frame.len()), matches);
    }
    // Its ports are in another buffer.
    assert!(!run(&program, &udp(53, 9), 38));
}

#[test]
fn the_end_is_reached_from_everywhere() {
    let accept = compile(&[load(6, 1)]).unwrap();
    assert!(run(&accept, &[], 0));
    // A load from far behind the frame.
    let far = compile(&[load(0x28, 70_000), load(6, 1)]).unwrap();
    assert!(!run(&far, &[0; 60], 60));
    let length =
        compile(&[load(0x80, 0), Classic { code: 0x25, jt: 0, jf: 1, k: 100 }, load(6, 1), load(6, 0)]);
    let length = length.unwrap();
    assert!(run(&length, &[0; 101], 14) && !run(&length, &[0; 100], 100));
}

#[test]
fn wrong_filters_are_refused() {
    assert_eq!(compile(&[]), Err(FilterError::Empty));
    let long = vec![load(0x28, 12); MOST_CLASSIC + 1];
    assert_eq!(compile(&long), Err(FilterError::TooLong { instructions: 513, most: 512 }));
    let open = [
        vec![load(0x28, 12)],
        vec![load(5, 7), load(6, 0)],
        vec![load(5, u32::MAX), load(6, 0)],
        vec![Classic { code: 0x15, jt: 255, jf: 0, k: 0 }, load(6, 0)],
    ];
    for filter in open {
        assert_eq!(compile(&filter), Err(FilterError::Open { at: 0 }));
    }
    // The protocol of a socket buffer; division by 0; a shift too far; memory that there is not; no such code.
    for first in
        [load(0x28, 0xffff_f000), load(0x34, 0), load(0x64, 32), load(2, 16), load(0x60, 16), load(0xffff, 0)]
    {
        let code = first.code;
        assert_eq!(compile(&[first, load(6, 0)]), Err(FilterError::Unknown { at: 0, code }));
    }
}

/// Each supported instruction, with jumps of at most three.
pub(in crate::capture) fn instruction() -> impl Strategy<Value = Classic> {
    const LOADS: [u16; 13] = [0, 1, 0x20, 0x28, 0x30, 0x40, 0x48, 0x50, 0xb1, 0x80, 0x81, 0x28, 0x50];
    const CELLS: [u16; 4] = [2, 3, 0x60, 0x61];
    const ARITHMETIC: [u16; 11] = [0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x80, 0x90, 0xa0];
    let number = || prop_oneof![0_u32..80, Just(0x2400), Just(0x2401), Just(u32::MAX >> 1)];
    let by = || prop_oneof![Just(0_u16), Just(8)];
    let any = || prop_oneof![number(), any::<u32>()];
    prop_oneof![
        4 => (proptest::sample::select(&LOADS[..]), number()).prop_map(|(code, k)| load(code, k)),
        2 => (proptest::sample::select(&CELLS[..]), 0_u32..16).prop_map(|(code, k)| load(code, k)),
        2 => (proptest::sample::select(&ARITHMETIC[..]), by(), any()).prop_map(|(op, by, k)| {
            let k = match op {
                0x30 | 0x90 => k.max(1),
                0x60 | 0x70 => k & 31,
                _ => k,
            };
            load(4 | op | if op == 0x80 { 0 } else { by }, k)
        }),
        3 => (1_u16..5, by(), 0_u8..3, 0_u8..3, any())
            .prop_map(|(op, by, jt, jf, k)| Classic { code: 5 | op << 4 | by, jt, jf, k }),
        1 => (0_u32..3).prop_map(|k| load(5, k)),
        1 => prop_oneof![Just(load(7, 0)), Just(load(0x87, 0)), Just(load(6, 0)), Just(load(0x16, 0))],
    ]
}

proptest! {
    #![proptest_config(crate::cases(2000))]

    #[test]
    fn a_translated_filter_decides_as_before(
        mut filter in vec(instruction(), 1..40),
        frame in vec(prop_oneof![0_u8..4, any::<u8>()], 0..120),
        cut in 0_usize..120,
    ) {
        // Jumps from the last instructions lead to one of these.
        filter.extend([load(0x16, 0), load(6, 1), load(6, 0), load(6, 1)]);
        let program = compile(&filter).unwrap();
        let first = cut.min(frame.len());
        prop_assert_eq!(run(&program, &frame, first), run_classic(&filter, &frame, first), "{:?}", filter);
    }

    #[test]
    fn no_filter_panics(filter in vec((any::<u16>(), any::<u8>(), any::<u8>(), any::<u32>()), 0..30)) {
        let filter: Vec<_> = filter.into_iter().map(|(code, jt, jf, k)| Classic { code, jt, jf, k }).collect();
        let _ = compile(&filter);
    }
}
