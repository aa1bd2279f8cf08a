//! Makes random changes to routes, nexthop objects, devices and settings. Compares after them: where the
//! mirror sends a packet, does Linux send it there?
//!
//! The request `RTM_GETROUTE` names the device that the packet comes in by, so Linux decides as for packets
//! that it forwards. The mirror may leave any packet to the kernel, but not for ever: sometimes it is
//! compared with a mirror that has seen nothing but a dump.
//!
//! A run has a few seeds by default. `MILLRACE_SOAK_SECONDS` sets a duration instead (`make soak`), and
//! `MILLRACE_SEED` the first seed. A difference is reported with its seed and with the fewest steps that
//! still show it.

use crate::bed::{Bed, with_bed};
use logic::{
    mirror::{Limits, Mirror},
    plan::Target,
    reason::Reason,
};
use router::{
    base::clock::monotonic,
    linux::{
        multipath::{Ecmp, MultipathKeys},
        netlink::{INET, INET6, rtm, socket::Socket, wire},
        observer::{HOST, Observer, ObserverConfig},
    },
};
use std::{
    collections::BTreeSet,
    fmt::Write as _,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    process::{Command, Stdio},
    sync::OnceLock,
    time::{Duration, Instant},
};

const PORTS: [&str; 3] = ["port0", "port1", "port2"];
const PREFIXES4: [&str; 7] =
    ["0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "10.1.1.0/24", "10.1.1.128/25", "10.1.1.7/32", "10.2.0.0/15"];
const PREFIXES6: [&str; 6] = [
    "::/0",
    "2001:db8:f000::/36",
    "2001:db8:f100::/40",
    "2001:db8:f1f0::/48",
    "2001:db8:f1f0::/64",
    "2001:db8:f1f0::7/128",
];
/// Seeds of a run without a duration. They take half a minute.
const SEEDS: u64 = 16;
/// A third of the steps of a seed, which starts with new namespaces.
const STEPS: usize = 40;
/// One in this many comparisons is also made with a mirror that has seen nothing but a dump.
const AFRESH: usize = 10;
/// Sources tried to see every member of a group.
const DRAWS: u32 = 400;
/// The longest time that minimising takes.
const PATIENCE: Duration = Duration::from_secs(40);
/// The run ends after this many differences.
const ENOUGH: usize = 8;

/// A source of random choices.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.roll(from.len())]
    }

    fn gateway4(&mut self) -> String {
        let port = self.roll(3);
        format!("via 192.0.{}.{} dev port{port}", port + 1, 2 + self.roll(2))
    }

    fn gateway6(&mut self) -> String {
        let port = self.roll(3);
        format!("via 2001:db8:{}::{} dev port{port}", port + 1, 2 + self.roll(2))
    }

    /// Where a route leads, for `ip route`.
    fn next(&mut self, v6: bool) -> String {
        let gateway = |d: &mut Self| if v6 { d.gateway6() } else { d.gateway4() };
        match self.roll(10) {
            0 => format!("dev port{}", self.roll(3)),
            1 | 2 => {
                let mut text = String::new();
                for _ in 0..2 + self.roll(2) {
                    write!(text, " nexthop {} weight {}", gateway(self), 1 + self.roll(3)).unwrap();
                }
                text
            }
            3..=5 => format!("nhid {}", if v6 { 11 + self.roll(5) } else { 1 + self.roll(5) }),
            _ => gateway(self),
        }
    }

    fn route(&mut self, v6: bool) -> String {
        let (family, prefix) = if v6 { ("-6", self.pick(&PREFIXES6)) } else { ("-4", self.pick(&PREFIXES4)) };
        let kind = match self.roll(14) {
            0 => self.pick(&["blackhole", "unreachable", "prohibit", "throw"]),
            _ => "",
        };
        let verb = self.pick(&["add", "append", "prepend", "replace", "replace", "del", "del"]);
        let mut text = format!("ip {family} route {verb} {kind} {prefix}");
        if v6 && self.roll(8) == 0 {
            text += self.pick(&[" from 2001:db8:ffff::/112", " from 2001:db8:ffff::/64"]);
        }
        if !v6 && self.roll(16) == 0 {
            text += " tos 8";
        }
        text += self.pick(&["", "", " metric 5", " metric 9"]);
        text += self.pick(&["", "", "", " proto static", " proto bgp"]);
        text += self.pick(&["", "", "", "", " mtu 1400", " mtu lock 1300", " advmss 1000 hoplimit 7"]);
        if v6 {
            text += self.pick(&["", "", "", "", " expires 3", " expires 4000", " pref high"]);
        } else if self.roll(12) == 0 {
            text += " src 192.0.1.1";
        }
        if self.roll(16) == 0 {
            text += " table 100";
        }
        if kind.is_empty() && (verb != "del" || self.roll(2) == 0) {
            text += " ";
            text += &self.next(v6);
        }
        text
    }

    fn nexthop(&mut self) -> String {
        let v6 = self.roll(2) == 0;
        let first = if v6 { 11 } else { 1 };
        let id = first + self.roll(5);
        let verb = self.pick(&["add", "replace", "replace", "del"]);
        if verb == "del" {
            return format!("ip nexthop del id {id}");
        }
        let family = if v6 { "-6" } else { "-4" };
        match id - first {
            4 => format!("ip nexthop {verb} id {id} group {},{}/{}", first, 1 + self.roll(3), first + 1),
            3 if self.roll(2) == 0 => format!("ip {family} nexthop {verb} id {id} blackhole"),
            _ => {
                let gateway = if v6 { self.gateway6() } else { self.gateway4() };
                format!("ip {family} nexthop {verb} id {id} {gateway}")
            }
        }
    }

    /// `PEER` stands for the namespace at the other end.
    fn device(&mut self) -> String {
        let port = self.roll(3);
        match self.roll(10) {
            0 => format!("ip link set port{port} down"),
            1 | 2 => format!("ip link set port{port} up"),
            3 => format!("ip -n PEER link set far{port} down"),
            4 | 5 => format!("ip -n PEER link set far{port} up"),
            6 => format!("ip link set port{port} mode dormant; ip link set port{port} state dormant"),
            7 => format!("ip link set port{port} mode default; ip link set port{port} state up"),
            8 => format!("ip addr {} 192.0.{}.1/24 dev port{port}", self.pick(&["del", "add"]), port + 1),
            _ => format!("ip link set port{port} mtu {}", self.pick(&["1400", "1500"])),
        }
    }

    fn setting(&mut self) -> String {
        let (value, place) = (self.roll(2), self.pick(&["all", "port0", "port1", "port2"]));
        match self.roll(3) {
            0 => format!("sysctl -qw net.ipv4.conf.{place}.ignore_routes_with_linkdown={value}"),
            1 => format!("sysctl -qw net.ipv6.conf.{place}.ignore_routes_with_linkdown={value}"),
            _ => format!("sysctl -qw net.ipv4.fib_multipath_hash_policy={value}"),
        }
    }

    /// A command. If it is empty, wait until the mirror has taken in all changes, and compare.
    fn step(&mut self) -> String {
        match self.roll(20) {
            0..=5 => self.route(false),
            6..=10 => self.route(true),
            11..=13 => self.nexthop(),
            14 => self.device(),
            15 => self.setting(),
            _ => String::new(),
        }
    }
}

