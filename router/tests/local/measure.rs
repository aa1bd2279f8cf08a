//! How much of the forwarding core local delivery takes, when it stays there and when it follows, in turns.
//! Prints a line of JSON for each measurement: `cargo test --release -p millrace --test local -- --ignored
//! --nocapture measure`.

use super::*;
use router::cores::{
    affinity::Kernel,
    queues::{Control, NetdevQueues, PortQueues},
};
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

const WINDOW: Duration = Duration::from_secs(2);
const ROUNDS: usize = 5;

/// What arrives in a second: UDP packets for a socket, writes of 16 KiB to a TCP connection, and packets that
/// are forwarded.
#[derive(Clone, Copy)]
struct Case {
    udp: f64,
    tcp: f64,
    forwarded: f64,
}

const CASES: [Case; 5] = [
    Case { udp: 0.0, tcp: 0.0, forwarded: 100_000.0 },
    Case { udp: 50_000.0, tcp: 0.0, forwarded: 100_000.0 },
    Case { udp: 200_000.0, tcp: 0.0, forwarded: 0.0 },
    Case { udp: 0.0, tcp: 4_000.0, forwarded: 100_000.0 },
    Case { udp: 0.0, tcp: 12_000.0, forwarded: 0.0 },
];

/// Does something on core 1, until `stop` is set.
fn on_core_1(stop: &Arc<AtomicBool>, mut what: impl FnMut() + Send + 'static) -> thread::JoinHandle<()> {
    let stop = stop.clone();
    thread::spawn(move || {
        only_on([1]);
        while !stop.load(Relaxed) {
            what();
        }
    })
}

/// Does something `per_second` times a second. At most `most` missed times are made up for.
fn paced(per_second: f64, most: f64, mut what: impl FnMut()) -> impl FnMut() {
    let (start, mut done) = (Instant::now(), 0.0);
    move || {
        let due = start.elapsed().as_secs_f64() * per_second;
        done = f64::max(done, due - most);
        while done < due {
            what();
            done += 1.0;
        }
    }
}

/// Starts applications that read on core 1, and senders there too. Returns the threads, and the count of
/// bytes received.
fn load(bed: &Bed, case: Case, stop: &Arc<AtomicBool>) -> (Vec<thread::JoinHandle<()>>, Arc<AtomicU64>) {
    let (received, second) = (Arc::new(AtomicU64::new(0)), Some(Duration::from_secs(1)));
    let udp = bed.there(|| UdpSocket::bind("10.0.0.2:0").unwrap());
    let socket = UdpSocket::bind("10.0.0.1:0").unwrap();
    socket.connect(udp.local_addr().unwrap()).unwrap();
    socket.set_read_timeout(second).unwrap();
    let listener = TcpListener::bind("10.0.0.1:0").unwrap();
    let (to, to_stream) = (socket.local_addr().unwrap(), listener.local_addr().unwrap());
    let mut tcp = bed.there(|| TcpStream::connect(to_stream).unwrap());
    tcp.set_write_timeout(second).unwrap();
    let mut stream = listener.accept().unwrap().0;
    stream.set_read_timeout(second).unwrap();
    let (count, count_stream) = (received.clone(), received.clone());
    let (mut bytes, mut many) = ([0; 64], vec![0; 64 << 10]);
    let mut datagrams = paced(case.udp, 200.0, {
        let udp = udp.try_clone().unwrap();
        move || drop(udp.send_to(&[0; 18], to))
    });
    let mut through = paced(case.forwarded, 200.0, move || drop(udp.send_to(&[0; 18], "10.0.1.9:9")));
    let chunk = vec![0; 16 << 10];
    let mut writes = paced(case.tcp, 4.0, move || drop(tcp.write_all(&chunk)));
    let threads = vec![
        on_core_1(stop, move || {
            count.fetch_add(socket.recv(&mut bytes).unwrap_or(0) as u64, Relaxed);
        }),
        on_core_1(stop, move || {
            count_stream.fetch_add(stream.read(&mut many).unwrap_or(0) as u64, Relaxed);
        }),
        on_core_1(stop, move || {
            [&mut datagrams as &mut dyn FnMut(), &mut through, &mut writes]
                .into_iter()
                .for_each(|send| send());
            thread::sleep(Duration::from_micros(250));
        }),
    ];
    (threads, received)
}

/// Seconds that the thread that polls lp0 has run.
fn ran(bed: &Bed) -> f64 {
    let told = NetdevQueues::ask(common::ifindex("lp0"), "lp0").unwrap();
    let queues = PortQueues::observe(&bed.roots, &Kernel, 0, "lp0", &told).unwrap().queues;
    let Control::Thread { pid } = queues[0].control else { panic!("{queues:?}") };
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap();
    text.split_whitespace().next().unwrap().parse::<f64>().unwrap() / 1e9
}

/// Seconds that each core was not idle.
fn busy() -> [f64; 2] {
    let text = fs::read_to_string("/proc/stat").unwrap();
    ["cpu0 ", "cpu1 "].map(|core| {
        let line = text.lines().find(|line| line.starts_with(core)).unwrap();
        let ticks: Vec<f64> = line.split_whitespace().skip(1).map(|ticks| ticks.parse().unwrap()).collect();
        (ticks[..8].iter().sum::<f64>() - ticks[3] - ticks[4]) / 100.0
    })
}

fn window(bed: &Bed, round: usize, cores: &str, case: Case) {
    let stop = Arc::new(AtomicBool::new(false));
    let (threads, received) = load(bed, case, &stop);
    thread::sleep(Duration::from_millis(500));
    let at = || (Instant::now(), ran(bed), busy(), received.load(Relaxed), bed.arrived());
    let (stack, (began, ran_before, was_busy, had, arrived)) = (worked(), at());
    thread::sleep(WINDOW);
    let (stack, (ended, ran_then, busy_then, has, arrived_then)) = (since(stack), at());
    stop.store(true, Relaxed);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let seconds = (ended - began).as_secs_f64();
    let cores_busy = [0, 1].map(|core| (busy_then[core] - was_busy[core]) / seconds);
    let stack_pps = stack.map(|packets| packets as f64 / seconds);
    let local = if cores.is_empty() { "stay" } else { "follow" };
    let line = serde_json::json!({
        "record": "sample",
        "case": "local delivery",
        "repeat": round,
        "parameters": {
            "local": local,
            "udp_pps": case.udp,
            "tcp_writes_per_s": case.tcp,
            "forwarded_pps": case.forwarded,
        },
        "sample": {
            "seconds": seconds,
            "received_bytes_per_s": (has - had) as f64 / seconds,
            "forwarded_pps": (arrived_then - arrived) as f64 / seconds,
            "queue_ran": (ran_then - ran_before) / seconds,
            "cores_busy": cores_busy,
            "stack_pps": stack_pps,
        },
    });
    println!("{line}");
}

#[test]
#[ignore = "a measurement"]
fn measure_what_local_delivery_takes_of_the_forwarding_core() {
    in_new_namespace(|| {
        let mut bed = Bed::new("m");
        for round in 0..ROUNDS {
            for cores in ["", FOLLOW] {
                bed.start(cores, &PORTS);
                if cores == FOLLOW {
                    bed.wait_until_it_follows(2, 65536);
                }
                CASES.iter().for_each(|&case| window(&bed, round, cores, case));
                bed.stop();
            }
        }
    });
}
