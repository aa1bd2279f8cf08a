//! What was measured, in a file: JSON, as people and programs read it. It holds for the machine and the clock it was measured with, so both are
//! in it; elsewhere, or spoilt, it is not used, and that is told.

use super::bandwidth::Bandwidth;
use crate::{
    api::workers::{Capacity, Switch},
    base::guard::is_ours_or_roots_alone,
    user_plane::workers::Clock,
};
use anyhow::{Context, Result, ensure};
use logic::paths::calibrate::{Fit, Point, fit};
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File},
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    process,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// A file of ours has some 1,000 bytes.
const MOST_BYTES: u64 = 1 << 16;
/// A switch takes less than such a part of the longest run of a path, or it was none that was measured.
const LEAST_RUNS: f64 = 10.0;
/// The frequency of a clock is measured anew each time.
const SAME_HZ: f64 = 0.01;

/// `millrace calibrate --json`, and what it keeps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// C_cs, what a switch from path to path takes, and its standard error.
    pub switch_cycles: f64,
    pub switch_error_cycles: f64,
    /// The same in nanoseconds.
    pub switch_ns: f64,
    /// C of the packets that were used.
    pub packet_cycles: f64,
    /// What the line through the runs leaves unexplained, of what they took.
    pub residual: f64,
    /// What cycles were counted by, and how many a second has.
    pub clock: String,
    pub hz: u64,
    /// The CPU's name, as /proc/cpuinfo has it.
    pub cpu: String,
    /// What there is of memory bandwidth,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Bandwidth>,
    /// or why that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_memory: Option<String>,
    /// When.
    pub unix_seconds: u64,
    /// What the rest was computed from.
    pub runs: Vec<Runs>,
}

/// Runs of one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Runs {
    pub packets: u32,
    /// Of a run, the median.
    pub cycles: f64,
}

impl Calibration {
    /// Of this machine, now.
    pub fn new(points: &[Point], fit: Fit, memory: Result<Bandwidth>, clock: Clock) -> Calibration {
        let Fit { switch_cycles, switch_error, packet_cycles, residual } = fit;
        let no_memory = memory.as_ref().err().map(|error| format!("{error:#}"));
        Calibration {
            switch_cycles,
            switch_error_cycles: switch_error,
            switch_ns: switch_cycles * 1e9 / clock.hz() as f64,
            packet_cycles,
            residual,
            clock: clock.name().into(),
            hz: clock.hz(),
            cpu: cpu(),
            memory: memory.ok(),
            no_memory,
            unix_seconds: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            runs: points.iter().map(|&Point { batch, cycles }| Runs { packets: batch, cycles }).collect(),
        }
    }

