//! V's experiment on two cores: a server of virtual machines behind a VXLAN tunnel, and flows to the machines. Each
//! frame from the tunnel is work for the core that receives it. The experiment compares ways to choose this core.
//!
//! ```text
//!  gen: eth0 ──veth── eth1 :box: vx0 ── br0 ── vm1, vm2 ... ──veth── eth0 :vm1, vm2 ...
//!  sender                  XDP    decrypt                              machine
//! ```
//!
//! | file | holds |
//! |---|---|
//! | [`sender`] | flows, and the frames in them |
//! | [`decrypt`] | the heavy part of receiving: AES-256 by the kernel's own cipher |
//! | [`machine`] | virtual machines |
//! | this file | the server, its steering, and one measurement |
//!
//! The core that a packet was steered to does everything between the port and a machine's socket. The thread is the
//! port's NAPI thread, the kernel's backlog where Linux steers (RPS), or a CPU map's thread where Millrace steers. All
//! of them run at normal priorities, so they share a core with a machine that computes. The softirqs of 2014 went first
//! there.
//!
//! Sender and server share two cores. The sender goes first on [`FREE`], takes the share `sender_cpu` of it, and sleeps
//! in between.

pub mod decrypt;
pub mod machine;
pub mod sender;

use std::{process::Command, time::Duration};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use self::{
    decrypt::Decrypt,
    machine::{Done, Guest, Machine},
    sender::{Flow, Sender, Sent, VNI, VXLAN_PORT, machine_ip, machine_mac},
};
use crate::{
    addresses::{self, mac_text},
    command, cpu,
    namespace::{Namespace, unique_run_name},
    netlink,
    subject::{Launch, Millrace},
    sys,
};

/// The core of the sender, otherwise free.
pub const FREE: usize = 0;
/// The core of a machine that computes, and of the port's queue where all flows meet.
pub const BUSY: usize = 1;

const PORT: &str = "eth1";
const SERVER: std::net::Ipv4Addr = addresses::router4(0, 0, 0);
/// Pause between two measurements, in which queues run empty and earlier loads are forgotten.
const PAUSE: Duration = Duration::from_millis(300);
/// Additional pause after a change of the steering.
const SETTLE: Duration = Duration::from_millis(300);

/// How the core that receives a packet is chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Steering {
    /// No choice: the core of the port's queue (V's `default`).
    Queue,
    /// Linux chooses between both cores by a hash of outer addresses and ports: receive packet steering, on which V is
    /// built, in place of a NIC's `rss`.
    Hash,
    /// Millrace's flow rules choose. One word for each machine, from the first on: `0`, `choose`, `choose_first`.
    Rules(Vec<String>),
}

/// The server and its machines. Dropping it removes them.
pub struct Bed {
    // Dropped in this order.
    daemon: Option<Millrace>,
    steered: Option<(Steering, usize)>,
    decrypt: Decrypt,
    machines: Vec<Namespace>,
    host: Namespace,
    server: Namespace,
    name: String,
}

/// Results of a window, for all cores and machines.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SteeringOutcome {
    /// Machines, from the first on.
    pub machines: Vec<SeenMachine>,
    /// Share of due packets that the sender had no time for.
    pub skipped: f64,
    /// Share of a core that the sender took.
    pub sender_cpu: f64,
}

/// Results for a machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SeenMachine {
    /// Packets a second that left the sender.
    pub sent_pps: f64,
    /// Packets a second that were due. Where receiving goes before the sender on its core, as softirqs do, the sender
    /// has no time for some of them. A sender on a machine of its own would have sent them.
    pub due_pps: f64,
    /// Packets a second that its program received.
    pub received_pps: f64,
    /// Share of due packets that were lost.
    pub loss: f64,
    /// Payload that arrived, Mbit/s.
    pub mbps: f64,
    /// Units computed a second.
    pub units_per_s: f64,
    /// Packets a second received by each core.
    pub by_core_pps: Vec<f64>,
}

