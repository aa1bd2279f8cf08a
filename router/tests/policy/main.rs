//! Changes of policy, made with the usual tools, and the routers whose packets go to the kernel when the
//! command returns. No daemon runs, so only programs that the kernel calls can have seen the changes. Needs
//! root: the tests have namespaces of their own.

#[path = "../common/mod.rs"]
mod common;
mod measure;

use common::{
    frame::Frame,
    ifindex, in_new_namespace, run,
    world::{A, loaded_watched},
};
use libbpf_rs::{MapCore, MapFlags, MapHandle, libbpf_sys as sys};
use logic::{plan::RouterId, reason::Reason};
use router::{
    linux::{
        netlink::{
            rtm,
            socket::Socket,
            wire::{self, Request},
        },
        netns::{self, Key, NamespaceRef},
        observer::Waker,
    },
    plane::{
        Plane,
        policy::{HOST, Policy, Slot, Watching},
    },
};
use std::{
    fs::File,
    io::Write as _,
    net::UdpSocket,
    os::{
        fd::AsRawFd,
        unix::{net::UnixDatagram, process::CommandExt as _},
    },
    path::Path,
    process::{Child, Command, Stdio, id},
    ptr, thread,
    time::Duration,
};

/// Router numbers of the host, and of two virtual routers.
const ROUTERS: [RouterId; 3] = [0, 1, 2];
const SLOTS: [Slot; 3] = [HOST, 1, 2];
const NOBODY: [bool; 3] = [false; 3];
const THE_HOST: [bool; 3] = [true, false, false];
const RED: [bool; 3] = [false, true, false];
const BLUE: [bool; 3] = [false, false, true];
const ALL: [bool; 3] = [true; 3];

fn place(path: &str) -> NamespaceRef {
    let path = Path::new(path);
    let cookie = netns::inside(&File::open(path).unwrap(), netns::cookie).unwrap().unwrap();
    NamespaceRef::new(Key::at(path).unwrap(), cookie, path.to_owned())
}

/// A named namespace, deleted when it is dropped.
struct Named(String);

impl Named {
    fn new(name: &str) -> Named {
        let named = Named(format!("policy{}-{name}", id()));
        run(&format!("ip netns add {}", named.0));
        named
    }
    fn place(&self) -> NamespaceRef {
        place(&format!("/run/netns/{}", self.0))
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.0]).status();
    }
}

/// A host and two virtual routers that are watched. The namespace of the calling thread is the host's.
struct Bed {
    policy: Policy,
    waker: Waker,
    red: Named,
    _blue: Named,
}

impl Bed {
    fn new() -> Bed {
        let waker = Waker::new().unwrap();
        let mut policy = Policy::start(waker.clone(), false, 64).unwrap_or_else(|e| panic!("{e:#}"));
        assert_eq!(policy.unseen(), [""; 0]);
        let (red, blue) = (Named::new("red"), Named::new("blue"));
        let places = [NamespaceRef::own().unwrap(), red.place(), blue.place()];
        for ((slot, router), place) in SLOTS.into_iter().zip(ROUTERS).zip(places) {
            assert_eq!(policy.watch(slot, Some(&place)), Watching::All);
            policy.bind(slot, Some(router));
        }
        assert_eq!(policy.unseen(), [""; 0]);
        let mut bed = Bed { policy, waker, red, _blue: blue };
        assert_eq!(bed.take_marked(), ALL, "marks at the start, when earlier changes are not known");
        for name in ["red", "host"] {
            bed.run(name, "ip link add v0 type veth peer name v1");
        }
        bed.take_marked();
        bed
    }

