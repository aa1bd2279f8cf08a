//! Lists routes and neighbours. The control thread makes one pass over a router's routes for each answer, and keeps no
//! more of them than the answer has.

use super::{
    Control,
    seam::{Kernel, Observe},
};
use crate::api::{
    ApiError,
    routes::{NeighbourReport, NeighboursQuery, RouteEntry, RoutesQuery, RoutesReport},
    status::{HopReport, Why},
};
use logic::{
    cause::{Cause, Code},
    mirror::{InterfaceView, RouterView},
    net::{Address, Prefix, Prefix4, Prefix6},
    observe::NamespaceId,
    plan::{InterfaceId, Target},
    reason::Reason,
};
use std::collections::BTreeMap;

/// The most neighbours in one answer.
const MOST_NEIGHBOURS: usize = 100_000;

type Names = BTreeMap<InterfaceId, String>;

impl<K: Kernel, O: Observe> Control<K, O> {
    /// `millrace routes PREFIX`.
    pub(super) fn route_list(&self, query: &RoutesQuery) -> Result<RoutesReport, ApiError> {
        let (_, router) = self.router(query.router.as_deref())?;
        let interfaces = self.world.mirror.interfaces();
        let names = interfaces.filter_map(|interface| Some((interface.interface?, interface.name)));
        let (names, mirror) = (names.collect(), &self.world.mirror);
        let namespace = router.namespace;
        let (routes, more) = match query.prefix.parse::<Prefix4>() {
            Ok(prefix) => match query.longer {
                true => listed(mirror.routes4(namespace), prefix, query, &names)?,
                false => (exact(mirror.route4(namespace, prefix), prefix, &names), 0),
            },
            Err(_) => {
                let prefix: Prefix6 = parsed(&query.prefix)?;
                match query.longer {
                    true => listed(mirror.routes6(namespace), prefix, query, &names)?,
                    false => (exact(mirror.route6(namespace, prefix), prefix, &names), 0),
                }
            }
        };
        Ok(RoutesReport { router: router.name, prefix: query.prefix.clone(), routes, more })
    }

    /// `millrace neighbours`.
    pub(super) fn neighbour_reports(&self, query: &NeighboursQuery) -> Vec<NeighbourReport> {
        let routers: BTreeMap<NamespaceId, RouterView> =
            self.routers_and_obstacles().map(|router| (router.namespace, router)).collect();
        let interfaces: BTreeMap<(NamespaceId, u32), InterfaceView> =
            self.world.interfaces().map(|i| ((i.namespace, i.ifindex), i)).collect();
        let report = |neighbour: logic::mirror::NeighbourView| {
            let place = (neighbour.namespace, neighbour.ifindex);
            let router = routers.get(&place.0)?;
            let interface = interfaces.get(&place);
            let link = self.world.mirror.link(place.0, place.1);
            let name = link.map_or_else(|| format!("device {}", place.1), |link| link.name.clone());
            let is_wanted = query.router.as_ref().is_none_or(|wanted| *wanted == router.name)
                && query.interface.as_ref().is_none_or(|wanted| *wanted == name);
            is_wanted.then(|| NeighbourReport {
                router: router.name.clone(),
                interface: name,
                address: neighbour.address.to_string(),
                mac: neighbour.mac.to_string(),
                state: if neighbour.stale { "stale" } else { "valid" }.into(),
                why_not: unused(router, interface, neighbour.address.is_ipv4()).map(Why::from),
            })
        };
        self.world.mirror.neighbours().filter_map(report).take(MOST_NEIGHBOURS).collect()
    }
}

/// Why the fast path sends nothing to neighbours of an IP version on this interface.
fn unused(router: &RouterView, interface: Option<&InterfaceView>, v4: bool) -> Option<Cause> {
    let Some(interface) = interface else {
        return Some(Code::NoInterface.cause("its device is not an interface on a port"));
    };
    let of_router = if v4 { &router.ipv4 } else { &router.ipv6 };
    if let Some(cause) = of_router.first() {
        return Some(cause.map(|text| format!("router {}: {text}", router.name)));
    }
    let own = if v4 { &interface.reasons4 } else { &interface.reasons6 };
    match interface.transmit {
        true => None,
        false => {
            let text = "no packets are sent out by its interface, see `millrace interfaces`";
            Some(own.first().cloned().unwrap_or_else(|| Code::NoFastInterface.cause(text)))
        }
    }
}

fn parsed<A: Address>(prefix: &str) -> Result<Prefix<A>, ApiError>
where
    Prefix<A>: std::str::FromStr,
{
    prefix.parse().map_err(|_| {
        ApiError::bad(format!("{prefix:?} is not a prefix, such as 10.0.0.0/8 or 2001:db8::/32"))
    })
}

