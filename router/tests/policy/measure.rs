//! How long packets follow the old policy after the command that changes it has returned, for each kind of
//! change. A daemon runs, or has been killed. A thread sends without a pause from one port to the other. Each
//! change makes Linux drop or divert these packets, so each packet shows which policy it followed.
//!
//! ```text
//! MILLRACE_MEASURE_ROUNDS=20 MILLRACE_MEASURE_JSON=windows.jsonl cargo test -p millrace --test policy -- --ignored \
//!     --nocapture --test-threads=1 measure::windows
//! ```

use crate::{
    Named,
    common::{
        be_urgent,
        driver::Driver,
        frame::Frame,
        ifindex, in_new_namespace, run,
        wire::Wire,
        world::{A, loaded_watched},
    },
};
use libbpf_rs::libbpf_sys as sys;
use logic::net::Mac;
use router::{base::clock::monotonic, linux::observer::Waker, plane::policy::Policy};
use std::{
    fs::{self, File},
    io::Write as _,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    process::{Child, Command, Stdio, id},
    sync::atomic::{
        AtomicBool, AtomicU64, AtomicUsize,
        Ordering::{Acquire, Relaxed, Release},
    },
    sync::mpsc,
    thread,
    time::Duration,
};

const MILLRACE: &str = env!("CARGO_BIN_EXE_millrace");
/// The pause between packets, in addition to the time that sending one takes.
const PAUSE: Duration = Duration::from_micros(50);
/// The old policy has ended when no packet came out for this long.
const QUIET: Duration = Duration::from_millis(300);
const LONGEST: Duration = Duration::from_secs(10);
/// MAC addresses: of the tenant's devices on the ports, and of the next hop.
const TENANT: Mac = Mac([2, 0, 0, 0, 0, 3]);
const TO: Mac = Mac([2, 0, 0, 0, 7, 1]);

