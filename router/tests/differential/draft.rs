//! Makes a random case: settings, routes, changes and the destinations worth trying.

use crate::{
    case::{Case, Step},
    changes::{self, Change},
    kernel::Kernel,
    packets,
    sides::{GATEWAYS, Side, sides},
};
use fastrand::Rng;
use std::{
    fmt::Write as _,
    net::{Ipv4Addr, Ipv6Addr},
};

/// Frames of each comparison.
pub const FRAMES: usize = 600;
/// Changes of a round, one after another.
const CHANGES: usize = 6;

pub struct Draft<'a> {
    pub rng: Rng,
    pub kernel: &'a Kernel,
    pub sides: Vec<Side>,
    /// Destinations worth trying: inside and at the edges of every route.
    pub targets4: Vec<Ipv4Addr>,
    pub targets6: Vec<Ipv6Addr>,
    steps: Vec<Step>,
    /// There is only one IPv4 default route. Of several, the kernel picks one for its own packets by the
    /// state of their gateways (`fib_select_default()`).
    has_default4: [bool; 2],
    /// Whether the routes of IPv4 nexthop objects have an MTU: either all or none. An object caches the MTU
    /// of the route that was used first, and the order depends on the load of the machine.
    pub objects_have_mtu: bool,
}

/// The case of a seed.
pub fn random_case(seed: u64, kernel: &Kernel) -> Case {
    let mut draft = Draft::new(seed, kernel);
    draft.settings();
    [false, true].into_iter().for_each(|tenant| draft.routes(tenant));
    draft.steps.extend([Step::Start, Step::Compare]);
    draft.changes();
    let frames = packets::generate(&mut draft, FRAMES);
    Case { steps: draft.steps, frames }
}

