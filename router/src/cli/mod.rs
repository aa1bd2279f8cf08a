//! The command line: a client of the daemon's API, and `run`, which is the daemon.
//!
//! | file | holds |
//! |---|---|
//! | `mod.rs` | the commands: options, requests to the daemon, exit codes |
//! | `text.rs` | reports as text for people |
//! | `table.rs` | columns |
//! | `run.rs` | `millrace run` and `millrace check` |
//! | `routes.rs` | `millrace routes` and `millrace neighbours` |
//! | `flows.rs` | `millrace flows` |
//! | `addresses.rs` | addresses of interfaces |
//! | `cores.rs` | `millrace cores` and `millrace events` as text |
//! | `top/` | `millrace top` |
//! | `paths.rs` | `millrace paths` |
//! | `sas.rs` | `millrace sas` |
//! | `calibrate.rs` | `millrace calibrate` |
//! | `drain.rs` | `millrace drain` |
//! | `metrics.rs` | `millrace metrics` |
//! | `manual.rs` | man pages and completions |
//! | `capture.rs`, `pcap_filter.rs` | `millrace capture`, and its filters |
//! | `frames.rs` | frames from a pcap or pcapng file |

mod addresses;
mod calibrate;
mod capture;
mod cores;
mod drain;
mod flows;
pub(crate) mod frames;
mod manual;
mod metrics;
mod paths;
mod pcap_filter;
#[cfg(test)]
mod reference;
mod routes;
mod run;
mod sas;
mod table;
mod text;
mod top;

use crate::{
    api::{
        cores::{CoresReport, EventReport},
        status::{
            ConnectionReport, ExplainReport, ExplainRequest, FirewallReport, InterfaceReport, PortReport,
            ReloadReport, RouterReport, Status, StopReport,
        },
        summary::Summary,
    },
    base::{
        PortName,
        clock::monotonic,
        foreign::{shown_json, shown_lines},
        hex,
        instance::{Instance, InstanceName},
    },
    daemon::{
        client::{self, CallError},
        kernel::{BPFFS, Bpf},
        start,
    },
    switch::controllers::ControllersReport,
};
use addresses::Addresses;
use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    collections::BTreeMap,
    io::{self, Write},
    net::IpAddr,
    path::Path,
    process::ExitCode,
    time::Duration,
};
use text::{InterfaceRates, InterfaceShown};

/// How long a command waits for an answer that the daemon has ready.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often `events --follow` asks.
const FOLLOW_PERIOD: Duration = Duration::from_millis(200);
/// How long a command waits for work that takes seconds, such as comparing or removing a full table.
const LONG_PATIENCE: Duration = Duration::from_secs(65);