/// How a policy changes.
#[derive(Clone, Copy)]
enum Change {
    /// By this command line, in a shell.
    Shell(&'static str),
    /// The same in the tenant's namespace.
    TenantShell(&'static str),
    /// A program on the ingress of p0, by a BPF link.
    TcxLink,
    /// The same without a link.
    TcxAttached,
    NetfilterLink,
    /// A program on the tenant's m0.
    XdpLink,
    XdpAttached,
    /// A service of IPVS whose real server is the sender.
    Ipvs,
}

struct Kind {
    name: &'static str,
    change: Change,
    /// The shell command that undoes it, in the namespace where the change is made. If it is empty, only the
    /// end of the namespace undoes it. Links end when they are closed.
    undo: &'static str,
    /// A shell command in the host's namespace, before the daemon starts.
    before: &'static str,
    v6: bool,
    /// Whether the router is a namespace with macvlans, not the host.
    tenant: bool,
    /// Whether it is also measured without a daemon. These kinds cover each way in which a change is noticed.
    killed: bool,
}

const fn kind(name: &'static str, change: &'static str, undo: &'static str) -> Kind {
    Kind { name, change: Change::Shell(change), undo, before: "", v6: false, tenant: false, killed: false }
}

const fn program(name: &'static str, change: Change, tenant: bool) -> Kind {
    Kind { name, change, undo: "true", before: "", v6: false, tenant, killed: false }
}

const NFT: &str =
    "nft 'add table ip t; add chain ip t c { type filter hook forward priority 0; policy drop; }'";

/// Deletes the tenant's devices, which prevent a bridge or an ipvlan on the ports.
const WITHOUT_TENANT: &str = "ip -n $TENANT link del m0; ip -n $TENANT link del m1";

const KINDS: [Kind; 23] = [
    Kind { killed: true, ..kind("nft", NFT, "nft delete table ip t") },
    Kind {
        change: Change::TenantShell(NFT),
        tenant: true,
        ..kind("nft of a tenant", NFT, "nft delete table ip t")
    },
    kind("iptables-nft", "iptables-nft -P FORWARD DROP", "nft delete table ip filter"),
    Kind { killed: true, ..kind("iptables-legacy", "iptables-legacy -P FORWARD DROP", "") },
    Kind { killed: true, ..kind("ip rule", "ip rule add pref 5 blackhole", "ip rule del pref 5") },
    Kind { v6: true, ..kind("ip -6 rule", "ip -6 rule add pref 5 blackhole", "ip -6 rule del pref 5") },
    Kind {
        killed: true,
        ..kind(
            "tc filter",
            "tc filter add dev p0 ingress pref 7 protocol ip u32 match u32 0 0 action mirred egress redirect dev lo",
            "tc filter del dev p0 ingress pref 7",
        )
    },
    kind("tc qdisc", "tc qdisc add dev p1 root blackhole", "tc qdisc del dev p1 root"),
    Kind {
        killed: true,
        ..kind(
            "xfrm policy",
            "ip xfrm policy add dir fwd src 0.0.0.0/0 dst 10.0.2.0/24 action block",
            "ip xfrm policy flush",
        )
    },
    kind("xfrm default", "ip xfrm policy setdefault fwd block", "ip xfrm policy setdefault fwd accept"),
    Kind {
        killed: true,
        ..kind(
            "rp_filter",
            "sysctl -qw net.ipv4.conf.p0.rp_filter=1",
            "sysctl -qw net.ipv4.conf.p0.rp_filter=0",
        )
    },
    kind(
        "forwarding",
        "sysctl -qw net.ipv4.conf.p0.forwarding=0",
        "sysctl -qw net.ipv4.conf.p0.forwarding=1",
    ),
    Kind {
        v6: true,
        killed: true,
        ..kind(
            "disable_ipv6",
            "sysctl -qw net.ipv6.conf.p0.disable_ipv6=1",
            "sysctl -qw net.ipv6.conf.p0.disable_ipv6=0; ip addr add fd00:1::1/64 dev p0 nodad",
        )
    },
    Kind { killed: true, ..program("tcx by a link", Change::TcxLink, false) },
    program("tcx without a link", Change::TcxAttached, false),
    program("netfilter program", Change::NetfilterLink, false),
    Kind { killed: true, ..program("XDP by a link", Change::XdpLink, true) },
    Kind { undo: "ip link set dev m0 xdp off", ..program("XDP by netlink", Change::XdpAttached, true) },
    // IPVS refuses packets of a real server that belong to no connection.
    Kind { before: "sysctl -qw net.ipv4.vs.nat_icmp_send=1", ..program("IPVS", Change::Ipvs, false) },
    Kind {
        before: WITHOUT_TENANT,
        ..kind("bridge on a port", "ip link add b0 type bridge; ip link set p0 master b0", "ip link del b0")
    },
    kind(
        "macvlan by source",
        "ip link add link p0 name s0 type macvlan mode source nodst macaddr set 02:00:00:00:09:09",
        "ip link del s0",
    ),
    Kind {
        tenant: true,
        ..kind(
            "macvlan as next hop",
            "ip link add link p1 name n1 address 02:00:00:00:07:01 type macvlan mode bridge
             sysctl -qw net.ipv4.conf.n1.forwarding=0; ip link set n1 up",
            "ip link del n1",
        )
    },
    Kind {
        before: WITHOUT_TENANT,
        ..kind(
            "ipvlan on a port",
            "ip link add link p0 name i0 netns $TENANT type ipvlan mode l2
             ip -n $TENANT addr add 10.0.2.9/32 dev i0; ip -n $TENANT link set i0 up",
            "ip -n $TENANT link del i0",
        )
    },
];

/// Whether the daemon runs.
#[derive(Clone, Copy, PartialEq)]
enum Daemon {
    Alive,
    /// Killed right before the change, with this heartbeat.
    Killed(&'static str),
}

impl Daemon {
    fn name(self) -> String {
        match self {
            Daemon::Alive => "runs".into(),
            Daemon::Killed(heartbeat) => format!("killed, heartbeat {heartbeat}"),
        }
    }
    fn heartbeat(self) -> &'static str {
        match self {
            Daemon::Alive => "3s",
            Daemon::Killed(heartbeat) => heartbeat,
        }
    }
}

/// A box with two ports, hosts behind them that are only sockets, and a daemon. Linux counts the packets that
/// it forwards itself.
struct Bed {
    daemon: Option<Child>,
    instance: String,
    log: tempfile::NamedTempFile,
    tenant: Named,
    near: Wire,
    far: Wire,
}

/// Sets addresses, and permanent neighbours. 10.0.3.9 sends, but is not behind the port that its packets come
/// in by.
const ADDRESSES: &str = "
    sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
    for d in all default $1 $2; do sysctl -qw net.ipv4.conf.$d.rp_filter=0; done
    ip link set $1 address $3
    ip addr add 10.0.1.1/24 dev $1; ip addr add fd00:1::1/64 dev $1 nodad; ip link set $1 up
    ip addr add 10.0.2.1/24 dev $2; ip addr add fd00:2::1/64 dev $2 nodad; ip link set $2 up
    ip route add 10.0.3.0/24 dev $2; ip route add fd00:3::/64 dev $2
    ip neigh replace 10.0.2.9 lladdr 02:00:00:00:07:01 dev $2
    ip neigh replace fd00:2::9 lladdr 02:00:00:00:07:01 dev $2";

/// The packets that the measurement's thread sent: when, and whether each came out.
type Sent = Vec<(u64, bool)>;

impl Bed {
    /// An error means that something it needs is missing.
    fn new(heartbeat: &str, before: &str) -> Result<Bed, String> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Relaxed);
        for n in 0..2 {
            run(&format!("ip link add p{n} type veth peer name q{n}"));
            run(&format!("sysctl -qw net.ipv6.conf.q{n}.disable_ipv6=1"));
            run(&format!("ethtool -K q{n} tx off txvlan off tx-vlan-stag-hw-insert off gro on"));
            run(&format!("ip link set q{n} up"));
        }
        let tenant = Named::new(&format!("tenant{number}"));
        let inside = &tenant.0;
        for n in 0..2 {
            run(&format!("ip link add link p{n} name m{n} netns {inside} type macvlan mode bridge"));
        }
        shell(&format!("set -- p0 p1 {A}; {ADDRESSES}\n tc qdisc add dev p0 clsact")).unwrap();
        let of_tenant = format!("set -- m0 m1 {TENANT}; {ADDRESSES}");
        tenant.place().inside(|| shell(&of_tenant)).unwrap().unwrap();
        let near = Wire::open("q0");
        let far = Wire::open("q1");
        let instance = format!("windows-{}-{number}", id());
        let log = tempfile::NamedTempFile::new().unwrap();
        let mut bed = Bed { daemon: None, instance, log, tenant, near, far };
        bed.in_shell(before)?;
        bed.start(heartbeat);
        Ok(bed)
    }

