//! How soon a gateway that vanished, or has another MAC address, is noticed while packets flow: with Millrace
//! and by Linux alone.
//!
//! ```text
//! near (q0) ── p0 router p1 ── far (q1): 10.0.2.9, which answers ARP
//! MILLRACE_MEASURE_ROUNDS=10 cargo test -p millrace --test neighbour_pace -- --ignored --nocapture --test-threads=1
//! ```

mod common;

use common::{frame::Frame, in_new_namespace, run, wire::Wire};
use logic::net::Mac;
use std::{
    fs,
    process::{Child, Command, Stdio, id},
    thread,
    time::{Duration, Instant},
};

const MILLRACE: &str = env!("CARGO_BIN_EXE_millrace");
const ROUTER: [Mac; 2] = [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])];
const PAUSE: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(30);

/// Linux draws the reachable time from half to one and a half times this base. After that it waits, and sends
/// three probes.
const REACHABLE_MS: u64 = 1000;

/// `delay_first_probe_time`, and `retrans_time_ms`.
#[derive(Clone, Copy)]
struct Timers {
    delay_s: u64,
    retrans_ms: u64,
}

impl Timers {
    /// The longest time from one confirmation of an entry in use to the next.
    fn cycle_ms(self) -> u64 {
        REACHABLE_MS * 3 / 2 + self.delay_s * 1000
    }
}

struct Bed {
    near: Wire,
    far: Wire,
    daemon: Option<Child>,
    instance: String,
    log: tempfile::NamedTempFile,
}

/// The gateway.
#[derive(Clone, Copy, PartialEq)]
enum Gateway {
    Answers(Mac),
    IsGone,
}

impl Bed {
    fn new(millrace: bool, timers: Timers) -> Bed {
        for (n, mac) in ROUTER.iter().enumerate() {
            run(&format!("ip link add p{n} address {mac} type veth peer name q{n}"));
            run(&format!("sysctl -qw net.ipv6.conf.q{n}.disable_ipv6=1 net.ipv6.conf.p{n}.disable_ipv6=1"));
            run(&format!("ethtool -K q{n} tx off txvlan off tx-vlan-stag-hw-insert off gro on"));
            run(&format!("ip addr add 10.0.{}.1/24 dev p{n}", n + 1));
            run(&format!("sysctl -qw net.ipv4.conf.p{n}.rp_filter=0"));
            run(&format!("ip link set q{n} up"));
            run(&format!("ip link set p{n} up"));
        }
        run("sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0");
        run("ip route add 10.9.0.0/16 via 10.0.2.9");
        let Timers { delay_s, retrans_ms } = timers;
        run(&format!("sysctl -qw net.ipv4.neigh.p1.base_reachable_time_ms={REACHABLE_MS}"));
        run(&format!("sysctl -qw net.ipv4.neigh.p1.delay_first_probe_time={delay_s}"));
        run(&format!("sysctl -qw net.ipv4.neigh.p1.retrans_time_ms={retrans_ms}"));
        let mut bed = Bed {
            near: Wire::open("q0"),
            far: Wire::open("q1"),
            daemon: None,
            instance: format!("pace-{}", id()),
            log: tempfile::NamedTempFile::new().unwrap(),
        };
        if millrace {
            let words = ["run", "--port", "p0", "--port", "p1", "--instance", &bed.instance];
            let log = bed.log.reopen().unwrap();
            let child = Command::new(MILLRACE).args(words).stdout(Stdio::null()).stderr(log).spawn();
            bed.daemon = Some(child.unwrap());
        }
        bed
    }

    /// The number of packets that Linux has forwarded.
    fn by_linux() -> u64 {
        let all = fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
        let mut ip = all.lines().filter(|line| line.starts_with("Ip:")).map(|line| line.split(' '));
        let (names, values) = (ip.next().unwrap(), ip.next().unwrap());
        names.zip(values).find(|(name, _)| *name == "ForwDatagrams").unwrap().1.parse().unwrap()
    }

