//! The benchmarks. Each is a program that prints a score. Some are clients of a server, and then the server is
//! measured. Scores are per second of real time, so that they show what traffic takes away.

use std::{net::Ipv4Addr, path::Path};

use anyhow::{Context, Result};
use serde_json::Value;

use super::Score;

/// Names of the benchmarks.
pub const NAMES: [&str; 7] =
    ["integer", "float", "memory", "sysbench-cpu", "sysbench-memory", "nginx", "iperf3"];

/// One of [`NAMES`].
pub struct Benchmark {
    /// Name on the command line.
    pub name: &'static str,
    /// Unit of its scores.
    pub unit: &'static str,
    /// The program that prints the score.
    pub(super) program: &'static str,
    /// Arguments for a core (which gives the server's port) and a number of seconds.
    pub(super) arguments: fn(core: usize, seconds: u16) -> String,
    /// Reads the score from what the program printed.
    pub(super) parse: fn(&str) -> Option<Score>,
    pub(super) server: Option<Server>,
}

/// The server that a client needs: one on each core, at a port of its own.
pub(super) struct Server {
    pub(super) program: &'static str,
    pub(super) arguments: fn(core: usize) -> String,
    /// Writes its files into the directory that it will run in.
    pub(super) prepare: fn(&Path, core: usize) -> Result<()>,
    first_port: u16,
}

impl Server {
    pub(super) fn port(&self, core: usize) -> u16 {
        self.first_port + core as u16
    }
}

impl Benchmark {
    /// Does its server answer requests, so that scores have latencies?
    pub fn answers(&self) -> bool {
        self.program == "wrk"
    }

    /// Programs that must be installed; Debian's packages have the same names.
    pub fn programs(&self) -> impl Iterator<Item = &'static str> {
        [Some(self.program), self.server.as_ref().map(|server| server.program)].into_iter().flatten()
    }
}

/// One of [`BENCHMARKS`].
pub fn by_name(name: &str) -> Option<&'static Benchmark> {
    BENCHMARKS.iter().find(|benchmark| benchmark.name == name)
}

const ADDRESS: Ipv4Addr = Ipv4Addr::LOCALHOST;
const NGINX_PORT: u16 = 8000;
const IPERF3_PORT: u16 = 5201;
/// Bytes of the page that nginx serves.
const PAGE_BYTES: usize = 1024;
/// The client's connections to nginx. They are enough that the server always has a request. They are few, so that the
/// client takes the lab's core only for short moments and the generator keeps its pace.
const CONNECTIONS: u32 = 4;

/// All benchmarks, in the order of [`NAMES`]. The papers used nbench's integer, floating-point and memory indices.
pub static BENCHMARKS: [Benchmark; 7] = [
    stress_ng("integer", |_, seconds| stress_ng_arguments("--cpu 1 --cpu-method int64", seconds)),
    stress_ng("float", |_, seconds| stress_ng_arguments("--cpu 1 --cpu-method double", seconds)),
    stress_ng("memory", |_, seconds| {
        stress_ng_arguments("--vm 1 --vm-bytes 64M --vm-keep --vm-method write64", seconds)
    }),
    Benchmark {
        name: "sysbench-cpu",
        unit: "events/s",
        program: "sysbench",
        arguments: |_, seconds| format!("cpu --threads=1 --time={seconds} run"),
        parse: |output| score(number_after(output, "events per second:")?),
        server: None,
    },
    Benchmark {
        name: "sysbench-memory",
        unit: "operations/s",
        program: "sysbench",
        arguments: |_, seconds| format!("memory --threads=1 --memory-total-size=1000T --time={seconds} run"),
        parse: |output| {
            let line = output.lines().find_map(|line| line.strip_prefix("Total operations:"))?;
            score(number_after(line, "(")?)
        },
        server: None,
    },
    Benchmark {
        name: "nginx",
        unit: "requests/s",
        program: "wrk",
        arguments: |core, seconds| {
            let port = NGINX_PORT + core as u16;
            format!("-t1 -c{CONNECTIONS} -d{seconds}s --latency http://{ADDRESS}:{port}/")
        },
        parse: wrk_score,
        server: Some(Server {
            program: "nginx",
            arguments: |core| format!("-p ./ -c nginx-{core}.conf -e stderr"),
            prepare: prepare_nginx,
            first_port: NGINX_PORT,
        }),
    },
    Benchmark {
        name: "iperf3",
        unit: "bit/s",
        program: "iperf3",
        // The server sends, as servers do.
        arguments: |core, seconds| {
            let port = IPERF3_PORT + core as u16;
            format!("-c {ADDRESS} -p {port} -R -t {seconds} -i 0 -J")
        },
        parse: iperf3_score,
        server: Some(Server {
            program: "iperf3",
            arguments: |core| format!("-s -B {ADDRESS} -p {}", IPERF3_PORT + core as u16),
            prepare: |_, _| Ok(()),
            first_port: IPERF3_PORT,
        }),
    },
];

