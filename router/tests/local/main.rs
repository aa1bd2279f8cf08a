//! Local delivery follows: the stack handles packets for a socket on the core where it is read, in the order
//! in which they were sent. Forwarded packets stay on their core. Settings made for that are restored at the
//! end, and settings of others are never changed.

#[path = "../common/mod.rs"]
mod common;
mod measure;

use common::{in_new_namespace, only_on, run};
use router::{cores::Roots, linux::netns};
use serde_json::Value;
use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream, UdpSocket},
    os::fd::AsRawFd as _,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(90);
const PACKETS: u64 = 1000;
/// Packets that may be on another core: others of the machine, and those before Linux knows where a socket is
/// read.
const OTHERS: u64 = PACKETS / 10;
const FOLLOW: &str = "[experimental]\nlocal = \"follow\"";
const PORTS: [&str; 2] = ["lp0", "lp1"];

fn millrace() -> &'static str {
    if common::is_emulated() { "/millrace/millrace" } else { env!("CARGO_BIN_EXE_millrace") }
}

/// The router has lp0 and lp1, polled by threads on core 0. lq0 and lq1 are in a namespace of their own.
/// 10.0.1.9 is behind lp1.
struct Bed {
    name: String,
    roots: Roots,
    peer: File,
    /// A process that keeps the namespace known to the daemon.
    resident: Child,
    /// The number of entries of the machine's table of sockets before the test.
    sockets: String,
    daemon: Option<Child>,
}

impl Bed {
    fn new(name: &str) -> Bed {
        fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        let (roots, (peer, resident)) = (Roots::here().unwrap(), new_namespace());
        for n in 0..2 {
            run(&format!("ip link add lp{n} type veth peer name lq{n}"));
            run(&format!("ethtool -K lp{n} gro on"));
            run(&format!("ethtool -K lq{n} gro on tx off tso off txvlan off tx-vlan-stag-hw-insert off"));
            run(&format!("ip link set lq{n} netns /proc/{}/fd/{}", std::process::id(), peer.as_raw_fd()));
            run(&format!("ip addr add 10.0.{n}.1/24 dev lp{n}"));
            run(&format!("ip link set lp{n} up"));
            fs::write(roots.device(&format!("lp{n}")).join("threaded"), "1").unwrap();
        }
        let name = format!("mrlo{name}{}", std::process::id());
        let bed = Bed { name, roots, peer, resident, sockets: sockets(Some("0")), daemon: None };
        bed.there(|| {
            run("ip addr add 10.0.0.2/24 dev lq0");
            ["lq0", "lq1"].iter().for_each(|device| drop(run(&format!("ip link set {device} up"))));
            run("ip route add 10.0.1.0/24 via 10.0.0.1");
        });
        run("ip neigh add 10.0.1.9 lladdr 02:00:00:00:07:01 dev lp1");
        bed
    }

    /// Runs a task in the namespace of lq0 and lq1.
    fn there<T: Send>(&self, task: impl FnOnce() -> T + Send) -> T {
        netns::inside(&self.peer, task).unwrap()
    }

