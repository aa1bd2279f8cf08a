//! A router with three devices, and the daemon.
//!
//! ```text
//! lan 10.1.0.0/24 ── router ── wan 10.2.0.0/24 ── gateway .9 ── 10.9.0.0/16
//!                        └──── dmz 10.3.0.0/24 ── gateway .9 ── 10.6.0.0/16
//! ```
//! The networks of IPv6 are fd00:1::/64 and so on.

use super::common::{self, program::load_program, wire::Wire};
use router::linux::netlink::socket::set_option;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs::{self, File},
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd},
    process::{Child, Command, Output, Stdio, id},
    ptr,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

const MILLRACE: &str = env!("CARGO_BIN_EXE_millrace");
/// An emulated machine takes minutes to load programs.
const PATIENCE: Duration = Duration::from_secs(300);
/// The number of the next router of this process.
static MADE: AtomicU32 = AtomicU32::new(0);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The ports belong to the router.
    Host,
    /// Devices of a VLAN on the ports do.
    Vlan,
    /// Macvlans in a namespace do.
    Tenant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rules {
    /// A stateful filter and NAT.
    Nat,
    Filter,
    /// As `Nat`, and a rule adds established connections to a flow table. Millrace has its default configuration.
    FlowTable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Device {
    Lan,
    Wan,
    Dmz,
}

pub const DEVICES: [Device; 3] = [Device::Lan, Device::Wan, Device::Dmz];

/// The last numbers of the addresses of each network, the gateway to others among them. NAT uses those from 77 on.
pub const HOSTS: [u8; 8] = [2, 4, 5, 6, 77, 80, 81, 9];

impl Device {
    pub fn name(self) -> &'static str {
        ["lan", "wan", "dmz"][self as usize]
    }

    pub fn mtu(self) -> usize {
        [1500, 1400, 1450][self as usize]
    }

    fn mac(self) -> [u8; 6] {
        [2, 0, 0, 0, 0, 1 + self as u8]
    }

    fn vid(self) -> u16 {
        10 + self as u16
    }
}

/// All hosts behind a device have one MAC address.
fn host_mac(device: Device) -> [u8; 6] {
    [2, 0, 0, 0, 7, device as u8]
}

fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

pub struct Router {
    placement: Placement,
    rules: Rules,
    host: File,
    tenant: Option<String>,
    wires: Vec<Wire>,
    daemon: Option<Child>,
    instance: String,
    log: tempfile::NamedTempFile,
}

impl Router {
    /// In a new namespace, which the calling thread enters.
    pub fn new(placement: Placement, rules: Rules) -> Router {
        // SAFETY: moves only this thread into a new network namespace.
        let result = unsafe { libc::unshare(libc::CLONE_NEWNET) };
        assert_eq!(result, 0, "unshare: {}", std::io::Error::last_os_error());
        let name = format!("nat-{}-{}", id(), MADE.fetch_add(1, Relaxed));
        let tenant = (placement == Placement::Tenant).then(|| name.clone());
        tenant.iter().for_each(|name| _ = common::run(&format!("ip netns add {name}")));
        let mut router = Router {
            placement,
            rules,
            host: File::open("/proc/thread-self/ns/net").unwrap(),
            tenant,
            wires: Vec::new(),
            daemon: None,
            instance: name,
            log: tempfile::NamedTempFile::new().unwrap(),
        };
        common::run("ip link set lo up");
        DEVICES.iter().for_each(|device| router.make(*device));
        router.run(
            "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv4.conf.all.rp_filter=0 \
             net.ipv4.conf.all.send_redirects=0 \
             net.ipv4.icmp_ratemask=0 net.ipv6.icmp.ratelimit=0",
        );
        // Older kernels have these for the whole machine only.
        router.run("sysctl -qew net.ipv4.icmp_msgs_per_sec=1000000 net.ipv4.icmp_msgs_burst=100000");
        router.run("ip route add 10.6.0.0/16 via 10.3.0.9 dev dmz");
        router.run("ip route add fd00:6::/64 via fd00:3::9 dev dmz");
        router.run("ip route add 10.9.0.0/16 via 10.2.0.9 dev wan");
        router.run("ip route add fd00:9::/64 via fd00:2::9 dev wan");
        router.set_neighbours();
        router.set_rules();
        router
    }

