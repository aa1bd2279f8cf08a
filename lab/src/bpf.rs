//! The lab's BPF programs (skeletons built by build.rs), and the values of their maps as bytes.
//!
//! Skeletons borrow the storage of their object. [`storage`] leaks this storage (a few pointers per testbed), so that
//! the owner of a skeleton can be an ordinary struct. Dropping the skeleton still unloads programs and maps.

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use libbpf_rs::{ErrorKind, MapCore, MapFlags, OpenObject, RingBuffer, libbpf_sys as sys};

use crate::sys::check_interrupted;

/// Most streams at once: `MAX_STREAMS` in lab.h.
pub const MAX_STREAMS: usize = 8;

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

#[allow(clippy::all, clippy::undocumented_unsafe_blocks, missing_docs)]
pub mod decrypt {
    include!(concat!(env!("OUT_DIR"), "/decrypt.skel.rs"));
}
#[allow(clippy::all, clippy::undocumented_unsafe_blocks, missing_docs)]
pub mod redirects {
    include!(concat!(env!("OUT_DIR"), "/redirects.skel.rs"));
}
#[allow(clippy::all, clippy::undocumented_unsafe_blocks, missing_docs)]
pub mod replay {
    include!(concat!(env!("OUT_DIR"), "/replay.skel.rs"));
}

#[allow(clippy::all, clippy::undocumented_unsafe_blocks, missing_docs)]
pub mod work {
    include!(concat!(env!("OUT_DIR"), "/work.skel.rs"));
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
            "a map value has {} bytes, not {}",
            bytes.len(),
            size_of::<Self>()
        );
        // SAFETY: the length was checked, any bits are valid for the implementor, and the read is unaligned.
        Ok(unsafe { bytes.as_ptr().cast::<Self>().read_unaligned() })
    }
}

// SAFETY: an integer.
unsafe impl Value for u64 {}
// SAFETY: 96 bytes, two u32s, four bytes, u32.
unsafe impl Value for generator::types::template {}
// SAFETY: 6 bytes, u16, 16 bytes, two u16s, u32.
unsafe impl Value for generator::types::target {}
// SAFETY: four u32s, u64, two u32s, 16 u16s.
unsafe impl Value for generator::types::stream {}
// SAFETY: four u64s, then four u32s.
unsafe impl Value for generator::types::sent {}
// SAFETY: u64, then eight u32s.
unsafe impl Value for generator::types::run {}
// SAFETY: eight u64s, then 70 u32s.
unsafe impl Value for generator::types::generated {}
// SAFETY: two u64s.
unsafe impl Value for sink::types::arrived {}
// SAFETY: u64, then two u32s.
unsafe impl Value for sink::types::arrived_in_all {}
// SAFETY: two u32s, then u64.
unsafe impl Value for sink::types::first_seen {}
// SAFETY: three u64s, then two u32s.
unsafe impl Value for sink::types::watched {}
// SAFETY: two u64s, then two u32s.
unsafe impl Value for sink::types::interruption {}
// SAFETY: u64, then six u32s, one of them in a structure of its own.
unsafe impl Value for sink::types::flow {}
// SAFETY: three u64s, then 16384 u32s.
unsafe impl Value for sink::types::latency {}
// SAFETY: three u32s.
unsafe impl Value for redirects::types::place {}
// SAFETY: three u64s.
unsafe impl Value for replay::types::counted {}
// SAFETY: eleven u32s.
unsafe impl Value for sink::types::settings {}

/// Entries that one call reads from a map.
const READ_BATCH: u32 = 4096;

/// Runs a program on live frames (`BPF_F_TEST_XDP_LIVE_FRAMES`, Linux 5.18), `repeat` times. The kernel sends
/// redirected frames after every `batch` runs. libbpf-rs has no parameter for the batch.
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

/// Attaches a program to the ingress of a device (tcx, Linux 6.6), until the descriptor is closed. libbpf-rs has no
/// call for this.
pub fn attach_ingress(program: BorrowedFd<'_>, ifindex: u32) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor is open, and without options nothing is read.
    let link = unsafe {
        sys::bpf_link_create(program.as_raw_fd(), ifindex as i32, sys::BPF_TCX_INGRESS, std::ptr::null())
    };
    if link < 0 {
        return Err(io::Error::from_raw_os_error(-link));
    }
    // SAFETY: the descriptor was just opened, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(link) })
}

/// Waits for records of a ring buffer and hands them on. A signal ends the wait. If the signal asks the lab to stop,
/// this fails as [`check_interrupted`] does.
pub fn poll(ring: &RingBuffer<'_>, wait: Duration) -> Result<()> {
    match ring.poll(wait) {
        Err(error) if error.kind() == ErrorKind::Interrupted => Ok(check_interrupted()?),
        polled => Ok(polled?),
    }
}

/// Storage for one object; see the module's documentation.
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

/// Writes the first `count` entries of an array map.
pub fn write_all(map: &impl MapCore, values: &[u8], count: usize) -> Result<()> {
    if count == 0 {
        return Ok(());
    }
    let keys: Vec<u8> = (0..count as u32).flat_map(u32::to_ne_bytes).collect();
    Ok(map.update_batch(&keys, values, count as u32, MapFlags::ANY, MapFlags::ANY)?)
}

/// The first `count` entries of an array map.
pub fn read_all<T: Value>(map: &impl MapCore, count: usize) -> Result<Vec<T>> {
    let mut values = Vec::with_capacity(count);
    for entry in map.lookup_batch(READ_BATCH, MapFlags::ANY, MapFlags::ANY)?.take(count) {
        let (_, value) = entry;
        values.push(T::from_bytes(&value)?);
    }
    ensure!(values.len() == count, "a map has {} entries, not {count}", values.len());
    Ok(values)
}

/// Entry `key` of a per-CPU array map, one value per possible CPU.
pub fn read_per_cpu<T: Value>(map: &impl MapCore, key: u32) -> Result<Vec<T>> {
    let rows = map.lookup_percpu(&key.to_ne_bytes(), MapFlags::ANY)?.context("no such entry in a map")?;
    rows.iter().map(|row| T::from_bytes(row)).collect()
}