    /// Replaces what is there, whole or not at all.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, file: &Path) -> Result<()> {
        let cannot = || format!("what was measured cannot be kept in {}", file.display());
        if let Some(directory) = file.parent().filter(|parent| *parent != Path::new("")) {
            fs::create_dir_all(directory).with_context(cannot)?;
        }
        let text = serde_json::to_string_pretty(self)? + "\n";
        let mut next = file.to_path_buf().into_os_string();
        next.push(format!(".{}", process::id()));
        // Nobody else's file or link is written to.
        let mut options = File::options();
        options.write(true).create_new(true).mode(0o644).custom_flags(libc::O_NOFOLLOW);
        let mut opened = options.open(&next).with_context(cannot)?;
        let written = opened.write_all(text.as_bytes()).and_then(|()| opened.sync_all());
        let placed = written.and_then(|()| fs::rename(&next, file));
        if placed.is_err() {
            let _ = fs::remove_file(&next);
        }
        placed.with_context(cannot)
    }

    /// `None`: there is no file.
    ///
    /// # Errors
    /// It cannot be read, or it is none of ours.
    pub fn read(file: &Path) -> Result<Option<Calibration>> {
        let mut options = File::options();
        let opened = match options.read(true).custom_flags(libc::O_NONBLOCK).open(file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.context("it cannot be read")?,
        };
        let data = opened.metadata().context("it cannot be read")?;
        ensure!(data.is_file() && data.len() <= MOST_BYTES, "it is none that `millrace calibrate` wrote");
        ensure!(
            is_ours_or_roots_alone(&data),
            "others may write it: it must belong to root or to who runs Millrace (chmod go-w)"
        );
        let mut text = String::new();
        opened.take(MOST_BYTES).read_to_string(&mut text).context("it cannot be read")?;
        Self::parse(&text).map(Some)
    }

    /// From what [`Calibration::write`] wrote.
    pub(crate) fn parse(text: &str) -> Result<Calibration> {
        let read: Calibration =
            serde_json::from_str(text).context("it is none that `millrace calibrate` wrote")?;
        let points: Vec<Point> =
            read.runs.iter().map(|&Runs { packets, cycles }| Point { batch: packets, cycles }).collect();
        let again = fit(&points).context("the runs in it tell no cost of a switch")?;
        // The last digit may be another: serde_json reads numbers fast, not exactly.
        ensure!(
            (again.switch_cycles - read.switch_cycles).abs() < 0.01,
            "it says {:.1} cycles, and the runs in it {:.1}",
            read.switch_cycles,
            again.switch_cycles
        );
        ensure!(
            read.memory.as_ref().is_none_or(|memory| memory.bytes_per_second > 0),
            "it says that there is no memory bandwidth"
        );
        Ok(read)
    }

    /// Was it measured on this machine, by this clock?
    fn check(&self, clock: Clock, longest_run: Duration) -> Result<()> {
        let (hz, cpu, longest) = (clock.hz() as f64, cpu(), clock.cycles_of(longest_run) as f64);
        ensure!(!cpu.is_empty(), "this machine does not name its CPU, so whose it is is not known");
        ensure!(self.cpu == cpu, "it was measured on another CPU, {:?}; this is {cpu:?}", self.cpu);
        ensure!(
            self.clock == clock.name() && (self.hz as f64 / hz - 1.0).abs() < SAME_HZ,
            "it was measured by the {} at {} Hz, and workers go by the {} at {} Hz",
            self.clock,
            self.hz,
            clock.name(),
            clock.hz()
        );
        ensure!(
            self.switch_cycles < longest / LEAST_RUNS,
            "it says {:.0} cycles, and the longest run of a path is {longest:.0}: less than a tenth of that is believed",
            self.switch_cycles
        );
        Ok(())
    }
}

/// What a file tells workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calibrated {
    pub switch: Switch,
    /// Of memory bandwidth.
    pub memory: Capacity,
}

impl Calibrated {
    /// From the file, if it is of this machine; a file that cannot be used is told in the log too.
    pub fn read(file: &Path, clock: Clock, longest_run: Duration) -> Calibrated {
        let name = file.display().to_string();
        let why = match Calibration::read(file) {
            Ok(None) => format!("{name} is not there"),
            Ok(Some(read)) => match read.check(clock, longest_run) {
                Ok(()) => return read.told(name),
                Err(error) => spoilt(file, &error),
            },
            Err(error) => spoilt(file, &error),
        };
        let memory = Capacity { per_second: None, basis: why.clone() };
        Calibrated { switch: Switch { not_calibrated: Some(why), ..Switch::default() }, memory }
    }
}

impl Calibration {
    fn told(self, file: String) -> Calibrated {
        let memory = match (self.memory, self.no_memory) {
            (Some(found), _) => Capacity {
                per_second: Some(found.bytes_per_second),
                basis: format!("{} cores together, {file}", found.cores.len()),
            },
            (None, Some(why)) => Capacity { per_second: None, basis: format!("{why} ({file})") },
            // As it was before memory was measured.
            (None, None) => Capacity {
                per_second: None,
                basis: format!("{file} does not say (`millrace calibrate` again)"),
            },
        };
        let cycles = self.switch_cycles.round() as u32;
        Calibrated { switch: Switch { cycles, calibrated: Some(file), not_calibrated: None }, memory }
    }
}

fn spoilt(file: &Path, error: &anyhow::Error) -> String {
    let why = format!("{} cannot be used: {error:#}", file.display());
    tracing::warn!(
        "what a switch from path to path takes, and what there is of memory bandwidth, is not known: {why}"
    );
    why
}

/// Empty: it has no name here.
fn cpu() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    name.map(|(_, name)| name.trim().to_owned()).unwrap_or_default()
}
