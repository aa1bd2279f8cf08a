//! Random connections under random rules, while rules, routes, devices and connections change.
//!
//! The ends of connections see only what comes out of plain Linux: they answer packets as these leave, and acknowledge
//! nothing else. So Linux calls no packet invalid that Millrace cannot know to be.
//!
//! `MILLRACE_SEED=n` starts with another seed, and `MILLRACE_ROUNDS` sets the number of rulesets.

use super::{
    common,
    connection::{ACK, Connection, FIN, RST, SYN, Sent, Spec, TCP, UDP, Way, both_ways},
    kinds,
    router::{DEVICES, Device, HOSTS, Placement, Rules, neighbours},
    ruleset::{self, FILTERS, PORTS, Ruleset},
    worlds::{FastKey, Out, Worlds},
};
use fastrand::Rng;
use std::{
    collections::BTreeMap,
    env,
    net::{IpAddr, SocketAddr},
    panic::{AssertUnwindSafe, catch_unwind},
    thread,
    time::{Duration, Instant},
};

const ROUNDS: u64 = 10;
/// The run ends after this many differences.
const ENOUGH: usize = 5;
const CONNECTIONS: usize = 28;
const CHANGES: usize = 8;
/// Millrace asks Linux about a connection after 8 packets of one direction.
const NOTED: usize = 9;
/// The daemon reads changed rules within this time.
const READ: Duration = Duration::from_millis(60);
/// The daemon answers notes of the kernel plane within this time, if it has nothing else to do.
const ANSWERED: Duration = Duration::from_millis(40);
/// Linux deletes connections of a removed address later, in a workqueue.
const DELETED_LATER: Duration = Duration::from_millis(250);

/// In some rounds Linux forgets quiet connections of UDP after so many seconds.
const SHORT_S: u32 = 5;
const USUAL_S: u32 = 120;
/// The daemon reads settings of conntrack every five seconds.
const SETTINGS_READ: Duration = Duration::from_millis(5500);
/// Linux counts timeouts in seconds, and the daemon renews them in whole ones.
const FORGOTTEN: Duration = Duration::from_secs(SHORT_S as u64 + 3);

/// Networks behind a gateway, of IPv4 and IPv6, and a host in each.
const REMOTE: [[&str; 2]; 4] = [
    ["192.0.2.0/24", "fd00:9::/64"],
    ["10.6.0.0/16", "fd00:6::/64"],
    ["192.0.2.7/32", "fd00:9::7/128"],
    ["10.6.0.7/32", "fd00:6::7/128"],
];

#[test]
#[ignore = "needs root"]
fn random_connections_under_random_rules() {
    common::in_new_namespace(|| {
        let first = variable("MILLRACE_SEED").unwrap_or(20_261_128);
        let rounds = variable("MILLRACE_ROUNDS").unwrap_or(ROUNDS);
        let mut worlds: BTreeMap<bool, Worlds> = BTreeMap::new();
        let mut tally = Tally::default();
        let mut found = Vec::new();
        for seed in first..first + rounds {
            let mut rng = Rng::with_seed(seed);
            let is_tenant = rng.u8(0..4) == 0;
            let begun = Instant::now();
            let played = catch_unwind(AssertUnwindSafe(|| {
                let placement = if is_tenant { Placement::Tenant } else { Placement::Host };
                let worlds = worlds.entry(is_tenant).or_insert_with(|| Worlds::new(placement, Rules::Filter));
                Round::new(worlds, rng, &mut tally).play();
            }));
            tally.rounds += 1;
            if played.is_err() {
                // The panic has printed why.
                found.push(seed);
                eprintln!("a difference: MILLRACE_SEED={seed} MILLRACE_ROUNDS=1");
                worlds.remove(&is_tenant);
            }
            eprintln!("seed {seed}: {:.1} s, {tally:?}", begun.elapsed().as_secs_f32());
            if found.len() >= ENOUGH {
                break;
            }
        }
        eprintln!("{tally:?}");
        assert!(found.is_empty(), "differences with the seeds {found:?}");
        worlds.into_values().for_each(|mut worlds| worlds.stop());
        tally.assert_it_tests_something();
    });
}

fn variable(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|e| panic!("{name}: {e}")))
}

