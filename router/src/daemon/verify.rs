//! `millrace routes --verify`: is the fast table what Linux says?
//!
//! Linux is read afresh, with sockets of its own, into a new mirror, and the tables are read back as the program reads
//! them. A set of routes cuts the address space into intervals in which the most specific route is the same; the answer is
//! compared at both ends of each (and in the gaps between routes, and at each neighbour).
//!
//! All of that happens in a thread of its own, seconds for a full table, while the loop goes on and changes what is
//! compared. What differs is therefore compared once more, after the loop has caught up: only what differs both times is
//! reported.

use super::{
    Control,
    api::{Answer as Reply, ApiError},
    ledger::Ledger,
    report::{Difference, Families, VerifyReport, VerifyRouter},
    seam::{FastPath, Kernel, Observe, Reread},
};
use logic::{
    memory::Memory,
    mirror::{Limits, Mirror, RouterView},
    net::{Address, Mac, Prefix},
    observe::{Event, Namespace, NamespaceId, Port},
    plan::{Hop, InterfaceId, PortId, Target},
    reason::Reason,
    tables::{self, Answer},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::mpsc::{Receiver, TryRecvError, sync_channel},
    thread,
    time::Duration,
};
use tokio::sync::oneshot;

/// How long the loop may take to catch up; with more changes than it can take in, it never does.
const CATCH_UP: Duration = Duration::from_secs(2);

/// Where kernel and fast table disagreed.
type Suspects = BTreeSet<(NamespaceId, IpAddr)>;

/// A comparison under way.
pub(super) struct Verifying {
    reply: oneshot::Sender<Reply>,
    stage: Stage,
}

enum Stage {
    First(Receiver<Result<Found, ApiError>>),
    /// Changes that were under way are being taken in, since then.
    CatchingUp(Suspects, Duration),
    Second(Receiver<Result<Found, ApiError>>),
}

/// What one comparison has found.
struct Found {
    report: VerifyReport,
    differing: Suspects,
}

impl<K: Kernel, O: Observe> Control<K, O> {
    /// Begins to compare every router; the answer is sent when there is one.
    pub(super) fn begin_verify(&mut self, reply: oneshot::Sender<Reply>) {
        if self.verifying.is_some() {
            let _ = reply.send(Err(ApiError::busy("a comparison is already running; try again later")));
            return;
        }
        match self.compare(None) {
            Ok(worker) => self.verifying = Some(Verifying { reply, stage: Stage::First(worker) }),
            Err(error) => drop(reply.send(Err(error))),
        }
    }

    /// Carries a comparison on, if there is one.
    pub(super) fn follow_verify(&mut self, now: Duration) {
        let Some(verifying) = self.verifying.take() else { return };
        let next = match verifying.stage {
            Stage::First(worker) => match result(&worker) {
                None => Ok(Stage::First(worker)),
                Some(Ok(found)) if found.differing.is_empty() => Err(Ok(found)),
                Some(Ok(found)) => Ok(Stage::CatchingUp(found.differing, now)),
                Some(Err(error)) => Err(Err(error)),
            },
            Stage::CatchingUp(suspects, since) => {
                if self.quiet || now.saturating_sub(since) >= CATCH_UP {
                    self.compare(Some(suspects)).map(Stage::Second).map_err(Err)
                } else {
                    Ok(Stage::CatchingUp(suspects, since))
                }
            }
            Stage::Second(worker) => match result(&worker) {
                None => Ok(Stage::Second(worker)),
                Some(found) => Err(found),
            },
        };
        match next {
            Ok(stage) => self.verifying = Some(Verifying { reply: verifying.reply, stage }),
            Err(found) => {
                let answer = found.and_then(|found| {
                    serde_json::to_value(found.report).map_err(|e| ApiError::failed(e.to_string()))
                });
                let _ = verifying.reply.send(answer);
            }
        }
    }

