//! The file with the results: JSON, for people and programs. The results hold for the machine and the clock that they were measured
//! with, so the file names both. A file of another machine, or a damaged one, is not used, and the reason is reported.

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

/// The largest file that is read; a file of ours has about 1,000 bytes.
const MOST_BYTES: u64 = 1 << 16;
/// A switch must take less than this part of the longest run of a path; otherwise the measurement is not believed.
const LEAST_RUNS: f64 = 10.0;
/// How much the frequency of the same clock may differ, because it is measured each time.
const SAME_HZ: f64 = 0.01;

/// The file, and the output of `millrace calibrate --json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// C_cs, the cost of a switch between paths.
    pub switch_cycles: f64,
    /// Its standard error.
    pub switch_error_cycles: f64,
    /// `switch_cycles` in nanoseconds.
    pub switch_ns: f64,
    /// C, the cost of a packet of the measurement.
    pub packet_cycles: f64,
    /// The fraction of the runs' cycles that the line leaves unexplained.
    pub residual: f64,
    /// The clock that counted cycles.
    pub clock: String,
    /// Cycles per second of that clock.
    pub hz: u64,
    /// The CPU's name in /proc/cpuinfo.
    pub cpu: String,
    /// The memory bandwidth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Bandwidth>,
    /// Why the memory bandwidth is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_memory: Option<String>,
    /// When it was measured, in seconds since 1970.
    pub unix_seconds: u64,
    /// The runs that the line was fitted to.
    pub runs: Vec<Runs>,
}

/// Runs of one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Runs {
    pub packets: u32,
    /// The median of a run's cycles.
    pub cycles: f64,
}

impl Calibration {
    /// The results of this machine, measured now.
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

    /// Replaces the file, completely or not at all.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, file: &Path) -> Result<()> {
        let cannot = || format!("cannot write the results to {}", file.display());
        if let Some(directory) = file.parent().filter(|parent| *parent != Path::new("")) {
            fs::create_dir_all(directory).with_context(cannot)?;
        }
        let text = serde_json::to_string_pretty(self)? + "\n";
        let mut next = file.to_path_buf().into_os_string();
        next.push(format!(".{}", process::id()));
        // A new file, so no file or link of another user is written to.
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

    /// Reads a file. `None`: it does not exist.
    ///
    /// # Errors
    /// It cannot be read, or `millrace calibrate` did not write it.
    pub fn read(file: &Path) -> Result<Option<Calibration>> {
        let mut options = File::options();
        let opened = match options.read(true).custom_flags(libc::O_NONBLOCK).open(file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.context("it cannot be read")?,
        };
        let data = opened.metadata().context("it cannot be read")?;
        ensure!(data.is_file() && data.len() <= MOST_BYTES, "`millrace calibrate` did not write it");
        ensure!(
            is_ours_or_roots_alone(&data),
            "others may write it: it must belong to root or to the user who runs Millrace (chmod go-w)"
        );
        let mut text = String::new();
        opened.take(MOST_BYTES).read_to_string(&mut text).context("it cannot be read")?;
        Self::parse(&text).map(Some)
    }

    /// Parses and checks the text that [`Calibration::write`] wrote.
    pub(crate) fn parse(text: &str) -> Result<Calibration> {
        let read: Calibration =
            serde_json::from_str(text).context("`millrace calibrate` did not write it")?;
        let points: Vec<Point> =
            read.runs.iter().map(|&Runs { packets, cycles }| Point { batch: packets, cycles }).collect();
        let again = fit(&points).context("no line fits the runs in it")?;
        // The last digit may differ: serde_json reads numbers fast, not exactly.
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

    /// Checks that it was measured on this machine, with this clock.
    fn check(&self, clock: Clock, longest_run: Duration) -> Result<()> {
        let (hz, cpu, longest) = (clock.hz() as f64, cpu(), clock.cycles_of(longest_run) as f64);
        ensure!(!cpu.is_empty(), "this machine does not name its CPU, so it cannot be compared");
        ensure!(self.cpu == cpu, "it was measured on another CPU, {:?}; this is {cpu:?}", self.cpu);
        ensure!(
            self.clock == clock.name() && (self.hz as f64 / hz - 1.0).abs() < SAME_HZ,
            "it was measured with the {} at {} Hz, and workers use the {} at {} Hz",
            self.clock,
            self.hz,
            clock.name(),
            clock.hz()
        );
        ensure!(
            self.switch_cycles < longest / LEAST_RUNS,
            "it says {:.0} cycles, which is not less than a tenth of the longest run of a path, {longest:.0}",
            self.switch_cycles
        );
        Ok(())
    }
}

/// What workers take from the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calibrated {
    pub switch: Switch,
    /// The memory bandwidth.
    pub memory: Capacity,
}

impl Calibrated {
    /// Reads the file, if it is of this machine. A file that cannot be used is also logged.
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
            // A file from before memory was measured.
            (None, None) => Capacity {
                per_second: None,
                basis: format!("{file} lacks it (`millrace calibrate` measures it)"),
            },
        };
        let cycles = self.switch_cycles.round() as u32;
        Calibrated { switch: Switch { cycles, calibrated: Some(file), not_calibrated: None }, memory }
    }
}

fn spoilt(file: &Path, error: &anyhow::Error) -> String {
    let why = format!("{} cannot be used: {error:#}", file.display());
    tracing::warn!("the cost of a switch between paths and the memory bandwidth are not known: {why}");
    why
}

/// The name of this CPU; empty: /proc/cpuinfo has none.
fn cpu() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    name.map(|(_, name)| name.trim().to_owned()).unwrap_or_default()
}
