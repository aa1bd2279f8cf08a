//! Reads how full the ring is by which a core sends to a device (`bpf/transmit.bpf.c`; `unsafe` lives here).

use anyhow::{Context, Result};
use libbpf_rs::{ObjectBuilder, libbpf_sys as sys};
use logic::cores::{CoreId, Ring};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/transmit.bpf.o"));

/// `struct transmit` of the program.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Question {
    ifindex: u32,
    cpu: u32,
    rings: u32,
    size: u32,
    head: u32,
    tail: u32,
    is_empty: u32,
    is_taking: u32,
    taker: u32,
    unused: u32,
}

/// The ring by which a core sends to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The number of the device's rings. A core sends by the ring of its number modulo this.
    pub rings: u32,
    /// `None`: nobody takes from it.
    pub ring: Option<Ring>,
    /// The core on which the thread that takes from it runs or has run last, if there is such a thread.
    pub taker: Option<CoreId>,
}

/// The program that reads rings.
#[derive(Debug)]
pub struct TransmitRings(OwnedFd);

impl TransmitRings {
    /// # Errors
    /// The kernel does not allow this (`CAP_PERFMON`), or is older than Linux 5.14.
    pub fn open() -> Result<TransmitRings> {
        let mut builder = ObjectBuilder::default();
        let object =
            builder.open_memory(OBJECT)?.load().context("loading the program that looks at TX rings")?;
        let program = object.progs().next().context("no program looks at TX rings")?;
        Ok(TransmitRings(program.as_fd().try_clone_to_owned().context("keeping a program")?))
    }

    /// The ring by which `core` sends to a device of the calling thread's namespace. `None`: there is no such
    /// device, or its kind has no rings that can be seen. This takes one or two microseconds and never waits.
    ///
    /// # Errors
    /// The kernel does not allow this.
    pub fn look(&self, ifindex: u32, core: CoreId) -> io::Result<Option<Transmit>> {
        let mut question = Question { ifindex, cpu: core.into(), ..Question::default() };
        let mut opts = sys::bpf_test_run_opts {
            sz: size_of::<sys::bpf_test_run_opts>() as _,
            ctx_in: (&raw mut question).cast(),
            ctx_size_in: size_of_val(&question) as u32,
            ..Default::default()
        };
        // SAFETY: a valid descriptor; the kernel reads and writes the question, which outlives the call, within its size.
        let rc = unsafe { sys::bpf_prog_test_run_opts(self.0.as_raw_fd(), &raw mut opts) };
        if rc < 0 {
            return Err(io::Error::from_raw_os_error(-rc));
        }
        let Question { rings, size, head, tail, is_empty, is_taking, taker, .. } = question;
        let ring = Ring { size, head, tail, is_empty: is_empty != 0, is_taking: is_taking != 0 };
        let taker = taker.checked_sub(1).and_then(|core| CoreId::try_from(core).ok());
        Ok((rings != 0).then_some(Transmit { rings, ring: (size != 0).then_some(ring), taker }))
    }
}
