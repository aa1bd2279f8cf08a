//! Open vSwitch (Debian's openvswitch-switch) with its userspace datapath. The lab runs a database and a switch of its
//! own in the box namespace, with their files in a directory of its own. OpenFlow rules do what the router does. There
//! is one for each route through the port to the sink that the box has at the start: destination network, MACs, TTL,
//! output. A longer prefix has a higher priority. If the testbed has rules, these take their place.
//!
//! `ovs-afxdp`: AF_XDP sockets, polled by one PMD thread on the router's core. It uses all of the core that it can get,
//! at any load (so need-wakeup is off). `ovs-packet`: packet sockets, read by the switch's main thread, which is put on
//! the router's core. The stack's copies of the packets are dropped at once. No counter of the testbed shows packets
//! that find a packet socket full: they are reported as unexplained.

use std::{collections::HashMap, net::IpAddr, path::PathBuf, process::Command, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::{
    Subject,
    process::{DeafStack, Directory, Ports, Process, on_path},
};
use crate::{
    addresses::{egress_mac, ingress_mac, mac_text},
    command::{self, Running},
    testbed::{PORT_IN, PORT_OUT, Testbed},
};

const PACKAGE: &str = "install the package openvswitch-switch (its service need not run)";
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
const START_LIMIT: Duration = Duration::from_secs(20);
const BRIDGE: &str = "mlovs";
/// Maximum number of routes of the box. The papers' tables have 5000 entries.
const MAX_RULES: usize = 10_000;
/// Start of the names of threads that poll AF_XDP sockets.
const THREAD: &str = "pmd-";

/// How it gets the packets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sockets {
    AfXdp,
    Packet,
}

pub(super) struct Ovs {
    sockets: Sockets,
    // Dropped in this order: the switch before its database, both before their files. Then the stack has the ports
    // again.
    switch: Process,
    _database: Process,
    directory: Directory,
    ports: Ports,
    _deaf: Option<DeafStack>,
}

impl Ovs {
    pub(super) fn start(testbed: &Testbed, sockets: Sockets) -> Result<Self> {
        // Read rules before the switch takes the ports, because the box forgets neighbours then.
        let rules = testbed.rules.as_ref().map_or_else(|| rules(testbed), |rules| Ok(rules.text.clone()))?;
        let [ovsdb_tool, ovsdb_server, vswitchd] =
            ["ovsdb-tool", "ovsdb-server", "ovs-vswitchd"].map(|program| on_path(program, PACKAGE));
        let (ovsdb_tool, ovsdb_server, vswitchd) = (ovsdb_tool?, ovsdb_server?, vswitchd?);
        let deaf = (sockets == Sockets::Packet).then(|| DeafStack::new(testbed)).transpose()?;
        let ports = Ports::new(testbed)?;
        let directory = Directory::create(testbed, "ovs")?;
        command::run(
            directory.command(&ovsdb_tool).arg("create").arg(directory.file("conf.db")).arg(SCHEMA),
        )?;
        let program = |path: &PathBuf| directory.ours(testbed.box_namespace.command(path));

        let mut server = program(&ovsdb_server);
        server.arg(directory.file("conf.db")).arg(format!("--remote=p{}", directory.socket("db.sock")));
        let mut database =
            Process::start(with_files(server, &directory, "ovsdb"), &directory.file("ovsdb.out"))?;
        database.wait_until(START_LIMIT, |_| directory.file("db.sock").exists())?;

        let mut daemon = program(&vswitchd);
        daemon.arg(directory.socket("db.sock"));
        let switch = Process::start(with_files(daemon, &directory, "switch"), &directory.file("switch.out"))?;
        let mut ovs = Self { sockets, switch, _database: database, directory, ports, _deaf: deaf };
        ovs.configure(testbed, &rules)?;
        Ok(ovs)
    }

    fn configure(&mut self, testbed: &Testbed, rules: &str) -> Result<()> {
        self.control("--no-wait init")?;
        self.control(&format!(
            "set Open_vSwitch . other_config:pmd-cpu-mask={:#x}",
            1u64 << testbed.topology.cores.router[0]
        ))?;
        self.control(&format!(
            "add-br {BRIDGE} -- set bridge {BRIDGE} datapath_type=netdev fail-mode=secure protocols=OpenFlow13"
        ))?;
        let kind = match self.sockets {
            Sockets::AfXdp => "type=afxdp options:xdp-mode=native options:use-need-wakeup=false",
            Sockets::Packet => "type=system",
        };
        for (number, port) in [PORT_IN, PORT_OUT].into_iter().enumerate() {
            let number = number + 1;
            self.control(&format!(
                "add-port {BRIDGE} {port} -- set interface {port} {kind} ofport_request={number}"
            ))
            .with_context(|| format!("{port}: {}", self.switch.last_lines()))?;
            // ovs-vsctl reports a port that does not work, but exits successfully.
            if self.control(&format!("get interface {port} ofport"))?.trim() != number.to_string() {
                bail!("{port}: {}", self.control(&format!("get interface {port} error"))?.trim());
            }
        }
        let mut openflow = self.directory.command(&on_path("ovs-ofctl", PACKAGE)?);
        openflow.args(["-O", "OpenFlow13", "replace-flows"]);
        openflow.arg(self.directory.socket(&format!("{BRIDGE}.mgmt"))).arg("-");
        command::run_with_input(&mut openflow, rules).context("OpenFlow rules")?;
        match self.sockets {
            Sockets::AfXdp => self.switch.wait_until(START_LIMIT, |switch| switch.polls(THREAD)),
            Sockets::Packet => Ok(()),
        }
    }

