//! Two routers that get the same frames: plain Linux, and Linux with Millrace.

use super::{
    connection::{Connection, Sent, Spec},
    router::{DEVICES, Device, Placement, Router, Rules},
};
use fastrand::Rng;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

/// The longest wait for the frames of one packet, if an answer behind it has come. Most packets come out at once.
const AT_ONCE: Duration = Duration::from_millis(4);
/// If no frame comes out for this long, all have come out.
const QUIET: Duration = Duration::from_millis(30);
/// The longest time that frames take on a busy machine.
const BUSY: Duration = Duration::from_millis(600);
const PATIENCE: Duration = Duration::from_secs(20);
/// Packets after which Millrace asks Linux about a connection.
const NOTED: usize = 8;
/// The differences that are printed.
const PRINTED: usize = 4;

/// A frame that came out, and the number of frames sent until then.
#[derive(Clone, Debug)]
pub struct Out {
    pub device: Device,
    pub frame: Vec<u8>,
    sent: usize,
}

impl PartialEq for Out {
    fn eq(&self, other: &Out) -> bool {
        (self.device, &self.frame) == (other.device, &other.frame)
    }
}

/// A fast connection: its protocol, and the packets of one direction as they arrive.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FastKey(String, [SocketAddr; 2]);

impl FastKey {
    pub fn new(protocol: &str, ends: [SocketAddr; 2]) -> FastKey {
        FastKey(protocol.into(), ends)
    }

    fn of(report: &Value) -> FastKey {
        let end = |name: &str| report[name].as_str().unwrap().parse().unwrap();
        FastKey::new(report["protocol"].as_str().unwrap(), [end("source"), end("destination")])
    }

    pub fn is_of(&self, protocol: &str, ends: [SocketAddr; 2]) -> bool {
        self.0 == protocol && self.1 == ends
    }

    /// In the words of `conntrack -L`.
    pub fn text(&self) -> String {
        let [source, destination] = self.1;
        let ends = format!("src={} dst={}", source.ip(), destination.ip());
        format!("{ends} sport={} dport={}", source.port(), destination.port())
    }
}

/// Frames of one direction of a connection: the device, addresses, protocol and ports.
type Flow = (Device, Vec<u8>);

pub struct Worlds {
    pub linux: Router,
    pub millrace: Router,
    sent: Vec<Sent>,
    out: [Vec<Out>; 2],
    /// Answers of ARP that came out.
    answers: [usize; 2],
    /// A device without an address, so its questions have no answers.
    pub silent: Option<Device>,
    /// The counts of the connections when counting began.
    before: BTreeMap<usize, [u64; 2]>,
    counted: BTreeMap<usize, u64>,
}

impl Worlds {
    pub fn new(placement: Placement, rules: Rules) -> Worlds {
        let linux = Router::new(placement, rules);
        if placement == Placement::Vlan {
            linux.pass_by_xdp();
        }
        let mut millrace = Router::new(placement, rules);
        millrace.start();
        let mut worlds = Worlds {
            linux,
            millrace,
            sent: Vec::new(),
            out: Default::default(),
            answers: [0; 2],
            silent: None,
            before: BTreeMap::new(),
            counted: BTreeMap::new(),
        };
        worlds.until_verified();
        worlds
    }

    pub fn run(&self, line: &str) {
        self.routers().into_iter().for_each(|router| drop(router.run(line)));
    }

    pub fn nft(&self, rules: &str) {
        self.routers().into_iter().for_each(|router| router.nft(rules));
    }

    /// # Errors
    /// The words of `nft`. Then neither router has the rules.
    pub fn try_nft(&self, rules: &str) -> Result<(), String> {
        self.linux.try_nft(rules)?;
        self.millrace.nft(rules);
        Ok(())
    }

    pub fn run_all(&self, commands: &[String]) {
        self.routers().into_iter().for_each(|router| router.run_all(commands));
    }

    pub fn set_rules(&self) {
        self.routers().into_iter().for_each(Router::set_rules);
    }

    pub fn set_neighbours(&self) {
        self.routers().into_iter().for_each(Router::set_neighbours);
    }

    fn routers(&self) -> [&Router; 2] {
        [&self.linux, &self.millrace]
    }

    pub fn pause_daemon(&self, pause: bool) {
        self.millrace.pause_daemon(pause);
    }

    /// Runs a command line that makes Linux delete connections, while it loses reports of this.
    pub fn lose_reports(&self, line: &str) {
        self.millrace.pause_daemon(true);
        self.millrace.set_report_room(1);
        self.try_to_run(line);
        self.millrace.set_report_room(8 << 20);
        self.millrace.pause_daemon(false);
    }