    /// Runs a shell command line in the host's namespace.
    fn in_shell(&self, line: &str) -> Result<(), String> {
        shell(&format!("TENANT={}; {line}", self.tenant.0))
    }

    fn start(&mut self, heartbeat: &str) {
        let words =
            ["run", "--port", "p0", "--port", "p1", "--instance", &self.instance, "--heartbeat", heartbeat];
        let log = self.log.reopen().unwrap();
        let child = Command::new(MILLRACE).args(words).stdout(Stdio::null()).stderr(log).spawn();
        self.daemon = Some(child.unwrap());
    }

    /// The number of packets that Linux has forwarded.
    fn by_linux(&self, kind: &Kind) -> u64 {
        let read = || {
            let all = fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
            let mut ip = all.lines().filter(|line| line.starts_with("Ip:")).map(|line| line.split(' '));
            let (names, values) = (ip.next().unwrap(), ip.next().unwrap());
            let v4 = names.zip(values).find(|(name, _)| *name == "ForwDatagrams").unwrap().1;
            let all = fs::read_to_string("/proc/thread-self/net/snmp6").unwrap();
            let v6 = all.lines().find_map(|line| line.strip_prefix("Ip6OutForwDatagrams")).unwrap();
            v4.parse::<u64>().unwrap() + v6.trim().parse::<u64>().unwrap()
        };
        if kind.tenant { self.tenant.place().inside(read).unwrap() } else { read() }
    }

