//! A box between wires: three ports, a host router, and a tenant router of macvlans in an unnamed namespace.
//!
//! The outside ends of the veths are in the host's namespace, without addresses or IP: they are wires.

use crate::{
    case::Step,
    common::wire::Wire,
    sides::{PORTS, Sent, Side, port_mtu, sides},
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{Seek as _, Write as _},
    net::{Ipv4Addr, Ipv6Addr},
    os::{fd::AsFd, unix::process::CommandExt as _},
    process::{Child, Command},
    thread,
    time::{Duration, Instant},
};

/// How often each frame came out of each port.
pub type FrameCounts = BTreeMap<(usize, Vec<u8>), usize>;

/// Frames sent in one go: fewer than a ring holds.
const BURST: usize = 32;
/// If no frame comes out for this long, all have come out.
const QUIET: Duration = Duration::from_millis(60);

/// A network namespace, held open.
pub struct Namespace(File);

impl Namespace {
    /// The namespace of the calling thread.
    pub fn current() -> Namespace {
        Namespace(File::open("/proc/thread-self/ns/net").unwrap())
    }

    fn of_process(pid: u32) -> Namespace {
        Namespace(File::open(format!("/proc/{pid}/ns/net")).unwrap())
    }

    /// Moves the calling thread into it.
    pub fn enter(&self) {
        move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    }
}

/// A process that holds the tenant's namespace open.
struct Tenant(Child);

impl Tenant {
    fn new() -> Tenant {
        let mut command = Command::new("unshare");
        command.args(["-n", "sleep", "infinity"]);
        let child = ends_with_us(&mut command).spawn().expect("unshare");
        let ours = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        let until = Instant::now() + Duration::from_secs(5);
        while std::fs::read_link(format!("/proc/{}/ns/net", child.id())).is_ok_and(|n| n == ours) {
            assert!(Instant::now() < until, "unshare made no namespace within 5 s");
            thread::sleep(Duration::from_millis(2));
        }
        Tenant(child)
    }
}

/// Makes the process end with the calling thread, even if that is killed.
pub fn ends_with_us(command: &mut Command) -> &mut Command {
    // SAFETY: prctl is a plain system call, which may be made between fork and exec.
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        })
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub struct Bed {
    host: Namespace,
    tenant: Namespace,
    process: Tenant,
    wires: Vec<Wire>,
}

impl Bed {
    /// Makes a bed in new namespaces. Afterwards the calling thread is in the host's.
    pub fn build() -> Bed {
        // SAFETY: moves only this thread into a new network namespace.
        let result = unsafe { libc::unshare(libc::CLONE_NEWNET) };
        assert_eq!(result, 0, "unshare: {}", std::io::Error::last_os_error());
        let process = Tenant::new();
        let tenant = Namespace::of_process(process.0.id());
        let mut bed = Bed { host: Namespace::current(), tenant, process, wires: Vec::new() };
        let script: Vec<Step> = [loopbacks(), (0..PORTS).flat_map(port).collect()].concat();
        bed.must(&script);
        bed.wires = (0..PORTS).map(|port| Wire::open(&format!("o{port}"))).collect();
        let script: Vec<Step> = [sides().iter().flat_map(side).collect(), settings()].concat();
        bed.must(&script);
        bed
    }

    pub fn enter(&self) {
        self.host.enter();
    }

    pub fn tenant_pid(&self) -> u32 {
        self.process.0.id()
    }

    /// Runs a command line, split at spaces. `neighbours DEVICE` makes the neighbours of a side again.
    ///
    /// The error output of a command that fails.
    pub fn run(&self, tenant: bool, line: &str) -> Result<(), String> {
        if tenant {
            self.tenant.enter()
        } else {
            self.host.enter()
        }
        let result = match line.strip_prefix("neighbours ") {
            Some(device) => self.make_neighbours(device),
            None => self.command(line, ""),
        };
        self.host.enter();
        result
    }

    /// Runs the commands of these steps. Commands of `ip` run in batches, which is faster.
    ///
    /// The error output of all commands that fail.
    pub fn run_all(&self, steps: &[Step]) -> Result<(), String> {
        let mut refused = Vec::new();
        let alike =
            |a: &Step, b: &Step| batched(a).is_some() && batched(a).map(|a| a.0) == batched(b).map(|b| b.0);
        for steps in steps.chunk_by(alike) {
            let result = match batched(&steps[0]) {
                Some(((tenant, option), _)) => {
                    let lines: Vec<_> = steps.iter().filter_map(|step| Some(batched(step)?.1)).collect();
                    self.batch(tenant, option, &lines.join("\n"))
                }
                None => steps[0].command().map_or(Ok(()), |(tenant, line)| self.run(tenant, line)),
            };
            refused.extend(result.err());
        }
        if refused.is_empty() { Ok(()) } else { Err(refused.join("\n")) }
    }