    pub fn until_verified(&mut self) {
        self.millrace.until_verified();
    }

    /// The daemon is killed, and another one starts after `between`.
    pub fn restart(&mut self, between: impl FnOnce(&mut Worlds)) {
        self.millrace.kill();
        between(self);
        self.millrace.start();
        self.until_verified();
    }

    /// Waits until Millrace has dropped the connections that Linux does not track any more.
    pub fn until_forgotten(&self) {
        self.millrace.until("connections to be forgotten", || {
            let fast = self.fast();
            let tracked: String = self.millrace.tracked().into_iter().collect();
            let forgotten: Vec<_> = fast.keys().filter(|key| !tracked.contains(&key.text())).collect();
            if forgotten.is_empty() { Ok(()) } else { Err(format!("{forgotten:?}")) }
        });
    }

    /// The fast connections, and their packets that have bypassed the rules.
    pub fn fast(&self) -> BTreeMap<FastKey, u64> {
        let reports = self.millrace.connections();
        let fast = reports.iter().filter(|report| report["state"] == "fast");
        let packets =
            |report: &Value| ["packets", "reply_packets"].map(|name| report[name].as_u64().unwrap());
        fast.map(|report| (FastKey::of(report), packets(report).iter().sum())).collect()
    }

    /// The connections that stay with Linux, and why.
    pub fn refused(&self) -> BTreeMap<FastKey, String> {
        let reports = self.millrace.connections();
        let why =
            |report: &Value| Some((FastKey::of(report), report["why_not"]["text"].as_str()?.to_owned()));
        reports.iter().filter_map(why).collect()
    }

    pub fn stop(&mut self) {
        self.wait_until_quiet();
        self.compare("late frames");
        self.millrace.stop();
    }

    /// Sends a packet through both routers, and waits for the same number of frames. If none come out, waits for answers
    /// behind them.
    pub fn send(&mut self, sent: &Sent) {
        for router in self.routers() {
            router.send(sent.ingress, &sent.packet);
        }
        self.sent.push(sent.clone());
        if let Some(number) = sent.counted {
            *self.counted.entry(number).or_default() += 1;
        }
        let first = self.out.each_ref().map(Vec::len);
        self.collect();
        let more = |worlds: &Worlds| [0, 1].map(|world| worlds.out[world].len() - first[world]);
        if matches!(more(self), [linux, millrace] if linux == millrace && linux > 0) {
            return;
        }
        self.answers = [0; 2];
        self.routers().iter().for_each(|router| router.ask(sent.ingress));
        let begun = Instant::now();
        loop {
            self.collect();
            let [linux, millrace] = more(self);
            let is_answered = self.answers.iter().all(|answers| *answers > 0);
            let patience = if is_answered || self.silent == Some(sent.ingress) { AT_ONCE } else { BUSY };
            if linux == millrace && (linux > 0 || is_answered) || begun.elapsed() > patience {
                return;
            }
            thread::yield_now();
        }
    }

    pub fn ip_offset(&self) -> usize {
        self.linux.ip_offset()
    }

    /// Runs a command line that may fail.
    pub fn try_to_run(&self, line: &str) {
        self.routers().into_iter().for_each(|router| _ = router.try_to_run(line));
    }

    /// Makes conntrack call all UDP connections ASSURED. Otherwise it does this two seconds after their first packet.
    pub fn assure(&self) {
        for router in self.routers() {
            // The tool stops at a connection that ends meanwhile.
            router.until("connections of UDP to be assured", || {
                for family in ["ipv4", "ipv6"] {
                    _ = router.try_to_run(&format!("conntrack -U -f {family} -p udp --status ASSURED"));
                }
                let all = router.tracked().into_iter();
                let others = Vec::from_iter(
                    all.filter(|line| line.starts_with("udp ") && !line.contains("[ASSURED]")),
                );
                if others.is_empty() { Ok(()) } else { Err(format!("{others:#?}")) }
            });
        }
    }

    /// The frames that have come out of plain Linux since the last comparison.
    pub fn out_of_linux(&self) -> &[Out] {
        &self.out[0]
    }

    /// Returns whether any frames came out.
    fn collect(&mut self) -> bool {
        let mut any = false;
        let sent = self.sent.len();
        for (world, router) in [&self.linux, &self.millrace].into_iter().enumerate() {
            for device in DEVICES {
                while let Some(frame) = router.receive(device) {
                    self.answers[world] += usize::from(is_answer(&frame, router.ip_offset()));
                    if let Some(frame) = normalised(frame, router.ip_offset()) {
                        self.out[world].push(Out { device, frame, sent });
                        any = true;
                    }
                }
            }
        }
        any
    }

