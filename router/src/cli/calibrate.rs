//! `millrace calibrate`: measures the cost of a switch between paths, and the memory bandwidth, and writes both to a file.

use super::{Output, show, table::Table};
use crate::{
    config::{CALIBRATION_FILE, CoreList},
    cores::CoreId,
    user_plane::{
        calibrate::{self, Calibration},
        workers::{self, Clock},
    },
};
use anyhow::{Context, Result};
use clap::Args;
use rustix::thread::CpuSet;
use std::{collections::BTreeSet, path::PathBuf};

pub const HELP: &str = "\
The paths of a worker take turns on its core, and each switch to another path costs time. The command measures
runs of 1 to 64 packets in memory, which takes a second. A line through them gives the cost of a switch and of
a packet. The daemon reads the file when it starts, and bounds runs by it (docs/inside/user-plane.md). Without
the file, or with one of another machine, the switch is part of the cost of packets.

The memory bandwidth is what all cores of workers get together, by the CPU's counter of cache misses. If the
counter is not available, as in most virtual machines, the file says so, and memory is never scarce. The I/O
bandwidth is not measured: it is what the links carry, or `io_mbps` of [experimental].

If the machine is too busy to measure, nothing is written and the exit status is 1.";

/// Rounds of each size of run: 0.6 s in all.
const ROUNDS: u32 = 401;
/// Measurements until one fits, because something else may have had the core.
const TRIES: u32 = 5;

#[derive(Debug, Args)]
pub struct Calibrate {
    /// The file to write the result to.
    #[arg(long, value_name = "FILE", default_value = CALIBRATION_FILE)]
    file: PathBuf,
    /// The core to measure on, one with a worker [default: the one that it runs on].
    #[arg(long, value_name = "CORE")]
    core: Option<CoreId>,
    /// All cores with workers, for the memory bandwidth [default: all that this process may run on].
    #[arg(long, value_name = "LIST")]
    cores: Option<CoreList>,
    #[command(flatten)]
    output: Output,
}

impl Calibrate {
    pub fn is_json(&self) -> bool {
        self.output.json
    }

    pub fn run(self) -> Result<()> {
        // Before the thread is pinned to one of them.
        let memory = calibrate::bandwidth(&self.cores.map_or_else(all, |cores| cores.0));
        workers::pin(self.core.unwrap_or_else(here))?;
        let clock = Clock::of_process();
        let mut measured = calibrate::measure(clock, ROUNDS)?;
        for _ in 1..TRIES {
            if measured.fit.is_err() {
                measured = calibrate::measure(clock, ROUNDS)?;
            }
        }
        let fit = measured.fit.context("nothing was written, because the measurement is not usable")?;
        let calibration = Calibration::new(&measured.points, fit, memory, clock);
        calibration.write(&self.file)?;
        show(self.output, &calibration, |calibration| {
            text(calibration) + &format!("written to {}\n", self.file.display())
        })
    }
}

fn all() -> BTreeSet<CoreId> {
    let may = rustix::thread::sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU).filter(|core| may.is_set(*core)).filter_map(|core| core.try_into().ok()).collect()
}

fn here() -> CoreId {
    rustix::thread::sched_getcpu().try_into().unwrap_or(0)
}

fn text(calibration: &Calibration) -> String {
    let Calibration { switch_cycles, switch_error_cycles, switch_ns, packet_cycles, .. } = calibration;
    let mut table = Table::new(&["PACKETS", "CYCLES", "PER PACKET"]);
    for runs in &calibration.runs {
        let of_each = runs.cycles / f64::from(runs.packets);
        table.row([runs.packets.to_string(), format!("{:.0}", runs.cycles), format!("{of_each:.1}")]);
    }
    let memory = match (&calibration.memory, &calibration.no_memory) {
        (Some(found), _) => {
            let gbytes = found.bytes_per_second as f64 / 1e9;
            format!("{gbytes:.1} GB/s, {} cores together", found.cores.len())
        }
        (None, why) => format!("not known: {}", why.as_deref().unwrap_or_default()),
    };
    format!(
        "switch      {switch_cycles:.0} cycles ({switch_ns:.0} ns), standard error {switch_error_cycles:.0}; each packet {packet_cycles:.1} cycles\n\
         measured    by the {} at {:.0} MHz; the medians of runs are in the table; the line leaves {:.1} % of them unexplained\n\
         memory      {memory}\n{}",
        calibration.clock,
        calibration.hz as f64 / 1e6,
        calibration.residual * 100.0,
        table.text()
    )
}