    /// Starts a thread that compares everything, or only what is suspected.
    fn compare(&mut self, suspects: Option<Suspects>) -> Result<Receiver<Result<Found, ApiError>>, ApiError> {
        let comparison = Comparison {
            memory: self.generation.plane.memory(),
            reread: self.observer.reread(),
            ports: self.world.ports.iter().filter_map(|(id, p)| Some((*id, p.device.clone()?))).collect(),
            namespaces: self.world.namespaces.clone(),
            live: self
                .world
                .mirror
                .interfaces()
                .filter_map(|i| Some(((i.namespace, i.ifindex), i.interface?)))
                .collect(),
            routers: self.routers_and_obstacles().collect(),
            suspects,
        };
        let (to, worker) = sync_channel(1);
        let run = move || drop(to.send(comparison.run()));
        let spawned = thread::Builder::new().name("verify".into()).spawn(run);
        spawned.map(|_| worker).map_err(|e| ApiError::failed(format!("cannot start a thread: {e}")))
    }
}

fn result(worker: &Receiver<Result<Found, ApiError>>) -> Option<Result<Found, ApiError>> {
    match worker.try_recv() {
        Ok(result) => Some(result),
        Err(TryRecvError::Empty) => None,
        Err(TryRecvError::Disconnected) => Some(Err(ApiError::failed("the comparison failed"))),
    }
}

/// Everything a comparison needs, so that it needs nothing of the loop.
struct Comparison<M> {
    memory: M,
    reread: Reread,
    ports: BTreeMap<PortId, Port>,
    namespaces: BTreeMap<NamespaceId, Namespace>,
    /// Our numbers of interfaces.
    live: BTreeMap<(NamespaceId, u32), InterfaceId>,
    routers: Vec<RouterView>,
    /// `None`: everything is.
    suspects: Option<Suspects>,
}

impl<M: Memory> Comparison<M> {
    fn run(self) -> Result<Found, ApiError> {
        let (fresh, ledger) = read_afresh(self.reread, &self.ports, &self.namespaces)?;
        let id = |fresh_id| self.live.get(&fresh.link_of(fresh_id)?).copied();
        let neighbours = ledger.neighbours().filter_map(|((i, a), mac)| Some(((id(i)?, a), mac))).collect();
        let lookup = |number, address: IpAddr| tables::lookup(&self.memory, number, address);
        let mut found = Found { report: VerifyReport::default(), differing: Suspects::new() };
        for router in &self.routers {
            let why_not = Families { ipv4: router.ipv4.clone(), ipv6: router.ipv6.clone() };
            let Some(number) = router.router else {
                let router = router.name.clone();
                found.report.routers.push(VerifyRouter { router, why_not, ..VerifyRouter::default() });
                continue;
            };
            let mut judge = Judge {
                namespace: router.namespace,
                suspects: self.suspects.as_ref(),
                neighbours: &neighbours,
                id: &id,
                differences: Vec::new(),
                differing: &mut found.differing,
                found: 0,
            };
            let known4 = neighbours.keys().filter_map(|(_, a)| match a {
                IpAddr::V4(a) => Some(a.to_bits()),
                IpAddr::V6(_) => None,
            });
            let known6 = neighbours.keys().filter_map(|(_, a)| match a {
                IpAddr::V6(a) => Some(a.to_bits()),
                IpAddr::V4(_) => None,
            });
            let (routes4, routes6) = (fresh.routes4(router.namespace), fresh.routes6(router.namespace));
            let compared = Families {
                ipv4: judge.compare(routes4, known4, |a: u32| lookup(number, Ipv4Addr::from(a).into())),
                ipv6: judge.compare(routes6, known6, |a: u128| lookup(number, Ipv6Addr::from(a).into())),
            };
            found.report.differences += judge.found;
            let (router, differences) = (router.name.clone(), judge.differences);
            found.report.routers.push(VerifyRouter { router, compared, why_not, differences });
        }
        Ok(found)
    }
}

