//! Figures 11 to 14: what paths that share a core get, by what they are charged. Click's default scheduler is ours with
//! a meter that advances by the same for every run, and runs of at most 8 packets. Then all paths run equally often.

use std::{cell::Cell, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use logic::{
    elements::Element,
    paths::{Resource, Share, printed},
    worker::Worker,
};
use router::user_plane::workers::{Clock, check_counted, counters};
use serde_json::json;

use super::{
    bed::{self, Got, Memory, Packet, Source, World, on_core, settings, worker},
    cores, sample, skipped,
};
use crate::{
    figure::{Axis, Figure, Reference},
    figures::{FiguresOptions, picture, published::PaperFigure},
    paths::forwarding::Trace,
    record::Recorder,
};

/// Most packets of a run, as in Click.
const BURST: u32 = 8;
/// Time after which costs are known, so that the second resource is shared by what it costs.
const WARM_UP: Duration = Duration::from_millis(20);
/// Cost of a run where all runs count alike.
const RUN: u64 = 1000;
/// The default of the product's workers, where only R bounds a run.
const LONG_BURST: u32 = 256;

/// What a run is charged.
#[derive(Clone, Copy)]
enum Charge {
    Runs,
    Used(Resource),
}

/// One way to share.
struct Way {
    subject: &'static str,
    charge: Charge,
    weights: Vec<u16>,
    burst: u32,
}

struct Paths {
    names: Vec<&'static str>,
    /// The packets of all paths. Each path starts at its own place.
    trace: fn(&World) -> &Arc<Trace>,
    chains: fn(&World) -> Result<Vec<Elements>>,
}

/// Elements of a chain.
type Elements = Vec<Box<dyn Element>>;

impl Paths {
    /// What each path gets in about a second.
    fn share(&self, way: &Way, world: &World, time: Duration) -> Result<Vec<Got>> {
        let clock = Clock::of_process();
        let mut settings = settings(clock, way.burst);
        let counter = match way.charge {
            Charge::Used(resource) => counters(resource)?,
            Charge::Runs => counters(Resource::Cycles)?,
        };
        settings.counted = counter.0;
        let chains = (self.chains)(world)?;
        let mut worker = worker(settings, way.weights.iter().copied().zip(chains))?;
        let paths = self.names.len();
        let source = |path| Source::from((self.trace)(world), path as f64 / paths as f64, None);
        let mut memory = Memory::new((0..paths).map(source));
        memory.counter = counter.1;
        let runs = Cell::new(0);
        let mut run = |worker: &mut Worker<Packet>, time| match way.charge {
            Charge::Runs => {
                let count = || {
                    runs.set(runs.get() + RUN);
                    runs.get()
                };
                bed::run(worker, &mut memory, clock, time, count)
            }
            Charge::Used(_) => bed::run(worker, &mut memory, clock, time, || clock.cycles()),
        };
        run(&mut worker, WARM_UP)?;
        if let Charge::Used(resource) = way.charge {
            worker.share(resource)?;
        }
        run(&mut worker, time)
    }

    /// Measures the ways in turn. Returns the cycles that packets cost, by the last repeat of the first way.
    fn compare(
        &self,
        figure: &PaperFigure,
        ways: &[Way],
        world: &World,
        options: &FiguresOptions,
        recorder: &mut Recorder,
    ) -> Result<Vec<u64>> {
        let core = cores::all()?.first().map_or(0, |core| core.number);
        let time = Duration::from_secs_f64(options.seconds);
        let mut costs = Vec::new();
        for repeat in 0..options.repeat.into() {
            for way in ways {
                let got = on_core(core, || self.share(way, world, time))?;
                if way.subject == ways[0].subject {
                    costs = got.iter().map(|got| got.cycles / got.packets.max(1)).collect();
                }
                self.record(figure, way, &got, repeat, recorder)?;
            }
        }
        Ok(costs)
    }

    fn record(
        &self,
        figure: &PaperFigure,
        way: &Way,
        got: &[Got],
        repeat: u64,
        recorder: &mut Recorder,
    ) -> Result<()> {
        let cycles: u64 = got.iter().map(|got| got.cycles).sum();
        let bytes: u64 = got.iter().map(|got| got.io_bytes).sum();
        let seconds = cycles as f64 / Clock::of_process().hz() as f64;
        for (name, got) in self.names.iter().zip(got) {
            let values = json!({
                "pps": got.packets as f64 / seconds,
                "cpu_share": got.cycles as f64 / cycles.max(1) as f64,
                "io_share": got.io_bytes as f64 / bytes.max(1) as f64,
                "cycles_per_packet": got.cycles as f64 / got.packets.max(1) as f64,
            });
            sample(figure, way.subject, json!({"path": name}), repeat, values, recorder)?;
        }
        Ok(())
    }
}

/// Rates and shares, by path.
fn pictures(
    figure: &PaperFigure,
    ours: &str,
    relative_to: Option<&str>,
    recorder: &mut Recorder,
) -> Result<()> {
    let x = || Axis::new("/parameters/path", "", "");
    let rate = picture(figure, x(), Axis::new("/sample/pps", "throughput", "Mpps").times(1e-6), ours);
    if let Some(to) = relative_to {
        recorder.figure(&rate.clone().relative_to(Reference::Series(to.into())))?;
        let name = format!("{} in Mpps", figure.id);
        recorder.figure(&Figure { name, title: format!("{}, in Mpps", rate.title), ..rate.clone() })?;
    } else {
        recorder.figure(&rate)?;
    }
    for (what, label) in [("cpu_share", "of the core's time"), ("io_share", "of the bytes in and out")] {
        let y = Axis::new(&format!("/sample/{what}"), label, "%").times(100.0);
        let name = format!("{} {what}", figure.id);
        let title = format!("{}: shares {label}", figure.paper);
        recorder.figure(&Figure { name, title, y, ..rate.clone() })?;
    }
    Ok(())
}

/// P11.
pub(in super::super) fn unequal_paths(
    figure: &PaperFigure,
    options: &FiguresOptions,
    recorder: &mut Recorder,
) -> Result<()> {
    const FAIR: &str = "by cost";
    let ours = "memory to memory, 64 bytes, 1,024 flows over 256,000 routes: FP2 and FP3 route, FP1 also appends a CRC. Runs of 8 packets at most, \
                except where R alone bounds them (100 us, 256 packets). \"Printed formula\": runs count alike, tickets by P's formula";
    pictures(figure, ours, Some(FAIR), recorder)?;
    let chains = |world: &World| Ok(vec![world.dearer(), world.rtr(), world.rtr()]);
    let paths = Paths { names: vec!["FP1 (dear)", "FP2", "FP3"], trace: |world| &world.few, chains };
    let used = Charge::Used(Resource::Cycles);
    let way =
        |subject, charge, weights: [u16; 3], burst| Way { subject, charge, weights: weights.to_vec(), burst };
    let ways = [
        way("default", Charge::Runs, [1; 3], BURST),
        way(FAIR, used, [1; 3], BURST),
        way("by cost, weights 33/22/44", used, [3, 2, 4], BURST),
        way("by cost, runs of R", used, [1; 3], LONG_BURST),
    ];
    let world = World::new()?;
    let costs = paths.compare(figure, &ways, &world, options, recorder)?;
    let tickets = printed::tickets(&costs.iter().map(|cost| (*cost, 1)).collect::<Vec<_>>());
    let weights = tickets.iter().map(|tickets| (*tickets).try_into()).collect::<Result<Vec<u16>, _>>();
    let weights = weights.context("tickets beyond what a path may have")?;
    let printed = Way { subject: "printed formula", charge: Charge::Runs, weights, burst: BURST };
    paths.compare(figure, &[printed], &world, options, recorder).map(drop)
}

/// Shares FWD, RTR and IPsec in one way.
fn workloads(
    figure: &PaperFigure,
    ways: &[Way],
    options: &FiguresOptions,
    recorder: &mut Recorder,
) -> Result<()> {
    let ours = "memory to memory, 64 bytes, RTR over 256,000 routes to random destinations, IPsec is AES-128-GCM in tunnel mode; runs of 8 packets at \
                most; measured here, while the paper computed it from what each workload took alone";
    pictures(figure, ours, None, recorder)?;
    let chains = |world: &World| Ok(vec![world.fwd(), world.rtr(), world.ipsec()?]);
    let paths = Paths { names: vec!["FWD", "RTR", "IPsec"], trace: |world| &world.small, chains };
    paths.compare(figure, ways, &World::new()?, options, recorder).map(drop)
}

fn equal(subject: &'static str, charge: Charge) -> Way {
    Way { subject, charge, weights: vec![1; 3], burst: BURST }
}

/// P12.
pub(in super::super) fn equal_runs(
    figure: &PaperFigure,
    options: &FiguresOptions,
    recorder: &mut Recorder,
) -> Result<()> {
    workloads(figure, &[equal("default", Charge::Runs)], options, recorder)
}

/// P13.
pub(in super::super) fn equal_cpu(
    figure: &PaperFigure,
    options: &FiguresOptions,
    recorder: &mut Recorder,
) -> Result<()> {
    workloads(figure, &[equal("equal CPU", Charge::Used(Resource::Cycles))], options, recorder)
}

/// P14.
pub(in super::super) fn equal_memory(
    figure: &PaperFigure,
    options: &FiguresOptions,
    recorder: &mut Recorder,
) -> Result<()> {
    let mut ways = vec![equal("equal I/O", Charge::Used(Resource::Io))];
    match check_counted(Share::Always(Resource::Memory)) {
        Ok(()) => ways.insert(0, equal("equal memory", Charge::Used(Resource::Memory))),
        Err(refused) => skipped(figure, "equal memory", &refused.to_string(), recorder)?,
    }
    workloads(figure, &ways, options, recorder)
}

/// All packets of the trace are alike, so bytes of I/O depend on packets and on what a chain adds to them.
#[cfg(test)]
mod tests {
    use super::*;
    use logic::{
        elements::{Batch, Contract, Counters as Counts, Now},
        paths::Counters,
    };
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    /// An element that takes this many ticks a packet.
    struct Takes(u64, &'static AtomicU64);

    impl Element for Takes {
        fn name(&self) -> &'static str {
            "takes"
        }
        fn contract(&self) -> Contract {
            Contract::default()
        }
        fn run(&mut self, _: &Now, batch: &mut Batch<'_>, _: &mut Counts) {
            self.1.fetch_add(self.0 * batch.packets().len() as u64, Relaxed);
        }
    }

    /// What two paths got. The second one takes three times as long for a packet.
    fn got(charge: Charge) -> Vec<Got> {
        let trace = bed::plain().unwrap();
        let ticks: &AtomicU64 = Box::leak(Box::default());
        let clock = Clock::of_ticks(ticks);
        let mut settings = settings(clock, BURST);
        settings.counted = Counters::CYCLES.with(Resource::Io);
        let path = |takes| -> (u16, Vec<Box<dyn Element>>) {
            (1, vec![Box::new(Takes(takes, ticks)), crate::paths::forwarding::forward()])
        };
        let mut worker = worker(settings, [path(1000), path(3000)]).unwrap();
        let mut memory = Memory::new([Source::new(&trace, None), Source::new(&trace, None)]);
        let mut runs = 0;
        let time = Duration::from_millis(30);
        match charge {
            Charge::Runs => bed::run(&mut worker, &mut memory, clock, time, || {
                runs += RUN;
                runs
            }),
            Charge::Used(_) => bed::run(&mut worker, &mut memory, clock, time, || clock.cycles()),
        }
        .unwrap()
    }

    #[test]
    fn runs_that_count_alike_make_packets_equal_and_cycles_make_time_equal() {
        let by_runs = got(Charge::Runs);
        assert!(by_runs[0].packets.abs_diff(by_runs[1].packets) <= u64::from(BURST), "{by_runs:?}");
        assert_eq!(by_runs[0].io_bytes, by_runs[0].packets * 120);
        let by_cycles = got(Charge::Used(Resource::Cycles));
        let [first, second] = [&by_cycles[0], &by_cycles[1]];
        assert!(first.cycles.abs_diff(second.cycles) < first.cycles / 50, "{by_cycles:?}");
        assert!((first.packets as f64 / second.packets as f64 - 3.0).abs() < 0.1, "{by_cycles:?}");
    }
}