impl Draft<'_> {
    pub fn new(seed: u64, kernel: &Kernel) -> Draft<'_> {
        let sides = sides();
        let targets4 = sides.iter().flat_map(|side| [0, 1, 10, 11, 17, 255].map(|n| side.host4(n))).collect();
        let targets6 = sides.iter().flat_map(|side| [0, 1, 10, 11, 17].map(|n| side.host6(n))).collect();
        let mut rng = Rng::with_seed(seed);
        Draft {
            objects_have_mtu: rng.u32(..3) == 0,
            rng,
            kernel,
            sides,
            targets4,
            targets6,
            steps: Vec::new(),
            has_default4: [false; 2],
        }
    }

    pub fn one_in(&mut self, n: u32) -> bool {
        self.rng.u32(..n) == 0
    }

    pub fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.rng.usize(..from.len())]
    }

    /// A side of the host or of the tenant.
    pub fn side(&mut self, tenant: bool) -> Side {
        let of_router: Vec<_> = self.sides.iter().filter(|side| side.tenant == tenant).collect();
        of_router[self.rng.usize(..of_router.len())].clone()
    }

    fn run(&mut self, tenant: bool, line: impl Into<String>) {
        let line = line.into();
        self.steps.push(match line.strip_prefix(changes::IN_TENANT) {
            Some(line) => Step::Tenant(line.into()),
            None => Step::run(tenant, line),
        });
    }

    fn settings(&mut self) {
        let rp_filter = self.pick(&["0", "0", "1", "2"]);
        let redirects = self.rng.u8(0..2);
        let accept_local = self.pick(&["0", "0", "1"]);
        for tenant in [false, true] {
            let policies = [self.rng.u8(0..2), self.rng.u8(0..2)];
            self.run(
                tenant,
                format!(
                    "sysctl -qw net.ipv4.conf.all.send_redirects={redirects} \
                     net.ipv4.conf.default.send_redirects={redirects} net.ipv4.conf.all.rp_filter={rp_filter} \
                     net.ipv4.conf.all.accept_local={accept_local} \
                     net.ipv4.fib_multipath_hash_policy={} net.ipv6.fib_multipath_hash_policy={}",
                    policies[0], policies[1]
                ),
            );
            // Linux 6.11 and later.
            if self.kernel.has_sysctl("net.ipv4.fib_multipath_hash_seed") && self.rng.bool() {
                let seed = self.rng.u16(..);
                self.run(tenant, format!("sysctl -qw net.ipv4.fib_multipath_hash_seed={seed}"));
            }
        }
        for port in 0..crate::sides::PORTS {
            self.run(false, format!("sysctl -qw net.ipv4.conf.p{port}.send_redirects={redirects}"));
        }
        if self.one_in(4) {
            self.run(false, "sysctl -qw net.ipv4.conf.p2.forwarding=0");
        }
    }

    /// Linux refuses equal prefixes and gateways, which is part of being random.
    fn routes(&mut self, tenant: bool) {
        for (v6, family) in [(false, "-4"), (true, "-6")] {
            for _ in 0..self.rng.usize(5..15) {
                let words = self.route(tenant, v6);
                self.run(tenant, format!("ip {family} route append {words}"));
            }
        }
    }

    /// The words behind `ip route append`.
    pub fn route(&mut self, tenant: bool, v6: bool) -> String {
        let prefix = if v6 { self.prefix6() } else { self.prefix4(tenant) };
        match self.rng.u8(0..24) {
            0 => {
                let kind = self.pick(&["blackhole", "unreachable", "prohibit", "throw"]);
                format!("{kind} {prefix}")
            }
            1..5 => {
                let mut words = prefix;
                for _ in 0..self.rng.usize(2..5) {
                    let (hop, weight) = (self.hop(tenant, v6), self.rng.u8(1..5));
                    write!(words, " nexthop {hop} weight {weight}").unwrap();
                }
                words
            }
            5 => format!("{prefix} dev {}", self.side(tenant).device()),
            6..10 => {
                let soup = self.soup(v6);
                format!("{prefix} {}{soup}", self.hop(tenant, v6))
            }
            _ => format!("{prefix} {}", self.hop(tenant, v6)),
        }
    }

    /// A gateway that has a MAC, and its device.
    pub fn hop(&mut self, tenant: bool, v6: bool) -> String {
        let (side, n) = (self.side(tenant), self.rng.u8(GATEWAYS));
        let gateway = if v6 { side.host6(n).to_string() } else { side.host4(n).to_string() };
        format!("via {gateway} dev {}", side.device())
    }

    /// Attributes of a route with one next hop.
    fn soup(&mut self, v6: bool) -> String {
        let common = [
            " mtu 1280",
            " mtu 1380",
            " mtu lock 1300",
            " metric 5",
            " metric 2000",
            " advmss 1000 hoplimit 7",
            " rto_min 5ms window 1000 initcwnd 5",
            " features ecn",
            " quickack 1 congctl reno",
            " proto bgp",
            " proto 199",
            " realm 5",
            " onlink",
            " scope link",
            " table 50",
        ];
        let ipv4 = [" tos 0x10", " tos 0x08", " src 10.0.1.1", " scope host", " realms 3/4"];
        let ipv6 = [
            " from 2001:db8::/64",
            " from 2001:db8:0:1::/64",
            " expires 4000",
            " pref high",
            " pref low",
            " src 2001:db8:0:1::1",
        ];
        let own: &[&str] = if v6 { &ipv6 } else { &ipv4 };
        let mut soup = self.pick(&[&common[..], own, own].concat()).to_owned();
        if self.one_in(3) {
            soup += self.pick(own);
        }
        soup
    }

    /// A prefix in a small part of 172.16.0.0/12, so that prefixes nest and touch.
    pub fn prefix4(&mut self, tenant: bool) -> String {
        if self.one_in(20) {
            let n = self.rng.u8(..);
            self.targets4.push(Ipv4Addr::new(192, 0, 2, n));
            let taken = std::mem::replace(&mut self.has_default4[usize::from(tenant)], true);
            return if taken { self.pick(&["128.0.0.0/1", "192.0.0.0/3", "0.0.0.0/1"]) } else { "default" }
                .into();
        }
        let lengths = [8, 12, 16, 20, 23, 24, 24, 25, 28, 30, 31, 32];
        let length = lengths[self.rng.usize(..lengths.len())];
        let address = u32::from_be_bytes([172, 16 + self.rng.u8(0..2), self.rng.u8(0..3), self.rng.u8(..)]);
        let mask = u32::MAX << (32 - length);
        let (low, high) = (address & mask, address | !mask);
        for a in [low, high, address, low.wrapping_sub(1), high.wrapping_add(1)] {
            self.targets4.push(Ipv4Addr::from_bits(a));
        }
        format!("{}/{length}", Ipv4Addr::from_bits(low))
    }

    pub fn prefix6(&mut self) -> String {
        if self.one_in(20) {
            self.targets6.push("2001:db8:ffff::1".parse().unwrap());
            return "default".into();
        }
        let lengths = [16, 28, 32, 40, 44, 47, 48, 56, 64, 64, 65, 96, 127, 128];
        let length = lengths[self.rng.usize(..lengths.len())];
        let groups = [0x2400, self.rng.u16(0..2), self.rng.u16(0..4) << 12, self.rng.u16(0..3)];
        let [a, b, c, d] = groups;
        let address = u128::from(Ipv6Addr::new(a, b, c, d, 0, 0, 0, self.rng.u16(0..9)));
        let mask = u128::MAX << (128 - length);
        let (low, high) = (address & mask, address | !mask);
        for a in [low, high, address, low.wrapping_sub(1), high.wrapping_add(1)] {
            self.targets6.push(Ipv6Addr::from_bits(a));
        }
        format!("{}/{length}", Ipv6Addr::from_bits(low))
    }

    /// Undoes each change before the next one is made, or after it.
    fn changes(&mut self) {
        let mut standing: Option<Change> = None;
        for _ in 0..CHANGES {
            let change = changes::random(self);
            if standing.as_ref().is_some_and(|before| before.name == change.name) {
                self.undo(standing.take());
            }
            change.make.iter().for_each(|line| self.run(change.tenant, line.clone()));
            self.steps.extend(change.shows.map(|text| Step::Shows(text.into())));
            self.steps.push(Step::Compare);
            self.undo(standing.replace(change));
            if self.rng.bool() {
                self.undo(standing.take());
                self.steps.push(Step::Compare);
            }
        }
        self.undo(standing);
        self.steps.push(Step::Compare);
    }

    fn undo(&mut self, change: Option<Change>) {
        let Some(change) = change else { return };
        change.undo.iter().for_each(|line| self.run(change.tenant, line.clone()));
        self.steps.extend(change.shows.map(|text| Step::Hides(text.into())));
    }
}
