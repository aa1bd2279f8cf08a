//! `millrace routes` and `millrace neighbours`.

use super::{LONG_PATIENCE, Output, get, get_patiently, percent, show, table::Table, text};
use crate::{
    api::{
        RouteQuery,
        routes::{NeighbourReport, RouteEntry, RoutesQuery, RoutesReport},
        status::{Families, HopReport, RouteReport, RouterReport, Status, TableUse, VerifyReport},
    },
    base::instance::Instance,
};
use anyhow::Result;
use clap::Args;
use logic::net::{Prefix4, Prefix6};
use serde::Serialize;
use std::{net::IpAddr, process::ExitCode, str::FromStr};

/// The exit status if a router could not be verified; failures of the command itself have another.
const UNVERIFIED: u8 = 3;

#[derive(Debug, Args)]
pub struct Routes {
    /// The destination to look up, or the prefix of a route. Without it, routes are counted.
    #[arg(value_name = "ADDRESS|PREFIX", conflicts_with = "verify")]
    of: Option<Wanted>,
    /// Also list routes of longer prefixes within the prefix: all of them within 0.0.0.0/0 or ::/0.
    #[arg(long, requires = "of")]
    longer: bool,
    /// List at most this many routes.
    #[arg(long, value_name = "NUMBER", default_value_t = 1000, requires = "longer", value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// The router whose table it is [default: the host].
    #[arg(long, value_name = "NAME", conflicts_with = "verify")]
    router: Option<String>,
    /// Compare the fast table of every router with the kernel's. The exit status is 1 if they differ. It is 3 if no
    /// difference was found but a router could not be verified.
    #[arg(long)]
    verify: bool,
    #[command(flatten)]
    output: Output,
}

/// What to look up.
#[derive(Clone, Debug, PartialEq)]
enum Wanted {
    Address(IpAddr),
    Prefix(String),
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        if let Ok(address) = s.parse() {
            return Ok(Wanted::Address(address));
        }
        let prefix = s.parse::<Prefix4>().map(|p| p.to_string());
        let prefix = prefix.or_else(|_| s.parse::<Prefix6>().map(|p| p.to_string()));
        prefix.map(Wanted::Prefix).map_err(|_| {
            format!("{s:?} is neither an address nor a prefix, such as 10.0.0.1, 10.0.0.0/8 or 2001:db8::/32")
        })
    }
}

#[derive(Debug, Args)]
pub struct Neighbours {
    /// Show only neighbours of this router.
    #[arg(long, value_name = "NAME")]
    router: Option<String>,
    /// Show only neighbours on this interface.
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    #[command(flatten)]
    output: Output,
}

/// How many routes there are, and how much room.
#[derive(Debug, Serialize)]
struct RoutesCounted {
    routers: Vec<RouterRoutes>,
    /// The rows of the tables that hold the routes of all routers.
    tables: Vec<TableUse>,
}

#[derive(Debug, Serialize)]
struct RouterRoutes {
    router: String,
    routes: Families<u64>,
    neighbours: u64,
}

impl Routes {
    pub fn is_json(&self) -> bool {
        self.output.json
    }