    /// Sends while `body` runs. `body` can read when the latest packet that has come out was sent.
    fn traffic<T>(&self, kind: &Kind, body: impl FnOnce(&AtomicU64) -> T) -> (T, Sent) {
        let to = if kind.tenant { TENANT } else { A };
        let (mut frame, at) = match kind.v6 {
            true => (Frame::udp6(to, "fd00:3::9", "fd00:2::9").bytes(), 14 + 40 + 8),
            false => (Frame::udp4(to, "10.0.3.9", "10.0.2.9").bytes(), 14 + 20 + 8),
        };
        while self.far.receive().is_some() {}
        let (stop, latest) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            let (stop, latest, wires) = (&stop, &latest, (&self.near, &self.far));
            let sender = scope.spawn(move || {
                be_urgent();
                let mut sent = Sent::new();
                let take = |sent: &mut Sent| {
                    while let Some(out) = wires.1.receive() {
                        let number =
                            out.get(at..at + 8).map(|bytes| u64::from_be_bytes(bytes.try_into().unwrap()));
                        // Other frames are neighbour discovery.
                        let ours = out.starts_with(&TO.0) && out.get(at + 8..at + 18) == Some(&[0x5a; 10]);
                        if let (Some(number), true) = (number, ours) {
                            let packet = &mut sent[number as usize];
                            packet.1 = true;
                            latest.fetch_max(packet.0, Release);
                        }
                    }
                };
                while !stop.load(Acquire) {
                    frame[at..at + 8].copy_from_slice(&(sent.len() as u64).to_be_bytes());
                    sent.push((now_ns(), false));
                    wires.0.send(&frame);
                    take(&mut sent);
                    thread::sleep(PAUSE);
                }
                thread::sleep(Duration::from_millis(20));
                take(&mut sent);
                sent
            });
            let result = body(latest);
            stop.store(true, Release);
            (result, sender.join().unwrap())
        })
    }

    /// Waits until the fast path forwards all packets.
    fn until_fast(&self, kind: &Kind) {
        for _ in 0..600 {
            let before = self.by_linux(kind);
            let ((), sent) = self.traffic(kind, |_| thread::sleep(Duration::from_millis(20)));
            if self.by_linux(kind) == before && sent.iter().all(|packet| packet.1) {
                return;
            }
            thread::sleep(Duration::from_millis(80));
        }
        panic!(
            "{}: Linux still forwards packets: {}",
            kind.name,
            fs::read_to_string(self.log.path()).unwrap()
        );
    }

    /// Makes the change. Returns what must be undone, or why the change is not possible.
    fn make(&self, change: Change) -> Result<Made, String> {
        let in_tenant =
            |task: &(dyn Fn() -> Result<Made, String> + Sync)| self.tenant.place().inside(task).unwrap();
        // The programs drop all packets: TC_ACT_SHOT, NF_DROP, XDP_DROP.
        match change {
            Change::Shell(line) => self.in_shell(line).map(|()| Made::Undone),
            Change::TenantShell(line) => in_tenant(&|| shell(line).map(|()| Made::Undone)),
            Change::TcxLink => {
                link(&load(sys::BPF_PROG_TYPE_SCHED_CLS, 2, 0)?, sys::BPF_TCX_INGRESS, ifindex("p0"))
            }
            Change::TcxAttached => {
                let program = load(sys::BPF_PROG_TYPE_SCHED_CLS, 2, 0)?;
                let (fd, device) = (program.as_raw_fd(), ifindex("p0") as i32);
                // SAFETY: only numbers are passed, and no options.
                checked(unsafe {
                    sys::bpf_prog_attach_opts(fd, device, sys::BPF_TCX_INGRESS, std::ptr::null())
                })?;
                Ok(Made::Tcx(program))
            }
            Change::NetfilterLink => {
                link(&load(sys::BPF_PROG_TYPE_NETFILTER, 0, sys::BPF_NETFILTER)?, sys::BPF_NETFILTER, 0)
            }
            Change::Ipvs => {
                // The service 10.9.9.9, with the real server 10.0.3.9. struct ip_vs_service_user: protocol,
                // address, port, mark, scheduler, flags, timeout, mask; struct ip_vs_dest_user: address,
                // port, flags, weight, thresholds.
                let mut service = [0_u8; 44];
                service[0] = 17;
                service[4..8].copy_from_slice(&[10, 9, 9, 9]);
                service[8..10].copy_from_slice(&2000_u16.to_be_bytes());
                service[16..18].copy_from_slice(b"rr");
                service[40..44].fill(0xff);
                let mut server = [0_u8; 24];
                server[..4].copy_from_slice(&[10, 0, 3, 9]);
                server[4..6].copy_from_slice(&1000_u16.to_be_bytes());
                server[12..16].copy_from_slice(&1_i32.to_ne_bytes());
                ipvs(IP_VS_SO_SET_ADD, &service)?;
                ipvs(IP_VS_SO_SET_ADDDEST, &[&service[..], &server].concat())?;
                Ok(Made::Undone)
            }
            Change::XdpLink => {
                let program = load(sys::BPF_PROG_TYPE_XDP, 1, 0)?;
                in_tenant(&|| link(&program, sys::BPF_XDP, ifindex("m0")))
            }
            Change::XdpAttached => {
                let program = load(sys::BPF_PROG_TYPE_XDP, 1, 0)?;
                in_tenant(&|| {
                    let device = ifindex("m0") as i32;
                    // SAFETY: only numbers are passed, and no options.
                    checked(unsafe {
                        sys::bpf_xdp_attach(device, program.as_raw_fd(), 0, std::ptr::null())
                    })?;
                    Ok(Made::Undone)
                })
            }
        }
    }

    fn undo(&self, kind: &Kind, made: Made) {
        if let Made::Tcx(program) = &made {
            // SAFETY: only numbers are passed.
            let rc = unsafe {
                sys::bpf_prog_detach2(program.as_raw_fd(), ifindex("p0") as i32, sys::BPF_TCX_INGRESS)
            };
            checked(rc).unwrap();
        }
        drop(made);
        if let Change::Ipvs = kind.change {
            ipvs(IP_VS_SO_SET_FLUSH, &[]).unwrap();
        }
        let line = || self.in_shell(kind.undo).unwrap();
        let in_tenant = matches!(kind.change, Change::TenantShell(_) | Change::XdpAttached);
        if in_tenant { self.tenant.place().inside(line).unwrap() } else { line() }
    }

    fn round(&mut self, kind: &Kind, daemon: Daemon) -> Result<(Round, Made), String> {
        self.until_fast(kind);
        let mut child = self.daemon.take().unwrap();
        let (made, sent) = self.traffic(kind, |latest| {
            let by_linux = self.by_linux(kind);
            thread::sleep(Duration::from_millis(20));
            let began = now_ns();
            if daemon != Daemon::Alive {
                child.kill().unwrap();
                child.wait().unwrap();
            }
            let by_linux = self.by_linux(kind) - by_linux;
            let made = self.make(kind.change)?;
            let returned = now_ns();
            let since = |then: u64| Duration::from_nanos(now_ns().saturating_sub(then));
            while since(returned.max(latest.load(Acquire))) < QUIET {
                assert!(since(returned) < LONGEST, "{}: packets still follow the old policy", kind.name);
                thread::sleep(Duration::from_millis(5));
            }
            Ok::<_, String>((made, Times { began, returned, by_linux }))
        });
        self.daemon = Some(child);
        let (made, times) = made?;
        Ok((Round::new(&sent, &times), made))
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = (daemon.kill(), daemon.wait());
        }
        let _ = Command::new(MILLRACE).args(["stop", "--instance", &self.instance]).output();
    }
}