    fn make(&mut self, device: Device) {
        let (port, outside) = (self.port(device), format!("q{}", device as usize));
        let (mac, mtu, number) = (mac_text(device.mac()), device.mtu(), device as usize + 1);
        let port_mac =
            if self.placement == Placement::Host { mac.clone() } else { format!("02:ee:00:00:00:0{number}") };
        let offloads = "tx off tso off gso off gro off txvlan off rxvlan off tx-vlan-stag-hw-insert off";
        self.enter();
        common::run(&format!("ip link add {port} address {port_mac} type veth peer name {outside}"));
        common::run(&format!("ethtool -K {port} {offloads}"));
        // Redirecting into a veth needs NAPI on its peer.
        common::run(&format!("ethtool -K {outside} {} gro on", offloads.replace("gro off ", "")));
        common::run(&format!("sysctl -qw net.ipv6.conf.{outside}.disable_ipv6=1"));
        if self.placement == Placement::Vlan {
            // It would send frames of its own, without a tag.
            common::run(&format!("sysctl -qw net.ipv6.conf.{port}.disable_ipv6=1"));
            // Otherwise only frames of a port with XDP have room for a tag. Without room, Linux cuts fragments at other places.
            common::run(&format!("ethtool -K {port} txvlan on"));
        }
        common::run(&format!("ip link set {outside} mtu 9000 up arp off"));
        common::run(&format!("ip link set {port} mtu {mtu} up"));
        self.wires.push(Wire::open(&outside).keep_tags());
        let name = device.name();
        match (&self.placement, &self.tenant) {
            (Placement::Vlan, _) => {
                let vid = device.vid();
                common::run(&format!("ip link add link {port} name {name} address {mac} type vlan id {vid}"));
            }
            (Placement::Tenant, Some(tenant)) => {
                let macvlan = format!("address {mac} netns {tenant} type macvlan mode bridge");
                common::run(&format!("ip link add link {port} name {name} {macvlan}"));
            }
            _ => (),
        }
        // Linux limits redirects by its clock.
        self.run(&format!(
            "sysctl -qw net.ipv4.conf.{name}.rp_filter=0 net.ipv4.conf.{name}.send_redirects=0"
        ));
        self.run(&format!("ip link set {name} mtu {mtu} up"));
        self.run(&format!("ip addr add 10.{number}.0.1/24 dev {name}"));
        self.run(&format!("ip addr add fd00:{number}::1/64 dev {name} nodad"));
    }

    /// The port of a device: the device itself, or what it is stacked on.
    fn port(&self, device: Device) -> String {
        match self.placement {
            Placement::Host => device.name().into(),
            _ => format!("p{}", device as usize),
        }
    }

    pub fn set_neighbours(&self) {
        self.run_all(&DEVICES.map(|device| neighbours(device, device.name())).concat());
    }