    fn batch(&self, tenant: bool, option: &str, lines: &str) -> Result<(), String> {
        if tenant {
            self.tenant.enter()
        } else {
            self.host.enter()
        }
        let result = self.command(&format!("ip {option} -force -batch -"), &format!("{lines}\n"));
        self.host.enter();
        result
    }

    /// Runs a command in the calling thread's namespace.
    fn command(&self, line: &str, input: &str) -> Result<(), String> {
        let [line, input] = [line, input].map(|text| text.replace("TENANT", &self.tenant_pid().to_string()));
        let mut words = line.split_whitespace();
        let mut stdin = tempfile::tempfile().unwrap();
        stdin.write_all(input.as_bytes()).and_then(|()| stdin.rewind()).unwrap();
        let output = Command::new(words.next().unwrap_or("true")).args(words).stdin(stdin).output();
        match output {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(format!("{line}: {}", String::from_utf8_lossy(&output.stderr).trim())),
            Err(e) => Err(format!("{line}: {e}")),
        }
    }

    fn make_neighbours(&self, device: &str) -> Result<(), String> {
        let sides = sides();
        let side = sides.iter().find(|side| side.device() == device).ok_or("no such side")?;
        self.command("ip -force -batch -", &side.neighbours())
    }

    fn must(&self, steps: &[Step]) {
        self.run_all(steps).unwrap();
    }

    /// The IPv6 anycast addresses of all devices, as device and address. The kernel joins one when it begins
    /// to use an address of a router.
    pub fn anycast_addresses(&self, tenant: bool) -> BTreeSet<String> {
        if tenant {
            self.tenant.enter()
        } else {
            self.host.enter()
        }
        let all = std::fs::read_to_string("/proc/thread-self/net/anycast6").unwrap_or_default();
        self.host.enter();
        let without_index =
            |line: &str| line.split_whitespace().skip(1).take(2).collect::<Vec<_>>().join(" ");
        all.lines().map(without_index).collect()
    }

    /// Makes Linux forget routes that it cached. A nexthop object caches the metrics of the route that first
    /// used it, and Millrace may forward the packets that would have been first.
    pub fn forget_routes(&self) {
        for namespace in [&self.tenant, &self.host] {
            namespace.enter();
            for family in ["ipv4", "ipv6"] {
                let _ = std::fs::write(format!("/proc/sys/net/{family}/route/flush"), "1");
            }
        }
    }

    /// The kernel's counters of both namespaces (`/proc/net/snmp`, `snmp6`), by namespace and name.
    pub fn counters(&self) -> BTreeMap<String, u64> {
        let mut counters = BTreeMap::new();
        for (name, namespace) in [("tenant", &self.tenant), ("host", &self.host)] {
            namespace.enter();
            let read =
                |file| std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default();
            let mut add = |counter: &str, value: &str| {
                counters.extend(value.parse().ok().map(|value| (format!("{name} {counter}"), value)));
            };
            read("snmp6")
                .lines()
                .filter_map(|line| line.split_once(char::is_whitespace))
                .for_each(|(counter, value)| add(counter, value.trim()));
            let lines = read("snmp");
            let lines: Vec<&str> = lines.lines().collect();
            for pair in lines.chunks_exact(2) {
                let protocol = pair[0].split(':').next().unwrap();
                let names = pair[0].split(' ').zip(pair[1].split(' ')).skip(1);
                names.for_each(|(counter, value)| add(&format!("{protocol}{counter}"), value));
            }
        }
        counters
    }

    /// Sends frames, without looking at what comes out.
    pub fn send(&self, frames: &[Sent]) {
        frames.iter().for_each(|(port, frame)| self.wires[*port].send(frame));
    }

    /// Sends everything and counts what comes out.
    pub fn observe(&self, frames: &[Sent]) -> FrameCounts {
        let mut seen = FrameCounts::new();
        // These belong to frames sent before.
        self.collect(&mut FrameCounts::new(), Duration::from_millis(2));
        for burst in frames.chunks(BURST) {
            self.send(burst);
            self.collect(&mut seen, Duration::from_millis(1));
        }
        self.collect(&mut seen, QUIET);
        seen
    }

    /// Counts what comes out, until nothing has come out for `quiet_for`.
    fn collect(&self, seen: &mut FrameCounts, quiet_for: Duration) {
        let mut until = Instant::now() + quiet_for;
        while Instant::now() < until {
            for (port, wire) in self.wires.iter().enumerate() {
                for frame in std::iter::from_fn(|| wire.receive()).filter_map(normalised) {
                    *seen.entry((port, frame)).or_insert(0) += 1;
                    until = Instant::now() + quiet_for;
                }
            }
            thread::sleep(Duration::from_micros(500));
        }
    }
}

/// A command of `ip` that may be part of a batch: whether it runs in the tenant, its family option, and the
/// rest of its words.
fn batched(step: &Step) -> Option<((bool, &str), &str)> {
    let (tenant, line) = step.command()?;
    let words = line.strip_prefix("ip ")?;
    let option = words.split(' ').next().filter(|word| word.starts_with('-')).unwrap_or("");
    let known = ["", "-4", "-6"].contains(&option);
    known.then(|| ((tenant, option), words.strip_prefix(option).unwrap_or(words).trim_start()))
}