impl Bed {
    /// Builds it with this many machines.
    pub fn new(machines: u8) -> Result<Self> {
        ensure!(sys::is_root(), "building a testbed needs root");
        let cores = cpu::online()?;
        ensure!(cores > BUSY, "flows to virtual machines need two cores; this machine has {cores}");
        // Millrace takes a process that is pinned for a machine.
        sys::set_affinity(0, &[])?;
        let name = unique_run_name();
        let create = |place: &str| Namespace::create(format!("{name}-{place}"));
        let (host, server) = (create("gen")?, create("box")?);
        let numbers = 1..=machines;
        let all = numbers.map(|number| create(&format!("vm{number}"))).collect::<Result<Vec<_>>>()?;
        connect(&host, &server)?;
        for (number, machine) in (1..).zip(&all) {
            plug(&server, machine, number)?;
        }
        let decrypt = Decrypt::on(&server, "vx0")?;
        Ok(Self { daemon: None, steered: None, decrypt, machines: all, host, server, name })
    }

    /// Steers in this way from now on. All flows meet on `queue_core`.
    pub fn steer(&mut self, steering: &Steering, queue_core: usize) -> Result<()> {
        let asked = Some((steering.clone(), queue_core));
        if self.steered != asked {
            self.steered = None;
            self.change(steering, queue_core)?;
            self.steered = asked;
            sys::sleep(SETTLE)?;
        }
        Ok(sys::sleep(PAUSE)?)
    }

    fn change(&mut self, steering: &Steering, queue_core: usize) -> Result<()> {
        let both = format!("{:x}", 1 << FREE | 1 << BUSY);
        let cores = if *steering == Steering::Hash { &both } else { "0" };
        self.write_sys(&format!("class/net/{PORT}/queues/rx-0/rps_cpus"), cores)?;
        if let Steering::Rules(cores) = steering {
            if self.daemon.is_none() {
                self.daemon = Some(self.start_daemon()?);
            }
            let daemon = self.daemon.as_ref().context("started")?;
            daemon.set_flows(&rules(cores))?;
        } else {
            self.daemon = None;
        }
        // Attaching a program makes new threads.
        let threads = self.server.enter(|| netlink::napi_threads(sys::interface_index(PORT)?))?;
        ensure!(!threads.is_empty(), "{PORT} has no NAPI thread");
        Ok(threads.iter().try_for_each(|id| sys::set_affinity(*id, &[queue_core]))?)
    }

    /// Sends flows to machines, and measures in `window`, after a time for settling.
    pub fn measure(
        &self,
        guests: &[Guest],
        flows: &[Flow],
        warm_up: Duration,
        window: Duration,
    ) -> Result<SteeringOutcome> {
        let start = |(namespace, guest): (&Namespace, &Guest)| Machine::start(namespace, *guest);
        let machines = self.machines.iter().zip(guests).map(start).collect::<Result<Vec<_>>>()?;
        if guests.iter().any(|guest| *guest != Guest::Idle) {
            self.workloads_are_known(guests)?;
        }
        let sender = Sender::start(&self.host, SERVER, flows, FREE)?;
        sys::sleep(warm_up)?;
        let before = self.moment(&machines, &sender)?;
        sys::sleep(window)?;
        let after = self.moment(&machines, &sender)?;
        Ok(after.since(&before, flows))
    }

    /// Units a second that a busy machine computes when nothing comes.
    pub fn alone(&self, core: usize, window: Duration) -> Result<f64> {
        let machine = Machine::start(&self.machines[0], Guest::Busy(core))?;
        sys::sleep(Duration::from_millis(200))?;
        let (before, started) = (machine.done().units, std::time::Instant::now());
        sys::sleep(window)?;
        Ok((machine.done().units - before) as f64 / started.elapsed().as_secs_f64())
    }

    fn start_daemon(&self) -> Result<Millrace> {
        let launch = Launch {
            namespace: &self.server,
            instance: &self.name,
            ports: vec![PORT],
            configuration: format!(
                "[cores]\npolicy = \"off\"\nallowed = \"{FREE},{BUSY}\"\n[flows]\nrules = 1000\n"
            ),
            controllers: false,
            own_session: false,
        };
        Millrace::launch(&launch, 1)
    }