/// A mirror that has seen nothing but a fresh dump of everything.
fn read_afresh(
    reread: Reread,
    ports: &BTreeMap<PortId, Port>,
    namespaces: &BTreeMap<NamespaceId, Namespace>,
) -> Result<(Mirror, Ledger), ApiError> {
    let (mut mirror, mut ledger) = (Mirror::new(Limits::default()), Ledger::default());
    for (id, port) in ports {
        mirror.observe(Event::Port(*id, port.clone()));
    }
    for (id, namespace) in namespaces {
        mirror.observe(Event::Namespace(*id, namespace.clone()));
    }
    for (id, dump) in reread().map_err(|e| ApiError::failed(format!("reading the kernel's state: {e:#}")))? {
        mirror.observe(Event::Dump(id, Box::new(dump)));
    }
    ledger.note(&mirror.plan());
    Ok((mirror, ledger))
}

/// Compares answers with routes, and keeps what differs.
struct Judge<'a, F> {
    namespace: NamespaceId,
    /// `None`: everything is.
    suspects: Option<&'a Suspects>,
    /// What Linux knows of neighbours, by our numbers.
    neighbours: &'a BTreeMap<(InterfaceId, IpAddr), Mac>,
    /// Our number of an interface of the fresh mirror.
    id: &'a F,
    differences: Vec<Difference>,
    differing: &'a mut Suspects,
    found: u64,
}

impl<F: Fn(InterfaceId) -> Option<InterfaceId>> Judge<'_, F> {
    /// Returns how many prefixes were compared that the tables hold.
    fn compare<'r, A: Whole>(
        &mut self,
        routes: impl Iterator<Item = (Prefix<A>, &'r Target)>,
        neighbours: impl Iterator<Item = A>,
        look: impl Fn(A) -> Vec<Answer>,
    ) -> u64 {
        let mut routes: Vec<_> = routes.collect();
        routes.sort_by_key(|(prefix, _)| (prefix.address(), prefix.length()));
        let mut probes: BTreeSet<A> = neighbours.collect();
        let mut check = |from: A, to: A, route: Option<(Prefix<A>, &Target)>| {
            let later = probes.split_off(&from);
            probes = later;
            let inside: Vec<A> = probes.range(from..=to).copied().collect();
            for address in [from, to].into_iter().chain(inside) {
                if !is_martian(address.ip()) {
                    self.judge(address.ip(), route, &look(address));
                }
            }
        };
        sweep(&routes, &mut check);
        routes.iter().filter(|(prefix, _)| A::holds(*prefix)).count() as u64
    }

    fn judge<A: Address>(
        &mut self,
        address: IpAddr,
        route: Option<(Prefix<A>, &Target)>,
        answers: &[Answer],
    ) {
        let none = Target::Pass { reason: Reason::NoRoute, unicast: false };
        let target = route.map_or(&none, |(_, target)| target);
        let mut wanted = self.wanted(target, address);
        for answer in
            answers.iter().filter(|a| matches!(a.reason, Some(Reason::SameBox | Reason::TxNotReady)))
        {
            let is_it = |w: &Way| {
                matches!(w, Way::Send { interface, neighbour, .. }
                if (Some(*interface), Some(*neighbour)) == (answer.interface, answer.neighbour))
            };
            // The route is right, and for a good reason its packets are not sent: whatever MAC address it has.
            wanted = wanted.into_iter().map(|w| if is_it(&w) { Way::of(answer) } else { w }).collect();
        }
        let fast: BTreeSet<Way> = answers.iter().map(Way::of).collect();
        let unicast = !matches!(target, Target::Pass { unicast: false, .. });
        // With several ways the flag of each is its own; with one it is the route's.
        let source_check_agrees = answers.len() != 1 || answers[0].unicast == unicast;
        if wanted == fast && source_check_agrees {
            return;
        }
        let suspect = (self.namespace, address);
        if self.suspects.is_some_and(|s| !s.contains(&suspect)) {
            return;
        }
        self.found += 1;
        self.differing.insert(suspect);
        if self.differences.len() < VerifyRouter::LISTED {
            let words = |ways: &BTreeSet<Way>| ways.iter().map(Way::words).collect::<Vec<_>>().join(" or ");
            let prefix = route.map_or_else(|| "no route".into(), |(prefix, _)| prefix.to_string());
            let flag = if wanted != fast || source_check_agrees {
                ""
            } else {
                " (differs for the reverse path filter)"
            };
            self.differences.push(Difference {
                prefix: format!("{prefix} at {address}"),
                kernel: words(&wanted),
                fast: words(&fast) + flag,
            });
        }
    }

    fn wanted(&self, target: &Target, address: IpAddr) -> BTreeSet<Way> {
        match target {
            Target::Pass { reason, .. } => [Way::Kernel(*reason)].into(),
            Target::Hop(hop) => [self.wanted_hop(hop, address)].into(),
            Target::Multi(members) => {
                let total: u32 = members.iter().map(|(_, weight)| u32::from(*weight)).sum();
                // A member with less than one share in 256 may have none.
                let counts = |weight: u16| u32::from(weight) * 256 >= total;
                members.iter().filter(|m| counts(m.1)).flat_map(|m| self.wanted(&m.0, address)).collect()
            }
        }
    }

    fn wanted_hop(&self, hop: &Hop, address: IpAddr) -> Way {
        let Some(interface) = (self.id)(hop.interface) else { return Way::Kernel(Reason::EgressNotAPort) };
        let neighbour = hop.gateway.unwrap_or(address);
        let mac = self.neighbours.get(&(interface, neighbour)).copied();
        Way::Send { interface, neighbour, mtu: hop.mtu, mac }
    }
}