    /// Runs a shell command line in the host's namespace, or in that of red.
    fn run(&self, name: &str, line: &str) {
        let within = if name == "red" { format!("ip netns exec {} ", self.red.0) } else { String::new() };
        let output = Command::new("sh").args(["-c", &format!("{within}{line}")]).output().unwrap();
        assert!(output.status.success(), "{name}: {line}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Returns which routers are marked, and removes their marks.
    fn take_marked(&mut self) -> [bool; 3] {
        SLOTS.into_iter().for_each(|slot| _ = self.policy.take_pending(slot));
        ROUTERS.map(|router| {
            let marks = self.policy.marks(router);
            assert!(self.policy.unmark(router, marks));
            marks > 0
        })
    }
}

#[test]
#[ignore = "needs root"]
fn a_change_marks_the_routers_it_affects_before_the_command_returns() {
    in_new_namespace(|| {
        let mut bed = Bed::new();
        let forward = "'{ type filter hook forward priority 0; }'";
        let ingress = "'{ type filter hook ingress device v0 priority 0; }'";
        let changes = [
            ("red", "nft add table ip t".into(), RED),
            ("red", format!("nft add chain ip t c {forward}"), RED),
            ("red", "nft add rule ip t c drop".into(), RED),
            ("red", "nft flush chain ip t c".into(), RED),
            ("red", "nft add set ip t s '{ type ipv4_addr; }'".into(), RED),
            ("red", "nft add element ip t s '{ 10.0.0.1 }'".into(), RED),
            ("red", "nft delete element ip t s '{ 10.0.0.1 }'".into(), RED),
            ("red", "nft list ruleset".into(), NOBODY),
            ("red", "nft delete chain ip t c".into(), RED),
            ("red", "iptables-nft -P FORWARD DROP".into(), RED),
            ("red", "iptables-legacy -P FORWARD DROP".into(), RED),
            ("red", "ip6tables-legacy -P FORWARD DROP".into(), RED),
            ("red", "ip rule add pref 5 from 10.0.0.1 table 9".into(), RED),
            ("red", "ip -6 rule add pref 5 from fd00::1 table 9".into(), RED),
            ("red", "ip rule del pref 5".into(), RED),
            ("red", "tc qdisc add dev v0 clsact".into(), RED),
            ("red", "tc filter add dev v0 ingress protocol ip u32 match u32 0 0".into(), RED),
            ("red", "tc chain add dev v0 ingress chain 3".into(), RED),
            ("red", "ip xfrm policy add dir fwd src 10.0.0.0/8 dst 10.0.0.0/8 action block".into(), RED),
            ("red", "ip xfrm policy setdefault fwd block".into(), RED),
            ("red", "sysctl -qw net.ipv4.conf.v0.forwarding=1".into(), RED),
            ("red", "sysctl -qw net.ipv4.conf.all.rp_filter=1".into(), RED),
            ("red", "sysctl -qw net.ipv4.conf.all.accept_local=1".into(), RED),
            ("red", "sysctl -qw net.ipv6.conf.v0.disable_ipv6=1".into(), RED),
            ("red", "sysctl -qw net.core.somaxconn=100".into(), NOBODY),
            ("red", "sysctl -q net.ipv4.conf.all.rp_filter > /dev/null".into(), NOBODY),
            ("red", "ip route add blackhole 10.9.0.0/16".into(), NOBODY),
            ("red", "ip neighbour add 10.0.0.1 lladdr 02:00:00:00:00:01 dev v0".into(), NOBODY),
            ("host", "ip rule add pref 5 from 10.0.0.1 table 9".into(), THE_HOST),
            ("host", "sysctl -qw net.ipv4.ip_forward=1".into(), THE_HOST),
            ("host", format!("nft 'add table ip t'; nft add chain ip t c {forward}"), THE_HOST),
            ("host", "nft add rule ip t c accept".into(), THE_HOST),
            ("host", format!("nft 'add table netdev t'; nft add chain netdev t c {ingress}"), ALL),
            ("host", format!("nft 'add table inet t'; nft add chain inet t c {ingress}"), ALL),
            ("host", "nft add rule netdev t c accept".into(), ALL),
            (
                "host",
                "nft add set inet t s '{ type ipv4_addr; }'; nft add element inet t s '{ 10.0.0.1 }'".into(),
                ALL,
            ),
            ("host", "tc qdisc add dev v0 root tbf rate 1mbit burst 10k latency 10ms".into(), ALL),
            ("host", "tc qdisc add dev v0 clsact".into(), ALL),
            ("host", "tc filter add dev v0 egress protocol ip u32 match u32 0 0".into(), ALL),
        ];
        // As the daemon does, once it has read the host's rules.
        bed.policy.note_device_chains(false, bed.policy.changes_of_all());
        for (name, change, expected) in changes {
            bed.waker.clear();
            bed.run(name, &change);
            assert_eq!(bed.take_marked(), expected, "{name}: {change}");
        }
    });
}

/// The namespace of the task that makes a change does not matter.
#[test]
#[ignore = "needs root"]
fn a_change_by_a_socket_of_another_namespace_marks_the_router_there() {
    in_new_namespace(|| {
        let mut bed = Bed::new();
        let opened = bed.red.place().inside(|| Socket::requests(libc::NETLINK_ROUTE));
        let mut socket = opened.unwrap().unwrap();
        // struct fib_rule_hdr: from anywhere, to table 9.
        let rule = [2, 0, 0, 0, 9, 0, 0, 1, 0, 0, 0, 0];
        const CREATE: u16 = 0x400;
        let request = Request::new(rtm::NEWRULE, wire::ACK | CREATE, &rule);
        socket.ask(request, |_| None::<()>).unwrap();
        assert_eq!(bed.take_marked(), RED);
    });
}

/// A query of a legacy table.
#[derive(Clone, Copy)]
struct TableQuery {
    level: i32,
    /// Whether root sends it. Otherwise a user without capabilities does.
    privileged: bool,
    /// The pointer to the memory for the answer is null.
    no_answer: bool,
    /// The pointer to the memory for the answer's length is null.
    no_length: bool,
}

impl TableQuery {
    fn at(level: i32) -> TableQuery {
        TableQuery { level, privileged: true, no_answer: false, no_length: false }
    }

    /// Sends it through this socket, and returns the error, or 0.
    fn send(self, socket: &impl AsRawFd) -> i32 {
        let socket = socket.as_raw_fd();
        // IPT_SO_GET_INFO, struct ipt_getinfo
        const GET_INFO: i32 = 64;
        let ask = move || {
            let mut info = [0_u8; 84];
            info[..6].copy_from_slice(b"filter");
            let mut length = info.len() as libc::socklen_t;
            let answer = if self.no_answer { ptr::null_mut() } else { info.as_mut_ptr() };
            let length = if self.no_length { ptr::null_mut() } else { &raw mut length };
            if !self.privileged {
                be_nobody();
            }
            // SAFETY: `info` is writable and `length` its size, or the kernel refuses the pointer.
            match unsafe { libc::getsockopt(socket, self.level, GET_INFO, answer.cast(), length) } {
                0 => 0,
                _ => std::io::Error::last_os_error().raw_os_error().unwrap(),
            }
        };
        std::thread::spawn(ask).join().unwrap()
    }
}

/// Makes the calling thread a user without capabilities.
fn be_nobody() {
    // SAFETY: raw system calls concern this thread only.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_setgroups, 0, ptr::null::<libc::gid_t>()), 0);
        assert_eq!(libc::syscall(libc::SYS_setresgid, 65534, 65534, 65534), 0);
        assert_eq!(libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534), 0);
    }
}

