//! Figures 19 and 20: paths that want the same or different resources, on one core or on hyper-thread siblings (P10).

use std::time::Duration;

use anyhow::{Context, Result};
use logic::{
    elements::Element,
    paths::{Resource, Settings, Share},
};
use router::user_plane::workers::{Clock, check_counted, counters};
use serde_json::json;

use super::{
    bars,
    bed::{self, Memory, Source, World, on_cores, settings, worker},
    cores, sample, skipped,
};
use crate::{
    figure::{Axis, Reference},
    figures::{FiguresOptions, picture, published::PaperFigure},
    record::Recorder,
};

const BURST: u32 = 8;

/// A workload by its name.
fn chain(name: &str, world: &World) -> Result<Vec<Box<dyn Element>>> {
    Ok(match name {
        "IPsec" => world.ipsec()?,
        "CRC" => world.crc(),
        _ => world.rtr(),
    })
}

/// Results of a path.
struct Got {
    name: &'static str,
    pps: f64,
    io_bytes_per_second: f64,
    /// Known where the CPU counts it.
    memory_bytes_per_second: Option<f64>,
    cpu: f64,
}

/// Runs paths on a core, each with a weight and a workload.
fn on_one(paths: &[(u16, &'static str)], large: bool, world: &World, time: Duration) -> Result<Vec<Got>> {
    let clock = Clock::of_process();
    let chains = paths.iter().map(|(weight, name)| Ok((*weight, chain(name, world)?)));
    let (counted, counter) = counters(Resource::Memory).or_else(|_| counters(Resource::Cycles))?;
    let settings = Settings { counted, ..settings(clock, BURST) };
    let mut worker = worker(settings, chains.collect::<Result<Vec<_>>>()?)?;
    let trace = if large { &world.large } else { &world.small };
    let mut memory =
        Memory::new((0..paths.len()).map(|n| Source::from(trace, n as f64 / paths.len() as f64, None)));
    memory.counter = counter;
    let mut run = |time| bed::run(&mut worker, &mut memory, clock, time, || clock.cycles());
    run(time / 20)?;
    let got = run(time)?;
    let cycles: u64 = got.iter().map(|got| got.cycles).sum();
    let seconds = cycles as f64 / clock.hz() as f64;
    let of_memory: Vec<Option<u64>> =
        worker.accounts().map(|account| account.cost.of(Resource::Memory)).collect();
    let each = paths.iter().zip(got).zip(of_memory).map(|(((_, name), got), memory)| Got {
        name,
        pps: got.packets as f64 / seconds,
        memory_bytes_per_second: memory.map(|bytes| bytes as f64 * got.packets as f64 / seconds),
        io_bytes_per_second: got.io_bytes as f64 / seconds,
        cpu: got.cycles as f64 / cycles as f64,
    });
    Ok(each.collect())
}

/// P19.
pub(in super::super) fn alike_on_a_core(
    figure: &PaperFigure,
    options: &FiguresOptions,
    recorder: &mut Recorder,
) -> Result<()> {
    let ours = "memory to memory, packets of 1,024 bytes; parts of 20 and 80 % are weights, as all paths always have packets; both cores are fully used. \
                I/O is the bytes in and out";
    let y = Axis::new("/sample/io_gbps", "I/O, both cores", "Gbit/s");
    recorder.figure(&bars(figure, y, ours))?;
    let pair = cores::within_a_package(&cores::all()?).context("needs two cores, and there is one")?;
    if let Err(refused) = check_counted(Share::Always(Resource::Memory)) {
        skipped(figure, "memory", &refused.to_string(), recorder)?;
    }
    let (world, time) = (World::new()?, Duration::from_secs_f64(options.seconds));
    let ways = [
        ("50/50", [[(1, "IPsec"), (1, "IPsec")], [(1, "CRC"), (1, "CRC")]]),
        ("20/80, alike on a core", [[(1, "IPsec"), (4, "IPsec")], [(1, "CRC"), (4, "CRC")]]),
        ("20/80, unlike on a core", [[(1, "IPsec"), (4, "CRC")], [(1, "IPsec"), (4, "CRC")]]),
    ];
    for repeat in 0..options.repeat.into() {
        for (subject, paths) in &ways {
            let world = &world;
            let each = pair
                .into_iter()
                .zip(paths)
                .map(|(core, paths)| (core, move || on_one(paths, true, world, time)));
            let got: Vec<Got> = on_cores(each)?.into_iter().flatten().collect();
            let io_gbps: f64 = got.iter().map(|got| got.io_bytes_per_second * 8e-9).sum();
            let of: Vec<_> = got
                .iter()
                .map(|got| json!({"path": got.name, "pps": got.pps, "cpu_share": got.cpu}))
                .collect();
            let memory: Option<f64> = got.iter().map(|got| got.memory_bytes_per_second).sum();
            let memory_gbps = memory.map(|bytes| bytes * 8e-9);
            let values = json!({"io_gbps": io_gbps, "memory_gbps": memory_gbps, "paths": of});
            sample(figure, subject, json!({}), repeat, values, recorder)?;
        }
    }
    Ok(())
}

/// P20.
pub(in super::super) fn unlike_on_siblings(
    figure: &PaperFigure,
    options: &FiguresOptions,
    recorder: &mut Recorder,
) -> Result<()> {
    let ours = "memory to memory, 64 bytes, one core with two threads: IPsec beside IPsec and RTR beside RTR, then IPsec beside RTR";
    let x = Axis::new("/parameters/path", "", "");
    let rate = picture(figure, x, Axis::new("/sample/pps", "throughput", "Mpps").times(1e-6), ours);
    recorder.figure(&rate.relative_to(Reference::Series("alike".into())))?;
    let Some(pair) = cores::siblings(&cores::all()?) else {
        return skipped(
            figure,
            "alike, unlike",
            "no two of this machine's cores are hyper-threads of one",
            recorder,
        );
    };
    let (world, time) = (World::new()?, Duration::from_secs_f64(options.seconds));
    for repeat in 0..options.repeat.into() {
        for (subject, beside) in
            [("alike", ["IPsec", "IPsec"]), ("alike", ["RTR", "RTR"]), ("unlike", ["IPsec", "RTR"])]
        {
            let world = &world;
            let each = pair
                .into_iter()
                .zip(beside)
                .map(|(core, name)| (core, move || on_one(&[(1, name)], false, world, time)));
            let got: Vec<Got> = on_cores(each)?.into_iter().flatten().collect();
            // Of two equal paths, the share of one.
            for name in ["IPsec", "RTR"] {
                let of: Vec<f64> = got.iter().filter(|got| got.name == name).map(|got| got.pps).collect();
                if !of.is_empty() {
                    let pps = of.iter().sum::<f64>() / of.len() as f64;
                    sample(figure, subject, json!({"path": name}), repeat, json!({"pps": pps}), recorder)?;
                }
            }
        }
    }
    Ok(())
}
