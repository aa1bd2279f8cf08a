//! What a packet costs: `cargo test --release -p millrace --test af_xdp -- --ignored --nocapture measure`, as
//! root. The veths' receive threads and the worker share core 1. The generator has core 0, and so has the
//! thread that takes the packets at the end.

use super::{
    bed::*,
    common::*,
    flood::{Napi, flood},
};
use router::user_plane::af_xdp::{Buffer, Io, Pool, Queue, Rings, Umem};
use std::{
    hint::black_box,
    sync::atomic::AtomicBool,
    thread,
    time::{Duration, Instant},
};

const ROUNDS: usize = 5;
const BATCHES: [usize; 3] = [1, 16, 64];

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn list(of: &[f64]) -> String {
    of.iter().map(|n| format!("{n:.1}")).collect::<Vec<_>>().join(" ")
}

/// CPU time of this thread, including system calls.
fn cpu_time() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(t.tv_sec.try_into().unwrap(), t.tv_nsec.try_into().unwrap())
}

/// The results of one round.
struct Round {
    forwarded_pps: f64,
    worker_ns: f64,
    receiver_ns: f64,
}

/// Forwards for a while. More packets are offered than can be forwarded.
fn forward(io: &mut Io, receiver: &Napi, batch: usize) -> Round {
    let mut packets: Vec<Buffer> = Vec::new();
    let received = |io: &Io| {
        let receiver = io.receivers(0).next().unwrap();
        (receiver.counts().received_packets, receiver.statistics().unwrap().receive_ring_full)
    };
    let mut go = |io: &mut Io, time: Duration| {
        let begun = Instant::now();
        while begun.elapsed() < time {
            for _ in 0..64 {
                if io.receive(0, batch, &mut packets) > 0 {
                    io.send(0, &mut packets).unwrap();
                } else {
                    // A busy loop would be counted.
                    io.flush();
                    io.sleep(Some(Duration::from_millis(1))).unwrap();
                }
            }
        }
    };
    go(io, Duration::from_millis(200));
    let (begun, cpu, polled, before) = (Instant::now(), cpu_time(), receiver.cpu_ns(), received(io));
    go(io, Duration::from_secs(1));
    let (now, cpu, polled) = (received(io), cpu_time() - cpu, receiver.cpu_ns() - polled);
    let packets = (now.0 - before.0) as f64;
    Round {
        forwarded_pps: packets / begun.elapsed().as_secs_f64(),
        worker_ns: cpu.as_nanos() as f64 / packets,
        receiver_ns: polled as f64 / (packets + (now.1 - before.1) as f64),
    }
}

#[test]
#[ignore = "a measurement; needs root"]
fn receive_and_send() {
    for sink_core in [None, Some(0)] {
        in_new_namespace(move || forward_all(sink_core));
    }
}

/// `sink_core`: the core of the thread that takes the packets at the end. Without it the worker takes them
/// itself, within its calls.
fn forward_all(sink_core: Option<usize>) {
    println!(
        "packets that leave are taken on {}",
        sink_core.map_or("the worker's core, in its calls".into(), |core| format!("core {core}"))
    );

    make_port(0, 1);
    make_port(1, 1);
    let (port, _sink) = (XdpPort::attach("p0"), XdpPort::with("q1", "millrace_sink"));
    let receiver = Napi::new("p0", 1);
    let _end = sink_core.map(|core| Napi::new("q1", core));
    let umem = Umem::new(16384, 2048).unwrap();
    println!("huge pages: {}", umem.has_huge_pages());
    let mut io = Io::new(&umem, 128).unwrap();
    let (opened, _sender) = open(&umem, &port, wanted("p0", 0, Rings::default()), &[0]);
    let queue = &opened.queue;
    println!("zero-copy: {} ({:?})", queue.is_zero_copy(), queue.copies_because().map(ToString::to_string));
    opened.add_to(&mut io);
    let (queue, sender) = Queue::open(&umem, wanted("p1", 0, Rings::default())).unwrap();
    io.add_queue(queue);
    io.add_output(sender, 1024).unwrap();
    only_on([1]);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _ends = Ends(&over);
        // A new thread is in the namespace of this one.
        scope.spawn(|| flood("q0", "generate", &frame(0, 0, 60), &over));
        for round in 0..ROUNDS {
            for batch in BATCHES {
                let Round { forwarded_pps, worker_ns, receiver_ns } = forward(&mut io, &receiver, batch);
                println!(
                    "round {round}, batch {batch:2}: forwarded {:.3} Mpps; ns of CPU a packet: worker {worker_ns:.0}, \
                         receive thread {receiver_ns:.0} (including packets that find the ring full)",
                    forwarded_pps / 1e6
                );
            }
        }
    });
    let out = io.outputs()[0].counts();
    println!("{out:?}");
    drop((io, _sender));
    whole(&umem);
}

#[test]
#[ignore = "a measurement"]
fn buffers_alone() {
    const PACKETS: usize = 20_000_000;
    let umem = Umem::new(8192, 2048).unwrap();
    let pool = Pool::new(&umem, 1024).unwrap();
    let mut bare: Vec<u32> = (0..1024).collect();
    let time = |mut run: Box<dyn FnMut() + '_>, batch: usize| {
        let cpu = cpu_time();
        (0..PACKETS / batch).for_each(|_| run());
        (cpu_time() - cpu).as_nanos() as f64 / PACKETS as f64
    };
    for batch in BATCHES {
        let (mut numbers, mut buffers, mut touched) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            // Frame numbers only: the cost of a scheme that knows no owner.
            let mut taken: Vec<u32> = Vec::with_capacity(batch);
            numbers.push(time(
                Box::new(|| {
                    taken.extend((0..batch).filter_map(|_| bare.pop()));
                    bare.append(black_box(&mut taken));
                }),
                batch,
            ));
            let mut held: Vec<Buffer> = Vec::with_capacity(batch);
            buffers.push(time(
                Box::new(|| {
                    held.extend((0..batch).filter_map(|_| pool.allocate()));
                    black_box(&mut held).clear();
                }),
                batch,
            ));
            let mut held: Vec<Buffer> = Vec::with_capacity(batch);
            touched.push(time(
                Box::new(|| {
                    held.extend((0..batch).filter_map(|_| pool.allocate()));
                    for buffer in &mut held {
                        assert!(buffer.set_range(256..316));
                        let data = buffer.data_mut();
                        data[22] = data[22].wrapping_sub(1);
                    }
                    black_box(&mut held).clear();
                }),
                batch,
            ));
        }
        for (what, of) in [
            ("numbers of frames, taken and put back", numbers),
            ("buffers, allocated and dropped", buffers),
            ("buffers, allocated, one byte read and written, dropped", touched),
        ] {
            println!("batch {batch:2}: {what}: median {:.2} ns a packet ({})", median(of.clone()), list(&of));
        }
    }
    drop(pool);
    whole(&umem);
}
