//! `millrace-lab shell`: a testbed to look around in. It is removed when the shell ends.

use std::{io::IsTerminal, os::unix::process::ExitStatusExt, path::PathBuf};

use anyhow::{Context, Result};

use crate::{namespace, sys, testbed::Testbed, topology::Topology};

/// What to build.
#[derive(Clone, Debug, clap::Args)]
pub struct ShellOptions {
    /// Name of a built-in topology (--list shows them), or a file that describes one
    #[arg(default_value = "rfc2544")]
    pub topology: String,
    /// Virtual routers, 0 to 256, instead of those the topology describes
    #[arg(long)]
    pub routers: Option<u16>,
    /// Shows the built-in topologies; needs no root
    #[arg(long)]
    pub list: bool,
}

/// Shows the built-in topologies.
pub fn list() -> Result<()> {
    for topology in Topology::built_in() {
        let topology = topology?;
        println!("{:16} {}", topology.name, topology.description);
    }
    Ok(())
}

/// Builds a testbed and runs `$SHELL` in its box namespace. Returns the shell's exit status, or 128 plus its signal.
pub fn shell(options: &ShellOptions) -> Result<u8> {
    let mut topology = Topology::named(&options.topology)?;
    if let Some(count) = options.routers {
        topology = topology.with_routers(count);
    }
    let testbed = Testbed::new(&topology)?;
    tell(&testbed);
    let result = run(&testbed);
    // Programs in the background would keep the namespaces alive.
    namespace::end_processes(testbed.namespaces());
    namespace::remove_instances(|instance| instance == testbed.name);
    result
}

fn run(testbed: &Testbed) -> Result<u8> {
    let program = PathBuf::from(std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into()));
    let mut command = testbed.box_namespace.command(&program);
    if let Some(directory) = std::env::current_exe().ok().as_deref().and_then(|lab| lab.parent()) {
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", directory.display()));
    }
    let mut child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
    // At a terminal Ctrl-C belongs to the shell's programs. A signal to the lab alone must end the shell first.
    let at_terminal = std::io::stdin().is_terminal();
    let is_stopped = || sys::terminated() || (!at_terminal && sys::check_interrupted().is_err());
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
        if is_stopped() {
            sys::hang_up(child.id() as i32);
        }
    };
    if is_stopped() {
        sys::check_interrupted()?;
    }
    let signal = status.signal().map(|signal| 128 + signal);
    Ok(status.code().or(signal).and_then(|code| code.try_into().ok()).unwrap_or(1))
}

/// Prints where everything is, and what to type.
fn tell(testbed: &Testbed) {
    let (topology, name) = (&testbed.topology, &testbed.name);
    println!("{}\n", topology.description);
    println!("You are on the router box, namespace {name}-box.");
    for (port, (_, device)) in topology.ports.iter().zip(testbed.host_ends()) {
        let behind: Vec<String> = port.behind.iter().map(ToString::to_string).collect();
        let behind =
            if behind.is_empty() { String::new() } else { format!("; behind it {}", behind.join(", ")) };
        let queues = if port.queues == 1 { String::new() } else { format!("; {} queues", port.queues) };
        println!("  port {} to {device} of {name}-{}{queues}{behind}", port.name, port.host);
    }
    match testbed.routers.len() {
        0 => {}
        1 => println!("Virtual router: namespace {name}-r1."),
        n => println!("Virtual routers: namespaces {name}-r1 to {name}-r{n}."),
    }
    let cores = &topology.cores;
    println!(
        "Cores: generator {}, router {:?}, sink {}.",
        cores.generator,
        cores.router,
        match &cores.sink[..] {
            [] => "in the router's threads".to_owned(),
            sink => format!("{sink:?}"),
        }
    );
    let ports: Vec<String> = topology.ports.iter().map(|port| format!("--port {}", port.name)).collect();
    println!("Other namespaces: ip netns exec {name}-{} ...", topology.ports[0].host);
    println!("Millrace: millrace run {} --instance {name}", ports.join(" "));
    println!("The testbed is removed when you leave this shell.");
}