    /// Sends a packet, and lets the gateway answer ARP requests. Returns the MAC addresses that packets left
    /// for.
    fn step(&self, gateway: Gateway) -> Vec<Mac> {
        self.near.send(&Frame::udp4(ROUTER[0], "10.0.1.9", "10.9.0.1").bytes());
        thread::sleep(PAUSE);
        let mut sent = Vec::new();
        while let Some(frame) = self.far.receive() {
            let to = Mac::from_slice(&frame[..6]).unwrap();
            match frame[12..14] {
                [8, 0] => sent.push(to),
                [8, 6] if frame[20..22] == [0, 1] && frame[38..42] == [10, 0, 2, 9] => {
                    if let Gateway::Answers(mac) = gateway
                        && (to == mac || to.is_group())
                    {
                        self.far.send(&arp_answer(mac, &frame));
                    }
                }
                _ => (),
            }
        }
        sent
    }

    /// Sends packets for this long. With Millrace, continues until the fast path takes them.
    fn settle(&self, gateway: Gateway, long: Duration) {
        let end = Instant::now() + long;
        while Instant::now() < end {
            self.step(gateway);
        }
        let until = Instant::now() + LONGEST;
        while self.daemon.is_some() {
            let before = Bed::by_linux();
            let sent: usize = (0..20).map(|_| self.step(gateway).len()).sum();
            if Bed::by_linux() == before && sent >= 15 {
                return;
            }
            assert!(
                Instant::now() < until,
                "the fast path takes no packets: {}",
                fs::read_to_string(self.log.path()).unwrap()
            );
        }
    }

    /// The time from the change until no packet leaves for the old address any more.
    fn notice(&self, old: Mac, new: Gateway) -> Duration {
        let (began, mut last) = (Instant::now(), Instant::now());
        while last.elapsed() < Duration::from_secs(2) {
            assert!(began.elapsed() < LONGEST, "packets still go to the old address after {LONGEST:?}");
            if self.step(new).contains(&old) {
                last = Instant::now();
            }
        }
        last - began
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

fn arp_answer(mac: Mac, question: &[u8]) -> Vec<u8> {
    let (asker, ip) = (&question[22..28], &question[28..32]);
    let head = [asker, &mac.0, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2]].concat();
    [&head[..], &mac.0, &[10, 0, 2, 9], asker, ip].concat()
}

/// The times in seconds, sorted.
fn seconds(mut all: Vec<Duration>) -> String {
    all.sort_unstable();
    all.iter().map(|time| format!("{:.2}", time.as_secs_f64())).collect::<Vec<_>>().join(" ")
}

fn measure(timers: Timers) {
    let rounds: u64 = std::env::var("MILLRACE_MEASURE_ROUNDS").map_or(5, |rounds| rounds.parse().unwrap());
    for millrace in [false, true] {
        in_new_namespace(move || {
            let bed = Bed::new(millrace, timers);
            let (mut moved, mut died) = (Vec::new(), Vec::new());
            let mac = |last: u64| Mac([2, 0, 0, 0, 8, last as u8]);
            for round in 0..rounds {
                let (first, second) = (mac(2 * round), mac(2 * round + 1));
                // Rounds begin at different times of the entry's life.
                let long = Duration::from_millis(2500 + timers.cycle_ms() * round / rounds);
                run("ip neigh flush dev p1");
                bed.settle(Gateway::Answers(first), long);
                moved.push(bed.notice(first, Gateway::Answers(second)));
                bed.settle(Gateway::Answers(second), long);
                died.push(bed.notice(second, Gateway::IsGone));
            }
            let who = if millrace { "Millrace" } else { "Linux" };
            println!("{who}: another MAC address after {} s; gone after {} s", seconds(moved), seconds(died));
        });
    }
}

#[test]
#[ignore = "measures; needs root"]
fn measure_how_soon_a_gateway_that_moved_or_died_is_noticed() {
    measure(Timers { delay_s: 1, retrans_ms: 250 });
}

#[test]
#[ignore = "measures; needs root"]
fn measure_the_same_with_the_usual_delay_and_probes() {
    measure(Timers { delay_s: 5, retrans_ms: 1000 });
}