    /// Waits until Millrace has discovered the pinned processes.
    fn workloads_are_known(&self, guests: &[Guest]) -> Result<()> {
        let Some(daemon) = &self.daemon else { return Ok(()) };
        let end = std::time::Instant::now() + Duration::from_secs(10);
        loop {
            let cores = daemon.ask(&["cores"])?;
            let pinned = |core: usize| {
                cores["cores"][core]["workloads"].as_array().is_some_and(|list| !list.is_empty())
            };
            if guests.iter().all(|guest| !matches!(guest, Guest::Busy(core) if !pinned(*core))) {
                return Ok(());
            }
            ensure!(
                std::time::Instant::now() < end,
                "millrace does not discover the pinned machines: {cores}"
            );
            sys::sleep(Duration::from_millis(100))?;
        }
    }

    fn moment(&self, machines: &[Machine], sender: &Sender) -> Result<Moment> {
        let numbers = 1..=machines.len() as u8;
        Ok(Moment {
            at: std::time::Instant::now(),
            done: machines.iter().map(Machine::done).collect(),
            by_core: numbers.map(|number| self.decrypt.by_core(number)).collect::<Result<_>>()?,
            sent: sender.sent()?,
            sender_ns: sender.cpu_ns()?,
        })
    }

    /// Writes to /sys of the namespace, which `ip netns exec` mounts.
    fn write_sys(&self, path: &str, value: &str) -> Result<()> {
        let script = format!("echo {value} > /sys/{path}");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.server.name(), "sh", "-c", &script]);
        command::run(&mut command).map(drop)
    }
}

struct Moment {
    at: std::time::Instant,
    done: Vec<Done>,
    by_core: Vec<Vec<u64>>,
    sent: Vec<Sent>,
    sender_ns: u64,
}

impl Moment {
    fn since(&self, before: &Self, flows: &[Flow]) -> SteeringOutcome {
        let seconds = (self.at - before.at).as_secs_f64();
        let rate = |now: u64, before: u64| (now - before) as f64 / seconds;
        let machine = |place: usize| {
            let (now, then) = (self.done[place], before.done[place]);
            let by_core_pps =
                self.by_core[place].iter().zip(&before.by_core[place]).map(|(now, then)| rate(*now, *then));
            let mut seen = SeenMachine {
                received_pps: rate(now.packets, then.packets),
                units_per_s: rate(now.units, then.units),
                by_core_pps: by_core_pps.collect(),
                ..SeenMachine::default()
            };
            let number = place as u8 + 1;
            for (at, flow) in flows.iter().enumerate().filter(|(_, flow)| flow.machine == number) {
                let (sent, earlier) = (self.sent[at], before.sent[at]);
                seen.sent_pps += rate(sent.packets, earlier.packets);
                seen.due_pps += rate(sent.packets + sent.skipped, earlier.packets + earlier.skipped);
                // A machine's flows have the same payload.
                seen.mbps = seen.received_pps * f64::from(flow.payload_bytes) * 8e-6;
            }
            // Packets sent before the window that arrive in it would make the loss slightly negative.
            seen.loss = (1.0 - seen.received_pps / seen.due_pps).max(0.0);
            seen
        };
        let sum = |of: fn(&Sent) -> u64| {
            self.sent.iter().map(of).sum::<u64>() - before.sent.iter().map(of).sum::<u64>()
        };
        let (sent, skipped) = (sum(|sent| sent.packets), sum(|sent| sent.skipped));
        SteeringOutcome {
            machines: (0..self.done.len()).map(machine).collect(),
            skipped: skipped as f64 / (sent + skipped).max(1) as f64,
            sender_cpu: (self.sender_ns - before.sender_ns) as f64 * 1e-9 / seconds,
        }
    }
}

/// A rule for each machine, which matches the frame inside the tunnel (V1).
fn rules(cores: &[String]) -> String {
    let rule = |(number, core): (u8, &String)| {
        let mac = mac_text(machine_mac(number));
        format!("priority=100,udp,tp_dst={VXLAN_PORT},inner_eth_dst={mac},actions=set_core:{core},local\n")
    };
    let others = "priority=1,actions=normal\n".to_owned();
    (1..).zip(cores).map(rule).chain([others]).collect()
}