/// A Linux software router in the kernel's fast path.
#[derive(Debug, Parser)]
#[command(name = "millrace", version, about, max_term_width = 110)]
struct Cli {
    /// Which daemon, if several run on this machine: 1 to 32 letters, digits, - and _.
    #[arg(long, global = true, value_name = "NAME")]
    instance: Option<InstanceName>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start the daemon and forward between ports, in the foreground.
    #[command(after_help = run::HELP)]
    Run(run::Run),
    /// Show whether the daemon would start, and what it would leave to Linux, without changing anything.
    #[command(after_help = run::CHECK_HELP)]
    Check(run::Check),
    /// Show the overall state: ports, routers, packets, reasons for packets not forwarded, tables, paths.
    Status(Output),
    /// Show each port, how it is attached, and its problems.
    Ports(Output),
    /// Show each router, whether it is accelerated, and why not.
    Routers(Output),
    /// Show each interface of a router: addresses, counters or rates, and why it is left to the kernel.
    Interfaces(Interfaces),
    /// Show which pairs of devices are fast, and which firewall rules keep the others with Linux.
    Firewall(Output),
    /// Show connections that bypass firewall rules and NAT, and why others do not.
    Connections(Connections),
    /// Count or list routes, look up an address or a prefix, or compare the fast tables with the kernel's.
    Routes(routes::Routes),
    /// Show neighbours with their MAC addresses, and whether the fast path uses them.
    Neighbours(routes::Neighbours),
    /// Run the real program on a packet and show each step of its decision.
    #[command(after_help = EXPLAIN_HELP)]
    Explain(Explain),
    /// List, add, modify, delete and watch flow rules, which come before routing.
    #[command(subcommand, after_help = flows::HELP)]
    Flows(flows::Flows),
    /// Capture packets as they come in and leave, for tcpdump and Wireshark.
    #[command(after_help = capture::HELP)]
    Capture(capture::Capture),
    /// Show each core, its load and its queues; pinned workloads and problems.
    Cores(Output),
    /// Show the decisions about queues and cores, with their times and causes.
    Events(Events),
    /// Print all metrics for Prometheus (docs/reference/metrics.md), or write them to a file.
    Metrics(metrics::Metrics),
    /// Show cores, queues, routers, interfaces, flow rules, talkers and paths, live.
    #[command(after_help = top::HELP)]
    Top(top::Top),
    /// Run the packets of captures through paths, without a daemon.
    #[command(subcommand)]
    Paths(paths::Paths),
    /// List, set and remove security associations of paths.
    #[command(after_help = sas::HELP)]
    Sas(sas::Sas),
    /// Measure what workers need to know about this machine, and write it to a file.
    #[command(after_help = calibrate::HELP)]
    Calibrate(calibrate::Calibrate),
    /// Show OpenFlow controllers and listeners, and their connections.
    Controllers(Output),
    /// Lead traffic around this box before maintenance, and wait until it is gone.
    #[command(after_help = drain::HELP)]
    Drain(drain::Drain),
    /// Read the configuration file again and apply the changes, as SIGHUP does.
    Reload(Output),
    /// End the daemon and remove everything from the kernel; then plain Linux forwards.
    Stop(Stop),
    /// Write the man pages and the completions of shells into a directory, for packages.
    #[command(hide = true)]
    Manual(manual::Manual),
}

const EXPLAIN_HELP: &str = "\
A packet is written in quotes:
  'udp 10.0.0.1:1234 -> 10.1.0.1:80'
  'tcp [2001:db8::1]:1234 -> [2001:db8:1::1]:80 ttl=1 vlan=10'
  'icmp 10.0.0.1 -> 10.1.0.1 len=1400 dmac=02:00:00:00:00:01'
Options: ttl, tos, len (bytes of the IP packet), vlan (VID or OUTER.INNER), dmac, smac. Without dmac, the
packet is addressed to the interface that leads back to its source, of the host or of --router. A note says
what had to be assumed. Frames of a capture are used as they are, and need --port. If flow rules decide, they
come first: the rules, where they send the packet, whether the kernel plane or user space does it, and why.
Then comes the routing of packets that they send to NORMAL.";