    /// Runs commands of `ip`, and goes on after errors.
    pub fn run_all(&self, commands: &[String]) {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), commands.join("\n")).unwrap();
        self.try_to_run(&format!("ip -force -batch {}", file.path().display()));
    }

    /// Sets the rules as they were at first.
    pub fn set_rules(&self) {
        let [lan, wan, dmz] = DEVICES.map(Device::name);
        let [table, add] = if self.rules == Rules::FlowTable {
            [flow_table(), "ct state established flow add @ft".into()]
        } else {
            [String::new(), String::new()]
        };
        let filter = format!(
            "flush ruleset
             table inet filter {{
                 {table}
                 chain forward {{
                     type filter hook forward priority 0; policy drop;
                     {add}
                     ct state established,related accept
                     ct status dnat accept
                     iifname {lan} accept
                 }}
             }}
             "
        );
        let nat = format!(
            "table inet nat {{
                 chain pre {{
                     type nat hook prerouting priority -100;
                     iifname {wan} meta l4proto {{ tcp, udp }} th dport 8080 dnat ip to 10.1.0.2:80
                     iifname {wan} meta l4proto {{ tcp, udp }} th dport 8080 dnat ip6 to [fd00:1::2]:80
                     iifname {lan} meta l4proto {{ tcp, udp }} th dport 8081 dnat ip to 10.3.0.2:81
                     iifname {lan} meta l4proto {{ tcp, udp }} th dport 8081 dnat ip6 to [fd00:3::2]:81
                     iifname {lan} meta l4proto {{ tcp, udp }} th dport 8082 dnat ip to 10.3.0.2:82
                     iifname {lan} meta l4proto {{ tcp, udp }} th dport 8082 dnat ip6 to [fd00:3::2]:82
                 }}
                 chain post {{
                     type nat hook postrouting priority 100;
                     ip saddr 10.1.0.6 accept
                     ip6 saddr fd00:1::6 accept
                     ip saddr 10.1.0.4 meta l4proto {{ tcp, udp }} snat ip to 10.2.0.77:5555
                     ip6 saddr fd00:1::4 meta l4proto {{ tcp, udp }} snat ip6 to [fd00:2::77]:5555
                     oifname {{ {wan}, {dmz} }} masquerade
                 }}
             }}"
        );
        self.nft(&if self.rules == Rules::Filter { filter } else { filter + &nat });
    }

    pub fn nft(&self, rules: &str) {
        self.try_nft(rules).unwrap();
    }

    /// # Errors
    /// The words of `nft`, which has refused the rules.
    pub fn try_nft(&self, rules: &str) -> Result<(), String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), rules).unwrap();
        let output = self.try_to_run(&format!("nft -f {}", file.path().display()));
        if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into()) }
    }

    /// Moves the calling thread into the namespace of the ports.
    fn enter(&self) {
        move_into_link_name_space(self.host.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    }

    /// Runs a command line in the router's namespace.
    pub fn run(&self, line: &str) -> String {
        let output = self.try_to_run(line);
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    pub fn try_to_run(&self, line: &str) -> Output {
        self.enter();
        let prefix = self.tenant.as_ref().map(|name| format!("ip netns exec {name} ")).unwrap_or_default();
        let line = prefix + line;
        let mut words = line.split_whitespace();
        Command::new(words.next().unwrap()).args(words).output().unwrap()
    }

    /// Sends an IP packet to the router by a device.
    pub fn send(&self, device: Device, packet: &[u8]) {
        let ether_type = if packet[0] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] };
        self.send_frame(device, device.mac(), ether_type, packet);
    }

    /// Asks by ARP for the router's address of a device. The answer comes out after all that earlier frames have caused.
    pub fn ask(&self, device: Device) {
        let question = [
            &[0, 1, 8, 0, 6, 4, 0, 1][..],
            &host_mac(device),
            &[0; 4],
            &[0; 6],
            &[10, device as u8 + 1, 0, 1],
        ]
        .concat();
        self.send_frame(device, [0xff; 6], [8, 6], &question);
    }

    fn send_frame(&self, device: Device, to: [u8; 6], ether_type: [u8; 2], payload: &[u8]) {
        let mut frame = [to, host_mac(device)].concat();
        if self.placement == Placement::Vlan {
            frame.extend([&[0x81, 0][..], &device.vid().to_be_bytes()].concat());
        }
        frame.extend(ether_type);
        frame.extend(payload);
        self.wires[device as usize].send(&frame);
    }

    /// A frame that has left by a device.
    pub fn receive(&self, device: Device) -> Option<Vec<u8>> {
        self.wires[device as usize].receive()
    }

    /// The bytes in front of the IP header.
    pub fn ip_offset(&self) -> usize {
        if self.placement == Placement::Vlan { 18 } else { 14 }
    }

    /// Attaches an XDP program to each port that passes all packets. The kernel then reserves as much room in front of packets
    /// as beside Millrace. On 6.1, this decides whether fragments leave VLAN devices as they came (`ip_do_fragment`).
    pub fn pass_by_xdp(&self) {
        self.enter();
        // Frames of devices with a large MTU have more than one buffer.
        let frags = libbpf_sys::bpf_prog_load_opts {
            sz: size_of::<libbpf_sys::bpf_prog_load_opts>() as libbpf_sys::size_t,
            prog_flags: libbpf_sys::BPF_F_XDP_HAS_FRAGS,
            ..Default::default()
        };
        // XDP_PASS
        let program = load_program(libbpf_sys::BPF_PROG_TYPE_XDP, 2, Some(frags));
        for device in DEVICES {
            let (index, fd) = (common::ifindex(&self.port(device)) as i32, program.as_raw_fd());
            // SAFETY: no options are passed.
            let done =
                unsafe { libbpf_sys::bpf_xdp_attach(index, fd, libbpf_sys::XDP_FLAGS_DRV_MODE, ptr::null()) };
            assert_eq!(done, 0, "attaching to {}", self.port(device));
        }
    }

    pub fn start(&mut self) {
        let config = tempfile::NamedTempFile::new().unwrap();
        let ports: Vec<_> = DEVICES.map(|device| self.port(device)).to_vec();
        let policing = "[policing]\nexception_pps = 0\ncontrol_pps = 0\n";
        let consent =
            if self.rules == Rules::FlowTable { "" } else { "[firewall]\nestablished = \"fast\"\n" };
        let text = format!("ports = {ports:?}\n{policing}{consent}");
        fs::write(config.path(), text).unwrap();
        self.enter();
        let words = ["run", "--config", config.path().to_str().unwrap(), "--instance", &self.instance];
        let log = self.log.reopen().unwrap();
        let child = Command::new(MILLRACE).args(words).stdout(Stdio::null()).stderr(log).spawn();
        self.daemon = Some(child.unwrap());
        let devices = DEVICES.map(Device::name);
        self.until("Millrace to know the router", || {
            let status = self.json(&["status", "--json"]).ok_or("no status")?;
            let ready = status["ready"] == true;
            let interfaces = self.json(&["interfaces", "--json"]).ok_or("no interfaces")?.to_string();
            let ruled = self.json(&["routers", "--json"]).ok_or("no routers")?.to_string();
            let known = devices.iter().all(|device| interfaces.contains(&format!("\"{device}\"")));
            if ready && known && ruled.contains("ruled") { Ok(()) } else { Err(format!("{status:#}")) }
        });
    }

    pub fn until(&self, what: &str, done: impl FnMut() -> Result<(), String>) {
        self.until_or(what, PATIENCE, done);
    }

    pub fn until_or(&self, what: &str, patience: Duration, mut done: impl FnMut() -> Result<(), String>) {
        let end = Instant::now() + patience;
        while let Err(why) = done() {
            let log = fs::read_to_string(self.log.path()).unwrap();
            assert!(Instant::now() < end, "timed out waiting for {what}: {why}\n{log}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn cli(&self, words: &[&str]) -> Output {
        Command::new(MILLRACE).args(words).args(["--instance", &self.instance]).output().unwrap()
    }

    fn json(&self, words: &[&str]) -> Option<Value> {
        let output = self.cli(words);
        output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
    }

    /// Connections that Millrace knows.
    pub fn connections(&self) -> Vec<Value> {
        let all = self.json(&["connections", "--json"]).expect("connections");
        all.as_array().unwrap().clone()
    }

    /// What conntrack has, apart from times and use counts.
    pub fn tracked(&self) -> BTreeSet<String> {
        let lines = ["ipv4", "ipv6"].map(|family| self.run(&format!("conntrack -L -f {family}"))).concat();
        let stable = |(at, word): &(usize, &str)| *at != 2 && !word.starts_with("use=");
        let bare = |line: &str| {
            let words = line.split_whitespace().enumerate().filter(stable).map(|(_, word)| word);
            words.collect::<Vec<_>>().join(" ")
        };
        lines.lines().map(bare).filter(|line| !line.starts_with("icmp")).collect()
    }

    /// The number of connections in a flow table of Linux.
    pub fn in_flow_table(&self) -> usize {
        self.tracked().iter().filter(|line| line.contains("[OFFLOAD]")).count()
    }

    /// Waits until routes of the fast path are those of Linux.
    pub fn until_verified(&self) {
        self.until("routes to be those of Linux", || {
            let verify = self.cli(&["routes", "--verify"]);
            let words = || [&verify.stdout[..], &verify.stderr].concat();
            if verify.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&words()).into()) }
        });
    }

    pub fn pause_daemon(&self, pause: bool) {
        let signal = if pause { libc::SIGSTOP } else { libc::SIGCONT };
        let child = self.daemon.as_ref().unwrap();
        // SAFETY: no pointers; the process is our child, which was not waited for yet.
        assert_eq!(unsafe { libc::kill(child.id() as libc::pid_t, signal) }, 0);
    }

    /// Sets the room for reports of ended connections, in bytes. If there is none, Linux loses reports.
    pub fn set_report_room(&self, bytes: libc::c_int) {
        let id = self.daemon.as_ref().unwrap().id();
        let mut found = 0;
        for entry in fs::read_dir(format!("/proc/{id}/fd")).unwrap() {
            let number = entry.unwrap().file_name().to_str().unwrap().parse().unwrap();
            let Some(socket) = descriptor_of(id, number).filter(hears_ends) else { continue };
            set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes).unwrap();
            found += 1;
        }
        assert!(found > 0, "the daemon hears of no ends");
    }

    pub fn stop(&mut self) {
        let stop = self.cli(&["stop"]);
        assert!(stop.status.success(), "{}", String::from_utf8_lossy(&stop.stderr));
        self.daemon.take().unwrap().wait().unwrap();
    }
}

