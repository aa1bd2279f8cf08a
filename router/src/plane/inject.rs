//! Gives a frame of user space to a program, as if it had come in by a port (`unsafe` lives here).
//!
//! This uses BPF_PROG_TEST_RUN with live frames (Linux 5.18). The driver that the program redirects to, or the
//! kernel's stack, carries out the program's action. libbpf-rs runs only programs of an object, and another thread
//! owns the object of these.

use crate::abi::types;
use anyhow::{Context, Result};
use libbpf_rs::libbpf_sys as sys;
use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
};

/// The longest frame that can be given: a page, less the kernel's space in front and behind (`bpf_prog_test_run_xdp`).
pub const MOST_INJECTED: u32 = 3400;

/// Programs that frames can be given to.
pub struct Injector {
    normal: OwnedFd,
    local: OwnedFd,
}

impl Injector {
    /// `normal` is the program that routes, `local` the one that passes everything up.
    pub fn new(normal: BorrowedFd<'_>, local: BorrowedFd<'_>) -> Result<Injector> {
        let keep = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().context("keeping a program");
        Ok(Injector { normal: keep(normal)?, local: keep(local)? })
    }

    /// Gives a frame to the program that routes.
    ///
    /// # Errors
    /// The device is gone, or the frame is too short or longer than [`MOST_INJECTED`].
    pub fn normal(&self, ifindex: u32, frame: &[u8]) -> Result<()> {
        inject(&self.normal, ifindex, frame)
    }

    /// Gives a frame to the kernel's stack.
    ///
    /// # Errors
    /// As [`Injector::normal`].
    pub fn local(&self, ifindex: u32, frame: &[u8]) -> Result<()> {
        inject(&self.local, ifindex, frame)
    }
}

/// The caller must be in the device's namespace.
fn inject(program: &OwnedFd, ifindex: u32, frame: &[u8]) -> Result<()> {
    let end = u32::try_from(frame.len()).context("a frame of more than 4 GiB")?;
    let context = types::xdp_md { data_end: end, ingress_ifindex: ifindex, ..Default::default() };
    let mut opts = sys::bpf_test_run_opts {
        sz: size_of::<sys::bpf_test_run_opts>() as _,
        data_in: frame.as_ptr().cast(),
        data_size_in: end,
        ctx_in: (&raw const context).cast(),
        ctx_size_in: size_of_val(&context) as u32,
        repeat: 1,
        batch_size: 1,
        flags: sys::BPF_F_TEST_XDP_LIVE_FRAMES,
        ..Default::default()
    };
    // SAFETY: a valid descriptor; `frame` and `context` are readable for the sizes given and outlive the call.
    let rc = unsafe { sys::bpf_prog_test_run_opts(program.as_raw_fd(), &mut opts) };
    if rc < 0 {
        return Err(io::Error::from_raw_os_error(-rc))
            .with_context(|| format!("giving {end} bytes to device {ifindex}"));
    }
    Ok(())
}
