//! testpmd of DPDK (Debian's dpdk-dev, with librte-net-af-xdp23 and librte-net-af-packet23) on the kernel's ports. Its
//! forwarding mode `mac` writes the MACs of the next hop and of the port, and forwards from port to port. It looks
//! nothing up and does not change the TTL, so it does less than a router ([`Rewrite::Macs`]). One core, the router's,
//! polls. Memory is ordinary pages.
//!
//! `testpmd-afxdp`: AF_XDP sockets. `testpmd-packet`: packet sockets. The stack's copies of the packets are dropped at
//! once. No counter of the testbed shows packets that find a socket's ring full.

use std::time::Duration;

use anyhow::{Result, bail};

use super::{
    Rewrite, Subject,
    process::{DeafStack, Directory, Ports, Process, on_path},
};
use crate::{
    addresses::{egress_mac, mac_text, nexthop_mac},
    command::Running,
    testbed::{PORT_IN, PORT_OUT, Testbed},
};

const PACKAGES: &str = "install the packages dpdk-dev, librte-net-af-xdp23 and librte-net-af-packet23";
const START_LIMIT: Duration = Duration::from_secs(20);
/// The thread that forwards (22.11; its name has changed between releases).
const THREAD: &str = "rte-worker";

/// How it gets the packets: DPDK's name of the driver.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Driver {
    AfXdp,
    Packet,
}

pub(super) struct Testpmd {
    driver: Driver,
    process: Process,
    _directory: Directory,
    ports: Ports,
    _deaf: Option<DeafStack>,
}

impl Testpmd {
    pub(super) fn start(testbed: &Testbed, driver: Driver) -> Result<Self> {
        let program = on_path("dpdk-testpmd", PACKAGES)?;
        let deaf = (driver == Driver::Packet).then(|| DeafStack::new(testbed)).transpose()?;
        let ports = Ports::new(testbed)?;
        let directory = Directory::create(testbed, "testpmd")?;
        let mut command = testbed.box_namespace.command(program);
        let cores = &testbed.topology.cores;
        command.args(["--lcores", &format!("0@{},1@{}", cores.generator, cores.router[0])]);
        command.args(["--no-pci", "--no-huge", "-m", "256", "--no-shconf", "--no-telemetry"]);
        // By default its files go below /var/run/dpdk.
        command.args(["--file-prefix", &testbed.name]).env("RUNTIME_DIRECTORY", directory.file(""));
        let name = match driver {
            Driver::AfXdp => "net_af_xdp",
            Driver::Packet => "net_af_packet",
        };
        for (number, port) in [PORT_IN, PORT_OUT].into_iter().enumerate() {
            command.args(["--vdev", &format!("{name}{number},iface={port}")]);
        }
        command.args(["--", "--forward-mode=mac", "--auto-start", "--total-num-mbufs=16384"]);
        command.arg(format!("--eth-peer=1,{}", mac_text(nexthop_mac(1))));
        let process = Process::start(command, &directory.file("testpmd.log"))?;
        let mut testpmd = Self { driver, process, _directory: directory, ports, _deaf: deaf };
        testpmd.process.wait_until(START_LIMIT, |process| {
            // Threads start before this line.
            process.printed().contains("Checking link statuses") && process.polls(THREAD)
        })?;
        // It would continue with the ports that work.
        if let Some(failed) =
            testpmd.process.printed().lines().find(|line| line.contains("failed to initialize"))
        {
            bail!("{PORT_IN} or {PORT_OUT}: {failed}");
        }
        Ok(testpmd)
    }
}

impl Subject for Testpmd {
    fn name(&self) -> &'static str {
        match self.driver {
            Driver::AfXdp => "testpmd-afxdp",
            Driver::Packet => "testpmd-packet",
        }
    }

    fn rewrites(&self) -> Rewrite {
        Rewrite::Macs { to: nexthop_mac(1), from: egress_mac(0) }
    }

    fn threads(&self) -> Vec<i32> {
        self.process.threads(THREAD)
    }

    fn programs(&self) -> Vec<Running> {
        vec![self.process.running()]
    }

    fn fast_path_packets(&self) -> Result<Option<u64>> {
        match self.driver {
            Driver::AfXdp => self.ports.redirected().map(Some),
            Driver::Packet => Ok(None),
        }
    }
}