    pub fn run(self, instance: &Instance) -> Result<ExitCode> {
        match &self.of {
            _ if self.verify => {
                let report: VerifyReport = get_patiently(instance, "/verify", LONG_PATIENCE)?;
                show(self.output, &report, text::verify)?;
                return Ok(verified(&report));
            }
            None => self.count(instance)?,
            Some(Wanted::Address(address)) if !self.longer => {
                let query = RouteQuery { address: *address, router: self.router.clone() };
                let path = format!("/route?{}", url_query(&query));
                show(self.output, &get::<RouteReport>(instance, &path)?, text::route)?;
            }
            Some(Wanted::Address(address)) => self.list(instance, &one(*address))?,
            Some(Wanted::Prefix(prefix)) => self.list(instance, prefix)?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn count(&self, instance: &Instance) -> Result<()> {
        let status: Status = get(instance, "/status")?;
        let is_wanted = |r: &RouterReport| self.router.as_ref().is_none_or(|router| *router == r.router);
        let routers = status.routers.into_iter().filter(is_wanted).map(|r| RouterRoutes {
            router: r.router,
            routes: r.routes,
            neighbours: r.neighbours,
        });
        show(self.output, &RoutesCounted { routers: routers.collect(), tables: status.tables }, counted)
    }

    /// Lists page after page, so that no answer is long.
    fn list(&self, instance: &Instance, prefix: &str) -> Result<()> {
        let most = usize::try_from(self.limit).unwrap_or(usize::MAX);
        let mut all = RoutesReport::default();
        loop {
            let query = RoutesQuery {
                prefix: prefix.into(),
                longer: self.longer,
                router: self.router.clone(),
                after: all.routes.last().map(|route| route.prefix.clone()),
                limit: Some(most.saturating_sub(all.routes.len())),
            };
            let page: RoutesReport = get(instance, &format!("/routes?{}", list_query(&query)))?;
            let is_last = page.more == 0 || page.routes.is_empty();
            let mut routes = std::mem::take(&mut all.routes);
            routes.extend(page.routes);
            all = RoutesReport { routes, ..page };
            if is_last || all.routes.len() >= most {
                return show(self.output, &all, |report| listed(report, self.longer));
            }
        }
    }
}

impl Neighbours {
    pub fn is_json(&self) -> bool {
        self.output.json
    }

    pub fn run(self, instance: &Instance) -> Result<()> {
        let parts = [("router", &self.router), ("interface", &self.interface)];
        let parts = parts
            .into_iter()
            .filter_map(|(name, value)| Some(format!("{name}={}", percent(value.as_ref()?))));
        let path = format!("/neighbours?{}", parts.collect::<Vec<_>>().join("&"));
        show(self.output, &get::<Vec<NeighbourReport>>(instance, &path)?, |all| neighbours(all))
    }
}

fn verified(report: &VerifyReport) -> ExitCode {
    match (report.differences, report.unverified) {
        (0, 0) => ExitCode::SUCCESS,
        (0, _) => ExitCode::from(UNVERIFIED),
        _ => ExitCode::FAILURE,
    }
}

/// The prefix of an address alone.
fn one(address: IpAddr) -> String {
    format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 })
}

fn url_query(query: &RouteQuery) -> String {
    let router = query.router.as_ref().map_or(String::new(), |r| format!("&router={}", percent(r)));
    format!("address={}{router}", percent(&query.address.to_string()))
}

fn list_query(query: &RoutesQuery) -> String {
    let RoutesQuery { prefix, longer, router, after, limit } = query;
    let mut text = format!("prefix={}&longer={longer}", percent(prefix));
    for (name, value) in [("router", router), ("after", after)] {
        text += &value.as_ref().map_or(String::new(), |value| format!("&{name}={}", percent(value)));
    }
    text + &limit.map_or(String::new(), |limit| format!("&limit={limit}"))
}

fn counted(report: &RoutesCounted) -> String {
    let mut routers = Table::new(&["ROUTER", "ROUTES4", "ROUTES6", "NEIGHBOURS"]);
    for RouterRoutes { router, routes, neighbours } in &report.routers {
        let numbers = [routes.ipv4, routes.ipv6, *neighbours].map(|n| n.to_string());
        routers.row([router.clone()].into_iter().chain(numbers));
    }
    let mut tables = Table::new(&["TABLE OF ALL ROUTERS", "USED", "CAPACITY", "FULL"]);
    for t in &report.tables {
        let full = t.used.saturating_mul(100).checked_div(t.capacity).unwrap_or(0);
        tables.row([t.table.clone(), t.used.to_string(), t.capacity.to_string(), format!("{full} %")]);
    }
    format!("{}\n{}", routers.text(), tables.text())
}

/// A row for each next hop of each route.
fn listed(report: &RoutesReport, longer: bool) -> String {
    let RoutesReport { router, prefix, routes, more } = report;
    if routes.is_empty() {
        return match longer {
            true => format!("router {router} has no route within {prefix}\n"),
            false => {
                format!("router {router} has no route to exactly {prefix}; --longer lists those within it\n")
            }
        };
    }
    let mut table = Table::new(&["PREFIX", "NEXT HOP", "INTERFACE", "MTU", "SHARE", "TO KERNEL"]);
    let row = |table: &mut Table, RouteEntry { prefix, .. }: &RouteEntry, hop: &HopReport| {
        let share =
            hop.share.map_or(String::new(), |share| format!("{:.0} %", f64::from(share) * 100.0 / 256.0));
        let is_connected = hop.next_hop.is_none() && hop.action == "forward";
        let next = hop
            .next_hop
            .clone()
            .unwrap_or_else(|| if is_connected { "connected".into() } else { String::new() });
        table.row([
            prefix.clone(),
            next,
            hop.interface.clone().unwrap_or_default(),
            hop.mtu.map_or(String::new(), |mtu| mtu.to_string()),
            share,
            hop.reason.as_ref().map_or(String::new(), |why| why.code.clone()),
        ]);
    };
    routes.iter().for_each(|route| route.hops.iter().for_each(|hop| row(&mut table, route, hop)));
    let more = match more {
        0 => String::new(),
        more => format!("{more} more routes; --limit lists more\n"),
    };
    table.text() + &more
}

