//! One look at the tables and at Linux.
//!
//! The tables are compared with answers of Linux (`RTM_GETROUTE`, with the device by which a packet arrives), not
//! with the mirror. So nothing that decides about the tables takes part in their check.
//!
//! From the prefixes of each router, [`SAMPLE`] of each family are drawn. Linux is queried about the first and the
//! last address of each, the addresses next to these, and one address inside. It is also queried about neighbours and
//! about [`RANDOM`] random addresses.
//!
//! The table differs if it sends a packet to another next hop, through another device or to another MAC address than
//! Linux does, or if it takes larger packets. It may leave any packet to the kernel, but it must not lack a route.

use super::{CHANGING, CONFIRMATIONS, LOOKS, changes::Changed};
use crate::{
    api::status::{Difference, Families, VerifyReport, VerifyResult, VerifyRouter, whys},
    daemon::seam::{Ask, Hardware, Known, Question, Sent},
};
use logic::{
    memory::Memory,
    mirror::RouterView,
    net::Mac,
    observe::NamespaceId,
    plan::{InterfaceId, RouterId},
    reason::Reason,
    tables::{self, Answer},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{BuildHasher, RandomState},
    io,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

/// The most prefixes of a router and family that are compared.
const SAMPLE: usize = 10_000;
/// Random addresses of each family that are compared.
const RANDOM: u64 = 1000;
/// The longest time of one look at a namespace.
const LONGEST: Duration = Duration::from_secs(10);
/// The same for the host's namespace, whose tables have no limits.
const LONGEST_OF_HOST: Duration = Duration::from_secs(20);

/// The namespace and device of each interface.
pub(super) type Numbers = BTreeMap<InterfaceId, (NamespaceId, u32)>;

/// Everything that a comparison needs. It uses nothing of the loop.
pub(super) struct Comparison {
    pub linux: Box<dyn Ask>,
    pub numbers: Numbers,
    pub cases: Vec<Case>,
}

/// The comparison of one namespace.
pub(super) struct Case {
    pub view: RouterView,
    /// Devices by which packets arrive, for IPv4 and IPv6.
    ways_in: [Vec<u32>; 2],
    /// The number of routes in its table.
    routes: usize,
    report: VerifyRouter,
    /// The result is known.
    is_settled: bool,
    suspects: Vec<Suspect>,
    pub looks: u32,
    routes6: Arc<[Known]>,
    /// The end of the last look at it.
    pub looked: Duration,
    /// The changes since the last look, if another look is due.
    pub changed: Option<Changed>,
}

/// An address about which Linux and the table disagreed.
struct Suspect {
    question: Question,
    linux: Truth,
    fast: BTreeSet<Way>,
    seen: u8,
}

/// What Linux does with a packet.
#[derive(Clone, Debug, PartialEq)]
struct Truth {
    /// `None`: it does not forward it.
    sent: Option<Sent>,
    mac: Option<Mac>,
}

/// The present state of a namespace, as Linux reports it.
struct NamespaceSnapshot {
    /// IPv6 routes, if packets leave by nexthop objects.
    routes6: Arc<[Known]>,
    neighbours: BTreeMap<(u32, IpAddr), Mac>,
    devices: BTreeMap<u32, Hardware>,
}

impl Case {
    pub fn new(view: RouterView, ways_in: [Vec<u32>; 2], routes: usize) -> Case {
        let why_not = Families { ipv4: whys(&view.ipv4), ipv6: whys(&view.ipv6) };
        let report = VerifyRouter { router: view.name.clone(), why_not, ..VerifyRouter::default() };
        Case {
            view,
            ways_in,
            routes,
            report,
            is_settled: false,
            suspects: Vec::new(),
            looks: 0,
            routes6: Arc::default(),
            looked: Duration::ZERO,
            changed: None,
        }
    }

    /// Sets the result. A confirmed difference counts even if other addresses could not be compared.
    pub fn settle(&mut self, result: VerifyResult, why: &str) {
        self.is_settled = true;
        self.report.changing = self.suspects.len() as u64;
        self.report.result = if self.report.found > 0 { VerifyResult::Differs } else { result };
        self.report.why = (!why.is_empty()).then(|| why.to_owned());
        self.suspects.clear();
    }

    /// Sets the result after a query to Linux has failed.
    fn fail(&mut self, error: &anyhow::Error) {
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        match kind {
            Some(io::ErrorKind::QuotaExceeded) => {
                self.settle(VerifyResult::OverLimits, &format!("{error:#}"))
            }
            Some(io::ErrorKind::Interrupted) => self.settle(VerifyResult::Changing, CHANGING),
            _ => self.settle(VerifyResult::Unread, &format!("{error:#}")),
        }
    }

    /// Are the tables of any family used?
    fn is_used(&self) -> bool {
        self.view.ipv4.is_empty() || self.view.ipv6.is_empty()
    }

    /// The queries for the families that are accelerated.
    fn questions(&self, known: &[Known], place: &NamespaceSnapshot) -> Vec<Question> {
        let mut questions = Vec::new();
        for (v6, devices) in [false, true].into_iter().zip(&self.ways_in) {
            if !(if v6 { &self.view.ipv6 } else { &self.view.ipv4 }).is_empty() {
                continue;
            }
            let from: Vec<_> = devices.iter().filter_map(|device| source(known, *device, v6)).collect();
            let probes = probes(known, place.neighbours.keys().map(|(_, address)| *address), v6);
            for (at, (prefix, address)) in probes.into_iter().enumerate() {
                let from = (!from.is_empty()).then(|| from[at % from.len()]);
                questions.push(Question { address, from, prefix });
            }
        }
        questions
    }

    fn write_down(&mut self, suspect: &Suspect) {
        self.report.found += 1;
        if self.report.differences.len() < VerifyRouter::LISTED {
            let Question { address, prefix, .. } = &suspect.question;
            let fast = suspect.fast.iter().map(Way::words).collect::<Vec<_>>().join(" or ");
            let kernel = suspect.linux.words(*address);
            self.report.differences.push(Difference {
                prefix: format!("{prefix} at {address}"),
                kernel,
                fast,
            });
        }
    }
}

impl Comparison {
    /// Namespaces without a result.
    pub fn open(&self) -> impl Iterator<Item = &Case> {
        self.cases.iter().filter(|case| !case.is_settled)
    }

    pub fn open_mut(&mut self) -> impl Iterator<Item = &mut Case> {
        self.cases.iter_mut().filter(|case| !case.is_settled)
    }

    pub fn report(self) -> VerifyReport {
        let routers: Vec<_> = self.cases.into_iter().map(|case| case.report).collect();
        let differences = routers.iter().map(|router| router.found).sum();
        let unverified = routers.iter().filter(|router| router.result.is_unverified()).count() as u64;
        VerifyReport { routers, differences, unverified }
    }

    /// Looks at all namespaces for the first time, or again at those that are ready. The host comes first, and
    /// smaller tables come before larger ones. A namespace that needs less than its part of the time leaves the rest
    /// to the others.
    pub fn look(&mut self, memory: &impl Memory, end: Instant) {
        let is_due = |case: &Case| !case.is_settled && (case.looks == 0 || case.changed.is_some());
        let mut due: Vec<usize> = (0..self.cases.len()).filter(|at| is_due(&self.cases[*at])).collect();
        due.sort_by_key(|at| {
            let case = &self.cases[*at];
            (!case.view.host, if case.looks == 0 { case.routes } else { case.suspects.len() })
        });
        let mut cases = std::mem::take(&mut self.cases);
        for (done, at) in due.iter().enumerate() {
            let case = &mut cases[*at];
            let left = end.saturating_duration_since(Instant::now());
            let part = match case.view.host {
                true => left.min(LONGEST_OF_HOST),
                false => (left / (due.len() - done) as u32).min(LONGEST),
            };
            let part = Instant::now() + part;
            self.linux.end_at(case.view.namespace, part);
            let looked = match case.looks {
                0 => self.look_first(case, memory, part),
                _ => self.look_again(case, memory, part),
            };
            case.looks += 1;
            match looked {
                Err(error) => case.fail(&error),
                Ok(()) if case.suspects.is_empty() => {
                    let used = if case.is_used() { VerifyResult::Verified } else { VerifyResult::NotUsed };
                    case.settle(used, "");
                }
                Ok(()) if case.looks >= LOOKS => case.settle(VerifyResult::Changing, CHANGING),
                Ok(()) => {}
            }
        }
        self.cases = cases;
    }

    fn look_first(&mut self, case: &mut Case, memory: &impl Memory, end: Instant) -> anyhow::Result<()> {
        let Some(number): Option<RouterId> = case.view.router else { return Ok(()) };
        let namespace = case.view.namespace;
        let known = match self.linux.routes(namespace) {
            // Unused tables need no comparison.
            Err(_) if !case.is_used() => return Ok(()),
            known => known?,
        };
        case.report.compared = compared(&known);
        if known.iter().any(|route| route.object && route.address.is_ipv6()) {
            case.routes6 = known.iter().filter(|route| route.address.is_ipv6()).cloned().collect();
        }
        let place = self.place(namespace, &case.routes6)?;
        let questions = case.questions(&known, &place);
        drop(known);
        case.report.asked = questions.len() as u64;
        for question in questions {
            in_time(end)?;
            let linux = self.truth(namespace, &question, &place)?;
            let answers = tables::lookup(memory, number, question.address);
            if let (Some(_), [Answer { reason: Some(reason), .. }]) = (&linux.sent, &answers[..]) {
                *case.report.left.entry(reason.name().into()).or_default() += 1;
            }
            if !self.agree(namespace, &question, &linux, &answers, &place) {
                case.suspects.push(Suspect { question, linux, fast: ways(&answers), seen: 1 });
            }
        }
        Ok(())
    }

    fn look_again(&mut self, case: &mut Case, memory: &impl Memory, end: Instant) -> anyhow::Result<()> {
        let (Some(number), Some(changed)) = (case.view.router, case.changed.take()) else { return Ok(()) };
        let namespace = case.view.namespace;
        let place = self.place(namespace, &case.routes6)?;
        let mut suspects = std::mem::take(&mut case.suspects).into_iter();
        while let Some(mut suspect) = suspects.next() {
            let looked = in_time(end).and_then(|()| self.truth(namespace, &suspect.question, &place));
            let linux = match looked {
                Ok(linux) => linux,
                Err(error) => {
                    case.suspects.push(suspect);
                    case.suspects.extend(suspects);
                    return Err(error);
                }
            };
            let answers = tables::lookup(memory, number, suspect.question.address);
            if self.agree(namespace, &suspect.question, &linux, &answers, &place) {
                continue;
            }
            let fast = ways(&answers);
            let same = (&linux, &fast) == (&suspect.linux, &suspect.fast);
            suspect.seen = if same && !suspect.concerned_by(&changed) { suspect.seen + 1 } else { 1 };
            (suspect.linux, suspect.fast) = (linux, fast);
            if suspect.seen >= CONFIRMATIONS {
                case.write_down(&suspect);
            } else {
                case.suspects.push(suspect);
            }
        }
        Ok(())
    }

    fn place(&mut self, namespace: NamespaceId, routes6: &Arc<[Known]>) -> anyhow::Result<NamespaceSnapshot> {
        let neighbours = self.linux.neighbours(namespace)?;
        Ok(NamespaceSnapshot {
            routes6: routes6.clone(),
            neighbours,
            devices: self.linux.devices(namespace)?,
        })
    }

    fn truth(
        &mut self,
        namespace: NamespaceId,
        question: &Question,
        place: &NamespaceSnapshot,
    ) -> anyhow::Result<Truth> {
        let sent = self.linux.way(namespace, question)?;
        let to = sent.as_ref().map(|sent| (sent.oif, sent.gateway.unwrap_or(question.address)));
        Ok(Truth { sent, mac: to.and_then(|to| place.neighbours.get(&to).copied()) })
    }

    /// Does each answer of the table match what Linux does?
    fn agree(
        &self,
        namespace: NamespaceId,
        question: &Question,
        linux: &Truth,
        answers: &[Answer],
        place: &NamespaceSnapshot,
    ) -> bool {
        let Some(sent) = &linux.sent else {
            let passed = answers.iter().all(|answer| answer.reason.is_some());
            return passed || may_forward_in_silence(&place.routes6, question.address);
        };
        let to = sent.gateway.unwrap_or(question.address);
        let mut found = false;
        for answer in answers {
            match (answer.reason, answer.interface.and_then(|i| self.numbers.get(&i)), answer.neighbour) {
                (None, Some((space, oif)), Some(neighbour)) => {
                    let Some(device) = place.devices.get(oif) else { return false };
                    let same_mac = place.neighbours.get(&(*oif, neighbour)).copied() == answer.mac;
                    if *space != namespace || !same_mac || device.mac != answer.source {
                        return false;
                    }
                    let taken = (*oif, neighbour) == (sent.oif, to);
                    let limit = sent.mtu.filter(|_| taken).unwrap_or(device.mtu).min(device.mtu);
                    if answer.mtu > limit {
                        return false;
                    }
                    found |= taken;
                }
                // Linux has a route, and the table has none.
                (Some(Reason::NoRoute | Reason::SpecialRoute | Reason::Local | Reason::Broadcast), ..) => {
                    return false;
                }
                (Some(_), ..) => found = true,
                (None, ..) => return false,
            }
        }
        found
    }
}

fn ways(answers: &[Answer]) -> BTreeSet<Way> {
    answers.iter().map(Way::of).collect()
}

fn in_time(end: Instant) -> anyhow::Result<()> {
    let late = || io::Error::new(io::ErrorKind::TimedOut, "there was not enough time for its table");
    if Instant::now() < end { Ok(()) } else { Err(late().into()) }
}

impl Suspect {
    /// Can one of these changes have changed an answer?
    fn concerned_by(&self, changed: &Changed) -> bool {
        let address = self.question.address;
        let to = self.linux.sent.as_ref().map(|sent| sent.gateway.unwrap_or(address));
        let fast = self.fast.iter().filter_map(|way| match way {
            Way::Send { neighbour, .. } => Some(*neighbour),
            Way::Kernel(_) => None,
        });
        changed.concerns(address, to.into_iter().chain(fast))
    }
}

impl Truth {
    fn words(&self, address: IpAddr) -> String {
        let Some(sent) = &self.sent else { return "not forwarded".into() };
        let mac = self.mac.map_or("unresolved".into(), |mac| mac.to_string());
        let mtu = sent.mtu.map_or(String::new(), |mtu| format!(" with MTU {mtu}"));
        format!("{} ({mac}) on device {}{mtu}", sent.gateway.unwrap_or(address), sent.oif)
    }
}

/// Where the table sends packets, in a form that can be compared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    Kernel(Reason),
    Send { interface: InterfaceId, neighbour: IpAddr, mtu: u32, mac: Option<Mac>, source: Mac },
}