/// Linux and the mirror, side by side.
struct Pair {
    observer: Observer,
    mirror: Mirror,
    kernel: Socket,
    /// The index of port0, by which packets come in.
    iif: u32,
    peer: String,
    compared: u64,
    forwarded: u64,
    /// The last error of Linux.
    refusal: String,
}

/// Where one packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Way {
    oif: u32,
    gateway: Option<IpAddr>,
}

impl Pair {
    fn new(bed: &Bed) -> Pair {
        let peer = bed.name("peer");
        let mut script = String::from("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1\n");
        // Without this, addresses would come a second later.
        script += "for i in all default port0; do sysctl -qw net.ipv6.conf.$i.accept_dad=0; done; ip link set port0 down\n";
        for (n, port) in PORTS.iter().enumerate() {
            if n > 0 {
                writeln!(script, "ip link add {port} type veth peer name far{n} netns {peer}").unwrap();
            }
            writeln!(script, "sysctl -qw net.ipv6.conf.{port}.keep_addr_on_down=1").unwrap();
            writeln!(script, "ip -n {peer} link set far{n} up; ip link set {port} up").unwrap();
            writeln!(script, "ip addr add 192.0.{}.1/24 dev {port}", n + 1).unwrap();
            writeln!(script, "ip addr add 2001:db8:{}::1/64 dev {port} nodad", n + 1).unwrap();
        }
        crate::bed::sh(&script);
        let observer = Observer::new(config()).unwrap();
        let kernel = Socket::requests(libc::NETLINK_ROUTE).unwrap();
        let mirror = Mirror::new(Limits::default());
        let mut pair = Pair {
            observer,
            mirror,
            kernel,
            iif: 0,
            peer,
            compared: 0,
            forwarded: 0,
            refusal: String::new(),
        };
        // New devices take a moment to run.
        let end = Instant::now() + Duration::from_secs(5);
        let running = |mirror: &Mirror| {
            let index = |name: &str| mirror.interfaces().find(|i| i.name == name).map(|i| i.ifindex);
            let link = |name: &str| mirror.link(HOST, index(name)?);
            PORTS.iter().all(|name| link(name).is_some_and(|link| link.running))
        };
        while !running(&pair.mirror) && Instant::now() < end {
            pair.settle();
        }
        pair.settle();
        pair.iif = pair.mirror.interfaces().find(|i| i.name == "port0").unwrap().ifindex;
        pair
    }