/// Where packets go, comparable.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    Kernel(Reason),
    /// Without a MAC address: known by its route, but the kernel resolves it.
    Send {
        interface: InterfaceId,
        neighbour: IpAddr,
        mtu: u32,
        mac: Option<Mac>,
    },
}

impl Way {
    fn of(answer: &Answer) -> Way {
        match (answer.reason, answer.interface, answer.neighbour) {
            (None | Some(Reason::Unresolved), Some(interface), Some(neighbour)) => {
                Way::Send { interface, neighbour, mtu: answer.mtu, mac: answer.mac }
            }
            (reason, ..) => Way::Kernel(reason.unwrap_or(Reason::NoRoute)),
        }
    }

    fn words(&self) -> String {
        match self {
            Way::Kernel(reason) => reason.name().into(),
            Way::Send { interface, neighbour, mtu, mac } => {
                let mac = mac.map_or("unresolved".into(), |m| m.to_string());
                format!("{neighbour} ({mac}) on interface {interface} with MTU {mtu}")
            }
        }
    }
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

/// The address arithmetic of a sweep.
trait Whole: Address {
    const ZERO: Self;
    const ALL: Self;
    fn before(self) -> Self;
    fn after(self) -> Option<Self>;
    fn end(prefix: Prefix<Self>) -> Self;
    /// Is it in the tables?
    fn holds(prefix: Prefix<Self>) -> bool;
}

macro_rules! whole {
    ($($int:ty, $holds:path);*) => {$(
        impl Whole for $int {
            const ZERO: Self = 0;
            const ALL: Self = <$int>::MAX;
            fn before(self) -> Self { self.wrapping_sub(1) }
            fn after(self) -> Option<Self> { self.checked_add(1) }
            fn end(prefix: Prefix<Self>) -> Self {
                prefix.address() | <$int>::MAX.checked_shr(prefix.length().into()).unwrap_or(0)
            }
            fn holds(prefix: Prefix<Self>) -> bool { $holds(prefix) }
        }
    )*};
}
whole!(u32, tables::holds4; u128, tables::holds6);

/// Calls `each` with every interval of addresses that have the same most specific route, in order, without a gap.
/// `routes` are sorted by address, then length.
fn sweep<A: Whole, T: Copy>(routes: &[(Prefix<A>, T)], each: &mut impl FnMut(A, A, Option<(Prefix<A>, T)>)) {
    // The routes around the cursor, outermost first; the last one holds up to its end.
    let mut around: Vec<(Prefix<A>, T)> = Vec::new();
    let mut cursor = Some(A::ZERO);
    let mut advance = |around: &mut Vec<(Prefix<A>, T)>, cursor: &mut Option<A>, to: A| {
        while let (Some(top), Some(from)) = (around.last().copied(), *cursor) {
            let end = A::end(top.0);
            if end > to {
                break;
            }
            if from <= end {
                each(from, end, Some(top));
                *cursor = end.after();
            }
            around.pop();
        }
        if let Some(from) = cursor.filter(|from| *from <= to) {
            each(from, to, around.last().copied());
            *cursor = to.after();
        }
    };
    for route in routes {
        if route.0.address() > A::ZERO {
            advance(&mut around, &mut cursor, route.0.address().before());
        }
        around.push(*route);
    }
    advance(&mut around, &mut cursor, A::ALL);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn intervals(routes: &[&str]) -> Vec<String> {
        let mut sorted: Vec<(Prefix<u32>, usize)> =
            routes.iter().enumerate().map(|(i, r)| (r.parse().unwrap(), i)).collect();
        sorted.sort();
        let mut out = Vec::new();
        sweep(&sorted, &mut |from: u32, to: u32, route: Option<(Prefix<u32>, usize)>| {
            out.push(format!("{}-{} {:?}", from.ip(), to.ip(), route.map(|r| r.1)));
        });
        out
    }

    #[test]
    fn intervals_of_nested_routes() {
        assert_eq!(intervals(&[]), ["0.0.0.0-255.255.255.255 None"]);
        assert_eq!(intervals(&["0.0.0.0/0"]), ["0.0.0.0-255.255.255.255 Some(0)"]);
        assert_eq!(
            intervals(&["10.0.0.0/8", "10.0.0.0/16", "10.255.255.255/32"]),
            [
                "0.0.0.0-9.255.255.255 None",
                "10.0.0.0-10.0.255.255 Some(1)",
                "10.1.0.0-10.255.255.254 Some(0)",
                "10.255.255.255-10.255.255.255 Some(2)",
                "11.0.0.0-255.255.255.255 None",
            ]
        );
        assert_eq!(
            intervals(&["0.0.0.0/1", "255.255.255.255/32"]),
            [
                "0.0.0.0-127.255.255.255 Some(0)",
                "128.0.0.0-255.255.255.254 None",
                "255.255.255.255-255.255.255.255 Some(1)",
            ]
        );
    }

    proptest! {
        /// The oracle asks, for every address, all routes.
        #[test]
        fn intervals_are_the_longest_match(
            mut routes in proptest::collection::btree_set((0..64u32, 26..=32u8), 0..12), offset in prop::sample::select(vec![0, u32::MAX - 63]),
        ) {
            let routes: BTreeSet<Prefix<u32>> =
                std::mem::take(&mut routes).into_iter().filter_map(|(a, l)| Prefix::new(offset + a, l)).collect();
            let sorted: Vec<_> = routes.iter().map(|p| (*p, ())).collect();
            let mut next = Some(0u32);
            let mut seen = BTreeMap::new();
            sweep(&sorted, &mut |from: u32, to: u32, route: Option<(Prefix<u32>, ())>| {
                assert_eq!(Some(from), next, "without gap or overlap");
                next = to.checked_add(1);
                for a in (from..=to).take(64).chain((from..=to).rev().take(64)) {
                    seen.insert(a, route.map(|r| r.0));
                }
            });
            prop_assert_eq!(next, None);
            for a in offset..=offset + 63 {
                let longest = routes.iter().filter(|p| p.contains(a)).max_by_key(|p| p.length()).copied();
                prop_assert_eq!(seen.get(&a), Some(&longest), "{}", a);
            }
        }
    }
}
