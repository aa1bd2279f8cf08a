//! `millrace routes --verify`: does the fast table send packets where Linux does?
//!
//! Linux is asked (`RTM_GETROUTE`, with the device a packet comes in by), not the mirror: nothing that decides what is in
//! the tables has a part in this. Of each router's prefixes [`SAMPLE`] a family are drawn, and asked about are both ends, the
//! addresses next to them and one inside; besides, every neighbour, and [`RANDOM`] addresses. Where Linux sends elsewhere
//! than the table, through another device, or to another MAC address, or takes only smaller packets, they differ. The
//! table may leave any packet to the kernel, but it must not take a route for none.
//!
//! Routes change meanwhile. A difference therefore counts only if it is seen [`CONFIRMATIONS`] times, Linux and the table
//! each saying the same every time, and if in between the loop has taken in all that Linux had reported.

use super::{
    Control,
    api::{Answer as Reply, ApiError},
    report::{Difference, Families, VerifyReport, VerifyRouter},
    seam::{Ask, FastPath, Hardware, Kernel, Known, Observe, Question, Sent},
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
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    hash::{BuildHasher, RandomState},
    net::IpAddr,
    sync::mpsc::{Receiver, TryRecvError, sync_channel},
    thread,
    time::Duration,
};
use tokio::sync::oneshot;

/// Prefixes of a router and family that are asked about, at most.
const SAMPLE: usize = 10_000;
/// Addresses of each family that are asked about wherever they may lie.
const RANDOM: u64 = 1000;
/// How often a difference must be seen.
const CONFIRMATIONS: u8 = 3;
/// What still changes after so many looks is told as changing.
const LOOKS: usize = 12;
/// How long the loop may take to catch up.
const CATCH_UP: Duration = Duration::from_secs(10);

/// A comparison under way.
pub(super) struct Verifying {
    reply: oneshot::Sender<Reply>,
    stage: Stage,
}

enum Stage {
    Looking(Receiver<Result<Comparison, ApiError>>),
    /// What was under way when Linux was asked is being taken in, since then, and since this round of the loop.
    CatchingUp(Comparison, Duration, u64),
}

impl<K: Kernel, O: Observe> Control<K, O> {
    /// Begins to compare every router; the answer is sent when there is one.
    pub(super) fn begin_verify(&mut self, reply: oneshot::Sender<Reply>) {
        if self.verifying.is_some() {
            let _ = reply.send(Err(ApiError::busy("a comparison is already running; try again later")));
            return;
        }
        match self.comparison().and_then(|comparison| self.look(comparison)) {
            Ok(worker) => self.verifying = Some(Verifying { reply, stage: Stage::Looking(worker) }),
            Err(error) => drop(reply.send(Err(error))),
        }
    }

    /// Carries a comparison on, if there is one.
    pub(super) fn follow_verify(&mut self, now: Duration) {
        let Some(verifying) = self.verifying.take() else { return };
        let next = match verifying.stage {
            Stage::Looking(worker) => match worker.try_recv() {
                Err(TryRecvError::Empty) => Ok(Stage::Looking(worker)),
                Err(TryRecvError::Disconnected) => Err(Err(ApiError::failed("the comparison failed"))),
                Ok(Err(error)) => Err(Err(error)),
                Ok(Ok(comparison)) if comparison.is_done() => Err(Ok(comparison.report())),
                Ok(Ok(comparison)) => Ok(Stage::CatchingUp(comparison, now, self.rounds)),
            },
            // This round's events were asked for after Linux was.
            Stage::CatchingUp(comparison, _, round) if self.rounds > round && self.is_current() => {
                self.look(comparison).map(Stage::Looking).map_err(Err)
            }
            Stage::CatchingUp(comparison, since, _) if now.saturating_sub(since) >= CATCH_UP => {
                Err(Ok(comparison.report()))
            }
            waiting => Ok(waiting),
        };
        match next {
            Ok(stage) => self.verifying = Some(Verifying { reply: verifying.reply, stage }),
            Err(report) => {
                let answer = report.and_then(|report| {
                    serde_json::to_value(report).map_err(|e| ApiError::failed(e.to_string()))
                });
                let _ = verifying.reply.send(answer);
            }
        }
    }