/// Makes the cable between the servers, the end of the tunnel, and the bridge behind it.
fn connect(host: &Namespace, server: &Namespace) -> Result<()> {
    let (own, peer) = (mac_text(addresses::router_mac(0, 0, 0)), mac_text(addresses::nexthop_mac_of(0, 1)));
    server.sysctl(&[
        ("net/ipv4/ip_forward", "1"),
        ("net/ipv6/conf/all/forwarding", "1"),
        ("net/ipv4/conf/all/rp_filter", "0"),
    ])?;
    // Kernels whose bridges do not ask the firewall have no such setting.
    let _ = server.sysctl(&[("net/bridge/bridge-nf-call-iptables", "0")]);
    server.ip_batch(&format!(
        "link add {PORT} address {own} type veth peer name eth0 address {peer} netns {}\n\
         link set {PORT} up\naddr add {SERVER}/16 dev {PORT}\n\
         link add br0 type bridge mcast_snooping 0\nlink set br0 up\n\
         link add vx0 type vxlan id {VNI} local {SERVER} dev {PORT} dstport {VXLAN_PORT} nolearning\n\
         link set vx0 master br0 up\n",
        host.name()
    ))?;
    host.ip_batch(&format!(
        "link set eth0 up\naddr add {}/16 dev eth0\nneigh replace {SERVER} lladdr {own} nud permanent dev eth0\n",
        addresses::nexthop4_of(0, 0, 1)
    ))?;
    command::run(
        host.command("ethtool")
            .args("-K eth0 tx off tso off txvlan off tx-vlan-stag-hw-insert off gro on".split(' ')),
    )?;
    command::run(server.command("ethtool").args(["-K", PORT, "gro", "on"]))?;
    let script = format!("echo 1 > /sys/class/net/{PORT}/threaded");
    command::run(Command::new("ip").args(["netns", "exec", server.name(), "sh", "-c", &script])).map(drop)
}

/// Plugs a machine into the bridge.
fn plug(server: &Namespace, machine: &Namespace, number: u8) -> Result<()> {
    let (mac, port) = (mac_text(machine_mac(number)), format!("vm{number}"));
    server.ip_batch(&format!(
        "link add {port} type veth peer name eth0 address {mac} netns {}\nlink set {port} master br0 up\n",
        machine.name()
    ))?;
    machine.ip_batch(&format!("link set eth0 up\naddr add {}/24 dev eth0\n", machine_ip(number)))?;
    let entry = ["fdb", "replace", &mac, "dev", &port, "master", "static"];
    command::run(server.command("bridge").args(entry)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_machine_has_a_rule_and_the_rest_is_routed() {
        let text = rules(&["0".into(), "choose".into()]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].ends_with("inner_eth_dst=02:76:6d:00:00:01,actions=set_core:0,local"));
        assert!(lines[1].ends_with("inner_eth_dst=02:76:6d:00:00:02,actions=set_core:choose,local"));
    }

    #[test]
    fn an_outcome_is_the_difference_of_two_moments() {
        let at = std::time::Instant::now();
        let moment = |seconds: u64, times: u64| Moment {
            at: at + Duration::from_secs(seconds),
            done: vec![Done { packets: 90 * times, units: 7 * times }, Done::default()],
            by_core: vec![vec![30 * times, 70 * times], vec![0, 0]],
            sent: vec![Sent { packets: 100 * times, skipped: 25 * times }],
            sender_ns: 500_000_000 * times,
        };
        let flow = Flow { machine: 1, source_port: 1, pps: 1.0, payload_bytes: 1000, begins: Duration::ZERO };
        let seen = moment(4, 5).since(&moment(2, 3), &[flow]);
        let one = &seen.machines[0];
        assert_eq!((one.sent_pps, one.due_pps, one.received_pps, one.units_per_s), (100.0, 125.0, 90.0, 7.0));
        assert_eq!(one.by_core_pps, [30.0, 70.0]);
        assert!((one.loss - 0.28).abs() < 1e-9 && (one.mbps - 0.72).abs() < 1e-9, "{one:?}");
        assert_eq!((seen.skipped, seen.sender_cpu), (0.2, 0.5));
        assert_eq!(seen.machines[1].received_pps, 0.0);
    }
}
