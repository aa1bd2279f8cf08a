//! What a worker forwards, what that costs, and how soon it is there: `cargo test --release -p millrace --test workers -- --ignored --nocapture
//! measure`, as root. The generator and the port's receive side are on core 0, the worker on core 1, and what leaves is dropped by a
//! program at the other end, within the worker's calls.

use super::*;
use crate::{
    af_xdp_bed::{Port, load, program},
    common::{Ends, ifindex, only_on},
};
use libbpf_rs::{MapCore, MapFlags, libbpf_sys as sys};
use router::af_xdp::Rings;
use std::{fs, os::fd::AsRawFd, sync::atomic::AtomicBool, time::Instant};

const ROUNDS: usize = 5;

/// Sends a frame without pause, until told to stop.
fn flood(device: &str, frame: &[u8], over: &AtomicBool) {
    only_on([0]);
    let object = load();
    let out = object.maps().find(|map| map.name() == "out").unwrap();
    out.update(&[0; 4], &ifindex(device).to_ne_bytes(), MapFlags::ANY).unwrap();
    let program = program(&object, "repeat");
    while !over.load(Relaxed) {
        let mut opts = sys::bpf_test_run_opts {
            sz: size_of::<sys::bpf_test_run_opts>() as _,
            data_in: frame.as_ptr().cast(),
            data_size_in: frame.len() as u32,
            repeat: 1 << 20,
            batch_size: 64,
            flags: sys::BPF_F_TEST_XDP_LIVE_FRAMES,
            ..Default::default()
        };
        // SAFETY: a valid descriptor; `frame` is readable for its length, and outlives the call.
        let rc = unsafe { sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut opts) };
        assert_eq!(rc, 0, "generating");
    }
}

/// Nanoseconds that the thread of this name had a core.
fn cpu_ns(name: &str) -> u64 {
    let is_it = |task: &fs::DirEntry| {
        fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim() == name)
    };
    let task = fs::read_dir("/proc/self/task").unwrap().flatten().find(is_it).expect("the worker's thread");
    let stat = fs::read_to_string(task.path().join("schedstat")).unwrap();
    stat.split(' ').next().unwrap().parse().unwrap()
}

#[test]
#[ignore = "a measurement; needs root"]
fn measure_forwarding() {
    in_new_namespace(|| {
        let bed = Bed::new(1, WorkersSettings::default());
        let _sink = Port::with("q1", "sink");
        for (what, chain) in
            [("routed", &["check", "route", "ttl", "rewrite"][..]), ("forwarded", &["forward"])]
        {
            let of = PathPlan { ring: 1024, ..path(what, chain, 1) };
            bed.apply(&plan(&[1], &ports(1, Rings::default()), &[(0, of)]));
            let over = AtomicBool::new(false);
            let sent = Frame::udp4(P0, "10.0.0.9", "10.1.0.1").bytes();
            thread::scope(|scope| {
                let _ends = Ends(&over);
                scope.spawn(|| flood("q0", &sent, &over));
                thread::sleep(Duration::from_millis(300));
                for round in 0..ROUNDS {
                    let (begun, before, cpu) = (Instant::now(), bed.path(0), cpu_ns("worker/1"));
                    thread::sleep(Duration::from_secs(1));
                    let (now, cpu, seconds) =
                        (bed.path(0), cpu_ns("worker/1") - cpu, begun.elapsed().as_secs_f64());
                    let packets = (now.packets - before.packets) as f64;
                    println!(
                        "{what}, round {round}: {:.3} Mpps, {:.0} ns of CPU a packet, worker on a core {:.2} of the time, \
                         {:?} cycles a packet sampled, {:.1} packets a run, {:.3} M a second found the ring full",
                        packets / seconds / 1e6,
                        cpu as f64 / packets,
                        cpu as f64 / 1e9 / seconds,
                        now.cycles_per_packet,
                        packets / (now.runs - before.runs) as f64,
                        (now.ring_full - before.ring_full) as f64 / seconds / 1e6,
                    );
                }
            });
            until("the rest", || {
                let before = bed.path(0).packets;
                thread::sleep(Duration::from_millis(20));
                bed.path(0).packets == before
            });
        }
        let report = bed.report();
        println!("clock: {}, {} Hz; {:?}", report.clock, report.hz, report.workers[0].outputs);
        assert!(bed.path(0).out["p1"] > 0);
        bed.end();
    });
}

/// From a packet socket at one end through the worker to one at the other.
#[test]
#[ignore = "a measurement; needs root"]
fn measure_waking() {
    const COUNT: usize = 2000;
    for round in 0..3 {
        for (what, spin) in [("sleeps", Duration::ZERO), ("spins", Duration::from_secs(1))] {
            in_new_namespace(move || {
                let bed = Bed::new(1, WorkersSettings { spin, ..WorkersSettings::default() });
                bed.apply(&plan(&[1], &ports(1, SMALL), &[(0, path("one", &["forward"], 1))]));
                only_on([0]);
                let (from, to) = (Wire::open("q0"), Wire::open("q1"));
                let mut took = Vec::new();
                for n in 0..COUNT as u32 {
                    thread::sleep(Duration::from_micros(500));
                    let (sent, begun) = (frame(0, n, 60), Instant::now());
                    from.send(&sent);
                    while to.receive().as_ref() != Some(&sent) {}
                    took.push(begun.elapsed().as_nanos() as f64 / 1e3);
                }
                took.sort_by(f64::total_cmp);
                let at = |part: usize| took[COUNT * part / 1000];
                println!(
                    "round {round}: the worker {what}: microseconds: median {:.1}, 90 % {:.1}, 99 % {:.1}; it slept {} times",
                    at(500),
                    at(900),
                    at(990),
                    bed.report().workers[0].sleeps
                );
                bed.end();
            });
        }
    }
}