/// Any user can send such queries in a loop.
#[test]
#[ignore = "needs root"]
fn a_refused_query_of_a_legacy_table_marks_no_router() {
    in_new_namespace(|| {
        let mut bed = Bed::new();
        let udp4 = UdpSocket::bind("0.0.0.0:0").unwrap();
        let udp6 = UdpSocket::bind("[::]:0").unwrap();
        let unix = UnixDatagram::unbound().unwrap();
        assert_eq!(TableQuery::at(libc::SOL_IP).send(&unix), libc::EOPNOTSUPP);
        assert_eq!(bed.take_marked(), NOBODY);
        for (level, which) in [(libc::SOL_IP, "iptables"), (libc::SOL_IPV6, "ip6tables")] {
            let ours = TableQuery::at(level);
            let refused = TableQuery { privileged: false, ..ours };
            let socket = if level == libc::SOL_IP { &udp4 } else { &udp6 };
            // There may be no module yet that answers. The command then loads it.
            assert!([libc::EPERM, libc::ENOPROTOOPT].contains(&refused.send(socket)));
            assert_eq!(bed.take_marked(), NOBODY);
            bed.run("red", &format!("{which}-legacy -P FORWARD DROP"));
            assert_eq!(bed.take_marked(), RED);
            assert_eq!(refused.send(socket), libc::EPERM);
            assert_eq!(bed.take_marked(), NOBODY);
            // Linux reads the length before it checks who sends the query.
            assert_eq!(TableQuery { no_length: true, ..refused }.send(socket), libc::EFAULT);
            assert_eq!(bed.take_marked(), NOBODY);
            // The table is made before it turns out that its description cannot be written.
            assert_eq!(TableQuery { no_answer: true, ..ours }.send(socket), libc::EFAULT);
            assert_eq!(bed.take_marked(), THE_HOST);
            assert_eq!(ours.send(socket), 0);
            assert_eq!(bed.take_marked(), THE_HOST);
        }
    });
}

