//! VPP of FD.io (<https://fd.io>) on the kernel's ports. It gets the addresses, static neighbours and routes that Linux
//! has in the box at the start, whole tables too. VPP's main thread polls, on the router's core. Memory is ordinary
//! pages. Debian has no package, so MILLRACE_LAB_VPP can give the path. `vppctl` is in the same directory, and VPP
//! itself finds its plugins below `../lib/`.
//!
//! `vpp-afxdp`: AF_XDP sockets. A VPP with libxdp linked into it may need LIBXDP_OBJECT_PATH, the directory with
//! libxdp's programs (that of the package libxdp1 is called `bpf`). `vpp-packet`: packet sockets. The stack's copies of
//! the packets are dropped at once. No counter of the testbed shows packets that find a socket's ring full.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, ensure};

use super::{
    Subject,
    ovs::Sockets,
    process::{DeafStack, Directory, Ports, Process, given_or_on_path},
};
use crate::{
    addresses::{length4, mac_text, router_mac, router4, router6},
    command::{self, Running},
    testbed::{PORT_IN, PORT_OUT, Testbed},
};

/// Path of the program, if it is not on PATH.
const VARIABLE: &str = "MILLRACE_LAB_VPP";
const START_LIMIT: Duration = Duration::from_secs(30);
/// The thread that does all the work.
const THREAD: &str = "vpp_main";
/// Routes per command. A command may take [`command::LIMIT`], so a whole table needs many.
const ROUTES: usize = 100_000;

pub(super) struct Vpp {
    sockets: Sockets,
    control: PathBuf,
    // Dropped in this order: the program before its files. Then the stack has the ports again.
    process: Process,
    _segments: Segments,
    directory: Directory,
    ports: Ports,
    _deaf: Option<DeafStack>,
}

impl Vpp {
    pub(super) fn start(testbed: &Testbed, sockets: Sockets) -> Result<Self> {
        let program = given_or_on_path(VARIABLE, "vpp")?;
        let control = program.with_file_name("vppctl");
        ensure!(control.is_file(), "there is no {}, by which it is set up", control.display());
        // Setting the ports' MAC addresses makes Linux forget its neighbours.
        let (neighbours, routes) = (neighbours(testbed)?, routes(testbed)?);
        enough_memory(routes.len())?;
        let deaf = (sockets == Sockets::Packet).then(|| DeafStack::new(testbed)).transpose()?;
        let ports = Ports::new(testbed)?;
        let directory = Directory::create(testbed, "vpp")?;
        let segments = Segments::new(testbed);
        let configuration = directory.file("startup.conf");
        std::fs::write(&configuration, startup(testbed, &directory, &segments, routes.len()))?;
        let mut command = testbed.box_namespace.command(&program);
        // Without its dispatcher libxdp attaches the program itself, and leaves nothing in the BPF file system.
        command.arg("-c").arg(configuration).env("LIBXDP_SKIP_DISPATCHER", "1");
        let process = Process::start(command, &directory.file("vpp.log"))?;
        let mut vpp = Self { sockets, control, process, _segments: segments, directory, ports, _deaf: deaf };
        vpp.configure(&neighbours, &routes)?;
        Ok(vpp)
    }

    fn configure(&mut self, neighbours: &[String], routes: &[String]) -> Result<()> {
        let (control, directory) = (&self.control, &self.directory);
        let answers = |_: &Process| {
            directory.file("cli.sock").exists() && ask(control, directory, "show version").is_ok()
        };
        self.process.wait_until(START_LIMIT, answers)?;
        for (number, port) in [PORT_IN, PORT_OUT].into_iter().enumerate() {
            interface(self.sockets, number as u8, port).iter().try_for_each(|command| self.tell(command))?;
        }
        neighbours.iter().try_for_each(|command| self.tell(command))?;
        for some in routes.chunks(ROUTES) {
            let file = self.directory.file("routes");
            std::fs::write(&file, some.join("\n") + "\n")?;
            self.tell(&format!("exec {}", file.display())).context("VPP refuses a route")?;
        }
        self.process.wait_until(START_LIMIT, |process| process.polls(THREAD))
    }

    /// Runs a command. A command that works prints nothing, except the name of a new interface.
    fn tell(&self, command: &str) -> Result<()> {
        let answer = ask(&self.control, &self.directory, command)?;
        let answer = answer.trim();
        let fine = answer.is_empty() || [PORT_IN, PORT_OUT].iter().any(|port| name(port) == answer);
        ensure!(fine, "vpp: {command}: {answer}\n{}", self.process.last_lines());
        Ok(())
    }
}

