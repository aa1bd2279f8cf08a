//! `millrace run`, which is the daemon, and `millrace check`.

use super::{Output, show, text};
use crate::{
    api::{
        status::{CheckReport, Families},
        summary,
    },
    base::{PortName, foreign::LogLines, instance::Instance},
    config::{Config, HeartbeatTime, OpenFlowVersion, Target},
    daemon::{dry, observing, start},
    linux::netns::Source,
};
use anyhow::{Result, bail};
use clap::Args;
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

pub(super) const HELP: &str = "\
The file of --config is TOML. docs/reference/config.md describes all keys, each of which is optional. The usual
ones, with examples:
  ports = [\"eth1\", \"eth2\"]  # the devices to forward between, as --port
  routers = [\"red\"]           # a namespace that is not discovered automatically, as --router
  heartbeat = \"3s\"            # how long forwarding goes on without a daemon: 2s to 24h, or \"0\"
  ecmp = \"auto\"               # next hops where Linux's choice is unknown: Millrace chooses; \"linux\": the kernel
  [policing]                  # packets to the kernel per second, for each core and router; 0: no limit
  exception_pps = 100000
  control_pps = 10000
  [firewall]
  established = \"fast\"        # UDP and TCP connections that all rules accept; \"udp\": no TCP; \"linux\": none
  [limits]
  memory_mib = 2048           # of all tables; packets that need a row beyond it go to the kernel
  routes_per_namespace = 24576  # the kernel serves a namespace with more
  [flows]                     # see `millrace flows --help`
  rules = 65536               # room for flow rules
  miss = \"normal\"             # packets that no rule matches: \"normal\", \"controller\" or \"drop\"
  [cores]                     # where queues run
  policy = \"pack\"             # as few cores as carry the load; or \"spread\", \"fixed\", \"off\" (leave queues alone)
  allowed = \"0-3,8\"           # cores that may forward
  floor = 40                  # percent of a forwarding core that applications keep
  [shares]                    # of full cores
  enforce = true              # cut routers that exceed their share, so that others lose nothing
  weights = { red = 2 }
  [openflow]
  controllers = [\"tcp:192.0.2.10\"]  # as --controller
  fail = \"standalone\"         # without a controller, forward as without rules; \"secure\": by the rules
  [metrics]
  listen = \"[::1]:9111\"      # GET /metrics over TCP, for Prometheus
  [web]
  listen = \"[::1]:9112\"      # a web page, for browsers on this machine
  [workers]
  cores = \"2-3\"               # one worker on each runs paths
  [[path]]                    # see `millrace paths run --help`
  name = \"vpn\"
  class = { protocol = \"udp\", destination_port = 4500 }
  chain = [\"check\", \"route\", \"ttl\", \"rewrite\"]

SIGINT, SIGTERM and kill -9 end the daemon. Forwarding goes on for the heartbeat, until `millrace run` takes
over or the kernel forwards. `millrace stop` removes everything from the kernel. To run the daemon in a network
namespace, use `nsenter --net=/run/netns/NAME`: under `ip netns exec`, forwarding ends with the daemon.";

pub(super) const CHECK_HELP: &str = "\
The command takes the options of `millrace run`. Without --config and --port, it reads the file of the Debian package:
/etc/millrace/millrace.toml, or /etc/millrace/NAME.toml with --instance NAME. It loads the programs to see whether the
kernel takes them, attaches them to no device, and leaves nothing behind. Of paths, SAs, controllers and cores, it checks
only what the file says.
The exit status is 0 if the daemon would start, even if Linux would forward some packets. It is 1 if it would not.";

/// The configuration of a daemon: a file, and options that win over it.
#[derive(Debug, Args)]
struct ConfigArgs {
    /// A device to forward from and to; repeat it for each.
    #[arg(long = "port", value_name = "DEVICE")]
    ports: Vec<PortName>,
    /// The configuration, a TOML file; options win over it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A namespace to accelerate besides those that are discovered automatically: a name, pid:NUMBER, or a file;
    /// repeat it for each.
    #[arg(long = "router", value_name = "NAME|pid:N|PATH")]
    routers: Vec<Source>,
    /// How long forwarding goes on without a daemon that confirms the tables: 0, or 2s to 24h [default: 3s].
    #[arg(long, value_name = "TIME")]
    heartbeat: Option<HeartbeatTime>,
    /// Attach in generic mode, which is slower, where a port has no native XDP.
    #[arg(long)]
    generic: bool,
    /// An OpenFlow controller to dial, or an address to listen on; repeat it for each.
    #[arg(long = "controller", value_name = "tcp:HOST[:PORT]|ssl:..|ptcp:[PORT][:ADDRESS]|pssl:..")]
    controllers: Vec<Target>,
    /// The only OpenFlow version to speak, 1.0 or 1.3 [default: both].
    #[arg(long, value_name = "VERSION")]
    openflow_version: Option<OpenFlowVersion>,
}

#[derive(Debug, Args)]
pub(super) struct Run {
    #[command(flatten)]
    config: ConfigArgs,
    /// Do not start: report what would happen, as `millrace check`.
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Args)]
pub(super) struct Check {
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    output: Output,
}

impl Run {
    pub(super) fn run(self, instance: Instance) -> Result<ExitCode> {
        let args = self.config;
        if self.dry_run {
            let report = checked(&args, args.config.clone(), &instance)?;
            return shown(Output { json: false }, &report);
        }
        let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(|| LogLines)
            .with_ansi(false)
            .with_target(false)
            .init();
        let config = args.merged(args.config.as_deref())?;
        let reread = move || match &args.config {
            Some(file) => args.merged(Some(file)),
            None => bail!("the daemon has no configuration file; start it with --config FILE"),
        };
        start::run(config, Arc::new(reread), instance, observing::open)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Check {
    pub(super) fn is_json(&self) -> bool {
        self.output.json
    }

    pub(super) fn run(self, instance: &Instance) -> Result<ExitCode> {
        let args = self.config;
        let packaged = || PathBuf::from(format!("/etc/millrace/{}.toml", instance.short_name()));
        let file = args.config.clone().or_else(|| args.ports.is_empty().then(packaged));
        shown(self.output, &checked(&args, file, instance)?)
    }
}

fn checked(args: &ConfigArgs, file: Option<PathBuf>, instance: &Instance) -> Result<CheckReport> {
    let config = args.merged(file.as_deref())?;
    let file = file.map(|file| file.display().to_string());
    Ok(CheckReport { file, ..dry::check(config, instance, observing::open) })
}

fn shown(output: Output, report: &CheckReport) -> Result<ExitCode> {
    show(output, report, self::report)?;
    Ok(if report.why_not.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The report as text.
fn report(r: &CheckReport) -> String {
    let mut out = r.file.as_ref().map_or(String::new(), |file| format!("configuration  {file} is valid\n"));
    out += &format!("kernel         Linux {}\n", r.kernel);
    for port in &r.missing_ports {
        out += &format!("port {port} does not exist yet; it would be used once it appears\n");
    }
    for path in &r.untried_paths {
        out += &format!("path {path} is valid in the file; workers were not tried\n");
    }
    if let Some(why) = &r.why_not {
        return out + &format!("\nMillrace would not start: {why}\n");
    }
    out += &format!("\n{}", text::ports(&r.ports));
    for port in &r.ports {
        out += &port.note.as_ref().map_or(String::new(), |note| format!("  {}: {note}\n", port.port));
    }
    out += &format!("\n{}", text::routers(&r.routers));
    let ruled: Vec<_> = r.firewall.iter().filter(|f| f.rules != Families::default()).cloned().collect();
    if !ruled.is_empty() {
        out += &format!("\n{}", text::firewall(&ruled));
    }
    let untrusted = r.ports.iter().filter(|port| !port.problems.is_empty()).count();
    let slow = r
        .routers
        .iter()
        .filter(|router| summary::how_much(router) != Families { ipv4: "fast", ipv6: "fast" });
    let but = match (untrusted, slow.count()) {
        (0, 0) => "all routers would be fast".into(),
        (0, routers) => format!("{routers} of {} routers would not be entirely fast", r.routers.len()),
        (ports, _) => format!("{ports} of {} ports would be left to Linux", r.ports.len()),
    };
    out + &format!("\nMillrace would start; {but}\n")
}

impl ConfigArgs {
    /// The configuration file, with the options of the command line, which win over it.
    fn merged(&self, file: Option<&Path>) -> Result<Config> {
        let mut config = file.map_or(Ok(Config::default()), Config::read)?;
        if !self.ports.is_empty() {
            config.ports.clone_from(&self.ports);
        }
        if !self.routers.is_empty() {
            config.routers.clone_from(&self.routers);
        }
        config.heartbeat = self.heartbeat.unwrap_or(config.heartbeat);
        config.generic |= self.generic;
        if !self.controllers.is_empty() {
            config.openflow.controllers.clone_from(&self.controllers);
        }
        config.openflow.version = self.openflow_version.or(config.openflow.version);
        config.openflow.check()?;
        config.cores.check()?;
        config.experimental.check(config.cores.policy)?;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;
    use std::time::Duration;

    #[test]
    fn the_command_line_wins_over_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("m.toml");
        std::fs::write(&file, "ports = [\"a\"]\nheartbeat = \"10s\"\nrouters = [\"red\"]").unwrap();
        let line = ["millrace", "run", "--port", "b", "--generic", "--config", file.to_str().unwrap()];
        let Command::Run(run) = Cli::try_parse_from(line).unwrap().command else { panic!() };
        let config = run.config.merged(Some(&file)).unwrap();
        assert_eq!(config.ports, ["b".parse().unwrap()]);
        assert_eq!(config.routers, [Source::Name("red".into())]);
        assert_eq!((config.heartbeat.0, config.generic), (Duration::from_secs(10), true));
    }
}