/// How a change is undone.
enum Made {
    /// A command undoes it.
    Undone,
    /// The change ends when this is closed.
    Link {
        _open: OwnedFd,
    },
    Tcx(OwnedFd),
}

/// Milliseconds after the return of the command.
#[derive(serde::Serialize)]
struct Round {
    /// When the last packet was sent that followed the old policy; 0 if before the return.
    last_by_old: f64,
    /// When the first packet after that one was sent.
    first_by_new: f64,
    packets_by_old: usize,
    /// The median time from one packet to the next.
    spacing: f64,
    /// The time that the command took, including the end of the daemon before it.
    command: f64,
    /// Packets that Linux forwarded before the command began. If there are any, the round does not measure
    /// the fast path.
    by_linux: u64,
}

/// The times of a round.
struct Times {
    /// When the daemon was killed, or else when the command began.
    began: u64,
    returned: u64,
    by_linux: u64,
}

impl Round {
    fn new(sent: &Sent, times: &Times) -> Round {
        let Times { began, returned, by_linux } = *times;
        let ms = |ns: u64| ns.saturating_sub(returned) as f64 / 1e6;
        let old = |packet: &&(u64, bool)| packet.1 && packet.0 >= returned;
        let last = sent.iter().rfind(old).map_or(returned, |packet| packet.0);
        let first = sent.iter().find(|packet| packet.0 > last).unwrap().0;
        let gaps = sent.windows(2).map(|two| (two[1].0 - two[0].0) as f64 / 1e6);
        let packets_by_old = sent.iter().filter(old).count();
        Round {
            last_by_old: ms(last),
            first_by_new: ms(first),
            packets_by_old,
            spacing: median(gaps.collect()),
            command: (returned - began) as f64 / 1e6,
            by_linux,
        }
    }
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    (of[of.len() / 2] + of[(of.len() - 1) / 2]) / 2.0
}