/// A route takes about half a kilobyte. Vectors that grow exist twice for a moment.
fn enough_memory(routes: usize) -> Result<()> {
    let needed_kb = 256 * 1024 + routes as u64;
    let information = std::fs::read_to_string("/proc/meminfo")?;
    let available = information.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let available = available.and_then(|value| value.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    let available_kb = available.context("/proc/meminfo has no MemAvailable")?;
    ensure!(
        available_kb >= needed_kb,
        "it needs {} MiB of memory with {routes} routes, and {} MiB are available",
        needed_kb / 1024,
        available_kb / 1024
    );
    Ok(())
}

fn ask(control: &Path, directory: &Directory, question: &str) -> Result<String> {
    command::run(Command::new(control).arg("-s").arg(directory.file("cli.sock")).arg(question))
}

/// Its shared memory for clients, of which there are none. A killed VPP leaves it behind. Dropping this removes it.
struct Segments {
    prefix: String,
}

impl Segments {
    fn new(testbed: &Testbed) -> Self {
        // `namespace::clean_stale` knows the name.
        Self { prefix: format!("millrace-{}", testbed.name) }
    }
}

impl Drop for Segments {
    fn drop(&mut self) {
        for name in ["global_vm", "vpe-api"] {
            // The file is missing if VPP ended before it made it.
            let _ = std::fs::remove_file(format!("/dev/shm/{}-{name}", self.prefix));
        }
    }
}

/// See <https://s3-docs.fd.io/vpp/26.02/configuration/reference.html>. By default VPP has the machine set huge pages
/// aside for its packets, and does not give them back (vppinfra's `clib_sysfs_prealloc_hugepages`). Heap and statistics
/// (two counters for each route) take memory only as they grow.
fn startup(testbed: &Testbed, directory: &Directory, segments: &Segments, routes: usize) -> String {
    let (heap_mb, statistics_mb) = (1024 + routes / 1000, 64 + routes / 5000);
    format!(
        "unix {{ nodaemon nosyslog nocolor runtime-dir {} cli-listen {} }}\n\
         cpu {{ main-core {} }}\n\
         buffers {{ page-size default }}\n\
         api-segment {{ prefix {} }}\n\
         memory {{ main-heap-size {heap_mb}M }}\n\
         statseg {{ size {statistics_mb}M }}\n\
         plugins {{ plugin default {{ disable }} plugin af_packet_plugin.so {{ enable }} \
         plugin af_xdp_plugin.so {{ enable }} }}\n",
        directory.file("").display(),
        directory.file("cli.sock").display(),
        testbed.topology.cores.router[0],
        segments.prefix
    )
}

/// VPP's name of a port.
fn name(port: &str) -> String {
    format!("host-{port}")
}

fn interface(sockets: Sockets, number: u8, port: &str) -> Vec<String> {
    let (name, mac) = (name(port), mac_text(router_mac(number, 0, 0)));
    let create = match sockets {
        Sockets::AfXdp => {
            format!(
                "create interface af_xdp host-if {port} name {name} rx-queue-size 2048 tx-queue-size 2048"
            )
        }
        // Version 2 of the ring hands over packet by packet; version 3 waits until 64 KiB are full, or 1 ms. Ring
        // frames have room for a packet of the port, instead of 64 KiB each.
        Sockets::Packet => format!("create host-interface v2 name {port} rx-size 2048 tx-size 2048"),
    };
    vec![
        create,
        format!("set interface mac address {name} {mac}"),
        format!("set interface ip address {name} {}/{}", router4(number, 0, 0), length4(0)),
        format!("set interface ip address {name} {}/64", router6(number, 0, 0)),
        format!("set interface rx-mode {name} polling"),
        format!("set interface state {name} up"),
    ]
}

fn neighbours(testbed: &Testbed) -> Result<Vec<String>> {
    let shown = command::ip(&format!("-netns {} neigh show nud permanent", testbed.box_namespace.name()))?;
    let neighbour = |line: &str| match line.split_whitespace().collect::<Vec<_>>()[..] {
        [address, "dev", port, "lladdr", mac, ..] => {
            Some(format!("set ip neighbor {} {address} {mac} static", name(port)))
        }
        _ => None,
    };
    Ok(shown.lines().filter_map(neighbour).collect())
}

/// Routes through next hops. The networks on the ports come with the addresses.
fn routes(testbed: &Testbed) -> Result<Vec<String>> {
    let mut routes = Vec::new();
    for (family, bits) in [("-4", 32), ("-6", 128)] {
        let shown = command::ip(&format!("-netns {} {family} route show", testbed.box_namespace.name()))?;
        routes.extend(shown.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            let prefix = words.next()?;
            let (Some("via"), next_hop, Some("dev")) = (words.next(), words.next()?, words.next()) else {
                return None;
            };
            let length = if prefix.contains('/') { String::new() } else { format!("/{bits}") };
            Some(format!("ip route add {prefix}{length} via {next_hop} {}", name(words.next()?)))
        }));
    }
    Ok(routes)
}

impl Subject for Vpp {
    fn name(&self) -> &'static str {
        match self.sockets {
            Sockets::AfXdp => "vpp-afxdp",
            Sockets::Packet => "vpp-packet",
        }
    }

    fn threads(&self) -> Vec<i32> {
        self.process.threads(THREAD)
    }

    fn programs(&self) -> Vec<Running> {
        vec![self.process.running()]
    }

    fn fast_path_packets(&self) -> Result<Option<u64>> {
        match self.sockets {
            Sockets::AfXdp => self.ports.redirected().map(Some),
            Sockets::Packet => Ok(None),
        }
    }
}