    /// Takes in events until nothing happens any more.
    fn settle(&mut self) {
        loop {
            let events = self.observer.poll(Duration::from_millis(30)).unwrap();
            if events.is_empty() {
                break;
            }
            events.into_iter().for_each(|event| self.mirror.observe(event));
            for namespace in self.mirror.unsure() {
                self.observer.read_routes_again(namespace);
            }
        }
        self.mirror.pass_time(monotonic());
        self.mirror.plan();
    }

    /// Where Linux forwards a packet, and its MTU; `None` if it does not forward it.
    fn ask(&mut self, address: IpAddr, source: u32) -> Option<(Way, Option<u32>)> {
        let (family, bits, to, from) = match address {
            IpAddr::V4(a) => (INET, 32, a.octets().to_vec(), (0x6440_0000 | source).to_be_bytes().to_vec()),
            IpAddr::V6(a) => {
                let from = 0x2001_0db8_ffff << 80 | u128::from(source % 2) << 40 | u128::from(source);
                (INET6, 128, a.octets().to_vec(), from.to_be_bytes().to_vec())
            }
        };
        let request =
            wire::Request::new(rtm::GETROUTE, wire::ACK, &[family, bits, bits, 0, 0, 0, 0, 0, 0, 0, 0, 0])
                .with(1, &to)
                .with(2, &from)
                .with(3, &self.iif.to_ne_bytes());
        let answer = self.kernel.ask(request, |message| {
            let (mut oif, mut gateway, mut mtu) = (0, None, None);
            for (kind, value) in wire::attributes_after(message.payload, 12) {
                match kind {
                    4 => oif = wire::u32_at(value, 0)?,
                    5 => gateway = wire::address(value),
                    8 => mtu = wire::attribute(value, 2).and_then(|mtu| wire::u32_at(mtu, 0)),
                    18 => gateway = wire::address(value.get(2..)?),
                    _ => (),
                }
            }
            let gateway = gateway.filter(|g| !g.is_unspecified() && *g != address);
            (message.payload[7] == 1).then_some((Way { oif, gateway }, mtu))
        });
        if let Err(error) = &answer {
            self.refusal = error.to_string();
        }
        answer.ok().flatten()
    }

