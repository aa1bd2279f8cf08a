//! Millrace itself: the `millrace` binary beside this one, run in the box namespace as an instance of its own, with the
//! flow rules of the testbed, if any.

use std::{
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::Subject;
use crate::{
    command::{self, Running},
    namespace::Namespace,
    openflow,
    rules::Rules,
    sys,
    testbed::Testbed,
};

/// A full table takes seconds to mirror.
const READY_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// How to start a daemon.
pub(crate) struct Launch<'a> {
    /// The namespace to run in. The daemon sees the mounts of the machine.
    pub namespace: &'a Namespace,
    /// The name by which the kernel and `--instance` distinguish daemons.
    pub instance: &'a str,
    pub ports: Vec<&'a str>,
    /// Its configuration file.
    pub configuration: String,
    /// May OpenFlow controllers connect to it?
    pub controllers: bool,
    /// Does it get a session of its own? The testbed sets the session's weight, as for all subjects whose own threads
    /// forward.
    pub own_session: bool,
}

/// A running daemon. Dropping it runs `millrace stop`.
pub struct Millrace {
    child: Child,
    binary: PathBuf,
    instance: String,
    /// Number of routers that must be accelerated, including the host.
    routers: usize,
    /// Time from starting the daemon until it reported that it was ready.
    pub ready_after: Duration,
}

impl Millrace {
    /// Starts it on all ports, for the host and every virtual router, and waits until it reports that it is ready.
    pub fn start(testbed: &Testbed) -> Result<Self> {
        Self::start_for(testbed, testbed.routers.len() + 1)
    }

    /// As [`Millrace::start`], but ready when this many routers are accelerated, including the host.
    pub(super) fn start_for(testbed: &Testbed, routers: usize) -> Result<Self> {
        let daemon = Self::launch(&Launch::of(testbed), routers)?;
        if let Some(rules) = &testbed.rules {
            daemon.add_rules(rules)?;
        }
        Ok(daemon)
    }

    /// Starts it, and waits until this many routers are accelerated, including the host.
    pub(crate) fn launch(launch: &Launch<'_>, routers: usize) -> Result<Self> {
        let (binary, instance) = (binary()?, launch.instance.to_owned());
        let started = Instant::now();
        let child = launch.spawn(&binary)?;
        let mut daemon = Self { child, binary, instance, routers, ready_after: Duration::ZERO };
        daemon.wait_until_ready()?;
        daemon.ready_after = started.elapsed();
        Ok(daemon)
    }

    /// Process id of the daemon.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// JSON of a command that prints state, for instance `status`.
    pub fn ask(&self, arguments: &[&str]) -> Result<Value> {
        let mut command = self.control(arguments);
        let text = command::run(command.arg("--json"))?;
        parsed(&text, arguments).with_context(|| format!("millrace {} --json: {text}", arguments.join(" ")))
    }

    /// Text of `millrace status`.
    pub fn status_text(&self) -> Result<String> {
        command::run(&mut self.control(&["status"]))
    }

    pub(crate) fn control(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(arguments).args(["--instance", &self.instance]);
        command
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let routers = self.routers;
        self.wait_for(|status| why_not_ready(status, routers))
    }

    /// Waits until `why_not` finds no reason in the status why the daemon is not ready.
    pub(super) fn wait_for(&mut self, why_not: impl Fn(&Value) -> Option<String>) -> Result<()> {
        let end = Instant::now() + READY_LIMIT;
        loop {
            if let Some(status) = self.child.try_wait()? {
                bail!("millrace ended at once ({status}): {}", self.log());
            }
            let answer = self.ask(&["status"]);
            let why = match &answer {
                Ok(status) => why_not(status),
                Err(error) => Some(format!("{error:#}")),
            };
            match why {
                None => return Ok(()),
                Some(why) if Instant::now() > end => {
                    bail!("millrace does not become ready: {why}\n{}", self.log())
                }
                Some(_) => sys::sleep(Duration::from_millis(20))?,
            }
        }
    }