    /// Has this round taken in, and applied, everything that Linux had reported when it began?
    fn is_current(&self) -> bool {
        self.drained && self.trouble.is_none() && self.observer.is_current() && !self.world.mirror.is_behind()
    }

    fn comparison(&mut self) -> Result<Comparison, ApiError> {
        let linux = self.observer.questions();
        let linux = linux.map_err(|e| ApiError::failed(format!("cannot ask the kernel: {e:#}")))?;
        let mirror = &self.world.mirror;
        let numbers = mirror.interfaces().filter_map(|i| Some((i.interface?, (i.namespace, i.ifindex))));
        let numbers = numbers.collect();
        let accelerated = |v6: bool| {
            let here = mirror.interfaces().filter(|i| if v6 { i.ipv6 } else { i.ipv4 });
            let mut by_router: BTreeMap<NamespaceId, Vec<u32>> = BTreeMap::new();
            here.for_each(|i| by_router.entry(i.namespace).or_default().push(i.ifindex));
            by_router
        };
        let ways_in = Families { ipv4: accelerated(false), ipv6: accelerated(true) };
        let routers = self.routers_and_obstacles().collect();
        Ok(Comparison { linux, numbers, ways_in, routers, suspects: None, looks: 0, report: Vec::new() })
    }

    /// Starts a thread that looks once.
    fn look(&self, comparison: Comparison) -> Result<Receiver<Result<Comparison, ApiError>>, ApiError> {
        let memory = self.generation.plane.memory();
        let (to, worker) = sync_channel(1);
        let run = move || drop(to.send(comparison.look(&memory)));
        let spawned = thread::Builder::new().name("verify".into()).spawn(run);
        spawned.map(|_| worker).map_err(|e| ApiError::failed(format!("cannot start a thread: {e}")))
    }
}

/// Everything a comparison needs, so that it needs nothing of the loop.
struct Comparison {
    linux: Box<dyn Ask>,
    /// Where our interfaces are.
    numbers: BTreeMap<InterfaceId, (NamespaceId, u32)>,
    /// Devices by which packets come in.
    ways_in: Families<BTreeMap<NamespaceId, Vec<u32>>>,
    routers: Vec<RouterView>,
    /// `None`: not looked yet.
    suspects: Option<Vec<Suspect>>,
    looks: usize,
    /// In the order of `routers`.
    report: Vec<VerifyRouter>,
}

/// An address about which Linux and the table disagreed.
struct Suspect {
    /// Place in `routers`.
    router: usize,
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

/// What a namespace holds, as Linux says now.
struct Place {
    known: Vec<Known>,
    neighbours: BTreeMap<(u32, IpAddr), Mac>,
    devices: BTreeMap<u32, Hardware>,
}

impl Comparison {
    fn is_done(&self) -> bool {
        self.looks >= LOOKS || self.suspects.as_ref().is_some_and(Vec::is_empty)
    }

    /// What differs for good has been written down; what is left changes all the time.
    fn report(self) -> VerifyReport {
        let mut routers = self.report;
        for suspect in self.suspects.into_iter().flatten() {
            routers[suspect.router].changing += 1;
        }
        let differences = routers.iter().map(|router| router.found).sum();
        VerifyReport { routers, differences }
    }

    /// Asks about everything, or again about what is suspected.
    fn look(mut self, memory: &impl Memory) -> Result<Comparison, ApiError> {
        let result = match self.suspects.take() {
            None => self.look_at_all(memory),
            Some(suspects) => self.look_again(suspects, memory),
        };
        self.looks += 1;
        result.map(|()| self).map_err(|e| ApiError::failed(format!("asking the kernel: {e:#}")))
    }