    /// The ways by which the mirror itself would send a packet. `None` among them means that it may also
    /// leave it to the kernel.
    fn ways(&self, target: &Target, transmits: &BTreeSet<u16>) -> Vec<Option<(Way, u32)>> {
        match target {
            Target::Hop(hop) if transmits.contains(&hop.interface) => {
                let oif = self.mirror.link_of(hop.interface).unwrap().1;
                vec![Some((Way { oif, gateway: hop.gateway }, hop.mtu))]
            }
            Target::Multi(members) => members.iter().flat_map(|m| self.ways(&m.0, transmits)).collect(),
            _ => vec![None],
        }
    }

    fn compare(&mut self, address: IpAddr) -> Result<(), String> {
        let transmits: BTreeSet<u16> =
            self.mirror.interfaces().filter(|i| i.transmit).filter_map(|i| i.interface).collect();
        let found = match address {
            IpAddr::V4(a) => self.mirror.route4_to(HOST, a.to_bits()).map(|(p, t)| (p.to_string(), t)),
            IpAddr::V6(a) => self.mirror.route6_to(HOST, a.to_bits()).map(|(p, t)| (p.to_string(), t)),
        };
        let Some((prefix, target)) = found.map(|(prefix, target)| (prefix, target.clone())) else {
            return Ok(());
        };
        let ways = self.ways(&target, &transmits);
        self.compared += 1;
        if ways.iter().all(Option::is_none) {
            return Ok(());
        }
        self.forwarded += 1;
        let mut unseen: BTreeSet<Way> = ways.iter().flatten().map(|(way, _)| *way).collect();
        for source in 1..DRAWS {
            let linux = self.ask(address, source);
            let fits = match linux {
                Some((way, mtu)) => ways.iter().any(|mine| match mine {
                    None => true,
                    Some((mine, my_mtu)) => *mine == way && mtu.is_none_or(|mtu| *my_mtu <= mtu),
                }),
                None => ways.contains(&None),
            };
            if !fits {
                let linux = linux.map_or(self.refusal.clone(), |way| format!("{way:?}"));
                return Err(format!(
                    "{address} from {source}, route {prefix}: Linux {linux}, the mirror {ways:?}"
                ));
            }
            linux.map(|(way, _)| unseen.remove(&way));
            if unseen.is_empty() && source > 4 {
                return Ok(());
            }
        }
        Err(format!("{address}, route {prefix}: Linux never takes {unseen:?} of the mirror's {ways:?}"))
    }

    fn compare_all(&mut self, dice: &mut Dice) -> Result<(), String> {
        for text in PREFIXES4 {
            let prefix: logic::net::Prefix4 = text.parse().unwrap();
            let (first, host) = (prefix.address(), u32::MAX.checked_shr(prefix.length().into()).unwrap_or(0));
            let random = first | dice.roll(usize::MAX) as u32 & host;
            for a in [first, first | host, first.wrapping_sub(1), (first | host).wrapping_add(1), random] {
                // Linux forwards to no other addresses, whatever its routes are.
                if matches!(a >> 24, 1..=126 | 128..=223) {
                    self.compare(Ipv4Addr::from(a).into())?;
                }
            }
        }
        for text in PREFIXES6 {
            let prefix: logic::net::Prefix6 = text.parse().unwrap();
            let host = u128::MAX.checked_shr(prefix.length().into()).unwrap_or(0);
            let first = prefix.address();
            let random = first | (dice.roll(usize::MAX) as u128) << 31 & host;
            for a in [first, first | host, first.wrapping_sub(1), (first | host).wrapping_add(1), random] {
                if a >> 125 == 1 {
                    self.compare(Ipv6Addr::from(a).into())?;
                }
            }
        }
        Ok(())
    }

