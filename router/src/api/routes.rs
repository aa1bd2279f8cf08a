//! Lists of routes and neighbours: requests, answers and `--json` of `millrace routes` and `millrace neighbours`.

use super::status::{HopReport, Why};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which routes to list.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RoutesQuery {
    /// The routes of this prefix, `ADDRESS/LENGTH`.
    pub prefix: String,
    /// Also routes of longer prefixes within this one.
    #[serde(default)]
    pub longer: bool,
    /// The router whose table it is; null: the host.
    #[serde(default)]
    pub router: Option<String>,
    /// Only routes after this prefix, in the order of the answer: to continue where an earlier answer ended.
    #[serde(default)]
    pub after: Option<String>,
    /// The most routes in the answer, at most 10000.
    #[serde(default)]
    pub limit: Option<usize>,
}

impl RoutesQuery {
    /// The most routes of one answer.
    pub const MOST: usize = 10_000;
}

/// Routes of a router's fast table, by address and then by length.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RoutesReport {
    /// The router's name.
    pub router: String,
    /// The prefix as requested.
    pub prefix: String,
    /// The routes.
    pub routes: Vec<RouteEntry>,
    /// The number of further routes that match and come after these.
    pub more: u64,
}

/// A route of the fast table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RouteEntry {
    /// Its prefix.
    pub prefix: String,
    /// One next hop, or several for a multipath route. MAC addresses are left out: `GET /v1/route` has them.
    pub hops: Vec<HopReport>,
}

/// Which neighbours to list.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NeighboursQuery {
    /// The name of a router.
    #[serde(default)]
    pub router: Option<String>,
    /// The name of an interface.
    #[serde(default)]
    pub interface: Option<String>,
}

/// A neighbour whose MAC address Linux knows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NeighbourReport {
    /// The router's name.
    pub router: String,
    /// The name of the device that it is on.
    pub interface: String,
    /// Its IP address.
    pub address: String,
    /// Its MAC address.
    pub mac: String,
    /// `valid`, or `stale`: Linux asks for it again when it is used, and Millrace uses it from time to time.
    pub state: String,
    /// Why the fast path sends nothing to it; null: it does.
    pub why_not: Option<Why>,
}