    fn wait_until_quiet(&mut self) {
        let mut until = Instant::now() + QUIET;
        while Instant::now() < until {
            if self.collect() {
                until = Instant::now() + QUIET;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// The frames that came out since the last look: without Millrace and with it.
    pub fn take_out(&mut self) -> [Vec<Out>; 2] {
        self.wait_until_quiet();
        self.sent.clear();
        std::mem::take(&mut self.out)
    }

    /// Asserts that the same frames have come out of both routers since the last look. Frames that come later are compared
    /// the next time.
    pub fn compare(&mut self, what: &str) {
        self.collect();
        let end = Instant::now() + BUSY;
        let offset = self.linux.ip_offset();
        let same = |worlds: &Worlds| {
            let [linux, millrace] = worlds.out.each_ref().map(|out| flows(out, offset));
            linux == millrace
        };
        while !same(self) && Instant::now() < end {
            self.wait_until_quiet();
        }
        if !same(self) {
            panic!("{what}: {}", self.describe());
        }
        self.out = Default::default();
        self.sent.clear();
    }

    /// Asserts that conntrack has the same connections in both namespaces, in the same states.
    pub fn compare_tracked(&self, what: &str) {
        let [linux, millrace] = self.routers().map(Router::tracked);
        let only = |a: &BTreeSet<String>, b: &BTreeSet<String>| a.difference(b).cloned().collect::<Vec<_>>();
        let differ = [only(&linux, &millrace), only(&millrace, &linux)];
        assert!(
            differ.iter().all(Vec::is_empty),
            "{what}: conntrack without Millrace, and with it: {differ:#?}"
        );
    }

    /// Waits until conntrack has the same connections in both namespaces. The daemon sees some ends only when it looks.
    pub fn until_the_same_are_tracked(&self) {
        self.millrace.until("conntrack to have the same connections", || {
            let [linux, millrace] = self.routers().map(Router::tracked);
            let differ: Vec<_> = linux.symmetric_difference(&millrace).collect();
            if differ.is_empty() { Ok(()) } else { Err(format!("{differ:#?}")) }
        });
    }

    fn describe(&self) -> String {
        let mut words = String::from("other frames came out with Millrace");
        let offset = self.linux.ip_offset();
        let [linux, millrace] = self.out.each_ref().map(|out| flows(out, offset));
        let all: BTreeSet<&Flow> = linux.keys().chain(millrace.keys()).collect();
        for flow in all.into_iter().filter(|flow| linux.get(*flow) != millrace.get(*flow)).take(PRINTED) {
            let none = Vec::new();
            let [linux, millrace] = [&linux, &millrace].map(|flows| flows.get(flow).unwrap_or(&none));
            let at = linux.iter().zip(millrace).take_while(|(a, b)| a == b).count();
            write!(words, "\n{:?}, frame {at} of {} and {}:", flow.0, linux.len(), millrace.len()).unwrap();
            for (name, out) in [("Linux", linux.get(at)), ("Millrace", millrace.get(at))] {
                let (label, hex) = out.map_or(("nothing".into(), String::new()), |out| {
                    let hex: String = out.frame.iter().take(120).map(|byte| format!("{byte:02x}")).collect();
                    (format!("after {}", self.sent[out.sent - 1].label), hex)
                });
                write!(words, "\n  {name}: {label}\n    {hex}").unwrap();
            }
        }
        words
    }

    /// The packets of each fast connection, by number.
    fn counts(&self, connections: &[Connection]) -> BTreeMap<usize, [u64; 2]> {
        let mut counts = BTreeMap::new();
        for report in self.millrace.connections().iter().filter(|report| report["state"] == "fast") {
            let ends = ["source", "destination"]
                .map(|end| report[end].as_str().unwrap().parse::<SocketAddr>().unwrap());
            let of = |c: &&Connection| {
                c.protocol_name() == report["protocol"] && c.ways.iter().any(|way| way.arrives == ends)
            };
            if let Some(connection) = connections.iter().find(of) {
                let count = ["packets", "reply_packets"].map(|name| report[name].as_u64().unwrap());
                counts.insert(connection.number, count);
            }
        }
        counts
    }

    /// Sends packets of all connections in both directions until all of them bypass rules.
    pub fn until_fast(&mut self, connections: &mut [Connection]) {
        let begun = Instant::now();
        let mut rng = Rng::with_seed(1);
        let mut small = |connection: &mut Connection, way| {
            connection.data(way, &Spec { payload: vec![1], ..Spec::small(&mut rng) })
        };
        loop {
            let before = self.counts(connections);
            for connection in connections.iter_mut() {
                [0, 1].into_iter().for_each(|way| self.send(&small(connection, way)));
            }
            self.compare("on the way to fast connections");
            let after = self.counts(connections);
            let is_slow = |c: &&Connection| {
                let counts = before.get(&c.number).zip(after.get(&c.number));
                !counts.is_some_and(|(a, b)| a[0] + 1 == b[0] && a[1] + 1 == b[1])
            };
            let slow: Vec<_> = connections.iter().filter(is_slow).map(|c| c.number).collect();
            if slow.is_empty() {
                break;
            }
            if begun.elapsed() > PATIENCE {
                let slow = connections.iter().filter(is_slow).collect::<Vec<_>>();
                panic!("these are not fast: {slow:#?}\n{:#?}", self.millrace.connections());
            }
            // In a row: packets of another connection may begin the count of a connection again.
            for number in slow {
                for way in [0; NOTED].into_iter().chain([1; NOTED]) {
                    self.send(&small(&mut connections[number], way));
                }
            }
        }
        connections.iter_mut().for_each(|connection| connection.is_fast = true);
    }

    /// Waits until those that should not be fast are not.
    pub fn until_not_fast(&self, connections: &[Connection]) {
        self.millrace.until("connections to be forgotten", || {
            let fast = self.counts(connections);
            let wrong: Vec<_> =
                connections.iter().filter(|c| !c.is_fast && fast.contains_key(&c.number)).collect();
            if wrong.is_empty() { Ok(()) } else { Err(format!("{wrong:?}")) }
        });
    }

    pub fn begin_counting(&mut self, connections: &[Connection]) {
        self.before = self.counts(connections);
        self.counted.clear();
    }

    /// Asserts that Millrace has forwarded without rules all packets that it can, and no others.
    pub fn assert_counted(&self, what: &str, connections: &[Connection]) {
        let after = self.counts(connections);
        for Connection { number, name, .. } in connections.iter().filter(|c| c.is_fast) {
            let expected = self.counted.get(number).copied().unwrap_or(0);
            let counts = [&self.before, &after].map(|all| all.get(number).map(|count| count[0] + count[1]));
            let [Some(before), Some(after)] = counts else { panic!("{what}: {name} {number} is not fast") };
            assert_eq!(after - before, expected, "{what}: packets of {name} {number} that bypassed rules");
        }
    }
}

/// The frames of each flow, in order.
fn flows(out: &[Out], offset: usize) -> BTreeMap<Flow, Vec<&Out>> {
    let mut flows = BTreeMap::<Flow, Vec<&Out>>::new();
    for out in out {
        let ip = &out.frame[offset..];
        let key = match ip[0] >> 4 {
            4 => [&ip[9..10], &ip[12..20], &ip[20..ip.len().min(24)]].concat(),
            6 => [&ip[6..7], &ip[8..40], &ip[40..ip.len().min(44)]].concat(),
            _ => Vec::new(),
        };
        flows.entry((out.device, key)).or_default().push(out);
    }
    flows
}

fn is_answer(frame: &[u8], offset: usize) -> bool {
    frame.get(offset - 2..offset) == Some(&[8, 6]) && frame.get(offset + 6..offset + 8) == Some(&[0, 2])
}

/// A frame as it is compared, or `None` if it is not compared.
fn normalised(mut frame: Vec<u8>, offset: usize) -> Option<Vec<u8>> {
    match frame.get(offset - 2..offset)? {
        [0x08, 0x06] => return None,
        // ICMP errors of the router: its own packets begin with this TTL. Linux limits some for lack of a route by its clock.
        [0x08, 0x00] if frame[offset + 9] == 1 && frame[offset + 8] == 64 => {
            if matches!(frame.get(offset + 20..offset + 22), Some([3, 0 | 1])) {
                return None;
            }
            frame[offset + 4..offset + 6].fill(0);
            frame[offset + 10..offset + 12].fill(0);
        }
        [0x86, 0xdd] => {
            let next = frame[offset + 6];
            let kind = *frame.get(offset + 40)?;
            if next == 0 || next == 58 && (133..=143).contains(&kind) {
                return None;
            }
            if next == 44 {
                frame[offset + 44..offset + 48].fill(0);
            }
        }
        _ => (),
    }
    Some(frame)
}
