//! Instructions that a program takes for a packet. The clock counts them where a nanosecond is an instruction: in a virtual
//! machine with `-icount shift=0` (`scripts/test-vm.sh instructions`). Elsewhere these are nanoseconds.

use super::{driver::xdp_context, program::load_program};
use libbpf_rs::libbpf_sys as sys;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};

/// The least of so many runs. Others were interrupted, or asked for something the first time.
const RUNS: usize = 64;

fn least(program: BorrowedFd<'_>, ifindex: u32, frame: impl Fn(usize) -> Vec<u8>) -> u32 {
    let run = |frame: Vec<u8>| {
        let context = xdp_context(frame.len(), ifindex, 0);
        let mut options = sys::bpf_test_run_opts {
            sz: size_of::<sys::bpf_test_run_opts>() as _,
            data_in: frame.as_ptr().cast(),
            data_size_in: frame.len() as u32,
            ctx_in: context.as_ptr().cast(),
            ctx_size_in: context.len() as u32,
            repeat: 1,
            ..Default::default()
        };
        // SAFETY: a valid descriptor; frame and context are readable for their lengths, and outlive the call.
        let rc = unsafe { sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) };
        assert_eq!(rc, 0, "running the program");
        options.duration
    };
    (0..RUNS).map(|n| run(frame(n))).min().unwrap()
}

/// Prints the instructions for these frames, one of each run, beyond those of a program that does nothing.
pub fn show_instructions(
    case: &str,
    program: BorrowedFd<'_>,
    ifindex: u32,
    frame: impl Fn(usize) -> Vec<u8>,
) {
    let nothing = load_program(sys::BPF_PROG_TYPE_XDP, 2, None);
    let alone = least(nothing.as_fd(), ifindex, &frame);
    println!("instructions: {case}: {}", least(program, ifindex, frame).saturating_sub(alone));
}