const fn stress_ng(name: &'static str, arguments: fn(usize, u16) -> String) -> Benchmark {
    let parse = |output: &str| score(number_after(output, "bogo-ops-per-second-real-time:")?);
    Benchmark { name, unit: "bogo-ops/s", program: "stress-ng", arguments, parse, server: None }
}

fn stress_ng_arguments(stressor: &str, seconds: u16) -> String {
    format!("{stressor} --timeout {seconds} --metrics-brief --yaml /dev/stdout")
}

/// Configures one process that serves only the page and writes no log.
fn prepare_nginx(directory: &Path, core: usize) -> Result<()> {
    let port = NGINX_PORT + core as u16;
    let configuration = format!(
        "daemon off;\nmaster_process off;\npid nginx-{core}.pid;\nerror_log stderr crit;\n\
         events {{ worker_connections 256; }}\n\
         http {{\n  access_log off;\n  keepalive_requests 1000000000;\n\
         \x20 client_body_temp_path body;\n  proxy_temp_path proxy;\n  fastcgi_temp_path fastcgi;\n\
         \x20 uwsgi_temp_path uwsgi;\n  scgi_temp_path scgi;\n\
         \x20 server {{ listen {ADDRESS}:{port}; root .; }}\n}}\n"
    );
    for (name, text) in
        [(format!("nginx-{core}.conf"), configuration), ("index.html".into(), "x".repeat(PAGE_BYTES))]
    {
        std::fs::write(directory.join(&name), text).context(name)?;
    }
    Ok(())
}

fn score(per_s: f64) -> Option<Score> {
    Some(Score { per_s, errors: 0, p50_us: None, p99_us: None })
}

/// The first number after a label.
fn number_after(text: &str, label: &str) -> Option<f64> {
    text.split_once(label)?.1.split_whitespace().next()?.parse().ok()
}

/// Score of `wrk --latency`. `None` if the server answered with errors.
fn wrk_score(output: &str) -> Option<Score> {
    if output.contains("Non-2xx") {
        return None;
    }
    let per_s = number_after(output, "Requests/sec:")?;
    let latency = |label| {
        let line = output.lines().find_map(|line| line.trim_start().strip_prefix(label))?;
        microseconds(line.trim())
    };
    let answered = |figure: Option<f64>| figure.filter(|_| per_s > 0.0);
    // Socket errors: connect 0, read 0, write 0, timeout 4
    let errors = output.lines().find_map(|line| line.trim_start().strip_prefix("Socket errors:"));
    let counts = errors.into_iter().flat_map(|line| line.split([' ', ',']));
    let errors = counts.filter_map(|word| word.parse::<u64>().ok()).sum();
    Some(Score { per_s, errors, p50_us: answered(latency("50%")), p99_us: answered(latency("99%")) })
}

/// As wrk writes times: 176.00us, 2.39ms, 1.01s, 1.20m.
fn microseconds(text: &str) -> Option<f64> {
    let digits = text.trim_end_matches(char::is_alphabetic);
    let factor = match &text[digits.len()..] {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        "m" => 60e6,
        _ => return None,
    };
    Some(digits.parse::<f64>().ok()? * factor)
}