#[derive(Clone, Copy, Debug, Args)]
struct Output {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Stop {
    /// Stop all instances: those that run, and those that left something behind.
    #[arg(long, conflicts_with = "instance")]
    all: bool,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
struct Events {
    /// After the past events, print new ones until Ctrl-C.
    #[arg(long)]
    follow: bool,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
struct Interfaces {
    /// Show only interfaces of this router.
    #[arg(long, value_name = "NAME")]
    router: Option<String>,
    /// Count for a second, and show packets and bits per second.
    #[arg(long)]
    rates: bool,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
struct Connections {
    /// Show only connections of this router.
    #[arg(long, value_name = "NAME")]
    router: Option<String>,
    /// Show only connections with this address at either end, before or after NAT.
    #[arg(long, value_name = "ADDRESS")]
    address: Option<IpAddr>,
    /// Show only connections in this state; `linux`: those that stay with Linux.
    #[arg(long, value_name = "fast|linux")]
    state: Option<ConnectionStateText>,
    #[command(flatten)]
    output: Output,
}

/// [`ConnectionState`] as an argument.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum ConnectionStateText {
    Fast,
    Linux,
}

#[derive(Debug, Args)]
struct Explain {
    /// A packet as text in quotes, or a pcap or pcapng file.
    #[arg(value_name = "PACKET")]
    packet: String,
    /// The port on which it arrives; a capture needs it.
    #[arg(long, value_name = "DEVICE")]
    port: Option<PortName>,
    /// The router that the packet is for [default: the host].
    #[arg(long, value_name = "NAME")]
    router: Option<String>,
    /// Also print the steps within the tables; JSON always has them.
    #[arg(long)]
    verbose: bool,
    #[command(flatten)]
    output: Output,
}

/// The filter of a capture as the command compiles it: for tests.
#[doc(hidden)]
pub fn compiled_filter(filter: &str) -> Result<Vec<(u16, u8, u8, u32)>> {
    pcap_filter::compile(filter)
}

/// Runs the command of this process's arguments.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let json = cli.command.is_json();
    match cli.run() {
        Ok(code) => code,
        Err(error) => {
            let text = format!("{error:#}");
            if json {
                let _ = print_json(&serde_json::json!({ "error": text }));
            }
            complain(&text);
            ExitCode::FAILURE
        }
    }
}

impl Command {
    fn is_json(&self) -> bool {
        match self {
            Command::Run(_)
            | Command::Top(_)
            | Command::Metrics(_)
            | Command::Manual(_)
            | Command::Capture(_) => false,
            Command::Status(o)
            | Command::Controllers(o)
            | Command::Cores(o)
            | Command::Ports(o)
            | Command::Routers(o)
            | Command::Firewall(o)
            | Command::Reload(o) => o.json,
            Command::Stop(stop) => stop.output.json,
            Command::Check(check) => check.is_json(),
            Command::Drain(drain) => drain.is_json(),
            Command::Events(events) => events.output.json,
            Command::Flows(flows) => flows.is_json(),
            Command::Paths(paths) => paths.is_json(),
            Command::Sas(sas) => sas.is_json(),
            Command::Calibrate(calibrate) => calibrate.is_json(),
            Command::Connections(connections) => connections.output.json,
            Command::Routes(routes) => routes.is_json(),
            Command::Neighbours(neighbours) => neighbours.is_json(),
            Command::Interfaces(interfaces) => interfaces.output.json,
            Command::Explain(explain) => explain.output.json,
        }
    }
}

impl Cli {
    fn run(self) -> Result<ExitCode> {
        let instance = Instance::new(self.instance);
        match self.command {
            Command::Run(run) => return run.run(instance),
            Command::Check(check) => return check.run(&instance),
            Command::Drain(drain) => return drain.run(&instance),
            Command::Status(o) => show(o, &status(&instance)?, text::status),
            Command::Metrics(metrics) => metrics.run(&instance),
            Command::Ports(o) => show(o, &get::<Vec<PortReport>>(&instance, "/ports")?, |r| text::ports(r)),
            Command::Routers(o) => {
                show(o, &get::<Vec<RouterReport>>(&instance, "/routers")?, |r| text::routers(r))
            }
            Command::Interfaces(interfaces) => interfaces.run(&instance),
            Command::Firewall(o) => {
                show(o, &get::<Vec<FirewallReport>>(&instance, "/firewall")?, |r| text::firewall(r))
            }
            Command::Connections(connections) => connections.run(&instance),
            Command::Routes(routes) => return routes.run(&instance),
            Command::Neighbours(neighbours) => neighbours.run(&instance),
            Command::Explain(explain) => return explain.run(&instance),
            Command::Capture(capture) => capture.run(&instance),
            Command::Flows(flows) => flows.run(&instance),
            Command::Paths(paths) => return paths.run(),
            Command::Sas(sas) => sas.run(&instance),
            Command::Calibrate(calibrate) => calibrate.run(),
            Command::Cores(o) => show(o, &get::<CoresReport>(&instance, "/cores")?, cores::cores),
            Command::Events(events) => return events.run(&instance),
            Command::Top(top) => return top.run(instance),
            Command::Controllers(o) => {
                show(o, &get::<ControllersReport>(&instance, "/controllers")?, text::controllers)
            }
            Command::Reload(o) => show(o, &reload(&instance)?, text::reload),
            Command::Stop(command) if command.all => return stop_all(command.output),
            Command::Stop(command) => show(command.output, &stop(&instance)?, text::stop),
            Command::Manual(manual) => manual.run(),
        }?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Events {
    fn run(self, instance: &Instance) -> Result<ExitCode> {
        let mut seen = 0;
        loop {
            let new: Vec<EventReport> = get(instance, &format!("/events?after={seen}"))?;
            seen = new.last().map_or(seen, |event| event.number);
            match self.output.json {
                true => new.iter().try_for_each(print_json)?,
                false => print(&cores::events(&new, self.follow))?,
            }
            if !self.follow {
                return Ok(ExitCode::SUCCESS);
            }
            std::thread::sleep(FOLLOW_PERIOD);
        }
    }
}

impl Interfaces {
    fn run(self, instance: &Instance) -> Result<()> {
        let read = || -> Result<(Duration, Vec<InterfaceReport>)> {
            let mut all: Vec<InterfaceReport> = get(instance, "/interfaces")?;
            all.retain(|i| self.router.as_ref().is_none_or(|router| *router == i.router));
            Ok((monotonic(), all))
        };
        let before = self.rates.then(&read).transpose()?;
        if self.rates {
            std::thread::sleep(Duration::from_secs(1));
        }
        let (at, now) = read()?;
        let daemon = get::<Status>(instance, "/status")?.pid;
        let mut of_routers: BTreeMap<String, Option<Addresses>> = BTreeMap::new();
        let shown = now.into_iter().map(|report| {
            let read = || addresses::of_router(&report.router, daemon).ok();
            let of_router = of_routers.entry(report.router.clone()).or_insert_with(read).as_ref();
            let addresses = of_router.map(|all| all.get(&report.interface).cloned().unwrap_or_default());
            let rates = before.as_ref().map(|(then, before)| {
                let is_same =
                    |i: &&InterfaceReport| (&i.router, &i.interface) == (&report.router, &report.interface);
                let seconds = at.saturating_sub(*then).as_secs_f64();
                InterfaceRates::between(before.iter().find(is_same), &report, seconds)
            });
            InterfaceShown { report, addresses, rates }
        });
        let shown: Vec<_> = shown.collect();
        show(self.output, &shown[..], text::interfaces)
    }
}

impl Connections {
    fn run(self, instance: &Instance) -> Result<()> {
        let parts = [
            self.router.map(|router| format!("router={}", percent(&router))),
            self.address.map(|address| format!("address={}", percent(&address.to_string()))),
            self.state.map(|state| match state {
                ConnectionStateText::Fast => "state=fast".into(),
                ConnectionStateText::Linux => "state=linux".into(),
            }),
        ];
        let query: Vec<_> = parts.into_iter().flatten().collect();
        let path = format!("/connections?{}", query.join("&"));
        show(self.output, &get::<Vec<ConnectionReport>>(instance, &path)?, |r| text::connections(r))
    }
}

/// RFC 3986 2.1: all characters except the unreserved ones as %XX.
fn percent(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// The explanation of one packet, or why a frame of a file could not be explained.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Explained {
    Report(Box<ExplainReport>),
    Not { error: String },
}

impl Explain {
    fn run(self, instance: &Instance) -> Result<ExitCode> {
        let base = ExplainRequest {
            port: self.port.map(|p| p.to_string()),
            router: self.router,
            ..ExplainRequest::default()
        };
        if self.packet.contains("->") {
            let report = ask(instance, &ExplainRequest { packet: Some(self.packet), ..base })
                .map_err(|e| said(instance, e))?;
            show(self.output, &[Explained::Report(report)][..], |e| text::explanations(e, self.verbose))?;
            return Ok(ExitCode::SUCCESS);
        }
        if base.port.is_none() {
            bail!(
                "{:?} has no \"->\", so it is read as a capture: its frames need --port, the port they arrive on \
                 (a packet is written as 'udp 10.0.0.1:1234 -> 10.1.0.1:80')",
                self.packet
            );
        }
        let capture = frames::read(self.packet.as_ref())?;
        let explained = explain_frames(instance, &base, capture.frames)?;
        show(self.output, &explained[..], |e| text::explanations(e, self.verbose))?;
        if capture.more {
            complain(&format!(
                "these are the first {} frames of {}; others can be cut out with `editcap -r`",
                frames::MAX_FRAMES,
                self.packet
            ));
        }
        let not = explained.iter().filter(|e| matches!(e, Explained::Not { .. })).count();
        if not > 0 {
            complain(&format!("{not} of {} frames could not be explained", explained.len()));
            return Ok(ExitCode::FAILURE);
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Explains each frame on its own. A frame that the daemon refuses has its error in its place. Any other error ends the
/// list; earlier explanations are kept.
fn explain_frames(
    instance: &Instance,
    base: &ExplainRequest,
    frames: Vec<frames::Frame>,
) -> Result<Vec<Explained>> {
    let mut explained = Vec::new();
    for frame in frames {
        let asked =
            frame.map(|f| ask(instance, &ExplainRequest { frame: Some(hex::encode(&f)), ..base.clone() }));
        match asked {
            Ok(Ok(report)) => explained.push(Explained::Report(report)),
            Err(error) => explained.push(Explained::Not { error }),
            Ok(Err(CallError::Refused { status: 400 | 413, text })) => {
                explained.push(Explained::Not { error: text });
            }
            Ok(Err(error)) if explained.is_empty() => return Err(said(instance, error)),
            Ok(Err(error)) => {
                explained.push(Explained::Not { error: format!("{:#}", said(instance, error)) });
                break;
            }
        }
    }
    Ok(explained)
}

fn ask(instance: &Instance, request: &ExplainRequest) -> Result<Box<ExplainReport>, CallError> {
    let body = serde_json::to_value(request).map_err(|e| CallError::Broken(e.to_string()))?;
    client::call(&instance.socket(), "POST", "/explain", Some(body), LONG_PATIENCE)
}

/// Asks the daemon to read its configuration file again, and waits until the changes are in force.
fn reload(instance: &Instance) -> Result<ReloadReport> {
    client::call(&instance.socket(), "POST", "/reload", None, LONG_PATIENCE).map_err(Into::into)
}

/// Asks the daemon to stop, and waits until it has ended. Without a daemon, it removes what an earlier one left.
fn stop(instance: &Instance) -> Result<StopReport> {
    let asked: StopReport =
        match client::call(&instance.socket(), "POST", "/stop", Some(serde_json::json!({})), LONG_PATIENCE) {
            Err(CallError::NoDaemon) => return Ok(StopReport { done: start::clean_up(instance)? }),
            other => other?,
        };
    for _ in 0..100 {
        if let Ok(left) = start::clean_up(instance) {
            return Ok(StopReport { done: [asked.done, left].concat() });
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    bail!("the daemon has removed everything from the kernel, but its process does not end")
}

/// What happened to one of all instances.
#[derive(Debug, Serialize)]
struct Stopped {
    /// `None`: the instance without a name.
    instance: Option<String>,
    /// What was done, as sentences.
    done: Vec<String>,
    /// Why it could not be stopped.
    error: Option<String>,
}

/// Stops every instance, also if one of them cannot be stopped.
fn stop_all(output: Output) -> Result<ExitCode> {
    let stopped: Vec<_> = Instance::all(BPFFS.as_ref())
        .into_iter()
        .map(|instance| {
            let (done, error) = match stop(&instance) {
                Ok(report) => (report.done, None),
                Err(error) => (Vec::new(), Some(format!("{error:#}"))),
            };
            Stopped { instance: instance.name.map(|name| name.as_str().into()), done, error }
        })
        .collect();
    show(output, &stopped[..], |all| {
        let name = |one: &Stopped| one.instance.as_ref().map_or(String::new(), |name| format!("{name}: "));
        let lines = |one: &Stopped| {
            let lines = one.done.iter().chain(&one.error).map(|line| format!("{}{line}\n", name(one)));
            lines.collect::<String>()
        };
        let text: String = all.iter().map(lines).collect();
        if text.is_empty() {
            "nothing to do: no instance runs or has left anything behind\n".into()
        } else {
            text
        }
    })?;
    let failed = stopped.iter().any(|one| one.error.is_some());
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn get<T: DeserializeOwned>(instance: &Instance, path: &str) -> Result<T> {
    get_patiently(instance, path, PATIENCE)
}

/// The status. A daemon of an earlier version sends no summary.
fn status(instance: &Instance) -> Result<Status> {
    let mut status: Status = get(instance, "/status")?;
    if status.summary.text.is_empty() {
        status.summary = Summary::of(&status);
    }
    Ok(status)
}

fn get_patiently<T: DeserializeOwned>(instance: &Instance, path: &str, patience: Duration) -> Result<T> {
    let get = |socket: &Path| client::call(socket, "GET", path, None, patience);
    client::reading(instance, get).map_err(|e| said(instance, e))
}

/// The error as text that says what to do.
fn said(instance: &Instance, error: CallError) -> anyhow::Error {
    match error {
        CallError::NoDaemon => anyhow::anyhow!("{}", without_daemon(instance)),
        other => other.into(),
    }
}

/// The error if no daemon answers; it says whether attached programs still forward, and how long.
fn without_daemon(instance: &Instance) -> String {
    let bpf = Bpf::new(instance, false);
    let ports = bpf.pinned_ports();
    let socket = instance.socket();
    if ports.is_empty() {
        return format!(
            "no daemon is running (nobody listens on {}), and nothing is attached",
            socket.display()
        );
    }
    let deadline = match bpf.deadline().map(|d| (d, monotonic())) {
        Some((deadline, now)) if deadline > now => {
            format!("the fast path still forwards, for {:.0} s more", (deadline - now).as_secs_f64())
        }
        Some((deadline, now)) => {
            format!(
                "the heartbeat expired {:.0} s ago and the kernel forwards",
                (now - deadline).as_secs_f64()
            )
        }
        None => "it is not known how long the fast path forwards".into(),
    };
    format!(
        "no daemon is running, but its programs are attached to {}: {deadline}; `{}` takes over; `{}` removes them",
        ports.join(", "),
        instance.command("run"),
        instance.command("stop")
    )
}

fn show<T: Serialize + ?Sized>(output: Output, report: &T, text: impl Fn(&T) -> String) -> Result<()> {
    if output.json { print_json(report) } else { print(&text(report)) }
}

/// Prints a document as one line.
fn print_json(report: &(impl Serialize + ?Sized)) -> Result<()> {
    print(&(shown_json(&serde_json::to_string(report)?) + "\n"))
}

/// Prints the output of a command. A reader that closes the pipe early (`| head`) is no error.
fn print(text: &str) -> Result<()> {
    match io::stdout().lock().write_all(shown_lines(text).as_bytes()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(e).context("writing the answer"),
        _ => Ok(()),
    }
}

/// Prints a message on standard error.
fn complain(text: &str) {
    eprintln!("millrace: {}", shown_lines(text));
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn commands_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn arguments() {
        let fine = [
            "run --port eth1 --port eth2 --router red --router pid:3 --heartbeat 10s --generic --instance x",
            "status --json",
            "routes --json",
            "routes 10.0.0.1 --router red",
            "routes 10.0.0.0/8 --longer --limit 5",
            "routes --verify --json",
            "neighbours --router red --interface eth1",
            "interfaces --router red --rates",
            "explain udp_10.0.0.1:1_->_10.1.0.1:2_ttl=1 --port eth1 --verbose",
            "stop --instance x",
            "stop --all --json",
            "flows list --why",
            "flows list ip,nw_dst=10.0.0.0/8 --json",
            "flows add in_port=1,actions=output:2 actions=drop",
            "flows add --file -",
            "flows mod --strict in_port=1,actions=drop",
            "flows del",
            "flows watch --json",
            "top --interval 500ms --once",
            "paths run --config p.toml --pcap in.pcap --out out.pcap",
            "paths run --config p.toml --pcap lan=a.pcap --pcap wan=b.pcap --out wan=c.pcap --json",
        ];
        for line in fine {
            let words = line.split(' ').map(|w| w.replace('_', " "));
            Cli::try_parse_from(["millrace".into()].into_iter().chain(words))
                .unwrap_or_else(|e| panic!("{line}: {e}"));
        }
        let wrong = [
            ("run --port a/b", "is not a device name"),
            ("run --heartbeat 1s", "2s to 24h"),
            ("run --heartbeat 1s", "\"0\": no forwarding without a daemon"),
            ("run --router pid:x", "is not a router"),
            ("status --instance a/b", "is not an instance name"),
            ("stop --all --instance x", "cannot be used with"),
            ("routes 10.0.0", "neither an address nor a prefix"),
            ("routes --longer", "required"),
            ("routes --verify 10.0.0.1", "cannot be used with"),
            ("explain", "required"),
            ("flows", "Usage"),
            ("flows add", "required"),
            ("flows add actions=drop --file f", "cannot be used with"),
            ("flows mod", "required"),
            ("top --interval 1h", "200ms to 1m"),
            ("paths", "Usage"),
            ("paths run --config p.toml", "--pcap"),
            ("paths run --pcap in.pcap", "--config"),
        ];
        for (line, part) in wrong {
            let error =
                Cli::try_parse_from(["millrace"].into_iter().chain(line.split(' '))).unwrap_err().to_string();
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