fn loopbacks() -> Vec<Step> {
    let lines =
        ["ip link set lo up", "sysctl -qw net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0"];
    let of = |tenant| lines.map(|line| Step::run(tenant, line.into()));
    [of(false), of(true)].concat()
}

/// All MACs are set when the devices are made, because link-local addresses follow from them.
fn port(i: usize) -> Vec<Step> {
    let (name, outside, mac, mtu) = (format!("p{i}"), format!("o{i}"), sides()[i].router_mac, port_mtu(i));
    let offloads = "tx off tso off gso off gro off txvlan off tx-vlan-stag-hw-insert off";
    let lines = [
        format!("ip link add {name} address {mac} type veth peer name {outside} address 02:ee:00:00:00:0{i}"),
        format!("ethtool -K {name} {offloads}"),
        // Redirecting into a veth needs NAPI on its peer.
        format!("ethtool -K {outside} {} gro on", offloads.replace("gro off ", "")),
        format!("sysctl -qw net.ipv6.conf.{outside}.disable_ipv6=1"),
        format!("ip link set {outside} mtu 9000 up arp off"),
        format!("ip link set {name} mtu {mtu} up"),
    ];
    lines.map(Step::Host).to_vec()
}

fn side(side: &Side) -> Vec<Step> {
    let (device, port, mac) = (side.device(), side.port, side.router_mac);
    let mut steps = Vec::new();
    if side.tenant {
        let device = format!("{device} link p{port} address {mac} netns TENANT type macvlan mode bridge");
        steps.push(Step::Host(format!("ip link add {device}")));
    }
    let mut lines = vec![format!("ip link set {device} up")];
    lines.extend(side.addresses());
    lines.push(format!("neighbours {device}"));
    steps.extend(lines.into_iter().map(|line| Step::run(side.tenant, line)));
    steps
}

/// Turns on forwarding in Linux, and removes the limits of its ICMP errors.
fn settings() -> Vec<Step> {
    let line = "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv4.icmp_ratemask=0 \
                net.ipv6.icmp.ratelimit=0 net.ipv4.icmp_echo_ignore_broadcasts=1";
    // On older kernels these two belong to the machine's first namespace only, and stay as they are.
    let newer = "sysctl -qew net.ipv4.icmp_msgs_per_sec=1000000 net.ipv4.icmp_msgs_burst=100000";
    let of = |tenant| [line, newer].map(|line| Step::run(tenant, line.into()));
    [of(false), of(true)].concat()
}

/// A frame as it is compared, or `None` if it is not compared.
fn normalised(mut frame: Vec<u8>) -> Option<Vec<u8>> {
    let ip = 14;
    match frame.get(12..14)? {
        [0x08, 0x06] => return None,
        [0x08, 0x00] if frame.len() >= ip + 20 => {
            let source = Ipv4Addr::from(<[u8; 4]>::try_from(&frame[ip + 12..ip + 16]).unwrap());
            let behind = ip + usize::from(frame[ip] & 15) * 4;
            let icmp = (frame[ip + 9] == 1).then(|| frame.get(behind).zip(frame.get(behind + 1))).flatten();
            if matches!(icmp, Some((5, _) | (3, 0 | 1 | 13))) {
                return None;
            }
            if may_be_own(source) {
                frame[ip + 4..ip + 6].fill(0);
                frame[ip + 10..ip + 12].fill(0);
            }
        }
        [0x86, 0xdd] if frame.len() >= ip + 40 => {
            let source = Ipv6Addr::from(<[u8; 16]>::try_from(&frame[ip + 8..ip + 24]).unwrap());
            let icmp = (frame[ip + 6] == 58).then(|| frame.get(ip + 40).zip(frame.get(ip + 41))).flatten();
            // Neighbour discovery, multicast listeners, and errors about addresses that did not answer.
            let by_the_clock = matches!(icmp, Some((133..=137 | 143, _) | (1, 3)));
            if by_the_clock || frame[ip + 6] == 0 && source.is_unicast_link_local() {
                return None;
            }
        }
        _ => {}
    }
    Some(frame)
}

/// Whether it can be an address of the box, at first or after a change. The kernel numbers the box's own
/// packets.
fn may_be_own(source: Ipv4Addr) -> bool {
    matches!(source.octets(), [172, 16..20, ..] | [10, 0 | 1, _, 1..10] | [10, 0, 1, 128..192] | [10, 9, ..])
}

/// Ports and bytes of the frames whose counts differ.
pub fn differences(linux: &FrameCounts, millrace: &FrameCounts) -> BTreeSet<(usize, Vec<u8>)> {
    let keys = linux.keys().chain(millrace.keys());
    keys.filter(|key| linux.get(*key) != millrace.get(*key)).cloned().collect()
}
