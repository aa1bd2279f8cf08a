//! Applications on the box that also forwards: what they still achieve while packets pass (Q9, figs. 6 to 8; O fig. 2).
//!
//! | file | holds |
//! |---|---|
//! | `benchmark` | the benchmarks, a small description each, and what their output means |
//! | `process` | one running program: pinned, and gone with its owner |
//! | this | a benchmark put on cores, its scores, and the index |
//!
//! Priorities. In the papers' router packets are forwarded in softirqs, which run before every application. Here NAPI threads
//! forward, so that their time can be told apart; the testbed gives them a real-time priority
//! ([`crate::testbed::Testbed::for_rates`]), and benchmarks and servers run as anybody starts them: nice 0, the core theirs
//! whenever forwarding leaves it, and about a twentieth of it in any case, which the kernel keeps for normal threads. With NAPI threads at nice 0 the
//! scheduler would halve a saturated core between the two, and forwarding would lose packets that the papers' router forwards.
//!
//! Servers are reached through the loopback of the box, by clients on the lab's core, which run before the generator there
//! (it never sleeps; what they take from it is missing in `offered_pps`): what is compared is the core's time, not whether
//! requests find room in the ring of a saturated port.

mod benchmark;
mod process;

use std::{
    fs::File,
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

pub use benchmark::{BENCHMARKS, Benchmark, NAMES, by_name};
use process::Process;

use crate::{
    namespace::{APPLICATIONS, Namespace, unique_run_name},
    sys,
    testbed::Testbed,
};

/// A core that forwards all it can leaves an application a hundredth or two: starting and ending take that much longer.
const PATIENCE: Duration = Duration::from_secs(60);
const SERVER_START_LIMIT: Duration = Duration::from_secs(10);

/// What one core achieved.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Score {
    /// In the benchmark's unit.
    pub per_s: f64,
    /// Of a server: connections and requests that failed, or had no answer in 2 s.
    pub errors: u64,
    /// Of a server that answers requests: median latency. The client asks again when it has been answered (closed loop), so
    /// requests that would have come meanwhile, and waited, are not in it.
    pub p50_us: Option<f64>,
    /// The same: 99th percentile.
    pub p99_us: Option<f64>,
}

/// Q9: N = sum(B_i) / sum(Z_i), B_i the score of core i under traffic, Z_i without. `None` if there is nothing to divide by.
pub fn index(under_traffic: &[Score], without_traffic: &[Score]) -> Option<f64> {
    let sum = |scores: &[Score]| scores.iter().map(|score| score.per_s).sum::<f64>();
    let without = sum(without_traffic);
    (without > 0.0).then(|| sum(under_traffic) / without)
}

/// A benchmark on some cores of the box, with its servers up. Dropped, they are gone.
pub struct Deployment {
    benchmark: &'static Benchmark,
    cores: Vec<usize>,
    client_core: usize,
    namespace: File,
    // Servers end before their directory goes.
    _servers: Vec<Process>,
    directory: Directory,
}

impl Deployment {
    /// Starts what the benchmark needs on each of the topology's cores for applications. Fails if one of its programs is not installed.
    pub fn start(benchmark: &'static Benchmark, testbed: &Testbed) -> Result<Self> {
        let cores = &testbed.topology.cores;
        benchmark.programs().try_for_each(must_be_installed)?;
        let mut deployment = Self {
            benchmark,
            cores: cores.applications.clone(),
            client_core: cores.generator,
            namespace: testbed.box_namespace.handle()?,
            _servers: Vec::new(),
            directory: Directory::create()?,
        };
        for &core in &cores.applications {
            if let Some(server) = &benchmark.server {
                (server.prepare)(&deployment.directory.0, core)?;
                let mut command = deployment.command(server.program, (server.arguments)(core), core, false);
                let log = deployment.directory.0.join(format!("server-{core}.out"));
                let mut process = Process::serve(&mut command, &log)?;
                wait_for_listener(&testbed.box_namespace, server.port(core), &mut process)?;
                deployment._servers.push(process);
            }
        }
        Ok(deployment)
    }