impl Router {
    /// The daemon ends at once, without an end of the fast path.
    pub fn kill(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            // SIGKILL ends a paused process, too.
            let _ = (daemon.kill(), daemon.wait());
        }
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        if self.daemon.is_some() {
            self.kill();
            let _ = self.cli(&["stop"]);
        }
        if let Some(name) = &self.tenant {
            let _ = Command::new("ip").args(["netns", "delete", name]).status();
        }
    }
}

/// Commands that make the hosts behind a device known.
pub fn neighbours(device: Device, name: &str) -> Vec<String> {
    let (mac, number) = (mac_text(host_mac(device)), device as usize + 1);
    let addresses =
        HOSTS.iter().flat_map(|host| [format!("10.{number}.0.{host}"), format!("fd00:{number}::{host}")]);
    addresses
        .map(|address| format!("neigh replace {address} lladdr {mac} dev {name} nud permanent"))
        .collect()
}

/// A copy of another process's descriptor; `None`: it is closed.
fn descriptor_of(process: u32, number: RawFd) -> Option<OwnedFd> {
    // SAFETY: system calls without pointers; the descriptors that they return are ours.
    unsafe {
        let process = libc::syscall(libc::SYS_pidfd_open, process, 0) as RawFd;
        assert!(process >= 0, "{}", std::io::Error::last_os_error());
        let process = OwnedFd::from_raw_fd(process);
        let copy = libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) as RawFd;
        (copy >= 0).then(|| OwnedFd::from_raw_fd(copy))
    }
}