    fn control(&self, arguments: &str) -> Result<String> {
        let mut command = self.directory.command(&on_path("ovs-vsctl", PACKAGE)?);
        command.arg(format!("--db={}", self.directory.socket("db.sock")));
        command.arg(format!("--timeout={}", START_LIMIT.as_secs())).args(arguments.split_whitespace());
        command::run(&mut command)
    }
}

impl Directory {
    /// `unix:PATH`.
    fn socket(&self, name: &str) -> String {
        format!("unix:{}", self.file(name).display())
    }

    fn command(&self, program: &PathBuf) -> Command {
        self.ours(Command::new(program))
    }

    /// Keeps a command from reading or writing anything of the machine's own Open vSwitch.
    fn ours(&self, mut command: Command) -> Command {
        for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
            command.env(variable, self.file(""));
        }
        command
    }
}

impl Drop for Ovs {
    fn drop(&mut self) {
        // A switch that gets only SIGTERM leaves its devices and XDP programs behind.
        let mut exit = || {
            let mut command = self.directory.command(&on_path("ovs-appctl", PACKAGE)?);
            let socket = self.directory.file("switch.ctl");
            command::run(command.arg("-t").arg(socket).args(["--timeout=10", "exit", "--cleanup"]))?;
            self.switch.end()
        };
        if let Err(error) = exit() {
            eprintln!("{error:#}");
        }
    }
}

fn with_files(mut command: Command, directory: &Directory, name: &str) -> Command {
    for (option, suffix) in [("pidfile", "pid"), ("log-file", "log"), ("unixctl", "ctl")] {
        command.arg(format!("--{option}={}", directory.file(&format!("{name}.{suffix}")).display()));
    }
    command
}

/// A route of the kernel's table, as `ip` prints it.
#[derive(Deserialize)]
struct Route {
    /// A prefix, or an address without length.
    dst: String,
    /// `None`: one of its own networks, for which there is no rule.
    gateway: Option<IpAddr>,
}

/// One of the kernel's neighbours.
#[derive(Deserialize)]
struct Neighbour {
    dst: IpAddr,
    lladdr: Option<String>,
}

/// Packets to the router's MAC go to the next hop of their route; all others are dropped.
fn rules(testbed: &Testbed) -> Result<String> {
    let name = testbed.box_namespace.name();
    let neighbours = command::ip(&format!("-j -netns {name} neigh show dev {PORT_OUT}"))?;
    let neighbours: Vec<Neighbour> = serde_json::from_str(&neighbours).context("neighbours")?;
    let macs: HashMap<IpAddr, String> =
        neighbours.into_iter().filter_map(|neighbour| Some((neighbour.dst, neighbour.lladdr?))).collect();
    let (mut rules, mut count) = (String::new(), 0);
    for (family, host, matching) in [("-4", 32, "ip,nw_dst"), ("-6", 128, "ipv6,ipv6_dst")] {
        let routes = command::ip(&format!("-j {family} -netns {name} route show dev {PORT_OUT}"))?;
        let routes: Vec<Route> = serde_json::from_str(&routes).context("routes")?;
        let through = routes.iter().filter_map(|route| Some((&route.dst, route.gateway?)));
        for (network, gateway) in through {
            let to = macs.get(&gateway).with_context(|| format!("{gateway} has no MAC address"))?;
            let length = network.split_once('/').map_or(Ok(host), |(_, length)| length.parse::<u16>())?;
            rules += &format!(
                "priority={},in_port=1,dl_dst={},{matching}={network},\
                 actions=set_field:{}->eth_src,set_field:{to}->eth_dst,dec_ttl,output:2\n",
                1 + length,
                mac_text(ingress_mac(0)),
                mac_text(egress_mac(0))
            );
            count += 1;
        }
    }
    ensure!(
        count <= MAX_RULES,
        "it gets an OpenFlow rule for each route, at most {MAX_RULES}, and the box has {count} routes: compare it with a \
         smaller table"
    );
    Ok(rules)
}

impl Subject for Ovs {
    fn name(&self) -> &'static str {
        match self.sockets {
            Sockets::AfXdp => "ovs-afxdp",
            Sockets::Packet => "ovs-packet",
        }
    }

    fn burst(&self) -> usize {
        match self.sockets {
            Sockets::AfXdp => usize::MAX,
            // A socket's buffer has 212,992 bytes (net.core.rmem_default); a packet takes a page and a bit.
            Sockets::Packet => 32,
        }
    }

    fn threads(&self) -> Vec<i32> {
        match self.sockets {
            Sockets::AfXdp => self.switch.threads(THREAD),
            Sockets::Packet => vec![self.switch.main_thread()],
        }
    }

    fn programs(&self) -> Vec<Running> {
        vec![self.switch.running()]
    }

    fn fast_path_packets(&self) -> Result<Option<u64>> {
        match self.sockets {
            Sockets::AfXdp => self.ports.redirected().map(Some),
            Sockets::Packet => Ok(None),
        }
    }
}