/// What the rounds have done.
#[derive(Default, Debug)]
struct Tally {
    rounds: u64,
    connections: u64,
    changes: u64,
    packets: u64,
    delivered: u64,
    /// Packets that have bypassed the rules.
    fast: u64,
}

impl Tally {
    /// A third of the packets that come out must have bypassed rules.
    fn assert_it_tests_something(&self) {
        if self.rounds < ROUNDS {
            return;
        }
        assert!(self.delivered * 3 > self.packets, "few packets came out: {self:?}");
        assert!(self.fast * 6 > self.delivered, "few packets were fast: {self:?}");
    }
}

struct Live {
    connection: Connection,
    /// Linux has let a packet of the first direction through, so the other end can answer.
    is_open: bool,
    has_begun: bool,
    /// It has begun again, maybe while Linux still called it established.
    has_begun_again: bool,
    /// Its ends are done with it, and send nothing before it begins again.
    is_over: bool,
}

struct Round<'a> {
    worlds: &'a mut Worlds,
    tally: &'a mut Tally,
    rng: Rng,
    all: Vec<Live>,
    rules: Ruleset,
    /// The port of the connection whose port NAT changes.
    port: u16,
    /// The device that each remote network is behind; `None`: it has no route of its own.
    behind: [Option<Device>; 4],
    names: [String; 3],
    fast: BTreeMap<FastKey, u64>,
    /// Linux accepts all sequence numbers, as it does for fast connections. Otherwise the ends must not begin a connection
    /// again in its middle.
    is_liberal: bool,
    forgets_soon: bool,
    /// UDP connections have begun that Linux does not call ASSURED yet.
    is_fresh: bool,
    /// What has happened, for people who look for the cause of a difference.
    steps: Vec<String>,
}

impl Drop for Round<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("\n{}", self.steps.join("\n"));
        }
    }
}

