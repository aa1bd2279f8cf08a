//! Waiting until no running program can still see what was unpublished.

use anyhow::{Context, Result};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, libbpf_sys::bpf_map_create_opts};
use std::os::fd::{AsFd, AsRawFd};

/// Waits for an RCU grace period.
///
/// XDP programs run inside an RCU read-side section. Updating a map-in-map makes the kernel wait for all of them
/// (`maybe_wait_bpf_programs`, kernel/bpf/syscall.c, since 4.12), on every kernel and configuration; `membarrier`
/// would do the same but refuses to on machines with `nohz_full`.
pub struct Grace {
    outer: MapHandle,
    inner: MapHandle,
}

impl Grace {
    /// Creates the two one-slot maps it needs.
    pub fn new() -> Result<Grace> {
        let mut opts =
            bpf_map_create_opts { sz: size_of::<bpf_map_create_opts>() as _, ..Default::default() };
        let inner = MapHandle::create(MapType::Array, Some("grace_inner"), 4, 4, 1, &opts)
            .context("creating a map to wait on")?;
        opts.inner_map_fd = inner.as_fd().as_raw_fd() as u32;
        let outer = MapHandle::create(MapType::ArrayOfMaps, Some("grace_outer"), 4, 4, 1, &opts)
            .context("creating a map of maps to wait on")?;
        Ok(Grace { outer, inner })
    }

    /// Returns when every program that was running at the call has ended. Takes milliseconds: not for the hot path.
    pub fn wait(&self) -> Result<()> {
        let inner = self.inner.as_fd().as_raw_fd().to_ne_bytes();
        self.outer.update(&[0; 4], &inner, MapFlags::ANY).context("waiting for running programs")
    }
}
