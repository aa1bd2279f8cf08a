//! Requests and answers of the API, as JSON. The server is in [`crate::daemon::api`]; docs/reference/api.md describes the fields.
//!
//! | file | holds |
//! |---|---|
//! | `status.rs` | status, ports, routers, interfaces, routes, verify, explain |
//! | `capture.rs` | captures of packets |
//! | `cores.rs` | cores, queues, workloads, events |
//! | `export.rs` | exports of sampled packets |
//! | `findings.rs` | equal sentences about several things, as one |
//! | `flows.rs` | flow rules |
//! | `routes.rs` | lists of routes and neighbours |
//! | `sas.rs` | security associations |
//! | `summary.rs` | the main points of a status |
//! | `workers.rs` | workers and paths |

pub mod capture;
pub mod cores;
pub mod export;
pub mod findings;
pub mod flows;
pub mod routes;
pub mod sas;
pub mod status;
pub mod summary;
pub mod workers;

use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use status::{ConnectionReport, ConnectionState};
use std::net::{IpAddr, SocketAddr};

/// The query of `GET /v1/route`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RouteQuery {
    /// The destination address.
    pub address: IpAddr,
    /// The router whose table it is; by default the host.
    #[serde(default)]
    pub router: Option<String>,
}

/// The query of `GET /v1/connections`. Each part may be missing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConnectionsQuery {
    /// The name of a router.
    #[serde(default)]
    pub router: Option<String>,
    /// An address of either end, before or after NAT.
    #[serde(default)]
    pub address: Option<IpAddr>,
    /// Who forwards it.
    #[serde(default)]
    pub state: Option<ConnectionState>,
}

impl ConnectionsQuery {
    pub fn wants(&self, connection: &ConnectionReport) -> bool {
        let translated = connection.translated.iter().flatten();
        let mut ends = translated.chain([&connection.source, &connection.destination]);
        let has =
            |address: &IpAddr| ends.any(|end| end.parse().is_ok_and(|end: SocketAddr| end.ip() == *address));
        self.router.as_ref().is_none_or(|router| *router == connection.router)
            && self.state.is_none_or(|state| state == connection.state)
            && self.address.as_ref().is_none_or(has)
    }
}

/// The query of `GET /v1/events`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EventsQuery {
    /// Only events with a greater number.
    #[serde(default)]
    pub after: u64,
}

/// The query of `GET /v1/flows`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FlowsQuery {
    /// A match in the syntax of flow rules (docs/reference/flow-syntax.md); empty: all rules.
    #[serde(default, rename = "match")]
    pub matching: String,
}

/// The text of the error about a request that there is not.
pub const NO_SUCH_REQUEST: &str = "no such request";

/// An error as an answer: the HTTP status, and one line for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    pub status: u16,
    pub text: String,
}

impl ApiError {
    /// The request cannot be understood.
    pub fn bad(text: impl Into<String>) -> Self {
        Self { status: 400, text: text.into() }
    }
    /// The request names something that does not exist.
    pub fn unknown(text: impl Into<String>) -> Self {
        Self { status: 404, text: text.into() }
    }
    /// There is no such request.
    pub fn no_such_request() -> Self {
        Self::unknown(NO_SUCH_REQUEST)
    }
    /// The request came over the read-only socket, which does not serve it.
    pub fn not_for_readers() -> Self {
        let text =
            "the read-only socket does not serve this request; use the control socket, which is for root";
        Self { status: 403, text: text.into() }
    }
    /// The request came to the web page's address, which does not serve it.
    pub fn not_on_page() -> Self {
        let text = "the web page does not serve this request; use the control socket, which is for root";
        Self { status: 403, text: text.into() }
    }
    /// The web page may not explain packets.
    pub fn no_explanations() -> Self {
        let text = "this page may not explain packets; run `millrace explain` as root, or set `explain = true` in `[web]`";
        Self { status: 403, text: text.into() }
    }
    /// The daemon failed.
    pub fn failed(text: impl Into<String>) -> Self {
        Self { status: 500, text: text.into() }
    }
    /// The request can be tried again later.
    pub fn busy(text: &str) -> Self {
        Self { status: 503, text: text.into() }
    }
    /// There is no room for one more request.
    pub fn full() -> Self {
        Self::busy("too many requests are waiting; try again")
    }
    /// The thread that would answer has ended.
    pub fn ending() -> Self {
        Self::busy("the daemon is ending")
    }
}

/// The body of an error.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct ErrorBody {
    /// What happened, to what, and what to do: one line for people.
    pub error: String,
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, Json(ErrorBody { error: self.text })).into_response()
    }
}
