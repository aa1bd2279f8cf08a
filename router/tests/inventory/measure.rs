//! Measurements: `cargo test --release --test inventory -- --ignored --nocapture measure --test-threads 1`.

use super::*;
use rustix::time::{ClockId, clock_gettime};

/// CPU time of this thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn each<T>(count: u32, mut what: impl FnMut() -> T) -> Duration {
    what();
    let before = cpu_time();
    (0..count).for_each(|_| {
        std::hint::black_box(what());
    });
    (cpu_time() - before) / count
}

/// What one second's part of the walk costs while thousands of processes sleep, and how soon all are known.
#[test]
#[ignore = "a measurement"]
fn walking_two_thousand_processes() {
    let online: BTreeSet<CoreId> = online_cpus().unwrap().into_iter().map(|core| core as CoreId).collect();
    let sleepers = Sleepers::start(2000);
    let last = sleepers.0.last().unwrap().id();
    Kernel.allow(last, &[*online.first().unwrap()].into()).unwrap();
    let (mut scanner, roots) = (Scanner::new(Kernel, std::process::id(), None), Roots::here().unwrap());
    let (mut costs, mut found_after) = (Vec::new(), None);
    for second in 0..20 {
        let before = cpu_time();
        scanner.scan(&roots, &online, Duration::from_secs(second));
        costs.push(cpu_time() - before);
        if found_after.is_none() && scanner.workloads().iter().any(|workload| workload.id == last) {
            found_after = Some(second);
        }
    }
    costs.sort_unstable();
    println!(
        "a second's part: median {:?}, most {:?}; all known after {found_after:?} s",
        costs[10], costs[19]
    );
    assert!(costs[10] < Duration::from_millis(10), "a part of the walk costs {:?}", costs[10]);
}

/// What reading the counters costs.
#[test]
#[ignore = "a measurement"]
fn reading_loads() {
    let roots = Roots::here().unwrap();
    let sleepers = Sleepers::start(1);
    let mut thread = ThreadTime::open(&roots, sleepers.0[0].id()).unwrap().unwrap();
    let thread = each(100_000, || thread.read(&[]).unwrap());
    let mut times = CoreTimes::open(&roots).unwrap();
    let cores = each(10_000, || times.read().unwrap().len());
    println!("a schedstat: {thread:?}; /proc/stat and /proc/softirqs: {cores:?}");
}

/// The error of a thread's running time, counted in periods of 10 ms, while it runs all the time.
#[test]
#[ignore = "a measurement"]
fn counting_a_thread_that_runs() {
    let (say, hear) = mpsc::channel();
    let started = Instant::now();
    let spinning = thread::spawn(move || {
        say.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap();
        while started.elapsed() < Duration::from_secs(3) {
            std::hint::spin_loop();
        }
    });
    let mut time = ThreadTime::open(&Roots::here().unwrap(), hear.recv().unwrap()).unwrap().unwrap();
    let (mut meter, mut raw, mut carried, mut before) = (Meter::default(), Vec::new(), Vec::new(), None);
    while started.elapsed() < Duration::from_secs(2) {
        let Reading::Exact(times) = time.read(&[]).unwrap() else { panic!() };
        let now = started.elapsed();
        if let Some((then, ran_ns)) = before.replace((now, times.ran_ns)) {
            raw.push((times.ran_ns - ran_ns) as f64 / (now - then).as_nanos() as f64);
        }
        carried.extend(meter.load(now, times).map(|load| load.ran + load.waited));
        thread::sleep(Duration::from_millis(10));
    }
    for (what, loads) in [("counted", &mut raw), ("loads", &mut carried)] {
        loads.sort_by(f64::total_cmp);
        let at = |percent: usize| loads[(loads.len() - 1) * percent / 100];
        println!(
            "{what}: least {:.2}, 5 % {:.2}, median {:.2}, 95 % {:.2}, most {:.2}",
            at(0),
            at(5),
            at(50),
            at(95),
            at(100)
        );
    }
    spinning.join().unwrap();
}