    fn start(&mut self, cores: &str, ports: &[&str]) {
        let (config, log) = (self.file("toml"), File::create(self.file("log")).unwrap());
        let fixed: Vec<String> = ports.iter().map(|port| format!("{port} = [0]")).collect();
        let text = format!("[cores]\npolicy = \"fixed\"\nfixed = {{ {} }}\n{cores}", fixed.join(", "));
        fs::write(&config, text).unwrap();
        let child = Command::new(millrace())
            .args(["run", "--instance", &self.name, "--config", &config])
            .args(ports.iter().flat_map(|port| ["--port", port]))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.daemon = Some(child.unwrap());
        self.wait_for("the places", |report| {
            let queues = report["queues"].as_array().unwrap();
            queues.len() == ports.len() && queues.iter().all(|queue| queue["core"] == 0)
        });
        let start = Instant::now();
        while !self.json("status").is_some_and(|status| status["ready"] == true) {
            assert!(start.elapsed() < PATIENCE, "the daemon is not ready: {}", self.millrace(&["status"]));
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn stop(&mut self) {
        self.millrace(&["stop"]);
        self.daemon.take().unwrap().wait().unwrap();
    }

    fn kill(&mut self) {
        let mut daemon = self.daemon.take().unwrap();
        daemon.kill().unwrap();
        daemon.wait().unwrap();
    }

    fn file(&self, end: &str) -> String {
        format!("/tmp/{}.{end}", self.name)
    }

    fn millrace(&self, words: &[&str]) -> String {
        let output =
            Command::new("timeout").args(["60", millrace(), "--instance", &self.name]).args(words).output();
        String::from_utf8_lossy(&output.unwrap().stdout).into_owned()
    }

    fn json(&self, word: &str) -> Option<Value> {
        let text = self.millrace(&[word, "--json"]);
        match word {
            // A line each.
            "events" => text.lines().map(serde_json::from_str::<Value>).collect::<Result<_, _>>().ok(),
            _ => serde_json::from_str(&text).ok(),
        }
    }

    #[track_caller]
    fn wait_for(&self, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            // Until the daemon is there, the answer is an error.
            let cores = self.json("cores").filter(|cores| cores["queues"].is_array());
            if let Some(cores) = cores.filter(&condition) {
                return cores;
            }
            thread::sleep(Duration::from_millis(50));
        }
        let log = fs::read_to_string(self.file("log")).unwrap_or_default();
        panic!(
            "timed out waiting for {what}: {:?}\n{log}",
            self.json("cores").map(|cores| cores.to_string())
        );
    }

    #[track_caller]
    fn wait_until_it_follows(&self, queues: u64, sockets: u64) {
        let report = self.wait_for("local delivery that follows", |report| {
            let local = &report["local"];
            (&local["follow"], &local["queues"]) == (&queues.into(), &queues.into())
                && local["sockets"] == sockets
        });
        assert_eq!(report["conditions"], serde_json::json!([]));
    }

    /// The number of entries of the table of sockets, and of the tables of both queues.
    fn tables(&self) -> [String; 3] {
        let flows = |port| fs::read_to_string(self.flows(port)).unwrap().trim().to_owned();
        [sockets(None), flows("lp0"), flows("lp1")]
    }

    fn flows(&self, port: &str) -> std::path::PathBuf {
        self.roots.device(port).join("queues/rx-0/rps_flow_cnt")
    }

    /// Sends packets from lq0 to a socket that is read on a core. Returns the packets that the stack handled
    /// on each core meanwhile.
    fn udp(&self, core: usize) -> [u64; 2] {
        let sender = self.there(|| UdpSocket::bind("10.0.0.2:0").unwrap());
        let socket = UdpSocket::bind("10.0.0.1:0").unwrap();
        // Linux does not know where unconnected sockets are read.
        socket.connect(sender.local_addr().unwrap()).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let to = socket.local_addr().unwrap();
        let mut bytes = [0; 8];
        self.in_turns(
            core,
            32,
            |n| assert_eq!(sender.send_to(&n.to_be_bytes(), to).unwrap(), 8),
            move || {
                assert_eq!(socket.recv(&mut bytes).unwrap(), 8);
                bytes
            },
        )
    }

    /// The same over a connection, with a segment for each number.
    fn tcp(&self, core: usize) -> [u64; 2] {
        let listener = TcpListener::bind("10.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let mut sender = self.there(|| TcpStream::connect(to).unwrap());
        sender.set_nodelay(true).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut bytes = [0; 8];
        self.in_turns(
            core,
            1,
            |n| sender.write_all(&n.to_be_bytes()).unwrap(),
            move || {
                stream.read_exact(&mut bytes).unwrap();
                bytes
            },
        )
    }

    /// Sends numbers in bursts, which are then read on a core. None may be missing, or out of order.
    fn in_turns(
        &self,
        core: usize,
        burst: u64,
        mut send: impl FnMut(u64),
        mut receive: impl FnMut() -> [u8; 8] + Send + 'static,
    ) -> [u64; 2] {
        let (tell, told) = mpsc::channel();
        let reader = thread::spawn(move || {
            only_on([core]);
            for n in 0..PACKETS {
                assert_eq!(u64::from_be_bytes(receive()), n, "the next number on core {core}");
                tell.send(()).unwrap();
            }
        });
        let before = worked();
        for n in 0..PACKETS {
            send(n);
            // A ring of a veth has room for 256 packets. Linux knows the core from the second read on.
            if n == 0 || n % burst == 0 {
                (0..if n == 0 { 1 } else { burst }).for_each(|_| told.recv_timeout(PATIENCE).unwrap());
                thread::sleep(Duration::from_millis(u64::from(n == 0) * 100));
            }
        }
        reader.join().unwrap();
        since(before)
    }

    /// The number of packets that came out of the router.
    fn arrived(&self) -> u64 {
        let read = || fs::read_to_string(Roots::here().unwrap().device("lq1").join("statistics/rx_packets"));
        self.there(read).unwrap().trim().parse().unwrap()
    }

    /// Sends packets through the router. Returns the packets that the stack handled on each core.
    fn forward(&self) -> [u64; 2] {
        let sender = self.there(|| UdpSocket::bind("10.0.0.2:0").unwrap());
        let (before, already) = (worked(), self.arrived());
        for n in 0..PACKETS {
            sender.send_to(&n.to_be_bytes(), "10.0.1.9:9").unwrap();
            if n % 32 == 0 {
                thread::sleep(Duration::from_millis(1));
            }
        }
        let start = Instant::now();
        while self.arrived() < already + PACKETS {
            assert!(
                start.elapsed() < PATIENCE,
                "only {} of {PACKETS} packets were forwarded",
                self.arrived() - already
            );
            thread::sleep(Duration::from_millis(10));
        }
        since(before)
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = (daemon.kill(), daemon.wait());
        }
        self.millrace(&["stop"]);
        let _ = (self.resident.kill(), self.resident.wait());
        sockets(Some(&self.sockets));
        for end in ["toml", "log"] {
            let _ = fs::remove_file(self.file(end));
        }
    }
}

/// Makes a namespace with a process in it.
fn new_namespace() -> (File, Child) {
    let thread = thread::spawn(|| {
        // SAFETY: moves only this thread, which ends here, into a new network namespace.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
        let resident = Command::new("sleep").arg("600").spawn().unwrap();
        (File::open("/proc/thread-self/ns/net").unwrap(), resident)
    });
    thread.join().unwrap()
}

/// The number of entries of the machine's table of sockets. Sets another, if given.
fn sockets(entries: Option<&str>) -> String {
    let first = File::open("/proc/2/ns/net").unwrap();
    let file = "/proc/sys/net/core/rps_sock_flow_entries";
    let had = netns::inside(&first, || fs::read_to_string(file).unwrap()).unwrap();
    if let Some(entries) = entries {
        netns::inside(&first, || fs::write(file, entries).unwrap()).unwrap();
    }
    had.trim().to_owned()
}

/// Packets that the stack has handled on each of the first two cores (`softnet_seq_show`,
/// net/core/net-procfs.c).
fn worked() -> [u64; 2] {
    let text = fs::read_to_string("/proc/net/softnet_stat").unwrap();
    let packets = |line: &str| u64::from_str_radix(line.split_whitespace().next().unwrap(), 16).unwrap();
    let mut lines = text.lines().map(packets);
    [(); 2].map(|()| lines.next().unwrap())
}

/// Packets since then. The counts have 32 bits.
fn since(before: [u64; 2]) -> [u64; 2] {
    let now = worked();
    [0, 1].map(|core| u64::from((now[core] as u32).wrapping_sub(before[core] as u32)))
}

#[track_caller]
fn on_core(core: usize, worked: [u64; 2]) {
    assert!(
        worked[core] >= PACKETS - OTHERS && worked[1 - core] < OTHERS,
        "not on core {core}: packets of each core: {worked:?}"
    );
}

#[test]
#[ignore = "needs root"]
fn the_stack_works_where_a_socket_is_read() {
    in_new_namespace(|| {
        let mut bed = Bed::new("w");
        bed.start("", &PORTS);
        on_core(0, bed.udp(1));
        // Acknowledgements come from the reader's core.
        let [there, _] = bed.tcp(1);
        assert!(there >= PACKETS - OTHERS, "only {there} packets on core 0");
        assert_eq!(bed.tables(), ["0", "0", "0"]);
        bed.stop();
        bed.start(FOLLOW, &PORTS);
        bed.wait_until_it_follows(2, 65536);
        for core in [1, 0, 1] {
            on_core(core, bed.udp(core));
            on_core(core, bed.tcp(core));
        }
        // The next hop's stack counts too, and is on the forwarding core here.
        on_core(0, bed.forward());
        bed.stop();
        assert_eq!(bed.tables(), ["0", "0", "0"]);
    });
}

#[test]
#[ignore = "needs root"]
fn the_next_daemon_restores_what_a_killed_one_changed() {
    in_new_namespace(|| {
        let mut bed = Bed::new("k");
        bed.start(FOLLOW, &PORTS);
        bed.wait_until_it_follows(2, 65536);
        bed.kill();
        assert_eq!(bed.tables(), ["65536"; 3]);
        // A daemon with the same setting, on fewer ports.
        bed.start(FOLLOW, &PORTS[..1]);
        bed.wait_until_it_follows(1, 65536);
        assert_eq!(bed.tables(), ["65536", "65536", "0"]);
        bed.kill();
        // A daemon without the setting.
        bed.start("", &PORTS);
        assert_eq!(bed.tables(), ["0"; 3]);
        bed.stop();
        // No other daemon, only `stop`.
        bed.start(FOLLOW, &PORTS);
        bed.wait_until_it_follows(2, 65536);
        bed.kill();
        bed.millrace(&["stop"]);
        assert_eq!(bed.tables(), ["0"; 3]);
    });
}

#[test]
#[ignore = "needs root"]
fn settings_of_others_stay_while_ports_come_and_go() {
    in_new_namespace(|| {
        let mut bed = Bed::new("s");
        sockets(Some("4096"));
        fs::write(bed.flows("lp1"), "256").unwrap();
        bed.start(FOLLOW, &PORTS);
        bed.wait_until_it_follows(2, 4096);
        assert_eq!(bed.tables(), ["4096", "4096", "256"]);
        let follows = |count: u64| {
            format!("local packets of {count} of {count} queues go to the cores where their sockets are read")
        };
        run("ip link del lp0");
        bed.wait_until_it_follows(1, 4096);
        run("ip link add lp0 type veth peer name lq0");
        bed.wait_until_it_follows(2, 4096);
        let events = bed.json("events").unwrap();
        let told = events.as_array().unwrap().iter().map(|event| event["why"].as_str().unwrap());
        let told: Vec<&str> = told.filter(|why| why.starts_with("local packets")).collect();
        assert_eq!(told, [follows(2), follows(1), follows(2)]);
        bed.stop();
        assert_eq!(bed.tables(), ["4096", "0", "256"]);
    });
}