impl Way {
    fn of(answer: &Answer) -> Way {
        match (answer.reason, answer.interface, answer.neighbour) {
            (None, Some(interface), Some(neighbour)) => {
                Way::Send { interface, neighbour, mtu: answer.mtu, mac: answer.mac, source: answer.source }
            }
            (reason, ..) => Way::Kernel(reason.unwrap_or(Reason::NoRoute)),
        }
    }

    fn words(&self) -> String {
        match self {
            Way::Kernel(reason) => reason.name().into(),
            Way::Send { interface, neighbour, mtu, mac, source } => {
                let mac = mac.map_or("unresolved".into(), |m| m.to_string());
                format!("{neighbour} ({mac}) on interface {interface} ({source}) with MTU {mtu}")
            }
        }
    }
}

/// Can Linux forward a packet although it does not answer the query?
///
/// An IPv6 nexthop object caches the result of the route that used it last (`rt6i_pcpu`). When that route is deleted,
/// Linux does not answer queries about the other routes (`inet6_rtm_getroute()` finds no `from`), but forwards their
/// packets.
fn may_forward_in_silence(known: &[Known], address: IpAddr) -> bool {
    let covers = |known: &&Known| {
        let host = u128::MAX.checked_shr(known.length.into()).unwrap_or(0);
        known.address.is_ipv6() && to_bits(known.address) | host == to_bits(address) | host
    };
    let longest = known.iter().filter(covers).max_by_key(|known| known.length);
    address.is_ipv6() && longest.is_some_and(|known| known.object)
}