/// A user who made a user namespace may administer it, also from outside. That must not mark other routers.
#[test]
#[ignore = "needs root"]
fn the_owner_of_a_namespace_marks_only_its_router() {
    in_new_namespace(|| {
        let mut bed = Bed::new();
        // The user `nobody` makes and owns the namespaces.
        let mut made = Command::new("unshare")
            .args(["--user", "--net", "sleep", "60"])
            .uid(65534)
            .gid(65534)
            .spawn()
            .unwrap();
        let path = format!("/proc/{}/ns/net", made.id());
        let own = Key::at(Path::new("/proc/thread-self/ns/net")).unwrap();
        let is_there = || Key::at(Path::new(&path)).is_ok_and(|key| key != own);
        (0..500)
            .find(|_| {
                is_there() || {
                    thread::sleep(Duration::from_millis(10));
                    false
                }
            })
            .unwrap();
        let theirs = place(&path);
        bed.policy.forget(SLOTS[2]);
        assert_eq!(bed.policy.watch(SLOTS[2], Some(&theirs)), Watching::All);
        bed.policy.bind(SLOTS[2], Some(ROUTERS[2]));
        bed.run("host", "iptables-legacy -P FORWARD ACCEPT");
        bed.take_marked();

        let socket = theirs.inside(|| UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
        let query = TableQuery { privileged: false, ..TableQuery::at(libc::SOL_IP) };
        assert_eq!(query.send(&socket), 0);
        assert_eq!(bed.take_marked(), BLUE);

        let setting = "/proc/sys/net/ipv4/conf/all/accept_local";
        let file = theirs.inside(|| File::options().write(true).open(setting)).unwrap().unwrap();
        let write = |privileged: bool| {
            thread::scope(|scope| {
                let writes = || {
                    if !privileged {
                        be_nobody();
                    }
                    (&file).write_all(b"1").unwrap();
                };
                scope.spawn(writes).join().unwrap();
            });
        };
        write(false);
        assert_eq!(bed.take_marked(), NOBODY);
        write(true);
        assert_eq!(bed.take_marked(), THE_HOST, "a privileged process could have opened its own file");
        made.kill().unwrap();
        made.wait().unwrap();
    });
}

/// A reader that sees a mark and finds nothing pending has read the change. Each mark wakes the daemon.
#[test]
#[ignore = "needs root"]
fn a_mark_is_pending_and_wakes_the_daemon() {
    in_new_namespace(|| {
        let bed = Bed::new();
        bed.waker.clear();
        bed.run("red", "ip rule add pref 5 from 10.0.0.1 table 9");
        let mut ready = [rustix::event::PollFd::new(&bed.waker, rustix::event::PollFlags::IN)];
        let second = rustix::time::Timespec { tv_sec: 10, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut ready, Some(&second)), Ok(1), "the change woke nobody");
        assert_eq!(SLOTS.map(|slot| bed.policy.take_pending(slot)), [0, 1, 0]);
        assert_eq!(SLOTS.map(|slot| bed.policy.take_pending(slot)), [0, 0, 0]);
        assert!(bed.policy.seen_early(1).is_zero());
        // A change that is about to be made sets a mark early, and its message sets one again.
        bed.run("red", "sysctl -qw net.ipv4.conf.all.forwarding=1");
        assert!(!bed.policy.seen_early(1).is_zero());
    });
}

