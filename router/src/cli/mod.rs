//! The command line: a client of the daemon's API, and `run`, which is the daemon.
//!
//! | file | holds |
//! |---|---|
//! | `mod.rs` | the commands, their options, what each asks and its exit code |
//! | `text.rs` | reports as text for people |
//! | `table.rs` | columns |
//! | `flows.rs` | `millrace flows` |
//! | `cores.rs` | cores and events as text |
//! | `top/` | `millrace top` |
//! | `paths.rs` | `millrace paths` |
//! | `sas.rs` | `millrace sas` |
//! | `calibrate.rs` | `millrace calibrate` |
//! | `capture.rs` | frames from a pcap or pcapng file |

mod calibrate;
pub(crate) mod capture;
mod cores;
mod flows;
mod paths;
mod sas;
mod table;
mod text;
mod top;

use crate::{
    api::{
        RouteQuery,
        cores::{CoresReport, EventReport},
        status::{
            ExplainReport, ExplainRequest, InterfaceReport, PortReport, RouteReport, RouterReport, Status,
            StopReport, VerifyReport,
        },
    },
    base::{
        PortName,
        clock::monotonic,
        foreign::{LogLines, shown_json, shown_lines},
        hex,
        instance::{Instance, InstanceName},
    },
    config::{Config, HeartbeatTime, OpenFlowVersion, Target},
    daemon::{
        client::{self, CallError},
        kernel::Bpf,
        observing, start,
    },
    linux::netns::Source,
    switch::controllers::ControllersReport,
};
use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    io::{self, Write},
    net::IpAddr,
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

/// How long a command waits for what the daemon knows.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often `events --follow` asks.
const FOLLOW_PERIOD: Duration = Duration::from_millis(200);
/// For what takes seconds: comparing a full table, or removing one, or loading the explaining program.
const LONG_PATIENCE: Duration = Duration::from_secs(65);

/// A Linux software router in the kernel's fast path.
#[derive(Debug, Parser)]
#[command(name = "millrace", version, about, max_term_width = 110)]
struct Cli {
    /// Which daemon, where more than one runs on a machine.
    #[arg(long, global = true, value_name = "NAME")]
    instance: Option<InstanceName>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Take over forwarding between ports; stays in the foreground.
    #[command(after_help = RUN_HELP)]
    Run(Run),
    /// How forwarding goes: ports, routers, packets, why packets were not forwarded, tables.
    Status(Output),
    /// The ports, how they are attached and what is wrong with them.
    Ports(Output),
    /// The routers, whether they are accelerated or why not.
    Routers(Output),
    /// The interfaces of the routers: what they carried, and why one is left to the kernel.
    Interfaces(Output),
    /// What the fast table says about an address, or whether it agrees with the kernel's.
    Routes(Routes),
    /// Run the real program on a packet and tell, step by step, what it decides.
    #[command(after_help = EXPLAIN_HELP)]
    Explain(Explain),
    /// Flow rules, which go before routing: list, add, modify, delete, watch.
    #[command(subcommand, after_help = flows::HELP)]
    Flows(flows::Flows),
    /// Cores: what they forward and what else they do, where queues are, and who is pinned.
    Cores(Output),
    /// What was decided about queues and cores, when and why.
    Events(Events),
    /// What paths and workers do, as text for Prometheus (docs/reference/metrics.md).
    Metrics,
    /// Cores, queues, routers, flow rules and paths, live.
    #[command(after_help = top::HELP)]
    Top(top::Top),
    /// The user plane over captures.
    #[command(subcommand)]
    Paths(paths::Paths),
    /// Security associations of paths: list, set, remove.
    #[command(after_help = sas::HELP)]
    Sas(sas::Sas),
    /// Measure what a switch from path to path takes on this machine, and keep it for workers.
    #[command(after_help = calibrate::HELP)]
    Calibrate(calibrate::Calibrate),
    /// OpenFlow controllers: whom the daemon dials and where it listens, who is connected and what came of it.
    Controllers(Output),
    /// Take everything out of the kernel: plain Linux forwards.
    Stop(Output),
}