/// The number of prefixes that Linux has routes for and the tables can hold.
fn compared(known: &[Known]) -> Families<u64> {
    let prefixes: BTreeSet<(IpAddr, u8)> = known.iter().map(|known| (known.address, known.length)).collect();
    let count = |v6: bool| prefixes.iter().filter(|(a, l)| a.is_ipv6() == v6 && held(*a, *l)).count() as u64;
    Families { ipv4: count(false), ipv6: count(true) }
}

fn held(address: IpAddr, length: u8) -> bool {
    match address {
        IpAddr::V4(a) => logic::net::Prefix::new(a.to_bits(), length).is_some_and(tables::holds4),
        IpAddr::V6(a) => logic::net::Prefix::new(a.to_bits(), length).is_some_and(tables::holds6),
    }
}

/// A source address for packets that arrive by a device: a neighbour on a connected prefix, with the device.
fn source(known: &[Known], device: u32, v6: bool) -> Option<(IpAddr, u32)> {
    let own: BTreeSet<IpAddr> = known.iter().filter(|k| k.local).map(|k| k.address).collect();
    let connected = known.iter().filter(|k| k.connected == Some(device) && k.address.is_ipv6() == v6);
    let here = connected.filter(|k| k.length > 0 && k.length < bits(v6) && !is_martian(k.address));
    let others = here.flat_map(|k| (1..4).map(|n| from_bits(to_bits(k.address) + n, v6)));
    others.filter(|address| !own.contains(address)).map(|address| (address, device)).next()
}