#[test]
#[ignore = "needs root"]
fn a_namespace_is_not_kept_alive_by_being_watched() {
    in_new_namespace(|| {
        let bed = Bed::new();
        bed.run("host", &format!("ip link add held type veth peer name p netns {}", bed.red.0));
        let Bed { red, policy, .. } = bed;
        drop(red);
        // The namespace's device ends with it, and so does the device's peer here.
        let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while run("ip -o link").contains("held") {
            assert!(std::time::Instant::now() < end, "the namespace is still alive after 30 s");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        drop(policy);
    });
}

/// The process named in the path ends while its namespace lives.
#[test]
#[ignore = "needs root"]
fn a_namespace_whose_place_moved_is_watched_again() {
    in_new_namespace(|| {
        let mut bed = Bed::new();
        let known = bed.red.place();
        let mut place = NamespaceRef::new(known.key(), known.cookie(), "/run/netns/not-there".into());
        assert_eq!(bed.policy.watch(1, Some(&place)), Watching::All, "a namespace that is already watched");
        bed.run("red", "ip rule add pref 5 from 10.0.0.1 table 9");
        assert_eq!(bed.take_marked(), RED);
        bed.policy.forget(1);
        assert_eq!(bed.policy.watch(1, None), Watching::Nothing);
        assert_eq!(bed.policy.watch(1, Some(&place)), Watching::Nothing);
        bed.policy.bind(1, Some(1));
        assert_eq!(bed.policy.unseen().len(), 3);
        bed.take_marked();
        bed.run("red", "ip rule del pref 5");
        assert_eq!(bed.take_marked(), NOBODY);
        place.move_to(Path::new(&format!("/run/netns/{}", bed.red.0)));
        assert_eq!(bed.policy.watch(1, Some(&place)), Watching::All);
        assert_eq!(bed.policy.unseen(), [""; 0]);
        let changes =
            ["ip rule add pref 5 from 10.0.0.1 table 9", "sysctl -qw net.ipv4.conf.all.rp_filter=1"];
        for change in changes {
            bed.run("red", change);
            assert_eq!(bed.take_marked(), RED, "{change}");
        }
    });
}

fn charged(plane: &Plane) -> u64 {
    let charges = plane.counters().unwrap().charges;
    charges
        .into_iter()
        .filter(|((_, why), _)| *why == Reason::PolicyChanged)
        .map(|(_, packets)| packets)
        .sum()
}

#[test]
#[ignore = "needs root"]
fn packets_of_a_marked_router_go_to_the_kernel_as_they_came() {
    const PASS: u32 = 2;
    const REDIRECT: u32 = 4;
    in_new_namespace(|| {
        for n in 0..2 {
            run(&format!("ip link add p{n} type veth peer name q{n}"));
            run(&format!("ip link set p{n} up"));
        }
        let mut bed = Bed::new();
        let (mut plane, _tables) = loaded_watched(bed.policy.plane_maps());
        let device = ifindex("p0");
        let frames = [
            Frame::udp4(A, "10.0.1.9", "10.0.2.9").bytes(),
            Frame::udp6(A, "fd00:1::9", "fd00:2::9").bytes(),
        ];
        for shared in [false, true] {
            plane.set_shared(shared);
            for frame in &frames {
                let before = charged(&plane);
                assert_eq!(plane.run(device, frame).unwrap().action, REDIRECT);
                bed.run("red", "ip rule add pref 5 from 10.0.0.1 table 9");
                assert_eq!(
                    plane.run(device, frame).unwrap().action,
                    REDIRECT,
                    "after a change of another router's policy"
                );
                bed.run("host", "ip rule add pref 5 from 10.0.0.1 table 9");
                let up = plane.run(device, frame).unwrap();
                assert_eq!((up.action, &up.frame), (PASS, frame));
                assert_eq!(charged(&plane), before + 1);
                // A mark stays if its reader has not seen the last change.
                let marks = bed.policy.marks(0);
                bed.run("host", "ip rule del pref 5");
                assert!(!bed.policy.unmark(0, marks), "the mark of a later change was removed");
                assert_eq!(plane.run(device, frame).unwrap().action, PASS);
                bed.run("red", "ip rule del pref 5");
                assert_eq!(bed.take_marked(), [true, true, false]);
            }
        }
    });
}

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = (self.0.kill(), self.0.wait());
    }
}

