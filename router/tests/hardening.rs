//! What tenants and other users can do to the daemon with names that they choose, and what its threads could
//! do to the machine.

mod common;

use common::{in_new_namespace, run};
use router::linux::netlink::wire::Request;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, netlink, recv, send, socket};
use std::{
    collections::BTreeMap,
    fs,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

const MILLRACE: &str = env!("CARGO_BIN_EXE_millrace");

struct Daemon {
    child: Child,
    instance: String,
    directory: tempfile::TempDir,
}

impl Daemon {
    fn start(name: &str, arguments: &[&str]) -> Daemon {
        let (instance, directory) = (format!("{name}-{}", std::process::id()), tempfile::tempdir().unwrap());
        let log = fs::File::create(directory.path().join("log")).unwrap();
        let mut command = Command::new(MILLRACE);
        command.args(["run", "--port", "p0", "--instance", &instance]).args(arguments);
        let child = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let daemon = Daemon { child, instance, directory };
        daemon.until("a status", || daemon.cli(&["status"]).status.success());
        daemon
    }

    fn cli(&self, words: &[&str]) -> Output {
        Command::new(MILLRACE).args(words).args(["--instance", &self.instance]).output().unwrap()
    }

    fn log(&self) -> Vec<u8> {
        fs::read(self.directory.path().join("log")).unwrap()
    }

    #[track_caller]
    fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let until = Instant::now() + Duration::from_secs(60);
        while !is_so() {
            assert!(
                Instant::now() < until,
                "timed out waiting for {what}: {}",
                String::from_utf8_lossy(&self.log())
            );
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Effective capabilities of each thread, by its name.
    fn threads(&self) -> BTreeMap<String, u64> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap().flatten();
        // A thread may end while it is looked at.
        let statuses = tasks.filter_map(|task| fs::read_to_string(task.path().join("status")).ok());
        let field = |status: &str, name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().to_owned()
        };
        statuses
            .map(|status| {
                assert_eq!(field(&status, "NoNewPrivs:"), "1", "{status}");
                assert_eq!(field(&status, "CapInh:").trim_start_matches('0'), "", "{status}");
                let effective = u64::from_str_radix(&field(&status, "CapEff:"), 16).unwrap();
                assert_eq!(
                    u64::from_str_radix(&field(&status, "CapPrm:"), 16).unwrap(),
                    effective,
                    "{status}"
                );
                (field(&status, "Name:"), effective)
            })
            .collect()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.cli(&["stop"]);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The set of these capabilities, given by number (capability.h).
fn set(of: &[u32]) -> u64 {
    of.iter().map(|n| 1 << n).sum()
}

/// Before Linux 6.11, reading the key of multipath routes needs a capability that the daemon gives up.
#[test]
#[ignore = "needs root"]
fn a_daemon_knows_how_linux_chooses_next_hops() {
    in_new_namespace(|| {
        run("ip link add p0 type veth peer name q0");
        let daemon = Daemon::start("multipath", &[]);
        let log = String::from_utf8(daemon.log()).unwrap();
        assert!(!log.contains("multipath"), "{log}");
    });
}

#[test]
#[ignore = "needs root"]
fn threads_that_parse_foreign_data_hold_few_capabilities() {
    const NET_BROADCAST: u32 = 11;
    const NET_ADMIN: u32 = 12;
    const NET_RAW: u32 = 13;
    const IPC_LOCK: u32 = 14;
    const SYS_PTRACE: u32 = 19;
    const SYS_ADMIN: u32 = 21;
    const SYS_NICE: u32 = 23;
    const PERFMON: u32 = 38;
    const BPF: u32 = 39;
    in_new_namespace(|| {
        run("ip link add p0 type veth peer name q0");
        run("ip link set lo up");
        let config = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(
            config.path(),
            "[metrics]\nlisten = \"127.0.0.1:9111\"\n[web]\nlisten = \"127.0.0.1:9112\"\n",
        )
        .unwrap();
        let config = config.path().to_str().unwrap();
        let daemon = Daemon::start("caps", &["--config", config, "--controller", "ptcp:0:127.0.0.1"]);
        let done = daemon.cli(&["flows", "add", "ip,nw_dst=192.0.2.1,actions=drop"]);
        assert!(done.status.success(), "{done:?}");
        let threads = daemon.threads();
        let all = set(&[
            NET_BROADCAST,
            NET_ADMIN,
            NET_RAW,
            IPC_LOCK,
            SYS_PTRACE,
            SYS_ADMIN,
            SYS_NICE,
            PERFMON,
            BPF,
        ]);
        for name in ["api", "api-files", "metrics", "web", "openflow-net", "signals", "flow-notices"] {
            assert_eq!(threads.get(name), Some(&0), "{name}: {threads:x?}");
        }
        let of_rules = set(&[NET_ADMIN, NET_RAW, IPC_LOCK, PERFMON, BPF]);
        assert_eq!(threads.get("switch"), Some(&of_rules), "{threads:x?}");
        assert!(
            threads.values().all(|effective| effective & !all == 0),
            "a thread holds more than {all:x}: {threads:x?}"
        );
        assert_eq!(threads.get("millrace"), Some(&all), "{threads:x?}");
    });
}

/// Makes a table and a base chain that drops nothing, under names that no tool would take.
fn make_chain(table: &str, chain: &str) {
    let netfilter = socket(AddressFamily::NETLINK, SocketType::RAW, Some(netlink::NETFILTER)).unwrap();
    let batch = |kind: u16| Request::new(kind, 0, &[0, 0, 0, 10]).bytes(0).to_vec();
    let header = [1, 0, 0, 0];
    let table = [table.as_bytes(), b"\0"].concat();
    let chain = [chain.as_bytes(), b"\0"].concat();
    const CREATE: u16 = 0x400;
    let table_message = Request::new(10 << 8, CREATE | 4, &header).with(1, &table).bytes(1).to_vec();
    // Hook forward, priority 0; its policy drops packets.
    let hook = [8, 0, 1, 0, 0, 0, 0, 2, 8, 0, 2, 0, 0, 0, 0, 0];
    let mut request = Request::new(10 << 8 | 3, CREATE | 4, &header)
        .with(1, &table)
        .with(3, &chain)
        .with(4 | 0x8000, &hook)
        .with(5, &[0; 4])
        .with(7, b"filter\0");
    let messages = [batch(0x10), table_message, request.bytes(2).to_vec(), batch(0x11)].concat();
    send(&netfilter, &messages, SendFlags::empty()).unwrap();
    for _ in 0..2 {
        let mut answer = [0_u8; 4096];
        let (bytes, _) = recv(&netfilter, &mut answer, RecvFlags::empty()).unwrap();
        assert_eq!(answer[..bytes].get(16..20), Some(&[0; 4][..]), "{:?}", &answer[..bytes]);
    }
}

#[test]
#[ignore = "needs root"]
fn hostile_names_reach_no_terminal_and_no_shell() {
    in_new_namespace(|| {
        run("sysctl -qw net.ipv4.ip_forward=1");
        let device = "\u{1b}[2J;$(id)'\"";
        let made =
            Command::new("ip").args(["link", "add", "p0", "type", "veth", "peer", "name", device]).status();
        assert!(made.unwrap().success());
        for name in ["p0", device] {
            assert!(Command::new("ip").args(["link", "set", "dev", name, "up"]).status().unwrap().success());
        }
        run("ip addr add 192.0.2.1/24 dev p0");
        make_chain("x\u{1b}]0;owned\u{7}", "fwd'; touch RAN; '\nmillrace: all is well\u{202e}");
        let daemon = Daemon::start("names", &[]);
        let text = |words: &[&str]| String::from_utf8(daemon.cli(words).stdout).unwrap();
        daemon.until("the chain", || text(&["routers"]).contains("drops packets that no rule accepts"));
        daemon.until("the veth peer", || text(&["ports"]).contains("partial checksums"));
        let all = [
            &["status"][..],
            &["ports"],
            &["routers"],
            &["interfaces"],
            &["firewall"],
            &["status", "--json"],
            &["metrics"],
        ];
        for words in
            all.into_iter().chain([&["top", "--once"][..], &["ports", "--json"], &["routers", "--json"]])
        {
            let said = text(words);
            assert!(
                said.bytes().all(|b| b == b'\n' || (b' '..=b'~').contains(&b)),
                "unprintable, {words:?}: {said:?}"
            );
            assert!(
                !said.lines().any(|line| line.starts_with("millrace: all is well")),
                "a name forged a line: {said}"
            );
        }
        let log = daemon.log();
        assert!(
            log.iter().all(|b| *b == b'\n' || (b' '..=b'~').contains(b)),
            "unprintable in the log: {log:?}"
        );
        // The command that it recommends names the device as one word.
        let ports = text(&["ports"]);
        let (_, command) = ports.split_once("partial checksums; run: ").unwrap();
        let command = command.split("; ").next().unwrap().lines().next().unwrap();
        let script = format!("ethtool() {{ printf '%s|' \"$@\"; }}\n{command}");
        let ran = Command::new("bash").args(["-c", &script]).output().unwrap();
        assert_eq!(String::from_utf8(ran.stdout).unwrap(), format!("-K|{device}|tx|off|"), "{command}");
    });
}