    fn add_rules(&self, rules: &Rules) -> Result<()> {
        self.add_flows(&rules.text)
    }

    fn add_flows(&self, text: &str) -> Result<()> {
        let mut add = self.control(&["flows", "add", "--file", "-"]);
        command::run_with_input(&mut add, text).map(drop).context("flow rules")
    }

    /// Replaces all its flow rules by these, one per line.
    pub(crate) fn set_flows(&self, text: &str) -> Result<()> {
        command::run(&mut self.control(&["flows", "del"]))?;
        self.add_flows(text)
    }

    fn log(&self) -> String {
        let text = std::fs::read_to_string(log_path(&self.instance)).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Subject for Millrace {
    fn name(&self) -> &'static str {
        "millrace"
    }

    fn programs(&self) -> Vec<Running> {
        vec![Running { name: "millrace".into(), pid: self.child.id() as i32 }]
    }

    fn take_over(&mut self, testbed: &Testbed) -> Result<bool> {
        command::wait(&mut self.child, STOP_LIMIT)?.context("millrace does not end when it is killed")?;
        self.child = Launch::of(testbed).spawn(&self.binary)?;
        self.wait_until_ready()?;
        Ok(true)
    }

    fn fast_path_packets(&self) -> Result<Option<u64>> {
        let status = self.ask(&["status"])?;
        let forwarded =
            status["packets"]["forwarded"].as_u64().context("millrace status has no packets.forwarded")?;
        // Flow rules forwarded these, so no interface counts them.
        let decided = ["cache_hits", "cache_misses"].map(|what| status["flows"][what].as_u64().unwrap_or(0));
        Ok(Some(forwarded + decided.iter().sum::<u64>()))
    }
}

impl Drop for Millrace {
    fn drop(&mut self) {
        if let Err(error) = command::run(&mut self.control(&["stop"])) {
            eprintln!("{error:#}");
            sys::terminate(self.child.id() as i32);
        }
        if !matches!(command::wait(&mut self.child, STOP_LIMIT), Ok(Some(_))) {
            eprintln!("millrace did not stop in {} s and was killed", STOP_LIMIT.as_secs());
        }
        for file in [log_path(&self.instance), configuration_path(&self.instance)] {
            let _ = std::fs::remove_file(file);
        }
    }
}

impl<'a> Launch<'a> {
    /// On all ports. The configuration sets the number of rules, the policy for queues, and whether shares are
    /// enforced.
    pub(crate) fn of(testbed: &'a Testbed) -> Self {
        let most = testbed.rules.as_ref().map_or(1000, |rules| rules.count.max(1000));
        let web = testbed
            .web
            .map_or(String::new(), |address| format!("[web]\nlisten = \"{address}\"\nexplain = true\n"));
        let (cores, enforce, connections) = (&testbed.placing, testbed.shares, testbed.connections);
        Self {
            namespace: &testbed.box_namespace,
            instance: &testbed.name,
            ports: testbed.topology.ports.iter().map(|port| port.name.as_str()).collect(),
            configuration: format!(
                "[cores]\n{cores}\n[shares]\nenforce = {enforce}\n[flows]\nrules = {most}\n\
                 [firewall]\nconnections = {connections}\n{web}"
            ),
            controllers: testbed.rules.is_some(),
            own_session: false,
        }
    }

    fn spawn(&self, binary: &Path) -> Result<Child> {
        let mut run = self.namespace.command(binary);
        sys::end_with_parent(&mut run);
        sys::start_on_all_cores(&mut run);
        // Ctrl-C is for the lab, which stops the daemon after everything else is removed.
        if self.own_session {
            sys::start_in_own_session(&mut run);
        } else {
            run.process_group(0);
        }
        run.args(["run", "--instance", self.instance]);
        for port in &self.ports {
            run.args(["--port", port]);
        }
        let configuration = configuration_path(self.instance);
        std::fs::write(&configuration, &self.configuration)
            .with_context(|| configuration.display().to_string())?;
        run.arg("--config").arg(configuration);
        if self.controllers {
            run.arg("--controller").arg(format!("ptcp:{}:127.0.0.1", openflow::PORT));
        }
        let child = run.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log_file(self.instance)?).spawn();
        child.with_context(|| format!("cannot start {}", binary.display()))
    }
}