    /// Asserts that the mirror equals one that has seen nothing but a dump, and that the latter sends packets
    /// where Linux does.
    fn compare_afresh(&mut self, dice: &mut Dice) -> Result<(), String> {
        // Routes that only the kernel knows are read again within a second.
        let end = Instant::now() + Duration::from_secs(3);
        while self.mirror.unsure().next().is_some() && Instant::now() < end {
            let events = self.observer.poll(Duration::from_millis(50)).unwrap();
            events.into_iter().for_each(|event| self.mirror.observe(event));
        }
        self.settle();
        let mut fresh = afresh();
        let mut result = self.differs_from(&fresh);
        // Linux completes some changes later, and reports them.
        for _ in 0..3 {
            if result.is_err() {
                std::thread::sleep(Duration::from_millis(300));
                self.settle();
                fresh = afresh();
                result = self.differs_from(&fresh);
            }
        }
        result?;
        std::mem::swap(&mut self.mirror, &mut fresh);
        let result = self.compare_all(dice).map_err(|difference| format!("after a dump alone: {difference}"));
        std::mem::swap(&mut self.mirror, &mut fresh);
        result
    }

    fn differs_from(&self, fresh: &Mirror) -> Result<(), String> {
        let told = |mirror: &Mirror| {
            let link = |target: &Target| tell(mirror, target);
            let v4 = mirror.routes4(HOST).map(|(p, t)| format!("{p} {}", link(t)));
            v4.chain(mirror.routes6(HOST).map(|(p, t)| format!("{p} {}", link(t)))).collect::<BTreeSet<_>>()
        };
        // Routes about to expire may differ for a moment.
        let (mine, afresh) = (told(&self.mirror), told(fresh));
        let missing: Vec<_> = afresh.difference(&mine).collect();
        let wrong: Vec<_> = mine.difference(&afresh).collect();
        let ends = self.mirror.next_end() != fresh.next_end() && fresh.next_end().is_none();
        if missing.is_empty() && wrong.is_empty() || ends {
            return Ok(());
        }
        Err(format!("the mirror has {wrong:#?}, but after a dump alone {missing:#?}"))
    }

    fn run(&mut self, step: &str) {
        // Linux refuses many steps, which are not possible.
        let script = step.replace("PEER", &self.peer);
        let mut command = Command::new("sh");
        command.args(["-c", &script]).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().unwrap();
    }
}

/// The configuration of a daemon. Without a key, the kernel would choose every member.
fn config() -> ObserverConfig {
    static KEYS: OnceLock<MultipathKeys> = OnceLock::new();
    let ports = PORTS.iter().map(|name| name.parse().unwrap()).collect();
    let multipath_keys = *KEYS.get_or_init(|| MultipathKeys::read(Ecmp::Auto));
    ObserverConfig { ports, multipath_keys, ..Default::default() }
}

/// A mirror that has seen nothing but a dump.
fn afresh() -> Mirror {
    let mut observer = Observer::new(config()).unwrap();
    let mut fresh = Mirror::new(Limits::default());
    let events = observer.poll(Duration::ZERO).unwrap();
    events.into_iter().for_each(|event| fresh.observe(event));
    // Time passes only for a namespace that is known.
    fresh.pass_time(monotonic());
    fresh.plan();
    fresh
}

fn tell(mirror: &Mirror, target: &Target) -> String {
    match target {
        // A dump hides rivals of groups, and their kind.
        Target::Pass { reason: Reason::ComplexRoute, .. } => "the kernel decides".into(),
        Target::Pass { .. } => format!("{target:?}"),
        Target::Hop(hop) => {
            format!("{:?} {:?} {}", mirror.link_of(hop.interface), hop.gateway, hop.mtu)
        }
        Target::Multi(members) => {
            let mut told: Vec<_> =
                members.iter().map(|(t, w)| format!("[{} x{w}]", tell(mirror, t))).collect();
            told.sort();
            told.concat()
        }
    }
}