    /// The scores of the cores, all at once, in `seconds` seconds by the benchmark's own clock.
    pub fn run(&self, seconds: u16) -> Result<Vec<Score>> {
        let start = |&core: &usize| {
            let client = self.benchmark.server.is_some();
            let at = if client { self.client_core } else { core };
            let arguments = (self.benchmark.arguments)(core, seconds);
            Process::start(&mut self.command(self.benchmark.program, arguments, at, client))
        };
        let running: Vec<Process> = self.cores.iter().map(start).collect::<Result<_>>()?;
        let limit = Duration::from_secs(seconds.into()) + PATIENCE;
        running.into_iter().map(|process| self.score(&process.finish(limit)?)).collect()
    }

    fn score(&self, output: &str) -> Result<Score> {
        let Benchmark { name, program, parse, .. } = self.benchmark;
        parse(output).with_context(|| format!("{name}: no score in what {program} printed: {output}"))
    }

    /// In the box, on a core; `first`: before the generator.
    fn command(&self, program: &str, arguments: String, core: usize, first: bool) -> Command {
        let mut command = Command::new("taskset");
        command.args(["-c", &core.to_string()]);
        if first {
            command.args(["chrt", "--rr", "2"]);
        }
        command.arg(program).args(arguments.split_whitespace()).current_dir(&self.directory.0);
        sys::start_in_network_namespace(&mut command, self.namespace.as_fd());
        command
    }
}

fn must_be_installed(program: &str) -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|directory| directory.join(program).is_file());
    ensure!(found, "{program} is not on the PATH: install Debian's package {program}");
    Ok(())
}

fn wait_for_listener(namespace: &Namespace, port: u16, process: &mut Process) -> Result<()> {
    let end = Instant::now() + SERVER_START_LIMIT;
    while !listens(&namespace.read("/proc/net/tcp")?, port) {
        process.must_run()?;
        ensure!(Instant::now() < end, "{} does not listen on port {port}", process.name());
        sys::sleep(Duration::from_millis(10))?;
    }
    Ok(())
}

/// Does /proc/net/tcp show a socket that listens on this port?
fn listens(sockets: &str, port: u16) -> bool {
    let local = format!(":{port:04X}");
    sockets.lines().any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next().is_some_and(|address| address.ends_with(&local)) && fields.nth(1) == Some("0A")
    })
}

/// A new directory below the temporary one. Dropped, it is removed.
struct Directory(PathBuf);

impl Directory {
    fn create() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("{APPLICATIONS}{}", unique_run_name()));
        std::fs::create_dir(&path).with_context(|| path.display().to_string())?;
        Ok(Self(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let path: &Path = &self.0;
        if let Err(error) = std::fs::remove_dir_all(path) {
            eprintln!("cannot remove {}: {error}", path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scores(per_s: &[f64]) -> Vec<Score> {
        per_s.iter().map(|&per_s| Score { per_s, errors: 0, p50_us: None, p99_us: None }).collect()
    }

    #[test]
    fn index_is_a_ratio_of_sums() {
        assert_eq!(index(&scores(&[1.0, 3.0]), &scores(&[4.0, 4.0])), Some(0.5));
        assert_eq!(index(&scores(&[0.0]), &scores(&[4.0])), Some(0.0));
        assert_eq!(index(&scores(&[1.0]), &scores(&[0.0])), None);
        assert_eq!(index(&[], &[]), None);
    }

    #[test]
    fn a_listener_is_seen_by_its_port_and_state() {
        let sockets = "  sl  local_address rem_address   st tx_queue rx_queue\n\
            \x20  0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1\n\
            \x20  1: 0100007F:1F91 0100007F:1F90 01 00000000:00000000 00:00000000 00000000 0 0 2\n";
        assert!(listens(sockets, 8080));
        assert!(!listens(sockets, 8081), "a connection is no listener");
        assert!(!listens(sockets, 80));
    }
}