/// Parses one document. Events, which are a line each, become a list.
fn parsed(text: &str, arguments: &[&str]) -> serde_json::Result<Value> {
    match arguments {
        ["events", ..] => text.lines().map(serde_json::from_str::<Value>).collect(),
        _ => serde_json::from_str(text),
    }
}

/// Reads `millrace status --json`. The daemon must report that it is ready, its ports must have no problems, and this
/// many routers must be accelerated for IPv4 and IPv6, or have rules, which let only connections be fast.
fn why_not_ready(status: &Value, routers: usize) -> Option<String> {
    if status["ready"] != true {
        return Some(format!("not ready: {}", status["problem"]));
    }
    let empty = Vec::new();
    let ports = status["ports"].as_array().unwrap_or(&empty);
    if let Some(port) =
        ports.iter().find(|port| port["problems"].as_array().is_some_and(|list| !list.is_empty()))
    {
        return Some(format!("port {}: {}", port["port"], port["problems"]));
    }
    let list = status["routers"].as_array().unwrap_or(&empty);
    let of_version =
        |router: &Value, ip: &str| [&router["accelerated"], &router["ruled"]].iter().any(|is| is[ip] == true);
    let accelerated = |router: &&Value| of_version(router, "ipv4") && of_version(router, "ipv6");
    let (count, first) =
        (list.iter().filter(accelerated).count(), list.iter().find(|router| !accelerated(router)));
    (count < routers).then(|| {
        let why = first.map(|router| {
            format!("; {}: {}, {}", router["router"], router["why_not"], router["left_to_kernel"])
        });
        format!("{count} of {routers} routers are accelerated{}", why.unwrap_or_default())
    })
}

fn binary() -> Result<PathBuf> {
    let lab = std::env::current_exe().context("own path")?;
    // Tests live one directory deeper, in deps/.
    let candidates = lab.ancestors().skip(1).take(2).map(|directory| directory.join("millrace"));
    let found = candidates.into_iter().find(|path| path.is_file());
    found.with_context(|| format!("no millrace binary beside {}: run `make build`", lab.display()))
}

fn configuration_path(instance: &str) -> PathBuf {
    std::env::temp_dir().join(format!("millrace-{instance}.toml"))
}

fn log_path(instance: &str) -> PathBuf {
    std::env::temp_dir().join(format!("millrace-{instance}.log"))
}

fn log_file(instance: &str) -> Result<Stdio> {
    let path = log_path(instance);
    Ok(std::fs::File::create(&path).with_context(|| path.display().to_string())?.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ready_means_every_router_is_accelerated() {
        let router = |ipv4, why: &str| json!({"router": "r1", "accelerated": {"ipv4": ipv4, "ipv6": true}, "why_not": {"ipv4": [why], "ipv6": []}});
        let status = |ready, routers| json!({"ready": ready, "problem": null, "routers": routers});
        assert_eq!(why_not_ready(&status(true, vec![router(true, "")]), 1), None);
        assert!(why_not_ready(&status(true, vec![router(true, "")]), 2).unwrap().starts_with("1 of 2"));
        assert!(
            why_not_ready(&status(true, vec![router(false, "policy rules")]), 1)
                .unwrap()
                .contains("policy rules")
        );
        let mut ruled = router(false, "");
        ruled["ruled"] = json!({"ipv4": true, "ipv6": false});
        assert_eq!(why_not_ready(&status(true, vec![ruled]), 1), None);
        let mut port = status(true, vec![router(true, "")]);
        port["ports"] = json!([{"port": "eth1", "problems": ["generic mode"]}]);
        assert!(why_not_ready(&port, 1).unwrap().contains("generic mode"));
        assert!(why_not_ready(&status(false, vec![router(true, "")]), 1).is_some());
    }
}