/// Plays these steps from the beginning. Returns how many addresses were compared, and how many of them the
/// mirror forwards; or the step at which a difference was found, and the difference.
fn play(steps: &[String], seed: u64) -> Result<(u64, u64), (usize, String)> {
    let mut result = Ok((0, 0));
    with_bed(|bed| {
        let (mut pair, mut dice) = (Pair::new(bed), Dice(seed));
        let mut comparisons = 0;
        for (at, step) in steps.iter().enumerate() {
            if !step.is_empty() {
                pair.run(step);
                continue;
            }
            pair.settle();
            comparisons += 1;
            let mut found = pair.compare_all(&mut dice);
            if found.is_ok() && comparisons % AFRESH == 0 || at + 1 == steps.len() {
                found = found.and_then(|()| pair.compare_afresh(&mut dice));
            }
            if let Err(difference) = found {
                result = Err((at, difference));
                return;
            }
        }
        result = Ok((pair.compared, pair.forwarded));
    });
    result
}

/// Leaves out steps while there is still a difference.
fn minimise(mut steps: Vec<String>, seed: u64, mut told: String) -> (Vec<String>, String) {
    let end = Instant::now() + PATIENCE;
    let mut size = steps.len() / 2;
    while size > 0 {
        let mut at = 0;
        while at < steps.len().saturating_sub(1) && Instant::now() < end {
            let mut fewer = steps.clone();
            // The last step compares.
            fewer.drain(at..(at + size).min(steps.len() - 1));
            match play(&fewer, seed) {
                Err((last, difference)) => {
                    fewer.truncate(last + 1);
                    (steps, told) = (fewer, difference);
                }
                Ok(_) => at += size,
            }
        }
        size /= 2;
    }
    (steps, told)
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Steps for routes to 2001:db8:f000::/36 that once led the mirror astray, and whether it forwards at the
/// end.
const CASES: &[(&str, bool, &[&str])] = &[
    ("IPv6 next hops of one route that were made one by one", true, &["append A", "append B", "append C"]),
    ("... made at once", true, &["add NEXTHOPS"]),
    ("... made at once behind another", true, &["append A", "append NEXTHOPS"]),
    ("... all of which have an MTU", false, &["add mtu 1400 NEXTHOPS"]),
    ("... of which the first has one", false, &["append mtu 1380 A", "append B"]),
    ("... of which the second has one", false, &["append A", "append mtu 1380 B"]),
    ("... of which the last has one", false, &["append A", "append B", "append mtu 1380 C"]),
    ("... of which some that came together have one", false, &["append A", "append mtu 1380 NEXTHOPS"]),
    ("... of which one that is gone had one", true, &["append A", "append mtu 1380 B", "append C", "del B"]),
    ("... of which the one that is left has none", true, &["append A", "append mtu 1380 B", "del B"]),
    ("... of which the one that is left has one", true, &["append A", "append mtu 1380 B", "del A"]),
    ("... that replace others", true, &["append A", "append mtu 1380 B", "replace NEXTHOPS"]),
    ("... of which one ends", false, &["append A", "append expires 4000 B"]),
    ("... of which one locks its MTU", false, &["append A", "append mtu lock 1380 B"]),
    ("... of which one has other metrics", true, &["append A", "append advmss 1000 hoplimit 7 B"]),
];

/// Other steps that once led the mirror astray, as they were found.
const FOUND: &[(&str, &[&str])] = &[
    (
        "an object that becomes a blackhole, of a route behind another",
        &[
            "ip nexthop add id 2 via 192.0.2.2 dev port1",
            "ip route add 10.0.0.0/8 via 192.0.1.2 dev port0",
            "ip route append 10.0.0.0/8 nhid 2",
            "",
            "ip nexthop replace id 2 blackhole",
            "",
            "ip nexthop replace id 2 via 192.0.2.3 dev port1",
        ],
    ),
    (
        "a device that comes up dormant",
        &[
            "sysctl -qw net.ipv6.conf.all.ignore_routes_with_linkdown=1",
            "ip link set port0 down",
            "ip link set port0 mode dormant; ip link set port0 state dormant",
            "ip link set port0 up",
        ],
    ),
    (
        "an IPv6 next hop without a carrier that is ignored from now on",
        &[
            "ip -n PEER link set far0 down",
            "ip -6 route add ::/0 nexthop via 2001:db8:2::3 dev port1 nexthop via 2001:db8:1::2 dev port0",
            "sysctl -qw net.ipv6.conf.all.ignore_routes_with_linkdown=1",
        ],
    ),
    (
        "an IPv6 object whose other route has an MTU",
        &[
            "ip -6 nexthop add id 11 via 2001:db8:2::3 dev port1",
            "ip -6 route append 2001:db8:f000::/36 mtu lock 1300 nhid 11",
            "ip -6 route replace ::/0 nhid 11",
        ],
    ),
    (
        "an IPv6 route to neighbours between the next hops of a group, which no dump shows",
        &[
            "ip -6 route append 2001:db8:f000::/36 via 2001:db8:2::2 dev port1",
            "ip -6 route append 2001:db8:f000::/36 dev port0",
            "ip -6 route append 2001:db8:f000::/36 via 2001:db8:2::3 dev port1",
        ],
    ),
    (
        "an IPv4 object whose other route has an MTU",
        &[
            "ip nexthop add id 1 via 192.0.2.2 dev port1",
            "ip route add 10.0.0.0/8 mtu 1300 nhid 1",
            "ip route add 10.1.0.0/16 proto bgp nhid 1",
        ],
    ),
];

/// Plays each case with a mirror that was there all the time, and one that has seen nothing but a dump.
#[test]
#[ignore = "needs root"]
fn cases_that_once_led_the_mirror_astray() {
    for (name, steps) in FOUND {
        let steps: Vec<String> = steps.iter().chain(&[""]).map(|step| step.to_string()).collect();
        if let Err((_, difference)) = play(&steps, 1) {
            panic!("{name}: {difference}");
        }
    }
    for (name, forwards, steps) in CASES {
        let steps = steps.iter().map(|step| {
            let (verb, rest) = step.split_once(' ').unwrap();
            let rest = rest
                .replace(
                    "NEXTHOPS",
                    "nexthop via 2001:db8:2::2 dev port1 nexthop via 2001:db8:3::2 dev port2",
                )
                .replace('A', "via 2001:db8:1::2 dev port0")
                .replace('B', "via 2001:db8:2::2 dev port1")
                .replace('C', "via 2001:db8:2::3 dev port1");
            format!("ip -6 route {verb} 2001:db8:f000::/36 {rest}")
        });
        let steps: Vec<String> = steps.chain([String::new()]).collect();
        match play(&steps, 1) {
            Ok((_, forwarded)) => assert_eq!(forwarded > 0, *forwards, "{name}: forwarded {forwarded}"),
            Err((_, difference)) => panic!("{name}: {difference}"),
        }
    }
}

#[test]
#[ignore = "needs root"]
fn the_mirror_sends_packets_where_linux_does() {
    let length = variable("MILLRACE_SOAK_SECONDS").map(Duration::from_secs);
    let mut seed = variable("MILLRACE_SEED").unwrap_or(1);
    let (began, end) = (Instant::now(), seed + SEEDS);
    let (mut compared, mut forwarded, mut found) = (0, 0, Vec::new());
    let goes_on = |seed| length.map_or(seed < end, |length| began.elapsed() < length);
    while goes_on(seed) && found.len() < ENOUGH {
        let mut dice = Dice(seed);
        let mut steps: Vec<String> = (0..STEPS * 3).map(|_| dice.step()).collect();
        steps.push(String::new());
        match play(&steps, seed) {
            Ok(counted) => (compared, forwarded) = (compared + counted.0, forwarded + counted.1),
            Err((at, difference)) => {
                steps.truncate(at + 1);
                let all = steps.len();
                let (steps, difference) = minimise(steps, seed, difference);
                let text =
                    format!("seed {seed}: {difference}\nafter these of {all} steps:\n{}", steps.join("\n"));
                eprintln!("{text}");
                found.push(text);
            }
        }
        seed += 1;
    }
    assert!(found.is_empty(), "{} differences:\n{}", found.len(), found.join("\n\n"));
    println!("{compared} addresses compared, {forwarded} of them forwarded, seeds up to {seed}");
    assert!(
        forwarded * 4 > compared,
        "the mirror leaves too much to the kernel: it forwards {forwarded} of {compared}"
    );
}
