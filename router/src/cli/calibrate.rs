//! `millrace calibrate`: what a switch from path to path takes, and what there is of memory bandwidth, measured and kept.

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
Paths of a worker have a core in turn, and a turn costs something besides its packets. That is found by runs of 1 to 64 packets in memory, which
takes a second: the line through what they take tells what a run costs (the switch) and what a packet does. The daemon reads the file when it starts, and bounds
runs of packets by it (docs/inside/user-plane.md). Without the file, or with one of another machine, what a switch costs is part of what packets cost.
What there is of memory bandwidth is what all cores of workers together get, by the CPU's counter of cache misses; where it has none for us, as in most
virtual machines, that is told and kept, and memory is never found scarce. Of I/O it is what links carry, or what `[workers] io_mbps` says.
Nothing is kept, and the exit code is 1, if the machine is too busy with something else to tell.";

/// Rounds of each size of run: 0.6 s in all.
const ROUNDS: u32 = 401;
/// Something else may have had the core.
const TRIES: u32 = 5;

#[derive(Debug, Args)]
pub struct Calibrate {
    /// Where what was found is kept.
    #[arg(long, value_name = "FILE", default_value = CALIBRATION_FILE)]
    file: PathBuf,
    /// On which core to measure, of those that workers have [default: where it happens to run].
    #[arg(long, value_name = "CORE")]
    core: Option<CoreId>,
    /// All cores of workers, for memory bandwidth [default: all that this process may run on].
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
        // Before the thread is on one of them alone.
        let memory = calibrate::bandwidth(&self.cores.map_or_else(all, |cores| cores.0));
        workers::pin(self.core.unwrap_or_else(here))?;
        let clock = Clock::of_process();
        let mut measured = calibrate::measure(clock, ROUNDS)?;
        for _ in 1..TRIES {
            if measured.fit.is_err() {
                measured = calibrate::measure(clock, ROUNDS)?;
            }
        }
        let fit = measured.fit.context("nothing is kept, as what was measured does not tell")?;
        let calibration = Calibration::new(&measured.points, fit, memory, clock);
        calibration.write(&self.file)?;
        show(self.output, &calibration, |calibration| {
            text(calibration) + &format!("kept in {}\n", self.file.display())
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
    let mut table = Table::new(&["PACKETS", "CYCLES", "A PACKET"]);
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
        "switch      {switch_cycles:.0} cycles, give or take {switch_error_cycles:.0} ({switch_ns:.0} ns), and {packet_cycles:.1} for each packet\n\
         measured    by the {} at {:.0} MHz, runs of so many packets, medians; {:.1} % of them is not explained by that\n\
         memory      {memory}\n{}",
        calibration.clock,
        calibration.hz as f64 / 1e6,
        calibration.residual * 100.0,
        table.text()
    )
}