/// The child of the test below: it acts as the daemon, leaves pins in this directory, and waits.
fn be_the_daemon(pins: &Path) {
    let mut policy = Policy::start(Waker::new().unwrap(), true, 0).unwrap();
    assert_eq!(policy.unseen(), [""; 0]);
    let mut map = MapHandle::try_from(policy.map().unwrap()).unwrap();
    map.pin(pins.join("marks")).unwrap();
    // A thread that ends is not the end of the process.
    std::thread::spawn(|| ()).join().unwrap();
    for (name, mut link) in policy.take_links() {
        link.pin(pins.join(name)).unwrap();
    }
    loop {
        std::thread::park();
    }
}

#[test]
#[ignore = "needs root"]
fn all_routers_are_marked_when_the_daemon_is_killed() {
    const PINS: &str = "MILLRACE_TEST_PINS";
    const NAME: &str = "all_routers_are_marked_when_the_daemon_is_killed";
    if let Some(pins) = std::env::var_os(PINS) {
        return be_the_daemon(Path::new(&pins));
    }
    let _mounted = router::daemon::kernel::ensure_bpffs().unwrap();
    let pins = std::path::PathBuf::from(format!("/sys/fs/bpf/policy-test-{}", id()));
    std::fs::create_dir(&pins).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    let child = child.args(["--exact", NAME, "--ignored"]).env(PINS, &pins).stdout(Stdio::null());
    let mut child = Running(child.spawn().unwrap());
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !pins.join("policy-exit").exists() {
        assert!(
            std::time::Instant::now() < end && child.0.try_wait().unwrap().is_none(),
            "the child did not become the daemon"
        );
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let map = MapHandle::from_pinned_path(pins.join("marks")).unwrap();
    let marks = || -> Vec<u64> {
        let row = |router: u32| map.lookup(&router.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
        (0..256).map(|router| u64::from_ne_bytes(row(router).try_into().unwrap())).collect()
    };
    let before = marks();
    child.0.kill().unwrap();
    child.0.wait().unwrap();
    let after = marks();
    std::fs::remove_dir_all(&pins).unwrap();
    assert_eq!((before, after), (vec![0; 256], vec![1; 256]));
}

/// The kernel does not report BPF links, so the daemon looks for them.
#[test]
#[ignore = "needs root"]
fn a_tcx_program_marks_all_routers_soon() {
    in_new_namespace(|| {
        let mut bed = Bed::new();
        assert_eq!(bed.take_marked(), NOBODY);
        // r0 = TCX_NEXT; exit
        let program =
            [(0xb7, -1), (0x95, 0)].map(|(code, imm)| sys::bpf_insn { code, imm, ..Default::default() });
        let (kind, none) = (sys::BPF_PROG_TYPE_SCHED_CLS, std::ptr::null_mut());
        // SAFETY: strings and instructions live across the call; there are no options.
        let fd = unsafe {
            sys::bpf_prog_load(kind, c"other".as_ptr(), c"GPL".as_ptr(), program.as_ptr(), 2, none)
        };
        assert!(fd >= 0, "loading the program: error {fd}");
        // SAFETY: as above.
        let link =
            unsafe { sys::bpf_link_create(fd, ifindex("v0") as i32, sys::BPF_TCX_INGRESS, std::ptr::null()) };
        assert!(link >= 0, "attaching the program: error {link}");
        let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while bed.policy.marks(2) == 0 || bed.policy.marks(0) == 0 {
            assert!(std::time::Instant::now() < end, "the program was not noticed within 10 s");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        // The reason for the marks is pending: each namespace is read, and its programs with it.
        assert_eq!(SLOTS.map(|slot| bed.policy.take_pending(slot)), [1, 1, 1]);
        // SAFETY: descriptors of ours.
        unsafe { (libc::close(link), libc::close(fd)) };
    });
}
