//! Measures the scheduler of paths: `cargo bench -p millrace-logic --bench paths`.
//!
//! Nanoseconds for picking a task and charging it, with runs of random length, so that the order changes as in reality
//! and branches cannot be predicted. First the structures that were tried for the passes alone, with all tasks awake.
//! Then the whole scheduler.

use criterion::{BenchmarkGroup, BenchmarkId, Criterion, measurement::WallTime};
use logic::{
    fib::synthetic::Random,
    paths::{Bursts, Cost, Counters, Path, Resource, Run, Scheduler, Settings, Used, stride::Stride},
};
use std::{cmp::Reverse, collections::BinaryHeap, hint::black_box};

const TASKS: [usize; 4] = [4, 8, 16, 64];

/// Cycles of runs, another number each time.
struct Runs {
    units: Vec<u64>,
    next: usize,
}

impl Runs {
    fn new() -> Self {
        let mut random = Random(1);
        Runs { units: (0..8192).map(|_| 1000 + u64::from(random.below(60_000))).collect(), next: 0 }
    }

    fn next(&mut self) -> u64 {
        self.next = (self.next + 1) % self.units.len();
        self.units[self.next]
    }
}

fn tickets(task: usize) -> u32 {
    1 + task as u32 % 7
}

fn stride_of(task: usize) -> u64 {
    u64::from((1 << 30) / tickets(task))
}

/// The structure of `logic`: pass and task in one word.
fn words(group: &mut BenchmarkGroup<'_, WallTime>, tasks: usize) {
    let (mut stride, mut runs) = (Stride::default(), Runs::new());
    for task in 0..tasks {
        stride.add(tickets(task)).expect("there is room");
    }
    group.bench_function(BenchmarkId::new("words", tasks), |b| {
        b.iter(|| {
            let task = stride.pick().expect("all are awake");
            stride.charge(task, runs.next());
            black_box(task)
        });
    });
}

/// A bit for each task that is awake, and the passes in an array by task.
fn bits(group: &mut BenchmarkGroup<'_, WallTime>, tasks: usize) {
    let mut runs = Runs::new();
    let mut passes = [0u64; 64];
    let strides: Vec<u64> = (0..tasks).map(stride_of).collect();
    let awake = u64::MAX >> (64 - tasks);
    let mut global = 0;
    group.bench_function(BenchmarkId::new("bits", tasks), |b| {
        b.iter(|| {
            let (mut first, mut least, mut left) = (0, u64::MAX, black_box(awake));
            while left != 0 {
                let i = left.trailing_zeros() as usize;
                let ahead = passes[i].wrapping_sub(global);
                if ahead < least {
                    (first, least) = (i, ahead);
                }
                left &= left - 1;
            }
            global = global.wrapping_add(least);
            passes[first] = passes[first].wrapping_add(runs.next() * strides[first]);
            black_box(first)
        });
    });
}

/// The passes in an array without gaps and without branches on them. A list has their tasks.
fn dense(group: &mut BenchmarkGroup<'_, WallTime>, tasks: usize) {
    let mut runs = Runs::new();
    let mut passes = vec![0u64; tasks];
    let strides: Vec<u64> = (0..tasks).map(stride_of).collect();
    let mut global = 0;
    group.bench_function(BenchmarkId::new("dense", tasks), |b| {
        b.iter(|| {
            let (mut first, mut least) = (0, u64::MAX);
            for (i, pass) in passes.iter().enumerate() {
                let ahead = pass.wrapping_sub(global);
                (first, least) = if ahead < least { (i, ahead) } else { (first, least) };
            }
            global = global.wrapping_add(least);
            passes[first] = passes[first].wrapping_add(runs.next() * strides[first]);
            black_box(first)
        });
    });
}

/// A binary heap. It has the advantage that passes do not wrap.
fn heap(group: &mut BenchmarkGroup<'_, WallTime>, tasks: usize) {
    let mut runs = Runs::new();
    let mut heap: BinaryHeap<Reverse<(u64, usize)>> = (0..tasks).map(|task| Reverse((0, task))).collect();
    let strides: Vec<u64> = (0..tasks).map(|task| stride_of(task) >> 14).collect();
    group.bench_function(BenchmarkId::new("heap", tasks), |b| {
        b.iter(|| {
            let mut first = heap.peek_mut().expect("it is never empty");
            let Reverse((pass, task)) = *first;
            *first = Reverse((pass + runs.next() * strides[task], task));
            black_box(task)
        });
    });
}

/// A scheduler with this many paths in this many routers.
fn scheduler(routers: u8, paths: u16) -> Scheduler {
    let bursts = Bursts { longest_cycles: 150_000, switch_cycles: 200, most: 256 };
    let counted = Counters::CYCLES.with(Resource::Memory);
    let mut scheduler =
        Scheduler::new(Settings { bursts, sample_every: 20, counted }).expect("cycles are counted");
    for id in 0..paths {
        let path = Path { id, router: (id % u16::from(routers)) as u8, weight: 1 + id % 7 };
        scheduler.add(path, Cost::default()).expect("there is room");
    }
    scheduler
}

/// With packets in every run. `clocked`: every run is measured.
fn whole(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    routers: u8,
    paths: u16,
    packets: u32,
    clocked: bool,
) {
    let (mut scheduler, mut runs) = (scheduler(routers, paths), Runs::new());
    group.bench_function(BenchmarkId::new(name, format!("{routers}x{}", paths / u16::from(routers))), |b| {
        b.iter(|| {
            let next = scheduler.pick().expect("all are awake");
            let cycles = 200 + u64::from(packets) * (runs.next() >> 7);
            let used = (clocked || next.measure).then_some(Used::cycles(cycles));
            scheduler.charge(next.handle, &Run { packets, used });
            black_box(next)
        });
    });
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let mut group = criterion.benchmark_group("stride");
    for tasks in TASKS {
        words(&mut group, tasks);
        bits(&mut group, tasks);
        dense(&mut group, tasks);
        heap(&mut group, tasks);
    }
    group.finish();
    let mut group = criterion.benchmark_group("scheduler");
    for (routers, paths) in [(1, 4), (1, 16), (1, 64), (4, 16), (8, 64)] {
        // One run in twenty is measured.
        whole(&mut group, "single packets", routers, paths, 1, false);
        whole(&mut group, "single packets, clocked", routers, paths, 1, true);
        // All are measured.
        whole(&mut group, "bursts of 32", routers, paths, 32, true);
    }
    group.finish();
    criterion.final_summary();
}