impl Round<'_> {
    fn new<'a>(worlds: &'a mut Worlds, mut rng: Rng, tally: &'a mut Tally) -> Round<'a> {
        let port = rng.u16(1200..1900);
        let tracks_all = rng.u8(0..8) > 0;
        let rules = Ruleset::random(&mut rng, port, tracks_all);
        let mut device = |usual| Some(if rng.u8(0..4) > 0 { usual } else { rng.choice(DEVICES).unwrap() });
        let behind = [device(Device::Wan), device(Device::Dmz), None, None];
        Round {
            worlds,
            tally,
            all: Vec::new(),
            rules,
            port,
            behind,
            names: DEVICES.map(|device| device.name().into()),
            fast: BTreeMap::new(),
            is_fresh: true,
            is_liberal: rng.bool(),
            forgets_soon: rng.u8(0..32) == 0,
            steps: Vec::new(),
            rng,
        }
    }

    fn play(&mut self) {
        self.set_up();
        for number in 0..CONNECTIONS {
            let connection = self.connection(number);
            self.all.push(Live {
                connection,
                is_open: false,
                has_begun: false,
                has_begun_again: false,
                is_over: false,
            });
            self.begin(number);
        }
        self.worlds.compare("connections begin");
        for _ in 0..CHANGES {
            thread::sleep(READ);
            self.make_fast();
            self.packets(30);
            self.count_fast();
            let what = self.change();
            self.log(&what);
            self.tally.changes += 1;
            self.packets(40);
            self.compare(&what);
        }
        self.make_fast();
        self.packets(60);
        self.compare("the end");
        self.count_fast();
        if self.forgets_soon {
            self.set_timeout(SHORT_S);
            self.time_passes();
            self.set_timeout(USUAL_S);
        }
        self.restore();
    }

    fn set_timeout(&mut self, seconds: u32) {
        let names = ["udp_timeout", "udp_timeout_stream"];
        let settings = names.map(|name| format!("net.netfilter.nf_conntrack_{name}={seconds}")).join(" ");
        self.worlds.run(&format!("sysctl -qw {settings}"));
        thread::sleep(SETTINGS_READ);
    }

    /// Linux forgets connections of UDP. Packets of the first direction come first, and may begin them again.
    fn time_passes(&mut self) {
        self.make_fast();
        thread::sleep(FORGOTTEN);
        self.worlds.until_forgotten();
        for live in self.all.iter_mut().filter(|live| live.connection.protocol == UDP) {
            live.is_open = false;
        }
        self.packets(60);
        self.compare("time has passed");
        self.make_fast();
        self.packets(60);
        self.compare("after time has passed");
    }

    fn log(&mut self, what: &str) {
        self.steps.push(what.to_owned());
    }

    fn compare(&mut self, what: &str) {
        self.worlds.compare(what);
        if self.rules.tracks_all {
            self.worlds.compare_tracked(what);
        }
    }

    /// The devices, addresses, hosts and routes of the round, and its rules.
    fn set_up(&mut self) {
        self.restore();
        // No timeout ends within a round.
        // The timeout of closed connections shows the daemon that Linux has seen an RST. The others are longer.
        let timeouts = [
            "tcp_timeout_close=100",
            "tcp_timeout_last_ack=300",
            "tcp_timeout_close_wait=300",
            "udp_timeout=300",
        ];
        let settings = timeouts.map(|setting| format!("net.netfilter.nf_conntrack_{setting}")).join(" ");
        let liberal = u8::from(self.is_liberal);
        self.worlds
            .run(&format!("sysctl -qw {settings} net.netfilter.nf_conntrack_tcp_be_liberal={liberal}"));
        self.worlds.run("conntrack -F");
        self.set_rules();
        self.worlds.until_forgotten();
        self.worlds.until_verified();
        self.log(&self.rules.text.clone());
    }

    /// Sets the rules. If `nft` refuses them, it gets others.
    fn set_rules(&mut self) {
        while let Err(words) = self.worlds.try_nft(&self.rules.text) {
            self.log(&words);
            self.rules = Ruleset::random(&mut self.rng, self.port, self.rules.tracks_all);
        }
    }

    /// Brings up what is down, with all addresses, hosts and routes.
    fn restore(&mut self) {
        let mut commands = Vec::new();
        for (device, name) in DEVICES.iter().zip(&self.names) {
            let number = *device as usize + 1;
            commands.push(format!("link set {name} up"));
            commands.push(format!("addr replace 10.{number}.0.1/24 dev {name}"));
            commands.push(format!("addr replace fd00:{number}::1/64 dev {name} nodad"));
            commands.extend(neighbours(*device, name));
        }
        commands.extend((0..REMOTE.len()).flat_map(|net| self.routes(net)));
        self.worlds.run_all(&commands);
    }

    /// Commands that set the routes to a remote network.
    fn routes(&self, net: usize) -> [String; 2] {
        let [four, six] = REMOTE[net];
        let Some(device) = self.behind[net] else {
            return [four, six].map(|network| format!("route del {network}"));
        };
        let (number, name) = (device as usize + 1, &self.names[device as usize]);
        [
            format!("route replace {four} via 10.{number}.0.9 dev {name}"),
            format!("route replace {six} via fd00:{number}::9 dev {name}"),
        ]
    }

    /// A host behind a device, or `None` if only others know the way to it.
    fn host(&mut self, device: Device, ipv4: bool) -> IpAddr {
        let number = device as usize + 1;
        let remote: Vec<usize> = (0..2).filter(|net| self.behind[*net] == Some(device)).collect();
        let host = self.rng.choice(&HOSTS[..4]).unwrap();
        let text = match self.rng.choice(remote) {
            Some(net) if self.rng.bool() => {
                let host = self.rng.choice([1, 7]).unwrap();
                match (net, ipv4) {
                    (0, true) => format!("192.0.2.{host}"),
                    (0, false) => format!("fd00:9::{host}"),
                    (_, true) => format!("10.6.0.{host}"),
                    (_, false) => format!("fd00:6::{host}"),
                }
            }
            _ if ipv4 => format!("10.{number}.0.{host}"),
            _ => format!("fd00:{number}::{host}"),
        };
        text.parse().unwrap()
    }

    fn connection(&mut self, number: usize) -> Connection {
        let [protocol, version, kind] = std::array::from_fn(|_| self.rng.u8(..));
        let ipv4 = version % 2 == 0;
        let from = self.rng.choice([Device::Lan, Device::Lan, Device::Wan, Device::Dmz]).unwrap();
        let others: Vec<Device> = DEVICES.into_iter().filter(|device| *device != from).collect();
        let to = if kind % 16 == 0 { from } else { self.rng.choice(others).unwrap() };
        let source = self.host(from, ipv4);
        let destination = match kind % 4 {
            // An address of the router, or one that NAT uses.
            1 => {
                let own = self.rng.choice(["2.0.1", "2.0.1", "1.0.1", "3.0.1", "2.0.77"]).unwrap();
                let text =
                    if ipv4 { format!("10.{own}") } else { format!("fd00:{}", own.replace(".0.", "::")) };
                text.parse().unwrap()
            }
            _ => self.host(to, ipv4),
        };
        let ports = [self.port + number as u16, self.rng.choice(PORTS).unwrap()];
        let arrives = [SocketAddr::new(source, ports[0]), SocketAddr::new(destination, ports[1])];
        // Some come in by a device that is not the way back.
        let ingress = if kind / 16 == 0 { self.rng.choice(DEVICES).unwrap() } else { from };
        let ways = both_ways(Way { arrives, leaves: arrives, ingress, egress: to });
        Connection::new("random", number, if protocol % 2 == 0 { TCP } else { UDP }, ways)
    }

    /// Sends packets of one direction of a connection. Returns the source and destination with which they leave plain
    /// Linux; `None`: they do not.
    fn send(
        &mut self,
        at: usize,
        way: usize,
        make: impl FnOnce(&mut Connection, &mut Rng) -> Vec<Sent>,
    ) -> Option<[SocketAddr; 2]> {
        let connection = &mut self.all[at].connection;
        let before = connection.sequence;
        let frames = make(connection, &mut self.rng);
        let mark = self.worlds.out_of_linux().len();
        frames.iter().for_each(|frame| self.worlds.send(frame));
        self.tally.packets += frames.len() as u64;
        let connection = &mut self.all[at].connection;
        let offset = self.worlds.ip_offset();
        let [source, destination] = connection.ways[way].arrives;
        let mut out =
            self.worlds.out_of_linux()[mark..].iter().filter_map(|out| Some((out, ends_of(out, offset)?)));
        // The router itself may answer with RST.
        let Some((out, leaves)) = out.find(|(_, ends)| *ends != [destination, source]) else {
            connection.sequence = before;
            return None;
        };
        self.tally.delivered += frames.len() as u64;
        let [there, back] = &mut connection.ways;
        // The way out follows routes.
        if way == 0 && there.leaves == leaves {
            (there.egress, back.ingress) = (out.device, out.device);
        } else if way == 1 && back.leaves == leaves {
            back.egress = out.device;
        }
        Some(leaves)
    }

    /// The other end can answer, to these ends.
    fn open(&mut self, at: usize, leaves: [SocketAddr; 2]) {
        let live = &mut self.all[at];
        live.is_open = true;
        let [there, back] = live.connection.ways.clone();
        let egress = if there.leaves == leaves { there.egress } else { back.ingress };
        live.connection.ways = both_ways(Way { leaves, egress, ..there });
    }

    /// Sends a packet of each connection that is not open. It is open if Linux tracks it as the packet leaves: the answer to a
    /// packet that Linux calls invalid could take the ports of a connection.
    fn reopen(&mut self) {
        let mut left = Vec::new();
        for at in 0..self.all.len() {
            if !self.all[at].is_open && !self.all[at].is_over {
                left.extend(self.send(at, 0, one_packet(0)).map(|leaves| (at, leaves)));
                self.is_fresh |= !self.is_tcp(at);
            }
        }
        if left.is_empty() {
            return;
        }
        let tracked = self.worlds.linux.tracked();
        for (at, leaves) in left {
            let connection = &self.all[at].connection;
            let arrives = connection.ways[0].arrives;
            let [there, back] =
                [arrives, [leaves[1], leaves[0]]].map(|ends| FastKey::new(connection.protocol_name(), ends));
            if tracked.iter().any(|line| line.contains(&there.text()) && line.contains(&back.text())) {
                self.open(at, leaves);
            }
        }
    }

    fn data(&mut self, at: usize, way: usize) -> bool {
        self.send(at, way, one_packet(way)).is_some()
    }

    fn segment(&mut self, at: usize, way: usize, flags: u8) -> bool {
        self.send(at, way, |c, rng| vec![c.segment(way, flags, rng)]).is_some()
    }

    fn is_tcp(&self, at: usize) -> bool {
        self.all[at].connection.protocol == TCP
    }

    /// Begins a connection, maybe once more.
    fn begin(&mut self, at: usize) {
        self.tally.connections += 1;
        (self.all[at].is_open, self.all[at].is_over) = (false, false);
        let is_unanswered = self.rng.u8(0..16) == 0;
        if self.is_tcp(at) {
            self.all[at].connection.sequence = [self.rng.u32(..), self.rng.u32(..)];
        } else {
            self.is_fresh = true;
        }
        let Some(leaves) = self.send(at, 0, |c, rng| vec![c.first(rng)]) else { return };
        // Linux may call a packet invalid that begins a connection again.
        let is_new = !std::mem::replace(&mut self.all[at].has_begun, true);
        self.all[at].has_begun_again |= !is_new;
        if !is_new && self.all[at].connection.ways[0].leaves != leaves {
            return;
        }
        self.open(at, leaves);
        if is_unanswered {
            return;
        }
        if !self.is_tcp(at) {
            self.data(at, 1);
            return;
        }
        if self.rng.u8(0..10) == 0 && (is_new || self.is_liberal) {
            // Both ends begin at once.
            if self.segment(at, 1, SYN) {
                for way in [0, 1] {
                    let sequence = &mut self.all[at].connection.sequence[way];
                    *sequence = sequence.wrapping_sub(1);
                    if !self.segment(at, way, SYN | ACK) {
                        let sequence = &mut self.all[at].connection.sequence[way];
                        *sequence = sequence.wrapping_add(1);
                    }
                }
            }
            return;
        }
        if self.rng.u8(0..10) == 0 {
            // The answer is lost, and the first packet comes again.
            let sequence = &mut self.all[at].connection.sequence[0];
            *sequence = sequence.wrapping_sub(1);
            self.segment(at, 0, SYN);
        }
        let _ = self.segment(at, 1, SYN | ACK) && self.segment(at, 0, ACK);
    }

    /// Sends enough packets of all connections in a row to make them fast, if rules allow it.
    fn make_fast(&mut self) {
        self.reopen();
        if std::mem::take(&mut self.is_fresh) {
            self.worlds.assure();
        }
        for at in 0..self.all.len() {
            for way in [0, 1] {
                for n in 0..NOTED {
                    if !self.all[at].is_open || !self.data(at, way) && n == 1 {
                        break;
                    }
                }
            }
        }
        self.worlds.compare("many packets of each connection");
        thread::sleep(ANSWERED);
    }

    fn count_fast(&mut self) {
        let fast = self.worlds.fast();
        let open = self.all.iter().filter(|live| live.is_open).count();
        self.log(&format!("{open} connections, {} fast", fast.len()));
        for (key, packets) in &fast {
            let before = self.fast.get(key).copied().unwrap_or(0);
            self.tally.fast += packets.checked_sub(before).unwrap_or(*packets);
        }
        self.fast = fast;
    }

    fn an_open_one(&mut self) -> Option<usize> {
        let open: Vec<usize> = (0..self.all.len()).filter(|at| self.all[*at].is_open).collect();
        self.rng.choice(open)
    }

    /// Packets of all kinds, of random connections.
    fn packets(&mut self, count: usize) {
        for _ in 0..count {
            let at = self.rng.usize(0..self.all.len());
            if self.all[at].is_over {
                continue;
            }
            if !self.all[at].is_open {
                self.data(at, 0);
                continue;
            }
            let way = self.rng.usize(0..2);
            match self.rng.u8(0..12) {
                0 => self.again(at),
                1 => self.by_another_device(at, way),
                _ => {
                    self.send(at, way, |c, rng| kinds::random(c, way, rng));
                }
            }
        }
    }

    /// Sends a packet once more.
    fn again(&mut self, at: usize) {
        let way = self.rng.usize(0..2);
        self.send(at, way, |c, rng| {
            let packet = c.data(way, &Spec::small(rng));
            vec![packet.clone(), packet]
        });
    }

    /// Packets may come in by any device.
    fn by_another_device(&mut self, at: usize, way: usize) {
        let device = self.rng.choice(DEVICES).unwrap();
        self.send(at, way, |c, rng| {
            let packet = c.data(way, &Spec::small(rng));
            vec![Sent { ingress: device, ..packet }]
        });
    }

    /// Linux may have deleted any connection.
    fn close_all(&mut self) {
        self.all.iter_mut().for_each(|live| live.is_open = false);
        self.reopen();
    }

    /// Changes something, and returns what.
    fn change(&mut self) -> String {
        let is_ipv6 = self.rng.bool();
        let table = FILTERS[usize::from(is_ipv6)];
        let is_steady = self.rules.tracks_all;
        match self.rng.u8(0..100) {
            0..20 => self.connections_end(),
            20..34 => {
                let chain = self.rng.choice(["forward", "forward", "more"]).unwrap();
                let rule = self.rule(is_ipv6);
                self.change_rules(&format!("insert rule {table} {chain} {rule}"))
            }
            34..42 => {
                let element = ruleset::element(&mut self.rng, is_ipv6);
                self.change_rules(&element)
            }
            42..46 => {
                let chain = self.rng.choice(["forward", "more"]).unwrap();
                self.change_rules(&format!("flush chain {table} {chain}"))
            }
            46..50 => self.delete_a_rule(table),
            50..56 => {
                let tracks_all = self.rules.tracks_all;
                self.rules = Ruleset::random(&mut self.rng, self.port, tracks_all);
                self.set_rules();
                self.forget_partial();
                format!("new rules {}", self.rules.text)
            }
            56..62 => self.daemon_pauses(is_ipv6),
            62..74 => self.forget(),
            74..90 if is_steady => self.move_a_route(),
            90..93 if is_steady => self.an_address_goes(),
            93..95 if is_steady => self.a_device_goes(),
            95..97 if is_steady => self.a_device_is_renamed(),
            97..98 => self.daemon_is_killed(),
            _ => self.connections_end(),
        }
    }

    /// Conntrack of Millrace's router does not know all connections. So both forget them when rules change.
    fn forget_partial(&mut self) {
        if !self.rules.tracks_all {
            self.worlds.run("conntrack -F");
            self.worlds.until_forgotten();
            self.close_all();
        }
    }

    /// A rule to insert. Some are about packets of a connection.
    fn rule(&mut self, is_ipv6: bool) -> String {
        let of_version = |live: &&Live| live.is_open && live.connection.is_ipv4() != is_ipv6;
        let ways: Vec<Way> =
            self.all.iter().filter(of_version).flat_map(|live| live.connection.ways.clone()).collect();
        match self.rng.choice(ways) {
            Some(way) if self.rng.u8(0..3) > 0 => ruleset::rule_about(&mut self.rng, &way),
            _ => ruleset::rule(&mut self.rng, is_ipv6),
        }
    }

    /// The first packet after this obeys.
    fn change_rules(&mut self, change: &str) -> String {
        let refused = self.worlds.try_nft(change).err().map(|words| format!(", refused: {words}"));
        self.forget_partial();
        format!("{change}{}", refused.unwrap_or_default())
    }

    fn delete_a_rule(&mut self, table: &str) -> String {
        let listed = self.worlds.linux.run(&format!("nft -a list chain {table} forward"));
        let handles: Vec<&str> = listed
            .lines()
            .filter(|line| !line.contains("chain"))
            .filter_map(|line| line.split_once("# handle ").map(|(_, handle)| handle.trim()))
            .collect();
        match self.rng.choice(handles) {
            Some(handle) => self.change_rules(&format!("delete rule {table} forward handle {handle}")),
            None => "nothing, as there is no rule to delete".into(),
        }
    }

    fn connections_end(&mut self) -> String {
        let mut what = Vec::new();
        for _ in 0..6 {
            let Some(at) = self.an_open_one() else { break };
            if !self.is_tcp(at) {
                self.packets(4);
                continue;
            }
            let is_begun_again = self.rng.u8(0..4) > 0;
            let end = self.rng.u8(if self.is_liberal { 0 } else { 1 }..6);
            // In the other direction it could begin a connection that has the translated ports.
            let way = if end == 0 { 0 } else { self.rng.usize(0..2) };
            what.push(format!("{end} of connection {at}, direction {way}, begun again {is_begun_again}"));
            let has_ended = match end {
                // A new beginning in the middle. The other end does not know it.
                0 => self.segment(at, way, SYN),
                1 => {
                    let is_first = self.segment(at, way, FIN | ACK);
                    // The other direction goes on.
                    for _ in 0..NOTED {
                        let _ = self.data(at, 1 - way) && self.segment(at, way, ACK);
                    }
                    is_first && self.segment(at, 1 - way, FIN | ACK) && self.segment(at, way, ACK)
                }
                2 => match self.reset(at, way) {
                    Some(has_ended) => has_ended,
                    None => continue,
                },
                _ => {
                    let ends = [(way, FIN | ACK), (1 - way, ACK), (1 - way, FIN | ACK), (way, ACK)];
                    ends.into_iter().all(|(way, flags)| self.segment(at, way, flags))
                }
            };
            // After an RST, Linux accepts a SYN as a new beginning only if it is the next packet and from the same end. It
            // ignores other SYNs, and packets after these are outside the old window. Linux does not check the window of
            // connections that were fast.
            let is_last = end == 2 && !self.is_liberal && is_begun_again;
            let may_begin = has_ended && (!is_last || way == 0) || self.is_liberal;
            // Late packets. Without the connection they could begin one that has the translated ports.
            if has_ended && !is_last {
                self.segment(at, way, ACK);
                self.segment(at, 1 - way, ACK);
            }
            if is_begun_again && may_begin {
                self.begin(at);
            } else if !self.is_liberal {
                (self.all[at].is_open, self.all[at].is_over) = (false, true);
            }
        }
        format!("ends: {}", what.join("; "))
    }

    /// Ends a connection by RST. Returns whether it came out; `None`: the connection was deleted instead.
    ///
    /// Linux compares the number of RST with the last acknowledgement that it has seen, even if it is liberal about others. So
    /// it keeps connections that it sees again after they were fast. Millrace tells it only about those that are fast. Linux
    /// that is liberal also keeps connections that have begun again, because it does not follow their numbers.
    fn reset(&mut self, at: usize, way: usize) -> Option<bool> {
        let connection = &self.all[at].connection;
        let is_of = |key: &&FastKey| {
            connection.ways.iter().any(|way| key.is_of(connection.protocol_name(), way.arrives))
        };
        let is_followed = !(self.is_liberal && self.all[at].has_begun_again);
        if !is_followed || !self.worlds.fast().keys().any(|key| is_of(&key)) {
            let (source, family) =
                (connection.ways[0].arrives[0], if connection.is_ipv4() { "ipv4" } else { "ipv6" });
            let (ip, port) = (source.ip(), source.port());
            self.worlds
                .try_to_run(&format!("conntrack -D -f {family} -p tcp --orig-src {ip} --sport {port}"));
            self.worlds.until_forgotten();
            self.all[at].is_open = false;
            return None;
        }
        let is_reset = self.segment(at, 1 - way, ACK) && self.segment(at, way, RST | ACK);
        if self.rules.tracks_all {
            self.worlds.until_the_same_are_tracked();
        }
        Some(is_reset)
    }

    /// `conntrack -D`, or of all. A packet of the first direction begins a connection again.
    fn forget(&mut self) -> String {
        let Some(at) = self.an_open_one() else { return "nothing, as there is no connection".into() };
        let connection = &self.all[at].connection;
        let (source, protocol) = (connection.ways[0].arrives[0], connection.protocol_name());
        let family = if source.is_ipv4() { "ipv4" } else { "ipv6" };
        let (ip, port) = (source.ip(), source.port());
        let line = match self.rng.u8(0..8) {
            0 => "conntrack -F".to_owned(),
            1 => format!("conntrack -D -f {family} -p {protocol}"),
            2 => format!("conntrack -D -f {family} --orig-src {ip}"),
            _ => format!("conntrack -D -f {family} -p {protocol} --orig-src {ip} --sport {port}"),
        };
        let are_lost = self.rng.u8(0..4) == 0;
        if are_lost {
            self.worlds.lose_reports(&line);
        } else {
            self.worlds.try_to_run(&line);
        }
        self.worlds.until_forgotten();
        self.close_all();
        format!("{line}, reports are lost {are_lost}")
    }

    fn move_a_route(&mut self) -> String {
        let net = self.rng.usize(0..4);
        let others: Vec<Device> =
            DEVICES.into_iter().filter(|device| self.behind[net] != Some(*device)).collect();
        self.behind[net] = match self.rng.u8(0..8) {
            0 => None,
            _ => self.rng.choice(others),
        };
        self.worlds.run_all(&self.routes(net));
        self.worlds.until_verified();
        self.close_all();
        format!("{:?} is behind {:?}", REMOTE[net], self.behind[net])
    }

    fn an_address_goes(&mut self) -> String {
        let device = self.rng.choice(DEVICES).unwrap();
        let (name, number) = (self.names[device as usize].clone(), device as usize + 1);
        self.worlds.run_all(&[
            format!("addr del 10.{number}.0.1/24 dev {name}"),
            format!("addr del fd00:{number}::1/64 dev {name}"),
        ]);
        self.worlds.silent = Some(device);
        self.gone_and_back(&format!("the address of {name} goes"))
    }

    fn a_device_goes(&mut self) -> String {
        let device = self.rng.choice(DEVICES).unwrap();
        let name = self.names[device as usize].clone();
        self.worlds.run_all(&[format!("link set {name} down")]);
        self.worlds.silent = Some(device);
        self.gone_and_back(&format!("{name} goes down"))
    }

    /// Linux has deleted connections meanwhile.
    fn gone_and_back(&mut self, what: &str) -> String {
        for back in [false, true] {
            if back {
                self.restore();
                self.worlds.silent = None;
            }
            thread::sleep(DELETED_LATER);
            self.worlds.until_verified();
            self.worlds.until_forgotten();
            self.close_all();
            self.packets(30);
            self.compare(what);
        }
        what.into()
    }

    fn a_device_is_renamed(&mut self) -> String {
        let device = self.rng.choice(DEVICES).unwrap();
        let at = device as usize;
        let old = self.names[at].clone();
        for new in ["other", &old] {
            let before = std::mem::replace(&mut self.names[at], new.into());
            self.worlds
                .run_all(&[format!("link set {before} down"), format!("link set {before} name {new}")]);
            self.worlds.silent = Some(device);
            self.gone_and_back(&format!("{before} becomes {new}"));
        }
        format!("{old} has had another name")
    }

    /// Rules change while the daemon does nothing.
    fn daemon_pauses(&mut self, is_ipv6: bool) -> String {
        let table = FILTERS[usize::from(is_ipv6)];
        let rule = self.rule(is_ipv6);
        self.worlds.pause_daemon(true);
        let what = format!("insert rule {table} forward {rule}, while the daemon pauses");
        let refused = self.worlds.try_nft(&format!("insert rule {table} forward {rule}"));
        if self.rules.tracks_all {
            self.packets(40);
        }
        self.worlds.pause_daemon(false);
        self.forget_partial();
        format!("{what} {refused:?}")
    }

    fn daemon_is_killed(&mut self) -> String {
        let Round { all, rng, .. } = self;
        let mut frames = Vec::new();
        for live in all.iter_mut().filter(|live| live.is_open) {
            for way in [0, 1, 0, 1] {
                frames.push(live.connection.data(way, &Spec::small(rng)));
            }
        }
        self.worlds.restart(|worlds| frames.iter().for_each(|frame| worlds.send(frame)));
        "the daemon is killed, and starts again".into()
    }
}

