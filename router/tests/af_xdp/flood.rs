//! For measurements: more packets than the receiver can handle, and the thread that receives them.

use super::{
    bed::{load, program},
    common::{ifindex, only_on},
};
use libbpf_rs::{MapCore, MapFlags, libbpf_sys as sys};
use router::{cores::Roots, linux::netlink::netdev::Netdev};
use rustix::{
    process::Pid,
    thread::{CpuSet, sched_setaffinity},
};
use std::{
    fs,
    os::fd::AsRawFd,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

/// Sends a frame by a program of `bpf/paths.bpf.c`, on core 0, until `over` is set. It pauses for some 20 ms
/// after each million packets.
pub fn flood(device: &str, by: &str, frame: &[u8], over: &AtomicBool) {
    flood_of(1 << 20, device, by, frame, over);
}

/// Like [`flood`], with `packets` packets before each pause. `over` is read only then.
pub fn flood_of(packets: i32, device: &str, by: &str, frame: &[u8], over: &AtomicBool) {
    only_on([0]);
    let object = load();
    let out = object.maps().find(|map| map.name() == "out").unwrap();
    out.update(&[0; 4], &ifindex(device).to_ne_bytes(), MapFlags::ANY).unwrap();
    let program = program(&object, by);
    while !over.load(Relaxed) {
        let mut opts = sys::bpf_test_run_opts {
            sz: size_of::<sys::bpf_test_run_opts>() as _,
            data_in: frame.as_ptr().cast(),
            data_size_in: frame.len() as u32,
            repeat: packets,
            batch_size: 64,
            flags: sys::BPF_F_TEST_XDP_LIVE_FRAMES,
            ..Default::default()
        };
        // SAFETY: a valid descriptor; `frame` is readable for its length, and outlives the call.
        let rc = unsafe { sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut opts) };
        assert_eq!(rc, 0, "generating");
    }
}

/// The thread that polls the only queue of a device, by process number.
pub struct Napi(pub u32);

impl Napi {
    /// Makes the thread, on this core.
    pub fn new(device: &str, core: usize) -> Napi {
        let roots = Roots::here().unwrap();
        fs::write(roots.device(device).join("threaded"), "1").unwrap();
        let napis = Netdev::open().unwrap().expect("the netdev family").napis(ifindex(device)).unwrap();
        let pid = napis.expect("NAPI instances")[0].pid.expect("a thread");
        let mut cores = CpuSet::new();
        cores.set(core);
        sched_setaffinity(Pid::from_raw(pid as i32), &cores).unwrap();
        Napi(pid)
    }

    /// Nanoseconds that the thread ran.
    pub fn cpu_ns(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/schedstat", self.0)).unwrap();
        stat.split(' ').next().unwrap().parse().unwrap()
    }
}