fn now_ns() -> u64 {
    monotonic().as_nanos() as u64
}

/// Runs a shell command line. If it fails, returns its error output.
fn shell(line: &str) -> Result<(), String> {
    let output = Command::new("sh").args(["-ec", line]).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.success() { Ok(()) } else { Err(words) }
}

/// linux/ip_vs.h
const IP_VS_SO_SET_ADD: i32 = 0x482;
const IP_VS_SO_SET_FLUSH: i32 = 0x485;
const IP_VS_SO_SET_ADDDEST: i32 = 0x487;

/// Configures IPVS.
fn ipvs(command: i32, argument: &[u8]) -> Result<(), String> {
    // SAFETY: no pointers.
    let socket = own(unsafe { libc::socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_RAW) })?;
    // SAFETY: the length is that of the argument.
    let rc = unsafe {
        let (data, length) = (argument.as_ptr().cast(), argument.len() as libc::socklen_t);
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_IP, command, data, length)
    };
    if rc == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().to_string()) }
}

fn checked(rc: i32) -> Result<i32, String> {
    if rc >= 0 { Ok(rc) } else { Err(std::io::Error::from_raw_os_error(-rc).to_string()) }
}

fn own(fd: i32) -> Result<OwnedFd, String> {
    // SAFETY: a new descriptor, owned by nobody else.
    checked(fd).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A program that returns `verdict`.
fn load(kind: sys::bpf_prog_type, verdict: i32, attach: sys::bpf_attach_type) -> Result<OwnedFd, String> {
    // r0 = verdict; exit
    let program =
        [(0xb7, verdict), (0x95, 0)].map(|(code, imm)| sys::bpf_insn { code, imm, ..Default::default() });
    let mut options = sys::bpf_prog_load_opts {
        sz: size_of::<sys::bpf_prog_load_opts>() as _,
        expected_attach_type: attach,
        ..Default::default()
    };
    let (name, license) = (c"drops".as_ptr(), c"GPL".as_ptr());
    // SAFETY: strings, instructions and options live across the call.
    own(unsafe { sys::bpf_prog_load(kind, name, license, program.as_ptr(), 2, &raw mut options) })
}

/// Attaches a program to a device, or for netfilter to the forward hook of IPv4.
fn link(program: &OwnedFd, attach: sys::bpf_attach_type, device: u32) -> Result<Made, String> {
    let mut options =
        sys::bpf_link_create_opts { sz: size_of::<sys::bpf_link_create_opts>() as _, ..Default::default() };
    if attach == sys::BPF_NETFILTER {
        options.__bindgen_anon_1.netfilter.pf = libc::AF_INET as u32;
        options.__bindgen_anon_1.netfilter.hooknum = 2;
        options.__bindgen_anon_1.netfilter.priority = 7;
    }
    // SAFETY: the options live across the call and say their size.
    own(unsafe { sys::bpf_link_create(program.as_raw_fd(), device as i32, attach, &raw const options) })
        .map(|open| Made::Link { _open: open })
}

/// Runs `count` rounds of one kind, or returns why it cannot.
fn rounds(kind: &'static Kind, daemon: Daemon, count: usize) -> Result<Vec<Round>, String> {
    // A change that cannot be undone, or a daemon that is killed, needs a bed of its own.
    let each = if kind.undo.is_empty() || daemon != Daemon::Alive { 1 } else { count };
    let (done, results) = mpsc::channel();
    for _ in 0..count / each {
        let done = done.clone();
        in_new_namespace(move || {
            let mut bed = match Bed::new(daemon.heartbeat(), kind.before) {
                Ok(bed) => bed,
                Err(why) => return done.send(Err(why)).unwrap(),
            };
            for _ in 0..each {
                let round = bed.round(kind, daemon).map(|(round, made)| {
                    if each > 1 {
                        bed.undo(kind, made);
                    }
                    round
                });
                let failed = round.is_err();
                done.send(round).unwrap();
                if failed {
                    return;
                }
            }
        });
    }
    drop(done);
    results.into_iter().collect()
}

fn measure(daemon: Daemon, count: usize) {
    let mut json = std::env::var_os("MILLRACE_MEASURE_JSON")
        .map(|path| File::options().create(true).append(true).open(path).unwrap());
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    println!("Linux {}, the daemon {}; ms after the return of the command", kernel.trim(), daemon.name());
    println!(
        "{:30} {:>6} {:>21} {:>21} {:>8} {:>8}",
        "", "rounds", "last packet by the old", "first by the new", "spacing", "command"
    );
    let wanted = std::env::var("MILLRACE_MEASURE_KINDS").ok();
    let is_wanted = |kind: &&Kind| {
        wanted.as_ref().is_none_or(|wanted| wanted.split(',').any(|w| w.replace('_', " ") == kind.name))
    };
    for kind in KINDS.iter().filter(|kind| daemon == Daemon::Alive || kind.killed).filter(is_wanted) {
        let result = rounds(kind, daemon, count);
        if let Some(json) = &mut json {
            let row = serde_json::json!({
                "kernel": kernel.trim(), "daemon": daemon.name(), "change": kind.name,
                "ms": result.as_ref().ok(), "not_here": result.as_ref().err(),
            });
            writeln!(json, "{row}").unwrap();
        }
        let rounds = match result {
            Ok(rounds) => rounds,
            Err(why) => {
                println!("{:30} not here: {}", kind.name, why.lines().next().unwrap_or_default());
                continue;
            }
        };
        // Without a heartbeat, Linux is expected to forward before the command.
        let expected = daemon == Daemon::Killed("0");
        let rounds: Vec<_> = rounds.into_iter().filter(|round| expected || round.by_linux == 0).collect();
        if rounds.is_empty() {
            println!("{:30} Linux forwarded before", kind.name);
            continue;
        }
        let both = |of: fn(&Round) -> f64| {
            let all: Vec<f64> = rounds.iter().map(of).collect();
            let most = all.iter().copied().fold(0.0, f64::max);
            format!("{:.2} (up to {most:.2})", median(all))
        };
        let (old, new) = (both(|round| round.last_by_old), both(|round| round.first_by_new));
        let spacing = median(rounds.iter().map(|round| round.spacing).collect());
        let command = median(rounds.iter().map(|round| round.command).collect());
        println!("{:30} {:>6} {old:>21} {new:>21} {spacing:>8.2} {command:>8.2}", kind.name, rounds.len());
    }
}

fn count() -> usize {
    std::env::var("MILLRACE_MEASURE_ROUNDS").map_or(20, |rounds| rounds.parse().unwrap())
}

#[test]
#[ignore = "measures; needs root"]
fn windows_while_the_daemon_runs() {
    measure(Daemon::Alive, count());
}

#[test]
#[ignore = "measures; needs root"]
fn windows_after_a_kill() {
    measure(Daemon::Killed("3s"), count().div_ceil(4));
}

#[test]
#[ignore = "measures; needs root"]
fn windows_after_a_kill_without_heartbeat() {
    measure(Daemon::Killed("0"), count().div_ceil(4));
}

/// What the program alone costs for a packet whose router could be marked: a line for each family.
#[test]
#[ignore = "measures; needs root"]
fn cost_of_a_packet() {
    in_new_namespace(|| {
        for n in 0..2 {
            run(&format!("ip link add p{n} type veth peer name q{n}"));
        }
        let policy = Policy::start(Waker::new().unwrap(), false, 0).unwrap();
        let (plane, _tables) = loaded_watched(policy.plane_maps());
        let input = ifindex("p0");
        let frames = [Frame::udp4(A, "10.0.1.9", "10.0.2.9"), Frame::udp6(A, "fd00:1::9", "fd00:2::9")];
        for (family, frame) in [4, 6].into_iter().zip(frames) {
            let frame = frame.bytes();
            let mut driver = Driver::new(std::slice::from_ref(&frame));
            let alone = driver.alone(input, &frame);
            let costs: Vec<f64> =
                (0..5).map(|_| driver.run(plane.program(), input, 0, &frame) - alone).collect();
            let least = costs.iter().copied().fold(f64::INFINITY, f64::min);
            println!("IPv{family}: median {:.2} ns, least {least:.2} ns", median(costs));
        }
    });
}