const RUN_HELP: &str = "\
The file of --config (docs/reference/config.md has all keys). Every key is optional. Values are the defaults, except
where a comment says what holds without the line, and names and files are examples:
  ports = []                # such as [\"eth1\", \"eth2\"]
  routers = []              # as --router
  heartbeat = \"3s\"          # how long forwarding goes on without a daemon, 2s to 24h; \"0\": not at all
  generic = false
  steering = false          # heavy flows to queues of their next hops by a NIC's ntuple rules; little is gained for IPv4
  ecmp = \"auto\"             # who chooses among the next hops of a multipath route; \"linux\": the kernel, unless the choice is the same
  [policing]                # packets to the kernel per second, core and router; 0: unlimited
  exception_pps = 100000    # what ends in a drop or an ICMP error there; what is forwarded at a higher cost only
                            # while others on the core lose by it
  control_pps = 10000       # ARP, neighbour discovery
  [sampling]
  every_packets = 128       # one packet in so many is timed; a power of two, or 0: never
  [limits]
  memory_mib = 2048         # all tables; what does not fit is left to the kernel
  routes_per_namespace = 24576  # a namespace with more is left to the kernel
  devices_per_namespace = 4096   # likewise
  namespaces_per_owner = 16      # namespaces of one user, or of one user namespace, that are watched
  [flows]                   # see `millrace flows --help`
  rules = 65536             # room for so many, up to 1010000; the first one takes the memory for all
  miss = \"normal\"           # what no rule matches: \"normal\", \"controller\" or \"drop\"
  [cores]                   # on which cores queues are placed; see docs/inside/control-loop.md
  policy = \"pack\"           # the fewest cores that carry them; or \"spread\", \"fixed\", \"off\": queues are left alone
  allowed = \"0-3,8\"         # cores that may forward; without this line all
  high = 85                 # percent of a core: with more to forward it gives queues away
  low = 70                  # a core is given back when the others then have no more than this
  hold = \"2s\"              # how long a lower load must have lasted for that
  split = false             # share flows of a queue that alone is too much for a core among several
  drain = false             # a queue that is moved does not wait until what it sent has left; without this line it does
  rss = true                # NICs spread packets over as few queues as the cores that forward need; without this line they do not
  floor = 40                # percent of a core that forwards, left to applications; without this line what Linux gives them
  serve = \"/sys/fs/cgroup/apps\"  # a control group of applications: it gets the cores that do not forward
  local = \"stay\"            # or \"follow\": sockets of this machine are served on the core where each is read
  moderation = \"50us\"       # packets wait so long for others, so that fewer wake-ups do; without this line as the device has it
  resume_latency = \"0us\"    # cores wake up so quickly while they forward much; \"0us\": they poll; \"any\": as the machine has it
  # fixed = { eth1 = [0, 1] }   with policy = \"fixed\": the core of each queue of a port
  workloads = [{ name = \"database\", cores = \"4-7\" }]  # pinned, besides those that are discovered
  [shares]                  # what routers may take of a core that is full; see docs/inside/shares.md
  enforce = true            # routers over their share are cut, so that others lose nothing; without this line nobody is
  weights = { red = 2 }     # by router; others have 1
  [openflow]                # docs/howto/openflow.md
  controllers = []          # as --controller
  version = \"1.3\"           # or \"1.0\"; without this line both
  fail = \"standalone\"       # no dialled controller: forward as without rules; \"secure\": the rules apply
  datapath_id = \"0000020000000001\"  # without this line made of the first port's MAC address
  packet_in_pps = 1000      # most packets per second that are handed to controllers
  echo_interval = \"10s\"     # how long a controller may be silent before it is asked
  tls = { key = \"FILE\", certificate = \"FILE\", ca = \"FILE\" }  # for ssl: and pssl:, PEM
  [workers]                 # of the user plane, docs/inside/user-plane.md
  cores = \"2-3\"             # each has a worker; without this line there are none, and may be no paths
  zero_copy = true          # where a driver can; some restart a port's queues for it
  polling = \"interrupts\"    # or \"busy\": while there is load workers poll devices themselves, where the kernel can; `millrace status` says where
  nice = -20                # -20 to 19: how workers stand to applications on their cores; -20: before nearly all
  frame_bytes = 2048        # of a packet in memory, 256 of them kept free in front; or 4096
  share = \"auto\"            # what paths share by their weights: what is scarce; or always \"cycles\", \"io\", and where the CPU has counters for it \"memory\", \"cache_misses\"
  sample_every = 20         # one packet in so many is measured, 1 to 10000: what packets of a path cost is learnt by these
  longest_run = \"100us\"     # so long a path may run at a time, 10us to 1000us, and others wait behind it; shorter costs more switches
  io_mbps = 20000           # of packets, in and out together, that all workers can have; without this line what links and slots of ports carry
  calibration = \"/var/lib/millrace/calibration.json\"  # what `millrace calibrate` found
  [[path]]                  # as in `millrace paths run --help`, with ports and routers of Linux; any number of them
  name = \"vpn\"
  router = \"red\"            # whose packets it has; without this line those of all, and it is the host's
  class = { protocol = \"udp\", destination_port = 4500 }
  chain = [\"check\", \"route\", \"ttl\", \"rewrite\"]
  weight = 1                # among the paths of its router; of routers [shares] says
  otherwise = \"up\"          # what no worker can have goes on as if there were no path; or \"drop\"
  [[sa]]                    # of ESP elements, docs/howto/esp.md; `millrace sas` changes them

SIGINT, SIGTERM and kill -9 end the daemon; forwarding goes on for the heartbeat, until `millrace run` takes
over, or the kernel does. `millrace stop` takes everything out. Inside a network namespace start the daemon with
`nsenter --net=/run/netns/NAME`: under `ip netns exec` forwarding ends with it.";

const EXPLAIN_HELP: &str = "\
A packet reads, in quotes:
  'udp 10.0.0.1:1234 -> 10.1.0.1:80'
  'tcp [2001:db8::1]:1234 -> [2001:db8:1::1]:80 ttl=1 vlan=10'
  'icmp 10.0.0.1 -> 10.1.0.1 len=1400 dmac=02:00:00:00:00:01'
Options: ttl, tos, len (bytes of the IP packet), vlan (VID or OUTER.INNER), dmac, smac. Without dmac the packet is addressed to
the interface of the router (the host's, unless --router) that leads back to its source; what had to be guessed is noted. Frames
of a capture are taken as they are and need --port. Where flow rules decide, they are told first: which, what they send where, and
whether the kernel plane does it or user space, and why; then how that is routed which they send to NORMAL.";

#[derive(Debug, Args)]
struct Run {
    /// A device to forward from and to; give it for each.
    #[arg(long = "port", value_name = "DEVICE")]
    ports: Vec<PortName>,
    /// A TOML file; what is given on the command line wins.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A namespace to accelerate besides those found by themselves: a name, pid:NUMBER, or a file.
    #[arg(long = "router", value_name = "NAME|pid:N|PATH")]
    routers: Vec<Source>,
    /// How long forwarding goes on without a daemon that confirms the tables, 0 or 2s to 24h [default: 3s].
    #[arg(long, value_name = "TIME")]
    heartbeat: Option<HeartbeatTime>,
    /// Where a port has no native XDP, attach in generic mode (slower).
    #[arg(long)]
    generic: bool,
    /// An OpenFlow controller to dial, or where to listen for some; give it for each.
    #[arg(long = "controller", value_name = "tcp:HOST[:PORT]|ssl:..|ptcp:[PORT][:ADDRESS]|pssl:..")]
    controllers: Vec<Target>,
    /// The only OpenFlow version to speak, 1.0 or 1.3 [default: both].
    #[arg(long, value_name = "VERSION")]
    openflow_version: Option<OpenFlowVersion>,
}

#[derive(Clone, Copy, Debug, Args)]
struct Output {
    /// As JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Events {
    /// Go on with what is decided from now on, until Ctrl-C.
    #[arg(long)]
    follow: bool,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["address", "verify"]))]
struct Routes {
    /// The destination to look up.
    address: Option<IpAddr>,
    /// Whose table; the host's by default.
    #[arg(long, value_name = "NAME", conflicts_with = "verify")]
    router: Option<String>,
    /// Compare the fast table with the kernel's, for every router. The exit code is 1 if they differ. It is 3 if no
    /// difference was found but a router could not be verified.
    #[arg(long)]
    verify: bool,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
struct Explain {
    /// A packet as text, in quotes, or a pcap or pcapng file.
    #[arg(value_name = "PACKET")]
    packet: String,
    /// The port it arrives on.
    #[arg(long, value_name = "DEVICE")]
    port: Option<PortName>,
    /// The router it is for.
    #[arg(long, value_name = "NAME")]
    router: Option<String>,
    /// Also the steps within the tables (JSON has them always).
    #[arg(long)]
    verbose: bool,
    #[command(flatten)]
    output: Output,
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
            Command::Run(_) | Command::Top(_) | Command::Metrics => false,
            Command::Status(o)
            | Command::Controllers(o)
            | Command::Cores(o)
            | Command::Ports(o)
            | Command::Routers(o)
            | Command::Interfaces(o)
            | Command::Stop(o) => o.json,
            Command::Events(events) => events.output.json,
            Command::Flows(flows) => flows.is_json(),
            Command::Paths(paths) => paths.is_json(),
            Command::Sas(sas) => sas.is_json(),
            Command::Calibrate(calibrate) => calibrate.is_json(),
            Command::Routes(routes) => routes.output.json,
            Command::Explain(explain) => explain.output.json,
        }
    }
}

impl Cli {
    fn run(self) -> Result<ExitCode> {
        let instance = Instance::new(self.instance);
        match self.command {
            Command::Run(run) => return run.run(instance),
            Command::Status(o) => show(o, &get::<Status>(&instance, "/status")?, text::status),
            Command::Metrics => {
                let text = client::text(&instance.socket(), "/metrics", PATIENCE);
                print(&text.map_err(|e| said(&instance, e))?)
            }
            Command::Ports(o) => show(o, &get::<Vec<PortReport>>(&instance, "/ports")?, |r| text::ports(r)),
            Command::Routers(o) => {
                show(o, &get::<Vec<RouterReport>>(&instance, "/routers")?, |r| text::routers(r))
            }
            Command::Interfaces(o) => {
                show(o, &get::<Vec<InterfaceReport>>(&instance, "/interfaces")?, |r| text::interfaces(r))
            }
            Command::Routes(routes) => return routes.run(&instance),
            Command::Explain(explain) => return explain.run(&instance),
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
            Command::Stop(o) => show(o, &stop(&instance)?, text::stop),
        }?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Run {
    fn run(self, instance: Instance) -> Result<ExitCode> {
        let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(|| LogLines)
            .with_ansi(false)
            .with_target(false)
            .init();
        let config = self.merged()?;
        start::run(config, instance, observing::open)?;
        Ok(ExitCode::SUCCESS)
    }

    /// The file, with what the command line says in its place or added.
    fn merged(self) -> Result<Config> {
        let mut config = self.config.map_or(Ok(Config::default()), |file| Config::read(&file))?;
        if !self.ports.is_empty() {
            config.ports = self.ports;
        }
        if !self.routers.is_empty() {
            config.routers = self.routers;
        }
        config.heartbeat = self.heartbeat.unwrap_or(config.heartbeat);
        config.generic |= self.generic;
        if !self.controllers.is_empty() {
            config.openflow.controllers = self.controllers;
        }
        config.openflow.version = self.openflow_version.or(config.openflow.version);
        config.openflow.check()?;
        config.cores.check()?;
        config.experimental.check(config.cores.policy)?;
        Ok(config)
    }
}

impl Events {
    fn run(self, instance: &Instance) -> Result<ExitCode> {
        let mut seen = 0;
        loop {
            let new: Vec<EventReport> = get(instance, &format!("/events?after={seen}"))?;
            seen = new.last().map_or(seen, |event| event.number);
            if !(self.follow && new.is_empty()) {
                show(self.output, &new, |events| cores::events(events, self.follow))?;
            }
            if !self.follow {
                return Ok(ExitCode::SUCCESS);
            }
            std::thread::sleep(FOLLOW_PERIOD);
        }
    }
}

impl Routes {
    fn run(self, instance: &Instance) -> Result<ExitCode> {
        let Some(address) = self.address else {
            let report: VerifyReport = get_patiently(instance, "/verify", LONG_PATIENCE)?;
            show(self.output, &report, text::verify)?;
            return Ok(verified(&report));
        };
        let query = RouteQuery { address, router: self.router };
        let path = format!("/route?{}", url_query(&query));
        show(self.output, &get::<RouteReport>(instance, &path)?, text::route)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// No failure of the command itself ends with this.
const UNVERIFIED: u8 = 3;

fn verified(report: &VerifyReport) -> ExitCode {
    match (report.differences, report.unverified) {
        (0, 0) => ExitCode::SUCCESS,
        (0, _) => ExitCode::from(UNVERIFIED),
        _ => ExitCode::FAILURE,
    }
}

fn url_query(query: &RouteQuery) -> String {
    let router = query.router.as_ref().map_or(String::new(), |r| format!("&router={}", percent(r)));
    format!("address={}{router}", percent(&query.address.to_string()))
}

/// RFC 3986 2.1: everything but unreserved characters as %XX.
fn percent(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// What became of one packet; or, of a frame in a file, why nothing could be found out.
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
                 (a packet reads 'udp 10.0.0.1:1234 -> 10.1.0.1:80')",
                self.packet
            );
        }
        let capture = capture::read(self.packet.as_ref())?;
        let explained = explain_frames(instance, &base, capture.frames)?;
        show(self.output, &explained[..], |e| text::explanations(e, self.verbose))?;
        if capture.more {
            complain(&format!(
                "these are the first {} frames of {}; others can be cut out with `editcap -r`",
                capture::MAX_FRAMES,
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

/// Each frame on its own: one that the daemon refuses says so in its place. An error that is not the frame's ends it, and
/// what was explained before is kept.
fn explain_frames(
    instance: &Instance,
    base: &ExplainRequest,
    frames: Vec<capture::Frame>,
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

/// Asks the daemon to stop and waits for its end; when there is none, removes what it left.
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

fn get<T: DeserializeOwned>(instance: &Instance, path: &str) -> Result<T> {
    get_patiently(instance, path, PATIENCE)
}

fn get_patiently<T: DeserializeOwned>(instance: &Instance, path: &str, patience: Duration) -> Result<T> {
    client::call(&instance.socket(), "GET", path, None, patience).map_err(|e| said(instance, e))
}

/// The error in words that say what to do.
fn said(instance: &Instance, error: CallError) -> anyhow::Error {
    match error {
        CallError::NoDaemon => anyhow::anyhow!("{}", without_daemon(instance)),
        other => other.into(),
    }
}

/// What there is to say when nobody answers: programs may forward nevertheless.
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
        None => "until when the fast path forwards cannot be read".into(),
    };
    format!(
        "no daemon is running, but its programs are attached to {}: {deadline}; `{}` takes over, `{}` removes them",
        ports.join(", "),
        instance.command("run"),
        instance.command("stop")
    )
}

fn show<T: Serialize + ?Sized>(output: Output, report: &T, text: impl Fn(&T) -> String) -> Result<()> {
    if output.json { print_json(report) } else { print(&text(report)) }
}

fn print_json(report: &(impl Serialize + ?Sized)) -> Result<()> {
    print(&(shown_json(&serde_json::to_string_pretty(report)?) + "\n"))
}

/// All that commands print. A reader that has seen enough (`| head`) is no error.
fn print(text: &str) -> Result<()> {
    match io::stdout().lock().write_all(shown_lines(text).as_bytes()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(e).context("writing the answer"),
        _ => Ok(()),
    }
}

/// All that commands say on standard error.
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
            "routes 10.0.0.1 --router red",
            "routes --verify --json",
            "explain udp_10.0.0.1:1_->_10.1.0.1:2_ttl=1 --port eth1 --verbose",
            "stop --instance x",
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
            ("run --heartbeat 1s", "\"0\": not without a daemon"),
            ("run --router pid:x", "is not a router"),
            ("status --instance a/b", "is not an instance name"),
            ("routes", "required"),
            ("routes 10.0.0", "invalid IP address"),
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

    #[test]
    fn the_command_line_wins_over_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("m.toml");
        std::fs::write(&file, "ports = [\"a\"]\nheartbeat = \"10s\"\nrouters = [\"red\"]").unwrap();
        let line = ["millrace", "run", "--port", "b", "--generic", "--config", file.to_str().unwrap()];
        let Command::Run(run) = Cli::try_parse_from(line).unwrap().command else { panic!() };
        let config = run.merged().unwrap();
        assert_eq!(config.ports, ["b".parse().unwrap()]);
        assert_eq!(config.routers, [Source::Name("red".into())]);
        assert_eq!((config.heartbeat.0, config.generic), (Duration::from_secs(10), true));
    }

    #[test]
    fn url_queries() {
        let query = RouteQuery { address: "2001:db8::1".parse().unwrap(), router: Some("a b&/".into()) };
        assert_eq!(url_query(&query), "address=2001%3Adb8%3A%3A1&router=a%20b%26%2F");
    }
}
