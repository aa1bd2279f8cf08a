//! BPF programs of two instructions.

use libbpf_rs::libbpf_sys as sys;
use std::os::fd::{FromRawFd, OwnedFd};

/// A descriptor that the kernel has just returned, or panics with its error.
pub fn own(fd: i32) -> OwnedFd {
    assert!(fd >= 0, "{}", std::io::Error::from_raw_os_error(-fd));
    // SAFETY: a new descriptor, owned by nobody else.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// A program that returns `verdict`.
pub fn load_program(
    kind: sys::bpf_prog_type,
    verdict: i32,
    options: Option<sys::bpf_prog_load_opts>,
) -> OwnedFd {
    // r0 = verdict; exit
    let program =
        [(0xb7, verdict), (0x95, 0)].map(|(code, imm)| sys::bpf_insn { code, imm, ..Default::default() });
    let mut options = options;
    let options = options.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
    let (name, license) = (c"pass".as_ptr(), c"GPL".as_ptr());
    // SAFETY: strings, instructions and options live across the call.
    own(unsafe { sys::bpf_prog_load(kind, name, license, program.as_ptr(), 2, options) })
}