/// Is it a socket in `NFNLGRP_CONNTRACK_DESTROY`?
fn hears_ends(socket: &OwnedFd) -> bool {
    let option = |level, name| {
        let (mut value, mut length) = (0_u32, 4);
        // SAFETY: `value` and `length` are writable, for so many bytes.
        let rc = unsafe {
            let value = (&raw mut value).cast();
            libc::getsockopt(socket.as_raw_fd(), level, name, value, &raw mut length)
        };
        (rc == 0).then_some(value)
    };
    option(libc::SOL_SOCKET, libc::SO_DOMAIN) == Some(libc::AF_NETLINK as u32)
        && option(libc::SOL_SOCKET, libc::SO_PROTOCOL) == Some(libc::NETLINK_NETFILTER as u32)
        && option(libc::SOL_NETLINK, libc::NETLINK_LIST_MEMBERSHIPS)
            .is_some_and(|groups| groups & 1 << 2 != 0)
}

/// The flow table of [`Rules::FlowTable`].
fn flow_table() -> String {
    let devices = DEVICES.map(Device::name).join(", ");
    format!("flowtable ft {{ hook ingress priority 0; devices = {{ {devices} }}; }}")
}

/// Does the kernel have flow tables? Makes one in the calling thread's namespace.
pub fn has_flow_tables() -> bool {
    let file = tempfile::NamedTempFile::new().unwrap();
    let rules = "table inet t {
        flowtable ft { hook ingress priority 0; devices = { lo }; }
        chain c { type filter hook forward priority 0; flow add @ft; }
    }";
    fs::write(file.path(), rules).unwrap();
    let output = Command::new("nft").arg("-f").arg(file.path()).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() || words.contains("No such file or directory"), "{words}");
    output.status.success()
}

/// Does the kernel have devices of VLANs? Makes one in the calling thread's namespace.
pub fn has_vlans() -> bool {
    common::run("ip link add x0 type veth peer name x1");
    Command::new("ip")
        .args("link add link x0 name x2 type vlan id 9".split(' '))
        .output()
        .unwrap()
        .status
        .success()
}