fn exact<A: Address>(target: Option<&Target>, prefix: Prefix<A>, names: &Names) -> Vec<RouteEntry> {
    target.map(|target| entry(prefix, target, names)).into_iter().collect()
}

/// A page of the routes within a prefix, and how many come after it.
fn listed<'a, A: Address>(
    routes: impl Iterator<Item = (Prefix<A>, &'a Target)>,
    within: Prefix<A>,
    query: &RoutesQuery,
    names: &Names,
) -> Result<(Vec<RouteEntry>, u64), ApiError>
where
    Prefix<A>: std::str::FromStr,
{
    let after = query.after.as_deref().map(parsed).transpose()?;
    let most = query.limit.unwrap_or(RoutesQuery::MOST).min(RoutesQuery::MOST);
    let (page, more) = page(routes, within, after, most);
    Ok((page.into_iter().map(|(prefix, target)| entry(prefix, target, names)).collect(), more))
}

/// The first `most` routes within a prefix and after another one, and how many others there are.
fn page<'a, A: Address>(
    routes: impl Iterator<Item = (Prefix<A>, &'a Target)>,
    within: Prefix<A>,
    after: Option<Prefix<A>>,
    most: usize,
) -> (BTreeMap<Prefix<A>, &'a Target>, u64) {
    let (mut page, mut more) = (BTreeMap::new(), 0);
    for (prefix, target) in routes {
        if !within.covers(prefix) || after.is_some_and(|after| prefix <= after) {
            continue;
        }
        let is_later = page.len() == most && page.last_key_value().is_none_or(|(last, _)| *last < prefix);
        if is_later {
            more += 1;
            continue;
        }
        page.insert(prefix, target);
        if page.len() > most {
            page.pop_last();
            more += 1;
        }
    }
    (page, more)
}

fn entry<A: Address>(prefix: Prefix<A>, target: &Target, names: &Names) -> RouteEntry {
    let hops = match target {
        Target::Multi(members) => {
            let all: u64 = members.iter().map(|(_, weight)| u64::from(*weight)).sum();
            let share = |weight: u16| (u64::from(weight) * 256).checked_div(all).unwrap_or(0) as u16;
            members.iter().map(|(member, weight)| hop(member, Some(share(*weight)), names)).collect()
        }
        one => vec![hop(one, None, names)],
    };
    RouteEntry { prefix: prefix.to_string(), hops }
}

fn hop(target: &Target, share: Option<u16>, names: &Names) -> HopReport {
    let pass = |reason: Reason| HopReport {
        action: "pass".into(),
        reason: Some(Why { code: reason.name().into(), text: reason.text().into() }),
        share,
        ..HopReport::default()
    };
    match target {
        Target::Pass { reason, .. } => pass(*reason),
        Target::Hop(hop) => HopReport {
            action: "forward".into(),
            interface: Some(
                names.get(&hop.interface).cloned().unwrap_or_else(|| format!("interface {}", hop.interface)),
            ),
            next_hop: hop.gateway.map(|gateway| gateway.to_string()),
            mtu: Some(hop.mtu),
            share,
            ..HopReport::default()
        },
        // Linux has no groups within groups.
        Target::Multi(_) => pass(Reason::ComplexRoute),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix4 {
        text.parse().unwrap()
    }

    #[test]
    fn pages_have_every_route_within_a_prefix_once_and_in_order() {
        let target = Target::Pass { reason: Reason::NoRoute, unicast: false };
        // In no particular order, as the mirror has them.
        let all: Vec<Prefix4> =
            (0..256_u32).map(|i| Prefix::new((i * 37 % 256) << 16 | 10 << 24, 16).unwrap()).collect();
        let outside = [prefix("0.0.0.0/0"), prefix("11.0.0.0/8")];
        let routes = || all.iter().chain(&outside).map(|p| (*p, &target));
        let within = prefix("10.0.0.0/8");
        let expected: Vec<Prefix4> = {
            let mut inside: Vec<_> = all.iter().copied().filter(|p| within.covers(*p)).collect();
            inside.sort_unstable();
            inside
        };
        for most in [1, 7, 256, 300] {
            let (mut listed, mut after) = (Vec::new(), None);
            loop {
                let (page, more) = page(routes(), within, after, most);
                assert!(page.len() <= most);
                listed.extend(page.keys().copied());
                assert_eq!(more as usize, expected.len() - listed.len(), "{most}");
                after = listed.last().copied();
                if more == 0 {
                    break;
                }
            }
            assert_eq!(listed, expected, "{most}");
        }
        assert_eq!(page(routes(), within, None, 0).1, 256);
    }
}