    fn look_at_all(&mut self, memory: &impl Memory) -> anyhow::Result<()> {
        let mut suspects = Vec::new();
        for (at, router) in std::mem::take(&mut self.routers).into_iter().enumerate() {
            let why_not = Families { ipv4: router.ipv4.clone(), ipv6: router.ipv6.clone() };
            let name = router.name.clone();
            self.report.push(VerifyRouter { router: name, why_not, ..VerifyRouter::default() });
            if let Some(number) = router.router {
                let place = self.place(router.namespace)?;
                let questions = self.questions(&router, &place);
                self.report[at].compared = compared(&place.known);
                self.report[at].asked = questions.len() as u64;
                for question in questions {
                    let linux = self.truth(router.namespace, &question, &place)?;
                    let answers = tables::lookup(memory, number, question.address);
                    if let (Some(_), [Answer { reason: Some(reason), .. }]) = (&linux.sent, &answers[..]) {
                        *self.report[at].left.entry(reason.name().into()).or_default() += 1;
                    }
                    if !self.agree(router.namespace, &question, &linux, &answers, &place) {
                        let fast = self.ways(&answers);
                        suspects.push(Suspect { router: at, question, linux, fast, seen: 1 });
                    }
                }
            }
            self.routers.push(router);
        }
        self.suspects = Some(suspects);
        Ok(())
    }

    fn look_again(&mut self, suspects: Vec<Suspect>, memory: &impl Memory) -> anyhow::Result<()> {
        let mut left = Vec::new();
        let mut places: BTreeMap<NamespaceId, Place> = BTreeMap::new();
        for mut suspect in suspects {
            let (namespace, router) =
                (self.routers[suspect.router].namespace, self.routers[suspect.router].router);
            let Some(number): Option<RouterId> = router else { continue };
            let answers = tables::lookup(memory, number, suspect.question.address);
            let place = match places.entry(namespace) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(unknown) => unknown.insert(self.place(namespace)?),
            };
            let linux = self.truth(namespace, &suspect.question, place)?;
            if self.agree(namespace, &suspect.question, &linux, &answers, place) {
                continue;
            }
            let fast = self.ways(&answers);
            suspect.seen =
                if (&linux, &fast) == (&suspect.linux, &suspect.fast) { suspect.seen + 1 } else { 1 };
            (suspect.linux, suspect.fast) = (linux, fast);
            if suspect.seen >= CONFIRMATIONS {
                self.write_down(&suspect);
            } else {
                left.push(suspect);
            }
        }
        self.suspects = Some(left);
        Ok(())
    }

    fn place(&mut self, namespace: NamespaceId) -> anyhow::Result<Place> {
        let (known, neighbours) = (self.linux.routes(namespace)?, self.linux.neighbours(namespace)?);
        Ok(Place { known, neighbours, devices: self.linux.devices(namespace)? })
    }

    /// What is asked about a router's families that are accelerated.
    fn questions(&self, router: &RouterView, place: &Place) -> Vec<Question> {
        let known = &place.known;
        let mut questions = Vec::new();
        for v6 in [false, true] {
            if !(if v6 { &router.ipv6 } else { &router.ipv4 }).is_empty() {
                continue;
            }
            let ways_in = if v6 { &self.ways_in.ipv6 } else { &self.ways_in.ipv4 };
            let devices = ways_in.get(&router.namespace).map_or(&[][..], Vec::as_slice);
            let from: Vec<_> = devices.iter().filter_map(|device| source(known, *device, v6)).collect();
            let probes = probes(known, place.neighbours.keys().map(|(_, address)| *address), v6);
            for (at, (prefix, address)) in probes.into_iter().enumerate() {
                let from = (!from.is_empty()).then(|| from[at % from.len()]);
                questions.push(Question { address, from, prefix });
            }
        }
        questions
    }