/// Score of iperf3: what the client received.
fn iperf3_score(output: &str) -> Option<Score> {
    let result: Value = serde_json::from_str(output).ok()?;
    score(result.pointer("/end/sum_received/bits_per_second")?.as_f64()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(name: &str, output: &str) -> Option<Score> {
        (by_name(name).unwrap().parse)(output)
    }

    #[test]
    fn names_are_those_of_the_benchmarks() {
        assert_eq!(BENCHMARKS.each_ref().map(|benchmark| benchmark.name), NAMES);
    }

    #[test]
    fn stress_ng_counts_in_real_time() {
        // stress-ng 0.15.06 --yaml, shortened
        let output = "---\nsystem-info:\n      stress-ng-version: 0.15.06\n      ticks-per-second: 100\n\n\
            metrics:\n    - stressor: cpu\n      bogo-ops: 1521\n\
            \x20     bogo-ops-per-second-usr-sys-time: 1991.588452\n\
            \x20     bogo-ops-per-second-real-time: 760.466276\n      wall-clock-time: 2.000089\n\n...\n";
        assert_eq!(parse("integer", output), score(760.466276));
        assert_eq!(parse("integer", "---\nmetrics:\n...\n"), None);
    }

    #[test]
    fn sysbench_reports_events_per_second() {
        // sysbench 1.0.20
        let cpu = "Threads started!\n\nCPU speed:\n    events per second:  2883.44\n\nGeneral statistics:\n\
            \x20   total time:                          2.0002s\n";
        assert_eq!(parse("sysbench-cpu", cpu), score(2883.44));
        let memory = "Threads started!\n\nTotal operations: 14489812 (7240235.40 per second)\n\n\
            14150.21 MiB transferred (7070.54 MiB/sec)\n";
        assert_eq!(parse("sysbench-memory", memory), score(7_240_235.40));
        assert_eq!(parse("sysbench-memory", cpu), None);
    }

    const WRK: &str = "Running 1s test @ http://127.0.0.1:15280/
  1 threads and 16 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency   244.99us  390.52us   5.47ms   96.04%
    Req/Sec    86.42k     8.26k   92.66k    80.00%
  Latency Distribution
     50%  176.00us
     75%  177.00us
     90%  202.00us
     99%    2.39ms
  85796 requests in 1.00s, 19.64MB read
Requests/sec:  85674.51
Transfer/sec:     19.61MB
";

    #[test]
    fn wrk_reports_requests_and_latencies() {
        let expected = Score { per_s: 85_674.51, errors: 0, p50_us: Some(176.0), p99_us: Some(2390.0) };
        assert_eq!(parse("nginx", WRK), Some(expected));
        let errors = WRK.replace("Requests/sec", "  Non-2xx or 3xx responses: 85796\nRequests/sec");
        assert_eq!(parse("nginx", &errors), None);
        let failed = "  Socket errors: connect 1, read 20, write 0, timeout 300\nRequests/sec";
        let failed = parse("nginx", &WRK.replace("Requests/sec", failed));
        assert_eq!(failed, Some(Score { errors: 321, ..expected }));
        let nothing = WRK.replace("85674.51", "0.00").replace("176.00us", "0.00us");
        assert_eq!(
            parse("nginx", &nothing),
            Some(Score { per_s: 0.0, errors: 0, p50_us: None, p99_us: None })
        );
    }

    #[test]
    fn times_of_wrk_have_units() {
        let seen = ["17us", "2.5ms", "1.01s", "1.20m", "3h", "s"].map(microseconds);
        assert_eq!(seen, [Some(17.0), Some(2500.0), Some(1_010_000.0), Some(72e6), None, None]);
    }

    #[test]
    fn iperf3_reports_what_the_client_received() {
        // iperf3 3.12, shortened
        let output = r#"{"end":{"sum_sent":{"bits_per_second":11329249338.092205},
            "sum_received":{"seconds":1.005121,"bytes":1416626070,"bits_per_second":11275267913.5}}}"#;
        assert_eq!(parse("iperf3", output), score(11_275_267_913.5));
        assert_eq!(parse("iperf3", r#"{"error":"unable to connect to server"}"#), None);
    }
}