/// The addresses to compare, each with the prefix that it stands for.
fn probes(known: &[Known], neighbours: impl Iterator<Item = IpAddr>, v6: bool) -> Vec<(String, IpAddr)> {
    let random = RandomState::new();
    let draw = |seed: u64| u128::from(random.hash_one(seed)) << 64 | u128::from(random.hash_one(!seed));
    let all = u128::MAX >> (128 - u32::from(bits(v6)));
    let routes: Vec<&Known> = known.iter().filter(|k| k.address.is_ipv6() == v6).collect();
    let step = routes.len().div_ceil(SAMPLE).max(1);
    let first = draw(0) as usize % step;
    let mut probes = BTreeMap::new();
    for (at, route) in routes.into_iter().enumerate().skip(first).step_by(step) {
        let (from, host) = (to_bits(route.address), all.checked_shr(route.length.into()).unwrap_or(0));
        let name = format!("{}/{}", route.address, route.length);
        let inside = from | draw(at as u64) & host;
        for address in [from, from | host, from.wrapping_sub(1), (from | host).wrapping_add(1), inside] {
            probes.entry(address & all).or_insert_with(|| name.clone());
        }
    }
    for neighbour in neighbours.filter(|a| a.is_ipv6() == v6).take(SAMPLE) {
        probes.entry(to_bits(neighbour)).or_insert_with(|| "neighbour".into());
    }
    for seed in 1..=RANDOM {
        probes.entry(draw(u64::MAX / 2 + seed) & all).or_insert_with(|| "random".into());
    }
    let probes = probes.into_iter().map(|(address, name)| (name, from_bits(address, v6)));
    probes.filter(|(_, address)| !is_martian(*address)).collect()
}

