//! What a program costs. BPF_PROG_TEST_RUN runs the very program that is attached, on one frame after
//! another, each with its original headers.

use libbpf_rs::{MapCore, MapFlags, Object, ObjectBuilder, ProgramInput};
use std::{
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    path::Path,
    process::Command,
    time::Duration,
};

pub const PACKETS: u32 = 2_000_000;
/// As in lab/bpf/cost.bpf.c.
const HEADER_BYTES: usize = 56;

/// CPU time of this thread. Other threads do not count, except that they may use the core's caches.
pub fn cpu_time() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(t.tv_sec.try_into().unwrap(), t.tv_nsec.try_into().unwrap())
}

/// `struct xdp_md` for BPF_PROG_TEST_RUN: a frame of this length comes in by this RX queue of a device.
pub fn xdp_context(frame_bytes: usize, ifindex: u32, queue: u32) -> [u8; 24] {
    let mut context = [0; 24];
    for (value, at) in [(frame_bytes as u32, 4), (ifindex, 12), (queue, 16)] {
        context[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    context
}

/// lab/bpf/cost.bpf.c with frames: it gives one after another to the program under test.
pub struct Driver(Object);

impl Driver {
    pub fn new(frames: &[Vec<u8>]) -> Driver {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lab/bpf");
        let object = tempfile::NamedTempFile::new().unwrap();
        let clang = std::env::var("CLANG").unwrap_or("clang-16".into());
        let mut compile = Command::new(clang);
        compile.args(["-target", "bpf", "-g", "-O2", "-I/usr/include/x86_64-linux-gnu", "-I"]);
        compile.args([env!("LIBBPF_HEADERS"), "-c", "-o"]);
        let done = compile.arg(object.path()).arg(root.join("cost.bpf.c")).status().unwrap();
        assert!(done.success());
        let mut open = ObjectBuilder::default().open_file(object.path()).unwrap();
        let count = frames.len() as u32;
        for mut map in open.maps_mut() {
            match map.name().to_string_lossy().as_ref() {
                "frames" => map.set_max_entries(count).unwrap(),
                name if name.ends_with(".rodata") => map.set_initial_value(&count.to_ne_bytes()).unwrap(),
                _ => {}
            }
        }
        let driver = Driver(open.load().unwrap());
        for (i, frame) in (0..count).zip(frames) {
            driver.map("frames", &i.to_ne_bytes(), &frame[..HEADER_BYTES]);
        }
        driver
    }

    fn map(&self, name: &str, key: &[u8], value: &[u8]) {
        let map = self.0.maps().find(|m| m.name() == name).unwrap();
        map.update(key, value, MapFlags::ANY).unwrap();
    }

    /// Nanoseconds per packet, including those of the driver.
    pub fn run(&mut self, program: BorrowedFd<'_>, ifindex: u32, queue: u32, frame: &[u8]) -> f64 {
        self.map("under_test", &[0; 4], &program.as_raw_fd().to_ne_bytes());
        let mut context = xdp_context(frame.len(), ifindex, queue);
        let each = self.0.progs_mut().find(|p| p.name() == "each").unwrap();
        let started = cpu_time();
        let input = ProgramInput {
            context_in: Some(&mut context),
            data_in: Some(frame),
            repeat: PACKETS,
            ..Default::default()
        };
        each.test_run(input).unwrap();
        (cpu_time() - started).as_secs_f64() * 1e9 / f64::from(PACKETS)
    }

    /// Nanoseconds per packet of the driver alone.
    pub fn alone(&mut self, ifindex: u32, frame: &[u8]) -> f64 {
        let drop = self.0.progs().find(|p| p.name() == "nothing").unwrap();
        let drop = drop.as_fd().try_clone_to_owned().unwrap();
        self.run(drop.as_fd(), ifindex, 0, frame)
    }
}