fn neighbours(all: &[NeighbourReport]) -> String {
    if all.is_empty() {
        return "no matching neighbours with a known MAC address\n".into();
    }
    let mut table = Table::new(&["ROUTER", "INTERFACE", "ADDRESS", "MAC", "STATE", "FAST PATH"]);
    for n in all {
        let used =
            n.why_not.as_ref().map_or("used".into(), |why| format!("not used {}", table.note(&why.text)));
        table.row([
            n.router.clone(),
            n.interface.clone(),
            n.address.clone(),
            n.mac.clone(),
            n.state.clone(),
            used,
        ]);
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_or_a_prefix_is_wanted() {
        let table = [
            ("10.0.0.1", Some(Wanted::Address("10.0.0.1".parse().unwrap()))),
            ("::1", Some(Wanted::Address("::1".parse().unwrap()))),
            ("10.1.2.3/8", Some(Wanted::Prefix("10.0.0.0/8".into()))),
            ("2001:db8::/32", Some(Wanted::Prefix("2001:db8::/32".into()))),
            ("10.0.0.0/33", None),
            ("10.0.0", None),
            ("", None),
        ];
        for (text, expected) in table {
            assert_eq!(text.parse().ok(), expected, "{text}");
        }
    }

    #[test]
    fn queries_are_percent_encoded() {
        let query = RouteQuery { address: "2001:db8::1".parse().unwrap(), router: Some("a b&/".into()) };
        assert_eq!(url_query(&query), "address=2001%3Adb8%3A%3A1&router=a%20b%26%2F");
        let query = RoutesQuery {
            prefix: "::/0".into(),
            longer: true,
            router: Some("&".into()),
            after: Some("::/1".into()),
            limit: Some(7),
        };
        assert_eq!(list_query(&query), "prefix=%3A%3A%2F0&longer=true&router=%26&after=%3A%3A%2F1&limit=7");
    }

    #[test]
    fn routes_and_what_was_left_out_are_listed() {
        let forward = |next_hop: Option<&str>, share| HopReport {
            action: "forward".into(),
            interface: Some("eth2".into()),
            next_hop: next_hop.map(String::from),
            mtu: Some(1500),
            share,
            ..HopReport::default()
        };
        let pass = HopReport {
            action: "pass".into(),
            reason: Some(crate::api::status::Why {
                code: "special_route".into(),
                text: "a blackhole".into(),
            }),
            ..HopReport::default()
        };
        let entry = |prefix: &str, hops| RouteEntry { prefix: prefix.into(), hops };
        let mut report = RoutesReport {
            router: "host".into(),
            prefix: "10.0.0.0/8".into(),
            routes: vec![
                entry("10.0.2.0/24", vec![forward(None, None)]),
                entry(
                    "10.9.0.0/16",
                    vec![forward(Some("10.0.2.9"), Some(192)), forward(Some("10.0.2.8"), Some(64))],
                ),
                entry("10.66.0.0/16", vec![pass]),
            ],
            more: 7,
        };
        let expected = "\
PREFIX        NEXT HOP   INTERFACE   MTU  SHARE  TO KERNEL
10.0.2.0/24   connected  eth2       1500      -  -
10.9.0.0/16   10.0.2.9   eth2       1500   75 %  -
10.9.0.0/16   10.0.2.8   eth2       1500   25 %  -
10.66.0.0/16  -          -             -      -  special_route
7 more routes; --limit lists more
";
        assert_eq!(listed(&report, true), expected);
        report.routes.clear();
        assert_eq!(listed(&report, true), "router host has no route within 10.0.0.0/8\n");
        assert!(listed(&report, false).starts_with("router host has no route to exactly 10.0.0.0/8;"));
    }

    #[test]
    fn neighbours_say_why_they_are_not_used() {
        let neighbour = |address: &str, why: Option<&str>| NeighbourReport {
            router: "host".into(),
            interface: "eth1".into(),
            address: address.into(),
            mac: "02:00:00:00:00:09".into(),
            state: "valid".into(),
            why_not: why.map(Into::into),
        };
        let all = [neighbour("10.0.0.9", None), neighbour("fe80::9", Some("a rule"))];
        let expected = "\
ROUTER  INTERFACE  ADDRESS   MAC                STATE  FAST PATH
host    eth1       10.0.0.9  02:00:00:00:00:09  valid  used
host    eth1       fe80::9   02:00:00:00:00:09  valid  not used [1]
  [1] a rule
";
        assert_eq!(neighbours(&all), expected);
        assert_eq!(neighbours(&[]), "no matching neighbours with a known MAC address\n");
    }
}