fn one_packet(way: usize) -> impl FnOnce(&mut Connection, &mut Rng) -> Vec<Sent> {
    move |connection, rng| vec![connection.data(way, &Spec::small(rng))]
}

/// Source and destination of a packet of TCP or UDP that came out.
fn ends_of(out: &Out, offset: usize) -> Option<[SocketAddr; 2]> {
    let ip = &out.frame[offset..];
    let (next, source, destination, ports): (u8, IpAddr, IpAddr, &[u8]) = if ip[0] >> 4 == 4 {
        let four = |at: usize| <[u8; 4]>::try_from(&ip[at..at + 4]).unwrap();
        (ip[9], four(12).into(), four(16).into(), &ip[usize::from(ip[0] & 15) * 4..])
    } else {
        let sixteen = |at: usize| <[u8; 16]>::try_from(&ip[at..at + 16]).unwrap();
        let has_extension = [44, 60].contains(&ip[6]);
        let next = if has_extension { ip[40] } else { ip[6] };
        (next, sixteen(8).into(), sixteen(24).into(), &ip[if has_extension { 48 } else { 40 }..])
    };
    let port = |at: usize| Some(u16::from_be_bytes([*ports.get(at)?, *ports.get(at + 1)?]));
    let ends = [SocketAddr::new(source, port(0)?), SocketAddr::new(destination, port(2)?)];
    [TCP, UDP].contains(&next).then_some(ends)
}