fn bits(v6: bool) -> u8 {
    if v6 { 128 } else { 32 }
}

fn to_bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(a) => a.to_bits().into(),
        IpAddr::V6(a) => a.to_bits(),
    }
}

fn from_bits(bits: u128, v6: bool) -> IpAddr {
    if v6 { IpAddr::V6(bits.into()) } else { IpAddr::V4((bits as u32).into()) }
}

/// Is this a destination to which Linux never forwards, whatever its routes say? The table sends all of them to the
/// kernel, so it need not follow their routes.
fn is_martian(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => a.octets()[0] == 0 || a.is_loopback() || a.is_multicast() || a.is_broadcast(),
        IpAddr::V6(a) => {
            a.is_unspecified() || a.is_loopback() || a.is_multicast() || a.is_unicast_link_local()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use logic::memory::{Capacity, HeapMemory};

    fn known(prefix: &str, connected: Option<u32>, local: bool) -> Known {
        let (address, length) = prefix.split_once('/').unwrap();
        let (address, length) = (address.parse().unwrap(), length.parse().unwrap());
        Known { address, length, connected, local, object: false }
    }

    #[test]
    fn linux_may_forward_without_an_answer_where_an_ipv6_object_leads() {
        let object = |prefix| Known { object: true, ..known(prefix, None, false) };
        let routes = [
            object("2400::/16"),
            known("2400:1::/32", None, false),
            object("2400:1:1::/48"),
            known("::/0", None, false),
            object("10.0.0.0/8"),
        ];
        let rows = [
            ("2400:2::1", true),
            ("2400:1:2::", false),
            ("2400:1:1::7", true),
            ("2401::", false),
            ("10.0.0.1", false),
        ];
        for (address, expected) in rows {
            assert_eq!(may_forward_in_silence(&routes, address.parse().unwrap()), expected, "{address}");
        }
        assert!(!may_forward_in_silence(&[], "2400::".parse().unwrap()));
    }

    /// A fake Linux without routes, which takes 10 ms for each query about namespace 1.
    struct Slow;

    impl Ask for Slow {
        fn end_at(&mut self, _: NamespaceId, _: Instant) {}
        fn routes(&mut self, _: NamespaceId) -> anyhow::Result<Vec<Known>> {
            Ok(Vec::new())
        }
        fn way(&mut self, namespace: NamespaceId, _: &Question) -> anyhow::Result<Option<Sent>> {
            if namespace == 1 {
                std::thread::sleep(Duration::from_millis(10));
            }
            Ok(None)
        }
        fn neighbours(&mut self, _: NamespaceId) -> anyhow::Result<BTreeMap<(u32, IpAddr), Mac>> {
            Ok(BTreeMap::new())
        }
        fn devices(&mut self, _: NamespaceId) -> anyhow::Result<BTreeMap<u32, Hardware>> {
            Ok(BTreeMap::new())
        }
    }

    #[test]
    fn a_slow_namespace_takes_its_part_of_the_time_and_no_more() {
        let case = |namespace: NamespaceId| {
            let view = RouterView {
                namespace,
                name: namespace.to_string(),
                host: namespace == 0,
                configured: false,
                router: Some(namespace as RouterId),
                ipv4: Vec::new(),
                ipv6: vec![logic::cause::Code::ForwardingOff.cause("not forwarding")],
                ruled: [false; 2],
            };
            Case::new(view, Default::default(), namespace as usize)
        };
        let cases = [0, 1, 2].map(case).into();
        let mut comparison = Comparison { linux: Box::new(Slow), numbers: Numbers::new(), cases };
        let began = Instant::now();
        comparison.look(&HeapMemory::new(Capacity::SMALL), began + Duration::from_secs(3));
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
        let report = comparison.report();
        let results: Vec<_> = report.routers.iter().map(|router| router.result).collect();
        assert_eq!(results, [VerifyResult::Verified, VerifyResult::Unread, VerifyResult::Verified]);
        assert_eq!(report.routers[1].why.as_deref(), Some("there was not enough time for its table"));
    }

    #[test]
    fn ends_of_prefixes_and_the_addresses_next_to_them_are_compared() {
        let routes = [known("10.0.0.0/8", None, false), known("10.255.255.255/32", None, false)];
        let asked: BTreeSet<_> = probes(&routes, ["10.9.9.9".parse().unwrap()].into_iter(), false)
            .into_iter()
            .map(|(_, address)| address.to_string())
            .collect();
        for address in
            ["10.0.0.0", "10.255.255.255", "9.255.255.255", "11.0.0.0", "10.255.255.254", "10.9.9.9"]
        {
            assert!(asked.contains(address), "{address}");
        }
        assert!(asked.len() > RANDOM as usize / 2, "and others, martians left out: {}", asked.len());
        assert!(probes(&routes, std::iter::empty(), true).iter().all(|(_, a)| a.is_ipv6()));
    }

    #[test]
    fn a_million_routes_are_sampled() {
        let routes: Vec<_> = (0..1_000_000u32)
            .map(|n| known(&format!("{}/32", IpAddr::V4((n << 8).into())), None, false))
            .collect();
        let asked = probes(&routes, std::iter::empty(), false).len();
        assert!((SAMPLE..SAMPLE * 5 + RANDOM as usize).contains(&asked), "{asked}");
    }

    #[test]
    fn a_source_is_a_neighbour_on_the_device_by_which_a_packet_arrives() {
        let routes = [
            known("10.0.0.0/24", Some(2), false),
            known("10.0.0.1/32", None, true),
            known("10.0.1.0/24", Some(3), false),
        ];
        assert_eq!(source(&routes, 2, false), Some(("10.0.0.2".parse().unwrap(), 2)));
        assert_eq!(source(&routes, 3, false), Some(("10.0.1.1".parse().unwrap(), 3)));
        assert_eq!(source(&routes, 4, false), None);
        assert_eq!(source(&routes, 2, true), None);
    }
}