    fn truth(&mut self, namespace: NamespaceId, question: &Question, place: &Place) -> anyhow::Result<Truth> {
        let sent = self.linux.way(namespace, question)?;
        let to = sent.as_ref().map(|sent| (sent.oif, sent.gateway.unwrap_or(question.address)));
        Ok(Truth { sent, mac: to.and_then(|to| place.neighbours.get(&to).copied()) })
    }

    /// Does each answer of the table do what Linux does?
    fn agree(
        &self,
        namespace: NamespaceId,
        question: &Question,
        linux: &Truth,
        answers: &[Answer],
        place: &Place,
    ) -> bool {
        let Some(sent) = &linux.sent else {
            let passed = answers.iter().all(|answer| answer.reason.is_some());
            return passed || may_forward_in_silence(&place.known, question.address);
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
                // Linux has a route there, and the table none.
                (Some(Reason::NoRoute | Reason::SpecialRoute | Reason::Local | Reason::Broadcast), ..) => {
                    return false;
                }
                (Some(_), ..) => found = true,
                (None, ..) => return false,
            }
        }
        found
    }

    fn ways(&self, answers: &[Answer]) -> BTreeSet<Way> {
        answers.iter().map(Way::of).collect()
    }

    fn write_down(&mut self, suspect: &Suspect) {
        let router = &mut self.report[suspect.router];
        router.found += 1;
        if router.differences.len() < VerifyRouter::LISTED {
            let Question { address, prefix, .. } = &suspect.question;
            let fast = suspect.fast.iter().map(Way::words).collect::<Vec<_>>().join(" or ");
            let kernel = suspect.linux.words(*address);
            router.differences.push(Difference { prefix: format!("{prefix} at {address}"), kernel, fast });
        }
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

/// Where the table sends packets, comparable.
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

/// Can Linux forward a packet although it gives no answer about it?
///
/// An IPv6 nexthop object caches a result of whichever of its routes was used last (`rt6i_pcpu`). When that route is
/// deleted, Linux refuses to answer about the others (`inet6_rtm_getroute()` finds no `from`) but forwards their packets.
fn may_forward_in_silence(known: &[Known], address: IpAddr) -> bool {
    let covers = |known: &&Known| {
        let host = u128::MAX.checked_shr(known.length.into()).unwrap_or(0);
        known.address.is_ipv6() && to_bits(known.address) | host == to_bits(address) | host
    };
    let longest = known.iter().filter(covers).max_by_key(|known| known.length);
    address.is_ipv6() && longest.is_some_and(|known| known.object)
}

/// How many prefixes Linux has routes for that the tables can hold.
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

/// Somebody who may send from that device: a neighbour on a connected prefix, and the device.
fn source(known: &[Known], device: u32, v6: bool) -> Option<(IpAddr, u32)> {
    let own: BTreeSet<IpAddr> = known.iter().filter(|k| k.local).map(|k| k.address).collect();
    let connected = known.iter().filter(|k| k.connected == Some(device) && k.address.is_ipv6() == v6);
    let here = connected.filter(|k| k.length > 0 && k.length < bits(v6) && !is_martian(k.address));
    let others = here.flat_map(|k| (1..4).map(|n| from_bits(to_bits(k.address) + n, v6)));
    others.filter(|address| !own.contains(address)).map(|address| (address, device)).next()
}

/// Addresses to be asked about, each with the prefix it is asked for.
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

/// Destinations Linux never forwards to whatever its routes say, so that the table need not follow them: it sends all
/// of them to the kernel.
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

    fn known(prefix: &str, connected: Option<u32>, local: bool) -> Known {
        let (address, length) = prefix.split_once('/').unwrap();
        let (address, length) = (address.parse().unwrap(), length.parse().unwrap());
        Known { address, length, connected, local, object: false }
    }

    #[test]
    fn linux_may_forward_in_silence_where_an_ipv6_object_leads() {
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

    #[test]
    fn edges_and_what_is_next_to_them_are_asked_about() {
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
    fn a_source_is_a_neighbour_on_the_device_a_packet_comes_in_by() {
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
