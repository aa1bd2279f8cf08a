//! The lab's BPF programs (skeletons built by build.rs), and their maps' values as bytes.
//!
//! Skeletons borrow the storage of their object; [`storage`] leaks that (a few pointers per testbed), so that whoever
//! owns a skeleton can be an ordinary struct. Dropping the skeleton still unloads programs and maps.

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsRawFd, BorrowedFd},
};

use anyhow::{Context, Result, ensure};
use libbpf_rs::{MapCore, MapFlags, OpenObject, libbpf_sys as sys};

#[allow(clippy::all, clippy::undocumented_unsafe_blocks, missing_docs)]
pub mod generator {
    include!(concat!(env!("OUT_DIR"), "/generator.skel.rs"));
}
#[allow(clippy::all, clippy::undocumented_unsafe_blocks, missing_docs)]
pub mod sink {
    include!(concat!(env!("OUT_DIR"), "/sink.skel.rs"));
}
#[allow(clippy::all, clippy::undocumented_unsafe_blocks, missing_docs)]
pub mod baselines {
    include!(concat!(env!("OUT_DIR"), "/baselines.skel.rs"));
}
#[allow(clippy::all, clippy::undocumented_unsafe_blocks, missing_docs)]
pub mod cost {
    include!(concat!(env!("OUT_DIR"), "/cost.skel.rs"));
}

/// Map values that may be read and written as bytes.
///
/// # Safety
/// `repr(C)`, integers and arrays of integers only, no implicit padding.
pub unsafe trait Value: Copy + Default {
    /// The value as the map holds it.
    fn bytes(&self) -> &[u8] {
        // SAFETY: the implementor has no padding, so every byte is initialised.
        unsafe { std::slice::from_raw_parts((&raw const *self).cast(), size_of::<Self>()) }
    }

    /// The value that a map returned.
    fn from_bytes(bytes: &[u8]) -> Result<Self> {
        ensure!(
            bytes.len() == size_of::<Self>(),
            "a map value of {} bytes, not {}",
            bytes.len(),
            size_of::<Self>()
        );
        // SAFETY: the length was checked, any bits are valid for the implementor, and the read is unaligned.
        Ok(unsafe { bytes.as_ptr().cast::<Self>().read_unaligned() })
    }
}

// SAFETY: an integer.
unsafe impl Value for u64 {}
// SAFETY: six bytes and u16, then u32s, sixteen bytes, u64s and two u32s: naturally aligned without holes (see generator.bpf.c).
unsafe impl Value for generator::types::load {}
// SAFETY: u64s, then four u32s.
unsafe impl Value for generator::types::generated {}
// SAFETY: 6 + 2 + 16 + 2 + 2 + 4 bytes, aligned to 4.
unsafe impl Value for generator::types::target {}
// SAFETY: two u64s.
unsafe impl Value for sink::types::arrived {}
// SAFETY: three u64s.
unsafe impl Value for sink::types::watched {}
// SAFETY: two u32s.
unsafe impl Value for sink::types::settings {}

/// Runs a program on live frames (`BPF_F_TEST_XDP_LIVE_FRAMES`, Linux 5.18), `repeat` times; what it redirects is sent
/// after every `batch` of them. libbpf-rs cannot say the batch.
pub fn run_live(program: BorrowedFd<'_>, frame: &[u8], repeat: u32, batch: u32) -> io::Result<()> {
    let mut options = sys::bpf_test_run_opts {
        sz: size_of::<sys::bpf_test_run_opts>() as _,
        data_in: frame.as_ptr().cast(),
        data_size_in: frame.len() as u32,
        repeat: repeat as i32,
        flags: sys::BPF_F_TEST_XDP_LIVE_FRAMES,
        batch_size: batch,
        ..Default::default()
    };
    // SAFETY: the descriptor is open, the options are whole, and the frame lives until the call returns.
    let result = unsafe { sys::bpf_prog_test_run_opts(program.as_raw_fd(), &mut options) };
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) }
}

/// A place for one object; see the module's text.
pub fn storage() -> &'static mut MaybeUninit<OpenObject> {
    Box::leak(Box::new(MaybeUninit::uninit()))
}

/// Entry `key` of an array map.
pub fn read<T: Value>(map: &impl MapCore, key: u32) -> Result<T> {
    let bytes = map.lookup(&key.to_ne_bytes(), MapFlags::ANY)?.context("no such entry in a map")?;
    T::from_bytes(&bytes)
}

/// Writes entry `key` of an array map.
pub fn write<T: Value>(map: &impl MapCore, key: u32, value: &T) -> Result<()> {
    Ok(map.update(&key.to_ne_bytes(), value.bytes(), MapFlags::ANY)?)
}

/// Entry `key` of a per-CPU array map, one value per possible CPU.
pub fn read_per_cpu<T: Value>(map: &impl MapCore, key: u32) -> Result<Vec<T>> {
    let rows = map.lookup_percpu(&key.to_ne_bytes(), MapFlags::ANY)?.context("no such entry in a map")?;
    rows.iter().map(|row| T::from_bytes(row)).collect()
}
